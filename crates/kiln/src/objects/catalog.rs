//! Making, opening and dropping objects: commits of what the [catalog](crate::kernel::catalog) says.

use std::sync::Arc;

use crate::error::{Error, ErrorKind, Result};
use crate::kernel::catalog::{
    CATALOG_OBJECT, Entry, FIRST_OBJECT, NEXT_NUMBER, VACANT, add_with, check_name, decode_entry,
    dropped_key, encode_dropped, encode_entry, value_as_of,
};
use crate::kernel::engine::Engine;
use crate::kernel::handle::Handle;
use crate::kernel::object::{ObjectKind, ObjectState};
use crate::kernel::receipt::Commit;
use crate::kernel::transaction::{self, Isolation, Transaction};
use crate::storage::record::OBJECTS_MAX;
use crate::sync::atomic::Ordering;

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
        if let Some(known) = look_up(tx, name)? {
            return Ok(known);
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
    check_kind(name, found, kind)?;
    if time_to_live_ms.is_some_and(|wanted| wanted != lives_ms) {
        return Err(Error::input(format!(
            "the rows of {name:?} stay for {lives_ms} ms (0: until they are deleted), which cannot be changed; open it without a time to live, or make another object"
        )));
    }
    register(engine, name, (kind, id, lives_ms))?;
    Ok(handle(engine, id))
}

/// Registers an object that the catalog names.
fn register<'a>(
    engine: &'a Engine,
    name: &str,
    (kind, id, lives_ms): (ObjectKind, u32, u64),
) -> Result<&'a ObjectState> {
    let rows_from = engine.log.hardened();
    if engine.objects.get(id).is_none() {
        // Whoever has just entered it says first from which version on it has rows.
        drop(engine.settled.entering.lock());
        // So its records lie behind its entry, where recovery looks for that first.
        engine.log.retire_chunks();
    }
    let state = add_with(&engine.objects, id, name, kind, (0, rows_from))?;
    state.time_to_live_ms.store(lives_ms, Ordering::Relaxed);
    Ok(state)
}

/// A handle of a registered object.
fn handle(engine: &Arc<Engine>, id: u32) -> Handle {
    let state = engine.object(id);
    let time_to_live_ms = state.time_to_live_ms.load(Ordering::Relaxed);
    Handle { engine: engine.clone(), id, time_to_live_ms, life: state.life.clone() }
}

/// What the catalog says of the object with a name, if there is one: its kind, its number, and how many milliseconds its rows stay.
fn look_up(tx: &Transaction<'_>, name: &str) -> Result<Option<(ObjectKind, u32, u64)>> {
    let mut value = Vec::new();
    match tx.get_key(CATALOG_OBJECT, name.as_bytes(), &mut value)? {
        true => of_entry(name, &value),
        false => Ok(None),
    }
}

fn of_entry(name: &str, value: &[u8]) -> Result<Option<(ObjectKind, u32, u64)>> {
    match decode_entry(name.as_bytes(), value) {
        Some(Entry::Object(_, kind, id, lives_ms)) => Ok(Some((kind, id, lives_ms))),
        Some(Entry::Vacant) => Ok(None),
        // Recovery refuses what is no entry. To make the object anew would lose what is in it.
        _ => Err(Error::new(
            ErrorKind::Corrupted,
            format!("the catalog's entry of {name:?} names no object; restore the database from a copy"),
        )),
    }
}

/// Drops the object with this name: from this commit on it is there for nobody, but for snapshots from before. Its rows go in the background
/// ([`removal`](crate::kernel::removal)).
pub(crate) fn drop_object<'e>(
    engine: &'e Arc<Engine>,
    name: &str,
    kind: ObjectKind,
) -> Result<Commit<'e, ()>> {
    check_name(name)?;
    let commit = transaction::run(engine, Isolation::Serializable, |tx| {
        let (found, id, lives_ms) = look_up(tx, name)?.ok_or_else(|| no_such_object(name, kind))?;
        check_kind(name, found, kind)?;
        engine.begin_dropping()?;
        register(engine, name, (kind, id, lives_ms))?;
        tx.put_key(CATALOG_OBJECT, name.as_bytes(), &VACANT)?;
        tx.put_key(CATALOG_OBJECT, &dropped_key(id), &encode_dropped(name, kind))?;
        // Its name and its life are of one commit.
        tx.drops(id).map_err(|error| match error.kind() {
            ErrorKind::NotFound => Error::new(
                ErrorKind::Corrupted,
                format!("the catalog says that {name:?} is object {id}, and that this was dropped; restore the database from a copy"),
            ),
            _ => error,
        })
    })?;
    engine.note_dropped();
    Ok(commit)
}

/// A handle of the object that had this name at a version that is held.
pub(crate) fn object_as_of(
    engine: &Arc<Engine>,
    name: &str,
    kind: ObjectKind,
    version: u64,
) -> Result<Handle> {
    let entry = match value_as_of(engine, name.as_bytes(), version)? {
        Some(value) => of_entry(name, &value)?,
        None => None,
    };
    let (found, id, lives_ms) = entry.ok_or_else(|| no_such_object(name, kind))?;
    check_kind(name, found, kind)?;
    register(engine, name, (kind, id, lives_ms))?;
    Ok(handle(engine, id))
}

fn check_kind(name: &str, found: ObjectKind, kind: ObjectKind) -> Result<()> {
    match found == kind {
        true => Ok(()),
        false => Err(Error::input(format!("object {name:?} is a {found:?}, not a {kind:?}"))),
    }
}

fn no_such_object(name: &str, kind: ObjectKind) -> Error {
    Error::new(ErrorKind::NotFound, format!("there is no {kind:?} {name:?}"))
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
    match look_up(tx, name)? {
        None => Ok(()),
        Some(_) => Err(Error::input(format!(
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
    add_with(&engine.objects, id, name, kind, (version, engine.log.hardened()))?;
    Ok((handle(engine, id), version))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Options;
    use crate::device::SimulatedDevice;
    use crate::kernel::handle::HasHandle;

    /// Two would have been one, each with the other's rows.
    #[test]
    fn c1_a_number_that_an_object_has_is_not_given_out_where_no_next_one_is_recorded() {
        let db = Options::new().background(false).open_on(Arc::new(SimulatedDevice::new(1))).unwrap();
        let first = db.map("first").unwrap();
        let forget = |tx: &Transaction<'_>| tx.delete_key(CATALOG_OBJECT, NEXT_NUMBER);
        transaction::run(db.engine(), Isolation::Serializable, forget).unwrap().forget();
        assert_ne!(db.map("second").unwrap().handle().id, first.handle().id);
    }
}
