//! Rows put together: rounds to cells, and cells to groups that can be compared.
//!
//! ```text
//!  row     one measurement of one round
//!  cell    all rounds of one contestant at one task
//!  group   all cells of one task whose commits promise the same: durable when acknowledged, or not
//! ```

use std::cmp::Ordering;

use crate::engines::catalog::{Mode, Name};
use crate::generate::draws::Distribution;
use crate::report::Samples;
use crate::results::Row;
use crate::summary::numbers;

/// The engine that the others are compared with.
pub(crate) const KILN: &str = "kiln";

/// A measured field of a row. NaN and infinite values count as not measured.
pub(crate) type Field = fn(&Row) -> Option<f64>;

/// Operations in a second, with the time of making them durable.
pub(crate) const THROUGHPUT: Field = |row| Some(row.ops_per_s);

/// Whether an acknowledged commit is durable. Only what promises the same is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Promise {
    /// Acknowledged when committed.
    Later,
    /// Acknowledged when durable.
    Durable,
}

impl Promise {
    /// In words.
    pub(crate) fn text(self) -> &'static str {
        match self {
            Promise::Later => "durable later",
            Promise::Durable => "durable at each commit",
        }
    }

    /// In one word, for names of files.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Promise::Later => "later",
            Promise::Durable => "durable",
        }
    }
}

/// What is done: everything of a cell but who does it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Task {
    pub(crate) workload: String,
    pub(crate) distribution: Distribution,
    pub(crate) records: u64,
    pub(crate) key_bytes: usize,
    pub(crate) value_bytes: usize,
    pub(crate) cache_bytes: u64,
    pub(crate) limit_bytes: Option<u64>,
    pub(crate) pipeline: u32,
    pub(crate) batch: usize,
    pub(crate) threads: usize,
}

impl Task {
    fn of(row: &Row) -> Task {
        Task {
            workload: row.workload.clone(),
            distribution: row.distribution,
            records: row.records,
            key_bytes: row.key_bytes,
            value_bytes: row.value_bytes,
            cache_bytes: row.cache_bytes,
            limit_bytes: row.limit_bytes,
            pipeline: row.pipeline,
            batch: row.batch,
            threads: row.threads,
        }
    }

    /// The number of threads, and what else of the load is not one.
    pub(crate) fn load(&self) -> String {
        let who = if self.workload.starts_with("resp-") { "connection" } else { "thread" };
        let mut text = format!("{} {who}{}", self.threads, if self.threads == 1 { "" } else { "s" });
        for (count, what) in [(self.pipeline as usize, "pipeline"), (self.batch, "batch")] {
            if count > 1 {
                text.push_str(&format!(", {what} {count}"));
            }
        }
        text
    }

    /// Keys, their distribution and sizes.
    pub(crate) fn data(&self) -> String {
        let mut text = format!(
            "{} {} keys of {} + {} bytes",
            numbers::rate(self.records as f64),
            self.distribution,
            self.key_bytes,
            self.value_bytes
        );
        if self.cache_bytes > 0 {
            text.push_str(&format!(", cache {}", numbers::bytes(self.cache_bytes as f64)));
        }
        if let Some(limit) = self.limit_bytes {
            text.push_str(&format!(", {} of memory in all", numbers::bytes(limit as f64)));
        }
        text
    }
}

/// Who does it: kiln first, then peers by name, then floors.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Contestant {
    pub(crate) kind: Kind,
    pub(crate) engine: String,
    pub(crate) mode: Mode,
    pub(crate) window_ms: Option<u64>,
}

/// What an engine is compared as.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    Kiln,
    Peer,
    /// What the machine can do.
    Floor,
}

impl Contestant {
    fn of(row: &Row) -> Contestant {
        Contestant {
            kind: kind(&row.engine, row.mode),
            engine: row.engine.clone(),
            mode: row.mode,
            window_ms: row.window_ms,
        }
    }

    /// The mode, with the window where there is one.
    pub(crate) fn mode(&self) -> String {
        let mode = self.mode.text();
        self.window_ms.map_or_else(|| mode.to_owned(), |window| format!("{mode} {}", numbers::window(window)))
    }

    /// What its commits promise. Of the floors, the device is the one of durable commits.
    pub(crate) fn promise(&self) -> Promise {
        let device = self.mode == Mode::Floor && self.engine == Name::Device.text();
        if self.mode.is_durable() || device { Promise::Durable } else { Promise::Later }
    }
}

fn kind(engine: &str, mode: Mode) -> Kind {
    match mode {
        Mode::Floor => Kind::Floor,
        _ if engine == KILN => Kind::Kiln,
        _ => Kind::Peer,
    }
}

/// All rounds of one contestant at one task, in the order of rounds.
pub(crate) struct Cell<'a> {
    pub(crate) task: Task,
    pub(crate) contestant: Contestant,
    pub(crate) rows: Vec<&'a Row>,
}

impl Cell<'_> {
    /// The values of a field. Empty where it was not measured.
    pub(crate) fn samples(&self, field: Field) -> Samples {
        self.rows.iter().filter_map(|row| measured(row, field)).collect()
    }

    /// This cell's values over another's, for each round that both have. Empty without such a round: what was not measured
    /// in one run has no ratio.
    pub(crate) fn ratios_to(&self, base: &Cell<'_>, field: Field) -> Samples {
        let (mut own, mut others) = (Samples::default(), Samples::default());
        for row in &self.rows {
            let other = base.rows.iter().find(|other| other.round == row.round);
            if let (Some(value), Some(base)) =
                (measured(row, field), other.and_then(|other| measured(other, field)))
            {
                own.push(value);
                others.push(base);
            }
        }
        own.ratios_to(&others)
    }

    /// Whether this and another cell are the same in two result files.
    pub(crate) fn is_same(&self, other: &Cell<'_>) -> bool {
        self.task == other.task && self.contestant == other.contestant
    }

    /// The versions of the engine, usually one.
    pub(crate) fn versions(&self) -> Vec<&str> {
        let mut versions: Vec<&str> = self.rows.iter().map(|row| row.version.as_str()).collect();
        versions.sort_unstable();
        versions.dedup();
        versions
    }
}

fn measured(row: &Row, field: Field) -> Option<f64> {
    field(row).filter(|value| value.is_finite())
}

/// All cells of rows. Workloads come in the order in which they appear, everything else sorted.
pub(crate) fn cells(rows: &[Row]) -> Vec<Cell<'_>> {
    let mut cells: Vec<Cell<'_>> = Vec::new();
    for row in rows {
        let (task, contestant) = (Task::of(row), Contestant::of(row));
        match cells.iter_mut().find(|cell| cell.task == task && cell.contestant == contestant) {
            Some(cell) => cell.rows.push(row),
            None => cells.push(Cell { task, contestant, rows: vec![row] }),
        }
    }
    let workloads = workloads(rows);
    let place = |cell: &Cell<'_>| workloads.iter().position(|&name| name == cell.task.workload);
    cells.sort_by(|a, b| {
        place(a).cmp(&place(b)).then_with(|| a.task.cmp(&b.task)).then_with(|| contestants(a, b))
    });
    for cell in &mut cells {
        cell.rows.sort_by_key(|row| row.round);
    }
    cells
}

fn contestants(a: &Cell<'_>, b: &Cell<'_>) -> Ordering {
    let promise = a.contestant.promise().cmp(&b.contestant.promise());
    promise.then_with(|| a.contestant.cmp(&b.contestant))
}

/// The workloads in the order in which they appear.
pub(crate) fn workloads(rows: &[Row]) -> Vec<&str> {
    let mut names: Vec<&str> = Vec::new();
    for row in rows {
        if !names.contains(&row.workload.as_str()) {
            names.push(&row.workload);
        }
    }
    names
}

/// Cells that can be compared with each other, in order: Kiln, peers, floors.
pub(crate) struct Group<'a> {
    pub(crate) task: Task,
    pub(crate) promise: Promise,
    pub(crate) cells: Vec<Cell<'a>>,
}

impl Group<'_> {
    /// Kiln's cell that the others are compared with: of several windows the shortest, which loses least.
    pub(crate) fn base(&self) -> Option<&Cell<'_>> {
        self.cells.iter().find(|cell| cell.contestant.kind == Kind::Kiln)
    }

    /// What is done, in one line.
    pub(crate) fn title(&self) -> String {
        format!("{}, {}, {}; {}", self.task.workload, self.task.load(), self.promise.text(), self.task.data())
    }
}

/// All groups of rows.
pub(crate) fn groups(rows: &[Row]) -> Vec<Group<'_>> {
    let mut groups: Vec<Group<'_>> = Vec::new();
    for cell in cells(rows) {
        let promise = cell.contestant.promise();
        match groups.last_mut().filter(|group| group.task == cell.task && group.promise == promise) {
            Some(group) => group.cells.push(cell),
            None => groups.push(Group { task: cell.task.clone(), promise, cells: vec![cell] }),
        }
    }
    groups
}
