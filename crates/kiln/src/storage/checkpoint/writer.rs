//! Writing a checkpoint's file, block after block, some blocks at a time.

use std::sync::Arc;

use super::{
    BLOCK_BYTES_USUAL, BlockHead, ESCAPE, HEAD_BYTES, Header, Section, SystemItem, UNFINISHED, identity_of,
    name_of,
};
use crate::device::{AlignedBuffer, BLOCK_BYTES, Device, DeviceFile, OpenMode};
use crate::planted::{Bug, planted};
use crate::storage::prefix::common_bytes;
use crate::storage::superblock::CheckpointName;

/// So much is written at once, or a block more: the disk is shared with all others, and each write waits its turn.
const WRITE_BYTES: usize = 1 << 20;

/// Writes a checkpoint's file.
pub(crate) struct Writer<'a> {
    device: &'a dyn Device,
    file: Arc<dyn DeviceFile>,
    identity: u32,
    buffer: AlignedBuffer,
    /// Where in the buffer the present block begins; before that are blocks that are whole.
    block: usize,
    /// What it is of, where it ends as yet, and its items.
    section: Section,
    used: usize,
    items: u32,
    /// The key before this one in the block, and its object, if there is one.
    last_object: Option<u32>,
    last_key: Vec<u8>,
    /// Blocks that are whole, and where the buffer goes.
    blocks: u32,
    offset: u64,
}

impl<'a> Writer<'a> {
    /// Begins the file of a database's checkpoint with this number.
    pub(crate) fn create(device: &'a dyn Device, database: u128, number: u64) -> std::io::Result<Writer<'a>> {
        if device.list()?.iter().any(|name| name == UNFINISHED) {
            device.remove(UNFINISHED)?;
        }
        Ok(Writer {
            device,
            file: device.open(UNFINISHED, OpenMode::Create)?,
            identity: identity_of(database, number),
            buffer: AlignedBuffer::new(BLOCK_BYTES),
            block: 0,
            section: Section::System,
            used: HEAD_BYTES,
            items: 0,
            last_object: None,
            last_key: Vec::new(),
            blocks: 0,
            offset: BLOCK_BYTES as u64,
        })
    }

    /// Bytes of the file so far.
    pub(crate) fn bytes(&self) -> u64 {
        self.offset + self.block as u64
    }

    pub(crate) fn add_system(&mut self, item: SystemItem<'_>) -> std::io::Result<()> {
        let lengths = [item.key.len() as u32, item.value.len() as u32];
        let [key_bytes, value_bytes] = lengths.map(u32::to_le_bytes);
        let (kind, number) = (item.kind.to_le_bytes(), item.number.to_le_bytes());
        self.begin_item(Section::System)?;
        [&kind[..], &key_bytes, &number, &value_bytes, item.key, item.value]
            .into_iter()
            .for_each(|part| self.put(part));
        Ok(())
    }

    /// Adds the entries of one bucket, of whose keys the hashes end with these bits.
    pub(crate) fn add_entries(&mut self, low_bits: u64, entries: &[u64]) -> std::io::Result<()> {
        // Their number has 16 bits.
        const COUNT_MAX: usize = 4_096;
        for part in entries.chunks(COUNT_MAX) {
            let head = [(low_bits as u16).to_le_bytes(), (part.len() as u16).to_le_bytes()];
            self.begin_item(Section::Entries)?;
            self.put(&head[0]);
            self.put(&head[1]);
            part.iter().for_each(|entry| self.put(&entry.to_le_bytes()));
        }
        Ok(())
    }

    /// Adds a key of a table. What it has in common with the one before it is not written again.
    pub(crate) fn add_key(&mut self, object: u32, key: &[u8]) -> std::io::Result<()> {
        const COMMON_MAX: usize = ESCAPE as usize - 1;
        self.begin_item(Section::Keys)?;
        let is_first = self.last_object != Some(object);
        let common = if is_first { 0 } else { common_bytes(&self.last_key, key).min(COMMON_MAX) };
        if is_first {
            self.put(&[ESCAPE]);
            self.put(&object.to_le_bytes());
            self.last_object = Some(object);
        }
        let rest = &key[common..];
        let length = rest.len().min(ESCAPE.into()) as u8;
        if is_first {
            self.put(&[length]);
        } else {
            self.put(&[common as u8, length]);
        }
        if length == ESCAPE {
            self.put(&(rest.len() as u32).to_le_bytes());
        }
        self.put(rest);
        self.last_key.truncate(common);
        self.last_key.extend_from_slice(rest);
        Ok(())
    }

    fn begin_item(&mut self, section: Section) -> std::io::Result<()> {
        if self.used - self.block >= BLOCK_BYTES_USUAL || section != self.section {
            self.end_block();
            self.section = section;
            if self.block >= WRITE_BYTES {
                self.write_blocks()?;
            }
        }
        self.items += 1;
        Ok(())
    }

    #[inline]
    fn put(&mut self, bytes: &[u8]) {
        let end = self.used + bytes.len();
        if end > self.buffer.len() {
            self.lengthen_buffer(end);
        }
        self.buffer[self.used..end].copy_from_slice(bytes);
        self.used = end;
    }

    #[cold]
    fn lengthen_buffer(&mut self, bytes: usize) {
        let mut larger = AlignedBuffer::new(bytes.next_power_of_two());
        larger[..self.used].copy_from_slice(&self.buffer[..self.used]);
        self.buffer = larger;
    }

    fn end_block(&mut self) {
        if self.items > 0 {
            let end = self.used.next_multiple_of(BLOCK_BYTES);
            let head = BlockHead {
                section: self.section as u32,
                length: (end - self.block) as u32,
                sequence: self.blocks.into(),
                items: self.items,
            };
            self.buffer[self.used..end].fill(0);
            head.encode(self.identity, &mut self.buffer[self.block..end]);
            self.block = end;
            self.blocks += 1;
            if self.buffer.len() < end + HEAD_BYTES {
                self.lengthen_buffer(end + HEAD_BYTES);
            }
        }
        (self.used, self.items, self.last_object) = (self.block + HEAD_BYTES, 0, None);
    }

    /// Writes the blocks that are whole. None may have begun behind them.
    fn write_blocks(&mut self) -> std::io::Result<()> {
        self.file.write_at(&self.buffer[..self.block], self.offset)?;
        self.offset += self.block as u64;
        (self.block, self.used) = (0, HEAD_BYTES);
        Ok(())
    }

    /// Writes what is left and the header, has all of it synced, and gives the file its name, which is not durable yet.
    /// Returns what the superblock is to say, and how long the file is.
    pub(crate) fn finish(mut self, mut header: Header) -> std::io::Result<(CheckpointName, u64)> {
        self.end_block();
        self.write_blocks()?;
        header.blocks = self.blocks;
        let mut block = AlignedBuffer::new(BLOCK_BYTES);
        let checksum = header.encode(&mut block);
        self.file.write_at(&block, 0)?;
        if !planted(Bug::CheckpointNotSynced) {
            self.file.sync()?;
        }
        self.device.rename(UNFINISHED, &name_of(header.number))?;
        Ok((CheckpointName { number: header.number, end: header.end, checksum }, self.offset))
    }
}
