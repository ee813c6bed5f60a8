//! Snapshots that have names: the workload's, and what the oracle asks of them.

use std::collections::BTreeSet;

use kiln::{Kiln, Result};

use super::{Shift, compare_snapshot};
use crate::oracle::{Verdict, ensure};
use crate::workload::bank::Objects;
use crate::workload::history::{History, Named};
use crate::workload::loads::compare_loads;

/// The names that are given, and given again.
const NAMES: [&str; 3] = ["one", "two", "three"];

impl Shift<'_> {
    /// Gives a snapshot a name, drops one, or looks at one.
    pub(super) fn name_snapshot(&mut self) -> Result<()> {
        let is_free = |name: &&&str| self.history.named.iter().all(|named| named.name != **name);
        let free = NAMES.iter().find(is_free);
        let there: Vec<usize> = (0..self.history.named.len())
            .filter(|&place| self.history.named[place].is_made && !self.history.named[place].is_going)
            .collect();
        match (self.random.below(4), free) {
            (0 | 1, Some(name)) => self.make_snapshot(name),
            (_, _) if there.is_empty() => Ok(()),
            (0, _) => {
                let place = *self.random.pick(&there);
                self.drop_snapshot(place)
            }
            _ => {
                let named = &self.history.named[*self.random.pick(&there)];
                let state = self.history.state_after(named.commits);
                let snapshot = self.db.open_snapshot(named.name)?;
                compare_snapshot(&snapshot, &self.objects, &state, self.history.keys(), true)
            }
        }
    }

    fn make_snapshot(&mut self, name: &'static str) -> Result<()> {
        let commits = self.history.commits.len();
        let named = Named { name, commits, is_made: false, is_going: false };
        self.history.change_names(|names| names.push(named));
        let version = self.db.create_snapshot(name)?.version.number();
        // What it shows is durable.
        self.history.told_durable(version);
        self.history.change_names(|names| {
            if let Some(named) = names.last_mut() {
                named.is_made = true;
            }
        });
        Ok(())
    }

    fn drop_snapshot(&mut self, place: usize) -> Result<()> {
        self.history.change_names(|names| names[place].is_going = true);
        self.db.drop_snapshot(self.history.named[place].name)?;
        self.history.change_names(|names| {
            names.remove(place);
        });
        Ok(())
    }
}

/// C4, C5: the snapshots that have names are those that were given one, and each shows what it did: one of
/// them is looked at, and [now and then](History::wants_every_way) all.
pub(crate) fn check_named(db: &Kiln, history: &History) -> Verdict {
    let failed = |error| format!("C5: reading a snapshot that has a name: {error}");
    let found = db.snapshots();
    for named in history.named.iter().filter(|named| named.is_made && !named.is_going) {
        let is_there = found.iter().any(|info| info.name == named.name);
        ensure!(is_there, "C5: the snapshot {:?} is gone", named.name);
    }
    if found.is_empty() {
        return Ok(());
    }
    let objects = Objects::open(db).map_err(failed)?;
    let commits = history.commits.len();
    let all = history.wants_every_way();
    for (at, info) in found.iter().enumerate() {
        let Some(named) = history.named.iter().find(|named| named.name == info.name) else {
            return Err(format!("C5: the snapshot {:?} was dropped, and is there", info.name));
        };
        let snapshot = db.open_snapshot(named.name).map_err(failed)?;
        ensure!(snapshot.version() == info.version, "C4: {info:?} is opened at {}", snapshot.version());
        if all || at == commits % found.len() {
            let state = history.state_after(named.commits);
            let whole = commits.is_multiple_of(8);
            compare_snapshot(&snapshot, &objects, &state, history.keys(), whole).map_err(failed)?;
        }
        if all {
            compare_loads(&snapshot, db, history, named.commits).map_err(failed)?;
        }
    }
    Ok(())
}

/// Compares what all snapshots that have names show, and all tables that were loaded, with a history that has come to its end.
pub(crate) fn compare_named(db: &Kiln, history: &History) -> Result<()> {
    let found: BTreeSet<String> = db.snapshots().into_iter().map(|info| info.name).collect();
    assert_eq!(found, history.named.iter().map(|named| named.name.to_owned()).collect());
    let objects = Objects::open(db)?;
    for named in &history.named {
        let (snapshot, state) = (db.open_snapshot(named.name)?, history.state_after(named.commits));
        compare_snapshot(&snapshot, &objects, &state, history.keys(), true)?;
        compare_loads(&snapshot, db, history, named.commits)?;
    }
    compare_loads(&db.snapshot()?, db, history, history.commits.len())
}
