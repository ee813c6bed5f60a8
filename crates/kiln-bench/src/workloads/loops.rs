//! The timed loops: for each operation, what one thread repeats.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Result, bail, ensure};

use super::written::Written;
use super::{Data, Operation};
use crate::engines::{Engine, Worker};
use crate::generate::draws::{Distribution, Draw, Draws};
use crate::generate::{Entry, Key, SEQUENTIAL, add_to_first_word, stamp};
use crate::measure::{self, Meanwhile, Measured};

/// Rows of each scan of [`Operation::ReadInOrder`].
const ROWS_IN_ORDER: usize = 100;

/// How long an operation is repeated, and what else is done meanwhile.
#[derive(Clone, Copy)]
pub(crate) struct Span {
    pub(crate) duration: Duration,
    /// Everything is made durable so often.
    pub(crate) persist_each: Option<Duration>,
}

impl From<Duration> for Span {
    fn from(duration: Duration) -> Span {
        Span { duration, persist_each: None }
    }
}

/// Repeats an operation on `threads` threads.
pub(crate) fn run<E: Engine>(
    data: &Data<'_, E>,
    operation: Operation,
    distribution: Distribution,
    threads: usize,
    span: impl Into<Span>,
) -> Result<Measured> {
    let Span { duration, persist_each } = span.into();
    let (progress, hardenings) = (|| data.engine.progress(), || data.engine.hardenings());
    let persist: &(dyn Fn() -> Result<()> + Sync) = &|| data.engine.persist();
    let persist = persist_each.map(|each| (each, persist));
    let meanwhile = Meanwhile { duration, progress: &progress, hardenings: &hardenings, persist };
    macro_rules! repeat {
        (|$client:ident| $call:expr) => {
            measure::repeat(threads, &meanwhile, |thread| {
                let mut $client = Client::new(data, distribution, thread)?;
                Ok(move || $call)
            })
        };
    }
    match operation {
        Operation::GetOrPut { reads: 100 } => repeat!(|client| client.get()),
        Operation::GetOrPut { reads: 0 } => repeat!(|client| client.put()),
        Operation::GetOrPut { reads } => repeat!(|client| client.get_or_put(reads)),
        Operation::PutDurably => repeat!(|client| client.put_durably()),
        Operation::GetOrAdd { reads } => repeat!(|client| client.get_or_add(reads)),
        Operation::GetMany(count) => repeat!(|client| client.get_many(count)),
        Operation::GetOrPutMany { reads, count } => repeat!(|client| client.get_or_put_many(reads, count)),
        Operation::PutMany(count) => repeat!(|client| client.put_many(count)),
        Operation::ModifyMany(count) => repeat!(|client| client.modify_many(count)),
        Operation::Transfer => repeat!(|client| client.transfer()),
        Operation::GetOrPutEach { reads, count } => repeat!(|client| client.get_or_put_each(reads, count)),
        Operation::GetOrPutBuffered { reads, room } => {
            repeat!(|client| client.get_or_put_buffered(reads, room))
        }
        Operation::GetOrInsert { reads } => repeat!(|client| client.get_or_insert(reads)),
        Operation::ScanOrInsert { scans, rows } => repeat!(|client| client.scan_or_insert(scans, rows)),
        Operation::FillInOrder => repeat!(|client| client.fill_in_order()),
        Operation::ReadInOrder => repeat!(|client| client.read_in_order()),
    }
}

/// Lets every other thread write keys and wait until they are durable, while the others do not wait: what both groups did, those
/// first that do not wait.
pub(crate) fn run_in_both_ways<E: Engine>(
    data: &Data<'_, E>,
    distribution: Distribution,
    threads: usize,
    duration: Duration,
) -> Result<[Measured; 2]> {
    let (progress, hardenings) = (|| data.engine.progress(), || data.engine.hardenings());
    let meanwhile =
        Meanwhile { progress: &progress, hardenings: &hardenings, ..Meanwhile::nothing(duration) };
    measure::repeat_in_groups(threads, &meanwhile, |thread| {
        let (mut client, waits) = (Client::new(data, distribution, thread)?, thread % 2 == 1);
        Ok(move || if waits { client.put_durably() } else { client.put() })
    })
}

/// What a client has to send again if the database loses it: writes in their order, each with its version and its key's index.
#[derive(Default)]
struct Unhardened {
    entries: VecDeque<(u64, u64)>,
    /// How many writes were taken out, because they are durable.
    trimmed: u64,
    /// The version up to which hardening was asked for.
    asked: u64,
}

impl Unhardened {
    /// Takes out what is durable. Where that is not enough, hardening is asked for, and waited for if there is no room at all.
    fn trim<E: Engine>(&mut self, worker: &mut E::Worker<'_>, engine: &E, room: usize) -> Result<()> {
        let mut durable = engine.progress().map_or(0, |progress| progress.durable);
        self.forget(durable);
        if self.entries.len() >= room
            && let Some(&(version, _)) = self.entries.front()
        {
            durable = version;
            let serial = worker.wait_in_session(version)?;
            self.forget(durable);
            ensure!(
                serial >= self.trimmed,
                "{} writes are durable, and the session knows of {serial}",
                self.trimmed
            );
        } else if let Some(&(version, _)) = self.entries.back()
            && durable >= self.asked
            && self.entries.len() * 10 >= room * 8
        {
            self.asked = version;
            worker.harden_soon();
        }
        Ok(())
    }

    fn forget(&mut self, durable: u64) {
        while self.entries.pop_front_if(|(version, _)| *version <= durable).is_some() {
            self.trimmed += 1;
        }
    }
}

/// What one thread has. Each method is one operation, and returns how many it counts for.
struct Client<'d, 'e, E: Engine> {
    data: &'d Data<'e, E>,
    worker: E::Worker<'e>,
    draws: Draws,
    latest: bool,
    written: Written,
    value: Vec<u8>,
    buffer: Vec<u8>,
    indexes: Vec<u64>,
    keys: Vec<Key>,
    entries: Vec<Entry>,
    /// Which of the keys are read.
    turns: Vec<bool>,
    unhardened: Unhardened,
    /// How much it has counted up.
    added: u64,
    /// Where the next scan in order begins.
    place: Vec<u8>,
}

impl<E: Engine> Drop for Client<'_, '_, E> {
    fn drop(&mut self) {
        let written = std::mem::replace(&mut self.written, Written::new(0));
        self.data.note_written(written);
        self.data.note_added(self.added);
    }
}

impl<'d, 'e, E: Engine> Client<'d, 'e, E> {
    fn new(data: &'d Data<'e, E>, distribution: Distribution, thread: usize) -> Result<Client<'d, 'e, E>> {
        Ok(Client {
            data,
            worker: data.engine.worker()?,
            draws: data.draws(distribution, thread)?,
            latest: distribution == Distribution::Latest,
            written: Written::new(data.next_client()),
            value: data.sizes.blank_value(),
            buffer: Vec::with_capacity(data.sizes.value_bytes),
            indexes: Vec::new(),
            keys: Vec::new(),
            entries: Vec::new(),
            turns: Vec::new(),
            unhardened: Unhardened::default(),
            added: 0,
            place: Vec::new(),
        })
    }

    /// The next key's index.
    #[inline]
    fn index(&mut self) -> u64 {
        let draw = self.draws.next();
        self.index_of(draw)
    }

    /// The index that was drawn, or the one that is so many older than the newest.
    #[inline]
    fn index_of(&self, draw: Draw) -> u64 {
        if self.latest { self.newest().saturating_sub(draw.index()) } else { draw.index() }
    }

    fn newest(&self) -> u64 {
        self.data.records + self.data.inserted.load(Ordering::Relaxed) - 1
    }

    #[inline]
    fn get(&mut self) -> Result<u64> {
        let index = self.index();
        self.get_index(index)
    }

    #[inline]
    fn get_index(&mut self, index: u64) -> Result<u64> {
        if self.worker.get(&self.data.sizes.key(index), &mut self.buffer)? {
            self.data.sizes.check(&self.buffer, index)?;
        } else {
            // A key that another thread is about to insert may not be there yet.
            ensure!(index >= self.data.records, "key {index} is missing");
        }
        Ok(1)
    }

    #[inline]
    fn put(&mut self) -> Result<u64> {
        let index = self.index();
        self.put_index(index)
    }

    #[inline]
    fn put_index(&mut self, index: u64) -> Result<u64> {
        stamp(&mut self.value, index, self.written.next(index));
        self.worker.put(&self.data.sizes.key(index), &self.value)?;
        Ok(1)
    }

    #[inline]
    fn get_or_put(&mut self, reads: u32) -> Result<u64> {
        let draw = self.draws.next();
        let index = self.index_of(draw);
        if draw.within(reads) { self.get_index(index) } else { self.put_index(index) }
    }

    fn put_durably(&mut self) -> Result<u64> {
        let index = self.index();
        stamp(&mut self.value, index, self.written.next(index));
        self.worker.put_durably(&self.data.sizes.key(index), &self.value)?;
        Ok(1)
    }

    #[inline]
    fn get_or_add(&mut self, reads: u32) -> Result<u64> {
        let draw = self.draws.next();
        let index = self.index_of(draw);
        if draw.within(reads) {
            return self.get_index(index);
        }
        self.worker.add(&self.data.sizes.key(index), 1)?;
        self.added += 1;
        Ok(1)
    }

    /// Draws the keys of the next transaction.
    fn next_keys(&mut self, count: usize) {
        self.draws.next_distinct(count.min(self.data.records as usize), &mut self.indexes);
        if self.latest {
            // What was drawn are ages.
            let newest = self.newest();
            self.indexes.iter_mut().for_each(|index| *index = newest.saturating_sub(*index));
        }
        self.keys.clear();
        self.keys.extend(self.indexes.iter().map(|&index| self.data.sizes.key(index)));
    }

    fn get_many(&mut self, count: usize) -> Result<u64> {
        self.next_keys(count);
        let (sizes, indexes) = (self.data.sizes, &self.indexes);
        self.worker.get_all(&self.keys, &mut |at, value| sizes.check(value, indexes[at]).map(drop))?;
        Ok(1)
    }

    fn get_or_put_many(&mut self, reads: u32, count: usize) -> Result<u64> {
        if self.draws.next().within(reads) { self.get_many(count) } else { self.put_many(count) }
    }

    fn put_many(&mut self, count: usize) -> Result<u64> {
        self.next_keys(count);
        self.entries.resize_with(self.keys.len(), || self.data.sizes.entry(0, 0));
        for ((entry, key), &index) in self.entries.iter_mut().zip(&self.keys).zip(&self.indexes) {
            entry.key = *key;
            stamp(&mut entry.value, index, self.written.next(index));
        }
        self.worker.put_all(&self.entries)?;
        Ok(1)
    }

    fn modify_many(&mut self, count: usize) -> Result<u64> {
        self.next_keys(count);
        let (sizes, keys, indexes, buffer) = (self.data.sizes, &self.keys, &self.indexes, &mut self.buffer);
        self.worker.transact(&mut |access| {
            access.prefetch(keys);
            for (key, &index) in keys.iter().zip(indexes) {
                ensure!(access.get(key, buffer)?, "key {index} is missing");
                sizes.check(buffer, index)?;
                add_to_first_word(buffer, 1)?;
                access.put(key, buffer)?;
            }
            Ok(())
        })?;
        self.added += self.keys.len() as u64;
        Ok(1)
    }

    /// All counters add up to the same before and after, modulo what one can hold.
    fn transfer(&mut self) -> Result<u64> {
        self.next_keys(2);
        let changes = [1_u64.wrapping_neg(), 1];
        let (sizes, keys, indexes, buffer) = (self.data.sizes, &self.keys, &self.indexes, &mut self.buffer);
        self.worker.transact(&mut |access| {
            access.prefetch(keys);
            for ((key, &index), change) in keys.iter().zip(indexes).zip(changes) {
                ensure!(access.get(key, buffer)?, "key {index} is missing");
                let counter = sizes.check(buffer, index)?;
                stamp(buffer, index, counter.wrapping_add(change));
                access.put(key, buffer)?;
            }
            Ok(())
        })?;
        Ok(1)
    }

    fn get_or_put_each(&mut self, reads: u32, count: usize) -> Result<u64> {
        self.next_keys(count);
        self.turns.clear();
        self.turns.extend((0..self.keys.len()).map(|_| self.draws.next().within(reads)));
        let (sizes, written) = (self.data.sizes, &mut self.written);
        let (keys, indexes, turns) = (&self.keys, &self.indexes, &self.turns);
        let (buffer, value) = (&mut self.buffer, &mut self.value);
        self.worker.transact(&mut |access| {
            access.prefetch(keys);
            for ((key, &index), &is_read) in keys.iter().zip(indexes).zip(turns) {
                if is_read {
                    ensure!(access.get(key, buffer)?, "key {index} is missing");
                    sizes.check(buffer, index)?;
                } else {
                    stamp(value, index, written.next(index));
                    access.put(key, value)?;
                }
            }
            Ok(())
        })?;
        Ok(1)
    }

    #[inline]
    fn get_or_put_buffered(&mut self, reads: u32, room: usize) -> Result<u64> {
        let draw = self.draws.next();
        let index = self.index_of(draw);
        if draw.within(reads) {
            return self.get_index(index);
        }
        if self.unhardened.entries.len() * 10 >= room * 8 {
            self.unhardened.trim(&mut self.worker, self.data.engine, room)?;
        }
        stamp(&mut self.value, index, self.written.next(index));
        let version = self.worker.put_in_session(&self.data.sizes.key(index), &self.value)?;
        self.unhardened.entries.push_back((version, index));
        Ok(1)
    }

    fn get_or_insert(&mut self, reads: u32) -> Result<u64> {
        let draw = self.draws.next();
        if draw.within(reads) {
            self.get_index(self.index_of(draw))
        } else {
            self.insert(&self.data.inserted, self.data.records)
        }
    }

    fn insert(&mut self, taken: &AtomicU64, from: u64) -> Result<u64> {
        self.put_index(from + taken.fetch_add(1, Ordering::Relaxed))
    }

    fn scan_or_insert(&mut self, scans: u32, rows_max: u64) -> Result<u64> {
        let draw = self.draws.next();
        if !draw.within(scans) {
            return self.insert(&self.data.inserted, self.data.records);
        }
        let (sizes, count, index) = (self.data.sizes, draw.one_to(rows_max), self.index_of(draw));
        let from = sizes.key(index);
        let (mut rows, place, mut before) = (0, &mut self.place, 0);
        self.worker.scan(&from, count as usize, &mut |key, value| {
            ensure!(rows > 0 || *key == *from, "the first row of a scan is not the key that it begins with");
            // Keys differ in their first word, as is checked next; to compare all of them is work for each row that no engine does.
            let word = key.first_chunk().map_or(0, |first| u64::from_be_bytes(*first));
            ensure!(rows == 0 || E::MAKES_ROWS_UP || word > before, "a row is out of order");
            before = word;
            sizes.check_row(key, value)?;
            rows += 1;
            if rows < count {
                place.clear();
                place.extend_from_slice(key);
            }
            Ok(())
        })?;
        ensure!(rows >= 1 && rows <= count, "a scan of {count} rows found {rows}");
        if rows < count && scans == 100 {
            // Nobody inserts: they must be the last rows.
            place.push(0);
            let place = place.clone();
            self.worker.scan(&place, 1, &mut |_, _| {
                bail!("a scan of {count} rows found {rows}, and there are more")
            })?;
        }
        Ok(1)
    }

    fn fill_in_order(&mut self) -> Result<u64> {
        self.insert(&self.data.in_order, SEQUENTIAL)
    }

    fn read_in_order(&mut self) -> Result<u64> {
        let (mut rows, place, sizes) = (0, &mut self.place, self.data.sizes);
        self.worker.scan(&place.clone(), ROWS_IN_ORDER, &mut |key, value| {
            // Where it begins may be a key.
            ensure!(*key > **place || rows == 0 && *key == **place, "a row is out of order");
            sizes.check_row(key, value)?;
            place.clear();
            place.extend_from_slice(key);
            rows += 1;
            Ok(())
        })?;
        // The next key that can be; or, at the end, the first.
        place.push(0);
        if rows < ROWS_IN_ORDER as u64 {
            place.clear();
        }
        Ok(rows.max(1))
    }
}
