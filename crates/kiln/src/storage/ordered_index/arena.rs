//! The arena: memory of the nodes of one index, addressed by small numbers.
//!
//! A node number names a node of the same type for ever, whoever remembers it and for how long, which is what lets a
//! transaction keep a leaf's number and version without a pin.
//!
//! ```text
//!   level 0     level 1     level 2 ...       level L holds 8 << L nodes
//!   0..7        8..23       24..55
//! ```
//!
//! Levels that double keep the small index small and the directory short; the system provides a level's memory as it is touched.
//!
//! # Giving back
//! Once all nodes of a block are free, its memory can go back to the system; numbers and addresses stay. Its nodes are zeros then,
//! which is to say free ones ([`Zeroed`]). When they are used again they go on from more changes than any of them has ever had, so
//! that nobody takes one for what it was.

use std::cmp::Reverse;
use std::ops::Range;

use crate::storage::memory::{Array, Zeroed, no_memory};
use crate::sync::{Mutex, OnceLock};

const FIRST_LEVEL_NODES: usize = 8;
const LEVELS: usize = 27;
/// Whole pages of 4 and 16 KiB, whatever the node; of larger ones what lies side by side may be, and stays where it is not.
const BLOCK_NODES: u32 = 256;

/// What an arena gives out. As zeros it is free.
pub(super) trait Node: Zeroed {
    /// How often it has changed.
    fn changes(&self) -> u64;

    /// Has it go on from so many changes; it is free, and nobody else is given it.
    fn go_on_from(&self, changes: u64);

    /// Frees what it owns outside of the arena, at the end of the index.
    fn end(&mut self);
}

/// Memory for nodes of one type, and no word of who has them.
pub(super) struct Levels<T: Zeroed>([OnceLock<Array<T>>; LEVELS]);

impl<T: Zeroed> Levels<T> {
    pub(super) fn new() -> Levels<T> {
        Levels([const { OnceLock::new() }; LEVELS])
    }

    #[inline]
    pub(super) fn get(&self, number: u32) -> Option<&T> {
        let (level, node) = place(number);
        self.0.get(level)?.get()?.get(node)
    }

    /// As [`Self::get`]; made if it is not there yet.
    ///
    /// # Panics
    /// If there is no such number.
    pub(super) fn get_or_make(&self, number: u32) -> &T {
        let (level, node) = place(number);
        assert!(level < LEVELS, "an ordered index has at most {} nodes", FIRST_LEVEL_NODES << LEVELS);
        let nodes = self.0[level].get_or_init(|| {
            let count = FIRST_LEVEL_NODES << level;
            Array::new(count).unwrap_or_else(|_| no_memory::<T>(count))
        });
        &nodes[node]
    }

    /// Whether any was made.
    pub(super) fn has_any(&self) -> bool {
        self.0.iter().any(|level| level.get().is_some())
    }

    /// Gives the memory of these nodes, all of one level, back; false if that cannot be.
    fn give_back(&self, numbers: Range<u32>) -> bool {
        let (level, first) = place(numbers.start);
        self.0[level].get().is_some_and(|nodes| nodes.give_back(first, numbers.len()))
    }
}

/// Where a node is: its level, and its place there.
#[inline]
fn place(number: u32) -> (usize, usize) {
    let shifted = number as usize + FIRST_LEVEL_NODES;
    let level_nodes_log2 = shifted.ilog2();
    let level = (level_nodes_log2 - FIRST_LEVEL_NODES.ilog2()) as usize;
    (level, shifted - (1 << level_nodes_log2))
}

/// Nodes of one type.
pub(super) struct Arena<T: Node> {
    nodes: Levels<T>,
    free: Mutex<FreeList>,
}

#[derive(Default)]
struct FreeList {
    recycled: Vec<u32>,
    /// The first numbers of blocks whose memory was given back.
    given_back: Vec<u32>,
    /// No node of theirs had more changes.
    changes_max: u64,
    /// The numbers from here on were never used.
    fresh: u32,
}

impl FreeList {
    /// Nodes that have memory.
    fn populated(&self) -> usize {
        self.fresh as usize - self.given_back.len() * BLOCK_NODES as usize
    }
}

impl<T: Node> Arena<T> {
    pub(super) fn new() -> Arena<T> {
        Arena { nodes: Levels::new(), free: Mutex::default() }
    }

    #[inline]
    pub(super) fn get(&self, number: u32) -> Option<&T> {
        self.nodes.get(number)
    }

    /// A node that nobody else has, as it was given back or as zeros.
    pub(super) fn allocate(&self) -> (u32, &T) {
        let mut free = self.free.lock();
        if free.recycled.is_empty() {
            self.take_block_again(&mut free);
        }
        let number = free.recycled.pop().unwrap_or_else(|| {
            free.fresh += 1;
            free.fresh - 1
        });
        drop(free);
        (number, self.nodes.get_or_make(number))
    }

    pub(super) fn release(&self, number: u32) {
        self.free.lock().recycled.push(number);
    }

    fn take_block_again(&self, free: &mut FreeList) {
        let Some(first) = free.given_back.pop() else { return };
        let numbers = first..first + BLOCK_NODES;
        numbers.clone().for_each(|number| self.nodes.get_or_make(number).go_on_from(free.changes_max));
        free.recycled.extend(numbers.rev());
    }

    /// Has the lowest free numbers used first.
    pub(super) fn prefer_low(&self) {
        self.free.lock().recycled.sort_unstable_by_key(|number| Reverse(*number));
    }

    /// Gives back the memory of blocks of which all nodes are free, and of `beside`, which has the same numbers.
    pub(super) fn give_back(&self, beside: Option<&Levels<impl Zeroed>>) {
        // Who needs a node meanwhile takes a fresh one.
        let mut recycled = std::mem::take(&mut self.free.lock().recycled);
        recycled.sort_unstable();
        let block_of = |number: u32| (number + FIRST_LEVEL_NODES as u32) / BLOCK_NODES;
        let (mut kept, mut vacant, mut given_back, mut changes_max) = (Vec::new(), Vec::new(), Vec::new(), 0);
        for block in recycled.chunk_by(|one, other| block_of(*one) == block_of(*other)) {
            match block {
                // In the first levels, which have fewer nodes, none is complete.
                [first, ..] if block.len() == BLOCK_NODES as usize => vacant.push(*first),
                _ => kept.extend_from_slice(block),
            }
        }
        // As many at once as lie side by side: a huge page goes as a whole.
        for blocks in
            vacant.chunk_by(|one, other| one + BLOCK_NODES == *other && place(*one).0 == place(*other).0)
        {
            let numbers = blocks[0]..blocks[0] + blocks.len() as u32 * BLOCK_NODES;
            let changes = numbers.clone().filter_map(|number| self.get(number)).map(T::changes).max();
            if self.nodes.give_back(numbers.clone()) {
                beside.inspect(|beside| _ = beside.give_back(numbers));
                changes_max = changes_max.max(changes.unwrap_or(0));
                given_back.extend_from_slice(blocks);
            } else {
                kept.extend(numbers);
            }
        }
        let mut free = self.free.lock();
        free.changes_max = free.changes_max.max(changes_max);
        // Low numbers are used first.
        free.recycled.extend(kept.iter().rev());
        free.given_back.extend(given_back.iter().rev());
    }

    /// Nodes that were given out and not released.
    pub(super) fn in_use(&self) -> usize {
        let free = self.free.lock();
        // Of one time: of those released since there may be more than there were then.
        free.populated() - free.recycled.len()
    }

    pub(super) fn memory_bytes(&self) -> usize {
        self.free.lock().populated() * size_of::<T>()
    }
}

impl<T: Node> Drop for Arena<T> {
    fn drop(&mut self) {
        let mut left = self.free.lock().fresh as usize;
        for nodes in self.nodes.0.iter_mut().map_while(OnceLock::get_mut) {
            let used = left.min(nodes.len());
            nodes[..used].iter_mut().for_each(T::end);
            left -= used;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::ordered_index::slots::Slots;
    use crate::sync::atomic::{AtomicBool, Ordering};

    /// So many that the highest levels are mappings.
    const COUNT: u32 = if cfg!(miri) { 500 } else { 20_000 };

    fn full() -> Arena<Slots> {
        let arena = Arena::<Slots>::new();
        for expected in 0..COUNT {
            let (number, node) = arena.allocate();
            assert_eq!(number, expected);
            node.go_on_from(u64::from(number) + 1);
        }
        arena
    }

    #[test]
    fn every_number_has_its_own_place() {
        let arena = full();
        let changes = |number| arena.get(number).unwrap().changes();
        assert!((0..COUNT).all(|number| changes(number) == u64::from(number) + 1));
        assert_eq!(arena.in_use(), COUNT as usize);
        arena.release(17);
        assert_eq!(arena.allocate().0, 17, "a released node is used again first");
        assert!(arena.get(u32::MAX).is_none(), "no number leads out of bounds");
    }

    /// What was free and what has memory used to be looked at one after the other, and there were more of the former than of the latter.
    #[test]
    fn nodes_in_use_are_counted_at_one_time() {
        const NODES_MAX: u32 = if cfg!(miri) { 10 } else { 2_000 };
        let (arena, is_done) = (Arena::<Slots>::new(), AtomicBool::new(false));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                // Each time one more than were free before.
                for count in 1..=NODES_MAX {
                    let numbers: Vec<u32> = (0..count).map(|_| arena.allocate().0).collect();
                    numbers.into_iter().for_each(|number| arena.release(number));
                }
                is_done.store(true, Ordering::Relaxed);
            });
            while !is_done.load(Ordering::Relaxed) {
                let in_use = arena.in_use();
                assert!(in_use <= NODES_MAX as usize, "{in_use} nodes are in use");
            }
        });
        assert_eq!(arena.in_use(), 0);
    }

    #[test]
    #[cfg_attr(miri, ignore = "there are no mappings")]
    fn memory_goes_back_where_all_of_a_block_is_free_and_its_nodes_go_on_from_more_changes() {
        let arena = full();
        let beside = Levels::<Slots>::new();
        let kept = [10_000, 15_000];
        for number in (0..COUNT).filter(|number| !kept.contains(number)) {
            beside.get_or_make(number).go_on_from(1);
            arena.release(number);
        }
        let before = arena.memory_bytes();
        arena.give_back(Some(&beside));
        assert!(arena.memory_bytes() < before / 4, "{} of {before}", arena.memory_bytes());
        assert_eq!(arena.in_use(), kept.len());
        assert!(kept.iter().all(|number| arena.get(*number).unwrap().changes() == u64::from(*number) + 1));
        let has_gone = |number| arena.get(number).unwrap().changes() == 0;
        let gone = (0..COUNT).filter(|number| has_gone(*number)).collect::<Vec<_>>();
        assert_eq!(gone.len() % BLOCK_NODES as usize, 0);
        assert!(gone.iter().all(|number| beside.get(*number).unwrap().changes() == 0));
        let numbers: std::collections::BTreeSet<u32> = (kept.len() as u32..COUNT)
            .map(|_| {
                let (number, node) = arena.allocate();
                let least = if gone.binary_search(&number).is_ok() { gone[gone.len() - 1] } else { number };
                assert!(node.changes() > u64::from(least), "{number}");
                number
            })
            .collect();
        assert_eq!(numbers.len(), COUNT as usize - kept.len(), "each number once");
        assert_eq!((arena.in_use(), arena.allocate().0), (COUNT as usize, COUNT));
        assert_eq!(arena.memory_bytes(), before + size_of::<Slots>());
    }
}
