//! What clients do to one run of the server: they check what they find, and work until it is gone.

use std::path::Path;
use std::sync::mpsc::{Receiver, channel};

use redis::{RedisError, RedisResult};

use super::actors::{
    Actor, Auditor, FastWriter, Mode, Pairs, SafeWriter, Session, Transfers, create_accounts,
};
use super::server::{Ended, Handle, Server, connect};
use crate::support::Random;

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
    let port = std::thread::scope(|scope| {
        // Gone with a panic, too, for which the plan must not wait.
        let at_work = at_work;
        scope.spawn(move || plan(&handle, load));
        let port = server.wait_until_ready();
        if let Some(port) = port {
            clients.meet(port, random, || {
                // An error says that nobody waits for it.
                let _ = at_work.send(());
            });
        }
        port
    });
    let end = server.wait();
    if end.was_orderly() {
        clients.settle();
    }
    (port.is_some(), end)
}

/// The clients of one database, through all runs of its server.
pub(super) struct Clients {
    actors: Vec<Box<dyn Actor>>,
    /// The accounts are there, durably.
    has_accounts: bool,
}

impl Clients {
    /// Clients of a database without their keys.
    pub(super) fn new() -> Clients {
        let mut actors: Vec<Box<dyn Actor>> = vec![Box::new(Auditor)];
        actors.extend((0..4).map(|id| Box::new(SafeWriter::new(id)) as Box<dyn Actor>));
        actors.extend((0..2).map(|id| Box::new(FastWriter::new(id)) as Box<dyn Actor>));
        for (id, mode) in [(0, Mode::Safe), (1, Mode::Fast)] {
            actors.push(Box::new(Transfers::new(mode)));
            actors.push(Box::new(Pairs::new(id as u64, mode)));
            actors.push(Box::new(Session::new(id, mode)));
        }
        Clients { actors, has_accounts: false }
    }

    /// The server has ended in order, so that all that was acknowledged is durable.
    fn settle(&mut self) {
        self.actors.iter_mut().for_each(|actor| actor.settle());
    }

    /// Writes that were acknowledged so far.
    pub(super) fn acknowledged(&self) -> u64 {
        self.actors.iter().map(|actor| actor.acknowledged()).sum()
    }

    /// Meets a server that listens on this port: checks what it has, calls `at_work`, and works, until the server is gone.
    /// Panics if a promise was broken.
    fn meet(&mut self, port: u16, random: &mut Random, at_work: impl FnOnce()) {
        match self.try_to_meet(port, random, at_work) {
            Err(error) if !is_gone(&error) => panic!("the server refused: {error}"),
            _ => {}
        }
    }

    fn try_to_meet(&mut self, port: u16, random: &mut Random, at_work: impl FnOnce()) -> RedisResult<()> {
        let mut connections = self.actors.iter().map(|_| connect(port)).collect::<RedisResult<Vec<_>>>()?;
        if !self.has_accounts {
            create_accounts(&mut connections[0])?;
            self.has_accounts = true;
        }
        for (actor, connection) in self.actors.iter_mut().zip(&mut connections) {
            actor.check(connection)?;
        }
        for (actor, connection) in self.actors.iter_mut().zip(&mut connections) {
            actor.begin(connection)?;
        }
        at_work();
        std::thread::scope(|scope| {
            let workers: Vec<_> = self
                .actors
                .iter_mut()
                .zip(&mut connections)
                .map(|(actor, connection)| {
                    let mut random = Random::new(random.next());
                    scope.spawn(move || -> RedisResult<()> {
                        loop {
                            actor.step(connection, &mut random)?;
                        }
                    })
                })
                .collect();
            for worker in workers {
                match worker.join() {
                    Ok(Err(error)) if !is_gone(&error) => return Err(error),
                    Ok(_) => {}
                    Err(panic) => std::panic::resume_unwind(panic),
                }
            }
            Ok(())
        })
    }
}

/// The end of the server takes the connections with it. A reply that does not come is another matter.
fn is_gone(error: &RedisError) -> bool {
    (error.is_io_error() || error.is_connection_dropped()) && !error.is_timeout()
}
