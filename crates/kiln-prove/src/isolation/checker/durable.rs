//! C6: a durable snapshot is of the last durable state, and not of any earlier one: it covers all that somebody had been told to be durable when
//! it was asked for.

use super::Check;
use super::anomaly::Kind;
use crate::isolation::history::Level;

impl Check<'_> {
    /// To be called when it is known who has read whose writes.
    pub(crate) fn durable_snapshots(&mut self) {
        let transactions = &self.history.transactions;
        // When it was told, up to which version everything is durable, and who was told that.
        let mut told: Vec<(u64, u64, u32)> = Vec::new();
        let mut snapshots: Vec<(u64, u64, u32)> = Vec::new();
        for (at, transaction) in (0..).zip(transactions) {
            let read = || self.newest_read[at as usize].and_then(|writer| self.version(writer));
            let version = match transaction.level {
                Level::Durable(version) => {
                    snapshots.push((transaction.times.invoked, version, at));
                    Some(version)
                }
                // What a safe read has seen is durable.
                _ => transaction.version().or_else(read),
            };
            told.extend(transaction.durable.zip(version).map(|(moment, version)| (moment, version, at)));
        }
        told.sort_unstable();
        snapshots.sort_unstable();
        let (mut told, mut newest, mut wrong) = (told.into_iter().peekable(), (0, None), Vec::new());
        for (invoked, version, at) in snapshots {
            while let Some((_, version, by)) = told.next_if(|&(moment, ..)| moment < invoked) {
                newest = newest.max((version, Some(by)));
            }
            let recovered = (transactions[at as usize].generation as usize).checked_sub(1);
            let recovered = recovered.and_then(|crash| self.history.crashes.get(crash));
            let (known, by) = newest.max((recovered.map_or(0, |crash| crash.horizon), None));
            if version < known {
                wrong.push((known, by.into_iter().chain([at]).collect::<Vec<_>>()));
            }
        }
        for (known, involved) in wrong {
            let text = format!(
                "version {known} was durable, which a durable snapshot that was asked for later does not cover{}",
                self.show(&involved)
            );
            self.anomalies.add(Kind::StaleDurable, || text);
        }
    }
}
