//! Tests as a process that was forked off this one.
#![allow(unsafe_code)]

use std::os::unix::process::CommandExt;
use std::process::Command;

/// Acts in a process that is forked off this one, and has a copy of its memory, and none of its threads but this one.
pub(crate) fn in_fork(mut act: impl FnMut() + Send + Sync + 'static) {
    let mut command = Command::new("true");
    // SAFETY: what acts may allocate, since the system's allocator works in a forked process, too. It takes no lock that another thread of this one may
    // hold.
    unsafe {
        command.pre_exec(move || {
            act();
            Ok(())
        });
    }
    assert!(command.status().unwrap().success(), "what was to be there was not, and the process has aborted");
}
