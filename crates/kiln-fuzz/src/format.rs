//! The format on disk, written down a second time from `docs/format.md`, without a line of the engine's.
//!
//! Two uses: to put right the checksums of bytes that a fuzzer has changed, without which nothing would get past the first
//! of them; and to say what a database must hold, so that "no panic" is not all that is asked.

use std::collections::BTreeMap;

pub(crate) const BLOCK: usize = 4096;
const SECTOR: usize = 512;
pub(crate) const HEAD: usize = 128;
const RECORD_HEAD: usize = 24;
const LOW_48: u64 = (1 << 48) - 1;
/// What a superblock says of the database with a bit each.
pub(crate) const SUPERBLOCK_FLAGS: u8 = 63;
const OBJECTS_MAX: u32 = 1 << 18;
/// Generations and numbers of checkpoints are below it.
const COUNT_END: u64 = 1 << 63;

/// The files of a database.
pub(crate) type Files = BTreeMap<String, Vec<u8>>;

pub(crate) fn segment_name(number: u64) -> String {
    format!("segment-{number:08}")
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(std::array::from_fn(|index| bytes.get(at + index).copied().unwrap_or(0)))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(std::array::from_fn(|index| bytes.get(at + index).copied().unwrap_or(0)))
}

fn u128_at(bytes: &[u8], at: usize) -> u128 {
    u128::from(u64_at(bytes, at + 8)) << 64 | u128::from(u64_at(bytes, at))
}

pub(crate) fn put(bytes: &mut [u8], at: usize, field: &[u8]) {
    if let Some(place) = bytes.get_mut(at..at + field.len()) {
        place.copy_from_slice(field);
    }
}

/// Makes the checksum of a superblock's slot, or of a seal, hold.
pub(crate) fn sign(head: &mut [u8]) -> u32 {
    let checksum = crc32c::crc32c(&head[..HEAD - 4]);
    put(head, HEAD - 4, &checksum.to_le_bytes());
    checksum
}

/// Makes the checksums of a checkpoint's blocks right.
pub(crate) fn sign_blocks(file: &mut [u8]) {
    if file.len() < HEAD {
        return;
    }
    let identity = crc32c::crc32c(&file[16..40]);
    let mut at = BLOCK;
    while at + 32 <= file.len() {
        let length = u32_at(file, at + 4) as usize;
        let Some(block) = file.get_mut(at..at.saturating_add(length)).filter(|block| block.len() >= 32)
        else {
            return;
        };
        put(block, 28, &[0; 4]);
        let checksum = crc32c::crc32c_append(identity, block);
        put(block, 28, &checksum.to_le_bytes());
        at += length;
    }
}

fn is_signed(head: &[u8]) -> bool {
    head.len() >= HEAD && crc32c::crc32c(&head[..HEAD - 4]) == u32_at(head, HEAD - 4)
}

/// What counts of a superblock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Superblock {
    pub(crate) database: u128,
    pub(crate) segment_bytes: u64,
    pub(crate) begin: u64,
    pub(crate) known_end: u64,
    pub(crate) begin_checksum: u32,
    pub(crate) clean: bool,
}

/// The slot of the superblock that counts.
pub(crate) fn current_slot(file: &[u8]) -> Option<&[u8]> {
    let slots = [0, BLOCK].into_iter().filter_map(|at| file.get(at..at + HEAD));
    let valid = slots.filter(|slot| slot.starts_with(b"KILN-DB\0") && is_signed(slot) && is_sane(slot));
    // Of two with the same generation the first.
    valid.rev().max_by_key(|slot| u64_at(slot, 16))
}

fn is_sane(slot: &[u8]) -> bool {
    let (segment_bytes, begin, known_end) = (u64_at(slot, 40), u64_at(slot, 56), u64_at(slot, 64));
    segment_bytes.is_power_of_two()
        && (16 << 10..=1 << 30).contains(&segment_bytes)
        && begin.is_multiple_of(segment_bytes)
        && known_end.is_multiple_of(BLOCK as u64)
        && begin <= known_end
        && known_end <= LOW_48
        && u64_at(slot, 80) <= LOW_48
        && u64_at(slot, 112) <= LOW_48
        && u32_at(slot, 120) < OBJECTS_MAX
        && u64_at(slot, 16) < COUNT_END
        && u64_at(slot, 88) < COUNT_END
}

pub(crate) fn superblock(file: &[u8]) -> Option<Superblock> {
    current_slot(file).map(|slot| Superblock {
        database: u128_at(slot, 24),
        segment_bytes: u64_at(slot, 40),
        begin: u64_at(slot, 56),
        known_end: u64_at(slot, 64),
        begin_checksum: u32_at(slot, 76),
        clean: u32_at(slot, 12) & 1 != 0,
    })
}

/// What may be put right in a database whose bytes were changed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Repairs(pub(crate) u8);

impl Repairs {
    pub(crate) const ALL: Repairs = Repairs(0x7F);
    const SUPERBLOCK: u8 = 1;
    const PLACES: u8 = 2;
    const CHAIN: u8 = 4;
    const RECORDS: u8 = 8;
    const DATA: u8 = 16;
    const ZEROS: u8 = 32;
    const SEALS: u8 = 64;

    fn has(self, repair: u8) -> bool {
        self.0 & repair != 0
    }
}

/// Puts right what `repairs` names: checksums, and fields that only have one right value.
pub(crate) fn repair(files: &mut Files, repairs: Repairs) {
    let Some(file) = files.get_mut("superblock") else { return };
    for slot in file.chunks_mut(BLOCK).take(2).filter(|slot| slot.len() >= HEAD) {
        if repairs.has(Repairs::SUPERBLOCK) && slot[..HEAD].iter().any(|&byte| byte != 0) {
            sign(slot);
        }
    }
    let Some(superblock) = superblock(file) else { return };
    let (mut position, mut previous, mut number) = (superblock.begin, superblock.begin_checksum, None);
    while let Some(segment) = files.get_mut(&segment_name(position / superblock.segment_bytes)) {
        let at = (position % superblock.segment_bytes) as usize;
        let room = segment.len().min(superblock.segment_bytes as usize).saturating_sub(at);
        let length = u64_at(segment, at + 16);
        if length < BLOCK as u64 || length > room as u64 || !length.is_multiple_of(BLOCK as u64) {
            return;
        }
        let extent = &mut segment[at..at + length as usize];
        if repairs.has(Repairs::PLACES) {
            put(extent, 0, b"KILNSEAL");
            put(extent, 8, &position.to_le_bytes());
            put(extent, 64, &superblock.database.to_le_bytes());
        }
        if repairs.has(Repairs::CHAIN) {
            put(extent, 40, &previous.to_le_bytes());
            if let Some(number) = number {
                put(extent, 32, &u64::wrapping_add(number, 1).to_le_bytes());
            }
        }
        if repairs.has(Repairs::RECORDS) {
            sign_records(extent, position);
        }
        if repairs.has(Repairs::DATA) {
            let checksum = crc32c::crc32c(&extent[HEAD..]);
            put(extent, 44, &checksum.to_le_bytes());
        }
        if repairs.has(Repairs::ZEROS) {
            let zeros = zero_sectors(extent);
            put(extent, 56, &zeros.to_le_bytes());
        }
        if repairs.has(Repairs::SEALS) {
            sign(extent);
        }
        (previous, number) = (u32_at(extent, HEAD - 4), Some(u64_at(extent, 32)));
        position += length;
    }
}

fn zero_sectors(extent: &[u8]) -> u32 {
    extent[SECTOR..].chunks_exact(SECTOR).filter(|sector| sector.iter().all(|&byte| byte == 0)).count() as u32
}

/// Makes the checksum of every record of an extent hold.
pub(crate) fn sign_records(extent: &mut [u8], address: u64) {
    let mut at = HEAD;
    while let Some(item) = Item::read(&extent[at.min(extent.len())..]) {
        if let Item::Record { bytes, .. } = item {
            let record = &mut extent[at..at + bytes];
            record[14..16].fill(0);
            record[22..24].fill(0);
            let checksum = record_checksum(address + at as u64, record);
            put(record, 14, &((checksum >> 16) as u16).to_le_bytes());
            put(record, 22, &(checksum as u16).to_le_bytes());
        }
        at += item.bytes();
    }
}

/// Fills an extent with padding from where nothing makes sense any more.
pub(crate) fn pad_rest(extent: &mut [u8]) {
    let mut at = HEAD;
    while let Some(item) = Item::read(&extent[at.min(extent.len())..]) {
        at += item.bytes();
    }
    if at + 8 <= extent.len() {
        let rest = padding(extent.len() - at);
        put(extent, at, &rest);
    }
}

/// The checksum of a record whose checksum's bits are zero.
fn record_checksum(address: u64, record: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(&address.to_le_bytes()), record)
}

/// A record that a test makes.
#[derive(Clone, Debug)]
pub(crate) struct Record {
    pub(crate) tombstone: bool,
    /// Its value begins with the time at which the row expires.
    pub(crate) expiring: bool,
    pub(crate) object: u32,
    pub(crate) version: u64,
    pub(crate) previous: u64,
    pub(crate) key: Vec<u8>,
    pub(crate) value: Vec<u8>,
}

impl Record {
    /// Its bytes, without a checksum.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        let kind = match (self.tombstone, self.expiring) {
            (true, _) => 2,
            (false, true) => 4,
            (false, false) => 1,
        };
        let word = kind << 60
            | u64::from(self.object) << 42
            | (self.key.len() as u64) << 25
            | self.value.len() as u64;
        let mut bytes = [word, self.version & LOW_48, self.previous & LOW_48].map(u64::to_le_bytes).concat();
        for part in [&self.key, &self.value] {
            bytes.extend_from_slice(part);
            bytes.resize(bytes.len().next_multiple_of(8), 0);
        }
        bytes
    }
}

/// Padding of this length.
pub(crate) fn padding(bytes: usize) -> Vec<u8> {
    let mut padding = vec![0xA5; bytes];
    put(&mut padding, 0, &(3 << 60 | bytes as u64).to_le_bytes());
    padding
}

/// What an extent holds behind its seal.
enum Item {
    Record { bytes: usize, key: (usize, usize), value: (usize, usize) },
    Padding { bytes: usize },
}

impl Item {
    /// The item at the start of `rest`, as far as its first word says.
    fn read(rest: &[u8]) -> Option<Item> {
        if rest.len() < 8 {
            return None;
        }
        let word = u64_at(rest, 0);
        let item = match word >> 60 {
            kind @ (1 | 2 | 4) => {
                let (key, value) = ((word >> 25) as usize & 0x1_FFFF, word as usize & 0x1FF_FFFF);
                if key > 1 << 16 || value > 16 << 20 || kind == 4 && value < 8 {
                    return None;
                }
                let value_at = RECORD_HEAD + key.next_multiple_of(8);
                let bytes = value_at + value.next_multiple_of(8);
                Item::Record {
                    bytes,
                    key: (RECORD_HEAD, RECORD_HEAD + key),
                    value: (value_at, value_at + value),
                }
            }
            3 => {
                let bytes = word & ((1 << 60) - 1);
                if bytes < 8 || !bytes.is_multiple_of(8) {
                    return None;
                }
                Item::Padding { bytes: usize::try_from(bytes).ok()? }
            }
            _ => return None,
        };
        (item.bytes() <= rest.len()).then_some(item)
    }

    fn bytes(&self) -> usize {
        match self {
            Item::Record { bytes, .. } | Item::Padding { bytes } => *bytes,
        }
    }
}

/// The records of an extent at `address`; nothing if one of them, or what is between them, is not right.
pub(crate) fn records(extent: &[u8], address: u64) -> Option<Vec<Record>> {
    let (mut at, mut records) = (HEAD, Vec::new());
    while at < extent.len() {
        let item = Item::read(&extent[at..])?;
        if let Item::Record { bytes, key, value } = item {
            let record = &extent[at..at + bytes];
            let mut unsigned = record.to_vec();
            unsigned[14..16].fill(0);
            unsigned[22..24].fill(0);
            let stored = u64_at(record, 8) >> 48 << 16 | u64_at(record, 16) >> 48;
            let zeros = record[key.1..value.0].iter().chain(&record[value.1..]).all(|&byte| byte == 0);
            let previous = u64_at(record, 16) & LOW_48;
            let follows = previous < address + at as u64 && previous.is_multiple_of(8);
            if u64::from(record_checksum(address + at as u64, &unsigned)) != stored || !zeros || !follows {
                return None;
            }
            let word = u64_at(record, 0);
            let expiring = word >> 60 == 4;
            if expiring && u64_at(record, value.0) == 0 {
                return None;
            }
            records.push(Record {
                tombstone: word >> 60 == 2,
                expiring,
                object: (word >> 42) as u32 & 0x3_FFFF,
                version: u64_at(record, 8) & LOW_48,
                previous,
                key: record[key.0..key.1].to_vec(),
                value: record[value.0..value.1].to_vec(),
            });
        }
        at += item.bytes();
    }
    Some(records)
}

/// What a key holds, by object and key.
pub(crate) type State = BTreeMap<(u32, Vec<u8>), Vec<u8>>;

/// What the log of a database says, after "Which records count" and "The end of the log, and damage".
#[derive(Debug, Default)]
pub(crate) struct Told {
    pub(crate) horizon: u64,
    pub(crate) state: State,
}

/// Reads a database; `None` if it is damaged.
pub(crate) fn read(files: &Files) -> Option<Told> {
    let superblock = superblock(files.get("superblock")?)?;
    let (mut position, mut previous, mut number) = (superblock.begin, superblock.begin_checksum, None);
    let mut told = Told::default();
    // Not sealed yet, in the order of the log.
    let mut waiting: Vec<Record> = Vec::new();
    while let Some(segment) = files.get(&segment_name(position / superblock.segment_bytes)) {
        let at = (position % superblock.segment_bytes) as usize;
        let head = segment.get(at..at + BLOCK)?;
        if head[..SECTOR].iter().all(|&byte| byte == 0) {
            break;
        }
        let (length, version, first) = (u64_at(head, 16), u64_at(head, 24), u64_at(head, 80));
        let belongs = head.starts_with(b"KILNSEAL")
            && is_signed(&head[..HEAD])
            && u64_at(head, 8) == position
            && u128_at(head, 64) == superblock.database
            && u32_at(head, 40) == previous
            && number.is_none_or(|number: u64| number.checked_add(1) == Some(u64_at(head, 32)));
        let fits = length >= BLOCK as u64
            && length.is_multiple_of(BLOCK as u64)
            && at as u64 + length <= superblock.segment_bytes;
        if !belongs || !fits {
            return None;
        }
        let extent = segment.get(at..at + length as usize)?;
        if crc32c::crc32c(&extent[HEAD..]) != u32_at(head, 44) {
            if zero_sectors(extent) > u32_at(head, 56) {
                break;
            }
            return None;
        }
        if first != 0 {
            waiting.clear();
        }
        told.horizon = told.horizon.max(version);
        waiting.extend(records(extent, position)?);
        waiting.retain(|record| {
            let counts = record.version <= told.horizon;
            if counts {
                let key = (record.object, record.key.clone());
                match record.tombstone {
                    true => told.state.remove(&key),
                    false => told.state.insert(key, record.value.clone()),
                };
            }
            !counts
        });
        (previous, number) = (u32_at(head, HEAD - 4), Some(u64_at(head, 32)));
        position += length;
    }
    (position >= superblock.known_end).then_some(told)
}

/// Which names the catalog gives to which kind (1 = map, 2 = table) and number.
pub(crate) fn catalog(state: &State) -> BTreeMap<String, (u8, u32)> {
    let entries = state.iter().filter(|((object, name), _)| *object == 0 && !name.is_empty());
    entries
        .filter_map(|((_, name), value)| {
            let name = String::from_utf8(name.clone()).ok()?;
            let (kind, number) = value.split_first()?;
            Some((name, (*kind, u32::from_le_bytes(number.try_into().ok()?))))
        })
        .collect()
}
