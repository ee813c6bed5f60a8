//! The keys of objects, by what is at the addresses that the index has.

use crate::error::Result;
use crate::kernel::engine::Engine;
use crate::storage::epoch;
use crate::storage::record::{Address, OwnedRecord, RecordView};

/// In so many places records on disk are read at once.
pub(crate) const PLACES_AHEAD: usize = 32;

/// Keys that somebody looks for at addresses that the index has.
pub(crate) struct Wanted<'a> {
    /// Whether they are of this object, with a record whose row expires then, if it does.
    pub(crate) is: &'a dyn Fn(u32, u64) -> bool,
    /// They, and what is met on the way to them, are read for somebody who is going to ask for their values: what comes from disk is kept, and counts as
    /// read.
    pub(crate) keeps: bool,
    /// At which addresses nothing is to be looked for.
    pub(crate) passes: &'a dyn Fn(Address) -> bool,
}

/// One of them.
pub(crate) struct FoundKey {
    pub(crate) object: u32,
    pub(crate) key: Vec<u8>,
    pub(crate) expires_at: u64,
}

impl Wanted<'_> {
    /// The key of a record. What is written in place at the same time tells any time for its expiry: whoever writes tells it anew afterwards.
    pub(crate) fn of_view(&self, view: &RecordView<'_>) -> Option<FoundKey> {
        let (object, expires_at) = (view.shape().object, view.expires_at());
        (self.is)(object, expires_at).then(|| {
            let mut key = Vec::new();
            view.key_into(&mut key);
            FoundKey { object, key, expires_at }
        })
    }

    pub(crate) fn of_record(&self, record: &OwnedRecord) -> Option<FoundKey> {
        let (object, expires_at) = (record.shape.object, record.expires_at());
        (self.is)(object, expires_at).then(|| FoundKey { object, key: record.key().to_vec(), expires_at })
    }
}

/// What there is at an address that the index had.
pub(crate) enum KeyAt {
    /// A record of this key, which is wanted.
    Key(FoundKey),
    /// A record of another one.
    Other,
    /// Nothing any more: the log begins behind it. Whatever was live there the index has at another address.
    Gone,
}

impl KeyAt {
    fn of(key: Option<FoundKey>) -> KeyAt {
        key.map_or(KeyAt::Other, KeyAt::Key)
    }
}

impl Engine {
    /// The key whose record is at `address`, if it is wanted.
    ///
    /// # Errors
    /// `Io` and `Corrupted`, naming file and offset.
    pub(crate) fn key_at(&self, address: Address, wanted: &Wanted<'_>) -> Result<KeyAt> {
        {
            let _pin = epoch::pin();
            if let Some(view) = self.log.view(address) {
                return Ok(KeyAt::of(wanted.of_view(&view)));
            }
        }
        match self.cold_key(address, wanted) {
            Ok(key) => Ok(KeyAt::of(key)),
            Err(_) if address < self.log.begin() => Ok(KeyAt::Gone),
            Err(error) => Err(error),
        }
    }
}

/// The keys of `object` (with or without a value now) at a cursor, and the cursor that follows, if any. A key
/// that is there throughout a walk from cursor 0 on is met exactly once, however the index grows meanwhile.
pub(crate) fn next_keys(engine: &Engine, object: u32, cursor: u64) -> Result<(Option<u64>, Vec<Vec<u8>>)> {
    let (mut keys, mut failure) = (Vec::new(), None);
    let wanted = Wanted { is: &|found, _| found == object, keeps: true, passes: &|_| false };
    let next = keys_at(engine, cursor, &wanted, |found| match found {
        Ok(found) => keys.push(found.key),
        Err(error) => drop(failure.get_or_insert(error)),
    });
    failure.map_or(Ok((next, keys)), Err)
}

/// Reads the records on disk that [`keys_at`] is going to ask for, from a cursor on and in so many places, many at once.
pub(crate) fn read_places_ahead(
    engine: &Engine,
    cursor: u64,
    places: usize,
    passes: &dyn Fn(Address) -> bool,
) {
    if engine.log.head() == engine.log.begin() {
        return;
    }
    let (mut ahead, mut cold, mut cursor) = (engine.read_ahead(), Vec::new(), Some(cursor));
    for _ in 0..places {
        let Some(at) = cursor.filter(|_| cold.len() < ahead.ahead_max()) else { break };
        let (addresses, next) = engine.index.addresses_at(at);
        let is_cold = |address: &Address| *address < engine.log.head() && !engine.cold.cache.has(*address);
        cold.extend(addresses.into_iter().filter(|address| is_cold(address) && !passes(*address)));
        cursor = next;
    }
    // What lies beside each other is read together.
    cold.sort_unstable();
    if cold.len() > 1 {
        ahead.all(&cold);
    }
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
    for &address in addresses.iter().filter(|address| !(wanted.passes)(**address)) {
        match engine.key_at(address, wanted) {
            Ok(KeyAt::Key(key)) => keys.push(Ok(key)),
            Ok(KeyAt::Gone) if address >= begin => return None,
            Ok(KeyAt::Gone | KeyAt::Other) => {}
            Err(error) => keys.push(Err(error)),
        }
    }
    Some(keys)
}
