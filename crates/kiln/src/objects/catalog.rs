//! The catalog: which objects there are. It is an object itself, number 0: name → kind and number.

use std::sync::Arc;

use super::{Handle, keys_of};
use crate::error::{Error, ErrorKind, Result};
use crate::kernel::engine::Engine;
use crate::kernel::expiry::Lifetimes;
use crate::kernel::losses::LOSSES_OBJECT;
use crate::kernel::named_snapshot::SNAPSHOTS_OBJECT;
use crate::kernel::object::{ObjectKind, ObjectState, Objects, StripedCounter};
use crate::kernel::session::SESSIONS_OBJECT;
use crate::kernel::transaction::{self, Isolation, Transaction};
use crate::storage::record::OBJECTS_MAX;
use crate::sync::atomic::{AtomicU64, Ordering};

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
const NAME_BYTES_MAX: usize = 255;
/// The catalog's key under which the next free number is kept; no object has the empty name.
const NEXT_NUMBER: &[u8] = b"";

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
}

/// Takes an entry of the catalog apart; `None` for what this Kiln never writes there.
pub(crate) fn decode_entry(name: &[u8], value: &[u8]) -> Option<Entry> {
    if name == NEXT_NUMBER {
        return Some(Entry::NextNumber(u32::from_le_bytes(value.try_into().ok()?)));
    }
    let (&code, id) = value.split_first()?;
    let kind = match code {
        1 => ObjectKind::Map,
        2 => ObjectKind::Table,
        _ => return None,
    };
    let (id, time_to_live) = id.split_first_chunk::<4>()?;
    let id = u32::from_le_bytes(*id);
    let time_to_live_ms = match time_to_live {
        [] => 0,
        time => Some(u64::from_le_bytes(time.try_into().ok()?)).filter(|&time| time > 0)?,
    };
    let name = std::str::from_utf8(name).ok()?;
    (FIRST_OBJECT..OBJECTS_MAX)
        .contains(&id)
        .then(|| Entry::Object(name.to_owned(), kind, id, time_to_live_ms))
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
    add_loaded(objects, id, name, kind, 0)
}

fn add_loaded<'a>(
    objects: &'a Objects,
    id: u32,
    name: &str,
    kind: ObjectKind,
    loaded_at: u64,
) -> Result<&'a ObjectState> {
    objects.add(ObjectState {
        lifetimes: Lifetimes::new(),
        time_to_live_ms: AtomicU64::new(0),
        id,
        name: name.to_owned(),
        kind,
        keys: keys_of(kind),
        key_count: StripedCounter::new(),
        loaded_at: AtomicU64::new(loaded_at),
    })
}

/// Opens the object with this name, making it if there is none. Made objects become durable like any commit.
///
/// A `time_to_live_ms` that is given must be the object's.
pub(crate) fn open_object(
    engine: &Arc<Engine>,
    name: &str,
    kind: ObjectKind,
    time_to_live_ms: Option<u64>,
) -> Result<Handle> {
    check_name(name)?;
    let (found, id, lives_ms) = transaction::run(engine, Isolation::Serializable, |tx| {
        let mut value = Vec::new();
        if tx.get_key(CATALOG_OBJECT, name.as_bytes(), &mut value)? {
            // Recovery refuses what is no entry. To make the object anew would lose what is in it.
            return match decode_entry(name.as_bytes(), &value) {
                Some(Entry::Object(_, found, id, lives_ms)) => Ok((found, id, lives_ms)),
                _ => Err(Error::new(
                    ErrorKind::Corrupted,
                    format!(
                        "the catalog's entry of {name:?} names no object; restore the database from a copy"
                    ),
                )),
            };
        }
        let next = take_number(engine, tx)?;
        let lives_ms = time_to_live_ms.unwrap_or(0);
        if lives_ms > 0 {
            engine.begin_expiring()?;
        }
        tx.put_key(CATALOG_OBJECT, name.as_bytes(), &encode_entry(kind, next, lives_ms))?;
        Ok((kind, next, lives_ms))
    })?
    .forget();
    if found != kind {
        return Err(Error::input(format!("object {name:?} is a {found:?}, not a {kind:?}")));
    }
    if time_to_live_ms.is_some_and(|wanted| wanted != lives_ms) {
        return Err(Error::input(format!(
            "the rows of {name:?} stay for {lives_ms} ms (0: until they are deleted), which cannot be changed; open it without a time to live, or make another object"
        )));
    }
    if engine.objects.get(id).is_none() {
        // Whoever has just entered it says first from which version on it has rows.
        drop(engine.settled.entering.lock());
        // So its records lie behind its entry, where recovery looks for that first.
        engine.log.retire_chunks();
    }
    let state = add(&engine.objects, id, name, kind)?;
    state.time_to_live_ms.store(lives_ms, Ordering::Relaxed);
    Ok(Handle { engine: engine.clone(), id, time_to_live_ms: lives_ms })
}

fn check_name(name: &str) -> Result<()> {
    match name.is_empty() || name.len() > NAME_BYTES_MAX {
        false => Ok(()),
        true => Err(Error::input(format!(
            "an object's name has 1 to {NAME_BYTES_MAX} bytes; {name:?} has {}",
            name.len()
        ))),
    }
}

/// Takes the next object's number, within a transaction.
fn take_number(engine: &Engine, tx: &Transaction<'_>) -> Result<u32> {
    let mut value = Vec::new();
    tx.get_key(CATALOG_OBJECT, NEXT_NUMBER, &mut value)?;
    let first = match decode_entry(NEXT_NUMBER, &value) {
        Some(Entry::NextNumber(next)) => next.max(FIRST_OBJECT),
        _ => FIRST_OBJECT,
    };
    let next = (first..OBJECTS_MAX).find(|&id| engine.objects.get(id).is_none()).ok_or_else(|| {
        Error::new(ErrorKind::Limit, format!("a database gives out at most {OBJECTS_MAX} objects' numbers"))
    })?;
    tx.put_key(CATALOG_OBJECT, NEXT_NUMBER, &(next + 1).to_le_bytes())?;
    Ok(next)
}

fn check_is_new(tx: &Transaction<'_>, name: &str) -> Result<()> {
    match tx.get_key(CATALOG_OBJECT, name.as_bytes(), &mut Vec::new())? {
        false => Ok(()),
        true => Err(Error::input(format!(
            "there is an object {name:?} already; a bulk load makes a new table: give it another name"
        ))),
    }
}

/// Takes a number for a table that is to get this name once it has its rows. When this returns it is durable that
/// nobody else ever gets the number.
pub(crate) fn reserve_table(engine: &Arc<Engine>, name: &str) -> Result<u32> {
    check_name(name)?;
    let reserve = |tx: &Transaction<'_>| {
        check_is_new(tx, name)?;
        take_number(engine, tx)
    };
    transaction::run(engine, Isolation::Serializable, reserve)?.safe_quietly()
}

/// Gives the table with a reserved number its name: the commit with which it, and its rows, are there. Returns its version.
pub(crate) fn enter_table(engine: &Arc<Engine>, name: &str, id: u32) -> Result<(Handle, u64)> {
    // Who finds the entry waits with it until everybody can know from which version on there are rows.
    let _entering = engine.settled.entering.lock();
    let kind = ObjectKind::Table;
    let commit = transaction::run(engine, Isolation::Serializable, |tx| {
        check_is_new(tx, name)?;
        tx.put_key(CATALOG_OBJECT, name.as_bytes(), &encode_entry(kind, id, 0))
    })?;
    let ((), receipt) = commit.fast();
    let version = receipt.version().number();
    // Whoever began before it, and finds one of the rows, looks again at what it has read.
    engine.forgotten.fetch_max(version, Ordering::SeqCst);
    engine.log.retire_chunks();
    add_loaded(&engine.objects, id, name, kind, version)?;
    Ok((Handle { engine: engine.clone(), id, time_to_live_ms: 0 }, version))
}
