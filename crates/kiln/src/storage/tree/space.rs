//! Which blocks of the file are free.
//!
//! In memory that is bitmaps. A block that is *used* belongs to the newest root, or to the one that is being made instead; one that is *busy* may not be written:
//! it is used, or the newest root needs it until there is the next one, or it belongs to an older root that somebody holds. Only the first is stored, copy-on-write like all else:
//!
//! ```text
//!  root slot ──▶ directory: a run of blocks, 16 bytes a page ──▶ pages of 4 KiB, a bit for each of 32,768 blocks
//! ```
//!
//! A root rewrites the pages in which something changed, and the directory, which for 1 TB has 128 KiB. Opening reads the pages, 32 MiB
//! for 1 TB, and no node. *Rejected: a list of free runs*, which after random updates has an entry for nearly every free block, and must be
//! written as a whole; *a map for the file's lifetime in place*, which a torn write would spoil.
//!
//! Blocks are given out from the file's beginning on, so that its end falls free and can be cut off.

use super::reference::{BLOCK_FIRST, FILE_BLOCKS_MAX, NODE_BLOCKS_MAX};
use crate::planted::{Bug, planted};

/// Blocks of which a page of the map says whether they are used.
pub(super) const PAGE_BLOCKS: u64 = 8 * crate::device::BLOCK_BYTES as u64;
const PAGE_WORDS: usize = PAGE_BLOCKS as usize / 64;

/// Blocks that follow each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Run {
    pub(super) block: u64,
    pub(super) blocks: u64,
}

/// A bit for each block; those beyond its end are zero.
#[derive(Clone, Debug, Default)]
pub(super) struct Bitmap {
    words: Vec<u64>,
}

impl Bitmap {
    pub(super) fn is_set(&self, block: u64) -> bool {
        self.words.get((block / 64) as usize).is_some_and(|word| word >> (block % 64) & 1 == 1)
    }

    /// Sets or clears the bits of a run.
    pub(super) fn put(&mut self, run: Run, set: bool) {
        let end = run.block + run.blocks;
        let needed = end.div_ceil(PAGE_BLOCKS) as usize * PAGE_WORDS;
        if set && self.words.len() < needed {
            self.words.resize(needed, 0);
        }
        let mut block = run.block;
        while block < end {
            let first = block % 64;
            let count = (64 - first).min(end - block);
            let bits = (u64::MAX >> (64 - count)) << first;
            if let Some(word) = self.words.get_mut((block / 64) as usize) {
                *word = if set { *word | bits } else { *word & !bits };
            }
            block += count;
        }
    }

    /// How many bits of a run are set.
    pub(super) fn count_in(&self, run: Run) -> u64 {
        (run.block..run.block + run.blocks).map(|block| u64::from(self.is_set(block))).sum()
    }

    fn word(&self, index: usize) -> u64 {
        self.words.get(index).copied().unwrap_or(0)
    }

    pub(super) fn is_same(&self, other: &Bitmap) -> bool {
        let longer = self.words.len().max(other.words.len());
        (0..longer).all(|index| self.word(index) == other.word(index))
    }

    /// Sets all that are set in another one, too.
    pub(super) fn join(&mut self, other: &Bitmap) {
        self.words.resize(self.words.len().max(other.words.len()), 0);
        self.words.iter_mut().zip(&other.words).for_each(|(word, other)| *word |= other);
    }

    pub(super) fn count(&self) -> u64 {
        self.words.iter().map(|word| u64::from(word.count_ones())).sum()
    }

    /// The first block behind all that are set.
    pub(super) fn end(&self) -> u64 {
        let last = self.words.iter().rposition(|&word| word != 0);
        last.map_or(0, |index| index as u64 * 64 + 64 - u64::from(self.words[index].leading_zeros()))
    }

    /// The bits of a page of the map.
    pub(super) fn page(&self, page: usize) -> &[u64] {
        self.words.get(page * PAGE_WORDS..(page + 1) * PAGE_WORDS).unwrap_or_default()
    }

    /// Takes a page of the map.
    pub(super) fn set_page(&mut self, page: usize, bytes: &[u8]) {
        let start = page * PAGE_WORDS;
        if self.words.len() < start + PAGE_WORDS {
            self.words.resize(start + PAGE_WORDS, 0);
        }
        let words = &mut self.words[start..start + PAGE_WORDS];
        for (word, bytes) in words.iter_mut().zip(bytes.as_chunks::<8>().0) {
            *word = u64::from_le_bytes(*bytes);
        }
    }

    /// The first `blocks` free blocks in a row from `from` on; behind the end all are free.
    fn find_free(&self, from: u64, blocks: u64) -> u64 {
        let mut start = from;
        let mut block = from;
        while block - start < blocks {
            let Some(&word) = self.words.get((block / 64) as usize) else { return start };
            let rest = word >> (block % 64);
            let in_word = 64 - block % 64;
            if rest == 0 {
                block += in_word;
            } else if rest & 1 == 0 {
                block += u64::from(rest.trailing_zeros());
            } else {
                block += u64::from(rest.trailing_ones()).min(in_word);
                start = block;
            }
        }
        start
    }
}

/// A node's length, and those of values, up to 16 MiB and more.
const LENGTHS: usize = 7;

/// Which of them so many blocks are.
fn length(blocks: u64) -> usize {
    let nodes = blocks.div_ceil(NODE_BLOCKS_MAX.into()).max(1);
    (nodes.next_power_of_two().ilog2() as usize).min(LENGTHS - 1)
}

/// Gives out blocks, and takes them back.
#[derive(Default)]
pub(super) struct Space {
    used: Bitmap,
    /// What the newest root uses: what was used before the change that is being made.
    newest: Bitmap,
    busy: Bitmap,
    used_count: u64,
    /// Everything before them has been given out, or was too short, in this change: for a node, and for each length beyond, up to twice the one before.
    /// What is longer than a node is rare, and what it passes over shall serve the nodes.
    cursors: [u64; LENGTHS],
    has_changed: bool,
}

impl Space {
    /// The space of a file in which `used` is.
    pub(super) fn new(mut used: Bitmap) -> Space {
        used.put(Run { block: 0, blocks: BLOCK_FIRST }, true);
        let used_count = used.count();
        Space { newest: used.clone(), busy: used.clone(), used, used_count, ..Space::default() }
    }

    pub(super) fn used(&self) -> &Bitmap {
        &self.used
    }

    pub(super) fn used_count(&self) -> u64 {
        self.used_count
    }

    /// How many blocks may not be written.
    pub(super) fn busy_count(&self) -> u64 {
        self.busy.count()
    }

    /// The first block behind all that may not be written.
    pub(super) fn end(&self) -> u64 {
        self.busy.end()
    }

    /// Takes so many free blocks in a row; `None` where a file can have no more.
    pub(super) fn take(&mut self, blocks: u64) -> Option<u64> {
        let block = self.next_free(blocks);
        if block + blocks > FILE_BLOCKS_MAX {
            return None;
        }
        self.cursors[length(blocks)] = block + blocks;
        let run = Run { block, blocks };
        self.used.put(run, true);
        self.busy.put(run, true);
        self.used_count += blocks;
        self.has_changed = true;
        Some(block)
    }

    /// Where so many free blocks in a row are that are taken next.
    pub(super) fn next_free(&self, blocks: u64) -> u64 {
        self.busy.find_free(self.search_start(blocks), blocks)
    }

    /// Where so many free blocks in a row are looked for first: what was too short for fewer is passed over.
    pub(super) fn search_start(&self, blocks: u64) -> u64 {
        self.cursors[..=length(blocks)].iter().fold(BLOCK_FIRST, |start, &cursor| start.max(cursor))
    }

    /// Notes that the new root does not need these blocks any more; false, and nothing, if they are not all in use.
    #[must_use]
    pub(super) fn free(&mut self, run: Run) -> bool {
        let is_used = self.used.count_in(run) == run.blocks;
        if is_used {
            self.used.put(run, false);
            // What was taken in this change is nobody's then.
            if self.newest.count_in(run) == 0 || planted(Bug::BlocksUsedAtOnce) {
                self.busy.put(run, false);
            }
            self.used_count -= run.blocks;
            self.has_changed = true;
        }
        is_used
    }

    /// Takes back what was taken in this change, and is not needed: it is looked at first again.
    pub(super) fn give_back(&mut self, run: Run) {
        let was_taken = self.free(run);
        assert!(was_taken, "what is given back was taken");
        self.cursors.iter_mut().for_each(|cursor| *cursor = run.block.min(*cursor));
    }

    /// Whether the map says something else of a page's blocks since the change began.
    pub(super) fn is_changed(&self, page: usize) -> bool {
        (page * PAGE_WORDS..(page + 1) * PAGE_WORDS)
            .any(|index| self.used.word(index) != self.newest.word(index))
    }

    /// Begins a change. What neither the newest root uses nor one of those that are `held` is free from now on, and is shown to `forget`.
    pub(super) fn begin<'h>(
        &mut self,
        held: impl Iterator<Item = &'h Bitmap> + Clone,
        mut forget: impl FnMut(u64),
    ) {
        self.cursors = [0; LENGTHS];
        for (index, busy) in self.busy.words.iter_mut().enumerate() {
            let needed = held.clone().fold(self.newest.word(index), |needed, held| needed | held.word(index));
            let mut free = *busy & !needed;
            *busy &= needed;
            while free != 0 {
                forget(index as u64 * 64 + u64::from(free.trailing_zeros()));
                free &= free - 1;
            }
        }
    }

    /// Ends a change that made the newest root. Returns what the one before uses.
    pub(super) fn commit(&mut self) -> Bitmap {
        self.has_changed = false;
        std::mem::replace(&mut self.newest, self.used.clone())
    }

    /// Ends a change of which nothing remains.
    pub(super) fn roll_back(&mut self) {
        if !std::mem::take(&mut self.has_changed) {
            return;
        }
        for (index, busy) in self.busy.words.iter_mut().enumerate() {
            *busy &= !(self.used.word(index) & !self.newest.word(index));
        }
        self.used.clone_from(&self.newest);
        self.used_count = self.used.count();
    }
}
