//! A walk's way among settled rows: whether one comes before the next key of the index in memory.

use std::cmp::Ordering;
use std::ops::Bound;

use super::{Walk, is_beyond, way_of};
use crate::error::Result;
use crate::objects::settled_rows::SettledRows;
use crate::storage::ordered_index::LeafRead;
use crate::storage::record::NEVER;

impl Walk {
    /// True if settled rows may come between those of the leaf.
    #[inline]
    pub(super) fn is_beside_settled(&self) -> bool {
        self.settled.is_some() && !self.leaf.batch.is_whole()
    }

    /// True if a settled row, of those that the leaf stands for, comes before the leaf's next key.
    pub(super) fn is_settled_next(&mut self) -> Result<bool> {
        let (goes_on, rows_wanted) = (self.goes_on(), self.rows_wanted());
        let Walk { lower, upper, leaf, .. } = self;
        let (reverse, way) = (self.reverse, way_of(self.reverse, lower, upper));
        let Some(settled) = &mut self.settled else { return Ok(false) };
        let Some(key) = settled.next(way, rows_wanted)? else { return Ok(false) };
        // A key beyond the leaf belongs to the next one.
        let fence = match leaf.batch.next() {
            Some(Bound::Included(fence) | Bound::Excluded(fence)) if goes_on => Some(fence),
            _ => None,
        };
        let is_of_leaf = fence.is_none_or(|fence| (key < fence) != reverse);
        if !is_of_leaf || is_beyond(reverse, (lower, upper), key) {
            return Ok(false);
        }
        let in_memory = leaf.batch.get(self.position).filter(|_| self.position < leaf.inside);
        let order = in_memory.map(|in_memory| key.cmp(in_memory));
        if order.is_some_and(Ordering::is_eq) {
            // It was written since it settled.
            settled.pass()?;
        }
        if order.is_some_and(|order| if reverse { order.is_le() } else { order.is_ge() }) {
            return Ok(false);
        }
        let fence = fence.map(if reverse { Bound::Included } else { Bound::Excluded });
        settled.begin_run([Some(way.far), fence, in_memory.map(Bound::Excluded)], rows_wanted);
        Ok(true)
    }

    /// How the next settled row's key compares with this one.
    pub(super) fn compare_settled(&mut self, key: &[u8]) -> Result<Ordering> {
        let (way, rows_wanted) = (way_of(self.reverse, &self.lower, &self.upper), self.rows_wanted());
        let settled = match &mut self.settled {
            Some(settled) => settled.next(way, rows_wanted)?,
            None => None,
        };
        Ok(settled.unwrap_or_default().cmp(key))
    }

    /// Goes to the settled row that comes next, which is not given yet.
    pub(super) fn give_settled(&mut self) -> Result<()> {
        let rows_wanted = self.rows_wanted();
        let Some(settled) = &mut self.settled else { return Ok(()) };
        settled.next(way_of(self.reverse, &self.lower, &self.upper), rows_wanted)?;
        settled.give(if self.reverse { &mut self.upper } else { &mut self.lower });
        Ok(())
    }

    /// Goes to the next row, if it is known to be a settled one unless the transaction has written some; false if it is not.
    #[inline]
    pub(in crate::objects) fn step_in_run(&mut self) -> bool {
        let Some(settled) = self.settled.as_mut().filter(|settled| settled.run() > 0) else { return false };
        settled.give(if self.reverse { &mut self.upper } else { &mut self.lower });
        true
    }

    pub(super) fn pass_settled(&mut self) -> Result<()> {
        self.settled.as_mut().map_or(Ok(()), SettledRows::pass)
    }

    /// The leaf for which the walk has come to a settled row.
    pub(in crate::objects) fn leaf_read(&self) -> LeafRead {
        self.leaf.batch.read()
    }

    /// When the settled row that the walk has come to expires, if it does.
    #[inline]
    pub(in crate::objects) fn settled_expires_at(&self) -> u64 {
        self.settled.as_ref().map_or(NEVER, SettledRows::expires_at)
    }

    /// The value of the settled row that the walk has come to, if it lies in memory.
    #[inline]
    pub(in crate::objects) fn settled_value(&self) -> Option<&[u8]> {
        self.settled.as_ref().and_then(SettledRows::value)
    }

    /// True if it does.
    #[inline]
    pub(in crate::objects) fn has_settled_value(&self) -> bool {
        self.settled.as_ref().is_some_and(SettledRows::has_value)
    }

    /// Reads the value of the settled row that the walk has come to.
    pub(in crate::objects) fn read_settled(&mut self, value: &mut Vec<u8>) -> Result<()> {
        self.settled.as_mut().map_or(Ok(()), |settled| settled.value_into(value))
    }
}
