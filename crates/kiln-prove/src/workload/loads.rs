//! Bulk loads, and the dropping of what was loaded: the workload's, and what the oracle asks of them.

use std::ops::Range;

use kiln::{Error, ErrorKind, Kiln, Level, Object as _, Result, Snapshot, Table, Transaction};

use super::Shift;
use super::history::{Anew, History, Place};
use crate::oracle::{Verdict, ensure};

/// So many rows has every loaded table: more than all others together, so that those of a load that was broken off are too many.
pub(crate) const ROWS: usize = 120;
/// Once in so many rows it is looked whether the table is there, which takes a look at all tables.
const ROWS_PER_LOOK: usize = 16;
/// So many rows of a loaded table are written at once, or fewer at its end.
const ROWS_ANEW: usize = 9;
/// What the names of loaded tables begin with.
const PREFIX: &str = "loaded ";

pub(crate) fn name_of(number: u32) -> String {
    format!("{PREFIX}{number}")
}

/// The rows of a load, in order.
fn rows_of(number: u32) -> impl Iterator<Item = (Vec<u8>, Vec<u8>)> {
    (0..ROWS).map(move |row| (key_of(row), vec![number as u8; (row + number as usize) % 50]))
}

fn key_of(row: usize) -> Vec<u8> {
    format!("{row:05}").into_bytes()
}

impl Anew {
    /// The rows that it wrote.
    fn rows(self) -> Range<usize> {
        self.first..ROWS.min(self.first + ROWS_ANEW)
    }

    /// What it wrote to a row, which no other commit has written.
    fn value(self, row: usize) -> Vec<u8> {
        let mut value = self.stamp.to_le_bytes().to_vec();
        value.resize(8 + (row + self.stamp as usize % 50) % 50, self.load as u8);
        value
    }
}

/// The rows that a loaded table has after so many commits, the first.
fn rows_after(history: &History, number: u32, commits: usize) -> impl Iterator<Item = (Vec<u8>, Vec<u8>)> {
    let mut values: Vec<_> = rows_of(number).map(|(_, value)| value).collect();
    for anew in history.written_anew(number, commits) {
        anew.rows().for_each(|row| values[row] = anew.value(row));
    }
    values.into_iter().enumerate().map(|(row, value)| (key_of(row), value))
}

impl Shift<'_> {
    /// Loads a table, or drops one or writes to it.
    pub(super) fn load_or_drop(&mut self) -> Result<()> {
        let there = self.history.loads_after(self.history.commits.len());
        if there.is_empty() || self.random.one_in(3) {
            return self.load();
        }
        let number = *self.random.pick(&there);
        match self.random.below(3) {
            0 => self.write_anew(number),
            _ => self.drop_loaded(number),
        }
    }

    /// Writes some rows of a loaded table, so that the log has them, too.
    fn write_anew(&mut self, load: u32) -> Result<()> {
        let table = self.db.table(&name_of(load))?;
        let anew = Anew { load, first: self.random.below(ROWS), stamp: self.random.next() };
        let put = |tx: &Transaction<'_>| {
            anew.rows().try_for_each(|row| tx.put(&table, key_of(row), anew.value(row)))
        };
        let commit = self.db.transact(put)?;
        self.history.commit_anew(commit.version().number(), anew);
        commit.forget();
        Ok(())
    }

    /// Drops a loaded table, of which nobody sees anything from then on but who opened a snapshot before.
    fn drop_loaded(&mut self, number: u32) -> Result<()> {
        let (name, key) = (name_of(number), b"00007");
        let table = self.db.table(&name)?;
        let before = self.db.snapshot()?;
        let ((), receipt) = self.db.drop_table(&name)?.fast();
        self.history.commit_drop(receipt.version().number(), number);
        let is_refused = |error: Error| error.kind() == ErrorKind::NotFound;
        assert!(self.db.get(&table, key).is_err_and(is_refused), "a dropped table is read");
        assert!(
            self.db.put(&table, key, "").map(drop).is_err_and(is_refused),
            "a dropped table is written to"
        );
        let written = self.db.transact(|tx| tx.put(&table, key, "")).map(drop);
        assert!(written.is_err_and(is_refused), "a dropped table is written to by a transaction");
        if self.random.one_in(3) {
            receipt.wait(Level::LOCAL)?;
            self.history.told_durable(receipt.version().number());
            self.db.persist()?;
        }
        assert!(before.get(&table, key)?.is_some(), "a snapshot from before a drop misses rows");
        Ok(())
    }

    /// Loads a table, or begins to. That it cannot be done harms nobody.
    fn load(&mut self) -> Result<()> {
        let number = self.history.begin_load();
        let name = name_of(number);
        let (db, mut place) = (self.db, || self.random.one_in(3).then(|| self.random.below(ROWS)));
        let (fails_at, persists_at) = (place(), place());
        let rows = rows_of(number).enumerate().map(|(at, row)| {
            if at.is_multiple_of(ROWS_PER_LOOK) {
                let is_there = db.objects().iter().any(|object| object.name == name);
                assert!(!is_there, "a table is there while its rows are loaded");
            }
            if Some(at) == persists_at {
                db.persist()?;
            }
            if Some(at) == fails_at { Err(Error::caller("enough")) } else { Ok(row) }
        });
        match db.bulk_load(&name, rows, |_| {}) {
            Ok(loaded) => {
                self.history.commit_load(loaded.version.number(), number);
                self.history.told_durable(loaded.version.number());
                Ok(())
            }
            Err(error) => {
                if error.kind() != ErrorKind::Lost {
                    self.history.loading = None;
                }
                match error.kind() {
                    ErrorKind::Caller if fails_at.is_some() => Ok(()),
                    _ => self.unless_refused(Err(error)),
                }
            }
        }
    }
}

/// C1, C4: the tables that were loaded, and not dropped, up to the horizon are there, with all of their rows, and nothing of others. Of one that nobody
/// was told of all or nothing is. The rows of the newest are looked at, and those of all [now and then](History::wants_every_way).
pub(crate) fn check_loads(db: &Kiln, history: &History, horizon: u64) -> Verdict {
    let failed = |error| format!("C1: reading a loaded table: {error}");
    let mut expected = history.loads_at(horizon);
    let found: Vec<String> = db.objects().into_iter().map(|object| object.name).collect();
    let may_be = history.loading.filter(|&number| found.contains(&name_of(number)));
    expected.extend(may_be);
    let loaded = found.iter().filter(|name| name.starts_with(PREFIX)).count();
    ensure!(loaded == expected.len(), "C4: {loaded} loaded tables at {horizon}, and should be {expected:?}");
    if expected.is_empty() && !history.wants_every_way() {
        return Ok(());
    }
    let snapshot = db.snapshot().map_err(failed)?;
    for &number in &expected {
        ensure!(found.contains(&name_of(number)), "C4: table {:?} is not there", name_of(number));
        let table = db.table(&name_of(number)).map_err(failed)?;
        ensure!(table.len() == ROWS as u64, "C1: table {:?} counts {} rows", name_of(number), table.len());
        if history.wants_every_way() || Some(&number) == expected.last() {
            let rows = rows_after(history, number, history.commits_at(horizon));
            ensure!(
                has_rows(&snapshot, &table, rows).map_err(failed)?,
                "C1: table {:?} has other rows",
                name_of(number)
            );
        }
    }
    // More cannot have settled: what was broken off has gone. What was dropped may not yet.
    let written = history.keys().iter().filter(|(place, _)| *place != Place::Numbers).count();
    let (settled, most) =
        (db.statistics().settled_rows, (written + ROWS * (history.loads().count() + expected.len())) as u64);
    ensure!(settled <= most, "C1: {settled} rows have settled, of {most} that there ever were");
    Ok(())
}

/// Compares the tables that were loaded, and not dropped, by so many commits, the first, with a snapshot that shows these; of others it must show nothing.
pub(crate) fn compare_loads(
    snapshot: &Snapshot<'_>,
    db: &Kiln,
    history: &History,
    commits: usize,
) -> Result<()> {
    let (objects, there) = (db.objects(), history.loads_after(commits));
    for number in history.loads() {
        let name = name_of(number);
        match snapshot.table(&name) {
            Ok(table) => {
                assert!(there.contains(&number), "C1: table {name:?} is there at {}", snapshot.version());
                let is_right = has_rows(snapshot, &table, rows_after(history, number, commits))?;
                assert!(is_right, "C1: table {name:?} has other rows at {}", snapshot.version());
            }
            Err(error) if error.kind() == ErrorKind::NotFound => {
                assert!(!there.contains(&number), "C1: table {name:?} is gone at {}", snapshot.version());
                if objects.iter().any(|object| object.name == name) {
                    let is_empty = has_rows(snapshot, &db.table(&name)?, std::iter::empty())?;
                    assert!(is_empty, "C1: table {name:?} has rows at {}", snapshot.version());
                }
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Whether a loaded table has these rows and no others.
fn has_rows(
    snapshot: &Snapshot<'_>,
    table: &Table,
    mut expected: impl Iterator<Item = (Vec<u8>, Vec<u8>)>,
) -> Result<bool> {
    for row in snapshot.range::<&[u8]>(table, ..) {
        if expected.next() != Some(row?) {
            return Ok(false);
        }
    }
    Ok(expected.next().is_none())
}
