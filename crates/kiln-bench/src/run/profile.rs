//! The profiles: what is measured where the command line leaves it open.

use std::time::Duration;

use super::rounds::Rounds;
use crate::arguments::Window;
use crate::engines::catalog::Name;

/// The settings of a profile, for what the command line leaves open.
pub(super) struct Defaults {
    /// All that are there, if none is named.
    pub(super) engines: &'static [Name],
    pub(super) workloads: &'static [&'static str],
    /// Those of them that are also run where each commit is durable.
    pub(super) durable: &'static [&'static str],
    pub(super) seconds: f64,
    pub(super) rounds: Rounds,
    pub(super) windows: &'static [Window],
    pub(super) table_records: u64,
    pub(super) map_records: u64,
    /// Of a kilobyte each.
    pub(super) cold_records: u64,
    pub(super) recovery_records: u64,
    pub(super) cache_mib: u64,
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
    // Many short rounds: what slows the machine for some seconds then falls on few rounds of all engines alike.
    seconds: 0.1,
    rounds: Rounds { least: 5, most: 30, time_limit: Some(Duration::from_secs(270)) },
    // Rounds that are shorter than a window all harden at their end.
    windows: &[Window::Of(Duration::from_millis(100))],
    table_records: 200_000,
    map_records: 1_000_000,
    cold_records: 640 << 10,
    recovery_records: 200_000,
    cache_mib: 256,
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
    seconds: 1.0,
    rounds: Rounds { least: 5, most: 9, time_limit: None },
    windows: &[Window::Of(Duration::from_millis(100)), Window::Of(Duration::from_secs(5))],
    table_records: 2_000_000,
    map_records: 5_000_000,
    cold_records: 2560 << 10,
    recovery_records: 2_000_000,
    cache_mib: 1024,
};

/// The quick profile's tables, with a third of the memory that they take. Peers have the system's page cache besides, which holds all
/// of them: Kiln reads past it.
pub(super) const SMALL_CACHE: Defaults = Defaults {
    engines: &[
        Name::Kiln,
        Name::RocksDb,
        Name::LevelDb,
        Name::Redb,
        Name::Lmdb,
        Name::Sqlite,
        Name::Fjall,
        Name::Memory,
    ],
    workloads: &["read", "range", "mixed50", "update", "insert"],
    durable: &[],
    seconds: 0.2,
    table_records: 1_700_000,
    cache_mib: 64,
    ..QUICK
};
