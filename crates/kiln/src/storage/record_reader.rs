//! Reading a stretch of the durable log record by record, in pieces.
//!
//! An extent can be as long as a segment, a gigabyte, and its checksum can only be compared once all of it has been read.
//! Compaction must not need that much memory, nor that much time at once, and it needs no checksum of the whole: every
//! record has one of its own, which covers its address, too. So this reader loads what the disk gives in one piece of
//! [`PIECE_BYTES`] (or one record, where that is longer), and can go on later from a [`Cursor`].
//!
//! It trusts nothing that it reads: what is neither a seal that belongs here, nor padding with the bytes of one, nor a record whose checksum holds is an
//! error that names the place.

use std::ops::Range;

use super::record::{self, Address, DiskRecord, Shape};
use super::seal::{SEAL_BYTES, Seal};
use super::segments::Segments;
use crate::device::{AlignedBuffer, BLOCK_BYTES, FinishedRead, QueuedRead, ReadQueue};
use crate::error::Result;

/// What is read at once.
pub(crate) const PIECE_BYTES: u64 = 1 << 20;

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
    loaded: Range<Address>,
    ahead: Option<Ahead>,
}

/// The next piece, which is read while one is looked at.
struct Ahead {
    queue: Box<dyn ReadQueue>,
    /// Nothing is read ahead from there on.
    end: Address,
    next: Next,
    /// The longest record of the piece before, and of this one so far: of one that the end of this one cuts the next one has all.
    longest: [u64; 2],
}

enum Next {
    /// None is being read; a buffer for it.
    Free(AlignedBuffer),
    InFlight(Range<Address>),
    Read(Range<Address>, FinishedRead),
}

impl Ahead {
    /// What was read of the log from `block` up to `end`, and where it lies; `None` if that is not what was, or nothing was.
    fn take(&mut self, block: Address, end: Address) -> Option<(Range<Address>, AlignedBuffer)> {
        let (range, read) = match std::mem::replace(&mut self.next, Next::Free(AlignedBuffer::new(0))) {
            Next::Free(buffer) => {
                self.next = Next::Free(buffer);
                return None;
            }
            Next::InFlight(range) => (range, self.queue.wait()?),
            Next::Read(range, read) => (range, read),
        };
        let is_whole = read.outcome.is_ok_and(|bytes| bytes == read.buffer.len());
        if is_whole && range.start <= block && end <= range.end {
            return Some((range, read.buffer));
        }
        self.next = Next::Free(read.buffer);
        None
    }
}

impl<'a> RecordReader<'a> {
    /// A reader of this database's log from `cursor` on.
    pub(crate) fn new(segments: &'a Segments, database: u128, cursor: Cursor) -> RecordReader<'a> {
        let piece = PIECE_BYTES.min(segments.segment_bytes()) as usize;
        let buffer = AlignedBuffer::for_reading(piece);
        RecordReader { segments, database, cursor, buffer, loaded: 0..0, ahead: None }
    }

    /// Reads each next piece while one is looked at, up to `end`, which is durable, and where a block begins.
    pub(crate) fn reading_ahead_to(self, end: Address) -> RecordReader<'a> {
        let (queue, next) = (self.segments.read_queue(), Next::Free(AlignedBuffer::new(0)));
        RecordReader { ahead: Some(Ahead { queue, end, next, longest: [0; 2] }), ..self }
    }

    /// Where it goes on.
    pub(crate) fn cursor(&self) -> Cursor {
        self.cursor
    }

    /// Goes on elsewhere.
    pub(crate) fn move_to(&mut self, cursor: Cursor) {
        self.cursor = cursor;
    }

    /// The next records of a segment, before `end`, which is durable; at most `count_max`, and only as many as one piece holds.
    /// None where the segment ends, or once `end` is reached.
    ///
    /// # Errors
    /// `Corrupted` for what is not whole, `Io` if the device fails.
    pub(crate) fn next_batch(&mut self, end: Address, count_max: usize) -> Result<Batch<'_>> {
        let segment_end = (self.cursor.position + 1).next_multiple_of(self.segments.segment_bytes());
        self.find_record(end.min(segment_end))?;
        self.begin_next();
        let start = self.cursor;
        let (mut records, mut longest) = (Vec::new(), 0);
        while records.len() < count_max && self.cursor.position < self.cursor.extent_end {
            let address = self.cursor.position;
            let Some(rest) = loaded_part(&self.buffer, &self.loaded, address) else { break };
            let word = first_word(rest);
            if let Some(bytes) = record::padding_bytes(word) {
                // What is not loaded whole is for the next batch to look at.
                let Some(padding) = rest.get(..bytes as usize) else { break };
                self.check_padding(bytes, &padding[8..])?;
                self.cursor.position += bytes;
                continue;
            }
            let bytes = Shape::parse(word).map_or(0, Shape::bytes);
            // What is not loaded whole, or is longer than its extent, is for the next batch to look at.
            if bytes > (rest.len() as u64).min(self.cursor.extent_end - address) {
                break;
            }
            let record =
                DiskRecord::parse(address, rest).map_err(|what| self.segments.corrupted(address, what))?;
            self.cursor.position += record.shape.bytes();
            longest = longest.max(record.shape.bytes());
            records.push((address, record));
        }
        if let Some(ahead) = &mut self.ahead {
            ahead.longest[1] = ahead.longest[1].max(longest);
        }
        Ok(Batch { records, start })
    }

    /// Begins to read the next piece, unless that is done, or nobody has asked for it.
    fn begin_next(&mut self) {
        /// It has so much of the present one at the most.
        const OVERLAP_PART: u64 = 4;
        let Some(ahead) = &mut self.ahead else { return };
        let segment_bytes = self.segments.segment_bytes();
        let [before, now] = ahead.longest;
        let overlap = before.max(now).max(1).next_multiple_of(BLOCK_BYTES as u64);
        let begin = match self.loaded.end.is_multiple_of(segment_bytes) {
            true => self.loaded.end,
            false => self.loaded.end.saturating_sub(overlap),
        };
        let end = ahead.end.min(begin - begin % segment_bytes + segment_bytes).min(begin + PIECE_BYTES);
        if self.loaded.is_empty() || overlap > PIECE_BYTES / OVERLAP_PART || end <= self.loaded.end {
            return;
        }
        let Next::Free(buffer) = &mut ahead.next else { return };
        // That there is none is for who needs it to say.
        let Ok(file) = self.segments.file(begin) else { return };
        let mut buffer = std::mem::replace(buffer, AlignedBuffer::new(0));
        if buffer.len() as u64 != end - begin {
            buffer = AlignedBuffer::for_reading((end - begin) as usize);
        }
        ahead.queue.submit(QueuedRead { file, offset: begin % segment_bytes, buffer, token: 0 });
        ahead.next = match ahead.queue.take_done() {
            None => Next::InFlight(begin..end),
            Some(read) => Next::Read(begin..end, read),
        };
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
                self.pass_padding(bytes)?;
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

    /// Moves on over a padding, of which one piece after the other is loaded if that has to be.
    fn pass_padding(&mut self, bytes: u64) -> Result<()> {
        self.check_padding(bytes, &[])?;
        let (mut address, end) = (self.cursor.position + 8, self.cursor.position + bytes);
        while address < end {
            self.load(address, 8)?;
            let rest = loaded_part(&self.buffer, &self.loaded, address).unwrap_or_default();
            let part = &rest[..rest.len().min((end - address) as usize)];
            self.check_padding(bytes, part)?;
            address += part.len() as u64;
        }
        self.cursor.position = end;
        Ok(())
    }

    /// Checks that a padding, which begins at the cursor, is within its extent, and that these of its bytes are what they should: they might be records that damage to its length hides.
    fn check_padding(&self, bytes: u64, part: &[u8]) -> Result<()> {
        let what = if bytes > self.cursor.extent_end - self.cursor.position {
            "padding is longer than its extent"
        } else if part.iter().any(|&byte| byte != record::PADDING_BYTE) {
            "there is something else in a padding"
        } else {
            return Ok(());
        };
        Err(self.segments.corrupted(self.cursor.position, what))
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
        if let Some(ahead) = &mut self.ahead {
            ahead.longest = [ahead.longest[1], 0];
            if let Some((loaded, buffer)) = ahead.take(block, block + wanted) {
                ahead.next = Next::Free(std::mem::replace(&mut self.buffer, buffer));
                self.loaded = loaded;
                return Ok(());
            }
        }
        let length = wanted.max(PIECE_BYTES).min(room);
        if (self.buffer.len() as u64) < length {
            self.buffer = AlignedBuffer::for_reading(length as usize);
        }
        self.loaded = 0..0;
        self.segments
            .read(block, &mut self.buffer[..length as usize])
            .map_err(|error| self.segments.unreadable(block, error))?;
        self.loaded = block..block + length;
        Ok(())
    }
}

/// What is loaded from `address` on; `None` if not even a word is.
fn loaded_part<'b>(buffer: &'b AlignedBuffer, loaded: &Range<Address>, address: Address) -> Option<&'b [u8]> {
    let skip = loaded.contains(&address).then(|| (address - loaded.start) as usize)?;
    buffer.get(skip..(loaded.end - loaded.start) as usize).filter(|rest| rest.len() >= 8)
}

fn first_word(bytes: &[u8]) -> u64 {
    bytes.first_chunk::<8>().map_or(0, |word| u64::from_le_bytes(*word))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::Options;
    use crate::device::{Fault, FaultKind, OpenMode, OperationKind, SimulatedDevice};
    use crate::error::ErrorKind;
    use crate::storage::extent::Item;
    use crate::storage::scanner::Scanner;
    use crate::storage::superblock::{Superblock, SuperblockFile};

    const SEGMENT_BYTES: u64 = 64 << 10;

    /// A log of several segments, with records of all sizes in hardenings of all sizes.
    fn disk() -> SimulatedDevice {
        let disk = SimulatedDevice::new(1);
        let options = Options::new().background(false).memory(0).segment_bytes(SEGMENT_BYTES);
        let db = options.open_on(Arc::new(disk.clone())).expect("an empty disk");
        let map = db.map("map").expect("a new map");
        for number in 0..200_u32 {
            let value = vec![number as u8; number as usize * 977 % 20_000];
            db.put(&map, number.to_le_bytes(), value).expect("there is space").forget();
            if number % 3 == 0 {
                db.persist().expect("a sound disk");
            }
        }
        db.close().expect("a sound disk");
        disk
    }

    fn open(disk: &SimulatedDevice) -> (Segments, Superblock) {
        let superblock = SuperblockFile::open(disk, OpenMode::Read).expect("it is whole").current().clone();
        let segments = Segments::open(Arc::new(disk.clone()), SEGMENT_BYTES, OpenMode::Read);
        (segments.expect("they are there"), superblock)
    }

    /// Places and values of all records of whole segments, in batches of so many, each with a reader of its own.
    fn read(disk: &SimulatedDevice, end: Address, count_max: usize) -> Result<Vec<(Address, Vec<u8>)>> {
        let (segments, superblock) = open(disk);
        let (mut cursor, mut records) = (Cursor::at_seal(superblock.begin), Vec::new());
        while cursor.position < end {
            let segment_end = (cursor.position + 1).next_multiple_of(SEGMENT_BYTES);
            let mut reader = RecordReader::new(&segments, superblock.database, cursor);
            let batch = reader.next_batch(segment_end, count_max)?;
            records.extend(batch.records.iter().map(|(address, record)| (*address, record.value.to_vec())));
            cursor = reader.cursor();
        }
        Ok(records)
    }

    #[test]
    fn what_it_reads_is_what_a_scan_finds() {
        let disk = disk();
        let (segments, superblock) = open(&disk);
        let end = superblock.known_end / SEGMENT_BYTES * SEGMENT_BYTES;
        assert!(end > 8 * SEGMENT_BYTES);
        let mut scanned = Vec::new();
        let mut scanner = Scanner::new(&segments, &superblock);
        while scanner.position() < end {
            let extent = scanner.next().expect("a sound log").expect("it goes on");
            scanned.extend(extent.items().filter_map(|item| match item {
                Ok(Item::Record(address, record)) => Some((address, record.value.to_vec())),
                _ => None,
            }));
        }
        for count_max in [1, 3, 1_000] {
            assert!(
                read(&disk, end, count_max).expect("a sound log") == scanned,
                "in batches of {count_max}"
            );
        }
    }

    /// Changes the seal at `at` of the first segment, and makes its checksum right.
    fn with_seal(disk: &SimulatedDevice, at: usize, change: impl Fn(&mut Seal)) -> SimulatedDevice {
        let disk = disk.after_crash(&mut |_| crate::device::Keep::Kept);
        let mut bytes = disk.bytes("segment-00000000");
        let (mut seal, _) = Seal::decode(&bytes[at..]).expect("there is a seal");
        change(&mut seal);
        bytes[at..at + SEAL_BYTES as usize].copy_from_slice(&seal.encode().0);
        disk.set_bytes("segment-00000000", bytes);
        disk
    }

    #[test]
    fn c9_a_seal_that_cannot_be_here_is_told_though_its_checksum_holds() {
        let disk = disk();
        let first = Seal::decode(&disk.bytes("segment-00000000")).expect("there is a seal").0;
        let second = first.end() as usize;
        assert!(second < SEGMENT_BYTES as usize / 2);
        let changes: [fn(&mut Seal); 5] = [
            |seal| seal.database += 1,
            |seal| seal.address += BLOCK_BYTES as u64,
            |seal| seal.length = 0,
            |seal| seal.length += 8,
            |seal| seal.length = SEGMENT_BYTES,
        ];
        for (number, change) in changes.into_iter().enumerate() {
            let error = read(&with_seal(&disk, second, change), SEGMENT_BYTES, 32).expect_err("it is told");
            assert_eq!(error.kind(), ErrorKind::Corrupted, "change {number}: {error}");
            assert!(error.to_string().contains("belongs to another place"), "change {number}: {error}");
        }
    }

    /// The reader meets it first in a batch, or behind others.
    #[test]
    fn c9_a_record_that_is_longer_than_its_extent_is_told() {
        let disk = disk();
        let mut bytes = disk.bytes("segment-00000000");
        let extent = Seal::decode(&bytes).expect("there is a seal").0;
        let (last, _) = *read(&disk, SEGMENT_BYTES, 32)
            .expect("a sound log")
            .iter()
            .take_while(|(address, _)| *address < extent.end())
            .last()
            .expect("there is a record");
        let word =
            Shape::parse(u64::from_le_bytes(*bytes[last as usize..].first_chunk().expect("it is whole")))
                .map(|shape| Shape { value_bytes: extent.length as usize, ..shape }.word())
                .expect("a record");
        bytes[last as usize..last as usize + 8].copy_from_slice(&word.to_le_bytes());
        disk.set_bytes("segment-00000000", bytes);
        for count_max in [1, 32] {
            let error = read(&disk, SEGMENT_BYTES, count_max).expect_err("it is told");
            assert!(error.to_string().contains("longer than its extent"), "{error}");
        }
    }

    /// A record ends exactly where what was read at once does, one goes beyond, and one is longer than that.
    #[test]
    fn records_at_and_over_the_end_of_a_piece_are_read_whole() {
        const LARGE_SEGMENT: u64 = 8 << 20;
        let disk = SimulatedDevice::new(1);
        let options = Options::new().background(false).memory(16 << 20).segment_bytes(LARGE_SEGMENT);
        let db = options.open_on(Arc::new(disk.clone())).expect("an empty disk");
        let map = db.map("map").expect("a new map");
        db.persist().expect("a sound disk");
        let first = db.engine().log.tail();
        let begin = first - SEAL_BYTES;
        let head = Shape { kind: record::Kind::Put, object: 16, key_bytes: 1, value_bytes: 0 }.bytes();
        let lengths = [begin + PIECE_BYTES - first - head, 10, PIECE_BYTES - 100, 2 * PIECE_BYTES];
        for (key, length) in lengths.iter().enumerate() {
            let value = vec![key as u8 + 1; *length as usize];
            db.put(&map, [key as u8], value).expect("there is space").forget();
        }
        db.close().expect("a sound disk");
        let superblock = SuperblockFile::open(&disk, OpenMode::Read).expect("it is whole").current().clone();
        let segments = Segments::open(Arc::new(disk.clone()), LARGE_SEGMENT, OpenMode::Read).expect("there");
        let mut reader = RecordReader::new(&segments, superblock.database, Cursor::at_seal(begin));
        let mut found = Vec::new();
        while reader.cursor().position < superblock.known_end {
            let batch = reader.next_batch(superblock.known_end, 64).expect("a sound log");
            found.extend(batch.records.iter().map(|(address, record)| (*address, record.value.len() as u64)));
        }
        let found: Vec<_> = found.into_iter().filter(|(address, _)| *address >= begin).collect();
        assert_eq!(found.iter().map(|(_, length)| *length).collect::<Vec<_>>(), lengths);
        assert_eq!(found[1].0, begin + PIECE_BYTES, "the first ends where a piece does: {found:?}");
    }

    /// Those of all lengths, where pieces and segments end anywhere; and where what was read ahead could not be, or comes back short.
    #[test]
    fn what_is_read_ahead_is_what_is_read_when_it_is_needed() {
        const LARGE_SEGMENT: u64 = 4 << 20;
        let disk = SimulatedDevice::new(1);
        let options = Options::new().background(false).memory(32 << 20).segment_bytes(LARGE_SEGMENT);
        let db = options.open_on(Arc::new(disk.clone())).expect("an empty disk");
        let map = db.map("map").expect("a new map");
        for number in 0..6_000_u32 {
            let long = if number % 900 == 899 { 700_000 } else { 0 };
            let value = vec![number as u8; long + number as usize * 977 % (3_000 + number as usize * 4)];
            db.put(&map, number.to_le_bytes(), value).expect("there is space").forget();
            if number % 100 == 0 {
                db.persist().expect("a sound disk");
            }
        }
        db.close().expect("a sound disk");
        let superblock = SuperblockFile::open(&disk, OpenMode::Read).expect("it is whole").current().clone();
        let segments = Segments::open(Arc::new(disk.clone()), LARGE_SEGMENT, OpenMode::Read).expect("there");
        let end = superblock.known_end / LARGE_SEGMENT * LARGE_SEGMENT;
        assert!(end > 8 * LARGE_SEGMENT);
        let read = |ahead_to: Option<Address>, fault: Option<FaultKind>| {
            let mut reader =
                RecordReader::new(&segments, superblock.database, Cursor::at_seal(superblock.begin));
            if let Some(ahead_to) = ahead_to {
                reader = reader.reading_ahead_to(ahead_to);
            }
            let (mut records, mut pieces_ahead, mut faults) = (Vec::new(), 0, 0);
            while reader.cursor().position < end {
                let loaded = reader.loaded.clone();
                let is_ahead = matches!(&reader.ahead, Some(Ahead { next: Next::InFlight(_), .. }));
                let batch = reader.next_batch(superblock.known_end, 100).expect("it is read again");
                records.extend(batch.records.iter().map(|(address, record)| (*address, record.value.len())));
                if reader.loaded != loaded {
                    pieces_ahead += u32::from(is_ahead && reader.loaded.start < loaded.end);
                    let is_ahead = matches!(&reader.ahead, Some(Ahead { next: Next::InFlight(_), .. }));
                    if let Some(kind) = fault.filter(|_| is_ahead) {
                        // It is read when it is waited for.
                        disk.inject(Fault { operation: OperationKind::Read, nth: 1, kind, sticky: false });
                        faults += 1;
                    }
                }
            }
            (records, pieces_ahead, faults)
        };
        let (expected, ..) = read(None, None);
        let (found, pieces_ahead, _) = read(Some(end), None);
        assert!(found == expected && pieces_ahead > 20, "{pieces_ahead} pieces");
        let mut fired = disk.faults_fired();
        for kind in [FaultKind::Error(5), FaultKind::ShortWrite] {
            let (found, _, faults) = read(Some(end), Some(kind));
            assert!(found == expected && faults > 20, "{kind:?}, {faults} times");
            assert_eq!(disk.faults_fired(), fired + faults);
            fired += faults;
        }
    }

    /// Damage to a padding's length hid the records behind it, if it came to where another one began.
    #[test]
    fn c9_damage_is_told_and_never_hides_a_record() {
        let disk = disk();
        let whole = read(&disk, SEGMENT_BYTES, 32).expect("a sound log");
        let name = "segment-00000000";
        let bytes = disk.bytes(name);
        let mut told = 0;
        for place in (0..bytes.len()).step_by(61) {
            let mut damaged = bytes.clone();
            damaged[place] ^= 1 << (place % 8);
            disk.set_bytes(name, damaged);
            match read(&disk, SEGMENT_BYTES, 32) {
                Ok(records) => assert!(records == whole, "byte {place}"),
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::Corrupted, "byte {place}: {error}");
                    told += 1;
                }
            }
        }
        assert!(told > bytes.len() / 61 / 2, "{told} places of damage were told");
        // A padding's length is its first word, whose bits nothing else tells of.
        let paddings = (0..bytes.len()).step_by(8).filter(|&place| {
            let word = first_word(&bytes[place..]);
            let rest =
                record::padding_bytes(word).and_then(|length| bytes.get(place + 8..place + length as usize));
            rest.is_some_and(|rest| rest.iter().all(|&byte| byte == record::PADDING_BYTE))
        });
        let paddings: Vec<_> = paddings.collect();
        assert!(paddings.len() > 3);
        for (place, bit) in paddings.into_iter().flat_map(|place| (3..20).map(move |bit| (place, bit))) {
            let mut damaged = bytes.clone();
            damaged[place + bit / 8] ^= 1 << (bit % 8);
            disk.set_bytes(name, damaged);
            let error = read(&disk, SEGMENT_BYTES, 32).map(drop).expect_err("a padding of another length");
            assert_eq!(error.kind(), ErrorKind::Corrupted, "byte {place}: {error}");
        }
    }
}
