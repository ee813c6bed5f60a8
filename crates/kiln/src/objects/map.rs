//! Maps: keys in no order, found by hash.

use crate::error::{Error, Result};
use crate::kernel::handle::{Handle, HasHandle, Object};
use crate::kernel::map_walk::{MapWalk, Row};

/// A named map from keys to values, in no order: point reads and writes, at the least cost.
///
/// ```
/// # let directory = tempfile::tempdir()?;
/// let db = kiln::Kiln::open(directory.path().join("db"))?;
/// let counters = db.map("counters")?;
/// let total = db.transact(|tx| tx.add(&counters, "visits", 1))?.safe()?;
/// assert_eq!(total, 1);
/// # db.close()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Map {
    handle: Handle,
}

impl Map {
    pub(crate) fn new(handle: Handle) -> Map {
        Map { handle }
    }

    /// As [`Object::len`], but at once, whatever may have expired: keys that have, and are yet to be deleted, count too.
    ///
    /// ```
    /// # let directory = tempfile::tempdir()?;
    /// # let db = kiln::Kiln::open(directory.path())?;
    /// let tokens = db.map("tokens")?;
    /// db.put_expiring(&tokens, "ann", "f00", kiln::Expiry::At(1))?.safe()?;
    /// assert!(tokens.len_estimate() <= 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn len_estimate(&self) -> u64 {
        let state = self.handle.state();
        if state.is_dropped() { 0 } else { state.key_count.sum() }
    }
}

impl Object for Map {}

impl HasHandle for Map {
    fn handle(&self) -> &Handle {
        &self.handle
    }
}

/// All keys and values of a map as of a snapshot, in no order, each once; see [`Snapshot::iter`](crate::Snapshot::iter).
#[derive(Debug)]
pub struct MapIter<'s> {
    /// Or why it may not be walked at all: the one item then.
    walk: Result<MapWalk<'s>, Option<Error>>,
}

impl<'s> MapIter<'s> {
    /// Over a map, if it may be walked.
    pub(crate) fn new(walk: Result<MapWalk<'s>>) -> MapIter<'s> {
        MapIter { walk: walk.map_err(Some) }
    }
}

impl Iterator for MapIter<'_> {
    type Item = Result<Row>;

    fn next(&mut self) -> Option<Result<Row>> {
        match &mut self.walk {
            Ok(walk) => walk.next_row(),
            Err(refused) => refused.take().map(Err),
        }
    }
}
