//! Counts of what happens often, without a word that threads share.
//!
//! A thread counts in cache lines of its own, by a load and a store. An addition that is atomic waits until what the thread has written before is in the cache, and a
//! line that several count in is taken from one to the other each time. It is enough because no two threads have the same [index](epoch::thread_index), at
//! least while they are pinned.

use super::epoch;
use crate::sync::atomic::{AtomicU64, Ordering};

/// Threads with a higher index share [some lines](STRIPES), and add to them atomically.
const THREADS_MAX: usize = 128;
const STRIPES: usize = 16;

/// One thread's, or that of a few threads; alone on its cache lines.
#[repr(align(128))]
struct Stripe<const KINDS: usize>([AtomicU64; KINDS]);

/// How often each of so many kinds of things has happened.
pub(crate) struct Counts<const KINDS: usize> {
    own: Box<[Stripe<KINDS>]>,
    shared: Box<[Stripe<KINDS>]>,
}

impl<const KINDS: usize> Counts<KINDS> {
    pub(crate) fn new() -> Counts<KINDS> {
        let stripe = |_| Stripe(std::array::from_fn(|_| AtomicU64::new(0)));
        let stripes = |count: usize| (0..count).map(stripe).collect();
        Counts { own: stripes(THREADS_MAX), shared: stripes(STRIPES) }
    }

    /// Counts one of this kind; exact if the calling thread is pinned, or at least not just ending.
    #[inline]
    pub(crate) fn note(&self, kind: usize) {
        let thread = epoch::thread_index();
        match self.own.get(thread) {
            Some(Stripe(counts)) => {
                let count = &counts[kind];
                count.store(count.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
            }
            None => drop(self.shared[thread % STRIPES].0[kind].fetch_add(1, Ordering::Relaxed)),
        }
    }

    /// How many there were of each; exact while nobody counts. Takes a lock of the process and reads a cache line for each thread: for statistics.
    pub(crate) fn sums(&self) -> [u64; KINDS] {
        let threads = epoch::threads_max();
        let own = &self.own[..threads.min(THREADS_MAX)];
        let shared = if threads > THREADS_MAX { &self.shared[..] } else { &[] };
        let mut sums = [0; KINDS];
        for Stripe(counts) in own.iter().chain(shared) {
            sums.iter_mut().zip(counts).for_each(|(sum, count)| *sum += count.load(Ordering::Relaxed));
        }
        sums
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_count_is_lost_however_many_threads_count_at_the_same_time() {
        const THREADS: u64 = THREADS_MAX as u64 + 20;
        let (counts, all_are_here) = (Counts::new(), std::sync::Barrier::new(THREADS as usize));
        let rounds = if cfg!(miri) { 5 } else { 1_000 };
        std::thread::scope(|scope| {
            for _ in 0..THREADS {
                scope.spawn(|| {
                    drop(epoch::pin());
                    all_are_here.wait();
                    for _ in 0..rounds {
                        let _pin = epoch::pin();
                        counts.note(0);
                        counts.note(1);
                    }
                    // Or an index would be another thread's already.
                    all_are_here.wait();
                });
            }
        });
        assert_eq!(counts.sums(), [THREADS * rounds; 2]);
    }
}
