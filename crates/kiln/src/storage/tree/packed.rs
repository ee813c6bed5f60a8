//! Leaves that are compressed on disk. In memory a node is never compressed.
//!
//! ```text
//!  header: flags, length of the plain node, end | LZ4 block of the plain node, as it would be on disk | zeros
//! ```
//!
//! A leaf is packed only if that takes a block less. The plain node's length is bounded before anything is allocated for it.

use lz4_flex::block::{CompressTable, compress_into_with_table, decompress_into, get_maximum_output_size};

use super::node::{HEADER_BYTES, u16_at, u32_at};
use super::pending::PendingNode;
use super::reference::NODE_BLOCKS_MAX;
use crate::device::BLOCK_BYTES;

/// In the flags: this.
pub(super) const PACKED: u16 = 2;
#[cfg(test)]
pub(super) const OFFSETS: [(&str, usize); 4] =
    [("packed level", 0), ("packed flags", 2), ("plain bytes", 4), ("packed end", 8)];

/// Packs leaves, in memory that it keeps.
#[derive(Default)]
pub(super) struct Packer {
    table: CompressTable,
    plain: Vec<u8>,
    packed: Vec<u8>,
}

impl Packer {
    /// A leaf's bytes on disk, but for the zeros at the end; `None` if it takes as many blocks as it is.
    pub(super) fn pack(&mut self, leaf: &PendingNode<'_>) -> Option<&[u8]> {
        let Packer { table, plain, packed } = self;
        plain.clear();
        plain.resize(leaf.bytes(), 0);
        leaf.encode(plain);
        packed.clear();
        packed.resize(HEADER_BYTES + get_maximum_output_size(plain.len()), 0);
        let end = HEADER_BYTES + compress_into_with_table(plain, &mut packed[HEADER_BYTES..], table).ok()?;
        packed.truncate(end);
        packed[2..4].copy_from_slice(&PACKED.to_le_bytes());
        packed[4..8].copy_from_slice(&(plain.len() as u32).to_le_bytes());
        packed[8..12].copy_from_slice(&(end as u32).to_le_bytes());
        (end.div_ceil(BLOCK_BYTES) < leaf.blocks()).then_some(packed)
    }
}

/// The plain leaf in a node's whole blocks, whose checksum has been compared; `None` if they are not packed.
///
/// # Errors
/// What is wrong with them.
pub(super) fn unpack(bytes: &[u8]) -> Result<Option<Vec<u8>>, &'static str> {
    if u16_at(bytes, 2) != PACKED {
        return Ok(None);
    }
    let (plain_bytes, end) = (u32_at(bytes, 4) as usize, u32_at(bytes, 8) as usize);
    if u16_at(bytes, 0) != 0 || u32_at(bytes, 12) != 0 {
        return Err("a packed node that is no leaf");
    }
    if !(HEADER_BYTES..=NODE_BLOCKS_MAX as usize * BLOCK_BYTES).contains(&plain_bytes) {
        return Err("a packed leaf of a length that none has");
    }
    let (packed, rest) = bytes.split_at_checked(end).ok_or("a packed leaf that is longer than its blocks")?;
    let packed = packed.get(HEADER_BYTES..).ok_or("a packed leaf without contents")?;
    if rest.iter().fold(0, |all, &byte| all | byte) != 0 {
        return Err("a packed leaf with something behind its end");
    }
    let mut plain = vec![0; plain_bytes];
    match decompress_into(packed, &mut plain) {
        Ok(bytes) if bytes == plain_bytes && u16_at(&plain, 0) == 0 && u16_at(&plain, 2) != PACKED => {
            Ok(Some(plain))
        }
        _ => Err("a packed leaf that cannot be unpacked"),
    }
}
