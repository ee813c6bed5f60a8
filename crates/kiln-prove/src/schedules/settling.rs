//! Settling: what is read, written and deleted while it moves into the tree is always in one place.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use kiln::Isolation;
use kiln::schedules::quietly;

use super::database::{Database, choose, failed, number, thread, together};
use crate::support::manual;

/// Rows of which one has the token.
const PLACES: [&str; 3] = ["first", "second", "third"];

/// Places for a row: on disk in the log, be it that others have settled or none; in the tree; in memory.
const WAYS: u64 = 4;

/// A database with a row that is in a certain place. It keeps nothing of the tree in memory.
fn new_database(way: u64, key: &str, value: &[u8]) -> Database {
    let database = Database::new();
    quietly(|| {
        let Database { db, map, table, .. } = &database;
        if way == 0 {
            let other = db.table("other").unwrap_or_else(failed);
            db.put(&other, "row", b"").unwrap_or_else(failed).forget();
            db.persist().unwrap_or_else(failed);
            db.settle().unwrap_or_else(failed);
        }
        db.put(table, key, value).unwrap_or_else(failed).forget();
        db.persist().unwrap_or_else(failed);
        let end = db.statistics().log_tail;
        match way {
            0 | 1 => {
                while db.statistics().log_head < end {
                    db.put(map, "ballast", vec![0; 20 << 10]).unwrap_or_else(failed).forget();
                    db.persist().unwrap_or_else(failed);
                }
            }
            2 => drop(db.settle().unwrap_or_else(failed)),
            _ => {}
        }
    });
    database
}

/// Has all that is durable settle, so many times.
fn settler(database: &Database, rounds: usize) -> Box<dyn FnOnce() + Send> {
    let db = database.db.clone();
    thread(move || {
        for _ in 0..rounds {
            db.persist().unwrap_or_else(failed);
            db.settle().unwrap_or_else(failed);
        }
    })
}

/// A row that is counted up, in a transaction or outside of one, and settles again and again, is always there, and counts on.
pub(super) fn a_row_that_settles_loses_no_update() {
    let database = new_database(choose(WAYS), "row", &0_i64.to_le_bytes());
    let writer = || {
        let Database { db, table, .. } = database.clone();
        let single = choose(2) == 0;
        thread(move || {
            for _ in 0..2 {
                let commit = match single {
                    true => db.add(&table, "row", 1),
                    false => db.transact(|tx| tx.add(&table, "row", 1)),
                };
                commit.unwrap_or_else(failed).forget();
            }
        })
    };
    let reader = {
        let Database { db, table, .. } = database.clone();
        thread(move || {
            let mut before = 0;
            for _ in 0..3 {
                let read = match choose(3) {
                    0 => db.get(&table, "row"),
                    1 => db.snapshot().unwrap_or_else(failed).get(&table, "row"),
                    _ => db.transact(|tx| tx.get(&table, "row")).map(kiln::Commit::forget),
                };
                let now = number(read.unwrap_or_else(failed));
                assert!(now >= before, "the row goes back from {before} to {now}");
                before = now;
            }
        })
    };
    together(vec![writer(), writer(), reader, settler(&database, 2)]);
    let last = quietly(|| database.db.get(&database.table, "row").unwrap_or_else(failed));
    assert_eq!(number(last), 4, "an update is lost");
}

/// Two rows that settle out of one leaf by two threads, one of them counted up, the other one deleted and put again, are as they were written last.
pub(super) fn rows_that_two_remove_lose_no_update() {
    let database = Database::with(manual().settle_threads(2));
    let Database { db, map, table, .. } = &database;
    let put = |key: &str| db.put(table, key, 0_i64.to_le_bytes()).unwrap_or_else(failed).forget();
    quietly(|| {
        put("counted");
        // Each of the two threads has a segment of the log, and then one of the rows.
        let segment = |address: u64| address / (64 << 10);
        let first = segment(db.statistics().log_tail);
        while segment(db.statistics().log_tail) == first {
            db.put(map, "ballast", vec![0; 20 << 10]).unwrap_or_else(failed).forget();
            db.persist().unwrap_or_else(failed);
        }
        put("deleted");
        db.persist().unwrap_or_else(failed);
    });
    let counter = {
        let Database { db, table, .. } = database.clone();
        thread(move || {
            for _ in 0..2 {
                db.add(&table, "counted", 1).unwrap_or_else(failed).forget();
            }
        })
    };
    let deleter = {
        let Database { db, table, .. } = database.clone();
        thread(move || {
            assert!(db.delete(&table, "deleted").unwrap_or_else(failed).forget(), "the row is gone");
            assert_eq!(db.get(&table, "deleted").unwrap_or_else(failed), None, "the deletion is lost");
            db.put(&table, "deleted", 7_i64.to_le_bytes()).unwrap_or_else(failed).forget();
        })
    };
    together(vec![counter, deleter, settler(&database, 1)]);
    for (key, expected) in [("counted", 2), ("deleted", 7)] {
        let last = quietly(|| db.get(table, key).unwrap_or_else(failed));
        assert_eq!(number(last), expected, "an update of {key} is lost");
    }
}

/// A token goes from row to row, each time with a deletion and a put; whoever walks meets it once, also who will fail.
pub(super) fn a_walk_meets_a_row_that_moves_once() {
    let database = new_database(choose(WAYS), PLACES[0], b"token");
    let mover = {
        let Database { db, table, .. } = database.clone();
        thread(move || {
            for round in 0..2 {
                let moved = db.transact(|tx| {
                    assert!(tx.delete(&table, PLACES[round])?, "the token is not where it was put");
                    tx.put(&table, PLACES[round + 1], b"token")
                });
                moved.unwrap_or_else(failed).forget();
            }
        })
    };
    let walker = {
        let Database { db, table, .. } = database.clone();
        thread(move || {
            for _ in 0..2 {
                let is_one = |rows: usize| assert_eq!(rows, 1, "a walk meets a row that moves {rows} times");
                let way = choose(3);
                if way == 2 {
                    let snapshot = db.snapshot().unwrap_or_else(failed);
                    let rows = snapshot.range::<&str>(&table, ..).collect::<kiln::Result<Vec<_>>>();
                    is_one(rows.unwrap_or_else(failed).len());
                    continue;
                }
                let isolation = [Isolation::Serializable, Isolation::Snapshot][way as usize];
                let walked = db.transact_with(isolation, |tx| {
                    let range = tx.range::<&str>(&table, ..);
                    let range = if choose(2) == 0 { range.reverse() } else { range };
                    is_one(range.collect::<kiln::Result<Vec<_>>>()?.len());
                    Ok(())
                });
                walked.unwrap_or_else(failed).forget();
            }
        })
    };
    together(vec![mover, walker, settler(&database, 2)]);
}

/// A row on disk that two delete while it settles is deleted by one of them.
pub(super) fn a_row_that_settles_is_deleted_once() {
    let database = new_database(choose(2), "row", b"");
    let deletions = Arc::new(AtomicU64::new(0));
    let deleter = || {
        let (Database { db, table, .. }, deletions) = (database.clone(), deletions.clone());
        let single = choose(2) == 0;
        thread(move || {
            let commit = match single {
                true => db.delete(&table, "row"),
                false => db.transact(|tx| tx.delete(&table, "row")),
            };
            deletions.fetch_add(commit.unwrap_or_else(failed).forget().into(), Ordering::Relaxed);
        })
    };
    together(vec![deleter(), deleter(), settler(&database, 1)]);
    assert_eq!(deletions.load(Ordering::Relaxed), 1, "so many have deleted it");
    assert_eq!(
        quietly(|| database.db.get(&database.table, "row").unwrap_or_else(failed)),
        None,
        "a deletion is lost"
    );
}
