//! `kiln`: all of it is in the library, where tests and fuzzers can reach it.

use std::process::ExitCode;

fn main() -> ExitCode {
    kiln_cli::run()
}
