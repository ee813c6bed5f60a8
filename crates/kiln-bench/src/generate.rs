//! Keys and values, shared by all engines.
//!
//! A key is computed from its index, which is cheaper than fetching it from a table of prepared keys: a table of a million keys
//! does not fit a core's own cache, so that every fetch would be a miss that is no part of the engine. The cost of what is here
//! is itself measured, by the engine `generator`, and reported with the figures.
//!
//! ```text
//!  key    16 bytes   mixed index (8, big endian) | index (8, big endian)
//!  value 100 bytes   index (8, little endian) | counter (8) | filler (76) | !index (8)
//! ```
//!
//! The mixed index makes neighbours in time no neighbours in order. A value names its key at both ends, so that a value of
//! another key, a torn one and a stale length are all found.

use anyhow::{Result, bail};

/// A key.
pub(crate) type Key = [u8; KEY_BYTES];
/// The size of a key.
pub(crate) const KEY_BYTES: usize = 16;
/// The size of a value.
pub(crate) const VALUE_BYTES: usize = 100;

/// The key with this index.
#[inline]
pub(crate) fn key(index: u64) -> Key {
    // Multiplying by an odd number is one-to-one, and this one (2^64 over the golden ratio) spreads neighbours furthest.
    let mixed = index.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let mut key = [0; KEY_BYTES];
    key[..8].copy_from_slice(&mixed.to_be_bytes());
    key[8..].copy_from_slice(&index.to_be_bytes());
    key
}

/// An endless uniform sequence of indexes below a count (xorshift64*).
pub(crate) struct Indexes {
    state: u64,
    count: u64,
}

impl Indexes {
    /// The sequence with this number: two numbers give unrelated sequences.
    pub(crate) fn new(number: u64, count: u64) -> Indexes {
        // The state must not be zero; neighbouring numbers must not begin alike.
        Indexes { state: (number + 1).wrapping_mul(0xD1B5_4A32_D192_ED03) | 1, count }
    }

    /// The next index.
    #[inline]
    pub(crate) fn next(&mut self) -> u64 {
        self.state ^= self.state >> 12;
        self.state ^= self.state << 25;
        self.state ^= self.state >> 27;
        let random = self.state.wrapping_mul(0x2545_F491_4F6C_DD1D);
        // The high half of the product is uniform below `count`, without a division.
        ((u128::from(random) * u128::from(self.count)) >> 64) as u64
    }

    /// The next `N` indexes, all different.
    #[inline]
    pub(crate) fn next_distinct<const N: usize>(&mut self) -> [u64; N] {
        let mut indexes = [0; N];
        let mut count = 0;
        while count < N {
            let index = self.next();
            if !indexes[..count].contains(&index) {
                indexes[count] = index;
                count += 1;
            }
        }
        indexes
    }
}

/// A value.
pub(crate) type Value = [u8; VALUE_BYTES];

/// A value whose filler is in place, to be stamped for one key after the other.
pub(crate) fn blank_value() -> Value {
    std::array::from_fn(|at| b'a' + (at % 26) as u8)
}

/// Makes `value` the value of the key with this index.
#[inline]
pub(crate) fn stamp(value: &mut Value, index: u64, counter: u64) {
    value[..8].copy_from_slice(&index.to_le_bytes());
    value[8..16].copy_from_slice(&counter.to_le_bytes());
    value[VALUE_BYTES - 8..].copy_from_slice(&(!index).to_le_bytes());
}

/// Checks that `value` is one of the key with this index, and returns its counter.
#[inline]
pub(crate) fn check(value: &[u8], index: u64) -> Result<u64> {
    if let Ok(value) = <&Value>::try_from(value)
        && value[..8] == index.to_le_bytes()
        && value[VALUE_BYTES - 8..] == (!index).to_le_bytes()
    {
        let mut counter = [0; 8];
        counter.copy_from_slice(&value[8..16]);
        return Ok(u64::from_le_bytes(counter));
    }
    bail!(
        "wrong value read: key {index} has {} bytes beginning {:02x?}",
        value.len(),
        &value[..value.len().min(16)]
    )
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn keys_differ_and_are_not_in_order_of_their_index() {
        let keys: Vec<_> = (0..10_000).map(key).collect();
        assert_eq!(keys.iter().collect::<HashSet<_>>().len(), keys.len());
        assert!(!keys.is_sorted());
    }

    #[test]
    fn indexes_stay_below_the_count_and_are_uniform() {
        let mut counts = [0_u32; 10];
        let mut indexes = Indexes::new(0, 10);
        for _ in 0..100_000 {
            counts[indexes.next() as usize] += 1;
        }
        assert!(counts.iter().all(|&count| (9_500..10_500).contains(&count)), "{counts:?}");
    }

    #[test]
    fn sequences_with_different_numbers_are_unrelated() {
        let first = |number| Indexes::new(number, 1 << 40).next();
        assert_eq!((0..1000).map(first).collect::<HashSet<_>>().len(), 1000);
    }

    #[test]
    fn distinct_indexes_are_distinct() {
        let mut indexes = Indexes::new(7, 3);
        for _ in 0..100 {
            let mut three = indexes.next_distinct::<3>();
            three.sort_unstable();
            assert_eq!(three, [0, 1, 2]);
        }
    }

    #[test]
    fn a_value_of_another_key_or_a_damaged_one_is_found() {
        let mut value = blank_value();
        stamp(&mut value, 5, 77);
        assert_eq!(check(&value, 5).unwrap(), 77);
        assert!(check(&value, 6).is_err());
        assert!(check(&value[1..], 5).is_err());
        assert!(check(&[], 5).is_err());
        value[VALUE_BYTES - 1] ^= 1;
        assert!(check(&value, 5).is_err());
    }
}
