//! Checkpoints: the index written to a file of its own, without stopping anybody, so that opening replays only what the
//! log holds since (CPR §5; fuzzy, as FASTER's).
//!
//! ```text
//!   begin         end of the checkpoint                     hardened          tail
//!     |  what the checkpoint tells  | what recovery replays     |  not durable   |
//! ```
//!
//! It tells exactly what recovery would know had the log ended at its *end*, though the index changes while it is read:
//!
//! - *The end* is where the durable log ends when it is begun. What the hardener knows then (`ledger`, `liveness`, the
//!   chain of seals, the deleted keys) is taken under its lock. Nobody hardens meanwhile, so only what is small is copied there:
//!   the records of the system are shared, and the deleted keys, of which none is forgotten, counted.
//! - *Entries.* A walk meets every entry that is there throughout exactly once, however buckets split. Its address is of the
//!   key's newest record. If that lies behind the end, the chain of previous addresses leads to the newest one before it,
//!   in memory or on disk; if there is none, the key came to be since. Compaction only ever writes behind the end, and
//!   links to where the record was. When the log's beginning passes the end the checkpoint is of no use any more, and given up.
//! - *Deleted keys* keep their entries until the checkpoint is complete: nothing is forgotten meanwhile. So each key that
//!   had a record at the end is met. Which of the entries are of tombstones is told by the list of them; recovery, which has no
//!   use for tombstones, takes those away again, and counts them as superseded, just as it does with those in the log.
//!   Before anything settles, and on a full disk, some were forgotten though what they delete has not settled ([`merge_newest`](super::settle)): the header says before which place, and all before that settles at once.
//! - *Keys of tables* that came to be since the end, or that are only being inserted, have no entry in the checkpoint, and
//!   recovery leaves those out that get none from the log either.
//! - *Settled rows* leave the index by and by. The header says up to where they had all left it before the walk began, or from where on
//!   a chain has led to one again; of what is met behind that recovery finds out by the log what has settled. Where rows had a newer record when they were to leave,
//!   chains from behind the end would lead to them: so where some have left since the last checkpoint something hardens before the end is chosen, and those records lie before it.
//! - *Versions.* Records before the end may be of a version that was not sealed there. The superblock names the checkpoint only
//!   when a seal has made the newest of them durable; so recovery takes all of them for durable.
//!
//! Rejected: to take the index at a version's end rather than at a place of the log, as CPR does. It would have to look
//! at every record for its version, where the address in the entry is enough. To keep a copy of the index and write
//! that: twice the memory.
//!
//! **When.** Once the log since the last one is as long as [`checkpoint_log_bytes`](crate::Options::checkpoint_log_bytes), and
//! twice as long as the last checkpoint: so they write half as much as the log itself at the most. When rows have settled, since it is shorter then. On an orderly close from a quarter of that on,
//! and from then on where rows of dropped objects were removed since: opening would count them (`recovery::orders`). Then an orderly close takes one however little the log is. A
//! background thread takes them in pieces, with a nap after each that is as long as the piece took. But what is written meanwhile must be followed
//! back to before the end, and once it has left memory each step is a read from disk. So where so much is written that this is near there are no
//! naps, and none once the next checkpoint is due, since all that is written meanwhile is for the next opening to replay. If it comes to more reads than
//! [`COLD_READS_MAX`] all the same, the checkpoint is given up, for settling would have to wait for it. The next one is tried after [`REST_TIMES`] as long, and ten minutes at most: perhaps less is written then.

mod keys;

use std::time::Duration;

use super::engine::Engine;
use super::gauge::Gauge;
use super::ledger::LedgerCut;
use crate::error::{Error, Result};
use crate::planted::{Bug, planted};
use crate::storage::checkpoint::{self, Header, SystemItem, Writer, kind};
use crate::storage::epoch;
use crate::storage::extent::Chain;
use crate::storage::hash_index;
use crate::storage::liveness::Liveness;
use crate::storage::record::{Address, HEADER_BYTES, NO_ADDRESS};
use crate::storage::superblock::CheckpointName;
use crate::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use crate::sync::{Instant, Mutex, thread};

/// A checkpoint in the background reads so many records at the most to find out what was before them, or one for so many buckets of the index.
const COLD_READS_MAX: u64 = 1 << 13;
const BUCKETS_PER_COLD_READ: u64 = 256;
/// One is due when there is so many times as much log behind the last one as that has bytes.
const LOG_TIMES: u64 = 2;
/// So many times as long as a checkpoint took that writers have overtaken none is tried.
const REST_TIMES: u32 = 7;
/// No longer, for the disk may have stalled, or the process been stopped.
const REST_MAX: Duration = Duration::from_secs(600);
/// On an orderly close such a part of the log that makes one due is enough, and where rows of dropped objects were removed.
const SMALL_PART: u64 = 4;

/// What is known of a database's checkpoints.
pub(crate) struct Checkpoints {
    /// The option; 0: none are taken.
    log_bytes: u64,
    /// Whoever takes one, and how many wait for it to come to its end.
    taking: Mutex<()>,
    awaited: AtomicUsize,
    /// How far the log must have hardened before the next one is worth it.
    due_at: AtomicU64,
    /// Writers have overtaken the last one, and none is tried before this moment.
    rests_until: Mutex<Option<Instant>>,
    /// Of the one that the superblock names: its end, its bytes, when it was begun, and [up to where](Header::settled_to) nothing of it has settled.
    end: AtomicU64,
    bytes: AtomicU64,
    time_us: AtomicU64,
    settled_to: AtomicU64,
    count: AtomicU64,
    /// Of the one that is being taken: buckets of the index and keys of tables that are written, and how many there are.
    steps: Gauge,
    /// The highest number that was tried since opening. If the superblock could not be written it may name that one all the same, and no other file may
    /// come to have its name.
    tried: AtomicU64,
}

/// Numbers for statistics.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct CheckpointCounts {
    /// Taken since the database was opened.
    pub(crate) count: u64,
    /// Of the newest one; 0 without one.
    pub(crate) end: Address,
    pub(crate) bytes: u64,
    pub(crate) time_us: u64,
    pub(crate) settled_to: Address,
    /// Of the one that is being taken: steps done, and how many there are; 0 while none is.
    pub(crate) steps: (u64, u64),
}

/// What the hardener knows at one place of the log.
pub(crate) struct Cut {
    pub(crate) end: Address,
    pub(crate) chain: Chain,
    pub(crate) ledger: LedgerCut,
    pub(crate) liveness: Liveness,
    /// So many of the tombstones that are known.
    pub(crate) grave_count: usize,
}

/// How much of the processor and of the disk a checkpoint may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Haste {
    /// As much as there is; somebody waits for it.
    Waited,
    /// Half of the time, and nothing once the database is to be closed.
    Background,
}

impl Checkpoints {
    pub(crate) fn new(log_bytes: u64, found: CheckpointCounts) -> Checkpoints {
        let checkpoints = Checkpoints {
            log_bytes,
            taking: Mutex::new(()),
            awaited: AtomicUsize::new(0),
            due_at: AtomicU64::new(0),
            rests_until: Mutex::new(None),
            end: AtomicU64::new(found.end),
            bytes: AtomicU64::new(found.bytes),
            time_us: AtomicU64::new(found.time_us),
            settled_to: AtomicU64::new(found.settled_to),
            count: AtomicU64::new(0),
            steps: Gauge::default(),
            tried: AtomicU64::new(0),
        };
        checkpoints.set_due_after(found.end);
        checkpoints
    }

    pub(crate) fn counts(&self) -> CheckpointCounts {
        CheckpointCounts {
            count: self.count.load(Ordering::Relaxed),
            end: self.end.load(Ordering::Relaxed),
            bytes: self.bytes.load(Ordering::Relaxed),
            time_us: self.time_us.load(Ordering::Relaxed),
            settled_to: self.settled_to.load(Ordering::Relaxed),
            steps: self.steps.read(),
        }
    }

    /// Has the newest one stay until dropped. One that is being taken hurries.
    pub(crate) fn pause(&self) -> impl Drop {
        self.awaited.fetch_add(1, Ordering::SeqCst);
        let taking = self.taking.lock();
        self.awaited.fetch_sub(1, Ordering::SeqCst);
        taking
    }

    /// The next one is due when the log goes on far enough behind `end`.
    fn set_due_after(&self, end: Address) {
        self.due_at.store(end.saturating_add(self.log_bytes_between()), Ordering::SeqCst);
    }

    /// Writers have overtaken the last one, and the next one will be tried soon, however little the log grows.
    pub(crate) fn is_to_be_retried(&self) -> bool {
        self.rests_until.lock().is_some()
    }

    /// The newest one tells of rows that were removed since: the next one is due after a part of the log.
    pub(super) fn hasten(&self) {
        let due_at = self.end.load(Ordering::SeqCst).saturating_add(self.log_bytes_between() / SMALL_PART);
        self.due_at.fetch_min(due_at, Ordering::SeqCst);
    }

    fn is_resting(&self) -> bool {
        self.rests_until.lock().is_some_and(|until| Instant::now() < until)
    }

    /// So much log is between two checkpoints.
    fn log_bytes_between(&self) -> u64 {
        self.log_bytes.max(LOG_TIMES * self.bytes.load(Ordering::Relaxed))
    }
}

impl Engine {
    /// True if the log is long enough for another checkpoint, and there can be one.
    pub(crate) fn is_checkpoint_due(&self) -> bool {
        let (hardened, checkpoints) = (self.log.hardened(), &self.checkpoints);
        checkpoints.log_bytes != 0
            && self.losses_are_recorded()
            && hardened >= checkpoints.due_at.load(Ordering::SeqCst)
            && !checkpoints.is_resting()
            && !self.segments.disk_is_full()
    }

    /// True if the options have not forbidden it.
    pub(crate) fn takes_checkpoints(&self) -> bool {
        self.checkpoints.log_bytes != 0
    }

    /// True if there is a checkpoint, and rows of dropped objects were removed since. Opening would count them, and not know whether all keys of tables have entries.
    pub(super) fn is_checkpoint_outdated(&self) -> bool {
        self.checkpoints.end.load(Ordering::SeqCst) > 0 && self.removal.is_untold()
    }

    /// Takes a checkpoint if one is due. That it cannot be had harms nobody: the next one is tried as much log later, or after a rest.
    pub(crate) fn take_due_checkpoint(&self, haste: Haste) {
        let is_taken = !self.is_checkpoint_due() || matches!(self.take_checkpoint(haste), Ok(true));
        if !is_taken && !self.checkpoints.is_to_be_retried() {
            self.checkpoints.set_due_after(self.log.hardened());
        }
    }

    /// Bytes of log that opening would replay now.
    pub(crate) fn log_since_checkpoint(&self) -> u64 {
        let known = self.checkpoints.end.load(Ordering::SeqCst).max(self.log.begin());
        self.log.hardened().saturating_sub(known)
    }

    /// Takes one before an orderly close, where that saves the next opening some time. None is taken any more until what it
    /// returns is dropped.
    pub(crate) fn take_last_checkpoint(&self) -> impl Drop {
        let taking = self.checkpoints.taking.lock();
        let since = self.log_since_checkpoint();
        let is_long = since >= self.checkpoints.log_bytes_between() / SMALL_PART;
        let is_worth_it = self.takes_checkpoints() && (is_long || self.is_checkpoint_outdated());
        if is_worth_it && self.hardening.horizon.failure().is_none() {
            // Whatever the reason, opening takes longer, and that is all.
            let _ = self.take_checkpoint_in_turn(Haste::Waited);
        }
        taking
    }

    /// Takes a checkpoint. False if there is nothing to gain.
    ///
    /// # Errors
    /// `Io`, `NoSpace` or `Lost`, if the disk fails or is full, or hardening has failed; `Aborted` if the database is closed. The
    /// last checkpoint stays.
    pub(crate) fn take_checkpoint(&self, haste: Haste) -> Result<bool> {
        self.lose_after_fork()?;
        let _taking = self.checkpoints.taking.lock();
        // Closing comes in its turn, too. After it the directory may be somebody else's.
        self.check_writable()?;
        self.take_checkpoint_in_turn(haste)
    }

    fn take_checkpoint_in_turn(&self, haste: Haste) -> Result<bool> {
        let taken = self.write_checkpoint(haste);
        self.checkpoints.steps.clear();
        taken
    }

    fn write_checkpoint(&self, haste: Haste) -> Result<bool> {
        if !self.losses_are_recorded() {
            return Ok(false);
        }
        let settled_to = self.settled.removed_to.load(Ordering::SeqCst);
        let has_settled = settled_to > self.checkpoints.settled_to.load(Ordering::SeqCst);
        if has_settled {
            // What kept the entries of settled rows from being removed was not durable, and is before the cut then.
            self.harden_all()?;
        }
        let held = self.graves.hold();
        let forgotten_to =
            if planted(Bug::CheckpointForgets) { 0 } else { self.settled.forgotten_unsettled_to() };
        self.fold_ledger();
        let cut = self.cut();
        let before = self.superblock.lock().current().clone();
        let (removed_rows, tells_more) =
            (self.removal.removed_rows(), has_settled || self.removal.is_untold());
        if cut.end < before.checkpoint.end || cut.end == before.checkpoint.end && !tells_more {
            return Ok(false);
        }
        let failed = |error| Error::io("writing a checkpoint", error);
        let began = Instant::now();
        let number = before.checkpoint.number.max(self.checkpoints.tried.load(Ordering::SeqCst)) + 1;
        let time_us = self.segments.time_us();
        let writer = Writer::create(self.segments.device(), before.database, number).map_err(failed)?;
        let mut taking = Taking {
            engine: self,
            cut,
            settled_to,
            writer,
            haste,
            cold_reads: 0,
            is_overtaken: false,
            has_entries: false,
            piece: (0, Instant::now()),
            steps: (0, 1),
        };
        let outcome = taking.write_all().and_then(|written| match written {
            Some(counts) => self.seal_all_before(&taking.cut).map(|()| Some(counts)),
            None => Ok(None),
        });
        drop(held);
        let rest = taking.is_overtaken.then(|| Instant::now() + (began.elapsed() * REST_TIMES).min(REST_MAX));
        *self.checkpoints.rests_until.lock() = rest;
        if rest.is_some() {
            // Nothing may have been written for a while, and then it sleeps.
            self.hardening.wake_keeper();
        }
        let Taking { cut, writer, settled_to, .. } = taking;
        let (entries, keys) = match outcome {
            Ok(Some(counts)) => counts,
            useless => {
                self.remove_checkpoint(checkpoint::UNFINISHED);
                return useless.map(|_| false);
            }
        };
        let header = Header {
            base_level: self.index.base_level(),
            database: before.database,
            number,
            end: cut.end,
            chain: cut.chain,
            horizon: cut.ledger.horizon,
            newest_version: cut.ledger.newest_version,
            entries,
            keys,
            blocks: 0,
            time_us,
            settled_to,
            forgotten_to: forgotten_to.min(cut.end),
        };
        let (named, bytes) = self
            .segments
            .check_names()
            .and_then(|()| writer.finish(header))
            .and_then(|finished| self.segments.sync_names().map(|()| finished))
            .inspect_err(|_| self.remove_checkpoint(checkpoint::UNFINISHED))
            .map_err(failed)?;
        self.name_checkpoint(named, before.checkpoint)?;
        self.note_checkpoint(named, bytes, (time_us, settled_to));
        self.removal.note_told(removed_rows);
        Ok(true)
    }

    /// Sees to it that every record before the cut is of a durable version.
    fn seal_all_before(&self, cut: &Cut) -> Result<()> {
        if self.hardening.horizon.local() < cut.ledger.newest_version {
            self.harden_all()?;
        }
        self.check_not_lost()
    }

    /// Has the superblock name the checkpoint, and removes the one before.
    fn name_checkpoint(&self, named: CheckpointName, before: CheckpointName) -> Result<()> {
        // If this fails, nobody knows which of the two it names: then both stay, until the next one is named, or the database is opened again.
        self.checkpoints.tried.store(named.number, Ordering::SeqCst);
        // The seals behind its end that make its records durable are on disk, and must not pass for an unfinished write.
        let hardened = self.log.hardened();
        self.superblock.lock().update(|superblock| {
            superblock.checkpoint = named;
            superblock.known_end = superblock.known_end.max(hardened);
        })?;
        (before.number..named.number).for_each(|number| self.remove_checkpoint(&checkpoint::name_of(number)));
        Ok(())
    }

    fn note_checkpoint(&self, named: CheckpointName, bytes: u64, (time_us, settled_to): (u64, Address)) {
        let checkpoints = &self.checkpoints;
        checkpoints.end.store(named.end, Ordering::SeqCst);
        checkpoints.bytes.store(bytes, Ordering::SeqCst);
        checkpoints.time_us.store(time_us, Ordering::SeqCst);
        checkpoints.settled_to.store(settled_to, Ordering::SeqCst);
        checkpoints.count.fetch_add(1, Ordering::SeqCst);
        checkpoints.set_due_after(named.end);
    }

    /// What is not removed now is when the database is opened again.
    fn remove_checkpoint(&self, name: &str) {
        let _ = self.segments.device().remove(name);
    }
}

/// A checkpoint that is being taken.
struct Taking<'a> {
    engine: &'a Engine,
    cut: Cut,
    /// See [`Header::settled_to`].
    settled_to: Address,
    writer: Writer<'a>,
    haste: Haste,
    /// Records read from disk to find out what was before them.
    cold_reads: u64,
    /// Too much of what was written since the end has left memory. It stays so, though the index may grow and then allow for more: entries were
    /// written since that do not say what was before the end.
    is_overtaken: bool,
    /// All entries were written.
    has_entries: bool,
    /// How much was written when the present piece began, and when that was.
    piece: (u64, Instant),
    /// How many steps are done, and how many there are: buckets of the index, keys of tables, and one to end it.
    steps: (u64, u64),
}

impl Taking<'_> {
    /// Writes everything but the header. Returns the numbers of entries and keys, or nothing if it is of no use any more.
    fn write_all(&mut self) -> Result<Option<(u64, u64)>> {
        let failed = |error| Error::io("writing a checkpoint", error);
        let key_count: u64 = self.tables().iter().map(|&id| self.key_count(id)).sum();
        self.steps.1 += (1 << self.engine.index.level()) + key_count;
        self.note_steps(0);
        self.write_system().map_err(failed)?;
        let Some(entries) = self.write_entries()? else { return Ok(None) };
        self.has_entries = true;
        let Some(keys) = self.write_keys()? else { return Ok(None) };
        Ok((!self.is_given_up()).then_some((entries, keys)))
    }

    fn write_system(&mut self) -> std::io::Result<()> {
        let Taking { engine, cut, writer, .. } = self;
        for (object, key, value) in cut.ledger.system_records() {
            writer.add_system(SystemItem { kind: kind::RECORD, number: object.into(), key, value })?;
        }
        for (object, count) in cut.ledger.key_counts() {
            let Some(count) = engine.count_left(object, count) else { continue };
            let value = &count.to_le_bytes();
            writer.add_system(SystemItem {
                kind: kind::KEY_COUNT,
                number: object.into(),
                key: &[],
                value,
            })?;
        }
        for (segment, value) in cut.liveness.encoded() {
            writer.add_system(SystemItem {
                kind: kind::LIVENESS,
                number: segment,
                key: &[],
                value: &value,
            })?;
        }
        // While they are held there only come more behind them.
        const GRAVES: usize = 512;
        for first in (0..cut.grave_count).step_by(GRAVES) {
            for grave in engine.graves.copies(first..cut.grave_count.min(first + GRAVES)) {
                let (number, value) = (grave.object.into(), &grave.address.to_le_bytes());
                writer.add_system(SystemItem { kind: kind::TOMBSTONE, number, key: &grave.key, value })?;
            }
        }
        Ok(())
    }

    fn write_entries(&mut self) -> Result<Option<u64>> {
        const FAMILIES: usize = 16;
        let index = &self.engine.index;
        let level = index.level();
        let (mut families, mut count) = ([const { Vec::new() }; FAMILIES], 0);
        let buckets = 1 << level;
        for first in (0..buckets).step_by(FAMILIES) {
            for (bucket, family) in (first..buckets).zip(&mut families) {
                index.read_family(level, bucket, family);
                self.fetch_those_behind_end(family);
            }
            // One step for all of them before the next one for any: their cache misses overlap.
            while self.step_back(&mut families)? {}
            for (bucket, family) in (first..buckets).zip(&mut families) {
                family.retain(|&entry| hash_index::address_of(entry) != NO_ADDRESS);
                count += family.len() as u64;
                let low_bits = bucket & ((1 << index.base_level()) - 1);
                self.writer
                    .add_entries(low_bits, family)
                    .map_err(|error| Error::io("writing a checkpoint", error))?;
            }
            self.note_steps(FAMILIES as u64);
            if !self.goes_on() {
                return Ok(None);
            }
        }
        Ok(Some(count))
    }

    fn is_behind_end(&self, entry: u64) -> bool {
        hash_index::address_of(entry) >= self.cut.end && !planted(Bug::CheckpointTooNew)
    }

    /// Has the processor fetch the beginnings of the records that were written since the end.
    fn fetch_those_behind_end(&self, entries: &[u64]) {
        let behind = entries.iter().filter(|&&entry| self.is_behind_end(entry));
        behind.for_each(|&entry| self.engine.log.prefetch(hash_index::address_of(entry), HEADER_BYTES));
    }

    /// Has each entry that refers to a record behind the end refer to the one before that; to none if there is none. False once no entry does any more, or it
    /// cannot be finished: then what comes of it is of no use to anybody.
    fn step_back(&mut self, families: &mut [Vec<u64>]) -> Result<bool> {
        let mut goes_on = false;
        for entry in families.iter_mut().flatten() {
            if !self.is_behind_end(*entry) || self.is_out_of_reach() {
                continue;
            }
            let address = self.previous_of(hash_index::address_of(*entry))?;
            *entry = hash_index::with_address(*entry, address);
            if self.is_behind_end(*entry) {
                self.engine.log.prefetch(address, HEADER_BYTES);
                goes_on = true;
            } else if address != NO_ADDRESS && address < self.settled_to {
                // It may have settled while the newer one, of which nothing is said here, kept it from being removed.
                self.settled_to = address - address % self.engine.log.segment_bytes();
            }
        }
        Ok(goes_on)
    }

    /// The previous address of a record behind the end, which never changes.
    fn previous_of(&mut self, address: Address) -> Result<Address> {
        {
            let _pin = epoch::pin();
            if let Some(view) = self.engine.log.view(address) {
                return Ok(view.previous());
            }
        }
        self.cold_reads += 1;
        let most = COLD_READS_MAX.max(self.engine.index.bucket_count() / BUCKETS_PER_COLD_READ);
        self.is_overtaken |= self.haste == Haste::Background && self.cold_reads > most;
        match self.engine.cold_previous(address) {
            // It has left the log meanwhile.
            Err(_) if self.is_out_of_reach() => Ok(NO_ADDRESS),
            previous => previous,
        }
    }

    /// So many more steps are done. Keys that come to be meanwhile may make them more than there were, but never all: it has yet to be ended.
    fn note_steps(&mut self, steps: u64) {
        let (done, total) = &mut self.steps;
        *done = (*done + steps).min(*total - 1);
        self.engine.checkpoints.steps.set(*done, *total);
    }

    /// True once the checkpoint is of no use any more, or must not go on. It stays so.
    fn is_given_up(&self) -> bool {
        let (engine, is_background) = (self.engine, self.haste == Haste::Background);
        self.is_out_of_reach()
            || is_background && engine.hardening.is_stopping()
            || engine.hardening.horizon.failure().is_some()
    }

    /// What lies behind the end cannot, or must not, be followed back to before it any more.
    fn is_out_of_reach(&self) -> bool {
        self.engine.log.begin() > self.cut.end || self.is_overtaken
    }

    /// Takes a nap after every piece, unless somebody waits. False if the checkpoint is of no use any more, or must not go on.
    fn goes_on(&mut self) -> bool {
        const PIECE_BYTES: u64 = 256 << 10;
        const NAP_MAX: Duration = Duration::from_millis(50);
        /// Naps end when such a part of the log's memory holds what was written since the checkpoint's end.
        const WRITTEN_PART: u64 = 8;
        let engine = self.engine;
        let (began_at, began) = self.piece;
        let written = self.writer.bytes();
        if written - began_at < PIECE_BYTES {
            return true;
        }
        let is_background = self.haste == Haste::Background;
        // Sweeping makes room on a full disk, and waits for this.
        if self.is_given_up() || engine.segments.disk_is_full() {
            return false;
        }
        let since_end = engine.log.tail().saturating_sub(self.cut.end);
        let may_nap = match self.has_entries {
            false => since_end < engine.log.ring_bytes() / WRITTEN_PART,
            true => since_end < engine.checkpoints.log_bytes_between(),
        };
        let is_awaited = engine.checkpoints.awaited.load(Ordering::SeqCst) > 0;
        if is_background && may_nap && !is_awaited {
            thread::sleep(began.elapsed().min(NAP_MAX));
        }
        self.piece = (written, Instant::now());
        true
    }
}

#[cfg(test)]
#[path = "checkpoint_tests.rs"]
mod tests;
