//! What opening has to know of single records that may be anywhere in the log. It is read here, once the indexes are complete and before anything is written:
//! what lies before a checkpoint's end is checked only as far as it is left in memory, so a damaged record may be met here first, and a database that is
//! refused is as it was.

use super::Recovery;
use crate::error::Result;
use crate::kernel::catalog::{self, CATALOG_OBJECT, Entry};
use crate::kernel::losses::{LOSSES_OBJECT, loss_key};
use crate::kernel::object::ObjectState;
use crate::storage::extent;
use crate::storage::hash_index;
use crate::storage::record::{HEADER_BYTES, NO_ADDRESS, OwnedRecord};
use crate::sync::atomic::Ordering;

impl Recovery<'_> {
    /// Hides the rows of tables that were loaded in bulk from the snapshots that have names and are older than the tables. Of all other rows none has settled
    /// that one of these must not see.
    pub(super) fn hide_loaded(&self) -> Result<()> {
        let oldest = self.told.heard.snapshots.values().map(|named| named.version).min();
        let Some(oldest) = oldest.filter(|_| !self.tree.is_empty()) else { return Ok(()) };
        let loaded = self.tree.loaded();
        let may_be_loaded = |object: &&ObjectState| object.id <= loaded && object.ordered().is_some();
        for object in self.objects.iter().filter(may_be_loaded) {
            // All snapshots are older than the newest record.
            let since = self.known_since(object, oldest)?.unwrap_or(self.newest_version);
            object.loaded_at.store(since, Ordering::Relaxed);
        }
        Ok(())
    }

    /// The version since which the catalog says that there is this object, or was; of one that is older than `oldest`, a version that is not newer than that.
    fn known_since(&self, object: &ObjectState, oldest: u64) -> Result<Option<u64>> {
        let mut since = None;
        for key in [object.name().as_bytes(), &catalog::dropped_key(object.id)] {
            let is_of_object = |record: &&OwnedRecord| {
                let entry = catalog::decode_entry(key, record.value());
                matches!(entry, Some(Entry::Object(_, _, id, _) | Entry::Dropped(_, _, id)) if id == object.id)
            };
            let records = self.records_of(CATALOG_OBJECT, key, oldest)?;
            let oldest_of_object = records.iter().filter(is_of_object).map(|record| record.version).min();
            since = since.into_iter().chain(oldest_of_object).min();
        }
        Ok(since)
    }

    /// Reads what has to be read before these losses can be recorded: whatever the index may have of them.
    pub(super) fn look_at_losses(&self, firsts: impl Iterator<Item = u64>) -> Result<()> {
        for first in firsts {
            self.records_of(LOSSES_OBJECT, &loss_key(first), u64::MAX)?;
        }
        Ok(())
    }

    /// A key's records in the log, the newest first, up to one that is not newer than a version. All that may be its newest are read.
    fn records_of(&self, object: u32, key: &[u8], version: u64) -> Result<Vec<OwnedRecord>> {
        let hash = hash_index::hash_of(self.superblock.hash_seed, object, key);
        let mut records = Vec::new();
        for newest in self.index.addresses_of(hash) {
            let mut address = newest;
            while address != NO_ADDRESS && address >= self.superblock.begin {
                let record = extent::read_record(self.segments, address, HEADER_BYTES)?;
                if record.shape.object != object || record.key() != key {
                    break;
                }
                address = if record.version > version { record.previous } else { NO_ADDRESS };
                records.push(record);
            }
        }
        Ok(records)
    }
}

#[cfg(test)]
#[path = "lookups_tests.rs"]
mod tests;
