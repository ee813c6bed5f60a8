//! Counters of an index, spread over cache lines so that threads that insert at the same time do not share
//! one. A sum is exact when nothing runs.

use crate::storage::epoch;
use crate::sync::atomic::{AtomicIsize, Ordering};

const SHARDS: usize = 16;

/// One thread's share (or that of a few threads). A share alone may be negative.
#[derive(Default)]
#[repr(align(128))]
struct Shard {
    keys: AtomicIsize,
    key_bytes: AtomicIsize,
}

/// The number of keys and the bytes of heap memory that keys use.
#[derive(Default)]
pub(super) struct Counters {
    shards: [Shard; SHARDS],
}

impl Counters {
    /// Who acquires what this releases, by [`Self::keys`] and a fence, has seen what was done before it.
    pub(super) fn add_keys(&self, change: isize) {
        self.shard().keys.fetch_add(change, Ordering::Release);
    }

    pub(super) fn add_key_bytes(&self, change: isize) {
        if change != 0 {
            self.shard().key_bytes.fetch_add(change, Ordering::Relaxed);
        }
    }

    pub(super) fn keys(&self) -> usize {
        self.sum(|shard| &shard.keys)
    }

    pub(super) fn key_bytes(&self) -> usize {
        self.sum(|shard| &shard.key_bytes)
    }

    fn shard(&self) -> &Shard {
        &self.shards[epoch::thread_index() % SHARDS]
    }

    fn sum(&self, counter: impl Fn(&Shard) -> &AtomicIsize) -> usize {
        let sum: isize = self.shards.iter().map(|shard| counter(shard).load(Ordering::Relaxed)).sum();
        usize::try_from(sum).unwrap_or(0)
    }
}
