//! Options that several commands share: lifetimes, integers.

use std::borrow::Cow;

use crate::failure::Failure;
use crate::protocol::number::parse_integer;
use crate::work::UnixMs;

/// An integer argument.
pub(crate) fn integer(text: &[u8]) -> Result<i64, Failure> {
    parse_integer(text).ok_or(Failure::NOT_AN_INTEGER)
}

/// How a time is given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TimeUnit {
    pub(crate) milliseconds: bool,
    /// From now on, or since 1970.
    pub(crate) relative: bool,
}

/// The option `EX`, `PX`, `EXAT` or `PXAT`.
pub(crate) fn time_option(name: &[u8]) -> Option<TimeUnit> {
    let unit = |milliseconds, relative| Some(TimeUnit { milliseconds, relative });
    match name.to_ascii_uppercase().as_slice() {
        b"EX" => unit(false, true),
        b"PX" => unit(true, true),
        b"EXAT" => unit(false, false),
        b"PXAT" => unit(true, false),
        _ => None,
    }
}

/// The time at which a key expires, as [`TimeUnit`] says; negative if before 1970. `None` if it is out of
/// range.
pub(crate) fn unix_ms(amount: i64, unit: TimeUnit, now: UnixMs) -> Option<i64> {
    let ms = if unit.milliseconds { amount } else { amount.checked_mul(1000)? };
    if unit.relative { ms.checked_add(i64::try_from(now.0).ok()?) } else { Some(ms) }
}

/// The lifetime that a command which writes a value takes: it must lie in the future of 1970 and be a
/// positive amount.
pub(crate) fn positive_lifetime(
    text: &[u8],
    unit: TimeUnit,
    now: UnixMs,
    command: &str,
) -> Result<UnixMs, Failure> {
    let amount = integer(text)?;
    let at = if amount > 0 { unix_ms(amount, unit, now) } else { None };
    at.and_then(|at| u64::try_from(at).ok()).map(UnixMs).ok_or_else(|| invalid_expire_time(command))
}

/// The error for a lifetime out of range.
pub(crate) fn invalid_expire_time(command: &str) -> Failure {
    Failure::Reply(Cow::Owned(format!("ERR invalid expire time in '{command}' command")))
}
