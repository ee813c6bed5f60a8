//! The log on the disk: groups of records, each one write and one sync.
//!
//! ```text
//!  file    group | group | ...               from the beginning again after each checkpoint, with another epoch
//!  group   magic, epoch, sequence, words, CRC32C of these and the records | records | zeros to a multiple of 4 KiB
//! ```
//!
//! The first group that is not whole, or not of the epoch, or not the next one ends the log: it was being written, or is of an older one.

use std::fs::File;
use std::io::ErrorKind;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use rustix::fs::{FallocateFlags, Mode, OFlags};
use rustix::io::pwrite;

use super::redo;
use crate::engines::OnRow;
use crate::floor::{AlignedBytes, BLOCK_BYTES};

/// The most words of a group: as much as a record may have, and a fourth of the ring.
pub(super) const GROUP_WORDS: u64 = 1 << 20;
const MAGIC: u64 = u64::from_le_bytes(*b"kilnwal1");
/// Words of a group's head.
const HEAD: usize = 5;
/// So much of the file is written with zeros when it is made, and so much more is allocated when that is full: a file that grows takes twice as
/// long to sync.
const ALLOCATED_BYTES: u64 = 64 << 20;

/// The file that is written.
pub(super) struct LogFile {
    file: OwnedFd,
    buffer: AlignedBytes,
    epoch: u64,
    sequence: u64,
    position: u64,
    allocated: u64,
}

impl LogFile {
    /// Opens the file, or makes it, for a log with this epoch.
    pub(super) fn open(path: &Path, epoch: u64) -> Result<LogFile> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::DIRECT | OFlags::CLOEXEC;
        let file = rustix::fs::open(path, flags, Mode::RUSR | Mode::WUSR)
            .with_context(|| format!("cannot open {}", path.display()))?;
        let allocated = rustix::fs::fstat(&file)?.st_size as u64;
        let buffer = AlignedBytes::new((8 * (HEAD + GROUP_WORDS as usize)).next_multiple_of(BLOCK_BYTES));
        let mut file = LogFile { file, buffer, epoch, sequence: 0, position: 0, allocated };
        if allocated == 0 {
            let piece = file.buffer.bytes().len() / BLOCK_BYTES * BLOCK_BYTES;
            while file.allocated < ALLOCATED_BYTES {
                write_all(&file.file, &file.buffer.bytes()[..piece], file.allocated)?;
                file.allocated += piece as u64;
            }
            rustix::fs::fsync(&file.file).context("cannot sync the log")?;
            let directory = path.parent().context("the log has no directory")?;
            File::open(directory).and_then(|directory| Ok(rustix::fs::fsync(&directory)?))?;
        }
        Ok(file)
    }

    pub(super) fn epoch(&self) -> u64 {
        self.epoch
    }

    pub(super) fn position(&self) -> u64 {
        self.position
    }

    /// Begins again at the beginning.
    pub(super) fn begin(&mut self, epoch: u64) {
        (self.epoch, self.sequence, self.position) = (epoch, 0, 0);
    }

    /// The next group, which is empty.
    pub(super) fn group(&mut self) -> Group<'_> {
        Group { file: self, words: 0 }
    }
}

/// A group that is being filled.
pub(super) struct Group<'a> {
    file: &'a mut LogFile,
    words: usize,
}

impl Group<'_> {
    pub(super) fn words(&self) -> u64 {
        self.words as u64
    }

    /// Adds a word. There is room for [`GROUP_WORDS`].
    #[inline]
    pub(super) fn push(&mut self, word: u64) {
        set_word(self.file.buffer.bytes_mut(), HEAD + self.words, word);
        self.words += 1;
    }

    /// Makes it durable.
    pub(super) fn write(self) -> Result<()> {
        let LogFile { file, buffer, epoch, sequence, position, allocated } = self.file;
        let used = 8 * (HEAD + self.words);
        let bytes = &mut buffer.bytes_mut()[..used.next_multiple_of(BLOCK_BYTES)];
        bytes[used..].fill(0);
        let head = [MAGIC, *epoch, *sequence, self.words as u64];
        head.into_iter().enumerate().for_each(|(at, word)| set_word(bytes, at, word));
        let checksum = checksum(&bytes[..8 * (HEAD - 1)], &bytes[8 * HEAD..used]);
        set_word(bytes, HEAD - 1, checksum);
        let end = *position + bytes.len() as u64;
        while end > *allocated {
            rustix::fs::fallocate(&*file, FallocateFlags::empty(), *allocated, ALLOCATED_BYTES)
                .context("cannot make room for the log")?;
            *allocated += ALLOCATED_BYTES;
        }
        write_all(file, bytes, *position)?;
        rustix::fs::fdatasync(&*file).context("cannot sync the log")?;
        (*sequence, *position) = (*sequence + 1, end);
        Ok(())
    }
}

fn checksum(head: &[u8], records: &[u8]) -> u64 {
    u64::from(crc32c::crc32c_append(crc32c::crc32c(head), records))
}

#[inline]
fn set_word(bytes: &mut [u8], at: usize, word: u64) {
    bytes[8 * at..8 * at + 8].copy_from_slice(&word.to_le_bytes());
}

fn write_all(file: &OwnedFd, bytes: &[u8], position: u64) -> Result<()> {
    let count = pwrite(file, bytes, position).context("cannot write the log")?;
    ensure!(count == bytes.len(), "the disk took {count} of {} bytes of the log: is it full?", bytes.len());
    Ok(())
}

/// Hands on what all transactions of the log with this epoch have written, in the order of the log. Nothing if there is no log.
pub(super) fn replay(path: &Path, epoch: u64, entry: &mut OnRow<'_>) -> Result<()> {
    let file = match File::open(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        file => file?,
    };
    let (mut position, mut bytes, mut group) = (0, Vec::new(), Vec::new());
    for sequence in 0.. {
        if !read_group(&file, position, [MAGIC, epoch, sequence], &mut bytes, &mut group)? {
            break;
        }
        redo::entries(&group, entry).with_context(|| format!("in the group at {position}"))?;
        position += bytes.len().next_multiple_of(BLOCK_BYTES) as u64;
    }
    Ok(())
}

/// Reads the group at a position: false if there is none that begins so and is whole. `bytes` has all of it then, `group` its records.
fn read_group(
    file: &File,
    position: u64,
    expected: [u64; 3],
    bytes: &mut Vec<u8>,
    group: &mut Vec<u64>,
) -> Result<bool> {
    bytes.resize(8 * HEAD, 0);
    if !read_whole(file, bytes, position)? {
        return Ok(false);
    }
    let word = |bytes: &[u8]| bytes.first_chunk().map_or(0, |chunk| u64::from_le_bytes(*chunk));
    let head: Vec<u64> = bytes.chunks_exact(8).map(word).collect();
    let words = head[HEAD - 2];
    if head[..3] != expected || words > GROUP_WORDS {
        return Ok(false);
    }
    bytes.resize(8 * (HEAD + words as usize), 0);
    if !read_whole(file, bytes, position)?
        || checksum(&bytes[..8 * (HEAD - 1)], &bytes[8 * HEAD..]) != head[HEAD - 1]
    {
        return Ok(false);
    }
    group.clear();
    group.extend(bytes[8 * HEAD..].chunks_exact(8).map(word));
    Ok(true)
}

/// False if the file ends before.
fn read_whole(file: &File, bytes: &mut [u8], position: u64) -> Result<bool> {
    match file.read_exact_at(bytes, position) {
        Err(error) if error.kind() == ErrorKind::UnexpectedEof => Ok(false),
        outcome => Ok(outcome.map(|()| true)?),
    }
}
