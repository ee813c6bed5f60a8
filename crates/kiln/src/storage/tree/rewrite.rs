//! Rows of the tree as they are, to be written anew.

use std::ops::Bound;
use std::sync::Arc;

use super::Tree;
use super::cursor::{Cursor, Direction};
use super::load::Rows;
use super::root::Root;
use crate::error::Result;

/// The rows from a key on. The merge that takes them may make root after root: each row is read from the newest, so that no older one is held
/// for longer than to the next row, and its blocks can be written.
pub(super) struct Rewritten<'t> {
    tree: &'t Arc<Tree>,
    from: &'t [u8],
    walk: Option<(Arc<Root>, Cursor)>,
}

impl<'t> Rewritten<'t> {
    pub(super) fn new(tree: &'t Arc<Tree>, from: &'t [u8]) -> Rewritten<'t> {
        Rewritten { tree, from, walk: None }
    }
}

impl Rows for Rewritten<'_> {
    fn next(&mut self, key: &mut Vec<u8>, value: &mut Vec<u8>) -> Result<bool> {
        let walk = match self.walk.take().filter(|(root, _)| self.tree.is_newest(root)) {
            Some((root, mut cursor)) => {
                cursor.step()?;
                (root, cursor)
            }
            None => {
                let root = self.tree.root();
                let mut cursor = Cursor::new(self.tree, Arc::clone(&root));
                let from =
                    if key.is_empty() { Bound::Included(self.from) } else { Bound::Excluded(&key[..]) };
                cursor.seek(from, Direction::Forwards)?;
                (root, cursor)
            }
        };
        let (_, cursor) = self.walk.insert(walk);
        let Some(next) = cursor.key() else {
            // What only the old root needs shall be free when the new one is there.
            self.walk = None;
            return Ok(false);
        };
        key.clear();
        key.extend_from_slice(next);
        cursor.value_into(value)?;
        Ok(true)
    }
}
