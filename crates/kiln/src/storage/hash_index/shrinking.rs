//! Shrinking of the hash index: the last buckets are merged into those that they split off from, one after the other, and memory that is
//! not needed any more goes back to the system.
//!
//! Somebody may keep a stamp of a bucket for as long as a transaction takes. So a bucket that comes back by a split goes on from a higher
//! sequence than any had that was merged. Zeros, as which memory reads that was given back, are nobody's stamp, but of buckets that
//! were reserved and never changed: their memory stays.

use super::growth::Growth;
use super::{HashIndex, SEQUENCE_MASK, SPLIT_BITS, unpack};
use crate::storage::epoch;
use crate::sync::atomic::Ordering;

impl HashIndex {
    /// Merges buckets if there are many more than the entries need, and gives their memory back. For a background thread, which is not pinned; who locks
    /// buckets is.
    pub(crate) fn shrink(&self) {
        // With all keys in one index a look at every bucket would take seconds.
        const SAMPLE_BUCKETS: u64 = 1 << 12;
        let (buckets, least) = (self.bucket_count(), 1 << self.base_level);
        let step = buckets.div_ceil(SAMPLE_BUCKETS);
        let sample = (0..buckets).step_by(step as usize);
        let entries = step * sample.map(|bucket| self.entries(bucket).count() as u64).sum::<u64>();
        let needed = HashIndex::buckets_for(entries).max(least);
        // Far from where growth would begin again at once.
        if buckets / 4 >= needed {
            self.shrink_to(2 * needed);
        }
    }

    /// Merges buckets until there are so many, if nobody is in the way.
    pub(crate) fn shrink_to(&self, buckets: u64) {
        const MERGERS_AT_ONCE: u64 = 1 << 10;
        let (before, has_more) = (self.bucket_count(), || self.bucket_count() > buckets);
        while has_more() {
            // In between somebody may grow it.
            let mut growth = self.growth.lock();
            if !(0..MERGERS_AT_ONCE).all(|_| !has_more() || self.merge_last(&mut growth)) {
                break;
            }
        }
        // Whoever was about to lock a bucket that was merged has found that it is none any more. Nobody else merges one meanwhile: it would be given back, too,
        // and who is about to lock that one is not waited for.
        let growth = self.growth.lock();
        epoch::quiesce();
        let end = self.bucket_count().max(growth.reserved);
        if end < before {
            self.buckets.give_back(end, before - end);
        }
        drop(growth);
        self.overflow.give_back_memory();
    }

    /// Merges the last bucket into the one that it split off from; false if somebody keeps one of them locked.
    pub(super) fn merge_last(&self, growth: &mut Growth) -> bool {
        let (level, split) = match unpack(self.state.load(Ordering::SeqCst)) {
            (level, 0) if level == self.base_level => return false,
            (level, 0) => (level - 1, (1 << (level - 1)) - 1),
            (level, split) => (level, split - 1),
        };
        let (old, last) = (split, split + (1 << level));
        if !self.lock_both(old, last) {
            return false;
        }
        self.move_entries(last, |_| old, growth);
        self.state.store((level as u64) << SPLIT_BITS | split, Ordering::SeqCst);
        self.unlock_changed(last);
        self.unlock_changed(old);
        let sequence = self.control(last).load(Ordering::Relaxed) & SEQUENCE_MASK;
        growth.sequence_max = growth.sequence_max.max(sequence);
        true
    }
}
