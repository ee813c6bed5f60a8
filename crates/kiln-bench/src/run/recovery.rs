//! Opening again: each contestant's database is written, its process killed with kill -9, and a new process opens it.
//!
//! ```text
//!  load ── kill -9 ── open, read a key (this is timed), count the keys ── load ── kill -9 ── open ...
//! ```
//!
//! Loading writes all keys anew and makes them durable, so that each round has as much to recover as the last one. The contestants take
//! turns, and only one lives at a time. What they have left in the page cache is still there when they open, as after any kill -9.

use anyhow::Result;

use super::child::Child;
use super::plan::{Group, LOAD_STEPS};
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
            self.progress.now(format!("loading {}", contestant.label()));
            let contestant = Contestant { path: self.scratch.make(&at.to_string())?, ..contestant.clone() };
            // Dropping it kills it.
            let loaded = Child::start(contestant.clone()).map(drop);
            alive.push(self.kept(loaded)?.map(|()| contestant));
            self.step(LOAD_STEPS);
        }
        let everybody: Vec<usize> = (0..alive.len()).collect();
        for cell in &group.cells {
            let (first, rounds) = (self.first_round(group, cell), self.plan.rounds.least);
            for round in first..first + rounds {
                for place in in_turn(&everybody, round) {
                    let Some(contestant) = &alive[place] else { continue };
                    self.progress.now(format!("{}: {}", cell.workload, contestant.label()));
                    let is_last = round + 1 == first + rounds;
                    let measured = open_once(contestant, round, is_last);
                    match self.kept(measured)? {
                        Some(rows) => self.keep_rows(rows)?,
                        None => alive[place] = None,
                    }
                    self.step(LOAD_STEPS);
                }
            }
        }
        (0..alive.len()).try_for_each(|at| self.scratch.remove(&at.to_string()))
    }
}

/// Opens a database whose process was killed, and has it written anew and killed again; or, at the end, checked and closed.
fn open_once(contestant: &Contestant, round: u32, is_last: bool) -> Result<Vec<crate::results::Row>> {
    write_back(&contestant.path)?;
    let (mut child, rows) = Child::reopen(contestant.clone(), round)?;
    if is_last {
        child.finish()?;
    } else {
        child.load()?;
    }
    Ok(rows)
}
