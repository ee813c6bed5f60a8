//! What transactions consist of: reads and writes of lists, registers and rows, each recorded.

use std::time::Duration;

use kiln::{Kiln, Map, Snapshot, Table, Transaction};

use super::history::{GARBAGE, Key, Number, Operation, journal_of};
use super::recorder::{Attempt, Recorder, Shared};
use super::values::{decode, decode_key, decode_list, encode, encode_key, encode_list};
use crate::support::Random;

/// The objects, each kind of key in two of them where that is possible.
#[derive(Debug)]
pub(crate) struct Objects {
    pub(crate) map: Map,
    pub(crate) table: Table,
    pub(crate) registers: Map,
    pub(crate) ordered_registers: Table,
    pub(crate) rows: Table,
}

impl Objects {
    pub(crate) fn open(db: &Kiln) -> kiln::Result<Objects> {
        Ok(Objects {
            map: db.map("lists")?,
            table: db.table("ordered lists")?,
            registers: db.map("registers")?,
            ordered_registers: db.table("ordered registers")?,
            rows: db.table("rows")?,
        })
    }
}

/// Calls a method with the object where a key lives.
macro_rules! at_key {
    ($key:expr, $map:expr, $table:expr, $object:ident => $call:expr) => {
        match $key % 2 {
            0 => {
                let $object = $map;
                $call
            }
            _ => {
                let $object = $table;
                $call
            }
        }
    };
}

pub(crate) use at_key;

/// A way along the rows of a range.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Way {
    pub(crate) first: Key,
    pub(crate) last: Key,
    pub(crate) reverse: bool,
    pub(crate) limit: usize,
}

/// What transactions and snapshots have in common.
pub(crate) trait View {
    fn list(&self, objects: &Objects, key: Key) -> kiln::Result<Option<Vec<u8>>>;
    fn register(&self, objects: &Objects, key: Key) -> kiln::Result<Option<Vec<u8>>>;
    fn row(&self, objects: &Objects, key: Key) -> kiln::Result<Option<Vec<u8>>>;
    fn range(&self, objects: &Objects, way: Way) -> kiln::Result<Vec<(Vec<u8>, Vec<u8>)>>;
}

macro_rules! view {
    ($view:ty) => {
        impl View for $view {
            fn list(&self, objects: &Objects, key: Key) -> kiln::Result<Option<Vec<u8>>> {
                at_key!(key, &objects.map, &objects.table, object => self.get(object, encode_key(key)))
            }

            fn register(&self, objects: &Objects, key: Key) -> kiln::Result<Option<Vec<u8>>> {
                at_key!(key, &objects.registers, &objects.ordered_registers, object => self.get(object, encode_key(key)))
            }

            fn row(&self, objects: &Objects, key: Key) -> kiln::Result<Option<Vec<u8>>> {
                self.get(&objects.rows, encode_key(key))
            }

            fn range(&self, objects: &Objects, way: Way) -> kiln::Result<Vec<(Vec<u8>, Vec<u8>)>> {
                let rows = <$view>::range(self, &objects.rows, encode_key(way.first)..=encode_key(way.last));
                let rows = if way.reverse { rows.reverse() } else { rows };
                rows.limit(way.limit).collect()
            }
        }
    };
}
view!(Transaction<'_>);
view!(Snapshot<'_>);

/// Reads, and records what it reads.
fn read_list(view: &impl View, objects: &Objects, key: Key, into: &mut Attempt) -> kiln::Result<Vec<Number>> {
    let numbers = decode_list(view.list(objects, key)?.as_deref());
    into.operations.push(Operation::List(key, numbers.clone()));
    Ok(numbers)
}

pub(crate) fn read_register(
    view: &impl View,
    objects: &Objects,
    key: Key,
    into: &mut Attempt,
) -> kiln::Result<()> {
    let value = decode(key, view.register(objects, key)?.as_deref());
    into.operations.push(Operation::Read(key, value));
    Ok(())
}

fn read_row(
    view: &impl View,
    objects: &Objects,
    key: Key,
    into: &mut Attempt,
) -> kiln::Result<Option<Number>> {
    let value = decode(key, view.row(objects, key)?.as_deref());
    into.operations.push(Operation::Row(key, value));
    Ok(value)
}

pub(crate) fn read_range(
    view: &impl View,
    objects: &Objects,
    way: Way,
    into: &mut Attempt,
) -> kiln::Result<()> {
    let rows = view.range(objects, way)?;
    let mut rows: Vec<(Key, Number)> = rows
        .iter()
        .map(|(key, value)| (decode_key(key), value))
        .map(|(key, value)| (key, decode(key, Some(value)).unwrap_or(GARBAGE)))
        .collect();
    let (mut first, mut last) = (way.first, way.last);
    // Where it ended early nothing is known of the rest.
    if rows.len() == way.limit
        && let Some(&(end, _)) = rows.last()
    {
        *(if way.reverse { &mut first } else { &mut last }) = end;
    }
    if way.reverse {
        rows.reverse();
    }
    into.operations.push(Operation::Range(first, last, rows));
    Ok(())
}

/// What one step of a transaction is to do.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Step {
    List(Key),
    Append(Key),
    Register(Key),
    Overwrite(Key),
    Update(Key),
    Row(Key),
    /// Inserts, deletes or overwrites, whatever can be done and as the number wants.
    Change(Key, u64),
    Range(Way),
    Pause,
}

pub(crate) fn reading_step(shared: &Shared, random: &mut Random) -> Step {
    match random.below(10) {
        0..=2 => Step::List(shared.list(random)),
        3..=4 => Step::Register(shared.register(random)),
        5 => Step::Row(shared.row(random)),
        6..=8 => {
            let (first, last) = shared.rows_around(random);
            let limit = if random.one_in(3) { 1 + random.below(3) } else { usize::MAX };
            Step::Range(Way { first, last, reverse: random.one_in(3), limit })
        }
        _ => Step::Pause,
    }
}

pub(crate) fn step(shared: &Shared, random: &mut Random) -> Step {
    match random.below(10) {
        0..=1 => Step::Append(shared.list(random)),
        2 => Step::Overwrite(shared.register(random)),
        3 => Step::Update(shared.register(random)),
        4..=5 => Step::Change(shared.row(random), random.next()),
        _ => reading_step(shared, random),
    }
}

/// Gives others a chance to get in between.
pub(crate) fn pause(random: &mut Random) {
    match random.below(8) {
        0 => std::thread::sleep(Duration::from_micros(random.below(100) as u64)),
        1..=4 => std::thread::yield_now(),
        _ => (0..random.below(2_000)).for_each(|_| std::hint::spin_loop()),
    }
}

/// A step that only reads.
pub(crate) fn read_step(
    view: &impl View,
    objects: &Objects,
    step: Step,
    random: &mut Random,
    attempt: &mut Attempt,
) -> kiln::Result<()> {
    match step {
        Step::List(key) | Step::Append(key) => read_list(view, objects, key, attempt).map(drop),
        Step::Register(key) | Step::Overwrite(key) | Step::Update(key) => {
            read_register(view, objects, key, attempt)
        }
        Step::Row(key) | Step::Change(key, _) => read_row(view, objects, key, attempt).map(drop),
        Step::Range(way) => read_range(view, objects, way, attempt),
        Step::Pause => {
            pause(random);
            Ok(())
        }
    }
}

/// Carries out the steps of a transaction, and records them.
pub(crate) fn carry_out(
    tx: &Transaction<'_>,
    objects: &Objects,
    steps: &[Step],
    recorder: &mut Recorder<'_>,
    random: &mut Random,
    attempt: &mut Attempt,
) -> kiln::Result<()> {
    for &step in steps {
        match step {
            Step::Append(key) => append(tx, objects, key, recorder, attempt).map(drop)?,
            Step::Overwrite(key) => overwrite(tx, objects, key, recorder, attempt)?,
            Step::Update(key) => {
                read_register(tx, objects, key, attempt)?;
                overwrite(tx, objects, key, recorder, attempt)?;
            }
            Step::Change(row, wish) => change_row(tx, objects, (row, wish), recorder, attempt)?,
            step => read_step(tx, objects, step, random, attempt)?,
        }
    }
    Ok(())
}

/// Appends a number to a list; gives the number, and the new length.
fn append(
    tx: &Transaction<'_>,
    objects: &Objects,
    key: Key,
    recorder: &mut Recorder<'_>,
    attempt: &mut Attempt,
) -> kiln::Result<(Number, usize)> {
    let mut numbers = read_list(tx, objects, key, attempt)?;
    let number = recorder.number();
    numbers.push(number);
    let value = encode_list(&numbers);
    at_key!(key, &objects.map, &objects.table, object => tx.put(object, encode_key(key), value))?;
    attempt.operations.push(Operation::Append(key, number));
    recorder.shared.note_length(key, numbers.len());
    Ok((number, numbers.len()))
}

fn overwrite(
    tx: &Transaction<'_>,
    objects: &Objects,
    key: Key,
    recorder: &mut Recorder<'_>,
    attempt: &mut Attempt,
) -> kiln::Result<()> {
    let number = recorder.number();
    let (name, value) = (encode_key(key), encode(key, number));
    at_key!(key, &objects.registers, &objects.ordered_registers, object => tx.put(object, name, value))?;
    attempt.operations.push(Operation::Write(key, number));
    Ok(())
}

fn change_row(
    tx: &Transaction<'_>,
    objects: &Objects,
    (row, wish): (Key, u64),
    recorder: &mut Recorder<'_>,
    attempt: &mut Attempt,
) -> kiln::Result<()> {
    let is_there = match wish % 2 {
        0 => read_row(tx, objects, row, attempt)?.is_some(),
        // Looked at by nobody, so that only the index and the journal can find a conflict.
        _ => false,
    };
    let (number, changes) = append(tx, objects, journal_of(row), recorder, attempt)?;
    if is_there && !wish.is_multiple_of(3) {
        tx.delete(&objects.rows, encode_key(row))?;
        attempt.operations.push(Operation::Delete(row, number));
        recorder.shared.note_deletion(row, changes);
    } else {
        tx.put(&objects.rows, encode_key(row), encode(row, number))?;
        attempt.operations.push(Operation::Put(row, number));
    }
    Ok(())
}
