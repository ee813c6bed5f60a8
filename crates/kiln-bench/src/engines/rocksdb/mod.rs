//! RocksDB 7.8, from Debian's library.
//!
//! Single writes and reads go to the database below the optimistic transactions. Those check at their commit whether what they
//! have read has changed. They do so in parallel with other writers, and so are only isolated from other transactions, not from
//! single writes to the same keys; no workload mixes the two, and additions are transactions for that reason. They read the newest
//! values and take no snapshot, which costs a lock of the whole database; only a body that fails is repeated on one.

mod library;

use std::thread::available_parallelism;

use anyhow::{Context, Result};

use self::library::{Database, Options, Outcome, Transaction, View};
use super::catalog::{Description, Mode, Settings, Shape};
use super::library::first_rows;
use super::{Access, Engine, Worker};
use crate::generate::{Entry, Key};

pub(super) const DESCRIPTION: Description = Description {
    what: "RocksDB: a log-structured merge tree with optimistic transactions",
    modes: &[Mode::Strong, Mode::Weak],
    shapes: &[Shape::Table],
    transactions: true,
    keeps_data: true,
    durable_puts: true,
    past_page_cache: true,
    reopens: true,
    snapshot_scans: true,
    settings: |mode| match mode {
        Mode::Weak => {
            "log without sync and buffered (manual_wal_flush), FlushWAL with sync at the end; LRU block cache, 10-bit bloom \
             filters, hash index in blocks, bloom filter in memtables, 4 write buffers of 64 MiB, a background job for each \
             core, dynamic levels, all files open, no compression; optimistic transactions, pinned reads, batched MultiGet; cold-*: direct reads, two write buffers of a sixteenth of the \
             memory, and the rest for the block cache"
        }
        _ => {
            "log with sync at each commit; LRU block cache, 10-bit bloom filters, hash index in blocks, bloom filter in \
             memtables, 4 write buffers of 64 MiB, a background job for each core, dynamic levels, all files open, no \
             compression; optimistic transactions, pinned reads, batched MultiGet"
        }
    },
    version: library::version,
};

/// A write buffer where data is larger than memory, at least: smaller ones make more files than are worth it.
const COLD_BUFFER_BYTES_MIN: usize = 1 << 20;

/// A RocksDB database.
pub(super) struct RocksDb {
    database: Database,
    durable: bool,
}

impl RocksDb {
    /// Creates a database.
    pub(super) fn create(settings: &Settings) -> Result<RocksDb> {
        let durable = settings.mode.is_durable();
        let mut options = Options {
            threads: available_parallelism().map_or(2, usize::from).try_into()?,
            cache_bytes: settings.cache_bytes.try_into()?,
            write_buffer_bytes: 64 << 20,
            write_buffers: 4,
            direct_reads: settings.cold,
            bloom_bits: 10.0,
            buffers_log: !durable,
        };
        if settings.cold {
            // What is written last stays in write buffers: they and the block cache are the memory.
            options.write_buffers = 2;
            options.write_buffer_bytes = (options.cache_bytes / 16).clamp(COLD_BUFFER_BYTES_MIN, 64 << 20);
            options.cache_bytes = options.cache_bytes.saturating_sub(2 * options.write_buffer_bytes);
        }
        let database = Database::create(&settings.path, &options)
            .with_context(|| format!("cannot create a RocksDB database in {}", settings.path.display()))?;
        Ok(RocksDb { database, durable })
    }
}

impl Engine for RocksDb {
    type Worker<'a> = RocksDbWorker<'a>;

    fn worker(&self) -> Result<RocksDbWorker<'_>> {
        let transaction = Transaction::new(&self.database, self.durable)?;
        Ok(RocksDbWorker { database: &self.database, durable: self.durable, transaction })
    }

    fn key_count(&self) -> Result<u64> {
        // The library only estimates it.
        let mut count = 0;
        self.database.scan(&[], &mut |_, _| {
            count += 1;
            Ok(true)
        })?;
        Ok(count)
    }

    fn persist(&self) -> Result<()> {
        if self.durable { Ok(()) } else { self.database.sync() }
    }

    fn checkpoint(&self) -> Result<()> {
        // What is in a table of its own needs no log.
        self.persist()?;
        self.database.flush()
    }
}

/// One thread's access to a [`RocksDb`].
pub(super) struct RocksDbWorker<'a> {
    database: &'a Database,
    durable: bool,
    transaction: Transaction<'a>,
}

impl Worker for RocksDbWorker<'_> {
    #[inline]
    fn get(&mut self, key: &[u8], value: &mut Vec<u8>) -> Result<bool> {
        self.database.get(key, value)
    }

    #[inline]
    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        self.database.put(key, value, self.durable)
    }

    fn put_durably(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        self.database.put(key, value, true)
    }

    fn get_all(&mut self, keys: &[Key], row: &mut dyn FnMut(usize, &[u8]) -> Result<()>) -> Result<()> {
        self.database.get_all(keys, row)
    }

    fn put_all(&mut self, entries: &[Entry]) -> Result<()> {
        self.database.put_all(entries, self.durable)
    }

    fn scan(
        &mut self,
        from: &[u8],
        count: usize,
        row: &mut impl FnMut(&[u8], &[u8]) -> Result<()>,
    ) -> Result<()> {
        first_rows(count, row, |rows| self.database.scan(from, rows))
    }

    fn transact(&mut self, body: &mut dyn FnMut(&mut dyn Access) -> Result<()>) -> Result<()> {
        let mut view = View::Newest;
        loop {
            self.transaction.begin(view);
            if let Err(error) = body(&mut self.transaction) {
                self.transaction.roll_back()?;
                if view == View::Snapshot {
                    return Err(error);
                }
                // It may have seen values of two states, which the commit would have found out. In a snapshot, its error is real.
                view = View::Snapshot;
                continue;
            }
            if self.transaction.commit()? == Outcome::Committed {
                return Ok(());
            }
            view = View::Newest;
        }
    }
}

impl Access for Transaction<'_> {
    fn get(&mut self, key: &[u8], value: &mut Vec<u8>) -> Result<bool> {
        Transaction::get(self, key, value)
    }

    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        Transaction::put(self, key, value)
    }
}
