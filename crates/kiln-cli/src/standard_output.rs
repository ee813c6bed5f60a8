//! Whether the process was started with a standard output.
//!
//! Rust's runtime opens `/dev/null` in the place of one that is closed, before `main`, and all that is written there is gone without an error: a
//! backup that a service was to pipe somewhere would be told to have been made. So it is looked at before that. *Rejected: to ask
//! whether it is `/dev/null`*, which who started the process may have wanted.

#![allow(unsafe_code, reason = "what is run before `main` is found by the name of a section")]

use std::io::{self, Stdout};
use std::sync::atomic::{AtomicBool, Ordering};

use crate::failure::Failure;

static WAS_CLOSED: AtomicBool = AtomicBool::new(false);

// SAFETY: this section has what the C library calls before `main`, with arguments that a function without any ignores. `look` makes one system call, and relies on
// nothing that is not there yet.
#[used]
#[unsafe(link_section = ".init_array")]
static LOOK: extern "C" fn() = look;

extern "C" fn look() {
    // Nothing has opened anything yet that would have its number.
    let is_closed = rustix::io::fcntl_getfd(rustix::stdio::stdout()).is_err();
    WAS_CLOSED.store(is_closed, Ordering::Relaxed);
}

/// Standard output, for what a command was asked for.
///
/// # Errors
/// If the process was started without one.
pub(crate) fn standard_output() -> Result<Stdout, Failure> {
    match WAS_CLOSED.load(Ordering::Relaxed) {
        false => Ok(io::stdout()),
        true => Err(Failure::Other("standard output is closed; send what is asked for somewhere".to_owned())),
    }
}
