//! Tests as somebody whom permissions bind.

use std::thread;

use rustix::fs::Uid;

/// Permissions do not bind root: a thread of its own is somebody else.
pub(crate) fn as_somebody(act: impl FnOnce() + Send) {
    let nobody = Uid::from_raw(65_534);
    thread::scope(|scope| {
        let acting = scope.spawn(|| {
            let is_root = rustix::process::geteuid().is_root();
            // In some containers there is nobody else.
            if !is_root || rustix::thread::set_thread_res_uid(None, Some(nobody), None).is_ok() {
                act();
            }
        });
        acting.join().unwrap();
    });
}
