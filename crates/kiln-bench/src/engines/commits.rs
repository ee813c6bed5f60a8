//! Which snapshots still show everything, for engines that read in a transaction.
//!
//! Beginning a read transaction costs redb, LMDB and SQLite as much as the read itself, or more. Whoever uses them for single
//! reads and cares for speed keeps a read transaction open for as long as nothing was committed. So do these adapters: a
//! worker keeps its snapshot, and renews it if a commit has begun since. Commits are counted when they begin and when they
//! end: a snapshot that was taken after so many had ended shows everything while no more than these have begun. A read that
//! is asked for after a write was acknowledged, or after another read has seen it, therefore sees it too.
//!
//! An old snapshot keeps pages from being used again, so a worker gives its own up before it writes.

use std::sync::atomic::{AtomicU64, Ordering};

/// Counts the commits of a database.
#[derive(Default)]
pub(super) struct Commits {
    begun: AtomicU64,
    ended: AtomicU64,
}

/// How many commits had ended when a snapshot was about to be taken.
#[derive(Clone, Copy)]
pub(super) struct Moment(u64);

impl Commits {
    /// Runs a commit, whether it succeeds or not.
    #[inline]
    pub(super) fn count<T>(&self, commit: impl FnOnce() -> T) -> T {
        self.begun.fetch_add(1, Ordering::AcqRel);
        let result = commit();
        self.ended.fetch_add(1, Ordering::AcqRel);
        result
    }

    /// The present moment; the snapshot is to be taken after it.
    #[inline]
    pub(super) fn now(&self) -> Moment {
        Moment(self.ended.load(Ordering::Acquire))
    }

    /// Whether a snapshot that was taken then shows everything that is committed now.
    #[inline]
    pub(super) fn none_since(&self, moment: Moment) -> bool {
        self.begun.load(Ordering::Acquire) == moment.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_snapshot_is_old_as_soon_as_a_commit_begins_and_one_taken_meanwhile_too() {
        let commits = Commits::default();
        let before = commits.now();
        assert!(commits.none_since(before));
        let meanwhile = commits.count(|| {
            assert!(!commits.none_since(before));
            commits.now()
        });
        assert!(!commits.none_since(before) && !commits.none_since(meanwhile));
        assert!(commits.none_since(commits.now()));
    }
}
