//! Settling on several threads: the same settles as on one, and what fails in the middle loses nothing.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::device::{Fault, FaultKind, Keep, OperationKind, SimulatedDevice};
use crate::kernel::handle::HasHandle as _;
use crate::sync::atomic::Ordering;
use crate::{Kiln, Object, Options, Table};

const SEGMENT_BYTES: u64 = 16 << 10;

type Rows = BTreeMap<Vec<u8>, Vec<u8>>;

/// So many settle, with so much memory.
fn options(threads: usize, memory_bytes: u64) -> Options {
    let options = Options::new().background(false).segment_bytes(SEGMENT_BYTES).memory(0).settle_log_bytes(0);
    options.settle_threads(threads).settle_memory(memory_bytes)
}

/// With the one what is sorted is in runs, and one thread merges; with the other there is enough for all to merge.
const MEMORIES: [u64; 2] = [0, 1 << 30];

fn open(disk: &SimulatedDevice, threads: usize, memory_bytes: u64) -> (Kiln, Table) {
    let db = options(threads, memory_bytes).open_on(Arc::new(disk.clone())).unwrap();
    let table = db.table("table").unwrap();
    (db, table)
}

/// Puts and deletes rows all over the keys, in many segments.
fn change(db: &Kiln, table: &Table, rows: &mut Rows, round: u32) {
    for number in 0..300_u32 {
        let key = (number * 7_919 % (200 + round)).to_be_bytes().to_vec();
        if number % 5 == round % 5 {
            db.delete(table, &key).unwrap().forget();
            rows.remove(&key);
        } else {
            let value = [&round.to_be_bytes()[..], &vec![number as u8; number as usize % 700]].concat();
            db.put(table, &key, &value).unwrap().forget();
            rows.insert(key, value);
        }
        if number % 20 == 0 {
            db.persist().unwrap();
        }
    }
    db.persist().unwrap();
}

#[track_caller]
fn assert_rows(db: &Kiln, table: &Table, rows: &Rows) {
    let found: Rows = db.snapshot().unwrap().range::<&[u8]>(table, ..).map(Result::unwrap).collect();
    assert!(found == *rows, "{} rows for {}", found.len(), rows.len());
    assert!(rows.iter().all(|(key, value)| db.get(table, key).unwrap().as_ref() == Some(value)));
    let check = db.check().unwrap();
    assert!(check.is_clean(), "{check}");
}

#[test]
fn c4_as_much_settles_on_several_threads_as_on_one() {
    let all = [1, 2, 3, 7].into_iter().flat_map(|threads| MEMORIES.map(|bytes| (threads, bytes)));
    let settle = |(threads, memory_bytes)| {
        let (db, table) = open(&SimulatedDevice::new(1), threads, memory_bytes);
        let mut rows = Rows::new();
        let mut settled = Vec::new();
        for round in 0..4 {
            change(&db, &table, &mut rows, round);
            let count = db.settle().unwrap();
            let statistics = db.statistics();
            assert!(count > 100, "{count} rows");
            let orders = db.engine().objects.iter().filter_map(|object| object.ordered());
            let left = orders.map(|keys| keys.len()).sum::<usize>();
            let settled_to = db.engine().settled.tree.settled_to();
            settled.push((count, statistics.rows_settled, settled_to, left));
        }
        assert_rows(&db, &table, &rows);
        settled
    };
    let settled: Vec<_> = all.map(settle).collect();
    assert!(settled.iter().all(|of_threads| *of_threads == settled[0]), "{settled:?}");
}

/// Whichever thread comes to it: a record that a snapshot must not see yet ends what settles at its segment, and what others have read behind it is not asked for.
#[test]
fn c2_what_a_snapshot_must_not_see_yet_settles_on_no_thread() {
    for part in 1..8 {
        let settled = [(1, 0), (3, 0), (3, 1 << 30), (5, 0)].map(|(threads, memory_bytes)| {
            let (db, table) = open(&SimulatedDevice::new(1), threads, memory_bytes);
            let put = |number: u32| {
                db.put(&table, number.to_be_bytes(), [number as u8; 1_000]).unwrap().forget();
                db.persist().unwrap();
            };
            (0..10 * part).for_each(put);
            let snapshot = db.snapshot().unwrap();
            (5..90).for_each(put);
            let count = db.settle().unwrap();
            let settled_to = db.engine().settled.tree.settled_to();
            assert!(settled_to.is_multiple_of(SEGMENT_BYTES) && settled_to < db.statistics().log_tail);
            let seen: Vec<_> = snapshot.range::<&[u8]>(&table, ..).map(Result::unwrap).collect();
            assert_eq!(seen.len() as u32, 10 * part);
            drop(snapshot);
            db.settle().unwrap();
            assert_eq!(table.len(), 90);
            assert!(db.check().unwrap().is_clean());
            (settled_to, count)
        });
        assert!(settled.iter().all(|of_threads| *of_threads == settled[0]), "{settled:?}");
        assert!(part < 3 || settled[0].0 > 0, "{settled:?}");
    }
}

/// Who had looked for such a row, and not found it in memory any more, believed that there was none.
#[test]
fn c2_that_rows_settle_is_told_whichever_thread_has_come_to_them() {
    for memory_bytes in MEMORIES {
        let (db, table) = open(&SimulatedDevice::new(1), 3, memory_bytes);
        let map = db.map("map").unwrap();
        (0..50_u32).for_each(|key| db.put(&table, key.to_be_bytes(), [1; 1_000]).unwrap().forget());
        let newest = db.put(&table, "last", "row").unwrap().fast().1.version();
        (0..200_u32).for_each(|key| db.put(&map, key.to_be_bytes(), [1; 1_000]).unwrap().forget());
        db.persist().unwrap();
        assert_eq!(db.settle().unwrap(), 51);
        assert!(db.engine().forgotten.load(Ordering::SeqCst) >= newest.number());
    }
}

/// A database of which three threads have settled some, and are to settle more.
fn settled_once(memory_bytes: u64) -> (SimulatedDevice, Kiln, Table, Rows) {
    let disk = SimulatedDevice::new(1);
    let (db, table) = open(&disk, 3, memory_bytes);
    let mut rows = Rows::new();
    change(&db, &table, &mut rows, 0);
    db.settle().unwrap();
    change(&db, &table, &mut rows, 1);
    (disk, db, table, rows)
}

/// A read or a write fails, on whichever thread: in the log, in what is sorted, in the tree, in the superblock.
#[test]
fn c4_c8_a_settling_on_several_threads_that_fails_loses_nothing_and_is_made_up_for() {
    let (mut failures, mut round) = (0, 0);
    let faults = [(OperationKind::Read, FaultKind::EIO), (OperationKind::Write, FaultKind::ENOSPC)];
    for (fault, memory_bytes) in faults.into_iter().flat_map(|fault| MEMORIES.map(|bytes| (fault, bytes))) {
        let (operation, kind) = fault;
        for nth in (1..).step_by(7) {
            let (disk, db, table, mut rows) = settled_once(memory_bytes);
            disk.inject(Fault { operation, nth, kind, sticky: false });
            let settled = db.settle();
            let has_fired = disk.faults_fired() > 0;
            disk.clear_faults();
            failures += u32::from(settled.is_err());
            round += 1;
            assert_rows(&db, &table, &rows);
            if settled.is_ok() || db.engine().settled.tree.check_not_failed().is_ok() {
                change(&db, &table, &mut rows, 2);
                db.settle().unwrap();
                assert_rows(&db, &table, &rows);
            }
            drop((table, db));
            let (db, table) = open(&disk.after_crash(&mut |_| Keep::Lost), 3, memory_bytes);
            assert_rows(&db, &table, &rows);
            if !has_fired {
                break;
            }
        }
    }
    assert!(failures > 5, "{failures} of {round} have failed");
}

/// It stayed in memory, and its log on disk, until the database was opened again.
#[test]
fn c5_what_a_removal_has_left_where_it_failed_leaves_the_index_with_what_settles_next() {
    let mut failures = 0;
    for nth in 1.. {
        let (disk, db, table, _) = settled_once(1 << 30);
        let (engine, settlement) = (db.engine(), &db.engine().settled);
        disk.inject(Fault { operation: OperationKind::Write, nth, kind: FaultKind::ENOSPC, sticky: false });
        let settled = db.settle();
        if disk.faults_fired() == 0 {
            break;
        }
        if settled.is_err() && settlement.tree.settled_to() > settlement.removed_to.load(Ordering::SeqCst) {
            failures += 1;
            db.put(&table, "one more", "row").unwrap().forget();
            db.persist().unwrap();
            db.settle().unwrap();
            let removed_to = settlement.removed_to.load(Ordering::SeqCst);
            assert_eq!(removed_to, settlement.tree.settled_to());
            // Compaction may have written some anew meanwhile.
            let lies_behind = |key: &[u8]| {
                let hash = engine.hash(table.handle().id, key);
                engine.index.addresses_of(hash).all(|address| address >= removed_to).then_some(()).ok_or(())
            };
            assert!(engine.objects.orders().all(|keys| keys.each_key(lies_behind).is_ok()));
        }
    }
    assert!(failures > 0, "no removal has failed");
}

#[test]
fn c4_a_crash_while_several_threads_settle_loses_nothing() {
    for memory_bytes in MEMORIES {
        let mut crashes = 0;
        for step in (0..).step_by(3) {
            let (disk, db, table, mut rows) = settled_once(memory_bytes);
            disk.crash_after(disk.steps() + step);
            let settled = db.settle();
            drop((table, db));
            let (db, table) = open(&disk.after_crash_seeded(step), 3, memory_bytes);
            assert_rows(&db, &table, &rows);
            change(&db, &table, &mut rows, 2);
            db.settle().unwrap();
            assert_rows(&db, &table, &rows);
            if settled.is_ok() {
                break;
            }
            crashes += 1;
        }
        assert!(crashes > 3, "{crashes} crashes");
    }
}

/// Where each opening ends before a part of the log has settled none ever did: all of it was merged anew each time, and the log grew.
#[test]
fn c4_what_was_merged_before_a_crash_is_not_merged_again() {
    for (threads, changes) in [(1, false), (3, false), (1, true)] {
        let mut counts = Vec::new();
        for step in 0.. {
            let disk = SimulatedDevice::new(1);
            let (db, table) = open(&disk, threads, 0);
            let mut rows = Rows::new();
            change(&db, &table, &mut rows, 0);
            db.settle().unwrap();
            change(&db, &table, &mut rows, 1);
            disk.crash_after(disk.steps() + step);
            let settled = db.settle();
            drop((table, db));
            let (db, table) = open(&disk.after_crash_seeded(step), threads, 0);
            if changes {
                change(&db, &table, &mut rows, 2);
            }
            let begun_to = db.engine().settled.tree.root().begun_to();
            let count = db.settle().unwrap();
            assert_rows(&db, &table, &rows);
            assert_eq!(db.engine().settled.tree.root().begun_to(), 0);
            if settled.is_ok() {
                break;
            }
            counts.push((begun_to > 0, count));
        }
        let all = counts.iter().filter(|(has_begun, _)| !has_begun).map(|&(_, count)| count).max().unwrap();
        let least = counts.iter().filter(|(has_begun, _)| *has_begun).map(|&(_, count)| count).min().unwrap();
        assert!(changes || least < all / 3, "{least} rows of {all}: {counts:?}");
    }
}

/// Who asks for all to settle may have begun with much more than there is room for at once, or than an opening lasts for.
#[test]
fn what_was_begun_is_gone_on_with_by_who_settles_what_is_due_if_it_is_no_more_than_a_part() {
    for (rounds, goes_on) in [(1, true), (40, false)] {
        let begun = (0..).find_map(|step| {
            let disk = SimulatedDevice::new(1);
            let (db, table) = open(&disk, 1, 0);
            let mut rows = Rows::new();
            change(&db, &table, &mut rows, 0);
            db.settle().unwrap();
            (0..rounds).for_each(|_| change(&db, &table, &mut rows, 1));
            disk.crash_after(disk.steps() + step);
            assert!(db.settle().is_err(), "nothing was begun");
            drop((table, db));
            let options = options(1, 0).settle_log_bytes(16 << 10).unsettled_bytes(32 << 10);
            let db = options.open_on(Arc::new(disk.after_crash_seeded(step))).unwrap();
            (db.engine().settled.tree.root().begun_to() > 0).then_some((db, rows))
        });
        let (db, rows) = begun.unwrap();
        let table = db.table("table").unwrap();
        // Out of memory.
        (0..20_u32).for_each(|number| {
            db.put(&db.map("map").unwrap(), number.to_be_bytes(), [7; 3_000]).unwrap().safe().unwrap();
            db.engine().make_room(0);
        });
        let engine = db.engine();
        let (begun_to, head) = (engine.settled.tree.root().begun_to(), engine.log.head());
        assert!(begun_to < head, "{begun_to}, {head}");
        let end = engine.due_settling_end(head);
        assert_eq!(end == begun_to, goes_on, "{end} of {begun_to}, from {}", engine.unsettled_from());
        db.settle().unwrap();
        assert_rows(&db, &table, &rows);
    }
}

#[test]
fn one_thread_settles_unless_the_options_say_more() {
    let count = |options: Options| options.settle_threads_count();
    assert_eq!(count(Options::new()), 1);
    assert_eq!([0, 3, usize::MAX].map(|threads| count(Options::new().settle_threads(threads))), [1, 3, 64]);
}

/// Each of those that merge takes memory, and on a full disk room as well.
#[test]
fn several_threads_merge_where_there_is_memory_for_them_and_room() {
    let merging = |threads, memory_bytes| {
        let disk = SimulatedDevice::new(1);
        let (db, _table) = open(&disk, threads, memory_bytes);
        let before = db.engine().merging_threads();
        disk.set_capacity(Some(disk.used_bytes()));
        db.engine().prepare_ahead(1 << 20).unwrap_err();
        (before, db.engine().merging_threads())
    };
    assert_eq!(merging(1, u64::MAX), (1, 1));
    assert_eq!(merging(3, u64::MAX), (3, 1));
    assert_eq!(merging(3, 32 << 20), (2, 1));
    assert_eq!(merging(3, 0), (1, 1));
}
