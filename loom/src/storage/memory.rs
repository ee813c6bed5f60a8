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

/// Words that belong together.
pub(crate) type Line = [AtomicU64; LINE_WORDS];

/// An array of lines, as long as it is at the beginning: a model is over before it grows.
pub(crate) struct Lines(Box<[Line]>);

impl Lines {
    pub(crate) fn reserve(least: usize, _most: usize) -> io::Result<Lines> {
        Ok(Lines((0..least).map(|_| std::array::from_fn(|_| AtomicU64::new(0))).collect()))
    }

    pub(crate) fn grow_to(&self, count: usize) -> io::Result<()> {
        if count <= self.0.len() { Ok(()) } else { Err(io::ErrorKind::OutOfMemory.into()) }
    }

    pub(crate) fn give_back(&self, first: u64, count: u64) {
        let lines = &self.0[first as usize..][..count as usize];
        lines.iter().flatten().for_each(|word| word.store(0, Ordering::Relaxed));
    }

    pub(crate) fn usable(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn line(&self, number: u64) -> &Line {
        &self.0[number as usize]
    }
}

pub(crate) fn no_memory<T>(count: usize) -> ! {
    panic!("no memory for {count} times {}", std::any::type_name::<T>())
}

/// There is no cache to fetch into.
pub(crate) fn prefetch(_: &AtomicU64) {}
