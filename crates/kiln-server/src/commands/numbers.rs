//! Strings that are numbers.

use super::options::integer;
use crate::failure::Failure;
use crate::float;
use crate::protocol::decoder::Arguments;
use crate::protocol::number::parse_integer;
use crate::work::{Lifetime, Work};

/// `INCR key`
pub(crate) fn incr(work: &mut Work<'_, '_>, args: Arguments<'_>) -> Result<(), Failure> {
    add(work, args.at(1), 1)
}

/// `DECR key`
pub(crate) fn decr(work: &mut Work<'_, '_>, args: Arguments<'_>) -> Result<(), Failure> {
    add(work, args.at(1), -1)
}

/// `INCRBY key increment`
pub(crate) fn incrby(work: &mut Work<'_, '_>, args: Arguments<'_>) -> Result<(), Failure> {
    add(work, args.at(1), integer(args.at(2))?)
}

/// `DECRBY key decrement`
pub(crate) fn decrby(work: &mut Work<'_, '_>, args: Arguments<'_>) -> Result<(), Failure> {
    let decrement = integer(args.at(2))?;
    let increment = decrement.checked_neg().ok_or(Failure::text("ERR decrement would overflow"))?;
    add(work, args.at(1), increment)
}

fn add(work: &mut Work<'_, '_>, key: &[u8], increment: i64) -> Result<(), Failure> {
    let entry = work.load(key)?;
    let old =
        if entry.live { parse_integer(work.string(&entry)).ok_or(Failure::NOT_AN_INTEGER)? } else { 0 };
    let new = old.checked_add(increment).ok_or(Failure::text("ERR increment or decrement would overflow"))?;
    work.store(&entry, Lifetime::Kept, itoa::Buffer::new().format(new).as_bytes())?;
    work.reply.integer(new);
    Ok(())
}

/// `INCRBYFLOAT key increment`
pub(crate) fn incrbyfloat(work: &mut Work<'_, '_>, args: Arguments<'_>) -> Result<(), Failure> {
    let entry = work.load(args.at(1))?;
    let old = if entry.live { work.string(&entry) } else { b"0" };
    let old = float::parse(old).ok_or(Failure::NOT_A_FLOAT)?;
    let increment = float::parse(args.at(2)).ok_or(Failure::NOT_A_FLOAT)?;
    let new =
        float::add(old, increment).ok_or(Failure::text("ERR increment would produce NaN or Infinity"))?;
    let text = float::format(new);
    work.store(&entry, Lifetime::Kept, text.as_bytes())?;
    work.reply.bulk(text.as_bytes());
    Ok(())
}
