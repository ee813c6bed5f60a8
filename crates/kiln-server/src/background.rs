//! What the server does without being asked: empties what a flush left behind, and watches how quick the disk is. (Keys whose time has come are deleted by the engine.)

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::runtime::Handle;

use crate::keyspace::{Emptied, Keyspace};
use crate::shared::Shared;

/// How long to leave the engine alone after it refused something in the background, or is to do its part first.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// A hardening that takes longer is left to the engine's own thread: a connection that runs it keeps one of the server's
/// threads for so long.
const QUICK_HARDENING: Duration = Duration::from_micros(500);
/// How often to look how quick the disk is.
const PRESSURE_INTERVAL: Duration = Duration::from_millis(10);

/// Notes, until the server ends, whether the disk is late, and whether it is quick enough, and the server has threads enough, for connections to harden what they wait
/// for.
///
/// Runs on a thread of its own: those of the server's tasks may all be waiting for the engine before this was noted.
pub(crate) fn watch_pressure(shared: &Shared) {
    let threads = Handle::current().metrics().num_workers();
    while !shared.is_stopping() {
        std::thread::sleep(PRESSURE_INTERVAL);
        let pressure = shared.db.pressure();
        let late = pressure.oldest_unhardened.is_some_and(|oldest| oldest > shared.db.window());
        shared.disk_is_late.store(late, Ordering::Relaxed);
        let tasks_harden = !late && pressure.hardening_duration < QUICK_HARDENING && threads > 1;
        shared.tasks_harden.store(tasks_harden, Ordering::Relaxed);
    }
}

/// Wakes another server of the database when this one no longer empties anything, however that comes about.
struct Successor<'a>(&'a Keyspace);

impl Drop for Successor<'_> {
    fn drop(&mut self) {
        self.0.flushed.notify_one();
    }
}

/// Empties objects that a flush left behind, until the server ends. What is not done then another server of the database does, or the next that begins.
pub(crate) async fn empty(shared: Arc<Shared>) {
    let _successor = Successor(&shared.keyspace);
    while !shared.is_stopping() {
        let worker = Arc::clone(&shared);
        let emptied =
            tokio::task::spawn_blocking(move || worker.keyspace.empty_one(|| !worker.is_stopping())).await;
        match emptied {
            Ok(Ok(Emptied::One)) => {}
            Ok(Ok(Emptied::NothingToDo)) => shared.keyspace.flushed.notified().await,
            Ok(Ok(Emptied::NotYet)) => tokio::time::sleep(RETRY_AFTER).await,
            Ok(Err(error)) => {
                tracing::warn!(%error, "flushed keys could not be deleted yet; clients do not see them");
                tokio::time::sleep(RETRY_AFTER).await;
            }
            // The runtime is ending.
            Err(_) => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::{Context, Waker};

    use super::*;
    use crate::options::Options;

    /// What it had been woken for stayed as it was.
    #[test]
    fn a_server_that_ends_wakes_another_to_empty_in_its_place() {
        let directory = tempfile::tempdir().unwrap();
        let db = kiln::Kiln::open(directory.path()).unwrap();
        let address = "127.0.0.1:0".parse().unwrap();
        let shared = Arc::new(Shared::new(db, Options::new(), address).unwrap());
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let emptying = tokio::spawn(empty(Arc::clone(&shared)));
            tokio::task::yield_now().await;
            emptying.abort();
            assert!(emptying.await.unwrap_err().is_cancelled());
        });
        let woken = pin!(shared.keyspace.flushed.notified());
        assert!(woken.poll(&mut Context::from_waker(Waker::noop())).is_ready());
    }
}
