//! Counts for `INFO`.
//!
//! Each batch of each connection counts. Side by side, and beside what others read, the counts would go from processor to processor all the time; so they are in
//! stripes, each on a cache line of its own, of which a thread has one, and whoever asks adds them up.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Threads beyond so many share.
const STRIPES: usize = 64;

/// What is counted.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Count {
    Commands,
    RejectedConnections,
    ProtocolErrors,
    ReceivedBytes,
    SentBytes,
}

/// The counts of some threads, by [`Count`]. Processors fetch lines in pairs.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Stripe([AtomicU64; Count::SentBytes as usize + 1]);

const _: () = assert!(size_of::<Stripe>() == 128);

/// The counts of a server since it began.
#[derive(Debug)]
pub(crate) struct Counters(Box<[Stripe; STRIPES]>);

impl Default for Counters {
    fn default() -> Self {
        Self(Box::new(std::array::from_fn(|_| Stripe::default())))
    }
}

impl Counters {
    /// Counts so many more.
    pub(crate) fn add(&self, count: Count, more: u64) {
        self.stripe().0[count as usize].fetch_add(more, Ordering::Relaxed);
    }

    /// How many there were.
    pub(crate) fn total(&self, count: Count) -> u64 {
        self.0.iter().map(|stripe| stripe.0[count as usize].load(Ordering::Relaxed)).sum()
    }

    /// That of this thread.
    fn stripe(&self) -> &Stripe {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        thread_local! {
            static NUMBER: usize = NEXT.fetch_add(1, Ordering::Relaxed) % STRIPES;
        }
        // A thread that ends has none any more.
        &self.0[NUMBER.try_with(|number| *number).unwrap_or(0)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All of them wrote to one line.
    #[test]
    fn threads_count_beside_each_other_and_nothing_is_left_out() {
        let counters = Counters::default();
        let count = || {
            counters.add(Count::Commands, 2);
            counters.add(Count::SentBytes, 3);
            std::ptr::from_ref(counters.stripe()).addr()
        };
        let on_its_own = || std::thread::scope(|scope| scope.spawn(count).join().unwrap());
        let mut places = [on_its_own(), on_its_own(), count()];
        places.sort_unstable();
        assert!(places.windows(2).all(|two| two[1] - two[0] >= 128), "{places:?}");
        // More of them than there are stripes.
        (0..2 * STRIPES).for_each(|_| _ = on_its_own());
        let threads = 3 + 2 * STRIPES as u64;
        assert_eq!(
            (counters.total(Count::Commands), counters.total(Count::SentBytes)),
            (2 * threads, 3 * threads)
        );
        assert_eq!(counters.total(Count::ReceivedBytes), 0);
    }
}
