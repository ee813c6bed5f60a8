//! Ranges over a table, in a transaction or in a snapshot.

use std::ops::{Bound, RangeBounds};

use super::{HasHandle, Object, Table};
use crate::database::Snapshot;
use crate::error::Result;
use crate::kernel::transaction::Transaction;
use crate::kernel::write_set::is_empty_range;
use crate::storage::epoch;
use crate::storage::ordered_index::{LeafBatch, LeafRead};

type Row = Result<(Vec<u8>, Vec<u8>)>;

/// Walks a table's ordered index within bounds, a leaf at a time. Holds nothing between two steps.
#[derive(Debug)]
struct Walk {
    lower: Bound<Vec<u8>>,
    upper: Bound<Vec<u8>>,
    reverse: bool,
    remaining: usize,
    batch: LeafBatch,
    position: usize,
    /// The batch has been read from the bound where the walk is.
    fresh: bool,
    ended: bool,
}

fn as_slice(bound: &Bound<Vec<u8>>) -> Bound<&[u8]> {
    match bound {
        Bound::Included(key) => Bound::Included(key),
        Bound::Excluded(key) => Bound::Excluded(key),
        Bound::Unbounded => Bound::Unbounded,
    }
}

impl Walk {
    fn new<K: AsRef<[u8]>>(bounds: impl RangeBounds<K>) -> Walk {
        let own = |bound: Bound<&K>| bound.map(|key| key.as_ref().to_vec());
        Walk {
            lower: own(bounds.start_bound()),
            upper: own(bounds.end_bound()),
            reverse: false,
            remaining: usize::MAX,
            batch: LeafBatch::new(),
            position: 0,
            fresh: false,
            ended: false,
        }
    }

    fn prefix(prefix: &[u8]) -> Walk {
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

    fn set_near(&mut self, bound: Bound<Vec<u8>>) {
        *(if self.reverse { &mut self.upper } else { &mut self.lower }) = bound;
    }

    fn seek(&mut self, key: &[u8]) {
        self.set_near(Bound::Included(key.to_vec()));
        self.fresh = false;
        self.ended = false;
    }

    /// True if keys within the bounds may follow behind the batch.
    fn goes_on(&self) -> bool {
        self.batch.next().is_some_and(|fence| match self.reverse {
            false => !is_empty_range(fence, as_slice(&self.upper)),
            true => !is_empty_range(as_slice(&self.lower), fence),
        })
    }

    fn beyond(&self, key: &[u8]) -> bool {
        match (self.reverse, &self.lower, &self.upper) {
            (false, _, Bound::Included(last)) => key > last.as_slice(),
            (false, _, Bound::Excluded(end)) => key >= end.as_slice(),
            (true, Bound::Included(first), _) => key < first.as_slice(),
            (true, Bound::Excluded(end), _) => key <= end.as_slice(),
            _ => false,
        }
    }

    /// The next key of the index within the bounds. `note` is told of every leaf that was read.
    fn peek(&mut self, table: &Table, note: &mut dyn FnMut(LeafRead) -> Result<()>) -> Result<Option<&[u8]>> {
        while !self.ended {
            if !self.fresh {
                if is_empty_range(as_slice(&self.lower), as_slice(&self.upper)) {
                    self.ended = true;
                    break;
                }
                let near = as_slice(if self.reverse { &self.upper } else { &self.lower });
                match self.reverse {
                    false => table.ordered().read_forward(&epoch::pin(), near, &mut self.batch),
                    true => table.ordered().read_backward(&epoch::pin(), near, &mut self.batch),
                }
                self.fresh = true;
                self.position = 0;
                note(self.batch.read())?;
            }
            if self.position < self.batch.len() {
                break;
            }
            self.ended = !self.goes_on() || !table.ordered().read_next(&epoch::pin(), &mut self.batch);
            if !self.ended {
                self.position = 0;
                note(self.batch.read())?;
            }
        }
        let inside = |key: &&[u8]| !self.beyond(key);
        Ok(if self.ended { None } else { self.batch.get(self.position).filter(inside) })
    }
}

/// An ordered walk over a table within a transaction; an iterator over `Result<(key, value)>`.
///
/// The transaction may go on reading and writing while it runs; what it writes ahead of the walk is met. What
/// the walk has passed is protected against phantoms.
#[derive(Debug)]
pub struct Range<'tx, 'db> {
    transaction: &'tx Transaction<'db>,
    table: Table,
    walk: Walk,
}

impl<'tx, 'db> Range<'tx, 'db> {
    fn new(transaction: &'tx Transaction<'db>, table: &Table, walk: Walk) -> Range<'tx, 'db> {
        Range { transaction, table: table.clone(), walk }
    }

    /// Walks from the upper bound down. To be called before the first step.
    pub fn reverse(mut self) -> Self {
        self.walk.reverse = true;
        self
    }

    /// Ends after at most `rows` rows.
    pub fn limit(mut self, rows: usize) -> Self {
        self.walk.remaining = rows;
        self
    }

    /// Goes on from `key` (included), in the walk's direction, forward or back; the far bound stays.
    pub fn seek(&mut self, key: impl AsRef<[u8]>) {
        self.walk.seek(key.as_ref());
    }

    fn step(&mut self) -> Result<Option<(Vec<u8>, Vec<u8>)>> {
        let transaction = self.transaction;
        let id = transaction.check(&self.table, &[])?;
        let mut value = Vec::new();
        while self.walk.remaining > 0 {
            let bounds = (as_slice(&self.walk.lower), as_slice(&self.walk.upper));
            let written = transaction.next_written(id, bounds, self.walk.reverse)?;
            let reverse = self.walk.reverse;
            let mut note = |leaf| transaction.note_range(id, leaf);
            let stored = self.walk.peek(&self.table, &mut note)?;
            let key = match (stored, written) {
                (None, None) => return Ok(None),
                (Some(stored), None) => stored.to_vec(),
                (None, Some(written)) => written,
                (Some(stored), Some(written)) if (stored < written.as_slice()) != reverse => stored.to_vec(),
                (Some(_), Some(written)) => written,
            };
            // A key that is both stored and written is met once.
            if self.walk.batch.get(self.walk.position) == Some(key.as_slice()) && !self.walk.ended {
                self.walk.position += 1;
            }
            self.walk.set_near(Bound::Excluded(key.clone()));
            if transaction.get_key(id, &key, &mut value)? {
                self.walk.remaining -= 1;
                return Ok(Some((key, value)));
            }
        }
        Ok(None)
    }
}

impl Iterator for Range<'_, '_> {
    type Item = Row;

    fn next(&mut self) -> Option<Row> {
        let row = self.step().transpose();
        if matches!(row, Some(Err(_))) {
            self.walk.remaining = 0;
        }
        row
    }
}

impl<'db> Transaction<'db> {
    /// The rows of a table whose keys lie within the bounds, in order.
    pub fn range<K: AsRef<[u8]>>(&self, table: &Table, bounds: impl RangeBounds<K>) -> Range<'_, 'db> {
        Range::new(self, table, Walk::new(bounds))
    }

    /// The rows of a table whose keys begin with `prefix`, in order.
    pub fn prefix(&self, table: &Table, prefix: impl AsRef<[u8]>) -> Range<'_, 'db> {
        Range::new(self, table, Walk::prefix(prefix.as_ref()))
    }
}

/// An ordered walk over a table as of a snapshot; an iterator over `Result<(key, value)>`.
#[derive(Debug)]
pub struct SnapshotRange<'s> {
    snapshot: &'s Snapshot<'s>,
    table: Table,
    walk: Walk,
}

impl<'s> SnapshotRange<'s> {
    /// Walks from the upper bound down. To be called before the first step.
    pub fn reverse(mut self) -> Self {
        self.walk.reverse = true;
        self
    }

    /// Ends after at most `rows` rows.
    pub fn limit(mut self, rows: usize) -> Self {
        self.walk.remaining = rows;
        self
    }

    /// Goes on from `key` (included), in the walk's direction, forward or back; the far bound stays.
    pub fn seek(&mut self, key: impl AsRef<[u8]>) {
        self.walk.seek(key.as_ref());
    }

    fn step(&mut self) -> Result<Option<(Vec<u8>, Vec<u8>)>> {
        let id = self.snapshot.engine().check_key(self.table.handle(), self.table.name(), &[])?;
        let mut value = Vec::new();
        while self.walk.remaining > 0 {
            let Some(key) = self.walk.peek(&self.table, &mut |_| Ok(()))? else { return Ok(None) };
            let key = key.to_vec();
            self.walk.position += 1;
            self.walk.set_near(Bound::Excluded(key.clone()));
            if self.snapshot.read(id, &key, &mut value)? {
                self.walk.remaining -= 1;
                return Ok(Some((key, value)));
            }
        }
        Ok(None)
    }
}

impl Iterator for SnapshotRange<'_> {
    type Item = Row;

    fn next(&mut self) -> Option<Row> {
        let row = self.step().transpose();
        if matches!(row, Some(Err(_))) {
            self.walk.remaining = 0;
        }
        row
    }
}

impl Snapshot<'_> {
    /// The rows of a table whose keys lie within the bounds, in order.
    pub fn range<K: AsRef<[u8]>>(&self, table: &Table, bounds: impl RangeBounds<K>) -> SnapshotRange<'_> {
        SnapshotRange { snapshot: self, table: table.clone(), walk: Walk::new(bounds) }
    }

    /// The rows of a table whose keys begin with `prefix`, in order.
    pub fn prefix(&self, table: &Table, prefix: impl AsRef<[u8]>) -> SnapshotRange<'_> {
        SnapshotRange { snapshot: self, table: table.clone(), walk: Walk::prefix(prefix.as_ref()) }
    }
}
