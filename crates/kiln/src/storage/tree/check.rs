//! Looks at everything, and accounts for every block.

use super::map;
use super::node::{Node, ValueIn};
use super::pages::Pages;
use super::reference::{BLOCK_FIRST, NodeReference};
use super::root::Root;
use super::space::{Bitmap, Run};
use crate::error::{Error, Result};
use crate::storage::record::NEVER;

/// What a whole tree was found to have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct TreeCheck {
    pub(crate) entries: u64,
    /// Bytes of the leaves' blocks.
    pub(crate) leaf_bytes: u64,
    /// The block of a leaf in which values expire, if there is one.
    pub(crate) expiring_leaf: Option<u64>,
    /// The block of a root slot that is damaged, if one of the two is.
    pub(crate) damaged_slot: Option<u64>,
}

/// A walk over everything.
struct Walk<'a> {
    pages: &'a Pages,
    seen: Bitmap,
    found: TreeCheck,
    value: Vec<u8>,
}

/// Checks a root that is held: that all its nodes and values are whole, in order, between their separators, and counted rightly; and that its
/// map says of exactly these blocks that they are used, each by one.
///
/// # Errors
/// What cannot be read, or is wrong, with its place.
pub(super) fn check(pages: &Pages, root: &Root) -> Result<TreeCheck> {
    let mut walk = Walk { pages, seen: Bitmap::default(), found: TreeCheck::default(), value: Vec::new() };
    if root.generation == 0 {
        return Ok(walk.found);
    }
    walk.use_run(Run { block: 0, blocks: BLOCK_FIRST })?;
    let size = pages.file().and_then(|file| file.size());
    let size = size.map_err(|error| Error::io(format_args!("reading {}", pages.name), error))?;
    let (entries, used) = map::read(pages, &root.directory, size)?;
    for run in map::runs(&root.directory, &entries) {
        walk.use_run(run)?;
    }
    if let Some((reference, level)) = root.top() {
        walk.node(&reference, level, &[], None)?;
    }
    if !walk.seen.is_same(&used) {
        return Err(pages.corrupted(root.directory.block, "blocks are called used that nothing uses"));
    }
    Ok(walk.found)
}

impl Walk<'_> {
    fn use_run(&mut self, run: Run) -> Result<()> {
        if self.seen.count_in(run) > 0 {
            return Err(self.pages.corrupted(run.block, "two use the same block"));
        }
        self.seen.put(run, true);
        Ok(())
    }

    fn node(&mut self, reference: &NodeReference, level: u16, low: &[u8], high: Option<&[u8]>) -> Result<()> {
        // Not from the cache: it is about what is on disk.
        let bytes = self.pages.read(reference.block, reference.blocks.into())?;
        let node = self.pages.check_level(self.pages.decode(reference, &bytes)?, level)?;
        self.use_run(Run { block: reference.block, blocks: reference.blocks.into() })?;
        let before = self.found.entries;
        if level == 0 {
            self.leaf(&node, low, high)?;
            self.found.leaf_bytes += bytes.len() as u64;
        } else {
            self.children(&node, low, high)?;
        }
        if self.found.entries - before != reference.entries {
            return Err(self
                .pages
                .corrupted(reference.block, "a node has not as many entries as its parent says"));
        }
        Ok(())
    }

    fn leaf(&mut self, leaf: &Node, low: &[u8], high: Option<&[u8]>) -> Result<()> {
        self.found.entries += leaf.count() as u64;
        let mut key = Vec::new();
        for index in 0..leaf.count() {
            leaf.key_into(index, &mut key);
            if &key[..] < low || high.is_some_and(|high| &key[..] >= high) {
                return Err(self.pages.corrupted(leaf.block, "a key is outside of its leaf's separators"));
            }
            if leaf.expires_at(index) != NEVER {
                self.found.expiring_leaf.get_or_insert(leaf.block);
            }
            if let ValueIn::There(reference) = leaf.value(index) {
                self.pages.read_value(&reference, &mut self.value)?;
                self.use_run(Run { block: reference.block, blocks: reference.blocks() })?;
            }
        }
        Ok(())
    }

    fn children(&mut self, node: &Node, low: &[u8], high: Option<&[u8]>) -> Result<()> {
        let (mut child_low, mut child_high) = (low.to_vec(), Vec::new());
        for index in 0..node.count() {
            let is_last = index + 1 == node.count();
            if !is_last {
                node.key_into(index + 1, &mut child_high);
            }
            let end = if is_last { high } else { Some(&child_high[..]) };
            if end.is_some_and(|end| end <= &child_low[..] && index > 0 || end < &child_low[..]) {
                return Err(self.pages.corrupted(node.block, "a separator is outside of its parent's"));
            }
            self.node(&node.child(index), node.level() - 1, &child_low, end)?;
            std::mem::swap(&mut child_low, &mut child_high);
        }
        Ok(())
    }
}
