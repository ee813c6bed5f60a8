//! Tables: ordered keys, with ranges.

use std::ops::RangeBounds;

use super::walk::Walk;
use crate::kernel::handle::{Handle, HasHandle, Object};
use crate::storage::ordered_index::OrderedIndex;

/// A named table: keys in the order of their bytes, with ranges in both directions.
///
/// ```
/// # let directory = tempfile::tempdir()?;
/// let db = kiln::Kiln::open(directory.path().join("db"))?;
/// let auctions = db.table("auctions")?;
/// db.transact(|tx| {
///     tx.put(&auctions, "a17", "open")?;
///     tx.put(&auctions, "a18", "open")
/// })?
/// .safe()?;
/// let open = db.transact(|tx| tx.prefix(&auctions, "a").map(|row| Ok(row?.0)).collect::<kiln::Result<Vec<_>>>())?;
/// assert_eq!(open.forget(), [b"a17", b"a18"]);
/// # db.close()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Table {
    handle: Handle,
}

impl Table {
    pub(crate) fn new(handle: Handle) -> Table {
        Table { handle }
    }

    /// About how many rows have keys within the bounds: their number, if they are a few hundred at the most, and otherwise a
    /// guess by the shape of the index, which may be wrong by a factor of two. Where most rows of one part of the table were deleted it may be wrong by more, also of a few hundred rows if thousands were between them. Deleted rows that a snapshot may still read, or
    /// that are not durably deleted, count too, and so do those that have expired and are yet to be deleted, and those
    /// that have settled, and were deleted since, until that has settled, too. Those that have settled, and were written since, count once as far as leaves of the tree are
    /// in memory that show it, of some hundreds of them; else twice. Reads no row, and is no part of any transaction.
    ///
    /// ```
    /// # let directory = tempfile::tempdir()?;
    /// # let db = kiln::Kiln::open(directory.path())?;
    /// let ages = db.table("ages")?;
    /// db.put(&ages, "ann", [41])?.safe()?;
    /// db.put(&ages, "bob", [39])?.safe()?;
    /// assert_eq!(ages.len_estimate("b"..), 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn len_estimate<K: AsRef<[u8]>>(&self, bounds: impl RangeBounds<K>) -> u64 {
        Walk::new(bounds).estimate(self)
    }

    pub(crate) fn ordered(&self) -> &OrderedIndex {
        let ordered = self.handle.state().ordered();
        ordered.unwrap_or_else(|| unreachable!("a table is opened with an ordered index"))
    }
}

impl Object for Table {}

impl HasHandle for Table {
    fn handle(&self) -> &Handle {
        &self.handle
    }
}
