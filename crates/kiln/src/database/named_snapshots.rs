//! Snapshots that have a name: made, listed, opened, dropped.

use std::time::{Duration, SystemTime};

use super::Kiln;
use crate::error::Result;
use crate::kernel::clock::Version;
use crate::kernel::expiry::Moment;
use crate::objects::Snapshot;

/// A snapshot that has a name, in a list.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SnapshotInfo {
    /// Its name.
    pub name: String,
    /// It shows all commits up to this version, and none after.
    pub version: Version,
    /// When it was made, by the machine's clock.
    pub created: SystemTime,
    /// About how many bytes of the log cannot be freed as long as it is there: all that is dead from the first segment on in which something
    /// was overwritten or deleted since. Others may hold the same bytes.
    pub held_bytes: u64,
}

impl Kiln {
    /// Makes a snapshot of everything committed so far that has a name, and stays, also when the database is closed or its machine fails,
    /// until it is [dropped](Self::drop_snapshot). It is durable when this returns, and with it everything that it shows.
    ///
    /// What it may show stays in the log, however often it is overwritten or deleted, and all of the log behind that; and rows that are
    /// written since do not [settle](Self::settle). So a snapshot costs as much space as is written while it is there, and memory for the
    /// index of as many keys; and to read a key there takes a look at each of its records since.
    ///
    /// ```
    /// # let directory = tempfile::tempdir()?;
    /// # let path = directory.path().join("ads.kiln");
    /// use kiln::Kiln;
    ///
    /// let db = Kiln::open(&path)?;
    /// let prices = db.table("prices")?;
    /// db.put(&prices, "clay", "7")?.fast();
    /// db.create_snapshot("monday")?;
    /// db.put(&prices, "clay", "8")?.fast();
    /// db.close()?;
    /// # drop((db, prices));
    ///
    /// let db = Kiln::open(&path)?;
    /// let prices = db.table("prices")?;
    /// let monday = db.open_snapshot("monday")?;
    /// assert_eq!(monday.get(&prices, "clay")?.as_deref(), Some(&b"7"[..]));
    /// assert_eq!(db.get(&prices, "clay")?.as_deref(), Some(&b"8"[..]));
    /// drop(monday);
    /// db.drop_snapshot("monday")?;
    /// assert!(db.snapshots().is_empty());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// `Input` if the name does not have 1 to 255 bytes, or another snapshot has it; `Limit` if 256 have names; `NoSpace` or `Io` if the disk
    /// is full or fails before it is committed, and there is no such snapshot then; `Lost` if it cannot be made durable; `Aborted` if the
    /// database is closed.
    pub fn create_snapshot(&self, name: &str) -> Result<SnapshotInfo> {
        let snapshot = self.engine().telling(|| self.engine().create_named_snapshot(name))?;
        Ok(self.info(snapshot.name, snapshot.version, snapshot.time_us))
    }

    /// The snapshots that have a name, in the order of their names.
    pub fn snapshots(&self) -> Vec<SnapshotInfo> {
        let named = self.engine().named_snapshots().into_iter();
        named.map(|snapshot| self.info(snapshot.name, snapshot.version, snapshot.time_us)).collect()
    }

    fn info(&self, name: String, version: u64, time_us: u64) -> SnapshotInfo {
        let created = SystemTime::UNIX_EPOCH.checked_add(Duration::from_micros(time_us));
        SnapshotInfo {
            name,
            version: Version::new(version),
            created: created.unwrap_or(SystemTime::UNIX_EPOCH),
            held_bytes: self.engine().liveness.lock().dead_bytes_after(version),
        }
    }

    /// Opens the snapshot that has this name, to be read like any other: the database as it was when the name was given.
    ///
    /// # Errors
    /// `NotFound` if there is none.
    pub fn open_snapshot(&self, name: &str) -> Result<Snapshot<'_>> {
        let (held, time_us) = self.engine().open_named_snapshot(name)?;
        Ok(Snapshot::new(self.engine(), held, Moment::at(Some(time_us / 1000))))
    }

    /// Drops the snapshot that has this name: what only it holds is freed from now on. That it is gone is durable when this returns. Who has it
    /// open may read on.
    ///
    /// # Errors
    /// `NotFound` if there is none; `NoSpace` or `Io` if the disk is full or fails, `Lost` if it cannot be made durable, `Aborted` if the
    /// database is closed: it is still there then. On a full disk there is more space for the drop of the oldest one, as nothing that a newer one
    /// holds is freed before.
    pub fn drop_snapshot(&self, name: &str) -> Result<()> {
        self.engine().telling(|| self.engine().drop_named_snapshot(name))
    }
}
