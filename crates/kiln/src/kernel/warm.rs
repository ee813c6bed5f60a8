//! Warm records: those that would leave memory though all that is live has room there, or somebody has just read them.
//!
//! ```text
//!   head          cursor           goal              hardened        tail
//!    | written anew  | to be looked at | has time yet   |              |
//! ```
//!
//! The log's memory holds what was written last. Where keys are updated all over the place, a few of them have not been for as long as
//! the tail takes to go around the ring: of a million keys in a ring that holds the last 2.5 million updates, one in twelve.
//! Each would leave memory, and the update that meets it then reads it from disk, to see whose it is: two hundred times the price of the
//! others. So what is live is written anew before it leaves, as compaction does it (a commit of the same key and value, if the
//! index still refers to that very address), but out of memory, ahead of eviction, and with no regard to what is on disk. Commits note in a record
//! that is in memory that it has a successor, which costs them nothing: so most of what is dead is passed over without a look at the index. A segment
//! of which the hardener knows that nothing in it is live is not looked at.
//!
//! **When.** All of them as long as the live bytes are at most three quarters of what the ring keeps. At that bound, and if only keys are updated that
//! would have stayed anyway, a byte of the application's makes four of the log. A database that is never to be compacted is left alone, and so is one in
//! which the caches have the larger share of memory: these are for what leaves then.
//!
//! **A second chance.** Where there is more, those are written anew that somebody has read since they have hardened, which he notes in the record (the clock algorithm, with the ring for its circle); what replaces a record that was read inherits that, since most
//! rows that are updated are read for it, and one that is all the time would have no read after its last update to show for it. What was
//! written once, side by side, and is read all the time would leave together, else, and come back one by one, each by a read from disk. Where rows are read all over the place that is much of what is live, and
//! little would be won: so what is written anew for it is a [part](CREDIT_PART_MAX) of what is looked at, at the most; less where [`space_amplification`](crate::Options::space_amplification) is small, as what is superseded by that must not make the log
//! longer than it may be. Ranges of snapshots do not count as reading, so that a walk over all there is does not keep it in memory.
//!
//! **Eviction follows.** What has not been looked at is evicted only if somebody wants space and there is no other. A part of the ring,
//! and of the bytes that may be un-hardened, is not given to commits meanwhile: whoever finds no space does a round and evicts, and
//! a round that had no space itself could not make any. Evicting needs no hardening, and does not wait for one: what was written anew is still durable where it
//! was.
//!
//! (Rejected: entries for several keys in one slot of the index, as FASTER chains them, so that a blind update need not know whose record
//! it replaces. Counts of keys, liveness and recovery all rely on knowing it.)

use super::engine::Engine;
use crate::device;
use crate::error::Result;
use crate::storage::epoch;
use crate::storage::log::{Demand, Item, Purpose};
use crate::storage::record::{Address, DiskRecord, RecordView};
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// A smaller ring is not worth it.
const SEGMENTS_MIN: u64 = 4;
/// Of what the ring keeps, so many eighths may be live to begin, and to go on.
const LIVE_EIGHTHS_TO_BEGIN: u64 = 5;
const LIVE_EIGHTHS_TO_STAY: u64 = 6;
/// A round looks at so much, so that the keeper gets back to its other duties.
const ROUND_BYTES: u64 = 4 << 20;
/// And so much under one pin.
const PIECE_BYTES: u64 = 64 << 10;
/// So many cache misses overlap.
const BATCH: usize = 32;
/// Less than that, or such a part of the ring, is not looked at by itself: each hardening takes some blocks, and without anybody's commits the walk would go on for what it has itself written.
const AHEAD_BYTES_MIN: u64 = 64 << 10;
const AHEAD_RING_PART: u64 = 32;
/// Of what is looked at such a part may be written anew because somebody has read it, at the most.
const CREDIT_PART_MAX: f64 = 0.25;
/// What is not used up of that stays, up to such a part of the ring.
const CREDIT_RING_PART: u64 = 8;
const BLOCK_BYTES: u64 = device::BLOCK_BYTES as u64;
/// The cursor where nothing is kept warm.
const NOTHING: Address = Address::MAX;

/// See the module's documentation.
pub(crate) struct Warm {
    /// Where the next round begins: a record, padding or an extent. Written by who has the walk.
    cursor: AtomicU64,
    is_in_haste: AtomicBool,
    /// All that is live is kept warm; else what is referenced, or nothing.
    keeps_all: AtomicBool,
    walk: Mutex<Walk>,
}

/// What a walk keeps from one round to the next.
#[derive(Default)]
struct Walk {
    /// Where the durable log must have come before it is worth asking again whether all has room.
    next_look: Address,
    /// So many bytes may be written anew because somebody has read them.
    credit: u64,
    found: Vec<(Address, u64)>,
    key: Vec<u8>,
    value: Vec<u8>,
}

/// How a round ended.
enum Step {
    /// There is more to be looked at.
    More,
    Done,
    /// Something could not be written anew now.
    Obstructed,
}

impl Warm {
    pub(crate) fn new() -> Warm {
        Warm {
            cursor: AtomicU64::new(NOTHING),
            is_in_haste: AtomicBool::new(false),
            keeps_all: AtomicBool::new(false),
            walk: Mutex::new(Walk::default()),
        }
    }

    /// Has nothing written anew for its warmth until dropped. Who commits without space waits for it.
    pub(crate) fn pause(&self) -> impl Drop {
        self.walk.lock()
    }

    fn cursor(&self) -> Address {
        self.cursor.load(Ordering::SeqCst)
    }

    /// Eviction is closer than the keeper makes up for between its naps.
    pub(crate) fn is_in_haste(&self) -> bool {
        self.is_in_haste.load(Ordering::Relaxed)
    }
}

impl Engine {
    /// Does a round, unless somebody else is at it, or commits wait for hardening anyway. The caller is not pinned.
    pub(crate) fn keep_warm(&self) {
        if self.hardening.is_behind_window() {
            return;
        }
        let Some(mut walk) = self.warm.walk.try_lock() else { return };
        let step = self.keep_warm_before(&mut walk, 0);
        self.warm.is_in_haste.store(matches!(step, Ok(Step::More)), Ordering::Relaxed);
    }

    /// For a committer that found no space for its records: does what keeps eviction from making some, and evicts. True if there is
    /// some now.
    #[cold]
    pub(super) fn keep_warm_in_turn(&self, demand: Demand, purpose: Purpose) -> bool {
        let mut walk = self.warm.walk.lock();
        let mut goes_on = true;
        while goes_on && self.warm.cursor() != NOTHING {
            // Whoever had its turn before may have made enough for all. The limit may be older than what it is made of, where
            // two have set it at once, and who relies on it here might never harden, and come back for ever.
            self.update_limit();
            if self.log.has_space(demand, purpose) {
                return true;
            }
            let step = self.keep_warm_before(&mut walk, demand.bytes);
            let target = self.warm.cursor().min(self.warm_goal(demand.bytes)) / BLOCK_BYTES * BLOCK_BYTES;
            goes_on = target > self.log.head() && step.is_ok();
            self.evict_to(target);
        }
        false
    }

    /// Where `target` is to be evicted: no farther than what was looked at, unless a committer wants so much that there is no
    /// other way.
    pub(super) fn without_warm(&self, target: Address, wanted: u64) -> Address {
        let cursor = self.warm.cursor();
        if target <= cursor || self.log.share() < self.log.ring_bytes() {
            return target;
        }
        let least = self.must_go(wanted).min(target);
        // Whoever walks at the moment gets on, and the committer will be back.
        match self.warm.walk.try_lock().filter(|_| least > cursor) {
            Some(_walk) => {
                self.warm.cursor.store(self.boundary_from(cursor, least), Ordering::SeqCst);
                least
            }
            None => cursor,
        }
    }

    /// What must leave the ring for a committer that wants so much; 0 if there is none.
    fn must_go(&self, wanted: u64) -> Address {
        let needed = self.log.span_max(wanted) + (64 << 10) + self.log.warmth_bytes_max();
        let target =
            (self.log.tail() + needed).saturating_sub(self.log.ring_bytes()).min(self.log.hardened());
        if wanted > 0 { target } else { 0 }
    }

    /// How far to look: a little farther than the next evictions will want to go.
    fn warm_goal(&self, wanted: u64) -> Address {
        let ahead = self.free_bytes(0) + self.log.warmth_bytes_max();
        let usual = (self.log.tail() + ahead).saturating_sub(self.log.ring_bytes()).min(self.log.hardened());
        usual.max(self.must_go(wanted))
    }

    /// Looks at a round's worth of what is to be looked at.
    fn keep_warm_before(&self, walk: &mut Walk, wanted: u64) -> Result<Step> {
        self.decide_on_warmth(walk);
        let keeps_all = self.warm.keeps_all.load(Ordering::SeqCst);
        let ring_bytes = self.log.ring_bytes();
        // Who wants space has it looked at whatever there is.
        let ahead_min = if wanted > 0 { 1 } else { AHEAD_BYTES_MIN.min(ring_bytes / AHEAD_RING_PART) };
        let credit_part = CREDIT_PART_MAX.min(self.compaction.dead_part() / 2.0);
        let credit_max = ring_bytes / CREDIT_RING_PART;
        let more_credit =
            |credit: u64, bytes: u64| (credit + (bytes as f64 * credit_part) as u64).min(credit_max);
        let mut looked_at = 0;
        loop {
            if self.warm.cursor() < self.log.head() {
                self.warm.cursor.store(self.first_boundary(), Ordering::SeqCst);
            }
            let (cursor, goal) = (self.warm.cursor(), self.warm_goal(wanted));
            if goal.saturating_sub(cursor) < ahead_min {
                return Ok(Step::Done);
            }
            if looked_at >= ROUND_BYTES {
                return Ok(Step::More);
            }
            if let Some(end) = self.end_of_dead(cursor) {
                self.warm.cursor.store(end, Ordering::SeqCst);
                continue;
            }
            let Walk { found, key, value, credit, .. } = &mut *walk;
            let is_kept = |view: &RecordView<'_>, has_notes| {
                view.shape().kind.is_put() && (keeps_all || has_notes && view.is_referenced())
            };
            let next = self.find_newest((cursor, goal), found, key, is_kept);
            for &(address, hash) in &*found {
                // What has been evicted meanwhile is cold.
                let Some(record) = self.copy_of(address, key, value) else { continue };
                let bytes = record.shape.bytes();
                if !keeps_all && bytes > *credit {
                    continue;
                }
                if !self.write_anew(address, hash, &record, Purpose::Warmth)? {
                    self.warm.cursor.store(address, Ordering::SeqCst);
                    *credit = more_credit(*credit, address - cursor);
                    return Ok(Step::Obstructed);
                }
                *credit = credit.saturating_sub(bytes);
            }
            self.warm.cursor.store(next, Ordering::SeqCst);
            *credit = more_credit(*credit, next - cursor);
            looked_at += next - cursor;
        }
    }

    /// Where the segment at an address ends, if all of it has hardened and none of its records is live. Unknown while somebody else looks at the counts, or changes them.
    fn end_of_dead(&self, address: Address) -> Option<Address> {
        let end = (address + 1).next_multiple_of(self.log.segment_bytes());
        // None are counted of one that was dropped.
        let is_dead = || self.liveness.try_lock().is_some_and(|it| it.of_segment(address).live() == 0);
        (end <= self.log.hardened() && is_dead()).then_some(end)
    }

    /// Begins, or ends, to keep records warm, if it is time to ask.
    fn decide_on_warmth(&self, walk: &mut Walk) {
        let is_possible = self.log.share() == self.log.ring_bytes() && !self.segments.disk_is_full();
        let is_kept = self.warm.cursor() != NOTHING;
        if self.log.hardened() < walk.next_look && (is_possible || !is_kept) {
            return;
        }
        walk.next_look = self.log.hardened() + self.log.segment_bytes() / 4;
        self.warm.keeps_all.store(is_possible && self.would_stay_warm(), Ordering::SeqCst);
        let keep = is_possible && self.can_keep_warm();
        if keep != is_kept {
            let cursor = if keep { self.first_boundary() } else { NOTHING };
            self.log.set_kept_warm(keep);
            self.warm.cursor.store(cursor, Ordering::SeqCst);
            self.update_limit();
        }
    }

    /// Whether anything is kept warm where the log's memory is the whole ring.
    fn can_keep_warm(&self) -> bool {
        self.log.ring_bytes() >= SEGMENTS_MIN * self.log.segment_bytes() && self.compaction.is_wanted()
    }

    /// Whether all that is live, and has not settled, stays in the log's memory if that is the whole ring.
    pub(super) fn would_stay_warm(&self) -> bool {
        let kept = self.log.ring_bytes() - self.free_bytes(0) - self.log.warmth_bytes_max();
        let is_kept = self.warm.keeps_all.load(Ordering::SeqCst);
        let eighths = if is_kept { LIVE_EIGHTHS_TO_STAY } else { LIVE_EIGHTHS_TO_BEGIN };
        self.can_keep_warm() && self.liveness.lock().live_bytes() <= kept / 8 * eighths
    }

    /// The first place in memory that is known to be between two records.
    pub(super) fn first_boundary(&self) -> Address {
        let head = self.log.head();
        let segment_start = head.next_multiple_of(self.log.segment_bytes());
        match self.opened_end >= head {
            true => segment_start.min(self.opened_end),
            false => segment_start,
        }
    }

    /// The next place between two records from `least` on; `from` is one before it.
    fn boundary_from(&self, from: Address, least: Address) -> Address {
        let _pin = epoch::pin();
        let mut at = from;
        while at < least {
            at += match self.log.item_at(at) {
                Some(Item::Record(view)) => view.shape().bytes(),
                Some(Item::Other(bytes)) => bytes,
                None => return least.next_multiple_of(self.log.segment_bytes()),
            };
        }
        at
    }

    /// Leaves the next records before `goal` that are `wanted`, and may be their keys' newest ones, in `found`, each with its key's hash. Returns where
    /// to go on: where it was if that is evicted. `wanted` is told whether a record has notes, which those that an opening has left do not have.
    pub(super) fn find_newest(
        &self,
        (from, goal): (Address, Address),
        found: &mut Vec<(Address, u64)>,
        key: &mut Vec<u8>,
        wanted: impl Fn(&RecordView<'_>, bool) -> bool,
    ) -> Address {
        found.clear();
        let mut at = from;
        {
            let _pin = epoch::pin();
            while at < goal && found.len() < BATCH && at - from < PIECE_BYTES {
                at += match self.log.item_at(at) {
                    Some(Item::Record(view)) => {
                        let has_notes = at >= self.opened_end;
                        if wanted(&view, has_notes) && !(has_notes && view.has_successor()) {
                            view.key_into(key);
                            let hash = self.hash(view.shape().object, key);
                            self.index.prefetch(hash);
                            found.push((at, hash));
                        }
                        view.shape().bytes()
                    }
                    Some(Item::Other(bytes)) => bytes,
                    None if at < self.log.head() => break,
                    None => self.log.segment_bytes() - at % self.log.segment_bytes(),
                };
            }
        }
        found.retain(|&(address, hash)| self.may_be_newest(address, hash));
        at
    }

    /// A copy of the record in memory at an address, in these buffers; none if it has been evicted.
    pub(super) fn copy_of<'b>(
        &self,
        address: Address,
        key: &'b mut Vec<u8>,
        value: &'b mut Vec<u8>,
    ) -> Option<DiskRecord<'b>> {
        let _pin = epoch::pin();
        let view = self.log.view(address)?;
        view.key_into(key);
        view.value_into(key.len(), value);
        let (shape, version, previous) = (view.shape(), view.version(), view.previous());
        Some(DiskRecord { shape, version, previous, key, value, expires_at: view.expires_at() })
    }
}

#[cfg(test)]
#[path = "warm_tests.rs"]
mod tests;
