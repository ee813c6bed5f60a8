//! What a crash leaves: exactly the transactions up to the horizon, all of them that were called durable among them,
//! and every session's last serial number.

use std::collections::{BTreeSet, HashMap, HashSet};

use super::Check;
use super::anomaly::Kind;
use super::facts::is_lost;
use super::lists::Orders;
use crate::isolation::history::{Key, Number, Operation, Outcome};

impl Check<'_> {
    /// C3 and C5, by what lists have after a crash. (What came back is told of with the lists, and a register or a row
    /// that has an older value than it should shows as a cycle with real time.)
    pub(crate) fn survivors(&mut self, orders: &Orders) {
        self.horizons();
        let crashes = &self.history.crashes;
        let last_generation = crashes.len() as u32;
        let mut seen: HashMap<Key, BTreeSet<u32>> = HashMap::new();
        let mut there: HashSet<(u32, Number)> = HashSet::new();
        for (&(generation, key), order) in orders {
            seen.entry(key).or_default().insert(generation);
            there.extend(order.iter().map(|&number| (generation, number)));
        }
        let mut wrong = Vec::new();
        for (at, transaction) in (0..).zip(&self.history.transactions) {
            if !self.facts.committed[at as usize] || transaction.outcome == Outcome::Unknown {
                continue;
            }
            let lost = is_lost(crashes, transaction);
            if lost && transaction.durable.is_some() {
                wrong.push((
                    Kind::DurableLost,
                    at,
                    "was called durable, and lost in the next crash".to_owned(),
                ));
            }
            for operation in &transaction.operations {
                let Operation::Append(key, number) = operation else { continue };
                let Some(generations) = seen.get(key) else { continue };
                let mut later = generations.range(transaction.generation + 1..);
                let is_missing = |generation: &&u32| !lost && !there.contains(&(**generation, *number));
                if let Some(&generation) = later.find(is_missing) {
                    let what = format!("{operation}, and that is gone after crash {generation}");
                    wrong.push((Kind::NotRecovered, at, what));
                } else if transaction.generation == last_generation
                    && !there.contains(&(last_generation, *number))
                {
                    wrong.push((Kind::LostWrite, at, format!("{operation}, and nobody ever saw that")));
                }
            }
        }
        for (kind, at, what) in wrong {
            let text = format!("{what}{}", self.show(&[at]));
            self.anomalies.add(kind, || text);
        }
    }

    fn horizons(&mut self) {
        let mut before = 0;
        for (number, crash) in (1..).zip(&self.history.crashes) {
            if crash.horizon < crash.told.max(before) {
                let known = crash.told.max(before);
                let text = format!(
                    "version {known} was durable; after crash {number} the horizon is {}",
                    crash.horizon
                );
                self.anomalies.add(Kind::DurableLost, || text);
            }
            before = crash.horizon;
        }
    }

    /// C7: serial numbers follow one another, and after a crash a session goes on from the last that survived.
    pub(crate) fn sessions(&mut self) {
        let mut order: Vec<u32> = (0..self.history.transactions.len() as u32).collect();
        let with_serial = |at: &u32| {
            let transaction = &self.history.transactions[*at as usize];
            transaction.serial.is_some() && !transaction.is_aborted()
        };
        order.retain(with_serial);
        let transaction = |at: u32| &self.history.transactions[at as usize];
        order.sort_unstable_by_key(|&at| (transaction(at).process, transaction(at).times.invoked));
        let mut wrong = Vec::new();
        for of_process in order.chunk_by(|&a, &b| transaction(a).process == transaction(b).process) {
            let process = transaction(of_process[0]).process;
            let mut at = of_process.iter().copied().peekable();
            let mut recovered = 0;
            for generation in 0..=self.history.crashes.len() as u32 {
                let (mut last, mut survived, mut first_lost) = (recovered, recovered, None);
                while let Some(next) = at.next_if(|&next| transaction(next).generation == generation) {
                    let serial = transaction(next).serial.unwrap_or_default();
                    if serial != last + 1 {
                        wrong.push((format!("its serial number follows on {last}"), Some(next)));
                    }
                    last = serial;
                    if is_lost(&self.history.crashes, transaction(next)) {
                        first_lost.get_or_insert(serial);
                    } else if transaction(next).outcome != Outcome::Unknown {
                        survived = serial;
                    }
                }
                let Some(crash) = self.history.crashes.get(generation as usize) else { continue };
                let told =
                    crash.serials.iter().find(|told| told.0 == process).map_or(survived, |told| told.1);
                // Of what committed at an unknown version, or was never answered, nobody knows whether it survived.
                let at_most = first_lost.map_or(last, |first| first - 1);
                let unanswered = self.history.transactions.iter().any(|transaction| {
                    let of_session = (transaction.process, transaction.generation) == (process, generation);
                    of_session && transaction.outcome == Outcome::Unknown && transaction.serial.is_none()
                });
                let by_unanswered = unanswered && survived == last && told == survived + 1;
                if !(survived..=at_most).contains(&told) && !by_unanswered {
                    let crash = generation + 1;
                    let text = format!(
                        "process {process}: {survived} survived crash {crash}, and it was told {told}"
                    );
                    wrong.push((text, None));
                }
                recovered = told;
            }
        }
        for (what, at) in wrong {
            let text = format!("{what}{}", self.show(at.as_slice()));
            self.anomalies.add(Kind::SessionSerial, || text);
        }
    }
}
