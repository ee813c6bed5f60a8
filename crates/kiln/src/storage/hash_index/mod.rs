//! The hash index: finds the newest record of every (object, key).
//!
//! ```text
//! bucket (one cache line):  entry | entry | entry | entry | entry | entry | entry | control
//! entry:    tag 19 bits | address / 8, 45 bits          (0 = free)
//! control:  overflow bucket 27 bits | sequence 35 bits | quiet lock 1 bit | lock 1 bit
//! ```
//!
//! There is one entry per key; older versions hang off the record's previous address. The control word is
//! the lock and the sequence of *everything* that hangs off the bucket: entries, and records updated in
//! place. So presence, absence, records in memory and records on disk are all validated in the same way:
//! a reader remembers the control word (its [`Stamp`]) and what it read is current while the word is the
//! same. Two keys of one bucket conflict falsely at times; a bucket holds about four keys.
//!
//! An entry that goes, or refers to another record, because its row is now found elsewhere, the very same, changes nothing for who has read it. Whoever removes or changes
//! it locks the bucket *quietly* and leaves the sequence as it is: who validates looks past such a lock, and everybody else waits for it. So an unchanged
//! stamp says that the key's row is unchanged, not that the index still [refers](HashIndex::refers_to) to its record.
//!
//! **Growth** is linear hashing: bucket `b` splits into `b` and `b + 2^level`, one after the other, under
//! the two buckets' locks only, while everybody else goes on. Buckets never move in memory (there is address space
//! for all that may ever be), so a stale reference is never dangling. A split needs no key: the bits that
//! decide it are the low bits of the tag. Growth drives itself: an insert that overflows its bucket splits a
//! few buckets more, which keeps overflow rare at any size (Litwin 1980, uncontrolled splits). When most entries have gone, the last
//! buckets are [merged](HashIndex::shrink) into those that they split off from, and their memory goes back to the system.
//!
//! Rejected: FASTER's tag chains (§3 there), where a cold key that shares a tag with a hot one has to be
//! found behind all the hot key's versions; a lock in every record, which says nothing about absent keys and
//! records on disk (measured as faster for in-place updates, see `docs/decisions.md`).

mod chains;
mod entry;
mod growth;
mod overflow;
mod shrinking;
mod walk;

use std::io;

pub use self::chains::IndexChains;
pub(crate) use self::entry::{Candidate, Slot, address_of, with_address};
use self::entry::{TAG_BITS, TAG_MASK, has_tag};
use self::growth::Growth;
use self::overflow::Overflow;
use super::memory::{self, LINE_WORDS, Line, Lines};
use super::record::Address;
use crate::planted::{Bug, planted};
use crate::sync::atomic::{AtomicU64, Ordering, fence};
use crate::sync::{Mutex, hint, process_wide, thread};

/// Levels at which an index can begin: 2^8 buckets, 16 KiB, to 2^14 buckets, 1 MiB.
const BASE_LEVEL_MIN: u32 = 8;
const BASE_LEVEL_MAX: u32 = 14;
const ENTRIES: usize = 7;
const CONTROL: usize = 7;
const LOCK: u64 = 1;
const QUIET_LOCK: u64 = 2;
const SEQUENCE_ONE: u64 = 4;
const SEQUENCE_MASK: u64 = ((1 << 35) - 1) << 2;
const OVERFLOW_SHIFT: u32 = 37;
const SPLIT_BITS: u32 = 56;
/// Buckets split for every insert that overflows.
const SPLITS_PER_OVERFLOW: u64 = 8;
const SPINS_MAX: u32 = 128;
const YIELDS_MAX: u32 = 256;

/// A bucket's number. Valid for ever; which keys live there changes when it splits.
pub(crate) type Bucket = u64;

/// A bucket's control word as a reader saw it, unlocked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stamp(u64);

impl Stamp {
    /// The bucket had more entries than it has room for.
    #[inline]
    pub(crate) fn has_overflow(self) -> bool {
        self.0 >> OVERFLOW_SHIFT != 0
    }
}

process_wide! {
    /// How many indexes there have been.
    static INDEXES: AtomicU64 = AtomicU64::new(0);
}

/// See the module's documentation.
pub(crate) struct HashIndex {
    /// No other index of this process has or had it: what it says of a bucket means nothing to another one.
    number: u64,
    /// The level at which it began. So many bits of the hash are not in the tag; when the index has `TAG_BITS` levels more,
    /// the tag has no bit left to decide a split: 2^33 buckets, half a terabyte, unless the memory is very small.
    base_level: u32,
    buckets: Lines,
    /// Level in the top byte, number of buckets already split in this level below it.
    state: AtomicU64,
    overflow: Overflow,
    growth: Mutex<Growth>,
    /// Splits that overflows have called for and nobody has begun.
    splits_due: AtomicU64,
}

impl HashIndex {
    /// An index for a database whose log has so much memory; it grows from there.
    pub(crate) fn new(log_memory_bytes: u64) -> io::Result<HashIndex> {
        const LOG_BYTES_PER_BUCKET: u64 = 512;
        let buckets = (log_memory_bytes / LOG_BYTES_PER_BUCKET).max(1);
        HashIndex::with_base_level(buckets.ilog2())
    }

    /// An index that begins at this level, or the next that is possible: so that entries of another one can be restored, which
    /// know so many bits of the hash besides the tag.
    pub(crate) fn with_base_level(base_level: u32) -> io::Result<HashIndex> {
        let base_level = base_level.clamp(BASE_LEVEL_MIN, BASE_LEVEL_MAX);
        let buckets = Lines::reserve(1 << base_level, 1 << (base_level + TAG_BITS))?;
        buckets.grow_to(1 << base_level)?;
        Ok(HashIndex {
            number: INDEXES.fetch_add(1, Ordering::Relaxed),
            base_level,
            buckets,
            state: AtomicU64::new((base_level as u64) << SPLIT_BITS),
            overflow: Overflow::new(),
            growth: Mutex::default(),
            splits_due: AtomicU64::new(0),
        })
    }

    /// Begins with as many buckets as so many keys will take, while it is empty and nobody else has it. Where there is no
    /// memory for all of them it begins with fewer, and grows as ever.
    pub(crate) fn reserve(&self, keys: u64) {
        let buckets = HashIndex::buckets_for(keys);
        let (mut level, _) = unpack(self.state.load(Ordering::SeqCst));
        let level_max = self.base_level + TAG_BITS;
        while level < level_max && buckets >= 2 << level && self.buckets.grow_to(2 << level).is_ok() {
            level += 1;
        }
        let split = buckets.saturating_sub(1 << level).min((1 << level) - 1);
        let has_room = level < level_max && split > 0 && self.buckets.grow_to(2 << level).is_ok();
        let split = if has_room { split } else { 0 };
        self.state.store((level as u64) << SPLIT_BITS | split, Ordering::SeqCst);
        self.growth.lock().reserved = self.bucket_count();
    }

    /// Growth by itself ends at about so many buckets.
    fn buckets_for(keys: u64) -> u64 {
        keys / 7 * 2
    }

    /// What tells it from all other indexes of this process.
    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    /// So many bits of a key's hash are not in its entry's tag.
    pub(crate) fn base_level(&self) -> u32 {
        self.base_level
    }

    /// Number of buckets in use.
    pub(crate) fn bucket_count(&self) -> u64 {
        let (level, split) = unpack(self.state.load(Ordering::SeqCst));
        (1 << level) + split
    }

    /// Bytes of memory mapped for buckets in use.
    pub(crate) fn memory_bytes(&self) -> u64 {
        (self.bucket_count() + self.overflow.lines_taken()) * (LINE_WORDS as u64 * 8)
    }

    /// The bucket where `hash` belongs now.
    #[inline]
    pub(crate) fn bucket_of(&self, hash: u64) -> Bucket {
        bucket_in(self.state.load(Ordering::SeqCst), hash)
    }

    /// True if `hash` belongs into the bucket now as it did in an earlier state.
    #[inline]
    fn still_in(&self, bucket: Bucket, state: u64, hash: u64) -> bool {
        let now = self.state.load(Ordering::SeqCst);
        now == state || bucket_in(now, hash) == bucket
    }

    /// Has the bucket's cache line fetched, for who will need it soon.
    #[inline]
    pub(crate) fn prefetch(&self, hash: u64) {
        memory::prefetch(self.control(self.bucket_of(hash)));
    }

    /// The bucket of `hash` and its stamp, once it is unlocked; `None` if its holder takes too long.
    pub(crate) fn stamp(&self, hash: u64) -> Option<(Bucket, Stamp)> {
        let mut waits = 0;
        loop {
            let stamped = self.stamp_at_once(hash);
            if stamped.is_some() || !wait(&mut waits) {
                return stamped;
            }
        }
    }

    /// As [`Self::stamp`], if it is unlocked now.
    #[inline]
    pub(crate) fn stamp_at_once(&self, hash: u64) -> Option<(Bucket, Stamp)> {
        let state = self.state.load(Ordering::SeqCst);
        let bucket = bucket_in(state, hash);
        let control = self.control(bucket).load(Ordering::SeqCst);
        // A split publishes the new state before it unlocks, so an unlocked control word that was read
        // before a check of the state belongs to that state.
        let holds = control & LOCK == 0 && self.still_in(bucket, state, hash);
        holds.then_some((bucket, Stamp(control)))
    }

    /// True if all that was read since the stamp, of what the bucket's sequence covers, is of one state, which still holds. Says it of what was read before
    /// the call, also without any order, as records' values are.
    #[inline(always)]
    pub(crate) fn is_as_read(&self, bucket: Bucket, stamp: Stamp) -> bool {
        if !planted(Bug::ValidationOrdersNothing) {
            fence(Ordering::Acquire);
        }
        planted(Bug::ReadNotRepeated) || self.unchanged(bucket, stamp)
    }

    /// True while nothing in the bucket has changed since the stamp and nobody holds it, unless quietly. Of values that were read of records without any order
    /// it says nothing: [`Self::is_as_read`] does.
    #[inline]
    pub(crate) fn unchanged(&self, bucket: Bucket, stamp: Stamp) -> bool {
        let mask = if planted(Bug::LocksOverlooked) { !LOCK } else { !0 };
        let control = self.control(bucket).load(Ordering::SeqCst) & mask;
        control == stamp.0 || control == stamp.0 | LOCK | QUIET_LOCK
    }

    /// As [`Self::unchanged`], for a bucket that the caller itself holds locked.
    #[inline]
    pub(crate) fn unchanged_under_own_lock(&self, bucket: Bucket, stamp: Stamp) -> bool {
        self.control(bucket).load(Ordering::SeqCst) == stamp.0 | LOCK
    }

    /// What the stamp of a bucket that the caller holds locked would be if nobody did.
    #[inline]
    pub(crate) fn stamp_under_own_lock(&self, bucket: Bucket) -> Stamp {
        Stamp(self.control(bucket).load(Ordering::SeqCst) & !(LOCK | QUIET_LOCK))
    }

    /// Locks the bucket where `hash` belongs; `None` if its holder takes too long.
    #[inline]
    pub(crate) fn lock(&self, hash: u64) -> Option<Bucket> {
        self.lock_with(hash, LOCK)
    }

    /// As [`Self::lock`], for who only removes, or changes, an entry whose row is now found elsewhere, and unlocks the bucket as unchanged.
    pub(crate) fn lock_quietly(&self, hash: u64) -> Option<Bucket> {
        self.lock_with(hash, LOCK | QUIET_LOCK)
    }

    #[inline]
    fn lock_with(&self, hash: u64, lock: u64) -> Option<Bucket> {
        let mut waits = 0;
        loop {
            let state = self.state.load(Ordering::SeqCst);
            let bucket = bucket_in(state, hash);
            if self.try_lock(bucket, lock) {
                if self.still_in(bucket, state, hash) {
                    return Some(bucket);
                }
                self.unlock_unchanged(bucket);
            }
            if !wait(&mut waits) {
                return None;
            }
        }
    }

    #[inline]
    fn try_lock(&self, bucket: Bucket, lock: u64) -> bool {
        let control = self.control(bucket);
        let word = control.load(Ordering::Relaxed);
        let locked = word & LOCK == 0
            && control.compare_exchange(word, word | lock, Ordering::SeqCst, Ordering::Relaxed).is_ok();
        // Who reads something that is written under the lock must find the lock when it looks again.
        fence(Ordering::Release);
        locked
    }

    /// Unlocks a bucket whose contents the caller changed.
    ///
    /// Releasing is enough, where locking and validating are sequentially consistent: a validation that comes after a lock in
    /// that order finds the lock or what followed it, and whoever finds the bucket unlocked has everything that was done under
    /// the lock behind it. A stronger store would wait until the record has reached the cache.
    #[inline]
    pub(crate) fn unlock_changed(&self, bucket: Bucket) {
        let control = self.control(bucket);
        let word = control.load(Ordering::Relaxed);
        debug_assert_eq!(word & (LOCK | QUIET_LOCK), LOCK);
        let sequence = (word + SEQUENCE_ONE) & SEQUENCE_MASK;
        control.store(word & !(SEQUENCE_MASK | LOCK) | sequence, Ordering::Release);
    }

    /// Unlocks a bucket that the caller left as it was.
    #[inline]
    pub(crate) fn unlock_unchanged(&self, bucket: Bucket) {
        let control = self.control(bucket);
        let word = control.load(Ordering::Relaxed);
        debug_assert_eq!(word & LOCK, LOCK);
        control.store(word & !(LOCK | QUIET_LOCK), Ordering::Release);
    }

    /// The first address in the bucket, overflow aside, that may be that of a key with this hash. If there is none, the key has no entry there as long as
    /// the bucket is unchanged.
    #[inline]
    pub(crate) fn first_candidate(&self, bucket: Bucket, hash: u64) -> Option<Candidate> {
        let line = self.buckets.line(bucket);
        let tag = self.tag_of(hash);
        let mut matching = matching_slots(line, |entry| has_tag(entry, tag));
        while matching != 0 {
            let slot = matching.trailing_zeros();
            matching &= matching - 1;
            let entry = line[slot as usize].load(Ordering::Acquire);
            // It may have settled since, or moved, of which the bucket's sequence says nothing.
            if has_tag(entry, tag) {
                return Some(Candidate { address: address_of(entry), slot: Slot::new(slot) });
            }
        }
        None
    }

    /// Looks at the addresses in the bucket that may be those of a key with this hash, until `look` has found
    /// what it wants.
    #[inline]
    pub(crate) fn find<T>(
        &self,
        bucket: Bucket,
        hash: u64,
        mut look: impl FnMut(Address) -> Option<T>,
    ) -> Option<T> {
        let tag = self.tag_of(hash);
        let mut line = self.buckets.line(bucket);
        let mut overflow = line[CONTROL].load(Ordering::Acquire) >> OVERFLOW_SHIFT;
        loop {
            let mut matching = matching_slots(line, |entry| has_tag(entry, tag));
            while matching != 0 {
                let entry = line[matching.trailing_zeros() as usize].load(Ordering::Acquire);
                matching &= matching - 1;
                // It may have changed since, or be free now.
                if entry & TAG_MASK == tag
                    && entry != 0
                    && let Some(found) = look(address_of(entry))
                {
                    return Some(found);
                }
            }
            line = self.overflow.line(overflow)?;
            overflow = line[CONTROL].load(Ordering::Acquire);
        }
    }

    /// Addresses that may be the newest record of a key with this hash.
    pub(crate) fn addresses_of(&self, hash: u64) -> impl Iterator<Item = Address> {
        let tag = self.tag_of(hash);
        self.entries(self.bucket_of(hash)).filter(move |entry| entry & TAG_MASK == tag).map(address_of)
    }

    fn entries(&self, bucket: Bucket) -> impl Iterator<Item = u64> {
        self.slots(bucket).map(|slot| slot.load(Ordering::Acquire)).filter(|&entry| entry != 0)
    }

    /// All slots of the bucket and of the overflow buckets behind it.
    #[inline]
    fn slots(&self, bucket: Bucket) -> impl Iterator<Item = &AtomicU64> {
        let line = self.buckets.line(bucket);
        let overflow = line[CONTROL].load(Ordering::Acquire) >> OVERFLOW_SHIFT;
        line[..ENTRIES].iter().chain(self.overflow.slots(overflow))
    }

    /// Points the entry of `old`, which was perhaps seen in a slot, at the key's newer record. The caller holds the bucket.
    /// False if there is no such entry.
    #[inline(always)]
    pub(crate) fn replace(
        &self,
        bucket: Bucket,
        hash: u64,
        Candidate { address: old, slot }: Candidate,
        new: Address,
    ) -> bool {
        let slot = &self.buckets.line(bucket)[slot.number()];
        let entry = self.entry(hash, old);
        if slot.load(Ordering::Relaxed) == entry {
            slot.store(with_address(entry, new), Ordering::Release);
            return true;
        }
        self.replace_elsewhere(bucket, hash, old, new)
    }

    #[inline(never)]
    fn replace_elsewhere(&self, bucket: Bucket, hash: u64, old: Address, new: Address) -> bool {
        let slot = self.slot_of(bucket, hash, old);
        if let Some(slot) = slot {
            slot.store(self.entry(hash, new), Ordering::Release);
        }
        slot.is_some()
    }

    /// True if `address` is that of a key's newest record. The caller holds the bucket.
    #[inline]
    pub(crate) fn refers_to(&self, bucket: Bucket, hash: u64, address: Address) -> bool {
        self.slot_of(bucket, hash, address).is_some()
    }

    /// Removes the entry of `address`, if it is there. The caller holds the bucket.
    pub(crate) fn remove(&self, bucket: Bucket, hash: u64, address: Address) -> bool {
        let slot = self.slot_of(bucket, hash, address);
        if let Some(slot) = slot {
            slot.store(0, Ordering::Release);
        }
        slot.is_some()
    }

    /// Removes the entries of all addresses before this one. Nobody else has the index.
    pub(crate) fn remove_below(&self, bucket: Bucket, address: Address) {
        let is_below = |entry: u64| entry != 0 && address_of(entry) < address;
        let below = self.slots(bucket).filter(|slot| is_below(slot.load(Ordering::Relaxed)));
        below.for_each(|slot| slot.store(0, Ordering::Release));
    }

    #[inline]
    fn slot_of(&self, bucket: Bucket, hash: u64, address: Address) -> Option<&AtomicU64> {
        let entry = self.entry(hash, address);
        let line = self.buckets.line(bucket);
        let at = matching_slots(line, |slot| slot == entry).trailing_zeros() as usize;
        if at < ENTRIES {
            return Some(&line[at]);
        }
        let overflow = line[CONTROL].load(Ordering::Acquire) >> OVERFLOW_SHIFT;
        self.overflow.slots(overflow).find(|slot| slot.load(Ordering::Relaxed) == entry)
    }

    /// Adds the entry of a key that has none. The caller holds the bucket. True if the bucket overflowed:
    /// call [`Self::grow`] once nothing is locked, be it after several such inserts.
    #[must_use]
    pub(crate) fn insert(&self, bucket: Bucket, hash: u64, address: Address) -> bool {
        let entry = self.entry(hash, address);
        for slot in self.slots(bucket) {
            if slot.load(Ordering::Relaxed) == 0 {
                slot.store(entry, Ordering::Release);
                return false;
            }
        }
        self.splits_due.fetch_add(SPLITS_PER_OVERFLOW, Ordering::Relaxed);
        let number = self.overflow.take();
        let line = self.overflow.line(number).unwrap_or_else(|| unreachable!("just taken"));
        let control = self.control(bucket);
        let word = control.load(Ordering::Relaxed);
        line[CONTROL].store(word >> OVERFLOW_SHIFT, Ordering::Relaxed);
        line[0].store(entry, Ordering::Release);
        control.store(word & (SEQUENCE_MASK | LOCK) | number << OVERFLOW_SHIFT, Ordering::SeqCst);
        true
    }

    #[inline]
    fn tag_of(&self, hash: u64) -> u64 {
        hash >> self.base_level << (64 - TAG_BITS)
    }

    #[inline]
    fn entry(&self, hash: u64, address: Address) -> u64 {
        debug_assert!(address != 0 && address.is_multiple_of(8) && address >> 48 == 0);
        self.tag_of(hash) | address >> 3
    }

    #[inline]
    fn control(&self, bucket: Bucket) -> &AtomicU64 {
        &self.buckets.line(bucket)[CONTROL]
    }
}

/// One bit for each slot of the line that `matches`. All are compared before one is looked at: a branch on the place of the
/// match would be mispredicted most of the time, and the processor could not begin with the next operation's cache
/// misses while it waits for this one's.
#[inline(always)]
fn matching_slots(line: &Line, matches: impl Fn(u64) -> bool) -> u32 {
    let mut matching = 0;
    for slot in line[..ENTRIES].iter().rev() {
        matching = matching + matching + u32::from(matches(slot.load(Ordering::Acquire)));
    }
    matching
}

/// The bucket where `hash` belongs in a state of the index.
#[inline]
fn bucket_in(state: u64, hash: u64) -> Bucket {
    let (level, split) = unpack(state);
    let bucket = hash & ((1 << level) - 1);
    if bucket < split { hash & ((2 << level) - 1) } else { bucket }
}

#[inline]
fn unpack(state: u64) -> (u32, u64) {
    ((state >> SPLIT_BITS) as u32, state & ((1 << SPLIT_BITS) - 1))
}

/// One more round of a bounded wait; false when the bound is reached.
#[inline]
fn wait(waits: &mut u32) -> bool {
    *waits += 1;
    if *waits < SPINS_MAX {
        hint::spin_loop();
    } else {
        // The holder may have been descheduled; give it the processor.
        thread::yield_now();
    }
    *waits < SPINS_MAX + YIELDS_MAX
}

/// The hash of a key within an object. The seed is drawn when the database is created, so that nobody can
/// prepare keys that collide.
#[inline]
pub(crate) fn hash_of(seed: u64, object: u32, key: &[u8]) -> u64 {
    xxhash_rust::xxh3::xxh3_64_with_seed(key, seed ^ (object as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15))
}

#[cfg(test)]
mod tests;
