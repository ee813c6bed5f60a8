//! More connections that wait than the runtime has threads.

mod common;

use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use common::{Client, TestServer, encode, info_field, integer, simulated, words};
use kiln::device::{Fault, FaultKind, OperationKind, SimulatedDevice};
use kiln_server::{Durability, Options};

/// How many threads the runtime starts beside its own two: a few more than wait at most.
const THREADS_MAX: usize = 300;
/// How many connections want to wait.
const CROWD: usize = 400;
/// How many keys there are of which most are on disk.
const COLD_KEYS: usize = 100;
/// How long the disk takes for what it is late with.
const LATE: Duration = Duration::from_secs(4);

/// Held by each test: what it does while the disk is late hundreds of threads of another would make slow.
static ALONE: Mutex<()> = Mutex::new(());

/// A server whose connections are fast, and its disk.
fn server() -> (MutexGuard<'static, ()>, SimulatedDevice, TestServer) {
    let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let (disk, db) = simulated(1);
    (alone, disk, TestServer::with_threads(db, Options::new().durability(Durability::Fast), THREADS_MAX))
}

fn delay(disk: &SimulatedDevice, operation: OperationKind) {
    disk.inject(Fault { operation, nth: 1, kind: FaultKind::Delay(LATE), sticky: true });
}

/// Makes the disk late, and returns when commits are held back, with the number of hardenings so far.
fn fall_behind(disk: &SimulatedDevice, server: &TestServer, client: &mut Client) -> u64 {
    delay(disk, OperationKind::Sync);
    client.expect("SET key value", "OK");
    // The window is 20 ms.
    let is_behind = |age: Duration| age > Duration::from_millis(200);
    while !server.db.statistics().oldest_unhardened.is_some_and(is_behind) {
        std::thread::yield_now();
    }
    server.db.statistics().hardenings
}

/// Sends a request on each of many connections.
fn crowd(server: &TestServer, request: impl Fn(usize) -> String) -> Vec<Client> {
    let mut clients: Vec<_> = (0..CROWD).map(|_| server.client()).collect();
    for (index, client) in clients.iter_mut().enumerate() {
        client.send_bytes(&encode(&words(&request(index))));
    }
    clients
}

/// Sends requests, all as long as the first, on many connections, and returns when the server has them all.
fn crowd_that_has_arrived(
    server: &TestServer,
    client: &mut Client,
    request: impl Fn(usize) -> String,
) -> Vec<Client> {
    let mut received =
        || -> u64 { info_field(&client.run("INFO stats"), "total_net_input_bytes").parse().unwrap() };
    let before = received();
    let clients = crowd(server, &request);
    let bytes = (CROWD * encode(&words(&request(0))).len()) as u64;
    while received() < before + bytes {}
    clients
}

/// Each that waited took a thread of the runtime's, and with as many as there may be nobody was served any more.
#[test]
fn others_are_served_while_more_connections_commit_than_there_are_threads() {
    let (_alone, disk, server) = server();
    // On threads of its own.
    let elsewhere = TestServer::start();
    let mut other = server.client();
    let hardenings = fall_behind(&disk, &server, &mut other);
    let mut clients = crowd_that_has_arrived(&server, &mut other, |index| format!("SET key{index:03} value"));
    other.expect("PING", "PONG");
    other.expect("GET key", "\"value\"");
    other.expect("EXISTS key none", "(integer) 1");
    elsewhere.client().expect("SET key value", "OK");
    assert_eq!(server.db.statistics().hardenings, hardenings, "it was answered when the disk was back");
    disk.clear_faults();
    clients.iter_mut().for_each(|client| assert_eq!(client.reply(), "OK"));
    other.expect("DBSIZE", &format!("(integer) {}", CROWD + 1));
}

/// Whoever arrived waited for the keyspace, though there was nothing that it wanted there.
#[test]
fn who_needs_no_keys_is_served_while_a_flush_waits_for_the_disk() {
    let (_alone, disk, server) = server();
    let mut other = server.client();
    let hardenings = fall_behind(&disk, &server, &mut other);
    let mut flushers: Vec<_> = (0..2).map(|_| server.client()).collect();
    flushers.iter_mut().for_each(|client| client.send_bytes(&encode(&words("FLUSHALL"))));
    let mut clients = crowd(&server, |_| "GET key".to_owned());
    for round in 0..500 {
        other.expect("PING", "PONG");
        other.expect("CLIENT GETNAME", "(nil)");
        integer(&other.run("KILN HORIZON"));
        let now = server.db.statistics().hardenings;
        assert_eq!(now, hardenings, "round {round} was answered when the disk was back");
    }
    disk.clear_faults();
    flushers.iter_mut().for_each(|client| assert_eq!(client.reply(), "OK"));
    for client in &mut clients {
        let reply = client.reply();
        assert!(["(nil)", "\"value\""].contains(&reply.as_str()), "{reply}");
    }
}

/// As many as there were threads waited for what is on disk. And writes read it on the threads of the runtime's own, of which there are two: for them
/// there are turns of another kind.
#[test]
fn who_needs_no_keys_is_served_while_more_connections_read_from_disk_than_there_are_threads() {
    const KEYS: usize = 60;
    let (_alone, disk, server) = server();
    let mut other = server.client();
    let value = vec![b'v'; 200_000];
    for key in 0..KEYS {
        other.send(&[b"SET", format!("key{key}").as_bytes(), &value]);
        assert_eq!(other.reply(), "OK");
    }
    server.db.persist().unwrap();
    let hardenings = fall_behind(&disk, &server, &mut other);
    delay(&disk, OperationKind::Read);
    let mut clients = crowd_that_has_arrived(&server, &mut other, |index| format!("STRLEN key{}", index % 8));
    let mut writers: Vec<_> = (0..2).map(|_| server.client()).collect();
    for (index, writer) in writers.iter_mut().enumerate() {
        writer.send_bytes(&encode(&words(&format!("APPEND key{} x", index + 8))));
    }
    for round in 0..500 {
        other.expect("PING", "PONG");
        let now = server.db.statistics().hardenings;
        assert_eq!(now, hardenings, "round {round} was answered when the disk was back");
    }
    disk.clear_faults();
    clients.iter_mut().for_each(|client| assert_eq!(client.reply(), "(integer) 200000"));
    writers.iter_mut().for_each(|client| assert_eq!(client.reply(), "(integer) 200001"));
}

/// A server that has keys of which most are on disk only.
fn with_cold_keys() -> (MutexGuard<'static, ()>, SimulatedDevice, TestServer, Client) {
    let (alone, disk, server) = server();
    let mut client = server.client();
    for key in 0..COLD_KEYS {
        client.send(&[b"SET", format!("key{key}").as_bytes(), &vec![b'v'; 200_000]]);
        assert_eq!(client.reply(), "OK");
    }
    server.db.persist().unwrap();
    (alone, disk, server, client)
}

/// A walk over all keys went on for as long as it took, for whoever had long given up on it, and so many of them kept everybody from reading.
#[test]
fn who_asks_for_all_keys_does_not_take_a_thread_for_longer_than_others() {
    let (_alone, disk, _server, mut client) = with_cold_keys();
    let kind = FaultKind::Delay(Duration::from_secs(6));
    disk.inject(Fault { operation: OperationKind::Read, nth: 1, kind, sticky: true });
    client.expect("KEYS *", "(error) LIMIT the command takes longer than 10 s; use SCAN");
    disk.clear_faults();
    assert_eq!(client.run("KEYS *").matches("key").count(), COLD_KEYS);
}

/// Whoever flushed waited until it had read all that it was asked to look at, and everybody for them.
#[test]
fn a_scan_of_what_is_on_disk_comes_back_early_and_misses_none() {
    let (_alone, disk, _server, mut client) = with_cold_keys();
    let kind = FaultKind::Delay(Duration::from_millis(10));
    disk.inject(Fault { operation: OperationKind::Read, nth: 1, kind, sticky: true });
    let (mut cursor, mut calls, mut found) = ("0".to_owned(), 0, BTreeSet::new());
    loop {
        let reply = client.run(&format!("SCAN {cursor} COUNT 1000"));
        disk.clear_faults();
        calls += 1;
        let mut told = reply.split('"').skip(1).step_by(2).map(str::to_owned);
        cursor = told.next().unwrap();
        found.extend(told);
        if cursor == "0" {
            break;
        }
    }
    assert_eq!(found.len(), COLD_KEYS);
    assert!(calls > 1, "one call has read all");
}

/// The server's threads had to be waited for until it had seen all keys.
#[test]
fn a_walk_over_all_keys_ends_with_the_server() {
    let (_alone, disk, server, mut client) = with_cold_keys();
    let kind = FaultKind::Delay(Duration::from_secs(1));
    disk.inject(Fault { operation: OperationKind::Read, nth: 1, kind, sticky: true });
    let fired = disk.faults_fired();
    client.send(&[b"KEYS", b"*"]);
    while disk.faults_fired() == fired {
        std::thread::yield_now();
    }
    let db = server.db.clone();
    drop(server);
    assert_eq!(client.reply(), "(error) ERR the server is ending");
    disk.clear_faults();
    db.close().unwrap();
}

/// It panicked: tasks of a `LocalSet` may not leave their thread, though their runtime has many.
#[test]
fn a_program_with_a_server_commits_from_a_local_set_while_the_disk_is_late() {
    let (_alone, disk, server) = server();
    fall_behind(&disk, &server, &mut server.client());
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).build().unwrap();
    let local = tokio::task::LocalSet::new();
    let db = server.db.clone();
    let task = local.spawn_local(async move {
        let map = db.map("strings")?;
        db.put(&map, "key", "of the program")?.forget();
        Ok::<(), kiln::Error>(())
    });
    local.block_on(&runtime, task).unwrap().unwrap();
    disk.clear_faults();
    server.client().expect("GET key", "\"of the program\"");
}
