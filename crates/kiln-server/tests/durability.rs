//! Fast and safe connections, receipts, waits and sessions; what is acknowledged as durable is.

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use common::{TestServer, database_options, info_field, integer, lazy_server, simulated};
use kiln::device::{Fault, FaultKind, OperationKind};
use kiln::{Kiln, Level};
use kiln_server::{Durability, Options};

#[test]
fn a_safe_write_is_durable_when_it_is_answered_and_a_fast_one_need_not_be() {
    let directory = tempfile::tempdir().unwrap();
    let server = lazy_server(directory.path(), Durability::Safe);
    let mut client = server.client();
    client.expect("KILN DURABILITY", "\"safe\"");
    for command in ["SET k 1", "INCR k", "SETNX other 1", "SETNX other 2", "DEL k", "FLUSHALL"] {
        client.run(command);
        let version = integer(&client.run("KILN RECEIPT"));
        let horizon = server.db.horizon(Level::LOCAL).number();
        assert!(horizon >= version, "{command}: version {version} was acknowledged at horizon {horizon}");
    }
    client.expect("KILN DURABILITY fast", "OK");
    client.expect("KILN DURABILITY", "\"fast\"");
    client.expect("SET k 1", "OK");
    let version = integer(&client.run("KILN RECEIPT"));
    assert!(server.db.horizon(Level::LOCAL).number() < version);
    assert_ne!(info_field(&client.run("INFO durability"), "lag_bytes"), "0");
}

/// What fetched their values took longer than a batch may take; none of them was run, and all of it began again.
#[test]
fn a_pipeline_is_answered_however_long_the_disk_takes() {
    const KEYS: usize = 60;
    let (disk, db) = common::simulated(1);
    let server = TestServer::over(db, Options::new().durability(Durability::Fast));
    let mut client = server.client();
    let value = vec![b'v'; 200_000];
    for key in 0..KEYS {
        client.send(&[b"SET", format!("key{key}").as_bytes(), &value]);
        assert_eq!(client.reply(), "OK");
    }
    server.db.persist().unwrap();
    let kind = FaultKind::Delay(Duration::from_millis(60));
    disk.inject(Fault { operation: OperationKind::Read, nth: 1, kind, sticky: true });
    let batch: Vec<_> =
        (0..8).map(|key| common::encode(&common::words(&format!("STRLEN key{key}")))).collect();
    client.send_bytes(&batch.concat());
    batch.iter().for_each(|_| assert_eq!(client.reply(), "(integer) 200000"));
    disk.clear_faults();
}

/// Each took one of the runtime's threads until all before it were done, and with 512 of them nobody was served any more.
#[test]
fn a_database_is_compacted_for_one_client_at_a_time() {
    let (disk, db) = common::simulated(1);
    let server = TestServer::over(db, Options::new().durability(Durability::Fast));
    server.client().expect("SET key value", "OK");
    let kind = FaultKind::Delay(Duration::from_millis(500));
    disk.inject(Fault { operation: OperationKind::Sync, nth: 1, kind, sticky: true });
    let mut clients: Vec<_> = (0..4).map(|_| server.client()).collect();
    clients.iter_mut().for_each(|client| client.send(&[b"KILN", b"COMPACT"]));
    let replies: Vec<_> = clients.iter_mut().map(common::Client::reply).collect();
    disk.clear_faults();
    let busy =
        replies.iter().filter(|reply| *reply == "(error) BUSY the database is being compacted").count();
    let done = replies.iter().filter(|reply| reply.starts_with("[(integer)")).count();
    assert!(busy > 0 && done > 0 && busy + done == 4, "{replies:?}");
    assert!(server.client().run("KILN COMPACT").starts_with("[(integer)"));
}

/// Each of the server's threads waited with somebody's commit before it was known that they would, and nobody was left to answer.
#[test]
fn others_are_served_while_all_who_commit_wait_for_the_disk() {
    let (disk, db) = common::simulated(1);
    let server = TestServer::over(db, Options::new().durability(Durability::Fast));
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                let mut client = server.client();
                let batch = common::encode(&common::words("SET key value")).repeat(20);
                while !stop.load(Ordering::Relaxed) {
                    client.send_bytes(&batch);
                    (0..20).for_each(|_| drop(client.reply()));
                }
            });
        }
        let outcome = scope.spawn(|| {
            let mut other = server.client();
            for _ in 0..3 {
                let kind = FaultKind::Delay(Duration::from_secs(2));
                disk.inject(Fault { operation: OperationKind::Sync, nth: 1, kind, sticky: true });
                let is_behind = |age: Duration| age > Duration::from_millis(200);
                while !server.db.statistics().oldest_unhardened.is_some_and(is_behind) {
                    std::thread::yield_now();
                }
                let hardenings = server.db.statistics().hardenings;
                (0..5).for_each(|_| other.expect("PING", "PONG"));
                assert_eq!(
                    server.db.statistics().hardenings,
                    hardenings,
                    "it was answered when the disk was back"
                );
                disk.clear_faults();
                while server.db.statistics().hardenings == hardenings {
                    std::thread::yield_now();
                }
            }
        });
        let outcome = outcome.join();
        stop.store(true, Ordering::Relaxed);
        disk.clear_faults();
        outcome.unwrap();
    });
}

/// It was answered at once, though it tells of what may be lost.
#[test]
fn c6_a_safe_write_that_is_refused_for_what_it_saw_is_answered_when_that_is_durable() {
    let directory = tempfile::tempdir().unwrap();
    let server = lazy_server(directory.path(), Durability::Fast);
    let (mut fast, mut safe) = (server.client(), server.client());
    safe.expect("KILN DURABILITY safe", "OK");
    let put = |client: &mut common::Client, value: &str| {
        client.expect(&format!("SET k {value}"), "OK");
        let version = integer(&client.run("KILN RECEIPT"));
        assert!(server.db.horizon(Level::LOCAL).number() < version);
        version
    };
    let is_durable = |version| server.db.horizon(Level::LOCAL).number() >= version;
    let version = put(&mut fast, "text");
    safe.expect("INCR k", "(error) ERR value is not an integer or out of range");
    assert!(is_durable(version));
    safe.expect("WATCH k", "OK");
    let version = put(&mut fast, "other");
    safe.expect("MULTI", "OK");
    safe.expect("SET k mine", "QUEUED");
    safe.expect("EXEC", "(nil)");
    assert!(is_durable(version));
}

/// What it had taken away came back with a power loss, after it was told that it was not there.
#[test]
fn c6_a_server_that_begins_later_knows_of_a_flush_that_is_not_durable() {
    let directory = tempfile::tempdir().unwrap();
    let first = lazy_server(directory.path(), Durability::Fast);
    let (db, mut client) = (first.db.clone(), first.client());
    client.expect("SET k v", "OK");
    db.persist().unwrap();
    client.expect("FLUSHALL", "OK");
    let version = integer(&client.run("KILN RECEIPT"));
    drop((client, first));
    let second = TestServer::over(db.clone(), Options::new().durability(Durability::Safe));
    let mut client = second.client();
    assert!(db.horizon(Level::LOCAL).number() < version);
    client.expect("DEL k", "(integer) 0");
    assert!(db.horizon(Level::LOCAL).number() >= version);
}

/// Whoever asked wrongly was answered when all that anybody had written was durable.
#[test]
fn who_asks_wrongly_is_told_so_without_the_disk() {
    let directory = tempfile::tempdir().unwrap();
    let server = lazy_server(directory.path(), Durability::Fast);
    let (mut fast, mut safe) = (server.client(), server.client());
    safe.expect("KILN DURABILITY safe", "OK");
    fast.expect("SET k 1", "OK");
    let version = integer(&fast.run("KILN RECEIPT"));
    for (command, error) in [
        ("SET k 2 FOO", "syntax error"),
        ("SET k 2 EX 0", "invalid expire time in 'set' command"),
        ("SETEX k x 2", "value is not an integer or out of range"),
        ("INCRBY k x", "value is not an integer or out of range"),
        ("EXPIRE k 1 FOO", "Unsupported option FOO"),
        ("MSET k 2 l", "wrong number of arguments for 'mset' command"),
        ("FOO", "unknown command 'FOO', with args beginning with: "),
        ("FLUSHALL FOO", "syntax error"),
    ] {
        safe.expect(command, &format!("(error) ERR {error}"));
        let horizon = server.db.horizon(Level::LOCAL).number();
        assert!(horizon < version, "{command} waited for the disk");
    }
    // What that says of the key may be lost.
    safe.expect("EXPIRE k 100 XX", "(integer) 0");
    assert!(server.db.horizon(Level::LOCAL).number() >= version);
}

/// A map that has just become the current one has no records, so that an answer out of it depended on nothing that anybody had
/// written: what was told to be gone came back after a power loss.
#[test]
fn what_is_absent_because_of_a_flush_is_told_to_a_safe_connection_when_the_flush_is_durable() {
    let directory = tempfile::tempdir().unwrap();
    let server = lazy_server(directory.path(), Durability::Fast);
    let (mut fast, mut safe) = (server.client(), server.client());
    safe.expect("KILN DURABILITY safe", "OK");
    let flush = |client: &mut common::Client, in_transaction: bool| {
        client.expect("SET k 1", "OK");
        client.expect("WAITAOF 1 0 0", "[(integer) 1, (integer) 0]");
        if in_transaction {
            client.expect("MULTI", "OK");
            client.expect("FLUSHALL", "QUEUED");
            client.expect("EXEC", "[OK]");
        } else {
            client.expect("FLUSHALL", "OK");
        }
        let version = integer(&client.run("KILN RECEIPT"));
        assert!(server.db.horizon(Level::LOCAL).number() < version);
        version
    };
    let version = flush(&mut fast, false);
    safe.expect("DEL k", "(integer) 0");
    assert!(server.db.horizon(Level::LOCAL).number() >= version);
    let version = flush(&mut fast, true);
    safe.expect("MULTI", "OK");
    safe.expect("DEL k", "QUEUED");
    safe.expect("EXEC", "[(integer) 0]");
    assert!(server.db.horizon(Level::LOCAL).number() >= version);
}

#[test]
fn safe_transactions_and_pipelines_wait_once_and_answer_in_order() {
    let directory = tempfile::tempdir().unwrap();
    let server = lazy_server(directory.path(), Durability::Safe);
    let mut client = server.client();
    let before = server.db.statistics().hardenings;
    let mut batch = Vec::new();
    for number in 0..500 {
        batch.extend(common::encode(&[b"SET", format!("k{number}").as_bytes(), b"v"]));
        batch.extend(common::encode(&[b"GET", format!("k{number}").as_bytes()]));
    }
    client.send_bytes(&batch);
    for _ in 0..500 {
        assert_eq!(client.reply(), "OK");
        assert_eq!(client.reply(), "\"v\"");
    }
    let hardenings = server.db.statistics().hardenings - before;
    assert!(hardenings < 50, "{hardenings} hardenings for one pipeline");
    client.expect("MULTI", "OK");
    client.expect("SET a 1", "QUEUED");
    client.expect("EXEC", "[OK]");
    let version = integer(&client.run("KILN RECEIPT"));
    assert!(server.db.horizon(Level::LOCAL).number() >= version);
}

#[test]
fn waits_end_when_this_connections_writes_are_durable() {
    let directory = tempfile::tempdir().unwrap();
    let server = lazy_server(directory.path(), Durability::Fast);
    let mut client = server.client();
    client.expect("KILN RECEIPT", "(nil)");
    client.expect("WAITAOF 1 0 0", "[(integer) 1, (integer) 0]");
    // To ask is not to have it hardened.
    for _ in 0..100 {
        client.expect("SET k 1", "OK");
        client.expect("WAITAOF 0 0 0", "[(integer) 0, (integer) 0]");
    }
    let version = integer(&client.run("KILN RECEIPT"));
    client.expect("WAITAOF 1 0 0", "[(integer) 1, (integer) 0]");
    assert!(integer(&client.run("KILN HORIZON")) >= version);
    client.expect("SET k 2", "OK");
    let version = integer(&client.run("KILN RECEIPT"));
    client.expect(&format!("KILN WAIT {version} 10000"), "(integer) 1");
    client.expect(&format!("KILN WAIT {version} 0"), "(integer) 1");
    assert!(integer(&client.run("KILN HORIZON")) >= version);
    client.expect("WAITAOF 1 3 1000", "[(integer) 1, (integer) 0]");
    client.expect("WAIT 0 0", "(integer) 0");
    client.expect("WAIT 1 100", "(integer) 0");
}

#[test]
fn waits_refuse_what_makes_no_sense() {
    let server = TestServer::start();
    let mut client = server.client();
    client.expect("WAITAOF 2 0 0", "(error) ERR value is out of range, must be between 0 and 1");
    client.expect("WAITAOF 1 -1 0", "(error) ERR value is out of range, must be positive");
    client.expect("WAITAOF 1 0 -1", "(error) ERR timeout is negative");
    client.expect("WAITAOF 1 0 x", "(error) ERR timeout is not an integer or out of range");
    client.expect("KILN WAIT 1", "(error) ERR wrong number of arguments for 'kiln|wait' command");
    assert!(client.run("KILN WAIT 99999999 0").starts_with("(error) ERR version 99999999 has not begun"));
    client.expect("KILN DURABILITY slow", "(error) ERR the durability of a connection is 'fast' or 'safe'");
    client.expect("KILN FOO", "(error) ERR unknown subcommand 'FOO'. Try KILN HELP.");
    client.expect("KILN", "(error) ERR wrong number of arguments for 'kiln' command");
    assert!(client.run("KILN HELP").contains("SESSION"));
}

#[test]
fn pipelined_commands_after_a_wait_are_answered_after_it() {
    let server = TestServer::start();
    let mut client = server.client();
    let mut batch = Vec::new();
    for command in ["SET a 1", "WAITAOF 1 0 0", "INCR a", "WAITAOF 1 0 0", "GET a"] {
        batch.extend(common::encode(&common::words(command)));
    }
    client.send_bytes(&batch);
    let durable = "[(integer) 1, (integer) 0]";
    for reply in ["OK", durable, "(integer) 2", durable, "\"2\""] {
        assert_eq!(client.reply(), reply);
    }
}

#[test]
fn concurrent_safe_writers_share_hardenings() {
    let directory = tempfile::tempdir().unwrap();
    let server = lazy_server(directory.path(), Durability::Safe);
    let before = server.db.statistics().hardenings;
    std::thread::scope(|scope| {
        for writer in 0..32 {
            let server = &server;
            scope.spawn(move || {
                let mut client = server.client();
                for number in 0..20 {
                    client.expect(&format!("SET {writer}:{number} v"), "OK");
                }
            });
        }
    });
    let hardenings = server.db.statistics().hardenings - before;
    assert!(hardenings < 640 / 2, "{hardenings} hardenings for 640 safe writes of 32 clients");
}

#[test]
fn a_session_counts_its_writes_and_goes_on_after_a_restart() {
    let directory = tempfile::tempdir().unwrap();
    let server = TestServer::at(directory.path());
    let mut client = server.client();
    client.expect("KILN SERIAL", "(error) ERR this connection has no session; name one with KILN SESSION id");
    client.expect("KILN SESSION teller-7", "(integer) 0");
    for (serial, command) in [
        (1, "SET a 1"),
        (2, "INCR a"),
        (3, "SETNX a 5"),
        (3, "GET a"),
        (3, "INCR a x"),
        (4, "SET text abc"),
        (4, "INCR text"),
        (5, "MSET b 1 c 2"),
    ] {
        client.run(command);
        client.expect("KILN SERIAL", &format!("(integer) {serial}"));
    }
    client.expect("MULTI", "OK");
    client.expect("SET d 1", "QUEUED");
    client.expect("SET e 1", "QUEUED");
    client.expect("EXEC", "[OK, OK]");
    client.expect("KILN SERIAL", "(integer) 6");
    let open = server.client().run("KILN SESSION teller-7");
    assert!(open.starts_with("(error) LOCKED session") && open.contains("open"), "{open}");
    client.expect("WAITAOF 1 0 0", "[(integer) 1, (integer) 0]");
    server.stop();

    let server = TestServer::at(directory.path());
    let mut client = server.client();
    client.expect("KILN SESSION teller-7", "(integer) 6");
    client.expect("INCR a", "(integer) 3");
    client.expect("KILN SERIAL", "(integer) 7");
    client.expect("KILN SESSION teller-7", "(integer) 7");
    client.expect("KILN SESSION other", "(integer) 0");
    server.stop();
}

#[test]
fn an_exec_that_does_not_run_takes_no_serial() {
    let server = TestServer::start();
    let mut client = server.client();
    client.expect("KILN SESSION s", "(integer) 0");
    client.expect("WATCH k", "OK");
    server.client().expect("SET k 1", "OK");
    client.expect("MULTI", "OK");
    client.expect("SET k 2", "QUEUED");
    client.expect("EXEC", "(nil)");
    client.expect("KILN SERIAL", "(integer) 0");
}

#[test]
fn a_session_is_free_again_when_its_connection_ends() {
    let server = TestServer::start();
    let mut client = server.client();
    client.expect("KILN SESSION s", "(integer) 0");
    client.expect("SET a 1", "OK");
    drop(client);
    let start = Instant::now();
    let mut client = server.client();
    while client.run("KILN SESSION s") != "(integer) 1" {
        assert!(start.elapsed() < Duration::from_secs(10), "the session is still open");
    }
}

#[test]
fn everything_is_there_after_an_orderly_restart() {
    let directory = tempfile::tempdir().unwrap();
    let server = lazy_server(directory.path(), Durability::Fast);
    let mut client = server.client();
    client.expect("SET plain 1", "OK");
    client.expect("SET short 1 EX 1000", "OK");
    server.stop();
    let server = lazy_server(directory.path(), Durability::Fast);
    let mut client = server.client();
    client.expect("MGET plain short", r#"["1", "1"]"#);
    assert!(integer(&client.run("TTL short")) > 990);
    assert_eq!(info_field(&client.run("INFO durability"), "recovered_clean"), "1");
    server.stop();
}

#[test]
fn writes_that_the_disk_loses_are_answered_as_lost_and_never_as_done() {
    let (disk, db) = simulated(1);
    let server = TestServer::over(db, Options::new());
    let mut client = server.client();
    client.expect("SET a 1", "OK");
    disk.inject(Fault { operation: OperationKind::Sync, nth: 1, kind: FaultKind::EIO, sticky: true });
    let mut batch = Vec::new();
    for command in ["GET a", "SET a 2", "ECHO x", "INCR n", "ECHO y"] {
        batch.extend(common::encode(&common::words(command)));
    }
    client.send_bytes(&batch);
    assert_eq!(client.reply(), "\"1\"");
    assert!(client.reply().starts_with("(error) LOST "));
    assert_eq!(client.reply(), "\"x\"");
    assert!(client.reply().starts_with("(error) LOST "));
    assert_eq!(client.reply(), "\"y\"");
    for command in ["SET b 1", "WAITAOF 1 0 0", "WAITAOF 0 0 0", "KILN WAIT 1000000 0"] {
        assert!(client.run(command).starts_with("(error) "), "{command}");
    }
    let mut fast = server.client();
    fast.expect("KILN DURABILITY fast", "OK");
    assert!(fast.run("SET b 1").starts_with("(error) LOST "));
    fast.expect("EXISTS b", "(integer) 0");
    assert_ne!(info_field(&fast.run("INFO durability"), "failure"), "none");
}

#[test]
fn a_full_disk_refuses_writes_and_loses_nothing() {
    let (disk, db) = simulated(2);
    let server = TestServer::over(db, Options::new().durability(Durability::Fast));
    let mut client = server.client();
    client.expect("SET first 1", "OK");
    client.expect("WAITAOF 1 0 0", "[(integer) 1, (integer) 0]");
    disk.set_capacity(Some(disk.used_bytes()));
    let value = "x".repeat(100_000);
    let refusal =
        (0..1000).map(|number| client.run(&format!("SET k{number} {value}"))).find(|reply| reply != "OK");
    let refusal = refusal.expect("the disk must become full");
    assert!(refusal.starts_with("(error) NOSPACE "), "{refusal}");
    client.expect("GET first", "\"1\"");
    disk.set_capacity(None);
    client.expect("SET first 2", "OK");
    client.expect("WAITAOF 1 0 0", "[(integer) 1, (integer) 0]");
}

#[test]
fn whatever_was_acknowledged_as_safe_is_there_after_a_power_loss() {
    for seed in 0..12 {
        let (disk, db) = simulated(seed);
        let server = TestServer::over(db, Options::new());
        disk.crash_after(disk.steps() + 5 + 7 * seed);
        let mut acknowledged = 0;
        let mut client = server.client();
        loop {
            let reply = client.run("INCR n");
            match reply.strip_prefix("(integer) ") {
                Some(number) => acknowledged = number.parse().unwrap(),
                None => break assert!(reply.starts_with("(error) "), "{reply}"),
            }
        }
        drop(server);
        let db = database_options().open_on(Arc::new(disk.after_crash_seeded(seed))).unwrap();
        let strings = db.map("strings").unwrap();
        let found = db
            .get(&strings, "n")
            .unwrap()
            .map_or(0, |text| String::from_utf8(text).unwrap().parse().unwrap());
        assert!(found >= acknowledged, "seed {seed}: {found} of {acknowledged}");
    }
}

#[test]
fn a_backup_is_made_where_the_server_keeps_them_and_nowhere_else() {
    let directory = tempfile::tempdir().unwrap();
    let backups = directory.path().join("backups");
    std::fs::create_dir(&backups).unwrap();
    let db = database_options().open(directory.path().join("db")).unwrap();
    let server = TestServer::over(db, Options::new().backups(&backups));
    let mut client = server.client();
    client.expect("SET k before", "OK");
    let version = integer(&client.run("KILN RECEIPT"));
    let horizon = integer(&client.run("KILN BACKUP monday"));
    assert!(horizon >= version);
    client.expect("SET k after", "OK");
    for name in ["../elsewhere", "a/b", "/tmp", "..", ".", ".hidden"] {
        let reply = client.run(&format!("KILN BACKUP {name}"));
        assert!(reply.contains("a backup's name"), "{name}: {reply}");
    }
    assert!(client.run("KILN BACKUP monday").contains("empty directory"));
    let copy = Kiln::open(backups.join("monday")).unwrap();
    assert_eq!(copy.get(&copy.map("strings").unwrap(), "k").unwrap().as_deref(), Some(&b"before"[..]));
}

#[test]
fn the_database_is_compacted_while_it_is_served() {
    let directory = tempfile::tempdir().unwrap();
    let server = lazy_server(directory.path(), Durability::Fast);
    let mut client = server.client();
    client.expect("SET k value", "OK");
    let compacted = client.run("KILN COMPACT");
    assert!(compacted.contains(|digit: char| digit.is_ascii_digit()), "{compacted}");
    client.expect("GET k", "\"value\"");
    assert!(client.run("KILN COMPACT now").contains("ERR"));
}

#[test]
fn a_server_without_a_directory_for_backups_makes_none() {
    let directory = tempfile::tempdir().unwrap();
    let server = lazy_server(directory.path(), Durability::Safe);
    assert!(server.client().run("KILN BACKUP monday").contains("--backups"));
}

/// The newest serial number was told, which a power loss could take back after the client had forgotten what it stands for.
#[test]
fn c7_whoever_names_a_session_is_told_no_serial_number_that_is_not_durable() {
    let directory = tempfile::tempdir().unwrap();
    let server = lazy_server(directory.path(), Durability::Fast);
    let mut client = server.client();
    client.expect("KILN SESSION s", "(integer) 0");
    client.expect("SET a 1", "OK");
    let version = integer(&client.run("KILN RECEIPT"));
    assert!(server.db.horizon(Level::LOCAL).number() < version);
    client.expect("KILN SESSION s", "(integer) 1");
    assert!(server.db.horizon(Level::LOCAL).number() >= version);
    client.expect("SET a 2", "OK");
    let version = integer(&client.run("KILN RECEIPT"));
    drop(client);
    let (start, mut client) = (Instant::now(), server.client());
    while client.run("KILN SESSION s") != "(integer) 2" {
        assert!(start.elapsed() < Duration::from_secs(10), "the session is still open");
    }
    assert!(server.db.horizon(Level::LOCAL).number() >= version);
}

#[test]
fn a_session_that_cannot_be_had_leaves_the_connection_its_own() {
    let server = TestServer::start();
    let mut other = server.client();
    other.expect("KILN SESSION taken", "(integer) 0");
    let mut client = server.client();
    client.expect("KILN SESSION mine", "(integer) 0");
    assert!(client.run("KILN SESSION taken").starts_with("(error) LOCKED "));
    client.expect("SET a 1", "OK");
    client.expect("KILN SERIAL", "(integer) 1");
}

/// `WAITAOF` said that nothing was at risk.
#[test]
fn c5_what_was_written_before_a_reset_is_still_waited_for() {
    let directory = tempfile::tempdir().unwrap();
    let server = lazy_server(directory.path(), Durability::Fast);
    let mut client = server.client();
    client.expect("SET k 1", "OK");
    let version = integer(&client.run("KILN RECEIPT"));
    client.expect("RESET", "RESET");
    client.expect("WAITAOF 0 0 0", "[(integer) 0, (integer) 0]");
    client.expect("WAITAOF 1 0 0", "[(integer) 1, (integer) 0]");
    assert!(server.db.horizon(Level::LOCAL).number() >= version);
}

/// All writes of a pipeline were answered as lost if the last one was: who then did an `INCR` again did it twice.
#[test]
fn c5_of_a_pipeline_only_what_is_lost_is_answered_as_lost() {
    let replies_with = |nth: u64| {
        let (disk, db) = simulated(nth);
        let server = TestServer::over(db, Options::new());
        let mut client = server.client();
        client.expect("SET before 1", "OK");
        disk.inject(Fault { operation: OperationKind::Sync, nth, kind: FaultKind::EIO, sticky: true });
        let commands = ["SET a 1", "KILN SNAPSHOT CREATE s", "SET b 1"];
        client.send_bytes(&commands.map(|command| common::encode(&common::words(command))).concat());
        let replies = commands.map(|_| client.reply());
        let horizon = server.db.horizon(Level::LOCAL).number();
        if let Some(version) = replies[1].strip_prefix("(integer) ") {
            assert!(horizon >= version.parse().unwrap());
        }
        replies.map(|reply| reply.split(' ').take(2).collect::<Vec<_>>().join(" "))
    };
    // The database's keeper makes things durable, too, when it likes: which of the syncs is the last write's own differs from round to round.
    let is_split = |replies: &[String; 3]| replies[0] == "OK" && replies[2] == "(error) LOST";
    for round in 0.. {
        let told: Vec<_> = (1..8).map(replies_with).collect();
        assert_eq!(told[0][0], "(error) LOST");
        if told.iter().any(is_split) {
            break;
        }
        assert!(round < 20, "{told:?}");
    }
}
