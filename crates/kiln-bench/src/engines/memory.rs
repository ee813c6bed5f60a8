//! Keys and values in memory behind one lock: what the machine can do with no durability at all.
//!
//! A hash map for maps and a B-tree for tables, both from everybody's toolbox. A transaction holds the lock from its beginning to
//! its end, and so is isolated; it keeps its writes back until its body is through.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::{Mutex, MutexGuard, PoisonError};

use anyhow::Result;
use hashbrown::HashMap;

use super::catalog::{Description, Mode, Shape};
use super::{Access, Engine, Worker};
use crate::generate::{Entry, add_to_first_word};

pub(super) const DESCRIPTION: Description = Description {
    what: "a B-tree (tables) or hash map (maps) in memory behind a mutex: no durability",
    modes: &[Mode::Floor],
    shapes: &[Shape::Table, Shape::Map],
    transactions: true,
    keeps_data: true,
    durable_puts: false,
    past_page_cache: false,
    reopens: false,
    snapshot_scans: true,
    settings: |_| "BTreeMap of the standard library, HashMap of hashbrown, one mutex, nothing is stored",
    version: || Ok(String::new()),
};

/// A collection of keys and values.
pub(crate) trait Collection: Default + Send {
    /// The value of a key.
    fn find(&self, key: &[u8]) -> Option<&Vec<u8>>;
    /// The value of a key, to be changed.
    fn find_mut(&mut self, key: &[u8]) -> Option<&mut Vec<u8>>;
    /// Adds a key that is not there.
    fn add(&mut self, key: &[u8], value: Vec<u8>);
    /// How many keys there are.
    fn count(&self) -> usize;
    /// The rows from a key on, in order if there is one.
    fn rows_from(&self, key: &[u8]) -> impl Iterator<Item = (&[u8], &[u8])>;
}

/// Keys in no order.
pub(crate) type MemoryMap = Memory<HashMap<Box<[u8]>, Vec<u8>>>;
/// Keys in order.
pub(crate) type MemoryTable = Memory<BTreeMap<Box<[u8]>, Vec<u8>>>;

/// What both collections do in the same words, and how each one finds its rows from a key on.
macro_rules! collection {
    ($collection:ident, |$rows:ident, $from:pat_param| $rows_from:expr) => {
        impl Collection for $collection<Box<[u8]>, Vec<u8>> {
            #[inline]
            fn find(&self, key: &[u8]) -> Option<&Vec<u8>> {
                self.get(key)
            }

            #[inline]
            fn find_mut(&mut self, key: &[u8]) -> Option<&mut Vec<u8>> {
                self.get_mut(key)
            }

            fn add(&mut self, key: &[u8], value: Vec<u8>) {
                self.insert(key.into(), value);
            }

            fn count(&self) -> usize {
                self.len()
            }

            fn rows_from(&self, $from: &[u8]) -> impl Iterator<Item = (&[u8], &[u8])> {
                let $rows = self;
                $rows_from
            }
        }
    };
}

collection!(HashMap, |_unordered, _| std::iter::empty());
collection!(BTreeMap, |rows, key| {
    rows.range::<[u8], _>((Bound::Included(key), Bound::Unbounded)).map(|(key, value)| (&key[..], &value[..]))
});

/// A collection behind a mutex.
#[derive(Default)]
pub(crate) struct Memory<C>(Mutex<C>);

impl<C: Collection> Memory<C> {
    fn lock(&self) -> MutexGuard<'_, C> {
        // A panic elsewhere fails the run by itself.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<C: Collection> Engine for Memory<C> {
    type Worker<'a>
        = MemoryWorker<'a, C>
    where
        C: 'a;

    fn worker(&self) -> Result<MemoryWorker<'_, C>> {
        Ok(MemoryWorker { memory: self, writes: Vec::new() })
    }

    fn key_count(&self) -> Result<u64> {
        Ok(self.lock().count() as u64)
    }

    fn persist(&self) -> Result<()> {
        Ok(())
    }
}

/// One thread's access to a [`Memory`].
pub(crate) struct MemoryWorker<'a, C> {
    memory: &'a Memory<C>,
    writes: Vec<(Vec<u8>, Vec<u8>)>,
}

fn put<C: Collection>(collection: &mut C, key: &[u8], value: &[u8]) {
    match collection.find_mut(key) {
        Some(old) => {
            old.clear();
            old.extend_from_slice(value);
        }
        None => collection.add(key, value.to_vec()),
    }
}

fn get<C: Collection>(collection: &C, key: &[u8], value: &mut Vec<u8>) -> bool {
    value.clear();
    collection.find(key).map(|found| value.extend_from_slice(found)).is_some()
}

impl<C: Collection> Worker for MemoryWorker<'_, C> {
    #[inline]
    fn get(&mut self, key: &[u8], value: &mut Vec<u8>) -> Result<bool> {
        Ok(get(&*self.memory.lock(), key, value))
    }

    #[inline]
    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        put(&mut *self.memory.lock(), key, value);
        Ok(())
    }

    fn put_durably(&mut self, _key: &[u8], _value: &[u8]) -> Result<()> {
        anyhow::bail!("nothing in memory is durable")
    }

    #[inline]
    fn add(&mut self, key: &[u8], delta: u64) -> Result<()> {
        match self.memory.lock().find_mut(key) {
            Some(value) => add_to_first_word(value, delta),
            None => anyhow::bail!("a key is missing"),
        }
    }

    fn put_all(&mut self, entries: &[Entry]) -> Result<()> {
        let mut collection = self.memory.lock();
        entries.iter().for_each(|entry| put(&mut *collection, &entry.key, &entry.value));
        Ok(())
    }

    fn scan(
        &mut self,
        from: &[u8],
        count: usize,
        row: &mut impl FnMut(&[u8], &[u8]) -> Result<()>,
    ) -> Result<()> {
        self.memory.lock().rows_from(from).take(count).try_for_each(|(key, value)| row(key, value))
    }

    fn transact(&mut self, body: &mut dyn FnMut(&mut dyn Access) -> Result<()>) -> Result<()> {
        self.writes.clear();
        let mut collection = self.memory.lock();
        body(&mut Held { collection: &*collection, writes: &mut self.writes })?;
        for (key, value) in self.writes.drain(..) {
            put(&mut *collection, &key, &value);
        }
        Ok(())
    }
}

/// A transaction that holds the lock.
struct Held<'a, C> {
    collection: &'a C,
    writes: &'a mut Vec<(Vec<u8>, Vec<u8>)>,
}

impl<C: Collection> Access for Held<'_, C> {
    fn get(&mut self, key: &[u8], value: &mut Vec<u8>) -> Result<bool> {
        Ok(get(self.collection, key, value))
    }

    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        self.writes.push((key.to_vec(), value.to_vec()));
        Ok(())
    }
}
