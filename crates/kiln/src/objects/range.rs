//! Ranges over a table, in a transaction or in a snapshot.

use std::ops::RangeBounds;

use super::rows::{LentRow, Reader, Row, Rows};
use super::walk::{Bounds, Walk};
use super::{Snapshot, Table};
use crate::error::Result;
use crate::kernel::handle::HasHandle;
use crate::kernel::object::RangeRead;
use crate::kernel::transaction::Transaction;
use crate::storage::ordered_index::{GapRead, Joined, LeafRead};
use crate::storage::record::{Kind, Shape};

impl Reader for Transaction<'_> {
    fn check(&self, table: &Table) -> Result<u32> {
        let id = Transaction::check(self, table, &[])?;
        self.use_object(id)?;
        Ok(id)
    }

    #[inline]
    fn confirm(&self, table: &Table) -> Result<()> {
        // As of a snapshot its rows stay.
        match table.handle().life.lives() || self.snapshot_version().is_some() {
            true => Ok(()),
            false => self.use_object(table.handle().id),
        }
    }

    #[inline]
    fn sees_table_only(&self) -> Result<bool> {
        self.has_written_nothing()
    }

    fn next_written(&self, object: u32, bounds: Bounds<'_>, reverse: bool) -> Result<Option<Vec<u8>>> {
        Transaction::next_written(self, object, bounds, reverse)
    }

    fn note(&self, object: u32, leaf: LeafRead) -> Result<()> {
        self.note_range(object, leaf)
    }

    fn note_gap(&self, object: u32, gap: GapRead) -> Result<()> {
        Transaction::note_gap(self, object, gap)
    }

    fn note_joined(&self, object: u32, joined: Joined) -> Result<()> {
        Transaction::note_joined(self, object, joined)
    }

    #[inline]
    fn has_expired(&self, object: u32, expires_at: u64, leaf: impl FnOnce() -> LeafRead) -> Result<bool> {
        Transaction::has_expired(self, expires_at, || RangeRead { object, leaf: leaf() })
    }

    fn read(&self, object: u32, hash: u64, key: &[u8], value: &mut Vec<u8>) -> Result<bool> {
        self.get_hashed(object, hash, key, value)
    }
}

impl Reader for Snapshot<'_> {
    fn check(&self, table: &Table) -> Result<u32> {
        self.check(table)
    }

    #[inline]
    fn confirm(&self, _table: &Table) -> Result<()> {
        Ok(())
    }

    #[inline]
    fn sees_table_only(&self) -> Result<bool> {
        Ok(true)
    }

    fn next_written(&self, _object: u32, _bounds: Bounds<'_>, _reverse: bool) -> Result<Option<Vec<u8>>> {
        Ok(None)
    }

    fn note(&self, _object: u32, _leaf: LeafRead) -> Result<()> {
        Ok(())
    }

    fn note_gap(&self, _object: u32, _gap: GapRead) -> Result<()> {
        Ok(())
    }

    #[inline]
    fn has_expired(&self, _: u32, expires_at: u64, _: impl FnOnce() -> LeafRead) -> Result<bool> {
        Ok(Snapshot::has_expired(self, expires_at))
    }

    fn read(&self, object: u32, hash: u64, key: &[u8], value: &mut Vec<u8>) -> Result<bool> {
        self.read_hashed(object, hash, key, value)
    }
}

/// An ordered walk over a table within a transaction; an iterator over `Result<(key, value)>`, and, without an allocation
/// for each row, [`Self::next_row`].
///
/// The transaction may go on reading and writing while it runs; what it writes ahead of the walk is met. What
/// the walk has passed is protected against phantoms.
///
/// Both stay on one thread as long as there is the walk: no future that may go to another one holds it across an `await`.
#[derive(Debug)]
pub struct Range<'tx, 'db> {
    transaction: &'tx Transaction<'db>,
    rows: Rows<'tx>,
}

impl<'tx, 'db> Range<'tx, 'db> {
    fn new(transaction: &'tx Transaction<'db>, table: &'tx Table, mut walk: Walk) -> Range<'tx, 'db> {
        walk.set_version_max(transaction.snapshot_version().unwrap_or(u64::MAX));
        Range { transaction, rows: Rows::new(table, walk) }
    }

    /// Walks from the upper bound down. To be called before the first step, and before [`Self::seek`].
    pub fn reverse(mut self) -> Self {
        self.rows.walk.set_reverse();
        self
    }

    /// Ends after at most `rows` rows. It costs less than to stop asking, since nothing is fetched in vain.
    pub fn limit(mut self, rows: usize) -> Self {
        self.rows.walk.set_limit(rows);
        self
    }

    /// Goes on from `key` (included), in the walk's direction, whether the walk has passed it, is yet to come there, or has ended. The bounds stay: from a key before them it begins anew, and behind
    /// them it ends.
    pub fn seek(&mut self, key: impl AsRef<[u8]>) {
        self.rows.walk.seek(key.as_ref());
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
        self.rows.lend(self.transaction)
    }
}

impl Iterator for Range<'_, '_> {
    type Item = Result<Row>;

    fn next(&mut self) -> Option<Result<Row>> {
        self.rows.own(self.transaction)
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

    /// Deletes the rows of a table whose keys lie within the bounds, and says how many there were. Each that has not settled is two
    /// [entries](crate::Options::transaction_entries) of the transaction, which reads it and writes it, and a settled one is one: what is longer than its limits allow is deleted
    /// in several. The range is read before anything is deleted, but not much further, and no more of its keys are kept in memory, than these limits allow.
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
        let (id, mut keys, mut ends) = (table.handle().id, Vec::new(), Vec::new());
        let (mut range, mut log_bytes) = (self.range(table, bounds), 0);
        while let Some((key, _)) = range.next_row()? {
            keys.extend_from_slice(key);
            ends.push(keys.len());
            let deletion = Shape { kind: Kind::Tombstone, object: id, key_bytes: key.len(), value_bytes: 0 };
            log_bytes += deletion.bytes() as usize;
            self.check_deletions(ends.len(), log_bytes)?;
        }
        self.note_deletion()?;
        let mut begin = 0;
        for &end in &ends {
            self.delete_key(id, &keys[begin..end])?;
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
    rows: Rows<'s>,
}

impl<'s> SnapshotRange<'s> {
    fn new(snapshot: &'s Snapshot<'s>, table: &'s Table, mut walk: Walk) -> SnapshotRange<'s> {
        walk.set_version_max(snapshot.version().number());
        walk.set_in_groups(snapshot.log_end());
        SnapshotRange { snapshot, rows: Rows::new(table, walk) }
    }

    /// Walks from the upper bound down. To be called before the first step, and before [`Self::seek`].
    pub fn reverse(mut self) -> Self {
        self.rows.walk.set_reverse();
        self
    }

    /// Ends after at most `rows` rows. It costs less than to stop asking, since nothing is fetched in vain.
    pub fn limit(mut self, rows: usize) -> Self {
        self.rows.walk.set_limit(rows);
        self
    }

    /// Goes on from `key` (included), in the walk's direction, whether the walk has passed it, is yet to come there, or has ended. The bounds stay: from a key before them it begins anew, and behind
    /// them it ends.
    pub fn seek(&mut self, key: impl AsRef<[u8]>) {
        self.rows.walk.seek(key.as_ref());
    }

    /// The next row, lent until the next step, as [`Range::next_row`] does it. `None` at the end.
    ///
    /// # Errors
    /// As [`Snapshot::get`]; the walk has ended then.
    #[inline]
    pub fn next_row(&mut self) -> Result<Option<LentRow<'_>>> {
        self.rows.lend(self.snapshot)
    }
}

impl Iterator for SnapshotRange<'_> {
    type Item = Result<Row>;

    fn next(&mut self) -> Option<Result<Row>> {
        self.rows.own(self.snapshot)
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
