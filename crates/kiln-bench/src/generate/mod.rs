//! Keys and values, shared by all engines.
//!
//! A key is computed from its index, which is cheaper than fetching it from a table of prepared keys: a table of a million keys
//! does not fit a core's own cache, so that every fetch would be a miss that is no part of the engine. Which index comes next is
//! drawn beforehand (see [`draws`]) and read in order, which the processor prefetches. The cost of what is left in the timed
//! loop is itself measured, by the engine `generator`.
//!
//! ```text
//!  key     8 to 64 bytes   mixed index (8, big endian) | index (8, big endian) | zeros; as much of it as fits
//!  value   8 or more       index (36 bits) and counter (28 bits) as one little-endian word | filler | !index (8, if 16 fit)
//! ```
//!
//! The mixed index makes neighbours in time no neighbours in order. A value names its key at both ends, so that a value of
//! another key, a torn one and a stale length are all found. Counting up is adding one to the first word.

pub(crate) mod draws;

use std::ops::{Deref, RangeInclusive};

use anyhow::{Result, bail, ensure};
use serde::{Deserialize, Serialize};

/// The sizes of keys that are possible.
pub(crate) const KEY_BYTES: RangeInclusive<usize> = 8..=64;
/// The sizes of values that are possible.
pub(crate) const VALUE_BYTES: RangeInclusive<usize> = 8..=1 << 20;
/// Bits of a value's first word that count.
pub(crate) const COUNTER_BITS: u32 = 28;
/// Every index is below.
pub(crate) const INDEX_END: u64 = 1 << (64 - COUNTER_BITS);
/// With this bit, an index stands for a key in the order of indexes, behind all keys without it.
pub(crate) const SEQUENTIAL: u64 = INDEX_END >> 1;

/// A key.
#[derive(Clone, Copy)]
pub(crate) struct Key {
    bytes: [u8; *KEY_BYTES.end()],
    len: u8,
}

impl Key {
    /// The key with these bytes; what is too long is cut off.
    pub(crate) fn new(from: &[u8]) -> Key {
        let mut bytes = [0; *KEY_BYTES.end()];
        let len = from.len().min(bytes.len());
        bytes[..len].copy_from_slice(&from[..len]);
        Key { bytes, len: len as u8 }
    }
}

impl Deref for Key {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len).min(self.bytes.len())]
    }
}

impl AsRef<[u8]> for Key {
    #[inline]
    fn as_ref(&self) -> &[u8] {
        self
    }
}

/// A key and its value.
#[derive(Clone)]
pub(crate) struct Entry {
    pub(crate) key: Key,
    pub(crate) value: Vec<u8>,
}

/// The sizes of a data set's keys and values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Sizes {
    pub(crate) key_bytes: usize,
    pub(crate) value_bytes: usize,
}

impl Sizes {
    /// The key with this index.
    #[inline]
    pub(crate) fn key(self, index: u64) -> Key {
        let mut bytes = [0; *KEY_BYTES.end()];
        bytes[..8].copy_from_slice(&mixed(index));
        if self.key_bytes >= 16 {
            bytes[8..16].copy_from_slice(&index.to_be_bytes());
        }
        Key { bytes, len: self.key_bytes as u8 }
    }

    /// A value whose filler is in place, to be stamped for one key after the other.
    pub(crate) fn blank_value(self) -> Vec<u8> {
        (0..self.value_bytes).map(|at| b'a' + (at % 26) as u8).collect()
    }

    /// Checks that `value` is one of `key`: of that with the index which the value names. Returns its counter.
    #[inline]
    pub(crate) fn check_row(self, key: &[u8], value: &[u8]) -> Result<u64> {
        let index = value.first_chunk().map_or(0, |first| u64::from_le_bytes(*first) >> COUNTER_BITS);
        ensure!(
            key.len() == self.key_bytes && key.first_chunk() == Some(&mixed(index)),
            "wrong row read: the key {key:02x?} with a value of key {index}"
        );
        self.check(value, index)
    }

    /// The key with this index and a value with this counter.
    pub(crate) fn entry(self, index: u64, counter: u64) -> Entry {
        let mut entry = Entry { key: self.key(index), value: self.blank_value() };
        stamp(&mut entry.value, index, counter);
        entry
    }

    /// Checks that `value` is one of the key with this index, and returns its counter.
    #[inline]
    pub(crate) fn check(self, value: &[u8], index: u64) -> Result<u64> {
        if value.len() == self.value_bytes
            && let Some(first) = value.first_chunk()
            && let Some(last) = value.last_chunk()
        {
            let word = u64::from_le_bytes(*first);
            let marked = value.len() < 16 || *last == (!index).to_le_bytes();
            if word >> COUNTER_BITS == index && marked {
                return Ok(word & ((1 << COUNTER_BITS) - 1));
            }
        }
        bail!(
            "wrong value read: key {index} has {} bytes beginning {:02x?}",
            value.len(),
            &value[..value.len().min(16)]
        )
    }
}

/// What the key with this index begins with, and no other.
#[inline]
fn mixed(index: u64) -> [u8; 8] {
    // Multiplying by an odd number is one-to-one, and this one (2^64 over the golden ratio) spreads neighbours furthest. The
    // first bit keeps the keys in order of their indexes apart.
    let mixed = if index & SEQUENTIAL == 0 {
        index.wrapping_mul(0x9E37_79B9_7F4A_7C15) & !(1 << 63)
    } else {
        1 << 63 | index
    };
    mixed.to_be_bytes()
}

/// Makes `value` the value of the key with this index.
#[inline]
pub(crate) fn stamp(value: &mut [u8], index: u64, counter: u64) {
    let word = index << COUNTER_BITS | counter & ((1 << COUNTER_BITS) - 1);
    if let Some(first) = value.first_chunk_mut() {
        *first = word.to_le_bytes();
    }
    if value.len() >= 16
        && let Some(last) = value.last_chunk_mut()
    {
        *last = (!index).to_le_bytes();
    }
}

/// Adds to the first word of a value, as `Worker::add` does: counts up by so many.
#[inline]
pub(crate) fn add_to_first_word(value: &mut [u8], delta: u64) -> Result<()> {
    let Some(first) = value.first_chunk_mut() else {
        bail!("a value of {} bytes has no first word", value.len())
    };
    *first = u64::from_le_bytes(*first).wrapping_add(delta).to_le_bytes();
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    const ALL_SIZES: [Sizes; 3] = [
        Sizes { key_bytes: 8, value_bytes: 8 },
        Sizes { key_bytes: 16, value_bytes: 100 },
        Sizes { key_bytes: 64, value_bytes: 1000 },
    ];

    #[test]
    fn keys_differ_and_are_not_in_order_of_their_index() {
        for sizes in ALL_SIZES {
            let keys: Vec<_> = (0..10_000).map(|index| sizes.key(index).to_vec()).collect();
            assert_eq!(keys.iter().collect::<HashSet<_>>().len(), keys.len());
            assert!(!keys.is_sorted());
            assert!(keys.iter().all(|key| key.len() == sizes.key_bytes));
        }
    }

    #[test]
    fn sequential_keys_are_in_order_behind_all_others() {
        for sizes in ALL_SIZES {
            let last = (0..10_000).map(|index| sizes.key(index).to_vec()).max();
            let keys: Vec<_> = (0..1000).map(|index| sizes.key(SEQUENTIAL | index).to_vec()).collect();
            assert!(keys.is_sorted() && last < keys.first().cloned());
        }
    }

    #[test]
    fn a_value_of_another_key_or_a_damaged_one_is_found() {
        for sizes in ALL_SIZES {
            let mut value = sizes.entry(5, 77).value;
            assert_eq!(sizes.check(&value, 5).unwrap(), 77);
            add_to_first_word(&mut value, 1).unwrap();
            assert_eq!(sizes.check(&value, 5).unwrap(), 78);
            assert!(sizes.check(&value, 6).is_err());
            assert!(sizes.check_row(&sizes.key(5), &value).is_ok());
            assert!(sizes.check_row(&sizes.key(6), &value).is_err());
            assert!(sizes.check_row(&sizes.key(5)[1..], &value).is_err());
            assert!(sizes.check_row(&sizes.key(5), &[]).is_err());
            assert!(sizes.check(&value[1..], 5).is_err());
            assert!(sizes.check(&[], 5).is_err());
            *value.last_mut().unwrap() ^= 1;
            assert!(sizes.check(&value, 5).is_err() && sizes.check_row(&sizes.key(5), &value).is_err());
        }
        assert!(add_to_first_word(&mut [1, 2, 3], 1).is_err());
    }
}
