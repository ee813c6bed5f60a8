//! Checkpoints on disk: what recovery would know at one place of the log, in a file of its own.
//!
//! ```text
//!  header   4 KiB: which place of the log, and how many blocks follow
//!  block    head 32 bytes | items ... | zeros up to a multiple of 4 KiB
//!  block    ...
//! ```
//!
//! Blocks of three sections follow each other: the *system* (catalog, sessions, losses; counts of keys and of what is live;
//! deleted keys), the *entries* of the hash index, and the *keys* of the tables. Each block is under a checksum that covers
//! the database, the checkpoint's number and the block's place in the file, too, so that nothing stale or misplaced passes for
//! it. The layout is in `docs/format.md`.
//!
//! Nothing relies on a checkpoint: the log has all that it says. So what is wrong in it costs time and no data.
//!
//! **Lifecycle.** It is written under its unfinished name, synced, renamed, its name made durable, and then the superblock names it.
//! Whatever a crash leaves that the superblock does not name is removed when the database is opened.

mod reader;
mod writer;

use super::extent::Chain;
use super::record::{ADDRESS_BITS, Address, VERSION_BITS};

pub(crate) use reader::{Block, Items, NO_ITEM, Reader};
pub(crate) use writer::Writer;

const PREFIX: &str = "checkpoint-";
/// Its name while it is being made.
pub(crate) const UNFINISHED: &str = "checkpoint.new";
pub(crate) const MAGIC: [u8; 8] = *b"KILNCKPT";
const FORMAT: u32 = 2;
pub(crate) const HEADER_BYTES: usize = 128;
const CHECKED_BYTES: usize = HEADER_BYTES - 4;
pub(crate) const HEAD_BYTES: usize = 32;
/// A block is written when it has so many bytes; it has room for one item more.
const BLOCK_BYTES_USUAL: usize = 256 << 10;
const BLOCK_BYTES_MAX: usize = 512 << 10;
/// What a key has in common with the one before it, and what is left of it, have lengths of one byte. This one says that the key's object comes first and
/// nothing is in common; or that four bytes more have the length of what is left.
const ESCAPE: u8 = u8::MAX;
#[cfg(test)]
pub(crate) const OFFSETS: [(&str, usize); 17] = [
    ("magic", 0),
    ("format", 8),
    ("base level", 12),
    ("database", 16),
    ("number", 32),
    ("end", 40),
    ("seal number", 48),
    ("seal checksum", 56),
    ("horizon", 64),
    ("newest version", 72),
    ("entries", 80),
    ("keys", 88),
    ("time", 96),
    ("settled to", 104),
    ("forgotten to", 112),
    ("blocks", 120),
    ("header checksum", 124),
];

#[cfg(test)]
pub(crate) const BLOCK_OFFSETS: [(&str, usize); 5] =
    [("section", 0), ("length", 4), ("sequence", 8), ("items", 16), ("block checksum", 28)];

const _: () = assert!(BLOCK_BYTES_USUAL + (1 << 17) < BLOCK_BYTES_MAX);

/// The name of the checkpoint with this number.
pub(crate) fn name_of(number: u64) -> String {
    format!("{PREFIX}{number:08}")
}

/// True for the name of a checkpoint, finished or not.
pub(crate) fn is_checkpoint(name: &str) -> bool {
    let number = name.strip_prefix(PREFIX).and_then(|number| number.parse().ok());
    name == UNFINISHED || number.is_some_and(|number| name_of(number) == name)
}

/// What a checkpoint says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    /// So many bits of a key's hash are not in an entry's tag.
    pub(crate) base_level: u32,
    pub(crate) database: u128,
    pub(crate) number: u64,
    /// It says what all records before this address come to, and nothing of those behind.
    pub(crate) end: Address,
    /// The chain of seals up to there.
    pub(crate) chain: Chain,
    /// The version that the last seal before `end` makes durable, and the newest one in a record before it.
    pub(crate) horizon: u64,
    pub(crate) newest_version: u64,
    /// Entries of the hash index, keys of tables, blocks.
    pub(crate) entries: u64,
    pub(crate) keys: u64,
    pub(crate) blocks: u32,
    /// Microseconds since 1970 when it was begun; for people.
    pub(crate) time_us: u64,
    /// It has no entry of a table's record before this address.
    pub(crate) settled_to: Address,
    /// It may not tell of deletions of tables' rows before this address that are yet to settle; 0 if it tells of all.
    pub(crate) forgotten_to: Address,
}

impl Header {
    pub(crate) fn encode(&self, out: &mut [u8]) -> u32 {
        let mut put = |offset: usize, field: &[u8]| out[offset..offset + field.len()].copy_from_slice(field);
        put(0, &MAGIC);
        put(8, &FORMAT.to_le_bytes());
        put(12, &self.base_level.to_le_bytes());
        put(16, &self.database.to_le_bytes());
        put(32, &self.number.to_le_bytes());
        put(40, &self.end.to_le_bytes());
        put(48, &self.chain.number.to_le_bytes());
        put(56, &self.chain.checksum.to_le_bytes());
        put(64, &self.horizon.to_le_bytes());
        put(72, &self.newest_version.to_le_bytes());
        put(80, &self.entries.to_le_bytes());
        put(88, &self.keys.to_le_bytes());
        put(96, &self.time_us.to_le_bytes());
        put(104, &self.settled_to.to_le_bytes());
        put(112, &self.forgotten_to.to_le_bytes());
        put(120, &self.blocks.to_le_bytes());
        let checksum = crc32c::crc32c(&out[..CHECKED_BYTES]);
        out[CHECKED_BYTES..HEADER_BYTES].copy_from_slice(&checksum.to_le_bytes());
        checksum
    }

    /// Takes a header apart; `None` if it is of a format that this engine does not know, `Err` says what is wrong with it.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Option<(Header, u32)>, &'static str> {
        let Some(bytes) = bytes.first_chunk::<HEADER_BYTES>() else {
            return Err("a checkpoint's header is cut short");
        };
        let u32_at = |offset: usize| u32::from_le_bytes(std::array::from_fn(|index| bytes[offset + index]));
        let u64_at = |offset: usize| u64::from_le_bytes(std::array::from_fn(|index| bytes[offset + index]));
        let checksum = u32_at(CHECKED_BYTES);
        if bytes[..8] != MAGIC || crc32c::crc32c(&bytes[..CHECKED_BYTES]) != checksum {
            return Err("a checkpoint's header does not match its checksum");
        }
        if u32_at(8) != FORMAT {
            return Ok(None);
        }
        let header = Header {
            base_level: u32_at(12),
            database: u128::from_le_bytes(std::array::from_fn(|index| bytes[16 + index])),
            number: u64_at(32),
            end: u64_at(40),
            chain: Chain { number: u64_at(48), checksum: u32_at(56) },
            horizon: u64_at(64),
            newest_version: u64_at(72),
            entries: u64_at(80),
            keys: u64_at(88),
            blocks: u32_at(120),
            time_us: u64_at(96),
            settled_to: u64_at(104),
            forgotten_to: u64_at(112),
        };
        let is_sane = header.base_level <= 32
            && header.chain.number < u64::MAX
            && header.horizon < 1 << VERSION_BITS
            && header.newest_version < 1 << VERSION_BITS
            && header.forgotten_to <= header.end
            // No more fit into a log.
            && header.entries < 1 << ADDRESS_BITS;
        if is_sane { Ok(Some((header, checksum))) } else { Err("a checkpoint's numbers are impossible") }
    }
}

/// The parts of a checkpoint, in their order in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum Section {
    System = 1,
    Entries = 2,
    Keys = 3,
}

impl Section {
    pub(crate) const ALL: [Section; 3] = [Section::System, Section::Entries, Section::Keys];
}

/// An item of the system's section.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SystemItem<'a> {
    pub(crate) kind: u32,
    /// An object, or a segment.
    pub(crate) number: u64,
    pub(crate) key: &'a [u8],
    pub(crate) value: &'a [u8],
}

/// The kinds of item in the system's section.
pub(crate) mod kind {
    /// The newest record of a key of the catalog, the sessions or the losses.
    pub(crate) const RECORD: u32 = 1;
    /// How many keys an object has.
    pub(crate) const KEY_COUNT: u32 = 2;
    /// A deleted key that may still have an entry: that of its tombstone.
    pub(crate) const TOMBSTONE: u32 = 3;
    /// What is live in a segment.
    pub(crate) const LIVENESS: u32 = 4;
}

/// The checksum of what every block of a checkpoint begins with, unwritten.
fn identity_of(database: u128, number: u64) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(&database.to_le_bytes()), &number.to_le_bytes())
}

/// The first bytes of a block.
#[derive(Default)]
struct BlockHead {
    section: u32,
    length: u32,
    sequence: u64,
    items: u32,
}

impl BlockHead {
    fn encode(&self, identity: u32, block: &mut [u8]) {
        block[..4].copy_from_slice(&self.section.to_le_bytes());
        block[4..8].copy_from_slice(&self.length.to_le_bytes());
        block[8..16].copy_from_slice(&self.sequence.to_le_bytes());
        block[16..20].copy_from_slice(&self.items.to_le_bytes());
        block[20..HEAD_BYTES].fill(0);
        let checksum = crc32c::crc32c_append(identity, block);
        block[28..32].copy_from_slice(&checksum.to_le_bytes());
    }

    /// As it is there; nothing of it is checked.
    fn decode(bytes: &[u8]) -> Option<BlockHead> {
        let bytes = bytes.first_chunk::<HEAD_BYTES>()?;
        let u32_at = |offset: usize| u32::from_le_bytes(std::array::from_fn(|index| bytes[offset + index]));
        let sequence = u64::from_le_bytes(std::array::from_fn(|index| bytes[8 + index]));
        Some(BlockHead { section: u32_at(0), length: u32_at(4), sequence, items: u32_at(16) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::{BLOCK_BYTES, SimulatedDevice};
    use crate::error::ErrorKind;
    use crate::storage::superblock::CheckpointName;

    fn sound() -> Header {
        Header {
            base_level: 10,
            database: 7,
            number: 3,
            end: 8 << 12,
            chain: Chain { number: 5, checksum: 6 },
            horizon: 8,
            newest_version: 9,
            entries: 0,
            keys: 0,
            blocks: 0,
            time_us: 1,
            settled_to: 0,
            forgotten_to: 0,
        }
    }

    #[test]
    fn c9_what_follows_the_last_item_of_a_block_must_be_less_than_a_block_of_zeros() {
        let taken = |blocks: usize, byte: u8| {
            // Without items; one byte behind the head is something else.
            let mut block = vec![0; blocks * BLOCK_BYTES];
            block[100] = byte;
            let mut reader = reader_of(block, (Section::System, 0), identity_of(7, 3));
            let mut block = Block::default();
            assert!(reader.read(Section::System, &mut block).unwrap());
            let mut items = block.check(&reader.name, Section::System).unwrap();
            items.next_system().map(|item| assert_eq!(item, None))
        };
        assert_eq!(taken(1, 0), Ok(()));
        assert_eq!(taken(1, 1), Err(NO_ITEM));
        assert_eq!(taken(2, 0), Err(NO_ITEM));
    }

    /// What a file had before is of an older checkpoint of the same database.
    #[test]
    fn c9_a_block_of_another_checkpoint_is_refused() {
        for (database, number, is_its_own) in [(7, 3, true), (7, 2, false), (6, 3, false)] {
            let block = vec![0; BLOCK_BYTES];
            let mut reader = reader_of(block, (Section::System, 0), identity_of(database, number));
            let mut block = Block::default();
            let read = reader.read(Section::System, &mut block);
            let taken = read.and_then(|_| block.check(&reader.name, Section::System).map(drop));
            assert_eq!(taken.is_ok(), is_its_own, "number {number} of {database}: {taken:?}");
        }
    }

    #[test]
    fn keys_come_back_in_their_order_whatever_they_have_in_common() {
        let long = |bytes: usize, last: u8| [vec![7; bytes], vec![last]].concat();
        let mut keys: Vec<(u32, Vec<u8>)> =
            [0, 1, 253, 254, 255, 256, 300, 65_535].iter().map(|&bytes| (16, long(bytes, 1))).collect();
        // Descending, twice the same, the same in another object, and nothing at all.
        keys.extend(keys.clone().into_iter().rev());
        keys.push((17, keys[0].1.clone()));
        keys.extend([
            (17, Vec::new()),
            (16, Vec::new()),
            (16, long(254, 2)),
            (16, long(254, 3)),
            (16, long(400, 3)),
        ]);
        // More than one block of them.
        keys.extend(
            (0..60_000_u64).map(|number| (18, number.wrapping_mul(1 << 51 | 1).to_be_bytes().to_vec())),
        );
        let disk = SimulatedDevice::new(1);
        let mut writer = Writer::create(&disk, 7, 3).unwrap();
        keys.iter().for_each(|(object, key)| writer.add_key(*object, key).unwrap());
        let (named, bytes) = writer.finish(Header { keys: keys.len() as u64, ..sound() }).unwrap();
        let mut reader = Reader::open(&disk, 7, named).unwrap().unwrap();
        let (mut block, mut found, mut blocks) = (Block::default(), Vec::new(), 0);
        while reader.read(Section::Keys, &mut block).unwrap() {
            let mut items = block.check(&reader.name, Section::Keys).unwrap();
            while let Some((object, key)) = items.next_key().unwrap() {
                found.push((object, key.to_vec()));
            }
            blocks += 1;
        }
        assert!(blocks > 1 && found == keys, "{blocks} blocks, {} of {} keys", found.len(), keys.len());
        assert!(bytes < 1 << 20, "what they have in common is written again and again: {bytes} bytes");
    }

    #[test]
    fn c9_a_key_that_has_more_in_common_with_the_one_before_than_that_has_is_refused() {
        let taken = |items: &[u8], count: u32| {
            let mut block = vec![0; BLOCK_BYTES];
            block[HEAD_BYTES..HEAD_BYTES + items.len()].copy_from_slice(items);
            let mut reader = reader_of(block, (Section::Keys, count), identity_of(7, 3));
            let mut block = Block::default();
            assert!(reader.read(Section::Keys, &mut block).unwrap());
            let mut items = block.check(&reader.name, Section::Keys).unwrap();
            let mut keys = Vec::new();
            while let Some((object, key)) = items.next_key()? {
                keys.push((object, key.to_vec()));
            }
            Ok(keys)
        };
        let first = [ESCAPE, 16, 0, 0, 0, 2, b'a', b'b'];
        assert_eq!(taken(&first, 1), Ok(vec![(16, b"ab".to_vec())]));
        let then = |second: &[u8]| taken(&[&first, second].concat(), 2);
        assert_eq!(then(&[2, 1, b'c']), Ok(vec![(16, b"ab".to_vec()), (16, b"abc".to_vec())]));
        assert_eq!(then(&[3, 1, b'c']), Err(NO_ITEM));
        assert_eq!(then(&[2, ESCAPE, 255, 255, 255, 255]), Err(NO_ITEM));
        // None says whose it is.
        assert_eq!(taken(&[0, 1, b'c'], 1), Err(NO_ITEM));
    }

    /// A file whose header's checksum holds, and that checksum.
    fn file_with(header: &Header) -> (Vec<u8>, u32) {
        let mut bytes = vec![0; BLOCK_BYTES];
        let checksum = header.encode(&mut bytes);
        (bytes, checksum)
    }

    /// Reads checkpoint 3 of database 7, whose one block this is, once it has a head: with so many items of a section, and this identity in its checksum.
    fn reader_of(mut block: Vec<u8>, (section, items): (Section, u32), identity: u32) -> Reader {
        let (mut file, checksum) = file_with(&Header { blocks: 1, ..sound() });
        let (section, length) = (section as u32, block.len() as u32);
        BlockHead { section, length, sequence: 0, items }.encode(identity, &mut block);
        file.extend(block);
        let disk = SimulatedDevice::new(1);
        disk.set_bytes(&name_of(3), file);
        let named = CheckpointName { number: 3, end: 8 << 12, checksum };
        Reader::open(&disk, 7, named).unwrap().unwrap()
    }

    #[test]
    fn c9_a_header_with_impossible_numbers_is_refused_though_its_checksum_holds() {
        let (bytes, checksum) = file_with(&sound());
        assert_eq!(Header::decode(&bytes), Ok(Some((sound(), checksum))));
        let impossible: [fn(&mut Header); 6] = [
            |header| header.base_level = 33,
            |header| header.chain.number = u64::MAX,
            |header| header.horizon = 1 << VERSION_BITS,
            |header| header.newest_version = 1 << VERSION_BITS,
            |header| header.entries = 1 << ADDRESS_BITS,
            |header| header.forgotten_to = header.end + 1,
        ];
        for (number, change) in impossible.into_iter().enumerate() {
            let mut header = sound();
            change(&mut header);
            let decoded = Header::decode(&file_with(&header).0);
            assert_eq!(decoded, Err("a checkpoint's numbers are impossible"), "change {number}");
        }
        let (mut bytes, _) = file_with(&sound());
        bytes[8..12].copy_from_slice(&(FORMAT + 1).to_le_bytes());
        let checksum = crc32c::crc32c(&bytes[..CHECKED_BYTES]);
        bytes[CHECKED_BYTES..HEADER_BYTES].copy_from_slice(&checksum.to_le_bytes());
        assert_eq!(Header::decode(&bytes), Ok(None), "it is not called damaged");
        assert!(Header::decode(&bytes[..HEADER_BYTES - 1]).is_err_and(|what| what.contains("cut short")));
    }

    #[test]
    fn c9_a_checkpoint_that_is_not_the_one_named_is_refused() {
        let (bytes, checksum) = file_with(&sound());
        let named = CheckpointName { number: 3, end: 8 << 12, checksum };
        let opened = |bytes: &[u8], database: u128, named: CheckpointName| {
            let disk = SimulatedDevice::new(1);
            disk.set_bytes(&name_of(named.number), bytes);
            Reader::open(&disk, database, named).map(drop).map_err(|error| error.kind())
        };
        assert_eq!(opened(&bytes, 7, named), Ok(()));
        for other in [
            CheckpointName { number: 4, ..named },
            CheckpointName { end: 9 << 12, ..named },
            CheckpointName { checksum: checksum ^ 1, ..named },
        ] {
            assert_eq!(opened(&bytes, 7, other), Err(ErrorKind::Corrupted), "{other:?}");
        }
        assert_eq!(opened(&bytes, 8, named), Err(ErrorKind::Corrupted));
        let mut filled = bytes;
        filled[HEADER_BYTES] = 1;
        assert_eq!(opened(&filled, 7, named), Err(ErrorKind::Corrupted));
    }
}
