//! Processes that end with this one, however it ends; and what has forked off this one, with its memory.
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

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use kiln::{ErrorKind, Level, Options};

    use super::*;

    /// Acts in a process that is forked off this one, and has a copy of its memory.
    fn in_fork(mut act: impl FnMut() + Send + Sync + 'static) {
        let mut command = Command::new("true");
        // SAFETY: what acts may allocate, since the system's allocator works in a forked process, too. It takes only locks of a database that nobody else
        // uses meanwhile, and that none of its own threads holds.
        unsafe {
            command.pre_exec(move || {
                act();
                Ok(())
            });
        }
        assert!(
            command.status().unwrap().success(),
            "what was to be there was not, and the process has aborted"
        );
    }

    fn segment(directory: &tempfile::TempDir) -> Vec<u8> {
        std::fs::read(directory.path().join("segment-00000000")).unwrap()
    }

    /// The lock and the files are both processes' at once: the child gave up the lock, and wrote over the log.
    #[test]
    fn c4_a_process_that_was_forked_leaves_the_database_to_the_one_that_has_opened_it() {
        for has_background in [false, true] {
            let directory = tempfile::tempdir().unwrap();
            let options = Options::new().segment_bytes(64 << 10).memory(0).background(has_background);
            let options = options.window(std::time::Duration::from_secs(3600));
            let db = options.open(directory.path()).unwrap();
            let map = db.map("map").unwrap();
            db.put(&map, "key", "durable").unwrap().safe().unwrap();
            db.put(&map, "key", "not yet durable").unwrap().forget();
            let before = segment(&directory);
            // In the child these are the last.
            let handles = Arc::new(Mutex::new(Some((db, map))));
            let dropping = handles.clone();
            in_fork(move || drop(dropping.lock().unwrap().take()));
            if !has_background {
                let using = handles.clone();
                in_fork(move || {
                    let (db, map) = using.lock().unwrap().take().unwrap();
                    let receipt = db.put(&map, "key", "the child's").unwrap().fast().1;
                    let error = receipt.wait(Level::LOCAL).unwrap_err();
                    assert!(error.kind() == ErrorKind::Lost && error.to_string().contains("fork"));
                    assert_eq!(db.persist().unwrap_err().kind(), ErrorKind::Lost);
                    assert_eq!(db.close().unwrap_err().kind(), ErrorKind::Lost);
                });
            }
            assert!(segment(&directory) == before, "the child has written");
            let refused = options.open(directory.path()).unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::Locked);
            assert!(refused.to_string().contains(&std::process::id().to_string()), "{refused}");
            let (db, map) = handles.lock().unwrap().take().unwrap();
            assert_eq!(db.get(&map, "key").unwrap().unwrap(), b"not yet durable");
            db.put(&map, "other", "durable").unwrap().safe().unwrap();
            db.close().unwrap();
            let db = options.open(directory.path()).unwrap();
            assert!(db.recovery_report().clean);
            let map = db.map("map").unwrap();
            assert_eq!(db.get(&map, "key").unwrap().unwrap(), b"not yet durable");
        }
    }
}
