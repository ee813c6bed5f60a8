//! What a database must show, and what it does.

use kiln::{ErrorKind, Expiry, Kiln, Object as _, Result, Session, Snapshot};

use super::values::{self, Value};
use super::{
    Ended, FILLED_MAP_NUMBER, FILLED_TABLE_NUMBER, Life, MAP_NUMBER, ROWS, SMALL, State, TABLES, at_object,
    key, name_of,
};
use crate::oracle::{Verdict, ensure};

impl Life<'_> {
    /// C1, C4: everything is as it was committed, whichever way it is read, and the check finds nothing.
    pub(super) fn compare(&self) -> std::result::Result<(), Ended> {
        let found = self.read(&self.db.snapshot()?)?;
        difference(&self.told.now(), &found)?;
        for number in 0..SMALL.len() * ROWS {
            let row = (SMALL[number % SMALL.len()], key(number / SMALL.len()));
            let alone = at_object!(self, row.0, object => self.db.get(object, &row.1))?;
            if alone.map(Value::from).as_ref() != found.get(&row) {
                return Err(
                    format!("C1: {row:?} is there by itself, or in a range, and not in the other").into()
                );
            }
        }
        let filled = [FILLED_MAP_NUMBER, FILLED_TABLE_NUMBER].into_iter();
        for number in SMALL.into_iter().chain(filled.filter(|&number| self.is_there(number))) {
            let count = found.keys().filter(|(of, _)| *of == number).count() as u64;
            let counted = at_object!(self, number, object => object.len());
            if counted != count {
                return Err(format!("C1: object {number} counts {counted} rows of {count}").into());
            }
        }
        let names: Vec<String> = self.db.snapshots().into_iter().map(|info| info.name).collect();
        if !names.iter().eq(self.told.named.keys()) {
            return Err(format!("C5: {names:?} have names, of {:?}", self.told.named.keys()).into());
        }
        self.compare_named(self.db)?;
        check(self.db)
    }

    /// C4: the snapshots that have names show what they showed, in the database or a copy of it.
    pub(super) fn compare_named(&self, db: &Kiln) -> std::result::Result<(), Ended> {
        for (name, state) in &self.told.named {
            let found = self.read(&db.open_snapshot(name)?)?;
            difference(state, &found).map_err(|what| format!("{name:?}: {what}"))?;
        }
        Ok(())
    }

    /// What a snapshot shows, by ranges and by keys.
    pub(super) fn read(&self, snapshot: &Snapshot<'_>) -> std::result::Result<State, Ended> {
        let mut found = State::new();
        for number in (0..TABLES.len() + self.told.loads).chain([FILLED_TABLE_NUMBER]) {
            let name = name_of(number);
            let Some(table) = if_there(snapshot.table(&name))? else { continue };
            for (index, row) in snapshot.range::<&[u8]>(&table, ..).enumerate() {
                let (key, value) = row?;
                let is_asked_for = !self.is_large || index.is_multiple_of(8);
                if is_asked_for && snapshot.get(&table, &key)?.as_ref() != Some(&value) {
                    return Err(format!("C1: {name:?} has {key:?} in a range, and not by itself").into());
                }
                if number < TABLES.len() {
                    compare_expiry(snapshot.expiry(&table, &key)?, &value)?;
                }
                found.insert((number, key), value.into());
            }
        }
        for number in [MAP_NUMBER, FILLED_MAP_NUMBER] {
            let Some(map) = if_there(snapshot.map(&name_of(number)))? else { continue };
            for row in snapshot.iter(&map) {
                let (key, value) = row?;
                if number == MAP_NUMBER {
                    compare_expiry(snapshot.expiry(&map, &key)?, &value)?;
                }
                if snapshot.get(&map, &key)?.as_ref() != Some(&value) {
                    return Err("C1: a map has a key in a walk, and not by itself".to_owned().into());
                }
                if found.insert((number, key), value.into()).is_some() {
                    return Err("C1: a walk over a map meets a key twice".to_owned().into());
                }
            }
        }
        Ok(found)
    }
}

/// C9: the check finds nothing, in the database or a copy of it.
pub(super) fn check(db: &Kiln) -> std::result::Result<(), Ended> {
    let report = db.check()?;
    match report.problems.is_empty() {
        true => Ok(()),
        false => Err(format!("C9: the check finds: {report}").into()),
    }
}

/// Nothing, if the object was dropped by then, or was not there yet.
fn if_there<T>(object: Result<T>) -> Result<Option<T>> {
    match object {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        object => object.map(Some),
    }
}

/// C7: a session that is opened again goes on from the last of its commits that is there, and says so in every way.
pub(super) fn compare_serials(session: &Session, expected: u64) -> std::result::Result<(), Ended> {
    let told = [session.recovered_serial(), session.durable_serial()?, session.serial()];
    match told == [expected; 3] {
        true => Ok(()),
        false => Err(format!("C7: the session was at {expected}, and is told {told:?}").into()),
    }
}

/// C1: a row expires when it was to.
fn compare_expiry(found: Option<Expiry>, value: &[u8]) -> Verdict {
    let expected = values::expiry_of(value);
    ensure!(found == Some(expected), "C1: a row is to expire at {found:?}, and not at {expected:?}");
    Ok(())
}

pub(super) fn difference(expected: &State, found: &State) -> Verdict {
    let only_in = |one: &State, other: &State| {
        one.iter().find(|(row, value)| other.get(*row) != Some(*value)).map(|(row, _)| row.clone())
    };
    let (missing, extra) = (only_in(expected, found), only_in(found, expected));
    ensure!(found == expected, "C4: {missing:?} should be there, {extra:?} should not, or as it was");
    Ok(())
}
