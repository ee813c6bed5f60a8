//! Recovery: from the log on disk to the indexes in memory.
//!
//! It begins with what a checkpoint tells, if there is one ([`base`]), and else with nothing. From there on
//! the log is walked once, extent by extent. A record's previous address is the address of its key's record
//! before it, so the index is rebuilt without comparing keys and without a second read: an entry that points to
//! the previous address moves on, and where there is none the key is new.
//!
//! A record whose version is newer than its extent's seal waits for a later seal; if a crash came first, the
//! next opening wrote a seal that says so, and the record is lost.
//!
//! What lies before the checkpoint's end is read, and checked, only as far as it is left in memory, which is a bounded part of it.
//!
//! # Rounds
//!
//! ```text
//!  reader   read ahead, check the seals' chain and the extents' checksums              source.rs, Scanner
//!                │ stretch, cut into pieces
//!  workers  sort: check each record of a piece, hash its key, put it to a part           work.rs
//!                │ everybody has ended
//!  leader   what must be seen in the order of the log                                    this file, system.rs
//!                │
//!  workers  apply: each part, piece after piece, to the hash index                       work.rs
//!                │ everybody has ended; the next round, or, once many keys have come into tables:
//!  workers  order: each part's keys, sorted, into the tables' orders                     arrivals.rs
//! ```
//!
//! A key's part follows from its hash. A short log, and any on one processor, goes the same way with one part and no thread but
//! the caller's.
//!
//! # Why it comes to the same as record by record
//!
//! - *A key's records* are all of one part, and a part is applied in the order of the log by one thread at a time. So
//!   `replace`, `insert` and `remove` happen for a key in the order of the log, under its bucket's lock. What happens to different keys
//!   in between has no influence on them. Only splits of buckets cross parts, and they take locks. A table's order is asked nothing
//!   until the end, so it is enough that each key is there, or not, as it was said last.
//! - *Errors.* Nothing that is applied can fail. What can, a damaged record, a record of the system that says nothing, an
//!   object that is not in the catalog, is an event of its piece, and the leader looks at events and seals in the order
//!   of the log. An error of the reader comes behind everything that lies before it. So the first error in the log is the
//!   one that is returned.
//! - *The catalog.* A record of an object that was not known when it was sorted is an event, too. When it is its turn, every
//!   entry before it has been heard, and none behind it. Objects are never removed, so when a part is applied, the object
//!   of every change is there.
//! - *Sessions and losses* are heard by the leader alone, record by record, and a seal's losses at its place among them.
//! - *Pending records* are kept by the leader. Whether a record has to wait is a matter of its extent's seal, or an earlier
//!   one with a newer version, and the seals of a stretch are known before it is sorted. At the seal that releases it, it is heard,
//!   and goes to its part marked with the seal's address; the part applies it before its first change behind that address.
//!   At a seal after a crash, what waits is given up.
//! - *Counts* (liveness, numbers of keys, records) are sums and maxima, so it does not matter who counts what.
//! - *The ring* is filled piece by piece. A round lies in one segment, and the ring has room for two.

mod arrivals;
mod base;
mod lookups;
mod orders;
mod report;
mod settled;
mod source;
mod survey;
mod system;
mod team;
#[cfg(test)]
mod tests;
mod work;

use std::sync::Arc;

use super::clock::Version;
use super::losses::Losses;
use super::named_snapshot::NamedSnapshot;
use super::object::Objects;
use crate::error::{Error, ErrorKind, Result};
use crate::planted::{Bug, planted};
use crate::storage::extent::{Chain, Extent};
use crate::storage::hash_index::HashIndex;
use crate::storage::liveness::Liveness;
use crate::storage::log::Log;
use crate::storage::record::{Address, OwnedRecord, VERSION_BITS};
use crate::storage::scanner::{Batch, Scanner};
use crate::storage::segments::Segments;
use crate::storage::superblock::Superblock;
use crate::storage::tree::Tree;
use crate::sync::{processors, spawn_scoped, thread};

pub(crate) use base::{Base, Tombstone};
pub use report::RecoveryReport;
pub(crate) use settled::SETTLED_BEYOND_LOG;
use source::{End, Source};
use survey::Survey;
#[cfg(test)]
pub(crate) use system::DROP_UNEXPECTED;
use system::Told;
pub(crate) use system::{EXPIRY_UNEXPECTED, NUMBER_TAKEN, SystemRecord};
use team::{Leading, Step};
use work::{Event, PARTS_MAX, Work};

/// Of threads that recover together.
const THREAD_NAME: &str = "kiln-recovery";

/// What the walk leaves behind besides the indexes.
pub(crate) struct Recovered {
    pub(crate) report: RecoveryReport,
    /// Where the log goes on, and the chain of seals up to there.
    pub(crate) end: Address,
    pub(crate) chain: Chain,
    /// Where the last extent begins.
    pub(crate) last_extent: Option<Address>,
    /// From here on the log is in memory.
    pub(crate) loaded_from: Address,
    /// The newest version seen in any record.
    pub(crate) newest_version: u64,
    /// Versions lost in this and in earlier crashes.
    pub(crate) losses: Losses,
    /// The snapshots that have a name.
    pub(crate) snapshots: Vec<NamedSnapshot>,
    /// The tombstones that are in the index.
    pub(crate) tombstones: Vec<Tombstone>,
    /// No table's order has a key without an entry in the hash index.
    pub(crate) orders_are_exact: bool,
}

/// After a crash the clock jumps by this much, so that no version that was given out but never reached the disk
/// is given out again.
pub(crate) const VERSIONS_SKIPPED: u64 = 1 << 24;

/// A database in which so many versions were given out is not opened any more: a record has no room for twice as many.
pub(crate) const VERSIONS_END: u64 = 1 << (VERSION_BITS - 1);

/// How the work of recovery is divided.
#[derive(Clone, Debug)]
pub(crate) struct Division {
    /// How many threads apply; `None`: as many as can run at once.
    pub(crate) workers: Option<usize>,
    /// From so many bytes of log on there are threads: it must be worth their beginning.
    pub(crate) threads_from_bytes: u64,
    /// How much one worker takes at a time: what stays in its processor's cache.
    pub(crate) piece_bytes: u64,
    /// How much is read at once, at the most.
    pub(crate) read_bytes: usize,
    /// So much of what the checkpoint tells is read all the same, at the most, so that it is in memory.
    pub(crate) warm_bytes: u64,
    /// So much of a log that does not fit into memory is left there, if half of that is enough for it.
    pub(crate) last_bytes: u64,
    /// Keys that take so much memory wait at the most before they come into their tables' orders; less where the log's memory is small. To sort them
    /// takes two or three times as much again.
    pub(crate) arrived_bytes: u64,
}

impl Division {
    /// How many threads apply.
    pub(crate) fn workers(&self) -> usize {
        self.workers.unwrap_or_else(processors).clamp(1, PARTS_MAX)
    }
}

impl Default for Division {
    fn default() -> Division {
        Division {
            workers: None,
            threads_from_bytes: 16 << 20,
            piece_bytes: 256 << 10,
            read_bytes: 4 << 20,
            warm_bytes: 256 << 20,
            last_bytes: 64 << 20,
            arrived_bytes: 32 << 20,
        }
    }
}

/// So many pieces for each worker are sorted in a round: enough for none to wait long for the others.
const PIECES_PER_WORKER: usize = 8;

/// Such a part of the log's memory, which is empty then, is for what is read ahead, and as much for keys that wait to be sorted. Where more was read
/// ahead it took longer to have the memory than to read.
const SPARE_PART: u64 = 16;

/// Fills the indexes from the checkpoint, if there is one that is whole, and from the log behind it.
///
/// # Errors
/// `Corrupted` if the log is damaged or does not continue the checkpoint; `Io` if the device fails, or there is no memory or no thread to be had.
pub(crate) fn recover(
    (segments, superblock): (&Segments, &Superblock),
    log: &Log,
    tree: &Arc<Tree>,
    division: &Division,
) -> Result<(Base, Recovered)> {
    let checkpoint = base::checkpoint_of(segments.device(), superblock);
    let survey = Survey::of(segments, superblock, division.threads_from_bytes);
    let ahead_bytes = log.ring_bytes() / SPARE_PART;
    thread::scope(|scope| {
        let begin = |known| {
            let route = Route::new((segments, superblock), (log, &survey), division, known);
            let source = Source::Direct(route.scanner, division.piece_bytes);
            let source = match route.is_long && division.workers() > 1 {
                true => source.ahead(scope, ahead_bytes)?,
                false => source,
            };
            Ok((source, route.load_from))
        };
        let reader = checkpoint.as_ref().and_then(|found| found.as_ref().ok()?.as_ref());
        let known = reader.map(|reader| (reader.header.end, reader.header.chain));
        // Read while the checkpoint is loaded.
        let mut begun: (Source<'_>, Address) = begin(known)?;
        let mut base =
            Base::of(checkpoint, (segments, superblock), log.ring_bytes(), division.workers(), tree)?;
        if base.chain.is_none() {
            base.index.reserve(survey.keys);
            if known.is_some() {
                // It is damaged, and the log has everything.
                begun = begin(None)?;
            }
        }
        let (source, load_from) = begun;
        let recovery = Recovery::new((segments, superblock), (log, load_from), &mut base, tree, division);
        let recovered = recovery.run(source, |source| source.ahead(scope, ahead_bytes))?;
        Ok((base, recovered))
    })
}

/// Where reading begins, and what is left in memory of what is read.
struct Route<'a> {
    scanner: Scanner<'a>,
    /// Extents that end before it are not left in memory.
    load_from: Address,
    /// It is worth the beginning of threads.
    is_long: bool,
}

impl<'a> Route<'a> {
    /// What lies before the address is known, where there is one, from a checkpoint that continues this chain of seals.
    fn new(
        (segments, superblock): (&'a Segments, &'a Superblock),
        (log, survey): (&Log, &Survey),
        division: &Division,
        known: Option<(Address, Chain)>,
    ) -> Route<'a> {
        // What does not fit is read from disk all the same, and memory that is touched for the first time takes its time: so the longer a log is the
        // less of it is left, once it is longer than half of what there is room for.
        let (ring, log_bytes) = (log.ring_bytes(), survey.reaches - superblock.begin);
        let left = ring.saturating_sub(log_bytes).max(division.last_bytes).min(ring / 2);
        let mut load_from = survey.reaches.saturating_sub(left);
        let replay_from = known.map_or(superblock.begin, |(end, _)| end);
        if known.is_some() {
            // Else opening would take longer the more memory there is.
            load_from = load_from.max(replay_from.saturating_sub(division.warm_bytes));
        }
        // At a segment, where what lies before the checkpoint's end is to be left in memory.
        let first = load_from.next_multiple_of(superblock.segment_bytes).max(superblock.begin);
        let mut scanner = match known {
            Some(_) if first > superblock.begin && first < replay_from => {
                Scanner::from(segments, superblock, first, None)
            }
            Some((_, chain)) if first >= replay_from => {
                Scanner::from(segments, superblock, replay_from, Some(chain))
            }
            _ => Scanner::new(segments, superblock),
        };
        scanner.set_read_bytes_max(division.read_bytes);
        let is_long = survey.reaches.saturating_sub(scanner.position()) >= division.threads_from_bytes;
        Route { scanner, load_from, is_long }
    }
}

/// Walks the log and fills the indexes.
struct Recovery<'a> {
    segments: &'a Segments,
    superblock: &'a Superblock,
    log: &'a Log,
    index: &'a HashIndex,
    objects: &'a Objects,
    liveness: &'a mut Liveness,
    division: &'a Division,
    /// What lies before is known from the checkpoint, which continues this chain of seals.
    replay_from: Address,
    chain: Option<Chain>,
    report: RecoveryReport,
    told: Told<'a>,
    pending: Vec<(Address, OwnedRecord)>,
    /// The newest version that is durable, and the newest one seen in any record.
    horizon: u64,
    newest_version: u64,
    /// What has settled, and up to where nothing of that is in the checkpoint.
    tree: &'a Arc<Tree>,
    settled_to: Address,
    /// As [`Base::has_departed`].
    has_departed: bool,
    /// As [`Base::has_unasked_keys`].
    has_unasked_keys: bool,
    /// The tombstones of keys that may have settled, or that a snapshot may see, and are deleted as far as the log was replayed; none is
    /// kept where there is neither.
    deleted: Option<Vec<Tombstone>>,
    /// As [`Base::forgotten_to`].
    forgotten_to: &'a mut Address,
    last_segment: Option<u64>,
    last_extent: Option<Address>,
    /// Extents that end before `load_from` are not left in memory; the first that is begins at `loaded_from`.
    load_from: Address,
    loaded_from: Option<Address>,
}

impl<'a> Recovery<'a> {
    fn new(
        (segments, superblock): (&'a Segments, &'a Superblock),
        (log, load_from): (&'a Log, Address),
        base: &'a mut Base,
        tree: &'a Arc<Tree>,
        division: &'a Division,
    ) -> Recovery<'a> {
        let has_settled = tree.has_settled() && !(tree.is_empty() && planted(Bug::TombstonesOfEmptiedTree));
        let keeps_deleted = has_settled || superblock.has_snapshots;
        let deleted = keeps_deleted.then(|| std::mem::take(&mut base.deleted));
        let heard = std::mem::take(&mut base.heard);
        let report = RecoveryReport {
            checkpoint: base.chain.map(|_| base.replay_from),
            checkpoint_damage: base.damage.take(),
            checkpoint_is_foreign: base.is_foreign,
            ..RecoveryReport::default()
        };
        Recovery {
            segments,
            superblock,
            log,
            index: &base.index,
            objects: &base.objects,
            liveness: &mut base.liveness,
            division,
            replay_from: base.replay_from,
            chain: base.chain,
            report,
            told: Told::new(segments, superblock, &base.objects, heard),
            pending: Vec::new(),
            horizon: base.horizon,
            newest_version: base.newest_version,
            tree,
            settled_to: base.settled_to,
            has_departed: base.has_departed,
            has_unasked_keys: base.has_unasked_keys,
            deleted,
            forgotten_to: &mut base.forgotten_to,
            last_segment: None,
            last_extent: None,
            load_from,
            loaded_from: None,
        }
    }

    /// Replays what the source brings: a short log alone, and a long one together with others, for whom `ahead` makes another source of it.
    fn run<'s>(
        mut self,
        mut source: Source<'s>,
        ahead: impl FnOnce(Source<'s>) -> Result<Source<'s>>,
    ) -> Result<Recovered> {
        let (division, workers) = (self.division, self.division.workers());
        let mut end = None;
        if let Source::Direct(scanner, _) = &source {
            let until =
                if workers == 1 { Address::MAX } else { scanner.position() + division.threads_from_bytes };
            let work = self.work(1, 1);
            end = self.replay(&mut source, &work, until)?;
        }
        let end = match end {
            Some(end) => end,
            None => self.replay_together(ahead(source)?, workers)?.ok_or_else(thread_ended)?,
        };
        self.finish_settled(end.position)?;
        let tombstones = self.finish_deleted();
        self.hide_loaded()?;
        self.finish(&end, tombstones)
    }

    fn finish(mut self, end: &End, tombstones: Vec<Tombstone>) -> Result<Recovered> {
        let (position, superblock, mut report) = (end.position, self.superblock, self.report.clone());
        // If the log goes on after the orderly close, a newer superblock must have been damaged; and if a slot is, it may be the newer one, of an
        // opening since, that has given out versions of which there is nothing in the log. And a close leaves nothing unsealed: what is must not come
        // back with the next seal.
        report.clean = superblock.clean
            && superblock.damaged_slot.is_none()
            && position == superblock.known_end
            && self.pending.is_empty();
        report.damaged_slot = superblock.damaged_slot;
        report.is_backup = superblock.is_backup;
        report.horizon = Version::new(self.horizon);
        report.cut_bytes = end.cut_bytes;
        report.lost_records = self.pending.len() as u64;
        self.give_up();
        report.sessions = std::mem::take(&mut self.told.heard.sessions).into_iter().collect();
        let orders_are_exact = self.make_orders_exact(&tombstones);
        // The first version that a crash took follows the horizon.
        let lost_now = (!report.clean).then_some(self.horizon + 1);
        self.look_at_losses(self.told.heard.losses.unrecorded().chain(lost_now))?;
        Ok(Recovered {
            report,
            end: position,
            chain: end.chain,
            last_extent: self.last_extent,
            loaded_from: self.loaded_from.unwrap_or(position),
            newest_version: self.newest_version.max(self.horizon).max(superblock.clock),
            losses: self.told.heard.losses,
            snapshots: self.told.heard.snapshots.into_values().collect(),
            orders_are_exact,
            tombstones,
        })
    }

    fn work(&mut self, workers: usize, pieces: usize) -> Work<'a> {
        let shared = (self.superblock, self.log, self.index, self.objects);
        Work::new(shared, (workers, pieces), (self.load_from, self.replay_from), self.deleted.take())
    }

    /// Replays the log to its end with so many workers, the caller among them.
    fn replay_together(&mut self, mut source: Source<'_>, workers: usize) -> Result<Option<End>> {
        let work = &self.work(workers, workers * PIECES_PER_WORKER);
        thread::scope(|scope| {
            let _leading = Leading(&work.team);
            // Where there can be no more threads, there are fewer.
            let begins = |_: &usize| spawn_scoped(scope, THREAD_NAME, || work.follow()).is_ok();
            work.team.add_members((1..workers).filter(begins).count());
            self.replay(&mut source, work, Address::MAX)
        })
    }

    /// Replays stretches until one ends at or behind `until`, or the log does.
    fn replay(&mut self, source: &mut Source<'_>, work: &Work<'a>, until: Address) -> Result<Option<End>> {
        let arrived_most = self.division.arrived_bytes.min(self.log.ring_bytes() / SPARE_PART);
        let end = loop {
            if let Some(end) = self.begin_stretch(source, work)? {
                break Some(end);
            }
            let mut first = 0;
            let stretch_end = loop {
                {
                    let mut round = work.round.write();
                    let pieces = round.stretch.cuts.len() - 1;
                    if first == pieces {
                        break round.stretch.cuts[pieces];
                    }
                    round.first = first;
                    round.count = (pieces - first).min(work.pieces.len());
                    first += round.count;
                }
                work.lead(Step::Sort)?;
                self.look_in_order(work)?;
                work.lead(Step::Apply)?;
                if work.arrived_bytes() as u64 >= arrived_most {
                    work.lead(Step::Order)?;
                }
            };
            if stretch_end >= until {
                break None;
            }
        };
        work.lead(Step::Order)?;
        work.counts.iter().for_each(|counts| self.liveness.add_all(&counts.lock()));
        self.deleted = work.take_deleted();
        *self.forgotten_to = work.forgotten_to().max(*self.forgotten_to);
        Ok(end)
    }

    fn begin_stretch(&self, source: &mut Source<'_>, work: &Work<'a>) -> Result<Option<End>> {
        let round = &mut *work.round.write();
        let end = source.next(&mut round.stretch)?;
        let mut horizon = self.horizon;
        round.horizons.clear();
        round.horizons.extend(round.stretch.batch.extents().map(|extent| {
            horizon = horizon.max(extent.seal.version);
            horizon
        }));
        Ok(end)
    }

    /// Looks at the seals and the events of the round that was sorted, in the order of the log.
    fn look_in_order(&mut self, work: &Work<'a>) -> Result<()> {
        let round = &mut *work.round.write();
        let (start, end) = round.span();
        let pieces: Vec<_> = work.pieces[..round.count].iter().map(|piece| piece.read()).collect();
        let batch = &round.stretch.batch;
        let mut events = pieces.iter().flat_map(|piece| piece.events.iter().copied()).peekable();
        let mut released = Vec::new();
        let begin_here = batch.extents().skip(batch.extents_before(start));
        for extent in begin_here.take_while(|extent| extent.seal.address < end) {
            while let Some(event) = events.next_if(|event| event.address() < extent.seal.address) {
                self.look_at(batch, event)?;
            }
            self.begin_extent(&extent, &mut released)?;
        }
        events.try_for_each(|event| self.look_at(batch, event))?;
        for piece in &pieces {
            self.report.records += piece.records;
            self.liveness.add_records(start, piece.records, piece.bytes);
            self.newest_version = self.newest_version.max(piece.newest_version);
        }
        work.set_released(round, released);
        Ok(())
    }

    fn look_at(&mut self, batch: &Batch, event: Event) -> Result<()> {
        let damaged = |(address, what)| self.segments.corrupted(address, what);
        let record = |address| batch.record(address).map_err(|what| damaged((address, what)));
        match event {
            Event::Damaged(address, what) => return Err(damaged((address, what))),
            Event::Pending(address) => {
                self.pending.push((address, OwnedRecord::from_disk(&record(address)?)))
            }
            Event::Telling(address) => self.told.hear(address, &record(address)?)?,
        }
        Ok(())
    }

    /// An extent begins: what its seal says, and which records have waited for it.
    fn begin_extent(
        &mut self,
        extent: &Extent<'_>,
        released: &mut Vec<(Address, Address, OwnedRecord)>,
    ) -> Result<()> {
        let seal = &extent.seal;
        self.last_extent = Some(seal.address);
        if seal.end() > self.load_from {
            self.loaded_from.get_or_insert(seal.address);
        }
        if seal.address < self.replay_from && seal.end() <= self.replay_from {
            return Ok(());
        }
        self.check_continues(extent)?;
        self.report.seals += 1;
        self.liveness.set_end_checksum(seal.address, extent.checksum);
        let segment = seal.address / self.superblock.segment_bytes;
        self.report.segments += u64::from(self.last_segment.replace(segment) != Some(segment));
        if seal.first_version != 0 {
            // Opened after a crash: what was never sealed before is lost for ever.
            if !planted(Bug::PendingKept) {
                self.give_up();
            }
            self.told.heard.losses.add(seal.version + 1, seal.first_version - 1);
            self.newest_version = self.newest_version.max(seal.first_version - 1);
        }
        // All extents of a hardening but the last have the seal of the one before, which releases nothing.
        if seal.version > self.horizon {
            self.horizon = seal.version;
            self.release_pending(seal.address, released)?;
        }
        Ok(())
    }

    /// Gives out the records that the horizon has come to, with the seal at `at`.
    fn release_pending(
        &mut self,
        at: Address,
        released: &mut Vec<(Address, Address, OwnedRecord)>,
    ) -> Result<()> {
        #[cfg(test)]
        tests::LOOKS.set(tests::LOOKS.get() + self.pending.len() as u64);
        let horizon = self.horizon;
        for (address, record) in self.pending.extract_if(.., |(_, record)| record.version <= horizon) {
            self.told.hear(address, &record.as_disk_record())?;
            released.push((at, address, record));
        }
        Ok(())
    }

    /// The first extent behind a checkpoint must be the one that it ends at.
    fn check_continues(&self, extent: &Extent<'_>) -> Result<()> {
        let seal = &extent.seal;
        let is_first = seal.address <= self.replay_from;
        let continues =
            |chain: Chain| seal.address == self.replay_from && seal.previous_checksum == chain.checksum;
        match self.chain {
            Some(chain) if is_first && !continues(chain) => {
                Err(self.segments.corrupted(seal.address, "this seal does not continue the checkpoint"))
            }
            _ => Ok(()),
        }
    }

    /// A crash took the records that are pending: nobody will ever need them.
    fn give_up(&mut self) {
        for (address, record) in self.pending.drain(..) {
            self.liveness.supersede(address, 0, Some(record.shape.bytes()));
        }
    }
}

/// A thread has ended without a word. That is a panic, which the scope of the threads passes on.
fn thread_ended() -> Error {
    Error::new(ErrorKind::Io, "a thread of recovery has ended; open the database again")
}
