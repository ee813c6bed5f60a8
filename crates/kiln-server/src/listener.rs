//! Accepts connections, and ends the server in order.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use kiln::Kiln;
use kiln::planted::{Bug, planted};
use socket2::{SockRef, TcpKeepalive};
use tokio::net::{TcpListener, TcpSocket, TcpStream, ToSocketAddrs, lookup_host};
use tokio::task::{AbortHandle, JoinSet};

use crate::counters::Count;
use crate::options::Options;
use crate::shared::Shared;
use crate::turns::{Waiting, leaving_thread};
use crate::{background, connection};

/// How long connections get to finish their batches and send their replies when the server ends.
const END_GRACE: Duration = Duration::from_secs(5);
/// A connection that was silent for so long is asked whether it is still there, as by Redis; and asked again, some times, after so long.
const IDLE_BEFORE_PROBES: Duration = Duration::from_secs(300);
const BETWEEN_PROBES: Duration = Duration::from_secs(100);
/// How many connections may wait to be accepted. A thousand clients that connect at once must not be told to
/// try again a second later, which is what a full backlog comes to.
const BACKLOG: u32 = 4096;
/// How long to wait after the system had no file descriptor or memory for a connection.
const ACCEPT_RETRY_AFTER: Duration = Duration::from_millis(50);
/// So often it is said.
const WARNS_AFTER: Duration = Duration::from_secs(10);

/// A server that listens but does not yet serve.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let directory = tempfile::tempdir()?;
/// let db = kiln::Kiln::open(directory.path())?;
/// let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
/// runtime.block_on(async {
///     let server = kiln_server::Server::bind(db.clone(), "127.0.0.1:0", kiln_server::Options::new()).await?;
///     println!("redis-cli -p {}", server.address().port());
///     // Serves until the future that it is given ends; here at once.
///     server.run(async {}).await;
///     Ok::<(), std::io::Error>(())
/// })?;
/// db.close()?;
/// # Ok(())
/// # }
/// ```
pub struct Server {
    listener: TcpListener,
    shared: Arc<Shared>,
}

impl Server {
    /// Listens on `address` and opens the server's objects in `db`. Several servers of one open database, at other addresses, show the same keys: a flush
    /// by one is one by all. The objects are the servers': the table `keyspace`, and the maps `strings`, `strings.1` and so on, of which those that are not current are emptied,
    /// whoever has put something there.
    ///
    /// # Errors
    ///
    /// If the address is taken or not this machine's, or if the engine refuses (then the error's source is
    /// its error).
    pub async fn bind(db: Kiln, address: impl ToSocketAddrs, options: Options) -> io::Result<Self> {
        let listener = listen(address).await?;
        // Connections that commit wait for the disk on threads that others are not served by meanwhile. Whoever else commits waits where he is.
        db.wait_through(|wait| leaving_thread(Waiting::Commit, wait));
        let shared = Shared::new(db, options, listener.local_addr()?)?;
        Ok(Self { listener, shared: Arc::new(shared) })
    }

    /// Where it listens; the port is the one that the system chose if 0 was asked for.
    pub fn address(&self) -> SocketAddr {
        self.shared.address
    }

    /// Serves until `stop` ends or a client sends `SHUTDOWN`. Then accepts nobody any more, lets every
    /// connection finish what has arrived, for a few seconds at most, and returns. The database is left open:
    /// persist it with [`Kiln::close`].
    ///
    /// The future may be dropped before: then the server ends, too, by itself, and cuts its connections off.
    ///
    /// Must run on a multi-threaded runtime with time and I/O enabled: calls into the engine can wait for a
    /// disk. While the disk is late up to 256 connections, of all servers on the runtime, wait on threads of the runtime's, for which that starts others; the rest
    /// wait without. A runtime whose `max_blocking_threads` was set lower must leave room for these.
    pub async fn run(self, stop: impl Future<Output = ()>) {
        let Self { listener, shared } = self;
        let accepting = tokio::spawn(accept(listener, Arc::clone(&shared)));
        let emptying = tokio::spawn(background::empty(Arc::clone(&shared)));
        let stopping = Stopping { shared: &shared, emptying: emptying.abort_handle() };
        let mut tasks = JoinSet::new();
        let watched = Arc::clone(&shared);
        tasks.spawn_blocking(move || background::watch_pressure(&watched));
        tokio::select! {
            () = stop => {}
            () = shared.stopped() => {}
        }
        drop(stopping);
        let ended = tokio::time::timeout(END_GRACE, async {
            // The connections are dropped, that is cut off, with the set that they are in.
            if let Ok(mut connections) = accepting.await {
                while connections.join_next().await.is_some() {}
            }
            while tasks.join_next().await.is_some() {}
        });
        if ended.await.is_err() {
            let connections = shared.clients.len();
            tracing::warn!(connections, "connections that did not read their replies were cut off");
        }
    }
}

/// Has the server end when it is dropped. What it has begun does not end with the future that has begun it.
struct Stopping<'s> {
    shared: &'s Shared,
    emptying: AbortHandle,
}

impl Drop for Stopping<'_> {
    fn drop(&mut self) {
        self.shared.stop();
        self.emptying.abort();
    }
}

/// Accepts connections until the server is to end, and returns the tasks of those that are open.
async fn accept(listener: TcpListener, shared: Arc<Shared>) -> JoinSet<()> {
    let (mut connections, mut warned) = (JoinSet::new(), None);
    let mut stopped = pin!(shared.stopped());
    loop {
        let accepted = tokio::select! {
            () = &mut stopped => return connections,
            accepted = listener.accept() => accepted,
        };
        // Tasks that have ended are taken out, or they would pile up.
        while connections.try_join_next().is_some() {}
        match accepted {
            // Not those that are registered: in a burst many have not come to that.
            Ok((stream, _)) if connections.len() < shared.options.connections_max => {
                connections.spawn(run_connection(Arc::clone(&shared), stream));
            }
            Ok((stream, _)) => {
                shared.counters.add(Count::RejectedConnections, 1);
                // To a socket that was just opened this is written at once, or never.
                let _ = stream.try_write(b"-ERR max number of clients reached\r\n");
            }
            Err(error) => {
                // It is tried again many times in a second.
                if warned.is_none_or(|warned: Instant| warned.elapsed() >= WARNS_AFTER) {
                    tracing::warn!(%error, "a connection could not be accepted");
                    warned = Some(Instant::now());
                }
                tokio::time::sleep(ACCEPT_RETRY_AFTER).await;
            }
        }
    }
}

/// Listens on the first of the addresses that can be had.
async fn listen(address: impl ToSocketAddrs) -> io::Result<TcpListener> {
    let mut refusal = io::Error::new(io::ErrorKind::InvalidInput, "the address names no host");
    for address in lookup_host(address).await? {
        let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
        socket.set_reuseaddr(true)?;
        match socket.bind(address).and_then(|()| socket.listen(BACKLOG)) {
            Ok(listener) => return Ok(listener),
            Err(error) => refusal = error,
        }
    }
    Err(refusal)
}

fn prepare(stream: &TcpStream) -> io::Result<()> {
    // Replies are whole batches, so waiting to fill packets gains nothing.
    stream.set_nodelay(true)?;
    if planted(Bug::KeepaliveNotSet) {
        return Ok(());
    }
    // A client whose machine is gone keeps its session from everybody else for no longer than this takes.
    let keepalive = TcpKeepalive::new().with_time(IDLE_BEFORE_PROBES).with_interval(BETWEEN_PROBES);
    SockRef::from(stream).set_tcp_keepalive(&keepalive)
}

async fn run_connection(shared: Arc<Shared>, stream: TcpStream) {
    let result = match prepare(&stream) {
        Ok(()) => connection::serve(shared, stream).await,
        Err(error) => Err(error),
    };
    if let Err(error) = result {
        tracing::debug!(%error, "a connection ended");
    }
}
