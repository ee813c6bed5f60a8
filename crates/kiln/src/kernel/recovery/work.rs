//! What the workers of recovery do: sort a piece of the log, and apply what belongs to one part of the keys.
//!
//! Neither returns an error: what may be wrong is an [`Event`] of a piece, and is looked at in the order of the log before
//! anything of the round is applied.

use std::collections::HashMap;

use super::arrivals::Arrivals;
use super::base::Tombstone;
use super::source::Stretch;
use super::team::{Step, Team};
use crate::error::Result;
use crate::kernel::catalog::FIRST_OBJECT;
use crate::kernel::object::{ObjectState, Objects};
use crate::planted::{Bug, planted};
use crate::storage::extent::{Item, items};
use crate::storage::hash_index::{self, Bucket, Candidate, HashIndex};
use crate::storage::liveness::{Liveness, counted_bytes};
use crate::storage::log::Log;
use crate::storage::record::{Address, DiskRecord, HEADER_BYTES, Kind, NO_ADDRESS, OwnedRecord};
use crate::storage::seal::SEAL_BYTES;
use crate::storage::superblock::Superblock;
use crate::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use crate::sync::{Mutex, RwLock, thread};

/// Parts are told apart by this many bits of the hash, which every bucket's number ends with: so a bucket's keys are all of
/// one part, however the index grows.
const PART_BITS: u32 = 8;
/// At most so many parts, and with them workers.
pub(super) const PARTS_MAX: usize = 1 << PART_BITS;

/// What a record does to the index.
#[derive(Clone, Copy)]
pub(super) struct Change {
    address: Address,
    hash: u64,
    previous: Address,
    version: u64,
    object: u32,
    key_bytes: u32,
    bytes: u32,
    kind: Kind,
}

/// Something that must be looked at in the order of the log.
#[derive(Clone, Copy)]
pub(super) enum Event {
    /// The record says something that others depend on, or is of an object that is not known yet.
    Telling(Address),
    /// The record's version is newer than its extent's seal.
    Pending(Address),
    /// There is no record, although there should be one; nothing of the piece behind it was looked at.
    Damaged(Address, &'static str),
}

impl Event {
    pub(super) fn address(self) -> Address {
        match self {
            Event::Telling(address) | Event::Pending(address) | Event::Damaged(address, _) => address,
        }
    }
}

/// What sorting a piece of the log found.
#[derive(Default)]
pub(super) struct Piece {
    /// The changes of each part, in the order of the log.
    parts: Vec<Vec<Change>>,
    pub(super) events: Vec<Event>,
    pub(super) records: u64,
    /// What they count for; see [`counted_bytes`].
    pub(super) bytes: u64,
    pub(super) newest_version: u64,
}

/// A record that had been pending, and what it does, from the extent at `at` on.
pub(super) struct Released {
    at: Address,
    change: Change,
    record: OwnedRecord,
}

/// What is worked on.
#[derive(Default)]
pub(super) struct Round {
    pub(super) stretch: Stretch,
    /// The version that is durable with each extent of the stretch.
    pub(super) horizons: Vec<u64>,
    /// The first cut of the round, and how many pieces it has.
    pub(super) first: usize,
    pub(super) count: usize,
    /// For each part the records that have ceased to be pending, in the order in which they did.
    pub(super) released: Vec<Vec<Released>>,
}

impl Round {
    /// Addresses where the round begins and ends.
    pub(super) fn span(&self) -> (Address, Address) {
        (self.stretch.cuts[self.first], self.stretch.cuts[self.first + self.count])
    }
}

/// For each object the tombstones of deleted keys, by key.
type Deleted = HashMap<u32, HashMap<Vec<u8>, Address>>;

/// What the workers share.
pub(super) struct Work<'a> {
    pub(super) superblock: &'a Superblock,
    pub(super) log: &'a Log,
    pub(super) index: &'a HashIndex,
    pub(super) objects: &'a Objects,
    /// Extents that end before it are not left in memory.
    pub(super) load_from: Address,
    /// What lies before it is not replayed.
    replay_from: Address,
    pub(super) round: RwLock<Round>,
    /// As many as a round can have.
    pub(super) pieces: Vec<RwLock<Piece>>,
    /// What each part has counted.
    pub(super) counts: Vec<Mutex<Liveness>>,
    /// For each part the durable deletions of keys that may have settled, or that a snapshot may see; nothing where there is neither.
    deleted: Option<Vec<Mutex<Deleted>>>,
    /// Behind the last deletion of a table's row, of those that were replayed, of which [nobody knows any more](super::settled); 0 if there is none.
    forgotten_to: AtomicU64,
    /// For each part what has happened to keys of tables, by object, and is yet to be carried out; and how much memory all of it takes.
    arrivals: Vec<Mutex<HashMap<u32, Arrivals>>>,
    arrived_bytes: AtomicUsize,
    /// The next piece or part that nobody works on yet.
    next: AtomicUsize,
    pub(super) team: Team,
}

impl<'a> Work<'a> {
    pub(super) fn new(
        (superblock, log, index, objects): (&'a Superblock, &'a Log, &'a HashIndex, &'a Objects),
        (parts, pieces): (usize, usize),
        (load_from, replay_from): (Address, Address),
        deleted: Option<Vec<Tombstone>>,
    ) -> Work<'a> {
        let piece = || RwLock::new(Piece { parts: vec![Vec::new(); parts], ..Piece::default() });
        let liveness = || Mutex::new(Liveness::new(superblock.begin, superblock.segment_bytes));
        let released = (0..parts).map(|_| Vec::new()).collect();
        let mut work = Work {
            superblock,
            log,
            index,
            objects,
            load_from,
            replay_from,
            round: RwLock::new(Round { released, ..Round::default() }),
            pieces: (0..pieces).map(|_| piece()).collect(),
            counts: (0..parts).map(|_| liveness()).collect(),
            deleted: None,
            forgotten_to: AtomicU64::new(0),
            arrivals: (0..parts).map(|_| Mutex::default()).collect(),
            arrived_bytes: AtomicUsize::new(0),
            next: AtomicUsize::new(0),
            team: Team::default(),
        };
        work.deleted = deleted.map(|tombstones| {
            let mut of_parts = vec![Deleted::new(); parts];
            for Tombstone { object, key, address } in tombstones {
                let part = work.part_of(hash_index::hash_of(superblock.hash_seed, object, &key));
                of_parts[part].entry(object).or_default().insert(key, address);
            }
            of_parts.into_iter().map(Mutex::new).collect()
        });
        work
    }

    /// The tombstones of keys that are deleted now, and may have settled, or that a snapshot may see.
    pub(super) fn take_deleted(&self) -> Option<Vec<Tombstone>> {
        let mut tombstones = Vec::new();
        for part in self.deleted.as_ref()? {
            for (object, keys) in std::mem::take(&mut *part.lock()) {
                tombstones.extend(keys.into_iter().map(|(key, address)| Tombstone { object, key, address }));
            }
        }
        Some(tombstones)
    }

    /// See the field.
    pub(super) fn forgotten_to(&self) -> Address {
        self.forgotten_to.load(Ordering::Relaxed)
    }

    /// Has the team take a step.
    ///
    /// # Errors
    /// If one of it panicked.
    pub(super) fn lead(&self, step: Step) -> Result<()> {
        self.next.store(0, Ordering::SeqCst);
        self.team.lead(step, |step| self.take_part(step)).then_some(()).ok_or_else(super::thread_ended)
    }

    /// Does what nobody else does yet, until nothing is left.
    pub(super) fn take_part(&self, step: Step) {
        let round = self.round.read();
        let count = if step == Step::Sort { round.count } else { self.counts.len() };
        loop {
            let mine = self.next.fetch_add(1, Ordering::SeqCst);
            if mine >= count {
                return;
            }
            match step {
                Step::Sort => self.sort(&round, mine),
                Step::Apply => self.apply(&round, mine),
                Step::Order => self.order(mine),
            }
        }
    }

    /// How much memory keys take that are yet to come into their tables' orders, or to leave them.
    pub(super) fn arrived_bytes(&self) -> usize {
        self.arrived_bytes.load(Ordering::Relaxed)
    }

    fn part_of(&self, hash: u64) -> usize {
        ((hash as usize & (PARTS_MAX - 1)) * self.counts.len()) >> PART_BITS
    }

    fn change_of(&self, address: Address, record: &DiskRecord<'_>) -> Change {
        let object = record.shape.object;
        Change {
            address,
            hash: hash_index::hash_of(self.superblock.hash_seed, object, record.key),
            previous: record.previous,
            version: record.version,
            object,
            key_bytes: record.key.len() as u32,
            bytes: record.shape.bytes() as u32,
            kind: record.shape.kind,
        }
    }

    /// Has these records applied with the next step, each (its address second) from the extent at the first address on, whose
    /// seal makes it durable.
    pub(super) fn set_released(&self, round: &mut Round, records: Vec<(Address, Address, OwnedRecord)>) {
        round.released.iter_mut().for_each(Vec::clear);
        for (at, address, record) in records {
            let change = self.change_of(address, &record.as_disk_record());
            round.released[self.part_of(change.hash)].push(Released { at, change, record });
        }
    }

    /// What a member of the team does.
    pub(super) fn follow(&self) {
        self.team.follow(|step| self.take_part(step));
    }

    /// Takes a piece of the log apart: its records go to their parts, and what must be seen in order to its events.
    fn sort(&self, round: &Round, index: usize) {
        let piece = &mut *self.pieces[index].write();
        piece.parts.iter_mut().for_each(Vec::clear);
        piece.events.clear();
        (piece.records, piece.bytes, piece.newest_version) = (0, 0, 0);
        let (batch, cuts) = (&round.stretch.batch, &round.stretch.cuts);
        let (start, end) = (cuts[round.first + index], cuts[round.first + index + 1]);
        let first = batch.extents_before(start + 1).saturating_sub(1);
        let mut known_object = None;
        for (extent, &horizon) in batch.extents().zip(&round.horizons).skip(first) {
            let (extent_start, extent_end) = (extent.seal.address, extent.seal.end());
            if extent_start >= end {
                break;
            }
            let (from, to) = (start.max(extent_start), end.min(extent_end));
            if extent_end > self.load_from {
                self.log.load(from, batch.bytes(from, (to - from) as usize));
            }
            if extent_start < self.replay_from {
                continue;
            }
            let from = from.max(extent_start + SEAL_BYTES);
            for item in items(from, batch.bytes(from, (to - from) as usize)) {
                match item {
                    Err((address, what)) => return piece.events.push(Event::Damaged(address, what)),
                    Ok(Item::Padding(..)) => {}
                    Ok(Item::Record(address, record)) => {
                        self.sort_record(piece, address, &record, horizon, &mut known_object);
                    }
                }
            }
        }
    }

    #[inline]
    fn sort_record(
        &self,
        piece: &mut Piece,
        address: Address,
        record: &DiskRecord<'_>,
        horizon: u64,
        known_object: &mut Option<u32>,
    ) {
        piece.records += 1;
        piece.bytes += counted_bytes(record.shape.bytes(), self.log.segment_bytes());
        piece.newest_version = piece.newest_version.max(record.version);
        if record.version > horizon && !planted(Bug::UnsealedApplied) {
            return piece.events.push(Event::Pending(address));
        }
        let object = record.shape.object;
        let is_unexpected = record.shape.kind == Kind::Expiring && !self.superblock.has_expiring;
        if *known_object != Some(object) || is_unexpected {
            if object < FIRST_OBJECT || is_unexpected || self.objects.get(object).is_none() {
                piece.events.push(Event::Telling(address));
            } else {
                *known_object = Some(object);
            }
        }
        let change = self.change_of(address, record);
        let hash = if planted(Bug::PartsMixed) { address >> 4 } else { change.hash };
        piece.parts[self.part_of(hash)].push(change);
    }

    /// Applies everything of one part, in the order of the log.
    fn apply(&self, round: &Round, part: usize) {
        let mut liveness = self.counts[part].lock();
        let mut deleted = self.deleted.as_ref().map(|deleted| deleted[part].lock());
        let mut arrivals = self.arrivals[part].lock();
        let mut applier = Applier {
            work: self,
            liveness: &mut liveness,
            deleted: deleted.as_deref_mut(),
            arrivals: &mut arrivals,
            arrived_bytes: 0,
            object: None,
            keys: 0,
            forgotten_to: 0,
            overflowed: false,
        };
        let mut released = round.released[part].iter().peekable();
        for number in 0..round.count {
            let number = if planted(Bug::PiecesBackwards) { round.count - 1 - number } else { number };
            let piece = self.pieces[number].read();
            let changes = &piece.parts[part];
            changes.iter().take(Applier::AHEAD).for_each(|change| self.index.prefetch(change.hash));
            for (group, first) in changes.chunks(Applier::GROUP).zip((0..).step_by(Applier::GROUP)) {
                for (index, change) in group.iter().enumerate() {
                    if let Some(later) = changes.get(first + index + Applier::AHEAD) {
                        self.index.prefetch(later.hash);
                    }
                    while let Some(due) = released.next_if(|due| due.at < change.address) {
                        applier.apply(&due.change, due.record.key());
                    }
                    let key = change.address + HEADER_BYTES as u64;
                    applier.apply(change, round.stretch.batch.bytes(key, change.key_bytes as usize));
                }
                applier.grow();
            }
        }
        for due in released {
            applier.apply(&due.change, due.record.key());
            applier.grow();
        }
        applier.count_keys();
        self.forgotten_to.fetch_max(applier.forgotten_to, Ordering::Relaxed);
        self.arrived_bytes.fetch_add(applier.arrived_bytes, Ordering::Relaxed);
    }

    /// Has all keys of one part come into their tables' orders, or leave them.
    fn order(&self, part: usize) {
        for (object, arrivals) in std::mem::take(&mut *self.arrivals[part].lock()) {
            if let Some(ordered) = self.objects.ordered(object) {
                arrivals.carry_out(ordered, (part, self.arrivals.len()));
            }
        }
        self.arrived_bytes.store(0, Ordering::Relaxed);
    }
}

/// Applies changes, one after the other.
struct Applier<'a> {
    work: &'a Work<'a>,
    liveness: &'a mut Liveness,
    deleted: Option<&'a mut Deleted>,
    arrivals: &'a mut HashMap<u32, Arrivals>,
    /// How much memory those of this round take.
    arrived_bytes: usize,
    /// The object of the last change, and by how much its keys have become more.
    object: Option<&'a ObjectState>,
    keys: i64,
    /// As [`Work::forgotten_to`].
    forgotten_to: Address,
    overflowed: bool,
}

impl<'a> Applier<'a> {
    /// So many cache misses overlap.
    const AHEAD: usize = 12;
    /// After so many changes the index may grow.
    const GROUP: usize = 64;

    fn apply(&mut self, change: &Change, key: &[u8]) {
        let object = self.object_of(change.object);
        let Some(bucket) = self.lock(change.hash) else { return };
        let index = self.work.index;
        let has_previous = change.previous != NO_ADDRESS;
        match change.kind {
            kind if kind.is_put()
                && has_previous
                && index.replace(bucket, change.hash, Candidate::at(change.previous), change.address) =>
            {
                self.liveness.supersede(change.previous, change.version, Some(change.bytes.into()));
                // Of a checkpoint only such keys were taken whose records are still there.
                if change.previous < self.work.superblock.begin {
                    self.arrive(object, key, true);
                }
            }
            kind if kind.is_put() => {
                self.overflowed |= index.insert(bucket, change.hash, change.address);
                self.arrive(object, key, true);
                self.keys += 1;
                if let Some(tombstone) = self.take_deleted(change.object, key) {
                    self.liveness.supersede(tombstone, change.version, None);
                    self.note_successor(object, tombstone, change);
                }
            }
            _ => {
                if has_previous && index.remove(bucket, change.hash, change.previous) {
                    self.liveness.supersede(change.previous, change.version, None);
                    self.arrive(object, key, false);
                    self.keys -= 1;
                }
                match &mut self.deleted {
                    // What follows it looks like a new key; if nothing does it must be in the index in the end.
                    Some(deleted) if self.work.superblock.has_snapshots || object.ordered().is_some() => {
                        let of_object = deleted.entry(change.object).or_default();
                        // A new value that a tombstone has replaced where it lay, in the same version, was behind an older one.
                        if let Some(older) = of_object.insert(key.to_vec(), change.address) {
                            self.liveness.supersede(older, change.version, Some(change.bytes.into()));
                            self.note_successor(object, older, change);
                        }
                    }
                    // It does not enter the index; what follows it looks like a new key.
                    _ => {
                        self.liveness.supersede(change.address, change.version, Some(change.bytes.into()));
                        self.note_forgotten(object, change.address);
                    }
                }
            }
        }
        index.unlock_changed(bucket);
    }

    /// A key has a newer record than its tombstone. If that does not lead to it the tombstone was forgotten before that was written.
    fn note_successor(&mut self, object: &ObjectState, tombstone: Address, successor: &Change) {
        if successor.previous != tombstone {
            self.note_forgotten(object, tombstone);
        }
    }

    fn note_forgotten(&mut self, object: &ObjectState, tombstone: Address) {
        if object.ordered().is_some() {
            self.forgotten_to = self.forgotten_to.max(tombstone + 1);
        }
    }

    /// A key came into the object's order, if it has one, or left it.
    fn arrive(&mut self, object: &ObjectState, key: &[u8], is_there: bool) {
        if object.ordered().is_some() {
            self.arrivals.entry(object.id).or_default().push(key, is_there);
            self.arrived_bytes += Arrivals::bytes_of(key);
        }
    }

    /// Where the key's tombstone is that was kept aside; it is no more.
    fn take_deleted(&mut self, object: u32, key: &[u8]) -> Option<Address> {
        self.deleted.as_mut()?.get_mut(&object)?.remove(key)
    }

    /// The object with this number, which was looked for in the order of the log.
    fn object_of(&mut self, id: u32) -> &'a ObjectState {
        match self.object {
            Some(object) if object.id == id => object,
            _ => {
                self.count_keys();
                let found = self.work.objects.get(id);
                self.object.insert(found.unwrap_or_else(|| unreachable!("object {id} was found before")))
            }
        }
    }

    /// Nobody but a split holds a bucket of another part, and that not for long, unless its thread has panicked.
    fn lock(&self, hash: u64) -> Option<Bucket> {
        loop {
            if let Some(bucket) = self.work.index.lock(hash) {
                return Some(bucket);
            }
            if self.work.team.is_dismissed() {
                return None;
            }
            thread::yield_now();
        }
    }

    /// Adds what was counted of the present object.
    fn count_keys(&mut self) {
        if let (Some(object), true) = (self.object, self.keys != 0) {
            object.key_count.add(std::mem::take(&mut self.keys));
        }
    }

    /// Has the index grow, while no bucket is locked.
    fn grow(&mut self) {
        if std::mem::take(&mut self.overflowed) {
            self.work.index.catch_up();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::Options;
    use crate::device::{OpenMode, SimulatedDevice};
    use crate::kernel::catalog::FIRST_OBJECT;
    use crate::kernel::object::ObjectKind;
    use crate::storage::record::{NEVER, Shape};
    use crate::storage::superblock::SuperblockFile;
    use crate::sync::atomic::AtomicBool;

    const KEY: &[u8] = b"key";

    /// Has somebody apply a put whose bucket another one holds, until `end` ends that. Returns whether the key is there then.
    fn apply_to_held_bucket(end: impl FnOnce(&Work<'_>, Bucket)) -> bool {
        let disk = SimulatedDevice::new(1);
        drop(Options::new().background(false).open_on(Arc::new(disk.clone())).unwrap());
        let superblock = SuperblockFile::open(&disk, OpenMode::Read).unwrap().current().clone();
        let log = Log::new(128 << 10, 64 << 10, 0).unwrap();
        let (index, objects) = (HashIndex::new(1 << 20).unwrap(), Objects::new());
        crate::kernel::catalog::add(&objects, FIRST_OBJECT, "map", ObjectKind::Map).unwrap();
        let work = Work::new((&superblock, &log, &index, &objects), (1, 1), (0, 0), None);
        let shape = Shape { kind: Kind::Put, object: FIRST_OBJECT, key_bytes: KEY.len(), value_bytes: 0 };
        let record =
            DiskRecord { shape, version: 1, previous: NO_ADDRESS, key: KEY, value: b"", expires_at: NEVER };
        let change = work.change_of(128, &record);
        let bucket = index.lock(change.hash).expect("nobody else has it");
        let begun = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                let mut liveness = Liveness::new(0, 64 << 10);
                let mut applier = Applier {
                    work: &work,
                    liveness: &mut liveness,
                    deleted: None,
                    arrivals: &mut HashMap::new(),
                    arrived_bytes: 0,
                    object: None,
                    keys: 0,
                    forgotten_to: 0,
                    overflowed: false,
                };
                begun.store(true, Ordering::SeqCst);
                applier.apply(&change, KEY);
            });
            while !begun.load(Ordering::SeqCst) {
                thread::yield_now();
            }
            // More often than one try takes.
            (0..2_000).for_each(|_| thread::yield_now());
            assert!(index.addresses_of(change.hash).next().is_none(), "two hold a bucket");
            end(&work, bucket);
        });
        index.addresses_of(change.hash).next().is_some()
    }

    /// Whoever holds it may have panicked, and then nobody lets go.
    #[test]
    fn who_comes_upon_a_held_bucket_waits_for_it_or_is_dismissed() {
        assert!(apply_to_held_bucket(|work, bucket| work.index.unlock_changed(bucket)));
        assert!(!apply_to_held_bucket(|work, _| work.team.dismiss()));
    }
}
