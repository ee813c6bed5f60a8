//! Kiln's store with a write-ahead log at commit: the baseline of CPR's paper (sections 1 and 7.1), on the same engine.
//!
//! ```text
//!  mod       the engine: a Kiln database that never hardens by itself, and a log beside it
//!   ├── redo     one thread's commit: latches, a record of what is written, its place in the log
//!   ├── log      the buffer that all threads append to
//!   ├── writer   the thread that hardens what was appended, in groups, and takes checkpoints
//!   └── file     groups on the disk, and the way back
//! ```
//!
//! A commit copies what it writes to a place that it reserves in one shared buffer, whose order is the order of all commits that depend on
//! each other. A group is one direct write with a checksum and one `fdatasync`; groups are written as often as Kiln's window would end, or
//! when a quarter of the buffer is full, or when somebody waits. The store below updates in place and never hardens, so that all that it
//! costs more than Kiln without hardening is the log. Transactions that only read append nothing.
//!
//! **Order.** Where a record stands is reserved before the commit, so that whoever reads what it wrote stands behind it. Of two that overwrite the
//! same key without reading it the engine does not tell which came first; so whoever writes holds a latch for each key from before the reservation until
//! the commit is over (a byte of 65,536, mostly in the cache).
//!
//! **Checkpoints.** When the log has a gigabyte, all latches are taken, the rest of the log is hardened, then the store, with the number of the
//! next log in the same version; then the log begins again. Opening replays the log with the number that the store knows. Were the store
//! durable ahead of the log, a transaction that the log has lost could survive in part: so it is an error if it hardens by itself, for want of
//! memory.

mod file;
mod log;
mod redo;
#[cfg(test)]
mod tests;
mod writer;

use std::sync::Arc;

use anyhow::{Context, Result};
use kiln::{Kiln, Level, Map, Version};

use self::file::LogFile;
use self::log::Log;
use self::redo::{Latches, Redo};
use self::writer::Writer;
use super::catalog::{Description, Mode, Settings, Shape};
use super::kiln::{KilnEngine, KilnObject, KilnWorker};
use super::{Access, Engine, Hardening, Worker};
use crate::generate::{Entry, Key, add_to_first_word};

pub(super) const DESCRIPTION: Description = Description {
    what: "Kiln's store with a write-ahead log at commit instead of its own hardening: the baseline of CPR's paper",
    modes: &[Mode::Strong, Mode::Weak],
    shapes: &[Shape::Table, Shape::Map],
    transactions: true,
    keeps_data: true,
    durable_puts: true,
    past_page_cache: false,
    reopens: true,
    snapshot_scans: true,
    settings: |_| {
        "as Kiln, but nothing of it hardens; a redo record in a buffer of 32 MiB for each commit that writes, hardened in groups: direct \
         writes and fdatasync"
    },
    version: || Ok(env!("CARGO_PKG_VERSION").to_owned()),
};

/// Keys of one transaction while the log is replayed.
const REPLAYED_KEYS: usize = 500;

/// The store as the log sees it.
struct Store {
    db: Kiln,
    /// Has one key, the number of the log that goes with what is durable.
    epochs: Map,
    /// What was durable after the last checkpoint.
    horizon: Version,
}

impl Store {
    fn new(db: &Kiln) -> Result<Store> {
        Ok(Store { db: db.clone(), epochs: db.map("epochs")?, horizon: db.horizon(Level::LOCAL) })
    }

    /// The number of the log that goes with what is durable.
    fn epoch(&self) -> Result<u64> {
        let value = self.db.get(&self.epochs, b"epoch")?.unwrap_or_default();
        Ok(value.try_into().map_or(0, u64::from_le_bytes))
    }

    /// Makes everything durable, and another log go with it.
    fn checkpoint(&mut self, epoch: u64) -> Result<()> {
        self.db.put(&self.epochs, b"epoch", epoch.to_le_bytes())?.forget();
        self.db.persist()?;
        self.horizon = self.db.horizon(Level::LOCAL);
        Ok(())
    }

    /// Nothing has become durable since the last checkpoint.
    fn check_untouched(&self) -> Result<()> {
        anyhow::ensure!(
            self.db.horizon(Level::LOCAL) == self.horizon,
            "the store below the write-ahead log has hardened by itself"
        );
        Ok(())
    }
}

/// A Kiln database with one object, and a log.
pub(crate) struct WalEngine<O> {
    kiln: KilnEngine<O>,
    log: Arc<Log>,
    latches: Arc<Latches>,
    writer: Option<std::thread::JoinHandle<()>>,
    waits: bool,
}

impl<O: KilnObject> WalEngine<O> {
    /// Opens a database, or creates it.
    pub(crate) fn create(settings: &Settings) -> Result<WalEngine<O>> {
        let path = settings.path.join("store");
        std::fs::create_dir_all(&path).with_context(|| format!("cannot make {}", path.display()))?;
        let kiln = KilnEngine::<O>::create(&Settings { path, mode: Mode::Floor, ..settings.clone() })?;
        let mut store = Store::new(kiln.db())?;
        let path = settings.path.join("wal");
        let epoch = store.epoch()?;
        let mut entries = Vec::new();
        file::replay(&path, epoch, &mut |key, value| {
            entries.push(Entry { key: Key::new(key), value: value.to_vec() });
            if entries.len() >= REPLAYED_KEYS {
                kiln.worker()?.put_all(&entries)?;
                entries.clear();
            }
            Ok(())
        })
        .with_context(|| format!("cannot replay {}", path.display()))?;
        kiln.worker()?.put_all(&entries)?;
        store.checkpoint(epoch + 1)?;
        let (log, latches) = (Arc::new(Log::new()), Arc::new(Latches::new()));
        let file = LogFile::open(&path, epoch + 1)?;
        let writer = Writer::new(log.clone(), latches.clone(), file, store, settings.window).start()?;
        Ok(WalEngine { kiln, log, latches, writer: Some(writer), waits: settings.mode.is_durable() })
    }

    fn stop(&mut self) -> Result<()> {
        self.log.stop();
        match self.writer.take().map(std::thread::JoinHandle::join) {
            Some(Err(_)) => anyhow::bail!("the log's writer panicked"),
            _ => self.log.failure(),
        }
    }
}

impl<O> Drop for WalEngine<O> {
    fn drop(&mut self) {
        self.log.stop();
        if let Some(writer) = self.writer.take() {
            // Its panic was reported when it happened.
            let _ = writer.join();
        }
    }
}

impl<O: KilnObject> Engine for WalEngine<O> {
    type Worker<'a>
        = WalWorker<'a, O>
    where
        Self: 'a;

    fn worker(&self) -> Result<WalWorker<'_, O>> {
        let redo = Redo::new(&self.log, &self.latches);
        Ok(WalWorker {
            store: self.kiln.worker()?,
            redo,
            log: &self.log,
            waits: self.waits,
            value: Vec::new(),
        })
    }

    fn key_count(&self) -> Result<u64> {
        self.kiln.key_count()
    }

    fn persist(&self) -> Result<()> {
        self.log.wait_for(self.log.tail())
    }

    fn checkpoint(&self) -> Result<()> {
        self.log.checkpoint()
    }

    fn progress(&self) -> Option<Hardening> {
        Some(Hardening { current: self.log.tail(), durable: self.log.durable() })
    }

    fn close(mut self) -> Result<()> {
        self.stop()?;
        self.kiln.db().close().context("cannot close the database")
    }
}

/// One thread's access to a [`WalEngine`].
pub(crate) struct WalWorker<'a, O> {
    store: KilnWorker<'a, O>,
    redo: Redo<'a>,
    log: &'a Log,
    waits: bool,
    value: Vec<u8>,
}

impl<O: KilnObject> WalWorker<'_, O> {
    /// A commit is over: the end of its record, if it was one that is in the log.
    #[inline]
    fn finish(&mut self, outcome: Result<()>) -> Result<Option<u64>> {
        match outcome {
            Ok(()) => Ok(self.redo.commit()),
            Err(error) => {
                self.redo.abandon();
                Err(error)
            }
        }
    }

    #[inline]
    fn acknowledge(&self, end: Option<u64>) -> Result<()> {
        match end {
            Some(end) if self.waits => self.log.wait_for(end),
            _ => Ok(()),
        }
    }

    #[inline]
    fn commit_one(&mut self, key: &[u8], value: &[u8]) -> Result<Option<u64>> {
        self.redo.entry(key, value);
        let outcome = self.redo.begin().and_then(|()| self.store.put(key, value));
        self.finish(outcome)
    }
}

impl<O: KilnObject> Worker for WalWorker<'_, O> {
    #[inline]
    fn get(&mut self, key: &[u8], value: &mut Vec<u8>) -> Result<bool> {
        self.store.get(key, value)
    }

    #[inline]
    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        let end = self.commit_one(key, value)?;
        self.acknowledge(end)
    }

    fn put_durably(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        match self.commit_one(key, value)? {
            Some(end) => self.log.wait_for(end),
            None => Ok(()),
        }
    }

    #[inline]
    fn add(&mut self, key: &[u8], delta: u64) -> Result<()> {
        // Nobody else writes the key while its latch is held.
        self.redo.latch(key);
        let mut value = std::mem::take(&mut self.value);
        let outcome = self.store.get(key, &mut value).and_then(|found| {
            anyhow::ensure!(found, "a key is missing");
            add_to_first_word(&mut value, delta)?;
            self.redo.entry(key, &value);
            self.redo.begin()?;
            self.store.put(key, &value)
        });
        self.value = value;
        let end = self.finish(outcome)?;
        self.acknowledge(end)
    }

    fn get_all(&mut self, keys: &[Key], row: &mut dyn FnMut(usize, &[u8]) -> Result<()>) -> Result<()> {
        self.store.get_all(keys, row)
    }

    fn put_all(&mut self, entries: &[Entry]) -> Result<()> {
        self.transact(&mut |access| entries.iter().try_for_each(|entry| access.put(&entry.key, &entry.value)))
    }

    fn scan(
        &mut self,
        from: &[u8],
        count: usize,
        row: &mut impl FnMut(&[u8], &[u8]) -> Result<()>,
    ) -> Result<()> {
        self.store.scan(from, count, row)
    }

    fn transact(&mut self, body: &mut dyn FnMut(&mut dyn Access) -> Result<()>) -> Result<()> {
        let WalWorker { store, redo, .. } = self;
        let outcome = store.run(&mut |access| {
            // What a try has left that met a conflict.
            redo.abandon();
            body(&mut Recorded { access, redo })?;
            redo.begin()
        });
        let end = self.finish(outcome.map(kiln::Commit::forget))?;
        self.acknowledge(end)
    }
}

/// A running transaction whose writes are recorded.
struct Recorded<'a, 'r> {
    access: &'a mut dyn Access,
    redo: &'a mut Redo<'r>,
}

impl Access for Recorded<'_, '_> {
    fn prefetch(&mut self, keys: &[Key]) {
        self.access.prefetch(keys);
    }

    fn get(&mut self, key: &[u8], value: &mut Vec<u8>) -> Result<bool> {
        self.access.get(key, value)
    }

    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        self.access.put(key, value)?;
        self.redo.entry(key, value);
        Ok(())
    }
}
