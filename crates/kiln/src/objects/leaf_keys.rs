//! The keys of a leaf that a walk has read, and how far they have been looked after; in memory that threads keep from one walk to the next.

use std::cell::RefCell;
use std::ops::{Deref, DerefMut};

use super::Table;
use super::leaf_rows::LeafRows;
use crate::kernel::handle::HasHandle;
use crate::storage::ordered_index::{BATCH_KEYS_MAX, LeafBatch};
use crate::sync::thread_local;

/// So many a thread keeps: those of two walks.
const POOL_MAX: usize = 4;
/// What long keys took is not kept.
const KEPT_BYTES_MAX: usize = 64 << 10;

thread_local! {
    // Boxed, so that a walk is small, and moves to its next leaf by a pointer.
    #[allow(clippy::vec_box)]
    static POOL: RefCell<Vec<Box<LeafKeys>>> = const { RefCell::new(Vec::new()) };
}

/// Memory for a leaf's keys, of this walk until it is dropped. What is in it at first is some other walk's.
#[derive(Debug)]
pub(super) struct Kept(Option<Box<LeafKeys>>);

impl Kept {
    pub(super) fn take() -> Kept {
        let kept = POOL.try_with(|pool| pool.borrow_mut().pop()).ok().flatten();
        Kept(Some(kept.unwrap_or_else(|| Box::new(LeafKeys::new()))))
    }
}

impl Deref for Kept {
    type Target = LeafKeys;

    #[inline]
    fn deref(&self) -> &LeafKeys {
        self.0.as_deref().unwrap_or_else(|| unreachable!("there until dropped"))
    }
}

impl DerefMut for Kept {
    #[inline]
    fn deref_mut(&mut self) -> &mut LeafKeys {
        self.0.as_deref_mut().unwrap_or_else(|| unreachable!("there until dropped"))
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        let Some(keys) = self.0.take().filter(|keys| keys.memory_bytes() <= KEPT_BYTES_MAX) else {
            return;
        };
        // A thread that ends has no pool any more.
        let _ = POOL.try_with(|pool| {
            let mut pool = pool.borrow_mut();
            if pool.len() < POOL_MAX {
                pool.push(keys);
            }
        });
    }
}

/// The keys of a leaf, and how far they have been looked after.
#[derive(Debug)]
pub(super) struct LeafKeys {
    pub(super) batch: LeafBatch,
    /// So many keys lie within the bounds; if not all do, it is the last leaf.
    pub(super) inside: usize,
    pub(super) hashes: [u64; BATCH_KEYS_MAX],
    pub(super) hashed: usize,
    pub(super) fetched: usize,
    /// Those that were read already.
    pub(super) rows: LeafRows,
}

impl LeafKeys {
    fn new() -> LeafKeys {
        let (batch, rows) = (LeafBatch::new(), LeafRows::default());
        LeafKeys { batch, inside: 0, hashes: [0; BATCH_KEYS_MAX], hashed: 0, fetched: 0, rows }
    }

    /// Another leaf was read, of which so many keys lie within the bounds.
    pub(super) fn begin(&mut self, inside: usize) {
        (self.inside, self.hashed, self.fetched) = (inside, 0, 0);
        self.rows.clear();
        if self.batch.has_values() {
            self.rows.set_read(inside);
        }
    }

    /// The hash of a key.
    #[inline]
    pub(super) fn hash(&self, table: &Table, position: usize) -> u64 {
        if position < self.hashed {
            return self.hashes[position];
        }
        let handle = table.handle();
        handle.engine.hash(handle.id, self.batch.get(position).unwrap_or_default())
    }

    fn memory_bytes(&self) -> usize {
        self.batch.memory_bytes() + self.rows.memory_bytes()
    }

    /// Has the processor fetch buckets of the keys up to a position.
    pub(super) fn fetch_buckets(&mut self, table: &Table, end: usize) {
        let handle = table.handle();
        for position in self.hashed..end.min(self.inside) {
            let hash = handle.engine.hash(handle.id, self.batch.get(position).unwrap_or_default());
            handle.engine.index.prefetch(hash);
            self.hashes[position] = hash;
            self.hashed = position + 1;
        }
    }

    /// Has the processor fetch records of the keys up to a position. If what is to be seen of one of them, up to a version, is on disk, all up to `cold_end` are read
    /// that are: that takes so long that many at once are worth it. Says how many were read.
    pub(super) fn fetch_records(
        &mut self,
        table: &Table,
        end: usize,
        cold_end: usize,
        version_max: u64,
    ) -> u64 {
        let (mut end, engine) = (end.min(self.inside), &table.handle().engine);
        if self.fetched >= end {
            return 0;
        }
        self.fetch_buckets(table, end);
        engine.fetch_candidates(&self.hashes[self.fetched..end]);
        let mut reads = 0;
        if engine.any_cold(&self.hashes[self.fetched..end], version_max) {
            end = cold_end.clamp(end, self.inside);
            self.fetch_buckets(table, end);
            reads = engine.read_range_ahead(&self.hashes[self.fetched..end], version_max);
        }
        self.fetched = end;
        reads
    }
}
