//! Reading a stretch of the durable log record by record, in pieces.
//!
//! An extent can be as long as a segment, a gigabyte, and its checksum can only be compared once all of it has been read.
//! Compaction must not need that much memory, nor that much time at once, and it needs no checksum of the whole: every
//! record has one of its own, which covers its address, too. So this reader loads what the disk gives in one piece of
//! [`PIECE_BYTES`] (or one record, where that is longer), and can go on later from a [`Cursor`].
//!
//! It trusts nothing that it reads: what is neither a seal that belongs here, nor padding, nor a record whose checksum holds is an
//! error that names the place. A record that damage in a padding might hide is still counted by `liveness`, so
//! its segment stays.

use super::record::{self, Address, DiskRecord, Shape};
use super::seal::{SEAL_BYTES, Seal};
use super::segments::Segments;
use crate::device::{AlignedBuffer, BLOCK_BYTES};
use crate::error::{Error, Result};

/// What is read at once.
const PIECE_BYTES: u64 = 256 << 10;

/// A place between two records.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Cursor {
    pub(crate) position: Address,
    /// Where the extent ends in which the position lies. The same where a seal comes next.
    extent_end: Address,
}

impl Cursor {
    /// The place of a seal.
    pub(crate) fn at_seal(address: Address) -> Cursor {
        Cursor { position: address, extent_end: address }
    }

    /// A place in the same extent.
    pub(crate) fn moved_to(self, address: Address) -> Cursor {
        Cursor { position: address, extent_end: self.extent_end }
    }
}

/// Some consecutive records of one extent.
pub(crate) struct Batch<'a> {
    pub(crate) records: Vec<(Address, DiskRecord<'a>)>,
    /// The place of the first of them.
    pub(crate) start: Cursor,
}

/// See the module's documentation.
pub(crate) struct RecordReader<'a> {
    segments: &'a Segments,
    database: u128,
    cursor: Cursor,
    /// What was read last, and where it lies in the log.
    buffer: AlignedBuffer,
    loaded: std::ops::Range<Address>,
}

impl<'a> RecordReader<'a> {
    /// A reader of this database's log from `cursor` on.
    pub(crate) fn new(segments: &'a Segments, database: u128, cursor: Cursor) -> RecordReader<'a> {
        let piece = PIECE_BYTES.min(segments.segment_bytes()) as usize;
        RecordReader { segments, database, cursor, buffer: AlignedBuffer::new(piece), loaded: 0..0 }
    }

    /// Where it goes on.
    pub(crate) fn cursor(&self) -> Cursor {
        self.cursor
    }

    /// Goes on elsewhere.
    pub(crate) fn move_to(&mut self, cursor: Cursor) {
        self.cursor = cursor;
    }

    /// The next records before `end`, a segment's end that is durable; at most `count_max`, and only as many as one piece holds.
    /// None once `end` is reached.
    ///
    /// # Errors
    /// `Corrupted` for what is not whole, `Io` if the device fails.
    pub(crate) fn next_batch(&mut self, end: Address, count_max: usize) -> Result<Batch<'_>> {
        self.find_record(end)?;
        let start = self.cursor;
        let mut records = Vec::new();
        while records.len() < count_max && self.cursor.position < self.cursor.extent_end {
            let address = self.cursor.position;
            let Some(rest) = loaded_part(&self.buffer, &self.loaded, address) else { break };
            let word = first_word(rest);
            if let Some(bytes) = record::padding_bytes(word) {
                self.cursor.position += self.checked_padding(bytes)?;
                continue;
            }
            let is_whole = Shape::parse(word).is_none_or(|shape| shape.bytes() <= rest.len() as u64);
            if !is_whole {
                break;
            }
            let record =
                DiskRecord::parse(address, rest).map_err(|what| self.segments.corrupted(address, what))?;
            self.cursor.position += record.shape.bytes();
            records.push((address, record));
        }
        Ok(Batch { records, start })
    }

    /// Moves on over seals and padding to the next record before `end`, and loads it whole.
    fn find_record(&mut self, end: Address) -> Result<()> {
        while self.cursor.position < end {
            let address = self.cursor.position;
            if address == self.cursor.extent_end {
                self.pass_seal()?;
                continue;
            }
            self.load(address, 8)?;
            let word = self.word_at(address);
            if let Some(bytes) = record::padding_bytes(word) {
                self.cursor.position += self.checked_padding(bytes)?;
                continue;
            }
            let shape = Shape::parse(word)
                .ok_or_else(|| self.segments.corrupted(address, "this is not the beginning of a record"))?;
            if shape.bytes() > self.cursor.extent_end - address {
                return Err(self.segments.corrupted(address, "a record is longer than its extent"));
            }
            return self.load(address, shape.bytes());
        }
        Ok(())
    }

    fn pass_seal(&mut self) -> Result<()> {
        let address = self.cursor.position;
        self.load(address, SEAL_BYTES)?;
        let bytes = loaded_part(&self.buffer, &self.loaded, address).unwrap_or_default();
        let (seal, _) = Seal::decode(bytes).map_err(|what| self.segments.corrupted(address, what))?;
        let room = self.segments.segment_bytes() - address % self.segments.segment_bytes();
        let is_block = seal.length >= BLOCK_BYTES as u64 && seal.length.is_multiple_of(BLOCK_BYTES as u64);
        if seal.database != self.database || seal.address != address || !is_block || seal.length > room {
            return Err(self.segments.corrupted(address, "this seal belongs to another place of the log"));
        }
        self.cursor = Cursor { position: address + SEAL_BYTES, extent_end: seal.end() };
        Ok(())
    }

    fn checked_padding(&self, bytes: u64) -> Result<u64> {
        match bytes <= self.cursor.extent_end - self.cursor.position {
            true => Ok(bytes),
            false => Err(self.segments.corrupted(self.cursor.position, "padding is longer than its extent")),
        }
    }

    fn word_at(&self, address: Address) -> u64 {
        loaded_part(&self.buffer, &self.loaded, address).map_or(0, first_word)
    }

    /// Sees to it that `bytes` from `address` on, which lie in one segment, are in the buffer.
    fn load(&mut self, address: Address, bytes: u64) -> Result<()> {
        if self.loaded.contains(&address) && address + bytes <= self.loaded.end {
            return Ok(());
        }
        let block_bytes = BLOCK_BYTES as u64;
        let block = address - address % block_bytes;
        let room = self.segments.segment_bytes() - block % self.segments.segment_bytes();
        let wanted = (address + bytes - block).next_multiple_of(block_bytes);
        let length = wanted.max(PIECE_BYTES).min(room);
        if (self.buffer.len() as u64) < length {
            self.buffer = AlignedBuffer::new(length as usize);
        }
        self.loaded = 0..0;
        self.segments.read(block, &mut self.buffer[..length as usize]).map_err(|error| {
            let (file, offset) = self.segments.place(block);
            Error::io(format_args!("reading {file} at offset {offset}"), error)
        })?;
        self.loaded = block..block + length;
        Ok(())
    }
}

/// What is loaded from `address` on; `None` if not even a word is.
fn loaded_part<'b>(
    buffer: &'b AlignedBuffer,
    loaded: &std::ops::Range<Address>,
    address: Address,
) -> Option<&'b [u8]> {
    let skip = loaded.contains(&address).then(|| (address - loaded.start) as usize)?;
    buffer.get(skip..(loaded.end - loaded.start) as usize).filter(|rest| rest.len() >= 8)
}

fn first_word(bytes: &[u8]) -> u64 {
    bytes.first_chunk::<8>().map_or(0, |word| u64::from_le_bytes(*word))
}
