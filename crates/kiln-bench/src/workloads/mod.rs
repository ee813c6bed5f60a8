//! What a cell does: one operation, repeated on drawn keys, with its result checked.

mod beside_scan;
pub(crate) mod data;
mod loops;
pub(crate) mod spec;
#[cfg(test)]
mod tests;
pub(crate) mod tpcc;
mod written;

pub(crate) use self::beside_scan::{Alone, run_beside_scan};
pub(crate) use self::data::Data;
pub(crate) use self::loops::{Span, run, run_in_both_ways};

/// One operation, repeated. One that is about some keys counts as one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operation {
    /// Reads one key, or writes one.
    GetOrPut {
        /// How many of a hundred operations read.
        reads: u32,
    },
    /// Writes one key and waits until it is durable.
    PutDurably,
    /// Reads one key, or counts one up.
    GetOrAdd {
        /// How many of a hundred operations read.
        reads: u32,
    },
    /// Reads some keys together.
    GetMany(usize),
    /// Writes some keys together, in a transaction where the engine has them.
    PutMany(usize),
    /// One of both.
    GetOrPutMany {
        /// How many of a hundred operations read.
        reads: u32,
        /// Keys of an operation.
        count: usize,
    },
    /// Reads some keys, counts each one up, and writes them, in one transaction.
    ModifyMany(usize),
    /// Moves an amount from one key's counter to another's, in one transaction.
    Transfer,
    /// Reads or overwrites each of some keys, in one transaction.
    GetOrPutEach {
        /// How many of a hundred keys are read.
        reads: u32,
        /// Keys of a transaction.
        count: usize,
    },
    /// Reads one key, or writes one in a session, whose client keeps what is not durable in a buffer and waits while that is full.
    GetOrPutBuffered {
        /// How many of a hundred operations read.
        reads: u32,
        /// How many writes the buffer has room for.
        room: usize,
    },
    /// Reads one key, or writes one that was not there before.
    GetOrInsert {
        /// How many of a hundred operations read.
        reads: u32,
    },
    /// Reads up to so many rows from a key on, or writes a key that was not there before.
    ScanOrInsert {
        /// How many of a hundred operations scan.
        scans: u32,
        /// The most rows of a scan; each number from one on is equally likely.
        rows: u64,
    },
    /// Writes keys that were not there before in their order, behind all others.
    FillInOrder,
    /// Reads all rows in their order, again and again. A row is an operation.
    ReadInOrder,
}

impl Operation {
    /// How many of a hundred write a key that was not there before.
    pub(crate) fn inserts(self) -> u32 {
        match self {
            Operation::GetOrInsert { reads } => 100 - reads,
            Operation::ScanOrInsert { scans, .. } => 100 - scans,
            Operation::FillInOrder => 100,
            _ => 0,
        }
    }

    /// How many different keys it is about.
    pub(crate) fn keys(self) -> usize {
        match self {
            Operation::GetMany(count) | Operation::PutMany(count) | Operation::ModifyMany(count) => count,
            Operation::GetOrPutMany { count, .. } | Operation::GetOrPutEach { count, .. } => count,
            Operation::Transfer => 2,
            _ => 1,
        }
    }

    /// Whether it writes.
    pub(crate) fn writes(self) -> bool {
        !matches!(
            self,
            Operation::GetOrPut { reads: 100 }
                | Operation::GetOrAdd { reads: 100 }
                | Operation::GetOrInsert { reads: 100 }
                | Operation::ScanOrInsert { scans: 100, .. }
                | Operation::GetOrPutEach { reads: 100, .. }
                | Operation::GetMany(_)
                | Operation::ReadInOrder
        )
    }
}
