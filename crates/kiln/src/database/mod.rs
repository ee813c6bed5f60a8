//! The database: the handle that a program holds.

mod backup;
#[cfg(test)]
mod backup_tests;
mod batch;
mod bulk_load;
mod check;
mod check_checkpoint;
mod check_report;
#[cfg(test)]
mod check_tests;
mod compact;
mod dump;
mod expiry;
#[cfg(test)]
mod expiry_tests;
#[cfg(test)]
mod forged_tests;
mod named_snapshots;
mod open;
mod restore;
mod sessions;
mod single;
mod statistics;
mod stream;
mod transactions;
#[cfg(test)]
mod used_up_tests;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

pub use backup::{Backup, BackupProgress};
pub use bulk_load::{BulkLoad, BulkLoadProgress};
pub use check::{CheckReport, check, check_on};
pub use compact::{CompactProgress, Compacted};
pub use dump::dump_log;
pub use named_snapshots::SnapshotInfo;
pub use sessions::{SessionInfo, SessionList};
pub use statistics::{Pressure, Statistics};
#[cfg(test)]
pub(crate) use stream::OFFSETS as STREAM_OFFSETS;

use crate::device::Device;
use crate::error::{Error, Result};
use crate::kernel::catalog::FIRST_OBJECT;
use crate::kernel::checkpoint::Haste;
use crate::kernel::clock::Version;
use crate::kernel::engine::Engine;
use crate::kernel::expiry::default_expiry;
use crate::kernel::handle::{self, HasHandle, Object};
use crate::kernel::hardening::background::Background;
use crate::kernel::hardening::horizon::Lost;
use crate::kernel::object::ObjectKind;
use crate::kernel::read::keys;
use crate::kernel::receipt::{Commit, Level, Receipt};
use crate::kernel::recovery::RecoveryReport;
use crate::kernel::transaction::Watch;
use crate::objects::{self, Map, Snapshot, Table};
use crate::options::Options;
use crate::planted::{Bug, planted};
use crate::storage::hash_index::IndexChains;
use crate::sync::atomic::Ordering;

/// Pieces of what an opening has left in memory for which notes are made with each [`Kiln::persist`], if there is no keeper.
const NOTES_MADE: usize = 16;

/// An object of a database, in a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectInfo {
    /// Its name.
    pub name: String,
    /// Its kind.
    pub kind: ObjectKind,
    /// Number of keys that have a value, be it expired and yet to be deleted; of a table of which something has settled, keys that were written since may count twice.
    pub keys: u64,
    /// How long rows stay that are put without an expiry; `None`: until they are deleted. See [`Kiln::map_with_time_to_live`].
    pub time_to_live: Option<Duration>,
}

/// An open database. Clones are the same database; when the last is dropped it is closed in order. Nothing else keeps it open: with what is left of it then, a [`Session`](crate::Session), [`Map`] or
/// [`Table`], nothing can be committed (`Aborted`). But these, and a [`Receipt`] or [`PendingRead`](crate::PendingRead), keep its memory, of the size that [`Options::memory`] says, until they are dropped, too.
///
/// It belongs to the process that has opened it. A child that is forked off has no use for it: to drop or close it there does nothing, and nothing hardens there, so that receipts
/// end *lost*. It must not write there; it may read, if no thread was using the database at the fork, none of its own [background threads](Options::background) included: what such a
/// thread held stays held there, and a read that needs it waits without end. Nothing tells when they are at rest, so who wants to be sure opens the database without them.
///
/// ```
/// # let directory = tempfile::tempdir()?;
/// # let path = directory.path().join("ads.kiln");
/// use kiln::{Kiln, Level};
///
/// let db = Kiln::open(path)?;
/// let auctions = db.table("auctions")?;
///
/// // Fast: returns at the commit point; the receipt tells when it is durable.
/// let (_, receipt) = db.transact(|tx| tx.put(&auctions, "a17", "open"))?.fast();
/// receipt.wait(Level::LOCAL)?;
///
/// // Safe: returns at the durability point.
/// db.transact(|tx| tx.put(&auctions, "a17", "closed"))?.safe()?;
///
/// // The last durable state, without waiting.
/// let state = db.read_durable(|snapshot| snapshot.get(&auctions, "a17"))?;
/// assert_eq!(state.as_deref(), Some(&b"closed"[..]));
/// # db.close()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Kiln {
    inner: Arc<Inner>,
}

struct Inner {
    engine: Arc<Engine>,
    report: RecoveryReport,
    background: crate::sync::Mutex<Option<Background>>,
}

impl std::fmt::Debug for Inner {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.engine.fmt(out)
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // Nobody is left to tell of an error; what was acknowledged as durable is durable already.
        let _ = self.close();
    }
}

impl Inner {
    fn close(&self) -> Result<()> {
        self.engine.check_process()?;
        // First of all: what is committed once the hardener has ended would not become durable before all others have, who may be long about it.
        self.engine.closed.store(true, Ordering::SeqCst);
        // Not under the lock: they may be calling somebody back who closes, too.
        let background = self.background.lock().take();
        drop(background);
        self.engine.close_reader();
        open::close(&self.engine)
    }
}

impl Kiln {
    /// Opens, or creates, the database in a directory, with the default options.
    ///
    /// # Errors
    /// As [`Options::open`].
    pub fn open(path: impl AsRef<Path>) -> Result<Kiln> {
        Options::new().open(path)
    }

    pub(crate) fn open_with(options: &Options, device: Arc<dyn Device>) -> Result<Kiln> {
        let (engine, report) = open::open(options, device)?;
        let background = match options.background.then(|| Background::start(&engine)).transpose() {
            // Of what a crash has taken nobody has been told yet: it is left as after one, and the next opening tells it.
            Err(error) if !report.clean => return Err(error),
            background => background,
        };
        let inner = Inner { engine, report, background: crate::sync::Mutex::new(None) };
        // Without its threads it is closed again, in order.
        *inner.background.lock() = background?;
        Ok(Kiln { inner: Arc::new(inner) })
    }

    #[inline]
    pub(crate) fn engine(&self) -> &Arc<Engine> {
        &self.inner.engine
    }

    /// Makes everything durable and closes the database, for all clones. Commits through what is still held fail. Reads go on as long as nobody else opens the
    /// database, who may use the files again: then what is no longer there to be read is `Aborted`.
    ///
    /// # Errors
    /// `Lost` if the last commits could not be made durable; `Io` or `NoSpace` if they are, but the superblock cannot be written, or the names of the files may not be durable: then opening
    /// it again is as after a crash. In a forked child it does nothing, and is `Lost`.
    pub fn close(&self) -> Result<()> {
        self.inner.close()
    }

    /// Opens the map with this name, making it if there is none.
    ///
    /// # Errors
    /// `Input` if the name is a table's, or not between 1 and 255 bytes. To make it is a commit, and fails as [`Self::transact`] does; `Limit` if as many objects as there can be were made.
    pub fn map(&self, name: &str) -> Result<Map> {
        Ok(Map::new(objects::open_object(self.engine(), name, ObjectKind::Map, None)?))
    }

    /// Opens the table with this name, making it if there is none.
    ///
    /// # Errors
    /// `Input` if the name is a map's, or not between 1 and 255 bytes; else as [`Self::map`].
    pub fn table(&self, name: &str) -> Result<Table> {
        Ok(Table::new(objects::open_object(self.engine(), name, ObjectKind::Table, None)?))
    }

    /// Drops the map with this name, with all that is in it: one transaction, which is lost, durable and ordered among others like any other. From then on the map
    /// is there for nobody: handles of it, and transactions that have used it, fail with `NotFound` or `Conflict`. Another one may have
    /// its name, of either kind. Open snapshots and named ones from before still have it; see [`Snapshot::map`].
    ///
    /// Its rows go in the background, once that is durable and no snapshot needs them, or with [`Self::persist`] where there are no background threads. That takes no
    /// log space, so a full disk has room again for it.
    ///
    /// ```
    /// # let directory = tempfile::tempdir()?;
    /// # let db = kiln::Kiln::open(directory.path())?;
    /// let ages = db.map("ages")?;
    /// db.put(&ages, "ann", [41])?.safe()?;
    /// db.drop_map("ages")?.safe()?;
    /// assert_eq!(db.get(&ages, "ann").unwrap_err().kind(), kiln::ErrorKind::NotFound);
    /// assert_eq!(db.get(&db.map("ages")?, "ann")?, None);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// `NotFound` if there is no object with this name, `Input` if it is a table; `Io` if the superblock cannot be written; otherwise as [`Self::transact`].
    pub fn drop_map(&self, name: &str) -> Result<Commit<'_, ()>> {
        objects::drop_object(self.engine(), name, ObjectKind::Map)
    }

    /// Drops the table with this name, as [`Self::drop_map`] does a map.
    ///
    /// # Errors
    /// As [`Self::drop_map`]; `Input` if it is a map.
    pub fn drop_table(&self, name: &str) -> Result<Commit<'_, ()>> {
        objects::drop_object(self.engine(), name, ObjectKind::Table)
    }

    /// The objects of the database, in the order in which they were made.
    pub fn objects(&self) -> Vec<ObjectInfo> {
        let users = self.engine().objects.iter().filter(|object| object.id >= FIRST_OBJECT);
        let users = users.filter(|object| !object.is_dropped());
        users
            .map(|object| ObjectInfo {
                name: object.name().to_owned(),
                kind: object.kind(),
                keys: self.engine().estimate_rows(object),
                time_to_live: handle::time_to_live(object.time_to_live_ms.load(Ordering::Relaxed)),
            })
            .collect()
    }

    /// Remembers a key's state, for [`Transaction::require`](crate::Transaction::require). That the database deletes a row that has expired, or forgets a deletion that is durable, is a change, too.
    ///
    /// # Errors
    /// `Conflict` if somebody is writing the key for too long, `Input` if the key is too long or the object another database's, `NotFound` if it was dropped.
    pub fn watch<O: Object>(&self, object: &O, key: impl AsRef<[u8]>) -> Result<Watch> {
        let engine = self.engine();
        let id = engine.check_key(object.handle(), key.as_ref())?;
        let hash = engine.hash(id, key.as_ref());
        let (bucket, stamp) = engine.index.stamp(hash).ok_or_else(Error::conflict)?;
        object.handle().life.check()?;
        Ok(Watch { index: engine.index.number(), object: id, bucket, stamp })
    }

    /// The newest value of a key, durable or not.
    ///
    /// # Errors
    /// As [`Transaction::get`](crate::Transaction::get), but for `Conflict`.
    pub fn get<O: Object>(&self, object: &O, key: impl AsRef<[u8]>) -> Result<Option<Vec<u8>>> {
        let mut value = Vec::new();
        Ok(self.get_into(object, key, &mut value)?.then_some(value))
    }

    /// Reads the newest value of a key into a buffer, which is cleared first; false if there is none.
    ///
    /// # Errors
    /// As [`Self::get`].
    pub fn get_into<O: Object>(
        &self,
        object: &O,
        key: impl AsRef<[u8]>,
        value: &mut Vec<u8>,
    ) -> Result<bool> {
        self.engine().get_into(object, key.as_ref(), value)
    }

    /// Sets the value of a key, in a transaction of its own.
    ///
    /// # Errors
    /// As [`Transaction::put`](crate::Transaction::put) and [`Self::transact`].
    pub fn put<O: Object>(
        &self,
        object: &O,
        key: impl AsRef<[u8]>,
        value: impl AsRef<[u8]>,
    ) -> Result<Commit<'_, ()>> {
        let (engine, value) = (self.engine(), value.as_ref());
        let key = engine.single_key(object, key.as_ref())?;
        let expires_at = default_expiry(object.handle().time_to_live_ms, || engine.now_ms());
        engine.check_expiring(value, expires_at)?;
        Ok(Commit::new(engine, engine.put_single(key, value, expires_at)?, ()))
    }

    /// Deletes a key, in a transaction of its own; true if it had a value.
    ///
    /// # Errors
    /// As [`Transaction::delete`](crate::Transaction::delete) and [`Self::transact`].
    pub fn delete<O: Object>(&self, object: &O, key: impl AsRef<[u8]>) -> Result<Commit<'_, bool>> {
        let engine = self.engine();
        let (version, existed) = engine.delete_single(engine.single_key(object, key.as_ref())?)?;
        Ok(Commit::new(engine, version, existed))
    }

    /// Everything committed so far, to be read at leisure. Never blocks a writer nor is blocked or aborted by one.
    ///
    /// # Errors
    /// None today; fallible so that later kinds of snapshot may be.
    pub fn snapshot(&self) -> Result<Snapshot<'_>> {
        Ok(Snapshot::of_now(self.engine()))
    }

    /// The last durable state, at once: what a power loss now would leave.
    ///
    /// # Errors
    /// As [`Self::snapshot`].
    pub fn durable_snapshot(&self) -> Result<Snapshot<'_>> {
        let (version, moment) = self.engine().open_durable_snapshot();
        Ok(Snapshot::new(self.engine(), version, moment))
    }

    /// Reads the last durable state, without waiting (a *durable* read).
    ///
    /// # Errors
    /// The closure's own.
    pub fn read_durable<T>(&self, body: impl FnOnce(&Snapshot<'_>) -> Result<T>) -> Result<T> {
        body(&self.durable_snapshot()?)
    }

    /// About `count` keys and values of a map, from a cursor on, and the cursor to go on with; 0 begins, and 0
    /// back means the end. A key that is there throughout is met exactly once; each pair is read by itself.
    ///
    /// # Errors
    /// As [`Self::get`].
    #[allow(clippy::type_complexity)]
    pub fn scan_map(&self, map: &Map, cursor: u64, count: usize) -> Result<(u64, Vec<(Vec<u8>, Vec<u8>)>)> {
        let mut rows = Vec::new();
        let mut cursor = cursor;
        loop {
            let (next, keys) = self.scan_map_keys(map, cursor, count)?;
            for key in keys {
                if let Some(value) = self.get(map, &key)? {
                    rows.push((key, value));
                }
            }
            if next == 0 || rows.len() >= count {
                return Ok((next, rows));
            }
            cursor = next;
        }
    }

    /// As [`Self::scan_map`], the keys alone. Of an index that holds few keys of the map among many others it looks at so many places and no more,
    /// and may then come back with fewer, or none: only a cursor of 0 is the end.
    ///
    /// # Errors
    /// As [`Self::get`].
    pub fn scan_map_keys(&self, map: &Map, cursor: u64, count: usize) -> Result<(u64, Vec<Vec<u8>>)> {
        /// What takes no longer than a millisecond, or about as long as the keys do.
        const PLACES_MIN: usize = 1 << 14;
        const PLACES_PER_KEY: usize = 16;
        // Also where no key is met that would be refused.
        let object = self.engine().check_key(map.handle(), &[])?;
        let life = &map.handle().life;
        life.check()?;
        let mut found = Vec::new();
        let mut cursor = cursor;
        let places_max = match planted(Bug::ScanWalksOn) {
            true => usize::MAX,
            false => count.saturating_mul(PLACES_PER_KEY).max(PLACES_MIN),
        };
        let mut read_to = 0;
        for place in 0..places_max {
            if place == read_to {
                // Each has a few keys, most of the time.
                let places = count.saturating_sub(found.len()).clamp(1, keys::PLACES_AHEAD);
                keys::read_places_ahead(self.engine(), cursor, places, &|_| false);
                read_to += places;
            }
            let (next, keys) = keys::next_keys(self.engine(), object, cursor)?;
            for key in keys {
                if self.get_with(map, &key, |value| value.is_some())? {
                    found.push(key);
                }
            }
            cursor = next.unwrap_or(0);
            if cursor == 0 || found.len() >= count {
                break;
            }
        }
        life.check()?;
        Ok((cursor, found))
    }

    /// The current version.
    pub fn version(&self) -> Version {
        Version::new(self.engine().clock.now())
    }

    /// The highest version that is durable at a level.
    pub fn horizon(&self, level: Level) -> Version {
        match level {
            Level::MEMORY => self.version(),
            _ => Version::new(self.engine().hardening.horizon.local()),
        }
    }

    /// A receipt for any version, e.g. one that a client kept across a restart.
    pub fn receipt(&self, version: Version) -> Receipt {
        Receipt::new(self.engine().clone(), version.number())
    }

    /// Makes everything committed so far durable, and waits for it.
    ///
    /// # Errors
    /// `Lost` if the disk fails, or has failed before.
    pub fn persist(&self) -> Result<()> {
        self.engine().persist()?;
        if self.inner.background.lock().is_none() {
            while self.engine().delete_some_expired(true).is_some() {}
            self.engine().remove_dropped();
            self.engine().sweep();
            self.engine().share_memory();
            self.engine().hand_over_what_leaves();
            // Some of them with each call.
            let _ = (0..NOTES_MADE).all(|_| self.engine().make_notes());
            self.engine().settle_if_due();
            self.engine().take_due_checkpoint(Haste::Waited);
            self.engine().tell_withheld();
        }
        Ok(())
    }

    /// Takes a checkpoint now: writes the index to disk, so that opening the database replays only what comes after. It goes on
    /// beside everything else. False if nothing has become durable or settled since the last one, or, after a crash, since opening. Where rows have
    /// settled it makes everything committed so far durable first. There is seldom a need for it; see [`Options::checkpoint_log_bytes`](crate::Options::checkpoint_log_bytes).
    ///
    /// # Errors
    /// `Io`, `NoSpace` or `Lost` if the disk fails or is full, `Aborted` if the database is closed; the last checkpoint stays, and
    /// nothing else is lost.
    pub fn checkpoint(&self) -> Result<bool> {
        self.engine().telling(|| self.engine().take_checkpoint(Haste::Waited))
    }

    /// Settles now what is durable of the tables, and every open snapshot may see: the rows move from the log, and the indexes in
    /// memory, into a B+-tree on disk, and the log's space is free for others. It goes on beside everything else. Returns how
    /// many rows were put into the tree, or deleted there; of those that an open snapshot must not see none. There is seldom a need for it: rows that have been out of the log's memory for long
    /// settle by themselves.
    ///
    /// ```
    /// # let directory = tempfile::tempdir()?;
    /// # let db = kiln::Kiln::open(directory.path())?;
    /// let ages = db.table("ages")?;
    /// db.put(&ages, "ann", [41])?.safe()?;
    /// assert_eq!(db.settle()?, 1);
    /// assert_eq!(db.get(&ages, "ann")?, Some(vec![41]));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// `Io` or `NoSpace` if the disk fails or is full: once a write to the tree has failed nothing settles any more until the database is opened again.
    /// `Corrupted` if log or tree are damaged, `Lost` if the database has lost something, `Aborted` if it is
    /// closed. Every row stays where it was then, or is where it came to.
    pub fn settle(&self) -> Result<u64> {
        let settling = self.engine().settle_durable()?;
        self.engine().share_for_good();
        Ok(settling.puts + settling.deletes)
    }

    /// Says how a thread waits that commits while the disk is behind, or for log space: `waiting` is called with what waits, and must call that once, on the
    /// same thread. For executors that have other work for it meanwhile, as `tokio::task::block_in_place`. It is called on every thread that commits, so it must know which
    /// are the executor's: that of tokio panics in a task of a `LocalSet`. It can be said once; false if somebody has. What is
    /// waited for by asking, as with [`Commit::safe`] and [`Receipt::wait`](crate::Receipt::wait), is not called through it. Durability does not depend on it.
    pub fn wait_through(&self, waiting: fn(&mut dyn FnMut())) -> bool {
        self.engine().waiting.set(waiting).is_ok()
    }

    /// Asks for a hardening to begin now, without waiting for it. Does nothing without background threads.
    pub fn harden_soon(&self) {
        self.engine().hardening.request_now();
    }

    /// Calls back with the new horizon after every hardening, on the thread that hardened or one of the database's own: be quick, and do not
    /// wait for this database. One call may stand for several hardenings that have ended while the last call went on. A callback that owns a handle keeps the
    /// database open until [`Self::close`] lets go of it.
    pub fn on_durable(&self, callback: impl FnMut(Version) + Send + 'static) {
        self.engine().hardening.horizon.on_durable(Box::new(callback));
    }

    /// Calls back, once, when commits are lost because the disk failed; at once if that has happened. A callback that owns a handle keeps the database open until
    /// it is called, or [`Self::close`] lets go of it.
    pub fn on_lost(&self, callback: impl FnOnce(Lost) + Send + 'static) {
        self.engine().hardening.horizon.on_lost(Box::new(callback));
    }

    /// Which open database this is a handle of: handles have the same number if they are of one, and others if not. When none of its handles is left
    /// another database may have the number.
    ///
    /// ```
    /// # let directory = tempfile::tempdir()?;
    /// # let db = kiln::Kiln::open(directory.path().join("one"))?;
    /// let other = kiln::Kiln::open(directory.path().join("other"))?;
    /// assert!(db.identity() == db.clone().identity() && db.identity() != other.identity());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn identity(&self) -> usize {
        Arc::as_ptr(&self.inner).addr()
    }

    /// What opening found.
    pub fn recovery_report(&self) -> &RecoveryReport {
        &self.inner.report
    }

    /// The vulnerability window.
    pub fn window(&self) -> Duration {
        self.engine().hardening.window()
    }

    /// Numbers about the running database. Some are sums over all segments of the log and over all objects; who looks many times a second at how far behind the
    /// disk is has [`Self::pressure`].
    pub fn statistics(&self) -> Statistics {
        statistics::collect(self.engine())
    }

    /// How far behind the disk is: a few loads, which wait for nobody, whatever the disk does.
    ///
    /// ```
    /// # let directory = tempfile::tempdir()?;
    /// # let db = kiln::Kiln::open(directory.path())?;
    /// let is_late = db.pressure().oldest_unhardened.is_some_and(|oldest| oldest > db.window());
    /// # assert!(!is_late);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn pressure(&self) -> Pressure {
        statistics::pressure(self.engine())
    }

    /// How long the chains of the hash index are, by a sample of at most 1,024 of them, which takes some tens of microseconds and stops nobody.
    ///
    /// ```
    /// # let directory = tempfile::tempdir()?;
    /// # let db = kiln::Kiln::open(directory.path())?;
    /// let chains = db.index_chains();
    /// assert!(chains.sampled > 0 && chains.lines_mean >= 1.0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn index_chains(&self) -> IndexChains {
        self.engine().index.chains()
    }

    /// Checks the database while it is open: the log as [`check`](crate::check()) does, and the indexes against
    /// it. Makes everything durable first; nobody may write meanwhile.
    ///
    /// # Errors
    /// `Lost` or `Io` if the disk fails; damage is in the report.
    pub fn check(&self) -> Result<CheckReport> {
        self.engine().telling(|| check::check_open(self.engine()))
    }
}
