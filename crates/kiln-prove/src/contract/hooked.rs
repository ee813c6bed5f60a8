//! A device that has something happen before operations on its files, and passes everything on to a simulated disk.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::{fmt, io};

use kiln::device::{Device, DeviceFile, DeviceLock, OpenMode, SimulatedDevice};

/// What happens before an operation on a file of this name.
type Hook = Arc<dyn Fn(Operation, &str) + Send + Sync>;

/// The operations that a hook is told of.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Operation {
    Open,
    Read,
    /// Of so many bytes.
    Write(usize),
    Sync,
    Remove,
    Rename,
    /// The clock is read, which is no file's.
    Time,
}

/// See the module's documentation.
pub(crate) struct HookedDevice {
    disk: SimulatedDevice,
    hook: Hook,
}

impl HookedDevice {
    /// A device on `disk`; `hook` runs before each operation on a file, and is told the file's name.
    pub(crate) fn on(
        disk: &SimulatedDevice,
        hook: impl Fn(Operation, &str) + Send + Sync + 'static,
    ) -> Arc<HookedDevice> {
        Arc::new(HookedDevice { disk: disk.clone(), hook: Arc::new(hook) })
    }

    /// A device on `disk`, and how many operations there were so far that count.
    pub(crate) fn counting(
        disk: &SimulatedDevice,
        counts: impl Fn(Operation, &str) -> bool + Send + Sync + 'static,
    ) -> (Arc<HookedDevice>, Arc<AtomicU64>) {
        let count = Arc::new(AtomicU64::new(0));
        let counted = count.clone();
        let hook = move |operation, name: &str| {
            counted.fetch_add(counts(operation, name).into(), Ordering::SeqCst);
        };
        (HookedDevice::on(disk, hook), count)
    }
}

struct HookedFile {
    file: Arc<dyn DeviceFile>,
    name: String,
    hook: Hook,
}

impl fmt::Debug for HookedDevice {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("HookedDevice")
    }
}

impl fmt::Debug for HookedFile {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "HookedFile({})", self.name)
    }
}

impl Device for HookedDevice {
    fn open(&self, name: &str, mode: OpenMode) -> io::Result<Arc<dyn DeviceFile>> {
        (self.hook)(Operation::Open, name);
        let file = self.disk.open(name, mode)?;
        Ok(Arc::new(HookedFile { file, name: name.to_owned(), hook: self.hook.clone() }))
    }

    fn list(&self) -> io::Result<Vec<String>> {
        self.disk.list()
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        (self.hook)(Operation::Remove, name);
        self.disk.remove(name)
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        (self.hook)(Operation::Rename, from);
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
        (self.hook)(Operation::Time, "");
        self.disk.time_us()
    }

    fn describe(&self, name: &str) -> String {
        self.disk.describe(name)
    }
}

impl DeviceFile for HookedFile {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        (self.hook)(Operation::Read, &self.name);
        self.file.read_at(buffer, offset)
    }

    fn write_at(&self, buffer: &[u8], offset: u64) -> io::Result<()> {
        (self.hook)(Operation::Write(buffer.len()), &self.name);
        self.file.write_at(buffer, offset)
    }

    fn sync(&self) -> io::Result<()> {
        (self.hook)(Operation::Sync, &self.name);
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
