//! Overflow buckets of the hash index.

use super::super::memory::{Line, Lines, no_memory};
use super::{CONTROL, ENTRIES};
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sync::{Mutex, OnceLock};

const OVERFLOW_MAX: u64 = (1 << 27) - 1;

/// Overflow buckets: entries as in a bucket, and the number of the next overflow bucket in the last word.
/// Number 0 is "none". Freed ones are reused; a reader on one sees its bucket's stamp change.
pub(super) struct Overflow {
    /// Few databases are so small that they never need one, but those are opened often, in tests.
    lines: OnceLock<Lines>,
    next: AtomicU64,
    free: Mutex<Vec<u64>>,
}

impl Overflow {
    /// None yet.
    pub(super) fn new() -> Overflow {
        Overflow { lines: OnceLock::new(), next: AtomicU64::new(1), free: Mutex::new(Vec::new()) }
    }

    /// How many were ever taken, and none.
    pub(super) fn lines_taken(&self) -> u64 {
        self.next.load(Ordering::Relaxed)
    }

    /// One that is free, and empty.
    pub(super) fn take(&self) -> u64 {
        const FIRST_LINES: usize = 64;
        let mut free = self.free.lock();
        if let Some(number) = free.pop() {
            return number;
        }
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let lines = self.lines.get_or_init(|| {
            Lines::reserve(FIRST_LINES, OVERFLOW_MAX as usize + 1)
                .unwrap_or_else(|_| no_memory::<Line>(FIRST_LINES))
        });
        let usable = lines.usable();
        if number as usize >= usable {
            let more = (2 * usable).max(FIRST_LINES);
            lines.grow_to(more).unwrap_or_else(|_| no_memory::<Line>(more));
        }
        number
    }

    /// Makes an overflow bucket, and those behind it, free.
    pub(super) fn give_back(&self, mut number: u64) {
        while let Some(line) = self.line(number) {
            let next = line[CONTROL].swap(0, Ordering::Relaxed);
            self.free.lock().push(number);
            number = next;
        }
    }

    /// Gives the memory back, if all of them are free.
    pub(super) fn give_back_memory(&self) {
        let mut free = self.free.lock();
        let taken = self.lines_taken();
        if let Some(lines) = self.lines.get()
            && free.len() as u64 + 1 == taken
        {
            lines.give_back(0, taken);
            *free = Vec::new();
            self.next.store(1, Ordering::Relaxed);
        }
    }

    /// The slots of an overflow bucket and of those behind it.
    #[inline]
    pub(super) fn slots(&self, first: u64) -> impl Iterator<Item = &AtomicU64> {
        std::iter::successors(self.line(first), |line| self.line(line[CONTROL].load(Ordering::Acquire)))
            .flat_map(|line| &line[..ENTRIES])
    }

    /// The overflow bucket with this number; `None` for 0.
    #[inline]
    pub(super) fn line(&self, number: u64) -> Option<&Line> {
        if number == 0 {
            return None;
        }
        self.lines.get().map(|lines| lines.line(number))
    }
}
