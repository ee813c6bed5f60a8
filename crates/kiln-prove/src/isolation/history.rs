//! A history: what every transaction did, saw and was told, over all crashes.
//!
//! ```text
//!  list       a key to which numbers are appended; a read returns all of them, in order
//!  register   a key that is overwritten with numbers, blindly
//!  tally      a key to which one is added again and again, mostly with the sum for an answer
//!  row        a key of a table that comes and goes; its value is the number of the last write. Whoever inserts,
//!             overwrites or deletes a row appends the number of that write to the row's journal, which is a list
//!  range      a read of the rows between two keys
//!  claim      what an operation says of rows without showing them: whether one has this value, how many there are.
//!             Its transaction reads the journals of the rows, too
//! ```
//!
//! No number is written twice, so that a read says whose write it saw; and lists, journals too, say in which order
//! the writes came. That is Elle's idea (Kingsbury and Alvaro, VLDB 2020).

use std::io::{BufRead, BufReader, BufWriter, Write};
use std::path::Path;

use serde::{Deserialize, Serialize};

/// A number that is written once in a history.
pub(crate) type Number = u32;

/// The number of a list, register, tally or row. Rows lie in their table in this order.
pub(crate) type Key = u32;

/// What a read returns that makes no sense as a value: nobody ever writes it.
pub(crate) const GARBAGE: Number = Number::MAX;

/// The list that is the journal of a row.
pub(crate) fn journal_of(row: Key) -> Key {
    row | 1 << 31
}

/// One step of a transaction. What it reads includes what it has written itself before.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Operation {
    Append(Key, Number),
    List(Key, Vec<Number>),
    Write(Key, Number),
    Read(Key, Option<Number>),
    /// Inserts or overwrites a row; the transaction appends the number to the journal, too.
    Put(Key, Number),
    /// Deletes a row; the number stands in the journal only.
    Delete(Key, Number),
    Row(Key, Option<Number>),
    /// Whether a row has this number, or is absent, as somebody was told who did not see its value.
    Is(Key, Option<Number>, bool),
    /// How many rows there are from the first key to the last, both included.
    Count(Key, Key, u64),
    /// Adds one to a tally; with the sum, if it was answered.
    Add(Key, Option<u64>),
    /// What a tally is.
    Tally(Key, u64),
    /// Gives the state that the transaction reads a name, as a snapshot of this version, if it was answered.
    Name(Key, Option<u64>),
    /// Drops the object that has the rows from the first key to the last.
    Drop(Key, Key),
    /// Drops the snapshot that has this name.
    Unname(Key),
    /// All rows from the first key to the last, both included.
    Range(Key, Key, Vec<(Key, Number)>),
}

/// What a transaction may see.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Level {
    /// Strictly serializable.
    Serializable,
    /// Snapshot isolation: reads as of its beginning; the first of two writers wins.
    Snapshot,
    /// Only reads, as of this version, which covers everything committed before.
    AsOf(u64),
    /// Only reads, as of this version, which may be an old one.
    Durable(u64),
    /// Only reads, as of this version, which may be one from before a crash.
    Named(u64),
}

/// How a transaction ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Outcome {
    /// With the version that it was told, if it was.
    Committed(Option<u64>),
    Aborted,
    /// The answer never came.
    Unknown,
}

/// Moments of the history's one clock, each its own. The reads of a snapshot happen between `invoked` and `began`, the
/// writes of its transaction between `committing` and `completed`; those of all others between `invoked` and `completed`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Times {
    pub(crate) invoked: u64,
    pub(crate) began: u64,
    pub(crate) committing: u64,
    pub(crate) completed: u64,
}

/// A transaction, or an attempt at one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Transaction {
    /// The thread, or connection, that ran it.
    pub(crate) process: u32,
    /// The number of crashes before it.
    pub(crate) generation: u32,
    pub(crate) level: Level,
    pub(crate) times: Times,
    pub(crate) operations: Vec<Operation>,
    pub(crate) outcome: Outcome,
    /// When it was said to be durable, with all that it depends on.
    pub(crate) durable: Option<u64>,
    /// Its serial number in the session of its process.
    pub(crate) serial: Option<u64>,
}

/// A power loss, and what recovery then said.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Crash {
    /// The version up to which everything is said to be there.
    pub(crate) horizon: u64,
    /// The highest version that had been called durable.
    pub(crate) told: u64,
    /// Of each process with a session, the serial number recovered.
    pub(crate) serials: Vec<(u32, u64)>,
    /// The names of snapshots that were found, and their versions.
    #[serde(default)]
    pub(crate) names: Vec<(Key, u64)>,
}

/// See the module's documentation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct History {
    pub(crate) transactions: Vec<Transaction>,
    /// Crash `g` is between generations `g` and `g + 1`.
    pub(crate) crashes: Vec<Crash>,
}

/// A line of a saved history.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Line {
    Crash(Crash),
    Transaction(Transaction),
}

impl History {
    /// Saves it as lines of JSON.
    pub(crate) fn save(&self, path: &Path) -> std::io::Result<()> {
        let mut file = BufWriter::new(std::fs::File::create(path)?);
        let crashes = self.crashes.iter().cloned().map(Line::Crash);
        for line in crashes.chain(self.transactions.iter().cloned().map(Line::Transaction)) {
            serde_json::to_writer(&mut file, &line)?;
            file.write_all(b"\n")?;
        }
        file.flush()
    }

    /// Loads what [`Self::save`] has written.
    pub(crate) fn load(path: &Path) -> std::io::Result<History> {
        let mut history = History::default();
        for line in BufReader::new(std::fs::File::open(path)?).lines() {
            match serde_json::from_str(&line?)? {
                Line::Crash(crash) => history.crashes.push(crash),
                Line::Transaction(transaction) => history.transactions.push(transaction),
            }
        }
        Ok(history)
    }

    /// The newest version in which something was written after so many crashes, of those that were told.
    pub(crate) fn newest_written(&self, generation: u32) -> u64 {
        let own = self.transactions.iter().filter(|transaction| transaction.generation == generation);
        own.filter(|transaction| transaction.writes()).filter_map(Transaction::version).max().unwrap_or(0)
    }
}

impl Transaction {
    pub(crate) fn is_aborted(&self) -> bool {
        self.outcome == Outcome::Aborted
    }

    /// The version that it committed into; of one that only read, the newest that it saw.
    pub(crate) fn version(&self) -> Option<u64> {
        match self.outcome {
            Outcome::Committed(version) => version,
            _ => None,
        }
    }

    pub(crate) fn writes(&self) -> bool {
        self.operations.iter().any(Operation::writes)
    }

    /// It reads a state that others may have gone on from long before.
    pub(crate) fn reads_old_state(&self) -> bool {
        matches!(self.level, Level::Durable(_) | Level::Named(_))
    }

    /// Its reads happen at another moment than its writes.
    pub(crate) fn is_split(&self) -> bool {
        self.level == Level::Snapshot && !self.is_aborted() && self.writes()
    }
}

impl Operation {
    /// The number written.
    pub(crate) fn written(&self) -> Option<Number> {
        match self {
            Operation::Append(_, number)
            | Operation::Write(_, number)
            | Operation::Put(_, number)
            | Operation::Delete(_, number) => Some(*number),
            _ => None,
        }
    }

    pub(crate) fn writes(&self) -> bool {
        self.written().is_some() || matches!(self, Operation::Add(..) | Operation::Drop(..))
    }
}

/// The name of a list, in messages.
pub(crate) fn list_name(key: Key) -> String {
    match key >> 31 {
        0 => format!("list {key}"),
        _ => format!("journal of row {}", key & !(1 << 31)),
    }
}

impl std::fmt::Display for Operation {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        /// Of long lists the end is what matters.
        const SHOWN: usize = 6;
        let shown = |numbers: &[Number]| {
            let skipped = numbers.len().saturating_sub(SHOWN);
            let dots = if skipped > 0 { format!("({skipped} before) ") } else { String::new() };
            let last: Vec<_> = numbers[skipped..].iter().map(Number::to_string).collect();
            format!("[{dots}{}]", last.join(" "))
        };
        let value = |value: &Option<Number>| value.map_or("nothing".to_owned(), |number| number.to_string());
        match self {
            Operation::Append(key, number) => write!(out, "append {number} to {}", list_name(*key)),
            Operation::List(key, numbers) => write!(out, "{} is {}", list_name(*key), shown(numbers)),
            Operation::Write(key, number) => write!(out, "write {number} to register {key}"),
            Operation::Read(key, read) => write!(out, "register {key} is {}", value(read)),
            Operation::Put(key, number) => write!(out, "put {number} into row {key}"),
            Operation::Delete(key, number) => write!(out, "delete row {key} as {number}"),
            Operation::Row(key, read) => write!(out, "row {key} is {}", value(read)),
            Operation::Is(key, read, true) => write!(out, "row {key} is told to be {}", value(read)),
            Operation::Is(key, read, false) => write!(out, "row {key} is told not to be {}", value(read)),
            Operation::Count(first, last, count) => {
                write!(out, "rows {first} to {last} are told to be {count}")
            }
            Operation::Add(key, Some(sum)) => write!(out, "add to tally {key}, which is {sum} then"),
            Operation::Add(key, None) => write!(out, "add to tally {key}"),
            Operation::Tally(key, sum) => write!(out, "tally {key} is {sum}"),
            Operation::Name(name, Some(version)) => write!(out, "give version {version} the name {name}"),
            Operation::Name(name, None) => write!(out, "give the state the name {name}"),
            Operation::Drop(first, last) => write!(out, "drop the object of rows {first} to {last}"),
            Operation::Unname(name) => write!(out, "drop the name {name}"),
            Operation::Range(first, last, rows) => {
                let rows: Vec<_> = rows.iter().map(|(key, number)| format!("{key}: {number}")).collect();
                write!(out, "rows {first} to {last} are [{}]", rows.join(", "))
            }
        }
    }
}

impl std::fmt::Display for Transaction {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Times { invoked, completed, .. } = self.times;
        let level = match self.level {
            Level::Serializable => "serializable".to_owned(),
            Level::Snapshot => "snapshot isolation".to_owned(),
            Level::AsOf(version) => format!("snapshot at version {version}"),
            Level::Named(version) => format!("named snapshot at version {version}"),
            Level::Durable(version) => format!("durable snapshot at version {version}"),
        };
        let outcome = match self.outcome {
            Outcome::Committed(Some(version)) => format!("committed at version {version}"),
            Outcome::Committed(None) => "committed".to_owned(),
            Outcome::Aborted => "aborted".to_owned(),
            Outcome::Unknown => "of unknown outcome".to_owned(),
        };
        let durable =
            self.durable.map_or(String::new(), |moment| format!(", known to be durable at {moment}"));
        let serial = self.serial.map_or(String::new(), |serial| format!(", serial {serial}"));
        write!(
            out,
            "process {}, {level}, {outcome}{durable}{serial}, from {invoked} to {completed}",
            self.process
        )?;
        if self.generation > 0 {
            write!(out, ", after {} crashes", self.generation)?;
        }
        self.operations.iter().try_for_each(|operation| write!(out, "\n      {operation}"))
    }
}
