//! `kiln-bench run`: engines side by side, in rounds in which they alternate.
//!
//! ```text
//!  profile     what is measured where the command line leaves it open
//!  plan        which contestants with which data, which cells: from a profile and the command line
//!  rounds      how often a cell is measured
//!  clock       how much time there is, and how cells share it
//!  recovery    the cells of those that are killed and opened again
//!  child       a contestant as the run sees it: started, asked, stopped while others are measured
//!  memory_group  what its process may have of memory, and of the page cache
//!  protocol    what both say to each other
//!  contestant  the contestant's own process: loads, measures, checks
//! ```
//!
//! The contestants of a group are all loaded; then each cell is measured round by round, one contestant after the other, so that a
//! slow moment of the machine falls on all of them. One that fails is out, the others go on, and the run ends with an error. A run
//! that is interrupted keeps what it has measured, and can go on later.

mod child;
mod clock;
pub(crate) mod contestant;
mod memory_group;
mod plan;
mod profile;
mod protocol;
mod recovery;
mod rounds;

use std::time::{Duration, Instant};

use anyhow::{Result, bail};

use self::child::Child;
use self::clock::Clock;
use self::plan::{Group, Plan};
use self::protocol::Cell;
use self::rounds::{Rates, in_turn};
use crate::arguments::RunSettings;
use crate::awake::Awake;
use crate::engines::catalog::Name;
use crate::machine::{self, Watch};
use crate::memory_speed::MemorySpeed;
use crate::placement::Patience;
use crate::progress::Progress;
use crate::results::{Row, RowWriter};
use crate::scratch::{Scratch, write_back};
use crate::summary::idleness;
use crate::workloads::spec;
use crate::{interrupt, placement, summary};

/// A measurement is made again when other machines took more of the processors than this: nothing here caused it.
const STEAL_MAX: f64 = 0.10;
/// The same of other processes. What they take in a tenth of a second is counted in ticks of a tenth of that.
const OTHERS_MAX: f64 = 0.25;
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
    let scratch = Scratch::for_measuring(&settings.dir, settings.json.as_deref(), plan.disk_bytes())?;
    let awake = Awake::hold();
    for warning in [plan.memory_warning(), plan.unlimited.clone(), awake.warning()].into_iter().flatten() {
        eprintln!("kiln-bench: {warning}");
    }
    let writer = if settings.resume { writer } else { RowWriter::create(settings.json.as_deref())? };
    let clock = Clock::start(plan.time_limit, plan.cells_s(), plan.rest_s());
    let mut run = Run {
        plan: &plan,
        scratch,
        progress: Progress::of_time(clock.left(Duration::ZERO)),
        clock,
        machine: awake.machine(),
        memory: MemorySpeed::new(),
        patience: plan.time_limit.is_none().then(Patience::start),
        writer,
        rows,
        measurements: 0,
        repeated: 0,
        left_out: Vec::new(),
        failures: Vec::new(),
    };
    run.progress.print(&plan.heading(&run.machine));
    let outcome = plan.groups.iter().try_for_each(|group| run.group(group));
    let Run { progress, rows, failures, repeated, left_out, clock, patience, .. } = run;
    drop(progress);
    if !rows.is_empty() {
        println!("{}\n{}", summary::tables(&rows), idleness::verdict(&rows, load_before));
    }
    if repeated > 0 {
        println!(
            "{repeated} measurements were made again, because other machines took more than {STEAL_MAX} of the processors, or other \
             processes more than {OTHERS_MAX}, or the host moved the processors apart."
        );
    }
    if let Some(waited) = patience.map(|patience| patience.waited().as_secs()).filter(|&waited| waited > 0) {
        println!("It waited {waited} s in all for the host to have the processors near each other.");
    }
    println!("It took {}.", humantime::format_duration(Duration::from_secs(clock.elapsed().as_secs())));
    if !left_out.is_empty() {
        println!("There was no time for these, give a longer --time-limit:\n  {}", left_out.join("\n  "));
    }
    if let (true, Some(path)) = (outcome.is_err() || !left_out.is_empty(), &settings.json) {
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
    memory: MemorySpeed,
    /// For runs that have the time: within a limit it would be taken from the rounds.
    patience: Option<Patience>,
    writer: RowWriter,
    rows: Vec<Row>,
    measurements: u64,
    /// Measurements that others disturbed, and that were made again.
    repeated: u64,
    /// Cells for which no time was left.
    left_out: Vec<String>,
    failures: Vec<String>,
}

impl Run<'_> {
    /// Measures all cells of contestants that have the same data.
    fn group(&mut self, group: &Group) -> Result<()> {
        if self.is_late(group) {
            group.cells.iter().for_each(|cell| self.leave_out(group, cell));
            let rest_s = group.contestants.iter().map(plan::load_seconds).sum::<f64>()
                + group.contestants.iter().map(plan::check_seconds).sum::<f64>();
            self.clock.rest_done(rest_s, Duration::ZERO);
            return Ok(());
        }
        if group.is_recovery() {
            return self.recovery(group);
        }
        let (mut children, first) = (Vec::new(), self.rows.len());
        for contestant in &group.contestants {
            interrupt::check()?;
            let began = Instant::now();
            self.progress.now(format!("loading {}", contestant.label()));
            let path = self.scratch.make(&children.len().to_string())?;
            let child = Child::start(protocol::Contestant { path, ..contestant.clone() });
            children.push(self.kept(child)?);
            self.rest_done(plan::load_seconds(contestant), began);
        }
        for cell in &group.cells {
            self.cell(group, cell, &mut children)?;
        }
        for (child, contestant) in children.into_iter().zip(&group.contestants) {
            let began = Instant::now();
            self.progress.now(format!("checking {}", contestant.label()));
            let is_sound = match child.map(Child::finish) {
                Some(finished) => self.kept(finished)?.is_some(),
                None => false,
            };
            if is_sound {
                self.note_checked(group, contestant, first);
            } else {
                self.take_back(group, contestant, first);
            }
            self.rest_done(plan::check_seconds(contestant), began);
        }
        self.writer.rewrite(&self.rows)?;
        (0..group.contestants.len()).try_for_each(|at| self.scratch.remove(&at.to_string()))
    }

    /// Measures one cell: everybody some rounds, and then those again whose ratios are unsure; while the cell's share of the time
    /// lasts.
    fn cell(&mut self, group: &Group, cell: &Cell, children: &mut [Option<Child>]) -> Result<()> {
        let (began, planned_s) = (Instant::now(), self.plan.cell_seconds(group, cell));
        let share = self.clock.share(planned_s);
        if share.is_some_and(|share| share.is_zero()) {
            self.leave_out(group, cell);
            return Ok(());
        }
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
        let mut of_each = Duration::ZERO;
        for round in first..first + group.rounds.most {
            let is_certain = round < first + group.rounds.least;
            let places = if is_certain { everybody.clone() } else { rates.unsure() };
            let expected = began.elapsed() + of_each * places.len() as u32;
            if places.is_empty() || round > first && share.is_some_and(|share| expected > share) {
                break;
            }
            let round_began = Instant::now();
            self.round(&Cell { round, ..cell.clone() }, children, &places, &mut rates)?;
            of_each = of_each.max(round_began.elapsed() / places.len() as u32);
            self.tell_time(began.elapsed());
        }
        self.clock.cell_done(planned_s, began.elapsed());
        Ok(())
    }

    /// Whether no time is left to measure any cell of a group.
    fn is_late(&self, group: &Group) -> bool {
        let planned_s = |cell| self.plan.cell_seconds(group, cell);
        let share = self.clock.share(group.cells.iter().map(planned_s).sum());
        share.is_some_and(|share| share.is_zero())
    }

    /// Notes that a cell is not measured for want of time.
    fn leave_out(&mut self, group: &Group, cell: &Cell) {
        let promise = if group.is_durable() { "durable at each commit" } else { "durable later" };
        self.left_out.push(format!("{}, {promise}", cell.title()));
        self.clock.cell_done(self.plan.cell_seconds(group, cell), Duration::ZERO);
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
        let memory_ns = self.memory.read_ns();
        for place in in_turn(places, cell.round) {
            let (mut rows, mut is_disturbed) = self.measure_near(cell, children, place)?;
            for _ in 0..REPEATED_MAX {
                let may_repeat = self.repeated * REPEATED_PART <= self.measurements;
                if !may_repeat || !is_disturbed {
                    break;
                }
                self.repeated += 1;
                (rows, is_disturbed) = self.measure_near(cell, children, place)?;
            }
            rows.iter_mut().for_each(|row| row.memory_ns = Some(memory_ns));
            self.measurements += 1;
            if let Some(row) = rows.first() {
                rates.push(place, cell.round, row.ops_per_s);
            }
            // Not to the end: nobody knows when what is wrong then went wrong.
            rows.iter_mut().for_each(|row| row.checked = false);
            self.keep_rows(rows)?;
        }
        Ok(())
    }

    /// As [`Self::measure`], once the processors are near each other, if that can be waited for; and whether others were at work
    /// meanwhile, or the host has moved the processors apart.
    fn measure_near(
        &mut self,
        cell: &Cell,
        children: &mut [Option<Child>],
        place: usize,
    ) -> Result<(Vec<Row>, bool)> {
        let before_ns = match &mut self.patience {
            Some(patience) => patience.wait(&self.progress)?,
            None => placement::round_trip_ns(),
        };
        let mut rows = self.measure(cell, children, place)?;
        let longest_ns = placement::longest_ns(before_ns);
        rows.iter_mut().for_each(|row| row.core_to_core_ns = longest_ns);
        let is_moved = placement::is_apart(longest_ns) && !placement::is_apart(before_ns);
        let is_alone = |row: &Row| row.steal <= STEAL_MAX && row.others <= OTHERS_MAX;
        let is_disturbed = is_moved || !rows.iter().all(is_alone);
        Ok((rows, is_disturbed))
    }

    /// Measures one contestant once. No rows if it has failed, now or before.
    fn measure(&mut self, cell: &Cell, children: &mut [Option<Child>], place: usize) -> Result<Vec<Row>> {
        let Some(child) = &mut children[place] else { return Ok(Vec::new()) };
        self.progress.now(format!("{}: {}", cell.title(), child.contestant().label()));
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

    /// Notes that what a contestant of a group did, whose rows begin at `first`, was right to the end.
    fn note_checked(&mut self, group: &Group, contestant: &protocol::Contestant, first: usize) {
        let rows = self.rows[first..].iter_mut();
        rows.filter(|row| group.has_made(contestant, row)).for_each(|row| row.checked = true);
    }

    /// Takes back what it did: it has failed, or its data is not what it must be, and nobody knows since when.
    fn take_back(&mut self, group: &Group, contestant: &protocol::Contestant, first: usize) {
        let since = self.rows.split_off(first);
        self.rows.extend(since.into_iter().filter(|row| !group.has_made(contestant, row)));
    }

    /// Something was loaded or checked that was planned to take so many seconds.
    fn rest_done(&mut self, planned_s: f64, began: Instant) {
        self.clock.rest_done(planned_s, began.elapsed());
        self.tell_time(Duration::ZERO);
    }

    /// Shows how far the run is; the cell that is being measured has taken so long.
    fn tell_time(&self, cell_took: Duration) {
        self.progress.time(self.clock.elapsed(), self.clock.left(cell_took));
    }

    /// What a contestant did; nothing if it failed, which is noted. An interruption is no failure of the contestant.
    fn kept<T>(&mut self, result: Result<T>) -> Result<Option<T>> {
        interrupt::check()?;
        match result {
            Ok(value) => Ok(Some(value)),
            Err(error) => {
                let full = self.scratch.fullness().map_or_else(String::new, |full| format!(" ({full})"));
                let text = format!("{error:#}{full}");
                self.progress.print(&format!("FAILED: {text}"));
                self.failures.push(text);
                Ok(None)
            }
        }
    }
}
