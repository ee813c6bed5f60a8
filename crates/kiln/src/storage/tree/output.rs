//! Writes what a merge makes, in pieces as large as its blocks follow each other.

use std::io;
use std::sync::Arc;

use crate::device::{AlignedBuffer, BLOCK_BYTES, DeviceFile};
use crate::error::Error;

/// What is written at once.
const BUFFER_BYTES: usize = 1 << 20;

/// Where a merge writes.
pub(super) struct Output<'a> {
    pub(super) file: Arc<dyn DeviceFile>,
    name: &'a str,
    buffer: AlignedBuffer,
    /// The block at the buffer's beginning.
    block: u64,
    filled: usize,
    /// What was written.
    pub(super) bytes: u64,
    /// A write failed: nothing after it may count as durable. Its owner knows however this ends.
    pub(super) failed: &'a mut bool,
}

impl<'a> Output<'a> {
    pub(super) fn new(file: Arc<dyn DeviceFile>, name: &'a str, failed: &'a mut bool) -> Self {
        let buffer = AlignedBuffer::default();
        Output { file, name, buffer, block: 0, filled: 0, bytes: 0, failed }
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
            *self.failed = true;
            Error::io(format_args!("writing {}", self.name), error)
        })
    }
}
