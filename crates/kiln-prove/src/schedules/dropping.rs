//! Dropping: whoever writes to a dropped object, or reads it, does so before it was dropped, or is refused.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use kiln::schedules::quietly;
use kiln::{Error, ErrorKind, Version};

use super::database::{Database, choose, failed, thread, together};

const KEYS: [&str; 3] = ["first", "second", "third"];

/// A database whose map and table have some rows, which may have settled.
fn new_database() -> Database {
    let database = Database::new();
    quietly(|| {
        let Database { db, map, table, .. } = &database;
        for key in KEYS {
            db.put(map, key, "old").unwrap_or_else(failed).forget();
            db.put(table, key, "old").unwrap_or_else(failed).forget();
        }
        db.persist().unwrap_or_else(failed);
        if choose(3) == 0 {
            db.settle().unwrap_or_else(failed);
        }
    });
    database
}

/// An error where the object was dropped.
fn is_refused<T>(outcome: kiln::Result<T>) -> Result<T, ()> {
    outcome.map_err(|error: Error| match error.kind() {
        ErrorKind::NotFound => {}
        _ => failed(error),
    })
}

/// A map, or a table, is dropped while rows are written, read, counted, and removed. A write that has committed has no newer version than the drop; who
/// reads finds all rows that were there, or is refused; what a snapshot finds it finds twice.
pub(super) fn nobody_uses_what_was_dropped() {
    let database = new_database();
    let drops_map = choose(2) == 0;
    let dropped_in = Arc::new(AtomicU64::new(u64::MAX));
    let newest = Arc::new(AtomicU64::new(0));
    let writer = {
        let (Database { db, map, table, .. }, newest) = (database.clone(), newest.clone());
        let way = choose(4);
        thread(move || {
            for round in 0..3_u64 {
                let (key, value) = (format!("new {}", round % 2), round.to_le_bytes());
                let commit: kiln::Result<Version> = match (way, drops_map) {
                    (0, true) => db.put(&map, &key, value).map(|commit| commit.version()),
                    (0, false) => db.put(&table, &key, value).map(|commit| commit.version()),
                    (1, true) => db.add(&map, &key, 1).map(|commit| commit.version()),
                    (1, false) => db.add(&table, &key, 1).map(|commit| commit.version()),
                    (2, true) => db.delete(&map, KEYS[round as usize % 2]).map(|commit| commit.version()),
                    (2, false) => db.delete(&table, KEYS[round as usize % 2]).map(|commit| commit.version()),
                    _ => db
                        .transact(|tx| {
                            tx.put(&map, &key, value)?;
                            tx.put(&table, &key, value)
                        })
                        .map(|commit| commit.version()),
                };
                let Ok(version) = is_refused(commit) else { return };
                newest.fetch_max(version.number(), Ordering::SeqCst);
            }
        })
    };
    let reader = {
        let Database { db, map, table, .. } = database.clone();
        let way = choose(4);
        thread(move || {
            for _ in 0..3 {
                let found = match (way, drops_map) {
                    (0, true) => is_refused(db.get(&map, KEYS[2])).map(|value| value.is_some()),
                    (0, false) => is_refused(db.get(&table, KEYS[2])).map(|value| value.is_some()),
                    (1, true) => {
                        let both = db.transact(|tx| Ok((tx.get(&map, KEYS[0])?, tx.get(&map, KEYS[2])?)));
                        is_refused(both).map(|both| both.forget().1.is_some())
                    }
                    (1, false) => {
                        let last = db.transact(|tx| tx.prefix(&table, "third").next().transpose());
                        is_refused(last).map(|last| last.forget().is_some())
                    }
                    _ => {
                        let snapshot = db.snapshot().unwrap_or_else(failed);
                        let read = || match drops_map {
                            true => is_refused(snapshot.get(&map, KEYS[2])),
                            false => is_refused(snapshot.get(&table, KEYS[2])),
                        };
                        let (once, twice) = (read(), read());
                        assert_eq!(once, twice, "a snapshot sees an object and then not");
                        once.map(|value| value.is_some())
                    }
                };
                let Ok(is_there) = found else { return };
                assert!(is_there, "a row is gone before its object is");
            }
        })
    };
    let dropper = {
        let (db, dropped_in) = (database.db.clone(), dropped_in.clone());
        thread(move || {
            let commit = if drops_map { db.drop_map("map") } else { db.drop_table("table") };
            let version = commit.unwrap_or_else(failed).version().number();
            dropped_in.store(version, Ordering::SeqCst);
            db.persist().unwrap_or_else(failed);
            db.persist().unwrap_or_else(failed);
        })
    };
    together(vec![writer, reader, dropper]);
    let (newest, dropped_in) = (newest.load(Ordering::SeqCst), dropped_in.load(Ordering::SeqCst));
    assert!(
        newest <= dropped_in,
        "a write of version {newest} has committed behind the drop of {dropped_in}"
    );
    quietly(|| {
        let Database { db, .. } = &database;
        db.persist().unwrap_or_else(failed);
        assert_eq!(db.statistics().dropping, 0, "rows of a dropped object stay");
        let report = db.check().unwrap_or_else(failed);
        assert!(report.is_clean(), "{report}");
    });
}
