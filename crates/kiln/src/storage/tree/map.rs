//! The map of free space on disk: pages of bits, and a directory of the pages. `docs/format.md` has its layout.

use super::blocks::{Blocks, FileBlocks};
use super::output::Output;
use super::pages::Pages;
use super::reference::{BLOCK_FIRST, NodeReference};
use super::root::DirectoryReference;
use super::space::{Bitmap, PAGE_BLOCKS, Run, Space};
use crate::device::{AlignedBuffer, BLOCK_BYTES, READS_IN_FLIGHT_MAX};
use crate::error::Result;
use crate::planted::{Bug, planted};

/// Bytes that the directory has for a page.
pub(super) const ENTRY_BYTES: usize = 16;
/// So much of a directory is read at once.
const DIRECTORY_BLOCKS_AT_ONCE: u32 = 256;
#[cfg(test)]
pub(super) const OFFSETS: [(&str, usize); 3] = [("block", 0), ("checksum", 8), ("used", 12)];

/// Where a page of the map is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct PageEntry {
    /// 0: there is none, since nothing that it stands for is used.
    block: u64,
    checksum: u32,
    used: u32,
}

impl PageEntry {
    fn run(&self) -> Option<Run> {
        (self.block != 0).then_some(Run { block: self.block, blocks: 1 })
    }

    fn encode(&self) -> [u8; ENTRY_BYTES] {
        let mut bytes = [0; ENTRY_BYTES];
        bytes[..8].copy_from_slice(&self.block.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.checksum.to_le_bytes());
        bytes[12..].copy_from_slice(&self.used.to_le_bytes());
        bytes
    }

    fn decode(bytes: &[u8; ENTRY_BYTES]) -> PageEntry {
        let u32_at = |offset: usize| u32::from_le_bytes(std::array::from_fn(|index| bytes[offset + index]));
        let block = u64::from_le_bytes(std::array::from_fn(|index| bytes[index]));
        PageEntry { block, checksum: u32_at(8), used: u32_at(12) }
    }
}

/// The blocks of the map of a root: the directory, and the pages.
pub(super) fn runs<'a>(
    directory: &DirectoryReference,
    entries: &'a [PageEntry],
) -> impl Iterator<Item = Run> + use<'a> {
    let directory = Run { block: directory.block, blocks: directory.blocks.into() };
    std::iter::once(directory).chain(entries.iter().filter_map(PageEntry::run))
}

/// Reads a root's map.
///
/// # Errors
/// What cannot be read, or is damaged, with its place.
pub(super) fn read(
    pages: &Pages,
    root: &DirectoryReference,
    file_bytes: u64,
) -> Result<(Vec<PageEntry>, Bitmap)> {
    let failed = |block: u64, what: &str| pages.corrupted(block, what);
    let count = root.mapped_blocks.div_ceil(PAGE_BLOCKS) as usize;
    // The file's length bounds what is read, whatever the root says.
    if root.mapped_blocks.saturating_mul(BLOCK_BYTES as u64) > file_bytes {
        return Err(failed(file_bytes / BLOCK_BYTES as u64, "the file ends before its last used block"));
    }
    let (mut entries, mut checksum) = (Vec::new(), 0);
    // Some at a time: it may be longer than it has entries, if more was busy when it was written, and a forged one as long as the file.
    for start in (0..root.blocks).step_by(DIRECTORY_BLOCKS_AT_ONCE as usize) {
        let blocks = DIRECTORY_BLOCKS_AT_ONCE.min(root.blocks - start);
        let some = pages.read(root.block + u64::from(start), blocks.into())?;
        checksum = crc32c::crc32c_append(checksum, &some);
        let missing = count - entries.len();
        entries.extend(some.as_chunks::<ENTRY_BYTES>().0.iter().take(missing).map(PageEntry::decode));
    }
    if checksum != root.checksum {
        return Err(failed(root.block, "the directory of the map of free space has another checksum"));
    }
    if entries.len() != count {
        return Err(failed(root.block, "the directory of the map of free space is too short"));
    }
    let mut used = Bitmap::default();
    for (page, bytes) in read_pages(pages, &entries, root.mapped_blocks)? {
        let entry = &entries[page];
        if crc32c::crc32c(&bytes) != entry.checksum {
            return Err(failed(entry.block, "a page of the map of free space has another checksum"));
        }
        used.set_page(page, &bytes);
        let counted: u32 = used.page(page).iter().map(|word| word.count_ones()).sum();
        if counted != entry.used {
            return Err(failed(entry.block, "a page of the map of free space counts what it has not"));
        }
    }
    let slots = Run { block: 0, blocks: BLOCK_FIRST };
    let own = runs(root, &entries).chain([slots]).all(|run| used.count_in(run) == run.blocks);
    if !own || used.count() != root.used_blocks || used.end() != root.mapped_blocks {
        return Err(failed(root.block, "the map of free space contradicts itself"));
    }
    Ok((entries, used))
}

/// Reads the pages that there are, a number at a time.
fn read_pages(
    pages: &Pages,
    entries: &[PageEntry],
    mapped_blocks: u64,
) -> Result<Vec<(usize, AlignedBuffer)>> {
    let present: Vec<(usize, u64)> = entries
        .iter()
        .enumerate()
        .filter_map(|(page, entry)| entry.run().map(|run| (page, run.block)))
        .collect();
    if let Some((_, block)) = present.iter().find(|(_, block)| !(BLOCK_FIRST..mapped_blocks).contains(block))
    {
        return Err(pages.corrupted(*block, "a page of the map of free space is outside of the file"));
    }
    let mut read = Vec::with_capacity(present.len());
    for some in present.chunks(READS_IN_FLIGHT_MAX) {
        let places: Vec<_> = some
            .iter()
            .map(|&(_, block)| NodeReference { block, blocks: 1, ..NodeReference::default() })
            .collect();
        let buffers = pages.read_many(&mut super::pages::Queue::default(), &places)?;
        read.extend(some.iter().map(|&(page, _)| page).zip(buffers));
    }
    Ok(read)
}

/// How many pages a map may come to have while it gets its place, where all that may not be written ends before block `end`. Each page takes a block,
/// and so does the directory for each 256 of them, at worst behind that end, where these blocks belong to further pages.
fn pages_max(end: u64) -> usize {
    let pages = end.div_ceil(PAGE_BLOCKS);
    (pages + pages / (PAGE_BLOCKS / 2) + 2) as usize
}

/// Blocks of a directory of so many pages.
fn directory_blocks(pages: usize) -> usize {
    (pages * ENTRY_BYTES).div_ceil(BLOCK_BYTES)
}

/// Writes the map of what is used now, itself included, in the place of the one of `old`.
///
/// The map takes blocks, and that changes the map: so first all of it gets a place, until nothing more changes (a page gets one
/// only once), and then it is written.
pub(super) fn write(
    output: &mut Output<'_>,
    blocks: &mut FileBlocks<'_>,
    old: (&DirectoryReference, &[PageEntry]),
) -> Result<(DirectoryReference, Vec<PageEntry>)> {
    let mut entries = old.1.to_vec();
    if old.0.blocks > 0 {
        // It was read, or written, as part of the map.
        let _ = blocks.free(Run { block: old.0.block, blocks: old.0.blocks.into() });
    }
    let directory_blocks_max = directory_blocks(pages_max(blocks.space.end()));
    let directory = blocks.take(directory_blocks_max)?;
    let mut is_placed = Vec::new();
    place_pages(blocks, &mut entries, &mut is_placed)?;
    assert!(directory_blocks(entries.len()) <= directory_blocks_max, "{} pages of the map", entries.len());
    let mapped_blocks = blocks.space.used().end();
    entries.truncate(mapped_blocks.div_ceil(PAGE_BLOCKS) as usize);
    for (page, entry) in entries.iter_mut().enumerate() {
        if is_placed[page] {
            let words = blocks.space.used().page(page).to_vec();
            entry.used = words.iter().map(|word| word.count_ones()).sum();
            entry.checksum = output.put(entry.block, 1, |out| {
                for (word, out) in words.iter().zip(out.as_chunks_mut::<8>().0) {
                    *out = word.to_le_bytes();
                }
            })?;
        }
    }
    let checksum = output.put(directory, directory_blocks_max, |out| {
        for (entry, out) in entries.iter().zip(out.as_chunks_mut::<ENTRY_BYTES>().0) {
            *out = entry.encode();
        }
    })?;
    let used_blocks = blocks.space.used_count();
    let blocks = directory_blocks_max as u32;
    Ok((DirectoryReference { block: directory, blocks, checksum, used_blocks, mapped_blocks }, entries))
}

/// Gives every page in which something has changed a new place, or none if nothing in it is used.
fn place_pages(
    blocks: &mut FileBlocks<'_>,
    entries: &mut Vec<PageEntry>,
    is_placed: &mut Vec<bool>,
) -> Result<()> {
    loop {
        let count = blocks.space.used().end().div_ceil(PAGE_BLOCKS) as usize;
        entries.resize(count.max(entries.len()), PageEntry::default());
        is_placed.resize(entries.len(), false);
        let mut is_done = true;
        for page in 0..entries.len() {
            if is_placed[page] || !blocks.space.is_changed(page) {
                continue;
            }
            if let Some(run) = entries[page].run() {
                let _ = blocks.free(run);
                entries[page] = PageEntry::default();
                is_done = false;
            }
            if blocks.space.used().page(page).iter().any(|&word| word != 0) {
                entries[page].block = blocks.take(1)?;
                is_placed[page] = true;
                is_done = false;
            }
        }
        if is_done {
            break;
        }
    }
    // What was used in a page may have been the block of another one, which had to go. What such a page has been given may be in another one again.
    let is_empty = |space: &Space, page: usize| {
        !planted(Bug::EmptyMapPageKept) && space.used().page(page).iter().all(|&word| word == 0)
    };
    while let Some(page) = (0..entries.len()).find(|&page| is_placed[page] && is_empty(blocks.space, page)) {
        let _ = entries[page].run().map(|run| blocks.free(run));
        entries[page] = PageEntry::default();
        is_placed[page] = false;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::device::{Device, OpenMode, SimulatedDevice};
    use crate::storage::tree::reference::FILE_BLOCKS_MAX;

    /// The page before had got a block, since the one that goes was in it, and kept it: nothing led to it, and the check called the file damaged.
    #[test]
    fn a_page_in_which_only_the_block_of_a_later_page_was_used_goes_with_that_one() {
        let run = |block: u64, blocks: u64| Run { block, blocks };
        let nodes = [run(PAGE_BLOCKS, 1), run(2 * PAGE_BLOCKS, 1)];
        let own =
            [run(BLOCK_FIRST, 1), run(BLOCK_FIRST + 1, 1), run(BLOCK_FIRST + 2, 1), run(PAGE_BLOCKS + 1, 1)];
        let mut used = Bitmap::default();
        own.iter().chain(&nodes).for_each(|&run| used.put(run, true));
        let entry = |run: Run| PageEntry { block: run.block, ..PageEntry::default() };
        let directory =
            DirectoryReference { block: own[0].block, blocks: 1, ..DirectoryReference::default() };
        let entries = own[1..].iter().map(|&run| entry(run)).collect::<Vec<_>>();
        let mut space = Space::new(used);
        let device: Arc<dyn Device> = Arc::new(SimulatedDevice::new(1));
        let file = device.open("tree", OpenMode::Create).unwrap();
        let mut file_bytes = 1 << 40;
        let mut blocks = FileBlocks::new(Arc::clone(&file), "tree", &mut space, (&mut file_bytes, 0));
        assert!(nodes.into_iter().all(|run| blocks.free(run)));
        let mut has_failed = false;
        let mut output = Output::new(file, "tree", &mut has_failed);
        let (directory, entries) = write(&mut output, &mut blocks, (&directory, &entries)).unwrap();
        let reached: u64 = runs(&directory, &entries).map(|run| run.blocks).sum();
        assert_eq!(space.used_count(), BLOCK_FIRST + reached);
        assert_eq!((entries.len(), directory.used_blocks), (1, space.used_count()));
    }

    /// The directory was once made larger as often as it turned out to be too short.
    #[test]
    fn a_directory_has_room_for_the_pages_that_it_and_they_begin() {
        let pages = [1, 2, 255, 256, 257, 32_640, 32_641, 1 << 15, 1 << 20, FILE_BLOCKS_MAX / PAGE_BLOCKS];
        let ends = pages.iter().flat_map(|pages| (0..3).map(move |behind| pages * PAGE_BLOCKS - 1 + behind));
        for end in ends.chain([0]) {
            let most = pages_max(end);
            let last = end + (directory_blocks(most) + most) as u64;
            assert!(last.div_ceil(PAGE_BLOCKS) <= most as u64, "{most} pages are too few behind block {end}");
        }
    }
}
