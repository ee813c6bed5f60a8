//! `kiln-bench`: how fast Kiln is, as ratios measured in one run.
//!
//! ```text
//!  main ── arguments           what is asked for
//!   ├── run                    engines side by side, each in a process of its own
//!   ├── figures                Kiln's own goals, and the server beside Redis
//!   │    ├── workloads         one operation, repeated: what a cell does
//!   │    │    ├── engines      who does it: Kiln, its peers, the floors
//!   │    │    └── generate     keys and values, at almost no cost inside the timed loop
//!   │    ├── measure           threads, time, latencies: how a cell is timed
//!   │    ├── floor             what the device itself takes for one durable write
//!   │    ├── servers           servers and `redis-benchmark` as child processes
//!   │    └── report, results   tables for people, JSON lines for programs
//!   ├── compare                how two result files differ
//!   ├── pictures               result files as a page
//!   │    └── summary           rows put together to cells and groups, and as tables
//!   ├── publish                result files as the tables of the documentation
//!   └── list                   what there is to measure
//!  machine, memory_speed, awake, scratch, progress, interrupt, usage: the surroundings of a run
//! ```
//!
//! Method: load once, warm up, then rounds in which the compared cells alternate (A B A B), so that a slow moment of the machine
//! falls on both sides; medians, minimum, maximum and ratios. Everything that is read is checked, and counts must add up: a
//! wrong result fails the run, a missed goal does not.

mod arguments;
mod awake;
mod compare;
mod engines;
mod figures;
mod floor;
mod generate;
mod interrupt;
mod list;
mod machine;
mod measure;
mod memory_speed;
mod pictures;
mod placement;
mod progress;
mod publish;
mod report;
mod results;
mod run;
mod scratch;
mod servers;
mod summary;
mod usage;
mod workloads;

use std::process::ExitCode;

use clap::Parser;

use crate::arguments::{Arguments, Command};

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let result = interrupt::install().and_then(|()| match &arguments.command {
        Command::Run(settings) => run::run(settings).map(|()| ExitCode::SUCCESS),
        Command::List => list::run().map(|()| ExitCode::SUCCESS),
        Command::Contestant => run::contestant::serve().map(|()| ExitCode::SUCCESS),
        Command::Figures(settings) => figures::run(settings).map(|()| ExitCode::SUCCESS),
        Command::Compare(settings) => compare::run(settings),
        Command::Report(settings) => pictures::run(settings).map(|()| ExitCode::SUCCESS),
        Command::Tables(settings) => publish::run(settings).map(|()| ExitCode::SUCCESS),
    });
    match result {
        Ok(code) => code,
        Err(error) => {
            eprintln!("kiln-bench: {error:#}");
            ExitCode::FAILURE
        }
    }
}
