//! Settling: rows of tables leave the log's old end for the tree (AciKV §3.2, figure 5).
//!
//! ```text
//!          settled to              S                     head                  tail
//!     -------|----------------------|---------------------|--------------------|
//!            | collected, in passes |                      | in memory: left alone
//!            | sorted, merged       |
//! ```
//!
//! 1. *Choose S*, a place where the durable log could end, such that no snapshot, open or yet to come, lacks a version before it.
//! 2. *Collect* for every key of a table its newest record before S, put or tombstone, and *merge* them, in the order of the
//!    keys, into the tree: range after range, each with a new root, so that the old tree and the new one need not both have room. What does not fit into the memory for it is left to a further pass over the same part of the log,
//!    which begins with the first key that was left out. So the tree is, in the end, exactly what all records
//!    before S come to, also where the log has something newer, which a crash might yet take.
//! 3. *Publish* S with the last merge's root, and then in the superblock, so that an older tree is never taken for this one. From now on
//!    recovery takes no record of a table before S from the log.
//! 4. *Remove* from the indexes the entries that still refer to records before S. Who finds none then finds the row in the tree.
//!
//! A crash before 3 leaves rows in the tree whose entries recovery makes again: they say the same, and so do entries, to everybody, while some ranges
//! are merged and others are not: a key's entry goes before its row. (How many rows there are is counted when it is asked, so no count goes wrong.) Between 3 and 4 it is recovery
//! that does 4. The segments are dropped, or compacted for the sake of other objects, by `sweep` as ever.
//!
//! **When.** When so much of the log is out of memory, and not settled, that it is worth it:
//! [`settle_log_bytes`](crate::Options::settle_log_bytes), and a [`TREE_PART`] of the tree, so that a merge that has to write all of the
//! tree anew is paid for by as much new data, but not more than [`RING_TIMES`] the log's memory. Nobody who reads or
//! writes waits for it, unless it is [far behind](super::settling_pace), and it holds no lock of theirs but, one after the other, the buckets in step 4.

use std::cmp::Ordering as Order;

use super::checkpoint::Haste;
use super::engine::Engine;
use super::settled::{OBJECT_BYTES, write_tree_key};
use crate::error::{Error, Result};
use crate::planted::{Bug, planted};
use crate::storage::epoch;
use crate::storage::ordered_index::OrderedIndex;
use crate::storage::record::{Address, DiskRecord, Kind};
use crate::storage::record_reader::{Cursor, RecordReader};
use crate::storage::segments::Segments;
use crate::storage::tree::Change;
use crate::sync::Instant;
use crate::sync::atomic::Ordering;

/// Less cold log than such a part of the tree, so many times one of so many parts, is not worth settling,
const TREE_PART: (u64, u64) = (2, 5);
/// unless it is so many times as long as the log's memory: its keys are in memory, too.
const RING_TIMES: u64 = 4;
/// So many records are looked at at once.
const BATCH: usize = 64;

/// What settling has done, once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Settling {
    /// Rows put and deleted in the tree.
    pub(crate) puts: u64,
    pub(crate) deletes: u64,
    /// Bytes written for it.
    pub(crate) bytes: u64,
}

impl Engine {
    /// True if so much of the log is cold that settling is worth it.
    pub(crate) fn is_settling_due(&self) -> bool {
        let settled = &self.settled;
        if settled.log_bytes == 0 {
            return false;
        }
        let cold_bytes = self.unsettled_bytes();
        if cold_bytes < settled.log_bytes / 2 || self.segments.disk_is_full() {
            return false;
        }
        // Else the whole part would be read in vain, time and again.
        if self.log.head() < settled.waits_for_head.load(Ordering::SeqCst)
            || self.oldest_needed() < settled.waits_for_version.load(Ordering::SeqCst)
        {
            return false;
        }
        let has_tables =
            || self.objects.iter().any(|object| object.keys.ordered().is_some_and(|keys| keys.len() > 0));
        if !has_tables() {
            return false;
        }
        self.begin_settling();
        cold_bytes >= self.settling_due_bytes()
            && self.log.head() >= settled.forgotten_to.load(Ordering::SeqCst)
    }

    /// How much of the log has to be cold for it to be due.
    pub(super) fn settling_due_bytes(&self) -> u64 {
        let tree_part = self.settled.tree.used_bytes() / TREE_PART.1 * TREE_PART.0;
        self.settled.log_bytes.max(tree_part.min(self.log.ring_bytes() * RING_TIMES))
    }

    /// Has no more tombstones of tables forgotten but by settling.
    pub(super) fn begin_settling(&self) {
        if !self.settled.is_begun.load(Ordering::SeqCst) {
            // Whoever is just forgetting holds the lock.
            let _sweeping = self.graves.pause();
            self.settled.is_begun.store(true, Ordering::SeqCst);
        }
    }

    /// Settles what is out of memory, if it is worth it. That it cannot be done now harms nobody: it is tried again later.
    pub(crate) fn settle_if_due(&self) {
        // A load keeps the tree to itself, and who waits for that would keep others waiting.
        let Some(_no_load) = self.settled.loading.try_lock() else { return };
        if self.is_settling_due() {
            let head = self.log.head();
            let settled = self.settle_to(head - head % self.log.segment_bytes());
            if settled.is_err() {
                self.settled.waits_for_head.store(head + self.settled.log_bytes / 2, Ordering::SeqCst);
            }
            // The last checkpoint has what has just settled, and opening would have to find that out by the log.
            if settled.is_ok_and(|settling| settling != Settling::default()) && self.takes_checkpoints() {
                let _ = self.take_checkpoint(Haste::Background);
            }
        }
    }

    /// Settles everything that is durable and that every snapshot may see.
    ///
    /// # Errors
    /// `Io` or `NoSpace` if the disk fails or is full, `Corrupted` if the log or the tree is damaged; `Lost` or `Aborted` if the
    /// database has failed or is closed. What was committed stays as it is.
    pub(crate) fn settle_durable(&self) -> Result<Settling> {
        self.begin_settling();
        let _no_load = self.settled.loading.lock();
        self.settle_to(self.log.hardened())
    }

    /// Settles up to a place where the durable log could end.
    fn settle_to(&self, end: Address) -> Result<Settling> {
        let _settling = self.settled.settling.lock();
        self.check_writable()?;
        let (tree, horizon) = (&self.settled.tree, &self.hardening.horizon);
        // Dropped segments stay readable meanwhile.
        let segments = self.segments.hold();
        let log_begin = self.log.begin();
        let begin = tree.settled_to().max(log_begin);
        // Until the first hardening only seals may tell what earlier crashes took.
        let is_possible = end > begin
            && end >= self.settled.forgotten_to.load(Ordering::SeqCst)
            && self.log.hardened() != self.opened_end;
        if !is_possible {
            return Ok(Settling::default());
        }
        let oldest = self.oldest_needed();
        let pass_bytes = usize::try_from(self.settled.memory_bytes).unwrap_or(usize::MAX);
        let (mut settling, began) = (Settling::default(), Instant::now());
        let mut moving = None;
        let (mut newest_version, mut from) = (0, Vec::new());
        loop {
            let mut newest = Newest::new(pass_bytes, from);
            let mut is_too_new = false;
            self.each_record(&segments, (begin, end), |address, record| {
                if horizon.was_lost(record.version) && !planted(Bug::SettlesLost) {
                    return true;
                }
                is_too_new |= record.version > oldest && !planted(Bug::SettlesTooNew);
                newest_version = newest_version.max(record.version);
                newest.add(address, record);
                !is_too_new
            })?;
            if is_too_new {
                self.settled.waits_for_version.store(newest_version, Ordering::SeqCst);
                return Ok(settling);
            }
            self.check_writable()?;
            moving.get_or_insert_with(|| self.settled.pace.begin_moving());
            let rest = newest.sort();
            let settled_to = (rest.is_none() || planted(Bug::SettlesOnePass)).then_some(end);
            if settled_to.is_some() && !planted(Bug::SettlesQuietly) {
                // Raised before the first row vanishes: whoever misses one, and then finds what is newer, looks again.
                self.forgotten.fetch_max(newest_version, Ordering::SeqCst);
            }
            if planted(Bug::RemovedBeforeRoot) {
                self.remove_settled(&segments, (begin, end))?;
            }
            let merged = tree.merge(newest.changes(), settled_to)?;
            settling.puts += merged.put;
            settling.deletes += merged.deleted;
            settling.bytes += merged.bytes;
            match rest {
                Some(rest) if !planted(Bug::SettlesOnePass) => from = rest,
                _ => break,
            }
        }
        // Before any of it leaves the log: a tree without it must not be taken for this one.
        if !planted(Bug::RemovedBeforeSuperblock) {
            self.superblock.lock().update(|superblock| superblock.settled_to = end)?;
        }
        // What checkpoints say of the index and of the counts of live records is of one moment.
        let _no_checkpoint = self.checkpoints.pause();
        // What the removal before this one has left empty: whoever reads for so long that they notice has to begin again.
        self.objects.iter().filter_map(|object| object.keys.ordered()).for_each(OrderedIndex::unlink_empty);
        // An earlier removal may have come to no end.
        let removed_to = self.settled.removed_to.load(Ordering::SeqCst).max(log_begin);
        self.remove_settled(&segments, (removed_to, end))?;
        self.settled.removed_to.store(end, Ordering::SeqCst);
        self.settled.pace.learn(end - begin, began.elapsed());
        Ok(settling)
    }

    /// Shows every record of a table in a durable part of the log to `look`, in order, until that returns false.
    fn each_record(
        &self,
        segments: &Segments,
        (begin, end): (Address, Address),
        mut look: impl FnMut(Address, &DiskRecord<'_>) -> bool,
    ) -> Result<()> {
        let database = self.superblock.lock().current().database;
        let mut reader = RecordReader::new(segments, database, Cursor::at_seal(begin));
        while reader.cursor().position < end {
            // Whoever closes the database waits.
            if self.hardening.is_stopping() {
                return Err(Error::closed());
            }
            let segment_end =
                (reader.cursor().position + 1).next_multiple_of(self.log.segment_bytes()).min(end);
            while reader.cursor().position < segment_end {
                let batch = reader.next_batch(segment_end, BATCH)?;
                for (address, record) in &batch.records {
                    if self.is_ordered(record.shape.object) && !look(*address, record) {
                        return Ok(());
                    }
                }
            }
        }
        Ok(())
    }

    /// Takes the entries of what has settled off the indexes.
    fn remove_settled(&self, segments: &Segments, part: (Address, Address)) -> Result<()> {
        let mut outcome = Ok(());
        self.each_record(segments, part, |address, record| {
            outcome = self.remove_settled_row(address, record);
            outcome.is_ok()
        })?;
        outcome
    }

    fn remove_settled_row(&self, address: Address, record: &DiskRecord<'_>) -> Result<()> {
        let (object, key) = (record.shape.object, record.key);
        let hash = self.hash(object, key);
        loop {
            // Closing waits for the pins, so nothing is changed behind its back.
            let pin = epoch::pin();
            self.check_writable()?;
            let Some(bucket) = self.index.lock_quietly(hash) else {
                drop(pin);
                crate::sync::thread::yield_now();
                continue;
            };
            let was_newest = self.index.remove(bucket, hash, address);
            if was_newest
                && let Some(ordered) = self.objects.get(object).and_then(|object| object.keys.ordered())
            {
                ordered.remove_quietly(&pin, key);
            }
            self.index.unlock_unchanged(bucket);
            if !was_newest {
                return Ok(());
            }
            // No lock is waited for under a pin.
            drop(pin);
            self.liveness.lock().supersede(address, record.version, Some(record.shape.bytes()));
            self.settled.rows.fetch_add(1, Ordering::Relaxed);
            return Ok(());
        }
    }
}

/// The newest records of the keys from a certain one on, as many as there is memory for.
struct Newest {
    bytes_max: usize,
    /// Keys in the tree before this one were done by earlier passes.
    from: Vec<u8>,
    /// From this one on all are left to later passes.
    to: Option<Vec<u8>>,
    /// Key and value of each record, one after the other.
    arena: Vec<u8>,
    records: Vec<Collected>,
    key: Vec<u8>,
}

/// A record in the arena.
#[derive(Clone, Copy)]
struct Collected {
    address: Address,
    start: usize,
    key_bytes: u32,
    value_bytes: u32,
    kind: Kind,
}

impl Newest {
    fn new(bytes_max: usize, from: Vec<u8>) -> Newest {
        Newest { bytes_max, from, to: None, arena: Vec::new(), records: Vec::new(), key: Vec::new() }
    }

    fn key(&self, record: &Collected) -> &[u8] {
        &self.arena[record.start..][..record.key_bytes as usize]
    }

    fn bytes(&self) -> usize {
        self.arena.len() + self.records.len() * size_of::<Collected>()
    }

    /// Adds a record that comes behind all that were added before.
    fn add(&mut self, address: Address, record: &DiskRecord<'_>) {
        write_tree_key(record.shape.object, record.key, &mut self.key);
        if self.key < self.from || self.to.as_ref().is_some_and(|to| self.key >= *to) {
            return;
        }
        let start = self.arena.len();
        self.arena.extend_from_slice(&self.key);
        self.arena.extend_from_slice(record.value);
        self.records.push(Collected {
            address,
            start,
            key_bytes: self.key.len() as u32,
            value_bytes: record.value.len() as u32,
            kind: record.shape.kind,
        });
        if self.bytes() > self.bytes_max {
            self.make_room();
        }
    }

    /// Brings the records in the order of their keys, and leaves only the newest of each.
    fn order(&mut self) {
        let mut records = std::mem::take(&mut self.records);
        records.sort_unstable_by(|one, other| {
            let order = self.key(one).cmp(self.key(other));
            // The newest first.
            if order == Order::Equal { other.address.cmp(&one.address) } else { order }
        });
        if !planted(Bug::SettlesOldest) {
            records.dedup_by(|later, kept| self.key(later) == self.key(kept));
        } else {
            records.reverse();
            records.dedup_by(|later, kept| self.key(later) == self.key(kept));
            records.reverse();
        }
        self.records = records;
    }

    /// Drops what is not the newest, and if that is not enough the greater half of the keys.
    fn make_room(&mut self) {
        self.order();
        let used = |records: &[Collected]| {
            records
                .iter()
                .map(|record| (record.key_bytes + record.value_bytes) as usize + size_of::<Collected>())
                .sum::<usize>()
        };
        // Something must go on even if one record alone is as large.
        while used(&self.records) > self.bytes_max / 2 && self.records.len() > 1 {
            let kept = self.records.len() / 2;
            self.to = Some(self.key(&self.records[kept]).to_vec());
            self.records.truncate(kept);
        }
        let mut arena = Vec::with_capacity(self.bytes_max.min(2 * used(&self.records)));
        for record in &mut self.records {
            let bytes = (record.key_bytes + record.value_bytes) as usize;
            let start = arena.len();
            arena.extend_from_slice(&self.arena[record.start..][..bytes]);
            record.start = start;
        }
        self.arena = arena;
    }

    /// Makes [`Self::changes`] possible; returns the first key that was left to another pass.
    fn sort(&mut self) -> Option<Vec<u8>> {
        self.order();
        self.to.clone()
    }

    /// What the tree is to be told.
    fn changes(&self) -> impl Iterator<Item = Change<'_>> {
        self.records.iter().map(|record| {
            let value =
                &self.arena[record.start + record.key_bytes as usize..][..record.value_bytes as usize];
            Change { key: self.key(record), value: (record.kind == Kind::Put).then_some(value) }
        })
    }
}

const _: () = assert!(OBJECT_BYTES == size_of::<u32>());

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::storage::record::{NO_ADDRESS, Shape};

    /// Keys and values, or none, as the tree is told of them.
    type Told = Vec<(Vec<u8>, Option<Vec<u8>>)>;

    fn told(newest: &Newest) -> Told {
        newest.changes().map(|change| (change.key.to_vec(), change.value.map(<[u8]>::to_vec))).collect()
    }

    #[test]
    fn c4_several_passes_tell_the_newest_record_of_each_key_once_and_in_order() {
        let mut state = 7_u64;
        let mut random = |end: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % end
        };
        let records: Vec<(Vec<u8>, Option<Vec<u8>>)> = (0..3_000_u32)
            .map(|number| {
                let key = format!("{:0width$}", random(700), width = 1 + random(4) as usize);
                let value = (random(5) > 0).then(|| vec![number as u8; random(60) as usize]);
                (key.into_bytes(), value)
            })
            .collect();
        let mut expected = BTreeMap::new();
        for (key, value) in &records {
            let mut tree_key = Vec::new();
            write_tree_key(16, key, &mut tree_key);
            expected.insert(tree_key, value.clone());
        }
        let expected: Told = expected.into_iter().collect();
        // One record alone is more than there is memory for; many passes; one.
        for (bytes_max, passes_min) in [(1, 100), (20_000, 2), (1 << 20, 1)] {
            let (mut all, mut from, mut passes) = (Told::new(), Some(Vec::new()), 0);
            while let Some(first) = from {
                let mut newest = Newest::new(bytes_max, first);
                for ((key, value), address) in records.iter().zip((64..).step_by(64)) {
                    let kind = if value.is_some() { Kind::Put } else { Kind::Tombstone };
                    let value = value.as_deref().unwrap_or_default();
                    let shape = Shape { kind, object: 16, key_bytes: key.len(), value_bytes: value.len() };
                    newest.add(address, &DiskRecord { shape, version: 1, previous: NO_ADDRESS, key, value });
                }
                from = newest.sort();
                all.extend(told(&newest));
                passes += 1;
            }
            assert!(all == expected, "with {bytes_max} bytes");
            assert!(passes >= passes_min, "{passes} passes with {bytes_max} bytes");
        }
    }
}
