//! Lifetimes, scans and flushes.

mod common;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use common::{TestServer, info_field};
use kiln::device::{Fault, FaultKind, OperationKind, SimulatedDevice};
use kiln_server::{Durability, Options};

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
fn the_time_at_which_a_key_expires_is_told() {
    let server = TestServer::start();
    let mut client = server.client();
    client.expect("EXPIRETIME k", "(integer) -2");
    client.expect("SET k v", "OK");
    client.expect("PEXPIRETIME k", "(integer) -1");
    client.expect("PEXPIREAT k 32503680000499", "(integer) 1");
    client.expect("EXPIRETIME k", "(integer) 32503680000");
    client.expect("PEXPIREAT k 32503680000500", "(integer) 1");
    client.expect("EXPIRETIME k", "(integer) 32503680001");
    client.expect("PEXPIRETIME k", "(integer) 32503680000500");
}

#[test]
fn keys_are_renamed_and_copied_with_their_lifetimes() {
    let server = TestServer::start();
    let mut client = server.client();
    client.expect("RENAME none k", "(error) ERR no such key");
    client.expect("RENAMENX none none", "(error) ERR no such key");
    client.expect("SET a 1 EX 100", "OK");
    client.expect("RENAME a a", "OK");
    client.expect("RENAMENX a a", "(integer) 0");
    client.expect("SET b 2", "OK");
    client.expect("RENAMENX a b", "(integer) 0");
    client.expect("RENAMENX a c", "(integer) 1");
    client.expect("RENAME c b", "OK");
    client.expect("MGET a b c", "[(nil), \"1\", (nil)]");
    client.expect("TTL b", "(integer) 100");
    client.expect("COPY none c", "(integer) 0");
    client.expect("COPY b c DB 0", "(integer) 1");
    client.expect("SET d 4", "OK");
    client.expect("COPY b d", "(integer) 0");
    client.expect("COPY b d REPLACE", "(integer) 1");
    client.expect("MGET b c d", "[\"1\", \"1\", \"1\"]");
    client.expect("TTL d", "(integer) 100");
    client.expect("COPY b b", "(error) ERR source and destination objects are the same");
    client.expect("COPY b c DB 1", "(error) ERR DB index is out of range");
    client.expect("COPY b c FOO", "(error) ERR syntax error");
    client.expect("MULTI", "OK");
    for command in ["SET x 1", "RENAME x y", "COPY y z", "RENAME x y", "MGET x y z", "TOUCH x y z"] {
        client.expect(command, "QUEUED");
    }
    let error = "(error) ERR no such key";
    client.expect("EXEC", &format!("[OK, OK, (integer) 1, {error}, [(nil), \"1\", \"1\"], (integer) 2]"));
}

#[test]
fn objects_are_described_as_redis_would_keep_them() {
    let server = TestServer::start();
    let mut client = server.client();
    client.expect("OBJECT ENCODING k", "(nil)");
    for (value, encoding) in
        [("-12", "int"), ("012", "embstr"), (&"x".repeat(44), "embstr"), (&"x".repeat(45), "raw")]
    {
        client.expect(&format!("SET k {value}"), "OK");
        client.expect("OBJECT ENCODING k", &format!("\"{encoding}\""));
    }
    client.expect("OBJECT REFCOUNT k", "(integer) 1");
    client.expect("OBJECT IDLETIME k", "(integer) 0");
    assert!(client.run("OBJECT FREQ k").starts_with("(error) ERR An LFU maxmemory policy is not selected"));
    assert!(client.run("OBJECT HELP").starts_with("[OBJECT <subcommand>"));
    client.expect("OBJECT ENCODING", "(error) ERR wrong number of arguments for 'object|encoding' command");
    client.expect("OBJECT FOO k", "(error) ERR unknown subcommand 'FOO'. Try OBJECT HELP.");
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
fn a_key_is_absent_once_its_time_has_come_and_then_deleted() {
    let server = TestServer::start();
    let mut client = server.client();
    client.expect("SET short v PX 300", "OK");
    client.expect("SET long v EX 1000", "OK");
    client.expect("SET renewed v PX 300", "OK");
    client.expect("SET renewed v", "OK");
    std::thread::sleep(Duration::from_millis(300));
    client.expect("GET short", "(nil)");
    client.expect("EXISTS short", "(integer) 0");
    client.expect("KEYS short", "[]");
    eventually("the key is deleted", || client.run("DBSIZE") == "(integer) 2");
    client.expect("GET renewed", "\"v\"");
    assert_eq!(info_field(&client.run("INFO stats"), "expired_keys"), "1");
    client.expect("SETNX short again", "(integer) 1");
}

#[test]
fn what_is_written_sets_keeps_or_ends_the_lifetime() {
    let server = TestServer::start();
    let mut client = server.client();
    for (step, ttl) in [
        ("SET k 1 EX 100", 100),
        ("SETEX k 150 1", 150),
        ("SET k 2 EX 200", 200),
        ("EXPIRE k 300", 300),
        ("GETEX k EX 400", 400),
        ("INCR k", 400),
        ("INCRBYFLOAT k 2", 400),
        ("APPEND k 0", 400),
        ("SET k 1 KEEPTTL", 400),
        ("SET k 1 NX", 400),
        ("GETEX k", 400),
    ] {
        client.run(step);
        client.expect("TTL k", &format!("(integer) {ttl}"));
    }
    for (step, ttl) in [
        ("SET k 1", -1),
        ("PERSIST k", -1),
        ("GETEX k PERSIST", -1),
        ("GETSET k 1", -1),
        ("MSET k 1 j 1", -1),
        ("DEL k", -2),
        ("GETDEL k", -2),
        ("EXPIRE k 0", -2),
        ("SET k 1 PXAT 1", -2),
        ("GETEX k EXAT 1", -2),
    ] {
        client.run("SET k 1 EX 100");
        client.run(step);
        client.expect("TTL k", &format!("(integer) {ttl}"));
    }
}

/// A server whose clock stands still until it is set, and whose engine does nothing by itself: what has expired stays stored.
fn timed() -> (SimulatedDevice, TestServer) {
    let disk = SimulatedDevice::new(1);
    disk.set_time_ms(1_000_000);
    let options = kiln::Options::new().background(false).segment_bytes(1 << 20).memory(4 << 20);
    let db = options.open_on(Arc::new(disk.clone())).unwrap();
    (disk, TestServer::over(db, Options::new().durability(Durability::Fast)))
}

#[test]
fn lifetimes_are_exact_and_one_time_holds_for_all_of_a_transaction() {
    let (disk, server) = timed();
    let mut client = server.client();
    client.expect("SET k v PX 10", "OK");
    client.expect("PTTL k", "(integer) 10");
    client.expect("PEXPIRE k 20 GT", "(integer) 1");
    disk.set_time_ms(1_000_019);
    client.expect("PTTL k", "(integer) 1");
    client.expect("TTL k", "(integer) 0");
    client.expect("EXISTS k k", "(integer) 2");
    for command in ["MULTI", "PTTL k", "PEXPIREAT k 1000018", "GET k", "SET j w PX 7", "PTTL j", "GETEX j"] {
        client.run(command);
    }
    client.expect("EXEC", r#"[(integer) 1, (integer) 1, (nil), OK, (integer) 7, "w"]"#);
    client.expect("SET k v PX 1", "OK");
    disk.set_time_ms(1_000_020);
    for (command, reply) in [
        ("GET k", "(nil)"),
        ("PTTL k", "(integer) -2"),
        ("TYPE k", "none"),
        ("STRLEN k", "(integer) 0"),
        ("DEL k", "(integer) 0"),
        ("EXPIRE k 10", "(integer) 0"),
        ("SET k w XX", "(nil)"),
        ("KEYS *", r#"["j"]"#),
        ("SCAN 0", r#"["0", ["j"]]"#),
        ("SET k w NX KEEPTTL", "OK"),
        ("PTTL k", "(integer) -1"),
    ] {
        client.expect(command, reply);
    }
}

/// It expired with the map's rows, unless it was written in a transaction, with an option, or for a session.
#[test]
fn a_key_that_is_set_has_no_lifetime_whatever_the_map_has() {
    let directory = tempfile::tempdir().unwrap();
    let db = common::database_options().open(directory.path()).unwrap();
    db.map_with_time_to_live("strings", Duration::from_secs(3600)).unwrap();
    let server = TestServer::over(db, Options::new().durability(Durability::Fast));
    let mut client = server.client();
    client.expect("SET plain v", "OK");
    for command in ["MULTI", "SET queued v"] {
        client.run(command);
    }
    client.expect("EXEC", "[OK]");
    client.expect("KILN SESSION s", "(integer) 0");
    client.expect("SET numbered v", "OK");
    for key in ["plain", "queued", "numbered"] {
        client.expect(&format!("TTL {key}"), "(integer) -1");
    }
}

#[test]
fn a_watch_holds_until_the_key_expires() {
    let (disk, server) = timed();
    let (mut client, mut other) = (server.client(), server.client());
    for (begin_ms, wait_ms, reply) in [(2_000_000, 9, "[OK]"), (3_000_000, 10, "(nil)")] {
        disk.set_time_ms(begin_ms);
        client.expect("SET k 1 PX 10", "OK");
        client.expect("WATCH none k", "OK");
        client.expect("MULTI", "OK");
        client.expect("SET other 2", "QUEUED");
        disk.set_time_ms(begin_ms + wait_ms);
        client.expect("EXEC", reply);
    }
    // It was gone when the watch began, and still is.
    client.expect("WATCH k", "OK");
    other.expect("GET k", "(nil)");
    client.expect("MULTI", "OK");
    client.expect("SET k 2", "QUEUED");
    client.expect("EXEC", "[OK]");
}

/// The engine deletes what has expired in a map that was flushed, and until then the map must not be current again.
#[test]
fn after_a_flush_no_key_is_counted_that_has_expired_before() {
    let (disk, server) = timed();
    let mut client = server.client();
    for round in 0..4 {
        disk.set_time_ms(3_000_000 + round);
        client.expect("SET gone v PX 1", "OK");
        disk.set_time_ms(3_000_001 + round);
        client.expect("FLUSHALL", "OK");
        client.expect("DBSIZE", "(integer) 0");
        // Time for who empties it.
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Nothing told of it: keys that have expired stayed stored, and nobody knew why.
#[test]
fn info_tells_why_what_has_expired_cannot_be_deleted() {
    let (disk, server) = timed();
    let mut client = server.client();
    let failure = |client: &mut common::Client| info_field(&client.run("INFO persistence"), "expiry_failure");
    client.expect(&format!("SET key {} PX 1000", "~".repeat(200)), "OK");
    for key in 0..60 {
        client.send(&[b"SET", format!("key{key}").as_bytes(), &vec![b'v'; 200_000]]);
        assert_eq!(client.reply(), "OK");
    }
    server.db.persist().unwrap();
    let row = disk.bytes("segment-00000000").windows(200).position(|bytes| bytes == [b'~'; 200]).unwrap();
    disk.flip_bit("segment-00000000", 8 * row as u64);
    disk.set_time_ms(2_000_000);
    assert_eq!(failure(&mut client), "none");
    server.db.persist().unwrap();
    let told = failure(&mut client);
    assert!(told.contains("segment-00000000"), "{told}");
}

/// Has a server begin, and end.
fn bind(db: &kiln::Kiln) -> std::io::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    runtime.block_on(kiln_server::Server::bind(db.clone(), "127.0.0.1:0", Options::new())).map(drop)
}

/// It was emptied, as those are that a flush leaves behind.
#[test]
fn a_map_that_no_flush_has_left_behind_is_refused_and_keeps_its_keys() {
    let directory = tempfile::tempdir().unwrap();
    let db = common::database_options().open(directory.path()).unwrap();
    let (_empty, map) = (db.map("strings.1").unwrap(), db.map("strings.2").unwrap());
    db.put(&db.map("strings.02").unwrap(), "key", "of another name").unwrap().forget();
    bind(&db).unwrap();
    db.put(&map, "key", "value").unwrap().safe().unwrap();
    let refused = bind(&db).unwrap_err().to_string();
    assert!(refused.contains("\"strings.2\" has 1 keys") && refused.contains("export it"), "{refused}");
    db.delete(&map, "key").unwrap().safe().unwrap();
    let server = TestServer::over(db, Options::new());
    server.client().expect("FLUSHALL", "OK");
    server.client().expect("SET key value", "OK");
    server.stop();
    bind(&common::database_options().open(directory.path()).unwrap()).unwrap();
}

/// Maps were looked for up to the first that was not there, and one behind it was made current as it was.
#[test]
fn a_flush_makes_no_map_current_that_has_keys() {
    let directory = tempfile::tempdir().unwrap();
    let db = common::database_options().open(directory.path()).unwrap();
    db.put(&db.table("keyspace").unwrap(), "current", "0").unwrap().forget();
    drop(db.map("strings.1").unwrap());
    let flushed = db.map("strings.3").unwrap();
    db.put(&flushed, "flushed", "value").unwrap().forget();
    let server = TestServer::over(db.clone(), Options::new());
    let mut client = server.client();
    let flush = |client: &mut common::Client, count: usize| {
        client.expect("MULTI", "OK");
        (0..count).for_each(|_| client.expect("FLUSHALL", "QUEUED"));
        client.expect("EXEC", &format!("[{}]", vec!["OK"; count].join(", ")));
    };
    flush(&mut client, 3);
    client.expect("KEYS *", "[]");
    eventually("it is emptied", || flushed.len_estimate() == 0);
    // Of one that is not the server's, made while that runs.
    for index in 5..12 {
        db.put(&db.map(&format!("strings.{index}")).unwrap(), "made", "since").unwrap().forget();
    }
    flush(&mut client, 6);
    client.expect("KEYS *", "[]");
}

/// A spare map could not be made, which nobody needs but who flushes.
#[test]
fn a_server_begins_where_nothing_is_durable_any_more_and_shows_what_is_there() {
    let (disk, db) = common::simulated(3);
    drop(db.table("keyspace").unwrap());
    let map = db.map("strings").unwrap();
    db.put(&map, "key", "value").unwrap().safe().unwrap();
    disk.inject(Fault { operation: OperationKind::Sync, nth: 1, kind: FaultKind::EIO, sticky: true });
    assert!(db.put(&map, "lost", "value").unwrap().safe().is_err());
    let server = TestServer::over(db, Options::new());
    let mut client = server.client();
    client.expect("GET key", "\"value\"");
    let refusal = client.run("FLUSHALL");
    assert!(refusal.starts_with("(error) LOST "), "{refusal}");
}

#[test]
fn lifetimes_as_the_first_servers_kept_them_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let db = common::database_options().open(directory.path()).unwrap();
    let lifetimes = db.map("lifetimes.3").unwrap();
    bind(&db).unwrap();
    db.put(&lifetimes, "key", [0; 16]).unwrap().safe().unwrap();
    let refused = bind(&db).unwrap_err().to_string();
    assert!(refused.contains("lifetimes.3") && refused.contains("older server"), "{refused}");
    db.delete(&lifetimes, "key").unwrap().safe().unwrap();
    bind(&db).unwrap();
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
            // As a client does that keeps it in a double.
            assert!(cursor.parse::<u64>().unwrap() < 1 << 53, "{cursor}");
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

/// One of 16 MiB took minutes for a single key, and everybody behind a flush waited for it.
#[test]
fn a_long_pattern_is_refused() {
    let server = TestServer::start();
    let mut client = server.client();
    client.expect("SET key v", "OK");
    let (long, longest) = (format!("*[{}", "x".repeat(1023)), "*".repeat(1024));
    for command in ["KEYS ", "SCAN 0 MATCH ", "CONFIG GET port "] {
        client.expect(&format!("{command}{long}"), "(error) ERR the pattern is longer than 1 KiB");
    }
    client.expect(&format!("KEYS {longest}"), r#"["key"]"#);
}

/// As many keys as it was asked for, up to 1,024, were compared, each as long as 64 KiB with as much as 1 KiB.
#[test]
fn a_scan_of_long_keys_for_a_long_pattern_comes_back_early_and_misses_none() {
    const KEYS: usize = 64;
    let server = TestServer::start();
    let mut client = server.client();
    for index in 0..KEYS {
        let key = format!("{}{index:02}", "k".repeat(64 * 1024 - 2));
        client.send(&[b"SET", key.as_bytes(), b"v"]);
        assert_eq!(client.reply(), "OK");
    }
    let pattern = format!("{}*1?", "k".repeat(1021));
    let (mut cursor, mut calls, mut found) = ("0".to_owned(), 0, 0);
    loop {
        let reply = client.run(&format!("SCAN {cursor} MATCH {pattern} COUNT 1000"));
        calls += 1;
        found += reply.matches("kk1").count();
        cursor = reply.split('"').nth(1).unwrap().to_owned();
        if cursor == "0" {
            break;
        }
    }
    assert_eq!(found, 10);
    assert!((3..=KEYS).contains(&calls), "{calls} calls");
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

/// It is a write, of which there was no room, so that nobody could make any in this way.
#[test]
fn a_full_disk_has_room_again_once_all_keys_are_flushed() {
    let (disk, db) = common::simulated(2);
    let server = TestServer::over(db, Options::new().durability(Durability::Fast));
    let mut client = server.client();
    // For several segments: one that the log begins and ends in stays. How many are prepared by now is a matter of luck.
    disk.set_capacity(Some(4 << 20));
    for bytes in [100_000, 1_000, 8] {
        let value = "x".repeat(bytes);
        let mut replies = (0..).map(|number| client.run(&format!("SET {bytes}:{number} {value}")));
        let refusal = replies.find(|reply| reply != "OK").unwrap();
        assert!(refusal.starts_with("(error) NOSPACE "), "{refusal}");
    }
    client.expect("FLUSHALL", "OK");
    client.expect("WAITAOF 1 0 0", "[(integer) 1, (integer) 0]");
    client.expect("DBSIZE", "(integer) 0");
    eventually("there is room again", || client.run("SET key value") == "OK");
}

/// Each had objects of its own: what one had flushed the other still wrote to, and that was emptied.
#[test]
fn servers_of_one_database_show_the_same_keys_whoever_flushes() {
    let server = TestServer::start();
    let second = TestServer::over(server.db.clone(), Options::new());
    let (mut client, mut other) = (server.client(), second.client());
    client.expect("SET before 1", "OK");
    other.expect("GET before", "\"1\"");
    client.expect("FLUSHALL", "OK");
    other.expect("GET before", "(nil)");
    other.expect("SET after 2", "OK");
    client.expect("GET after", "\"2\"");
    other.expect("FLUSHALL", "OK");
    client.expect("DBSIZE", "(integer) 0");
    client.expect("SET last 3", "OK");
    other.expect("KEYS *", "[\"last\"]");
    drop((other, second));
    client.expect("FLUSHALL", "OK");
    client.expect("SET last 4", "OK");
    let third = TestServer::over(server.db.clone(), Options::new());
    third.client().expect("GET last", "\"4\"");
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
