//! kill -9 and SIGSTOP under load from real Redis clients, again and again on the same database: everything that was
//! acknowledged as safe is there, no transaction is half there, sessions know exactly what survived.
//!
//! A signal comes at any moment of a run: while the database is created or recovered, while clients check, while they work,
//! and while the server closes it because it was asked to end. A server that is stopped for a while must not tell anybody
//! afterwards what is not true: many waits for durability have a limit that ends meanwhile.

use std::process::ExitCode;
use std::sync::mpsc::Receiver;
use std::time::Duration;

use rustix::process::Signal;

use super::kinds::{Directory, prepare, server_arguments};
use super::load::{Clients, run_until};
use super::server::{Ended, Handle};
use super::{Tally, binary, prove_by_lives};
use crate::arguments::Rounds;
use crate::support::Random;

/// Runs of the server on one database; the one before the last ends in order.
const LIFE_ROUNDS: usize = 25;

/// Runs and kills servers on one database after the other.
pub(crate) fn prove(rounds: &Rounds) -> ExitCode {
    prove_by_lives("kill", "kills", rounds, |seed, tally| one_life(seed, rounds, tally))
}

/// One database, from its creation on.
fn one_life(seed: u64, rounds: &Rounds, tally: &mut Tally) {
    let mut random = Random::new(seed);
    let directory = Directory::new();
    let database = directory.database();
    let arguments = server_arguments(rounds, &mut random);
    prepare(&mut random, |options| options.open(&database));
    let (mut clients, mut was_there) = (Clients::new(&mut random), false);
    for round in 0..LIFE_ROUNDS {
        // What a kill leaves is no damage: at most the torn end of an unfinished write.
        if was_there && (random.one_in(4) || round + 1 == LIFE_ROUNDS) {
            binary::check(&database);
        }
        let before = clients.acknowledged();
        let plan = Plan::draw(&mut random, round + 2 == LIFE_ROUNDS);
        let carry_out = |server: &Handle, load| plan.carry_out(server, load);
        let (found, end) = run_until(carry_out, &database, &arguments, &mut clients, &mut random);
        plan.assert_end(&end);
        was_there |= found;
        tally.count(clients.acknowledged() - before, "");
        if tally.is_enough() {
            return;
        }
    }
}

/// Which signals a run of the server gets.
#[derive(Debug)]
struct Plan {
    /// The time until the first signal begins when clients begin to work, not when the server is started.
    under_load: bool,
    /// Each with the time since the one before.
    signals: Vec<(Duration, Signal)>,
}

impl Plan {
    fn draw(random: &mut Random, is_orderly: bool) -> Plan {
        if is_orderly {
            return Plan { under_load: true, signals: vec![(milliseconds(random, 100), Signal::TERM)] };
        }
        let under_load = !random.one_in(4);
        // Early kills matter most: they hit the first hardenings after a recovery.
        let reach = *random.pick(&[20, 60, 200]);
        let first = milliseconds(random, reach);
        let (stopped, rest) = (milliseconds(random, 100), milliseconds(random, 60));
        let signals = match random.below(8) {
            0 => vec![(first, Signal::STOP), (stopped, Signal::KILL)],
            1 => vec![(first, Signal::STOP), (stopped, Signal::CONT), (rest, Signal::KILL)],
            2 => {
                let again = milliseconds(random, 40);
                let mut signals = vec![(first, Signal::STOP), (stopped, Signal::CONT)];
                signals.extend([(rest, Signal::STOP), (again, Signal::CONT), (rest, Signal::KILL)]);
                signals
            }
            3 => vec![(first, Signal::TERM), (rest, Signal::KILL)],
            _ => vec![(first, Signal::KILL)],
        };
        Plan { under_load, signals }
    }

    /// Sends the signals; `load` tells the beginning of the load, or that there will be none.
    fn carry_out(&self, server: &Handle, load: Receiver<()>) {
        if self.under_load {
            // An error says that the server has ended before, which somebody else will complain about.
            let _ = load.recv();
        }
        for &(after, signal) in &self.signals {
            std::thread::sleep(after);
            server.signal(signal);
        }
    }

    fn assert_end(&self, end: &Ended) {
        match self.signals[..] {
            [(_, Signal::TERM)] => end.assert_success(),
            [(_, Signal::TERM), ..] if end.was_orderly() || end.was_too_young() => {}
            _ => end.assert_killed(),
        }
    }
}

fn milliseconds(random: &mut Random, below: usize) -> Duration {
    Duration::from_micros(random.below(below * 1000) as u64)
}
