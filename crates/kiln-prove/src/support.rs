//! Randomness, replay lines, small databases, and, for the tests, budgets and a watchdog.

use std::io::Write;
use std::sync::{Arc, Mutex, PoisonError};

use kiln::device::SimulatedDevice;
use kiln::{Error, ErrorKind, Options};

/// The seed of those who name none.
pub(crate) const DEFAULT_SEED: u64 = 0x4B49_4C4E;

/// SplitMix64 (Steele, Lea and Flood, OOPSLA 2014): small, and the same everywhere.
#[derive(Clone, Debug)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Random {
        Random(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut word = self.0;
        word = (word ^ (word >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        word ^ (word >> 31)
    }

    /// A number below `bound`.
    pub(crate) fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound.max(1) as u64) as usize
    }

    /// True once in `one_in` times.
    pub(crate) fn one_in(&mut self, one_in: usize) -> bool {
        self.below(one_in) == 0
    }

    pub(crate) fn pick<'a, T>(&mut self, choices: &'a [T]) -> &'a T {
        &choices[self.below(choices.len())]
    }

    /// Bytes that no other value shares.
    pub(crate) fn bytes(&mut self, length: usize) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(length + 8);
        while bytes.len() < length {
            bytes.extend_from_slice(&self.next().to_le_bytes());
        }
        bytes.truncate(length);
        bytes
    }
}

/// The smallest database there is, on the calling thread alone: the same calls make the same device steps.
pub(crate) fn manual() -> Options {
    Options::new().background(false).segment_bytes(64 << 10).memory(0)
}

/// An independent copy of a disk, as it is seen now.
pub(crate) fn copy_of(disk: &SimulatedDevice) -> SimulatedDevice {
    disk.after_crash(&mut |_| kiln::device::Keep::Kept)
}

/// The errors that a broken disk may show as. What cannot be read is damage to whoever needs it.
pub(crate) fn is_of_broken_disk(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Lost | ErrorKind::Io | ErrorKind::NoSpace | ErrorKind::Corrupted)
}

/// Whether an error is what a power loss makes of an operation. Without one nobody is told that the disk refuses something.
pub(crate) fn is_of_power_loss(error: &Error, disk: &SimulatedDevice) -> bool {
    disk.crashed() && matches!(error.kind(), ErrorKind::Lost | ErrorKind::Io)
}

/// Whether an error says that something could not be done on a disk on which something has failed, and that nothing is lost by it.
pub(crate) fn is_of_refusal(error: &Error, disk: &SimulatedDevice) -> bool {
    let has_failed = disk.crashed() || disk.faults_fired() > 0;
    has_failed && matches!(error.kind(), ErrorKind::Io | ErrorKind::NoSpace)
}

/// Prints how to run what failed again, if the thread panics while this is alive.
#[derive(Clone, Default)]
pub(crate) struct Replay {
    line: Arc<Mutex<String>>,
}

impl Replay {
    /// From here on, the program with these arguments reproduces what happens.
    pub(crate) fn at(&self, arguments: &str) {
        self.set(format!("cargo run --release -p kiln-prove -- {arguments}"));
    }

    /// The command that reproduces what happens from here on.
    pub(crate) fn set(&self, command: String) {
        *self.line.lock().unwrap_or_else(PoisonError::into_inner) = command;
    }

    pub(crate) fn print(&self) {
        let line = self.line.lock().unwrap_or_else(PoisonError::into_inner);
        // Not by a macro: the watchdog aborts, and what it prints must not be captured.
        let _ = writeln!(std::io::stderr(), "replay: {line}");
    }
}

impl Drop for Replay {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.print();
        }
    }
}

#[cfg(all(test, not(feature = "schedules")))]
mod tests {
    use kiln::device::{Fault, FaultKind, OperationKind};

    use super::*;

    /// An error that the disk had not caused passed for one that it had.
    #[test]
    fn c8_an_error_is_the_disks_only_if_the_disk_has_failed() {
        let disk = SimulatedDevice::new(1);
        let db = manual().open_on(Arc::new(disk.clone())).unwrap();
        let map = db.map("map").unwrap();
        let fault = Fault { operation: OperationKind::Write, nth: 1, kind: FaultKind::EIO, sticky: true };
        disk.inject(fault);
        let lost = db.put(&map, "key", "value").unwrap().safe().unwrap_err();
        let refused = db.checkpoint().unwrap_err();
        let input = db.map("").unwrap_err();
        // The same errors, and a disk that has nothing to do with them.
        let sound = SimulatedDevice::new(2);
        assert!(!is_of_power_loss(&lost, &sound) && !is_of_power_loss(&lost, &disk));
        assert!(!is_of_refusal(&refused, &sound) && !is_of_refusal(&input, &disk));
        disk.crash_after(disk.steps());
        assert!(is_of_power_loss(&lost, &disk) && !is_of_power_loss(&input, &disk));
    }
}
