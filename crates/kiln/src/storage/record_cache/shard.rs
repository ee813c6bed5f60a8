//! A shard of the read cache in its place: a directory, and the two rings that its entries lead to.

use super::super::record::{self, Address, DiskRecord, RecordView};
use super::{BUCKET_ENTRIES, CREDIT_PART, CREDIT_TIMES, Ends, GAP, IsNewest, Shard, hash_of, words_of};
use crate::sync::atomic::{AtomicU64, Ordering, fence};

/// So many records that were asked for go around while room for one is made; the next leaves whatever it is.
const CHANCES: usize = 16;

const POSITION_BITS: u32 = 47;
const PROTECTED: u64 = 1 << POSITION_BITS;
const REFERENCED: u64 = 1 << (POSITION_BITS + 1);
const AWAITED: u64 = 1 << (POSITION_BITS + 2);
const TAG_SHIFT: u32 = POSITION_BITS + 3;

/// As long as so many of the first bucket's entries are free the second one is not looked at.
const FREE_ENTRIES: usize = BUCKET_ENTRIES / 4;
/// Has other bits choose the second bucket (2^64 divided by the golden ratio).
const SECOND_BUCKET: u64 = 0x9E37_79B9_7F4A_7C15;

/// One of a shard's two rings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    Probation,
    Protected,
}

/// An entry of the directory; zero where there is none.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Entry(pub(super) u64);

impl Entry {
    pub(super) fn new(hash: u64, part: Part, position: u64) -> Entry {
        let part = if part == Part::Protected { PROTECTED } else { 0 };
        Entry(hash << TAG_SHIFT | part | position)
    }

    pub(super) fn has_tag_of(self, hash: u64) -> bool {
        self.0 != 0 && (self.0 ^ hash << TAG_SHIFT) >> TAG_SHIFT == 0
    }

    pub(super) fn part(self) -> Part {
        if self.0 & PROTECTED != 0 { Part::Protected } else { Part::Probation }
    }

    /// The record was asked for since it came, or since its turn to leave came last.
    pub(super) fn is_referenced(self) -> bool {
        self.0 & REFERENCED != 0
    }

    pub(super) fn referenced(self) -> Entry {
        Entry(self.0 | REFERENCED)
    }

    /// The record was read ahead of who is to ask for it, and that one has not come yet.
    pub(super) fn is_awaited(self) -> bool {
        self.0 & AWAITED != 0
    }

    pub(super) fn awaited(self) -> Entry {
        Entry(self.0 | AWAITED)
    }

    /// The same once somebody has asked for the record.
    pub(super) fn asked_for(self) -> Entry {
        if self.is_awaited() { Entry(self.0 & !AWAITED) } else { self.referenced() }
    }

    pub(super) fn position(self) -> u64 {
        self.0 & (PROTECTED - 1)
    }
}

/// One ring, in its place.
#[derive(Clone, Copy)]
pub(super) struct Ring<'a> {
    pub(super) words: &'a [AtomicU64],
    pub(super) begin: &'a AtomicU64,
    /// Nothing lies beyond.
    pub(super) end_max: u64,
}

impl<'a> Ring<'a> {
    pub(super) fn size(self) -> u64 {
        self.words.len() as u64
    }

    /// The memory from a position to where the ring's memory ends.
    pub(super) fn from(self, position: u64) -> &'a [AtomicU64] {
        &self.words[(position % self.size()) as usize..]
    }

    /// True if what is at `position` has not been given up. Says it of what was read before the call.
    pub(super) fn holds(self, position: u64) -> bool {
        fence(Ordering::Acquire);
        self.begin.load(Ordering::Relaxed) <= position
    }

    /// Gives up everything before `begin`. What is written there from now on is written after that.
    pub(super) fn give_up_to(self, begin: u64) {
        self.begin.store(begin, Ordering::Relaxed);
        fence(Ordering::Release);
    }

    /// Takes `words` behind `end`, in one piece; `None` if there is no room.
    pub(super) fn take(self, end: &mut u64, words: u64) -> Option<u64> {
        let rest = self.size() - *end % self.size();
        let start = if rest < words { *end + rest } else { *end };
        if start + words - self.begin.load(Ordering::Relaxed) > self.size() || start + words > self.end_max {
            return None;
        }
        if start != *end {
            self.from(*end)[0].store(GAP, Ordering::Relaxed);
        }
        *end = start + words;
        Some(start)
    }
}

/// A shard, in its place.
#[derive(Clone, Copy)]
pub(super) struct Place<'a> {
    pub(super) shard: &'a Shard,
    pub(super) divided: u64,
    pub(super) directory: &'a [AtomicU64],
    pub(super) probation: Ring<'a>,
    pub(super) protected: Ring<'a>,
}

impl<'a> Place<'a> {
    pub(super) fn ring(self, part: Part) -> Ring<'a> {
        match part {
            Part::Probation => self.probation,
            Part::Protected => self.protected,
        }
    }

    /// All of the protected ring's memory may be used.
    pub(super) fn is_open(self) -> bool {
        self.protected.end_max == u64::MAX
    }

    /// The protected ring may have records that were taken over, and not looked at again. The caller is the shard's writer.
    pub(super) fn has_taken_over(self, ends: &Ends) -> bool {
        self.protected.begin.load(Ordering::Relaxed) < ends.taken_over
    }

    /// The two buckets where a record with this hash may be entered. It is in the first one as a rule.
    fn buckets(self, hash: u64) -> [&'a [AtomicU64]; 2] {
        let count = (self.directory.len() / BUCKET_ENTRIES) as u64;
        [hash & 0xFFFF_FFFF, hash.wrapping_mul(SECOND_BUCKET) >> 32].map(|part| {
            let start = ((part * count) >> 32) as usize * BUCKET_ENTRIES;
            &self.directory[start..start + BUCKET_ENTRIES]
        })
    }

    /// The entries of both.
    pub(super) fn slots(self, hash: u64) -> impl Iterator<Item = &'a AtomicU64> {
        let [first, second] = self.buckets(hash);
        first.iter().chain(second)
    }

    /// The entries that may be those of a record with this hash, or of its ghost. The caller is the shard's writer.
    pub(super) fn known(self, hash: u64) -> impl Iterator<Item = Entry> {
        let entries = self.slots(hash).map(|slot| Entry(slot.load(Ordering::Relaxed)));
        entries.filter(move |entry| entry.has_tag_of(hash))
    }

    /// Whether an entry leads to the record at `address`. The caller is the shard's writer.
    pub(super) fn has_at(self, entry: Entry, address: Address) -> bool {
        let ring = self.ring(entry.part());
        ring.holds(entry.position()) && ring.from(entry.position())[0].load(Ordering::Relaxed) == address
    }

    /// Writes a record to its place, and enters it. The caller is the shard's writer, and has taken the place.
    pub(super) fn put(self, hash: u64, entry: Entry, address: Address, record: &DiskRecord<'_>) {
        let target = self.ring(entry.part()).from(entry.position());
        target[0].store(address, Ordering::Relaxed);
        let (version, previous) = (record.version, record.previous);
        let value = (record.value, record.expires_at);
        record::write(&target[1..], record.shape, version, previous, record.key, value);
        self.publish(hash, entry);
    }

    /// A position can be entered without loss of a record. The caller is the shard's writer.
    pub(super) fn has_free_entry(self, hash: u64) -> bool {
        self.slots(hash).any(|slot| self.is_free(slot))
    }

    /// A slot has no entry, or a ghost's. The caller is the shard's writer.
    fn is_free(self, slot: &AtomicU64) -> bool {
        let entry = Entry(slot.load(Ordering::Relaxed));
        !self.ring(entry.part()).holds(entry.position())
    }

    /// Enters a position in place of what is the least loss: a ghost, or else the oldest of the probation.
    pub(super) fn publish(self, hash: u64, new: Entry) {
        let loss = |slot: &&AtomicU64| {
            let entry = Entry(slot.load(Ordering::Relaxed));
            let is_other = !entry.has_tag_of(hash);
            (!self.is_free(slot), is_other, entry.part() == Part::Protected, entry.position())
        };
        let [first, second] = self.buckets(hash);
        let free = |bucket: &[AtomicU64]| bucket.iter().filter(|slot| self.is_free(slot)).count();
        let free_first = free(first);
        let is_first = free_first >= FREE_ENTRIES || free_first >= free(second);
        if let Some(slot) = (if is_first { first } else { second }).iter().min_by_key(loss) {
            slot.store(new.0, Ordering::Release);
        }
    }

    /// The entry that leads to the record of `address` at a position, and its place. The caller is the shard's writer.
    pub(super) fn entry_at(
        self,
        address: Address,
        part: Part,
        position: u64,
    ) -> Option<(&'a AtomicU64, Entry)> {
        let hash = hash_of(address);
        let entries = self.slots(hash).map(|slot| (slot, Entry(slot.load(Ordering::Relaxed))));
        let leads_there =
            |entry: Entry| entry.has_tag_of(hash) && (entry.part(), entry.position()) == (part, position);
        entries.into_iter().find(|&(_, entry)| leads_there(entry))
    }

    /// The record at a position of a ring, and its address; or how far it is to the next one. The caller is the shard's writer.
    pub(super) fn record_at(self, part: Part, position: u64) -> Result<(Address, RecordView<'a>), u64> {
        let words = self.ring(part).from(position);
        let address = words[0].load(Ordering::Relaxed);
        if address == GAP {
            return Err(words.len() as u64);
        }
        let Some(view) = RecordView::at(&words[1..]) else {
            // Only whole records are written here.
            panic!("the read cache holds no record at {position}");
        };
        Ok((address, view))
    }

    /// Gives up the oldest record of the protected ring, which ends there, if nobody has a use for it; false if somebody may, or there is none. The caller is the shard's writer.
    pub(super) fn give_up_superseded(self, end: u64, is_newest: IsNewest<'_>) -> bool {
        let (part, ring) = (Part::Protected, self.protected);
        let begin = ring.begin.load(Ordering::Relaxed);
        if begin >= end {
            return false;
        }
        let (words, is_used) = match self.record_at(part, begin) {
            Ok((address, view)) => {
                let is_used = self.entry_at(address, part, begin).is_some() && is_newest(address, &view);
                (words_of(view.shape()), is_used)
            }
            Err(gap) => (gap, false),
        };
        if !is_used {
            ring.give_up_to(begin + words);
        }
        !is_used
    }

    /// Makes room for `words` at a ring's end. The caller is the shard's writer.
    pub(super) fn make_room(self, part: Part, words: u64, ends: &mut Ends, is_newest: IsNewest<'_>) -> u64 {
        let mut chances = CHANCES;
        loop {
            if let Some(start) = self.ring(part).take(&mut ends.rings[part as usize], words) {
                return start;
            }
            self.evict_oldest(part, ends, &mut chances, is_newest);
        }
    }

    /// Gives up a ring's oldest record; or has it go on in the protected ring, if it is its key's newest, and was asked for, or others pay for it.
    fn evict_oldest(self, part: Part, ends: &mut Ends, chances: &mut usize, is_newest: IsNewest<'_>) {
        let ring = self.ring(part);
        let begin = ring.begin.load(Ordering::Relaxed);
        let (address, view) = match self.record_at(part, begin) {
            Ok(record) => record,
            Err(gap) => return ring.give_up_to(begin + gap),
        };
        let (old, words) = (ring.from(begin), words_of(view.shape()));
        let slot = self.entry_at(address, part, begin).filter(|_| is_newest(address, &view));
        if slot.is_none() && part == Part::Protected {
            ends.credit = (ends.credit + CREDIT_TIMES * words).min(ring.size() / CREDIT_PART);
        }
        let price = |entry: Entry| match part {
            _ if entry.is_referenced() => 0,
            // It costs those of the protected ring whose place it takes, as they leave it.
            Part::Probation => CREDIT_TIMES * words,
            Part::Protected => words,
        };
        let slot = slot.filter(|&(_, entry)| *chances > 0 && ends.credit >= price(entry));
        if let (Some((_, entry)), Part::Protected) = (slot, part) {
            ends.credit -= price(entry);
        }
        let target = match (slot, part) {
            (None, _) => None,
            (Some(_), Part::Probation) if self.is_open() => {
                Some(self.make_room(Part::Protected, words, ends, is_newest))
            }
            (Some(_), Part::Probation) => {
                self.protected.take(&mut ends.rings[Part::Protected as usize], words)
            }
            (Some(_), Part::Protected) => {
                *chances -= 1;
                // Its own place may be part of the new one: readers must know before.
                ring.give_up_to(begin + words);
                ring.take(&mut ends.rings[part as usize], words)
            }
        };
        if let (Some((slot, _)), Some(target)) = (slot, target) {
            // From the first word to the last: where the places overlap, the new one is before the old.
            for (to, from) in self.protected.from(target).iter().zip(&old[..words as usize]) {
                to.store(from.load(Ordering::Relaxed), Ordering::Relaxed);
            }
            slot.store(Entry::new(hash_of(address), Part::Protected, target).0, Ordering::Release);
        }
        ring.give_up_to(begin + words);
    }
}
