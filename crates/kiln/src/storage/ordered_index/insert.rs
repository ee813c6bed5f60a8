//! Insertion, and the splits that it causes.
//!
//! An insertion locks its leaf alone. If the leaf is full, it goes down once more, remembers the path, and
//! locks from the leaf upwards every full node and the first one that has room:
//!
//! ```text
//!        root  [ . . . ]            not touched
//!              [ x . . ]  locked    has room: takes separator and right half
//!              [ x x x ]  locked    full: split
//!        leaf  [ x x x ]  locked    full: split
//! ```
//!
//! Each lock is taken only at the version that the descent has read, never waited for, and all are held until
//! all changes are made; so there is no deadlock, a failure changes nothing, and no reader can see a node that
//! has shrunk under a parent that does not know it.

use std::cmp::Ordering;

use crate::storage::epoch::Pin;
use crate::storage::prefix::shortest_separator;
use crate::sync::atomic::Ordering as Memory;

use super::batch::LeafRead;
use super::inner::{LockedInner, NodeId, Target};
use super::key::{Key, KeyRef, Probe, UnpublishedKey};
use super::slots::{Locked, SLOT_COUNT, Slots};
use super::{HEIGHT_MAX, OrderedIndex, Step, retry};
use crate::planted::{Bug, planted};

/// What an insertion did.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Insertion {
    /// The key was there; nothing was changed.
    Present,
    /// The key was inserted, and nothing else happened to its leaf between `before` and `after`: a
    /// transaction that had read `before` may go on with `after` in its place.
    Inserted { before: LeafRead, after: LeafRead },
    /// The key was inserted and its leaf split: a transaction that had read `before` may go on with both of
    /// `after` in its place.
    Split { before: LeafRead, after: [LeafRead; 2] },
}

/// What keys that are inserted together are to those that are there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Run {
    /// There are none between them, but there may be some later: a leaf is left behind with some room.
    Dense,
    /// They go between others: leaves are split in the middle, and only when they are full.
    Sparse,
}

impl OrderedIndex {
    /// Inserts a key unless it is there.
    ///
    /// # Panics
    /// If the key is longer than 65,536 bytes.
    pub(crate) fn insert(&self, pin: &Pin, key: &[u8]) -> Insertion {
        self.end_vacancy();
        let probe = Probe::new(key);
        // Made at most once, outside any lock, and freed if the key turns out to be present.
        let mut new_key = None;
        retry(|| self.try_insert(pin, key, &probe, &mut new_key))
    }

    fn end_vacancy(&self) {
        if !planted(Bug::VacancyKept) {
            self.vacancy.end();
        }
    }

    fn try_insert(
        &self,
        pin: &Pin,
        key: &[u8],
        probe: &Probe<'_>,
        new_key: &mut Option<UnpublishedKey>,
    ) -> Option<Insertion> {
        let leaf = self.descend(pin, &Target::At(*probe), |_| Some(()))?;
        let (position, present) = leaf.slots.search(pin, leaf.version, probe)?;
        if present {
            leaf.slots.check(leaf.version)?;
            return Some(Insertion::Present);
        }
        new_key.get_or_insert_with(|| UnpublishedKey::new(key));
        if leaf.slots.count() == SLOT_COUNT {
            return self.try_insert_with_split(pin, probe, new_key, false);
        }
        let mut locked = leaf.slots.lock(leaf.version)?;
        locked.insert(position, self.publish(made(new_key)));
        let read = |version| LeafRead { leaf: leaf.number, version };
        let before = read(locked.version_before().number());
        let after = read(locked.version_after().number());
        drop(locked);
        self.counters.add_keys(1);
        Some(Insertion::Inserted { before, after })
    }

    /// Inserts those keys that are not there, as [`Self::insert`] does one by one. If they ascend, as they should, one descent does for all that go
    /// into one leaf. For recovery: keys are made while a leaf is locked.
    ///
    /// # Panics
    /// If a key is longer than 65,536 bytes.
    pub(crate) fn insert_ascending(&self, pin: &Pin, keys: &[&[u8]], run: Run) {
        self.end_vacancy();
        let mut left = keys;
        while let [first, ..] = left {
            // Else each of keys that descend would get a leaf of its own.
            let ascend = run == Run::Dense && left.get(1).is_none_or(|second| first < second);
            let done = retry(|| self.try_insert_into_leaf(pin, left, ascend));
            if done == 0 {
                let (probe, mut new_key) = (Probe::new(first), Some(UnpublishedKey::new(first)));
                // If it fails, somebody may have made room.
                let _ = self.try_insert_with_split(pin, &probe, &mut new_key, ascend);
            }
            left = &left[done..];
        }
    }

    /// Inserts into the first key's leaf what goes there of the keys up to one that does not follow the one before, and has room. Returns how many
    /// of them are there now.
    fn try_insert_into_leaf(&self, pin: &Pin, keys: &[&[u8]], ascend: bool) -> Option<usize> {
        let first = Probe::new(keys.first()?);
        let mut fence: Option<KeyRef<'_>> = None;
        let leaf = self.descend(pin, &Target::At(first), |step| {
            if step.index < step.inner.slots.count() {
                fence = Some(step.inner.slots.key(pin, step.version, step.index)?);
            }
            Some(())
        })?;
        let (mut position, _) = leaf.slots.search(pin, leaf.version, &first)?;
        let mut locked = leaf.slots.lock(leaf.version)?;
        let (mut done, mut added) = (0, 0);
        for (index, key) in keys.iter().enumerate() {
            let probe = Probe::new(key);
            let follows = index == 0 || keys[index - 1] < *key;
            if !follows || fence.is_some_and(|fence| fence.compare(&probe) != Ordering::Greater) {
                break;
            }
            while position < locked.count() && locked.key(position).compare(&probe) == Ordering::Less {
                position += 1;
            }
            let present =
                position < locked.count() && locked.key(position).compare(&probe) == Ordering::Equal;
            if !present {
                if is_full_for(&locked, position, ascend) {
                    break;
                }
                locked.insert(position, self.publish(UnpublishedKey::new(key)));
                added += 1;
            }
            done += 1;
        }
        drop(locked);
        self.counters.add_keys(added);
        Some(done)
    }

    fn publish(&self, new_key: UnpublishedKey) -> Key {
        let key = new_key.publish();
        self.counters.add_key_bytes(key.heap_bytes() as isize);
        key
    }

    fn try_insert_with_split(
        &self,
        pin: &Pin,
        probe: &Probe<'_>,
        new_key: &mut Option<UnpublishedKey>,
        ascending: bool,
    ) -> Option<Insertion> {
        let mut path: Vec<Step<'_>> = Vec::with_capacity(HEIGHT_MAX);
        let leaf = self.descend(pin, &Target::At(*probe), |step| {
            path.push(step);
            Some(())
        })?;
        let (position, present) = leaf.slots.search(pin, leaf.version, probe)?;
        let locked = leaf.slots.lock(leaf.version)?;
        if present || !is_full_for(&locked, position, ascending) {
            // Somebody else was faster with this key or this split; the ordinary way will do now.
            return None;
        }
        let mut parents = Vec::with_capacity(path.len());
        for step in path.iter().rev() {
            let parent = LockedInner::lock(step.id, step.inner, step.version)?;
            let is_full = parent.slots.is_full();
            parents.push((parent, step.index));
            if !is_full {
                break;
            }
        }
        // Keys mostly arrive in order at the end of the index or not at all. There a split in the middle
        // would leave every node half empty for ever.
        let at_end = path.iter().all(|step| step.index == step.inner.slots.count());
        let at_key = ascending || at_end && position == SLOT_COUNT;
        let before = LeafRead { leaf: leaf.number, version: locked.version_before().number() };
        let key = (position, self.publish(made(new_key)));
        let after = self.split(locked, leaf.number, key, (at_key, at_end), parents);
        self.counters.add_keys(1);
        Some(Insertion::Split { before, after })
    }

    /// Splits the leaf and hands separators up; returns its halves as they will be. All nodes are locked; unlocking
    /// them is the last thing.
    fn split<'a>(
        &'a self,
        mut leaf: Locked<'a>,
        leaf_number: u32,
        key: (usize, Key),
        (at_key, at_end): (bool, bool),
        mut parents: Vec<(LockedInner<'a>, usize)>,
    ) -> [LeafRead; 2] {
        let (right_number, right) = self.leaves.allocate();
        let mut right = right.adopt();
        let mut separator = self.split_leaf(&mut leaf, &mut right, key, at_key);
        let halves = [(leaf_number, &leaf), (right_number, &right)]
            .map(|(leaf, locked)| LeafRead { leaf, version: locked.version_after().number() });
        let (mut left_id, mut right_id) = (NodeId::leaf(leaf_number), NodeId::leaf(right_number));
        let mut new_nodes = Vec::new();
        for (parent, index) in &mut parents {
            if !parent.slots.is_full() {
                parent.insert(*index, separator, right_id);
                return halves;
            }
            let (number, sibling) = self.inners.allocate();
            let mut sibling = LockedInner::adopt(NodeId::inner(number), sibling);
            separator = split_inner(parent, &mut sibling, *index, separator, right_id, at_end);
            (left_id, right_id) = (parent.id, sibling.id);
            new_nodes.push(sibling);
        }
        // Every node of the path was full, so the last one split is the root, and this thread has it locked.
        assert!(parents.len() + 2 < HEIGHT_MAX, "a tree of {HEIGHT_MAX} levels cannot be filled");
        let (number, root) = self.inners.allocate();
        let mut root = LockedInner::adopt(NodeId::inner(number), root);
        root.set_only_child(left_id);
        root.insert(0, separator, right_id);
        self.root.store(root.id.word(), Memory::Release);
        halves
    }

    /// Splits a leaf around a new key, in the middle or where the key goes; returns the separator of the two halves.
    fn split_leaf(
        &self,
        left: &mut Locked<'_>,
        right: &mut Locked<'_>,
        (position, key): (usize, Key),
        at_key: bool,
    ) -> Key {
        const MIDDLE: usize = SLOT_COUNT / 2;
        let (split_at, into_left) = match at_key {
            true => (position, position < left.count()),
            false if position <= MIDDLE => (MIDDLE, true),
            false => (MIDDLE + 1, false),
        };
        left.move_upper(split_at, right);
        if into_left {
            left.insert(position, key);
        } else {
            right.insert(position - split_at, key);
        }
        let (highest_left, lowest_right) = (left.key(left.count() - 1).to_vec(), right.key(0).to_vec());
        let separator = UnpublishedKey::new(shortest_separator(&highest_left, &lowest_right)).publish();
        self.counters.add_key_bytes(separator.heap_bytes() as isize);
        separator
    }
}

/// Whether a key that goes to the position needs another leaf. Of keys that ascend only so many go to the end of one.
fn is_full_for(leaf: &Locked<'_>, position: usize, ascending: bool) -> bool {
    const ASCENDING_MAX: usize = SLOT_COUNT * 3 / 4;
    leaf.is_full() || ascending && position == leaf.count() && position >= ASCENDING_MAX
}

/// Takes the key that was made before its leaf was locked.
fn made(new_key: &mut Option<UnpublishedKey>) -> UnpublishedKey {
    new_key.take().expect("the key is made before the leaf is locked")
}

/// Splits a full inner node around a new child, to be put to the right of the one at `index`; returns the
/// separator that goes up.
fn split_inner(
    left: &mut LockedInner<'_>,
    right: &mut LockedInner<'_>,
    index: usize,
    separator: Key,
    child: NodeId,
    at_end: bool,
) -> Key {
    let split_at = if at_end { SLOT_COUNT - 1 } else { SLOT_COUNT / 2 };
    let upwards = left.split(split_at, right);
    if index <= split_at {
        left.insert(index, separator, child);
    } else {
        right.insert(index - split_at - 1, separator, child);
    }
    upwards
}

const _: () = assert!(size_of::<Slots>().is_multiple_of(64), "nodes of an arena do not share cache lines");
