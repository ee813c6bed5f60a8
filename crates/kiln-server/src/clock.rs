//! The wall clock, which decides when keys expire. The only place of this crate that reads it.

use std::time::{SystemTime, UNIX_EPOCH};

/// Milliseconds since 1970, the unit in which expiry times are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct UnixMs(pub(crate) u64);

/// The time now. A clock set before 1970 reads as 1970: keys then do not expire until it is set right.
pub(crate) fn now() -> UnixMs {
    let elapsed = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    UnixMs(u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX))
}
