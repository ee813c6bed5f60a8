//! A loaded database, with what the workloads remember of it so that its content can be checked.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use super::written::Written;
use crate::engines::{Engine, Worker};
use crate::generate::draws::{Distribution, Draws};
use crate::generate::{Key, SEQUENTIAL, Sizes, stamp};
use crate::interrupt;

/// Keys of a transaction while a database is loaded, and bytes of their values: at most.
const LOAD_KEYS: usize = 500;
const LOAD_BYTES: usize = 64 << 10;
/// Keys whose values are read and checked after each round that writes. At the end all are.
const SAMPLE_KEYS: u64 = 200;
/// Rows of a scan that reads everything, and keys that are read together.
const SCAN_ROWS: usize = 1000;
const CHECKED_KEYS: usize = 256;
/// So long everything that was inserted is checked, and every row's place; and of what is left then, one in so many times
/// [`CHECKED_KEYS`].
pub(crate) const PATIENCE: Duration = Duration::from_secs(2);
const SAMPLED_EACH: usize = 100;

/// A database with one object, and what is in it.
pub(crate) struct Data<'e, E> {
    pub(crate) engine: &'e E,
    pub(crate) sizes: Sizes,
    /// Keys that were loaded: those with the indexes below.
    pub(crate) records: u64,
    /// Indexes that were taken for inserting keys, from [`Self::records`] on.
    pub(super) inserted: AtomicU64,
    /// The same for keys in order.
    pub(super) in_order: AtomicU64,
    draws: Mutex<HashMap<(Distribution, usize), Draws>>,
    /// How often draws were asked for.
    asked: AtomicUsize,
    /// How many clients there were.
    clients: AtomicU64,
    /// What those of the last measurement have written.
    written: Mutex<Vec<Written>>,
    /// What clients have counted up since somebody asked.
    added: AtomicU64,
}

impl<'e, E: Engine> Data<'e, E> {
    /// A database that nothing was loaded into yet.
    pub(crate) fn new(engine: &'e E, sizes: Sizes, records: u64) -> Data<'e, E> {
        let (inserted, in_order) = (AtomicU64::new(0), AtomicU64::new(0));
        Data {
            engine,
            sizes,
            records,
            inserted,
            in_order,
            draws: Mutex::default(),
            asked: AtomicUsize::new(0),
            clients: AtomicU64::new(0),
            written: Mutex::default(),
            added: AtomicU64::new(0),
        }
    }

    /// A number for a client.
    pub(super) fn next_client(&self) -> u64 {
        self.clients.fetch_add(1, Ordering::Relaxed)
    }

    pub(super) fn note_written(&self, written: Written) {
        if written.count() > 0 {
            self.written().push(written);
        }
    }

    pub(super) fn note_added(&self, added: u64) {
        self.added.fetch_add(added, Ordering::Relaxed);
    }

    /// What clients have counted up since this was called before.
    pub(crate) fn take_added(&self) -> u64 {
        self.added.swap(0, Ordering::Relaxed)
    }

    pub(super) fn written(&self) -> MutexGuard<'_, Vec<Written>> {
        self.written.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes all keys, from as many threads as there are processors, and makes them durable.
    pub(crate) fn load(&self) -> Result<()> {
        self.load_counting(0)
    }

    /// The same with values that count so much.
    pub(crate) fn load_counting(&self, counter: u64) -> Result<()> {
        let threads = std::thread::available_parallelism().map_or(1, |count| count.get() as u64);
        std::thread::scope(|scope| {
            let loaders: Vec<_> = (0..threads)
                .map(|thread| {
                    let (from, to) = (self.records * thread / threads, self.records * (thread + 1) / threads);
                    scope.spawn(move || self.load_range(from, to, counter))
                })
                .collect();
            loaders.into_iter().try_for_each(|loader| {
                loader.join().map_err(|_| anyhow::anyhow!("a loading thread panicked"))?
            })
        })
        .context("cannot load the database")?;
        self.engine.persist()
    }

    fn load_range(&self, from: u64, to: u64, counter: u64) -> Result<()> {
        let mut worker = self.engine.worker()?;
        let mut entries = Vec::new();
        let count = (LOAD_BYTES / self.sizes.value_bytes).clamp(1, LOAD_KEYS);
        for first in (from..to).step_by(count) {
            interrupt::check()?;
            entries.resize_with((to.min(first + count as u64) - first) as usize, || self.sizes.entry(0, 0));
            for (index, entry) in (first..).zip(&mut entries) {
                entry.key = self.sizes.key(index);
                stamp(&mut entry.value, index, counter);
            }
            worker.put_all(&entries)?;
        }
        Ok(())
    }

    /// Loads again and again until the engine is as fast as it will stay, or for 60 seconds.
    pub(crate) fn warm_up(&self) -> Result<()> {
        let end = Instant::now() + Duration::from_secs(60);
        while !self.engine.is_warm() && Instant::now() < end {
            // Loading ends with everything durable; so each time all records move on, and are not just updated in place.
            self.load()?;
        }
        Ok(())
    }

    /// The draws of a thread, which are made once, but begin somewhere else each time: or short cells would use the same few
    /// keys over and over. [`Distribution::Latest`] draws ages.
    pub(crate) fn draws(&self, distribution: Distribution, thread: usize) -> Result<Draws> {
        let place = self.asked.fetch_add(1, Ordering::Relaxed);
        let drawn = |draws: &mut HashMap<_, Draws>| {
            draws.get(&(distribution, thread)).map(|draws| draws.at_place(place))
        };
        if let Some(draws) = drawn(&mut *self.draws.lock().unwrap_or_else(PoisonError::into_inner)) {
            return Ok(draws);
        }
        let draws = Draws::new(distribution, thread as u64, self.records)?;
        self.draws
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .insert((distribution, thread), draws.clone());
        Ok(draws)
    }

    /// How many keys there must be.
    pub(super) fn expected_count(&self) -> u64 {
        self.records + self.inserted.load(Ordering::Relaxed) + self.in_order.load(Ordering::Relaxed)
    }

    /// Checks how many keys there are.
    pub(crate) fn check_count(&self) -> Result<()> {
        let (expected, count) = (self.expected_count(), self.engine.key_count()?);
        ensure!(count == expected, "{expected} keys should be there and {count} are");
        Ok(())
    }

    /// Reads all loaded keys and those that were inserted, checks them, and returns the sum of their counters. Of an engine that cannot
    /// read all that were inserted in [`PATIENCE`], because they are on the disk, it reads the rest by sample.
    pub(crate) fn check_all(&self) -> Result<u64> {
        self.check_count()?;
        let mut worker = self.engine.worker()?;
        let mut sum = 0;
        for from in (0..self.records).step_by(CHECKED_KEYS) {
            sum += self.check_keys(&mut worker, from, self.records)?;
        }
        let began = Instant::now();
        let added = [(self.records, &self.inserted), (SEQUENTIAL, &self.in_order)];
        for (first, count) in added {
            let end = first + count.load(Ordering::Relaxed);
            for (number, from) in (first..end).step_by(CHECKED_KEYS).enumerate() {
                if began.elapsed() < PATIENCE || number.is_multiple_of(SAMPLED_EACH) {
                    sum += self.check_keys(&mut worker, from, end)?;
                }
            }
        }
        Ok(sum)
    }

    /// Checks some keys from an index on, of those below `end`, and returns the sum of their counters. They are read together: of an
    /// engine that has some of them on the disk, it would else take minutes to read all.
    fn check_keys(&self, worker: &mut E::Worker<'e>, from: u64, end: u64) -> Result<u64> {
        interrupt::check()?;
        let indexes = from..end.min(from + CHECKED_KEYS as u64);
        let keys: Vec<Key> = indexes.clone().map(|index| self.sizes.key(index)).collect();
        let mut sum = 0;
        let mut add = |at: usize, value: &[u8]| {
            sum += self.sizes.check(value, from + at as u64)?;
            Ok(())
        };
        worker.get_all(&keys, &mut add).with_context(|| format!("of the keys {indexes:?}"))?;
        Ok(sum)
    }

    /// Reads some of the loaded keys and checks them.
    pub(crate) fn check_sample(&self) -> Result<()> {
        self.check_sample_with(|_| Ok(()))
    }

    /// The same of keys that were loaded with values that count so much, and not written since.
    pub(crate) fn check_sample_counting(&self, counter: u64) -> Result<()> {
        self.check_sample_with(|found| {
            ensure!(found == counter, "a value of loading {found} was read instead of loading {counter}");
            Ok(())
        })
    }

    fn check_sample_with(&self, check_counter: impl Fn(u64) -> Result<()>) -> Result<()> {
        let (mut worker, mut buffer) = (self.engine.worker()?, Vec::new());
        let mut draws = self.draws(Distribution::Uniform, 0)?;
        for _ in 0..SAMPLE_KEYS.min(self.records) {
            let index = draws.next().index();
            ensure!(worker.get(&self.sizes.key(index), &mut buffer)?, "key {index} is missing");
            check_counter(self.sizes.check(&buffer, index)?)?;
        }
        Ok(())
    }

    /// Reads all rows in order, or as many as can be read in [`PATIENCE`], and checks that they are in order and how many they are.
    pub(crate) fn check_order(&self) -> Result<()> {
        self.read_in_order(PATIENCE).map(drop)
    }

    /// The same of all rows, however long it takes. Returns the sum of their counters.
    pub(crate) fn check_all_in_order(&self) -> Result<u64> {
        self.read_in_order(Duration::MAX)
    }

    /// The sum is that of the rows that were read.
    fn read_in_order(&self, patience: Duration) -> Result<u64> {
        let began = Instant::now();
        let mut worker = self.engine.worker()?;
        let (mut from, mut total, mut sum): (Vec<u8>, u64, u64) = (Vec::new(), 0, 0);
        loop {
            interrupt::check()?;
            let mut rows = 0;
            worker.scan(&from.clone(), SCAN_ROWS, &mut |key, value| {
                ensure!(*key >= *from, "rows are not in order");
                sum += self.sizes.check_row(key, value)?;
                from.clear();
                from.extend_from_slice(key);
                // The next key that can be.
                from.push(0);
                rows += 1;
                Ok(())
            })?;
            total += rows;
            if rows == 0 {
                break;
            }
            if began.elapsed() > patience {
                return Ok(sum);
            }
        }
        let expected = self.expected_count();
        ensure!(total == expected, "{expected} rows should be there and a scan finds {total}");
        Ok(sum)
    }
}
