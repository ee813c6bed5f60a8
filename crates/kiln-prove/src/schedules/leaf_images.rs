//! Copied leaves: a range of a snapshot sees no row that was changed before, whoever was just copying it.

use kiln::Snapshot;
use kiln::schedules::quietly;

use super::database::{Database, choose, failed, thread, together};
use crate::support::manual;

const ROWS: [&str; 3] = ["first", "second", "third"];
/// A leaf is copied once so many rows of it were read.
const ROWS_READ: u64 = 93;

fn put(Database { db, table, .. }: &Database, rows: &[&str]) {
    for row in rows {
        db.put(table, row, 0_i64.to_le_bytes()).unwrap_or_else(failed).forget();
    }
}

/// What a range sees is what reads of the rows see.
fn check(Database { table, .. }: &Database, snapshot: &Snapshot<'_>) {
    let rows: kiln::Result<Vec<_>> = snapshot.range::<&str>(table, ..).limit(ROWS.len()).collect();
    let rows = rows.unwrap_or_else(failed);
    assert_eq!(rows.len(), ROWS.len());
    for (key, value) in rows {
        let alone = snapshot.get(table, &key).unwrap_or_else(failed);
        assert_eq!(alone, Some(value), "a range has seen a row as it was before");
    }
}

/// Checks so many snapshots.
fn reader(database: &Database, snapshots: usize) -> Box<dyn FnOnce() + Send> {
    let database = database.clone();
    thread(move || {
        (0..snapshots).for_each(|_| check(&database, &database.db.snapshot().unwrap_or_else(failed)));
    })
}

/// Has all that is durable settle.
fn settler(Database { db, .. }: &Database) -> Box<dyn FnOnce() + Send> {
    let db = db.clone();
    thread(move || {
        db.settle().unwrap_or_else(failed);
    })
}

/// Changes one of the rows, or none.
fn writer(database: &Database) -> Box<dyn FnOnce() + Send> {
    let Database { db, table, .. } = database.clone();
    let row = ROWS.get(choose(ROWS.len() as u64 + 1) as usize).copied();
    thread(move || {
        if let Some(row) = row {
            db.add(&table, row, 1).unwrap_or_else(failed).forget();
        }
    })
}

/// Rows are changed while their leaf, which ranges have read often, is copied, for the first time or again.
pub(super) fn nobody_sees_a_row_that_was_changed_since_it_was_copied() {
    let database = Database::with(manual().memory(1 << 20));
    quietly(|| {
        put(&database, &ROWS);
        let rounds = ROWS_READ / ROWS.len() as u64 - 1 - choose(2);
        (0..rounds).for_each(|_| check(&database, &database.db.snapshot().unwrap_or_else(failed)));
    });
    let reader = reader(&database, 2);
    // Of several rows the others would tell.
    let writer = {
        let Database { db, table, .. } = database.clone();
        let row = ROWS[choose(ROWS.len() as u64) as usize];
        thread(move || {
            for _ in 0..2 {
                db.add(&table, row, 1).unwrap_or_else(failed).forget();
            }
        })
    };
    together(vec![reader, writer]);
    quietly(|| check(&database, &database.db.snapshot().unwrap_or_else(failed)));
}

/// Keys come before the rows of a range, in the leaf that it takes from an image.
pub(super) fn a_range_has_its_rows_whatever_comes_before_them_in_a_copied_leaf() {
    let database = Database::with(manual().memory(1 << 20));
    quietly(|| {
        put(&database, &ROWS);
        let snapshot = database.db.snapshot().unwrap_or_else(failed);
        (0..ROWS_READ).for_each(|_| check(&database, &snapshot));
    });
    let reader = {
        let Database { db, table, .. } = database.clone();
        thread(move || {
            for _ in 0..2 {
                let snapshot = db.snapshot().unwrap_or_else(failed);
                let first = snapshot.range(&table, ROWS[1]..).limit(1).next();
                let (key, _) = first.unwrap_or_else(|| panic!("a row has gone")).unwrap_or_else(failed);
                assert_eq!(key, ROWS[1].as_bytes(), "a range has begun elsewhere");
            }
        })
    };
    let writer = thread(move || put(&database, &["before", "behind"]));
    together(vec![reader, writer]);
}

/// Rows settle, and leave the leaf from which ranges take them as copies. One is changed meanwhile, or none is.
pub(super) fn a_range_has_its_rows_though_they_settle_out_of_a_copied_leaf() {
    let database = Database::with(manual().memory(1 << 20));
    quietly(|| {
        put(&database, &ROWS);
        database.db.persist().unwrap_or_else(failed);
        let snapshot = database.db.snapshot().unwrap_or_else(failed);
        (0..ROWS_READ).for_each(|_| check(&database, &snapshot));
        assert_ne!(database.db.statistics().leaves_copied, 0);
    });
    let reader = reader(&database, 2);
    let settler = settler(&database);
    let writer = writer(&database);
    together(vec![reader, settler, writer]);
    quietly(|| {
        assert_ne!(database.db.statistics().settled_rows, 0);
        check(&database, &database.db.snapshot().unwrap_or_else(failed));
    });
}

/// A leaf is copied with a row that has settled in its interval, while others settle out of it, and one of them all is changed, or none is.
pub(super) fn a_range_has_its_rows_where_some_have_settled_beside_a_copied_leaf() {
    let database = Database::with(manual().memory(1 << 20));
    quietly(|| {
        put(&database, &ROWS);
        database.db.persist().unwrap_or_else(failed);
        assert_eq!(database.db.settle().unwrap_or_else(failed), ROWS.len() as u64);
        let own = [ROWS[0], ROWS[2]];
        put(&database, &own);
        database.db.persist().unwrap_or_else(failed);
        let rounds = ROWS_READ / own.len() as u64 - choose(2);
        (0..rounds).for_each(|_| check(&database, &database.db.snapshot().unwrap_or_else(failed)));
    });
    let reader = reader(&database, 3);
    let settler = settler(&database);
    let writer = writer(&database);
    together(vec![reader, settler, writer]);
    quietly(|| check(&database, &database.db.snapshot().unwrap_or_else(failed)));
}

/// Whoever asks for a copy may leave it to who divides the memory just then, and the other way round: the next leaf that is read often is copied all the same.
pub(super) fn leaves_are_copied_whoever_divides_the_memory() {
    let database = Database::with(manual().memory(1 << 20));
    quietly(|| {
        put(&database, &ROWS);
        database.db.persist().unwrap_or_else(failed);
        let rounds = ROWS_READ / ROWS.len() as u64 - choose(3);
        (0..rounds).for_each(|_| check(&database, &database.db.snapshot().unwrap_or_else(failed)));
    });
    let reader = reader(&database, 3);
    let settler = settler(&database);
    together(vec![reader, settler]);
    quietly(|| {
        put(&database, &ROWS);
        let copied = database.db.statistics().leaves_copied;
        let snapshot = database.db.snapshot().unwrap_or_else(failed);
        (0..2 * ROWS_READ).for_each(|_| check(&database, &snapshot));
        assert_ne!(database.db.statistics().leaves_copied, copied, "leaves are not copied any more");
    });
}
