//! That the sweep goes where it must, and what it must find there.

use std::time::Duration;

use kiln::device::Device as _;

use super::*;
use crate::arguments::Limit;
use crate::testing::{budget, seed, watched};
use crate::workload::history::{Anew, Place};
use crate::workload::loads::ROWS;
use crate::workload::{LARGE, LAZY, LONG, NAMED, SKEWED, SMALL, WARM};

/// Run after run of a workload, until so many states were looked at. Of each run so few steps are looked at, all over it, that the first one comes to its
/// end: that of its beginning alone often has nothing of what the workload is for.
fn sweep(name: &'static str, workload: Name, states: u64) {
    watched(name, Duration::from_secs(600), |replay| {
        let states = budget(states);
        let mut progress = Progress::silent(name, Limit::States(states));
        let steps = record(workload.profile(), seed(), |_| false).steps;
        let sweep = Sweep::of(workload);
        // More than a step leaves as a rule, with those that others have come to.
        let states_per_step = 3 * sweep.samples.max(1 << sweep.exhaustive_units) / 2;
        // Odd, so that it is not always, or never, those that have a run of their own.
        let sweep = Sweep { stride: (steps * states_per_step).div_ceil(states) | 1, ..sweep };
        for (run, seed) in (0..).zip(seed()..) {
            sweep.one_run(seed, None, replay, &mut progress);
            if !progress.goes_on() {
                let is_whole = run > 0 || sweep.last_steps.is_some();
                // Of few states it is a matter of luck.
                assert!(is_whole || states < 16 * states_per_step, "the first run was broken off");
                break;
            }
        }
        progress.finish();
    });
}

#[test]
fn c1_atomic_in_every_loss_pattern_of_every_step() {
    sweep("c1_atomic_in_every_loss_pattern_of_every_step", Name::Tiny, 1_500);
}

#[test]
fn c1_atomic_at_every_step_of_many_small_hardenings() {
    sweep("c1_atomic_at_every_step_of_many_small_hardenings", Name::Small, 1_500);
}

#[test]
fn c4_ordered_across_segments_and_truncation_at_every_step() {
    sweep("c4_ordered_across_segments_and_truncation_at_every_step", Name::Large, 2_000);
}

#[test]
fn c4_ordered_while_the_log_is_compacted_at_every_step() {
    sweep("c4_ordered_while_the_log_is_compacted_at_every_step", Name::Skewed, 2_000);
}

#[test]
fn c4_snapshots_that_have_names_are_there_after_a_crash_at_every_step() {
    sweep("c4_snapshots_that_have_names_are_there", Name::Named, 1_000);
}

#[test]
fn c4_ordered_while_records_are_kept_warm_at_every_step() {
    let (disk, mut history) = (SimulatedDevice::new(seed()), History::default());
    let db = open(&disk, WARM).unwrap();
    Shift::begin(&disk, &db, &mut history, WARM, seed()).unwrap().work().unwrap();
    let statistics = db.statistics();
    assert!(statistics.records_rewritten > 20, "{statistics:?}");
    assert!(statistics.log_head > statistics.ring_bytes, "{statistics:?}");
    sweep("c4_ordered_while_records_are_kept_warm", Name::Warm, 500);
}

#[test]
fn c4_the_named_workload_loads_tables_and_breaks_loads_off() {
    let (mut numbers, mut overwrites) = (HashSet::new(), 0);
    for seed in 0..4 {
        let (disk, mut history) = (SimulatedDevice::new(seed), History::default());
        play(&disk, &mut history, NAMED, seed, true).unwrap();
        let loads = history.loads_at(u64::MAX);
        let others = history.keys().iter().filter(|(place, _)| *place != Place::Numbers).count();
        assert!(others < ROWS, "{others} rows are in other tables");
        let db = reopen(&disk).unwrap();
        check_recovered(&db, &history).unwrap();
        // Lies about them are noticed.
        let mut one_more = history.clone();
        let number = one_more.begin_load();
        one_more.commit_load(history.durable, number);
        assert!(check_recovered(&db, &one_more).unwrap_err().starts_with("C4"));
        for (at, number) in (0..).zip(&loads) {
            let mut one_less = history.clone();
            let load = one_less.commits.iter().position(|commit| commit.load == Some(*number));
            one_less.commits.remove(load.unwrap());
            assert!(check_recovered(&db, &one_less).unwrap_err().starts_with("C4"), "load {at}");
        }
        if let Some(&load) = loads.last() {
            let mut overwritten = history.clone();
            overwritten.commit_anew(history.durable, Anew { load, first: 3, stamp: 7 });
            assert!(check_recovered(&db, &overwritten).unwrap_err().starts_with("C1"));
        }
        overwrites += loads
            .iter()
            .map(|&load| history.written_anew(load, history.commits.len()).count())
            .sum::<usize>();
        numbers.extend(loads);
    }
    assert!(numbers.len() > 1 && overwrites > 0, "{numbers:?}, {overwrites}");
}

/// The first of a session's batch were durable in one version and the next in another, and then the batch ended in a third: the
/// history took all of the first for the second's, and called them missing where the power failed between the two.
#[test]
fn c7_a_batch_of_a_session_goes_on_over_several_hardenings() {
    let name = "c7_a_batch_of_a_session_goes_on_over_several_hardenings";
    let mut progress = Progress::silent(name, Limit::Pass);
    // As the workload was when that seed showed it.
    let profile = Profile { cold_keys: 24, ..SKEWED };
    let sweep = Sweep { profile, ..Sweep::of(Name::Skewed) };
    sweep.one_run(6_600_143, Some(234), &Replay::default(), &mut progress);
}

#[test]
fn c4_the_skewed_workload_is_compacted_again_and_again() {
    let (disk, mut history) = (SimulatedDevice::new(seed()), History::default());
    let db = open(&disk, SKEWED).unwrap();
    Shift::begin(&disk, &db, &mut history, SKEWED, seed()).unwrap().work().unwrap();
    let statistics = db.statistics();
    assert!(statistics.segments_compacted > 8 && statistics.records_rewritten > 100, "{statistics:?}");
    assert!(statistics.log_begin > 8 * SKEWED.segment_bytes, "{statistics:?}");
}

/// Every step of a run was tried with the same loss patterns.
#[test]
fn c1_other_loss_patterns_are_tried_at_each_step() {
    let sweep = Sweep { samples: 6, exhaustive_units: 0, ..Sweep::of(Name::Large) };
    let steps = (20..400).step_by(5);
    let states = steps.map(|step| run_until(sweep.profile, seed(), step).disk.crash_states());
    let tried_of = |states: &CrashStates, step| {
        let disks = disks_after(states, (seed(), step), &sweep);
        disks.map(|(_, disk)| disk.fingerprint()).collect::<HashSet<_>>()
    };
    // Whichever zeros a crash takes of a segment that is being prepared makes no difference.
    let states = states.max_by_key(|states| tried_of(states, 60).len()).unwrap();
    let tried = |step| tried_of(&states, step);
    assert_eq!(tried(60), tried(60));
    let all: HashSet<_> = (60..90).flat_map(tried).collect();
    assert!(all.len() > 2 * tried(60).len(), "{} disks", all.len());
}

/// What hides another loss is not counted twice, and nothing that differs is left out.
#[test]
fn c1_each_disk_that_a_crash_may_leave_is_looked_at_once() {
    let sweep = Sweep::of(Name::Tiny);
    let (mut patterns, mut disks) = (0, 0);
    for step in 0..40 {
        let states = run_until(sweep.profile, seed(), step).disk.crash_states();
        if states.unit_count() > sweep.exhaustive_units {
            continue;
        }
        let files = |disk: &SimulatedDevice| {
            disk.list().unwrap().into_iter().map(|name| (disk.bytes(&name), name)).collect::<Vec<_>>()
        };
        let all: HashSet<_> = states.exhaustive().map(|disk| files(&disk)).collect();
        let mut seen = HashSet::new();
        let looked_at: Vec<_> = disks_after(&states, (seed(), step), &sweep)
            .filter(|(_, disk)| seen.insert(disk.fingerprint()))
            .map(|(_, disk)| files(&disk))
            .collect();
        assert_eq!(looked_at.len(), all.len(), "after step {step}");
        assert_eq!(looked_at.into_iter().collect::<HashSet<_>>(), all, "after step {step}");
        (patterns, disks) = (patterns + (1 << states.unit_count()), disks + all.len());
    }
    assert!(disks > 100 && disks < patterns, "{disks} disks of {patterns} patterns");
}

#[test]
fn c4_ordered_where_several_threads_recover() {
    let (disk, mut history) = (SimulatedDevice::new(seed()), History::default());
    play(&disk, &mut history, LONG, seed(), false).unwrap();
    let statistics = reopen(&copy_of(&disk)).unwrap().statistics();
    assert!(statistics.log_tail - statistics.log_begin > 17 << 20, "the log is short: {statistics:?}");
    sweep("c4_ordered_where_several_threads_recover", Name::Long, 12);
}

#[test]
fn c5_receipts_hold_when_hardenings_are_rare_and_long() {
    sweep("c5_receipts_hold_when_hardenings_are_rare_and_long", Name::Lazy, 1_500);
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
    for (round, profile) in [SMALL, LARGE, LAZY, SKEWED].into_iter().enumerate() {
        let seed = seed() + round as u64;
        let runs = [(); 2].map(|()| run_until(profile, seed, u64::MAX));
        assert_eq!(runs[0].disk.steps(), runs[1].disk.steps());
        let versions =
            |run: &Run| run.history.commits.iter().map(|commit| commit.version).collect::<Vec<_>>();
        assert_eq!(versions(&runs[0]), versions(&runs[1]));
        assert!(runs[0].history.latest == runs[1].history.latest);
        // Not at the end alone: on the way both disks hold the same, durable and not, byte for byte.
        for step in (0..runs[0].disk.steps().min(120)).step_by(8) {
            let left = [(); 2].map(|()| {
                let states = run_until(profile, seed, step).disk.crash_states();
                let disks = [Keep::Kept, Keep::Lost].map(|keep| states.after_crash(&mut |_| keep));
                (states.unit_count(), disks.map(|disk| disk.fingerprint()))
            });
            assert_eq!(left[0], left[1], "after step {step}");
        }
    }
}
