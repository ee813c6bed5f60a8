//! The write path of AciKV as a prototype, to be measured beside Kiln's.
//!
//! ```text
//!  update ──► leaf of 4 KiB in memory, in place, under its latch ──► dirty
//!  insert ──► index of new keys ──► merged into leaves                │
//!                          end of a window: dirty leaves ◄────────────┘
//!                          to free slots of the file, the table of their places, one fdatasync
//! ```
//!
//! AciKV (sections 3.1 and 3.2) changes records that are there where they lie, and only new ones go to an index in memory; Kiln
//! sends all writes to its log. This is what the first costs, in favour of it wherever there is a choice: leaves are full, on huge
//! pages and all in memory, no commit waits for a window to end (AciKV's clients do) nor for a disk that cannot keep up with the
//! window (Kiln's do; the lag tells), pages are written in long runs through four times their space, with one sync a window.
//!
//! It is no engine: what a window writes is not the state of one moment, and nothing is ever read back. Transactions lock leaves, and
//! give up rather than wait, as AciKV's do; ranges are read leaf by leaf. Only reads and updates of what is there are measured.

mod file;
mod huge;
mod leaf;
mod store;
#[cfg(test)]
mod tests;
mod tree;

use std::ops::Range;
use std::sync::{Arc, MutexGuard};

use anyhow::{Context, Result, bail, ensure};

use self::leaf::{Layout, Leaf};
use self::store::{Store, Windows};
use self::tree::{NewRows, Tree};
use super::catalog::{Description, Mode, Settings, Shape};
use super::{Access, Engine, Hardening, Worker};
use crate::generate::{Entry, Key, add_to_first_word};

pub(super) const DESCRIPTION: Description = Description {
    what: "AciKV's write path as a prototype: updates in place in leaves, which are written elsewhere; without recovery",
    modes: &[Mode::Fast],
    shapes: &[Shape::Table],
    transactions: true,
    keeps_data: true,
    durable_puts: false,
    past_page_cache: false,
    reopens: false,
    snapshot_scans: false,
    settings: |_| {
        "full leaves of 4 KiB, all in memory, on huge pages; each window all that are dirty, in direct writes of up to 4 MiB through a file \
         of four times their size, written with zeros beforehand; commits never wait for it"
    },
    version: || Ok(String::new()),
};

/// The prototype, with the thread that ends its windows.
pub(super) struct InPlace {
    // Ends first.
    windows: Windows,
    store: Arc<Store>,
}

impl InPlace {
    /// Makes an empty one.
    pub(super) fn create(settings: &Settings) -> Result<InPlace> {
        let store = Arc::new(Store::create(&settings.path, settings.sizes, settings.records)?);
        Ok(InPlace { windows: Windows::start(store.clone(), settings.window), store })
    }
}

impl Engine for InPlace {
    type Worker<'a> = InPlaceWorker<'a>;

    fn worker(&self) -> Result<InPlaceWorker<'_>> {
        let (tree, generation) = self.store.tree();
        Ok(InPlaceWorker { store: &self.store, tree, generation, writes: Vec::new(), values: Vec::new() })
    }

    fn key_count(&self) -> Result<u64> {
        self.store.merge();
        Ok(self.store.tree().0.rows())
    }

    fn persist(&self) -> Result<()> {
        self.store.persist()
    }

    fn progress(&self) -> Option<Hardening> {
        Some(self.store.progress())
    }

    fn close(mut self) -> Result<()> {
        self.windows.end()
    }
}

/// One thread's access to an [`InPlace`].
pub(super) struct InPlaceWorker<'a> {
    store: &'a Store,
    /// The tree when it was last looked at, and its number.
    tree: Arc<Tree>,
    generation: u64,
    /// What the running transaction writes.
    writes: Vec<Write>,
    values: Vec<u8>,
}

impl InPlaceWorker<'_> {
    #[inline]
    fn is_current(&self) -> bool {
        self.generation == self.store.generation()
    }

    #[inline]
    fn refresh(&mut self) {
        if !self.is_current() {
            (self.tree, self.generation) = self.store.tree();
        }
    }

    /// Does something with a row in its leaf, if the key is in one.
    #[inline]
    fn in_leaf<T>(&mut self, key: &[u8], act: impl FnOnce(&Tree, usize, &mut Leaf, usize) -> T) -> Option<T> {
        loop {
            self.refresh();
            let number = self.tree.leaf_of(key);
            let mut leaf = self.tree.latch(number);
            if !leaf.is_retired {
                let row = leaf.search(self.tree.layout, key).ok()?;
                return Some(act(&self.tree, number, &mut leaf, row));
            }
            drop(leaf);
            self.wait_for_merge();
        }
    }

    /// The new keys, unless they are in leaves by now where this thread has not looked.
    fn new_rows(&self) -> Option<MutexGuard<'_, NewRows>> {
        let new = self.store.new_rows();
        self.is_current().then_some(new)
    }

    /// Who merges has the new keys until the new tree is there.
    fn wait_for_merge(&self) {
        drop(self.store.new_rows());
    }
}

fn check_sizes(layout: Layout, key: &[u8], value: &[u8]) -> Result<()> {
    let sizes = (key.len(), value.len());
    ensure!(
        sizes == (layout.key_bytes, layout.value_bytes),
        "a row of {sizes:?} bytes does not fit the leaves"
    );
    Ok(())
}

fn insert(store: &Store, tree: &Tree, new: &mut NewRows, key: &[u8], value: &[u8]) -> Result<()> {
    if let Some(place) = new.get_mut(key) {
        place.copy_from_slice(value);
        return Ok(());
    }
    ensure!(store.has_room(tree, new), "more keys than it was made for");
    new.insert(key.into(), value.into());
    Ok(())
}

impl Worker for InPlaceWorker<'_> {
    #[inline]
    fn get(&mut self, key: &[u8], value: &mut Vec<u8>) -> Result<bool> {
        value.clear();
        loop {
            let read = |tree: &Tree, _: usize, leaf: &mut Leaf, row: usize| {
                value.extend_from_slice(leaf.value(tree.layout, row));
            };
            if self.in_leaf(key, read).is_some() {
                return Ok(true);
            }
            if let Some(new) = self.new_rows() {
                return Ok(new.get(key).map(|found| value.extend_from_slice(found)).is_some());
            }
        }
    }

    #[inline]
    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        check_sizes(self.store.layout, key, value)?;
        loop {
            let write = |tree: &Tree, number: usize, leaf: &mut Leaf, row: usize| {
                leaf.value_mut(tree.layout, row).copy_from_slice(value);
                tree.mark(number, leaf);
            };
            if self.in_leaf(key, write).is_some() {
                return Ok(());
            }
            if let Some(mut new) = self.new_rows() {
                return insert(self.store, &self.tree, &mut new, key, value);
            }
        }
    }

    fn put_durably(&mut self, _key: &[u8], _value: &[u8]) -> Result<()> {
        bail!("it makes no single commit durable")
    }

    #[inline]
    fn add(&mut self, key: &[u8], delta: u64) -> Result<()> {
        loop {
            let add = |tree: &Tree, number: usize, leaf: &mut Leaf, row: usize| {
                tree.mark(number, leaf);
                add_to_first_word(leaf.value_mut(tree.layout, row), delta)
            };
            if let Some(added) = self.in_leaf(key, add) {
                return added;
            }
            if let Some(mut new) = self.new_rows() {
                return add_to_first_word(new.get_mut(key).context("a key is missing")?, delta);
            }
        }
    }

    fn put_all(&mut self, entries: &[Entry]) -> Result<()> {
        entries.iter().try_for_each(|entry| self.put(&entry.key, &entry.value))
    }

    fn scan(
        &mut self,
        from: &[u8],
        count: usize,
        row: &mut impl FnMut(&[u8], &[u8]) -> Result<()>,
    ) -> Result<()> {
        self.store.merge();
        self.refresh();
        let (layout, mut left) = (self.tree.layout, count);
        for number in self.tree.leaf_of(from)..self.tree.leaf_count() {
            let leaf = self.tree.latch(number);
            ensure!(!leaf.is_retired, "keys are inserted while a range is read");
            let (Ok(first) | Err(first)) = leaf.search(layout, from);
            for place in (first..leaf.rows()).take(left) {
                row(leaf.key(layout, place), leaf.value(layout, place))?;
                left -= 1;
            }
        }
        Ok(())
    }

    fn transact(&mut self, body: &mut dyn FnMut(&mut dyn Access) -> Result<()>) -> Result<()> {
        loop {
            self.refresh();
            self.writes.clear();
            self.values.clear();
            let mut held = Held {
                store: self.store,
                tree: &self.tree,
                generation: self.generation,
                leaves: Vec::new(),
                new: None,
                writes: &mut self.writes,
                values: &mut self.values,
                has_conflict: false,
            };
            let result = body(&mut held);
            if !held.has_conflict {
                return result.and_then(|()| held.commit());
            }
            drop(held);
            self.wait_for_merge();
        }
    }
}

/// Where a row is that a transaction has locked.
#[derive(Clone, Copy)]
enum Place {
    /// In one of the leaves that it holds.
    Leaf { held: usize, row: usize },
    /// Among the new keys, or nowhere.
    New,
}

/// A write of a transaction, with where its value is kept.
struct Write {
    place: Place,
    key: Key,
    value: Range<usize>,
}

/// A transaction, which holds what it has locked to its end, and keeps its writes back until then.
struct Held<'a> {
    store: &'a Store,
    tree: &'a Tree,
    generation: u64,
    leaves: Vec<(usize, MutexGuard<'a, Leaf>)>,
    new: Option<MutexGuard<'a, NewRows>>,
    writes: &'a mut Vec<Write>,
    values: &'a mut Vec<u8>,
    /// Whether somebody else had a lock: it is run again.
    has_conflict: bool,
}

impl Held<'_> {
    /// Locks a key without waiting, as it would have to in an order that it cannot know.
    #[inline]
    fn lock(&mut self, key: &[u8]) -> Result<Place> {
        let number = self.tree.leaf_of(key);
        let held = match self.leaves.iter().position(|(leaf, _)| *leaf == number) {
            Some(held) => held,
            None => {
                let leaf = self.tree.try_latch(number).filter(|leaf| !leaf.is_retired);
                let Some(leaf) = leaf else { return self.conflict() };
                self.leaves.push((number, leaf));
                self.leaves.len() - 1
            }
        };
        if let Ok(row) = self.leaves[held].1.search(self.tree.layout, key) {
            return Ok(Place::Leaf { held, row });
        }
        if self.new.is_none() {
            let new = self.store.try_new_rows().filter(|_| self.generation == self.store.generation());
            let Some(new) = new else { return self.conflict() };
            self.new = Some(new);
        }
        Ok(Place::New)
    }

    fn conflict<T>(&mut self) -> Result<T> {
        self.has_conflict = true;
        bail!("another transaction has it")
    }

    #[inline]
    fn commit(mut self) -> Result<()> {
        let layout = self.tree.layout;
        for write in &*self.writes {
            check_sizes(layout, &write.key, &self.values[write.value.clone()])?;
        }
        for Write { place, key, value } in &*self.writes {
            let value = &self.values[value.clone()];
            match *place {
                Place::Leaf { held, row } => {
                    let (number, leaf) = &mut self.leaves[held];
                    leaf.value_mut(layout, row).copy_from_slice(value);
                    self.tree.mark(*number, leaf);
                }
                Place::New => {
                    let new = self.new.as_mut().context("the new keys are not locked")?;
                    insert(self.store, self.tree, new, key, value)?;
                }
            }
        }
        Ok(())
    }
}

impl Access for Held<'_> {
    #[inline]
    fn get(&mut self, key: &[u8], value: &mut Vec<u8>) -> Result<bool> {
        value.clear();
        let found = match self.lock(key)? {
            Place::Leaf { held, row } => Some(self.leaves[held].1.value(self.tree.layout, row)),
            Place::New => self.new.as_ref().and_then(|new| new.get(key)).map(|found| &**found),
        };
        Ok(found.map(|found| value.extend_from_slice(found)).is_some())
    }

    #[inline]
    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        let place = self.lock(key)?;
        let from = self.values.len();
        self.values.extend_from_slice(value);
        self.writes.push(Write { place, key: Key::new(key), value: from..self.values.len() });
        Ok(())
    }
}
