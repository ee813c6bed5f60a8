//! A device whose syncs can be held: a stuck disk without any clock.
//!
//! [`gated_device`] passes everything on to a simulated disk. While the gate is shut, a sync of a file waits at it,
//! and tests can wait until one does. So "while the device is busy" is a state and not a guess about time. And it can be
//! made slow: then it takes at least so long for every byte written.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use kiln::device::SimulatedDevice;

use super::hooked::{HookedDevice, Operation};
use crate::testing::{PATIENCE, eventually};

#[derive(Debug, Default)]
struct GateState {
    shut: bool,
    waiting: usize,
    syncs: u64,
    /// What a byte written takes; no time unless set.
    time_per_byte: Duration,
}

/// The gate that all syncs of files go through.
#[derive(Clone, Debug, Default)]
pub(crate) struct Gate {
    shared: Arc<(Mutex<GateState>, Condvar)>,
}

impl Gate {
    fn state(&self) -> MutexGuard<'_, GateState> {
        self.shared.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn shut(&self) {
        self.state().shut = true;
    }

    pub(crate) fn open(&self) {
        self.state().shut = false;
        self.shared.1.notify_all();
    }

    /// Waits until a sync stands at the shut gate.
    pub(crate) fn wait_until_stuck(&self) {
        eventually("a sync at the gate", || self.is_anybody_waiting());
    }

    pub(crate) fn is_anybody_waiting(&self) -> bool {
        self.state().waiting > 0
    }

    /// Has writes take at least so long for each byte.
    pub(crate) fn slow_down(&self, time_per_byte: Duration) {
        self.state().time_per_byte = time_per_byte;
    }

    /// The syncs that have come so far, those that wait included.
    pub(crate) fn syncs(&self) -> u64 {
        self.state().syncs
    }

    /// Lets a sync through, once the gate is open.
    pub(crate) fn pass(&self) {
        let mut state = self.state();
        state.syncs += 1;
        state.waiting += 1;
        while state.shut {
            let (guard, timeout) =
                self.shared.1.wait_timeout(state, PATIENCE).unwrap_or_else(PoisonError::into_inner);
            state = guard;
            // A test that has failed leaves its gate shut; the database must still be able to close.
            state.shut &= !timeout.timed_out();
        }
        state.waiting -= 1;
    }
}

/// Opens the gate when a test ends, however it ends, so that the database can close.
pub(crate) struct OpenAtEnd(pub(crate) Gate);

impl Drop for OpenAtEnd {
    fn drop(&mut self) {
        self.0.open();
    }
}

/// A device on `disk`, and its gate, open.
pub(crate) fn gated_device(disk: &SimulatedDevice) -> (Arc<HookedDevice>, Gate) {
    let gate = Gate::default();
    let device = HookedDevice::on(disk, {
        let gate = gate.clone();
        move |operation, _| match operation {
            Operation::Write(bytes) => {
                let time_per_byte = gate.state().time_per_byte;
                std::thread::sleep(time_per_byte * bytes as u32);
            }
            Operation::Sync => gate.pass(),
            Operation::Open | Operation::Read | Operation::Remove | Operation::Rename | Operation::Time => {}
        }
    });
    (device, gate)
}
