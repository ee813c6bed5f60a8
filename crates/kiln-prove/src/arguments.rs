//! The command line.

use std::time::Duration;

use clap::{Args, Parser, Subcommand};

/// Tries to break Kiln, on a simulated disk that keeps, loses, tears and damages what a real one may. Whatever fails prints
/// a line that repeats it.
#[derive(Debug, Parser)]
#[command(name = "kiln-prove", version, arg_required_else_help = true)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    pub(crate) part: Part,
}

/// What is tried.
#[cfg(feature = "schedules")]
#[derive(Clone, Debug, Subcommand)]
pub(crate) enum Part {
    /// Run short concurrent programs on the engine under one schedule after the other.
    Schedules(Scheduling),
    /// Plant mistakes in the engine, one after the other, and see whether schedules notice them, and after how many.
    #[cfg(feature = "plant")]
    Plant(Planting),
}

/// What is tried.
#[cfg(not(feature = "schedules"))]
#[derive(Clone, Debug, Subcommand)]
pub(crate) enum Part {
    /// Cut the power at every step of the device, with every loss that a disk allows, and again during recovery.
    Crash(Effort),
    /// Let every operation of the device fail, once and for ever, in every way.
    Faults(Effort),
    /// Damage every byte, sector and file of a small database.
    Corrupt(Effort),
    /// Open databases again and again, with options that change, and crash, or have the disk be full, now and then.
    Lives(Effort),
    /// Run transactions on many threads, crash now and then, and check everything that anybody saw for anomalies.
    Isolation(Concurrency),
    /// A process of `faults` that runs out of memory.
    #[command(hide = true)]
    Starved(Starved),
    /// Run the real server under the load of real clients; kill it, stop it, restart it, and check what is there.
    Kill(Rounds),
    /// Run the real server under clients that ask too much of it, or speak nonsense, and see that it serves others meanwhile, and has bounds.
    Misuse(Rounds),
    /// Run the real server on a file system that holds back what is not synced, and cut the power. Needs FUSE.
    Powercut(Rounds),
    /// Plant mistakes in the engine, one after the other, and see which of the above notices each, and after how long.
    #[cfg(feature = "plant")]
    Plant(Planting),
}

/// How planted bugs are looked for.
#[cfg(feature = "plant")]
#[derive(Args, Clone, Copy, Debug)]
pub(crate) struct Planting {
    /// Seconds of a processor for a part to find a bug; some have more and some less.
    #[arg(long, default_value_t = 20.0)]
    pub(crate) seconds: f64,
    /// Plant this one only.
    #[arg(long)]
    pub(crate) only: Option<kiln::planted::Bug>,
}

/// How many schedules are tried.
#[cfg(feature = "schedules")]
#[derive(Args, Clone, Copy, Debug)]
pub(crate) struct Scheduling {
    /// The seed of the first schedule of each program; it decides every choice.
    #[arg(long, default_value_t = crate::support::DEFAULT_SEED)]
    pub(crate) seed: u64,
    /// Stop after so many seconds.
    #[arg(long, conflicts_with = "states", default_value_t = 20.0)]
    seconds: f64,
    /// Stop after so many schedules.
    #[arg(long)]
    pub(crate) states: Option<u64>,
    /// Run this program only.
    #[arg(long, value_parser = crate::schedules::program)]
    pub(crate) only: Option<kiln::schedules::Program>,
    /// Plant this bug in the engine before anything else.
    #[cfg(feature = "plant")]
    #[arg(long)]
    pub(crate) plant: Option<kiln::planted::Bug>,
    /// Print counts only.
    #[arg(long, hide = true)]
    pub(crate) counts: bool,
}

#[cfg(feature = "schedules")]
impl Scheduling {
    pub(crate) fn limit(&self) -> Limit {
        let limit = match self.states {
            Some(states) => Limit::States(states),
            None => Limit::Time(Duration::from_secs_f64(self.seconds.clamp(0.0, 1e9))),
        };
        #[cfg(feature = "plant")]
        let limit = limit.where_planted(self.plant);
        limit
    }
}

/// How much is tried.
#[cfg(not(feature = "schedules"))]
#[derive(Args, Clone, Copy, Debug)]
pub(crate) struct Effort {
    /// The seed of every random choice.
    #[arg(long, default_value_t = crate::support::DEFAULT_SEED)]
    pub(crate) seed: u64,
    /// Stop after so many seconds.
    #[arg(long, conflicts_with = "states")]
    seconds: Option<f64>,
    /// Stop after so many states: different crash states, runs with a failure, or damaged databases. Without this and --seconds, one
    /// whole pass is made with the seed.
    #[arg(long)]
    states: Option<u64>,
    /// Look at one step of the device only, to repeat what failed.
    #[arg(long, conflicts_with_all = ["seconds", "states"])]
    pub(crate) step: Option<u64>,
    /// Use this workload only.
    #[arg(long)]
    pub(crate) workload: Option<crate::workload::Name>,
    /// Processes that work side by side, each with seeds of its own [default: one for each processor].
    #[arg(long)]
    jobs: Option<u64>,
    /// Plant this bug in the engine before anything else.
    #[cfg(feature = "plant")]
    #[arg(long)]
    pub(crate) plant: Option<kiln::planted::Bug>,
    /// This process is one of several: print counts for the first one to add up.
    #[arg(long, hide = true)]
    pub(crate) counts: bool,
}

/// What a process is to do until it runs out of memory.
#[cfg(not(feature = "schedules"))]
#[derive(Args, Clone, Debug)]
pub(crate) struct Starved {
    /// The workload.
    #[arg(long)]
    pub(crate) workload: crate::workload::Name,
    /// The seed of its random choices.
    #[arg(long)]
    pub(crate) seed: u64,
    /// This allocation fails.
    #[arg(long)]
    pub(crate) nth: u64,
    /// Open the database, and do nothing else.
    #[arg(long)]
    pub(crate) opens_only: bool,
    /// Where the database is.
    #[arg(long)]
    pub(crate) directory: std::path::PathBuf,
    /// Where to note what was done.
    #[arg(long)]
    pub(crate) notes: std::path::PathBuf,
    /// Plant this bug in the engine before anything else.
    #[cfg(feature = "plant")]
    #[arg(long)]
    pub(crate) plant: Option<kiln::planted::Bug>,
}

#[cfg(not(feature = "schedules"))]
impl Starved {
    /// The command line that says the same.
    pub(crate) fn arguments(&self) -> Vec<String> {
        let directories = [("--directory", &self.directory), ("--notes", &self.notes)];
        let mut arguments = vec![format!("--workload={}", self.workload.as_str())];
        arguments.push(format!("--seed={}", self.seed));
        arguments.push(format!("--nth={}", self.nth));
        arguments.extend(directories.map(|(name, path)| format!("{name}={}", path.display())));
        arguments.extend(self.opens_only.then(|| "--opens-only".to_owned()));
        #[cfg(feature = "plant")]
        arguments.extend(self.plant.map(|bug| format!("--plant={}", bug.name())));
        arguments
    }
}

/// How many concurrent transactions are run and checked, and how.
#[cfg(not(feature = "schedules"))]
#[derive(Args, Clone, Debug)]
pub(crate) struct Concurrency {
    /// The seed of every random choice; who comes first it does not decide.
    #[arg(long, default_value_t = crate::support::DEFAULT_SEED)]
    pub(crate) seed: u64,
    /// Stop after so many seconds.
    #[arg(long, conflicts_with = "states", default_value_t = 20.0)]
    seconds: f64,
    /// Stop after so many transactions.
    #[arg(long)]
    states: Option<u64>,
    /// Use so many threads, 2 to 16 [default: as the seed says].
    #[arg(long, value_parser = clap::value_parser!(u32).range(2..=16))]
    pub(crate) threads: Option<u32>,
    /// Go only through this [default: both in turn].
    #[arg(long)]
    pub(crate) through: Option<crate::isolation::Through>,
    /// Run nothing: check a history that was saved.
    #[arg(long, value_name = "FILE")]
    pub(crate) check: Option<std::path::PathBuf>,
    /// Where to save a history in which something is wrong.
    #[arg(long, value_name = "DIRECTORY", default_value = ".")]
    pub(crate) out: std::path::PathBuf,
    /// Plant this bug in the engine before anything else.
    #[cfg(feature = "plant")]
    #[arg(long)]
    pub(crate) plant: Option<kiln::planted::Bug>,
    /// Print counts only.
    #[arg(long, hide = true)]
    pub(crate) counts: bool,
}

#[cfg(not(feature = "schedules"))]
impl Concurrency {
    pub(crate) fn limit(&self) -> Limit {
        let limit = Limit::of(self.seconds, self.states);
        #[cfg(feature = "plant")]
        let limit = limit.where_planted(self.plant);
        limit
    }
}

/// How often the real server is run and ended, and which.
#[cfg(not(feature = "schedules"))]
#[derive(Args, Clone, Debug)]
pub(crate) struct Rounds {
    /// The seed of every random choice; how long something takes it does not decide.
    #[arg(long, default_value_t = crate::support::DEFAULT_SEED)]
    pub(crate) seed: u64,
    /// Stop after so many seconds.
    #[arg(long, conflicts_with = "rounds", default_value_t = 20.0)]
    seconds: f64,
    /// Stop after so many rounds.
    #[arg(long)]
    rounds: Option<u64>,
    /// The program [default: the kiln beside this program; if there is none, it is built].
    #[arg(long, value_name = "PATH")]
    pub(crate) kiln: Option<std::path::PathBuf>,
    /// Plant this bug in the server.
    #[cfg(feature = "plant")]
    #[arg(long)]
    plant: Option<kiln::planted::Bug>,
    /// Print counts only.
    #[arg(long, hide = true)]
    pub(crate) counts: bool,
}

#[cfg(not(feature = "schedules"))]
impl Rounds {
    /// Options that every server gets.
    pub(crate) fn server_arguments(&self) -> Vec<&'static str> {
        #[cfg(feature = "plant")]
        if let Some(bug) = self.plant {
            return vec!["--plant", bug.name()];
        }
        Vec::new()
    }

    pub(crate) fn limit(&self) -> Limit {
        Limit::of(self.seconds, self.rounds)
    }
}

/// When to stop.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Limit {
    #[cfg_attr(feature = "schedules", allow(dead_code, reason = "schedules have no end"))]
    Pass,
    Time(Duration),
    /// So much time of a processor: on a busy machine as much is tried as on another.
    #[cfg(feature = "plant")]
    Processor(Duration),
    States(u64),
}

#[cfg(feature = "plant")]
impl Limit {
    /// The limit of who looks for a bug that is planted.
    fn where_planted(self, bug: Option<kiln::planted::Bug>) -> Limit {
        match (self, bug) {
            (Limit::Time(time), Some(_)) => Limit::Processor(time),
            (limit, _) => limit,
        }
    }
}

#[cfg(not(feature = "schedules"))]
impl Limit {
    /// So many states, or else so many seconds.
    fn of(seconds: f64, states: Option<u64>) -> Limit {
        match states {
            Some(states) => Limit::States(states),
            None => Limit::Time(Duration::from_secs_f64(seconds.clamp(0.0, 1e9))),
        }
    }
}

#[cfg(not(feature = "schedules"))]
impl Effort {
    pub(crate) fn limit(&self) -> Limit {
        let limit = match (self.seconds, self.states) {
            (None, None) => Limit::Pass,
            (seconds, states) => Limit::of(seconds.unwrap_or_default(), states),
        };
        #[cfg(feature = "plant")]
        let limit = limit.where_planted(self.plant);
        limit
    }

    /// Number of processes. One pass is one process's work.
    pub(crate) fn jobs(&self) -> u64 {
        let processors = std::thread::available_parallelism().map_or(1, |count| count.get() as u64);
        match self.limit() {
            Limit::Pass => 1,
            _ => self.jobs.unwrap_or(processors).max(1),
        }
    }
}
