//! Slots: the sorted keys of one node under one version word, read optimistically.
//!
//! ```text
//!   version: u64   count   highs[31]   lows[31]   tails[31]        768 bytes, 12 cache lines
//!                          `-- heads, in order --'
//!   version: changes 56 | quiet changes since 6 | quietly locked 1 | unlocked 1
//! ```
//!
//! Protocol (a sequence lock). A writer locks by a compare-and-swap of the unlocked version that it read, so a
//! lock also proves that nothing has changed since that read; it stores the fields;
//! unlocking stores the next version, or the old one if nothing was changed. A reader loads an unlocked
//! version, loads fields, and checks that the version is still the same. All fields are atomics, so that a
//! torn read is only a wrong value: counts are capped before use, and no tail is followed before a check.
//!
//! A *quiet* change is one that who has read the node need not hear of ([`OrderedIndex::remove_quietly`](super::OrderedIndex::remove_quietly)): it
//! counts for who is just reading the fields, and not for [`Slots::is_at`]. Of more quiet changes than a node has keys between two others the
//! carry counts as one that is not quiet, which is a needless conflict at worst.
//!
//! Invariants:
//! - Versions of one node only grow, across every reuse of the node, but while it is zeros.
//! - A node that is not in the tree is locked, with no keys, so nothing read through a stale path passes a
//!   check. That is what zeros are, too, which a node is made of before it was ever used, and once its memory was given back.
//! - `slots[..count]` of an unlocked node own their keys, each of which leaves its node before it is retired.
//!   This is what makes a checked tail safe to follow under a pin: the key was in the tree while the reader
//!   was pinned, so whoever frees it waits for that pin.
#![allow(unsafe_code)]

use std::cmp::Ordering;
use std::ops::Range;
use std::ptr;

use crate::storage::epoch::Pin;
use crate::storage::memory::{self, Zeroed};
use crate::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering as Memory, fence};
use crate::sync::hint;

use super::arena::Node;
use super::hints::Hints;
use super::inner::Inner;
use super::key::{Head, Key, KeyRef, Probe, TailWord};

/// Keys that a node can hold. With 31, the slots fill exactly twelve cache lines.
pub(super) const SLOT_COUNT: usize = 31;
const _: () = assert!(size_of::<Slots>() == 768);

/// Set while nobody has the node locked.
const UNLOCKED: u64 = 1;
const QUIET_LOCK: u64 = 2;
const QUIET_CHANGE: u64 = 4;
const CHANGE: u64 = 1 << 8;
const _: () = assert!((SLOT_COUNT as u64 + 1) * QUIET_CHANGE <= CHANGE);

/// How often a reader looks at a locked node before it starts again from the root.
const LOCKED_SPINS: u32 = 64;

/// The version of an unlocked node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Version(u64);

impl Version {
    /// How often the node had changed, quiet changes left out.
    pub(super) fn number(self) -> u64 {
        self.0 / CHANGE
    }
}

/// The keys of a node. A leaf is nothing else; in an inner node they separate the children.
#[repr(C, align(64))]
pub(super) struct Slots {
    version: AtomicU64,
    count: AtomicU32,
    highs: [AtomicU64; SLOT_COUNT],
    lows: [AtomicU64; SLOT_COUNT],
    tails: [AtomicPtr<u8>; SLOT_COUNT],
}

// SAFETY: atomics, and nothing to drop; zero is a value of each.
unsafe impl Zeroed for Slots {}
// SAFETY: as above.
unsafe impl Zeroed for Inner {}
// SAFETY: as above.
unsafe impl Zeroed for Hints {}

impl Slots {
    /// The version, unless a writer keeps the node locked for long (or it is not in the tree); in one total order with every lock (see the module
    /// documentation of the index about who begins later than a commit).
    #[inline]
    pub(super) fn version(&self) -> Option<Version> {
        for _ in 0..LOCKED_SPINS {
            let version = self.version.load(Memory::SeqCst);
            if version & UNLOCKED != 0 {
                return Some(Version(version));
            }
            hint::spin_loop();
        }
        None
    }

    /// True if all that was read of the node since `version` was loaded belongs to that version.
    #[inline]
    pub(super) fn is_unchanged(&self, version: Version) -> bool {
        fence(Memory::Acquire);
        self.version.load(Memory::Relaxed) == version.0
    }

    #[inline]
    pub(super) fn check(&self, version: Version) -> Option<()> {
        self.is_unchanged(version).then_some(())
    }

    /// True if the node has had this [number](Version::number) of changes and nobody is about to change it, unless quietly; in one total
    /// order with every lock and every other call (see the module documentation of the index about two committing transactions).
    pub(super) fn is_at(&self, number: u64) -> bool {
        let version = self.version.load(Memory::SeqCst);
        version / CHANGE == number && version & (UNLOCKED | QUIET_LOCK) != 0
    }

    /// Has the processor fetch what a search compares first.
    #[inline]
    pub(super) fn prefetch_heads(&self) {
        memory::prefetch(&self.version);
        self.highs.iter().step_by(memory::LINE_WORDS).for_each(memory::prefetch);
    }

    /// Has the node fetched, for who will read it soon.
    pub(super) fn prefetch(&self) {
        const LINE_WORDS: usize = 8;
        memory::prefetch(&self.version);
        for first in (0..SLOT_COUNT).step_by(LINE_WORDS) {
            memory::prefetch(&self.highs[first]);
            memory::prefetch(&self.lows[first]);
            memory::prefetch(&self.tails[first]);
        }
    }

    /// The number of keys, capped so that a torn value cannot lead out of bounds.
    #[inline]
    pub(super) fn count(&self) -> usize {
        (self.count.load(Memory::Relaxed) as usize).min(SLOT_COUNT)
    }

    #[inline]
    fn head(&self, position: usize) -> Head {
        Head {
            high: self.highs[position].load(Memory::Relaxed),
            low: self.lows[position].load(Memory::Relaxed),
        }
    }

    #[inline]
    fn tail(&self, position: usize) -> TailWord {
        TailWord(self.tails[position].load(Memory::Relaxed))
    }

    /// The key at a position, or nothing if the node has changed.
    #[inline]
    pub(super) fn key<'p>(&'p self, _pin: &'p Pin, version: Version, position: usize) -> Option<KeyRef<'p>> {
        if position >= self.count() {
            return None;
        }
        let (head, tail) = (self.head(position), self.tail(position));
        self.check(version)?;
        // SAFETY: the check shows that count, head and tail belong to one unlocked state of the node, so the
        // key was in the tree just now, under the pin; the invariant of the module keeps it until the unpin.
        Some(unsafe { KeyRef::new(head, tail) })
    }

    /// The keys at some positions, or nothing if the node has changed. As [`Self::key`] for each, with one check for all.
    #[inline]
    pub(super) fn keys<'p>(
        &'p self,
        _pin: &'p Pin,
        version: Version,
        positions: Range<usize>,
        keys: &mut [KeyRef<'p>; SLOT_COUNT],
    ) -> Option<()> {
        if positions.end > self.count() {
            return None;
        }
        let nothing = (Head { high: 0, low: 0 }, TailWord(ptr::null_mut()));
        let mut words = [nothing; SLOT_COUNT];
        for (words, position) in words.iter_mut().zip(positions.clone()) {
            *words = (self.head(position), self.tail(position));
        }
        self.check(version)?;
        for (key, &(head, tail)) in keys.iter_mut().zip(&words[..positions.len()]) {
            // SAFETY: as for `key`.
            *key = unsafe { KeyRef::new(head, tail) };
        }
        Some(())
    }

    /// The number of keys below the probe, and whether the next one equals it. Only a later check of the
    /// version makes the answer true; nothing is returned if a change was noticed on the way.
    #[inline]
    pub(super) fn search(&self, pin: &Pin, version: Version, probe: &Probe<'_>) -> Option<(usize, bool)> {
        let count = self.count();
        // Counting has no branch to mispredict and lets the cache misses of the node overlap, which a binary
        // search cannot.
        let highs = &self.highs[..count];
        let mut below: usize =
            highs.iter().map(|high| usize::from(high.load(Memory::Relaxed) < probe.head.high)).sum();
        if below < count && self.head(below).high == probe.head.high {
            let rest = highs[below..].iter().zip(&self.lows[below..]);
            below += rest
                .map(|(high, low)| {
                    let (high, low) = (high.load(Memory::Relaxed), low.load(Memory::Relaxed));
                    usize::from((high == probe.head.high) & (low < probe.head.low))
                })
                .sum::<usize>();
            if below < count && self.head(below) == probe.head {
                return self.search_equal_heads(pin, version, probe, below, count);
            }
        }
        Some((below, false))
    }

    /// Finishes a search among the keys from `first` on that have the probe's head: a binary search, because
    /// each comparison of two long keys may be a cache miss.
    fn search_equal_heads(
        &self,
        pin: &Pin,
        version: Version,
        probe: &Probe<'_>,
        first: usize,
        count: usize,
    ) -> Option<(usize, bool)> {
        let equal = (first..count).take_while(|&position| self.head(position) == probe.head).count();
        let (mut low, mut high) = (first, first + equal);
        while low < high {
            let middle = (low + high) / 2;
            let order = match self.tail(middle).compare_without_tails(probe) {
                Some(order) => order,
                None => self.key(pin, version, middle)?.compare(probe),
            };
            match order {
                Ordering::Less => low = middle + 1,
                Ordering::Equal => return Some((middle, true)),
                Ordering::Greater => high = middle,
            }
        }
        Some((low, false))
    }

    /// Locks the node if it still has this version; then all that was read of it is current.
    #[inline]
    pub(super) fn lock(&self, version: Version) -> Option<Locked<'_>> {
        self.lock_with(version, false)
    }

    /// As [`Self::lock`], for a quiet change.
    pub(super) fn lock_quietly(&self, version: Version) -> Option<Locked<'_>> {
        self.lock_with(version, true)
    }

    #[inline]
    fn lock_with(&self, version: Version, quiet: bool) -> Option<Locked<'_>> {
        let locked = version.0 & !UNLOCKED | if quiet { QUIET_LOCK } else { 0 };
        self.version.compare_exchange(version.0, locked, Memory::SeqCst, Memory::Relaxed).ok()?;
        // A reader that sees one of the stores that follow also sees the lock.
        fence(Memory::Release);
        Some(Locked { slots: self, before: version, changed: false, quiet })
    }

    /// Takes over the lock of a node that is not in the tree and that the arena has just given to the caller.
    pub(super) fn adopt(&self) -> Locked<'_> {
        let version = self.version.load(Memory::Relaxed);
        assert!(version & UNLOCKED == 0 && self.count() == 0, "a free node is locked and empty");
        fence(Memory::Release);
        Locked { slots: self, before: Version(version | UNLOCKED), changed: true, quiet: false }
    }
}

impl Node for Slots {
    fn changes(&self) -> u64 {
        self.version.load(Memory::Relaxed) / CHANGE
    }

    fn go_on_from(&self, changes: u64) {
        self.version.store(changes * CHANGE, Memory::Relaxed);
    }

    fn end(&mut self) {
        for position in 0..self.count() {
            // SAFETY: the node owns its keys and gives them up here, once, for it has none afterwards; `&mut self` shows that no
            // reader is left (a `KeyRef` borrows the node).
            unsafe { Key::from_words(self.head(position), self.tail(position)).free() };
        }
        self.count.store(0, Memory::Relaxed);
    }
}

/// A node that the calling thread has locked. Unlocked when dropped.
pub(super) struct Locked<'a> {
    slots: &'a Slots,
    before: Version,
    changed: bool,
    quiet: bool,
}

impl<'a> Locked<'a> {
    pub(super) fn version_before(&self) -> Version {
        self.before
    }

    /// The version that the node will have once it is unlocked.
    pub(super) fn version_after(&self) -> Version {
        match (self.changed, self.quiet) {
            (false, _) => self.before,
            (true, true) => Version(self.before.0 + QUIET_CHANGE),
            (true, false) => Version(((self.before.0 / CHANGE + 1) * CHANGE) | UNLOCKED),
        }
    }

    /// Announces a change of something beside the slots that the version protects.
    pub(super) fn mark_changed(&mut self) {
        self.changed = true;
    }

    pub(super) fn count(&self) -> usize {
        self.slots.count()
    }

    pub(super) fn is_full(&self) -> bool {
        self.count() == SLOT_COUNT
    }

    pub(super) fn key(&self, position: usize) -> KeyRef<'_> {
        assert!(position < self.count(), "position {position} of {}", self.count());
        // SAFETY: the position is below the count, and while this thread holds the lock, which the result
        // borrows, nobody can take the key out of the node.
        unsafe { KeyRef::new(self.slots.head(position), self.slots.tail(position)) }
    }

    fn set_count(&mut self, count: usize) {
        self.slots.count.store(count as u32, Memory::Relaxed);
    }

    fn set(&mut self, position: usize, head: Head, tail: TailWord) {
        self.slots.highs[position].store(head.high, Memory::Relaxed);
        self.slots.lows[position].store(head.low, Memory::Relaxed);
        self.slots.tails[position].store(tail.0, Memory::Relaxed);
    }

    fn copy_within(&mut self, from: usize, to: usize) {
        self.set(to, self.slots.head(from), self.slots.tail(from));
    }

    pub(super) fn insert(&mut self, position: usize, key: Key) {
        let count = self.count();
        assert!(position <= count && count < SLOT_COUNT, "insert at {position} of {count}");
        self.changed = true;
        for from in (position..count).rev() {
            self.copy_within(from, from + 1);
        }
        let (head, tail) = key.into_words();
        self.set(position, head, tail);
        self.set_count(count + 1);
    }

    pub(super) fn remove(&mut self, position: usize) -> Key {
        let count = self.count();
        assert!(position < count, "remove at {position} of {count}");
        self.changed = true;
        let (head, tail) = (self.slots.head(position), self.slots.tail(position));
        for from in position + 1..count {
            self.copy_within(from, from - 1);
        }
        self.set_count(count - 1);
        // SAFETY: the words were stored by `insert` or `move_upper`, and the node has just given them up.
        unsafe { Key::from_words(head, tail) }
    }

    /// Moves the keys from `position` on into an empty node.
    pub(super) fn move_upper(&mut self, position: usize, right: &mut Locked<'_>) {
        let count = self.count();
        assert!(position <= count && right.count() == 0, "split at {position} of {count}");
        self.changed = true;
        right.changed = true;
        for from in position..count {
            right.set(from - position, self.slots.head(from), self.slots.tail(from));
        }
        right.set_count(count - position);
        self.set_count(position);
    }

    /// Moves all keys behind those of another node, which are lower and leave room for them.
    pub(super) fn move_all_behind(&mut self, lower: &mut Locked<'_>) {
        let (begin, count) = (lower.count(), self.count());
        assert!(begin + count <= SLOT_COUNT, "{begin} and {count} keys in one node");
        self.changed = true;
        lower.changed = true;
        for from in 0..count {
            lower.set(begin + from, self.slots.head(from), self.slots.tail(from));
        }
        lower.set_count(begin + count);
        self.set_count(0);
    }

    /// Leaves the node locked, because it has left the tree and is about to be given back to the arena.
    pub(super) fn keep_locked(self) {
        assert!(self.count() == 0 && !self.quiet, "a node leaves the tree empty, and not quietly");
        std::mem::forget(self);
    }
}

impl Drop for Locked<'_> {
    #[inline]
    fn drop(&mut self) {
        self.slots.version.store(self.version_after().0, Memory::Release);
    }
}
