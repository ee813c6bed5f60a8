//! Inner nodes, and the names of nodes.
//!
//! ```text
//!   separators      s0      s1      s2            child i holds the keys k with s(i-1) <= k < s(i)
//!   children    c0      c1      c2      c3
//! ```
//!
//! The version word of the separators protects the children as well. An inner node with no separator has
//! one child; that is legal, and comes from unlinking (see `unlink.rs`).

use crate::storage::epoch::Pin;
use crate::sync::atomic::{AtomicU32, Ordering};

use super::arena::Node;
use super::key::{Key, Probe};
use super::slots::{Locked, SLOT_COUNT, Slots, Version};

/// The name of a node: its number in its arena, and a bit that tells the arenas apart.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct NodeId(u32);

const INNER_BIT: u32 = 1 << 31;

impl NodeId {
    pub(super) fn leaf(number: u32) -> NodeId {
        debug_assert!(number & INNER_BIT == 0);
        NodeId(number)
    }

    pub(super) fn inner(number: u32) -> NodeId {
        NodeId(number | INNER_BIT)
    }

    pub(super) fn from_word(word: u32) -> NodeId {
        NodeId(word)
    }

    pub(super) fn word(self) -> u32 {
        self.0
    }

    pub(super) fn is_leaf(self) -> bool {
        self.0 & INNER_BIT == 0
    }

    pub(super) fn number(self) -> u32 {
        self.0 & !INNER_BIT
    }
}

/// What a descent looks for.
#[derive(Clone, Copy)]
pub(super) enum Target<'k> {
    /// The leaf with the lowest keys.
    First,
    /// The leaf with the highest keys.
    Last,
    /// The leaf whose interval holds this key.
    At(Probe<'k>),
    /// The leaf whose interval holds the keys just below this one.
    Below(Probe<'k>),
}

/// An inner node.
#[repr(C)]
pub(super) struct Inner {
    pub(super) slots: Slots,
    children: [AtomicU32; SLOT_COUNT + 1],
}

impl Node for Inner {
    fn changes(&self) -> u64 {
        self.slots.changes()
    }

    fn go_on_from(&self, changes: u64) {
        self.slots.go_on_from(changes);
    }

    fn end(&mut self) {
        self.slots.end();
    }
}

impl Inner {
    #[inline]
    pub(super) fn child(&self, index: usize) -> NodeId {
        NodeId(self.children[index].load(Ordering::Relaxed))
    }

    /// The position of the child that leads to the target. Only a later check of the version makes it true.
    #[inline]
    pub(super) fn child_index(&self, pin: &Pin, version: Version, target: &Target<'_>) -> Option<usize> {
        match target {
            Target::First => Some(0),
            Target::Last => Some(self.slots.count()),
            Target::At(probe) => {
                self.slots.search(pin, version, probe).map(|(below, equal)| below + usize::from(equal))
            }
            Target::Below(probe) => self.slots.search(pin, version, probe).map(|(below, _)| below),
        }
    }

    fn set_child(&self, index: usize, child: NodeId) {
        self.children[index].store(child.0, Ordering::Relaxed);
    }
}

/// An inner node that the calling thread has locked.
pub(super) struct LockedInner<'a> {
    pub(super) id: NodeId,
    inner: &'a Inner,
    pub(super) slots: Locked<'a>,
}

impl<'a> LockedInner<'a> {
    pub(super) fn lock(id: NodeId, inner: &'a Inner, version: Version) -> Option<LockedInner<'a>> {
        Some(LockedInner { id, inner, slots: inner.slots.lock(version)? })
    }

    pub(super) fn adopt(id: NodeId, inner: &'a Inner) -> LockedInner<'a> {
        LockedInner { id, inner, slots: inner.slots.adopt() }
    }

    pub(super) fn child(&self, index: usize) -> NodeId {
        assert!(index <= self.slots.count());
        self.inner.child(index)
    }

    pub(super) fn set_only_child(&mut self, child: NodeId) {
        assert_eq!(self.slots.count(), 0);
        self.slots.mark_changed();
        self.inner.set_child(0, child);
    }

    /// Puts a new child to the right of the one at `index`.
    pub(super) fn insert(&mut self, index: usize, separator: Key, right: NodeId) {
        for from in (index + 1..=self.slots.count()).rev() {
            self.inner.set_child(from + 1, self.inner.child(from));
        }
        self.inner.set_child(index + 1, right);
        self.slots.insert(index, separator);
    }

    /// Puts another child, with the same keys, into the place of one.
    pub(super) fn replace_child(&mut self, index: usize, child: NodeId) {
        assert!(index <= self.slots.count());
        self.slots.mark_changed();
        self.inner.set_child(index, child);
    }

    /// Removes one of at least two children. Its interval goes to its left neighbour (that of the first child
    /// to its right one); the separator between the two is returned.
    pub(super) fn remove(&mut self, index: usize) -> Key {
        let count = self.slots.count();
        assert!(index <= count && count > 0, "remove child {index} of {}", count + 1);
        for from in index + 1..=count {
            self.inner.set_child(from - 1, self.inner.child(from));
        }
        self.slots.remove(index.saturating_sub(1))
    }

    /// Moves what is right of the separator at `position` into an empty node and returns that separator.
    pub(super) fn split(&mut self, position: usize, right: &mut LockedInner<'_>) -> Key {
        let count = self.slots.count();
        for from in position + 1..=count {
            right.inner.set_child(from - position - 1, self.inner.child(from));
        }
        self.slots.move_upper(position + 1, &mut right.slots);
        self.slots.remove(position)
    }
}
