//! Registers: blind writes, in the order of their versions and, within a version, of real time.
//!
//! What comes after a write is then the end of a sorted list, so one node stands for the writes from each place on:
//!
//! ```text
//!   later(1) ──▶ later(2) ──▶ later(3)       whoever wrote or read the value of write 1 leads to the first of them
//!      ▼            ▼            ▼           that certainly comes after it
//!   write 1      write 2      write 3
//! ```

use std::collections::{BTreeMap, HashMap};

use super::Check;
use super::anomaly::Kind;
use super::facts::{ValueRead, Written, is_lost};
use super::graph::{About, Why};
use crate::isolation::history::{Key, Number};

/// The writes of a register in one generation, in order.
#[derive(Debug, Default)]
struct Writes {
    /// Version, beginning, end, transaction.
    sorted: Vec<(u64, u64, u64, u32)>,
    /// The node before each of them.
    later: Vec<u32>,
    /// How many of them survived the crash that ended the generation.
    survived: usize,
}

impl Writes {
    /// The place of the first write that certainly comes after the one at `version` that ended at `end`.
    fn after(&self, version: u64, end: u64) -> usize {
        self.sorted.partition_point(|write| write.0 < version || write.0 == version && write.1 < end)
    }
}

impl Check<'_> {
    /// Finds the order of all writes of all registers, and what depends on what by it.
    pub(crate) fn registers(&mut self) {
        let orders = self.register_orders();
        for read in std::mem::take(&mut self.facts.registers) {
            let generation = self.history.transactions[read.transaction as usize].generation;
            let Some(value) = read.value else {
                self.miss_later(&orders, read, (0, 0, 0), generation);
                continue;
            };
            let Some(written) = self.readable_write(read, value) else { continue };
            self.read_from(written.transaction, read.transaction, About::Register(read.key));
            let writer = &self.history.transactions[written.transaction as usize];
            if let Some(version) = writer.version() {
                let place = (writer.generation, version, writer.times.completed);
                self.miss_later(&orders, read, place, generation);
            }
        }
    }

    fn register_orders(&mut self) -> HashMap<Key, BTreeMap<u32, Writes>> {
        let mut orders: HashMap<Key, BTreeMap<u32, Writes>> = HashMap::new();
        for written in self.facts.register_writes.values() {
            let writer = &self.history.transactions[written.transaction as usize];
            let (true, Some(version)) = (written.last, writer.version()) else { continue };
            let times = writer.times;
            let writes = orders.entry(written.key).or_default().entry(writer.generation).or_default();
            writes.sorted.push((version, times.committing, times.completed, written.transaction));
            writes.survived += usize::from(!is_lost(&self.history.crashes, writer));
        }
        for (&key, generations) in &mut orders {
            let about = About::Register(key);
            for writes in generations.values_mut() {
                writes.sorted.sort_unstable();
                writes.later = writes.sorted.iter().map(|_| self.graph.add_node()).collect();
                for at in 0..writes.sorted.len() {
                    let (version, _, end, writer) = writes.sorted[at];
                    let before = self.graph.writes(writer);
                    self.graph.add(writes.later[at], self.graph.writes(writer), Why::Onwards, about);
                    // Under snapshot isolation the one before must have committed before this one even read.
                    let older = writes.sorted[..at].iter().rfind(|older| older.0 < version);
                    if let Some(older) = older {
                        let older = self.graph.writes(older.3);
                        self.graph.add(older, self.graph.reads(writer), Why::WriteWrite, about);
                    }
                    if let Some(&next) = writes.later.get(at + 1) {
                        self.graph.add(writes.later[at], next, Why::Onwards, about);
                    }
                    if let Some(&later) = writes.later.get(writes.after(version, end)) {
                        self.graph.add(before, later, Why::WriteWrite, about);
                    }
                }
            }
        }
        orders
    }

    /// The write that a read saw, if it was one to be seen.
    fn readable_write(&mut self, read: ValueRead, value: Number) -> Option<Written> {
        let written = self.facts.register_writes.get(&value).copied();
        self.check_write(read, About::Register(read.key), written.filter(|written| written.key == read.key))
    }

    /// A write that was seen must be a committed one, the transaction's last, and not lost.
    pub(crate) fn check_write(
        &mut self,
        read: ValueRead,
        about: About,
        written: Option<Written>,
    ) -> Option<Written> {
        let ValueRead { transaction: reader, value, .. } = read;
        let name = super::name(about);
        let Some(written) = written else {
            let text = format!("{name}: nobody wrote {value:?}{}", self.show(&[reader]));
            self.anomalies.add(Kind::Garbage, || text);
            return None;
        };
        let writer = &self.history.transactions[written.transaction as usize];
        let is_earlier = writer.generation < self.history.transactions[reader as usize].generation;
        let kind = if !self.facts.committed[written.transaction as usize] {
            Kind::AbortedRead
        } else if !written.last {
            Kind::IntermediateRead
        } else if is_earlier && is_lost(&self.history.crashes, writer) {
            Kind::CameBack
        } else {
            return Some(written);
        };
        let text = format!("{name}: a read of {value:?}{}", self.show(&[written.transaction, reader]));
        self.anomalies.add(kind, || text);
        None
    }

    /// A read of what was written in some generation at some version misses all that came later.
    fn miss_later(
        &mut self,
        orders: &HashMap<Key, BTreeMap<u32, Writes>>,
        read: ValueRead,
        (from, version, end): (u32, u64, u64),
        generation: u32,
    ) {
        let (about, reader) = (About::Register(read.key), read.transaction);
        let Some(generations) = orders.get(&read.key) else { return };
        for (&at, writes) in generations.range(from..=generation) {
            let first = if at == from { writes.after(version, end) } else { 0 };
            let in_reach = if at == generation { writes.sorted.len() } else { writes.survived };
            if at < generation {
                // Of an earlier generation only what survived can be missed, and the nodes lead on to what did not.
                if first < in_reach {
                    self.missed(reader, writes.sorted[first].3, Why::ReadWrite, about);
                    return;
                }
                continue;
            }
            // A node that also stands for the reader's own write would say that it comes before itself.
            let own =
                writes.sorted[first..].iter().position(|write| write.3 == reader).map(|own| first + own);
            for place in first..own.unwrap_or(first) {
                self.missed(reader, writes.sorted[place].3, Why::ReadWrite, about);
            }
            let next = own.map_or(first, |own| own + 1);
            if next < in_reach {
                self.graph.add(self.graph.reads(reader), writes.later[next], Why::ReadWrite, about);
                self.note_missed(reader, writes.sorted[next].3, about);
            }
        }
    }
}
