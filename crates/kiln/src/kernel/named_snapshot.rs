//! Snapshots that have a name, and stay when the database is closed, or its machine fails, until they are dropped.
//!
//! A snapshot is a version (see [`snapshot`](super::snapshot)); what it takes to keep one is to hold that version, and to remember it. So a
//! name is a record like any other, of an object of the system's: name → version. It is committed, hardens, is recovered, is moved by
//! compaction and comes into a backup as all records do.
//!
//! ```text
//!   create   hold the version in memory │ say in the superblock that there are names │ commit and harden the name
//!   drop     commit and harden the deletion of the name │ let go of the version
//!   open     recovery finds the names, and they are held before anything can be swept, settled or compacted
//! ```
//!
//! So whenever a crash leaves the name, nothing that it needs has gone: what is held before the name is durable, and until its
//! deletion is, is held at all times at which one might come.
//!
//! **What a held version needs** of the log is what any open snapshot needs, and [`oldest_needed`](Engine::oldest_needed) sees to it:
//! whatever a newer version supersedes stays, and with it the segments from there on; tombstones stay in the indexes; nothing settles
//! that is newer. The rest is up to recovery, which has no use for tombstones otherwise: a key that was deleted since must keep its
//! own, since it leads to the records before. The superblock says beforehand whether there may be names, since the log tells that
//! only behind such deletions.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::engine::Engine;
use super::object::NAME_BYTES_MAX;
use super::snapshot::Held;
use super::transaction::{self, Isolation};
use crate::error::{Error, ErrorKind, Result};
use crate::planted::{Bug, planted};
use crate::storage::log::Purpose;
use crate::storage::superblock::Superblock;

/// The object that holds the names: name → version, and when it was given.
pub(crate) const SNAPSHOTS_OBJECT: u32 = 3;
/// So many may have names at once: every one of them holds memory and log.
const SNAPSHOTS_MAX: usize = 256;

/// A snapshot that has a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NamedSnapshot {
    pub(crate) name: String,
    pub(crate) version: u64,
    /// Microseconds since 1970 when it got its name, as of which rows have expired in it.
    pub(crate) time_us: u64,
}

/// Those there are, by name.
pub(super) type Names = BTreeMap<String, NamedSnapshot>;

/// What a record of [`SNAPSHOTS_OBJECT`] says; `None` for what no Kiln has stored.
pub(crate) fn decode(key: &[u8], value: &[u8]) -> Option<NamedSnapshot> {
    let name = std::str::from_utf8(key).ok().filter(|name| is_name(name))?;
    let (&[version, time_us], []) = value.as_chunks::<8>() else { return None };
    let (version, time_us) = (u64::from_le_bytes(version), u64::from_le_bytes(time_us));
    Some(NamedSnapshot { name: name.to_owned(), version, time_us })
}

/// The value of a snapshot's record.
pub(crate) fn encode(snapshot: &NamedSnapshot) -> Vec<u8> {
    [snapshot.version, snapshot.time_us].map(u64::to_le_bytes).concat()
}

fn is_name(name: &str) -> bool {
    (1..=NAME_BYTES_MAX).contains(&name.len())
}

impl Engine {
    /// Gives a snapshot of everything committed so far a name. It is durable when this returns.
    ///
    /// # Errors
    /// See [`Kiln::create_snapshot`](crate::Kiln::create_snapshot).
    pub(crate) fn create_named_snapshot(self: &Arc<Self>, name: &str) -> Result<NamedSnapshot> {
        if !is_name(name) {
            let bytes = name.len();
            return Err(Error::input(format!(
                "a snapshot's name has 1 to {NAME_BYTES_MAX} bytes; this one has {bytes}"
            )));
        }
        self.seal_far_ahead();
        let _changing = self.snapshots.change_names();
        self.check_writable()?;
        self.check_new_name(name)?;
        let says = |said: &Superblock| said.has_snapshots;
        self.superblock.lock().say_for_good(says, |saying| saying.has_snapshots = true)?;
        let (version, time) = match planted(Bug::NamedBeforeClosed) {
            true => (self.hold_version(self.clock.now()), self.time_of_snapshot()),
            false => self.hold_newest(),
        };
        let now_ms = time.unwrap_or_else(|| self.now_ms());
        // Who reads it sees rows that expire as of this time: it must not be before one at which some of them were found to have, or
        // were deleted, though the clock was set back since; nor after the version was closed, when some may have been renewed.
        let first_us = now_ms.saturating_mul(1000);
        let time_us = self.segments.time_us().clamp(first_us, first_us.saturating_add(999));
        let snapshot = NamedSnapshot { name: name.to_owned(), version, time_us };
        let committed = transaction::run(self, Isolation::Serializable, |tx| {
            tx.put_key(SNAPSHOTS_OBJECT, name.as_bytes(), &encode(&snapshot))
        });
        match committed {
            // If it cannot be made durable nobody knows whether it is, and it stays held.
            Ok(commit) => commit.safe_quietly()?,
            Err(error) => {
                self.release_version(version);
                return Err(error);
            }
        }
        self.snapshots.names.lock().insert(name.to_owned(), snapshot.clone());
        Ok(snapshot)
    }

    fn check_new_name(&self, name: &str) -> Result<()> {
        let names = self.snapshots.names.lock();
        if names.contains_key(name) {
            return Err(Error::input(format!(
                "there is a snapshot {name:?} already; drop it first, or choose another name"
            )));
        }
        if names.len() >= SNAPSHOTS_MAX {
            let what = format!("at most {SNAPSHOTS_MAX} snapshots may have names; drop one first");
            return Err(Error::new(ErrorKind::Limit, what));
        }
        Ok(())
    }

    /// Has a snapshot lose its name, and what it holds be free. That is durable when this returns.
    ///
    /// # Errors
    /// See [`Kiln::drop_snapshot`](crate::Kiln::drop_snapshot).
    pub(crate) fn drop_named_snapshot(self: &Arc<Self>, name: &str) -> Result<()> {
        let _changing = self.snapshots.change_names();
        let version = self.named_version(name)?;
        // Others make no room as long as an older one is there: they would use it up for those that do.
        let is_oldest = version <= self.oldest_needed();
        let commit = transaction::run(self, Isolation::Serializable, |tx| {
            tx.makes_room_as(if is_oldest { Purpose::Sweep } else { Purpose::Deletion })?;
            tx.delete_key(SNAPSHOTS_OBJECT, name.as_bytes())
        })?;
        if planted(Bug::DroppedTooEarly) {
            commit.forget();
        } else {
            // Until then a crash may bring it back.
            commit.safe_quietly()?;
        }
        self.snapshots.names.lock().remove(name);
        self.release_version(version);
        Ok(())
    }

    /// Opens a snapshot at the version that has this name.
    ///
    /// # Errors
    /// `NotFound` if none has.
    pub(crate) fn open_named_snapshot(&self, name: &str) -> Result<(Held, u64)> {
        // Under the lock, so that it is still held.
        let names = self.snapshots.names.lock();
        let snapshot = names.get(name).ok_or_else(|| no_such_name(name))?;
        Ok((self.open_snapshot_of(snapshot.version), snapshot.time_us))
    }

    fn named_version(&self, name: &str) -> Result<u64> {
        let names = self.snapshots.names.lock();
        names.get(name).map(|snapshot| snapshot.version).ok_or_else(|| no_such_name(name))
    }

    /// Those that have a name, in the order of their names.
    pub(crate) fn named_snapshots(&self) -> Vec<NamedSnapshot> {
        self.snapshots.names.lock().values().cloned().collect()
    }
}

fn no_such_name(name: &str) -> Error {
    Error::new(ErrorKind::NotFound, format!("there is no snapshot {name:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Options;
    use crate::device::SimulatedDevice;

    #[test]
    fn c9_a_record_says_a_version_and_a_time_or_is_refused() {
        let snapshot = NamedSnapshot { name: "monday".to_owned(), version: 7, time_us: 9 };
        let value = encode(&snapshot);
        assert_eq!(decode(b"monday", &value), Some(snapshot));
        for (name, value) in [
            (&b""[..], &value[..]),
            (&b"\xFF"[..], &value[..]),
            (&[b'a'; NAME_BYTES_MAX + 1][..], &value[..]),
            (&b"monday"[..], &value[..15]),
            (&b"monday"[..], &[0; 24][..]),
            (&b"monday"[..], &[][..]),
        ] {
            assert_eq!(decode(name, value), None, "{name:?} {value:?}");
        }
    }

    /// What it would have shown was kept as long as the database was open: nothing was forgotten any more, and no segment dropped.
    #[test]
    fn c5_a_snapshot_that_could_not_get_its_name_holds_nothing() {
        let disk = SimulatedDevice::new(1);
        let options = Options::new().background(false).segment_bytes(64 << 10).memory(0);
        let db = options.open_on(Arc::new(disk.clone())).unwrap();
        let map = db.map("map").unwrap();
        db.create_snapshot("first").unwrap();
        disk.set_capacity(Some(disk.used_bytes()));
        let mut keys = 0_u32..;
        while let Some(key) = keys.next()
            && db.put(&map, key.to_be_bytes(), "").map(|commit| commit.forget()).is_ok()
        {}
        let error = db.create_snapshot(&"a".repeat(NAME_BYTES_MAX)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NoSpace, "{error}");
        let statistics = db.statistics();
        assert_eq!((statistics.snapshots, statistics.named_snapshots), (0, 1));
    }
}
