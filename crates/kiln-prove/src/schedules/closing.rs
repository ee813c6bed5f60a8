//! Closed versions: what a crash leaves is all commits up to one version, and what a close leaves is all commits.

use kiln::{Error, ErrorKind};

use super::database::{Database, Ledger, Place, choose, failed, thread, together, unless, unless_crashed};
use crate::support::is_of_power_loss;

/// Commits of all kinds beside hardenings, until the power fails somewhere.
pub(super) fn a_crash_leaves_whole_versions() {
    let (database, ledger) = (Database::new(), Ledger::default());
    database.crash_sometime(8);
    let committers =
        committers(&database, &ledger, |database, error| is_of_power_loss(error, &database.disk));
    let hardener = {
        let (Database { disk, db, .. }, ledger) = (database.clone(), ledger.clone());
        thread(move || {
            for _ in 0..2 {
                let newest = ledger.newest();
                if unless_crashed(&disk, db.persist()).is_some() {
                    ledger.durable(newest);
                }
            }
        })
    };
    together(committers.into_iter().chain([hardener]).collect());
    let left = database.after_crash();
    ledger.check(&left);
}

/// Commits beside a close: those that were not refused are there when the database is opened again.
pub(super) fn a_close_leaves_every_commit() {
    let (database, ledger) = (Database::new(), Ledger::default());
    let committers = committers(&database, &ledger, |_, error| error.kind() == ErrorKind::Aborted);
    let closer = {
        let db = database.db.clone();
        thread(move || db.close().unwrap_or_else(failed))
    };
    together(committers.into_iter().chain([closer]).collect());
    ledger.durable(ledger.newest());
    let left = database.after_crash();
    assert!(left.db.recovery_report().clean, "it was closed: {}", left.db.recovery_report());
    ledger.check(&left);
}

/// Whether a commit may be refused with this error.
type IsDue = fn(&Database, &Error) -> bool;

/// Two threads of two commits each.
fn committers(database: &Database, ledger: &Ledger, is_due: IsDue) -> [Box<dyn FnOnce() + Send>; 2] {
    [0, 1].map(|who| {
        let (database, ledger) = (database.clone(), ledger.clone());
        thread(move || (0..2).for_each(|round| commit(&database, &ledger, &format!("{who}-{round}"), is_due)))
    })
}

/// One commit, of one key or of two, waited for or not.
fn commit(database: &Database, ledger: &Ledger, name: &str, is_due: IsDue) {
    let Database { disk, db, map, table } = database;
    let (key, other) = (format!("key {name}"), format!("other {name}"));
    let (commit, keys) = match choose(2) {
        0 => (db.put(map, &key, name), vec![(Place::Map, key)]),
        _ => {
            let commit = db.transact(|tx| {
                tx.put(map, &other, name)?;
                tx.put(table, &key, name)?;
                tx.put(map, &key, name)
            });
            (commit, vec![(Place::Map, other), (Place::Table, key.clone()), (Place::Map, key)])
        }
    };
    let Some(commit) = unless(commit, |error| is_due(database, error)) else { return ledger.refused(&keys) };
    let (_, receipt) = commit.fast();
    ledger.committed_together(&keys, receipt.version(), name.as_bytes());
    if choose(3) == 0 {
        ledger.wait(disk, &receipt);
    }
}

/// One key is overwritten again and again, in place where that is allowed: what a crash leaves is the last value of its
/// version.
pub(super) fn updates_in_place_are_not_lost() {
    let (database, ledger) = (Database::new(), Ledger::default());
    database.crash_sometime(6);
    let writer = {
        let (Database { disk, db, map, .. }, ledger) = (database.clone(), ledger.clone());
        thread(move || {
            for round in 0..5_u64 {
                let value = round.to_le_bytes().repeat(2);
                let Some(commit) = unless_crashed(&disk, db.put(&map, "one", &value)) else { return };
                let (_, receipt) = commit.fast();
                ledger.overwritten(b"one", receipt.version(), &value);
            }
        })
    };
    let hardener = {
        let Database { disk, db, .. } = database.clone();
        thread(move || {
            for _ in 0..2 {
                if unless_crashed(&disk, db.persist()).is_none() {
                    return;
                }
            }
        })
    };
    let reader = {
        let Database { db, map, .. } = database.clone();
        thread(move || {
            for _ in 0..3 {
                let value = db.get(&map, "one").unwrap_or_else(failed);
                assert!(
                    value.is_none_or(|value| value[..8] == value[8..]),
                    "a value was read while it was being overwritten"
                );
            }
        })
    };
    together(vec![writer, hardener, reader]);
    let left = database.after_crash();
    ledger.check_overwritten(&left, b"one");
}
