//! The places of keys among all, which nodes tell by how many entries lie below their children.

use super::pages::Pages;
use super::reference::NodeReference;
use crate::error::Result;

impl Pages {
    /// How many keys below a node on this level are less than `key`.
    pub(super) fn rank(&self, mut reference: NodeReference, mut level: u16, key: &[u8]) -> Result<u64> {
        let mut rank = 0u64;
        while level > 0 {
            let node = self.node(&reference, level)?;
            let index = node.child_index(key);
            let before =
                node.children(0).take(index).fold(0u64, |sum, child| sum.saturating_add(child.entries));
            rank = rank.saturating_add(before);
            reference = node.child(index);
            level -= 1;
        }
        let leaf = self.node(&reference, 0)?;
        Ok(rank.saturating_add(leaf.search(key).0 as u64))
    }

    /// The key below a node on this level that so many are less than.
    pub(super) fn key_at(
        &self,
        mut reference: NodeReference,
        mut level: u16,
        mut rank: u64,
    ) -> Result<Vec<u8>> {
        loop {
            let node = self.node(&reference, level)?;
            let wrong = || self.corrupted(node.block, "a node that has less entries than its parent says");
            if level == 0 {
                let index =
                    usize::try_from(rank).ok().filter(|&index| index < node.count()).ok_or_else(wrong)?;
                let mut key = Vec::new();
                node.key_into(index, &mut key);
                return Ok(key);
            }
            let child = node.children(0).find(|child| {
                let is_below = rank < child.entries;
                rank -= if is_below { 0 } else { child.entries };
                is_below
            });
            reference = child.ok_or_else(wrong)?;
            level -= 1;
        }
    }
}
