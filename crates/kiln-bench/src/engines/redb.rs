//! redb: a copy-on-write B+-tree in one file, in Rust.
//!
//! One write transaction runs at a time; others wait for it in `begin_write`. A commit of [`Durability::None`] is kept in
//! memory until one of [`Durability::Immediate`] writes it out with its own, so each commit is as durable as it asks to be,
//! and an empty one makes everything durable. Readers keep their snapshot for as long as nothing is committed (see
//! [`super::commits`]), with the table opened in it.

use std::path::Path;

use anyhow::{Context, Result};
use redb::{
    Database, Durability, ReadOnlyTable, ReadableDatabase, ReadableTableMetadata, TableDefinition,
    WriteTransaction,
};

use super::catalog::{Description, Mode, Settings, Shape};
use super::commits::{Commits, Moment};
use super::versions::locked_version;
use super::{Access, Engine, Worker};
use crate::generate::{Entry, Key};

pub(super) const DESCRIPTION: Description = Description {
    what: "redb: a copy-on-write B+-tree in Rust, one writer at a time",
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
            "Durability::None at each commit, then an empty commit with Durability::Immediate; cache as given; \
             read transactions are kept until something is committed"
        }
        _ => {
            "Durability::Immediate in one phase, no quick repair (the defaults); cache as given; \
             read transactions are kept until something is committed"
        }
    },
    version: || locked_version("redb"),
};

const TABLE: TableDefinition<'static, &'static [u8], &'static [u8]> = TableDefinition::new("bench");

type Table<'txn> = redb::Table<'txn, &'static [u8], &'static [u8]>;
type Snapshot = ReadOnlyTable<&'static [u8], &'static [u8]>;

/// A redb database with one table.
pub(crate) struct RedbEngine {
    database: Database,
    durability: Durability,
    commits: Commits,
}

impl RedbEngine {
    /// Creates a database.
    pub(crate) fn create(settings: &Settings) -> Result<RedbEngine> {
        let path = settings.path.join("redb");
        let database = open(&path, settings.cache_bytes)
            .with_context(|| format!("cannot create a redb database as {}", path.display()))?;
        let durability = if settings.mode.is_durable() { Durability::Immediate } else { Durability::None };
        let engine = RedbEngine { database, durability, commits: Commits::default() };
        // Readers expect the table to be there.
        engine.write(Durability::Immediate, |_| Ok(()))?;
        Ok(engine)
    }

    /// Writes in a transaction, which waits for its turn.
    fn write(&self, durability: Durability, body: impl FnOnce(&mut Table<'_>) -> Result<()>) -> Result<()> {
        let transaction = self.begin(durability)?;
        // Dropping the transaction after an error takes it back.
        body(&mut transaction.open_table(TABLE)?)?;
        Ok(self.commits.count(|| transaction.commit())?)
    }

    fn begin(&self, durability: Durability) -> Result<WriteTransaction> {
        let mut transaction = self.database.begin_write()?;
        transaction.set_durability(durability)?;
        Ok(transaction)
    }

    fn snapshot(&self) -> Result<Snapshot> {
        Ok(self.database.begin_read()?.open_table(TABLE)?)
    }
}

fn open(path: &Path, cache_bytes: u64) -> Result<Database> {
    Ok(Database::builder().set_cache_size(usize::try_from(cache_bytes)?).create(path)?)
}

impl Engine for RedbEngine {
    type Worker<'a> = RedbWorker<'a>;

    fn worker(&self) -> Result<RedbWorker<'_>> {
        Ok(RedbWorker { engine: self, snapshot: None })
    }

    fn key_count(&self) -> Result<u64> {
        Ok(self.snapshot()?.len()?)
    }

    fn persist(&self) -> Result<()> {
        let transaction = self.begin(Durability::Immediate)?;
        Ok(self.commits.count(|| transaction.commit())?)
    }

    fn close(self) -> Result<()> {
        self.database.close().context("cannot close the redb database")
    }
}

/// One thread's access to a [`RedbEngine`].
pub(crate) struct RedbWorker<'a> {
    engine: &'a RedbEngine,
    snapshot: Option<(Moment, Snapshot)>,
}

impl<'a> RedbWorker<'a> {
    /// The table as it is now.
    #[inline]
    fn snapshot(&mut self) -> Result<&Snapshot> {
        if self.snapshot.as_ref().is_none_or(|(moment, _)| !self.engine.commits.none_since(*moment)) {
            self.snapshot = None;
            let moment = self.engine.commits.now();
            self.snapshot = Some((moment, self.engine.snapshot()?));
        }
        self.snapshot.as_ref().map(|(_, snapshot)| snapshot).context("a snapshot has just been taken")
    }

    /// Gives the snapshot up and writes.
    fn write(
        &mut self,
        durability: Durability,
        body: impl FnOnce(&mut Table<'_>) -> Result<()>,
    ) -> Result<()> {
        self.snapshot = None;
        self.engine.write(durability, body)
    }
}

impl Worker for RedbWorker<'_> {
    #[inline]
    fn get(&mut self, key: &[u8], value: &mut Vec<u8>) -> Result<bool> {
        value.clear();
        let found = self.snapshot()?.get(key)?;
        Ok(found.map(|found| value.extend_from_slice(found.value())).is_some())
    }

    #[inline]
    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        self.write(self.engine.durability, |table| put(table, key, value))
    }

    fn put_durably(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        self.write(Durability::Immediate, |table| put(table, key, value))
    }

    fn get_all(&mut self, keys: &[Key], row: &mut dyn FnMut(usize, &[u8]) -> Result<()>) -> Result<()> {
        let snapshot = self.snapshot()?;
        for (at, key) in keys.iter().enumerate() {
            row(at, snapshot.get(&**key)?.context("a key is missing")?.value())?;
        }
        Ok(())
    }

    fn put_all(&mut self, entries: &[Entry]) -> Result<()> {
        self.write(self.engine.durability, |table| {
            entries.iter().try_for_each(|entry| put(table, &entry.key, &entry.value))
        })
    }

    fn scan(
        &mut self,
        from: &[u8],
        count: usize,
        row: &mut impl FnMut(&[u8], &[u8]) -> Result<()>,
    ) -> Result<()> {
        for entry in self.snapshot()?.range(from..)?.take(count) {
            let (key, value) = entry?;
            row(key.value(), value.value())?;
        }
        Ok(())
    }

    fn transact(&mut self, body: &mut dyn FnMut(&mut dyn Access) -> Result<()>) -> Result<()> {
        self.write(self.engine.durability, |table| body(&mut RedbAccess(table)))
    }
}

#[inline]
fn put(table: &mut Table<'_>, key: &[u8], value: &[u8]) -> Result<()> {
    table.insert(key, value)?;
    Ok(())
}

/// A running transaction.
struct RedbAccess<'a, 'txn>(&'a mut Table<'txn>);

impl Access for RedbAccess<'_, '_> {
    fn get(&mut self, key: &[u8], value: &mut Vec<u8>) -> Result<bool> {
        value.clear();
        let found = redb::ReadableTable::get(&*self.0, key)?;
        Ok(found.map(|found| value.extend_from_slice(found.value())).is_some())
    }

    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        put(self.0, key, value)
    }
}
