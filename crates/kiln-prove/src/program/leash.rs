//! Processes that end with this one, however it ends.
//!
//! Whoever is killed, as a watchdog or a time limit does it, cannot stop its children; the kernel can.

#![allow(unsafe_code, reason = "what runs between fork and exec is unsafe to give")]

use std::os::unix::process::CommandExt;
use std::process::Command;

use rustix::process::{Signal, set_parent_process_death_signal};

/// Has the kernel kill the command's process when the thread that starts it ends.
pub(super) fn leash(command: &mut Command) {
    // SAFETY: between fork and exec only calls are allowed that are safe in a signal handler. This one is a single system
    // call, which takes no lock and allocates nothing.
    unsafe {
        command.pre_exec(|| Ok(set_parent_process_death_signal(Some(Signal::KILL))?));
    }
}
