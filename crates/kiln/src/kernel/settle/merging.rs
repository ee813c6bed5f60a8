//! The second step of settling: what was collected is merged into the tree, by several threads, each of which has an interval of the keys.

use super::collection::COLLECT_BATCH;
use crate::error::{Error, ErrorKind, Result};
use crate::kernel::engine::Engine;
use crate::kernel::newest::{Newest, NewestWalk};
use crate::kernel::settling_pace::{Grants, Stage};
use crate::planted::{Bug, planted};
use crate::storage::extent;
use crate::storage::record::{Address, NEVER};
use crate::storage::segments::Segments;
use crate::storage::tree::{BegunMerge, ChangedRow, Merged, Rows, interval};
use crate::sync::atomic::Ordering;

/// A thread that merges takes some 10 MiB, for rows and leaves that are read ahead and for what it writes: it is not to be much beside its part of what is sorted.
const BYTES_OF_ONE: u64 = 16 << 20;

/// What was collected, or an interval of it, or what of it was deleted, as the tree takes it.
struct SettlingRows<'a> {
    engine: &'a Engine,
    segments: &'a Segments,
    walk: NewestWalk<'a>,
    only_deletions: bool,
    /// What an earlier merge has done already.
    begun: Option<&'a BegunMerge>,
    of: u64,
    count: u64,
    grants: Grants<'a>,
}

impl Rows for SettlingRows<'_> {
    fn next(&mut self, row: &mut ChangedRow) -> Result<bool> {
        let entry = loop {
            if self.count.is_multiple_of(COLLECT_BATCH as u64) {
                if self.engine.hardening.is_stopping() {
                    return Err(Error::closed());
                }
                self.grants.reach(self.walk.passed(), self.of);
            }
            self.count += 1;
            match self.walk.next()? {
                None => {
                    // There may have been few, or none.
                    self.grants.reach(1, 1);
                    return Ok(false);
                }
                Some(entry) if entry.shape.kind.is_put() && self.only_deletions => {}
                Some(entry) if self.begun.is_some_and(|begun| begun.has(entry.tree_key, entry.address)) => {}
                Some(entry) => break entry,
            }
        };
        let expiry = |expires_at| if planted(Bug::ExpirySettlesNot) { NEVER } else { expires_at };
        match entry.value() {
            _ if !entry.shape.kind.is_put() => row.set(entry.tree_key, None, NEVER),
            Some((expires_at, value)) => row.set(entry.tree_key, Some(value), expiry(expires_at)),
            None => {
                let bytes = entry.shape.bytes() as usize;
                let record = extent::read_record(self.segments, entry.address, bytes)?;
                row.set(entry.tree_key, Some(record.value()), expiry(record.expires_at()));
            }
        }
        Ok(true)
    }
}

impl Engine {
    /// Merges what was collected of a part of the log, which ends at `end` and counts for so many bytes, into the tree.
    pub(super) fn merge_newest(
        &self,
        segments: &Segments,
        newest: &Newest,
        end: Address,
        part_bytes: u64,
    ) -> Result<Merged> {
        let tree = &self.settled.tree;
        let merge = |threads| {
            let begun = tree.begun()?;
            let separators = newest.separators(threads);
            let intervals = separators.len() + 1;
            let share = (newest.count() / intervals as u64, part_bytes / intervals as u64);
            let rows = |number| {
                let (low, high) = interval(&separators, number);
                let walk = newest.walk_between(low, high)?;
                Ok(SettlingRows { begun: begun.as_ref(), ..self.settling_rows(segments, walk, share) })
            };
            let mut parts = (0..intervals).map(rows).collect::<Result<Vec<_>>>()?;
            tree.merge_in_parts(&mut parts, &separators, Some(end))
        };
        let is_full =
            |merged: &Result<_>| merged.as_ref().is_err_and(|error| error.kind() == ErrorKind::NoSpace);
        let threads = self.merging_threads();
        let mut merged = merge(threads);
        if threads > 1 && is_full(&merged) {
            // Several take more room than one before they give any back.
            merged = merge(1);
        }
        if !is_full(&merged) || !newest.has_deletions() {
            return merged;
        }
        let makes_room = !tree.is_empty();
        if makes_room {
            let rows = self.settling_rows(segments, newest.walk()?, (newest.count(), part_bytes));
            tree.merge_deletions(&mut SettlingRows { only_deletions: true, ..rows })?;
        }
        // What those keys had is still in the log, and settles no more but with what deleted it.
        self.settled.forgotten_to.fetch_max(end, Ordering::SeqCst);
        self.settled.deleted_to.store(end, Ordering::SeqCst);
        self.graves.look_at_unsettled();
        self.hardening.wake_keeper();
        if makes_room { merge(1) } else { merged }
    }

    /// The rows of a walk over about so many records, which count for so many bytes of log.
    fn settling_rows<'a>(
        &'a self,
        segments: &'a Segments,
        walk: NewestWalk<'a>,
        (of, bytes): (u64, u64),
    ) -> SettlingRows<'a> {
        let grants = self.settled.pace.begin(Stage::Merging, bytes);
        let (only_deletions, begun, count) = (false, None, 0);
        SettlingRows { engine: self, segments, walk, only_deletions, begun, of, count, grants }
    }

    /// How many merge side by side.
    pub(super) fn merging_threads(&self) -> usize {
        let bounds = &self.settled.bounds;
        let most = if self.segments.disk_is_full() { 1 } else { bounds.memory_bytes / BYTES_OF_ONE };
        usize::try_from(most).unwrap_or(usize::MAX).clamp(1, bounds.threads)
    }
}
