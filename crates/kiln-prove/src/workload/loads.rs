//! Bulk loads: the workload's, and what the oracle asks of them.

use kiln::{Error, ErrorKind, Kiln, Object as _, Result, Snapshot, Table};

use super::Shift;
use super::history::{History, Place};
use crate::oracle::{Verdict, ensure};

/// So many rows has every loaded table: more than all others together, so that those of a load that was broken off are too many.
pub(crate) const ROWS: usize = 120;
/// Once in so many rows it is looked whether the table is there, which takes a look at all tables.
const ROWS_PER_LOOK: usize = 16;
/// What the names of loaded tables begin with.
const PREFIX: &str = "loaded ";

pub(crate) fn name_of(number: u32) -> String {
    format!("{PREFIX}{number}")
}

/// The rows of a load, in order.
fn rows_of(number: u32) -> impl Iterator<Item = (Vec<u8>, Vec<u8>)> {
    (0..ROWS)
        .map(move |row| (format!("{row:05}").into_bytes(), vec![number as u8; (row + number as usize) % 50]))
}

impl Shift<'_> {
    /// Loads a table, or begins to. That it cannot be done harms nobody.
    pub(super) fn load(&mut self) -> Result<()> {
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

/// C1, C4: the tables that were loaded up to the horizon are there, with all of their rows, and nothing of others. Of one that nobody
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
            check_rows(&snapshot, &table, rows_of(number))?;
        }
    }
    // More cannot have settled: what was broken off has gone.
    let written = history.keys().iter().filter(|(place, _)| *place != Place::Numbers).count();
    let (settled, most) = (db.statistics().settled_rows, (written + ROWS * expected.len()) as u64);
    ensure!(settled <= most, "C1: {settled} rows have settled, of {most} that there ever were");
    Ok(())
}

/// A snapshot that shows so many commits, the first, shows the tables that were loaded by then, and of others nothing.
pub(crate) fn check_loads_in(
    snapshot: &Snapshot<'_>,
    db: &Kiln,
    history: &History,
    commits: usize,
) -> Verdict {
    let objects = db.objects();
    for (at, commit) in history.commits.iter().enumerate() {
        let Some(number) = commit.load else { continue };
        // A crash may have taken it.
        if !objects.iter().any(|object| object.name == name_of(number)) {
            continue;
        }
        let table = db.table(&name_of(number)).map_err(|error| format!("C1: a loaded table: {error}"))?;
        let count = if at < commits { ROWS } else { 0 };
        check_rows(snapshot, &table, rows_of(number).take(count))?;
    }
    Ok(())
}

fn check_rows(
    snapshot: &Snapshot<'_>,
    table: &Table,
    mut expected: impl Iterator<Item = (Vec<u8>, Vec<u8>)>,
) -> Verdict {
    for row in snapshot.range::<&[u8]>(table, ..) {
        let row = row.map_err(|error| format!("C1: reading a loaded table: {error}"))?;
        ensure!(
            expected.next() == Some(row),
            "C1: a loaded table has another row, at {}",
            snapshot.version()
        );
    }
    ensure!(expected.next().is_none(), "C1: rows of a loaded table are missing at {}", snapshot.version());
    Ok(())
}
