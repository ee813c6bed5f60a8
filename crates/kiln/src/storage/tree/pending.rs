//! What has been merged and not been written: a level's entries, in order, until they make nodes.

use std::ops::Range;

use super::node::{EXPIRES, HEAD_BYTES, HEADER_BYTES, Node, ValueIn, WIDE, head_of};
use super::reference::NodeReference;
use crate::device::BLOCK_BYTES;
use crate::storage::prefix::{common_bytes, shortest_separator};
use crate::storage::record::{EXPIRY_BYTES, NEVER};

/// What a node's keys and values come to at most without the prefix taken out, so that what has few bytes does not stand for many; but for
/// what one entry more may have.
const WHOLE_BYTES_MAX: usize = 1 << 20;

/// An entry of a leaf, or a child of an inner node.
struct Item {
    key: Range<usize>,
    value: Range<usize>,
    /// The value is where a reference says.
    large: bool,
    /// The value begins with the time at which it expires.
    expires: bool,
    /// Entries of leaves at or below it.
    entries: u64,
    /// A child that this merge has written.
    fresh: bool,
}

/// How long a node gets.
#[derive(Clone, Copy, Default)]
struct Measure {
    count: usize,
    /// Keys and values.
    bytes: usize,
    /// Of those, the keys that have the prefix.
    prefixed: usize,
    prefix: usize,
    /// The longest key, or something less that is not [long](LONG_KEY_BYTES) either.
    longest: usize,
    expires: bool,
}

/// A longer key may need wide slots.
const LONG_KEY_BYTES: usize = 0x3FFF;

impl Measure {
    fn is_wide(&self) -> bool {
        self.narrow_bytes() > u16::MAX as usize
            || self.longest > if self.expires { LONG_KEY_BYTES } else { 0x7FFF }
    }

    fn narrow_bytes(&self) -> usize {
        HEADER_BYTES + self.count * (HEAD_BYTES + 4) + self.bytes + self.prefix - self.prefixed * self.prefix
    }

    fn bytes(&self) -> usize {
        self.narrow_bytes() + if self.is_wide() { self.count * 4 } else { 0 }
    }
}

/// A level's entries.
pub(super) struct Pending {
    level: u16,
    /// With those that were taken last, of which there are `taken`, before the others.
    items: Vec<Item>,
    taken: usize,
    bytes: Vec<u8>,
    /// How many have a value that expires, or a long key.
    expiring_count: usize,
    long_count: usize,
    /// Of a leaf level: a key that is greater than all before, and not greater than the first here.
    pub(super) low: Vec<u8>,
}

/// So much of what was taken is kept at most.
const TAKEN_MAX: usize = 512;
const TAKEN_BYTES_MAX: usize = 256 << 10;

impl Pending {
    pub(super) fn new(level: u16) -> Pending {
        Pending {
            level,
            items: Vec::new(),
            taken: 0,
            bytes: Vec::new(),
            expiring_count: 0,
            long_count: 0,
            low: Vec::new(),
        }
    }

    fn items(&self) -> &[Item] {
        &self.items[self.taken..]
    }

    pub(super) fn count(&self) -> usize {
        self.items.len() - self.taken
    }

    /// The bytes of a node that holds everything.
    pub(super) fn node_bytes(&self) -> usize {
        self.measure_of(self.count()).bytes()
    }

    /// Whether that is more than two nodes of so many bytes have.
    pub(super) fn is_enough_for_two(&self, bytes: usize) -> bool {
        let whole = self.measure_of(self.count());
        whole.bytes() > 2 * bytes || whole.bytes > 2 * WHOLE_BYTES_MAX
    }

    /// Adds an entry of a leaf.
    pub(super) fn push_entry(&mut self, key: &[u8], value: &[u8], large: bool, expires_at: u64) {
        let time = expires_at.to_le_bytes();
        let expiry = if expires_at == NEVER { &[][..] } else { &time };
        self.push(key, (expiry, value), large, 1, false);
    }

    /// Adds a child.
    pub(super) fn push_child(&mut self, key: &[u8], child: NodeReference, fresh: bool) {
        self.push(key, (&[], &child.encode()), false, child.entries, fresh);
    }

    fn push(&mut self, key: &[u8], (expiry, value): (&[u8], &[u8]), large: bool, entries: u64, fresh: bool) {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(key);
        self.bytes.extend_from_slice(expiry);
        self.bytes.extend_from_slice(value);
        let expires = !expiry.is_empty();
        let (key, value) = (start..start + key.len(), start + key.len()..self.bytes.len());
        self.expiring_count += usize::from(expires);
        self.long_count += usize::from(key.len() > LONG_KEY_BYTES);
        self.items.push(Item { key, value, large, expires, entries, fresh });
    }

    /// Adds all that a node of this level has, whose separator is `low`.
    pub(super) fn push_node(&mut self, low: &[u8], node: &Node) {
        let mut key = Vec::new();
        for index in 0..node.count() {
            if self.level > 0 {
                node.key_into(index, &mut key);
                let key = if index == 0 { low } else { &key };
                self.push_child(key, node.child(index), false);
            } else {
                node.key_into(index, &mut key);
                let expires_at = node.expires_at(index);
                match node.value(index) {
                    ValueIn::Here(value) => self.push_entry(&key, value, false, expires_at),
                    ValueIn::There(reference) => self.push_entry(&key, &reference.encode(), true, expires_at),
                }
            }
        }
    }

    /// Takes the last child away, unless this merge has written it.
    pub(super) fn pop_child(&mut self) -> Option<(Vec<u8>, NodeReference)> {
        self.items().last()?;
        let item = self.items.pop_if(|item| !item.fresh)?;
        self.long_count -= usize::from(item.key.len() > LONG_KEY_BYTES);
        let child = NodeReference::decode(&self.bytes[item.value.clone()])?;
        let key = self.bytes[item.key.clone()].to_vec();
        self.bytes.truncate(item.key.start);
        Some((key, child))
    }

    /// Puts everything of another behind it.
    pub(super) fn append(&mut self, other: &Pending) {
        for item in other.items() {
            let (key, value) = (&other.bytes[item.key.clone()], &other.bytes[item.value.clone()]);
            let (expiry, value) = value.split_at(if item.expires { EXPIRY_BYTES } else { 0 });
            self.push(key, (expiry, value), item.large, item.entries, item.fresh);
        }
    }

    /// The only child, if there is exactly one item.
    pub(super) fn only_child(&self) -> Option<NodeReference> {
        let [item] = self.items() else { return None };
        NodeReference::decode(&self.bytes[item.value.clone()])
    }

    /// The first key, if there is one.
    pub(super) fn first_key(&self) -> Option<&[u8]> {
        (self.count() > 0).then(|| self.key(0))
    }

    fn key(&self, index: usize) -> &[u8] {
        &self.bytes[self.items()[index].key.clone()]
    }

    /// The measure of a node of the first `count` items. As keys ascend, the first and the last one have in common what all have.
    fn measure_of(&self, count: usize) -> Measure {
        let items = &self.items()[..count];
        let (Some(first), Some(last)) = (items.first(), items.last()) else { return Measure::default() };
        // An inner node's first key is not stored.
        let begin = usize::from(self.level > 0);
        let unstored = if begin > 0 { first.key.len() } else { 0 };
        let keyed = &items[begin..];
        Measure {
            count,
            bytes: last.value.end - first.key.start - unstored,
            prefixed: keyed.len(),
            prefix: if keyed.is_empty() { 0 } else { common_bytes(self.key(begin), self.key(count - 1)) },
            longest: match self.long_count > 0 {
                true => keyed.iter().map(|item| item.key.len()).max().unwrap_or(0),
                false => 0,
            },
            expires: self.expiring_count > 0
                && (count == self.count() || items.iter().any(|item| item.expires)),
        }
    }

    /// How many of the first items make a node of at most so many bytes; not less than a node must have.
    pub(super) fn count_within(&self, bytes: usize) -> usize {
        let is_within = |count: usize| {
            let measure = self.measure_of(count);
            measure.bytes() <= bytes && measure.bytes <= WHOLE_BYTES_MAX
        };
        let (mut least, mut most) = (if self.level > 0 { 2 } else { 1 }, self.count());
        if most <= least || is_within(most) {
            return most;
        }
        // One more item never makes a node shorter.
        while least + 1 < most {
            let middle = least.midpoint(most);
            match is_within(middle) {
                true => least = middle,
                false => most = middle,
            }
        }
        least
    }

    /// The node that has the first `count` items, to be written.
    pub(super) fn node(&self, count: usize) -> PendingNode<'_> {
        PendingNode { pending: self, count, measure: self.measure_of(count) }
    }

    /// Writes a node; what `out` has beyond it is zeros.
    fn encode(&self, count: usize, measure: &Measure, out: &mut [u8]) {
        let wide = measure.is_wide();
        let slots = HEADER_BYTES + count * HEAD_BYTES;
        let slot_bytes = if wide { 8 } else { 4 };
        let prefix = slots + count * slot_bytes;
        let first = usize::from(self.level > 0);
        let mut put = |offset: usize, field: &[u8]| out[offset..offset + field.len()].copy_from_slice(field);
        put(0, &self.level.to_le_bytes());
        let flags = if wide { WIDE } else { 0 } | if measure.expires { EXPIRES } else { 0 };
        put(2, &flags.to_le_bytes());
        put(4, &(count as u32).to_le_bytes());
        put(8, &(measure.bytes() as u32).to_le_bytes());
        put(12, &(measure.prefix as u32).to_le_bytes());
        if first < count {
            put(prefix, &self.key(first)[..measure.prefix]);
        }
        let mut at = prefix + measure.prefix;
        for (index, item) in self.items()[..count].iter().enumerate() {
            let rest = if index < first { &[][..] } else { &self.key(index)[measure.prefix..] };
            put(HEADER_BYTES + index * HEAD_BYTES, &head_of(rest).to_le_bytes());
            let slot = slots + index * slot_bytes;
            if wide {
                put(slot, &(at as u32).to_le_bytes());
                let bits = u32::from(item.large) << 31 | u32::from(item.expires) << 30;
                put(slot + 4, &(rest.len() as u32 | bits).to_le_bytes());
            } else {
                put(slot, &(at as u16).to_le_bytes());
                let bits = u16::from(item.large) << 15 | u16::from(item.expires) << 14;
                put(slot + 2, &(rest.len() as u16 | bits).to_le_bytes());
            }
            put(at, rest);
            put(at + rest.len(), &self.bytes[item.value.clone()]);
            at += rest.len() + item.value.len();
        }
    }

    /// Removes the first `count` items, which make a node; returns its separator, and the entries below it.
    pub(super) fn take(&mut self, count: usize) -> (Vec<u8>, u64) {
        let mut entries = 0u64;
        for item in &self.items[self.taken..self.taken + count] {
            // What a forged tree says of its leaves may be anything.
            entries = entries.saturating_add(item.entries);
            self.expiring_count -= usize::from(item.expires);
            self.long_count -= usize::from(item.key.len() > LONG_KEY_BYTES);
        }
        let rest_low = match self.items().get(count) {
            Some(_) if self.level == 0 => shortest_separator(self.key(count - 1), self.key(count)).to_vec(),
            _ => Vec::new(),
        };
        let low = std::mem::replace(&mut self.low, rest_low);
        let low = if self.level == 0 { low } else { self.key(0).to_vec() };
        self.taken += count;
        match self.items().first().map(|next| next.key.start) {
            None => {
                self.items.clear();
                self.bytes.clear();
                self.taken = 0;
            }
            Some(cut) if self.taken > TAKEN_MAX || cut > TAKEN_BYTES_MAX => {
                self.bytes.drain(..cut);
                self.items.drain(..self.taken);
                self.taken = 0;
                for item in &mut self.items {
                    item.key = item.key.start - cut..item.key.end - cut;
                    item.value = item.value.start - cut..item.value.end - cut;
                }
            }
            Some(_) => {}
        }
        (low, entries)
    }
}

/// A node that is made of what is pending.
pub(super) struct PendingNode<'a> {
    pending: &'a Pending,
    count: usize,
    measure: Measure,
}

impl PendingNode<'_> {
    /// The blocks that it takes.
    pub(super) fn blocks(&self) -> usize {
        self.measure.bytes().div_ceil(BLOCK_BYTES)
    }

    /// Its length, without the zeros at the end of the last block.
    pub(super) fn bytes(&self) -> usize {
        self.measure.bytes()
    }

    /// Writes it to zeroed blocks.
    pub(super) fn encode(&self, out: &mut [u8]) {
        self.pending.encode(self.count, &self.measure, out);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One row that expires, or one long key, had every later row of a merge looked at as often as another one came.
    #[test]
    fn what_expires_or_has_a_long_key_is_looked_for_as_long_as_it_is_there() {
        let mut pending = Pending::new(0);
        let counts = |pending: &Pending| (pending.expiring_count, pending.long_count);
        let long = vec![b'b'; LONG_KEY_BYTES + 1];
        pending.push_entry(b"a", b"value", false, 7);
        pending.push_entry(&long, b"value", false, NEVER);
        pending.push_entry(b"c", b"value", false, NEVER);
        pending.push_entry(b"d", b"value", false, 9);
        let shapes = |pending: &Pending| {
            (1..=pending.count()).map(|count| pending.measure_of(count).expires).collect::<Vec<_>>()
        };
        assert_eq!(counts(&pending), (2, 1));
        pending.take(1);
        assert_eq!((counts(&pending), shapes(&pending)), ((1, 1), vec![false, false, true]));
        assert_eq!(pending.measure_of(1).longest, long.len());
        pending.take(1);
        assert_eq!((counts(&pending), shapes(&pending)), ((1, 0), vec![false, true]));
        pending.take(2);
        assert_eq!(counts(&pending), (0, 0));
        let mut parents = Pending::new(1);
        parents.push_child(b"a", NodeReference::default(), false);
        parents.push_child(&long, NodeReference { block: 2, blocks: 1, ..NodeReference::default() }, false);
        assert_eq!(counts(&parents), (0, 1));
        assert!(parents.pop_child().is_some());
        assert_eq!(counts(&parents), (0, 0));
    }
}
