//! C4, C5: memory that runs out.
//!
//! An allocation that fails ends a Rust program on the spot, wherever it is. So a workload runs on a real directory in a process
//! of its own, whose n-th allocation fails, the engine's and the tool's counted alike, for one n after the other. What it was told
//! is durable it notes in a file. Then, at times, another process runs out of memory while it opens what is there; and at last it is
//! opened and compared with the history, which is that of a run on a simulated disk: on one thread the seed decides what is committed
//! into which version, whatever the device.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, ExitCode, ExitStatus};
use std::sync::Arc;

use kiln::device::SimulatedDevice;

use crate::allocator;
use crate::arguments::{Effort, Starved};
use crate::crash::{options_of, play};
use crate::jobs::Progress;
use crate::oracle::{Verdict, check_recovered, ensure};
use crate::support::{Random, Replay, is_of_broken_disk, manual};
use crate::workload::history::{History, Progressed};
use crate::workload::{Name, Profile, Shift};

/// Runs of a workload and seed, each with another allocation that fails; where there are fewer allocations, each fails once.
const RUNS_MAX: u64 = 200;
/// What opening a small database allocates at most, more or less.
const OPENING_ALLOCATIONS: usize = 1_500;
/// How a process ends that was refused what it could do without for the moment, and said so.
const REFUSED: u8 = 3;

/// The beginning of a workload: there are as many runs as allocations.
fn profile_of(workload: Name) -> Profile {
    Profile { operations: 14, ..workload.profile() }
}

/// What a process notes of its work.
#[derive(Debug, Default, PartialEq, Eq)]
struct Noted {
    commits: u64,
    durable: u64,
    /// Allocations that were left before one failed.
    left: u64,
}

impl Noted {
    fn write(&self, file: &File) {
        let bytes: Vec<u8> =
            [self.commits, self.durable, self.left].iter().flat_map(|word| word.to_le_bytes()).collect();
        file.write_all_at(&bytes, 0).expect("there is space for a note");
    }

    /// Nothing, if the process did not come so far.
    fn read(path: &Path) -> Noted {
        let bytes = std::fs::read(path).unwrap_or_default();
        let mut words = bytes.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word));
        let mut next = || words.next().unwrap_or_default();
        Noted { commits: next(), durable: next(), left: next() }
    }
}

/// The process that runs out of memory.
pub(crate) fn starved(starved: &Starved) -> ExitCode {
    // Nobody wants to look at what it leaves in memory.
    let none = rustix::process::Rlimit { current: Some(0), maximum: Some(0) };
    let _ = rustix::process::setrlimit(rustix::process::Resource::Core, none);
    let outcome = match starved.opens_only {
        true => {
            allocator::fail_at(starved.nth);
            manual().open(&starved.directory).map(std::mem::forget)
        }
        false => work(starved),
    };
    let left = allocator::left();
    allocator::fail_at(0);
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        // It was the one that failed: whoever can do without says so.
        Err(error) if left == 0 && is_of_broken_disk(&error) => ExitCode::from(REFUSED),
        Err(error) => panic!("with {left} allocations left: {:?}: {error}", error.kind()),
    }
}

fn work(starved: &Starved) -> kiln::Result<()> {
    let profile = profile_of(starved.workload);
    let file = File::create(&starved.notes).expect("notes can be made");
    let progressed = Arc::new(Progressed::default());
    let mut history = History::looked_at_by(progressed.clone());
    let note = || {
        let (commits, durable, _) = progressed.now();
        Noted { commits: commits as u64, durable, left: allocator::left() }.write(&file);
    };
    // A disk that the shift asks for its faults; it has none.
    let sound = SimulatedDevice::new(starved.seed);
    allocator::fail_at(starved.nth);
    let db = options_of(profile).open(&starved.directory)?;
    let mut shift = Shift::begin(&sound, &db, &mut history, profile, starved.seed)?;
    note();
    for _ in 0..profile.operations {
        shift.step()?;
        note();
    }
    drop(shift);
    db.close()?;
    history.told_durable(history.commits.last().map_or(0, |commit| commit.version));
    note();
    Ok(())
}

/// Runs a workload again and again, each time with another allocation that fails.
pub(crate) fn prove(
    #[cfg_attr(not(feature = "plant"), expect(unused_variables))] effort: &Effort,
    (seed, workload): (u64, Name),
    replay: &Replay,
    progress: &mut Progress,
) {
    replay.at(&format!("faults --workload {} --seed {seed}", workload.as_str()));
    let history = history_of(workload, seed);
    let place = Place::new(workload, seed);
    #[cfg(feature = "plant")]
    let place = Place { template: Starved { plant: effort.plant, ..place.template.clone() }, ..place };
    let all = place.run(u64::MAX, false).expect("nothing failed");
    assert_eq!(all.commits, history.commits.len() as u64, "a directory is not what a simulated disk is");
    let allocations = u64::MAX - all.left;
    let runs = allocations.min(RUNS_MAX);
    let mut random = Random::new(seed);
    for run in 0..runs {
        let (first, end) = (run * allocations / runs, (run + 1) * allocations / runs);
        let nth = 1 + first + random.below((end - first) as usize) as u64;
        let reopened = random.one_in(2).then(|| 1 + random.below(OPENING_ALLOCATIONS) as u64);
        let verdict = starve(&place, &history, nth, reopened);
        verdict.unwrap_or_else(|what| {
            panic!("allocation {nth} of {allocations} failed, and {reopened:?} of opening: {what}")
        });
        progress.count();
        if progress.is_enough() {
            return;
        }
    }
}

/// What the workload commits, up to an orderly close.
fn history_of(workload: Name, seed: u64) -> History {
    let mut history = History::default();
    play(&SimulatedDevice::new(seed), &mut history, profile_of(workload), seed, true).expect("nothing fails");
    history
}

/// One run to the allocation that fails, perhaps an opening to another one, and a look at what is there.
fn starve(place: &Place, whole: &History, nth: u64, reopened: Option<u64>) -> Verdict {
    place.clear();
    let noted = place.run(nth, false)?;
    if let Some(nth) = reopened {
        place.run(nth, true)?;
    }
    compare(place.database(), whole, &noted)
}

fn compare(directory: &Path, whole: &History, noted: &Noted) -> Verdict {
    let mut known = History::default();
    known.follow(whole, noted.commits as usize);
    known.told_durable(noted.durable);
    let db = manual().open(directory).map_err(|error| format!("opening: {:?}: {error}", error.kind()))?;
    let horizon = db.recovery_report().horizon.number();
    check_recovered(&db, &known.with_durable_of(whole, horizon))
}

/// Where databases are made.
struct Place {
    _directory: tempfile::TempDir,
    /// What each process is told, but for the allocation that fails.
    template: Starved,
}

impl Place {
    fn new(workload: Name, seed: u64) -> Place {
        // In memory nobody waits for a disk; elsewhere it takes longer.
        let in_memory = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir());
        let directory = in_memory.expect("a temporary directory can be made");
        let template = Starved {
            workload,
            seed,
            nth: u64::MAX,
            opens_only: false,
            directory: directory.path().join("database"),
            notes: directory.path().join("notes"),
            #[cfg(feature = "plant")]
            plant: None,
        };
        Place { _directory: directory, template }
    }

    fn database(&self) -> &Path {
        &self.template.directory
    }

    fn notes(&self) -> &Path {
        &self.template.notes
    }

    fn clear(&self) {
        // There may be nothing yet.
        let _ = std::fs::remove_dir_all(self.database());
        let _ = std::fs::remove_file(self.notes());
    }

    /// Runs a process to the allocation that fails, or to its end. Returns what it noted; an error if it ended in another way.
    fn run(&self, nth: u64, opens_only: bool) -> Result<Noted, String> {
        let starved = Starved { nth, opens_only, ..self.template.clone() };
        let output = command(&starved).output().map_err(|error| format!("starting a process: {error}"))?;
        let status = output.status;
        let told = String::from_utf8_lossy(&output.stderr);
        let is_due = status.success() || status.code() == Some(REFUSED.into()) || has_starved(status, &told);
        ensure!(is_due, "the process ended with {status}: {told}");
        Ok(Noted::read(self.notes()))
    }
}

/// Whether a process has ended as it does that has no memory: whatever else aborts one, such as a panic while another goes on, does not say so.
fn has_starved(status: ExitStatus, told: &str) -> bool {
    let is_aborted = status.signal() == Some(rustix::process::Signal::ABORT.as_raw());
    is_aborted && told.lines().any(|line| line.starts_with("memory allocation of "))
}

/// This program, as one that runs out of memory.
#[cfg(not(test))]
fn command(starved: &Starved) -> Command {
    let mut command = Command::new(std::env::current_exe().expect("this program finds itself"));
    command.arg("starved").args(starved.arguments());
    command
}

/// In a program of tests it is one of them.
#[cfg(test)]
fn command(starved: &Starved) -> Command {
    let mut command = Command::new(std::env::current_exe().expect("this program finds itself"));
    command.args(["starve::tests::the_process_that_runs_out_of_memory", "--exact", "--ignored"]);
    command.env(tests::STARVED, starved.arguments().join("\n"));
    command
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use clap::Parser as _;

    use super::*;
    use crate::arguments::{Arguments, Part};
    use crate::testing::{budget, seed, watched};

    /// What the process that runs out of memory is told, a line an argument.
    pub(super) const STARVED: &str = "KILN_STARVED";

    /// Not a test: others run it in a process of its own.
    #[test]
    #[ignore = "a part of the tests beside it, which run it"]
    fn the_process_that_runs_out_of_memory() {
        let Ok(told) = std::env::var(STARVED) else { return };
        let arguments = ["kiln-prove", "starved"].into_iter().chain(told.lines());
        let Part::Starved(told) = Arguments::parse_from(arguments).part else { return };
        // Whether it was refused something makes no difference to who looks at what is left.
        let _ = starved(&told);
    }

    #[test]
    fn c5_c4_a_process_that_runs_out_of_memory_loses_nothing_durable() {
        const NAME: &str = "c5_c4_a_process_that_runs_out_of_memory";
        watched(NAME, Duration::from_secs(600), |_| {
            for workload in [Name::Small, Name::Settling] {
                let (history, place) = (history_of(workload, seed()), Place::new(workload, seed()));
                let all = place.run(u64::MAX, false).unwrap();
                assert_eq!(all.commits, history.commits.len() as u64);
                // Closing may tell of a version in which nothing was committed, for a snapshot has closed the one before.
                assert!(all.durable >= history.durable, "{all:?}, {}", history.durable);
                let allocations = u64::MAX - all.left;
                let runs = budget(8);
                let mut ended = 0;
                for run in 0..runs {
                    let nth = 1 + run * allocations / runs;
                    starve(&place, &history, nth, (run % 2 == 0).then_some(30 * (run + 1))).unwrap();
                    ended += u64::from(Noted::read(place.notes()).commits < all.commits);
                }
                // The others had nothing left to do but to close the database.
                assert!(2 * ended >= runs, "{ended} of {runs} processes ran out of memory while they worked");
            }
        });
    }

    /// A panic while another one went on passed for memory that had run out.
    #[test]
    fn c5_who_aborts_for_another_reason_has_not_run_out_of_memory() {
        let aborted = ExitStatus::from_raw(rustix::process::Signal::ABORT.as_raw());
        let starved = "thread 'main' was busy\nmemory allocation of 24 bytes failed\n";
        assert!(has_starved(aborted, starved));
        assert!(!has_starved(aborted, "thread 'main' panicked in a destructor during cleanup"));
        assert!(!has_starved(ExitStatus::from_raw(0), starved));
    }

    /// If it could not, nothing above would mean anything.
    #[test]
    fn c5_what_was_called_durable_and_is_not_there_is_noticed() {
        let (history, place) = (history_of(Name::Small, seed()), Place::new(Name::Small, seed()));
        let all = place.run(u64::MAX, false).unwrap();
        // How much of all is opening is not said here, and not the same twice: a process that has come to a commit, and not to
        // the end, is looked for.
        let half_way = || {
            let eighths = |count: u64| {
                place.clear();
                place.run((u64::MAX - all.left) / 8 * count, false).unwrap()
            };
            let is_half_way = |noted: &Noted| noted.commits > 0 && noted.durable < history.durable;
            (1..8).map(eighths).find(is_half_way).expect("a process ends while it works")
        };
        compare(place.database(), &history, &half_way()).unwrap();
        let lie = Noted { durable: history.durable, ..half_way() };
        assert!(compare(place.database(), &history, &lie).unwrap_err().starts_with("C5"));
    }
}
