//! C8: a disk that fails.
//!
//! The workload is run again and again, each time with one operation of the device going wrong: the first write,
//! the second write, and so on to the end, then the same for reads, syncs, renamings and so on, in every way in which they
//! can go wrong. Then the same for opening what the workload has left. Whatever happens, the history must hold: what was
//! acknowledged is there after a power loss, whether or not the database was reopened in between, and nothing
//! is acknowledged that is not there. Memory that runs out is [`starve`]'s.

#[cfg(test)]
mod tests;

use std::sync::atomic::Ordering;
use std::time::Duration;

use kiln::device::{Fault, FaultKind, Keep, OperationKind, SimulatedDevice};
use kiln::{ErrorKind, Kiln};

use crate::arguments::Effort;
use crate::crash::{open, play, reopen, reopen_in_turn};
use crate::jobs::Progress;
use crate::oracle::{check_contents, check_recovered, read_all};
use crate::starve;
use crate::support::{Random, Replay, copy_of, is_of_broken_disk, is_of_power_loss};
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
            // Of those that close the database the operations go on.
            if !struck && closes(nth) || progress.is_enough() {
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
                let mut errors = play_on(&disk, &db, &mut history, profile, seed);
                // Once the names of files could not be made durable nothing is written any more.
                let is_of_names = self.fault.operation == OperationKind::SyncDirectory;
                let is_over = disk.faults_fired() > 0 && !self.fault.sticky && !is_of_names;
                if self.reopen.is_none() && is_over && !errors.contains(&ErrorKind::Lost) {
                    let settles = !STOP_SETTLING.contains(&self.fault.operation);
                    let run = (profile, seed, settles);
                    check_well_again((&disk, &db), &mut history, run, &errors, &context);
                }
                if closes(nth) {
                    errors.extend(close(&db, &mut history, &context));
                }
                if self.reopen.is_none() {
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
            let mut random = Random::new(seed ^ nth << 32);
            let reopened = Reopened {
                memory,
                read: 1 + nth % OPENING_READS,
                cut: (!random.one_in(3)).then(|| random.below(OPENING_STEPS) as u64),
            };
            reopened.go_on(&disk, &mut history, (profile, seed), &context());
        }
        check_after_power_loss(&disk, (&history, profile), nth, &context);
        struck
    }
}

/// One run in two closes the database in order, or tries to.
fn closes(nth: u64) -> bool {
    nth % 2 == 1
}

/// Closes a database: then everything is durable, unless it says otherwise, and how.
fn close(db: &Kiln, history: &mut History, context: &impl Fn() -> String) -> Option<ErrorKind> {
    let Err(error) = db.close() else {
        history.told_durable(history.commits.last().map_or(0, |commit| commit.version));
        return None;
    };
    assert!(is_of_broken_disk(&error), "{}: closing: {:?}: {error}", context(), error.kind());
    Some(error.kind())
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
            let opened = reopen_in_turn(&disk, self.profile, turn + nth);
            let struck = disk.faults_fired() > 0;
            disk.clear_faults();
            let mut history = self.history.clone();
            match opened {
                Ok(db) => {
                    // What could not be read was not taken for something that is not there: the power loss that follows would show only what was written because of that.
                    let verdict = check_contents(&db, &history).map(drop);
                    verdict.unwrap_or_else(|what| panic!("{}: {what}", context()));
                    // What was passed over in opening must not be in the way of who goes on.
                    if nth % 2 == 0 {
                        history.cut_at(db.recovery_report().horizon.number(), &db);
                        let profile = Profile { operations: 12, ..self.profile };
                        let errors = play_on(&disk, &db, &mut history, profile, nth);
                        assert!(errors.is_empty(), "{}: {errors:?} later", context());
                    }
                    // Closing would be another matter.
                    disk.crash_after(disk.steps());
                }
                Err(error) => {
                    let expected = is_of_broken_disk(&error) && may_show_as(fault, error.kind());
                    assert!(expected, "{}: {:?}: {error}", context(), error.kind());
                }
            }
            check_after_power_loss(&disk, (&history, self.profile), nth, &context);
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

/// How the same machine opens the database again, which may still show what a failed sync has forgotten.
struct Reopened {
    memory: Memory,
    /// After this read what is shown vanishes, if it does: then the opening may fail, but not the next.
    read: u64,
    /// The power fails after so many steps, be the database open by then or not.
    cut: Option<u64>,
}

impl Reopened {
    /// What is taken for durable now must be durable. Unless the power fails the database goes on.
    fn go_on(
        &self,
        disk: &SimulatedDevice,
        history: &mut History,
        (profile, seed): (Profile, u64),
        context: &str,
    ) {
        if let Some(steps) = self.cut {
            disk.crash_after(disk.steps() + steps);
        }
        if self.memory == Memory::Vanishing {
            let (operation, kind) = (OperationKind::Read, FaultKind::Evicted);
            disk.inject(Fault { operation, nth: self.read, kind, sticky: true });
        }
        let mut opened = reopen(disk);
        disk.clear_faults();
        if let (Memory::Vanishing, Err(error), false) = (self.memory, &opened, disk.crashed()) {
            assert_eq!(error.kind(), ErrorKind::Io, "{context}: reopening: {error}");
            opened = reopen(disk);
        }
        let db = match opened {
            Err(error) if is_of_power_loss(&error, disk) => return,
            opened => {
                opened.unwrap_or_else(|error| panic!("{context}: reopening: {:?}: {error}", error.kind()))
            }
        };
        if self.cut.is_some() {
            disk.crash_after(disk.steps());
        }
        let horizon = db.recovery_report().horizon.number();
        assert!(horizon >= history.durable, "{context}: reopening lost version {}", history.durable);
        history.cut_at(horizon, &db);
        if self.cut.is_some() {
            return;
        }
        assert!(
            read_all(&db, history).unwrap() == history.latest,
            "{context}: reopening changed the contents"
        );
        let errors = play_on(disk, &db, history, Profile { operations: 12, ..profile }, seed + 1);
        assert!(errors.is_empty(), "{context}: {errors:?} after reopening, when nothing went wrong any more");
        disk.crash_after(disk.steps());
    }
}

/// About so many steps it takes.
const OPENING_STEPS: usize = 32;

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
