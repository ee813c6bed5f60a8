//! Kiln itself.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use kiln::{Kiln, Level, Map, Object, Table};

use super::{Engine, Worker};
use crate::generate::Key;
use crate::scratch::disk_bytes;

/// How a Kiln database is opened.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KilnSettings {
    /// The vulnerability window.
    pub(crate) window: Duration,
    /// Memory of the log.
    pub(crate) memory_bytes: u64,
}

/// A kind of object with one key for one value.
pub(crate) trait KilnObject: Object + Clone + Send + Sync {
    /// What a person calls it.
    const KIND: &'static str;
    /// The workload that reads single keys.
    const READ: &'static str;
    /// The workload that writes single keys.
    const WRITE: &'static str;

    /// Opens or creates the object.
    fn open(db: &Kiln) -> kiln::Result<Self>;

    /// How many keys it has.
    fn key_count(&self) -> u64;
}

impl KilnObject for Map {
    const KIND: &'static str = "Map";
    const READ: &'static str = "map-read";
    const WRITE: &'static str = "map-upsert";

    fn open(db: &Kiln) -> kiln::Result<Map> {
        db.map("bench")
    }

    fn key_count(&self) -> u64 {
        self.len()
    }
}

impl KilnObject for Table {
    const KIND: &'static str = "Table";
    const READ: &'static str = "read";
    const WRITE: &'static str = "update";

    fn open(db: &Kiln) -> kiln::Result<Table> {
        db.table("bench")
    }

    fn key_count(&self) -> u64 {
        self.len()
    }
}

/// A Kiln database with one object.
pub(crate) struct KilnEngine<O> {
    db: Kiln,
    object: O,
    path: PathBuf,
    memory_bytes: u64,
}

impl<O: KilnObject> KilnEngine<O> {
    /// Creates a database.
    pub(crate) fn create(path: &Path, settings: KilnSettings) -> Result<KilnEngine<O>> {
        let db = kiln::Options::new()
            .window(settings.window)
            .memory(settings.memory_bytes)
            .open(path)
            .with_context(|| format!("cannot create a database in {}", path.display()))?;
        let object = O::open(&db)?;
        Ok(KilnEngine { db, object, path: path.to_owned(), memory_bytes: settings.memory_bytes })
    }

    /// Access for one task.
    pub(crate) fn client(&self) -> KilnClient<O> {
        KilnClient { db: self.db.clone(), object: self.object.clone() }
    }

    /// Closes the database.
    pub(crate) fn close(self) -> Result<()> {
        drop(self.object);
        self.db.close().context("cannot close the database")
    }
}

impl<O: KilnObject> Engine for KilnEngine<O> {
    type Worker<'a>
        = KilnWorker<'a, O>
    where
        Self: 'a;

    fn name(&self) -> &'static str {
        "kiln"
    }

    fn worker(&self) -> KilnWorker<'_, O> {
        KilnWorker { db: &self.db, object: &self.object, buffer: Vec::new() }
    }

    fn key_count(&self) -> Result<u64> {
        Ok(self.object.key_count())
    }

    fn persist(&self) -> Result<()> {
        Ok(self.db.persist()?)
    }

    fn is_warm(&self) -> bool {
        // The log's memory is touched for the first time until its tail has gone once round.
        self.db.statistics().log_tail > self.memory_bytes
    }

    fn disk_bytes(&self) -> u64 {
        disk_bytes(&self.path)
    }
}

/// One thread's access to a [`KilnEngine`].
pub(crate) struct KilnWorker<'a, O> {
    db: &'a Kiln,
    object: &'a O,
    buffer: Vec<u8>,
}

impl<O: KilnObject> Worker for KilnWorker<'_, O> {
    #[inline]
    fn get(&mut self, key: &Key, value: &mut Vec<u8>) -> Result<bool> {
        Ok(self.db.get_into(self.object, key, value)?)
    }

    #[inline]
    fn put(&mut self, key: &Key, value: &[u8]) -> Result<()> {
        self.db.put(self.object, key, value)?.forget();
        Ok(())
    }

    fn put_durably(&mut self, key: &Key, value: &[u8]) -> Result<()> {
        Ok(self.db.put(self.object, key, value)?.safe()?)
    }

    fn put_all<'v>(&mut self, entries: impl Iterator<Item = (Key, &'v [u8])> + Clone) -> Result<()> {
        self.db
            .transact(|tx| {
                for (key, value) in entries.clone() {
                    tx.put(self.object, key, value)?;
                }
                Ok(())
            })?
            .forget();
        Ok(())
    }

    fn modify_all(
        &mut self,
        keys: &[Key],
        mut change: impl FnMut(usize, &mut [u8]) -> Result<()>,
    ) -> Result<()> {
        let (db, object, buffer) = (self.db, self.object, &mut self.buffer);
        let mut changed = Ok(());
        db.transact(|tx| {
            changed = Ok(());
            tx.prefetch(object, keys);
            for (at, key) in keys.iter().enumerate() {
                let found = tx.get_into(object, key, buffer)?;
                changed = if found { change(at, buffer) } else { Err(anyhow!("a key is missing")) };
                if changed.is_err() {
                    break;
                }
                tx.put(object, key, &*buffer)?;
            }
            Ok(())
        })?
        .forget();
        changed
    }
}

/// One task's access to a [`KilnEngine`].
pub(crate) struct KilnClient<O> {
    db: Kiln,
    object: O,
}

impl<O: KilnObject> KilnClient<O> {
    /// Writes one key, acknowledged when it is durable.
    pub(crate) async fn put_durably(&self, key: &Key, value: &[u8]) -> Result<()> {
        let (_, receipt) = self.db.put(&self.object, key, value)?.fast();
        // The other tasks that can commit do so first, and share the hardening.
        tokio::task::yield_now().await;
        Ok(receipt.durable_leading(Level::LOCAL).await?)
    }
}
