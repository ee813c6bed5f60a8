//! What the catalog says: which objects there are. It is an object itself, number 0: name → kind and number.
//!
//! ```text
//!   make     name -> kind, number                                     one commit
//!   drop     name -> vacant;  FF number -> kind, name                 one commit
//! ```
//!
//! A number that was given out is never given out again: the log may have records of it for long. So what says that the object with it was dropped stays,
//! under a key that is no name. Whoever recovers a record finds its object by either of the two entries. Who makes and drops objects is in
//! [`objects`](crate::objects).

use std::sync::Arc;

use super::engine::Engine;
use super::expiry::{Lifetimes, Moment};
use super::life::{Life, Standing};
use super::losses::LOSSES_OBJECT;
use super::named_snapshot::SNAPSHOTS_OBJECT;
use super::object::{NAME_BYTES_MAX, ObjectKind, ObjectState, Objects, StripedCounter};
use super::session::SESSIONS_OBJECT;
use crate::error::{Error, Result};
use crate::storage::ordered_index::OrderedIndex;
use crate::storage::record::{Address, OBJECTS_MAX};
use crate::sync::atomic::AtomicU64;

/// The catalog's own number.
pub(crate) const CATALOG_OBJECT: u32 = 0;
const NAMES: [(u32, &str); 4] = [
    (CATALOG_OBJECT, "catalog"),
    (SESSIONS_OBJECT, "sessions"),
    (LOSSES_OBJECT, "losses"),
    (SNAPSHOTS_OBJECT, "snapshots"),
];
/// The first number of an object that users make.
pub(crate) const FIRST_OBJECT: u32 = 16;
/// The catalog's key under which the next free number is kept; no object has the empty name.
pub(crate) const NEXT_NUMBER: &[u8] = b"";
/// The first byte of the key that says of a number that its object was dropped; no UTF-8 has it.
const DROPPED: u8 = 0xFF;
/// The entry of a name that no object has any more.
pub(crate) const VACANT: [u8; 1] = [0];

fn kind_code(kind: ObjectKind) -> u8 {
    match kind {
        ObjectKind::Map => 1,
        ObjectKind::Table => 2,
    }
}

/// What an entry of the catalog says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Entry {
    /// An object's name, kind and number, and how many milliseconds its rows stay unless it is said with them; 0: until they are deleted.
    Object(String, ObjectKind, u32, u64),
    /// The next number to give out.
    NextNumber(u32),
    /// The name is nobody's any more.
    Vacant,
    /// The name and kind that the object with this number had, which was dropped.
    Dropped(String, ObjectKind, u32),
}

fn decode_kind(code: u8) -> Option<ObjectKind> {
    match code {
        1 => Some(ObjectKind::Map),
        2 => Some(ObjectKind::Table),
        _ => None,
    }
}

fn is_number(id: u32) -> bool {
    (FIRST_OBJECT..OBJECTS_MAX).contains(&id)
}

/// The key under which it is said that the object with this number was dropped.
pub(crate) fn dropped_key(id: u32) -> [u8; 5] {
    let [a, b, c, d] = id.to_le_bytes();
    [DROPPED, a, b, c, d]
}

/// What is said there.
pub(crate) fn encode_dropped(name: &str, kind: ObjectKind) -> Vec<u8> {
    [&[kind_code(kind)], name.as_bytes()].concat()
}

fn decode_dropped(number: &[u8], value: &[u8]) -> Option<Entry> {
    let id = u32::from_le_bytes(number.try_into().ok()?);
    let (&code, name) = value.split_first()?;
    let name = std::str::from_utf8(name).ok().filter(|name| check_name(name).is_ok())?;
    is_number(id).then_some(Entry::Dropped(name.to_owned(), decode_kind(code)?, id))
}

/// Takes an entry of the catalog apart; `None` for what this Kiln never writes there.
pub(crate) fn decode_entry(name: &[u8], value: &[u8]) -> Option<Entry> {
    if name == NEXT_NUMBER {
        return Some(Entry::NextNumber(u32::from_le_bytes(value.try_into().ok()?)));
    }
    if let Some((&DROPPED, number)) = name.split_first() {
        return decode_dropped(number, value);
    }
    let name = std::str::from_utf8(name).ok()?;
    if value == VACANT {
        return Some(Entry::Vacant);
    }
    let (&code, id) = value.split_first()?;
    let kind = decode_kind(code)?;
    let (id, time_to_live) = id.split_first_chunk::<4>()?;
    let id = u32::from_le_bytes(*id);
    let time_to_live_ms = match time_to_live {
        [] => 0,
        time => Some(u64::from_le_bytes(time.try_into().ok()?)).filter(|&time| time > 0)?,
    };
    is_number(id).then(|| Entry::Object(name.to_owned(), kind, id, time_to_live_ms))
}

/// The value of an object's entry.
pub(crate) fn encode_entry(kind: ObjectKind, id: u32, time_to_live_ms: u64) -> Vec<u8> {
    let mut entry = [&[kind_code(kind)], &id.to_le_bytes()[..]].concat();
    if time_to_live_ms > 0 {
        entry.extend(time_to_live_ms.to_le_bytes());
    }
    entry
}

/// Registers the objects that every database has.
pub(crate) fn add_system_objects(objects: &Objects) -> Result<()> {
    for (id, name) in NAMES {
        add(objects, id, name, ObjectKind::Map)?;
    }
    Ok(())
}

/// Registers an object with the kernel.
pub(crate) fn add<'a>(
    objects: &'a Objects,
    id: u32,
    name: &str,
    kind: ObjectKind,
) -> Result<&'a ObjectState> {
    add_with(objects, id, name, kind, (0, 0))
}

/// Registers one of which it is known when it was [loaded](ObjectState::loaded_at), and where its rows [begin](ObjectState::rows_from).
pub(crate) fn add_with<'a>(
    objects: &'a Objects,
    id: u32,
    name: &str,
    kind: ObjectKind,
    (loaded_at, rows_from): (u64, Address),
) -> Result<&'a ObjectState> {
    objects.add(ObjectState {
        lifetimes: Lifetimes::new(),
        time_to_live_ms: AtomicU64::new(0),
        id,
        life: Arc::new(Life::new(name)),
        order: (kind == ObjectKind::Table).then(|| Box::new(OrderedIndex::new())),
        key_count: StripedCounter::new(),
        loaded_at: AtomicU64::new(loaded_at),
        removed: AtomicU64::new(0),
        rows_from,
    })
}

pub(crate) fn check_name(name: &str) -> Result<()> {
    match name.is_empty() || name.len() > NAME_BYTES_MAX {
        false => Ok(()),
        true => Err(Error::input(format!(
            "an object's name has 1 to {NAME_BYTES_MAX} bytes; {name:?} has {}",
            name.len()
        ))),
    }
}

/// Fails if an object was dropped as of a version that is held. Waits for nobody.
pub(crate) fn check_seen(engine: &Engine, id: u32, life: &Life, version: u64) -> Result<()> {
    match life.standing() {
        Standing::Lives | Standing::IsBeingDropped => Ok(()),
        Standing::Dropped(_) => check_seen_by(engine, id, life, version),
    }
}

/// By the catalog: in which version it was dropped need not be known any more.
#[cold]
fn check_seen_by(engine: &Engine, id: u32, life: &Life, version: u64) -> Result<()> {
    match value_as_of(engine, &dropped_key(id), version)? {
        Some(_) => Err(life.is_dropped()),
        None => Ok(()),
    }
}

/// What the catalog has under a key as of a version that is held. Waits for nobody.
pub(crate) fn value_as_of(engine: &Engine, key: &[u8], version: u64) -> Result<Option<Vec<u8>>> {
    let (hash, mut value) = (engine.hash(CATALOG_OBJECT, key), Vec::new());
    let reading = engine.read_as_of(CATALOG_OBJECT, key, hash, version, &Moment::default(), &mut value)?;
    Ok(reading.found.then_some(value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn c9_an_entry_says_what_an_object_is_or_was_or_is_refused() {
        let object = encode_entry(ObjectKind::Table, 17, 9);
        let expected = Entry::Object("name".to_owned(), ObjectKind::Table, 17, 9);
        assert_eq!(decode_entry(b"name", &object), Some(expected));
        assert_eq!(decode_entry(b"name", &VACANT), Some(Entry::Vacant));
        let dropped = encode_dropped("name", ObjectKind::Map);
        let expected = Entry::Dropped("name".to_owned(), ObjectKind::Map, 17);
        assert_eq!(decode_entry(&dropped_key(17), &dropped), Some(expected));
        for (key, value) in [
            (&b"name"[..], &[0, 0][..]),
            (b"name", b""),
            (b"", &VACANT),
            (&[0xFE], &VACANT),
            (&[DROPPED], &dropped),
            (&dropped_key(17)[..4], &dropped),
            (&dropped_key(FIRST_OBJECT - 1), &dropped),
            (&dropped_key(OBJECTS_MAX), &dropped),
            (&dropped_key(17), &VACANT),
            (&dropped_key(17), &[1]),
            (&dropped_key(17), &[1, 0xFF]),
            (&dropped_key(17), &[[1].as_slice(), &[b'a'; NAME_BYTES_MAX + 1]].concat()),
        ] {
            assert_eq!(decode_entry(key, value), None, "{key:?} {value:?}");
        }
    }
}
