//! Commands over all keys. They see the latest state, and cannot be part of a transaction: the engine
//! validates ranges of tables, not whole maps, so a phantom could slip in.

use kiln::planted::{Bug, planted};

use super::All;
use super::options::integer;
use crate::failure::Failure;
use crate::glob;
use crate::limits::REPLY_BYTES_MAX;
use crate::protocol::decoder::Arguments;
use crate::protocol::reply::Reply;

/// How many keys `SCAN` looks at if the client does not say.
const SCAN_COUNT_DEFAULT: usize = 10;
/// The most keys one `SCAN` looks at, whatever the client says: others wait for this thread meanwhile.
const SCAN_COUNT_MAX: usize = 1024;

/// `DBSIZE`, which like Redis' counts keys that have expired but are not deleted yet.
pub(crate) fn dbsize(all: &All<'_>, _: Arguments<'_>, reply: &mut Reply) -> Result<(), Failure> {
    reply.integer(i64::try_from(all.space.strings.len_estimate()).unwrap_or(i64::MAX));
    Ok(())
}

/// `KEYS pattern`, over one snapshot.
pub(crate) fn keys(all: &All<'_>, args: Arguments<'_>, reply: &mut Reply) -> Result<(), Failure> {
    let pattern = glob::bounded(args.at(1))?;
    let (mut found, mut count) = (Reply::default(), 0);
    for entry in all.snapshot.iter(&all.space.strings) {
        let (key, _) = entry?;
        if glob::matches(pattern, &key, false) {
            found.bulk(&key);
            count += 1;
            if found.len() > REPLY_BYTES_MAX {
                return Err(Failure::text("ERR the reply would be longer than 256 MiB; use SCAN"));
            }
        }
    }
    reply.array(count);
    reply.append(&found);
    Ok(())
}

/// What `SCAN` was asked for.
struct ScanOptions<'a> {
    pattern: Option<&'a [u8]>,
    count: usize,
    /// Whether strings, the only type there is, are wanted.
    strings: bool,
}

impl<'a> ScanOptions<'a> {
    fn parse(args: Arguments<'a>) -> Result<Self, Failure> {
        let mut options = Self { pattern: None, count: SCAN_COUNT_DEFAULT, strings: true };
        let mut words = args.from(2);
        while let Some(word) = words.next() {
            let value = words.next().ok_or(Failure::SYNTAX)?;
            match word.to_ascii_uppercase().as_slice() {
                b"MATCH" => options.pattern = Some(glob::bounded(value)?),
                b"COUNT" => {
                    let count = usize::try_from(integer(value)?).ok().filter(|count| *count > 0);
                    options.count = count.ok_or(Failure::SYNTAX)?.min(SCAN_COUNT_MAX);
                }
                b"TYPE" => options.strings = value.eq_ignore_ascii_case(b"string"),
                _ => return Err(Failure::SYNTAX),
            }
        }
        Ok(options)
    }
}

/// `SCAN cursor [MATCH pattern] [COUNT count] [TYPE type]`
pub(crate) fn scan(all: &All<'_>, args: Arguments<'_>, reply: &mut Reply) -> Result<(), Failure> {
    let cursor: u64 = std::str::from_utf8(args.at(1))
        .ok()
        .and_then(|cursor| cursor.parse().ok())
        .ok_or(Failure::text("ERR invalid cursor"))?;
    let options = ScanOptions::parse(args)?;
    let (next, mut found) = match planted(Bug::ScanHoldsValues) {
        true => {
            let (next, rows) = all.db.scan_map(&all.space.strings, cursor, options.count)?;
            (next, rows.into_iter().map(|(key, _)| key).collect())
        }
        false => all.db.scan_map_keys(&all.space.strings, cursor, options.count)?,
    };
    let matches = |key: &[u8]| options.pattern.is_none_or(|pattern| glob::matches(pattern, key, false));
    found.retain(|key| options.strings && matches(key));
    reply.array(2);
    reply.bulk(next.to_string().as_bytes());
    reply.array(found.len());
    found.iter().for_each(|key| reply.bulk(key));
    Ok(())
}
