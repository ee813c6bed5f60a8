//! The power switch: cuts the power now, after so many steps of the disk, or after an operation of some kind.

use std::io;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use kiln::device::{OperationKind, SimulatedDevice};

/// Between two looks at the power.
pub(super) const EVERY: Duration = Duration::from_micros(500);

/// The power of a machine with one disk.
#[derive(Debug)]
pub(super) struct Power {
    disk: SimulatedDevice,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// The power is to be cut after so many more operations of this kind.
    cut_after: Option<(OperationKind, u64)>,
    /// Whoever has asked is dead.
    all_dead: bool,
}

impl Power {
    pub(super) fn new(disk: SimulatedDevice) -> Power {
        Power { disk, state: Mutex::default(), changed: Condvar::new() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// True when the power was cut.
    pub(super) fn is_off(&self) -> bool {
        self.disk.crashed()
    }

    /// Waits for the cut, but not longer than this.
    pub(super) fn wait_for_the_cut(&self, limit: Duration) {
        let end = Instant::now() + limit;
        while !self.is_off() && Instant::now() < end {
            std::thread::sleep(EVERY);
        }
    }

    /// Cuts the power: from this instant on no operation has an effect.
    pub(super) fn cut(&self) {
        self.disk.crash_after(self.disk.steps());
    }

    /// Will cut the power after so many more steps of the disk.
    pub(super) fn cut_after_steps(&self, steps: u64) {
        self.disk.crash_after(self.disk.steps() + steps);
    }

    /// Will cut the power after so many more operations of this kind, at least one.
    pub(super) fn cut_after(&self, kind: OperationKind, count: u64) {
        self.state().cut_after = Some((kind, count.max(1)));
    }

    /// Ends the waiting of operations that came when the power was off, and of which nobody will see how they ended.
    pub(super) fn answer_the_dead(&self) {
        self.state().all_dead = true;
        self.changed.notify_all();
    }

    /// Does something if there is power; otherwise there is no answer.
    pub(super) fn act<T>(&self, kind: OperationKind, act: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        if !self.is_off() {
            let outcome = act();
            // What failed because of the cut is not answered either.
            if outcome.is_ok() || !self.is_off() {
                self.count(kind);
                return outcome;
            }
        }
        let mut state = self.state();
        while !state.all_dead {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        Err(io::Error::other("the power is off"))
    }

    fn count(&self, kind: OperationKind) {
        let mut state = self.state();
        if let Some((wanted, count)) = &mut state.cut_after
            && *wanted == kind
        {
            *count -= 1;
            if *count == 0 {
                state.cut_after = None;
                self.cut();
            }
        }
    }
}
