//! Lifetimes of keys.

use std::borrow::Cow;

use super::options::{TimeUnit, integer, invalid_expire_time, unix_ms};
use crate::failure::Failure;
use crate::protocol::decoder::Arguments;
use crate::work::{Lifetime, UnixMs, Work};

/// `EXPIRE key seconds [NX | XX | GT | LT]`
pub(crate) fn expire(work: &mut Work<'_, '_>, args: Arguments<'_>) -> Result<(), Failure> {
    set_expiry(work, args, TimeUnit { milliseconds: false, relative: true }, "expire")
}

/// `PEXPIRE key milliseconds [NX | XX | GT | LT]`
pub(crate) fn pexpire(work: &mut Work<'_, '_>, args: Arguments<'_>) -> Result<(), Failure> {
    set_expiry(work, args, TimeUnit { milliseconds: true, relative: true }, "pexpire")
}

/// `EXPIREAT key unix-seconds [NX | XX | GT | LT]`
pub(crate) fn expireat(work: &mut Work<'_, '_>, args: Arguments<'_>) -> Result<(), Failure> {
    set_expiry(work, args, TimeUnit { milliseconds: false, relative: false }, "expireat")
}

/// `PEXPIREAT key unix-milliseconds [NX | XX | GT | LT]`
pub(crate) fn pexpireat(work: &mut Work<'_, '_>, args: Arguments<'_>) -> Result<(), Failure> {
    set_expiry(work, args, TimeUnit { milliseconds: true, relative: false }, "pexpireat")
}

/// When an expiry time may replace the one that is there.
#[derive(Debug, Default)]
struct Conditions {
    absent: bool,
    present: bool,
    greater: bool,
    less: bool,
}

impl Conditions {
    fn parse(args: Arguments<'_>) -> Result<Self, Failure> {
        let mut conditions = Self::default();
        for word in args.from(3) {
            let slot = match word.to_ascii_uppercase().as_slice() {
                b"NX" => &mut conditions.absent,
                b"XX" => &mut conditions.present,
                b"GT" => &mut conditions.greater,
                b"LT" => &mut conditions.less,
                _ => {
                    let word = String::from_utf8_lossy(&word[..word.len().min(128)]);
                    return Err(Failure::Reply(Cow::Owned(format!("ERR Unsupported option {word}"))));
                }
            };
            *slot = true;
        }
        if conditions.absent && (conditions.present || conditions.greater || conditions.less) {
            return Err(Failure::text("ERR NX and XX, GT or LT options at the same time are not compatible"));
        }
        if conditions.greater && conditions.less {
            return Err(Failure::text("ERR GT and LT options at the same time are not compatible"));
        }
        Ok(conditions)
    }

    /// Whether `new` may replace `old`. A key that never expires has an infinite time.
    fn allow(&self, old: Option<UnixMs>, new: i64) -> bool {
        let old_ms = old.map(|old| i64::try_from(old.0).unwrap_or(i64::MAX));
        !(self.absent && old.is_some()
            || self.present && old.is_none()
            || self.greater && old_ms.is_none_or(|old| new <= old)
            || self.less && old_ms.is_some_and(|old| new >= old))
    }
}

fn set_expiry(
    work: &mut Work<'_, '_>,
    args: Arguments<'_>,
    unit: TimeUnit,
    command: &str,
) -> Result<(), Failure> {
    let conditions = Conditions::parse(args)?;
    let now = work.now()?;
    let at = unix_ms(integer(args.at(2))?, unit, now).ok_or_else(|| invalid_expire_time(command))?;
    let entry = work.find(args.at(1))?;
    if !entry.live || !conditions.allow(entry.expires_at, at) {
        work.reply.integer(0);
        return Ok(());
    }
    // A time in the past deletes the key, as in Redis.
    match u64::try_from(at).map(UnixMs) {
        Ok(at) if at > now => work.set_lifetime(&entry, Lifetime::Until(at))?,
        _ => work.remove(&entry).map(drop)?,
    }
    work.reply.integer(1);
    Ok(())
}

/// `PERSIST key`
pub(crate) fn persist(work: &mut Work<'_, '_>, args: Arguments<'_>) -> Result<(), Failure> {
    let entry = work.find(args.at(1))?;
    let expires = entry.expires_at.is_some();
    if expires {
        work.set_lifetime(&entry, Lifetime::Forever)?;
    }
    work.reply.integer(i64::from(expires));
    Ok(())
}

/// `TTL key`
pub(crate) fn ttl(work: &mut Work<'_, '_>, args: Arguments<'_>) -> Result<(), Failure> {
    // Rounded to the nearest second, as Redis does, so that a TTL asked right after EXPIRE is what was set.
    remaining(work, args, |ms| ms.saturating_add(500) / 1000)
}

/// `PTTL key`
pub(crate) fn pttl(work: &mut Work<'_, '_>, args: Arguments<'_>) -> Result<(), Failure> {
    remaining(work, args, |ms| ms)
}

/// `EXPIRETIME key`
pub(crate) fn expiretime(work: &mut Work<'_, '_>, args: Arguments<'_>) -> Result<(), Failure> {
    tell_expiry(work, args, |at, _| at.saturating_add(500) / 1000)
}

/// `PEXPIRETIME key`
pub(crate) fn pexpiretime(work: &mut Work<'_, '_>, args: Arguments<'_>) -> Result<(), Failure> {
    tell_expiry(work, args, |at, _| at)
}

fn remaining(work: &mut Work<'_, '_>, args: Arguments<'_>, unit: fn(u64) -> u64) -> Result<(), Failure> {
    tell_expiry(work, args, |at, now| unit(at.saturating_sub(now)))
}

/// Replies with what is made of the time at which the key expires, and the current one, in milliseconds.
fn tell_expiry(
    work: &mut Work<'_, '_>,
    args: Arguments<'_>,
    tell: impl FnOnce(u64, u64) -> u64,
) -> Result<(), Failure> {
    let entry = work.find(args.at(1))?;
    let reply = match entry.expires_at {
        Some(at) => i64::try_from(tell(at.0, work.now()?.0)).unwrap_or(i64::MAX),
        None if entry.live => -1,
        None => -2,
    };
    work.reply.integer(reply);
    Ok(())
}
