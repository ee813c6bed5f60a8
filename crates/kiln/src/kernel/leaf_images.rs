//! Copying leaves: which rows go into a leaf's image, and that whoever changes one of them hears of it.
//!
//! ```text
//!   range of a snapshot   reads a leaf's rows one by one, often ---> asks
//!   keeper                finds the records, notes in each that there may be an image
//!                         quiesces: who supersedes one from now on sees that note
//!                         copies those that nobody has superseded yet ---> the leaf has an image
//!   committer             supersedes a record with the note ---> the leaf has none any more
//! ```
//!
//! A committer reads and writes its record's word without a locked instruction, and is pinned from then on until it has taken the image away. So who was at it
//! when the note was made has finished at the quiescence, and its successor is seen; and who comes later sees the note.
//!
//! Rows that a snapshot has seen are of closed versions, and are not changed in place.
//!
//! Rows that have settled between the leaf's fences, and were not written since, go with the leaf's own if they are few. The image is *whole* then: a range need not look at the tree there.

use std::ops::Bound;

use super::engine::Engine;
use crate::planted::{Bug, planted};
use crate::storage::epoch;
use crate::storage::leaf_images::{Asked, NEVER_WHOLE, RowEnds, Validity};
use crate::storage::ordered_index::{BATCH_KEYS_MAX, ImageWord, ImagesAsOf, LeafBatch};
use crate::storage::record::{Address, NEVER, NO_ADDRESS, RECORD_BYTES_USUAL};
use crate::storage::tree::{Cursor, Direction, OBJECT_BYTES, tree_interval};

/// Longer values are read where they are, which takes no longer than copying them.
pub(crate) const VALUE_BYTES_MAX: usize = 1 << 10;
/// So many leaves share a quiescence.
const LEAVES_AT_ONCE: usize = 256;

/// A leaf that is being copied.
struct Begun {
    word: ImageWord,
    leaf_version: u64,
    /// Of its keys' records.
    addresses: Vec<Address>,
}

/// The rows that have settled in a leaf's interval, and were not written since. They are as they are, and all that there are, as long as the leaf has its version and
/// the index has unlinked so many leaves: a row that settles was the leaf's, and who writes one that has settled changes the leaf.
struct Beside {
    rows: Vec<(Vec<u8>, Vec<u8>)>,
    whole_at: u64,
}

/// Some may have that are not told.
const UNKNOWN_BESIDE: Beside = Beside { rows: Vec::new(), whole_at: NEVER_WHOLE };

impl Engine {
    /// Images for who reads as of a version.
    #[inline]
    pub(crate) fn images_as_of(&self, version: u64, rows_max: usize) -> ImagesAsOf<'_> {
        ImagesAsOf { images: &self.leaf_images, log: &self.log, version, rows_max }
    }

    /// For a range that has read a leaf often: has it copied soon. The caller is not pinned.
    #[cold]
    pub(crate) fn ask_for_image(&self, leaf: Asked) {
        let is_first = self.leaf_images.ask(leaf);
        match self.hardening.has_background() {
            true if is_first => self.hardening.wake_keeper(),
            true => {}
            // Whoever was the first may have left it to others, since they divided the memory.
            false if !is_first && planted(Bug::CopyingEnds) => {}
            false => {
                self.share_for_good();
                self.copy_leaves();
            }
        }
    }

    /// Copies the leaves that were asked for. The caller is not pinned.
    pub(crate) fn copy_leaves(&self) {
        // While the memory is being divided images may not have theirs yet.
        if !self.leaf_images.is_asked() || self.shares.is_wanted() {
            return;
        }
        let asked = self.leaf_images.take_asked();
        let (mut batch, mut rows) = (LeafBatch::new(), Vec::new());
        for asked in asked.chunks(LEAVES_AT_ONCE) {
            let begun: Vec<_> =
                asked.iter().map(|asked| (*asked, self.begin_image(*asked, &mut batch))).collect();
            if !planted(Bug::ImageWithoutQuiescence) {
                epoch::quiesce();
            }
            for (asked, begun) in begun {
                let made = begun.and_then(|begun| self.make_image(asked, &begun, &mut batch, &mut rows));
                if made.is_none() {
                    self.objects.ordered(asked.object).inspect(|ordered| ordered.refuse_image(asked.leaf));
                }
            }
        }
    }

    /// Notes in the records of a leaf that they may be copied, if all of them can be.
    fn begin_image(&self, asked: Asked, batch: &mut LeafBatch) -> Option<Begun> {
        // Where there is no room it would all be for nothing, and the tree may have to be read from disk for it.
        if self.leaf_images.bytes() == 0 {
            return None;
        }
        let pin = epoch::pin();
        let ordered = self.objects.ordered(asked.object)?;
        let word = ordered.begin_image(asked.leaf)?;
        ordered.read_whole(&pin, asked.leaf, batch)?;
        let hints = ordered.hints(batch);
        (0..batch.len()).for_each(|position| self.log.prefetch(hints.get(position), RECORD_BYTES_USUAL));
        let mut views = Vec::with_capacity(BATCH_KEYS_MAX);
        for position in 0..batch.len() {
            let key = batch.get(position).unwrap_or_default();
            let put_at = |address| {
                let view = self.newest_put_at(address, asked.object, key, asked.version)?;
                (view.shape().value_bytes <= VALUE_BYTES_MAX).then_some((address, view))
            };
            let hash = self.hash(asked.object, key);
            let found = put_at(hints.get(position))
                .or_else(|| self.index.find(self.index.bucket_of(hash), hash, put_at));
            views.push(found?);
        }
        views.iter().for_each(|(_, view)| view.note_image());
        let addresses = views.iter().map(|&(address, _)| address).collect::<Vec<_>>();
        (!addresses.is_empty()).then_some(Begun { word, leaf_version: batch.read().version(), addresses })
    }

    /// Gives a leaf its image, unless one of its rows has changed, or its keys have. The caller is not pinned.
    fn make_image(
        &self,
        asked: Asked,
        begun: &Begun,
        batch: &mut LeafBatch,
        rows: &mut Vec<u8>,
    ) -> Option<()> {
        let Begun { word, leaf_version, addresses } = begun;
        let ordered = self.objects.ordered(asked.object)?;
        ordered
            .read_whole(&epoch::pin(), asked.leaf, batch)
            .filter(|()| batch.read().version() == *leaf_version)?;
        let beside = self.settled_beside(asked.object, batch).unwrap_or(UNKNOWN_BESIDE);
        rows.clear();
        let mut ends: Vec<RowEnds> = Vec::with_capacity(BATCH_KEYS_MAX);
        let (mut settled, mut version_max, mut own) = (beside.rows.iter().peekable(), 0, 0);
        let mut add = |key: &[u8], value: &[u8]| {
            rows.extend_from_slice(key);
            let key_end = rows.len();
            rows.extend_from_slice(value);
            ends.push((key_end as u32, rows.len() as u32));
            ends.len() - 1
        };
        let (pin, mut own_value) = (epoch::pin(), Vec::new());
        for position in 0..=addresses.len() {
            let key = batch.get(position);
            while let Some((settled, value)) =
                settled.next_if(|(settled, _)| key.is_none_or(|key| &settled[..] < key))
            {
                add(settled, value);
            }
            let (Some(key), Some(&address)) = (key, addresses.get(position)) else { break };
            let view = self.newest_put_at(address, asked.object, key, asked.version)?;
            version_max = version_max.max(view.version());
            view.value_into(key.len(), &mut own_value);
            own |= 1 << add(key, &own_value);
        }
        drop(pin);
        let address_min = addresses.iter().copied().min().unwrap_or(NO_ADDRESS);
        let (leaf_version, whole_at) = (*leaf_version, beside.whole_at);
        let validity = Validity { leaf_version, version_max, address_min, whole_at, own };
        let place = self.leaf_images.store(validity, &ends, rows)?;
        ordered.give_image(asked.leaf, *word, place);
        Some(())
    }

    /// What has settled in the interval of the leaf whose keys these are; nothing if it is more than goes into an image, or is not known. The caller is not pinned.
    fn settled_beside(&self, object: u32, batch: &LeafBatch) -> Option<Beside> {
        let (ordered, tree) = (self.objects.ordered(object)?, &self.settled.tree);
        let whole_at = ordered.unlinkings();
        let (low, high) = ordered.interval(&epoch::pin(), batch.get(0)?);
        if ordered.unlinkings() != whole_at {
            return None;
        }
        // A row that has left the leaf before its keys were read was in the newest root before that. Of the interval it has what it will have: an older root might still have
        // what was deleted in a neighbour's interval, before the leaf took it over.
        let root = tree.root();
        let (from, to) = tree_interval(object, &low, high.as_deref());
        let (mut rows, mut position) = (Vec::new(), 0);
        let mut cursor = Cursor::new(tree, root);
        cursor.seek(Bound::Included(&from), Direction::Forwards).ok()?;
        while let Some(key) = cursor.key().filter(|&key| key < &to[..]) {
            let key = key.get(OBJECT_BYTES..)?.to_vec();
            while batch.get(position).is_some_and(|of_leaf| of_leaf < &key[..]) {
                position += 1;
            }
            // What was written anew is not what has settled.
            if batch.get(position) != Some(&key[..]) {
                let (_, _, place) = cursor.entry()?;
                let place = place.filter(|place| place.len() <= VALUE_BYTES_MAX)?;
                if cursor.expires_at() != NEVER || batch.len() + rows.len() == BATCH_KEYS_MAX {
                    return None;
                }
                rows.push((key, cursor.value_at(place).to_vec()));
            }
            cursor.step().ok()?;
        }
        Some(Beside { rows, whole_at })
    }

    /// A record that may be in its leaf's image has a successor. The caller holds the key's bucket and is pinned.
    #[cold]
    pub(super) fn forget_image(&self, address: Address) {
        if planted(Bug::ImageNotForgotten) {
            return;
        }
        let Some(view) = self.log.view(address) else { return };
        let Some(ordered) = self.objects.ordered(view.shape().object) else { return };
        let mut key = Vec::new();
        view.key_into(&mut key);
        if ordered.forget_image(&epoch::pin(), &key) {
            self.leaf_images.note_outdated();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::device::SimulatedDevice;
    use crate::{Kiln, Options, Table};

    fn read_often(db: &Kiln, table: &Table) {
        for _ in 0..40 {
            assert_eq!(db.snapshot().unwrap().range::<&[u8]>(table, ..).count(), 64);
        }
    }

    /// Without background threads, the first who asked for an image left that to the next if the memory was being divided just then, and the
    /// next to the first, so that no leaf was ever copied again.
    #[test]
    fn leaves_that_were_asked_for_while_memory_is_divided_are_copied_for_who_asks_next() {
        let options = Options::new().background(false).segment_bytes(64 << 10).memory(2 << 20);
        let db = options.open_on(Arc::new(SimulatedDevice::new(1))).unwrap();
        let table = db.table("table").unwrap();
        for key in 0..64_u32 {
            db.put(&table, key.to_be_bytes(), b"value").unwrap().forget();
        }
        let object = db.engine().objects.iter().find(|object| object.name() == "table").unwrap().id;
        // What is left behind by who asks, and does not copy.
        assert!(db.engine().leaf_images.ask(Asked { object, leaf: 0, version: 0 }));
        read_often(&db, &table);
        assert_ne!(db.statistics().leaves_copied, 0);
    }
}
