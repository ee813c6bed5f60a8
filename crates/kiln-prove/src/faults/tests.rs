//! Failures of each kind, with small budgets, and what was wrong once.

use super::*;
use crate::arguments::Limit;
use crate::support::Random;
use crate::testing::{at_test, budget, seed, watched};
use crate::workload::SMALL;

const MINUTES: Duration = Duration::from_secs(600);

/// All cases of a workload that `wanted` picks.
fn try_cases(name: &'static str, workload: Name, wanted: impl Fn(&Case) -> bool) {
    watched(name, MINUTES, |replay| {
        at_test(replay, name, seed());
        let mut progress = Progress::silent(name, Limit::Pass);
        for case in cases(seed(), workload).filter(wanted) {
            let runs = case.run(&mut progress);
            let often = matches!(case.fault.operation, OperationKind::Write | OperationKind::Sync);
            assert!(!often || runs > 10, "the workload has too few operations for this test");
        }
    });
}

#[test]
fn c8_a_failure_of_any_operation_is_told_and_nothing_lost_is_acknowledged() {
    try_cases("c8_a_failure_of_any_operation_is_told", Name::Small, |case| {
        case.reopen.is_none() && !matches!(case.fault.kind, SLOW | FaultKind::EINTR)
    });
}

#[test]
fn c8_failures_while_segments_are_prepared_and_dropped() {
    let wanted = [FaultKind::EIO, FaultKind::FailedSyncThenSuccess, FaultKind::FailedSyncReverted];
    try_cases("c8_failures_while_segments", Name::Large, |case| {
        case.reopen.is_none() && !case.fault.sticky && wanted.contains(&case.fault.kind)
    });
}

#[test]
fn c8_failures_while_the_log_is_compacted() {
    let disk = SimulatedDevice::new(seed());
    let (db, mut history) = (open(&disk, profile_of(Name::Skewed)).unwrap(), History::default());
    assert_eq!(play_on(&disk, &db, &mut history, profile_of(Name::Skewed), seed()), []);
    let statistics = db.statistics();
    assert!(statistics.segments_compacted > 1, "the workload is not compacted: {statistics:?}");
    let wanted =
        [FaultKind::EIO, FaultKind::ENOSPC, FaultKind::FailedSyncThenSuccess, FaultKind::FailedSyncReverted];
    try_cases("c8_failures_while_the_log_is_compacted", Name::Skewed, |case| {
        case.reopen.is_none() && !case.fault.sticky && wanted.contains(&case.fault.kind)
    });
}

#[test]
fn c8_failures_while_tables_settle() {
    let wanted =
        [FaultKind::EIO, FaultKind::ENOSPC, FaultKind::FailedSyncThenSuccess, FaultKind::FailedSyncReverted];
    try_cases("c8_failures_while_tables_settle", Name::Settling, |case| {
        !case.fault.sticky && wanted.contains(&case.fault.kind)
    });
}

/// A root that had been written, and not synced, was taken for durable when the database was opened again.
#[test]
fn c4_what_has_settled_when_a_database_is_opened_is_durable_then() {
    let name = "c4_what_has_settled_when_a_database_is_opened";
    watched(name, MINUTES, |_| {
        // Of a short write of a root slot at this seed the root was stored, and a checkpoint relied on it.
        let wanted = |case: &Case| {
            case.reopen.is_some() && case.fault.operation == OperationKind::Write && case.fault.kind != SLOW
        };
        for case in cases(880_010, Name::Runs).filter(wanted) {
            assert!(case.run(&mut Progress::silent(name, Limit::Pass)) > 10);
        }
    });
}

/// Whoever wants space on a disk that stays full is refused in the end: this case looked for some for ever.
#[test]
fn c5_who_wants_space_on_a_full_disk_comes_to_an_end() {
    let name = "c5_who_wants_space_on_a_full_disk";
    watched(name, MINUTES, |replay| {
        at_test(replay, name, 880_025);
        for case in cases(880_025, Name::Runs).filter(|case| case.fault.kind == FaultKind::ENOSPC) {
            assert!(case.run(&mut Progress::silent(name, Limit::Pass)) > 0);
        }
    });
}

#[test]
fn c8_a_failed_sync_is_not_made_good_by_reopening() {
    for workload in [Name::Small, Name::Large] {
        try_cases("c8_a_failed_sync_is_not_made_good", workload, |case| {
            case.reopen.is_some()
                && case.fault.kind != FaultKind::ShortWrite
                && case.fault.kind != FaultKind::ENOSPC
        });
    }
}

/// What cannot be read must not be mistaken for the end of the log, and nothing that fails while opening may destroy
/// what is there.
#[test]
fn c9_failures_while_opening_destroy_nothing() {
    for workload in [Name::Small, Name::Large] {
        let mut progress = Progress::silent("c9_failures_while_opening", Limit::Pass);
        for left in Left::all(seed(), workload) {
            let wanted = (0..).zip(faults()).filter(|(_, fault)| fault.kind != SLOW && !fault.sticky);
            wanted.for_each(|turn| left.run(turn, &mut progress));
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
        play_on(&disk, &db, &mut history, SMALL, seed);
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
