//! Writes what a merge makes: to free blocks, which it takes from the lowest on, and in pieces as large as they follow each other.

use std::io;
use std::sync::Arc;

use super::space::Space;
use crate::device::{AlignedBuffer, BLOCK_BYTES, DeviceFile};
use crate::error::{Error, is_disk_full};

/// What is written at once.
const BUFFER_BYTES: usize = 1 << 20;
/// The file grows, and shrinks, by a part of it, within these bounds.
const STEP_PART: u64 = 8;
const STEP_BYTES_MIN: u64 = 64 << 10;
const STEP_BYTES_MAX: u64 = 256 << 20;
/// What is kept for deletions is such a part of the file, within these bounds.
const RESERVE_PART: u64 = 64;
const RESERVE_BYTES_MIN: u64 = 64 << 10;
const RESERVE_BYTES_MAX: u64 = 8 << 20;

/// By how much a file of this length grows.
pub(super) fn step_bytes(bytes: u64) -> u64 {
    (bytes / STEP_PART).clamp(STEP_BYTES_MIN, STEP_BYTES_MAX).next_multiple_of(STEP_BYTES_MIN)
}

/// How much of the end of a file of this length is kept for [`Room::Reserve`](super::writer::Room::Reserve): a path to the root for each of some leaves, and their pages of
/// the map, and its directory, before the first of what they replace is free.
pub(super) fn reserve_bytes(bytes: u64) -> u64 {
    (bytes / RESERVE_PART).clamp(RESERVE_BYTES_MIN, RESERVE_BYTES_MAX).next_multiple_of(BLOCK_BYTES as u64)
}

/// Where a merge writes.
pub(super) struct Output<'a> {
    file: Arc<dyn DeviceFile>,
    name: &'a str,
    pub(super) space: &'a mut Space,
    /// The file's length, of which its owner knows however this ends.
    file_bytes: &'a mut u64,
    /// So much of its end is kept free.
    reserve_bytes: u64,
    /// It grows by no more at once: the disk had no room for twice that.
    step_bytes_max: u64,
    buffer: AlignedBuffer,
    /// The block at the buffer's beginning.
    block: u64,
    filled: usize,
    /// What was written.
    pub(super) bytes: u64,
    /// A write failed: nothing after it may count as durable.
    pub(super) failed: bool,
}

impl<'a> Output<'a> {
    pub(super) fn new(
        file: Arc<dyn DeviceFile>,
        name: &'a str,
        space: &'a mut Space,
        (file_bytes, reserve_bytes): (&'a mut u64, u64),
    ) -> Self {
        let buffer = AlignedBuffer::default();
        Output {
            file,
            name,
            space,
            file_bytes,
            reserve_bytes,
            step_bytes_max: STEP_BYTES_MAX,
            buffer,
            block: 0,
            filled: 0,
            bytes: 0,
            failed: false,
        }
    }

    /// Takes free blocks, and makes sure that the file has them.
    pub(super) fn take(&mut self, blocks: usize) -> Result<u64, Error> {
        let block = self.space.take(blocks as u64);
        let block = block.ok_or_else(|| {
            let full =
                io::Error::new(io::ErrorKind::StorageFull, "the file has as many blocks as it may have");
            Error::io(format_args!("writing {}", self.name), full)
        })?;
        self.grow_to((block + blocks as u64) * BLOCK_BYTES as u64)?;
        Ok(block)
    }

    /// Makes sure that the file is so long, and has its reserve behind that. It grows by less the less room the disk has.
    pub(super) fn grow_to(&mut self, end: u64) -> Result<(), Error> {
        let end = end + self.reserve_bytes;
        while end > *self.file_bytes {
            let step_bytes = step_bytes(end).min(self.step_bytes_max);
            let grown = end.next_multiple_of(step_bytes);
            match self.file.allocate(grown) {
                Ok(()) => *self.file_bytes = grown,
                Err(error) => {
                    if is_disk_full(&error) {
                        // The file system may have taken all that it had. If giving it back fails nothing is lost but that.
                        let _ = self.file.truncate(*self.file_bytes);
                        if grown > end {
                            self.step_bytes_max = (step_bytes / 2).next_multiple_of(BLOCK_BYTES as u64);
                            continue;
                        }
                    }
                    return Err(Error::io(format_args!("growing {}", self.name), error));
                }
            }
        }
        Ok(())
    }

    /// Fills zeroed blocks that have been taken; returns the checksum of all of them.
    pub(super) fn put(
        &mut self,
        block: u64,
        blocks: usize,
        fill: impl FnOnce(&mut [u8]),
    ) -> Result<u32, Error> {
        let bytes = blocks * BLOCK_BYTES;
        let follows = self.block + (self.filled / BLOCK_BYTES) as u64 == block;
        if !follows || self.filled + bytes > BUFFER_BYTES {
            self.flush()?;
            self.block = block;
        }
        self.buffer.grow(self.filled + bytes);
        let out = &mut self.buffer[self.filled..self.filled + bytes];
        out.fill(0);
        fill(out);
        let checksum = crc32c::crc32c(out);
        self.filled += bytes;
        Ok(checksum)
    }

    /// What was put last, if it is still in memory.
    pub(super) fn last(&self, blocks: usize) -> &[u8] {
        &self.buffer[self.filled - blocks * BLOCK_BYTES..self.filled]
    }

    /// Writes what has been put.
    pub(super) fn flush(&mut self) -> Result<(), Error> {
        if self.filled > 0 {
            let written = self.file.write_at(&self.buffer[..self.filled], self.block * BLOCK_BYTES as u64);
            self.check(written)?;
            self.bytes += self.filled as u64;
            self.filled = 0;
            if self.buffer.len() > BUFFER_BYTES {
                self.buffer = AlignedBuffer::default();
            }
        }
        Ok(())
    }

    /// Writes what has been put, and makes all of it durable.
    pub(super) fn sync(&mut self) -> Result<(), Error> {
        self.flush()?;
        let synced = self.file.sync();
        self.check(synced)
    }

    /// Takes note of a failure, which is final.
    pub(super) fn check(&mut self, outcome: io::Result<()>) -> Result<(), Error> {
        outcome.map_err(|error| {
            self.failed = true;
            Error::io(format_args!("writing {}", self.name), error)
        })
    }
}
