//! `kiln-bench run` as a user runs it, on very little data.

use std::io::{Write as _, stderr};
use std::path::Path;
use std::process::{Command, Output};

use rustix::process::{Pid, Signal, kill_process};

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
    // Without a limit it waits, up to a minute, for the host to have the processors near each other.
    let limit = if arguments.contains(&"--time-limit") { &[][..] } else { &["--time-limit", "10m"] };
    let output = bench(&[&always[..], &paths[..], limit, arguments].concat());
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
    let rows = rows(&directory.path().join("results.json"));
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
    let json = directory.path().join("results.json");
    let tables = text(&bench(&["tables", json.to_str().unwrap()]).stdout);
    for part in [
        "| Kiln / tables, durable later, ",
        "; 1 / 2 threads |",
        " `read` |",
        "| Kiln / maps, durable later, ",
    ] {
        assert!(tables.contains(part), "{part} is missing in\n{tables}");
    }
    for row in &rows {
        assert!(row["ops"].as_u64().unwrap() > 0 && row["ops_per_s"].as_f64().unwrap() > 0.0, "{row}");
        assert!(row["checked"].as_bool().unwrap() && row["rss_bytes"].as_u64().unwrap() > 0, "{row}");
        assert!(row["p50_us"].as_f64().unwrap() <= row["max_us"].as_f64().unwrap(), "{row}");
    }
}

/// The measurements of a result file.
fn rows(json: &Path) -> Vec<serde_json::Value> {
    let lines = std::fs::read_to_string(json).unwrap();
    lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn data_larger_than_memory_is_read_in_batches() {
    let directory = directory();
    let (data, json) = (directory.path().join("data"), directory.path().join("results.json"));
    let output = bench(&[
        "run",
        "--seconds",
        "0.05",
        "--rounds",
        "1",
        "--records",
        "3000",
        "--threads",
        "1",
        "--engines",
        "kiln,rawreads",
        "--workloads",
        "cold-read-tenth,cold-zipf-quarter",
        "--dir",
        data.to_str().unwrap(),
        "--json",
        json.to_str().unwrap(),
    ]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let rows = rows(&json);
    let told = |row: &serde_json::Value| {
        let [engine, workload, distribution] =
            ["engine", "workload", "distribution"].map(|field| row[field].as_str().unwrap().to_owned());
        (engine, workload, distribution, row["batch"].as_u64().unwrap(), row["cache_bytes"].as_u64().unwrap())
    };
    let expected = |engine: &str, workload: &str, distribution: &str, part: u64| {
        (engine.to_owned(), workload.to_owned(), distribution.to_owned(), 64, 3000 * 1016 / part)
    };
    assert_eq!(
        rows.iter().map(told).collect::<Vec<_>>(),
        [
            expected("kiln", "cold-read-tenth", "uniform", 10),
            expected("rawreads", "cold-read-tenth", "uniform", 10),
            expected("kiln", "cold-zipf-quarter", "zipf", 4),
            expected("rawreads", "cold-zipf-quarter", "zipf", 4),
        ]
    );
    assert!(rows.iter().all(|row| row["ops"].as_u64().unwrap() % 64 == 0));
}

#[test]
fn a_database_is_found_again_after_kill_9_with_and_without_a_checkpoint() {
    let directory = directory();
    let run = |engines: &[&str]| {
        let engines = [engines, &["memory"]].concat().join(",");
        small_run(directory.path(), &["--engines", &engines, "--workloads", "recovery,recovery-log"])
    };
    let mut engines = vec!["kiln", "kiln-wal", "rocksdb", "sqlite", "lmdb"];
    let mut output = run(&engines);
    let told = text(&output.stderr);
    if told.contains("rocksdb: ") && told.contains(" is not installed") {
        // Past the tests' own capture.
        writeln!(stderr(), "SKIPPED for one engine of several: {told}").unwrap();
        engines.retain(|engine| *engine != "rocksdb");
        output = run(&engines);
    }
    assert!(output.status.success(), "{}", text(&output.stderr));
    let rows = rows(&directory.path().join("results.json"));
    for workload in ["recovery", "recovery-log"] {
        for engine in &engines {
            let own = rows.iter().filter(|row| row["engine"] == *engine && row["workload"] == workload);
            assert_eq!(own.count(), 2, "{engine} {workload}");
        }
    }
    assert_eq!(rows.len(), 4 * engines.len());
    assert!(rows.iter().all(|row| row["ops"] == 1000 && row["seconds"].as_f64().unwrap() > 0.0));
}

#[test]
fn the_papers_figures_come_out_of_one_run() {
    let directory = directory();
    let workloads = "map-txn-1-0,map-txn-3-50,map-upsert,map-buffered-256";
    let engines = "kiln,kiln-wal";
    let output = small_run(
        directory.path(),
        &[
            "--profile",
            "papers",
            "--engines",
            engines,
            "--workloads",
            workloads,
            "--distribution",
            "zipf-0.1",
        ],
    );
    assert!(output.status.success(), "{}{}", text(&output.stdout), text(&output.stderr));
    let told = text(&output.stdout);
    for part in [
        "CPR, figures 10, 11 and 16",
        "0:100 read:write, zipf-0.1, 2 threads",
        "CPR, figures 12 to 14",
        "CPR, figure 15",
        "ahead in ",
    ] {
        assert!(told.contains(part), "{part} is missing in\n{told}");
    }
    let rows = rows(&directory.path().join("results.json"));
    let without: Vec<_> =
        rows.iter().filter(|row| row["engine"] == "kiln" && row["mode"] == "floor").collect();
    assert_eq!(without.len(), 4);
    assert!(without.iter().all(|row| row["hardened_ms"].as_array().is_some_and(Vec::is_empty)));
    let count = |workload: &str| rows.iter().filter(|row| row["workload"] == workload).count();
    assert_eq!((count("map-txn-3-50"), count("map-upsert"), count("map-buffered-256")), (8, 8, 2));
}

#[test]
fn two_write_paths_are_compared_with_the_same_windows() {
    let directory = directory();
    let workloads = "read,mixed50,update,rmw,insert";
    let windows = ["--window", "10ms,1s"];
    let output = small_run(
        directory.path(),
        &[&["--engines", "kiln,in-place", "--workloads", workloads], &windows[..]].concat(),
    );
    assert!(output.status.success(), "{}{}", text(&output.stdout), text(&output.stderr));
    let told = text(&output.stdout);
    assert!(told.contains("AciKV, section 3.2"), "{told}");
    let rows = rows(&directory.path().join("results.json"));
    let own: Vec<_> = rows.iter().filter(|row| row["engine"] == "in-place").collect();
    let count = |workload: &str| own.iter().filter(|row| row["workload"] == workload).count();
    for workload in ["read", "mixed50", "update", "rmw"] {
        // Two rounds, two numbers of threads and two windows.
        assert_eq!(count(workload), 8, "{workload}");
    }
    assert_eq!(own.len(), 32);
    let update = own.iter().find(|row| row["workload"] == "update").unwrap();
    assert!(update["device_bytes"].as_u64().unwrap() > 0 && update["disk_bytes"].as_u64().unwrap() > 0);
}

#[test]
fn writers_beside_a_scan_are_told_with_what_they_do_alone() {
    let directory = directory();
    let engines = ["--engines", "kiln,lmdb,in-place", "--threads", "1", "--window", "10ms"];
    let workloads = ["--workloads", "update,write-beside-scan"];
    let output = small_run(directory.path(), &[&engines[..], &workloads].concat());
    assert!(output.status.success(), "{}{}", text(&output.stdout), text(&output.stderr));
    let told = text(&output.stdout);
    for part in ["Writers alone and beside", "rate of writers beside a scan over that alone", "at least 0.8"]
    {
        assert!(told.contains(part), "{part} is missing in\n{told}");
    }
    for row in rows(&directory.path().join("results.json")) {
        let has = |field: &str| row.get(field).is_some_and(|value| value.as_f64().unwrap() > 0.0);
        let is_beside = row["workload"] == "write-beside-scan";
        assert_eq!((has("alone_ops_per_s"), has("scanned_rows_per_s")), (is_beside, is_beside), "{row}");
        assert!(!(is_beside && row["engine"] == "in-place"), "{row}");
    }
}

#[test]
fn amplification_is_told_for_both_windows() {
    let directory = directory();
    let (data, json) = (directory.path().join("data"), directory.path().join("results.json"));
    let size = ["figures", "--sections", "amplification", "--records", "1000", "--memory", "64"];
    let time = ["--seconds", "0.1", "--rounds", "2"];
    let paths = ["--dir", data.to_str().unwrap(), "--json", json.to_str().unwrap()];
    let output = bench(&[&size[..], &time, &paths].concat());
    assert!(output.status.success(), "{}{}", text(&output.stdout), text(&output.stderr));
    let told = text(&output.stdout);
    for part in ["Table 100 ms: bytes written to the device", "Table 5 s: bytes on the disk over live bytes"]
    {
        assert!(told.contains(part), "{part} is missing in\n{told}");
    }
    let rows = rows(&json);
    assert_eq!(rows.len(), 4);
    assert!(rows.iter().all(|row| row["workload"] == "overwrite" && row["disk_bytes"].as_u64() > Some(0)));
}

#[test]
fn an_interrupted_run_keeps_what_it_has_and_goes_on_where_it_was() {
    let directory = directory();
    let json = directory.path().join("results.json");
    let arguments = ["--engines", "memory", "--workloads", "read,update,insert", "--threads", "1"];
    let paths = ["--dir", "data", "--json", "results.json"];
    let always = ["run", "--records", "1000", "--rounds", "2", "--seconds"];
    let run = |seconds: &str, resume: &[&str]| {
        Command::new(env!("CARGO_BIN_EXE_kiln-bench"))
            .args([&always[..], &[seconds], &arguments, &paths, resume].concat())
            .current_dir(directory.path())
            .stdout(std::process::Stdio::piped())
            .stderr(std::process::Stdio::piped())
            .spawn()
            .unwrap()
    };
    // It is stopped in the second of three cells, or later if this process is slow; if it is so slow that the run ends, in a longer one.
    let interrupted = ["0.1", "0.5", "2", "8"].into_iter().find_map(|seconds| {
        let _ = std::fs::remove_file(&json);
        let mut run = run(seconds, &[]);
        let lines = || std::fs::read_to_string(&json).map_or(0, |lines| lines.lines().count());
        while lines() < 3 && run.try_wait().unwrap().is_none() {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        if run.try_wait().unwrap().is_none() {
            let pid = Pid::from_raw(run.id() as i32).unwrap();
            kill_process(pid, Signal::INT).unwrap();
        }
        let output = run.wait_with_output().unwrap();
        (!output.status.success()).then_some((seconds, output))
    });
    let (seconds, output) = interrupted.expect("a run is interrupted");
    assert!(text(&output.stdout).contains("read, 1 thread") && text(&output.stdout).contains("--resume"));
    assert!(!directory.path().join("data").exists());
    let before = std::fs::read_to_string(&json).unwrap();

    // The second time it is done in the directory that is there; a line that was torn off is made again.
    std::fs::write(&json, format!("{before}{{\"engine\":")).unwrap();
    let output = run(seconds, &["--resume"]).wait_with_output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(std::fs::read_to_string(&json).unwrap().starts_with(&before));
    let rows = rows(&json);
    let count = |workload: &str| rows.iter().filter(|row| row["workload"] == workload).count();
    assert_eq!((count("read"), count("insert")), (2, 2));
    // A cell that was begun is measured again, in rounds of other numbers.
    let mut rounds: Vec<u64> = rows
        .iter()
        .filter(|row| row["workload"] == "update")
        .map(|row| row["round"].as_u64().unwrap())
        .collect();
    rounds.sort_unstable();
    let all = rounds.len();
    rounds.dedup();
    assert!(all >= 2 && rounds.len() == all, "{rounds:?}");
}

/// The run waited for its answer, whatever signals came.
#[test]
fn a_run_ends_tidily_though_a_contestant_does_not_answer() {
    // The end of a terminal is told more than once: by the shell, and by the system. Under nohup a run goes on without one.
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).unwrap();
    let ignores_hangup = u64::from_str_radix(ignored.trim(), 16).unwrap() & 1 != 0;
    let signals = [(Signal::INT, 1), (Signal::HUP, 10)];
    for (signal, times) in signals.into_iter().filter(|&(signal, _)| signal != Signal::HUP || !ignores_hangup)
    {
        let directory = directory();
        let mut run = Command::new(env!("CARGO_BIN_EXE_kiln-bench"))
            .args([
                "run",
                "--engines",
                "memory",
                "--workloads",
                "read",
                "--threads",
                "1",
                "--records",
                "1000",
            ])
            .args(["--seconds", "1000", "--rounds", "1", "--dir", "data", "--time-limit", "1h"])
            .current_dir(directory.path())
            .stdout(std::process::Stdio::null())
            .stderr(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let pid = Pid::from_raw(run.id() as i32).unwrap();
        let children = format!("/proc/{0}/task/{0}/children", run.id());
        let contestant = loop {
            assert!(run.try_wait().unwrap().is_none(), "it has ended");
            let found = std::fs::read_to_string(&children).unwrap();
            // Until it is a program of its own the run waits for it in the system.
            let is_contestant = |number: &&str| {
                std::fs::read_to_string(format!("/proc/{number}/cmdline"))
                    .is_ok_and(|line| line.contains("contestant"))
            };
            if let Some(number) = found.split_whitespace().find(is_contestant) {
                break Pid::from_raw(number.parse().unwrap()).unwrap();
            }
            std::thread::sleep(std::time::Duration::from_millis(1));
        };
        kill_process(contestant, Signal::STOP).unwrap();
        for _ in 0..times {
            kill_process(pid, signal).unwrap();
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        let ended = (0..600).find_map(|_| {
            std::thread::sleep(std::time::Duration::from_millis(100));
            run.try_wait().unwrap()
        });
        run.kill().unwrap();
        // One that was left behind has the run's output still. Errors: it has ended, too.
        let _ = kill_process(contestant, Signal::KILL);
        let output = run.wait_with_output().unwrap();
        assert!(ended.is_some_and(|status| !status.success()), "it waits for who does not answer");
        assert!(text(&output.stderr).contains("interrupted"), "{}", text(&output.stderr));
        assert!(!directory.path().join("data").exists());
    }
}

/// They were removed with it at the end.
#[test]
fn results_are_not_put_where_the_data_is() {
    let directory = directory();
    std::fs::create_dir(directory.path().join("other")).unwrap();
    std::os::unix::fs::symlink(directory.path(), directory.path().join("other/link")).unwrap();
    for json in [
        "data/results.json",
        "./data/results.json",
        "other/../data/results.json",
        "other/link/data/results.json",
    ] {
        let output = Command::new(env!("CARGO_BIN_EXE_kiln-bench"))
            .args(["run", "--engines", "memory", "--dir", "data", "--json", json])
            .current_dir(directory.path())
            .output()
            .unwrap();
        assert!(!output.status.success() && text(&output.stderr).contains("name a result file elsewhere"));
        assert!(!directory.path().join("data").exists());
    }
}

#[test]
fn cells_that_there_is_no_time_for_are_named_and_can_be_measured_later() {
    let directory = directory();
    let what = ["--engines", "memory", "--workloads", "read,map-read", "--threads", "1"];
    let output = small_run(directory.path(), &[&what[..], &["--time-limit", "0s"]].concat());
    let told = text(&output.stdout);
    assert!(output.status.success() && told.contains("as many of them as fit into 0s"), "{told}");
    // By the first of these scripts/bench knows that it is not whole.
    for part in [
        "There was no time for these",
        "read, 1 thread, durable later\n",
        "map-read, 1 thread, durable later\n",
        "--resume",
    ] {
        assert!(told.contains(part), "{part} is missing in\n{told}");
    }
    assert_eq!(rows(&directory.path().join("results.json")).len(), 0);
    let output = small_run(directory.path(), &[&what[..], &["--resume"]].concat());
    assert!(output.status.success() && !text(&output.stdout).contains("no time"), "{}", text(&output.stderr));
    assert_eq!(rows(&directory.path().join("results.json")).len(), 4);
}

#[test]
fn a_plan_says_how_long_and_how_much_and_makes_nothing() {
    let directory = directory();
    let output = Command::new(env!("CARGO_BIN_EXE_kiln-bench"))
        .args(["run", "--plan", "--profile", "full", "--engines", "kiln,lmdb"])
        .current_dir(directory.path())
        .output()
        .unwrap();
    let plan = text(&output.stdout);
    assert!(output.status.success() && plan.contains("5 to 9 rounds of 1 s"), "{plan}");
    assert!(plan.contains("measurements in about ") && plan.contains("on the disk at a time"), "{plan}");
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
}

#[test]
fn transactions_of_tpcc_run_on_kiln() {
    let directory = directory();
    let output = small_run(directory.path(), &["--engines", "kiln", "--workloads", "tpcc", "--threads", "2"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let lines = std::fs::read_to_string(directory.path().join("results.json")).unwrap();
    // Safe ones, and fast ones with the one window of the quick profile; two rounds.
    assert_eq!(lines.lines().count(), 4);
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
    for word in [
        "kiln",
        "memory",
        "safe",
        "fast",
        "ycsb-f",
        "txn-N",
        "tpcc",
        "cold-zipf-tenth",
        "recovery-log",
        "kiln-wal",
        "map-txn-N-R",
    ] {
        assert!(listed.contains(word), "{word} is missing in\n{listed}");
    }
}
