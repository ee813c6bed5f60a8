//! The record log in memory: a ring that holds the log's tail.
//!
//! ```text
//!  begin        head            hardened        read-only                 tail       limit
//!    |  on disk  |  disk + memory  |  being written  |  mutable (memory)   |  free    |
//!    +-----------+-----------------+-----------------+---------------------+----------+---> address
//! ```
//!
//! An address is a byte offset from the log's beginning of time; its place in memory is the address modulo
//! the ring. Every segment begins with room for a seal, every hardening leaves room for the next one's seal
//! behind itself, and no record crosses a segment's end:
//!
//! ```text
//!  segment:  [seal | records ... padding][seal | records ... padding][seal | ...        padding]
//!             ^ extent, 4 KiB boundary    ^ extent                    ^            segment end ^
//! ```
//!
//! Invariants:
//! - `begin <= head <= hardened <= read-only <= tail`, and `tail` stays a hardening's padding and seal below
//!   the end of the ring and of the prepared segments.
//! - A record at or above the read-only offset whose version is the current one may be updated in place under
//!   its bucket's lock; all others are immutable (the hardener copies them without looking back).
//! - Space is reserved and filled within one pin, but for what threads take [ahead](chunks), of which they use nothing below the read-only
//!   offset that they see. So after [`epoch::quiesce`](super::epoch::quiesce) everything below that is complete, or known to be left over.
//! - A record lies behind the record of the same key that it replaces; of different keys the addresses say nothing about who was first.
//! - Memory below `head` is reused, or given back to the system, only after a quiesce that follows the move of `head`.
//!
//! The log can do with less memory than the ring has addresses ([`Log::set_share`]): what leaves it is given back then, and
//! provided anew when the tail comes there.

// This file has another place in the models of loom.
#[path = "log/chunks.rs"]
mod chunks;
#[path = "log/demand.rs"]
mod demand;

use std::io;

use self::chunks::Chunks;
pub(crate) use self::chunks::Space;
pub(crate) use self::demand::Demand;
use super::epoch;
use super::memory::{self, Words};
use super::record::{self, Address, NO_ADDRESS, RecordView};
use super::seal::{self, SEAL_BYTES};
use crate::device::BLOCK_BYTES;
use crate::planted::{Bug, planted};
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use crate::sync::{Mutex, barrier};

/// What the room of a seal begins with, as on disk.
const SEAL_WORD: u64 = u64::from_le_bytes(seal::MAGIC);

/// What a hardening may need beyond the last record: padding to a block, and the next seal.
const SHIFT_BYTES: u64 = 2 * BLOCK_BYTES as u64;

/// So much of the tail is fetched ahead at a time, at the most: about as many lines as a processor waits for at a time.
const FETCHED_AHEAD_BYTES_MAX: u64 = 1024;

/// Such a part of the ring, and of what may be un-hardened, is for keeping records warm, where that is done.
const WARMTH_PART: u64 = 16;

/// What log space is wanted for. The last prepared segment is not given to ordinary writes whole: on a full disk it is
/// from there that deletions, and the sweep that makes segments free, get theirs. While records are kept warm a part of the
/// memory is for that alone, since it is what makes room for the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    Ordinary,
    Deletion,
    /// What makes segments free.
    Sweep,
    /// What an opening after a crash writes before anything can be dropped.
    Opening,
    Warmth,
}

/// What an opening after a crash takes of the reserve: the block in which it seals what the crash has taken, and one for the record of that.
const OPENING_BYTES: u64 = 2 * BLOCK_BYTES as u64;
/// How much the sweep has of the reserve at the least.
const SWEEP_BYTES_MIN: u64 = 2 * BLOCK_BYTES as u64;

/// The most bytes of records that one transaction may have where so many may be un-hardened: wherever the tail is there is space for them once all else
/// is durable, beside what is for [`Purpose::Warmth`].
pub(crate) fn transaction_bytes_max(unhardened_bytes: u64) -> u64 {
    let memory = unhardened_bytes - unhardened_bytes / WARMTH_PART - SHIFT_BYTES;
    // Twice, as they leave as much free at the ends of segments; and there are seals.
    (unhardened_bytes / 8 * 3).min((memory - memory / 32) / 2)
}

/// What begins at a place of the hardened log in memory.
pub(crate) enum Item<'a> {
    Record(RecordView<'a>),
    /// So many bytes of padding, or of a seal.
    Other(u64),
}

/// A counter alone on its cache lines.
#[repr(align(128))]
struct Padded(AtomicU64);

/// See the module's documentation.
pub(crate) struct Log {
    ring: Words,
    ring_bytes: u64,
    /// Memory that the log is to take of the ring.
    share: AtomicU64,
    segment_bytes: u64,
    tail: Padded,
    /// What threads have taken ahead.
    chunks: Chunks,
    /// No ordinary reservation reaches beyond; see [`Log::set_limit`].
    limit: Padded,
    /// The limit as far as the ring and the bound on un-hardened bytes go, and where the prepared segments end.
    memory_end: AtomicU64,
    prepared_end: AtomicU64,
    /// Some of what lies before the former is for [`Purpose::Warmth`], and how much that is now.
    is_kept_warm: AtomicBool,
    warmth_bytes: AtomicU64,
    begin: AtomicU64,
    head: AtomicU64,
    /// The head that a quiesce has followed: memory below it is free.
    safe_head: AtomicU64,
    /// Held by who moves the head.
    evicting: Mutex<()>,
    hardened: AtomicU64,
    read_only: AtomicU64,
    /// The ring's memory is there up to this address, and complete once it has gone around.
    populated: AtomicU64,
    populated_end: AtomicU64,
}

impl Log {
    /// An empty ring for a log that begins at `begin`. Where it goes on is told by [`Self::resume`].
    pub(crate) fn new(ring_bytes: u64, segment_bytes: u64, begin: Address) -> io::Result<Log> {
        debug_assert!(ring_bytes.is_power_of_two() && segment_bytes.is_power_of_two());
        debug_assert!(ring_bytes >= 2 * segment_bytes);
        let end = begin;
        Ok(Log {
            ring: Words::new((ring_bytes / 8) as usize)?,
            ring_bytes,
            share: AtomicU64::new(ring_bytes),
            segment_bytes,
            tail: Padded(AtomicU64::new(end + SEAL_BYTES)),
            chunks: Chunks::new(segment_bytes),
            limit: Padded(AtomicU64::new(0)),
            memory_end: AtomicU64::new(0),
            prepared_end: AtomicU64::new(0),
            is_kept_warm: AtomicBool::new(false),
            warmth_bytes: AtomicU64::new(0),
            begin: AtomicU64::new(begin),
            head: AtomicU64::new(end),
            safe_head: AtomicU64::new(end),
            evicting: Mutex::new(()),
            hardened: AtomicU64::new(end),
            read_only: AtomicU64::new(end),
            populated: AtomicU64::new(end),
            populated_end: AtomicU64::new(end),
        })
    }

    pub(crate) fn ring_bytes(&self) -> u64 {
        self.ring_bytes
    }

    pub(crate) fn segment_bytes(&self) -> u64 {
        self.segment_bytes
    }

    #[inline]
    pub(crate) fn tail(&self) -> Address {
        self.tail.0.load(Ordering::SeqCst)
    }

    pub(crate) fn begin(&self) -> Address {
        self.begin.load(Ordering::SeqCst)
    }

    pub(crate) fn set_begin(&self, begin: Address) {
        self.begin.store(begin, Ordering::SeqCst);
    }

    #[inline]
    pub(crate) fn head(&self) -> Address {
        self.head.load(Ordering::SeqCst)
    }

    /// Frees the memory below `head`, which is durable, unless that was done. Must not be called under a pin.
    pub(crate) fn evict(&self, head: Address) {
        debug_assert!(head <= self.hardened());
        let _evicting = self.evicting.lock();
        if head <= self.head() {
            return;
        }
        self.head.store(head, Ordering::SeqCst);
        if !planted(Bug::EvictsUnderReaders) {
            epoch::quiesce();
        }
        if self.share() < self.ring_bytes {
            self.give_back(head);
        }
        self.safe_head.store(head, Ordering::SeqCst);
    }

    /// Gives the memory between the safe head and `head` back: nobody reads there any more, and nobody writes there yet.
    fn give_back(&self, head: Address) {
        let mut from = self.safe_head.load(Ordering::SeqCst).max(head.saturating_sub(self.ring_bytes));
        // The tail will want it again.
        self.populated_end.store(Address::MAX, Ordering::Relaxed);
        while from < head {
            let to = (from + 1).next_multiple_of(self.ring_bytes).min(head);
            self.ring.clear(((from & (self.ring_bytes - 1)) / 8) as usize, ((to - from) / 8) as usize);
            from = to;
        }
    }

    /// Memory that the log is to take of the ring; less than the ring has if the read cache needs it more.
    pub(crate) fn share(&self) -> u64 {
        self.share.load(Ordering::SeqCst)
    }

    /// Sets the log's share of memory. What is beyond it leaves when somebody [evicts](Self::evict) it.
    pub(crate) fn set_share(&self, bytes: u64) {
        self.share.store(bytes.min(self.ring_bytes), Ordering::SeqCst);
    }

    /// Recovery is done: the log goes on at `end` (a block boundary), and the memory from `head` up to there was
    /// filled by [`Self::load`].
    pub(crate) fn resume(&self, head: Address, end: Address) {
        debug_assert!(head <= end && end.is_multiple_of(BLOCK_BYTES as u64));
        self.head.store(head, Ordering::SeqCst);
        self.safe_head.store(head, Ordering::SeqCst);
        self.hardened.store(end, Ordering::SeqCst);
        self.read_only.store(end, Ordering::SeqCst);
        self.tail.0.store(end + SEAL_BYTES, Ordering::SeqCst);
        self.populated.store(end, Ordering::SeqCst);
        self.populated_end.store(head + self.ring_bytes, Ordering::SeqCst);
    }

    /// Provides the memory that the tail will reach next, until the ring has been gone around once: fresh memory
    /// comes at a fraction of the speed of commits. For one background thread.
    pub(crate) fn populate_ahead(&self) {
        const STEP_BYTES: u64 = 2 << 20;
        let ahead = (2 * self.segment_bytes).min(self.share() / 4);
        loop {
            let from = self.populated.load(Ordering::Relaxed).max(self.tail());
            let end = (from + 1).next_multiple_of(STEP_BYTES.min(self.ring_bytes));
            if end > (self.tail() + ahead).min(self.populated_end.load(Ordering::Relaxed)) {
                return;
            }
            let first = (from & (self.ring_bytes - 1)) / 8;
            self.ring.populate(first as usize, ((end - from) / 8) as usize);
            self.populated.store(end, Ordering::Relaxed);
        }
    }

    /// The address up to which the log is durable.
    pub(crate) fn hardened(&self) -> Address {
        self.hardened.load(Ordering::SeqCst)
    }

    pub(crate) fn set_hardened(&self, end: Address) {
        debug_assert!(end <= self.read_only());
        self.hardened.store(end, Ordering::SeqCst);
    }

    #[inline]
    pub(crate) fn read_only(&self) -> Address {
        self.read_only.load(Ordering::SeqCst)
    }

    /// Lets reservations go up to what the ring, the prepared segments and the bound on un-hardened bytes
    /// allow.
    pub(crate) fn set_limit(&self, prepared_end: Address, unhardened_bytes: u64) {
        let space = self.safe_head.load(Ordering::SeqCst) + self.ring_bytes;
        let warmth_bytes = match self.is_kept_warm.load(Ordering::SeqCst) {
            true => self.ring_bytes.min(unhardened_bytes) / WARMTH_PART,
            false => 0,
        };
        self.warmth_bytes.store(warmth_bytes, Ordering::SeqCst);
        self.memory_end.store(space.min(self.hardened() + unhardened_bytes), Ordering::SeqCst);
        self.prepared_end.store(prepared_end, Ordering::SeqCst);
        self.limit.0.store(self.limit_for(Purpose::Ordinary), Ordering::SeqCst);
    }

    fn limit_for(&self, purpose: Purpose) -> Address {
        let mut memory_end = self.memory_end.load(Ordering::SeqCst);
        if purpose != Purpose::Warmth {
            memory_end = memory_end.saturating_sub(self.warmth_bytes.load(Ordering::SeqCst));
        }
        memory_end.min(self.disk_end_for(purpose)).saturating_sub(SHIFT_BYTES)
    }

    /// Where what is prepared ends for somebody.
    fn disk_end_for(&self, purpose: Purpose) -> Address {
        let held_back = match purpose {
            Purpose::Ordinary | Purpose::Warmth => self.reserve_bytes(),
            Purpose::Deletion => self.reserve_for_sweep(),
            Purpose::Sweep => OPENING_BYTES,
            Purpose::Opening => 0,
        };
        self.prepared_end.load(Ordering::SeqCst).saturating_sub(held_back)
    }

    /// Whether a part of the memory is for [`Purpose::Warmth`] alone; from the next [`Self::set_limit`] on.
    pub(crate) fn set_kept_warm(&self, is_kept_warm: bool) {
        self.is_kept_warm.store(is_kept_warm, Ordering::SeqCst);
    }

    /// The most bytes of memory that are for [`Purpose::Warmth`] alone.
    pub(crate) fn warmth_bytes_max(&self) -> u64 {
        self.ring_bytes / WARMTH_PART
    }

    /// How much of the prepared segments ordinary writes do not get.
    pub(crate) fn reserve_bytes(&self) -> u64 {
        (self.segment_bytes / 4 + OPENING_BYTES).max(self.reserve_for_sweep() + BLOCK_BYTES as u64)
    }

    /// Up to where segments are prepared behind a log that ends at `end` if all of the reserve is there.
    pub(crate) fn reserve_end(&self, end: Address) -> Address {
        end + self.reserve_bytes() + SHIFT_BYTES
    }

    /// The part of the reserve that deletions do not get either.
    pub(crate) fn reserve_for_sweep(&self) -> u64 {
        (self.segment_bytes / 8).max(SWEEP_BYTES_MIN) + OPENING_BYTES
    }

    /// The most log that records of so many bytes together take, wherever the tail is.
    pub(crate) fn span_max(&self, bytes: u64) -> u64 {
        demand::span_max(bytes, self.segment_bytes)
    }

    /// Whether there is space for all of it now.
    pub(crate) fn has_space(&self, demand: Demand, purpose: Purpose) -> bool {
        demand.end_from(self.tail(), self.segment_bytes) <= self.limit_for(purpose)
    }

    /// Whether there is, or will be once there is memory.
    pub(crate) fn has_disk_space(&self, demand: Demand, purpose: Purpose) -> bool {
        let disk_end = self.disk_end_for(purpose).saturating_sub(SHIFT_BYTES);
        demand.end_from(self.tail(), self.segment_bytes) <= disk_end
    }

    /// Where a record goes: at the tail, or into the next segment if it does not fit.
    #[inline]
    fn place(&self, tail: Address, bytes: u64) -> Address {
        let offset = tail & (self.segment_bytes - 1);
        // A tail exactly on a boundary is the end of the old segment: the seal's room is still to be left.
        match offset != 0 && offset + bytes <= self.segment_bytes {
            true => tail,
            false => tail.next_multiple_of(self.segment_bytes) + SEAL_BYTES,
        }
    }

    /// Bytes of records (and padding) that are not durable.
    pub(crate) fn unhardened_bytes(&self) -> u64 {
        self.tail().saturating_sub(self.hardened() + SEAL_BYTES)
    }

    /// True if something was appended since the last shift.
    pub(crate) fn has_unsealed_records(&self) -> bool {
        self.tail() != self.read_only() + SEAL_BYTES
    }

    /// An address behind all records there are, which is hardened when they are.
    pub(crate) fn records_end(&self) -> Address {
        match self.has_unsealed_records() {
            true => self.tail(),
            false => self.read_only(),
        }
    }

    /// Takes `bytes` of the log, all in one segment, behind the address `behind`. The caller is pinned, has locked what it will write there if that is a
    /// commit, and fills the space before it unpins. `None` if there is no space now; then nothing was taken.
    #[inline(always)]
    pub(crate) fn reserve(&self, bytes: u64, purpose: Purpose, behind: Address) -> Option<Address> {
        let space = self.space_ahead(bytes, behind);
        match space.and_then(|space| space.take(bytes)) {
            Some(start) => Some(start),
            None => self.reserve_with_more(bytes, purpose),
        }
    }

    /// What the thread has taken ahead, if it is so much, for a record that needs as much, or about, or none: as of [`Self::reserve`], but nothing is taken
    /// yet.
    #[inline(always)]
    pub(crate) fn space_ahead(&self, bytes: u64, behind: Address) -> Option<Space<'_>> {
        // Before the look at what is retired, as before one at the clock.
        barrier::behind_locked();
        let behind = if planted(Bug::ChunksUnordered) { NO_ADDRESS } else { behind };
        let space = self.chunks.own()?.space(bytes, self.chunks.retired().max(behind + 1))?;
        self.prefetch_behind(space.start(), bytes);
        Some(space)
    }

    /// Takes a new chunk, if there is space for that and one is worth it, and gives the first `bytes` of it.
    #[cold]
    fn reserve_with_more(&self, bytes: u64, purpose: Purpose) -> Option<Address> {
        let Some(chunk) = self.chunks.own().filter(|_| bytes <= chunks::RECORD_BYTES_MAX) else {
            return self.reserve_exactly(bytes, purpose);
        };
        let ahead = self.chunks.bytes_ahead(chunk, bytes);
        let Some(start) = self.reserve_below(bytes + ahead, self.limit.0.load(Ordering::Acquire)) else {
            return self.reserve_exactly(bytes, purpose);
        };
        let (rest, rest_bytes) = chunk.rest();
        // If it is hardened then whoever did that has padded it, and the memory may be others'.
        if rest_bytes > 0 && rest >= self.hardened() {
            self.pad(rest, rest_bytes);
        }
        self.chunks.renew(chunk, bytes, (start + bytes, ahead));
        Some(start)
    }

    fn reserve_exactly(&self, bytes: u64, purpose: Purpose) -> Option<Address> {
        self.reserve_below(bytes, self.limit.0.load(Ordering::Acquire)).or_else(|| match purpose {
            Purpose::Ordinary => None,
            _ => self.reserve_below(bytes, self.limit_for(purpose)),
        })
    }

    /// From when a quiesce has followed, commits that begin move the tail when they take space the first time.
    pub(crate) fn retire_chunks(&self) {
        self.chunks.retire(self.tail());
    }

    #[inline]
    fn reserve_below(&self, bytes: u64, limit: Address) -> Option<Address> {
        debug_assert!(bytes.is_multiple_of(8) && bytes <= self.segment_bytes - SEAL_BYTES);
        let mut tail = self.tail.0.load(Ordering::Relaxed);
        loop {
            let start = self.place(tail, bytes);
            if start + bytes > limit {
                return None;
            }
            if planted(Bug::TailTakenTwice) {
                self.tail.0.store(tail, Ordering::SeqCst);
            }
            match self.tail.0.compare_exchange_weak(tail, start + bytes, Ordering::SeqCst, Ordering::Relaxed)
            {
                Ok(_) => {
                    let rest = tail.next_multiple_of(self.segment_bytes) - tail;
                    if start != tail && rest != 0 {
                        self.pad(tail, rest);
                    }
                    self.prefetch_behind(start, bytes);
                    return Some(start);
                }
                Err(now) => tail = now,
            }
        }
    }

    /// Has the lines fetched where what comes after the next record goes, if they are as long as this one.
    #[inline]
    fn prefetch_behind(&self, start: Address, bytes: u64) {
        self.prefetch(start + 2 * bytes, bytes.min(FETCHED_AHEAD_BYTES_MAX) as usize);
    }

    /// Marks reserved space that turned out not to be needed.
    pub(crate) fn pad(&self, address: Address, bytes: u64) {
        self.memory(address, 8)[0].store(record::padding_word(bytes), Ordering::Release);
    }

    /// Makes everything below the tail read-only and complete, up to a fresh block boundary, and leaves room for the next
    /// seal. Gives that boundary. Waits for everybody who is pinned. Only the hardener calls this.
    pub(crate) fn finish_tail(&self) -> Address {
        let end = self.shift_read_only();
        if !planted(Bug::CopiesUnfinished) {
            epoch::quiesce();
        }
        for (rest, bytes) in self.chunks.rests_between(self.hardened(), end) {
            if !planted(Bug::RestsLeft) {
                self.pad(rest, bytes);
            }
        }
        end
    }

    fn shift_read_only(&self) -> Address {
        let mut tail = self.tail();
        loop {
            let end = tail.next_multiple_of(BLOCK_BYTES as u64);
            match self.tail.0.compare_exchange_weak(
                tail,
                end + SEAL_BYTES,
                Ordering::SeqCst,
                Ordering::Relaxed,
            ) {
                Ok(_) => {
                    if end > tail {
                        self.pad(tail, end - tail);
                    }
                    self.read_only.store(end, Ordering::SeqCst);
                    self.chunks.retire(end);
                    return end;
                }
                Err(now) => tail = now,
            }
        }
    }

    /// The memory from `address` on, `bytes` long, which must not cross a segment's end.
    #[inline(always)]
    pub(crate) fn memory(&self, address: Address, bytes: u64) -> &[AtomicU64] {
        let start = ((address & (self.ring_bytes - 1)) / 8) as usize;
        &self.ring[start..start + (bytes / 8) as usize]
    }

    /// The record at `address` if it is in memory. The caller is pinned, and stays so while it uses it.
    #[inline]
    pub(crate) fn view(&self, address: Address) -> Option<RecordView<'_>> {
        if address < self.head() {
            return None;
        }
        let rest = self.segment_bytes - (address & (self.segment_bytes - 1));
        RecordView::at(self.memory(address, rest))
    }

    /// What begins at `address`, where a record, padding or an extent begins in the hardened part of memory. `None` if that has
    /// left memory. The caller is pinned.
    pub(crate) fn item_at(&self, address: Address) -> Option<Item<'_>> {
        if address < self.head() {
            return None;
        }
        let word = self.memory(address, 8)[0].load(Ordering::Acquire);
        // First: it would be the first word of a record that expires, too, of an object with a number that none has.
        if word == SEAL_WORD {
            return Some(Item::Other(SEAL_BYTES));
        }
        match self.view(address) {
            Some(view) => Some(Item::Record(view)),
            None => record::padding_bytes(word).map(Item::Other),
        }
    }

    /// Marks the room of a seal, which is the hardener's, for who walks over the records in memory.
    pub(crate) fn note_seal(&self, address: Address) {
        self.memory(address, 8)[0].store(SEAL_WORD, Ordering::Release);
    }

    /// For who has read the record at `address`, which is in memory: [notes that in it](RecordView::note_reference) if it has hardened:
    /// what was just written is often looked at once more, and then no longer.
    #[inline(always)]
    pub(crate) fn note_read(&self, address: Address, view: &RecordView<'_>) {
        if address < self.hardened.load(Ordering::Relaxed) {
            view.note_reference();
        }
    }

    /// How long the value of the record at `address` is, which is in memory, in words. The caller is pinned.
    #[inline(always)]
    pub(crate) fn value_words_at(&self, address: Address) -> usize {
        record::value_words(self.memory(address, 8)[0].load(Ordering::Acquire))
    }

    /// The record at `address` if it is in memory and a put of this key. As for [`Self::view`].
    #[inline(always)]
    pub(crate) fn put_of(&self, address: Address, object: u32, key: &[u8]) -> Option<RecordView<'_>> {
        if address == NO_ADDRESS || address < self.head() {
            return None;
        }
        let first = ((address & (self.ring_bytes - 1)) / 8) as usize;
        RecordView::put_of(self.ring.get(first..)?, object, key)
    }

    /// Has the beginning of a record in memory fetched into the cache, all its lines at once. More than is needed delays what is.
    #[inline]
    pub(crate) fn prefetch(&self, address: Address, bytes: usize) {
        let first = ((address & (self.ring_bytes - 1)) / 8) as usize;
        // At the ring's end it is not worth the trouble.
        let words = self.ring.get(first..first + bytes.div_ceil(8));
        if let Some((last, rest)) = words.and_then(<[_]>::split_last) {
            rest.iter().step_by(memory::LINE_WORDS).chain([last]).for_each(memory::prefetch);
        }
    }

    /// Copies bytes read from disk into the ring, so that recovery leaves the newest part of the log in
    /// memory. Whole blocks only.
    pub(crate) fn load(&self, address: Address, bytes: &[u8]) {
        let words = self.memory(address, bytes.len() as u64);
        for (word, chunk) in words.iter().zip(bytes.as_chunks::<8>().0) {
            word.store(u64::from_le_bytes(*chunk), Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests;
