//! The ordered index: a concurrent in-memory set of byte strings, for range scans and for phantom detection.
//!
//! Point reads go through the hash index; this one answers "which keys are in this interval, and is that
//! still so at commit". It is a B+-tree with optimistic lock coupling (Leis, Scheibner, Kemper and Neumann,
//! *The ART of Practical Synchronization*, DaMoN 2016; Leis, Haubenschild and Neumann, *Optimistic Lock
//! Coupling*, IEEE Data Eng. Bull. 2019): readers write nothing, writers lock only the nodes that they
//! change. Skip lists lose to it three- to fourfold, which is why there is none.
//!
//! ```text
//!                      root  [ g . . . . ]                inner: separators and children (inner.rs)
//!                           /             \
//!            [ b  d . . . ]                [ p . . . . ]
//!           /     |     \                 /       \
//!        [a aa] [b ba] [e f]         [g h k]     [p q]    leaves: keys only (slots.rs)
//!         ..b)   [b,d)  [d,g)         [g,p)       [p..    the intervals, given by the path alone
//! ```
//!
//! # Reading
//! A reader goes down from the root. At each step it reads the child's version and *then* checks that the
//! parent (for the root: the root word) has not changed. So at the moment of that check the child, at the
//! version read, was responsible for the interval that the path says. If a change is noticed, the reader
//! starts again. Nothing is locked, and no pointer to a sibling is needed: a scan goes down again with the
//! leaf's fence.
//!
//! # Phantoms
//! A transaction remembers a [`LeafRead`] (leaf and version) for each leaf of a range that it read, and
//! validates them at commit (Silo §4.6). What makes this right:
//!
//! 1. **A node's interval shrinks only while that node is locked, and its version changes.** (A split.)
//! 2. **An interval grows without a change of the node's version**, when an empty neighbour is unlinked.
//! 3. **A leaf's keys change only while it is locked, and its version changes.** This holds for an unlinked
//!    leaf too: it stays locked until it is used again, under a higher version.
//!
//! By 1 and 2, a node at an unchanged version is responsible for *at least* the interval that was read on
//! the way to it; so whoever inserts a key into that interval must, by 3, change the version of that very
//! leaf. When a leaf is unlinked, a transaction that read it fails (3). One that read the neighbour which
//! takes the interval over read a smaller interval, which the neighbour still holds, so its read stays right
//! and the neighbour's version need not change. A later insert into the interval that was taken over does
//! change it: a needless conflict at worst, never a missed one. (Changing the neighbour's version as well
//! was rejected: it may be the outermost leaf of another subtree, to be found and locked first, and it would
//! abort transactions whose reads are right.) A key that is removed and inserted again leaves a changed
//! version behind, because versions only grow.
//!
//! A stretch of keys without rows may be validated as one (gaps.rs).
//!
//! **Quiet removals.** A row that settles leaves the index without a change to anybody: who finds no key here finds the row in the settled
//! tree, the very same. So its removal does not count for 3, and a validation looks past it; only who is just copying the leaf notices it.
//!
//! Two transactions that each insert into a leaf that the other one read must not both validate. Locking a
//! leaf and [`OrderedIndex::validate`] are therefore sequentially consistent operations: one of two threads
//! that insert first and validate then sees the other's lock.
//!
//! A look at a leaf's version is one, too. A transaction whose beginning is later than a commit's version trusts what it then reads of that commit without another look
//! at what it has read before. It has read the clock after the commit did, and the commit did so under its locks; both are operations of the same order. So it finds the
//! commit's leaves locked, or as the commit left them. To acquire would say that only of who has synchronized with the commit, which a reader of the clock has not; it
//! is enough where a store is there for all others at once, as on x86-64 and ARMv8.
//!
//! # Memory
//! Nodes live in arenas (arena.rs) until the index is dropped and are reused only as nodes of the same type; memory of many that are
//! free goes back to the system when [`OrderedIndex::give_back_memory`] is called, which merges leaves before (packing.rs), and their numbers stay.
//! Long keys have a heap block (key.rs); a removed key waits in a list until [`OrderedIndex::reclaim`] has
//! waited for the readers. Nodes are not merged but unlinked when they become empty (Johnson and Shasha,
//! *B-trees with inserts and deletes: why free-at-empty is better than merge-at-half*, JCSS 1993): a queue's
//! churn leaves nothing behind, and there is never more than one leaf per key.

mod arena;
mod batch;
mod counters;
mod gaps;
mod hints;
mod images;
mod inner;
mod insert;
mod key;
mod packing;
mod reader;
mod slots;
mod unlink;
mod vacancy;
#[cfg(test)]
mod verify;

#[cfg(test)]
mod ascending_tests;
#[cfg(test)]
mod concurrent_tests;
#[cfg(test)]
mod tests;

use std::ops::Bound;

use crate::storage::epoch::{self, Pin};
use crate::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use crate::sync::{hint, thread};

use arena::{Arena, Levels};
use batch::Place;
pub(crate) use batch::{BATCH_KEYS_MAX, LeafBatch, LeafRead};
use counters::Counters;
use gaps::Gaps;
pub(crate) use gaps::{GapRead, Granted, Joined};
use hints::Hints;
pub(crate) use images::{ImageWord, ImagesAsOf};
use inner::{Inner, NodeId, Target};
pub(crate) use insert::{Insertion, Run};
use key::{Probe, Retired};
use reader::Interval;
use slots::{SLOT_COUNT, Slots, Version};
use vacancy::Vacancy;

/// More levels than a tree can get: an inner node splits once for every 15 or more splits of its children (on
/// average; see `split_inner`), so that this many levels would take more than 2^64 insertions.
const HEIGHT_MAX: usize = 20;

/// A concurrent ordered set of keys of 0 to 65,536 bytes. See the module's documentation.
pub(crate) struct OrderedIndex {
    /// The [`NodeId`] of the root. Stored only while the node that it named is locked.
    root: AtomicU32,
    leaves: Arena<Slots>,
    inners: Arena<Inner>,
    /// Each has the number of its leaf.
    hints: Levels<Hints>,
    retired: Retired,
    counters: Counters,
    vacancy: Vacancy,
    gaps: Gaps,
    /// Leaves that were unlinked beside others, whose intervals grew. Counted before anybody can come to a grown one.
    unlinkings: AtomicU64,
}

/// A leaf at the end of a descent.
struct Leaf<'a> {
    number: u32,
    slots: &'a Slots,
    version: Version,
}

/// An inner node on the way, and the child that was taken.
#[derive(Clone, Copy)]
struct Step<'a> {
    id: NodeId,
    inner: &'a Inner,
    version: Version,
    index: usize,
}

impl Step<'_> {
    fn place(&self) -> Place {
        Place { inner: self.id.number(), version: self.version, index: self.index }
    }
}

impl OrderedIndex {
    /// An empty index: one empty leaf.
    pub(crate) fn new() -> OrderedIndex {
        let leaves = Arena::<Slots>::new();
        let (number, leaf) = leaves.allocate();
        drop(leaf.adopt());
        OrderedIndex {
            root: AtomicU32::new(NodeId::leaf(number).word()),
            leaves,
            inners: Arena::new(),
            hints: Levels::new(),
            retired: Retired::default(),
            counters: Counters::default(),
            vacancy: Vacancy::default(),
            gaps: Gaps::default(),
            unlinkings: AtomicU64::new(0),
        }
    }

    /// The number of keys; approximate while others insert or remove.
    pub(crate) fn len(&self) -> usize {
        self.counters.keys()
    }

    /// Bytes of removed keys that wait for [`OrderedIndex::reclaim`].
    #[cfg(test)]
    pub(crate) fn retired_bytes(&self) -> usize {
        self.retired.bytes()
    }

    /// Bytes that the index occupies: nodes (used, or free and not given back) with their hints, and the blocks of long keys (retired ones too).
    pub(crate) fn memory_bytes(&self) -> usize {
        let leaves = self.leaves.memory_bytes();
        let hints = if self.hints.has_any() { leaves / size_of::<Slots>() * size_of::<Hints>() } else { 0 };
        leaves + hints + self.inners.memory_bytes() + self.counters.key_bytes()
    }

    /// Frees the memory of keys that were removed before the call.
    ///
    /// # Panics
    /// As [`OrderedIndex::reclaim_all`].
    pub(crate) fn reclaim(&self) {
        OrderedIndex::reclaim_all(std::iter::once(self));
    }

    /// The same of all of these indexes. For a background thread: it waits until every thread pinned now has unpinned, once, if there is something to free.
    ///
    /// # Panics
    /// If the calling thread is pinned.
    pub(crate) fn reclaim_all<'i>(indexes: impl Iterator<Item = &'i OrderedIndex>) {
        let retired = indexes.map(|index| (index, &index.retired));
        key::reclaim(retired, |index, freed| index.counters.add_key_bytes(-(freed as isize)));
    }

    /// Gives memory that removals have left free back to the system, in blocks of many nodes; who has read a leaf that a quiet one has left empty, or nearly so, finds
    /// it changed. For a background thread, which is not pinned, after many removals.
    pub(crate) fn give_back_memory(&self) {
        // So few keys in a leaf leave most of its memory unused.
        const KEYS_OF_LEAF_MIN: usize = SLOT_COUNT / 4;
        const LEAVES_MIN: usize = 64;
        self.unlink_empty();
        let leaves = self.leaves.in_use();
        if leaves >= LEAVES_MIN && self.len() / KEYS_OF_LEAF_MIN < leaves {
            self.pack();
        }
        self.leaves.give_back(Some(&self.hints));
        self.inners.give_back(None::<&Levels<Hints>>);
        self.reclaim();
    }

    /// Shows all keys to `look`, in order, a leaf's keys as they were at one time.
    pub(crate) fn each_key<E>(&self, mut look: impl FnMut(&[u8]) -> Result<(), E>) -> Result<(), E> {
        let (mut batch, mut next) = (LeafBatch::new(), LeafBatch::new());
        self.read_forward(&epoch::pin(), Bound::Unbounded, &mut batch);
        loop {
            for place in 0..batch.len() {
                look(batch.get(place).unwrap_or_default())?;
            }
            if !self.read_next(&epoch::pin(), &batch, &mut next) {
                return Ok(());
            }
            std::mem::swap(&mut batch, &mut next);
        }
    }

    /// Up to `count` keys behind this one, in order, or from the first on if that is empty.
    pub(crate) fn keys_behind(&self, after: &[u8], count: usize, keys: &mut Vec<Vec<u8>>) {
        let (mut batch, mut next) = (LeafBatch::new(), LeafBatch::new());
        let from = if after.is_empty() { Bound::Included(after) } else { Bound::Excluded(after) };
        self.read_forward(&epoch::pin(), from, &mut batch);
        loop {
            let places = 0..batch.len().min(count - keys.len());
            keys.extend(places.filter_map(|place| batch.get(place)).map(<[u8]>::to_vec));
            if keys.len() >= count || !self.read_next(&epoch::pin(), &batch, &mut next) {
                return;
            }
            std::mem::swap(&mut batch, &mut next);
        }
    }

    /// True if the index holds the key.
    pub(crate) fn contains(&self, pin: &Pin, key: &[u8]) -> bool {
        let probe = Probe::new(key);
        retry(|| {
            let leaf = self.descend(pin, &Target::At(probe), |_| Some(()))?;
            let (_, present) = leaf.slots.search(pin, leaf.version, &probe)?;
            leaf.slots.check(leaf.version)?;
            Some(present)
        })
    }

    /// True if the leaf is as it was read: no key of the interval that was read has come or gone, unless quietly, and no
    /// thread is about to change that; or if a gap that was read has not been broken. May be called at any later time, with or without a pin. The read must
    /// be one of this index; one of another index gives a meaningless answer, but does no harm.
    pub(crate) fn validate(&self, read: &LeafRead) -> bool {
        let is_as_read = || self.leaves.get(read.leaf).is_some_and(|leaf| leaf.is_at(read.version));
        self.validate_gap(read).unwrap_or_else(is_as_read)
    }

    /// About which share of the keys, from 0 to 1, is below a bound, as if all children of a node had as many; `unbounded` if
    /// it is none.
    pub(crate) fn share_below(&self, pin: &Pin, bound: Bound<&[u8]>, unbounded: f64) -> f64 {
        let (Bound::Included(key) | Bound::Excluded(key)) = bound else { return unbounded };
        let probe = Probe::new(key);
        retry(|| {
            let (mut share, mut width) = (0.0, 1.0);
            let leaf = self.descend(pin, &Target::At(probe), |step| {
                width /= (step.inner.slots.count() + 1) as f64;
                share += width * step.index as f64;
                Some(())
            })?;
            let (below, _) = leaf.slots.search(pin, leaf.version, &probe)?;
            leaf.slots.check(leaf.version)?;
            Some(share + width * below as f64 / leaf.slots.count().max(1) as f64)
        })
    }

    /// Goes down to the leaf of a target and shows each inner node on the way. Nothing, if a change or a lock
    /// was in the way: then start again.
    #[inline]
    fn descend<'a>(
        &'a self,
        pin: &Pin,
        target: &Target<'_>,
        mut visit: impl FnMut(Step<'a>) -> Option<()>,
    ) -> Option<Leaf<'a>> {
        let mut id = NodeId::from_word(self.root.load(Ordering::Acquire));
        let mut slots = self.slots(id)?;
        let mut version = slots.version()?;
        // The version was loaded with Acquire, so this load is not older than it. Whoever takes the root's
        // place away changes the root's version later than its own word.
        if self.root.load(Ordering::Acquire) != id.word() {
            return None;
        }
        for _ in 0..HEIGHT_MAX {
            if id.is_leaf() {
                return Some(Leaf { number: id.number(), slots, version });
            }
            let inner = self.inners.get(id.number())?;
            let index = inner.child_index(pin, version, target)?;
            let child = inner.child(index);
            visit(Step { id, inner, version, index })?;
            let child_slots = self.slots(child)?;
            let child_version = child_slots.version()?;
            slots.check(version)?;
            (id, slots, version) = (child, child_slots, child_version);
        }
        None
    }

    #[inline]
    fn slots(&self, id: NodeId) -> Option<&Slots> {
        if id.is_leaf() {
            self.leaves.get(id.number())
        } else {
            self.inners.get(id.number()).map(|inner| &inner.slots)
        }
    }
}

/// Repeats an optimistic attempt until it succeeds. A thread that holds a lock may have been descheduled, so
/// that after a few attempts the processor is given away.
#[inline]
fn retry<T>(mut attempt: impl FnMut() -> Option<T>) -> T {
    let mut failures = 0u32;
    loop {
        if let Some(result) = attempt() {
            return result;
        }
        failures += 1;
        if failures < 6 {
            (0..1 << failures).for_each(|_| hint::spin_loop());
        } else {
            thread::yield_now();
        }
    }
}
