//! How the rows of dropped objects go, and what keeps some of them.

use std::sync::Arc;

use super::*;
use crate::device::{Fault, FaultKind, OperationKind, SimulatedDevice};
use crate::kernel::handle::HasHandle as _;
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

/// A database whose checkpoint has a map of 3,000 rows that is gone from the log, and a table of as many that is there.
fn dropped_behind_a_checkpoint(disk: &SimulatedDevice) -> Kiln {
    let db = filled(disk, &["map"], 3_000);
    assert!(db.checkpoint().unwrap());
    db.drop_map("map").unwrap().forget();
    db.persist().unwrap();
    db.persist().unwrap();
    assert!(db.engine().log.begin() > 0, "the segments of the map are gone");
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
    assert!(engine.begin_walk(&mut None).is_some());
    assert!(table.handle().state().is_nobodys());
    assert_eq!(engine.settle_durable().unwrap().puts, 0);
    let end = engine.log.records_end();
    engine.compact_log(|_| {}).unwrap();
    let mut reader = engine.log_reader(&engine.segments, Cursor::at_seal(engine.log.begin()));
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
    assert_eq!(db.statistics().dropping, 1, "the rest of one of them stays");
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
    let _db = dropped_behind_a_checkpoint(&disk);
    let left = disk.after_crash(&mut |_| crate::device::Keep::Lost);
    let db = open(&left);
    assert!(db.recovery_report().checkpoint.is_some(), "it is of use");
    db.persist().unwrap();
    db.persist().unwrap();
    assert_eq!(db.statistics().dropping, 0);
    assert_eq!(entries(&db), 3_000);
    assert!(db.check().unwrap().is_clean(), "{:?}", db.check().unwrap().problems);
}

/// A read that failed once kept its segment, and the object counted as gone, of which a checkpoint then had entries and no count.
#[test]
fn c9_what_could_not_be_read_is_read_again_once_more_has_hardened_and_after_opening() {
    let disk = SimulatedDevice::new(1);
    let db = filled(&disk, &["map"], 3_000);
    let before = entries(&db);
    db.drop_map("map").unwrap().forget();
    db.drop_table("table").unwrap().forget();
    db.engine().persist().unwrap();
    // Two places: the whole log has to be read again in between.
    for nth in [2, 5] {
        disk.inject(Fault { operation: OperationKind::Read, nth, kind: FaultKind::EIO, sticky: false });
    }
    db.engine().remove_dropped();
    assert_eq!(disk.faults_fired(), 2);
    let left = entries(&db);
    assert!(left > 0 && left < before / 2, "{left} of {before}");
    assert_eq!(db.statistics().dropping, 2, "both may have rows there");
    assert!(db.statistics().drop_failure.is_some());
    let state = |name: &str| db.engine().objects.iter().find(|object| object.name() == name).unwrap();
    let counted = state("map").key_count.sum() + state("table").ordered().unwrap().len() as u64;
    assert_eq!(counted, left);
    db.engine().remove_dropped();
    assert_eq!(entries(&db), left, "not again and again");
    assert!(db.checkpoint().unwrap());
    let opened = open(&disk.after_crash(&mut |_| crate::device::Keep::Lost));
    assert!(opened.recovery_report().checkpoint.is_some());
    assert_eq!(entries(&opened), left);
    opened.engine().remove_dropped();
    assert_eq!(entries(&opened), 0);
    let other = db.map("other").unwrap();
    for number in 0_u32..1_000 {
        db.put(&other, number.to_be_bytes(), [7; 100]).unwrap().forget();
    }
    db.engine().persist().unwrap();
    db.engine().remove_dropped();
    assert_eq!(entries(&db), 1_000);
    assert_eq!(db.statistics().drop_failure, None);
    db.engine().settle_durable().unwrap();
    assert_eq!(db.statistics().dropping, 0);
}

/// A settling under way has collected rows of the table that the tree does not have yet.
#[test]
fn a_tables_rows_have_gone_once_the_tree_was_looked_at_and_no_settling_is_under_way() {
    let db = filled(&SimulatedDevice::new(1), &[], 100);
    db.drop_table("table").unwrap().forget();
    db.engine().persist().unwrap();
    let settling = db.engine().settled.settling.lock();
    db.engine().remove_dropped();
    assert_eq!((entries(&db), db.statistics().dropping), (0, 1));
    drop(settling);
    let settlings = db.engine().settlings();
    db.engine().settle_if_due();
    assert_eq!(db.statistics().dropping, 0);
    assert!(db.engine().settlings() > settlings, "who waits for space looks again");
}

/// Each left its length of padding in the log, and the walk waited for that to harden, which nobody had it do.
#[test]
fn a_put_with_a_handle_that_leads_nowhere_takes_no_log() {
    let db = filled(&SimulatedDevice::new(1), &["map"], 100);
    let map = db.map("map").unwrap();
    db.drop_map("map").unwrap().forget();
    db.engine().persist().unwrap();
    let tail = db.engine().log.tail();
    for number in 1_000_u32..1_010 {
        assert!(db.put(&map, number.to_be_bytes(), [7; 1_000]).is_err());
    }
    assert_eq!(db.engine().log.tail(), tail);
}

#[test]
fn a_walk_over_what_nobody_hardens_asks_for_it() {
    let db = filled(&SimulatedDevice::new(1), &["map"], 100);
    db.drop_map("map").unwrap().forget();
    db.engine().persist().unwrap();
    let engine = db.engine();
    // Of nobody's rows: the walk is over, whatever there is, once its objects have none.
    let other = db.map("other").unwrap();
    db.put(&other, "key", "value").unwrap().forget();
    let state = engine.objects.iter().find(|object| object.name() == "map").unwrap();
    state.key_count.add(1);
    assert!(!engine.hardening.is_asked());
    engine.remove_dropped();
    assert!(engine.hardening.is_asked());
    assert_eq!(db.statistics().dropping, 1);
    engine.persist().unwrap();
    engine.remove_dropped();
    assert_eq!(db.statistics().dropping, 0);
}

/// The checkpoint had the count of rows whose segments were gone: after the next opening nobody knew whether all keys of tables have entries, and each put read the disk.
#[test]
fn an_orderly_close_leaves_no_counts_of_what_was_dropped() {
    let disk = SimulatedDevice::new(1);
    let db = dropped_behind_a_checkpoint(&disk);
    let crashed = disk.after_crash(&mut |_| crate::device::Keep::Lost);
    db.close().unwrap();
    let db = open(&disk);
    assert!(db.engine().settled.orders_are_exact);
    assert_eq!(entries(&db), 3_000);
    // A crash leaves them, and the next close takes them away.
    let db = open(&crashed);
    assert!(!db.engine().settled.orders_are_exact);
    db.persist().unwrap();
    db.close().unwrap();
    assert!(open(&crashed).engine().settled.orders_are_exact);
}

/// All of the log was read for whatever was dropped.
#[test]
fn what_lies_before_an_object_was_made_is_not_read_nor_anything_for_an_empty_one() {
    let disk = SimulatedDevice::new(1);
    let db = filled(&disk, &["map"], 3_000);
    db.map("empty").unwrap();
    db.table("empty table").unwrap();
    for number in 0_u32..100 {
        db.put(&db.map("young").unwrap(), number.to_be_bytes(), [7; 100]).unwrap().forget();
    }
    db.drop_map("empty").unwrap().forget();
    db.drop_table("empty table").unwrap().forget();
    db.engine().persist().unwrap();
    disk.inject(Fault { operation: OperationKind::Read, nth: 1, kind: FaultKind::EIO, sticky: true });
    db.engine().remove_dropped();
    assert_eq!(disk.faults_fired(), 0);
    disk.clear_faults();
    db.drop_map("young").unwrap().forget();
    db.engine().persist().unwrap();
    // Its rows are in one or two segments; of others there are more, and something is live in each.
    let reads_max = 6;
    assert!(db.engine().log.hardened() / SEGMENT_BYTES > reads_max + 2);
    disk.inject(Fault { operation: OperationKind::Read, nth: reads_max, kind: FaultKind::EIO, sticky: true });
    db.engine().remove_dropped();
    assert_eq!((disk.faults_fired(), entries(&db)), (0, 6_000));
}

/// Who settles, or makes room for a commit, did nothing else until all rows of all dropped tables were out.
#[test]
fn a_tables_rows_leave_the_tree_in_steps() {
    let db = filled(&SimulatedDevice::new(1), &[], TREE_ROWS as u32 + 1_000);
    db.engine().settle_durable().unwrap();
    db.drop_table("table").unwrap().forget();
    db.engine().persist().unwrap();
    db.engine().remove_dropped();
    let rows = || db.engine().settled.tree.root().entries();
    assert_eq!(rows(), TREE_ROWS as u64 + 1_000);
    db.engine().settle_if_due();
    assert_eq!((rows(), db.statistics().dropping), (1_000, 1));
    db.engine().settle_if_due();
    assert_eq!((rows(), db.statistics().dropping), (0, 0));
}

/// It was a conflict, for ever.
#[test]
fn c9_a_name_of_what_was_dropped_is_damage_for_who_drops_it() {
    let db = filled(&SimulatedDevice::new(1), &["map"], 10);
    let id = db.map("map").unwrap().handle().id;
    db.drop_map("map").unwrap().forget();
    let entry = crate::kernel::catalog::encode_entry(crate::ObjectKind::Map, id, 0);
    let forge =
        |tx: &crate::Transaction<'_>| tx.put_key(crate::kernel::catalog::CATALOG_OBJECT, b"map", &entry);
    db.transact(forge).unwrap().forget();
    assert_eq!(db.drop_map("map").map(drop).unwrap_err().kind(), ErrorKind::Corrupted);
}

/// Each opening, though it only read, wrote the whole index anew when it was closed.
#[test]
fn what_a_snapshot_keeps_of_a_dropped_object_is_told_by_one_checkpoint() {
    let disk = SimulatedDevice::new(1);
    let db = filled(&disk, &["map"], 100);
    assert!(db.checkpoint().unwrap());
    db.create_snapshot("kept").unwrap();
    db.drop_map("map").unwrap().forget();
    db.persist().unwrap();
    drop(db);
    let numbers: Vec<_> = (0..4).map(|_| checkpoint_number(&disk)).collect();
    assert_eq!(numbers[1..], [numbers[1]; 3], "{numbers:?}");
    let db = open(&disk);
    db.drop_snapshot("kept").unwrap();
    (0..2).for_each(|_| db.persist().unwrap());
    assert_eq!(db.statistics().dropping, 0);
    drop(db);
    assert!(checkpoint_number(&disk) > numbers[1], "what has gone is told");
}

fn checkpoint_number(disk: &SimulatedDevice) -> u64 {
    open(disk).engine().superblock.lock().current().checkpoint.number
}
