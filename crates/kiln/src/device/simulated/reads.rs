//! Reads in flight on a simulated disk: they are done in an order that the seed decides.

use super::random::Random;
use crate::device::reads::{FinishedRead, QueuedRead, ReadQueue};

/// Each read is done when it is given back, so that it sees the disk as it is then.
#[derive(Debug)]
pub(super) struct ReadsInAnyOrder {
    reads: Vec<QueuedRead>,
    random: Random,
}

impl ReadsInAnyOrder {
    pub(super) fn new(seed: u64) -> ReadsInAnyOrder {
        ReadsInAnyOrder { reads: Vec::new(), random: Random::new(seed) }
    }
}

impl ReadQueue for ReadsInAnyOrder {
    fn submit(&mut self, read: QueuedRead) {
        self.reads.push(read);
    }

    fn wait(&mut self) -> Option<FinishedRead> {
        if self.reads.is_empty() {
            return None;
        }
        let next = self.random.below(self.reads.len());
        Some(self.reads.swap_remove(next).run())
    }
}
