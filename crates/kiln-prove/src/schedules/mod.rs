//! Schedules: the engine's own code under a scheduler that decides at every use of an atomic, a lock or a wait who goes on.
//!
//! ```text
//!  scheduler       who goes on, by a seed              database    a database on a simulated disk, and what a crash leaves
//!  lost_update     nothing that was committed is overwritten unseen, and versions follow
//!  closing         nothing joins a version that was closed; what a crash leaves is all commits up to a version
//!  wake_ups        whoever waits for durability is woken, whatever happens
//!  views           nobody sees half of a commit
//!  leaf_images     nor a row as it was when its leaf was copied
//!  gaps            nor misses one that comes where there was none
//!  dropping        nobody uses what was dropped
//!  settling        a row that settles is always in one place
//!  moving          what is written anew changes for nobody
//!  sessions        what is forgotten is so for who opens it then; what is told of one is never of two
//!  kiln::schedules programs on the engine's parts: pins, log tail, indexes
//! ```
//!
//! All threads of a schedule are coroutines of one thread, and time is a counter, so a program's name and a seed repeat
//! everything. Deadlocks are noticed at once, endless turning at a bound. Memory is sequentially consistent here.

mod closing;
mod database;
mod dropping;
mod gaps;
mod leaf_images;
mod lost_update;
mod moving;
mod scheduler;
mod sessions;
mod settling;
mod views;
mod wake_ups;

use std::cell::Cell;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use kiln::schedules::{Program, Time, begin};
use shuttle::{Config, FailurePersistence, MaxSteps, Runner};

use crate::arguments::Scheduling;
use crate::jobs::{Counts, Progress};
use crate::support::Replay;
use scheduler::{Seeded, Seeds, Trace};

/// The programs on whole databases.
const PROGRAMS: &[Program] = &[
    ("lost-update", lost_update::in_a_map_and_a_table),
    ("lost-update-in-versions", lost_update::while_versions_close),
    ("lost-update-of-one-key", lost_update::by_single_operations),
    ("lost-deletion", lost_update::while_the_key_is_deleted),
    ("closed-versions", closing::a_crash_leaves_whole_versions),
    ("close", closing::a_close_leaves_every_commit),
    ("hardening-in-place", closing::updates_in_place_are_not_lost),
    ("safe-commits", wake_ups::safe_commits_end),
    ("receipts", wake_ups::receipts_end),
    ("told-by-closing", wake_ups::who_closes_tells),
    ("window", wake_ups::the_window_ends),
    ("log-space", wake_ups::waits_for_space_end),
    ("failed-sync", wake_ups::losses_are_told),
    ("opacity", views::nobody_sees_half_of_a_commit),
    ("snapshots", views::snapshots_are_cuts),
    ("snapshots-again", views::a_snapshot_has_what_was_committed),
    ("snapshots-of-deleted", views::a_snapshot_has_a_key_or_what_took_its_place),
    ("leaving-memory", views::nothing_is_lost_as_it_leaves_memory),
    ("phantoms", views::two_do_not_miss_each_other),
    ("ranges-beside-singles", views::a_range_and_what_changes_beside_it_have_their_versions),
    ("ranges-over-leaves", views::a_range_over_two_leaves_is_of_one_state),
    ("copied-leaves", leaf_images::nobody_sees_a_row_that_was_changed_since_it_was_copied),
    ("copied-positions", leaf_images::a_range_has_its_rows_whatever_comes_before_them_in_a_copied_leaf),
    ("copied-and-settled", leaf_images::a_range_has_its_rows_though_they_settle_out_of_a_copied_leaf),
    ("settled-and-copied", leaf_images::a_range_has_its_rows_where_some_have_settled_beside_a_copied_leaf),
    ("copying-goes-on", leaf_images::leaves_are_copied_whoever_divides_the_memory),
    ("gaps", gaps::a_range_has_a_row_that_comes_where_there_was_none),
    ("gaps-and-phantoms", gaps::two_do_not_miss_each_other_where_there_was_no_row),
    ("dropped", dropping::nobody_uses_what_was_dropped),
    ("forgotten-session", sessions::a_session_goes_on_or_begins_anew),
    ("settled-row", settling::a_row_that_settles_loses_no_update),
    ("settled-walk", settling::a_walk_meets_a_row_that_moves_once),
    ("settled-deletion", settling::a_row_that_settles_is_deleted_once),
    ("settled-by-two", settling::rows_that_two_remove_lose_no_update),
    ("moved-row", moving::a_row_that_moves_changes_for_nobody),
    ("listed-session", sessions::a_list_tells_of_one_session),
];

/// A schedule with more steps turns endlessly.
const STEPS_MAX: usize = 3_000_000;

/// All programs, those on the engine's parts first, since these are the shortest.
fn programs() -> impl Iterator<Item = Program> {
    kiln::schedules::PROGRAMS.iter().chain(PROGRAMS).copied()
}

/// The program with this name.
pub(crate) fn program(name: &str) -> Result<Program, String> {
    programs().find(|program| program.0 == name).ok_or_else(|| {
        let names: Vec<_> = programs().map(|program| program.0).collect();
        format!("no program has this name; there are {}", names.join(", "))
    })
}

/// What all threads of the operating system work through, each schedule in turn.
struct Work {
    programs: Vec<Program>,
    seed: u64,
    next: AtomicU64,
    states: Option<u64>,
    stop: AtomicBool,
    done: AtomicU64,
    points: AtomicU64,
}

impl Work {
    /// The next program and its seed.
    fn take(&self) -> Option<(Program, u64)> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        if self.stop.load(Ordering::Relaxed) || self.states.is_some_and(|states| number >= states) {
            return None;
        }
        let programs = self.programs.len() as u64;
        Some((self.programs[(number % programs) as usize], self.seed.wrapping_add(number / programs)))
    }
}

// Each thread of the operating system runs schedules of its own.
thread_local! {
    static PROGRAM: Cell<Option<Program>> = const { Cell::new(None) };
    /// What repeats its present schedule.
    static REPLAY: Replay = Replay::default();
}

/// Runs schedule after schedule, on all processors.
pub(crate) fn prove(scheduling: &Scheduling) -> ExitCode {
    let mut progress = Progress::new("schedules", scheduling.limit(), scheduling.counts);
    let work = Arc::new(Work {
        programs: scheduling.only.map_or(programs().collect(), |program| vec![program]),
        seed: scheduling.seed,
        next: AtomicU64::new(0),
        states: scheduling.states,
        stop: AtomicBool::new(false),
        done: AtomicU64::new(0),
        points: AtomicU64::new(0),
    });
    end_with_any_thread(work.clone(), scheduling.counts);
    let processors = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let threads: Vec<_> = (0..processors)
        .map(|_| Source(work.clone()))
        .map(|source| std::thread::spawn(move || run(source)))
        .collect();
    let mut counted = 0;
    loop {
        let over = threads.iter().all(std::thread::JoinHandle::is_finished);
        let done = work.done.load(Ordering::Relaxed);
        let points = work.points.load(Ordering::Relaxed) / 1_000_000;
        progress.count_all(done - counted, "schedules", format!(" with {points} million points"));
        counted = done;
        if over {
            break;
        }
        work.stop.fetch_or(progress.is_enough(), Ordering::Relaxed);
        std::thread::sleep(Duration::from_millis(20));
    }
    progress.finish();
    ExitCode::SUCCESS
}

/// Whatever is wrong ends the process, since the threads of an execution that is broken off cannot be cleared away.
fn end_with_any_thread(work: Arc<Work>, counts: bool) {
    // Shuttle adds its own words to each panic, and has nothing to say beyond the seed.
    let usual = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        usual(panic);
        REPLAY.with(Replay::print);
        if counts {
            Counts { different: work.done.load(Ordering::Relaxed), equal: 0 }.print();
        }
        std::process::abort();
    }));
}

/// The next schedules for one thread of the operating system.
struct Source(Arc<Work>);

impl Seeds for Source {
    fn next(&mut self) -> Option<u64> {
        let (program, seed) = self.0.take()?;
        REPLAY.with(|replay| {
            replay.set(format!(
                "cargo run --release -p kiln-prove --features schedules -- schedules --only {} --seed {seed} --states 1",
                program.0
            ));
        });
        PROGRAM.set(Some(program));
        Some(seed)
    }

    fn done(&mut self, trace: Trace) {
        self.0.done.fetch_add(1, Ordering::Relaxed);
        self.0.points.fetch_add(trace.points, Ordering::Relaxed);
    }
}

/// Runs the schedules that come out of a source, on this thread.
fn run(seeds: impl Seeds + 'static) {
    let mut config = Config::new();
    config.stack_size = 1 << 19;
    config.failure_persistence = FailurePersistence::None;
    config.max_steps = MaxSteps::FailAfter(STEPS_MAX);
    config.silence_warnings = true;
    Runner::new(Seeded::new(seeds), config).run(|| {
        begin(Time::Passes);
        let (_, program) = PROGRAM.get().unwrap_or_else(|| unreachable!("the source has said which"));
        program();
    });
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;
    use crate::support::DEFAULT_SEED;

    /// A few schedules of every program, and what they were.
    struct Traced {
        left: std::vec::IntoIter<(Program, u64)>,
        traces: Arc<Mutex<Vec<Trace>>>,
    }

    impl Seeds for Traced {
        fn next(&mut self) -> Option<u64> {
            let (program, seed) = self.left.next()?;
            PROGRAM.set(Some(program));
            Some(seed)
        }

        fn done(&mut self, trace: Trace) {
            self.traces.lock().unwrap().push(trace);
        }
    }

    fn traces(schedules: Vec<(Program, u64)>) -> Vec<Trace> {
        let traces = Arc::<Mutex<Vec<Trace>>>::default();
        run(Traced { left: schedules.into_iter(), traces: traces.clone() });
        let traces = traces.lock().unwrap();
        traces.clone()
    }

    #[test]
    fn the_same_seed_gives_the_same_schedule_whatever_ran_before() {
        let schedules: Vec<_> =
            programs().flat_map(|program| (0..6).map(move |seed| (program, DEFAULT_SEED + seed))).collect();
        let forwards = traces(schedules.clone());
        let mut backwards = traces(schedules.into_iter().rev().collect());
        backwards.reverse();
        assert_eq!(forwards, backwards);
    }

    #[test]
    fn another_seed_gives_another_schedule() {
        for program in programs() {
            let mut choices: Vec<_> = traces((0..40).map(|seed| (program, seed)).collect())
                .into_iter()
                .map(|trace| trace.choices)
                .collect();
            choices.sort_unstable();
            choices.dedup();
            assert!(choices.len() > 20, "{}: {} schedules of 40 seeds", program.0, choices.len());
        }
    }
}
