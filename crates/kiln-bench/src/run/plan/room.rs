//! How much room on the disk a plan needs: what is loaded, and all that is inserted until the last round.

use super::{Group, Plan};
use crate::engines::catalog::Name;
use crate::run::protocol::{Cell, Contestant};
use crate::workloads::Operation;
use crate::workloads::spec::{self, Kind};

/// What an engine may have on the disk for each byte of data, and besides.
const DISK_FACTOR: u64 = 4;
const DISK_BYTES_BESIDES: u64 = 256 << 20;
/// The same for each byte that is inserted later: leaves that are not full, logs that are still to be merged.
const INSERTED_FACTOR: f64 = 1.5;
/// What Kiln's log grows by in a second, at most, while nothing is truncated. Nor does anybody insert more bytes than that.
const LOG_BYTES_PER_SECOND: u64 = 400 << 20;
/// How many keys are inserted in a second at most: by Kiln, by peers that write them to a log and sort them later, by all others; in their order
/// by those whom it helps little, by those who write them to a log first, by all others; and by anybody who waits until they are durable.
const KILN_INSERTS: f64 = 1e6;
const LOG_STRUCTURED_INSERTS: f64 = 0.4e6;
const INSERTS: f64 = 0.2e6;
const SLOW_INSERTS_IN_ORDER: f64 = 0.3e6;
const LOGGED_INSERTS_IN_ORDER: f64 = 0.7e6;
const INSERTS_IN_ORDER: f64 = 1e6;
const DURABLE_INSERTS: f64 = 50e3;
/// What TPC-C's transactions add, at most, and how many that add so much there are in a second: by Kiln and LMDB, and by all others.
const TRANSACTION_BYTES: f64 = 1024.0;
const TRANSACTIONS: f64 = 0.1e6;
const SLOW_TRANSACTIONS: f64 = 0.03e6;

impl Plan {
    /// The most that one group has on the disk at a time.
    pub(in crate::run) fn disk_bytes(&self) -> u64 {
        let of_group = |group: &Group| {
            let loaded = group.contestants.iter().map(|contestant| self.contestant_bytes(group, contestant));
            loaded.sum::<u64>() + self.inserted_bytes(group) as u64
        };
        self.groups.iter().map(of_group).max().unwrap_or(0)
    }

    /// What a contestant has there without what is inserted.
    fn contestant_bytes(&self, group: &Group, contestant: &Contestant) -> u64 {
        let cells = || group.cells.iter().filter(|cell| self.has(contestant, cell));
        let log = match contestant.engine {
            engine if is_in_memory(engine) => return 0,
            // With a checkpoint for each gigabyte.
            Name::KilnWal => 5 << 28,
            Name::Kiln => {
                // What is live is kept, and truncation keeps the rest within the memory of the log, about.
                let seconds: f64 = cells().map(|cell| measured_seconds(group, cell)).sum();
                let written = (seconds * LOG_BYTES_PER_SECOND as f64) as u64;
                written.min(2 * contestant.cache_bytes)
            }
            _ => 0,
        };
        contestant.content.bytes() * DISK_FACTOR + DISK_BYTES_BESIDES + log
    }

    /// What a group's cells add to all its contestants' data, at most: whatever time is left for rounds of those whose ratios are unsure is spent
    /// where most is inserted.
    fn inserted_bytes(&self, group: &Group) -> f64 {
        let on_disk = group.contestants.iter().filter(|one| !is_in_memory(one.engine));
        let mut insertions: Vec<(f64, &Cell)> = on_disk
            .flat_map(|contestant| {
                let cells = group.cells.iter().filter(|cell| self.has(contestant, cell));
                cells.map(|cell| (inserted_bytes_per_second(contestant, cell), cell))
            })
            .collect();
        insertions.sort_by(|one, other| other.0.total_cmp(&one.0));
        let mut left_s = self.uncertain_seconds();
        let inserted = insertions.into_iter().map(|(bytes_per_second, cell)| {
            let certain_s = f64::from(group.rounds.least) * cell.seconds + cell.warm_up_s;
            let more_s = (measured_seconds(group, cell) - certain_s).min(left_s);
            left_s -= more_s;
            (certain_s + more_s) * bytes_per_second
        });
        inserted.sum::<f64>() * INSERTED_FACTOR
    }

    /// How long those may be measured, all together, whose ratios are unsure: what the time limit leaves.
    fn uncertain_seconds(&self) -> f64 {
        let Some(limit) = self.time_limit else { return f64::INFINITY };
        let of_cell = |group: &Group, cell: &Cell| self.takers(group, cell).count() as f64 * cell.seconds;
        let of_group = |group: &Group| {
            let one_round: f64 = group.cells.iter().map(|cell| of_cell(group, cell)).sum();
            f64::from(group.rounds.least) * one_round
        };
        // Opening takes how long it takes.
        let certain: f64 = self.groups.iter().filter(|group| !group.is_recovery()).map(of_group).sum();
        (limit.as_secs_f64() - certain).max(0.0)
    }
}

/// Whether an engine has nothing on the disk.
fn is_in_memory(engine: Name) -> bool {
    matches!(engine, Name::Memory | Name::Generator)
}

/// How long a contestant runs a cell's workload, if all rounds are measured.
fn measured_seconds(group: &Group, cell: &Cell) -> f64 {
    f64::from(group.rounds.most) * cell.seconds + cell.warm_up_s
}

/// What a cell adds to a contestant's data in a second, at most.
fn inserted_bytes_per_second(contestant: &Contestant, cell: &Cell) -> f64 {
    let Ok(workload) = spec::find(&cell.workload) else { return 0.0 };
    let sizes = contestant.content.sizes();
    let row_bytes = (sizes.key_bytes + sizes.value_bytes) as f64;
    let (rate, bytes) = match workload.kind {
        Kind::Tpcc(_) => {
            let is_fast = matches!(contestant.engine, Name::Kiln | Name::Lmdb);
            (if is_fast { TRANSACTIONS } else { SLOW_TRANSACTIONS }, TRANSACTION_BYTES)
        }
        Kind::Keys(Operation::FillInOrder) => {
            let rate = match contestant.engine {
                Name::Redb | Name::Sled | Name::Sqlite | Name::BerkeleyDb => SLOW_INSERTS_IN_ORDER,
                Name::Kiln | Name::RocksDb | Name::LevelDb => LOGGED_INSERTS_IN_ORDER,
                _ => INSERTS_IN_ORDER,
            };
            (rate, row_bytes)
        }
        Kind::Keys(operation) => {
            let rate = match contestant.engine {
                Name::Kiln => KILN_INSERTS,
                Name::Fjall | Name::RocksDb | Name::LevelDb => LOG_STRUCTURED_INSERTS,
                _ => INSERTS,
            };
            (rate * f64::from(operation.inserts()) / 100.0, row_bytes)
        }
        Kind::BothWays | Kind::BesideScan | Kind::Reopen => (0.0, 0.0),
    };
    let rate = if contestant.mode.is_durable() { rate.min(DURABLE_INSERTS) } else { rate };
    (rate * bytes).min(LOG_BYTES_PER_SECOND as f64)
}
