//! Objects that come and go: one name, which a table or a map has, until it is dropped and another one is made.
//!
//! The rows of each have numbers of their own in the history, though their keys are the same, and journals, which stay. So
//! what is left of an object in the next one of its name is a number that nobody has written there.

use kiln::{ErrorKind, Kiln, Map, Object, ObjectKind, Snapshot, Table, Transaction};

use super::history::{GARBAGE, Key, Level, Number, Operation, Outcome, journal_of};
use super::operations::{Objects, View, append, read_list};
use super::recorder::{Attempt, Recorder};
use super::values::{decode, decode_key, decode_list, encode, encode_key, encode_list};

/// The name.
pub(crate) const NAME: &str = "passing";
/// Rows that an object has in the history.
const ROWS: Key = 8;
/// Rows of passing objects come after all others.
pub(crate) const FIRST_PASSING_ROW: Key = 1 << 24;
/// The key of the row that says which object it is.
const WHO: [u8; 4] = [0xFF; 4];

/// A table or a map.
#[derive(Clone, Debug)]
pub(crate) enum Kind {
    Table(Table),
    Map(Map),
}

/// An object that passes.
#[derive(Clone, Debug)]
pub(crate) struct Passing {
    pub(crate) kind: Kind,
    /// How many there were before.
    pub(crate) number: u32,
}

macro_rules! of_kind {
    ($passing:expr, $object:ident => $call:expr) => {
        match &$passing.kind {
            Kind::Table($object) => $call,
            Kind::Map($object) => $call,
        }
    };
}

/// The row of the history that a key of an object is.
fn row_of(number: u32, key: Key) -> Key {
    FIRST_PASSING_ROW + number * ROWS + key
}

/// The first row and the last that an object can have.
pub(crate) fn rows_of(number: u32) -> (Key, Key) {
    (row_of(number, 0), row_of(number, ROWS - 1))
}

/// The rows of so many objects.
pub(crate) fn rows_of_all(objects: u32) -> std::ops::Range<Key> {
    row_of(0, 0)..row_of(objects, 0)
}

/// What transactions and snapshots have in common, as far as passing objects are concerned.
pub(crate) trait PassingView: Sized {
    fn value<O: Object>(&self, object: &O, key: [u8; 4]) -> kiln::Result<Option<Vec<u8>>>;
    fn walk_all(&self, table: &Table) -> kiln::Result<Vec<(Vec<u8>, Vec<u8>)>>;
    /// The object that has the name, for who looks like this.
    fn passing(&self, objects: &Objects) -> kiln::Result<Option<Passing>>;
}

impl PassingView for Transaction<'_> {
    fn value<O: Object>(&self, object: &O, key: [u8; 4]) -> kiln::Result<Option<Vec<u8>>> {
        self.get(object, key)
    }

    fn walk_all(&self, table: &Table) -> kiln::Result<Vec<(Vec<u8>, Vec<u8>)>> {
        self.range::<&[u8]>(table, ..).collect()
    }

    fn passing(&self, objects: &Objects) -> kiln::Result<Option<Passing>> {
        Ok(objects.passing())
    }
}

impl PassingView for Snapshot<'_> {
    fn value<O: Object>(&self, object: &O, key: [u8; 4]) -> kiln::Result<Option<Vec<u8>>> {
        still_there(self.get(object, key))
    }

    fn walk_all(&self, table: &Table) -> kiln::Result<Vec<(Vec<u8>, Vec<u8>)>> {
        still_there(self.range::<&[u8]>(table, ..).collect())
    }

    fn passing(&self, _: &Objects) -> kiln::Result<Option<Passing>> {
        let kind = match self.table(NAME) {
            Ok(table) => Kind::Table(table),
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) if error.kind() == ErrorKind::Input => Kind::Map(self.map(NAME)?),
            Err(error) => return Err(error),
        };
        let passing = Passing { kind, number: 0 };
        let who = of_kind!(passing, object => self.value(object, WHO))?;
        // It was made, and nobody has said yet which it is.
        let number = decode_list(who.as_deref()).first().copied();
        Ok(number.map(|number| Passing { number, ..passing }))
    }
}

/// What a snapshot has found does not go away.
fn still_there<T>(read: kiln::Result<T>) -> kiln::Result<T> {
    if let Err(error) = &read {
        assert_ne!(error.kind(), ErrorKind::NotFound, "a snapshot has lost its object: {error}");
    }
    read
}

/// Reads a row of the object that has the name, if one has it, or all of them, and journals.
pub(crate) fn read_passing(
    view: &impl View,
    objects: &Objects,
    wish: u64,
    into: &mut Attempt,
) -> kiln::Result<()> {
    let Some(passing) = view.passing(objects)? else { return Ok(()) };
    match &passing.kind {
        Kind::Table(table) if wish.is_multiple_of(2) => {
            let rows = view.walk_all(table)?;
            let of_history = |(key, value): &(Vec<u8>, Vec<u8>)| {
                let row = row_of(passing.number, decode_key(key));
                (row, decode(row, Some(value)).unwrap_or(GARBAGE))
            };
            let rows = rows.iter().filter(|(key, _)| key[..] != WHO).map(of_history).collect();
            let (first, last) = rows_of(passing.number);
            into.operations.push(Operation::Range(first, last, rows));
        }
        _ => {
            read(view, &passing, (wish / 2) as Key % ROWS, into)?;
        }
    }
    let row = row_of(passing.number, (wish / 3) as Key % ROWS);
    read_list(view, objects, journal_of(row), into).map(drop)
}

fn read(view: &impl View, passing: &Passing, key: Key, into: &mut Attempt) -> kiln::Result<Option<Number>> {
    let row = row_of(passing.number, key);
    let value = of_kind!(passing, object => view.value(object, encode_key(key)))?;
    let number = decode(row, value.as_deref());
    into.operations.push(Operation::Row(row, number));
    Ok(number)
}

/// Changes a row of the object that has the name, if one has it.
pub(crate) fn change_passing(
    tx: &Transaction<'_>,
    objects: &Objects,
    wish: u64,
    recorder: &mut Recorder<'_>,
    attempt: &mut Attempt,
) -> kiln::Result<()> {
    let Some(passing) = tx.passing(objects)? else { return Ok(()) };
    let key = (wish / 4) as Key % ROWS;
    let (row, name) = (row_of(passing.number, key), encode_key(key));
    if wish.is_multiple_of(4) {
        let was_there = of_kind!(passing, object => tx.delete(object, name))?;
        attempt.operations.push(Operation::Is(row, None, !was_there));
        if !was_there {
            // It has not written to the object, which may be gone when it commits under snapshot isolation.
            return read_list(tx, objects, journal_of(row), attempt).map(drop);
        }
        let (number, _) = append(tx, objects, journal_of(row), recorder, attempt)?;
        attempt.operations.push(Operation::Delete(row, number));
        return Ok(());
    }
    if wish % 4 == 1 {
        read(tx, &passing, key, attempt)?;
    }
    let (number, _) = append(tx, objects, journal_of(row), recorder, attempt)?;
    of_kind!(passing, object => tx.put(object, name, encode(row, number)))?;
    attempt.operations.push(Operation::Put(row, number));
    Ok(())
}

/// The object that has the name when a database is opened, if it says which it is.
pub(crate) fn find(db: &Kiln, objects: &Objects) -> kiln::Result<Option<Passing>> {
    let Some(found) = db.snapshot()?.passing(objects)? else { return Ok(None) };
    let kind = match found.kind {
        Kind::Table(_) => Kind::Table(db.table(NAME)?),
        Kind::Map(_) => Kind::Map(db.map(NAME)?),
    };
    Ok(Some(Passing { kind, ..found }))
}

/// Drops the object that has the name, if one has it, or makes one.
pub(crate) fn pass(db: &Kiln, objects: &Objects, recorder: &mut Recorder<'_>, wish: u64) -> kiln::Result<()> {
    if let Some(passing) = objects.passing() {
        return drop_it(db, objects, &passing, recorder, wish);
    }
    // Somebody was about to say which it is when the power failed.
    if let Some(nameless) = db.objects().iter().find(|object| object.name == NAME) {
        let dropped = match nameless.kind == ObjectKind::Map {
            true => db.drop_map(NAME),
            false => db.drop_table(NAME),
        };
        return dropped.map(|commit| commit.forget());
    }
    let number = recorder.shared.next_passing();
    let who = encode_list(&[number]);
    let kind = match wish % 3 {
        0 => {
            let table = db.table(NAME)?;
            db.put(&table, WHO, who)?.forget();
            Kind::Table(table)
        }
        1 => {
            let map = db.map(NAME)?;
            db.put(&map, WHO, who)?.forget();
            Kind::Map(map)
        }
        _ => match load(db, objects, recorder, number)? {
            Some(table) => Kind::Table(table),
            None => return Ok(()),
        },
    };
    objects.set_passing(Some(Passing { kind, number }));
    Ok(())
}

/// Whoever has just found it there goes on using it.
fn drop_it(
    db: &Kiln,
    objects: &Objects,
    passing: &Passing,
    recorder: &mut Recorder<'_>,
    wish: u64,
) -> kiln::Result<()> {
    let mut attempt = recorder.invoke(Level::Serializable);
    let (first, last) = rows_of(passing.number);
    attempt.operations.push(Operation::Drop(first, last));
    let dropped = match passing.kind {
        Kind::Table(_) => db.drop_table(NAME),
        Kind::Map(_) => db.drop_map(NAME),
    };
    let commit = match dropped {
        Ok(commit) => commit,
        Err(error) => {
            recorder.end(attempt, Outcome::Unknown);
            return Err(error);
        }
    };
    objects.set_passing(None);
    let shared = recorder.shared;
    let transaction = recorder.end(attempt, Outcome::Committed(Some(commit.version().number())));
    if wish.is_multiple_of(3) {
        commit.safe()?;
        transaction.durable = Some(shared.now());
    } else {
        commit.forget();
    }
    Ok(())
}

/// Makes a table with all of its rows at once. They stand in their journals before, when nobody finds them yet.
fn load(
    db: &Kiln,
    objects: &Objects,
    recorder: &mut Recorder<'_>,
    number: u32,
) -> kiln::Result<Option<Table>> {
    let (first, last) = rows_of(number);
    let mut attempt = recorder.invoke(Level::Serializable);
    let tx = db.begin()?;
    let journal =
        |row| append(&tx, objects, journal_of(row), recorder, &mut attempt).map(|(number, _)| (row, number));
    let rows: kiln::Result<Vec<(Key, Number)>> = (first..=last).map(journal).collect();
    recorder.committing(&mut attempt);
    let (rows, commit) = match rows.and_then(|rows| Ok((rows, tx.commit()?))) {
        Ok(journaled) => journaled,
        Err(error) => {
            recorder.end(attempt, Outcome::Aborted);
            return if error.is_conflict() { Ok(None) } else { Err(error) };
        }
    };
    recorder.end(attempt, Outcome::Committed(Some(commit.version().number())));
    commit.forget();
    let mut attempt = recorder.invoke(Level::Serializable);
    attempt.operations.extend(rows.iter().map(|&(row, number)| Operation::Put(row, number)));
    let entries = rows.iter().map(|&(row, number)| (encode_key(row - first), encode(row, number)));
    let entries = entries.chain([(WHO, encode_list(&[number]))]).map(Ok);
    match db.bulk_load::<_, _, kiln::Error>(NAME, entries, |_| {}) {
        Ok(loaded) => {
            let transaction = recorder.end(attempt, Outcome::Committed(Some(loaded.version.number())));
            transaction.durable = Some(transaction.times.completed);
            Ok(Some(loaded.table))
        }
        Err(error) => {
            recorder.end(attempt, Outcome::Unknown);
            Err(error)
        }
    }
}
