//! The clock: the database's one logical time.
//!
//! A *tick* moves to the next version; a version is *closed* when every commit that could have joined it has
//! finished. A commit reads the clock under a pin and after it has locked what it writes ([`Clock::join`]), so once commits have
//! quiesced after the tick, nothing will ever join the old version. Committers never wait for a tick.

use std::fmt;

use crate::planted::{Bug, planted};
use crate::storage::epoch;
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sync::barrier;

/// A tick of the database's one clock. Every commit belongs to one version; versions become durable in order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version(u64);

impl Version {
    /// The version with this number, e.g. one that a client kept.
    pub fn new(number: u64) -> Version {
        Version(number)
    }

    /// The version's number; it counts up from 1 over the database's whole life.
    pub fn number(self) -> u64 {
        self.0
    }
}

impl fmt::Display for Version {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}", self.0)
    }
}

/// See the module's documentation.
#[repr(align(128))]
pub(crate) struct Clock {
    version: AtomicU64,
    /// Where it went on when the database was opened; that is on disk.
    opened: u64,
}

impl Clock {
    pub(crate) fn new(version: u64) -> Clock {
        Clock { version: AtomicU64::new(version), opened: version }
    }

    /// The current version.
    #[inline]
    pub(crate) fn now(&self) -> u64 {
        self.version.load(Ordering::SeqCst)
    }

    /// How many versions were given out since the one that the newest seal has, or the opening.
    #[inline]
    pub(crate) fn versions_since(&self, sealed: u64) -> u64 {
        self.now() - sealed.max(self.opened)
    }

    /// Moves to the next version and returns it. The old one is not closed yet.
    pub(crate) fn tick(&self) -> u64 {
        self.version.fetch_add(1, Ordering::SeqCst) + 1
    }

    /// The version that a commit joins, which has pinned itself [as one](epoch::pin_for_commit) and has then locked what it writes.
    #[inline]
    pub(crate) fn join(&self) -> u64 {
        barrier::behind_locked();
        self.now()
    }

    /// Ticks and waits until the old version is closed, for commits in progress only; returns the closed version. Must not be called
    /// under a pin.
    pub(crate) fn close(&self) -> u64 {
        self.close_as_of(|| ()).0
    }

    /// As [`Self::close`], and what the time was at the tick: the same before it and after. The wait does not count, however long it is.
    pub(crate) fn close_as_of<T: PartialEq>(&self, now: impl Fn() -> T) -> (u64, T) {
        let (closed, then) = loop {
            let before = now();
            let closed = self.tick() - 1;
            if now() == before {
                break (closed, before);
            }
        };
        if !planted(Bug::ClosesWithoutWaiting) {
            epoch::quiesce_commits();
        }
        (closed, then)
    }
}
