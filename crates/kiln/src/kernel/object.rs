//! What the kernel asks of an object, and the registry of objects.
//!
//! Every object's records are found by the one hash index; a table has its keys in an ordered index besides, where a commit
//! enters a key when it comes to exist, and from which it goes when it has no record any more.

use std::sync::Arc;

use super::expiry::Lifetimes;
use super::life::{Life, Rows, Standing};
use crate::error::{Error, ErrorKind, Result};
use crate::planted::{Bug, planted};
use crate::storage::epoch::{self, Pin};
use crate::storage::ordered_index::{Insertion, LeafRead, OrderedIndex};
use crate::storage::record::{Address, OBJECTS_MAX};
use crate::sync::OnceLock;
use crate::sync::atomic::{AtomicI64, AtomicU64, Ordering};

/// The longest name of an object, or of a snapshot.
pub(crate) const NAME_BYTES_MAX: usize = 255;

/// The kinds of object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ObjectKind {
    /// Keys in no order.
    Map,
    /// Ordered keys with ranges.
    Table,
}

/// A number that many threads change and few read.
pub(crate) struct StripedCounter {
    stripes: Box<[Stripe; STRIPES]>,
}

const STRIPES: usize = 16;

#[repr(align(128))]
struct Stripe(AtomicI64);

impl StripedCounter {
    pub(crate) fn new() -> StripedCounter {
        StripedCounter { stripes: Box::new([const { Stripe(AtomicI64::new(0)) }; STRIPES]) }
    }

    #[inline]
    pub(crate) fn add(&self, change: i64) {
        self.stripes[epoch::thread_index() % STRIPES].0.fetch_add(change, Ordering::Relaxed);
    }

    /// The sum; exact when nobody adds meanwhile.
    pub(crate) fn sum(&self) -> u64 {
        self.stripes.iter().map(|stripe| stripe.0.load(Ordering::Relaxed)).sum::<i64>().max(0) as u64
    }
}

/// An open object.
pub(crate) struct ObjectState {
    pub(crate) id: u32,
    /// Whether it is there, and its name.
    pub(crate) life: Arc<Life>,
    /// A table's keys.
    pub(crate) order: Option<Box<OrderedIndex>>,
    pub(crate) key_count: StripedCounter,
    /// The version that brought rows with the object, which were not written one by one: no older snapshot sees what is only in the tree.
    /// 0 for all others. Where the database was opened since, a version at which the object was not there yet, but is for all snapshots
    /// that are no older.
    pub(crate) loaded_at: AtomicU64,
    pub(crate) lifetimes: Lifetimes,
    /// How long a row stays that is put without a word on that; 0: until it is deleted.
    pub(crate) time_to_live_ms: AtomicU64,
    /// Rows that were removed from the indexes since the object was dropped, as long as the database has been open.
    pub(crate) removed: AtomicU64,
    /// No record of a row is before this place of the log, where there was a seal; 0 if nobody knows.
    pub(crate) rows_from: Address,
}

impl ObjectState {
    pub(crate) fn name(&self) -> &str {
        self.life.name()
    }

    pub(crate) fn kind(&self) -> ObjectKind {
        if self.order.is_some() { ObjectKind::Table } else { ObjectKind::Map }
    }

    /// The ordered index, if the object has ranges.
    #[inline]
    pub(crate) fn ordered(&self) -> Option<&OrderedIndex> {
        self.order.as_deref()
    }

    /// A transaction is about to commit the first record of `key`, whose bucket is locked. It may still fail and retract it.
    #[inline]
    pub(crate) fn admit(&self, pin: &Pin, key: &[u8]) -> Insertion {
        self.ordered().map_or(Insertion::Present, |order| order.insert(pin, key))
    }

    /// A key, whose bucket is locked, and which was admitted if it had no record, is about to get a row where it had none, by who `has_used` a gap or not.
    #[inline]
    pub(crate) fn break_gap(&self, pin: &Pin, key: &[u8], has_used: impl Fn(LeafRead) -> bool) -> Insertion {
        self.ordered().map_or(Insertion::Present, |order| order.break_gap(pin, key, has_used))
    }

    /// The key, whose bucket is locked, has no record any more.
    #[inline]
    pub(crate) fn retract(&self, pin: &Pin, key: &[u8]) {
        if let Some(order) = self.ordered() {
            order.remove(pin, key);
        }
    }

    /// The object was dropped.
    pub(crate) fn is_dropped(&self) -> bool {
        matches!(self.life.standing(), Standing::Dropped(_))
    }

    /// It was dropped, and nobody who needs versions from `oldest` on, which is durable, can see its rows.
    pub(super) fn can_leave(&self, oldest: u64) -> bool {
        let is_older = |version| version <= oldest || planted(Bug::DroppedRowsGoEarly);
        matches!(self.life.standing(), Standing::Dropped(version) if is_older(version))
    }

    /// It was dropped, and nobody can see its rows any more, whatever crashes.
    #[inline]
    pub(crate) fn is_nobodys(&self) -> bool {
        self.life.rows() != Rows::Stay
    }

    /// The indexes of the log may have something of it, but for deleted keys of a map.
    pub(crate) fn has_entries(&self) -> bool {
        match self.ordered() {
            None => self.key_count.sum() > 0,
            Some(ordered) => ordered.len() > 0,
        }
    }

    /// Its rows settle: it is a table, and somebody may see them.
    pub(crate) fn settles(&self) -> bool {
        self.ordered().is_some() && !self.is_nobodys()
    }
}

/// Objects in the first group; each group after it doubles their number.
const FIRST_GROUP: usize = 32;
const GROUPS: usize = (OBJECTS_MAX as usize / FIRST_GROUP).ilog2() as usize + 1;
type Group = Box<[OnceLock<ObjectState>]>;

/// All objects, by number. Objects are only ever added, so finding one is two loads.
pub(crate) struct Objects {
    groups: [OnceLock<Group>; GROUPS],
}

impl Objects {
    pub(crate) fn new() -> Objects {
        Objects { groups: [const { OnceLock::new() }; GROUPS] }
    }

    /// The group of an object, and its place there.
    #[inline]
    fn place(id: u32) -> (usize, usize) {
        let id = id as usize;
        match id < FIRST_GROUP {
            true => (0, id),
            false => {
                ((id / FIRST_GROUP).ilog2() as usize + 1, id - (FIRST_GROUP << (id / FIRST_GROUP).ilog2()))
            }
        }
    }

    #[inline]
    pub(crate) fn get(&self, id: u32) -> Option<&ObjectState> {
        let (group, place) = Self::place(id);
        self.groups.get(group)?.get()?.get(place)?.get()
    }

    /// The ordered index of the object with this number, if there is one.
    #[inline]
    pub(crate) fn ordered(&self, id: u32) -> Option<&OrderedIndex> {
        self.get(id)?.ordered()
    }

    /// All ordered indexes.
    pub(crate) fn orders(&self) -> impl Iterator<Item = &OrderedIndex> {
        self.iter().filter_map(ObjectState::ordered)
    }

    /// Adds an object; an object that is there already stays.
    pub(crate) fn add(&self, object: ObjectState) -> Result<&ObjectState> {
        let (group, place) = Self::place(object.id);
        let slots = self.groups.get(group).ok_or_else(|| {
            Error::new(ErrorKind::Limit, format!("a database holds at most {OBJECTS_MAX} objects"))
        })?;
        let count = FIRST_GROUP << group.saturating_sub(1);
        let slots = slots.get_or_init(|| (0..count).map(|_| OnceLock::new()).collect());
        Ok(slots[place].get_or_init(|| object))
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &ObjectState> {
        self.groups.iter().filter_map(OnceLock::get).flat_map(|group| group.iter().filter_map(OnceLock::get))
    }
}

/// A leaf of an object's ordered index that a transaction has read.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct RangeRead {
    pub(crate) object: u32,
    pub(crate) leaf: LeafRead,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_object_has_a_place_of_its_own() {
        let mut next = [0; GROUPS];
        for id in 0..OBJECTS_MAX {
            let (group, place) = Objects::place(id);
            assert_eq!(place, next[group], "object {id}");
            next[group] += 1;
        }
        assert!(
            next.iter().enumerate().all(|(group, &count)| count == FIRST_GROUP << group.saturating_sub(1))
        );
        assert!(Objects::new().get(u32::MAX).is_none());
    }
}
