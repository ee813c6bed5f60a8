//! The command line.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::engines::catalog::Name;
use crate::generate::draws::Distribution;

/// Measures Kiln: ratios from one run, with every result checked.
#[derive(Debug, Parser)]
#[command(name = "kiln-bench", version)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Kiln beside its peers: workloads on all engines that are there, in rounds in which they alternate.
    Run(RunSettings),
    /// The engines with their modes and settings, and the workloads.
    List,
    /// One engine, as a process of its own; started by `run`.
    #[command(hide = true)]
    Contestant,
    /// The figures of the README: single keys, transactions, safe commits against the device's floor, RESP beside Redis.
    Figures(Settings),
    /// How two result files differ: what became faster or slower by more than the noise.
    Compare(CompareSettings),
    /// Result files as a page with pictures and tables.
    Report(ReportSettings),
    /// Result files as the tables of docs/benchmarks.md, in Markdown.
    Tables(TablesSettings),
}

/// What is put into tables, and where they go.
#[derive(Args, Clone, Debug)]
pub(crate) struct TablesSettings {
    /// The result files. Ratios are only taken within one file.
    #[arg(required = true)]
    pub(crate) files: Vec<PathBuf>,
    /// Put them into this document, in place of what stands between its marks "kiln-bench tables: begin" and "end", instead of
    /// printing them.
    #[arg(long, value_name = "DOCUMENT")]
    pub(crate) into: Option<PathBuf>,
}

/// What is compared.
#[derive(Args, Clone, Debug)]
#[command(after_help = COMPARE_HELP)]
pub(crate) struct CompareSettings {
    /// The result file to compare with.
    pub(crate) old: PathBuf,
    /// The result file that is judged.
    pub(crate) new: PathBuf,
    /// Differences of medians up to this, in percent, are noise.
    #[arg(long, value_name = "PERCENT", default_value_t = 10.0, value_parser = percent)]
    pub(crate) threshold: f64,
    /// End with exit code 1 if a cell of Kiln is slower.
    #[arg(long)]
    pub(crate) fail_on_slower: bool,
}

const COMPARE_HELP: &str = "\
A cell is faster or slower when the medians of its operations per second differ by more than the threshold, and by more than three of their
standard errors; where one of the files has fewer than five rounds of it, when the ranges of its rounds (minimum to maximum) in both do not overlap. Without --fail-on-slower the exit code is 0 whatever changed.";

/// What is drawn, and where it goes.
#[derive(Args, Clone, Debug)]
#[command(after_help = REPORT_HELP)]
pub(crate) struct ReportSettings {
    /// The result files. Ratios are only taken within one file.
    #[arg(required = true)]
    pub(crate) files: Vec<PathBuf>,
    /// The directory for index.html, tables.md and the pictures: not there, empty, or with an earlier report, which is replaced.
    #[arg(long, value_name = "DIR")]
    pub(crate) out: PathBuf,
}

const REPORT_HELP: &str = "\
The page needs no network and no script. What can be drawn depends on what was measured: bars always; the effect of the
vulnerability window where Kiln ran with two or more; throughput over time where a measurement has bins; scaling where there are
two or more numbers of threads.";

/// A part of the figures that can be run alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Section {
    /// Single-key get and put on Map and Table.
    Single,
    /// Transactions of three keys on Map.
    Transactions,
    /// Safe commits against one direct write and sync.
    Safe,
    /// The server beside Redis, both under redis-benchmark.
    Resp,
    /// What a table under uniform updates writes to the device and has on the disk; only where it is named.
    Amplification,
}

/// What is measured and for how long.
#[derive(Args, Clone, Debug)]
#[command(after_help = crate::results::FIELDS_HELP)]
pub(crate) struct Settings {
    /// Measure only these sections.
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = [Section::Single, Section::Transactions, Section::Safe, Section::Resp])]
    pub(crate) sections: Vec<Section>,
    /// A short run: 3 rounds of half a second unless told otherwise.
    #[arg(long)]
    pub(crate) quick: bool,
    /// Seconds of one measurement [default: 2, or 0.5 with --quick].
    #[arg(long, value_parser = seconds)]
    pub(crate) seconds: Option<Duration>,
    /// Rounds of alternating measurements [default: 5, or 3 with --quick].
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: Option<u32>,
    /// Keys in the database. Each has 16 bytes, its value 100.
    #[arg(long, default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(1000..=1_000_000_000))]
    pub(crate) records: u64,
    /// Memory of each database, in MiB. With the default the log has 2 GiB of it, and nearly every record is read and updated
    /// there.
    #[arg(long, default_value_t = 2560, value_parser = clap::value_parser!(u64).range(64..=1 << 20))]
    memory: u64,
    /// Where the data goes: a directory that is not there, is empty, or was left by an earlier run. It is removed at the end.
    #[arg(long, default_value = "kiln-bench-data")]
    pub(crate) dir: PathBuf,
    /// Also write every measurement to this file, one JSON object a line. The file must not be there.
    #[arg(long)]
    pub(crate) json: Option<PathBuf>,
    /// The kiln program to serve with [default: built by cargo, or the one beside this program].
    #[arg(long)]
    pub(crate) kiln: Option<PathBuf>,
    /// The Redis server to compare with.
    #[arg(long, default_value = "redis-server")]
    pub(crate) redis_server: PathBuf,
    /// The load generator of the RESP section.
    #[arg(long, default_value = "redis-benchmark")]
    pub(crate) redis_benchmark: PathBuf,
}

impl Settings {
    /// How long one measurement takes.
    pub(crate) fn duration(&self) -> Duration {
        self.seconds.unwrap_or(Duration::from_millis(if self.quick { 500 } else { 2000 }))
    }

    /// How often each measurement is repeated.
    pub(crate) fn rounds(&self) -> u32 {
        self.rounds.unwrap_or(if self.quick { 3 } else { 5 })
    }

    /// Memory of one database.
    pub(crate) fn memory_bytes(&self) -> u64 {
        self.memory << 20
    }
}

/// How much is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Profile {
    /// A few workloads on little data, in less than 5 minutes.
    Quick,
    /// Most workloads on more data, in some hours.
    Full,
    /// Some workloads on tables larger than the memory that the engines' processes may have, in less than 15 minutes.
    SmallCache,
    /// The figures of the papers of CPR and AciKV, in less than 15 minutes.
    Papers,
}

/// What `run` measures. Everything that is not given is the profile's.
#[derive(Args, Clone, Debug)]
#[command(after_help = crate::results::FIELDS_HELP)]
pub(crate) struct RunSettings {
    /// How much is measured.
    #[arg(long, value_enum, default_value_t = Profile::Quick)]
    pub(crate) profile: Profile,
    /// Only these engines [default: all that are installed, without the generator, or some of them with --profile small-cache; see
    /// kiln-bench list].
    #[arg(long, value_enum, value_delimiter = ',')]
    pub(crate) engines: Vec<Name>,
    /// Only these workloads [default: the profile's; see kiln-bench list].
    #[arg(long, value_delimiter = ',')]
    pub(crate) workloads: Vec<String>,
    /// Keys in each database [default: 200000 in tables, 1000000 in maps and 655360 of cold-*; ten, five and four times as many with --profile
    /// full; 6800000 in tables with --profile small-cache; 1000000 with --profile papers, of which the papers have more].
    #[arg(long, value_parser = clap::value_parser!(u64).range(1000..=1 << 34))]
    pub(crate) records: Option<u64>,
    /// Numbers of client threads [default: 1,2, or as the figures of --profile papers want].
    #[arg(long, value_delimiter = ',', value_parser = threads)]
    pub(crate) threads: Vec<usize>,
    /// Seconds of one measurement [default: 0.1, or 1 with --profile full and small-cache, or 0.5 to 10 with
    /// --profile papers].
    #[arg(long, value_parser = seconds)]
    pub(crate) seconds: Option<Duration>,
    /// Rounds of alternating measurements: neither fewer nor more [default: 5 to 30, or 5 to 9 with --profile full, or 3 to 9 with
    /// --profile small-cache: those whose ratio to Kiln is unsure are measured more often; 2 or 3 with --profile papers].
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) rounds: Option<u32>,
    /// How long the run may take in all: rounds are left out where it would be more, and in the end cells, too [default: 4m30s, or 15m with
    /// --profile small-cache and papers, or more if more was asked for; none with --rounds or --profile full].
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
    pub(crate) time_limit: Option<Duration>,
    /// Kiln's vulnerability windows: how long a fast commit may stay undurable. "never" is Kiln without hardening, for comparison
    /// [default: 100ms, as a quick round is shorter than longer ones; 100ms,5s with --profile full; with --profile papers as the figures want].
    #[arg(long, value_delimiter = ',', value_parser = window)]
    pub(crate) window: Vec<Window>,
    /// Peers that make nothing durable by themselves are asked to make everything durable so often while they are measured, and not only
    /// at the end.
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
    pub(crate) persist_each: Option<Duration>,
    /// How keys are chosen: uniform, zipf (with the exponent 0.99), zipf-0.1 and others, latest; each of several [default: as the workload
    /// says].
    #[arg(long, value_delimiter = ',')]
    pub(crate) distribution: Vec<Distribution>,
    /// Bytes of a key, 8 to 64 [default: 16 in tables, 8 in maps].
    #[arg(long)]
    pub(crate) key_bytes: Option<usize>,
    /// Bytes of a value, 8 to 1048576 [default: 100 in tables, 8 in maps].
    #[arg(long)]
    pub(crate) value_bytes: Option<usize>,
    /// Keys of each operation of the map-* and cold-* workloads: read, written or changed together [default: 1, cold-* 64].
    #[arg(long, value_parser = batch)]
    pub(crate) batch: Option<usize>,
    /// Memory for caching of each database, in MiB; for Kiln, its log's [default: 256, or 1024 with --profile full, or 64 with --profile
    /// small-cache, or 512 with --profile papers; cold-* as they say].
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..=1 << 20))]
    pub(crate) cache: Option<u64>,
    /// What each engine's process may have in all, in MiB, the system's page cache for its files included; without, the page cache is whatever
    /// the machine has. A memory control group of Linux: takes root's rights [default: none, or 768 with --profile small-cache].
    #[arg(long, value_name = "MIB", value_parser = clap::value_parser!(u64).range(16..=1 << 20))]
    pub(crate) memory_limit: Option<u64>,
    /// Where the data goes: a directory that is not there, is empty, or was left by an earlier run. It is removed at the end.
    #[arg(long, default_value = "kiln-bench-data")]
    pub(crate) dir: PathBuf,
    /// Also write every measurement to this file, one JSON object a line. The file must not be there.
    #[arg(long)]
    pub(crate) json: Option<PathBuf>,
    /// Go on with the run that was interrupted: what --json has already is not measured again, the rest is added to it.
    #[arg(long, requires = "json")]
    pub(crate) resume: bool,
    /// Only say what would be measured, how long that takes, about, and how much room it needs.
    #[arg(long)]
    pub(crate) plan: bool,
}

/// Kiln's vulnerability window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Window {
    /// So long.
    Of(Duration),
    /// Nothing hardens.
    Never,
}

fn window(text: &str) -> Result<Window, String> {
    match text {
        "never" => Ok(Window::Never),
        _ => humantime::parse_duration(text).map(Window::Of).map_err(|error| error.to_string()),
    }
}

fn threads(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(threads @ 1..=1024) => Ok(threads),
        _ => Err("between 1 and 1024 threads are possible".to_owned()),
    }
}

fn batch(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(batch @ 1..=1024) => Ok(batch),
        _ => Err("between 1 and 1024 keys are possible".to_owned()),
    }
}

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 =
        text.parse().map_err(|_| "a number of seconds is needed, for example 0.5".to_owned())?;
    if !(0.05..=3600.0).contains(&seconds) {
        return Err("between 0.05 and 3600 seconds are possible".to_owned());
    }
    Ok(Duration::from_secs_f64(seconds))
}

fn percent(text: &str) -> Result<f64, String> {
    let percent: f64 =
        text.parse().map_err(|_| "a number of percent is needed, for example 10".to_owned())?;
    if !(0.0..=100.0).contains(&percent) {
        return Err("between 0 and 100 percent are possible".to_owned());
    }
    Ok(percent)
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn quick_only_changes_what_was_not_given() {
        let settings = |text: &str| match Arguments::parse_from(text.split(' ')).command {
            Command::Figures(settings) => settings,
            _ => unreachable!(),
        };
        assert_eq!(settings("kiln-bench figures").rounds(), 5);
        assert_eq!(settings("kiln-bench figures --quick").rounds(), 3);
        assert_eq!(settings("kiln-bench figures --quick --rounds 9").rounds(), 9);
        assert_eq!(settings("kiln-bench figures --quick --seconds 4").duration(), Duration::from_secs(4));
        assert_eq!(
            settings("kiln-bench figures --sections safe,resp").sections,
            [Section::Safe, Section::Resp]
        );
        assert!(Arguments::try_parse_from(["kiln-bench", "figures", "--seconds", "NaN"]).is_err());
    }

    #[test]
    fn a_threshold_is_a_percentage_and_a_report_needs_files_and_a_place() {
        let parse = |text: &str| Arguments::try_parse_from(text.split(' '));
        assert!(parse("kiln-bench compare a b --threshold 2.5 --fail-on-slower").is_ok());
        for threshold in ["-1", "101", "NaN", "x"] {
            assert!(parse(&format!("kiln-bench compare a b --threshold={threshold}")).is_err());
        }
        assert!(parse("kiln-bench report a b --out c").is_ok());
        assert!(parse("kiln-bench report a").is_err());
        assert!(parse("kiln-bench report --out c").is_err());
    }
}
