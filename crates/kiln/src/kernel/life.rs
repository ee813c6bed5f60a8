//! Whether an object is there: it lives, is being dropped, or was dropped in some version.
//!
//! ```text
//!   LIVES ──begin──> IS BEING DROPPED ──end──> dropped in version v
//!     ^                     │
//!     └──── given up ───────┘
//! ```
//!
//! Dropping is a commit like others, of two records of the catalog (see [`objects::drop_object`](crate::objects::drop_object)). What makes it a write of *all* keys of the object,
//! be there records of them or not, is this word. The commit that drops, having locked what it writes, begins; then it reads the clock, validates and installs; and it ends before it
//! unlocks. All of that is under one pin, and waits for nothing, so the state in between lasts about as long as a bucket is locked, and whoever meets it does what they
//! do about a locked bucket: look again, or conflict. Nobody is told that the object was dropped before it is certain that it is.
//!
//! **No write commits behind the drop.** Whoever writes a row reads the clock, and looks here *afterwards*, before installing, under their pin. If they
//! see that the object lives, they have read the clock before the drop began, and it reads the clock later: so version(write) <= version(drop). (All four
//! are sequentially consistent.) What they install then may come to be after the drop has ended; but nobody sees it who sees the drop: the object's rows are refused to them, the same
//! transaction's other rows are locked until all are there, and a snapshot that has the drop reads at a version that is closed, in which nobody is installing any more. Nor do rows come to
//! be behind who removes them: that one says that they leave, and waits for all commits that have begun (`removal`). Such a wait overlooks who has not taken a lock yet
//! ([`quiesce_commits`](crate::storage::epoch::quiesce_commits)). So whoever writes rows anew looks whether they leave *behind* the lock of their bucket, and
//! [`join`](super::clock::Clock::join): either the wait sees them, or they see that the rows leave.
//!
//! **No read misses rows because they were removed.** Rows are removed only after the drop has ended. Whoever reads a row looks here *afterwards*: if the object lives, nothing had
//! been removed when they read. A transaction remembers which objects it has used, and looks at them again whenever it validates what it has read.
//!
//! **Snapshots** look whether the catalog says, as of their version, that the object was dropped, and only if it was by now. While it is being dropped it lives for them: the drop will be of
//! a version that is not closed yet. So they wait for nobody.
//!
//! The word is read by every operation and written once. It has a cache line of its own, and each handle a reference to it: so an operation on one key
//! loads it once, which is one line that all processors share.

use crate::error::{Error, ErrorKind, Result};
use crate::kernel::backoff::Backoff;
use crate::planted::{Bug, planted};
use crate::sync::atomic::{AtomicU64, Ordering};

const LIVES: u64 = 0;
const IS_BEING_DROPPED: u64 = u64::MAX;

/// Whether an object is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    Lives,
    IsBeingDropped,
    /// In this version; of a database that was opened since, in this one at the latest.
    Dropped(u64),
}

/// How far the rows of a dropped object have gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Rows {
    /// Snapshots may see them, or a crash bring the object back.
    Stay,
    /// Nobody can see them any more. They are not written anew, and do not settle.
    Leave,
    /// No index of the log has any. The tree may.
    LeftLog,
    Gone,
}

/// See the module's documentation.
#[derive(Debug)]
#[repr(align(128))]
pub(crate) struct Life {
    state: AtomicU64,
    /// Of a dropped object; a [`Rows`].
    rows: AtomicU64,
    name: Box<str>,
}

impl Life {
    /// Of an object with this name.
    pub(crate) fn new(name: &str) -> Life {
        Life { state: AtomicU64::new(LIVES), rows: AtomicU64::new(Rows::Stay as u64), name: name.into() }
    }

    /// The object's name.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// The object is there, for who has read of it or is going to write.
    #[inline(always)]
    pub(crate) fn lives(&self) -> bool {
        self.state.load(Ordering::SeqCst) == LIVES || planted(Bug::DropOverlooked)
    }

    #[inline]
    pub(crate) fn standing(&self) -> Standing {
        match self.state.load(Ordering::SeqCst) {
            LIVES => Standing::Lives,
            IS_BEING_DROPPED => Standing::IsBeingDropped,
            version => Standing::Dropped(version),
        }
    }

    /// For an operation of its own, which can wait until it is certain what becomes of the object.
    ///
    /// # Errors
    /// `NotFound` if it was dropped.
    #[inline]
    pub(crate) fn check(&self) -> Result<()> {
        if self.lives() { Ok(()) } else { self.wait_for_drop() }
    }

    #[cold]
    fn wait_for_drop(&self) -> Result<()> {
        let mut backoff = Backoff::default();
        loop {
            match self.standing() {
                Standing::Lives => return Ok(()),
                Standing::IsBeingDropped => backoff.pause(),
                Standing::Dropped(_) => return Err(self.is_dropped()),
            }
        }
    }

    /// Says that the object was dropped.
    #[cold]
    pub(crate) fn is_dropped(&self) -> Error {
        let name = &self.name;
        let what = format!(
            "object {name:?} was dropped, and this handle of it leads nowhere; open an object anew by its name, which makes another one"
        );
        Error::new(ErrorKind::NotFound, what)
    }

    /// Begins to drop the object. It lives again if what is returned goes before it has [ended](Dropping::end). `None` if it does not live.
    pub(super) fn begin_drop(&self) -> Option<Dropping<'_>> {
        let begun =
            self.state.compare_exchange(LIVES, IS_BEING_DROPPED, Ordering::SeqCst, Ordering::SeqCst).is_ok();
        begun.then_some(Dropping(self))
    }

    /// For recovery: it was dropped in this version or before.
    pub(super) fn note_dropped(&self, version: u64) {
        self.state.store(version.max(1), Ordering::SeqCst);
    }

    /// How far the rows of the object, which was dropped, have gone.
    #[inline]
    pub(crate) fn rows(&self) -> Rows {
        match self.rows.load(Ordering::SeqCst) {
            0 => Rows::Stay,
            1 => Rows::Leave,
            2 => Rows::LeftLog,
            _ => Rows::Gone,
        }
    }

    /// They have gone so far, and never come back.
    pub(super) fn note_rows(&self, rows: Rows) {
        self.rows.fetch_max(rows as u64, Ordering::SeqCst);
    }
}

/// A drop that is being committed.
pub(super) struct Dropping<'a>(&'a Life);

impl Dropping<'_> {
    /// It is certain, and of this version.
    pub(super) fn end(self, version: u64) {
        self.0.state.store(version, Ordering::SeqCst);
    }
}

impl Drop for Dropping<'_> {
    fn drop(&mut self) {
        // Nothing where it has ended.
        let _ = self.0.state.compare_exchange(IS_BEING_DROPPED, LIVES, Ordering::SeqCst, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn c2_a_drop_that_does_not_come_to_its_end_leaves_the_object_alive() {
        let life = Life::new("object");
        let dropping = life.begin_drop().unwrap();
        assert!(!life.lives() && life.begin_drop().is_none());
        drop(dropping);
        assert!(life.lives() && life.check().is_ok());
        let panicked = std::panic::catch_unwind(|| {
            let _dropping = life.begin_drop();
            panic!("on purpose");
        });
        assert!(panicked.is_err() && life.lives());
        life.begin_drop().unwrap().end(7);
        assert_eq!(life.standing(), Standing::Dropped(7));
        assert_eq!(life.check().unwrap_err().kind(), ErrorKind::NotFound);
        assert!(life.begin_drop().is_none());
    }

    #[test]
    fn rows_that_have_gone_do_not_come_back() {
        let life = Life::new("object");
        assert_eq!(life.rows(), Rows::Stay);
        for rows in [Rows::Leave, Rows::LeftLog, Rows::Gone] {
            life.note_rows(rows);
            assert_eq!(life.rows(), rows);
        }
        life.note_rows(Rows::Leave);
        assert_eq!(life.rows(), Rows::Gone);
    }
}
