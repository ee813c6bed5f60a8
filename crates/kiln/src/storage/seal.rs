//! Seals: the head of each extent, which makes a version durable.
//!
//! An extent is what one hardening writes into one segment: a seal, records, padding to a block boundary.
//! Extents follow each other without gaps and are written strictly one after the other: an extent is begun
//! only when the one before it is durable. The seal's layout is in `docs/format.md`; a test holds the offsets
//! in the document against this module.
//!
//! A seal's *version* says: once this extent is durable, every version up to this one is. Records of a newer
//! version in the extent wait for a later seal. A seal with [`Seal::first_version`] set was written when the
//! database was opened after a crash: records above its `version` in the extents before it are lost for ever,
//! and new versions begin at `first_version`.

use super::record::{ADDRESS_BITS, Address, VERSION_BITS};
use crate::device::{BLOCK_BYTES, SECTOR_BYTES};
use crate::planted::{Bug, planted};

/// Bytes at the start of each extent.
pub(crate) const SEAL_BYTES: u64 = 128;

pub(crate) const MAGIC: [u8; 8] = *b"KILNSEAL";
#[cfg(test)]
pub(crate) const OFFSETS: [(&str, usize); 12] = [
    ("magic", 0),
    ("address", 8),
    ("length", 16),
    ("version", 24),
    ("number", 32),
    ("previous checksum", 40),
    ("data checksum", 44),
    ("time", 48),
    ("zero sectors", 56),
    ("database", 64),
    ("first version", 80),
    ("seal checksum", 124),
];

const _: () = assert!(SEAL_BYTES as usize <= SECTOR_BYTES && BLOCK_BYTES.is_multiple_of(SECTOR_BYTES));

/// See the module's documentation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Seal {
    /// Where the extent starts in the log.
    pub(crate) address: Address,
    /// Bytes of the extent, this seal included; a multiple of the block.
    pub(crate) length: u64,
    /// The horizon once this extent is durable.
    pub(crate) version: u64,
    /// Counts the seals of this database from 1.
    pub(crate) number: u64,
    /// Checksum of the seal before, so that extents form a chain.
    pub(crate) previous_checksum: u32,
    /// CRC-32C of the extent's bytes behind the seal.
    pub(crate) data_checksum: u32,
    /// Microseconds since 1970 when the hardening began; for people.
    pub(crate) time_us: u64,
    /// Sectors of the extent that are all zeros by right; more of them mean an unfinished write.
    pub(crate) zero_sectors: u32,
    /// The database's identity.
    pub(crate) database: u128,
    /// 0, or the first version after a crash.
    pub(crate) first_version: u64,
}

impl Seal {
    /// The seal's bytes, and its checksum, which the next seal carries.
    pub(crate) fn encode(&self) -> ([u8; SEAL_BYTES as usize], u32) {
        let mut bytes = [0u8; SEAL_BYTES as usize];
        let mut put =
            |offset: usize, field: &[u8]| bytes[offset..offset + field.len()].copy_from_slice(field);
        put(0, &MAGIC);
        put(8, &self.address.to_le_bytes());
        put(16, &self.length.to_le_bytes());
        put(24, &self.version.to_le_bytes());
        put(32, &self.number.to_le_bytes());
        put(40, &self.previous_checksum.to_le_bytes());
        put(44, &self.data_checksum.to_le_bytes());
        put(48, &self.time_us.to_le_bytes());
        put(56, &self.zero_sectors.to_le_bytes());
        put(64, &self.database.to_le_bytes());
        put(80, &self.first_version.to_le_bytes());
        let checksum = crc32c::crc32c(&bytes[..124]);
        bytes[124..].copy_from_slice(&checksum.to_le_bytes());
        (bytes, checksum)
    }

    /// Takes a seal apart; `Err` says what is wrong with it.
    pub(crate) fn decode(bytes: &[u8]) -> Result<(Seal, u32), &'static str> {
        let Some(bytes) = bytes.first_chunk::<{ SEAL_BYTES as usize }>() else {
            return Err("a seal is cut short");
        };
        if bytes[..8] != MAGIC {
            return Err("there is no seal");
        }
        let u32_at = |offset: usize| u32::from_le_bytes(std::array::from_fn(|index| bytes[offset + index]));
        let u64_at = |offset: usize| u64::from_le_bytes(std::array::from_fn(|index| bytes[offset + index]));
        let checksum = u32_at(124);
        if crc32c::crc32c(&bytes[..124]) != checksum && !planted(Bug::SealChecksumIgnored) {
            return Err("a seal's checksum does not match its bytes");
        }
        let seal = Seal {
            address: u64_at(8),
            length: u64_at(16),
            version: u64_at(24),
            number: u64_at(32),
            previous_checksum: u32_at(40),
            data_checksum: u32_at(44),
            time_us: u64_at(48),
            zero_sectors: u32_at(56),
            database: u128::from_le_bytes(std::array::from_fn(|index| bytes[64 + index])),
            first_version: u64_at(80),
        };
        if seal.is_sane() { Ok((seal, checksum)) } else { Err("a seal's numbers are impossible") }
    }

    /// Numbers within these bounds can be counted on without an overflow.
    fn is_sane(&self) -> bool {
        let address_end = 1 << ADDRESS_BITS;
        let version_end = 1 << VERSION_BITS;
        self.address < address_end
            && self.length < address_end
            && self.number < u64::MAX
            && self.version < version_end
            && self.first_version < version_end
            && (self.first_version == 0 || self.first_version > self.version)
    }

    /// The address behind the extent.
    pub(crate) fn end(&self) -> Address {
        self.address + self.length
    }
}

/// Number of whole sectors in `bytes` that are all zeros.
pub(crate) fn zero_sectors(bytes: &[u8]) -> u32 {
    let zero = |sector: &&[u8; SECTOR_BYTES]| {
        let (words, _) = sector.as_chunks::<8>();
        words.iter().all(|word| u64::from_ne_bytes(*word) == 0)
    };
    bytes.as_chunks::<SECTOR_BYTES>().0.iter().filter(zero).count() as u32
}
