//! Writing and reading extents: the log's records between memory and disk.
//!
//! [`ExtentWriter`] copies a range of the ring into aligned buffers, fills in the checksums and writes seal and
//! records in one go. [`Scanner`](super::scanner::Scanner) finds them again.

use std::io;

use super::log::Log;
use super::record::{self, Address, DiskRecord, Kind, Shape};
use super::seal::{SEAL_BYTES, Seal, zero_sectors};
use super::segments::Segments;
use crate::device::{AlignedBuffer, BLOCK_BYTES, SECTOR_BYTES};
use crate::error::Result;
use crate::planted::{Bug, planted};
use crate::sync::atomic::{AtomicU64, Ordering};

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
    /// The key had no value before.
    pub(crate) is_creation: bool,
    pub(crate) key: &'a [u8],
    pub(crate) value: &'a [u8],
}

/// Writes extents. Keeps its buffer, so that steady hardening allocates nothing; a long one only as long as extents go on being long.
pub(crate) struct ExtentWriter {
    database: u128,
    buffer: AlignedBuffer,
    /// How many extents in a row had no use for most of it, and for how much of it they had.
    short_count: u32,
    short_bytes: usize,
    pub(crate) chain: Chain,
    /// Checksum of what was copied out last, behind the seal, and how many sectors of it are zeros.
    data_checksum: u32,
    zero_sectors: u32,
    /// The newest version among the records written so far. It can be newer than the last seal's: records of the
    /// version that followed the tick lie in the extent too, and wait for a seal of their own.
    pub(crate) newest_version: u64,
}

impl ExtentWriter {
    pub(crate) fn new(database: u128, chain: Chain) -> ExtentWriter {
        let buffer = AlignedBuffer::new(4 * BLOCK_BYTES);
        ExtentWriter {
            database,
            buffer,
            short_count: 0,
            short_bytes: 0,
            chain,
            data_checksum: 0,
            zero_sectors: 0,
            newest_version: 0,
        }
    }

    /// Has the buffer be long enough for an extent, and not much longer than the last ones needed it.
    fn fit_buffer(&mut self, length: usize) {
        const KEPT_BYTES: usize = 1 << 20;
        const SHORT_COUNT_MAX: u32 = 16;
        let wanted = length.next_power_of_two();
        if wanted.max(KEPT_BYTES) * 4 <= self.buffer.len() {
            self.short_count += 1;
            self.short_bytes = self.short_bytes.max(wanted);
        } else {
            (self.short_count, self.short_bytes) = (0, 0);
        }
        let is_too_long = self.short_count > SHORT_COUNT_MAX;
        if self.buffer.len() < length || is_too_long {
            // Given back first: both together might be more than there is.
            self.buffer = AlignedBuffer::default();
            self.buffer =
                AlignedBuffer::new(if is_too_long { self.short_bytes.max(KEPT_BYTES) } else { wanted });
            (self.short_count, self.short_bytes) = (0, 0);
        }
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
        debug_assert_eq!(self.zero_sectors, zero_sectors(&extent[SECTOR_BYTES..]));
        let seal = Seal {
            address: start,
            length: length as u64,
            version,
            number: self.chain.number + 1,
            previous_checksum: self.chain.checksum,
            data_checksum: self.data_checksum,
            time_us: segments.time_us(),
            zero_sectors: self.zero_sectors,
            database: self.database,
            first_version,
        };
        let (bytes, checksum) = seal.encode();
        extent[..SEAL_BYTES as usize].copy_from_slice(&bytes);
        match segments.write(start, extent) {
            Err(_) if planted(Bug::WriteErrorIgnored) => {}
            // One question, so that it does not count as a branch of the engine's.
            Err(error)
                if planted(Bug::TornWriteIgnored).then(|| error.kind()) == Some(io::ErrorKind::WriteZero) => {
            }
            written => written?,
        }
        match segments.sync(start) {
            Err(_) if planted(Bug::SyncErrorIgnored) => {}
            synced => synced?,
        }
        self.chain = Chain { number: seal.number, checksum };
        Ok(())
    }

    /// Copies the records of `start..end` (in one segment) into the buffer, completes them, and shows each to `visit`. It does so in
    /// pieces that stay in the processor's cache until the extent's checksum has been taken of them, and their zeros counted, too.
    pub(crate) fn copy_out(
        &mut self,
        log: &Log,
        start: Address,
        end: Address,
        visit: &mut impl FnMut(Hardened<'_>),
    ) {
        const PIECE_BYTES: usize = 64 << 10;
        let length = (end - start) as usize;
        self.fit_buffer(length);
        let extent = &mut self.buffer[..length];
        log.note_seal(start);
        let words = log.memory(start, end - start);
        let mut offset = SEAL_BYTES as usize;
        let (mut copied, mut summed) = (0, offset);
        // The seal's own sector is never zero.
        let mut counted = SECTOR_BYTES;
        (self.data_checksum, self.zero_sectors) = (0, 0);
        while offset < length {
            let item_end = offset + extent.get(offset..copied).and_then(item_bytes).unwrap_or(8);
            if item_end > copied && copied < length {
                self.data_checksum = crc32c::crc32c_append(self.data_checksum, &extent[summed..offset]);
                summed = offset;
                let whole = counted.max(offset - offset % SECTOR_BYTES);
                self.zero_sectors += zero_sectors(&extent[counted..whole]);
                counted = whole;
                let piece_end = item_end.max(copied + PIECE_BYTES).min(length);
                copy_words(&words[copied / 8..piece_end / 8], &mut extent[copied..piece_end]);
                copied = piece_end;
                continue;
            }
            let address = start + offset as u64;
            let rest = &extent[offset..copied];
            let word = rest.first_chunk::<8>().map_or(0, |bytes| u64::from_le_bytes(*bytes));
            if let Some(bytes) = record::padding_bytes(word) {
                extent[offset..copied][8..bytes as usize].fill(record::PADDING_BYTE);
                offset += bytes as usize;
                continue;
            }
            let is_creation = record::is_creation(rest);
            let Some(shape) = record::finish(address, &mut extent[..copied], offset) else {
                // Everything below the read-only offset was filled before its pin ended.
                panic!("log memory at {address:#x} holds no record: {word:#018x}");
            };
            let rest = &extent[offset..copied];
            let word = |at: usize| rest[at..].first_chunk::<8>().map_or(0, |word| u64::from_le_bytes(*word));
            let (version, previous) = (record::version_of(word(8)), record::previous_of(word(16)));
            self.newest_version = self.newest_version.max(version);
            let key = &rest[record::HEADER_BYTES..record::HEADER_BYTES + shape.key_bytes];
            let value_start = record::HEADER_BYTES + shape.key_words() * 8;
            let (_, value) = record::split_expiry(shape, &rest[value_start..value_start + shape.value_bytes]);
            let (bytes, kind, object) = (shape.bytes(), shape.kind, shape.object);
            visit(Hardened { address, bytes, kind, object, version, previous, is_creation, key, value });
            offset += bytes as usize;
        }
        self.data_checksum = crc32c::crc32c_append(self.data_checksum, &extent[summed..]);
        self.zero_sectors += zero_sectors(&extent[counted..]);
    }
}

/// How long the record or padding is that begins `bytes`, as its first word says; `None` if that is not there, or says nothing.
#[inline]
fn item_bytes(bytes: &[u8]) -> Option<usize> {
    let word = u64::from_le_bytes(*bytes.first_chunk::<8>()?);
    let length = record::padding_bytes(word).or_else(|| Shape::parse(word).map(Shape::bytes));
    length.map(|length| length as usize)
}

/// Copies words of the log's memory, which nobody changes any more, out.
#[inline]
fn copy_words(words: &[AtomicU64], out: &mut [u8]) {
    for (bytes, word) in out.as_chunks_mut::<8>().0.iter_mut().zip(words) {
        *bytes = word.load(Ordering::Relaxed).to_le_bytes();
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

/// What a record says about itself before its checksum was looked at.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RecordHead {
    pub(crate) kind: Kind,
    pub(crate) previous: Address,
}

impl<'a> Extent<'a> {
    /// The extent's records and paddings. An error is the address and what is wrong there.
    pub(crate) fn items(&self) -> impl Iterator<Item = Result<Item<'a>, (Address, &'static str)>> + use<'a> {
        items(self.seal.address + SEAL_BYTES, self.bytes.get(SEAL_BYTES as usize..).unwrap_or_default())
    }

    /// Where the records and paddings begin, as their lengths say; nothing else of them is looked at.
    pub(crate) fn bounds(&self) -> impl Iterator<Item = (Address, Option<RecordHead>)> + use<'a> {
        let (start, bytes, mut offset) = (self.seal.address, self.bytes, SEAL_BYTES as usize);
        std::iter::from_fn(move || {
            let word = |at: usize| Some(u64::from_le_bytes(*bytes.get(at..)?.first_chunk::<8>()?));
            let first = word(offset)?;
            let address = start + offset as u64;
            let (length, head) = match record::padding_bytes(first) {
                Some(length) => (length, None),
                None => {
                    let shape = Shape::parse(first)?;
                    let previous = record::previous_of(word(offset + 16)?);
                    (shape.bytes(), Some(RecordHead { kind: shape.kind, previous }))
                }
            };
            offset = offset.checked_add(usize::try_from(length).ok()?)?;
            Some((address, head))
        })
    }
}

/// The records and paddings in bytes of an extent, from `start` on, where one of them begins.
pub(crate) fn items(
    start: Address,
    bytes: &[u8],
) -> impl Iterator<Item = Result<Item<'_>, (Address, &'static str)>> + use<'_> {
    let mut offset = 0;
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

/// Blocks of the log that were read for a record.
pub(crate) struct Blocks {
    address: Address,
    buffer: AlignedBuffer,
    /// Where the record begins in them.
    skip: usize,
    /// So many bytes were read in all.
    pub(crate) bytes_read: u64,
}

impl Blocks {
    /// What was read from the record on.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.buffer[self.skip..]
    }

    /// The record, checked.
    pub(crate) fn record(&self, segments: &Segments) -> Result<record::OwnedRecord> {
        record::OwnedRecord::parse(self.address, self.bytes())
            .map_err(|what| segments.corrupted(self.address, what))
    }
}

/// Reads the blocks of one record from disk. It takes one read if the record has at most
/// `likely_bytes`, which hold its header and do not go beyond the segment.
pub(crate) fn read_blocks(segments: &Segments, address: Address, likely_bytes: usize) -> Result<Blocks> {
    let block = address & !(BLOCK_BYTES as u64 - 1);
    let skip = (address - block) as usize;
    let segment_rest = (segments.segment_bytes() - block % segments.segment_bytes()) as usize;
    let read = |bytes: usize| -> Result<AlignedBuffer> {
        let mut buffer = AlignedBuffer::for_reading(bytes.next_multiple_of(BLOCK_BYTES).min(segment_rest));
        segments.read(block, &mut buffer).map_err(|error| segments.unreadable(address, error))?;
        Ok(buffer)
    };
    let mut buffer = read(skip + likely_bytes)?;
    let mut bytes_read = buffer.len() as u64;
    let word = buffer
        .get(skip..)
        .and_then(|bytes| bytes.first_chunk::<8>())
        .map_or(0, |word| u64::from_le_bytes(*word));
    if let Some(shape) = Shape::parse(word)
        && skip + shape.bytes() as usize > buffer.len()
    {
        buffer = read(skip + shape.bytes() as usize)?;
        bytes_read += buffer.len() as u64;
    }
    Ok(Blocks { address, buffer, skip, bytes_read })
}

/// Reads one record from disk, checked, as [`read_blocks`].
pub(crate) fn read_record(
    segments: &Segments,
    address: Address,
    likely_bytes: usize,
) -> Result<record::OwnedRecord> {
    read_blocks(segments, address, likely_bytes)?.record(segments)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::device::{Keep, SimulatedDevice};
    use crate::storage::record::NO_ADDRESS;
    use crate::{Kiln, Object as _, Options};

    /// Rather no hardening than a seal over what nobody has written.
    #[test]
    #[should_panic(expected = "log memory at 0x80 holds no record")]
    fn memory_that_nobody_has_filled_is_not_copied_out() {
        let log = Log::new(32 << 10, 16 << 10, 0).unwrap();
        ExtentWriter::new(1, Chain::default()).copy_out(&log, 0, BLOCK_BYTES as u64, &mut |_| {});
    }

    #[test]
    #[should_panic(expected = "log memory at 0x80 holds no record")]
    fn a_record_that_is_longer_than_its_extent_is_not_copied_out() {
        let log = Log::new(32 << 10, 16 << 10, 0).unwrap();
        let shape = Shape { kind: Kind::Put, object: 1, key_bytes: 3, value_bytes: BLOCK_BYTES };
        let value = (&[7; BLOCK_BYTES][..], record::NEVER);
        record::write(log.memory(SEAL_BYTES, shape.bytes()), shape, 1, NO_ADDRESS, b"key", value);
        ExtentWriter::new(1, Chain::default()).copy_out(&log, 0, BLOCK_BYTES as u64, &mut |_| {});
    }

    /// Records lie across the ends of pieces; the checksum is taken piece by piece, and must be that of the whole.
    #[test]
    fn an_extent_of_many_pieces_is_copied_whole_and_summed_whole() {
        const EXTENT_BYTES: u64 = 256 << 10;
        let log = Log::new(2 * EXTENT_BYTES, EXTENT_BYTES, 0).unwrap();
        let (mut end, mut count) = (SEAL_BYTES, 0_u64);
        loop {
            let value = vec![count as u8; [5, 800, 90_000][count as usize % 3]];
            let (key_bytes, value_bytes) = (3, value.len());
            let shape = Shape { kind: Kind::Put, object: 1, key_bytes, value_bytes };
            if end + shape.bytes() > EXTENT_BYTES {
                break;
            }
            let value = (&value[..], record::NEVER);
            record::write(log.memory(end, shape.bytes()), shape, count + 1, NO_ADDRESS, b"key", value);
            (end, count) = (end + shape.bytes(), count + 1);
        }
        log.pad(end, EXTENT_BYTES - end);
        let (mut writer, mut seen) = (ExtentWriter::new(1, Chain::default()), 0);
        writer.copy_out(&log, 0, EXTENT_BYTES, &mut |record| {
            assert_eq!((record.key, record.version), (&b"key"[..], seen + 1));
            assert!(record.value.iter().all(|&byte| byte == seen as u8));
            seen += 1;
        });
        assert_eq!(seen, count);
        let data = &writer.buffer[SEAL_BYTES as usize..EXTENT_BYTES as usize];
        assert_eq!(writer.data_checksum, crc32c::crc32c(data));
        assert_eq!(items(SEAL_BYTES, data).filter(Result::is_ok).count() as u64, count + 1);
    }

    /// It stayed as long as the longest extent ever was, in the database's memory beyond what it was given.
    #[test]
    fn the_buffer_of_a_long_extent_goes_back_once_extents_are_short() {
        const LONG_BYTES: u64 = 8 << 20;
        const QUARTER_BYTES: u64 = LONG_BYTES / 4;
        let log = Log::new(2 * LONG_BYTES, LONG_BYTES, 0).unwrap();
        log.pad(SEAL_BYTES, BLOCK_BYTES as u64 - SEAL_BYTES);
        log.pad(BLOCK_BYTES as u64, QUARTER_BYTES - BLOCK_BYTES as u64);
        log.pad(QUARTER_BYTES, LONG_BYTES - QUARTER_BYTES);
        let mut writer = ExtentWriter::new(1, Chain::default());
        let mut harden = |bytes: u64| {
            writer.copy_out(&log, 0, bytes, &mut |_| {});
            writer.buffer.len() as u64
        };
        for _ in 0..3 {
            assert_eq!(harden(LONG_BYTES), LONG_BYTES);
            assert_eq!(harden(BLOCK_BYTES as u64), LONG_BYTES, "the next may be long again");
        }
        assert!((0..50).map(|_| harden(BLOCK_BYTES as u64)).all(|bytes| bytes >= 1 << 20));
        assert_eq!(harden(BLOCK_BYTES as u64), 1 << 20);
        assert_eq!(harden(LONG_BYTES), LONG_BYTES);
        assert!((0..16).all(|_| harden(QUARTER_BYTES) == LONG_BYTES));
        assert_eq!(harden(BLOCK_BYTES as u64), QUARTER_BYTES, "the next may be as long as those before");
    }

    /// What is noted in memory for the keeper is not the disk's business.
    #[test]
    fn a_successor_that_was_noted_changes_nothing_on_disk() {
        let log = Log::new(32 << 10, 16 << 10, 0).unwrap();
        let shape = Shape { kind: Kind::Put, object: 1, key_bytes: 3, value_bytes: 5 };
        let end = SEAL_BYTES + shape.bytes();
        record::write(
            log.memory(SEAL_BYTES, shape.bytes()),
            shape,
            7,
            NO_ADDRESS,
            b"key",
            (b"value", record::NEVER),
        );
        log.pad(end, BLOCK_BYTES as u64 - end);
        let copy = || {
            let mut writer = ExtentWriter::new(1, Chain::default());
            writer.copy_out(&log, 0, BLOCK_BYTES as u64, &mut |record| assert_eq!(record.version, 7));
            writer.buffer[..BLOCK_BYTES].to_vec()
        };
        let before = copy();
        record::note_successor(log.memory(SEAL_BYTES, 16));
        let view = log.view(SEAL_BYTES).expect("it is in memory");
        assert!(view.has_successor() && view.version() == 7);
        assert!(copy() == before);
    }

    /// Fewer than there are would make an extent pass for one of which something was never written. (That they are counted exactly is asserted where a
    /// seal is made.)
    #[test]
    fn c5_extents_full_of_zeros_are_whole() {
        let open = |disk: &SimulatedDevice| -> Kiln {
            let options = Options::new().background(false).segment_bytes(1 << 20).memory(8 << 20);
            options.open_on(Arc::new(disk.clone())).expect("the database opens")
        };
        let disk = SimulatedDevice::new(1);
        let db = open(&disk);
        let map = db.map("map").expect("a map");
        let lengths = [1, 511, 512, 1_000, 4_096, 65_000, 65_536, 66_000, 131_072, 200_001];
        for (number, length) in lengths.iter().cycle().take(60).enumerate() {
            let value = vec![u8::from(number % 7 == 0); *length];
            db.put(&map, number.to_be_bytes(), value).expect("a put").forget();
            if number % 4 == 3 {
                db.persist().expect("it is durable");
            }
        }
        drop(map);
        drop(db);
        let db = open(&disk.after_crash(&mut |_| Keep::Lost));
        let map = db.map("map").expect("the map");
        assert_eq!(map.len(), 60);
        assert!(db.check().expect("the check").is_clean());
    }
}
