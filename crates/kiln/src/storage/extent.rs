//! Writing and reading extents: the log's records between memory and disk.
//!
//! [`ExtentWriter`] copies a range of the ring into aligned buffers, fills in the checksums and writes seal and
//! records in one go. [`Scanner`] walks the extents of a log from its beginning and decides, where an extent is
//! not whole, whether that is the unfinished end of the log or damage.

use std::io;

use super::log::Log;
use super::record::{self, Address, DiskRecord, Kind, Shape};
use super::seal::{SEAL_BYTES, Seal, zero_sectors};
use super::segments::Segments;
use super::superblock::Superblock;
use crate::device::{AlignedBuffer, BLOCK_BYTES, SECTOR_BYTES};
use crate::error::{Error, Result};
use crate::planted::{Bug, planted};

/// The end of the chain of seals: what the next one continues.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Chain {
    pub(crate) number: u64,
    pub(crate) checksum: u32,
}

/// A record as the hardener sees it while it copies it out.
pub(crate) struct Hardened<'a> {
    pub(crate) address: Address,
    pub(crate) bytes: u64,
    pub(crate) kind: Kind,
    pub(crate) object: u32,
    pub(crate) version: u64,
    pub(crate) previous: Address,
    pub(crate) key: &'a [u8],
}

/// Writes extents. Keeps its buffer, so that steady hardening allocates nothing.
pub(crate) struct ExtentWriter {
    database: u128,
    buffer: AlignedBuffer,
    pub(crate) chain: Chain,
    /// The newest version among the records written so far. It can be newer than the last seal's: records of the
    /// version that followed the tick lie in the extent too, and wait for a seal of their own.
    pub(crate) newest_version: u64,
}

impl ExtentWriter {
    pub(crate) fn new(database: u128, chain: Chain) -> ExtentWriter {
        ExtentWriter { database, buffer: AlignedBuffer::new(4 * BLOCK_BYTES), chain, newest_version: 0 }
    }

    /// Writes the extent `start..end` that was copied out last, with its seal, and makes it durable. On an error nothing
    /// is known about what reached the disk.
    pub(crate) fn write(
        &mut self,
        segments: &Segments,
        (start, end): (Address, Address),
        (version, first_version): (u64, u64),
    ) -> io::Result<()> {
        let length = (end - start) as usize;
        let extent = &mut self.buffer[..length];
        let seal = Seal {
            address: start,
            length: length as u64,
            version,
            number: self.chain.number + 1,
            previous_checksum: self.chain.checksum,
            data_checksum: crc32c::crc32c(&extent[SEAL_BYTES as usize..]),
            time_us: segments.time_us(),
            // The seal's own sector is never zero.
            zero_sectors: zero_sectors(&extent[SECTOR_BYTES..]),
            database: self.database,
            first_version,
        };
        let (bytes, checksum) = seal.encode();
        extent[..SEAL_BYTES as usize].copy_from_slice(&bytes);
        match segments.write(start, extent) {
            Err(_) if planted(Bug::WriteErrorIgnored) => {}
            written => written?,
        }
        match segments.sync(start) {
            Err(_) if planted(Bug::SyncErrorIgnored) => {}
            synced => synced?,
        }
        self.chain = Chain { number: seal.number, checksum };
        Ok(())
    }

    /// Copies the records of `start..end` (in one segment) into the buffer, completes them, and shows each to `visit`.
    pub(crate) fn copy_out(
        &mut self,
        log: &Log,
        start: Address,
        end: Address,
        visit: &mut impl FnMut(Hardened<'_>),
    ) {
        let length = (end - start) as usize;
        if self.buffer.len() < length {
            self.buffer = AlignedBuffer::new(length.next_power_of_two());
        }
        let extent = &mut self.buffer[..length];
        let words = log.memory(start, end - start);
        for (bytes, word) in extent.as_chunks_mut::<8>().0.iter_mut().zip(words) {
            *bytes = word.load(crate::sync::atomic::Ordering::Relaxed).to_le_bytes();
        }
        let mut offset = SEAL_BYTES as usize;
        while offset < extent.len() {
            let address = start + offset as u64;
            let rest = &mut extent[offset..];
            let word = rest.first_chunk::<8>().map_or(0, |bytes| u64::from_le_bytes(*bytes));
            if let Some(bytes) = record::padding_bytes(word) {
                rest[8..bytes as usize].fill(record::PADDING_BYTE);
                offset += bytes as usize;
                continue;
            }
            let Some(shape) = record::finish(address, rest) else {
                // Everything below the read-only offset was filled before its pin ended.
                panic!("log memory at {address:#x} holds no record: {word:#018x}");
            };
            let word = |at: usize| rest[at..].first_chunk::<8>().map_or(0, |word| u64::from_le_bytes(*word));
            let (version, previous) = (record::version_of(word(8)), record::previous_of(word(16)));
            self.newest_version = self.newest_version.max(version);
            let key = &rest[record::HEADER_BYTES..record::HEADER_BYTES + shape.key_bytes];
            let (bytes, kind, object) = (shape.bytes(), shape.kind, shape.object);
            visit(Hardened { address, bytes, kind, object, version, previous, key });
            offset += bytes as usize;
        }
    }
}

/// An extent read from disk whose seal and checksum hold.
pub(crate) struct Extent<'a> {
    pub(crate) seal: Seal,
    /// The seal's own checksum, which the next one continues.
    pub(crate) checksum: u32,
    pub(crate) bytes: &'a [u8],
}

/// Something between two records of an extent.
pub(crate) enum Item<'a> {
    Record(Address, DiskRecord<'a>),
    Padding(Address, u64),
}

impl<'a> Extent<'a> {
    /// The extent's records and paddings. An error is the address and what is wrong there.
    pub(crate) fn items(&self) -> impl Iterator<Item = Result<Item<'a>, (Address, &'static str)>> + use<'a> {
        items(self.seal.address, self.bytes)
    }
}

/// The records and paddings in the bytes of the extent at `start`.
fn items(
    start: Address,
    bytes: &[u8],
) -> impl Iterator<Item = Result<Item<'_>, (Address, &'static str)>> + use<'_> {
    let mut offset = SEAL_BYTES as usize;
    std::iter::from_fn(move || {
        let rest = bytes.get(offset..).filter(|rest| !rest.is_empty())?;
        let address = start + offset as u64;
        let item = parse_item(address, rest);
        offset = match &item {
            Ok(Item::Record(_, record)) => offset + record.shape.bytes() as usize,
            Ok(Item::Padding(_, bytes)) => offset + *bytes as usize,
            Err(_) => bytes.len(),
        };
        Some(item)
    })
}

fn parse_item(address: Address, rest: &[u8]) -> Result<Item<'_>, (Address, &'static str)> {
    let word = rest.first_chunk::<8>().map_or(0, |bytes| u64::from_le_bytes(*bytes));
    match record::padding_bytes(word) {
        Some(bytes) if bytes <= rest.len() as u64 => Ok(Item::Padding(address, bytes)),
        Some(_) => Err((address, "padding is longer than its extent")),
        None => DiskRecord::parse(address, rest)
            .map(|record| Item::Record(address, record))
            .map_err(|what| (address, what)),
    }
}

/// Walks a log on disk.
pub(crate) struct Scanner<'a> {
    segments: &'a Segments,
    superblock: &'a Superblock,
    position: Address,
    /// Checksum of the seal before `position`, and its number where known.
    checksum: u32,
    number: Option<u64>,
    buffer: AlignedBuffer,
    /// Bytes of an unfinished write found at the end.
    cut_bytes: u64,
}

impl<'a> Scanner<'a> {
    pub(crate) fn new(segments: &'a Segments, superblock: &'a Superblock) -> Scanner<'a> {
        Scanner {
            segments,
            superblock,
            position: superblock.begin,
            checksum: superblock.begin_checksum,
            number: None,
            buffer: AlignedBuffer::new(FIRST_READ_BYTES),
            cut_bytes: 0,
        }
    }

    /// Where the next extent is, or would be.
    pub(crate) fn position(&self) -> Address {
        self.position
    }

    /// The chain up to the position.
    pub(crate) fn chain(&self) -> Chain {
        Chain { number: self.number.unwrap_or(0), checksum: self.checksum }
    }

    /// Bytes of the unfinished write that ended the log; 0 if it ended between writes.
    pub(crate) fn cut_bytes(&self) -> u64 {
        self.cut_bytes
    }

    /// The next extent, or `None` at the log's end.
    ///
    /// # Errors
    /// `Corrupted` if an extent that was once durable is not whole; `Io` if the device fails.
    pub(crate) fn next(&mut self) -> Result<Option<Extent<'_>>> {
        let start = self.position;
        if !self.segments.exists(start) {
            return self.end_of_log(None, "a segment of the log is missing");
        }
        let room = self.superblock.segment_bytes - start % self.superblock.segment_bytes;
        let first_bytes = FIRST_READ_BYTES.min(room as usize);
        self.read(start, first_bytes)?;
        let (seal, checksum) = match Seal::decode(&self.buffer) {
            Ok(decoded) => decoded,
            Err(_) if self.buffer[..SECTOR_BYTES] == ZEROS[..SECTOR_BYTES] => {
                return self.end_of_log(None, "the log ends too early");
            }
            // A sector is either as it was, and that is zeros, or as it was written.
            Err(what) => return Err(self.segments.corrupted(start, what)),
        };
        self.check_place(&seal)?;
        let length = seal.length as usize;
        if self.buffer.len() < length {
            self.buffer = AlignedBuffer::new(length.next_power_of_two());
        }
        if first_bytes < length {
            self.read(start, length)?;
        }
        if crc32c::crc32c(&self.buffer[SEAL_BYTES as usize..length]) != seal.data_checksum
            && !planted(Bug::TornExtentAccepted)
        {
            if zero_sectors(&self.buffer[SECTOR_BYTES..length]) > seal.zero_sectors {
                return self.end_of_log(Some(seal.end()), "an extent is incomplete");
            }
            return Err(self.damaged_extent(&seal));
        }
        self.position = seal.end();
        self.checksum = checksum;
        self.number = Some(seal.number);
        Ok(Some(Extent { seal, checksum, bytes: &self.buffer[..length] }))
    }

    fn read(&mut self, address: Address, bytes: usize) -> Result<()> {
        self.segments.read(address, &mut self.buffer[..bytes]).map_err(|error| {
            let (file, offset) = self.segments.place(address);
            Error::io(format_args!("reading {file} at offset {offset}"), error)
        })
    }

    /// A seal whose own checksum holds must also be the one that belongs here.
    fn check_place(&self, seal: &Seal) -> Result<()> {
        let room = self.superblock.segment_bytes - seal.address % self.superblock.segment_bytes;
        let what = if seal.database != self.superblock.database {
            "this seal belongs to another database"
        } else if seal.address != self.position {
            "this seal belongs to another place of the log"
        } else if seal.previous_checksum != self.checksum
            || self.number.is_some_and(|last| seal.number != last + 1)
        {
            "this seal does not continue the one before it"
        } else if seal.length < BLOCK_BYTES as u64
            || !seal.length.is_multiple_of(BLOCK_BYTES as u64)
            || seal.length > room
        {
            "this seal's extent has an impossible length"
        } else {
            return Ok(());
        };
        Err(self.segments.corrupted(self.position, what))
    }

    /// Finds the record that is damaged, so that the error names its place.
    fn damaged_extent(&self, seal: &Seal) -> Error {
        for item in items(seal.address, &self.buffer[..seal.length as usize]) {
            if let Err((address, what)) = item {
                return self.segments.corrupted(address, what);
            }
        }
        self.segments.corrupted(seal.address, "an extent's checksum does not match its bytes")
    }

    /// Called where no whole extent follows: is it the end, or is something missing? `torn_end` is where the extent would
    /// end whose seal is there.
    fn end_of_log<T>(&mut self, torn_end: Option<Address>, what: &str) -> Result<Option<T>> {
        let end = self.position;
        if end < self.superblock.known_end && !planted(Bug::TornEndBelowKnownEnd) {
            return Err(self.segments.corrupted(end, what));
        }
        self.cut_bytes = self.look_behind(end, torn_end.unwrap_or(Address::MAX))?;
        if self.cut_bytes > 0 && self.superblock.may_be_outdated {
            // The damaged slot may have said that the log goes further.
            return Err(self
                .segments
                .corrupted(end, format_args!("{what}, and a slot of the superblock is damaged")));
        }
        Ok(None)
    }

    /// An extent is only begun when the one before is durable. So a seal behind the end proves damage, and so does
    /// anything behind an extent that is torn. Returns how far behind the end something was written.
    fn look_behind(&mut self, end: Address, torn_end: Address) -> Result<u64> {
        let segment_bytes = self.superblock.segment_bytes;
        let mut written = 0;
        let mut block = AlignedBuffer::new(ZEROS_SCAN_BYTES.min(segment_bytes as usize));
        for number in self.segments.numbers().into_iter().filter(|number| (number + 1) * segment_bytes > end)
        {
            let mut address = (number * segment_bytes).max(end);
            while address < (number + 1) * segment_bytes {
                let bytes = ((number + 1) * segment_bytes - address).min(block.len() as u64) as usize;
                self.segments
                    .read(address, &mut block[..bytes])
                    .map_err(|error| Error::io("reading the end of the log", error))?;
                for (index, candidate) in block[..bytes].chunks_exact(BLOCK_BYTES).enumerate() {
                    let place = address + (index * BLOCK_BYTES) as u64;
                    let is_written = candidate != ZEROS;
                    if is_written {
                        written = place + BLOCK_BYTES as u64 - end;
                    }
                    if (place > end && self.is_later_seal(place, candidate)
                        || is_written && place >= torn_end)
                        && !planted(Bug::LaterSealsIgnored)
                    {
                        return Err(self
                            .segments
                            .corrupted(end, "durable extents follow one that is not whole"));
                    }
                }
                address += bytes as u64;
            }
        }
        Ok(written)
    }

    fn is_later_seal(&self, place: Address, block: &[u8]) -> bool {
        Seal::decode(block).is_ok_and(|(seal, _)| {
            seal.database == self.superblock.database
                && seal.address == place
                && self.number.is_none_or(|last| seal.number > last)
        })
    }
}

/// What is read of an extent before its length is known: all of it, where hardenings are small.
const FIRST_READ_BYTES: usize = 4 * BLOCK_BYTES;
const ZEROS_SCAN_BYTES: usize = 1 << 20;
/// To compare blocks with.
static ZEROS: [u8; BLOCK_BYTES] = [0; BLOCK_BYTES];

/// Reads one record from disk, checked.
pub(crate) fn read_record(segments: &Segments, address: Address) -> Result<record::OwnedRecord> {
    let block = address & !(BLOCK_BYTES as u64 - 1);
    let skip = (address - block) as usize;
    let segment_rest = (segments.segment_bytes() - block % segments.segment_bytes()) as usize;
    let read = |bytes: usize| -> Result<AlignedBuffer> {
        let mut buffer = AlignedBuffer::new(bytes.next_multiple_of(BLOCK_BYTES).min(segment_rest));
        segments.read(block, &mut buffer).map_err(|error| {
            let (file, offset) = segments.place(address);
            Error::io(format_args!("reading {file} at offset {offset}"), error)
        })?;
        Ok(buffer)
    };
    let mut buffer = read(skip + record::HEADER_BYTES)?;
    let word = buffer
        .get(skip..)
        .and_then(|bytes| bytes.first_chunk::<8>())
        .map_or(0, |word| u64::from_le_bytes(*word));
    if let Some(shape) = Shape::parse(word)
        && skip + shape.bytes() as usize > buffer.len()
    {
        buffer = read(skip + shape.bytes() as usize)?;
    }
    record::OwnedRecord::parse(address, &buffer[skip..]).map_err(|what| segments.corrupted(address, what))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rather no hardening than a seal over what nobody has written.
    #[test]
    #[should_panic(expected = "log memory at 0x80 holds no record")]
    fn memory_that_nobody_has_filled_is_not_copied_out() {
        let log = Log::new(32 << 10, 16 << 10, 0).unwrap();
        ExtentWriter::new(1, Chain::default()).copy_out(&log, 0, BLOCK_BYTES as u64, &mut |_| {});
    }
}
