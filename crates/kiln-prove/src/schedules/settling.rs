//! Settling: what is read, written and deleted while it moves into the tree is always in one place.

use kiln::Isolation;
use kiln::schedules::quietly;

use super::database::{Database, choose, failed, thread, together};

/// Rows of which one has the token.
const PLACES: [&str; 3] = ["first", "second", "third"];

fn new_database(key: &str, value: &[u8]) -> Database {
    let database = Database::new();
    quietly(|| {
        let Database { db, table, .. } = &database;
        db.put(table, key, value).unwrap_or_else(failed).forget();
        db.persist().unwrap_or_else(failed);
        if choose(2) == 0 {
            db.settle().unwrap_or_else(failed);
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

fn number(value: Option<Vec<u8>>) -> i64 {
    let bytes = value.unwrap_or_else(|| panic!("the row is gone"));
    bytes.as_slice().try_into().map_or_else(|_| panic!("no counter"), i64::from_le_bytes)
}

/// A row that is counted up, in a transaction or outside of one, and settles again and again, is always there, and counts on.
pub(super) fn a_row_that_settles_loses_no_update() {
    let database = new_database("row", &0_i64.to_le_bytes());
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

/// A token goes from row to row, each time with a deletion and a put; whoever walks meets it once, also who will fail.
pub(super) fn a_walk_meets_a_row_that_moves_once() {
    let database = new_database(PLACES[0], b"token");
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
