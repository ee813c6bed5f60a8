//! Commands over all keys. They see the latest state, and cannot be part of a transaction: the engine
//! validates ranges of tables, not whole maps, so a phantom could slip in. (That of a `SCAN` alone reads nothing itself.)

use std::time::{Duration, Instant};

use kiln::{Map, Snapshot};

use super::All;
use super::options::integer;
use crate::failure::Failure;
use crate::glob;
use crate::keyspace::Space;
use crate::limits::{COMMAND_TIME_MAX, KEY_BYTES_MAX, REPLY_BYTES_MAX};
use crate::protocol::decoder::Arguments;
use crate::protocol::reply::Reply;
use crate::shared::Shared;
use crate::work::Work;

/// How many keys `SCAN` looks at if the client does not say.
const SCAN_COUNT_DEFAULT: usize = 10;
/// The most keys one `SCAN` looks at, whatever the client says: others wait for this thread meanwhile.
const SCAN_COUNT_MAX: usize = 1024;
/// When one `SCAN` may have compared so many bytes it ends, with a cursor to go on from: the longest pattern and key come to as many. For what patterns and keys usually are it is as
/// many keys as it was asked for.
const SCAN_COMPARED_BYTES: usize = 64 * 1024 * 1024;
/// When one `SCAN` has taken so long, such as for keys that are on disk, it ends likewise: whoever flushes waits for it, and everybody for them.
const SCAN_TIME_MAX: Duration = Duration::from_millis(50);
/// After how many keys it is looked at these: as many as could come to four times the bytes, but no fewer and no more than so many.
const SCAN_GROUP_KEYS_MIN: usize = 16;
const SCAN_GROUP_KEYS_MAX: usize = 64;

/// `DBSIZE`, which like Redis' counts keys that have expired but are not deleted yet.
pub(crate) fn dbsize(_: &Shared, space: &Space, _: Arguments<'_>, reply: &mut Reply) {
    reply.integer(i64::try_from(space.strings.len_estimate()).unwrap_or(i64::MAX));
}

/// `KEYS pattern`, over one snapshot.
pub(crate) fn keys(all: &All<'_>, args: Arguments<'_>, reply: &mut Reply) -> Result<(), Failure> {
    matching_keys(all.shared, (&all.snapshot, Some(&all.strings)), glob::bounded(args.at(1))?, reply)
}

/// Replies with all keys of a snapshot that match, if anything held keys then. Nobody may be waiting for that any more, and the walk takes a thread.
pub(super) fn matching_keys(
    shared: &Shared,
    (snapshot, strings): (&Snapshot<'_>, Option<&Map>),
    pattern: &[u8],
    reply: &mut Reply,
) -> Result<(), Failure> {
    let (mut found, mut count, began) = (reply.beside(), 0, Instant::now());
    for entry in strings.iter().flat_map(|strings| snapshot.iter(strings)) {
        let (key, _) = entry?;
        if began.elapsed() > COMMAND_TIME_MAX {
            return Err(Failure::Limit("LIMIT the command takes longer than 10 s; use SCAN"));
        }
        if shared.is_stopping() {
            return Err(Failure::text("ERR the server is ending"));
        }
        if glob::matches(pattern, &key, false) {
            found.bulk(&key);
            count += 1;
            if found.len() > REPLY_BYTES_MAX {
                return Err(Failure::text("ERR the reply would be longer than 256 MiB; use SCAN"));
            }
            if !found.has_room() {
                return Err(Failure::NO_ROOM);
            }
        }
    }
    reply.array(count);
    reply.append(&found);
    drop(found);
    if reply.has_room() { Ok(()) } else { Err(Failure::NO_ROOM) }
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

    /// How many keys are fetched at once.
    fn group_keys(&self) -> usize {
        let compared = self.pattern.map_or(1, |pattern| pattern.len().max(1)) * KEY_BYTES_MAX;
        (4 * SCAN_COMPARED_BYTES / compared).clamp(SCAN_GROUP_KEYS_MIN, SCAN_GROUP_KEYS_MAX)
    }

    fn wants(&self, key: &[u8]) -> bool {
        self.strings && self.pattern.is_none_or(|pattern| glob::matches(pattern, key, false))
    }
}

/// `SCAN cursor [MATCH pattern] [COUNT count] [TYPE type]`
pub(crate) fn scan(work: &mut Work<'_, '_>, args: Arguments<'_>) -> Result<(), Failure> {
    let cursor: u64 = std::str::from_utf8(args.at(1))
        .ok()
        .and_then(|cursor| cursor.parse().ok())
        .ok_or(Failure::text("ERR invalid cursor"))?;
    let options = ScanOptions::parse(args)?;
    let (mut next, mut looked, mut compared, mut found) = (cursor, 0, 0, Vec::new());
    let began = Instant::now();
    while looked < options.count && compared < SCAN_COMPARED_BYTES {
        let count = options.group_keys().min(options.count - looked);
        let (cursor, keys) = work.keyspace.scan(work.space, next, count)?;
        next = cursor;
        looked += keys.len();
        // There are no more, or few among many others, of which it has looked at as many as it may.
        let ended = next == 0 || keys.len() < count;
        for key in keys {
            compared += options.pattern.map_or(0, <[u8]>::len) * key.len();
            if options.wants(&key) {
                found.push(key);
            }
        }
        if ended || began.elapsed() > SCAN_TIME_MAX {
            break;
        }
    }
    work.reply.array(2);
    work.reply.bulk(next.to_string().as_bytes());
    work.reply.array(found.len());
    found.iter().for_each(|key| work.reply.bulk(key));
    Ok(())
}
