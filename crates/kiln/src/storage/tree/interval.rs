//! Intervals of the keys between separators: a part of a merge has one, and so has who walks over a part of what settles.

use std::ops::Range;

use super::node::Node;

/// Keys from `low` on, and before `high`.
pub(super) struct Interval {
    pub(super) low: Vec<u8>,
    pub(super) high: Option<Vec<u8>>,
}

/// The interval of this number of those between separators, which ascend: keys from one on, and before the other.
pub(crate) fn interval(separators: &[Vec<u8>], number: usize) -> (&[u8], Option<&[u8]>) {
    let low = number.checked_sub(1).map_or(&[][..], |before| &separators[before]);
    (low, separators.get(number).map(Vec::as_slice))
}

/// All keys.
pub(super) static EVERYTHING: Interval = Interval { low: Vec::new(), high: None };

impl Interval {
    /// The intervals between keys, which ascend.
    pub(super) fn between(separators: &[Vec<u8>]) -> impl Iterator<Item = Interval> {
        (0..=separators.len()).map(|number| {
            let (low, high) = interval(separators, number);
            Interval { low: low.to_vec(), high: high.map(<[u8]>::to_vec) }
        })
    }

    /// True if it has keys between these.
    pub(super) fn meets(&self, low: &[u8], high: Option<&[u8]>) -> bool {
        high.is_none_or(|high| high > &self.low[..]) && self.high.as_ref().is_none_or(|end| low < &end[..])
    }

    /// True if it has all keys between these.
    pub(super) fn has_all(&self, low: &[u8], high: Option<&[u8]>) -> bool {
        let ends_here = |end: &Vec<u8>| high.is_some_and(|high| high <= &end[..]);
        self.begins_before(low) && self.high.as_ref().is_none_or(ends_here)
    }

    /// Where those of its keys end that are before `high`.
    pub(super) fn end_of<'i>(&'i self, high: Option<&'i [u8]>) -> Option<&'i [u8]> {
        match (self.high.as_deref(), high) {
            (Some(end), Some(high)) => Some(end.min(high)),
            (end, high) => end.or(high),
        }
    }

    /// Those of a leaf's entries that it has.
    pub(super) fn entries_of(&self, leaf: &Node) -> Range<usize> {
        let start = if self.low.is_empty() { 0 } else { leaf.search(&self.low).0 };
        start..self.high.as_ref().map_or(leaf.count(), |high| leaf.search(high).0)
    }

    /// True unless a key is before it.
    pub(super) fn begins_before(&self, key: &[u8]) -> bool {
        &self.low[..] <= key
    }
}
