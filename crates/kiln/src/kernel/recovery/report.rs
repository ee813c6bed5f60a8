//! What opening a database found, for people and programs.

use std::fmt;
use std::time::Duration;

use crate::kernel::clock::Version;

/// What opening a database found.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct RecoveryReport {
    /// Everything committed up to this version is there, and nothing committed after it.
    pub horizon: Version,
    /// The versions, first and last, that are lost if anything was committed into them; `None` after an orderly
    /// close.
    pub lost_versions: Option<(Version, Version)>,
    /// Bytes of an unfinished write that were cut off the end of the log.
    pub cut_bytes: u64,
    /// Records that had been written but whose version never became durable.
    pub lost_records: u64,
    /// Where the checkpoint ends with which recovery began, in bytes from the log's beginning of time; `None` if the whole log was
    /// replayed.
    pub checkpoint: Option<u64>,
    /// What is wrong with the checkpoint, if one should be there and could not be used. Nothing is lost for it: the log
    /// has all that it says.
    pub checkpoint_damage: Option<String>,
    /// Records read.
    pub records: u64,
    /// Extents read.
    pub seals: u64,
    /// Segments read.
    pub segments: u64,
    /// The database had been closed in order, or is new.
    pub clean: bool,
    /// Where in the file `superblock` one of its two slots is damaged. The other one may be the older of the two, so that nothing tells whether the
    /// database had been closed in order. What is written next mends it.
    pub damaged_slot: Option<u64>,
    /// Every session and the last of its serial numbers that survived.
    pub sessions: Vec<(Vec<u8>, u64)>,
    /// How long it took.
    pub duration: Duration,
}

impl fmt::Display for RecoveryReport {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            out,
            "recovered version {} from {} records in {} extents of {} segments in {:.3} s; ",
            self.horizon,
            self.records,
            self.seals,
            self.segments,
            self.duration.as_secs_f64()
        )?;
        match &self.lost_versions {
            None => out.write_str("it had been closed in order, nothing is lost")?,
            Some((first, _)) => {
                match self.damaged_slot {
                    None => out.write_str("it had not been closed in order")?,
                    Some(offset) => write!(
                        out,
                        "whether it had been closed in order cannot be told, since the superblock is damaged at offset {offset}"
                    )?,
                }
                write!(
                    out,
                    ": whatever was committed from version {first} on is lost ({} records never sealed, {} bytes of \
                     an unfinished write cut off)",
                    self.lost_records, self.cut_bytes
                )?;
            }
        }
        if let Some(end) = self.checkpoint {
            write!(out, "\n  from the checkpoint that ends at log address {end:#x} on")?;
        }
        if let Some(damage) = &self.checkpoint_damage {
            write!(out, "\n  the whole log was read, since the checkpoint is damaged: {damage}")?;
        }
        for (id, serial) in &self.sessions {
            write!(out, "\n  session {:?}: durable through serial {serial}", String::from_utf8_lossy(id))?;
        }
        Ok(())
    }
}
