//! The newest records of keys in order, as many as there is memory for: what one pass of settling collects.
//!
//! A pass takes the keys from the one on at which the pass before ended. Where that leaves too much, the greater half of the keys is left to later
//! passes, again and again. So that a pass need not find out in that way how far it comes, the first one, which sees all records, keeps
//! every so-many-th key: from these and the bytes of all the others can tell where they should end.

use std::cmp::Ordering as Order;

use super::settled::{OBJECT_BYTES, write_tree_key};
use crate::planted::{Bug, planted};
use crate::storage::record::{DiskRecord, NEVER};
use crate::storage::tree::Change;

/// The newest records of the keys from a certain one on, as many as there is memory for.
pub(super) struct Newest {
    bytes_max: usize,
    /// Keys in the tree before this one were done by earlier passes.
    from: Vec<u8>,
    /// From this one on all are left to later passes.
    to: Option<Vec<u8>>,
    /// Key and value of each record, one after the other.
    arena: Vec<u8>,
    records: Vec<Collected>,
    key: Vec<u8>,
}

/// A record in the arena. Of two records of a key the one that starts later is newer.
#[derive(Clone, Copy)]
struct Collected {
    /// The key's first bytes, and zeros behind its end, as a number: what is less has the lesser key. Few keys agree in them, so that hardly any
    /// has to be looked at in the arena for its order.
    head: u128,
    start: usize,
    key_bytes: u32,
    /// [`NO_VALUE`] for a tombstone.
    value_bytes: u32,
    /// When the value expires, if it does.
    expires_at: u64,
}

const NO_VALUE: u32 = u32::MAX;

fn head_of(key: &[u8]) -> u128 {
    let mut head = [0; size_of::<u128>()];
    let bytes = key.len().min(head.len());
    head[..bytes].copy_from_slice(&key[..bytes]);
    u128::from_be_bytes(head)
}

impl Collected {
    fn value_bytes(&self) -> usize {
        if self.value_bytes == NO_VALUE { 0 } else { self.value_bytes as usize }
    }

    /// Memory that it takes.
    fn bytes(&self) -> usize {
        size_of::<Collected>() + self.key_bytes as usize + self.value_bytes()
    }
}

/// What the first pass learns of all keys.
#[derive(Default)]
pub(super) struct Sample {
    /// Every so-many-th key.
    keys: Vec<Vec<u8>>,
    keys_bytes: usize,
    stride: u64,
    count: u64,
    /// What all records would take.
    bytes: u64,
}

/// So many keys are kept at the most, and hardly more than so many bytes of them.
const SAMPLE_KEYS_MAX: usize = 4096;
const SAMPLE_BYTES_MAX: usize = 1 << 20;
/// A pass is to take such a part of its memory: it is not known exactly where it has to end.
const FILL: f64 = 0.875;

impl Sample {
    fn note(&mut self, key: &[u8], bytes: usize) {
        self.bytes += bytes as u64;
        if self.count.is_multiple_of(self.stride.max(1)) {
            if self.keys.len() == SAMPLE_KEYS_MAX || self.keys_bytes > SAMPLE_BYTES_MAX {
                let mut at = 0;
                self.keys.retain(|_| {
                    at += 1;
                    at % 2 == 1
                });
                self.keys_bytes = self.keys.iter().map(Vec::len).sum();
                self.stride = 2 * self.stride.max(1);
            }
            self.keys_bytes += key.len();
            self.keys.push(key.to_vec());
        }
        self.count += 1;
    }

    /// Where a pass that begins with `from` should end to take no more than its memory; `None` if it may take all the rest.
    pub(super) fn end_of_pass(&mut self, from: &[u8], bytes_max: usize) -> Option<Vec<u8>> {
        self.keys.sort_unstable();
        let rest = &self.keys[self.keys.partition_point(|key| &key[..] <= from)..];
        let rest_bytes = self.bytes as f64 * rest.len() as f64 / self.keys.len().max(1) as f64;
        let passes = (rest_bytes / (bytes_max as f64 * FILL)).ceil().max(1.0);
        let keys = (rest.len() as f64 / passes) as usize;
        rest.get(keys.max(1)).filter(|_| passes > 1.0).cloned()
    }
}

impl Newest {
    /// Of the keys from `from` on, before `to` if that is given.
    pub(super) fn new(bytes_max: usize, from: Vec<u8>, to: Option<Vec<u8>>) -> Newest {
        Newest { bytes_max, from, to, arena: Vec::new(), records: Vec::new(), key: Vec::new() }
    }

    fn key(&self, record: &Collected) -> &[u8] {
        &self.arena[record.start..][..record.key_bytes as usize]
    }

    /// The order of the keys of two records.
    #[inline]
    fn order_of(&self, one: &Collected, other: &Collected) -> Order {
        one.head.cmp(&other.head).then_with(|| self.key(one).cmp(self.key(other)))
    }

    fn bytes(&self) -> usize {
        self.arena.len() + self.records.len() * size_of::<Collected>()
    }

    /// Adds a record that comes behind all that were added before, and says so to `sample`, if that is wanted.
    pub(super) fn add(&mut self, record: &DiskRecord<'_>, sample: Option<&mut Sample>) {
        write_tree_key(record.shape.object, record.key, &mut self.key);
        let value_bytes = if record.shape.kind.is_put() { record.value.len() as u32 } else { NO_VALUE };
        let expires_at = if planted(Bug::ExpirySettlesNot) { NEVER } else { record.expires_at };
        let collected = Collected {
            head: head_of(&self.key),
            start: self.arena.len(),
            key_bytes: self.key.len() as u32,
            value_bytes,
            expires_at,
        };
        if let Some(sample) = sample {
            sample.note(&self.key, collected.bytes());
        }
        if self.key < self.from || self.to.as_ref().is_some_and(|to| self.key >= *to) {
            return;
        }
        self.arena.extend_from_slice(&self.key);
        self.arena.extend_from_slice(&record.value[..collected.value_bytes()]);
        self.records.push(collected);
        if self.bytes() > self.bytes_max {
            self.make_room();
        }
    }

    /// Brings the records in the order of their keys, and leaves only the newest of each.
    fn order(&mut self) {
        let mut records = std::mem::take(&mut self.records);
        records.sort_unstable_by(|one, other| {
            // The newest first.
            self.order_of(one, other).then_with(|| other.start.cmp(&one.start))
        });
        if !planted(Bug::SettlesOldest) {
            records.dedup_by(|later, kept| self.order_of(later, kept) == Order::Equal);
        } else {
            records.reverse();
            records.dedup_by(|later, kept| self.order_of(later, kept) == Order::Equal);
            records.reverse();
        }
        self.records = records;
    }

    /// Drops what is not the newest, and if that is not enough the greater half of the keys.
    fn make_room(&mut self) {
        self.order();
        let used = |records: &[Collected]| records.iter().map(Collected::bytes).sum::<usize>();
        // Something must go on even if one record alone is as large.
        while used(&self.records) > self.bytes_max / 2 && self.records.len() > 1 {
            let kept = self.records.len() / 2;
            self.to = Some(self.key(&self.records[kept]).to_vec());
            self.records.truncate(kept);
        }
        let mut arena = Vec::with_capacity(self.bytes_max.min(2 * used(&self.records)));
        for record in &mut self.records {
            let bytes = record.key_bytes as usize + record.value_bytes();
            let start = arena.len();
            arena.extend_from_slice(&self.arena[record.start..][..bytes]);
            record.start = start;
        }
        self.arena = arena;
    }

    /// Makes [`Self::changes`] possible; returns the first key that was left to another pass.
    pub(super) fn sort(&mut self) -> Option<Vec<u8>> {
        self.order();
        self.to.clone()
    }

    /// What the tree is to be told.
    pub(super) fn changes(&self) -> impl Iterator<Item = Change<'_>> {
        self.records.iter().map(|record| {
            let value = &self.arena[record.start + record.key_bytes as usize..][..record.value_bytes()];
            let value = (record.value_bytes != NO_VALUE).then_some(value);
            Change { key: self.key(record), value, expires_at: record.expires_at }
        })
    }
}

const _: () = assert!(OBJECT_BYTES == size_of::<u32>());

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::storage::record::{Kind, NO_ADDRESS, Shape};

    /// Keys and values, or none, as the tree is told of them.
    type Told = Vec<(Vec<u8>, Option<Vec<u8>>)>;

    fn told(newest: &Newest) -> Told {
        newest.changes().map(|change| (change.key.to_vec(), change.value.map(<[u8]>::to_vec))).collect()
    }

    #[test]
    fn long_keys_take_no_more_memory_than_others() {
        let mut sample = Sample::default();
        for number in 0..500_u16 {
            sample.note(&[&number.to_be_bytes()[..], &[7; 60_000]].concat(), 60_002);
            let bytes: usize = sample.keys.iter().map(Vec::len).sum();
            assert!(bytes <= SAMPLE_BYTES_MAX + 2 * 60_002, "{bytes} bytes of {} keys", sample.keys.len());
        }
        let end = sample.end_of_pass(&[], 500 * 60_002 / 4).expect("it takes several passes");
        assert!((50..150).contains(&u16::from_be_bytes([end[0], end[1]])));
    }

    #[test]
    fn c4_several_passes_tell_the_newest_record_of_each_key_once_and_in_order() {
        let mut state = 7_u64;
        let mut random = |end: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % end
        };
        let records: Vec<(Vec<u8>, Option<Vec<u8>>)> = (0..3_000_u32)
            .map(|number| {
                let key = format!("{:0width$}", random(700), width = 1 + random(4) as usize);
                let value = (random(5) > 0).then(|| vec![number as u8; random(60) as usize]);
                (key.into_bytes(), value)
            })
            .collect();
        let mut expected = BTreeMap::new();
        for (key, value) in &records {
            let mut tree_key = Vec::new();
            write_tree_key(16, key, &mut tree_key);
            expected.insert(tree_key, value.clone());
        }
        let expected: Told = expected.into_iter().collect();
        // One record alone is more than there is memory for; many passes; one.
        for (bytes_max, passes_min) in [(1, 100), (20_000, 2), (1 << 20, 1)] {
            let (mut all, mut from, mut passes) = (Told::new(), Some(Vec::new()), 0);
            let mut sample = Sample::default();
            while let Some(first) = from {
                let to = sample.end_of_pass(&first, bytes_max);
                let mut newest = Newest::new(bytes_max, first, to);
                for (key, value) in &records {
                    let kind = if value.is_some() { Kind::Put } else { Kind::Tombstone };
                    let value = value.as_deref().unwrap_or_default();
                    let shape = Shape { kind, object: 16, key_bytes: key.len(), value_bytes: value.len() };
                    let record =
                        DiskRecord { shape, version: 1, previous: NO_ADDRESS, key, value, expires_at: NEVER };
                    newest.add(&record, (passes == 0).then_some(&mut sample));
                }
                from = newest.sort();
                all.extend(told(&newest));
                passes += 1;
            }
            assert!(all == expected, "with {bytes_max} bytes");
            assert!(passes >= passes_min, "{passes} passes with {bytes_max} bytes");
        }
    }
}
