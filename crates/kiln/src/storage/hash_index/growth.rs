//! Growth of the hash index by linear hashing: buckets split one after the other, each under its own lock.

use super::{
    Bucket, HashIndex, LOCK, OVERFLOW_SHIFT, SEQUENCE_MASK, SPLIT_BITS, SPLITS_PER_OVERFLOW, TAG_BITS,
    address_of, unpack, wait,
};
use crate::planted::{Bug, planted};
use crate::sync::atomic::Ordering;

/// What whoever splits or merges buckets has to himself.
#[derive(Default)]
pub(super) struct Growth {
    /// Keeps its memory from one bucket to the next.
    scratch: Vec<u64>,
    /// Buckets that were merged had no higher sequence than this.
    pub(super) sequence_max: u64,
    /// So many buckets were reserved at once. Their first sequence is that of memory that nobody has written.
    pub(super) reserved: u64,
}

/// What has become of the next bucket to be split.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Split {
    Made,
    /// Somebody holds it for too long.
    Held,
    /// There is no memory for more, or no bit left to tell two from each other.
    NoRoom,
}

impl HashIndex {
    /// Splits as many buckets as the overflows so far are worth, if nobody else is at it: for who has `inserted` so many entries. What others insert
    /// meanwhile is left to them, and to the keeper: with enough of them nobody would ever come to an end.
    pub(crate) fn grow(&self, inserted: usize) {
        /// Others' splits that somebody who inserts makes for them.
        const HELP: u64 = 64;
        self.split_due_buckets(HELP + SPLITS_PER_OVERFLOW * inserted as u64);
    }

    /// Splits buckets that are due, if nobody else is at it: so many at a time that a background thread comes to its other work, too.
    pub(crate) fn catch_up(&self) {
        const SPLITS: u64 = 1 << 16;
        self.split_due_buckets(SPLITS);
    }

    /// Has no split be due for the overflows so far, of whose entries it [has had room](Self::reserve) for all from the beginning. In the middle of a level the buckets that
    /// are yet to be split have twice as many as the others, and one entry in fifty is in an overflow; eight splits for each would have made all of the rest of the
    /// level while opening waits. They go as it grows.
    pub(crate) fn forgo_splits(&self) {
        self.splits_due.store(0, Ordering::Relaxed);
    }

    /// Splits are due that nobody has made yet.
    pub(crate) fn is_growth_due(&self) -> bool {
        self.splits_due.load(Ordering::Relaxed) != 0
    }

    fn split_due_buckets(&self, most: u64) {
        let Some(mut growth) = self.growth.try_lock() else { return };
        for _ in 0..most {
            // Others only add to it.
            if !self.is_growth_due() {
                return;
            }
            match self.split_next(&mut growth) {
                Split::Made => drop(self.splits_due.fetch_sub(1, Ordering::Relaxed)),
                // It stays due, and so do those behind it.
                Split::Held => return,
                // The next overflow tries again.
                Split::NoRoom => return self.splits_due.store(0, Ordering::Relaxed),
            }
        }
    }

    /// Splits the next bucket.
    pub(super) fn split_next(&self, growth: &mut Growth) -> Split {
        let (level, split) = unpack(self.state.load(Ordering::SeqCst));
        if level == self.base_level + TAG_BITS {
            return Split::NoRoom;
        }
        let new = split + (1 << level);
        // Without memory for more buckets the index stays as it is, only slower.
        if split == 0 && self.buckets.grow_to(2 << level).is_err() {
            return Split::NoRoom;
        }
        // Who found the new one before it was merged may hold it, for as long as it takes him to see that it is no bucket any more.
        if !self.lock_both(split, new) {
            return Split::Held;
        }
        // Whoever has seen the bucket before it was merged finds it changed.
        self.control(new).store(growth.sequence_max | LOCK, Ordering::SeqCst);
        let bit = 1 << (64 - TAG_BITS + level - self.base_level);
        self.move_entries(split, |entry| if entry & bit == 0 { split } else { new }, growth);
        let state = if split + 1 == 1 << level {
            ((level + 1) as u64) << SPLIT_BITS
        } else {
            (level as u64) << SPLIT_BITS | (split + 1)
        };
        if planted(Bug::SplitShownLate) {
            self.unlock_changed(new);
            self.unlock_changed(split);
            self.state.store(state, Ordering::SeqCst);
            return Split::Made;
        }
        self.state.store(state, Ordering::SeqCst);
        self.unlock_changed(new);
        self.unlock_changed(split);
        Split::Made
    }

    /// Locks two buckets, the lower one first, that stay what they are meanwhile; false, and neither is locked, if a holder takes too long.
    pub(super) fn lock_both(&self, lower: Bucket, upper: Bucket) -> bool {
        if !self.lock_patiently(lower) {
            return false;
        }
        let locked = self.lock_patiently(upper);
        if !locked {
            self.unlock_unchanged(lower);
        }
        locked
    }

    fn lock_patiently(&self, bucket: Bucket) -> bool {
        let mut waits = 0;
        loop {
            if self.try_lock(bucket, LOCK) {
                return true;
            }
            if !wait(&mut waits) {
                return false;
            }
        }
    }

    /// Takes the entries out of a bucket, and puts each into the one that is `to` have it. The caller holds all of them.
    pub(super) fn move_entries(&self, from: Bucket, to: impl Fn(u64) -> Bucket, growth: &mut Growth) {
        let scratch = &mut growth.scratch;
        scratch.clear();
        for slot in self.slots(from) {
            let entry = slot.load(Ordering::Relaxed);
            if entry != 0 {
                scratch.push(entry);
                slot.store(0, Ordering::Release);
            }
        }
        let control = self.control(from);
        let word = control.load(Ordering::Relaxed);
        control.store(word & (SEQUENCE_MASK | LOCK), Ordering::SeqCst);
        self.overflow.give_back(word >> OVERFLOW_SHIFT);
        for &entry in scratch.iter() {
            // An overflow here is left for the next round of splits.
            let _ = self.insert_entry(to(entry), entry);
        }
    }

    fn insert_entry(&self, bucket: Bucket, entry: u64) -> bool {
        // The tag's place in the entry is its place in `hash`, shifted; see `entry`.
        self.insert(bucket, entry >> (64 - TAG_BITS) << self.base_level, address_of(entry))
    }
}
