//! What the ranges of transactions and of snapshots have in common: a walk, and whoever reads the rows that it comes to.

use super::Table;
use super::deleted::Passed;
use super::walk::{Bounds, Found, Walk};
use crate::error::Result;
use crate::kernel::handle::HasHandle;
use crate::storage::ordered_index::{GapRead, Joined, LeafRead};

/// A key and its value.
pub(super) type Row = (Vec<u8>, Vec<u8>);

/// The same, lent.
pub(super) type LentRow<'r> = (&'r [u8], &'r [u8]);

/// Who reads the rows of a range.
pub(super) trait Reader {
    /// The number of the table, if it may be read.
    fn check(&self, table: &Table) -> Result<u32>;

    /// To be called with each row, and at the end: what was found counts only if the table was there.
    fn confirm(&self, table: &Table) -> Result<()>;

    /// True as long as nothing but what the table has can be a row.
    fn sees_table_only(&self) -> Result<bool>;

    /// The next key within the bounds that the reader itself has written.
    fn next_written(&self, object: u32, bounds: Bounds<'_>, reverse: bool) -> Result<Option<Vec<u8>>>;

    /// Registers a leaf as read.
    fn note(&self, object: u32, leaf: LeafRead) -> Result<()>;

    /// Registers a gap as read.
    fn note_gap(&self, object: u32, gap: GapRead) -> Result<()>;

    /// Goes on with another gap where it has registered one that is a part of that now, if it registers any.
    fn note_joined(&self, _object: u32, _joined: Joined) -> Result<()> {
        Ok(())
    }

    /// True if a settled row that expires then, found for the sake of that leaf, is absent for the reader.
    fn has_expired(&self, object: u32, expires_at: u64, leaf: impl FnOnce() -> LeafRead) -> Result<bool>;

    /// Reads a key's value; false if it has none.
    fn read(&self, object: u32, hash: u64, key: &[u8], value: &mut Vec<u8>) -> Result<bool>;
}

/// Where the row is that a walk has come to.
#[derive(Clone, Copy)]
enum Place {
    /// Its value is in the range's buffer.
    Buffer,
    /// Its value was read with those of the rows beside it.
    Read,
    /// Its value is with the settled rows.
    Settled,
    /// Its value was frozen.
    Frozen,
}

/// The rows of a table within some bounds, one after the other.
#[derive(Debug)]
pub(super) struct Rows<'t> {
    pub(super) table: &'t Table,
    pub(super) walk: Walk,
    pub(super) passed: Passed,
    value: Vec<u8>,
    /// An error was told, and was the last thing.
    has_failed: bool,
}

impl<'t> Rows<'t> {
    pub(super) fn new(table: &'t Table, walk: Walk) -> Rows<'t> {
        Rows { table, walk, passed: Passed::default(), value: Vec::new(), has_failed: false }
    }

    /// The next row, lent until the next step.
    #[inline]
    pub(super) fn lend(&mut self, reader: &impl Reader) -> Result<Option<LentRow<'_>>> {
        let Some(place) = self.advance(reader)? else { return Ok(None) };
        let value = match place {
            Place::Buffer => &self.value,
            Place::Read => self.walk.read_value(),
            Place::Settled => self.walk.settled_value().unwrap_or_default(),
            Place::Frozen => self.walk.frozen_value(),
        };
        Ok(Some((self.walk.key(), value)))
    }

    /// The next row, to be kept.
    pub(super) fn own(&mut self, reader: &impl Reader) -> Option<Result<Row>> {
        let row = self.lend(reader).transpose()?;
        Some(row.map(|(key, value)| (key.to_vec(), value.to_vec())))
    }

    #[inline]
    fn advance(&mut self, reader: &impl Reader) -> Result<Option<Place>> {
        if self.has_failed {
            return Ok(None);
        }
        let stepped = self.step(reader).and_then(|place| reader.confirm(self.table).map(|()| place));
        self.has_failed = stepped.is_err();
        stepped
    }

    /// Goes to the next row; nothing at the end.
    #[inline]
    fn step(&mut self, reader: &impl Reader) -> Result<Option<Place>> {
        if !self.walk.is_done() && reader.sees_table_only()? {
            if self.walk.step_in_group() {
                return Ok(Some(Place::Read));
            }
            if self.walk.step_in_run() && !self.has_expired(reader)? {
                self.walk.count_row();
                return self.place_settled().map(Some);
            }
        }
        self.step_on(reader)
    }

    /// As [`Self::step`], where neither a group of rows nor a run of settled ones goes on.
    fn step_on(&mut self, reader: &impl Reader) -> Result<Option<Place>> {
        let id = reader.check(self.table)?;
        self.passed.end();
        while !self.walk.is_done() {
            self.walk.catch_up();
            let written = reader.next_written(id, self.walk.bounds(), self.walk.is_reverse())?;
            let place = match self.walk.step(self.table, written.as_deref(), |leaf| reader.note(id, leaf))? {
                None => return Ok(None),
                Some(Found::Key(hash)) => {
                    let is_row = reader.read(id, hash, self.walk.key(), &mut self.value)?;
                    if !is_row {
                        self.pass_deleted(reader, written.as_deref())?;
                    }
                    is_row.then_some(Place::Buffer)
                }
                Some(Found::Read) => Some(Place::Read),
                Some(Found::Settled) if self.has_expired(reader)? => None,
                Some(Found::Settled) => Some(self.place_settled()?),
                Some(Found::Frozen) => {
                    let expires_at = self.walk.frozen_expires_at();
                    let has_expired = reader.has_expired(id, expires_at, || self.walk.leaf_read())?;
                    (!has_expired).then_some(Place::Frozen)
                }
            };
            if place.is_some() {
                self.walk.count_row();
                return Ok(place);
            }
        }
        Ok(None)
    }

    /// The settled row that the walk has come to is absent.
    #[inline]
    fn has_expired(&self, reader: &impl Reader) -> Result<bool> {
        let (object, walk) = (self.table.handle().id, &self.walk);
        reader.has_expired(object, walk.settled_expires_at(), || walk.leaf_read())
    }

    /// The value of the settled row that the walk has come to: where it lies in memory, or else in the buffer.
    #[inline]
    fn place_settled(&mut self) -> Result<Place> {
        match self.walk.has_settled_value() {
            true => Ok(Place::Settled),
            false => self.walk.read_settled(&mut self.value).map(|()| Place::Buffer),
        }
    }
}
