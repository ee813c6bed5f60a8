//! The last step of settling: the entries of rows that the tree has now leave the indexes, which changes nothing for who reads them.

use super::THREAD_NAME;
use crate::error::Result;
use crate::kernel::engine::Engine;
use crate::kernel::newest::{Entry, Newest, NewestWalk};
use crate::kernel::settling_pace::{Grants, Stage};
use crate::planted::{Bug, planted};
use crate::storage::epoch;
use crate::storage::ordered_index::OrderedIndex;
use crate::storage::record::{Address, Kind, Shape};
use crate::storage::together::{Fails, side_by_side};
use crate::storage::tree::{interval, tree_interval};
use crate::sync::atomic::{AtomicBool, Ordering};

/// So many rows are removed at once.
const REMOVE_BATCH: usize = 64;

/// A row that has settled.
struct SettledRow {
    shape: Shape,
    address: Address,
    version: u64,
    hash: u64,
    /// Where its key begins among those of the others.
    key_start: usize,
}

impl Engine {
    /// Takes the entries of what has settled, of a part of the log that counts for so many bytes, off the indexes. Where that fails some are gone, and others not.
    pub(super) fn remove_settled(&self, newest: &Newest, part_bytes: u64) -> Result<()> {
        let separators = newest.separators(self.settled.bounds.threads);
        let intervals = separators.len() + 1;
        let (bytes, count) = (part_bytes / intervals as u64, newest.count() / intervals as u64);
        let has_failed = AtomicBool::new(false);
        let removed = side_by_side(intervals, THREAD_NAME, |number| {
            let (low, high) = interval(&separators, number);
            let grants = self.settled.pace.begin(Stage::Removing, bytes);
            let goes_on = || !has_failed.load(Ordering::Relaxed);
            let fails = Fails::new(&has_failed);
            let walk = newest.walk_between(low, high);
            let removed = walk.and_then(|walk| self.remove_interval(walk, (grants, count), goes_on));
            if removed.is_ok() {
                std::mem::forget(fails);
            }
            removed
        });
        removed.into_iter().collect()
    }

    /// The same of an interval of the keys, which has about so many rows, as long as it `goes_on`.
    fn remove_interval(
        &self,
        mut walk: NewestWalk<'_>,
        (mut grants, count): (Grants<'_>, u64),
        goes_on: impl Fn() -> bool,
    ) -> Result<()> {
        let (mut keys, mut rows) = (Vec::new(), Vec::<SettledRow>::new());
        while goes_on() {
            let mut has_more = false;
            while rows.len() < REMOVE_BATCH
                && let Some(entry) = walk.next()?
            {
                let Entry { shape, address, version, .. } = entry;
                let hash = self.hash(shape.object, entry.key());
                self.index.prefetch(hash);
                rows.push(SettledRow { shape, address, version, hash, key_start: keys.len() });
                keys.extend_from_slice(entry.key());
                has_more = true;
            }
            if !has_more {
                grants.reach(1, 1);
                break;
            }
            grants.reach(walk.passed(), count);
            let mut removed = Vec::with_capacity(rows.len());
            let outcome = rows.iter().try_for_each(|row| {
                if self.remove_settled_row(row, &keys[row.key_start..][..row.shape.key_bytes], &goes_on)? {
                    removed.push(row);
                }
                Ok(())
            });
            // Whatever the outcome: these are gone.
            let mut liveness = self.liveness.lock();
            for row in &removed {
                liveness.supersede(row.address, row.version, Some(row.shape.bytes()));
            }
            drop(liveness);
            self.settled.rows.fetch_add(removed.len() as u64, Ordering::Relaxed);
            outcome?;
            keys.clear();
            rows.clear();
        }
        Ok(())
    }

    /// True if the index referred to the record. Waits for its bucket as long as it `goes_on`.
    fn remove_settled_row(&self, row: &SettledRow, key: &[u8], goes_on: &impl Fn() -> bool) -> Result<bool> {
        loop {
            // Closing waits for the pins, so nothing is changed behind its back.
            let pin = epoch::pin();
            self.check_writable()?;
            let Some(bucket) = self.index.lock_quietly(row.hash) else {
                drop(pin);
                // Who holds it may be another one of these, and have panicked.
                if !goes_on() {
                    return Ok(false);
                }
                crate::sync::thread::yield_now();
                continue;
            };
            if !planted(Bug::SettledNotNoted) {
                self.note_superseded(row.address);
            }
            let was_newest = self.index.remove(bucket, row.hash, row.address);
            let object = self.objects.get(row.shape.object).filter(|_| was_newest);
            let ordered = object.and_then(|object| object.ordered());
            let emptied = ordered.filter(|ordered| ordered.remove_quietly(&pin, key));
            self.index.unlock_unchanged(bucket);
            // The tree may have to be read.
            drop(pin);
            if let Some(ordered) = emptied.filter(|_| row.shape.kind == Kind::Tombstone) {
                self.unlink_barren(ordered, row.shape.object, key);
            }
            return Ok(was_newest);
        }
    }

    /// Unlinks the empty leaf of a deleted key, if no row has settled in its interval either: whoever looks for the first row of a queue would
    /// have to pass all such leaves, and note each. (Where a row has left a leaf last there is one.)
    fn unlink_barren(&self, ordered: &OrderedIndex, object: u32, deleted: &[u8]) {
        let Some((low, high)) = ordered.empty_leaf_at(&epoch::pin(), deleted) else { return };
        let (from, to) = tree_interval(object, &low, high.as_deref());
        // Where that cannot be read it stays, which is slower for others and no more.
        if self.settled.tree.count_estimate(&from, Some(&to)).is_ok_and(|rows| rows == 0) {
            ordered.unlink_at(&epoch::pin(), deleted);
        }
    }
}
