//! The leaves with what finds them, and the merging of new keys.

use std::collections::BTreeMap;
use std::sync::MutexGuard;
use std::sync::atomic::{AtomicU64, Ordering};

use super::huge::advise_huge_pages;
use super::leaf::{Latched, Layout, Leaf, head};

/// New keys with their values: the index in memory.
pub(super) type NewRows = BTreeMap<Box<[u8]>, Box<[u8]>>;

/// Leaves in the order of their keys. Which keys are in which leaf never changes.
pub(super) struct Tree {
    pub(super) layout: Layout,
    leaves: Vec<Latched>,
    /// The first key of each leaf, and its head.
    firsts: Vec<Box<[u8]>>,
    heads: Vec<u64>,
    /// A bit for each leaf that is dirty.
    dirty: Vec<AtomicU64>,
    rows: u64,
}

impl Tree {
    /// A tree of one leaf without rows.
    pub(super) fn empty(layout: Layout) -> Tree {
        let mut builder = Builder::new(layout, 0);
        builder.add_leaf(&[]);
        builder.finish()
    }

    /// The rows of this tree, and the new ones, in a tree whose leaves are full. Those of this one are retired.
    pub(super) fn merged(&self, new: &NewRows) -> Tree {
        let mut builder = Builder::new(self.layout, self.rows + new.len() as u64);
        let mut new = new.iter().peekable();
        for leaf in &self.leaves {
            let mut leaf = leaf.latch();
            leaf.is_retired = true;
            for row in 0..leaf.rows() {
                let key = leaf.key(self.layout, row);
                while let Some((new_key, value)) = new.next_if(|(new_key, _)| &***new_key < key) {
                    builder.push(new_key, value);
                }
                builder.push(key, leaf.value(self.layout, row));
            }
        }
        new.for_each(|(key, value)| builder.push(key, value));
        builder.finish()
    }

    /// How many rows it has.
    pub(super) fn rows(&self) -> u64 {
        self.rows
    }

    /// How many leaves.
    pub(super) fn leaf_count(&self) -> usize {
        self.leaves.len()
    }

    /// The number of the leaf that a key is in, if it is in any.
    #[inline]
    pub(super) fn leaf_of(&self, key: &[u8]) -> usize {
        let head = head(key);
        let mut after = self.heads.partition_point(|first| *first <= head);
        while after > 1 && self.heads[after - 1] == head && *self.firsts[after - 1] > *key {
            after -= 1;
        }
        after.saturating_sub(1)
    }

    #[inline]
    pub(super) fn latch(&self, number: usize) -> MutexGuard<'_, Leaf> {
        self.leaves[number].latch()
    }

    #[inline]
    pub(super) fn try_latch(&self, number: usize) -> Option<MutexGuard<'_, Leaf>> {
        self.leaves[number].try_latch()
    }

    /// Notes that a leaf has been changed, whose latch is held.
    #[inline]
    pub(super) fn mark(&self, number: usize, leaf: &mut Leaf) {
        if !leaf.is_dirty {
            leaf.is_dirty = true;
            self.dirty[number / 64].fetch_or(1 << (number % 64), Ordering::Relaxed);
        }
    }

    /// Hands on the numbers of all leaves that are dirty. Whoever takes one has to clean it.
    pub(super) fn take_dirty(&self) -> impl Iterator<Item = usize> {
        self.dirty.iter().enumerate().flat_map(|(place, word)| {
            let mut bits = word.swap(0, Ordering::Relaxed);
            std::iter::from_fn(move || {
                let bit = bits.trailing_zeros() as usize;
                bits &= bits.wrapping_sub(1);
                (bit < 64).then_some(place * 64 + bit)
            })
        })
    }
}

/// Fills leaves with rows in their order.
struct Builder {
    tree: Tree,
}

impl Builder {
    fn new(layout: Layout, rows: u64) -> Builder {
        let count = (rows as usize).div_ceil(layout.rows_max).max(1);
        let mut leaves = Vec::with_capacity(count);
        advise_huge_pages(leaves.spare_capacity_mut());
        let (firsts, heads) = (Vec::with_capacity(count), Vec::with_capacity(count));
        Builder { tree: Tree { layout, leaves, firsts, heads, dirty: Vec::new(), rows: 0 } }
    }

    fn add_leaf(&mut self, first: &[u8]) {
        self.tree.leaves.push(Latched::empty(self.tree.leaves.len()));
        self.tree.firsts.push(first.into());
        self.tree.heads.push(head(first));
    }

    fn push(&mut self, key: &[u8], value: &[u8]) {
        if self.tree.rows.is_multiple_of(self.tree.layout.rows_max as u64) {
            self.add_leaf(key);
        }
        if let Some(last) = self.tree.leaves.last_mut() {
            last.leaf().push(self.tree.layout, key, value);
        }
        self.tree.rows += 1;
    }

    /// The tree, all of it dirty.
    fn finish(mut self) -> Tree {
        let bits = |first: usize| (first..self.tree.leaves.len().min(first + 64)).len();
        let words = (0..self.tree.leaves.len()).step_by(64).map(|first| match bits(first) {
            64 => u64::MAX,
            count => (1 << count) - 1,
        });
        self.tree.dirty = words.map(AtomicU64::new).collect();
        self.tree
    }
}
