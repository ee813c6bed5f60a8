//! Snapshots that have names: made, listed, read and dropped through the server.

mod common;

use common::{TestServer, integer, lazy_server};
use kiln::Kiln;
use kiln_server::{Durability, Options};

#[test]
fn c5_snapshots_get_names_are_listed_and_dropped_and_survive_the_server() {
    let directory = tempfile::tempdir().unwrap();
    let server = lazy_server(directory.path(), Durability::Fast);
    let mut client = server.client();
    client.expect("SET k before", "OK");
    let version = integer(&client.run("KILN RECEIPT"));
    let shown = integer(&client.run("KILN SNAPSHOT CREATE monday"));
    assert!(shown >= version && integer(&client.run("KILN HORIZON")) >= shown);
    client.expect("SET k after", "OK");
    let listed = client.run("KILN SNAPSHOT LIST");
    assert!(listed.contains("monday") && listed.contains(&shown.to_string()), "{listed}");
    assert!(client.run("KILN SNAPSHOT CREATE monday").contains("already"));
    assert!(client.run("KILN SNAPSHOT DROP tuesday").contains("there is no snapshot"));
    client.expect("KILN SNAPSHOT FOO", "(error) ERR unknown subcommand 'SNAPSHOT FOO'. Try KILN HELP.");
    for wrong in ["KILN SNAPSHOT", "KILN SNAPSHOT CREATE", "KILN SNAPSHOT LIST all", "KILN SNAPSHOT DROP a b"]
    {
        assert!(client.run(wrong).contains("ERR"), "{wrong}");
    }
    drop((client, server));
    let db = Kiln::open(directory.path()).unwrap();
    let monday = db.open_snapshot("monday").unwrap();
    let strings = db.map("strings").unwrap();
    assert_eq!(monday.get(&strings, "k").unwrap().as_deref(), Some(&b"before"[..]));
    drop((monday, strings));
    drop(db);
    let server = lazy_server(directory.path(), Durability::Fast);
    server.client().expect("KILN SNAPSHOT DROP monday", "OK");
    assert!(!server.client().run("KILN SNAPSHOT LIST").contains("monday"));
}

#[test]
fn c5_a_snapshot_shows_what_there_was_whatever_happens_to_it_later() {
    let directory = tempfile::tempdir().unwrap();
    let server = lazy_server(directory.path(), Durability::Fast);
    let mut client = server.client();
    client.run("KILN SNAPSHOT CREATE empty");
    client.expect("MSET a 1 b 2 other 3", "OK");
    client.expect("SET short-lived 4 PX 3600000", "OK");
    client.run("KILN SNAPSHOT CREATE monday");
    client.expect("SET a changed", "OK");
    client.expect("DEL b", "(integer) 1");
    client.expect("EXPIRE short-lived -1", "(integer) 1");
    client.expect("SET late 5", "OK");
    let shows_monday = |client: &mut common::Client| {
        client.expect("KILN SNAPSHOT GET monday a", "\"1\"");
        client.expect("kiln snapshot get monday late", "(nil)");
        let all = "KILN SNAPSHOT MGET monday a b late short-lived a";
        client.expect(all, "[\"1\", \"2\", (nil), \"4\", \"1\"]");
        let mut keys = client.run("KILN SNAPSHOT KEYS monday ?");
        // In no order.
        keys = keys.replace("[\"b\", \"a\"]", "[\"a\", \"b\"]");
        assert_eq!(keys, "[\"a\", \"b\"]");
        client.expect("KILN SNAPSHOT KEYS monday l*", "[]");
        client.expect("KILN SNAPSHOT GET empty a", "(nil)");
        client.expect("KILN SNAPSHOT KEYS empty *", "[]");
    };
    shows_monday(&mut client);
    // A flush makes another object the current one, and empties the old one.
    client.expect("FLUSHALL", "OK");
    client.expect("SET a flushed", "OK");
    shows_monday(&mut client);
    client.run("KILN SNAPSHOT CREATE tuesday");
    client.expect("FLUSHALL", "OK");
    client.expect("KILN SNAPSHOT GET tuesday a", "\"flushed\"");
    client.expect("GET a", "(nil)");
    drop((client, server));
    let server = lazy_server(directory.path(), Durability::Fast);
    let mut client = server.client();
    shows_monday(&mut client);
    client.expect("KILN SNAPSHOT MGET tuesday a b", "[\"flushed\", (nil)]");
    assert!(client.run("HELLO 3").starts_with('{'));
    client.expect("KILN SNAPSHOT GET monday late", "(null)");
    client.expect("KILN SNAPSHOT DROP monday", "OK");
    let gone = client.run("KILN SNAPSHOT GET monday a");
    assert!(gone.starts_with("(error) ERR ") && gone.contains("there is no snapshot"), "{gone}");
}

/// What had their names at the time of the question was asked: nothing, once they were dropped.
#[test]
fn c5_a_snapshot_shows_what_there_was_in_maps_that_were_dropped_since() {
    let directory = tempfile::tempdir().unwrap();
    let db = common::database_options().open(directory.path()).unwrap();
    db.create_snapshot("nothing").unwrap();
    let server = TestServer::over(db, Options::new());
    let mut client = server.client();
    client.expect("SET a first", "OK");
    client.run("KILN SNAPSHOT CREATE monday");
    client.expect("FLUSHALL", "OK");
    client.expect("SET a second", "OK");
    client.run("KILN SNAPSHOT CREATE tuesday");
    client.expect("FLUSHALL", "OK");
    server.stop();
    let db = common::database_options().open(directory.path()).unwrap();
    for map in ["strings", "strings.1"] {
        db.drop_map(map).unwrap().safe().unwrap();
    }
    db.drop_table("keyspace").unwrap().safe().unwrap();
    let server = TestServer::over(db, Options::new());
    let mut client = server.client();
    for (day, value) in [("monday", "first"), ("tuesday", "second")] {
        client.expect(&format!("KILN SNAPSHOT GET {day} a"), &format!("\"{value}\""));
        client.expect(&format!("KILN SNAPSHOT MGET {day} b a"), &format!("[(nil), \"{value}\"]"));
        client.expect(&format!("KILN SNAPSHOT KEYS {day} *"), "[\"a\"]");
    }
    client.expect("KILN SNAPSHOT GET nothing a", "(nil)");
    client.expect("KILN SNAPSHOT KEYS nothing *", "[]");
}

#[test]
fn reads_of_a_snapshot_refuse_what_makes_no_sense() {
    let directory = tempfile::tempdir().unwrap();
    let server = lazy_server(directory.path(), Durability::Fast);
    let mut client = server.client();
    client.run("KILN SNAPSHOT CREATE monday");
    for wrong in ["GET monday", "GET monday a b", "MGET monday", "KEYS monday", "KEYS monday a b"] {
        let error = "(error) ERR wrong number of arguments for 'kiln|snapshot' command";
        client.expect(&format!("KILN SNAPSHOT {wrong}"), error);
    }
    for missing in ["GET tuesday a", "MGET tuesday a b", "KEYS tuesday *"] {
        let reply = client.run(&format!("KILN SNAPSHOT {missing}"));
        assert!(reply.starts_with("(error) ERR ") && reply.contains("there is no snapshot"), "{reply}");
    }
    client.send(&[b"KILN", b"SNAPSHOT", b"GET", b"\xff", b"a"]);
    assert_eq!(client.reply(), "(error) ERR a snapshot's name is UTF-8");
    let long = "x".repeat(1025);
    client
        .expect(&format!("KILN SNAPSHOT KEYS monday {long}"), "(error) ERR the pattern is longer than 1 KiB");
    client.expect("MULTI", "OK");
    client.expect("KILN SNAPSHOT GET monday a", "(error) ERR Command not allowed inside a transaction");
}
