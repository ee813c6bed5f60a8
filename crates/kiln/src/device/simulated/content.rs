//! The bytes of a simulated file: sparse, and cheap to copy.
//!
//! Blocks that hold only zeros are not stored, so allocating or zeroing a large file costs nothing, and
//! stored blocks are shared between copies until one of them is written. Invariant: nothing is stored
//! beyond `size`, except while a crash state is being put together and calls [`Content::set_size`] at the
//! end.

use std::collections::BTreeMap;
use std::sync::Arc;

use xxhash_rust::xxh3::{Xxh3, xxh3_128};

use crate::device::BLOCK_BYTES;
use crate::sync::OnceLock;

type Block = [u8; BLOCK_BYTES];

/// A block that is stored, and what it comes to in a hash once that was asked for: disks that a crash may leave have most of
/// their blocks in common.
#[derive(Debug)]
struct Stored {
    bytes: Block,
    hash: OnceLock<Option<u128>>,
}

impl Stored {
    fn new(bytes: Block) -> Arc<Stored> {
        Arc::new(Stored { bytes, hash: OnceLock::new() })
    }

    /// The bytes, to be changed.
    fn bytes_mut(&mut self) -> &mut Block {
        self.hash = OnceLock::new();
        &mut self.bytes
    }

    /// A hash of the bytes; of zeros none, since those need not be stored.
    fn hash(&self) -> Option<u128> {
        *self.hash.get_or_init(|| (self.bytes != ZEROS).then(|| xxh3_128(&self.bytes)))
    }
}

impl Clone for Stored {
    /// For who changes it: what it comes to is not known.
    fn clone(&self) -> Stored {
        Stored { bytes: self.bytes, hash: OnceLock::new() }
    }
}

static ZEROS: Block = [0; BLOCK_BYTES];

/// What a file holds.
#[derive(Clone, Debug, Default)]
pub(super) struct Content {
    size: u64,
    /// By block number; absent means zeros.
    blocks: BTreeMap<u64, Arc<Stored>>,
}

impl Content {
    pub(super) fn size(&self) -> u64 {
        self.size
    }

    /// Copies into `buffer` what lies at `offset`; returns the number of bytes before the file's end.
    pub(super) fn read(&self, buffer: &mut [u8], offset: u64) -> usize {
        let available = self.size.saturating_sub(offset);
        let length = usize::try_from(available).unwrap_or(usize::MAX).min(buffer.len());
        let mut done = 0;
        while done < length {
            let (number, start) = locate(offset + done as u64);
            let count = (BLOCK_BYTES - start).min(length - done);
            let block = self.blocks.get(&number).map_or(&ZEROS, |block| &block.bytes);
            buffer[done..done + count].copy_from_slice(&block[start..start + count]);
            done += count;
        }
        length
    }

    /// Puts `bytes` at `offset`, which does not change the size.
    pub(super) fn write(&mut self, bytes: &[u8], offset: u64) {
        let mut done = 0;
        while done < bytes.len() {
            let (number, start) = locate(offset + done as u64);
            let count = (BLOCK_BYTES - start).min(bytes.len() - done);
            self.write_in_block(number, start, &bytes[done..done + count]);
            done += count;
        }
    }

    fn write_in_block(&mut self, number: u64, start: usize, part: &[u8]) {
        if part == &ZEROS[..part.len()] {
            self.clear_in_block(number, start, part.len());
        } else if let Ok(whole) = Block::try_from(part) {
            self.blocks.insert(number, Stored::new(whole));
        } else {
            let block = self.blocks.entry(number).or_insert_with(|| Stored::new(ZEROS));
            Arc::make_mut(block).bytes_mut()[start..start + part.len()].copy_from_slice(part);
        }
    }

    fn clear_in_block(&mut self, number: u64, start: usize, count: usize) {
        if count == BLOCK_BYTES {
            self.blocks.remove(&number);
        } else if let Some(block) = self.blocks.get_mut(&number) {
            Arc::make_mut(block).bytes_mut()[start..start + count].fill(0);
        }
    }

    /// Sets the size; what lies beyond it is gone.
    pub(super) fn set_size(&mut self, size: u64) {
        let (number, start) = locate(size);
        let mut beyond = self.blocks.split_off(&number);
        if start > 0
            && let Some(mut last) = beyond.remove(&number)
        {
            Arc::make_mut(&mut last).bytes_mut()[start..].fill(0);
            self.blocks.insert(number, last);
        }
        self.size = size;
    }

    /// Makes the size at least `size`, keeping what lies beyond the old size.
    pub(super) fn grow(&mut self, size: u64) {
        self.size = self.size.max(size);
    }

    /// Adds size and bytes to a hash, whatever zeros are stored.
    pub(super) fn hash(&self, hash: &mut Xxh3) {
        hash.update(&self.size.to_le_bytes());
        for (number, block) in &self.blocks {
            if let Some(block) = block.hash() {
                hash.update(&number.to_le_bytes());
                hash.update(&block.to_le_bytes());
            }
        }
        hash.update(&u64::MAX.to_le_bytes());
    }

    /// Inverts one bit, if it lies within the file.
    pub(super) fn flip_bit(&mut self, bit: u64) {
        let mut byte = [0];
        if self.read(&mut byte, bit / 8) == 1 {
            byte[0] ^= 1 << (bit % 8);
            self.write(&byte, bit / 8);
        }
    }

    /// Replaces the part of `offset..offset + length` that lies within the file by zeros.
    pub(super) fn zero(&mut self, offset: u64, length: u64) {
        self.clear(offset, offset.saturating_add(length).min(self.size));
    }

    /// Replaces everything from `start` up to `end` by zeros, which does not change the size.
    pub(super) fn clear(&mut self, start: u64, end: u64) {
        let mut position = start;
        while position < end {
            let (number, start) = locate(position);
            let count = (BLOCK_BYTES - start).min(usize::try_from(end - position).unwrap_or(usize::MAX));
            self.clear_in_block(number, start, count);
            position += count as u64;
        }
    }
}

/// The block in which a byte lies, and where in it.
fn locate(offset: u64) -> (u64, usize) {
    let block = BLOCK_BYTES as u64;
    (offset / block, (offset % block) as usize)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[derive(Clone, Debug)]
    enum Change {
        Write(u64, Vec<u8>),
        SetSize(u64),
        Zero(u64, u64),
        FlipBit(u64),
    }

    fn change() -> impl Strategy<Value = Change> {
        let bytes = (any::<u8>(), 0..6000_usize).prop_map(|(byte, length)| vec![byte % 3; length]);
        prop_oneof![
            (0..20_000_u64, bytes).prop_map(|(offset, bytes)| Change::Write(offset, bytes)),
            (0..26_000_u64).prop_map(Change::SetSize),
            (0..26_000_u64, 0..9000_u64).prop_map(|(offset, length)| Change::Zero(offset, length)),
            (0..26_000 * 8_u64).prop_map(Change::FlipBit),
        ]
    }

    fn apply_to_model(model: &mut Vec<u8>, change: &Change) {
        match change {
            Change::Write(offset, bytes) => {
                let offset = *offset as usize;
                model.resize(model.len().max(offset + bytes.len()), 0);
                model[offset..offset + bytes.len()].copy_from_slice(bytes);
            }
            Change::SetSize(size) => model.resize(*size as usize, 0),
            Change::Zero(offset, length) => {
                let end = ((offset + length) as usize).min(model.len());
                let start = (*offset as usize).min(end);
                model[start..end].fill(0);
            }
            Change::FlipBit(bit) => {
                if let Some(byte) = model.get_mut((bit / 8) as usize) {
                    *byte ^= 1 << (bit % 8);
                }
            }
        }
    }

    proptest! {
        #[test]
        fn sparse_content_equals_a_plain_vector(changes in prop::collection::vec(change(), 1..30)) {
            let (mut content, mut model) = (Content::default(), Vec::new());
            for change in &changes {
                apply_to_model(&mut model, change);
                match change {
                    Change::Write(offset, bytes) => {
                        content.grow(offset + bytes.len() as u64);
                        content.write(bytes, *offset);
                    }
                    Change::SetSize(size) => content.set_size(*size),
                    Change::Zero(offset, length) => content.zero(*offset, *length),
                    Change::FlipBit(bit) => content.flip_bit(*bit),
                }
            }
            let mut bytes = vec![1; model.len() + 5000];
            prop_assert_eq!(content.read(&mut bytes, 0), model.len());
            prop_assert_eq!(content.size(), model.len() as u64);
            prop_assert_eq!(&bytes[..model.len()], &model[..]);
        }
    }
}
