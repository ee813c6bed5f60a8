//! `KILN`, `WAIT` and `WAITAOF`: durability as something that a client chooses, sees and waits for.

use std::time::Duration;

use kiln::{Level, Progress, Version};

use super::options::integer;
use super::{Context, sessions, snapshots, unknown_subcommand, wrong_arity};
use crate::client::Durability;
use crate::failure::{Failure, engine_error};
use crate::protocol::decoder::Arguments;
use crate::protocol::reply::Reply;
use crate::shared::Shared;
use crate::turns::{Waiting, leaving_thread};

const HELP: &[&str] = &[
    "KILN <subcommand> [<arg> ...]. Subcommands are:",
    "BACKUP <name>",
    "    Copy the database, while others go on, into a new directory of that name where the server keeps backups.",
    "    Return the version up to which the copy has everything.",
    "COMPACT",
    "    Make the database's files as short as they can be, while others go on. Return their bytes before and after.",
    "DURABILITY [fast|safe]",
    "    Return or set when this connection's writes are answered: 'safe' when durable, 'fast' when committed.",
    "HORIZON",
    "    Return the highest version that is durable.",
    "RECEIPT",
    "    Return the version of this connection's last write, or nil.",
    "SERIAL",
    "    Return the serial number of this session's last write.",
    "SESSION <id>",
    "    Name this connection's session and return its recovered serial number: that many of its writes are durable.",
    "SESSIONS FORGET <id> [<serial>]",
    "    Forget a session that nobody has, if its serial number is this one still: return 1 when that is durable, or 0 if it is not there.",
    "SESSIONS LIST <cursor> [COUNT <count>]",
    "    Return a cursor, and id, serial number, durable serial number and 1 if it is open of sessions. '' begins, and ends.",
    "SNAPSHOT CREATE|DROP <name>",
    "    Make a snapshot with a name, which stays until it is dropped, and return its version; or drop it.",
    "SNAPSHOT GET <name> <key>",
    "    Return the string that the key had in that snapshot, or nil.",
    "SNAPSHOT KEYS <name> <pattern>",
    "    Return the keys that there were in that snapshot and match the pattern.",
    "SNAPSHOT LIST",
    "    Return name, version, when it was made (Unix time in seconds) and the bytes of log held of each snapshot.",
    "SNAPSHOT MGET <name> <key> [<key> ...]",
    "    Return the strings that the keys had in that snapshot.",
    "WAIT <version> <timeout-ms>",
    "    Return 1 when the version is durable, 0 when the time is over (0: no limit).",
    "Errors: LOST (not made durable: reopen, and look what is there), NOSPACE (free space and retry), LIMIT (make it smaller),",
    "CONFLICT (retry), BUSY (somebody does it: retry), LOCKED (the session is open elsewhere: retry), CORRUPTED (restore).",
];

/// A wait for durability that a command asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Wait {
    /// What to wait for; nothing to wait for if `None`.
    pub(crate) version: Option<Version>,
    /// How long; without limit if `None`. Zero asks how things are, and hardens nothing.
    pub(crate) timeout: Option<Duration>,
    pub(crate) answer: Answer,
}

/// How a wait is answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Answer {
    /// `KILN WAIT`: 1 or 0.
    Integer,
    /// `WAITAOF`: how many local and how many remote logs have it.
    Pair,
    /// `KILN SESSION`: the serial number that is durable then.
    Serial(u64),
}

impl Wait {
    /// Writes the reply once it is known whether the version is durable.
    pub(crate) fn answer(&self, durable: bool, reply: &mut Reply) {
        match self.answer {
            Answer::Integer => reply.integer(i64::from(durable)),
            Answer::Serial(serial) => reply.integer(serial_number(serial)),
            Answer::Pair => {
                reply.array(2);
                reply.integer(i64::from(durable));
                reply.integer(0);
            }
        }
    }

    /// Answers at once with what is so now: all that is asked for, or inside `EXEC`, where nothing may wait.
    pub(crate) fn answer_now(&self, shared: &Shared, reply: &mut Reply) {
        let receipt = self.version.map(|version| shared.db.receipt(version));
        let progress = receipt.as_ref().map_or(Progress::Durable, |receipt| receipt.poll(Level::LOCAL));
        // What is lost is said, with the reason; to ask for that does not wait.
        if let (Progress::Lost, Some(receipt)) = (progress, receipt)
            && let Err(error) = receipt.wait(Level::LOCAL)
        {
            return reply.error(engine_error(&error));
        }
        let durable = progress == Progress::Durable;
        self.answer(durable, reply);
    }
}

/// `WAIT numreplicas timeout`. There are no replicas and there can be none, so waiting for them would be in
/// vain.
pub(crate) fn wait(args: Arguments<'_>, reply: &mut Reply) -> Result<(), Failure> {
    integer(args.at(1))?;
    timeout(args.at(2))?;
    reply.integer(0);
    Ok(())
}

/// `WAITAOF numlocal numreplicas timeout`: waits for this connection's writes so far.
pub(crate) fn waitaof(args: Arguments<'_>, last: Option<Version>) -> Result<Wait, Failure> {
    let numlocal = integer(args.at(1))?;
    if !(0..=1).contains(&numlocal) {
        return Err(Failure::text("ERR value is out of range, must be between 0 and 1"));
    }
    if integer(args.at(2))? < 0 {
        return Err(Failure::text("ERR value is out of range, must be positive"));
    }
    let timeout = timeout(args.at(3))?;
    // `numlocal` 0 asks how things are; nothing is waited for.
    let timeout = if numlocal == 0 { Some(Duration::ZERO) } else { timeout };
    Ok(Wait { version: last, timeout, answer: Answer::Pair })
}

/// A time to wait in milliseconds; 0 is no limit.
fn timeout(text: &[u8]) -> Result<Option<Duration>, Failure> {
    let ms = integer(text).map_err(|_| Failure::text("ERR timeout is not an integer or out of range"))?;
    let ms = u64::try_from(ms).map_err(|_| Failure::text("ERR timeout is negative"))?;
    Ok((ms > 0).then(|| Duration::from_millis(ms)))
}

/// What a subcommand may have to wait for on its thread.
pub(crate) fn waits(args: Arguments<'_>) -> Option<Waiting> {
    match args.at(1).to_ascii_uppercase().as_slice() {
        b"BACKUP" | b"COMPACT" | b"SESSION" => Some(Waiting::Commit),
        b"SESSIONS" => sessions::waits(args),
        b"SNAPSHOT" => snapshots::waits(args),
        _ => None,
    }
}

/// `KILN subcommand ...`. A wait, if the subcommand is one.
pub(crate) fn kiln(context: &mut Context<'_>, args: Arguments<'_>) -> Result<Option<Wait>, Failure> {
    let name = args.at(1);
    let arity = |expected: usize, full_name: &str| {
        if args.len() == expected { Ok(()) } else { Err(wrong_arity(full_name)) }
    };
    match name.to_ascii_uppercase().as_slice() {
        b"BACKUP" => {
            arity(3, "kiln|backup")?;
            backup(context, args.at(2))?;
        }
        b"COMPACT" => {
            arity(2, "kiln|compact")?;
            let shared = context.shared;
            let Some(_alone) = shared.compacting.try_lock() else {
                return Err(Failure::text("BUSY the database is being compacted"));
            };
            let compacted = leaving_thread(Waiting::Commit, || shared.db.compact(|_| {}))?;
            context.reply.array(2);
            for bytes in [compacted.bytes_before, compacted.bytes_after] {
                context.reply.integer(i64::try_from(bytes).unwrap_or(i64::MAX));
            }
        }
        b"DURABILITY" => durability(context, args)?,
        b"HORIZON" => {
            arity(2, "kiln|horizon")?;
            reply_version(context.reply, context.shared.db.horizon(Level::LOCAL));
        }
        b"RECEIPT" => {
            arity(2, "kiln|receipt")?;
            match context.client.last_version {
                Some(version) => reply_version(context.reply, version),
                None => context.reply.null(),
            }
        }
        b"SERIAL" => {
            arity(2, "kiln|serial")?;
            let session =
                context.client.session.as_ref().ok_or(Failure::text(
                    "ERR this connection has no session; name one with KILN SESSION id",
                ))?;
            context.reply.integer(serial_number(session.serial()));
        }
        b"SESSION" => {
            arity(3, "kiln|session")?;
            return sessions::session(context, args.at(2));
        }
        b"SESSIONS" => sessions::sessions(context, args)?,
        b"SNAPSHOT" => snapshots::snapshot(context, args)?,
        b"WAIT" => {
            arity(4, "kiln|wait")?;
            return wait_version(context, args).map(Some);
        }
        b"HELP" => super::client::help(context, HELP),
        _ => return Err(unknown_subcommand("KILN", name)),
    }
    Ok(None)
}

/// `KILN BACKUP name`. The client's reply comes when the copy is durable; others are served meanwhile.
fn backup(context: &mut Context<'_>, name: &[u8]) -> Result<(), Failure> {
    let Some(backups) = &context.shared.options.backups else {
        return Err(Failure::text(
            "ERR the server has no directory for backups; start it with kiln serve --backups DIRECTORY",
        ));
    };
    // A plain name, so that nothing is written elsewhere.
    let is_plain = |name: &&str| {
        !name.starts_with('.')
            && name.chars().all(|char| char.is_ascii_alphanumeric() || "-_.".contains(char))
    };
    let name = std::str::from_utf8(name).ok().filter(|name| !name.is_empty()).filter(is_plain);
    let name = name.ok_or(Failure::text("ERR a backup's name has letters, digits, '-', '_' and '.' only"))?;
    let directory = backups.join(name);
    let Some(_alone) = context.shared.copying.try_lock() else {
        return Err(Failure::text("BUSY another backup is being made; retry when it is done"));
    };
    let backup = leaving_thread(Waiting::Commit, || context.shared.db.backup(directory, |_| {}))?;
    reply_version(context.reply, backup.horizon);
    Ok(())
}

pub(super) fn reply_version(reply: &mut Reply, version: Version) {
    reply.integer(serial_number(version.number()));
}

/// RESP integers are signed; no counter of the engine gets there in the life of a disk.
pub(super) fn serial_number(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

fn durability(context: &mut Context<'_>, args: Arguments<'_>) -> Result<(), Failure> {
    match (args.get(2), args.len()) {
        (None, _) => context.reply.bulk(context.client.durability.name().as_bytes()),
        (Some(mode), 3) => {
            context.client.durability = Durability::parse(mode)
                .ok_or(Failure::text("ERR the durability of a connection is 'fast' or 'safe'"))?;
            context.reply.ok();
        }
        _ => return Err(wrong_arity("kiln|durability")),
    }
    Ok(())
}

fn wait_version(context: &Context<'_>, args: Arguments<'_>) -> Result<Wait, Failure> {
    let number = u64::try_from(integer(args.at(2))?)
        .map_err(|_| Failure::text("ERR value is out of range, must be positive"))?;
    let version = Version::new(number);
    let current = context.shared.db.version();
    if version > current {
        let text = format!("ERR version {version} has not begun; the current version is {current}");
        return Err(Failure::Reply(text.into()));
    }
    Ok(Wait { version: Some(version), timeout: timeout(args.at(3))?, answer: Answer::Integer })
}
