//! Nothing that was committed is overwritten by who has not seen it.

use std::sync::{Arc, Mutex, PoisonError};

use super::database::{Database, choose, failed, thread, together};

/// A counter as bytes.
fn number(value: Option<&[u8]>) -> i64 {
    value.map_or(0, |bytes| bytes.try_into().map_or_else(|_| panic!("no counter"), i64::from_le_bytes))
}

/// Sums in the order in which they came to be, each with its version.
#[derive(Clone, Default)]
struct Sums(Arc<Mutex<Vec<(i64, u64)>>>);

impl Sums {
    fn add(&self, sum: i64, version: kiln::Version) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push((sum, version.number()));
    }

    /// Each sum was seen once, and who saw another's sum has no older version.
    fn check(&self, expected: i64) {
        let mut sums = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        sums.sort_unstable();
        let seen: Vec<i64> = sums.iter().map(|sum| sum.0).collect();
        assert_eq!(seen, (1..=expected).collect::<Vec<_>>(), "an update was lost");
        assert!(sums.is_sorted_by_key(|sum| sum.1), "versions do not follow dependencies: {sums:?}");
    }
}

/// Adds to a counter in one of the ways that there are.
fn increment(database: &Database, way: u64, sums: &Sums) {
    let Database { db, map, table, .. } = database;
    let both = |tx: &kiln::Transaction<'_>| {
        let sum = number(tx.get(map, "x")?.as_deref()) + 1;
        tx.put(map, "x", sum.to_le_bytes())?;
        tx.put(table, "x", sum.to_le_bytes())?;
        Ok(sum)
    };
    match way {
        0 => {
            let commit = db.transact(both).unwrap_or_else(failed);
            let version = commit.version();
            sums.add(commit.forget(), version);
        }
        1 => {
            let commit = db.transact_with(kiln::Isolation::Snapshot, both).unwrap_or_else(failed);
            let version = commit.version();
            sums.add(commit.forget(), version);
        }
        _ => loop {
            let old = db.get(map, "x").unwrap_or_else(failed);
            let sum = number(old.as_deref()) + 1;
            let swap = db.transact(|tx| {
                let swapped = tx.compare_and_set(map, "x", old.as_deref(), Some(&sum.to_le_bytes()))?;
                if swapped {
                    tx.put(table, "x", sum.to_le_bytes())?;
                }
                Ok(swapped)
            });
            let commit = swap.unwrap_or_else(failed);
            let version = commit.version();
            if commit.forget() {
                sums.add(sum, version);
                return;
            }
        },
    }
}

fn check_sum(database: &Database, expected: i64) {
    let Database { db, map, table, .. } = database;
    let sums = [
        number(db.get(map, "x").unwrap_or_else(failed).as_deref()),
        number(db.get(table, "x").unwrap_or_else(failed).as_deref()),
    ];
    assert_eq!(sums, [expected; 2], "an update was lost");
}

/// Three threads add to one counter in a map and in a table.
pub(super) fn in_a_map_and_a_table() {
    let (database, sums) = (Database::new(), Sums::default());
    let adders = (0..3).map(|_| {
        let (database, sums) = (database.clone(), sums.clone());
        thread(move || (0..2).for_each(|_| increment(&database, choose(3), &sums)))
    });
    together(adders.collect());
    check_sum(&database, 6);
    sums.check(6);
}

/// The same while versions close under them: records change from being updated in place to being copied and back.
pub(super) fn while_versions_close() {
    let (database, sums) = (Database::new(), Sums::default());
    let adders = (0..2).map(|_| {
        let (database, sums) = (database.clone(), sums.clone());
        thread(move || (0..2).for_each(|_| increment(&database, choose(3), &sums)))
    });
    let closer = {
        let db = database.db.clone();
        thread(move || {
            drop(db.snapshot().unwrap_or_else(failed));
            db.persist().unwrap_or_else(failed);
            drop(db.snapshot().unwrap_or_else(failed));
        })
    };
    together(adders.chain([closer]).collect());
    check_sum(&database, 4);
    sums.check(4);
}

/// Adds to a counter in one of the ways that are transactions of their own, or in a transaction with other keys.
fn increment_by_itself(database: &Database, way: u64, sums: &Sums) {
    let Database { db, map, table, .. } = database;
    let (sum, version) = match way {
        0 => {
            let commit = db.add(table, "x", 1).unwrap_or_else(failed);
            let version = commit.version();
            (commit.forget(), version)
        }
        1 => {
            let mut sum = 0;
            let commit = db.update(table, "x", |old| {
                sum = number(old) + 1;
                Some(sum.to_le_bytes())
            });
            (sum, commit.unwrap_or_else(failed).version())
        }
        2 => loop {
            let old = db.get(table, "x").unwrap_or_else(failed);
            let sum = number(old.as_deref()) + 1;
            let swap = db.compare_and_set(table, "x", old.as_deref(), Some(&sum.to_le_bytes()));
            let commit = swap.unwrap_or_else(failed);
            let version = commit.version();
            if commit.forget() {
                break (sum, version);
            }
        },
        _ => {
            let commit = db.transact(|tx| {
                tx.put(map, "other", "value")?;
                tx.add(table, "x", 1)
            });
            let commit = commit.unwrap_or_else(failed);
            let version = commit.version();
            (commit.forget(), version)
        }
    };
    sums.add(sum, version);
}

/// Three threads add to one counter by operations that are transactions of their own, while versions close.
pub(super) fn by_single_operations() {
    let (database, sums) = (Database::new(), Sums::default());
    let adders = (0..2).map(|_| {
        let (database, sums) = (database.clone(), sums.clone());
        thread(move || (0..2).for_each(|_| increment_by_itself(&database, choose(4), &sums)))
    });
    let closer = {
        let (database, sums) = (database.clone(), sums.clone());
        thread(move || {
            drop(database.db.snapshot().unwrap_or_else(failed));
            increment_by_itself(&database, choose(4), &sums);
            database.db.persist().unwrap_or_else(failed);
        })
    };
    together(adders.chain([closer]).collect());
    let Database { db, table, .. } = &database;
    let left = number(db.get(table, "x").unwrap_or_else(failed).as_deref());
    assert_eq!(left, 5, "an update was lost");
    sums.check(5);
}

/// A counter that is taken away, and whose deletion is forgotten, while others add to it: what was taken and what is left are
/// all that was added.
pub(super) fn while_the_key_is_deleted() {
    let database = Database::new();
    let adders = (0..2).map(|_| {
        let Database { db, table, .. } = database.clone();
        thread(move || {
            for _ in 0..2 {
                db.add(&table, "x", 1).unwrap_or_else(failed).forget();
            }
        })
    });
    let taker = {
        let Database { db, table, map, .. } = database.clone();
        thread(move || {
            for _ in 0..2 {
                let taken = db.transact(|tx| {
                    let there = number(tx.get(&table, "x")?.as_deref());
                    tx.delete(&table, "x")?;
                    tx.add(&map, "taken", there)
                });
                taken.unwrap_or_else(failed).forget();
                // Forgets the deletion, where nobody needs it any more.
                db.persist().unwrap_or_else(failed);
            }
        })
    };
    together(adders.chain([taker]).collect());
    let Database { db, table, map, .. } = &database;
    let left = number(db.get(table, "x").unwrap_or_else(failed).as_deref());
    let taken = number(db.get(map, "taken").unwrap_or_else(failed).as_deref());
    assert_eq!(left + taken, 4, "{left} are left and {taken} were taken");
    let rows = db.transact(|tx| Ok(tx.range::<&str>(table, ..).filter(Result::is_ok).count()));
    let rows = rows.unwrap_or_else(failed).forget();
    assert_eq!(rows, usize::from(left > 0), "the key is found, and its range is not as the key");
}
