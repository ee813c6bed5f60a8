//! Kyoto Cabinet 1.2, from Debian's library: its file tree for tables, its file hash for maps.
//!
//! What other threads write while a transaction of Kyoto Cabinet runs becomes part of it, and is taken back with it. The adapter
//! therefore collects a transaction's writes, and holds a lock alone from its beginning to its end; single writes and additions,
//! which the library does in one step, share that lock; reads need none.
//!
//! A durable single write is followed by a hard `kcdbsync`. With the mode `OAUTOSYNC`, the library would sync each page of a tree
//! and each record of a hash transaction for itself, which takes more syncs for the same promise.

mod library;

use std::sync::{PoisonError, RwLock};

use anyhow::{Context, Result, ensure};

use self::library::Database;
use super::catalog::{Description, Mode, Settings, Shape};
use super::library::first_rows;
use super::{Access, Engine, Worker};
use crate::generate::{Entry, Key, add_to_first_word};

pub(super) const DESCRIPTION: Description = Description {
    what: "Kyoto Cabinet: a B+ tree (tables) or hash table (maps) in one mapped file",
    modes: &[Mode::Strong, Mode::Weak],
    shapes: &[Shape::Table, Shape::Map],
    transactions: true,
    keeps_data: true,
    durable_puts: true,
    past_page_cache: false,
    reopens: false,
    snapshot_scans: false,
    settings: |mode| match mode {
        Mode::Weak => {
            "no sync, one hard sync at the end; TreeDB (page cache of the size given) or HashDB (two buckets a key), linear \
             chains, file mapped up to the cache's size, no compression; transactions by begin_transaction (soft) behind the \
             adapter's lock, which single writes share; batches by set_bulk"
        }
        _ => {
            "hard sync after each write; TreeDB (page cache of the size given) or HashDB (two buckets a key), linear chains, \
             file mapped up to the cache's size, no compression; transactions by begin_transaction (hard) behind the adapter's \
             lock, which single writes share; batches by set_bulk and a hard sync"
        }
    },
    version: library::version,
};

/// Bytes of a page of a tree, which is the library's default.
const PAGE_BYTES: u64 = 8192;

/// A Kyoto Cabinet database.
pub(super) struct KyotoCabinet {
    database: Database,
    durable: bool,
    /// Shared by single writes, held alone by transactions.
    lock: RwLock<()>,
}

impl KyotoCabinet {
    /// Creates a database.
    pub(super) fn create(settings: &Settings) -> Result<KyotoCabinet> {
        let path =
            settings.path.to_str().context("Kyoto Cabinet needs a path in UTF-8; name one with --dir")?;
        // What follows the sign is tuning.
        ensure!(
            !path.contains('#'),
            "Kyoto Cabinet cannot have # in its path {path}; name another with --dir"
        );
        let (records, cache) = (settings.records, settings.cache_bytes);
        let path = match settings.shape {
            Shape::Table => {
                // Each page of the tree is a record of the hash table below it; pages are about half full.
                let record_bytes = (settings.sizes.key_bytes + settings.sizes.value_bytes) as u64;
                let buckets = (4 * records * record_bytes / PAGE_BYTES).max(1 << 16);
                format!("{path}/data.kct#opts=l#bnum={buckets}#msiz={cache}#pccap={cache}")
            }
            Shape::Map => {
                let buckets = (2 * records).max(1 << 16);
                format!("{path}/data.kch#opts=l#bnum={buckets}#msiz={cache}")
            }
        };
        let database = Database::create(&path)
            .with_context(|| format!("cannot create the Kyoto Cabinet database {path}"))?;
        Ok(KyotoCabinet { database, durable: settings.mode.is_durable(), lock: RwLock::new(()) })
    }
}

impl Engine for KyotoCabinet {
    type Worker<'a> = KyotoCabinetWorker<'a>;

    fn worker(&self) -> Result<KyotoCabinetWorker<'_>> {
        Ok(KyotoCabinetWorker { engine: self, writes: Vec::new(), value: Vec::new() })
    }

    fn key_count(&self) -> Result<u64> {
        self.database.count()
    }

    fn persist(&self) -> Result<()> {
        if self.durable { Ok(()) } else { self.database.sync() }
    }

    fn close(self) -> Result<()> {
        self.database.close()
    }
}

/// One thread's access to a [`KyotoCabinet`].
pub(super) struct KyotoCabinetWorker<'a> {
    engine: &'a KyotoCabinet,
    writes: Vec<(Key, Vec<u8>)>,
    value: Vec<u8>,
}

impl KyotoCabinetWorker<'_> {
    /// Writes while no transaction runs.
    #[inline]
    fn write<T>(&self, durably: bool, write: impl FnOnce(&Database) -> Result<T>) -> Result<T> {
        // The lock guards no data that a panic could leave half-changed.
        let _shared = self.engine.lock.read().unwrap_or_else(PoisonError::into_inner);
        let written = write(&self.engine.database)?;
        if durably {
            self.engine.database.sync()?;
        }
        Ok(written)
    }
}

impl Worker for KyotoCabinetWorker<'_> {
    #[inline]
    fn get(&mut self, key: &[u8], value: &mut Vec<u8>) -> Result<bool> {
        self.engine.database.get(key, value)
    }

    #[inline]
    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        self.write(self.engine.durable, |database| database.put(key, value))
    }

    fn put_durably(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        self.write(true, |database| database.put(key, value))
    }

    #[inline]
    fn add(&mut self, key: &[u8], delta: u64) -> Result<()> {
        let mut value = std::mem::take(&mut self.value);
        let changed = self.write(self.engine.durable, |database| {
            database.change(key, &mut value, &mut |value| add_to_first_word(value, delta))
        });
        self.value = value;
        ensure!(changed?, "a key is missing");
        Ok(())
    }

    fn put_all(&mut self, entries: &[Entry]) -> Result<()> {
        self.write(self.engine.durable, |database| database.put_all(entries))
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
        let KyotoCabinet { database, durable, lock } = self.engine;
        let _alone = lock.write().unwrap_or_else(PoisonError::into_inner);
        self.writes.clear();
        body(&mut Held { database, writes: &mut self.writes })?;
        let writes = &self.writes;
        database.transact(*durable, || writes.iter().try_for_each(|(key, value)| database.put(key, value)))
    }
}

/// A transaction that holds the lock.
struct Held<'a> {
    database: &'a Database,
    writes: &'a mut Vec<(Key, Vec<u8>)>,
}

impl Access for Held<'_> {
    fn get(&mut self, key: &[u8], value: &mut Vec<u8>) -> Result<bool> {
        self.database.get(key, value)
    }

    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        self.writes.push((Key::new(key), value.to_vec()));
        Ok(())
    }
}
