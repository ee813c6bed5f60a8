//! The real server under clients that ask too much of it, or speak nonsense.
//!
//! ```text
//!  misdeeds      what they do, each with what it must come to         wire       their connections
//!  bystander     the client that behaves, and is served all the time  process    the server's memory and sockets
//! ```
//!
//! After each misdeed the server has taken no more memory than the misdeed may cost, and answers the bystander; in the end it has
//! not panicked, ends in order, and leaves a database in which `kiln check` finds nothing and which has few objects. Where a request takes long, that others are
//! served meanwhile shows in the order of replies, and not in times, which say little on a busy machine. Clients that are done with often stay, silent, beside those
//! that follow.

mod bystander;
mod misdeeds;
mod process;
mod wire;

use std::ffi::OsStr;
use std::path::Path;
use std::process::ExitCode;

use rustix::process::Signal;

use self::bystander::Bystander;
use self::misdeeds::{MISDEEDS, Misdeed};
use self::process::Process;
use self::wire::Wire;
use super::kinds::Directory;
use super::server::Server;
use super::{Tally, binary, prove_by_lives};
use crate::arguments::Rounds;
use crate::support::Random;

/// How many connections the server is told to have at the most.
const CONNECTIONS: usize = 400;
/// How many silent ones stay at the most.
const LEFT: usize = 150;
/// More objects than the server may ever make.
const OBJECTS: usize = 1_100;

/// Runs servers on one database after the other.
pub(crate) fn prove(rounds: &Rounds) -> ExitCode {
    prove_by_lives("misuse", "misdeeds", rounds, |seed, tally| one_life(seed, rounds, tally))
}

/// One server, and every misdeed once.
fn one_life(seed: u64, rounds: &Rounds, tally: &mut Tally) {
    let mut random = Random::new(seed);
    let directory = Directory::new();
    let database = directory.database();
    let mut server = Server::spawn(&database, &arguments(rounds, &mut random));
    let port = server.wait_until_ready();
    let port = port.unwrap_or_else(|| panic!("the server ended at once:\n{}", server.log()));
    let process = Process { pid: server.pid(), port };
    let bystander = Bystander::begin(port);
    let misdeeds = shuffled(&mut random);
    let mut scene = Scene { process, random, left: Vec::new() };
    for misdeed in misdeeds {
        let before = bystander.writes();
        scene.meet(misdeed, &server, &bystander);
        tally.count(bystander.writes() - before, "");
        if tally.is_enough() {
            break;
        }
    }
    bystander.end();
    server.handle().signal(Signal::TERM);
    server.wait().assert_success();
    drop(scene);
    binary::check(&database);
    assert_few_objects(&database);
}

fn arguments(rounds: &Rounds, random: &mut Random) -> Vec<String> {
    let connections = CONNECTIONS.to_string();
    let memory = random.pick(&["64MiB", "128MiB"]);
    let mut arguments = vec!["--memory", memory, "--durability", "fast", "--connections", &connections];
    arguments.extend(rounds.server_arguments());
    arguments.into_iter().map(str::to_owned).collect()
}

/// All misdeeds, in any order.
fn shuffled(random: &mut Random) -> Vec<&'static Misdeed> {
    let mut misdeeds: Vec<_> = MISDEEDS.iter().collect();
    for last in (1..misdeeds.len()).rev() {
        misdeeds.swap(last, random.below(last + 1));
    }
    misdeeds
}

/// What whoever misbehaves has at hand.
#[derive(Debug)]
struct Scene {
    process: Process,
    random: Random,
    /// Connections that are silent from now on.
    left: Vec<Wire>,
}

impl Scene {
    /// Has one misdeed committed, and looks what it has come to.
    fn meet(&mut self, misdeed: &'static Misdeed, server: &Server, bystander: &Bystander) {
        let _witness = Witness { misdeed, server };
        let before = self.process.resident();
        self.process.forget_peak();
        (misdeed.commit)(self);
        let peak = self.process.peak();
        let taken = peak.saturating_sub(before);
        assert!(
            taken <= misdeed.mebibytes,
            "{taken} MiB of memory were taken, {} may be; {before} were resident before",
            misdeed.mebibytes
        );
        bystander.assert_is_served();
    }

    fn connect(&self) -> Wire {
        Wire::connect(self.process.port)
    }

    fn connect_many(&self, count: usize) -> Vec<Wire> {
        (0..count).map(|_| self.connect()).collect()
    }

    /// Connections that somebody is done with: they end, or stay and are silent.
    fn leave(&mut self, connections: Vec<Wire>) {
        if self.random.one_in(2) && self.left.len() + connections.len() <= LEFT {
            self.left.extend(connections);
        }
    }
}

/// Says what was going on, if something is wrong.
struct Witness<'s> {
    misdeed: &'static Misdeed,
    server: &'s Server,
}

impl Drop for Witness<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("the misdeed was: {}; the server said:\n{}", self.misdeed.name, self.server.log());
        }
    }
}

/// Maps for flushes are made and never go.
fn assert_few_objects(database: &Path) {
    let output = binary::run([OsStr::new("stat"), database.as_os_str()]);
    let text = String::from_utf8_lossy(&output.stdout);
    let is_object = |line: &&str| line.starts_with("map ") || line.starts_with("table ");
    let count = text.lines().filter(is_object).count();
    assert!((1..=OBJECTS).contains(&count), "the database has {count} objects:\n{}", binary::errors(&output));
}
