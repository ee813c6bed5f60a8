//! Snapshots: reading the database as it was at a closed version.
//!
//! Records of closed versions are immutable and stay in the log, so a snapshot is a number: reads follow a
//! key's older versions until they reach it. The registry of open snapshots only keeps sweeping and truncation
//! from removing what one of them may read.

use std::collections::BTreeMap;

use super::engine::Engine;
use crate::planted::{Bug, planted};
use crate::sync::Mutex;

/// The versions at which somebody reads.
#[derive(Default)]
pub(crate) struct Snapshots {
    open: Mutex<BTreeMap<u64, usize>>,
}

impl Engine {
    /// Opens a snapshot of everything committed so far. Closes a version on demand, which waits for commits in
    /// progress (microseconds), not for any device.
    pub(crate) fn open_snapshot(&self) -> u64 {
        // Under the registry's lock, so that a sweep cannot pass the version before it is registered.
        let mut open = self.snapshots.open.lock();
        let version = if planted(Bug::SnapshotNotClosed) { self.clock.now() } else { self.clock.close() };
        *open.entry(version).or_default() += 1;
        version
    }

    /// Opens a snapshot of the durable state.
    pub(crate) fn open_durable_snapshot(&self) -> u64 {
        let mut open = self.snapshots.open.lock();
        let version = match planted(Bug::DurableSnapshotTooNew) {
            true => self.clock.close(),
            false => self.hardening.horizon.local(),
        };
        *open.entry(version).or_default() += 1;
        version
    }

    pub(crate) fn release_snapshot(&self, version: u64) {
        let mut open = self.snapshots.open.lock();
        if let Some(count) = open.get_mut(&version) {
            *count -= 1;
            if *count == 0 {
                open.remove(&version);
            }
        }
    }

    /// The version that every snapshot, open or yet to be opened, includes: what it supersedes is not needed.
    pub(crate) fn oldest_needed(&self) -> u64 {
        let open = self.snapshots.open.lock();
        let horizon = self.hardening.horizon.local();
        open.keys().next().map_or(horizon, |&oldest| oldest.min(horizon))
    }

    pub(crate) fn snapshot_count(&self) -> usize {
        self.snapshots.open.lock().values().sum()
    }
}
