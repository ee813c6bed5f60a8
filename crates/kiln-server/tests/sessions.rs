//! Sessions that are listed and forgotten.

mod common;

use common::{Client, TestServer};
use kiln::Kiln;

fn ask(client: &mut Client, words: &[&str]) -> String {
    let words: Vec<&[u8]> = words.iter().map(|word| word.as_bytes()).collect();
    client.send(&words);
    client.reply()
}

fn session(id: &str, serial: u64, is_open: bool) -> String {
    format!("[\"{id}\", (integer) {serial}, (integer) {serial}, (integer) {}]", u8::from(is_open))
}

#[test]
fn sessions_are_listed_in_pieces_and_those_that_nobody_has_can_be_forgotten() {
    let directory = tempfile::tempdir().unwrap();
    let server = TestServer::at(directory.path());
    let mut client = server.client();
    for id in ["a", "LIST", "c", "d"] {
        assert_eq!(ask(&mut client, &["KILN", "SESSION", id]), "(integer) 0");
        client.expect("SET k 1", "OK");
    }
    client.expect("WAITAOF 1 0 0", "[(integer) 1, (integer) 0]");
    let [a, c, list, d] = [("a", false), ("c", false), ("LIST", false), ("d", true)]
        .map(|(id, is_open)| session(id, 1, is_open));
    let page = |cursor: &str, sessions: &[&str]| format!("[\"{cursor}\", [{}]]", sessions.join(", "));
    let mut other = server.client();
    assert_eq!(ask(&mut other, &["KILN", "SESSIONS", "LIST", ""]), page("", &[&list, &a, &c, &d]));
    let two = |cursor| ["KILN", "SESSIONS", "list", cursor, "count", "2"];
    assert_eq!(ask(&mut other, &two("")), page("a", &[&list, &a]));
    assert_eq!(ask(&mut other, &two("a")), page("d", &[&c, &d]));
    assert_eq!(ask(&mut other, &two("d")), page("", &[]));

    assert!(ask(&mut other, &["KILN", "SESSIONS", "FORGET", "d"]).starts_with("(error) LOCKED session"));
    other.expect("KILN SESSIONS FORGET nobody", "(integer) 0");
    other.expect("KILN SESSIONS FORGET a 2", "(integer) 0");
    other.expect("KILN SESSIONS FORGET a -1", "(integer) 0");
    other.expect("KILN SESSIONS FORGET a 1", "(integer) 1");
    other.expect("KILN SESSIONS FORGET LIST", "(integer) 1");
    assert_eq!(ask(&mut other, &["KILN", "SESSIONS", "LIST", ""]), page("", &[&c, &d]));
    other.expect("KILN SESSION a", "(integer) 0");

    for wrong in ["KILN SESSIONS", "KILN SESSIONS LIST", "KILN SESSIONS FORGET", "KILN SESSIONS LIST a COUNT"]
    {
        other.expect(wrong, "(error) ERR wrong number of arguments for 'kiln|sessions' command");
    }
    other.expect("KILN SESSIONS FOO", "(error) ERR unknown subcommand 'SESSIONS FOO'. Try KILN HELP.");
    other.expect("KILN SESSIONS LIST a COUNT 0", "(error) ERR syntax error");
    other.expect("KILN SESSIONS FORGET a b", "(error) ERR value is not an integer or out of range");
    drop((client, other));
    server.stop();
    let db = Kiln::open(directory.path()).unwrap();
    let ids: Vec<_> = db.recovery_report().sessions.iter().map(|(id, _)| id.as_slice()).collect();
    assert_eq!(ids, [b"c", b"d"]);
}

/// The reply to one request has an end, however much is asked for.
#[test]
fn a_list_of_sessions_is_bounded() {
    let server = TestServer::start();
    for number in 0..1_010 {
        let session = server.db.session(format!("{number:04}")).unwrap();
        session.transact(|_| Ok(())).unwrap().forget();
    }
    server.db.persist().unwrap();
    let mut client = server.client();
    let mut cursor_of = |words: &[&str]| ask(&mut client, words)[..8].to_owned();
    assert_eq!(cursor_of(&["KILN", "SESSIONS", "LIST", ""]), "[\"0099\",");
    assert_eq!(cursor_of(&["KILN", "SESSIONS", "LIST", "", "COUNT", "1000000"]), "[\"0999\",");
    assert_eq!(cursor_of(&["KILN", "SESSIONS", "LIST", "0999"]), "[\"\", [[\"");
}

/// It is answered when a crash cannot take it back.
#[test]
fn c5_forgetting_is_durable_when_it_is_answered() {
    let (disk, db) = common::simulated(1);
    let server = TestServer::over(db, kiln_server::Options::new());
    let mut client = server.client();
    client.expect("KILN SESSION s", "(integer) 0");
    client.expect("SET k 1", "OK");
    client.expect("KILN SESSION other", "(integer) 0");
    client.expect("KILN DURABILITY fast", "OK");
    client.expect("KILN SESSIONS FORGET s", "(integer) 1");
    disk.crash_after(disk.steps());
    let left = disk.after_crash(&mut |_| kiln::device::Keep::Lost);
    let db = common::database_options().open_on(std::sync::Arc::new(left)).unwrap();
    assert_eq!(db.recovery_report().sessions, []);
}
