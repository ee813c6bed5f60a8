//! Writing a checkpoint's file, block after block.

use std::sync::Arc;

use super::{
    BLOCK_BYTES_USUAL, BlockHead, HEAD_BYTES, Header, Section, SystemItem, UNFINISHED, identity_of, name_of,
};
use crate::device::{AlignedBuffer, BLOCK_BYTES, Device, DeviceFile, OpenMode};
use crate::planted::{Bug, planted};
use crate::storage::superblock::CheckpointName;

/// Writes a checkpoint's file.
pub(crate) struct Writer<'a> {
    device: &'a dyn Device,
    file: Arc<dyn DeviceFile>,
    identity: u32,
    buffer: AlignedBuffer,
    section: Section,
    /// Bytes and items in the buffer.
    used: usize,
    items: u32,
    /// Blocks that were written, and where the next one goes.
    blocks: u64,
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
            section: Section::System,
            used: HEAD_BYTES,
            items: 0,
            blocks: 0,
            offset: BLOCK_BYTES as u64,
        })
    }

    /// Bytes that were written so far.
    pub(crate) fn written_bytes(&self) -> u64 {
        self.offset
    }

    pub(crate) fn add_system(&mut self, item: SystemItem<'_>) -> std::io::Result<()> {
        let lengths = [item.key.len() as u32, item.value.len() as u32];
        let [key_bytes, value_bytes] = lengths.map(u32::to_le_bytes);
        let (kind, number) = (item.kind.to_le_bytes(), item.number.to_le_bytes());
        self.add(Section::System, &[&kind, &key_bytes, &number, &value_bytes, item.key, item.value])
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

    pub(crate) fn add_key(&mut self, object: u32, key: &[u8]) -> std::io::Result<()> {
        let key_bytes = (key.len() as u32).to_le_bytes();
        self.add(Section::Keys, &[&object.to_le_bytes(), &key_bytes, key])
    }

    fn add(&mut self, section: Section, parts: &[&[u8]]) -> std::io::Result<()> {
        self.begin_item(section)?;
        parts.iter().for_each(|part| self.put(part));
        Ok(())
    }

    fn begin_item(&mut self, section: Section) -> std::io::Result<()> {
        if self.used >= BLOCK_BYTES_USUAL || section != self.section {
            self.write_block()?;
            self.section = section;
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

    fn write_block(&mut self) -> std::io::Result<()> {
        if self.items > 0 {
            let length = self.used.next_multiple_of(BLOCK_BYTES);
            let head = BlockHead {
                section: self.section as u32,
                length: length as u32,
                sequence: self.blocks,
                items: self.items,
            };
            self.buffer[self.used..length].fill(0);
            head.encode(self.identity, &mut self.buffer[..length]);
            self.file.write_at(&self.buffer[..length], self.offset)?;
            self.offset += length as u64;
            self.blocks += 1;
        }
        (self.used, self.items) = (HEAD_BYTES, 0);
        Ok(())
    }

    /// Writes what is left and the header, has all of it synced, and gives the file its name, which is not durable yet.
    /// Returns what the superblock is to say, and how long the file is.
    pub(crate) fn finish(mut self, mut header: Header) -> std::io::Result<(CheckpointName, u64)> {
        self.write_block()?;
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
