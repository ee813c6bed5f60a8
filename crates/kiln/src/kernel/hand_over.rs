//! Handing over: what is live in the log's memory goes to the read cache before it is evicted, as long as the caches have the larger share ([`shares`](super::shares)).
//!
//! ```text
//!   from            head            cursor               goal                     hardened     tail
//!    | evicted       | handed over   | to be looked at    | stays in the log       |            |
//! ```
//!
//! **When shares change** that is most of the ring at once. Otherwise each of these records would be read from disk again by who asks for it next, one by one, and there may be gigabytes of them.
//!
//! **And from then on** what is to leave next, ahead of eviction. Where keys are updated all over the place each update takes a record out of the caches' use, and puts one at the log's tail that is to leave as soon as the tail has gone through the log's share: from the disk
//! it would be read one by one again, also by an update that has to find out whose it is.
//!
//! They are durable, so they do not change any more; what supersedes one has another address, and so does not find it: whoever asks for an address gets the record that was
//! written there, whether it is anybody's newest or not.
//!
//! Nobody waits for it. Readers find a record in the log as long as it is there, and in the cache from then on. Whoever needs space in the ring at once evicts what is oldest,
//! handed over or not, and so does who finds that the log has more memory than it may have.

use super::engine::Engine;
use crate::device;
use crate::storage::record::{Address, DiskRecord};
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// A step looks at so much, or at such a part of what is handed over: what it evicts is what the next one can hand over to.
const STEP_BYTES_MIN: u64 = 64 << 10;
const STEP_BYTES_MAX: u64 = 4 << 20;
const STEP_PART: u64 = 16;
const BLOCK_BYTES: u64 = device::BLOCK_BYTES as u64;
/// The cursor where nothing is handed over.
const NOTHING: Address = Address::MAX;
/// Stands for the memory that the log may take where shares do not change.
const NO_BYTES: u64 = u64::MAX;

/// How far it has come, for who evicts.
pub(crate) struct HandOver {
    cursor: AtomicU64,
    /// Memory that the log may take while shares change.
    log_bytes: AtomicU64,
    /// There is more to be looked at than the keeper makes up for between its naps.
    is_in_haste: AtomicBool,
    /// Records that were looked at, and have gone to the read cache.
    pub(crate) records: AtomicU64,
}

/// A part of the log that is handed over.
#[derive(Clone, Copy, Debug)]
pub(super) struct HandedOver {
    from: Address,
    goal: Address,
    /// Everything before it is handed over and evicted.
    done_to: Address,
    /// What the read cache had when it began.
    pub(super) records_before: u64,
}

impl HandedOver {
    /// As great a part of something as has been handed over.
    pub(super) fn part_of(&self, whole: u64) -> u64 {
        let (done, all) = (self.done_to - self.from, self.goal - self.from);
        (u128::from(whole) * u128::from(done) / u128::from(all)) as u64
    }
}

impl HandOver {
    pub(super) fn new() -> HandOver {
        HandOver {
            cursor: AtomicU64::new(NOTHING),
            log_bytes: AtomicU64::new(NO_BYTES),
            is_in_haste: AtomicBool::new(false),
            records: AtomicU64::new(0),
        }
    }

    /// What lies before it may leave the log as far as this is concerned.
    pub(super) fn cursor(&self) -> Address {
        self.cursor.load(Ordering::SeqCst)
    }

    /// Memory that the log may take while shares change; `None` if they do not.
    pub(super) fn log_bytes(&self) -> Option<u64> {
        Some(self.log_bytes.load(Ordering::SeqCst)).filter(|&bytes| bytes != NO_BYTES)
    }

    pub(super) fn note_log_bytes(&self, bytes: u64) {
        self.log_bytes.store(bytes, Ordering::SeqCst);
    }

    /// Shares are changing, or what leaves the log is handed over.
    pub(super) fn is_going_on(&self) -> bool {
        self.cursor() != NOTHING
    }

    pub(crate) fn is_in_haste(&self) -> bool {
        self.is_in_haste.load(Ordering::Relaxed)
    }
}

impl Engine {
    /// Sets the log's share, which is less than it has, and begins to hand over what is beyond; `None` if there is nothing.
    pub(super) fn begin_hand_over(&self, share: u64) -> Option<HandedOver> {
        let (hand_over, from) = (&self.shares.hand_over, self.first_boundary());
        let goal = self.hand_over_goal(share);
        let records_before = self.cold.cache.bytes();
        let handed_over = (goal > from).then_some(HandedOver { from, goal, done_to: from, records_before });
        if handed_over.is_some() {
            hand_over.note_log_bytes(self.log.ring_bytes());
            hand_over.cursor.store(from, Ordering::SeqCst);
        }
        self.log.set_share(share);
        handed_over
    }

    /// Hands some of it over, and evicts it; true if there is more.
    pub(super) fn hand_over_some(&self, part: &mut HandedOver) -> bool {
        let step_bytes = ((part.goal - part.from) / STEP_PART).clamp(STEP_BYTES_MIN, STEP_BYTES_MAX);
        let (cache, is_newest) = (&self.cold.cache, self.is_newest());
        let at =
            self.hand_over_to(part.goal, step_bytes, |at, record| cache.take_over(at, record, &is_newest));
        part.done_to = at.clamp(part.done_to, part.goal);
        self.evict_to(at.min(part.goal) / BLOCK_BYTES * BLOCK_BYTES);
        at < part.goal
    }

    /// Shares have changed. From now on what leaves the log is handed over if the caches have the larger one. Returns what all before it was, and from where on.
    pub(super) fn end_hand_over(
        &self,
        part: Option<HandedOver>,
        goes_on: bool,
    ) -> Option<(Address, Address)> {
        let hand_over = &self.shares.hand_over;
        hand_over.note_log_bytes(NO_BYTES);
        if !goes_on {
            hand_over.cursor.store(NOTHING, Ordering::SeqCst);
        } else if hand_over.cursor() == NOTHING {
            hand_over.cursor.store(self.first_boundary(), Ordering::SeqCst);
        }
        let from = part.map_or(self.log.head(), |part| part.from);
        goes_on.then(|| (from, hand_over.cursor()))
    }

    /// Hands over some of what is to leave the log next, if the caches have the larger share: for the keeper. Whoever makes room evicts it.
    pub(crate) fn hand_over_what_leaves(&self) {
        let hand_over = &self.shares.hand_over;
        let mut goes_on = false;
        let mut division = self.shares.while_reading();
        if let Some((from, to)) = division.as_mut().and_then(|division| division.handed_over.as_mut()) {
            let goal = self.hand_over_goal(self.log.share());
            let (cache, is_newest) = (&self.cold.cache, self.is_newest());
            let at =
                self.hand_over_to(goal, STEP_BYTES_MAX, |at, record| cache.admit(at, record, &is_newest));
            if *to < self.log.head() {
                // Some was evicted that was not handed over: what lies before is taken for cold.
                *from = at;
            }
            *to = at;
            goes_on = at < goal;
        }
        hand_over.is_in_haste.store(goes_on, Ordering::Relaxed);
    }

    /// Where the log's share begins, as far as that is durable.
    fn hand_over_goal(&self, share: u64) -> Address {
        self.head_with(share).min(self.log.hardened()) / BLOCK_BYTES * BLOCK_BYTES
    }

    /// Shows the next records before `goal` to who takes them, at most about so many bytes. Returns where to go on.
    fn hand_over_to(&self, goal: Address, bytes: u64, take: impl Fn(Address, &DiskRecord<'_>)) -> Address {
        let hand_over = &self.shares.hand_over;
        let in_memory = |at: Address| if at < self.log.head() { self.first_boundary() } else { at };
        let mut at = in_memory(hand_over.cursor());
        let end = goal.min(at + bytes);
        let (mut found, mut key, mut value) = (Vec::new(), Vec::new(), Vec::new());
        let mut records = 0;
        while at < end {
            at = self.find_newest((in_memory(at), end), &mut found, &mut key, |_, _| true);
            for &(address, _) in &found {
                if let Some(record) = self.copy_of(address, &mut key, &mut value) {
                    take(address, &record);
                    records += 1;
                }
            }
        }
        hand_over.records.fetch_add(records, Ordering::Relaxed);
        hand_over.cursor.store(at, Ordering::SeqCst);
        at
    }
}

#[cfg(test)]
#[path = "hand_over_tests.rs"]
mod tests;
