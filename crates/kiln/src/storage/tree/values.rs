//! Values that have blocks of their own: read where they are, some at once for a walk, and kept in memory beside the nodes.
//!
//! In memory such a value is a node without entries, on a level that no node has: so it shares the cache's budget, clock and memory with those, and can never pass for one, whatever a
//! forged file says.

use std::sync::Arc;

use super::Tree;
use super::frames::FRAME_BYTES_MAX;
use super::node::{Node, ValueIn};
use super::pages::Pages;
use super::reference::{NodeReference, ValueReference};
use crate::device::AlignedBuffer;
use crate::error::Result;
use crate::storage::epoch;

/// Values that a walk reads at once, at most, and their bytes, but for the first one's.
const AHEAD_MAX: usize = 32;
const AHEAD_BYTES_MAX: u64 = 1 << 20;
/// A value that takes more than this part of the memory for nodes is not kept there, nor one that is longer than any [frame](FRAME_BYTES_MAX).
const KEPT_PART: u64 = 64;

/// What the cache, and who reads blocks, are asked for.
fn as_node(reference: &ValueReference) -> NodeReference {
    let ValueReference { block, checksum, .. } = *reference;
    NodeReference { block, entries: 0, blocks: reference.blocks() as u32, checksum }
}

impl Pages {
    /// Replaces `value` by a leaf's value, wherever that is, and keeps it in memory. The caller is not pinned.
    pub(super) fn value_into(&self, leaf: &Node, index: usize, value: &mut Vec<u8>) -> Result<()> {
        match leaf.value(index) {
            ValueIn::Here(bytes) => bytes.clone_into(value),
            ValueIn::There(reference) if self.value_in_memory(&reference, value) => {}
            ValueIn::There(reference) => {
                self.read_value(&reference, value)?;
                self.keep_value(&reference, value, true);
            }
        }
        Ok(())
    }

    /// Replaces `value` by one that has blocks of its own, if it is in memory. The caller may be pinned.
    pub(super) fn value_in_memory(&self, reference: &ValueReference, value: &mut Vec<u8>) -> bool {
        let pin = epoch::pin();
        let found = self.cache.find(&pin, &as_node(reference));
        let found = found.and_then(Node::as_value).filter(|bytes| bytes.len() == reference.bytes as usize);
        found.map(|bytes| bytes.clone_into(value)).is_some()
    }

    /// A value that was not in memory has been read: it is kept there, unless it is long, or it has no room and is not worth others'. The caller is not pinned.
    fn keep_value(&self, reference: &ValueReference, bytes: &[u8], is_worth_it: bool) {
        let cache = &self.cache;
        if bytes.len() > FRAME_BYTES_MAX || bytes.len() as u64 > cache.budget() / KEPT_PART {
            return;
        }
        cache.note_miss();
        if is_worth_it || cache.has_room(bytes.len() as u64) {
            cache.insert(Arc::new(Node::of_value(cache.frames(), reference, bytes)));
        }
    }
}

/// Values that a walk has read ahead.
#[derive(Default)]
pub(super) struct ValuesAhead {
    /// Those that are to come, the next one last; not checked yet.
    read: Vec<(ValueReference, AlignedBuffer)>,
    /// So many are read at once, and one at least.
    count: usize,
    /// No more are wanted than that, so that they are worth to be kept for others.
    is_short: bool,
}

impl ValuesAhead {
    /// The walk begins elsewhere.
    pub(super) fn forget(&mut self) {
        self.read.clear();
        self.count = 0;
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.read.len()
    }

    /// So many of the next values are wanted, if that is known.
    pub(super) fn expect(&mut self, values: Option<usize>) {
        self.is_short = values.is_some_and(|values| values < AHEAD_MAX);
        if let Some(values) = values {
            self.count = values.clamp(1, AHEAD_MAX);
        }
    }

    /// Replaces `value` by that of a leaf's entry, from which on the walk goes to the `others`. It is kept in memory if there is room, or it is one of a few.
    pub(super) fn take(
        &mut self,
        tree: &Tree,
        leaf: &Node,
        (index, others): (usize, impl Iterator<Item = usize>),
        value: &mut Vec<u8>,
    ) -> Result<()> {
        let (reference, pages) = match leaf.value(index) {
            ValueIn::Here(bytes) => {
                bytes.clone_into(value);
                return Ok(());
            }
            ValueIn::There(reference) => (reference, &tree.pages),
        };
        let mut found = self.pop(&reference);
        if found.is_none() {
            if pages.value_in_memory(&reference, value) {
                return Ok(());
            }
            self.read_ahead(tree, &reference, others.map(|other| leaf.value(other)));
            found = self.pop(&reference);
        }
        match found {
            Some(blocks) => {
                pages.check_value(&reference, &blocks)?;
                blocks[..reference.bytes as usize].clone_into(value);
            }
            None => pages.read_value(&reference, value)?,
        }
        pages.keep_value(&reference, value, self.is_short);
        Ok(())
    }

    /// What was read of a value, if it was. Those before it were passed over, and nobody asks for them any more.
    fn pop(&mut self, reference: &ValueReference) -> Option<AlignedBuffer> {
        let at = self.read.iter().rposition(|(other, _)| other == reference)?;
        self.read.truncate(at + 1);
        self.read.pop().map(|(_, blocks)| blocks)
    }

    /// Reads a value, and those that come next, as far as that is worth it. What cannot be read is left to who comes to it.
    fn read_ahead<'l>(
        &mut self,
        tree: &Tree,
        first: &ValueReference,
        others: impl Iterator<Item = ValueIn<'l>>,
    ) {
        let (count, mut bytes) = (self.count.max(1), 0);
        self.count = (count * 2).min(AHEAD_MAX);
        let others = others.filter_map(|value| match value {
            ValueIn::There(reference) => Some(reference),
            ValueIn::Here(_) => None,
        });
        let is_kept =
            |other: &ValueReference| tree.pages.cache.find(&epoch::pin(), &as_node(other)).is_some();
        let others = others.take(count - 1).filter(|other| !is_kept(other)).take_while(|other| {
            bytes += u64::from(other.bytes);
            bytes <= AHEAD_BYTES_MAX
        });
        let references: Vec<_> = std::iter::once(*first).chain(others).collect();
        self.read.clear();
        if references.len() > 1 {
            let nodes: Vec<_> = references.iter().map(as_node).collect();
            let read = tree.with_queue(|queue| tree.pages.read_many(queue, &nodes)).unwrap_or_default();
            self.read.extend(references.into_iter().zip(read).rev());
        }
    }
}
