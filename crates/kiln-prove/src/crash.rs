//! A power loss at every step of the device.
//!
//! The workload is run once to count the device's steps; then, for every step k, it is run again with a power
//! loss after step k. Of what was not synced then, any part may survive: all subsets are tried where
//! there are few, and a biased sample where there are many. Each disk that may be left is opened, and the
//! [`oracle`](super::oracle) compares it with the history. Some of them meet a second power loss during the
//! recovery, and some go on working and crash again, so that boundaries of several generations are checked.

use std::sync::Arc;
use std::time::{Duration, Instant};

use kiln::device::{Keep, SimulatedDevice};
use kiln::{ErrorKind, Kiln};

use super::model::History;
use super::oracle::{Verdict, check_recovered, ensure};
use super::support::{Random, Replay, budget, copy_of, manual, only_step, seed, watched};
use super::workload::{LARGE, LAZY, Profile, SMALL, Shift, TINY};

/// Opens what is on a disk.
pub(crate) fn reopen(disk: &SimulatedDevice) -> kiln::Result<Kiln> {
    manual().open_on(Arc::new(disk.clone()))
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
    let db = reopen(disk)?;
    let mut shift = Shift::begin(&db, history, profile, seed)?;
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

/// How thoroughly a sweep looks at each step.
#[derive(Clone, Copy, Debug)]
struct Sweep {
    name: &'static str,
    profile: Profile,
    /// Crash states of one step, where not all subsets are tried.
    samples: u64,
    /// All subsets are tried up to this many loss units.
    exhaustive_units: usize,
    /// Crash states to look at in all, by default.
    states: u64,
}

/// One run that crashed, and what is known about it.
struct Crashed {
    disk: SimulatedDevice,
    history: History,
    seed: u64,
}

fn run_until(profile: Profile, seed: u64, step: u64) -> Crashed {
    let disk = SimulatedDevice::new(seed);
    disk.crash_after(step);
    let mut history = History::default();
    if let Err(error) = play(&disk, &mut history, profile, seed, true) {
        let expected = matches!(error.kind(), ErrorKind::Lost | ErrorKind::Io);
        assert!(expected, "a power loss showed as {:?}: {error}", error.kind());
        assert!(step != u64::MAX, "nothing was switched off, and yet: {error}");
    }
    Crashed { disk, history, seed }
}

/// The disks to look at after a crash: every subset of the loss units, or a sample.
fn disks_after(crashed: &Crashed, sweep: &Sweep) -> Vec<SimulatedDevice> {
    let states = crashed.disk.crash_states();
    if states.unit_count() <= sweep.exhaustive_units {
        return states.exhaustive().collect();
    }
    let extremes = [Keep::Kept, Keep::Lost].map(|keep| states.after_crash(&mut |_| keep));
    let sampled = (0..sweep.samples).map(|sample| states.after_crash_seeded(crashed.seed ^ (sample << 32)));
    extremes.into_iter().chain(sampled).collect()
}

impl Sweep {
    /// Looks at every step of run after run until the budget of states is used up.
    fn run(&self, replay: &Replay) {
        let (began, wanted) = (Instant::now(), budget(self.states));
        let (mut states, mut runs) = (0, 0);
        while states < wanted {
            let seed = seed() + runs;
            states += self.one_run(seed, replay);
            runs += 1;
            if only_step().is_some() {
                break;
            }
        }
        let per_second = states as f64 / began.elapsed().as_secs_f64();
        println!("{}: {states} crash states in {runs} runs, {per_second:.0} per second", self.name);
    }

    fn one_run(&self, seed: u64, replay: &Replay) -> u64 {
        let steps = run_until(self.profile, seed, u64::MAX).disk.steps();
        let mut states = 0;
        for step in 0..=steps {
            if only_step().is_some_and(|only| only != step) {
                continue;
            }
            replay.at(self.name, &format!("KILN_SEED={seed} KILN_STEP={step}"));
            let crashed = run_until(self.profile, seed, step);
            for (pattern, disk) in disks_after(&crashed, self).into_iter().enumerate() {
                let mut random = Random::new(seed ^ (step << 24) ^ (pattern as u64) << 48);
                let verdict = examine(&disk, &crashed.history, self.profile, &mut random);
                verdict.unwrap_or_else(|what| {
                    panic!("after step {step} of {steps}, loss pattern {pattern}: {what}")
                });
                states += 1;
            }
        }
        states
    }
}

/// Opens one disk that a crash has left and compares it with the history.
fn examine(left: &SimulatedDevice, history: &History, profile: Profile, random: &mut Random) -> Verdict {
    let disk = copy_of(left);
    let db =
        reopen(&disk).map_err(|error| format!("opening after the crash: {:?}: {error}", error.kind()))?;
    let horizon = db.recovery_report().horizon.number();
    check_recovered(&db, history)?;
    if random.one_in(4) {
        crash_in_recovery(left, history, horizon, random)?;
    }
    match random.below(8) {
        0 => next_generation(&disk, db, history, horizon, profile, random),
        1 => check_closed(&disk, db, history),
        _ => Ok(()),
    }
}

/// A second power loss, while the database is being opened, changes nothing of what the first one left.
fn crash_in_recovery(
    left: &SimulatedDevice,
    history: &History,
    horizon: u64,
    random: &mut Random,
) -> Verdict {
    let disk = copy_of(left);
    disk.crash_after(random.below(14) as u64);
    if let Ok(db) = reopen(&disk) {
        // Closing would be another matter.
        disk.crash_after(disk.steps());
        drop(db);
    }
    let third = disk.after_crash_seeded(random.next());
    let db = reopen(&third).map_err(|error| format!("opening after a crash during recovery: {error}"))?;
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
    let mut history = history.clone();
    history.cut_at(horizon);
    // What the oracle has committed to probe the database.
    history.newest = history.newest.max(db.version().number());
    drop(db);
    disk.crash_after(disk.steps() + random.below(60) as u64);
    let profile = Profile { operations: profile.operations / 3, ..profile };
    let _ = play(disk, &mut history, profile, random.next(), random.one_in(2));
    let left = disk.after_crash_seeded(random.next());
    let db = reopen(&left).map_err(|error| format!("opening in the second generation: {error}"))?;
    check_recovered(&db, &history).map_err(|what| format!("in the second generation: {what}"))
}

/// The checker finds nothing wrong, online or offline, and closing in order makes the next opening clean.
fn check_closed(disk: &SimulatedDevice, db: Kiln, history: &History) -> Verdict {
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
    Ok(())
}

const MINUTES: Duration = Duration::from_secs(600);

/// A hardening that writes one block has eight sectors to lose, and all 256 ways are tried.
#[test]
fn c1_atomic_in_every_loss_pattern_of_every_step() {
    let name = "c1_atomic_in_every_loss_pattern_of_every_step";
    let sweep = Sweep { name, profile: TINY, samples: 6, exhaustive_units: 8, states: 1_500 };
    watched(name, MINUTES, |replay| sweep.run(replay));
}

#[test]
fn c1_atomic_at_every_step_of_many_small_hardenings() {
    let name = "c1_atomic_at_every_step_of_many_small_hardenings";
    let sweep = Sweep { name, profile: SMALL, samples: 12, exhaustive_units: 4, states: 1_500 };
    watched(name, MINUTES, |replay| sweep.run(replay));
}

#[test]
fn c4_ordered_across_segments_and_truncation_at_every_step() {
    let name = "c4_ordered_across_segments_and_truncation_at_every_step";
    let sweep = Sweep { name, profile: LARGE, samples: 6, exhaustive_units: 4, states: 2_000 };
    watched(name, MINUTES, |replay| sweep.run(replay));
}

#[test]
fn c5_receipts_hold_when_hardenings_are_rare_and_long() {
    let name = "c5_receipts_hold_when_hardenings_are_rare_and_long";
    let sweep = Sweep { name, profile: LAZY, samples: 10, exhaustive_units: 4, states: 1_500 };
    watched(name, MINUTES, |replay| sweep.run(replay));
}

#[test]
fn c4_the_large_workload_spans_many_segments() {
    let crashed = run_until(LARGE, seed(), u64::MAX);
    let db = reopen(&crashed.disk).unwrap();
    let statistics = db.statistics();
    assert!(statistics.log_tail > 4 * (64 << 10), "the log stayed within a few segments: {statistics:?}");
}

#[test]
fn c8_the_same_seed_gives_the_same_run() {
    for (round, profile) in [SMALL, LARGE, LAZY].into_iter().enumerate() {
        let seed = seed() + round as u64;
        let runs = [(); 2].map(|()| run_until(profile, seed, u64::MAX));
        assert_eq!(runs[0].disk.steps(), runs[1].disk.steps());
        let versions =
            |run: &Crashed| run.history.commits.iter().map(|commit| commit.version).collect::<Vec<_>>();
        assert_eq!(versions(&runs[0]), versions(&runs[1]));
        assert!(runs[0].history.latest == runs[1].history.latest);
    }
}
