//! Kiln itself.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, Result};
use kiln::{Kiln, Level, Map, Object, Table, Transaction};

use super::catalog::{Description, Mode, Settings, Shape};
use super::{Access, Engine, Hardening, Worker};
use crate::generate::{Entry, Key, add_to_first_word};

pub(super) const DESCRIPTION: Description = Description {
    what: "Kiln's tables and maps: serializable transactions that commit first and harden in order",
    modes: &[Mode::Safe, Mode::Fast, Mode::Floor],
    shapes: &[Shape::Table, Shape::Map],
    transactions: true,
    keeps_data: true,
    durable_puts: true,
    past_page_cache: true,
    reopens: true,
    snapshot_scans: true,
    settings: |mode| match mode {
        Mode::Floor => "the same, of which nothing hardens while it is measured (--window never)",
        _ => {
            "defaults; memory for log and caches as given for caches (64 MiB or less, and cold-*: smaller segments; 64 MiB or less: and its files through the page cache, as the others have theirs, and unsettled_bytes 512 MiB)"
        }
    },
    version: || Ok(env!("CARGO_PKG_VERSION").to_owned()),
};

/// Where data is larger than memory, or there is little of it, that is so many segments of the log, or more of the usual size.
const COLD_SEGMENTS: u64 = 16;
const COLD_SEGMENT_BYTES_MAX: u64 = 32 << 20;
/// And at least this.
const COLD_MEMORY_BYTES_MIN: u64 = 1 << 20;
/// With so little memory, or less, segments are small, too, and what settles at once would be so little that most of the tree is written for it.
const SMALL_MEMORY_BYTES: u64 = 64 << 20;
/// As much as the write buffers of log-structured peers and what they have still to merge.
const SMALL_MEMORY_UNSETTLED_BYTES: u64 = 512 << 20;

/// A window that does not end while anything is measured.
const NEVER: Duration = Duration::from_secs(24 * 3600);

/// A kind of object with one key for one value.
pub(crate) trait KilnObject: Object + Clone + Send + Sync {
    /// What a person calls it.
    const KIND: &'static str;
    /// Whether its keys are in order.
    const SHAPE: Shape;

    /// Opens or creates the object.
    fn open(db: &Kiln) -> kiln::Result<Self>;

    /// How many keys it has.
    fn key_count(&self) -> u64;

    /// Reads rows from a key on.
    fn scan(
        &self,
        db: &Kiln,
        from: &[u8],
        count: usize,
        row: impl FnMut(&[u8], &[u8]) -> Result<()>,
    ) -> Result<()>;
}

impl KilnObject for Map {
    const KIND: &'static str = "Map";
    const SHAPE: Shape = Shape::Map;

    fn open(db: &Kiln) -> kiln::Result<Map> {
        db.map("bench")
    }

    fn key_count(&self) -> u64 {
        self.len()
    }

    fn scan(&self, _: &Kiln, _: &[u8], _: usize, _: impl FnMut(&[u8], &[u8]) -> Result<()>) -> Result<()> {
        anyhow::bail!("a map has no order")
    }
}

impl KilnObject for Table {
    const KIND: &'static str = "Table";
    const SHAPE: Shape = Shape::Table;

    fn open(db: &Kiln) -> kiln::Result<Table> {
        db.table("bench")
    }

    fn key_count(&self) -> u64 {
        self.len()
    }

    #[inline]
    fn scan(
        &self,
        db: &Kiln,
        from: &[u8],
        count: usize,
        mut row: impl FnMut(&[u8], &[u8]) -> Result<()>,
    ) -> Result<()> {
        let snapshot = db.snapshot()?;
        let mut range = snapshot.range(self, from..).limit(count);
        while let Some((key, value)) = range.next_row()? {
            row(key, value)?;
        }
        Ok(())
    }
}

/// A Kiln database with one object.
pub(crate) struct KilnEngine<O> {
    db: Kiln,
    object: O,
    safe: bool,
    has_counters: bool,
    /// How many sessions there were.
    sessions: AtomicU64,
}

impl<O: KilnObject> KilnEngine<O> {
    /// Creates a database. Of the mode "floor" nothing is ever made durable but what [`Engine::persist`] is asked for.
    pub(crate) fn create(settings: &Settings) -> Result<KilnEngine<O>> {
        let db = options(settings)
            .open(&settings.path)
            .with_context(|| format!("cannot create a database in {}", settings.path.display()))?;
        let object = O::open(&db)?;
        let (safe, sessions) = (settings.mode.is_durable(), AtomicU64::new(0));
        let has_counters = settings.sizes.value_bytes == size_of::<i64>();
        Ok(KilnEngine { db, object, safe, has_counters, sessions })
    }

    pub(super) fn db(&self) -> &Kiln {
        &self.db
    }

    /// The log's part of its memory.
    pub(crate) fn log_memory_bytes(&self) -> u64 {
        self.db.statistics().ring_bytes
    }

    /// Access for one task.
    pub(crate) fn client(&self) -> KilnClient<O> {
        KilnClient { db: self.db.clone(), object: self.object.clone() }
    }
}

/// How a database is opened.
fn options(settings: &Settings) -> kiln::Options {
    let mut options = kiln::Options::new().window(settings.window);
    options = if settings.cold || settings.cache_bytes <= SMALL_MEMORY_BYTES {
        // The log has two segments at least: they must not be more than the memory.
        let memory_bytes = settings.cache_bytes.max(COLD_MEMORY_BYTES_MIN);
        let segment_bytes = (memory_bytes / COLD_SEGMENTS).min(COLD_SEGMENT_BYTES_MAX);
        let options = options.memory(memory_bytes).segment_bytes(1 << segment_bytes.ilog2());
        // What the others leave to the page cache.
        match settings.cold {
            true => options,
            false => options.system_page_cache(true).unsettled_bytes(SMALL_MEMORY_UNSETTLED_BYTES),
        }
    } else {
        options.memory(settings.cache_bytes)
    };
    if !settings.checkpoints {
        options = options.checkpoint_log_bytes(0);
    }
    if settings.mode == Mode::Floor {
        // Neither time nor bytes make it harden, and what it would do to its log can wait until something has hardened.
        options = options.window(NEVER).unhardened_bytes(u64::MAX).checkpoint_log_bytes(0);
        options = options.space_amplification(f64::INFINITY);
    }
    options
}

impl<O: KilnObject> Engine for KilnEngine<O> {
    type Worker<'a>
        = KilnWorker<'a, O>
    where
        Self: 'a;

    fn worker(&self) -> Result<KilnWorker<'_, O>> {
        Ok(KilnWorker {
            db: &self.db,
            object: &self.object,
            safe: self.safe,
            has_counters: self.has_counters,
            session: None,
            sessions: &self.sessions,
        })
    }

    fn key_count(&self) -> Result<u64> {
        Ok(self.object.key_count())
    }

    fn persist(&self) -> Result<()> {
        Ok(self.db.persist()?)
    }

    fn checkpoint(&self) -> Result<()> {
        self.db.persist()?;
        self.db.checkpoint()?;
        Ok(())
    }

    fn is_warm(&self) -> bool {
        // The log's memory is touched for the first time until its tail has gone once round.
        let statistics = self.db.statistics();
        statistics.log_tail > statistics.ring_bytes
    }

    fn progress(&self) -> Option<Hardening> {
        let durable = self.db.horizon(Level::LOCAL).number();
        Some(Hardening { current: self.db.version().number(), durable })
    }

    fn hardenings(&self) -> Option<u64> {
        Some(self.db.statistics().hardenings)
    }

    fn close(self) -> Result<()> {
        drop(self.object);
        self.db.close().context("cannot close the database")
    }
}

/// One thread's access to a [`KilnEngine`].
pub(crate) struct KilnWorker<'a, O> {
    db: &'a Kiln,
    object: &'a O,
    safe: bool,
    /// Its values are numbers of 8 bytes, which the database itself can add to.
    has_counters: bool,
    /// Begun by its first operation.
    session: Option<kiln::Session>,
    sessions: &'a AtomicU64,
}

impl<'a, O: KilnObject> KilnWorker<'a, O> {
    /// Runs a transaction and commits it; what it promises is the caller's affair.
    pub(super) fn run(
        &self,
        body: &mut dyn FnMut(&mut dyn Access) -> Result<()>,
    ) -> Result<kiln::Commit<'a, ()>> {
        let mut failure = None;
        let commit = self.db.transact(|tx| {
            let mut access = KilnAccess { tx, object: self.object, error: None };
            let result = body(&mut access);
            match access.error {
                // A conflict is tried again by the database.
                Some(error) => Err(error),
                None => result.map_err(|error| {
                    failure = Some(error);
                    kiln::Error::caller("the workload gave up")
                }),
            }
        });
        match failure {
            Some(failure) => Err(failure),
            None => Ok(commit?),
        }
    }

    /// Acknowledges a commit as the mode says.
    #[inline]
    fn acknowledge<T>(&self, commit: kiln::Commit<'_, T>) -> Result<()> {
        if self.safe {
            commit.safe()?;
        } else {
            commit.forget();
        }
        Ok(())
    }
}

impl<O: KilnObject> Worker for KilnWorker<'_, O> {
    #[inline]
    fn get(&mut self, key: &[u8], value: &mut Vec<u8>) -> Result<bool> {
        Ok(self.db.get_into(self.object, key, value)?)
    }

    #[inline]
    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        self.acknowledge(self.db.put(self.object, key, value)?)
    }

    fn put_durably(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        Ok(self.db.put(self.object, key, value)?.safe()?)
    }

    #[inline]
    fn add(&mut self, key: &[u8], delta: u64) -> Result<()> {
        if self.has_counters {
            let commit = self.db.add(self.object, key, delta.cast_signed())?;
            return self.acknowledge(commit);
        }
        let mut outcome = Ok(());
        let commit = self.db.update_into(self.object, key, |old, new| {
            new.extend_from_slice(old.unwrap_or_default());
            outcome = add_to_first_word(new, delta);
            old.is_some()
        })?;
        self.acknowledge(commit)?;
        outcome
    }

    fn get_all(&mut self, keys: &[Key], row: &mut dyn FnMut(usize, &[u8]) -> Result<()>) -> Result<()> {
        let mut outcome = Ok(());
        self.db.get_many(self.object, keys, |at, value| {
            if outcome.is_ok() {
                outcome = value.context("a key is missing").and_then(|value| row(at, value));
            }
        })?;
        outcome
    }

    fn put_all(&mut self, entries: &[Entry]) -> Result<()> {
        let commit = self.db.transact(|tx| {
            entries.iter().try_for_each(|entry| tx.put(self.object, entry.key, &entry.value))
        })?;
        self.acknowledge(commit)
    }

    fn scan(
        &mut self,
        from: &[u8],
        count: usize,
        row: &mut impl FnMut(&[u8], &[u8]) -> Result<()>,
    ) -> Result<()> {
        self.object.scan(self.db, from, count, row)
    }

    fn put_in_session(&mut self, key: &[u8], value: &[u8]) -> Result<u64> {
        let session = match &mut self.session {
            Some(session) => session,
            none => {
                let number = self.sessions.fetch_add(1, Ordering::Relaxed);
                none.insert(self.db.session(format!("client-{number}"))?)
            }
        };
        Ok(session.put(self.object, key, value)?.version().number())
    }

    fn harden_soon(&self) {
        self.db.harden_soon();
    }

    fn wait_in_session(&mut self, version: u64) -> Result<u64> {
        self.db.receipt(kiln::Version::new(version)).wait(Level::LOCAL)?;
        let session = self.session.as_ref().context("nothing was written in a session")?;
        Ok(session.durable_serial()?)
    }

    fn transact(&mut self, body: &mut dyn FnMut(&mut dyn Access) -> Result<()>) -> Result<()> {
        let commit = self.run(body)?;
        self.acknowledge(commit)
    }
}

/// A running transaction.
struct KilnAccess<'a, 'db, O> {
    tx: &'a Transaction<'db>,
    object: &'a O,
    /// The engine's own error, which outlives the one that the body makes of it.
    error: Option<kiln::Error>,
}

impl<O> KilnAccess<'_, '_, O> {
    fn keep<T>(&mut self, result: kiln::Result<T>) -> Result<T> {
        result.map_err(|error| {
            let text = anyhow::anyhow!("{error}");
            self.error = Some(error);
            text
        })
    }
}

impl<O: KilnObject> Access for KilnAccess<'_, '_, O> {
    fn prefetch(&mut self, keys: &[Key]) {
        self.tx.prefetch(self.object, keys);
    }

    fn get(&mut self, key: &[u8], value: &mut Vec<u8>) -> Result<bool> {
        let found = self.tx.get_into(self.object, key, value);
        self.keep(found)
    }

    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        let put = self.tx.put(self.object, key, value);
        self.keep(put)
    }
}

/// One task's access to a [`KilnEngine`].
pub(crate) struct KilnClient<O> {
    db: Kiln,
    object: O,
}

impl<O: KilnObject> KilnClient<O> {
    /// Writes one key, acknowledged when it is durable.
    pub(crate) async fn put_durably(&self, key: &[u8], value: &[u8]) -> Result<()> {
        let (_, receipt) = self.db.put(&self.object, key, value)?.fast();
        // The other tasks that can commit do so first, and share the hardening.
        tokio::task::yield_now().await;
        Ok(receipt.durable_leading(Level::LOCAL).await?)
    }
}
