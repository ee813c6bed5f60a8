//! Tests of grouping, ratios and tables, and the made-up rows that other tests share.

use super::cells::{Kind, Promise};
use super::*;
use crate::engines::catalog::Mode;
use crate::generate::Sizes;

/// A row of a workload with a throughput.
pub(crate) fn sample(engine: &str, mode: Mode, workload: &str, round: u32, ops_per_s: f64) -> Row {
    Row {
        version: "1.2.3".to_owned(),
        workload: workload.to_owned(),
        threads: 1,
        records: 1_000_000,
        cache_bytes: 1 << 30,
        round,
        ops: 2 * ops_per_s as u64,
        seconds: 2.0,
        ops_per_s,
        p50_us: Some(0.5e6 / ops_per_s),
        p99_us: Some(3e6 / ops_per_s),
        p999_us: Some(9e6 / ops_per_s),
        cpu_s: 1.9,
        rss_bytes: 700 << 20,
        disk_bytes: 652 << 20,
        checked: true,
        ..Row::new(engine, mode, Sizes { key_bytes: 16, value_bytes: 100 })
    }
}

#[test]
fn rounds_make_a_cell_and_cells_of_one_promise_a_group() {
    let mut rows = vec![
        sample("memory", Mode::Floor, "update", 0, 9e6),
        sample("rocksdb", Mode::Weak, "update", 0, 2e5),
        sample("rocksdb", Mode::Strong, "update", 0, 4e3),
        sample("device", Mode::Floor, "update", 0, 5e3),
        sample("kiln", Mode::Safe, "update", 0, 4e3),
        sample("kiln", Mode::Fast, "update", 1, 2e6),
        sample("kiln", Mode::Fast, "update", 0, 1e6),
        sample("lmdb", Mode::Weak, "update", 0, 1e5),
        sample("kiln", Mode::Fast, "read", 0, 1e6),
    ];
    rows[5].window_ms = Some(100);
    rows[6].window_ms = Some(100);
    let groups = cells::groups(&rows);
    let order: Vec<(&str, Promise, Vec<&str>)> = groups
        .iter()
        .map(|group| {
            let engines = group.cells.iter().map(|cell| cell.contestant.engine.as_str());
            (group.task.workload.as_str(), group.promise, engines.collect())
        })
        .collect();
    assert_eq!(
        order,
        [
            ("update", Promise::Later, vec!["kiln", "lmdb", "rocksdb", "memory"]),
            ("update", Promise::Durable, vec!["kiln", "rocksdb", "device"]),
            ("read", Promise::Later, vec!["kiln"]),
        ]
    );
    let kiln = &groups[0].cells[0];
    assert_eq!(kiln.rows.iter().map(|row| row.round).collect::<Vec<_>>(), [0, 1]);
    assert_eq!(kiln.contestant.mode(), "fast 100 ms");
    assert_eq!(groups[0].cells[3].contestant.kind, Kind::Floor);
}

#[test]
fn everything_that_names_a_cell_tells_cells_apart() {
    let base = sample("kiln", Mode::Fast, "read", 0, 1e6);
    let mut rows =
        vec![base.clone(), Row { round: 7, ops: 1, others: 0.5, version: "2".into(), ..base.clone() }];
    assert_eq!(cells::cells(&rows).len(), 1);
    rows.extend([
        Row { engine: "lmdb".into(), ..base.clone() },
        Row { mode: Mode::Safe, ..base.clone() },
        Row { workload: "update".into(), ..base.clone() },
        Row { distribution: crate::generate::draws::Distribution::ZIPF, ..base.clone() },
        Row { threads: 2, ..base.clone() },
        Row { pipeline: 2, ..base.clone() },
        Row { batch: 2, ..base.clone() },
        Row { window_ms: Some(5), ..base.clone() },
        Row { records: 5, ..base.clone() },
        Row { key_bytes: 8, ..base.clone() },
        Row { value_bytes: 8, ..base.clone() },
        Row { cache_bytes: 8, ..base },
    ]);
    assert_eq!(cells::cells(&rows).len(), rows.len() - 1);
}

#[test]
fn ratios_are_of_the_same_rounds_and_of_the_shortest_window() {
    let mut rows = vec![
        sample("kiln", Mode::Fast, "read", 0, 8e6),
        sample("kiln", Mode::Fast, "read", 0, 1e6),
        sample("kiln", Mode::Fast, "read", 2, 3e6),
        // Its rounds are in another order, and one is missing on each side.
        sample("lmdb", Mode::Weak, "read", 2, 1e6),
        sample("lmdb", Mode::Weak, "read", 1, 77.0),
        sample("lmdb", Mode::Weak, "read", 0, 1e6),
        sample("sled", Mode::Weak, "read", 9, 1e6),
    ];
    rows[0].window_ms = Some(5000);
    rows[1].window_ms = Some(100);
    rows[2].window_ms = Some(100);
    let groups = cells::groups(&rows);
    let ratios: Vec<String> =
        groups[0].cells.iter().map(|cell| ratio_text(kiln_ratio(&groups[0], cell))).collect();
    assert_eq!(ratios, ["1.00", "0.125", "2.00", "-"]);
}

#[test]
fn a_table_has_what_was_measured_and_a_dash_for_what_was_not() {
    let mut rows = vec![
        sample("kiln", Mode::Fast, "update", 0, 2e6),
        sample("kiln", Mode::Fast, "update", 1, 3e6),
        sample("lmdb", Mode::Weak, "update", 0, 1e6),
        sample("redis", Mode::Weak, "resp-set", 0, 1e5),
    ];
    rows[2].p999_us = None;
    rows[2].ops = 0;
    let text = tables(&rows);
    assert!(text.starts_with(LEGEND));
    assert!(
        text.contains(
            "update, 1 thread, durable later; 1.00 M uniform keys of 16 + 100 bytes, cache 1.00 GiB"
        )
    );
    let line = |start: &str| {
        let line = text.lines().find(|line| line.starts_with(start)).unwrap();
        line.split('|').map(str::trim).map(str::to_owned).collect::<Vec<_>>().join("|")
    };
    assert_eq!(
        line("| kiln"),
        "|kiln|fast|2.50 M|2.00 M|3.00 M|1.00|0.208|1.25|3.75|0.396|0|700 MiB|652 MiB|"
    );
    assert_eq!(line("| lmdb"), "|lmdb|weak|1.00 M|1.00 M|1.00 M|2.00|0.500|3.00|-|-|-|700 MiB|652 MiB|");
    // Nothing can be compared with Kiln there, so that there is no column for it.
    assert_eq!(text.matches(RATIO).count(), LEGEND.matches(RATIO).count() + 1);
    assert!(text.contains("resp-set, 1 connection"));
}
