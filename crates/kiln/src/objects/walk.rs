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
//! the rows that it has been given. Nobody says how many rows will be asked for, so the walk looks only a few keys ahead in the
//! beginning. A leaf that was read ahead is what it would be if it were read when its turn comes, or is read again.
//!
//! A walk holds nothing between two steps, no pin and no lock, and a step allocates nothing once the buffers are warm.

use std::ops::{Bound, RangeBounds};

use super::{HasHandle, Object, Table};
use crate::error::Result;
use crate::kernel::write_set::is_empty_range;
use crate::planted::{Bug, planted};
use crate::storage::epoch;
use crate::storage::ordered_index::{BATCH_KEYS_MAX, LeafBatch, LeafRead};

/// So many rows ahead records are fetched, in the beginning and later. Buckets are fetched twice as far ahead.
const ROWS_AHEAD_FIRST: usize = 4;
const ROWS_AHEAD_MAX: usize = 8;

/// See the module's documentation.
#[derive(Debug)]
pub(super) struct Walk {
    /// The bound where the walk is comes nearer with every step: it holds the last key.
    lower: Bound<Vec<u8>>,
    upper: Bound<Vec<u8>>,
    reverse: bool,
    rows_left: usize,
    leaf: LeafKeys,
    position: usize,
    /// At this position, or behind it, it is time to look ahead.
    look_at: usize,
    rows_ahead: usize,
    /// The leaf was read from the bound where the walk is.
    fresh: bool,
    ended: bool,
    next: LeafKeys,
    /// `next` was read, and follows `leaf`.
    next_is_read: bool,
}

/// The keys of a leaf, and how far they have been looked after.
#[derive(Debug)]
struct LeafKeys {
    batch: LeafBatch,
    /// So many keys lie within the bounds; if not all do, it is the last leaf.
    inside: usize,
    hashes: [u64; BATCH_KEYS_MAX],
    hashed: usize,
    fetched: usize,
}

impl LeafKeys {
    fn new() -> LeafKeys {
        LeafKeys { batch: LeafBatch::new(), inside: 0, hashes: [0; BATCH_KEYS_MAX], hashed: 0, fetched: 0 }
    }

    /// Has the processor fetch buckets of the keys up to a position.
    fn fetch_buckets(&mut self, table: &Table, end: usize) {
        let handle = table.handle();
        for position in self.hashed..end.min(self.inside) {
            let hash = handle.engine.hash(handle.id, self.batch.get(position).unwrap_or_default());
            handle.engine.index.prefetch(hash);
            self.hashes[position] = hash;
            self.hashed = position + 1;
        }
    }

    /// Has the processor fetch records of the keys up to a position. If one of them is on disk, all up to `cold_end` are read
    /// that are: that takes so long that many at once are worth it.
    fn fetch_records(&mut self, table: &Table, end: usize, cold_end: usize) {
        let (mut end, engine) = (end.min(self.inside), &table.handle().engine);
        if self.fetched >= end {
            return;
        }
        self.fetch_buckets(table, end);
        engine.fetch_candidates(&self.hashes[self.fetched..end]);
        if engine.any_cold(&self.hashes[self.fetched..end]) {
            end = cold_end.clamp(end, self.inside);
            self.fetch_buckets(table, end);
            engine.read_all_ahead(&self.hashes[self.fetched..end]);
        }
        self.fetched = end;
    }
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

/// Makes a bound exclude this key, in the memory that it has.
#[inline]
fn exclude(bound: &mut Bound<Vec<u8>>, key: &[u8]) {
    if let Bound::Excluded(last) = bound {
        last.clear();
        last.extend_from_slice(key);
    } else {
        *bound = Bound::Excluded(key.to_vec());
    }
}

impl Walk {
    pub(super) fn new<K: AsRef<[u8]>>(bounds: impl RangeBounds<K>) -> Walk {
        let own = |bound: Bound<&K>| bound.map(|key| key.as_ref().to_vec());
        Walk {
            lower: own(bounds.start_bound()),
            upper: own(bounds.end_bound()),
            reverse: false,
            rows_left: usize::MAX,
            leaf: LeafKeys::new(),
            position: 0,
            look_at: 0,
            rows_ahead: ROWS_AHEAD_FIRST,
            fresh: false,
            ended: false,
            next: LeafKeys::new(),
            next_is_read: false,
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

    pub(super) fn set_reverse(&mut self) {
        self.reverse = true;
    }

    pub(super) fn is_reverse(&self) -> bool {
        self.reverse
    }

    pub(super) fn set_limit(&mut self, rows: usize) {
        self.rows_left = rows;
    }

    /// True if no more rows are wanted.
    #[inline]
    pub(super) fn is_done(&self) -> bool {
        self.rows_left == 0
    }

    /// A row was found.
    #[inline]
    pub(super) fn count_row(&mut self) {
        self.rows_left -= 1;
    }

    /// No more rows, because of an error.
    pub(super) fn give_up(&mut self) {
        self.rows_left = 0;
    }

    /// What is still to be walked.
    #[inline]
    pub(super) fn bounds(&self) -> Bounds<'_> {
        (as_slice(&self.lower), as_slice(&self.upper))
    }

    pub(super) fn seek(&mut self, key: &[u8]) {
        *self.near_mut() = Bound::Included(key.to_vec());
        self.fresh = false;
        self.ended = false;
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
        match (self.reverse, &self.lower, &self.upper) {
            (false, _, Bound::Included(last)) => key > last.as_slice(),
            (false, _, Bound::Excluded(end)) => key >= end.as_slice(),
            (true, Bound::Included(first), _) => key < first.as_slice(),
            (true, Bound::Excluded(end), _) => key <= end.as_slice(),
            _ => false,
        }
    }

    /// Goes to the next key: of the index, or `written`, which is the next of those that are not in it. Gives its hash;
    /// the key itself is [`Self::key`] then. `note` is told of every leaf that is read.
    #[inline]
    pub(super) fn step(
        &mut self,
        table: &Table,
        written: Option<Vec<u8>>,
        mut note: impl FnMut(LeafRead) -> Result<()>,
    ) -> Result<Option<u64>> {
        let is_stored = self.find_stored(table, &mut note)?;
        let Some(written) = written else { return Ok(is_stored.then(|| self.take_stored())) };
        if is_stored && let Some(stored) = self.leaf.batch.get(self.position) {
            let order = stored.cmp(&written);
            let order = if self.reverse { order.reverse() } else { order };
            // A key that is both stored and written is met once.
            if order.is_le() {
                return Ok(Some(self.take_stored()));
            }
        }
        exclude(self.near_mut(), &written);
        let handle = table.handle();
        Ok(Some(handle.engine.hash(handle.id, &written)))
    }

    /// True if the index has a key within the bounds: it is in the leaf, at the position.
    #[inline]
    fn find_stored(&mut self, table: &Table, note: &mut impl FnMut(LeafRead) -> Result<()>) -> Result<bool> {
        while !self.fresh || self.position >= self.leaf.inside {
            if self.ended || !self.take_leaf(table) {
                self.ended = true;
                return Ok(false);
            }
            note(self.leaf.batch.read())?;
        }
        if self.position >= self.look_at {
            self.look_ahead(table);
        }
        Ok(true)
    }

    #[inline]
    fn take_stored(&mut self) -> u64 {
        let key = self.leaf.batch.get(self.position).unwrap_or_default();
        exclude(if self.reverse { &mut self.upper } else { &mut self.lower }, key);
        let hash = self.leaf.hashes[self.position];
        self.position += 1;
        hash
    }

    /// About how many keys there are on the way.
    pub(super) fn estimate(mut self, table: &Table) -> u64 {
        const LEAVES_COUNTED: usize = 16;
        if is_empty_range(as_slice(&self.lower), as_slice(&self.upper)) {
            return 0;
        }
        let mut count = 0;
        for _ in 0..LEAVES_COUNTED {
            if !self.take_leaf(table) {
                return count;
            }
            count += self.leaf.inside as u64;
        }
        let (index, pin) = (table.ordered(), epoch::pin());
        let share = index.share_below(&pin, as_slice(&self.upper), 1.0)
            - index.share_below(&pin, as_slice(&self.lower), 0.0);
        count.max((share * table.len() as f64) as u64)
    }

    /// Goes to the next leaf, or the first; false if there is none within the bounds.
    fn take_leaf(&mut self, table: &Table) -> bool {
        let index = table.ordered();
        if !self.fresh {
            if is_empty_range(as_slice(&self.lower), as_slice(&self.upper)) {
                return false;
            }
            match self.reverse {
                false => index.read_forward(&epoch::pin(), as_slice(&self.lower), &mut self.leaf.batch),
                true => index.read_backward(&epoch::pin(), as_slice(&self.upper), &mut self.leaf.batch),
            }
            self.fresh = true;
            self.rows_ahead = if self.rows_left < usize::MAX { ROWS_AHEAD_MAX } else { ROWS_AHEAD_FIRST };
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

    /// Reads the leaf behind this one; false if there is none within the bounds.
    fn read_next(&mut self, table: &Table) -> bool {
        self.next_is_read = self.goes_on()
            && table.ordered().read_next(&epoch::pin(), &self.leaf.batch, &mut self.next.batch);
        if self.next_is_read {
            self.next.inside = self.count_inside(&self.next.batch);
            (self.next.hashed, self.next.fetched) = (0, 0);
        }
        self.next_is_read
    }

    fn begin_leaf(&mut self) {
        self.leaf.inside = self.count_inside(&self.leaf.batch);
        (self.leaf.hashed, self.leaf.fetched) = (0, 0);
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

    /// Has the processor fetch what the next rows take.
    fn look_ahead(&mut self, table: &Table) {
        let end_of = |rows: usize| self.position + rows.min(self.rows_left);
        let (records_end, buckets_end) = (end_of(self.rows_ahead), end_of(2 * self.rows_ahead));
        let is_long = self.rows_ahead == ROWS_AHEAD_MAX;
        let cold_end = if is_long { end_of(BATCH_KEYS_MAX) } else { records_end };
        if is_long && buckets_end > self.leaf.inside && !self.next_is_read {
            self.read_next(table);
        }
        self.leaf.fetch_records(table, records_end, cold_end);
        self.leaf.fetch_buckets(table, buckets_end);
        if self.next_is_read {
            let in_next = |end: usize| end.saturating_sub(self.leaf.inside);
            self.next.fetch_records(table, in_next(records_end), in_next(cold_end));
            self.next.fetch_buckets(table, in_next(buckets_end));
        }
        // Keys without a row are passed without being counted: no further than what has been looked after.
        self.look_at = records_end.min(self.position + self.rows_ahead / 2);
        self.rows_ahead = ROWS_AHEAD_MAX;
    }
}
