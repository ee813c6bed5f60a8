//! Settling: rows of tables leave the log's old end for the tree (AciKV §3.2, figure 5).
//!
//! ```text
//!          settled to              S                     head                  tail
//!     -------|----------------------|---------------------|--------------------|
//!            | collected, in passes |                      | in memory: left alone
//!            | sorted, merged       |
//! ```
//!
//! 1. *Choose S*, a place where the durable log could end, such that no snapshot, open or yet to come, lacks a version before it: where
//!    one does, the beginning of the segment in which what it lacks begins.
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
//! tree anew is paid for by as much new data, but not more than [`RING_TIMES`] the log's memory. Or when ranges have read as many rows from the
//! cold part, one by one, as would have paid for settling it: so what is loaded, and then only read, settles, and whatever is read
//! and written, twice as much is done as if it had been known before what is better (rent or buy: Karlin et al., Algorithmica 1988). Who
//! reads single rows does not count: to them a row costs a read in the log as in the tree. Nobody who reads or
//! writes waits for it, unless it is [far behind](super::settling_pace), and it holds no lock of theirs but, one after the other, the buckets in step 4.

use super::checkpoint::Haste;
use super::engine::Engine;
use super::newest::{Newest, Sample};
use super::settled::write_tree_key;
use super::settling_pace::Moving;
use crate::error::{Error, Result};
use crate::planted::{Bug, planted};
use crate::storage::epoch;
use crate::storage::ordered_index::OrderedIndex;
use crate::storage::record::{Address, DiskRecord, Kind};
use crate::storage::record_reader::{Cursor, RecordReader};
use crate::storage::segments::Segments;
use crate::sync::atomic::Ordering;

/// Less cold log than such a part of the tree is not worth settling,
const TREE_PART: u64 = 3;
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

/// What a pass has met.
enum Pass {
    Whole {
        newest_version: u64,
    },
    /// A record that some snapshot must not see yet.
    TooNew {
        address: Address,
        version: u64,
    },
}

impl Engine {
    /// True if so much of the log is cold that settling is worth it.
    pub(crate) fn is_settling_due(&self) -> bool {
        let settled = &self.settled;
        if settled.log_bytes == 0 {
            return false;
        }
        let cold_bytes = self.unsettled_bytes();
        let is_paid_for = self.is_settling_paid_for(cold_bytes);
        if cold_bytes < settled.log_bytes / 2 && !is_paid_for || self.segments.disk_is_full() {
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
        (is_paid_for || cold_bytes >= self.settling_due_bytes())
            && self.log.head() >= settled.forgotten_to.load(Ordering::SeqCst)
    }

    /// True if ranges have read so many rows of the log one by one that settling them would have cost no more.
    fn is_settling_paid_for(&self, cold_bytes: u64) -> bool {
        /// A read at random takes as long as settling does for so many bytes of the log, or of the tree.
        const BYTES_PER_READ: u64 = 16 << 10;
        /// What is less than this part of what makes settling due is not met often.
        const LOG_PART: u64 = 16;
        /// So many times as long as a record is the leaf that has to be written anew for it.
        const LEAF_TIMES: u64 = 128;
        let settled = &self.settled;
        let leaves = cold_bytes.saturating_mul(LEAF_TIMES).min(settled.tree.used_bytes());
        let paid = settled.range_reads.load(Ordering::Relaxed).saturating_mul(BYTES_PER_READ);
        cold_bytes >= settled.log_bytes / LOG_PART && paid >= cold_bytes.saturating_add(leaves)
    }

    /// How much of the log has to be cold for it to be due.
    pub(super) fn settling_due_bytes(&self) -> u64 {
        let tree_part = self.settled.tree.used_bytes() / TREE_PART;
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

    /// Settles what is out of memory, as long as it is worth it. That it cannot be done now harms nobody: it is tried again later.
    pub(crate) fn settle_if_due(&self) {
        // Whoever is slowed meanwhile stays so: what is committed between two parts would be the more the faster it goes.
        let (mut moving, mut has_settled) = (None, false);
        // A load keeps the tree to itself, and who waits for that would keep others waiting.
        while let Some(_no_load) = self.settled.loading.try_lock()
            && self.is_settling_due()
        {
            self.settled.range_reads.store(0, Ordering::Relaxed);
            let head = self.log.head();
            let settled = self.settle_to(self.due_settling_end(head), &mut moving);
            if settled.is_err() {
                self.settled.waits_for_head.store(head + self.settled.log_bytes / 2, Ordering::SeqCst);
            }
            let has_more = settled.is_ok_and(|settling| settling != Settling::default());
            has_settled |= has_more;
            // Without background threads somebody waits for it.
            if !has_more || !self.hardening.has_background() {
                break;
            }
        }
        drop(moving);
        // The last checkpoint has what has just settled, and opening would have to find that out by the log.
        if has_settled && self.takes_checkpoints() {
            let _ = self.take_checkpoint(Haste::Background);
        }
    }

    /// Up to where to settle what is out of memory: where that is much more than what makes it due, a part of it, because each pass reads all
    /// that is settled at once, and there are the more passes the more it is.
    fn due_settling_end(&self, head: Address) -> Address {
        const DUE_TIMES: u64 = 2;
        let (settled, segment_bytes) = (&self.settled, self.log.segment_bytes());
        let begin = settled.tree.settled_to().max(self.log.begin());
        let part = begin.saturating_add(DUE_TIMES * self.settling_due_bytes());
        let least = part.max(settled.forgotten_to.load(Ordering::SeqCst)).next_multiple_of(segment_bytes);
        least.min(head - head % segment_bytes)
    }

    /// Settles everything that is durable and that every snapshot may see.
    ///
    /// # Errors
    /// `Io` or `NoSpace` if the disk fails or is full, `Corrupted` if the log or the tree is damaged; `Lost` or `Aborted` if the
    /// database has failed or is closed. What was committed stays as it is.
    pub(crate) fn settle_durable(&self) -> Result<Settling> {
        self.begin_settling();
        let _no_load = self.settled.loading.lock();
        self.settle_to(self.log.hardened(), &mut None)
    }

    /// Writes the tree anew, so that its file is as short as it can be, in parts between which others may settle. `progress` is told after each
    /// how much of it is done.
    ///
    /// # Errors
    /// `Io` or `NoSpace` if the disk fails or is full, `Corrupted` if the tree is damaged; `Lost` or `Aborted` if the database has failed or is
    /// closed. No row is changed.
    pub(crate) fn compact_tree(&self, mut progress: impl FnMut(f64)) -> Result<()> {
        let tree = &self.settled.tree;
        self.rewrite_tree(&mut progress)?;
        // A small tree has found no room before its end: now there is some.
        if tree.has_room_to_cut() { self.rewrite_tree(|_| ()) } else { Ok(()) }
    }

    fn rewrite_tree(&self, mut progress: impl FnMut(f64)) -> Result<()> {
        let tree = &self.settled.tree;
        let mut from = Vec::new();
        loop {
            {
                let _no_load = self.settled.loading.lock();
                let _settling = self.settled.settling.lock();
                self.check_writable()?;
                match tree.rewrite(&from)? {
                    Some(next) => from = next,
                    None => return Ok(()),
                }
            }
            // Nothing is locked: who is told may use the database.
            let root = tree.root();
            progress(tree.count_at(&root, &[], Some(&from))? as f64 / root.entries() as f64);
        }
    }

    /// Settles up to a place where the durable log could end. `moving` says from the first merge on that settling goes on.
    fn settle_to<'a>(&'a self, end: Address, moving: &mut Option<Moving<'a>>) -> Result<Settling> {
        let _settling = self.settled.settling.lock();
        self.check_writable()?;
        // Dropped segments stay readable meanwhile.
        let segments = self.segments.hold();
        let log_begin = self.log.begin();
        let begin = self.settled.tree.settled_to().max(log_begin);
        // Until the first hardening only seals may tell what earlier crashes took.
        let is_possible = end > begin
            && end >= self.settled.forgotten_to.load(Ordering::SeqCst)
            && self.log.hardened() != self.opened_end;
        if !is_possible {
            return Ok(Settling::default());
        }
        self.settled.pace.begin_part();
        let merged = self.merge_passes(&segments, (begin, end), moving);
        self.settled.moving_bytes.store(0, Ordering::SeqCst);
        let (settling, settled_to) = merged?;
        let Some(end) = settled_to else { return Ok(settling) };
        // Before any of it leaves the log: a tree without it must not be taken for this one.
        if !planted(Bug::RemovedBeforeSuperblock) {
            self.superblock.lock().update(|superblock| superblock.settled_to = end)?;
        }
        // What checkpoints say of the index and of the counts of live records is of one moment.
        let _no_checkpoint = self.checkpoints.pause();
        // What removals before this one have left empty, once it is much: whoever has read it, and is not done, has to begin again.
        self.objects.iter().filter_map(|object| object.keys.ordered()).for_each(OrderedIndex::unlink_empty);
        // An earlier removal may have come to no end.
        let removed_to = self.settled.removed_to.load(Ordering::SeqCst).max(log_begin);
        self.remove_settled(&segments, (removed_to, end))?;
        self.settled.removed_to.store(end, Ordering::SeqCst);
        self.objects.iter().filter_map(|object| object.keys.ordered()).for_each(OrderedIndex::note_vacancy);
        // What a little takes is a matter of the disk's syncs.
        if end - begin >= self.settled.log_bytes / 2 {
            self.settled.pace.end_part(end - begin);
        }
        Ok(settling)
    }

    /// Steps 2 and 3: merges what lies in a part of the log, pass after pass, the last one with the place up to which that is, which it
    /// returns; none if there is nothing that all snapshots may see. `moving` says from the first merge on that settling goes on.
    fn merge_passes<'a>(
        &'a self,
        segments: &Segments,
        (begin, mut end): (Address, Address),
        moving: &mut Option<Moving<'a>>,
    ) -> Result<(Settling, Option<Address>)> {
        let oldest = self.oldest_needed();
        let pass_bytes = usize::try_from(self.settled.memory_bytes).unwrap_or(usize::MAX);
        let mut settling = Settling::default();
        let (mut sample, mut is_first) = (Sample::default(), true);
        let mut from = Vec::new();
        loop {
            let to = sample.end_of_pass(&from, pass_bytes);
            let mut newest = Newest::new(pass_bytes, from, to);
            let begins = std::mem::take(&mut is_first);
            let wanted = begins.then_some(&mut sample);
            let part = (begin, end);
            let newest_version = match self.collect(segments, part, &mut newest, wanted, oldest)? {
                Pass::Whole { newest_version } => newest_version,
                Pass::TooNew { address, version } => {
                    self.settled.waits_for_version.store(version, Ordering::SeqCst);
                    // What lies before its segment can settle all the same. It is met before anything was merged.
                    end = address - address % self.log.segment_bytes();
                    if end <= begin || end < self.settled.forgotten_to.load(Ordering::SeqCst) {
                        return Ok((settling, None));
                    }
                    (sample, is_first, from) = (Sample::default(), true, Vec::new());
                    continue;
                }
            };
            self.check_writable()?;
            if begins {
                // Before the first leaf is written: those for which there is room stay in memory.
                self.settled.moving_bytes.store(end - begin, Ordering::SeqCst);
                self.share_with_pages();
                moving.get_or_insert_with(|| self.settled.pace.begin_moving());
            }
            let rest = newest.sort();
            let settled_to = (rest.is_none() || planted(Bug::SettlesOnePass)).then_some(end);
            if settled_to.is_some() && !planted(Bug::SettlesQuietly) {
                // Raised before the first row vanishes: whoever misses one, and then finds what is newer, looks again.
                self.forgotten.fetch_max(newest_version, Ordering::SeqCst);
            }
            if planted(Bug::RemovedBeforeRoot) {
                self.remove_settled(segments, part)?;
            }
            let changes = newest.changes().enumerate().map(|(number, change)| {
                if number.is_multiple_of(BATCH) {
                    self.settled.pace.note_step();
                }
                change
            });
            let merged = self.settled.tree.merge(changes, settled_to)?;
            settling.puts += merged.put;
            settling.deletes += merged.deleted;
            settling.bytes += merged.bytes;
            match rest {
                Some(rest) if settled_to.is_none() => from = rest,
                _ => return Ok((settling, Some(end))),
            }
        }
    }

    /// Has a pass collect what it takes of a part of the log. It ends with the first record that is newer than `oldest`.
    fn collect(
        &self,
        segments: &Segments,
        part: (Address, Address),
        newest: &mut Newest,
        mut sample: Option<&mut Sample>,
        oldest: u64,
    ) -> Result<Pass> {
        let (mut newest_version, mut too_new) = (0, None);
        self.each_batch(segments, part, |records| {
            for (address, record) in records {
                if self.hardening.horizon.was_lost(record.version) && !planted(Bug::SettlesLost) {
                    continue;
                }
                if record.version > oldest && !planted(Bug::SettlesTooNew) {
                    too_new = Some(Pass::TooNew { address: *address, version: record.version });
                    return Ok(false);
                }
                newest_version = newest_version.max(record.version);
                newest.add(record, sample.as_deref_mut());
            }
            Ok(true)
        })?;
        Ok(too_new.unwrap_or(Pass::Whole { newest_version }))
    }

    /// Shows the records of tables in a durable part of the log to `look`, some at a time, in order, until that returns false.
    fn each_batch(
        &self,
        segments: &Segments,
        (begin, end): (Address, Address),
        mut look: impl FnMut(&[(Address, DiskRecord<'_>)]) -> Result<bool>,
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
                self.settled.pace.note_step();
                let mut records = reader.next_batch(segment_end, BATCH)?.records;
                records.retain(|(_, record)| self.is_ordered(record.shape.object));
                if !look(&records)? {
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    /// Takes the entries of what has settled off the indexes.
    fn remove_settled(&self, segments: &Segments, part: (Address, Address)) -> Result<()> {
        self.each_batch(segments, part, |records| {
            let hashed = records.iter().map(|(address, record)| {
                let hash = self.hash(record.shape.object, record.key);
                self.index.prefetch(hash);
                (*address, hash, record)
            });
            let hashed: Vec<_> = hashed.collect();
            let mut removed = Vec::with_capacity(hashed.len());
            let outcome = hashed.iter().try_for_each(|&(address, hash, record)| {
                if self.remove_settled_row(address, hash, record)? {
                    removed.push((address, record));
                }
                Ok(())
            });
            // Whatever the outcome: these are gone.
            let mut liveness = self.liveness.lock();
            for (address, record) in &removed {
                liveness.supersede(*address, record.version, Some(record.shape.bytes()));
            }
            drop(liveness);
            self.settled.rows.fetch_add(removed.len() as u64, Ordering::Relaxed);
            outcome.map(|()| true)
        })
    }

    /// True if the index referred to the record.
    fn remove_settled_row(&self, address: Address, hash: u64, record: &DiskRecord<'_>) -> Result<bool> {
        loop {
            // Closing waits for the pins, so nothing is changed behind its back.
            let pin = epoch::pin();
            self.check_writable()?;
            let Some(bucket) = self.index.lock_quietly(hash) else {
                drop(pin);
                crate::sync::thread::yield_now();
                continue;
            };
            if !planted(Bug::SettledNotNoted) {
                self.note_superseded(address);
            }
            let was_newest = self.index.remove(bucket, hash, address);
            let object = self.objects.get(record.shape.object).filter(|_| was_newest);
            let ordered = object.and_then(|object| object.keys.ordered());
            let emptied = ordered.filter(|ordered| ordered.remove_quietly(&pin, record.key));
            self.index.unlock_unchanged(bucket);
            // The tree may have to be read.
            drop(pin);
            if let Some(ordered) = emptied.filter(|_| record.shape.kind == Kind::Tombstone) {
                self.unlink_barren(ordered, record);
            }
            return Ok(was_newest);
        }
    }

    /// Unlinks the empty leaf of a deleted key, if no row has settled in its interval either: whoever looks for the first row of a queue would
    /// have to pass all such leaves, and note each. (Where a row has left a leaf last there is one.)
    fn unlink_barren(&self, ordered: &OrderedIndex, deleted: &DiskRecord<'_>) {
        let Some((low, high)) = ordered.empty_leaf_at(&epoch::pin(), deleted.key) else { return };
        let (mut from, mut to) = (Vec::new(), Vec::new());
        write_tree_key(deleted.shape.object, &low, &mut from);
        match high {
            Some(high) => write_tree_key(deleted.shape.object, &high, &mut to),
            None => write_tree_key(deleted.shape.object + 1, &[], &mut to),
        }
        // Where that cannot be read it stays, which is slower for others and no more.
        if self.settled.tree.count_estimate(&from, Some(&to)).is_ok_and(|rows| rows == 0) {
            ordered.unlink_at(&epoch::pin(), deleted.key);
        }
    }
}
