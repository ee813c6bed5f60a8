//! A table's settled rows, for a walk: the part of the tree that is the table's, from a root that goes with what the walk has read of
//! the index in memory.
//!
//! A leaf of the ordered index and a root of the tree go together if the root was the newest both before and after the leaf was
//! read: a row enters a root before its key leaves the index, so each row was then in one of them at least; and a row of the
//! root whose key was not in the leaf was not written since it settled. Whoever writes it, or one that is in neither, later,
//! changes the leaf. So a settled row needs no place in a transaction's read set: the leaf stands for it.

use std::fmt;
use std::ops::Bound;
use std::sync::Arc;

use super::Table;
use super::handle::HasHandle;
use crate::error::Result;
use crate::kernel::settled::{OBJECT_BYTES, write_tree_key};
use crate::storage::tree::{Cursor, Direction, Root};

/// See the module's documentation.
pub(super) struct SettledRows {
    object: u32,
    root: Arc<Root>,
    cursor: Cursor,
    /// The cursor is at the first row that was not taken; it is not where the walk was moved.
    is_placed: bool,
    bound: Vec<u8>,
}

impl fmt::Debug for SettledRows {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("SettledRows").field("key", &self.cursor.key()).finish_non_exhaustive()
    }
}

impl SettledRows {
    /// The newest root, if anything has settled that is to be seen as of this version.
    pub(super) fn newest_root(table: &Table, version_max: u64) -> Option<Arc<Root>> {
        let handle = table.handle();
        let tree = &handle.engine.settled.tree;
        let is_to_be_seen = !tree.is_empty() && !handle.engine.is_loaded_after(handle.id, version_max);
        is_to_be_seen.then(|| tree.root())
    }

    pub(super) fn new(table: &Table, root: Arc<Root>) -> SettledRows {
        let handle = table.handle();
        let cursor = Cursor::new(&handle.engine.settled.tree, root.clone());
        SettledRows { object: handle.id, root, cursor, is_placed: false, bound: Vec::new() }
    }

    pub(super) fn is_of(&self, root: &Arc<Root>) -> bool {
        Arc::ptr_eq(&self.root, root)
    }

    /// The walk goes on elsewhere.
    pub(super) fn move_away(&mut self) {
        self.is_placed = false;
    }

    /// The key of the next row behind the walk's near bound, in its direction.
    pub(super) fn next(&mut self, near: Bound<&[u8]>, direction: Direction) -> Result<Option<&[u8]>> {
        if !self.is_placed {
            self.place(near, direction)?;
        }
        let key = self.cursor.key();
        Ok(key.and_then(|key| key.strip_prefix(&self.object.to_be_bytes()[..])))
    }

    fn place(&mut self, near: Bound<&[u8]>, direction: Direction) -> Result<()> {
        let SettledRows { object, cursor, bound, .. } = self;
        let key = match near {
            Bound::Included(key) | Bound::Excluded(key) => key,
            Bound::Unbounded => &[],
        };
        write_tree_key(*object, key, bound);
        let bound = match (near, direction) {
            (Bound::Excluded(_), _) => Bound::Excluded(&bound[..]),
            (Bound::Unbounded, Direction::Backwards) => {
                // Numbers of objects are far from the greatest.
                write_tree_key(*object + 1, &[], bound);
                Bound::Excluded(&bound[..])
            }
            (Bound::Included(_), _) | (Bound::Unbounded, Direction::Forwards) => Bound::Included(&bound[..]),
        };
        cursor.seek(bound, direction)?;
        self.is_placed = true;
        Ok(())
    }

    /// The row's value.
    pub(super) fn value_into(&mut self, value: &mut Vec<u8>) -> Result<()> {
        self.cursor.value_into(value)
    }

    /// Goes to the next row.
    pub(super) fn pass(&mut self) -> Result<()> {
        self.cursor.step()
    }
}

/// About how many settled rows of a table lie within the bounds.
pub(super) fn estimate(table: &Table, lower: Bound<&[u8]>, upper: Bound<&[u8]>) -> Result<u64> {
    let handle = table.handle();
    let (mut from, mut to) = (Vec::with_capacity(OBJECT_BYTES), Vec::new());
    match lower {
        Bound::Included(key) | Bound::Excluded(key) => write_tree_key(handle.id, key, &mut from),
        Bound::Unbounded => write_tree_key(handle.id, &[], &mut from),
    }
    match upper {
        Bound::Included(key) | Bound::Excluded(key) => write_tree_key(handle.id, key, &mut to),
        Bound::Unbounded => write_tree_key(handle.id + 1, &[], &mut to),
    }
    // The first key behind one is that with a zero added.
    if matches!(lower, Bound::Excluded(_)) {
        from.push(0);
    }
    if matches!(upper, Bound::Included(_)) {
        to.push(0);
    }
    handle.engine.settled.tree.count_estimate(&from, Some(&to))
}
