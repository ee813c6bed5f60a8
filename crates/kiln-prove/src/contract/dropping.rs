//! C2, C4: an object that is dropped is there for nobody, but for snapshots from before, whatever others do at the same time.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use kiln::device::{Keep, SimulatedDevice};
use kiln::{Error, ErrorKind, Expiry, Isolation, Kiln, Map, Object, Snapshot, Table, check_on};

use crate::crash::reopen;
use crate::support::manual;
use crate::testing::{PATIENCE, background, budget, eventually, seed, watched};

pub(super) const ROWS: u32 = 300;

pub(super) fn key(number: u32) -> [u8; 4] {
    number.to_be_bytes()
}

pub(super) fn value(number: u32) -> Vec<u8> {
    vec![number as u8; 40 + number as usize % 30]
}

pub(super) fn fill(db: &Kiln, object: &impl Object) {
    for number in 0..ROWS {
        db.put(object, key(number), value(number)).unwrap().forget();
    }
}

/// A small database with a filled map and a filled table.
pub(super) fn filled(db: &Kiln) -> (Map, Table) {
    let (map, table) = (db.map("map").unwrap(), db.table("table").unwrap());
    fill(db, &map);
    fill(db, &table);
    (map, table)
}

pub(super) fn open(seed: u64) -> (SimulatedDevice, Kiln) {
    let disk = SimulatedDevice::new(seed);
    let db = manual().open_on(Arc::new(disk.clone())).unwrap();
    (disk, db)
}

/// Both objects as of a snapshot, row for row, by every way of reading.
pub(super) fn assert_all_there(snapshot: &Snapshot<'_>, map: &Map, table: &Table, context: &str) {
    for number in 0..ROWS {
        assert_eq!(snapshot.get(map, key(number)).unwrap(), Some(value(number)), "{context}: {number}");
        assert_eq!(snapshot.get(table, key(number)).unwrap(), Some(value(number)), "{context}: {number}");
    }
    assert_eq!(snapshot.iter(map).map(Result::unwrap).count(), ROWS as usize, "{context}");
    let rows: Vec<_> = snapshot.range::<&[u8]>(table, ..).map(Result::unwrap).collect();
    let expected: Vec<_> = (0..ROWS).map(|number| (key(number).to_vec(), value(number))).collect();
    assert_eq!(rows, expected, "{context}");
    assert_eq!(snapshot.last(table).unwrap().unwrap().0, key(ROWS - 1), "{context}");
}

pub(super) fn assert_dropped<T>(result: kiln::Result<T>, what: &str) {
    let error = result.map(drop).expect_err(what);
    assert_eq!(error.kind(), ErrorKind::NotFound, "{what}: {error}");
    assert!(error.to_string().contains("was dropped"), "{what}: {error}");
}

/// What every operation says of an object that was dropped. A key of it that was there, and one that was not.
fn assert_refused(db: &Kiln, object: &impl Object) {
    let session = db.session("session").unwrap();
    for key in [key(7), key(ROWS + 7)] {
        assert_dropped(db.get(object, key), "get");
        assert_dropped(db.get_into(object, key, &mut Vec::new()), "get_into");
        assert_dropped(db.get_with(object, key, |_| ()), "get_with");
        assert_dropped(db.get_many(object, &[key], |_, _| ()), "get_many");
        assert_dropped(db.get_async(object, key).wait(), "get_async");
        assert_dropped(db.put(object, key, "v"), "put");
        assert_dropped(db.put_expiring(object, key, "v", Expiry::Never), "put_expiring");
        assert_dropped(db.delete(object, key), "delete");
        assert_dropped(db.add(object, key, 1), "add");
        assert_dropped(db.update(object, key, |_| Some("v")), "update");
        assert_dropped(db.update(object, key, |_| None::<&str>), "update to nothing");
        assert_dropped(db.compare_and_set(object, key, None, Some(b"v")), "compare_and_set");
        assert_dropped(
            db.compare_and_set(object, key, Some(b"other"), Some(b"v")),
            "compare_and_set, differs",
        );
        assert_dropped(db.put_many(object, &[(key, "v")]), "put_many");
        assert_dropped(db.add_many(object, &[(key, 1)]), "add_many");
        assert_dropped(db.update_many(object, &[key], |_, _, _| false), "update_many");
        assert_dropped(db.expiry(object, key), "expiry");
        assert_dropped(db.set_expiry(object, key, Expiry::Never), "set_expiry");
        assert_dropped(db.watch(object, key), "watch");
        assert_dropped(session.get(object, key), "a session's get");
        assert_dropped(session.put(object, key, "v"), "a session's put");
        assert_dropped(session.delete(object, key), "a session's delete");
        for isolation in [Isolation::Serializable, Isolation::Snapshot] {
            let run = |act: &dyn Fn(&kiln::Transaction<'_>) -> kiln::Result<()>| {
                db.transact_with(isolation, |tx| act(tx)).map(drop)
            };
            assert_dropped(run(&|tx| tx.get(object, key).map(drop)), "tx.get");
            assert_dropped(run(&|tx| tx.put(object, key, "v")), "tx.put");
            assert_dropped(run(&|tx| tx.delete(object, key).map(drop)), "tx.delete");
            assert_dropped(run(&|tx| tx.contains(object, key).map(drop)), "tx.contains");
            assert_dropped(run(&|tx| tx.add(object, key, 1).map(drop)), "tx.add");
            assert_dropped(run(&|tx| tx.multi_get(object, &[key]).map(drop)), "tx.multi_get");
            assert_dropped(run(&|tx| tx.expiry(object, key).map(drop)), "tx.expiry");
        }
        assert_dropped(db.snapshot().unwrap().get(object, key), "a new snapshot's get");
        assert_dropped(db.snapshot().unwrap().expiry(object, key), "a new snapshot's expiry");
    }
    assert_eq!(session.serial(), 0, "what is refused takes no serial number");
    assert_eq!(object.len(), 0);
    assert!(object.is_empty());
    assert!(db.objects().iter().all(|info| info.name != object.name()));
}

fn assert_map_refused(db: &Kiln, map: &Map) {
    assert_refused(db, map);
    assert_eq!(map.len_estimate(), 0);
    assert_dropped(db.scan_map(map, 0, 10), "scan_map");
    assert_dropped(db.snapshot().unwrap().iter(map).next().unwrap(), "iter");
}

fn assert_table_refused(db: &Kiln, table: &Table) {
    assert_refused(db, table);
    assert_eq!(table.len_estimate::<&[u8]>(..), 0);
    for isolation in [Isolation::Serializable, Isolation::Snapshot] {
        let first = |table: &Table| db.transact_with(isolation, |tx| tx.first(table)).map(drop);
        let last = |table: &Table| db.transact_with(isolation, |tx| tx.last(table)).map(drop);
        let range = |table: &Table| {
            db.transact_with(isolation, |tx| tx.prefix(table, [0]).next().transpose()).map(drop)
        };
        let delete =
            |table: &Table| db.transact_with(isolation, |tx| tx.delete_range::<&[u8]>(table, ..)).map(drop);
        assert_dropped(first(table), "first");
        assert_dropped(last(table), "last");
        assert_dropped(range(table), "prefix");
        assert_dropped(delete(table), "delete_range");
    }
    let snapshot = db.snapshot().unwrap();
    assert_dropped(snapshot.range::<&[u8]>(table, ..).next().unwrap(), "a new snapshot's range");
    assert_dropped(snapshot.first(table), "a new snapshot's first");
}

#[test]
fn c2_a_dropped_object_is_there_for_nobody_before_its_rows_have_gone_and_afterwards() {
    let (_, db) = open(seed());
    let (map, table) = filled(&db);
    let held = db.snapshot().unwrap();
    db.drop_map("map").unwrap().forget();
    db.drop_table("table").unwrap().forget();
    assert_map_refused(&db, &map);
    assert_table_refused(&db, &table);
    drop(held);
    db.persist().unwrap();
    assert_eq!(db.statistics().dropping, 0);
    assert_eq!(db.statistics().dropped_rows, 2 * u64::from(ROWS));
    assert_map_refused(&db, &map);
    assert_table_refused(&db, &table);
    assert_eq!(db.drop_map("map").unwrap_err().kind(), ErrorKind::NotFound, "there is none");
    assert!(db.check().unwrap().is_clean());
}

#[test]
fn c2_snapshots_from_before_a_drop_see_the_object_until_they_end() {
    for settles in [false, true] {
        let (disk, db) = open(seed());
        let (map, table) = filled(&db);
        if settles {
            db.settle().unwrap();
        }
        let before = db.snapshot().unwrap();
        db.create_snapshot("named").unwrap();
        db.drop_map("map").unwrap().safe().unwrap();
        db.drop_table("table").unwrap().safe().unwrap();
        // Another one has the name.
        let (other_map, other_table) = (db.table("map").unwrap(), db.map("table").unwrap());
        db.put(&other_map, key(1), "other").unwrap().forget();
        db.put(&other_table, key(1), "other").unwrap().forget();
        for _ in 0..3 {
            db.persist().unwrap();
            db.settle().unwrap();
            db.compact(|_| {}).unwrap();
            db.checkpoint().unwrap();
        }
        assert_eq!(db.statistics().dropping, 2);
        assert_all_there(&before, &map, &table, "open");
        let named = db.open_snapshot("named").unwrap();
        assert_all_there(&named, &map, &table, "named");
        assert_all_there(&named, &named.map("map").unwrap(), &named.table("table").unwrap(), "by name");
        let now = db.snapshot().unwrap();
        assert_eq!(now.map("map").unwrap_err().kind(), ErrorKind::Input, "it is a table now");
        assert_eq!(now.get(&now.table("map").unwrap(), key(1)).unwrap().as_deref(), Some(&b"other"[..]));
        assert!(db.check().unwrap().is_clean(), "{:?}", db.check().unwrap().problems);
        drop((before, now, named, map, table, other_map, other_table));
        let (disk, db) = again(disk, db);
        let named = db.open_snapshot("named").unwrap();
        assert_all_there(&named, &named.map("map").unwrap(), &named.table("table").unwrap(), "reopened");
        assert_eq!(db.statistics().dropping, 2, "they are held");
        drop(named);
        db.drop_snapshot("named").unwrap();
        db.persist().unwrap();
        db.persist().unwrap();
        assert_eq!(db.statistics().dropping, 0);
        let (_, db) = again(disk, db);
        // Of what the log still has opening finds the rows again, and they go again.
        db.persist().unwrap();
        assert_eq!(db.statistics().dropping, 0);
        assert!(db.check().unwrap().is_clean(), "{:?}", db.check().unwrap().problems);
        assert_eq!(db.objects().len(), 2);
    }
}

/// The database, closed, checked and opened again.
pub(super) fn again(disk: SimulatedDevice, db: Kiln) -> (SimulatedDevice, Kiln) {
    db.close().unwrap();
    drop(db);
    let report = check_on(Arc::new(disk.clone())).unwrap();
    assert!(report.is_clean(), "{report}");
    let db = reopen(&disk).unwrap();
    (disk, db)
}

#[test]
fn c2_a_transaction_that_has_used_an_object_conflicts_once_that_is_dropped() {
    let (_, db) = open(seed());
    let other = db.map("other").unwrap();
    type Use = fn(&kiln::Transaction<'_>, &Map) -> kiln::Result<()>;
    let uses: [(&str, Use); 5] = [
        ("read", |tx, map| tx.get(map, key(1)).map(drop)),
        ("read of nothing", |tx, map| tx.get(map, key(ROWS)).map(drop)),
        ("write", |tx, map| tx.put(map, key(1), "v")),
        ("deletion", |tx, map| tx.delete(map, key(1)).map(drop)),
        ("outline", |tx, map| tx.value_bytes(map, key(1)).map(drop)),
    ];
    for (what, act) in uses {
        let map = db.map("map").unwrap();
        fill(&db, &map);
        let tx = db.begin().unwrap();
        act(&tx, &map).unwrap();
        tx.put(&other, "key", what).unwrap();
        db.drop_map("map").unwrap().forget();
        let error = tx.commit().unwrap_err();
        assert!(error.is_conflict(), "{what}: {error}");
        assert_eq!(db.get(&other, "key").unwrap(), None, "{what}");
    }
}

/// Who has seen rows of an object, and then what was written after it was dropped, would have seen two states at once.
#[test]
fn c2_nobody_sees_an_object_and_what_was_written_after_it_was_dropped() {
    let (_, db) = open(seed());
    let other = db.map("other").unwrap();
    let (map, table) = filled(&db);
    for number in 0..40 {
        db.put(&other, key(number), "before").unwrap().forget();
    }
    let (of_map, of_table) = (db.begin().unwrap(), db.begin().unwrap());
    assert!(of_map.get(&map, key(1)).unwrap().is_some());
    assert!(of_table.first(&table).unwrap().is_some());
    // One that has only read, and one that asks for the object once more.
    let asks = db.begin().unwrap();
    assert!(asks.get(&map, key(1)).unwrap().is_some());
    db.drop_map("map").unwrap().forget();
    db.drop_table("table").unwrap().forget();
    db.put(&other, "key", "after").unwrap().forget();
    for tx in [of_map, of_table] {
        assert!(tx.get(&other, "key").unwrap_err().is_conflict());
    }
    assert!(asks.get(&map, key(2)).unwrap_err().is_conflict());
    // One that has not used it is told.
    let tx = db.begin().unwrap();
    assert_eq!(tx.get(&other, "key").unwrap().as_deref(), Some(&b"after"[..]));
    assert_dropped(tx.get(&map, key(1)), "get");
    tx.put(&other, "key", "went on").unwrap();
    tx.commit().unwrap().forget();
}

/// To write to an object is to have seen that it is there.
#[test]
fn c2_nobody_who_has_written_to_an_object_sees_what_was_written_after_it_was_dropped() {
    let (_, db) = open(seed());
    let other = db.map("other").unwrap();
    let (map, table) = filled(&db);
    for (name, is_map) in [("map", true), ("table", false)] {
        let tx = db.begin().unwrap();
        match is_map {
            true => tx.put(&map, "key", "value").and_then(|()| db.drop_map(name)).unwrap().forget(),
            false => tx.put(&table, "key", "value").and_then(|()| db.drop_table(name)).unwrap().forget(),
        }
        db.put(&other, "key", "after").unwrap().forget();
        assert!(tx.get(&other, "key").unwrap_err().is_conflict(), "{name}");
    }
}

#[test]
fn c2_under_snapshot_isolation_reads_go_on_and_writes_conflict() {
    let (_, db) = open(seed());
    let (map, table) = filled(&db);
    let other = db.map("other").unwrap();
    let reads = db.begin_with(Isolation::Snapshot).unwrap();
    let writes = db.begin_with(Isolation::Snapshot).unwrap();
    db.drop_map("map").unwrap().safe().unwrap();
    db.drop_table("table").unwrap().safe().unwrap();
    db.persist().unwrap();
    assert_eq!(reads.get(&map, key(3)).unwrap(), Some(value(3)));
    assert_eq!(reads.range::<&[u8]>(&table, ..).count(), ROWS as usize);
    reads.put(&other, "read", "it").unwrap();
    reads.commit().unwrap().forget();
    writes.put(&map, key(3), "v").unwrap();
    assert!(writes.commit().unwrap_err().is_conflict());
    let mut runs = 0;
    let run = db.transact_with(Isolation::Snapshot, |tx| {
        runs += 1;
        tx.put(&map, key(3), "v")
    });
    assert_dropped(run.map(drop), "a write");
    assert_eq!(runs, 1);
}

#[test]
fn c2_a_watched_key_of_a_dropped_object_has_changed() {
    let (_, db) = open(seed());
    let (map, _) = filled(&db);
    let other = db.map("other").unwrap();
    let watch = db.watch(&map, key(1)).unwrap();
    let before = db.begin().unwrap();
    assert!(before.require(&watch).unwrap());
    before.put(&other, "key", "v").unwrap();
    let held = db.snapshot().unwrap();
    db.drop_map("map").unwrap().forget();
    assert!(before.commit().unwrap_err().is_conflict());
    let after = db.begin().unwrap();
    assert!(!after.require(&watch).unwrap());
    drop(held);
}

#[test]
fn a_name_is_free_once_its_object_is_dropped_and_a_number_never() {
    let disk = SimulatedDevice::new(seed());
    let mut db = manual().open_on(Arc::new(disk.clone())).unwrap();
    for round in 0..6 {
        assert_eq!(db.drop_map("name").unwrap_err().kind(), ErrorKind::NotFound);
        assert_eq!(db.drop_table("").unwrap_err().kind(), ErrorKind::Input);
        let (old_map, old_table) = match round % 2 {
            0 => {
                let map = db.map("name").unwrap();
                fill(&db, &map);
                assert_eq!(db.drop_table("name").unwrap_err().kind(), ErrorKind::Input);
                assert_eq!(map.len(), u64::from(ROWS));
                db.drop_map("name").unwrap().forget();
                (Some(map), None)
            }
            _ => {
                let table = db.table("name").unwrap();
                fill(&db, &table);
                assert_eq!(db.drop_map("name").unwrap_err().kind(), ErrorKind::Input);
                db.drop_table("name").unwrap().forget();
                (None, Some(table))
            }
        };
        // The next one is empty, and of the other kind.
        match round % 2 {
            0 => assert_eq!(db.table("name").unwrap().len(), 0),
            _ => assert_eq!(db.map("name").unwrap().len(), 0),
        }
        old_map.iter().for_each(|map| assert_dropped(db.get(map, key(1)), "an old handle"));
        old_table.iter().for_each(|table| assert_dropped(db.get(table, key(1)), "an old handle"));
        match round % 2 {
            0 => db.drop_table("name").unwrap().forget(),
            _ => db.drop_map("name").unwrap().forget(),
        }
        drop((old_map, old_table));
        match round {
            2 => {
                db.persist().unwrap();
                disk.crash_after(disk.steps());
                drop(db);
                let left = disk.after_crash(&mut |_| Keep::Lost);
                db = manual().open_on(Arc::new(left.clone())).unwrap();
            }
            _ => db.persist().unwrap(),
        }
        assert!(db.check().unwrap().is_clean(), "{:?}", db.check().unwrap().problems);
    }
    assert_eq!(db.objects(), []);
}

#[test]
fn c2_of_two_who_drop_one_object_one_does() {
    const NAME: &str = "c2_of_two_who_drop_one_object_one_does";
    watched(NAME, PATIENCE, |_| {
        let db = background().open_on(Arc::new(SimulatedDevice::new(seed()))).unwrap();
        for _ in 0..budget(40) {
            let map = db.map("map").unwrap();
            db.put(&map, "key", "v").unwrap().forget();
            let dropped: usize = thread::scope(|scope| {
                let drops: Vec<_> = (0..4).map(|_| scope.spawn(|| db.drop_map("map").map(drop))).collect();
                let outcomes = drops.into_iter().map(|drop| drop.join().unwrap());
                outcomes
                    .map(|outcome| match outcome {
                        Ok(()) => 1,
                        Err(error) => {
                            assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
                            0
                        }
                    })
                    .sum()
            });
            assert_eq!(dropped, 1);
        }
    });
}

/// Whoever opens an object by its name has one that is there, or was dropped since.
#[test]
fn c2_an_object_is_opened_written_to_and_dropped_by_several() {
    const NAME: &str = "c2_an_object_is_opened_written_to_and_dropped_by_several";
    watched(NAME, PATIENCE, |_| {
        let disk = SimulatedDevice::new(seed());
        let db = background().open_on(Arc::new(disk.clone())).unwrap();
        let is_refused = |error: Error| assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
        let act = |thread: u32| {
            for round in 0..budget(60) as u32 {
                let (map, table) = (db.map("map").unwrap(), db.table("table").unwrap());
                let both = db.transact(|tx| {
                    tx.put(&map, key(thread), key(round))?;
                    tx.put(&table, key(thread), key(round))?;
                    Ok((tx.get(&map, key(thread))?, tx.get(&table, key(thread))?))
                });
                match both {
                    Ok(both) => assert_eq!(both.forget(), (Some(key(round).into()), Some(key(round).into()))),
                    Err(error) => is_refused(error),
                }
                if round % 3 == thread {
                    db.drop_map("map").map(drop).unwrap_or_else(is_refused);
                    db.drop_table("table").map(drop).unwrap_or_else(is_refused);
                }
            }
        };
        thread::scope(|scope| (0..3).for_each(|thread| drop(scope.spawn(move || act(thread)))));
        eventually("the rows go", || db.statistics().dropping == 0);
        assert!(db.check().unwrap().is_clean(), "{:?}", db.check().unwrap().problems);
        let (_, db) = again(disk, db);
        assert!(db.check().unwrap().is_clean(), "{:?}", db.check().unwrap().problems);
    });
}

/// Whoever was told that their write is committed was so before the drop, in its version or an older one; and after the first refusal there is nothing but refusals.
#[test]
fn c4_no_write_commits_behind_a_drop() {
    const NAME: &str = "c4_no_write_commits_behind_a_drop";
    watched(NAME, PATIENCE, |_| {
        let db = background().open_on(Arc::new(SimulatedDevice::new(seed()))).unwrap();
        let other = db.map("other").unwrap();
        for round in 0..budget(30) {
            let (map, table) = (db.map("map").unwrap(), db.table("table").unwrap());
            let newest = AtomicU64::new(0);
            let refused = |error: Error| assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
            let write = |thread: u32| {
                let mut number = thread;
                let mut told_dropped = false;
                let mut last = 0;
                while !told_dropped {
                    number += 10;
                    let outcome = match number / 10 % 4 {
                        0 => db.put(&map, key(number), "v").map(|commit| commit.version()),
                        1 => db.put(&table, key(number), "v").map(|commit| commit.version()),
                        2 => db.add(&map, key(thread), 1).map(|commit| commit.version()),
                        _ => db
                            .transact(|tx| {
                                tx.put(&map, key(number), "v")?;
                                tx.put(&table, key(number), "v")?;
                                tx.put(&other, key(thread), key(number))
                            })
                            .map(|commit| commit.version()),
                    };
                    match outcome {
                        Ok(version) => last = version.number(),
                        Err(error) => {
                            refused(error);
                            told_dropped = true;
                        }
                    }
                }
                newest.fetch_max(last, Ordering::SeqCst);
            };
            let dropped = thread::scope(|scope| {
                (0..3).for_each(|thread| drop(scope.spawn(move || write(thread))));
                while map.len_estimate() < 40 {
                    thread::yield_now();
                }
                if round % 2 == 0 {
                    drop(db.snapshot().unwrap());
                }
                let first = db.drop_map("map").unwrap().version().number();
                first.max(db.drop_table("table").unwrap().version().number())
            });
            assert!(newest.load(Ordering::SeqCst) <= dropped, "a write committed behind a drop");
            assert_dropped(db.get(&map, key(0)), "get");
        }
        eventually("the rows go", || db.statistics().dropping == 0);
        assert!(db.check().unwrap().is_clean(), "{:?}", db.check().unwrap().problems);
    });
}

/// Readers meet either all rows, or the refusal: never an object of which rows are missing.
#[test]
fn c2_nobody_who_reads_misses_rows_that_are_being_removed() {
    const NAME: &str = "c2_nobody_who_reads_misses_rows_that_are_being_removed";
    watched(NAME, PATIENCE, |_| {
        let db = background().open_on(Arc::new(SimulatedDevice::new(seed()))).unwrap();
        for round in 0..budget(30) {
            let (map, table) = filled(&db);
            db.persist().unwrap();
            if round % 3 == 0 {
                db.settle().unwrap();
            }
            let refused = |error: Error| assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
            thread::scope(|scope| {
                scope.spawn(|| {
                    for number in (0..ROWS).cycle() {
                        match db.get(&map, key(number)) {
                            Ok(found) => assert!(found.is_some(), "key {number} is missing"),
                            Err(error) => return refused(error),
                        }
                    }
                });
                scope.spawn(|| {
                    loop {
                        let counted = db.transact(|tx| {
                            tx.range::<&[u8]>(&table, ..).try_fold(0, |count, row| row.map(|_| count + 1))
                        });
                        match counted {
                            Ok(count) => assert_eq!(count.forget(), ROWS, "rows are missing"),
                            Err(error) => return refused(error),
                        }
                    }
                });
                scope.spawn(|| {
                    loop {
                        let keys: Vec<_> = (0..ROWS).map(key).collect();
                        let all = |number: usize, value: Option<&[u8]>| {
                            assert!(value.is_some(), "row {number} is missing");
                        };
                        match db.get_many(&table, &keys, all) {
                            Ok(()) => {}
                            Err(error) => return refused(error),
                        }
                    }
                });
                let snapshot = db.snapshot().unwrap();
                db.drop_map("map").unwrap().safe().unwrap();
                db.drop_table("table").unwrap().safe().unwrap();
                assert_all_there(&snapshot, &map, &table, "a snapshot");
            });
            if round % 4 == 0 {
                eventually("the rows go", || db.statistics().dropping == 0);
            }
        }
    });
}
