//! Stretches of a table without rows: who passes one misses no row that has come there, whoever was just finding out that there is none.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use kiln::Snapshot;
use kiln::schedules::quietly;

use super::database::{Database, choose, failed, thread, together};

/// So many keys without a row are passed before they are a gap.
const ROWS: u64 = 17;

fn row(number: u64) -> String {
    format!("row {number:02}")
}

/// Of a database whose rows were all deleted. That there is none may be known.
fn emptied() -> Database {
    let database = Database::new();
    let Database { db, table, .. } = &database;
    quietly(|| {
        (0..ROWS).for_each(|number| db.put(table, row(number), "old").unwrap_or_else(failed).forget());
        (0..ROWS).for_each(|number| _ = db.delete(table, row(number)).unwrap_or_else(failed).forget());
        if choose(2) == 0 {
            assert_eq!(db.snapshot().unwrap_or_else(failed).first(table).unwrap_or_else(failed), None);
            assert_eq!(db.statistics().gaps, 1);
        }
    });
    database
}

/// What a range sees is what reads of the rows see.
fn check(Database { table, .. }: &Database, snapshot: &Snapshot<'_>) -> usize {
    let range = snapshot.range::<&str>(table, ..);
    let range = if choose(2) == 0 { range } else { range.reverse() };
    let mut rows: Vec<_> = range.map(|row| row.unwrap_or_else(failed)).collect();
    rows.sort();
    let alone = (0..ROWS).map(row).filter_map(|key| {
        let value = snapshot.get(table, &key).unwrap_or_else(failed);
        value.map(|value| (key.into_bytes(), value))
    });
    assert!(alone.eq(rows.iter().cloned()), "a range has missed a row, or has seen one that is gone");
    rows.len()
}

fn reader(database: &Database) -> Box<dyn FnOnce() + Send> {
    let database = database.clone();
    thread(move || {
        for _ in 0..2 {
            check(&database, &database.db.snapshot().unwrap_or_else(failed));
        }
    })
}

/// A row comes, and perhaps goes again, while others find out that there is none.
pub(super) fn a_range_has_a_row_that_comes_where_there_was_none() {
    let database = emptied();
    let (number, in_transaction, goes_again) = (choose(ROWS), choose(2) == 0, choose(2) == 0);
    let writer = {
        let (database, key) = (database.clone(), row(number));
        thread(move || {
            let Database { db, table, .. } = &database;
            match in_transaction {
                true => db.transact(|tx| tx.put(table, &key, "new")).unwrap_or_else(failed).forget(),
                false => db.put(table, &key, "new").unwrap_or_else(failed).forget(),
            }
            assert_eq!(check(&database, &db.snapshot().unwrap_or_else(failed)), 1, "it is there");
            if goes_again {
                let _ = db.delete(table, &key).unwrap_or_else(failed).forget();
            }
        })
    };
    together(vec![writer, reader(&database), reader(&database)]);
    quietly(|| check(&database, &database.db.snapshot().unwrap_or_else(failed)));
}

/// Two transactions that each pass the stretch, and put a row there if there is none: one of them sees the other.
pub(super) fn two_do_not_miss_each_other_where_there_was_no_row() {
    let database = emptied();
    let alone = Arc::new(AtomicU64::new(0));
    let inserters = (0..2).map(|_| {
        let (Database { db, table, .. }, alone) = (database.clone(), alone.clone());
        let key = row(choose(ROWS));
        thread(move || {
            let inserted = db.transact(|tx| {
                let is_alone = tx.first(&table)?.is_none();
                if is_alone {
                    tx.put(&table, &key, "here")?;
                }
                Ok(is_alone)
            });
            alone.fetch_add(u64::from(inserted.unwrap_or_else(failed).forget()), Ordering::SeqCst);
        })
    });
    together(inserters.collect());
    assert_eq!(alone.load(Ordering::SeqCst), 1, "both of two that exclude each other have committed");
}
