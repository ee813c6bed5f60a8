//! `MULTI`, `EXEC` and `WATCH` are transactions of the engine.

mod common;

use std::sync::atomic::{AtomicBool, Ordering};

use common::TestServer;
use kiln::device::{Fault, FaultKind, OperationKind};
use kiln_server::{Durability, Options};

#[test]
fn queued_commands_run_together_and_answer_together() {
    let server = TestServer::start();
    let mut client = server.client();
    client.expect("MULTI", "OK");
    client.expect("SET a 1", "QUEUED");
    client.expect("INCR a", "QUEUED");
    client.expect("GET a", "QUEUED");
    client.expect("PING", "QUEUED");
    client.expect("CLIENT GETNAME", "QUEUED");
    client.expect("WAITAOF 0 0 0", "QUEUED");
    server.client().expect("GET a", "(nil)");
    client.expect("EXEC", r#"[OK, (integer) 2, "2", PONG, (nil), [(integer) 1, (integer) 0]]"#);
    server.client().expect("GET a", "\"2\"");
    client.expect("MULTI", "OK");
    client.expect("EXEC", "[]");
}

#[test]
fn a_command_that_fails_inside_leaves_the_others_alone() {
    let server = TestServer::start();
    let mut client = server.client();
    client.expect("SET text abc", "OK");
    client.expect("MULTI", "OK");
    client.expect("SET a 1", "QUEUED");
    client.expect("INCR text", "QUEUED");
    client.expect("SET b 2", "QUEUED");
    client.expect("EXEC", "[OK, (error) ERR value is not an integer or out of range, OK]");
    client.expect("MGET a b", r#"["1", "2"]"#);
}

#[test]
fn a_command_that_cannot_be_queued_dooms_the_transaction() {
    let server = TestServer::start();
    let mut client = server.client();
    for (command, error) in [
        ("GET", "(error) ERR wrong number of arguments for 'get' command"),
        ("FOO a b", "(error) ERR unknown command 'FOO', with args beginning with: 'a' 'b' "),
        ("KEYS *", "(error) ERR Command not allowed inside a transaction"),
        ("KILN RECEIPT", "(error) ERR Command not allowed inside a transaction"),
        ("DBSIZE", "(error) ERR Command not allowed inside a transaction"),
        ("HELLO 3", "(error) ERR Command not allowed inside a transaction"),
        ("SCAN 0", "(error) ERR Command not allowed inside a transaction"),
        ("SHUTDOWN", "(error) ERR Command not allowed inside a transaction"),
    ] {
        client.expect("MULTI", "OK");
        client.expect("SET a 1", "QUEUED");
        client.expect(command, error);
        client.expect("EXEC", "(error) EXECABORT Transaction discarded because of previous errors.");
        client.expect("GET a", "(nil)");
    }
}

/// Redis runs it; here it is another map that the key would be written to.
#[test]
fn a_flush_counts_as_a_change_of_whatever_is_watched() {
    let server = TestServer::start();
    let mut client = server.client();
    client.expect("WATCH absent", "OK");
    server.client().expect("FLUSHALL", "OK");
    client.expect("MULTI", "OK");
    client.expect("SET absent 1", "QUEUED");
    client.expect("EXEC", "(nil)");
}

#[test]
fn the_steering_commands_refuse_what_makes_no_sense() {
    let server = TestServer::start();
    let mut client = server.client();
    client.expect("EXEC", "(error) ERR EXEC without MULTI");
    client.expect("DISCARD", "(error) ERR DISCARD without MULTI");
    client.expect("MULTI", "OK");
    client.expect("MULTI", "(error) ERR MULTI calls can not be nested");
    client.expect("WATCH a", "(error) ERR WATCH inside MULTI is not allowed");
    client.expect("SET a 1", "QUEUED");
    client.expect("DISCARD", "OK");
    client.expect("GET a", "(nil)");
    client.expect("UNWATCH", "OK");
}

#[test]
fn exec_returns_nil_if_a_watched_key_has_changed() {
    let server = TestServer::start();
    let (mut client, mut other) = (server.client(), server.client());
    for change in ["SET k 2", "DEL k", "EXPIRE k 100", "INCR k", "FLUSHALL", "GETSET k 1"] {
        client.expect("SET k 1", "OK");
        client.expect("WATCH other k", "OK");
        other.run(change);
        client.expect("MULTI", "OK");
        client.expect("SET k mine", "QUEUED");
        client.expect("EXEC", "(nil)");
        client.expect("SET k mine", "OK");
    }
    client.expect("WATCH none", "OK");
    other.expect("SET none 1", "OK");
    client.expect("MULTI", "OK");
    client.expect("EXEC", "(nil)");
}

#[test]
fn exec_runs_if_no_watched_key_has_changed() {
    let server = TestServer::start();
    let (mut client, mut other) = (server.client(), server.client());
    client.expect("SET k 1", "OK");
    for forget in ["UNWATCH", "EXEC", "DISCARD", ""] {
        client.expect("WATCH k none", "OK");
        if forget.is_empty() {
            other.expect("SET unrelated 1", "OK");
        } else {
            if forget != "UNWATCH" {
                client.expect("MULTI", "OK");
            }
            client.run(forget);
            other.expect("SET k 1", "OK");
        }
        client.expect("MULTI", "OK");
        client.expect("SET k 1", "QUEUED");
        client.expect("EXEC", "[OK]");
    }
}

#[test]
fn a_watch_that_is_refused_has_watched_none_of_its_keys() {
    let (disk, db) = common::simulated(1);
    let server = TestServer::over(db, Options::new().durability(Durability::Fast));
    let (mut client, mut other) = (server.client(), server.client());
    client.expect("SET cold 1", "OK");
    let value = "x".repeat(100_000);
    (0..100).for_each(|number| client.expect(&format!("SET k{number} {value}"), "OK"));
    for (changed, answer) in [("free", "[OK]"), ("earlier", "(nil)")] {
        client.expect("MSET earlier 1 free 1", "OK");
        client.expect("WATCH earlier", "OK");
        disk.inject(Fault { operation: OperationKind::Read, nth: 1, kind: FaultKind::EIO, sticky: true });
        let refusal = client.run("WATCH free cold");
        assert!(refusal.starts_with("(error) "), "{refusal}");
        disk.clear_faults();
        other.expect(&format!("SET {changed} 2"), "OK");
        client.expect("MULTI", "OK");
        client.expect("SET k 1", "QUEUED");
        client.expect("EXEC", answer);
    }
}

#[test]
fn a_transaction_that_flushes_sees_its_own_flush() {
    let server = TestServer::start();
    let mut client = server.client();
    client.expect("MSET a 1 b 2", "OK");
    client.expect("MULTI", "OK");
    for command in ["SET c 3", "FLUSHALL", "GET a", "SET d 4", "FLUSHDB", "GET d", "SET e 5"] {
        client.expect(command, "QUEUED");
    }
    client.expect("EXEC", "[OK, OK, (nil), OK, OK, (nil), OK]");
    client.expect("KEYS *", r#"["e"]"#);
    for command in ["MULTI", "FLUSHALL", "INFO keyspace"] {
        client.run(command);
    }
    let told = client.run("EXEC");
    assert!(told.starts_with("[OK, ") && told.contains("# Keyspace") && !told.contains("db0:"), "{told}");
}

/// Two accounts whose sum never changes, moved between by `WATCH`/`MULTI`/`EXEC` and read by `MGET` and by
/// `EXEC`.
#[test]
fn concurrent_transactions_keep_their_invariant_and_readers_see_it() {
    let server = TestServer::start();
    server.client().expect("MSET a 500 b 500", "OK");
    let stop = AtomicBool::new(false);
    let moved: u64 = std::thread::scope(|scope| {
        for reading in ["MGET a b", "EXEC"] {
            let (server, stop) = (&server, &stop);
            scope.spawn(move || {
                let mut client = server.client();
                while !stop.load(Ordering::Relaxed) {
                    if reading == "EXEC" {
                        client.expect("MULTI", "OK");
                        client.expect("GET a", "QUEUED");
                        client.expect("GET b", "QUEUED");
                    }
                    let reply = client.run(reading);
                    let sum: i64 = reply.split('"').filter_map(|part| part.parse::<i64>().ok()).sum();
                    assert_eq!(sum, 1000, "{reply}");
                }
            });
        }
        let movers: Vec<_> = (0..4).map(|_| scope.spawn(|| move_money(&server))).collect();
        let moved = movers.into_iter().map(|mover| mover.join().unwrap()).sum();
        stop.store(true, Ordering::Relaxed);
        moved
    });
    assert!(moved > 0);
    let mut client = server.client();
    let a: i64 = client.run("GET a").trim_matches('"').parse().unwrap();
    assert_eq!(a, 500 - moved as i64);
}

/// Moves 1 from a to b, a hundred times over, and says how often it went through.
fn move_money(server: &TestServer) -> u64 {
    let mut client = server.client();
    let mut moved = 0;
    for _ in 0..100 {
        client.expect("WATCH a b", "OK");
        let read = |client: &mut common::Client, key: &str| -> i64 {
            client.run(&format!("GET {key}")).trim_matches('"').parse().unwrap()
        };
        let (a, b) = (read(&mut client, "a"), read(&mut client, "b"));
        client.expect("MULTI", "OK");
        client.expect(&format!("SET a {}", a - 1), "QUEUED");
        client.expect(&format!("SET b {}", b + 1), "QUEUED");
        match client.run("EXEC").as_str() {
            "[OK, OK]" => moved += 1,
            "(nil)" => {}
            other => panic!("{other}"),
        }
    }
    moved
}

/// Of each key that expires a copy was kept, up to 4 GiB of them.
#[test]
fn what_is_watched_is_bounded_in_bytes_and_a_refused_watch_has_watched_nothing() {
    let server = TestServer::start();
    let (mut client, mut other) = (server.client(), server.client());
    let key = "k".repeat(64 * 1024);
    client.expect(&format!("SET {key} 1 EX 1000"), "OK");
    let keys = vec![key.as_str(); 600].join(" ");
    client.expect(&format!("WATCH {keys}"), "OK");
    client.expect(
        &format!("WATCH refused {keys}"),
        "(error) ERR the watched keys together are longer than 64 MiB",
    );
    other.expect("SET refused 1", "OK");
    client.expect("MULTI", "OK");
    client.expect("SET a 1", "QUEUED");
    client.expect("EXEC", "[OK]");
    client.expect(&format!("WATCH {keys}"), "OK");
    other.expect(&format!("SET {key} 2"), "OK");
    client.expect("MULTI", "OK");
    client.expect("SET a 2", "QUEUED");
    client.expect("EXEC", "(nil)");
}

#[test]
fn concurrent_increments_are_all_counted() {
    let server = TestServer::start();
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                let mut client = server.client();
                for _ in 0..200 {
                    client.run("INCR n");
                }
            });
        }
    });
    server.client().expect("GET n", "\"1600\"");
}

/// Each of these has waited for itself for ever, and with it the thread, and soon the server.
#[test]
fn the_servers_state_is_told_beside_flushes_and_between_them() {
    let server = TestServer::start();
    let mut client = server.client();
    client.expect("MULTI", "OK");
    for command in ["SET a 1", "FLUSHDB", "INFO keyspace", "SET b 1", "FLUSHDB", "INFO"] {
        client.expect(command, "QUEUED");
    }
    assert!(client.run("EXEC").starts_with("[OK, OK, "));
    server.client().expect("PING", "PONG");
    std::thread::scope(|scope| {
        for commands in [["GET a", "INFO keyspace"], ["SET a 1", "FLUSHDB"]] {
            let server = &server;
            scope.spawn(move || {
                let mut client = server.client();
                let batch = commands.map(|command| common::encode(&common::words(command))).concat();
                for _ in 0..300 {
                    client.send_bytes(&batch);
                    commands.iter().for_each(|_| drop(client.reply()));
                }
            });
        }
    });
    server.client().expect("PING", "PONG");
}

/// Each takes a map, of which a database can have so many and no more, ever.
#[test]
fn flushes_that_nobody_can_empty_as_quickly_are_refused() {
    let server = TestServer::start();
    let mut client = server.client();
    client.expect("SET a 1", "OK");
    client.expect("MULTI", "OK");
    for _ in 0..1_100 {
        client.expect("FLUSHDB", "QUEUED");
    }
    let refusal = client.run("EXEC");
    assert!(refusal.starts_with("(error) BUSY "), "{refusal}");
    client.expect("GET a", "\"1\"");
    assert!(server.db.objects().len() < 1_100);
    let start = std::time::Instant::now();
    while client.run("FLUSHDB") != "OK" {
        assert!(start.elapsed() < std::time::Duration::from_secs(30), "a flush is refused for ever");
    }
    client.expect("GET a", "(nil)");
}

/// Each `INCR` of it loads all of it, and says so in 44 bytes: a request of 64 MiB kept a thread for an hour, and all flushes, and behind them everybody.
#[test]
fn what_is_done_to_a_long_string_is_bounded_whether_queued_or_in_a_pipeline() {
    const LOADED_MAX: usize = 64;
    const PIPELINE: usize = 2_000;
    let server = TestServer::start();
    let (mut client, mut other) = (server.client(), server.client());
    client.send(&[b"SET", b"long", &vec![b'x'; (16 << 20) - 8]]);
    assert_eq!(client.reply(), "OK");
    for (command, answer) in [("INCR long", "(error) ERR value"), ("EXPIRE long 1000", "(integer) 1")] {
        for (times, expected) in
            [(LOADED_MAX, format!("[OK, {answer}")), (LOADED_MAX + 1, "(error) EXECABORT LIMIT ".to_owned())]
        {
            client.expect("MULTI", "OK");
            client.expect(&format!("SET times {times}"), "QUEUED");
            (0..times).for_each(|_| client.expect(command, "QUEUED"));
            let reply = client.run("EXEC");
            assert!(reply.starts_with(&expected), "{command}, {times} times: {:.100}", reply);
            client.expect("GET times", &format!("\"{LOADED_MAX}\""));
        }
    }
    client.send_bytes(&common::encode(&common::words("INCR long")).repeat(PIPELINE));
    let replies =
        |count: usize, client: &mut common::Client| (0..count).map(|_| client.reply()).last().unwrap();
    assert!(replies(1, &mut client).starts_with("(error)"));
    other.expect("FLUSHDB", "OK");
    let rest = replies(PIPELINE - 1, &mut client);
    assert!(rest.starts_with("(integer)"), "the flush had to wait for all of them");
}

/// Each attempt ended them, also one of which nothing stayed.
#[test]
fn a_transaction_ends_other_connections_only_if_it_commits() {
    let server = TestServer::start();
    let (mut client, mut other) = (server.client(), server.client());
    client.send(&[b"SET", b"long", &vec![b'x'; 16 << 20]]);
    assert_eq!(client.reply(), "OK");
    other.expect("PING", "PONG");
    for (times, ends) in [(65, false), (1, true)] {
        client.expect("MULTI", "OK");
        client.expect("CLIENT KILL TYPE normal", "QUEUED");
        // It counts as if all of it were loaded.
        (0..times).for_each(|_| client.expect("STRLEN long", "QUEUED"));
        let reply = client.run("EXEC");
        if ends {
            assert_eq!(reply, "[(integer) 1, (integer) 16777216]");
            assert!(other.frame().is_none());
        } else {
            assert!(reply.starts_with("(error) EXECABORT LIMIT "), "{reply}");
            (0..100).for_each(|_| client.expect("PING", "PONG"));
            (0..100).for_each(|_| other.expect("PING", "PONG"));
        }
    }
}

/// It began again whenever one of them had been written, and always one had.
#[test]
fn a_transaction_comes_to_its_end_beside_others_that_write_all_the_time_what_it_reads() {
    const KEYS: usize = 100_000;
    let server = TestServer::start();
    let stop = AtomicBool::new(false);
    let keys: String = (0..KEYS).map(|key| format!(" {key}")).collect();
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let mut client = server.client();
                let batch: Vec<_> = (0..KEYS)
                    .step_by(499)
                    .map(|key| common::encode(&common::words(&format!("INCR {key}"))))
                    .collect();
                while !stop.load(Ordering::Relaxed) {
                    client.send_bytes(&batch.concat());
                    batch.iter().for_each(|_| drop(client.reply()));
                }
            });
        }
        // Also if something is wrong with what is read.
        let replies = scope.spawn(|| {
            let mut client = server.client();
            while client.run("GET 499") == "(nil)" {}
            client.expect("MULTI", "OK");
            client.expect(&format!("MGET{keys}"), "QUEUED");
            client.expect("SET seen 1", "QUEUED");
            [client.run("EXEC"), client.run(&format!("MGET{keys}")), client.run("PING")]
        });
        let replies = replies.join();
        stop.store(true, Ordering::Relaxed);
        let [in_exec, alone, after] = replies.unwrap();
        assert!(in_exec.starts_with("[[\"") && in_exec.ends_with(", OK]"));
        assert!(alone.starts_with("[\"") && after == "PONG");
    });
}
