//! Growth of the hash index by linear hashing: buckets split one after the other, each under its own lock.

use super::{
    Bucket, HashIndex, LOCK, OVERFLOW_SHIFT, SEQUENCE_MASK, SPLIT_BITS, TAG_BITS, address_of, unpack, wait,
};
use crate::planted::{Bug, planted};
use crate::sync::atomic::Ordering;

impl HashIndex {
    /// Splits as many buckets as the overflows so far are worth, if nobody else is at it.
    pub(crate) fn grow(&self) {
        let Some(mut scratch) = self.growth.try_lock() else { return };
        loop {
            let due = self.splits_due.swap(0, Ordering::Relaxed);
            // Where a bucket cannot be split now, the next overflow tries again.
            if due == 0 || !(0..due).all(|_| self.split_next(&mut scratch)) {
                return;
            }
        }
    }

    fn split_next(&self, scratch: &mut Vec<u64>) -> bool {
        let (level, split) = unpack(self.state.load(Ordering::SeqCst));
        if level == self.base_level + TAG_BITS {
            return false;
        }
        let new = split + (1 << level);
        // Without memory for more buckets the index stays as it is, only slower.
        if split == 0 && self.buckets.grow_to(2 << level).is_err() {
            return false;
        }
        let mut waits = 0;
        while !self.try_lock(split, LOCK) {
            if !wait(&mut waits) {
                return false;
            }
        }
        self.control(new).store(LOCK, Ordering::SeqCst);
        self.move_entries(split, new, 1 << (64 - TAG_BITS + level - self.base_level), scratch);
        let state = if split + 1 == 1 << level {
            ((level + 1) as u64) << SPLIT_BITS
        } else {
            (level as u64) << SPLIT_BITS | (split + 1)
        };
        if planted(Bug::SplitShownLate) {
            self.unlock_changed(new);
            self.unlock_changed(split);
            self.state.store(state, Ordering::SeqCst);
            return true;
        }
        self.state.store(state, Ordering::SeqCst);
        self.unlock_changed(new);
        self.unlock_changed(split);
        true
    }

    /// Deals the entries of `old` out to `old` and `new` by one bit of the tag. Both are locked.
    fn move_entries(&self, old: Bucket, new: Bucket, bit: u64, scratch: &mut Vec<u64>) {
        scratch.clear();
        for slot in self.slots(old) {
            let entry = slot.load(Ordering::Relaxed);
            if entry != 0 {
                scratch.push(entry);
                slot.store(0, Ordering::Release);
            }
        }
        let control = self.control(old);
        let word = control.load(Ordering::Relaxed);
        control.store(word & (SEQUENCE_MASK | LOCK), Ordering::SeqCst);
        self.overflow.give_back(word >> OVERFLOW_SHIFT);
        for &entry in scratch.iter() {
            let bucket = if entry & bit == 0 { old } else { new };
            // An overflow here is left for the next round of splits.
            let _ = self.insert_entry(bucket, entry);
        }
    }

    fn insert_entry(&self, bucket: Bucket, entry: u64) -> bool {
        // The tag's place in the entry is its place in `hash`, shifted; see `entry`.
        self.insert(bucket, entry >> (64 - TAG_BITS) << self.base_level, address_of(entry))
    }
}
