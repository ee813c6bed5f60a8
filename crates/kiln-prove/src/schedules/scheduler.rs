//! Who goes on at each point: all of it follows from a seed, and from nothing that was learnt in schedules before, so that a
//! seed repeats its schedule on any machine.
//!
//! A seed also chooses the policy. A *walk* picks any thread at some points and stays with the running one at the others.
//! *Priorities* let the thread of the highest priority run, and lower it at a few points (PCT; Burckhardt, Kothari, Musuvathi
//! and Nagarakatte, ASPLOS 2010): that finds what needs a thread to sleep through much of what the others do. Where the
//! points lie is drawn from ranges of all sizes, since the length of a schedule is not known before.

use shuttle::scheduler::{Schedule, Scheduler, Task, TaskId};

use crate::support::Random;

/// Where the next seed comes from, and where the trace of each schedule goes.
pub(super) trait Seeds {
    /// The seed of the next schedule; `None` ends the run.
    fn next(&mut self) -> Option<u64>;
    /// The schedule has come to its end.
    fn done(&mut self, trace: Trace);
}

/// A schedule's length, and a number that stands for all choices in it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Trace {
    pub(super) points: u64,
    pub(super) choices: u64,
}

enum Policy {
    /// At one in so many points anybody may go on.
    Walk(usize),
    Priorities {
        /// The lower the number, the higher the priority; by number of the thread.
        of: Vec<u64>,
        lowest: u64,
        changes: Vec<u64>,
    },
}

impl Policy {
    fn of(random: &mut Random) -> Policy {
        match random.below(2) {
            0 => Policy::Walk(1 << random.below(7)),
            _ => {
                let within = 1 << (4 + random.below(11));
                let changes = (0..1 + random.below(4)).map(|_| random.below(within) as u64).collect();
                Policy::Priorities { of: Vec::new(), lowest: u64::MAX / 2, changes }
            }
        }
    }
}

/// See the module's documentation.
pub(super) struct Seeded<S> {
    seeds: S,
    random: Random,
    /// For the programs' own choices.
    data: Random,
    policy: Policy,
    trace: Trace,
    running: bool,
}

impl<S: Seeds> Seeded<S> {
    pub(super) fn new(seeds: S) -> Seeded<S> {
        Seeded {
            seeds,
            random: Random::new(0),
            data: Random::new(0),
            policy: Policy::Walk(1),
            trace: Trace::default(),
            running: false,
        }
    }

    fn choose(&mut self, runnable: &[&Task], current: Option<TaskId>, is_yielding: bool) -> TaskId {
        let random = &mut self.random;
        let goes_on = current.filter(|current| runnable.iter().any(|task| task.id() == *current));
        match &mut self.policy {
            Policy::Walk(one_in) => match goes_on {
                Some(current) if !is_yielding && !random.one_in(*one_in) => current,
                Some(current) if is_yielding => {
                    let others: Vec<_> =
                        runnable.iter().map(|task| task.id()).filter(|id| *id != current).collect();
                    *random.pick(&others)
                }
                _ => random.pick(runnable).id(),
            },
            Policy::Priorities { of, lowest, changes } => {
                for task in runnable {
                    let at = usize::from(task.id());
                    while of.len() <= at {
                        of.push(random.next() / 4);
                    }
                }
                if let Some(current) = current
                    && (is_yielding || changes.contains(&self.trace.points))
                {
                    *lowest += 1;
                    of[usize::from(current)] = *lowest;
                }
                let highest = runnable.iter().map(|task| task.id()).min_by_key(|id| of[usize::from(*id)]);
                highest.unwrap_or_else(|| unreachable!("somebody can go on"))
            }
        }
    }
}

impl<S: Seeds> Scheduler for Seeded<S> {
    fn new_execution(&mut self) -> Option<Schedule> {
        if std::mem::take(&mut self.running) {
            self.seeds.done(self.trace);
        }
        let seed = self.seeds.next()?;
        self.random = Random::new(seed);
        self.data = Random::new(!seed);
        self.policy = Policy::of(&mut self.random);
        self.trace = Trace::default();
        self.running = true;
        Some(Schedule::new(seed))
    }

    fn next_task(
        &mut self,
        runnable: &[&Task],
        current: Option<TaskId>,
        is_yielding: bool,
    ) -> Option<TaskId> {
        let chosen = match runnable {
            [only] => only.id(),
            _ => {
                // Points at which there is no choice are no part of a schedule.
                self.trace.points += 1;
                self.choose(runnable, current, is_yielding)
            }
        };
        self.trace.choices = self.trace.choices.rotate_left(5) ^ usize::from(chosen) as u64;
        self.trace.choices = self.trace.choices.wrapping_mul(0x9E37_79B9_7F4A_7C15);
        Some(chosen)
    }

    fn next_u64(&mut self) -> u64 {
        self.data.next()
    }
}
