//! Where a merge takes free blocks from, and what it gives up: from the lowest on, in a file that grows as it needs to.
//!
//! ```text
//!  one thread      each node and each value takes what it needs                  |1|1|2|1|..
//!  several         each has a stretch of its own, for what it writes next        |1 1 1 1 1|2 2 2 2 2|1 1 1 ..
//! ```
//!
//! So what one of several threads writes lies side by side as well.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;

use super::reference::NODE_BLOCKS_MAX;
use super::space::{Run, Space};
use crate::device::{BLOCK_BYTES, DeviceFile};
use crate::error::{Error, ErrorKind, Result, is_disk_full};
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicBool, Ordering};

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

/// Gives out blocks, and takes them back.
pub(super) trait Blocks {
    /// Takes free blocks in a row, and makes sure that the file has them.
    ///
    /// # Errors
    /// `NoSpace` or `Io`, if it cannot have them.
    fn take(&mut self, blocks: usize) -> Result<u64>;

    /// Notes that the new root does not need these blocks any more; false, and nothing, if they are not all in use.
    #[must_use]
    fn free(&mut self, run: Run) -> bool;
}

/// The blocks of a file.
pub(super) struct FileBlocks<'a> {
    file: Arc<dyn DeviceFile>,
    name: &'a str,
    pub(super) space: &'a mut Space,
    /// The file's length, of which its owner knows however this ends.
    file_bytes: &'a mut u64,
    /// So much of its end is kept free.
    reserve_bytes: u64,
    /// It grows by no more at once: the disk had no room for twice that.
    step_bytes_max: u64,
}

impl<'a> FileBlocks<'a> {
    pub(super) fn new(
        file: Arc<dyn DeviceFile>,
        name: &'a str,
        space: &'a mut Space,
        (file_bytes, reserve_bytes): (&'a mut u64, u64),
    ) -> Self {
        FileBlocks { file, name, space, file_bytes, reserve_bytes, step_bytes_max: STEP_BYTES_MAX }
    }

    /// Makes sure that the file is so long, and has its reserve behind that. It grows by less the less room the disk has.
    pub(super) fn grow_to(&mut self, end: u64) -> Result<()> {
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
}

impl Blocks for FileBlocks<'_> {
    fn take(&mut self, blocks: usize) -> Result<u64> {
        let block = self.space.take(blocks as u64);
        let block = block.ok_or_else(|| {
            let full =
                io::Error::new(io::ErrorKind::StorageFull, "the file has as many blocks as it may have");
            Error::io(format_args!("writing {}", self.name), full)
        })?;
        self.grow_to((block + blocks as u64) * BLOCK_BYTES as u64)?;
        Ok(block)
    }

    fn free(&mut self, run: Run) -> bool {
        self.space.free(run)
    }
}

/// So many blocks has a stretch, about.
const STRETCH_BLOCKS: u64 = 256;

impl FileBlocks<'_> {
    /// Takes blocks as [`take`](Blocks::take) does, and further ones of which as many are in a row, as far as the file has them, until there are enough for a stretch.
    fn take_stretch(&mut self, blocks: usize) -> Result<VecDeque<Run>> {
        let (in_a_row, block) = (blocks as u64, self.take(blocks)?);
        let end = self.file_bytes.saturating_sub(self.reserve_bytes) / BLOCK_BYTES as u64;
        let (mut runs, mut count) = (VecDeque::from([Run { block, blocks: in_a_row }]), in_a_row);
        while count < STRETCH_BLOCKS && self.space.next_free(in_a_row) + in_a_row <= end {
            let block = self.take(blocks)?;
            count += in_a_row;
            match runs.back_mut() {
                Some(last) if last.block + last.blocks == block => last.blocks += in_a_row,
                _ => runs.push_back(Run { block, blocks: in_a_row }),
            }
        }
        Ok(runs)
    }
}

/// The blocks of one of several threads that merge.
pub(super) struct Stretches<'a, 'm, 's> {
    all: &'a Mutex<&'m mut FileBlocks<'s>>,
    /// What is left of its stretch.
    runs: VecDeque<Run>,
    /// Another thread has failed.
    is_over: &'a AtomicBool,
    /// For that reason this one was stopped.
    pub(super) was_stopped: bool,
}

impl<'a, 'm, 's> Stretches<'a, 'm, 's> {
    /// Takes what it gives out from all; nothing more once it `is_over`.
    pub(super) fn new(all: &'a Mutex<&'m mut FileBlocks<'s>>, is_over: &'a AtomicBool) -> Self {
        Stretches { all, runs: VecDeque::new(), is_over, was_stopped: false }
    }

    /// Gives back what it has not given out.
    pub(super) fn give_back(&mut self) {
        let mut all = self.all.lock();
        self.runs.drain(..).for_each(|run| all.space.give_back(run));
    }
}

impl Blocks for Stretches<'_, '_, '_> {
    fn take(&mut self, blocks: usize) -> Result<u64> {
        if self.is_over.load(Ordering::Relaxed) {
            self.was_stopped = true;
            return Err(Error::new(ErrorKind::Aborted, "another thread of the merge has failed"));
        }
        if blocks > NODE_BLOCKS_MAX as usize {
            return self.all.lock().take(blocks);
        }
        let in_a_row = blocks as u64;
        while self.runs.front().is_none_or(|run| run.blocks < in_a_row) {
            let mut all = self.all.lock();
            match self.runs.pop_front() {
                Some(short) => all.space.give_back(short),
                None => self.runs = all.take_stretch(blocks)?,
            }
        }
        let run = self.runs.front_mut().expect("there is one that is long enough");
        let block = run.block;
        (run.block, run.blocks) = (block + in_a_row, run.blocks - in_a_row);
        Ok(block)
    }

    fn free(&mut self, run: Run) -> bool {
        self.all.lock().free(run)
    }
}
