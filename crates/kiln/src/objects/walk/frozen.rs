//! A long walk's way without the indexes: over the tree, and what has not settled, [frozen](crate::kernel::frozen).

use std::cmp::Ordering;
use std::ops::Bound;

use super::{Stored, Walk, exclude, is_beyond, way_of};
use crate::error::Result;
use crate::kernel::frozen::Wanted;
use crate::kernel::handle::HasHandle;
use crate::kernel::write_set::is_empty_range;
use crate::objects::Table;
use crate::objects::settled_rows::SettledRows;
use crate::storage::record::NEVER;

/// Records that were read from disk at random places, and since the first of them so many rows.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Paid {
    pub(super) reads: u64,
    rows: u64,
}

impl Paid {
    pub(super) fn add(&mut self, reads: u64, rows: usize) {
        self.reads += reads;
        self.rows += if self.reads > 0 { rows as u64 } else { 0 };
    }

    /// What so many rows would have cost.
    fn for_rows(self, rows: u64) -> Paid {
        let reads = u128::from(rows) * u128::from(self.reads) / u128::from(self.rows.max(1));
        Paid { reads: reads as u64, rows }
    }
}

impl Walk {
    /// Between two leaves: has what comes be walked over without the indexes, if so much was read from disk for their sake that it is worth it. What cannot
    /// be read for it is left to who comes to it.
    pub(super) fn freeze_if_paid(&mut self, table: &Table) -> bool {
        let bounds = self.bounds();
        let is_at_end = if self.fresh { !self.goes_on() } else { is_empty_range(bounds.0, bounds.1) };
        if is_at_end {
            return false;
        }
        let rows_wanted = self.rows_wanted().map_or(u64::MAX, |rows| rows as u64);
        let reads = self.paid.reads.min(rows_wanted);
        let wanted = Wanted {
            object: table.handle().id,
            bounds,
            direction: way_of(self.reverse, &self.lower, &self.upper).direction,
            version_max: self.version_max,
            log_end: self.log_end,
        };
        let (frozen, root) = match table.handle().engine.freeze(&wanted, reads) {
            Ok(Some(frozen)) => frozen,
            Ok(None) => return false,
            Err(_) => {
                self.paid = Paid::default();
                return false;
            }
        };
        // By this root, with which the log begins behind what has settled: the tree learns how many rows it has a moment later.
        let handle = table.handle();
        let is_to_be_seen = root.entries() > 0 && !handle.engine.is_loaded_after(handle.id, self.version_max);
        self.settled = is_to_be_seen.then(|| SettledRows::new(table, root));
        // Where it comes to an end before the walk does, the next one is paid for by what rows have cost before.
        self.paid = self.paid.for_rows(frozen.count());
        self.frozen = Some(Box::new(frozen));
        self.begin_without_keys();
        true
    }

    /// Where the next row is, of a walk that is over what is frozen; `None` at its end.
    pub(super) fn find_frozen(&mut self) -> Result<Option<Stored>> {
        let rows_wanted = self.rows_wanted();
        let Walk { reverse, lower, upper, settled, frozen, .. } = self;
        let (way, bounds) = (way_of(*reverse, lower, upper), (&*lower, &*upper));
        let Some(frozen) = frozen else { return Ok(None) };
        loop {
            let is_before = |one: &[u8], other: &[u8]| way.direction.is_before(one, other);
            let in_tree = match settled {
                Some(settled) => settled.next(way, rows_wanted)?,
                None => None,
            };
            let in_tree = in_tree.filter(|key| {
                !is_beyond(*reverse, bounds, key)
                    && frozen.cut_at().is_none_or(|cut_at| is_before(key, cut_at))
            });
            let order = match (in_tree, frozen.key()) {
                (None, None) => return Ok(None),
                (Some(_), None) => Ordering::Less,
                (None, Some(_)) => Ordering::Greater,
                (Some(in_tree), Some(key)) if in_tree == key => Ordering::Equal,
                (Some(in_tree), Some(key)) if is_before(in_tree, key) => Ordering::Less,
                _ => Ordering::Greater,
            };
            if let (Ordering::Less, Some(settled)) = (order, &mut *settled) {
                let ends =
                    [Some(way.far), frozen.cut_at().map(Bound::Excluded), frozen.key().map(Bound::Excluded)];
                settled.begin_run(ends, rows_wanted);
                return Ok(Some(Stored::Settled));
            }
            if let (Ordering::Equal, Some(settled)) = (order, &mut *settled) {
                settled.pass()?;
            }
            if frozen.has_value() {
                return Ok(Some(Stored::Frozen));
            }
            frozen.pass();
        }
    }

    /// Goes to the row that comes next, which is a frozen one.
    pub(super) fn take_frozen(&mut self) {
        let near = if self.reverse { &mut self.upper } else { &mut self.lower };
        if let Some(frozen) = &mut self.frozen {
            frozen.pass();
            exclude(near, frozen.row().0);
        }
    }

    /// What is frozen has come to its end: if some was left out, the walk goes on there.
    pub(super) fn leave_frozen(&mut self) {
        let Some(frozen) = self.frozen.take() else { return };
        match frozen.cut_at() {
            Some(cut_at) => *self.near_mut() = Bound::Included(cut_at.to_vec()),
            None => (self.ended, self.paid) = (true, Paid::default()),
        }
        self.read_anew();
    }

    /// Goes on, over what is frozen, to a key that lies ahead; false if that is not there.
    pub(super) fn seek_frozen(&mut self, key: &[u8]) -> bool {
        let is_ahead = match self.near() {
            // The row that was given last has been passed.
            Bound::Excluded(near) if key == &near[..] => false,
            Bound::Included(near) | Bound::Excluded(near) => {
                key == &near[..] || (key > &near[..]) != self.reverse
            }
            Bound::Unbounded => true,
        };
        let is_there = is_ahead && self.frozen.as_mut().is_some_and(|frozen| frozen.seek_on(key));
        if is_there {
            self.settled.iter_mut().for_each(SettledRows::move_away);
        }
        is_there
    }

    /// The value of the frozen row that the walk has come to.
    pub(in crate::objects) fn frozen_value(&self) -> &[u8] {
        self.frozen.as_ref().map_or(&[], |frozen| frozen.row().1)
    }

    /// When it expires, if it does.
    pub(in crate::objects) fn frozen_expires_at(&self) -> u64 {
        self.frozen.as_ref().map_or(NEVER, |frozen| frozen.expires_at())
    }
}

#[cfg(test)]
#[path = "frozen_tests.rs"]
mod tests;
