//! The device: the one place where Kiln meets files.
//!
//! # Purpose
//!
//! Everything above this module reads and writes through two small traits, [`Device`] (a flat directory of
//! named files) and [`DeviceFile`] (one of them). Two implementations are here: [`FileDevice`], a directory of
//! the file system, and [`SimulatedDevice`], a disk in memory that can lose, tear, corrupt and refuse, and
//! that replays exactly from its seed. The same conformance tests run over both. (A backup that is a stream has a third one, which is only written.)
//!
//! # Invariants
//!
//! - Every offset, every length and every buffer address given to [`DeviceFile::read_at`] and
//!   [`DeviceFile::write_at`] is a multiple of [`BLOCK_BYTES`]. Anything else is refused with
//!   [`InvalidInput`](io::ErrorKind::InvalidInput) by both implementations, so that code which was tested on
//!   the simulated disk also runs with direct I/O. [`AlignedBuffer`] is the buffer that satisfies this.
//! - File names are plain: no `/`, not empty, not `.` or `..`, and not the name of the lock file, `LOCK`.
//! - Errors are [`io::Error`]s whose [kind](io::Error::kind) is that of the cause (a full disk is
//!   [`StorageFull`](io::ErrorKind::StorageFull)), whose message names operation and file, and whose inner
//!   [`DeviceError`] keeps the number of the operating system's error. A device never retries what failed,
//!   except a call that a signal interrupted.
//!
//! # What is durable when
//!
//! ```text
//!  write_at, allocate, clear, truncate ──▶ volatile ──DeviceFile::sync──────▶ durable   (contents and length)
//!  create, remove, rename              ──▶ volatile ──Device::sync_directory─▶ durable  (names)
//! ```
//!
//! A volatile effect is seen by every later read at once. At a power loss each volatile effect is
//! independently kept or lost: writes in units of [`SECTOR_BYTES`], in any order, and names apart from the
//! contents they name. A new file is therefore durable only after *both* its own sync and the sync of the
//! directory. After a failed sync nothing may be assumed about what was volatile, and a later successful
//! sync proves nothing about it: operating systems report a failed write-back once and then forget the
//! data.

mod aligned;
#[cfg(test)]
mod conformance;
mod error;
mod file;
#[cfg(all(test, not(miri)))]
pub(crate) mod forked;
mod process;
mod reader_threads;
mod reads;
mod simulated;
#[cfg(test)]
pub(crate) mod somebody;
mod uring;

use std::fmt::Debug;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

pub use aligned::AlignedBuffer;
pub use error::DeviceError;
pub use file::FileDevice;
pub(crate) use process::Process;
pub use reads::{FinishedRead, QueuedRead, ReadQueue};
pub use simulated::{CrashStates, Fault, FaultKind, Keep, LossUnit, OperationKind, SimulatedDevice};

/// Alignment, in bytes, of every offset, length and buffer address of [`DeviceFile::read_at`] and
/// [`DeviceFile::write_at`].
///
/// 4096 suits every disk that Linux drives today; disks with smaller sectors accept it too.
pub const BLOCK_BYTES: usize = 4096;

/// So many reads a [`ReadQueue`] has in flight at most; more than a disk needs to be busy.
pub const READS_IN_FLIGHT_MAX: usize = 64;
/// So many queues are kept in a place where some are needed again and again, since to make one costs as much as a read: more threads than that
/// seldom have none to themselves at the same moment, and each kept one holds a descriptor and its buffers.
pub(crate) const READ_QUEUES_KEPT_MAX: usize = 16;

/// The unit, in bytes, that a disk writes atomically.
///
/// A power loss tears a write only between two such sectors. Disks with sectors of 4096 bytes promise more;
/// nothing in Kiln relies on that.
pub const SECTOR_BYTES: usize = 512;

/// Name of the file that holds the lock of a [`FileDevice`]; reserved on every device.
pub(crate) const LOCK_NAME: &str = "LOCK";

const _: () = assert!(BLOCK_BYTES.is_multiple_of(SECTOR_BYTES));

/// How [`Device::open`] opens a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpenMode {
    /// An existing file, for reading only; writing to it is an error.
    Read,
    /// An existing file, for reading and writing.
    ReadWrite,
    /// A new, empty file, for reading and writing; [`AlreadyExists`](io::ErrorKind::AlreadyExists) if there
    /// is one of that name.
    Create,
}

/// A flat directory of named files.
///
/// Operations on names take effect at once for whoever asks, and become durable with
/// [`sync_directory`](Device::sync_directory). A file that is open stays usable when its name is removed or
/// replaced; its space is freed when the last handle goes.
pub trait Device: Send + Sync + Debug {
    /// Opens the file called `name`.
    ///
    /// Creating is a change of the directory: the new name survives a power loss only after
    /// [`sync_directory`](Device::sync_directory).
    ///
    /// # Errors
    ///
    /// [`NotFound`](io::ErrorKind::NotFound) if it does not exist and `mode` is not [`OpenMode::Create`],
    /// [`AlreadyExists`](io::ErrorKind::AlreadyExists) if it does and `mode` is, and
    /// [`InvalidInput`](io::ErrorKind::InvalidInput) if the name is not a plain file name.
    fn open(&self, name: &str, mode: OpenMode) -> io::Result<Arc<dyn DeviceFile>>;

    /// Names of all files, sorted; the lock file is not among them.
    fn list(&self) -> io::Result<Vec<String>>;

    /// Names of all that is there, and be it no file that could be one of a database; the lock file is not among them.
    fn everything(&self) -> io::Result<Vec<String>> {
        self.list()
    }

    /// Removes the name of a file; durable after [`sync_directory`](Device::sync_directory).
    ///
    /// # Errors
    ///
    /// [`NotFound`](io::ErrorKind::NotFound) if there is no such file.
    fn remove(&self, name: &str) -> io::Result<()>;

    /// Renames the file `from` to `to`, replacing any file of that name in one step: nobody ever sees
    /// neither of them under `to`. Durable after [`sync_directory`](Device::sync_directory); a crash before
    /// that leaves the directory either as it was or as it becomes. The contents of the file are not
    /// synced.
    ///
    /// # Errors
    ///
    /// [`NotFound`](io::ErrorKind::NotFound) if `from` does not exist.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;

    /// Makes every earlier creation, removal and renaming durable. It does not sync any file's contents.
    fn sync_directory(&self) -> io::Result<()>;

    /// Takes exclusive ownership of the directory until the returned guard is dropped or the process ends.
    ///
    /// # Errors
    ///
    /// [`WouldBlock`](io::ErrorKind::WouldBlock), with a message that names the holder's process, if the
    /// directory is owned already, be it by another process or by this one.
    fn lock(&self) -> io::Result<Box<dyn DeviceLock>>;

    /// Random bytes, for a new database's identity. A simulated device draws them from its seed.
    fn random(&self) -> io::Result<[u8; 32]>;

    /// Microseconds since 1970. Rows [expire](crate::Expiry) by it, and as of it a snapshot that has a name is read; so it has to go on as the clock on the wall does, at the
    /// rate of that also where it is set back. A simulated device counts its steps instead.
    fn time_us(&self) -> u64;

    /// How error messages should call the file `name`: its path, or `simulated:` and its name.
    fn describe(&self, name: &str) -> String;

    /// A new queue for reads of this device's files. Unless a device has something better, its reads are done one after the
    /// other.
    fn read_queue(&self) -> Box<dyn ReadQueue> {
        Box::new(reads::ReadsInTurn::default())
    }
}

/// An open file of a [`Device`].
///
/// All methods take `&self` and may be called from many threads at once; operations that overlap in the
/// file happen in no particular order.
pub trait DeviceFile: Send + Sync + Debug {
    /// Reads into `buffer` from `offset` on; returns the number of bytes read, which is less than the
    /// buffer's length only where the file ends.
    ///
    /// # Errors
    ///
    /// [`InvalidInput`](io::ErrorKind::InvalidInput) if the offset, or the address or length of the buffer,
    /// is not a multiple of [`BLOCK_BYTES`].
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize>;

    /// Writes all of `buffer` at `offset`, and lengthens the file where needed. Nothing of it is durable
    /// before [`sync`](DeviceFile::sync); until then a crash may keep any of its sectors and lose the
    /// others.
    ///
    /// # Errors
    ///
    /// As for [`read_at`](DeviceFile::read_at); [`StorageFull`](io::ErrorKind::StorageFull) if the disk is
    /// full, [`WriteZero`](io::ErrorKind::WriteZero) if the system stopped short without saying why. After
    /// any error, any part of the buffer may have been written.
    fn write_at(&self, buffer: &[u8], offset: u64) -> io::Result<()>;

    /// Makes every completed write to this file durable, with the length that is needed to read it
    /// (`fdatasync`). The file's *name* is not covered: see [`Device::sync_directory`].
    ///
    /// # Errors
    ///
    /// After an error, what had not been durable may be lost although reads still show it, and a later
    /// `sync` that succeeds does not bring it back. The caller must treat all of it as lost.
    fn sync(&self) -> io::Result<()>;

    /// The file's present length in bytes, durable or not.
    fn size(&self) -> io::Result<u64>;

    /// Reserves space on the disk for the first `bytes` bytes, so that writing there cannot find the disk
    /// full, and lengthens the file to at least `bytes`. Existing contents stay; the new part reads as
    /// zeros. The new length is durable after [`sync`](DeviceFile::sync).
    ///
    /// # Errors
    ///
    /// [`StorageFull`](io::ErrorKind::StorageFull) if there is not enough space. The file may be longer then, and have taken what space there was.
    fn allocate(&self, bytes: u64) -> io::Result<()>;

    /// Makes the first `bytes` bytes zeros whose space is reserved, and lengthens the file to at least `bytes`. What was
    /// there is gone after [`sync`](DeviceFile::sync); until then a crash may keep any of its sectors. Where the file
    /// system can, it notes that they are zero and writes nothing.
    ///
    /// # Errors
    ///
    /// As for [`allocate`](DeviceFile::allocate); [`InvalidInput`](io::ErrorKind::InvalidInput) if `bytes` is not a
    /// multiple of [`BLOCK_BYTES`].
    fn clear(&self, bytes: u64) -> io::Result<()>;

    /// Sets the file's length: cuts off what lies beyond, or appends a hole that reads as zeros and has no
    /// space reserved. Durable after [`sync`](DeviceFile::sync).
    fn truncate(&self, bytes: u64) -> io::Result<()>;

    /// The operating system's file behind it, if there is one to which reads can be given without waiting.
    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

/// Exclusive ownership of a device, from [`Device::lock`]; dropping it gives the device back.
pub trait DeviceLock: Send + Sync + Debug {
    /// Gives the device back, and takes away what owning it has left there: for those who leave nothing else. What cannot be taken
    /// away stays.
    fn give_up(self: Box<Self>) {}
}

/// What is written at once where zeros are written.
const ZEROS_BYTES: usize = 1 << 20;

/// Writes zeros from `start`, where a block begins, to the end of the block that holds the byte before `end`.
pub(crate) fn write_zeros(file: &dyn DeviceFile, start: u64, end: u64) -> io::Result<()> {
    let bytes_at = |offset: u64| usize::try_from(end - offset).unwrap_or(ZEROS_BYTES).min(ZEROS_BYTES);
    let zeros = AlignedBuffer::new(bytes_at(start));
    let mut offset = start;
    while offset < end {
        let part = &zeros[..bytes_at(offset).next_multiple_of(BLOCK_BYTES)];
        file.write_at(part, offset)?;
        offset += part.len() as u64;
    }
    Ok(())
}

/// Refuses what direct I/O would refuse, so that no implementation is more lenient than another.
fn check_aligned(buffer: &[u8], offset: u64) -> io::Result<()> {
    let block = BLOCK_BYTES;
    let misaligned = if !buffer.len().is_multiple_of(block) {
        format!("length {}", buffer.len())
    } else if !offset.is_multiple_of(block as u64) {
        format!("offset {offset}")
    } else if !buffer.is_empty() && !buffer.as_ptr().addr().is_multiple_of(block) {
        format!("buffer address {:p}", buffer.as_ptr())
    } else {
        return check_length(offset.saturating_add(buffer.len() as u64));
    };
    Err(io::Error::new(
        io::ErrorKind::InvalidInput,
        format!("{misaligned} is not a multiple of {block} bytes"),
    ))
}

/// Refuses what whole blocks of zeros cannot make.
fn check_whole_blocks(bytes: u64) -> io::Result<()> {
    if !bytes.is_multiple_of(BLOCK_BYTES as u64) {
        let what = format!("length {bytes} is not a multiple of {BLOCK_BYTES} bytes");
        return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
    }
    check_length(bytes)
}

/// Refuses positions beyond what the operating system can address; above this check their sum cannot
/// overflow.
fn check_length(bytes: u64) -> io::Result<()> {
    if bytes <= i64::MAX as u64 {
        Ok(())
    } else {
        Err(io::Error::new(io::ErrorKind::InvalidInput, format!("no file can have {bytes} bytes")))
    }
}

/// Refuses names that would leave the directory, or that are not files of the database.
pub(crate) fn check_name(name: &str) -> io::Result<()> {
    let refused = if name.is_empty() || name == "." || name == ".." || name.contains(['/', '\0']) {
        "is not a plain file name"
    } else if name == LOCK_NAME {
        "is reserved for the lock"
    } else {
        return Ok(());
    };
    Err(io::Error::new(io::ErrorKind::InvalidInput, format!("{name:?} {refused}")))
}
