//! The rows of a leaf that a snapshot's walk has read together, as many at a time as overlap their cache misses well.
//!
//! What a snapshot sees does not change, so it makes no difference when a row is read; a transaction reads each when it is asked for
//! (`docs/decisions.md`, 26). Records are looked for in two ways, both of which end with a look at the record itself
//! ([`Engine::newest_put_at`](crate::kernel::engine::Engine::newest_put_at)):
//!
//! ```text
//!   leaf's hint ---------------> record      one cache miss, asked for a group of rows ahead
//!   key's bucket --> candidate -> record      where the hint is of no use; the leaf is given a new one
//! ```
//!
//! What neither way tells (what is on disk, deleted, settled or newer than the snapshot) is left to who asks for the row.

use super::Table;
use super::leaf_keys::LeafKeys;
use crate::kernel::handle::HasHandle;
use crate::kernel::leaf_images::VALUE_BYTES_MAX;
use crate::storage::epoch;
use crate::storage::ordered_index::BATCH_KEYS_MAX;
use crate::storage::record::{Address, RECORD_BYTES_USUAL, RecordView};

const _: () = assert!(BATCH_KEYS_MAX <= u32::BITS as usize);

/// Values of a leaf's rows.
#[derive(Debug, Default)]
pub(super) struct LeafRows {
    values: Vec<u8>,
    /// So many of these bytes are in use; the others are memory kept.
    used: usize,
    /// Where each value begins and ends in `values`.
    spans: [(u32, u32); BATCH_KEYS_MAX],
    /// One bit for each position whose value is there.
    present: u32,
    /// The records of positions below have been asked for.
    fetched: usize,
    /// Positions below have been looked at.
    end: usize,
}

impl LeafRows {
    /// Forgets the rows; the next ones are another leaf's.
    #[inline]
    pub(super) fn clear(&mut self) {
        (self.used, self.present, self.fetched, self.end) = (0, 0, 0, 0);
    }

    /// The rows of the positions below are elsewhere.
    pub(super) fn set_read(&mut self, end: usize) {
        self.present = (1_u64 << end).wrapping_sub(1) as u32;
        (self.fetched, self.end) = (end, end);
    }

    pub(super) fn memory_bytes(&self) -> usize {
        self.values.capacity()
    }

    /// True if the row at a position was read.
    #[inline]
    pub(super) fn has(&self, position: usize) -> bool {
        position < BATCH_KEYS_MAX && self.present >> position & 1 == 1
    }

    /// The value of a row that was read.
    #[inline]
    pub(super) fn value(&self, position: usize) -> &[u8] {
        let (begin, end) = self.spans.get(position).copied().unwrap_or_default();
        self.values.get(begin as usize..end as usize).unwrap_or_default()
    }

    #[inline(always)]
    fn take(&mut self, position: usize, key_bytes: usize, view: &RecordView<'_>) -> bool {
        let value_bytes = view.shape().value_bytes;
        if value_bytes > VALUE_BYTES_MAX {
            return false;
        }
        let (begin, end) = (self.used, self.used + value_bytes);
        if self.values.len() < end {
            self.values.resize(end.next_power_of_two(), 0);
        }
        view.copy_value(key_bytes, &mut self.values[begin..end]);
        self.used = end;
        self.spans[position] = (begin as u32, end as u32);
        self.present |= 1 << position;
        true
    }
}

impl LeafKeys {
    /// The value of the row at a position, which was [read](LeafRows::has).
    #[inline]
    pub(super) fn row(&self, position: usize) -> &[u8] {
        match self.batch.value(position) {
            Some(value) => value,
            None => self.rows.value(position),
        }
    }

    /// Has the processor fetch the records of the keys up to a position, where the leaf has hints.
    pub(super) fn fetch_hinted(&mut self, table: &Table, end: usize) {
        let end = end.min(self.inside);
        let (log, hints) = (&table.handle().engine.log, table.ordered().hints(&self.batch));
        for position in self.rows.fetched..end {
            log.prefetch(hints.get(position), RECORD_BYTES_USUAL);
        }
        self.rows.fetched = self.rows.fetched.max(end);
    }

    /// Reads the rows up to a position, as of a version, as far as that can be done at once. If one of them is on disk, all up to
    /// `cold_end` are read ahead that are. Says how many were.
    pub(super) fn read_rows(&mut self, table: &Table, end: usize, cold_end: usize, version_max: u64) -> u64 {
        let (begin, end) = (self.rows.end, end.min(self.inside));
        if begin >= end {
            return 0;
        }
        self.fetch_hinted(table, end);
        let mut missed = 0;
        {
            let _pin = epoch::pin();
            let hints = table.ordered().hints(&self.batch);
            let (engine, object) = (&table.handle().engine, table.handle().id);
            for position in begin..end {
                let key = self.batch.get(position).unwrap_or_default();
                let view = engine.newest_put_at(hints.get(position), object, key, version_max);
                if !view.is_some_and(|view| self.rows.take(position, key.len(), &view)) {
                    missed |= 1 << position;
                }
            }
        }
        self.rows.end = end;
        match missed {
            0 => 0,
            _ => self.read_missed(table, (begin, end, cold_end), missed, version_max),
        }
    }

    /// Reads those of the rows whose hints were of no use, where the hash index has them.
    #[inline(never)]
    fn read_missed(
        &mut self,
        table: &Table,
        (begin, end, cold_end): (usize, usize, usize),
        missed: u32,
        version_max: u64,
    ) -> u64 {
        self.fetch_buckets(table, end);
        let (engine, object) = (&table.handle().engine, table.handle().id);
        let is_missed = |position: &usize| missed >> *position & 1 == 1;
        let mut candidates: [Address; BATCH_KEYS_MAX] = [0; BATCH_KEYS_MAX];
        let (mut is_left, mut is_without_notes) = (false, false);
        {
            let _pin = epoch::pin();
            for position in (begin..end).filter(is_missed) {
                let hash = self.hashes[position];
                candidates[position] =
                    engine.fetch_candidate(engine.index.bucket_of(hash), hash, RECORD_BYTES_USUAL).address;
            }
            for position in (begin..end).filter(is_missed) {
                let (key, hash) = (self.batch.get(position).unwrap_or_default(), self.hashes[position]);
                let put_at = |address| {
                    let view = engine.newest_put_at(address, object, key, version_max);
                    view.map(|view| (address, view))
                };
                // A bucket may have more that look like the key's, and some of them in its overflow.
                let found = put_at(candidates[position])
                    .or_else(|| engine.index.find(engine.index.bucket_of(hash), hash, put_at));
                match found.filter(|(_, view)| self.rows.take(position, key.len(), view)) {
                    Some((address, _)) => table.ordered().give_hint(&self.batch, position, address),
                    None => {
                        is_left = true;
                        is_without_notes |= engine.lacks_notes(candidates[position]);
                    }
                }
            }
        }
        if is_without_notes {
            engine.ask_for_notes();
        }
        if is_left { self.fetch_records(table, end, cold_end, version_max) } else { 0 }
    }
}

#[cfg(test)]
mod tests {
    use std::ops::Bound;
    use std::sync::Arc;

    use super::*;
    use crate::device::SimulatedDevice;
    use crate::storage::ordered_index::LeafBatch;
    use crate::storage::record::NO_ADDRESS;
    use crate::{Options, Result};

    /// One by one each waits for the disk: a scan beside writers, which are faster than the disk answers, then finds ever more of its rows there.
    #[test]
    fn rows_that_have_newer_versions_in_memory_are_read_ahead_where_a_snapshot_sees_older_ones_on_disk()
    -> Result<()> {
        const ROWS: u32 = 1_000;
        /// Behind the first leaf it reads what is left in one piece.
        const FEW: u32 = 32;
        let options = Options::new().background(false).memory(2 << 20).segment_bytes(64 << 10);
        let db = options.open_on(Arc::new(SimulatedDevice::new(1)))?;
        let (table, others) = (db.table("table")?, db.map("others")?);
        let put_all = |value: u8| -> Result<()> {
            (0..ROWS).try_for_each(|row| {
                db.put(&table, row.to_be_bytes(), [value; 100]).map(|put| put.forget())
            })?;
            db.persist()
        };
        put_all(1)?;
        let snapshot = db.snapshot()?;
        // The log has 1 MiB of memory: the first ones leave it, and the second ones do not.
        let put_others = |numbers: std::ops::Range<u32>| -> Result<()> {
            numbers
                .map(|number| db.put(&others, number.to_be_bytes(), [0; 1_000]))
                .try_for_each(|put| put.map(|put| put.forget()))?;
            db.persist()
        };
        put_others(0..600)?;
        put_all(2)?;
        put_others(600..1_200)?;
        // Who reads a record itself does not find it in the cache.
        let before = db.statistics().cache_hits;
        let mut rows = snapshot.range::<[u8; 4]>(&table, ..).limit(FEW as usize);
        let mut count = 0;
        while let Some((_, value)) = rows.next_row()? {
            assert_eq!(value, [1; 100]);
            count += 1;
        }
        assert_eq!(count, FEW);
        let found = db.statistics().cache_hits - before;
        assert!(found > u64::from(FEW) * 9 / 10, "{found} of {FEW}");
        Ok(())
    }

    /// Each of those that are not found by their hint is looked for by itself, which takes as long as several others.
    #[test]
    fn every_row_in_memory_gets_a_hint_also_if_its_bucket_overflows() -> Result<()> {
        let options = Options::new().background(false).memory(8 << 20).segment_bytes(1 << 20);
        let db = options.open_on(Arc::new(SimulatedDevice::new(1)))?;
        let table = db.table("table")?;
        for number in 0..20_000_u32 {
            db.put(&table, number.to_be_bytes(), [7; 8])?.fast();
        }
        assert_eq!(db.snapshot()?.range::<[u8; 4]>(&table, ..).count(), 20_000);
        let (engine, index) = (db.engine(), table.ordered());
        let (mut rows, mut overflowing, mut next) = (0, 0, Some(Bound::Unbounded));
        let mut batch = LeafBatch::new();
        while let Some(from) = next {
            index.read_forward(&epoch::pin(), from.as_ref().map(Vec::as_slice), &mut batch);
            for position in 0..batch.len() {
                let hash = engine.hash(table.handle().id, batch.get(position).unwrap_or_default());
                let first = engine.index.first_candidate(engine.index.bucket_of(hash), hash);
                overflowing += usize::from(first.is_none());
                assert_ne!(index.hints(&batch).get(position), NO_ADDRESS, "{:?}", batch.get(position));
                rows += 1;
            }
            next = batch.next().map(|bound| bound.map(<[u8]>::to_vec));
        }
        assert_eq!(rows, 20_000);
        assert_ne!(overflowing, 0, "nothing was to be seen by this test");
        Ok(())
    }
}
