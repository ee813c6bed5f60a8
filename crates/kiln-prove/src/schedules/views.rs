//! Views: nobody sees half of a commit, not even who will fail, and no snapshot cuts one in two.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use kiln::schedules::quietly;
use kiln::{Commit, Isolation};

use super::database::{Database, choose, failed, thread, together};

const SUM: i64 = 100;

fn number(value: Option<Vec<u8>>) -> i64 {
    let bytes = value.unwrap_or_else(|| panic!("a key is gone"));
    bytes.as_slice().try_into().map_or_else(|_| panic!("no counter"), i64::from_le_bytes)
}

/// `x` in the map and `y` in the table are so much together.
fn new_pair() -> Database {
    let database = Database::new();
    quietly(|| {
        let Database { db, map, table, .. } = &database;
        let put = db.transact(|tx| {
            tx.put(map, "x", SUM.to_le_bytes())?;
            tx.put(table, "y", 0_i64.to_le_bytes())
        });
        put.unwrap_or_else(failed).forget();
    });
    database
}

/// Moves some from one to the other.
fn mover(database: &Database, by: i64, rounds: usize) -> Box<dyn FnOnce() + Send> {
    let Database { db, map, table, .. } = database.clone();
    thread(move || {
        for _ in 0..rounds {
            let moved = db.transact(|tx| {
                tx.add(&map, "x", -by)?;
                tx.add(&table, "y", by)
            });
            moved.unwrap_or_else(failed).forget();
        }
    })
}

/// A reader beside two writers sees the sum in every attempt, whatever becomes of it.
pub(super) fn nobody_sees_half_of_a_commit() {
    let database = new_pair();
    let reader = {
        let Database { db, map, table, .. } = database.clone();
        thread(move || {
            for _ in 0..2 {
                let isolation = [Isolation::Serializable, Isolation::Snapshot][choose(2) as usize];
                let read = db.transact_with(isolation, |tx| {
                    let (x, y) = (number(tx.get(&map, "x")?), number(tx.get(&table, "y")?));
                    assert_eq!(x + y, SUM, "half of a commit was seen");
                    Ok(())
                });
                read.unwrap_or_else(failed).forget();
            }
        })
    };
    let closer = {
        let db = database.db.clone();
        thread(move || drop(db.snapshot().unwrap_or_else(failed)))
    };
    together(vec![mover(&database, 1, 2), mover(&database, 7, 1), reader, closer]);
}

/// Snapshots and durable reads, opened and read in the middle of everything.
pub(super) fn snapshots_are_cuts() {
    let database = new_pair();
    let reader = |durable: bool| {
        let Database { db, map, table, .. } = database.clone();
        thread(move || {
            for _ in 0..2 {
                let snapshot = if durable { db.durable_snapshot() } else { db.snapshot() };
                let snapshot = snapshot.unwrap_or_else(failed);
                if durable && !snapshot.contains(&map, "x").unwrap_or_else(failed) {
                    continue;
                }
                let x = number(snapshot.get(&map, "x").unwrap_or_else(failed));
                let y = number(snapshot.get(&table, "y").unwrap_or_else(failed));
                assert_eq!(x + y, SUM, "a snapshot has half of a commit");
                let again = number(snapshot.get(&map, "x").unwrap_or_else(failed));
                assert_eq!(x, again, "a snapshot has changed");
            }
        })
    };
    let hardener = {
        let db = database.db.clone();
        thread(move || db.persist().unwrap_or_else(failed))
    };
    together(vec![mover(&database, 1, 3), reader(false), reader(true), hardener]);
}

/// Whoever opens a snapshot sees a key or what took its place, though the deletion hardens, and is forgotten, meanwhile.
pub(super) fn a_snapshot_has_a_key_or_what_took_its_place() {
    let database = Database::new();
    quietly(|| {
        let Database { db, map, .. } = &database;
        db.put(map, "key", "there").unwrap_or_else(failed).forget();
        db.persist().unwrap_or_else(failed);
    });
    let replacer = {
        let Database { db, map, .. } = database.clone();
        thread(move || {
            let replaced = db.transact(|tx| {
                tx.delete(&map, "key")?;
                tx.put(&map, "place", "taken")
            });
            replaced.unwrap_or_else(failed).forget();
            // The first one hardens it, and then it can be forgotten.
            (0..2).for_each(|_| db.persist().unwrap_or_else(failed));
        })
    };
    let reader = || {
        let Database { db, map, .. } = database.clone();
        thread(move || {
            let snapshot = db.snapshot().unwrap_or_else(failed);
            let has = |key| snapshot.contains(&map, key).unwrap_or_else(failed);
            assert!(has("key") != has("place"), "what a snapshot sees was swept before it was held");
        })
    };
    together(vec![replacer, reader(), reader()]);
}

/// Two transactions that each count a range and insert into it if nobody has: one of them sees the other.
pub(super) fn two_do_not_miss_each_other() {
    let database = Database::new();
    let alone = Arc::new(AtomicU64::new(0));
    let inserters = (0..2).map(|who| {
        let (Database { db, table, .. }, alone) = (database.clone(), alone.clone());
        let with_key = choose(2) == 0;
        thread(move || {
            let inserted = db.transact(|tx| {
                let mut rows = 0;
                for row in tx.range::<&str>(&table, ..) {
                    row?;
                    rows += 1;
                }
                // A look at the other's key instead of a range is write skew, too.
                if with_key && tx.contains(&table, format!("key {}", 1 - who))? {
                    rows += 1;
                }
                if rows == 0 {
                    tx.put(&table, format!("key {who}"), "here")?;
                }
                Ok(rows == 0)
            });
            alone.fetch_add(u64::from(inserted.unwrap_or_else(failed).forget()), Ordering::SeqCst);
        })
    });
    together(inserters.collect());
    assert_eq!(alone.load(Ordering::SeqCst), 1, "both of two that exclude each other have committed");
}

/// The version of a commit.
fn end<T>(commit: kiln::Result<Commit<'_, T>>) -> u64 {
    let commit = commit.unwrap_or_else(failed);
    let version = commit.version().number();
    commit.forget();
    version
}

/// A transaction that reads a range, and an operation of its own that changes what is in it, one way or another: the versions of both say who has
/// come first, as the transaction has seen it.
pub(super) fn a_range_and_what_changes_beside_it_have_their_versions() {
    let database = Database::new();
    let before = vec![(b"there".to_vec(), b"old".to_vec())];
    quietly(|| database.db.put(&database.table, "there", "old").unwrap_or_else(failed).forget());
    let [seen_in, changed_in] = [(); 2].map(|()| Arc::new(AtomicU64::new(0)));
    let has_missed = Arc::new(AtomicBool::new(false));
    let reader = {
        let (Database { db, map, table, .. }, seen_in) = (database.clone(), seen_in.clone());
        let has_missed = has_missed.clone();
        thread(move || {
            let commit = db.transact(|tx| {
                let rows = tx.range::<&str>(&table, ..).collect::<kiln::Result<Vec<_>>>()?;
                tx.put(&map, "seen", [rows.len() as u8])?;
                Ok(rows == before)
            });
            let commit = commit.unwrap_or_else(failed);
            seen_in.store(commit.version().number(), Ordering::SeqCst);
            has_missed.store(commit.forget(), Ordering::SeqCst);
        })
    };
    let changer = {
        let (Database { db, table, .. }, changed_in) = (database.clone(), changed_in.clone());
        let way = choose(7);
        thread(move || {
            let version = match way {
                0 => end(db.put(&table, "new", "new")),
                1 => end(db.update(&table, "new", |_| Some(b"new".to_vec()))),
                2 => end(db.compare_and_set(&table, "new", None, Some(b"new"))),
                3 => end(db.put_many(&table, &[("new", "new")])),
                4 => end(db.delete(&table, "there")),
                5 => end(db.update(&table, "there", |_| None::<Vec<u8>>)),
                _ => end(db.compare_and_set(&table, "there", Some(b"old"), None)),
            };
            changed_in.store(version, Ordering::SeqCst);
        })
    };
    let closer = {
        let db = database.db.clone();
        thread(move || drop(db.snapshot().unwrap_or_else(failed)))
    };
    together(vec![reader, changer, closer]);
    let [seen, changed] = [seen_in, changed_in].map(|version| version.load(Ordering::SeqCst));
    match has_missed.load(Ordering::SeqCst) {
        true => assert!(seen <= changed, "of version {seen}, a range misses what is of version {changed}"),
        false => assert!(changed <= seen, "of version {seen}, a range has what is of version {changed}"),
    }
}

/// What a transaction counts of a range over two leaves, and what it reads in the midst of that, is of one state, while rows
/// come and go and are counted.
pub(super) fn a_range_over_two_leaves_is_of_one_state() {
    const ROWS: u64 = 32;
    let row = |number: u64| format!("row {number:02}");
    let database = new_pair();
    let Database { db, table, .. } = &database;
    // Downwards, so that leaves are half full, and the first one ends in the middle.
    quietly(|| {
        for number in (0..ROWS).rev() {
            db.put(table, row(number), "here").unwrap_or_else(failed).forget();
        }
        // So that the rows are older than the reader, and reading one is no reason to look again at what was read before.
        drop(db.snapshot().unwrap_or_else(failed));
    });
    let reader = {
        let Database { db, map, table, .. } = database.clone();
        thread(move || {
            let look_after = 4 + choose(10) as usize;
            let read = db.transact(|tx| {
                let mut range = tx.prefix(&table, "row").limit(2 * ROWS as usize);
                let (mut rows, mut taken) = (0, 0);
                while range.next_row()?.is_some() {
                    rows += 1;
                    if rows == look_after {
                        taken = SUM - number(tx.get(&map, "x")?);
                    }
                }
                assert_eq!(rows as u64, ROWS + taken as u64, "a range is of two states");
                Ok(())
            });
            read.unwrap_or_else(failed).forget();
        })
    };
    let writer = {
        let Database { db, map, table, .. } = database.clone();
        thread(move || {
            let put = db.transact(|tx| {
                tx.add(&map, "x", -1)?;
                tx.put(&table, format!("{} and more", row(ROWS - 3)), "new")
            });
            put.unwrap_or_else(failed).forget();
        })
    };
    together(vec![reader, writer]);
}

/// A snapshot has what was committed before it was opened, also when others have just opened some, and may have found that nothing
/// was being committed.
pub(super) fn a_snapshot_has_what_was_committed() {
    let database = Database::new();
    let writer = |key: &'static str| {
        let Database { db, map, .. } = database.clone();
        thread(move || {
            for number in 0..2_i64 {
                db.put(&map, key, number.to_le_bytes()).unwrap_or_else(failed).forget();
                let snapshot = db.snapshot().unwrap_or_else(failed);
                let read = snapshot.get(&map, key).unwrap_or_else(failed);
                assert_eq!(self::number(read), number, "a snapshot is too old");
            }
        })
    };
    let reader = {
        let db = database.db.clone();
        thread(move || (0..4).for_each(|_| drop(db.snapshot().unwrap_or_else(failed))))
    };
    together(vec![writer("one"), writer("two"), reader]);
}

/// What leaves the log's memory while somebody looks for it as of a snapshot, or walks over all there is, is found on disk.
pub(super) fn nothing_is_lost_as_it_leaves_memory() {
    let database = new_pair();
    let write = |database: &Database| {
        database.db.put(&database.table, "ballast", vec![0; 30 << 10]).unwrap_or_else(failed).forget();
        database.db.persist().unwrap_or_else(failed);
    };
    quietly(|| write(&database));
    let head = database.db.statistics().log_head;
    let reader = {
        let (Database { db, map, .. }, walks) = (database.clone(), choose(2) == 0);
        thread(move || {
            let snapshot = db.snapshot().unwrap_or_else(failed);
            for _ in 0..20 {
                match walks {
                    true => assert_eq!(snapshot.iter(&map).count(), 1, "a walk misses a key"),
                    false => assert_eq!(number(snapshot.get(&map, "x").unwrap_or_else(failed)), SUM),
                }
            }
        })
    };
    let writer = {
        let database = database.clone();
        thread(move || write(&database))
    };
    together(vec![writer, reader]);
    assert!(database.db.statistics().log_head > head, "nothing has left memory");
}
