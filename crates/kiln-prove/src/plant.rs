//! Planted bugs: whether the other parts notice the mistakes that are made on purpose, and after how long.

use std::io::{BufRead, BufReader};
use std::process::{Command, ExitCode, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
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

/// What noticed a bug.
struct Catch {
    part: &'static str,
    workload: &'static str,
    states: u64,
    took: Duration,
}

/// Plants one bug after the other and has all parts look for it.
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
    let caught = hunt_all(&bugs, |bug| hunt(bug, planting.seconds, attempts(bug)));
    let mut asked = bugs.clone();
    asked.retain(|bug| OF_POWERCUT.contains(bug));
    if !asked.is_empty() && !can_cut_power() {
        println!("power cuts are not tried: they need FUSE and root");
        asked.clear();
    }
    let caught_again = hunt_all(&asked, |bug| hunt(bug, planting.seconds, &[POWERCUT]));
    println!(
        "plant: {caught} of {} planted bugs caught, and {caught_again} of {} by power cuts of the server, in {:.0} s",
        bugs.len(),
        asked.len(),
        began.elapsed().as_secs_f64()
    );
    if (caught, caught_again) == (bugs.len(), asked.len()) { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Whether `powercut` can mount its file system here.
fn can_cut_power() -> bool {
    let program = std::env::current_exe().expect("this program finds itself");
    let tried = Command::new(program).args(["powercut", "--rounds", "0", "--counts"]).output();
    tried.is_ok_and(|tried| tried.status.success())
}

/// Has all bugs looked for, some at a time. Returns how many were noticed.
fn hunt_all(bugs: &[Bug], hunt: impl Fn(Bug) -> Option<Catch> + Sync) -> usize {
    let (next, caught) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let processors = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    std::thread::scope(|scope| {
        for _ in 0..processors {
            scope.spawn(|| {
                while let Some(&bug) = bugs.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let catch = hunt(bug);
                    caught.fetch_add(usize::from(catch.is_some()), Ordering::Relaxed);
                    match catch {
                        Some(Catch { part, workload, states, took }) => println!(
                            "{:32} caught by {part} ({workload}), after {states} states and {:.1} s",
                            bug.name(),
                            took.as_secs_f64()
                        ),
                        None => println!("{:32} NOT CAUGHT: {}", bug.name(), bug.what()),
                    }
                }
            });
        }
    });
    caught.into_inner()
}

fn hunt(bug: Bug, seconds: f64, attempts: &[Attempt]) -> Option<Catch> {
    let (began, mut states) = (Instant::now(), 0);
    for &(part, workload, times) in attempts {
        let program = std::env::current_exe().expect("this program finds itself");
        let mut command = Command::new(program);
        command.args([part, "--plant", bug.name(), "--counts"]);
        match part {
            "schedules" => &mut command,
            "isolation" => command.args(["--through", workload]),
            "kill" | "misuse" | "powercut" => &mut command,
            "lives" => command.args(["--jobs", "1"]),
            _ => command.args(["--workload", workload, "--jobs", "1"]),
        };
        command.args(["--seconds", &(seconds * times).to_string()]);
        let mut child =
            command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("this program starts");
        let lines = child.stdout.take().into_iter().flat_map(|output| BufReader::new(output).lines());
        states +=
            lines.filter_map(|line| Counts::parse(&line.ok()?)).last().map_or(0, |counts| counts.different);
        let status = child.wait().expect("a child can be waited for");
        assert_ne!(status.code(), Some(2), "{part} cannot run here with {} planted", bug.name());
        if !status.success() {
            return Some(Catch { part, workload, states, took: began.elapsed() });
        }
    }
    None
}
