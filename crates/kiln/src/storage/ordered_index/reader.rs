//! How leaves are read into batches: keys, or rows with their values, from the leaf's [image](super::images).
//!
//! An image takes three cache misses one after the other: the leaf's version and its image's word, then the image. So each is fetched as soon as it
//! is known where it is:
//!
//! ```text
//!   leaf that is read | the next one        | the one after it
//!   copied            | image is fetched    | version and word are fetched
//! ```

use std::ops::{Bound, Range};

use crate::planted::{Bug, planted};
use crate::storage::epoch::Pin;

use super::batch::{LeafBatch, Place};
use super::images::ImagesAsOf;
use super::inner::Target;
use super::key::{KeyRef, Probe};
use super::{Leaf, OrderedIndex, Step, retry};

/// Where a leaf's keys begin, and where the next leaf's do, if there is one.
pub(super) type Interval = (Vec<u8>, Option<Vec<u8>>);

/// Reads leaves of an index.
#[derive(Clone, Copy)]
pub(crate) struct Reader<'i> {
    index: &'i OrderedIndex,
    images: Option<ImagesAsOf<'i>>,
}

impl OrderedIndex {
    /// For who wants rows' values where they are at hand, as of a version.
    pub(crate) fn reader<'i>(&'i self, images: Option<ImagesAsOf<'i>>) -> Reader<'i> {
        Reader { index: self, images }
    }

    /// As [`Reader::read_forward`], of keys alone.
    pub(crate) fn read_forward(&self, pin: &Pin, from: Bound<&[u8]>, batch: &mut LeafBatch) {
        self.reader(None).read_forward(pin, from, batch);
    }

    /// As [`Reader::read_next`], of keys alone.
    pub(crate) fn read_next(&self, pin: &Pin, batch: &LeafBatch, next: &mut LeafBatch) -> bool {
        self.reader(None).read_next(pin, batch, next)
    }

    /// From where, and up to where, the leaf of this key has keys.
    pub(crate) fn interval(&self, pin: &Pin, key: &[u8]) -> Interval {
        retry(|| self.try_interval(pin, &Probe::new(key))).1
    }

    /// The same with the leaf.
    pub(super) fn try_interval(&self, pin: &Pin, probe: &Probe<'_>) -> Option<(Leaf<'_>, Interval)> {
        let (mut low, mut high): (Option<KeyRef<'_>>, Option<KeyRef<'_>>) = (None, None);
        let leaf = self.descend(pin, &Target::At(*probe), |step| {
            let separator = |index| step.inner.slots.key(pin, step.version, index);
            if step.index > 0 {
                low = Some(separator(step.index - 1)?);
            }
            if step.index < step.inner.slots.count() {
                high = Some(separator(step.index)?);
            }
            Some(())
        })?;
        Some((leaf, (low.map(KeyRef::to_vec).unwrap_or_default(), high.map(KeyRef::to_vec))))
    }
}

impl Reader<'_> {
    /// Reads from one leaf the keys that follow a bound, in ascending order. The batch covers the interval
    /// from the bound up to, but not including, the leaf's upper fence, which is where [`LeafBatch::next`]
    /// continues (`Included`). A batch may be empty though others follow.
    pub(crate) fn read_forward(&self, pin: &Pin, from: Bound<&[u8]>, batch: &mut LeafBatch) {
        let target = match from {
            Bound::Unbounded => Target::First,
            Bound::Included(key) | Bound::Excluded(key) => Target::At(Probe::new(key)),
        };
        batch.start(true);
        retry(|| {
            let (mut fence, mut place): (Option<KeyRef<'_>>, _) = (None, None);
            let unlinkings = self.index.unlinkings();
            let leaf = self.index.descend(pin, &target, |step| {
                place = Some(step.place());
                self.fetch_leaf(&step, true);
                if step.index < step.inner.slots.count() {
                    fence = Some(step.inner.slots.key(pin, step.version, step.index)?);
                }
                Some(())
            })?;
            let begin = match (&target, from) {
                (Target::At(probe), Bound::Included(_)) => leaf.slots.search(pin, leaf.version, probe)?.0,
                (Target::At(probe), _) => {
                    let (below, equal) = leaf.slots.search(pin, leaf.version, probe)?;
                    below + usize::from(equal)
                }
                _ => 0,
            };
            self.fill(pin, &leaf, (unlinkings, from, begin..leaf.slots.count()), (fence, place), batch)
        });
    }

    /// Reads from one leaf the keys that precede a bound, in descending order. The batch covers the interval
    /// from the leaf's lower fence, which is included, up to the bound; [`LeafBatch::next`] continues below
    /// that fence (`Excluded`). A batch may be empty though others follow.
    pub(crate) fn read_backward(&self, pin: &Pin, from: Bound<&[u8]>, batch: &mut LeafBatch) {
        let target = match from {
            Bound::Unbounded => Target::Last,
            Bound::Included(key) => Target::At(Probe::new(key)),
            Bound::Excluded(key) => Target::Below(Probe::new(key)),
        };
        batch.start(false);
        retry(|| {
            let (mut fence, mut place): (Option<KeyRef<'_>>, _) = (None, None);
            let unlinkings = self.index.unlinkings();
            let leaf = self.index.descend(pin, &target, |step| {
                place = Some(step.place());
                self.fetch_leaf(&step, false);
                if step.index > 0 {
                    fence = Some(step.inner.slots.key(pin, step.version, step.index - 1)?);
                }
                Some(())
            })?;
            let end = match &target {
                Target::At(probe) => {
                    let (below, equal) = leaf.slots.search(pin, leaf.version, probe)?;
                    below + usize::from(equal)
                }
                Target::Below(probe) => leaf.slots.search(pin, leaf.version, probe)?.0,
                _ => leaf.slots.count(),
            };
            self.fill(pin, &leaf, (unlinkings, from, 0..end), (fence, place), batch)
        });
    }

    /// Reads into `next` the batch that follows `batch`, in its direction; false if there is none.
    pub(crate) fn read_next(&self, pin: &Pin, batch: &LeafBatch, next: &mut LeafBatch) -> bool {
        if self.read_sibling(pin, batch, next).is_some() {
            return true;
        }
        let Some(fence) = batch.next() else { return false };
        match batch.is_forward() {
            true => self.read_forward(pin, fence, next),
            false => self.read_backward(pin, fence, next),
        }
        true
    }

    /// As [`Self::read_next`], if the next leaf hangs on the same inner node, with a sibling behind it so that this node gives
    /// the whole interval, and if the node is as it was. Then it is responsible for what it was when somebody came down to
    /// it, and the intervals between its separators are exactly what they say.
    fn read_sibling(&self, pin: &Pin, batch: &LeafBatch, next: &mut LeafBatch) -> Option<()> {
        let Place { inner: number, version, index } = batch.place()?;
        let inner = self.index.inners.get(number)?;
        // The leaf, the one behind it, and the separator between them.
        let (index, behind, fence) = match batch.is_forward() {
            true => (index + 1, index + 2, index + 1),
            false => (index.checked_sub(1)?, index.checked_sub(2)?, index - 2),
        };
        let fence = inner.slots.key(pin, version, fence)?;
        let (child, behind_id) = (inner.child(index), inner.child(behind));
        let slots = self.index.leaves.get(child.number())?;
        let leaf_version = slots.version()?;
        let unlinkings = self.index.unlinkings();
        inner.slots.check(version)?;
        let leaf = Leaf { number: child.number(), slots, version: leaf_version };
        if self.index.find_image(self.images.as_ref(), &leaf).is_none()
            && let Some(behind) = self.index.leaves.get(behind_id.number())
        {
            behind.prefetch();
            if self.images.is_some() {
                self.index.fetch_hints(behind_id.number());
            }
        }
        next.start(batch.is_forward());
        let place = Place { inner: number, version, index };
        let all = (unlinkings, Bound::Unbounded, 0..slots.count());
        self.fill(pin, &leaf, all, (Some(fence), Some(place)), next)
    }

    /// Has the processor fetch what the next batches will be copied from, if it is images.
    pub(crate) fn fetch_behind(&self, batch: &LeafBatch) {
        let (Some(images), Some(place)) = (&self.images, batch.place()) else { return };
        if let Some(next) = self.leaf_behind(place, batch.is_forward(), 1) {
            self.index.fetch_image(images, next);
        }
        if let Some(next) = self.leaf_behind(place, batch.is_forward(), 2) {
            self.index.fetch_image_word(next);
        }
    }

    /// The leaf so many places behind that one, if it hangs on the same inner node and that has not changed in the meantime.
    #[inline]
    fn leaf_behind(&self, place: Place, forward: bool, places: usize) -> Option<u32> {
        let inner = self.index.inners.get(place.inner)?;
        let index = if forward { place.index + places } else { place.index.checked_sub(places)? };
        (index <= inner.slots.count()).then(|| inner.child(index).number())
    }

    /// Has the processor fetch what it takes to begin within a leaf that has an image.
    #[inline]
    fn fetch_leaf(&self, step: &Step<'_>, forward: bool) {
        let child = step.inner.child(step.index);
        let Some(images) = self.images.filter(|_| child.is_leaf()) else { return };
        if let Some(slots) = self.index.leaves.get(child.number()) {
            slots.prefetch_heads();
            self.index.fetch_image_word(child.number());
        }
        if images.rows_max > 1
            && let Some(behind) = self.leaf_behind(step.place(), forward, 1)
        {
            self.index.fetch_image_word(behind);
        }
    }

    #[inline]
    pub(super) fn fill(
        &self,
        pin: &Pin,
        leaf: &Leaf<'_>,
        (unlinkings, from, positions): (u64, Bound<&[u8]>, Range<usize>),
        (fence, place): (Option<KeyRef<'_>>, Option<Place>),
        batch: &mut LeafBatch,
    ) -> Option<()> {
        match self.index.copy_image(self.images.as_ref(), leaf, (unlinkings, positions.clone()), batch) {
            Some(rows) => {
                // The positions are those of the leaf at its version, which the image is of, unless it was just being changed.
                if !planted(Bug::ImageOfChangingLeaf) {
                    leaf.slots.check(leaf.version)?;
                }
                batch.set_image(leaf, from, rows, fence, place);
                Some(())
            }
            None => {
                if self.images.is_some() {
                    self.index.fetch_hints(leaf.number);
                }
                batch.fill(pin, leaf, positions, fence, place)
            }
        }
    }
}
