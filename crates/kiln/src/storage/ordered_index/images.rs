//! Which leaves have an [image](crate::storage::leaf_images), and which ought to.
//!
//! Each leaf with hints has a word for it, which everybody changes by a compare-and-swap:
//!
//! ```text
//!   changes 15 | 0 | rows that ranges have read here since       no image
//!   changes 15 | 1 | its place                                  an image that holds
//! ```
//!
//! Whoever supersedes a record that was copied takes the leaf's image away ([`OrderedIndex::forget_image`]) before the commit ends, which counts as a change; and an
//! image is given to the leaf only if there was none since before its rows were found to be the newest. So while the word names an image each of its rows is its key's newest, as long as the leaf is at the version that
//! the image has, and the records are in memory.

use std::ops::Range;

use crate::storage::epoch::Pin;
use crate::storage::leaf_images::{LeafImages, NEVER_WHOLE, Validity};
use crate::storage::log::Log;
use crate::storage::memory;
use crate::sync::atomic::{AtomicU64, Ordering};

use super::batch::{LeafBatch, LeafRead};
use super::hints::Hints;
use super::inner::Target;
use super::key::Probe;
use super::slots::SLOT_COUNT;
use super::{Leaf, OrderedIndex, retry};

const PLACE_BITS: u32 = 48;
const PLACE_MAX: u64 = (1 << PLACE_BITS) - 1;
const HAS_IMAGE: u64 = 1 << PLACE_BITS;
const CHANGE: u64 = 2 << PLACE_BITS;

/// So many rows are read of a leaf before it is copied; more where it was changed since it was, or where images are too many.
const ROWS_READ_FIRST: u64 = 3 * SLOT_COUNT as u64;
const ROWS_READ_MORE: u64 = 2 * SLOT_COUNT as u64;
const CHANGES_COUNTED: u64 = 8;
const TIMES_WHERE_TOO_MANY: u64 = 4;

/// A leaf's word.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ImageWord(u64);

impl ImageWord {
    fn place(self) -> Option<u64> {
        (self.0 & HAS_IMAGE != 0).then_some(self.0 & PLACE_MAX)
    }

    fn rows_read(self) -> u64 {
        if self.0 & HAS_IMAGE == 0 { self.0 & PLACE_MAX } else { 0 }
    }

    /// Without an image, and no row read since.
    fn bare(self) -> ImageWord {
        ImageWord(self.0 & !(PLACE_MAX | HAS_IMAGE))
    }

    fn changed(self) -> ImageWord {
        ImageWord(self.bare().0.wrapping_add(CHANGE))
    }

    fn changes(self) -> u64 {
        self.0 / CHANGE
    }
}

/// Images for who reads as of a version.
#[derive(Clone, Copy)]
pub(crate) struct ImagesAsOf<'i> {
    pub(crate) images: &'i LeafImages,
    pub(crate) log: &'i Log,
    pub(crate) version: u64,
    /// No more are wanted.
    pub(crate) rows_max: usize,
}

impl ImagesAsOf<'_> {
    /// The place of the image that a leaf's word names, and what it is valid for, if it is of use.
    #[inline]
    fn find(&self, word: &AtomicU64, leaf_version: u64) -> Option<(u64, Validity)> {
        let place = ImageWord(word.load(Ordering::Acquire)).place()?;
        let validity = self.images.validity(place)?;
        // What has left memory by now may have been superseded without a word.
        let holds = validity.leaf_version == leaf_version && validity.address_min >= self.log.head();
        (holds && validity.version_max <= self.version).then_some((place, validity))
    }
}

impl OrderedIndex {
    #[inline]
    fn image_word(&self, leaf: u32) -> Option<&AtomicU64> {
        self.hints.get(leaf).map(Hints::image_word)
    }

    /// The place of a leaf's image, and what it is valid for, if it has one that is of use.
    #[inline]
    pub(super) fn find_image(
        &self,
        images: Option<&ImagesAsOf<'_>>,
        leaf: &Leaf<'_>,
    ) -> Option<(u64, Validity)> {
        images?.find(self.image_word(leaf.number)?, leaf.version.number())
    }

    /// Copies into a batch what the leaf's image has of some positions, and of what has settled beside them, if it has one that is of use; of the positions
    /// no more than are wanted. Tells how many rows these are, and whether the image is whole. Since there were so many unlinkings the caller has come to the leaf, by a way that did not change
    /// meanwhile: it has not read a smaller interval than an image from before that.
    #[inline]
    pub(super) fn copy_image(
        &self,
        images: Option<&ImagesAsOf<'_>>,
        leaf: &Leaf<'_>,
        (unlinkings, positions): (u64, Range<usize>),
        batch: &mut LeafBatch,
    ) -> Option<(usize, bool)> {
        let ((place, validity), images) = (self.find_image(images, leaf)?, images?);
        // One with settled rows of an interval that may have grown since is of no use.
        if validity.whole_at > unlinkings && validity.whole_at != NEVER_WHOLE {
            return None;
        }
        let Range { start, end } = positions;
        let behind = |position: usize| match position.checked_sub(1) {
            Some(before) => validity.row_of(before).saturating_add(1),
            None => 0,
        };
        // Which of the settled ones before the first position, or behind the last one, are within the bound has still to be looked at.
        let rows = match batch.is_forward() {
            true => behind(start)..validity.row_of(start).saturating_add(images.rows_max),
            false => behind(end).saturating_sub(images.rows_max)..validity.row_of(end),
        };
        let rows = images.images.copy(place, rows, batch.image_buffers())?;
        Some((rows.len(), validity.whole_at == self.unlinkings()))
    }

    /// How many leaves were unlinked beside others. An interval that was found before by a way that has not changed has not grown since.
    #[inline]
    pub(crate) fn unlinkings(&self) -> u64 {
        self.unlinkings.load(Ordering::Acquire)
    }

    /// Has the processor fetch the word of a leaf, and what else it takes to find that its image is of use.
    #[inline]
    pub(super) fn fetch_image_word(&self, leaf: u32) {
        self.image_word(leaf).into_iter().for_each(memory::prefetch);
        self.leaves.get(leaf).into_iter().for_each(memory::prefetch);
    }

    /// Has the processor fetch the image of a leaf, if it has one, as far as so many rows need it.
    #[inline]
    pub(super) fn fetch_image(&self, images: &ImagesAsOf<'_>, leaf: u32) {
        let word = self.image_word(leaf).map(|word| ImageWord(word.load(Ordering::Relaxed)));
        if let Some(place) = word.and_then(ImageWord::place) {
            images.images.fetch(place, images.rows_max);
        }
    }

    /// Counts rows of a batch that were read one by one, because the leaf has no image that is of use; true if it ought to get one.
    pub(crate) fn count_rows_read(&self, batch: &LeafBatch, rows: usize, images: &ImagesAsOf<'_>) -> bool {
        let LeafRead { leaf, version } = batch.read();
        let Some(word) = self.image_word(leaf) else { return false };
        let seen = ImageWord(word.load(Ordering::Relaxed));
        // Of two that count at a time one is enough.
        let try_set = |next: ImageWord| {
            word.compare_exchange(seen.0, next.0, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        };
        if let Some(place) = seen.place() {
            let validity = images.images.validity(place);
            let is_outdated = validity.is_some_and(|validity| validity.leaf_version != version);
            let is_gone = validity.is_none_or(|validity| validity.address_min < images.log.head());
            // What is neither is for others.
            let is_taken_away = (is_outdated || is_gone) && try_set(seen.bare());
            if is_taken_away && is_outdated {
                images.images.note_outdated();
            }
            return false;
        }
        let read = seen.rows_read() + rows as u64;
        let usual = ROWS_READ_FIRST + seen.changes().min(CHANGES_COUNTED) * ROWS_READ_MORE;
        let times = if images.images.is_full() { TIMES_WHERE_TOO_MANY } else { 1 };
        match read < usual * times {
            true => {
                try_set(ImageWord(seen.bare().0 | read));
                false
            }
            false => try_set(seen.bare()),
        }
    }

    /// The word of a leaf that is about to be copied, before its rows are looked at; nothing if it has an image.
    pub(crate) fn begin_image(&self, leaf: u32) -> Option<ImageWord> {
        let word = ImageWord(self.image_word(leaf)?.load(Ordering::Acquire));
        word.place().is_none().then_some(word)
    }

    /// Gives a leaf its image, unless a row was changed since [`Self::begin_image`].
    pub(crate) fn give_image(&self, leaf: u32, begun: ImageWord, place: u64) {
        // Who counts rows in between is no change.
        self.change_word(leaf, |now| {
            let holds = now.place().is_none() && now.changes() == begun.changes() && place <= PLACE_MAX;
            holds.then_some(ImageWord(begun.bare().0 | HAS_IMAGE | place))
        });
    }

    /// A leaf that was asked for cannot have an image: unless it has one, it is to be asked for less often.
    pub(crate) fn refuse_image(&self, leaf: u32) {
        self.change_word(leaf, |word| word.place().is_none().then_some(word.changed()));
    }

    /// A row that was copied is no more what it was: takes the image of its leaf away, if it has one, which is said. The caller holds the key's bucket, and has noted in the
    /// record that was copied that it is superseded.
    pub(crate) fn forget_image(&self, pin: &Pin, key: &[u8]) -> bool {
        let target = Target::At(Probe::new(key));
        let leaf = retry(|| self.descend(pin, &target, |_| Some(()))).number;
        let before = self.change_word(leaf, |word| Some(word.changed()));
        before.is_some_and(|word| word.place().is_some())
    }

    /// Gives the word that was changed, as it was.
    fn change_word(
        &self,
        leaf: u32,
        mut change: impl FnMut(ImageWord) -> Option<ImageWord>,
    ) -> Option<ImageWord> {
        let change = |word| change(ImageWord(word)).map(|word| word.0);
        let changed = self.image_word(leaf)?.fetch_update(Ordering::AcqRel, Ordering::Relaxed, change);
        changed.ok().map(ImageWord)
    }

    /// Reads all keys of a leaf, in ascending order; nothing if it is being changed.
    pub(crate) fn read_whole(&self, pin: &Pin, number: u32, batch: &mut LeafBatch) -> Option<()> {
        let slots = self.leaves.get(number)?;
        let leaf = Leaf { number, slots, version: slots.version()? };
        batch.start(true);
        batch.fill(pin, &leaf, 0..slots.count(), None, None)
    }
}

#[cfg(test)]
mod tests {
    use std::ops::Bound;

    use super::*;
    use crate::storage::epoch;
    use crate::storage::leaf_images::{RowEnds, Validity};

    const VERSION: u64 = 5;
    const COUNT: usize = 20;

    struct Fixture {
        index: OrderedIndex,
        images: LeafImages,
        log: Log,
    }

    fn key(number: usize) -> Vec<u8> {
        format!("{number:02}").into_bytes()
    }

    fn value(number: usize) -> Vec<u8> {
        vec![number as u8; number % 5]
    }

    impl Fixture {
        /// One leaf, which has hints.
        fn new() -> Fixture {
            let (index, images) = (OrderedIndex::new(), LeafImages::new(64 << 10));
            images.set_bytes(64 << 10);
            (0..COUNT).for_each(|number| _ = index.insert(&epoch::pin(), &key(number)));
            let fixture = Fixture { index, images, log: Log::new(32 << 10, 16 << 10, 0).unwrap() };
            let batch = fixture.read(true, Bound::Unbounded, None);
            fixture.index.give_hint(&batch, 0, 64);
            fixture
        }

        fn as_of(&self, version: u64, rows_max: usize) -> ImagesAsOf<'_> {
            ImagesAsOf { images: &self.images, log: &self.log, version, rows_max }
        }

        fn read(&self, forward: bool, from: Bound<&[u8]>, images: Option<ImagesAsOf<'_>>) -> LeafBatch {
            let (mut batch, reader) = (LeafBatch::new(), self.index.reader(images));
            match forward {
                true => reader.read_forward(&epoch::pin(), from, &mut batch),
                false => reader.read_backward(&epoch::pin(), from, &mut batch),
            }
            batch
        }

        /// Whether a range as of a version gets values.
        fn has_image(&self, version: u64) -> bool {
            self.read(true, Bound::Unbounded, Some(self.as_of(version, COUNT))).has_values()
        }

        fn leaf(&self) -> LeafRead {
            self.read(true, Bound::Unbounded, None).read()
        }

        fn give(&self, begun: ImageWord, leaf: LeafRead) {
            let (mut ends, mut bytes) = (Vec::<RowEnds>::new(), Vec::new());
            for number in 0..COUNT {
                bytes.extend(key(number));
                let key_end = bytes.len() as u32;
                bytes.extend(value(number));
                ends.push((key_end, bytes.len() as u32));
            }
            let validity = Validity {
                leaf_version: leaf.version,
                version_max: VERSION,
                address_min: 64,
                whole_at: self.index.unlinkings(),
                own: (1 << COUNT) - 1,
            };
            let place = self.images.store(validity, &ends, &bytes).unwrap();
            self.index.give_image(leaf.leaf, begun, place);
        }

        fn copy_leaf(&self) {
            let leaf = self.leaf();
            self.give(self.index.begin_image(leaf.leaf).unwrap(), leaf);
        }
    }

    #[test]
    fn a_batch_has_the_rows_of_an_image_from_anywhere_either_way_and_no_more_than_are_wanted() {
        let fixture = Fixture::new();
        fixture.copy_leaf();
        for forward in [true, false] {
            for from in 0..COUNT {
                for rows_max in [1, 3, COUNT, usize::MAX] {
                    let images = Some(fixture.as_of(VERSION, rows_max));
                    let batch = fixture.read(forward, Bound::Included(&key(from)), images);
                    let mut expected =
                        if forward { (from..COUNT).collect() } else { (0..=from).rev().collect::<Vec<_>>() };
                    expected.truncate(rows_max);
                    assert!(
                        batch.has_values() && batch.len() == expected.len(),
                        "{forward} {from} {rows_max}"
                    );
                    for (position, number) in expected.into_iter().enumerate() {
                        assert_eq!(batch.get(position), Some(&*key(number)));
                        assert_eq!(batch.value(position), Some(&*value(number)));
                        assert_eq!(batch.slot_of(position), None);
                    }
                    assert_eq!((batch.get(batch.len()), batch.value(batch.len())), (None, None));
                }
            }
        }
    }

    #[test]
    fn an_image_is_of_no_use_to_older_snapshots_nor_after_the_leaf_has_changed_nor_when_records_have_left_memory()
     {
        let fixture = Fixture::new();
        fixture.copy_leaf();
        assert!(fixture.has_image(VERSION) && fixture.has_image(VERSION + 1));
        assert!(!fixture.has_image(VERSION - 1));
        let version = fixture.leaf();
        assert!(fixture.index.insert(&epoch::pin(), b"new") != super::super::Insertion::Present);
        assert_ne!(fixture.leaf(), version);
        assert!(!fixture.has_image(VERSION), "a key has come");
        let mut fixture = Fixture::new();
        fixture.copy_leaf();
        assert!(fixture.has_image(VERSION));
        fixture.log = Log::new(32 << 10, 16 << 10, 16 << 10).unwrap();
        assert!(!fixture.has_image(VERSION), "nobody notes what becomes of its rows any more");
    }

    /// A range that began at the second position of a leaf, while a key came before it, passed over a row.
    #[test]
    fn c2_positions_in_a_leaf_that_has_changed_since_are_not_taken_from_its_image() {
        let fixture = Fixture::new();
        fixture.copy_leaf();
        let (pin, mut batch) = (epoch::pin(), LeafBatch::new());
        let leaf = fixture.index.descend(&pin, &Target::First, |_| Some(())).unwrap();
        let images = Some(fixture.as_of(VERSION, 3));
        let mut fill = |leaf: &Leaf<'_>| {
            fixture.index.reader(images).fill(
                &pin,
                leaf,
                (0, Bound::Unbounded, 1..COUNT),
                (None, None),
                &mut batch,
            )
        };
        assert!(fill(&leaf).is_some());
        fixture.index.insert(&pin, b"new");
        assert!(fill(&leaf).is_none(), "of the leaf as it was");
    }

    /// What it has beside the leaf's own rows may be of an interval that the reader's has grown to since.
    #[test]
    fn an_image_from_after_an_unlinking_is_of_no_use_to_who_has_come_to_the_leaf_before() {
        let fixture = Fixture::new();
        fixture.index.unlinkings.fetch_add(1, Ordering::Relaxed);
        fixture.copy_leaf();
        let number = fixture.leaf().leaf;
        let slots = fixture.index.leaves.get(number).unwrap();
        let fill = |unlinkings| {
            let (pin, images) = (epoch::pin(), Some(fixture.as_of(VERSION, COUNT)));
            let leaf = Leaf { number, slots, version: slots.version().unwrap() };
            let mut batch = LeafBatch::new();
            let positions = (unlinkings, Bound::Unbounded, 0..COUNT);
            fixture.index.reader(images).fill(&pin, &leaf, positions, (None, None), &mut batch).unwrap();
            (batch.has_values(), batch.is_whole())
        };
        assert_eq!([0, 1].map(fill), [(false, false), (true, true)]);
        fixture.index.unlinkings.fetch_add(1, Ordering::Relaxed);
        assert_eq!([0, 1, 2].map(fill), [(false, false), (true, false), (true, false)]);
    }

    #[test]
    fn whoever_changes_a_row_takes_the_image_away_also_from_who_is_just_making_it() {
        let fixture = Fixture::new();
        fixture.copy_leaf();
        assert_eq!(fixture.index.begin_image(fixture.leaf().leaf), None, "there is one");
        fixture.index.forget_image(&epoch::pin(), &key(3));
        assert!(!fixture.has_image(VERSION));
        let leaf = fixture.leaf();
        let begun = fixture.index.begin_image(leaf.leaf).unwrap();
        fixture.index.forget_image(&epoch::pin(), &key(4));
        fixture.give(begun, leaf);
        assert!(!fixture.has_image(VERSION), "it is of before the change");
        fixture.copy_leaf();
        assert!(fixture.has_image(VERSION));
    }

    #[test]
    fn a_leaf_that_is_read_often_ought_to_have_an_image_and_later_where_it_was_changed() {
        let fixture = Fixture::new();
        let batch = fixture.read(true, Bound::Unbounded, None);
        let images = fixture.as_of(VERSION, COUNT);
        let reads_until_due =
            || (1..1_000).find(|_| fixture.index.count_rows_read(&batch, COUNT, &images)).unwrap();
        let first = reads_until_due();
        assert_eq!(first, ROWS_READ_FIRST.div_ceil(COUNT as u64));
        assert_eq!(reads_until_due(), first, "it begins anew");
        let begun = fixture.index.begin_image(batch.read().leaf).unwrap();
        assert!(!fixture.index.count_rows_read(&batch, COUNT, &images));
        fixture.give(begun, batch.read());
        assert!(fixture.has_image(VERSION), "that rows are counted is no change");
        for _ in 0..100 {
            fixture.index.forget_image(&epoch::pin(), &key(3));
        }
        let most = ROWS_READ_FIRST + CHANGES_COUNTED * ROWS_READ_MORE;
        assert_eq!(reads_until_due(), most.div_ceil(COUNT as u64));
    }

    #[test]
    fn a_leaf_that_cannot_be_copied_is_asked_for_less_often_and_one_that_was_keeps_its_image() {
        let fixture = Fixture::new();
        let batch = fixture.read(true, Bound::Unbounded, None);
        fixture.index.refuse_image(batch.read().leaf);
        let images = fixture.as_of(VERSION, COUNT);
        let reads = (1..1_000).find(|_| fixture.index.count_rows_read(&batch, COUNT, &images)).unwrap();
        assert_eq!(reads, (ROWS_READ_FIRST + ROWS_READ_MORE).div_ceil(COUNT as u64));
        fixture.copy_leaf();
        fixture.index.refuse_image(batch.read().leaf);
        assert!(fixture.has_image(VERSION));
    }

    #[test]
    fn an_image_that_has_gone_is_counted_for_anew() {
        let fixture = Fixture::new();
        fixture.copy_leaf();
        let batch = fixture.read(true, Bound::Unbounded, None);
        let images = fixture.as_of(VERSION - 1, COUNT);
        assert!(
            (0..100).all(|_| !fixture.index.count_rows_read(&batch, COUNT, &images)),
            "others have a use for it"
        );
        assert!(fixture.has_image(VERSION));
        fixture.images.set_bytes(32 << 10);
        assert!((0..100).any(|_| fixture.index.count_rows_read(&batch, COUNT, &images)));
        fixture.copy_leaf();
        assert!(fixture.has_image(VERSION));
    }
}
