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
//!  entry:  | tag 14 | awaited 1 | referenced 1 | protected 1 | position 47 |   (bit 63 first)
//! ```
//!
//! A record is entered in one of two buckets: in the second one where the first is nearly full and that one is not. With one, each tenth record that came had its entry take the place of another's.
//!
//! Positions are word numbers from a ring's beginning of time. An entry whose position lies before its ring's `begin` has
//! lost its record, but tells that there was one: whoever is read again while such a *ghost* is left goes to the protected ring,
//! everybody else to the probation, unless the protected ring has room. A record that was asked for (`referenced`) when its turn to leave comes moves from the
//! probation to the protected ring, or once around the protected one.
//!
//! What was [read ahead](RecordCache::admit_ahead) of who is to ask for it is *awaited*, and only who asks for it after that one counts: else all that batches read, and all that scans pass, would be protected.
//!
//! **What is superseded goes first**: whoever makes room asks of each record whether it is still its key's newest. Those of the protected ring that are not pay for others, which go on though nobody has asked for
//! them: [`CREDIT_TIMES`] words for each of theirs. So where keys are updated all over the place, and a fifth of the memory or more is superseded, what is live stays, as it would if it were written anew; and where less is, what was asked for stays, as where
//! nothing is written.
//!
//! What is [taken over](RecordCache::take_over) from the log's memory, or [comes unasked](RecordCache::fill), was perhaps never asked for: as long as the protected ring has some of it that was not looked
//! at again, whoever is read goes there, too, and it is that which leaves.
//!
//! So a scan passes through an eighth of the memory. In a simulation (a million records, cache of an eighth of them) 82 of
//! 100 reads of a Zipf distribution with theta 0.99 hit, and 79 when every second read was of a scan; a clock without
//! probation comes to 80 and 69, one that admits only what misses twice to 83 and 79. *Rejected*: that last one. Reads ahead
//! ([`read_ahead`](crate::kernel::read_ahead)) leave what they have read in the cache for who wants it, and nothing must be refused for that.
//!
//! How much of the memory is used, and how it is divided, can change ([`division`]): what fits then stays. The protected ring's end need not be used at first, for
//! as long as somebody else has that memory.
//!
//! Invariants:
//! - Readers take no lock. One copies what it needs, and then looks whether `begin` is still before the record: whoever
//!   overwrites moves `begin` first. Writers of a shard exclude each other, and give up where they would have to wait.
//! - Only records come in whose checksum was compared, or that are in the log's memory and durable, and so do not change any more.
//! - Whoever finds its way by a shard's division looks afterwards whether `divided` has stayed; it is odd while the division changes.
//! - The memory is fixed.

mod division;
mod shard;

use std::io;

use super::counts::Counts;
use super::memory::Words;
use super::record::{Address, DiskRecord, RecordView, Shape};
use crate::planted::{Bug, planted};
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicU64, Ordering, fence};
use division::{Dividing, Division};
use shard::{Entry, Part, Place, Ring};

/// Memory of a shard, as long as there are not too many.
const SHARD_BYTES: u64 = 4 << 20;
const SHARDS_MAX: u64 = 64;
/// Entries of a bucket: a cache line of them.
const BUCKET_ENTRIES: usize = 8;
/// This part of the records' memory is the probation.
const PROBATION_PART: usize = 8;
/// So many words of what is live may go on, unasked for, for each of what is superseded; up to such a part of the ring.
const CREDIT_TIMES: u64 = 4;
const CREDIT_PART: u64 = 8;
/// A record may take this part of its ring at most.
const RECORD_PART: u64 = 4;
/// Stands in place of an address where a ring's end was too short for a record.
const GAP: u64 = 0;

/// No entry is zero, not even a ghost's from before anything has left.
const POSITION_FIRST: u64 = 8;

/// See the module's documentation. Alone on its cache lines: what is beside it is written whenever a record is read from disk.
#[repr(align(128))]
pub(crate) struct RecordCache {
    words: Words,
    /// Words of each shard, used or not.
    shard_words: usize,
    shards: Box<[Shard]>,
    hits: Counts<1>,
    dividing: Mutex<Dividing>,
    /// Memory that may be in use.
    bytes: AtomicU64,
    /// Of each shard, at least.
    probation_words: AtomicU64,
}

#[repr(align(128))]
#[cfg_attr(test, derive(Debug))]
struct Shard {
    /// How often its division has changed, twice.
    divided: AtomicU64,
    /// Words of its parts.
    division: [AtomicU64; 3],
    /// Where the protected ring began when it was divided last, and up to where it may be used: anywhere, if that is all of it.
    protected_start: AtomicU64,
    opened_end: AtomicU64,
    begins: [AtomicU64; 2],
    writer: Mutex<Ends>,
}

/// What became of a record that nobody has asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Filling {
    CameIn,
    /// It would have to take another one's place, or is too long.
    NoRoom,
    /// It is here, or the shard is being divided.
    NoUse,
}

/// Tells of a record, and its address, whether it may be its key's newest.
pub(crate) type IsNewest<'a> = &'a dyn Fn(Address, &RecordView<'_>) -> bool;

/// Where the rings end.
#[cfg_attr(test, derive(Debug))]
struct Ends {
    rings: [u64; 2],
    /// What was taken over from the log, or came unasked from the disk, lies before this position of the protected ring.
    taken_over: u64,
    /// Words of the protected ring that may go on for those that have left it.
    credit: u64,
}

impl RecordCache {
    /// A cache that takes `bytes` of memory, as it is touched, and is usually [divided](Self::divide) for so many: then a shard is not to be too small for
    /// long records.
    ///
    /// # Errors
    /// The operating system's, when there is no memory.
    pub(crate) fn new(bytes: u64, usual_bytes: u64) -> io::Result<RecordCache> {
        let shard_count = (usual_bytes / SHARD_BYTES).clamp(1, SHARDS_MAX);
        let division = Division::of((bytes / 8 / shard_count) as usize, None);
        let shard = |_| Shard {
            divided: AtomicU64::new(0),
            division: [division.directory, division.probation, division.protected]
                .map(|words| AtomicU64::new(words as u64)),
            protected_start: AtomicU64::new(POSITION_FIRST),
            opened_end: AtomicU64::new(u64::MAX),
            begins: [POSITION_FIRST; 2].map(AtomicU64::new),
            writer: Mutex::new(Ends { rings: [POSITION_FIRST; 2], taken_over: 0, credit: 0 }),
        };
        let words = shard_count as usize * division.words();
        Ok(RecordCache {
            words: Words::new(words)?,
            shard_words: division.words(),
            shards: (0..shard_count).map(shard).collect(),
            hits: Counts::new(),
            dividing: Mutex::new(Dividing::done(division, shard_count as usize)),
            bytes: AtomicU64::new(words as u64 * 8),
            probation_words: AtomicU64::new(division.probation as u64),
        })
    }

    /// The memory that it may take.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// How often a record was found.
    pub(crate) fn hits(&self) -> u64 {
        self.hits.sums()[0]
    }

    /// Shows the record at `address` to `look`, if it is here; `None` if it is not, or was given up meanwhile: then `look` may
    /// have been shown anything.
    pub(crate) fn look<T>(&self, address: Address, look: impl FnOnce(&RecordView<'_>) -> T) -> Option<T> {
        self.look_with(address, true, look)
    }

    /// The same for who does not count as asking for it.
    pub(crate) fn peek<T>(&self, address: Address, look: impl FnOnce(&RecordView<'_>) -> T) -> Option<T> {
        self.look_with(address, false, look)
    }

    #[inline]
    fn look_with<T>(
        &self,
        address: Address,
        asks: bool,
        look: impl FnOnce(&RecordView<'_>) -> T,
    ) -> Option<T> {
        let hash = hash_of(address);
        let place = self.place_of(hash)?;
        for slot in place.slots(hash) {
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
            let holds = ring.holds(entry.position()) && place.shard.is_still(place.divided);
            if !holds && !planted(Bug::CachedNotValidated) {
                return None;
            }
            let marked = entry.asked_for().0;
            if asks && marked != entry.0 {
                // If the entry has changed, it is about another record, or has been marked.
                let _ = slot.compare_exchange(entry.0, marked, Ordering::Relaxed, Ordering::Relaxed);
            }
            self.hits.note(0);
            return Some(seen);
        }
        None
    }

    /// True if the record at `address` seems to be here. Does not count as asking for it.
    pub(crate) fn has(&self, address: Address) -> bool {
        let hash = hash_of(address);
        let Some(place) = self.place_of(hash) else { return false };
        place.slots(hash).any(|slot| {
            let entry = Entry(slot.load(Ordering::Acquire));
            entry.has_tag_of(hash) && place.ring(entry.part()).holds(entry.position())
        })
    }

    /// True if a record of this length can be kept when it is first met.
    pub(crate) fn can_keep(&self, record_bytes: u64) -> bool {
        record_bytes / 8 < self.probation_words.load(Ordering::Relaxed) / RECORD_PART
    }

    /// Keeps a checked record that was read at `address`, or that leaves the log's memory, and is durable; unless it is too long, or somebody else is at work on the shard.
    pub(crate) fn admit(&self, address: Address, record: &DiskRecord<'_>, is_newest: IsNewest<'_>) {
        self.admit_unless_busy((address, false), record, is_newest);
    }

    /// The same for a record that was read for somebody who is going to ask for it.
    pub(crate) fn admit_ahead(&self, address: Address, record: &DiskRecord<'_>, is_newest: IsNewest<'_>) {
        self.admit_unless_busy((address, true), record, is_newest);
    }

    fn admit_unless_busy(
        &self,
        (address, is_awaited): (Address, bool),
        record: &DiskRecord<'_>,
        is_newest: IsNewest<'_>,
    ) {
        if let Some(mut ends) = self.shards[self.shard_of(hash_of(address))].writer.try_lock() {
            self.admit_with(&mut ends, (address, is_awaited), record, is_newest);
        }
    }

    /// The same for a record that is still in the log's memory, and durable; waits for who is at work on the shard.
    pub(crate) fn take_over(&self, address: Address, record: &DiskRecord<'_>, is_newest: IsNewest<'_>) {
        let mut ends = self.shards[self.shard_of(hash_of(address))].writer.lock();
        let end = ends.rings[Part::Protected as usize];
        self.admit_with(&mut ends, (address, false), record, is_newest);
        if ends.rings[Part::Protected as usize] > end {
            ends.taken_over = ends.rings[Part::Protected as usize];
        }
    }

    /// The same for a record that was read and checked though nobody has asked for it: only where there is room that nobody has a use for, or what is oldest is superseded.
    pub(crate) fn fill(&self, address: Address, record: &DiskRecord<'_>, is_newest: IsNewest<'_>) -> Filling {
        let hash = hash_of(address);
        let mut ends = self.shards[self.shard_of(hash)].writer.lock();
        let Some(place) = self.place_of(hash) else { return Filling::NoUse };
        let words = words_of(record.shape);
        if place.known(hash).any(|entry| place.has_at(entry, address)) {
            return Filling::NoUse;
        }
        if words > place.protected.size() / RECORD_PART || !place.has_free_entry(hash) {
            return Filling::NoRoom;
        }
        let end = &mut ends.rings[Part::Protected as usize];
        let position = loop {
            match place.protected.take(end, words) {
                Some(position) => break position,
                None if place.is_open() && place.give_up_superseded(*end, is_newest) => {}
                None => return Filling::NoRoom,
            }
        };
        ends.taken_over = *end;
        place.put(hash, Entry::new(hash, Part::Protected, position), address, record);
        Filling::CameIn
    }

    fn admit_with(
        &self,
        ends: &mut Ends,
        (address, is_awaited): (Address, bool),
        record: &DiskRecord<'_>,
        is_newest: IsNewest<'_>,
    ) {
        let hash = hash_of(address);
        let words = words_of(record.shape);
        // Under the lock: the division stays as it is while this one is at work, since it must wait for it.
        let Some(place) = self.place_of(hash) else { return };
        if words > place.protected.size() / RECORD_PART {
            return;
        }
        let mut known = place.known(hash).peekable();
        let is_known = known.peek().is_some();
        if known.any(|entry| place.has_at(entry, address)) {
            return;
        }
        let is_short = words <= place.probation.size() / RECORD_PART;
        let free = |part| {
            let position = place.ring(part).take(&mut ends.rings[part as usize], words)?;
            Some((part, position))
        };
        let mut parts = [Some(Part::Protected), is_short.then_some(Part::Probation)].into_iter().flatten();
        let free = parts.find_map(free);
        // Nobody may ever have asked for what was taken over: what comes now goes before it, known or not.
        let is_preferred = is_known || place.has_taken_over(ends);
        let (part, position) = if let Some(free) = free {
            free
        } else if is_preferred && place.is_open() {
            (Part::Protected, place.make_room(Part::Protected, words, ends, is_newest))
        } else if is_short {
            (Part::Probation, place.make_room(Part::Probation, words, ends, is_newest))
        } else {
            // Too long for the probation: what is left of it is that it was met.
            let ghost = place.probation.begin.load(Ordering::Relaxed) - 1;
            place.publish(hash, Entry::new(hash, Part::Probation, ghost));
            return;
        };
        let entry = Entry::new(hash, part, position);
        place.put(hash, if is_awaited { entry.awaited() } else { entry }, address, record);
    }

    fn shard_of(&self, hash: u64) -> usize {
        (((hash >> 32) * self.shards.len() as u64) >> 32) as usize
    }

    /// Where records with this hash are; `None` while their shard's division changes.
    fn place_of(&self, hash: u64) -> Option<Place<'_>> {
        let number = self.shard_of(hash);
        let divided = self.shards[number].divided.load(Ordering::Acquire);
        let place = divided.is_multiple_of(2).then(|| self.shards[number].division())?;
        self.shards[number].is_still(divided).then(|| self.place(number, divided, place))
    }

    /// A shard with its parts.
    fn place(&self, number: usize, divided: u64, division: Division) -> Place<'_> {
        let shard = &self.shards[number];
        let start = number * self.shard_words;
        let words = &self.words[start..start + division.words()];
        let (directory, records) = words.split_at(division.directory);
        let (probation, protected) = records.split_at(division.probation);
        let [probation_begin, protected_begin] = &shard.begins;
        let opened_end = shard.opened_end.load(Ordering::Relaxed);
        Place {
            shard,
            divided,
            directory,
            probation: Ring { words: probation, begin: probation_begin, end_max: u64::MAX },
            protected: Ring { words: protected, begin: protected_begin, end_max: opened_end },
        }
    }
}

impl Shard {
    fn division(&self) -> Division {
        let [directory, probation, protected] =
            [0, 1, 2].map(|part: usize| self.division[part].load(Ordering::Relaxed) as usize);
        Division { directory, probation, protected }
    }

    fn set_division(&self, division: Division) {
        let words = [division.directory, division.probation, division.protected];
        for (stored, words) in self.division.iter().zip(words) {
            stored.store(words as u64, Ordering::Relaxed);
        }
    }

    /// Lets so much of the protected ring be used.
    fn open(&self, division: Division, words: usize) {
        let start = self.protected_start.load(Ordering::Relaxed);
        let end = if words < division.protected { start + words as u64 } else { u64::MAX };
        self.opened_end.store(end, Ordering::Relaxed);
    }

    /// True if the division has not changed. Says it of what was read before the call.
    fn is_still(&self, divided: u64) -> bool {
        fence(Ordering::Acquire);
        self.divided.load(Ordering::Relaxed) == divided
    }
}

/// Words that a record takes, with its address.
fn words_of(shape: Shape) -> u64 {
    1 + shape.words() as u64
}

/// Spreads addresses evenly (the finalizer of splitmix64).
fn hash_of(address: Address) -> u64 {
    let mut hash = address;
    hash = (hash ^ (hash >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    hash = (hash ^ (hash >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    hash ^ (hash >> 31)
}

#[cfg(test)]
mod tests {
    use super::super::record::{Kind, NEVER};
    use super::*;

    /// Each of them was counted in the line by which all who look into its shard find their way.
    #[test]
    fn who_finds_a_record_that_was_found_before_writes_nothing_that_others_read() {
        const ADDRESS: Address = 64;
        let cache = RecordCache::new(16 << 10, 16 << 10).unwrap();
        let shape = Shape { kind: Kind::Put, object: 7, key_bytes: 3, value_bytes: 5 };
        let (key, value, expires_at) = (b"key", b"value", NEVER);
        let record = DiskRecord { shape, version: 1, previous: 0, key, value, expires_at };
        cache.admit(ADDRESS, &record, &|_, _| true);
        let is_found = || cache.look(ADDRESS, |_| ()).is_some();
        let state = || {
            let words = cache.words.iter().map(|word| word.load(Ordering::Relaxed)).collect::<Vec<_>>();
            (format!("{:?}", cache.shards), words)
        };
        // The first one marks its entry.
        assert!(is_found());
        let before = state();
        assert!(is_found() && before == state());
        assert_eq!(cache.hits(), 2);
    }
}
