//! A file system for the real server over a simulated disk, which knows what a power loss may take.
//!
//! ```text
//!  kiln serve ──system calls──▶ kernel ──FUSE──▶ Layer ──▶ SimulatedDevice   volatile, held back, durable
//! ```
//!
//! Every write, length and name goes to the simulated disk as it comes, and is held back there until it is synced; what a
//! crash may leave is decided where `kiln-prove crash` has it decided, too. The kernel keeps no data of its own: all files are
//! opened for direct I/O.
//!
//! When the disk has crashed nobody gets an answer any more, as from a machine without power, until
//! [`Power::answer_the_dead`] says that whoever has asked was killed.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, UNIX_EPOCH};

use fuser::{
    Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo, LockOwner, OpenFlags,
    RenameFlags, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory, ReplyEmpty, ReplyEntry, ReplyOpen,
    ReplyWrite, Request, WriteFlags,
};
use kiln::device::{AlignedBuffer, BLOCK_BYTES, Device, DeviceError, DeviceFile, OpenMode, OperationKind};
use rustix::fs::FallocateFlags;

use super::power::Power;
use super::volume::{DATABASE, Volume};

/// The lock file. Locking itself is up to the kernel.
const LOCK: &str = "LOCK";

const ROOT_NODE: u64 = 1;
const DATABASE_NODE: u64 = 2;
const LOCK_NODE: u64 = 3;
const FIRST_FILE_NODE: u64 = 16;

/// Nobody else changes names, so that the kernel may remember them; lengths it asks for.
const NAMES_LIVE: Duration = Duration::from_secs(1 << 20);
const ATTRIBUTES_LIVE: Duration = Duration::ZERO;

/// The file system.
pub(super) struct Layer {
    volume: Volume,
    power: Arc<Power>,
    /// The files that the kernel knows, by node. A file that was removed lives on as long as it is known.
    files: Mutex<BTreeMap<u64, Arc<dyn DeviceFile>>>,
    /// Open listings of directories, as they were when they were opened.
    listings: Mutex<BTreeMap<u64, Vec<(FileType, String)>>>,
    /// The next number for a file or a listing.
    next: AtomicU64,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn errno(error: &io::Error) -> Errno {
    match DeviceError::of(error).and_then(DeviceError::raw_os_error).or(error.raw_os_error()) {
        Some(number) => Errno::from_i32(number),
        None if error.kind() == io::ErrorKind::InvalidInput => Errno::EINVAL,
        None => Errno::EIO,
    }
}

fn not_found() -> io::Error {
    rustix::io::Errno::NOENT.into()
}

fn refused() -> io::Error {
    rustix::io::Errno::OPNOTSUPP.into()
}

/// Names that are not UTF-8 are nobody's.
fn text(name: &OsStr) -> io::Result<&str> {
    name.to_str().ok_or_else(not_found)
}

fn attributes(node: u64, kind: FileType, size: u64) -> FileAttr {
    FileAttr {
        ino: INodeNo(node),
        size,
        blocks: size.div_ceil(512),
        atime: UNIX_EPOCH,
        mtime: UNIX_EPOCH,
        ctime: UNIX_EPOCH,
        crtime: UNIX_EPOCH,
        kind,
        perm: if kind == FileType::Directory { 0o755 } else { 0o644 },
        nlink: 1,
        uid: rustix::process::getuid().as_raw(),
        gid: rustix::process::getgid().as_raw(),
        rdev: 0,
        blksize: BLOCK_BYTES as u32,
        flags: 0,
    }
}

impl Layer {
    pub(super) fn new(volume: Volume, power: Arc<Power>) -> Layer {
        let next = AtomicU64::new(FIRST_FILE_NODE);
        Layer { volume, power, files: Mutex::default(), listings: Mutex::default(), next }
    }

    /// Does something, if there is power.
    fn act<T>(&self, kind: OperationKind, act: impl FnOnce() -> io::Result<T>) -> Result<T, Errno> {
        self.power.act(kind, act).map_err(|error| errno(&error))
    }

    fn number(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    fn file(&self, node: INodeNo) -> io::Result<Arc<dyn DeviceFile>> {
        lock(&self.files).get(&node.0).cloned().ok_or_else(not_found)
    }

    /// Makes a file known to the kernel.
    fn add(&self, file: Arc<dyn DeviceFile>) -> io::Result<FileAttr> {
        let (node, size) = (self.number(), file.size()?);
        lock(&self.files).insert(node, file);
        Ok(attributes(node, FileType::RegularFile, size))
    }

    fn attributes_of(&self, node: INodeNo) -> io::Result<FileAttr> {
        match node.0 {
            ROOT_NODE | DATABASE_NODE => Ok(attributes(node.0, FileType::Directory, 0)),
            LOCK_NODE => {
                let size = lock(&self.volume.lock).as_ref().map_or(0, Vec::len);
                Ok(attributes(LOCK_NODE, FileType::RegularFile, size as u64))
            }
            _ => Ok(attributes(node.0, FileType::RegularFile, self.file(node)?.size()?)),
        }
    }

    fn find(&self, parent: INodeNo, name: &str) -> io::Result<FileAttr> {
        match (parent.0, name) {
            (ROOT_NODE, DATABASE) if self.volume.has_database() => self.attributes_of(INodeNo(DATABASE_NODE)),
            (DATABASE_NODE, LOCK) if lock(&self.volume.lock).is_some() => {
                self.attributes_of(INodeNo(LOCK_NODE))
            }
            (DATABASE_NODE, name) if name != LOCK => {
                self.add(self.volume.disk.open(name, OpenMode::ReadWrite)?)
            }
            _ => Err(not_found()),
        }
    }

    fn make(&self, parent: INodeNo, name: &str) -> io::Result<FileAttr> {
        match (parent.0, name) {
            (DATABASE_NODE, LOCK) => {
                lock(&self.volume.lock).get_or_insert_default();
                self.attributes_of(INodeNo(LOCK_NODE))
            }
            (DATABASE_NODE, _) => self.add(self.volume.disk.open(name, OpenMode::Create)?),
            _ => Err(refused()),
        }
    }

    fn names_in(&self, directory: INodeNo) -> io::Result<Vec<(FileType, String)>> {
        let mut names = vec![(FileType::Directory, ".".to_owned()), (FileType::Directory, "..".to_owned())];
        if directory.0 == ROOT_NODE {
            names.extend(self.volume.root.list()?.into_iter().map(|name| (FileType::Directory, name)));
        } else {
            names.extend(self.volume.disk.list()?.into_iter().map(|name| (FileType::RegularFile, name)));
            let lock_file = lock(&self.volume.lock).is_some();
            names.extend(lock_file.then(|| (FileType::RegularFile, LOCK.to_owned())));
        }
        Ok(names)
    }

    fn set_size(&self, node: INodeNo, size: u64) -> io::Result<()> {
        if node.0 != LOCK_NODE {
            return self.file(node)?.truncate(size);
        }
        let size = usize::try_from(size).map_err(|_| refused())?;
        lock(&self.volume.lock).get_or_insert_default().resize(size, 0);
        Ok(())
    }

    fn read_file(&self, node: INodeNo, offset: u64, size: usize) -> io::Result<Vec<u8>> {
        if node.0 == LOCK_NODE {
            let content = lock(&self.volume.lock).clone().unwrap_or_default();
            let start = content.len().min(usize::try_from(offset).unwrap_or(usize::MAX));
            return Ok(content[start..].iter().copied().take(size).collect());
        }
        let mut buffer = AlignedBuffer::new(size.next_multiple_of(BLOCK_BYTES));
        let length = self.file(node)?.read_at(&mut buffer, offset)?;
        Ok(buffer[..length.min(size)].to_vec())
    }

    fn write_file(&self, node: INodeNo, offset: u64, bytes: &[u8]) -> io::Result<()> {
        if node.0 != LOCK_NODE {
            if !bytes.len().is_multiple_of(BLOCK_BYTES) {
                return Err(rustix::io::Errno::INVAL.into());
            }
            return self.file(node)?.write_at(&AlignedBuffer::from(bytes), offset);
        }
        let start = usize::try_from(offset).map_err(|_| refused())?;
        let mut content = lock(&self.volume.lock);
        let content = content.get_or_insert_default();
        content.resize(content.len().max(start + bytes.len()), 0);
        content[start..start + bytes.len()].copy_from_slice(bytes);
        Ok(())
    }
}

impl Filesystem for Layer {
    fn lookup(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        match self.act(OperationKind::Open, || self.find(parent, text(name)?)) {
            Ok(found) => reply.entry_with_ttls(&ATTRIBUTES_LIVE, &NAMES_LIVE, &found, Generation(0)),
            Err(error) => reply.error(error),
        }
    }

    fn forget(&self, _: &Request, node: INodeNo, _: u64) {
        // Each look-up of a name gives a node of its own, so that there is no second one to wait for.
        lock(&self.files).remove(&node.0);
    }

    fn getattr(&self, _: &Request, node: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        match self.act(OperationKind::Size, || self.attributes_of(node)) {
            Ok(found) => reply.attr(&ATTRIBUTES_LIVE, &found),
            Err(error) => reply.error(error),
        }
    }

    fn setattr(
        &self,
        _: &Request,
        node: INodeNo,
        _mode: Option<u32>,
        _user: Option<u32>,
        _group: Option<u32>,
        size: Option<u64>,
        _read: Option<fuser::TimeOrNow>,
        _written: Option<fuser::TimeOrNow>,
        _changed: Option<std::time::SystemTime>,
        _handle: Option<FileHandle>,
        _created: Option<std::time::SystemTime>,
        _mode_changed: Option<std::time::SystemTime>,
        _backed_up: Option<std::time::SystemTime>,
        _flags: Option<fuser::BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        // Modes and times are of no use here.
        let set = || {
            size.map_or(Ok(()), |size| self.set_size(node, size))?;
            self.attributes_of(node)
        };
        match self.act(OperationKind::Truncate, set) {
            Ok(found) => reply.attr(&ATTRIBUTES_LIVE, &found),
            Err(error) => reply.error(error),
        }
    }

    fn mkdir(&self, _: &Request, parent: INodeNo, name: &OsStr, _: u32, _: u32, reply: ReplyEntry) {
        let make = || match (parent.0, text(name)?) {
            (ROOT_NODE, DATABASE) => {
                self.volume.root.open(DATABASE, OpenMode::Create)?;
                self.attributes_of(INodeNo(DATABASE_NODE))
            }
            _ => Err(refused()),
        };
        match self.act(OperationKind::Create, make) {
            Ok(made) => reply.entry_with_ttls(&ATTRIBUTES_LIVE, &NAMES_LIVE, &made, Generation(0)),
            Err(error) => reply.error(error),
        }
    }

    fn create(
        &self,
        _: &Request,
        parent: INodeNo,
        name: &OsStr,
        _mode: u32,
        _mask: u32,
        _flags: i32,
        reply: ReplyCreate,
    ) {
        match self.act(OperationKind::Create, || self.make(parent, text(name)?)) {
            Ok(made) => {
                reply.created(&NAMES_LIVE, &made, Generation(0), FileHandle(0), FopenFlags::FOPEN_DIRECT_IO)
            }
            Err(error) => reply.error(error),
        }
    }

    fn unlink(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let remove = || match (parent.0, text(name)?) {
            (DATABASE_NODE, name) if name != LOCK => self.volume.disk.remove(name),
            _ => Err(refused()),
        };
        done(self.act(OperationKind::Remove, remove), reply);
    }

    fn rename(
        &self,
        _: &Request,
        parent: INodeNo,
        from: &OsStr,
        new_parent: INodeNo,
        to: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        let rename = || match (parent.0, new_parent.0, text(from)?, text(to)?) {
            (DATABASE_NODE, DATABASE_NODE, from, to) if flags.is_empty() && from != LOCK && to != LOCK => {
                self.volume.disk.rename(from, to)
            }
            _ => Err(refused()),
        };
        done(self.act(OperationKind::Rename, rename), reply);
    }

    fn open(&self, _: &Request, _: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        reply.opened(FileHandle(0), FopenFlags::FOPEN_DIRECT_IO);
    }

    fn read(
        &self,
        _: &Request,
        node: INodeNo,
        _: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        match self.act(OperationKind::Read, || self.read_file(node, offset, size as usize)) {
            Ok(bytes) => reply.data(&bytes),
            Err(error) => reply.error(error),
        }
    }

    fn write(
        &self,
        _: &Request,
        node: INodeNo,
        _: FileHandle,
        offset: u64,
        bytes: &[u8],
        _: WriteFlags,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        match self.act(OperationKind::Write, || self.write_file(node, offset, bytes)) {
            Ok(()) => reply.written(bytes.len() as u32),
            Err(error) => reply.error(error),
        }
    }

    /// `fsync` and `fdatasync`: both make content and length durable, and no name.
    fn fsync(&self, _: &Request, node: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        let sync = || if node.0 == LOCK_NODE { Ok(()) } else { self.file(node)?.sync() };
        done(self.act(OperationKind::Sync, sync), reply);
    }

    fn fallocate(
        &self,
        _: &Request,
        node: INodeNo,
        _: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        let allocate = || match (FallocateFlags::from_bits_retain(mode.cast_unsigned()), offset) {
            (mode, _) if mode.is_empty() => self.file(node)?.allocate(offset + length),
            (FallocateFlags::ZERO_RANGE, 0) => self.file(node)?.clear(length),
            // Holes, and space beyond the end, are not for Kiln: whoever asks for them must learn that this is no place to
            // test it.
            _ => Err(refused()),
        };
        done(self.act(OperationKind::Allocate, allocate), reply);
    }

    fn opendir(&self, _: &Request, directory: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        match self.act(OperationKind::List, || self.names_in(directory)) {
            Ok(names) => {
                let handle = self.number();
                lock(&self.listings).insert(handle, names);
                reply.opened(FileHandle(handle), FopenFlags::empty());
            }
            Err(error) => reply.error(error),
        }
    }

    fn readdir(&self, _: &Request, _: INodeNo, handle: FileHandle, offset: u64, mut reply: ReplyDirectory) {
        let listings = lock(&self.listings);
        let names = listings.get(&handle.0).map_or(&[][..], Vec::as_slice);
        for (number, (kind, name)) in (1..).zip(names).skip(offset as usize) {
            // Numbers of nodes are given when names are looked up, and only there.
            if reply.add(INodeNo(u64::from(u32::MAX)), number, *kind, name) {
                break;
            }
        }
        reply.ok();
    }

    fn releasedir(&self, _: &Request, _: INodeNo, handle: FileHandle, _: OpenFlags, reply: ReplyEmpty) {
        lock(&self.listings).remove(&handle.0);
        reply.ok();
    }

    fn fsyncdir(&self, _: &Request, directory: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        let names = if directory.0 == ROOT_NODE { &self.volume.root } else { &self.volume.disk };
        done(self.act(OperationKind::SyncDirectory, || names.sync_directory()), reply);
    }
}

fn done(outcome: Result<(), Errno>, reply: ReplyEmpty) {
    match outcome {
        Ok(()) => reply.ok(),
        Err(error) => reply.error(error),
    }
}
