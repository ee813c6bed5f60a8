//! Power cuts: the real server on a file system that holds back whatever is not synced, and loses some of it.
//!
//! ```text
//!  machine   one boot: mounted, used, cut                power     when nobody gets an answer any more
//!  layer     the file system, over a simulated disk      volume    what is on it, and what a cut may leave
//!  tests     that a cut takes what it may, and nothing else
//! ```
//!
//! Each round boots a machine with what the round before has left on its disk, runs the server there under the load of real
//! clients, and cuts the power: at some step of creation, recovery or load, or right after an operation of some kind, such as a
//! renaming that is not durable yet. Sectors, lengths and names survive each by itself, as the simulated disk of
//! `kiln-prove crash` has it. Then the clients check what they were told.

mod layer;
mod machine;
mod power;
#[cfg(test)]
mod tests;
mod volume;

use std::process::ExitCode;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

use kiln::device::{Device, OperationKind, SimulatedDevice};
use rustix::process::Signal;

use super::kinds::{prepare, server_arguments};
use super::load::{Clients, run_until};
use super::server::{Ended, Handle};
use super::{Tally, binary, prove_by_lives};
use crate::arguments::Rounds;
use crate::support::{Random, copy_of};
use machine::{Machine, leave_common_mounts};
use power::Power;
use volume::{AtStake, DATABASE, Volume};

/// Cuts in the life of one database; before the last but one the server has ended in order.
const LIFE_ROUNDS: usize = 25;
/// The longest that clients work before the power is cut.
const LOAD_MAX: Duration = Duration::from_millis(300);

/// Runs servers and cuts their power, on one database after the other.
pub(crate) fn prove(rounds: &Rounds) -> ExitCode {
    if let Err(error) = try_out() {
        eprintln!(
            "kiln-prove: powercut cannot mount its file system: {error}. It needs /dev/fuse (modprobe fuse; in a container \
             --device /dev/fuse --cap-add SYS_ADMIN) and root, or: unshare --map-root-user --mount kiln-prove powercut"
        );
        return ExitCode::from(2);
    }
    let mut at_stake = AtStake::default();
    prove_by_lives("powercut", "cuts", rounds, |seed, tally| one_life(seed, rounds, tally, &mut at_stake))
}

/// Whether a file system can be mounted here.
fn try_out() -> std::io::Result<()> {
    leave_common_mounts()?;
    let point = tempfile::tempdir()?;
    let machine = Machine::boot(Volume::new(0), point.path())?;
    machine.cut();
    Ok(())
}

/// One database, from its creation on.
fn one_life(seed: u64, rounds: &Rounds, tally: &mut Tally, at_stake: &mut AtStake) {
    let mut random = Random::new(seed);
    let point = tempfile::tempdir().expect("a temporary directory can be made");
    let arguments = server_arguments(rounds, &mut random);
    let mut volume = Volume::new(random.next());
    prepare(&mut random, |options| {
        volume.root.set_bytes(DATABASE, []);
        options.open_on(std::sync::Arc::new(volume.disk.clone()))
    });
    let (mut clients, mut was_there) = (Clients::new(&mut random), false);
    for round in 0..LIFE_ROUNDS {
        let _evidence = (!rounds.counts).then(|| Evidence(copy_of(&volume.disk)));
        let machine =
            Machine::boot(volume, point.path()).expect("what was mounted before can be mounted again");
        // What a power cut leaves is no damage: at most the torn end of an unfinished write.
        if was_there && random.one_in(3) {
            binary::check(&machine.database());
        }
        let before = clients.acknowledged();
        let moment = if round + 2 == LIFE_ROUNDS { Moment::Closed } else { Moment::draw(&mut random) };
        if let Moment::Start(steps) = moment {
            machine.power().cut_after_steps(steps);
        }
        let cut = |server: &Handle, load| moment.carry_out(machine.power(), server, load);
        let (found, end) = run_until(cut, &machine.database(), &arguments, &mut clients, &mut random);
        moment.assert_end(&end);
        was_there |= found;
        let held_back = machine.cut();
        at_stake.add(&held_back);
        volume = held_back.after_cut(&mut random);
        let AtStake { sectors, sizes, names } = *at_stake;
        let besides = format!(", {sectors} sectors, {sizes} lengths and {names} names at stake");
        tally.count(clients.acknowledged() - before, &besides);
        if tally.is_enough() {
            return;
        }
    }
}

/// Saves the disk with which a round began, if something is wrong in it.
struct Evidence(SimulatedDevice);

impl Drop for Evidence {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            return;
        }
        let save = || -> std::io::Result<std::path::PathBuf> {
            let directory = tempfile::Builder::new().prefix("powercut-").tempdir()?.keep();
            for name in self.0.list()? {
                std::fs::write(directory.join(&name), self.0.bytes(&name))?;
            }
            Ok(directory)
        };
        match save() {
            Ok(directory) => {
                eprintln!("the database with which the round began is in {}", directory.display())
            }
            Err(error) => eprintln!("the database with which the round began cannot be saved: {error}"),
        }
    }
}

/// When the power is cut.
#[derive(Clone, Copy, Debug)]
enum Moment {
    /// After so many steps of the disk, from the start of the server on.
    Start(u64),
    /// When clients have worked for so long.
    Time(Duration),
    /// After so many steps under load.
    Steps(u64),
    /// After so many operations of a kind under load.
    After(OperationKind, u64),
    /// After so many steps from a moment on at which the server, which was asked to end, is probably closing the database.
    Closing(Duration, u64),
    /// When the server has ended, because it was asked to.
    Closed,
}

impl Moment {
    fn draw(random: &mut Random) -> Moment {
        let steps = *random.pick(&[4, 15, 60]);
        match random.below(9) {
            0 | 1 => Moment::Start(random.below(steps) as u64),
            2 => Moment::Time(Duration::from_micros(random.below(100_000) as u64)),
            3 | 4 => Moment::Steps(random.below(steps) as u64),
            5 => {
                let after = Duration::from_micros(random.below(20_000) as u64);
                Moment::Closing(after, random.below(8) as u64)
            }
            _ => {
                // A write or sync is never far; the others come when a segment is prepared or dropped.
                let kind = *random.pick(&[
                    OperationKind::Create,
                    OperationKind::Allocate,
                    OperationKind::Rename,
                    OperationKind::Rename,
                    OperationKind::Remove,
                    OperationKind::SyncDirectory,
                    OperationKind::Sync,
                    OperationKind::Write,
                ]);
                Moment::After(kind, 1 + random.below(3) as u64)
            }
        }
    }

    /// Cuts the power when it is time. `load` tells the beginning of the load, or that there will be none.
    fn carry_out(self, power: &Power, server: &Handle, load: Receiver<()>) {
        let has_load = loop {
            match load.recv_timeout(power::EVERY) {
                Ok(()) => break true,
                Err(RecvTimeoutError::Timeout) if !power.is_off() => {}
                Err(_) => break false,
            }
        };
        if has_load {
            let limit = match self {
                Moment::Time(time) => time,
                Moment::Closed | Moment::Closing(..) => LOAD_MAX / 4,
                _ => LOAD_MAX,
            };
            match self {
                Moment::Steps(steps) => power.cut_after_steps(steps),
                Moment::After(kind, count) => power.cut_after(kind, count),
                Moment::Start(_) | Moment::Time(_) | Moment::Closing(..) | Moment::Closed => {}
            }
            power.wait_for_the_cut(limit);
        }
        match self {
            Moment::Closing(after, steps) => {
                server.signal(Signal::TERM);
                std::thread::sleep(after);
                power.cut_after_steps(steps);
                power.wait_for_the_cut(LOAD_MAX);
            }
            Moment::Closed => {
                server.signal(Signal::TERM);
                return;
            }
            _ => {}
        }
        power.cut();
        server.signal(Signal::KILL);
        power.answer_the_dead();
    }

    fn assert_end(self, end: &Ended) {
        match self {
            Moment::Closed => end.assert_success(),
            Moment::Closing(..) if end.was_orderly() => {}
            _ => end.assert_killed(),
        }
    }
}
