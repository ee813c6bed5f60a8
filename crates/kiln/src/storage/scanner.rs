//! Walking the log on disk: where its extents are, whether they are whole, and where the log ends.
//!
//! [`Scanner`] goes from extent to extent and decides, where one is not whole, whether that is the unfinished end of the
//! log or damage. Reading is one thing and walking another: a read brings what comes next into a [`Batch`], and extents are
//! taken from there while they last. What a read has brought beyond the last whole extent begins the next batch, so that
//! nothing is read twice.

use std::io;

use super::extent::{Chain, Extent};
use super::record::{Address, DiskRecord};
use super::seal::{SEAL_BYTES, Seal, zero_sectors};
use super::segments::Segments;
use super::superblock::Superblock;
use crate::device::{AlignedBuffer, BLOCK_BYTES, SECTOR_BYTES};
use crate::error::{Error, Result};
use crate::planted::{Bug, planted};

/// A stretch of the log as it was read from the device, and the whole extents in it.
#[derive(Default)]
pub(crate) struct Batch {
    buffer: AlignedBuffer,
    /// The address of the buffer's first byte.
    start: Address,
    /// Bytes that were read.
    filled: usize,
    /// Each extent's seal, and the seal's own checksum.
    extents: Vec<(Seal, u32)>,
}

impl Batch {
    /// The extents, in the order of the log.
    pub(crate) fn extents(&self) -> impl Iterator<Item = Extent<'_>> {
        self.extents.iter().map(|(seal, checksum)| Extent {
            seal: seal.clone(),
            checksum: *checksum,
            bytes: self.bytes(seal.address, seal.length as usize),
        })
    }

    /// The seal of the last extent.
    pub(crate) fn last_seal(&self) -> Option<&Seal> {
        self.extents.last().map(|(seal, _)| seal)
    }

    /// How many of the extents begin before `address`.
    pub(crate) fn extents_before(&self, address: Address) -> usize {
        self.extents.partition_point(|(seal, _)| seal.address < address)
    }

    /// The record at `address`, checked.
    pub(crate) fn record(&self, address: Address) -> Result<DiskRecord<'_>, &'static str> {
        DiskRecord::parse(address, self.bytes(address, self.rest(address)))
    }

    /// The bytes of the log from `address` on; fewer where fewer are there.
    pub(crate) fn bytes(&self, address: Address, bytes: usize) -> &[u8] {
        let rest = self.rest(address);
        let from = self.filled - rest;
        &self.buffer[from..from + bytes.min(rest)]
    }

    /// How much memory it takes.
    pub(crate) fn memory_bytes(&self) -> u64 {
        self.buffer.len() as u64
    }

    /// How many bytes from `address` on were read.
    fn rest(&self, address: Address) -> usize {
        let offset = address.checked_sub(self.start).map_or(self.filled, |offset| offset as usize);
        self.filled.saturating_sub(offset)
    }

    /// Lets go of what lies before `position`, and makes room for so many bytes from there on.
    fn begin_at(&mut self, position: Address, bytes: usize) {
        let kept = self.rest(position);
        let from = self.filled - kept;
        if self.buffer.len() < bytes {
            let mut larger = AlignedBuffer::for_reading(bytes.next_power_of_two());
            larger[..kept].copy_from_slice(&self.buffer[from..self.filled]);
            self.buffer = larger;
        } else {
            self.buffer.copy_within(from..self.filled, 0);
        }
        (self.start, self.filled) = (position, kept);
        self.extents.clear();
    }

    /// Lets go of everything, and begins anew with these bytes, which are at `position`.
    fn begin_with(&mut self, position: Address, bytes: &[u8]) {
        self.filled = 0;
        self.begin_at(position, bytes.len());
        self.buffer[..bytes.len()].copy_from_slice(bytes);
        self.filled = bytes.len();
    }
}

/// Walks a log on disk. It reads ahead: the longer the walk, the more at once, so that many small extents do not cost a read
/// each, and a short log no more than it is long.
pub(crate) struct Scanner<'a> {
    segments: &'a Segments,
    superblock: &'a Superblock,
    position: Address,
    /// Checksum of the seal before `position`, and its number, where known.
    checksum: Option<u32>,
    number: Option<u64>,
    /// Batches go no further: behind it is what is being written.
    end: Address,
    batch: Batch,
    /// How much is read next, and how much at the most (an extent is always read whole).
    read_bytes: usize,
    read_bytes_max: usize,
    /// What came after the last batch, where it was found out before the batch was given out.
    after_batch: Option<Result<bool>>,
    /// Bytes of an unfinished write found at the end.
    cut_bytes: u64,
}

impl<'a> Scanner<'a> {
    pub(crate) fn new(segments: &'a Segments, superblock: &'a Superblock) -> Scanner<'a> {
        Scanner {
            segments,
            superblock,
            position: superblock.begin,
            checksum: Some(superblock.begin_checksum),
            number: None,
            end: Address::MAX,
            batch: Batch::default(),
            read_bytes: FIRST_READ_BYTES,
            read_bytes_max: READ_BYTES_MAX,
            after_batch: None,
            cut_bytes: 0,
        }
    }

    /// A scanner that begins where some extent does, behind this chain of seals. Where that is not known, the first seal
    /// is taken for what it says.
    pub(crate) fn from(
        segments: &'a Segments,
        superblock: &'a Superblock,
        position: Address,
        chain: Option<Chain>,
    ) -> Scanner<'a> {
        let (checksum, number) = (chain.map(|chain| chain.checksum), chain.map(|chain| chain.number));
        Scanner { position, checksum, number, ..Scanner::new(segments, superblock) }
    }

    /// Where the next extent is, or would be.
    pub(crate) fn position(&self) -> Address {
        self.position
    }

    /// The chain up to the position.
    pub(crate) fn chain(&self) -> Chain {
        Chain { number: self.number.unwrap_or(0), checksum: self.checksum.unwrap_or(0) }
    }

    /// Bytes of the unfinished write that ended the log; 0 if it ended between writes.
    pub(crate) fn cut_bytes(&self) -> u64 {
        self.cut_bytes
    }

    /// Has at most so many bytes read at once from now on, where extents are not longer.
    pub(crate) fn set_read_bytes_max(&mut self, bytes: usize) {
        self.read_bytes_max = bytes.next_multiple_of(BLOCK_BYTES);
    }

    /// Has no extent that begins there or behind it given out within a batch that begins before.
    pub(crate) fn set_end(&mut self, end: Address) {
        self.end = end;
    }

    /// The next extent, or `None` at the log's end.
    ///
    /// # Errors
    /// `Corrupted` if an extent that was once durable is not whole; `Io` if the device fails.
    pub(crate) fn next(&mut self) -> Result<Option<Extent<'_>>> {
        self.batch.extents.clear();
        let found = self.advance()?;
        Ok(self.batch.extents().next().filter(|_| found))
    }

    /// Moves on to the next extents, as many as one read brings, and exchanges them for a batch that is not needed any more.
    /// False at the log's end.
    ///
    /// # Errors
    /// As [`Self::next`], once all extents before were given out.
    pub(crate) fn next_batch(&mut self, batch: &mut Batch) -> Result<bool> {
        let found = self.fill_batch()?;
        if found {
            std::mem::swap(&mut self.batch, batch);
            self.batch.begin_with(self.position, batch.bytes(self.position, usize::MAX));
        }
        Ok(found)
    }

    fn fill_batch(&mut self) -> Result<bool> {
        if let Some(ended) = self.after_batch.take() {
            return ended;
        }
        self.batch.extents.clear();
        loop {
            let found = self.advance();
            match (&found, self.batch.extents.is_empty()) {
                (Ok(true), _) if self.position < self.end && self.holds_next() => {}
                (Ok(true), _) | (_, true) => return found,
                (_, false) => {
                    self.after_batch = Some(found);
                    return Ok(true);
                }
            }
        }
    }

    /// Whether the next extent is there whole without another read.
    fn holds_next(&self) -> bool {
        let rest = self.batch.bytes(self.position, SEAL_BYTES as usize);
        Seal::decode(rest).is_ok_and(|(seal, _)| seal.length <= self.batch.rest(self.position) as u64)
    }

    /// Reads, checks and adds the next extent to the batch; false at the log's end.
    fn advance(&mut self) -> Result<bool> {
        let start = self.position;
        if !self.segments.exists(start) {
            const MISSING: &str = "a segment of the log is missing";
            // One is prepared only when the names of all before it are durable.
            if self.segments.is_followed(start) {
                return Err(self
                    .segments
                    .corrupted(start, format_args!("{MISSING}, and a later one is there")));
            }
            return self.end_of_log(None, MISSING);
        }
        if !self.holds_next() {
            self.require(FIRST_READ_BYTES.min(self.room() as usize))?;
        }
        let (seal, checksum) = match Seal::decode(self.batch.bytes(start, SECTOR_BYTES)) {
            Ok(decoded) => decoded,
            Err(_) if self.batch.bytes(start, SECTOR_BYTES) == &ZEROS[..SECTOR_BYTES] => {
                return self.end_of_log(None, "the log ends too early");
            }
            // A sector is either as it was, and that is zeros, or as it was written.
            Err(what) => return Err(self.segments.corrupted(start, what)),
        };
        self.check_place(&seal)?;
        self.require(seal.length as usize)?;
        let bytes = self.batch.bytes(start, seal.length as usize);
        if crc32c::crc32c(&bytes[SEAL_BYTES as usize..]) != seal.data_checksum
            && !planted(Bug::TornExtentAccepted)
        {
            if zero_sectors(&bytes[SECTOR_BYTES..]) > seal.zero_sectors {
                return self.end_of_log(Some(seal.end()), "an extent is incomplete");
            }
            return Err(self.damaged_extent(&seal));
        }
        self.position = seal.end();
        self.checksum = Some(checksum);
        self.number = Some(seal.number);
        self.batch.extents.push((seal, checksum));
        Ok(true)
    }

    /// Bytes from the position to the end of its segment.
    fn room(&self) -> u64 {
        self.superblock.segment_bytes - self.position % self.superblock.segment_bytes
    }

    /// Makes the batch hold so many bytes from the position on, which do not cross the segment's end.
    fn require(&mut self, bytes: usize) -> Result<()> {
        if self.batch.rest(self.position) >= bytes {
            return Ok(());
        }
        let ahead = self.read_bytes.min(self.room() as usize).max(bytes);
        let read = match self.read_up_to(ahead) {
            // What is not needed yet may be what cannot be read. Then the error is to name the place that is needed.
            Err(_) if ahead > bytes => {
                self.read_bytes = FIRST_READ_BYTES;
                self.read_up_to(bytes)
            }
            read => {
                self.read_bytes = (2 * self.read_bytes).min(self.read_bytes_max);
                read
            }
        };
        read.map_err(|error| self.segments.unreadable(self.position, error))
    }

    fn read_up_to(&mut self, bytes: usize) -> io::Result<()> {
        self.batch.begin_at(self.position, bytes);
        let kept = self.batch.filled;
        self.segments.read(self.position + kept as u64, &mut self.batch.buffer[kept..bytes])?;
        self.batch.filled = bytes;
        Ok(())
    }

    /// A seal whose own checksum holds must also be the one that belongs here.
    fn check_place(&self, seal: &Seal) -> Result<()> {
        let what = if seal.database != self.superblock.database {
            "this seal belongs to another database"
        } else if seal.address != self.position {
            "this seal belongs to another place of the log"
        } else if self.checksum.is_some_and(|last| seal.previous_checksum != last)
            || self.number.is_some_and(|last| seal.number != last + 1)
        {
            "this seal does not continue the one before it"
        } else if seal.length < BLOCK_BYTES as u64
            || !seal.length.is_multiple_of(BLOCK_BYTES as u64)
            || seal.length > self.room()
        {
            "this seal's extent has an impossible length"
        } else {
            return Ok(());
        };
        Err(self.segments.corrupted(self.position, what))
    }

    /// Finds the record that is damaged, so that the error names its place.
    fn damaged_extent(&self, seal: &Seal) -> Error {
        let extent = Extent {
            seal: seal.clone(),
            checksum: 0,
            bytes: self.batch.bytes(seal.address, seal.length as usize),
        };
        for item in extent.items() {
            if let Err((address, what)) = item {
                return self.segments.corrupted(address, what);
            }
        }
        self.segments.corrupted(seal.address, "an extent's checksum does not match its bytes")
    }

    /// Called where no whole extent follows: is it the end, or is something missing? `torn_end` is where the extent would
    /// end whose seal is there.
    fn end_of_log(&mut self, torn_end: Option<Address>, what: &str) -> Result<bool> {
        let end = self.position;
        if end < self.superblock.known_end && !planted(Bug::TornEndBelowKnownEnd) {
            return Err(self.segments.corrupted(end, what));
        }
        self.cut_bytes = self.look_behind(end, torn_end.unwrap_or(Address::MAX))?;
        if self.cut_bytes > 0 && self.superblock.damaged_slot.is_some() {
            // The damaged slot may have said that the log goes further.
            return Err(self
                .segments
                .corrupted(end, format_args!("{what}, and a slot of the superblock is damaged")));
        }
        Ok(false)
    }

    /// An extent is only begun when the one before is durable. So a seal behind the end proves damage, and so does
    /// anything behind an extent that is torn. Returns how far behind the end something was written.
    fn look_behind(&mut self, end: Address, torn_end: Address) -> Result<u64> {
        let segment_bytes = self.superblock.segment_bytes;
        let mut written = 0;
        let mut block = AlignedBuffer::for_reading(ZEROS_SCAN_BYTES.min(segment_bytes as usize));
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

/// What is read first, and of an extent before its length is known.
const FIRST_READ_BYTES: usize = 4 * BLOCK_BYTES;
/// What is read at once on a long walk: enough for a disk to be busy.
const READ_BYTES_MAX: usize = 4 << 20;
const ZEROS_SCAN_BYTES: usize = 1 << 20;
/// To compare blocks with.
static ZEROS: [u8; BLOCK_BYTES] = [0; BLOCK_BYTES];
