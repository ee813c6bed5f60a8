//! What commands say: on stdout what they were asked for, on stderr how it went.
//!
//! Whoever reads that may have ended, as `head` does and as a pipe's end with its terminal. `println!` and `eprintln!` panic then, wherever
//! the command is, which ends a server without what it does last; so they are used nowhere here.

use std::fmt::Display;
use std::io::{self, Write as _};

use crate::failure::Failure;
use crate::standard_output::standard_output;

/// Says on stdout how it goes. Nobody need hear it, and nothing depends on it.
pub(crate) fn say(line: impl Display) {
    let _ = writeln!(io::stdout().lock(), "{line}");
}

/// Says on stderr how it goes, or went. Nobody need hear it, and nothing depends on it.
pub(crate) fn say_aside(line: impl Display) {
    let _ = writeln!(io::stderr().lock(), "{line}");
}

/// Writes what a command was asked for to stdout: whole lines.
///
/// # Errors
/// That of stdout; [`Failure::Enough`] if nobody reads it any more.
pub(crate) fn report(lines: &str) -> Result<(), Failure> {
    let mut out = standard_output()?.lock();
    writeln!(out, "{}", lines.trim_end()).and_then(|()| out.flush()).map_err(Failure::report)
}
