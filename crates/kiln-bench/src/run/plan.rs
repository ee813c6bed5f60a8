//! What a run measures: from a profile and the command line to groups of contestants and cells.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Result, bail, ensure};
use clap::ValueEnum;

use super::protocol::{Cell, Content, Contestant};
use crate::arguments::{Profile, RunSettings};
use crate::engines::catalog::{Mode, Name};
use crate::generate::{KEY_BYTES, Sizes, VALUE_BYTES};
use crate::machine;
use crate::workloads::spec::{self, Dataset, Workload};
use crate::workloads::tpcc;

/// Steps of the progress bar for loading a database: about as long as so many measurements.
pub(super) const LOAD_STEPS: u64 = 5;
/// What an engine may have on the disk for each byte of data, and besides.
const DISK_FACTOR: u64 = 4;
const DISK_BYTES_BESIDES: u64 = 256 << 20;
/// What Kiln's log grows by in a second, at most, while nothing is truncated.
const LOG_BYTES_PER_SECOND: u64 = 400 << 20;

/// Contestants with the same data, and what they are asked.
pub(super) struct Group {
    pub(super) contestants: Vec<Contestant>,
    pub(super) cells: Vec<Cell>,
}

/// Everything that a run measures.
pub(super) struct Plan {
    pub(super) groups: Vec<Group>,
    pub(super) rounds: u32,
    seconds: f64,
    skipped: Vec<String>,
}

/// The settings of a profile, for what the command line leaves open.
struct Defaults {
    workloads: &'static [&'static str],
    /// Those of them that are also run where each commit is durable.
    durable: &'static [&'static str],
    seconds: f64,
    rounds: u32,
    table_records: u64,
    map_records: u64,
    cache_mib: u64,
}

const QUICK: Defaults = Defaults {
    workloads: &[
        "read",
        "range",
        "rmw",
        "update",
        "insert",
        "safe-commit",
        "map-read",
        "map-rmw",
        "map-upsert",
    ],
    durable: &["safe-commit"],
    // Many short rounds: what slows the machine for some seconds then falls on few rounds of all engines alike.
    seconds: 0.1,
    rounds: 5,
    table_records: 200_000,
    map_records: 1_000_000,
    cache_mib: 256,
};

const FULL: Defaults = Defaults {
    workloads: &[
        "read",
        "range",
        "read-seq",
        "ycsb-c",
        "rmw",
        "txn-1",
        "txn-3",
        "txn-10",
        "mixed95",
        "mixed50",
        "update",
        "ycsb-a",
        "ycsb-b",
        "ycsb-f",
        "mixed-durability",
        "ycsb-d",
        "ycsb-e",
        "insert",
        "fill-seq",
        "safe-commit",
        "map-read",
        "map-rmw",
        "map-mixed50",
        "map-upsert",
        "tpcc",
        "tpcc-payment",
        "tpcc-new-order",
    ],
    durable: &["safe-commit", "rmw", "txn-3", "fill-seq", "tpcc"],
    seconds: 1.0,
    rounds: 5,
    table_records: 2_000_000,
    map_records: 5_000_000,
    cache_mib: 1024,
};

impl Plan {
    /// Everything that was asked for and can be done here.
    pub(super) fn make(settings: &RunSettings) -> Result<Plan> {
        let defaults = match settings.profile {
            Profile::Quick => &QUICK,
            Profile::Full => &FULL,
        };
        let mut skipped = Vec::new();
        let engines = engines(settings, &mut skipped)?;
        let of_profile = settings.workloads.is_empty();
        let mut workloads = if of_profile {
            defaults.workloads.iter().map(|name| spec::find(name)).collect::<Result<Vec<_>>>()?
        } else {
            settings.workloads.iter().map(|name| spec::find(name)).collect::<Result<Vec<_>>>()?
        };
        workloads.sort_by_key(Workload::order);
        let mut plan = Plan {
            groups: Vec::new(),
            rounds: settings.rounds.unwrap_or(defaults.rounds),
            seconds: settings.seconds.map_or(defaults.seconds, |duration| duration.as_secs_f64()),
            skipped,
        };
        for dataset in [Dataset::Table, Dataset::Map, Dataset::Tpcc] {
            let content = content(settings, defaults, dataset)?;
            for durable in [true, false] {
                let everything = !durable || !of_profile;
                let workloads: Vec<&Workload> = workloads
                    .iter()
                    .filter(|workload| workload.dataset == dataset)
                    .filter(|workload| everything || defaults.durable.contains(&&*workload.name))
                    .collect();
                let contestants = contestants(settings, defaults, &engines, content, durable);
                plan.add_group(settings, &workloads, contestants);
            }
        }
        ensure!(
            !plan.groups.is_empty(),
            "no engine of those asked for has any of the workloads asked for; kiln-bench list says which has which"
        );
        Ok(plan)
    }

    fn add_group(&mut self, settings: &RunSettings, workloads: &[&Workload], contestants: Vec<Contestant>) {
        let mut cells = Vec::new();
        for workload in workloads {
            for &threads in &settings.threads {
                cells.push(Cell {
                    workload: workload.name.clone(),
                    distribution: settings.distribution.unwrap_or(workload.distribution),
                    threads,
                    batch: settings.batch,
                    seconds: self.seconds,
                    round: 0,
                });
            }
        }
        cells.retain(|cell| contestants.iter().any(|contestant| self.has(contestant, cell)));
        let contestants: Vec<Contestant> = contestants
            .into_iter()
            .filter(|contestant| cells.iter().any(|cell| self.has(contestant, cell)))
            .collect();
        if !cells.is_empty() {
            self.groups.push(Group { contestants, cells });
        }
    }

    /// Whether a contestant takes part in a cell.
    pub(super) fn has(&self, contestant: &Contestant, cell: &Cell) -> bool {
        spec::find(&cell.workload).is_ok_and(|workload| {
            workload.suits(contestant.engine, contestant.mode, cell.batch, cell.threads).is_ok()
        })
    }

    /// Steps of the progress bar.
    pub(super) fn steps(&self) -> u64 {
        let of_group = |group: &Group| {
            let pairs: usize = group
                .cells
                .iter()
                .map(|cell| group.contestants.iter().filter(|contestant| self.has(contestant, cell)).count())
                .sum();
            pairs as u64 * u64::from(self.rounds) + group.contestants.len() as u64 * LOAD_STEPS
        };
        self.groups.iter().map(of_group).sum()
    }

    /// The most that one group has on the disk at a time.
    pub(super) fn disk_bytes(&self) -> u64 {
        let of_group = |group: &Group| {
            let seconds = group.cells.len() as f64 * f64::from(self.rounds) * self.seconds;
            let of_contestant = |contestant: &Contestant| {
                let log = match contestant.engine {
                    Name::Kiln => {
                        // What is live is kept, and truncation keeps the rest within the memory of the log, about.
                        let written = (seconds * LOG_BYTES_PER_SECOND as f64) as u64;
                        written.min(2 * contestant.cache_bytes)
                    }
                    _ => 0,
                };
                contestant.content.bytes() * DISK_FACTOR + DISK_BYTES_BESIDES + log
            };
            group.contestants.iter().map(of_contestant).sum()
        };
        self.groups.iter().map(of_group).max().unwrap_or(0)
    }

    /// A warning if the contestants of a group will hardly fit into memory together.
    pub(super) fn memory_warning(&self) -> Option<String> {
        let of_contestant = |contestant: &Contestant| contestant.cache_bytes + 2 * contestant.content.bytes();
        let of_group = |group: &Group| group.contestants.iter().map(of_contestant).sum::<u64>();
        let needed = self.groups.iter().map(of_group).max().unwrap_or(0);
        let available = machine::available_memory_bytes();
        (needed > available).then(|| {
            format!(
                "the engines may need {} MiB of memory together and {} MiB are available: what does not fit is slow; name \
                 fewer --engines, fewer --records, or less --cache",
                needed >> 20,
                available >> 20
            )
        })
    }

    /// What is measured, in words.
    pub(super) fn heading(&self, machine: &str) -> String {
        let mut text = format!(
            "kiln {}; {machine}\n{} rounds of {} s; each engine is a process of its own, stopped while others are measured; every \
             result is checked",
            env!("CARGO_PKG_VERSION"),
            self.rounds,
            self.seconds
        );
        for line in &self.skipped {
            text.push_str("\nleft out: ");
            text.push_str(line);
        }
        text
    }
}

/// The engines that were asked for; or all that are there.
fn engines(settings: &RunSettings, skipped: &mut Vec<String>) -> Result<Vec<Name>> {
    let mut engines = Vec::new();
    let asked = !settings.engines.is_empty();
    let candidates = if asked { settings.engines.clone() } else { Name::value_variants().to_vec() };
    // What the load costs is of interest to whoever works on the bench.
    let candidates = candidates.into_iter().filter(|&name| asked || name != Name::Generator);
    for name in candidates {
        match (name.description().version)() {
            Ok(_) => engines.push(name),
            Err(error) if asked => bail!("{}: {error:#}", name.text()),
            Err(error) => skipped.push(format!("{}: {error:#}", name.text())),
        }
    }
    Ok(engines)
}

fn content(settings: &RunSettings, defaults: &Defaults, dataset: Dataset) -> Result<Content> {
    let sizes = Sizes {
        key_bytes: settings.key_bytes.unwrap_or(dataset.default_sizes().key_bytes),
        value_bytes: settings.value_bytes.unwrap_or(dataset.default_sizes().value_bytes),
    };
    ensure!(
        KEY_BYTES.contains(&sizes.key_bytes),
        "keys have {} to {} bytes",
        KEY_BYTES.start(),
        KEY_BYTES.end()
    );
    ensure!(
        VALUE_BYTES.contains(&sizes.value_bytes),
        "values have {} to {} bytes",
        VALUE_BYTES.start(),
        VALUE_BYTES.end()
    );
    Ok(match dataset {
        Dataset::Table => {
            Content::Table { sizes, records: settings.records.unwrap_or(defaults.table_records) }
        }
        Dataset::Map => Content::Map { sizes, records: settings.records.unwrap_or(defaults.map_records) },
        Dataset::Tpcc => {
            let most = settings.threads.iter().max().copied().unwrap_or(1);
            Content::Tpcc { warehouses: u16::try_from(most).unwrap_or(u16::MAX) }
        }
    })
}

impl Content {
    /// The size of its keys and values.
    fn bytes(self) -> u64 {
        match self {
            Content::Table { sizes, records } | Content::Map { sizes, records } => {
                records * (sizes.key_bytes + sizes.value_bytes) as u64
            }
            Content::Tpcc { warehouses } => u64::from(warehouses) * tpcc::WAREHOUSE_BYTES,
        }
    }
}

/// All engines in those modes that acknowledge what is durable, or in those that do not, each with its floor.
fn contestants(
    settings: &RunSettings,
    defaults: &Defaults,
    engines: &[Name],
    content: Content,
    durable: bool,
) -> Vec<Contestant> {
    let mut contestants = Vec::new();
    for &engine in engines {
        let modes = engine.description().modes.iter().copied();
        let compared_with_durable = |mode: Mode| mode.is_durable() || engine == Name::Device;
        for mode in modes.filter(|&mode| compared_with_durable(mode) == durable) {
            // The window matters only to those who do not wait; the first one stands for all others.
            let windows: Vec<Option<Duration>> = match mode {
                Mode::Fast => settings.window.iter().copied().map(Some).collect(),
                Mode::Safe => vec![settings.window.first().copied()],
                _ => vec![None],
            };
            for window in windows {
                contestants.push(Contestant {
                    engine,
                    mode,
                    window_ms: window.map(|window| window.as_millis() as u64),
                    content,
                    cache_bytes: settings.cache.unwrap_or(defaults.cache_mib) << 20,
                    path: PathBuf::new(),
                });
            }
        }
    }
    contestants
}
