//! Walks over the whole index, in pieces, while it grows and shrinks: of cursors that clients have, and of checkpoints.
//!
//! A walk goes by *places*: a place is a hash whose bits are read in reverse, the lowest first. A bucket's hashes have their lowest bits in common, so it is an
//! interval of places; a split cuts it in half, and a merger puts the halves together. So a place means the same at every level, a walk goes on from it through
//! the buckets that there are now, each read by itself, and what of a merged bucket lies before it is known by the tag (Redis' `SCAN` goes in the same order).
//!
//! Rejected: buckets of the level at which a walk began, each read at one moment with all that have split off from it since. Of an old level, and a cursor may be
//! of any, that is as much of the index as one likes, and beside a key that is written all the time there is no such moment.

use super::entry::TAG_BITS;
use super::{BASE_LEVEL_MAX, Bucket, HashIndex, address_of, unpack};
use crate::storage::record::Address;
use crate::sync::atomic::Ordering;

/// A cursor is a place, of which an index has no more bits than these: some clients keep it in a double, which has 53.
pub(super) const CURSOR_BITS: u32 = BASE_LEVEL_MAX + TAG_BITS;
const CURSOR_SHIFT: u32 = u64::BITS - CURSOR_BITS;

impl HashIndex {
    /// The addresses in the bucket at a cursor, from there on, and the cursor that follows, if any. The walk begins with cursor 0. An entry that is there
    /// throughout a walk is met exactly once, however the index grows and shrinks meanwhile.
    pub(crate) fn addresses_at(&self, cursor: u64) -> (Vec<Address>, Option<u64>) {
        // A cursor comes back from clients, and may be anything.
        if cursor >> CURSOR_BITS != 0 {
            return (Vec::new(), None);
        }
        let mut entries = Vec::new();
        let last = self.read_bucket(cursor << CURSOR_SHIFT, u64::MAX, &mut entries);
        entries.iter_mut().for_each(|entry| *entry = address_of(*entry));
        let next = last.checked_add(1);
        // It is nowhere near this one in memory.
        next.into_iter().for_each(|next| self.prefetch(next.reverse_bits()));
        (entries, next.map(|next| next >> CURSOR_SHIFT))
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
    pub(crate) fn read_family(&self, level: u32, first: Bucket, entries: &mut Vec<u64>) {
        entries.clear();
        let mut place = first.reverse_bits();
        let end = place | u64::MAX >> level;
        loop {
            let last = self.read_bucket(place, end, entries);
            if last == end {
                return;
            }
            place = last + 1;
        }
    }

    /// Adds the entries that the bucket at a place has from there to `end`, all of one moment. Returns the last place that they are of.
    fn read_bucket(&self, place: u64, end: u64, entries: &mut Vec<u64>) -> u64 {
        let before = entries.len();
        loop {
            // However long somebody holds it.
            let Some((bucket, stamp)) = self.stamp(place.reverse_bits()) else { continue };
            let place_of = |entry| self.hash_of_entry(entry, bucket).reverse_bits();
            entries.extend(self.entries(bucket).filter(|&entry| (place..=end).contains(&place_of(entry))));
            let (level, split) = unpack(self.state.load(Ordering::SeqCst));
            // A split, or a merger, changes the bucket, so an unchanged one was of this level all the time.
            if self.unchanged(bucket, stamp) {
                let bits = level + u32::from(bucket < split || bucket >> level != 0);
                return end.min(place | u64::MAX >> bits);
            }
            entries.truncate(before);
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
