//! Batches: single operations on many keys, whose cache misses overlap.
//!
//! Finding a key takes two cache misses, one after the other: its bucket, then its record. A batch goes through its keys in
//! groups, fetches the buckets of a whole group, then its records, and then carries out one operation after the other, each
//! as if it stood alone. Where records are on disk, many of them are read at once before ([`read_ahead`](super::read_ahead)).
//!
//! Each operation has a pin of its own, which costs a few instructions. One pin for a group would stretch over what may wait: a
//! read from disk, a wait for log space, a caller's closure.

use std::sync::Arc;

use super::engine::Engine;
use super::read_ahead::ReadAhead;
use super::single::SingleKey;
use crate::error::Result;
use crate::objects::Object;
use crate::storage::epoch;
use crate::sync::atomic::Ordering;

/// So many keys' cache misses overlap: more than a core has outstanding at a time, and few enough that what was fetched
/// is still there when it is needed.
pub(crate) const GROUP_KEYS: usize = 32;

/// After so many records that ranges have read from disk the keeper is to look whether settling them is worth it.
const READS_PER_LOOK: u64 = 1 << 10;

impl Engine {
    /// Has the processor fetch the buckets of some keys, and then their records, so that whoever reads one after the
    /// other soon waits for memory once and not for each. At most [`GROUP_KEYS`] items; gives their keys' hashes.
    #[inline]
    pub(crate) fn prefetch_group<T>(
        &self,
        object: u32,
        items: &[T],
        key_of: impl Fn(&T) -> &[u8],
    ) -> [u64; GROUP_KEYS] {
        let mut hashes = [0; GROUP_KEYS];
        for (hash, item) in hashes.iter_mut().zip(items) {
            *hash = self.hash(object, key_of(item));
        }
        // Alone it has nothing to overlap with.
        if let [_, _, ..] = items {
            let hashes = &hashes[..items.len()];
            hashes.iter().for_each(|&hash| self.index.prefetch(hash));
            self.fetch_candidates(hashes);
        }
        hashes
    }

    /// Has the processor fetch the records of keys with these hashes, whose buckets have been fetched.
    #[inline]
    pub(crate) fn fetch_candidates(&self, hashes: &[u64]) {
        let _pin = epoch::pin();
        for &hash in hashes {
            let _ = self.fetch_candidate(self.index.bucket_of(hash), hash);
        }
    }

    /// Reads the records on disk of a range's keys, which have these hashes, many at once, and waits for them.
    pub(crate) fn read_range_ahead(&self, hashes: &[u64]) {
        let mut ahead = self.read_ahead();
        self.read_group_ahead(&mut ahead, (0, hashes), hashes.len(), |item| hashes[item]);
        let before = self.settled.range_reads.fetch_add(ahead.begun, Ordering::Relaxed);
        // Where nothing is written it sleeps.
        if before / READS_PER_LOOK != (before + ahead.begun) / READS_PER_LOOK {
            self.hardening.wake_keeper();
        }
    }

    /// As [`Self::prefetch_group`], for any number of keys; waits for those that are on disk.
    pub(crate) fn prefetch_keys<K: AsRef<[u8]>>(&self, object: u32, keys: &[K]) {
        let mut ahead = self.read_ahead();
        for (number, group) in keys.chunks(GROUP_KEYS).enumerate() {
            let hashes = self.prefetch_group(object, group, AsRef::as_ref);
            let first = number * GROUP_KEYS;
            self.read_group_ahead(&mut ahead, (first, &hashes[..group.len()]), keys.len(), |item| {
                self.hash(object, keys[item].as_ref())
            });
        }
    }

    /// Reads what is on disk of a group that begins with the item `first`, and of groups that follow.
    #[inline]
    fn read_group_ahead(
        &self,
        ahead: &mut ReadAhead<'_>,
        (first, hashes): (usize, &[u64]),
        count: usize,
        hash_of: impl Fn(usize) -> u64,
    ) {
        // One key alone has nothing to be read beside.
        if count > 1 && (ahead.is_at_work() || self.any_cold(hashes)) {
            ahead.up_to(first, hashes.len(), count, hash_of);
        }
    }

    /// Runs an operation on each item's key, in order, after fetching a group of them: also from disk, if it `reads`. Nothing is run if one of the
    /// keys is not acceptable; the first error of an operation ends the batch.
    #[inline]
    pub(crate) fn for_each_in_groups<'i, O: Object, T>(
        self: &Arc<Self>,
        (object, reads): (&O, bool),
        items: &'i [T],
        key_of: impl Fn(&T) -> &[u8],
        mut run: impl FnMut(usize, SingleKey<'i>) -> Result<()>,
    ) -> Result<()> {
        let id = object.handle().id;
        for item in items {
            self.check_key(object.handle(), object.name(), key_of(item))?;
        }
        let mut ahead = self.read_ahead();
        for (number, group) in items.chunks(GROUP_KEYS).enumerate() {
            let hashes = self.prefetch_group(id, group, &key_of);
            let first = number * GROUP_KEYS;
            if reads {
                self.read_group_ahead(&mut ahead, (first, &hashes[..group.len()]), items.len(), |item| {
                    self.hash(id, key_of(&items[item]))
                });
            }
            for (at, (item, hash)) in group.iter().zip(hashes).enumerate() {
                run(first + at, SingleKey { object: id, hash, key: key_of(item) })?;
            }
        }
        Ok(())
    }
}
