//! Zeroed memory as words of loom's, in the shape of the engine's mapped memory.

use std::io;
use std::ops::Deref;

use crate::sync::atomic::{AtomicU64, Ordering};

/// As many as a record's prefetch looks for.
pub(crate) const LINE_WORDS: usize = 8;

/// An array of words.
pub(crate) struct Words(Box<[AtomicU64]>);

impl Words {
    pub(crate) fn new(count: usize) -> io::Result<Words> {
        Ok(Words((0..count).map(|_| AtomicU64::new(0)).collect()))
    }

    pub(crate) fn clear(&self, first: usize, count: usize) {
        self[first..first + count].iter().for_each(|word| word.store(0, Ordering::Relaxed));
    }

    /// It is there from the beginning.
    pub(crate) fn populate(&self, _first: usize, _count: usize) {}
}

impl Deref for Words {
    type Target = [AtomicU64];

    fn deref(&self) -> &[AtomicU64] {
        &self.0
    }
}

/// There is no cache to fetch into.
pub(crate) fn prefetch(_: &AtomicU64) {}
