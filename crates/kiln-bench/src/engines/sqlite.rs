//! SQLite: a B-tree with a write-ahead log, in C, by way of rusqlite, which bundles it.
//!
//! Each worker has a connection of its own with its statements prepared, and leaves it, with its cache, to the next one. SQLite lets one
//! connection write at a time and makes the others sleep and try again, for a millisecond and longer; writers therefore queue on a lock of this process first.
//! Readers keep their snapshot for as long as nothing is committed (see [`super::commits`]).
//!
//! A weak database runs with `synchronous=OFF`, which syncs neither the log at a commit nor log and database around a
//! checkpoint. What was committed is then in the log, or a checkpoint has moved it to the database; `persist` syncs both, and
//! the log first, because what a checkpoint moves in between is then in one that is still to be synced. A single commit
//! cannot be made durable: a later checkpoint moves its pages and lets the log be overwritten in whatever order the kernel
//! likes.

mod memory;

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result};
use rusqlite::{Connection, OpenFlags, Statement};
use self_cell::self_cell;

use super::catalog::{Description, Mode, Settings, Shape};
use super::commits::{Commits, Moment};
use super::{Access, Engine, Worker};
use crate::generate::{Entry, Key};

pub(super) const DESCRIPTION: Description = Description {
    what: "SQLite: a B-tree with a write-ahead log in C, one writer at a time",
    modes: &[Mode::Strong, Mode::Weak],
    shapes: &[Shape::Table],
    transactions: true,
    keeps_data: true,
    durable_puts: false,
    past_page_cache: false,
    reopens: true,
    snapshot_scans: true,
    settings: |mode| match mode {
        Mode::Weak => {
            "WAL, synchronous=OFF, then fdatasync of log and database; a connection for each thread with prepared \
             statements; WITHOUT ROWID; mmap of 2 GiB, and none where memory is limited; caches as given in all; \
             checkpoints at 4000 pages; writers queue on a mutex; read transactions are kept until something is committed"
        }
        _ => {
            "WAL, synchronous=FULL; a connection for each thread with prepared statements; WITHOUT ROWID; mmap of \
             2 GiB, and none where memory is limited; caches as given in all; checkpoints at 4000 pages; writers queue on \
             a mutex; read transactions are kept until something is committed"
        }
    },
    version: || Ok(rusqlite::version().to_owned()),
};

/// Pages in the log at which a commit moves them to the database. More would save writes, but the log's index finds a page with
/// one probe only up to 4062.
const CHECKPOINT_PAGES: u32 = 4000;
/// The most that SQLite maps as it is built by default. Where memory is limited it maps nothing: the kernel reads around each page of a map that is missing.
const MAP_BYTES: u32 = 0x7FFF_0000;
/// How long a connection waits for a lock of the database: longer than any checkpoint or recovery takes.
const BUSY_TIMEOUT: Duration = Duration::from_secs(60);

/// What nobody sees: a worker has its session until it is dropped.
const ENDED: &str = "the worker has ended";

/// A SQLite database with one table.
pub(crate) struct SqliteEngine {
    database: PathBuf,
    settings: String,
    commits: Commits,
    /// Who holds it may write.
    turn: Mutex<()>,
    /// Those that workers have left, as many as there are processors.
    idle: Mutex<Vec<Connection>>,
    /// Keeps the log in place while there are no workers.
    keeper: Mutex<Connection>,
    /// The log and the database where `persist` has to sync them, in this order. They stay open as long as the connections:
    /// closing any handle of a file gives up this process's locks on it.
    unsynced: Vec<OwnedFd>,
}

impl SqliteEngine {
    /// Creates a database.
    pub(crate) fn create(settings: &Settings) -> Result<SqliteEngine> {
        memory::without_statistics()?;
        let database = settings.path.join("sqlite");
        let pragmas = pragmas(settings);
        let keeper = connect(&database, &pragmas)
            .and_then(|connection| {
                connection.execute_batch(
                    "CREATE TABLE IF NOT EXISTS bench (key BLOB PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID",
                )?;
                Ok(connection)
            })
            .with_context(|| format!("cannot create a SQLite database as {}", database.display()))?;
        let mut unsynced = Vec::new();
        if !settings.mode.is_durable() {
            // The files' names must be durable too, which SQLite leaves to the kernel without syncs.
            rustix::fs::fsync(open(&settings.path)?).context("cannot sync SQLite's directory")?;
            unsynced.push(open(&settings.path.join("sqlite-wal"))?);
            unsynced.push(open(&database)?);
        }
        Ok(SqliteEngine {
            database,
            settings: pragmas,
            commits: Commits::default(),
            turn: Mutex::default(),
            idle: Mutex::default(),
            keeper: Mutex::new(keeper),
            unsynced,
        })
    }
}

fn processors() -> usize {
    std::thread::available_parallelism().map_or(1, |count| count.get())
}

/// What each connection is told. The cache is shared out among as many threads as there are processors.
fn pragmas(settings: &Settings) -> String {
    let cache_kib = settings.cache_bytes / processors() as u64 / 1024;
    let synchronous = if settings.mode.is_durable() { "FULL" } else { "OFF" };
    let map_bytes = if settings.limited { 0 } else { MAP_BYTES };
    format!(
        "PRAGMA journal_mode=WAL; PRAGMA synchronous={synchronous}; PRAGMA mmap_size={map_bytes}; \
         PRAGMA cache_size=-{cache_kib}; PRAGMA wal_autocheckpoint={CHECKPOINT_PAGES};"
    )
}

fn connect(database: &Path, pragmas: &str) -> rusqlite::Result<Connection> {
    // A connection has one thread, and needs no locks of its own.
    let flags =
        OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_CREATE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(database, flags)?;
    connection.busy_timeout(BUSY_TIMEOUT)?;
    connection.execute_batch(pragmas)?;
    Ok(connection)
}

fn open(path: &Path) -> Result<OwnedFd> {
    let flags = rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::CLOEXEC;
    rustix::fs::open(path, flags, rustix::fs::Mode::empty())
        .with_context(|| format!("cannot open {}", path.display()))
}

/// A panic elsewhere fails the run by itself.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Engine for SqliteEngine {
    type Worker<'a> = SqliteWorker<'a>;

    fn worker(&self) -> Result<SqliteWorker<'_>> {
        let left = lock(&self.idle).pop();
        let connection = match left {
            Some(connection) => connection,
            None => connect(&self.database, &self.settings).context("cannot connect to SQLite")?,
        };
        let session = Session::try_new(connection, |connection| Statements::prepare(connection))?;
        Ok(SqliteWorker { engine: self, session: Some(session), snapshot: None })
    }

    fn key_count(&self) -> Result<u64> {
        let keeper = lock(&self.keeper);
        let count: i64 = keeper.query_row("SELECT count(*) FROM bench", [], |row| row.get(0))?;
        Ok(u64::try_from(count)?)
    }

    fn persist(&self) -> Result<()> {
        for file in &self.unsynced {
            rustix::fs::fdatasync(file).context("cannot sync SQLite's files")?;
        }
        Ok(())
    }

    fn checkpoint(&self) -> Result<()> {
        self.persist()?;
        // It answers with a row, which nobody needs.
        lock(&self.keeper).query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()))?;
        self.persist()
    }

    fn close(self) -> Result<()> {
        drop(self.idle);
        let keeper = self.keeper.into_inner().unwrap_or_else(PoisonError::into_inner);
        keeper.close().map_err(|(_, error)| error).context("cannot close the SQLite database")
    }
}

self_cell!(
    /// A connection and the statements that borrow it.
    struct Session {
        owner: Connection,
        #[not_covariant]
        dependent: Statements,
    }
);

/// What is ever asked of SQLite.
struct Statements<'c> {
    get: Statement<'c>,
    put: Statement<'c>,
    scan: Statement<'c>,
    begin_reading: Statement<'c>,
    begin_writing: Statement<'c>,
    commit: Statement<'c>,
    rollback: Statement<'c>,
}

impl<'c> Statements<'c> {
    fn prepare(connection: &'c Connection) -> Result<Statements<'c>> {
        Ok(Statements {
            get: connection.prepare("SELECT value FROM bench WHERE key = ?1")?,
            // In a table whose only index is its primary key, this descends the tree once and writes there.
            put: connection.prepare("REPLACE INTO bench (key, value) VALUES (?1, ?2)")?,
            scan: connection.prepare("SELECT key, value FROM bench WHERE key >= ?1 ORDER BY key LIMIT ?2")?,
            begin_reading: connection.prepare("BEGIN")?,
            begin_writing: connection.prepare("BEGIN IMMEDIATE")?,
            commit: connection.prepare("COMMIT")?,
            rollback: connection.prepare("ROLLBACK")?,
        })
    }

    #[inline]
    fn get(&mut self, key: &[u8], value: &mut Vec<u8>) -> Result<bool> {
        value.clear();
        self.get_with(key, |found| {
            value.extend_from_slice(found);
            Ok(())
        })
        .map(|found| found.is_some())
    }

    /// Hands a value on where SQLite has it.
    #[inline]
    fn get_with<T>(&mut self, key: &[u8], take: impl FnOnce(&[u8]) -> Result<T>) -> Result<Option<T>> {
        self.get.raw_bind_parameter(1, key)?;
        let mut rows = self.get.raw_query();
        match rows.next()? {
            Some(row) => take(row.get_ref(0)?.as_blob()?).map(Some),
            None => Ok(None),
        }
    }

    #[inline]
    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        self.put.raw_bind_parameter(1, key)?;
        self.put.raw_bind_parameter(2, value)?;
        self.put.raw_execute()?;
        Ok(())
    }

    fn scan(
        &mut self,
        from: &[u8],
        count: usize,
        mut row: impl FnMut(&[u8], &[u8]) -> Result<()>,
    ) -> Result<()> {
        self.scan.raw_bind_parameter(1, from)?;
        self.scan.raw_bind_parameter(2, i64::try_from(count).unwrap_or(i64::MAX))?;
        let mut rows = self.scan.raw_query();
        while let Some(found) = rows.next()? {
            row(found.get_ref(0)?.as_blob()?, found.get_ref(1)?.as_blob()?)?;
        }
        Ok(())
    }

    /// Runs a writing transaction; its error takes it back.
    fn transact(
        &mut self,
        commits: &Commits,
        body: impl FnOnce(&mut Statements<'c>) -> Result<()>,
    ) -> Result<()> {
        self.begin_writing.raw_execute()?;
        let result = body(self).and_then(|()| Ok(commits.count(|| self.commit.raw_execute())?));
        match result {
            Ok(_) => Ok(()),
            Err(error) => {
                self.rollback.raw_execute().context("cannot roll a transaction of SQLite back")?;
                Err(error)
            }
        }
    }
}

/// One thread's access to a [`SqliteEngine`].
pub(crate) struct SqliteWorker<'a> {
    engine: &'a SqliteEngine,
    /// Nothing once it ends.
    session: Option<Session>,
    /// When the read transaction began that is open, if one is.
    snapshot: Option<Moment>,
}

impl Drop for SqliteWorker<'_> {
    fn drop(&mut self) {
        let Some(mut session) = self.session.take() else { return };
        let is_reading = self.snapshot.is_some();
        let ended = session.with_dependent_mut(|_, statements| match is_reading {
            true => statements.commit.raw_execute().map(drop),
            false => Ok(()),
        });
        let connection = session.into_owner();
        let mut idle = lock(&self.engine.idle);
        if ended.is_ok() && idle.len() < processors() {
            idle.push(connection);
        }
    }
}

impl SqliteWorker<'_> {
    /// Reads in a transaction that shows what is committed now.
    #[inline]
    fn read<T>(&mut self, body: impl FnOnce(&mut Statements<'_>) -> Result<T>) -> Result<T> {
        let (commits, snapshot) = (&self.engine.commits, &mut self.snapshot);
        let session = self.session.as_mut().context(ENDED)?;
        session.with_dependent_mut(|_, statements| {
            if snapshot.is_none_or(|moment| !commits.none_since(moment)) {
                if snapshot.take().is_some() {
                    statements.commit.raw_execute()?;
                }
                let moment = commits.now();
                statements.begin_reading.raw_execute()?;
                *snapshot = Some(moment);
            }
            body(statements)
        })
    }

    /// Gives the read transaction up, waits for a turn, and writes.
    #[inline]
    fn write(&mut self, body: impl FnOnce(&mut Statements<'_>, &Commits) -> Result<()>) -> Result<()> {
        let (engine, snapshot) = (self.engine, &mut self.snapshot);
        let session = self.session.as_mut().context(ENDED)?;
        session.with_dependent_mut(|_, statements| {
            if snapshot.take().is_some() {
                statements.commit.raw_execute()?;
            }
            let _turn = lock(&engine.turn);
            body(statements, &engine.commits)
        })
    }
}

impl Worker for SqliteWorker<'_> {
    #[inline]
    fn get(&mut self, key: &[u8], value: &mut Vec<u8>) -> Result<bool> {
        self.read(|statements| statements.get(key, value))
    }

    #[inline]
    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        // A statement alone is a transaction, and waits for locks as BEGIN IMMEDIATE does.
        self.write(|statements, commits| commits.count(|| statements.put(key, value)))
    }

    fn put_durably(&mut self, _key: &[u8], _value: &[u8]) -> Result<()> {
        anyhow::bail!("SQLite cannot make one commit durable with synchronous=OFF; ask another engine")
    }

    fn get_all(&mut self, keys: &[Key], row: &mut dyn FnMut(usize, &[u8]) -> Result<()>) -> Result<()> {
        self.read(|statements| {
            for (at, key) in keys.iter().enumerate() {
                statements.get_with(key, |value| row(at, value))?.context("a key is missing")?;
            }
            Ok(())
        })
    }

    fn put_all(&mut self, entries: &[Entry]) -> Result<()> {
        self.write(|statements, commits| {
            statements.transact(commits, |statements| {
                entries.iter().try_for_each(|entry| statements.put(&entry.key, &entry.value))
            })
        })
    }

    fn scan(
        &mut self,
        from: &[u8],
        count: usize,
        row: &mut impl FnMut(&[u8], &[u8]) -> Result<()>,
    ) -> Result<()> {
        self.read(|statements| statements.scan(from, count, row))
    }

    fn transact(&mut self, body: &mut dyn FnMut(&mut dyn Access) -> Result<()>) -> Result<()> {
        self.write(|statements, commits| {
            statements.transact(commits, |statements| body(&mut SqliteAccess(statements)))
        })
    }
}

/// A running transaction.
struct SqliteAccess<'a, 'c>(&'a mut Statements<'c>);

impl Access for SqliteAccess<'_, '_> {
    fn get(&mut self, key: &[u8], value: &mut Vec<u8>) -> Result<bool> {
        self.0.get(key, value)
    }

    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        self.0.put(key, value)
    }
}
