//! How commits have written their records.

use crate::storage::counts::Counts;

/// How a record came to be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Written {
    /// Into the key's record, where that was.
    InPlace,
    /// Anew, since the key's record could not be written in place.
    Copied,
    /// Anew, since the key had none.
    Inserted,
    /// Anew, as it was, by compaction or so that it stays in memory.
    Moved,
}

const KINDS: usize = 4;

/// See the module's documentation.
pub(crate) struct WriteCounts(Counts<KINDS>);

impl WriteCounts {
    pub(crate) fn new() -> WriteCounts {
        WriteCounts(Counts::new())
    }

    /// Counts one. The caller is pinned.
    #[inline]
    pub(crate) fn note(&self, how: Written) {
        self.0.note(how as usize);
    }

    /// How many there were since the database was opened; exact while nobody writes.
    pub(crate) fn sums(&self) -> WriteSums {
        WriteSums(self.0.sums())
    }
}

/// How many records were written, and how.
pub(crate) struct WriteSums([u64; KINDS]);

impl WriteSums {
    pub(crate) fn of(&self, how: Written) -> u64 {
        self.0[how as usize]
    }

    /// Those that take log of their own.
    pub(crate) fn appended(&self) -> u64 {
        [Written::Copied, Written::Inserted, Written::Moved].map(|how| self.of(how)).iter().sum()
    }
}
