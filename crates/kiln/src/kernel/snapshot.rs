//! Snapshots: reading the database as it was at a closed version.
//!
//! Records of closed versions are immutable and stay in the log, so a snapshot is a number: reads follow a
//! key's older versions until they reach it. The registry of open snapshots only keeps sweeping and truncation
//! from removing what one of them may read.
//!
//! **One after the other.** Closing a version interrupts every running thread. While nothing is committed the last version that
//! was closed will do again, and the log's tail tells: the first commit of a version takes log space, since in place it could only
//! change a record of its own version. So the last closed version has every commit if the tail has not moved since, *and* nobody who had
//! taken space before could still join a later version. The latter holds if the tail had not moved since the closing before that one
//! either: that one waited for all pins, and with them for everybody who had taken space until then.

use std::collections::BTreeMap;

use super::engine::Engine;
use super::named_snapshot::{NamedSnapshot, Names};
use crate::planted::{Bug, planted};
use crate::storage::record::Address;
use crate::sync::{Mutex, MutexGuard};

/// The versions at which somebody reads.
pub(crate) struct Snapshots {
    registry: Mutex<Registry>,
    /// Those that have a name; their versions are held as if they were open.
    pub(super) names: Mutex<Names>,
    /// Whoever gives or takes a name.
    changing: Mutex<()>,
}

impl Snapshots {
    /// Holds what recovery has found.
    pub(crate) fn new(named: Vec<NamedSnapshot>) -> Snapshots {
        let mut registry = Registry::default();
        for snapshot in named.iter().filter(|_| !planted(Bug::NamesNotHeld)) {
            registry.open(snapshot.version);
        }
        let names = named.into_iter().map(|snapshot| (snapshot.name.clone(), snapshot)).collect();
        Snapshots { registry: Mutex::new(registry), names: Mutex::new(names), changing: Mutex::default() }
    }

    /// Keeps all others from giving or taking names until dropped.
    pub(crate) fn change_names(&self) -> MutexGuard<'_, ()> {
        self.changing.lock()
    }
}

#[derive(Default)]
struct Registry {
    open: BTreeMap<u64, usize>,
    /// Where the log ended before a version was last closed for a snapshot.
    tail: Address,
    /// The version that has all commits as long as the log ends there.
    newest: Option<u64>,
}

impl Registry {
    fn open(&mut self, version: u64) -> u64 {
        *self.open.entry(version).or_default() += 1;
        version
    }
}

impl Engine {
    /// Opens a snapshot of everything committed so far. Closes a version on demand, which waits for commits in
    /// progress (microseconds), not for any device.
    pub(crate) fn open_snapshot(&self) -> u64 {
        // Under the registry's lock, so that a sweep cannot pass the version before it is registered. One that is used again may
        // have been passed, but no commit has superseded anything since.
        let mut registry = self.snapshots.registry.lock();
        let tail = self.log.tail();
        let has_stayed = registry.tail == tail || planted(Bug::SnapshotUsedAgain);
        if let Some(newest) = registry.newest.filter(|_| has_stayed) {
            return registry.open(newest);
        }
        let version = if planted(Bug::SnapshotNotClosed) { self.clock.now() } else { self.clock.close() };
        let nobody_joins = has_stayed || planted(Bug::SnapshotsOvertakeCommits);
        registry.newest = (nobody_joins && self.log.tail() == tail).then_some(version);
        registry.tail = tail;
        registry.open(version)
    }

    /// Opens a snapshot of the durable state.
    pub(crate) fn open_durable_snapshot(&self) -> u64 {
        let mut registry = self.snapshots.registry.lock();
        let version = match planted(Bug::DurableSnapshotTooNew) {
            true => self.clock.close(),
            false => self.hardening.horizon.local(),
        };
        registry.open(version)
    }

    /// Holds a version that is held already, once more.
    pub(super) fn hold_version(&self, version: u64) -> u64 {
        self.snapshots.registry.lock().open(version)
    }

    pub(crate) fn release_snapshot(&self, version: u64) {
        let open = &mut self.snapshots.registry.lock().open;
        if let Some(count) = open.get_mut(&version) {
            *count -= 1;
            if *count == 0 {
                open.remove(&version);
            }
        }
    }

    /// The version that every snapshot, open or yet to be opened, includes: what it supersedes is not needed.
    pub(crate) fn oldest_needed(&self) -> u64 {
        let registry = self.snapshots.registry.lock();
        let horizon = self.hardening.horizon.local();
        registry.open.keys().next().map_or(horizon, |&oldest| oldest.min(horizon))
    }

    /// How many are open, and how many have names.
    pub(crate) fn snapshot_counts(&self) -> (usize, usize) {
        let named = self.snapshots.names.lock().len();
        let held: usize = self.snapshots.registry.lock().open.values().sum();
        (held.saturating_sub(named), named)
    }
}
