//! The read cache: records that were read from disk, in memory, by their log address.
//!
//! A record below the log's head never changes and its address is never given out again, so what is kept here is never
//! stale and nobody has to be told of a write. What a newer record supersedes, or a dropped segment held, is simply not
//! asked for any more, and makes room like everything that is not asked for.
//!
//! ```text
//!  shard:   directory            probation (an eighth)            protected
//!          [8 entries][8] ...    [address | record][..] ...       [address | record][..] ...
//!                                 ^ begin        ^ end             ^ begin          ^ end       rings, as the log's
//!
//!  entry:  | tag 15 | referenced 1 | protected 1 | position 47 |   (bit 63 first)
//! ```
//!
//! Positions are word numbers from a ring's beginning of time. An entry whose position lies before its ring's `begin` has
//! lost its record, but tells that there was one: whoever is read again while such a *ghost* is left goes to the protected ring,
//! everybody else to the probation, unless the protected ring has room. A record that was asked for (`referenced`) when its turn to leave comes moves from the
//! probation to the protected ring, or once around the protected one.
//!
//! So a scan passes through an eighth of the memory. In a simulation (a million records, cache of an eighth of them) 82 of
//! 100 reads of a Zipf distribution with theta 0.99 hit, and 79 when every second read was of a scan; a clock without
//! probation comes to 80 and 69, one that admits only what misses twice to 83 and 79. *Rejected*: that last one. Reads ahead
//! ([`cold`](crate::kernel::cold)) leave what they have read in the cache for who wants it, and nothing must be refused for that.
//!
//! How much of the memory is used, and how it is divided, can change ([`RecordCache::divide`]); then everything is forgotten.
//!
//! Invariants:
//! - Readers take no lock. One copies what it needs, and then looks whether `begin` is still before the record: whoever
//!   overwrites moves `begin` first. Writers of a shard exclude each other, and give up where they would have to wait.
//! - Only records whose checksum was compared come in.
//! - Whoever finds its way by the division looks afterwards whether `divided` has stayed; it is odd while the division changes.
//! - The memory is fixed.

use super::memory::Words;
use super::record::{self, Address, DiskRecord, RecordView};
use crate::planted::{Bug, planted};
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicU64, Ordering, fence};
use std::io;

/// Memory of a shard, as long as there are not too many.
const SHARD_BYTES: u64 = 4 << 20;
const SHARDS_MAX: u64 = 64;
/// Entries of a bucket: a cache line of them.
const BUCKET_ENTRIES: usize = 8;
/// The directory has an entry for so many words of records, at least and at most, and as long as nothing is known of them.
const WORDS_PER_ENTRY: std::ops::RangeInclusive<u64> = 4..=64;
const WORDS_PER_ENTRY_USUAL: u64 = 8;
/// This part of the records' memory is the probation.
const PROBATION_PART: usize = 8;
/// A record may take this part of its ring at most.
const RECORD_PART: u64 = 4;
/// So many records that were asked for go around while room for one is made; the next leaves whatever it is.
const CHANCES: usize = 16;
/// Stands in place of an address where a ring's end was too short for a record.
const GAP: u64 = 0;

const POSITION_BITS: u32 = 47;
/// No entry is zero, not even a ghost's from before anything has left.
const POSITION_FIRST: u64 = 8;
const PROTECTED: u64 = 1 << POSITION_BITS;
const REFERENCED: u64 = 1 << (POSITION_BITS + 1);
const TAG_SHIFT: u32 = POSITION_BITS + 2;

/// One of a shard's two rings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    Probation,
    Protected,
}

/// An entry of the directory; zero where there is none.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Entry(u64);

impl Entry {
    fn new(hash: u64, part: Part, position: u64) -> Entry {
        let part = if part == Part::Protected { PROTECTED } else { 0 };
        Entry(hash << TAG_SHIFT | part | position)
    }

    fn has_tag_of(self, hash: u64) -> bool {
        self.0 != 0 && (self.0 ^ hash << TAG_SHIFT) >> TAG_SHIFT == 0
    }

    fn part(self) -> Part {
        if self.0 & PROTECTED != 0 { Part::Protected } else { Part::Probation }
    }

    fn position(self) -> u64 {
        self.0 & (PROTECTED - 1)
    }
}

/// See the module's documentation.
pub(crate) struct RecordCache {
    words: Words,
    /// Words of each shard, used or not.
    shard_words: usize,
    shards: Box<[Shard]>,
    /// How often the division has changed, twice.
    divided: AtomicU64,
    /// Words of each shard's parts.
    division: [AtomicU64; 3],
    dividing: Mutex<()>,
}

/// Words of each shard's parts.
#[derive(Clone, Copy)]
struct Division {
    directory: usize,
    probation: usize,
    protected: usize,
}

impl Division {
    /// Divides a shard's words, for records of about so many.
    fn of(shard_words: usize, record_words: Option<u64>) -> Division {
        // An entry and a half for each record: its neighbours in the bucket may be more than their share, and some are ghosts.
        let per_entry = record_words.map_or(WORDS_PER_ENTRY_USUAL, |words| words * 2 / 3);
        let per_entry = per_entry.clamp(*WORDS_PER_ENTRY.start(), *WORDS_PER_ENTRY.end()) as usize;
        let directory = (shard_words / (per_entry + 1)).next_multiple_of(BUCKET_ENTRIES);
        let records = shard_words.saturating_sub(directory);
        let probation = (records / PROBATION_PART).max(BUCKET_ENTRIES);
        let protected = records.saturating_sub(probation).max(BUCKET_ENTRIES);
        Division { directory: directory.max(BUCKET_ENTRIES), probation, protected }
    }

    fn words(self) -> usize {
        self.directory + self.probation + self.protected
    }
}

#[repr(align(128))]
struct Shard {
    begins: [AtomicU64; 2],
    hits: AtomicU64,
    writer: Mutex<Ends>,
}

/// Where the rings end.
struct Ends([u64; 2]);

/// One ring, in its place.
#[derive(Clone, Copy)]
struct Ring<'a> {
    words: &'a [AtomicU64],
    begin: &'a AtomicU64,
}

impl<'a> Ring<'a> {
    fn size(self) -> u64 {
        self.words.len() as u64
    }

    /// The memory from a position to where the ring's memory ends.
    fn from(self, position: u64) -> &'a [AtomicU64] {
        &self.words[(position % self.size()) as usize..]
    }

    /// True if what is at `position` has not been given up. Says it of what was read before the call.
    fn holds(self, position: u64) -> bool {
        fence(Ordering::Acquire);
        self.begin.load(Ordering::Relaxed) <= position
    }

    /// Gives up everything before `begin`. What is written there from now on is written after that.
    fn give_up_to(self, begin: u64) {
        self.begin.store(begin, Ordering::Relaxed);
        fence(Ordering::Release);
    }

    /// Takes `words` behind `end`, in one piece; `None` if there is no room.
    fn take(self, end: &mut u64, words: u64) -> Option<u64> {
        let rest = self.size() - *end % self.size();
        let start = if rest < words { *end + rest } else { *end };
        if start + words - self.begin.load(Ordering::Relaxed) > self.size() {
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
struct Place<'a> {
    shard: &'a Shard,
    divided: u64,
    directory: &'a [AtomicU64],
    probation: Ring<'a>,
    protected: Ring<'a>,
}

impl RecordCache {
    /// A cache that takes `bytes` of memory, as it is touched.
    ///
    /// # Errors
    /// The operating system's, when there is no memory.
    pub(crate) fn new(bytes: u64) -> io::Result<RecordCache> {
        let shard_count = (bytes / SHARD_BYTES).clamp(1, SHARDS_MAX);
        let division = Division::of((bytes / 8 / shard_count) as usize, None);
        let shard = |_| Shard {
            begins: [POSITION_FIRST; 2].map(AtomicU64::new),
            hits: AtomicU64::new(0),
            writer: Mutex::new(Ends([POSITION_FIRST; 2])),
        };
        let cache = RecordCache {
            words: Words::new(shard_count as usize * division.words())?,
            shard_words: division.words(),
            shards: (0..shard_count).map(shard).collect(),
            divided: AtomicU64::new(0),
            division: [0; 3].map(AtomicU64::new),
            dividing: Mutex::new(()),
        };
        cache.set_division(division);
        Ok(cache)
    }

    /// Forgets everything, and goes on with so much of the memory, for records of about `record_bytes`.
    pub(crate) fn divide(&self, bytes: u64, record_bytes: u64) {
        let _dividing = self.dividing.lock();
        let shard_words = ((bytes / 8) as usize / self.shards.len()).min(self.shard_words);
        let mut division = Division::of(shard_words, Some(1 + record_bytes / 8));
        if division.words() > self.shard_words {
            // Of a few words, none can be saved.
            division = self.division();
        }
        self.divided.fetch_add(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        for (shard, start) in self.shards.iter().zip((0..).step_by(self.shard_words)) {
            // Whoever gets the lock later sees that the division changes.
            let ends = shard.writer.lock();
            for (begin, end) in shard.begins.iter().zip(ends.0) {
                begin.store(end, Ordering::Relaxed);
            }
            fence(Ordering::Release);
            self.words.clear(start, self.shard_words);
        }
        self.set_division(division);
        self.divided.fetch_add(1, Ordering::Release);
    }

    fn set_division(&self, division: Division) {
        let words = [division.directory, division.probation, division.protected];
        for (stored, words) in self.division.iter().zip(words) {
            stored.store(words as u64, Ordering::Relaxed);
        }
    }

    fn division(&self) -> Division {
        let [directory, probation, protected] =
            [0, 1, 2].map(|part: usize| self.division[part].load(Ordering::Relaxed) as usize);
        Division { directory, probation, protected }
    }

    /// The memory that it may take.
    pub(crate) fn bytes(&self) -> u64 {
        (self.division().words() * self.shards.len()) as u64 * 8
    }

    /// How often a record was found.
    pub(crate) fn hits(&self) -> u64 {
        self.shards.iter().map(|shard| shard.hits.load(Ordering::Relaxed)).sum()
    }

    /// Shows the record at `address` to `look`, if it is here; `None` if it is not, or was given up meanwhile: then `look` may
    /// have been shown anything.
    pub(crate) fn look<T>(&self, address: Address, look: impl FnOnce(&RecordView<'_>) -> T) -> Option<T> {
        let hash = hash_of(address);
        let place = self.place_of(hash)?;
        for slot in place.bucket(hash) {
            let entry = Entry(slot.load(Ordering::Acquire));
            let ring = place.ring(entry.part());
            if !entry.has_tag_of(hash) || !ring.holds(entry.position()) {
                continue;
            }
            let words = ring.from(entry.position());
            if words[0].load(Ordering::Relaxed) != address {
                continue;
            }
            let seen = look(&RecordView::at(&words[1..])?);
            let holds = ring.holds(entry.position()) && self.is_still(place.divided);
            if !holds && !planted(Bug::CachedNotValidated) {
                return None;
            }
            if entry.0 & REFERENCED == 0 {
                // If the entry has changed, it is about another record, or has been marked.
                let marked = entry.0 | REFERENCED;
                let _ = slot.compare_exchange(entry.0, marked, Ordering::Relaxed, Ordering::Relaxed);
            }
            place.shard.hits.fetch_add(1, Ordering::Relaxed);
            return Some(seen);
        }
        None
    }

    /// True if the record at `address` seems to be here. Does not count as asking for it.
    pub(crate) fn has(&self, address: Address) -> bool {
        let hash = hash_of(address);
        let Some(place) = self.place_of(hash) else { return false };
        place.bucket(hash).iter().any(|slot| {
            let entry = Entry(slot.load(Ordering::Acquire));
            entry.has_tag_of(hash) && place.ring(entry.part()).holds(entry.position())
        })
    }

    /// True if a record of this length can be kept when it is first met.
    pub(crate) fn can_keep(&self, record_bytes: u64) -> bool {
        record_bytes / 8 < self.division().probation as u64 / RECORD_PART
    }

    /// Keeps a checked record that was read at `address`, unless it is too long, or somebody else is at work on the shard.
    pub(crate) fn admit(&self, address: Address, record: &DiskRecord<'_>) {
        let hash = hash_of(address);
        let words = 1 + record.shape.words() as u64;
        let Some(mut ends) = self.shards[self.shard_of(hash)].writer.try_lock() else { return };
        // Under the lock: the division stays as it is while this one is at work, since it must wait for it.
        let Some(place) = self.place_of(hash) else { return };
        if words > place.protected.size() / RECORD_PART {
            return;
        }
        let known = place.bucket(hash).iter().map(|slot| Entry(slot.load(Ordering::Relaxed)));
        let mut known = known.filter(|entry| entry.has_tag_of(hash)).peekable();
        let is_known = known.peek().is_some();
        if known.any(|entry| place.has_at(entry, address)) {
            return;
        }
        let free = place.protected.take(&mut ends.0[Part::Protected as usize], words);
        let (part, position) = if let Some(position) = free {
            (Part::Protected, position)
        } else if is_known {
            (Part::Protected, place.make_room(Part::Protected, words, &mut ends))
        } else if words <= place.probation.size() / RECORD_PART {
            (Part::Probation, place.make_room(Part::Probation, words, &mut ends))
        } else {
            // Too long for the probation: what is left of it is that it was met.
            place.publish(hash, Part::Probation, place.probation.begin.load(Ordering::Relaxed) - 1);
            return;
        };
        let target = place.ring(part).from(position);
        target[0].store(address, Ordering::Relaxed);
        let (version, previous) = (record.version, record.previous);
        record::write(
            &target[1..],
            record.shape,
            version,
            previous,
            record.key,
            (record.value, record.expires_at),
        );
        place.publish(hash, part, position);
    }

    fn shard_of(&self, hash: u64) -> usize {
        (((hash >> 32) * self.shards.len() as u64) >> 32) as usize
    }

    /// Where records with this hash are; `None` while the division changes.
    fn place_of(&self, hash: u64) -> Option<Place<'_>> {
        let divided = self.divided.load(Ordering::Acquire);
        let division = self.division();
        if !divided.is_multiple_of(2) || !self.is_still(divided) {
            return None;
        }
        let number = self.shard_of(hash);
        let shard = &self.shards[number];
        let start = number * self.shard_words;
        let words = &self.words[start..start + division.words()];
        let (directory, records) = words.split_at(division.directory);
        let (probation, protected) = records.split_at(division.probation);
        let [probation_begin, protected_begin] = &shard.begins;
        Some(Place {
            shard,
            divided,
            directory,
            probation: Ring { words: probation, begin: probation_begin },
            protected: Ring { words: protected, begin: protected_begin },
        })
    }

    /// True if the division has not changed. Says it of what was read before the call.
    fn is_still(&self, divided: u64) -> bool {
        fence(Ordering::Acquire);
        self.divided.load(Ordering::Relaxed) == divided
    }
}

impl<'a> Place<'a> {
    fn ring(self, part: Part) -> Ring<'a> {
        match part {
            Part::Probation => self.probation,
            Part::Protected => self.protected,
        }
    }

    fn bucket(self, hash: u64) -> &'a [AtomicU64] {
        let buckets = (self.directory.len() / BUCKET_ENTRIES) as u64;
        let first = (((hash & 0xFFFF_FFFF) * buckets) >> 32) as usize * BUCKET_ENTRIES;
        &self.directory[first..first + BUCKET_ENTRIES]
    }

    /// Whether an entry leads to the record at `address`. The caller is the shard's writer.
    fn has_at(self, entry: Entry, address: Address) -> bool {
        let ring = self.ring(entry.part());
        ring.holds(entry.position()) && ring.from(entry.position())[0].load(Ordering::Relaxed) == address
    }

    /// Enters a position in place of what is the least loss: a ghost, or else the oldest of the probation.
    fn publish(self, hash: u64, part: Part, position: u64) {
        let loss = |slot: &&AtomicU64| {
            let entry = Entry(slot.load(Ordering::Relaxed));
            let is_live = self.ring(entry.part()).holds(entry.position());
            let is_other = !entry.has_tag_of(hash);
            (is_live, is_other, entry.part() == Part::Protected, entry.position())
        };
        if let Some(slot) = self.bucket(hash).iter().min_by_key(loss) {
            slot.store(Entry::new(hash, part, position).0, Ordering::Release);
        }
    }

    /// Makes room for `words` at a ring's end. The caller is the shard's writer.
    fn make_room(self, part: Part, words: u64, ends: &mut Ends) -> u64 {
        let mut chances = CHANCES;
        loop {
            if let Some(start) = self.ring(part).take(&mut ends.0[part as usize], words) {
                return start;
            }
            self.evict_oldest(part, ends, &mut chances);
        }
    }

    /// Gives up a ring's oldest record; if it was asked for it goes on in the protected ring.
    fn evict_oldest(self, part: Part, ends: &mut Ends, chances: &mut usize) {
        let ring = self.ring(part);
        let begin = ring.begin.load(Ordering::Relaxed);
        let old = ring.from(begin);
        let address = old[0].load(Ordering::Relaxed);
        if address == GAP {
            ring.give_up_to(begin + old.len() as u64);
            return;
        }
        let Some(view) = RecordView::at(&old[1..]) else {
            // Only `admit` writes here, and only whole records.
            panic!("the read cache holds no record at {begin}");
        };
        let words = 1 + view.shape().words() as u64;
        let hash = hash_of(address);
        let slot = self.bucket(hash).iter().find(|slot| {
            let entry = Entry(slot.load(Ordering::Relaxed));
            entry.has_tag_of(hash) && (entry.part(), entry.position()) == (part, begin)
        });
        let slot = slot.filter(|slot| slot.load(Ordering::Relaxed) & REFERENCED != 0 && *chances > 0);
        let target = match (slot, part) {
            (None, _) => None,
            (Some(_), Part::Probation) => Some(self.make_room(Part::Protected, words, ends)),
            (Some(_), Part::Protected) => {
                *chances -= 1;
                // Its own place may be part of the new one: readers must know before.
                ring.give_up_to(begin + words);
                ring.take(&mut ends.0[part as usize], words)
            }
        };
        if let (Some(slot), Some(target)) = (slot, target) {
            // From the first word to the last: where the places overlap, the new one is before the old.
            for (to, from) in self.protected.from(target).iter().zip(&old[..words as usize]) {
                to.store(from.load(Ordering::Relaxed), Ordering::Relaxed);
            }
            slot.store(Entry::new(hash, Part::Protected, target).0, Ordering::Release);
        }
        ring.give_up_to(begin + words);
    }
}

/// Spreads addresses evenly (the finalizer of splitmix64).
fn hash_of(address: Address) -> u64 {
    let mut hash = address;
    hash = (hash ^ (hash >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    hash = (hash ^ (hash >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    hash ^ (hash >> 31)
}
