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
/// How many keys are inserted in a second at most: by Kiln, by peers that write them to a log and sort them later, by all others; by anybody in
/// their order; and by anybody who waits until they are durable.
const KILN_INSERTS: f64 = 1e6;
const LOG_STRUCTURED_INSERTS: f64 = 0.4e6;
const INSERTS: f64 = 0.2e6;
const INSERTS_IN_ORDER: f64 = 1e6;
const DURABLE_INSERTS: f64 = 50e3;
/// What TPC-C's transactions add, at most, and how many there are in a second.
const TRANSACTION_BYTES: f64 = 1024.0;
const TRANSACTIONS: f64 = 0.1e6;

impl Plan {
    /// The most that one group has on the disk at a time.
    pub(in crate::run) fn disk_bytes(&self) -> u64 {
        let of_group = |group: &Group| {
            group.contestants.iter().map(|contestant| self.contestant_bytes(group, contestant)).sum()
        };
        self.groups.iter().map(of_group).max().unwrap_or(0)
    }

    fn contestant_bytes(&self, group: &Group, contestant: &Contestant) -> u64 {
        let cells = || group.cells.iter().filter(|cell| self.has(contestant, cell));
        let log = match contestant.engine {
            Name::Memory | Name::Generator => return 0,
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
        let inserted: f64 = cells().map(|cell| inserted_bytes(group, contestant, cell)).sum();
        contestant.content.bytes() * DISK_FACTOR + DISK_BYTES_BESIDES + log + inserted as u64
    }
}

/// How long a contestant runs a cell's workload, if all rounds are measured.
fn measured_seconds(group: &Group, cell: &Cell) -> f64 {
    f64::from(group.rounds.most) * cell.seconds + cell.warm_up_s
}

/// What a cell adds to a contestant's data, at most.
fn inserted_bytes(group: &Group, contestant: &Contestant, cell: &Cell) -> f64 {
    let Ok(workload) = spec::find(&cell.workload) else { return 0.0 };
    let sizes = contestant.content.sizes();
    let row_bytes = (sizes.key_bytes + sizes.value_bytes) as f64;
    let (rate, bytes) = match workload.kind {
        Kind::Tpcc(_) => (TRANSACTIONS, TRANSACTION_BYTES),
        Kind::Keys(Operation::FillInOrder) => (INSERTS_IN_ORDER, row_bytes),
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
    let bytes_per_second = (rate * bytes).min(LOG_BYTES_PER_SECOND as f64);
    measured_seconds(group, cell) * bytes_per_second * INSERTED_FACTOR
}
