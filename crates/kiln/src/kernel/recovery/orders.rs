//! Whether the orders of tables have just those keys that have entries.
//!
//! Puts rely on it where they do not read what they replace ([`change`](crate::kernel::change)), so it is proved at each opening: every entry of a table
//! has its key in the order, so it is enough to count both. A checkpoint may have keys without entries, which came to be when its entries were already written. To ask
//! the hash index for each key costs a miss, and nearly all have one. So they are taken unasked, unless some are known to have gone:
//!
//! - what came to be since and is durable is in the log behind the checkpoint's end, and gets its entry from there,
//! - deleted keys, of which the checkpoint has a list, go with their entries,
//! - settled ones go with theirs ([`settled`](super::settled)),
//! - those that a crash took have none. Then the numbers differ, and all keys are asked, once.

use std::ops::Bound;

use super::{Recovery, Tombstone};
use crate::storage::epoch;
use crate::storage::hash_index;
use crate::storage::ordered_index::{LeafBatch, OrderedIndex};

impl Recovery<'_> {
    /// Has those keys of tables leave their orders that were taken unasked, and have no entry. Whether all that are left have one.
    pub(super) fn make_orders_exact(&self, tombstones: &[Tombstone]) -> bool {
        if self.orders_are_exact(tombstones) {
            return true;
        }
        if !self.has_unasked_keys {
            return false;
        }
        for object in self.objects.iter() {
            if let Some(ordered) = object.ordered() {
                self.remove_keys_without_entries(object.id, ordered);
                ordered.note_vacancy();
            }
        }
        self.orders_are_exact(tombstones)
    }

    /// Whether all keys of tables have entries. A key of a checkpoint that was asked for is taken for one that has if there is an entry
    /// that could be its own, and each entry has but one key: so it is enough to count.
    fn orders_are_exact(&self, tombstones: &[Tombstone]) -> bool {
        let (ordered, others): (Vec<_>, Vec<_>) =
            self.objects.iter().partition(|object| object.ordered().is_some());
        let in_order: u64 =
            ordered.iter().filter_map(|object| object.ordered()).map(|keys| keys.len() as u64).sum();
        if in_order == 0 {
            // Nothing to count, and there may be many maps' entries.
            return true;
        }
        let is_of_others = |tombstone: &&Tombstone| others.iter().any(|object| object.id == tombstone.object);
        let of_others = others.iter().map(|object| object.key_count.sum()).sum::<u64>()
            + tombstones.iter().filter(is_of_others).count() as u64;
        in_order + of_others == self.index.entry_count()
    }

    fn remove_keys_without_entries(&self, object: u32, ordered: &OrderedIndex) {
        let (mut batch, mut next, mut hashes) = (LeafBatch::new(), LeafBatch::new(), Vec::new());
        ordered.read_forward(&epoch::pin(), Bound::Unbounded, &mut batch);
        loop {
            hashes.clear();
            // Their cache misses overlap.
            for place in 0..batch.len() {
                let key = batch.get(place).unwrap_or_default();
                let hash = hash_index::hash_of(self.superblock.hash_seed, object, key);
                self.index.prefetch(hash);
                hashes.push(hash);
            }
            let pin = epoch::pin();
            for (place, &hash) in hashes.iter().enumerate() {
                if self.index.addresses_of(hash).next().is_none() {
                    ordered.remove(&pin, batch.get(place).unwrap_or_default());
                }
            }
            if !ordered.read_next(&pin, &batch, &mut next) {
                return;
            }
            std::mem::swap(&mut batch, &mut next);
        }
    }
}
