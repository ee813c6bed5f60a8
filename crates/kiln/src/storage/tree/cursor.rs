//! Walks over the keys of a root, both ways.
//!
//! Between two steps a cursor holds its root, the leaf it is in, and the nodes above, all of which never change: no lock, and no pin. Where the
//! leaves it comes to are not in memory, it reads several of those that follow at once: as many as the rows that are wanted take, or, where nobody says
//! how many these are, those up to the end of the walk if they are few, or else a growing number. It keeps them to itself if the cache is full: a long walk would otherwise replace what others look for.

use std::ops::{Bound, Range};
use std::sync::Arc;

use super::Tree;
use super::node::Node;
use super::reference::NodeReference;
use super::root::Root;
use super::values::ValuesAhead;
use crate::error::Result;
use crate::storage::record::NEVER;

/// Leaves that are read at once, at most.
const AHEAD_MAX: usize = 32;

/// If no more leaves than these are left up to the end of a walk, it is taken to go there.
const LEFT_MAX: usize = 8;

/// So many entries ahead of the one that it is at a cursor has the processor fetch.
const FETCH_AHEAD: usize = 8;

/// Which way a cursor goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    /// To greater keys.
    Forwards,
    /// To lesser keys.
    Backwards,
}

impl Direction {
    /// So many of the places from one of them on, as far as there are any; there are `end`.
    #[inline]
    fn places(self, first: usize, count: usize, end: usize) -> impl Iterator<Item = usize> {
        (0..count).map_while(move |place| match self {
            Direction::Forwards => Some(first + place).filter(|&place| place < end),
            Direction::Backwards => first.checked_sub(place),
        })
    }

    /// True if it comes to one key before the other.
    #[inline]
    pub(crate) fn is_before(self, one: &[u8], other: &[u8]) -> bool {
        match self {
            Direction::Forwards => one < other,
            Direction::Backwards => one > other,
        }
    }
}

/// See [`Cursor::entry`].
type Entry<'c> = (&'c [u8], &'c [u8], Option<Range<usize>>);

/// A walk over the keys of a root.
pub(crate) struct Cursor {
    tree: Arc<Tree>,
    root: Arc<Root>,
    direction: Direction,
    /// From the root down to the leaf, and which of its entries it is at. Empty: past the end.
    path: Vec<(Arc<Node>, usize)>,
    /// The key that it is at, if somebody has asked for it since it came there.
    key: Vec<u8>,
    has_key: bool,
    /// How many leaves to read when the next one is not in memory, and it is not known how many are wanted.
    ahead: usize,
    /// So many entries are wanted behind its leaf, or from where it seeks, if that is known.
    wanted: Option<u64>,
    /// Nothing is wanted behind this key, in its direction. Empty: there is no such key.
    end: Vec<u8>,
    /// Leaves that have been read and are to come, the next one last.
    read: Vec<Arc<Node>>,
    values: ValuesAhead,
    /// Nobody has asked for what it comes to.
    is_unasked: bool,
}

impl Cursor {
    /// A cursor that is past the end until it seeks.
    pub(crate) fn new(tree: &Arc<Tree>, root: Arc<Root>) -> Cursor {
        Cursor {
            tree: Arc::clone(tree),
            root,
            direction: Direction::Forwards,
            path: Vec::new(),
            key: Vec::new(),
            has_key: false,
            ahead: 1,
            wanted: None,
            end: Vec::new(),
            read: Vec::new(),
            values: ValuesAhead::default(),
            is_unasked: false,
        }
    }

    /// A cursor on a way for which nobody has asked: what it reads does not count, and of leaves only those stay in memory for which there is room. It reads one
    /// after the other.
    pub(crate) fn unasked(tree: &Arc<Tree>, root: Arc<Root>) -> Cursor {
        Cursor { is_unasked: true, ..Cursor::new(tree, root) }
    }

    /// Goes to the first key that is within the bound, which is where the walk begins: the least one forwards, the greatest one backwards.
    ///
    /// # Errors
    /// What cannot be read, or is damaged, with its place; then the cursor is past the end.
    pub(crate) fn seek(&mut self, bound: Bound<&[u8]>, direction: Direction) -> Result<()> {
        self.direction = direction;
        self.ahead = 1;
        self.read.clear();
        self.values.forget();
        self.path.clear();
        let found = self.find(bound);
        self.settle(found)
    }

    /// Goes on, forwards, to the first key that is not less than `key`; it has sought none that is greater. In the leaf that it is in
    /// nothing is read for it.
    ///
    /// # Errors
    /// As of [`Cursor::seek`].
    pub(crate) fn seek_on(&mut self, key: &[u8]) -> Result<()> {
        if let Some((leaf, index)) = self.path.last_mut()
            && let (found, _) = leaf.search(key)
            && found < leaf.count()
        {
            *index = found;
            self.has_key = false;
            return Ok(());
        }
        self.seek(Bound::Included(key), Direction::Forwards)
    }

    /// True if it is over this root.
    #[inline]
    pub(crate) fn is_over(&self, root: &Arc<Root>) -> bool {
        Arc::ptr_eq(&self.root, root)
    }

    /// The key that it is at; `None` past the end.
    #[inline]
    pub(crate) fn key(&mut self) -> Option<&[u8]> {
        let (leaf, index) = self.path.last()?;
        if !self.has_key {
            leaf.key_into(*index, &mut self.key);
            self.has_key = true;
        }
        Some(&self.key)
    }

    /// So many entries of its leaf lie between it and a bound, in its direction, the one that it is at included. None of them, and no
    /// more than them, is passed by [`Cursor::step_in_leaf`].
    pub(crate) fn count_within(&self, end: Bound<&[u8]>) -> usize {
        let Some((leaf, index)) = self.path.last() else { return 0 };
        let (key, is_included) = match (end, self.direction) {
            (Bound::Unbounded, Direction::Forwards) => return leaf.count() - index,
            (Bound::Unbounded, Direction::Backwards) => return index + 1,
            (Bound::Included(key), _) => (key, true),
            (Bound::Excluded(key), _) => (key, false),
        };
        let (below, is_there) = leaf.search(key);
        match self.direction {
            Direction::Forwards => (below + usize::from(is_there && is_included)).saturating_sub(*index),
            Direction::Backwards => (index + 1).saturating_sub(below + usize::from(is_there && !is_included)),
        }
    }

    /// Replaces `key` by that at which the leaf behind its own begins, forwards; false if there is none, or it is past the end.
    pub(crate) fn next_leaf_into(&self, key: &mut Vec<u8>) -> bool {
        let above = self.path.split_last().map_or(&[][..], |(_, above)| above);
        let next = above.iter().rev().find(|(node, index)| index + 1 < node.count());
        next.inspect(|(node, index)| node.key_into(index + 1, key)).is_some()
    }

    /// Goes to the next entry, which is known to be in the same leaf.
    #[inline]
    pub(crate) fn step_in_leaf(&mut self) {
        let Some((leaf, index)) = self.path.last_mut() else { return };
        match self.direction {
            Direction::Forwards => {
                *index = (*index + 1).min(leaf.count() - 1);
                leaf.prefetch_cell(*index + FETCH_AHEAD);
            }
            Direction::Backwards => {
                *index = index.saturating_sub(1);
                leaf.prefetch_cell(index.saturating_sub(FETCH_AHEAD));
            }
        }
        self.has_key = false;
    }

    /// Where it is about to seek, and from there on, nothing is wanted behind a key, in its direction.
    pub(crate) fn end_at(&mut self, key: &[u8]) {
        self.end.clear();
        self.end.extend_from_slice(key);
    }

    /// So many of the next entries, or of those from where it is about to seek, are wanted, if that is known. Has the processor fetch
    /// them, as far as that is of use: who goes on has the rest fetched step by step; and what comes behind the leaf, if that is in memory.
    pub(crate) fn expect(&mut self, entries: Option<usize>) {
        self.wanted = entries.map(|entries| entries as u64);
        self.values.expect(entries);
        let Some(((leaf, index), above)) = self.path.split_last() else { return };
        let (left, is_forwards) = match self.direction {
            Direction::Forwards => (leaf.count() - index, true),
            Direction::Backwards => (index + 1, false),
        };
        self.wanted = self.wanted.map(|wanted| wanted.saturating_sub(left as u64));
        let entries = entries.unwrap_or(usize::MAX);
        for ahead in 0..entries.min(left).min(FETCH_AHEAD + 1) {
            leaf.prefetch_cell(if is_forwards { index + ahead } else { index - ahead });
        }
        let Some((parent, index)) = above.last().filter(|_| entries > left) else { return };
        let next = if is_forwards { Some(index + 1) } else { index.checked_sub(1) };
        if let Some(next) = next.filter(|&next| next < parent.count()) {
            self.tree.pages.cache.prefetch_child(parent, next);
        }
    }

    /// What all keys of its leaf begin with, how the key that it is at goes on, and where in the leaf the value lies, if it does.
    #[inline]
    pub(crate) fn entry(&self) -> Option<Entry<'_>> {
        let (leaf, index) = self.path.last()?;
        let (rest, value) = leaf.entry(*index);
        Some((leaf.prefix(), rest, value))
    }

    /// When the value of the key that it is at expires, if it does.
    #[inline]
    pub(crate) fn expires_at(&self) -> u64 {
        self.path.last().map_or(NEVER, |(leaf, index)| leaf.expires_at(*index))
    }

    /// The value of which [`Cursor::entry`] has told where it lies, as long as the cursor is in the same leaf.
    #[inline]
    pub(crate) fn value_at(&self, place: Range<usize>) -> &[u8] {
        self.path.last().map_or(&[], |(leaf, _)| leaf.bytes_at(place))
    }

    /// Replaces `value` by the value of the key that it is at. Past the end there is none, and `value` stays.
    ///
    /// # Errors
    /// As of [`Cursor::seek`], but that the cursor stays.
    pub(crate) fn value_into(&mut self, value: &mut Vec<u8>) -> Result<()> {
        let Some((leaf, index)) = self.path.last() else { return Ok(()) };
        let others = self.direction.places(*index, usize::MAX, leaf.count()).skip(1);
        self.values.take(&self.tree, leaf, (*index, others), value)
    }

    #[cfg(test)]
    pub(super) fn values_ahead(&self) -> usize {
        self.values.len()
    }

    /// Goes to the next key in its direction.
    ///
    /// # Errors
    /// As of [`Cursor::seek`].
    pub(crate) fn step(&mut self) -> Result<()> {
        let found = self.next();
        self.settle(found)
    }

    /// Takes note of where a movement has led.
    fn settle(&mut self, found: Result<()>) -> Result<()> {
        if found.is_err() {
            self.path.clear();
        }
        self.has_key = false;
        found
    }

    /// Goes down to where the bound is.
    fn find(&mut self, bound: Bound<&[u8]>) -> Result<()> {
        let Some((reference, level)) = self.root.top() else { return Ok(()) };
        let (key, is_included) = match bound {
            Bound::Unbounded => return self.go_down(reference, level),
            Bound::Included(key) => (key, true),
            Bound::Excluded(key) => (key, false),
        };
        let (mut reference, mut level) = (reference, level);
        while level > 0 {
            let node = self.node(&reference, level)?;
            node.prefetch_search();
            let index = node.child_index(key);
            reference = self.go_below(node, index);
            level -= 1;
        }
        let leaf = self.leaf(&reference, true)?;
        leaf.prefetch_search();
        let (index, is_there) = leaf.search(key);
        let count = leaf.count();
        match self.direction {
            Direction::Forwards => {
                let index = index + usize::from(is_there && !is_included);
                // The entry before, from which one step leads there, may be in another leaf.
                self.push(leaf, index.min(count - 1));
                if index == count { self.next() } else { Ok(()) }
            }
            Direction::Backwards => {
                let end = index + usize::from(is_there && is_included);
                self.push(leaf, end.saturating_sub(1));
                if end == 0 { self.next() } else { Ok(()) }
            }
        }
    }

    /// Goes to a child of a node below the last one of the path, which is yet to be found.
    fn go_below(&mut self, node: Arc<Node>, index: usize) -> NodeReference {
        node.prefetch_child(index);
        let child = node.child(index);
        self.push(node, index);
        child
    }

    /// Goes to an entry of a node below the last one of the path.
    fn push(&mut self, node: Arc<Node>, index: usize) {
        if let Some((parent, index)) = self.path.last() {
            parent.note_child(*index, &node);
        }
        self.path.push((node, index));
    }

    fn node(&self, reference: &NodeReference, level: u16) -> Result<Arc<Node>> {
        match self.is_unasked {
            true => self.tree.pages.node_unasked(reference, level),
            false => self.tree.pages.node(reference, level),
        }
    }

    /// The leaf that comes next, the cursor perhaps somewhere `within` it. If it is not in memory, it is read together with those behind it.
    fn leaf(&mut self, reference: &NodeReference, within: bool) -> Result<Arc<Node>> {
        if self.is_unasked {
            return self.node(reference, 0);
        }
        let is_it = |node: &mut Arc<Node>| node.is(reference);
        if let Some(node) = self.read.pop_if(is_it) {
            return Ok(node);
        }
        if let Some(node) = self.tree.pages.node_in_memory(reference, 0) {
            return node;
        }
        if self.read.is_empty() {
            self.read_ahead(within);
        }
        match self.read.pop_if(is_it) {
            Some(node) => Ok(node),
            None => self.tree.pages.read_node(reference, 0),
        }
    }

    /// Goes down to the first entry below a node, in the cursor's direction.
    fn go_down(&mut self, mut reference: NodeReference, mut level: u16) -> Result<()> {
        loop {
            let node = match level {
                0 => self.leaf(&reference, false)?,
                _ => self.node(&reference, level)?,
            };
            let index = match self.direction {
                Direction::Forwards => 0,
                Direction::Backwards => node.count() - 1,
            };
            if level == 0 {
                self.push(node, index);
                return Ok(());
            }
            reference = self.go_below(node, index);
            level -= 1;
        }
    }

    /// Goes to the next entry, be it in another leaf.
    fn next(&mut self) -> Result<()> {
        while let Some((node, index)) = self.path.last_mut() {
            let next = match self.direction {
                Direction::Forwards => Some(*index + 1).filter(|&next| next < node.count()),
                Direction::Backwards => index.checked_sub(1),
            };
            let Some(next) = next else {
                self.path.pop();
                continue;
            };
            *index = next;
            let level = node.level();
            if level == 0 {
                return Ok(());
            }
            let child = node.child(next);
            return self.go_down(child, level - 1);
        }
        Ok(())
    }

    /// Reads the leaf that comes next, which is not in memory, and those behind it, if it is worth it. What cannot be read, or is damaged, is left to who
    /// comes to it.
    fn read_ahead(&mut self, within: bool) {
        let cache = &self.tree.pages.cache;
        let (mut leaves, is_known) = self.leaves_to_read(within);
        if leaves.len() > 1 {
            // What is no long walk others look for again.
            let is_short = is_known && leaves.len() < AHEAD_MAX;
            leaves.reverse();
            self.read = self.tree.read_leaves(&leaves).unwrap_or_default();
            for node in &self.read {
                cache.note_miss();
                if is_short || cache.has_room(node.memory_bytes()) {
                    cache.insert(Arc::clone(node));
                }
            }
        }
        if !within {
            self.ahead = (self.ahead * 2).min(AHEAD_MAX);
        }
    }

    /// The leaves from the next one on that are worth to be read together, as far as they are not in memory, and whether they are known to be wanted: those
    /// that have what is, beginning in the middle of the first one if that is `within` it, and none behind the end.
    fn leaves_to_read(&self, within: bool) -> (Vec<NodeReference>, bool) {
        let Some((parent, index)) = self.path.last() else { return (Vec::new(), false) };
        let last = (!self.end.is_empty()).then(|| parent.child_index(&self.end));
        // In the outermost child it may as well be in another parent.
        let (left, is_end_here) = match (last, self.direction) {
            (None, _) => (usize::MAX, false),
            (Some(last), Direction::Forwards) => (last.saturating_sub(*index) + 1, last + 1 < parent.count()),
            (Some(last), Direction::Backwards) => (index.saturating_sub(last) + 1, last > 0),
        };
        let is_known = self.wanted.is_some() || is_end_here && left <= LEFT_MAX;
        let count = left.min(if is_known { AHEAD_MAX } else { self.ahead });
        let mut places = self.direction.places(*index, count, parent.count());
        let (mut leaves, mut entries) = (Vec::with_capacity(count), 0);
        while self.wanted.is_none_or(|wanted| entries < wanted)
            && let Some(place) = places.next()
        {
            let leaf = parent.child(place);
            // What a forged tree says of its leaves may be anything.
            let more = if within && place == *index { leaf.entries / 2 } else { leaf.entries };
            entries = u64::saturating_add(entries, more);
            if self.tree.pages.cache.get(&leaf).is_none() {
                leaves.push(leaf);
            }
        }
        (leaves, is_known)
    }
}
