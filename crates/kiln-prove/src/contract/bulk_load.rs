//! Bulk loads: a new table is there with all of its rows, for all who begin later, or not at all.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use kiln::device::{Device as _, Fault, FaultKind, Keep, OperationKind, SimulatedDevice};
use kiln::{BulkLoad, Error, ErrorKind, Isolation, Kiln, Object as _, check_on};

use super::settling::{Rows, assert_rows, assert_rows_after_crash, key, some_rows, value};
use crate::crash::reopen;
use crate::support::{Random, copy_of, manual};
use crate::testing::{PATIENCE, seed, watched};

fn load(db: &Kiln, name: &str, rows: &Rows) -> kiln::Result<BulkLoad> {
    db.bulk_load(name, rows.iter().map(Ok::<_, Error>), |_| {})
}

/// A database with a table "before" whose rows have settled, but for some, and nothing else.
fn with_table(disk: &SimulatedDevice) -> (Kiln, Rows) {
    let db = manual().open_on(Arc::new(disk.clone())).unwrap();
    let before = db.table("before").unwrap();
    let mut rows = some_rows(60);
    for (key, value) in &rows {
        db.put(&before, key, value).unwrap().forget();
    }
    db.persist().unwrap();
    db.settle().unwrap();
    for number in 0..20 {
        db.put(&before, key(number * 5), value(number, 1)).unwrap().forget();
        rows.insert(key(number * 5), value(number, 1));
    }
    db.persist().unwrap();
    (db, rows)
}

fn has_object(db: &Kiln, name: &str) -> bool {
    db.objects().iter().any(|object| object.name == name)
}

/// The table "before" is as it was, there is no other, nothing is in the tree that nobody has, and a load still succeeds.
fn assert_nothing_left(db: &Kiln, before: &Rows, name: &str) {
    assert!(!has_object(db, name), "a table is there that was not loaded");
    assert_rows(db, &db.table("before").unwrap(), before);
    assert_eq!(db.statistics().settled_rows, 60, "rows are in the tree that are nobody's");
    let rows = some_rows(10);
    let loaded = load(db, name, &rows).unwrap();
    assert_rows(db, &loaded.table, &rows);
}

#[test]
fn c1_a_loaded_table_is_read_written_deleted_and_settled_like_others() {
    for (count, first) in [(0, true), (1, true), (700, true), (700, false)] {
        let disk = SimulatedDevice::new(seed());
        let db = if first { reopen(&disk).unwrap() } else { with_table(&disk).0 };
        let mut rows = some_rows(count);
        // Values with blocks of their own, and one of no bytes.
        if count > 1 {
            rows.insert(key(30), vec![7; 9_000]);
            rows.insert(key(31), Vec::new());
        }
        let mut told = Vec::new();
        let loaded = db.bulk_load("table", rows.iter().map(Ok::<_, Error>), |now| told.push(now)).unwrap();
        let bytes = rows.iter().map(|(key, value)| (key.len() + value.len()) as u64).sum::<u64>();
        assert_eq!(told.last().map(|now| (now.rows, now.bytes)), Some((rows.len() as u64, bytes)));
        assert_eq!((loaded.rows, loaded.table.name()), (rows.len() as u64, "table"));
        assert!(loaded.version <= db.horizon(kiln::Level::LOCAL), "it is not durable");
        assert_rows(&db, &loaded.table, &rows);
        assert_rows_after_crash(&disk, &rows);
        for number in 0..count {
            match number % 4 {
                0 => assert_eq!(
                    db.delete(&loaded.table, key(number)).unwrap().forget(),
                    rows.remove(&key(number)).is_some()
                ),
                1 => {
                    db.put(&loaded.table, key(number), value(number, 1)).unwrap().forget();
                    rows.insert(key(number), value(number, 1));
                }
                _ => {}
            }
        }
        db.put(&loaded.table, b"a new key", b"value").unwrap().forget();
        rows.insert(b"a new key".to_vec(), b"value".to_vec());
        assert_rows(&db, &loaded.table, &rows);
        db.persist().unwrap();
        assert_rows_after_crash(&disk, &rows);
        db.checkpoint().unwrap();
        assert_rows_after_crash(&disk, &rows);
        assert!(db.settle().unwrap() > 0);
        assert_rows(&db, &loaded.table, &rows);
        assert_rows_after_crash(&disk, &rows);
        db.close().unwrap();
        let report = check_on(Arc::new(disk.clone())).unwrap();
        assert!(report.is_clean(), "{report}");
    }
}

#[test]
fn c1_c4_a_crash_at_any_step_of_a_bulk_load_leaves_all_of_it_or_nothing() {
    let rows = some_rows(250);
    let (mut with, mut without, mut keys_without) = (0, 0, None);
    for step in 1.. {
        let disk = SimulatedDevice::new(step);
        let (db, before) = with_table(&disk);
        disk.crash_after(disk.steps() + step);
        let done = load(&db, "loaded", &rows).is_ok();
        if !disk.crashed() {
            assert!(done);
            break;
        }
        let states = disk.crash_states();
        drop(db);
        for choice in 0..6 {
            let after = match choice {
                0 => states.after_crash(&mut |_| Keep::Lost),
                1 => states.after_crash(&mut |_| Keep::Kept),
                _ => states.after_crash_seeded(choice + step * 31),
            };
            let report = check_on(Arc::new(copy_of(&after))).unwrap();
            assert!(report.is_clean(), "step {step}: {report}");
            let full = copy_of(&after);
            let db = reopen(&after).unwrap();
            if has_object(&db, "loaded") {
                with += 1;
                let table = db.table("loaded").unwrap();
                assert_rows(&db, &table, &rows);
                assert_rows(&db, &db.table("before").unwrap(), &before);
            } else {
                assert!(!done, "step {step}: a load that had ended is gone");
                without += 1;
                assert_eq!(
                    report.keys,
                    *keys_without.get_or_insert(report.keys),
                    "rows count that are nobody's"
                );
                assert_nothing_left(&db, &before, "loaded");
                assert_number_is_not_used_again(&full);
            }
        }
    }
    assert!(with > 2 && without > 20, "{with} states with the table, {without} without");
}

/// What is left of a load cannot be removed on a disk that is full; a new table has nothing of it still.
fn assert_number_is_not_used_again(disk: &SimulatedDevice) {
    disk.set_capacity(Some(disk.used_bytes()));
    let Ok(db) = reopen(disk) else { return };
    if let Ok(table) = db.table("new") {
        assert!(table.is_empty());
        assert_eq!(db.transact(|tx| tx.first(&table)).unwrap().forget(), None);
    }
}

#[test]
fn c8_after_a_failed_operation_of_a_bulk_load_all_of_it_is_there_or_nothing() {
    let rows = some_rows(250);
    for kind in [FaultKind::EIO, FaultKind::ENOSPC, FaultKind::FailedSyncThenSuccess] {
        for nth in 1.. {
            let disk = SimulatedDevice::new(nth);
            let (db, before) = with_table(&disk);
            disk.inject(Fault { operation: OperationKind::Any, nth, kind, sticky: false });
            let done = load(&db, "loaded", &rows);
            if disk.faults_fired() == 0 {
                done.unwrap();
                break;
            }
            disk.clear_faults();
            if done.is_ok() {
                assert_rows(&db, &db.table("loaded").unwrap(), &rows);
            }
            assert_eq!(db.get(&db.table("before").unwrap(), key(7)).unwrap(), before.get(&key(7)).cloned());
            drop(db);
            let db = reopen(&disk).unwrap();
            match has_object(&db, "loaded") {
                true => assert_rows(&db, &db.table("loaded").unwrap(), &rows),
                false => {
                    assert!(done.is_err(), "a load that had ended is gone");
                    assert_nothing_left(&db, &before, "loaded");
                }
            }
        }
    }
}

/// It was removed by the next settling or load only, and a full disk stayed full of it.
#[test]
fn c1_opening_removes_what_a_crash_has_left_of_the_first_load() {
    let disk = SimulatedDevice::new(seed());
    let db = reopen(&disk).unwrap();
    let rows = (0..20_000_u32).map(|number| {
        if number == 15_000 {
            assert!(names(&disk).contains(&"tree.new".to_owned()), "nothing is written yet");
            disk.crash_after(disk.steps());
        }
        Ok::<_, Error>((number.to_be_bytes(), [7; 100]))
    });
    db.bulk_load("loaded", rows, |_| {}).unwrap_err();
    drop(db);
    let disk = disk.after_crash(&mut |_| Keep::Kept);
    assert!(names(&disk).contains(&"tree.new".to_owned()));
    let db = reopen(&disk).unwrap();
    assert!(!names(&disk).contains(&"tree.new".to_owned()) && !has_object(&db, "loaded"));
}

fn names(disk: &SimulatedDevice) -> Vec<String> {
    disk.list().unwrap()
}

/// The first tree's name was not durable, which only its own process knew: the next one acknowledged what depends on it.
#[test]
fn c5_what_is_loaded_into_a_tree_whose_name_was_not_durable_is_there_after_a_power_cut() {
    let disk = SimulatedDevice::new(seed());
    let db = reopen(&disk).unwrap();
    db.put(&db.table("before").unwrap(), "key", "value").unwrap().safe().unwrap();
    let kind = FaultKind::EIO;
    disk.inject(Fault { operation: OperationKind::SyncDirectory, nth: 1, kind, sticky: false });
    let rows = some_rows(20);
    load(&db, "first", &rows).unwrap_err();
    // Nobody can tell any more which names of files are durable, be it the log's.
    let error = db.put(&db.table("before").unwrap(), "key", "other").unwrap().safe().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Lost, "{error}");
    drop(db);
    let db = reopen(&disk).unwrap();
    load(&db, "second", &rows).unwrap();
    drop(db);
    let db = reopen(&disk.after_crash(&mut |_| Keep::Lost)).unwrap();
    assert_rows(&db, &db.table("second").unwrap(), &rows);
    assert_eq!(db.get(&db.table("before").unwrap(), "key").unwrap().as_deref(), Some(&b"value"[..]));
}

#[test]
fn c1_what_cannot_be_loaded_is_refused_and_leaves_nothing() {
    let disk = SimulatedDevice::new(seed());
    let (db, before) = with_table(&disk);
    let good = some_rows(200);
    let pairs = || good.clone().into_iter().map(Ok::<_, Error>);
    let then = |key: Vec<u8>, value: Vec<u8>| pairs().chain([Ok((key, value))]);
    let file_bytes = db.statistics().tree_bytes;
    let refused = |outcome: kiln::Result<BulkLoad>, what: &str| {
        let error = outcome.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Input, "{error}");
        assert!(error.to_string().contains(what), "{error}");
        assert_eq!(db.statistics().settled_rows, 60);
    };
    refused(db.bulk_load("one", then(key(100), vec![]), |_| {}), "ascending");
    refused(
        db.bulk_load("two", then(key(199), vec![]), |_| {}),
        "row 200 (from 0) has the key \"key 00199\"",
    );
    refused(db.bulk_load("three", then(vec![b'z'; (64 << 10) + 1], vec![]), |_| {}), "too long");
    refused(db.bulk_load("four", then(vec![b'z'], vec![0; (16 << 20) + 1]), |_| {}), "too long");
    refused(db.bulk_load("before", pairs(), |_| {}), "already");
    refused(db.bulk_load("", pairs(), |_| {}), "1 to 255 bytes");
    let _map = db.map("map").unwrap();
    refused(db.bulk_load("map", pairs(), |_| {}), "already");
    let failing = pairs().chain([Err(Error::caller("the source has failed"))]);
    let error = db.bulk_load("five", failing, |_| {}).unwrap_err();
    assert_eq!((error.kind(), error.to_string().as_str()), (ErrorKind::Caller, "the source has failed"));
    // A name that somebody else takes meanwhile.
    let taking = pairs().inspect(|_| drop(db.table("six").unwrap()));
    refused(db.bulk_load("six", taking, |_| {}), "already");
    assert!(db.table("six").unwrap().is_empty());
    let panicking = pairs().chain([()].iter().map(|()| panic!("the source panics")));
    let panicked = catch_unwind(AssertUnwindSafe(|| db.bulk_load("seven", panicking, |_| {})));
    assert!(panicked.is_err());
    assert!(db.statistics().tree_bytes <= file_bytes + (256 << 10), "the file keeps what was refused");
    assert_nothing_left(&db, &before, "one");
    let report = check_on(Arc::new(copy_of(&disk))).unwrap();
    assert!(report.is_clean(), "{report}");
    // Of a number that a refused load had, nobody finds anything.
    let reopened = reopen(&copy_of(&disk)).unwrap();
    for name in ["two", "three", "eight", "nine"] {
        assert!(reopened.table(name).unwrap().is_empty());
    }
}

#[test]
fn c2_who_reads_as_of_before_a_bulk_load_sees_none_of_it_and_cannot_write_over_it() {
    let disk = SimulatedDevice::new(seed());
    let (db, _) = with_table(&disk);
    let rows = some_rows(100);
    let snapshot = db.snapshot().unwrap();
    let durable = db.durable_snapshot().unwrap();
    let (reader, writer) =
        (db.begin_with(Isolation::Snapshot).unwrap(), db.begin_with(Isolation::Snapshot).unwrap());
    let loaded = load(&db, "loaded", &rows).unwrap();
    let table = &loaded.table;
    let elsewhere = db.table("loaded").unwrap();
    for table in [table, &elsewhere] {
        for snapshot in [&snapshot, &durable] {
            assert!(snapshot.version() < loaded.version);
            assert_eq!(snapshot.get(table, key(7)).unwrap(), None);
            assert_eq!(snapshot.range::<&[u8]>(table, ..).count(), 0);
            assert_eq!(snapshot.range::<&[u8]>(table, ..).reverse().count(), 0);
        }
        assert_eq!(reader.get(table, key(7)).unwrap(), None);
        assert_eq!(reader.range::<&[u8]>(table, ..).count(), 0);
    }
    // It has seen that there is no such row, and the row was written since: the first committer wins.
    assert_eq!(writer.get(table, key(7)).unwrap(), None);
    writer.put(table, key(7), b"over it").unwrap();
    assert!(writer.commit().unwrap_err().is_conflict());
    db.put(table, key(8), b"later").unwrap().forget();
    assert_eq!(snapshot.get(table, key(8)).unwrap(), None);
    assert_eq!(snapshot.range::<&[u8]>(table, ..).count(), 0);
    drop((snapshot, durable, reader));
    let snapshot = db.snapshot().unwrap();
    assert_eq!(snapshot.get(table, key(7)).unwrap(), Some(value(7, 0)));
    assert_eq!(snapshot.range::<&[u8]>(table, ..).count(), 100);
}

#[test]
fn c2_a_transaction_from_before_a_bulk_load_sees_the_rows_only_with_all_that_was_before_them() {
    let disk = SimulatedDevice::new(seed());
    let (db, _) = with_table(&disk);
    let before = db.table("before").unwrap();
    for by_range in [false, true] {
        let name = format!("loaded {by_range}");
        let tx = db.begin().unwrap();
        tx.get(&before, key(1)).unwrap();
        tx.get(&before, key(2)).unwrap();
        // In the serial order it is before the load.
        db.put(&before, key(1), b"before the load").unwrap().forget();
        let loaded = load(&db, &name, &some_rows(10)).unwrap();
        let outcome = match by_range {
            false => tx.get(&loaded.table, key(3)).map(drop),
            true => tx.range::<&[u8]>(&loaded.table, ..).try_for_each(|row| row.map(drop)),
        };
        assert!(
            outcome.is_err_and(|error| error.is_conflict()),
            "it sees the load, and not what was before it"
        );
    }
}

#[test]
fn c6_a_backup_beside_a_bulk_load_has_all_of_it_or_nothing() {
    let disk = SimulatedDevice::new(seed());
    let (db, before) = with_table(&disk);
    let rows = some_rows(300);
    let mut copies = Vec::new();
    let back_up = |copies: &mut Vec<SimulatedDevice>| {
        let target = SimulatedDevice::new(seed());
        db.backup_on(Arc::new(target.clone()), |_| {}).unwrap();
        copies.push(target);
    };
    let beside = rows.iter().enumerate().map(|(number, row)| {
        if number % 100 == 50 {
            back_up(&mut copies);
        }
        Ok::<_, Error>(row)
    });
    db.bulk_load("loaded", beside, |_| {}).unwrap();
    for copy in &copies {
        let report = check_on(Arc::new(copy_of(copy))).unwrap();
        assert!(report.is_clean(), "{report}");
        assert_nothing_left(&reopen(copy).unwrap(), &before, "loaded");
    }
    assert_eq!(copies.len(), 3);
    back_up(&mut copies);
    let copy = reopen(&copies[3]).unwrap();
    assert_rows(&copy, &copy.table("loaded").unwrap(), &rows);
    assert_rows(&copy, &copy.table("before").unwrap(), &before);
}

#[test]
fn c9_a_tree_from_before_a_bulk_load_or_none_is_not_taken_for_the_newest() {
    for is_first in [true, false] {
        let disk = SimulatedDevice::new(seed());
        let db = if is_first { reopen(&disk).unwrap() } else { with_table(&disk).0 };
        let old = (!is_first).then(|| disk.bytes("tree"));
        load(&db, "loaded", &some_rows(50)).unwrap();
        db.close().unwrap();
        match old {
            None => disk.remove_file("tree"),
            Some(old) => disk.set_bytes("tree", old),
        }
        let error = reopen(&disk).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupted, "{error}");
        assert_eq!(error.place().map(|(file, _)| file.ends_with("tree")), Some(true), "{error}");
    }
}

#[test]
fn c1_c9_rows_in_compressed_leaves_are_the_same_with_and_without_the_option() {
    let disk = SimulatedDevice::new(seed());
    let mut rows: Rows = (0..900).map(|number| (key(number), value(number, 0).repeat(6))).collect();
    let db = manual().leaf_compression(true).open_on(Arc::new(disk.clone())).unwrap();
    let loaded = load(&db, "table", &rows).unwrap();
    assert_rows(&db, &loaded.table, &rows);
    let bytes = rows.iter().map(|(key, value)| (key.len() + value.len()) as u64).sum::<u64>();
    assert!(db.statistics().tree_used_bytes * 2 < bytes, "{} of {bytes}", db.statistics().tree_used_bytes);
    assert_rows_after_crash(&disk, &rows);
    drop((loaded, db));
    for compress in [false, true, false] {
        let db = manual().leaf_compression(compress).open_on(Arc::new(disk.clone())).unwrap();
        let table = db.table("table").unwrap();
        for number in (0..900).step_by(7) {
            let changed = [key(number), vec![u8::from(compress); 200]].concat();
            db.put(&table, key(number), &changed).unwrap().forget();
            rows.insert(key(number), changed);
        }
        db.persist().unwrap();
        assert!(db.settle().unwrap() > 0);
        assert_rows(&db, &table, &rows);
        assert_rows_after_crash(&disk, &rows);
        let (copy, restored) = (SimulatedDevice::new(1), SimulatedDevice::new(2));
        db.backup_on(Arc::new(copy.clone()), |_| {}).unwrap();
        Kiln::restore_on(Arc::new(copy), Arc::new(restored.clone()), |_| {}).unwrap();
        let restored = reopen(&restored).unwrap();
        assert_rows(&restored, &restored.table("table").unwrap(), &rows);
    }
}

#[test]
fn c4_many_loads_crashes_and_writes_one_after_the_other_come_to_what_they_should() {
    let mut random = Random::new(seed());
    let mut disk = SimulatedDevice::new(seed());
    let mut tables: BTreeMap<String, Rows> = BTreeMap::new();
    for round in 0..40_u32 {
        let db = reopen(&disk).unwrap();
        let names: Vec<String> = tables.keys().cloned().collect();
        for name in &names {
            assert!(has_object(&db, name));
            assert_rows(&db, &db.table(name).unwrap(), &tables[name]);
        }
        assert_eq!(db.objects().len(), tables.len());
        if !names.is_empty() {
            let name = random.pick(&names).clone();
            let (table, rows) = (db.table(&name).unwrap(), tables.get_mut(&name).unwrap());
            for _ in 0..30 {
                let number = random.below(200) as u32;
                if random.one_in(2) {
                    db.delete(&table, key(number)).unwrap().forget();
                    rows.remove(&key(number));
                } else {
                    db.put(&table, key(number), value(number, round)).unwrap().forget();
                    rows.insert(key(number), value(number, round));
                }
            }
            db.persist().unwrap();
            if random.one_in(3) {
                db.settle().unwrap();
            }
            if random.one_in(3) {
                db.checkpoint().unwrap();
            }
        }
        let rows = some_rows(random.below(150) as u32);
        disk.crash_after(disk.steps() + 1 + random.below(25) as u64);
        let name = format!("table {round}");
        let done = load(&db, &name, &rows).is_ok();
        let after = disk.crash_states().after_crash_seeded(random.next());
        drop(db);
        disk = after;
        let is_there = has_object(&reopen(&copy_of(&disk)).unwrap(), &name);
        assert!(is_there || !done);
        if is_there {
            tables.insert(name, rows);
        }
    }
    assert!(tables.len() > 5, "only {} loads came to their end", tables.len());
}

/// The check waited for the tree's writer, which who loads has, and that for the row.
#[test]
fn rows_that_are_loaded_may_check_the_database() {
    watched("rows_that_are_loaded_may_check_the_database", PATIENCE, |_| {
        let db = manual().open_on(Arc::new(SimulatedDevice::new(seed()))).unwrap();
        let rows = (0..10_u32).map(|number| {
            assert!(db.check().unwrap().is_clean());
            Ok::<_, Error>((key(number), value(number, 0)))
        });
        assert_eq!(db.bulk_load("loaded", rows, |_| {}).unwrap().rows, 10);
        assert!(db.check().unwrap().is_clean());
    });
}

/// What lay elsewhere, and had settled, counted as if it were in memory.
#[test]
fn rows_that_have_settled_are_not_estimated_to_be_where_none_has() {
    const NEW_ROWS: u64 = 1_000;
    let disk = SimulatedDevice::new(seed());
    let db = manual().open_on(Arc::new(disk)).unwrap();
    let rows = (0..20_000_u32).map(|number| Ok::<_, Error>((format!("a{number:05}"), "value")));
    let table = db.bulk_load("table", rows, |_| {}).unwrap().table;
    for number in 0..NEW_ROWS {
        db.put(&table, format!("b{number:05}"), "value").unwrap().forget();
    }
    let estimate = table.len_estimate("b"..);
    assert!((NEW_ROWS / 2..=2 * NEW_ROWS).contains(&estimate), "{estimate}");
}
