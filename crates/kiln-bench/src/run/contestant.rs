//! A contestant's own process: one database of one engine, which does what it is asked to and nothing else.
//!
//! Each engine has a process of its own so that none shares the allocator, the threads or the faults of another, and so that
//! processor time and memory are its own.

#[cfg(test)]
mod tests;

use std::io::{BufRead, Write};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rustix::process::{Signal, set_parent_process_death_signal};

use super::protocol::{Cell, Command, Content, Contestant, Reply};
use crate::engines::catalog::{self, Mode, Name, Settings, Shape, Visitor};
use crate::engines::{Engine, Worker};
use crate::measure::{Measured, make_durable};
use crate::results::Row;
use crate::scratch::disk_bytes;
use crate::usage::Usage;
use crate::workloads::spec::{self, Dataset, Kind, Workload};
use crate::workloads::tpcc::Tpcc;
use crate::workloads::{self, Alone, Data, Operation, Span};

/// The window of a contestant that has none.
const NO_WINDOW: Duration = Duration::from_millis(100);

/// Does what standard input says, until it ends.
pub(crate) fn serve() -> Result<()> {
    // A contestant whose run has died is of no use to anybody, and may be stopped for ever.
    set_parent_process_death_signal(Some(Signal::KILL)).context("cannot ask to end with the run")?;
    let mut lines = std::io::stdin().lock().lines();
    let first = lines.next().context("no contestant was named")??;
    let contestant: Contestant = serde_json::from_str(&first)?;
    let (shape, sizes) = match contestant.content {
        Content::Map { sizes, .. } => (Shape::Map, sizes),
        Content::Tpcc { .. } => (Shape::Table, Dataset::Tpcc.default_sizes()),
        content => (Shape::Table, content.sizes()),
    };
    let settings = Settings {
        path: contestant.path.clone(),
        mode: contestant.mode,
        shape,
        sizes,
        records: contestant.content.records(),
        cache_bytes: contestant.cache_bytes,
        window: contestant.window_ms.map_or(NO_WINDOW, Duration::from_millis),
        cold: matches!(contestant.content, Content::Cold { .. }),
        limited: contestant.limit_bytes.is_some(),
        checkpoints: !matches!(contestant.content, Content::Recovery { checkpoint: false, .. }),
    };
    // A library of the system's is loaded by this, which is no part of opening a database.
    (contestant.engine.description().version)()?;
    let serving = Serving { contestant: &contestant, lines, started: Instant::now() };
    let served = catalog::with_engine(contestant.engine, &settings, serving);
    // Whatever failed, the run hears of it; after the last command this is the news that the database closed well.
    answer(&match served {
        Ok(()) => Reply::Done,
        Err(error) => Reply::Failed(format!("{error:#}")),
    })
}

fn answer(reply: &Reply) -> Result<()> {
    let mut out = std::io::stdout().lock();
    serde_json::to_writer(&mut out, reply)?;
    out.write_all(b"\n")?;
    out.flush().context("the run does not listen")
}

/// Serves one opened engine.
struct Serving<'a, L> {
    contestant: &'a Contestant,
    lines: L,
    /// When the engine began to open.
    started: Instant,
}

impl<L: Iterator<Item = std::io::Result<String>>> Visitor for Serving<'_, L> {
    type Output = ();

    fn visit<E: Engine>(self, engine: &E) -> Result<()> {
        let opened = self.contestant.reopened.then(|| first_read(engine, self.contestant, self.started));
        let mut served = Served::new(self.contestant, engine)?;
        let opened = opened.transpose()?;
        for line in self.lines {
            match serde_json::from_str(&line?)? {
                Command::Load { generation } => {
                    served.load(generation)?;
                    answer(&Reply::Done)?;
                }
                Command::Opened { round, generation } => {
                    let seconds = opened.context("the database is a new one")?;
                    answer(&Reply::Rows(vec![served.opened((round, generation), seconds)?]))?;
                }
                Command::Cell(cell) => answer(&Reply::Rows(served.cell(&cell)?))?,
                Command::Finish => return served.check(),
            }
        }
        Ok(())
    }
}

/// Reads one key of a database that was opened again, and tells how many seconds it took until then.
fn first_read<E: Engine>(engine: &E, contestant: &Contestant, started: Instant) -> Result<f64> {
    let (sizes, mut value) = (contestant.content.sizes(), Vec::new());
    ensure!(engine.worker()?.get(&sizes.key(0), &mut value)?, "key 0 is missing after kill -9");
    let seconds = started.elapsed().as_secs_f64();
    sizes.check(&value, 0)?;
    Ok(seconds)
}

/// How long an engine has to do nothing to be at rest, and how long that is waited for: where most of its data is on the disk, and else.
const REST_ON_DISK: Rest = Rest { quiet: Duration::from_secs(2), longest: Duration::from_secs(60) };
const REST: Rest = Rest { quiet: Duration::from_millis(100), longest: Duration::from_secs(3) };

/// When what an engine does in the background is waited for no longer.
struct Rest {
    quiet: Duration,
    longest: Duration,
}

/// Waits until the engine does nothing in the background any more: whatever it puts off, compacting or settling, would otherwise be a part of
/// the first measurements, of which each lasts a second or less. Some engines never rest.
fn come_to_rest(rest: Rest) {
    /// What may be used meanwhile, of a processor.
    const CPU_MAX: f64 = 0.05;
    let (started, mut before) = (Instant::now(), Usage::own());
    while started.elapsed() < rest.longest {
        std::thread::sleep(rest.quiet);
        let used = Usage::own().since(before);
        if used.device_bytes == 0 && used.cpu_s < CPU_MAX * rest.quiet.as_secs_f64() {
            return;
        }
        before = before.and(used);
    }
}

/// What a database holds, once loaded.
enum Loaded<'e, E> {
    Keys(Data<'e, E>),
    Tpcc(Tpcc<'e, E>),
}

/// An opened engine with its data.
struct Served<'e, E> {
    contestant: &'e Contestant,
    version: String,
    engine: &'e E,
    loaded: Loaded<'e, E>,
    /// What the counters of all values add up to, as long as only operations have run whose counts are known.
    sum: Option<u64>,
}

impl<'e, E: Engine> Served<'e, E> {
    /// One with an engine that nothing was loaded into yet.
    fn new(contestant: &'e Contestant, engine: &'e E) -> Result<Served<'e, E>> {
        let version = (contestant.engine.description().version)()?;
        let loaded = match contestant.content {
            Content::Tpcc { warehouses } => Loaded::Tpcc(Tpcc::new(engine, warehouses)),
            content => Loaded::Keys(Data::new(engine, content.sizes(), content.records())),
        };
        Ok(Served { contestant, version, engine, loaded, sum: None })
    }

    fn keeps_data(&self) -> bool {
        self.contestant.engine.description().keeps_data
    }

    fn load(&mut self, generation: u64) -> Result<()> {
        match &self.loaded {
            Loaded::Keys(data) => {
                data.load_counting(generation)?;
                match self.contestant.content {
                    Content::Recovery { checkpoint: true, .. } => self.engine.checkpoint()?,
                    Content::Recovery { .. } | Content::Cold { .. } => {}
                    // Most of it is on the disk: it is read where something has been counted up.
                    _ if self.contestant.limit_bytes.is_some() => {
                        self.sum = self.keeps_data().then_some(0);
                        come_to_rest(REST_ON_DISK);
                    }
                    _ if self.keeps_data() => {
                        data.warm_up()?;
                        come_to_rest(REST);
                        // Reading everything once also fills the caches of those whose loading has not.
                        let sum = data.check_all()?;
                        ensure!(sum == 0, "what was loaded counts nothing, and the values add up to {sum}");
                        self.sum = Some(sum);
                    }
                    _ => {}
                }
            }
            Loaded::Tpcc(tables) => {
                tables.load()?;
                come_to_rest(REST);
            }
        }
        // What loading and checking took is not the engine's: to count keys may take a set of all of them.
        Usage::forget_peak();
        Ok(())
    }

    /// How long opening took, once all keys are there.
    fn opened(&self, (round, generation): (u32, u64), seconds: f64) -> Result<Row> {
        let (contestant, usage) = (self.contestant, Usage::own());
        let Loaded::Keys(data) = &self.loaded else { anyhow::bail!("only keys are found again") };
        data.check_count()?;
        data.check_sample_counting(generation)?;
        let Content::Recovery { sizes, records, checkpoint } = contestant.content else {
            anyhow::bail!("only what was written for it is found again")
        };
        let dataset = if checkpoint { Dataset::Recovery } else { Dataset::RecoveryLog };
        Ok(Row {
            version: self.version.clone(),
            workload: spec::reopening(dataset)?.name,
            threads: 1,
            window_ms: contestant.window_ms,
            records,
            cache_bytes: contestant.cache_bytes,
            limit_bytes: contestant.limit_bytes,
            round,
            ops: records,
            seconds,
            ops_per_s: records as f64 / seconds.max(1e-9),
            cpu_s: usage.cpu_s,
            rss_bytes: usage.rss_bytes,
            device_bytes: usage.device_bytes,
            disk_bytes: disk_bytes(&contestant.path),
            checked: true,
            ..Row::new(&contestant.engine.text(), contestant.mode, sizes)
        })
    }

    /// Runs a workload, makes what it wrote durable, and checks it.
    fn cell(&mut self, cell: &Cell) -> Result<Vec<Row>> {
        let workload = spec::find(&cell.workload)?;
        let kind = workload.in_batches(cell.batch);
        self.before(kind)?;
        let mut measured = self.measure(kind, cell)?;
        // Of halves each has been by itself.
        if self.persists(kind) && kind != Kind::BesideScan {
            make_durable(&mut measured, || self.engine.persist())?;
        }
        self.after(kind)?;
        let rows = self.contestant.modes(kind).iter().zip(measured);
        Ok(rows.map(|(&mode, measured)| self.row(&workload, cell, mode, &measured)).collect())
    }

    /// Whether what was written is made durable in the end.
    fn persists(&self, kind: Kind) -> bool {
        kind.writes() && matches!(self.contestant.mode, Mode::Weak | Mode::Fast)
    }

    fn measure(&self, kind: Kind, cell: &Cell) -> Result<Vec<Measured>> {
        let duration = Duration::from_secs_f64(cell.seconds);
        // Where each commit is durable, a write is, and no second way of writing is asked for.
        let kind = match kind {
            Kind::Keys(Operation::PutDurably) if self.contestant.mode.is_durable() => {
                Kind::Keys(Operation::GetOrPut { reads: 0 })
            }
            kind => kind,
        };
        Ok(match (&self.loaded, kind) {
            (Loaded::Keys(data), Kind::Keys(operation)) => {
                // A log beside the store hardens by itself.
                let asks = self.contestant.mode == Mode::Weak && self.contestant.engine != Name::KilnWal;
                let persist_each = cell.persist_each_s.filter(|_| asks).map(Duration::from_secs_f64);
                let span = Span { duration, persist_each };
                vec![workloads::run(data, operation, cell.distribution, cell.threads, span)?]
            }
            (Loaded::Keys(data), Kind::BothWays) => {
                workloads::run_in_both_ways(data, cell.distribution, cell.threads, duration)?.into()
            }
            (Loaded::Keys(data), Kind::BesideScan) => {
                let alone = if cell.round.is_multiple_of(2) { Alone::First } else { Alone::Last };
                let persists = self.persists(kind);
                vec![workloads::run_beside_scan(
                    data,
                    cell.distribution,
                    cell.threads,
                    duration,
                    alone,
                    persists,
                )?]
            }
            (Loaded::Tpcc(tables), Kind::Tpcc(mix)) => vec![tables.run(mix, cell.threads, duration)?],
            _ => anyhow::bail!("{} is not for what was loaded", cell.workload),
        })
    }

    /// Checks the sum of all counters before an operation that makes it unknown.
    fn before(&mut self, kind: Kind) -> Result<()> {
        let keeps_sum = match kind {
            Kind::Keys(Operation::ModifyMany(_) | Operation::GetOrAdd { .. }) => true,
            kind => !kind.writes(),
        };
        if !keeps_sum {
            self.check_sum()?;
            self.sum = None;
        }
        Ok(())
    }

    /// Checks the sum of all counters, if it is known, and tells whether everything was read for that.
    fn check_sum(&self) -> Result<bool> {
        let (Some(sum), Loaded::Keys(data)) = (self.sum, &self.loaded) else { return Ok(false) };
        let found = match (self.contestant.limit_bytes, self.contestant.content) {
            // Reading all from the disk takes long, and changes what is in memory.
            (Some(_), _) if sum == 0 => return Ok(false),
            // One by one it would take many minutes.
            (Some(_), Content::Table { .. }) => data.check_all_in_order()?,
            _ => data.check_all()?,
        };
        ensure!(found == sum, "the operations counted up to {sum}, and the values add up to {found}");
        Ok(true)
    }

    fn after(&mut self, kind: Kind) -> Result<()> {
        match (&self.loaded, kind) {
            (Loaded::Keys(data), _) if self.sum.is_some() => {
                let added = data.take_added();
                self.sum = self.sum.map(|sum| sum + added);
            }
            (Loaded::Keys(data), kind) if kind.writes() && self.keeps_data() => {
                data.check_written()?;
                data.check_sample()?;
            }
            (Loaded::Tpcc(tables), _) => tables.check()?,
            _ => {}
        }
        Ok(())
    }

    /// Checks everything.
    fn check(&self) -> Result<()> {
        if !self.keeps_data() {
            return Ok(());
        }
        let all_was_read = self.check_sum()?;
        match (&self.loaded, self.contestant.content) {
            // Reading all of them one by one from the disk would take longer than what was measured.
            (Loaded::Keys(data), Content::Cold { .. }) => {
                data.check_count()?;
                data.check_sample()
            }
            (Loaded::Keys(data), content) => {
                match self.contestant.limit_bytes {
                    _ if all_was_read => {}
                    None => drop(data.check_all()?),
                    Some(_) => {
                        data.check_count()?;
                        data.check_sample()?;
                    }
                }
                if matches!(content, Content::Table { .. } | Content::Recovery { .. }) {
                    data.check_order()?;
                }
                Ok(())
            }
            (Loaded::Tpcc(tables), _) => {
                tables.check_count()?;
                tables.check()
            }
        }
    }

    fn row(&self, workload: &Workload, cell: &Cell, mode: Mode, measured: &Measured) -> Row {
        let (contestant, batch) = (self.contestant, cell.batch);
        // What was durable when it was acknowledged owes nothing for that of the others.
        let persist = if mode.is_durable() { Duration::ZERO } else { measured.persist };
        let ops = measured.ops * batch as u64;
        let seconds = measured.seconds;
        // The rate is that of the threads, stretched by the time that making everything durable took.
        let stretched = seconds / (seconds + persist.as_secs_f64()).max(1e-9);
        Row {
            version: self.version.clone(),
            workload: workload.name.clone(),
            distribution: cell.distribution,
            threads: cell.threads,
            batch,
            window_ms: contestant.window_ms,
            records: contestant.content.records(),
            cache_bytes: contestant.cache_bytes,
            limit_bytes: contestant.limit_bytes,
            round: cell.round,
            ops,
            persist_s: persist.as_secs_f64(),
            ops_per_s: measured.ops_per_s * batch as f64 * stretched,
            bins: measured.bins.iter().map(|count| count * batch as u64).collect(),
            disk_bytes: disk_bytes(&contestant.path),
            checked: true,
            ..Row::measured(contestant.engine, mode, contestant.content.sizes(), measured)
        }
    }
}
