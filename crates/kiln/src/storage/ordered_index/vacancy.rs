//! Whether an index has no key at all: then who reads as of a snapshot need not go over the leaves that keys have left.
//!
//! ```text
//!   taken --somebody looks--> doubted --no key after a quiescence--> vacant
//!     ^------------------ whoever inserts, first of all ---------------'
//! ```
//!
//! A key that is inserted by who has not seen the doubt is counted when the quiescence ends, and who comes later ends the vacancy before
//! its key is there. So all keys whose insertion had ended before somebody found the index vacant have been removed by then. Keys that
//! are being inserted at that moment may be there: they are of commits that no open snapshot sees.

use super::OrderedIndex;
use crate::storage::epoch;
use crate::sync::atomic::{AtomicU32, Ordering, fence};

const VACANT: u32 = 0;
const DOUBTED: u32 = 1;
const TAKEN: u32 = 2;

/// See the module's documentation. Vacant at first.
#[derive(Default)]
pub(super) struct Vacancy(AtomicU32);

impl Vacancy {
    /// A key is about to be inserted. The caller is pinned.
    #[inline]
    pub(super) fn end(&self) {
        if self.0.load(Ordering::Relaxed) != TAKEN {
            self.0.store(TAKEN, Ordering::Release);
        }
    }
}

impl OrderedIndex {
    /// True if no key is left of those whose insertion had ended before the call. What removals were seen by who noted that
    /// is seen by the caller.
    #[inline]
    pub(crate) fn is_vacant(&self) -> bool {
        self.vacancy.0.load(Ordering::Acquire) == VACANT
    }

    /// Notes that the index is vacant, if it is. For a background thread: it waits until everybody who is pinned has gone on. One at a time.
    pub(crate) fn note_vacancy(&self) {
        if self.is_vacant() || self.counters.keys() > 0 {
            return;
        }
        self.vacancy.0.store(DOUBTED, Ordering::SeqCst);
        epoch::quiesce();
        if self.counters.keys() == 0 {
            // The sum may have a key's removal and lack its insertion, if that began behind the doubt: whoever sees the removal sees that the index was taken.
            fence(Ordering::Acquire);
            // It may have been taken meanwhile.
            let _ = self.vacancy.0.compare_exchange(DOUBTED, VACANT, Ordering::SeqCst, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_index_is_vacant_until_a_key_comes_and_once_somebody_has_noted_that_all_have_gone() {
        let index = OrderedIndex::new();
        assert!(index.is_vacant());
        for key in [b"a", b"b"] {
            index.insert(&epoch::pin(), key);
        }
        index.note_vacancy();
        assert!(!index.is_vacant());
        index.remove(&epoch::pin(), b"a");
        index.note_vacancy();
        assert!(!index.is_vacant(), "one is left");
        index.remove_quietly(&epoch::pin(), b"b");
        assert!(!index.is_vacant(), "nobody has noted it");
        index.note_vacancy();
        assert!(index.is_vacant());
        index.insert(&epoch::pin(), b"a");
        assert!(!index.is_vacant());
    }
}
