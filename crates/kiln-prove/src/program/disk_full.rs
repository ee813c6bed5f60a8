//! A full disk: a small file system in memory, filled up. Needs root, to mount it; says so and does nothing otherwise.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use redis::{Connection, RedisResult, cmd};

use super::binary;
use super::server::Server;

const SERVER: &[&str] = &["--memory", "64MiB"];
const VALUE_BYTES: usize = 100_000;

/// A mounted file system. Dropping it unmounts it.
struct Mount<'a>(&'a Path);

impl Mount<'_> {
    fn new(path: &Path, megabytes: u32) -> Option<Mount<'_>> {
        let options = format!("size={megabytes}m");
        run("mount", &["-t", "tmpfs", "-o", &options, "kiln-prove"], path).then_some(Mount(path))
    }

    fn resize(&self, megabytes: u32) {
        let options = format!("remount,size={megabytes}m");
        assert!(run("mount", &["-o", &options], self.0), "the file system cannot be made larger");
    }
}

impl Drop for Mount<'_> {
    fn drop(&mut self) {
        // Lazily, because a server that a failed test leaves behind may still have files open.
        run("umount", &["--lazy"], self.0);
    }
}

fn run(program: &str, arguments: &[&str], path: &Path) -> bool {
    let status =
        Command::new(program).args(arguments).arg(path).stdin(Stdio::null()).stderr(Stdio::null()).status();
    status.is_ok_and(|status| status.success())
}

fn set(connection: &mut Connection, number: u32) -> RedisResult<()> {
    let value = vec![number as u8; VALUE_BYTES];
    cmd("SET").arg(format!("key:{number}")).arg(value).exec(connection)
}

/// Writes until the disk stays full: how many writes were acknowledged, and the last error.
fn fill(connection: &mut Connection) -> (u32, String) {
    let (mut count, mut failures) = (0, 0);
    loop {
        match set(connection, count) {
            Ok(()) => (count, failures) = (count + 1, 0),
            Err(error) if failures == 5 => return (count, error.to_string()),
            Err(_) => failures += 1,
        }
        assert!(count < 10_000, "a gigabyte has gone into 96 MiB");
    }
}

/// Space has come back: the writes go on within seconds.
fn write_when_there_is_space(connection: &mut Connection, number: u32) {
    let end = Instant::now() + Duration::from_secs(20);
    while let Err(error) = set(connection, number) {
        assert!(Instant::now() < end, "there is space again, and writes still fail: {error}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn assert_all_there(connection: &mut Connection, count: u32) {
    for number in 0..count {
        let value: Option<Vec<u8>> = cmd("GET").arg(format!("key:{number}")).query(connection).unwrap();
        let value = value.unwrap_or_else(|| panic!("key:{number} was acknowledged and is gone"));
        assert!(value.len() == VALUE_BYTES && value.iter().all(|&byte| byte == number as u8));
    }
}

#[test]
fn a_full_disk_is_an_error_that_says_so_and_nothing_acknowledged_is_lost() {
    let directory = tempfile::tempdir().unwrap();
    let Some(mount) = Mount::new(directory.path(), 96) else {
        println!("skipped: only root can mount the small file system that this test fills");
        return;
    };
    let database = directory.path().join("database");
    let mut server = Server::start(&database, SERVER);
    let mut connection = server.connect();

    let (count, error) = fill(&mut connection);
    println!("{count} writes, then: {error}");
    assert!(error.to_lowercase().contains("space"), "the error does not name the disk's space: {error}");
    assert!(count > 500, "96 MiB should take more than {count} values of {VALUE_BYTES} bytes");
    assert_all_there(&mut connection, count);
    // Reading needs no space, on any connection.
    assert_all_there(&mut server.connect(), count);

    server.kill();
    binary::check(&database);
    let mut server = Server::start(&database, SERVER);
    assert_all_there(&mut server.connect(), count);

    mount.resize(512);
    let mut connection = server.connect();
    write_when_there_is_space(&mut connection, count);
    assert_all_there(&mut connection, count + 1);
    server.terminate();
    binary::check(&database);
}

#[test]
fn a_server_goes_on_by_itself_when_there_is_space_again() {
    let directory = tempfile::tempdir().unwrap();
    let Some(mount) = Mount::new(directory.path(), 96) else {
        println!("skipped: only root can mount the small file system that this test fills");
        return;
    };
    let mut server = Server::start(&directory.path().join("database"), SERVER);
    let mut connection = server.connect();
    let (count, _) = fill(&mut connection);
    mount.resize(512);
    write_when_there_is_space(&mut connection, count);
    assert_all_there(&mut connection, count + 1);
    server.terminate();
}
