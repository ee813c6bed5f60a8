//! The arena: memory of the nodes of one index, addressed by small numbers, never given back before the
//! index is dropped.
//!
//! A node number therefore names a node of the same type for ever, whoever remembers it and for how long,
//! which is what lets a transaction keep a leaf's number and version without a pin.
//!
//! ```text
//!   level 0     level 1     level 2 ...       level L holds 8 << L nodes,
//!   [chunk]     [chunk]     [chunk]  ... [chunk chunk] ...    in chunks of at most 256
//!   0..7        8..23       24..55
//! ```
//!
//! Levels that double keep the small index small and the directory short; chunks of bounded size keep the
//! time bounded for which one insertion waits for fresh memory.

use crate::sync::{Mutex, OnceLock};

const FIRST_LEVEL_NODES: usize = 8;
const CHUNK_NODES: usize = 256;
const LEVELS: usize = 27;

type Chunk<T> = OnceLock<Box<[T]>>;

/// Nodes of one type.
pub(super) struct Arena<T> {
    levels: [OnceLock<Box<[Chunk<T>]>>; LEVELS],
    free: Mutex<FreeList>,
}

#[derive(Default)]
struct FreeList {
    recycled: Vec<u32>,
    /// The numbers from here on were never used.
    fresh: u32,
    chunk_nodes: usize,
}

/// Where a node is: level, chunk in the level, node in the chunk.
#[inline]
fn place(number: u32) -> (usize, usize, usize) {
    let shifted = number as usize + FIRST_LEVEL_NODES;
    let level_nodes_log2 = shifted.ilog2();
    let level = (level_nodes_log2 - FIRST_LEVEL_NODES.ilog2()) as usize;
    let offset = shifted - (1 << level_nodes_log2);
    (level, offset / CHUNK_NODES, offset % CHUNK_NODES)
}

impl<T: Default> Arena<T> {
    pub(super) fn new() -> Arena<T> {
        Arena { levels: [const { OnceLock::new() }; LEVELS], free: Mutex::default() }
    }

    #[inline]
    pub(super) fn get(&self, number: u32) -> Option<&T> {
        let (level, chunk, node) = place(number);
        self.levels.get(level)?.get()?.get(chunk)?.get()?.get(node)
    }

    /// The node with this number, which need not have been [allocated](Self::allocate); made if it is not there yet.
    pub(super) fn get_or_make(&self, number: u32) -> Option<&T> {
        if self.get(number).is_none() {
            let added = self.ensure(number);
            self.free.lock().chunk_nodes += added;
        }
        self.get(number)
    }

    /// A node that nobody else has, as it was given back or as `T::default` made it.
    pub(super) fn allocate(&self) -> (u32, &T) {
        let mut free = self.free.lock();
        let number = free.recycled.pop().unwrap_or_else(|| {
            let number = free.fresh;
            free.chunk_nodes += self.ensure(number);
            free.fresh += 1;
            number
        });
        drop(free);
        (number, self.get(number).expect("the number was handed out, so its chunk exists"))
    }

    pub(super) fn release(&self, number: u32) {
        self.free.lock().recycled.push(number);
    }

    #[cfg(test)]
    pub(super) fn in_use(&self) -> usize {
        let free = self.free.lock();
        free.fresh as usize - free.recycled.len()
    }

    pub(super) fn memory_bytes(&self) -> usize {
        self.free.lock().chunk_nodes * size_of::<T>()
    }

    /// Makes the chunk of a node if need be; returns how many nodes that added.
    fn ensure(&self, number: u32) -> usize {
        let (level, chunk, _) = place(number);
        assert!(level < LEVELS, "an ordered index has at most {} nodes", FIRST_LEVEL_NODES << LEVELS);
        let level_nodes = FIRST_LEVEL_NODES << level;
        let chunks = self.levels[level]
            .get_or_init(|| (0..level_nodes.div_ceil(CHUNK_NODES)).map(|_| OnceLock::new()).collect());
        let mut added = 0;
        chunks[chunk].get_or_init(|| {
            added = level_nodes.min(CHUNK_NODES);
            (0..added).map(|_| T::default()).collect()
        });
        added
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_has_its_own_place() {
        let arena = Arena::<u64>::new();
        let count = if cfg!(miri) { 500 } else { 5_000 };
        let mut addresses: Vec<usize> = (0..count)
            .map(|expected| {
                let (number, node) = arena.allocate();
                assert_eq!(number, expected);
                std::ptr::from_ref(node).addr()
            })
            .collect();
        addresses.sort_unstable();
        addresses.dedup();
        assert_eq!(addresses.len(), count as usize);
        assert_eq!(arena.in_use(), count as usize);
        arena.release(17);
        assert_eq!(arena.allocate().0, 17, "a released node is used again first");
        assert!(arena.get(u32::MAX).is_none(), "no number leads out of bounds");
    }
}
