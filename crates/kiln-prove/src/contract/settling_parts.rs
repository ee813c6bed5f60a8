//! Settling that ends in the middle: some ranges of keys are in the tree as they are now, and the others as they were before.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use kiln::device::{Device, SimulatedDevice};
use kiln::{ErrorKind, Kiln, Options, Table};

use super::hooked::{HookedDevice, Operation};
use super::settling::{Rows, assert_rows, assert_rows_after_crash, key, value};
use crate::crash::reopen;
use crate::support::{Random, manual};
use crate::testing::seed;

/// Puts and deletes some rows all over the keys, of which there are more in each round.
fn change(db: &Kiln, table: &Table, rows: &mut Rows, random: &mut Random, round: u32) {
    for _ in 0..500 {
        let number = random.below(400 + 300 * round as usize) as u32;
        if random.one_in(4) {
            assert_eq!(db.delete(table, key(number)).unwrap().forget(), rows.remove(&key(number)).is_some());
        } else {
            let long = [value(number, round), vec![7; random.below(600)]].concat();
            db.put(table, key(number), &long).unwrap().forget();
            rows.insert(key(number), long);
        }
    }
    db.persist().unwrap();
}

#[test]
fn c4_a_settling_that_finds_the_disk_full_leaves_every_row_as_it_was() {
    let disk = SimulatedDevice::new(seed());
    let options = manual().settle_memory(16 << 10).settle_log_bytes(0);
    let db = options.open_on(Arc::new(disk.clone())).unwrap();
    let table = db.table("table").unwrap();
    let (mut rows, mut random) = (Rows::new(), Random::new(seed()));
    change(&db, &table, &mut rows, &mut random, 0);
    db.settle().unwrap();
    let (mut failures, mut parts) = (0, 0);
    for round in 1..20 {
        change(&db, &table, &mut rows, &mut random, round);
        let written_before = db.statistics().tree_written_bytes;
        // Full at once, full while runs are sorted, and full while the tree is written.
        disk.fail_after_bytes(u64::from(round % 2 * round) * (32 << 10));
        if let Err(error) = db.settle() {
            assert_eq!(error.kind(), ErrorKind::NoSpace, "{error}");
            failures += 1;
            parts += u32::from(db.statistics().tree_written_bytes > written_before);
        }
        disk.set_capacity(None);
        assert_rows(&db, &table, &rows);
        if round % 5 == 0 {
            let copy = SimulatedDevice::new(seed());
            db.backup_on(Arc::new(copy.clone()), |_| {}).unwrap();
            let copy = reopen(&copy).unwrap();
            assert_rows(&copy, &copy.table("table").unwrap(), &rows);
            assert_rows_after_crash(&disk, &rows);
        }
    }
    assert!(failures > 2 && parts > 1, "{failures} have failed, {parts} of them in the middle");
    change(&db, &table, &mut rows, &mut random, 20);
    assert!(db.settle().unwrap() > 0);
    assert_rows(&db, &table, &rows);
    assert_rows_after_crash(&disk, &rows);
}

/// What settles is sorted on disk where memory has no room for it.
#[test]
fn c4_where_the_disk_has_no_room_for_what_is_sorted_less_settles_at_once() {
    let disk = SimulatedDevice::new(seed());
    let (device, attempts) =
        HookedDevice::counting(&disk, |operation, name| operation == Operation::Open && name == "runs.new");
    let options = manual().settle_memory(128 << 10).settle_log_bytes(0).space_amplification(f64::INFINITY);
    let db = options.open_on(device).unwrap();
    let table = db.table("table").unwrap();
    // What does not settle keeps the log, and there are so many that nobody asks which of the others are dead.
    let map = db.map("map").unwrap();
    let mut rows = Rows::new();
    for number in 0..1_280_u32 {
        for place in 0..8 {
            db.put(&map, key(number * 8 + place), [8; 100]).unwrap().forget();
        }
        let long = [value(number, 1), vec![7; 1_000]].concat();
        db.put(&table, key(number % 160), &long).unwrap().forget();
        rows.insert(key(number % 160), long);
        if number % 32 == 0 {
            db.persist().unwrap();
        }
    }
    db.persist().unwrap();
    // Less than all the table's records, and more than half of them and what the tree takes.
    disk.fail_after_bytes(1_200 << 10);
    assert!(db.settle().unwrap() >= 160);
    assert!(attempts.load(Ordering::SeqCst) >= 3, "one in vain, and two parts");
    disk.set_capacity(None);
    assert_rows(&db, &table, &rows);
    assert_rows_after_crash(&disk, &rows);
}

/// Each row was sorted by itself, and written as a block, and all of them were read side by side: in forty times the memory that the rows take.
#[test]
fn what_settles_without_memory_for_it_is_sorted_in_pieces_that_are_worth_it() {
    let disk = SimulatedDevice::new(seed());
    let (device, writes) = HookedDevice::counting(&disk, |operation, name| {
        matches!(operation, Operation::Write(_)) && name == "runs.new"
    });
    let db = manual().settle_memory(0).settle_log_bytes(0).open_on(device).unwrap();
    let table = db.table("table").unwrap();
    for number in 0..4_000_u32 {
        db.put(&table, key(number), value(number, 1)).unwrap().forget();
        if number % 100 == 0 {
            db.persist().unwrap();
        }
    }
    db.persist().unwrap();
    assert_eq!(db.settle().unwrap(), 4_000);
    let writes = writes.load(Ordering::SeqCst);
    assert!((2..100).contains(&writes), "{writes} writes of runs");
}

#[test]
fn c8_a_file_of_runs_that_a_crash_has_left_does_no_harm_and_goes() {
    let disk = SimulatedDevice::new(seed());
    let db = manual().open_on(Arc::new(disk.clone())).unwrap();
    let table = db.table("table").unwrap();
    db.put(&table, "key", "value").unwrap().safe().unwrap();
    drop(db);
    disk.set_bytes("runs.new", [0xA5; 8192]);
    let report = kiln::check_on(Arc::new(disk.clone())).unwrap();
    assert!(report.is_clean(), "{report}");
    let db = reopen(&disk).unwrap();
    assert!(!disk.list().unwrap().iter().any(|name| name == "runs.new"));
    assert_eq!(db.get(&db.table("table").unwrap(), "key").unwrap(), Some(b"value".to_vec()));
}

fn deletions_are_not_undone_by_settling(between: impl Fn(&SimulatedDevice)) {
    let disk = SimulatedDevice::new(seed());
    let db = manual().settle_log_bytes(0).open_on(Arc::new(disk.clone())).unwrap();
    let (table, map) = (db.table("table").unwrap(), db.map("map").unwrap());
    // Something has settled, and nothing is left of it.
    db.put(&table, "first", "first").unwrap().forget();
    db.persist().unwrap();
    assert_eq!(db.settle().unwrap(), 1);
    db.delete(&table, "first").unwrap().forget();
    db.persist().unwrap();
    assert_eq!(db.settle().unwrap(), 1);
    db.put(&table, "deleted", "deleted").unwrap().forget();
    for number in 0..1_000_u32 {
        db.put(&map, number.to_be_bytes(), [7; 1_000]).unwrap().forget();
        if number % 20 == 0 {
            db.persist().unwrap();
        }
    }
    db.delete(&table, "deleted").unwrap().forget();
    db.put(&table, "there", "there").unwrap().forget();
    db.close().unwrap();
    between(&disk);
    // By itself it settles what is out of memory, which the deletion is not.
    let db = manual().settle_log_bytes(64 << 10).open_on(Arc::new(disk.clone())).unwrap();
    let table = db.table("table").unwrap();
    for round in 0..3_u8 {
        db.put(&table, "other", [round]).unwrap().forget();
        db.persist().unwrap();
        assert_eq!(db.get(&table, "deleted").unwrap(), None);
    }
    assert_rows(&db, &table, &[(b"other".to_vec(), vec![2]), (b"there".to_vec(), b"there".to_vec())].into());
}

#[test]
fn c4_a_deletion_that_recovery_has_forgotten_is_not_undone_by_settling() {
    deletions_are_not_undone_by_settling(|_| {});
}

/// Recovery kept no deletion while nothing was left of what had settled, and what it had to remember instead, that all of the log before had to settle at
/// once, was forgotten with the next opening if a table had been loaded meanwhile: the row was there again, for good.
#[test]
fn c4_a_deletion_is_not_undone_by_settling_after_a_table_was_loaded() {
    deletions_are_not_undone_by_settling(|disk| {
        let db = manual().settle_log_bytes(0).open_on(Arc::new(disk.clone())).unwrap();
        db.bulk_load("loaded", [Ok::<_, kiln::Error>(("key", "value"))], |_| {}).unwrap();
        assert!(db.checkpoint().unwrap());
        db.close().unwrap();
    });
}

/// A database of which a deletion has settled alone, and was forgotten: what it deleted is in the log still.
fn with_a_deletion_that_settled_alone(options: &Options) -> SimulatedDevice {
    let disk = SimulatedDevice::new(seed());
    let db = options.clone().settle_log_bytes(0).open_on(Arc::new(disk.clone())).unwrap();
    let table = db.table("table").unwrap();
    let put = |number: u32, bytes: usize| {
        db.put(&table, key(number), vec![7; bytes]).unwrap().forget();
        if number.is_multiple_of(5) {
            db.persist().unwrap();
        }
    };
    (0..50).for_each(|number| put(number, 100));
    db.persist().unwrap();
    assert_eq!(db.settle().unwrap(), 50);
    db.put(&table, "deleted", "deleted").unwrap().forget();
    let map = db.map("map").unwrap();
    (0..50_u32).for_each(|number| db.put(&map, key(number), [7; 10_000]).unwrap().forget());
    // What has no room in the tree.
    (50..150).for_each(|number| put(number, 8_000));
    db.delete(&table, "deleted").unwrap().forget();
    db.persist().unwrap();
    disk.set_capacity(Some(disk.used_bytes()));
    assert_eq!(db.settle().unwrap_err().kind(), ErrorKind::NoSpace);
    // The deletion is forgotten.
    db.persist().unwrap();
    disk.set_capacity(None);
    assert!(db.checkpoint().unwrap());
    db.close().unwrap();
    disk
}

/// A checkpoint had no deletion that was forgotten on a full disk, and after it nobody knew that what they delete, which the log still has,
/// must not settle without them: the row was there again, for good.
#[test]
fn c4_a_deletion_that_settled_alone_on_a_full_disk_is_not_undone_after_checkpoints() {
    for checkpoints in 1..3 {
        let disk = with_a_deletion_that_settled_alone(&manual());
        let open = |settle_log_bytes| {
            let db = manual().settle_log_bytes(settle_log_bytes).open_on(Arc::new(disk.clone())).unwrap();
            (db.table("table").unwrap(), db)
        };
        for _ in 1..checkpoints {
            let (table, db) = open(0);
            db.put(&table, "other", "other").unwrap().safe().unwrap();
            assert!(db.checkpoint().unwrap());
            db.close().unwrap();
        }
        // By itself it settles what is out of memory, which the deletion is not.
        let (table, db) = open(64 << 10);
        for number in 0..40_u32 {
            assert_eq!(db.get(&table, "deleted").unwrap(), None, "{number} puts after opening");
            db.put(&table, key(number), [8; 20_000]).unwrap().forget();
            db.persist().unwrap();
        }
        assert!(db.statistics().rows_settled > 100, "{:?}", db.statistics());
        assert_eq!(db.get(&table, "deleted").unwrap(), None);
    }
}

/// After a checkpoint all before its end had to settle at once, where a deletion had been forgotten before: which a snapshot does not allow that was
/// given a name in between, so that nothing settled as long as it was kept.
#[test]
fn what_is_older_than_a_named_snapshot_settles_though_deletions_were_forgotten_before() {
    let disk = with_a_deletion_that_settled_alone(&manual());
    let open = || manual().settle_log_bytes(0).open_on(Arc::new(disk.clone())).unwrap();
    let db = open();
    let table = db.table("table").unwrap();
    // Segments settle whole.
    (0..40_u32).for_each(|number| db.put(&table, key(number), [8; 10_000]).unwrap().forget());
    db.put(&table, "before", "before").unwrap().forget();
    db.create_snapshot("kept").unwrap();
    db.put(&table, "before", "after").unwrap().safe().unwrap();
    assert!(db.checkpoint().unwrap());
    db.close().unwrap();
    let db = open();
    let table = db.table("table").unwrap();
    assert!(db.settle().unwrap() > 100, "{:?}", db.statistics());
    assert_eq!(db.get(&table, "deleted").unwrap(), None);
    assert_eq!(db.get(&table, "before").unwrap().unwrap(), b"after");
    let kept = db.open_snapshot("kept").unwrap();
    assert_eq!(kept.get(&table, "before").unwrap().unwrap(), b"before");
    assert_eq!(kept.get(&table, "deleted").unwrap(), None);
}

/// What was forgotten, or may have been where nothing had ever settled, lay before the end of the last opening's log. That had to leave memory before anything settled, and did not
/// where each opening wrote less than there is room for: for ever.
#[test]
fn a_table_settles_by_itself_however_little_each_opening_writes() {
    let options = manual().segment_bytes(64 << 10).memory(2 << 20);
    for disk in [SimulatedDevice::new(seed()), with_a_deletion_that_settled_alone(&options)] {
        let mut log_bytes = 0;
        for opening in 0..20_u32 {
            let db = options.clone().settle_log_bytes(64 << 10).open_on(Arc::new(disk.clone())).unwrap();
            let table = db.table("table").unwrap();
            for number in 0..40 {
                db.put(&table, key(1_000 + 40 * opening + number), [8; 10_000]).unwrap().forget();
                db.persist().unwrap();
            }
            assert_eq!(db.get(&table, "deleted").unwrap(), None);
            let statistics = db.statistics();
            log_bytes = statistics.log_tail - statistics.log_begin;
            db.checkpoint().unwrap();
            db.close().unwrap();
        }
        assert!(log_bytes < 6 << 20, "{log_bytes} bytes of 8 MB have not settled");
    }
}
