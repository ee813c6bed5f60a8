//! A running `kiln serve`.

use std::fs::{self, File};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use redis::Connection;
use rustix::process::{Pid, Signal, kill_process};

use crate::program;

/// How long anything may take before it counts as stuck.
const PATIENCE: Duration = Duration::from_secs(60);

/// A server on a free loopback port. Dropping it kills it.
#[derive(Debug)]
pub struct Server {
    child: Child,
    port: u16,
    log: PathBuf,
}

impl Server {
    /// Starts a server on a database. Its output goes to a file beside the database.
    ///
    /// # Panics
    /// If it does not answer soon.
    pub fn start(database: &Path, arguments: &[&str]) -> Server {
        Server::try_start(database, arguments)
            .unwrap_or_else(|log| panic!("the server ended at once:\n{log}"))
    }

    /// The same, for a server that may refuse to start.
    ///
    /// # Errors
    /// What it printed, if it ended at once.
    ///
    /// # Panics
    /// If it neither answers nor ends.
    pub fn try_start(database: &Path, arguments: &[&str]) -> Result<Server, String> {
        let log = database.with_extension("server.log");
        let output = File::create(&log).expect("the log file can be made");
        let port = free_port();
        let child = Command::new(program::path())
            .arg("serve")
            .arg("--dir")
            .arg(database)
            .args(["--listen", &format!("127.0.0.1:{port}")])
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(output.try_clone().expect("a file can be shared"))
            .stderr(output)
            .spawn()
            .expect("kiln can be started");
        let mut server = Server { child, port, log };
        let end = Instant::now() + PATIENCE;
        loop {
            if server.child.try_wait().expect("a child can be asked").is_some() {
                return Err(server.log());
            }
            let answer =
                server.try_connect().and_then(|mut connection| redis::cmd("PING").exec(&mut connection));
            if answer.is_ok() {
                return Ok(server);
            }
            assert!(Instant::now() < end, "the server does not answer:\n{}", server.log());
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// A new connection, on which no reply may take longer than a minute.
    ///
    /// # Errors
    /// If the server is gone.
    pub fn try_connect(&self) -> redis::RedisResult<Connection> {
        let connection = redis::Client::open(("127.0.0.1", self.port))?
            .get_connection_with_timeout(Duration::from_secs(5))?;
        connection.set_read_timeout(Some(PATIENCE))?;
        Ok(connection)
    }

    /// A new connection.
    ///
    /// # Panics
    /// If the server is gone.
    pub fn connect(&self) -> Connection {
        self.try_connect().unwrap_or_else(|error| panic!("cannot connect: {error}\n{}", self.log()))
    }

    /// The server's process.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// What the server printed so far.
    pub fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// `kill -9`. [`Self::assert_killed`] waits for the end.
    ///
    /// # Panics
    /// If the process cannot be signalled.
    pub fn kill(&self) {
        self.signal(Signal::KILL);
    }

    /// Waits for the end of a server that was killed.
    ///
    /// # Panics
    /// If it ended in any other way, or had panicked.
    pub fn assert_killed(mut self) {
        use std::os::unix::process::ExitStatusExt;
        let status = self.child.wait().expect("a child can be waited for");
        self.assert_no_panic();
        assert_eq!(
            status.signal(),
            Some(Signal::KILL.as_raw()),
            "the server ended by itself: {status}\n{}",
            self.log()
        );
    }

    /// Asks the server to end (SIGTERM), and waits.
    ///
    /// # Panics
    /// If it does not end soon, or had panicked.
    pub fn terminate(mut self) -> ExitStatus {
        self.signal(Signal::TERM);
        let end = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = self.child.try_wait().expect("a child can be asked") {
                self.assert_no_panic();
                return status;
            }
            assert!(Instant::now() < end, "the server does not end:\n{}", self.log());
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn signal(&self, signal: Signal) {
        let pid = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw).expect("a process has an id");
        kill_process(pid, signal).expect("a child can be signalled");
    }

    fn assert_no_panic(&self) {
        let log = self.log();
        assert!(!log.contains("panicked"), "the server panicked:\n{log}");
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Where the process is gone, both do nothing.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn free_port() -> u16 {
    let listener = TcpListener::bind(("127.0.0.1", 0)).expect("there is a free port");
    listener.local_addr().expect("a listener has an address").port()
}
