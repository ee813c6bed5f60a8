//! Keys, whatever their values.

use crate::failure::Failure;
use crate::protocol::decoder::Arguments;
use crate::work::Work;

/// `DEL key [key ...]` and `UNLINK key [key ...]`
pub(crate) fn del(work: &mut Work<'_, '_>, args: Arguments<'_>) -> Result<(), Failure> {
    let mut count = 0;
    work.for_each_key(args.from(1), |work, key| {
        let entry = work.find(key)?;
        count += i64::from(work.remove(&entry)?);
        Ok(())
    })?;
    work.reply.integer(count);
    Ok(())
}

/// `EXISTS key [key ...]`
pub(crate) fn exists(work: &mut Work<'_, '_>, args: Arguments<'_>) -> Result<(), Failure> {
    let mut count = 0;
    work.for_each_key(args.from(1), |work, key| {
        count += i64::from(work.find(key)?.live);
        Ok(())
    })?;
    work.reply.integer(count);
    Ok(())
}

/// `TYPE key`
pub(crate) fn type_of(work: &mut Work<'_, '_>, args: Arguments<'_>) -> Result<(), Failure> {
    let live = work.find(args.at(1))?.live;
    work.reply.simple(if live { "string" } else { "none" });
    Ok(())
}

/// `FLUSHDB [ASYNC | SYNC]` and `FLUSHALL [ASYNC | SYNC]`, which do the same: either way the keys are gone
/// for every client at once, and their space is given back in the background.
pub(crate) fn flush(work: &mut Work<'_, '_>, args: Arguments<'_>) -> Result<(), Failure> {
    match args.get(1) {
        None => {}
        Some(how) if how.eq_ignore_ascii_case(b"ASYNC") || how.eq_ignore_ascii_case(b"SYNC") => {}
        Some(_) => return Err(Failure::SYNTAX),
    }
    if args.len() > 2 {
        return Err(Failure::SYNTAX);
    }
    // Whoever runs commands that flush provides empty objects for each.
    let space = work.vacant.next().ok_or(Failure::text("ERR FLUSHDB found no empty objects"))?;
    work.keyspace.make_current(work.tx, space)?;
    work.space = space;
    work.changed = true;
    work.reply.ok();
    Ok(())
}
