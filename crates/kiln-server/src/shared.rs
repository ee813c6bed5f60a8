//! What all connections of a server share.

use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use kiln::Kiln;
use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::sync::watch;

use crate::client::Registry;
use crate::keyspace::Keyspace;
use crate::options::Options;

/// The server behind its connections.
pub(crate) struct Shared {
    pub(crate) db: Kiln,
    pub(crate) keyspace: Keyspace,
    pub(crate) options: Options,
    pub(crate) address: SocketAddr,
    pub(crate) started: Instant,
    pub(crate) clients: Registry,
    pub(crate) counters: Counters,
    /// The error with which a command that refuses ends its transaction. The engine offers no way to make
    /// one, so it is taken from a call that cannot succeed.
    pub(crate) refusal: kiln::Error,
    /// Set while the engine is likely to make a caller wait.
    pub(crate) engine_may_block: AtomicBool,
    /// Set while connections harden on their own threads what they wait for, because that is quick.
    pub(crate) tasks_harden: AtomicBool,
    /// Becomes `true` once, when the server is to end.
    stop: watch::Sender<bool>,
}

/// Counts for `INFO`.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) commands: AtomicU64,
    pub(crate) rejected_connections: AtomicU64,
    pub(crate) protocol_errors: AtomicU64,
    pub(crate) received_bytes: AtomicU64,
    pub(crate) sent_bytes: AtomicU64,
}

impl Shared {
    pub(crate) fn new(db: Kiln, options: Options, address: SocketAddr) -> io::Result<Self> {
        let refusal =
            db.map("").err().ok_or_else(|| io::Error::other("an object without a name was opened"))?;
        let keyspace = Keyspace::open(&db)?;
        Ok(Self {
            refusal,
            keyspace,
            db,
            options,
            address,
            started: Instant::now(),
            clients: Registry::default(),
            counters: Counters::default(),
            engine_may_block: AtomicBool::new(false),
            tasks_harden: AtomicBool::new(false),
            stop: watch::Sender::new(false),
        })
    }

    /// Asks the server to end.
    pub(crate) fn stop(&self) {
        self.stop.send_replace(true);
    }

    pub(crate) fn is_stopping(&self) -> bool {
        *self.stop.borrow()
    }

    /// Ends when the server is to end. The future registers once, however often it is polled.
    pub(crate) async fn stopped(&self) {
        // Only an error if the sender is gone, and `self` holds it.
        let _ = self.stop.subscribe().wait_for(|stop| *stop).await;
    }

    /// Runs engine calls, moving the other tasks of this thread elsewhere first if the calls are likely to
    /// wait.
    ///
    /// Moving costs a few microseconds, so it is not done for every batch; a batch that waits unexpectedly
    /// delays only the tasks queued on its thread, until other threads have stolen them.
    pub(crate) fn with_engine<T>(&self, may_block: bool, run: impl FnOnce() -> T) -> T {
        let may_block = may_block || self.engine_may_block.load(Ordering::Relaxed);
        if may_block && Handle::current().runtime_flavor() == RuntimeFlavor::MultiThread {
            tokio::task::block_in_place(run)
        } else {
            run()
        }
    }
}
