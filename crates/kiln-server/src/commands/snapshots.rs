//! `KILN SNAPSHOT`: snapshots that have names, made, listed, read and dropped.

use std::time::{Instant, SystemTime};

use super::durability::{reply_version, serial_number};
use super::scan::matching_keys;
use super::{Context, unknown_subcommand, wrong_arity};
use crate::failure::Failure;
use crate::glob;
use crate::keyspace::Keyspace;
use crate::limits::{COMMAND_TIME_MAX, REPLY_BYTES_MAX};
use crate::protocol::decoder::Arguments;
use crate::turns::{Waiting, leaving_thread};

/// What an action may have to wait for on its thread: those that change something for the disk, as commits do.
pub(super) fn waits(args: Arguments<'_>) -> Option<Waiting> {
    match args.get(2)?.to_ascii_uppercase().as_slice() {
        b"CREATE" | b"DROP" => Some(Waiting::Commit),
        b"GET" | b"KEYS" | b"MGET" => Some(Waiting::Read),
        _ => None,
    }
}

/// `KILN SNAPSHOT CREATE name`, `DROP name`, `LIST`, `GET name key`, `MGET name key [key ...]` and `KEYS name pattern`. What was made or dropped is durable when that is
/// answered; what is read has been since the snapshot was made.
pub(super) fn snapshot(context: &mut Context<'_>, args: Arguments<'_>) -> Result<(), Failure> {
    let shared = context.shared;
    let action = args.get(2).ok_or(wrong_arity("kiln|snapshot"))?.to_ascii_uppercase();
    let takes = |count: bool| if count { Ok(()) } else { Err(wrong_arity("kiln|snapshot")) };
    match action.as_slice() {
        b"CREATE" => {
            takes(args.len() == 4)?;
            let name = name(args)?;
            let info = leaving_thread(Waiting::Commit, || shared.db.create_snapshot(name))?;
            reply_version(context.reply, info.version);
        }
        b"DROP" => {
            takes(args.len() == 4)?;
            let name = name(args)?;
            leaving_thread(Waiting::Commit, || shared.db.drop_snapshot(name))?;
            context.reply.ok();
        }
        b"LIST" => {
            takes(args.len() == 3)?;
            list(context);
        }
        b"GET" => {
            takes(args.len() == 5)?;
            leaving_thread(Waiting::Read, || get(context, args))?;
        }
        b"MGET" => {
            takes(args.len() >= 5)?;
            context.reply.array(args.len() - 4);
            leaving_thread(Waiting::Read, || get(context, args))?;
        }
        b"KEYS" => {
            takes(args.len() == 5)?;
            let snapshot = shared.db.open_snapshot(name(args)?)?;
            let pattern = glob::bounded(args.at(4))?;
            leaving_thread(Waiting::Read, || {
                let strings = Keyspace::at(&snapshot)?;
                matching_keys(shared, (&snapshot, strings.as_ref()), pattern, context.reply)
            })?;
        }
        _ => return Err(unknown_subcommand("KILN", &[b"SNAPSHOT ", args.at(2)].concat())),
    }
    Ok(())
}

fn name(args: Arguments<'_>) -> Result<&str, Failure> {
    std::str::from_utf8(args.at(3)).map_err(|_| Failure::text("ERR a snapshot's name is UTF-8"))
}

fn list(context: &mut Context<'_>) {
    let snapshots = context.shared.db.snapshots();
    context.reply.array(snapshots.len());
    for info in snapshots {
        let since = info.created.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        context.reply.array(4);
        context.reply.bulk(info.name.as_bytes());
        reply_version(context.reply, info.version);
        context.reply.integer(serial_number(since.as_secs()));
        context.reply.integer(serial_number(info.held_bytes));
    }
}

/// Replies with the strings that keys had, or nulls, one after the other.
fn get(context: &mut Context<'_>, args: Arguments<'_>) -> Result<(), Failure> {
    let snapshot = context.shared.db.open_snapshot(name(args)?)?;
    let (strings, reply) = (Keyspace::at(&snapshot)?, &mut *context.reply);
    let (start, began, mut value) = (reply.len(), Instant::now(), Vec::new());
    for key in args.from(4) {
        let found = match &strings {
            Some(strings) => snapshot.get_into(strings, key, &mut value)?,
            None => false,
        };
        if found {
            reply.bulk(&value)
        } else {
            reply.null()
        }
        if reply.len() - start > REPLY_BYTES_MAX {
            return Err(Failure::text("ERR the reply would be longer than 256 MiB; ask for fewer keys"));
        }
        if !reply.has_room() {
            return Err(Failure::NO_ROOM);
        }
        if began.elapsed() > COMMAND_TIME_MAX {
            return Err(Failure::Limit("LIMIT the command takes longer than 10 s; give it fewer keys"));
        }
    }
    Ok(())
}
