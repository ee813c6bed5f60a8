//! C8: a disk that fails.
//!
//! The workload is run again and again, each time with one operation of the device going wrong: the first write,
//! the second write, and so on to the end, then the same for syncs, renamings and so on, in every way in which they
//! can go wrong. Whatever then happens, the history must hold: what was acknowledged is there after a power
//! loss, whether or not the database was reopened in between, and nothing is acknowledged that is not there.

use std::sync::atomic::Ordering;
use std::time::Duration;

use kiln::device::{Fault, FaultKind, Keep, OperationKind, SimulatedDevice};
use kiln::{Error, ErrorKind, Kiln};

use super::crash::reopen;
use super::model::History;
use super::oracle::{check_recovered, read_all};
use super::support::{Random, Replay, budget, copy_of, seed, watched};
use super::workload::{LARGE, Profile, SMALL, Shift};

const MINUTES: Duration = Duration::from_secs(600);

/// The errors that a broken disk may show as.
fn is_expected(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Lost | ErrorKind::Io | ErrorKind::NoSpace)
}

/// Runs the workload as far as it goes. Errors of single operations are passed over, until the database says that
/// it has lost something: then nothing may become durable any more.
fn play_on(db: &Kiln, history: &mut History, profile: Profile, seed: u64) {
    let mut shift = match Shift::begin(db, history, profile, seed) {
        Ok(shift) => shift,
        Err(error) => return assert!(is_expected(&error), "{:?}: {error}", error.kind()),
    };
    for _ in 0..profile.operations {
        let Err(error) = shift.step() else { continue };
        assert!(is_expected(&error), "{:?}: {error}", error.kind());
        if error.kind() == ErrorKind::Lost {
            shift.work_after_failure();
            assert_eq!(shift.told.lost.load(Ordering::SeqCst), 1, "on_lost must come exactly once");
            return;
        }
    }
    assert_eq!(shift.told.lost.load(Ordering::SeqCst), 0, "on_lost came, but no operation said so");
}

/// Every n-th operation of one kind goes wrong in one way, run by run. Returns the number of runs.
fn sweep(name: &str, replay: &Replay, fault: Fault, profile: Profile, reopen_between: bool) -> u64 {
    for nth in 1.. {
        let seed = seed();
        replay.at(name, &format!("KILN_SEED={seed}"));
        let disk = SimulatedDevice::new(seed);
        disk.inject(Fault { nth, ..fault });
        let mut history = History::default();
        if let Ok(db) = reopen(&disk) {
            play_on(&db, &mut history, profile, seed);
            if !reopen_between {
                disk.crash_after(disk.steps());
            }
        }
        let struck = disk.faults_fired() > 0;
        disk.clear_faults();
        let context =
            || format!("{:?} on {:?} number {nth}, sticky: {}", fault.kind, fault.operation, fault.sticky);
        if reopen_between {
            go_on(&disk, &mut history, profile, &context());
        }
        let patterns = [disk.after_crash(&mut |_| Keep::Lost), disk.after_crash_seeded(nth), copy_of(&disk)];
        for (pattern, left) in patterns.iter().enumerate() {
            let verdict = match reopen(left) {
                Ok(db) => check_recovered(&db, &history),
                Err(error) => Err(format!("opening: {:?}: {error}", error.kind())),
            };
            verdict.unwrap_or_else(|what| panic!("{}, loss pattern {pattern}: {what}", context()));
        }
        if !struck {
            return nth;
        }
    }
    0
}

/// The database is opened again by the same machine, which still shows what a failed sync has forgotten, and goes
/// on. What it now takes for durable must be durable.
fn go_on(disk: &SimulatedDevice, history: &mut History, profile: Profile, context: &str) {
    let db = reopen(disk).unwrap_or_else(|error| panic!("{context}: reopening: {:?}: {error}", error.kind()));
    let horizon = db.recovery_report().horizon.number();
    assert!(horizon >= history.durable, "{context}: reopening lost version {}", history.durable);
    history.cut_at(horizon);
    assert!(read_all(&db, history).unwrap() == history.latest, "{context}: reopening changed the contents");
    play_on(&db, history, Profile { operations: 12, ..profile }, seed() + 1);
    disk.crash_after(disk.steps());
}

const CHANGES: [OperationKind; 7] = [
    OperationKind::Write,
    OperationKind::Sync,
    OperationKind::Allocate,
    OperationKind::Create,
    OperationKind::Rename,
    OperationKind::Remove,
    OperationKind::SyncDirectory,
];

#[test]
fn c8_a_failure_of_any_operation_is_told_and_nothing_lost_is_acknowledged() {
    let name = "c8_a_failure_of_any_operation_is_told";
    watched(name, MINUTES, |replay| {
        for operation in CHANGES {
            for kind in [FaultKind::EIO, FaultKind::ShortWrite, FaultKind::FailedSyncThenSuccess] {
                sweep(name, replay, Fault { operation, nth: 0, kind, sticky: false }, SMALL, false);
            }
        }
        for operation in [OperationKind::Write, OperationKind::Sync] {
            let runs = sweep(
                name,
                replay,
                Fault { operation, nth: 0, kind: FaultKind::EIO, sticky: true },
                SMALL,
                false,
            );
            assert!(runs > 10, "the workload has too few operations for this test");
        }
    });
}

#[test]
fn c8_failures_while_segments_are_prepared_and_dropped() {
    let name = "c8_failures_while_segments";
    watched(name, MINUTES, |replay| {
        for operation in CHANGES {
            for kind in [FaultKind::EIO, FaultKind::FailedSyncThenSuccess] {
                sweep(name, replay, Fault { operation, nth: 0, kind, sticky: false }, LARGE, false);
            }
        }
    });
}

#[test]
fn c8_a_failed_sync_is_not_made_good_by_reopening() {
    let name = "c8_a_failed_sync_is_not_made_good";
    watched(name, MINUTES, |replay| {
        // Forgotten names are left out: a file system that has lost track of its directory does not go on.
        let forgetful = (OperationKind::Sync, FaultKind::FailedSyncThenSuccess);
        let changes = CHANGES.map(|operation| (operation, FaultKind::EIO));
        for (operation, kind) in changes.into_iter().chain([forgetful]) {
            sweep(name, replay, Fault { operation, nth: 0, kind, sticky: false }, SMALL, true);
            sweep(name, replay, Fault { operation, nth: 0, kind, sticky: false }, LARGE, true);
        }
    });
}

/// Reads that fail change nothing: not while working, and above all not while opening, where what cannot be read
/// must not be mistaken for the end of the log.
#[test]
fn c9_failed_and_short_reads_while_opening_destroy_nothing() {
    let mut history = History::default();
    let disk = SimulatedDevice::new(seed());
    play_on(&reopen(&disk).unwrap(), &mut history, LARGE, seed());
    let unclean = {
        let disk = copy_of(&disk);
        let db = reopen(&disk).unwrap();
        db.put(&db.map("numbers").unwrap(), "visits", 1_i64.to_le_bytes()).unwrap().safe().unwrap();
        disk.crash_after(disk.steps());
        copy_of(&disk)
    };
    for (state, disk) in [("closed", &disk), ("stopped", &unclean)] {
        for kind in [FaultKind::EIO, FaultKind::ShortWrite] {
            for nth in 1.. {
                let disk = copy_of(disk);
                let before = reopen(&copy_of(&disk)).unwrap().recovery_report().horizon;
                disk.inject(Fault { operation: OperationKind::Read, nth, kind, sticky: false });
                if let Err(error) = reopen(&disk) {
                    let expected = matches!(error.kind(), ErrorKind::Io | ErrorKind::Corrupted);
                    assert!(
                        expected,
                        "{kind:?} on read {nth} of a {state} database: {:?}: {error}",
                        error.kind()
                    );
                }
                let struck = disk.faults_fired() > 0;
                disk.clear_faults();
                let again = reopen(&disk).unwrap_or_else(|error| {
                    panic!("{kind:?} on read {nth} of a {state} database has damaged it: {error}")
                });
                let after = again.recovery_report().horizon;
                assert!(
                    after >= before,
                    "{kind:?} on read {nth} of a {state} database cut off {after} to {before}"
                );
                if !struck {
                    break;
                }
            }
        }
    }
}

#[test]
fn c9_failed_and_short_reads_while_working_are_errors_and_pass() {
    let mut runs = Random::new(seed());
    for _ in 0..budget(40) {
        let seed = runs.next();
        let disk = SimulatedDevice::new(seed);
        let mut history = History::default();
        let db = reopen(&disk).unwrap();
        let large = db.table("large").unwrap();
        let value = |number: u32| vec![number as u8; 9_000];
        (0..60_u32).for_each(|number| db.put(&large, number.to_be_bytes(), value(number)).unwrap().forget());
        db.persist().unwrap();
        let kind = *runs.pick(&[FaultKind::EIO, FaultKind::ShortWrite]);
        let nth = 1 + runs.below(40) as u64;
        disk.inject(Fault { operation: OperationKind::Read, nth, kind, sticky: false });
        let mut failed = 0;
        for number in 0..60_u32 {
            match db.get(&large, number.to_be_bytes()) {
                Ok(found) => assert_eq!(found.unwrap(), value(number)),
                Err(error) => {
                    assert!(matches!(error.kind(), ErrorKind::Io | ErrorKind::Corrupted), "{error}");
                    failed += 1;
                }
            }
        }
        assert!(failed <= 1 && disk.faults_fired() == 1, "{kind:?} on read {nth}: {failed} reads failed");
        assert_eq!(db.snapshot().unwrap().range::<&[u8]>(&large, ..).filter(Result::is_ok).count(), 60);
        play_on(&db, &mut history, SMALL, seed);
        assert_eq!(db.horizon(kiln::Level::MEMORY), db.version());
        drop(large);
        drop(db);
        check_recovered(&reopen(&disk).unwrap(), &history).unwrap();
    }
}

#[test]
fn c8_a_database_that_has_lost_commits_reads_on_and_closes_with_an_error() {
    let disk = SimulatedDevice::new(seed());
    let db = reopen(&disk).unwrap();
    let (table, map) = (db.table("table").unwrap(), db.map("map").unwrap());
    db.put(&table, "kept", "1").unwrap().safe().unwrap();
    disk.inject(Fault { operation: OperationKind::Write, nth: 1, kind: FaultKind::EIO, sticky: false });
    db.put(&table, "lost", "2").unwrap().forget();
    assert_eq!(db.persist().unwrap_err().kind(), ErrorKind::Lost);
    let error = db.put(&map, "more", "3").map(|commit| commit.forget()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Lost);
    assert!(error.to_string().contains("open the database again"), "it says what to do: {error}");
    let rows = db.transact(|tx| tx.range::<&[u8]>(&table, ..).collect::<kiln::Result<Vec<_>>>());
    assert_eq!(rows.unwrap().forget().len(), 2, "a transaction that only reads commits");
    assert_eq!(db.snapshot().unwrap().get(&table, "lost").unwrap().unwrap(), b"2");
    assert_eq!(db.read_durable(|durable| durable.get(&table, "lost")).unwrap(), None);
    assert_eq!(db.read_safe(|tx| tx.get(&table, "kept")).unwrap().unwrap(), b"1");
    assert_eq!(db.read_safe(|tx| tx.get(&table, "lost")).unwrap_err().kind(), ErrorKind::Lost);
    assert_eq!(db.close().unwrap_err().kind(), ErrorKind::Lost);
    drop((table, map, db));
    let db = reopen(&disk).unwrap();
    let table = db.table("table").unwrap();
    assert_eq!(db.get(&table, "kept").unwrap().unwrap(), b"1");
    assert_eq!(db.get(&table, "lost").unwrap(), None);
}
