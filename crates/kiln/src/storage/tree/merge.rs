//! Merging: from a root and sorted changes to the next root.
//!
//! The old tree is walked once, in order, only where changes are; everything else is taken over by its reference. What comes out
//! goes, level by level, into [`Pending`] entries, of which nodes are made as they are full:
//!
//! ```text
//!  old leaf + changes ──▶ pending level 0 ──▶ new leaves ──┐
//!  untouched leaves ───────────────────────────────────────┴▶ pending level 1 ──▶ new inner nodes ──▶ ... ──▶ root
//! ```
//!
//! Between an untouched node and what is pending on its level there must be a cut. If little is pending, then the neighbour is opened and
//! joins it: the next one, or the one before. (Siblings of another parent are not looked for: what stays small is small once a parent.)
//! Nothing is changed in place, so a merge that fails leaves the old root as it was.
//!
//! What a merge replaces cannot be written over before the new root is durable. So once it has replaced as much as it may it takes no more
//! changes, and all that follows over as it is: the rest is for the next merge.

use std::sync::Arc;

use super::ahead::NodesAhead;
use super::blocks::Blocks;
use super::changes::{Change, Changes, NoChanges};
use super::interval::{EVERYTHING, Interval};
use super::node::{HEIGHT_MAX, KEY_BYTES_MAX, Node, ValueIn};
use super::output::Output;
use super::packed::Packer;
use super::pages::Pages;
use super::part_nodes::{MadePart, PART_LEVEL, PartNode, PartNodes};
use super::pending::Pending;
use super::reference::{NODE_BLOCKS_MAX, NodeReference, VALUE_BYTES_MAX, ValueReference};
use super::root::Root;
use super::space::Run;
use crate::device::BLOCK_BYTES;
use crate::error::Result;

/// What a node shall have.
const NODE_BYTES: usize = 2 * BLOCK_BYTES;
/// What a leaf shall have that is to be packed: enough for a block to be saved.
const PACKED_LEAF_BYTES: usize = 2 * NODE_BYTES;
/// A packed leaf takes a block at least.
pub(super) const PACKED_TIMES_MAX: u64 = (PACKED_LEAF_BYTES / BLOCK_BYTES) as u64;
/// What has less than this part of it is joined with a neighbour.
const NODE_BYTES_MIN_PART: usize = 3;
/// A longer value gets blocks of its own.
pub(super) const INLINE_BYTES_MAX: usize = NODE_BYTES / 4;

/// What a merge comes to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Merged {
    /// Bytes that it wrote.
    pub(crate) bytes: u64,
    /// Keys that got a value.
    pub(crate) put: u64,
    /// Keys that had a value and have none any more.
    pub(crate) deleted: u64,
}

impl Merged {
    /// Adds what a further merge comes to.
    pub(super) fn add(&mut self, other: Merged) {
        self.bytes += other.bytes;
        self.put += other.put;
        self.deleted += other.deleted;
    }
}

/// The nodes of the next root, and how they came about.
pub(super) struct NewNodes {
    pub(super) node: NodeReference,
    pub(super) height: u16,
    pub(super) merged: Merged,
    /// A leaf was packed.
    pub(super) has_packed: bool,
}

impl NewNodes {
    /// Those of the root before.
    pub(super) fn of(root: &Root) -> NewNodes {
        NewNodes { node: root.node, height: root.height, merged: Merged::default(), has_packed: false }
    }
}

/// A merge under way, or a [part](super::parts) of one.
pub(super) struct Merger<'a, 'o> {
    pages: &'a Pages,
    output: &'a mut Output<'o>,
    blocks: &'a mut dyn Blocks,
    levels: Vec<Pending>,
    /// What it begins with.
    root: &'a Root,
    /// Leaves that were not in the cache, and will be needed soon.
    ahead: &'a mut NodesAhead,
    merged: Merged,
    /// Packs leaves, if that is wanted.
    packer: Option<Packer>,
    /// A leaf was packed.
    has_packed: bool,
    /// The node of the old tree that is being merged was in the cache: what replaces it goes there, too.
    is_warm: bool,
    /// Blocks of leaves and values that are replaced; how many there may be before it stops.
    replaced_blocks: u64,
    replaced_blocks_max: u64,
    /// The keys that it merges: all of them, or a part's.
    interval: &'a Interval,
    /// Of a part: its nodes of [`PART_LEVEL`] and above.
    part: Option<PartNodes>,
}

impl<'a, 'o> Merger<'a, 'o> {
    pub(super) fn new(
        pages: &'a Pages,
        (output, blocks, ahead): (&'a mut Output<'o>, &'a mut dyn Blocks, &'a mut NodesAhead),
        root: &'a Root,
        interval: Option<&'a Interval>,
        replaced_blocks_max: u64,
        packs: bool,
    ) -> Self {
        Merger {
            pages,
            output,
            blocks,
            levels: Vec::new(),
            root,
            ahead,
            merged: Merged::default(),
            packer: packs.then(Packer::default),
            has_packed: false,
            is_warm: false,
            replaced_blocks: 0,
            replaced_blocks_max,
            interval: interval.unwrap_or(&EVERYTHING),
            part: interval.map(|_| PartNodes::default()),
        }
    }

    /// What a node of a level shall have.
    fn node_bytes(&self, level: u16) -> usize {
        if level == 0 && self.packer.is_some() { PACKED_LEAF_BYTES } else { NODE_BYTES }
    }

    /// Writes the nodes of the new tree. Changes are left if it has replaced as much as it may.
    pub(super) fn run(mut self, changes: &mut dyn Changes) -> Result<NewNodes> {
        if changes.peek()?.is_none() {
            return Ok(NewNodes::of(self.root));
        }
        self.merge_root(changes)?;
        self.finish()
    }

    /// Writes the nodes of a part, up to [`PART_LEVEL`].
    ///
    /// # Panics
    /// If there are changes of keys that are not the part's.
    pub(super) fn run_part(mut self, changes: &mut dyn Changes) -> Result<MadePart> {
        let is_first_here = changes.peek()?.is_none_or(|first| self.interval.begins_before(first.key));
        self.level(0).low = self.interval.low.clone();
        self.merge_root(changes)?;
        let is_last_here = self.is_at_end() || changes.peek()?.is_none();
        assert!(is_first_here && is_last_here, "changes are of the interval in which they are merged");
        if self.level(0).count() > 0 {
            self.join_before(0)?;
            self.write_all(0, self.interval.high.is_none())?;
        }
        // Whoever puts the parts together may read it.
        self.output.flush()?;
        let rest = std::mem::replace(self.level(PART_LEVEL), Pending::new(PART_LEVEL));
        let nodes = self.part.unwrap_or_default();
        Ok(MadePart { nodes, rest, merged: self.merged, has_packed: self.has_packed })
    }

    /// Takes over what has come of a part, behind that of those before.
    pub(super) fn join(&mut self, part: MadePart) -> Result<()> {
        for PartNode { level, low, high, reference, is_fresh } in part.nodes {
            self.keep(level, (&low, high.as_deref()), reference, is_fresh)?;
        }
        self.level(PART_LEVEL).append(&part.rest);
        self.write_full(PART_LEVEL)?;
        self.merged.add(part.merged);
        self.has_packed |= part.has_packed;
        Ok(())
    }

    fn merge_root(&mut self, changes: &mut dyn Changes) -> Result<()> {
        match self.root.top() {
            Some((node, level)) => self.merge_node(&node, level, &[], None, changes),
            None => self.merge_leaf(None, None, changes),
        }
    }

    fn level(&mut self, level: u16) -> &mut Pending {
        while self.levels.len() <= usize::from(level) {
            self.levels.push(Pending::new(self.levels.len() as u16));
        }
        &mut self.levels[usize::from(level)]
    }

    /// Gives up blocks of the old tree.
    fn free(&mut self, block: u64, blocks: u64) -> Result<()> {
        if self.blocks.free(Run { block, blocks }) {
            Ok(())
        } else {
            Err(self.pages.corrupted(block, "blocks are in use that the map of free space calls free"))
        }
    }

    /// Merges changes into what is below a node: keys not less than `low`, and less than `high`.
    fn merge_node(
        &mut self,
        reference: &NodeReference,
        level: u16,
        low: &[u8],
        high: Option<&[u8]>,
        changes: &mut dyn Changes,
    ) -> Result<()> {
        let ahead = self.ahead.take(self.pages, reference)?;
        self.is_warm = ahead.is_none();
        let node = match ahead {
            Some(node) => node,
            None => self.pages.node(reference, level)?,
        };
        self.check_keys(&node, low, high)?;
        // What lies in two parts is merged in both.
        let is_own = self.interval.begins_before(low);
        if is_own {
            self.free(reference.block, reference.blocks.into())?;
        }
        if level == 0 {
            if is_own {
                self.replaced_blocks += u64::from(reference.blocks);
            }
            if self.level(0).count() == 0 {
                self.level(0).low = if is_own { low.to_vec() } else { self.interval.low.clone() };
            }
            return self.merge_leaf(Some(&node), high, changes);
        }
        if level == 1 {
            self.read_ahead(&node, high, changes)?;
        }
        let (mut child_low, mut child_high) = (low.to_vec(), Vec::new());
        for index in 0..node.count() {
            let is_last = index + 1 == node.count();
            if !is_last {
                node.key_into(index + 1, &mut child_high);
            }
            let end = if is_last { high } else { Some(&child_high[..]) };
            let child = node.child(index);
            if self.interval.meets(&child_low, end) {
                self.merge_child(&child, level - 1, &child_low, end, changes)?;
            }
            std::mem::swap(&mut child_low, &mut child_high);
        }
        Ok(())
    }

    /// Merges changes into what is below a node, if there are some for it, or else takes it over.
    fn merge_child(
        &mut self,
        child: &NodeReference,
        level: u16,
        low: &[u8],
        high: Option<&[u8]>,
        changes: &mut dyn Changes,
    ) -> Result<()> {
        if !self.is_at_end() && is_before(changes.peek()?, high) {
            self.merge_node(child, level, low, high, changes)
        } else if self.interval.has_all(low, high) {
            self.keep(level, (low, high), *child, false)
        } else {
            // What lies in two parts is taken over by neither.
            self.merge_node(child, level, low, high, &mut NoChanges)
        }
    }

    /// Whether a node has the keys that its parent says it has. Else what is written next would not be in order.
    fn check_keys(&self, node: &Node, low: &[u8], high: Option<&[u8]>) -> Result<()> {
        let (is_inner, mut key) = (node.level() > 0, Vec::new());
        let mut is_within = true;
        // An inner node's first key is the one that its parent has.
        if node.count() > usize::from(is_inner) {
            node.key_into(is_inner.into(), &mut key);
            is_within = if is_inner { &key[..] > low } else { &key[..] >= low };
            node.key_into(node.count() - 1, &mut key);
            is_within &= high.is_none_or(|high| &key[..] < high);
        }
        match is_within {
            true => Ok(()),
            false => Err(self.pages.corrupted(node.block, "a node with keys that its parent has elsewhere")),
        }
    }

    /// True once as much is replaced as may be.
    fn is_at_end(&self) -> bool {
        self.replaced_blocks >= self.replaced_blocks_max || self.is_full()
    }

    /// True if there are as many nodes of the part as there may be.
    fn is_full(&self) -> bool {
        self.part.as_ref().is_some_and(PartNodes::is_full)
    }

    /// Takes note that a change has been merged.
    fn begin(&mut self) {
        if let Some(part) = &mut self.part {
            part.begin();
        }
    }

    /// Begins to read the leaves that the changes will touch.
    fn read_ahead(&mut self, node: &Node, high: Option<&[u8]>, changes: &mut dyn Changes) -> Result<()> {
        let mut touched: Vec<usize> = Vec::new();
        let mut rest_blocks = self.replaced_blocks_max.saturating_sub(self.replaced_blocks);
        changes.look_ahead(&mut |key| {
            let is_here = high.is_none_or(|high| key < high);
            let child = node.child_index(key);
            if is_here && touched.last() != Some(&child) {
                if rest_blocks == 0 {
                    return false;
                }
                touched.push(child);
                rest_blocks = rest_blocks.saturating_sub(node.child(child).blocks.into());
            }
            is_here
        });
        let touched = touched.iter().map(|&index| node.child(index));
        let cold = touched.filter(|child| self.pages.cache.get(child).is_none());
        self.ahead.begin(self.pages, cold, 0)
    }

    /// Merges changes of keys less than `high` into a leaf, as far as it is in the interval, or into nothing.
    fn merge_leaf(
        &mut self,
        leaf: Option<&Arc<Node>>,
        high: Option<&[u8]>,
        changes: &mut dyn Changes,
    ) -> Result<()> {
        let (entries, high) =
            (leaf.map_or(0..0, |leaf| self.interval.entries_of(leaf)), self.interval.end_of(high));
        let mut key = Vec::new();
        for index in entries {
            let Some(leaf) = leaf else { break };
            leaf.key_into(index, &mut key);
            let mut is_replaced = false;
            while !self.is_full()
                && let Some(change) = changes.peek()?
                && change.key <= &key[..]
            {
                is_replaced = change.key == key;
                self.merged.deleted += u64::from(is_replaced && change.value.is_none());
                self.put(change)?;
                changes.advance()?;
                self.begin();
                self.write_full(0)?;
            }
            let expires_at = leaf.expires_at(index);
            match leaf.value(index) {
                ValueIn::There(reference) if is_replaced => {
                    self.replaced_blocks += reference.blocks();
                    self.free(reference.block, reference.blocks())?;
                }
                ValueIn::There(reference) => {
                    self.level(0).push_entry(&key, &reference.encode(), true, expires_at)
                }
                ValueIn::Here(value) if !is_replaced => {
                    self.level(0).push_entry(&key, value, false, expires_at)
                }
                ValueIn::Here(_) => {}
            }
            self.write_full(0)?;
        }
        while !self.is_full()
            && let Some(change) = changes.peek()?
            && is_before(Some(change), high)
        {
            self.put(change)?;
            changes.advance()?;
            self.begin();
            self.write_full(0)?;
        }
        Ok(())
    }

    /// Adds a change's entry, if it has one.
    fn put(&mut self, change: Change<'_>) -> Result<()> {
        let too_long = change.value.is_some_and(|value| value.len() > VALUE_BYTES_MAX as usize);
        assert!(
            change.key.len() <= KEY_BYTES_MAX && !too_long,
            "keys and values have their greatest lengths"
        );
        match change.value {
            None => {}
            Some(value) if value.len() <= INLINE_BYTES_MAX => {
                self.merged.put += 1;
                self.level(0).push_entry(change.key, value, false, change.expires_at);
            }
            Some(value) => {
                self.merged.put += 1;
                let blocks = value.len().div_ceil(BLOCK_BYTES);
                let block = self.blocks.take(blocks)?;
                self.output.put(block, blocks, |out| out[..value.len()].copy_from_slice(value))?;
                let (bytes, checksum) = (value.len() as u32, crc32c::crc32c(value));
                let reference = ValueReference { block, bytes, checksum };
                self.level(0).push_entry(change.key, &reference.encode(), true, change.expires_at);
            }
        }
        Ok(())
    }

    /// Writes nodes as long as there is enough for two.
    fn write_full(&mut self, level: u16) -> Result<()> {
        let node_bytes = self.node_bytes(level);
        while self.level(level).is_enough_for_two(node_bytes) {
            let pending = self.level(level);
            let count = pending.count_within(node_bytes);
            if count == pending.count() {
                break;
            }
            self.write(level, count)?;
        }
        Ok(())
    }

    /// Writes everything that is pending on a level, as the blocks come out best: no node less than half full, if that can be.
    fn write_all(&mut self, level: u16, is_end: bool) -> Result<()> {
        let node_bytes = self.node_bytes(level);
        while self.level(level).count() > 0 {
            let pending = self.level(level);
            let bytes = pending.node_bytes();
            let mut count = pending.count_within(node_bytes);
            let rest_is_small = bytes < node_bytes + node_bytes / 2 - node_bytes / 16;
            if count < pending.count() && rest_is_small && !is_end {
                count = pending.count_within(node_bytes / 2);
            }
            // An inner node with one child would only be passed through; but one that is too long is none.
            let fits = |count| pending.node(count).blocks() <= NODE_BLOCKS_MAX as usize;
            if level > 0 && pending.count() - count == 1 && fits(pending.count()) {
                count = pending.count();
            }
            self.write(level, count)?;
        }
        Ok(())
    }

    /// Writes a node with the first `count` of what is pending on a level, and tells the level above.
    fn write(&mut self, level: u16, count: usize) -> Result<()> {
        if level + 1 >= HEIGHT_MAX {
            // One with that many nodes does not fit any disk.
            return Err(self.pages.corrupted(self.root.node.block, "a tree that is higher than any can be"));
        }
        let made = self.levels[usize::from(level)].node(count);
        let packed = self.packer.as_mut().filter(|_| level == 0).and_then(|packer| packer.pack(&made));
        self.has_packed |= packed.is_some();
        let blocks = packed.map_or(made.blocks(), |packed| packed.len().div_ceil(BLOCK_BYTES));
        let block = self.blocks.take(blocks)?;
        let checksum = self.output.put(block, blocks, |out| match packed {
            Some(packed) => out[..packed.len()].copy_from_slice(packed),
            None => made.encode(out),
        })?;
        let bytes = made.blocks() * BLOCK_BYTES;
        if level > 0 || self.is_warm || self.pages.cache.has_room(bytes as u64) {
            let node = Node::decode(self.pages.cache.frames(), block, checksum, self.output.last(blocks));
            self.pages.cache.insert(Arc::new(node.expect("a node that was just made is one")));
        }
        let (low, entries) = self.levels[usize::from(level)].take(count);
        let child = NodeReference { block, entries, blocks: blocks as u32, checksum };
        self.tell(level, (&low, None), child, true)
    }

    /// Tells the level above of a node, or of a part's uppermost ones whoever puts the parts together.
    fn tell(
        &mut self,
        level: u16,
        (low, high): (&[u8], Option<&[u8]>),
        reference: NodeReference,
        is_fresh: bool,
    ) -> Result<()> {
        if let Some(part) = self.part.as_mut().filter(|_| level >= PART_LEVEL) {
            let (low, high) = (low.to_vec(), high.map(<[u8]>::to_vec));
            part.push(PartNode { level, low, high, reference, is_fresh });
            return Ok(());
        }
        self.level(level + 1).push_child(low, reference, is_fresh);
        self.write_full(level + 1)
    }

    /// Takes a node over, whose keys are from `low` on and before `high`: an untouched one, or a part's.
    fn keep(
        &mut self,
        level: u16,
        (low, high): (&[u8], Option<&[u8]>),
        child: NodeReference,
        is_fresh: bool,
    ) -> Result<()> {
        for below in 0..=level {
            let bytes = self.level(below).node_bytes();
            if self.level(below).count() == 0 {
                continue;
            }
            if below == level && bytes < self.node_bytes(level) / NODE_BYTES_MIN_PART {
                let node = self.pages.node(&child, level)?;
                self.check_keys(&node, low, high)?;
                self.free(child.block, child.blocks.into())?;
                self.level(level).push_node(low, &node);
                return self.write_full(level);
            }
            self.join_before(below)?;
            self.write_all(below, false)?;
        }
        self.tell(level, (low, high), child, is_fresh)
    }

    /// Takes back what the level above was told last, unless this merge has written it.
    fn take_back(&mut self, level: u16) -> Option<(Vec<u8>, NodeReference)> {
        match &mut self.part {
            Some(part) if level >= PART_LEVEL => {
                part.pop_kept(level).map(|PartNode { low, reference, .. }| (low, reference))
            }
            _ => self.level(level + 1).pop_child(),
        }
    }

    /// If little is pending on a level, opens the node before it.
    fn join_before(&mut self, level: u16) -> Result<()> {
        if self.level(level).node_bytes() >= self.node_bytes(level) / NODE_BYTES_MIN_PART {
            return Ok(());
        }
        let Some((low, child)) = self.take_back(level) else { return Ok(()) };
        let node = self.pages.node(&child, level)?;
        self.check_keys(&node, &low, self.levels[usize::from(level)].first_key())?;
        self.free(child.block, child.blocks.into())?;
        let mut joined = Pending::new(level);
        joined.push_node(&low, &node);
        joined.low = low;
        let pending = &mut self.levels[usize::from(level)];
        joined.append(pending);
        *pending = joined;
        Ok(())
    }

    /// Writes what is left, up to the root.
    pub(super) fn finish(mut self) -> Result<NewNodes> {
        let (node, height) = self.write_rest()?;
        Ok(NewNodes { node, height, merged: self.merged, has_packed: self.has_packed })
    }

    fn write_rest(&mut self) -> Result<(NodeReference, u16)> {
        let mut level = 0;
        while usize::from(level) < self.levels.len() {
            let is_top = self.levels[usize::from(level) + 1..].iter().all(|above| above.count() == 0);
            if is_top
                && level > 0
                && let Some(child) = self.level(level).only_child()
            {
                return self.cut_top(child, level - 1);
            }
            if self.level(level).count() > 0 {
                self.join_before(level)?;
                self.write_all(level, true)?;
            }
            level += 1;
        }
        Ok((NodeReference::default(), 0))
    }

    /// Leaves out root nodes that have one child only.
    fn cut_top(&mut self, mut root: NodeReference, mut level: u16) -> Result<(NodeReference, u16)> {
        while level > 0 {
            self.output.flush()?;
            let node = self.pages.node(&root, level)?;
            if node.count() > 1 {
                break;
            }
            self.free(root.block, root.blocks.into())?;
            (root, level) = (node.child(0), level - 1);
        }
        Ok((root, level + 1))
    }
}

fn is_before(change: Option<Change<'_>>, end: Option<&[u8]>) -> bool {
    change.is_some_and(|change| end.is_none_or(|end| change.key < end))
}
