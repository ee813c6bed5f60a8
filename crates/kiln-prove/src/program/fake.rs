//! A server that holds nothing, and closes connections: who must notice that is tested on it.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};

/// What a client sends before it is asked for anything: its name and version.
const GREETINGS: usize = 2;

/// Answers a few commands of each connection with `OK`, and closes it. It ends with the test's process.
#[derive(Debug)]
pub(super) struct Fake {
    port: u16,
}

impl Fake {
    /// A server that closes each connection behind so many answers.
    pub(super) fn start(answers: usize) -> Fake {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
        let port = listener.local_addr().expect("a listener has an address").port();
        std::thread::spawn(move || {
            for connection in listener.incoming().flatten() {
                // A client that has gone is not missed.
                std::thread::spawn(move || drop(answer(connection, GREETINGS + answers)));
            }
        });
        Fake { port }
    }

    pub(super) fn port(&self) -> u16 {
        self.port
    }
}

fn answer(mut connection: TcpStream, mut left: usize) -> std::io::Result<()> {
    let mut bytes = [0; 4096];
    while left > 0 {
        let count = connection.read(&mut bytes)?;
        if count == 0 {
            return Ok(());
        }
        // Each command is an array, and nothing in those that are tested looks like the beginning of one.
        let commands = bytes[..count].iter().filter(|&&byte| byte == b'*').count().min(left);
        connection.write_all(&b"+OK\r\n".repeat(commands))?;
        left -= commands;
    }
    // What the client still sends is read, so that the answers before reach it.
    connection.shutdown(std::net::Shutdown::Write)?;
    while connection.read(&mut bytes)? > 0 {}
    Ok(())
}
