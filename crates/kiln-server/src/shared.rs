//! What all connections of a server share.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use kiln::Kiln;
use parking_lot::Mutex;
use tokio::sync::watch;

use crate::client::Registry;
use crate::counters::Counters;
use crate::keyspace::Keyspace;
use crate::memory::ClientMemory;
use crate::options::Options;

/// The server behind its connections.
pub(crate) struct Shared {
    pub(crate) db: Kiln,
    pub(crate) keyspace: Arc<Keyspace>,
    pub(crate) options: Options,
    pub(crate) address: SocketAddr,
    pub(crate) started: Instant,
    pub(crate) clients: Registry,
    pub(crate) counters: Counters,
    pub(crate) client_memory: Arc<ClientMemory>,
    /// The error with which a command that refuses ends its transaction. The engine offers no way to make
    /// one, so it is taken from a call that cannot succeed.
    pub(crate) refusal: kiln::Error,
    /// Held by who compacts, or copies the database: each takes a thread for as long as that takes, and of two at once the second gains nothing.
    pub(crate) compacting: Mutex<()>,
    pub(crate) copying: Mutex<()>,
    /// Set while the disk is late: reads of it take long, too.
    pub(crate) disk_is_late: AtomicBool,
    /// Set while connections harden on their own threads what they wait for, because that is quick.
    pub(crate) tasks_harden: AtomicBool,
    /// Set once, when the server is to end: each batch asks, and to ask `stop` would be to lock it.
    stopping: AtomicBool,
    /// Becomes `true` then, for who waits for it.
    stop: watch::Sender<bool>,
}

impl Shared {
    pub(crate) fn new(db: Kiln, options: Options, address: SocketAddr) -> io::Result<Self> {
        let refusal =
            db.map("").err().ok_or_else(|| io::Error::other("an object without a name was opened"))?;
        let keyspace = Keyspace::of(&db)?;
        Ok(Self {
            refusal,
            keyspace,
            db,
            client_memory: Arc::new(ClientMemory::new(options.client_memory_max)),
            options,
            address,
            started: Instant::now(),
            clients: Registry::default(),
            counters: Counters::default(),
            compacting: Mutex::new(()),
            copying: Mutex::new(()),
            disk_is_late: AtomicBool::new(false),
            tasks_harden: AtomicBool::new(false),
            stopping: AtomicBool::new(false),
            stop: watch::Sender::new(false),
        })
    }

    /// Asks the server to end.
    pub(crate) fn stop(&self) {
        // First: who is woken sees it.
        self.stopping.store(true, Ordering::Release);
        self.stop.send_replace(true);
    }

    pub(crate) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }

    /// Ends when the server is to end. The future registers once, however often it is polled.
    pub(crate) async fn stopped(&self) {
        // Only an error if the sender is gone, and `self` holds it.
        let _ = self.stop.subscribe().wait_for(|stop| *stop).await;
    }
}
