//! Sweeping: forgetting deleted keys, and dropping the beginning of the log when nothing in it is needed.
//!
//! A deleted key keeps its tombstone in the indexes until every snapshot, and the durable state, is newer than
//! the deletion. The hardener finds the tombstones as it copies the log out, so that deleting costs a
//! transaction nothing extra.

use std::sync::Arc;

use super::engine::Engine;
use super::transaction::{self, Isolation};
use crate::error::Result;
use crate::planted::{Bug, planted};
use crate::storage::epoch;
use crate::storage::extent::{Extent, Item};
use crate::storage::record::{Address, Kind};
use crate::storage::scanner::Scanner;
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sync::{Mutex, MutexGuard};

/// A durable tombstone that may still be in the indexes.
pub(crate) struct Grave {
    pub(crate) address: Address,
    pub(crate) object: u32,
    pub(crate) key: Box<[u8]>,
}

/// Tombstones to be swept, oldest first, and how far truncation has looked.
#[derive(Default)]
pub(crate) struct Graves {
    graves: Mutex<Vec<Grave>>,
    sweeping: Mutex<TruncationMark>,
    /// Where the durable log must have come before it is worth looking again what can be dropped.
    next_look: AtomicU64,
}

/// The part of a segment that may be written anew for the rest of it to be dropped.
const LEFTOVERS_PART: u64 = 4;

/// What is still needed of a segment that is otherwise dead.
#[derive(Default)]
struct Leftovers {
    keys: Vec<(u32, Vec<u8>)>,
    bytes: u64,
}

/// What truncation knows of its last look at the oldest segment.
#[derive(Default)]
struct TruncationMark {
    /// The oldest version that was needed.
    oldest: u64,
    /// Where the segment begins, how many of its records were live, and how many bytes of it could have been written anew.
    /// Nothing could be done, and until one of them changes nothing can.
    in_vain: Option<(Address, u64, u64)>,
}

impl Graves {
    pub(crate) fn bury(&self, graves: &mut Vec<Grave>) {
        self.graves.lock().append(graves);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.graves.lock().is_empty()
    }

    /// Keeps sweeping from going on until dropped.
    pub(crate) fn pause(&self) -> impl Drop {
        self.sweeping.lock()
    }

    /// True if enough of the log has hardened to look again what can be dropped.
    pub(crate) fn is_due(&self, hardened: Address) -> bool {
        hardened >= self.next_look.load(Ordering::SeqCst)
    }
}

impl Engine {
    /// Forgets deleted keys that nobody can see any more, frees what they held, and truncates the log. True if more can be
    /// dropped after the next hardening.
    pub(crate) fn sweep(self: &Arc<Self>) -> bool {
        self.graves.sweeping.try_lock().is_some_and(|mark| self.sweep_with(mark))
    }

    /// As [`Self::sweep`], after whoever sweeps at the moment: what that one finds may be all there is.
    pub(crate) fn sweep_in_turn(self: &Arc<Self>) -> bool {
        self.sweep_with(self.graves.sweeping.lock())
    }

    fn sweep_with(self: &Arc<Self>, mut mark: MutexGuard<'_, TruncationMark>) -> bool {
        self.forget_deleted();
        for object in self.objects.iter() {
            if let Some(ordered) = object.keys.ordered() {
                ordered.reclaim();
            }
        }
        let hardened = self.log.hardened();
        let oldest = self.oldest_needed();
        // On a full disk nothing more hardens until there is room, and a snapshot that has ended may have made some.
        let released = self.segments.disk_is_full() && oldest > mark.oldest;
        if !self.graves.is_due(hardened) && !released {
            return false;
        }
        mark.oldest = oldest;
        // A segment that cannot be dropped now stays; nothing depends on it.
        let more = self.truncate(&mut mark).unwrap_or(false);
        let ahead = if more || self.segments.disk_is_full() { 1 } else { self.log.segment_bytes() / 4 };
        self.graves.next_look.store(hardened + ahead, Ordering::SeqCst);
        more
    }

    fn forget_deleted(&self) {
        let oldest = self.oldest_needed();
        let graves = std::mem::take(&mut *self.graves.graves.lock());
        let mut kept = Vec::new();
        for grave in graves {
            if self.forget(&grave, oldest) == Some(false) {
                kept.push(grave);
            }
        }
        if !kept.is_empty() {
            let mut graves = self.graves.graves.lock();
            kept.append(&mut graves);
            *graves = kept;
        }
    }

    /// Removes one deleted key. `Some(false)` if it has to wait, `None` if it is no longer deleted.
    fn forget(&self, grave: &Grave, oldest: u64) -> Option<bool> {
        let hash = self.hash(grave.object, &grave.key);
        let version = self.tombstone_version(grave)?;
        if version > oldest && !planted(Bug::ForgetsUnderSnapshots) {
            return Some(false);
        }
        let pin = epoch::pin();
        let Some(bucket) = self.index.lock(hash) else { return Some(false) };
        // Raised before the key vanishes: whoever misses it sees the new value.
        if !planted(Bug::ForgottenTooQuietly) {
            self.forgotten.fetch_max(version, Ordering::SeqCst);
        }
        if !self.index.remove(bucket, hash, grave.address) {
            self.index.unlock_unchanged(bucket);
            return None;
        }
        if let Some(object) = self.objects.get(grave.object) {
            object.keys.retract(&pin, &grave.key);
        }
        self.index.unlock_changed(bucket);
        self.liveness.lock().supersede(grave.address, version);
        Some(true)
    }

    fn tombstone_version(&self, grave: &Grave) -> Option<u64> {
        {
            let _pin = epoch::pin();
            if grave.address >= self.log.head() {
                return self.log.view(grave.address).map(|view| view.version());
            }
        }
        self.read_disk(grave.address).ok().map(|record| record.version)
    }

    /// Drops the oldest segments while nothing in them is needed. Where only little is, such as the catalog's
    /// entries, it is written anew at the tail, and the segment goes once that has hardened; then it returns true.
    fn truncate(self: &Arc<Self>, mark: &mut TruncationMark) -> Result<bool> {
        while !self.hardening.is_stopping() {
            let begin = self.log.begin();
            let end = begin + self.log.segment_bytes();
            let disk_is_full = self.segments.disk_is_full();
            // What is still in memory may yet die there, which costs nothing; but a full disk cannot wait for that.
            let cold = if disk_is_full { self.log.hardened() } else { self.log.head() };
            // Until the first hardening only seals may tell what earlier crashes took.
            if end > cold || self.log.hardened() == self.opened_end {
                return Ok(false);
            }
            let oldest = self.oldest_needed();
            let segment = self.liveness.lock().of_segment(begin);
            if segment.newest_successor > oldest && !planted(Bug::TruncatesUnderSnapshots) {
                return Ok(false);
            }
            if segment.live() > 0 && !planted(Bug::TruncatesLiveRecords) {
                let few = segment.live() * LEFTOVERS_PART <= segment.records;
                return Ok((few || disk_is_full) && self.write_leftovers_anew(end, segment.live(), mark)?);
            }
            if end > self.log.head() && !self.evict_dead(end) {
                return Ok(true);
            }
            self.superblock.lock().update(|superblock| {
                superblock.begin = end;
                superblock.begin_checksum = segment.end_checksum;
                superblock.known_end = superblock.known_end.max(end);
            })?;
            self.log.set_begin(end);
            self.liveness.lock().drop_before(end);
            self.segments.drop_before(end)?;
        }
        Ok(false)
    }

    /// Writes what is needed of the oldest segment, which ends at `end` and has so many live records, anew. False if that
    /// did nothing: there is too much of it, or all of it are deletions that are yet to be forgotten, and records whose
    /// successors are yet to harden.
    fn write_leftovers_anew(
        self: &Arc<Self>,
        end: Address,
        live: u64,
        mark: &mut TruncationMark,
    ) -> Result<bool> {
        let bytes_max = match self.segments.disk_is_full() {
            true => self.log.reserve_for_sweep(),
            false => self.log.segment_bytes() / LEFTOVERS_PART,
        };
        let now = Some((self.log.begin(), live, bytes_max));
        if mark.in_vain == now {
            return Ok(false);
        }
        let superblock = self.superblock.lock().current().clone();
        let mut scanner = Scanner::new(&self.segments, &superblock);
        let mut leftovers = Leftovers::default();
        while scanner.position() < end && (leftovers.keys.len() as u64) < live {
            let Some(extent) = scanner.next()? else { return Ok(false) };
            self.collect_leftovers(&extent, &mut leftovers);
            if leftovers.bytes > bytes_max {
                leftovers.keys.clear();
                break;
            }
        }
        self.write_anew(&leftovers)?;
        mark.in_vain = now.filter(|_| leftovers.keys.is_empty());
        Ok(!leftovers.keys.is_empty())
    }

    /// Adds the extent's records that hold their keys' newest values.
    fn collect_leftovers(&self, extent: &Extent<'_>, leftovers: &mut Leftovers) {
        /// So many cache misses overlap.
        const BATCH: usize = 32;
        let mut records = extent.items().filter_map(|item| match item {
            Ok(Item::Record(address, record)) => Some((address, record)),
            _ => None,
        });
        let mut batch = Vec::with_capacity(BATCH);
        loop {
            batch.extend(records.by_ref().take(BATCH).map(|(address, record)| {
                let hash = self.hash(record.shape.object, record.key);
                self.index.prefetch(hash);
                (address, hash, record)
            }));
            if batch.is_empty() {
                return;
            }
            for (address, hash, record) in batch.drain(..) {
                if record.shape.kind == Kind::Put && self.may_be_newest(address, hash) {
                    leftovers.bytes += record.shape.bytes();
                    leftovers.keys.push((record.shape.object, record.key.to_vec()));
                }
            }
        }
    }

    /// True if the index refers to the record at `address`, or is just being changed there.
    fn may_be_newest(&self, address: Address, hash: u64) -> bool {
        let Some((bucket, stamp)) = self.index.stamp(hash) else { return true };
        self.index.addresses_of(hash).any(|newest| newest == address) || !self.index.unchanged(bucket, stamp)
    }

    /// Puts each key's value once more, as a transaction like any other.
    fn write_anew(self: &Arc<Self>, leftovers: &Leftovers) -> Result<()> {
        for (object, key) in &leftovers.keys {
            let mut value = Vec::new();
            transaction::run(self, Isolation::Serializable, |tx| {
                tx.set_sweeping()?;
                match tx.get_key(*object, key, &mut value)? {
                    true => tx.put_key(*object, key, &value),
                    false => Ok(()),
                }
            })?
            .forget();
        }
        Ok(())
    }
}
