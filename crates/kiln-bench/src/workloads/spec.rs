//! The workloads by name: what each does, on which data, and what it asks of an engine.

use anyhow::{Context, Result, bail};

use super::Operation;
use super::tpcc::Mix;
use crate::engines::catalog::{Mode, Name, Shape};
use crate::generate::Sizes;
use crate::generate::draws::Distribution;

/// Rows of a range, at most; AciKV, section 4.1, and YCSB E.
const RANGE_ROWS: u64 = 100;
/// Keys of each operation on data larger than memory, unless told otherwise: so many reads a queue of the device has in flight.
const COLD_BATCH: usize = 64;
/// The most keys of a `txn-N`, and of a `map-txn-N-R`.
const TRANSACTION_KEYS_MAX: usize = 1000;
/// The most writes of a buffer of `map-buffered-N`.
const BUFFER_ROOM_MAX: usize = 1 << 28;

/// What a database holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Dataset {
    /// An ordered table, of 16-byte keys and 100-byte values unless told otherwise.
    Table,
    /// A map, of 8-byte keys and values unless told otherwise.
    Map,
    /// The tables of TPC-C that Payment and New-Order use.
    Tpcc,
    /// An ordered table of which a tenth fits into memory: 16-byte keys and 1000-byte values unless told otherwise.
    ColdTenth,
    /// The same, and a quarter fits.
    ColdQuarter,
    /// An ordered table as in [`Dataset::Table`], to be found again after kill -9 with a checkpoint behind all of it.
    Recovery,
    /// The same without any checkpoint.
    RecoveryLog,
}

impl Dataset {
    /// In the order in which they are measured.
    pub(crate) const ALL: [Dataset; 7] = [
        Dataset::Table,
        Dataset::Map,
        Dataset::Tpcc,
        Dataset::ColdTenth,
        Dataset::ColdQuarter,
        Dataset::Recovery,
        Dataset::RecoveryLog,
    ];

    /// Whether it is larger than memory.
    pub(crate) fn is_cold(self) -> bool {
        matches!(self, Dataset::ColdTenth | Dataset::ColdQuarter)
    }

    /// Whether it is there to be opened again.
    pub(crate) fn is_recovery(self) -> bool {
        matches!(self, Dataset::Recovery | Dataset::RecoveryLog)
    }

    /// Whether there are workloads on it that write.
    pub(crate) fn writes(self) -> bool {
        !self.is_cold() && !self.is_recovery()
    }

    /// The sizes of keys and values if nothing else is asked for.
    pub(crate) fn default_sizes(self) -> Sizes {
        match self {
            Dataset::Table | Dataset::Tpcc | Dataset::Recovery | Dataset::RecoveryLog => {
                Sizes { key_bytes: 16, value_bytes: 100 }
            }
            Dataset::ColdTenth | Dataset::ColdQuarter => Sizes { key_bytes: 16, value_bytes: 1000 },
            Dataset::Map => Sizes { key_bytes: 8, value_bytes: 8 },
        }
    }

    /// The shape of the object that holds it.
    pub(crate) fn shape(self) -> Shape {
        match self {
            Dataset::Map => Shape::Map,
            _ => Shape::Table,
        }
    }
}

/// What is repeated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// One operation on keys.
    Keys(Operation),
    /// Fast and safe clients side by side.
    BothWays,
    /// Writers alone and beside a scan of everything.
    BesideScan,
    /// TPC-C's transactions.
    Tpcc(Mix),
    /// Opening the database after kill -9.
    Reopen,
}

impl Kind {
    /// Whether it writes.
    pub(crate) fn writes(self) -> bool {
        match self {
            Kind::Keys(operation) => operation.writes(),
            Kind::BothWays | Kind::BesideScan | Kind::Tpcc(_) => true,
            Kind::Reopen => false,
        }
    }
}

/// A workload.
#[derive(Clone, Debug)]
pub(crate) struct Workload {
    /// Its name on the command line and in results.
    pub(crate) name: String,
    /// In one line, for people.
    pub(crate) what: &'static str,
    pub(crate) dataset: Dataset,
    pub(crate) kind: Kind,
    /// How keys are chosen if nothing else is asked for.
    pub(crate) distribution: Distribution,
}

/// The workloads with a fixed name.
fn fixed() -> Vec<Workload> {
    use Dataset::{ColdQuarter, ColdTenth, Map, Recovery, RecoveryLog, Table, Tpcc};
    use Distribution::{Latest, Uniform};
    const ZIPF: Distribution = Distribution::ZIPF;
    use Operation::{
        FillInOrder, GetOrAdd, GetOrInsert, GetOrPut, ModifyMany, PutDurably, ReadInOrder, ScanOrInsert,
    };
    let keys = |name: &str, what, dataset, operation, distribution| Workload {
        name: name.to_owned(),
        what,
        dataset,
        kind: Kind::Keys(operation),
        distribution,
    };
    let tpcc = |name: &str, what, mix| Workload {
        name: name.to_owned(),
        what,
        dataset: Tpcc,
        kind: Kind::Tpcc(mix),
        distribution: Uniform,
    };
    let cold = |name: &str, what, dataset, distribution| {
        keys(name, what, dataset, Operation::GetMany(COLD_BATCH), distribution)
    };
    let reopen = |name: &str, what, dataset| Workload {
        name: name.to_owned(),
        what,
        dataset,
        kind: Kind::Reopen,
        distribution: Uniform,
    };
    vec![
        keys("read", "read a key", Table, GetOrPut { reads: 100 }, Uniform),
        keys("mixed95", "95% read, 5% write a key", Table, GetOrPut { reads: 95 }, Uniform),
        keys("mixed50", "50% read, 50% write a key", Table, GetOrPut { reads: 50 }, Uniform),
        keys("update", "write a key", Table, GetOrPut { reads: 0 }, Uniform),
        keys("insert", "write a new key", Table, GetOrInsert { reads: 0 }, Uniform),
        keys("range", "read 1 to 100 rows", Table, ScanOrInsert { scans: 100, rows: RANGE_ROWS }, Uniform),
        keys("rmw", "read, change and write a key in a transaction", Table, ModifyMany(1), Uniform),
        keys("fill-seq", "write new keys in order", Table, FillInOrder, Uniform),
        keys("read-seq", "read all rows in order; a row is an operation", Table, ReadInOrder, Uniform),
        keys("safe-commit", "write a key, wait until it is durable", Table, PutDurably, Uniform),
        Workload {
            name: "mixed-durability".to_owned(),
            what: "half of the threads write and wait until it is durable, half do not wait",
            dataset: Table,
            kind: Kind::BothWays,
            distribution: Uniform,
        },
        Workload {
            name: "write-beside-scan".to_owned(),
            what: "change two keys in a transaction: half of the time alone, half beside one more thread that reads the whole table",
            dataset: Table,
            kind: Kind::BesideScan,
            distribution: Uniform,
        },
        keys("map-read", "read a key", Map, GetOrPut { reads: 100 }, Uniform),
        keys("map-mixed50", "50% read, 50% write a key", Map, GetOrPut { reads: 50 }, Uniform),
        keys("map-upsert", "write a key", Map, GetOrPut { reads: 0 }, Uniform),
        keys("map-rmw", "add to a key's value", Map, GetOrAdd { reads: 0 }, Uniform),
        keys("ycsb-a", "50% read, 50% update", Table, GetOrPut { reads: 50 }, ZIPF),
        keys("ycsb-b", "95% read, 5% update", Table, GetOrPut { reads: 95 }, ZIPF),
        keys("ycsb-c", "read", Table, GetOrPut { reads: 100 }, ZIPF),
        keys("ycsb-d", "95% read the latest, 5% insert", Table, GetOrInsert { reads: 95 }, Latest),
        keys(
            "ycsb-e",
            "95% scan 1 to 100 rows, 5% insert",
            Table,
            ScanOrInsert { scans: 95, rows: 100 },
            ZIPF,
        ),
        keys("ycsb-f", "50% read, 50% read-modify-write", Table, GetOrAdd { reads: 50 }, ZIPF),
        tpcc("tpcc", "TPC-C's Payment and New-Order, half and half", Mix::Both),
        tpcc("tpcc-payment", "TPC-C's Payment", Mix::Payment),
        tpcc("tpcc-new-order", "TPC-C's New-Order", Mix::NewOrder),
        cold("cold-read-tenth", "read 64 keys together; memory for a tenth of the data", ColdTenth, Uniform),
        cold("cold-zipf-tenth", "read 64 keys together; memory for a tenth of the data", ColdTenth, ZIPF),
        cold(
            "cold-read-quarter",
            "read 64 keys together; memory for a quarter of the data",
            ColdQuarter,
            Uniform,
        ),
        cold(
            "cold-zipf-quarter",
            "read 64 keys together; memory for a quarter of the data",
            ColdQuarter,
            ZIPF,
        ),
        reopen(
            "recovery",
            "open after kill -9, with a checkpoint of everything; a record is an operation",
            Recovery,
        ),
        reopen(
            "recovery-log",
            "open after kill -9, never with a checkpoint; a record is an operation",
            RecoveryLog,
        ),
    ]
}

/// All workloads, those with numbers in their names once for people to read.
pub(crate) fn list() -> Vec<Workload> {
    let mut all = fixed();
    all.push(Workload { name: "txn-N".to_owned(), ..transaction(1) });
    all.push(Workload { name: "map-txn-N-R".to_owned(), ..map_transaction(1, 50) });
    all.push(Workload { name: "map-buffered-N".to_owned(), ..buffered(1) });
    all
}

fn transaction(keys: usize) -> Workload {
    Workload {
        name: format!("txn-{keys}"),
        what: "read, change and write N keys in a transaction",
        dataset: Dataset::Table,
        kind: Kind::Keys(Operation::ModifyMany(keys)),
        distribution: Distribution::Uniform,
    }
}

/// CPR's transactions, section 7.1.
fn map_transaction(keys: usize, reads: u32) -> Workload {
    Workload {
        name: format!("map-txn-{keys}-{reads}"),
        what: "read R% of N keys and overwrite the others, in a transaction",
        dataset: Dataset::Map,
        kind: Kind::Keys(Operation::GetOrPutEach { reads, count: keys }),
        distribution: Distribution::Uniform,
    }
}

/// CPR's clients, section 7.3.4.
fn buffered(room: usize) -> Workload {
    Workload {
        name: format!("map-buffered-{room}"),
        what: "50% read, 50% write a key in a session, of which N writes at most are not durable",
        dataset: Dataset::Map,
        kind: Kind::Keys(Operation::GetOrPutBuffered { reads: 50, room }),
        distribution: Distribution::Uniform,
    }
}

/// The workload with this name that has numbers in it.
fn numbered(name: &str) -> Option<Workload> {
    let in_range = |text: &str, most: usize| text.parse().ok().filter(|count| (1..=most).contains(count));
    let workload = if let Some(rest) = name.strip_prefix("map-txn-") {
        let (keys, reads) = rest.split_once('-')?;
        let reads = reads.parse().ok().filter(|reads| *reads <= 100)?;
        map_transaction(in_range(keys, TRANSACTION_KEYS_MAX)?, reads)
    } else if let Some(room) = name.strip_prefix("map-buffered-") {
        buffered(in_range(room, BUFFER_ROOM_MAX)?)
    } else {
        transaction(in_range(name.strip_prefix("txn-")?, TRANSACTION_KEYS_MAX)?)
    };
    // Nothing has two names.
    (workload.name == name).then_some(workload)
}

/// The workload with this name.
pub(crate) fn find(name: &str) -> Result<Workload> {
    let mut all = fixed().into_iter();
    match numbered(name).or_else(|| all.find(|workload| workload.name == name)) {
        Some(workload) => Ok(workload),
        None => bail!("there is no workload {name:?}; kiln-bench list names them all"),
    }
}

/// The workload that opens this data again.
pub(crate) fn reopening(dataset: Dataset) -> Result<Workload> {
    let mut all = fixed().into_iter();
    all.find(|workload| workload.kind == Kind::Reopen && workload.dataset == dataset)
        .with_context(|| format!("{dataset:?} is not opened again"))
}

impl Workload {
    /// How many keys an operation has if so many were asked for: only maps, and data larger than memory, are asked for batches.
    pub(crate) fn batch(&self, asked: Option<usize>) -> usize {
        match self.dataset {
            Dataset::Map if self.has_own_count() => 1,
            Dataset::Map => asked.unwrap_or(1),
            Dataset::ColdTenth | Dataset::ColdQuarter => asked.unwrap_or(COLD_BATCH),
            _ => 1,
        }
    }

    /// Whether its name says how many keys it is about.
    fn has_own_count(&self) -> bool {
        matches!(self.kind, Kind::Keys(Operation::GetOrPutEach { .. } | Operation::GetOrPutBuffered { .. }))
    }

    /// The operation for batches of so many keys.
    pub(crate) fn in_batches(&self, batch: usize) -> Kind {
        match self.kind {
            Kind::Keys(_) if self.dataset.is_cold() => Kind::Keys(Operation::GetMany(batch)),
            Kind::Keys(operation) if batch > 1 && self.dataset == Dataset::Map => {
                Kind::Keys(match operation {
                    Operation::GetOrPut { reads: 100 } => Operation::GetMany(batch),
                    Operation::GetOrPut { reads: 0 } => Operation::PutMany(batch),
                    Operation::GetOrPut { reads } => Operation::GetOrPutMany { reads, count: batch },
                    _ => Operation::ModifyMany(batch),
                })
            }
            kind => kind,
        }
    }

    /// In which order workloads are measured on the same data: those that change nothing, those that count up (so that the
    /// counts can be checked), those that write what is there, those that add keys.
    pub(crate) fn order(&self) -> u32 {
        match self.kind {
            Kind::Keys(operation) if !operation.writes() => 0,
            Kind::Keys(Operation::ModifyMany(_) | Operation::GetOrAdd { .. }) => 1,
            Kind::Keys(
                Operation::GetOrInsert { .. } | Operation::ScanOrInsert { .. } | Operation::FillInOrder,
            ) => 3,
            _ => 2,
        }
    }

    /// Whether an engine in this mode has it; an error says why not.
    pub(crate) fn suits(&self, name: Name, mode: Mode, batch: usize, threads: usize) -> Result<()> {
        let description = name.description();
        if !description.shapes.contains(&self.dataset.shape()) {
            match self.dataset.shape() {
                Shape::Table => bail!("it has no ordered keys"),
                Shape::Map => bail!("it has nothing faster than its ordered tables"),
            }
        }
        if self.dataset.is_cold() && !description.past_page_cache {
            bail!("the system caches what it reads, and how much cannot be limited for one engine");
        }
        if self.dataset.is_recovery() && !description.reopens {
            bail!("it is not opened again here");
        }
        let kind = self.in_batches(batch);
        let transactions = matches!(
            kind,
            Kind::BesideScan
                | Kind::Tpcc(_)
                | Kind::Keys(Operation::ModifyMany(_) | Operation::GetOrPutEach { .. })
        );
        if transactions && !description.transactions {
            bail!("it has no transactions");
        }
        match kind {
            Kind::BothWays if mode.is_durable() || mode == Mode::Floor => {
                bail!("only for modes that acknowledge first")
            }
            Kind::BothWays if !description.durable_puts => bail!("it cannot make a single commit durable"),
            Kind::BothWays if threads < 2 => bail!("it takes two threads"),
            Kind::BesideScan if !description.snapshot_scans => bail!("its scans are not of one state"),
            Kind::Keys(Operation::PutDurably) if !(mode.is_durable() || name == Name::Device) => {
                bail!("only for modes that acknowledge what is durable")
            }
            _ if mode.is_durable() && !self.waits_for_durability() => {
                bail!("as fast as without durability, or the same as safe-commit")
            }
            Kind::Keys(Operation::GetOrPutBuffered { .. }) if !(name == Name::Kiln && mode == Mode::Fast) => {
                bail!("it has no sessions, or nobody waits for anything")
            }
            _ if name == Name::Device && !matches!(kind, Kind::Keys(Operation::PutDurably)) => {
                bail!("it keeps no keys")
            }
            _ if name == Name::RawReads && !self.dataset.is_cold() => bail!("it only reads from the disk"),
            _ if name == Name::InPlace => suits_in_place(kind),
            _ if name == Name::Generator => self.suits_generator(kind),
            _ => Ok(()),
        }
    }

    /// Whether it is worth measuring where each commit is durable when it is acknowledged.
    fn waits_for_durability(&self) -> bool {
        match self.kind {
            Kind::Tpcc(_) => true,
            Kind::Keys(operation) => {
                matches!(operation, Operation::PutDurably | Operation::ModifyMany(_) | Operation::FillInOrder)
            }
            Kind::BothWays | Kind::BesideScan | Kind::Reopen => false,
        }
    }

    fn suits_generator(&self, kind: Kind) -> Result<()> {
        match kind {
            Kind::Keys(Operation::ReadInOrder) | Kind::Tpcc(_) => bail!("it keeps no rows"),
            _ => Ok(()),
        }
    }
}

/// A prototype of reads and updates: its inserts, ranges and sizes of rows are only what loading and checking take.
fn suits_in_place(kind: Kind) -> Result<()> {
    match kind {
        Kind::Keys(Operation::GetOrPut { .. } | Operation::GetOrAdd { .. } | Operation::ModifyMany(_)) => {
            Ok(())
        }
        _ => bail!("it only reads and updates single rows"),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn names_are_found_and_unique() {
        let names: HashSet<String> = fixed().into_iter().map(|workload| workload.name).collect();
        assert_eq!(names.len(), fixed().len());
        for name in
            names.iter().map(String::as_str).chain(["txn-1", "txn-10", "map-txn-3-50", "map-buffered-64"])
        {
            assert_eq!(find(name).unwrap().name, name);
        }
        let wrong = "txn- txn-0 txn-01 txn-N txn-1001 Read map-txn-3 map-txn-0-50 map-txn-1-101 map-txn-1--1 map-buffered-0";
        for name in wrong.split(' ').chain([""]) {
            assert!(find(name).is_err(), "{name}");
        }
    }

    #[test]
    fn only_what_makes_sense_suits() {
        let suits = |workload: &str, name, mode, threads| {
            find(workload).unwrap().suits(name, mode, 1, threads).is_ok()
        };
        assert!(suits("safe-commit", Name::Device, Mode::Floor, 1));
        assert!(!suits("update", Name::Device, Mode::Floor, 1));
        assert!(suits("safe-commit", Name::Kiln, Mode::Safe, 1));
        assert!(!suits("safe-commit", Name::Kiln, Mode::Fast, 1));
        assert!(!suits("safe-commit", Name::Memory, Mode::Floor, 1));
        assert!(!suits("read", Name::Kiln, Mode::Safe, 1));
        assert!(suits("mixed-durability", Name::Kiln, Mode::Fast, 2));
        assert!(!suits("mixed-durability", Name::Kiln, Mode::Fast, 1));
        assert!(!suits("mixed-durability", Name::Memory, Mode::Floor, 2));
        assert!(suits("write-beside-scan", Name::Kiln, Mode::Fast, 1));
        assert!(!suits("write-beside-scan", Name::Kiln, Mode::Safe, 1));
        assert!(!suits("write-beside-scan", Name::Sled, Mode::Weak, 1));
        assert!(suits("map-buffered-9", Name::Kiln, Mode::Fast, 1));
        assert!(!suits("map-buffered-9", Name::Memory, Mode::Floor, 1));
        assert!(!suits("map-txn-3-50", Name::Faster, Mode::Weak, 1));
        assert!(suits("rmw", Name::InPlace, Mode::Fast, 1));
        assert!(!suits("insert", Name::InPlace, Mode::Fast, 1));
        assert!(!suits("tpcc", Name::InPlace, Mode::Fast, 1));
        assert!(suits("range", Name::Generator, Mode::Floor, 1));
        assert!(!suits("read-seq", Name::Generator, Mode::Floor, 1));
    }

    #[test]
    fn batches_are_for_maps() {
        let kind = |workload: &str, batch| find(workload).unwrap().in_batches(batch);
        assert_eq!(kind("map-read", 16), Kind::Keys(Operation::GetMany(16)));
        assert_eq!(kind("map-read", 1), Kind::Keys(Operation::GetOrPut { reads: 100 }));
        assert_eq!(kind("read", 16), kind("read", 1));
        assert_eq!(find("map-txn-3-50").unwrap().batch(Some(16)), 1);
    }
}
