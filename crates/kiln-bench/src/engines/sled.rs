//! sled: a lock-free tree on a log of pages, in Rust.
//!
//! The thread that would flush every now and then is switched off: a strong database flushes at each commit, a weak one in
//! `persist`. Nothing cleans half-empty segments of the log without that thread, so that files grow faster and writes are not
//! disturbed by it.
//!
//! On Linux, sled's `flush` ends in `sync_file_range`, which waits for the pages, but neither makes the file's size and
//! extents durable nor empties the device's cache. The adapter syncs the file itself afterwards; what was written before is
//! then durable, and the log's order and checksums keep it so. Pages of more than a quarter of a segment are files of their
//! own, which sled never syncs: segments are chosen large enough, and where even the largest are too small, the file system
//! is synced.
//!
//! Reads and writes of single keys exclude transactions by a lock inside sled, and may be mixed with them. sled's pool of
//! seven waiting threads belongs to the process and outlives the database.

use std::cell::RefCell;
use std::os::fd::OwnedFd;

use anyhow::{Context, Result};
use rustix::fs::FlockOperation;
use sled::transaction::{
    ConflictableTransactionError, TransactionError, TransactionalTree, UnabortableTransactionError,
};
use sled::{Batch, Config, Db, IVec};

use super::catalog::{Description, Mode, Settings, Shape};
use super::versions::locked_version;
use super::{Access, Engine, Worker};
use crate::generate::{Entry, Key, add_to_first_word};

pub(super) const DESCRIPTION: Description = Description {
    what: "sled: a lock-free tree on a log of pages in Rust",
    modes: &[Mode::Strong, Mode::Weak],
    shapes: &[Shape::Table],
    transactions: true,
    keeps_data: true,
    durable_puts: true,
    past_page_cache: false,
    reopens: true,
    snapshot_scans: false,
    settings: |mode| match mode {
        Mode::Weak => {
            "Mode::HighThroughput, no periodic flushes, then flush(); cache as given; no compression"
        }
        _ => "Mode::HighThroughput, flush() at each commit, none besides; cache as given; no compression",
    },
    version: || locked_version("sled"),
};

/// From this size of values on, segments are as large as sled allows; the default ones hold the pages of smaller values.
const LARGE_BYTES: usize = 4 << 10;
/// sled's largest segments.
const SEGMENT_BYTES_MAX: usize = 16 << 20;
/// From this size on, pages, which have up to 17 values, are files of their own even so.
const APART_BYTES: usize = 200 << 10;

/// A sled database, of which the default tree is used.
pub(crate) struct SledEngine {
    database: Db,
    /// The log, which sled does not sync.
    log: OwnedFd,
    /// Whether there are pages that are files of their own.
    apart: bool,
    durable: bool,
}

impl SledEngine {
    /// Creates a database.
    pub(crate) fn create(settings: &Settings) -> Result<SledEngine> {
        let path = settings.path.join("sled");
        let value_bytes = settings.sizes.value_bytes;
        let mut config = Config::new()
            .path(&path)
            .mode(sled::Mode::HighThroughput)
            .cache_capacity(settings.cache_bytes)
            .flush_every_ms(None);
        if value_bytes >= LARGE_BYTES {
            config = config.segment_size(SEGMENT_BYTES_MAX);
        }
        let database =
            config.open().with_context(|| format!("cannot create a sled database as {}", path.display()))?;
        let flags = rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::CLOEXEC;
        let log = rustix::fs::open(path.join("db"), flags, rustix::fs::Mode::empty())
            .context("cannot open sled's log")?;
        // The names of the new files must be durable too.
        rustix::fs::syncfs(&log).context("cannot sync sled's files")?;
        let (apart, durable) = (value_bytes >= APART_BYTES, settings.mode.is_durable());
        Ok(SledEngine { database, log, apart, durable })
    }

    /// Makes everything that was written durable.
    fn sync(&self) -> Result<()> {
        self.database.flush()?;
        let synced =
            if self.apart { rustix::fs::syncfs(&self.log) } else { rustix::fs::fdatasync(&self.log) };
        synced.context("cannot sync sled's files")
    }

    /// Acknowledges a commit as the mode says.
    #[inline]
    fn acknowledge(&self) -> Result<()> {
        if self.durable { self.sync() } else { Ok(()) }
    }
}

impl Engine for SledEngine {
    type Worker<'a> = SledWorker<'a>;

    fn worker(&self) -> Result<SledWorker<'_>> {
        Ok(SledWorker { engine: self, database: &self.database })
    }

    fn key_count(&self) -> Result<u64> {
        Ok(self.database.len() as u64)
    }

    fn persist(&self) -> Result<()> {
        self.sync()
    }

    fn close(self) -> Result<()> {
        // Dropping flushes too, and says nothing of errors.
        self.persist().context("cannot close the sled database")?;
        drop(self.database);
        // Threads of sled's pool that have just written have its log open, and locked, for a moment longer, in which sled would
        // not open it again.
        rustix::fs::flock(&self.log, FlockOperation::LockExclusive).context("cannot lock sled's log")
    }
}

/// One thread's access to a [`SledEngine`].
pub(crate) struct SledWorker<'a> {
    engine: &'a SledEngine,
    database: &'a Db,
}

impl Worker for SledWorker<'_> {
    #[inline]
    fn get(&mut self, key: &[u8], value: &mut Vec<u8>) -> Result<bool> {
        value.clear();
        let found = self.database.get(key)?;
        Ok(found.map(|found| value.extend_from_slice(&found)).is_some())
    }

    #[inline]
    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        self.database.insert(key, value)?;
        self.engine.acknowledge()
    }

    fn put_durably(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        self.database.insert(key, value)?;
        self.engine.sync()
    }

    fn add(&mut self, key: &[u8], delta: u64) -> Result<()> {
        let mut result = Ok(());
        let before = self.database.fetch_and_update(key, |old| {
            let mut value = IVec::from(old?);
            result = add_to_first_word(&mut value, delta);
            Some(value)
        })?;
        result?;
        before.context("a key is missing")?;
        self.engine.acknowledge()
    }

    fn get_all(&mut self, keys: &[Key], row: &mut dyn FnMut(usize, &[u8]) -> Result<()>) -> Result<()> {
        for (at, key) in keys.iter().enumerate() {
            row(at, &self.database.get(key)?.context("a key is missing")?)?;
        }
        Ok(())
    }

    fn put_all(&mut self, entries: &[Entry]) -> Result<()> {
        let mut batch = Batch::default();
        for entry in entries {
            batch.insert(&*entry.key, &*entry.value);
        }
        self.database.apply_batch(batch)?;
        self.engine.acknowledge()
    }

    fn scan(
        &mut self,
        from: &[u8],
        count: usize,
        row: &mut impl FnMut(&[u8], &[u8]) -> Result<()>,
    ) -> Result<()> {
        for entry in self.database.range(from..).take(count) {
            let (key, value) = entry?;
            row(&key, &value)?;
        }
        Ok(())
    }

    fn transact(&mut self, body: &mut dyn FnMut(&mut dyn Access) -> Result<()>) -> Result<()> {
        // sled runs the body again after a conflict, but does not ask for one that may change anything.
        let body = RefCell::new(body);
        let result = self.database.transaction(|tree| {
            let mut access = SledAccess { tree, error: None };
            let result = (body.borrow_mut())(&mut access);
            match access.error {
                Some(error) => Err(ConflictableTransactionError::from(error)),
                None => result.map_err(ConflictableTransactionError::Abort),
            }
        });
        match result {
            Ok(()) => self.engine.acknowledge(),
            Err(TransactionError::Abort(error)) => Err(error),
            Err(TransactionError::Storage(error)) => Err(error.into()),
        }
    }
}

/// A running transaction.
struct SledAccess<'a> {
    tree: &'a TransactionalTree,
    /// The engine's own error, which outlives the one that the body makes of it.
    error: Option<UnabortableTransactionError>,
}

impl SledAccess<'_> {
    fn keep<T>(&mut self, result: Result<T, UnabortableTransactionError>) -> Result<T> {
        result.map_err(|error| {
            let text = anyhow::anyhow!("{error}");
            self.error = Some(error);
            text
        })
    }
}

impl Access for SledAccess<'_> {
    fn get(&mut self, key: &[u8], value: &mut Vec<u8>) -> Result<bool> {
        value.clear();
        let found = self.tree.get(key);
        Ok(self.keep(found)?.map(|found| value.extend_from_slice(&found)).is_some())
    }

    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        let put = self.tree.insert(key, value);
        self.keep(put).map(drop)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::generate::Sizes;

    /// Threads of sled's pool held its lock for a moment longer, and the next opening was refused.
    #[test]
    fn what_was_closed_is_opened_again_at_once() {
        let directory = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let settings = Settings {
            path: directory.path().to_owned(),
            mode: Mode::Weak,
            shape: Shape::Table,
            sizes: Sizes { key_bytes: 16, value_bytes: 100 },
            records: 100,
            cache_bytes: 64 << 20,
            window: Duration::from_millis(5),
            cold: false,
            limited: false,
            checkpoints: false,
        };
        for round in 0..500_u32 {
            let engine = SledEngine::create(&settings).unwrap();
            engine.worker().unwrap().put(&round.to_be_bytes(), b"value").unwrap();
            engine.close().unwrap();
        }
    }
}
