//! Runs one command after the other: finds it, checks it, and gives it the transaction or the connection that
//! it needs.
//!
//! ```text
//! name ─▶ table ─▶ arity, key sizes ─▶ between MULTI and EXEC? ── yes ─▶ queue
//!                                             │ no
//!            GET, plain SET ◀── hot ──────────┤
//!            one transaction ◀── keys ────────┤
//!            connection state ◀── the rest ───┘
//! ```
//!
//! Nothing here waits for durability. What must be durable before the replies may leave is noted in [`Hardening`]; the
//! connection's task waits for all of a batch at once. What may wait all the same, for a disk that is late or for others in the keyspace, does so on
//! the thread that it is on, and is run only if there is a turn for that ([`turns`](crate::turns)).

use std::ops::Range;
use std::sync::atomic::Ordering;

use kiln::planted::{Bug, planted};
use kiln::{Commit, ErrorKind, Expiry, Session, Transaction, Version};
use parking_lot::RwLockReadGuard;

use crate::ahead::GROUP_REQUESTS;
use crate::client::{Client, Durability, Queue, Watches};
use crate::commands::durability::{self, Wait};
use crate::commands::{
    self, Access, All, Command, Context, Flow, Hot, InMulti, Run, RunAll, RunKeys, transactions,
};
use crate::failure::{CLIENTS_HOLD_TOO_MUCH, Failure, engine_error};
use crate::keyspace::Space;
use crate::limits::{BATCH_LOADED_BYTES, BATCH_REPLY_BYTES, KEY_BYTES_MAX};
use crate::protocol::decoder::Arguments;
use crate::protocol::reply::{Protocol, Reply};
use crate::shared::Shared;
use crate::turns::{Waiting, leaving_thread, may_wait};
use crate::work::{Scratch, Work};

/// What must be durable before the replies of a batch may leave.
#[derive(Debug, Default)]
pub(crate) struct Hardening {
    /// The highest version that a safe write of the batch committed into.
    pub(crate) version: Option<Version>,
    /// Where the replies of these writes are, and the version of each: they become errors if that is lost.
    pub(crate) replies: Vec<(Range<usize>, Version)>,
}

/// What follows a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Next {
    /// The next command.
    Continue,
    /// Nothing, until the wait is over and answered.
    Wait(Wait),
    /// The same command, with a turn.
    Turn(Waiting),
    /// The end of the connection, once the replies are sent.
    Close,
}

/// A batch of commands of one connection, being run.
pub(crate) struct Dispatch<'a> {
    pub(crate) shared: &'a Shared,
    pub(crate) client: &'a mut Client,
    pub(crate) reply: &'a mut Reply,
    pub(crate) scratch: &'a mut Scratch,
    pub(crate) hardening: &'a mut Hardening,
    /// Held over the whole batch, and given up for a flush, and by who reads a snapshot. Nobody who does not need it waits for it.
    space: Option<RwLockReadGuard<'a, Space>>,
}

impl<'a> Dispatch<'a> {
    pub(crate) fn new(
        shared: &'a Shared,
        client: &'a mut Client,
        reply: &'a mut Reply,
        scratch: &'a mut Scratch,
        hardening: &'a mut Hardening,
    ) -> Self {
        let space = shared.keyspace.try_enter();
        Self { shared, client, reply, scratch, hardening, space }
    }

    /// Says that commands with these keys come next: their cache misses overlap then.
    pub(crate) fn prefetch<'k>(&mut self, keys: impl Iterator<Item = &'k [u8]>) {
        let mut buffer = [&[][..]; GROUP_REQUESTS];
        let mut count = 0;
        for (slot, key) in buffer.iter_mut().zip(keys) {
            *slot = key;
            count += 1;
        }
        // Alone it has nothing to overlap with.
        if count < 2 || !self.try_enter() || self.may_not_read() {
            return;
        }
        let keys = &buffer[..count];
        self.leaving_if_late(Some(Waiting::Read), |dispatch| {
            dispatch.inside(|dispatch, space| dispatch.shared.db.prefetch(&space.strings, keys));
        });
    }

    /// Whether a batch has done so much that its replies must leave, and whoever waits to flush have its turn.
    pub(crate) fn is_full(&self) -> bool {
        self.reply.len() >= BATCH_REPLY_BYTES || self.scratch.loaded_bytes >= BATCH_LOADED_BYTES
    }

    /// Runs one command and writes its reply.
    pub(crate) fn run(&mut self, args: Arguments<'_>) -> Next {
        let Some(command) = commands::find(args.at(0)) else {
            if is_of_a_browser(args.at(0)) && !planted(Bug::BrowserAnswered) {
                tracing::warn!(peer = %self.client.card.peer, "a connection speaks HTTP, and is closed");
                return Next::Close;
            }
            self.refuse(commands::unknown(args));
            return Next::Continue;
        };
        if let Err(failure) = check(command, args) {
            let text = failure.into_reply();
            match command.run {
                Run::Flow(Flow::Exec) => transactions::abort(self, &text),
                _ => self.refuse(&*text),
            }
            return Next::Continue;
        }
        if self.client.queue.is_some() && command.in_multi != InMulti::RunAtOnce {
            self.queue(command, args);
            return Next::Continue;
        }
        let (enters, waits) = self.may_wait_for(command, args);
        if let Some(waiting) = self.lacks_turn(enters, waits) {
            return Next::Turn(waiting);
        }
        let start = self.reply.len();
        self.scratch.has_looked = false;
        match self.leaving_if_late(waits, |dispatch| dispatch.run_now(command, args)) {
            // What has arrived behind it is not run.
            Ok(_) if self.client.ends => Next::Close,
            Ok(next) => next,
            Err(Failure::Crowded) => {
                self.reply.truncate(start);
                Next::Turn(Waiting::Commit)
            }
            Err(failure) => {
                self.reply.truncate(start);
                let is_of_client = match &failure {
                    Failure::Reply(_) => true,
                    Failure::Engine(error) => error.kind() == ErrorKind::Input,
                    _ => false,
                };
                self.reply.error(&*failure.into_reply());
                // Who has looked at no key tells nothing of any: that it was asked wrongly needs no disk.
                if command.access == Access::Write && is_of_client && self.scratch.has_looked {
                    self.refused(start);
                }
                Next::Continue
            }
        }
    }

    /// Whether the command enters the keyspace, and what it may have to wait for on this thread when it is there.
    fn may_wait_for(&self, command: &Command, args: Arguments<'_>) -> (bool, Option<Waiting>) {
        let reads = self.disk_is_late().then_some(Waiting::Read);
        match command.run {
            Run::Keys(_) if command.access == Access::Write => (true, Some(Waiting::Commit)),
            Run::Keys(_) | Run::Flow(Flow::Watch) => (true, reads),
            Run::All(_) => (true, Some(Waiting::Read)),
            Run::State(_) => (true, None),
            Run::Flow(Flow::Exec) => match self.client.queue.as_ref().map(Queue::writes) {
                Some(true) => (true, Some(Waiting::Commit)),
                Some(false) => (true, reads),
                None => (false, None),
            },
            Run::Flow(Flow::Kiln) => (false, durability::waits(args)),
            Run::Connection(_) | Run::Flow(_) => (false, None),
        }
    }

    /// What such a command has to have a turn for, if there is none.
    fn lacks_turn(&mut self, enters: bool, waits: Option<Waiting>) -> Option<Waiting> {
        if waits.is_some_and(|waiting| !may_wait(waiting)) {
            return waits;
        }
        (enters && !self.try_enter() && !may_wait(Waiting::Read)).then_some(Waiting::Read)
    }

    fn disk_is_late(&self) -> bool {
        self.shared.disk_is_late.load(Ordering::Relaxed)
    }

    /// Whether what is on disk takes long to read, and so many wait for it that others must not.
    fn may_not_read(&self) -> bool {
        self.disk_is_late() && !may_wait(Waiting::Read)
    }

    /// Runs what may read from disk, which the engine does without saying that it waits. While that takes long, others do not wait behind it: not each batch has
    /// left its thread as a whole, and there are turns for writes where there are none for reads.
    fn leaving_if_late<T>(&mut self, waits: Option<Waiting>, run: impl FnOnce(&mut Self) -> T) -> T {
        match waits.filter(|_| self.disk_is_late()) {
            Some(waiting) => leaving_thread(waiting, || run(self)),
            None => run(self),
        }
    }

    /// Enters the keyspace, unless that would wait. `false`: it would.
    fn try_enter(&mut self) -> bool {
        if self.space.is_none() {
            self.space = self.shared.keyspace.try_enter();
        }
        self.space.is_some()
    }

    /// Answers a request that is not run. Between `MULTI` and `EXEC` this dooms the transaction.
    pub(crate) fn refuse(&mut self, text: impl AsRef<[u8]>) {
        if let Some(queue) = &mut self.client.queue {
            queue.failed = true;
        }
        self.reply.error(text);
    }

    fn queue(&mut self, command: &'static Command, args: Arguments<'_>) {
        if command.in_multi == InMulti::Refuse {
            return self.refuse("ERR Command not allowed inside a transaction");
        }
        if !self.client.queue.get_or_insert_default().push(command, args) {
            self.refuse("ERR the queued commands together are longer than 64 MiB");
        } else if !self.client.has_room() {
            self.client.queue.iter_mut().for_each(Queue::fail);
            self.refuse(CLIENTS_HOLD_TOO_MUCH);
        } else {
            self.reply.simple("QUEUED");
        }
    }

    fn run_now(&mut self, command: &'static Command, args: Arguments<'_>) -> Result<Next, Failure> {
        match command.run {
            Run::Keys(run) => self.run_keys(command, run, args).map(|()| Next::Continue),
            Run::All(run) => self.run_all(run, args).and_then(|()| self.go_on()),
            Run::Connection(run) => {
                run(&mut self.context(), args)?;
                self.client.kill();
                self.go_on()
            }
            Run::State(run) => {
                self.inside(|dispatch, space| run(dispatch.shared, space, args, dispatch.reply));
                self.go_on()
            }
            Run::Flow(flow) => self.flow(flow, args),
        }
    }

    /// Behind a command that has written nothing, if there is room for its reply.
    fn go_on(&mut self) -> Result<Next, Failure> {
        if self.reply.has_room() { Ok(Next::Continue) } else { Err(Failure::NO_ROOM) }
    }

    /// Some take long, and flushes wait for who is in the keyspace, and everybody for flushes.
    fn run_all(&mut self, run: RunAll, args: Arguments<'_>) -> Result<(), Failure> {
        let shared = self.shared;
        let (strings, snapshot) = self.inside(|_, space| (space.strings.clone(), shared.db.snapshot()));
        if !planted(Bug::KeysHoldFlushes) {
            self.space = None;
        }
        let all = All { shared, strings, snapshot: snapshot? };
        leaving_thread(Waiting::Read, || run(&all, args, self.reply))
    }

    fn run_keys(
        &mut self,
        command: &'static Command,
        run: RunKeys,
        args: Arguments<'_>,
    ) -> Result<(), Failure> {
        if command.flushes {
            return self.outside(|dispatch| transactions::flush(dispatch, command, run, args));
        }
        match command.hot {
            Some(Hot::Get) => {
                self.inside(|dispatch, space| dispatch.get(space, args))?;
                self.go_on().map(drop)
            }
            Some(Hot::Set) if args.len() == 3 && self.client.session.is_none() => {
                self.inside(|dispatch, space| dispatch.set(space, args))
            }
            _ => self.among_others(|dispatch, space, patience| {
                transactions::single(dispatch, (space, &[]), patience, command, run, args).map(drop)
            }),
        }
    }

    fn flow(&mut self, flow: Flow, args: Arguments<'_>) -> Result<Next, Failure> {
        match flow {
            Flow::Multi if self.client.queue.is_some() => {
                return Err(Failure::text("ERR MULTI calls can not be nested"));
            }
            Flow::Multi => {
                self.client.queue = Some(Queue::default());
                self.reply.ok();
            }
            Flow::Exec => transactions::exec(self)?,
            Flow::Discard => {
                if self.client.queue.take().is_none() {
                    return Err(Failure::text("ERR DISCARD without MULTI"));
                }
                self.client.watches = Watches::default();
                self.reply.ok();
            }
            Flow::Watch => transactions::watch(self, args)?,
            Flow::Unwatch => {
                self.client.watches = Watches::default();
                self.reply.ok();
            }
            Flow::Wait => durability::wait(args, self.reply)?,
            Flow::WaitAof => return durability::waitaof(args, self.client.last_version).map(Next::Wait),
            Flow::Kiln => {
                // As those over all keys.
                self.space = None;
                let wait = durability::kiln(&mut self.context(), args)?;
                return Ok(wait.map_or(Next::Continue, Next::Wait));
            }
            Flow::Reset => {
                self.client.reset(self.shared.options.durability);
                self.reply.set_protocol(Protocol::Resp2);
                self.reply.simple("RESET");
            }
            Flow::Quit => {
                self.reply.ok();
                return Ok(Next::Close);
            }
            Flow::Shutdown => {
                check_shutdown(args)?;
                self.shared.stop();
                return Ok(Next::Close);
            }
        }
        Ok(Next::Continue)
    }

    /// `GET`: one read, as of one moment without any transaction.
    fn get(&mut self, space: &Space, args: Arguments<'_>) -> Result<(), Failure> {
        let buffer = &mut self.scratch.value;
        if !self.shared.db.get_into(&space.strings, args.at(1), buffer)? {
            self.reply.null();
            return Ok(());
        }
        self.reply.bulk(buffer);
        Ok(())
    }

    /// `SET key value`: a blind write, after which the key has no lifetime.
    fn set(&mut self, space: &Space, args: Arguments<'_>) -> Result<(), Failure> {
        let start = self.reply.len();
        // The map may have a time to live.
        let commit = self.shared.db.put_expiring(&space.strings, args.at(1), args.at(2), Expiry::Never)?;
        self.reply.ok();
        // No receipt for each write: `db.receipt(version)` stands for all writes of the batch.
        let version = commit.version();
        commit.forget();
        self.wrote(version, start);
        Ok(())
    }

    /// Notes a write whose reply begins at `start` and ends here.
    pub(crate) fn wrote(&mut self, version: Version, start: usize) {
        // Nothing was written, and nothing read that anybody has written or flushed since the database was opened.
        if version.number() == 0 {
            return;
        }
        self.client.last_version = self.client.last_version.max(Some(version));
        if self.client.durability == Durability::Safe {
            self.hardening.version = self.hardening.version.max(Some(version));
            self.hardening.replies.push((start..self.reply.len(), version));
        }
    }

    /// Notes that a write was refused for what it saw, in a reply that begins at `start` and ends here: what it tells may not be durable, either. What it saw
    /// was committed by now.
    pub(crate) fn refused(&mut self, start: usize) {
        if self.client.durability == Durability::Safe {
            let version = self.shared.db.version();
            self.hardening.version = self.hardening.version.max(Some(version));
            self.hardening.replies.push((start..self.reply.len(), version));
        }
    }

    /// Runs with the current objects, which stay current meanwhile.
    pub(crate) fn inside<T>(&mut self, run: impl FnOnce(&mut Self, &Space) -> T) -> T {
        let space = self.space.take().unwrap_or_else(|| self.shared.keyspace.enter());
        let result = run(self, &space);
        self.space = Some(space);
        result
    }

    /// Gives up the keyspace while `run` enters it alone.
    pub(crate) fn outside<T>(&mut self, run: impl FnOnce(&mut Self) -> T) -> T {
        self.space = None;
        run(self)
    }

    /// Runs a transaction with the current objects: beside others, and alone if they do not let it get to its end. Whoever reads much
    /// that many write never would.
    pub(crate) fn among_others<T>(
        &mut self,
        mut run: impl FnMut(&mut Self, &Space, Patience) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        let start = self.reply.len();
        match self.inside(|dispatch, space| run(dispatch, space, Patience::Some)) {
            // Who waits for the keyspace needs a turn, and begins anew with one.
            Err(Failure::Crowded) if may_wait(Waiting::Commit) => self.outside(|dispatch| {
                dispatch.reply.truncate(start);
                let space = dispatch.shared.keyspace.exclusive();
                run(dispatch, &space, Patience::Endless)
            }),
            result => result,
        }
    }

    fn context(&mut self) -> Context<'_> {
        Context { shared: self.shared, client: self.client, reply: self.reply }
    }
}

/// What `SHUTDOWN` may be asked for: everything is durable in the end, and nobody is waited for, whatever it is.
fn check_shutdown(args: Arguments<'_>) -> Result<(), Failure> {
    args.from(1).try_for_each(|word| match word.to_ascii_uppercase().as_slice() {
        b"SAVE" | b"NOSAVE" | b"NOW" | b"FORCE" => Ok(()),
        b"ABORT" => Err(Failure::text("ERR No shutdown in progress.")),
        _ => Err(Failure::SYNTAX),
    })
}

/// Whether a line is one of a request of HTTP's, as Redis asks, too: a page can have a browser send what it likes, to this machine as well, but
/// not without one of these.
fn is_of_a_browser(name: &[u8]) -> bool {
    name.eq_ignore_ascii_case(b"post") || name.eq_ignore_ascii_case(b"host:")
}

/// Whether a command got what it needs.
fn check(command: &Command, args: Arguments<'_>) -> Result<(), Failure> {
    if !command.takes(args.len()) {
        return Err(commands::wrong_arity(command.name));
    }
    match command.keys(args).find(|key| key.len() > KEY_BYTES_MAX) {
        None => Ok(()),
        Some(key) => Err(Failure::Reply(
            format!("ERR a key of {} bytes is longer than the limit of {KEY_BYTES_MAX} bytes", key.len())
                .into(),
        )),
    }
}

/// How often a transaction may conflict.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Patience {
    /// Some times: others may be in the keyspace, and always come first if it takes long and they do not.
    Some,
    /// As often as it has to: nobody else is.
    Endless,
}

impl Patience {
    /// Of short transactions few conflict as often even where 64 clients want the same key; and a long one has taken as many times as long by then.
    const ATTEMPTS: u32 = 16;
}

/// A transaction of the connection: with a session it takes the next serial number. What fails of the client's making ends it, so that it
/// takes none then.
pub(crate) fn transact<'e, T>(
    shared: &'e Shared,
    session: Option<&'e Session>,
    patience: Patience,
    mut run: impl FnMut(&Transaction<'_>) -> Result<T, Failure>,
) -> Result<Commit<'e, T>, Failure> {
    let (mut attempts, mut failure) = (0, None);
    let run = |tx: &Transaction<'_>| {
        failure = None;
        if patience == Patience::Some && attempts == Patience::ATTEMPTS {
            failure = Some(Failure::Crowded);
            return Err(shared.refusal.clone());
        }
        attempts += 1;
        run(tx).map_err(|failed| match failed {
            Failure::Engine(error) => error,
            refused => {
                failure = Some(refused);
                shared.refusal.clone()
            }
        })
    };
    let result = match session {
        None => shared.db.transact(run),
        Some(session) => session.transact(run),
    };
    result.map_err(|error| failure.unwrap_or(Failure::Engine(error)))
}

/// Runs a command among others in a transaction. Its own failures become its reply; the engine's end the
/// transaction.
pub(crate) fn run_keys(
    work: &mut Work<'_, '_>,
    command: &Command,
    run: RunKeys,
    args: Arguments<'_>,
) -> Result<(), Failure> {
    let start = work.reply.len();
    work.changed = false;
    let result = run(work, args);
    debug_assert!(command.access == Access::Write || !work.changed, "{} wrote", command.name);
    let text = match result {
        Ok(()) => return Ok(()),
        Err(Failure::Reply(text)) => {
            assert!(!work.changed, "{} wrote and then failed", command.name);
            text
        }
        // A value that the engine finds too long, for one.
        Err(Failure::Engine(error)) if error.kind() == ErrorKind::Input && !work.changed => {
            engine_error(&error).into()
        }
        Err(failure) => return Err(failure),
    };
    work.reply.truncate(start);
    work.reply.error(&*text);
    Ok(())
}

#[cfg(test)]
mod tests {
    use kiln::Kiln;

    use super::*;
    use crate::keyspace::Keyspace;
    use crate::work::Lifetime;

    /// A command that has written some of its keys when its time is over.
    fn take_too_long(work: &mut Work<'_, '_>, _: Arguments<'_>) -> Result<(), Failure> {
        let entry = work.find(b"key")?;
        work.store(&entry, Lifetime::Forever, b"value")?;
        Err(Failure::Limit("LIMIT"))
    }

    #[test]
    fn what_takes_too_much_ends_the_transaction_whatever_it_has_written() {
        let directory = tempfile::tempdir().unwrap();
        let db = Kiln::open(directory.path()).unwrap();
        let keyspace = Keyspace::of(&db).unwrap();
        let (space, mset) = (keyspace.enter(), commands::find(b"mset").unwrap());
        let (mut reply, mut scratch) = (Reply::default(), Scratch::default());
        let tx = db.begin().unwrap();
        let mut work = Work {
            tx: &tx,
            keyspace: &keyspace,
            space: &space,
            vacant: [].iter(),
            reply: &mut reply,
            scratch: &mut scratch,
            changed: false,
        };
        let outcome = run_keys(&mut work, mset, take_too_long, Arguments::new(b"", &[]));
        assert!(matches!(outcome, Err(Failure::Limit("LIMIT"))), "{outcome:?}");
    }
}
