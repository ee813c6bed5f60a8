//! Recording: the history's clock, the keys in use, and what one thread does.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use super::history::{Key, Level, Number, Operation, Outcome, Times, Transaction};
use crate::support::Random;

/// Numbers of one process.
const NUMBERS_BITS: u32 = 26;
/// A list of this length gets no more appends: long ones take long to read, and to check.
pub(crate) const LENGTH_MAX: usize = 40;
/// Tallies to which is added in batches, which give no sums.
const UNANSWERED: Key = 4;
/// Rows in one slot of the table, one after the other.
const ROWS_BITS: u32 = 12;

/// What all threads of a run share.
#[derive(Debug)]
pub(crate) struct Shared {
    clock: AtomicU64,
    /// Transactions recorded so far.
    pub(crate) recorded: AtomicU64,
    /// Everybody is to come to an end.
    pub(crate) stop: AtomicBool,
    /// The lists in use. The lower a key, the more often it is taken.
    lists: Vec<AtomicU32>,
    next_list: AtomicU32,
    /// The rows in use.
    rows: Vec<AtomicU32>,
    /// A row that is deleted after so many changes is replaced by another.
    changes_max: usize,
    /// How many objects have come and gone.
    passed: AtomicU32,
    pub(crate) registers: Key,
}

impl Shared {
    /// `keys` of each kind are in use at a time: the fewer there are, the more conflicts. Of rows that are replaced after
    /// few changes most are new to the index when they are put.
    pub(crate) fn new(keys: u32, changes_max: usize) -> Shared {
        Shared {
            clock: AtomicU64::new(1),
            recorded: AtomicU64::new(0),
            stop: AtomicBool::new(false),
            lists: (0..keys).map(AtomicU32::new).collect(),
            next_list: AtomicU32::new(keys),
            rows: (0..keys).map(|slot| AtomicU32::new(slot << ROWS_BITS)).collect(),
            changes_max,
            passed: AtomicU32::new(0),
            registers: keys,
        }
    }

    /// The next moment.
    pub(crate) fn now(&self) -> u64 {
        self.clock.fetch_add(1, Ordering::SeqCst)
    }

    pub(crate) fn is_over(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    pub(crate) fn list(&self, random: &mut Random) -> Key {
        self.lists[skewed(random, self.lists.len())].load(Ordering::Relaxed)
    }

    pub(crate) fn register(&self, random: &mut Random) -> Key {
        skewed(random, self.registers as usize) as Key
    }

    /// A tally to which is added with an answer.
    pub(crate) fn tally(&self, random: &mut Random) -> Key {
        self.register(random)
    }

    /// A tally to which is added in batches.
    pub(crate) fn unanswered_tally(&self, random: &mut Random) -> Key {
        self.registers + random.below(UNANSWERED as usize) as Key
    }

    pub(crate) fn row(&self, random: &mut Random) -> Key {
        self.rows[skewed(random, self.rows.len())].load(Ordering::Relaxed)
    }

    /// First and last row of a range over a few slots.
    pub(crate) fn rows_around(&self, random: &mut Random) -> (Key, Key) {
        let slot = skewed(random, self.rows.len()) as Key;
        let slots = 1 + random.below(4) as Key;
        (slot << ROWS_BITS, ((slot + slots) << ROWS_BITS) - 1)
    }

    /// Takes another list instead of one that has become long.
    pub(crate) fn note_length(&self, list: Key, length: usize) {
        if length >= LENGTH_MAX
            && let Some(slot) = self.lists.iter().find(|slot| slot.load(Ordering::Relaxed) == list)
        {
            let next = self.next_list.fetch_add(1, Ordering::Relaxed);
            let _ = slot.compare_exchange(list, next, Ordering::Relaxed, Ordering::Relaxed);
        }
    }

    /// Takes another row instead of one that is deleted and has a long journal.
    pub(crate) fn note_deletion(&self, row: Key, changes: usize) {
        if changes >= self.changes_max && row % (1 << ROWS_BITS) + 1 < 1 << ROWS_BITS {
            let slot = &self.rows[(row >> ROWS_BITS) as usize];
            let _ = slot.compare_exchange(row, row + 1, Ordering::Relaxed, Ordering::Relaxed);
        }
    }

    /// Every list that was ever in use.
    pub(crate) fn all_lists(&self) -> impl Iterator<Item = Key> {
        0..self.next_list.load(Ordering::Relaxed)
    }

    /// The number of the next object that comes and goes.
    pub(crate) fn next_passing(&self) -> u32 {
        self.passed.fetch_add(1, Ordering::Relaxed)
    }

    /// How many objects have come.
    pub(crate) fn passed(&self) -> u32 {
        self.passed.load(Ordering::Relaxed)
    }

    /// Every tally.
    pub(crate) fn all_tallies(&self) -> impl Iterator<Item = Key> {
        0..self.registers + UNANSWERED
    }

    /// Every row that was ever in use.
    pub(crate) fn all_rows(&self) -> impl Iterator<Item = Key> {
        let slots = (0..).zip(&self.rows);
        slots.flat_map(|(slot, last): (Key, _)| slot << ROWS_BITS..=last.load(Ordering::Relaxed))
    }
}

/// The first row of a row's slot.
pub(crate) fn first_of_slot(row: Key) -> Key {
    row & !((1 << ROWS_BITS) - 1)
}

/// A number below `bound`, the lower the more often.
fn skewed(random: &mut Random, bound: usize) -> usize {
    let most = 1 + random.below(bound);
    random.below(most)
}

/// A transaction that is being recorded.
#[derive(Debug)]
pub(crate) struct Attempt {
    level: Level,
    times: Times,
    pub(crate) operations: Vec<Operation>,
}

/// What one thread does.
#[derive(Debug)]
pub(crate) struct Recorder<'s> {
    pub(crate) shared: &'s Shared,
    pub(crate) process: u32,
    generation: u32,
    next_number: Number,
    pub(crate) transactions: Vec<Transaction>,
}

impl<'s> Recorder<'s> {
    /// `numbers` is how many the process has taken in earlier generations.
    pub(crate) fn new(shared: &'s Shared, process: u32, generation: u32, numbers: Number) -> Recorder<'s> {
        let next_number = (process << NUMBERS_BITS) + numbers;
        Recorder { shared, process, generation, next_number, transactions: Vec::new() }
    }

    /// A number that is written nowhere else.
    pub(crate) fn number(&mut self) -> Number {
        self.next_number += 1;
        self.next_number
    }

    /// How many numbers it has taken.
    pub(crate) fn numbers(&self) -> Number {
        self.next_number - (self.process << NUMBERS_BITS)
    }

    /// A transaction is about to begin.
    pub(crate) fn invoke(&self, level: Level) -> Attempt {
        let now = self.shared.now();
        let times = Times { invoked: now, began: now, committing: now, completed: now };
        Attempt { level, times, operations: Vec::new() }
    }

    /// It has begun.
    pub(crate) fn began(&self, attempt: &mut Attempt, level: Level) {
        attempt.level = level;
        attempt.times.began = self.shared.now();
    }

    /// It is about to commit.
    pub(crate) fn committing(&self, attempt: &mut Attempt) {
        attempt.times.committing = self.shared.now();
    }

    /// It has ended.
    pub(crate) fn end(&mut self, attempt: Attempt, outcome: Outcome) -> &mut Transaction {
        let Attempt { level, mut times, operations } = attempt;
        times.completed = self.shared.now();
        self.shared.recorded.fetch_add(1, Ordering::Relaxed);
        let at = self.transactions.len();
        self.transactions.push(Transaction {
            process: self.process,
            generation: self.generation,
            level,
            times,
            operations,
            outcome,
            durable: None,
            serial: None,
        });
        &mut self.transactions[at]
    }
}
