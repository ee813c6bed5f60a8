//! How commands on keys become transactions of the engine: one alone, or all that were queued between `MULTI`
//! and `EXEC`.

use std::time::Instant;

use kiln::{Expiry, Transaction, Version};

use super::{Access, Command, Context, Flow, Run, RunKeys, durability};
use crate::client::{Queue, Watched, Watches};
use crate::dispatch::{Dispatch, Patience, run_keys, transact};
use crate::failure::Failure;
use crate::keyspace::{Keyspace, Space};
use crate::limits::{COMMAND_TIME_MAX, EXEC_LOADED_BYTES_MAX, REPLY_BYTES_MAX};
use crate::protocol::decoder::Arguments;
use crate::work::Work;

/// The most keys that one connection can watch.
const WATCHES_MAX: usize = 64 * 1024;

/// Runs a command that flushes. Nobody is inside the keyspace, the caller included.
pub(crate) fn flush(
    dispatch: &mut Dispatch<'_>,
    command: &Command,
    run: RunKeys,
    args: Arguments<'_>,
) -> Result<(), Failure> {
    let mut flush = Flush::prepare(&dispatch.shared.keyspace, 1)?;
    let spaces = (&*flush.guard, &flush.vacant[..]);
    let (version, changed) = single(dispatch, spaces, Patience::Endless, command, run, args)?;
    flush.commit(version, usize::from(changed));
    Ok(())
}

/// Runs one command as a transaction of its own, and says into which version it committed and whether it changed anything.
pub(crate) fn single(
    dispatch: &mut Dispatch<'_>,
    (space, vacant): (&Space, &[Space]),
    patience: Patience,
    command: &Command,
    run: RunKeys,
    args: Arguments<'_>,
) -> Result<(Version, bool), Failure> {
    let (shared, start) = (dispatch.shared, dispatch.reply.len());
    let writes = command.access == Access::Write;
    let session = dispatch.client.session.as_ref().filter(|_| writes);
    let (reply, scratch) = (&mut *dispatch.reply, &mut *dispatch.scratch);
    let commit = transact(shared, session, patience, |tx| {
        // A conflict makes this run again.
        reply.truncate(start);
        // Alone it is small, and behind it all keys can be deleted.
        if command.flushes {
            tx.makes_room()?;
        }
        let mut work = Work {
            tx,
            keyspace: &shared.keyspace,
            space,
            vacant: vacant.iter(),
            reply,
            scratch,
            changed: false,
        };
        run(&mut work, args)?;
        // Before it has written anything for others.
        if work.reply.has_room() { Ok(work.changed) } else { Err(Failure::NO_ROOM) }
    })?;
    let version = commit.version();
    let changed = commit.forget();
    // A command that could have written but did not (`SETNX` of a key that exists) tells the client something
    // that may not be durable yet, be it a flush, so on a safe connection its reply waits as that of a write does.
    if writes {
        dispatch.wrote(version.max(space.since), start);
    }
    Ok((version, changed))
}

/// `WATCH key [key ...]`
pub(crate) fn watch(dispatch: &mut Dispatch<'_>, args: Arguments<'_>) -> Result<(), Failure> {
    if dispatch.client.queue.is_some() {
        return Err(Failure::text("ERR WATCH inside MULTI is not allowed"));
    }
    if dispatch.client.watches.len() + args.len() > WATCHES_MAX {
        return Err(Failure::text("ERR too many watched keys"));
    }
    let before = dispatch.client.watches.len();
    let watched =
        dispatch.inside(|dispatch, space| args.from(1).try_for_each(|key| watch_key(dispatch, space, key)));
    let watched = watched.and_then(|()| dispatch.client.has_room().then_some(()).ok_or(Failure::NO_ROOM));
    match &watched {
        Ok(()) => dispatch.reply.ok(),
        // What answers with an error has watched nothing.
        Err(_) => dispatch.client.watches.truncate(before),
    }
    watched
}

fn watch_key(dispatch: &mut Dispatch<'_>, space: &Space, key: &[u8]) -> Result<(), Failure> {
    let db = &dispatch.shared.db;
    // Watched first and read then: a change in between makes the `EXEC` fail, never succeed.
    let watch = db.watch(&space.strings, key)?;
    let expires = matches!(db.expiry(&space.strings, key)?, Some(Expiry::At(_)));
    match dispatch.client.watches.push(watch, space.index, expires.then_some(key)) {
        true => Ok(()),
        false => Err(Failure::text("ERR the watched keys together are longer than 64 MiB")),
    }
}

/// `EXEC`: all queued commands in one transaction of the engine, strictly serializable.
pub(crate) fn exec(dispatch: &mut Dispatch<'_>) -> Result<(), Failure> {
    let queue = dispatch.client.queue.take().ok_or(Failure::text("ERR EXEC without MULTI"))?;
    let watches = std::mem::take(&mut dispatch.client.watches);
    if queue.failed {
        return Err(Failure::text("EXECABORT Transaction discarded because of previous errors."));
    }
    let flushes = queue.iter().filter(|(command, _)| command.flushes).count();
    if flushes == 0 {
        let result = dispatch.among_others(|dispatch, space, patience| {
            exec_in(dispatch, (space, &[]), patience, &queue, &watches).map(drop)
        });
        if let Err(Failure::Crowded) = result {
            // It is run once more.
            (dispatch.client.queue, dispatch.client.watches) = (Some(queue), watches);
        }
        return result;
    }
    dispatch.outside(|dispatch| {
        let mut flush = Flush::prepare(&dispatch.shared.keyspace, flushes)?;
        let spaces = (&*flush.guard, &flush.vacant[..]);
        let (version, done) = exec_in(dispatch, spaces, Patience::Endless, &queue, &watches)?;
        flush.commit(version, done);
        Ok(())
    })
}

/// Ends the transaction because `EXEC` itself was malformed, as Redis does.
pub(crate) fn abort(dispatch: &mut Dispatch<'_>, reason: &str) {
    dispatch.client.queue = None;
    dispatch.client.watches = Watches::default();
    let reason = reason.strip_prefix("ERR ").unwrap_or(reason);
    dispatch.reply.error(format!("EXECABORT Transaction discarded because of: {reason}"));
}

/// Runs the queue as one transaction, and says into which version it committed and how many of its commands flushed.
fn exec_in(
    dispatch: &mut Dispatch<'_>,
    (space, vacant): (&Space, &[Space]),
    patience: Patience,
    queue: &Queue,
    watches: &Watches,
) -> Result<(Version, usize), Failure> {
    let start = dispatch.reply.len();
    let writes = queue.writes();
    // Taken out so that the queued commands about the connection can have the rest of the client.
    let session = dispatch.client.session.take();
    let mut dirty = false;
    let result = transact(dispatch.shared, session.as_ref().filter(|_| writes), patience, |tx| {
        dispatch.reply.truncate(start);
        dispatch.client.kills.clear();
        dirty = !all_hold(tx, space, watches)?;
        match dirty {
            true => Err(Failure::text("a watched key has changed")),
            false => run_queue(dispatch, tx, space, vacant, queue),
        }
    });
    let result = result.map(|commit| (commit.version(), commit.forget()));
    dispatch.client.session = session;
    // That a connection has ended nothing can take back: neither another attempt nor a refusal.
    match result.is_ok() {
        true => dispatch.client.kill(),
        false => dispatch.client.kills.clear(),
    }
    if dirty {
        dispatch.reply.null_array();
        if writes {
            dispatch.refused(start);
        }
        return Ok((Version::default(), 0));
    }
    let (version, flushes) = result.map_err(|failure| match failure {
        Failure::Crowded => Failure::Crowded,
        Failure::Engine(error) if error.kind() == kiln::ErrorKind::Lost => Failure::Engine(error),
        // The code with which Redis says that nothing of the transaction was run.
        failure => Failure::Reply(format!("EXECABORT {}", failure.into_reply()).into()),
    })?;
    if writes {
        dispatch.wrote(version.max(space.since), start);
    }
    Ok((version, flushes))
}

/// Whether no watched key has changed; the transaction then depends on their staying so until it commits.
fn all_hold(tx: &Transaction<'_>, space: &Space, watches: &Watches) -> kiln::Result<bool> {
    for Watched { watch, space_index, expiring } in watches.iter() {
        if *space_index != space.index || !tx.require(watch)? {
            return Ok(false);
        }
        if let Some(key) = expiring
            && !tx.contains(&space.strings, key)?
        {
            return Ok(false);
        }
    }
    Ok(true)
}

fn run_queue(
    dispatch: &mut Dispatch<'_>,
    tx: &Transaction<'_>,
    space: &Space,
    vacant: &[Space],
    queue: &Queue,
) -> Result<usize, Failure> {
    let (shared, start) = (dispatch.shared, dispatch.reply.len());
    let (loaded_before, began) = (dispatch.scratch.loaded_bytes, Instant::now());
    dispatch.reply.array(queue.len());
    let mut work = Work {
        tx,
        keyspace: &shared.keyspace,
        space,
        vacant: vacant.iter(),
        reply: dispatch.reply,
        scratch: dispatch.scratch,
        changed: false,
    };
    for (command, args) in queue.iter() {
        match command.run {
            Run::Keys(run) => run_keys(&mut work, command, run, args)?,
            Run::Connection(run) => {
                let before = work.reply.len();
                let context = Context { shared, client: dispatch.client, reply: work.reply };
                in_place(context, before, |context| run(context, args));
            }
            Run::State(run) => run(shared, work.space, args, work.reply),
            Run::Flow(flow) => {
                let before = work.reply.len();
                let context = Context { shared, client: dispatch.client, reply: work.reply };
                in_place(context, before, |context| run_flow(context, flow, args));
            }
            Run::All(_) => work.reply.error("ERR Command not allowed inside a transaction"),
        }
        if work.reply.len() - start > REPLY_BYTES_MAX {
            return Err(Failure::Limit(
                "LIMIT the reply of the transaction is longer than 256 MiB; split it",
            ));
        }
        if !work.reply.has_room() {
            return Err(Failure::NO_ROOM);
        }
        if work.scratch.loaded_bytes - loaded_before > EXEC_LOADED_BYTES_MAX {
            return Err(Failure::Limit("LIMIT the transaction loads more than 1 GiB of values; split it"));
        }
        if began.elapsed() > COMMAND_TIME_MAX {
            return Err(Failure::Limit("LIMIT the transaction takes longer than 10 s; split it"));
        }
    }
    Ok(vacant.len() - work.vacant.len())
}

/// Runs a command whose failure is its reply, an element of the reply of `EXEC`.
fn in_place(
    mut context: Context<'_>,
    before: usize,
    run: impl FnOnce(&mut Context<'_>) -> Result<(), Failure>,
) {
    if let Err(failure) = run(&mut context) {
        context.reply.truncate(before);
        context.reply.error(&*failure.into_reply());
    }
}

/// The steering commands that can be queued: none of them waits inside a transaction.
fn run_flow(context: &mut Context<'_>, flow: Flow, args: Arguments<'_>) -> Result<(), Failure> {
    match flow {
        Flow::Wait => durability::wait(args, context.reply)?,
        Flow::WaitAof => {
            durability::waitaof(args, context.client.last_version)?.answer_now(context.shared, context.reply);
        }
        // `EXEC` has forgotten the watches already.
        Flow::Unwatch => context.reply.ok(),
        _ => return Err(Failure::text("ERR Command not allowed inside a transaction")),
    }
    Ok(())
}

/// A flush in progress: the keyspace with nobody else inside, and the empty objects that the transaction may
/// make current.
struct Flush<'k> {
    keyspace: &'k Keyspace,
    guard: parking_lot::RwLockWriteGuard<'k, Space>,
    vacant: Vec<Space>,
    /// How many flushes the committed transaction went through; what the last of them took is current now.
    done: usize,
}

impl<'k> Flush<'k> {
    fn prepare(keyspace: &'k Keyspace, count: usize) -> Result<Self, Failure> {
        let mut flush = Self { keyspace, guard: keyspace.exclusive(), vacant: Vec::new(), done: 0 };
        for _ in 0..count {
            flush.vacant.push(keyspace.take_vacant()?);
        }
        Ok(flush)
    }

    /// Notes that the transaction has committed into this version, and gone through so many flushes.
    fn commit(&mut self, version: Version, done: usize) {
        self.done = done;
        if let Some(last) = done.checked_sub(1) {
            self.vacant[last].since = version;
        }
    }
}

impl Drop for Flush<'_> {
    fn drop(&mut self) {
        if let Some(last) = self.done.checked_sub(1) {
            let new = self.vacant.swap_remove(last);
            self.keyspace.give_back(std::mem::replace(&mut *self.guard, new));
        }
        for space in self.vacant.drain(..) {
            self.keyspace.give_back(space);
        }
    }
}
