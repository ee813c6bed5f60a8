//! A power loss at every step of the device.
//!
//! The workload is run once, and before each of the device's steps it is noted what a power loss there could leave, what was
//! committed by then, and what was called durable. Of what was not synced, any part may survive: all subsets are tried where
//! there are few, and a biased sample where there are many. Each disk that may be left is opened, and the
//! [`oracle`](crate::oracle) compares it with the history. Some of them meet a second power loss during the
//! recovery, and some go on working and crash again, so that boundaries of several generations are checked.
//!
//! One step in [`STEPS_PER_REPETITION`] has a run of its own, in which the power really fails there: it must have come to the same
//! as the first run, and after the failure nothing may be acknowledged any more.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};

use kiln::device::{CrashStates, Keep, SimulatedDevice};
use kiln::{Kiln, Options};

use crate::arguments::Effort;
use crate::copies::restore_and_crash;
use crate::jobs::Progress;
use crate::oracle::{Verdict, check_recovered, ensure};
use crate::support::{Random, Replay, copy_of, is_of_power_loss, manual};
use crate::workload::history::{History, Named, Progressed};
use crate::workload::{Name, Profile, Shift};

/// The options with which the database of a workload is created.
pub(crate) fn options_of(profile: Profile) -> Options {
    manual()
        .segment_bytes(profile.segment_bytes)
        .space_amplification(profile.space_amplification)
        .checkpoint_log_bytes(profile.checkpoint_log_bytes)
        .settle_memory(profile.settle_memory)
        .memory(profile.memory)
}

/// Opens the database of a workload, and creates it if there is none.
pub(crate) fn open(disk: &SimulatedDevice, profile: Profile) -> kiln::Result<Kiln> {
    options_of(profile).open_on(Arc::new(disk.clone()))
}

/// Opens what is on a disk.
pub(crate) fn reopen(disk: &SimulatedDevice) -> kiln::Result<Kiln> {
    manual().open_on(Arc::new(disk.clone()))
}

/// The same, with the options of the workload for one number in four.
pub(crate) fn reopen_in_turn(disk: &SimulatedDevice, profile: Profile, number: u64) -> kiln::Result<Kiln> {
    if number.is_multiple_of(4) { open(disk, profile) } else { reopen(disk) }
}

/// Opens the database on `disk`, runs the workload, and closes it in order if `close` says so. An error is what
/// the disk's failure has led to.
pub(crate) fn play(
    disk: &SimulatedDevice,
    history: &mut History,
    profile: Profile,
    seed: u64,
    close: bool,
) -> kiln::Result<()> {
    let db = open(disk, profile)?;
    let mut shift = Shift::begin(disk, &db, history, profile, seed)?;
    let outcome = shift.work();
    if outcome.is_err() && disk.crashed() {
        shift.work_after_failure();
    }
    drop(shift);
    outcome?;
    if close {
        db.close()?;
        let last = history.commits.last().map_or(0, |commit| commit.version);
        history.told_durable(last);
    } else {
        disk.crash_after(disk.steps());
    }
    Ok(())
}

/// How thoroughly the steps of a workload are looked at.
#[derive(Clone, Copy, Debug)]
struct Sweep {
    workload: Name,
    profile: Profile,
    /// Loss patterns that are tried after one step, where not all subsets are.
    samples: u64,
    /// All subsets are tried up to this many loss units.
    exhaustive_units: usize,
    /// Only so many steps are looked at, of the last ones: those before only make the log long.
    last_steps: Option<usize>,
    /// Of so many steps one is looked at.
    stride: u64,
}

impl Sweep {
    fn of(workload: Name) -> Sweep {
        // A hardening that writes one block has eight sectors to lose; of the tiny workload all 256 ways are tried.
        let (samples, exhaustive_units) = match workload {
            Name::Three => (84, 12),
            Name::Tiny => (16, 8),
            Name::Small
            | Name::Large
            | Name::Lazy
            | Name::Skewed
            | Name::Settling
            | Name::Named
            | Name::Runs
            | Name::Expiring
            | Name::Warm => (40, 4),
            Name::Long => (12, 2),
        };
        let last_steps = (workload == Name::Long).then_some(2);
        Sweep { workload, profile: workload.profile(), samples, exhaustive_units, last_steps, stride: 1 }
    }
}

/// Of so many seeds one has a turn with the long workload, whose every state takes as long as some hundred others.
const SEEDS_PER_LONG: u64 = 8;

/// Crashes one workload after the other, with seed after seed.
pub(crate) fn prove(effort: &Effort, replay: &Replay, progress: &mut Progress) {
    let workloads = effort.workload.map_or(Name::ALL.to_vec(), |workload| vec![workload]);
    for seed in effort.seed.. {
        let has_long = effort.workload.is_some() || (seed - effort.seed).is_multiple_of(SEEDS_PER_LONG);
        for &workload in workloads.iter().filter(|&&workload| workload != Name::Long || has_long) {
            Sweep::of(workload).one_run(seed, effort.step, replay, progress);
        }
        if !progress.goes_on() {
            return;
        }
    }
}

/// Of so many steps one has a run of its own.
const STEPS_PER_REPETITION: u64 = 16;

/// A power loss between two steps of a run.
struct Moment {
    /// Steps before it.
    step: u64,
    states: CrashStates,
    /// Commits that were told of by then, and the version up to which everything had been called durable.
    commits: usize,
    durable: u64,
    /// The snapshots that had, or may have had, a name.
    named: Vec<Named>,
}

/// A run to its end, and moments of it in their order.
struct Recorded {
    steps: u64,
    history: History,
    moments: Vec<Moment>,
}

/// Runs a workload, and notes the moments that are wanted.
fn record(profile: Profile, seed: u64, wanted: impl Fn(u64) -> bool + Send + Clone + 'static) -> Recorded {
    let disk = SimulatedDevice::new(seed);
    let progressed = Arc::new(Progressed::default());
    let mut history = History::looked_at_by(progressed.clone());
    let moments = Arc::new(Mutex::new(Vec::new()));
    let note = {
        let (moments, progressed) = (moments.clone(), progressed.clone());
        move |step: u64, states: &dyn Fn() -> CrashStates| {
            if wanted(step) {
                let (commits, durable, named) = progressed.now();
                let moment = Moment { step, states: states(), commits, durable, named };
                moments.lock().unwrap_or_else(PoisonError::into_inner).push(moment);
            }
        }
    };
    disk.watch_steps(note.clone());
    if let Err(error) = play(&disk, &mut history, profile, seed, true) {
        panic!("nothing was switched off, and yet: {error}");
    }
    note(disk.steps(), &|| disk.crash_states());
    progressed.ask_no_more();
    // If nearly everything were refused there would be nothing to lose. Of few operations it may be so by chance.
    let (commits, operations) = (history.commits.len(), profile.operations);
    assert!(
        commits * 4 > operations || operations < 60 && commits > 0,
        "{commits} commits came of {operations} operations"
    );
    let moments = std::mem::take(&mut *moments.lock().unwrap_or_else(PoisonError::into_inner));
    Recorded { steps: disk.steps(), history, moments }
}

/// What a power loss may leave, and what is known of the run until then.
struct Crashed<'a> {
    states: CrashStates,
    history: &'a History,
    /// The history of a run that goes on behind the power loss: a commit that nobody had been told of may be durable.
    whole: &'a History,
    seed: u64,
}

/// A run that has ended, or come to a power loss.
struct Run {
    disk: SimulatedDevice,
    history: History,
}

/// Runs a workload whose disk fails after `step`.
fn run_until(profile: Profile, seed: u64, step: u64) -> Run {
    let disk = SimulatedDevice::new(seed);
    disk.crash_after(step);
    let mut history = History::default();
    if let Err(error) = play(&disk, &mut history, profile, seed, true) {
        assert!(is_of_power_loss(&error, &disk), "a power loss showed as {:?}: {error}", error.kind());
    }
    Run { disk, history }
}

/// The disks that a power loss may leave, with the numbers of the loss patterns that leave them: those of every subset of the loss
/// units, or of a sample, in which no subset comes twice.
fn disks_after<'a>(
    states: &'a CrashStates,
    (seed, step): (u64, u64),
    sweep: &Sweep,
) -> Box<dyn Iterator<Item = (u64, SimulatedDevice)> + 'a> {
    let units = states.unit_count();
    if units <= sweep.exhaustive_units {
        return Box::new((0..1_u64 << units).map(|mask| (mask, states.after_crash_mask(mask))));
    }
    let mut tried = HashSet::new();
    Box::new((0..sweep.samples).filter_map(move |pattern| {
        let choices = match pattern {
            0 => vec![Keep::Kept; units],
            1 => vec![Keep::Lost; units],
            // Others at each step: of two steps with as many loss units the same ones would be tried.
            _ => states.choices(seed ^ (step << 40) ^ ((pattern - 2) << 32)),
        };
        let is_new = tried.insert(choices.clone());
        is_new.then(|| (pattern, states.after_crash_of(&choices)))
    }))
}

impl Sweep {
    /// Looks at every step of one run, or at one of them.
    fn one_run(&self, seed: u64, only: Option<u64>, replay: &Replay, progress: &mut Progress) {
        let replay_at = |step: u64| {
            replay.at(&format!("crash --workload {} --seed {seed} --step {step}", self.workload.as_str()));
        };
        replay_at(0);
        if let Some(count) = self.last_steps {
            return self.last_steps_of_one_run(seed, only, count, replay_at, progress);
        }
        let stride = self.stride;
        let wanted = move |step| only.map_or(step % stride == seed % stride, |only| only == step);
        let Recorded { steps, history, moments } = record(self.profile, seed, wanted);
        let mut known = History::default();
        let mut seen = HashSet::new();
        for Moment { step, states, commits, durable, named } in moments {
            replay_at(step);
            if (commits, durable, &named) != (known.commits.len(), known.durable, &known.named) {
                // Who meets a disk again would compare it with something else.
                seen.clear();
            }
            known.follow(&history, commits);
            known.told_durable(durable);
            known.named = named;
            if (step + seed).is_multiple_of(STEPS_PER_REPETITION) {
                let repeated = self.repeat(seed, step, &states, &known);
                let crashed = Crashed { states, history: &repeated, whole: &repeated, seed };
                self.look_at(crashed, (step, steps), &mut HashSet::new(), progress);
            } else {
                let crashed = Crashed { states, history: &known, whole: &history, seed };
                self.look_at(crashed, (step, steps), &mut seen, progress);
            }
            if progress.is_enough() {
                return;
            }
        }
    }

    /// Some of the last steps of a run, each with a run of its own: what a long run leaves at all of its steps is too much to keep.
    fn last_steps_of_one_run(
        &self,
        seed: u64,
        only: Option<u64>,
        count: usize,
        replay_at: impl Fn(u64),
        progress: &mut Progress,
    ) {
        let steps = record(self.profile, seed, |_| false).steps;
        let mut random = Random::new(seed);
        let some = || steps - random.below(steps as usize / 16) as u64;
        let wanted = match only {
            Some(only) => vec![only.min(steps)],
            None => std::iter::repeat_with(some).take(count).collect(),
        };
        for step in wanted {
            replay_at(step);
            let Run { disk, history } = run_until(self.profile, seed, step);
            let crashed = Crashed { states: disk.crash_states(), history: &history, whole: &history, seed };
            self.look_at(crashed, (step, steps), &mut HashSet::new(), progress);
            if progress.is_enough() {
                return;
            }
        }
    }

    /// The power fails where it was only noted before what a failure would leave: the same must be left, and known.
    fn repeat(&self, seed: u64, step: u64, expected: &CrashStates, known: &History) -> History {
        let Run { disk, history } = run_until(self.profile, seed, step);
        let kept = |states: &CrashStates| states.after_crash(&mut |_| Keep::Kept).fingerprint();
        let left = |states: &CrashStates| (states.unit_count(), kept(states));
        assert_eq!(
            left(&disk.crash_states()),
            left(expected),
            "a run that fails after step {step} leaves something else"
        );
        // It may have been told less: reads between this step and the next one failed, too.
        let (told, noted) = (history.durable, known.durable);
        assert!(
            told <= noted,
            "when step {step} had been taken {told} was called durable, and {noted} noted"
        );
        history
    }

    /// Looks at the disks that a crash may leave. Many patterns leave the same bytes, since what they lose had changed nothing or
    /// was overwritten, at this step or since another: of these, one is opened, whose fingerprint is not among those `seen`.
    fn look_at(
        &self,
        crashed: Crashed<'_>,
        (step, steps): (u64, u64),
        seen: &mut HashSet<u128>,
        progress: &mut Progress,
    ) {
        let Crashed { states, history, whole, seed } = crashed;
        for (pattern, disk) in disks_after(&states, (seed, step), self) {
            if !seen.insert(disk.fingerprint()) {
                progress.count_equal();
                continue;
            }
            let mut random = Random::new(seed ^ (step << 24) ^ pattern << 48);
            let verdict = examine(disk, (history, whole), self.profile, &mut random, progress);
            verdict.unwrap_or_else(|what| {
                panic!("after step {step} of {steps}, loss pattern {pattern}: {what}")
            });
        }
    }
}

/// Opens one disk that a crash has left and compares it with the history. Some are crashed once more; what that leaves is
/// looked at, and counted, too.
fn examine(
    disk: SimulatedDevice,
    (known, whole): (&History, &History),
    profile: Profile,
    random: &mut Random,
    progress: &mut Progress,
) -> Verdict {
    let left = random.one_in(4).then(|| copy_of(&disk));
    let db = reopen_in_turn(&disk, profile, random.next())
        .map_err(|error| format!("opening after the crash: {:?}: {error}", error.kind()))?;
    let horizon = db.recovery_report().horizon.number();
    let history = &*known.with_durable_of(whole, horizon);
    check_recovered(&db, history)?;
    progress.count();
    if let Some(left) = left {
        crash_in_recovery(left, (history, horizon), profile, random)?;
        progress.count();
    }
    match random.below(64) {
        0..8 => next_generation(&disk, db, history, horizon, profile, random).map(|()| progress.count()),
        8..16 => check_closed(&disk, db, history, horizon),
        16 => {
            let history = &going_on(history, &db, horizon);
            restore_and_crash(&db, history, random).map(|()| progress.count())
        }
        _ => Ok(()),
    }
}

/// What is known of a recovered database for its next generation.
fn going_on(history: &History, db: &Kiln, horizon: u64) -> History {
    let mut history = history.clone();
    history.cut_at(horizon, db);
    // What the oracle has committed to probe the database.
    history.newest = history.newest.max(db.version().number());
    history
}

/// The most steps that opening takes what a crash has left.
const OPENING_STEPS_MAX: usize = 40;

/// A second power loss, while the database is being opened, changes nothing of what the first one left; nor does a third, while
/// it is opened again.
fn crash_in_recovery(
    disk: SimulatedDevice,
    (history, horizon): (&History, u64),
    profile: Profile,
    random: &mut Random,
) -> Verdict {
    let mut left = disk;
    for _ in 0..=random.below(2) {
        left.crash_after(random.below(OPENING_STEPS_MAX) as u64);
        match reopen_in_turn(&left, profile, random.next()) {
            Ok(db) => {
                // Closing would be another matter.
                left.crash_after(left.steps());
                drop(db);
            }
            Err(error) => {
                let is_due = is_of_power_loss(&error, &left);
                ensure!(is_due, "a power loss during recovery shows as {:?}: {error}", error.kind());
            }
        }
        left = left.after_crash_seeded(random.next());
    }
    let db = reopen(&left).map_err(|error| format!("opening after a crash during recovery: {error}"))?;
    let again = db.recovery_report().horizon.number();
    ensure!(again == horizon, "the first recovery finds version {horizon}, the second {again}");
    check_recovered(&db, history).map_err(|what| format!("after a crash during recovery: {what}"))
}

/// The recovered database goes on working, and crashes again.
fn next_generation(
    disk: &SimulatedDevice,
    db: Kiln,
    history: &History,
    horizon: u64,
    profile: Profile,
    random: &mut Random,
) -> Verdict {
    let mut history = going_on(history, &db, horizon);
    drop(db);
    disk.crash_after(disk.steps() + random.below(60) as u64);
    let profile = Profile { operations: profile.operations / 3, ..profile };
    if let Err(error) = play(disk, &mut history, profile, random.next(), random.one_in(2)) {
        ensure!(
            is_of_power_loss(&error, disk),
            "working in the second generation: {:?}: {error}",
            error.kind()
        );
    }
    let left = disk.after_crash_seeded(random.next());
    let db = reopen(&left).map_err(|error| format!("opening in the second generation: {error}"))?;
    check_recovered(&db, &history).map_err(|what| format!("in the second generation: {what}"))
}

/// The checker finds nothing wrong, online or offline, and closing in order makes the next opening clean, which finds all that was there.
fn check_closed(disk: &SimulatedDevice, db: Kiln, history: &History, horizon: u64) -> Verdict {
    let history = &going_on(history, &db, horizon);
    let report = db.check().map_err(|error| format!("checking the open database: {error}"))?;
    ensure!(report.problems.is_empty(), "the online check finds: {report}");
    db.close().map_err(|error| format!("closing: {error}"))?;
    drop(db);
    let report =
        kiln::check_on(Arc::new(disk.clone())).map_err(|error| format!("checking offline: {error}"))?;
    ensure!(report.problems.is_empty(), "the offline check finds: {report}");
    let db = reopen(disk).map_err(|error| format!("opening after an orderly close: {error}"))?;
    let report = db.recovery_report();
    ensure!(report.clean && report.lost_versions.is_none(), "an orderly close was not noticed: {report}");
    ensure!(report.horizon.number() >= history.durable, "an orderly close lost version {}", history.durable);
    check_recovered(&db, history).map_err(|what| format!("after an orderly close: {what}"))
}

#[cfg(test)]
mod tests;
