//! Tallies: each addition of one that was answered says by its sum which it is.
//!
//! So the sums are the order, in each generation its own, since a crash takes the newest. Some additions are not answered, those of
//! batches: they are as many as there are sums that nobody was told.

use std::collections::BTreeMap;

use super::Check;
use super::anomaly::Kind;
use super::facts::{TallyUse, is_lost};
use super::graph::{About, Why};
use crate::isolation::history::Outcome;

/// Who brought a tally to each sum.
type Sums = BTreeMap<u64, u32>;

impl Check<'_> {
    /// Finds what depends on what by tallies.
    pub(crate) fn tallies(&mut self) {
        let history = self.history;
        let generation = |used: &TallyUse| history.transactions[used.transaction as usize].generation;
        let mut uses = std::mem::take(&mut self.facts.tallies);
        uses.sort_by_key(|used| (used.key, generation(used), used.transaction));
        for of_key in uses.chunk_by(|a, b| a.key == b.key) {
            let mut sums = Sums::new();
            for group in of_key.chunk_by(|a, b| generation(a) == generation(b)) {
                sums.retain(|_, writer| !is_lost(&history.crashes, &history.transactions[*writer as usize]));
                self.add_up(group, &mut sums);
                self.tally_up(group, &sums);
                self.depend_on_sums(group, &sums);
            }
        }
    }

    fn generation(&self, transaction: u32) -> u32 {
        self.history.transactions[transaction as usize].generation
    }

    /// Adds the sums of one generation to those that have survived from before.
    fn add_up(&mut self, group: &[TallyUse], sums: &mut Sums) {
        let (committed, own) = (&self.facts.committed, self.generation(group[0].transaction));
        let additions = group.iter().filter(|used| committed[used.transaction as usize]);
        let mut twice = Vec::new();
        for used in additions {
            for sum in used.seen + 1..=used.seen + used.added {
                if let Some(other) = sums.insert(sum, used.transaction) {
                    twice.push((sum, other, used.transaction));
                }
            }
        }
        for (sum, other, transaction) in twice {
            let kind = if self.generation(other) < own { Kind::NotRecovered } else { Kind::LostUpdate };
            let text = format!(
                "tally {}: both brought it to {sum}{}",
                group[0].key,
                self.show(&[other, transaction])
            );
            self.anomalies.add(kind, || text);
        }
    }

    /// As many were told no sum as there are sums of which nobody was told.
    fn tally_up(&mut self, group: &[TallyUse], sums: &Sums) {
        let (key, generation) = (group[0].key, self.generation(group[0].transaction));
        let highest = |used: &&TallyUse| match self.facts.committed[used.transaction as usize] {
            true => used.seen + used.added,
            false => used.seen,
        };
        let Some(last) = group.iter().max_by_key(highest) else { return };
        let top = highest(&last);
        let untold = top - sums.range(..=top).count() as u64;
        let unanswered = self.facts.unanswered.iter().filter(|(_, tally)| *tally == key);
        let transactions = unanswered.map(|(at, _)| &self.history.transactions[*at as usize]);
        let remain: Vec<bool> = transactions
            .filter(|transaction| transaction.generation <= generation && !transaction.is_aborted())
            .filter(|transaction| {
                !is_lost(&self.history.crashes, transaction) || transaction.generation == generation
            })
            .map(|transaction| transaction.outcome != Outcome::Unknown)
            .collect();
        let at_least = remain.iter().filter(|is_certain| **is_certain).count() as u64;
        // In the last generation everything is read at the end.
        let is_last = generation as usize == self.history.crashes.len();
        let (kind, what) = if untold > remain.len() as u64 {
            (Kind::Garbage, "nobody added so much")
        } else if is_last && untold < at_least {
            (Kind::LostWrite, "more was added")
        } else {
            return;
        };
        let text = format!("tally {key} is {top}: {what}{}", self.show(&[last.transaction]));
        self.anomalies.add(kind, || text);
    }

    fn depend_on_sums(&mut self, group: &[TallyUse], sums: &Sums) {
        let about = About::Tally(group[0].key);
        let own = self.generation(group[0].transaction);
        let writers: Vec<u32> = sums.values().copied().collect();
        for pair in writers.windows(2) {
            if pair[0] != pair[1] && self.generation(pair[1]) == own {
                self.overwrote(pair[0], pair[1], about);
            }
        }
        for &TallyUse { transaction: reader, seen, .. } in group {
            let before = sums.range(..=seen).next_back();
            let after = sums.range(seen + 1..).next();
            if let (Some((&sum, before)), Some((_, after))) = (before, after)
                && sum == seen
                && before == after
                && *after != reader
            {
                let text = format!(
                    "{}: a read between two additions of one transaction{}",
                    super::name(about),
                    self.show(&[*after, reader])
                );
                self.anomalies.add(Kind::IntermediateRead, || text);
                continue;
            }
            if let Some((_, &before)) = before.filter(|(_, before)| **before != reader) {
                self.read_from(before, reader, about);
            }
            if let Some((_, &after)) = after.filter(|(_, after)| **after != reader) {
                self.missed(reader, after, Why::ReadWrite, about);
            }
        }
    }
}
