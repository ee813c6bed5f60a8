//! What transactions consist of: reads and writes of lists and registers, each recorded, and the steps that they take.

use std::time::Duration;

use kiln::{Kiln, Map, Snapshot, Table, Transaction};

use super::history::{Key, Number, Operation};
use super::recorder::{Attempt, Recorder, Shared};
use super::rows::{Change, RowView, Way, read_range, read_row, tell_of_row};
use super::values::{decode, decode_list, encode, encode_key, encode_list};
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

/// What transactions and snapshots have in common.
pub(crate) trait View: RowView {
    fn list(&self, objects: &Objects, key: Key) -> kiln::Result<Option<Vec<u8>>>;
    fn register(&self, objects: &Objects, key: Key) -> kiln::Result<Option<Vec<u8>>>;
    fn row(&self, objects: &Objects, key: Key) -> kiln::Result<Option<Vec<u8>>>;
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
        }
    };
}
view!(Transaction<'_>);
view!(Snapshot<'_>);

/// Reads, and records what it reads.
pub(crate) fn read_list(
    view: &impl View,
    objects: &Objects,
    key: Key,
    into: &mut Attempt,
) -> kiln::Result<Vec<Number>> {
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

/// What one step of a transaction is to do.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Step {
    List(Key),
    Append(Key),
    Register(Key),
    Overwrite(Key),
    Update(Key),
    Row(Key),
    /// Is told whether a row is there, as the number wants.
    Tell(Key, u64),
    /// Inserts, deletes or overwrites, whatever can be done and as the number wants.
    Change(Key, u64),
    /// Deletes a row and some before it at once.
    DeleteRange(Key, u64),
    Range(Way),
    Pause,
}

pub(crate) fn reading_step(shared: &Shared, random: &mut Random) -> Step {
    match random.below(11) {
        0..=2 => Step::List(shared.list(random)),
        3..=4 => Step::Register(shared.register(random)),
        5 => Step::Row(shared.row(random)),
        6 => Step::Tell(shared.row(random), random.next()),
        7..=9 => Step::Range(Way::any(shared, random)),
        _ => Step::Pause,
    }
}

pub(crate) fn step(shared: &Shared, random: &mut Random) -> Step {
    match random.below(20) {
        0..=3 => Step::Append(shared.list(random)),
        4..=5 => Step::Overwrite(shared.register(random)),
        6..=7 => Step::Update(shared.register(random)),
        8..=11 => Step::Change(shared.row(random), random.next()),
        12 => Step::DeleteRange(shared.row(random), random.next()),
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
        Step::Row(key) | Step::Change(key, _) | Step::DeleteRange(key, _) => {
            read_row(view, objects, key, attempt).map(drop)
        }
        Step::Tell(key, wish) => tell_of_row(view, objects, (key, wish), attempt),
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
            Step::Change(row, wish) => Change { tx, objects, recorder, attempt }.change(row, wish)?,
            Step::DeleteRange(row, wish) => {
                Change { tx, objects, recorder, attempt }.delete_range(row, wish)?
            }
            step => read_step(tx, objects, step, random, attempt)?,
        }
    }
    Ok(())
}

/// Appends a number to a list; gives the number, and the new length.
pub(crate) fn append(
    tx: &Transaction<'_>,
    objects: &Objects,
    key: Key,
    recorder: &mut Recorder<'_>,
    attempt: &mut Attempt,
) -> kiln::Result<(Number, usize)> {
    let number = recorder.number();
    Ok((number, append_number(tx, objects, (key, number), recorder, attempt)?))
}

/// Appends this number to a list; gives the new length.
pub(crate) fn append_number(
    tx: &Transaction<'_>,
    objects: &Objects,
    (key, number): (Key, Number),
    recorder: &mut Recorder<'_>,
    attempt: &mut Attempt,
) -> kiln::Result<usize> {
    let mut numbers = read_list(tx, objects, key, attempt)?;
    numbers.push(number);
    let value = encode_list(&numbers);
    at_key!(key, &objects.map, &objects.table, object => tx.put(object, encode_key(key), value))?;
    attempt.operations.push(Operation::Append(key, number));
    recorder.shared.note_length(key, numbers.len());
    Ok(numbers.len())
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
