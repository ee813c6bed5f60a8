//! A leaf: 4 KiB of rows of one size in the order of their keys, changed in place under a latch.
//!
//! ```text
//!  page   CRC32C of the rest (4) | rows (4) | number of the leaf (8) | keys | values | what was there
//! ```
//!
//! Keys lie together, so that a search meets few cache lines. The page in memory is the one on the disk, but for its checksum.

use std::cmp::Ordering;
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

use anyhow::{Result, ensure};

use crate::floor::BLOCK_BYTES;
use crate::generate::Sizes;

/// The size of a leaf in memory and on the disk.
pub(super) const PAGE_BYTES: usize = BLOCK_BYTES;
const CHECKSUM_BYTES: usize = 4;
const HEADER_BYTES: usize = 16;

/// Where rows lie in a leaf.
#[derive(Clone, Copy)]
pub(super) struct Layout {
    pub(super) key_bytes: usize,
    pub(super) value_bytes: usize,
    /// The most rows of a leaf.
    pub(super) rows_max: usize,
}

impl Layout {
    /// For rows of these sizes.
    pub(super) fn new(sizes: Sizes) -> Result<Layout> {
        let Sizes { key_bytes, value_bytes } = sizes;
        let rows_max = (PAGE_BYTES - HEADER_BYTES) / (key_bytes + value_bytes);
        ensure!(rows_max > 0, "a row of {} bytes does not fit a leaf", key_bytes + value_bytes);
        Ok(Layout { key_bytes, value_bytes, rows_max })
    }

    fn key_at(self, row: usize) -> usize {
        HEADER_BYTES + row * self.key_bytes
    }

    fn value_at(self, row: usize) -> usize {
        HEADER_BYTES + self.rows_max * self.key_bytes + row * self.value_bytes
    }
}

/// The first bytes of a key as a number: keys whose heads differ are in the order of their heads.
#[inline]
pub(super) fn head(key: &[u8]) -> u64 {
    match key.first_chunk() {
        Some(first) => u64::from_be_bytes(*first),
        None => {
            let mut padded = [0; 8];
            padded[..key.len()].copy_from_slice(key);
            u64::from_be_bytes(padded)
        }
    }
}

/// A leaf, whose latch is held.
pub(super) struct Leaf {
    /// Whether it differs from what the disk has.
    pub(super) is_dirty: bool,
    /// Whether its rows are in another tree by now.
    pub(super) is_retired: bool,
    page: [u8; PAGE_BYTES],
}

/// A leaf with its latch, which lies in the cache line of the first keys.
#[repr(align(64))]
pub(super) struct Latched(Mutex<Leaf>);

impl Latched {
    /// A dirty leaf without rows.
    pub(super) fn empty(number: usize) -> Latched {
        let mut page = [0; PAGE_BYTES];
        page[8..HEADER_BYTES].copy_from_slice(&(number as u64).to_le_bytes());
        Latched(Mutex::new(Leaf { is_dirty: true, is_retired: false, page }))
    }

    /// Waits for the latch.
    #[inline]
    pub(super) fn latch(&self) -> MutexGuard<'_, Leaf> {
        // A panic elsewhere fails the run by itself.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the latch if nobody has it.
    #[inline]
    pub(super) fn try_latch(&self) -> Option<MutexGuard<'_, Leaf>> {
        match self.0.try_lock() {
            Ok(leaf) => Some(leaf),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// The leaf of somebody who has it alone.
    pub(super) fn leaf(&mut self) -> &mut Leaf {
        self.0.get_mut().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Leaf {
    /// How many rows it has.
    #[inline]
    pub(super) fn rows(&self) -> usize {
        self.page[4..8].first_chunk().map_or(0, |bytes| u32::from_le_bytes(*bytes) as usize)
    }

    #[inline]
    pub(super) fn key(&self, layout: Layout, row: usize) -> &[u8] {
        &self.page[layout.key_at(row)..][..layout.key_bytes]
    }

    #[inline]
    pub(super) fn value(&self, layout: Layout, row: usize) -> &[u8] {
        &self.page[layout.value_at(row)..][..layout.value_bytes]
    }

    #[inline]
    pub(super) fn value_mut(&mut self, layout: Layout, row: usize) -> &mut [u8] {
        &mut self.page[layout.value_at(row)..][..layout.value_bytes]
    }

    /// The row of a key, or the one that it would come before.
    #[inline]
    pub(super) fn search(&self, layout: Layout, key: &[u8]) -> Result<usize, usize> {
        let head_of_key = head(key);
        let (mut low, mut high) = (0, self.rows());
        while low < high {
            let middle = low.midpoint(high);
            let other = self.key(layout, middle);
            match head(other).cmp(&head_of_key).then_with(|| other.cmp(key)) {
                Ordering::Less => low = middle + 1,
                Ordering::Greater => high = middle,
                Ordering::Equal => return Ok(middle),
            }
        }
        Err(low)
    }

    /// Adds a row behind all others. There is room for it.
    pub(super) fn push(&mut self, layout: Layout, key: &[u8], value: &[u8]) {
        let row = self.rows();
        let at = layout.key_at(row);
        self.page[at..at + layout.key_bytes].copy_from_slice(key);
        self.value_mut(layout, row).copy_from_slice(value);
        self.page[4..8].copy_from_slice(&(row as u32 + 1).to_le_bytes());
    }

    /// Copies the page, with its checksum, which is returned.
    pub(super) fn copy_to(&self, page: &mut [u8]) -> u32 {
        page.copy_from_slice(&self.page);
        let checksum = crc32c::crc32c(&page[CHECKSUM_BYTES..]);
        page[..CHECKSUM_BYTES].copy_from_slice(&checksum.to_le_bytes());
        checksum
    }
}
