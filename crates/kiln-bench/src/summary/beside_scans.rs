//! What a long scan costs those who write beside it.

use super::cells::{Cell, Field};
use super::numbers;
use super::papers::{is_fast, threads_text};
use crate::report::{Goal, Table, Wanted};

/// What Kiln's writers have to keep of their rate.
const KEPT_MIN: f64 = 0.8;

/// Of the clients alone, as the other rate is: what is left to harden at the end falls on both.
const BESIDE: Field = |row| Some(row.ops as f64 / row.seconds);
const ALONE: Field = |row| row.alone_ops_per_s;
const KEPT: Field = |row| Some(row.ops as f64 / row.seconds / row.alone_ops_per_s?);

/// The table, if anybody was measured, and what Kiln is held to.
pub(super) fn table(cells: &[Cell<'_>]) -> Option<(Table, Vec<Goal>)> {
    let columns = ["load", "engine", "ops/s alone", "beside the scan", "kept", "rows/s of the scan"];
    let title = "Writers alone and beside a thread that reads the whole table at a snapshot, again and again";
    let (mut table, mut goals) = (Table::new(title, &columns), Vec::new());
    let measured: Vec<_> = cells.iter().filter(|cell| cell.samples(ALONE).median().is_finite()).collect();
    for cell in &measured {
        let load = format!("{}, {}", cell.task.workload, threads_text(cell.task.threads));
        let engine = format!("{} {}", cell.contestant.engine, cell.contestant.mode());
        let rates = [ALONE, BESIDE].map(|field| numbers::rate(cell.samples(field).median()));
        let kept = numbers::significant(cell.samples(KEPT).median());
        let scanned = numbers::rate(cell.samples(|row| row.scanned_rows_per_s).median());
        if is_fast(cell) {
            let what = format!("{load}, {engine}: rate of writers beside a scan over that alone");
            goals.push(Goal { what, measured: cell.samples(KEPT), wanted: Wanted::AtLeast(KEPT_MIN) });
        }
        table.row([load, engine].into_iter().chain(rates).chain([kept, scanned]));
    }
    (!measured.is_empty()).then_some((table, goals))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engines::catalog::Mode;
    use crate::results::Row;
    use crate::summary::cells::cells;
    use crate::summary::tests::sample;

    #[test]
    fn what_writers_keep_is_told_and_kilns_is_a_goal() {
        let row = |engine: &str, mode, kept: f64| Row {
            alone_ops_per_s: Some(2e6 / kept),
            scanned_rows_per_s: Some(7e6),
            ..sample(engine, mode, "write-beside-scan", 0, 2e6)
        };
        let mut rows = vec![sample("kiln", Mode::Fast, "update", 0, 1e6)];
        assert!(table(&cells(&rows)).is_none());
        rows.extend([row("kiln", Mode::Fast, 0.5), row("lmdb", Mode::Weak, 0.9)]);
        let (table, goals) = table(&cells(&rows)).unwrap();
        let texts: Vec<String> = table.rows()[1..].iter().map(|row| row[1..].join(" ")).collect();
        assert_eq!(texts, ["kiln fast 4.00 M 2.00 M 0.500 7.00 M", "lmdb weak 2.22 M 2.00 M 0.900 7.00 M"]);
        assert_eq!(goals.len(), 1);
        assert!(!goals[0].met());
    }
}
