//! Planted bugs: whether the other parts notice the mistakes that are made on purpose, and after how long.

use std::io::{BufRead, BufReader};
use std::process::{Command, ExitCode, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use kiln::planted::Bug;

use crate::arguments::Planting;

/// A part, its workload or, of `isolation`, what it goes through, and for how many times the seconds asked for.
type Attempt = (&'static str, &'static str, f64);

/// What each bug meets, in this order, until something notices it. Most are noticed at once, so it begins with short looks.
const ATTEMPTS: [Attempt; 11] = [
    ("crash", "small", 0.2),
    ("isolation", "library", 0.2),
    ("crash", "large", 0.4),
    ("faults", "small", 1.0),
    ("faults", "large", 1.0),
    ("isolation", "resp", 0.5),
    ("corrupt", "small", 2.0),
    ("crash", "lazy", 0.5),
    ("isolation", "library", 2.0),
    ("crash", "large", 2.0),
    ("corrupt", "large", 2.0),
];

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
    let bugs: Vec<Bug> = planting.only.map_or(Bug::ALL.to_vec(), |bug| vec![bug]);
    let (next, caught) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let processors = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    std::thread::scope(|scope| {
        for _ in 0..processors {
            scope.spawn(|| {
                while let Some(&bug) = bugs.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let catch = hunt(bug, planting.seconds);
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
    let (caught, count) = (caught.into_inner(), bugs.len());
    println!("plant: {caught} of {count} planted bugs caught in {:.0} s", began.elapsed().as_secs_f64());
    if caught == count { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn hunt(bug: Bug, seconds: f64) -> Option<Catch> {
    let (began, mut states) = (Instant::now(), 0);
    for (part, workload, times) in ATTEMPTS {
        let program = std::env::current_exe().expect("this program finds itself");
        let mut command = Command::new(program);
        command.args([part, "--plant", bug.name(), "--counts"]);
        match part {
            "isolation" => command.args(["--through", workload]),
            _ => command.args(["--workload", workload, "--jobs", "1"]),
        };
        command.args(["--seconds", &(seconds * times).to_string()]);
        let mut child =
            command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("this program starts");
        let lines = child.stdout.take().into_iter().flat_map(|output| BufReader::new(output).lines());
        states += lines.filter_map(|line| line.ok()?.parse::<u64>().ok()).last().unwrap_or(0);
        if !child.wait().is_ok_and(|status| status.success()) {
            return Some(Catch { part, workload, states, took: began.elapsed() });
        }
    }
    None
}
