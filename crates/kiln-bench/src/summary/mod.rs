//! Result rows as tables: one for each task and promise, with every engine's ratio to Kiln.
//!
//! ```text
//!  mod       the tables
//!   ├── cells     rounds, cells and groups
//!   ├── numbers   numbers as text
//!   ├── idleness  whether the machine was idle
//!   ├── papers    the figures of the papers of CPR and AciKV, and their goals
//!   ├── write_paths  Kiln's log beside updates in place
//!   ├── beside_scans  writers beside a long scan
//!   └── published the tables of the documentation
//! ```
//!
//! A ratio is taken round by round, so that a slow moment of the machine falls on both sides, and is the median of these.
//! Engines whose commits are durable when acknowledged are never in one table with those whose are not.

mod beside_scans;
pub(crate) mod cells;
pub(crate) mod idleness;
pub(crate) mod numbers;
pub(crate) mod papers;
pub(crate) mod published;
#[cfg(test)]
pub(crate) mod tests;
mod write_paths;

use self::cells::{Cell, Field, Group, THROUGHPUT};
use crate::report::Table;
use crate::results::Row;
use crate::workloads::spec::{self, Kind};

/// The columns of a table. A group without Kiln has none of ratios.
const COLUMNS: [&str; 13] = [
    "engine",
    "mode",
    "ops/s",
    "min",
    "max",
    RATIO,
    "p50 us",
    "p99 us",
    "p99.9 us",
    "CPU us/op",
    "device B/op",
    "memory",
    "disk",
];
const RATIO: &str = "Kiln/it";

/// How many times as fast as a cell Kiln is: the median of the rounds. NaN where they share no round.
pub(crate) fn kiln_ratio(group: &Group<'_>, cell: &Cell<'_>) -> f64 {
    group.base().map_or(f64::NAN, |base| base.ratios_to(cell, THROUGHPUT).median())
}

/// A ratio as text, empty where there is none.
pub(crate) fn ratio_text(ratio: f64) -> String {
    if ratio.is_finite() { numbers::significant(ratio) } else { "-".to_owned() }
}

/// One group as a table's columns and rows.
pub(crate) fn table(group: &Group<'_>) -> (Vec<&'static str>, Vec<Vec<String>>) {
    let has_base = group.base().is_some();
    let kept = |column: &&str| has_base || *column != RATIO;
    let rows = group.cells.iter().map(|cell| {
        let texts = COLUMNS.into_iter().zip(row(group, cell));
        texts.filter(|(column, _)| kept(column)).map(|(_, text)| text).collect()
    });
    (COLUMNS.into_iter().filter(kept).collect(), rows.collect())
}

fn row(group: &Group<'_>, cell: &Cell<'_>) -> [String; 13] {
    let throughput = cell.samples(THROUGHPUT);
    let median = |field: Field| cell.samples(field).median();
    // What the process used, one operation at a time: of two kinds of them beside each other nobody knows whose it is.
    let is_shared = spec::find(&cell.task.workload).is_ok_and(|workload| workload.kind == Kind::BothWays);
    let used = |field: Field| if is_shared { "-".to_owned() } else { numbers::significant(median(field)) };
    [
        cell.contestant.engine.clone(),
        cell.contestant.mode(),
        numbers::rate(throughput.median()),
        numbers::rate(throughput.min()),
        numbers::rate(throughput.max()),
        ratio_text(kiln_ratio(group, cell)),
        numbers::significant(median(|row| row.p50_us)),
        numbers::significant(median(|row| row.p99_us)),
        numbers::significant(median(|row| row.p999_us)),
        used(|row| Some(row.cpu_s * 1e6 / row.ops as f64)),
        used(|row| Some(row.device_bytes as f64 / row.ops as f64)),
        numbers::bytes(cell.samples(|row| Some(row.rss_bytes as f64)).max()),
        numbers::bytes(cell.samples(|row| Some(row.disk_bytes as f64)).max()),
    ]
}

/// All rows as tables, with a line before them that says what the columns mean.
pub(crate) fn tables(rows: &[Row]) -> String {
    let mut text = format!("{LEGEND}\n");
    for group in cells::groups(rows) {
        let (columns, rows) = table(&group);
        let mut table = Table::new(group.title(), &columns);
        rows.into_iter().for_each(|row| table.row(row));
        text.push_str(&table.text());
    }
    text.push_str(&papers::Figures::new(rows).text());
    text
}

/// What the columns mean.
pub(crate) const LEGEND: &str = "\
ops/s, min, max: median and range of the rounds. Kiln/it: how many times as fast as this engine Kiln is in the same rounds; of \
several windows, the shortest is compared. Latencies, CPU and device bytes are medians, memory and disk the most of any round.";
