//! Frames: the memory of nodes' contents, side by side on huge pages.
//!
//! A search touches half a dozen places of a large tree, each on a small page of its own if the allocator has them; to find the page then takes as long as to find the node.
//!
//! ```text
//!   memory   |  frame  |   frame   |.....|  frame  |...   units of 1 KiB
//!   used     |  1 1 1  |  1 1 1 1  | 0 0 |  1 1 1  | 0    a bit for each, 64 to a word
//! ```
//!
//! Who takes a frame sets the bits of some units in a row, of one word, from where the last one was taken on; whoever drops it clears them. There is no lock, so that nothing is
//! in the way of a forked child. What has no room, or is longer than a word has units, is on the heap.
#![allow(unsafe_code)]

use std::io;
use std::ops::Deref;
use std::sync::Arc;

use super::cache::Bucket;
use crate::storage::memory::{self, Words, Zeroed};
use crate::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

const UNIT_BYTES: usize = 1 << 10;
const UNIT_WORDS: usize = UNIT_BYTES / 8;
/// Units for which there is one word of bits.
const UNITS: usize = u64::BITS as usize;
/// What is longer is on the heap.
pub(super) const FRAME_BYTES_MAX: usize = UNITS * UNIT_BYTES;
/// Words of bits for what is given back to the system at once. Miri looks at all memory that there may be again and again.
const GROUP: usize = if cfg!(miri) { 2 } else { (2 << 20) / FRAME_BYTES_MAX };
/// Room is looked for in so many words, and then the heap has some.
const WORDS_SEARCHED: usize = 64;
/// So that room is soon found there is this part more of it than nodes may take.
const SLACK_PART: usize = 32;

// SAFETY: atomics, of which those in `ManuallyDrop` are the pointers of `Shared`; zero is a value of each, and none is dropped with it.
unsafe impl Zeroed for Bucket {}

/// What frames lie in.
struct Memory {
    words: Words,
    /// A bit for each unit.
    used: Words,
}

/// Memory for frames.
pub(super) struct Frames {
    /// Nothing if all are to be on the heap.
    memory: Option<Arc<Memory>>,
    /// Of the words of bits so many may be used for new frames; in the others there may be some from before.
    limit: AtomicUsize,
    /// In so many words there have been frames, so that memory was touched.
    top: AtomicUsize,
    /// Where the last frame was taken.
    next: AtomicUsize,
}

/// What a frame gives back when it is dropped.
enum Home {
    Units { memory: Arc<Memory>, word: usize, bits: u64 },
    Heap { _words: Words },
}

/// Bytes that never change.
pub(super) struct Frame {
    start: *const u8,
    bytes: usize,
    home: Home,
}

// SAFETY: a frame's bytes are its own, in memory that `home` keeps, and nobody writes there as long as there is the frame.
unsafe impl Send for Frame {}
// SAFETY: as above; everybody only reads.
unsafe impl Sync for Frame {}

/// The bits of the first so many units in a row that are free.
fn find_free(used: u64, units: usize) -> Option<u64> {
    let (mut starts, mut found) = (!used, 1);
    while found < units {
        let more = found.min(units - found);
        starts &= starts >> more;
        found += more;
    }
    (starts != 0).then(|| u64::MAX >> (UNITS - units) << starts.trailing_zeros())
}

impl Frames {
    /// Memory for frames of so many bytes together, which is taken as it is touched; none may be until a [limit](Self::set_limit) is set.
    ///
    /// # Errors
    /// The operating system's, when there is no address space.
    pub(super) fn new(bytes: usize) -> io::Result<Frames> {
        let count = words_of_bits(bytes).next_multiple_of(GROUP);
        let memory = match count {
            0 => None,
            _ => {
                let (words, used) = (Words::new(count * UNITS * UNIT_WORDS)?, Words::new(count)?);
                Some(Arc::new(Memory { words, used }))
            }
        };
        Ok(Frames { memory, limit: AtomicUsize::new(0), top: AtomicUsize::new(0), next: AtomicUsize::new(0) })
    }

    /// All of them on the heap.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(super) fn none() -> Frames {
        Frames::new(0).unwrap_or_else(|error| panic!("{error}"))
    }

    /// Has new frames take so many bytes together, and a little more. True if there may have been some [beyond](Self::is_beyond) that: then these ought to be
    /// dropped, and their memory [given back](Self::give_back).
    pub(super) fn set_limit(&self, bytes: usize) -> bool {
        let most = self.memory.as_ref().map_or(0, |memory| memory.used.len());
        let limit = words_of_bits(bytes).min(most);
        self.limit.store(limit, Ordering::Relaxed);
        self.top.load(Ordering::Relaxed) > limit
    }

    /// True if a frame lies where there are to be none any more.
    pub(super) fn is_beyond(&self, frame: &Frame) -> bool {
        matches!(frame.home, Home::Units { word, .. } if word >= self.limit.load(Ordering::Relaxed))
    }

    /// Gives the memory behind the limit back to the system, where no frame is.
    pub(super) fn give_back(&self) {
        let Some(memory) = &self.memory else { return };
        let (Memory { words, used }, limit) = (&**memory, self.limit.load(Ordering::Relaxed));
        let (top, mut touched) = (self.top.load(Ordering::Relaxed), limit);
        for first in (limit.next_multiple_of(GROUP)..top).step_by(GROUP) {
            let group = &used[first..first + GROUP];
            let take = |word: &&AtomicU64| {
                word.compare_exchange(0, u64::MAX, Ordering::Acquire, Ordering::Relaxed).is_ok()
            };
            // Whoever takes a frame there meanwhile finds no room.
            let taken = group.iter().take_while(take).count();
            match taken {
                GROUP => _ = words.give_back(first * UNITS * UNIT_WORDS, GROUP * UNITS * UNIT_WORDS),
                _ => touched = first + GROUP,
            }
            group[..taken].iter().for_each(|word| word.store(0, Ordering::Release));
        }
        // Whoever takes a frame there meanwhile, by an older limit, has it counted by who takes the next one.
        let _ = self.top.compare_exchange(top, touched.min(top), Ordering::Relaxed, Ordering::Relaxed);
    }

    /// Takes some units in a row: in which word, and which of its bits.
    fn take(&self, all_used: &Words, units: usize) -> Option<(usize, u64)> {
        if units > UNITS {
            return None;
        }
        // First where memory was touched before.
        let (limit, top) = (self.limit.load(Ordering::Relaxed), self.top.load(Ordering::Relaxed));
        if let taken @ Some(_) = self.take_below(all_used, units, top.min(limit)) {
            return taken;
        }
        if top >= limit {
            return None;
        }
        self.next.store(top, Ordering::Relaxed);
        self.top.fetch_max((top + GROUP).min(limit), Ordering::Relaxed);
        self.take_below(all_used, units, (top + GROUP).min(limit))
    }

    /// The same in the words before a limit.
    fn take_below(&self, all_used: &Words, units: usize, limit: usize) -> Option<(usize, u64)> {
        if limit == 0 {
            return None;
        }
        let first = self.next.load(Ordering::Relaxed);
        for word in (first..first + WORDS_SEARCHED.min(limit)).map(|word| word % limit) {
            let mut used = all_used[word].load(Ordering::Relaxed);
            while let Some(bits) = find_free(used, units) {
                let (order, failed) = (Ordering::Acquire, Ordering::Relaxed);
                match all_used[word].compare_exchange_weak(used, used | bits, order, failed) {
                    Ok(_) => {
                        self.next.store(word, Ordering::Relaxed);
                        return Some((word, bits));
                    }
                    Err(now) => used = now,
                }
            }
        }
        self.next.store((first + WORDS_SEARCHED) % limit, Ordering::Relaxed);
        None
    }
}

/// How many words of bits it takes for frames of so many bytes together.
fn words_of_bits(bytes: usize) -> usize {
    bytes.saturating_add(bytes / SLACK_PART).div_ceil(UNITS * UNIT_BYTES)
}

/// Copies bytes into words that are long enough.
///
/// # Safety
/// Nobody else reads or writes these words.
unsafe fn fill(words: &[AtomicU64], bytes: &[u8]) {
    assert!(bytes.len() <= size_of_val(words));
    // SAFETY: the words are as long, as was just seen, may be written through what is shared, as atomics may, and are the caller's alone.
    unsafe { bytes.as_ptr().copy_to_nonoverlapping(words.as_ptr().cast_mut().cast(), bytes.len()) }
}

impl Frame {
    /// A copy of some bytes.
    pub(super) fn new(frames: &Frames, bytes: &[u8]) -> Frame {
        let units = bytes.len().div_ceil(UNIT_BYTES).max(1);
        if let Some(memory) = &frames.memory
            && let Some((word, bits)) = frames.take(&memory.used, units)
        {
            let first = (word * UNITS + bits.trailing_zeros() as usize) * UNIT_WORDS;
            let words = &memory.words[first..first + units * UNIT_WORDS];
            // SAFETY: who has set the bits of units that were free has them alone, until they are cleared.
            unsafe { fill(words, bytes) };
            let home = Home::Units { memory: Arc::clone(memory), word, bits };
            return Frame { start: words.as_ptr().cast(), bytes: bytes.len(), home };
        }
        let count = bytes.len().div_ceil(8).max(1);
        let words = Words::new(count).unwrap_or_else(|_| memory::no_memory::<u64>(count));
        // SAFETY: nobody else knows of them.
        unsafe { fill(&words, bytes) };
        Frame { start: words.as_ptr().cast(), bytes: bytes.len(), home: Home::Heap { _words: words } }
    }

    /// The memory that it takes, and of that beside it a share of what is of no use to others of its length.
    pub(super) fn memory_bytes(&self) -> usize {
        match self.home {
            Home::Units { bits, .. } => UNITS.div_ceil(UNITS / bits.count_ones() as usize) * UNIT_BYTES,
            _ => self.bytes,
        }
    }
}

impl Deref for Frame {
    type Target = [u8];

    #[inline(always)]
    fn deref(&self) -> &[u8] {
        // SAFETY: `new` filled so many bytes there, in memory that `home` keeps until the frame is dropped; until then nobody writes there: of units whose bits are
        // set only who has set them does.
        unsafe { std::slice::from_raw_parts(self.start, self.bytes) }
    }
}

impl Drop for Frame {
    fn drop(&mut self) {
        if let Home::Units { memory, word, bits } = &self.home {
            // All of them are set. Whoever takes these units next writes after all that was read here.
            memory.used[*word].fetch_sub(*bits, Ordering::Release);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BYTES: usize = GROUP * FRAME_BYTES_MAX;

    fn with_limit(bytes: usize) -> Frames {
        let frames = Frames::new(2 * BYTES).unwrap();
        frames.set_limit(bytes);
        frames
    }

    fn is_on_heap(frame: &Frame) -> bool {
        matches!(frame.home, Home::Heap { .. })
    }

    #[test]
    fn units_that_are_free_in_a_row_are_found_where_there_are_enough() {
        let words = [0, u64::MAX, 1, 1 << 63, 0x8000_0000_0000_0001, 0xF0F0_F0F0_F0F0_F0F0, !0x7E00, !1];
        for used in words {
            for units in 1..=UNITS {
                let run = |start: usize| u64::MAX >> (UNITS - units) << start;
                let expected = (0..=UNITS - units).map(run).find(|bits| used & bits == 0);
                assert_eq!(find_free(used, units), expected, "{used:x} {units}");
            }
        }
    }

    #[test]
    fn frames_keep_their_bytes_while_others_come_and_go_on_several_threads() {
        const ROUNDS: u32 = if cfg!(miri) { 20 } else { 20_000 };
        let frames = with_limit(BYTES / 8);
        std::thread::scope(|scope| {
            for thread in 0..3_u32 {
                let frames = &frames;
                scope.spawn(move || {
                    let (mut kept, mut seed) = (Vec::<(Frame, Vec<u8>)>::new(), thread);
                    for _ in 0..ROUNDS {
                        seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                        if kept.len() > 12 {
                            let (frame, bytes) = kept.swap_remove(seed as usize >> 8 & 7);
                            assert!(frame[..] == bytes[..], "others have written there");
                        }
                        let bytes = vec![seed as u8; 1 + (seed >> 16) as usize % (9 << 10)];
                        kept.push((Frame::new(frames, &bytes), bytes));
                    }
                    assert!(kept.iter().all(|(frame, bytes)| frame[..] == bytes[..]));
                });
            }
        });
        let memory = frames.memory.as_ref().unwrap();
        assert!(memory.used.iter().all(|used| used.load(Ordering::Relaxed) == 0), "units leak");
    }

    #[test]
    fn what_has_no_room_or_is_too_long_is_on_the_heap_and_counts_as_what_it_takes() {
        let frames = with_limit(64 << 10);
        let bytes = vec![7; 30 << 10];
        let two = [Frame::new(&frames, &bytes), Frame::new(&frames, &bytes)];
        let mut more: Vec<_> = (0..4).map(|_| Frame::new(&frames, &bytes)).collect();
        assert!(two.iter().all(|frame| !is_on_heap(frame) && frame.memory_bytes() == 32 << 10));
        assert!(more.iter().any(is_on_heap));
        assert!(more.iter().all(|frame| frame[..] == bytes[..]));
        more.clear();
        drop(two);
        assert!(!is_on_heap(&Frame::new(&frames, &bytes)), "what is dropped makes room");
        let long = vec![1; (64 << 10) + 1];
        let long = Frame::new(&frames, &long);
        assert!(is_on_heap(&long) && long.memory_bytes() == long.len() && long.iter().all(|&byte| byte == 1));
        assert_eq!(Frame::new(&frames, &[1, 2]).memory_bytes(), 1 << 10);
        assert!(is_on_heap(&Frame::new(&Frames::none(), &bytes)));
    }

    /// They wandered over all that they might have, so that of a small tree all of that was taken from the system.
    #[test]
    fn memory_that_was_touched_is_used_again_before_other_memory_is() {
        let frames = with_limit(2 * BYTES);
        let bytes = vec![5; 8 << 10];
        let mut kept: Vec<_> = (0..10).map(|_| Frame::new(&frames, &bytes)).collect();
        for round in 0..500 {
            kept[round % 10] = Frame::new(&frames, &bytes);
        }
        assert_eq!(frames.top.load(Ordering::Relaxed), GROUP);
    }

    #[test]
    fn what_lies_behind_a_lower_limit_stays_until_it_is_dropped_and_its_memory_goes_where_nothing_is() {
        let frames = with_limit(2 * BYTES);
        let bytes = vec![9; 64 << 10];
        let mut taken: Vec<_> = (0..2 * BYTES / bytes.len()).map(|_| Frame::new(&frames, &bytes)).collect();
        assert!(taken.iter().all(|frame| !is_on_heap(frame) && !frames.is_beyond(frame)));
        let words = &frames.memory.as_ref().unwrap().words;
        let last_word = |group: usize| words[group * BYTES / 8 - 1].load(Ordering::Relaxed);
        assert!(frames.set_limit(BYTES / 2));
        let beyond = taken.iter().filter(|frame| frames.is_beyond(frame)).count();
        assert!(beyond >= taken.len() / 2, "{beyond}");
        frames.give_back();
        assert!(taken.iter().all(|frame| frame[..] == bytes[..]), "what was still held was given back");
        // Of the second group one frame stays.
        let held = taken.split_off(taken.len() - 1);
        taken.clear();
        frames.give_back();
        assert_eq!(held[0][..], bytes[..]);
        assert_ne!(last_word(2), 0);
        drop(held);
        frames.give_back();
        assert!(cfg!(miri) || last_word(2) == 0, "the memory was not given back");
        assert!(!frames.set_limit(BYTES / 2), "nothing is there any more");
        assert!(!is_on_heap(&Frame::new(&frames, &bytes)) && frames.set_limit(0));
        assert!(is_on_heap(&Frame::new(&frames, &bytes)));
    }
}
