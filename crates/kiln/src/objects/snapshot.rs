//! Read-only snapshots.

use std::sync::Arc;

use super::{Map, MapIter, Table, catalog};
use crate::error::Result;
use crate::kernel::catalog::check_seen;
use crate::kernel::clock::Version;
use crate::kernel::engine::Engine;
use crate::kernel::expiry::{Expiry, Moment};
use crate::kernel::handle::Object;
use crate::kernel::map_walk::{MapWalk, Sight};
use crate::kernel::object::ObjectKind;
use crate::kernel::snapshot::Held;
use crate::storage::record::Address;

/// The database as it was at one version. Reading it never waits for a writer, never fails for one, and never
/// holds one up. While it is open, what it may read stays in the log.
pub struct Snapshot<'db> {
    engine: &'db Arc<Engine>,
    held: Held,
    /// As of which rows have expired, or not.
    moment: Moment,
    /// Before this place in the log lies all that it sees; of one that has a name, and is opened late, much else, too.
    log_end: Address,
    /// Before this one there is nothing of a newer version.
    closed_end: Address,
}

impl std::fmt::Debug for Snapshot<'_> {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Snapshot").field("version", &self.held.version).finish_non_exhaustive()
    }
}

impl<'db> Snapshot<'db> {
    pub(crate) fn new(engine: &'db Arc<Engine>, held: Held, moment: Moment) -> Snapshot<'db> {
        // Its version is closed.
        Snapshot { engine, held, moment, log_end: engine.log.records_end(), closed_end: 0 }
    }

    /// Of everything committed so far.
    pub(crate) fn of_now(engine: &'db Arc<Engine>) -> Snapshot<'db> {
        // Read first: what has hardened by then was committed by then.
        let closed_end = engine.log.hardened();
        let (held, moment) = engine.open_snapshot();
        let mut snapshot = Snapshot::new(engine, held, moment);
        snapshot.closed_end = closed_end;
        snapshot
    }

    pub(crate) fn log_end(&self) -> Address {
        self.log_end
    }

    /// The version as of which it reads: all commits up to it, and none after.
    pub fn version(&self) -> Version {
        Version::new(self.held.version)
    }

    /// The value of a key, or `None` if there is none.
    ///
    /// # Errors
    /// `Corrupted` or `Io` if the record is on disk and cannot be read.
    pub fn get<O: Object>(&self, object: &O, key: impl AsRef<[u8]>) -> Result<Option<Vec<u8>>> {
        let mut value = Vec::new();
        Ok(self.get_into(object, key, &mut value)?.then_some(value))
    }

    /// Reads a key's value into a buffer, which is cleared first; false if there is none.
    ///
    /// # Errors
    /// As [`Self::get`].
    pub fn get_into<O: Object>(
        &self,
        object: &O,
        key: impl AsRef<[u8]>,
        value: &mut Vec<u8>,
    ) -> Result<bool> {
        self.read(self.check(object)?, key.as_ref(), value)
    }

    /// The number of an object, if it is this database's, and was there as of the snapshot.
    pub(crate) fn check<O: Object>(&self, object: &O) -> Result<u32> {
        let handle = object.handle();
        let id = self.engine.check_key(handle, &[])?;
        check_seen(self.engine, id, &handle.life, self.held.version)?;
        Ok(id)
    }

    /// The map that had this name as of the snapshot, be it dropped since: it can be read as of this and other snapshots from before.
    ///
    /// ```
    /// # let directory = tempfile::tempdir()?;
    /// # let db = kiln::Kiln::open(directory.path())?;
    /// let ages = db.map("ages")?;
    /// db.put(&ages, "ann", [41])?.safe()?;
    /// let snapshot = db.snapshot()?;
    /// db.drop_map("ages")?.safe()?;
    /// assert_eq!(snapshot.get(&snapshot.map("ages")?, "ann")?, Some(vec![41]));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// `NotFound` if there was none, `Input` if it was a table; `Corrupted` or `Io` if the catalog cannot be read as of then.
    pub fn map(&self, name: &str) -> Result<Map> {
        let handle = catalog::object_as_of(self.engine, name, ObjectKind::Map, self.held.version)?;
        Ok(Map::new(handle))
    }

    /// The table that had this name as of the snapshot, as [`Self::map`].
    ///
    /// # Errors
    /// As [`Self::map`].
    pub fn table(&self, name: &str) -> Result<Table> {
        let handle = catalog::object_as_of(self.engine, name, ObjectKind::Table, self.held.version)?;
        Ok(Table::new(handle))
    }

    /// True if the key has a value.
    ///
    /// # Errors
    /// As [`Self::get`].
    pub fn contains<O: Object>(&self, object: &O, key: impl AsRef<[u8]>) -> Result<bool> {
        self.get_into(object, key, &mut Vec::new())
    }

    /// All keys and values of a map, in no order; of another database's nothing but an `Input` error. What is on disk alone is read in the order of the log, from one end to the other. A record that cannot be
    /// read is an error, `Corrupted` or `Io`, and the others follow: that it is this map's need not be known.
    pub fn iter(&self, map: &Map) -> MapIter<'_> {
        // An object of this database may well have the same number.
        let walk = self.check(map).map(|object| {
            let sight = Sight {
                object,
                version: self.held.version,
                moment: &self.moment,
                closed_end: self.closed_end,
            };
            MapWalk::new(self.engine, sight)
        });
        MapIter::new(walk)
    }

    /// When a row expires; `None` if there is none.
    ///
    /// # Errors
    /// As [`Self::get`].
    pub fn expiry<O: Object>(&self, object: &O, key: impl AsRef<[u8]>) -> Result<Option<Expiry>> {
        let (id, key) = (self.check(object)?, key.as_ref());
        let hash = self.engine.hash(id, key);
        let reading =
            self.engine.read_as_of(id, key, hash, self.held.version, &self.moment, &mut Vec::new())?;
        Ok(reading.found.then(|| Expiry::of_stored(reading.expires_at)))
    }

    /// A row that expires then is absent for it.
    #[inline]
    pub(crate) fn has_expired(&self, expires_at: u64) -> bool {
        self.moment.is_past(expires_at, self.engine)
    }

    pub(crate) fn read(&self, object: u32, key: &[u8], value: &mut Vec<u8>) -> Result<bool> {
        self.read_hashed(object, self.engine.hash(object, key), key, value)
    }

    /// As [`Self::read`], for who knows the key's hash.
    pub(crate) fn read_hashed(
        &self,
        object: u32,
        hash: u64,
        key: &[u8],
        value: &mut Vec<u8>,
    ) -> Result<bool> {
        let found = self.engine.read_as_of(object, key, hash, self.held.version, &self.moment, value)?.found;
        if !found {
            value.clear();
        }
        Ok(found)
    }
}

impl Drop for Snapshot<'_> {
    fn drop(&mut self) {
        self.engine.release_snapshot(&self.held);
    }
}
