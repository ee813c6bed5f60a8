//! What a walk does about the rows that come next.

use super::{ROWS_AHEAD_MAX, Walk};
use crate::kernel::handle::HasHandle;
use crate::objects::Table;
use crate::storage::leaf_images::Asked;
use crate::storage::ordered_index::BATCH_KEYS_MAX;

impl Walk {
    /// Has the processor fetch what the next rows take.
    pub(super) fn look_ahead(&mut self, table: &Table) {
        if self.leaf.batch.has_values() {
            self.look_at = self.leaf.inside;
            let left = self.rows_left.saturating_sub(self.leaf.inside - self.position);
            if left > 0 {
                table.ordered().reader(self.images(table, left)).fetch_behind(&self.leaf.batch);
            }
            return;
        }
        let end_of = |rows: usize| self.position + rows.min(self.rows_left);
        let (records_end, buckets_end) = (end_of(self.rows_ahead), end_of(2 * self.rows_ahead));
        let is_long = self.rows_ahead == ROWS_AHEAD_MAX;
        let hinted_end = end_of(if is_long { BATCH_KEYS_MAX } else { 2 * self.rows_ahead });
        let cold_end = if is_long { end_of(BATCH_KEYS_MAX) } else { records_end };
        if is_long && buckets_end > self.leaf.inside && !self.next_is_read {
            self.read_next(table);
        }
        if self.in_groups {
            self.read_ahead(table, hinted_end, records_end, cold_end);
            return;
        }
        self.leaf.fetch_records(table, records_end, cold_end, self.version_max);
        self.leaf.fetch_buckets(table, buckets_end);
        if self.next_is_read {
            let in_next = |end: usize| end.saturating_sub(self.leaf.inside);
            self.next.fetch_records(table, in_next(records_end), in_next(cold_end), self.version_max);
            self.next.fetch_buckets(table, in_next(buckets_end));
        }
        // Keys without a row are passed without being counted: no further than what has been looked after.
        self.look_at = records_end.min(self.position + self.rows_ahead / 2);
        self.rows_ahead = ROWS_AHEAD_MAX;
    }

    /// Reads the next rows, and has the processor fetch those that come then.
    fn read_ahead(&mut self, table: &Table, fetched_end: usize, end: usize, cold_end: usize) {
        self.leaf.fetch_hinted(table, fetched_end);
        if self.next_is_read {
            self.next.fetch_hinted(table, fetched_end.saturating_sub(self.leaf.inside));
        }
        let count = end.min(self.leaf.inside) - self.position;
        let reads = self.leaf.read_rows(table, end, cold_end, self.version_max);
        self.paid.add(reads, count);
        let (engine, read) = (&table.handle().engine, self.leaf.batch.read());
        if table.ordered().count_rows_read(
            &self.leaf.batch,
            count,
            &engine.images_as_of(self.version_max, self.rows_left),
        ) {
            let (object, leaf) = (table.handle().id, read.leaf());
            engine.ask_for_image(Asked { object, leaf, version: self.version_max });
        }
        self.look_at = end;
        self.rows_ahead = ROWS_AHEAD_MAX;
    }
}
