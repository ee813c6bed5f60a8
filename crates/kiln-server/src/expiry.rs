//! When a key expires, and how that is stored.
//!
//! A value is stored as the client sent it. The time at which its key expires is stored apart from it, twice:
//!
//! ```text
//! lifetimes (map)    key ──▶ unix ms (8) ║ nonce (8)           what a command looks at
//! expiries  (table)          unix ms (8) ║ nonce (8) ──▶ key   what the sweep walks, in the order of time
//! ```
//!
//! Integers are big-endian. Each of the two is found from the other, so the transaction that changes one
//! always changes both. The nonce keeps keys apart that expire in the same millisecond; the alternative, the
//! key itself in the row's key, would make the longest keys too long. A header in front of the value, the
//! other alternative, would make `EXPIRE` write the whole value again, the longest values too long, and the
//! map `strings` unreadable for everybody else.

use crate::clock::UnixMs;

/// The length of an expiry on disk.
const EXPIRY_BYTES: usize = 16;

/// When a key expires.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Expiry {
    /// From this time on the key is absent.
    pub(crate) at: UnixMs,
    /// Tells apart the keys that expire in the same millisecond.
    pub(crate) nonce: u64,
}

impl Expiry {
    /// As stored. The bytes sort by time.
    pub(crate) fn encode(&self) -> [u8; EXPIRY_BYTES] {
        let mut bytes = [0; EXPIRY_BYTES];
        bytes[..8].copy_from_slice(&self.at.0.to_be_bytes());
        bytes[8..].copy_from_slice(&self.nonce.to_be_bytes());
        bytes
    }

    /// Reads what [`Self::encode`] wrote. `None`: somebody else wrote it.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let (at, nonce) = bytes.split_first_chunk::<8>()?;
        Some(Self { at: UnixMs(u64::from_be_bytes(*at)), nonce: u64::from_be_bytes(nonce.try_into().ok()?) })
    }

    /// Whether the key is absent at `now`.
    pub(crate) fn is_over(&self, now: UnixMs) -> bool {
        self.at <= now
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expiries_survive_the_round_trip_and_sort_by_time() {
        let expiry = |at, nonce| Expiry { at: UnixMs(at), nonce };
        for it in [expiry(0, 0), expiry(5, 6), expiry(u64::MAX, 7)] {
            assert_eq!(Expiry::decode(&it.encode()), Some(it));
        }
        assert!(expiry(1, u64::MAX).encode() < expiry(2, 0).encode());
        assert!(expiry(255, 0).encode() < expiry(256, 0).encode());
    }

    #[test]
    fn foreign_bytes_are_not_taken_for_an_expiry() {
        for bytes in [b"".as_slice(), b"short", &[0; 15], &[0; 17]] {
            assert_eq!(Expiry::decode(bytes), None);
        }
    }
}
