//! Dropped objects: whoever has used one came before it was dropped.

use std::collections::BTreeMap;

use super::Check;
use super::facts::is_lost;
use super::graph::{About, Why};
use crate::isolation::history::{Key, Operation, Outcome};

impl Check<'_> {
    pub(crate) fn drops(&mut self) {
        let history = self.history;
        // By its first row, the last one of an object, and who has dropped it: once, or again after a crash.
        let mut drops: BTreeMap<Key, (Key, Vec<u32>)> = BTreeMap::new();
        for (at, transaction) in (0..).zip(&history.transactions) {
            for operation in transaction.operations.iter().filter(|_| transaction.outcome != Outcome::Unknown)
            {
                if let Operation::Drop(first, last) = operation {
                    drops.entry(*first).or_insert((*last, Vec::new())).1.push(at);
                }
            }
        }
        for (user, transaction) in (0..).zip(&history.transactions) {
            for operation in &transaction.operations {
                let (row, writes) = match *operation {
                    Operation::Put(row, _) | Operation::Delete(row, _) => (row, true),
                    Operation::Row(row, _) | Operation::Is(row, ..) | Operation::Range(row, ..) => {
                        (row, false)
                    }
                    _ => continue,
                };
                let Some((_, (last, dropped_by))) = drops.range(..=row).next_back() else { continue };
                for &dropper in dropped_by.iter().filter(|_| row <= *last) {
                    let dropped = &history.transactions[dropper as usize];
                    let came_back =
                        dropped.generation < transaction.generation && is_lost(&history.crashes, dropped);
                    if came_back || transaction.is_aborted() && writes {
                        continue;
                    }
                    match writes {
                        true => self.overwrote(user, dropper, About::Row(row)),
                        false => self.missed(user, dropper, Why::ReadWrite, About::Row(row)),
                    }
                }
            }
        }
    }
}
