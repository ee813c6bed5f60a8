//! A FASTER store as an engine.

use std::collections::HashSet;
use std::hash::{BuildHasher, RandomState};

use anyhow::{Result, bail, ensure};

use super::store::{Session, Store, Tuning};
use crate::engines::catalog::{Mode, Settings};
use crate::engines::{Access, Engine, Worker};
use crate::generate::{Entry, Sizes};

/// A page of the log.
const PAGE_BYTES: u64 = 32 << 20;
/// FASTER wants as many pages that are not updated in place at least.
const IMMUTABLE_PAGES_MIN: u64 = 4;
/// One page in so many is not updated in place where there are many, as FASTER's own default has it.
const IMMUTABLE_PART: u64 = 10;
/// The log's memory has at least so many pages.
const PAGES_MIN: u64 = 8;
/// A checkpoint writes an index in 256 parts around the page cache, so that each must have 512 bytes: eight buckets.
const BUCKETS_MIN: u64 = 2048;
/// A session is refreshed each so many operations, as FASTER's own benchmark does it.
const REFRESHED_EACH: u32 = 64;

/// A FASTER store.
pub(crate) struct FasterEngine {
    store: Store,
    checkpoints: bool,
}

impl FasterEngine {
    /// Creates a store.
    pub(crate) fn create(settings: &Settings) -> Result<FasterEngine> {
        let store = Store::open(&settings.path, &tuning(settings))?;
        Ok(FasterEngine { store, checkpoints: settings.mode == Mode::Weak })
    }
}

/// The settings with which FASTER is fastest.
fn tuning(settings: &Settings) -> Tuning {
    let words = settings.sizes == Sizes { key_bytes: 8, value_bytes: 8 };
    let record_bytes = if words {
        24
    } else {
        (20 + settings.sizes.key_bytes + settings.sizes.value_bytes).next_multiple_of(8) as u64
    };
    // Updating all records after a checkpoint copies them all, beside what was there.
    let data_bytes = 2 * settings.records * record_bytes;
    let pages = settings.cache_bytes.max(data_bytes).div_ceil(PAGE_BYTES).max(PAGES_MIN);
    let immutable = (pages / IMMUTABLE_PART).max(IMMUTABLE_PAGES_MIN);
    Tuning {
        buckets: (settings.records / 2).max(BUCKETS_MIN).next_power_of_two(),
        log_bytes: pages * PAGE_BYTES,
        // FASTER rounds down to pages.
        mutable_part: ((pages - immutable) as f64 + 0.5) / pages as f64,
        words,
    }
}

impl Engine for FasterEngine {
    type Worker<'a> = FasterWorker<'a>;

    fn worker(&self) -> Result<FasterWorker<'_>> {
        Ok(FasterWorker { session: self.store.session()?, operations: 0 })
    }

    /// FASTER does not count keys, so its whole log is read. Keys are told apart by 128 bits of hashes, which keep the set of
    /// them small: that two of a billion keys share them has a probability of about 10^-21.
    fn key_count(&self) -> Result<u64> {
        let (first, second) = (RandomState::new(), RandomState::new());
        let mut keys = HashSet::new();
        self.store.visit_keys(|key| {
            keys.insert((first.hash_one(key), second.hash_one(key)));
        })?;
        Ok(keys.len() as u64)
    }

    fn persist(&self) -> Result<()> {
        if self.checkpoints { self.store.checkpoint() } else { Ok(()) }
    }
}

/// One thread's session.
pub(crate) struct FasterWorker<'a> {
    session: Session<'a>,
    operations: u32,
}

impl FasterWorker<'_> {
    /// An operation is done.
    #[inline]
    fn tick(&mut self) {
        self.operations = self.operations.wrapping_add(1);
        if self.operations.is_multiple_of(REFRESHED_EACH) {
            self.session.refresh();
        }
    }
}

impl Worker for FasterWorker<'_> {
    #[inline]
    fn get(&mut self, key: &[u8], value: &mut Vec<u8>) -> Result<bool> {
        self.tick();
        self.session.read(key, value)
    }

    #[inline]
    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        self.tick();
        self.session.upsert(key, value)
    }

    fn put_durably(&mut self, _key: &[u8], _value: &[u8]) -> Result<()> {
        bail!("FASTER makes nothing durable but all at once: use the mode weak")
    }

    #[inline]
    fn add(&mut self, key: &[u8], delta: u64) -> Result<()> {
        self.tick();
        ensure!(self.session.add(key, delta)?, "a key is missing");
        Ok(())
    }

    fn put_all(&mut self, entries: &[Entry]) -> Result<()> {
        entries.iter().try_for_each(|entry| self.put(&entry.key, &entry.value))
    }

    fn scan(
        &mut self,
        _from: &[u8],
        _count: usize,
        _row: &mut impl FnMut(&[u8], &[u8]) -> Result<()>,
    ) -> Result<()> {
        bail!("FASTER has no order: use a workload of single keys")
    }

    fn transact(&mut self, _body: &mut dyn FnMut(&mut dyn Access) -> Result<()>) -> Result<()> {
        bail!("FASTER has no transactions: use a workload of single keys")
    }
}
