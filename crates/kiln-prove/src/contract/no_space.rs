//! A full disk: commits get an error that says so, nothing is lost, and when there is space again they work.

use std::sync::Arc;
use std::time::Duration;

use kiln::device::{Fault, FaultKind, Keep, OperationKind, SimulatedDevice};
use kiln::{ErrorKind, Kiln, Level, Object, Progress, Result};

use crate::crash::reopen;
use crate::oracle::check_recovered;
use crate::support::manual;
use crate::testing::{PATIENCE, at_test, background, eventually, seed, watched};
use crate::workload::history::History;
use crate::workload::{LARGE, Shift};

const MINUTES: Duration = Duration::from_secs(600);

/// Works until the disk has been full for a while, lifts the limit, and goes on.
fn fill_and_go_on(disk: &SimulatedDevice, history: &mut History, seed: u64) -> Result<u64> {
    let db = reopen(disk)?;
    let mut full = 0;
    let mut shift = Shift::begin(disk, &db, history, LARGE, seed)?;
    for step in 0..LARGE.operations {
        if full == 6 || step == LARGE.operations * 3 / 4 {
            disk.set_capacity(None);
        }
        match shift.step() {
            Ok(()) => {}
            Err(error) if error.kind() == ErrorKind::NoSpace => {
                assert!(full < 6, "there is space again, but: {error}");
                full += 1;
            }
            Err(error) => return Err(error),
        }
    }
    drop(shift);
    db.persist()?;
    history.told_durable(history.commits.last().map_or(0, |commit| commit.version));
    disk.crash_after(disk.steps());
    Ok(full)
}

#[test]
fn c5_nothing_is_lost_on_a_disk_of_any_size() {
    watched("c5_nothing_is_lost_on_a_disk_of_any_size", MINUTES, |replay| {
        let mut ever_full = 0;
        for blocks in (0..140).step_by(3) {
            let seed = seed() + blocks / 12;
            at_test(replay, "c5_nothing_is_lost_on_a_disk_of_any_size", seed);
            let disk = SimulatedDevice::new(seed);
            disk.set_capacity(Some(blocks * 4096));
            let mut history = History::default();
            match fill_and_go_on(&disk, &mut history, seed) {
                Ok(full) => ever_full += full,
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::NoSpace, "{blocks} blocks: {error}");
                    assert!(history.commits.len() <= 1, "{blocks} blocks: the workload stopped: {error}");
                    disk.set_capacity(None);
                }
            }
            let left = disk.after_crash(&mut |_| Keep::Lost);
            left.set_capacity(None);
            let db = reopen(&left).unwrap_or_else(|error| panic!("{blocks} blocks: {error}"));
            check_recovered(&db, &history).unwrap_or_else(|what| panic!("{blocks} blocks: {what}"));
        }
        assert!(ever_full > 20, "the disks were hardly ever full: {ever_full}");
    });
}

/// Writes until the disk is full; returns how many values went in.
fn fill(db: &Kiln, table: &kiln::Table, from: u32) -> u32 {
    for number in from.. {
        match db.put(table, number.to_be_bytes(), vec![number as u8; 8_000]) {
            Ok(commit) => commit.forget(),
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::NoSpace, "{error}");
                assert!(error.to_string().len() > 20, "{error}");
                return number;
            }
        }
    }
    unreachable!("an endless disk")
}

#[test]
fn c5_a_full_disk_fails_commits_but_not_reads_waits_or_earlier_receipts() {
    for options in [manual(), background().window(Duration::from_millis(5))] {
        watched("c5_a_full_disk_fails_commits", PATIENCE, |_| {
            let disk = SimulatedDevice::new(1);
            let db = options.open_on(Arc::new(disk.clone())).unwrap();
            let table = db.table("table").unwrap();
            disk.fail_after_bytes(2 << 20);
            let count = fill(&db, &table, 0);
            assert!(count > 50, "only {count} values of 8,000 bytes fit into 2 MiB");
            // What was committed can still be made durable: its space was reserved before.
            db.persist().unwrap();
            assert_eq!(db.receipt(db.horizon(Level::LOCAL)).poll(Level::LOCAL), Progress::Durable);
            assert_eq!(table.len(), u64::from(count));
            for number in 0..count {
                let found = db.get(&table, number.to_be_bytes()).unwrap().unwrap();
                assert_eq!(found, vec![number as u8; 8_000]);
            }
            // A transaction that does not fit leaves nothing behind.
            let rows = |db: &Kiln| db.snapshot().unwrap().range::<&[u8]>(&table, ..).count();
            let before = rows(&db);
            let too_much = db.transact(|tx| {
                (0..3_u32).try_for_each(|number| tx.put(&table, (count + number).to_be_bytes(), [0; 9_000]))
            });
            assert_eq!(too_much.map(|commit| commit.forget()).unwrap_err().kind(), ErrorKind::NoSpace);
            assert_eq!(rows(&db), before);
            assert!(db.statistics().failure.is_none(), "a full disk loses nothing");

            disk.set_capacity(None);
            eventually("a commit once there is space", || {
                db.put(&table, "later", "value").map(|commit| commit.safe()).is_ok_and(|safe| safe.is_ok())
            });
            fill_some(&db, &table, count);
            drop(db);
            let left = disk.after_crash(&mut |_| Keep::Lost);
            let db = options.open_on(Arc::new(left)).unwrap();
            assert_eq!(db.table("table").unwrap().len(), u64::from(count) + 101);
        });
    }
}

fn fill_some(db: &Kiln, table: &kiln::Table, from: u32) {
    for number in from..from + 100 {
        db.put(table, number.to_be_bytes(), vec![number as u8; 8_000]).unwrap().forget();
    }
    db.persist().unwrap();
}

/// As [`fill`], until not even a short value goes in.
fn fill_to_the_brim(db: &Kiln, table: &kiln::Table) {
    fill(db, table, 0);
    for bytes in [500, 8] {
        let put =
            |number: u32| db.put(table, [&[bytes as u8], &number.to_be_bytes()[..]].concat(), vec![1; bytes]);
        let full = (0..).find_map(|number| put(number).map(|commit| commit.forget()).err());
        assert_eq!(full.unwrap().kind(), ErrorKind::NoSpace);
    }
}

/// It took what there was for deletions, found that it was not enough, and gave it back as padding, of which nobody has any use.
#[test]
fn c5_a_transaction_of_too_many_deletions_leaves_the_space_for_deletions_to_others() {
    watched("c5_a_transaction_of_too_many_deletions", PATIENCE, |_| {
        let disk = SimulatedDevice::new(1);
        let db = reopen(&disk).unwrap();
        let (map, table) = (db.map("map").unwrap(), db.table("table").unwrap());
        (0..600_u32).for_each(|key| db.put(&map, key.to_be_bytes(), "row").unwrap().forget());
        disk.set_capacity(Some(2 << 20));
        fill_to_the_brim(&db, &table);
        for _ in 0..3 {
            let all = db.transact(|tx| {
                (0..600_u32).try_for_each(|key| tx.delete(&map, key.to_be_bytes()).map(|_| ()))
            });
            assert_eq!(all.map(|commit| commit.forget()).unwrap_err().kind(), ErrorKind::NoSpace);
        }
        assert_eq!(map.len(), 600);
        assert!(db.delete(&table, 0_u32.to_be_bytes()).unwrap().safe().unwrap());
    });
}

/// Its serial number is a put, for which there was no space.
#[test]
fn c5_a_session_can_delete_on_a_full_disk() {
    let disk = SimulatedDevice::new(1);
    let db = reopen(&disk).unwrap();
    let table = db.table("table").unwrap();
    let session = db.session("session").unwrap();
    session.put(&table, "key", "value").unwrap().safe().unwrap();
    disk.set_capacity(Some(1 << 20));
    fill_to_the_brim(&db, &table);
    assert!(session.delete(&table, 0_u32.to_be_bytes()).unwrap().safe().unwrap());
    assert_eq!(session.durable_serial().unwrap(), 2);
    // Nothing is written of it but the serial number.
    assert!(!session.delete(&table, 0_u32.to_be_bytes()).unwrap().fast().0);
    session.update(&table, 0_u32.to_be_bytes(), |_| None::<&[u8]>).unwrap().forget();
    assert!(session.compare_and_set(&table, 0_u32.to_be_bytes(), None, None).unwrap().fast().0);
    let of_none = session.transact(|tx| tx.delete_range(&table, ..0_u32.to_be_bytes()));
    assert_eq!(of_none.unwrap().safe().unwrap(), 0);
    assert_eq!(session.durable_serial().unwrap(), 6);
    assert_eq!(session.put(&table, "another", "value").unwrap_err().kind(), ErrorKind::NoSpace);
}

#[test]
fn c5_opening_on_a_full_disk_says_so_and_works_once_there_is_space() {
    let disk = SimulatedDevice::new(1);
    disk.set_capacity(Some(0));
    assert_eq!(reopen(&disk).unwrap_err().kind(), ErrorKind::NoSpace);
    disk.set_capacity(None);
    let db = reopen(&disk).unwrap();
    let map = db.map("map").unwrap();
    db.put(&map, "key", "value").unwrap().safe().unwrap();
    drop((map, db));
    disk.fail_after_bytes(0);
    match reopen(&disk) {
        // The log had room left.
        Ok(db) => assert_eq!(db.get(&db.map("map").unwrap(), "key").unwrap().unwrap(), b"value"),
        Err(error) => assert_eq!(error.kind(), ErrorKind::NoSpace, "{error}"),
    }
    disk.set_capacity(None);
    let db = reopen(&disk).unwrap();
    assert_eq!(db.get(&db.map("map").unwrap(), "key").unwrap().unwrap(), b"value");
}

/// What the crash had taken was written as ordinary rows are, for which there was no space.
#[test]
fn c8_a_database_opens_on_a_full_disk_after_a_crash_and_tells_what_was_lost() {
    let disk = SimulatedDevice::new(1);
    let db = reopen(&disk).unwrap();
    let table = db.table("table").unwrap();
    disk.set_capacity(Some(2 << 20));
    fill(&db, &table, 0);
    db.persist().unwrap();
    let (_, receipt) = db.delete(&table, 0_u32.to_be_bytes()).unwrap().fast();
    let lost = receipt.version();
    let check = |db: &Kiln| {
        assert_eq!(db.receipt(lost).poll(Level::LOCAL), Progress::Lost);
        let found = db.get(&db.table("table").unwrap(), 0_u32.to_be_bytes()).unwrap().unwrap();
        assert_eq!(found, vec![0; 8_000]);
    };
    let mut disk = disk.after_crash(&mut |_| Keep::Lost);
    // Each opening takes a block of the reserve, which is a quarter of a segment.
    let open_and_crash = || {
        let db = reopen(&disk)?;
        check(&db);
        disk = disk.after_crash(&mut |_| Keep::Lost);
        Ok(())
    };
    let opened: Vec<Result<()>> = std::iter::repeat_with(open_and_crash).take(20).collect();
    let full = opened.iter().filter_map(|opened| opened.as_ref().err());
    assert!(full.clone().all(|error| error.kind() == ErrorKind::NoSpace), "{opened:?}");
    let opened = opened.len() - full.count();
    assert!((2..20).contains(&opened), "{opened}");
    disk.set_capacity(None);
    check(&reopen(&disk).unwrap());
}

/// Of the smallest segments deletions left less than the blocks that an opening after a crash takes.
#[test]
fn c8_a_database_of_small_segments_opens_after_a_crash_though_deletions_have_filled_the_disk() {
    for segment_bytes in [16 << 10, 32 << 10, 64 << 10] {
        let disk = SimulatedDevice::new(1);
        let open =
            |disk: &SimulatedDevice| manual().segment_bytes(segment_bytes).open_on(Arc::new(disk.clone()));
        let db = open(&disk).unwrap();
        let (map, table) = (db.map("map").unwrap(), db.table("table").unwrap());
        (0..600_u32).for_each(|key| db.put(&map, key.to_be_bytes(), "row").unwrap().forget());
        db.persist().unwrap();
        // What is deleted makes no room.
        let snapshot = db.snapshot().unwrap();
        disk.set_capacity(Some(1 << 20));
        fill_to_the_brim(&db, &table);
        let delete = |key: u32| db.delete(&map, key.to_be_bytes()).and_then(|deleted| deleted.safe()).err();
        let full = (0..600).find_map(delete).expect("there is not room for so many");
        assert_eq!(full.kind(), ErrorKind::NoSpace);
        let deleted = 600 - map.len();
        let disk = disk.after_crash(&mut |_| Keep::Lost);
        drop(snapshot);
        drop((map, table, db));
        let db = open(&disk).unwrap_or_else(|error| panic!("{segment_bytes}: {error}"));
        assert_eq!(db.map("map").unwrap().len(), 600 - deleted);
        assert!(db.recovery_report().lost_versions.is_some());
    }
}

/// What moves to make room, beside deletions that had used up theirs, took the blocks of the opening.
#[test]
fn c8_a_database_opens_after_a_crash_though_segments_were_emptied_on_a_full_disk() {
    for live in 50..62_u32 {
        let disk = SimulatedDevice::new(seed());
        let db = reopen(&disk).unwrap();
        let (map, table) = (db.map("map").unwrap(), db.table("table").unwrap());
        for key in 0..live {
            db.put(&map, key.to_be_bytes(), [1; 100]).unwrap().forget();
        }
        for _ in 0..15 {
            db.put(&map, "overwritten", [1; 3_900]).unwrap().safe().unwrap();
        }
        (1_000..1_600_u32).for_each(|key| db.put(&map, key.to_be_bytes(), "row").unwrap().forget());
        let snapshot = db.snapshot().unwrap();
        db.put(&map, "overwritten", "").unwrap().safe().unwrap();
        disk.set_capacity(Some(1 << 20));
        fill_to_the_brim(&db, &table);
        let delete = |key: u32| db.delete(&map, key.to_be_bytes()).and_then(|deleted| deleted.safe()).err();
        (1_000..1_600).find_map(delete).expect("there is not room for so many");
        drop(snapshot);
        let _ = delete(1_599);
        let left = disk.after_crash(&mut |_| Keep::Lost);
        drop((map, table, db));
        let db = reopen(&left).unwrap_or_else(|error| panic!("{live} live: {error}"));
        assert!(db.recovery_report().lost_versions.is_some());
    }
}

/// Nothing of it was written yet, and settling was given up until the database was opened again.
#[test]
fn settling_goes_on_though_the_trees_file_could_not_be_made_at_once() {
    let disk = SimulatedDevice::new(seed());
    let db = reopen(&disk).unwrap();
    let table = db.table("table").unwrap();
    db.put(&table, "key", "value").unwrap().safe().unwrap();
    disk.inject(Fault { operation: OperationKind::Create, nth: 1, kind: FaultKind::ENOSPC, sticky: false });
    assert_eq!(db.settle().unwrap_err().kind(), ErrorKind::NoSpace);
    assert_eq!(disk.faults_fired(), 1);
    assert_eq!(db.settle().unwrap(), 1);
    assert_eq!(db.get(&table, "key").unwrap().unwrap(), b"value");
}

/// A small put behind which much can be deleted was refused, so that nothing could be.
#[test]
fn c5_what_makes_room_has_room_on_a_full_disk() {
    let disk = SimulatedDevice::new(1);
    let db = reopen(&disk).unwrap();
    let (table, first) = (db.table("table").unwrap(), db.map("first").unwrap());
    disk.set_capacity(Some(1 << 20));
    fill_to_the_brim(&db, &table);
    let move_first = |makes_room: bool| {
        let moved = db.transact(|tx| {
            if makes_room {
                tx.makes_room()?;
            }
            tx.put(&first, "row", "1")
        });
        moved?.safe()
    };
    assert_eq!(move_first(false).unwrap_err().kind(), ErrorKind::NoSpace);
    move_first(true).unwrap();
    assert_eq!(db.get(&first, "row").unwrap().unwrap(), b"1");
    assert!(db.delete(&table, 0_u32.to_be_bytes()).unwrap().safe().unwrap());
    assert_eq!(move_first(false).unwrap_err().kind(), ErrorKind::NoSpace, "it holds for one transaction");
}

/// Closing, and opening, gave the segment away that was prepared, and in it what is kept for deletions; somebody else took the space.
#[test]
fn c5_deletions_work_after_a_restart_on_a_disk_that_others_have_filled() {
    let restart = |rows: u32, is_closed: bool| {
        let disk = SimulatedDevice::new(seed());
        let db = reopen(&disk).unwrap();
        let map = db.map("map").unwrap();
        for number in 0..rows {
            db.put(&map, number.to_be_bytes(), [1; 3_000]).unwrap().safe().unwrap();
        }
        let others_take_the_rest = |disk: &SimulatedDevice| disk.set_capacity(Some(disk.used_bytes()));
        others_take_the_rest(&disk);
        let disk = if is_closed {
            db.close().unwrap();
            disk
        } else {
            disk.crash_after(disk.steps());
            disk.after_crash(&mut |_| Keep::Lost)
        };
        drop((map, db));
        others_take_the_rest(&disk);
        let db = reopen(&disk).unwrap();
        others_take_the_rest(&disk);
        let map = db.map("map").unwrap();
        let deleted = db.delete(&map, 0_u32.to_be_bytes()).and_then(|deleted| deleted.safe());
        assert!(deleted.unwrap_or_else(|error| panic!("{rows} rows, closed: {is_closed}: {error}")));
    };
    // The log ends anywhere in some segment.
    for rows in 1..36 {
        restart(rows, true);
        restart(rows, false);
    }
}

/// What was deleted from a table of which something has settled has to settle before its space is free: nothing did before something had hardened since the opening,
/// for which there was no room.
#[test]
fn c5_what_was_deleted_before_a_restart_makes_room_on_a_full_disk() {
    let disk = SimulatedDevice::new(seed());
    let open = || manual().settle_log_bytes(0).open_on(Arc::new(disk.clone())).unwrap();
    let db = open();
    let table = db.table("table").unwrap();
    db.put(&table, "first", "row").unwrap().safe().unwrap();
    assert_eq!(db.settle().unwrap(), 1);
    disk.set_capacity(Some(2 << 20));
    let rows = fill(&db, &table, 0);
    (0..rows).for_each(|row| assert!(db.delete(&table, row.to_be_bytes()).unwrap().forget()));
    drop(table);
    db.close().unwrap();
    drop(db);
    let db = open();
    let rows = fill(&db, &db.table("table").unwrap(), 0);
    assert!(rows > 150, "there was room for {rows} rows");
    assert!(db.check().unwrap().is_clean(), "{:?}", db.check().unwrap().problems);
}

/// Each put found that settling had been in vain, for want of room for what is sorted, and did not try it again once there was less to sort.
#[test]
fn c5_a_full_disk_has_room_again_once_a_table_is_dropped_of_which_nothing_could_settle() {
    let disk = SimulatedDevice::new(seed());
    let options = manual().settle_log_bytes(0).settle_memory(0);
    let db = options.open_on(Arc::new(disk.clone())).unwrap();
    let (table, dropped) = (db.table("table").unwrap(), db.table("dropped").unwrap());
    db.put(&table, "first", "row").unwrap().safe().unwrap();
    assert_eq!(db.settle().unwrap(), 1);
    assert!(db.delete(&table, "first").unwrap().safe().unwrap());
    disk.fail_after_bytes(512 << 10);
    fill(&db, &dropped, 0);
    assert_eq!(db.settle().unwrap_err().kind(), ErrorKind::NoSpace);
    db.drop_table("dropped").unwrap().safe().unwrap();
    let rows = fill(&db, &table, 0);
    assert!(rows > 20, "there was room for {rows} rows");
    assert!(db.check().unwrap().is_clean(), "{:?}", db.check().unwrap().problems);
}

/// What is live in the oldest segment moved into the space that is kept for deletions, though a snapshot kept the segment all the same.
#[test]
fn c5_deletions_work_on_a_full_disk_while_a_snapshot_holds_the_oldest_segment() {
    for live in (0..60_u32).step_by(4) {
        let disk = SimulatedDevice::new(seed());
        let db = reopen(&disk).unwrap();
        let (map, table) = (db.map("map").unwrap(), db.table("table").unwrap());
        (0..live).for_each(|number| db.put(&map, number.to_be_bytes(), [1; 100]).unwrap().forget());
        (0..20).for_each(|_| db.put(&map, "overwritten", [1; 3_900]).unwrap().safe().unwrap());
        db.create_snapshot("monday").unwrap();
        disk.set_capacity(Some(1 << 20));
        fill_to_the_brim(&db, &table);
        let deleted = db.delete(&table, 0_u32.to_be_bytes()).and_then(|deleted| deleted.safe());
        assert!(deleted.unwrap_or_else(|error| panic!("{live} live: {error}")));
    }
}
