//! Direct reads of 4 KiB at random places, as many in flight as keys are asked for together (64 at most): what the device can do
//! for data that is not in memory.
//!
//! The file holds the values of all keys, as many in a block as fit, and is as large as the data. It is written when it is made,
//! so that loading adds nothing.

use std::sync::Arc;

use anyhow::{Context, Result, bail, ensure};
use kiln::device::{
    AlignedBuffer, BLOCK_BYTES, Device, DeviceFile, FileDevice, OpenMode, QueuedRead, READS_IN_FLIGHT_MAX,
    ReadQueue,
};

use super::catalog::{Description, Mode, Settings, Shape};
use super::generator::index_of;
use super::{Access, Engine, Worker};
use crate::generate::{Entry, Key, Sizes, stamp};

pub(super) const DESCRIPTION: Description = Description {
    what: "direct reads of 4 KiB at random places, up to 64 in flight: the floor of reading what is not in memory",
    modes: &[Mode::Floor],
    shapes: &[Shape::Table],
    transactions: false,
    keeps_data: false,
    durable_puts: false,
    past_page_cache: true,
    reopens: false,
    snapshot_scans: false,
    settings: |_| "a file as large as the data, O_DIRECT, io_uring where the system allows it",
    version: || Ok(String::new()),
};

/// What is written at once while the file is made.
const FILL_BLOCKS: u64 = 256;

/// A file of values.
pub(crate) struct RawReads {
    device: FileDevice,
    file: Arc<dyn DeviceFile>,
    sizes: Sizes,
}

impl RawReads {
    /// Writes the file.
    pub(crate) fn create(settings: &Settings) -> Result<RawReads> {
        let device =
            FileDevice::open(&settings.path, false).context("cannot open the directory of raw reads")?;
        let file = device.open("values", OpenMode::Create).context("cannot make the file of raw reads")?;
        let raw = RawReads { device, file, sizes: settings.sizes };
        let in_block = raw.in_block();
        ensure!(in_block > 0, "raw reads are of 4 KiB: values must not be longer");
        let blocks = settings.records.div_ceil(in_block);
        for first in (0..blocks).step_by(FILL_BLOCKS as usize) {
            raw.fill(first, FILL_BLOCKS.min(blocks - first))?;
        }
        raw.file.sync().context("cannot sync the file of raw reads")?;
        Ok(raw)
    }

    /// How many values a block holds.
    fn in_block(&self) -> u64 {
        (BLOCK_BYTES / self.sizes.value_bytes) as u64
    }

    fn fill(&self, first: u64, count: u64) -> Result<()> {
        let mut buffer = AlignedBuffer::new(count as usize * BLOCK_BYTES);
        let mut value = self.sizes.blank_value();
        for (block, bytes) in (first..).zip(buffer.chunks_exact_mut(BLOCK_BYTES)) {
            let indexes = block * self.in_block()..;
            for (index, place) in indexes.zip(bytes.chunks_exact_mut(value.len())) {
                stamp(&mut value, index, 0);
                place.copy_from_slice(&value);
            }
        }
        let offset = first * BLOCK_BYTES as u64;
        self.file.write_at(&buffer, offset).context("cannot write the file of raw reads")
    }
}

impl Engine for RawReads {
    type Worker<'a> = RawReadsWorker<'a>;

    fn worker(&self) -> Result<RawReadsWorker<'_>> {
        Ok(RawReadsWorker { raw: self, queue: self.device.read_queue(), free: Vec::new() })
    }

    fn key_count(&self) -> Result<u64> {
        Ok(0)
    }

    fn persist(&self) -> Result<()> {
        Ok(())
    }
}

/// One thread's reads.
pub(crate) struct RawReadsWorker<'a> {
    raw: &'a RawReads,
    queue: Box<dyn ReadQueue>,
    free: Vec<AlignedBuffer>,
}

impl RawReadsWorker<'_> {
    /// Begins the read of a key's block, which comes back with this token.
    fn submit(&mut self, key: &[u8], token: usize) {
        let buffer = self.free.pop().unwrap_or_else(|| AlignedBuffer::new(BLOCK_BYTES));
        let offset = index_of(key) / self.raw.in_block() * BLOCK_BYTES as u64;
        let file = Arc::clone(&self.raw.file);
        self.queue.submit(QueuedRead { file, offset, buffer, token: token as u64 });
    }
}

impl Worker for RawReadsWorker<'_> {
    fn get(&mut self, key: &[u8], value: &mut Vec<u8>) -> Result<bool> {
        value.clear();
        self.get_all(&[Key::new(key)], &mut |_, found| {
            value.extend_from_slice(found);
            Ok(())
        })?;
        Ok(true)
    }

    fn put(&mut self, _key: &[u8], _value: &[u8]) -> Result<()> {
        bail!("raw reads write nothing")
    }

    fn put_durably(&mut self, _key: &[u8], _value: &[u8]) -> Result<()> {
        bail!("raw reads write nothing")
    }

    fn get_all(&mut self, keys: &[Key], row: &mut dyn FnMut(usize, &[u8]) -> Result<()>) -> Result<()> {
        let mut next = 0;
        while next < keys.len().min(READS_IN_FLIGHT_MAX) {
            self.submit(&keys[next], next);
            next += 1;
        }
        let mut outcome = Ok(());
        while let Some(read) = self.queue.wait() {
            let at = read.token as usize;
            let count = read.outcome.context("a raw read failed")?;
            ensure!(count == BLOCK_BYTES, "a raw read found {count} bytes");
            let length = self.raw.sizes.value_bytes;
            let start = (index_of(&keys[at]) % self.raw.in_block()) as usize * length;
            if outcome.is_ok() {
                outcome = row(at, &read.buffer[start..start + length]);
            }
            self.free.push(read.buffer);
            if next < keys.len() {
                self.submit(&keys[next], next);
                next += 1;
            }
        }
        outcome
    }

    fn put_all(&mut self, _entries: &[Entry]) -> Result<()> {
        Ok(())
    }

    fn scan(
        &mut self,
        _from: &[u8],
        _count: usize,
        _row: &mut impl FnMut(&[u8], &[u8]) -> Result<()>,
    ) -> Result<()> {
        bail!("raw reads keep no order")
    }

    fn transact(&mut self, _body: &mut dyn FnMut(&mut dyn Access) -> Result<()>) -> Result<()> {
        bail!("raw reads have no transactions")
    }
}
