//! A table's settled rows, for a walk: the part of the tree that is the table's, from a root that goes with what the walk has read of
//! the index in memory.
//!
//! A leaf of the ordered index and a root of the tree go together if the root was the newest both before and after the leaf was
//! read: a row enters a root before its key leaves the index, so each row was then in one of them at least; and a row of the
//! root whose key was not in the leaf was not written since it settled. Whoever writes it, or one that is in neither, later,
//! changes the leaf. So a settled row needs no place in a transaction's read set: the leaf stands for it.

use std::fmt;
use std::ops::{Bound, Range};
use std::sync::Arc;

use super::Table;
use crate::error::Result;
use crate::kernel::handle::HasHandle;
use crate::planted::{Bug, planted};
use crate::storage::record::NEVER;
use crate::storage::tree::{Cursor, Direction, OBJECT_BYTES, Root, write_tree_key};

/// The bounds of a walk, and which way it goes.
#[derive(Clone, Copy)]
pub(super) struct Way<'w> {
    /// Where it is.
    pub(super) near: Bound<&'w [u8]>,
    /// Where it ends.
    pub(super) far: Bound<&'w [u8]>,
    pub(super) direction: Direction,
}

/// See the module's documentation.
pub(super) struct SettledRows {
    object: u32,
    cursor: Cursor,
    /// The cursor is at the first row that was not taken; it is not where the walk was moved.
    is_placed: bool,
    /// The walk has come to the cursor's row, which is lent until the next step, and passed then.
    is_given: bool,
    /// Where its value lies in the leaf, if it does.
    value: Option<Range<usize>>,
    /// So many rows of the cursor's leaf, from the first one that is not given on, are the walk's next ones, whatever it is: they
    /// lie before the next key of the index in memory, before the end of its leaf, and before the walk's end.
    run: usize,
    bound: Vec<u8>,
}

impl fmt::Debug for SettledRows {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("SettledRows").field("run", &self.run).finish_non_exhaustive()
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

    /// True if a root is the newest one, and anything has settled.
    pub(super) fn is_newest(table: &Table, root: &Arc<Root>) -> bool {
        let tree = &table.handle().engine.settled.tree;
        !tree.is_empty() && tree.is_newest(root)
    }

    pub(super) fn new(table: &Table, root: Arc<Root>) -> SettledRows {
        let handle = table.handle();
        // What walks before this one have read.
        handle.engine.watch_reads();
        let cursor = Cursor::new(&handle.engine.settled.tree, root);
        let (is_placed, is_given) = (false, false);
        let (value, bound) = (None, Vec::new());
        SettledRows { object: handle.id, cursor, is_placed, is_given, value, run: 0, bound }
    }

    pub(super) fn is_of(&self, root: &Arc<Root>) -> bool {
        self.cursor.is_over(root)
    }

    /// The walk goes on elsewhere.
    pub(super) fn move_away(&mut self) {
        self.is_placed = false;
        self.is_given = false;
        self.run = 0;
    }

    /// The key of the next row between the walk's bounds, or behind them. So many more are wanted, if that is known.
    pub(super) fn next(&mut self, way: Way<'_>, rows_wanted: Option<usize>) -> Result<Option<&[u8]>> {
        if !self.is_placed {
            self.cursor.expect(rows_wanted);
            self.place(way)?;
        }
        if self.is_given {
            self.is_given = false;
            self.cursor.step()?;
        }
        let object = self.object.to_be_bytes();
        Ok(self.cursor.key().and_then(|key| key.strip_prefix(&object)))
    }

    /// The next row, of which the walk knows that it is its next one, begins a run that ends before any of these.
    pub(super) fn begin_run(&mut self, ends: [Option<Bound<&[u8]>>; 3], rows_wanted: Option<usize>) {
        let is_of_object = |(prefix, ..): (&[u8], _, _)| prefix.starts_with(&self.object.to_be_bytes());
        if !self.cursor.entry().is_some_and(is_of_object) {
            self.run = 1;
            return;
        }
        let mut run = self.cursor.count_within(Bound::Unbounded);
        for end in ends.into_iter().flatten() {
            let (Bound::Included(key) | Bound::Excluded(key)) = end else { continue };
            write_tree_key(self.object, key, &mut self.bound);
            run = run.min(self.cursor.count_within(end.map(|_| &self.bound[..])));
        }
        self.run = run.max(1);
        self.cursor.expect(rows_wanted);
    }

    /// Goes past the row that was given, if the next one is of the same run.
    #[inline]
    pub(super) fn pass_given(&mut self) {
        if self.is_given && self.run > 0 {
            self.cursor.step_in_leaf();
            self.is_given = false;
        }
    }

    /// How many rows are the walk's next ones for certain.
    #[inline]
    pub(super) fn run(&self) -> usize {
        self.run
    }

    /// Gives the run's next row; its key becomes the excluded bound `near`.
    #[inline]
    pub(super) fn give(&mut self, near: &mut Bound<Vec<u8>>) {
        let is_next = self.is_given;
        if is_next {
            self.cursor.step_in_leaf();
        }
        self.is_given = true;
        self.run -= 1;
        let Some((prefix, rest, value)) = self.cursor.entry() else { return };
        self.value = value;
        match near {
            // It holds the row before, from the same leaf.
            Bound::Excluded(key) if is_next && prefix.len() >= OBJECT_BYTES => {
                key.truncate(prefix.len() - OBJECT_BYTES);
                key.extend_from_slice(rest);
            }
            _ => {
                let mut key = match std::mem::replace(near, Bound::Unbounded) {
                    Bound::Included(key) | Bound::Excluded(key) => key,
                    Bound::Unbounded => Vec::new(),
                };
                key.clear();
                key.extend_from_slice(prefix.get(OBJECT_BYTES..).unwrap_or_default());
                // A leaf of several tables has a part of the number there.
                key.extend_from_slice(&rest[OBJECT_BYTES.saturating_sub(prefix.len())..]);
                *near = Bound::Excluded(key);
            }
        }
    }

    /// When the row that was given expires, if it does.
    #[inline]
    pub(super) fn expires_at(&self) -> u64 {
        if planted(Bug::ExpiredInRanges) { NEVER } else { self.cursor.expires_at() }
    }

    /// The value of the row that was given, if it lies in memory.
    #[inline]
    pub(super) fn value(&self) -> Option<&[u8]> {
        self.value.clone().map(|place| self.cursor.value_at(place))
    }

    /// True if it does.
    #[inline]
    pub(super) fn has_value(&self) -> bool {
        self.value.is_some()
    }

    /// Reads it.
    pub(super) fn value_into(&mut self, value: &mut Vec<u8>) -> Result<()> {
        self.cursor.value_into(value)
    }

    /// Goes past the next row, which is not given.
    pub(super) fn pass(&mut self) -> Result<()> {
        self.run = self.run.saturating_sub(1);
        self.cursor.step()
    }

    fn place(&mut self, Way { near, far, direction }: Way<'_>) -> Result<()> {
        let SettledRows { object, cursor, bound, .. } = self;
        let is_upper = direction == Direction::Backwards;
        write_bound(*object, far, !is_upper, bound);
        cursor.end_at(bound);
        write_bound(*object, near, is_upper, bound);
        let bound = match (near, direction) {
            (Bound::Excluded(_), _) | (Bound::Unbounded, Direction::Backwards) => Bound::Excluded(&bound[..]),
            (Bound::Included(_), _) | (Bound::Unbounded, Direction::Forwards) => Bound::Included(&bound[..]),
        };
        cursor.seek(bound, direction)?;
        self.is_placed = true;
        Ok(())
    }
}

/// Where in the tree a bound of a walk over a table is: the lower one or the upper one.
fn write_bound(object: u32, bound: Bound<&[u8]>, is_upper: bool, out: &mut Vec<u8>) {
    match bound {
        Bound::Included(key) | Bound::Excluded(key) => write_tree_key(object, key, out),
        // Numbers of objects are far from the greatest.
        Bound::Unbounded => write_tree_key(object + u32::from(is_upper), &[], out),
    }
}

/// About how many settled rows of a table lie within the bounds.
pub(super) fn estimate(table: &Table, lower: Bound<&[u8]>, upper: Bound<&[u8]>) -> Result<u64> {
    let handle = table.handle();
    let (mut from, mut to) = (Vec::with_capacity(OBJECT_BYTES), Vec::new());
    write_bound(handle.id, lower, false, &mut from);
    write_bound(handle.id, upper, true, &mut to);
    // The first key behind one is that with a zero added.
    if matches!(lower, Bound::Excluded(_)) {
        from.push(0);
    }
    if matches!(upper, Bound::Included(_)) {
        to.push(0);
    }
    handle.engine.settled.tree.count_estimate(&from, Some(&to))
}

/// Which keys in memory are of rows that have settled, too, as far as some of them show it.
#[derive(Default)]
pub(super) struct SettledShare {
    known: u64,
    settled: u64,
}

impl SettledShare {
    /// Looks at keys in memory. Nothing is read for it: those whose leaf of the tree is not in memory show nothing.
    pub(super) fn look_at<'k>(&mut self, table: &Table, keys: impl Iterator<Item = &'k [u8]>) {
        let handle = table.handle();
        for is_settled in keys.filter_map(|key| handle.engine.is_settled_cached(handle.id, key)) {
            self.known += 1;
            self.settled += u64::from(is_settled);
        }
    }

    /// How many there are among so many settled rows, and so many keys in memory.
    pub(super) fn estimate(&self, settled: u64, in_memory: u64) -> u64 {
        let share = self.settled as f64 / self.known.max(1) as f64;
        ((share * in_memory as f64).round() as u64).min(settled).min(in_memory)
    }
}
