//! LevelDB 1.23, from Debian's library.
//!
//! LevelDB has no transactions. The adapter runs one at a time, and collects its writes in a batch: whoever runs a transaction or
//! adds to a value holds a lock alone, single writes share it, and so still commit in groups; reads need none. All access is
//! through the adapter, so that what a transaction has read stays as it is until it commits.
//!
//! A synced write does not make all writes before it durable: the log that was full before it is left unsynced until its memory
//! table is written. To make everything durable, the adapter therefore syncs each log that there is. The library hands each
//! record to the system before it acknowledges it, and removes a log when its content is in a durable table.

mod library;

use std::fs::File;
use std::io::ErrorKind;
use std::path::PathBuf;
use std::sync::{PoisonError, RwLock};

use anyhow::{Context, Result};

use self::library::{Batch, Database, Options};
use super::catalog::{Description, Mode, Settings, Shape};
use super::library::first_rows;
use super::{Access, Engine, Worker};
use crate::generate::{Entry, add_to_first_word};

pub(super) const DESCRIPTION: Description = Description {
    what: "LevelDB: a log-structured merge tree; transactions by a lock of the adapter",
    modes: &[Mode::Strong, Mode::Weak],
    shapes: &[Shape::Table],
    transactions: true,
    keeps_data: true,
    durable_puts: true,
    past_page_cache: false,
    reopens: true,
    snapshot_scans: true,
    settings: |mode| match mode {
        Mode::Weak => {
            "log without sync, fdatasync of the logs at the end; LRU block cache, 10-bit bloom filters, write buffer of 64 MiB, \
             files of 8 MiB, 10000 open files, no compression; no transactions of its own: one at a time behind the adapter's \
             lock, which single writes share"
        }
        _ => {
            "log with sync at each commit; LRU block cache, 10-bit bloom filters, write buffer of 64 MiB, files of 8 MiB, 10000 \
             open files, no compression; no transactions of its own: one at a time behind the adapter's lock, which single \
             writes share"
        }
    },
    version: library::version,
};

/// A LevelDB database.
pub(super) struct LevelDb {
    database: Database,
    path: PathBuf,
    durable: bool,
    /// Shared by single writes, held alone by transactions.
    lock: RwLock<()>,
}

impl LevelDb {
    /// Creates a database.
    pub(super) fn create(settings: &Settings) -> Result<LevelDb> {
        let options = Options {
            cache_bytes: settings.cache_bytes.try_into()?,
            write_buffer_bytes: 64 << 20,
            // Each file is synced when it is written; fewer of them are, but one does not yet fill the first level's 10 MiB.
            file_bytes: 8 << 20,
            open_files: 10_000,
            bloom_bits: 10,
        };
        let database = Database::create(&settings.path, &options)
            .with_context(|| format!("cannot create a LevelDB database in {}", settings.path.display()))?;
        let durable = settings.mode.is_durable();
        Ok(LevelDb { database, path: settings.path.clone(), durable, lock: RwLock::new(()) })
    }

    fn sync_logs(&self) -> Result<()> {
        for entry in self.path.read_dir()? {
            let path = entry?.path();
            if path.extension().is_none_or(|extension| extension != "log") {
                continue;
            }
            match File::open(&path).and_then(|log| Ok(rustix::fs::fdatasync(log)?)) {
                // Its content is in a table meanwhile.
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                result => result.with_context(|| format!("cannot sync {}", path.display()))?,
            }
        }
        // Also the names of the logs.
        Ok(rustix::fs::fsync(File::open(&self.path)?)?)
    }
}

impl Engine for LevelDb {
    type Worker<'a> = LevelDbWorker<'a>;

    fn worker(&self) -> Result<LevelDbWorker<'_>> {
        Ok(LevelDbWorker { engine: self, batch: self.database.batch()?, value: Vec::new() })
    }

    fn key_count(&self) -> Result<u64> {
        // The library keeps no count.
        let mut count = 0;
        self.database.scan(&[], &mut |_, _| {
            count += 1;
            Ok(true)
        })?;
        Ok(count)
    }

    fn persist(&self) -> Result<()> {
        if self.durable { Ok(()) } else { self.sync_logs() }
    }
}

/// One thread's access to a [`LevelDb`].
pub(super) struct LevelDbWorker<'a> {
    engine: &'a LevelDb,
    batch: Batch,
    value: Vec<u8>,
}

impl LevelDbWorker<'_> {
    #[inline]
    fn put_with(&mut self, key: &[u8], value: &[u8], durably: bool) -> Result<()> {
        // The lock guards no data that a panic could leave half-changed.
        let _shared = self.engine.lock.read().unwrap_or_else(PoisonError::into_inner);
        self.engine.database.put(key, value, durably)
    }
}

impl Worker for LevelDbWorker<'_> {
    #[inline]
    fn get(&mut self, key: &[u8], value: &mut Vec<u8>) -> Result<bool> {
        self.engine.database.get(key, value)
    }

    #[inline]
    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        self.put_with(key, value, self.engine.durable)
    }

    fn put_durably(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        self.put_with(key, value, true)
    }

    fn add(&mut self, key: &[u8], delta: u64) -> Result<()> {
        let _alone = self.engine.lock.write().unwrap_or_else(PoisonError::into_inner);
        anyhow::ensure!(self.engine.database.get(key, &mut self.value)?, "a key is missing");
        add_to_first_word(&mut self.value, delta)?;
        self.engine.database.put(key, &self.value, self.engine.durable)
    }

    fn put_all(&mut self, entries: &[Entry]) -> Result<()> {
        self.batch.clear();
        entries.iter().for_each(|entry| self.batch.put(&entry.key, &entry.value));
        let _shared = self.engine.lock.read().unwrap_or_else(PoisonError::into_inner);
        self.engine.database.write(&self.batch, self.engine.durable)
    }

    fn scan(
        &mut self,
        from: &[u8],
        count: usize,
        row: &mut impl FnMut(&[u8], &[u8]) -> Result<()>,
    ) -> Result<()> {
        first_rows(count, row, |rows| self.engine.database.scan(from, rows))
    }

    fn transact(&mut self, body: &mut dyn FnMut(&mut dyn Access) -> Result<()>) -> Result<()> {
        let engine = self.engine;
        let _alone = engine.lock.write().unwrap_or_else(PoisonError::into_inner);
        self.batch.clear();
        body(&mut Held { database: &engine.database, batch: &mut self.batch })?;
        engine.database.write(&self.batch, engine.durable)
    }
}

/// A transaction that holds the lock.
struct Held<'a> {
    database: &'a Database,
    batch: &'a mut Batch,
}

impl Access for Held<'_> {
    fn get(&mut self, key: &[u8], value: &mut Vec<u8>) -> Result<bool> {
        self.database.get(key, value)
    }

    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        self.batch.put(key, value);
        Ok(())
    }
}
