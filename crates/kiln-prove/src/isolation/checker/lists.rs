//! Lists: the longest read says in which order all appends came.
//!
//! Each generation has an order of its own, since a crash cuts the end of a list off, and it may grow differently then.

use std::collections::HashMap;

use super::anomaly::Kind;
use super::facts::{ListUse, is_lost};
use super::graph::{About, Why};
use super::{Check, list_name};
use crate::isolation::history::{Key, Number};

/// The appends of a list, in the order in which they came, by generation and key.
pub(crate) type Orders = HashMap<(u32, Key), Vec<Number>>;

impl Check<'_> {
    /// Finds every list's order, and what depends on what by it.
    pub(crate) fn lists(&mut self) -> Orders {
        let mut uses = std::mem::take(&mut self.facts.lists);
        let generation = |used: &ListUse<'_>| self.history.transactions[used.transaction as usize].generation;
        uses.sort_by_key(|used| (used.key, generation(used), used.transaction));
        let mut orders = Orders::new();
        let mut before: Option<(Key, Vec<Number>)> = None;
        for group in uses.chunk_by(|a, b| (a.key, generation(a)) == (b.key, generation(b))) {
            let (key, generation) = (group[0].key, generation(&group[0]));
            let order = self.order_of(group);
            let known = before.as_ref().filter(|before| before.0 == key).map_or(&[][..], |before| &before.1);
            if self.is_sound(group, &order, generation) {
                self.depend(group, &order, known);
            }
            before = Some((key, order.clone()));
            orders.insert((generation, key), order);
        }
        self.facts.lists = uses;
        orders
    }

    /// The longest state that anybody saw or made.
    fn order_of(&self, group: &[ListUse<'_>]) -> Vec<Number> {
        let made = |used: &ListUse<'_>| match self.facts.committed[used.transaction as usize] {
            true => used.appended.len(),
            false => 0,
        };
        let seen = group.iter().filter_map(|used| used.seen.map(|seen| (seen, made(used), used)));
        let longest = seen.max_by_key(|(seen, made, used)| (seen.len() + made, u32::MAX - used.transaction));
        longest.map_or(Vec::new(), |(seen, made, used)| [seen, &used.appended[..made]].concat())
    }

    /// Compares the order with all who read and append, and with who wrote what is in it.
    fn is_sound(&mut self, group: &[ListUse<'_>], order: &[Number], generation: u32) -> bool {
        let (key, mut sound) = (group[0].key, true);
        let mut at_state: HashMap<usize, u32> = HashMap::new();
        for used in group {
            let Some(seen) = used.seen else { continue };
            let reader = used.transaction;
            if !order.starts_with(seen) {
                sound = false;
                let text = format!(
                    "{}: a read that is not the beginning of {order:?}{}",
                    list_name(key),
                    self.show(&[reader])
                );
                self.anomalies.add(Kind::IncompatibleOrder, || text);
                continue;
            }
            if used.appended.is_empty() || !self.facts.committed[reader as usize] {
                continue;
            }
            if let Some(other) = at_state.insert(seen.len(), reader) {
                sound = false;
                let text = format!(
                    "{}: both appended to the same state{}",
                    list_name(key),
                    self.show(&[other, reader])
                );
                self.anomalies.add(Kind::LostUpdate, || text);
            } else if !order[seen.len()..].starts_with(&used.appended) {
                sound = false;
                let text = format!(
                    "{}: what this appended is not in {order:?} where it was appended{}",
                    list_name(key),
                    self.show(&[reader])
                );
                self.anomalies.add(Kind::LostUpdate, || text);
            }
        }
        self.writers_are_sound(group, order, generation) && sound
    }

    fn writers_are_sound(&mut self, group: &[ListUse<'_>], order: &[Number], generation: u32) -> bool {
        let key = group[0].key;
        let mut known: HashMap<Number, usize> = HashMap::with_capacity(order.len());
        let mut sound = true;
        for (at, &number) in order.iter().enumerate() {
            // Whoever was the first to see it.
            let reader = || {
                let readers = group.iter().filter(|used| used.seen.is_some_and(|seen| seen.len() > at));
                readers.map(|used| used.transaction).next().unwrap_or(group[0].transaction)
            };
            let writer = self.facts.appends.get(&number).filter(|written| written.key == key).copied();
            let name = list_name(key);
            let wrong = if known.insert(number, at).is_some() {
                Some((Kind::Duplicate, format!("{name}: {number} is in it twice{}", self.show(&[reader()]))))
            } else if let Some(written) = writer {
                let writer = written.transaction;
                let wrote = &self.history.transactions[writer as usize];
                if !self.facts.committed[writer as usize] {
                    Some((
                        Kind::AbortedRead,
                        format!("{name}: a read of {number}{}", self.show(&[writer, reader()])),
                    ))
                } else if wrote.generation < generation && is_lost(&self.history.crashes, wrote) {
                    Some((
                        Kind::CameBack,
                        format!("{name}: {number} was lost{}", self.show(&[writer, reader()])),
                    ))
                } else {
                    None
                }
            } else {
                Some((Kind::Garbage, format!("{name}: nobody appended {number}{}", self.show(&[reader()]))))
            };
            if let Some((kind, text)) = wrong {
                sound = false;
                self.anomalies.add(kind, || text);
            }
        }
        sound
    }

    /// Adds the edges. `known` is the order of the generation before, whose beginning this one shares.
    fn depend(&mut self, group: &[ListUse<'_>], order: &[Number], known: &[Number]) {
        let about = About::List(group[0].key);
        let writer = |check: &Check<'_>, at: usize| check.facts.appends[&order[at]].transaction;
        let shared = order.iter().zip(known).take_while(|(here, there)| here == there).count();
        for at in shared.max(1)..order.len() {
            let (first, second) = (writer(self, at - 1), writer(self, at));
            if first != second {
                self.overwrote(first, second, about);
            }
        }
        for used in group {
            let (Some(seen), reader) = (used.seen, used.transaction) else { continue };
            let last = seen.len().checked_sub(1).map(|at| writer(self, at));
            let next = (seen.len() < order.len()).then(|| writer(self, seen.len()));
            if last.is_some() && last == next && next != Some(reader) {
                let text = format!(
                    "{}: a read between two appends of one transaction{}",
                    list_name(used.key),
                    self.show(&[next.unwrap_or(reader), reader])
                );
                self.anomalies.add(Kind::IntermediateRead, || text);
                continue;
            }
            if let Some(last) = last.filter(|&last| last != reader) {
                self.read_from(last, reader, about);
            }
            if let Some(next) = next.filter(|&next| next != reader) {
                self.missed(reader, next, Why::ReadWrite, about);
            }
        }
    }
}
