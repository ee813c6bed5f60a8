//! What a scan takes out of the index: the keys of one leaf, copied, and the version that they had.
//!
//! ```text
//!   bytes  [key 0][key 1][key 2]...   ends  [e0][e1][e2]...   fence  where the next batch begins
//! ```
//!
//! A batch is a consistent copy: all of it was in the leaf at one moment. It keeps its buffers from one use
//! to the next, so that a scan allocates nothing once it is warm.

use std::ops::{Bound, Range};

use crate::storage::epoch::Pin;

use super::Leaf;
use super::key::{HEAD_BYTES, KeyRef};
use super::slots::SLOT_COUNT;

/// A leaf and the version that it had when it was read. It stays meaningful for as long as its index exists,
/// whatever becomes of the leaf, and needs no pin.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct LeafRead {
    pub(super) leaf: u32,
    pub(super) version: u64,
}

impl LeafRead {
    /// True if both are of one leaf, however it has changed in between.
    pub(crate) fn is_of_same_leaf(self, other: LeafRead) -> bool {
        self.leaf == other.leaf
    }
}

/// The keys of one leaf on one side of a bound, in the order of the scan.
#[derive(Debug)]
pub(crate) struct LeafBatch {
    bytes: Vec<u8>,
    /// Where each key ends in `bytes`; it begins where the one before it ends.
    ends: Vec<usize>,
    fence: Vec<u8>,
    has_fence: bool,
    forward: bool,
    read: LeafRead,
}

impl LeafBatch {
    /// A batch that holds nothing and is followed by nothing, until it is read.
    pub(crate) fn new() -> LeafBatch {
        LeafBatch {
            bytes: Vec::new(),
            ends: Vec::new(),
            fence: Vec::new(),
            has_fence: false,
            forward: true,
            // No unlocked node ever has an odd version, so this read never validates.
            read: LeafRead { leaf: u32::MAX, version: 1 },
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.ends.len()
    }

    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// A key by its position in the order of the scan.
    pub(crate) fn get(&self, position: usize) -> Option<&[u8]> {
        let end = *self.ends.get(position)?;
        let begin = if position == 0 { 0 } else { self.ends[position - 1] };
        Some(&self.bytes[begin..end])
    }

    #[cfg(test)]
    pub(crate) fn keys(&self) -> impl Iterator<Item = &[u8]> {
        (0..self.len()).filter_map(|position| self.get(position))
    }

    /// The leaf and its version, to be validated later.
    pub(crate) fn read(&self) -> LeafRead {
        self.read
    }

    /// The bound from which to read on in the same direction. Nothing at the end of the index.
    pub(crate) fn next(&self) -> Option<Bound<&[u8]>> {
        let fence = self.fence.as_slice();
        self.has_fence.then_some(if self.forward { Bound::Included(fence) } else { Bound::Excluded(fence) })
    }

    pub(super) fn is_forward(&self) -> bool {
        self.forward
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
    ) -> Option<()> {
        let mut buffer = [KeyRef::EMPTY; SLOT_COUNT];
        let keys = &mut buffer[..positions.len()];
        for (key, position) in keys.iter_mut().zip(positions) {
            *key = leaf.slots.key(pin, leaf.version, position)?;
        }
        leaf.slots.check(leaf.version)?;
        if !self.forward {
            keys.reverse();
        }
        self.bytes.clear();
        self.ends.clear();
        // A pass over the lengths alone lets the cache misses of long keys overlap.
        self.bytes.reserve(HEAD_BYTES + keys.iter().map(|key| key.length()).sum::<usize>());
        for key in keys {
            key.append_to(&mut self.bytes);
            self.ends.push(self.bytes.len());
        }
        self.fence.clear();
        self.has_fence = fence.is_some();
        if let Some(fence) = fence {
            fence.append_to(&mut self.fence);
        }
        self.read = LeafRead { leaf: leaf.number, version: leaf.version.number() };
        Some(())
    }

    /// Lends the fence out while the batch is read anew.
    pub(super) fn take_fence(&mut self, read: impl FnOnce(&mut LeafBatch, Option<&[u8]>) -> bool) -> bool {
        let fence = std::mem::take(&mut self.fence);
        let has_fence = self.has_fence;
        let done = read(self, has_fence.then_some(fence.as_slice()));
        if !done {
            self.fence = fence;
        }
        done
    }
}
