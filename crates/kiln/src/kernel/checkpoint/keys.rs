//! The last section of a checkpoint: the keys of tables, in their order.

use std::ops::Bound;

use super::Taking;
use crate::error::{Error, Result};
use crate::kernel::catalog::{CATALOG_OBJECT, Entry, decode_entry};
use crate::kernel::object::ObjectKind;
use crate::storage::epoch;
use crate::storage::ordered_index::LeafBatch;

impl Taking<'_> {
    /// Returns how many there are; nothing if they are of no use any more.
    pub(super) fn write_keys(&mut self) -> Result<Option<u64>> {
        let engine = self.engine;
        let (mut batch, mut next, mut count) = (LeafBatch::new(), LeafBatch::new(), 0);
        for id in self.tables() {
            let Some(ordered) = engine.objects.ordered(id) else {
                continue;
            };
            ordered.read_forward(&epoch::pin(), Bound::Unbounded, &mut batch);
            loop {
                for place in 0..batch.len() {
                    let key = batch.get(place).unwrap_or_default();
                    self.writer.add_key(id, key).map_err(|error| Error::io("writing a checkpoint", error))?;
                }
                count += batch.len() as u64;
                self.note_steps(batch.len() as u64);
                if !self.goes_on() {
                    return Ok(None);
                }
                if !ordered.read_next(&epoch::pin(), &batch, &mut next) {
                    break;
                }
                std::mem::swap(&mut batch, &mut next);
            }
        }
        Ok(Some(count))
    }

    /// About how many keys of a table are in its order.
    pub(super) fn key_count(&self, table: u32) -> u64 {
        let ordered = self.engine.objects.ordered(table);
        ordered.map_or(0, |ordered| ordered.len() as u64)
    }

    /// The tables that the catalog names before the end.
    pub(super) fn tables(&self) -> Vec<u32> {
        let catalog = self.cut.ledger.system_records().filter(|(object, ..)| *object == CATALOG_OBJECT);
        let entries = catalog.filter_map(|(_, key, value)| match decode_entry(key, value) {
            Some(Entry::Object(_, ObjectKind::Table, id, _) | Entry::Dropped(_, ObjectKind::Table, id)) => {
                Some(id)
            }
            _ => None,
        });
        entries.collect()
    }
}
