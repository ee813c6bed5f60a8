//! What a transaction remembers, and what it leaves behind.

use super::*;
use std::time::Duration;

use crate::device::SimulatedDevice;
use crate::kernel::handle::HasHandle;
use crate::{Kiln, Options, Table};

/// A table of so many rows, all of which had settled when its database was opened.
fn settled_table(options: &Options, rows: u32) -> (Kiln, Table) {
    let options = options.clone().background(false).memory(8 << 20);
    let device = SimulatedDevice::new(1);
    let open = || {
        let db = options.open_on(Arc::new(device.clone())).unwrap();
        let table = db.table("table").unwrap();
        (db, table)
    };
    let (db, table) = open();
    (0..rows).for_each(|row| db.put(&table, row.to_be_bytes(), [7; 100]).unwrap().forget());
    db.persist().unwrap();
    assert_eq!(db.settle().unwrap(), u64::from(rows));
    db.close().unwrap();
    drop(table);
    open()
}

#[test]
fn what_a_large_transaction_took_does_not_stay_with_its_thread() {
    let options = Options::new().background(false).memory(8 << 20);
    let db = options.open_on(Arc::new(SimulatedDevice::new(1))).unwrap();
    let map = db.map("map").unwrap();
    let kept_after = |keys: u32, bytes: usize| {
        let put_all = |tx: &Transaction<'_>| {
            (0..keys).try_for_each(|key| tx.put(&map, key.to_be_bytes(), vec![7; bytes]))
        };
        let act = || {
            db.transact(put_all).unwrap().forget();
            POOL.with(|pool| pool.borrow().len())
        };
        std::thread::scope(|scope| scope.spawn(act).join().unwrap())
    };
    assert_eq!(kept_after(10, 10), 1);
    assert_eq!(kept_after(5_000, 10), 0);
}

/// Each look at a leaf was remembered, and each half of one that was split had all of them: commits took the square of the number of keys, under all their locks.
#[test]
fn a_leaf_that_is_read_again_and_again_is_remembered_once() {
    const KEYS: usize = 500;
    let db = Options::new().background(false).open_on(Arc::new(SimulatedDevice::new(1))).unwrap();
    let table = db.table("table").unwrap();
    let check_and_insert = |tx: &Transaction<'_>, first: usize| {
        for number in 0..KEYS {
            // Not in order, so that leaves are split in the middle.
            let key = ((first + number) * 7_919 % (1 << 16)) as u16;
            assert!(tx.prefix(&table, key.to_be_bytes()).next().is_none());
            tx.put(&table, key.to_be_bytes(), "value").unwrap();
        }
    };
    // The second one reads many leaves.
    for (round, ranges_max) in [(0, 1), (1, KEYS)] {
        let tx = db.begin().unwrap();
        check_and_insert(&tx, round * KEYS);
        let ranges = || tx.buffers.borrow().as_ref().unwrap().reads.ranges().len();
        let before = ranges();
        assert!(before <= ranges_max && before > round * 16, "{before} ranges were read");
        tx.commit_now().unwrap();
        // Leaves are at least half full, and were all read.
        assert!(ranges() <= before + KEYS / 16, "{} ranges of {before}", ranges());
    }
    let keys = db.snapshot().unwrap().range::<&[u8]>(&table, ..).count();
    assert_eq!(keys, 2 * KEYS);
}

/// Nothing that was read again made what is there old, so each look validated all that was read before.
#[test]
fn what_is_read_again_and_again_is_not_validated_each_time() {
    let db = Options::new().background(false).open_on(Arc::new(SimulatedDevice::new(1))).unwrap();
    let (table, map) = (db.table("table").unwrap(), db.map("map").unwrap());
    let tx = db.begin().unwrap();
    assert_eq!((tx.get(&map, "one").unwrap(), tx.get(&map, "other").unwrap()), (None, None));
    let begin = || tx.buffers.borrow().as_ref().unwrap().begin;
    let began = begin();
    db.engine().forgotten.fetch_max(began, Ordering::SeqCst);
    for _ in 0..100 {
        assert!(tx.range::<&[u8]>(&table, ..).next().is_none());
    }
    assert!(begin() > began);
    assert_eq!(db.version().number(), began + 1, "a tick concerns everybody");
}

/// It ran, and what it wrote of the same key was overwritten, or stayed, without a word.
#[test]
fn c1_no_operation_runs_within_the_closure_of_another_one() {
    let db = Options::new().background(false).open_on(Arc::new(SimulatedDevice::new(1))).unwrap();
    let (table, map) = (db.table("table").unwrap(), db.map("map").unwrap());
    let is_refused = |refused: Result<()>| assert_eq!(refused.unwrap_err().kind(), ErrorKind::Input);
    let tx = db.begin().unwrap();
    tx.put(&map, "there", "old").unwrap();
    for key in ["there", "absent"] {
        let change = |old: Option<&[u8]>| {
            is_refused(tx.put(&map, key, "inner"));
            is_refused(tx.get(&map, "other").map(drop));
            is_refused(tx.range::<&[u8]>(&table, ..).next().transpose().map(drop));
            old.map(|_| "new")
        };
        tx.update(&map, key, change).unwrap();
        let change = |old: Option<&[u8]>, new: &mut Vec<u8>| {
            is_refused(tx.delete(&map, key).map(drop));
            new.extend_from_slice(b"newer");
            old.is_some()
        };
        tx.update_into(&map, key, change).unwrap();
    }
    tx.commit().unwrap().forget();
    assert_eq!(db.get(&map, "there").unwrap().as_deref(), Some(&b"newer"[..]));
    assert_eq!((db.get(&map, "absent").unwrap(), map.len()), (None, 1));
}

/// Every key of the range was kept, and every leaf read, however many they were: the limits were looked at once the first was deleted.
#[test]
fn c1_a_range_that_is_too_long_to_be_deleted_is_refused_before_it_has_been_read() {
    const ROWS: u32 = 20_000;
    for options in [Options::new().transaction_entries(10), Options::new().transaction_bytes(1_024)] {
        let (db, table) = settled_table(&options, ROWS);
        let tree = &db.engine().settled.tree;
        for isolation in [Isolation::Serializable, Isolation::Snapshot] {
            tree.set_cache_bytes(0);
            tree.set_cache_bytes(u64::MAX);
            let (misses, tx) = (tree.cache_misses(), db.begin_with(isolation).unwrap());
            let refused = tx.delete_range::<&[u8]>(&table, ..).unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::Limit, "{refused}");
            let read = tree.cache_misses() - misses;
            assert!(read < 20, "{read} pages were read");
        }
        assert_eq!(table.len(), u64::from(ROWS));
    }
}

/// What is looked at beforehand refuses nothing that there is room for.
#[test]
fn c1_a_range_is_deleted_if_its_rows_can_be_deleted_one_after_the_other() {
    const ROWS: u32 = 60;
    for options in [Options::new().transaction_entries(10), Options::new().transaction_bytes(1_024)] {
        let (db, table) = settled_table(&options, ROWS);
        let id = table.handle().id;
        let one_after_the_other = |tx: &Transaction<'_>, end: [u8; 4]| {
            let rows = tx.range(&table, ..end).collect::<Result<Vec<_>>>()?;
            rows.iter().try_for_each(|(key, _)| tx.delete_key(id, key)).map(|()| rows.len() as u64)
        };
        for isolation in [Isolation::Serializable, Isolation::Snapshot] {
            for written in [0, 3, 7] {
                let outcome = |delete: &dyn Fn(&Transaction<'_>) -> Result<u64>| {
                    let tx = db.begin_with(isolation).unwrap();
                    for row in 0..written {
                        // Every second one is none of those that are deleted.
                        tx.put(&table, [row % 2, 0, 0, row], "written").unwrap();
                    }
                    delete(&tx).map_err(|error| error.kind())
                };
                let outcomes = (0..ROWS).map(u32::to_be_bytes).map(|end| {
                    let expected = outcome(&|tx| one_after_the_other(tx, end));
                    assert_eq!(outcome(&|tx| tx.delete_range(&table, ..end)), expected, "{end:?}");
                    expected.is_ok()
                });
                let accepted = outcomes.filter(|is_accepted| *is_accepted).count();
                assert!(accepted > 2 && accepted < ROWS as usize, "{accepted}");
            }
        }
    }
}

/// Nobody looked at the age while settled rows were passed: what the snapshot saw, and the log behind it, stayed for as long as the range took.
#[test]
fn c1_a_range_under_snapshot_isolation_ends_with_its_transaction_s_age() {
    const AGE: Duration = Duration::from_millis(50);
    let (db, table) = settled_table(&Options::new().transaction_age(AGE), 5_000);
    let walk = || {
        let tx = db.begin_with(Isolation::Snapshot).unwrap();
        let mut range = tx.range::<&[u8]>(&table, ..);
        // Unless even that took too long.
        range.next_row().ok()?;
        std::thread::sleep(AGE);
        let failed = loop {
            match range.next_row() {
                Ok(Some(_)) => {}
                ended => break ended.map(|_| ()),
            }
        };
        assert_eq!(db.statistics().snapshots, 0, "a transaction that has failed holds none");
        Some(failed)
    };
    let failed = std::iter::repeat_with(walk).flatten().next().unwrap();
    assert_eq!(failed.unwrap_err().kind(), ErrorKind::Limit);
}

/// What an operation has said it cannot be asked for.
#[derive(Debug, PartialEq)]
enum Own {
    Reason(u32),
    Database(crate::ErrorKind),
}

impl From<Error> for Own {
    fn from(error: Error) -> Own {
        Own::Database(error.kind())
    }
}

#[test]
fn c1_a_closure_with_errors_of_its_own_gives_up_with_them_and_runs_again_on_conflict() {
    let db = Options::new().background(false).open_on(Arc::new(SimulatedDevice::new(1))).unwrap();
    let (map, session) = (db.map("map").unwrap(), db.session("client").unwrap());
    let in_session = std::cell::Cell::new(false);
    let run = |body: &mut dyn FnMut(&Transaction<'_>) -> Result<(), Own>| match in_session.get() {
        false => db.try_transact(body).map(Commit::forget),
        true => session.try_transact(body).map(Commit::forget),
    };
    for is_through_session in [false, true] {
        in_session.set(is_through_session);
        let gave_up = run(&mut |tx| {
            tx.put(&map, "given up", "")?;
            Err(Own::Reason(7))
        });
        assert_eq!((gave_up, db.get(&map, "given up").unwrap()), (Err(Own::Reason(7)), None));
        let failed = run(&mut |tx| Ok(tx.put(&map, vec![0; 1 << 20], "")?));
        assert_eq!(failed, Err(Own::Database(ErrorKind::Input)));
        // Told by an operation, and kept or not; or by the commit.
        for told in ["kept", "not kept", "by the commit"] {
            let mut runs = 0;
            let ran = run(&mut |tx| {
                runs += 1;
                tx.get(&map, "a")?;
                if runs == 1 {
                    ["a", "b"].into_iter().for_each(|key| db.put(&map, key, told).unwrap().forget());
                }
                match told {
                    "kept" => _ = tx.get(&map, "b")?,
                    "not kept" => _ = tx.get(&map, "b").map_err(|_| Own::Reason(1))?,
                    _ => {}
                }
                Ok(tx.put(&map, "c", told)?)
            });
            assert_eq!((ran, runs), (Ok(()), 2), "{told}");
            assert_eq!(db.get(&map, "c").unwrap().as_deref(), Some(told.as_bytes()));
        }
    }
    assert_eq!(session.serial(), 3);
    db.close().unwrap();
    assert_eq!(run(&mut |tx| Ok(tx.put(&map, "c", "")?)), Err(Own::Database(ErrorKind::Aborted)));
}
