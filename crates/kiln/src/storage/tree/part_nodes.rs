//! What comes of a part of a merge, until all are put together.

use super::merge::Merged;
use super::pending::Pending;
use super::reference::NodeReference;

/// A part writes nodes up to this level.
pub(super) const PART_LEVEL: u16 = 1;
/// What is known of its nodes from its first change on takes so much memory at most, or a little more: then it ends for this root.
const NODES_BYTES_MAX: usize = if cfg!(test) { 8 << 10 } else { 8 << 20 };

/// A node that a part has written, or leaves as it is, with all below.
pub(super) struct PartNode {
    pub(super) level: u16,
    pub(super) low: Vec<u8>,
    /// Where what it may have ends, as far as it is known.
    pub(super) high: Option<Vec<u8>>,
    pub(super) reference: NodeReference,
    /// This merge has written it.
    pub(super) is_fresh: bool,
}

/// The nodes of a part, in order.
#[derive(Default)]
pub(super) struct PartNodes {
    nodes: Vec<PartNode>,
    /// Of all that have come since it began, also of those that were taken away.
    bytes: usize,
    has_begun: bool,
}

impl PartNodes {
    pub(super) fn push(&mut self, node: PartNode) {
        self.bytes += node.bytes();
        self.nodes.push(node);
    }

    /// Takes the last one away, if it is of this level and not written by this merge.
    pub(super) fn pop_kept(&mut self, level: u16) -> Option<PartNode> {
        self.nodes.pop_if(|node| node.level == level && !node.is_fresh)
    }

    /// A change has been merged. What was kept before it is as much for each root: if that counted, one root after the other could come to nothing.
    pub(super) fn begin(&mut self) {
        if !std::mem::replace(&mut self.has_begun, true) {
            self.bytes = 0;
        }
    }

    /// True if there can be no more for one root. It stays so: a change that was passed over must not come behind what follows.
    pub(super) fn is_full(&self) -> bool {
        self.has_begun && self.bytes >= NODES_BYTES_MAX
    }
}

impl PartNode {
    fn bytes(&self) -> usize {
        size_of::<PartNode>() + self.low.len() + self.high.as_ref().map_or(0, Vec::len)
    }
}

/// What comes of a part.
pub(super) struct MadePart {
    pub(super) nodes: PartNodes,
    /// What comes behind them, and is not enough for a node of [`PART_LEVEL`], or for two.
    pub(super) rest: Pending,
    pub(super) merged: Merged,
    pub(super) has_packed: bool,
}

impl IntoIterator for PartNodes {
    type Item = PartNode;
    type IntoIter = std::vec::IntoIter<PartNode>;

    fn into_iter(self) -> Self::IntoIter {
        self.nodes.into_iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A node that was kept before the first change was taken away, and there was room again, behind changes that had been passed over.
    #[test]
    fn a_part_that_is_full_stays_full() {
        let mut nodes = PartNodes::default();
        let kept = || PartNode {
            level: PART_LEVEL,
            low: Vec::new(),
            high: Some(vec![b'k'; NODES_BYTES_MAX]),
            reference: NodeReference::default(),
            is_fresh: false,
        };
        nodes.push(kept());
        assert!(!nodes.is_full(), "it comes to a change");
        nodes.begin();
        assert!(!nodes.is_full(), "what came before does not count");
        nodes.push(kept());
        nodes.begin();
        assert!(nodes.is_full());
        while nodes.pop_kept(PART_LEVEL).is_some() {
            assert!(nodes.is_full());
        }
    }
}
