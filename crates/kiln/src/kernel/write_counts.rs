//! How commits have written their records, counted without a word that threads share.
//!
//! A thread counts in cache lines of its own, by a load and a store. An addition that is atomic would have each commit wait until what it
//! has written before is in the cache, which is what releasing stores avoid throughout a commit. It is enough because who counts is pinned: no two pinned
//! threads have the same [index](epoch::thread_index).

use crate::storage::epoch;
use crate::sync::atomic::{AtomicU64, Ordering};

/// Threads with a higher index share [some lines](STRIPES), and add to them atomically.
const THREADS_MAX: usize = 128;
const STRIPES: usize = 16;

/// How a record came to be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Written {
    /// Into the key's record, where that was.
    InPlace,
    /// Anew, since the key's record could not be written in place.
    Copied,
    /// Anew, since the key had none.
    Inserted,
    /// Anew, as it was, by compaction or so that it stays in memory.
    Moved,
}

const KINDS: usize = 4;

/// One thread's, or that of a few threads; alone on its cache lines.
#[derive(Default)]
#[repr(align(128))]
struct Counts([AtomicU64; KINDS]);

/// See the module's documentation.
pub(crate) struct WriteCounts {
    own: Box<[Counts]>,
    shared: Box<[Counts]>,
}

impl WriteCounts {
    pub(crate) fn new() -> WriteCounts {
        let counts = |count| (0..count).map(|_| Counts::default()).collect();
        WriteCounts { own: counts(THREADS_MAX), shared: counts(STRIPES) }
    }

    /// Counts one. The caller is pinned.
    #[inline]
    pub(crate) fn note(&self, how: Written) {
        let thread = epoch::thread_index();
        match self.own.get(thread) {
            Some(Counts(counts)) => {
                let count = &counts[how as usize];
                count.store(count.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
            }
            None => drop(self.shared[thread % STRIPES].0[how as usize].fetch_add(1, Ordering::Relaxed)),
        }
    }

    /// How many there were since the database was opened; exact while nobody writes.
    pub(crate) fn sums(&self) -> WriteSums {
        let threads = epoch::threads_max();
        let own = &self.own[..threads.min(THREADS_MAX)];
        let shared = if threads > THREADS_MAX { &self.shared[..] } else { &[] };
        let mut sums = [0; KINDS];
        for Counts(counts) in own.iter().chain(shared) {
            sums.iter_mut().zip(counts).for_each(|(sum, count)| *sum += count.load(Ordering::Relaxed));
        }
        WriteSums(sums)
    }
}

/// How many records were written, and how.
pub(crate) struct WriteSums([u64; KINDS]);

impl WriteSums {
    pub(crate) fn of(&self, how: Written) -> u64 {
        self.0[how as usize]
    }

    /// Those that take log of their own.
    pub(crate) fn appended(&self) -> u64 {
        [Written::Copied, Written::Inserted, Written::Moved].map(|how| self.of(how)).iter().sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_count_is_lost_however_many_threads_count_at_the_same_time() {
        const THREADS: u64 = THREADS_MAX as u64 + 20;
        let (counts, all_are_here) = (WriteCounts::new(), std::sync::Barrier::new(THREADS as usize));
        let rounds = if cfg!(miri) { 5 } else { 1_000 };
        std::thread::scope(|scope| {
            for _ in 0..THREADS {
                scope.spawn(|| {
                    drop(epoch::pin());
                    all_are_here.wait();
                    for _ in 0..rounds {
                        let _pin = epoch::pin();
                        counts.note(Written::InPlace);
                        counts.note(Written::Copied);
                    }
                    // Or an index would be another thread's already.
                    all_are_here.wait();
                });
            }
        });
        let sums = counts.sums();
        assert_eq!((sums.of(Written::InPlace), sums.appended()), (THREADS * rounds, THREADS * rounds));
    }
}
