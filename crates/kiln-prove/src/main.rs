//! `kiln-prove`: tries to break Kiln, and says how to repeat what it finds.
//!
//! ```text
//!  crash  faults  corrupt     what is done to a database
//!  lives                      databases that are opened again and again, with options that change
//!  starve  allocator          memory that runs out
//!  copies                     backups, and restores of them that the power breaks off
//!  isolation/                 histories of many threads, with crashes in between, and their checker
//!  oracle                     whether what is left is what the history says it must be
//!  workload/                  transactions at random, and the history that they make
//!  schedules/                 the engine's code under a scheduler of shuttle's: a build of its own, without the parts above
//!  plant                      mistakes made on purpose, to see what notices them
//!  jobs  support              processes, counts, limits; randomness, replay lines, the watchdog
//!  program/                   the real server under real clients: kill -9, SIGSTOP, power cuts; clients that ask too much;
//!                             full disks, bad input
//!  contract/                  the tests of the contract, clause by clause, C1 to C9
//! ```
//!
//! Exit codes: 0 nothing is wrong, 1 something is, 2 the command line is.

#[cfg_attr(feature = "schedules", expect(dead_code, reason = "schedules do not run out of memory"))]
mod allocator;
mod arguments;
#[cfg(all(test, not(feature = "schedules")))]
mod contract;
#[cfg(not(feature = "schedules"))]
mod copies;
#[cfg(not(feature = "schedules"))]
mod corrupt;
#[cfg(not(feature = "schedules"))]
mod crash;
#[cfg(not(feature = "schedules"))]
mod faults;
#[cfg(not(feature = "schedules"))]
mod isolation;
#[cfg_attr(feature = "schedules", expect(dead_code, reason = "the other parts need more of it"))]
mod jobs;
#[cfg(not(feature = "schedules"))]
mod lives;
#[cfg(not(feature = "schedules"))]
mod oracle;
#[cfg(feature = "plant")]
mod plant;
#[cfg(not(feature = "schedules"))]
mod program;
#[cfg(feature = "schedules")]
mod schedules;
#[cfg(not(feature = "schedules"))]
mod starve;
#[cfg_attr(feature = "schedules", expect(dead_code, reason = "the other parts need more of it"))]
mod support;
#[cfg(all(test, not(feature = "schedules")))]
mod testing;
#[cfg(not(feature = "schedules"))]
mod workload;

use std::process::ExitCode;

use clap::Parser as _;

#[cfg(not(feature = "schedules"))]
use arguments::Effort;
use arguments::{Arguments, Part};
#[cfg(not(feature = "schedules"))]
use jobs::Progress;
#[cfg(not(feature = "schedules"))]
use support::Replay;

#[cfg(feature = "schedules")]
fn main() -> ExitCode {
    match Arguments::parse().part {
        Part::Schedules(scheduling) => {
            #[cfg(feature = "plant")]
            scheduling.plant.into_iter().for_each(kiln::planted::plant);
            schedules::prove(&scheduling)
        }
        #[cfg(feature = "plant")]
        Part::Plant(planting) => plant::prove(&planting),
    }
}

#[cfg(not(feature = "schedules"))]
fn main() -> ExitCode {
    match Arguments::parse().part {
        Part::Crash(effort) => run("crash", &effort, crash::prove),
        Part::Faults(effort) => run("faults", &effort, faults::prove),
        Part::Corrupt(effort) => run("corrupt", &effort, corrupt::prove),
        Part::Lives(effort) => run("lives", &effort, lives::prove),
        Part::Isolation(concurrency) => {
            #[cfg(feature = "plant")]
            concurrency.plant.into_iter().for_each(kiln::planted::plant);
            isolation::prove(&concurrency)
        }
        Part::Starved(starved) => {
            #[cfg(feature = "plant")]
            starved.plant.into_iter().for_each(kiln::planted::plant);
            starve::starved(&starved)
        }
        Part::Kill(rounds) => program::kill::prove(&rounds),
        Part::Misuse(rounds) => program::misuse::prove(&rounds),
        Part::Powercut(rounds) => program::powercut::prove(&rounds),
        #[cfg(feature = "plant")]
        Part::Plant(planting) => plant::prove(&planting),
    }
}

#[cfg(not(feature = "schedules"))]
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
