//! What recovery does about what has settled, once the log is replayed.
//!
//! Replaying takes rows that have settled for un-settled ones, wherever the log, or the checkpoint, still has them: that
//! says the same, and so each record finds the one before it where it was. Then the entries go as settling had, or would
//! have, removed them: those of records before the place up to where the tree says that everything has settled.
//!
//! Deletions are the other way round: recovery keeps no tombstone in the index, but where the tree may have the key, or a snapshot that
//! has a name may see what it had before, there must be one.
//!
//! # Which deletions nobody knows of any more
//!
//! A deletion is known as long as the index refers to a record of its key that is it, or leads to it by previous addresses. Whoever looks for the row meets one of these records, and does not ask the tree. One that is not
//! known, and has not settled, must settle at once with all before it: else the tree gets the row that it deleted, and nothing hides it. [`Base::forgotten_to`](super::Base::forgotten_to) lies behind each of these, in every opening:
//!
//! - What is written for a key that has an entry leads to what that refers to. So a deletion ceases to be known only where an entry leaves the index.
//! - While the database is open, entries leave it as those of rows that have settled, deletions among them; as those of a dropped table, which settle no more; and as those that the sweep forgets, which notes them as long as nothing has begun to settle (`must_settle`), and then
//!   forgets only what has settled, or was deleted from the tree ahead of the rest, which who settles notes (`merge_newest`).
//! - A checkpoint has the entries of its moment, and says in its [header](crate::storage::checkpoint::Header::forgotten_to) what was noted up to then; nothing is forgotten while it is taken. What its entries do not lead to was noted before.
//! - Recovery takes off the index the deletions of the checkpoint's list that are their keys' newest records, and leaves out those that it replays. In the end it puts them into the index, or gives them up, which it notes; or the key has got another record. If that leads to the deletion, it is known as it was.
//!   If not, the deletion had been forgotten, or given up, before that record was written, perhaps some openings ago. To who sees that record this is all one. But a snapshot that has a name may be from in between, and finds no record of the
//!   key: so it is noted as well.
//!
//! An engine of before has overlooked some of those that only a snapshot with a name can tell of, and its checkpoints say nothing of them: so it stays where something has settled, until all before such a checkpoint's end has.
//!
//! What is noted too much, as that of a dropped table, or where a row was put again and there is no name, only has more settle at once. In one case it is known less well: where something had settled,
//! nothing is left of that, and there is a checkpoint, an engine of before may have taken that, and the place is the checkpoint's end.

use std::ops::Range;

use super::base::{Tombstone, lock};
use super::{Recovery, THREAD_NAME};
use crate::error::{Error, Result};
use crate::kernel::object::Objects;
use crate::planted::{Bug, planted};
use crate::storage::epoch;
use crate::storage::hash_index::{self, HashIndex};
use crate::storage::liveness::Liveness;
use crate::storage::ordered_index::OrderedIndex;
use crate::storage::record::{Address, DiskRecord};
use crate::storage::record_reader::{Cursor, RecordReader};
use crate::storage::segments::Segments;
use crate::storage::superblock::Superblock;
use crate::storage::together::together;
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicU64, Ordering};

pub(crate) const SETTLED_BEYOND_LOG: &str =
    "the log ends before the place up to where the tree says that it has settled, or begun to";

impl Recovery<'_> {
    /// Takes off the index what has settled. The log ends at `end`.
    pub(super) fn finish_settled(&mut self, end: Address) -> Result<()> {
        let tree = self.tree;
        let settled_to = tree.settled_to();
        if self.has_departed {
            // Of dropped objects a checkpoint may have what was removed since, of which the log does not tell.
            self.remove_departed(self.superblock.begin);
        }
        if !tree.has_settled() {
            return Ok(());
        }
        // Behind its end the log will have other records than those that were merged.
        if settled_to.max(tree.root().begun_to()) > end {
            return Err(self.segments.corrupted(end, SETTLED_BEYOND_LOG));
        }
        let begin = self.superblock.begin;
        self.remove_settled(self.settled_to.max(begin), settled_to)?;
        if self.chain.is_some() && self.settled_to < begin {
            self.remove_departed(begin);
        }
        self.objects.orders().for_each(OrderedIndex::note_vacancy);
        Ok(())
    }

    /// Puts the tombstones into the index that must be there, and returns them.
    pub(super) fn finish_deleted(&mut self) -> Vec<Tombstone> {
        let deleted = std::mem::take(&mut self.deleted).unwrap_or_default();
        let (kept, done): (Vec<_>, Vec<_>) =
            deleted.into_iter().partition(|tombstone| self.is_needed(tombstone));
        for tombstone in done {
            self.liveness.supersede(tombstone.address, 0, Some(tombstone.bytes()));
            if self.objects.ordered(tombstone.object).is_some() {
                *self.forgotten_to = (tombstone.address + 1).max(*self.forgotten_to);
            }
        }
        if !planted(Bug::TombstonesNotRecovered) {
            kept.iter().for_each(|tombstone| self.keep_tombstone(tombstone));
        }
        kept
    }

    /// True if the tree may have what was deleted, or get it before the deletion settles; or a snapshot that has a name may see it. Which of them one sees, and
    /// which not, the sweep finds out.
    fn is_needed(&self, tombstone: &Tombstone) -> bool {
        let is_table = self.objects.ordered(tombstone.object).is_some();
        let has_settled = is_table && tombstone.address < self.tree.settled_to();
        // A checkpoint may have some that were forgotten since.
        let is_in_log = tombstone.address >= self.superblock.begin;
        let may_be_seen = !self.told.heard.snapshots.is_empty() && !planted(Bug::SnapshotsForgetDeleted);
        !has_settled && is_in_log && (may_be_seen || is_table && self.tree.has_settled())
    }

    fn remove_settled(&mut self, begin: Address, end: Address) -> Result<()> {
        let liveness = || Liveness::new(self.superblock.begin, self.superblock.segment_bytes);
        let removal = Removal {
            segments: self.segments,
            superblock: self.superblock,
            index: self.index,
            objects: self.objects,
            span: begin..end,
            next: AtomicU64::new(begin / self.superblock.segment_bytes),
            counted: Mutex::new(liveness()),
            failure: Mutex::new(None),
        };
        let is_long = end.saturating_sub(begin) >= self.division.threads_from_bytes;
        let workers = if is_long { self.division.workers() } else { 1 };
        together(workers, THREAD_NAME, || removal.take_part(liveness()));
        self.liveness.add_all(&removal.counted.lock());
        let failure = removal.failure.lock().take();
        failure.map_or(Ok(()), |(_, error)| Err(error))
    }

    /// Removes the entries of a checkpoint whose records are gone from the log, and were not moved: they have settled, or were removed.
    fn remove_departed(&self, begin: Address) {
        for bucket in 0..self.index.bucket_count() {
            self.index.remove_below(bucket, begin);
        }
    }

    fn keep_tombstone(&self, tombstone: &Tombstone) {
        let hash = hash_index::hash_of(self.superblock.hash_seed, tombstone.object, &tombstone.key);
        let bucket = lock(self.index, hash);
        let overflowed = self.index.insert(bucket, hash, tombstone.address);
        if let Some(ordered) = self.objects.ordered(tombstone.object) {
            ordered.insert(&epoch::pin(), &tombstone.key);
        }
        self.index.unlock_changed(bucket);
        if overflowed {
            self.index.catch_up();
        }
    }
}

/// What has settled and is taken off the index, by several who each read another segment: an entry is of one address, so any may go first. (Of two keys with
/// the same known bits of their hash the one that goes last takes the order's key with it; the count finds that.)
struct Removal<'a> {
    segments: &'a Segments,
    superblock: &'a Superblock,
    index: &'a HashIndex,
    objects: &'a Objects,
    span: Range<Address>,
    /// The number of the next segment that nobody has taken.
    next: AtomicU64,
    counted: Mutex<Liveness>,
    /// What went wrong in the first of the segments in which something did, and where that begins.
    failure: Mutex<Option<(Address, Error)>>,
}

impl Removal<'_> {
    /// Takes segment after segment, in their order, until there are none, or something was wrong in one: none before that is left to be taken.
    fn take_part(&self, mut liveness: Liveness) {
        let segment_bytes = self.superblock.segment_bytes;
        while self.failure.lock().is_none() {
            let start = self.next.fetch_add(1, Ordering::Relaxed) * segment_bytes;
            if start >= self.span.end {
                break;
            }
            let part = start.max(self.span.start)..(start + segment_bytes).min(self.span.end);
            if let Err(error) = self.remove(part, &mut liveness) {
                let mut failure = self.failure.lock();
                if failure.as_ref().is_none_or(|(first, _)| start < *first) {
                    *failure = Some((start, error));
                }
            }
        }
        self.counted.lock().add_all(&liveness);
    }

    /// Removes what lies in a part of the log that is of one segment, and begins with an extent.
    fn remove(&self, part: Range<Address>, liveness: &mut Liveness) -> Result<()> {
        /// So many cache misses overlap.
        const BATCH: usize = 64;
        let mut hashes = Vec::with_capacity(BATCH);
        let mut reader =
            RecordReader::new(self.segments, self.superblock.database, Cursor::at_seal(part.start));
        while reader.cursor().position < part.end {
            let records = reader.next_batch(part.end, BATCH)?.records;
            hashes.clear();
            for (_, record) in &records {
                let hash = hash_index::hash_of(self.superblock.hash_seed, record.shape.object, record.key);
                self.index.prefetch(hash);
                hashes.push(hash);
            }
            for ((address, record), &hash) in records.iter().zip(&hashes) {
                self.remove_row((*address, record), hash, liveness);
            }
        }
        Ok(())
    }

    fn remove_row(&self, (address, record): (Address, &DiskRecord<'_>), hash: u64, liveness: &mut Liveness) {
        let Some(ordered) = self.objects.ordered(record.shape.object) else { return };
        let bucket = lock(self.index, hash);
        let was_newest = self.index.remove(bucket, hash, address);
        // Another record of the same tag may be the key's, written since it settled. A key that has none stays in the order until
        // it is written once more, which costs a little memory.
        if was_newest && self.index.addresses_of(hash).next().is_none() {
            ordered.remove(&epoch::pin(), record.key);
        }
        self.index.unlock_changed(bucket);
        if was_newest {
            liveness.supersede(address, record.version, Some(record.shape.bytes()));
        }
    }
}
