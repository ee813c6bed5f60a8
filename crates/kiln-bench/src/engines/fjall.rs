//! fjall: a log-structured merge tree with a journal, in Rust.
//!
//! The transactions are fjall's optimistic ones, which check at the commit whether others have changed what they read. Only
//! commits of other transactions are seen by that check. To write a single key or a batch, though, a transaction is a detour
//! by way of a table in memory, a snapshot and the record of what it wrote. These go straight to the keyspace, and the
//! adapter does for them what fjall does not: they are counted ([`Commits`]), and a transaction during which one of them has
//! begun or was not done is run again, with no such write let in meanwhile, so that it succeeds. Where there are only
//! transactions or only other writes, this costs a shared lock each.
//!
//! The journal is not handed to the operating system at each write (`manual_journal_persist`) but when it is synced: at each
//! commit of a strong database, in `persist` for a weak one. It is written in order, so a sync makes a commit and all before
//! it durable.

use std::sync::{PoisonError, RwLock};

use anyhow::{Context, Result};
use fjall::{
    Keyspace, KeyspaceCreateOptions, KvSeparationOptions, OptimisticTxDatabase, OptimisticTxKeyspace,
    OptimisticWriteTx, PersistMode, Readable,
};

use super::catalog::{Description, Mode, Settings, Shape};
use super::commits::Commits;
use super::versions::locked_version;
use super::{Access, Engine, Worker};
use crate::generate::{Entry, Key};

pub(super) const DESCRIPTION: Description = Description {
    what: "fjall: a log-structured merge tree in Rust with optimistic transactions",
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
            "journal persisted by hand: PersistMode::SyncData at the end; block cache as given; no compression; no \
             filters on the last level; values of 1 KiB and more apart; single writes without a transaction"
        }
        _ => {
            "journal persisted by hand: PersistMode::SyncData at each commit; block cache as given; no compression; \
             no filters on the last level; values of 1 KiB and more apart; single writes without a transaction"
        }
    },
    version: || locked_version("fjall"),
};

/// From this size on, values are kept apart from their keys, as fjall does by default where it is asked to at all.
const SEPARATE_BYTES: usize = 1024;

/// A fjall database with one keyspace.
pub(crate) struct FjallEngine {
    database: OptimisticTxDatabase,
    keyspace: OptimisticTxKeyspace,
    durable: bool,
    /// The writes that are no transactions.
    writes: Commits,
    /// Held shared by writes that are no transactions, and alone by a transaction that must not meet any.
    gate: RwLock<()>,
}

impl FjallEngine {
    /// Creates a database.
    pub(crate) fn create(settings: &Settings) -> Result<FjallEngine> {
        let (database, keyspace) = open(settings)
            .with_context(|| format!("cannot create a fjall database in {}", settings.path.display()))?;
        let (durable, writes) = (settings.mode.is_durable(), Commits::default());
        Ok(FjallEngine { database, keyspace, durable, writes, gate: RwLock::default() })
    }

    /// The keyspace without transactions.
    #[inline]
    fn plain(&self) -> &Keyspace {
        self.keyspace.as_ref()
    }

    /// Writes without a transaction.
    #[inline]
    fn write(&self, durable: bool, body: impl FnOnce() -> fjall::Result<()>) -> Result<()> {
        {
            let _gate = self.gate.read().unwrap_or_else(PoisonError::into_inner);
            self.writes.count(body)?;
        }
        if durable {
            self.database.persist(PersistMode::SyncData)?;
        }
        Ok(())
    }
}

fn open(settings: &Settings) -> fjall::Result<(OptimisticTxDatabase, OptimisticTxKeyspace)> {
    let separate = settings.sizes.value_bytes >= SEPARATE_BYTES;
    let database = OptimisticTxDatabase::builder(&settings.path)
        .cache_size(settings.cache_bytes)
        .manual_journal_persist(true)
        .open()?;
    let keyspace = database.keyspace("bench", || {
        KeyspaceCreateOptions::default()
            .manual_journal_persist(true)
            // Nearly every key that is asked for is there.
            .expect_point_read_hits(true)
            .with_kv_separation(separate.then(KvSeparationOptions::default))
    })?;
    Ok((database, keyspace))
}

impl Engine for FjallEngine {
    type Worker<'a> = FjallWorker<'a>;

    fn worker(&self) -> Result<FjallWorker<'_>> {
        Ok(FjallWorker { engine: self })
    }

    fn key_count(&self) -> Result<u64> {
        Ok(self.plain().len()? as u64)
    }

    fn persist(&self) -> Result<()> {
        Ok(self.database.persist(PersistMode::SyncData)?)
    }

    fn close(self) -> Result<()> {
        // Dropping waits for the background threads, and says nothing of errors: the journal's are looked for before.
        self.persist().context("cannot close the fjall database")
    }
}

/// One thread's access to a [`FjallEngine`].
pub(crate) struct FjallWorker<'a> {
    engine: &'a FjallEngine,
}

impl Worker for FjallWorker<'_> {
    #[inline]
    fn get(&mut self, key: &[u8], value: &mut Vec<u8>) -> Result<bool> {
        value.clear();
        let found = self.engine.plain().get(key)?;
        Ok(found.map(|found| value.extend_from_slice(&found)).is_some())
    }

    #[inline]
    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        let engine = self.engine;
        engine.write(engine.durable, || engine.plain().insert(key, value))
    }

    fn put_durably(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        let engine = self.engine;
        engine.write(true, || engine.plain().insert(key, value))
    }

    fn get_all(&mut self, keys: &[Key], row: &mut dyn FnMut(usize, &[u8]) -> Result<()>) -> Result<()> {
        let snapshot = self.engine.database.read_tx();
        for (at, key) in keys.iter().enumerate() {
            row(at, &snapshot.get(&self.engine.keyspace, key)?.context("a key is missing")?)?;
        }
        Ok(())
    }

    fn put_all(&mut self, entries: &[Entry]) -> Result<()> {
        let engine = self.engine;
        let mut batch = engine.database.inner().batch();
        for entry in entries {
            batch.insert(engine.plain(), &*entry.key, &*entry.value);
        }
        engine.write(engine.durable, || batch.commit())
    }

    fn scan(
        &mut self,
        from: &[u8],
        count: usize,
        row: &mut impl FnMut(&[u8], &[u8]) -> Result<()>,
    ) -> Result<()> {
        for entry in self.engine.plain().range(from..).take(count) {
            let (key, value) = entry.into_inner()?;
            row(&key, &value)?;
        }
        Ok(())
    }

    fn transact(&mut self, body: &mut dyn FnMut(&mut dyn Access) -> Result<()>) -> Result<()> {
        let engine = self.engine;
        let durability = engine.durable.then_some(PersistMode::SyncData);
        let mut alone = None;
        loop {
            let moment = engine.writes.now();
            let transaction = engine.database.write_tx()?.durability(durability);
            let mut access = FjallAccess { keyspace: &engine.keyspace, transaction };
            // Dropping the transaction after an error takes it back.
            body(&mut access)?;
            let gate =
                alone.take().unwrap_or_else(|| engine.gate.write().unwrap_or_else(PoisonError::into_inner));
            if !engine.writes.none_since(moment) {
                // The next attempt meets none, and no other transaction commits before it.
                alone = Some(gate);
            } else if access.transaction.commit()?.is_ok() {
                return Ok(());
            }
        }
    }
}

/// A running transaction.
struct FjallAccess<'a> {
    keyspace: &'a OptimisticTxKeyspace,
    transaction: OptimisticWriteTx,
}

impl Access for FjallAccess<'_> {
    fn get(&mut self, key: &[u8], value: &mut Vec<u8>) -> Result<bool> {
        value.clear();
        let found = self.transaction.get(self.keyspace, key)?;
        Ok(found.map(|found| value.extend_from_slice(&found)).is_some())
    }

    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        self.transaction.insert(self.keyspace, key, value);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::Duration;

    use super::*;
    use crate::generate::Sizes;

    /// fjall's check alone would let the transaction write back what it read before the write.
    #[test]
    fn a_write_without_a_transaction_is_not_lost_among_transactions() {
        let directory = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let settings = Settings {
            path: directory.path().to_owned(),
            mode: Mode::Weak,
            shape: Shape::Map,
            sizes: Sizes { key_bytes: 8, value_bytes: 8 },
            records: 1,
            cache_bytes: 16 << 20,
            window: Duration::from_millis(5),
            cold: false,
            limited: false,
            checkpoints: true,
        };
        let engine = FjallEngine::create(&settings).unwrap();
        engine.worker().unwrap().put(b"key", &0_u64.to_le_bytes()).unwrap();
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let writing_back = scope.spawn(|| {
                let (mut worker, mut value, mut transactions) = (engine.worker().unwrap(), Vec::new(), 0);
                while !done.load(Ordering::Relaxed) {
                    let result = worker.transact(&mut |access| {
                        access.get(b"key", &mut value)?;
                        std::thread::yield_now();
                        access.put(b"key", &value)
                    });
                    result.unwrap();
                    transactions += 1;
                }
                transactions
            });
            let (mut worker, mut value) = (engine.worker().unwrap(), Vec::new());
            let lost = (1..5000_u64).find(|number| {
                worker.put(b"key", &number.to_le_bytes()).unwrap();
                std::thread::yield_now();
                assert!(worker.get(b"key", &mut value).unwrap());
                value != number.to_le_bytes()
            });
            done.store(true, Ordering::Relaxed);
            assert!(writing_back.join().unwrap() > 0);
            assert_eq!(lost, None);
        });
        engine.close().unwrap();
    }
}
