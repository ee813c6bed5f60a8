//! Named snapshots: what is given a name has it until the name is dropped, crashes or not.

use std::collections::HashMap;

use super::Check;
use super::anomaly::Kind;
use crate::isolation::history::{Key, Operation, Outcome};

impl Check<'_> {
    /// Names are given and dropped one after the other, and both are durable at once.
    pub(crate) fn names(&mut self) {
        let transactions = &self.history.transactions;
        let mut changes: Vec<(u32, u64, u32, Key, Option<u64>)> = Vec::new();
        for (at, transaction) in (0..).zip(transactions) {
            let (generation, moment) = (transaction.generation, transaction.times.completed);
            changes.extend(transaction.operations.iter().filter_map(|operation| match operation {
                Operation::Name(name, version) => Some((generation, moment, at, *name, *version)),
                Operation::Unname(name) => Some((generation, moment, at, *name, None)),
                _ => None,
            }));
        }
        changes.sort_unstable();
        let mut wrong = Vec::new();
        let mut names: HashMap<Key, u64> = HashMap::new();
        let mut changes = changes.into_iter().peekable();
        for (generation, crash) in (0..).zip(&self.history.crashes) {
            let mut unknown = HashMap::new();
            while let Some((_, _, at, name, version)) = changes.next_if(|change| change.0 == generation) {
                match (transactions[at as usize].outcome, version) {
                    (Outcome::Unknown, _) => {
                        unknown.insert(name, at);
                    }
                    (_, Some(version)) => {
                        names.insert(name, version);
                    }
                    (_, None) => {
                        names.remove(&name);
                    }
                }
            }
            let found: HashMap<Key, u64> = crash.names.iter().copied().collect();
            for name in names.keys().chain(found.keys()).filter(|name| !unknown.contains_key(*name)) {
                if names.get(name) != found.get(name) {
                    let (known, found) = (names.get(name), found.get(name));
                    wrong.push(format!(
                        "name {name}: it was of version {known:?}, and is of {found:?} after crash {}",
                        generation + 1
                    ));
                }
            }
            names = found;
        }
        for text in wrong {
            self.anomalies.add(Kind::NotRecovered, || text);
        }
    }
}
