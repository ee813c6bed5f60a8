//! Tests as a process that was forked off this one.
#![allow(unsafe_code)]

use std::os::unix::process::CommandExt;
use std::process::Command;

/// Set in a process that was started for one test.
const ALONE: &str = "KILN_TEST_ALONE";

/// Whether this process was started for the calling test alone. If not, the test has succeeded in one that was, and has nothing left to do here.
///
/// What is forked off a process has copies of the pins and locks of its other threads, as of other tests', and waits for ever for those to let go that are
/// not there.
#[must_use]
pub(crate) fn is_alone() -> bool {
    if std::env::var_os(ALONE).is_some() {
        return true;
    }
    let thread = std::thread::current();
    let test = thread.name().expect("a test's thread has its name");
    let mut command = Command::new(std::env::current_exe().unwrap());
    let output = command.args(["--exact", test, "--nocapture"]).env(ALONE, "").output().unwrap();
    let [out, err] = [&output.stdout, &output.stderr].map(|said| String::from_utf8_lossy(said));
    assert!(output.status.success() && out.contains(" 1 passed"), "alone, {test} fails: {out}{err}");
    false
}

/// Acts in a process that is forked off this one, and has a copy of its memory, and none of its threads but this one. The test [is alone](is_alone).
pub(crate) fn in_fork(mut act: impl FnMut() + Send + Sync + 'static) {
    assert!(std::env::var_os(ALONE).is_some(), "other tests' threads may be pinned");
    let mut command = Command::new("true");
    // SAFETY: what acts may allocate, since the system's allocator works in a forked process, too. It takes no lock that another thread of this one may
    // hold: there are no other tests, and a database's own threads hold none of those meanwhile.
    unsafe {
        command.pre_exec(move || {
            act();
            Ok(())
        });
    }
    assert!(command.status().unwrap().success(), "what was to be there was not, and the process has aborted");
}
