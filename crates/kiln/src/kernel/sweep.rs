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
use crate::storage::extent::{Extent, Item, Scanner};
use crate::storage::record::{Address, DiskRecord, Kind, NO_ADDRESS};
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicU64, Ordering};

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

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Need {
    None,
    /// It is its key's newest record, and holds a value.
    Newest,
    /// A snapshot, or the durable state, may still be read through it.
    Snapshot,
}

/// A record that kept the oldest segment alive when it was last looked at.
#[derive(Default)]
struct TruncationMark {
    blocking: Option<Address>,
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
        let Some(mut mark) = self.graves.sweeping.try_lock() else { return false };
        self.forget_deleted();
        for object in self.objects.iter() {
            if let Some(ordered) = object.keys.ordered() {
                ordered.reclaim();
            }
        }
        let hardened = self.log.hardened();
        if !self.graves.is_due(hardened) {
            return false;
        }
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
                return Ok((few || disk_is_full) && self.write_leftovers_anew(end, oldest, mark)?);
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

    /// Writes what is needed of the oldest segment, which ends at `end`, anew; false if that did nothing, because the
    /// segment has to stay, or because what lives in it are deletions that are yet to be forgotten.
    fn write_leftovers_anew(
        self: &Arc<Self>,
        end: Address,
        oldest: u64,
        mark: &mut TruncationMark,
    ) -> Result<bool> {
        if let Some(blocking) = mark.blocking.filter(|blocking| (self.log.begin()..end).contains(blocking))
            && self.need(blocking, &self.read_disk(blocking)?.as_disk_record(), oldest)? == Need::Snapshot
        {
            return Ok(false);
        }
        let superblock = self.superblock.lock().current().clone();
        let mut scanner = Scanner::new(&self.segments, &superblock);
        let mut leftovers = Leftovers::default();
        while scanner.position() < end {
            let Some(extent) = scanner.next()? else { return Ok(false) };
            if !self.collect_leftovers(&extent, oldest, mark, &mut leftovers)? {
                return Ok(false);
            }
        }
        self.write_anew(&leftovers)?;
        Ok(!leftovers.keys.is_empty())
    }

    /// Adds the extent's records that are still needed; false if the segment has to stay.
    fn collect_leftovers(
        &self,
        extent: &Extent<'_>,
        oldest: u64,
        mark: &mut TruncationMark,
        leftovers: &mut Leftovers,
    ) -> Result<bool> {
        let bytes_max = match self.segments.disk_is_full() {
            true => self.log.reserve_for_sweep(),
            false => self.log.segment_bytes() / LEFTOVERS_PART,
        };
        for item in extent.items() {
            let Ok(Item::Record(address, record)) = item else { continue };
            match self.need(address, &record, oldest)? {
                Need::None => {}
                Need::Newest if leftovers.bytes + record.shape.bytes() <= bytes_max => {
                    leftovers.bytes += record.shape.bytes();
                    leftovers.keys.push((record.shape.object, record.key.to_vec()));
                }
                Need::Newest | Need::Snapshot => {
                    mark.blocking = Some(address);
                    return Ok(false);
                }
            }
        }
        Ok(true)
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

    /// Who needs the record at `address`, which was read from disk.
    fn need(&self, address: Address, record: &DiskRecord<'_>, oldest: u64) -> Result<Need> {
        let hash = self.hash(record.shape.object, record.key);
        let Some((bucket, stamp)) = self.index.stamp(hash) else { return Ok(Need::Snapshot) };
        let candidates: Vec<Address> = self.index.addresses_of(hash).collect();
        for newest in candidates {
            if newest == address {
                return Ok(match record.shape.kind {
                    Kind::Put => Need::Newest,
                    _ if record.version > oldest => Need::Snapshot,
                    _ => Need::None,
                });
            }
            // Walk down from the key's newest record. One that every snapshot sees hides all that is older.
            let mut newer = newest;
            while newer != NO_ADDRESS && newer > address {
                let Some((version, previous)) = self.version_and_previous(newer, record)? else { break };
                if version <= oldest {
                    return Ok(Need::None);
                }
                newer = previous;
            }
            if newer == address {
                return Ok(Need::Snapshot);
            }
        }
        // Where no path leads here the key was forgotten, or this is a version that a crash took. But a bucket that
        // changed meanwhile has proved nothing.
        Ok(if self.index.unchanged(bucket, stamp) { Need::None } else { Need::Snapshot })
    }

    /// Version and previous address of the record at `address`, if it has the same key as `like`.
    fn version_and_previous(
        &self,
        address: Address,
        like: &DiskRecord<'_>,
    ) -> Result<Option<(u64, Address)>> {
        {
            let _pin = epoch::pin();
            if address >= self.log.head()
                && let Some(view) = self.log.view(address)
            {
                let same = view.is(like.shape.object, like.key);
                return Ok(same.then(|| (view.version(), view.previous())));
            }
        }
        let record = self.read_disk(address)?;
        let same = record.shape.object == like.shape.object && record.key() == like.key;
        Ok(same.then_some((record.version, record.previous)))
    }
}
