//! LMDB: a copy-on-write B+-tree in a memory map, in C, by way of heed.
//!
//! One write transaction runs at a time; others wait for the lock in `write_txn`. The only table is the unnamed one: a named
//! one is itself looked up in each transaction. A weak database writes into the map and leaves the rest to the kernel;
//! `persist` syncs the map. That cannot make a single commit durable: the kernel may write the pages of later commits in any
//! order, so that a power cut can take an older commit along that had been synced. Readers keep their snapshot for as long as
//! nothing is committed (see [`super::commits`]).

mod environment;

use std::ops::Bound;

use anyhow::{Context, Result};
use heed::types::Bytes;
use heed::{CommitOrAbort, Env, EnvFlags, RoTxn, RwTxn, WithoutTls};

use super::catalog::{Description, Mode, Settings, Shape};
use super::commits::{Commits, Moment};
use super::{Access, Engine, Worker};
use crate::generate::{Entry, Key};

pub(super) const DESCRIPTION: Description = Description {
    what: "LMDB: a memory-mapped copy-on-write B+-tree in C, one writer at a time",
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
            "NOSYNC, WRITEMAP, NOTLS, then mdb_env_sync; a map of 64 GiB (the kernel's page cache is its cache), with NORDAHEAD \
             where memory is limited; read transactions are kept until something is committed"
        }
        _ => {
            "NOMEMINIT, NOTLS, synchronous commits; a map of 64 GiB (the kernel's page cache is its cache), with NORDAHEAD \
             where memory is limited; read transactions are kept until something is committed"
        }
    },
    version: || {
        let version = heed::lmdb_version();
        Ok(format!("{}.{}.{}", version.major, version.minor, version.patch))
    },
};

type Table = heed::Database<'static, Bytes, Bytes>;
type Snapshot<'a> = RoTxn<'a, WithoutTls>;

/// An LMDB environment with one table.
pub(crate) struct LmdbEngine {
    environment: Env<WithoutTls>,
    table: Table,
    durable: bool,
    commits: Commits,
}

impl LmdbEngine {
    /// Creates a database.
    pub(crate) fn create(settings: &Settings) -> Result<LmdbEngine> {
        let durable = settings.mode.is_durable();
        let mut flags = if durable { EnvFlags::NO_MEM_INIT } else { EnvFlags::NO_SYNC | EnvFlags::WRITE_MAP };
        flags.set(EnvFlags::NO_READ_AHEAD, settings.limited);
        let environment = environment::open(&settings.path, flags)
            .with_context(|| format!("cannot create an LMDB database in {}", settings.path.display()))?;
        let table = create_table(&environment)?;
        Ok(LmdbEngine { environment, table, durable, commits: Commits::default() })
    }

    /// Writes in a transaction, which waits for its turn.
    fn write(&self, body: impl FnOnce(&mut RwTxn<'_>) -> Result<()>) -> Result<()> {
        let mut transaction = self.environment.write_txn()?;
        // Dropping the transaction after an error takes it back.
        body(&mut transaction)?;
        Ok(self.commits.count(|| transaction.commit())?)
    }
}

fn create_table(environment: &Env<WithoutTls>) -> Result<Table> {
    let transaction = environment.write_txn()?;
    let created = environment.create_databases_and_commit(transaction, |opener, transaction| {
        opener.create_database(transaction, None).map(CommitOrAbort::<_, ()>::Commit)
    })?;
    match created {
        CommitOrAbort::Commit(table) => Ok(table),
        CommitOrAbort::Abort(()) => {
            anyhow::bail!("creating LMDB's table was given up, which nobody asked for")
        }
    }
}

impl Engine for LmdbEngine {
    type Worker<'a> = LmdbWorker<'a>;

    fn worker(&self) -> Result<LmdbWorker<'_>> {
        Ok(LmdbWorker { engine: self, snapshot: None })
    }

    fn key_count(&self) -> Result<u64> {
        let snapshot = self.environment.read_txn()?;
        Ok(self.table.len(&snapshot)?)
    }

    fn persist(&self) -> Result<()> {
        if !self.durable {
            self.environment.force_sync()?;
        }
        Ok(())
    }

    fn close(self) -> Result<()> {
        self.environment.prepare_for_closing().wait();
        Ok(())
    }
}

/// One thread's access to an [`LmdbEngine`].
pub(crate) struct LmdbWorker<'a> {
    engine: &'a LmdbEngine,
    snapshot: Option<(Moment, Snapshot<'a>)>,
}

impl<'a> LmdbWorker<'a> {
    /// The table as it is now.
    #[inline]
    fn snapshot(&mut self) -> Result<&Snapshot<'a>> {
        if self.snapshot.as_ref().is_none_or(|(moment, _)| !self.engine.commits.none_since(*moment)) {
            self.snapshot = None;
            let moment = self.engine.commits.now();
            self.snapshot = Some((moment, self.engine.environment.read_txn()?));
        }
        self.snapshot.as_ref().map(|(_, snapshot)| snapshot).context("a snapshot has just been taken")
    }

    /// Gives the snapshot up and writes.
    fn write(&mut self, body: impl FnOnce(&mut RwTxn<'_>) -> Result<()>) -> Result<()> {
        self.snapshot = None;
        self.engine.write(body)
    }
}

impl Worker for LmdbWorker<'_> {
    #[inline]
    fn get(&mut self, key: &[u8], value: &mut Vec<u8>) -> Result<bool> {
        let table = self.engine.table;
        get(table, self.snapshot()?, key, value)
    }

    #[inline]
    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        let table = self.engine.table;
        self.write(|transaction| Ok(table.put(transaction, key, value)?))
    }

    fn put_durably(&mut self, _key: &[u8], _value: &[u8]) -> Result<()> {
        anyhow::bail!("LMDB cannot make one commit durable among others that are not; ask another engine")
    }

    fn get_all(&mut self, keys: &[Key], row: &mut dyn FnMut(usize, &[u8]) -> Result<()>) -> Result<()> {
        let table = self.engine.table;
        let snapshot = self.snapshot()?;
        for (at, key) in keys.iter().enumerate() {
            row(at, table.get(snapshot, key)?.context("a key is missing")?)?;
        }
        Ok(())
    }

    fn put_all(&mut self, entries: &[Entry]) -> Result<()> {
        let table = self.engine.table;
        self.write(|transaction| {
            entries.iter().try_for_each(|entry| Ok(table.put(transaction, &entry.key, &entry.value)?))
        })
    }

    fn scan(
        &mut self,
        from: &[u8],
        count: usize,
        row: &mut impl FnMut(&[u8], &[u8]) -> Result<()>,
    ) -> Result<()> {
        // LMDB knows no empty key, not even as a bound.
        let first = if from.is_empty() { Bound::Unbounded } else { Bound::Included(from) };
        let table = self.engine.table;
        for entry in table.range(self.snapshot()?, &(first, Bound::Unbounded))?.take(count) {
            let (key, value) = entry?;
            row(key, value)?;
        }
        Ok(())
    }

    fn transact(&mut self, body: &mut dyn FnMut(&mut dyn Access) -> Result<()>) -> Result<()> {
        let table = self.engine.table;
        self.write(|transaction| body(&mut LmdbAccess { table, transaction }))
    }
}

#[inline]
fn get(table: Table, transaction: &RoTxn<'_>, key: &[u8], value: &mut Vec<u8>) -> Result<bool> {
    value.clear();
    let found = table.get(transaction, key)?;
    Ok(found.map(|found| value.extend_from_slice(found)).is_some())
}

/// A running transaction.
struct LmdbAccess<'a, 'env> {
    table: Table,
    transaction: &'a mut RwTxn<'env>,
}

impl Access for LmdbAccess<'_, '_> {
    fn get(&mut self, key: &[u8], value: &mut Vec<u8>) -> Result<bool> {
        get(self.table, self.transaction, key, value)
    }

    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        Ok(self.table.put(self.transaction, key, value)?)
    }
}
