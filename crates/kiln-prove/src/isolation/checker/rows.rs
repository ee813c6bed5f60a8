//! Rows: what point reads and ranges say about keys that come and go.
//!
//! The journal of a row has all its changes in order. A row that is there says by its number which change it is of. One
//! that is not there may be so before its first change or after any deletion: those that ended before the read began, and
//! those that began after it had ended, narrow that down, mostly to one.
//!
//! A transaction that reads the journal, too, must see the row as the journal says; whoever is only told something of rows reads it for that.

use std::collections::{BTreeMap, HashMap};

use super::Check;
use super::anomaly::Kind;
use super::facts::{Claim, RangeRead, ValueRead, found};
use super::graph::{About, Why};
use super::lists::Orders;
use crate::isolation::history::{Key, Level, Number, Operation, Transaction, journal_of};

/// A change of a row.
#[derive(Clone, Copy, Debug)]
struct Change {
    writer: u32,
    present: bool,
}

/// All changes of a row, when the first of them began, and when the last had ended.
#[derive(Debug)]
struct Changes {
    changes: Vec<Change>,
    began: u64,
    ended: u64,
}

impl Changes {
    /// True if the row was certainly absent all the time from one moment to another.
    fn leave_it_absent(&self, (from, to): (u64, u64)) -> bool {
        to < self.began || self.ended < from && self.changes.last().is_none_or(|last| !last.present)
    }
}

/// The changes of each row in each generation, and where each number stands among them.
#[derive(Debug, Default)]
struct Journals {
    changes: HashMap<u32, BTreeMap<Key, Changes>>,
    places: HashMap<(u32, Number), usize>,
    /// What each transaction that has read the journal of a row knows of the row by it.
    known: BTreeMap<(u32, Key), Option<Number>>,
}

impl Check<'_> {
    /// Finds what depends on what by rows, phantoms included.
    pub(crate) fn rows(&mut self, orders: &Orders) {
        let journals = self.journals(orders);
        for read in std::mem::take(&mut self.facts.rows) {
            self.read_row(&journals, read, Why::ReadWrite);
        }
        self.claims(&journals);
        let no_rows = BTreeMap::new();
        for range in std::mem::take(&mut self.facts.ranges) {
            let RangeRead { transaction, first, last, rows, own } = range;
            let reader = &self.history.transactions[transaction as usize];
            let known = journals.changes.get(&reader.generation).unwrap_or(&no_rows);
            let time = reading_time(reader);
            for &(key, number) in rows.iter().filter(|(key, _)| !own.contains(key)) {
                self.read_row(&journals, ValueRead { transaction, key, value: Some(number) }, Why::ReadWrite);
            }
            for (&key, changes) in known.range(first..=last) {
                if changes.leave_it_absent(time) || found(rows, key).is_some() || own.contains(&key) {
                    continue;
                }
                self.read_row(&journals, ValueRead { transaction, key, value: None }, Why::ReadWriteRange);
            }
        }
    }

    fn journals(&self, orders: &Orders) -> Journals {
        let mut journals = Journals::default();
        for (&(generation, list), order) in orders {
            let row = list & !(1 << 31);
            if list != journal_of(row) {
                continue;
            }
            // A number that no change of a row stands for is told of with the lists.
            let changes =
                order.iter().filter_map(|number| Some((*number, self.facts.row_writes.get(number)?)));
            let mut known: Vec<Change> = Vec::new();
            for (number, written) in changes.filter(|(_, written)| written.last) {
                let was_there = known.last().is_some_and(|last| last.present);
                // What puts a row and deletes it again has changed nothing.
                if was_there || written.present {
                    journals.places.insert((generation, number), known.len());
                    known.push(Change { writer: written.transaction, present: written.present });
                }
            }
            let times = |change: &Change| self.history.transactions[change.writer as usize].times;
            let began = known.iter().map(|change| times(change).invoked).min().unwrap_or(u64::MAX);
            let ended = known.iter().map(|change| times(change).completed).max().unwrap_or(0);
            let changes = Changes { changes: known, began, ended };
            journals.changes.entry(generation).or_default().insert(row, changes);
        }
        for used in &self.facts.lists {
            let row = used.key & !(1 << 31);
            let Some(seen) = used.seen.filter(|_| used.key == journal_of(row)) else { continue };
            let state = match seen.last() {
                None => None,
                Some(number) => {
                    let (append, written) =
                        (self.facts.appends.get(number), self.facts.row_writes.get(number));
                    match append.zip(written) {
                        Some((append, written)) if append.transaction == written.transaction => {
                            written.present.then_some(*number)
                        }
                        // Who loads in bulk has journaled it before, and snapshots may lie between the two.
                        _ => continue,
                    }
                }
            };
            journals.known.insert((used.transaction, row), state);
        }
        journals
    }

    /// What was told of rows is what their journals say.
    fn claims(&mut self, journals: &Journals) {
        for claim in std::mem::take(&mut self.facts.claims) {
            match claim {
                Claim::IsNot { transaction, key, value } => {
                    if journals.known.get(&(transaction, key)) == Some(&value) {
                        let claim = Operation::Is(key, value, false);
                        self.contradict(transaction, &claim);
                    }
                }
                Claim::Count { transaction, first, last, count, own } => {
                    let others = || (first..=last).filter(|key| !own.contains(key));
                    let known = |key| journals.known.get(&(transaction, key));
                    // Who fails before it has read all of the journals knows too little.
                    if others().all(|key| known(key).is_some())
                        && others().filter_map(|key| *known(key)?).count() as u64 != count
                    {
                        self.contradict(transaction, &Operation::Count(first, last, count));
                    }
                }
            }
        }
    }

    fn contradict(&mut self, transaction: u32, told: &Operation) {
        let text = format!(
            "{told}, and in the same transaction the journal says something else{}",
            self.show(&[transaction])
        );
        self.anomalies.add(Kind::AgainstJournal, || text);
    }

    fn read_row(&mut self, journals: &Journals, read: ValueRead, why: Why) {
        let (reader, about) = (read.transaction, About::Row(read.key));
        if journals.known.get(&(reader, read.key)).is_some_and(|known| *known != read.value) {
            self.contradict(reader, &Operation::Row(read.key, read.value));
        }
        let generation = self.history.transactions[reader as usize].generation;
        let of_row = journals.changes.get(&generation).and_then(|rows| rows.get(&read.key));
        let changes = of_row.map_or(&[][..], |of_row| &of_row.changes);
        // A state is the number of changes that have led to it.
        let (earliest, latest) = match read.value {
            Some(number) => {
                let written = self.facts.row_writes.get(&number).copied();
                let written = written.filter(|written| written.key == read.key && written.present);
                if self.check_write(read, about, written).is_none() {
                    return;
                }
                // The journal that lacks a committed change is told of with the lists.
                let Some(place) = journals.places.get(&(generation, number)) else { return };
                (place + 1, place + 1)
            }
            None => self.absent_states(reader, changes),
        };
        if let Some(before) = earliest.checked_sub(1).map(|at| changes[at].writer).filter(|&at| at != reader)
        {
            self.read_from(before, reader, about);
        }
        if let Some(after) = changes.get(latest).map(|change| change.writer).filter(|&at| at != reader) {
            let why = if changes[latest].present { why } else { Why::ReadWrite };
            self.missed(reader, after, why, about);
        }
    }

    /// The earliest and the latest state without the row that a transaction may have seen.
    fn absent_states(&self, reader: u32, changes: &[Change]) -> (usize, usize) {
        let history = &self.history.transactions;
        let (from, to) = reading_time(&history[reader as usize]);
        let writer = |change: &Change| &history[change.writer as usize];
        // What has a name may be older than the crash before, but how old it is, it says.
        let named = match history[reader as usize].level {
            Level::Named(version) => Some(version),
            _ => None,
        };
        let ended_before = |change: &Change| match named {
            Some(named) => writer(change).version().is_some_and(|version| version <= named),
            None => {
                writer(change).times.completed < from
                    || writer(change).generation < history[reader as usize].generation
            }
        };
        let lowest = changes.iter().rposition(ended_before).map_or(0, |at| at + 1);
        let begins_after = |change: &Change| {
            let is_newer =
                named.zip(writer(change).version()).is_some_and(|(named, version)| version > named);
            is_newer || writer(change).times.invoked > to
        };
        let highest = changes.iter().position(begins_after).unwrap_or(changes.len());
        let is_absent = |state: &usize| state.checked_sub(1).is_none_or(|last| !changes[last].present);
        let mut states = (lowest..=highest.max(lowest)).filter(is_absent);
        match states.next() {
            Some(first) => (first, states.next_back().unwrap_or(first)),
            // It cannot have been absent then, so the nearest time when it was will show as a cycle.
            None => {
                let nearest = (0..lowest).rev().find(is_absent).unwrap_or(0);
                (nearest, nearest)
            }
        }
    }
}

/// When a transaction may have read.
fn reading_time(transaction: &Transaction) -> (u64, u64) {
    let times = transaction.times;
    match transaction.level {
        Level::Serializable => (times.invoked, times.completed),
        Level::Snapshot | Level::AsOf(_) => (times.invoked, times.began),
        Level::Durable(_) | Level::Named(_) => (0, times.began),
    }
}
