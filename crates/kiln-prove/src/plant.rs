//! Planted bugs: whether the other parts notice the mistakes that are made on purpose, and after how long.

use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitCode, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use kiln::planted::Bug;

use crate::arguments::Planting;
use crate::jobs::Counts;

/// A part, its workload or, of `isolation`, what it goes through, and for how many times the seconds asked for, which are of processor
/// time.
type Attempt = (&'static str, &'static str, f64);

/// What each bug meets, in this order, until something notices it. Most are noticed at once by who has an eye for them, so all begin
/// with a short look.
/// A build with `schedules` has that part alone, and looks for those bugs that take a certain interleaving.
#[cfg(feature = "schedules")]
const ATTEMPTS: &[Attempt] = &[("schedules", "all programs", 20.0)];
#[cfg(not(feature = "schedules"))]
const ATTEMPTS: &[Attempt] = &[
    ("crash", "small", 0.1),
    ("faults", "small", 0.1),
    ("crash", "large", 0.1),
    ("crash", "skewed", 0.1),
    ("crash", "settling", 0.1),
    ("crash", "named", 0.1),
    ("crash", "runs", 0.1),
    ("crash", "expiring", 0.1),
    ("crash", "warm", 0.1),
    ("isolation", "library", 0.1),
    ("corrupt", "small", 0.1),
    ("corrupt", "settling", 0.1),
    ("faults", "large", 0.1),
    ("lives", "all", 0.2),
    ("crash", "small", 0.2),
    ("isolation", "library", 0.4),
    ("crash", "large", 0.4),
    ("crash", "skewed", 0.4),
    ("crash", "settling", 0.6),
    ("crash", "named", 0.6),
    ("crash", "runs", 0.6),
    ("crash", "expiring", 0.6),
    ("crash", "warm", 0.6),
    ("crash", "long", 0.6),
    ("faults", "small", 1.0),
    ("faults", "large", 1.0),
    ("isolation", "resp", 1.0),
    ("faults", "settling", 1.0),
    ("corrupt", "settling", 1.0),
    ("corrupt", "small", 2.0),
    ("crash", "lazy", 0.5),
    ("lives", "all", 6.0),
    ("isolation", "library", 8.0),
    ("crash", "large", 2.0),
    ("corrupt", "large", 2.0),
];

/// What each bug of the server meets.
const OF_SERVER: &[Attempt] = &[
    ("isolation", "resp", 0.3),
    ("misuse", "server", 6.0),
    ("isolation", "resp", 4.0),
    ("kill", "server", 9.0),
];

/// What power cuts of the real server must notice, too, on their own: what is written too late, or not synced.
const OF_POWERCUT: [Bug; 10] = [
    Bug::SyncSkipped,
    Bug::HorizonBeforeWrite,
    Bug::HorizonOffByOne,
    Bug::DirectorySyncSkipped,
    Bug::SegmentSyncSkipped,
    Bug::SpareNotZeroed,
    Bug::TailNotCut,
    Bug::TornExtentAccepted,
    Bug::UnsealedApplied,
    Bug::SuperblockNotSynced,
];

/// For how many times the seconds asked for they are looked for.
const POWERCUT: Attempt = ("powercut", "server", 6.0);

/// For how many times the seconds asked for each part runs without a bug, in which it must find nothing.
const SOUND: f64 = 0.1;

/// The signal of who runs out of memory, or is got rid of.
const KILLED: i32 = rustix::process::Signal::KILL.as_raw();

/// What noticed a bug.
#[derive(Debug)]
struct Catch {
    part: &'static str,
    workload: &'static str,
    states: u64,
    took: Duration,
    reason: String,
}

/// How a part has run.
struct Ran {
    states: u64,
    /// What it says is wrong, if it says so.
    found: Option<String>,
}

/// Plants one bug after the other and has all parts look for it; and none, before and afterwards, when nobody may find anything: a part that
/// fails whatever it looks at, since it is wrong itself or has no space left, would pass for one that notices everything.
pub(crate) fn prove(planting: &Planting) -> ExitCode {
    let began = Instant::now();
    let of_this_build = |bug: &Bug| match bug.place() {
        Some("schedules") => cfg!(feature = "schedules"),
        Some("server") | None => !cfg!(feature = "schedules"),
        _ => false,
    };
    let bugs: Vec<Bug> =
        planting.only.map_or(Bug::ALL.iter().copied().filter(of_this_build).collect(), |bug| vec![bug]);
    let attempts = |bug: Bug| if bug.place() == Some("server") { OF_SERVER } else { ATTEMPTS };
    let mut asked = bugs.clone();
    asked.retain(|bug| OF_POWERCUT.contains(bug));
    if !asked.is_empty() && !can_cut_power() {
        println!("power cuts are not tried: they need FUSE and root");
        asked.clear();
    }
    let hunted = bugs.iter().flat_map(|&bug| attempts(bug)).chain(asked.iter().map(|_| &POWERCUT));
    let parts = each_once(hunted);
    if !all_are_sound(&parts, planting.seconds, "before any bug is planted") {
        return ExitCode::FAILURE;
    }
    let caught = hunt_all(&bugs, |bug| hunt(bug, planting.seconds, attempts(bug), run));
    let caught_again = hunt_all(&asked, |bug| hunt(bug, planting.seconds, &[POWERCUT], run));
    let are_sound = all_are_sound(&parts, planting.seconds, "after all bugs");
    println!(
        "plant: {caught} of {} planted bugs caught, and {caught_again} of {} by power cuts of the server, in {:.0} s",
        bugs.len(),
        asked.len(),
        began.elapsed().as_secs_f64()
    );
    match are_sound && (caught, caught_again) == (bugs.len(), asked.len()) {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    }
}

/// Whether `powercut` can mount its file system here.
fn can_cut_power() -> bool {
    let program = std::env::current_exe().expect("this program finds itself");
    let tried = Command::new(program).args(["powercut", "--rounds", "0", "--counts"]).output();
    tried.is_ok_and(|tried| tried.status.success())
}

/// Every part with every workload, once.
fn each_once<'a>(attempts: impl Iterator<Item = &'a Attempt>) -> Vec<Attempt> {
    let mut parts: Vec<Attempt> = Vec::new();
    for &(part, workload, _) in attempts {
        if !parts.iter().any(|&(known, with, _)| (known, with) == (part, workload)) {
            parts.push((part, workload, SOUND));
        }
    }
    parts
}

/// Whether no part finds anything where nothing is planted. Tells what is found.
fn all_are_sound(parts: &[Attempt], seconds: f64, when: &str) -> bool {
    let are_sound = AtomicBool::new(true);
    side_by_side(parts, |&attempt| {
        if let Err(what) = check_sound(attempt, seconds, run) {
            println!("plant: {when}: {what}");
            are_sound.store(false, Ordering::Relaxed);
        }
    });
    are_sound.into_inner()
}

/// A part finds nothing where nothing is planted.
fn check_sound(
    attempt: Attempt,
    seconds: f64,
    run: impl Fn(Attempt, f64, Option<Bug>) -> Ran,
) -> Result<(), String> {
    let (part, workload, _) = attempt;
    let found = run(attempt, seconds, None).found;
    found.map_or(Ok(()), |found| {
        Err(format!("{part} ({workload}) fails by itself, and proves nothing: {found}"))
    })
}

/// Does all work, as much at a time as there are processors.
fn side_by_side<T: Sync>(items: &[T], work: impl Fn(&T) + Sync) {
    let next = AtomicUsize::new(0);
    let processors = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    std::thread::scope(|scope| {
        for _ in 0..processors {
            scope.spawn(|| {
                while let Some(item) = items.get(next.fetch_add(1, Ordering::Relaxed)) {
                    work(item);
                }
            });
        }
    });
}

/// Has all bugs looked for. Returns how many were noticed.
fn hunt_all(bugs: &[Bug], hunt: impl Fn(Bug) -> Option<Catch> + Sync) -> usize {
    let caught = AtomicUsize::new(0);
    side_by_side(bugs, |&bug| {
        let catch = hunt(bug);
        caught.fetch_add(usize::from(catch.is_some()), Ordering::Relaxed);
        match catch {
            Some(Catch { part, workload, states, took, reason }) => println!(
                "{:32} caught by {part} ({workload}), after {states} states and {:.1} s: {reason}",
                bug.name(),
                took.as_secs_f64()
            ),
            None => println!("{:32} NOT CAUGHT: {}", bug.name(), bug.what()),
        }
    });
    caught.into_inner()
}

fn hunt(
    bug: Bug,
    seconds: f64,
    attempts: &[Attempt],
    run: impl Fn(Attempt, f64, Option<Bug>) -> Ran,
) -> Option<Catch> {
    let (began, mut states) = (Instant::now(), 0);
    for &attempt in attempts {
        let ran = run(attempt, seconds, Some(bug));
        states += ran.states;
        if let Some(reason) = ran.found {
            let (part, workload, _) = attempt;
            return Some(Catch { part, workload, states, took: began.elapsed(), reason });
        }
    }
    None
}

/// Runs a part, with a bug or without one.
fn run((part, workload, times): Attempt, seconds: f64, bug: Option<Bug>) -> Ran {
    let program = std::env::current_exe().expect("this program finds itself");
    let mut command = Command::new(program);
    command.args([part, "--counts"]);
    if let Some(bug) = bug {
        command.args(["--plant", bug.name()]);
    }
    match part {
        "schedules" | "kill" | "misuse" | "powercut" => &mut command,
        "isolation" => command.args(["--through", workload]),
        "lives" => command.args(["--jobs", "1"]),
        _ => command.args(["--workload", workload, "--jobs", "1"]),
    };
    command.args(["--seconds", &(seconds * times).to_string()]);
    let output = command.stdin(Stdio::null()).output().expect("this program starts");
    let (counted, told) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    let states = counted.lines().filter_map(Counts::parse).next_back().map_or(0, |counts| counts.different);
    // Neither a command line that is wrong nor somebody who kills processes has noticed anything.
    let has_run = output.status.code() != Some(2) && output.status.signal() != Some(KILLED);
    assert!(has_run, "{part} cannot run here with {bug:?} planted: {}\n{told}", output.status);
    Ran { states, found: (!output.status.success()).then(|| reason(&told)) }
}

/// What a part has told last, or what its first panic was about.
fn reason(told: &str) -> String {
    let mut lines = told.lines().skip_while(|line| !line.contains("panicked at "));
    let of_panic = lines.nth(1);
    let is_told = |line: &&str| !line.is_empty() && !line.starts_with("replay:");
    of_panic.or_else(|| told.lines().rfind(is_told)).unwrap_or("it does not say what").to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOME: &[Attempt] = &[("crash", "small", 0.1), ("lives", "all", 0.2), ("crash", "small", 2.0)];

    fn found(what: &str) -> Ran {
        Ran { states: 1, found: Some(what.to_owned()) }
    }

    const NOTHING: Ran = Ran { states: 1, found: None };

    /// A part that always fails passed for one that notices every bug.
    #[test]
    fn a_part_that_fails_without_a_bug_is_told_from_one_that_notices_bugs() {
        let parts = each_once(SOME.iter());
        assert_eq!(parts, [("crash", "small", SOUND), ("lives", "all", SOUND)]);
        let broken = |_: Attempt, _: f64, _: Option<Bug>| found("no space");
        let watchful = |(part, ..): Attempt, _: f64, bug: Option<Bug>| match (part, bug) {
            ("lives", Some(_)) => found("C5: lost"),
            _ => NOTHING,
        };
        for &part in &parts {
            assert!(check_sound(part, 20.0, broken).unwrap_err().ends_with("proves nothing: no space"));
            assert_eq!(check_sound(part, 20.0, watchful), Ok(()));
        }
        let catch = hunt(Bug::SyncSkipped, 20.0, SOME, watchful).unwrap();
        assert_eq!((catch.part, catch.states, &*catch.reason), ("lives", 2, "C5: lost"));
        assert!(hunt(Bug::SyncSkipped, 20.0, SOME, |_, _, _| NOTHING).is_none());
    }

    #[test]
    fn the_reason_is_what_the_first_panic_says_or_the_last_line() {
        let panic = "crash: 3 states\nthread 'main' panicked at src/crash.rs:1:2:\nC5: lost\nnote: run\nreplay: cargo";
        assert_eq!(reason(panic), "C5: lost");
        assert_eq!(reason("G0: a cycle\n2 anomalies\nreplay: cargo\n"), "2 anomalies");
        assert_eq!(reason(""), "it does not say what");
    }
}
