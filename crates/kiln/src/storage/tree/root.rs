//! Roots, and the two slots that say which is the newest.
//!
//! A slot's contents lie in one sector, so a write that is torn leaves the old or the new ones. At rest both slots say the same: a root
//! is written to one, synced, then to the other, synced, and only then are the blocks of the root before it used again. So
//!
//! - a crash in between finds the newer root, or the one before it, whole;
//! - a slot that is damaged later costs nothing: the other one says the same.
//!
//! *Rejected: one write a root, to the slots in turn*, as the database's superblock does. It saves a sync a merge; but then damage to the
//! newer slot leads back to a root whose blocks may have been used again.

use std::sync::Arc;

use super::node::HEIGHT_MAX;
use super::reference::{BLOCK_FIRST, FILE_BLOCKS_MAX, NodeReference};
use crate::device::{AlignedBuffer, BLOCK_BYTES, DeviceFile};
use crate::error::{Error, ErrorKind, Result};
use crate::storage::record::OBJECTS_MAX;
use crate::storage::superblock::COUNT_END;

pub(crate) const MAGIC: [u8; 8] = *b"KILNTREE";
/// The newest format that this engine reads, and writes once a leaf was packed.
pub(crate) const FORMAT: u32 = 2;
/// What it writes before.
const FORMAT_PLAIN: u32 = 1;
pub(crate) const SLOT_BYTES: usize = 128;
#[cfg(test)]
pub(super) const OFFSETS: [(&str, usize); 19] = [
    ("magic", 0),
    ("tree format", 8),
    ("height", 12),
    ("generation", 16),
    ("settled to", 24),
    ("root block", 32),
    ("entries", 40),
    ("root blocks", 48),
    ("root checksum", 52),
    ("directory block", 56),
    ("directory blocks", 64),
    ("directory checksum", 68),
    ("used blocks", 72),
    ("mapped blocks", 80),
    ("tree database", 88),
    ("tree loaded", 104),
    ("begun to", 108),
    ("begun entries", 116),
    ("slot checksum", 124),
];

/// Where the map of free space is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct DirectoryReference {
    pub(super) block: u64,
    pub(super) blocks: u32,
    pub(super) checksum: u32,
    /// Blocks that are in use, slots included.
    pub(super) used_blocks: u64,
    /// Blocks of which the map says whether they are; all others are free.
    pub(super) mapped_blocks: u64,
}

/// How far a merge has come that has not come to its end: of what it is to have settled, up to the address `to`, the tree has all changes of its first `entries` keys, and of
/// those between them. Zeros, where the last one has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Begun {
    pub(super) to: u64,
    pub(super) entries: u64,
}

/// A state of the tree. As long as somebody holds it, none of its blocks is used for something else.
#[derive(Debug, Default)]
pub(crate) struct Root {
    /// The identity of the database whose tree it is.
    pub(super) database: u128,
    /// Counts the roots.
    pub(super) generation: u64,
    pub(super) settled_to: u64,
    pub(super) begun: Begun,
    /// The number of the last object whose rows were loaded in bulk; 0: none.
    pub(super) loaded: u32,
    /// There may be leaves that are packed.
    pub(super) has_packed: bool,
    /// Levels; 0 where there are no entries.
    pub(super) height: u16,
    pub(super) node: NodeReference,
    pub(super) directory: DirectoryReference,
}

impl Root {
    /// The root node and its level, if there is any.
    pub(super) fn top(&self) -> Option<(NodeReference, u16)> {
        (self.height > 0).then(|| (self.node, self.height - 1))
    }

    /// How many keys there are.
    pub(crate) fn entries(&self) -> u64 {
        self.node.entries
    }

    /// True if it came behind another one of the same tree.
    pub(crate) fn is_newer_than(&self, other: &Root) -> bool {
        self.generation > other.generation
    }

    /// The last object that was loaded in bulk; 0: none. If the catalog does not have it, its rows do not count.
    pub(crate) fn loaded(&self) -> u32 {
        self.loaded
    }

    /// The log address that came with it.
    pub(crate) fn settled_to(&self) -> u64 {
        self.settled_to
    }

    /// The log address up to which a merge was to settle that has not come to its end; 0: there is none.
    pub(crate) fn begun_to(&self) -> u64 {
        self.begun.to
    }

    /// True if something has settled, or was loaded, though nothing may be left of it: there is a file.
    pub(crate) fn is_written(&self) -> bool {
        self.settled_to > 0 || self.loaded > 0
    }

    pub(super) fn encode(&self, out: &mut [u8]) {
        let mut put = |offset: usize, field: &[u8]| out[offset..offset + field.len()].copy_from_slice(field);
        put(0, &MAGIC);
        put(8, &(if self.has_packed { FORMAT } else { FORMAT_PLAIN }).to_le_bytes());
        put(12, &u32::from(self.height).to_le_bytes());
        put(16, &self.generation.to_le_bytes());
        put(24, &self.settled_to.to_le_bytes());
        put(32, &self.node.encode());
        put(56, &self.directory.block.to_le_bytes());
        put(64, &self.directory.blocks.to_le_bytes());
        put(68, &self.directory.checksum.to_le_bytes());
        put(72, &self.directory.used_blocks.to_le_bytes());
        put(80, &self.directory.mapped_blocks.to_le_bytes());
        put(88, &self.database.to_le_bytes());
        put(104, &self.loaded.to_le_bytes());
        put(108, &self.begun.to.to_le_bytes());
        put(116, &self.begun.entries.to_le_bytes());
        let checksum = crc32c::crc32c(&out[..124]);
        out[124..SLOT_BYTES].copy_from_slice(&checksum.to_le_bytes());
    }

    pub(super) fn decode(bytes: &[u8]) -> Slot {
        let Some(bytes) = bytes.first_chunk::<SLOT_BYTES>() else { return Slot::Damaged };
        let u32_at = |offset: usize| u32::from_le_bytes(std::array::from_fn(|index| bytes[offset + index]));
        let u64_at = |offset: usize| u64::from_le_bytes(std::array::from_fn(|index| bytes[offset + index]));
        if bytes[..8] != MAGIC || crc32c::crc32c(&bytes[..124]) != u32_at(124) {
            return Slot::Damaged;
        }
        if u32_at(8) > FORMAT {
            return Slot::Newer(u32_at(8));
        }
        let (Ok(height), Some(node)) = (u16::try_from(u32_at(12)), NodeReference::decode(&bytes[32..56]))
        else {
            return Slot::Damaged;
        };
        let directory = DirectoryReference {
            block: u64_at(56),
            blocks: u32_at(64),
            checksum: u32_at(68),
            used_blocks: u64_at(72),
            mapped_blocks: u64_at(80),
        };
        let database = u128::from_le_bytes(std::array::from_fn(|index| bytes[88 + index]));
        let root = Root {
            database,
            generation: u64_at(16),
            settled_to: u64_at(24),
            begun: Begun { to: u64_at(108), entries: u64_at(116) },
            loaded: u32_at(104),
            has_packed: u32_at(8) == FORMAT,
            height,
            node,
            directory,
        };
        if root.is_sane() { Slot::Valid(root) } else { Slot::Damaged }
    }

    fn is_sane(&self) -> bool {
        let node_is_sane = match self.height {
            0 => self.node == NodeReference::default(),
            height => height <= HEIGHT_MAX && self.node.is_sane(),
        };
        let directory = &self.directory;
        node_is_sane
            && self.begun.entries <= self.node.entries
            && self.loaded < OBJECTS_MAX
            && self.generation < COUNT_END
            && directory.mapped_blocks <= FILE_BLOCKS_MAX
            && (BLOCK_FIRST..=directory.mapped_blocks).contains(&directory.used_blocks)
            && (BLOCK_FIRST..directory.mapped_blocks).contains(&directory.block)
            && directory.blocks > 0
            && directory.block + u64::from(directory.blocks) <= directory.mapped_blocks
    }
}

/// What a slot holds.
pub(super) enum Slot {
    Valid(Root),
    Newer(u32),
    Damaged,
}

/// The slots of an open file.
pub(super) struct Slots {
    file: Arc<dyn DeviceFile>,
    /// The slot that is certain to hold the newest root, and not to lose it; the other one may be written. `None` until it is.
    certain: Option<usize>,
    /// The slot that seemed to hold it when the file was opened.
    found: usize,
    /// The block of the other slot, if that was damaged.
    damaged: Option<u64>,
}

impl Slots {
    /// The slots of a new file.
    pub(super) fn new(file: Arc<dyn DeviceFile>) -> Slots {
        Slots { file, certain: Some(1), found: 1, damaged: None }
    }

    /// Reads the newer of the slots that are whole.
    pub(super) fn open(file: Arc<dyn DeviceFile>, name: &str, database: u128) -> Result<(Slots, Root)> {
        let mut bytes = AlignedBuffer::new(2 * BLOCK_BYTES);
        let read =
            file.read_at(&mut bytes, 0).map_err(|error| Error::io("reading the tree's roots", error))?;
        let (mut newest, mut damaged): (Option<(usize, Root)>, _) = (None, None);
        for slot in 0..2 {
            let bytes = bytes[..read].chunks(BLOCK_BYTES).nth(slot).unwrap_or_default();
            match Root::decode(bytes) {
                Slot::Newer(format) => {
                    return Err(Error::new(
                        ErrorKind::Version,
                        format!(
                            "{name} has format {format}; this Kiln reads up to format {FORMAT}. Use a newer Kiln"
                        ),
                    ));
                }
                Slot::Valid(root)
                    if newest.as_ref().is_none_or(|(_, known)| root.generation > known.generation) =>
                {
                    newest = Some((slot, root));
                }
                Slot::Valid(_) => {}
                // Both were written before the file got its name.
                Slot::Damaged => damaged = Some(slot as u64),
            }
        }
        let (found, root) =
            newest.ok_or_else(|| Error::corrupted(name, 0, "neither of its root slots is valid"))?;
        if root.database != database {
            return Err(Error::corrupted(name, (found * BLOCK_BYTES) as u64, "it is another database's"));
        }
        Ok((Slots { file, certain: None, found, damaged }, root))
    }

    /// The block of a slot that was damaged when the file was opened, and was not written since.
    pub(super) fn damaged(&self) -> Option<u64> {
        self.damaged
    }

    pub(super) fn file(&self) -> &dyn DeviceFile {
        &*self.file
    }

    /// True once the newest root is known to be durable.
    pub(super) fn are_certain(&self) -> bool {
        self.certain.is_some()
    }

    /// Before anything is written after opening: who wrote the newest root may have been killed before it was durable, and then the
    /// other slot's root, whose blocks are about to be used again, would be the durable one.
    pub(super) fn make_certain(&mut self, newest: &Root) -> std::io::Result<()> {
        if self.certain.is_none() {
            let other = 1 - self.found;
            self.write(other, newest)?;
            (self.certain, self.damaged) = (Some(other), None);
        }
        Ok(())
    }

    /// Makes `root` the newest. What it refers to is durable.
    pub(super) fn publish(&mut self, root: &Root) -> std::io::Result<()> {
        let certain = self.certain.unwrap_or(self.found);
        self.write(1 - certain, root)?;
        self.write(certain, root)
    }

    fn write(&self, slot: usize, root: &Root) -> std::io::Result<()> {
        let mut bytes = AlignedBuffer::new(BLOCK_BYTES);
        root.encode(&mut bytes);
        self.file.write_at(&bytes, (slot * BLOCK_BYTES) as u64)?;
        self.file.sync()
    }
}
