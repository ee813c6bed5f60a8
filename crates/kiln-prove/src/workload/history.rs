//! What must be in the database: the history of everything that was committed, and the states that it defines.
//!
//! The model knows nothing of logs or disks. It says: the state at version v is what all transactions with
//! versions up to v have written, in the order of their commits; and the database was told (a safe commit
//! returned, a receipt said *durable*, a callback came) that everything up to some version is durable.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// The objects of the workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Place {
    /// The table of accounts, and of the upper halves of the pairs.
    Accounts,
    /// The table of sub-accounts; a key begins with its account's key.
    Children,
    /// The map of row counts, and of the lower halves of the pairs.
    Numbers,
}

pub(crate) type Key = Vec<u8>;
pub(crate) type Value = Arc<[u8]>;
/// All objects' contents.
pub(crate) type State = BTreeMap<(Place, Key), Value>;
/// What a transaction leaves: a value for each key that it wrote, or none if it deleted it.
pub(crate) type Writes = BTreeMap<(Place, Key), Option<Value>>;

/// Applies a transaction's writes.
pub(crate) fn apply(state: &mut State, writes: &Writes) {
    for (key, value) in writes {
        match value {
            Some(value) => state.insert(key.clone(), value.clone()),
            None => state.remove(key),
        };
    }
}

/// A committed transaction.
#[derive(Clone, Debug)]
pub(crate) struct Committed {
    pub(crate) version: u64,
    pub(crate) writes: Writes,
    /// The session's number in the workload, and the serial that the transaction took.
    pub(crate) session: Option<(usize, u64)>,
}

/// A snapshot that has a name, or may have one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Named {
    pub(crate) name: &'static str,
    /// It shows so many commits, the first.
    pub(crate) commits: usize,
    /// That it was made has been told.
    pub(crate) is_made: bool,
    /// It may have been dropped.
    pub(crate) is_going: bool,
}

/// Everything that was committed, and what was said about its durability.
#[derive(Clone, Debug, Default)]
pub(crate) struct History {
    pub(crate) commits: Vec<Committed>,
    /// Every key that was ever written.
    keys: BTreeSet<(Place, Key)>,
    /// The state after all commits.
    pub(crate) latest: State,
    /// Everything up to this version has been called durable.
    pub(crate) durable: u64,
    /// Versions of commits that an earlier crash took.
    pub(crate) lost: BTreeSet<u64>,
    /// The newest version that any commit, lost ones included, was told.
    pub(crate) newest: u64,
    /// Those that were not dropped for certain.
    pub(crate) named: Vec<Named>,
}

impl History {
    /// Adds a transaction that has just committed.
    ///
    /// # Panics
    /// If its version is older than that of the commit before it: on one thread, versions never go back.
    pub(crate) fn commit(&mut self, version: u64, writes: Writes, session: Option<(usize, u64)>) {
        let before = self.commits.last().map_or(0, |last| last.version);
        assert!(version >= before, "a commit got version {version} after one that had got {before}");
        apply(&mut self.latest, &writes);
        for key in writes.keys() {
            if !self.keys.contains(key) {
                self.keys.insert(key.clone());
            }
        }
        self.newest = self.newest.max(version);
        self.commits.push(Committed { version, writes, session });
    }

    /// As [`History::commit`], unless the transaction only read: that leaves nothing behind. A session's
    /// transaction always writes its serial number.
    pub(crate) fn commit_unless_empty(
        &mut self,
        version: u64,
        writes: Writes,
        session: Option<(usize, u64)>,
    ) {
        if !writes.is_empty() || session.is_some() {
            self.commit(version, writes, session);
        }
    }

    /// Notes that everything up to `version` was called durable.
    pub(crate) fn told_durable(&mut self, version: u64) {
        self.durable = self.durable.max(version);
    }

    /// The commits up to a version.
    fn up_to(&self, version: u64) -> &[Committed] {
        &self.commits[..self.commits.partition_point(|commit| commit.version <= version)]
    }

    /// The state that all commits up to `version` make.
    pub(crate) fn state_at(&self, version: u64) -> State {
        self.state_after(self.up_to(version).len())
    }

    /// The state that so many commits make, the first.
    pub(crate) fn state_after(&self, commits: usize) -> State {
        if commits == self.commits.len() {
            return self.latest.clone();
        }
        let mut state = State::new();
        self.commits[..commits].iter().for_each(|commit| apply(&mut state, &commit.writes));
        state
    }

    /// The session's last serial number among the commits up to `version`.
    pub(crate) fn serial_at(&self, session: usize, version: u64) -> u64 {
        let serials = self.up_to(version).iter().rev().filter_map(|commit| commit.session);
        serials.into_iter().find(|(of, _)| *of == session).map_or(0, |(_, serial)| serial)
    }

    /// The version of the commit that last wrote a key.
    pub(crate) fn last_write(&self, key: &(Place, Key)) -> u64 {
        let writers = self.commits.iter().rev().filter(|commit| commit.writes.contains_key(key));
        writers.map(|commit| commit.version).next().unwrap_or(0)
    }

    /// Every key that was ever written.
    pub(crate) fn keys(&self) -> &BTreeSet<(Place, Key)> {
        &self.keys
    }

    /// Forgets what a crash took: everything after `horizon`. These snapshots have names now.
    pub(crate) fn cut_at(&mut self, horizon: u64, snapshots: &[kiln::SnapshotInfo]) {
        self.named.retain(|named| snapshots.iter().any(|info| info.name == named.name));
        for named in &mut self.named {
            (named.is_made, named.is_going) = (true, false);
        }
        let kept = self.up_to(horizon).len();
        self.latest = self.state_at(horizon);
        self.lost.extend(self.commits.drain(kept..).map(|commit| commit.version));
        self.durable = horizon;
    }
}
