//! `kiln-bench run`: engines side by side, in rounds in which they alternate.
//!
//! ```text
//!  profile     what is measured where the command line leaves it open
//!  plan        which contestants with which data, which cells: from a profile and the command line
//!  rounds      how often a cell is measured
//!  recovery    the cells of those that are killed and opened again
//!  child       a contestant as the run sees it: started, asked, stopped while others are measured
//!  protocol    what both say to each other
//!  contestant  the contestant's own process: loads, measures, checks
//! ```
//!
//! The contestants of a group are all loaded; then each cell is measured round by round, one contestant after the other, so that a
//! slow moment of the machine falls on all of them. One that fails is out, the others go on, and the run ends with an error. A run
//! that is interrupted keeps what it has measured, and can go on later.

mod child;
pub(crate) mod contestant;
mod plan;
mod profile;
mod protocol;
mod recovery;
mod rounds;

use std::time::Instant;

use anyhow::{Result, bail};

use self::child::Child;
use self::plan::{Group, Plan};
use self::protocol::Cell;
use self::rounds::{Clock, Rates, in_turn};
use crate::arguments::RunSettings;
use crate::engines::catalog::Name;
use crate::machine::{self, Watch};
use crate::progress::Progress;
use crate::results::{Row, RowWriter};
use crate::scratch::{Scratch, write_back};
use crate::summary::idleness;
use crate::workloads::spec;
use crate::{interrupt, summary};

/// A measurement is made again when other machines took more of the processors than this: nothing here caused it.
const STEAL_MAX: f64 = 0.10;
/// So often in a row at most.
const REPEATED_MAX: u32 = 2;
/// And one in so many of all: on a machine that is never left alone it would help nobody.
const REPEATED_PART: u64 = 5;

/// Measures everything that was asked for.
pub(crate) fn run(settings: &RunSettings) -> Result<()> {
    let mut plan = Plan::make(settings)?;
    let (writer, rows) = if settings.resume && !settings.plan {
        RowWriter::resume(settings.json.as_deref())?
    } else {
        (RowWriter::none(), Vec::new())
    };
    plan.leave_out(&rows);
    if settings.plan {
        println!("{}", plan.heading(&machine::description()));
        return Ok(());
    }
    let load_before = Watch::start(None).finish().load_before;
    let scratch = Scratch::for_measuring(&settings.dir, plan.disk_bytes())?;
    if let Some(warning) = plan.memory_warning() {
        eprintln!("kiln-bench: {warning}");
    }
    let writer = if settings.resume { writer } else { RowWriter::create(settings.json.as_deref())? };
    let mut run = Run {
        plan: &plan,
        scratch,
        progress: Progress::new(plan.steps()),
        clock: Clock::start(plan.rounds.time_limit, plan.steps()),
        machine: machine::description(),
        writer,
        rows,
        measurements: 0,
        repeated: 0,
        failures: Vec::new(),
    };
    run.progress.print(&plan.heading(&run.machine));
    let outcome = plan.groups.iter().try_for_each(|group| run.group(group));
    let Run { progress, rows, failures, repeated, .. } = run;
    drop(progress);
    if !rows.is_empty() {
        println!("{}\n{}", summary::tables(&rows), idleness::verdict(&rows, load_before));
    }
    if repeated > 0 {
        println!(
            "{repeated} measurements were made again, because other machines took more than {STEAL_MAX} of the processors."
        );
    }
    if let (Err(_), Some(path)) = (&outcome, &settings.json) {
        let path = path.display();
        println!("{path} has what was measured until now; the same command with --resume does the rest.");
    }
    outcome?;
    if !failures.is_empty() {
        bail!("these failed, and are missing above:\n  {}", failures.join("\n  "));
    }
    Ok(())
}

/// A run under way.
struct Run<'a> {
    plan: &'a Plan,
    scratch: Scratch,
    progress: Progress,
    clock: Clock,
    machine: String,
    writer: RowWriter,
    rows: Vec<Row>,
    measurements: u64,
    /// Measurements that other machines disturbed, and that were made again.
    repeated: u64,
    failures: Vec<String>,
}

impl Run<'_> {
    /// Measures all cells of contestants that have the same data.
    fn group(&mut self, group: &Group) -> Result<()> {
        if group.is_recovery() {
            return self.recovery(group);
        }
        let mut children = Vec::new();
        for contestant in &group.contestants {
            interrupt::check()?;
            self.progress.now(format!("loading {}", contestant.label()));
            let path = self.scratch.make(&children.len().to_string())?;
            let child = Child::start(protocol::Contestant { path, ..contestant.clone() });
            children.push(self.kept(child)?);
            self.step(plan::LOAD_STEPS);
        }
        for cell in &group.cells {
            self.cell(group, cell, &mut children)?;
        }
        for child in children.into_iter().flatten() {
            self.progress.now(format!("checking {}", child.contestant().label()));
            let finished = child.finish();
            self.kept(finished)?;
        }
        (0..group.contestants.len()).try_for_each(|at| self.scratch.remove(&at.to_string()))
    }

    /// Measures one cell: everybody some rounds, and then those again whose ratios are unsure.
    fn cell(&mut self, group: &Group, cell: &Cell, children: &mut [Option<Child>]) -> Result<()> {
        let everybody: Vec<usize> =
            (0..children.len()).filter(|&at| self.plan.has(&group.contestants[at], cell)).collect();
        let warm_up = Cell { seconds: cell.warm_up_s, ..cell.clone() };
        for &place in &everybody {
            self.measure(&warm_up, children, place)?;
        }
        let first = self.first_round(group, cell);
        let kiln = everybody.iter().copied().filter(|&at| group.contestants[at].engine == Name::Kiln);
        let base = kiln.min_by_key(|&at| group.contestants[at].window_ms);
        let mut rates = Rates::new(children.len(), base);
        let rounds = self.plan.rounds;
        for round in first..first + rounds.least {
            self.round(&Cell { round, ..cell.clone() }, children, &everybody, &mut rates)?;
            self.step(everybody.len() as u64);
        }
        let (began, extra) = (Instant::now(), self.clock.extra_for(self.plan.cell_steps(group, cell)));
        for round in first + rounds.least..first + rounds.most {
            let unsure = rates.unsure();
            if unsure.is_empty() || extra.is_some_and(|extra| began.elapsed() >= extra) {
                break;
            }
            self.round(&Cell { round, ..cell.clone() }, children, &unsure, &mut rates)?;
        }
        self.clock.spent_on_extra_rounds(began.elapsed());
        Ok(())
    }

    /// The number of the first round that was not measured before.
    fn first_round(&self, group: &Group, cell: &Cell) -> u32 {
        let before = self
            .rows
            .iter()
            .filter(|row| group.contestants.iter().any(|contestant| contestant.has_measured(cell, row)));
        before.map(|row| row.round + 1).max().unwrap_or(0)
    }

    /// Measures one round of some contestants, and keeps the rows.
    fn round(
        &mut self,
        cell: &Cell,
        children: &mut [Option<Child>],
        places: &[usize],
        rates: &mut Rates,
    ) -> Result<()> {
        for place in in_turn(places, cell.round) {
            let mut rows = self.measure(cell, children, place)?;
            for _ in 0..REPEATED_MAX {
                let may_repeat = self.repeated * REPEATED_PART <= self.measurements;
                if !may_repeat || rows.iter().all(|row| row.steal <= STEAL_MAX) {
                    break;
                }
                self.repeated += 1;
                rows = self.measure(cell, children, place)?;
            }
            self.measurements += 1;
            if let Some(row) = rows.first() {
                rates.push(place, cell.round, row.ops_per_s);
            }
            self.keep_rows(rows)?;
        }
        Ok(())
    }

    /// Measures one contestant once. No rows if it has failed, now or before.
    fn measure(&mut self, cell: &Cell, children: &mut [Option<Child>], place: usize) -> Result<Vec<Row>> {
        let Some(child) = &mut children[place] else { return Ok(Vec::new()) };
        let (threads, label) = (cell.threads, child.contestant().label());
        self.progress.now(format!("{}, {threads} threads: {label}", cell.workload));
        let mut rows = child.measure(cell.clone());
        if rows.is_ok() && spec::find(&cell.workload)?.dataset.writes() {
            // Else the system writes what it has left in the page cache in the next one's time.
            rows = write_back(&child.contestant().path).and(rows);
        }
        match self.kept(rows)? {
            Some(rows) => Ok(rows),
            None => {
                children[place] = None;
                Ok(Vec::new())
            }
        }
    }

    fn keep_rows(&mut self, rows: Vec<Row>) -> Result<()> {
        for mut row in rows {
            row.machine.clone_from(&self.machine);
            self.writer.write(&row)?;
            self.rows.push(row);
        }
        Ok(())
    }

    fn step(&mut self, count: u64) {
        self.progress.steps(count);
        self.clock.steps(count);
    }

    /// What a contestant did; nothing if it failed, which is noted. An interruption is no failure of the contestant.
    fn kept<T>(&mut self, result: Result<T>) -> Result<Option<T>> {
        interrupt::check()?;
        match result {
            Ok(value) => Ok(Some(value)),
            Err(error) => {
                let text = format!("{error:#}");
                self.progress.print(&format!("FAILED: {text}"));
                self.failures.push(text);
                Ok(None)
            }
        }
    }
}
