//! `kiln-prove`: tries to break Kiln, and says how to repeat what it finds.
//!
//! ```text
//!  crash  faults  corrupt     what is done to a database
//!  oracle                     whether what is left is what the history says it must be
//!  workload/                  transactions at random, and the history that they make
//!  jobs  support              processes, counts, limits; randomness, replay lines, the watchdog
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
mod jobs;
mod oracle;
mod support;
#[cfg(test)]
mod testing;
mod workload;

use std::process::ExitCode;

use clap::Parser as _;

use arguments::{Arguments, Part};
use jobs::Progress;
use support::Replay;

fn main() -> ExitCode {
    let part = Arguments::parse().part;
    let effort = part.effort();
    if effort.jobs() > 1 {
        return jobs::spread(&part, effort);
    }
    let replay = Replay::default();
    let mut progress = Progress::new(part.name(), effort.limit(), effort.counts);
    progress.watch(replay.clone());
    match part {
        Part::Crash(effort) => crash::prove(&effort, &replay, &mut progress),
        Part::Faults(effort) => faults::prove(&effort, &replay, &mut progress),
        Part::Corrupt(effort) => corrupt::prove(&effort, &replay, &mut progress),
    }
    progress.finish();
    ExitCode::SUCCESS
}
