//! A walk over a table's ordered index: which key comes next, a leaf's keys at a time.
//!
//! The index gives keys only. Where a key's record is takes two cache misses more, one after the other: its bucket, then the
//! record. So the walk looks after the keys that come next, some of which may be in the next leaf:
//!
//! ```text
//!   passed | next row | records fetched | buckets fetched | not looked at
//!          ^ position                   ^ fetched         ^ hashed
//! ```
//!
//! Fetching reads no row, so that each is read when it is asked for, and only then: what a transaction remembers are
//! the rows that it has been given. A snapshot remembers nothing, and its rows are read [some at a time](super::leaf_rows).
//! Nobody says how many rows will be asked for, so the walk looks only a few keys ahead in the beginning. A leaf that was read ahead is what it would be if it were read when its turn comes, or is read again.
//!
//! Rows that have settled are not in the index, but in the tree ([`settled_rows`]): a walk goes over both side by side, the part of
//! the tree that a leaf stands for with that leaf. Mostly many rows in a row are of one side: where they have settled the next ones are
//! found to be so at once, as a *run*, and are then lent from where they lie, with no look at the index and no copy of the value.
//!
//! A walk holds nothing between two steps, no pin and no lock, and a step allocates nothing once the buffers are warm.

mod ahead;
mod frozen;
mod settled;

use std::cmp::Ordering;
use std::ops::{Bound, RangeBounds};

use self::frozen::Paid;
use super::Table;
use super::leaf_keys::Kept;
use super::settled_rows::{self, SettledRows, SettledShare, Way};
use crate::error::Result;
use crate::kernel::frozen::Frozen;
use crate::kernel::handle::HasHandle;
use crate::kernel::write_set::is_empty_range;
use crate::planted::{Bug, planted};
use crate::storage::epoch;
use crate::storage::ordered_index::{ImagesAsOf, LeafBatch, LeafRead};
use crate::storage::record::Address;
use crate::storage::tree::Direction;

/// So many rows ahead records are fetched, in the beginning and later. Buckets are fetched twice as far ahead.
const ROWS_AHEAD_FIRST: usize = 4;
const ROWS_AHEAD_MAX: usize = 8;

/// See the module's documentation.
#[derive(Debug)]
pub(super) struct Walk {
    /// The bound where the walk is comes nearer with every step: it holds the last key.
    lower: Bound<Vec<u8>>,
    upper: Bound<Vec<u8>>,
    /// The bound where the walk began, which no seek leaves.
    begin: Bound<Vec<u8>>,
    reverse: bool,
    rows_left: usize,
    leaf: Kept,
    position: usize,
    /// At this position, or behind it, it is time to look ahead.
    look_at: usize,
    rows_ahead: usize,
    /// The leaf was read from the bound where the walk is.
    fresh: bool,
    ended: bool,
    next: Kept,
    /// `next` was read, and follows `leaf`.
    next_is_read: bool,
    /// Those that go with the leaf, if anything has settled.
    settled: Option<SettledRows>,
    /// It sees what was committed up to this version.
    version_max: u64,
    /// Rows are read some at a time, for who sees what is never going to change, and lies before this place in the log.
    in_groups: bool,
    log_end: Address,
    paid: Paid,
    /// What it goes over instead of the indexes, once these were too many.
    frozen: Option<Box<Frozen>>,
    /// The last step was one [in a group](Walk::step_in_group): the key is still to become the bound where the walk is.
    is_behind: bool,
}

/// What a walk has come to, at the key that it tells.
#[derive(Clone, Copy, Debug)]
pub(super) enum Found {
    /// A key that may have a value, and its hash.
    Key(u64),
    /// A row that was read already, with those beside it; the walk has its [value](Walk::read_value).
    Read,
    /// A row that has settled; the walk has its [value](Walk::settled_value).
    Settled,
    /// A row that was frozen; the walk has its [value](Walk::frozen_value).
    Frozen,
}

/// Where the table's next key is.
#[derive(Clone, Copy, Debug)]
enum Stored {
    Key,
    Settled,
    Frozen,
}

/// Bounds of which both may move.
pub(super) type Bounds<'w> = (Bound<&'w [u8]>, Bound<&'w [u8]>);

fn as_slice(bound: &Bound<Vec<u8>>) -> Bound<&[u8]> {
    match bound {
        Bound::Included(key) => Bound::Included(key),
        Bound::Excluded(key) => Bound::Excluded(key),
        Bound::Unbounded => Bound::Unbounded,
    }
}

fn way_of<'w>(reverse: bool, lower: &'w Bound<Vec<u8>>, upper: &'w Bound<Vec<u8>>) -> Way<'w> {
    let (lower, upper) = (as_slice(lower), as_slice(upper));
    match reverse {
        false => Way { near: lower, far: upper, direction: Direction::Forwards },
        true => Way { near: upper, far: lower, direction: Direction::Backwards },
    }
}

/// True if a walk that goes this way ends before the key.
fn is_beyond(reverse: bool, (lower, upper): (&Bound<Vec<u8>>, &Bound<Vec<u8>>), key: &[u8]) -> bool {
    match (reverse, lower, upper) {
        (false, _, Bound::Included(last)) => key > last.as_slice(),
        (false, _, Bound::Excluded(end)) => key >= end.as_slice(),
        (true, Bound::Included(first), _) => key < first.as_slice(),
        (true, Bound::Excluded(end), _) => key <= end.as_slice(),
        _ => false,
    }
}

/// Makes a bound exclude this key, in the memory that it has.
#[inline]
fn exclude(bound: &mut Bound<Vec<u8>>, key: &[u8]) {
    set_bound(bound, key, Bound::Excluded);
}

#[inline]
fn set_bound(bound: &mut Bound<Vec<u8>>, key: &[u8], make: fn(Vec<u8>) -> Bound<Vec<u8>>) {
    let mut last = match std::mem::replace(bound, Bound::Unbounded) {
        Bound::Included(last) | Bound::Excluded(last) => last,
        Bound::Unbounded => Vec::new(),
    };
    last.clear();
    last.extend_from_slice(key);
    *bound = make(last);
}

impl Walk {
    pub(super) fn new<K: AsRef<[u8]>>(bounds: impl RangeBounds<K>) -> Walk {
        let own = |bound: Bound<&K>| bound.map(|key| key.as_ref().to_vec());
        Walk {
            lower: own(bounds.start_bound()),
            upper: own(bounds.end_bound()),
            begin: own(bounds.start_bound()),
            reverse: false,
            rows_left: usize::MAX,
            leaf: Kept::take(),
            position: 0,
            look_at: 0,
            rows_ahead: ROWS_AHEAD_FIRST,
            fresh: false,
            ended: false,
            next: Kept::take(),
            next_is_read: false,
            settled: None,
            version_max: u64::MAX,
            in_groups: false,
            log_end: 0,
            paid: Paid::default(),
            frozen: None,
            is_behind: false,
        }
    }

    /// Over all keys that begin so.
    pub(super) fn prefix(prefix: &[u8]) -> Walk {
        let mut after = prefix.to_vec();
        while after.last() == Some(&0xFF) {
            after.pop();
        }
        let upper = match after.last_mut() {
            Some(last) => {
                *last += 1;
                Bound::Excluded(after)
            }
            None => Bound::Unbounded,
        };
        Walk { upper, ..Walk::new::<&[u8]>((Bound::Included(prefix), Bound::Unbounded)) }
    }

    /// To be called before the first step, and before a seek.
    pub(super) fn set_reverse(&mut self) {
        self.reverse = true;
        self.begin.clone_from(&self.upper);
    }

    /// To be called before the first step.
    pub(super) fn set_version_max(&mut self, version: u64) {
        self.version_max = version;
    }

    /// Lets rows be read some at a time, for who sees what is never going to change, and lies before this place in the log. To be called
    /// before the first step.
    pub(super) fn set_in_groups(&mut self, log_end: Address) {
        (self.in_groups, self.log_end) = (true, log_end);
    }

    pub(super) fn version_max(&self) -> u64 {
        self.version_max
    }

    pub(super) fn is_reverse(&self) -> bool {
        self.reverse
    }

    pub(super) fn set_limit(&mut self, rows: usize) {
        if rows > self.rows_left {
            // Of the leaf there may be no more rows here than were wanted.
            self.catch_up();
            if self.frozen.is_none() {
                self.read_anew();
            }
        }
        self.rows_left = rows;
    }

    /// True if no more rows are wanted.
    #[inline]
    pub(super) fn is_done(&self) -> bool {
        self.rows_left == 0
    }

    /// How many more rows are wanted, if somebody has said so.
    #[inline]
    fn rows_wanted(&self) -> Option<usize> {
        // Without a limit they are counted down from the greatest number, and never come here.
        (self.rows_left <= usize::MAX / 2).then_some(self.rows_left)
    }

    /// A row was found.
    #[inline]
    pub(super) fn count_row(&mut self) {
        self.rows_left -= 1;
    }

    /// What is still to be walked; [`Self::catch_up`] comes before.
    #[inline]
    pub(super) fn bounds(&self) -> Bounds<'_> {
        (as_slice(&self.lower), as_slice(&self.upper))
    }

    /// Goes on from the key, or from where the walk began if the key lies before that.
    pub(super) fn seek(&mut self, key: &[u8]) {
        self.catch_up();
        let is_outside = is_beyond(!self.reverse, (&self.begin, &self.begin), key);
        let is_frozen = !is_outside && self.frozen.is_some() && self.seek_frozen(key);
        *self.near_mut() = if is_outside { self.begin.clone() } else { Bound::Included(key.to_vec()) };
        self.ended = false;
        if !is_frozen {
            self.read_anew();
            self.paid = Paid::default();
        }
    }

    /// Goes on behind a gap in which there is nothing: forwards from its end, backwards from before its first key.
    pub(super) fn jump(&mut self, far: &[u8]) {
        let make = if self.reverse { Bound::Excluded } else { Bound::Included };
        set_bound(self.near_mut(), far, make);
        self.read_anew();
    }

    /// Has the walk go on from the bound where it is, whatever was read ahead.
    fn read_anew(&mut self) {
        (self.fresh, self.frozen) = (false, None);
        self.settled.iter_mut().for_each(SettledRows::move_away);
    }

    fn near(&self) -> &Bound<Vec<u8>> {
        if self.reverse { &self.upper } else { &self.lower }
    }

    #[inline]
    fn near_mut(&mut self) -> &mut Bound<Vec<u8>> {
        if self.reverse { &mut self.upper } else { &mut self.lower }
    }

    /// The key of the last step.
    #[inline]
    pub(super) fn key(&self) -> &[u8] {
        if self.is_behind {
            return self.leaf.batch.get(self.position - 1).unwrap_or_default();
        }
        match self.near() {
            Bound::Included(key) | Bound::Excluded(key) => key,
            Bound::Unbounded => &[],
        }
    }

    /// True if keys within the bounds may follow behind the leaf.
    fn goes_on(&self) -> bool {
        self.leaf.inside == self.leaf.batch.len()
            && self.leaf.batch.next().is_some_and(|fence| match self.reverse {
                false => !is_empty_range(fence, as_slice(&self.upper)),
                true => !is_empty_range(as_slice(&self.lower), fence),
            })
    }

    fn is_beyond(&self, key: &[u8]) -> bool {
        is_beyond(self.reverse, (&self.lower, &self.upper), key)
    }

    /// Goes to the next key: of the table, or `written`, which is the next of those that the transaction has written. The key itself
    /// is [`Self::key`] then. `note` is told of every leaf that is read.
    #[inline]
    pub(super) fn step(
        &mut self,
        table: &Table,
        written: Option<&[u8]>,
        mut note: impl FnMut(LeafRead) -> Result<()>,
    ) -> Result<Option<Found>> {
        self.catch_up();
        let stored = self.find_stored(table, &mut note)?;
        let Some(written) = written else {
            return Ok(match stored {
                None => None,
                Some(Stored::Key) => Some(self.take_stored(table)),
                Some(Stored::Settled) => {
                    self.give_settled()?;
                    Some(Found::Settled)
                }
                Some(Stored::Frozen) => {
                    self.take_frozen();
                    Some(Found::Frozen)
                }
            });
        };
        let order = match stored {
            // Who has written something freezes nothing.
            None | Some(Stored::Frozen) => Ordering::Greater,
            Some(Stored::Key) => self.leaf.batch.get(self.position).unwrap_or_default().cmp(written),
            Some(Stored::Settled) => self.compare_settled(written)?,
        };
        let is_first = if self.reverse { order.is_ge() } else { order.is_le() } && stored.is_some();
        match stored {
            // A key that is both stored and written is met once.
            Some(Stored::Key) if is_first => return Ok(Some(self.take_stored(table))),
            Some(Stored::Settled) if is_first && order.is_ne() => {
                self.give_settled()?;
                return Ok(Some(Found::Settled));
            }
            Some(Stored::Settled) if is_first => self.pass_settled()?,
            _ => {}
        }
        exclude(self.near_mut(), written);
        let handle = table.handle();
        Ok(Some(Found::Key(handle.engine.hash(handle.id, written))))
    }

    /// The table's next key within the bounds, if there is one, is in the leaf, at the position, or that of a settled row.
    #[inline]
    fn find_stored(
        &mut self,
        table: &Table,
        note: &mut impl FnMut(LeafRead) -> Result<()>,
    ) -> Result<Option<Stored>> {
        loop {
            if self.fresh {
                if let Some(settled) = self.settled.as_mut().filter(|settled| settled.run() > 0) {
                    settled.pass_given();
                    return Ok(Some(Stored::Settled));
                }
                if self.frozen.is_some() {
                    match self.find_frozen()? {
                        None => self.leave_frozen(),
                        stored => return Ok(stored),
                    }
                } else if self.is_beside_settled() && self.is_settled_next()? {
                    return Ok(Some(Stored::Settled));
                }
                if self.position < self.leaf.inside {
                    if self.position >= self.look_at {
                        self.look_ahead(table);
                    }
                    return Ok(Some(Stored::Key));
                }
            }
            if self.paid.reads > 0 && !self.ended && self.freeze_if_paid(table) {
                continue;
            }
            if self.ended || !self.take_leaf(table) {
                self.ended = true;
                return Ok(None);
            }
            note(self.leaf.batch.read())?;
        }
    }

    #[inline]
    fn take_stored(&mut self, table: &Table) -> Found {
        let key = self.leaf.batch.get(self.position).unwrap_or_default();
        exclude(if self.reverse { &mut self.upper } else { &mut self.lower }, key);
        self.position += 1;
        match self.leaf.rows.has(self.position - 1) {
            true => Found::Read,
            false => Found::Key(self.leaf.hash(table, self.position - 1)),
        }
    }

    /// Goes to the next row, if it was read already and nothing else can come before it unless the transaction has written some; false if
    /// that is not so. The row counts.
    #[inline]
    pub(super) fn step_in_group(&mut self) -> bool {
        let is_next = self.leaf.rows.has(self.position) && self.fresh && !self.is_beside_settled();
        if is_next {
            self.position += 1;
            self.rows_left -= 1;
            self.is_behind = true;
        }
        is_next
    }

    /// Makes the bound where the walk is what it would be if each step had been a whole one.
    #[inline]
    pub(super) fn catch_up(&mut self) {
        if self.is_behind {
            self.is_behind = false;
            let key = self.leaf.batch.get(self.position - 1).unwrap_or_default();
            exclude(if self.reverse { &mut self.upper } else { &mut self.lower }, key);
        }
    }

    /// The value of the row that the walk has come to, which was read already.
    #[inline]
    pub(super) fn read_value(&self) -> &[u8] {
        self.leaf.row(self.position - 1)
    }

    /// About how many keys there are on the way.
    pub(super) fn estimate(mut self, table: &Table) -> u64 {
        // Leaves of which much was deleted have few: not a share of them says how many there are, then.
        const KEYS_COUNTED: u64 = 500;
        const LEAVES_COUNTED_MAX: usize = 256;
        if is_empty_range(as_slice(&self.lower), as_slice(&self.upper)) || table.handle().state().is_dropped()
        {
            return 0;
        }
        let bounds = (as_slice(&self.lower), as_slice(&self.upper));
        let settled = match table.handle().engine.may_be_settled(table.handle().id) {
            true => settled_rows::estimate(table, bounds.0, bounds.1).unwrap_or(0),
            false => 0,
        };
        let (mut count, mut also_settled) = (0, SettledShare::default());
        for _ in 0..LEAVES_COUNTED_MAX {
            if count >= KEYS_COUNTED {
                break;
            }
            if !self.take_leaf(table) {
                return settled + count - also_settled.estimate(settled, count);
            }
            count += self.leaf.inside as u64;
            if settled > 0 {
                let keys = (0..self.leaf.inside).filter_map(|position| self.leaf.batch.get(position));
                also_settled.look_at(table, keys);
            }
        }
        let (index, pin) = (table.ordered(), epoch::pin());
        let share = index.share_below(&pin, as_slice(&self.upper), 1.0)
            - index.share_below(&pin, as_slice(&self.lower), 0.0);
        let (engine, id) = (&table.handle().engine, table.handle().id);
        // Once something has settled rows are not counted any more, though the tree may be empty again.
        let in_memory = match engine.settled.tree.has_settled() {
            true => index.len() as u64,
            false => engine.object(id).key_count.sum(),
        };
        let in_memory = count.max((share * in_memory as f64) as u64);
        settled + in_memory - also_settled.estimate(settled, in_memory)
    }

    /// Goes to the next leaf, or the first, and has the settled rows that go with it; false if there is none within the bounds.
    fn take_leaf(&mut self, table: &Table) -> bool {
        loop {
            let root = SettledRows::newest_root(table, self.version_max);
            if root.is_some() && self.sees_settled_only(table) {
                // One leaf without keys stands for the whole walk.
                self.begin_without_keys();
            } else if !self.take_leaf_alone(table) {
                return false;
            }
            if self.leaf.batch.is_whole() {
                // Settled rows that come behind it are looked for there.
                self.settled.iter_mut().for_each(SettledRows::move_away);
                return true;
            }
            let Some(root) = root else {
                if SettledRows::newest_root(table, self.version_max).is_none() || planted(Bug::RootNotOfLeaf)
                {
                    // All may have been deleted since the leaf before was read.
                    self.settled = None;
                    return true;
                }
                self.fresh = false;
                continue;
            };
            if SettledRows::is_newest(table, &root) || planted(Bug::RootNotOfLeaf) {
                if !self.settled.as_ref().is_some_and(|settled| settled.is_of(&root)) {
                    self.settled = Some(SettledRows::new(table, root));
                }
                return true;
            }
            self.fresh = false;
        }
    }

    /// True if the walk is a snapshot's, and all that it is to see has settled.
    fn sees_settled_only(&self, table: &Table) -> bool {
        let is_to_begin = !self.fresh && !is_empty_range(as_slice(&self.lower), as_slice(&self.upper));
        self.in_groups && is_to_begin && table.ordered().is_vacant()
    }

    fn take_leaf_alone(&mut self, table: &Table) -> bool {
        let index = table.ordered();
        if !self.fresh {
            if is_empty_range(as_slice(&self.lower), as_slice(&self.upper)) {
                return false;
            }
            let reader = index.reader(self.images(table, self.rows_left));
            match self.reverse {
                false => reader.read_forward(&epoch::pin(), as_slice(&self.lower), &mut self.leaf.batch),
                true => reader.read_backward(&epoch::pin(), as_slice(&self.upper), &mut self.leaf.batch),
            }
            self.fresh = true;
            self.rows_ahead = if self.rows_wanted().is_some() { ROWS_AHEAD_MAX } else { ROWS_AHEAD_FIRST };
            self.begin_leaf();
            return true;
        }
        // Unchanged since it was read ahead, it is as if it were read now; and a transaction that has read newer things
        // meanwhile must not go on with an older leaf.
        let holds = || index.validate(&self.next.batch.read()) || planted(Bug::LeafAheadBelieved);
        let is_as_read = self.next_is_read && holds();
        if !is_as_read && !self.read_next(table) {
            return false;
        }
        std::mem::swap(&mut self.leaf, &mut self.next);
        self.next_is_read = false;
        (self.position, self.look_at) = (0, 0);
        true
    }

    /// The images of leaves that are of use, for who sees what is never going to change.
    fn images<'t>(&self, table: &'t Table, rows_max: usize) -> Option<ImagesAsOf<'t>> {
        self.in_groups.then(|| table.handle().engine.images_as_of(self.version_max, rows_max))
    }

    /// Reads the leaf behind this one; false if there is none within the bounds.
    fn read_next(&mut self, table: &Table) -> bool {
        let reader = table.ordered().reader(self.images(table, self.rows_left));
        self.next_is_read =
            self.goes_on() && reader.read_next(&epoch::pin(), &self.leaf.batch, &mut self.next.batch);
        if self.next_is_read {
            let inside = self.count_inside(&self.next.batch);
            self.next.begin(inside);
        }
        self.next_is_read
    }

    /// A leaf without keys stands for what is still to be walked.
    fn begin_without_keys(&mut self) {
        self.leaf.batch.clear();
        self.fresh = true;
        self.begin_leaf();
    }

    fn begin_leaf(&mut self) {
        let inside = self.count_inside(&self.leaf.batch);
        self.leaf.begin(inside);
        (self.position, self.look_at) = (0, 0);
        self.next_is_read = false;
    }

    fn count_inside(&self, batch: &LeafBatch) -> usize {
        let is_inside = |position| batch.get(position).is_some_and(|key| !self.is_beyond(key));
        let (mut low, mut high) = (0, batch.len());
        if high == 0 || is_inside(high - 1) {
            return high;
        }
        while low < high {
            let middle = (low + high) / 2;
            if is_inside(middle) { low = middle + 1 } else { high = middle }
        }
        low
    }
}
