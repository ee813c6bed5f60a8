//! Leaf images: the rows of an ordered index's leaf, copied side by side, for ranges that go over them again and again.
//!
//! A row of a range costs the processor a look at its record, which lies anywhere in the log's memory. Where ranges have read the same leaf often, its
//! keys and values are copied here, and a range takes them all at once: from a place where they follow one another.
//!
//! ```text
//!   gone |  image  |  image  |   image   | free          a ring of cache lines; the oldest make room
//!        begin                           tail
//!
//!   image   leaf's version | newest version | oldest address, count | whole at | leaf's own | ends of keys and values | key value key value ...
//! ```
//!
//! Rows that have settled between those of the leaf are in its image, too, if there are few: with them the image is *whole*, and a range need not look at the tree there.
//!
//! An image says nothing about whether it still holds: that is the leaf's word ([`ordered_index`](super::ordered_index)), which whoever changes a row
//! takes the image from. It never changes, and is overwritten at any time: who copies from it looks afterwards whether it was there all the while, as with
//! a sequence lock.

use std::ops::Range;

use crate::planted::{Bug, planted};
use crate::storage::memory::{LINE_WORDS, Words, prefetch};
use crate::storage::record::Address;
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use crate::sync::{Mutex, OnceLock};

/// Leaves that may be waiting to be copied.
const ASKED_MAX: usize = 1 << 12;
/// Of longer rows there is no image. Who copies one that is being overwritten copies no more than that, either.
const IMAGE_BYTES_MAX: usize = 32 << 10;
/// Words before the ends.
const HEADER_WORDS: usize = 5;
const COUNT_WORD: usize = 2;
const COUNT_BITS: u32 = 8;
/// The first lines of an image are fetched; the processor finds out by itself how it goes on.
const FETCHED_LINES: usize = 48;
const LINES_OF_ROW: usize = 2;
/// There is room for all images if one in so many is outdated before it is overwritten.
const OUTDATED_WITH_ROOM: u64 = 4;

/// A leaf that ranges read often: its table, its number, and the version of a snapshot that has read it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Asked {
    pub(crate) object: u32,
    pub(crate) leaf: u32,
    pub(crate) version: u64,
}

/// What an image is valid for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Validity {
    /// The keys are those that the leaf had at this version.
    pub(crate) leaf_version: u64,
    /// No row is newer.
    pub(crate) version_max: u64,
    /// All rows were copied from here on: while that is in memory, whoever supersedes one of them says so.
    pub(crate) address_min: Address,
    /// The table has no other rows between the leaf's fences, also none that have settled, as long as the index has unlinked so many leaves:
    /// at an unlinking an interval may grow. [`NEVER_WHOLE`] if it has.
    pub(crate) whole_at: u64,
    /// A bit for each row that is one of the leaf's own; the others have settled.
    pub(crate) own: u32,
}

/// More leaves than are ever unlinked.
pub(crate) const NEVER_WHOLE: u64 = u64::MAX;

impl Validity {
    /// Which row is that of the leaf's key at a position; the end of all, or more, if it has no such key.
    #[inline]
    pub(crate) fn row_of(&self, position: usize) -> usize {
        // Mostly all are.
        if position < self.own.trailing_ones() as usize {
            return position;
        }
        let left = (0..position).fold(self.own, |left, _| left & left.wrapping_sub(1));
        if left == 0 { usize::MAX } else { left.trailing_zeros() as usize }
    }
}

/// Where a row's key and its value end.
pub(crate) type RowEnds = (u32, u32);

/// Where the rows go that are copied.
pub(crate) struct Copied<'c> {
    pub(crate) bytes: &'c mut Vec<u8>,
    /// Where each key and each value ends there, in turn.
    pub(crate) ends: &'c mut [u32],
    /// Where the first key begins.
    pub(crate) begin: &'c mut u32,
}

/// Where the ring is written.
#[derive(Default)]
struct Tail {
    /// Where the next image goes.
    place: u64,
    /// From here on it has gone round since so many were stored, and outdated.
    round_end: u64,
    stored: u64,
    outdated: u64,
}

/// See the module's documentation.
pub(crate) struct LeafImages {
    /// Made when there are to be images for the first time.
    words: OnceLock<Words>,
    bytes_max: u64,
    /// In use, of the words; in lines.
    lines: AtomicU64,
    /// In lines, as all places; what is there before it is gone.
    begin: AtomicU64,
    /// Held by whoever writes an image.
    tail: Mutex<Tail>,
    is_full: AtomicBool,
    stored: AtomicU64,
    /// How many had something to say no more before they were overwritten.
    outdated: AtomicU64,
    asked: Mutex<Vec<Asked>>,
    is_asked: AtomicBool,
    /// There is a use for images.
    is_wanted: AtomicBool,
}

impl LeafImages {
    /// None yet, and never more than so many bytes.
    pub(crate) fn new(bytes_max: u64) -> LeafImages {
        LeafImages {
            words: OnceLock::new(),
            bytes_max,
            lines: AtomicU64::new(0),
            begin: AtomicU64::new(0),
            tail: Mutex::default(),
            is_full: AtomicBool::new(false),
            stored: AtomicU64::new(0),
            outdated: AtomicU64::new(0),
            asked: Mutex::new(Vec::new()),
            is_asked: AtomicBool::new(false),
            is_wanted: AtomicBool::new(false),
        }
    }

    /// Whether some range had a use for an image, ever.
    pub(crate) fn is_wanted(&self) -> bool {
        self.is_wanted.load(Ordering::Relaxed)
    }

    /// Whether leaves wait to be copied.
    pub(crate) fn is_asked(&self) -> bool {
        self.is_asked.load(Ordering::SeqCst)
    }

    /// Has a leaf be copied soon, unless too many wait; true if it is the first that does.
    pub(crate) fn ask(&self, leaf: Asked) -> bool {
        self.is_wanted.store(true, Ordering::Relaxed);
        let Some(mut asked) = self.asked.try_lock().filter(|asked| asked.len() < ASKED_MAX) else {
            return false;
        };
        asked.push(leaf);
        !self.is_asked.swap(true, Ordering::SeqCst)
    }

    /// Those that wait.
    pub(crate) fn take_asked(&self) -> Vec<Asked> {
        let mut asked = self.asked.lock();
        self.is_asked.store(false, Ordering::SeqCst);
        std::mem::take(&mut *asked)
    }

    /// Bytes that images may take.
    pub(crate) fn bytes(&self) -> u64 {
        self.lines.load(Ordering::Relaxed) * (LINE_WORDS * 8) as u64
    }

    /// Changes how many bytes images may take. All that there are go.
    pub(crate) fn set_bytes(&self, bytes: u64) {
        let lines = bytes.min(self.bytes_max) / (LINE_WORDS * 8) as u64;
        let mut tail = self.tail.lock();
        if lines == self.lines.load(Ordering::Relaxed) {
            return;
        }
        self.begin_round(&mut tail, lines);
        self.begin.store(tail.place, Ordering::Relaxed);
        self.is_full.store(false, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        self.lines.store(lines, Ordering::Release);
        if let Some(words) = self.words.get() {
            words.clear(0, words.len());
        }
    }

    /// How many were stored so far.
    pub(crate) fn stored(&self) -> u64 {
        self.stored.load(Ordering::Relaxed)
    }

    /// True if the images that make room for others mostly still hold: they are too many.
    pub(crate) fn is_full(&self) -> bool {
        self.is_full.load(Ordering::Relaxed)
    }

    /// An image does not hold any more, and another one of its leaf may be wanted.
    pub(crate) fn note_outdated(&self) {
        self.outdated.fetch_add(1, Ordering::Relaxed);
    }

    /// Stores the image of rows whose keys and values follow one another in `bytes`; gives its place, or nothing if they are too long, or there is no room for them.
    pub(crate) fn store(&self, validity: Validity, ends: &[RowEnds], bytes: &[u8]) -> Option<u64> {
        if bytes.len() > IMAGE_BYTES_MAX {
            return None;
        }
        let words = HEADER_WORDS + ends.len() + bytes.len().div_ceil(8);
        let length = words.div_ceil(LINE_WORDS) as u64;
        let mut tail = self.tail.lock();
        let lines = self.lines.load(Ordering::Relaxed);
        if length > lines / 8 {
            return None;
        }
        let words = match self.words.get() {
            Some(words) => words,
            None => {
                let words = Words::new(self.bytes_max as usize / 8).ok()?;
                self.words.get_or_init(|| words)
            }
        };
        // None goes on at the beginning.
        let place = match tail.place % lines + length > lines {
            true => tail.place.next_multiple_of(lines),
            false => tail.place,
        };
        let end = place + length;
        if self.begin.load(Ordering::Relaxed) < end.saturating_sub(lines) {
            self.begin.store(end - lines, Ordering::Relaxed);
        }
        // Whoever sees any of what follows sees that what was there is gone.
        fence(Ordering::SeqCst);
        let first = (place % lines) as usize * LINE_WORDS;
        let header = [
            validity.leaf_version,
            validity.version_max,
            validity.address_min << COUNT_BITS | ends.len() as u64,
            validity.whole_at,
            u64::from(validity.own),
        ];
        let ends = ends.iter().map(|&(key, value)| u64::from(key) | u64::from(value) << u32::BITS);
        let (whole, rest) = bytes.as_chunks::<8>();
        let mut last = [0; 8];
        last[..rest.len()].copy_from_slice(rest);
        let data = whole.iter().chain([&last]).map(|&chunk| u64::from_le_bytes(chunk));
        let words = &words[first..first + length as usize * LINE_WORDS];
        for (word, value) in words.iter().zip(header.into_iter().chain(ends).chain(data)) {
            word.store(value, Ordering::Relaxed);
        }
        tail.place = end;
        if end >= tail.round_end {
            self.is_full.store(self.most_still_held(&tail), Ordering::Relaxed);
            self.begin_round(&mut tail, lines);
        }
        self.stored.fetch_add(1, Ordering::Relaxed);
        Some(place)
    }

    /// The ring goes round from here on.
    fn begin_round(&self, tail: &mut Tail, lines: u64) {
        tail.round_end = tail.place + lines;
        tail.stored = self.stored.load(Ordering::Relaxed);
        tail.outdated = self.outdated.load(Ordering::Relaxed);
    }

    /// The ring has gone round, and most of what is overwritten now still holds. Some of it does however much room there is: images of leaves that do not change.
    fn most_still_held(&self, tail: &Tail) -> bool {
        let stored = self.stored.load(Ordering::Relaxed) - tail.stored;
        let outdated = self.outdated.load(Ordering::Relaxed) - tail.outdated;
        outdated * OUTDATED_WITH_ROOM < stored
    }

    fn words_at(&self, place: u64) -> Option<&[AtomicU64]> {
        let lines = self.lines.load(Ordering::Acquire);
        let first = place.checked_rem(lines)? as usize * LINE_WORDS;
        self.words.get()?.get(first..lines as usize * LINE_WORDS)
    }

    /// True if what was read of the image at a place before is what was stored there.
    #[inline]
    fn was_there(&self, place: u64) -> bool {
        fence(Ordering::Acquire);
        self.begin.load(Ordering::Relaxed) <= place
    }

    /// What the image at a place is valid for, if it is still there.
    #[inline]
    pub(crate) fn validity(&self, place: u64) -> Option<Validity> {
        let words = self.words_at(place)?.get(..HEADER_WORDS)?;
        let word = |at: usize| words[at].load(Ordering::Relaxed);
        let (leaf_version, version_max) = (word(0), word(1));
        let (address_min, whole_at, own) = (word(COUNT_WORD) >> COUNT_BITS, word(3), word(4) as u32);
        self.was_there(place).then_some(Validity { leaf_version, version_max, address_min, whole_at, own })
    }

    /// Copies some rows of the image at a place, as far as there are so many, if it is still there afterwards; tells which.
    #[inline]
    pub(crate) fn copy(&self, place: u64, rows: Range<usize>, copied: Copied<'_>) -> Option<Range<usize>> {
        let words = self.words_at(place)?;
        let count = words.get(COUNT_WORD)?.load(Ordering::Relaxed) as usize & ((1 << COUNT_BITS) - 1);
        let (ends, data) = words.get(HEADER_WORDS..)?.split_at_checked(count)?;
        let rows = rows.start.min(count)..rows.end.min(count);
        let end_of = |row: usize| Some(ends.get(row)?.load(Ordering::Relaxed));
        let begin = match rows.start {
            0 => 0,
            row => end_of(row - 1)? >> u32::BITS,
        } as usize;
        let end = match rows.end {
            0 => 0,
            row => end_of(row - 1)? >> u32::BITS,
        } as usize;
        let (first, last) = (begin / 8, end.div_ceil(8));
        let skipped = (first * 8) as u32;
        let from = ends.get(rows.clone())?;
        for (end, to) in from.iter().zip(copied.ends.as_chunks_mut::<2>().0) {
            let end = end.load(Ordering::Relaxed);
            *to = [(end as u32).wrapping_sub(skipped), ((end >> u32::BITS) as u32).wrapping_sub(skipped)];
        }
        *copied.begin = begin as u32 - skipped;
        let data = data.get(first..last)?;
        if data.len() > IMAGE_BYTES_MAX / 8 && !planted(Bug::OverwrittenImageCopied) {
            return None;
        }
        let bytes = data.len() * 8;
        if copied.bytes.len() < bytes {
            copied.bytes.resize(bytes, 0);
        }
        for (word, chunk) in data.iter().zip(copied.bytes.as_chunks_mut::<8>().0) {
            *chunk = word.load(Ordering::Relaxed).to_le_bytes();
        }
        self.was_there(place).then_some(rows)
    }

    /// Has the processor fetch the image at a place.
    #[inline]
    pub(crate) fn fetch(&self, place: u64, rows: usize) {
        let words = self.words_at(place).unwrap_or_default();
        words
            .iter()
            .step_by(LINE_WORDS)
            .take(FETCHED_LINES.min(rows.saturating_mul(LINES_OF_ROW)))
            .for_each(prefetch);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const VALIDITY: Validity =
        Validity { leaf_version: 7, version_max: 8, address_min: 9, whole_at: 10, own: 7 };
    const BYTES: u64 = 16 << 10;

    #[test]
    fn a_leafs_keys_are_found_among_rows_that_have_settled() {
        let row_of = |own, position| Validity { own, ..VALIDITY }.row_of(position);
        assert_eq!([0, 1, 2].map(|position| row_of(0b111, position)), [0, 1, 2]);
        assert_eq!([0, 1, 2].map(|position| row_of(0b1_0110, position)), [1, 2, 4]);
        assert_eq!([0, 1].map(|position| row_of(0b1001, position)), [0, 3]);
        for (own, count) in [(0b111, 3), (0b1_0110, 3), (0b1001, 2), (0, 0), (u32::MAX, 32)] {
            assert_eq!(row_of(own, count), usize::MAX);
        }
    }

    fn with_room() -> LeafImages {
        let images = LeafImages::new(BYTES);
        images.set_bytes(BYTES);
        images
    }

    /// Rows of different lengths that a number tells.
    fn rows(number: u64) -> (Vec<RowEnds>, Vec<u8>) {
        let (mut ends, mut bytes) = (Vec::new(), Vec::new());
        for row in 0..number % 32 {
            bytes.extend(std::iter::repeat_n(number as u8, ((number + row) % 19) as usize));
            let key_end = bytes.len() as u32;
            bytes.extend(std::iter::repeat_n(row as u8, (number * row % 23) as usize));
            ends.push((key_end, bytes.len() as u32));
        }
        (ends, bytes)
    }

    /// Some rows of an image, one after the other: key, value.
    fn copied(images: &LeafImages, place: u64, rows: std::ops::Range<usize>) -> Option<Vec<Vec<u8>>> {
        let (mut bytes, mut ends, mut begin) = (Vec::new(), [0; 64], 0);
        let count = 2 * rows.len();
        images.copy(place, rows, Copied { bytes: &mut bytes, ends: &mut ends, begin: &mut begin })?;
        let begins = [begin].into_iter().chain(ends);
        Some(
            begins
                .zip(ends)
                .take(count)
                .map(|(begin, end)| bytes[begin as usize..end as usize].to_vec())
                .collect(),
        )
    }

    fn parts((ends, bytes): &(Vec<RowEnds>, Vec<u8>)) -> Vec<Vec<u8>> {
        let ends = ends.iter().flat_map(|&(key, value)| [key as usize, value as usize]);
        let begins = [0].into_iter().chain(ends.clone());
        begins.zip(ends).map(|(begin, end)| bytes[begin..end].to_vec()).collect()
    }

    #[test]
    fn any_rows_of_an_image_are_copied_as_they_were_stored() {
        let images = with_room();
        for number in [0, 1, 5, 13, 31] {
            let rows = rows(number);
            let place = images.store(VALIDITY, &rows.0, &rows.1).unwrap();
            assert_eq!(images.validity(place), Some(VALIDITY));
            let count = rows.0.len();
            for begin in 0..=count {
                for end in begin..=count {
                    let expected = &parts(&rows)[2 * begin..2 * end];
                    assert_eq!(
                        copied(&images, place, begin..end).unwrap(),
                        expected,
                        "{number}: {begin}..{end}"
                    );
                }
            }
        }
    }

    #[test]
    fn the_oldest_make_room_and_none_is_longer_than_an_eighth() {
        let images = with_room();
        let rows = rows(31);
        let mut places = vec![images.store(VALIDITY, &rows.0, &rows.1).unwrap()];
        while images.validity(places[0]).is_some() {
            assert!(!images.is_full() && copied(&images, places[0], 0..31).is_some());
            places.push(images.store(VALIDITY, &rows.0, &rows.1).unwrap());
        }
        assert!(images.is_full() && copied(&images, places[0], 0..31).is_none());
        assert!(places.len() as u64 > BYTES / 2 / rows.1.len() as u64, "{}", places.len());
        for place in &places[2..] {
            assert_eq!(copied(&images, *place, 0..31).unwrap(), parts(&rows));
        }
        assert_eq!(images.store(VALIDITY, &[(0, BYTES as u32 / 8)], &[0; BYTES as usize / 8]), None);
    }

    /// Where a few of many leaves change all the time, others had to be read four times as often before they got an image again.
    #[test]
    fn it_is_not_full_where_many_images_are_outdated_when_others_take_their_place() {
        let images = with_room();
        let rows = rows(31);
        let store_a_round = |outdated_each: usize| {
            let first = images.store(VALIDITY, &rows.0, &rows.1).unwrap();
            for number in 1.. {
                if number % outdated_each == 0 {
                    images.note_outdated();
                }
                images.store(VALIDITY, &rows.0, &rows.1).unwrap();
                if images.validity(first).is_none() {
                    return;
                }
            }
        };
        for (outdated_each, is_full) in [(3, false), (12, true), (3, false), (usize::MAX, true)] {
            store_a_round(outdated_each);
            store_a_round(outdated_each);
            assert_eq!(images.is_full(), is_full, "one in {outdated_each}");
        }
        images.set_bytes(BYTES / 2);
        assert!(!images.is_full());
    }

    /// A reader that stood still while the ring went over its image took bytes of values for the lengths of rows, and copied, while pinned, what
    /// could be all of the ring, before it found out.
    #[test]
    fn who_copies_what_is_overwritten_copies_no_more_than_an_image() {
        const RING: u64 = 4 << 20;
        let images = LeafImages::new(RING);
        images.set_bytes(RING);
        let ends: Vec<_> = (1..32).map(|row| (row * 8 - 4, row * 8)).collect();
        let place = images.store(VALIDITY, &ends, &[0; 31 * 8]).unwrap();
        // Words that say, in the place of a header and of ends: 255 rows, 3 MiB long together.
        let word = (3_u64 << 20 << u32::BITS | 255).to_le_bytes();
        let garbage = vec![word; IMAGE_BYTES_MAX / 8].concat();
        // Each begins elsewhere in a line, so that data comes to lie where the header was.
        while images.validity(place).is_some() {
            images.store(VALIDITY, &[(0, 8)], &garbage).unwrap();
        }
        images.store(VALIDITY, &[(0, 8)], &garbage).unwrap();
        let (mut bytes, mut ends, mut begin) = (Vec::new(), [0; 64], 0);
        for place in place..place + IMAGE_BYTES_MAX as u64 / 64 {
            let copied = Copied { bytes: &mut bytes, ends: &mut ends, begin: &mut begin };
            assert_eq!(images.copy(place, 0..31, copied), None);
            assert!(bytes.len() <= IMAGE_BYTES_MAX, "{} bytes were copied", bytes.len());
        }
    }

    #[test]
    fn all_go_when_the_memory_is_another_and_there_are_none_without_memory() {
        let images = with_room();
        let rows = rows(9);
        let store = || images.store(VALIDITY, &rows.0, &rows.1);
        let before = store().unwrap();
        images.set_bytes(BYTES);
        assert!(images.validity(before).is_some(), "nothing has changed");
        images.set_bytes(BYTES / 2);
        assert_eq!((images.validity(before), images.bytes()), (None, BYTES / 2));
        let after = store().unwrap();
        assert_eq!(copied(&images, after, 0..9).unwrap(), parts(&rows));
        images.set_bytes(0);
        assert_eq!((images.validity(after), store()), (None, None));
        images.set_bytes(2 * BYTES);
        assert_eq!(images.bytes(), BYTES, "there was never to be more");
    }

    #[test]
    fn those_that_wait_are_few_and_only_the_first_wakes() {
        let images = with_room();
        let asked = |leaf| Asked { object: 1, leaf, version: 3 };
        assert!(!images.is_wanted() && !images.is_asked());
        assert!(images.ask(asked(0)));
        assert!((1..2 * ASKED_MAX as u32).all(|leaf| !images.ask(asked(leaf))));
        assert!(images.is_wanted() && images.is_asked());
        let taken = images.take_asked();
        assert!(taken.iter().copied().eq((0..ASKED_MAX as u32).map(asked)));
        assert!(!images.is_asked() && images.take_asked().is_empty() && images.ask(asked(1)));
    }

    /// A copy is either whole or none, although images are stored over what is copied, and the memory changes.
    #[test]
    fn a_copy_is_no_mixture() {
        const ROUNDS: u64 = if cfg!(miri) { 60 } else { 30_000 };
        let images = with_room();
        let (newest, is_done) = (AtomicU64::new(u64::MAX), AtomicBool::new(false));
        let seen = AtomicU64::new(0);
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    while !is_done.load(Ordering::Relaxed) {
                        let word = newest.load(Ordering::Acquire);
                        let (place, number) = (word >> 8, 20 + word % 256);
                        if word == u64::MAX {
                            std::thread::yield_now();
                        } else if let Some(copied) = copied(&images, place, 0..number as usize) {
                            assert_eq!(copied, parts(&rows(number)));
                            seen.fetch_add(1, Ordering::Relaxed);
                        }
                    }
                });
            }
            for round in 0..ROUNDS {
                let rows = rows(20 + round % 12);
                let place = images.store(VALIDITY, &rows.0, &rows.1).unwrap();
                newest.store((place << 8) | (round % 12), Ordering::Release);
                if round % 1_000 == 999 {
                    images.set_bytes(BYTES - round % 3 * 1_000);
                }
                while cfg!(miri) && seen.load(Ordering::Relaxed) == 0 {
                    std::thread::yield_now();
                }
            }
            is_done.store(true, Ordering::Relaxed);
        });
        assert_ne!(seen.load(Ordering::Relaxed), 0, "nobody has seen an image");
    }
}
