//! Sweeping: forgetting deleted keys, and dropping the beginning of the log when nothing in it is needed.
//!
//! A deleted key keeps its tombstone in the indexes until every snapshot, and the durable state, is newer than
//! the deletion. The hardener finds the tombstones as it copies the log out, so that deleting costs a
//! transaction nothing extra.

use std::sync::atomic::Ordering;

use parking_lot::Mutex;

use super::engine::Engine;
use crate::error::Result;
use crate::storage::epoch;
use crate::storage::extent::{self, Scanner};
use crate::storage::record::{Address, Kind, NO_ADDRESS};

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
}

/// A record that kept the oldest segment alive when it was last looked at.
#[derive(Default)]
struct TruncationMark {
    live: Address,
    /// Where the durable log must have come before it is worth looking again.
    next_look: Address,
}

impl Graves {
    pub(crate) fn bury(&self, graves: &mut Vec<Grave>) {
        self.graves.lock().append(graves);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.graves.lock().is_empty()
    }
}

impl Engine {
    /// Forgets deleted keys that nobody can see any more, frees what they held, and truncates the log.
    pub(crate) fn sweep(&self) {
        let Some(mut mark) = self.graves.sweeping.try_lock() else { return };
        self.forget_deleted();
        for object in self.objects.iter() {
            if let Some(ordered) = object.keys.ordered() {
                ordered.reclaim();
            }
        }
        if self.log.hardened() >= mark.next_look {
            // A segment that cannot be dropped now stays; nothing depends on it.
            let _ = self.truncate(&mut mark);
            mark.next_look = self.log.hardened() + self.log.segment_bytes() / 4;
        }
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
        if version > oldest {
            return Some(false);
        }
        let pin = epoch::pin();
        let Some(bucket) = self.index.lock(hash) else { return Some(false) };
        // Raised before the key vanishes: whoever misses it sees the new value.
        self.forgotten.fetch_max(version, Ordering::SeqCst);
        if !self.index.remove(bucket, hash, grave.address) {
            self.index.unlock_unchanged(bucket);
            return None;
        }
        if let Some(object) = self.objects.get(grave.object) {
            object.keys.retract(&pin, &grave.key);
        }
        self.index.unlock_changed(bucket);
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

    /// Drops the oldest segments while nothing in them is needed.
    fn truncate(&self, mark: &mut TruncationMark) -> Result<()> {
        let segment_bytes = self.log.segment_bytes();
        loop {
            let begin = self.log.begin();
            let end = begin + segment_bytes;
            if end > self.log.head() || end > self.log.hardened() {
                return Ok(());
            }
            let oldest = self.oldest_needed();
            if mark.live >= begin && mark.live < end && self.is_needed(mark.live, oldest)? {
                return Ok(());
            }
            let superblock = self.superblock.lock().current().clone();
            let mut scanner = Scanner::new(&self.segments, &superblock);
            while scanner.position() < end {
                let Some(extent) = scanner.next()? else { return Ok(()) };
                for item in extent.items() {
                    if let Ok(extent::Item::Record(address, _)) = item
                        && address >= mark.live
                        && self.is_needed(address, oldest)?
                    {
                        mark.live = address;
                        return Ok(());
                    }
                }
            }
            let checksum = scanner.chain().checksum;
            self.superblock.lock().update(|superblock| {
                superblock.begin = end;
                superblock.begin_checksum = checksum;
                superblock.known_end = superblock.known_end.max(end);
            })?;
            self.log.set_begin(end);
            self.segments.drop_before(end)?;
        }
    }

    /// True if the record at `address` is its key's newest, or a snapshot may still read it.
    fn is_needed(&self, address: Address, oldest: u64) -> Result<bool> {
        let record = self.read_disk(address)?;
        let hash = self.hash(record.shape.object, record.key());
        let Some((bucket, stamp)) = self.index.stamp(hash) else { return Ok(true) };
        let candidates: Vec<Address> = self.index.addresses_of(hash).collect();
        let mut needed = false;
        for newest in candidates {
            if newest == address {
                needed = record.shape.kind == Kind::Put || record.version > oldest;
            }
            // Walk from the key's newest record down to the one that superseded this.
            let mut newer = newest;
            while newer != NO_ADDRESS && newer > address {
                let (version, previous) = self.version_and_previous(newer)?;
                if previous == address {
                    needed |= version > oldest;
                }
                newer = previous;
            }
        }
        // Where no path leads here the key was forgotten, or this is another crash's lost version. But a bucket
        // that changed meanwhile has proved nothing.
        Ok(needed || !self.index.unchanged(bucket, stamp))
    }

    fn version_and_previous(&self, address: Address) -> Result<(u64, Address)> {
        {
            let _pin = epoch::pin();
            if address >= self.log.head()
                && let Some(view) = self.log.view(address)
            {
                return Ok((view.version(), view.previous()));
            }
        }
        let record = self.read_disk(address)?;
        Ok((record.version, record.previous))
    }
}
