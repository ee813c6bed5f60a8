//! What all clients together may hold.

mod common;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use common::{Client, TestServer, encode, info_field, integer};
use kiln_server::{Durability, Options};

const MIB: usize = 1 << 20;
const LIMIT: &str =
    "LIMIT the requests and unread replies of all clients together take as much memory as they may; retry";

fn server(client_memory: usize) -> TestServer {
    TestServer::with_options(Options::new().durability(Durability::Fast).client_memory_max(client_memory))
}

/// How much clients hold, as the server tells.
fn held(client: &mut Client) -> usize {
    info_field(&client.run("INFO memory"), "client_memory_bytes").parse().unwrap()
}

#[track_caller]
fn wait_until(client: &mut Client, is_right: impl Fn(usize) -> bool) {
    let began = Instant::now();
    loop {
        let bytes = held(client);
        if is_right(bytes) {
            return;
        }
        assert!(began.elapsed() < Duration::from_secs(60), "{bytes} bytes are held");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A connection of a client that reads no more than it is told to.
fn connect(server: &TestServer) -> TcpStream {
    let stream = TcpStream::connect(server.address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    stream
}

/// The beginning of the next reply.
fn beginning(stream: &mut TcpStream) -> [u8; 6] {
    let mut bytes = [0; 6];
    stream.read_exact(&mut bytes).unwrap();
    bytes
}

/// Each might have 256 MiB of replies unread, and a few dozen such clients ended the server for want of memory.
#[test]
fn replies_that_are_not_read_take_no_more_memory_than_all_clients_may_have() {
    let server = server(64 * MIB);
    let mut client = server.client();
    client.send(&[b"SET", b"k", &vec![b'v'; 15 * MIB]]);
    assert_eq!(client.reply(), "OK");
    let mut stuck: Vec<_> = (0..8).map(|_| connect(&server)).collect();
    let replies = stuck.iter_mut().map(|stream| {
        stream.write_all(&encode(&[b"MGET", b"k", b"k"])).unwrap();
        beginning(stream)
    });
    let served = replies.filter(|reply| reply.starts_with(b"*2")).count();
    assert_eq!(served, 2, "so many have room");
    client.expect("MGET k k", &format!("(error) {LIMIT}"));
    client.expect("SET small 1", "OK");
    client.expect("MGET small small", "[\"1\", \"1\"]");
    let bytes = held(&mut client);
    assert!((59 * MIB..=64 * MIB).contains(&bytes), "{bytes} bytes");
    drop(stuck);
    wait_until(&mut client, |bytes| bytes == 0);
    let mut again = connect(&server);
    again.write_all(&encode(&[b"MGET", b"k", b"k"])).unwrap();
    assert!(beginning(&mut again).starts_with(b"*2"), "there is room again");
}

#[test]
fn what_has_no_room_for_its_reply_has_changed_nothing() {
    let server = server(4 * MIB);
    let strings = server.db.map("strings").unwrap();
    server.db.put(&strings, "k", vec![b'v'; 8 * MIB]).unwrap().forget();
    let mut client = server.client();
    let refused = format!("(error) {LIMIT}");
    for command in ["GET k", "GETSET k new", "GETDEL k", "SET k new GET", "MGET k", "GETRANGE k 0 -1"] {
        client.expect(command, &refused);
    }
    for command in ["MULTI", "SET other 1", "GET k"] {
        assert!(["OK", "QUEUED"].contains(&&*client.run(command)));
    }
    client.expect("EXEC", &format!("(error) EXECABORT {LIMIT}"));
    assert_eq!((integer(&client.run("STRLEN k")), &*client.run("EXISTS other")), (8 << 20, "(integer) 0"));
    assert_eq!(held(&mut client), 0);
}

#[test]
fn a_request_for_which_there_is_no_memory_is_refused_as_it_arrives_and_the_connection_lives_on() {
    let server = server(32 * MIB);
    let mut client = server.client();
    let request = encode(&[b"SET", b"k", &vec![b'v'; 15 * MIB]]);
    let (first, rest) = request.split_at(14 * MIB);
    let mut begun = [server.client(), server.client()];
    for (index, begun) in begun.iter_mut().enumerate() {
        begun.send_bytes(first);
        wait_until(&mut client, |bytes| bytes >= 13 * (index + 1) * MIB);
    }
    let mut refused = server.client();
    refused.send_bytes(&request);
    assert_eq!(refused.reply(), format!("(error) {LIMIT}"));
    refused.expect("PING", "PONG");
    assert!(held(&mut client) <= 32 * MIB);
    for begun in &mut begun {
        begun.send_bytes(rest);
        assert_eq!(begun.reply(), "OK");
    }
    wait_until(&mut client, |bytes| bytes == 0);
}

#[test]
fn what_is_queued_counts_with_what_all_clients_hold() {
    let server = server(12 * MIB);
    let mut client = server.client();
    let value = vec![b'v'; 5 * MIB];
    client.expect("MULTI", "OK");
    client.send(&[b"SET", b"a", &value]);
    assert_eq!(client.reply(), "QUEUED");
    client.send(&[b"SET", b"b", &value]);
    assert_eq!(client.reply(), format!("(error) {LIMIT}"));
    assert!(client.run("EXEC").starts_with("(error) EXECABORT"));
    client.send(&[b"SET", b"b", &value]);
    assert_eq!(client.reply(), "OK");
    client.expect("EXISTS a b", "(integer) 1");
    assert_eq!(held(&mut client), 0);
}

/// It was not counted at all.
#[test]
fn the_keys_of_a_snapshot_count_as_long_as_they_are_not_read() {
    let server = server(64 * MIB);
    let strings = server.db.map("strings").unwrap();
    for number in 0..300_u32 {
        let key = [&number.to_be_bytes()[..], &[b'k'; 60_000]].concat();
        server.db.put(&strings, key, "").unwrap().forget();
    }
    let mut client = server.client();
    client.run("KILN SNAPSHOT CREATE s");
    let mut stuck = connect(&server);
    stuck.write_all(&encode(&[b"KILN", b"SNAPSHOT", b"KEYS", b"s", b"*"])).unwrap();
    assert_eq!(&beginning(&mut stuck), b"*300\r\n");
    let bytes = held(&mut client);
    assert!((17 * MIB..=18 * MIB).contains(&bytes), "{bytes} bytes");
    drop(stuck);
    wait_until(&mut client, |bytes| bytes == 0);
}

/// One of them came just behind so many that they were about to be sent, and had no room with these.
#[test]
fn small_replies_have_room_whatever_others_hold() {
    let server = server(0);
    let mut client = server.client();
    client.send(&[b"SET", b"k", &[b'v'; 10_000]]);
    assert_eq!(client.reply(), "OK");
    client.send_bytes(&encode(&[b"GET", b"k"]).repeat(60));
    for number in 0..60 {
        assert_eq!(client.reply().len(), 10_002, "reply {number}");
    }
}
