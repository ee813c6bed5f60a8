//! The real program: `kiln serve` under the load of real clients, killed, stopped, starved and misused.
//!
//! ```text
//!  kill                 kill -9 and SIGSTOP at any moment            powercut/   a power loss at any moment
//!  misuse/              clients that ask too much, or speak nonsense
//!  load                 what clients do to one run of the server     actors/     the clients, one promise each
//!  kinds                what databases and servers are like          leash       servers do not outlive this program
//!  server  binary       a running server; the program                disk_full  bad_input  little_memory    tests of other misfortunes
//!  fake                 servers that break promises, for tests of who must notice it
//! ```

mod actors;
#[cfg(test)]
mod bad_input;
mod binary;
#[cfg(test)]
mod disk_full;
#[cfg(test)]
mod fake;
pub(crate) mod kill;
mod kinds;
mod leash;
#[cfg(test)]
mod little_memory;
mod load;
pub(crate) mod misuse;
pub(crate) mod powercut;
mod server;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;

use crate::arguments::Rounds;
use crate::jobs::Progress;
use crate::support::Replay;

/// In so many rounds some write is acknowledged, although the one or the other is too short for that.
const ROUNDS_WITH_A_WRITE: u64 = 20;

/// Counts rounds, and the writes that were acknowledged in them.
struct Tally {
    progress: Progress,
    noun: &'static str,
    rounds: u64,
    writes: u64,
}

impl Tally {
    /// One more round, in which so many writes were acknowledged; and what else is to be told by now.
    fn count(&mut self, writes: u64, besides: &str) {
        self.rounds += 1;
        self.writes += writes;
        let besides = format!("{besides} and {} acknowledged writes", self.writes);
        self.progress.count_all(1, self.noun, besides);
    }

    fn is_enough(&self) -> bool {
        self.progress.is_enough()
    }

    /// Where nothing was acknowledged nothing can have been lost, whatever the server does.
    fn has_looked_at_something(&self) -> Result<(), String> {
        match self.writes == 0 && self.rounds >= ROUNDS_WITH_A_WRITE {
            true => Err(format!("no write was acknowledged in {} {}", self.rounds, self.noun)),
            false => Ok(()),
        }
    }
}

/// Lets one database after the other live through some rounds.
fn prove_by_lives(
    part: &'static str,
    noun: &'static str,
    rounds: &Rounds,
    mut one_life: impl FnMut(u64, &mut Tally),
) -> ExitCode {
    if let Some(path) = &rounds.kiln {
        match path.canonicalize() {
            Ok(path) => binary::choose(path),
            Err(error) => {
                eprintln!("kiln-prove: {}: {error}; --kiln names the program to be tried", path.display());
                return ExitCode::from(2);
            }
        }
    }
    let arguments = rounds.server_arguments();
    if !binary::knows(&arguments) {
        eprintln!(
            "kiln-prove: {} does not take: serve {}; to plant bugs it must be built with --features planted-bugs",
            binary::path().display(),
            arguments.join(" ")
        );
        return ExitCode::from(2);
    }
    let replay = Replay::default();
    let progress = Progress::new(part, rounds.limit(), rounds.counts);
    progress.watch(replay.clone());
    let mut tally = Tally { progress, noun, rounds: 0, writes: 0 };
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        // Which, is worth a line: an old one may lie there.
        eprintln!("{part}: the program is {}", binary::path().display());
        for seed in rounds.seed.. {
            if tally.is_enough() {
                break;
            }
            replay.at(&format!(
                "{part} --seed {seed} --seconds 60  (time is not repeated: it may take several runs)"
            ));
            one_life(seed, &mut tally);
        }
        tally.has_looked_at_something().unwrap_or_else(|what| panic!("{what}"));
    }));
    if outcome.is_err() {
        tally.progress.fail();
        replay.print();
        return ExitCode::FAILURE;
    }
    tally.progress.finish();
    ExitCode::SUCCESS
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arguments::Limit;

    #[test]
    fn a_run_in_which_no_write_was_acknowledged_fails() {
        let progress = Progress::silent("none", Limit::States(100));
        let mut tally = Tally { progress, noun: "kills", rounds: 0, writes: 0 };
        for _ in 1..ROUNDS_WITH_A_WRITE {
            tally.count(0, "");
        }
        // So few may all have been too short.
        assert_eq!(tally.has_looked_at_something(), Ok(()));
        tally.count(0, "");
        let what = tally.has_looked_at_something().unwrap_err();
        assert_eq!(what, "no write was acknowledged in 20 kills");
        tally.count(1, "");
        assert_eq!(tally.has_looked_at_something(), Ok(()));
    }
}
