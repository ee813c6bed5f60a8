//! What a scan takes out of the index: the keys of one leaf, copied, and the version that they had.
//!
//! ```text
//!   bytes  [key 0][key 1][key 2]...   ends  [e0][e1][e2]...   fence  where the next batch begins
//! ```
//!
//! A batch is a consistent copy: all of it was in the leaf at one moment. It keeps its buffers from one use
//! to the next, so that a scan allocates nothing once it is warm. It remembers from which inner node it came to its leaf,
//! so that it need not come down from the root to the next one.

use std::ops::{Bound, Range};

use crate::storage::epoch::Pin;

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
    /// Where each of the `count` keys ends in `bytes`; it begins where the one before it ends.
    ends: [u32; SLOT_COUNT],
    count: usize,
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
            ends: [0; SLOT_COUNT],
            count: 0,
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
    pub(crate) fn get(&self, position: usize) -> Option<&[u8]> {
        let end = *self.ends[..self.count].get(position)?;
        let begin = if position == 0 { 0 } else { self.ends[position - 1] };
        Some(&self.bytes[begin as usize..end as usize])
    }

    #[cfg(test)]
    pub(crate) fn keys(&self) -> impl Iterator<Item = &[u8]> {
        (0..self.len()).filter_map(|position| self.get(position))
    }

    /// The leaf and its version, to be validated later.
    pub(crate) fn read(&self) -> LeafRead {
        self.read
    }

    /// In which slot of the leaf a key was.
    pub(super) fn slot_of(&self, position: usize) -> Option<usize> {
        match self.forward {
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
        (self.count, self.has_fence, self.place) = (0, false, None);
        self.read = LeafRead { leaf: u32::MAX, version: u64::MAX };
    }

    pub(super) fn start(&mut self, forward: bool) {
        self.forward = forward;
    }

    /// Copies keys of the leaf, against their order for a backward scan, and the fence. Nothing if the leaf
    /// has changed meanwhile.
    pub(super) fn fill(
        &mut self,
        pin: &Pin,
        leaf: &Leaf<'_>,
        positions: Range<usize>,
        fence: Option<KeyRef<'_>>,
        place: Option<Place>,
    ) -> Option<()> {
        let first_slot = if self.forward { positions.start } else { positions.end.saturating_sub(1) };
        let mut buffer = [KeyRef::EMPTY; SLOT_COUNT];
        let count = positions.len();
        leaf.slots.keys(pin, leaf.version, positions, &mut buffer)?;
        let keys = &mut buffer[..count];
        if !self.forward {
            keys.reverse();
        }
        self.bytes.clear();
        // A pass over the lengths alone lets the cache misses of long keys overlap.
        self.bytes.reserve(HEAD_BYTES + keys.iter().map(|key| key.length()).sum::<usize>());
        self.count = keys.len();
        for (key, end) in keys.iter().zip(&mut self.ends) {
            key.append_to(&mut self.bytes);
            *end = self.bytes.len() as u32;
        }
        self.fence.clear();
        self.has_fence = fence.is_some();
        if let Some(fence) = fence {
            fence.append_to(&mut self.fence);
        }
        self.read = LeafRead { leaf: leaf.number, version: leaf.version.number() };
        self.first_slot = first_slot;
        self.place = place;
        Some(())
    }
}
