//! Connections: many, slow, stuck, hostile; protocols and limits.

mod common;

use std::net::TcpStream;
use std::time::{Duration, Instant};

use common::{Client, TestServer, encode, words};
use kiln_server::{Durability, Options, Server};

#[test]
fn pipelined_replies_come_in_the_order_of_the_requests() {
    let server = TestServer::start();
    let mut client = server.client();
    let mut batch = Vec::new();
    for number in 0..20_000 {
        batch.extend(encode(&[b"ECHO", format!("{number}").as_bytes()]));
    }
    let mut writer = client.try_clone();
    let sender = std::thread::spawn(move || writer.send_bytes(&batch));
    for number in 0..20_000 {
        assert_eq!(client.reply(), format!("\"{number}\""));
    }
    sender.join().unwrap();
}

#[test]
fn two_hundred_connections_work_at_once() {
    let server = TestServer::start();
    let mut clients: Vec<Client> = (0..200).map(|_| server.client()).collect();
    for round in 0..5 {
        for (index, client) in clients.iter_mut().enumerate() {
            client.send(&[b"SET", format!("k{index}").as_bytes(), format!("{round}").as_bytes()]);
        }
        for client in &mut clients {
            assert_eq!(client.reply(), "OK");
        }
    }
    clients[0].expect("DBSIZE", "(integer) 200");
    let list = clients[0].run("CLIENT LIST");
    assert_eq!(list.lines().filter(|line| line.contains("addr=")).count(), 200);
}

#[test]
fn a_client_that_does_not_read_delays_nobody_and_is_cut_off_at_the_end() {
    let server = TestServer::start();
    let mut stuck = server.client();
    let value = vec![b'x'; 1 << 20];
    stuck.send(&[b"SET", b"big", &value]);
    assert_eq!(stuck.reply(), "OK");
    // Far more than the sockets buffer.
    for _ in 0..200 {
        stuck.send(&[b"GET", b"big"]);
    }
    let mut half = server.client();
    half.send_bytes(b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$100\r\nabc");
    let mut client = server.client();
    let start = Instant::now();
    for number in 0..200 {
        client.expect(&format!("SET k {number}"), "OK");
    }
    assert!(start.elapsed() < Duration::from_secs(10), "200 writes took {:?}", start.elapsed());
    client.expect("FLUSHALL", "OK");
    client.expect("DBSIZE", "(integer) 0");
    drop(server);
}

/// It served on, kept its database open, and its runtime waited for it without end.
#[test]
fn a_server_whose_run_is_given_up_ends() {
    let directory = tempfile::tempdir().unwrap();
    let open = || kiln::Kiln::open(directory.path());
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    // To drop it might never end.
    let runtime = std::mem::ManuallyDrop::new(runtime.unwrap());
    let (address, mut client) = runtime.block_on(async {
        let server = Server::bind(open().unwrap(), "127.0.0.1:0", Options::new()).await.unwrap();
        let address = server.address();
        let connected = tokio::task::spawn_blocking(move || {
            let mut client = Client::connect(address);
            client.expect("SET k v", "OK");
            client
        });
        tokio::select! {
            () = server.run(std::future::pending()) => panic!("nobody has ended it"),
            client = connected => (address, client.unwrap()),
        }
    });
    assert!(client.frame().is_none());
    while TcpStream::connect(address).is_ok() {}
    let (dropped, is_dropped) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        drop(std::mem::ManuallyDrop::into_inner(runtime));
        dropped.send(()).unwrap();
    });
    is_dropped.recv_timeout(Duration::from_secs(30)).expect("the runtime waits for the server");
    let db = open().unwrap();
    assert_eq!(db.get(&db.map("strings").unwrap(), "k").unwrap().as_deref(), Some(&b"v"[..]));
}

#[test]
fn requests_that_arrive_byte_by_byte_are_understood() {
    let server = TestServer::start();
    let mut client = server.client();
    for byte in encode(&[b"SET", b"k", b"\r\n$5\r\n"]) {
        client.send_bytes(&[byte]);
    }
    assert_eq!(client.reply(), "OK");
    client.expect("STRLEN k", "(integer) 6");
}

#[test]
fn inline_commands_work() {
    let server = TestServer::start();
    let mut client = server.client();
    client.send_bytes(b"\r\nSET greeting \"hello \\\"you\\\"\"\r\nget greeting\nPING\r\n");
    for reply in ["OK", "\"hello \"you\"\"", "PONG"] {
        assert_eq!(client.reply(), reply);
    }
}

#[test]
fn malformed_requests_are_named_and_end_the_connection() {
    let server = TestServer::start();
    for (bytes, error) in [
        (b"*1000000000\r\n".as_slice(), "invalid multibulk length"),
        (b"*x\r\n", "invalid multibulk length"),
        (b"*1\r\n$99999999999\r\n", "invalid bulk length"),
        (b"*1\r\n$-5\r\n", "invalid bulk length"),
        (b"*2\r\n*1\r\n$1\r\na\r\n", "expected '$', got '*'"),
        (b"set \"a\r\n", "unbalanced quotes in request"),
    ] {
        let mut client = server.client();
        client.send_bytes(&encode(&[b"SET", b"before", b"1"]));
        client.send_bytes(bytes);
        assert_eq!(client.reply(), "OK");
        assert_eq!(client.reply(), format!("(error) ERR Protocol error: {error}"));
        assert!(client.frame().is_none(), "the connection must end");
    }
    server.client().expect("GET before", "\"1\"");
}

#[test]
fn oversize_keys_and_values_get_an_error_and_the_connection_lives_on() {
    let server = TestServer::start();
    let mut client = server.client();
    let (value, key) = (vec![b'v'; (16 << 20) + 1], vec![b'k'; (64 << 10) + 1]);
    client.send(&[b"SET", b"k", &value]);
    let too_long = "(error) ERR an argument of 16777217 bytes is longer than the limit of 16777216 bytes";
    assert_eq!(client.reply(), too_long);
    client.send(&[b"SET", &key, b"v"]);
    let key_error = "(error) ERR a key of 65537 bytes is longer than the limit of 65536 bytes";
    assert_eq!(client.reply(), key_error);
    client.expect("MULTI", "OK");
    client.send(&[b"SET", b"k", &value]);
    assert_eq!(client.reply(), too_long);
    client.expect("EXEC", "(error) EXECABORT Transaction discarded because of previous errors.");
    let parts = vec![b'v'; 15 << 20];
    let mut words: Vec<&[u8]> = vec![b"MSET"];
    (0..5).for_each(|_| words.extend([b"k".as_slice(), &parts]));
    client.send(&words);
    assert_eq!(client.reply(), "(error) ERR a request must not be longer than 64 MiB");
    client.expect("EXISTS k", "(integer) 0");
}

#[test]
fn the_largest_keys_and_values_are_stored_and_read() {
    let server = TestServer::start();
    let mut client = server.client();
    let (value, key) = (vec![b'v'; 16 << 20], vec![b'k'; 64 << 10]);
    client.send(&[b"SET", &key, &value]);
    assert_eq!(client.reply(), "OK");
    client.send(&[b"GET", &key]);
    assert_eq!(client.frame().unwrap().as_bytes().unwrap().len(), 16 << 20);
    client.send(&[b"APPEND", &key, b"x"]);
    assert_eq!(client.reply(), "(error) ERR string exceeds maximum allowed size (16777216 bytes)");
    // A value that expires has its time beside it.
    client.send(&[b"EXPIRE", &key, b"1000"]);
    assert_eq!(
        client.reply(),
        "(error) ERR a value that expires of 16777216 bytes is too long; at most 16777208 are allowed"
    );
    client.send(&[b"SET", &key, &value[8..], b"EX", b"1000"]);
    assert_eq!(client.reply(), "OK");
    client.send(&[b"APPEND", &key, b"x"]);
    assert!(client.reply().starts_with("(error) ERR a value that expires of 16777209 bytes is too long"));
    client.send(&[b"STRLEN", &key]);
    assert_eq!(client.reply(), "(integer) 16777208");
}

#[test]
fn unknown_commands_and_wrong_numbers_of_arguments_are_worded_as_in_redis() {
    let server = TestServer::start();
    let mut client = server.client();
    client.expect("foo", "(error) ERR unknown command 'foo', with args beginning with: ");
    client.expect("foo a b", "(error) ERR unknown command 'foo', with args beginning with: 'a' 'b' ");
    client.expect("GET", "(error) ERR wrong number of arguments for 'get' command");
    client.expect("GET a b", "(error) ERR wrong number of arguments for 'get' command");
    client.expect("PING a b", "(error) ERR wrong number of arguments for 'ping' command");
    client.expect("CLIENT FOO", "(error) ERR unknown subcommand 'FOO'. Try CLIENT HELP.");
    let long = "x".repeat(300);
    let reply = client.run(&format!("{long} {long} y"));
    assert_eq!(reply.len(), "(error) ERR unknown command '', with args beginning with: '' ".len() + 256);
}

#[test]
fn the_connection_commands_answer_as_redis_does() {
    let server = TestServer::start();
    let mut client = server.client();
    client.expect("PING", "PONG");
    client.expect("ping hello", "\"hello\"");
    client.expect("ECHO hello", "\"hello\"");
    client.expect("SELECT 0", "OK");
    client.expect("SELECT 1", "(error) ERR DB index is out of range");
    client.expect("CLIENT GETNAME", "(nil)");
    client.expect("CLIENT SETNAME me", "OK");
    client.expect("CLIENT GETNAME", "\"me\"");
    client.expect("CLIENT SETINFO LIB-NAME test", "OK");
    client.expect("CLIENT SETINFO LIB-VER 1.0", "OK");
    client.expect("CLIENT NO-EVICT ON", "OK");
    client.expect("CLIENT NO-TOUCH OFF", "OK");
    let info = client.run("CLIENT INFO");
    assert!(
        info.contains("name=me") && info.contains("lib-name=test") && info.contains("lib-ver=1.0"),
        "{info}"
    );
    assert!(client.run("CLIENT SETNAME a\nb").starts_with("(error) ERR Client names cannot contain"));
    let id = client.run("CLIENT ID");
    assert_ne!(server.client().run("CLIENT ID"), id);
    client.expect("KILN DURABILITY safe", "OK");
    client.expect("MULTI", "OK");
    client.expect("RESET", "RESET");
    client.expect("CLIENT GETNAME", "(nil)");
    client.expect("KILN DURABILITY", "\"fast\"");
    client.expect("EXEC", "(error) ERR EXEC without MULTI");
    client.expect("QUIT", "OK");
    assert!(client.frame().is_none());
}

/// It was what the last batch had ended with, and before the first one fast.
#[test]
fn what_a_connection_is_told_about_itself_is_so_now() {
    let server = TestServer::with_options(Options::new().durability(Durability::Safe));
    let mut client = server.client();
    let batch = ["CLIENT INFO", "HELLO 3", "KILN DURABILITY fast", "CLIENT LIST", "RESET", "CLIENT INFO"];
    client.send_bytes(&batch.map(|command| encode(&common::words(command))).concat());
    for told in ["resp=2", "server", "OK", "resp=3", "RESET", "resp=2"] {
        let reply = client.reply();
        assert!(reply.contains(told), "{told}: {reply}");
        let durability = if told == "resp=3" { "durability=fast" } else { "durability=safe" };
        assert!(!told.starts_with("resp") || reply.contains(durability), "{durability}: {reply}");
    }
    // Also of one that has not asked for anything yet.
    let _silent = server.client();
    let listed = loop {
        let listed = client.run("CLIENT LIST");
        if listed.matches(" addr=").count() == 2 {
            break listed;
        }
    };
    assert_eq!(listed.matches("durability=safe").count(), 2, "{listed}");
}

#[test]
fn a_list_has_the_connections_that_it_is_asked_for() {
    let server = TestServer::start();
    let mut client = server.client();
    let id = client.run("CLIENT ID").replace("(integer) ", "");
    let mut other = server.client();
    let other_id = other.run("CLIENT ID").replace("(integer) ", "");
    let listed = |client: &mut Client, ids: &str| {
        let list = client.run(&format!("CLIENT LIST ID {ids}"));
        list.split([' ', '\n', '"']).filter_map(|word| word.strip_prefix("id=")).collect::<Vec<_>>().join(" ")
    };
    assert_eq!(listed(&mut client, &other_id), other_id);
    assert_eq!(listed(&mut client, &format!("{other_id} 999 {id} {id}")), format!("{id} {other_id}"));
    assert_eq!(listed(&mut client, "999"), "");
    for id in ["x", "-1", "1 x"] {
        client.expect(&format!("CLIENT LIST ID {id}"), "(error) ERR Invalid client ID");
    }
}

#[test]
fn connections_are_ended_by_others_whatever_they_wait_for() {
    let server = TestServer::start();
    let mut client = server.client();
    client.expect("CLIENT KILL ID 99", "(integer) 0");
    client.expect("CLIENT KILL 127.0.0.1:1", "(error) ERR No such client");
    client.expect("CLIENT KILL", "(error) ERR wrong number of arguments for 'client|kill' command");
    client.expect("CLIENT KILL ID 0", "(error) ERR client-id should be greater than 0");
    for wrong in ["ID 1 FOO", "FOO 1", "SKIPME maybe"] {
        client.expect(&format!("CLIENT KILL {wrong}"), "(error) ERR syntax error");
    }
    let field = |client: &mut Client, name: &str| {
        let info = client.run("CLIENT INFO");
        let value =
            info.split(' ').find_map(|part| part.strip_prefix(&format!("{name}=")).map(str::to_owned));
        value.unwrap()
    };
    // One that has a session, one that does not read its replies, and one that has not asked for anything.
    let mut of_session = server.client();
    of_session.expect("KILN SESSION s", "(integer) 0");
    assert!(client.run("KILN SESSION s").starts_with("(error) LOCKED"));
    let address = field(&mut of_session, "addr");
    client.expect(&format!("CLIENT KILL {address}"), "OK");
    assert!(of_session.frame().is_none());
    while client.run("KILN SESSION s") != "(integer) 0" {}
    client.expect(&format!("SET big {}", "x".repeat(1 << 20)), "OK");
    let mut stuck = server.client();
    let id = stuck.run("CLIENT ID").replace("(integer) ", "");
    (0..100).for_each(|_| stuck.send(&[b"GET", b"big"]));
    client.expect(&format!("CLIENT KILL ID {id} TYPE normal"), "(integer) 1");
    while client.run("CLIENT LIST").contains(&format!("id={id} ")) {}
    let mut silent = server.client();
    while client.run("CLIENT LIST").matches(" addr=").count() < 2 {}
    let local = field(&mut client, "laddr");
    // Of two filters of a kind the last holds.
    client.expect(&format!("CLIENT KILL LADDR {local} LADDR 127.0.0.1:1"), "(integer) 0");
    client.expect("CLIENT KILL TYPE normal ADDR nonsense", "(integer) 0");
    client.expect(&format!("CLIENT KILL LADDR 127.0.0.1:1 LADDR {local}"), "(integer) 1");
    assert!(silent.frame().is_none());
    while client.run("CLIENT LIST").matches(" addr=").count() > 1 {}
    client.expect("CLIENT KILL TYPE normal", "(integer) 0");
    client.expect("CLIENT KILL USER nobody SKIPME no", "(integer) 0");
    client.expect("CLIENT KILL USER default SKIPME no", "(integer) 1");
    assert!(client.frame().is_none());
}

/// What had arrived behind it was run.
#[test]
fn who_ends_itself_runs_nothing_more() {
    let server = TestServer::start();
    for request in ["CLIENT KILL ID ID SKIPME no", "MULTI|CLIENT KILL ID ID SKIPME no|EXEC"] {
        let mut client = server.client();
        let id = client.run("CLIENT ID").replace("(integer) ", "");
        let requests = request.replace("ID ID", &format!("ID {id}")) + "|SET k v";
        client
            .send_bytes(&requests.split('|').flat_map(|request| encode(&words(request))).collect::<Vec<_>>());
        let replies: Vec<_> =
            std::iter::from_fn(|| client.frame()).map(|frame| common::show(&frame)).collect();
        let expected = ["(integer) 1", "OK, QUEUED, [(integer) 1]"];
        assert!(expected.contains(&replies.join(", ").as_str()), "{replies:?}");
        server.client().expect("GET k", "(nil)");
    }
}

/// The name was changed although what followed it was refused.
#[test]
fn a_hello_that_fails_changes_nothing() {
    let server = TestServer::start();
    let mut client = server.client();
    client.expect("CLIENT SETNAME me", "OK");
    for options in ["SETNAME other BAD", "SETNAME other SETNAME", "SETNAME other AUTH somebody any"] {
        let reply = client.run(&format!("HELLO 3 {options}"));
        assert!(reply.starts_with("(error) "), "{reply}");
        client.expect("CLIENT GETNAME", "\"me\"");
        client.expect("GET none", "(nil)");
    }
}

/// They were ignored: who asked for a part got everything.
#[test]
fn subcommands_refuse_arguments_that_they_do_not_know() {
    let server = TestServer::start();
    let mut client = server.client();
    for arguments in ["ID", "TYPE normal", "1", "IDS 1"] {
        let error = "(error) ERR syntax error; CLIENT LIST takes nothing but ID id [id ...]";
        client.expect(&format!("CLIENT LIST {arguments}"), error);
    }
    for (command, name) in
        [("COMMAND LIST FILTERBY PATTERN x*", "command|list"), ("CONFIG RESETSTAT x", "config|resetstat")]
    {
        client.expect(command, &format!("(error) ERR wrong number of arguments for '{name}' command"));
    }
}

#[test]
fn resp3_is_spoken_after_hello_3_and_until_hello_2() {
    let server = TestServer::start();
    let mut client = server.client();
    assert!(client.run("HELLO").starts_with(r#"["server", "kiln", "version", "#));
    let hello = client.run("HELLO 3 SETNAME me");
    assert!(
        hello.starts_with(r#"{"server": "kiln", "#) && hello.contains(r#""proto": (integer) 3"#),
        "{hello}"
    );
    client.expect("GET none", "(null)");
    client.expect("MGET none", "[(null)]");
    client.expect("CONFIG GET save", r#"{"save": ""}"#);
    assert!(client.run("INFO server").starts_with("text:"));
    let get = client.run("COMMAND INFO get");
    assert!(get.contains("Set([SimpleString") && get.ends_with("Set([]), []]]"), "{get}");
    client.expect("CLIENT GETNAME", "\"me\"");
    client.expect("WATCH k", "OK");
    server.client().expect("SET k 1", "OK");
    client.expect("MULTI", "OK");
    client.expect("EXEC", "(null)");
    client.expect("HELLO 4", "(error) NOPROTO unsupported protocol version");
    client.expect("HELLO x", "(error) ERR Protocol version is not an integer or out of range");
    assert!(client.run("HELLO 3 AUTH default any").starts_with("{"));
    client.expect("AUTH default any", "OK");
    assert!(client.run("HELLO 3 AUTH somebody any").starts_with("(error) WRONGPASS"));
    assert!(client.run("AUTH any").starts_with("(error) ERR AUTH"));
    assert!(client.run("HELLO 2").starts_with(r#"["server", "#));
    client.expect("GET none", "(nil)");
}

#[test]
fn what_clients_and_benchmarks_ask_for_is_answered() {
    let server = TestServer::start();
    let mut client = server.client();
    client.expect("CONFIG GET save", r#"["save", ""]"#);
    client.expect("CONFIG GET appendonly APPENDFSYNC", r#"["appendfsync", "everysec", "appendonly", "yes"]"#);
    client.expect("CONFIG GET maxmemory", r#"["maxmemory", "0"]"#);
    client.expect("CONFIG GET nothing*", "[]");
    client.expect(
        &format!("CONFIG GET{}", " save".repeat(65)),
        "(error) ERR CONFIG GET takes 64 patterns at most",
    );
    client.expect("CONFIG RESETSTAT", "OK");
    assert!(client.run("CONFIG SET save 1").starts_with("(error) ERR settings are given when"));
    let count = client.run("COMMAND COUNT");
    assert!(client.run("COMMAND").len() > 1000);
    assert_eq!(
        client.run("COMMAND LIST").matches('"').count() / 2,
        count["(integer) ".len()..].parse().unwrap()
    );
    let get = r#"[["get", (integer) 2, [readonly, fast], (integer) 1, (integer) 1, (integer) 1, [], [], [], []], (nil)]"#;
    client.expect("COMMAND INFO get none", get);
    assert!(client.run("COMMAND DOCS get").contains("Returns a string."));
    client.expect("COMMAND GETKEYS mset a 1 b 2", r#"["a", "b"]"#);
    client.expect("COMMAND GETKEYS object encoding k", r#"["k"]"#);
    client.expect("COMMAND GETKEYS ping", "(error) ERR The command has no key arguments");
    client.expect("COMMAND GETKEYS foo", "(error) ERR Invalid command specified");
    client.expect("COMMAND GETKEYS get", "(error) ERR Invalid number of arguments specified for command");
    client.expect("ROLE", r#"["master", (integer) 0, []]"#);
    let time = client.run("TIME");
    let parts: Vec<u64> = time.split('"').filter_map(|part| part.parse().ok()).collect();
    assert!(
        matches!(parts[..], [seconds, micros] if seconds > 1_700_000_000 && micros < 1_000_000),
        "{time}"
    );
    client.expect("SET k 1 EX 100", "OK");
    let info = client.run("INFO");
    for section in [
        "Server",
        "Clients",
        "Memory",
        "Persistence",
        "Durability",
        "Stats",
        "Replication",
        "Cluster",
        "Keyspace",
    ] {
        assert!(info.contains(&format!("# {section}\r\n")), "{section}");
    }
    for field in [
        "redis_version",
        "version",
        "horizon",
        "lag_ms",
        "lag_bytes",
        "oldest_unhardened_unix_ms",
        "hardenings",
        "unhardened_records",
        "hardened_in_memory_records",
        "inserts",
        "updates_in_place",
        "updates_copied",
        "index_chain_entries_mean",
    ] {
        common::info_field(&info, field);
    }
    for (field, value) in [
        ("index_chain_lines_max", "1"),
        ("on_disk_only_records", "0"),
        ("compaction_total_bytes", "0"),
        ("checkpoint_total_steps", "0"),
    ] {
        assert_eq!(common::info_field(&info, field), value, "{field}");
    }
    assert!(info.contains("db0:keys=1,expires=0,avg_ttl=0\r\n"), "{info}");
    let some = client.run("INFO durability clients");
    assert!(some.contains("# Durability") && some.contains("# Clients") && !some.contains("# Server"));
}

#[test]
fn one_connection_more_than_allowed_is_told_so() {
    let options = Options::new().durability(Durability::Fast).connections_max(2);
    let server = TestServer::with_options(options);
    let (mut first, mut second) = (server.client(), server.client());
    first.expect("PING", "PONG");
    second.expect("PING", "PONG");
    let mut third = server.client();
    assert_eq!(third.reply(), "(error) ERR max number of clients reached");
    assert!(third.frame().is_none());
}

/// Those counted whose tasks had come to register them: many at once came in before.
#[test]
fn no_more_connections_than_allowed_are_served_although_all_come_at_once() {
    let options = Options::new().durability(Durability::Fast).connections_max(20);
    let server = TestServer::with_options(options);
    let mut clients: Vec<Client> = (0..200).map(|_| server.client()).collect();
    let replies = clients.iter_mut().filter_map(|client| {
        client.try_clone().send(&[b"PING"]);
        Some(common::show(&client.frame()?))
    });
    assert_eq!(replies.filter(|reply| reply == "PONG").count(), 20);
}

#[test]
fn when_the_server_ends_connections_get_their_replies_and_are_closed() {
    let server = TestServer::start();
    let mut idle = server.client();
    idle.expect("PING", "PONG");
    let mut client = server.client();
    client.expect("SET k 1", "OK");
    server.stop();
    assert!(idle.frame().is_none());
    assert!(client.frame().is_none());
}

#[test]
fn a_client_can_end_the_server() {
    let server = TestServer::start();
    let mut client = server.client();
    client.send(&[b"SHUTDOWN"]);
    assert!(client.frame().is_none());
    server.stop();
}

/// What a page has a browser send to this machine: its body would be commands.
#[test]
fn requests_of_browsers_end_the_connection_before_anything_is_run() {
    let server = TestServer::start();
    for request in ["POST / HTTP/1.1\r\nSET k 1\r\n", "GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\nSET k 1\r\n"]
    {
        let mut client = server.client();
        client.send_bytes(request.as_bytes());
        while client.frame().is_some() {}
    }
    server.client().expect("EXISTS k", "(integer) 0");
}

#[test]
fn only_shutdown_shuts_down() {
    let server = TestServer::start();
    let mut client = server.client();
    client.expect("SHUTDOWN ABORT", "(error) ERR No shutdown in progress.");
    client.expect("SHUTDOWN nonsense", "(error) ERR syntax error");
    client.expect("PING", "PONG");
}

/// The socket was closed with something unread in it, and the system threw away what the client had not read yet.
#[test]
fn who_sends_on_behind_the_end_gets_all_replies_before_it() {
    const COUNT: usize = 16;
    let server = TestServer::start();
    let mut client = server.client();
    client.send(&[b"SET", b"k", &vec![b'v'; 1 << 20]]);
    assert_eq!(client.reply(), "OK");
    // All of it is there before the end, which does not wait long for more: what the server does not read at once, with the first of it, is less than a socket takes.
    let (gets, pings) = (encode(&[b"GET", b"k"]).repeat(COUNT), encode(&[b"PING"]).repeat(6_000));
    client.send_bytes(&[gets, encode(&[b"QUIT"]), pings].concat());
    for number in 0..COUNT {
        // The end comes before these are read.
        if number == COUNT - 4 {
            std::thread::sleep(Duration::from_millis(100));
        }
        assert_eq!(client.frame().map(|_| ()), Some(()), "reply {number} is lost");
    }
    assert_eq!(client.reply(), "OK");
}
