//! Handing over: what is live in the part of the log's memory that is given up goes to the read cache, before it is evicted.
//!
//! ```text
//!   from            head            cursor               goal                     hardened     tail
//!    | evicted       | handed over   | to be looked at    | stays in the log       |            |
//! ```
//!
//! Otherwise each of these records would be read from disk again by who asks for it next, one by one, and there may be gigabytes of them. They are
//! durable, so they do not change any more; what supersedes one has another address, and so does not find it: whoever asks for an address gets the record that was
//! written there, whether it is anybody's newest or not.
//!
//! Nobody waits for it. Readers find a record in the log as long as it is there, and in the cache from then on. Whoever needs space in the ring at once evicts what is oldest,
//! handed over or not.

use super::engine::Engine;
use crate::device;
use crate::storage::record::Address;
use crate::sync::atomic::{AtomicU64, Ordering};

/// A step looks at so much, or at such a part of what is handed over: what it evicts is what the next one can hand over to.
const STEP_BYTES_MIN: u64 = 64 << 10;
const STEP_BYTES_MAX: u64 = 4 << 20;
const STEP_PART: u64 = 16;
const BLOCK_BYTES: u64 = device::BLOCK_BYTES as u64;
/// The cursor where nothing is handed over.
const NOTHING: Address = Address::MAX;

/// How far it has come, for who evicts.
pub(crate) struct HandOver {
    cursor: AtomicU64,
    /// Memory that the log may take meanwhile.
    log_bytes: AtomicU64,
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
    /// From where to where it lies in the log.
    pub(super) fn place(&self) -> (Address, Address) {
        (self.from, self.goal)
    }

    /// As great a part of something as has been handed over.
    pub(super) fn part_of(&self, whole: u64) -> u64 {
        let (done, all) = (self.done_to - self.from, self.goal - self.from);
        (u128::from(whole) * u128::from(done) / u128::from(all)) as u64
    }
}

impl HandOver {
    pub(super) fn new() -> HandOver {
        HandOver { cursor: AtomicU64::new(NOTHING), log_bytes: AtomicU64::new(0) }
    }

    /// What lies before it may leave the log as far as this is concerned.
    pub(super) fn cursor(&self) -> Address {
        self.cursor.load(Ordering::SeqCst)
    }

    pub(super) fn log_bytes(&self) -> Option<u64> {
        (self.cursor() != NOTHING).then(|| self.log_bytes.load(Ordering::SeqCst))
    }

    pub(super) fn note_log_bytes(&self, bytes: u64) {
        self.log_bytes.store(bytes, Ordering::SeqCst);
    }

    pub(super) fn end(&self) {
        self.cursor.store(NOTHING, Ordering::SeqCst);
    }
}

impl Engine {
    /// Sets the log's share, which is less than it has, and begins to hand over what is beyond; `None` if there is nothing.
    pub(super) fn begin_hand_over(&self, share: u64) -> Option<HandedOver> {
        let (hand_over, from) = (&self.shares.hand_over, self.first_boundary());
        let goal = self.head_with(share).min(self.log.hardened()) / BLOCK_BYTES * BLOCK_BYTES;
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
        let hand_over = &self.shares.hand_over;
        let mut at = hand_over.cursor();
        if at < self.log.head() {
            at = self.first_boundary();
        }
        let step_bytes = ((part.goal - part.from) / STEP_PART).clamp(STEP_BYTES_MIN, STEP_BYTES_MAX);
        let end = part.goal.min(at + step_bytes);
        let (mut found, mut key, mut value) = (Vec::new(), Vec::new(), Vec::new());
        let is_newest = self.is_newest();
        while at < end {
            if at < self.log.head() {
                at = self.first_boundary();
            }
            at = self.find_newest((at, end), &mut found, &mut key, |_| true);
            for &(address, _) in &found {
                if let Some(record) = self.copy_of(address, &mut key, &mut value) {
                    self.cold.cache.take_over(address, &record, &is_newest);
                }
            }
        }
        hand_over.cursor.store(at, Ordering::SeqCst);
        part.done_to = at.clamp(part.done_to, part.goal);
        self.evict_to(at.min(part.goal) / BLOCK_BYTES * BLOCK_BYTES);
        at < part.goal
    }
}
