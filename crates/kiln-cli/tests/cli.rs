//! The command line as a user meets it.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use kiln::Expiry;
use tempfile::TempDir;

/// A directory for one test, and the program run in it.
struct Sandbox {
    directory: TempDir,
}

impl Sandbox {
    fn new() -> Self {
        Self { directory: tempfile::tempdir().unwrap() }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(assert_cmd::cargo::cargo_bin!("kiln"));
        command.args(arguments).current_dir(self.directory.path()).stdin(Stdio::null());
        command
    }

    #[track_caller]
    fn run(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().unwrap()
    }

    /// Runs a command that must succeed and returns what it wrote.
    #[track_caller]
    fn ok(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        assert_eq!(output.status.code(), Some(0), "{arguments:?}: {}", text(&output.stderr));
        text(&output.stdout)
    }

    /// Runs a command that must fail with this code and returns what it said.
    #[track_caller]
    fn fails(&self, code: i32, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {}", text(&output.stderr));
        text(&output.stderr)
    }

    /// Runs a command that must succeed with `input` on its standard input and returns what it wrote.
    #[track_caller]
    fn ok_with_input(&self, arguments: &[&str], input: &[u8]) -> Output {
        let mut command = self.command(arguments);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        child.stdin.take().unwrap().write_all(input).unwrap();
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{arguments:?}: {}", text(&output.stderr));
        output
    }
}

/// An end of a pipe that nobody reads from any more.
fn unread() -> Stdio {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    writer.into()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
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
fn an_export_can_be_imported_and_is_the_same() {
    let sandbox = Sandbox::new();
    let lines = "{\"key\":\"a\",\"value\":\"text\"}\n\n{\"key\":{\"base64\":\"/w==\"},\"value\":{\"base64\":\"AP8=\"}}\n{\"key\":\"z\",\"value\":\"größe\"}\n";
    let imported = sandbox.ok_with_input(&["import", "--object", "first", "--table"], lines.as_bytes());
    assert_eq!(text(&imported.stderr), "imported 3 keys into 'first'\n");
    let raw = sandbox.run(&["get", "--object", "first", "a", "--raw"]);
    assert_eq!(raw.stdout, b"text");
    sandbox.ok(&["export", "--object", "first", "dump.jsonl"]);
    let dumped = std::fs::read_to_string(sandbox.path("dump.jsonl")).unwrap();
    let expected = "{\"key\":\"a\",\"value\":\"text\"}\n{\"key\":\"z\",\"value\":\"größe\"}\n{\"key\":{\"base64\":\"/w==\"},\"value\":{\"base64\":\"AP8=\"}}\n";
    assert_eq!(dumped, expected);
    sandbox.ok(&["import", "--object", "second", "--table", "dump.jsonl"]);
    assert_eq!(sandbox.ok(&["export", "--object", "second"]), dumped);
    let error = sandbox.fails(1, &["export", "--object", "first", "dump.jsonl"]);
    assert!(error.starts_with("kiln: creating dump.jsonl: "), "{error}");
}

/// 2100, in milliseconds.
const FAR_MS: u64 = 4_102_444_800_000;

fn line(key: &str, value: &str, expires_at_ms: u64) -> String {
    format!("{{\"key\":\"{key}\",\"value\":\"{value}\",\"expires_at_ms\":{expires_at_ms}}}\n")
}

#[test]
fn a_row_that_expires_is_exported_with_its_time_and_imported_with_it() {
    let sandbox = Sandbox::new();
    let stays = "{\"key\":\"b\",\"value\":\"stays\"}\n";
    let lines = format!("{}{stays}{}", line("a", "goes", FAR_MS), line("c", "", u64::MAX));
    for (name, table) in [("table", true), ("map", false)] {
        let mut import = vec!["import", "--object", name];
        import.extend(table.then_some("--table"));
        sandbox.ok_with_input(&import, lines.as_bytes());
    }
    assert_eq!(sandbox.ok(&["export", "--object", "table"]), lines);
    let exported = sandbox.ok(&["export", "--object", "map"]);
    let mut of_map: Vec<&str> = exported.split_inclusive('\n').collect();
    of_map.sort_unstable();
    assert_eq!(of_map.concat(), lines);

    sandbox.ok(&["snapshot", "create", "before"]);
    let later = line("a", "goes later", FAR_MS + 1);
    sandbox.ok_with_input(&["import", "--object", "table"], later.as_bytes());
    let db = kiln::Kiln::open(sandbox.path("kiln-data")).unwrap();
    db.settle().unwrap();
    db.close().unwrap();
    assert!(sandbox.ok(&["export", "--object", "table"]).starts_with(&later), "also where it has settled");
    assert_eq!(sandbox.ok(&["export", "--object", "table", "--snapshot", "before"]), lines);
}

/// Rows that stay though their object has a time to live were imported as if nothing were known of that, and expired.
#[test]
fn c4_a_row_that_stays_in_an_object_with_a_time_to_live_comes_back_the_same() {
    let sandbox = Sandbox::new();
    let db = kiln::Kiln::open(sandbox.path("kiln-data")).unwrap();
    let hour = Duration::from_secs(3600);
    for name in ["tokens", "others"] {
        db.table_with_time_to_live(name, hour).unwrap();
    }
    db.put_expiring(&db.table("tokens").unwrap(), "a", "stays", Expiry::Never).unwrap().safe().unwrap();
    db.put_expiring(&db.table("tokens").unwrap(), "b", "goes", Expiry::At(FAR_MS)).unwrap().safe().unwrap();
    db.close().unwrap();
    let lines = "{\"key\":\"a\",\"value\":\"stays\",\"expires_at_ms\":\"never\"}\n".to_owned()
        + &line("b", "goes", FAR_MS);
    assert_eq!(sandbox.ok(&["export", "--object", "tokens"]), lines);
    sandbox.ok_with_input(&["import", "--object", "others"], lines.as_bytes());
    assert_eq!(sandbox.ok(&["export", "--object", "others"]), lines);
    // Elsewhere it need not be said, and a table that is made of them all at once can keep it.
    let stays = lines.split_inclusive('\n').next().unwrap();
    sandbox.ok_with_input(&["import", "--object", "loaded", "--bulk"], stays.as_bytes());
    assert_eq!(sandbox.ok(&["export", "--object", "loaded"]), "{\"key\":\"a\",\"value\":\"stays\"}\n");
    let stat = sandbox.ok(&["stat"]);
    assert!(stat.contains("others (2 keys, which expire after 1h)"), "{stat}");
    assert!(stat.contains("loaded (1 keys)"), "{stat}");
}

#[test]
fn a_line_whose_time_has_passed_replaces_what_its_key_had_by_nothing() {
    let sandbox = Sandbox::new();
    sandbox.ok(&["put", "--object", "notes", "k", "v"]);
    let lines = line("k", "later", 1) + &line("new", "", 0);
    let imported = sandbox.ok_with_input(&["import", "--object", "notes"], lines.as_bytes());
    assert_eq!(text(&imported.stderr), "imported 2 keys into 'notes'\n");
    assert_eq!(sandbox.fails(1, &["get", "--object", "notes", "k"]), "kiln: 'notes' has no key 'k'\n");
    assert_eq!(sandbox.ok(&["export", "--object", "notes"]), "");
    sandbox.ok(&["check"]);
}

#[test]
fn a_bulk_import_refuses_rows_that_expire_and_names_the_line() {
    let sandbox = Sandbox::new();
    let lines = "{\"key\":\"a\",\"value\":\"v\"}\n".to_owned() + &line("b", "v", FAR_MS);
    std::fs::write(sandbox.path("rows.jsonl"), &lines).unwrap();
    for options in [["--bulk"].as_slice(), &["--bulk", "--sort"]] {
        let error = sandbox.fails(1, &[&["import", "--object", "rows", "rows.jsonl"], options].concat());
        assert!(error.starts_with("kiln: line 2: ") && error.contains("without --bulk"), "{error}");
        assert_eq!(error.lines().count(), 1, "{error}");
    }
    assert!(sandbox.fails(1, &["get", "--object", "rows", "a"]).contains("no object"));
    sandbox.ok(&["import", "--object", "rows", "--table", "rows.jsonl"]);
    assert_eq!(sandbox.ok(&["export", "--object", "rows"]), lines);
}

#[test]
fn a_key_expires_as_its_put_says_or_else_as_its_object_does() {
    const HOUR: Duration = Duration::from_secs(3600);
    let sandbox = Sandbox::new();
    let open = || kiln::Kiln::open(sandbox.path("kiln-data")).unwrap();
    let db = open();
    let before_ms = db.time_ms();
    db.map_with_time_to_live("tokens", HOUR).unwrap();
    db.close().unwrap();
    sandbox.ok(&["put", "--object", "tokens", "--ttl", "1000h", "said", "v"]);
    sandbox.ok(&["put", "--object", "tokens", "default", "v"]);
    sandbox.ok(&["put", "--object", "tokens", "--ttl", "0s", "gone", "v"]);
    sandbox.ok_with_input(
        &["import", "--object", "tokens"],
        format!("{{\"key\":\"read\",\"value\":\"\"}}\n{}", line("at", "", FAR_MS)).as_bytes(),
    );
    sandbox.ok(&["put", "--object", "events", "--table", "--ttl", "1000h", "said", "v"]);
    sandbox.ok(&["put", "--object", "events", "stays", "v"]);

    let db = open();
    let after_ms = db.time_ms();
    let after = |expiry: Option<Expiry>, ttl: Duration| {
        let ttl_ms = u64::try_from(ttl.as_millis()).unwrap();
        matches!(expiry, Some(Expiry::At(at)) if (before_ms + ttl_ms..=after_ms + ttl_ms).contains(&at))
    };
    let (tokens, events) = (db.map("tokens").unwrap(), db.table("events").unwrap());
    assert!(after(db.expiry(&tokens, "said").unwrap(), 1000 * HOUR));
    assert!(after(db.expiry(&tokens, "default").unwrap(), HOUR));
    assert!(after(db.expiry(&tokens, "read").unwrap(), HOUR));
    assert_eq!(db.expiry(&tokens, "at").unwrap(), Some(Expiry::At(FAR_MS)));
    assert_eq!(db.expiry(&tokens, "gone").unwrap(), None);
    assert!(after(db.expiry(&events, "said").unwrap(), 1000 * HOUR));
    assert_eq!(db.expiry(&events, "stays").unwrap(), Some(Expiry::Never));
    db.close().unwrap();
    sandbox.fails(2, &["put", "--object", "tokens", "--ttl", "soon", "k", "v"]);
}

#[test]
fn c1_a_bulk_import_makes_a_new_table_of_all_lines_or_of_none() {
    let sandbox = Sandbox::new();
    let lines: String =
        (0..3000).map(|number| format!("{{\"key\":\"k{number:06}\",\"value\":\"v{number}\"}}\n")).collect();
    let imported = sandbox.ok_with_input(&["import", "--object", "rows", "--bulk"], lines.as_bytes());
    assert_eq!(text(&imported.stderr), "imported 3000 keys into 'rows'\n");
    assert_eq!(sandbox.ok(&["export", "--object", "rows"]), lines);
    assert_eq!(sandbox.ok(&["get", "--object", "rows", "k000007"]), "v7\n");
    std::fs::write(sandbox.path("rows.jsonl"), &lines).unwrap();
    let error = sandbox.fails(1, &["import", "--object", "rows", "--bulk", "rows.jsonl"]);
    assert!(error.contains("there is an object \"rows\" already"), "{error}");
    let unsorted = format!("{lines}{{\"key\":\"k000005\",\"value\":\"again\"}}\n");
    std::fs::write(sandbox.path("unsorted.jsonl"), &unsorted).unwrap();
    let error = sandbox.fails(1, &["import", "--object", "unsorted", "--bulk", "unsorted.jsonl"]);
    assert!(error.contains("ascending order") && error.contains("k000005"), "{error}");
    std::fs::write(sandbox.path("broken.jsonl"), format!("{lines}no line\n")).unwrap();
    let error = sandbox.fails(1, &["import", "--object", "unsorted", "--bulk", "broken.jsonl"]);
    assert!(error.contains("line 3001"), "{error}");
    let error = sandbox.fails(1, &["get", "--object", "unsorted", "k000005"]);
    assert!(error.contains("no object"), "{error}");
    sandbox.ok(&["import", "--object", "unsorted", "--bulk", "--sort", "unsorted.jsonl"]);
    assert_eq!(sandbox.ok(&["get", "--object", "unsorted", "k000005"]), "again\n");
    assert_eq!(sandbox.ok(&["export", "--object", "unsorted"]).lines().count(), 3000);
    sandbox.fails(2, &["import", "--object", "o", "--sort", "rows.jsonl"]);
    sandbox.ok(&["check"]);
}

#[test]
fn a_backup_is_a_database_and_never_replaces_anything() {
    let sandbox = Sandbox::new();
    sandbox.ok(&["put", "--dir", "db", "--object", "o", "k", "v"]);
    let output = sandbox.run(&["backup", "--dir", "db", "copy"]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    assert!(text(&output.stderr).contains("everything up to version"), "{}", text(&output.stderr));
    sandbox.ok(&["put", "--dir", "db", "--object", "o", "k", "later"]);
    sandbox.ok(&["check", "copy"]);
    assert_eq!(sandbox.ok(&["get", "--dir", "copy", "--object", "o", "k"]), "v\n");
    assert!(sandbox.fails(1, &["backup", "--dir", "db", "copy"]).contains("empty directory"));
    assert!(sandbox.fails(1, &["backup", "--dir", "nowhere", "copy-2"]).contains("no database"));
    assert!(!sandbox.path("copy-2").exists());
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
fn c9_a_backup_is_restored_from_a_directory_a_file_and_a_pipe_and_never_over_anything() {
    let sandbox = Sandbox::new();
    sandbox.ok(&["put", "--dir", "db", "--object", "o", "k", "v"]);
    sandbox.ok(&["backup", "--dir", "db", "copy"]);
    let output = sandbox.run(&["backup", "--dir", "db", "-"]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    std::fs::write(sandbox.path("stream"), &output.stdout).unwrap();
    let mut damaged = output.stdout.clone();
    damaged[5_000] ^= 1;
    std::fs::write(sandbox.path("damaged"), damaged).unwrap();
    std::fs::write(sandbox.path("short"), &output.stdout[..output.stdout.len() - 1]).unwrap();
    sandbox.ok(&["restore", "copy", "first"]);
    sandbox.ok(&["restore", "stream", "second"]);
    sandbox.ok_with_input(&["restore", "-", "third"], &output.stdout);
    for restored in ["first", "second", "third"] {
        sandbox.ok(&["check", restored]);
        assert_eq!(sandbox.ok(&["get", "--dir", restored, "--object", "o", "k"]), "v\n");
        assert!(sandbox.fails(1, &["restore", "copy", restored]).contains("empty directory"));
        assert!(sandbox.fails(1, &["restore", "stream", restored]).contains("empty directory"));
    }
    for stream in ["damaged", "short"] {
        let error = sandbox.fails(1, &["restore", stream, "fourth"]);
        assert!(error.contains("backup's stream is damaged at offset"), "{error}");
        sandbox.fails(1, &["get", "--dir", "fourth", "--object", "o", "k"]);
    }
    assert!(sandbox.fails(1, &["restore", "nowhere", "fifth"]).contains("nowhere"));
}

#[test]
fn a_line_that_cannot_be_imported_is_named() {
    let sandbox = Sandbox::new();
    for (lines, error) in [
        (
            "{\"key\":\"a\",\"value\":\"b\"}\nnot json\n",
            "kiln: line 2: expected {\"key\": ..., \"value\": ...}",
        ),
        ("{\"key\":\"a\"}\n", "kiln: line 1: expected"),
        ("{\"key\":\"a\",\"value\":{\"base64\":\"%\"}}\n", "kiln: line 1: not valid base64"),
    ] {
        std::fs::write(sandbox.path("bad.jsonl"), lines).unwrap();
        let said = sandbox.fails(1, &["import", "--object", "notes", "bad.jsonl"]);
        assert!(said.starts_with(error), "{said}");
        assert_eq!(said.lines().count(), 1, "{said}");
    }
    let said = sandbox.fails(1, &["import", "--object", "notes", "none.jsonl"]);
    assert!(said.starts_with("kiln: opening none.jsonl: "), "{said}");
}

#[test]
fn a_database_can_be_checked_described_and_dumped() {
    let sandbox = Sandbox::new();
    sandbox.ok(&["put", "--object", "notes", "--dir", "db", "k", "v"]);
    sandbox.ok(&["put", "--object", "events", "--table", "--dir", "db", "k", "v"]);
    sandbox.ok(&["check", "db"]);
    let stat = sandbox.ok(&["stat", "db"]);
    assert!(stat.contains("notes (1 keys)") && stat.contains("events (1 keys)"), "{stat}");
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
    ] {
        sandbox.fails(2, arguments);
    }
    for command in ["serve", "get", "put", "scan", "import", "export"] {
        let help = sandbox.ok(&[command, "--help"]);
        assert!(help.contains("kiln ") && help.contains("xample"), "{command}: {help}");
    }
    assert!(sandbox.ok(&["--help"]).contains("redis-cli"));
}

/// A server process, and what it has said so far.
struct Served {
    child: Child,
    output: BufReader<std::process::ChildStdout>,
    port: u16,
}

impl Served {
    fn start(sandbox: &Sandbox, options: &[&str]) -> Self {
        let mut arguments = vec!["serve", "--listen", "127.0.0.1:0", "--memory", "64MiB"];
        arguments.extend(options);
        let mut child = sandbox.command(&arguments).stdout(Stdio::piped()).spawn().unwrap();
        let mut output = BufReader::new(child.stdout.take().unwrap());
        let mut port = 0;
        let mut line = String::new();
        while !line.starts_with("Ctrl-C") {
            line.clear();
            assert!(output.read_line(&mut line).unwrap() > 0, "the server ended");
            if let Some((_, rest)) = line.split_once(" -p ") {
                port = rest.split_whitespace().next().unwrap().parse().unwrap();
            }
        }
        Self { child, output, port }
    }

    fn connect(&self) -> redis::Connection {
        redis::Client::open(format!("redis://127.0.0.1:{}/", self.port)).unwrap().get_connection().unwrap()
    }

    /// Sends a signal and returns the exit code and the last line.
    fn end(mut self, signal: rustix::process::Signal) -> (Option<i32>, String) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, signal).unwrap();
        let last = self.output.by_ref().lines().map_while(Result::ok).last().unwrap_or_default();
        (self.child.wait().unwrap().code(), last)
    }
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

#[test]
fn a_database_that_is_served_is_locked_and_the_error_says_so() {
    let sandbox = Sandbox::new();
    let served = Served::start(&sandbox, &[]);
    let error = sandbox.fails(1, &["get", "--object", "strings", "k"]);
    assert!(error.contains(&served.child.id().to_string()), "the holder's pid: {error}");
    assert_eq!(error.lines().count(), 1);
    let error =
        sandbox.fails(1, &["serve", "--dir", "other", "--listen", &format!("127.0.0.1:{}", served.port)]);
    assert!(error.contains("is in use"), "{error}");
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
