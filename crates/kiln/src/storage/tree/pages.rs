//! The tree's file: reads of nodes and values, which are checked, and all its places in errors.

use std::io;
use std::sync::Arc;

use super::cache::Cache;
use super::node::Node;
use super::reference::{NodeReference, ValueReference};
use crate::device::{
    AlignedBuffer, BLOCK_BYTES, Device, DeviceFile, QueuedRead, READS_IN_FLIGHT_MAX, ReadQueue,
};
use crate::error::{Error, Result};
use crate::planted::{Bug, planted};
use crate::storage::names::Names;
use crate::sync::OnceLock;

/// The file's name.
pub(crate) const FILE: &str = "tree";
/// Its name while it is being made.
pub(crate) const UNFINISHED: &str = "tree.new";

/// Removes what somebody has left of a first tree who did not finish it. To be called before anybody merges.
pub(crate) fn remove_unfinished(device: &dyn Device) -> io::Result<()> {
    match device.list()?.iter().any(|name| name == UNFINISHED) {
        true => device.remove(UNFINISHED),
        false => Ok(()),
    }
}

/// True for both names.
pub(crate) fn is_tree(name: &str) -> bool {
    name == FILE || name == UNFINISHED
}

/// The file, and what is known of it in memory.
pub(super) struct Pages {
    pub(super) names: Arc<Names>,
    /// What errors call it.
    pub(super) name: String,
    /// There from the first merge on.
    file: OnceLock<Arc<dyn DeviceFile>>,
    pub(super) cache: Cache,
}

impl Pages {
    pub(super) fn new(names: Arc<Names>, name: String, cache_bytes: usize) -> Result<Pages> {
        let no_memory = |error| Error::io("allocating memory for the pages of settled rows", error);
        let cache = Cache::new(cache_bytes).map_err(no_memory)?;
        Ok(Pages { names, name, file: OnceLock::new(), cache })
    }

    /// Of a file that is written once, with everything in it.
    pub(super) fn of_copy(names: Arc<Names>, name: String, file: Arc<dyn DeviceFile>) -> Result<Pages> {
        let pages = Pages::new(names, name, 0)?;
        pages.set_file(file);
        Ok(pages)
    }

    /// Has the queues for reads.
    pub(super) fn device(&self) -> &dyn Device {
        &**self.names.device()
    }

    /// The file; what refers to something in it has been read from it, or written to it.
    pub(super) fn file(&self) -> io::Result<&Arc<dyn DeviceFile>> {
        self.file.get().ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    pub(super) fn has_file(&self) -> bool {
        self.file.get().is_some()
    }

    /// Sets the file, once.
    pub(super) fn set_file(&self, file: Arc<dyn DeviceFile>) {
        let is_first = self.file.set(file).is_ok();
        assert!(is_first, "a tree has one file");
    }

    pub(super) fn corrupted(&self, block: u64, what: &str) -> Error {
        self.names.corrupted(&self.name, block.saturating_mul(BLOCK_BYTES as u64), what)
    }

    /// Reads a node, or finds it in memory. The caller is not pinned.
    pub(super) fn node(&self, reference: &NodeReference, level: u16) -> Result<Arc<Node>> {
        match self.node_in_memory(reference, level) {
            Some(node) => node,
            None => self.read_node(reference, level),
        }
    }

    /// Finds a node, if it is in memory.
    pub(super) fn node_in_memory(&self, reference: &NodeReference, level: u16) -> Option<Result<Arc<Node>>> {
        let node = self.cache.get(reference)?;
        if level == 0 {
            self.cache.note_hit();
        }
        Some(self.check_level(node, level))
    }

    /// The same on a way for which nobody has asked: it does not count, and a leaf stays in memory only if there is room for it. The caller is not pinned.
    pub(super) fn node_unasked(&self, reference: &NodeReference, level: u16) -> Result<Arc<Node>> {
        if let Some(node) = self.cache.get(reference) {
            return self.check_level(node, level);
        }
        let bytes = self.read(reference.block, reference.blocks.into())?;
        let node = self.check_level(self.decode(reference, &bytes)?, level)?;
        // The nodes above are needed for the next leaf, too.
        if level > 0 || self.cache.has_room(node.memory_bytes()) {
            self.cache.insert(Arc::clone(&node));
        }
        Ok(node)
    }

    /// Reads a node that is not in memory. The caller is not pinned.
    pub(super) fn read_node(&self, reference: &NodeReference, level: u16) -> Result<Arc<Node>> {
        let bytes = self.read(reference.block, reference.blocks.into())?;
        self.admit(reference, &bytes, level)
    }

    /// Checks a node that has been read for who asked for it, and keeps it in memory. The caller is not pinned.
    pub(super) fn admit(&self, reference: &NodeReference, bytes: &[u8], level: u16) -> Result<Arc<Node>> {
        self.cache.note_miss();
        let node = self.check_level(self.decode(reference, bytes)?, level)?;
        self.cache.insert(Arc::clone(&node));
        Ok(node)
    }

    /// Checks a node's contents.
    pub(super) fn decode(&self, reference: &NodeReference, bytes: &[u8]) -> Result<Arc<Node>> {
        let failed = |what: &str| self.corrupted(reference.block, what);
        if crc32c::crc32c(bytes) != reference.checksum && !planted(Bug::NodeChecksumIgnored) {
            return Err(failed("a node's checksum is not the one that its parent has"));
        }
        let node =
            Node::decode(self.cache.frames(), reference.block, reference.checksum, bytes).map_err(failed)?;
        Ok(Arc::new(node))
    }

    pub(super) fn check_level(&self, node: Arc<Node>, level: u16) -> Result<Arc<Node>> {
        if node.level() == level {
            Ok(node)
        } else {
            Err(self.corrupted(node.block, "a node on a level that is not its own"))
        }
    }

    /// Reads whole blocks.
    pub(super) fn read(&self, block: u64, blocks: u64) -> Result<AlignedBuffer> {
        let bytes = blocks as usize * BLOCK_BYTES;
        let mut buffer = AlignedBuffer::for_reading(bytes);
        let read = self.file().and_then(|file| file.read_at(&mut buffer, block * BLOCK_BYTES as u64));
        self.check_read(block, bytes, read)?;
        Ok(buffer)
    }

    fn check_read(&self, block: u64, bytes: usize, read: io::Result<usize>) -> Result<()> {
        match read {
            Ok(read) if read >= bytes => Ok(()),
            Ok(_) => Err(self.corrupted(block, "the file ends before what should be there")),
            Err(error) => Err(Error::io(format_args!("reading {}", self.name), error)),
        }
    }

    /// Reads whole blocks at many places at once.
    pub(super) fn read_many(
        &self,
        queue: &mut Queue,
        references: &[NodeReference],
    ) -> Result<Vec<AlignedBuffer>> {
        let mut buffers = vec![AlignedBuffer::default(); references.len()];
        let done = self.read_in_flight(queue, references, &mut buffers);
        if done.is_err() {
            // What is still in flight is of no use to who asks next.
            queue.0 = None;
        }
        done.map(|()| buffers)
    }

    fn read_in_flight(
        &self,
        queue: &mut Queue,
        references: &[NodeReference],
        buffers: &mut [AlignedBuffer],
    ) -> Result<()> {
        let mut next = references.iter().enumerate();
        let mut in_flight = 0;
        loop {
            while in_flight < READS_IN_FLIGHT_MAX
                && let Some((index, reference)) = next.next()
            {
                self.submit(queue, (reference.block, reference.blocks.into()), index)?;
                in_flight += 1;
            }
            if in_flight == 0 {
                return Ok(());
            }
            let (index, buffer) = self.wait(queue, |index| references[index].block)?;
            in_flight -= 1;
            buffers[index] = buffer;
        }
    }

    /// Begins to read whole blocks, which come back with `token`.
    pub(super) fn submit(&self, queue: &mut Queue, (block, blocks): (u64, u64), token: usize) -> Result<()> {
        let failed = |error| Error::io(format_args!("reading {}", self.name), error);
        queue.get(self.device()).submit(QueuedRead {
            file: Arc::clone(self.file().map_err(failed)?),
            offset: block * BLOCK_BYTES as u64,
            buffer: AlignedBuffer::for_reading(blocks as usize * BLOCK_BYTES),
            token: token as u64,
        });
        Ok(())
    }

    /// Waits for what was submitted; where it begins its token tells.
    pub(super) fn wait(
        &self,
        queue: &mut Queue,
        block_of: impl FnOnce(usize) -> u64,
    ) -> Result<(usize, AlignedBuffer)> {
        let done = queue.get(self.device()).wait();
        let nothing = || Error::io(format_args!("reading {}", self.name), io::ErrorKind::Other.into());
        let done = done.ok_or_else(nothing)?;
        let token = done.token as usize;
        self.check_read(block_of(token), done.buffer.len(), done.outcome)?;
        Ok((token, done.buffer))
    }

    /// Replaces `value` by a value that has blocks of its own, from disk.
    pub(super) fn read_value(&self, reference: &ValueReference, value: &mut Vec<u8>) -> Result<()> {
        let buffer = self.read(reference.block, reference.blocks())?;
        self.check_value(reference, &buffer)?;
        buffer[..reference.bytes as usize].clone_into(value);
        Ok(())
    }

    /// Checks the whole blocks of a value.
    pub(super) fn check_value(&self, reference: &ValueReference, blocks: &[u8]) -> Result<()> {
        let bytes = blocks.get(..reference.bytes as usize);
        match bytes.is_some_and(|bytes| crc32c::crc32c(bytes) == reference.checksum) {
            true => Ok(()),
            false => {
                Err(self.corrupted(reference.block, "a value's checksum is not the one that its leaf has"))
            }
        }
    }
}

/// A queue for reads, made when it is needed first. One in which a read failed is given up with what is in flight.
#[derive(Default)]
pub(super) struct Queue(Option<Box<dyn ReadQueue>>);

impl Queue {
    fn get(&mut self, device: &dyn Device) -> &mut dyn ReadQueue {
        &mut **self.0.get_or_insert_with(|| device.read_queue())
    }

    /// Whether this process may use it.
    pub(super) fn is_here(&self) -> bool {
        self.0.as_ref().is_none_or(|queue| queue.is_here())
    }
}
