//! What clients do to one run of the server: they check what they find, and work until it is gone.

use std::panic::resume_unwind;
use std::path::Path;
use std::sync::mpsc::{Receiver, channel};
use std::thread::ScopedJoinHandle;

use redis::{Connection, RedisError, RedisResult};

use super::actors::{
    Actor, Auditor, FastWriter, Flusher, Mode, Onlooker, Pairs, SafeWriter, Session, Transfers,
    create_accounts,
};
use super::server::{Ended, Handle, Server, connect};
use crate::support::Random;

/// One database of so many is flushed again and again.
const FLUSHED_ONE_IN: usize = 5;

/// Runs a server until `plan` ends it, which is told the beginning of the load, or that there will be none. Returns whether
/// the server got so far that there is a database, and how it ended.
pub(super) fn run_until(
    plan: impl FnOnce(&Handle, Receiver<()>) + Send,
    database: &Path,
    arguments: &[String],
    clients: &mut Clients,
    random: &mut Random,
) -> (bool, Ended) {
    let mut server = Server::spawn(database, arguments);
    let handle = server.handle();
    let (at_work, load) = channel();
    clients.have_checked = false;
    let (port, met) = std::thread::scope(|scope| {
        // Gone with a panic, too, for which the plan must not wait.
        let at_work = at_work;
        let handle = &handle;
        scope.spawn(move || plan(handle, load));
        let port = server.wait_until_ready();
        let is_to_end = || handle.is_to_end();
        let met = port.map_or(Ok(()), |port| {
            clients.meet(port, random, &is_to_end, || {
                // An error says that nobody waits for it.
                let _ = at_work.send(());
            })
        });
        (port, met)
    });
    let end = server.wait();
    met.unwrap_or_else(|what| panic!("{what}\n{end}"));
    if end.was_orderly() {
        clients.settle();
    }
    (port.is_some(), end)
}

/// The clients of one database, through all runs of its server.
pub(super) struct Clients {
    actors: Vec<Box<dyn Actor>>,
    /// Some need accounts, which are not there yet, durably.
    lacks_accounts: bool,
    /// They have seen what this run of the server has found.
    have_checked: bool,
}

impl Clients {
    /// Clients of a database without their keys. Of some databases these are few, since one of them flushes.
    pub(super) fn new(random: &mut Random) -> Clients {
        if random.one_in(FLUSHED_ONE_IN) {
            let mode = *random.pick(&[Mode::Safe, Mode::Fast]);
            let mut actors: Vec<Box<dyn Actor>> = vec![Box::new(Flusher::new(mode))];
            actors.extend((0..4).map(|_| Box::new(Onlooker) as Box<dyn Actor>));
            return Clients { actors, lacks_accounts: false, have_checked: false };
        }
        let mut actors: Vec<Box<dyn Actor>> = vec![Box::new(Auditor)];
        actors.extend((0..4).map(|id| Box::new(SafeWriter::new(id)) as Box<dyn Actor>));
        actors.extend((0..2).map(|id| Box::new(FastWriter::new(id)) as Box<dyn Actor>));
        let modes = [Mode::Safe, Mode::Fast];
        actors.extend(Transfers::clients(modes).map(|client| Box::new(client) as Box<dyn Actor>));
        actors.extend(Pairs::clients(modes).map(|client| Box::new(client) as Box<dyn Actor>));
        for (id, mode) in modes.into_iter().enumerate() {
            actors.push(Box::new(Session::new(id, mode)));
        }
        Clients { actors, lacks_accounts: true, have_checked: false }
    }

    /// The server has ended in order, so that all that was acknowledged is durable: unless it was an earlier run that acknowledged it, whose
    /// end was another, and nobody has seen what of it is left.
    fn settle(&mut self) {
        if self.have_checked {
            self.actors.iter_mut().for_each(|actor| actor.settle());
        }
    }

    /// Writes that were acknowledged so far.
    pub(super) fn acknowledged(&self) -> u64 {
        self.actors.iter().map(|actor| actor.acknowledged()).sum()
    }

    /// Meets a server that listens on this port: checks what it has, calls `at_work`, and works, until the server is gone.
    /// Panics if a promise was broken.
    ///
    /// # Errors
    /// The server refused something, or a connection was lost before it was to end.
    fn meet(
        &mut self,
        port: u16,
        random: &mut Random,
        is_to_end: &(impl Fn() -> bool + Sync),
        at_work: impl FnOnce(),
    ) -> Result<(), String> {
        let connections = match self.begin(port) {
            Ok(connections) => connections,
            Err(error) => return expect_the_end(&error, is_to_end),
        };
        at_work();
        self.work(connections, random, is_to_end)
    }

    /// Connects everybody, and has them check what they find.
    fn begin(&mut self, port: u16) -> RedisResult<Vec<Connection>> {
        let mut connections = self.actors.iter().map(|_| connect(port)).collect::<RedisResult<Vec<_>>>()?;
        if self.lacks_accounts {
            create_accounts(&mut connections[0])?;
            self.lacks_accounts = false;
        }
        for (actor, connection) in self.actors.iter_mut().zip(&mut connections) {
            actor.check(connection)?;
        }
        self.have_checked = true;
        for (actor, connection) in self.actors.iter_mut().zip(&mut connections) {
            actor.begin(connection)?;
        }
        Ok(connections)
    }

    fn work(
        &mut self,
        mut connections: Vec<Connection>,
        random: &mut Random,
        is_to_end: &(impl Fn() -> bool + Sync),
    ) -> Result<(), String> {
        std::thread::scope(|scope| {
            let workers: Vec<_> = self
                .actors
                .iter_mut()
                .zip(&mut connections)
                .map(|(actor, connection)| {
                    let mut random = Random::new(random.next());
                    scope.spawn(move || {
                        loop {
                            if let Err(error) = actor.step(connection, &mut random) {
                                // At once: a moment later the server may be to end.
                                return expect_the_end(&error, is_to_end);
                            }
                        }
                    })
                })
                .collect();
            let ends: Vec<_> = workers.into_iter().map(ScopedJoinHandle::join).collect();
            ends.into_iter().try_for_each(|end| end.unwrap_or_else(|panic| resume_unwind(panic)))
        })
    }
}

/// Takes the loss of a connection for the end of a server that is to end, and for nothing else.
fn expect_the_end(error: &RedisError, is_to_end: &impl Fn() -> bool) -> Result<(), String> {
    match (is_gone(error), is_to_end()) {
        (true, true) => Ok(()),
        (true, false) => Err(format!("a connection was lost, and nobody had ended the server: {error}")),
        (false, _) => Err(format!("the server refused: {error}")),
    }
}

/// The end of the server takes the connections with it, and a walk over all keys is told of it. A reply that does not come is another matter.
fn is_gone(error: &RedisError) -> bool {
    let is_told = error.to_string().ends_with("the server is ending");
    is_told || (error.is_io_error() || error.is_connection_dropped()) && !error.is_timeout()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use crate::program::fake::Fake;

    #[derive(Debug, Default)]
    struct Counting(Arc<AtomicUsize>);

    impl Actor for Counting {
        fn begin(&mut self, _: &mut Connection) -> RedisResult<()> {
            Ok(())
        }

        fn step(&mut self, connection: &mut Connection, _: &mut Random) -> RedisResult<()> {
            redis::cmd("PING").exec(connection)
        }

        fn check(&mut self, _: &mut Connection) -> RedisResult<()> {
            Ok(())
        }

        fn settle(&mut self) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }

        fn acknowledged(&self) -> u64 {
            0
        }
    }

    /// A server that was asked to end before its clients came made them believe that what the kill before had taken was durable.
    #[test]
    fn c5_an_orderly_end_makes_nothing_durable_that_an_earlier_run_has_lost() {
        let actor = Counting::default();
        let settled = actor.0.clone();
        let mut clients =
            Clients { actors: vec![Box::new(actor)], lacks_accounts: false, have_checked: false };
        clients.settle();
        assert_eq!(settled.load(Ordering::Relaxed), 0);
        clients.have_checked = true;
        clients.settle();
        assert_eq!(settled.load(Ordering::Relaxed), 1);
    }

    /// Who listed all keys when the server was asked to end took its answer for a refusal.
    #[test]
    fn what_says_that_the_server_is_ending_says_that_it_is_gone() {
        let error = |detail: &str| redis::make_extension_error("ERR".to_owned(), Some(detail.to_owned()));
        assert!(is_gone(&error("the server is ending")));
        assert!(!is_gone(&error("unknown command")));
    }

    /// A server that closed connections while it lived was taken for one that had been killed.
    #[test]
    fn a_connection_that_is_lost_while_the_server_lives_is_noticed() {
        // The first of them while it is made, or checks; the others while the client works.
        for answers in [0, 1, 2, 5] {
            let fake = Fake::start(answers);
            let meet = |is_to_end: bool| {
                let mut clients = Clients {
                    actors: vec![Box::new(Counting::default())],
                    lacks_accounts: false,
                    have_checked: false,
                };
                clients.meet(fake.port(), &mut Random::new(1), &|| is_to_end, || {})
            };
            assert!(meet(false).unwrap_err().contains("nobody had ended the server"), "{answers} answers");
            assert_eq!(meet(true), Ok(()), "{answers} answers");
        }
    }
}
