//! What opening a database found, for people and programs.

use std::fmt;
use std::time::Duration;

use crate::kernel::clock::Version;

/// How many sessions are told one by one: clients make as many as they like.
const SESSIONS_TOLD_MAX: usize = 10;

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
    /// The checkpoint could not be used since it has a format that this Kiln does not know: an older or a newer one has written it. Nothing is damaged, or lost for it.
    pub checkpoint_is_foreign: bool,
    /// Records read.
    pub records: u64,
    /// Extents read.
    pub seals: u64,
    /// Segments read.
    pub segments: u64,
    /// The database had been closed in order, or is new.
    pub clean: bool,
    /// It is a backup that is opened for the first time, or was restored from such a one: `lost_versions` are those that it does not have, of commits since it was begun. Not where a slot of the superblock is damaged:
    /// that may be the one of an opening since.
    pub is_backup: bool,
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
            Some((first, _)) if self.is_backup && self.cut_bytes == 0 => write!(
                out,
                "it is a backup that is opened for the first time: whatever was committed from version {first} on is not in it"
            )?,
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
        if self.checkpoint_is_foreign {
            out.write_str("\n  the whole log was read, since the checkpoint is of another Kiln's format")?;
        }
        for (id, serial) in self.sessions.iter().take(SESSIONS_TOLD_MAX) {
            write!(out, "\n  session {:?}: durable through serial {serial}", String::from_utf8_lossy(id))?;
        }
        match self.sessions.len().saturating_sub(SESSIONS_TOLD_MAX) {
            0 => Ok(()),
            1 => out.write_str("\n  and 1 more session"),
            more => write!(out, "\n  and {more} more sessions"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each had a line of its own: after a client had made 100,000 of them, every start said 95 MB.
    #[test]
    fn sessions_are_told_one_by_one_only_if_they_are_few() {
        let told = |count: u64| {
            let sessions = (0..count).map(|number| (format!("s{number}").into_bytes(), number)).collect();
            RecoveryReport { sessions, ..RecoveryReport::default() }.to_string()
        };
        for (count, last) in [
            (10, "  session \"s9\": durable through serial 9"),
            (11, "  and 1 more session"),
            (100_000, "  and 99990 more sessions"),
        ] {
            let text = told(count);
            assert_eq!(text.lines().last(), Some(last));
            assert_eq!(text.matches("durable through serial").count(), 10, "{text}");
        }
    }
}
