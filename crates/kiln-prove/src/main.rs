//! `kiln-prove`: tries to break Kiln, and says how to repeat what it finds.
//!
//! ```text
//!  crash  faults  corrupt     what is done to a database
//!  isolation/                 histories of many threads, with crashes in between, and their checker
//!  oracle                     whether what is left is what the history says it must be
//!  workload/                  transactions at random, and the history that they make
//!  plant                      mistakes made on purpose, to see what notices them
//!  jobs  support              processes, counts, limits; randomness, replay lines, the watchdog
//!  program/                   the real server under real clients: kill -9, SIGSTOP, power cuts; full disks, bad input
//!  contract/                  the tests of the contract, clause by clause, C1 to C9
//! ```
//!
//! Exit codes: 0 nothing is wrong, 1 something is, 2 the command line is.

mod arguments;
#[cfg(test)]
mod contract;
mod corrupt;
mod crash;
mod faults;
mod isolation;
mod jobs;
mod oracle;
#[cfg(feature = "plant")]
mod plant;
mod program;
mod support;
#[cfg(test)]
mod testing;
mod workload;

use std::process::ExitCode;

use clap::Parser as _;

use arguments::{Arguments, Effort, Part};
use jobs::Progress;
use support::Replay;

fn main() -> ExitCode {
    match Arguments::parse().part {
        Part::Crash(effort) => run("crash", &effort, crash::prove),
        Part::Faults(effort) => run("faults", &effort, faults::prove),
        Part::Corrupt(effort) => run("corrupt", &effort, corrupt::prove),
        Part::Isolation(concurrency) => {
            #[cfg(feature = "plant")]
            concurrency.plant.into_iter().for_each(kiln::planted::plant);
            isolation::prove(&concurrency)
        }
        Part::Kill(rounds) => program::kill::prove(&rounds),
        Part::Powercut(rounds) => program::powercut::prove(&rounds),
        #[cfg(feature = "plant")]
        Part::Plant(planting) => plant::prove(&planting),
    }
}

fn run(part: &'static str, effort: &Effort, prove: fn(&Effort, &Replay, &mut Progress)) -> ExitCode {
    if effort.jobs() > 1 {
        return jobs::spread(part, effort);
    }
    #[cfg(feature = "plant")]
    effort.plant.into_iter().for_each(kiln::planted::plant);
    let replay = Replay::default();
    let mut progress = Progress::new(part, effort.limit(), effort.counts);
    progress.watch(replay.clone());
    prove(effort, &replay, &mut progress);
    progress.finish();
    ExitCode::SUCCESS
}
