//! The file: shadow paging. A page is always written where no page of the last table lies.
//!
//! ```text
//!  file    half of tables | half of tables | slot | slot | ...                 all written with zeros beforehand
//!  half    all entries | the entries of a window | ... of the next one | ...   when it is full, the other half begins
//!  table   magic (8) | window (8) | entries (4) | CRC32C of them (4) | entries: leaf (4), slot (4), the page's CRC32C (4) | zeros to 4 KiB
//! ```
//!
//! A window's pages go to free slots in rising order, around and around: what was written one round ago is mostly free again, so that
//! free slots lie together, and many pages are one write. Pages and table are one sync: a table counts only if the checksums of its
//! pages hold, and until then the pages of the one before are left alone.

use std::os::fd::OwnedFd;
use std::path::Path;

use anyhow::{Context, Result, ensure};

use super::leaf::PAGE_BYTES;
use crate::floor::{AlignedBytes, create_direct, write_all};

/// Slots for each leaf: the more, the longer are the writes.
const SLOTS_PER_LEAF: usize = 4;
/// The longest write.
const RUN_PAGES: usize = 1024;
/// How many times all entries fit a half.
const TABLES_PER_HALF: usize = 8;
const MAGIC: u64 = u64::from_le_bytes(*b"in-place");
const TABLE_HEADER_BYTES: usize = 24;
const ENTRY_BYTES: usize = 12;

/// Where a page is.
#[derive(Clone, Copy)]
struct Entry {
    leaf: u32,
    slot: u32,
    checksum: u32,
}

/// The file, and where each leaf is in it.
pub(super) struct PageFile {
    file: OwnedFd,
    /// The newest page of each leaf.
    entries: Vec<Option<Entry>>,
    is_taken: Vec<bool>,
    /// Where the next free slot is looked for.
    next_slot: usize,
    run: Run,
    /// Of the window that is being written.
    written: Vec<Entry>,
    replaced: Vec<u32>,
    table: AlignedBytes,
    half_bytes: usize,
    /// Which half, and where in it the next table goes.
    half: usize,
    position: usize,
    windows: u64,
    /// Whether a write has failed: nothing is durable any more.
    has_failed: bool,
}

/// Pages that are written together.
struct Run {
    bytes: AlignedBytes,
    first_slot: usize,
    pages: usize,
}

impl PageFile {
    /// Makes a file for so many leaves.
    pub(super) fn create(path: &Path, leaves_max: usize) -> Result<PageFile> {
        let table_bytes = (TABLE_HEADER_BYTES + leaves_max * ENTRY_BYTES).next_multiple_of(PAGE_BYTES);
        let half_bytes = TABLES_PER_HALF * table_bytes;
        let slots = SLOTS_PER_LEAF * leaves_max;
        let file = create_direct(path)?;
        let run = Run { bytes: AlignedBytes::new(RUN_PAGES * PAGE_BYTES), first_slot: 0, pages: 0 };
        let (mut position, end) = (0, 2 * half_bytes + slots * PAGE_BYTES);
        while position < end {
            let piece = run.bytes.bytes().len().min(end - position);
            write_all(&file, &run.bytes.bytes()[..piece], position as u64)?;
            position += piece;
        }
        rustix::fs::fsync(&file).context("cannot sync the leaves' file")?;
        Ok(PageFile {
            file,
            entries: vec![None; leaves_max],
            is_taken: vec![false; slots],
            next_slot: 0,
            run,
            written: Vec::new(),
            replaced: Vec::new(),
            table: AlignedBytes::new(table_bytes),
            half_bytes,
            half: 0,
            position: half_bytes,
            windows: 0,
            has_failed: false,
        })
    }

    /// Makes a window durable: `pages` are the leaves' numbers, and `copy` puts one's page where it is told and returns its checksum.
    pub(super) fn write_window(
        &mut self,
        pages: impl Iterator<Item = usize>,
        copy: impl FnMut(usize, &mut [u8]) -> u32,
    ) -> Result<()> {
        ensure!(!self.has_failed, "a write of leaves failed before");
        self.has_failed = true;
        self.write_pages(pages, copy)?;
        if !self.written.is_empty() {
            self.write_table()?;
            rustix::fs::fdatasync(&self.file).context("cannot sync the leaves' file")?;
            self.windows += 1;
        }
        for slot in self.replaced.drain(..) {
            self.is_taken[slot as usize] = false;
        }
        self.written.clear();
        self.has_failed = false;
        Ok(())
    }

    /// Where in the file the newest page of each leaf begins.
    #[cfg(test)]
    pub(super) fn positions(&self) -> Vec<u64> {
        let pages = self.entries.iter().flatten();
        pages.map(|entry| (2 * self.half_bytes + entry.slot as usize * PAGE_BYTES) as u64).collect()
    }

    fn write_pages(
        &mut self,
        pages: impl Iterator<Item = usize>,
        mut copy: impl FnMut(usize, &mut [u8]) -> u32,
    ) -> Result<()> {
        for leaf in pages {
            let slot = self.free_slot()?;
            if self.run.pages == RUN_PAGES || slot != self.run.first_slot + self.run.pages {
                self.write_run()?;
                self.run.first_slot = slot;
            }
            let page = &mut self.run.bytes.bytes_mut()[self.run.pages * PAGE_BYTES..][..PAGE_BYTES];
            let entry = Entry { leaf: leaf as u32, slot: slot as u32, checksum: copy(leaf, page) };
            self.run.pages += 1;
            self.written.push(entry);
            self.replaced.extend(self.entries[leaf].replace(entry).map(|before| before.slot));
        }
        self.write_run()
    }

    fn free_slot(&mut self) -> Result<usize> {
        let rest = self.next_slot..self.is_taken.len();
        let slot = rest.chain(0..self.next_slot).find(|&slot| !self.is_taken[slot]);
        let slot = slot.context("the leaves' file has no free slot")?;
        self.is_taken[slot] = true;
        self.next_slot = slot + 1;
        Ok(slot)
    }

    fn write_run(&mut self) -> Result<()> {
        if self.run.pages > 0 {
            let bytes = &self.run.bytes.bytes()[..self.run.pages * PAGE_BYTES];
            let position = 2 * self.half_bytes + self.run.first_slot * PAGE_BYTES;
            write_all(&self.file, bytes, position as u64)?;
            self.run.pages = 0;
        }
        Ok(())
    }

    /// Writes what has changed of the table, or all of it at the beginning of a half.
    fn write_table(&mut self) -> Result<()> {
        let len = |entries: usize| (TABLE_HEADER_BYTES + entries * ENTRY_BYTES).next_multiple_of(PAGE_BYTES);
        if self.position + len(self.written.len()) > self.half_bytes {
            self.half = 1 - self.half;
            self.position = 0;
            self.written.clear();
            self.written.extend(self.entries.iter().flatten());
        }
        let bytes = &mut self.table.bytes_mut()[..len(self.written.len())];
        bytes.fill(0);
        for (entry, place) in self.written.iter().zip(bytes[TABLE_HEADER_BYTES..].chunks_mut(ENTRY_BYTES)) {
            place[..4].copy_from_slice(&entry.leaf.to_le_bytes());
            place[4..8].copy_from_slice(&entry.slot.to_le_bytes());
            place[8..].copy_from_slice(&entry.checksum.to_le_bytes());
        }
        bytes[..8].copy_from_slice(&MAGIC.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.windows.to_le_bytes());
        bytes[16..20].copy_from_slice(&(self.written.len() as u32).to_le_bytes());
        let checksum = crc32c::crc32c(&bytes[TABLE_HEADER_BYTES..]);
        bytes[20..TABLE_HEADER_BYTES].copy_from_slice(&checksum.to_le_bytes());
        write_all(&self.file, bytes, (self.half * self.half_bytes + self.position) as u64)?;
        self.position += bytes.len();
        Ok(())
    }
}
