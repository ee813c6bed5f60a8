//! Nodes that are read before they are asked for, many at once: those that a walk comes to, where they lie side by side in one piece; and the
//! leaves of many keys, wherever they lie.

use std::ops::Range;
use std::sync::Arc;

use super::Tree;
use super::node::Node;
use super::pages::{Pages, Queue};
use super::reference::NodeReference;
use super::root::Root;
use crate::device::{BLOCK_BYTES, READ_QUEUES_KEPT_MAX, READS_IN_FLIGHT_MAX};
use crate::error::Result;
use crate::storage::epoch;

/// What is read in one piece at most, unless one node is as long;
const PIECE_BLOCKS_MAX: u64 = 64;
/// and so many blocks between two nodes are read for nothing: less than a further read would cost.
const GAP_BLOCKS_MAX: u64 = 4;
/// So many pieces are in flight at most.
const PIECES_IN_FLIGHT_MAX: usize = 16;

const _: () = assert!(PIECES_IN_FLIGHT_MAX <= READS_IN_FLIGHT_MAX);

/// Leaves that are read for many keys may take such a part of the cache: so each is still there when its key's turn comes, unless many
/// batches share a small cache; then some are read twice.
const LEAVES_PART: u64 = 4;
/// A tree of which more than such a part is in memory is not worth a look at each key ahead of its turn.
const ON_DISK_PART: u64 = 8;

/// Nodes of one level that are being read.
#[derive(Default)]
pub(super) struct NodesAhead {
    queue: Queue,
    level: u16,
    references: Vec<NodeReference>,
    /// What has been read of them, and not been taken.
    nodes: Vec<Option<Arc<Node>>>,
    /// Their places among the references, in the order of the file.
    order: Vec<usize>,
    /// Parts of that order which are read in one piece each.
    pieces: Vec<Range<usize>>,
    /// So many pieces have begun, of which so many are not done.
    begun: usize,
    in_flight: usize,
    /// So many references have been taken, or passed over.
    taken: usize,
}

impl NodesAhead {
    /// Begins to read nodes. What is left of others is forgotten.
    ///
    /// # Errors
    /// `Io`, if there is no file.
    pub(super) fn begin(
        &mut self,
        pages: &Pages,
        references: impl Iterator<Item = NodeReference>,
        level: u16,
    ) -> Result<()> {
        self.forget();
        self.level = level;
        self.references.extend(references);
        self.nodes.resize(self.references.len(), None);
        self.order.extend(0..self.references.len());
        self.order.sort_unstable_by_key(|&place| self.references[place].block);
        let mut start = 0;
        for next in 1..=self.order.len() {
            if next == self.order.len() || !self.is_in_piece(start, next) {
                self.pieces.push(start..next);
                start = next;
            }
        }
        self.submit(pages)
    }

    /// Forgets what was not taken.
    pub(super) fn forget(&mut self) {
        if self.in_flight > 0 {
            self.queue = Queue::default();
        }
        self.references.clear();
        self.nodes.clear();
        self.order.clear();
        self.pieces.clear();
        (self.begun, self.in_flight, self.taken) = (0, 0, 0);
    }

    /// True if the piece that begins with the one reference may have the other, too, and all between them.
    fn is_in_piece(&self, start: usize, next: usize) -> bool {
        let [first, before, next] = [start, next - 1, next].map(|at| &self.references[self.order[at]]);
        let (end, next_end) = (before.block + u64::from(before.blocks), next.block + u64::from(next.blocks));
        next.block >= end && next.block - end <= GAP_BLOCKS_MAX && next_end - first.block <= PIECE_BLOCKS_MAX
    }

    /// The blocks of a piece.
    fn blocks_of(&self, piece: usize) -> (u64, u64) {
        let Range { start, end } = self.pieces[piece];
        let [first, last] = [start, end - 1].map(|at| &self.references[self.order[at]]);
        (first.block, last.block + u64::from(last.blocks) - first.block)
    }

    fn submit(&mut self, pages: &Pages) -> Result<()> {
        while self.in_flight < PIECES_IN_FLIGHT_MAX && self.begun < self.pieces.len() {
            let blocks = self.blocks_of(self.begun);
            pages.submit(&mut self.queue, blocks, self.begun)?;
            self.begun += 1;
            self.in_flight += 1;
        }
        Ok(())
    }

    /// The node of a reference, once it has been read; `None` if it is not among those that are read. Nodes are taken in the order of the references.
    ///
    /// # Errors
    /// `Io` and `Corrupted`, naming file and offset, of this node or another one; then all are forgotten.
    pub(super) fn take(&mut self, pages: &Pages, reference: &NodeReference) -> Result<Option<Arc<Node>>> {
        let rest = self.references[self.taken..].iter();
        let Some(passed) = { rest }.position(|other| other == reference) else { return Ok(None) };
        let place = self.taken + passed;
        while self.nodes[place].is_none() {
            if let Err(error) = self.wait(pages) {
                self.forget();
                return Err(error);
            }
        }
        self.taken = place + 1;
        Ok(self.nodes[place].take())
    }

    /// Waits for a piece, and takes it apart.
    fn wait(&mut self, pages: &Pages) -> Result<()> {
        let (pieces, order, references) = (&self.pieces, &self.order, &self.references);
        let block_of = |piece: usize| references[order[pieces[piece].start]].block;
        let (piece, bytes) = pages.wait(&mut self.queue, block_of)?;
        self.in_flight -= 1;
        let begin = block_of(piece);
        for &place in &order[pieces[piece].clone()] {
            let reference = &references[place];
            let start = (reference.block - begin) as usize * BLOCK_BYTES;
            let node = pages.decode(reference, &bytes[start..][..reference.blocks as usize * BLOCK_BYTES])?;
            self.nodes[place] = Some(pages.check_level(node, self.level)?);
        }
        self.submit(pages)
    }

    /// Reads nodes, and waits for all of them.
    ///
    /// # Errors
    /// As of [`Self::take`].
    pub(super) fn read_all(
        &mut self,
        pages: &Pages,
        references: &[NodeReference],
        level: u16,
    ) -> Result<Vec<Arc<Node>>> {
        self.begin(pages, references.iter().copied(), level)?;
        let mut nodes = Vec::with_capacity(references.len());
        for reference in references {
            nodes.extend(self.take(pages, reference)?);
        }
        Ok(nodes)
    }
}

/// Leaves of keys that are going to be looked up, as far as they are not in memory. Reading them has no effect but on speed: what cannot be read, or is
/// damaged, is left to who looks the key up.
pub(crate) struct LeavesAhead<'t> {
    tree: &'t Tree,
    root: Arc<Root>,
    wanted: Vec<NodeReference>,
    /// The cache has room for so many bytes more.
    room: u64,
}

impl Tree {
    /// True if so much of the tree is on disk alone that it is worth looking [ahead](Self::leaves_ahead); or may be, if it has packed leaves, or values
    /// with blocks of their own, which take less in memory than on disk, and do not stay there if they are long.
    pub(crate) fn is_partly_on_disk(&self) -> bool {
        let bytes = self.used_bytes().saturating_mul(self.memory_times());
        self.pages.cache.bytes() < bytes - bytes / ON_DISK_PART
    }

    /// Lends a queue, which is kept for the next who reads: it costs as much as a read to make one. In a process that was forked
    /// its parent's are given up.
    pub(super) fn with_queue<T>(&self, read: impl FnOnce(&mut Queue) -> T) -> T {
        let kept = self.queues.lock().pop();
        let mut queue = kept.filter(Queue::is_here).unwrap_or_default();
        let result = read(&mut queue);
        let mut queues = self.queues.lock();
        if queues.len() < READ_QUEUES_KEPT_MAX {
            queues.push(queue);
        }
        result
    }

    /// Reads leaves, all at once, and waits for them; they are not kept in memory.
    ///
    /// # Errors
    /// As of [`NodesAhead::take`].
    pub(super) fn read_leaves(&self, references: &[NodeReference]) -> Result<Vec<Arc<Node>>> {
        self.with_queue(|queue| {
            let mut ahead = NodesAhead { queue: std::mem::take(queue), ..NodesAhead::default() };
            let read = ahead.read_all(&self.pages, references, 0);
            ahead.forget();
            *queue = ahead.queue;
            read
        })
    }

    /// For who is going to look many keys up.
    pub(crate) fn leaves_ahead(&self) -> LeavesAhead<'_> {
        let room = self.pages.cache.budget() / LEAVES_PART / self.memory_times();
        LeavesAhead { tree: self, root: self.root(), wanted: Vec::new(), room }
    }
}

impl LeavesAhead<'_> {
    /// A key is going to be looked up. An inner node that is not in memory is read at once. The caller is not pinned.
    pub(crate) fn want(&mut self, key: &[u8]) {
        if self.room < BLOCK_BYTES as u64 {
            return;
        }
        if let Some(leaf) = self.leaf_on_disk(key)
            && let bytes = u64::from(leaf.blocks) * BLOCK_BYTES as u64
            && bytes <= self.room
        {
            self.room -= bytes;
            self.wanted.push(leaf);
        }
    }

    /// The leaf of a key, if it is not in memory.
    fn leaf_on_disk(&self, key: &[u8]) -> Option<NodeReference> {
        let reference = self.tree.leaf_of(&self.root, key).ok()??;
        let is_in_memory = self.tree.pages.cache.find(&epoch::pin(), &reference).is_some();
        let is_wanted = || self.wanted.iter().any(|other| other.block == reference.block);
        (!is_in_memory && !is_wanted()).then_some(reference)
    }

    /// Reads what is wanted, all at once, and waits for it. The caller is not pinned.
    pub(crate) fn read(self) {
        // One alone is read by who looks it up.
        let ([_, _, ..], pages) = (&self.wanted[..], &self.tree.pages) else { return };
        let read = self.tree.with_queue(|queue| pages.read_many(queue, &self.wanted));
        for (reference, bytes) in self.wanted.iter().zip(read.unwrap_or_default()) {
            if let Ok(leaf) = pages.admit(reference, &bytes, 0) {
                // It is yet to be looked at, and stays until then.
                leaf.note_use();
            }
        }
    }
}
