//! Walks over the whole index, in pieces, while it grows and shrinks: of cursors that clients have, and of checkpoints.

use super::entry::TAG_BITS;
use super::{Bucket, HashIndex, LOCK, address_of, bucket_in, unpack};
use crate::storage::record::Address;
use crate::sync::atomic::Ordering;
use crate::sync::thread;

/// A cursor has the level in its lowest bits: some clients keep it in a double, which has 53.
pub(super) const CURSOR_LEVEL_BITS: u32 = 6;
pub(super) const CURSOR_LEVEL: u32 = (1 << CURSOR_LEVEL_BITS) - 1;

/// What [`HashIndex::read_family`] has read; keeps its memory from one to the next.
pub(crate) struct Family {
    pub(crate) entries: Vec<u64>,
    /// The control words under which they were read.
    controls: Vec<u64>,
}

impl Family {
    pub(crate) const fn new() -> Family {
        Family { entries: Vec::new(), controls: Vec::new() }
    }
}

impl HashIndex {
    /// The addresses at a cursor, and the cursor that follows, if any. The walk begins with cursor 0. An entry
    /// that is there throughout a walk is met exactly once, however the index grows and shrinks meanwhile: a cursor stands
    /// for a bucket as of the level where the walk began, together with all that split off from it since, or for its part of the
    /// bucket that it was merged into.
    pub(crate) fn addresses_at(&self, cursor: u64) -> (Vec<Address>, Option<u64>) {
        let now = unpack(self.state.load(Ordering::SeqCst)).0;
        let (level, first) = match (cursor as u32 & CURSOR_LEVEL, cursor >> CURSOR_LEVEL_BITS) {
            (0, _) => (now, 0),
            // A cursor comes back from clients, and may be anything.
            (level, first) => (level.clamp(self.base_level, self.base_level + TAG_BITS), first),
        };
        let base = 1u64 << level;
        if first >= base {
            return (Vec::new(), None);
        }
        let next = (first + 1 < base).then_some((first + 1) << CURSOR_LEVEL_BITS | level as u64);
        let mut family = Family::new();
        self.read_family(level, first, &mut family);
        family.entries.iter_mut().for_each(|entry| *entry = address_of(*entry));
        (family.entries, next)
    }

    /// The level now: a walk over [`Self::read_family`] of all buckets of one level meets an entry that is there throughout
    /// exactly once, however the index grows and shrinks meanwhile.
    pub(crate) fn level(&self) -> u32 {
        unpack(self.state.load(Ordering::SeqCst)).0
    }

    /// Whether that much of a hash is part of this one; see [`Self::hash_of_entry`].
    pub(crate) fn is_known_hash(&self, known: u64, hash: u64) -> bool {
        known == hash & ((1 << (self.base_level + TAG_BITS)) - 1)
    }

    /// The entries of a bucket of this level, and of all buckets that have split off from it; if it is not there any more, those of its entries
    /// that are in the bucket that it was merged into.
    pub(crate) fn read_family(&self, level: u32, first: Bucket, family: &mut Family) {
        let Family { entries, controls } = family;
        // Its first bucket, and whether that has more entries than these.
        let home = || {
            let state = self.state.load(Ordering::SeqCst);
            (bucket_in(state, first), unpack(state).0 < level)
        };
        loop {
            entries.clear();
            controls.clear();
            let (begin, is_merged) = home();
            let step = if is_merged { usize::MAX } else { 1 << level };
            let members = || (begin..self.bucket_count()).step_by(step);
            controls.extend(members().map(|bucket| self.control(bucket).load(Ordering::SeqCst)));
            if controls.iter().all(|control| control & LOCK == 0) {
                members().for_each(|bucket| entries.extend(self.entries(bucket)));
                // A split, or a merger, changes both buckets, so an unchanged family was read whole.
                let now = members().map(|bucket| self.control(bucket).load(Ordering::SeqCst));
                if now.eq(controls.iter().copied()) && home() == (begin, is_merged) {
                    let is_of_it = |entry| self.hash_of_entry(entry, begin) & ((1 << level) - 1) == first;
                    entries.retain(|&entry| !is_merged || is_of_it(entry));
                    return;
                }
            }
            thread::yield_now();
        }
    }

    /// As much of its key's hash as an entry and the number of its bucket tell, which is all that an index of the same base
    /// level ever asks for.
    pub(crate) fn hash_of_entry(&self, entry: u64, bucket: Bucket) -> u64 {
        entry >> (64 - TAG_BITS) << self.base_level | bucket & ((1 << self.base_level) - 1)
    }

    /// How many entries there are; exact while nothing is written. Looks at all buckets.
    pub(crate) fn entry_count(&self) -> u64 {
        (0..self.bucket_count()).map(|bucket| self.entries(bucket).count() as u64).sum()
    }

    /// The buckets, each with the addresses in it; for checks while nothing is written.
    pub(crate) fn buckets(&self) -> impl Iterator<Item = (Bucket, Vec<Address>)> {
        (0..self.bucket_count()).map(|bucket| (bucket, self.entries(bucket).map(address_of).collect()))
    }
}
