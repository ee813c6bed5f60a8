//! A node in memory: read once, validated completely once, and from then on only looked at.
//!
//! Leaves and inner nodes have one layout; `docs/format.md` draws it. An inner node's keys separate its children: everything below
//! child *i* is not less than key *i*. Its first key says nothing, is empty, and takes no part in the prefix, so child 0 also takes what
//! is less than all of them.
//!
//! ```text
//!  header | heads: 4 bytes of each key | slots: where each cell is | prefix of all keys | cells: rest of the key, value
//! ```
//!
//! A search compares the prefix once, then looks for the heads, which lie close together and are compared as numbers without a
//! branch, and compares whole keys only among those with the same head.

use std::ops::Range;

use super::frames::{Frame, Frames};
use super::key::OBJECT_BYTES;
use super::packed;
use super::reference::{NODE_BLOCKS_MAX, NodeReference, VALUE_BYTES_MAX, ValueReference};
use crate::device::BLOCK_BYTES;
use crate::storage::memory;
use crate::storage::record::{self, EXPIRY_BYTES, NEVER};
use crate::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

/// Bytes before the heads.
pub(super) const HEADER_BYTES: usize = 16;
/// Bytes of a head.
pub(super) const HEAD_BYTES: usize = 4;
/// In the flags: slots are pairs of four bytes, otherwise of two.
pub(super) const WIDE: u16 = 1;
/// In the flags: the second highest bit of a slot says that the value has a time before it at which it expires. (Bit 1 is a packed leaf's.)
pub(super) const EXPIRES: u16 = 4;
/// What a search of one node has fetched at once, at most.
const PREFETCH_BYTES_MAX: usize = 1 << 10;
/// So much of a child is fetched as soon as it is known which one it is: the header, and what is searched first.
const CHILD_PREFETCH_BYTES: usize = 512;
/// The longest key.
pub(super) const KEY_BYTES_MAX: usize = OBJECT_BYTES + record::KEY_BYTES_MAX;
/// What a node's prefix comes to at most, once for each of its keys.
pub(super) const PREFIXES_BYTES_MAX: usize = 4 << 20;
// So a value that is here is short enough.
const _: () = assert!(NODE_BLOCKS_MAX as usize * BLOCK_BYTES <= VALUE_BYTES_MAX as usize);
/// Levels that a tree has at most, were each inner node to have two children only.
pub(super) const HEIGHT_MAX: u16 = 64;
/// That of a value which has blocks of its own, and no entries.
const VALUE_LEVEL: u16 = u16::MAX;
#[cfg(test)]
pub(super) const OFFSETS: [(&str, usize); 5] =
    [("level", 0), ("flags", 2), ("count", 4), ("end", 8), ("prefix bytes", 12)];

/// What a leaf says of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ValueIn<'a> {
    /// It is this.
    Here(&'a [u8]),
    /// It is elsewhere.
    There(ValueReference),
}

/// A node.
pub(super) struct Node {
    /// Whose contents these are.
    pub(super) block: u64,
    pub(super) checksum: u32,
    level: u16,
    wide: bool,
    /// Some of its values expire.
    expires: bool,
    /// How often the clock's hand passes it by before it goes.
    chances: AtomicU32,
    count: usize,
    slots: usize,
    prefix: usize,
    cells: usize,
    end: usize,
    bytes: Frame,
    /// Of an inner node's children; a leaf has none.
    places: Box<[ChildPlace]>,
}

/// Where a child is in memory, or was, which is only for the processor to fetch.
#[derive(Default)]
struct ChildPlace {
    node: AtomicUsize,
    contents: AtomicUsize,
}

/// A cell's place: where its key's rest begins and ends, where its value ends, whether the value is elsewhere, and whether it expires: then the
/// time of that is before the value, or before the reference to it.
struct Cell {
    key: usize,
    value: usize,
    end: usize,
    large: bool,
    expires: bool,
}

impl Cell {
    #[inline]
    fn expiry_bytes(&self) -> usize {
        if self.expires { EXPIRY_BYTES } else { 0 }
    }
}

#[inline(always)]
pub(super) fn u16_at(bytes: &[u8], offset: usize) -> u16 {
    bytes.get(offset..).and_then(|rest| rest.first_chunk()).map_or(0, |field| u16::from_le_bytes(*field))
}

#[inline(always)]
pub(super) fn u32_at(bytes: &[u8], offset: usize) -> u32 {
    bytes.get(offset..).and_then(|rest| rest.first_chunk()).map_or(0, |field| u32::from_le_bytes(*field))
}

/// The first bytes of a key's rest, as a number that is ordered as they are.
#[inline]
pub(super) fn head_of(rest: &[u8]) -> u32 {
    if let Some(head) = rest.first_chunk() {
        return u32::from_be_bytes(*head);
    }
    let mut head = [0; HEAD_BYTES];
    head[..rest.len()].copy_from_slice(rest);
    u32::from_be_bytes(head)
}

impl Node {
    /// Takes a node's whole blocks, whose checksum has been compared, into memory.
    ///
    /// # Errors
    /// What is wrong with them.
    pub(super) fn decode(
        frames: &Frames,
        block: u64,
        checksum: u32,
        bytes: &[u8],
    ) -> Result<Node, &'static str> {
        if bytes.len() < HEADER_BYTES || bytes.len() > NODE_BLOCKS_MAX as usize * BLOCK_BYTES {
            return Err("a node of a length that none has");
        }
        let unpacked = packed::unpack(bytes)?;
        let bytes = unpacked.as_deref().unwrap_or(bytes);
        let (level, flags) = (u16_at(bytes, 0), u16_at(bytes, 2));
        let count = u32_at(bytes, 4) as usize;
        let (end, prefix_bytes) = (u32_at(bytes, 8) as usize, u32_at(bytes, 12) as usize);
        let wide = flags & WIDE != 0;
        let expires = flags & EXPIRES != 0;
        if flags & !(WIDE | EXPIRES) != 0 || level >= HEIGHT_MAX || (expires && level > 0) {
            return Err("a node of a kind that is not known");
        }
        let per_entry = HEAD_BYTES + if wide { 8 } else { 4 };
        let is_possible = count > 0 && count <= bytes.len() / per_entry && prefix_bytes <= KEY_BYTES_MAX;
        if !is_possible || count * prefix_bytes > PREFIXES_BYTES_MAX {
            return Err("a node with an impossible number of entries, or prefix");
        }
        let slots = HEADER_BYTES + count * HEAD_BYTES;
        let prefix = HEADER_BYTES + count * per_entry;
        let cells = prefix + prefix_bytes;
        if end > bytes.len() || cells > end {
            return Err("a node whose parts do not fit");
        }
        // All of them at once: who stops at the first that is wrong looks at them one by one.
        if bytes[end..].iter().fold(0, |all, &byte| all | byte) != 0 {
            return Err("a node with something behind its end");
        }
        let chances = AtomicU32::new(0);
        let bytes = Frame::new(frames, &bytes[..end]);
        let places = (0..if level > 0 { count } else { 0 }).map(|_| ChildPlace::default()).collect();
        let node = Node {
            block,
            checksum,
            level,
            wide,
            expires,
            chances,
            count,
            slots,
            prefix,
            cells,
            end,
            bytes,
            places,
        };
        node.validate()?;
        Ok(node)
    }

    /// A value that has blocks of its own, to be kept in memory.
    pub(super) fn of_value(frames: &Frames, reference: &ValueReference, value: &[u8]) -> Node {
        Node {
            block: reference.block,
            checksum: reference.checksum,
            level: VALUE_LEVEL,
            wide: false,
            expires: false,
            chances: AtomicU32::new(0),
            count: 0,
            slots: 0,
            prefix: 0,
            cells: 0,
            end: value.len(),
            bytes: Frame::new(frames, value),
            places: Box::default(),
        }
    }

    /// The value, if it is one.
    pub(super) fn as_value(&self) -> Option<&[u8]> {
        (self.level == VALUE_LEVEL).then_some(&*self.bytes)
    }

    /// Compares everything with everything.
    fn validate(&self) -> Result<(), &'static str> {
        let mut at = self.cells;
        let mut before: Option<(u32, &[u8])> = None;
        for index in 0..self.count {
            let cell = self.cell(index);
            let is_in_order = cell.key == at && cell.value <= cell.end;
            if !is_in_order || cell.end > self.end {
                return Err("a node whose cells do not follow each other");
            }
            at = cell.end;
            let rest = &self.bytes[cell.key..cell.value];
            let is_first_child = self.level > 0 && index == 0;
            let head = head_of(rest);
            if self.head(index) != head {
                return Err("a node with a key's head that is not its key's");
            }
            if (self.cells - self.prefix) + rest.len() > KEY_BYTES_MAX || (is_first_child && !rest.is_empty())
            {
                return Err("a node with a key that is too long");
            }
            // Heads are ordered as their keys, so that most keys are not compared.
            if before.is_some_and(|(before, key)| before > head || (before == head && key >= rest)) {
                return Err("a node whose keys are not in order");
            }
            before = (!is_first_child).then_some((head, rest));
            let stored = &self.bytes[cell.value..cell.end];
            let (expiry, value) =
                stored.split_at_checked(cell.expiry_bytes()).ok_or("a leaf with a cut time")?;
            if !expiry.is_empty() && self.expires_at(index) == NEVER {
                return Err("a leaf with a value that expires at no time");
            }
            self.validate_value(value, cell.large)?;
        }
        if self.expires && (0..self.count).all(|index| self.expires_at(index) == NEVER) {
            return Err("a leaf that says that values expire, and none does");
        }
        // The last cell ends where the node does, since no slot says where one ends.
        Ok(())
    }

    fn validate_value(&self, value: &[u8], large: bool) -> Result<(), &'static str> {
        if self.level > 0 {
            let reference = NodeReference::decode(value).filter(|_| !large);
            let is_sane = reference.is_some_and(|reference| reference.is_sane());
            return if is_sane { Ok(()) } else { Err("an inner node with a child that cannot be") };
        }
        match large.then(|| ValueReference::decode(value)) {
            None => Ok(()),
            Some(Some(reference)) if reference.is_sane() => Ok(()),
            _ => Err("a leaf with a value that cannot be"),
        }
    }

    /// 0 for a leaf, otherwise one more than its children's.
    pub(super) fn level(&self) -> u16 {
        self.level
    }

    /// Whether it is the node that a reference means: its block may have held others.
    #[inline]
    pub(super) fn is(&self, reference: &NodeReference) -> bool {
        (self.block, self.checksum) == (reference.block, reference.checksum)
    }

    /// True if it has children.
    pub(super) fn is_inner(&self) -> bool {
        (1..HEIGHT_MAX).contains(&self.level)
    }

    /// Entries of a leaf, children of an inner node.
    pub(super) fn count(&self) -> usize {
        self.count
    }

    /// The memory that it takes.
    pub(super) fn memory_bytes(&self) -> u64 {
        (size_of::<Node>() + self.bytes.memory_bytes() + size_of_val(&*self.places) + 48) as u64
    }

    /// The memory of its contents.
    pub(super) fn frame(&self) -> &Frame {
        &self.bytes
    }

    /// What all its keys begin with.
    #[inline]
    pub(super) fn prefix(&self) -> &[u8] {
        &self.bytes[self.prefix..self.cells]
    }

    #[inline]
    fn head(&self, index: usize) -> u32 {
        u32_at(&self.bytes, HEADER_BYTES + index * HEAD_BYTES)
    }

    #[inline]
    fn cell(&self, index: usize) -> Cell {
        let (start, rest_bytes, large) = self.slot(index);
        let expires = self.expires && rest_bytes & self.expires_bit() != 0;
        let rest_bytes = if self.expires { rest_bytes & !self.expires_bit() } else { rest_bytes };
        let end = if index + 1 < self.count { self.slot(index + 1).0 } else { self.end };
        Cell { key: start, value: start + rest_bytes, end, large, expires }
    }

    /// In a slot's length, if some values expire: this one does.
    #[inline]
    fn expires_bit(&self) -> usize {
        if self.wide { 1 << 30 } else { 1 << 14 }
    }

    #[inline]
    fn slot(&self, index: usize) -> (usize, usize, bool) {
        if self.wide {
            let at = self.slots + index * 8;
            let lengths = u32_at(&self.bytes, at + 4);
            (u32_at(&self.bytes, at) as usize, (lengths & 0x7FFF_FFFF) as usize, lengths >> 31 != 0)
        } else {
            let slot = u32_at(&self.bytes, self.slots + index * 4);
            ((slot & 0xFFFF) as usize, (slot >> 16 & 0x7FFF) as usize, slot >> 31 != 0)
        }
    }

    /// An entry's key behind the prefix. An inner node's first key is empty, and not behind the prefix.
    #[inline]
    pub(super) fn rest(&self, index: usize) -> &[u8] {
        let cell = self.cell(index);
        &self.bytes[cell.key..cell.value]
    }

    /// Replaces `key` by an entry's key. An inner node's first one is empty.
    pub(super) fn key_into(&self, index: usize, key: &mut Vec<u8>) {
        key.clear();
        if self.level == 0 || index > 0 {
            let (prefix, rest) = (self.prefix(), self.rest(index));
            key.reserve(prefix.len() + rest.len());
            key.extend_from_slice(prefix);
            key.extend_from_slice(rest);
        }
    }

    /// A leaf's value.
    #[inline]
    pub(super) fn value(&self, index: usize) -> ValueIn<'_> {
        let cell = self.cell(index);
        let value = &self.bytes[cell.value + cell.expiry_bytes()..cell.end];
        match ValueReference::decode(value).filter(|_| cell.large) {
            Some(reference) => ValueIn::There(reference),
            None => ValueIn::Here(value),
        }
    }

    /// When a leaf's value expires, if it does.
    #[inline]
    pub(super) fn expires_at(&self, index: usize) -> u64 {
        if !self.expires {
            return NEVER;
        }
        let cell = self.cell(index);
        let expiry = self.bytes.get(cell.value..).and_then(<[u8]>::first_chunk).filter(|_| cell.expires);
        expiry.map_or(NEVER, |expiry| u64::from_le_bytes(*expiry))
    }

    /// How a leaf's entry's key goes on behind the prefix, and where its value lies, unless that is elsewhere.
    #[inline]
    pub(super) fn entry(&self, index: usize) -> (&[u8], Option<Range<usize>>) {
        let cell = self.cell(index);
        (
            &self.bytes[cell.key..cell.value],
            (!cell.large).then_some(cell.value + cell.expiry_bytes()..cell.end),
        )
    }

    /// What lies at a place that [`Node::entry`] has told.
    #[inline]
    pub(super) fn bytes_at(&self, place: Range<usize>) -> &[u8] {
        &self.bytes[place]
    }

    /// An inner node's child.
    #[inline]
    pub(super) fn child(&self, index: usize) -> NodeReference {
        let cell = self.cell(index);
        // `validate` has seen that it can be decoded.
        NodeReference::decode(&self.bytes[cell.value..cell.end]).unwrap_or_default()
    }

    /// An inner node's children, from one of them on.
    pub(super) fn children(&self, from: usize) -> impl Iterator<Item = NodeReference> {
        (from..self.count).map(|index| self.child(index))
    }

    /// The first entry whose key is not less than `key`, and whether it is the same. Of an inner node, among those behind the first.
    #[inline]
    pub(super) fn search(&self, key: &[u8]) -> (usize, bool) {
        let first = usize::from(self.level > 0);
        let prefix = self.prefix();
        let rest = match key.get(..prefix.len()) {
            Some(begin) if begin == prefix => &key[prefix.len()..],
            _ if key < prefix => return (first, false),
            _ => return (self.count, false),
        };
        let head = head_of(rest);
        let heads = self.bytes[HEADER_BYTES + first * HEAD_BYTES..self.slots].as_chunks::<HEAD_BYTES>().0;
        let below = heads.partition_point(|other| u32::from_le_bytes(*other) < head);
        let mut index = first + below;
        while index < self.count && self.head(index) == head {
            match self.rest(index).cmp(rest) {
                std::cmp::Ordering::Less => index += 1,
                std::cmp::Ordering::Equal => return (index, true),
                std::cmp::Ordering::Greater => break,
            }
        }
        (index, false)
    }

    /// The child below which `key` is, if it is anywhere.
    #[inline]
    pub(super) fn child_index(&self, key: &[u8]) -> usize {
        let (index, is_same) = self.search(key);
        if is_same { index } else { index - 1 }
    }

    /// Has the processor fetch a child where somebody has found it before, without waiting for what tells whether it is still there.
    #[inline]
    pub(super) fn prefetch_child(&self, index: usize) {
        let Some(place) = self.places.get(index) else { return };
        let node = place.node.load(Ordering::Relaxed);
        let contents = place.contents.load(Ordering::Relaxed);
        if node == 0 {
            return;
        }
        for line in (0..size_of::<Node>()).step_by(64) {
            memory::prefetch_address(node.wrapping_add(line));
        }
        for line in (0..CHILD_PREFETCH_BYTES).step_by(64) {
            memory::prefetch_address(contents.wrapping_add(line));
        }
    }

    /// Notes where a child was found; writes only if it was elsewhere before.
    #[inline]
    pub(super) fn note_child(&self, index: usize, child: &Node) {
        let Some(place) = self.places.get(index) else { return };
        let (node, contents) = (std::ptr::from_ref(child).addr(), child.bytes.as_ptr().addr());
        let noted = (place.node.load(Ordering::Relaxed), place.contents.load(Ordering::Relaxed));
        if noted != (node, contents) {
            place.node.store(node, Ordering::Relaxed);
            place.contents.store(contents, Ordering::Relaxed);
        }
    }

    /// Has the processor fetch all that a search goes through at once, rather than line after line as it goes.
    #[inline]
    pub(super) fn prefetch_search(&self) {
        // Of a leaf the slots too, which lie behind the heads.
        let end = if self.level == 0 { self.cells } else { self.slots };
        for line in self.bytes[..end.min(PREFETCH_BYTES_MAX)].chunks(64) {
            memory::prefetch(&line[0]);
        }
    }

    /// Has the processor fetch an entry's cell, if it is a short one, as most are.
    #[inline]
    pub(super) fn prefetch_cell(&self, index: usize) {
        if index < self.count {
            let begin = self.slot(index).0;
            let lines = [begin, begin + 64];
            for line in lines.into_iter().filter_map(|at| self.bytes.get(at)) {
                memory::prefetch(line);
            }
        }
    }

    /// Notes that it was looked at; writes only if that was not noted. An inner node, which leads to many, stays longer than a leaf.
    #[inline]
    pub(super) fn note_use(&self) {
        let chances = if self.is_inner() { 1 + 2 * u32::from(self.level.min(2)) } else { 1 };
        if self.chances.load(Ordering::Relaxed) < chances {
            self.chances.store(chances, Ordering::Relaxed);
        }
    }

    /// Takes one of its chances; false if it has none.
    pub(super) fn take_chance(&self) -> bool {
        let chances = self.chances.load(Ordering::Relaxed);
        // Who notes a use at the same time may win or lose: it is about which node goes first, not whether one may.
        self.chances.store(chances.saturating_sub(1), Ordering::Relaxed);
        chances > 0
    }
}
