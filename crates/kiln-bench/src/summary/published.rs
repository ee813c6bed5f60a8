//! The tables of the documentation: for each kind of data and promise one, with a row for each peer, a column for each workload, and
//! in each cell how many times as fast Kiln is, for each number of threads.

use std::fmt::Write as _;

use clap::ValueEnum;

use super::cells::{Cell, Contestant, Group, Kind, Promise, THROUGHPUT, groups};
use super::idleness;
use super::numbers;
use super::papers::Figures;
use crate::engines::catalog::{Mode, Name};
use crate::report::{SURE, Samples};
use crate::results::Row;
use crate::workloads::spec::{self, Dataset};

/// Everything as Markdown.
pub(crate) fn text(rows: &[Row]) -> String {
    let groups = groups(rows);
    let mut text = head(rows, &groups);
    let mut losses = Vec::new();
    for table in tables(&groups) {
        text.push_str(&table.text(&mut losses));
    }
    if !losses.is_empty() {
        text.push_str("\nWhere Kiln loses:\n\n");
        losses.iter().for_each(|loss| text.push_str(&format!("- {loss}\n")));
    }
    text.push_str(&Figures::new(rows).text());
    text
}

/// Where and how it was measured.
fn head(rows: &[Row], groups: &[Group<'_>]) -> String {
    let mut machines: Vec<&str> = rows.iter().map(|row| row.machine.as_str()).collect();
    machines.sort_unstable();
    machines.dedup();
    machines.retain(|machine| !machine.is_empty());
    let seconds: Samples = rows.iter().map(|row| row.seconds).collect();
    let rounds = groups.iter().flat_map(|group| &group.cells).map(|cell| cell.rows.len());
    let (least, most) = (rounds.clone().min().unwrap_or(0), rounds.max().unwrap_or(0));
    let rounds = if least == most { least.to_string() } else { format!("{least} to {most}") };
    let mut text = format!(
        "{}. {} measurements, {rounds} rounds of {} s. {}\n",
        if machines.is_empty() { "An unnamed machine".to_owned() } else { machines.join("; ") },
        rows.len(),
        numbers::significant(seconds.median()),
        idleness::text(rows)
    );
    for line in [idleness::warning(rows), sureness(groups), load_cost(groups)].into_iter().flatten() {
        let _ = write!(text, "\n{line}\n");
    }
    text
}

/// How sure the ratios are.
fn sureness(groups: &[Group<'_>]) -> Option<String> {
    let mut errors: Vec<f64> = Vec::new();
    for group in groups {
        let Some(base) = group.base() else { continue };
        let others = group.cells.iter().filter(|cell| cell.contestant.kind != Kind::Kiln);
        let ratios = others.map(|cell| base.ratios_to(cell, THROUGHPUT).error_of_median());
        errors.extend(ratios.filter(|error| error.is_finite()));
    }
    let sure = errors.iter().filter(|&&error| error <= SURE).count();
    let worst = errors.iter().copied().fold(0.0, f64::max);
    (!errors.is_empty()).then(|| {
        format!(
            "Of {} median ratios {sure} have a standard error of at most {:.1}%, the worst {:.0}%.",
            errors.len(),
            100.0 * SURE,
            100.0 * worst
        )
    })
}

/// What the load itself costs, where the engine `generator` was measured beside the floor in memory.
fn load_cost(groups: &[Group<'_>]) -> Option<String> {
    let rate = |cell: Option<&Cell<'_>>| cell.map(|cell| cell.samples(THROUGHPUT).median());
    let mut parts: Vec<(f64, String)> = groups
        .iter()
        .filter_map(|group| {
            let of = |name: Name| group.cells.iter().find(|cell| cell.contestant.engine == name.text());
            let part = rate(of(Name::Memory))? / rate(of(Name::Generator))?;
            Some((part, format!("{}, {}", group.task.workload, group.task.load())))
        })
        .collect();
    parts.sort_by(|a, b| b.0.total_cmp(&a.0));
    let (most, which) = parts.first()?;
    let (least, _) = parts.last()?;
    Some(format!(
        "The load itself takes {:.1}% to {:.1}% of the time of the floor in memory (most: {which}).",
        100.0 * least,
        100.0 * most
    ))
}

/// What is compared in one table.
struct Table<'g, 'r> {
    dataset: Dataset,
    promise: Promise,
    /// Sizes of data and cache.
    data: String,
    groups: Vec<&'g Group<'r>>,
}

/// The groups that have Kiln and another, by table.
fn tables<'g, 'r>(groups: &'g [Group<'r>]) -> Vec<Table<'g, 'r>> {
    let mut tables: Vec<Table<'g, 'r>> = Vec::new();
    for group in groups {
        let Ok(workload) = spec::find(&group.task.workload) else { continue };
        if group.base().is_none() || others(group).next().is_none() {
            continue;
        }
        // What is opened with and without a checkpoint is one table.
        let dataset = if workload.dataset.is_recovery() { Dataset::Recovery } else { workload.dataset };
        let (promise, data) = (group.promise, data(group));
        let same = |table: &&mut Table<'_, '_>| {
            (table.dataset, table.promise, &table.data) == (dataset, promise, &data)
        };
        match tables.iter_mut().find(same) {
            Some(table) => table.groups.push(group),
            None => tables.push(Table { dataset, promise, data, groups: vec![group] }),
        }
    }
    tables
}

/// Whom Kiln is compared with in tables: neither with itself, nor with what only the papers' figures are about.
fn others<'g>(group: &'g Group<'_>) -> impl Iterator<Item = &'g Contestant> {
    let special = [Name::Kiln, Name::KilnWal, Name::InPlace, Name::Generator].map(Name::text);
    group.cells.iter().map(|cell| &cell.contestant).filter(move |other| !special.contains(&other.engine))
}

/// Everything of a group's task that is the same in a table.
fn data(group: &Group<'_>) -> String {
    let task = &group.task;
    let mut text = format!("{} keys", numbers::rate(task.records as f64));
    if task.key_bytes > 0 {
        let _ = write!(text, " of {} + {} bytes", task.key_bytes, task.value_bytes);
    }
    if task.cache_bytes > 0 {
        let _ = write!(text, ", cache {}", numbers::bytes(task.cache_bytes as f64));
    }
    if let Some(limit) = task.limit_bytes {
        let _ = write!(text, ", {} of memory in all", numbers::bytes(limit as f64));
    }
    if task.batch > 1 {
        let _ = write!(text, ", batches of {}", task.batch);
    }
    text
}

impl Table<'_, '_> {
    fn text(&self, losses: &mut Vec<String>) -> String {
        let mut columns: Vec<String> = Vec::new();
        let mut threads: Vec<usize> = Vec::new();
        let mut rows: Vec<(Kind, String, Mode)> = Vec::new();
        for group in &self.groups {
            push_new(&mut columns, column(group));
            push_new(&mut threads, group.task.threads);
            others(group)
                .for_each(|other| push_new(&mut rows, (other.kind, other.engine.clone(), other.mode)));
        }
        threads.sort_unstable();
        rows.sort_unstable();
        let who = threads.iter().map(usize::to_string).collect::<Vec<_>>().join(" / ");
        let plural = if threads == [1] { "thread" } else { "threads" };
        let caption = format!("{}, {}; {who} {plural}", self.what(), self.data);
        let of = if self.dataset.is_recovery() { "" } else { "Kiln / " };
        let mut text = format!("\n| {of}{caption} |");
        columns.iter().for_each(|name| text.push_str(&format!(" `{name}` |")));
        text.push_str(&format!("\n|{}\n", "---|".repeat(columns.len() + 1)));
        for (_, engine, mode) in &rows {
            let name = self.name(engine, *mode, &rows);
            let _ = write!(text, "| {name} |");
            for workload in &columns {
                let ratios = threads.iter().map(|&threads| self.ratio(workload, threads, engine, *mode));
                let ratios: Vec<Option<f64>> = ratios.collect();
                if ratios.iter().flatten().any(|&ratio| is_loss(ratio)) {
                    losses.push(format!("`{workload}`, {}, to {name}: {}", self.what(), joined(&ratios)));
                }
                let text_of_cell = if self.dataset.is_recovery() {
                    let cell = self.cell(workload, 1, engine, *mode);
                    cell.map_or("-".to_owned(), |(_, cell)| seconds(cell))
                } else {
                    joined(&ratios)
                };
                let _ = write!(text, " {text_of_cell} |");
            }
            text.push('\n');
        }
        text + &self.kiln_row(&columns, &threads)
    }

    /// Kiln's own rates, or times.
    fn kiln_row(&self, columns: &[String], threads: &[usize]) -> String {
        let is_recovery = self.dataset.is_recovery();
        let name = if is_recovery { "Kiln" } else { "Kiln, operations per second" };
        let mut text = format!("| *{name}* |");
        for workload in columns {
            let base = |&threads: &usize| self.group(workload, threads)?.base();
            let value = |cell: &Cell<'_>| {
                if is_recovery { seconds(cell) } else { numbers::rate(cell.samples(THROUGHPUT).median()) }
            };
            let values = threads.iter().map(|threads| base(threads).map_or("-".to_owned(), value));
            let _ = write!(text, " {} |", values.collect::<Vec<_>>().join(" / "));
        }
        text.push('\n');
        text
    }

    fn what(&self) -> String {
        let what = match self.dataset {
            Dataset::Table => "tables",
            Dataset::Map => "maps",
            Dataset::Tpcc => "TPC-C",
            Dataset::ColdTenth => return "data ten times as large as memory".to_owned(),
            Dataset::ColdQuarter => return "data four times as large as memory".to_owned(),
            Dataset::Recovery | Dataset::RecoveryLog => return "time to open after kill -9".to_owned(),
        };
        format!("{what}, {}", self.promise.text())
    }

    fn group(&self, name: &str, threads: usize) -> Option<&Group<'_>> {
        let same = |group: &&&Group<'_>| group.task.threads == threads && column(group) == name;
        self.groups.iter().find(same).copied()
    }

    fn cell(&self, name: &str, threads: usize, engine: &str, mode: Mode) -> Option<(&Group<'_>, &Cell<'_>)> {
        let group = self.group(name, threads)?;
        let same = |cell: &&Cell<'_>| cell.contestant.engine == engine && cell.contestant.mode == mode;
        Some((group, group.cells.iter().find(same)?))
    }

    fn ratio(&self, name: &str, threads: usize, engine: &str, mode: Mode) -> Option<f64> {
        let (group, cell) = self.cell(name, threads, engine, mode)?;
        Some(super::kiln_ratio(group, cell)).filter(|ratio| ratio.is_finite())
    }

    /// An engine with its version, and with its mode where it has several in the table; a floor with what it is.
    fn name(&self, engine: &str, mode: Mode, rows: &[(Kind, String, Mode)]) -> String {
        if let Ok(name) = Name::from_str(engine, false)
            && name.description().modes == [Mode::Floor]
        {
            let what = name.description().what;
            return format!("*{}*", what.split(':').next().unwrap_or(what));
        }
        let cells = self.groups.iter().flat_map(|group| &group.cells);
        let version = cells
            .filter(|cell| cell.contestant.engine == engine)
            .flat_map(Cell::versions)
            .find(|version| !version.is_empty())
            .map_or_else(String::new, |version| format!(" {version}"));
        let several = rows.iter().filter(|(_, other, _)| other == engine).count() > 1;
        let mode = if several { format!(", {}", mode.text()) } else { String::new() };
        format!("{engine}{version}{mode}")
    }
}

/// The workload, with the distribution if it is not its own.
fn column(group: &Group<'_>) -> String {
    let task = &group.task;
    match spec::find(&task.workload) {
        Ok(workload) if workload.distribution == task.distribution => task.workload.clone(),
        _ => format!("{} {}", task.workload, task.distribution),
    }
}

fn push_new<T: PartialEq>(all: &mut Vec<T>, one: T) {
    if !all.contains(&one) {
        all.push(one);
    }
}

/// How long a cell's measurements took.
fn seconds(cell: &Cell<'_>) -> String {
    numbers::microseconds(1e6 * cell.samples(|row| Some(row.seconds)).median())
}

/// Rounded as it is printed, Kiln is slower.
fn is_loss(ratio: f64) -> bool {
    ratio < 0.995
}

/// Ratios for each number of threads; losses are bold.
fn joined(ratios: &[Option<f64>]) -> String {
    let texts = ratios.iter().map(|ratio| match ratio {
        None => "-".to_owned(),
        Some(ratio) if *ratio < 0.0005 => "**below 0.001**".to_owned(),
        Some(ratio) if *ratio < 0.095 => format!("**{ratio:.3}**"),
        Some(ratio) if is_loss(*ratio) => format!("**{ratio:.2}**"),
        Some(ratio) if *ratio < 9.995 => format!("{ratio:.2}"),
        Some(ratio) => format!("{ratio:.0}"),
    });
    texts.collect::<Vec<_>>().join(" / ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::summary::tests::sample;

    fn cell(engine: &str, mode: Mode, workload: &str, threads: usize, rate: f64) -> Vec<Row> {
        (0..3)
            .map(|round| Row {
                threads,
                machine: "A machine".to_owned(),
                ..sample(engine, mode, workload, round, rate)
            })
            .collect()
    }

    #[test]
    fn each_kind_of_data_and_promise_has_a_table_with_ratios_by_threads() {
        let rows = [
            cell("kiln", Mode::Fast, "read", 1, 4e6),
            cell("kiln", Mode::Fast, "read", 2, 6e6),
            cell("lmdb", Mode::Weak, "read", 1, 1e6),
            cell("lmdb", Mode::Weak, "read", 2, 8e6),
            cell("memory", Mode::Floor, "read", 1, 1e5),
            cell("kiln", Mode::Fast, "update", 1, 1e6),
            cell("sled", Mode::Weak, "update", 1, 1e6),
            cell("kiln", Mode::Safe, "safe-commit", 1, 1e4),
            cell("device", Mode::Floor, "safe-commit", 1, 2e4),
            cell("kiln", Mode::Fast, "map-read", 1, 1e6),
            cell("faster", Mode::Weak, "map-read", 1, 2e6),
            cell("faster", Mode::Floor, "map-read", 1, 5e6),
        ]
        .concat();
        let text = text(&rows);
        let expected = [
            "A machine. 36 measurements, 3 rounds of 2.00 s.",
            "| Kiln / tables, durable later, 1.00 M keys of 16 + 100 bytes, cache 1.00 GiB; 1 / 2 threads | `read` | `update` |\n\
             |---|---|---|\n\
             | lmdb 1.2.3 | 4.00 / **0.75** | - / - |\n\
             | sled 1.2.3 | - / - | 1.00 / - |\n\
             | *a B-tree (tables) or hash map (maps) in memory behind a mutex* | 40 / - | - / - |\n\
             | *Kiln, operations per second* | 4.00 M / 6.00 M | 1.00 M / - |\n",
            "| Kiln / tables, durable at each commit, ",
            "| *one direct write of 4 KiB and one fdatasync for each commit* | **0.50** |\n",
            "| Kiln / maps, durable later, ",
            "| faster 1.2.3, weak | **0.50** |\n| faster 1.2.3, floor | **0.20** |\n",
            "Where Kiln loses:\n\n- `read`, tables, durable later, to lmdb 1.2.3: 4.00 / **0.75**\n",
            "Of 7 median ratios 7 have a standard error of at most 3.5%, the worst 0%.",
        ];
        for part in expected {
            assert!(text.contains(part), "{part}\nis missing in\n{text}");
        }
        assert!(!text.contains("The load itself"));
    }

    #[test]
    fn what_is_opened_again_has_times_and_one_table() {
        let opened = |engine: &str, mode, workload: &str, seconds: f64| {
            let rows = cell(engine, mode, workload, 1, 1e6 / seconds);
            rows.into_iter().map(|row| Row { seconds, ..row }).collect::<Vec<_>>()
        };
        let rows = [
            opened("kiln", Mode::Fast, "recovery", 0.2),
            opened("lmdb", Mode::Weak, "recovery", 0.000_02),
            opened("kiln", Mode::Fast, "recovery-log", 0.5),
            opened("lmdb", Mode::Weak, "recovery-log", 1.5),
        ]
        .concat();
        let text = text(&rows);
        let expected = [
            "| time to open after kill -9, 1.00 M keys of 16 + 100 bytes, cache 1.00 GiB; 1 thread | `recovery` | `recovery-log` |\n",
            "| lmdb 1.2.3 | 20.0 us | 1.50 s |\n| *Kiln* | 200 ms | 500 ms |\n",
            "- `recovery`, time to open after kill -9, to lmdb 1.2.3: **below 0.001**\n",
        ];
        for part in expected {
            assert!(text.contains(part), "{part}\nis missing in\n{text}");
        }
        assert_eq!(text.matches("\n- `").count(), 1);
    }

    #[test]
    fn what_the_load_costs_is_told_where_it_was_measured() {
        let rows = [
            cell("memory", Mode::Floor, "read", 1, 1e6),
            cell("generator", Mode::Floor, "read", 1, 50e6),
            cell("memory", Mode::Floor, "update", 1, 1e6),
            cell("generator", Mode::Floor, "update", 1, 200e6),
        ]
        .concat();
        let expected =
            "The load itself takes 0.5% to 2.0% of the time of the floor in memory (most: read, 1 thread).";
        assert!(text(&rows).contains(expected), "{}", text(&rows));
        assert!(!text(&rows).contains('|'));
    }
}
