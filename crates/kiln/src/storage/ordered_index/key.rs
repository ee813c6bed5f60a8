//! Keys: how a byte string is stored, compared and given back while readers may still look at it.
//!
//! A key is a *head* (its first 16 bytes, big-endian, padded with zeros, so that two integer compares
//! order almost all pairs) and a *tail word*. The tail word holds the length when the key fits into its
//! head, which spares short keys the allocation and the cache miss, and otherwise points to what follows
//! the head. The lowest bit tells the two apart.
//!
//! ```text
//!   head.high   head.low   tail word                    block (heap, 4-byte aligned)
//!   [bytes 0-7] [  8-15 ]  [ length << 1 | 1 ]          none: at most 16 bytes
//!   [bytes 0-7] [  8-15 ]  [ address of the block ] ->  [ count: u32 ][ bytes 16.. ]
//! ```
//!
//! Order among equal heads: keys that fit, by length (the shorter one is a prefix of the longer one, whose
//! other bytes are zeros), then the longer keys by their tails. Hence an equal head and a tail word of each
//! kind need no memory access to be ordered.
//!
//! Life of a key's memory, each step a type, so that it is freed exactly once:
//!
//! ```text
//!   UnpublishedKey --publish--> Key --into a node, out again (Key)--> Retired --reclaim--> freed
//!   (dropped: freed)                 [KeyRef: read under a Pin]                (after quiesce)
//! ```
//!
//! All unsafe code about key memory is in this file; `slots.rs` alone makes a [`KeyRef`] out of a node.
#![allow(unsafe_code)]

use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::cmp::Ordering;
use std::marker::PhantomData;
use std::ptr;

use crate::storage::epoch;
pub(super) use crate::storage::record::KEY_BYTES_MAX;
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicUsize, Ordering as Memory};

/// The bytes of a key that its head holds.
pub(super) const HEAD_BYTES: usize = 16;

const COUNT_BYTES: usize = size_of::<u32>();

/// The first 16 bytes of a key as two big-endian integers. A key shorter than that is padded with zeros.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Head {
    pub(super) high: u64,
    pub(super) low: u64,
}

impl Head {
    fn of(key: &[u8]) -> Head {
        let mut bytes = [0; HEAD_BYTES];
        match key.first_chunk::<HEAD_BYTES>() {
            Some(first) => bytes = *first,
            None => bytes[..key.len()].copy_from_slice(key),
        }
        let both = u128::from_be_bytes(bytes);
        Head { high: (both >> 64) as u64, low: both as u64 }
    }

    fn bytes(self) -> [u8; HEAD_BYTES] {
        (u128::from(self.high) << 64 | u128::from(self.low)).to_be_bytes()
    }
}

/// A key that is looked for: the caller's bytes with their head computed once.
#[derive(Clone, Copy)]
pub(super) struct Probe<'k> {
    pub(super) head: Head,
    key: &'k [u8],
}

impl<'k> Probe<'k> {
    pub(super) fn new(key: &'k [u8]) -> Probe<'k> {
        Probe { head: Head::of(key), key }
    }

    pub(super) fn is_long(&self) -> bool {
        self.key.len() > HEAD_BYTES
    }
}

/// The third word of a stored key. It is only a value: holding one says nothing about the memory behind it.
#[derive(Clone, Copy)]
pub(super) struct TailWord(pub(super) *mut u8);

impl TailWord {
    fn inline(length: usize) -> TailWord {
        TailWord(ptr::without_provenance_mut(length << 1 | 1))
    }

    /// The key's length, if all of the key is in its head.
    fn inline_length(self) -> Option<usize> {
        (self.0.addr() & 1 == 1).then_some(self.0.addr() >> 1)
    }

    pub(super) fn is_long(self) -> bool {
        self.0.addr() & 1 == 0
    }

    /// Orders this key against a probe with the same head, unless that takes a look at both keys' tails.
    pub(super) fn compare_without_tails(self, probe: &Probe<'_>) -> Option<Ordering> {
        match (self.inline_length(), probe.is_long()) {
            (Some(length), false) => Some(length.cmp(&probe.key.len())),
            (Some(_), true) => Some(Ordering::Less),
            (None, false) => Some(Ordering::Greater),
            (None, true) => None,
        }
    }

    fn layout(tail_bytes: usize) -> Layout {
        Layout::from_size_align(COUNT_BYTES + tail_bytes, COUNT_BYTES).expect("a key is at most 64 KiB")
    }

    fn allocate(key: &[u8]) -> TailWord {
        let Some(tail) = key.get(HEAD_BYTES..).filter(|tail| !tail.is_empty()) else {
            return TailWord::inline(key.len());
        };
        assert!(key.len() <= KEY_BYTES_MAX, "a key is at most {KEY_BYTES_MAX} bytes, not {}", key.len());
        let layout = TailWord::layout(tail.len());
        // SAFETY: `layout` is never empty (it holds the count), and the writes stay inside it: 4 bytes of
        // count at the aligned start, then `tail.len()` bytes.
        unsafe {
            let block = alloc(layout);
            if block.is_null() {
                handle_alloc_error(layout);
            }
            block.cast::<u32>().write(tail.len() as u32);
            ptr::copy_nonoverlapping(tail.as_ptr(), block.add(COUNT_BYTES), tail.len());
            TailWord(block)
        }
    }

    /// # Safety
    /// The word must be inline, or its block must have been allocated and not be freed during `'p`.
    unsafe fn tail<'p>(self) -> &'p [u8] {
        if !self.is_long() {
            return &[];
        }
        // SAFETY: the block is live (the caller's promise), was written whole by `allocate`, and never
        // changes until it is freed.
        unsafe {
            let count = self.0.cast::<u32>().read() as usize;
            std::slice::from_raw_parts(self.0.add(COUNT_BYTES), count)
        }
    }

    /// # Safety
    /// As for `tail`; and nothing may use the block afterwards.
    unsafe fn free(self) -> usize {
        if !self.is_long() {
            return 0;
        }
        // SAFETY: the block is live and ours alone (the caller's promise); its layout is computed from the
        // same count as when it was allocated.
        unsafe {
            let layout = TailWord::layout(self.tail().len());
            dealloc(self.0, layout);
            layout.size()
        }
    }
}

/// The sole right to one stored key: to put it into a node, or to retire it. It was published, so readers
/// may look at its memory, and dropping it must not free that; dropping it would leak.
#[must_use]
pub(super) struct Key {
    head: Head,
    tail: TailWord,
}

// SAFETY: a `Key` owns its block, whose bytes are immutable, and nothing in it belongs to a thread.
unsafe impl Send for Key {}

impl Key {
    /// The words to store in a node, which owns the key from then on.
    pub(super) fn into_words(self) -> (Head, TailWord) {
        (self.head, self.tail)
    }

    /// Takes a key out of a node again.
    ///
    /// # Safety
    /// The words must be those of one `into_words`, and the node must give them up: no second `Key` may be
    /// made of them.
    pub(super) unsafe fn from_words(head: Head, tail: TailWord) -> Key {
        Key { head, tail }
    }

    pub(super) fn heap_bytes(&self) -> usize {
        // SAFETY: `self` owns the block, so it is live.
        let tail = unsafe { self.tail.tail() };
        if self.tail.is_long() { COUNT_BYTES + tail.len() } else { 0 }
    }

    /// Frees the key's memory now.
    ///
    /// # Safety
    /// No reader may be able to look at it any more.
    pub(super) unsafe fn free(self) -> usize {
        // SAFETY: `self` owns the block, and the caller promises that nobody else uses it.
        unsafe { self.tail.free() }
    }
}

/// A stored key that no other thread has seen, so that dropping it frees it at once.
pub(super) struct UnpublishedKey {
    key: Option<Key>,
}

impl UnpublishedKey {
    pub(super) fn new(key: &[u8]) -> UnpublishedKey {
        UnpublishedKey { key: Some(Key { head: Head::of(key), tail: TailWord::allocate(key) }) }
    }

    pub(super) fn publish(mut self) -> Key {
        self.key.take().expect("a key is published once, by value")
    }
}

impl Drop for UnpublishedKey {
    fn drop(&mut self) {
        if let Some(key) = self.key.take() {
            // SAFETY: the key was never published, so this thread alone knows its address.
            unsafe { key.free() };
        }
    }
}

/// A key read out of a node. Its memory stays during `'p`, in which the reader is pinned.
#[derive(Clone, Copy)]
pub(super) struct KeyRef<'p> {
    head: Head,
    tail: TailWord,
    pinned: PhantomData<&'p [u8]>,
}

impl<'p> KeyRef<'p> {
    /// The empty key, which has no memory.
    pub(super) const EMPTY: KeyRef<'static> = KeyRef {
        head: Head { high: 0, low: 0 },
        tail: TailWord(ptr::without_provenance_mut(1)),
        pinned: PhantomData,
    };

    /// # Safety
    /// The words must be those of one key, and that key must not be freed during `'p`.
    pub(super) unsafe fn new(head: Head, tail: TailWord) -> KeyRef<'p> {
        KeyRef { head, tail, pinned: PhantomData }
    }

    fn tail(self) -> &'p [u8] {
        // SAFETY: `new` was promised that the key lives during `'p`.
        unsafe { self.tail.tail() }
    }

    #[inline]
    pub(super) fn length(self) -> usize {
        self.tail.inline_length().unwrap_or_else(|| HEAD_BYTES + self.tail().len())
    }

    #[inline]
    pub(super) fn append_to(self, bytes: &mut Vec<u8>) {
        let begin = bytes.len();
        // All 16 bytes, then cut off: a copy of fixed length is two stores.
        bytes.extend_from_slice(&self.head.bytes());
        match self.tail.inline_length() {
            Some(length) => bytes.truncate(begin + length),
            None => bytes.extend_from_slice(self.tail()),
        }
    }

    pub(super) fn to_vec(self) -> Vec<u8> {
        let mut bytes = Vec::new();
        self.append_to(&mut bytes);
        bytes
    }

    pub(super) fn compare(self, probe: &Probe<'_>) -> Ordering {
        let by_head = self.head.cmp(&probe.head);
        by_head.then_with(|| {
            let without = self.tail.compare_without_tails(probe);
            without.unwrap_or_else(|| self.tail().cmp(&probe.key[HEAD_BYTES..]))
        })
    }
}

/// Keys that were taken out of the tree and wait for the readers that may still look at them.
#[derive(Default)]
pub(super) struct Retired {
    keys: Mutex<Vec<Key>>,
    bytes: AtomicUsize,
}

impl Retired {
    /// Only keys with a heap block need to wait; the others are forgotten here.
    pub(super) fn push(&self, key: Key) {
        let bytes = key.heap_bytes();
        if bytes > 0 {
            self.bytes.fetch_add(bytes, Memory::Relaxed);
            self.keys.lock().push(key);
        }
    }

    #[cfg(test)]
    pub(super) fn bytes(&self) -> usize {
        self.bytes.load(Memory::Relaxed)
    }

    /// Takes what has been retired so far.
    fn take(&self) -> Vec<Key> {
        std::mem::take(&mut *self.keys.lock())
    }
}

/// Frees what had been retired when it was called, of all of these, and tells `freed` whose and how many bytes that was. It waits once. The caller is not pinned.
pub(super) fn reclaim<'r, T>(
    retired: impl Iterator<Item = (T, &'r Retired)>,
    mut freed: impl FnMut(T, usize),
) {
    let taken = retired.map(|(whose, retired)| (whose, retired, retired.take()));
    let taken: Vec<_> = taken.filter(|(.., keys)| !keys.is_empty()).collect();
    if taken.is_empty() {
        return;
    }
    // Every key in the lists had left its tree before this point. A reader pinned now may have found it
    // earlier; `quiesce` waits for that reader, and a later one cannot reach the key.
    epoch::quiesce();
    for (whose, retired, keys) in taken {
        let bytes = free_all(keys);
        retired.bytes.fetch_sub(bytes, Memory::Relaxed);
        freed(whose, bytes);
    }
}

/// Frees keys for which the wait is over: `reclaim` has quiesced, or the index has no reader left.
fn free_all(keys: Vec<Key>) -> usize {
    // SAFETY: both callers own the keys; `reclaim` has waited for every pin under which one could have been
    // found, and `drop` has the index to itself (a `KeyRef` borrows its node).
    keys.into_iter().map(|key| unsafe { key.free() }).sum()
}

impl Drop for Retired {
    fn drop(&mut self) {
        free_all(std::mem::take(self.keys.get_mut()));
    }
}
