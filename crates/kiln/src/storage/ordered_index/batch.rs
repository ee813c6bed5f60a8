//! What a scan takes out of the index: the keys of one leaf, copied, and the version that they had.
//!
//! ```text
//!   bytes  [key 0][key 1][key 2]...      ends  [k0][k1][k2]...       fence  where the next batch begins
//!   bytes  [key 0][value 0][key 1]...    ends  [k0][v0][k1][v1]...   from the leaf's image
//! ```
//!
//! Keys lie in ascending order there, whichever way the scan goes.
//! A batch is a consistent copy: all of it was in the leaf at one moment. It keeps its buffers from one use
//! to the next, so that a scan allocates nothing once it is warm. It remembers from which inner node it came to its leaf,
//! so that it need not come down from the root to the next one.

use std::ops::{Bound, Range, RangeBounds};

use crate::storage::epoch::Pin;
use crate::storage::leaf_images::Copied;

use super::Leaf;
use super::key::{HEAD_BYTES, KEY_BYTES_MAX, KeyRef};
use super::slots::{SLOT_COUNT, Version};

/// Keys that a batch has at the most.
pub(crate) const BATCH_KEYS_MAX: usize = SLOT_COUNT;

/// A leaf and the number of its version when it was read. It stays meaningful for as long as its index exists,
/// whatever becomes of the leaf, and needs no pin.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct LeafRead {
    pub(super) leaf: u32,
    pub(super) version: u64,
}

// What the ends of a batch's keys can be.
const _: () = assert!(SLOT_COUNT * KEY_BYTES_MAX + HEAD_BYTES <= u32::MAX as usize);

impl LeafRead {
    /// The number of the leaf's version.
    pub(crate) fn version(self) -> u64 {
        self.version
    }

    /// The leaf's number.
    pub(crate) fn leaf(self) -> u32 {
        self.leaf
    }

    /// True if both are of one leaf, however it has changed in between.
    pub(crate) fn is_of_same_leaf(self, other: LeafRead) -> bool {
        self.leaf == other.leaf
    }
}

/// Where a leaf hangs: the number of an inner node, the version at which that was so, and which of its children the leaf is.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    pub(super) inner: u32,
    pub(super) version: Version,
    pub(super) index: usize,
}

/// The keys of one leaf on one side of a bound, in the order of the scan.
#[derive(Debug)]
pub(crate) struct LeafBatch {
    bytes: Vec<u8>,
    /// Where each of the `count` keys ends in `bytes`, and its value behind it if there are values; it begins where what is before it ends.
    ends: [u32; 2 * SLOT_COUNT],
    /// Where the first key begins.
    begin: u32,
    count: usize,
    has_values: bool,
    is_whole: bool,
    fence: Vec<u8>,
    has_fence: bool,
    forward: bool,
    read: LeafRead,
    /// The slot of the first key.
    first_slot: usize,
    /// Nothing if the leaf is the root.
    place: Option<Place>,
}

impl LeafBatch {
    /// A batch that holds nothing and is followed by nothing, until it is read.
    pub(crate) fn new() -> LeafBatch {
        LeafBatch {
            bytes: Vec::new(),
            ends: [0; 2 * SLOT_COUNT],
            begin: 0,
            count: 0,
            has_values: false,
            is_whole: false,
            fence: Vec::new(),
            has_fence: false,
            forward: true,
            // No node changes as often, so this read never validates.
            read: LeafRead { leaf: u32::MAX, version: u64::MAX },
            first_slot: 0,
            place: None,
        }
    }

    /// Memory of the keys.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.bytes.capacity() + self.fence.capacity()
    }

    pub(crate) fn len(&self) -> usize {
        self.count
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// A key by its position in the order of the scan.
    #[inline]
    pub(crate) fn get(&self, position: usize) -> Option<&[u8]> {
        let at = self.row_of(position)? << u32::from(self.has_values);
        let begin = if at == 0 { self.begin } else { self.ends[at - 1] };
        self.bytes.get(begin as usize..self.ends[at] as usize)
    }

    /// The value of the key at a position, if the batch has values.
    #[inline]
    pub(crate) fn value(&self, position: usize) -> Option<&[u8]> {
        let at = self.row_of(position).filter(|_| self.has_values)? * 2;
        self.bytes.get(self.ends[at] as usize..self.ends[at + 1] as usize)
    }

    /// Whether each key's value is there, too.
    #[inline]
    pub(crate) fn has_values(&self) -> bool {
        self.has_values
    }

    /// Whether the table has no other rows there, also none that have settled. If not, it may or may not have.
    #[inline]
    pub(crate) fn is_whole(&self) -> bool {
        self.is_whole
    }

    /// Which of the keys, in ascending order, is at a position.
    #[inline]
    fn row_of(&self, position: usize) -> Option<usize> {
        let last = self.count.checked_sub(1)?;
        let row = if self.forward { position } else { last.wrapping_sub(position) };
        (position <= last).then_some(row)
    }

    #[cfg(test)]
    pub(crate) fn keys(&self) -> impl Iterator<Item = &[u8]> {
        (0..self.len()).filter_map(|position| self.get(position))
    }

    /// The leaf and its version, to be validated later.
    pub(crate) fn read(&self) -> LeafRead {
        self.read
    }

    /// In which slot of the leaf a key was; of rows from an image nobody knows.
    pub(super) fn slot_of(&self, position: usize) -> Option<usize> {
        match self.forward {
            _ if self.has_values => None,
            true => self.first_slot.checked_add(position),
            false => self.first_slot.checked_sub(position),
        }
    }

    /// The bound from which to read on in the same direction. Nothing at the end of the index.
    pub(crate) fn next(&self) -> Option<Bound<&[u8]>> {
        let fence = self.fence.as_slice();
        self.has_fence.then_some(if self.forward { Bound::Included(fence) } else { Bound::Excluded(fence) })
    }

    pub(super) fn is_forward(&self) -> bool {
        self.forward
    }

    pub(super) fn place(&self) -> Option<Place> {
        self.place
    }

    /// Makes it one that holds nothing and is followed by nothing.
    pub(crate) fn clear(&mut self) {
        (self.count, self.has_values, self.is_whole) = (0, false, false);
        (self.has_fence, self.place) = (false, None);
        self.read = LeafRead { leaf: u32::MAX, version: u64::MAX };
    }

    pub(super) fn start(&mut self, forward: bool) {
        self.forward = forward;
    }

    /// Where the rows of an image go.
    pub(super) fn image_buffers(&mut self) -> Copied<'_> {
        Copied { bytes: &mut self.bytes, ends: &mut self.ends, begin: &mut self.begin }
    }

    /// Copies keys of the leaf, and the fence. Nothing if the leaf has changed meanwhile.
    pub(super) fn fill(
        &mut self,
        pin: &Pin,
        leaf: &Leaf<'_>,
        positions: Range<usize>,
        fence: Option<KeyRef<'_>>,
        place: Option<Place>,
    ) -> Option<()> {
        let mut buffer = [KeyRef::EMPTY; SLOT_COUNT];
        leaf.slots.keys(pin, leaf.version, positions.clone(), &mut buffer)?;
        let keys = &buffer[..positions.len()];
        self.bytes.clear();
        // A pass over the lengths alone lets the cache misses of long keys overlap.
        self.bytes.reserve(HEAD_BYTES + keys.iter().map(|key| key.length()).sum::<usize>());
        for (key, end) in keys.iter().zip(&mut self.ends) {
            key.append_to(&mut self.bytes);
            *end = self.bytes.len() as u32;
        }
        (self.begin, self.has_values, self.is_whole) = (0, false, false);
        self.set_leaf(leaf, positions, fence, place);
        Some(())
    }

    /// Its rows are so many of a leaf's image, which is [whole](Self::is_whole) or not: those of them that are within the bound from which it is read.
    pub(super) fn set_image(
        &mut self,
        leaf: &Leaf<'_>,
        from: Bound<&[u8]>,
        (rows, is_whole): (usize, bool),
        fence: Option<KeyRef<'_>>,
        place: Option<Place>,
    ) {
        (self.has_values, self.is_whole) = (true, is_whole);
        self.set_leaf(leaf, 0..rows, fence, place);
        let wanted = if self.forward { (from, Bound::Unbounded) } else { (Bound::Unbounded, from) };
        let is_beyond = |row: &usize| self.get(*row).is_some_and(|key| !wanted.contains(key));
        let beyond = (0..rows).take_while(is_beyond).count();
        if beyond > 0 && self.forward {
            self.begin = self.ends[2 * beyond - 1];
            self.ends.copy_within(2 * beyond.., 0);
        }
        self.count -= beyond;
    }

    fn set_leaf(
        &mut self,
        leaf: &Leaf<'_>,
        positions: Range<usize>,
        fence: Option<KeyRef<'_>>,
        place: Option<Place>,
    ) {
        self.count = positions.len();
        self.fence.clear();
        self.has_fence = fence.is_some();
        if let Some(fence) = fence {
            fence.append_to(&mut self.fence);
        }
        self.read = LeafRead { leaf: leaf.number, version: leaf.version.number() };
        self.first_slot = if self.forward { positions.start } else { positions.end.saturating_sub(1) };
        self.place = place;
    }
}
