//! Isolation under real threads: histories of concurrent transactions, with crashes in between, and their checker.
//!
//! ```text
//!  round      threads, crashes, recoveries: one history           library  singles  resp   the load of one thread
//!  recorder   the clock and the keys of a run                     operations      what transactions consist of
//!  values     numbers as bytes                               rows           what they do with rows
//!  keeper     who gives states names, and drops objects        passing        objects that are dropped
//!  history    what every transaction did and saw                  checker/        whether that is what was promised
//! ```
//!
//! Threads are not deterministic: a seed repeats the choices and not who came first. So a history in which something is
//! wrong is saved, and can be checked again.

mod checker;
pub(crate) mod history;
mod keeper;
mod library;
mod operations;
mod passing;
mod recorder;
mod resp;
mod round;
mod rows;
mod singles;
mod values;

use std::path::Path;
use std::process::ExitCode;
use std::time::Instant;

pub(crate) use round::Through;

use crate::arguments::Concurrency;
use crate::jobs::Progress;
use crate::support::Replay;
use history::History;
use round::Round;

/// Runs and checks round after round.
pub(crate) fn prove(concurrency: &Concurrency) -> ExitCode {
    if let Some(file) = &concurrency.check {
        return check_again(file);
    }
    let (mut progress, replay) =
        (Progress::new("isolation", concurrency.limit(), concurrency.counts), Replay::default());
    progress.watch(replay.clone());
    end_with_any_thread(&replay);
    let (mut crashes, mut settled, mut seed) = (0, 0, concurrency.seed);
    while !progress.is_enough() {
        for &through in
            concurrency.through.as_ref().map_or(&[Through::Library, Through::Resp][..], std::slice::from_ref)
        {
            let threads =
                concurrency.threads.map_or(String::new(), |threads| format!(" --threads {threads}"));
            replay.at(&format!(
                "isolation --through {} --seed {seed}{threads} --states 1  (threads are not deterministic: it may take several runs)",
                through.as_str()
            ));
            let (history, rows) = Round::new(seed, concurrency.threads, through).run();
            crashes += history.crashes.len();
            settled += rows;
            progress.count_all(
                history.transactions.len() as u64,
                "transactions",
                format!(", {crashes} crashes and {settled} settled rows"),
            );
            if let Err(anomalies) = checker::check(&history) {
                eprintln!("{anomalies}");
                match concurrency.counts {
                    true => progress.finish(),
                    false => tell(&history, &concurrency.out, seed, &replay),
                }
                return ExitCode::FAILURE;
            }
        }
        seed += 1;
    }
    progress.finish();
    ExitCode::SUCCESS
}

/// A thread of the engine's own that panics would leave the others waiting for ever.
fn end_with_any_thread(replay: &Replay) {
    let (usual, replay) = (std::panic::take_hook(), replay.clone());
    std::panic::set_hook(Box::new(move |panic| {
        usual(panic);
        replay.print();
        std::process::abort();
    }));
}

/// Saves a history in which something is wrong, and says how to look at it again.
fn tell(history: &History, directory: &Path, seed: u64, replay: &Replay) {
    let path = directory.join(format!("isolation-{seed}.json"));
    match history.save(&path) {
        Ok(()) => eprintln!(
            "the history is in {}; check it again: kiln-prove isolation --check {}",
            path.display(),
            path.display()
        ),
        Err(error) => eprintln!("the history cannot be saved to {}: {error}", path.display()),
    }
    replay.print();
}

/// Checks a history that was saved.
fn check_again(file: &Path) -> ExitCode {
    let history = match History::load(file) {
        Ok(history) => history,
        Err(error) => {
            eprintln!("{}: {error}", file.display());
            return ExitCode::from(2);
        }
    };
    let began = Instant::now();
    let verdict = checker::check(&history);
    let (count, crashes) = (history.transactions.len(), history.crashes.len());
    let took = began.elapsed().as_secs_f64();
    match verdict {
        Ok(()) => {
            println!("{count} transactions and {crashes} crashes checked in {took:.1} s: nothing is wrong");
            ExitCode::SUCCESS
        }
        Err(anomalies) => {
            println!(
                "{anomalies}\n{count} transactions and {crashes} crashes checked in {took:.1} s: FAILED"
            );
            ExitCode::FAILURE
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::testing::{at_test, budget, seed, watched};

    fn rounds(name: &'static str, through: Through) {
        watched(name, Duration::from_secs(600), |replay| {
            for seed in (seed()..).take(budget(4) as usize) {
                at_test(replay, name, seed);
                let (history, _) = Round::new(seed, None, through).run();
                if let Err(anomalies) = checker::check(&history) {
                    panic!("seed {seed}: {anomalies}");
                }
            }
        });
    }

    #[test]
    fn c2_histories_of_many_threads_and_crashes_through_the_library() {
        rounds("c2_histories_of_many_threads_and_crashes_through_the_library", Through::Library);
    }

    #[test]
    fn c2_histories_of_many_threads_and_crashes_through_resp() {
        rounds("c2_histories_of_many_threads_and_crashes_through_resp", Through::Resp);
    }
}
