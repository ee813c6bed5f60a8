//! A device whose syncs can be held: a stuck disk without any clock.
//!
//! [`GatedDevice`] passes everything on to a simulated disk. While the gate is shut, a sync of a file waits at it,
//! and tests can wait until one does. So "while the device is busy" is a state and not a guess about time. And it can be
//! made slow: then it takes at least so long for every byte written.

use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use kiln::device::{Device, DeviceFile, DeviceLock, OpenMode, SimulatedDevice};

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
        eventually("a sync at the gate", || self.state().waiting > 0);
    }

    /// Has writes take at least so long for each byte.
    pub(crate) fn slow_down(&self, time_per_byte: Duration) {
        self.state().time_per_byte = time_per_byte;
    }

    /// The syncs that have come so far, those that wait included.
    pub(crate) fn syncs(&self) -> u64 {
        self.state().syncs
    }

    fn pass(&self) {
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

/// See the module's documentation.
#[derive(Debug)]
pub(crate) struct GatedDevice {
    disk: SimulatedDevice,
    gate: Gate,
}

impl GatedDevice {
    /// A device on `disk`, and its gate, open.
    pub(crate) fn new(disk: &SimulatedDevice) -> (Arc<GatedDevice>, Gate) {
        let gate = Gate::default();
        (Arc::new(GatedDevice { disk: disk.clone(), gate: gate.clone() }), gate)
    }
}

impl Device for GatedDevice {
    fn open(&self, name: &str, mode: OpenMode) -> io::Result<Arc<dyn DeviceFile>> {
        Ok(Arc::new(GatedFile { file: self.disk.open(name, mode)?, gate: self.gate.clone() }))
    }

    fn list(&self) -> io::Result<Vec<String>> {
        self.disk.list()
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.disk.remove(name)
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.disk.rename(from, to)
    }

    fn sync_directory(&self) -> io::Result<()> {
        self.disk.sync_directory()
    }

    fn lock(&self) -> io::Result<Box<dyn DeviceLock>> {
        self.disk.lock()
    }

    fn random(&self) -> io::Result<[u8; 32]> {
        self.disk.random()
    }

    fn time_us(&self) -> u64 {
        self.disk.time_us()
    }

    fn describe(&self, name: &str) -> String {
        self.disk.describe(name)
    }
}

#[derive(Debug)]
struct GatedFile {
    file: Arc<dyn DeviceFile>,
    gate: Gate,
}

impl DeviceFile for GatedFile {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        self.file.read_at(buffer, offset)
    }

    fn write_at(&self, buffer: &[u8], offset: u64) -> io::Result<()> {
        let time_per_byte = self.gate.state().time_per_byte;
        std::thread::sleep(time_per_byte * buffer.len() as u32);
        self.file.write_at(buffer, offset)
    }

    fn sync(&self) -> io::Result<()> {
        self.gate.pass();
        self.file.sync()
    }

    fn size(&self) -> io::Result<u64> {
        self.file.size()
    }

    fn allocate(&self, bytes: u64) -> io::Result<()> {
        self.file.allocate(bytes)
    }

    fn clear(&self, bytes: u64) -> io::Result<()> {
        self.file.clear(bytes)
    }

    fn truncate(&self, bytes: u64) -> io::Result<()> {
        self.file.truncate(bytes)
    }
}
