//! Rows that expire: when, and by which clock; and how they go in the end.
//!
//! ```text
//!   written                 expires                     deleted by the engine
//!   ---|-----------------------|---------------------------|------------------> time
//!      | there for everybody   | absent for who reads      | absent, and its space is free, as of
//!      |                       | from now on               | any deleted row
//! ```
//!
//! **A reader's time.** Every transaction and every snapshot has one [`Moment`]; all its rows are there, or not, as of that moment. A snapshot's is read from the clock when it is
//! opened: later it would show what it has of a row as expired though that was renewed in time. A transaction's is when it first meets a row that expires. It moves on where a transaction meets something newer than its beginning, be it
//! the deletion of a row that was still there at its moment; a conflict, if a row that it has seen has expired meanwhile. A snapshot that has a name has the time at which it got it. An operation on one key
//! reads the clock when it has met the row, and looks again if that may have changed before the clock was read. So who meets no such row reads no clock.
//!
//! **An expiry is no write.** It changes no bucket and no version, and nobody conflicts with it. A transaction is as if it had run alone at its
//! commit with its moment as an argument: transactions one after the other in real time have moments in that order, since the
//! clock never goes back in a process; those of transactions that overlap may be ordered otherwise than these. What writes over an expired row
//! has read its bucket like any other, and conflicts with others who do.
//!
//! **How they go.** By an ordinary deletion, a transaction of its own ([`Engine::delete_expired`]): so a snapshot that may still see
//! the row finds it behind the tombstone, a transaction that has seen it conflicts, and crash, settling, compaction and checkpoint need
//! no rule for it. *Rejected: that compaction, settling or the tree's merges leave expired rows out.* It would have to be known that nobody
//! reads as of an earlier moment, and a clock that is set back while the database is closed would bring older values back. *Rejected: an index by
//! time.* It costs another record, or memory that opening has to fill again, for each such row.
//!
//! Each object knows the [soonest](Lifetimes) time at which one of its rows may expire. Once that has passed the keeper walks over the object's keys, or over those
//! of all such maps at once, which have one index, and deletes what has expired, [piece by piece](walk); the walk tells when the next one is due, and
//! what has expired is deleted by the end of the second walk from then on. It rests for eight times as long as it has looked at rows that are to stay. So it takes
//! an eighth of one thread where little expires; the more of what is stored has expired, the more it takes, and the faster that goes, up to a whole
//! thread. What expires faster than one thread deletes it, or than hardening makes log space for deletions, is stored until that is over: where there is none, or hardening is behind the window, a walk
//! waits, and goes on where it was. Compaction, where it comes upon such a row first, deletes it instead of copying
//! it, unless somebody walks, or counts rows, at that moment. What cannot be read is passed over, told, and looked at again by the next walk.

mod walk;

use std::time::Duration;

pub(crate) use self::walk::{Expired, Place};
use self::walk::{MayExpire, REST_MIN, Walk, first_place};
use super::engine::Engine;
use super::object::ObjectState;
use crate::error::Result;
use crate::planted::{Bug, planted};
use crate::storage::record::NEVER;
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};

/// When a row expires: from then on it reads as absent, everywhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expiry {
    /// It stays until it is deleted.
    Never,
    /// So long after the moment at which it is put.
    In(Duration),
    /// At this time, in milliseconds since 1970 (UTC).
    At(u64),
}

impl Expiry {
    /// As it is stored.
    pub(crate) fn resolve(self, now: impl FnOnce() -> u64) -> u64 {
        match self {
            Expiry::Never => NEVER,
            Expiry::In(time_to_live) => expiry_after(now(), millis(time_to_live)),
            // The first millisecond of 1970 has passed, too.
            Expiry::At(at) => at.max(1),
        }
    }

    pub(crate) fn of_stored(expires_at: u64) -> Expiry {
        if expires_at == NEVER { Expiry::Never } else { Expiry::At(expires_at) }
    }
}

/// Whole milliseconds, rounded up.
pub(crate) fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}

/// When a row expires that is put now.
fn expiry_after(now: u64, time_to_live_ms: u64) -> u64 {
    now.saturating_add(time_to_live_ms).max(1)
}

/// When a row expires that is put without a word on that, into an object with this time to live; 0 for none.
#[inline]
pub(crate) fn default_expiry(time_to_live_ms: u64, now: impl FnOnce() -> u64) -> u64 {
    if time_to_live_ms == 0 { NEVER } else { expiry_after(now(), time_to_live_ms) }
}

/// The time as of which somebody reads: taken once, when it is first needed. Threads that share it read as of the same.
#[derive(Debug, Default)]
pub(crate) struct Moment(AtomicU64);

impl Moment {
    /// One that is known; or one that is not needed, or taken when it is.
    pub(crate) fn at(now_ms: Option<u64>) -> Moment {
        Moment(AtomicU64::new(now_ms.map_or(0, |now_ms| now_ms.max(1))))
    }

    #[cold]
    pub(crate) fn now(&self, engine: &Engine) -> u64 {
        match self.0.load(Ordering::Relaxed) {
            0 => {
                let now = engine.now_ms();
                self.0
                    .compare_exchange(0, now, Ordering::Relaxed, Ordering::Relaxed)
                    .map_or_else(|first| first, |_| now)
            }
            known => known,
        }
    }

    /// Of a stored expiry: the row is absent.
    #[inline]
    pub(crate) fn is_past(&self, expires_at: u64, engine: &Engine) -> bool {
        expires_at != NEVER && expires_at <= self.now(engine)
    }

    /// Takes the time once more, if it was taken, for who has seen rows of which the first expires then; false if that has passed.
    #[inline]
    pub(crate) fn move_on(&mut self, first_to_expire: Option<u64>, engine: &Engine) -> bool {
        if self.0.load(Ordering::Relaxed) == 0 {
            return true;
        }
        let now = engine.now_ms();
        self.0.store(now, Ordering::Relaxed);
        first_to_expire.is_none_or(|first| first > now)
    }

    /// To be used again by somebody else.
    pub(crate) fn forget(&self) {
        self.0.store(0, Ordering::Relaxed);
    }
}

/// What a database knows of its rows that expire.
#[derive(Default)]
pub(crate) struct Expiring {
    /// The latest reading of the clock.
    latest_ms: AtomicU64,
    /// The superblock says that there may be some.
    has_any: AtomicBool,
    /// Rows deleted because they had expired, since the database was opened.
    pub(crate) deleted: AtomicU64,
    walk: Mutex<Walk>,
    /// See [`Expiring::failure`].
    failure: Mutex<Option<String>>,
}

impl Expiring {
    pub(crate) fn new(has_any: bool) -> Expiring {
        Expiring { has_any: AtomicBool::new(has_any), ..Expiring::default() }
    }

    /// To be held by who deletes a row that has expired, without waiting: who counts such rows sees none of them go meanwhile.
    pub(crate) fn deleting(&self) -> Option<impl Drop> {
        self.walk.try_lock()
    }

    /// Has no row that has expired deleted until dropped. Taken before all else.
    pub(crate) fn pause(&self) -> impl Drop {
        self.walk.lock()
    }

    /// What kept the last walk from deleting some rows.
    pub(crate) fn failure(&self) -> Option<String> {
        self.failure.lock().clone()
    }
}

/// What an object knows of its rows that expire. Times are lower bounds: [`u64::MAX`] if none does. On a line of its own: whoever reads rows needs what is beside it.
#[repr(align(128))]
pub(crate) struct Lifetimes {
    /// No row expires before.
    soonest: AtomicU64,
    /// None of those that the present walk has met, or that were put since it began.
    soonest_next: AtomicU64,
}

impl Lifetimes {
    /// Of an object without such rows.
    pub(crate) fn new() -> Lifetimes {
        Lifetimes { soonest: AtomicU64::new(u64::MAX), soonest_next: AtomicU64::new(u64::MAX) }
    }

    /// To be called before a row that expires is there, so that whoever counts it knows; and once more afterwards: the walk may have
    /// passed it in between. Hardly any row is the soonest, and who only looks takes the line from nobody.
    pub(crate) fn note(&self, expires_at: u64) {
        if expires_at == NEVER {
            return;
        }
        // The row is there before the looks: a walk that begins behind the first of them meets it, and notes it anew.
        fence(Ordering::SeqCst);
        // In this order: see `end_walk`.
        for soonest in [&self.soonest_next, &self.soonest] {
            if soonest.load(Ordering::SeqCst) > expires_at {
                soonest.fetch_min(expires_at, Ordering::SeqCst);
            }
        }
    }

    /// Some rows may be there that expire, of which nothing is known yet.
    pub(crate) fn expect_some(&self) {
        self.soonest.store(0, Ordering::SeqCst);
    }

    pub(crate) fn begin_walk(&self) {
        self.soonest_next.store(u64::MAX, Ordering::SeqCst);
        // Either who notes a row finds that it is to be noted for this walk, or the walk meets the row: in the one order that all of this has, their fence and
        // then their look come before the store, and this fence behind it; so what the walk reads from now on is no older than what was there before theirs.
        fence(Ordering::SeqCst);
    }

    /// What was put meanwhile is noted in the next one first: either it shows here, or it comes after. Who has only looked has found a time as early in both, first
    /// in the next one. If the load here came before that was there, and the store behind their look at the other, then the second load comes behind both, and
    /// finds it.
    pub(crate) fn end_walk(&self) {
        loop {
            let next = self.soonest_next.load(Ordering::SeqCst);
            self.soonest.store(next, Ordering::SeqCst);
            if self.soonest_next.load(Ordering::SeqCst) == next {
                return;
            }
        }
    }

    /// Some row may have expired.
    pub(crate) fn is_due(&self, now_ms: impl FnOnce() -> u64) -> bool {
        let soonest = self.soonest.load(Ordering::SeqCst);
        soonest != u64::MAX && soonest <= now_ms()
    }
}

impl Engine {
    /// The time now, in milliseconds since 1970; it never goes back as long as the database is open.
    #[cold]
    pub(crate) fn now_ms(&self) -> u64 {
        let now = (self.segments.time_us() / 1000).max(1);
        let latest = &self.expiring.latest_ms;
        // Written once a millisecond, so that readers do not take the line from each other. Who has seen what somebody else did sees
        // their reading, too.
        match latest.load(Ordering::Acquire) {
            known if known >= now => known,
            _ => latest.fetch_max(now, Ordering::AcqRel).max(now),
        }
    }

    /// To be called before the first row that expires is written: older engines would not see that it does, and must not open the database.
    pub(crate) fn begin_expiring(&self) -> Result<()> {
        if self.expiring.has_any.load(Ordering::Acquire) {
            return Ok(());
        }
        let mut superblock = self.superblock.lock();
        superblock.say_for_good(|said| said.has_expiring, |saying| saying.has_expiring = true)?;
        self.expiring.has_any.store(true, Ordering::Release);
        Ok(())
    }

    /// As of when a snapshot reads that is opened now; none if there are no rows that expire.
    pub(crate) fn time_of_snapshot(&self) -> Option<u64> {
        self.expiring.has_any.load(Ordering::Acquire).then(|| self.now_ms())
    }

    /// Some rows of the object may have expired and be there all the same.
    pub(crate) fn may_have_expired(&self, object: &ObjectState) -> bool {
        object.lifetimes.is_due(|| self.now_ms()) && !object.is_dropped()
    }

    /// True if rows have expired that are yet to be deleted.
    pub(crate) fn is_expiry_due(&self) -> bool {
        self.expiring.has_any.load(Ordering::Relaxed)
            && self.objects.iter().any(|object| self.may_have_expired(object))
    }

    /// How long the keeper may sleep where it has nothing else to do, if rows are to expire.
    pub(crate) fn expiry_nap(&self) -> Option<Duration> {
        /// The clock may be set.
        const NAP_MAX: Duration = Duration::from_secs(1);
        if !self.expiring.has_any.load(Ordering::Relaxed) {
            return None;
        }
        let live = self.objects.iter().filter(|object| !object.is_dropped());
        let soonest = live.map(|object| object.lifetimes.soonest.load(Ordering::SeqCst)).min();
        let soonest = soonest.filter(|&soonest| soonest != u64::MAX)?;
        let left = Duration::from_millis(soonest.saturating_sub(self.now_ms()));
        Some(left.clamp(REST_MIN / 4, NAP_MAX))
    }

    /// How many rows an object has that have not expired: exact while nobody writes. Where some may have expired it takes a look at each; where
    /// something has settled, at each that has not, and waits for who settles.
    pub(crate) fn count_unexpired(&self, object: &ObjectState) -> u64 {
        if object.is_dropped() {
            return 0;
        }
        if !self.may_have_expired(object) {
            let _unsettled = object.ordered().map(|_| self.settled.pause());
            return self.count_stored(object);
        }
        // The engine deletes none meanwhile.
        let _walk = self.expiring.walk.lock();
        // Nor are some met on both sides. In this order: who deletes may have to wait for who settles.
        let _unsettled = object.ordered().map(|_| self.settled.pause());
        let expired = self.count_expired(object);
        self.count_stored(object).saturating_sub(expired)
    }

    /// What cannot be read is told by who reads it.
    fn count_stored(&self, object: &ObjectState) -> u64 {
        self.count_rows(object).unwrap_or_else(|_| self.estimate_rows(object))
    }

    fn count_expired(&self, object: &ObjectState) -> u64 {
        let (moment, mut value, mut count) = (Moment::default(), Vec::new(), 0);
        let mut place = Some(first_place(object));
        while let Some(here) = place {
            let Ok(piece) = self.next_piece(&[object.id], &here, &mut |_| {}) else { return count };
            for MayExpire { key, from, .. } in &piece.rows {
                if !moment.is_past(*from, self) {
                    continue;
                }
                let single = self.key_of(object, key);
                let Ok(reading) = self.read_newest(single, &mut value) else { continue };
                // What was written since it settled is met twice.
                let is_here = reading.is_settled() == matches!(here, Place::Settled(_));
                count += u64::from(reading.stored && moment.is_past(reading.expires_at, self) && is_here);
            }
            place = piece.next;
        }
        count
    }

    /// Whether the engine may delete a row that expires then.
    pub(crate) fn is_expired_now(&self, expires_at: u64) -> bool {
        expires_at != NEVER && (expires_at <= self.now_ms() || planted(Bug::ExpiresEarly))
    }
}
