//! All rows between two keys, to be removed.

use std::ops::Bound;
use std::sync::Arc;

use super::Tree;
use super::changes::{Change, Changes};
use super::cursor::{Cursor, Direction};
use crate::error::Result;
use crate::storage::record::NEVER;

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
