//! Reads in flight: many at once, by one thread.
//!
//! A disk that serves one read after the other gives a fraction of what it can. A [`ReadQueue`] takes reads without waiting for them and
//! gives them back as they are done, in any order. Buffer and file belong to the queue as long as the read is in flight, so that
//! nobody can take them away from the device; a queue that is dropped waits for what is in flight.

use std::fmt::Debug;
use std::io;
use std::sync::Arc;

use super::{AlignedBuffer, DeviceFile};

/// A read to be done.
#[derive(Debug)]
pub struct QueuedRead {
    /// Where to read.
    pub file: Arc<dyn DeviceFile>,
    /// From where on, in bytes; a multiple of [`BLOCK_BYTES`](super::BLOCK_BYTES).
    pub offset: u64,
    /// What to fill, as far as the file reaches.
    pub buffer: AlignedBuffer,
    /// Comes back with the read, so that its owner knows which it was.
    pub token: u64,
}

/// A read that is done.
#[derive(Debug)]
pub struct FinishedRead {
    /// What came with it.
    pub token: u64,
    /// What was read.
    pub buffer: AlignedBuffer,
    /// As of [`DeviceFile::read_at`].
    pub outcome: io::Result<usize>,
}

/// Reads in flight, of one thread at a time.
pub trait ReadQueue: Send + Debug {
    /// Takes a read. It may begin only when the queue is waited for.
    fn submit(&mut self, read: QueuedRead);

    /// Waits until a read is done; `None` if there is none in flight, or the operating system gives none back any more.
    fn wait(&mut self) -> Option<FinishedRead>;

    /// Has reads begin that were taken, as far as nobody need wait for that, and gives one that is done, if there is one.
    fn take_done(&mut self) -> Option<FinishedRead> {
        None
    }

    /// Whether it serves the process that asks. One that was forked off the process that has made a queue may only be able to drop it.
    fn is_here(&self) -> bool {
        true
    }
}

/// The queue of a device that has no better one: each read is done when it is waited for, the oldest first.
#[derive(Debug, Default)]
pub(super) struct ReadsInTurn {
    reads: std::collections::VecDeque<QueuedRead>,
}

impl ReadQueue for ReadsInTurn {
    fn submit(&mut self, read: QueuedRead) {
        self.reads.push_back(read);
    }

    fn wait(&mut self) -> Option<FinishedRead> {
        self.reads.pop_front().map(QueuedRead::run)
    }
}

impl QueuedRead {
    /// Reads now, on this thread.
    pub(super) fn run(self) -> FinishedRead {
        let QueuedRead { file, offset, mut buffer, token } = self;
        let outcome = file.read_at(&mut buffer, offset);
        FinishedRead { token, buffer, outcome }
    }
}
