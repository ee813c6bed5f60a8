//! A connection that sends whatever it is given, and reads what comes back: clients that behave would not do.

use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::Duration;

use super::super::server::PATIENCE;

/// A connection to a server.
#[derive(Debug)]
pub(super) struct Wire(BufReader<TcpStream>);

/// What came back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Reply {
    /// Simple or bulk.
    Text(Vec<u8>),
    Integer(i64),
    Error(String),
    Null,
    Array(Vec<Reply>),
    /// The connection has ended instead.
    End,
}

impl Reply {
    pub(super) fn is_ok(&self) -> bool {
        *self == Reply::Text(b"OK".to_vec())
    }

    /// Fails unless it is an error that begins so.
    #[track_caller]
    pub(super) fn assert_refused(&self, beginning: &str) {
        let is_refused = matches!(self, Reply::Error(text) if text.starts_with(beginning));
        assert!(is_refused, "this should be refused with {beginning}: {}", self.shown());
    }

    /// Fails unless it is OK.
    #[track_caller]
    pub(super) fn assert_ok(&self) {
        assert!(self.is_ok(), "this should be OK: {}", self.shown());
    }

    pub(super) fn text(self) -> Vec<u8> {
        match self {
            Reply::Text(bytes) => bytes,
            other => panic!("this should be text: {}", other.shown()),
        }
    }

    pub(super) fn elements(self) -> Vec<Reply> {
        match self {
            Reply::Array(elements) => elements,
            other => panic!("this should be an array: {}", other.shown()),
        }
    }

    /// As much of it as fits a line.
    pub(super) fn shown(&self) -> String {
        match self {
            Reply::Array(elements) if elements.len() > 4 => format!("an array of {}", elements.len()),
            Reply::Text(bytes) if bytes.len() > 80 => format!("{} bytes", bytes.len()),
            Reply::Text(bytes) => String::from_utf8_lossy(bytes).into_owned(),
            other => format!("{other:?}"),
        }
    }
}

/// A request, encoded.
pub(super) fn request<A: AsRef<[u8]>>(arguments: impl IntoIterator<Item = A>) -> Vec<u8> {
    let (mut body, mut count) = (Vec::new(), 0);
    for argument in arguments {
        let argument = argument.as_ref();
        body.extend_from_slice(format!("${}\r\n", argument.len()).as_bytes());
        body.extend_from_slice(argument);
        body.extend_from_slice(b"\r\n");
        count += 1;
    }
    let mut request = format!("*{count}\r\n").into_bytes();
    request.append(&mut body);
    request
}

/// A request without anything that would have to be quoted.
pub(super) fn words(line: &str) -> Vec<u8> {
    request(line.split(' '))
}

impl Wire {
    pub(super) fn connect(port: u16) -> Wire {
        let stream = TcpStream::connect(("127.0.0.1", port)).expect("the server accepts connections");
        stream.set_nodelay(true).expect("a socket has options");
        stream.set_read_timeout(Some(PATIENCE)).expect("a socket has options");
        stream.set_write_timeout(Some(PATIENCE)).expect("a socket has options");
        Wire(BufReader::new(stream))
    }

    pub(super) fn send(&mut self, bytes: &[u8]) {
        self.try_send(bytes).expect("the server reads what it is sent");
    }

    /// The same, of a server that may have ended the connection.
    pub(super) fn try_send(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        self.0.get_mut().write_all(bytes)
    }

    /// The reply to the request of these words.
    pub(super) fn ask(&mut self, line: &str) -> Reply {
        self.send(&words(line));
        self.reply()
    }

    /// Sends for so long at the most.
    pub(super) fn send_for(&mut self, bytes: &[u8], time: Duration) -> std::io::Result<()> {
        self.0.get_ref().set_write_timeout(Some(time))?;
        self.try_send(bytes)
    }

    /// There is nothing more to be sent.
    pub(super) fn end(&mut self) {
        // An error says that the server has ended it.
        let _ = self.0.get_ref().shutdown(Shutdown::Write);
    }

    /// The reply to the request of these words, on a connection that may have been refused.
    pub(super) fn try_ask(&mut self, line: &str) -> Option<Reply> {
        self.try_send(&words(line)).ok()?;
        Some(self.reply())
    }

    /// The port of this side.
    pub(super) fn local_port(&self) -> u16 {
        self.0.get_ref().local_addr().expect("a connection has two sides").port()
    }

    /// Sends `bytes`, and reads `count` replies meanwhile, each of which goes to `look`.
    pub(super) fn ask_many(&mut self, bytes: &[u8], count: usize, mut look: impl FnMut(Reply)) {
        let mut writer = self.0.get_ref().try_clone().expect("a socket can be shared");
        std::thread::scope(|scope| {
            // What went wrong shows in the replies.
            scope.spawn(move || drop(writer.write_all(bytes)));
            (0..count).for_each(|_| look(self.reply()));
        });
    }

    /// The next reply.
    pub(super) fn reply(&mut self) -> Reply {
        match self.try_reply() {
            Ok(reply) => reply,
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                panic!("no reply for {PATIENCE:?}")
            }
            Err(_) => Reply::End,
        }
    }

    fn try_reply(&mut self) -> std::io::Result<Reply> {
        let mut line = Vec::new();
        self.0.read_until(b'\n', &mut line)?;
        let Some(text) = line.strip_suffix(b"\r\n").and_then(|line| std::str::from_utf8(line).ok()) else {
            return Ok(Reply::End);
        };
        let (kind, rest) = text.split_at(1);
        let number = || rest.parse::<i64>().unwrap_or_else(|_| panic!("this is no number: {text:?}"));
        Ok(match kind {
            "+" => Reply::Text(rest.into()),
            "-" => Reply::Error(rest.into()),
            ":" => Reply::Integer(number()),
            "$" | "*" if number() < 0 => Reply::Null,
            "$" => {
                let mut bytes = vec![0; number() as usize + 2];
                self.0.read_exact(&mut bytes)?;
                assert_eq!(bytes.split_off(bytes.len() - 2), b"\r\n", "behind a bulk string");
                Reply::Text(bytes)
            }
            "*" => Reply::Array((0..number()).map(|_| self.try_reply()).collect::<Result<_, _>>()?),
            _ => panic!("this is no reply: {text:?}"),
        })
    }

    /// Whether any of the next reply has arrived.
    pub(super) fn has_reply(&self) -> bool {
        let stream = self.0.get_ref();
        let look = || {
            stream.set_nonblocking(true)?;
            let looked = stream.peek(&mut [0]);
            stream.set_nonblocking(false)?;
            looked
        };
        !self.0.buffer().is_empty() || look().is_ok()
    }
}
