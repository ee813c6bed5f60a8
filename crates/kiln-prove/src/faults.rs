//! C8: a disk that fails.
//!
//! The workload is run again and again, each time with one operation of the device going wrong: the first write,
//! the second write, and so on to the end, then the same for reads, syncs, renamings and so on, in every way in which they
//! can go wrong. Then the same for opening what the workload has left. Whatever happens, the history must hold: what was
//! acknowledged is there after a power loss, whether or not the database was reopened in between, and nothing
//! is acknowledged that is not there. Memory that runs out is [`starve`]'s.

use std::sync::atomic::Ordering;
use std::time::Duration;

use kiln::device::{Fault, FaultKind, Keep, OperationKind, SimulatedDevice};
use kiln::{ErrorKind, Kiln};

use crate::arguments::Effort;
use crate::crash::{open, play, reopen, reopen_in_turn};
use crate::jobs::Progress;
use crate::oracle::{check_contents, check_recovered, read_all};
use crate::starve;
use crate::support::{Replay, copy_of, is_of_broken_disk};
use crate::workload::history::History;
use crate::workload::{Name, Profile, Shift};

/// A workload's profile; of one that goes on for long its beginning, since there are as many runs as operations of the device.
fn profile_of(workload: Name) -> Profile {
    let profile = workload.profile();
    match workload {
        Name::Skewed | Name::Settling | Name::Named | Name::Runs | Name::Expiring => {
            Profile { operations: 40, ..profile }
        }
        _ => profile,
    }
}

/// Runs the workload as far as it goes. Errors of single operations are passed over, until the database says that
/// it has lost something: then nothing may become durable any more. Returns the kinds of the errors.
fn play_on(
    disk: &SimulatedDevice,
    db: &Kiln,
    history: &mut History,
    profile: Profile,
    seed: u64,
) -> Vec<ErrorKind> {
    let mut shift = match Shift::begin(disk, db, history, profile, seed) {
        Ok(shift) => shift,
        Err(error) => {
            assert!(is_of_broken_disk(&error), "{:?}: {error}", error.kind());
            return vec![error.kind()];
        }
    };
    let mut errors = Vec::new();
    for _ in 0..profile.operations {
        let Err(error) = shift.step() else { continue };
        assert!(is_of_broken_disk(&error), "{:?}: {error}", error.kind());
        errors.push(error.kind());
        if error.kind() == ErrorKind::Lost {
            shift.work_after_failure();
            assert_eq!(shift.told.lost.load(Ordering::SeqCst), 1, "on_lost must come exactly once");
            return errors;
        }
    }
    assert_eq!(shift.told.lost.load(Ordering::SeqCst), 0, "on_lost came, but no operation said so");
    errors
}

/// Whether an error may be what an operation that went wrong so has led to. Damage is only what a read that came back short misses, and what a sync
/// has forgotten: other operations fail, and tell so.
fn may_show_as(fault: Fault, error: ErrorKind) -> bool {
    let damages = match fault.kind {
        FaultKind::ShortWrite => fault.operation == OperationKind::Read,
        FaultKind::FailedSyncThenSuccess | FaultKind::FailedSyncReverted => {
            fault.operation == OperationKind::Sync
        }
        _ => false,
    };
    fault.kind != SLOW && (damages || error != ErrorKind::Corrupted)
}

/// What went wrong once, and took nothing, is over: one operation has failed at the most, and from now on none does, nor what nobody depends on,
/// whose failures are passed over before.
fn check_well_again(
    (disk, db): (&SimulatedDevice, &Kiln),
    history: &mut History,
    (profile, seed, settles): (Profile, u64, bool),
    errors: &[ErrorKind],
    context: &impl Fn() -> String,
) {
    assert!(errors.len() <= 1, "{}: {errors:?}, although only one operation went wrong", context());
    let errors = play_on(disk, db, history, Profile { operations: 12, ..profile }, seed + 1);
    assert!(errors.is_empty(), "{}: {errors:?} later, when nothing went wrong any more", context());
    let well = |error: kiln::Error| panic!("{}: later: {:?}: {error}", context(), error.kind());
    db.persist().unwrap_or_else(well);
    if settles {
        db.settle().map(drop).unwrap_or_else(well);
    }
    db.checkpoint().map(drop).unwrap_or_else(well);
}

/// What the machine still shows, when the database is opened again, of what a failed sync has forgotten.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Memory {
    /// All of it.
    Kept,
    /// All of it, until it vanishes after one of the reads of the opening, file by file.
    Vanishing,
}

/// One operation that goes wrong in one way, and what is done afterwards.
#[derive(Clone, Copy, Debug)]
struct Case {
    fault: Fault,
    workload: Name,
    /// The same machine opens the database again and goes on before the power fails, if so.
    reopen: Option<Memory>,
    seed: u64,
}

impl Case {
    /// Every n-th operation of the kind goes wrong, run by run, until there are no more. Returns the number of runs.
    fn run(&self, progress: &mut Progress) -> u64 {
        for nth in 1.. {
            let struck = self.run_once(nth);
            progress.count();
            if !struck || progress.is_enough() {
                return nth;
            }
        }
        0
    }

    /// True if there was an n-th operation.
    fn run_once(&self, nth: u64) -> bool {
        let (seed, profile) = (self.seed, profile_of(self.workload));
        let disk = SimulatedDevice::new(seed);
        disk.inject(Fault { nth, ..self.fault });
        let mut history = History::default();
        let context = || format!("number {nth} of {self:?}");
        let errors = match open(&disk, profile) {
            Ok(db) => {
                let errors = play_on(&disk, &db, &mut history, profile, seed);
                // Once the names of files could not be made durable nothing is written any more.
                let is_of_names = self.fault.operation == OperationKind::SyncDirectory;
                let is_over = disk.faults_fired() > 0 && !self.fault.sticky && !is_of_names;
                if self.reopen.is_none() {
                    if is_over && !errors.contains(&ErrorKind::Lost) {
                        let settles = !STOP_SETTLING.contains(&self.fault.operation);
                        let run = (profile, seed, settles);
                        check_well_again((&disk, &db), &mut history, run, &errors, &context);
                    }
                    disk.crash_after(disk.steps());
                }
                errors
            }
            Err(error) => {
                let expected = is_of_broken_disk(&error);
                assert!(expected, "{}: opening: {:?}: {error}", context(), error.kind());
                vec![error.kind()]
            }
        };
        let are_of_it = errors.iter().all(|&error| may_show_as(self.fault, error));
        assert!(are_of_it, "{}: {errors:?}", context());
        let struck = disk.faults_fired() > 0;
        assert!(struck || errors.is_empty(), "{}: nothing went wrong, and yet {errors:?}", context());
        disk.clear_faults();
        if let Some(memory) = self.reopen {
            let read = 1 + nth % OPENING_READS;
            go_on(&disk, &mut history, profile, seed, (memory, read), &context());
        }
        check_after_power_loss(&disk, (&history, profile), nth, &context);
        struck
    }
}

/// Whatever was not synced may survive or not: the history must hold.
fn check_after_power_loss(
    disk: &SimulatedDevice,
    (history, profile): (&History, Profile),
    seed: u64,
    context: &impl Fn() -> String,
) {
    let patterns = [disk.after_crash(&mut |_| Keep::Lost), disk.after_crash_seeded(seed), copy_of(disk)];
    for (pattern, left) in (0..).zip(&patterns) {
        let verdict = match reopen_in_turn(left, profile, seed + pattern) {
            Ok(db) => check_recovered(&db, history),
            Err(error) => Err(format!("opening: {:?}: {error}", error.kind())),
        };
        verdict.unwrap_or_else(|what| panic!("{}, loss pattern {pattern}: {what}", context()));
    }
}

/// A database that was left, to be opened while the disk fails.
struct Left {
    state: &'static str,
    profile: Profile,
    disk: SimulatedDevice,
    history: History,
}

impl Left {
    /// One that was closed in order, one whose process was stopped, and one that has lost its power.
    fn all(seed: u64, workload: Name) -> [Left; 3] {
        [("closed", true), ("stopped", false), ("crashed", false)].map(|(state, close)| {
            let (disk, mut history) = (SimulatedDevice::new(seed), History::default());
            let profile = profile_of(workload);
            play(&disk, &mut history, profile, seed, close).expect("nothing fails yet");
            let disk = if state == "crashed" { disk.after_crash_seeded(seed) } else { copy_of(&disk) };
            Left { state, profile, disk, history }
        })
    }

    /// Opens it again and again, each time with another operation going wrong in this way.
    fn run(&self, (turn, fault): (u64, Fault), progress: &mut Progress) {
        for nth in 1.. {
            let disk = copy_of(&self.disk);
            let context = || format!("opening a {} database, number {nth} of {fault:?}", self.state);
            disk.inject(Fault { nth, ..fault });
            let opened = reopen_in_turn(&disk, self.profile, turn);
            let struck = disk.faults_fired() > 0;
            disk.clear_faults();
            match opened {
                Ok(db) => {
                    // What could not be read was not taken for something that is not there: the power loss that follows would show only what was written because of that.
                    let verdict = check_contents(&db, &self.history).map(drop);
                    verdict.unwrap_or_else(|what| panic!("{}: {what}", context()));
                    // Closing would be another matter.
                    disk.crash_after(disk.steps());
                }
                Err(error) => {
                    let expected = is_of_broken_disk(&error) && may_show_as(fault, error.kind());
                    assert!(expected, "{}: {:?}: {error}", context(), error.kind());
                }
            }
            check_after_power_loss(&disk, (&self.history, self.profile), nth, &context);
            progress.count();
            if !struck || progress.is_enough() {
                return;
            }
        }
    }
}

/// Every way in which an operation of the device can go wrong.
fn faults() -> impl Iterator<Item = Fault> {
    const KINDS: [FaultKind; 7] = [
        FaultKind::EIO,
        FaultKind::ENOSPC,
        FaultKind::EINTR,
        FaultKind::ShortWrite,
        FaultKind::FailedSyncThenSuccess,
        FaultKind::FailedSyncReverted,
        SLOW,
    ];
    OPERATIONS.into_iter().flat_map(|operation| {
        // To other operations it is another error.
        let is_one = move |kind: &FaultKind| {
            *kind != FaultKind::FailedSyncReverted || operation == OperationKind::Sync
        };
        KINDS.into_iter().filter(is_one).flat_map(move |kind| {
            // A disk that is slow for ever takes ever so long, and tells nothing else.
            let stickiness = if kind == SLOW { &[false][..] } else { &[false, true] };
            stickiness.iter().map(move |&sticky| Fault { operation, nth: 0, kind, sticky })
        })
    })
}

/// Each of them while the workload runs, with and without the database being reopened by the same machine.
fn cases(seed: u64, workload: Name) -> impl Iterator<Item = Case> {
    faults().flat_map(move |fault| {
        let forgets =
            |operation| fault.operation == operation && fault.kind == FaultKind::FailedSyncThenSuccess;
        let ways = match () {
            // Forgotten names are left out: a file system that has lost track of its directory does not go on.
            () if fault.sticky || forgets(OperationKind::SyncDirectory) => &[None][..],
            () if forgets(OperationKind::Sync) => &[None, Some(Memory::Kept), Some(Memory::Vanishing)],
            () => &[None, Some(Memory::Kept)],
        };
        ways.iter().map(move |&reopen| Case { fault, workload, reopen, seed })
    })
}

/// Goes through all cases, with seed after seed.
pub(crate) fn prove(effort: &Effort, replay: &Replay, progress: &mut Progress) {
    let workloads = effort
        .workload
        .map_or(vec![Name::Small, Name::Large, Name::Skewed, Name::Settling, Name::Named], |workload| {
            vec![workload]
        });
    for seed in effort.seed.. {
        for &workload in &workloads {
            replay.at(&format!("faults --workload {} --seed {seed}", workload.as_str()));
            for case in cases(seed, workload) {
                case.run(progress);
                if progress.is_enough() {
                    return;
                }
            }
            for left in Left::all(seed, workload) {
                for turn in (0..).zip(faults()) {
                    left.run(turn, progress);
                    if progress.is_enough() {
                        return;
                    }
                }
            }
            if matches!(workload, Name::Small | Name::Settling) {
                starve::prove(effort, (seed, workload), replay, progress);
                if progress.is_enough() {
                    return;
                }
            }
        }
        if !progress.goes_on() {
            return;
        }
    }
}

/// The database is opened again by the same machine, which may still show what a failed sync has forgotten, and goes
/// on. What it now takes for durable must be durable. If what is shown vanishes after the `nth` read, an opening may fail, but not the next.
fn go_on(
    disk: &SimulatedDevice,
    history: &mut History,
    profile: Profile,
    seed: u64,
    (memory, nth): (Memory, u64),
    context: &str,
) {
    let again =
        || reopen(disk).unwrap_or_else(|error| panic!("{context}: reopening: {:?}: {error}", error.kind()));
    let db = match memory {
        Memory::Kept => again(),
        Memory::Vanishing => {
            disk.inject(Fault {
                operation: OperationKind::Read,
                nth,
                kind: FaultKind::Evicted,
                sticky: true,
            });
            let opened = reopen(disk);
            disk.clear_faults();
            opened.unwrap_or_else(|error| {
                assert_eq!(error.kind(), ErrorKind::Io, "{context}: reopening: {error}");
                again()
            })
        }
    };
    let horizon = db.recovery_report().horizon.number();
    assert!(horizon >= history.durable, "{context}: reopening lost version {}", history.durable);
    history.cut_at(horizon, &db);
    assert!(read_all(&db, history).unwrap() == history.latest, "{context}: reopening changed the contents");
    let errors = play_on(disk, &db, history, Profile { operations: 12, ..profile }, seed + 1);
    assert!(errors.is_empty(), "{context}: {errors:?} after reopening, when nothing went wrong any more");
    disk.crash_after(disk.steps());
}

/// What went wrong once while something settled keeps everything from settling until the database is opened again: it is not known what
/// the tree has on disk.
const STOP_SETTLING: [OperationKind; 3] = [OperationKind::Write, OperationKind::Sync, OperationKind::Rename];

/// About so many reads it takes to open a small database.
const OPENING_READS: u64 = 12;

/// The operation takes a hundred times as long as others, and succeeds.
const SLOW: FaultKind = FaultKind::Delay(Duration::from_micros(100));

const OPERATIONS: [OperationKind; 12] = [
    OperationKind::Write,
    OperationKind::Sync,
    OperationKind::Allocate,
    OperationKind::Truncate,
    OperationKind::Create,
    OperationKind::Rename,
    OperationKind::Remove,
    OperationKind::SyncDirectory,
    OperationKind::Read,
    OperationKind::Open,
    OperationKind::Size,
    OperationKind::List,
];

#[cfg(test)]
mod tests {
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
        let wanted = [
            FaultKind::EIO,
            FaultKind::ENOSPC,
            FaultKind::FailedSyncThenSuccess,
            FaultKind::FailedSyncReverted,
        ];
        try_cases("c8_failures_while_the_log_is_compacted", Name::Skewed, |case| {
            case.reopen.is_none() && !case.fault.sticky && wanted.contains(&case.fault.kind)
        });
    }

    #[test]
    fn c8_failures_while_tables_settle() {
        let wanted = [
            FaultKind::EIO,
            FaultKind::ENOSPC,
            FaultKind::FailedSyncThenSuccess,
            FaultKind::FailedSyncReverted,
        ];
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
                case.reopen.is_some()
                    && case.fault.operation == OperationKind::Write
                    && case.fault.kind != SLOW
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
            (0..60_u32)
                .for_each(|number| db.put(&large, number.to_be_bytes(), value(number)).unwrap().forget());
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
}
