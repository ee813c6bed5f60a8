//! The figures of the papers of CPR and AciKV as tables, and those of Kiln's own goals, with what is wanted of them. A figure is there if its rows are.

use std::collections::BTreeSet;

use super::cells::{Cell, Field, KILN, THROUGHPUT, Task, cells};
use super::{beside_scans, numbers, write_paths};
use crate::engines::catalog::{Mode, Name};
use crate::generate::draws::Distribution;
use crate::report::{Goal, Samples, Table, Wanted, goals_table};
use crate::results::Row;
use crate::workloads::Operation;
use crate::workloads::spec::{self, Kind};

/// So many windows, or numbers of clients, make a curve.
const CURVE_POINTS: usize = 3;
/// What AciKV's figure 6 is held to: the throughput with the first window over that with the second, in milliseconds.
const WINDOWS_COMPARED_MS: [u64; 2] = [1, 5000];

/// Operations over the time of the clients alone: where hardening is what is looked at, what is left of it at the end is not.
const RATE: Field = |row| Some(row.ops as f64 / row.seconds);

/// The tables of all figures that are there, and the goals.
pub(crate) struct Figures {
    pub(crate) tables: Vec<Table>,
    goals: Vec<Goal>,
}

impl Figures {
    /// All of some rows.
    pub(crate) fn new(rows: &[Row]) -> Figures {
        let cells = cells(rows);
        let mut figures = Figures { tables: Vec::new(), goals: Vec::new() };
        figures.logs(&cells);
        figures.hardening(&cells);
        figures.buffers(&cells);
        figures.windows(&cells);
        figures.group_commit(&cells);
        figures.tables.extend(write_paths::table(&cells));
        if let Some((table, goals)) = beside_scans::table(&cells) {
            figures.tables.push(table);
            figures.goals.extend(goals);
        }
        if !figures.goals.is_empty() {
            figures.tables.push(goals_table("What the figures are held to", &figures.goals));
        }
        figures
    }

    /// Everything as Markdown; nothing if there is no figure.
    pub(crate) fn text(&self) -> String {
        self.tables.iter().map(Table::text).collect()
    }

    fn goal(&mut self, what: String, measured: Samples, wanted: Wanted) {
        self.goals.push(Goal { what, measured, wanted });
    }

    /// CPR, figures 10, 11 and 16: Kiln over the same store with a log at commit.
    fn logs(&mut self, cells: &[Cell<'_>]) {
        let loads: BTreeSet<(Distribution, u32, usize)> =
            cells.iter().filter_map(|cell| with_log(cell, cells).and_then(|_| log_load(cell))).collect();
        let keys: BTreeSet<usize> = cells
            .iter()
            .filter(|cell| with_log(cell, cells).is_some())
            .filter_map(|cell| Some(keys_of(cell)?.0))
            .collect();
        if keys.is_empty() {
            return;
        }
        let columns: Vec<String> = keys.iter().map(|keys| format!("{keys} keys")).collect();
        let columns: Vec<&str> = ["load"].into_iter().chain(columns.iter().map(String::as_str)).collect();
        let title = "CPR, figures 10, 11 and 16: transactions, Kiln over the same store with a write-ahead log at commit (Kiln's rate)";
        let mut table = Table::new(title, &columns);
        let mut worst: Option<(String, Samples)> = None;
        let (mut ahead, mut all) = (0, 0);
        for load in &loads {
            let (distribution, reads, threads) = load;
            let name =
                format!("{reads}:{} read:write, {distribution}, {}", 100 - reads, threads_text(*threads));
            let of_keys = |count: &usize| {
                let is_it = |cell: &&Cell<'_>| {
                    log_load(cell) == Some(*load) && keys_of(cell).is_some_and(|of| of.0 == *count)
                };
                cells.iter().filter(is_it).find_map(|cell| Some((cell, with_log(cell, cells)?)))
            };
            let mut texts = vec![name.clone()];
            for count in &keys {
                let Some((kiln, log)) = of_keys(count) else {
                    texts.push("-".to_owned());
                    continue;
                };
                let ratios = kiln.ratios_to(log, THROUGHPUT);
                let ratio = ratios.median();
                all += 1;
                ahead += u32::from(ratio >= 1.0);
                let mark = if ratio < 1.0 { "**" } else { "" };
                let rate = numbers::rate(kiln.samples(THROUGHPUT).median());
                texts.push(format!("{mark}{ratio:.2}{mark} ({rate}/s)"));
                if worst.as_ref().is_none_or(|(_, before)| ratio < before.median()) {
                    worst = Some((format!("{count} keys, {name}"), ratios));
                }
            }
            table.row(texts);
        }
        self.tables.push(table);
        if let Some((which, ratios)) = worst {
            let what =
                format!("Kiln over a log at commit: ahead in {ahead} of {all} cells; the worst ({which})");
            self.goal(what, ratios, Wanted::AtLeast(1.0));
        }
    }

    /// CPR, figures 12 to 14: throughput over time and latency, with hardening and without.
    fn hardening(&mut self, cells: &[Cell<'_>]) {
        let columns = [
            "load",
            "engine",
            "ops/s",
            "over without",
            "lowest 50 ms / median",
            "p50 us",
            "p99 us",
            "p99.9 us",
            "max us",
        ];
        let title = "CPR, figures 12 to 14: throughput and latency while hardening, beside the same without (which is \"floor\")";
        let mut table = Table::new(title, &columns);
        let mut has_rows = false;
        for kiln in cells.iter().filter(|cell| is_fast(cell) && without_hardening(cell, cells).is_some()) {
            has_rows = true;
            let load = format!(
                "{}, {}, {}",
                kiln.task.workload,
                kiln.task.distribution,
                threads_text(kiln.task.threads)
            );
            for cell in cells.iter().filter(|cell| cell.task == kiln.task) {
                table.row(hardening_row(&load, cell, cells));
            }
            let Some(without) = without_hardening(kiln, cells) else { continue };
            let wanted = match (&*kiln.task.workload, kiln.task.distribution) {
                ("map-mixed50", Distribution::ZIPF) => Wanted::AtLeast(0.7),
                ("map-upsert", Distribution::Uniform) => Wanted::AtLeast(0.5),
                _ => Wanted::Nothing,
            };
            self.goal(
                format!("{load}: throughput with hardening over that without"),
                kiln.ratios_to(without, RATE),
                wanted,
            );
            let wanted = if matches!(wanted, Wanted::Nothing) { wanted } else { Wanted::AtLeast(0.3) };
            self.goal(format!("{load}: the lowest 50 ms over the median of its round"), lowest(kiln), wanted);
        }
        if has_rows {
            self.tables.push(table);
        }
    }

    /// CPR, figure 15: clients that keep what is not durable.
    fn buffers(&mut self, cells: &[Cell<'_>]) {
        let of = |cell: &Cell<'_>| Some((cell.task.distribution, cell.task.threads, room_of(cell)?));
        let rooms: BTreeSet<usize> = cells.iter().filter_map(|cell| Some(of(cell)?.2)).collect();
        if rooms.is_empty() {
            return;
        }
        let columns: Vec<String> = rooms.iter().map(|room| format!("{room} writes")).collect();
        let columns: Vec<&str> = ["load"].into_iter().chain(columns.iter().map(String::as_str)).collect();
        let title = "CPR, figure 15: clients that wait while their buffer of writes that are not durable is full; operations per second \
                     (time between hardenings)";
        let mut table = Table::new(title, &columns);
        let loads: BTreeSet<(Distribution, usize)> = cells
            .iter()
            .filter_map(|cell| of(cell).map(|(distribution, threads, _)| (distribution, threads)))
            .collect();
        for (distribution, threads) in loads {
            let text = |room: &usize| {
                let cell = cells.iter().find(|cell| of(cell) == Some((distribution, threads, *room)));
                cell.map_or("-".to_owned(), |cell| {
                    let rate = numbers::rate(cell.samples(THROUGHPUT).median());
                    format!("{rate} ({})", numbers::microseconds(cell.samples(INTERVAL_US).median()))
                })
            };
            let name = format!("{distribution}, {threads} clients");
            table.row([name].into_iter().chain(rooms.iter().map(text)));
        }
        self.tables.push(table);
    }

    /// AciKV, figures 6 and 7: the vulnerability window.
    fn windows(&mut self, cells: &[Cell<'_>]) {
        for task in tasks(cells, is_fast) {
            let mut own: Vec<&Cell<'_>> =
                cells.iter().filter(|cell| is_fast(cell) && cell.task == task).collect();
            own.sort_by_key(|cell| cell.contestant.window_ms);
            if own.len() < CURVE_POINTS {
                continue;
            }
            let title = format!(
                "AciKV, figures 6 and 7: weak durability, {}, {}",
                task.workload,
                threads_text(task.threads)
            );
            let mut table = Table::new(
                title,
                &[
                    "window",
                    "ops/s",
                    "p50 us",
                    "p99 us",
                    "max us",
                    "to durable, p50",
                    "to durable, p99",
                    "device B/op",
                ],
            );
            for cell in &own {
                let time = |field: Field| numbers::microseconds(cell.samples(field).median());
                let window = cell.contestant.window_ms.map_or_else(String::new, numbers::window);
                let rate = numbers::rate(cell.samples(THROUGHPUT).median());
                let latencies =
                    latencies(cell).into_iter().enumerate().filter(|(at, _)| *at != 2).map(|(_, text)| text);
                let lags = [time(|row| row.lag_p50_us), time(|row| row.lag_p99_us)];
                let bytes = cell.samples(|row| Some(row.device_bytes as f64 / row.ops as f64));
                let bytes = numbers::significant(bytes.median());
                table.row([window, rate].into_iter().chain(latencies).chain(lags).chain([bytes]));
            }
            self.tables.push(table);
            let of = |window| own.iter().find(|cell| cell.contestant.window_ms == Some(window));
            if let [Some(short), Some(long)] = WINDOWS_COMPARED_MS.map(of) {
                let what = format!(
                    "{}, {}: throughput with a window of 1 ms over that with 5 s",
                    task.workload,
                    threads_text(task.threads)
                );
                self.goal(what, short.ratios_to(long, THROUGHPUT), Wanted::AtLeast(0.5));
            }
        }
    }

    /// AciKV, figure 7: group commit.
    fn group_commit(&mut self, cells: &[Cell<'_>]) {
        for mut task in tasks(cells, is_group_commit) {
            if task.threads != 1 {
                continue;
            }
            task.threads = 0;
            let same =
                |cell: &&Cell<'_>| is_group_commit(cell) && Task { threads: 0, ..cell.task.clone() } == task;
            let own: Vec<&Cell<'_>> = cells.iter().filter(same).collect();
            if own.len() < CURVE_POINTS {
                continue;
            }
            let title = "AciKV, figure 7: group commit, each client waits until its write is durable";
            let mut table =
                Table::new(title, &["clients", "ops/s", "p50 us", "p99 us", "p99.9 us", "max us"]);
            for cell in own {
                let texts = [cell.task.threads.to_string(), numbers::rate(cell.samples(THROUGHPUT).median())];
                table.row(texts.into_iter().chain(latencies(cell)));
            }
            self.tables.push(table);
        }
    }
}

/// The time between two hardenings.
const INTERVAL_US: Field = |row| {
    // Files from before they were counted have those that were seen.
    let count = row.hardenings.unwrap_or(row.hardened_ms.len() as u64);
    (count > 0).then(|| row.seconds * 1e6 / count as f64)
};

/// So many threads, in words.
pub(super) fn threads_text(threads: usize) -> String {
    format!("{threads} thread{}", if threads == 1 { "" } else { "s" })
}

/// Kiln as it is used when it is fast, with a window.
pub(crate) fn is_fast(cell: &Cell<'_>) -> bool {
    cell.contestant.engine == KILN && cell.contestant.mode == Mode::Fast
}

/// Kiln's clients that wait until each write is durable.
pub(crate) fn is_group_commit(cell: &Cell<'_>) -> bool {
    cell.contestant.engine == KILN
        && cell.contestant.mode == Mode::Safe
        && operation(cell) == Some(Operation::PutDurably)
}

fn operation(cell: &Cell<'_>) -> Option<Operation> {
    match spec::find(&cell.task.workload).ok()?.kind {
        Kind::Keys(operation) => Some(operation),
        _ => None,
    }
}

/// Of a transaction of CPR's the keys, and how many of a hundred are read.
pub(crate) fn keys_of(cell: &Cell<'_>) -> Option<(usize, u32)> {
    match operation(cell)? {
        Operation::GetOrPutEach { reads, count } => Some((count, reads)),
        _ => None,
    }
}

/// How many writes the buffer of a client has room for.
pub(crate) fn room_of(cell: &Cell<'_>) -> Option<usize> {
    match operation(cell)? {
        Operation::GetOrPutBuffered { room, .. } => Some(room),
        _ => None,
    }
}

/// What a row of the table of logs is about.
fn log_load(cell: &Cell<'_>) -> Option<(Distribution, u32, usize)> {
    Some((cell.task.distribution, keys_of(cell)?.1, cell.task.threads))
}

/// The cell with a log at commit that Kiln's is compared with.
fn with_log<'c, 'r>(cell: &Cell<'_>, cells: &'c [Cell<'r>]) -> Option<&'c Cell<'r>> {
    keys_of(cell).filter(|_| is_fast(cell))?;
    let log = Name::KilnWal.text();
    cells.iter().find(|other| other.contestant.engine == log && other.task == cell.task)
}

/// The same engine without hardening.
pub(crate) fn without_hardening<'c, 'r>(cell: &Cell<'_>, cells: &'c [Cell<'r>]) -> Option<&'c Cell<'r>> {
    cells.iter().find(|other| {
        other.contestant.engine == cell.contestant.engine
            && other.contestant.mode == Mode::Floor
            && other.task == cell.task
    })
}

/// The lowest bin over the median bin of its round, of the worst round.
fn lowest(cell: &Cell<'_>) -> Samples {
    let mut lowest = Samples::default();
    let parts = cell.rows.iter().filter_map(|row| {
        let bins: Samples = row.complete_bins().iter().map(|&count| count as f64).collect();
        (bins.median() > 0.0).then(|| bins.min() / bins.median())
    });
    if let Some(part) = parts.reduce(f64::min) {
        lowest.push(part);
    }
    lowest
}

fn hardening_row(load: &str, cell: &Cell<'_>, cells: &[Cell<'_>]) -> Vec<String> {
    let is_without = cell.contestant.mode == Mode::Floor;
    let ratio = without_hardening(cell, cells).filter(|_| !is_without);
    let ratio =
        ratio.map_or("-".to_owned(), |without| numbers::significant(cell.ratios_to(without, RATE).median()));
    let name = format!("{} {}", cell.contestant.engine, cell.contestant.mode());
    let rate = numbers::rate(cell.samples(RATE).median());
    let texts = [load.to_owned(), name, rate, ratio, numbers::significant(lowest(cell).median())];
    texts.into_iter().chain(latencies(cell)).collect()
}

/// p50, p99, p99.9 and the most, in microseconds.
fn latencies(cell: &Cell<'_>) -> [String; 4] {
    let fields: [Field; 4] = [|row| row.p50_us, |row| row.p99_us, |row| row.p999_us, |row| row.max_us];
    fields.map(|field| numbers::significant(cell.samples(field).median()))
}

/// The tasks of some cells.
fn tasks(cells: &[Cell<'_>], is_meant: fn(&Cell<'_>) -> bool) -> Vec<Task> {
    let mut tasks: Vec<Task> =
        cells.iter().filter(|cell| is_meant(cell)).map(|cell| cell.task.clone()).collect();
    tasks.dedup();
    tasks
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::summary::tests::sample;

    fn text(rows: &[Row]) -> String {
        let text = Figures::new(rows).text();
        text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ") + "\n").collect()
    }

    fn expect(rows: &[Row], parts: &[&str]) {
        let text = text(rows);
        for part in parts {
            assert!(text.contains(part), "{part}\nis missing in\n{text}");
        }
    }

    #[test]
    fn rows_of_no_figure_make_none() {
        let rows = [
            sample("kiln", Mode::Fast, "map-upsert", 0, 1e6),
            sample("faster", Mode::Floor, "map-upsert", 0, 1e6),
        ];
        assert_eq!(text(&rows), "");
    }

    #[test]
    fn a_log_is_compared_cell_by_cell_and_the_worst_counts() {
        let mut rows = Vec::new();
        for (workload, rate) in [("map-txn-1-50", 3e6), ("map-txn-3-50", 1e6)] {
            rows.push(sample("kiln", Mode::Fast, workload, 0, rate));
            rows.push(sample("kiln-wal", Mode::Weak, workload, 0, 2e6));
        }
        rows.push(sample("kiln", Mode::Fast, "map-txn-5-50", 0, 1.0));
        expect(
            &rows,
            &[
                "| load | 1 keys | 3 keys |\n",
                "| 50:50 read:write, uniform, 1 thread | 1.50 (3.00 M/s) | **0.50** (1.00 M/s) |",
                "ahead in 1 of 2 cells; the worst (3 keys, 50:50 read:write, uniform, 1 thread) | 0.50 (0.50 to 0.50) | at least 1, **missed** |",
            ],
        );
    }

    #[test]
    fn hardening_is_compared_without_what_is_left_of_it_at_the_end_and_by_the_lowest_bin_of_all_rounds() {
        let row = |engine: &str, mode, round, ops: u64, bins: &[u64]| Row {
            distribution: Distribution::ZIPF,
            ops,
            seconds: 0.2,
            persist_s: 0.2,
            bins: bins.to_vec(),
            ..sample(engine, mode, "map-mixed50", round, ops as f64 / 0.4)
        };
        let rows = [
            row("kiln", Mode::Fast, 0, 80, &[20, 10, 20, 30, 1]),
            row("kiln", Mode::Fast, 1, 80, &[20, 4, 20, 30]),
            row("kiln", Mode::Floor, 0, 100, &[25; 4]),
            row("kiln", Mode::Floor, 1, 100, &[25; 4]),
            row("faster", Mode::Weak, 0, 50, &[10; 4]),
        ];
        expect(
            &rows,
            &[
                "| map-mixed50, zipf, 1 thread: throughput with hardening over that without | 0.80 (0.80 to 0.80) | at least 0.7 |",
                "the lowest 50 ms over the median of its round | 0.20 (0.20 to 0.20) | at least 0.3, **missed** |",
                "| map-mixed50, zipf, 1 thread | kiln fast | 400 | 0.800 | 0.200 |",
                "| map-mixed50, zipf, 1 thread | faster weak | 250 | - | 1.00 |",
                "| kiln floor | 500 | - | 1.00 |",
            ],
        );
        assert_eq!(text(&rows[..2]), "");
    }

    #[test]
    fn buffers_windows_and_clients_are_curves() {
        let window = |window_ms, rate| Row {
            window_ms: Some(window_ms),
            ..sample("kiln", Mode::Fast, "update", 0, rate)
        };
        let client = |threads, rate| Row { threads, ..sample("kiln", Mode::Safe, "safe-commit", 0, rate) };
        let room = |room: usize, rate| Row {
            hardenings: (room > 256).then_some(4000),
            hardened_ms: vec![500.0, 1500.0],
            threads: 2,
            ..sample("kiln", Mode::Fast, &format!("map-buffered-{room}"), 0, rate)
        };
        let rows = [
            window(5000, 2e6),
            window(1, 1.2e6),
            window(100, 2e6),
            client(1, 5e3),
            client(16, 5e4),
            client(64, 9e4),
            room(256, 1e5),
            room(4096, 1e6),
        ];
        expect(
            &rows,
            &[
                "| load | 256 writes | 4096 writes |",
                "| uniform, 2 clients | 100 k (1.00 s) | 1.00 M (500 us) |",
                "| 1 ms | 1.20 M |",
                "window of 1 ms over that with 5 s | 0.60 (0.60 to 0.60) | at least 0.5 |",
                "| 16 | 50.0 k |",
            ],
        );
        assert_eq!(text(&rows[..2]), "");
        assert_eq!(text(&rows[3..5]), "");
    }
}
