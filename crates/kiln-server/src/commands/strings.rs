//! Strings: reading and writing whole values.

use super::options::{positive_lifetime, time_option};
use super::wrong_arity;
use crate::failure::Failure;
use crate::limits::REPLY_BYTES_MAX;
use crate::protocol::decoder::Arguments;
use crate::work::{Lifetime, Work};

/// `GET key`
pub(crate) fn get(work: &mut Work<'_, '_>, args: Arguments<'_>) -> Result<(), Failure> {
    let entry = work.load(args.at(1))?;
    work.reply_string(&entry);
    Ok(())
}

/// `MGET key [key ...]`
pub(crate) fn mget(work: &mut Work<'_, '_>, args: Arguments<'_>) -> Result<(), Failure> {
    let start = work.reply.len();
    work.reply.array(args.len() - 1);
    work.for_each_key(args.from(1), |work, key| {
        let entry = work.load(key)?;
        work.reply_string(&entry);
        if work.reply.len() - start > REPLY_BYTES_MAX {
            return Err(Failure::text("ERR the reply would be longer than 256 MiB; ask for fewer keys"));
        }
        if work.reply.has_room() { Ok(()) } else { Err(Failure::NO_ROOM) }
    })
}

/// `STRLEN key`
pub(crate) fn strlen(work: &mut Work<'_, '_>, args: Arguments<'_>) -> Result<(), Failure> {
    let length = work.length(args.at(1))?;
    work.reply.integer(length as i64);
    Ok(())
}

/// What `SET` was asked to do besides setting.
#[derive(Debug, Default)]
struct SetOptions<'a> {
    lifetime: Option<SetLifetime<'a>>,
    condition: Option<Condition>,
    get: bool,
}

#[derive(Debug)]
enum SetLifetime<'a> {
    Keep,
    Until(super::options::TimeUnit, &'a [u8]),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Condition {
    /// Only if the key exists.
    Exists,
    /// Only if it does not.
    Absent,
}

impl<'a> SetOptions<'a> {
    fn parse(args: Arguments<'a>) -> Result<Self, Failure> {
        let mut options = Self::default();
        let mut words = args.from(3);
        while let Some(word) = words.next() {
            if let Some(unit) = time_option(word) {
                let amount = words.next().ok_or(Failure::SYNTAX)?;
                // The same option again replaces the first; two different ones contradict each other.
                match &options.lifetime {
                    None => {}
                    Some(SetLifetime::Until(other, _)) if *other == unit => {}
                    Some(_) => return Err(Failure::SYNTAX),
                }
                options.lifetime = Some(SetLifetime::Until(unit, amount));
            } else if word.eq_ignore_ascii_case(b"KEEPTTL")
                && !matches!(options.lifetime, Some(SetLifetime::Until(..)))
            {
                options.lifetime = Some(SetLifetime::Keep);
            } else if word.eq_ignore_ascii_case(b"NX") && options.condition != Some(Condition::Exists) {
                options.condition = Some(Condition::Absent);
            } else if word.eq_ignore_ascii_case(b"XX") && options.condition != Some(Condition::Absent) {
                options.condition = Some(Condition::Exists);
            } else if word.eq_ignore_ascii_case(b"GET") {
                options.get = true;
            } else {
                return Err(Failure::SYNTAX);
            }
        }
        Ok(options)
    }
}

/// `SET key value [NX | XX] [GET] [EX s | PX ms | EXAT s | PXAT ms | KEEPTTL]`
pub(crate) fn set(work: &mut Work<'_, '_>, args: Arguments<'_>) -> Result<(), Failure> {
    let options = SetOptions::parse(args)?;
    let lifetime = match options.lifetime {
        None => Lifetime::Forever,
        Some(SetLifetime::Keep) => Lifetime::Kept,
        Some(SetLifetime::Until(unit, amount)) => {
            Lifetime::Until(positive_lifetime(amount, unit, work.now()?, "set")?)
        }
    };
    let entry = if options.get { work.load(args.at(1))? } else { work.find(args.at(1))? };
    let allowed = match options.condition {
        None => true,
        Some(Condition::Absent) => !entry.live,
        Some(Condition::Exists) => entry.live,
    };
    match (options.get, allowed) {
        (true, _) => work.reply_string(&entry),
        (false, true) => work.reply.ok(),
        (false, false) => work.reply.null(),
    }
    if !allowed {
        return Ok(());
    }
    // A time that has passed already (EXAT, PXAT) leaves no key, as in Redis.
    match lifetime {
        Lifetime::Until(at) if at <= work.now()? => work.remove(&entry).map(drop),
        _ => work.store(&entry, lifetime, args.at(2)),
    }
}

/// `SETNX key value`
pub(crate) fn setnx(work: &mut Work<'_, '_>, args: Arguments<'_>) -> Result<(), Failure> {
    let entry = work.find(args.at(1))?;
    if !entry.live {
        work.store(&entry, Lifetime::Forever, args.at(2))?;
    }
    work.reply.integer(i64::from(!entry.live));
    Ok(())
}

/// `SETEX key seconds value`
pub(crate) fn setex(work: &mut Work<'_, '_>, args: Arguments<'_>) -> Result<(), Failure> {
    set_with_lifetime(work, args, b"EX", "setex")
}

/// `PSETEX key milliseconds value`
pub(crate) fn psetex(work: &mut Work<'_, '_>, args: Arguments<'_>) -> Result<(), Failure> {
    set_with_lifetime(work, args, b"PX", "psetex")
}

fn set_with_lifetime(
    work: &mut Work<'_, '_>,
    args: Arguments<'_>,
    unit: &[u8],
    command: &str,
) -> Result<(), Failure> {
    let unit = time_option(unit).ok_or(Failure::SYNTAX)?;
    let until = positive_lifetime(args.at(2), unit, work.now()?, command)?;
    let entry = work.find(args.at(1))?;
    work.store(&entry, Lifetime::Until(until), args.at(3))?;
    work.reply.ok();
    Ok(())
}

/// `GETSET key value`
pub(crate) fn getset(work: &mut Work<'_, '_>, args: Arguments<'_>) -> Result<(), Failure> {
    let entry = work.load(args.at(1))?;
    work.reply_string(&entry);
    work.store(&entry, Lifetime::Forever, args.at(2))
}

/// `GETDEL key`
pub(crate) fn getdel(work: &mut Work<'_, '_>, args: Arguments<'_>) -> Result<(), Failure> {
    let entry = work.load(args.at(1))?;
    work.reply_string(&entry);
    work.remove(&entry).map(drop)
}

/// `GETEX key [EX s | PX ms | EXAT s | PXAT ms | PERSIST]`
pub(crate) fn getex(work: &mut Work<'_, '_>, args: Arguments<'_>) -> Result<(), Failure> {
    let lifetime = match (args.get(2), args.get(3), args.len()) {
        (None, ..) => None,
        (Some(word), None, _) if word.eq_ignore_ascii_case(b"PERSIST") => Some(None),
        (Some(word), Some(amount), 4) => Some(Some((time_option(word).ok_or(Failure::SYNTAX)?, amount))),
        _ => return Err(Failure::SYNTAX),
    };
    let entry = work.load(args.at(1))?;
    // Redis looks at the amount only if there is a key.
    let lifetime = match lifetime {
        _ if !entry.live => None,
        Some(Some((unit, amount))) => {
            Some(Lifetime::Until(positive_lifetime(amount, unit, work.now()?, "getex")?))
        }
        Some(None) => entry.expires_at.map(|_| Lifetime::Forever),
        None => None,
    };
    work.reply_string(&entry);
    match lifetime {
        None => Ok(()),
        Some(Lifetime::Until(at)) if at <= work.now()? => work.remove(&entry).map(drop),
        Some(lifetime) => work.set_lifetime(&entry, lifetime),
    }
}

/// `APPEND key value`
pub(crate) fn append(work: &mut Work<'_, '_>, args: Arguments<'_>) -> Result<(), Failure> {
    let entry = work.load(args.at(1))?;
    let length = work.overwrite(&entry, work.string(&entry).len(), args.at(2))?;
    work.reply.integer(length as i64);
    Ok(())
}

/// `MSET key value [key value ...]`
pub(crate) fn mset(work: &mut Work<'_, '_>, args: Arguments<'_>) -> Result<(), Failure> {
    check_pairs(args, "mset")?;
    store_pairs(work, args)?;
    work.reply.ok();
    Ok(())
}

/// `MSETNX key value [key value ...]`
pub(crate) fn msetnx(work: &mut Work<'_, '_>, args: Arguments<'_>) -> Result<(), Failure> {
    check_pairs(args, "msetnx")?;
    let mut is_any_there = false;
    work.for_each_key(args.from(1).step_by(2), |work, key| {
        is_any_there = is_any_there || work.find(key)?.live;
        Ok(())
    })?;
    if !is_any_there {
        store_pairs(work, args)?;
    }
    work.reply.integer(i64::from(!is_any_there));
    Ok(())
}

fn check_pairs(args: Arguments<'_>, command: &str) -> Result<(), Failure> {
    if args.len().is_multiple_of(2) { Err(wrong_arity(command)) } else { Ok(()) }
}

fn store_pairs(work: &mut Work<'_, '_>, args: Arguments<'_>) -> Result<(), Failure> {
    let mut values = args.from(2).step_by(2);
    work.for_each_key(args.from(1).step_by(2), |work, key| {
        let entry = work.find(key)?;
        work.store(&entry, Lifetime::Forever, values.next().unwrap_or_default())
    })
}
