//! Ranges over a table, in a transaction or in a snapshot.

use std::ops::RangeBounds;

use super::walk::{Found, Walk};
use super::{HasHandle, Object, Table};
use crate::database::Snapshot;
use crate::error::Result;
use crate::kernel::object::RangeRead;
use crate::kernel::transaction::Transaction;

/// A key and its value.
type Row = (Vec<u8>, Vec<u8>);

/// The same, lent.
type LentRow<'r> = (&'r [u8], &'r [u8]);

/// Where the row is that a walk has come to.
#[derive(Clone, Copy)]
enum Place {
    /// Its value is in the range's buffer.
    Buffer,
    /// Its value is with the settled rows.
    Settled,
}

/// The value of the settled row that a walk has come to: where it lies in memory, or else in the buffer.
#[inline]
fn place_settled(walk: &mut Walk, value: &mut Vec<u8>) -> Result<Place> {
    match walk.has_settled_value() {
        true => Ok(Place::Settled),
        false => walk.read_settled(value).map(|()| Place::Buffer),
    }
}

/// The row that a walk has come to.
#[inline]
fn lend<'r>(walk: &'r Walk, value: &'r [u8], place: Place) -> LentRow<'r> {
    match place {
        Place::Buffer => (walk.key(), value),
        Place::Settled => (walk.key(), walk.settled_value().unwrap_or_default()),
    }
}

/// The same, to be kept.
fn own(walk: &Walk, value: &mut Vec<u8>, place: Place) -> Row {
    match place {
        Place::Buffer => (walk.key().to_vec(), std::mem::take(value)),
        Place::Settled => (walk.key().to_vec(), walk.settled_value().unwrap_or_default().to_vec()),
    }
}

/// An ordered walk over a table within a transaction; an iterator over `Result<(key, value)>`, and, without an allocation
/// for each row, [`Self::next_row`].
///
/// The transaction may go on reading and writing while it runs; what it writes ahead of the walk is met. What
/// the walk has passed is protected against phantoms.
#[derive(Debug)]
pub struct Range<'tx, 'db> {
    transaction: &'tx Transaction<'db>,
    table: &'tx Table,
    walk: Walk,
    value: Vec<u8>,
}

impl<'tx, 'db> Range<'tx, 'db> {
    fn new(transaction: &'tx Transaction<'db>, table: &'tx Table, walk: Walk) -> Range<'tx, 'db> {
        let mut range = Range { transaction, table, walk, value: Vec::new() };
        range.walk.set_version_max(transaction.snapshot_version().unwrap_or(u64::MAX));
        range
    }

    /// Walks from the upper bound down. To be called before the first step.
    pub fn reverse(mut self) -> Self {
        self.walk.set_reverse();
        self
    }

    /// Ends after at most `rows` rows. It costs less than to stop asking, since nothing is fetched in vain.
    pub fn limit(mut self, rows: usize) -> Self {
        self.walk.set_limit(rows);
        self
    }

    /// Goes on from `key` (included), in the walk's direction, forward or back; the far bound stays.
    pub fn seek(&mut self, key: impl AsRef<[u8]>) {
        self.walk.seek(key.as_ref());
    }

    /// The next row, lent until the next step: it lies in buffers that the walk keeps. `None` at the end.
    ///
    /// ```
    /// # let directory = tempfile::tempdir()?;
    /// # let db = kiln::Kiln::open(directory.path())?;
    /// let ages = db.table("ages")?;
    /// db.transact(|tx| tx.put(&ages, "ann", [41]).and_then(|()| tx.put(&ages, "bob", [39])))?.safe()?;
    /// let sum = db.transact(|tx| {
    ///     let mut sum = 0;
    ///     let mut range = tx.range::<&str>(&ages, ..);
    ///     while let Some((_name, age)) = range.next_row()? {
    ///         sum += u32::from(age[0]);
    ///     }
    ///     Ok(sum)
    /// })?;
    /// assert_eq!(sum.forget(), 80);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`Transaction::get`]; the walk has ended then.
    #[inline]
    pub fn next_row(&mut self) -> Result<Option<LentRow<'_>>> {
        Ok(self.advance()?.map(|place| lend(&self.walk, &self.value, place)))
    }

    #[inline]
    fn advance(&mut self) -> Result<Option<Place>> {
        let stepped = self.step();
        if stepped.is_err() {
            self.walk.give_up();
        }
        stepped
    }

    /// Goes to the next row; nothing at the end.
    #[inline]
    fn step(&mut self) -> Result<Option<Place>> {
        if !self.walk.is_done()
            && self.transaction.has_written_nothing()?
            && self.walk.step_in_run()
            && !self.has_expired()?
        {
            self.walk.count_row();
            return place_settled(&mut self.walk, &mut self.value).map(Some);
        }
        self.step_on()
    }

    /// The settled row that the walk has come to is absent.
    #[inline]
    fn has_expired(&self) -> Result<bool> {
        let leaf = || RangeRead { object: self.table.handle().id, leaf: self.walk.leaf_read() };
        self.transaction.has_expired(self.walk.settled_expires_at(), leaf)
    }

    /// As [`Self::step`], where no run of settled rows goes on.
    fn step_on(&mut self) -> Result<Option<Place>> {
        let transaction = self.transaction;
        let id = transaction.check(self.table, &[])?;
        while !self.walk.is_done() {
            let written = transaction.next_written(id, self.walk.bounds(), self.walk.is_reverse())?;
            let note = |leaf| transaction.note_range(id, leaf);
            let place = match self.walk.step(self.table, written, note)? {
                None => return Ok(None),
                Some(Found::Key(hash)) => {
                    let is_row = transaction.get_hashed(id, hash, self.walk.key(), &mut self.value)?;
                    is_row.then_some(Place::Buffer)
                }
                Some(Found::Settled) if self.has_expired()? => None,
                Some(Found::Settled) => Some(place_settled(&mut self.walk, &mut self.value)?),
            };
            if place.is_some() {
                self.walk.count_row();
                return Ok(place);
            }
        }
        Ok(None)
    }
}

impl Iterator for Range<'_, '_> {
    type Item = Result<Row>;

    fn next(&mut self) -> Option<Result<Row>> {
        let place = self.advance().transpose()?;
        Some(place.map(|place| own(&self.walk, &mut self.value, place)))
    }
}

impl<'db> Transaction<'db> {
    /// The row of a table with the lowest key.
    ///
    /// # Errors
    /// As [`Self::get`].
    pub fn first(&self, table: &Table) -> Result<Option<Row>> {
        self.range::<&[u8]>(table, ..).limit(1).next().transpose()
    }

    /// The row of a table with the highest key.
    ///
    /// # Errors
    /// As [`Self::get`].
    pub fn last(&self, table: &Table) -> Result<Option<Row>> {
        self.range::<&[u8]>(table, ..).reverse().limit(1).next().transpose()
    }

    /// Deletes the rows of a table whose keys lie within the bounds, and says how many there were. Each is an entry of the
    /// transaction: what is longer than its limits allow is deleted in several.
    ///
    /// ```
    /// # let directory = tempfile::tempdir()?;
    /// # let db = kiln::Kiln::open(directory.path())?;
    /// let events = db.table("events")?;
    /// db.transact(|tx| (1..=9_u8).try_for_each(|hour| tx.put(&events, [hour], "event")))?.safe()?;
    /// let deleted = db.transact(|tx| tx.delete_range(&events, ..[5_u8]))?.safe()?;
    /// assert_eq!((deleted, db.get(&events, [4])?), (4, None));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`Self::get`] and [`Self::put`].
    pub fn delete_range<K: AsRef<[u8]>>(&self, table: &Table, bounds: impl RangeBounds<K>) -> Result<u64> {
        // All are found before the first is deleted: from then on the walk would have to look for what the transaction itself
        // has written.
        let (mut keys, mut ends) = (Vec::new(), Vec::new());
        let mut range = self.range(table, bounds);
        while let Some((key, _)) = range.next_row()? {
            keys.extend_from_slice(key);
            ends.push(keys.len());
        }
        let mut begin = 0;
        for &end in &ends {
            self.delete_key(table.handle().id, &keys[begin..end])?;
            begin = end;
        }
        Ok(ends.len() as u64)
    }

    /// The rows of a table whose keys lie within the bounds, in order.
    pub fn range<'tx, K: AsRef<[u8]>>(
        &'tx self,
        table: &'tx Table,
        bounds: impl RangeBounds<K>,
    ) -> Range<'tx, 'db> {
        Range::new(self, table, Walk::new(bounds))
    }

    /// The rows of a table whose keys begin with `prefix`, in order.
    pub fn prefix<'tx>(&'tx self, table: &'tx Table, prefix: impl AsRef<[u8]>) -> Range<'tx, 'db> {
        Range::new(self, table, Walk::prefix(prefix.as_ref()))
    }
}

/// An ordered walk over a table as of a snapshot; an iterator over `Result<(key, value)>`, and, without an allocation for
/// each row, [`Self::next_row`].
#[derive(Debug)]
pub struct SnapshotRange<'s> {
    snapshot: &'s Snapshot<'s>,
    table: &'s Table,
    walk: Walk,
    value: Vec<u8>,
}

impl<'s> SnapshotRange<'s> {
    fn new(snapshot: &'s Snapshot<'s>, table: &'s Table, walk: Walk) -> SnapshotRange<'s> {
        let mut range = SnapshotRange { snapshot, table, walk, value: Vec::new() };
        range.walk.set_version_max(snapshot.version().number());
        range
    }

    /// Walks from the upper bound down. To be called before the first step.
    pub fn reverse(mut self) -> Self {
        self.walk.set_reverse();
        self
    }

    /// Ends after at most `rows` rows. It costs less than to stop asking, since nothing is fetched in vain.
    pub fn limit(mut self, rows: usize) -> Self {
        self.walk.set_limit(rows);
        self
    }

    /// Goes on from `key` (included), in the walk's direction, forward or back; the far bound stays.
    pub fn seek(&mut self, key: impl AsRef<[u8]>) {
        self.walk.seek(key.as_ref());
    }

    /// The next row, lent until the next step, as [`Range::next_row`] does it. `None` at the end.
    ///
    /// # Errors
    /// As [`Snapshot::get`]; the walk has ended then.
    #[inline]
    pub fn next_row(&mut self) -> Result<Option<LentRow<'_>>> {
        Ok(self.advance()?.map(|place| lend(&self.walk, &self.value, place)))
    }

    #[inline]
    fn advance(&mut self) -> Result<Option<Place>> {
        let stepped = self.step();
        if stepped.is_err() {
            self.walk.give_up();
        }
        stepped
    }

    /// Goes to the next row; nothing at the end.
    #[inline]
    fn step(&mut self) -> Result<Option<Place>> {
        if !self.walk.is_done()
            && self.walk.step_in_run()
            && !self.snapshot.has_expired(self.walk.settled_expires_at())
        {
            self.walk.count_row();
            return place_settled(&mut self.walk, &mut self.value).map(Some);
        }
        self.step_on()
    }

    /// As [`Self::step`], where no run of settled rows goes on.
    fn step_on(&mut self) -> Result<Option<Place>> {
        let id = self.snapshot.engine().check_key(self.table.handle(), self.table.name(), &[])?;
        while !self.walk.is_done() {
            let place = match self.walk.step(self.table, None, |_| Ok(()))? {
                None => return Ok(None),
                Some(Found::Key(hash)) => {
                    let is_row = self.snapshot.read_hashed(id, hash, self.walk.key(), &mut self.value)?;
                    is_row.then_some(Place::Buffer)
                }
                Some(Found::Settled) if self.snapshot.has_expired(self.walk.settled_expires_at()) => None,
                Some(Found::Settled) => Some(place_settled(&mut self.walk, &mut self.value)?),
            };
            if place.is_some() {
                self.walk.count_row();
                return Ok(place);
            }
        }
        Ok(None)
    }
}

impl Iterator for SnapshotRange<'_> {
    type Item = Result<Row>;

    fn next(&mut self) -> Option<Result<Row>> {
        let place = self.advance().transpose()?;
        Some(place.map(|place| own(&self.walk, &mut self.value, place)))
    }
}

impl Snapshot<'_> {
    /// The row of a table with the lowest key.
    ///
    /// # Errors
    /// As [`Self::get`].
    pub fn first(&self, table: &Table) -> Result<Option<Row>> {
        self.range::<&[u8]>(table, ..).limit(1).next().transpose()
    }

    /// The row of a table with the highest key.
    ///
    /// # Errors
    /// As [`Self::get`].
    pub fn last(&self, table: &Table) -> Result<Option<Row>> {
        self.range::<&[u8]>(table, ..).reverse().limit(1).next().transpose()
    }

    /// The rows of a table whose keys lie within the bounds, in order.
    pub fn range<'s, K: AsRef<[u8]>>(
        &'s self,
        table: &'s Table,
        bounds: impl RangeBounds<K>,
    ) -> SnapshotRange<'s> {
        SnapshotRange::new(self, table, Walk::new(bounds))
    }

    /// The rows of a table whose keys begin with `prefix`, in order.
    pub fn prefix<'s>(&'s self, table: &'s Table, prefix: impl AsRef<[u8]>) -> SnapshotRange<'s> {
        SnapshotRange::new(self, table, Walk::prefix(prefix.as_ref()))
    }
}
