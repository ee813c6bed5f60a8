//! What is known of a database that lives.

use std::collections::BTreeMap;

use super::State;
use super::space::Room;

/// What was committed, and what was said to be durable.
#[derive(Clone, Default)]
pub(super) struct Told {
    /// The version of each commit, and what is there since.
    pub(super) states: Vec<(u64, State)>,
    /// The versions of the session's commits, and their serial numbers.
    pub(super) serials: Vec<(u64, u64)>,
    pub(super) durable: u64,
    /// Tables that were loaded, or may have been.
    pub(super) loads: usize,
    /// The last of them may have been, and as what.
    pub(super) loading: Option<State>,
    /// What the snapshots that have names show.
    pub(super) named: BTreeMap<&'static str, State>,
    /// One may have been given this name, or lost it.
    pub(super) naming: Option<(&'static str, State)>,
    pub(super) room: Room,
}

impl Told {
    pub(super) fn now(&self) -> State {
        self.states.last().map(|(_, state)| state.clone()).unwrap_or_default()
    }

    pub(super) fn commit(&mut self, version: u64, state: State) {
        self.states.push((version, state));
    }

    pub(super) fn serial(&self) -> u64 {
        self.serials.last().map_or(0, |(_, serial)| *serial)
    }

    /// A crash has taken what is behind this version.
    pub(super) fn cut_at(&mut self, horizon: u64) {
        self.states.retain(|(version, _)| *version <= horizon);
        self.serials.retain(|(version, _)| *version <= horizon);
        self.everything_is_durable();
    }

    pub(super) fn everything_is_durable(&mut self) {
        let versions = [
            self.states.last().map(|(version, _)| *version),
            self.serials.last().map(|(version, _)| *version),
        ];
        self.durable = versions.into_iter().flatten().max().unwrap_or(0);
    }
}
