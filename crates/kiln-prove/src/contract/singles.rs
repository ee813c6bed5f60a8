//! C1, C2, C5, C7: operations outside of transactions, step by step; `batches` has many of them at a time,
//! `singles_at_once` threads.
//!
//! Each is a transaction of its own, so whatever holds of a transaction with the same operation must hold of it.

use std::panic::{AssertUnwindSafe, catch_unwind};

use kiln::device::{Keep, SimulatedDevice};
use kiln::{Commit, ErrorKind, Kiln, Map, Object, Result, Table};

use crate::crash::reopen;
use crate::support::Random;
use crate::testing::{budget, seed};

pub(super) fn database() -> (SimulatedDevice, Kiln, Table, Map) {
    let disk = SimulatedDevice::new(seed());
    let db = reopen(&disk).unwrap();
    let (table, map) = (db.table("table").unwrap(), db.map("map").unwrap());
    (disk, db, table, map)
}

pub(super) fn number(value: &[u8]) -> i64 {
    i64::from_le_bytes(value.try_into().unwrap())
}

/// A key of the map which is in the same bucket of the index as this key of the table, which is there. It has a value then.
pub(super) fn key_beside(db: &Kiln, (table, key): (&Table, &str), map: &Map) -> [u8; 4] {
    let is_beside = |candidate: &[u8; 4]| {
        let watch = db.watch(table, key).unwrap();
        db.put(map, candidate, "beside").unwrap().forget();
        !db.begin().unwrap().require(&watch).unwrap()
    };
    // Twice: an insertion may have split the bucket.
    let mut candidates = (0..10_000_000_u32).map(u32::to_be_bytes);
    candidates.find(|candidate| is_beside(candidate) && is_beside(candidate)).expect("one of so many is")
}

/// In what state an operation meets a key.
#[derive(Clone, Copy, Debug)]
enum Before {
    Absent,
    /// In memory, in the current version.
    Hot,
    /// In memory, in a closed version.
    Closed,
    /// A tombstone.
    Deleted,
    /// Only on disk.
    Cold,
}

const ALL_BEFORE: [Before; 5] = [Before::Absent, Before::Hot, Before::Closed, Before::Deleted, Before::Cold];

/// Pushes everything that there is out of memory.
fn make_cold(db: &Kiln, map: &Map) {
    let end = db.statistics().log_tail;
    for round in 0_u32.. {
        db.put(map, "ballast", vec![round as u8; 8_000]).unwrap().forget();
        if round.is_multiple_of(8) {
            db.persist().unwrap();
            if db.statistics().log_head > end {
                return;
            }
        }
        assert!(round < 10_000, "the memory is never full");
    }
}

impl Before {
    /// Brings a key of the object there; gives its number, if it has one.
    fn make(self, db: &Kiln, ballast: &Map, object: &impl Object, key: &str) -> Option<i64> {
        if matches!(self, Before::Absent) {
            return None;
        }
        db.put(object, key, 5_i64.to_le_bytes()).unwrap().forget();
        match self {
            Before::Absent | Before::Hot => {}
            Before::Closed => drop(db.snapshot().unwrap()),
            Before::Deleted => {
                assert!(db.delete(object, key).unwrap().forget());
                return None;
            }
            Before::Cold => make_cold(db, ballast),
        }
        Some(5)
    }
}

/// A way to add one to a key outside of transactions. It calls between its look at the value and its write.
type Way<O> = fn(&Kiln, &O, &str, &mut dyn FnMut());

fn ways<O: Object>() -> [(&'static str, Way<O>); 4] {
    fn plus_one(old: Option<&[u8]>) -> [u8; 8] {
        (old.map_or(0, number) + 1).to_le_bytes()
    }
    [
        ("update", |db, object, key, between| {
            let update = db.update(object, key, |old| {
                let new = plus_one(old);
                between();
                Some(new)
            });
            update.unwrap().forget();
        }),
        ("update_into", |db, object, key, between| {
            let update = db.update_into(object, key, |old, new| {
                assert!(new.is_empty());
                new.extend_from_slice(&plus_one(old));
                between();
                true
            });
            update.unwrap().forget();
        }),
        ("update_many", |db, object, key, between| {
            let update = db.update_many(object, &[key], |at, old, new| {
                assert_eq!((at, new.len()), (0, 0));
                new.extend_from_slice(&plus_one(old));
                between();
                true
            });
            update.unwrap().forget();
        }),
        ("compare_and_set", |db, object, key, between| {
            loop {
                let old = db.get(object, key).unwrap();
                let new = plus_one(old.as_deref());
                between();
                if db.compare_and_set(object, key, old.as_deref(), Some(&new)).unwrap().forget() {
                    return;
                }
            }
        }),
    ]
}

/// Between the look at the value and its replacement the key is changed, once, in every way; whatever the key was before.
#[test]
fn c2_a_change_between_the_look_and_the_write_is_not_lost() {
    let (_, db, table, map) = database();
    for before in ALL_BEFORE {
        for way in 0..4 {
            each_change(&db, &map, &table, before, ways::<Table>()[way]);
            each_change(&db, &map, &map, before, ways::<Map>()[way]);
        }
    }
    let report = db.check().unwrap();
    assert!(report.problems.is_empty(), "{report}");
}

fn each_change<O: Object>(db: &Kiln, ballast: &Map, object: &O, before: Before, (name, way): (&str, Way<O>)) {
    for change in ["add", "put", "delete", "delete and put", "transact", "close", "nothing"] {
        let key = format!("{name} {before:?} {change}");
        let first = before.make(db, ballast, object, &key);
        let (mut looks, mut expected) = (0, first.unwrap_or(0) + 1);
        let mut between = || {
            looks += 1;
            if looks > 1 {
                return;
            }
            match change {
                "add" => {
                    db.add(object, &key, 100).unwrap().forget();
                    expected += 100;
                }
                "put" => {
                    db.put(object, &key, 7_i64.to_le_bytes()).unwrap().forget();
                    expected = 8;
                }
                "delete" => {
                    db.delete(object, &key).unwrap().forget();
                    expected = 1;
                }
                "delete and put" => {
                    db.delete(object, &key).unwrap().forget();
                    db.put(object, &key, 7_i64.to_le_bytes()).unwrap().forget();
                    expected = 8;
                }
                "transact" => {
                    let both = db.transact(|tx| {
                        tx.put(ballast, "other", "value")?;
                        tx.add(object, &key, 10)
                    });
                    both.unwrap().forget();
                    expected += 10;
                }
                "close" => db.persist().unwrap(),
                _ => {}
            }
        };
        way(db, object, &key, &mut between);
        assert_eq!(number(&db.get(object, &key).unwrap().unwrap()), expected, "{key}");
    }
}

/// What an operation that may fail has led to.
fn outcome<T>(result: Result<Commit<'_, T>>) -> std::result::Result<T, (ErrorKind, String)> {
    result.map(Commit::forget).map_err(|error| (error.kind(), error.to_string()))
}

/// One random operation, by itself on one database and in a transaction on the other.
fn compare<O: Object>(alone: (&Kiln, &O), in_transaction: (&Kiln, &O), random: &mut Random) {
    let ((db, object), (other, twin)) = (alone, in_transaction);
    let key = random.below(60).to_be_bytes();
    let key = &key[..if random.one_in(40) { 0 } else { 8 }];
    let long = if random.one_in(200) { 60_000 } else { 3_000 };
    let bytes = *random.pick(&[0, 7, 8, 8, 8, long]);
    let value = random.bytes(bytes);
    match random.below(6) {
        0 => {
            let delta = *random.pick(&[1, -1, i64::MAX, i64::MIN]);
            let [by_itself, within] =
                [outcome(db.add(object, key, delta)), outcome(other.transact(|tx| tx.add(twin, key, delta)))];
            assert_eq!(by_itself, within);
        }
        1 | 2 => {
            let new = (!random.one_in(3)).then_some(&value);
            let change =
                |old: Option<&[u8]>| new.map(|new| [old.map_or(0, <[u8]>::len) as u8, new.len() as u8]);
            assert_eq!(
                outcome(db.update(object, key, change)),
                outcome(other.transact(|tx| tx.update(twin, key, change)))
            );
            let into = |_: Option<&[u8]>, buffer: &mut Vec<u8>| {
                buffer.extend_from_slice(&value);
                new.is_some()
            };
            assert_eq!(
                outcome(db.update_into(object, key, into)),
                outcome(other.transact(|tx| tx.update_into(twin, key, into)))
            );
        }
        3 => {
            let there = db.get(object, key).unwrap();
            let expected = if random.one_in(2) { there } else { Some(random.bytes(8)) };
            let new = (!random.one_in(3)).then_some(value.as_slice());
            assert_eq!(
                outcome(db.compare_and_set(object, key, expected.as_deref(), new)),
                outcome(other.transact(|tx| tx.compare_and_set(twin, key, expected.as_deref(), new)))
            );
        }
        4 => assert_eq!(
            outcome(db.put(object, key, &value)),
            outcome(other.transact(|tx| tx.put(twin, key, &value)))
        ),
        _ => assert_eq!(outcome(db.delete(object, key)), outcome(other.transact(|tx| tx.delete(twin, key)))),
    }
    let seen = db.get_with(object, key, |value| value.map(<[u8]>::to_vec)).unwrap();
    assert_eq!(seen, other.get(twin, key).unwrap());
    assert_eq!(object.len(), twin.len());
}

/// The same operation by itself and in a transaction: the same results, the same errors, the same keys. The memory is small,
/// so that most values are on disk, and there is no log space at times.
#[test]
fn c1_operations_by_themselves_do_what_they_do_in_transactions() {
    let ((_, db, table, map), (_, other, its_table, its_map)) = (database(), database());
    let mut random = Random::new(seed());
    for _ in 0..budget(6_000) {
        match random.one_in(2) {
            true => compare((&db, &table), (&other, &its_table), &mut random),
            false => compare((&db, &map), (&other, &its_map), &mut random),
        }
        if random.one_in(100) {
            db.persist().unwrap();
            other.persist().unwrap();
        }
    }
    let (ours, its) = (db.snapshot().unwrap(), other.snapshot().unwrap());
    let rows = |rows: kiln::SnapshotRange<'_>| rows.collect::<Result<Vec<_>>>().unwrap();
    assert_eq!(rows(ours.range::<&[u8]>(&table, ..)), rows(its.range::<&[u8]>(&its_table, ..)));
    drop((ours, its));
    let report = db.check().unwrap();
    assert!(report.problems.is_empty(), "{report}");
}

#[test]
fn c2_a_closure_may_use_the_database_and_holds_up_neither_writers_nor_hardening() {
    let (_, db, table, map) = database();
    db.put(&table, "key", "value").unwrap().safe().unwrap();
    let meddle = |inner: &str| {
        // None of these could end if something were locked or pinned; and the value in hand must stay what it is.
        std::thread::scope(|scope| {
            let writer = scope.spawn(|| db.put(&table, inner, "other").unwrap().safe().unwrap());
            writer.join().unwrap();
        });
        db.persist().unwrap();
        db.add(&map, "nested", 1).unwrap().safe().unwrap();
        db.update_into(&map, "also", |_, new| {
            new.extend_from_slice(b"inner");
            db.get_with(&map, "nested", |value| value.is_some()).unwrap()
        })
        .unwrap()
        .forget();
    };
    db.get_with(&table, "key", |value| {
        meddle("one");
        assert_eq!(value, Some(&b"value"[..]));
    })
    .unwrap();
    db.get_many(&table, &["one", "key", "none"], |at, value| {
        meddle("two");
        assert_eq!(value, [Some(&b"other"[..]), Some(b"value"), None][at]);
    })
    .unwrap();
    let update = db.update(&table, "key", |old| {
        meddle("three");
        assert_eq!(old, Some(&b"value"[..]));
        Some("new")
    });
    update.unwrap().safe().unwrap();
    assert_eq!(db.get(&table, "key").unwrap().as_deref(), Some(&b"new"[..]));
    assert_eq!(number(&db.get(&map, "nested").unwrap().unwrap()), 5);
}

#[test]
fn c1_a_closure_that_panics_leaves_nothing_behind() {
    let (_, db, table, map) = database();
    let panics = |run: &dyn Fn()| assert!(catch_unwind(AssertUnwindSafe(run)).is_err());
    db.put(&table, "key", "value").unwrap().forget();
    db.add(&map, "key", 1).unwrap().forget();
    panics(&|| drop(db.update::<_, Vec<u8>>(&table, "key", |_| panic!("the caller's"))));
    panics(&|| {
        drop(db.update_into(&map, "key", |_, new| {
            new.extend_from_slice(b"half");
            panic!("the caller's")
        }))
    });
    panics(&|| drop(db.get_with(&table, "key", |_| panic!("the caller's"))));
    panics(&|| db.get_many(&table, &["none", "key"], |at, _| assert_eq!(at, 0)).unwrap());
    panics(&|| {
        drop(db.update_many(&map, &["key", "new"], |at, old, new| {
            assert_eq!(at, 0);
            new.extend_from_slice(old.unwrap());
            true
        }))
    });
    // Nothing is locked, nothing is pinned, nothing was written.
    db.persist().unwrap();
    assert_eq!(db.get(&table, "key").unwrap().as_deref(), Some(&b"value"[..]));
    assert_eq!(db.add(&map, "key", 1).unwrap().safe().unwrap(), 2);
    assert_eq!((table.len(), map.len()), (1, 1));
}

/// A key that comes, goes, or changes by an operation by itself is seen by whoever has read its range, and by who watches it.
#[test]
fn c2_single_operations_are_phantoms_to_ranges_and_changes_to_watches() {
    let (_, db, table, map) = database();
    type Deed = fn(&Kiln, &Table);
    let deeds: [(&str, Deed); 8] = [
        ("put", |db, table| db.put(table, "m", "new").unwrap().forget()),
        ("add", |db, table| assert_eq!(db.add(table, "m", 1).unwrap().forget(), 1)),
        ("update", |db, table| db.update(table, "m", |_| Some("new")).unwrap().forget()),
        ("compare_and_set", |db, table| {
            assert!(db.compare_and_set(table, "m", None, Some(b"new")).unwrap().forget());
        }),
        ("put_many", |db, table| db.put_many(table, &[("m", "new"), ("n", "new")]).unwrap().forget()),
        ("add_many", |db, table| db.add_many(table, &[("m", 1), ("m", 1)]).unwrap().forget()),
        ("update_many", |db, table| db.update_many(table, &["m"], |_, _, _| true).unwrap().forget()),
        ("delete", |db, table| db.update::<_, &str>(table, "z", |_| None).unwrap().forget()),
    ];
    for (name, deed) in deeds {
        for reverse in [false, true] {
            for key in ["m", "n"] {
                db.delete(&table, key).unwrap().forget();
            }
            db.put_many(&table, &[("a", "first"), ("z", "last")]).unwrap().forget();
            let watched = if name == "delete" { "z" } else { "m" };
            let watch = db.watch(&table, watched).unwrap();
            let (tx, reader) = (db.begin().unwrap(), db.begin().unwrap());
            for tx in [&tx, &reader] {
                let range = tx.range::<&[u8]>(&table, ..);
                assert_eq!(if reverse { range.reverse().count() } else { range.count() }, 2);
            }
            tx.put(&map, "counted", "2").unwrap();
            deed(&db, &table);
            assert!(tx.commit().unwrap_err().is_conflict(), "{name}: a phantom");
            // One that only reads is of the moment before.
            reader.commit().unwrap().forget();
            assert!(!db.begin().unwrap().require(&watch).unwrap(), "{name}: not seen by a watch");
        }
    }
    // What changes nothing is nobody's conflict.
    let tx = db.begin().unwrap();
    assert_eq!(tx.get(&table, "none").unwrap(), None);
    tx.put(&map, "counted", "0").unwrap();
    assert!(!db.compare_and_set(&table, "none", Some(b"x"), Some(b"y")).unwrap().forget());
    assert!(db.compare_and_set(&table, "none", None, None).unwrap().forget());
    db.update::<_, &str>(&table, "none", |old| old.map(|_| "never")).unwrap().forget();
    tx.commit().unwrap().forget();
}

#[test]
fn c8_after_a_close_single_operations_are_refused_and_reads_go_on() {
    let (_, db, table, _) = database();
    db.add(&table, "key", 1).unwrap().safe().unwrap();
    db.close().unwrap();
    let kind = |result: Result<()>| result.unwrap_err().kind();
    assert_eq!(kind(db.add(&table, "key", 1).map(drop)), ErrorKind::Aborted);
    assert_eq!(kind(db.update(&table, "key", |_| Some("new")).map(drop)), ErrorKind::Aborted);
    assert_eq!(kind(db.put_many(&table, &[("key", "new")]).map(drop)), ErrorKind::Aborted);
    assert!(!db.compare_and_set(&table, "key", None, None).unwrap().forget());
    assert_eq!(db.get_with(&table, "key", |value| value.map(number)).unwrap(), Some(1));
}

#[test]
fn c7_a_sessions_single_operations_take_serials_that_survive_as_they_do() {
    let (disk, db, table, map) = database();
    let session = db.session("client").unwrap();
    session.put(&table, "a", "1").unwrap().forget();
    assert_eq!(session.add(&map, "n", 2).unwrap().forget(), 2);
    session.update(&map, "u", |old| old.is_none().then_some("new")).unwrap().forget();
    session
        .update_into(&map, "u", |old, new| {
            new.extend_from_slice(old.unwrap());
            new.push(b'!');
            true
        })
        .unwrap()
        .forget();
    assert!(session.compare_and_set(&table, "c", None, Some(b"1")).unwrap().forget());
    // What changes nothing is an operation of the client's, too.
    assert!(!session.compare_and_set(&table, "c", None, Some(b"2")).unwrap().forget());
    assert!(!session.delete(&table, "none").unwrap().forget());
    assert_eq!(session.serial(), 7);
    // What fails takes none.
    assert_eq!(session.add(&map, "u", 1).map(drop).unwrap_err().kind(), ErrorKind::Input);
    assert_eq!(session.serial(), 7);
    session.put_many(&table, &[("a", "2"), ("b", "2"), ("a", "3")]).unwrap().safe().unwrap();
    assert_eq!((session.serial(), session.durable_serial().unwrap()), (10, 10));
    // Of a batch that fails those before have their numbers.
    let failed = session.add_many(&map, &[("n", 1), ("n", 1), ("u", 1), ("n", 1)]).map(drop);
    assert_eq!((failed.unwrap_err().kind(), session.serial()), (ErrorKind::Input, 12));
    drop(db.snapshot().unwrap());
    session.put(&table, "late", "lost").unwrap().forget();
    disk.crash_after(disk.steps());
    drop((session, db, table, map));

    let db = reopen(&disk.after_crash(&mut |_| Keep::Lost)).unwrap();
    let (table, map) = (db.table("table").unwrap(), db.map("map").unwrap());
    let session = db.session("client").unwrap();
    assert_eq!(session.recovered_serial(), 10);
    assert_eq!(db.get(&table, "a").unwrap().as_deref(), Some(&b"3"[..]));
    assert_eq!(db.get(&table, "late").unwrap(), None);
    assert_eq!(db.get(&map, "u").unwrap().as_deref(), Some(&b"new!"[..]));
    assert_eq!(db.get_with(&map, "n", |sum| sum.map(number)).unwrap(), Some(2));
    assert_eq!(session.add(&map, "n", 1).unwrap().safe().unwrap(), 3);
    assert_eq!(session.durable_serial().unwrap(), 11);
}

/// A closure that writes a key of the same bucket had itself run again for ever.
#[test]
fn c2_a_closure_that_writes_beside_its_key_runs_once_for_each_value_of_that() {
    let (_disk, db, table, map) = database();
    db.put(&table, "key", "value").unwrap().forget();
    let beside = key_beside(&db, (&table, "key"), &map);
    let mut runs = 0;
    let longer = |old: Option<&[u8]>, others: &mut dyn FnMut()| {
        others();
        Some([old.unwrap_or_default(), b"!"].concat())
    };
    db.update(&table, "key", |old| {
        runs += 1;
        assert!(runs < 100, "it runs again for what it has written itself");
        longer(old, &mut || db.put(&map, beside, "changed").unwrap().forget())
    })
    .unwrap()
    .forget();
    assert_eq!((runs, db.get(&table, "key").unwrap().as_deref()), (1, Some(&b"value!"[..])));
    // Of what others make of the key meanwhile it is told.
    db.update(&table, "key", |old| {
        runs += 1;
        let others = || {
            if runs < 5 {
                db.put(&table, "key", format!("value {runs}")).unwrap().forget();
            }
        };
        longer(old, &mut { others })
    })
    .unwrap()
    .forget();
    assert_eq!((runs, db.get(&table, "key").unwrap().as_deref()), (5, Some(&b"value 4!"[..])));
}
