//! A disk in memory that fails on demand.
//!
//! # Purpose
//!
//! Tests run the whole engine on a [`SimulatedDevice`], and then ask what a power loss could have left, or
//! make the n-th operation fail, or corrupt what is stored. Nothing here depends on time, on addresses or
//! on the order of a hash map: the same seed and the same operations give the same outcome. (Operations of
//! concurrent threads come in the order in which they get the disk's one mutex; a test that must replay
//! runs a single thread.)
//!
//! # Model
//!
//! ```text
//!             operations                     sync, sync_directory
//!  caller ──────────────────▶ pending changes ──────────────────▶ durable state
//!     ▲                            │                                   │
//!     └──── volatile state ◀───────┘ any subset                        │
//!            (reads)               └──────────▶ a crash state ◀────────┘
//! ```
//!
//! The model is stricter than common file systems: no order is kept without a sync, a file's size may
//! become durable without the data or the data without the size, and nothing makes a new name durable
//! except [`sync_directory`](Device::sync_directory). In one way it is kinder: a sector that is being
//! written is old or new, never unreadable.

mod content;
mod crash;
mod disk;
mod faults;
mod random;
mod reads;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::sync::Arc;

use rustix::io::Errno;

pub use crash::{CrashStates, Keep, LossUnit};
pub use faults::{Fault, FaultKind, OperationKind};

use super::{
    Device, DeviceError, DeviceFile, DeviceLock, OpenMode, ReadQueue, check_aligned, check_length,
    check_name, check_whole_blocks,
};
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use crate::sync::{Mutex, MutexGuard, thread};
use content::Content;
use disk::{Disk, Inode, Names};
use random::Random;

/// A [`Device`] in memory, for tests: it keeps track of what is durable, and can crash, fail and corrupt.
///
/// Clones are handles to the same disk.
///
/// ```
/// # use kiln::device::{AlignedBuffer, Device, OpenMode, SimulatedDevice};
/// # fn main() -> std::io::Result<()> {
/// let disk = SimulatedDevice::new(7);
/// let file = disk.open("data", OpenMode::Create)?;
/// file.write_at(&AlignedBuffer::from(&[1; 4096][..]), 0)?;
/// file.sync()?;
/// // The file was synced but the directory was not: its name is the one thing that a crash can still lose.
/// assert_eq!(disk.pending_sectors(), 1);
/// assert_eq!(disk.after_crash_mask(0).list()?.len(), 0);
/// assert_eq!(disk.after_crash_mask(1).list()?.len(), 1);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct SimulatedDevice {
    shared: Arc<Shared>,
}

struct Shared {
    disk: Mutex<Disk>,
    locked: AtomicBool,
    /// The time, in microseconds, once it was set; 0 before.
    time_us: AtomicU64,
}

impl SimulatedDevice {
    /// An empty disk without limit of capacity. `seed` decides whatever faults leave to chance.
    pub fn new(seed: u64) -> SimulatedDevice {
        SimulatedDevice::from_disk(Disk::new(seed, BTreeMap::new(), Names::new()))
    }

    fn from_disk(disk: Disk) -> SimulatedDevice {
        SimulatedDevice {
            shared: Arc::new(Shared {
                disk: Mutex::new(disk),
                locked: AtomicBool::new(false),
                time_us: AtomicU64::new(0),
            }),
        }
    }

    /// Sets the time, in milliseconds since 1970: it stands still from now on, until it is set again. Before, it is the number of steps in
    /// microseconds.
    pub fn set_time_ms(&self, time_ms: u64) {
        self.shared.time_us.store(time_ms.saturating_mul(1000), Ordering::SeqCst);
    }

    /// The number of steps so far. A step is an operation that may change the disk (write, sync, allocate,
    /// truncate, create, remove, rename, sync of the directory), whether or not it succeeds.
    pub fn steps(&self) -> u64 {
        self.shared.disk.lock().steps
    }

    /// Switches the machine off once `step` steps have been taken: from then on every operation, reads
    /// included, fails with "simulated crash" (kind [`Other`](io::ErrorKind::Other)) and has no effect.
    /// Steps are counted from the device's beginning, so a number that has passed already takes effect at
    /// once.
    pub fn crash_after(&self, step: u64) {
        self.shared.disk.lock().crash_after = Some(step);
    }

    /// Whether the machine is off.
    pub fn crashed(&self) -> bool {
        self.shared.disk.lock().crashed()
    }

    /// The number of loss units at present: sectors of un-synced writes, un-synced sizes, and un-synced
    /// changes of names.
    pub fn pending_sectors(&self) -> usize {
        crash::loss_units(&self.shared.disk.lock())
    }

    /// All disks that a power loss at this moment may leave. Taking them does not disturb the device, and
    /// works when it has crashed, too.
    pub fn crash_states(&self) -> CrashStates {
        CrashStates::of(&self.shared.disk.lock())
    }

    /// Calls `watcher` before every step from now on, with the number of steps so far and a way to take all disks that a power
    /// loss at that moment may leave. The watcher must not use the device.
    ///
    /// So one run shows what a power loss at each of its steps leaves.
    pub fn watch_steps(&self, watcher: impl FnMut(u64, &dyn Fn() -> CrashStates) + Send + 'static) {
        self.shared.disk.lock().watched.0 = Some(Box::new(watcher));
    }

    /// What tells disks apart that differ in what reads see: equal for two disks on which the same files hold the same bytes.
    pub fn fingerprint(&self) -> u128 {
        self.shared.disk.lock().fingerprint()
    }

    /// See [`CrashStates::after_crash`].
    pub fn after_crash(&self, choice: &mut dyn FnMut(LossUnit<'_>) -> Keep) -> SimulatedDevice {
        self.crash_states().after_crash(choice)
    }

    /// See [`CrashStates::after_crash_seeded`].
    pub fn after_crash_seeded(&self, seed: u64) -> SimulatedDevice {
        self.crash_states().after_crash_seeded(seed)
    }

    /// See [`CrashStates::after_crash_mask`].
    ///
    /// # Panics
    ///
    /// If there are more than 63 loss units.
    pub fn after_crash_mask(&self, mask: u64) -> SimulatedDevice {
        self.crash_states().after_crash_mask(mask)
    }

    /// Makes a later operation go wrong.
    pub fn inject(&self, fault: Fault) {
        self.shared.disk.lock().faults.arm(fault);
    }

    /// Takes back all faults that have not struck, and the sticky ones.
    pub fn clear_faults(&self) {
        self.shared.disk.lock().faults.clear();
    }

    /// How many operations an injected fault has struck so far.
    pub fn faults_fired(&self) -> u64 {
        self.shared.disk.lock().faults.fired()
    }

    /// Limits the disk to so many bytes in total, or lifts the limit. A file uses its size in whole blocks,
    /// holes included. Beyond the limit allocating and lengthening fail with
    /// [`StorageFull`](io::ErrorKind::StorageFull), after a write has stored, or an allocation taken, the
    /// blocks that still fit; overwriting goes on.
    pub fn set_capacity(&self, bytes: Option<u64>) {
        self.shared.disk.lock().capacity = bytes;
    }

    /// Limits the disk so that only `bytes` more than it uses now will fit.
    pub fn fail_after_bytes(&self, bytes: u64) {
        let mut disk = self.shared.disk.lock();
        disk.capacity = Some(disk.used().saturating_add(bytes));
    }

    /// Bytes in use, as [`set_capacity`](SimulatedDevice::set_capacity) counts them.
    pub fn used_bytes(&self) -> u64 {
        self.shared.disk.lock().used()
    }
}

/// Damage to what is stored, volatile and durable alike. It works on a crashed device, and is not an
/// operation: it takes no step and meets no fault.
impl SimulatedDevice {
    /// Inverts bit `bit_offset` (bit `bit_offset % 8` of byte `bit_offset / 8`); nothing happens beyond the
    /// file's end.
    ///
    /// # Panics
    ///
    /// If there is no such file.
    pub fn flip_bit(&self, name: &str, bit_offset: u64) {
        self.damage(name, |content| content.flip_bit(bit_offset));
    }

    /// Replaces a part of a file by zeros, as far as the part lies within it.
    ///
    /// # Panics
    ///
    /// If there is no such file.
    pub fn zero(&self, name: &str, offset: u64, length: u64) {
        self.damage(name, |content| content.zero(offset, length));
    }

    /// A file's contents as reads see them.
    ///
    /// # Panics
    ///
    /// If there is no such file.
    pub fn bytes(&self, name: &str) -> Vec<u8> {
        let mut disk = self.shared.disk.lock();
        let content = Arc::clone(&existing(&mut disk, name).volatile);
        let mut bytes = vec![0; usize::try_from(content.size()).expect("the file fits in memory")];
        content.read(&mut bytes, 0);
        bytes
    }

    /// Replaces a file's contents, size included, durably; makes the file, and its name durable, if there
    /// is none.
    pub fn set_bytes(&self, name: &str, bytes: impl AsRef<[u8]>) {
        let bytes = bytes.as_ref();
        let mut content = Content::default();
        content.grow(bytes.len() as u64);
        content.write(bytes, 0);
        let content = Arc::new(content);
        let mut disk = self.shared.disk.lock();
        if disk.find(name).is_ok() {
            let file = existing(&mut disk, name);
            (file.volatile, file.durable) = (Arc::clone(&content), content);
            file.pending.clear();
        } else {
            let name = Arc::from(name);
            let inode = disk.add_file(&name, content);
            disk.durable_names.insert(name, inode);
        }
    }

    /// Makes a file disappear, durably.
    ///
    /// # Panics
    ///
    /// If there is no such file.
    pub fn remove_file(&self, name: &str) {
        let mut disk = self.shared.disk.lock();
        let inode = disk.find(name).unwrap_or_else(|_| panic!("no simulated file {name:?} to remove"));
        disk.names.remove(name);
        disk.durable_names.retain(|_, durable| *durable != inode);
        disk.pending_names.retain(|change| change.inode() != inode);
        disk.collect();
    }

    fn damage(&self, name: &str, damage: impl Fn(&mut Content)) {
        let mut disk = self.shared.disk.lock();
        let file = existing(&mut disk, name);
        damage(Arc::make_mut(&mut file.volatile));
        damage(Arc::make_mut(&mut file.durable));
    }
}

/// A test that damages a file which does not exist is itself wrong, hence the panic.
fn existing<'a>(disk: &'a mut Disk, name: &str) -> &'a mut disk::FileState {
    let file = disk.find(name).and_then(|inode| disk.file(inode));
    file.unwrap_or_else(|_| panic!("no simulated file {name:?}"))
}

impl Shared {
    /// Begins an operation. The disk stays locked for it; a fault that the operation itself must act out
    /// comes along, a delay is over already. Panics if that is the fault.
    fn begin(&self, operation: OperationKind) -> io::Result<(MutexGuard<'_, Disk>, Option<FaultKind>)> {
        let mut disk = self.disk.lock();
        let fault = disk.begin(operation)?;
        if let Some(FaultKind::Delay(duration)) = fault {
            MutexGuard::unlocked(&mut disk, || thread::sleep(duration));
            disk.check_power()?;
            return Ok((disk, None));
        }
        assert_ne!(fault, Some(FaultKind::Panic), "the device was told to panic");
        Ok((disk, fault))
    }

    /// Runs an operation that returns something, and that a fault can only make fail.
    fn ask<T>(
        &self,
        operation: OperationKind,
        act: impl FnOnce(&mut Disk) -> io::Result<T>,
    ) -> io::Result<T> {
        match self.begin(operation)? {
            (mut disk, None) => act(&mut disk),
            (_, Some(fault)) => Err(fault.error()),
        }
    }

    /// Runs an operation that returns nothing, so that a fault may make it do nothing too; other faults are
    /// passed on.
    fn change(
        &self,
        operation: OperationKind,
        act: impl FnOnce(&mut Disk, Option<FaultKind>) -> io::Result<()>,
    ) -> io::Result<()> {
        match self.begin(operation)? {
            (_, Some(FaultKind::Ignored)) => Ok(()),
            (mut disk, fault) => act(&mut disk, fault),
        }
    }

    /// As [`change`](Shared::change), for operations that a fault can only make fail or do nothing.
    fn change_whole(
        &self,
        operation: OperationKind,
        act: impl FnOnce(&mut Disk) -> io::Result<()>,
    ) -> io::Result<()> {
        self.change(operation, |disk, fault| match fault {
            None => act(disk),
            Some(fault) => Err(fault.error()),
        })
    }
}

/// How messages call a file, or with an empty name the whole disk.
fn shown(name: &str) -> String {
    format!("simulated:{name}")
}

fn failed(operation: &'static str, name: &str) -> impl FnOnce(io::Error) -> io::Error {
    move |cause| DeviceError::wrap(operation, shown(name), cause)
}

impl Device for SimulatedDevice {
    fn open(&self, name: &str, mode: OpenMode) -> io::Result<Arc<dyn DeviceFile>> {
        check_name(name)?;
        let with_handle = |disk: &mut Disk, inode: Inode| {
            disk.file(inode)?.handles += 1;
            Ok(inode)
        };
        let inode = if mode == OpenMode::Create {
            self.shared
                .ask(OperationKind::Create, |disk| {
                    let inode = disk.create(name)?;
                    with_handle(disk, inode)
                })
                .map_err(failed("create", name))?
        } else {
            self.shared
                .ask(OperationKind::Open, |disk| {
                    let inode = disk.find(name)?;
                    with_handle(disk, inode)
                })
                .map_err(failed("open", name))?
        };
        let writable = mode != OpenMode::Read;
        Ok(Arc::new(SimulatedFile {
            shared: Arc::clone(&self.shared),
            inode,
            name: name.to_owned(),
            writable,
        }))
    }

    fn list(&self) -> io::Result<Vec<String>> {
        let names = |disk: &mut Disk| Ok(disk.names.keys().map(|name| name.to_string()).collect());
        self.shared.ask(OperationKind::List, names).map_err(failed("list", ""))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        check_name(name)?;
        self.shared
            .change_whole(OperationKind::Remove, |disk| disk.remove(name))
            .map_err(failed("remove", name))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        check_name(from)?;
        check_name(to)?;
        self.shared
            .change_whole(OperationKind::Rename, |disk| disk.rename(from, to))
            .map_err(failed("rename", from))
    }

    fn sync_directory(&self) -> io::Result<()> {
        self.shared
            .change(OperationKind::SyncDirectory, Disk::sync_directory)
            .map_err(failed("sync directory", ""))
    }

    fn lock(&self) -> io::Result<Box<dyn DeviceLock>> {
        self.shared.disk.lock().check_power().map_err(failed("lock", ""))?;
        if self.shared.locked.swap(true, Ordering::Acquire) {
            let process = std::process::id();
            let message = format!("database {} is already open by process {process}", shown(""));
            return Err(io::Error::new(io::ErrorKind::WouldBlock, message));
        }
        Ok(Box::new(SimulatedLock { shared: Arc::clone(&self.shared) }))
    }

    fn random(&self) -> io::Result<[u8; 32]> {
        let mut random = Random::new(self.shared.disk.lock().seed);
        let mut bytes = [0; 32];
        bytes.as_chunks_mut::<8>().0.iter_mut().for_each(|chunk| *chunk = random.next().to_le_bytes());
        Ok(bytes)
    }

    fn time_us(&self) -> u64 {
        match self.shared.time_us.load(Ordering::SeqCst) {
            0 => self.steps(),
            set => set,
        }
    }

    fn describe(&self, name: &str) -> String {
        shown(name)
    }

    fn read_queue(&self) -> Box<dyn ReadQueue> {
        Box::new(reads::ReadsInAnyOrder::new(self.shared.disk.lock().seed))
    }
}

impl fmt::Debug for SimulatedDevice {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let disk = self.shared.disk.lock();
        let mut fields = formatter.debug_struct("SimulatedDevice");
        fields.field("seed", &disk.seed).field("steps", &disk.steps);
        fields.field("names", &disk.names.keys().collect::<Vec<_>>());
        fields.field("pending", &crash::loss_units(&disk)).finish_non_exhaustive()
    }
}

/// Ownership of a simulated disk.
struct SimulatedLock {
    shared: Arc<Shared>,
}

impl DeviceLock for SimulatedLock {}

impl Drop for SimulatedLock {
    fn drop(&mut self) {
        self.shared.locked.store(false, Ordering::Release);
    }
}

impl fmt::Debug for SimulatedLock {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("SimulatedLock")
    }
}

/// An open file of a simulated disk.
struct SimulatedFile {
    shared: Arc<Shared>,
    inode: Inode,
    /// The name under which it was opened.
    name: String,
    writable: bool,
}

impl SimulatedFile {
    fn failed(&self, operation: &'static str) -> impl FnOnce(io::Error) -> io::Error {
        failed(operation, &self.name)
    }

    fn check_writable(&self) -> io::Result<()> {
        if self.writable { Ok(()) } else { Err(Errno::BADF.into()) }
    }

    fn change_whole(
        &self,
        name: &'static str,
        operation: OperationKind,
        act: impl FnOnce(&mut Disk) -> io::Result<()>,
    ) -> io::Result<()> {
        self.check_writable()
            .and_then(|()| self.shared.change_whole(operation, act))
            .map_err(self.failed(name))
    }
}

impl DeviceFile for SimulatedFile {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        check_aligned(buffer, offset)?;
        self.shared
            .begin(OperationKind::Read)
            .and_then(|(mut disk, fault)| disk.read(self.inode, buffer, offset, fault))
            .map_err(self.failed("read"))
    }

    fn write_at(&self, buffer: &[u8], offset: u64) -> io::Result<()> {
        check_aligned(buffer, offset)?;
        let write = |disk: &mut Disk, fault| disk.write(self.inode, buffer, offset, fault);
        self.check_writable()
            .and_then(|()| self.shared.change(OperationKind::Write, write))
            .map_err(self.failed("write"))
    }

    fn sync(&self) -> io::Result<()> {
        self.shared
            .change(OperationKind::Sync, |disk, fault| disk.sync(self.inode, fault))
            .map_err(self.failed("sync"))
    }

    fn size(&self) -> io::Result<u64> {
        self.shared
            .ask(OperationKind::Size, |disk| Ok(disk.file(self.inode)?.volatile.size()))
            .map_err(self.failed("read the size of"))
    }

    fn allocate(&self, bytes: u64) -> io::Result<()> {
        check_length(bytes)?;
        self.change_whole("allocate", OperationKind::Allocate, |disk| disk.allocate(self.inode, bytes))
    }

    fn clear(&self, bytes: u64) -> io::Result<()> {
        check_whole_blocks(bytes)?;
        self.change_whole("clear", OperationKind::Allocate, |disk| disk.clear(self.inode, bytes))
    }

    fn truncate(&self, bytes: u64) -> io::Result<()> {
        check_length(bytes)?;
        self.change_whole("truncate", OperationKind::Truncate, |disk| disk.truncate(self.inode, bytes))
    }
}

impl Drop for SimulatedFile {
    fn drop(&mut self) {
        self.shared.disk.lock().close(self.inode);
    }
}

impl fmt::Debug for SimulatedFile {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("SimulatedFile").field("name", &self.name).finish_non_exhaustive()
    }
}
