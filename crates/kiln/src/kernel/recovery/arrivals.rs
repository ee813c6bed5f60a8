//! Keys that come into a table's order, and leave it, while the log is replayed.
//!
//! In the order of the log they go to leaves all over the index, each with a descent and cache misses of its own. So they are kept until
//! they are many, and then sorted: one descent does for all that go into one leaf. Of what happened to a key only the last counts.

use crate::storage::epoch;
use crate::storage::ordered_index::{OrderedIndex, Run};
use crate::storage::prefix::common_bytes;

/// So many keys are inserted under one pin.
const GROUP: usize = 128;

/// What has happened to keys of one table, in the order of the log.
#[derive(Default)]
pub(super) struct Arrivals {
    bytes: Vec<u8>,
    changes: Vec<Change>,
}

/// A key's place among the bytes, and whether it is in the order now.
struct Change {
    start: usize,
    length: u32,
    is_there: bool,
}

impl Arrivals {
    pub(super) fn push(&mut self, key: &[u8], is_there: bool) {
        self.changes.push(Change { start: self.bytes.len(), length: key.len() as u32, is_there });
        self.bytes.extend_from_slice(key);
    }

    /// How much memory a key takes here.
    pub(super) fn bytes_of(key: &[u8]) -> usize {
        size_of::<Change>() + key.len()
    }

    /// Carries out what has happened. It begins at such a part of the keys' order: who does the same for others of the
    /// same table at the same time is to be elsewhere.
    pub(super) fn carry_out(self, ordered: &OrderedIndex, (part, parts): (usize, usize)) {
        let newest = self.newest();
        let (later, first) = newest.split_at(newest.len() / parts * part);
        for run in [first, later].into_iter().flat_map(|half| half.chunk_by(|left, right| left.1 == right.1))
        {
            for group in run.chunks(GROUP) {
                let pin = epoch::pin();
                if group[0].1 {
                    let group: Vec<&[u8]> = group.iter().map(|&(key, _)| key).collect();
                    ordered.insert_ascending(&pin, &group, Run::Sparse);
                } else {
                    group.iter().for_each(|(key, _)| _ = ordered.remove(&pin, key));
                }
            }
        }
    }

    /// The keys in their order, and whether each is there in the end.
    fn newest(&self) -> Vec<(&[u8], bool)> {
        let key = |change: &Change| &self.bytes[change.start..][..change.length as usize];
        let Some(any) = self.changes.first().map(key) else { return Vec::new() };
        let common = self.changes.iter().map(|change| common_bytes(any, key(change))).min().unwrap_or(0);
        // Nearly always these eight bytes are enough, and they are at hand.
        let head = |key: &[u8]| {
            let mut head = [0; 8];
            let rest = &key[common..];
            let length = rest.len().min(8);
            head[..length].copy_from_slice(&rest[..length]);
            u64::from_be_bytes(head)
        };
        let mut sorted: Vec<(u64, &Change)> =
            self.changes.iter().map(|change| (head(key(change)), change)).collect();
        sorted.sort_by(|left, right| left.0.cmp(&right.0).then_with(|| key(left.1).cmp(key(right.1))));
        let of_keys = sorted.chunk_by(|left, right| left.0 == right.0 && key(left.1) == key(right.1));
        of_keys.filter_map(|of_key| of_key.last()).map(|(_, last)| (key(last), last.is_there)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_come_sorted_and_each_as_it_was_last() {
        let mut arrivals = Arrivals::default();
        let long = [b'k'; 40];
        let changes: [(&[u8], bool); 9] = [
            (b"key 2", true),
            (b"key 10", true),
            (b"key 2", false),
            (b"key 1", true),
            (b"k", false),
            (b"key 1\0", true),
            (&long, true),
            (b"key 10", false),
            (b"key 10", true),
        ];
        assert!(arrivals.newest().is_empty());
        changes.iter().for_each(|(key, is_there)| arrivals.push(key, *is_there));
        let expected: [(&[u8], bool); 6] = [
            (b"k", false),
            (b"key 1", true),
            (b"key 1\0", true),
            (b"key 10", true),
            (b"key 2", false),
            (&long, true),
        ];
        assert_eq!(arrivals.newest(), expected);
    }
}
