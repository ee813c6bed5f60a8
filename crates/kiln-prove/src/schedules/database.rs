//! A database on a simulated disk, and what is left of it after a power loss.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};

use kiln::device::SimulatedDevice;
use kiln::schedules::quietly;
use kiln::{Kiln, Map, Options, Receipt, Table, Version};
use shuttle::rand::Rng as _;

use crate::support::{is_of_power_loss, manual};

/// An open database with a map and a table in it.
#[derive(Clone)]
pub(super) struct Database {
    pub(super) disk: SimulatedDevice,
    pub(super) db: Kiln,
    pub(super) map: Map,
    pub(super) table: Table,
}

impl Database {
    /// Without background threads.
    pub(super) fn new() -> Database {
        Database::with(manual())
    }

    pub(super) fn with(options: Options) -> Database {
        let disk = SimulatedDevice::new(1);
        quietly(|| {
            let db = open(&options, &disk);
            let (map, table) = (db.map("map"), db.table("table"));
            let (map, table) = (map.unwrap_or_else(failed), table.unwrap_or_else(failed));
            db.persist().unwrap_or_else(failed);
            Database { disk, db, map, table }
        })
    }

    /// Cuts the power after a few more steps of the device, or not at all.
    pub(super) fn crash_sometime(&self, steps_max: u64) {
        let steps = choose(2 * steps_max);
        if steps < steps_max {
            self.disk.crash_after(self.disk.steps() + steps);
        }
    }

    /// Cuts the power, if it is not off already, and opens what is left.
    pub(super) fn after_crash(self) -> Database {
        let left = self.left_by_crash();
        quietly(|| {
            self.disk.crash_after(self.disk.steps());
            drop(self);
        });
        left
    }

    /// What a crash would leave now.
    pub(super) fn left_by_crash(&self) -> Database {
        let seed = shuttle::rand::thread_rng().r#gen();
        quietly(|| {
            let disk = self.disk.after_crash_seeded(seed);
            let db = open(&manual(), &disk);
            let (map, table) = (db.map("map"), db.table("table"));
            let (map, table) = (map.unwrap_or_else(failed), table.unwrap_or_else(failed));
            Database { disk, db, map, table }
        })
    }
}

fn open(options: &Options, disk: &SimulatedDevice) -> Kiln {
    options.open_on(Arc::new(disk.clone())).unwrap_or_else(failed)
}

/// What nothing can make fail has failed.
pub(super) fn failed<T>(error: kiln::Error) -> T {
    panic!("{:?}: {error}", error.kind())
}

/// What a counter's row says.
pub(super) fn number(value: Option<Vec<u8>>) -> i64 {
    let bytes = value.unwrap_or_else(|| panic!("the row is gone"));
    bytes.as_slice().try_into().map_or_else(|_| panic!("no counter"), i64::from_le_bytes)
}

/// `None` if it has failed with an error that may be.
pub(super) fn unless<T>(outcome: kiln::Result<T>, may_be: impl FnOnce(&kiln::Error) -> bool) -> Option<T> {
    match outcome {
        Ok(value) => Some(value),
        Err(error) if may_be(&error) => None,
        Err(error) => failed(error),
    }
}

/// `None` if it has failed as it does once the power is off, which it must be then.
pub(super) fn unless_crashed<T>(disk: &SimulatedDevice, outcome: kiln::Result<T>) -> Option<T> {
    unless(outcome, |error| is_of_power_loss(error, disk))
}

/// A number below `bound` that the schedule's seed decides.
pub(super) fn choose(bound: u64) -> u64 {
    shuttle::rand::thread_rng().gen_range(0..bound)
}

/// Runs each of the threads beside the others, and waits for all of them.
pub(super) fn together(threads: Vec<Box<dyn FnOnce() + Send>>) {
    let running: Vec<_> = threads.into_iter().map(shuttle::thread::spawn).collect();
    running.into_iter().for_each(|thread| thread.join().unwrap_or_else(|_| panic!("a thread panicked")));
}

/// Wrapped up as [`together`] wants it.
pub(super) fn thread(act: impl FnOnce() + Send + 'static) -> Box<dyn FnOnce() + Send> {
    Box::new(act)
}

/// Where a key is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Place {
    Map,
    Table,
}

/// What was committed, and what was said about it; the threads of a program add to it. Its lock is none of shuttle's, and
/// never held at a point.
#[derive(Clone, Default)]
pub(super) struct Ledger {
    shared: Arc<Mutex<Entries>>,
}

#[derive(Default)]
struct Entries {
    /// Place and key to version and value.
    commits: BTreeMap<(Place, Vec<u8>), (u64, Vec<u8>)>,
    /// What was written by who was told that it was not.
    refused: BTreeSet<(Place, Vec<u8>)>,
    /// Of a key that is overwritten: all its versions, each with the last value.
    overwritten: BTreeMap<(Vec<u8>, u64), Vec<u8>>,
    durable: u64,
}

impl Ledger {
    /// As [`Self::committed`], of a key that one thread alone overwrites.
    pub(super) fn overwritten(&self, key: &[u8], version: Version, value: &[u8]) {
        let mut entries = self.shared.lock().unwrap_or_else(PoisonError::into_inner);
        entries.overwritten.insert((key.to_vec(), version.number()), value.to_vec());
    }

    pub(super) fn committed(&self, key: &[u8], version: Version, value: &[u8]) {
        self.committed_together(&[(Place::Map, key)], version, value);
    }

    /// The same of all that one transaction has written.
    pub(super) fn committed_together(
        &self,
        keys: &[(Place, impl AsRef<[u8]>)],
        version: Version,
        value: &[u8],
    ) {
        let mut entries = self.shared.lock().unwrap_or_else(PoisonError::into_inner);
        for (place, key) in keys {
            let place_and_key = (*place, key.as_ref().to_vec());
            entries.commits.insert(place_and_key, (version.number(), value.to_vec()));
        }
    }

    /// A commit of these failed, whose keys nobody else writes.
    pub(super) fn refused(&self, keys: &[(Place, String)]) {
        let mut entries = self.shared.lock().unwrap_or_else(PoisonError::into_inner);
        entries.refused.extend(keys.iter().map(|(place, key)| (*place, key.clone().into_bytes())));
    }

    /// The newest version that was committed into.
    pub(super) fn newest(&self) -> Version {
        let entries = self.shared.lock().unwrap_or_else(PoisonError::into_inner);
        Version::new(entries.commits.values().map(|commit| commit.0).max().unwrap_or_default())
    }

    /// What was committed up to this version was said to be durable.
    pub(super) fn durable(&self, version: Version) {
        let mut entries = self.shared.lock().unwrap_or_else(PoisonError::into_inner);
        entries.durable = entries.durable.max(version.number());
    }

    /// Waits for a receipt and notes what it says.
    pub(super) fn wait(&self, disk: &SimulatedDevice, receipt: &Receipt) {
        if unless_crashed(disk, receipt.wait(kiln::Level::LOCAL)).is_some() {
            self.durable(receipt.version());
        }
    }

    /// What a crash has left is exactly what was committed up to one version, and no less than what was said to be durable.
    pub(super) fn check(&self, left: &Database) {
        let entries = self.shared.lock().unwrap_or_else(PoisonError::into_inner);
        let horizon = left.db.recovery_report().horizon.number();
        assert!(horizon >= entries.durable, "version {} was durable, and {horizon} is left", entries.durable);
        let get = |place: Place, key: &[u8]| {
            let found = match place {
                Place::Map => left.db.get(&left.map, key),
                Place::Table => left.db.get(&left.table, key),
            };
            found.unwrap_or_else(failed)
        };
        for (place, key) in &entries.refused {
            let shown = String::from_utf8_lossy(key);
            assert_eq!(get(*place, key), None, "{shown} is there, though its commit failed");
        }
        for ((place, key), (version, value)) in &entries.commits {
            let shown = String::from_utf8_lossy(key);
            let found = get(*place, key);
            match *version <= horizon {
                true => assert_eq!(
                    found.as_ref(),
                    Some(value),
                    "{shown} of version {version} is not as it was; the horizon is {horizon}"
                ),
                false => {
                    assert_eq!(
                        found, None,
                        "{shown} of version {version} is there; the horizon is {horizon}"
                    );
                }
            }
        }
    }

    /// A key that was overwritten has its last value of the newest version that is left.
    pub(super) fn check_overwritten(&self, left: &Database, key: &[u8]) {
        let entries = self.shared.lock().unwrap_or_else(PoisonError::into_inner);
        let horizon = left.db.recovery_report().horizon.number();
        let up_to = (key.to_vec(), 0)..=(key.to_vec(), horizon);
        let expected = entries.overwritten.range(up_to).next_back().map(|(_, value)| value);
        let found = left.db.get(&left.map, key).unwrap_or_else(failed);
        assert_eq!(found.as_ref(), expected, "not the last value up to version {horizon}");
    }
}
