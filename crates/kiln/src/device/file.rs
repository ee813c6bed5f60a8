//! The device on a directory of the file system.
//!
//! Files are read and written with direct I/O, so that Kiln's own memory is the only cache and a sync has
//! little left to flush; but for those that are [named](FileDevice::through_page_cache). A file system that refuses direct I/O, when the file is opened or only when it is
//! used, gets ordinary I/O on the same calls: slower, with the same durability, since every durability
//! point is an `fdatasync` either way. What is written through the page cache is sent on to the disk at once, so that there, too, a sync finds little to do.
//!
//! All names are looked up relative to the directory's own descriptor: renaming the directory, or changing
//! the working directory, cannot make an open database write elsewhere.

mod clock;
#[cfg(test)]
mod tests;
mod write_back;

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{
    Advice, AtFlags, Dir, FallocateFlags, FileType, FlockOperation, IFlags, Mode, OFlags, Stat,
};
use rustix::io::{Errno, retry_on_intr};

use self::clock::Clock;
use super::reader_threads::ReaderThreads;
use super::uring::UringReads;
use super::{
    AlignedBuffer, BLOCK_BYTES, Device, DeviceError, DeviceFile, DeviceLock, LOCK_NAME, OpenMode, Process,
    ReadQueue, check_aligned, check_length, check_name, check_whole_blocks, reads, write_zeros,
};
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicBool, Ordering};

/// A [`Device`] on a directory of the file system.
#[derive(Debug)]
pub struct FileDevice {
    directory: Arc<OwnedFd>,
    path: PathBuf,
    /// Whether the directory was made in opening it.
    is_made: bool,
    /// The system has no io_uring, or does not let this process use it, as in most containers. Once found out, it is not asked again. That there is no
    /// descriptor or memory to be had is another matter, which passes.
    uring_refused: Arc<AtomicBool>,
    /// What reads then; begun with the first queue.
    reader_threads: Mutex<Option<Arc<ReaderThreads>>>,
    /// Whether a file of this name goes through the page cache.
    is_through_page_cache: fn(&str) -> bool,
    clock: Clock,
}

impl FileDevice {
    /// Opens the directory `path`. With `create` it is made first if it does not exist (its parent must),
    /// and its own name is made durable.
    ///
    /// # Errors
    ///
    /// [`NotFound`](io::ErrorKind::NotFound) if the directory, or with `create` its parent, does not exist;
    /// [`NotADirectory`](io::ErrorKind::NotADirectory) if the path is something else;
    /// [`PermissionDenied`](io::ErrorKind::PermissionDenied) if the process may not read it. A directory
    /// that may be read but not written opens, so that a database can be checked there, and a backup restored from it; creating files
    /// fails, and locking it if it has no lock file.
    pub fn open(path: &Path, create: bool) -> io::Result<FileDevice> {
        let shown = path.display().to_string();
        let made =
            create && make_directory(path).map_err(|e| DeviceError::wrap("create directory", &shown, e))?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory = retry_on_intr(|| rustix::fs::open(path, flags, Mode::empty()))
            .map_err(|e| DeviceError::wrap("open directory", &shown, e))?;
        if create {
            sync_parent(&directory, made)
                .map_err(|e| DeviceError::wrap("sync the parent directory of", &shown, e))?;
        }
        Ok(FileDevice {
            directory: Arc::new(directory),
            path: path.to_owned(),
            is_made: made,
            uring_refused: Arc::new(AtomicBool::new(cfg!(miri))),
            reader_threads: Mutex::new(None),
            is_through_page_cache: |_| false,
            clock: Clock::new(),
        })
    }

    /// Reads and writes files of such names through the operating system's page cache.
    pub(crate) fn through_page_cache(mut self, is_such: fn(&str) -> bool) -> FileDevice {
        self.is_through_page_cache = is_such;
        self
    }

    /// The directory's path, as it was given.
    pub fn path(&self) -> &Path {
        &self.path
    }

    fn open_plain(&self, name: &str, mode: OpenMode) -> io::Result<PlainFile> {
        check_name(name)?;
        let (operation, access) = match mode {
            OpenMode::Read => ("open", OFlags::RDONLY),
            OpenMode::ReadWrite => ("open", OFlags::RDWR),
            OpenMode::Create => ("create", OFlags::RDWR | OFlags::CREATE | OFlags::EXCL),
        };
        let flags = access | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let descriptor =
            retry_on_intr(|| rustix::fs::openat(&self.directory, name, flags, Mode::from_raw_mode(0o644)))
                .map_err(self.failed(operation, name))?;
        if mode == OpenMode::Create {
            write_in_place(&descriptor);
        }
        let is_through_page_cache = (self.is_through_page_cache)(name);
        if is_through_page_cache {
            // Who reads on asks for what follows; for who does not, the system would read up to megabytes that nobody wants.
            let _ = rustix::fs::fadvise(&descriptor, 0, None, Advice::Random);
        }
        let direct =
            !is_through_page_cache && use_direct_io(&descriptor).map_err(self.failed(operation, name))?;
        Ok(PlainFile { descriptor, direct: AtomicBool::new(direct), shown: self.describe(name) })
    }

    fn failed(&self, operation: &'static str, name: &str) -> impl FnOnce(Errno) -> io::Error {
        let file = self.describe(name);
        move |errno| DeviceError::wrap(operation, file, errno)
    }

    fn directory_failed(&self, operation: &'static str) -> impl FnOnce(Errno) -> io::Error {
        let directory = self.path.display().to_string();
        move |errno| DeviceError::wrap(operation, directory, errno)
    }

    /// A queue of an io_uring, if one can be made, and else of threads.
    fn read_queue_by(
        &self,
        make: impl FnOnce(Arc<AtomicBool>) -> io::Result<UringReads>,
    ) -> Box<dyn ReadQueue> {
        if !self.uring_refused.load(Ordering::Relaxed) {
            match make(self.uring_refused.clone()) {
                Ok(reads) => return Box::new(reads),
                Err(error) if is_refusal(&error) => self.uring_refused.store(true, Ordering::Relaxed),
                Err(_) => {}
            }
        }
        let mut threads = self.reader_threads.lock();
        if threads.is_none() {
            *threads = ReaderThreads::start().ok().map(Arc::new);
        }
        match &*threads {
            Some(threads) if threads.are_here() => Box::new(threads.queue()),
            _ => Box::new(reads::ReadsInTurn::default()),
        }
    }

    /// Opens the file to be locked. Where it may not be written, it can be locked all the same: who only reads there keeps away who writes.
    fn open_lock_file(&self) -> Result<OwnedFd, Errno> {
        let open = |flags| {
            let flags = flags | OFlags::CLOEXEC | OFlags::NOFOLLOW;
            let mode = Mode::from_raw_mode(0o644);
            retry_on_intr(|| rustix::fs::openat(&self.directory, LOCK_NAME, flags, mode))
        };
        open(OFlags::RDWR | OFlags::CREATE).or_else(|refused| match refused {
            Errno::ROFS | Errno::ACCESS | Errno::PERM => open(OFlags::RDONLY).map_err(|_| refused),
            _ => Err(refused),
        })
    }
}

/// Makes a directory; whether it was made now rather than being there already.
fn make_directory(path: &Path) -> Result<bool, Errno> {
    match retry_on_intr(|| rustix::fs::mkdir(path, Mode::from_raw_mode(0o777))) {
        Ok(()) => Ok(true),
        Err(Errno::EXIST) => Ok(false),
        Err(errno) => Err(errno),
    }
}

/// Makes the name of `directory` durable.
///
/// This is done for a directory that was there already too: whoever made it may have died before this step.
/// What excuses it then is a parent that this process may not read, for such a directory was provided by somebody else; and one that cannot
/// be synced, as where a file system is mounted in one that is only read: it makes no names that could be lost.
fn sync_parent(directory: &OwnedFd, made: bool) -> Result<(), Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    match retry_on_intr(|| rustix::fs::openat(directory, "..", flags, Mode::empty())) {
        Ok(parent) => match retry_on_intr(|| rustix::fs::fsync(&parent)) {
            Err(Errno::INVAL | Errno::ROFS) if !made => Ok(()),
            synced => synced,
        },
        Err(Errno::ACCESS | Errno::PERM) if !made => Ok(()),
        Err(errno) => Err(errno),
    }
}

impl Device for FileDevice {
    fn open(&self, name: &str, mode: OpenMode) -> io::Result<Arc<dyn DeviceFile>> {
        Ok(Arc::new(self.open_plain(name, mode)?))
    }

    fn list(&self) -> io::Result<Vec<String>> {
        let listing = || -> Result<Vec<String>, Errno> {
            let mut names = Vec::new();
            for entry in Dir::read_from(&self.directory)? {
                let entry = entry?;
                // No file of a database has a name that is not UTF-8.
                let Ok(name) = entry.file_name().to_str() else { continue };
                let file_type = match entry.file_type() {
                    FileType::Unknown => {
                        let status = rustix::fs::statat(
                            &self.directory,
                            entry.file_name(),
                            AtFlags::SYMLINK_NOFOLLOW,
                        )?;
                        FileType::from_raw_mode(status.st_mode)
                    }
                    known => known,
                };
                if file_type == FileType::RegularFile && name != LOCK_NAME {
                    names.push(name.to_owned());
                }
            }
            names.sort_unstable();
            Ok(names)
        };
        retry_on_intr(listing).map_err(self.directory_failed("list"))
    }

    fn everything(&self) -> io::Result<Vec<String>> {
        let look = || -> Result<Vec<String>, Errno> {
            let mut names = Vec::new();
            for entry in Dir::read_from(&self.directory)? {
                let entry = entry?;
                let name = entry.file_name().to_string_lossy();
                // The last is what a file system begins with.
                if ![".", "..", LOCK_NAME, "lost+found"].contains(&&*name) {
                    names.push(name.into_owned());
                }
            }
            Ok(names)
        };
        retry_on_intr(look).map_err(self.directory_failed("list"))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        check_name(name)?;
        retry_on_intr(|| rustix::fs::unlinkat(&self.directory, name, AtFlags::empty()))
            .map_err(self.failed("remove", name))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        check_name(from)?;
        check_name(to)?;
        retry_on_intr(|| rustix::fs::renameat(&self.directory, from, &self.directory, to))
            .map_err(self.failed("rename", from))
    }

    fn sync_directory(&self) -> io::Result<()> {
        retry_on_intr(|| rustix::fs::fsync(&self.directory)).map_err(self.directory_failed("sync directory"))
    }

    fn lock(&self) -> io::Result<Box<dyn DeviceLock>> {
        let failed = || self.failed("lock", LOCK_NAME);
        loop {
            let descriptor = self.open_lock_file().map_err(failed())?;
            match retry_on_intr(|| rustix::fs::flock(&descriptor, FlockOperation::NonBlockingLockExclusive)) {
                Ok(()) => {}
                Err(Errno::WOULDBLOCK) => return Err(already_open(&self.path, holder(&descriptor))),
                Err(errno) => return Err(failed()(errno)),
            }
            // From here on whatever leaves drops the guard and with it the lock.
            let made_directory = self.is_made.then(|| self.path.clone());
            let directory = self.directory.clone();
            let lock = FileLock { descriptor, process: Process::this(), directory, made_directory };
            // Who had it may have given it up in between: this file is nobody's then, and another has its name, or none.
            if lock.is_in_place().map_err(failed())? {
                // It is only for people, and on a full disk it cannot be written.
                let _ = lock.write_holder();
                return Ok(Box::new(lock));
            }
        }
    }

    fn random(&self) -> io::Result<[u8; 32]> {
        let mut bytes = [0; 32];
        rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())?;
        Ok(bytes)
    }

    fn time_us(&self) -> u64 {
        self.clock.now_us()
    }

    fn describe(&self, name: &str) -> String {
        self.path.join(name).display().to_string()
    }

    fn read_queue(&self) -> Box<dyn ReadQueue> {
        self.read_queue_by(UringReads::new)
    }
}

/// Whether an error in making an io_uring will come again whenever one is made.
fn is_refusal(error: &io::Error) -> bool {
    let refusals = [Errno::NOSYS, Errno::PERM, Errno::ACCESS, Errno::INVAL, Errno::OPNOTSUPP];
    Errno::from_io_error(error).is_some_and(|errno| refusals.contains(&errno))
}

/// Has a file system that writes elsewhere each time, as btrfs does, write a new file in place, if it knows how: space that is reserved then
/// is there for all later writes, too. What it would copy and checksum for is done in the file itself.
fn write_in_place(descriptor: &OwnedFd) {
    if let Ok(flags) = rustix::fs::ioctl_getflags(descriptor) {
        let _ = rustix::fs::ioctl_setflags(descriptor, flags | IFlags::NOCOW);
    }
}

/// Switches an open file to direct I/O; whether the file system agreed.
///
/// Setting the flag afterwards, rather than opening with it, cannot leave behind a file that was created by
/// an open which then failed.
fn use_direct_io(descriptor: &OwnedFd) -> Result<bool, Errno> {
    let flags = rustix::fs::fcntl_getfl(descriptor)?;
    match rustix::fs::fcntl_setfl(descriptor, flags | OFlags::DIRECT) {
        Ok(()) => Ok(true),
        Err(Errno::INVAL) => Ok(false),
        Err(errno) => Err(errno),
    }
}

/// The lock: an `flock` on the lock file, which the kernel releases however the process ends.
///
/// `flock` belongs to the open file, not to the process as a POSIX record lock does, and so it also refuses
/// a second opening in the same process. The file stays when the device is given back: who has just opened a file that is
/// removed would lock something that nobody else sees. It is removed only by who [gives up](DeviceLock::give_up) what was made, and so whoever
/// has locked a file looks whether it is still the one of that name.
#[derive(Debug)]
struct FileLock {
    descriptor: OwnedFd,
    process: Process,
    directory: Arc<OwnedFd>,
    /// The directory, if it was made for this device.
    made_directory: Option<PathBuf>,
}

impl DeviceLock for FileLock {
    fn give_up(self: Box<Self>) {
        // While it is locked: the file of this name is this one.
        let _ = rustix::fs::unlinkat(&self.directory, LOCK_NAME, AtFlags::empty());
        let Some(path) = &self.made_directory else { return };
        if rustix::fs::stat(path).is_ok_and(|named| is_same(&self.directory, &named)) {
            // Unless somebody has put something there.
            let _ = rustix::fs::rmdir(path);
        }
    }
}

/// Whether a status is that of the file that is open.
fn is_same(open: &OwnedFd, status: &Stat) -> bool {
    rustix::fs::fstat(open).is_ok_and(|own| (own.st_dev, own.st_ino) == (status.st_dev, status.st_ino))
}

impl FileLock {
    /// Whether the file that is locked is the one that others will find.
    fn is_in_place(&self) -> Result<bool, Errno> {
        match rustix::fs::statat(&self.directory, LOCK_NAME, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(named) => Ok(is_same(&self.descriptor, &named)),
            Err(Errno::NOENT) => Ok(false),
            Err(errno) => Err(errno),
        }
    }

    /// Writes this process's number into the lock file, for the message that others will get.
    fn write_holder(&self) -> Result<(), Errno> {
        let text = format!("{}\n", std::process::id());
        retry_on_intr(|| rustix::fs::ftruncate(&self.descriptor, 0))?;
        retry_on_intr(|| rustix::io::pwrite(&self.descriptor, text.as_bytes(), 0))?;
        Ok(())
    }
}

impl Drop for FileLock {
    fn drop(&mut self) {
        if !self.process.is_this() {
            // A child that was forked shares the lock, which is its parent's.
            return;
        }
        // The number is only information and closing the file unlocks it too, so neither failure matters.
        // The lock is released by hand because a child process that was forked meanwhile shares it.
        let _ = rustix::fs::ftruncate(&self.descriptor, 0);
        let _ = rustix::fs::flock(&self.descriptor, FlockOperation::Unlock);
    }
}

/// The process that holds the lock, if it has written its number yet.
fn holder(lock_file: &OwnedFd) -> Option<u32> {
    let mut text = [0; 32];
    let length = retry_on_intr(|| rustix::io::pread(lock_file, &mut text, 0)).ok()?;
    std::str::from_utf8(text.get(..length)?).ok()?.trim().parse().ok()
}

fn already_open(path: &Path, holder: Option<u32>) -> io::Error {
    let database = path.display();
    let message = match holder {
        Some(process) => format!("database {database} is already open by process {process}"),
        None => format!("database {database} is already open by another process"),
    };
    io::Error::new(io::ErrorKind::WouldBlock, message)
}

/// An open file of the file system.
#[derive(Debug)]
struct PlainFile {
    descriptor: OwnedFd,
    /// Whether direct I/O is on; it only ever goes from true to false.
    direct: AtomicBool,
    shown: String,
}

impl PlainFile {
    fn failed(&self, operation: &'static str) -> impl FnOnce(Errno) -> io::Error {
        move |errno| DeviceError::wrap(operation, self.shown.as_str(), errno)
    }

    /// One positional read or write, repeated when a signal interrupts it, and once more without direct I/O
    /// when the file system turns out to refuse that only now (its blocks may be larger than ours).
    fn transfer(&self, mut attempt: impl FnMut() -> Result<usize, Errno>) -> Result<usize, Errno> {
        // As it was when this began: another thread may turn it off at the same time.
        let was_direct = self.direct.load(Ordering::Relaxed);
        match retry_on_intr(&mut attempt) {
            Err(Errno::INVAL) if was_direct => {
                let flags = rustix::fs::fcntl_getfl(&self.descriptor)?;
                rustix::fs::fcntl_setfl(&self.descriptor, flags - OFlags::DIRECT)?;
                self.direct.store(false, Ordering::Relaxed);
                retry_on_intr(&mut attempt)
            }
            outcome => outcome,
        }
    }

    fn length(&self) -> Result<u64, Errno> {
        Ok(retry_on_intr(|| rustix::fs::fstat(&self.descriptor))?.st_size.cast_unsigned())
    }

    /// Lengthens the file to `bytes` by writing zeros, for file systems that cannot reserve space. Holes
    /// that the file already has stay unreserved; Kiln makes none in files that it allocates.
    fn lengthen(&self, bytes: u64) -> io::Result<()> {
        let length = self.length().map_err(self.failed("allocate"))?;
        if length >= bytes {
            return Ok(());
        }
        let mut offset = length - length % BLOCK_BYTES as u64;
        if offset < length {
            // The last block is partly in use, and only whole blocks can be written.
            let mut last = AlignedBuffer::new(BLOCK_BYTES);
            self.read_at(&mut last, offset)?;
            self.write_at(&last, offset)?;
            offset += BLOCK_BYTES as u64;
        }
        write_zeros(self, offset, bytes)?;
        self.truncate(bytes)
    }
}

impl DeviceFile for PlainFile {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        check_aligned(buffer, offset)?;
        let mut done = 0;
        while done < buffer.len() {
            let count = self
                .transfer(|| rustix::io::pread(&self.descriptor, &mut buffer[done..], offset + done as u64))
                .map_err(self.failed("read"))?;
            let end = done + count;
            let inside_block = !end.is_multiple_of(BLOCK_BYTES);
            if count == 0 || (inside_block && offset + end as u64 >= self.size()?) {
                return Ok(end);
            }
            done = next_start(done, end).ok_or_else(|| {
                DeviceError::wrap("read", self.shown.as_str(), io::ErrorKind::UnexpectedEof)
            })?;
        }
        Ok(done)
    }

    fn write_at(&self, buffer: &[u8], offset: u64) -> io::Result<()> {
        check_aligned(buffer, offset)?;
        let mut done = 0;
        while done < buffer.len() {
            let count = self
                .transfer(|| rustix::io::pwrite(&self.descriptor, &buffer[done..], offset + done as u64))
                .map_err(self.failed("write"))?;
            done = next_start(done, done + count)
                .ok_or_else(|| DeviceError::wrap("write", self.shown.as_str(), io::ErrorKind::WriteZero))?;
        }
        if !self.direct.load(Ordering::Relaxed) {
            write_back::begin(&self.descriptor, offset, buffer.len());
        }
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        retry_on_intr(|| rustix::fs::fdatasync(&self.descriptor)).map_err(self.failed("sync"))
    }

    fn size(&self) -> io::Result<u64> {
        self.length().map_err(self.failed("read the size of"))
    }

    fn allocate(&self, bytes: u64) -> io::Result<()> {
        check_length(bytes)?;
        if bytes == 0 {
            return Ok(());
        }
        match retry_on_intr(|| rustix::fs::fallocate(&self.descriptor, FallocateFlags::empty(), 0, bytes)) {
            Ok(()) => Ok(()),
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => self.lengthen(bytes),
            Err(errno) => Err(self.failed("allocate")(errno)),
        }
    }

    fn clear(&self, bytes: u64) -> io::Result<()> {
        check_whole_blocks(bytes)?;
        if bytes == 0 {
            return Ok(());
        }
        match retry_on_intr(|| rustix::fs::fallocate(&self.descriptor, FallocateFlags::ZERO_RANGE, 0, bytes))
        {
            Ok(()) => Ok(()),
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => write_zeros(self, 0, bytes),
            Err(errno) => Err(self.failed("clear")(errno)),
        }
    }

    fn truncate(&self, bytes: u64) -> io::Result<()> {
        check_length(bytes)?;
        retry_on_intr(|| rustix::fs::ftruncate(&self.descriptor, bytes)).map_err(self.failed("truncate"))
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        Some(self.descriptor.as_fd())
    }
}

/// Where a transfer that began at `start` and stopped short at `end` goes on: at the last whole block,
/// since direct I/O cannot begin elsewhere. `None` if that is no progress.
fn next_start(start: usize, end: usize) -> Option<usize> {
    let next = end - end % BLOCK_BYTES;
    (next > start).then_some(next)
}
