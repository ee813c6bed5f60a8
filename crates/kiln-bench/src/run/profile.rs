//! The profiles: what is measured where the command line leaves it open.

use std::time::Duration;

use super::rounds::Rounds;
use crate::arguments::{Profile, Window};
use crate::engines::catalog::Name;

/// The settings of a profile, or of a part of one, for what the command line leaves open.
pub(super) struct Defaults {
    /// All that are there, if none is named.
    pub(super) engines: &'static [Name],
    pub(super) workloads: &'static [&'static str],
    /// Those of them that are also run where each commit is durable.
    pub(super) durable: &'static [&'static str],
    /// As each workload says, if none is named.
    pub(super) distributions: &'static [&'static str],
    pub(super) threads: &'static [usize],
    pub(super) seconds: f64,
    pub(super) rounds: Rounds,
    /// How long the run may take, with loading and checking. See [`super::clock`].
    pub(super) time_limit: Option<Duration>,
    pub(super) windows: &'static [Window],
    pub(super) persist_each: Option<Duration>,
    pub(super) table_records: u64,
    pub(super) map_records: u64,
    /// Of a kilobyte each.
    pub(super) cold_records: u64,
    pub(super) recovery_records: u64,
    pub(super) cache_mib: u64,
    /// Of the process, with the page cache for its files.
    pub(super) limit_mib: Option<u64>,
}

/// The parts of a profile, mostly one.
pub(super) fn parts(profile: Profile) -> &'static [Defaults] {
    match profile {
        Profile::Quick => &[QUICK],
        Profile::Full => &[FULL],
        Profile::SmallCache => &[SMALL_CACHE],
        Profile::Papers => &PAPERS,
    }
}

pub(super) const QUICK: Defaults = Defaults {
    engines: &[],
    workloads: &[
        "read",
        "range",
        "rmw",
        "update",
        "insert",
        "safe-commit",
        "map-read",
        "map-rmw",
        "map-upsert",
    ],
    durable: &["safe-commit"],
    distributions: &[],
    threads: &[1, 2],
    // Many short rounds: what slows the machine for some seconds then falls on few rounds of all engines alike.
    seconds: 0.1,
    rounds: Rounds { least: 5, most: 30 },
    time_limit: Some(Duration::from_secs(270)),
    // Rounds that are shorter than a window all harden at their end.
    windows: &[Window::Of(Duration::from_millis(100))],
    persist_each: None,
    table_records: 200_000,
    map_records: 1_000_000,
    cold_records: 640 << 10,
    recovery_records: 200_000,
    cache_mib: 256,
    limit_mib: None,
};

pub(super) const FULL: Defaults = Defaults {
    engines: &[],
    workloads: &[
        "read",
        "range",
        "read-seq",
        "ycsb-c",
        "rmw",
        "txn-1",
        "txn-3",
        "txn-10",
        "mixed95",
        "mixed50",
        "update",
        "ycsb-a",
        "ycsb-b",
        "ycsb-f",
        "mixed-durability",
        "ycsb-d",
        "ycsb-e",
        "insert",
        "fill-seq",
        "safe-commit",
        "map-read",
        "map-rmw",
        "map-mixed50",
        "map-upsert",
        "tpcc",
        "tpcc-payment",
        "tpcc-new-order",
        "cold-read-tenth",
        "cold-zipf-tenth",
        "cold-read-quarter",
        "cold-zipf-quarter",
        "recovery",
        "recovery-log",
    ],
    durable: &["safe-commit", "rmw", "txn-3", "fill-seq", "tpcc"],
    distributions: &[],
    threads: &[1, 2],
    seconds: 1.0,
    rounds: Rounds { least: 5, most: 9 },
    time_limit: None,
    windows: &[Window::Of(Duration::from_millis(100)), Window::Of(Duration::from_secs(5))],
    persist_each: None,
    table_records: 2_000_000,
    map_records: 5_000_000,
    cold_records: 2560 << 10,
    recovery_records: 2_000_000,
    cache_mib: 1024,
    limit_mib: None,
};

/// Tables that are larger than all the memory that an engine's process may have, the page cache for its files included, a twelfth of which is its
/// own cache: the rest is for its indexes, or for the page cache, whichever it uses.
pub(super) const SMALL_CACHE: Defaults = Defaults {
    engines: &[Name::Kiln, Name::RocksDb, Name::LevelDb, Name::Redb, Name::Lmdb, Name::Sqlite, Name::Fjall],
    workloads: &["read", "range", "mixed50", "update", "insert"],
    durable: &[],
    seconds: 1.0,
    rounds: Rounds { least: 3, most: 9 },
    time_limit: Some(Duration::from_secs(900)),
    table_records: 6_800_000,
    cache_mib: 64,
    limit_mib: Some(768),
    ..QUICK
};

/// What the parts of the papers' figures have in common: Kiln with a window of a second, as many keys in tables as in maps.
const FIGURE: Defaults = Defaults {
    engines: &[Name::Kiln],
    workloads: &[],
    durable: &[],
    distributions: &[],
    threads: &[2],
    seconds: 0.5,
    rounds: Rounds { least: 3, most: 3 },
    time_limit: Some(Duration::from_secs(900)),
    windows: &[Window::Of(Duration::from_secs(1))],
    persist_each: None,
    table_records: 1_000_000,
    map_records: 1_000_000,
    cold_records: 0,
    recovery_records: 0,
    cache_mib: 512,
    limit_mib: None,
};

/// The figures of the papers of CPR and AciKV; `docs/papers.md` says which is which.
const PAPERS: [Defaults; 6] = [
    // CPR, figures 10, 11 and 16: a log at commit.
    Defaults {
        engines: &[Name::Kiln, Name::KilnWal],
        workloads: &[
            "map-txn-1-50",
            "map-txn-3-50",
            "map-txn-5-50",
            "map-txn-7-50",
            "map-txn-10-50",
            "map-txn-1-0",
            "map-txn-3-0",
            "map-txn-5-0",
            "map-txn-7-0",
            "map-txn-10-0",
        ],
        distributions: &["zipf-0.1", "zipf"],
        threads: &[1, 2],
        ..FIGURE
    },
    // CPR, figures 12 to 14: with hardening and without.
    Defaults { workloads: &["map-mixed50", "map-rmw"], distributions: &["zipf"], ..WITH_AND_WITHOUT },
    Defaults { workloads: &["map-upsert"], ..WITH_AND_WITHOUT },
    // CPR, figure 15: clients that keep what is not durable.
    Defaults {
        workloads: &[
            "map-buffered-256",
            "map-buffered-1024",
            "map-buffered-4096",
            "map-buffered-16384",
            "map-buffered-65536",
            "map-buffered-262144",
        ],
        distributions: &["zipf", "uniform"],
        seconds: 0.7,
        windows: &[Window::Of(Duration::from_secs(10))],
        ..FIGURE
    },
    // AciKV, figures 6 and 7: the vulnerability window.
    Defaults {
        workloads: &["update"],
        seconds: 10.0,
        rounds: Rounds { least: 2, most: 2 },
        windows: &[
            Window::Of(Duration::from_millis(1)),
            Window::Of(Duration::from_millis(3)),
            Window::Of(Duration::from_millis(10)),
            Window::Of(Duration::from_millis(30)),
            Window::Of(Duration::from_millis(100)),
            Window::Of(Duration::from_secs(1)),
            Window::Of(Duration::from_secs(5)),
            Window::Of(Duration::from_secs(10)),
            Window::Of(Duration::from_secs(100)),
        ],
        ..FIGURE
    },
    // AciKV, figure 7: group commit.
    Defaults {
        workloads: &["safe-commit"],
        durable: &["safe-commit"],
        threads: &[1, 4, 16, 64, 128],
        seconds: 0.7,
        ..FIGURE
    },
];

const WITH_AND_WITHOUT: Defaults = Defaults {
    engines: &[Name::Kiln, Name::Faster],
    threads: &[1, 2],
    seconds: 3.0,
    rounds: Rounds { least: 2, most: 2 },
    windows: &[Window::Of(Duration::from_secs(1)), Window::Never],
    persist_each: Some(Duration::from_secs(1)),
    ..FIGURE
};
