//! Warming up: what is on disk comes into the caches before it is asked for, where they have room that nobody has a use for.
//!
//! ```text
//!   begin              walk               head                     tail
//!    | oldest last      | <--- came in     | in memory: left alone   |      records, into the read cache
//!
//!    | came in ---> key                                              |      what has settled, into the pages' memory
//! ```
//!
//! An opening leaves in memory what was written last, and a cache that has become larger begins with little. Each record, and each leaf, of the rest would be read from disk by itself when somebody
//! asks for it: a hundred thousand rows of a hundred bytes take three seconds so, where all of them lie in 13 MB of log that the disk gives in twenty milliseconds. So
//! the keeper reads the log from its newest cold segment to its oldest one, and takes those records that are their keys' newest; and the tree in the order of its keys.
//!
//! **When.** Once so many were read from disk as have the memory divided anew ([`shares`](super::shares)), and it is: whoever opens a database for a few operations has none of this. At least half of what is on
//! disk alone must have room: of less, most reads would be of something else all the same. And each read of somebody's pays for [`BYTES_PER_READ`] of it, so that reading ahead ends where it
//! helps: once nearly everything is found in memory, or where nobody reads. What settles soon leaves the log, so that comes first, as does whatever else the keeper is behind with. It is done again once the cache has become larger, or more of the log has left its memory.
//!
//! **What comes in takes nobody's place**, and gives way to what somebody asks for: in the read cache as what was handed over does, among the pages as a leaf that nobody has looked at. It changes nothing that anybody could see, but how long reads
//! take: records are asked for by address, and leaves by block and checksum, and what was written there never changes. What cannot be read, or is damaged, is left out, for whoever asks for it to meet.
//!
//! Source: PostgreSQL's `pg_prewarm` and InnoDB's loading of its buffer pool are for the same; they read the pages that were in memory when the database was closed, of which they keep a list. Here there is none, which a
//! crash would make out of date.

use super::engine::Engine;
use super::shares::enough_reads;
use crate::storage::record::Address;
use crate::storage::record_cache::Filling;
use crate::storage::record_reader::{Batch, Cursor, PIECE_BYTES};
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// A record, or a leaf, that somebody has read from disk pays for so many bytes.
const BYTES_PER_READ: u64 = 64 << 10;
/// A round reads so much of either, so that the keeper gets back to its other duties.
const ROUND_BYTES: u64 = 4 << 20;
/// So many cache misses overlap.
const BATCH: usize = 32;
/// Of a segment of which at most such a part is live too much would be read in vain.
const FEW_PART: u64 = 16;
/// After so many records it is asked whether most found room.
const JUDGED_AFTER: u64 = 64;
/// Such a part more a cache must have than when it was filled last, or as much more of the log must be cold.
const GROWN_PART: u64 = 8;

/// See the module's documentation.
pub(crate) struct WarmUp {
    state: Mutex<State>,
    /// There is more to be read, and it is paid for.
    is_at_work: AtomicBool,
    /// Records that have come into the read cache so, and leaves into the pages' memory.
    pub(crate) records: AtomicU64,
    pub(crate) leaves: AtomicU64,
}

/// How far it has come with either cache.
#[derive(Default)]
struct State {
    records: Account,
    pages: Account,
    /// Through the log, and where the last one began.
    walk: Option<Walk>,
    walked_to: Address,
    /// Through the tree: the key from which it goes on.
    key: Option<Vec<u8>>,
}

/// What is paid for of a cache.
#[derive(Default)]
struct Account {
    /// So many bytes are, by as many reads as were counted when it was looked at last; less than none where more came at once.
    credit: i64,
    reads: u64,
    /// So much memory the cache had when it was filled.
    filled_bytes: u64,
}

impl Account {
    /// Takes note of how many reads there were, and how much memory the cache has. No more than `credit_max` is kept.
    fn note(&mut self, reads: u64, credit_max: i64, cache_bytes: u64) {
        let new = reads - std::mem::replace(&mut self.reads, reads);
        let earned = new.saturating_mul(BYTES_PER_READ).min(i64::MAX as u64) as i64;
        self.credit = self.credit.saturating_add(earned).min(credit_max);
        // What has left with the memory may come back.
        self.filled_bytes = self.filled_bytes.min(cache_bytes);
    }

    /// There is more memory than was filled.
    fn is_larger(&self, cache_bytes: u64) -> bool {
        cache_bytes > self.filled_bytes + self.filled_bytes / GROWN_PART
    }

    /// What a round may read: nothing as long as it is less than what is read at once.
    fn round_bytes(&self) -> u64 {
        let credit = u64::try_from(self.credit).unwrap_or(0);
        if credit < PIECE_BYTES { 0 } else { credit.min(ROUND_BYTES) }
    }

    fn spend(&mut self, bytes: u64) {
        self.credit -= bytes as i64;
    }
}

/// A walk through the log, segment by segment towards its beginning, or to where another one has begun, and in each from its beginning on.
struct Walk {
    begin: Address,
    cursor: Cursor,
    /// Where it leaves the segment.
    end: Address,
    /// Records that came in since that was judged last, and those for which there was no room.
    came_in: u64,
    had_no_room: u64,
    /// Any did one or the other.
    has_met_any: bool,
}

impl Walk {
    /// From the segment that the end lies in, or that ends there, to that of the beginning.
    fn new(begin: Address, end: Address, segment_bytes: u64) -> Option<Walk> {
        let last = end.checked_sub(1)?;
        let cursor = Cursor::at_seal(last - last % segment_bytes);
        Some(Walk { begin, cursor, end, came_in: 0, had_no_room: 0, has_met_any: false })
    }

    /// Goes to the segment before; false if that was the last, or the log begins behind it.
    fn go_on_before(&mut self, log_begin: Address, segment_bytes: u64) -> bool {
        let start = self.cursor.position.min(self.end - 1) / segment_bytes * segment_bytes;
        let goes_on = start > log_begin.max(self.begin);
        if goes_on {
            (self.cursor, self.end) = (Cursor::at_seal(start - segment_bytes), start);
        }
        goes_on
    }

    /// Whether the cache seems to have room for more.
    fn has_room(&mut self) -> bool {
        if self.came_in + self.had_no_room < JUDGED_AFTER {
            return true;
        }
        // Some of its shards are full before others.
        let has_room = self.had_no_room <= self.came_in;
        (self.came_in, self.had_no_room) = (0, 0);
        has_room
    }
}

impl WarmUp {
    pub(crate) fn new() -> WarmUp {
        WarmUp {
            state: Mutex::new(State::default()),
            is_at_work: AtomicBool::new(false),
            records: AtomicU64::new(0),
            leaves: AtomicU64::new(0),
        }
    }

    /// The keeper is to go on soon.
    pub(crate) fn is_at_work(&self) -> bool {
        self.is_at_work.load(Ordering::Relaxed)
    }
}

impl Engine {
    /// Does a round, if there is something to do. The caller is not pinned.
    pub(crate) fn warm_up(&self) {
        let Some(mut state) = self.warm_up.state.try_lock() else { return };
        let (state, tree) = (&mut *state, &self.settled.tree);
        let (cache_bytes, page_bytes) = (self.cold.cache.bytes(), tree.cache_bytes());
        // As much is enough to begin with.
        let credit_max = enough_reads(&self.cold, &self.log) * BYTES_PER_READ;
        let credit_max = credit_max.max(PIECE_BYTES) as i64;
        state.records.note(self.cold.reads.load(Ordering::Relaxed), credit_max, cache_bytes);
        state.pages.note(tree.cache_misses(), credit_max, page_bytes);
        // Who reads has the keeper come back.
        self.warm_up.is_at_work.store(false, Ordering::Relaxed);
        let Some(cold_end) = self.cold_end() else { return };
        let is_behind = self.hardening.is_behind_window()
            || self.is_settling()
            || self.compaction.is_in_haste()
            || self.warm.is_in_haste();
        if is_behind {
            return;
        }
        // The log before that is in the cache already, as far as it has room.
        let walked_to = if state.records.is_larger(cache_bytes) { 0 } else { state.walked_to };
        let has_more = walked_to == 0 || cold_end > walked_to + cache_bytes / GROWN_PART;
        let begins_records = state.walk.is_none() && has_more && state.records.credit == credit_max;
        let begins_pages =
            state.key.is_none() && state.pages.is_larger(page_bytes) && state.pages.credit == credit_max;
        if (begins_records || begins_pages) && !self.is_settling_due() {
            let (records_fit, pages_fit) = self.half_of_what_is_cold_has_room();
            match begins_records {
                true if records_fit => {
                    state.walk = Walk::new(walked_to, cold_end, self.log.segment_bytes());
                    state.walked_to = cold_end;
                }
                true => state.records.credit = 0,
                false => {}
            }
            match begins_pages {
                true if pages_fit && tree.is_partly_on_disk() => state.key = Some(Vec::new()),
                true => state.pages.credit = 0,
                false => {}
            }
        }
        if let Some(walk) = &mut state.walk
            && !self.warm_up_records(walk, &mut state.records)
        {
            // Where there was nothing there may be something another time.
            match walk.has_met_any {
                true => state.records.filled_bytes = cache_bytes,
                false => state.records.credit = 0,
            }
            state.walk = None;
        }
        if state.key.is_some() && !self.warm_up_pages(&mut state.key, &mut state.pages) {
            (state.key, state.pages.filled_bytes) = (None, page_bytes);
        }
        let goes_on = state.walk.is_some() && state.records.round_bytes() > 0
            || state.key.is_some() && state.pages.round_bytes() > 0;
        self.warm_up.is_at_work.store(goes_on, Ordering::Relaxed);
    }

    /// Goes on with the log for a round, or for as long as it is paid for. False once that is done, or the cache has no room for more.
    fn warm_up_records(&self, walk: &mut Walk, account: &mut Account) -> bool {
        let segment_bytes = self.log.segment_bytes();
        let mut reader = self.log_reader(&self.segments, walk.cursor);
        let mut left = account.round_bytes();
        while left > 0 {
            let before = walk.cursor.position;
            // Of one that was dropped none is counted.
            let is_dead = || self.liveness.lock().of_segment(before).is_mostly_dead(FEW_PART);
            if before >= walk.end || before.is_multiple_of(segment_bytes) && is_dead() {
                if !walk.go_on_before(self.log.begin(), segment_bytes) {
                    return false;
                }
                reader.move_to(walk.cursor);
                continue;
            }
            let read = match reader.next_batch(walk.end, BATCH) {
                Ok(batch) => {
                    self.take_cold(&batch, walk);
                    walk.cursor = reader.cursor();
                    walk.cursor.position - before
                }
                // The rest of the segment is left out.
                Err(_) => {
                    walk.cursor = walk.cursor.moved_to(walk.end);
                    PIECE_BYTES
                }
            };
            account.spend(read);
            left = left.saturating_sub(read);
        }
        walk.has_room()
    }

    /// Takes those of a batch's records that are cold, and their keys' newest, into the cache.
    fn take_cold(&self, batch: &Batch<'_>, walk: &mut Walk) {
        let (mut came_in, mut had_no_room) = (0, 0);
        let is_newest = self.is_newest();
        for (address, _, record) in self.live_of(batch).filter(|item| item.0 < self.log.head()) {
            match self.cold.cache.fill(address, &record, &is_newest) {
                Filling::CameIn => came_in += 1,
                Filling::NoRoom => had_no_room += 1,
                Filling::NoUse => {}
            }
        }
        self.warm_up.records.fetch_add(came_in, Ordering::Relaxed);
        walk.came_in += came_in;
        walk.had_no_room += had_no_room;
        walk.has_met_any |= came_in + had_no_room > 0;
    }

    /// The same with the tree.
    fn warm_up_pages(&self, key: &mut Option<Vec<u8>>, account: &mut Account) -> bool {
        let mut left = account.round_bytes();
        while let Some(from) = key.as_ref().filter(|_| left > 0) {
            let step = self.settled.tree.warm_up(from);
            self.warm_up.leaves.fetch_add(step.leaves, Ordering::Relaxed);
            account.spend(step.bytes);
            // Where nothing had to be read there was a look at a node.
            left = left.saturating_sub(step.bytes.max(BYTES_PER_READ));
            // Whatever a forged tree says, it comes to an end.
            *key = step.next.filter(|next| next > from);
        }
        key.is_some()
    }
}

#[cfg(test)]
#[path = "warm_up_tests.rs"]
mod tests;
