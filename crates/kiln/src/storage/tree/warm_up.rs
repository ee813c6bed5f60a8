//! Leaves that come into memory before anybody asks for them, where there is room that nobody has a use for.

use super::Tree;
use super::reference::NodeReference;
use super::root::Root;
use crate::device::BLOCK_BYTES;
use crate::error::Result;

/// What a step has come to.
#[derive(Default)]
pub(crate) struct WarmUpStep {
    /// Bytes that were read.
    pub(crate) bytes: u64,
    /// Leaves that came into memory.
    pub(crate) leaves: u64,
    /// The key from which to go on; `None` if these were the last, or had no room.
    pub(crate) next: Option<Vec<u8>>,
}

impl Tree {
    /// Reads the leaves of one node above them, from that of a key on, as far as they are not in memory and all of them have room there. What cannot be read, or is damaged, is left to who asks
    /// for it. The caller is not pinned.
    pub(crate) fn warm_up(&self, key: &[u8]) -> WarmUpStep {
        // As long as it is held its blocks are nobody else's.
        let (cache, root) = (&self.pages.cache, self.root());
        let (mut leaves, next) = self.leaves_from(&root, key).unwrap_or_default();
        leaves.retain(|leaf| !cache.has(leaf));
        let blocks: u64 = leaves.iter().map(|leaf| u64::from(leaf.blocks)).sum();
        let bytes = blocks * BLOCK_BYTES as u64;
        if !cache.has_room(bytes.saturating_mul(self.memory_times())) {
            return WarmUpStep::default();
        }
        let read = self.read_leaves(&leaves).unwrap_or_default();
        let leaves = read.len() as u64;
        read.into_iter().for_each(|leaf| cache.insert(leaf));
        WarmUpStep { bytes, leaves, next }
    }

    /// The leaves of one node above them, from that of a key on, and the first key of the next such node.
    fn leaves_from(&self, root: &Root, key: &[u8]) -> Result<(Vec<NodeReference>, Option<Vec<u8>>)> {
        let Some((mut reference, mut level)) = root.top() else { return Ok((Vec::new(), None)) };
        let mut next = None;
        loop {
            if level == 0 {
                return Ok((vec![reference], next));
            }
            let node = self.pages.node_unasked(&reference, level)?;
            let index = node.child_index(key);
            if level == 1 {
                return Ok((node.children(index).collect(), next));
            }
            if index + 1 < node.count() {
                let behind: &mut Vec<u8> = next.insert(Vec::new());
                node.key_into(index + 1, behind);
            }
            (reference, level) = (node.child(index), level - 1);
        }
    }
}
