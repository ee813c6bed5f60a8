//! Maps: keys in no order, found by hash.

use super::{Handle, HasHandle, Object};
use crate::database::Snapshot;
use crate::error::{Error, Result};
use crate::kernel::engine::Engine;
use crate::kernel::read::{FoundKey, KeyAt, Wanted};
use crate::storage::record::Address;

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

/// The keys of `object` (with or without a value now) at a cursor, and the cursor that follows, if any. A key
/// that is there throughout a walk from cursor 0 on is met exactly once, however the index grows meanwhile.
pub(crate) fn next_keys(engine: &Engine, object: u32, cursor: u64) -> Result<(Option<u64>, Vec<Vec<u8>>)> {
    let (mut keys, mut failure) = (Vec::new(), None);
    let wanted = Wanted { is: &|found, _| found == object, keeps: true };
    let next = keys_at(engine, cursor, &wanted, |found| match found {
        Ok(found) => keys.push(found.key),
        Err(error) => drop(failure.get_or_insert(error)),
    });
    failure.map_or(Ok((next, keys)), Err)
}

/// As [`next_keys`], of all maps at once, for who goes on where a record cannot be read, whose key it may be or not.
pub(crate) fn keys_at(
    engine: &Engine,
    cursor: u64,
    wanted: &Wanted<'_>,
    each: impl FnMut(Result<FoundKey>),
) -> Option<u64> {
    loop {
        let begin = engine.log.begin();
        let (addresses, next) = engine.index.addresses_at(cursor);
        // A record may leave the log before it is read, and its key be at an address that is not among these: none of them counts then.
        if let Some(keys) = keys_of_records(engine, wanted, &addresses, begin) {
            keys.into_iter().for_each(each);
            return next;
        }
    }
}

/// Those keys of records at these addresses that are wanted; `None` if one of the records has left the log since that began at `begin`. What
/// had left it before, and is in the index all the same, is nobody's.
fn keys_of_records(
    engine: &Engine,
    wanted: &Wanted<'_>,
    addresses: &[Address],
    begin: Address,
) -> Option<Vec<Result<FoundKey>>> {
    let mut keys = Vec::new();
    for &address in addresses {
        match engine.key_at(address, wanted) {
            Ok(KeyAt::Key(key)) => keys.push(Ok(key)),
            Ok(KeyAt::Gone) if address >= begin => return None,
            Ok(KeyAt::Gone | KeyAt::Other) => {}
            Err(error) => keys.push(Err(error)),
        }
    }
    Some(keys)
}
