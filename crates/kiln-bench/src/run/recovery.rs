//! Opening again: each contestant's database is written, its process killed with kill -9, and a new process opens it.
//!
//! ```text
//!  load ── kill -9 ── open, read a key (this is timed), count the keys ── load ── kill -9 ── open ...
//! ```
//!
//! Loading writes all keys anew and makes them durable, so that each round has as much to recover as the last one. The contestants take
//! turns, and only one lives at a time. What they have left in the page cache is still there when they open, as after any kill -9.

use std::time::{Duration, Instant};

use anyhow::Result;

use super::child::Child;
use super::plan::{self, Group};
use super::protocol::Contestant;
use super::rounds::in_turn;
use super::{Run, write_back};
use crate::interrupt;

impl Run<'_> {
    /// Measures the one cell of contestants that are opened again.
    pub(super) fn recovery(&mut self, group: &Group) -> Result<()> {
        let mut alive = Vec::new();
        for (at, contestant) in group.contestants.iter().enumerate() {
            interrupt::check()?;
            let began = Instant::now();
            self.progress.now(format!("loading {}", contestant.label()));
            let planned_s = plan::load_seconds(contestant) + plan::check_seconds(contestant);
            let contestant = Contestant { path: self.scratch.make(&at.to_string())?, ..contestant.clone() };
            // Dropping it kills it.
            let loaded = Child::start(contestant.clone()).map(drop);
            alive.push(self.kept(loaded)?.map(|()| contestant));
            self.rest_done(planned_s, began);
        }
        let everybody: Vec<usize> = (0..alive.len()).collect();
        for cell in &group.cells {
            let (first, rounds) = (self.first_round(group, cell), group.rounds.least);
            let (began, planned_s) = (Instant::now(), self.plan.cell_seconds(group, cell));
            let (share, mut longest) = (self.clock.share(planned_s), Duration::ZERO);
            for round in first..first + rounds {
                let round_began = Instant::now();
                // The round after this one would be too much.
                let is_late = share.is_some_and(|share| began.elapsed() + 2 * longest > share);
                let is_last = is_late || round + 1 == first + rounds;
                for place in in_turn(&everybody, round) {
                    let Some(contestant) = &alive[place] else { continue };
                    self.progress.now(format!("{}: {}", cell.workload, contestant.label()));
                    let measured = open_once(contestant, (round, u64::from(round - first)), is_last);
                    match self.kept(measured)? {
                        Some(rows) => self.keep_rows(rows)?,
                        None => alive[place] = None,
                    }
                    self.tell_time(began.elapsed());
                }
                longest = longest.max(round_began.elapsed());
                if is_last {
                    break;
                }
            }
            self.clock.cell_done(planned_s, began.elapsed());
        }
        (0..alive.len()).try_for_each(|at| self.scratch.remove(&at.to_string()))
    }
}

/// Opens a database whose process was killed, and has it written anew and killed again; or, at the end, checked and closed. It was written anew so often
/// before.
fn open_once(
    contestant: &Contestant,
    (round, generation): (u32, u64),
    is_last: bool,
) -> Result<Vec<crate::results::Row>> {
    write_back(&contestant.path)?;
    let (mut child, rows) = Child::reopen(contestant.clone(), round, generation)?;
    if is_last {
        child.finish()?;
    } else {
        child.load(generation + 1)?;
    }
    Ok(rows)
}
