//! What a delete has to learn from disk, and what becomes of that meanwhile.

use std::sync::Arc;

use crate::device::{Fault, FaultKind, Keep, OperationKind, SimulatedDevice};
use crate::error::ErrorKind;
use crate::kernel::handle::HasHandle;
use crate::kernel::write_set::WriteSet;
use crate::storage::record::NEVER;
use crate::sync::atomic::Ordering;
use crate::{Kiln, Options, Table};

pub(in crate::kernel) const ROW: &[u8] = b"row";

/// So often a commit that needs space looks for some on a full disk on which nothing can be dropped, before it gives up.
const ATTEMPTS: u64 = 3;

/// A table with a row that is on disk alone, in the log, and others in the tree, of which nothing is in memory.
pub(in crate::kernel) fn row_on_disk() -> (Kiln, Table) {
    let options =
        Options::new().background(false).segment_bytes(64 << 10).memory(0).space_amplification(100.0);
    let db = options.open_on(Arc::new(SimulatedDevice::new(1))).unwrap();
    let table = db.table("table").unwrap();
    let put = |key: &[u8], value: &[u8]| db.put(&table, key, value).unwrap().forget();
    put(b"another row", b"");
    db.persist().unwrap();
    assert_eq!(db.settle().unwrap(), 1);
    put(ROW, b"value");
    let log = &db.engine().log;
    while log.head() == 0 {
        put(format!("filler {}", log.tail()).as_bytes(), &[0; 5_000]);
        db.persist().unwrap();
    }
    db.engine().settled.tree.set_cache_bytes(0);
    (db, table)
}

/// The write set of a transaction that deletes the row.
pub(in crate::kernel) fn deletion(db: &Kiln, table: &Table) -> WriteSet {
    let (object, mut writes) = (table.handle().id, WriteSet::default());
    writes.set((object, db.engine().hash(object, ROW), ROW), None, NEVER);
    writes
}

/// Two rows of a transaction whose leaves were never in memory at the same time kept it busy for ever: in each attempt it had forgotten one.
#[test]
fn c2_what_was_looked_up_is_known_in_every_attempt_that_follows() {
    let (db, table) = row_on_disk();
    assert!(db.settle().unwrap() > 1);
    let (engine, writes) = (db.engine(), deletion(&db, &table));
    let change = writes.change(&writes.writes()[0]);
    let mut lookup = None;
    let mut attempt = |is_known: bool| {
        let bucket = engine.index.lock(change.hash).unwrap();
        let current = engine.settled_current(&change, &mut lookup);
        engine.index.unlock_unchanged(bucket);
        assert_eq!(current.map(|current| current.exists), is_known.then_some(true));
        if !is_known {
            engine.look_up_settled(change.object, change.key, lookup.as_mut().unwrap()).unwrap();
        }
    };
    [false, true, true].into_iter().for_each(&mut attempt);
    // Others may write in the bucket as often as they like: who deletes a row beside a hot key read for ever.
    let bucket = engine.index.lock(change.hash).unwrap();
    engine.index.unlock_changed(bucket);
    attempt(true);
    // What has settled since may have been the row's deletion.
    db.put(&table, "another row", "newer").unwrap().forget();
    db.persist().unwrap();
    assert_eq!(db.settle().unwrap(), 1);
    [false, true].into_iter().for_each(attempt);
}

/// Rows that were written again and again in memory settled with every record of theirs that was not dropped yet, which left nothing out of the indexes, took
/// memory and the disk, and slowed commits down.
#[test]
fn what_is_dead_out_of_memory_makes_settling_due_only_where_there_is_much_of_it_or_deletions_wait() {
    let is_due = |puts: u32, keys: u32, deletes: bool| {
        let options = Options::new().background(false).segment_bytes(64 << 10).memory(0);
        let options = options.settle_log_bytes(256 << 10);
        let db = options.open_on(Arc::new(SimulatedDevice::new(1))).unwrap();
        let table = db.table("table").unwrap();
        db.engine().begin_settling();
        // Nothing is dropped meanwhile, nor does it settle.
        let snapshot = db.snapshot().unwrap();
        for number in 0..puts {
            db.put(&table, (number % keys).to_be_bytes(), [1; 5_000]).unwrap().forget();
            db.persist().unwrap();
        }
        if deletes {
            db.delete(&table, 0_u32.to_be_bytes()).unwrap().forget();
        }
        drop(snapshot);
        let engine = db.engine();
        engine.harden_all().unwrap();
        engine.forget_all_deleted();
        let cold_bytes = engine.cold_log_bytes();
        assert!(cold_bytes > 512 << 10 && engine.unsettled_bytes() <= cold_bytes);
        engine.is_settling_due()
    };
    assert!(!is_due(100, 8, false), "eight rows are live, and in memory");
    assert!(is_due(100, 100, false), "all are live");
    assert!(is_due(400, 8, false), "there is too much that nothing may ever drop");
    assert!(is_due(100, 8, true), "a deletion waits");
}

/// A committer may come to it long after it has found the database open; the tree's file was cut, and its map moved, though somebody else may have opened the directory.
#[test]
fn c4_room_is_not_looked_for_in_the_tree_behind_a_close() {
    let disk = SimulatedDevice::new(1);
    let options = Options::new().background(false).segment_bytes(64 << 10).memory(512 << 10);
    let db = options.open_on(Arc::new(disk.clone())).unwrap();
    let table = db.table("table").unwrap();
    let put = |number: u32| db.put(&table, number.to_be_bytes(), [1; 8_000]).map(|put| put.forget());
    (0..201).for_each(|number| put(number).unwrap());
    db.persist().unwrap();
    db.settle().unwrap();
    (0..200_u32).for_each(|number| _ = db.delete(&table, number.to_be_bytes()).unwrap().forget());
    db.persist().unwrap();
    let tx = db.begin().unwrap();
    let mut range = tx.range::<&[u8]>(&table, ..);
    assert!(range.next().is_some());
    // It keeps what the tree had.
    db.settle().unwrap();
    disk.set_capacity(Some(disk.used_bytes() + (64 << 10)));
    assert!((300..1_000).any(|number| put(number).is_err()));
    drop(range);
    drop(tx);
    assert!(db.engine().segments.disk_is_full());
    db.close().unwrap();
    let steps = disk.steps();
    assert!(!db.engine().settle_for_room());
    assert_eq!(disk.steps(), steps, "nothing was written");
}

/// What was being sorted filled the disk, and was gone soon after; whoever committed meanwhile was told that the disk is full.
#[test]
fn c5_who_needs_space_waits_for_what_somebody_else_is_just_sorting_on_the_disk() {
    for settles in [true, false] {
        let disk = SimulatedDevice::new(1);
        let options = Options::new().background(false).segment_bytes(64 << 10).memory(512 << 10);
        let db = options.open_on(Arc::new(disk.clone())).unwrap();
        let table = db.table("table").unwrap();
        db.put(&table, ROW, "value").unwrap().forget();
        db.persist().unwrap();
        db.settle().unwrap();
        let settled = &db.engine().settled;
        // As who settles has them, or who loads.
        let loading = settled.loading.lock();
        let settling = settles.then(|| settled.settling.lock());
        disk.inject(Fault {
            operation: OperationKind::Allocate,
            nth: 1,
            kind: FaultKind::ENOSPC,
            sticky: true,
        });
        let outcome = std::thread::scope(|scope| {
            let committer = scope.spawn(|| {
                (0..100_u32).try_for_each(|number| {
                    db.put(&table, number.to_be_bytes(), [1; 8_000]).map(|put| put.forget())
                })
            });
            // So often it looks before it finds that nothing can be dropped.
            while disk.faults_fired() < ATTEMPTS && !committer.is_finished() {
                std::thread::yield_now();
            }
            if settles {
                disk.clear_faults();
                settled.ended.fetch_add(1, Ordering::SeqCst);
            }
            drop(settling);
            committer.join().unwrap()
        });
        drop(loading);
        match settles {
            true => outcome.unwrap(),
            false => assert_eq!(outcome.unwrap_err().kind(), ErrorKind::NoSpace),
        }
    }
}

/// The tree had nothing any more, and the count that was asked then is not kept once something has settled.
#[test]
fn rows_are_estimated_where_all_that_has_settled_was_deleted() {
    const ROWS: u32 = 20_000;
    let options = Options::new().background(false).memory(16 << 20).settle_log_bytes(0);
    let db = options.open_on(Arc::new(SimulatedDevice::new(1))).unwrap();
    let table = db.table("table").unwrap();
    let put = |numbers: std::ops::Range<u32>| {
        numbers.for_each(|number| db.put(&table, number.to_be_bytes(), "value").unwrap().forget());
        db.persist().unwrap();
    };
    // The writer does not look whether a row has settled: each time all of them are counted anew.
    for _ in 0..5 {
        put(0..ROWS);
        db.settle().unwrap();
    }
    for number in 0..ROWS {
        assert!(db.delete(&table, number.to_be_bytes()).unwrap().forget());
    }
    db.persist().unwrap();
    db.settle().unwrap();
    assert!(db.engine().settled.tree.is_empty());
    put(0..ROWS);
    let estimate = table.len_estimate::<&[u8]>(..);
    assert!((ROWS / 2..ROWS * 2).contains(&(estimate as u32)), "{estimate}");
}

/// A crash between the tree's root and the superblock; what the root says was relied on, and never noted. So the log dropped what only that tree had, and a
/// database without it was opened without a word.
#[test]
fn c9_a_tree_is_missed_of_which_the_superblock_did_not_know_when_a_crash_came() {
    let open = |disk: &SimulatedDevice| {
        let options = Options::new().background(false).segment_bytes(64 << 10).memory(0).settle_log_bytes(0);
        options.open_on(Arc::new(disk.clone()))
    };
    let mut found = 0;
    for nth in 1.. {
        let disk = SimulatedDevice::new(1);
        let db = open(&disk).unwrap();
        let (table, map) = (db.table("table").unwrap(), db.map("map").unwrap());
        for number in 0..50_u32 {
            db.put(&table, number.to_be_bytes(), [0; 3_000]).unwrap().forget();
        }
        db.put(&map, "key", [0; 3_000]).unwrap().forget();
        db.persist().unwrap();
        let fired = disk.faults_fired();
        disk.inject(Fault { operation: OperationKind::Write, nth, kind: FaultKind::EIO, sticky: false });
        if db.settle().is_ok() {
            assert!(disk.faults_fired() == fired || found > 0);
            break;
        }
        let disk = disk.after_crash(&mut |_| Keep::Kept);
        let db = open(&disk).unwrap();
        if db.engine().settled.tree.settled_to() == 0 {
            continue;
        }
        let map = db.map("map").unwrap();
        for _ in 0..100 {
            db.put(&map, "key", [0; 3_000]).unwrap().safe().unwrap();
            db.persist().unwrap();
        }
        assert!(db.engine().log.begin() > 0, "what has settled is still in the log");
        drop((map, db));
        disk.remove_file("tree");
        let error = open(&disk).map(drop).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupted, "{error}");
        found += 1;
    }
    assert!(found > 0, "no write failed behind the tree's root");
}

/// It was called full until the log came to the end of what had been prepared before: meanwhile nothing settled, and no checkpoint was taken.
#[test]
fn a_disk_is_no_longer_full_once_whoever_looks_finds_space() {
    let disk = SimulatedDevice::new(1);
    let options = Options::new().background(false).segment_bytes(64 << 10).memory(512 << 10);
    let db = options.open_on(Arc::new(disk.clone())).unwrap();
    let table = db.table("table").unwrap();
    (0..20_u32).for_each(|key| db.put(&table, key.to_be_bytes(), [1; 8_000]).unwrap().forget());
    db.persist().unwrap();
    disk.set_capacity(Some(disk.used_bytes() + (128 << 10)));
    // Much more is asked for than the next small commits need.
    db.engine().prepare_ahead(1 << 20).unwrap_err();
    assert!(db.engine().segments.disk_is_full());
    db.engine().prepare_ahead(0).unwrap();
    assert!(db.engine().segments.disk_is_full());
    disk.set_capacity(None);
    db.compact(|_| {}).unwrap();
    assert!(!db.engine().segments.disk_is_full());
}
