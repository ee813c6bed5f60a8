//! `KILN SESSION` and `KILN SESSIONS`: a connection's session, and those that there are.
//!
//! The latter has a name of its own: any text may be the id of a session, also `LIST`.

use kiln::planted::{Bug, planted};

use super::durability::{Answer, Wait, serial_number};
use super::options::integer;
use super::{Context, unknown_subcommand, wrong_arity};
use crate::failure::Failure;
use crate::protocol::decoder::Arguments;
use crate::turns::{Waiting, leaving_thread};

/// So many sessions are told at once unless the client wants another number, and so many at the most.
const COUNT: usize = 100;
const COUNT_MAX: usize = 1_000;

/// What an action on several sessions may have to wait for on its thread: to forget one for the disk, as commits do; to list them for their records.
pub(super) fn waits(args: Arguments<'_>) -> Option<Waiting> {
    match args.get(2)?.to_ascii_uppercase().as_slice() {
        b"FORGET" => Some(Waiting::Commit),
        b"LIST" => Some(Waiting::Read),
        _ => None,
    }
}

/// `KILN SESSION id`. Whoever is told a serial number forgets what it stands for, so it is durable first: the opening sees to that, but of a session that
/// the connection has already the last writes may not be.
pub(super) fn session(context: &mut Context<'_>, id: &[u8]) -> Result<Option<Wait>, Failure> {
    let id = std::str::from_utf8(id).map_err(|_| Failure::text("ERR a session's id must be UTF-8 text"))?;
    if id.is_empty() {
        return Err(Failure::text("ERR a session's id must not be empty"));
    }
    let db = &context.shared.db;
    if planted(Bug::SessionEndedFirst) {
        context.client.session = None;
    }
    // A connection may name the session that it already has; and one that cannot have another keeps its own.
    let session = match context.client.session.take_if(|session| session.id() == id.as_bytes()) {
        Some(session) => session,
        // It waits for what is not durable of it.
        None => leaving_thread(Waiting::Commit, || db.session(id))?,
    };
    let (serial, durable) = (session.serial(), session.durable_serial());
    context.client.session = Some(session);
    if durable? == serial || planted(Bug::SessionToldEarly) {
        context.reply.integer(serial_number(serial));
        return Ok(None);
    }
    Ok(Some(Wait { version: Some(db.version()), timeout: None, answer: Answer::Serial(serial) }))
}

/// `KILN SESSIONS LIST cursor [COUNT count]` and `KILN SESSIONS FORGET id [serial]`. The reply to the latter comes when it is durable.
pub(super) fn sessions(context: &mut Context<'_>, args: Arguments<'_>) -> Result<(), Failure> {
    let action = args.get(2).ok_or(wrong_arity("kiln|sessions"))?;
    match (action.to_ascii_uppercase().as_slice(), args.len()) {
        (b"LIST", 4) => list(context, args.at(3), COUNT),
        (b"LIST", 6) if args.at(4).eq_ignore_ascii_case(b"COUNT") => {
            let count = usize::try_from(integer(args.at(5))?).ok().filter(|&count| count > 0);
            list(context, args.at(3), count.ok_or(Failure::SYNTAX)?.min(COUNT_MAX))
        }
        (b"FORGET", 4 | 5) => forget(context, args.at(3), args.get(4)),
        (b"LIST" | b"FORGET", _) => Err(wrong_arity("kiln|sessions")),
        _ => Err(unknown_subcommand("KILN", &[b"SESSIONS ", action].concat())),
    }
}

/// The cursor is the last id that was told; no id is empty.
fn list(context: &mut Context<'_>, cursor: &[u8], count: usize) -> Result<(), Failure> {
    let db = &context.shared.db;
    let told = leaving_thread(Waiting::Read, || {
        db.sessions_after(cursor).take(count).collect::<kiln::Result<Vec<_>>>()
    })?;
    let next = told.last().filter(|_| told.len() == count).map_or(&b""[..], |last| &last.id);
    let reply = &mut *context.reply;
    reply.array(2);
    reply.bulk(next);
    reply.array(told.len());
    for info in &told {
        reply.array(4);
        reply.bulk(&info.id);
        reply.integer(serial_number(info.serial));
        reply.integer(serial_number(info.durable_serial));
        reply.integer(i64::from(info.is_open));
    }
    Ok(())
}

fn forget(context: &mut Context<'_>, id: &[u8], serial: Option<&[u8]>) -> Result<(), Failure> {
    let db = &context.shared.db;
    let serial = serial.map(integer).transpose()?;
    let was_there = leaving_thread(Waiting::Commit, || {
        let commit = match serial {
            None => db.forget_session(id),
            // No session has a negative one.
            Some(serial) => db.forget_session_at(id, u64::try_from(serial).unwrap_or(u64::MAX)),
        };
        commit?.safe()
    })?;
    context.reply.integer(i64::from(was_there));
    Ok(())
}
