//! What each transaction saw of others and did to them, without what it saw of itself.

use std::collections::{HashMap, HashSet};

use super::anomaly::{Anomalies, Kind};
use crate::isolation::history::{Crash, History, Key, Number, Operation, Outcome, Transaction};

/// The use of a list by one transaction.
#[derive(Debug)]
pub(crate) struct ListUse<'h> {
    pub(crate) transaction: u32,
    pub(crate) key: Key,
    /// What was there before its own appends, if it looked.
    pub(crate) seen: Option<&'h [Number]>,
    pub(crate) appended: Vec<Number>,
}

/// What a transaction found in a register or a row.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ValueRead {
    pub(crate) transaction: u32,
    pub(crate) key: Key,
    pub(crate) value: Option<Number>,
}

/// The use of a tally by one transaction.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TallyUse {
    pub(crate) transaction: u32,
    pub(crate) key: Key,
    /// What it was before its own additions.
    pub(crate) seen: u64,
    pub(crate) added: u64,
}

/// A read of a range of rows, those aside that the transaction itself had changed.
#[derive(Debug)]
pub(crate) struct RangeRead<'h> {
    pub(crate) transaction: u32,
    pub(crate) first: Key,
    pub(crate) last: Key,
    pub(crate) rows: &'h [(Key, Number)],
    pub(crate) own: Vec<Key>,
}

/// What a transaction was told of rows without seeing them, those aside that it itself had changed.
#[derive(Debug)]
pub(crate) enum Claim {
    /// The row is not this.
    IsNot { transaction: u32, key: Key, value: Option<Number> },
    /// So many of the rows from the first to the last are there.
    Count { transaction: u32, first: Key, last: Key, count: u64, own: Vec<Key> },
}

/// Who wrote a number.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Written {
    pub(crate) transaction: u32,
    pub(crate) key: Key,
    /// Of a row: it was put, not deleted.
    pub(crate) present: bool,
    /// It is the transaction's last write of the key.
    pub(crate) last: bool,
}

/// See the module's documentation.
#[derive(Debug, Default)]
pub(crate) struct Facts<'h> {
    pub(crate) lists: Vec<ListUse<'h>>,
    pub(crate) registers: Vec<ValueRead>,
    pub(crate) rows: Vec<ValueRead>,
    pub(crate) tallies: Vec<TallyUse>,
    /// Additions without an answer.
    pub(crate) unanswered: Vec<(u32, Key)>,
    pub(crate) ranges: Vec<RangeRead<'h>>,
    pub(crate) claims: Vec<Claim>,
    pub(crate) appends: HashMap<Number, Written>,
    pub(crate) register_writes: HashMap<Number, Written>,
    pub(crate) row_writes: HashMap<Number, Written>,
    /// Whether each transaction has committed, as far as can be told.
    pub(crate) committed: Vec<bool>,
}

impl<'h> Facts<'h> {
    pub(crate) fn of(history: &'h History, anomalies: &mut Anomalies) -> Facts<'h> {
        let mut facts = Facts { committed: committed(history), ..Facts::default() };
        let mut own = Own::default();
        for (at, transaction) in (0..).zip(&history.transactions) {
            facts.note_writes(at, transaction, anomalies);
            if let Err(operation) = own.follow(at, transaction, &mut facts) {
                anomalies.add(Kind::Internal, || {
                    format!("in one transaction, this contradicts what came before it: {operation}\n  {transaction}")
                });
            }
            own.finish(at, &mut facts);
        }
        facts
    }

    fn note_writes(&mut self, at: u32, transaction: &Transaction, anomalies: &mut Anomalies) {
        let mut last: HashMap<(u8, Key), Number> = HashMap::new();
        for operation in &transaction.operations {
            let (kind, key, number, present) = match *operation {
                Operation::Append(key, number) => (0, key, number, true),
                Operation::Write(key, number) => (1, key, number, true),
                Operation::Put(key, number) => (2, key, number, true),
                Operation::Delete(key, number) => (2, key, number, false),
                _ => continue,
            };
            let written = Written { transaction: at, key, present, last: true };
            let before = last.insert((kind, key), number);
            let writes = match kind {
                0 => &mut self.appends,
                1 => &mut self.register_writes,
                _ => &mut self.row_writes,
            };
            if let Some(before) = before.and_then(|before| writes.get_mut(&before)) {
                before.last = false;
            }
            if writes.insert(number, written).is_some() {
                anomalies.add(Kind::Garbage, || {
                    format!("the history itself writes {number} twice:\n  {transaction}")
                });
            }
        }
    }
}

/// Who has committed. A transaction whose answer never came has, if somebody saw one of its writes.
fn committed(history: &History) -> Vec<bool> {
    let unknown: HashSet<Number> = history
        .transactions
        .iter()
        .filter(|transaction| transaction.outcome == Outcome::Unknown)
        .flat_map(|transaction| transaction.operations.iter().filter_map(Operation::written))
        .collect();
    // By whomever: what was read was there. Only that it saw itself says nothing.
    let mut observed = HashSet::new();
    for transaction in history.transactions.iter().filter(|_| !unknown.is_empty()) {
        let own: Vec<Number> = match transaction.outcome {
            Outcome::Unknown => transaction.operations.iter().filter_map(Operation::written).collect(),
            Outcome::Committed(_) | Outcome::Aborted => Vec::new(),
        };
        let mut observe = |number: &Number| {
            if unknown.contains(number) && !own.contains(number) {
                observed.insert(*number);
            }
        };
        for operation in &transaction.operations {
            match operation {
                Operation::List(_, numbers) => numbers.iter().for_each(&mut observe),
                Operation::Read(_, value) | Operation::Row(_, value) | Operation::Is(_, value, true) => {
                    value.iter().for_each(&mut observe);
                }
                Operation::Range(_, _, rows) => rows.iter().for_each(|(_, number)| observe(number)),
                _ => {}
            }
        }
    }
    let is_observed =
        |operation: &Operation| operation.written().is_some_and(|number| observed.contains(&number));
    let transactions = history.transactions.iter();
    transactions
        .map(|transaction| match transaction.outcome {
            Outcome::Committed(_) => true,
            Outcome::Aborted => false,
            Outcome::Unknown => transaction.operations.iter().any(is_observed),
        })
        .collect()
}

/// What one transaction knows of a list.
#[derive(Default)]
struct OwnList<'h> {
    seen: Option<&'h [Number]>,
    appended: Vec<Number>,
}

/// What one transaction knows of a register or row: what it saw first, and what it wrote.
#[derive(Clone, Copy, Default)]
struct OwnValue {
    seen: Option<Option<Number>>,
    written: Option<Option<Number>>,
}

impl OwnValue {
    /// True if a read fits to what was read and written before.
    fn read(&mut self, value: Option<Number>) -> bool {
        match (self.written, self.seen) {
            (Some(written), _) => written == value,
            (None, Some(seen)) => seen == value,
            (None, None) => {
                self.seen = Some(value);
                true
            }
        }
    }
}

/// The rows that a range has found, and its first and last key.
type Found<'h> = (Key, Key, &'h [(Key, Number)]);

/// What one transaction knows.
#[derive(Default)]
struct Own<'h> {
    lists: HashMap<Key, OwnList<'h>>,
    registers: HashMap<Key, OwnValue>,
    rows: HashMap<Key, OwnValue>,
    /// What each tally was at first, and how often the transaction has added to it.
    tallies: HashMap<Key, (u64, u64)>,
    ranges: Vec<Found<'h>>,
}

impl<'h> Own<'h> {
    /// Follows a transaction; `Err` with the first operation that contradicts those before it.
    fn follow(
        &mut self,
        at: u32,
        transaction: &'h Transaction,
        facts: &mut Facts<'h>,
    ) -> Result<(), &'h Operation> {
        for operation in &transaction.operations {
            let fits = match operation {
                Operation::Append(key, number) => {
                    self.lists.entry(*key).or_default().appended.push(*number);
                    true
                }
                Operation::List(key, numbers) => self.read_list(*key, numbers),
                Operation::Write(key, number) => {
                    self.registers.entry(*key).or_default().written = Some(Some(*number));
                    true
                }
                Operation::Read(key, value) => self.registers.entry(*key).or_default().read(*value),
                Operation::Put(key, number) => {
                    self.rows.entry(*key).or_default().written = Some(Some(*number));
                    true
                }
                Operation::Delete(key, _) => {
                    self.rows.entry(*key).or_default().written = Some(None);
                    true
                }
                Operation::Name(..) | Operation::Unname(_) | Operation::Drop(..) => true,
                Operation::Add(key, None) => {
                    facts.unanswered.push((at, *key));
                    true
                }
                Operation::Add(key, Some(sum)) => {
                    let fits = sum.checked_sub(1).is_some_and(|before| self.read_tally(*key, before));
                    self.tallies.entry(*key).and_modify(|(_, added)| *added += 1);
                    fits
                }
                Operation::Tally(key, sum) => self.read_tally(*key, *sum),
                Operation::Row(key, value) | Operation::Is(key, value, true) => self.read_row(*key, *value),
                Operation::Is(key, value, false) => self.deny_row(at, *key, *value, facts),
                Operation::Count(first, last, count) => self.count_rows(at, (*first, *last), *count, facts),
                Operation::Range(first, last, rows) => self.read_range(at, (*first, *last), rows, facts),
            };
            if !fits {
                return Err(operation);
            }
        }
        Ok(())
    }

    fn read_list(&mut self, key: Key, numbers: &'h [Number]) -> bool {
        let list = self.lists.entry(key).or_default();
        let Some(before) = numbers.len().checked_sub(list.appended.len()) else { return false };
        let (before, own) = numbers.split_at(before);
        own == list.appended && *list.seen.get_or_insert(before) == before
    }

    fn read_tally(&mut self, key: Key, sum: u64) -> bool {
        let &mut (seen, added) = self.tallies.entry(key).or_insert((sum, 0));
        seen + added == sum
    }

    fn read_row(&mut self, key: Key, value: Option<Number>) -> bool {
        let row = self.rows.entry(key).or_default();
        let fits_ranges = row.written.is_some()
            || self
                .ranges
                .iter()
                .all(|(first, last, rows)| !(first..=last).contains(&&key) || found(rows, key) == value);
        row.read(value) && fits_ranges
    }

    fn deny_row(&mut self, transaction: u32, key: Key, value: Option<Number>, facts: &mut Facts<'h>) -> bool {
        let known = self.rows.get(&key).and_then(|row| row.written.or(row.seen));
        if known.is_none() {
            facts.claims.push(Claim::IsNot { transaction, key, value });
        }
        known.is_none_or(|known| known != value)
    }

    fn count_rows(
        &mut self,
        transaction: u32,
        (first, last): (Key, Key),
        count: u64,
        facts: &mut Facts<'h>,
    ) -> bool {
        let inside = self.rows.iter().filter(|(key, _)| (first..=last).contains(key));
        let written: Vec<(Key, bool)> =
            inside.filter_map(|(&key, row)| Some((key, row.written?.is_some()))).collect();
        let own_count = written.iter().filter(|(_, present)| *present).count() as u64;
        let Some(count) = count.checked_sub(own_count) else { return false };
        let own = written.iter().map(|(key, _)| *key).collect();
        facts.claims.push(Claim::Count { transaction, first, last, count, own });
        true
    }

    fn read_range(
        &mut self,
        at: u32,
        (first, last): (Key, Key),
        rows: &'h [(Key, Number)],
        facts: &mut Facts<'h>,
    ) -> bool {
        let mut own = Vec::new();
        for (&key, row) in self.rows.iter().filter(|(key, _)| (first..=last).contains(key)) {
            if row.written.or(row.seen).is_some_and(|known| known != found(rows, key)) {
                return false;
            }
            if row.written.is_some() {
                own.push(key);
            }
        }
        let inside = |other: &&(Key, Number), span: (Key, Key)| (span.0..=span.1).contains(&other.0);
        let fits = self.ranges.iter().all(|&(other_first, other_last, others)| {
            let span = (first.max(other_first), last.min(other_last));
            let changed =
                |row: &&(Key, Number)| self.rows.get(&row.0).is_none_or(|own| own.written.is_none());
            let here = rows.iter().filter(|row| inside(row, span)).filter(changed);
            here.eq(others.iter().filter(|row| inside(row, span)).filter(changed))
        });
        let sorted = rows.windows(2).all(|pair| pair[0].0 < pair[1].0)
            && rows.iter().all(|(key, _)| (first..=last).contains(key));
        self.ranges.push((first, last, rows));
        facts.ranges.push(RangeRead { transaction: at, first, last, rows, own });
        fits && sorted
    }

    /// Hands on what is known of others, and forgets it.
    fn finish(&mut self, transaction: u32, facts: &mut Facts<'h>) {
        let lists = self.lists.drain();
        facts.lists.extend(lists.map(|(key, list)| ListUse {
            transaction,
            key,
            seen: list.seen,
            appended: list.appended,
        }));
        let seen = |(key, own): (Key, OwnValue)| own.seen.map(|value| ValueRead { transaction, key, value });
        facts.registers.extend(self.registers.drain().filter_map(seen));
        facts.rows.extend(self.rows.drain().filter_map(seen));
        let tallies = self.tallies.drain();
        facts.tallies.extend(tallies.map(|(key, (seen, added))| TallyUse { transaction, key, seen, added }));
        self.ranges.clear();
    }
}

/// What a range says of one row.
pub(crate) fn found(rows: &[(Key, Number)], key: Key) -> Option<Number> {
    rows.binary_search_by_key(&key, |row| row.0).ok().map(|at| rows[at].1)
}

/// Whether a crash took what a transaction had committed, as far as its version tells.
pub(crate) fn is_lost(crashes: &[Crash], transaction: &Transaction) -> bool {
    let crash = crashes.get(transaction.generation as usize);
    crash.zip(transaction.version()).is_some_and(|(crash, version)| version > crash.horizon)
}
