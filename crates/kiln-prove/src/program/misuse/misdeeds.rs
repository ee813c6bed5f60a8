//! What clients do that ask too much, or speak nonsense, and what it must come to.

use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::time::{Duration, Instant};

use super::super::server::PATIENCE;
use super::Scene;
use super::wire::{Reply, Wire, request, words};
use crate::support::Random;

const MIB: usize = 1 << 20;
/// What the engine may come to have in memory meanwhile, and what the allocator may keep: bugs of memory must take a multiple of this.
const SLACK: u64 = 256;
/// Connections that do the same.
const MANY: usize = 64;

/// Something that a client should not do.
#[derive(Debug)]
pub(super) struct Misdeed {
    pub(super) name: &'static str,
    /// How much memory the server may take for it at any moment, in MiB.
    pub(super) mebibytes: u64,
    pub(super) commit: fn(&mut Scene),
}

/// All that there are: as many as `./test` and docs/testing.md say.
pub(super) const MISDEEDS: &[Misdeed] = &[
    Misdeed { name: "SCAN over large values", mebibytes: SLACK + 96, commit: scan_large_values },
    Misdeed { name: "SCAN for few keys among flushed ones", mebibytes: SLACK, commit: scan_among_flushed },
    Misdeed { name: "KEYS beside a flush", mebibytes: SLACK, commit: list_beside_a_flush },
    Misdeed { name: "MULTI without end", mebibytes: SLACK + 192, commit: queue_without_end },
    Misdeed { name: "too many flushes in one transaction", mebibytes: SLACK, commit: flush_in_a_transaction },
    Misdeed { name: "a burst of flushes", mebibytes: SLACK, commit: flush_in_a_burst },
    Misdeed { name: "INFO beside flushes", mebibytes: SLACK, commit: ask_beside_flushes },
    Misdeed { name: "large replies, then half a request", mebibytes: SLACK, commit: halve_behind_replies },
    Misdeed { name: "large requests, then silence", mebibytes: SLACK, commit: send_large_requests },
    Misdeed { name: "large requests, then half a request", mebibytes: SLACK, commit: halve_behind_requests },
    Misdeed { name: "announcements", mebibytes: SLACK, commit: announce },
    Misdeed { name: "halves of large requests", mebibytes: SLACK + 768, commit: break_large_requests_off },
    Misdeed { name: "clients that vanish", mebibytes: SLACK, commit: vanish },
    Misdeed { name: "requests of browsers", mebibytes: SLACK, commit: browse },
    Misdeed { name: "nonsense", mebibytes: SLACK, commit: speak_nonsense },
    Misdeed { name: "requests beyond the limits", mebibytes: SLACK + 256, commit: exceed_limits },
    Misdeed { name: "replies beyond the limit", mebibytes: SLACK + 768, commit: ask_for_too_much },
    Misdeed { name: "too many watches", mebibytes: SLACK, commit: watch_too_much },
    Misdeed { name: "too many connections", mebibytes: SLACK, commit: connect_too_often },
    Misdeed { name: "replies that nobody reads", mebibytes: SLACK, commit: read_nothing },
];

/// Sets many keys as quickly as possible; each begins so.
fn load(connection: &mut Wire, beginning: &str, count: usize) {
    const AT_ONCE: usize = 1_000;
    let at_once = |first: usize| {
        let key = |number| [format!("{beginning}{number}"), "v".to_owned()];
        request(std::iter::once("MSET".to_owned()).chain((first..first + AT_ONCE).flat_map(key)))
    };
    let requests: Vec<u8> = (0..count).step_by(AT_ONCE).flat_map(at_once).collect();
    connection.ask_many(&requests, count / AT_ONCE, |reply| reply.assert_ok());
}

/// Sets a key to a value of so many MiB.
fn set_large(connection: &mut Wire, key: &str, mebibytes: usize) {
    connection.send(&request([b"SET", key.as_bytes(), &vec![b'v'; mebibytes * MIB]]));
    connection.reply().assert_ok();
}

/// Flushes as soon as that is possible: who is told to try again is served at last.
fn flush(connection: &mut Wire) {
    let end = Instant::now() + PATIENCE;
    loop {
        let reply = connection.ask("FLUSHDB");
        if reply.is_ok() {
            return;
        }
        reply.assert_refused("BUSY");
        assert!(Instant::now() < end, "a flush is refused for ever");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// The beginning of a request that waits for the rest.
fn half() -> Vec<u8> {
    let mut half = request([b"SET".to_vec(), b"half".to_vec(), vec![b'v'; 10_000]]);
    half.truncate(half.len() - 2_000);
    half
}

/// Keys are looked for, and not values: of these no step may hold many.
fn scan_large_values(scene: &mut Scene) {
    const VALUES: usize = 24;
    let mut connection = scene.connect();
    (0..VALUES).for_each(|number| set_large(&mut connection, &format!("large:{number}"), 8));
    let mut scanners = scene.connect_many(4);
    scanners.iter_mut().for_each(|scanner| scanner.send(&words("SCAN 0 COUNT 1000")));
    for scanner in &mut scanners {
        let (_, found) = scan_on(scanner, b"1000");
        assert!(found.len() >= VALUES, "of {VALUES} keys SCAN has found {}", found.len());
    }
    flush(&mut connection);
    scene.leave(scanners);
}

/// A step that goes through an index full of others' keys until it has found what it was asked for stops everybody on its thread.
fn scan_among_flushed(scene: &mut Scene) {
    let mut connection = scene.connect();
    load(&mut connection, "flushed:", 120_000);
    let few: BTreeSet<_> = (0..5).map(|number| format!("few:{number}").into_bytes()).collect();
    // All at once, before much is emptied.
    let mut requests = words("FLUSHDB");
    few.iter().for_each(|key| requests.extend(request([b"SET", key.as_slice(), b"v"])));
    requests.extend(words("SCAN 0 COUNT 10"));
    let (steps, found) = loop {
        connection.send(&requests);
        let flushed = connection.reply();
        few.iter().for_each(|_| connection.reply().assert_ok());
        let scanned = scan_on(&mut connection, b"10");
        if flushed.is_ok() {
            break scanned;
        }
        flushed.assert_refused("BUSY");
    };
    assert!(found.is_superset(&few), "SCAN has not found what was there all the time");
    assert!(steps > 1, "one step of SCAN has walked over all there is");
}

/// Goes to the end of a SCAN whose first step is asked for. Returns the number of steps, and the keys found.
fn scan_on(connection: &mut Wire, count: &[u8]) -> (usize, BTreeSet<Vec<u8>>) {
    let (mut steps, mut found) = (1, BTreeSet::new());
    loop {
        let Ok([cursor, keys]) = <[Reply; 2]>::try_from(connection.reply().elements()) else {
            panic!("SCAN tells a cursor and keys");
        };
        found.extend(keys.elements().into_iter().map(Reply::text));
        let cursor = cursor.text();
        if cursor == b"0" {
            return (steps, found);
        }
        connection.send(&request([b"SCAN", cursor.as_slice(), b"COUNT", count]));
        steps += 1;
    }
}

/// Who lists keys must not hold up who flushes, for whom everybody else would wait: they are answered before the list has begun to come.
fn list_beside_a_flush(scene: &mut Scene) {
    const KEYS: usize = 20_000;
    const TRIES: usize = 3;
    /// So many take far less time than the list, and far more than a list that is done needs to be on its way, on a busy machine, too.
    const PINGS: usize = 250;
    /// Each place of a key looks for so long as if the pattern began there. It matches the one key that ends as it does.
    const LOOKS_LIKE: usize = 140;
    let beginning = "a".repeat(2 * LOOKS_LIKE);
    let list = format!("KEYS *{}!", &beginning[..LOOKS_LIKE]);
    let (mut lister, mut flusher, mut other) = (scene.connect(), scene.connect(), scene.connect());
    // That nobody is answered first proves nothing if it happens once: the machine may have had better things to do.
    for _ in 0..TRIES {
        load(&mut flusher, &beginning, KEYS);
        flusher.ask(&format!("SET {beginning}! v")).assert_ok();
        lister.send(&words(&list));
        std::thread::sleep(Duration::from_millis(30));
        flush(&mut flusher);
        (0..PINGS).for_each(|_| assert_eq!(other.ask("PING"), Reply::Text(b"PONG".to_vec())));
        let is_first = !lister.has_reply();
        // Where the flush has come before the list, there is nothing to be listed.
        let is_listed = lister.reply().elements().len() == 1;
        if is_first && is_listed {
            return scene.leave(vec![lister, flusher, other]);
        }
    }
    panic!("{TRIES} times nobody was answered before a list of keys was");
}

/// What waits for `EXEC` takes memory, however short it is.
fn queue_without_end(scene: &mut Scene) {
    /// Each takes more than 32 bytes to be told from the others.
    const PINGS: usize = 2_200_000;
    let mut connection = scene.connect();
    connection.ask("MULTI").assert_ok();
    let (mut queued, mut refused) = (0, 0);
    connection.ask_many(&b"PING\r\n".repeat(PINGS), PINGS, |reply| match reply {
        Reply::Error(text) if text.starts_with("ERR the queued commands") => refused += 1,
        Reply::Text(text) if text == b"QUEUED" => queued += 1,
        other => panic!("PING was neither queued nor refused: {}", other.shown()),
    });
    assert!(queued > 0 && refused > 0, "all of {queued} commands were queued for one EXEC");
    connection.ask("EXEC").assert_refused("EXECABORT");
    scene.leave(vec![connection]);
}

/// Each takes a map, of which there may be so many and no more.
fn flush_in_a_transaction(scene: &mut Scene) {
    const FLUSHES: usize = 1_100;
    let mut connection = scene.connect();
    connection.ask("SET kept v").assert_ok();
    connection.ask("MULTI").assert_ok();
    connection.ask_many(&words("FLUSHDB").repeat(FLUSHES), FLUSHES, |reply| {
        assert_eq!(reply, Reply::Text(b"QUEUED".to_vec()));
    });
    connection.ask("EXEC").assert_refused("BUSY");
    assert_eq!(connection.ask("GET kept"), Reply::Text(b"v".to_vec()));
    flush(&mut connection);
}

/// They come quicker than what they leave is emptied.
fn flush_in_a_burst(scene: &mut Scene) {
    // Each map takes a walk over all keys to be emptied, beside whatever comes next.
    let flushes = if scene.random.one_in(4) { 1_500 } else { 150 };
    let mut connection = scene.connect();
    let requests = [words("SET key v"), words("FLUSHDB")].concat().repeat(flushes);
    connection.ask_many(&requests, 2 * flushes, |reply| {
        if !reply.is_ok() {
            reply.assert_refused("BUSY");
        }
    });
    flush(&mut connection);
}

/// Who asks for the server's state is in the keyspace that the others want for themselves, or wants it for itself.
fn ask_beside_flushes(scene: &mut Scene) {
    const TIMES: usize = 100;
    let (mut flusher, mut other) = (scene.connect(), scene.connect());
    flush(&mut flusher);
    flusher.ask("MULTI").assert_ok();
    let commands = ["SET key v", "FLUSHDB", "INFO keyspace", "SET key v", "FLUSHDB", "INFO"];
    for command in commands {
        assert_eq!(flusher.ask(command), Reply::Text(b"QUEUED".to_vec()));
    }
    match flusher.ask("EXEC") {
        Reply::Array(replies) => assert_eq!(replies.len(), commands.len()),
        refused => refused.assert_refused("BUSY"),
    }
    for _ in 0..TIMES {
        other.send(&[words("GET key"), words("INFO keyspace")].concat());
        flusher.send(&[words("SET key v"), words("FLUSHDB")].concat());
        for connection in [&mut other, &mut flusher] {
            (0..2).for_each(|_| assert_ne!(connection.reply(), Reply::End));
        }
    }
    scene.leave(vec![flusher, other]);
}

/// Whoever waits for the rest of a request needs no buffer for replies.
fn halve_behind_replies(scene: &mut Scene) {
    let before = scene.process.resident();
    let mut connections = scene.connect_many(MANY);
    set_large(&mut connections[0], "large", 8);
    let requests = [words("GET large"), half()].concat();
    for connection in &mut connections {
        connection.send(&requests);
        assert!(matches!(connection.reply(), Reply::Text(value) if value.len() == 8 * MIB));
    }
    scene.process.assert_returns_to(before + SLACK);
    scene.leave(connections);
}

/// As many arguments as there may be; nothing knows this command, and so it costs no more than to be read.
fn many_arguments() -> Vec<u8> {
    let mut request = b"*1048576\r\n".to_vec();
    request.extend(b"$1\r\nx\r\n".repeat(1_048_576));
    request
}

/// Two requests that are large each in its way. None is run.
fn large_requests() -> [Vec<u8>; 2] {
    [many_arguments(), request([b"NOTHING".as_slice(), &vec![b'v'; 8 * MIB]])]
}

/// A connection that has nothing to do holds next to nothing, whatever was sent on it.
fn send_large_requests(scene: &mut Scene) {
    let before = scene.process.resident();
    let requests = large_requests();
    let mut connections = scene.connect_many(2 * MANY);
    for (connection, request) in connections.iter_mut().zip(requests.iter().cycle()) {
        // In two parts, the first of which waits for the other.
        let (first, rest) = request.split_at(scene.random.below(request.len()));
        connection.send(first);
        connection.send(rest);
        connection.reply().assert_refused("ERR unknown command");
    }
    scene.process.assert_returns_to(before + SLACK);
    scene.leave(connections);
}

/// Nor does one that waits for the rest of a short one.
fn halve_behind_requests(scene: &mut Scene) {
    let before = scene.process.resident();
    let [many, large] = large_requests();
    let requests = [[many, b"*2\r\n$3\r\nGET\r\n".to_vec()].concat(), [large, half()].concat()];
    let mut connections = scene.connect_many(2 * MANY);
    for (connection, request) in connections.iter_mut().zip(requests.iter().cycle()) {
        connection.send(request);
        connection.reply().assert_refused("ERR unknown command");
    }
    scene.process.assert_returns_to(before + SLACK);
    scene.leave(connections);
}

/// Memory is for what has arrived.
fn announce(scene: &mut Scene) {
    let mut connections = scene.connect_many(MANY);
    for connection in &mut connections {
        connection.send(b"*1048576\r\n$16777216\r\nSET");
    }
    scene.leave(connections);
}

/// As long as they wait they may be held, and then they are gone.
fn break_large_requests_off(scene: &mut Scene) {
    let before = scene.process.resident();
    let mut connections = scene.connect_many(16);
    let large = request([b"SET".as_slice(), b"large", &vec![b'v'; 16 * MIB]]);
    let many = many_arguments();
    for (connection, request) in connections.iter_mut().zip([&large, &many].into_iter().cycle()) {
        connection.send(&request[..request.len() - 1 - scene.random.below(1_000)]);
    }
    drop(connections);
    scene.process.assert_returns_to(before + SLACK);
}

/// A client whose machine is gone sends nothing any more, not even that: the system has to ask.
fn vanish(scene: &mut Scene) {
    let mut connections = scene.connect_many(MANY);
    for connection in &mut connections {
        assert_eq!(connection.ask("PING"), Reply::Text(b"PONG".to_vec()));
    }
    scene.process.assert_probes(&connections.iter().map(Wire::local_port).collect());
    scene.leave(connections);
}

/// What a page may have a browser send to this machine must not be run.
fn browse(scene: &mut Scene) {
    for request in [
        "POST / HTTP/1.1\r\nContent-Length: 17\r\n\r\nSET browsed yes\r\n",
        "GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\nSET browsed yes\r\n",
        "put / HTTP/1.1\r\nhost: kiln\r\nSET browsed yes\r\n",
    ] {
        let mut browser = scene.connect();
        browser.send(request.as_bytes());
        browser.end();
        while browser.reply() != Reply::End {}
        assert_eq!(scene.connect().ask("EXISTS browsed"), Reply::Integer(0), "{request:?} was run");
    }
}

/// The connection ends, and says why if that can be said.
fn speak_nonsense(scene: &mut Scene) {
    for nonsense in [
        b"*x\r\n".as_slice(),
        b"*1\r\n+PING\r\n",
        b"*1\r\n$-5\r\nPING\r\n",
        b"*1048577\r\n",
        b"*99999999999999999999999\r\n",
        b"*1\r\n$600000000\r\n",
        b"*1\r\n$4\r\nPINGPING\r\n",
        b"SET \"open\r\n",
        &[b'x'; 70_000],
    ] {
        let mut connection = scene.connect();
        connection.send(&[words("PING"), nonsense.to_vec()].concat());
        assert_eq!(connection.reply(), Reply::Text(b"PONG".to_vec()));
        connection.reply().assert_refused("ERR Protocol error");
        assert_eq!(connection.reply(), Reply::End, "after {}", nonsense.escape_ascii());
    }
    for _ in 0..MANY {
        let mut connection = scene.connect();
        let length = scene.random.below(100_000);
        // An error says that it is ended already.
        let _ = connection.try_send(&noise(&mut scene.random, length));
        connection.end();
        while connection.reply() != Reply::End {}
    }
}

/// Bytes of any value, or such as requests are made of.
fn noise(random: &mut Random, length: usize) -> Vec<u8> {
    if random.one_in(2) {
        return random.bytes(length);
    }
    let pieces = ["*1\r\n", "*3\r\n", "$3\r\n", "$0\r\n", "GET", "SET", "\r\n", "\0", "\"", "-1", "PING\r\n"];
    let mut noise = Vec::with_capacity(length + 8);
    while noise.len() < length {
        noise.extend_from_slice(random.pick(&pieces).as_bytes());
    }
    noise
}

/// Each is refused, and the connection goes on.
fn exceed_limits(scene: &mut Scene) {
    let mut connection = scene.connect();
    let (long_value, value) = (vec![b'v'; 16 * MIB + 1], vec![b'v'; 15 * MIB]);
    let long_key = vec![b'k'; 64 * 1024 + 1];
    let too_long = [b"MSET".as_slice(), b"a", &value, b"b", &value, b"c", &value, b"d", &value, b"e", &value];
    for (arguments, refusal) in [
        (&[b"SET".as_slice(), b"key", &long_value][..], "ERR an argument of"),
        (&[b"SET".as_slice(), &long_key, b"v"], "ERR a key of"),
        (&too_long, "ERR a request must not be longer"),
    ] {
        connection.send(&request(arguments));
        connection.reply().assert_refused(refusal);
        assert_eq!(connection.ask("EXISTS key a"), Reply::Integer(0));
    }
    scene.leave(vec![connection]);
}

/// A reply has its limit, whether it is of one command or of several.
fn ask_for_too_much(scene: &mut Scene) {
    const TIMES: usize = 20;
    let mut connection = scene.connect();
    set_large(&mut connection, "large", 15);
    let keys = vec!["large"; TIMES];
    connection.send(&request(std::iter::once("MGET").chain(keys)));
    connection.reply().assert_refused("ERR the reply would be longer");
    connection.ask("MULTI").assert_ok();
    (0..TIMES).for_each(|_| drop(connection.ask("GET large")));
    connection.ask("EXEC").assert_refused("EXECABORT LIMIT the reply of the transaction");
    connection.ask("DEL large");
    scene.leave(vec![connection]);
}

/// They are held as long as the connection wants.
fn watch_too_much(scene: &mut Scene) {
    let mut connection = scene.connect();
    let end = 1_000;
    let refused = (0..end).find(|round| {
        let keys = (0..1_000).map(|key| format!("watched:{round}:{key}"));
        connection.send(&request(std::iter::once("WATCH".to_owned()).chain(keys)));
        !connection.reply().is_ok()
    });
    assert!(refused.is_some_and(|round| round > 0), "a million keys are watched");
    connection.ask("UNWATCH").assert_ok();
    connection.ask("WATCH key").assert_ok();
    scene.leave(vec![connection]);
}

/// Those that are too many are told so, and the others stay.
fn connect_too_often(scene: &mut Scene) {
    let mut first = scene.connect();
    assert_eq!(first.ask("PING"), Reply::Text(b"PONG".to_vec()));
    let mut connections = scene.connect_many(super::CONNECTIONS + 20);
    let mut refused = 0;
    for connection in &mut connections {
        // An error says that it is ended already.
        let _ = connection.try_send(&words("PING"));
        let reply = connection.reply();
        if reply != Reply::Text(b"PONG".to_vec()) {
            refused += 1;
            // What was said may be lost with the connection.
            if reply != Reply::End {
                reply.assert_refused("ERR max number of clients");
            }
        }
    }
    assert!(refused >= 20, "{refused} of {} connections were refused", connections.len());
    assert_eq!(first.ask("PING"), Reply::Text(b"PONG".to_vec()));
    drop(connections);
    let end = Instant::now() + PATIENCE;
    while scene.connect().try_ask("PING") != Some(Reply::Text(b"PONG".to_vec())) {
        assert!(Instant::now() < end, "nobody can connect any more");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// What cannot be sent is not made, and what is not run is not read.
fn read_nothing(scene: &mut Scene) {
    const REPLIES: usize = 2_000;
    let mut connections = scene.connect_many(16);
    set_large(&mut connections[0], "large", 1);
    let requests = words("GET large").repeat(REPLIES);
    for connection in &mut connections {
        connection.send(&requests);
    }
    // Until no more fit into what lies between.
    for connection in connections.iter_mut().take(2) {
        let more = words(&format!("SET key {}", "v".repeat(1_000))).repeat(30_000);
        let sent = connection.send_for(&more, Duration::from_millis(300));
        assert!(sent.is_err_and(|error| error.kind() == ErrorKind::WouldBlock), "30 MB were read");
    }
    // The server waits some seconds for who is still there in the end.
    if scene.random.one_in(8) {
        scene.left.extend(connections.pop());
    }
}
