//! Lifetimes, scans and flushes.

mod common;

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use common::{TestServer, info_field};

/// Waits until `condition` holds.
#[track_caller]
fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < Duration::from_secs(20), "{what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn lifetimes_are_set_read_and_removed() {
    let server = TestServer::start();
    let mut client = server.client();
    client.expect("EXPIRE k 10", "(integer) 0");
    client.expect("TTL k", "(integer) -2");
    client.expect("SET k v", "OK");
    client.expect("TTL k", "(integer) -1");
    client.expect("PERSIST k", "(integer) 0");
    client.expect("EXPIRE k 100", "(integer) 1");
    client.expect("TTL k", "(integer) 100");
    assert!(client.run("PTTL k").strip_prefix("(integer) ").unwrap().parse::<u64>().unwrap() > 99_000);
    client.expect("PERSIST k", "(integer) 1");
    client.expect("PTTL k", "(integer) -1");
    client.expect("PEXPIRE k 100000", "(integer) 1");
    client.expect("EXPIREAT k 32503680000", "(integer) 1");
    client.expect("PEXPIREAT k 32503680000000", "(integer) 1");
    client.expect("EXPIRE k 9223372036854775807", "(error) ERR invalid expire time in 'expire' command");
    client.expect("TYPE k", "string");
    client.expect("EXPIRE k -1", "(integer) 1");
    client.expect("TYPE k", "none");
}

#[test]
fn lifetimes_change_only_under_their_conditions() {
    let server = TestServer::start();
    let mut client = server.client();
    client.expect("SET k v", "OK");
    client.expect("EXPIRE k 100 XX", "(integer) 0");
    client.expect("EXPIRE k 100 GT", "(integer) 0");
    client.expect("EXPIRE k 100 LT", "(integer) 1");
    client.expect("EXPIRE k 200 NX", "(integer) 0");
    client.expect("EXPIRE k 200 LT", "(integer) 0");
    client.expect("EXPIRE k 200 GT", "(integer) 1");
    client.expect("TTL k", "(integer) 200");
    client.expect(
        "EXPIRE k 1 NX GT",
        "(error) ERR NX and XX, GT or LT options at the same time are not compatible",
    );
    client.expect("EXPIRE k 1 GT LT", "(error) ERR GT and LT options at the same time are not compatible");
    client.expect("EXPIRE k 1 FOO", "(error) ERR Unsupported option FOO");
}

#[test]
fn a_key_is_absent_once_its_time_has_come_and_then_swept_with_its_row() {
    let server = TestServer::start();
    let mut client = server.client();
    client.expect("SET short v PX 30", "OK");
    client.expect("SET long v EX 1000", "OK");
    client.expect("SET renewed v PX 30", "OK");
    client.expect("SET renewed v", "OK");
    std::thread::sleep(Duration::from_millis(40));
    client.expect("GET short", "(nil)");
    client.expect("EXISTS short", "(integer) 0");
    client.expect("KEYS short", "[]");
    eventually("the key is swept", || client.run("DBSIZE") == "(integer) 2");
    client.expect("GET renewed", "\"v\"");
    let expiries = server.db.table("expiries").unwrap();
    let rows = server.db.snapshot().unwrap().range::<&[u8]>(&expiries, ..).count();
    assert_eq!(rows, 1, "the row of 'long' is the only one left");
    assert_eq!(info_field(&client.run("INFO stats"), "expired_keys"), "1");
    client.expect("SETNX short again", "(integer) 1");
}

#[test]
fn every_row_of_a_lifetime_goes_with_it() {
    let server = TestServer::start();
    let mut client = server.client();
    for step in ["SET k 1 EX 100", "SET k 2 EX 200", "EXPIRE k 300", "GETEX k EX 400", "INCR k", "APPEND k 0"]
    {
        client.run(step);
        assert_eq!(rows(&server), 1, "{step}");
    }
    for remove in ["SET k 1", "PERSIST k", "DEL k", "GETDEL k", "GETSET k 1", "MSET k 1 j 1", "EXPIRE k 0"] {
        client.run("SET k 1 EX 100");
        client.run(remove);
        assert_eq!(rows(&server), 0, "{remove}");
    }
}

fn rows(server: &TestServer) -> usize {
    let expiries = server.db.table("expiries").unwrap();
    server.db.transact(|tx| Ok(tx.range::<&[u8]>(&expiries, ..).count())).unwrap().forget()
}

#[test]
fn scan_returns_every_key_and_only_what_was_asked_for() {
    let server = TestServer::start();
    let mut client = server.client();
    for number in 0..500 {
        client.expect(&format!("SET key:{number} v"), "OK");
    }
    let scan = |client: &mut common::Client, options: &str| {
        let (mut cursor, mut found) = ("0".to_owned(), BTreeSet::new());
        loop {
            let reply = client.run(&format!("SCAN {cursor}{options}"));
            let inner = reply.strip_prefix("[\"").unwrap();
            let (next, keys) = inner.split_once("\", [").unwrap();
            let keys = keys.trim_end_matches(']');
            found.extend(keys.split(", ").filter(|key| !key.is_empty()).map(str::to_owned));
            cursor = next.to_owned();
            if cursor == "0" {
                return found;
            }
        }
    };
    assert_eq!(scan(&mut client, "").len(), 500);
    assert_eq!(scan(&mut client, " COUNT 100").len(), 500);
    assert_eq!(scan(&mut client, " MATCH key:1?? COUNT 50").len(), 100);
    assert_eq!(scan(&mut client, " TYPE string").len(), 500);
    assert_eq!(scan(&mut client, " TYPE list").len(), 0);
    client.expect("SCAN x", "(error) ERR invalid cursor");
    client.expect("SCAN 0 COUNT 0", "(error) ERR syntax error");
    client.expect("SCAN 0 FOO 1", "(error) ERR syntax error");
    client.expect("KEYS key:7", r#"["key:7"]"#);
    assert_eq!(client.run("KEYS *").matches("key:").count(), 500);
}

#[test]
fn a_flush_is_seen_at_once_by_everybody_and_can_be_repeated() {
    let server = TestServer::start();
    let (mut client, mut other) = (server.client(), server.client());
    for round in 0..4 {
        for number in 0..300 {
            client.expect(&format!("SET {round}:{number} v EX 1000"), "OK");
        }
        client.expect(if round % 2 == 0 { "FLUSHDB" } else { "FLUSHALL ASYNC" }, "OK");
        other.expect("DBSIZE", "(integer) 0");
        other.expect(&format!("GET {round}:7"), "(nil)");
        other.expect("KEYS *", "[]");
    }
    client.expect("FLUSHDB NOW", "(error) ERR syntax error");
    eventually("what was flushed is deleted in the background", || {
        server.db.objects().iter().all(|object| object.keys == 0 || object.name == "keyspace")
    });
    eventually("objects that have been emptied are used again", || {
        let objects = server.db.objects().len();
        client.expect("FLUSHDB", "OK");
        server.db.objects().len() == objects
    });
}

#[test]
fn a_flush_survives_a_restart_and_the_emptying_goes_on() {
    let directory = tempfile::tempdir().unwrap();
    let server = TestServer::at(directory.path());
    let mut client = server.client();
    for number in 0..2000 {
        client.expect(&format!("SET {number} old"), "OK");
    }
    client.expect("FLUSHALL", "OK");
    client.expect("SET new 1", "OK");
    server.stop();
    let server = TestServer::at(directory.path());
    let mut client = server.client();
    client.expect("KEYS *", r#"["new"]"#);
    eventually("what was flushed before the restart is deleted", || {
        server
            .db
            .objects()
            .iter()
            .filter(|object| object.name.starts_with("strings"))
            .map(|object| object.keys)
            .sum::<u64>()
            == 1
    });
    client.expect("FLUSHALL", "OK");
    client.expect("DBSIZE", "(integer) 0");
    server.stop();
}
