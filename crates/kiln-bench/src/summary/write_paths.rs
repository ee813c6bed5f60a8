//! Two write paths beside each other: Kiln's log, and updates in place as AciKV makes them, window by window.

use super::cells::{Cell, Field, THROUGHPUT};
use super::numbers;
use super::papers::{is_fast, threads_text};
use crate::engines::catalog::Name;
use crate::report::Table;

const DEVICE_BYTES: Field = |row| Some(row.device_bytes as f64 / row.ops as f64);

/// The table, if both were measured. A lag beyond the window is a window that was not kept: the prototype lets nobody wait for it.
pub(super) fn table(cells: &[Cell<'_>]) -> Option<Table> {
    let in_place = Name::InPlace.text();
    let pairs = cells.iter().filter(|cell| is_fast(cell)).filter_map(|kiln| {
        let other = cells.iter().find(|other| {
            other.contestant.engine == in_place
                && other.task == kiln.task
                && other.contestant.window_ms == kiln.contestant.window_ms
        });
        Some((kiln, other?))
    });
    let rows: Vec<_> = pairs.map(|(kiln, other)| row(kiln, other)).collect();
    let columns = [
        "load",
        "window",
        "Kiln, ops/s",
        "in place, ops/s",
        "Kiln/in place",
        "Kiln, to durable, p99",
        "in place, to durable, p99",
        "Kiln, device B/op",
        "in place, device B/op",
    ];
    let title = "AciKV, section 3.2: updates in place in leaves that are written elsewhere, beside Kiln's log, with the same window";
    let mut table = Table::new(title, &columns);
    let has_rows = !rows.is_empty();
    rows.into_iter().for_each(|row| table.row(row));
    has_rows.then_some(table)
}

fn row(kiln: &Cell<'_>, other: &Cell<'_>) -> Vec<String> {
    let task = &kiln.task;
    let load = format!("{}, {}, {}", task.workload, task.distribution, threads_text(task.threads));
    let window = kiln.contestant.window_ms.map_or_else(String::new, numbers::window);
    let of_both =
        |field: Field, text: fn(f64) -> String| [kiln, other].map(|cell| text(cell.samples(field).median()));
    let ratio = numbers::significant(kiln.ratios_to(other, THROUGHPUT).median());
    let mut texts = vec![load, window];
    texts.extend(of_both(THROUGHPUT, numbers::rate));
    texts.push(ratio);
    texts.extend(of_both(|row| row.lag_p99_us, numbers::microseconds));
    texts.extend(of_both(DEVICE_BYTES, numbers::significant));
    texts
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engines::catalog::Mode;
    use crate::results::Row;
    use crate::summary::cells::cells;
    use crate::summary::tests::sample;

    #[test]
    fn both_are_compared_with_the_same_window() {
        let row = |engine: &str, window_ms, rate| Row {
            window_ms: Some(window_ms),
            lag_p99_us: Some(30_000.0),
            ..sample(engine, Mode::Fast, "update", 0, rate)
        };
        let mut rows = vec![row("kiln", 10, 1e6), row("kiln", 5000, 3e6)];
        assert!(table(&cells(&rows)).is_none());
        rows.extend([row("in-place", 10, 2e6), row("in-place", 5000, 1e6), row("in-place", 100, 1.0)]);
        let table = table(&cells(&rows)).unwrap();
        let texts: Vec<String> = table.rows()[1..].iter().map(|row| row[1..7].join(" ")).collect();
        let expected =
            ["10 ms 1.00 M 2.00 M 0.500 30.0 ms 30.0 ms", "5 s 3.00 M 1.00 M 3.00 30.0 ms 30.0 ms"];
        assert_eq!(texts, expected);
    }
}
