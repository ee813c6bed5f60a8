//! Keys, whatever their values.

use super::options::integer;
use super::{unknown_subcommand, wrong_arity};
use crate::failure::Failure;
use crate::protocol::decoder::Arguments;
use crate::protocol::number::parse_integer;
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

/// `EXISTS key [key ...]` and `TOUCH key [key ...]`: nobody notes when a key was read last.
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

/// `RENAME key newkey`
pub(crate) fn rename(work: &mut Work<'_, '_>, args: Arguments<'_>) -> Result<(), Failure> {
    rename_if(work, args, |_, _| Ok(true))?;
    work.reply.ok();
    Ok(())
}

/// `RENAMENX key newkey`
pub(crate) fn renamenx(work: &mut Work<'_, '_>, args: Arguments<'_>) -> Result<(), Failure> {
    let renamed = rename_if(work, args, |work, key| Ok(!work.find(key)?.live))?;
    work.reply.integer(i64::from(renamed));
    Ok(())
}

/// Gives a key another name, if the new one allows it, and says whether.
fn rename_if(
    work: &mut Work<'_, '_>,
    args: Arguments<'_>,
    allows: impl FnOnce(&mut Work<'_, '_>, &[u8]) -> Result<bool, Failure>,
) -> Result<bool, Failure> {
    let (key, new) = (args.at(1), args.at(2));
    let entry = work.load(key)?;
    if !entry.live {
        return Err(Failure::text("ERR no such key"));
    }
    let allowed = allows(work, new)?;
    if allowed && key != new {
        work.copy(&entry, new)?;
        work.remove(&entry)?;
    }
    Ok(allowed)
}

/// `COPY source destination [DB 0] [REPLACE]`
pub(crate) fn copy(work: &mut Work<'_, '_>, args: Arguments<'_>) -> Result<(), Failure> {
    let mut replaces = false;
    let mut words = args.from(3);
    while let Some(word) = words.next() {
        match word.to_ascii_uppercase().as_slice() {
            b"REPLACE" => replaces = true,
            b"DB" => match integer(words.next().ok_or(Failure::SYNTAX)?)? {
                0 => {}
                _ => return Err(Failure::text("ERR DB index is out of range")),
            },
            _ => return Err(Failure::SYNTAX),
        }
    }
    let (source, destination) = (args.at(1), args.at(2));
    if source == destination {
        return Err(Failure::text("ERR source and destination objects are the same"));
    }
    let entry = work.load(source)?;
    let copies = entry.live && (replaces || !work.find(destination)?.live);
    if copies {
        work.copy(&entry, destination)?;
    }
    work.reply.integer(i64::from(copies));
    Ok(())
}

const OBJECT_HELP: &[&str] = &[
    "OBJECT <subcommand> [<arg> [value] [opt] ...]. Subcommands are:",
    "ENCODING <key>",
    "    Return how Redis would keep the string. Here all are kept alike.",
    "FREQ <key>",
    "    An error, as in Redis without an LFU policy.",
    "IDLETIME <key>",
    "    Return 0: nobody notes when a key was read last.",
    "REFCOUNT <key>",
    "    Return 1.",
];

/// `OBJECT subcommand key`
pub(crate) fn object(work: &mut Work<'_, '_>, args: Arguments<'_>) -> Result<(), Failure> {
    /// The longest string for which Redis needs one piece of memory.
    const EMBEDDED_BYTES_MAX: usize = 44;
    let name = args.at(1).to_ascii_uppercase();
    if name == b"HELP" {
        work.reply.array(OBJECT_HELP.len());
        OBJECT_HELP.iter().for_each(|line| work.reply.simple(line));
        return Ok(());
    }
    if ![b"ENCODING".as_slice(), b"FREQ", b"IDLETIME", b"REFCOUNT"].contains(&name.as_slice()) {
        return Err(unknown_subcommand("OBJECT", args.at(1)));
    }
    if args.len() != 3 {
        return Err(wrong_arity(&format!("object|{}", String::from_utf8_lossy(&name.to_ascii_lowercase()))));
    }
    let entry = work.load(args.at(2))?;
    if !entry.live {
        work.reply.null();
        return Ok(());
    }
    match name.as_slice() {
        b"ENCODING" => {
            let encoding = match work.string(&entry) {
                string if parse_integer(string).is_some() => "int",
                string if string.len() <= EMBEDDED_BYTES_MAX => "embstr",
                _ => "raw",
            };
            work.reply.bulk(encoding.as_bytes());
        }
        b"FREQ" => {
            return Err(Failure::text(
                "ERR An LFU maxmemory policy is not selected, access frequency not tracked. Please note that when \
                 switching between policies at runtime LRU and LFU data will take some time to adjust.",
            ));
        }
        b"IDLETIME" => work.reply.integer(0),
        _ => work.reply.integer(1),
    }
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
