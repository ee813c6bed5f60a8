//! `kiln-bench run`: engines side by side, in rounds in which they alternate.
//!
//! ```text
//!  plan        which contestants with which data, which cells: from a profile and the command line
//!  child       a contestant as the run sees it: started, asked, stopped while others are measured
//!  protocol    what both say to each other
//!  contestant  the contestant's own process: loads, measures, checks
//! ```
//!
//! The contestants of a group are all loaded; then each cell is measured round by round, one contestant after the other, so that a
//! slow moment of the machine falls on all of them. One that fails is out, the others go on, and the run ends with an error.

mod child;
pub(crate) mod contestant;
mod plan;
mod protocol;

use anyhow::{Result, bail};

use self::child::Child;
use self::plan::{Group, Plan};
use self::protocol::Cell;
use crate::arguments::RunSettings;
use crate::machine::{self, Watch};
use crate::progress::Progress;
use crate::results::{Row, RowWriter};
use crate::scratch::Scratch;
use crate::{interrupt, summary};

/// The untimed run of each cell before its first round, at most.
const WARM_UP_S: f64 = 0.1;

/// Measures everything that was asked for.
pub(crate) fn run(settings: &RunSettings) -> Result<()> {
    let plan = Plan::make(settings)?;
    let watch = Watch::start(None);
    let scratch = Scratch::for_measuring(&settings.dir, plan.disk_bytes())?;
    if let Some(warning) = plan.memory_warning() {
        eprintln!("kiln-bench: {warning}");
    }
    let writer = RowWriter::create(settings.json.as_deref())?;
    let mut run = Run {
        plan: &plan,
        scratch,
        progress: Progress::new(plan.steps()),
        writer,
        rows: Vec::new(),
        failures: Vec::new(),
    };
    run.progress.print(&plan.heading(&machine::description()));
    for group in &plan.groups {
        run.group(group)?;
    }
    let Run { progress, rows, failures, .. } = run;
    drop(progress);
    println!("{}\n{}", summary::tables(&rows), watch.finish().verdict());
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
    writer: RowWriter,
    rows: Vec<Row>,
    failures: Vec<String>,
}

impl Run<'_> {
    /// Measures all cells of contestants that have the same data.
    fn group(&mut self, group: &Group) -> Result<()> {
        let mut children = Vec::new();
        for contestant in &group.contestants {
            interrupt::check()?;
            self.progress.now(format!("loading {}", contestant.label()));
            let path = self.scratch.make(&children.len().to_string())?;
            let child = Child::start(protocol::Contestant { path, ..contestant.clone() });
            children.push(self.kept(child)?);
            self.progress.steps(plan::LOAD_STEPS);
        }
        for cell in &group.cells {
            self.cell(cell, &mut children)?;
        }
        for child in children.into_iter().flatten() {
            self.progress.now(format!("checking {}", child.contestant().label()));
            let finished = child.finish();
            self.kept(finished)?;
        }
        (0..group.contestants.len()).try_for_each(|at| self.scratch.remove(&at.to_string()))
    }

    /// Measures one cell in all its rounds.
    fn cell(&mut self, cell: &Cell, children: &mut [Option<Child>]) -> Result<()> {
        let rounds = self.plan.rounds;
        // The round before the first is short and does not count.
        let warm_up = Cell { seconds: (cell.seconds / 2.0).min(WARM_UP_S), ..cell.clone() };
        let measured = (0..rounds).map(|round| Cell { round, ..cell.clone() });
        for (at, cell) in [warm_up].into_iter().chain(measured).enumerate() {
            for child_slot in children.iter_mut() {
                let Some(child) = child_slot else { continue };
                if !self.plan.has(child.contestant(), &cell) {
                    continue;
                }
                self.progress.now(format!(
                    "{}, {} threads: {}",
                    cell.workload,
                    cell.threads,
                    child.contestant().label()
                ));
                let rows = child.measure(cell.clone());
                match self.kept(rows)? {
                    None => *child_slot = None,
                    Some(rows) if at > 0 => {
                        rows.iter().try_for_each(|row| self.writer.write(row))?;
                        self.rows.extend(rows);
                        self.progress.steps(1);
                    }
                    Some(_) => {}
                }
            }
        }
        Ok(())
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
