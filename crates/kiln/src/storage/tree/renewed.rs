//! A walk that goes on over whatever root is the newest.

use std::ops::Bound;
use std::sync::Arc;

use super::Tree;
use super::cursor::{Cursor, Direction};
use super::root::Root;
use crate::error::Result;

/// Says whether to go on, or why not. Asked between some rows, of which there may be many.
pub(super) type GoesOn<'t> = &'t dyn Fn() -> Result<()>;

/// So many rows are between two of these questions.
const ROWS_AT_ONCE: u64 = 1 << 10;

/// The rows from a key on, in order. The merge that takes them may make root after root: each row is looked for in the newest, so that no older one is held
/// for longer than to the next row, and none behind the last, and its blocks can be written.
pub(super) struct RenewedWalk<'t> {
    tree: &'t Arc<Tree>,
    walk: Option<(Arc<Root>, Cursor)>,
    /// Where it ends, if not with the last row.
    to: Option<&'t [u8]>,
    goes_on: GoesOn<'t>,
    rows: u64,
    has_row: bool,
    key: Vec<u8>,
}

impl<'t> RenewedWalk<'t> {
    /// Goes to the first row that is not before `from`.
    pub(super) fn new(
        tree: &'t Arc<Tree>,
        from: &[u8],
        to: Option<&'t [u8]>,
        goes_on: GoesOn<'t>,
    ) -> Result<RenewedWalk<'t>> {
        let mut walk =
            RenewedWalk { tree, walk: None, to, goes_on, rows: 0, has_row: false, key: from.to_vec() };
        walk.step()?;
        Ok(walk)
    }

    /// The key of the row that it is at; `None` at the end.
    pub(super) fn key(&self) -> Option<&[u8]> {
        self.has_row.then_some(&self.key[..])
    }

    /// The row that [`step`](Self::step) has just gone to.
    pub(super) fn cursor(&mut self) -> Option<&mut Cursor> {
        self.walk.as_mut().map(|(_, cursor)| cursor)
    }

    /// Goes to the next row.
    pub(super) fn step(&mut self) -> Result<()> {
        if self.rows.is_multiple_of(ROWS_AT_ONCE) {
            (self.goes_on)()?;
        }
        self.rows += 1;
        let had_row = std::mem::take(&mut self.has_row);
        let mut walk = match self.walk.take().filter(|(root, _)| self.tree.is_newest(root)) {
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
        if let Some(key) = walk.1.key().filter(|&key| self.to.is_none_or(|to| key < to)) {
            self.key.clear();
            self.key.extend_from_slice(key);
            (self.has_row, self.walk) = (true, Some(walk));
        }
        Ok(())
    }
}
