//! The command line of Kiln: serve a database to Redis clients, look into it, move data in and out.
//!
//! Exit codes: 0 it worked, 1 it did not (one line on stderr says why and what to do), 2 the command line is
//! wrong.

// They panic where nobody reads: see `output`.
#![deny(clippy::print_stdout, clippy::print_stderr)]

mod arguments;
mod entry;
mod escape;
mod failure;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
mod inspect;
mod object;
mod output;
mod outside;
mod serve;
mod session;
mod snapshot;
mod standard_output;
mod transfer;

use std::process::ExitCode;
use std::sync::Arc;

use clap::Parser as _;

use arguments::{Arguments, Command};
use failure::Failure;

/// Lets the process open as many files as the system allows: a database has one for each segment of its log.
fn raise_file_limit() {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    // If it cannot be, whoever needs more is told.
    let _ = setrlimit(Resource::Nofile, rustix::process::Rlimit { current: limit.maximum, ..limit });
}

/// Has a write beyond the limit of a file's size (`ulimit -f`) fail, as on a full disk, and not end the process without a word.
fn survive_file_size_limit() {
    // Nobody looks whether it came.
    let _ = signal_hook::flag::register(signal_hook::consts::SIGXFSZ, Arc::default());
}

/// Runs the command that the process was started with.
pub fn run() -> ExitCode {
    raise_file_limit();
    survive_file_size_limit();
    let result = match Arguments::parse().command {
        Command::Serve(arguments) => serve::serve(&arguments),
        Command::Check(arguments) => inspect::check(&arguments.dir),
        Command::Stat(arguments) => inspect::stat(&arguments.dir),
        Command::DumpLog(arguments) => inspect::dump_log(&arguments.dir),
        Command::Get(arguments) => object::get(&arguments),
        Command::Put(arguments) => object::put(&arguments),
        Command::Del(arguments) => object::del(&arguments),
        Command::Drop(arguments) => object::drop_object(&arguments),
        Command::Scan(arguments) => object::scan(&arguments),
        Command::Import(arguments) => transfer::import(&arguments),
        Command::Export(arguments) => transfer::export(&arguments),
        Command::Backup(arguments) => transfer::backup(&arguments),
        Command::Compact(arguments) => transfer::compact(&arguments),
        Command::Restore(arguments) => transfer::restore(&arguments),
        Command::Session(arguments) => session::session(&arguments),
        Command::Snapshot(arguments) => snapshot::snapshot(&arguments),
    };
    match result {
        Ok(()) | Err(Failure::Enough) => ExitCode::SUCCESS,
        Err(failure) => {
            output::say_aside(format_args!("kiln: {failure}"));
            ExitCode::FAILURE
        }
    }
}
