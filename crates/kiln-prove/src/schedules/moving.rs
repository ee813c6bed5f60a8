//! Moving: what is written anew, so that what was before it can go, changes for nobody.

use std::sync::{Arc, Mutex, PoisonError};

use kiln::Version;
use kiln::schedules::quietly;

use super::database::{Database, choose, failed, number, thread, together};

/// A database with a row in a segment that can go once the row has moved. It is on disk alone, or in memory, too.
fn new_database(is_cold: bool) -> Database {
    let database = Database::new();
    quietly(|| {
        let Database { db, map, .. } = &database;
        db.put(map, "row", 0_i64.to_le_bytes()).unwrap_or_else(failed).forget();
        db.persist().unwrap_or_else(failed);
        let end = db.statistics().log_tail;
        let is_cold_now = || db.statistics().log_head >= end;
        for round in 0.. {
            // Three are more than a segment.
            if round >= 3 && (!is_cold || is_cold_now()) {
                break;
            }
            db.put(map, "ballast", [0; 22 << 10]).unwrap_or_else(failed).forget();
            db.persist().unwrap_or_else(failed);
        }
    });
    database
}

/// Adds to a row, and says what became of it.
fn increment(Database { db, map, .. }: &Database, way: u64) -> (i64, Version) {
    match way {
        0 => {
            let commit = db.add(map, "row", 1).unwrap_or_else(failed);
            let version = commit.version();
            (commit.forget(), version)
        }
        1 => {
            let mut sum = 0;
            let commit = db.update(map, "row", |old| {
                sum = number(old.map(<[u8]>::to_vec)) + 1;
                // It takes its time.
                db.get(map, "witness").unwrap_or_else(failed);
                Some(sum.to_le_bytes())
            });
            (sum, commit.unwrap_or_else(failed).version())
        }
        _ => {
            let commit = db.transact(|tx| {
                let sum = number(tx.get(map, "row")?) + 1;
                tx.put(map, "row", sum.to_le_bytes())?;
                Ok(sum)
            });
            let commit = commit.unwrap_or_else(failed);
            let version = commit.version();
            (commit.forget(), version)
        }
    }
}

/// A sum, the version of whoever has made it, or has read it and written something else, and whether they have made it.
#[derive(Clone, Default)]
struct Seen(Arc<Mutex<Vec<(i64, u64, bool)>>>);

impl Seen {
    fn note(&self, (sum, version): (i64, Version), is_update: bool) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push((sum, version.number(), is_update));
    }

    /// Each sum was made once, before it was read; and in that order versions ascend.
    fn check(&self, expected: i64) {
        let mut seen = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        seen.sort_unstable_by_key(|&(sum, version, is_update)| (sum, !is_update, version));
        let made: Vec<i64> = seen.iter().filter(|seen| seen.2).map(|seen| seen.0).collect();
        assert_eq!(made, (1..=expected).collect::<Vec<_>>(), "an update was lost");
        assert!(seen.is_sorted_by_key(|seen| seen.1), "versions do not follow dependencies: {seen:?}");
    }
}

/// A row that moves is always there, and loses no update, nor does who has read it, and writes something else, pass by one.
pub(super) fn a_row_that_moves_changes_for_nobody() {
    let (database, seen) = (new_database(choose(2) == 0), Seen::default());
    let updater = {
        let (database, seen) = (database.clone(), seen.clone());
        let way = choose(3);
        thread(move || (0..3).for_each(|_| seen.note(increment(&database, way), true)))
    };
    let witness = {
        let (Database { db, map, .. }, seen) = (database.clone(), seen.clone());
        thread(move || {
            for _ in 0..2 {
                let commit = db.transact(|tx| {
                    let sum = number(tx.get(&map, "row")?);
                    tx.put(&map, "witness", sum.to_le_bytes())?;
                    Ok(sum)
                });
                let commit = commit.unwrap_or_else(failed);
                let version = commit.version();
                seen.note((commit.forget(), version), false);
            }
        })
    };
    let reader = {
        let Database { db, map, .. } = database.clone();
        thread(move || {
            let mut before = 0;
            for _ in 0..3 {
                let read = match choose(2) {
                    0 => db.get(&map, "row"),
                    _ => db.snapshot().unwrap_or_else(failed).get(&map, "row"),
                };
                let now = number(read.unwrap_or_else(failed));
                assert!(now >= before, "the row goes back from {before} to {now}");
                before = now;
            }
        })
    };
    let mover = {
        let db = database.db.clone();
        thread(move || _ = db.compact(|_| {}).unwrap_or_else(failed))
    };
    together(vec![updater, witness, reader, mover]);
    let last = quietly(|| database.db.get(&database.map, "row").unwrap_or_else(failed));
    assert_eq!(number(last), 3, "an update is lost");
    seen.check(3);
}
