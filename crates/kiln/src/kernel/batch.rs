//! Batches: single operations on many keys, whose cache misses overlap.
//!
//! Finding a key takes two cache misses, one after the other: its bucket, then its record. A batch goes through its keys in
//! groups, fetches the buckets of a whole group, then its records, and then carries out one operation after the other, each
//! as if it stood alone. Where records are on disk, many of them are read at once before ([`read_ahead`](super::read_ahead)), and so are the leaves of
//! rows that have settled.
//!
//! Each operation has a pin of its own, which costs a few instructions. One pin for a group would stretch over what may wait: a
//! read from disk, a wait for log space, a caller's closure.

use std::sync::Arc;

use super::engine::Engine;
use super::expiry::default_expiry;
use super::handle::Object;
use super::read_ahead::ReadAhead;
use super::receipt::Commit;
use super::single::{SingleKey, with_scratch};
use crate::error::Result;
use crate::storage::epoch;
use crate::storage::record::RECORD_BYTES_USUAL;
use crate::sync::atomic::Ordering;

/// So many keys' cache misses overlap: more than a core has outstanding at a time, and few enough that what was fetched
/// is still there when it is needed.
pub(crate) const GROUP_KEYS: usize = 32;

/// The leaves of so many keys are read at once: the disk has many to serve, and they fit into a small cache.
const LEAVES_AHEAD_KEYS: usize = 4 * GROUP_KEYS;

/// What the operations of a batch read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reads {
    /// Nothing that is worth reading ahead.
    Nothing,
    /// Records: whose key they are is to be known, and what has settled does not matter.
    Records,
    /// Rows, be they records or settled.
    Rows,
}

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
            let _ = self.fetch_candidate(self.index.bucket_of(hash), hash, RECORD_BYTES_USUAL);
        }
    }

    /// Reads the records on disk of a range's keys, which have these hashes, many at once, and waits for them: those that are to be seen up to a version.
    /// Says how many these were.
    pub(crate) fn read_range_ahead(&self, hashes: &[u64], version_max: u64) -> u64 {
        let mut ahead = self.read_ahead_as_of(version_max);
        self.read_group_ahead(&mut ahead, (0, hashes), hashes.len(), |item| hashes[item]);
        // Settling would spare these; what newer records have superseded nobody reads for long.
        let before = self.settled.range_reads.fetch_add(ahead.begun_newest, Ordering::Relaxed);
        // Where nothing is written it sleeps.
        if before / READS_PER_LOOK != (before + ahead.begun_newest) / READS_PER_LOOK {
            self.hardening.wake_keeper();
        }
        ahead.begun
    }

    /// As [`Self::prefetch_group`], for any number of keys; waits for those that are on disk.
    pub(crate) fn prefetch_keys<K: AsRef<[u8]>>(&self, object: u32, keys: &[K]) {
        let mut ahead = self.read_ahead();
        for (number, group) in keys.chunks(GROUP_KEYS).enumerate() {
            let first = number * GROUP_KEYS;
            self.read_settled_ahead(object, (first, keys), AsRef::as_ref);
            let hashes = self.prefetch_group(object, group, AsRef::as_ref);
            self.read_group_ahead(&mut ahead, (first, &hashes[..group.len()]), keys.len(), |item| {
                self.hash(object, keys[item].as_ref())
            });
        }
    }

    /// Reads what is on disk of a group that begins with the item `first`, and of groups that follow.
    #[inline]
    pub(super) fn read_group_ahead(
        &self,
        ahead: &mut ReadAhead<'_>,
        (first, hashes): (usize, &[u64]),
        count: usize,
        hash_of: impl Fn(usize) -> u64,
    ) {
        // One key alone has nothing to be read beside.
        if count > 1 && (ahead.is_at_work() || self.any_cold(hashes, ahead.version_max())) {
            ahead.up_to(first, hashes.len(), count, hash_of);
        }
    }

    /// Reads the leaves of rows that have settled, where the group that begins with the item `first` is the first of several whose turn it is.
    #[inline]
    fn read_settled_ahead<T>(
        &self,
        object: u32,
        (first, items): (usize, &[T]),
        key_of: impl Fn(&T) -> &[u8],
    ) {
        let is_turn = first.is_multiple_of(LEAVES_AHEAD_KEYS) && items.len() - first > 1;
        if is_turn && self.may_be_settled(object) && self.settled.tree.is_partly_on_disk() {
            let end = items.len().min(first + LEAVES_AHEAD_KEYS);
            self.read_leaves_ahead(object, items[first..end].iter().map(key_of));
        }
    }

    /// Calls `look` with each key's number and its newest value, in order.
    pub(crate) fn get_many<O: Object, K: AsRef<[u8]>>(
        self: &Arc<Self>,
        object: &O,
        keys: &[K],
        mut look: impl FnMut(usize, Option<&[u8]>),
    ) -> Result<()> {
        with_scratch(|scratch| {
            self.for_each_in_groups((object, Reads::Rows), keys, AsRef::as_ref, |number, key| {
                let reading = self.read_newest(key, &mut scratch.old)?;
                look(number, reading.found.then_some(&scratch.old));
                Ok(())
            })
        })
    }

    /// Commits a put of each entry, by `put`, which gives its version. Nothing is put if one of the keys or values is not acceptable.
    pub(crate) fn put_each<'e, 'i, O: Object, K: AsRef<[u8]>, V: AsRef<[u8]>>(
        self: &'e Arc<Self>,
        object: &'i O,
        entries: &'i [(K, V)],
        put: impl Fn(SingleKey<'i>, &'i [u8]) -> Result<u64>,
    ) -> Result<Commit<'e, ()>> {
        // When they expire is known only once they are put.
        let some_expiry = default_expiry(object.handle().time_to_live_ms, || 1);
        for (_, value) in entries {
            self.check_expiring(value.as_ref(), some_expiry).map_err(|error| error.after(0))?;
        }
        let reads = match self.puts_blindly(object.handle().id) {
            true => Reads::Nothing,
            false => Reads::Records,
        };
        self.commit_each(
            (object, reads),
            entries,
            |(key, _)| key.as_ref(),
            |number, key| put(key, entries[number].1.as_ref()),
        )
    }

    /// Commits an operation, which `reads` so much, for each item, by `commit`, which gives its version; what is returned stands for all of them. As [`Self::for_each_in_groups`]; the error says how many were committed.
    pub(crate) fn commit_each<'e, 'i, O: Object, T>(
        self: &'e Arc<Self>,
        (object, reads): (&'i O, Reads),
        items: &'i [T],
        key_of: impl Fn(&T) -> &[u8],
        mut commit: impl FnMut(usize, SingleKey<'i>) -> Result<u64>,
    ) -> Result<Commit<'e, ()>> {
        let (mut newest, mut done_count) = (0, 0);
        let outcome = self.for_each_in_groups((object, reads), items, key_of, |number, key| {
            newest = newest.max(commit(number, key)?);
            done_count = number + 1;
            Ok(())
        });
        match outcome {
            Ok(()) => Ok(Commit::new(self, newest, ())),
            Err(error) => Err(error.after(done_count)),
        }
    }

    /// Runs an operation on each item's key, in order, after fetching a group of them: also from disk, what it `reads`. Nothing is run if one of the
    /// keys is not acceptable; the first error of an operation ends the batch.
    #[inline]
    pub(crate) fn for_each_in_groups<'i, O: Object, T>(
        self: &Arc<Self>,
        (object, reads): (&'i O, Reads),
        items: &'i [T],
        key_of: impl Fn(&T) -> &[u8],
        mut run: impl FnMut(usize, SingleKey<'i>) -> Result<()>,
    ) -> Result<()> {
        let id = object.handle().id;
        for item in items {
            self.check_key(object.handle(), key_of(item))?;
        }
        let mut ahead = self.read_ahead();
        for (number, group) in items.chunks(GROUP_KEYS).enumerate() {
            let first = number * GROUP_KEYS;
            if reads == Reads::Rows {
                self.read_settled_ahead(id, (first, items), &key_of);
            }
            let hashes = self.prefetch_group(id, group, &key_of);
            if reads != Reads::Nothing {
                self.read_group_ahead(&mut ahead, (first, &hashes[..group.len()]), items.len(), |item| {
                    self.hash(id, key_of(&items[item]))
                });
            }
            for (at, (item, hash)) in group.iter().zip(hashes).enumerate() {
                run(
                    first + at,
                    SingleKey { object: id, hash, key: key_of(item), life: &object.handle().life },
                )?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use crate::Options;
    use crate::device::SimulatedDevice;

    const ROWS: u32 = 20_000;

    fn value(number: u32) -> Vec<u8> {
        number.to_le_bytes().repeat(25)
    }

    /// A batch read settled rows one after the other, each with its read from disk.
    #[test]
    fn settled_rows_of_a_batch_are_found_in_leaves_that_were_read_together() {
        let options = Options::new().background(false).segment_bytes(64 << 10).memory(4 << 20);
        let device = Arc::new(SimulatedDevice::new(1));
        {
            let db = options.clone().open_on(device.clone()).unwrap();
            let table = db.table("table").unwrap();
            for number in 0..ROWS {
                db.put(&table, number.to_be_bytes(), value(number)).unwrap().forget();
            }
            db.persist().unwrap();
            assert_eq!(db.settle().unwrap(), u64::from(ROWS));
            // And one that has a record again.
            db.put(&table, 0_u32.to_be_bytes(), "newer").unwrap().forget();
            db.close().unwrap();
        }
        let db = options.open_on(device).unwrap();
        let table = db.table("table").unwrap();
        let tree = &db.engine().settled.tree;
        let keys: Vec<_> = (0..ROWS).step_by(97).map(u32::to_be_bytes).collect();
        for in_transaction in [false, true] {
            tree.set_cache_bytes(0);
            tree.set_cache_bytes(u64::MAX);
            let (hits, mut found) = (tree.statistics().cache_hits, Vec::new());
            if in_transaction {
                let transaction = db.begin().unwrap();
                transaction.prefetch(&table, &keys);
                found.extend(keys.iter().map(|key| transaction.get(&table, key).unwrap()));
            } else {
                db.get_many(&table, &keys, |_, value| found.push(value.map(<[u8]>::to_vec))).unwrap();
            }
            for (key, found) in keys.iter().zip(found) {
                let expected = match u32::from_be_bytes(*key) {
                    0 => b"newer".to_vec(),
                    number => value(number),
                };
                assert_eq!(found, Some(expected));
            }
            // But for the first, which is not in the tree, each found its leaf in memory.
            assert_eq!(tree.statistics().cache_hits - hits, keys.len() as u64 - 1);
        }
        // Who puts does not ask the tree.
        tree.set_cache_bytes(0);
        tree.set_cache_bytes(u64::MAX);
        let (misses, entries) =
            (tree.cache_misses(), keys.iter().map(|key| (key, "put")).collect::<Vec<_>>());
        db.put_many(&table, &entries).unwrap().forget();
        assert_eq!(tree.cache_misses(), misses);
    }
}
