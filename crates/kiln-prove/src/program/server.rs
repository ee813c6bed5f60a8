//! A running `kiln serve`.

use std::ffi::OsStr;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use redis::Connection;
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use super::{binary, leash};

/// How long anything may take before it counts as stuck.
pub(super) const PATIENCE: Duration = Duration::from_secs(60);
/// Between two looks at what the server does.
const EVERY: Duration = Duration::from_millis(2);

/// A server on a free loopback port. Dropping it kills it.
#[derive(Debug)]
pub(super) struct Server {
    child: Child,
    /// What it prints.
    log: File,
}

/// Where a server is that was started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    Starting,
    /// Listening on this port.
    Ready(u16),
    Ended,
}

impl Server {
    /// Starts a server on a database, and does not wait for it.
    pub(super) fn spawn<S: AsRef<OsStr>>(database: &Path, arguments: &[S]) -> Server {
        let log = tempfile::tempfile().expect("a temporary file can be made");
        let output = log.try_clone().expect("a file can be shared");
        let mut command = Command::new(binary::path());
        command
            .arg("serve")
            .arg("--dir")
            .arg(database)
            .args(["--listen", "127.0.0.1:0"])
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(output.try_clone().expect("a file can be shared"))
            .stderr(output);
        leash::leash(&mut command);
        Server { child: command.spawn().expect("kiln can be started"), log }
    }

    /// Whether it listens by now.
    pub(super) fn state(&mut self) -> State {
        let log = self.log();
        let port = log.split_once("listening on 127.0.0.1:").and_then(|(_, rest)| {
            let (port, _) = rest.split_once(';')?;
            port.parse().ok()
        });
        match (port, self.child.try_wait().expect("a child can be asked")) {
            (_, Some(_)) => State::Ended,
            (Some(port), None) => State::Ready(port),
            (None, None) => State::Starting,
        }
    }

    /// Waits until it listens, and returns the port; or has ended.
    pub(super) fn wait_until_ready(&mut self) -> Option<u16> {
        let end = Instant::now() + PATIENCE;
        loop {
            match self.state() {
                State::Ready(port) => return Some(port),
                State::Ended => return None,
                State::Starting => {}
            }
            assert!(Instant::now() < end, "the server does not come up:\n{}", self.log());
            std::thread::sleep(EVERY);
        }
    }

    /// What the server printed so far.
    pub(super) fn log(&self) -> String {
        let mut bytes = vec![0; self.log.metadata().map_or(0, |file| file.len() as usize)];
        let length = self.log.read_at(&mut bytes, 0).unwrap_or(0);
        String::from_utf8_lossy(&bytes[..length]).into_owned()
    }

    /// The server's process.
    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Whatever else becomes of the server, this sends it signals.
    pub(super) fn handle(&self) -> Handle {
        let pid = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw).expect("a process has an id");
        let process = pidfd_open(pid, PidfdFlags::empty()).expect("a child has a descriptor");
        Handle { process, is_to_end: AtomicBool::new(false) }
    }

    /// Waits for the end, which must come soon, and without a panic.
    pub(super) fn wait(mut self) -> Ended {
        let end = Instant::now() + PATIENCE;
        let status = loop {
            if let Some(status) = self.child.try_wait().expect("a child can be asked") {
                break status;
            }
            assert!(Instant::now() < end, "the server does not end:\n{}", self.log());
            std::thread::sleep(EVERY);
        };
        let log = self.log();
        assert!(!log.contains("panicked"), "the server panicked:\n{log}");
        Ended { status, log }
    }
}

/// A process, and never another one that got its number.
#[derive(Debug)]
pub(super) struct Handle {
    process: OwnedFd,
    /// A signal that ends it has been sent, or is about to be.
    is_to_end: AtomicBool,
}

impl Handle {
    /// Sends a signal. A process that has ended does not get it.
    pub(super) fn signal(&self, signal: Signal) {
        // Before it is sent: whoever notices the end knows that it was asked for.
        if !matches!(signal, Signal::STOP | Signal::CONT) {
            self.is_to_end.store(true, Ordering::SeqCst);
        }
        match pidfd_send_signal(&self.process, signal) {
            Ok(()) | Err(Errno::SRCH) => {}
            Err(error) => panic!("a child cannot be signalled: {error}"),
        }
    }

    /// Whether it was sent a signal that ends it.
    pub(super) fn is_to_end(&self) -> bool {
        self.is_to_end.load(Ordering::SeqCst)
    }
}

/// How a server ended.
#[derive(Debug)]
pub(super) struct Ended {
    status: ExitStatus,
    log: String,
}

impl Ended {
    /// Whether kill -9 was its end.
    pub(super) fn was_killed(&self) -> bool {
        self.status.signal() == Some(Signal::KILL.as_raw())
    }

    /// Fails unless kill -9 was its end.
    pub(super) fn assert_killed(&self) {
        assert!(self.was_killed(), "the server ended by itself: {self}");
    }

    /// Whether it has ended in order.
    pub(super) fn was_orderly(&self) -> bool {
        self.status.success()
    }

    /// Whether it was asked to end (SIGTERM) before it could listen to that.
    pub(super) fn was_too_young(&self) -> bool {
        self.status.signal() == Some(Signal::TERM.as_raw())
    }

    /// Fails unless it says that all went well.
    pub(super) fn assert_success(&self) {
        assert!(self.was_orderly(), "the server was asked to end, and ended otherwise: {self}");
    }
}

impl std::fmt::Display for Ended {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "{}; it has printed:\n{}", self.status, self.log)
    }
}

/// A new connection, on which no reply may take longer than a minute.
pub(super) fn connect(port: u16) -> redis::RedisResult<Connection> {
    let connection =
        redis::Client::open(("127.0.0.1", port))?.get_connection_with_timeout(Duration::from_secs(5))?;
    connection.set_read_timeout(Some(PATIENCE))?;
    Ok(connection)
}

impl Drop for Server {
    fn drop(&mut self) {
        // Where the process is gone, both do nothing.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[cfg(test)]
impl Server {
    /// Starts a server and waits until it listens.
    pub(super) fn start(database: &Path, arguments: &[&str]) -> Server {
        Server::try_start(database, arguments)
            .unwrap_or_else(|log| panic!("the server ended at once:\n{log}"))
    }

    /// The same, for a server that may refuse to start; then what it printed.
    pub(super) fn try_start(database: &Path, arguments: &[&str]) -> Result<Server, String> {
        let mut server = Server::spawn(database, arguments);
        match server.wait_until_ready() {
            Some(_) => Ok(server),
            None => Err(server.log()),
        }
    }

    /// A new connection to a server that listens.
    pub(super) fn connect(&mut self) -> Connection {
        let State::Ready(port) = self.state() else { panic!("the server is gone:\n{}", self.log()) };
        connect(port).unwrap_or_else(|error| panic!("cannot connect: {error}\n{}", self.log()))
    }

    /// `kill -9`, and nothing else, is its end.
    pub(super) fn kill(self) {
        self.handle().signal(Signal::KILL);
        self.wait().assert_killed();
    }

    /// Asks the server to end (SIGTERM), which must go well.
    pub(super) fn terminate(self) {
        self.handle().signal(Signal::TERM);
        self.wait().assert_success();
    }
}
