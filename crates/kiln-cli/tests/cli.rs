//! The command line as a user meets it.

mod common;

use std::io::{ErrorKind, Read as _, Write as _};
use std::path::Path;
use std::process::Stdio;

use common::{Sandbox, Served, text};

/// An end of a pipe that nobody reads from any more.
fn unread() -> Stdio {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    writer.into()
}

#[test]
fn what_is_put_is_got_and_what_is_deleted_is_gone() {
    let sandbox = Sandbox::new();
    sandbox.ok(&["put", "--object", "notes", "hello", "good morning"]);
    assert_eq!(sandbox.ok(&["get", "--object", "notes", "hello"]), "good morning\n");
    assert_eq!(sandbox.ok(&["get", "--object", "notes", "hello", "--raw"]), "good morning");
    assert_eq!(sandbox.ok(&["del", "--object", "notes", "hello", "none"]), "deleted 1 of 2\n");
    let error = sandbox.fails(1, &["get", "--object", "notes", "hello"]);
    assert_eq!(error, "kiln: 'notes' has no key 'hello'\n");
    assert!(sandbox.path("kiln-data").is_dir(), "the default directory");
}

#[test]
fn values_are_any_bytes_and_shown_escaped_unless_raw_is_asked_for() {
    let sandbox = Sandbox::new();
    let bytes = b"line\n\xff\0end";
    sandbox.ok_with_input(&["put", "--object", "blobs", "b"], bytes);
    assert_eq!(sandbox.ok(&["get", "--object", "blobs", "b"]), "line\\n\\xff\\x00end\n");
    let raw = sandbox.run(&["get", "--object", "blobs", "b", "--raw"]);
    assert_eq!(raw.stdout, bytes);
}

/// All of it was read first, and that never ended.
#[test]
fn a_value_that_never_ends_is_refused_before_it_fills_the_memory() {
    let sandbox = Sandbox::new();
    let mut command = sandbox.command(&["put", "--object", "blobs", "b"]);
    let mut child = command.stdin(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    // Four times as long as any value, instead of without an end, which would take the machine's memory with it.
    let zeros = vec![0; 4 * kiln::VALUE_BYTES_MAX];
    let written = child.stdin.take().unwrap().write_all(&zeros);
    assert_eq!(written.unwrap_err().kind(), ErrorKind::BrokenPipe, "not all of it is read");
    let output = child.wait_with_output().unwrap();
    let error = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{error}");
    assert!(error.contains("16777217") && error.contains("16777216"), "{error}");
    let longest = vec![7; kiln::VALUE_BYTES_MAX];
    sandbox.ok_with_input(&["put", "--object", "blobs", "b"], &longest);
    assert_eq!(sandbox.run(&["get", "--object", "blobs", "b", "--raw"]).stdout, longest);
}

#[test]
fn tables_are_scanned_in_order_within_bounds() {
    let sandbox = Sandbox::new();
    for key in ["b1", "a2", "a1", "c1", "b2"] {
        sandbox.ok(&["put", "--object", "events", "--table", key, &format!("v{key}")]);
    }
    let scan = |options: &[&str]| {
        let mut arguments = vec!["scan", "--object", "events", "--keys-only"];
        arguments.extend(options);
        sandbox.ok(&arguments).split_whitespace().collect::<Vec<_>>().join(" ")
    };
    assert_eq!(scan(&[]), "a1 a2 b1 b2 c1");
    assert_eq!(scan(&["--prefix", "b"]), "b1 b2");
    assert_eq!(scan(&["--from", "a2", "--to", "b2"]), "a2 b1");
    assert_eq!(scan(&["--reverse", "--limit", "2"]), "c1 b2");
    assert_eq!(scan(&["--from", "z", "--to", "a"]), "");
    assert_eq!(sandbox.ok(&["scan", "--object", "events", "--limit", "1"]), "a1\tva1\n");
    sandbox.fails(2, &["scan", "--object", "events", "--prefix", "a", "--from", "b"]);
}

#[test]
fn maps_are_scanned_in_no_order_and_say_so() {
    let sandbox = Sandbox::new();
    for key in ["a1", "a2", "b1"] {
        sandbox.ok(&["put", "--object", "map", key, "v"]);
    }
    let keys = sandbox.ok(&["scan", "--object", "map", "--keys-only", "--prefix", "a"]);
    let mut keys: Vec<&str> = keys.lines().collect();
    keys.sort_unstable();
    assert_eq!(keys, ["a1", "a2"]);
    let error = sandbox.fails(1, &["scan", "--object", "map", "--reverse"]);
    assert!(error.contains("which has no order"), "{error}");
    let error = sandbox.fails(1, &["put", "--object", "map", "--table", "k", "v"]);
    assert!(error.contains("is a map already"), "{error}");
}

#[test]
fn a_database_is_compacted_and_keeps_what_is_in_it() {
    let sandbox = Sandbox::new();
    let lines: String = (0..2_000).map(|n| format!("{{\"key\":\"{n}\",\"value\":\"{n:0500}\"}}\n")).collect();
    sandbox.ok_with_input(&["import", "--object", "o", "--table"], lines.as_bytes());
    let output = sandbox.run(&["compact"]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    assert!(text(&output.stderr).starts_with("compacted to "), "{}", text(&output.stderr));
    sandbox.ok(&["check"]);
    assert_eq!(sandbox.ok(&["get", "--object", "o", "1999"]).trim_end(), format!("{:0500}", 1999));
    assert!(sandbox.fails(1, &["compact", "nowhere"]).contains("no database"));
    // The files became longer, and nothing said why.
    for name in ["monday", "tuesday"] {
        sandbox.ok(&["snapshot", "create", name]);
    }
    sandbox.ok(&["drop", "--object", "o", "--yes"]);
    let held = text(&sandbox.run(&["compact"]).stderr);
    assert!(held.contains("; the snapshot 'monday' holds about "), "{held}");
    // It said that a small one had become twice as large, which it had.
    let small = Sandbox::new();
    small.ok(&["put", "--object", "o", "key", "value"]);
    let output = small.run(&["compact"]);
    assert!(
        text(&output.stderr).starts_with("compacted to 32.1 MiB, from 32.0 MiB"),
        "{}",
        text(&output.stderr)
    );
}

#[test]
fn a_snapshot_that_has_a_name_is_read_as_it_was_until_it_is_dropped() {
    let sandbox = Sandbox::new();
    sandbox.ok(&["put", "--object", "events", "--table", "one", "old"]);
    sandbox.ok(&["snapshot", "create", "monday"]);
    assert!(sandbox.fails(1, &["snapshot", "create", "monday"]).contains("already"));
    sandbox.ok(&["put", "--object", "events", "one", "new"]);
    sandbox.ok(&["put", "--object", "events", "two", "new"]);
    let at = ["--object", "events", "--snapshot", "monday"];
    assert_eq!(sandbox.ok(&[&["get"], &at[..], &["one"]].concat()), "old\n");
    assert_eq!(sandbox.ok(&[&["scan"], &at[..]].concat()), "one\told\n");
    assert_eq!(sandbox.ok(&[&["export"], &at[..]].concat()).lines().count(), 1);
    assert_eq!(sandbox.ok(&["scan", "--object", "events"]), "one\tnew\ntwo\tnew\n");
    let listed = sandbox.ok(&["snapshot", "list"]);
    assert!(listed.starts_with("monday\t") && listed.contains("holds about"), "{listed}");
    sandbox.ok(&["snapshot", "drop", "monday"]);
    assert_eq!(sandbox.ok(&["snapshot", "list"]), "");
    assert!(sandbox.fails(1, &["snapshot", "drop", "monday"]).contains("there is no snapshot"));
    assert!(sandbox.fails(1, &[&["get"], &at[..], &["one"]].concat()).contains("there is no snapshot"));
}

#[test]
fn sessions_are_listed_and_forgotten() {
    let sandbox = Sandbox::new();
    let db = kiln::Kiln::open(sandbox.path("kiln-data")).unwrap();
    for (id, operations) in [(&b"exchange-7"[..], 2), (b"tab\t\xff", 1), (b"third", 3)] {
        let session = db.session(id).unwrap();
        (0..operations).for_each(|_| session.transact(|_| Ok(())).unwrap().forget());
    }
    db.close().unwrap();
    drop(db);
    assert_eq!(sandbox.ok(&["session", "list"]), "exchange-7\t2\ntab\\t\\xff\t1\nthird\t3\n");
    assert_eq!(sandbox.ok(&["session", "forget", "exchange-7", "nobody", "third"]), "forgot 2 of 3\n");
    assert_eq!(sandbox.ok(&["session", "list"]), "tab\\t\\xff\t1\n");
    assert!(sandbox.fails(1, &["session", "forget", ""]).contains("1 to 1024 bytes"));
    sandbox.fails(2, &["session", "forget"]);
    sandbox.ok(&["check"]);
}

#[test]
fn an_object_is_dropped_and_a_snapshot_from_before_still_has_it() {
    let sandbox = Sandbox::new();
    sandbox.ok(&["put", "--object", "notes", "hello", "good morning"]);
    sandbox.ok(&["put", "--object", "events", "--table", "2026", "x"]);
    sandbox.ok(&["snapshot", "create", "monday"]);
    let error = sandbox.fails(1, &["drop", "--object", "notes"]);
    assert_eq!(error, "kiln: drop 'notes' with its 1 keys? say so with --yes\n");
    assert_eq!(sandbox.ok(&["get", "--object", "notes", "hello"]), "good morning\n");
    sandbox.ok(&["drop", "--object", "notes", "--yes"]);
    sandbox.ok(&["drop", "--object", "events", "--yes"]);
    let error = sandbox.fails(1, &["get", "--object", "notes", "hello"]);
    assert!(error.contains("no object named 'notes'; it has none"), "{error}");
    sandbox.fails(1, &["drop", "--object", "notes", "--yes"]);
    let at_monday = |arguments: &[&str]| sandbox.ok(&[arguments, &["--snapshot", "monday"]].concat());
    assert_eq!(at_monday(&["get", "--object", "notes", "hello"]), "good morning\n");
    assert_eq!(at_monday(&["scan", "--object", "events"]), "2026\tx\n");
    assert_eq!(at_monday(&["export", "--object", "events"]), "{\"key\":\"2026\",\"value\":\"x\"}\n");
    // The name may be another kind's.
    sandbox.ok(&["put", "--object", "notes", "--table", "hello", "good evening"]);
    assert_eq!(sandbox.ok(&["scan", "--object", "notes"]), "hello\tgood evening\n");
    assert_eq!(at_monday(&["get", "--object", "notes", "hello"]), "good morning\n");
    sandbox.ok(&["check"]);
}

#[test]
fn a_database_can_be_checked_described_and_dumped() {
    let sandbox = Sandbox::new();
    sandbox.ok(&["put", "--object", "notes", "--dir", "db", "k", "v"]);
    sandbox.ok(&["put", "--object", "events", "--table", "--dir", "db", "k", "v"]);
    sandbox.ok(&["check", "db"]);
    let stat = sandbox.ok(&["stat", "db"]);
    assert!(stat.contains("notes (1 keys)") && stat.contains("events (1 keys)"), "{stat}");
    assert!(stat.contains("records       0 not durable (0 B), "), "{stat}");
    assert!(stat.contains(" entries in 1.000 lines on average, 1 lines at the most, of "), "{stat}");
    assert!(stat.contains("compaction    idle\n") && !stat.contains("served"), "{stat}");
    assert!(!sandbox.ok(&["dump-log", "db"]).is_empty());
}

#[test]
fn damage_makes_check_fail_with_1() {
    let sandbox = Sandbox::new();
    sandbox.ok(&["put", "--object", "notes", "--dir", "db", "precious", "v"]);
    sandbox.ok(&["put", "--object", "notes", "--dir", "db", "another", "v"]);
    let damaged = damage(&sandbox.path("db"), b"precious");
    assert!(damaged > 0, "the key must be somewhere in the files");
    let error = sandbox.fails(1, &["check", "db"]);
    assert!(error.starts_with("kiln: "), "{error}");
    assert_eq!(error.lines().count(), 1, "{error}");
}

/// Flips a bit in every place of the files below `directory` that holds `needle`, and says how many there
/// were.
fn damage(directory: &Path, needle: &[u8]) -> usize {
    let mut count = 0;
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            count += damage(&path, needle);
            continue;
        }
        let mut bytes = std::fs::read(&path).unwrap();
        let places: Vec<usize> = (0..bytes.len()).filter(|at| bytes[*at..].starts_with(needle)).collect();
        for at in &places {
            bytes[*at] ^= 1;
        }
        if !places.is_empty() {
            std::fs::write(&path, bytes).unwrap();
        }
        count += places.len();
    }
    count
}

/// `println!` panics where nobody reads: commands ended with 101, and `check | head` did not say whether there was damage.
#[test]
fn what_nobody_reads_changes_neither_what_is_done_nor_the_exit_code() {
    let sandbox = Sandbox::new();
    let code = |arguments: &[&str]| {
        sandbox.command(arguments).stdout(unread()).stderr(unread()).status().unwrap().code()
    };
    sandbox.ok(&["put", "--object", "notes", "precious", "v"]);
    sandbox.ok(&["put", "--object", "notes", "other", "v"]);
    sandbox.ok(&["snapshot", "create", "monday"]);
    assert_eq!(code(&["snapshot", "list"]), Some(0));
    assert_eq!(code(&["stat"]), Some(0));
    assert_eq!(code(&["check"]), Some(0));
    assert_eq!(code(&["get", "--object", "notes", "other"]), Some(0));
    assert_eq!(code(&["scan", "--object", "notes"]), Some(0));
    assert_eq!(code(&["del", "--object", "notes", "other"]), Some(0));
    assert_eq!(code(&["get", "--object", "notes", "other"]), Some(1), "it is deleted");
    assert_eq!(code(&["snapshot", "drop", "monday"]), Some(0));
    assert_eq!(code(&["frob"]), Some(2));
    assert!(damage(&sandbox.path("kiln-data"), b"precious") > 0, "the key must be somewhere in the files");
    assert_eq!(code(&["check"]), Some(1));
}

/// What is cut off because nobody reads it any more is no export, as it is what people wanted to see of a scan.
#[test]
fn an_export_that_is_cut_off_fails_with_1() {
    let sandbox = Sandbox::new();
    let code = |arguments: &[&str]| sandbox.command(arguments).stdout(unread()).status().unwrap().code();
    sandbox.ok(&["put", "--object", "notes", "k", "v"]);
    assert_eq!(code(&["export", "--object", "notes"]), Some(1));
    assert_eq!(code(&["backup", "-"]), Some(1));
    assert_eq!(code(&["scan", "--object", "notes"]), Some(0));
    assert_eq!(code(&["dump-log"]), Some(0));
}

#[test]
fn errors_are_one_line_that_says_what_is_wrong() {
    let sandbox = Sandbox::new();
    for arguments in [
        ["get", "--object", "notes", "k"].as_slice(),
        &["scan", "--object", "notes"],
        &["del", "--object", "notes", "k"],
        &["export", "--object", "notes"],
        &["session", "list"],
        &["session", "forget", "one"],
        &["stat"],
        &["check"],
        &["dump-log"],
    ] {
        let error = sandbox.fails(1, arguments);
        assert!(error.starts_with("kiln: ") && error.lines().count() == 1, "{arguments:?}: {error}");
        assert!(!sandbox.path("kiln-data").exists(), "{arguments:?} must not create a database");
    }
    sandbox.ok(&["put", "--object", "notes", "k", "v"]);
    let error = sandbox.fails(1, &["get", "--object", "other", "k"]);
    assert_eq!(error, "kiln: kiln-data: no object named 'other'; it has: notes\n");
}

/// They went to the terminal as they are: escape sequences, and rows of lists that were made up.
#[test]
fn names_are_shown_escaped() {
    let sandbox = Sandbox::new();
    let name = "\x1b]0;owned\x07\nforged\t1\t2026";
    let shown = r"\x1b]0;owned\x07\nforged\t1\t2026";
    sandbox.ok(&["put", "--object", name, "k", "v"]);
    let made = sandbox.run(&["snapshot", "create", name]);
    assert!(text(&made.stderr).starts_with(&format!("made '{shown}'")), "{made:?}");
    let error = sandbox.fails(1, &["get", "--object", name, "absent"]);
    assert_eq!(error, format!("kiln: '{shown}' has no key 'absent'\n"));
    let listed = sandbox.ok(&["snapshot", "list"]);
    assert!(listed.starts_with(&format!("{shown}\t")) && listed.lines().count() == 1, "{listed}");
    let stat = sandbox.ok(&["stat"]);
    assert!(stat.contains(&format!("map           {shown} (1 keys)")), "{stat}");
    let error = sandbox.fails(1, &["get", "--object", "other", "k"]);
    assert_eq!(error, format!("kiln: kiln-data: no object named 'other'; it has: {shown}\n"));
}

#[test]
fn a_wrong_command_line_ends_with_2_and_help_has_examples() {
    let sandbox = Sandbox::new();
    for arguments in [
        [].as_slice(),
        &["frob"],
        &["get", "k"],
        &["serve", "--window", "soon"],
        &["serve", "--memory", "much"],
        &["serve", "--durability", "maybe"],
        &["serve", "--listen", "here"],
        &["serve", "--listen", "localhost:port"],
        &["serve", "--space-amplification", "much"],
        &["import", "--object", "o", "--space-amplification", "much"],
    ] {
        sandbox.fails(2, arguments);
    }
    for command in ["serve", "get", "put", "scan", "import", "export", "session"] {
        let help = sandbox.ok(&[command, "--help"]);
        assert!(help.contains("kiln ") && help.contains("xample"), "{command}: {help}");
    }
    assert!(sandbox.ok(&["--help"]).contains("redis-cli"));
}

#[test]
fn how_much_space_the_files_may_take_can_be_said_and_has_limits() {
    let sandbox = Sandbox::new();
    for command in ["serve", "import"] {
        let help = sandbox.ok(&[command, "--help"]);
        for said in ["--space-amplification <TIMES>", "[default: 2]", "from 1.1 on", "--leaf-compression"] {
            assert!(help.contains(said), "{command}: {help}");
        }
        for times in ["1", "nan", "-2"] {
            let option = format!("--space-amplification={times}");
            let mut arguments = vec![command, &option];
            arguments.extend(["--object", "o"].into_iter().filter(|_| command == "import"));
            let error = sandbox.fails(1, &arguments);
            assert!(error.contains("space_amplification must be at least 1.1; 2 is usual"), "{error}");
        }
    }
    assert!(!sandbox.path("kiln-data").exists(), "a database was made all the same");
    for times in ["1.1", "inf"] {
        let arguments = ["import", "--object", "o", "--space-amplification", times];
        sandbox.ok_with_input(&arguments, br#"{"key":"k","value":"v"}"#);
        let served = Served::start(&sandbox, &["--space-amplification", times, "--leaf-compression"]);
        redis::cmd("PING").exec(&mut served.connect()).unwrap();
        assert_eq!(served.end(rustix::process::Signal::TERM).0, Some(0));
    }
}

#[test]
fn leaves_are_compressed_by_who_is_told_to() {
    let sandbox = Sandbox::new();
    let lines: String =
        (0..2_000).map(|n| format!("{{\"key\":\"{n:04}\",\"value\":\"{n:0500}\"}}\n")).collect();
    let tree_bytes = || std::fs::metadata(sandbox.path("kiln-data/tree")).unwrap().len();
    let import = ["import", "--object", "o", "--bulk"];
    sandbox.ok_with_input(&[&import[..], &["--leaf-compression"]].concat(), lines.as_bytes());
    let compressed = tree_bytes();
    assert!(compressed < 700 << 10, "{compressed} bytes for a million in the rows");
    sandbox.ok(&["compact"]);
    let plain = tree_bytes();
    assert!(plain > 1 << 20, "{plain} bytes without it");
    sandbox.ok(&["compact", "--leaf-compression"]);
    assert!(tree_bytes() < 700 << 10, "{} bytes", tree_bytes());
    sandbox.ok(&["check"]);
    assert_eq!(sandbox.ok(&["get", "--object", "o", "1999"]).trim_end(), format!("{:0500}", 1999));
}

#[test]
fn serve_says_what_to_type_and_persists_everything_at_the_end() {
    let sandbox = Sandbox::new();
    for (round, signal) in
        [rustix::process::Signal::INT, rustix::process::Signal::TERM].into_iter().enumerate()
    {
        let served = Served::start(&sandbox, &["--durability", "fast", "--window", "5m"]);
        let mut connection = served.connect();
        let (count,): (usize,) = redis::pipe().cmd("INCR").arg("rounds").query(&mut connection).unwrap();
        assert_eq!(count, round + 1, "what the last round wrote is there");
        let (code, last) = served.end(signal);
        assert_eq!(code, Some(0));
        assert!(last.starts_with("everything committed is persisted: up to version "), "{last}");
    }
    assert_eq!(sandbox.ok(&["get", "--object", "strings", "rounds"]), "2\n");
    assert!(sandbox.ok(&["stat"]).ends_with("\nserved        strings: what kiln serve shows\n"));
    let served = Served::start(&sandbox, &[]);
    redis::cmd("FLUSHALL").exec(&mut served.connect()).unwrap();
    served.end(rustix::process::Signal::TERM);
    assert!(sandbox.ok(&["stat"]).ends_with("\nserved        strings.1: what kiln serve shows\n"));
}

/// It was told to be stored, and durable, and the next server deleted it, or did not start.
#[test]
fn nothing_is_put_or_imported_where_the_next_server_empties() {
    use rustix::process::Signal;
    let sandbox = Sandbox::new();
    std::fs::write(sandbox.path("dump"), "{\"key\": \"k\", \"value\": \"v\"}\n").unwrap();
    let import = |into| ["import", "--object", into, "dump"];
    // Nobody empties anything before the first flush, nor serves what has something to be emptied.
    let error = sandbox.fails(1, &["put", "--object", "strings.1", "k", "v"]);
    assert!(error.contains("'strings'"), "{error}");
    sandbox.ok(&import("strings"));
    let served = Served::start(&sandbox, &[]);
    redis::cmd("FLUSHALL").exec(&mut served.connect()).unwrap();
    served.end(Signal::TERM);
    for refused in [&import("strings")[..], &["put", "--object", "strings.2", "k", "v"]] {
        let error = sandbox.fails(1, refused);
        assert!(error.contains("'strings.1'"), "{error}");
        assert!(error.contains(refused[2]), "{error}");
    }
    sandbox.ok(&import("strings.1"));
    sandbox.ok(&["put", "--object", "strings.01", "k", "v"]);
    let served = Served::start(&sandbox, &[]);
    let value: String = redis::cmd("GET").arg("k").query(&mut served.connect()).unwrap();
    assert_eq!(value, "v");
    served.end(Signal::TERM);
    assert_eq!(sandbox.ok(&["get", "--object", "strings.01", "k"]), "v\n");
}

/// It died of the hangup, and nothing was persisted; and no second signal ended one that waited for somebody.
#[test]
fn a_server_outlives_its_terminal_and_a_second_signal_ends_it_at_once() {
    use rustix::process::Signal;
    let sandbox = Sandbox::new();
    let served = Served::start(&sandbox, &["--durability", "fast", "--window", "5m"]);
    served.send(Signal::HUP);
    redis::cmd("SET").arg("k").arg(vec![b'v'; 10 << 20]).exec(&mut served.connect()).unwrap();
    // It waits some seconds for a client that does not read its replies, before it persists anything.
    let mut client = std::net::TcpStream::connect(("127.0.0.1", served.port)).unwrap();
    client.write_all(&b"GET k\r\n".repeat(10)).unwrap();
    client.read_exact(&mut [0]).unwrap();
    served.send(Signal::INT);
    // It ends then: of two signals that are sent at once it need not know which was the first.
    while std::net::TcpStream::connect(("127.0.0.1", served.port)).is_ok() {}
    let (code, last) = served.end(Signal::TERM);
    assert_eq!(code, Some(128 + 15));
    assert!(!last.starts_with("everything committed is persisted"), "{last}");
}

/// Help says HOST:PORT, and only addresses would do.
#[test]
fn a_server_listens_on_a_host_that_is_named() {
    let sandbox = Sandbox::new();
    let served = Served::start_on(&sandbox, "localhost:0", &[]);
    assert!(std::net::TcpStream::connect(("localhost", served.port)).is_ok());
    served.end(rustix::process::Signal::TERM);
}

/// It panicked at the next line that it had to say: at the end before it had persisted anything.
#[test]
fn a_server_that_nobody_listens_to_any_more_persists_everything_at_the_end() {
    let sandbox = Sandbox::new();
    let Served { mut child, output, port } =
        Served::start(&sandbox, &["--durability", "fast", "--window", "5m"]);
    drop(output);
    let client = redis::Client::open(format!("redis://127.0.0.1:{port}/")).unwrap();
    let mut connection = client.get_connection().unwrap();
    redis::cmd("SET").arg("k").arg("v").exec(&mut connection).unwrap();
    // Whoever cannot say that it has begun goes on until it finds the address in use.
    let mut other = sandbox.command(&["serve", "--dir", "other", "--listen", &format!("127.0.0.1:{port}")]);
    let other = other.stdout(unread()).output().unwrap();
    assert_eq!(other.status.code(), Some(1), "{}", text(&other.stderr));
    rustix::process::kill_process(rustix::process::Pid::from_child(&child), rustix::process::Signal::TERM)
        .unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(0));
    assert_eq!(sandbox.ok(&["get", "--object", "strings", "k"]), "v\n");
}

/// With as many connections as there can be the sum was small again, and nothing was said.
#[test]
fn a_limit_of_open_files_that_is_too_low_is_said() {
    let sandbox = Sandbox::new();
    let most = u64::MAX.to_string();
    std::fs::write(sandbox.path("file"), "").unwrap();
    // The database's own files count, too, and it has as many again, or 1,024.
    for (files, connections, expected) in
        [(200, "100", 72..100), (200, &most, 72..100), (4_000, &most, 2_900..2_976)]
    {
        // It ends there: its backups cannot be in a file.
        let served = sandbox.command(&[
            "serve",
            "--listen",
            "127.0.0.1:0",
            "--backups",
            "file",
            "--connections",
            connections,
        ]);
        let limited = format!("ulimit -n {files} && exec \"$0\" \"$@\"");
        let mut command = std::process::Command::new("sh");
        command.arg("-c").arg(limited).arg(served.get_program()).args(served.get_args());
        let said = text(&command.current_dir(sandbox.path("")).output().unwrap().stderr);
        let allowed =
            said.split("the limit of open files allows ").nth(1).unwrap_or_else(|| panic!("{said}"));
        let allowed: u64 = allowed.split(' ').next().unwrap().parse().unwrap();
        assert!(expected.contains(&allowed), "{said}");
    }
}

/// With a file for each segment of the copy beside those of the original it took twice as many as the database.
#[test]
fn a_long_log_is_copied_and_restored_with_few_files_more_than_it_has() {
    const FILES_MAX: usize = 110;
    let sandbox = Sandbox::new();
    let options = kiln::Options::new()
        .segment_bytes(16 << 10)
        .memory(64 << 10)
        .window(std::time::Duration::from_secs(60));
    let db = options.open(sandbox.path("kiln-data")).unwrap();
    let map = db.map("m").unwrap();
    for number in 0..150_u32 {
        db.put(&map, number.to_be_bytes(), [7; 8_000]).unwrap().forget();
    }
    db.close().unwrap();
    let segments = std::fs::read_dir(sandbox.path("kiln-data")).unwrap().count();
    assert!((70..FILES_MAX - 15).contains(&segments), "{segments} files");
    // What the system allows is taken, and of more there is no use.
    for limit in ["ulimit -Sn 64", &format!("ulimit -n {FILES_MAX}")] {
        for (number, command) in
            ["backup copy", "backup - > stream", "restore copy two", "restore stream three", "check three"]
                .iter()
                .enumerate()
        {
            let kiln = sandbox.command(&[]);
            let mut shell = std::process::Command::new("sh");
            shell.arg("-c").arg(format!("{limit} && exec \"$0\" {command}")).arg(kiln.get_program());
            let done = shell.current_dir(sandbox.path("")).output().unwrap();
            assert!(done.status.success(), "{limit}, {number}: {}", text(&done.stderr));
        }
        for made in ["copy", "two", "three"] {
            std::fs::remove_dir_all(sandbox.path(made)).unwrap();
        }
    }
}

/// C8: it is closed in order in the end, and whoever opened it next was told that nothing had been lost.
#[test]
fn c8_whichever_command_comes_first_after_a_crash_tells_what_is_lost() {
    let sandbox = Sandbox::new();
    sandbox.ok(&["put", "--object", "strings", "before", "v"]);
    let served = Served::start(&sandbox, &["--window", "5m", "--durability", "fast"]);
    let () = redis::cmd("SET").arg("k").arg("v").query(&mut served.connect()).unwrap();
    served.end(rustix::process::Signal::KILL);
    let told = sandbox.run(&["scan", "--object", "strings"]);
    assert!(text(&told.stderr).contains("whatever was committed from version"), "{told:?}");
    let after = sandbox.run(&["scan", "--object", "strings"]);
    assert_eq!((after.status.code(), text(&after.stderr).as_str()), (Some(0), ""));
}

#[test]
fn a_database_that_is_served_is_locked_and_the_error_says_so() {
    let sandbox = Sandbox::new();
    let served = Served::start(&sandbox, &[]);
    let error = sandbox.fails(1, &["get", "--object", "strings", "k"]);
    assert!(error.contains(&served.child.id().to_string()), "the holder's pid: {error}");
    assert!(error.ends_with("; close it there first, or ask its server with redis-cli instead\n"), "{error}");
    assert_eq!(error.lines().count(), 1);
    let error =
        sandbox.fails(1, &["serve", "--dir", "other", "--listen", &format!("127.0.0.1:{}", served.port)]);
    assert!(error.contains("is in use"), "{error}");
    // A database was there by then that nobody was served. (The address is nobody's.)
    let error = sandbox.fails(1, &["serve", "--dir", "other", "--listen", "203.0.113.1:6380"]);
    assert!(error.contains("listening on 203.0.113.1:6380"), "{error}");
    sandbox.fails(2, &["serve", "--dir", "other", "--listen", "127.0.0.1:0", "--connections", "0"]);
    assert!(!sandbox.path("other").exists());
    served.end(rustix::process::Signal::TERM);
}

/// C5 through the server: what a safe connection was told is written survives the death of the process.
#[test]
fn acknowledged_safe_writes_survive_a_kill() {
    let sandbox = Sandbox::new();
    let mut acknowledged = 0;
    for _ in 0..3 {
        let served = Served::start(&sandbox, &["--window", "5m"]);
        let mut connection = served.connect();
        let recovered: Option<u64> = redis::cmd("GET").arg("n").query(&mut connection).unwrap();
        assert!(recovered.unwrap_or(0) >= acknowledged, "{recovered:?} of {acknowledged}");
        for _ in 0..50 {
            acknowledged = redis::cmd("INCR").arg("n").query(&mut connection).unwrap();
        }
        let (code, _) = served.end(rustix::process::Signal::KILL);
        assert_eq!(code, None);
    }
    assert_eq!(sandbox.ok(&["get", "--object", "strings", "n"]), format!("{acknowledged}\n"));
}
