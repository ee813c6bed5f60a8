//! Berkeley DB 5.3, from Debian's library: a B-tree in a full transactional environment that is private to the process.
//!
//! Single reads take no transaction, and so hold the lock of a page only while they read it. Reads in a transaction take the lock
//! for changing, because every workload writes what it has read so, and two that shared a lock before would deadlock. Whoever
//! is chosen to give way in a deadlock tries again.
//!
//! A thread of the adapter writes checkpoints as the log grows, after which the library removes what is not needed of it.

mod library;

use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};

use self::library::{Database, Failure, Options, Rows, Transaction};
use super::catalog::{Description, Mode, Settings, Shape};
use super::library::first_rows;
use super::{Access, Engine, OnRow, Worker, add_in_transaction};
use crate::generate::Entry;

pub(super) const DESCRIPTION: Description = Description {
    what: "Berkeley DB: a B-tree with page locks and a log",
    modes: &[Mode::Strong, Mode::Weak],
    shapes: &[Shape::Table],
    transactions: true,
    keeps_data: true,
    durable_puts: true,
    past_page_cache: false,
    reopens: false,
    snapshot_scans: false,
    settings: |mode| match mode {
        Mode::Weak => {
            "TXN_NOSYNC, log_flush at the end; B-tree, private environment, cache of the size given, log buffer of 16 MiB, \
             checkpoint each 256 MiB of log, LOG_AUTO_REMOVE, deadlock detection at each conflict; reads without transaction, in \
             transactions with DB_RMW; bulk reads for scans"
        }
        _ => {
            "TXN_SYNC; B-tree, private environment, cache of the size given, log buffer of 16 MiB, checkpoint each 256 MiB of \
             log, LOG_AUTO_REMOVE, deadlock detection at each conflict; reads without transaction, in transactions with DB_RMW; \
             bulk reads for scans"
        }
    },
    version: library::version,
};

/// How much log there is before the next checkpoint, and how often that is looked at.
const CHECKPOINT_KILOBYTES: u32 = 256 << 10;
const CHECKPOINT_INTERVAL: Duration = Duration::from_millis(100);
/// Room for the rows that a cursor reads at once.
const ROWS_BYTES: usize = 16 << 10;

/// A Berkeley DB database.
pub(super) struct BerkeleyDb {
    database: Arc<Database>,
    durable: bool,
    checkpoints: Option<Checkpoints>,
}

/// The thread that writes checkpoints, which ends when its sender is dropped.
struct Checkpoints {
    stop: Sender<()>,
    thread: JoinHandle<Result<(), Failure>>,
}

impl Checkpoints {
    fn start(database: Arc<Database>) -> Checkpoints {
        let (stop, stopped) = channel();
        let thread = std::thread::spawn(move || {
            while stopped.recv_timeout(CHECKPOINT_INTERVAL) == Err(RecvTimeoutError::Timeout) {
                database.checkpoint(CHECKPOINT_KILOBYTES)?;
            }
            Ok(())
        });
        Checkpoints { stop, thread }
    }

    fn end(self) -> Result<()> {
        drop(self.stop);
        let ended =
            self.thread.join().map_err(|_| anyhow!("the thread of Berkeley DB's checkpoints panicked"))?;
        ended.context("cannot write a checkpoint")
    }
}

impl BerkeleyDb {
    /// Creates a database.
    pub(super) fn create(settings: &Settings) -> Result<BerkeleyDb> {
        let durable = settings.mode.is_durable();
        let options = Options {
            cache_bytes: settings.cache_bytes,
            // A file of the log must hold four of its buffers.
            log_buffer_bytes: 16 << 20,
            log_file_bytes: 64 << 20,
            page_locks: 100_000,
            syncs: durable,
        };
        let database = Database::create(&settings.path, &options).with_context(|| {
            format!("cannot create a Berkeley DB database in {}", settings.path.display())
        })?;
        let database = Arc::new(database);
        let checkpoints = Some(Checkpoints::start(database.clone()));
        Ok(BerkeleyDb { database, durable, checkpoints })
    }
}

impl Engine for BerkeleyDb {
    type Worker<'a> = BerkeleyDbWorker<'a>;

    fn worker(&self) -> Result<BerkeleyDbWorker<'_>> {
        let rows = Rows::new(ROWS_BYTES);
        Ok(BerkeleyDbWorker { database: &self.database, durable: self.durable, rows, last: Vec::new() })
    }

    fn key_count(&self) -> Result<u64> {
        let mut count = 0;
        self.worker()?.rows_from(&[], &mut |_, _| {
            count += 1;
            Ok(true)
        })?;
        Ok(count)
    }

    fn persist(&self) -> Result<()> {
        if self.durable { Ok(()) } else { Ok(self.database.flush_log()?) }
    }

    fn close(mut self) -> Result<()> {
        let ended = self.checkpoints.take().map_or(Ok(()), Checkpoints::end);
        let database = self.database.clone();
        // The other owners are gone: this one's field, and the thread.
        drop(self);
        let closed = Arc::into_inner(database).map_or(Ok(()), Database::close);
        ended.and(closed.context("cannot close the database"))
    }
}

impl Drop for BerkeleyDb {
    fn drop(&mut self) {
        // Only where an error is on its way already, so that its own is not told.
        self.checkpoints.take().map(Checkpoints::end);
    }
}

/// One thread's access to a [`BerkeleyDb`].
pub(super) struct BerkeleyDbWorker<'a> {
    database: &'a Database,
    durable: bool,
    rows: Rows,
    /// The last key that a scan has handed on.
    last: Vec<u8>,
}

/// Does something until it is not the one to give way in a deadlock.
#[inline]
fn until_granted<T>(mut attempt: impl FnMut() -> Result<T, Failure>) -> Result<T> {
    loop {
        match attempt() {
            Err(failure) if failure.is_conflict() => {}
            result => return Ok(result?),
        }
    }
}

impl BerkeleyDbWorker<'_> {
    /// Hands on rows from a key on, until `row` says that it is enough.
    fn rows_from(&mut self, from: &[u8], row: &mut OnRow<'_, bool>) -> Result<()> {
        let BerkeleyDbWorker { rows, last, .. } = self;
        last.clear();
        last.extend_from_slice(from);
        loop {
            let mut cursor = until_granted(|| self.database.cursor())?;
            let mut filled = cursor.fill(Some(last), rows);
            loop {
                match filled {
                    Ok(true) => {}
                    Ok(false) => return Ok(()),
                    // The cursor is closed, and another one goes on behind the last row.
                    Err(failure) if failure.is_conflict() => break,
                    Err(failure) => return Err(failure.into()),
                }
                let more = rows.each(&mut |key, value| {
                    last.clear();
                    last.extend_from_slice(key);
                    row(key, value)
                })?;
                if !more {
                    return Ok(());
                }
                // The next key that can be, should the cursor be lost.
                last.push(0);
                filled = cursor.fill(None, rows);
            }
        }
    }
}

impl Worker for BerkeleyDbWorker<'_> {
    #[inline]
    fn get(&mut self, key: &[u8], value: &mut Vec<u8>) -> Result<bool> {
        until_granted(|| self.database.get(key, value))
    }

    #[inline]
    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        until_granted(|| self.database.put(key, value))
    }

    fn put_durably(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        until_granted(|| {
            let mut transaction = self.database.begin()?;
            transaction.put(key, value)?;
            transaction.commit(true)
        })
    }

    fn add(&mut self, key: &[u8], delta: u64) -> Result<()> {
        add_in_transaction(self, key, delta)
    }

    fn put_all(&mut self, entries: &[Entry]) -> Result<()> {
        until_granted(|| {
            let mut transaction = self.database.begin()?;
            for entry in entries {
                transaction.put(&entry.key, &entry.value)?;
            }
            transaction.commit(self.durable)
        })
    }

    fn scan(
        &mut self,
        from: &[u8],
        count: usize,
        row: &mut impl FnMut(&[u8], &[u8]) -> Result<()>,
    ) -> Result<()> {
        first_rows(count, row, |rows| self.rows_from(from, rows))
    }

    fn transact(&mut self, body: &mut dyn FnMut(&mut dyn Access) -> Result<()>) -> Result<()> {
        loop {
            let mut access = Running { transaction: self.database.begin()?, conflict: false };
            let result = body(&mut access);
            // A transaction that is dropped is taken back.
            match (result, access.conflict) {
                (_, true) => {}
                (Err(error), false) => return Err(error),
                (Ok(()), false) => match access.transaction.commit(self.durable) {
                    Err(failure) if failure.is_conflict() => {}
                    committed => return Ok(committed?),
                },
            }
        }
    }
}

/// A running transaction.
struct Running<'a> {
    transaction: Transaction<'a>,
    /// Whether it has to give way, whatever the body makes of the error.
    conflict: bool,
}

impl Running<'_> {
    fn keep<T>(&mut self, result: Result<T, Failure>) -> Result<T> {
        Ok(result.inspect_err(|failure| self.conflict |= failure.is_conflict())?)
    }
}

impl Access for Running<'_> {
    fn get(&mut self, key: &[u8], value: &mut Vec<u8>) -> Result<bool> {
        let found = self.transaction.get(key, value);
        self.keep(found)
    }

    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        let put = self.transaction.put(key, value);
        self.keep(put)
    }
}
