//! A few threads that take one step after the other together: none begins a step before all have ended the one before.
//!
//! One of them leads: it says what the next step is, takes part, and waits for the others. A panic in one ends the team.

use crate::sync::{Condvar, Mutex};

/// What everybody does at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    Sort,
    Apply,
    Order,
}

#[derive(Default)]
struct State {
    /// Counts the steps.
    number: u64,
    /// The present one; `None` before the first, and once the team is dismissed.
    step: Option<Step>,
    /// Members besides the leader, and those of them who have not ended the step.
    members: usize,
    busy: usize,
    dismissed: bool,
}

/// See the module's documentation.
#[derive(Default)]
pub(super) struct Team {
    state: Mutex<State>,
    begun: Condvar,
    ended: Condvar,
}

impl Team {
    /// Counts so many members more, before the first step.
    pub(super) fn add_members(&self, count: usize) {
        self.state.lock().members += count;
    }

    /// What a member does, until it is dismissed.
    pub(super) fn follow(&self, act: impl Fn(Step)) {
        let mut seen = 0;
        loop {
            let step = {
                let mut state = self.state.lock();
                while state.number == seen && !state.dismissed {
                    self.begun.wait(&mut state);
                }
                let Some(step) = state.step.filter(|_| !state.dismissed) else { return };
                seen = state.number;
                step
            };
            let mut taking_part = TakingPart { team: self, completed: false };
            act(step);
            taking_part.completed = true;
        }
    }

    /// Has everybody take a step, and takes it, too. False if the team was dismissed meanwhile, since somebody panicked.
    pub(super) fn lead(&self, step: Step, act: impl FnOnce(Step)) -> bool {
        {
            let mut state = self.state.lock();
            state.number += 1;
            state.step = Some(step);
            state.busy = state.members;
            if state.members > 0 {
                self.begun.notify_all();
            }
        }
        act(step);
        let mut state = self.state.lock();
        while state.busy > 0 && !state.dismissed {
            self.ended.wait(&mut state);
        }
        !state.dismissed
    }

    /// Whether nobody is to go on.
    pub(super) fn is_dismissed(&self) -> bool {
        self.state.lock().dismissed
    }

    /// Sends everybody home.
    pub(super) fn dismiss(&self) {
        self.state.lock().dismissed = true;
        self.begun.notify_all();
        self.ended.notify_all();
    }
}

/// Dismisses the team when the leader leaves, in whatever way: nobody is to wait for it.
pub(super) struct Leading<'a>(pub(super) &'a Team);

impl Drop for Leading<'_> {
    fn drop(&mut self) {
        self.0.dismiss();
    }
}

/// A member's part of a step.
struct TakingPart<'a> {
    team: &'a Team,
    completed: bool,
}

impl Drop for TakingPart<'_> {
    fn drop(&mut self) {
        if !self.completed {
            self.team.dismiss();
            return;
        }
        let mut state = self.team.state.lock();
        state.busy -= 1;
        if state.busy == 0 {
            self.team.ended.notify_all();
        }
    }
}
