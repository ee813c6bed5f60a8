//! Data on its way in and out: `import` and `export`, `backup` and `restore`.

mod common;

use std::time::Duration;

use common::{Sandbox, Served, text};
use kiln::Expiry;

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
    assert_eq!(error, "kiln: creating dump.jsonl: it is there already; name another file\n");
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
    // Also of a snapshot, once it was dropped.
    sandbox.ok(&["snapshot", "create", "before"]);
    sandbox.ok(&["drop", "--object", "tokens", "--yes"]);
    assert_eq!(sandbox.ok(&["export", "--object", "tokens", "--snapshot", "before"]), lines);
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

/// The object came without it, and with it nobody could open it any more.
#[test]
fn an_object_that_is_imported_gets_the_time_to_live_that_it_had() {
    let sandbox = Sandbox::new();
    let hour = std::time::Duration::from_secs(3_600);
    for (object, table) in [("m", false), ("t", true)] {
        let table = if table { &["--table"][..] } else { &[] };
        let import = ["import", "--object", object, "--object-ttl", "1h"];
        sandbox.ok_with_input(&[&import, table].concat(), b"{\"key\":\"k\",\"value\":\"v\"}");
    }
    let db = kiln::Kiln::open(sandbox.path("kiln-data")).unwrap();
    db.map_with_time_to_live("m", hour).unwrap();
    db.table_with_time_to_live("t", hour).unwrap();
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
    assert!(after(db.expiry(&events, "said").unwrap(), 1000 * HOUR));
    assert_eq!(db.expiry(&events, "stays").unwrap(), Some(Expiry::Never));
    db.close().unwrap();
    // What was there was gone at once, and an object could be made whose rows are.
    for wrong in ["soon", "0s", "999us", "99999999999999d"] {
        sandbox.fails(2, &["put", "--object", "tokens", "--ttl", wrong, "said", "v"]);
        sandbox.fails(2, &["import", "--object", "new", "--object-ttl", wrong]);
    }
    assert_eq!(sandbox.ok(&["get", "--object", "tokens", "said"]), "v\n");
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
    // Of two that were joined only the first was restored, without a word.
    std::fs::write(sandbox.path("joined"), output.stdout.repeat(2)).unwrap();
    let error = sandbox.fails(1, &["restore", "joined", "joined-restored"]);
    assert!(error.contains("into joined-restored: ") && error.contains("something follows"), "{error}");
    assert_eq!(sandbox.ok(&["get", "--dir", "joined-restored", "--object", "o", "k"]), "v\n");
    let mut command = sandbox.through("(cat stream; echo) | \"$@\"", &["restore", "-", "piped"]);
    let piped = command.output().unwrap();
    assert_eq!(piped.status.code(), Some(1));
    assert!(text(&piped.stderr).contains("kiln: -: something follows the backup"), "{}", text(&piped.stderr));
    for stream in ["damaged", "short"] {
        let error = sandbox.fails(1, &["restore", stream, "fourth"]);
        let named = format!("kiln: {stream}: a backup's stream is damaged at offset");
        assert!(error.starts_with(&named) && error.ends_with("use another copy\n"), "{error}");
        sandbox.fails(1, &["get", "--dir", "fourth", "--object", "o", "k"]);
    }
    assert!(sandbox.fails(1, &["restore", "nowhere", "fifth"]).contains("nowhere"));
}

/// Rust's runtime opens `/dev/null` in its place: a backup that went there was told to have been made.
#[test]
fn what_is_asked_for_of_a_closed_standard_output_fails_with_1() {
    let sandbox = Sandbox::new();
    sandbox.ok(&["put", "--object", "notes", "k", "v"]);
    sandbox.ok(&["snapshot", "create", "monday"]);
    let run = |to: &str, arguments: &[&str]| {
        let mut command = sandbox.through(&format!("exec \"$@\" {to}"), arguments);
        let output = command.output().unwrap();
        (output.status.code(), text(&output.stderr))
    };
    for arguments in [
        ["get", "--object", "notes", "k"].as_slice(),
        &["scan", "--object", "notes"],
        &["export", "--object", "notes"],
        &["backup", "-"],
        &["stat"],
        &["check"],
        &["dump-log"],
        &["snapshot", "list"],
        &["session", "list"],
        &["session", "forget", "s"],
        &["del", "--object", "notes", "k"],
    ] {
        let (code, error) = run(">&-", arguments);
        assert_eq!(code, Some(1), "{arguments:?}: {error}");
        assert!(error.starts_with("kiln: standard output is closed"), "{arguments:?}: {error}");
        // It was deleted, though the command had failed.
        assert_eq!(sandbox.ok(&["get", "--object", "notes", "k"]), "v\n", "{arguments:?}");
        // Who does not want it says so.
        assert_eq!(run(">/dev/null", arguments).0, Some(0), "{arguments:?}");
    }
    // These have nothing to write there.
    for arguments in [
        ["put", "--object", "notes", "k", "v"].as_slice(),
        &["export", "--object", "notes", "f"],
        &["backup", "b"],
    ] {
        assert_eq!(run(">&-", arguments).0, Some(0), "{arguments:?}");
    }
}

/// It was gone with the database, which is what it is for.
#[test]
fn no_copy_of_a_database_is_made_within_its_directory() {
    let sandbox = Sandbox::new();
    sandbox.ok(&["put", "--dir", "db", "--object", "o", "k", "v"]);
    std::os::unix::fs::symlink("db", sandbox.path("link")).unwrap();
    for arguments in [
        ["backup", "--dir", "db", "db/sub/copy"].as_slice(),
        &["backup", "--dir", "db", "elsewhere/../link/copy"],
        &["backup", "--dir", "link", "db"],
        &["restore", "db", "db/copy"],
        &["restore", "db/", "link/copy"],
        &["serve", "--dir", "db", "--backups", "db/backups", "--listen", "127.0.0.1:0"],
        // It was served where there was no database yet, and refused the next time.
        &["serve", "--dir", "new", "--backups", "new/backups", "--listen", "127.0.0.1:0"],
        &["serve", "--dir", "x/new", "--backups", "y/../x/new/", "--listen", "127.0.0.1:0"],
    ] {
        std::fs::create_dir_all(sandbox.path("elsewhere")).unwrap();
        let error = sandbox.fails(1, arguments);
        assert!(error.contains(" is within "), "{arguments:?}: {error}");
    }
    assert!(!sandbox.path("new").exists() && !sandbox.path("x").exists());
    assert!(std::fs::read_dir(sandbox.path("db")).unwrap().all(|file| file.unwrap().path().is_file()));
    sandbox.ok(&["backup", "--dir", "db", "db-copy"]);
}

/// A snapshot of a whole file system is one way of a backup, and nobody was told how to read it.
#[test]
fn of_a_file_system_that_is_read_only_the_way_out_is_said_and_is_one() {
    let sandbox = Sandbox::new();
    sandbox.ok(&["put", "--dir", "db", "--object", "o", "k", "v"]);
    let read_only = |arguments: &[&str]| {
        let line = "mount --bind db db && mount -o remount,bind,ro db && exec \"$@\"";
        let output = sandbox
            .through(&format!("exec unshare -rm sh -c '{line}' sh \"$@\""), arguments)
            .output()
            .unwrap();
        (output.status.code(), text(&output.stderr))
    };
    // Not everybody may mount.
    if !sandbox.through("unshare -rm mount --bind db db", &[]).status().unwrap().success() {
        return;
    }
    for arguments in [
        ["get", "--dir", "db", "--object", "o", "k"].as_slice(),
        &["stat", "db"],
        &["backup", "--dir", "db", "b"],
        &["serve", "--dir", "db", "--listen", "127.0.0.1:0"],
    ] {
        let (code, error) = read_only(arguments);
        assert_eq!(code, Some(1), "{error}");
        assert!(error.contains("kiln restore makes a copy elsewhere"), "{arguments:?}: {error}");
    }
    // There is nothing to be copied.
    let (code, error) = read_only(&["put", "--dir", "db/new", "--object", "o", "k", "v"]);
    assert_eq!(code, Some(1), "{error}");
    assert!(error.contains("db/new") && !error.contains("kiln restore"), "{error}");
    assert_eq!(read_only(&["check", "db"]).0, Some(0));
    assert_eq!(read_only(&["restore", "db", "copy"]).0, Some(0));
    assert_eq!(sandbox.ok(&["get", "--dir", "copy", "--object", "o", "k"]), "v\n");
}

/// The first that was heard of a fresh backup was that something is lost, though the database had been closed in order.
#[test]
fn c8_a_backup_that_is_opened_first_says_what_it_is_and_a_crash_still_says_loss() {
    let sandbox = Sandbox::new();
    sandbox.ok(&["put", "--dir", "db", "--object", "o", "k", "v"]);
    sandbox.ok(&["backup", "--dir", "db", "copy"]);
    let stream = sandbox.run(&["backup", "--dir", "db", "-"]).stdout;
    sandbox.ok_with_input(&["restore", "-", "of-stream"], &stream);
    sandbox.ok(&["restore", "copy", "of-copy"]);
    sandbox.ok(&["restore", "db", "of-closed"]);
    // Of one that is open, what a crash leaves; nobody changes its files meanwhile.
    let db = kiln::Options::new().background(false).open(sandbox.path("db")).unwrap();
    db.put(&db.map("o").unwrap(), "k", "v").unwrap().safe().unwrap();
    db.backup(sandbox.path("of-open"), |_| {}).unwrap();
    db.backup(sandbox.path("served"), |_| {}).unwrap();
    std::fs::create_dir(sandbox.path("crashed")).unwrap();
    for file in std::fs::read_dir(sandbox.path("db")).unwrap() {
        let file = file.unwrap();
        std::fs::copy(file.path(), sandbox.path("crashed").join(file.file_name())).unwrap();
    }
    db.close().unwrap();
    sandbox.ok(&["restore", "crashed", "of-crashed"]);

    let said = |directory: &str| sandbox.ok(&["stat", directory]).lines().next().unwrap().to_owned();
    for backup in ["copy", "of-copy", "of-stream", "of-open"] {
        let first = said(backup);
        assert!(first.contains("; it is a backup that is opened for the first time: "), "{backup}: {first}");
        assert!(first.ends_with(" on is not in it"), "{backup}: {first}");
    }
    for crashed in ["crashed", "of-crashed"] {
        let first = said(crashed);
        assert!(first.contains("it had not been closed in order: ") && first.contains("is lost"), "{first}");
    }
    for is_backup in ["1", "0"] {
        let served = Served::start(&sandbox, &["--dir", "served"]);
        let info: String = redis::cmd("INFO").arg("durability").query(&mut served.connect()).unwrap();
        assert!(info.contains(&format!("recovered_is_backup:{is_backup}\r\n")), "{info}");
        served.end(rustix::process::Signal::TERM);
    }
    for closed in ["db", "of-closed", "copy", "of-copy", "of-stream", "of-open", "crashed"] {
        let then = said(closed);
        assert!(then.ends_with("; it had been closed in order, nothing is lost"), "{closed}: {then}");
    }
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

/// A database was made, and an empty map in it, which nobody could import as a table afterwards.
#[test]
fn nothing_is_made_for_what_is_no_export() {
    let sandbox = Sandbox::new();
    std::fs::create_dir(sandbox.path("directory")).unwrap();
    std::fs::write(sandbox.path("bad.jsonl"), "not json\n").unwrap();
    for (file, options, starts) in [
        ("directory", [].as_slice(), "kiln: reading directory: "),
        ("bad.jsonl", &[], "kiln: line 1: "),
        ("bad.jsonl", &["--bulk"], "kiln: line 1: "),
    ] {
        let said = sandbox.fails(1, &[&["import", "--object", "notes", file], options].concat());
        assert!(said.starts_with(starts), "{said}");
        assert!(!sandbox.path("kiln-data").exists(), "{said}");
    }
}

/// It was the last one of those that were imported together, or the one behind the end; or none, with --bulk.
#[test]
fn a_row_that_is_too_long_is_named() {
    let sandbox = Sandbox::new();
    let long = "x".repeat(70_000);
    for (bad, count) in [(2, 2), (10, 600)] {
        let key = |number: u64| if number == bad { long.clone() } else { format!("k{number:03}") };
        let rows: Vec<String> =
            (1..=count).map(|number| format!("{{\"key\":\"{}\",\"value\":\"\"}}\n", key(number))).collect();
        std::fs::write(sandbox.path("rows.jsonl"), rows.concat()).unwrap();
        for options in [[].as_slice(), &["--bulk"], &["--bulk", "--sort"]] {
            let error = sandbox.fails(1, &[&["import", "--object", "rows", "rows.jsonl"], options].concat());
            assert!(error.starts_with(&format!("kiln: line {bad}: a key of 70000 bytes")), "{error}");
            // The object is there once it was imported into.
            std::fs::remove_dir_all(sandbox.path("kiln-data")).unwrap();
        }
    }
}
