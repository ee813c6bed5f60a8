//! The floor: what the device itself takes to make one small write durable.
//!
//! One direct write of 4 KiB and one `fdatasync`, one after the other through a file that was written with zeros beforehand: no
//! engine that acknowledges a commit when it is durable can be faster with one client. A file that grows, or was allocated but
//! never written, would cost about twice as much, and would be no floor. [`SharedFloor`] is what many threads reach that share such writes.

use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, TryLockError};

use anyhow::{Context, Result, bail};
use rustix::fs::{Mode, OFlags};
use rustix::io::{Errno, pwrite};
use rustix::thread::futex;

/// The unit of a write.
pub(crate) const BLOCK_BYTES: usize = 4096;
/// The pre-written file. Larger than what a disk's own cache usually merges.
const FILE_BYTES: u64 = 64 << 20;
/// What is written at once while the file is prepared.
const FILL_BYTES: usize = 1 << 20;

/// A pre-written file, and the place of its next write.
pub(crate) struct Floor {
    file: OwnedFd,
    block: AlignedBytes,
    position: u64,
}

impl Floor {
    /// Writes the file.
    pub(crate) fn create(path: &Path) -> Result<Floor> {
        let file = create_direct(path)?;
        let zeros = AlignedBytes::new(FILL_BYTES);
        for position in (0..FILE_BYTES).step_by(FILL_BYTES) {
            write_all(&file, zeros.bytes(), position)?;
        }
        rustix::fs::fsync(&file).context("cannot sync the floor's file")?;
        let directory = path.parent().context("the floor's file has no directory")?;
        let directory =
            rustix::fs::open(directory, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        rustix::fs::fsync(directory).context("cannot sync the directory")?;
        Ok(Floor { file, block: AlignedBytes::new(BLOCK_BYTES), position: 0 })
    }

    /// Makes one block durable.
    pub(crate) fn write(&mut self) -> Result<()> {
        self.block.set_first(self.position);
        write_all(&self.file, self.block.bytes(), self.position)?;
        rustix::fs::fdatasync(&self.file).context("cannot sync the floor's file")?;
        self.position = (self.position + BLOCK_BYTES as u64) % FILE_BYTES;
        Ok(())
    }
}

/// A floor for threads: who finds nobody writing writes for all who have come, and wakes them with one system call. Group commit with nothing of
/// an engine around it.
pub(crate) struct SharedFloor<'floor> {
    floor: Mutex<&'floor mut Floor>,
    /// How many have come, and how many of them are durable.
    come: AtomicU32,
    durable: AtomicU32,
    /// How many writes have ended: where threads sleep.
    ended: AtomicU32,
}

impl<'floor> SharedFloor<'floor> {
    pub(crate) fn new(floor: &'floor mut Floor) -> SharedFloor<'floor> {
        SharedFloor {
            floor: Mutex::new(floor),
            come: AtomicU32::new(0),
            durable: AtomicU32::new(0),
            ended: AtomicU32::new(0),
        }
    }

    /// Returns when a block is durable that was written after this was called.
    pub(crate) fn write(&self) -> Result<()> {
        let number = self.come.fetch_add(1, Ordering::SeqCst) + 1;
        loop {
            // Read before the looks: a write that is found under way ends after it.
            let seen = self.ended.load(Ordering::SeqCst);
            if self.durable.load(Ordering::SeqCst) >= number {
                return Ok(());
            }
            match self.floor.try_lock() {
                Ok(mut floor) => {
                    let before = self.durable.load(Ordering::SeqCst);
                    let mut written = Ok(());
                    if before < number {
                        let come = self.come.load(Ordering::SeqCst);
                        written = floor.write().map(|()| self.durable.store(come, Ordering::SeqCst));
                    }
                    drop(floor);
                    self.ended.fetch_add(1, Ordering::SeqCst);
                    // Who is alone wakes nobody, and so does nothing but write. Who comes from here on finds nobody writing.
                    if self.come.load(Ordering::SeqCst) != before + 1 {
                        futex::wake(&self.ended, futex::Flags::PRIVATE, i32::MAX as u32)?;
                    }
                    written?;
                }
                Err(TryLockError::WouldBlock) => {
                    // Why it ended is looked for above.
                    let _ = futex::wait(&self.ended, futex::Flags::PRIVATE, seen, None);
                }
                Err(TryLockError::Poisoned(_)) => bail!("the floor's file failed before"),
            }
        }
    }
}

/// Makes a file for direct I/O that is not there yet.
pub(crate) fn create_direct(path: &Path) -> Result<OwnedFd> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::DIRECT | OFlags::CLOEXEC;
    rustix::fs::open(path, flags, Mode::RUSR | Mode::WUSR).map_err(|error| match error {
        Errno::INVAL => anyhow::anyhow!(
            "{} is on a file system without direct I/O; name a directory on a disk with --dir",
            path.display()
        ),
        error => anyhow::Error::from(error).context(format!("cannot make {}", path.display())),
    })
}

/// Writes all of some bytes at a position of a file.
pub(crate) fn write_all(file: &OwnedFd, bytes: &[u8], position: u64) -> Result<()> {
    let count = pwrite(file, bytes, position).context("cannot write to the disk")?;
    anyhow::ensure!(count == bytes.len(), "the disk took {count} of {} bytes: is it full?", bytes.len());
    Ok(())
}

/// Bytes that begin at a multiple of [`BLOCK_BYTES`], as direct I/O wants.
pub(crate) struct AlignedBytes {
    storage: Vec<u8>,
    start: usize,
    len: usize,
}

impl AlignedBytes {
    pub(crate) fn new(len: usize) -> AlignedBytes {
        let storage = vec![0; len + BLOCK_BYTES];
        let start = storage.as_ptr().align_offset(BLOCK_BYTES);
        AlignedBytes { storage, start, len }
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.storage[self.start..self.start + self.len]
    }

    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.storage[self.start..self.start + self.len]
    }

    fn set_first(&mut self, number: u64) {
        self.bytes_mut()[..8].copy_from_slice(&number.to_le_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writes_go_through_the_file_in_order() {
        // Not in the system's temporary directory, which may be a file system in memory.
        let directory = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let path = directory.path().join("floor");
        let mut floor = Floor::create(&path).unwrap();
        for _ in 0..3 {
            floor.write().unwrap();
        }
        let bytes = std::fs::read(path).unwrap();
        assert_eq!(bytes.len() as u64, FILE_BYTES);
        for (index, block) in bytes.chunks(BLOCK_BYTES).enumerate() {
            let expected = if index < 3 { (index * BLOCK_BYTES) as u64 } else { 0 };
            assert_eq!(block[..8], expected.to_le_bytes());
        }
    }

    #[test]
    fn threads_that_share_the_floor_are_all_answered_after_a_write_of_their_own_or_anothers() {
        let directory = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let mut floor = Floor::create(&directory.path().join("floor")).unwrap();
        let shared = SharedFloor::new(&mut floor);
        let (threads, each) = (8, 50);
        std::thread::scope(|scope| {
            for _ in 0..threads {
                scope.spawn(|| (0..each).for_each(|_| shared.write().unwrap()));
            }
        });
        assert_eq!(shared.durable.into_inner(), threads * each);
        let blocks = floor.position / BLOCK_BYTES as u64;
        // Each thread waits for each of its writes, and nobody writes for nobody.
        assert!((u64::from(each)..=u64::from(threads * each)).contains(&blocks), "{blocks} writes");
    }

    #[test]
    fn a_write_that_fails_leaves_no_thread_asleep_that_shares_the_floor() {
        let full = rustix::fs::open("/dev/full", OFlags::WRONLY, Mode::empty()).unwrap();
        let mut floor = Floor { file: full, block: AlignedBytes::new(BLOCK_BYTES), position: 0 };
        let shared = SharedFloor::new(&mut floor);
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| (0..5_000).for_each(|_| assert!(shared.write().is_err())));
            }
        });
        assert_eq!(shared.durable.into_inner(), 0);
    }

    #[test]
    fn aligned_bytes_are_aligned() {
        let bytes = AlignedBytes::new(BLOCK_BYTES);
        assert_eq!(bytes.bytes().as_ptr().addr() % BLOCK_BYTES, 0);
        assert_eq!(bytes.bytes().len(), BLOCK_BYTES);
    }
}
