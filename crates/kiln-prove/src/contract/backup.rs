//! Backups: a copy is the database as it was at one version, whatever goes on while it is made, and whatever happens to it.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use kiln::device::{Device, Fault, FaultKind, OperationKind, SimulatedDevice};
use kiln::{Backup, ErrorKind, Kiln, Level, check_on};

use crate::crash::reopen;
use crate::support::{Random, copy_of, manual};
use crate::testing::{PATIENCE, background, budget, seed, watched};

fn back_up(db: &Kiln, target: &SimulatedDevice) -> kiln::Result<Backup> {
    db.backup_on(Arc::new(target.clone()), |_| {})
}

/// A database of several segments, some of whose records are superseded.
pub(super) fn filled(disk: &SimulatedDevice) -> Kiln {
    let db = manual().open_on(Arc::new(disk.clone())).unwrap();
    let (table, map) = (db.table("table").unwrap(), db.map("map").unwrap());
    let mut random = Random::new(seed());
    for number in 0..600_u32 {
        db.put(&table, (number % 300).to_be_bytes(), random.bytes(900)).unwrap().forget();
        db.put(&map, number.to_be_bytes(), random.bytes(100)).unwrap().forget();
        if number % 30 == 0 {
            db.persist().unwrap();
        }
        if number == 350 {
            assert!(db.settle().unwrap() > 0);
        }
    }
    db.persist().unwrap();
    db
}

/// All keys and values.
pub(super) fn contents(db: &Kiln) -> BTreeMap<(bool, Vec<u8>), Vec<u8>> {
    let (table, map) = (db.table("table").unwrap(), db.map("map").unwrap());
    let snapshot = db.snapshot().unwrap();
    let rows = snapshot.range::<&[u8]>(&table, ..).map(|row| row.unwrap());
    let pairs = snapshot.iter(&map).map(|pair| pair.unwrap());
    let rows = rows.map(|(key, value)| ((true, key), value));
    rows.chain(pairs.map(|(key, value)| ((false, key), value))).collect()
}

pub(super) fn open_whole(target: &SimulatedDevice) -> Kiln {
    let report = check_on(Arc::new(copy_of(target))).unwrap();
    assert!(report.is_clean(), "{report}");
    reopen(target).unwrap()
}

#[test]
fn c4_a_backup_has_exactly_what_its_horizon_covers_while_others_write() {
    watched("c4_a_backup_has_exactly_what_its_horizon_covers", PATIENCE, |_| {
        let disk = SimulatedDevice::new(seed());
        let db = background().open_on(Arc::new(disk.clone())).unwrap();
        let (table, map) = (db.table("table").unwrap(), db.map("map").unwrap());
        let stop = AtomicBool::new(false);
        thread::scope(|scope| {
            // Each commit writes its number in two objects, and is remembered with its version.
            let writer = scope.spawn(|| {
                let mut versions = Vec::new();
                for number in 1_u64.. {
                    let bytes = number.to_be_bytes();
                    let commit = db.transact(|tx| {
                        tx.put(&table, b"number", bytes)?;
                        tx.put(&table, (number % 50).to_be_bytes(), vec![0; 2_000])?;
                        tx.put(&map, b"number", bytes)
                    });
                    versions.push(commit.unwrap().fast().1.version());
                    if stop.load(Ordering::SeqCst) {
                        return versions;
                    }
                }
                unreachable!("it does not count so far");
            });
            let mut copies = Vec::new();
            for _ in 0..budget(8) {
                let committed_before = db.get(&table, b"number").unwrap();
                let target = SimulatedDevice::new(seed());
                let backup = back_up(&db, &target).unwrap();
                copies.push((committed_before, backup, target));
            }
            stop.store(true, Ordering::SeqCst);
            let versions = writer.join().unwrap();
            for (committed_before, backup, target) in copies {
                let copy = open_whole(&target);
                let covered = versions.partition_point(|version| *version <= backup.horizon) as u64;
                let (table, map) = (copy.table("table").unwrap(), copy.map("map").unwrap());
                let found = copy.get(&table, b"number").unwrap();
                assert_eq!(found, (covered > 0).then(|| covered.to_be_bytes().to_vec()));
                assert_eq!(found, copy.get(&map, b"number").unwrap());
                assert!(found >= committed_before, "what was committed before a backup is in it");
                assert_eq!(copy.recovery_report().horizon, backup.horizon);
            }
        });
    });
}

#[test]
fn c9_segments_that_are_dropped_during_a_backup_stay_whole_for_it() {
    let disk = SimulatedDevice::new(seed());
    let db = filled(&disk);
    let before = contents(&db);
    let (table, map) = (db.table("table").unwrap(), db.map("map").unwrap());
    let log_begin = db.statistics().log_begin;
    let target = SimulatedDevice::new(seed());
    let has_overwritten = Cell::new(false);
    let backup = db.backup_on(Arc::new(target.clone()), |progress| {
        assert!(progress.done_bytes <= progress.total_bytes, "{progress:?}");
        if !has_overwritten.replace(true) {
            // Nothing is left of what there was, and the disk has room for little else.
            for round in 0..10_u8 {
                for number in 0..600_u32 {
                    db.put(&table, (number % 300).to_be_bytes(), vec![round; 900]).unwrap().forget();
                    db.put(&map, number.to_be_bytes(), vec![round; 100]).unwrap().forget();
                }
                db.persist().unwrap();
            }
            assert!(db.statistics().log_begin > log_begin + (1 << 20), "segments were dropped");
        }
    });
    assert!(backup.unwrap().bytes > 256 << 10);
    assert!(contents(&open_whole(&target)) == before);
    // Then they are used again as ever.
    for round in 0..40_u8 {
        (0..300_u32).for_each(|key| db.put(&map, key.to_be_bytes(), vec![round; 900]).unwrap().forget());
        db.persist().unwrap();
    }
    assert!(disk.list().unwrap().iter().any(|name| name.starts_with("spare-")));
}

#[test]
fn c4_a_crash_during_a_backup_leaves_a_whole_copy_or_none() {
    let disk = SimulatedDevice::new(seed());
    let db = filled(&disk);
    assert!(db.checkpoint().unwrap());
    let whole = contents(&db);
    let mut outcomes = [0; 2];
    for step in 0.. {
        let target = SimulatedDevice::new(step);
        target.crash_after(step);
        let finished = back_up(&db, &target).is_ok();
        for state in 0..budget(4) {
            let after = target.after_crash_seeded(state);
            match manual().create(false).open_on(Arc::new(after)) {
                Ok(copy) => {
                    assert!(contents(&copy) == whole, "step {step}, state {state}");
                    outcomes[1] += 1;
                }
                Err(error) => {
                    assert!(!finished, "step {step}, state {state}: {error}");
                    assert!(matches!(error.kind(), ErrorKind::NotFound | ErrorKind::Corrupted), "{error}");
                    outcomes[0] += 1;
                }
            }
        }
        if finished {
            break;
        }
    }
    assert!(outcomes.iter().all(|&count| count > 0), "{outcomes:?}");
    assert!(contents(&db) == whole);
}

#[test]
fn c8_a_backup_that_fails_leaves_an_empty_directory_and_the_database_as_it_was() {
    let disk = SimulatedDevice::new(seed());
    let db = filled(&disk);
    assert!(db.checkpoint().unwrap());
    let whole = contents(&db);
    for operation in
        [OperationKind::Write, OperationKind::Sync, OperationKind::Rename, OperationKind::Allocate]
    {
        for nth in 1.. {
            let target = SimulatedDevice::new(nth);
            target.inject(Fault { operation, nth, kind: FaultKind::Error(5), sticky: false });
            let result = back_up(&db, &target);
            if target.faults_fired() == 0 {
                assert!(nth > 1, "{operation:?} happens");
                result.unwrap();
                break;
            }
            let error = result.expect_err("the fault was met");
            assert_eq!(error.kind(), ErrorKind::Io, "{error}");
            assert_eq!(target.list().unwrap(), [""; 0], "{operation:?} {nth}");
            back_up(&db, &target).expect("there is nothing in the way of another one");
        }
    }
    assert!(contents(&db) == whole);
    db.put(&db.map("map").unwrap(), b"more", b"").unwrap().safe().unwrap();
}

#[test]
fn c9_a_backup_of_damaged_files_is_an_error_that_names_the_place() {
    let disk = SimulatedDevice::new(seed());
    let db = filled(&disk);
    let name = disk.list().unwrap().into_iter().find(|name| name.starts_with("segment-")).unwrap();
    disk.flip_bit(&name, 8 * 9_000);
    let target = SimulatedDevice::new(seed());
    let error = back_up(&db, &target).expect_err("the copy would be damaged");
    assert_eq!(error.kind(), ErrorKind::Corrupted);
    assert!(error.to_string().contains(&name), "{error}");
    assert_eq!(target.list().unwrap(), [""; 0]);
}

#[test]
fn c7_a_backup_has_sessions_and_the_newest_checkpoint() {
    let disk = SimulatedDevice::new(seed());
    let db = filled(&disk);
    let map = db.map("map").unwrap();
    let session = db.session("exchange-7").unwrap();
    for _ in 0..3 {
        session.put(&map, b"a", b"b").unwrap().forget();
    }
    assert!(db.checkpoint().unwrap());
    session.put(&map, b"a", b"c").unwrap().forget();
    let target = SimulatedDevice::new(seed());
    let backup = back_up(&db, &target).unwrap();
    assert_eq!(backup.horizon, db.horizon(Level::LOCAL));
    let copy = open_whole(&target);
    assert_eq!(copy.session("exchange-7").unwrap().recovered_serial(), 4);
    assert!(copy.recovery_report().checkpoint.is_some(), "{:?}", copy.recovery_report());
    // Both go on, each for itself.
    copy.put(&copy.map("map").unwrap(), b"a", b"copy").unwrap().safe().unwrap();
    session.put(&map, b"a", b"original").unwrap().safe().unwrap();
    assert_eq!(db.get(&map, b"a").unwrap().as_deref(), Some(&b"original"[..]));
}

#[test]
fn a_backup_wants_an_empty_directory_and_an_open_database() {
    let disk = SimulatedDevice::new(seed());
    let db = filled(&disk);
    let error = back_up(&db, &disk).expect_err("the database itself is there");
    assert_eq!(error.kind(), ErrorKind::Input, "{error}");
    let target = SimulatedDevice::new(seed());
    target.set_bytes("letter", b"mine");
    let error = back_up(&db, &target).expect_err("something else is there");
    assert_eq!(error.kind(), ErrorKind::Input, "{error}");
    assert_eq!(target.bytes("letter"), b"mine");
    db.close().unwrap();
    let error = back_up(&db, &SimulatedDevice::new(seed())).expect_err("it is closed");
    assert_eq!(error.kind(), ErrorKind::Aborted, "{error}");
}

#[test]
fn c9_a_backup_of_a_database_that_is_closed_meanwhile_calls_nothing_damaged() {
    let disk = SimulatedDevice::new(seed());
    let db = filled(&disk);
    let mut second = None;
    let target = SimulatedDevice::new(seed());
    let error = db.backup_on(Arc::new(target.clone()), |_| {
        if second.is_none() {
            db.close().unwrap();
            // It uses the files of segments that it drops again.
            let again = manual().open_on(Arc::new(disk.clone())).unwrap();
            let (table, map) = (again.table("table").unwrap(), again.map("map").unwrap());
            for round in 0..10_u8 {
                for number in 0..600_u32 {
                    again.put(&table, (number % 300).to_be_bytes(), vec![round; 900]).unwrap().forget();
                    again.put(&map, number.to_be_bytes(), vec![round; 100]).unwrap().forget();
                }
                again.persist().unwrap();
            }
            second = Some(again);
        }
    });
    let error = error.expect_err("its files are used again");
    assert_eq!(error.kind(), ErrorKind::Aborted, "{error}");
    assert_eq!(target.list().unwrap(), [""; 0]);
}
