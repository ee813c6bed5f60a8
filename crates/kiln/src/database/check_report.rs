//! What a check tells.

use std::fmt;

/// What a check found.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct CheckReport {
    /// Segments of the log.
    pub segments: u64,
    /// Extents, each with its seal.
    pub extents: u64,
    /// Records: puts and tombstones.
    pub records: u64,
    /// Tombstones among them.
    pub tombstones: u64,
    /// Records whose version was never sealed, or was lost in a crash.
    pub lost_records: u64,
    /// Bytes of padding between records.
    pub padding_bytes: u64,
    /// Bytes of an unfinished write at the end of the log.
    pub cut_bytes: u64,
    /// Keys that have a value.
    pub keys: u64,
    /// The last durable version.
    pub horizon: u64,
    /// What does not hold. Empty for a sound database.
    pub problems: Vec<String>,
    /// How many of these are of what opening the database does without, and what is written next mends: a checkpoint that cannot be read, or one of two slots that say the same.
    pub mendable_problems: usize,
    /// The file of the checkpoint, if it says something else than the log: opening believes it, and what is written next may make it true. Once the file is removed, while the database is closed, the log
    /// is read whole instead, which may have everything: check it again then.
    pub wrong_checkpoint: Option<String>,
}

impl CheckReport {
    /// True if nothing is wrong.
    pub fn is_clean(&self) -> bool {
        self.problems.is_empty()
    }

    /// True if there are problems, and nothing is lost by any of them: opening does without what is damaged, and [`Kiln::compact`](crate::Kiln::compact) writes it
    /// anew.
    pub fn is_mendable(&self) -> bool {
        !self.is_clean() && self.mendable_problems == self.problems.len()
    }
}

impl fmt::Display for CheckReport {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            out,
            "{} segments, {} extents, {} records ({} tombstones, {} never sealed), {} keys, {} bytes of padding, \
             horizon {}, {} bytes of an unfinished write at the end",
            self.segments,
            self.extents,
            self.records,
            self.tombstones,
            self.lost_records,
            self.keys,
            self.padding_bytes,
            self.horizon,
            self.cut_bytes
        )?;
        self.problems.iter().try_for_each(|problem| writeln!(out, "PROBLEM: {problem}"))?;
        match self.problems.len() {
            0 => write!(out, "sound: every checksum and every link holds"),
            1 => write!(out, "1 problem"),
            count => write!(out, "{count} problems"),
        }
    }
}
