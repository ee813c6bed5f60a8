//! Nodes that are read before they are asked for: many at once, and those that lie side by side in one piece.

use std::ops::Range;
use std::sync::Arc;

use super::node::Node;
use super::pages::{Pages, Queue};
use super::reference::NodeReference;
use crate::device::{BLOCK_BYTES, READS_IN_FLIGHT_MAX};
use crate::error::Result;

/// What is read in one piece at most, unless one node is as long;
const PIECE_BLOCKS_MAX: u64 = 64;
/// and so many blocks between two nodes are read for nothing: less than a further read would cost.
const GAP_BLOCKS_MAX: u64 = 4;
/// So many pieces are in flight at most.
const PIECES_IN_FLIGHT_MAX: usize = 16;

const _: () = assert!(PIECES_IN_FLIGHT_MAX <= READS_IN_FLIGHT_MAX);

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
    fn forget(&mut self) {
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
        let Some(passed) = { rest }.position(|other| other.block == reference.block) else { return Ok(None) };
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
