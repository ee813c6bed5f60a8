//! `kiln-bench run` as a user runs it, on very little data.

use std::path::Path;
use std::process::{Command, Output};

fn bench(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_kiln-bench")).args(arguments).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// A small run in a directory: not in the system's temporary directory, which may be a file system in memory.
fn small_run(directory: &Path, arguments: &[&str]) -> Output {
    let (data, json) = (directory.join("data"), directory.join("results.json"));
    let always = ["run", "--seconds", "0.05", "--rounds", "2", "--records", "1000", "--cache", "64"];
    let paths = ["--dir", data.to_str().unwrap(), "--json", json.to_str().unwrap()];
    let output = bench(&[&always[..], &paths[..], arguments].concat());
    assert!(!data.exists(), "the data is removed");
    output
}

fn directory() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap()
}

#[test]
fn every_cell_has_a_line_for_each_round_with_what_it_is_about() {
    let directory = directory();
    let workloads = "read,range,rmw,txn-3,update,mixed-durability,insert,safe-commit,map-upsert,map-rmw";
    let output = small_run(
        directory.path(),
        &[
            "--engines",
            "kiln,memory,device",
            "--workloads",
            workloads,
            "--threads",
            "1,2",
            "--window",
            "10ms,1s",
        ],
    );
    assert!(output.status.success(), "{}{}", text(&output.stdout), text(&output.stderr));
    let lines = std::fs::read_to_string(directory.path().join("results.json")).unwrap();
    let rows: Vec<serde_json::Value> =
        lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let count = |engine: &str, workload: &str, mode: &str| {
        rows.iter()
            .filter(|row| row["engine"] == engine && row["workload"] == workload && row["mode"] == mode)
            .count()
    };
    // Two rounds with two numbers of threads; and two windows, where nobody waits.
    for workload in ["read", "range", "rmw", "txn-3", "update", "insert", "map-upsert", "map-rmw"] {
        assert_eq!(count("kiln", workload, "fast"), 8, "{workload}");
        assert_eq!(count("memory", workload, "floor"), 4, "{workload}");
        assert_eq!(count("device", workload, "floor"), 0, "{workload}");
    }
    for (engine, mode) in [("kiln", "safe"), ("device", "floor")] {
        assert_eq!(count(engine, "safe-commit", mode), 4);
    }
    assert_eq!(count("kiln", "txn-3", "safe"), 4);
    assert_eq!((count("kiln", "read", "safe"), count("memory", "safe-commit", "floor")), (0, 0));
    // It takes two threads, and has a line for each half of them.
    assert_eq!(["fast", "safe"].map(|mode| count("kiln", "mixed-durability", mode)), [4, 4]);
    for row in &rows {
        assert!(row["ops"].as_u64().unwrap() > 0 && row["ops_per_s"].as_f64().unwrap() > 0.0, "{row}");
        assert!(row["checked"].as_bool().unwrap() && row["rss_bytes"].as_u64().unwrap() > 0, "{row}");
        assert!(row["p50_us"].as_f64().unwrap() <= row["max_us"].as_f64().unwrap(), "{row}");
    }
}

#[test]
fn transactions_of_tpcc_run_on_kiln() {
    let directory = directory();
    let output = small_run(directory.path(), &["--engines", "kiln", "--workloads", "tpcc", "--threads", "2"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let lines = std::fs::read_to_string(directory.path().join("results.json")).unwrap();
    // Safe ones, and fast ones with two windows; two rounds.
    assert_eq!(lines.lines().count(), 6);
}

#[test]
fn batches_count_each_of_their_keys() {
    let directory = directory();
    let output = small_run(
        directory.path(),
        &[
            "--engines",
            "memory",
            "--workloads",
            "map-read,map-mixed50,map-upsert,map-rmw",
            "--batch",
            "16",
            "--threads",
            "1",
        ],
    );
    assert!(output.status.success(), "{}", text(&output.stderr));
    let lines = std::fs::read_to_string(directory.path().join("results.json")).unwrap();
    assert_eq!(lines.lines().count(), 8);
    for line in lines.lines() {
        let row: serde_json::Value = serde_json::from_str(line).unwrap();
        assert_eq!((row["batch"].as_u64(), row["ops"].as_u64().unwrap() % 16), (Some(16), 0));
    }
}

#[test]
fn mistakes_are_explained() {
    let directory = directory();
    for (arguments, complaint) in [
        (&["--workloads", "raed"][..], "no workload \"raed\""),
        (&["--engines", "device", "--workloads", "read"], "no engine of those asked for"),
        (&["--threads", "0"], "between 1 and 1024"),
        (&["--key-bytes", "7"], "keys have 8 to 64 bytes"),
        (&["--window", "soon"], "--window"),
    ] {
        let output = small_run(directory.path(), arguments);
        assert!(!output.status.success());
        assert!(text(&output.stderr).contains(complaint), "{}", text(&output.stderr));
    }
    let mine = directory.path().join("mine");
    std::fs::create_dir(&mine).unwrap();
    std::fs::write(mine.join("letter"), "dear").unwrap();
    let output = bench(&["run", "--engines", "memory", "--dir", mine.to_str().unwrap()]);
    assert!(text(&output.stderr).contains("left alone"), "{}", text(&output.stderr));
    assert_eq!(std::fs::read_dir(&mine).unwrap().count(), 1);
}

#[test]
fn the_list_names_engines_modes_and_workloads() {
    let output = bench(&["list"]);
    let listed = text(&output.stdout);
    for word in ["kiln", "memory", "safe", "fast", "ycsb-f", "txn-N", "tpcc"] {
        assert!(listed.contains(word), "{word} is missing in\n{listed}");
    }
}
