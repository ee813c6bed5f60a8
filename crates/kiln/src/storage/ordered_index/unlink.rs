//! Removal, and the unlinking of what it leaves empty.
//!
//! A removal locks its leaf alone. If that leaves the leaf empty, a second step takes it out of the tree,
//! with all inner nodes that have no other child:
//!
//! ```text
//!        [ d  m . ]   anchor, locked: loses a child and a separator      [ d . . ]
//!        /  |   \                                                        /  \
//!          [ ]        locked, one child only: unlinked            =>
//!           |
//!         (  )        leaf, locked, empty: unlinked
//! ```
//!
//! The interval goes to the left neighbour of what was removed from the anchor (of the first child: to the
//! right one). Neither that neighbour nor its leaves are touched; the module documentation of the index says
//! why they need not be. An unlinked node stays locked until it is used again. If the anchor is the root and
//! keeps one child, that child becomes the root.
//!
//! A *quiet* removal leaves an empty leaf where it is, since unlinking it shows to who has read it.
//! [`OrderedIndex::unlink_empty`] does that some time later, for many at once; [`OrderedIndex::unlink_at`] for one.

use std::ops::Bound;

use crate::storage::epoch::{self, Pin};
use crate::sync::atomic::Ordering;

use super::batch::LeafBatch;
use super::inner::{LockedInner, NodeId, Target};
use super::key::Probe;
use super::{HEIGHT_MAX, Interval, OrderedIndex, Step, retry};

impl OrderedIndex {
    /// Removes a key; true if it was there.
    pub(crate) fn remove(&self, pin: &Pin, key: &[u8]) -> bool {
        let probe = Probe::new(key);
        let (removed, emptied) = retry(|| self.try_remove(pin, &probe, false));
        if emptied {
            retry(|| self.try_unlink(pin, &probe));
            self.lower_root();
        }
        removed
    }

    /// Removes a key; true if that leaves its leaf empty. Who has read the leaf is right all the same: the caller knows that what they
    /// found of the key they would find now, somewhere else. [`Self::validate`] says so.
    pub(crate) fn remove_quietly(&self, pin: &Pin, key: &[u8]) -> bool {
        let probe = Probe::new(key);
        retry(|| self.try_remove(pin, &probe, true)).1
    }

    /// From where, and up to where, the leaf of this key has keys, if there are none now.
    pub(crate) fn empty_leaf_at(&self, pin: &Pin, key: &[u8]) -> Option<Interval> {
        let probe = Probe::new(key);
        retry(|| {
            let (leaf, interval) = self.try_interval(pin, &probe)?;
            let is_empty = leaf.slots.count() == 0;
            leaf.slots.check(leaf.version)?;
            Some(is_empty.then_some(interval))
        })
    }

    /// Unlinks the leaf of this key, if it is empty; who has read it finds it changed.
    pub(crate) fn unlink_at(&self, pin: &Pin, key: &[u8]) {
        let probe = Probe::new(key);
        retry(|| self.try_unlink(pin, &probe));
        self.lower_root();
    }

    /// Unlinks the leaves that quiet removals have left empty, if they are more than the others; who has read one finds it changed. The
    /// caller is not pinned.
    pub(crate) fn unlink_empty(&self) {
        let (mut empty, mut others) = (0_u64, 0_u64);
        self.each_leaf(|_, batch| if batch.is_empty() { empty += 1 } else { others += 1 });
        if empty <= others {
            return;
        }
        self.each_leaf(|low, batch| {
            if batch.is_empty() {
                self.unlink_at(&epoch::pin(), low);
            }
        });
    }

    /// Shows where each leaf begins, and its keys, to `look`.
    fn each_leaf(&self, mut look: impl FnMut(&[u8], &LeafBatch)) {
        let mut batch = LeafBatch::new();
        // The first one begins with the empty key.
        let mut low = Vec::new();
        loop {
            self.read_forward(&epoch::pin(), Bound::Included(&low), &mut batch);
            look(&low, &batch);
            let Some(Bound::Included(fence) | Bound::Excluded(fence)) = batch.next() else { break };
            low.clear();
            low.extend_from_slice(fence);
        }
    }

    /// Returns whether the key was there and whether its leaf is empty now.
    fn try_remove(&self, pin: &Pin, probe: &Probe<'_>, quietly: bool) -> Option<(bool, bool)> {
        let leaf = self.descend(pin, &Target::At(*probe), |_| Some(()))?;
        let (position, present) = leaf.slots.search(pin, leaf.version, probe)?;
        if !present {
            leaf.slots.check(leaf.version)?;
            return Some((false, false));
        }
        let mut locked = match quietly {
            true => leaf.slots.lock_quietly(leaf.version)?,
            false => leaf.slots.lock(leaf.version)?,
        };
        let key = locked.remove(position);
        let emptied = locked.count() == 0;
        drop(locked);
        self.retired.push(key);
        self.counters.add_keys(-1);
        Some((true, emptied))
    }

    /// Unlinks the leaf of this key if it is empty (still; others may have been here since it was emptied).
    fn try_unlink(&self, pin: &Pin, probe: &Probe<'_>) -> Option<()> {
        let mut path: Vec<Step<'_>> = Vec::with_capacity(HEIGHT_MAX);
        let leaf = self.descend(pin, &Target::At(*probe), |step| {
            path.push(step);
            Some(())
        })?;
        if leaf.slots.count() > 0 || path.is_empty() {
            return leaf.slots.check(leaf.version);
        }
        let locked_leaf = leaf.slots.lock(leaf.version)?;
        let mut only_children = Vec::with_capacity(path.len());
        let mut anchor = None;
        for step in path.iter().rev() {
            let inner = LockedInner::lock(step.id, step.inner, step.version)?;
            if inner.slots.count() > 0 {
                anchor = Some((inner, step.index));
                break;
            }
            only_children.push(inner);
        }
        match anchor {
            Some((mut anchor, index)) => {
                self.unlinkings.fetch_add(1, Ordering::Release);
                self.retired.push(anchor.remove(index));
                locked_leaf.keep_locked();
                self.leaves.release(leaf.number);
            }
            // A chain of only children up to the root: the empty leaf is the whole tree.
            None => self.root.store(NodeId::leaf(leaf.number).word(), Ordering::Release),
        }
        for inner in only_children {
            self.release_inner(inner);
        }
        Some(())
    }

    /// Makes the only child of the root the root, as often as there is one. If somebody else has the root
    /// locked, it is left as it is: a root with one child is legal, and the next unlinking tries again.
    fn lower_root(&self) {
        loop {
            let id = NodeId::from_word(self.root.load(Ordering::Acquire));
            if id.is_leaf() {
                return;
            }
            let Some(inner) = self.inners.get(id.number()) else { return };
            let Some(version) = inner.slots.version() else { return };
            if self.root.load(Ordering::Acquire) != id.word() || inner.slots.count() > 0 {
                return;
            }
            let Some(root) = LockedInner::lock(id, inner, version) else { return };
            self.root.store(root.child(0).word(), Ordering::Release);
            self.release_inner(root);
        }
    }

    fn release_inner(&self, inner: LockedInner<'_>) {
        let number = inner.id.number();
        inner.slots.keep_locked();
        self.inners.release(number);
    }
}
