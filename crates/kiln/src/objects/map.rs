//! Maps: keys in no order, found by hash.

use super::Snapshot;
use crate::error::{Error, Result};
use crate::kernel::handle::{Handle, HasHandle, Object};
use crate::kernel::read::keys::next_keys;

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

/// All keys and values of a map as of a snapshot, in no order, each once.
#[derive(Debug)]
pub struct MapIter<'s> {
    snapshot: &'s Snapshot<'s>,
    object: u32,
    cursor: Option<u64>,
    keys: std::vec::IntoIter<Vec<u8>>,
    /// Why the map may not be walked at all: the one item then.
    refused: Option<Error>,
}

impl<'s> MapIter<'s> {
    /// Over the map with this number, if it may be walked.
    pub(crate) fn new(snapshot: &'s Snapshot<'s>, object: Result<u32>) -> MapIter<'s> {
        let (object, cursor, refused) = match object {
            Ok(object) => (object, Some(0), None),
            Err(error) => (0, None, Some(error)),
        };
        MapIter { snapshot, object, cursor, keys: Vec::new().into_iter(), refused }
    }
}

impl Iterator for MapIter<'_> {
    type Item = Result<(Vec<u8>, Vec<u8>)>;

    fn next(&mut self) -> Option<Self::Item> {
        if let Some(error) = self.refused.take() {
            return Some(Err(error));
        }
        loop {
            for key in self.keys.by_ref() {
                let mut value = Vec::new();
                match self.snapshot.read(self.object, &key, &mut value) {
                    Ok(true) => return Some(Ok((key, value))),
                    Ok(false) => {}
                    Err(error) => return Some(Err(error)),
                }
            }
            match next_keys(self.snapshot.engine(), self.object, self.cursor?) {
                Ok((cursor, keys)) => {
                    self.cursor = cursor;
                    self.keys = keys.into_iter();
                }
                Err(error) => {
                    self.cursor = None;
                    return Some(Err(error));
                }
            }
        }
    }
}
