//! How far work in the background has come, for statistics.

use crate::sync::atomic::{AtomicU64, Ordering};

/// How much of some work is done. It is set by who does the work, one at a time, and read by anybody.
#[derive(Default)]
pub(crate) struct Gauge {
    done: AtomicU64,
    total: AtomicU64,
}

impl Gauge {
    /// So much of so much is done.
    pub(crate) fn set(&self, done: u64, total: u64) {
        self.total.store(total, Ordering::Relaxed);
        self.done.store(done, Ordering::Relaxed);
    }

    /// There is nothing to do.
    pub(crate) fn clear(&self) {
        self.set(0, 0);
    }

    /// What is done, and what of; (0, 0) while there is nothing to do. Never more is done than there is, though the two are read one after the other.
    pub(crate) fn read(&self) -> (u64, u64) {
        let total = self.total.load(Ordering::Relaxed);
        (self.done.load(Ordering::Relaxed).min(total), total)
    }
}
