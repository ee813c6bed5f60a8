//! How the rows of dropped objects go, and what keeps some of them.

use std::sync::Arc;

use super::*;
use crate::device::SimulatedDevice;
use crate::objects::HasHandle as _;
use crate::{Kiln, Options};

const SEGMENT_BYTES: u64 = 64 << 10;

fn open(disk: &SimulatedDevice) -> Kiln {
    let options = Options::new().background(false).segment_bytes(SEGMENT_BYTES).memory(0).settle_log_bytes(0);
    options.open_on(Arc::new(disk.clone())).unwrap()
}

/// A database with maps and a table of so many rows each, one after the other in the log.
fn filled(disk: &SimulatedDevice, maps: &[&str], rows: u32) -> Kiln {
    let db = open(disk);
    for name in maps {
        let map = db.map(name).unwrap();
        for number in 0..rows {
            db.put(&map, number.to_be_bytes(), [7; 100]).unwrap().forget();
        }
        db.persist().unwrap();
    }
    let table = db.table("table").unwrap();
    for number in 0..rows {
        db.put(&table, number.to_be_bytes(), [7; 100]).unwrap().forget();
    }
    db.persist().unwrap();
    db
}

/// What is left in the hash index of objects that users made.
fn entries(db: &Kiln) -> u64 {
    let system = db.engine().objects.iter().filter(|object| object.id < FIRST_OBJECT);
    db.engine().index.entry_count() - system.map(|object| object.key_count.sum()).sum::<u64>()
}

#[test]
fn nothing_goes_before_the_drop_is_durable_and_no_snapshot_is_older() {
    let db = filled(&SimulatedDevice::new(1), &["map"], 100);
    let before = entries(&db);
    let snapshot = db.snapshot().unwrap();
    db.drop_map("map").unwrap().forget();
    db.engine().remove_dropped();
    assert_eq!(entries(&db), before, "it is not durable");
    db.engine().persist().unwrap();
    db.engine().remove_dropped();
    assert_eq!(entries(&db), before, "a snapshot sees it");
    drop(snapshot);
    db.engine().remove_dropped();
    assert_eq!(entries(&db), before - 100);
    assert_eq!((db.statistics().dropped_rows, db.statistics().dropping), (100, 0));
    assert!(!db.engine().removal.is_pending());
}

/// Whoever copies, or settles, while the rows leave would have some of them come back behind whoever removes them.
#[test]
fn what_leaves_is_neither_written_anew_nor_settled() {
    let db = filled(&SimulatedDevice::new(1), &["map"], 100);
    let engine = db.engine();
    let table = db.table("table").unwrap();
    db.drop_map("map").unwrap().forget();
    db.drop_table("table").unwrap().forget();
    engine.persist().unwrap();
    // As whoever removes does, before they have removed anything.
    assert!(engine.begin_walk().is_some());
    assert!(table.handle().state().is_nobodys());
    assert_eq!(engine.settle_durable().unwrap().puts, 0);
    let end = engine.log.records_end();
    engine.compact_log(|_| {}).unwrap();
    let database = engine.superblock.lock().current().database;
    let mut reader = RecordReader::new(&engine.segments, database, Cursor::at_seal(engine.log.begin()));
    while reader.cursor().position < engine.log.hardened() {
        for (address, record) in reader.next_batch(engine.log.hardened(), BATCH).unwrap().records {
            assert!(address < end || record.shape.object < FIRST_OBJECT, "a row was written anew");
        }
    }
}

#[test]
fn the_memory_of_a_dropped_tables_order_goes_back() {
    let db = filled(&SimulatedDevice::new(1), &[], 150_000);
    let before = db.statistics().ordered_index_bytes;
    db.drop_table("table").unwrap().forget();
    db.persist().unwrap();
    let after = db.statistics().ordered_index_bytes;
    assert!(after < before / 4, "{after} bytes of {before} are left");
}

/// A checkpoint would tell of some rows, and count others.
#[test]
fn nothing_goes_while_a_checkpoint_is_taken() {
    let db = filled(&SimulatedDevice::new(1), &["map"], 100);
    let before = entries(&db);
    db.drop_map("map").unwrap().forget();
    db.engine().persist().unwrap();
    let held = db.engine().graves.hold();
    db.engine().remove_dropped();
    assert_eq!(entries(&db), before);
    drop(held);
    db.engine().remove_dropped();
    assert_eq!(entries(&db), before - 100);
}

/// What cannot be read keeps neither the rest of its object from going, nor another one.
#[test]
fn c9_a_damaged_segment_keeps_its_own_rows_and_no_others() {
    let disk = SimulatedDevice::new(1);
    let db = filled(&disk, &["one", "two"], 1_500);
    let before = entries(&db);
    disk.zero("segment-00000001", 20 << 10, 4 << 10);
    for name in ["one", "two"] {
        db.drop_map(name).unwrap().forget();
    }
    db.engine().persist().unwrap();
    db.engine().remove_dropped();
    let removed = before - entries(&db);
    assert!((2_000..3_000).contains(&removed), "{removed} of 3,000 have gone");
    let failure = db.statistics().drop_failure.expect("it is told");
    assert!(failure.contains("segment-00000001"), "{failure}");
    assert_eq!(db.statistics().dropping, 0, "it is not tried again and again");
    // Nor does it keep what is dropped later, of which nothing is there.
    db.drop_table("table").unwrap().forget();
    db.engine().persist().unwrap();
    db.engine().remove_dropped();
    assert_eq!(before - entries(&db), removed + 1_500);
}

/// Opening found the rows of what a checkpoint had, and the log no longer, for ever.
#[test]
fn c4_what_a_checkpoint_has_of_dropped_segments_is_nothing_after_a_crash() {
    let disk = SimulatedDevice::new(1);
    let db = filled(&disk, &["map"], 3_000);
    assert!(db.checkpoint().unwrap());
    db.drop_map("map").unwrap().forget();
    db.persist().unwrap();
    db.persist().unwrap();
    assert!(db.engine().log.begin() > 0, "the segments of the map are gone");
    let left = disk.after_crash(&mut |_| crate::device::Keep::Lost);
    let db = open(&left);
    assert!(db.recovery_report().checkpoint.is_some(), "it is of use");
    db.persist().unwrap();
    db.persist().unwrap();
    assert_eq!(db.statistics().dropping, 0);
    assert_eq!(entries(&db), 3_000);
    assert!(db.check().unwrap().is_clean(), "{:?}", db.check().unwrap().problems);
}
