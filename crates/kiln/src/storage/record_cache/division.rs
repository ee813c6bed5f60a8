//! How a shard's memory is divided, and what becomes of its records when that changes.
//!
//! A shard is divided anew at once, and the shards one after the other, each when somebody has time for it: meanwhile who reads finds nothing in that one,
//! and everything in the others. What fits stays: of more than that what was asked for, then what came last, and in the end what is superseded.

use std::cmp::Reverse;

use super::shard::{Entry, Part, Place};
use super::{BUCKET_ENTRIES, Ends, IsNewest, PROBATION_PART, RECORD_PART, RecordCache, hash_of, words_of};
use crate::sync::atomic::{Ordering, fence};

/// The directory has an entry for so many words of records, at least and at most, and as long as nothing is known of them.
const WORDS_PER_ENTRY: std::ops::RangeInclusive<u64> = 4..=64;
const WORDS_PER_ENTRY_USUAL: u64 = 8;

/// Words of each shard's parts.
#[derive(Clone, Copy)]
pub(super) struct Division {
    pub(super) directory: usize,
    pub(super) probation: usize,
    pub(super) protected: usize,
}

impl Division {
    /// Divides a shard's words, for records of about so many.
    pub(super) fn of(shard_words: usize, record_words: Option<u64>) -> Division {
        // An entry and a half for each record: its neighbours in the bucket may be more than their share, and some are ghosts.
        let per_entry = record_words.map_or(WORDS_PER_ENTRY_USUAL, |words| words * 2 / 3);
        let per_entry = per_entry.clamp(*WORDS_PER_ENTRY.start(), *WORDS_PER_ENTRY.end()) as usize;
        let directory = (shard_words / (per_entry + 1)).next_multiple_of(BUCKET_ENTRIES);
        let records = shard_words.saturating_sub(directory);
        let probation = (records / PROBATION_PART).max(BUCKET_ENTRIES);
        let protected = records.saturating_sub(probation).max(BUCKET_ENTRIES);
        Division { directory: directory.max(BUCKET_ENTRIES), probation, protected }
    }

    pub(super) fn words(self) -> usize {
        self.directory + self.probation + self.protected
    }
}

/// A division under way.
pub(super) struct Dividing {
    division: Division,
    /// So much of the protected ring may be used.
    opened_words: usize,
    /// The next shard to be divided.
    next: usize,
}

/// A record that may stay when its shard is divided anew, and where it is.
struct Candidate {
    part: Part,
    position: u64,
    words: u64,
    is_referenced: bool,
    is_superseded: bool,
}

impl Dividing {
    /// Nothing is to be done.
    pub(super) fn done(division: Division, shards: usize) -> Dividing {
        Dividing { division, opened_words: division.protected, next: shards }
    }
}

impl RecordCache {
    /// Goes on with so much of the memory, for records of about `record_bytes`, and keeps what fits.
    pub(crate) fn divide(&self, bytes: u64, record_bytes: u64) {
        self.begin_division(bytes, record_bytes, u64::MAX);
        while self.divide_some(&|_, _| true) {}
    }

    /// Begins to do so, for [`Self::divide_some`] to go on with; of the memory only `opened_bytes` may be used until more are
    /// [opened](Self::open), if the parts that are fixed need no more. Returns how many bytes it may take in the end.
    pub(crate) fn begin_division(&self, bytes: u64, record_bytes: u64, opened_bytes: u64) -> u64 {
        let mut dividing = self.dividing.lock();
        let shard_words = ((bytes / 8) as usize / self.shards.len()).min(self.shard_words);
        let mut division = Division::of(shard_words, Some(1 + record_bytes / 8));
        if division.words() > self.shard_words {
            // Of a few words, none can be saved.
            division = dividing.division;
        }
        let opened_words = self.opened_words(division, opened_bytes);
        *dividing = Dividing { division, opened_words, next: 0 };
        self.note_sizes(&dividing);
        let fixed = division.directory + division.probation;
        ((fixed + opened_words) * self.shards.len()) as u64 * 8
    }

    fn opened_words(&self, division: Division, bytes: u64) -> usize {
        let words = usize::try_from(bytes / 8).unwrap_or(usize::MAX) / self.shards.len();
        words.saturating_sub(division.directory + division.probation).min(division.protected)
    }

    /// Divides the next shard anew, if not all are; false if that was the last.
    pub(crate) fn divide_some(&self, is_newest: IsNewest<'_>) -> bool {
        let mut dividing = self.dividing.lock();
        if dividing.next < self.shards.len() {
            self.divide_shard(dividing.next, dividing.division, dividing.opened_words, is_newest);
            dividing.next += 1;
            self.note_sizes(&dividing);
        }
        dividing.next < self.shards.len()
    }

    /// Lets so much of the memory be used; not less than before.
    pub(crate) fn open(&self, bytes: u64) {
        let mut dividing = self.dividing.lock();
        let words = self.opened_words(dividing.division, bytes);
        dividing.opened_words = dividing.opened_words.max(words);
        for shard in &self.shards[..dividing.next] {
            shard.open(dividing.division, dividing.opened_words);
        }
        self.note_sizes(&dividing);
    }

    /// Notes how much memory there may be in use, and how long a record may be.
    fn note_sizes(&self, dividing: &Dividing) {
        let words = self.shards.iter().map(|shard| {
            let division = shard.division();
            let opened_end = shard.opened_end.load(Ordering::Relaxed);
            let opened = opened_end.saturating_sub(shard.protected_start.load(Ordering::Relaxed));
            division.directory as u64 + division.probation as u64 + opened.min(division.protected as u64)
        });
        self.bytes.store(words.sum::<u64>() * 8, Ordering::Relaxed);
        let rest = self.shards[dividing.next..].iter().map(|shard| shard.division().probation);
        let probation = rest.fold(dividing.division.probation, usize::min);
        self.probation_words.store(probation as u64, Ordering::Relaxed);
    }

    fn divide_shard(&self, number: usize, division: Division, opened_words: usize, is_newest: IsNewest<'_>) {
        let shard = &self.shards[number];
        let mut ends = shard.writer.lock();
        let place = self.place(number, 0, shard.division());
        let (kept, words) = place.kept(&ends, division, opened_words, is_newest);
        let has_taken_over = place.has_taken_over(&ends);
        shard.divided.fetch_add(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        // Behind all that was: whatever somebody has found there is given up. Rings begin where their memory does, so that what is not opened is
        // not touched.
        let sizes = [division.probation, division.protected];
        for ((begin, end), size) in shard.begins.iter().zip(&mut ends.rings).zip(sizes) {
            *end = end.next_multiple_of(size as u64);
            begin.store(*end, Ordering::Relaxed);
        }
        fence(Ordering::Release);
        self.words.clear(number * self.shard_words, self.shard_words);
        shard.set_division(division);
        shard.protected_start.store(ends.rings[Part::Protected as usize], Ordering::Relaxed);
        shard.open(division, opened_words);
        let place = self.place(number, 0, division);
        let mut rest = &words[..];
        for (part, it) in kept {
            let (record, others) = rest.split_at(it.words as usize);
            place.put_back(part, it.is_referenced, record, &mut ends);
            rest = others;
        }
        // What came unasked may be anywhere among what is kept.
        ends.taken_over = if has_taken_over { ends.rings[Part::Protected as usize] } else { 0 };
        shard.divided.fetch_add(1, Ordering::Release);
    }
}

impl Place<'_> {
    /// What fits into such a division, with the ring that it is to come to, and the words of all of it; of each ring what is to leave it first comes first. The caller is the
    /// shard's writer.
    fn kept(
        self,
        ends: &Ends,
        division: Division,
        opened_words: usize,
        is_newest: IsNewest<'_>,
    ) -> (Vec<(Part, Candidate)>, Vec<u64>) {
        let mut candidates = Vec::new();
        for part in [Part::Protected, Part::Probation] {
            self.candidates_of(part, ends, is_newest, &mut candidates);
        }
        candidates.retain(|it| it.words <= division.protected as u64 / RECORD_PART);
        // What is worth most first.
        candidates.sort_unstable_by_key(|it| {
            (it.is_superseded, !it.is_referenced, it.part == Part::Probation, Reverse(it.position))
        });
        let mut room = [(Part::Protected, opened_words as u64), (Part::Probation, division.probation as u64)];
        let mut kept = Vec::new();
        for it in candidates {
            if let Some((part, left)) = room.iter_mut().find(|(_, left)| it.words <= *left) {
                *left -= it.words;
                kept.push((*part, it));
            }
        }
        kept.reverse();
        let words = kept.iter().map(|(_, it)| it.words).sum::<u64>();
        let mut copied = Vec::with_capacity(words as usize);
        for (_, it) in &kept {
            let record = &self.ring(it.part).from(it.position)[..it.words as usize];
            copied.extend(record.iter().map(|word| word.load(Ordering::Relaxed)));
        }
        (kept, copied)
    }

    /// Adds a ring's records. The caller is the shard's writer.
    fn candidates_of(
        self,
        part: Part,
        ends: &Ends,
        is_newest: IsNewest<'_>,
        candidates: &mut Vec<Candidate>,
    ) {
        let mut position = self.ring(part).begin.load(Ordering::Relaxed);
        while position < ends.rings[part as usize] {
            position += match self.record_at(part, position) {
                Ok((address, view)) => {
                    let words = words_of(view.shape());
                    let entry = self.entry_at(address, part, position);
                    candidates.extend(entry.map(|(_, entry)| Candidate {
                        part,
                        position,
                        words,
                        is_referenced: entry.is_referenced(),
                        is_superseded: !is_newest(address, &view),
                    }));
                    words
                }
                Err(gap) => gap,
            };
        }
    }

    /// Puts a record that stays into its ring, where there is room for it. The caller is the shard's writer.
    fn put_back(self, part: Part, is_referenced: bool, record: &[u64], ends: &mut Ends) {
        let ring = self.ring(part);
        let Some(position) = ring.take(&mut ends.rings[part as usize], record.len() as u64) else { return };
        for (to, &from) in ring.from(position).iter().zip(record) {
            to.store(from, Ordering::Relaxed);
        }
        // Its address comes before it.
        let hash = hash_of(record[0]);
        let entry = Entry::new(hash, part, position);
        self.publish(hash, if is_referenced { entry.referenced() } else { entry });
    }
}
