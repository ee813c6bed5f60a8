//! Rows that come one after the other, as what a merge takes; and all rows between two keys, to be removed.

use std::ops::Bound;
use std::sync::Arc;

use super::Tree;
use super::changes::{Change, Changes};
use super::cursor::{Cursor, Direction};
use crate::error::Result;
use crate::storage::record::NEVER;

/// Where rows come from.
pub(crate) trait Rows {
    /// Replaces `key`, which is that of the row before, or empty, and `value` by the next row; false at the end. Keys ascend.
    fn next(&mut self, key: &mut Vec<u8>, value: &mut Vec<u8>) -> Result<bool>;
}

/// A source of rows, of which one is in memory.
pub(super) struct Streamed<'r> {
    rows: &'r mut dyn Rows,
    key: Vec<u8>,
    value: Vec<u8>,
    has_row: bool,
}

impl<'r> Streamed<'r> {
    pub(super) fn new(rows: &'r mut dyn Rows) -> Result<Streamed<'r>> {
        let mut streamed = Streamed { rows, key: Vec::new(), value: Vec::new(), has_row: true };
        streamed.advance()?;
        Ok(streamed)
    }
}

impl Changes for Streamed<'_> {
    fn peek(&mut self) -> Result<Option<Change<'_>>> {
        Ok(self.has_row.then_some(Change { key: &self.key, value: Some(&self.value), expires_at: NEVER }))
    }

    fn advance(&mut self) -> Result<()> {
        self.has_row = self.rows.next(&mut self.key, &mut self.value)?;
        Ok(())
    }

    fn look_ahead(&mut self, _: &mut dyn FnMut(&[u8]) -> bool) {
        // They lie side by side, and touch one leaf that is there already.
    }
}

/// A walk over the newest root, each key of which goes.
pub(super) struct Removed<'k> {
    cursor: Cursor,
    to: &'k [u8],
}

impl<'k> Removed<'k> {
    pub(super) fn new(tree: &Arc<Tree>, from: &[u8], to: &'k [u8]) -> Result<Removed<'k>> {
        let mut cursor = Cursor::new(tree, tree.root());
        cursor.seek(Bound::Included(from), Direction::Forwards)?;
        Ok(Removed { cursor, to })
    }
}

impl Changes for Removed<'_> {
    fn peek(&mut self) -> Result<Option<Change<'_>>> {
        let key = self.cursor.key().filter(|&key| key < self.to);
        Ok(key.map(|key| Change { key, value: None, expires_at: NEVER }))
    }

    fn advance(&mut self) -> Result<()> {
        self.cursor.step()
    }

    fn look_ahead(&mut self, _: &mut dyn FnMut(&[u8]) -> bool) {
        // The walk has read the leaves already.
    }
}
