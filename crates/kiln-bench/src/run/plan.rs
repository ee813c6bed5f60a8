//! What a run measures: from a profile and the command line to groups of contestants and cells.

mod room;
#[cfg(test)]
mod tests;

use std::fmt::Display;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Result, bail, ensure};
use clap::ValueEnum;

use super::memory_group::MemoryGroup;
use super::profile::{Defaults, parts};
use super::protocol::{Cell, Content, Contestant};
use super::rounds::Rounds;
use crate::arguments::{RunSettings, Window};
use crate::engines::catalog::{Mode, Name};
use crate::generate::draws::Distribution;
use crate::generate::{KEY_BYTES, Sizes, VALUE_BYTES};
use crate::machine;
use crate::results::Row;
use crate::summary::numbers;
use crate::workloads::data::PATIENCE;
use crate::workloads::spec::{self, Dataset, Kind, Workload};
use crate::workloads::tpcc;

/// About how many bytes of keys and values a peer loads in a second: the mean of all of them; and checks in the end.
const LOADED_BYTES_PER_SECOND: f64 = 40e6;
const CHECKED_BYTES_PER_SECOND: f64 = 80e6;
/// The same where each commit is durable, of which loading takes many.
const LOADED_DURABLY_BYTES_PER_SECOND: f64 = 12e6;
/// And of Kiln, which is loaded until its log has gone round its memory.
const KILN_LOADED_BYTES_PER_SECOND: f64 = 250e6;
/// What starting a contestant takes besides, and waiting for it to come to rest.
const STARTING_S: f64 = 0.4;
/// How many times as long as its seconds a measurement takes with making durable, in the mean of all engines, and what any measurement
/// takes besides.
const MAKING_DURABLE: f64 = 1.5;
const PAUSE_S: f64 = 0.03;

/// Contestants with the same data, and what they are asked.
pub(super) struct Group {
    pub(super) contestants: Vec<Contestant>,
    pub(super) cells: Vec<Cell>,
    pub(super) rounds: Rounds,
}

impl Group {
    /// Whether its contestants are opened again and again, and run no workload.
    pub(super) fn is_recovery(&self) -> bool {
        self.contestants.iter().any(|contestant| matches!(contestant.content, Content::Recovery { .. }))
    }

    /// Whether a row is that of a contestant in one of its cells.
    pub(super) fn has_made(&self, contestant: &Contestant, row: &Row) -> bool {
        self.cells.iter().any(|cell| contestant.has_made(cell, row))
    }

    /// Whether its commits are durable when they are acknowledged.
    pub(super) fn is_durable(&self) -> bool {
        self.contestants.iter().any(|contestant| contestant.mode.is_durable())
    }
}

/// Everything that a run measures.
pub(super) struct Plan {
    pub(super) groups: Vec<Group>,
    pub(super) time_limit: Option<Duration>,
    skipped: Vec<String>,
    /// Why the engines' processes may have more memory than the profile wants.
    pub(super) unlimited: Option<String>,
}

impl Plan {
    /// Everything that was asked for and can be done here.
    pub(super) fn make(settings: &RunSettings) -> Result<Plan> {
        let parts = parts(settings.profile);
        let mut plan = Plan { groups: Vec::new(), time_limit: None, skipped: Vec::new(), unlimited: None };
        for name in &settings.workloads {
            spec::find(name)?;
        }
        for part in parts {
            plan.add_part(settings, part, parts.len() > 1)?;
        }
        plan.skipped.sort_unstable();
        plan.skipped.dedup();
        // The parts of a profile share its time.
        plan.time_limit = plan.time_limit(settings, parts.iter().find_map(|part| part.time_limit));
        ensure!(
            !plan.groups.is_empty(),
            "no engine of those asked for has any of the workloads asked for; kiln-bench list says which has which"
        );
        Ok(plan)
    }

    /// Adds what one part of a profile measures. Of several parts each keeps to its own engines and workloads, whatever is asked for.
    fn add_part(
        &mut self,
        settings: &RunSettings,
        defaults: &Defaults,
        is_one_of_several: bool,
    ) -> Result<()> {
        let mut engines = engines(settings, defaults.engines, &mut self.skipped)?;
        let of_profile = settings.workloads.is_empty() || is_one_of_several;
        let mut workloads = if of_profile {
            defaults.workloads.iter().map(|name| spec::find(name)).collect::<Result<Vec<_>>>()?
        } else {
            settings.workloads.iter().map(|name| spec::find(name)).collect::<Result<Vec<_>>>()?
        };
        if is_one_of_several {
            engines.retain(|engine| defaults.engines.contains(engine));
            workloads.retain(|workload| {
                settings.workloads.is_empty() || settings.workloads.contains(&workload.name)
            });
        }
        workloads.sort_by_key(Workload::order);
        let limit_bytes = self.limit_bytes(settings, defaults)?;
        for dataset in Dataset::ALL {
            let content = content(settings, defaults, dataset)?;
            // What is only read, or opened, is the same either way.
            let promises = if dataset.writes() { &[true, false][..] } else { &[false] };
            for &durable in promises {
                let everything = !durable || !of_profile;
                let workloads: Vec<&Workload> = workloads
                    .iter()
                    .filter(|workload| workload.dataset == dataset)
                    .filter(|workload| everything || defaults.durable.contains(&&*workload.name))
                    .collect();
                let mut contestants = contestants(settings, defaults, &engines, content, durable);
                contestants.iter_mut().for_each(|contestant| contestant.limit_bytes = limit_bytes);
                self.add_group(settings, defaults, &workloads, contestants)?;
            }
        }
        Ok(())
    }

    /// What each process may have, if there can be a limit. That a profile's cannot be is only told.
    fn limit_bytes(&mut self, settings: &RunSettings, defaults: &Defaults) -> Result<Option<u64>> {
        let Some(mib) = settings.memory_limit.or(defaults.limit_mib) else { return Ok(None) };
        match MemoryGroup::create() {
            Ok(_) => Ok(Some(mib << 20)),
            Err(error) if settings.memory_limit.is_some() => Err(error.context("memory cannot be limited")),
            Err(error) => {
                self.unlimited = Some(format!(
                    "memory is not limited, so that the peers' files are in the page cache as far as the machine has room: {error:#}"
                ));
                Ok(None)
            }
        }
    }

    fn add_group(
        &mut self,
        settings: &RunSettings,
        defaults: &Defaults,
        workloads: &[&Workload],
        contestants: Vec<Contestant>,
    ) -> Result<()> {
        let seconds = settings.seconds.map_or(defaults.seconds, |duration| duration.as_secs_f64());
        let profiles: Vec<Distribution> =
            defaults.distributions.iter().map(|text| text.parse()).collect::<Result<_>>()?;
        let mut cells = Vec::new();
        for workload in workloads {
            let kind = workload.in_batches(workload.batch(settings.batch));
            let keys = if let Kind::Keys(operation) = kind { operation.keys() as u64 } else { 1 };
            let records = contestants.first().map_or(u64::MAX, |contestant| contestant.content.records());
            // Of a distribution up to a half are never drawn.
            ensure!(
                2 * keys <= records,
                "{keys} different keys for each operation of {} take {} --records at least",
                workload.name,
                2 * keys
            );
            let threads = if workload.dataset.is_recovery() { &[1][..] } else { threads(settings, defaults) };
            let distributions = match (&settings.distribution[..], &profiles[..]) {
                ([], []) => vec![workload.distribution],
                ([], profiles) => profiles.to_vec(),
                (asked, _) => asked.to_vec(),
            };
            let loads =
                distributions.iter().flat_map(|one| threads.iter().map(move |threads| (*one, *threads)));
            cells.extend(loads.map(|(distribution, threads)| Cell {
                workload: workload.name.clone(),
                distribution,
                threads,
                batch: workload.batch(settings.batch),
                seconds,
                warm_up_s: warm_up_seconds(seconds, workload.kind.writes(), contestants.first()),
                persist_each_s:
                    settings.persist_each.or(defaults.persist_each).map(|each| each.as_secs_f64()),
                round: 0,
            }));
        }
        cells.retain(|cell| contestants.iter().any(|contestant| self.has(contestant, cell)));
        let contestants: Vec<Contestant> = contestants
            .into_iter()
            .filter(|contestant| cells.iter().any(|cell| self.has(contestant, cell)))
            .collect();
        if !cells.is_empty() {
            let rounds = settings.rounds.map_or(defaults.rounds, |all| Rounds { least: all, most: all });
            self.groups.push(Group { contestants, cells, rounds });
        }
        Ok(())
    }

    /// Whether a contestant takes part in a cell.
    pub(super) fn has(&self, contestant: &Contestant, cell: &Cell) -> bool {
        spec::find(&cell.workload).is_ok_and(|workload| {
            workload.suits(contestant.engine, contestant.mode, cell.batch, cell.threads).is_ok()
        })
    }

    /// Who takes part in a cell.
    fn takers<'a>(&'a self, group: &'a Group, cell: &'a Cell) -> impl Iterator<Item = &'a Contestant> {
        group.contestants.iter().filter(|contestant| self.has(contestant, cell))
    }

    /// How many measurements there are, if there is time for them, without those that are made because a ratio is unsure.
    fn measurements(&self) -> u64 {
        let of_group = |group: &Group| -> u64 {
            let takers = group.cells.iter().map(|cell| self.takers(group, cell).count() as u64);
            takers.sum::<u64>() * u64::from(group.rounds.least)
        };
        self.groups.iter().map(of_group).sum()
    }

    /// About how long these measurements take in one cell, in seconds.
    pub(super) fn cell_seconds(&self, group: &Group, cell: &Cell) -> f64 {
        let writes = spec::find(&cell.workload).is_ok_and(|workload| workload.kind.writes());
        let stretched = if writes && !group.is_durable() { MAKING_DURABLE } else { 1.0 };
        let of_contestant = |contestant: &Contestant| {
            let (each, warm_up_s) = if group.is_recovery() {
                (load_seconds(contestant), 0.0)
            } else {
                (cell.seconds * stretched + PAUSE_S, cell.warm_up_s * stretched + PAUSE_S)
            };
            f64::from(group.rounds.least) * each + warm_up_s
        };
        self.takers(group, cell).map(of_contestant).sum()
    }

    /// The same of all cells.
    pub(super) fn cells_s(&self) -> f64 {
        let of_group =
            |group: &Group| group.cells.iter().map(|cell| self.cell_seconds(group, cell)).sum::<f64>();
        self.groups.iter().map(of_group).sum()
    }

    /// About how long loading and checking take in all, in seconds.
    pub(super) fn rest_s(&self) -> f64 {
        let contestants = self.groups.iter().flat_map(|group| &group.contestants);
        contestants.map(|contestant| load_seconds(contestant) + check_seconds(contestant)).sum()
    }

    /// About how long everything takes that is measured whatever comes out.
    fn duration(&self) -> Duration {
        Duration::from_secs_f64(self.cells_s() + self.rest_s())
    }

    /// The profile's own time, or what was planned where that is more because more was asked for; none where so many rounds were
    /// asked for and no others.
    fn time_limit(&self, settings: &RunSettings, profiles: Option<Duration>) -> Option<Duration> {
        const MARGIN: f64 = 1.25;
        let profiles = profiles.filter(|_| settings.rounds.is_none());
        let planned = self.duration();
        let enough = |limit| {
            if planned > limit { Duration::from_secs(planned.mul_f64(MARGIN).as_secs()) } else { limit }
        };
        settings.time_limit.or(profiles.map(enough))
    }

    /// Leaves out those cells that were measured before, with everybody who takes part.
    pub(super) fn leave_out(&mut self, done: &[Row]) {
        let mut groups = std::mem::take(&mut self.groups);
        for group in &mut groups {
            let cells = std::mem::take(&mut group.cells);
            for cell in cells {
                let rounds = |contestant: &Contestant| {
                    done.iter().filter(|row| contestant.has_measured(&cell, row)).count()
                };
                if !self
                    .takers(group, &cell)
                    .all(|contestant| rounds(contestant) >= group.rounds.least as usize)
                {
                    group.cells.push(cell);
                }
            }
        }
        groups.retain(|group| !group.cells.is_empty());
        self.groups = groups;
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
        let rounds = range(self.groups.iter().flat_map(|group| [group.rounds.least, group.rounds.most]));
        let cells = self.groups.iter().flat_map(|group| &group.cells);
        let mut text = format!(
            "kiln {}; {machine}\n{rounds} rounds of {} s; each engine is a process of its own, stopped while others are measured; every \
             result is checked\n{} measurements in about {}{}; up to {} on the disk at a time",
            env!("CARGO_PKG_VERSION"),
            range(cells.map(|cell| cell.seconds)),
            self.measurements(),
            rounded_up(self.duration()),
            self.more_text(),
            numbers::bytes(self.disk_bytes() as f64)
        );
        for line in &self.skipped {
            text.push_str("\nleft out: ");
            text.push_str(line);
        }
        text
    }

    /// What else may be measured, or what may not.
    fn more_text(&self) -> String {
        let all_of_group = |group: &Group| {
            let Rounds { least, most } = group.rounds;
            let cells_s = group.cells.iter().map(|cell| self.cell_seconds(group, cell)).sum::<f64>();
            cells_s * f64::from(most) / f64::from(least)
        };
        if let Some(limit) = self.time_limit.filter(|&limit| limit < self.duration()) {
            return format!("; as many of them as fit into {}", humantime::format_duration(limit));
        }
        if self.groups.iter().all(|group| group.rounds.least == group.rounds.most) {
            return String::new();
        }
        let within = match self.time_limit {
            Some(limit) => humantime::format_duration(limit),
            None => {
                let all_s = self.rest_s() + self.groups.iter().map(all_of_group).sum::<f64>();
                rounded_up(Duration::from_secs_f64(all_s))
            }
        };
        format!(", and others where a ratio is unsure, all within {within}")
    }
}

/// The numbers of client threads.
fn threads<'a>(settings: &'a RunSettings, defaults: &Defaults) -> &'a [usize] {
    if settings.threads.is_empty() { defaults.threads } else { &settings.threads }
}

/// The least and the most of some numbers, or the one that they all are.
fn range<T: PartialOrd + Display + Copy>(values: impl Iterator<Item = T>) -> String {
    let ends = values.fold(None, |ends, value| match ends {
        None => Some((value, value)),
        Some((least, most)) => {
            Some((if value < least { value } else { least }, if value > most { value } else { most }))
        }
    });
    match ends {
        None => "0".to_owned(),
        Some((least, most)) if least == most => least.to_string(),
        Some((least, most)) => format!("{least} to {most}"),
    }
}

/// How long the untimed run of a cell is. A cache that is smaller than the data fills as fast as the disk reads. Who writes begins with
/// empty buffers and a log that has room: that is past after some rounds.
fn warm_up_seconds(seconds: f64, writes: bool, contestant: Option<&Contestant>) -> f64 {
    const WARM_UP_S: f64 = 0.1;
    const WRITING_WARM_UP_S: f64 = 0.25;
    const READ_BYTES_PER_SECOND: f64 = 300e6;
    match contestant.map(|contestant| contestant.content) {
        Some(content @ Content::Cold { .. }) => content.bytes() as f64 / READ_BYTES_PER_SECOND,
        _ if writes => WRITING_WARM_UP_S.min(2.5 * seconds),
        _ => (seconds / 2.0).min(WARM_UP_S),
    }
}

/// Minutes and seconds, or hours and minutes.
fn rounded_up(duration: Duration) -> humantime::FormattedDuration {
    let unit = if duration < Duration::from_secs(3600) { 10 } else { 60 };
    humantime::format_duration(Duration::from_secs(duration.as_secs().next_multiple_of(unit)))
}

/// About how long it takes to load a database, in seconds.
pub(super) fn load_seconds(contestant: &Contestant) -> f64 {
    let bytes = contestant.content.bytes();
    let (bytes, rate) = match (contestant.engine, contestant.content) {
        (Name::Kiln, Content::Table { .. } | Content::Map { .. }) => {
            (bytes.max(contestant.cache_bytes), KILN_LOADED_BYTES_PER_SECOND)
        }
        _ if contestant.mode.is_durable() => (bytes, LOADED_DURABLY_BYTES_PER_SECOND),
        _ => (bytes, LOADED_BYTES_PER_SECOND),
    };
    // Of data that is in memory everything is read once.
    let is_read = contestant.limit_bytes.is_none()
        && matches!(contestant.content, Content::Table { .. } | Content::Map { .. });
    let read_s = if is_read { contestant.content.bytes() as f64 / CHECKED_BYTES_PER_SECOND } else { 0.0 };
    STARTING_S + bytes as f64 / rate + read_s
}

/// About how long it takes to check it and close it at the end.
pub(super) fn check_seconds(contestant: &Contestant) -> f64 {
    let loaded_s = contestant.content.bytes() as f64 / CHECKED_BYTES_PER_SECOND;
    // What was inserted, unless each commit was durable, is much more than what was loaded. Kiln has inserted most, and has it on the disk.
    let has_inserted = matches!(contestant.content, Content::Table { .. }) && !contestant.mode.is_durable();
    let added_s = match (has_inserted, contestant.engine) {
        (false, _) => 0.3,
        (true, Name::Kiln) => 2.0 * PATIENCE.as_secs_f64() + 6.0,
        (true, _) => 2.0,
    };
    loaded_s + added_s
}

/// The engines that were asked for; or those of the profile that are there, which may be all.
fn engines(settings: &RunSettings, profiles: &[Name], skipped: &mut Vec<String>) -> Result<Vec<Name>> {
    let mut engines = Vec::new();
    let asked = !settings.engines.is_empty();
    let is_named = asked || !profiles.is_empty();
    let profiles = if profiles.is_empty() { Name::value_variants() } else { profiles };
    let candidates = if asked { settings.engines.clone() } else { profiles.to_vec() };
    // What the load costs is of interest to whoever works on the bench, and what other write paths would cost to whoever reads the papers.
    let is_special = |name| matches!(name, Name::Generator | Name::KilnWal | Name::InPlace);
    let candidates = candidates.into_iter().filter(|&name| is_named || !is_special(name));
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
    let records = |default| settings.records.unwrap_or(default);
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
        Dataset::Table => Content::Table { sizes, records: records(defaults.table_records) },
        Dataset::Map => Content::Map { sizes, records: records(defaults.map_records) },
        Dataset::ColdTenth | Dataset::ColdQuarter => {
            let part = if dataset == Dataset::ColdTenth { 10 } else { 4 };
            Content::Cold { sizes, records: records(defaults.cold_records), part }
        }
        Dataset::Recovery | Dataset::RecoveryLog => Content::Recovery {
            sizes,
            records: records(defaults.recovery_records),
            checkpoint: dataset == Dataset::Recovery,
        },
        Dataset::Tpcc => {
            let most = threads(settings, defaults).iter().max().copied().unwrap_or(1);
            Content::Tpcc { warehouses: u16::try_from(most).unwrap_or(u16::MAX) }
        }
    })
}

impl Content {
    /// The size of its keys and values.
    fn bytes(self) -> u64 {
        match self {
            Content::Table { sizes, records }
            | Content::Map { sizes, records }
            | Content::Cold { sizes, records, .. }
            | Content::Recovery { sizes, records, .. } => {
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
    let windows = if settings.window.is_empty() { defaults.windows } else { &settings.window };
    let of = windows.iter().filter_map(|window| match window {
        Window::Of(duration) => Some(*duration),
        Window::Never => None,
    });
    let cache_bytes = match content {
        Content::Cold { part, .. } => content.bytes() / part,
        _ => defaults.cache_mib << 20,
    };
    let cache_bytes = settings.cache.map_or(cache_bytes, |mib| mib << 20);
    let mut contestants = Vec::new();
    for &engine in engines {
        let modes = engine.description().modes.iter().copied();
        let compared_with_durable = |mode: Mode| mode.is_durable() || engine == Name::Device;
        for mode in modes.filter(|&mode| compared_with_durable(mode) == durable) {
            // The window matters only to those who write and do not wait; the first one stands for all others.
            let is_written = !matches!(content, Content::Cold { .. } | Content::Recovery { .. });
            let windows: Vec<Option<Duration>> = match mode {
                Mode::Fast if is_written => of.clone().map(Some).collect(),
                Mode::Fast | Mode::Safe => vec![of.clone().next()],
                Mode::Floor if engine == Name::Kiln => {
                    if is_written && windows.contains(&Window::Never) {
                        vec![None]
                    } else {
                        Vec::new()
                    }
                }
                _ => vec![None],
            };
            for window in windows {
                contestants.push(Contestant {
                    engine,
                    mode,
                    window_ms: window.map(|window| window.as_millis() as u64),
                    content,
                    cache_bytes,
                    limit_bytes: None,
                    path: PathBuf::new(),
                    reopened: false,
                });
            }
        }
    }
    contestants
}
