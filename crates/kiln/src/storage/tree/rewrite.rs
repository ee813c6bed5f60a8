//! Rows of the tree as they are, to be written anew.

use std::ops::Bound;
use std::sync::Arc;

use super::Tree;
use super::changes::{Change, Changes};
use super::cursor::{Cursor, Direction};
use super::root::Root;
use crate::error::Result;
use crate::planted::{Bug, planted};
use crate::storage::record::NEVER;

/// The rows from a key on. The merge that takes them may make root after root: each row is read from the newest, so that no older one is held
/// for longer than to the next row, and its blocks can be written.
pub(super) struct Rewritten<'t> {
    tree: &'t Arc<Tree>,
    walk: Option<(Arc<Root>, Cursor)>,
    has_row: bool,
    key: Vec<u8>,
    value: Vec<u8>,
    expires_at: u64,
}

impl<'t> Rewritten<'t> {
    pub(super) fn new(tree: &'t Arc<Tree>, from: &[u8]) -> Result<Rewritten<'t>> {
        let (key, value) = (from.to_vec(), Vec::new());
        let mut rows = Rewritten { tree, walk: None, has_row: false, key, value, expires_at: NEVER };
        rows.take_row()?;
        Ok(rows)
    }

    /// Takes the row that the walk is at; without one, a walk over the newest root begins at its key, or behind it if that was taken.
    fn take_row(&mut self) -> Result<()> {
        let had_row = std::mem::take(&mut self.has_row);
        let walk = match self.walk.take().filter(|(root, _)| self.tree.is_newest(root)) {
            Some((root, mut cursor)) => {
                cursor.step()?;
                (root, cursor)
            }
            None => {
                let root = self.tree.root();
                let mut cursor = Cursor::new(self.tree, Arc::clone(&root));
                let from =
                    if had_row { Bound::Excluded(&self.key[..]) } else { Bound::Included(&self.key[..]) };
                cursor.seek(from, Direction::Forwards)?;
                (root, cursor)
            }
        };
        let (_, cursor) = self.walk.insert(walk);
        let Some(key) = cursor.key() else {
            // What only the old root needs shall be free when the new one is there.
            self.walk = None;
            return Ok(());
        };
        self.key.clear();
        self.key.extend_from_slice(key);
        self.expires_at = if planted(Bug::RewrittenForEver) { NEVER } else { cursor.expires_at() };
        cursor.value_into(&mut self.value)?;
        self.has_row = true;
        Ok(())
    }
}

impl Changes for Rewritten<'_> {
    fn peek(&mut self) -> Result<Option<Change<'_>>> {
        let Rewritten { key, value, expires_at, .. } = self;
        Ok(self.has_row.then_some(Change { key, value: Some(value), expires_at: *expires_at }))
    }

    fn advance(&mut self) -> Result<()> {
        self.take_row()
    }

    fn look_ahead(&mut self, _: &mut dyn FnMut(&[u8]) -> bool) {
        // The walk has read the leaves already.
    }
}
