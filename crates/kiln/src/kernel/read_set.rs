//! What a transaction has read, and has to find unchanged.

use std::collections::HashMap;

use super::object::RangeRead;
use crate::planted::{Bug, planted};
use crate::storage::hash_index::{Bucket, Stamp};
use crate::storage::ordered_index::{Insertion, LeafRead};

/// Beyond so many leaves one is found by a hash table instead of a walk.
const LINEAR_MAX: usize = 16;

/// A bucket that a transaction read, and what it looked like.
#[derive(Clone, Copy)]
pub(crate) struct ReadEntry {
    pub(crate) bucket: Bucket,
    pub(crate) stamp: Stamp,
}

/// What a transaction read; shared by validation at commit and during the transaction.
#[derive(Default)]
pub(crate) struct ReadSet {
    pub(crate) entries: Vec<ReadEntry>,
    /// Each once, however often it was read.
    ranges: Vec<RangeRead>,
    /// Where each of the ranges is, once they are many.
    places: HashMap<RangeRead, usize>,
    /// The objects that it has used, which must still be there, in ascending order.
    pub(crate) objects: Vec<u32>,
}

impl ReadSet {
    pub(crate) fn clear(&mut self) {
        self.entries.clear();
        self.ranges.clear();
        self.places.clear();
        self.objects.clear();
    }

    /// The transaction uses an object.
    #[inline]
    pub(crate) fn note_object(&mut self, object: u32) {
        if let Err(place) = self.objects.binary_search(&object) {
            self.objects.insert(place, object);
        }
    }

    /// The transaction has read a leaf.
    pub(crate) fn note_range(&mut self, read: RangeRead) {
        if self.place_of(read).is_none() {
            self.ranges.push(read);
            self.index_last();
        }
    }

    /// Whether it has read that, and goes by it.
    pub(super) fn has_range(&self, object: u32, leaf: LeafRead) -> bool {
        self.place_of(RangeRead { object, leaf }).is_some()
    }

    pub(crate) fn ranges(&self) -> &[RangeRead] {
        &self.ranges
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len() + self.ranges.len()
    }

    /// Our own insertion is no phantom to us: goes on with the leaf, or its halves, as the insertion left it. True if it was read.
    pub(super) fn note_own_insertion(&mut self, object: u32, insertion: Insertion) -> bool {
        if self.ranges.is_empty() {
            return false;
        }
        let (before, after, other_half) = match insertion {
            Insertion::Present => return false,
            Insertion::Inserted { before, after } => (before, after, None),
            Insertion::Split { before, after: [left, right] } => (before, left, Some(right)),
        };
        let place = match planted(Bug::InsertionHidesOthers) {
            true => self.ranges.iter().position(|it| it.object == object && it.leaf.is_of_same_leaf(before)),
            false => self.place_of(RangeRead { object, leaf: before }),
        };
        let Some(place) = place else { return false };
        self.replace(place, RangeRead { object, leaf: after });
        if let Some(leaf) = other_half {
            self.note_range(RangeRead { object, leaf });
        }
        true
    }

    /// Goes on with what covers one that it has read, if it has.
    pub(super) fn go_on_with(&mut self, before: RangeRead, after: RangeRead) {
        if let Some(place) = self.place_of(before) {
            self.replace(place, after);
        }
    }

    /// Puts another one in one's place, or, if it is there already, nothing.
    fn replace(&mut self, place: usize, read: RangeRead) {
        let known = self.place_of(read);
        let replaced = match known {
            None => std::mem::replace(&mut self.ranges[place], read),
            Some(_) => self.ranges.swap_remove(place),
        };
        if !self.places.is_empty() {
            self.places.remove(&replaced);
            self.places.extend(self.ranges.get(place).map(|moved| (*moved, place)));
        }
    }

    fn place_of(&self, read: RangeRead) -> Option<usize> {
        match self.ranges.len() <= LINEAR_MAX {
            true => self.ranges.iter().position(|known| *known == read),
            false => self.places.get(&read).copied(),
        }
    }

    fn index_last(&mut self) {
        let count = self.ranges.len();
        let first = match count {
            0..=LINEAR_MAX => return,
            _ if count == LINEAR_MAX + 1 => 0,
            _ => count - 1,
        };
        self.places.extend((first..count).map(|place| (self.ranges[place], place)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All objects were looked through in each operation on another one than the last.
    #[test]
    fn each_object_is_noted_once_and_where_it_is_found_without_a_look_at_all() {
        let mut reads = ReadSet::default();
        let objects = (0..4_000).map(|number| number * 7_919 % 1_009);
        objects.for_each(|object| reads.note_object(object));
        assert!(reads.objects.iter().copied().eq(0..1_009));
    }

    /// A place that was left behind would be another one's, and be looked for in vain.
    #[test]
    fn c2_what_is_covered_by_another_one_is_there_no_more_and_all_others_are_once() {
        use crate::storage::epoch;
        use crate::storage::ordered_index::{LeafBatch, OrderedIndex};
        let (index, mut batch) = (OrderedIndex::new(), LeafBatch::new());
        let mut next = u32::MAX;
        let mut another = || {
            next -= 1;
            index.insert(&epoch::pin(), &next.to_be_bytes());
            index.read_forward(&epoch::pin(), std::ops::Bound::Unbounded, &mut batch);
            RangeRead { object: 1, leaf: batch.read() }
        };
        for count in [2, LINEAR_MAX, LINEAR_MAX + 1, LINEAR_MAX + 2, 3 * LINEAR_MAX] {
            let all: Vec<_> = (0..count).map(|_| another()).collect();
            let mut reads = ReadSet::default();
            all.iter().for_each(|read| reads.note_range(*read));
            let after = another();
            for (gone, before) in all.iter().enumerate() {
                reads.go_on_with(*before, after);
                let left = all[gone + 1..].iter().chain([&after]);
                assert_eq!(reads.ranges.len(), all.len() - gone);
                assert!(
                    left.clone()
                        .all(|read| reads.place_of(*read).is_some_and(|at| reads.ranges[at] == *read))
                );
                reads.note_range(all[all.len() - 1]);
                reads.note_range(after);
                assert_eq!(reads.ranges.len(), (all.len() - gone).max(2), "one is there twice");
            }
        }
    }
}
