//! A server in this process, and a client that shows replies as text.

#![allow(dead_code, reason = "each test file uses its own part")]

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use bytes::Bytes;
use kiln::Kiln;
use kiln::device::SimulatedDevice;
use kiln_server::{Durability, Options, Server};
use resp_rs::ParseError;
use resp_rs::resp3::{Frame, parse_frame};
use tokio::sync::oneshot;

/// A running server, which ends when dropped.
pub(crate) struct TestServer {
    pub(crate) address: SocketAddr,
    pub(crate) db: Kiln,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
    /// Kept until the end if the test did not bring its own.
    _directory: Option<tempfile::TempDir>,
}

impl TestServer {
    /// A server over a new database, whose connections are fast unless they say otherwise.
    pub(crate) fn start() -> Self {
        Self::with_options(Options::new().durability(Durability::Fast))
    }

    pub(crate) fn with_options(options: Options) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let db = database_options().open(directory.path()).unwrap();
        let mut server = Self::over(db, options);
        server._directory = Some(directory);
        server
    }

    /// A server over the database in `directory`.
    pub(crate) fn at(directory: &Path) -> Self {
        Self::over(database_options().open(directory).unwrap(), Options::new().durability(Durability::Fast))
    }

    pub(crate) fn over(db: Kiln, options: Options) -> Self {
        Self::with_threads(db, options, 512)
    }

    /// A server whose runtime starts so many threads at most beside its own two.
    pub(crate) fn with_threads(db: Kiln, options: Options, threads_max: usize) -> Self {
        let (stop, stopped) = oneshot::channel::<()>();
        let (started, address) = std::sync::mpsc::channel();
        let served = db.clone();
        let thread = std::thread::spawn(move || {
            let mut runtime = tokio::runtime::Builder::new_multi_thread();
            runtime.worker_threads(2).max_blocking_threads(threads_max).enable_all();
            let runtime = runtime.build().unwrap();
            runtime.block_on(async {
                let server = Server::bind(served, "127.0.0.1:0", options).await.unwrap();
                started.send(server.address()).unwrap();
                server.run(async { drop(stopped.await) }).await;
            });
        });
        Self {
            address: address.recv().unwrap(),
            db,
            stop: Some(stop),
            thread: Some(thread),
            _directory: None,
        }
    }

    pub(crate) fn client(&self) -> Client {
        Client::connect(self.address)
    }

    /// Ends the server in order and closes the database.
    pub(crate) fn stop(mut self) {
        self.end();
        self.db.close().unwrap();
    }

    fn end(&mut self) {
        if let Some(stop) = self.stop.take() {
            let _ = stop.send(());
        }
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap();
        }
    }
}

impl Drop for TestServer {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.end();
        }
    }
}

/// A small database: tests run many of them.
pub(crate) fn database_options() -> kiln::Options {
    kiln::Options::new().memory(64 << 20).window(Duration::from_millis(20))
}

/// A server whose database hardens by itself only after minutes, so that whatever is durable sooner was
/// waited for.
pub(crate) fn lazy_server(directory: &Path, durability: Durability) -> TestServer {
    let db = database_options().window(Duration::from_secs(300)).open(directory).unwrap();
    TestServer::over(db, Options::new().durability(durability))
}

/// The number of a reply.
pub(crate) fn integer(reply: &str) -> u64 {
    reply.strip_prefix("(integer) ").unwrap_or_else(|| panic!("{reply}")).parse().unwrap()
}

/// A database on a disk that fails on demand.
pub(crate) fn simulated(seed: u64) -> (SimulatedDevice, Kiln) {
    let disk = SimulatedDevice::new(seed);
    let options = database_options().segment_bytes(1 << 20).memory(4 << 20);
    let db = options.open_on(Arc::new(disk.clone())).unwrap();
    (disk, db)
}

/// A connection that writes requests and shows replies as text, much as redis-cli does:
/// `OK`, `(integer) 1`, `"bulk"`, `(nil)`, `(error) ERR ...`, `["a", "b"]`, `{"key": value}`.
pub(crate) struct Client {
    stream: TcpStream,
    received: Vec<u8>,
}

impl Client {
    pub(crate) fn connect(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        Self { stream, received: Vec::new() }
    }

    /// A second handle on the same connection, to send while the first receives.
    pub(crate) fn try_clone(&self) -> Self {
        Self { stream: self.stream.try_clone().unwrap(), received: Vec::new() }
    }

    pub(crate) fn send_bytes(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).unwrap();
    }

    pub(crate) fn send(&mut self, words: &[&[u8]]) {
        let request = encode(words);
        self.send_bytes(&request);
    }

    /// Sends a command whose words are separated by single spaces and returns the reply as text.
    #[track_caller]
    pub(crate) fn run(&mut self, command: &str) -> String {
        self.send(&words(command));
        self.reply()
    }

    /// Asserts that a command is answered so.
    #[track_caller]
    pub(crate) fn expect(&mut self, command: &str, reply: &str) {
        assert_eq!(self.run(command), reply, "{command}");
    }

    #[track_caller]
    pub(crate) fn reply(&mut self) -> String {
        show(&self.frame().expect("the server ended the connection"))
    }

    /// The next reply; `None` if the server has ended the connection.
    #[track_caller]
    pub(crate) fn frame(&mut self) -> Option<Frame> {
        loop {
            if !self.received.is_empty() {
                match parse_frame(Bytes::copy_from_slice(&self.received)) {
                    Ok((frame, rest)) => {
                        self.received = rest.to_vec();
                        return Some(frame);
                    }
                    Err(ParseError::Incomplete) => {}
                    Err(error) => panic!("{error}: {}", self.received.escape_ascii()),
                }
            }
            let mut piece = [0; 64 * 1024];
            match self.stream.read(&mut piece) {
                Ok(0) => return None,
                Ok(bytes) => self.received.extend_from_slice(&piece[..bytes]),
                Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => return None,
                Err(error) => panic!("no reply: {error}"),
            }
        }
    }

    /// Whether nothing arrives for a while.
    pub(crate) fn is_silent_for(&mut self, time: Duration) -> bool {
        self.stream.set_read_timeout(Some(time)).unwrap();
        let silent = self.received.is_empty() && self.stream.peek(&mut [0]).is_err();
        self.stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        silent
    }
}

/// The words of a command line.
pub(crate) fn words(command: &str) -> Vec<&[u8]> {
    command.split(' ').map(str::as_bytes).collect()
}

/// A request as clients send it.
pub(crate) fn encode(words: &[&[u8]]) -> Vec<u8> {
    let mut request = format!("*{}\r\n", words.len()).into_bytes();
    for word in words {
        request.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
        request.extend_from_slice(word);
        request.extend_from_slice(b"\r\n");
    }
    request
}

/// A reply as text.
pub(crate) fn show(frame: &Frame) -> String {
    let list = |frames: &[Frame]| frames.iter().map(show).collect::<Vec<_>>().join(", ");
    match frame {
        Frame::SimpleString(text) => String::from_utf8_lossy(text).into_owned(),
        Frame::Error(text) => format!("(error) {}", String::from_utf8_lossy(text)),
        Frame::Integer(value) => format!("(integer) {value}"),
        Frame::BulkString(Some(bytes)) => format!("\"{}\"", String::from_utf8_lossy(bytes)),
        Frame::BulkString(None) | Frame::Array(None) => "(nil)".to_owned(),
        Frame::Null => "(null)".to_owned(),
        Frame::Array(Some(frames)) => format!("[{}]", list(frames)),
        Frame::VerbatimString { payload } => format!("text:{}", String::from_utf8_lossy(payload)),
        Frame::Map(pairs) => {
            let pairs: Vec<_> =
                pairs.iter().map(|(key, value)| format!("{}: {}", show(key), show(value))).collect();
            format!("{{{}}}", pairs.join(", "))
        }
        other => format!("{other:?}"),
    }
}

/// The lines of `INFO` as pairs.
pub(crate) fn info_field(info: &str, name: &str) -> String {
    let prefix = format!("{name}:");
    let line = info.lines().find_map(|line| line.strip_prefix(&prefix));
    line.unwrap_or_else(|| panic!("no {name} in {info}")).trim_end().to_owned()
}
