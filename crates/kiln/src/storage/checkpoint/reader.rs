//! Reading a checkpoint's file, block after block. Nothing of it is believed before its checksum was compared, and no length
//! before there is so much.
//!
//! A copy of it is made of the blocks as they are read, each checked before it is written.

use std::io;
use std::sync::Arc;

use super::{
    BLOCK_BYTES_MAX, BlockHead, ESCAPE, HEAD_BYTES, HEADER_BYTES, Header, Section, SystemItem, identity_of,
    name_of,
};
use crate::device::{AlignedBuffer, BLOCK_BYTES, Device, DeviceFile, OpenMode};
use crate::error::{Error, Result};
use crate::storage::superblock::CheckpointName;

/// Reads a checkpoint's file, block after block.
#[derive(Clone)]
pub(crate) struct Reader {
    file: Arc<dyn DeviceFile>,
    pub(crate) name: String,
    pub(crate) header: Header,
    identity: u32,
    offset: u64,
    sequence: u64,
}

/// A block as it was read, yet to be checked.
#[derive(Default)]
pub(crate) struct Block {
    buffer: AlignedBuffer,
    head: BlockHead,
    length: usize,
    offset: u64,
    sequence: u64,
    identity: u32,
}

impl Reader {
    /// Opens the checkpoint that the superblock names; `None` if another engine has written it, in a format that this one does not know.
    ///
    /// # Errors
    /// `Corrupted` if it is not that one or its header is damaged, `Io` if it cannot be read.
    pub(crate) fn open(device: &dyn Device, database: u128, named: CheckpointName) -> Result<Option<Reader>> {
        let name = name_of(named.number);
        let described = device.describe(&name);
        let failed = |error| Error::io(format_args!("reading {described}"), error);
        let file = device.open(&name, OpenMode::Read).map_err(failed)?;
        let mut block = AlignedBuffer::new(BLOCK_BYTES);
        let read = file.read_at(&mut block, 0).map_err(failed)?;
        let corrupted = |what: &'static str| Error::corrupted(&described, 0, what);
        let Some((header, checksum)) = Header::decode(&block[..read]).map_err(corrupted)? else {
            return Ok(None);
        };
        let is_named = header.number == named.number && header.end == named.end && checksum == named.checksum;
        if !is_named || header.database != database {
            return Err(corrupted("this is not the checkpoint that the superblock names"));
        }
        if block[HEADER_BYTES..].iter().any(|&byte| byte != 0) {
            return Err(corrupted("a checkpoint's header is not filled up with zeros"));
        }
        let identity = identity_of(database, header.number);
        let offset = BLOCK_BYTES as u64;
        Ok(Some(Reader { file, name: described, header, identity, offset, sequence: 0 }))
    }

    /// Bytes of the file.
    ///
    /// # Errors
    /// `Io` if the device fails.
    pub(crate) fn size(&self) -> Result<u64> {
        self.file.size().map_err(|error| Error::io(format_args!("reading {}", self.name), error))
    }

    /// Reads the next block, if it says that it is of this section. It is yet to be checked.
    ///
    /// # Errors
    /// `Corrupted` if there is no block though there should be one, `Io` if the device fails.
    pub(crate) fn read(&mut self, section: Section, block: &mut Block) -> Result<bool> {
        if self.sequence == self.header.blocks.into() {
            return Ok(false);
        }
        block.read(&*self.file, self.offset, BLOCK_BYTES, 0).map_err(|error| self.failed(error))?;
        let head = BlockHead::decode(&block.buffer[..block.length]);
        let length = head.as_ref().map_or(0, |head| head.length as usize);
        let Some(head) = head.filter(|_| {
            length.is_multiple_of(BLOCK_BYTES) && (BLOCK_BYTES..=BLOCK_BYTES_MAX).contains(&length)
        }) else {
            return Err(Error::corrupted(&self.name, self.offset, "a checkpoint's block has no length"));
        };
        if head.section != section as u32 && head.section >= 1 && head.section <= Section::Keys as u32 {
            return Ok(false);
        }
        block.read(&*self.file, self.offset, length, BLOCK_BYTES).map_err(|error| self.failed(error))?;
        (block.head, block.sequence, block.identity) = (head, self.sequence, self.identity);
        self.offset += length as u64;
        self.sequence += 1;
        Ok(true)
    }

    /// Writes what is yet to be read under the checkpoint's name on another device, and syncs it; the name is not durable yet. False if it is damaged or
    /// cannot be read. It is worth nothing then, and is removed where that can be done: from a stream it cannot, and there it is a file that no
    /// superblock names.
    ///
    /// # Errors
    /// If the other device fails.
    pub(crate) fn copy_to(mut self, device: &dyn Device, written: &mut dyn FnMut(u64)) -> io::Result<bool> {
        let name = name_of(self.header.number);
        let target = device.open(&name, OpenMode::Create)?;
        let mut header = AlignedBuffer::new(BLOCK_BYTES);
        self.header.encode(&mut header);
        target.write_at(&header, 0)?;
        written(BLOCK_BYTES as u64);
        let (mut block, mut section) = (Block::default(), 0);
        loop {
            match self.read_checked(&mut section, &mut block) {
                Ok(true) => {
                    target.write_at(block.bytes(), block.offset)?;
                    written(block.length as u64);
                }
                Ok(false) => return target.sync().map(|()| true),
                Err(_) => break,
            }
        }
        drop(target);
        match device.remove(&name) {
            Err(error) if error.kind() != io::ErrorKind::Unsupported => Err(error),
            _ => Ok(false),
        }
    }

    /// Reads the next block, of the section with this index or a later one, and checks it; false behind the last one.
    fn read_checked(&mut self, section: &mut usize, block: &mut Block) -> Result<bool> {
        while let Some(&of) = Section::ALL.get(*section) {
            if self.read(of, block)? {
                return block.check(&self.name, of).map(|_| true);
            }
            *section += 1;
        }
        self.end().map(|()| false)
    }

    fn failed(&self, error: io::Error) -> Error {
        Error::io(format_args!("reading {} at offset {}", self.name, self.offset), error)
    }

    /// Sees to it that all blocks were read, and nothing follows them.
    ///
    /// # Errors
    /// `Corrupted` if not.
    pub(crate) fn end(&self) -> Result<()> {
        match self.sequence == u64::from(self.header.blocks) && self.size()? == self.offset {
            true => Ok(()),
            false => {
                Err(Error::corrupted(&self.name, self.offset, "the checkpoint does not end with its blocks"))
            }
        }
    }
}

impl Block {
    /// Reads `length` bytes at `offset`, of which the first `known` are there already.
    fn read(&mut self, file: &dyn DeviceFile, offset: u64, length: usize, known: usize) -> io::Result<()> {
        if self.buffer.len() < length {
            let mut larger = AlignedBuffer::for_reading(length.next_power_of_two());
            larger[..known].copy_from_slice(&self.buffer[..known]);
            self.buffer = larger;
        }
        let read = match length > known {
            true => file.read_at(&mut self.buffer[known..length], offset + known as u64)?,
            false => 0,
        };
        (self.length, self.offset) = (known + read, offset);
        Ok(())
    }

    /// As it was read.
    fn bytes(&self) -> &[u8] {
        &self.buffer[..self.length]
    }

    /// Checks the block, and has `act` take its items.
    ///
    /// # Errors
    /// `Corrupted`, with `file` and the block's offset, if the block is damaged or `act` says what is wrong with its items.
    pub(crate) fn apply<T>(
        &self,
        file: &str,
        section: Section,
        act: impl FnOnce(Items<'_>) -> Result<T, &'static str>,
    ) -> Result<T> {
        let offset = self.offset;
        act(self.check(file, section)?).map_err(|what| Error::corrupted(file, offset, what))
    }

    /// Checks the block and gives out its items: their number, and their bytes.
    ///
    /// # Errors
    /// `Corrupted`, with `file` and the block's offset.
    pub(crate) fn check(&self, file: &str, section: Section) -> Result<Items<'_>> {
        let offset = self.offset;
        let what = self.damage(section);
        match what {
            Some(what) => Err(Error::corrupted(file, offset, what)),
            None => Ok(Items::new(self.head.items, &self.buffer[HEAD_BYTES..self.length])),
        }
    }

    fn damage(&self, section: Section) -> Option<&'static str> {
        let head = &self.head;
        if head.length as usize != self.length {
            return Some("a checkpoint's block is cut short");
        }
        let block = self.bytes();
        let stored = u32::from_le_bytes(std::array::from_fn(|index| block[28 + index]));
        // The checksum is over the block with zeros in its own place.
        let parts = [&block[..28], &[0; 4], &block[HEAD_BYTES..]];
        if parts.into_iter().fold(self.identity, crc32c::crc32c_append) != stored {
            return Some("a checkpoint's block does not match its checksum");
        }
        let belongs = head.sequence == self.sequence && head.section == section as u32;
        (!belongs).then_some("a checkpoint's block belongs to another place")
    }
}

/// What is wrong with a block whose items make no sense, though its checksum holds.
pub(crate) const NO_ITEM: &str = "an item of a checkpoint makes no sense";

/// The items of a block that was checked.
pub(crate) struct Items<'a> {
    left: u32,
    bytes: &'a [u8],
    /// The last key that was given out, and its object.
    object: Option<u32>,
    key: Vec<u8>,
}

impl<'a> Items<'a> {
    fn new(left: u32, bytes: &'a [u8]) -> Items<'a> {
        Items { left, bytes, object: None, key: Vec::new() }
    }

    fn take(&mut self, bytes: usize) -> Result<&'a [u8], &'static str> {
        let (taken, rest) = self.bytes.split_at_checked(bytes).ok_or(NO_ITEM)?;
        self.bytes = rest;
        Ok(taken)
    }

    fn take_byte(&mut self) -> Result<u8, &'static str> {
        self.take(1).map(|byte| byte[0])
    }

    fn take_u32(&mut self) -> Result<u32, &'static str> {
        self.take(4)?.try_into().map(u32::from_le_bytes).map_err(|_| NO_ITEM)
    }

    /// True while there is one more. What follows the last one must be zeros.
    fn begin(&mut self) -> Result<bool, &'static str> {
        if self.left == 0 {
            let is_padded = self.bytes.len() < BLOCK_BYTES && self.bytes.iter().all(|&byte| byte == 0);
            return if is_padded { Ok(false) } else { Err(NO_ITEM) };
        }
        self.left -= 1;
        Ok(true)
    }

    /// The next item of the system's section.
    pub(crate) fn next_system(&mut self) -> Result<Option<SystemItem<'a>>, &'static str> {
        if !self.begin()? {
            return Ok(None);
        }
        let (kind, key_bytes) = (self.take_u32()?, self.take_u32()? as usize);
        let number = self.take(8)?.try_into().map(u64::from_le_bytes).map_err(|_| NO_ITEM)?;
        let value_bytes = self.take_u32()? as usize;
        Ok(Some(SystemItem { kind, number, key: self.take(key_bytes)?, value: self.take(value_bytes)? }))
    }

    /// The low bits of the hashes, and the entries, of the next bucket.
    pub(crate) fn next_bucket(
        &mut self,
    ) -> Result<Option<(u64, impl Iterator<Item = u64> + use<'a>)>, &'static str> {
        if !self.begin()? {
            return Ok(None);
        }
        let head = self.take_u32()?;
        let (entries, _) = self.take((head >> 16) as usize * 8)?.as_chunks::<8>();
        Ok(Some((u64::from(head & 0xFFFF), entries.iter().map(|entry| u64::from_le_bytes(*entry)))))
    }

    /// The object and the next of its keys.
    pub(crate) fn next_key(&mut self) -> Result<Option<(u32, &[u8])>, &'static str> {
        if !self.begin()? {
            return Ok(None);
        }
        let common = match self.take_byte()? {
            ESCAPE => {
                self.object = Some(self.take_u32()?);
                0
            }
            common => usize::from(common),
        };
        let (Some(object), true) = (self.object, common <= self.key.len()) else { return Err(NO_ITEM) };
        let rest = match self.take_byte()? {
            ESCAPE => self.take_u32()? as usize,
            rest => usize::from(rest),
        };
        let rest = self.take(rest)?;
        self.key.truncate(common);
        self.key.extend_from_slice(rest);
        Ok(Some((object, &self.key)))
    }
}
