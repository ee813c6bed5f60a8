//! How nodes and values are referred to: where they are, and the checksum of what must be there.

use crate::device::BLOCK_BYTES;

/// Blocks of the largest node: a few of the longest keys.
pub(super) const NODE_BLOCKS_MAX: u32 = 128;
/// The longest value.
pub(super) const VALUE_BYTES_MAX: u32 = 16 << 20;
/// Blocks that a file has at most.
pub(super) const FILE_BLOCKS_MAX: u64 = 1 << 40;
/// The first block that is not a root slot.
pub(super) const BLOCK_FIRST: u64 = 2;

/// Bytes of an encoded [`NodeReference`].
pub(super) const NODE_REFERENCE_BYTES: usize = 24;
/// Bytes of an encoded [`ValueReference`].
pub(super) const VALUE_REFERENCE_BYTES: usize = 16;
#[cfg(test)]
pub(super) const NODE_OFFSETS: [(&str, usize); 4] =
    [("block", 0), ("entries", 8), ("blocks", 16), ("checksum", 20)];
#[cfg(test)]
pub(super) const VALUE_OFFSETS: [(&str, usize); 3] = [("block", 0), ("bytes", 8), ("checksum", 12)];

/// A node, as its parent knows it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct NodeReference {
    pub(super) block: u64,
    /// Entries of the leaves below.
    pub(super) entries: u64,
    pub(super) blocks: u32,
    /// Of its whole blocks.
    pub(super) checksum: u32,
}

/// A value with blocks of its own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct ValueReference {
    pub(super) block: u64,
    pub(super) bytes: u32,
    /// Of the value, without what fills its last block.
    pub(super) checksum: u32,
}

fn u64_at(bytes: &[u8], offset: usize) -> Option<u64> {
    bytes.get(offset..)?.first_chunk().map(|field| u64::from_le_bytes(*field))
}

fn u32_at(bytes: &[u8], offset: usize) -> Option<u32> {
    bytes.get(offset..)?.first_chunk().map(|field| u32::from_le_bytes(*field))
}

fn is_in_a_file(block: u64, blocks: u64) -> bool {
    block >= BLOCK_FIRST && block.checked_add(blocks).is_some_and(|end| end <= FILE_BLOCKS_MAX)
}

impl NodeReference {
    pub(super) fn encode(&self) -> [u8; NODE_REFERENCE_BYTES] {
        let mut bytes = [0; NODE_REFERENCE_BYTES];
        bytes[..8].copy_from_slice(&self.block.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.entries.to_le_bytes());
        bytes[16..20].copy_from_slice(&self.blocks.to_le_bytes());
        bytes[20..].copy_from_slice(&self.checksum.to_le_bytes());
        bytes
    }

    #[inline]
    pub(super) fn decode(bytes: &[u8]) -> Option<NodeReference> {
        let bytes: &[u8; NODE_REFERENCE_BYTES] = bytes.try_into().ok()?;
        Some(NodeReference {
            block: u64_at(bytes, 0)?,
            entries: u64_at(bytes, 8)?,
            blocks: u32_at(bytes, 16)?,
            checksum: u32_at(bytes, 20)?,
        })
    }

    /// Whether there can be such a node.
    pub(super) fn is_sane(&self) -> bool {
        (1..=NODE_BLOCKS_MAX).contains(&self.blocks) && is_in_a_file(self.block, self.blocks.into())
    }
}

impl ValueReference {
    pub(super) fn encode(&self) -> [u8; VALUE_REFERENCE_BYTES] {
        let mut bytes = [0; VALUE_REFERENCE_BYTES];
        bytes[..8].copy_from_slice(&self.block.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.bytes.to_le_bytes());
        bytes[12..].copy_from_slice(&self.checksum.to_le_bytes());
        bytes
    }

    #[inline]
    pub(super) fn decode(bytes: &[u8]) -> Option<ValueReference> {
        let bytes: &[u8; VALUE_REFERENCE_BYTES] = bytes.try_into().ok()?;
        Some(ValueReference {
            block: u64_at(bytes, 0)?,
            bytes: u32_at(bytes, 8)?,
            checksum: u32_at(bytes, 12)?,
        })
    }

    /// The blocks that it takes.
    pub(super) fn blocks(&self) -> u64 {
        u64::from(self.bytes).div_ceil(BLOCK_BYTES as u64)
    }

    /// Whether there can be such a value.
    pub(super) fn is_sane(&self) -> bool {
        (1..=VALUE_BYTES_MAX).contains(&self.bytes) && is_in_a_file(self.block, self.blocks())
    }
}
