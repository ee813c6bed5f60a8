//! Neighbours: what was written one after the other is often asked for one after the other. Who goes on where others have read gets what lies behind it with it, into the read cache.
//!
//! ```text
//!   blocks:   | b           | b+1         | b+2           b+3 | ...
//!   records:  | ..[A]...... | .[B]....... |                   |
//!               ^ read alone:             ^ and from here on four blocks, then eight, and so on
//!                 nobody was here           ^ somebody was at the block before: with it comes what follows in two blocks
//! ```
//!
//! Each record on disk is read by itself, in a block of which it has a small part: keys that were put in order, and are read, or put again, in order, would each take as long as the disk takes. So it is
//! remembered with which blocks reads ended last, anybody's. Who reads one of them once more, or the one behind it, goes through the log, and each time on reads twice as much. Who asks for records all over
//! the place pays for two looks at a small table.
//!
//! What comes in was not asked for: only what the index refers to is taken, and who asks for it first does not count. It changes nothing that anybody could see but how long reads take: a record's
//! checksum covers its address, and who finds it asks for that address.
//!
//! Source: Linux reads files ahead so, and InnoDB its extents (linear read-ahead).

use super::engine::Engine;
use crate::device::BLOCK_BYTES;
use crate::storage::extent::{self, Item};
use crate::storage::record::{Address, DiskRecord};
use crate::storage::seal::{SEAL_BYTES, Seal};
use crate::sync::atomic::{AtomicU64, Ordering};

/// So many blocks are remembered at the most: as many walks through the log go on side by side.
const REMEMBERED_MAX: u64 = 256;
/// And one for so much of the read cache. Of a small log most blocks would be remembered else, and whoever reads anywhere seem to go on.
const CACHE_BYTES_PER_BLOCK: u64 = 64 << 10;
/// At the most two to the power of this many blocks are read at once.
const LEVEL_MAX: u32 = 4;
/// What is read at once is such a part of the read cache at the most, so that it is still there when it is asked for.
const CACHE_PART: u64 = 64;
/// So many cache misses overlap.
const BATCH: usize = 32;
const BLOCK: u64 = BLOCK_BYTES as u64;

/// The blocks with which reads ended last, each in the place that its number has.
pub(crate) struct Neighbours {
    /// So many places are in use.
    count: AtomicU64,
    /// A block's number and, in the lowest bits, how many blocks were read with it: two to the power of that.
    remembered: Box<[AtomicU64]>,
    /// Records that have come in so.
    pub(crate) records: AtomicU64,
}

impl Neighbours {
    pub(super) fn new() -> Neighbours {
        // No log has a block of this number.
        let remembered = (0..REMEMBERED_MAX).map(|_| AtomicU64::new(u64::MAX)).collect();
        Neighbours { count: AtomicU64::new(REMEMBERED_MAX), remembered, records: AtomicU64::new(0) }
    }

    /// Where a block is remembered.
    fn place_of(&self, block: u64) -> &AtomicU64 {
        &self.remembered[(block % self.count.load(Ordering::Relaxed)) as usize]
    }

    /// The read cache has so much memory.
    fn fit(&self, cache_bytes: u64) {
        let count = (cache_bytes / CACHE_BYTES_PER_BLOCK).clamp(1, REMEMBERED_MAX);
        if count != self.count.load(Ordering::Relaxed) {
            self.count.store(count, Ordering::Relaxed);
        }
    }

    fn level_of(&self, block: u64) -> Option<u32> {
        let entry = self.place_of(block).load(Ordering::Relaxed);
        (entry >> 3 == block).then_some((entry & 7) as u32)
    }

    /// Whether what follows a record in this block is to come with it: in so many blocks, two to the power of that.
    fn level_at(&self, block: u64, level_max: u32) -> Option<u32> {
        let before = block.checked_sub(1).and_then(|before| self.level_of(before));
        self.level_of(block).max(before).map(|level| (level + 1).min(level_max))
    }

    /// A read ends with this block.
    fn note_last(&self, block: u64, level: u32) {
        self.place_of(block).store(block << 3 | u64::from(level), Ordering::Relaxed);
    }

    /// What was read for a record with others could not be: who comes next begins again with one block.
    pub(super) fn forget(&self, address: Address) {
        for block in [address / BLOCK, (address / BLOCK).saturating_sub(1)] {
            self.place_of(block).store(u64::MAX, Ordering::Relaxed);
        }
    }

    /// A record was read that ends before this address: who goes on begins there, in another block if it is long.
    pub(super) fn note_end(&self, start: Address, end: Address) {
        let (first, last) = (start / BLOCK, (end - 1) / BLOCK);
        if first != last
            && let Some(level) = self.level_of(first)
        {
            self.note_last(last, level);
        }
    }
}

impl Engine {
    /// Up to where the log is to be read for the cold record at an address, if not for it alone; takes note of it.
    pub(super) fn neighbours_end(&self, address: Address) -> Option<Address> {
        let cache_bytes = self.cold.cache.bytes();
        let most = cache_bytes / CACHE_PART / BLOCK;
        let level_max = most.checked_ilog2().unwrap_or(0).min(LEVEL_MAX);
        if level_max == 0 {
            return None;
        }
        let (block, neighbours) = (address / BLOCK, &self.cold.neighbours);
        neighbours.fit(cache_bytes);
        let Some(level) = neighbours.level_at(block, level_max) else {
            neighbours.note_last(block, 0);
            return None;
        };
        let segment_end = (address + 1).next_multiple_of(self.segments.segment_bytes());
        // What is evicted is durable, and so has been written.
        let end =
            ((block + (1 << level)) * BLOCK).min(segment_end).min(self.log.head().next_multiple_of(BLOCK));
        neighbours.note_last((end / BLOCK).max(block + 1) - 1, level);
        Some(end)
    }

    /// Takes what was read of the log from `start` on, where a record begins or ends, into the read cache. The caller is not pinned.
    pub(super) fn take_neighbours(&self, mut start: Address, mut bytes: &[u8]) {
        let mut batch = Vec::with_capacity(BATCH);
        loop {
            let mut end = start + bytes.len() as u64;
            for item in extent::items(start, bytes) {
                match item {
                    Ok(Item::Record(address, record)) => batch.push((address, record)),
                    Ok(Item::Padding(..)) => {}
                    Err((address, _)) => end = address,
                }
                if batch.len() == BATCH {
                    self.take_neighbours_of(&mut batch);
                }
            }
            // What is no record there may be a seal.
            bytes = bytes.get((end - start) as usize..).unwrap_or_default();
            let is_seal = Seal::decode(bytes).is_ok_and(|(seal, _)| seal.address == end);
            if !is_seal {
                break;
            }
            (start, bytes) = (end + SEAL_BYTES, bytes.get(SEAL_BYTES as usize..).unwrap_or_default());
        }
        self.take_neighbours_of(&mut batch);
    }

    fn take_neighbours_of(&self, batch: &mut Vec<(Address, DiskRecord<'_>)>) {
        let (head, is_newest, cache) = (self.log.head(), self.is_newest(), &self.cold.cache);
        let is_to_come = |address| address < head && !cache.has(address);
        let mut count = 0;
        for (address, _, record) in self.newest_of(batch.drain(..)).filter(|item| is_to_come(item.0)) {
            cache.admit_ahead(address, &record, &is_newest);
            count += 1;
        }
        self.cold.neighbours.records.fetch_add(count, Ordering::Relaxed);
    }
}

#[cfg(test)]
#[path = "neighbours_tests.rs"]
mod tests;
