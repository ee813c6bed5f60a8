//! The system's limits of a process.

mod common;

use std::io::{BufRead as _, BufReader};
use std::net::TcpStream;
use std::os::unix::process::ExitStatusExt as _;
use std::time::Duration;

use common::{Sandbox, Served, text};
use rustix::process::Signal;

/// Clients took all of them, and every write failed, since the log could not go on in a new file.
#[test]
fn clients_leave_file_descriptors_for_the_database() {
    const CLIENTS: usize = 300;
    let sandbox = Sandbox::new();
    let arguments = ["serve", "--listen", "127.0.0.1:0", "--memory", "64MiB"];
    let served = Served::of(sandbox.limited("-n 200", &arguments));
    let mut first = served.connect();
    let maximum: Vec<String> = redis::cmd("CONFIG").arg("GET").arg("maxclients").query(&mut first).unwrap();
    let maximum: usize = maximum[1].parse().unwrap();
    assert!((50..200).contains(&maximum), "{maximum}");
    let others: Vec<_> =
        (0..CLIENTS).map(|_| TcpStream::connect(("127.0.0.1", served.port)).unwrap()).collect();
    let mut line = String::new();
    others[CLIENTS - 1].set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    BufReader::new(&others[CLIENTS - 1]).read_line(&mut line).unwrap();
    assert_eq!(line, "-ERR max number of clients reached\r\n");
    // Several files of the log.
    let value = vec![b'v'; 1 << 20];
    for number in 0..160 {
        redis::cmd("SET").arg(number).arg(&value).exec(&mut first).unwrap();
    }
    assert_eq!(served.end(Signal::TERM).0, Some(0));
}

/// The process was killed, and said nothing.
#[test]
fn a_limit_of_the_size_of_files_is_an_error_that_names_what_is_too_long() {
    let sandbox = Sandbox::new();
    let output = sandbox.limited("-f 8192", &["put", "--object", "notes", "key", "value"]).output().unwrap();
    let said = text(&output.stderr);
    assert_eq!((output.status.signal(), output.status.code()), (None, Some(1)), "{said}");
    assert!(said.contains("segment") && said.contains("File too large"), "{said}");
}
