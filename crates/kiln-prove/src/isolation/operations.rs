//! What transactions consist of: reads and writes of lists and registers, each recorded, and the steps that they take.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use kiln::{Expiry, Kiln, Map, Snapshot, Table, Transaction};

use super::history::{GARBAGE, Key, Number, Operation};
use super::passing::{self, Passing, PassingView, change_passing, read_passing};
use super::recorder::{Attempt, Recorder, Shared};
use super::rows::{Change, RowView, Way, read_range, read_row, tell_of_row};
use super::values::{decode, decode_list, decode_tally, encode, encode_key, encode_list};
use crate::support::Random;

/// Nothing expires while the load runs.
pub(crate) const FOR_LONG: Expiry = Expiry::In(Duration::from_secs(1 << 20));

/// The objects, each kind of key in two of them where that is possible.
#[derive(Debug)]
pub(crate) struct Objects {
    pub(crate) map: Map,
    pub(crate) table: Table,
    pub(crate) registers: Map,
    pub(crate) ordered_registers: Table,
    pub(crate) tallies: Map,
    pub(crate) ordered_tallies: Table,
    pub(crate) rows: Table,
    /// The one that comes and goes.
    passing: Mutex<Option<Passing>>,
}

impl Objects {
    pub(crate) fn open(db: &Kiln) -> kiln::Result<Objects> {
        let objects = Objects {
            map: db.map("lists")?,
            table: db.table("ordered lists")?,
            registers: db.map("registers")?,
            ordered_registers: db.table("ordered registers")?,
            tallies: db.map("tallies")?,
            ordered_tallies: db.table("ordered tallies")?,
            rows: db.table("rows")?,
            passing: Mutex::new(None),
        };
        objects.set_passing(passing::find(db, &objects)?);
        Ok(objects)
    }

    pub(crate) fn passing(&self) -> Option<Passing> {
        self.passing.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn set_passing(&self, passing: Option<Passing>) {
        *self.passing.lock().unwrap_or_else(PoisonError::into_inner) = passing;
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
pub(crate) trait View: RowView + PassingView {
    fn list(&self, objects: &Objects, key: Key) -> kiln::Result<Option<Vec<u8>>>;
    fn register(&self, objects: &Objects, key: Key) -> kiln::Result<Option<Vec<u8>>>;
    fn tally(&self, objects: &Objects, key: Key) -> kiln::Result<Option<Vec<u8>>>;
    fn row(&self, objects: &Objects, key: Key) -> kiln::Result<Option<Vec<u8>>>;
    /// Several lists of one object.
    fn lists(&self, objects: &Objects, keys: [Key; 2]) -> kiln::Result<Vec<Option<Vec<u8>>>>;
}

macro_rules! view {
    ($view:ty, $several:ident) => {
        impl View for $view {
            fn list(&self, objects: &Objects, key: Key) -> kiln::Result<Option<Vec<u8>>> {
                at_key!(key, &objects.map, &objects.table, object => self.get(object, encode_key(key)))
            }

            fn register(&self, objects: &Objects, key: Key) -> kiln::Result<Option<Vec<u8>>> {
                at_key!(key, &objects.registers, &objects.ordered_registers, object => self.get(object, encode_key(key)))
            }

            fn tally(&self, objects: &Objects, key: Key) -> kiln::Result<Option<Vec<u8>>> {
                at_key!(key, &objects.tallies, &objects.ordered_tallies, object => self.get(object, encode_key(key)))
            }

            fn lists(&self, objects: &Objects, keys: [Key; 2]) -> kiln::Result<Vec<Option<Vec<u8>>>> {
                let names = keys.map(encode_key);
                at_key!(keys[0], &objects.map, &objects.table, object => $several!(self, object, &names))
            }

            fn row(&self, objects: &Objects, key: Key) -> kiln::Result<Option<Vec<u8>>> {
                self.get(&objects.rows, encode_key(key))
            }
        }
    };
}
macro_rules! at_once {
    ($view:expr, $object:expr, $names:expr) => {
        $view.multi_get($object, $names)
    };
}
macro_rules! one_by_one {
    ($view:expr, $object:expr, $names:expr) => {
        $names.iter().map(|name| $view.get($object, name)).collect()
    };
}
view!(Transaction<'_>, at_once);
view!(Snapshot<'_>, one_by_one);

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

fn read_lists(view: &impl View, objects: &Objects, keys: [Key; 2], into: &mut Attempt) -> kiln::Result<()> {
    let values = view.lists(objects, keys)?;
    let lists = keys.iter().zip(values);
    into.operations.extend(lists.map(|(&key, list)| Operation::List(key, decode_list(list.as_deref()))));
    Ok(())
}

pub(crate) fn read_tally(
    view: &impl View,
    objects: &Objects,
    key: Key,
    into: &mut Attempt,
) -> kiln::Result<()> {
    let sum = decode_tally(view.tally(objects, key)?.as_deref());
    into.operations.push(Operation::Tally(key, sum));
    Ok(())
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
    Lists([Key; 2]),
    Append(Key),
    Register(Key),
    Overwrite(Key),
    Update(Key),
    Tally(Key),
    Add(Key),
    Row(Key),
    /// Is told whether a row is there, as the number wants.
    Tell(Key, u64),
    /// Inserts, deletes or overwrites, whatever can be done and as the number wants.
    Change(Key, u64),
    /// Deletes a row and some before it at once.
    DeleteRange(Key, u64),
    Range(Way),
    /// Reads the object that comes and goes.
    Passing(u64),
    ChangePassing(u64),
    Pause,
}

pub(crate) fn reading_step(shared: &Shared, random: &mut Random) -> Step {
    match random.below(13) {
        0..=1 => Step::List(shared.list(random)),
        2 => {
            let [first, second] = [shared.list(random), shared.list(random)];
            Step::Lists([first, if first % 2 == second % 2 { second } else { first }])
        }
        3..=4 => Step::Register(shared.register(random)),
        5 => Step::Tally(shared.tally(random)),
        6 => Step::Row(shared.row(random)),
        7 => Step::Tell(shared.row(random), random.next()),
        8..=10 => Step::Range(Way::any(shared, random)),
        11 => Step::Passing(random.next()),
        _ => Step::Pause,
    }
}

pub(crate) fn step(shared: &Shared, random: &mut Random) -> Step {
    match random.below(20) {
        0..=3 => Step::Append(shared.list(random)),
        4..=5 => Step::Overwrite(shared.register(random)),
        6 => Step::Update(shared.register(random)),
        7 => Step::Add(shared.tally(random)),
        8..=11 => Step::Change(shared.row(random), random.next()),
        12 => Step::DeleteRange(shared.row(random), random.next()),
        13 => Step::ChangePassing(random.next()),
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
        Step::Lists(keys) => read_lists(view, objects, keys, attempt),
        Step::Tally(key) | Step::Add(key) => read_tally(view, objects, key, attempt),
        Step::Row(key) | Step::Change(key, _) | Step::DeleteRange(key, _) => {
            read_row(view, objects, key, attempt).map(drop)
        }
        Step::Tell(key, wish) => tell_of_row(view, objects, (key, wish), attempt),
        Step::Range(way) => read_range(view, objects, way, attempt),
        Step::Passing(wish) | Step::ChangePassing(wish) => read_passing(view, objects, wish, attempt),
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
                read_until(tx, objects, key, attempt)?;
                overwrite(tx, objects, key, recorder, attempt)?;
            }
            Step::Add(key) => {
                let name = encode_key(key);
                let sum = at_key!(key, &objects.tallies, &objects.ordered_tallies, object => tx.add(object, name, 1))?;
                attempt.operations.push(Operation::Add(key, Some(sum as u64)));
            }
            Step::ChangePassing(wish) => change_passing(tx, objects, wish, recorder, attempt)?,
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

/// Appends this number to a list, in one of all ways; gives the new length.
pub(crate) fn append_number(
    tx: &Transaction<'_>,
    objects: &Objects,
    (key, number): (Key, Number),
    recorder: &mut Recorder<'_>,
    attempt: &mut Attempt,
) -> kiln::Result<usize> {
    let (name, mut numbers) = (encode_key(key), Vec::new());
    let mut longer = |old: Option<&[u8]>| {
        numbers = decode_list(old);
        encode_list(&[&numbers[..], &[number]].concat())
    };
    match number % 4 {
        0 => {
            at_key!(key, &objects.map, &objects.table, object => tx.update(object, name, |old| Some(longer(old))))?;
        }
        1 => at_key!(key, &objects.map, &objects.table, object => tx.update_into(object, name, |old, new| {
            new.extend_from_slice(&longer(old));
            true
        }))?,
        2 => {
            let old = tx.list(objects, key)?;
            let (old, new) = (old.as_deref(), longer(old.as_deref()));
            let same = at_key!(key, &objects.map, &objects.table, object => tx.compare_and_set(object, name, old, Some(&new)))?;
            if !same {
                numbers.push(GARBAGE);
            }
        }
        _ => {
            let new = longer(tx.list(objects, key)?.as_deref());
            at_key!(key, &objects.map, &objects.table, object => tx.put(object, name, new))?;
        }
    }
    let length = numbers.len() + 1;
    attempt.operations.push(Operation::List(key, numbers));
    attempt.operations.push(Operation::Append(key, number));
    recorder.shared.note_length(key, length);
    Ok(length)
}

/// Reads a register, and until when it is there.
fn read_until(tx: &Transaction<'_>, objects: &Objects, key: Key, attempt: &mut Attempt) -> kiln::Result<()> {
    let mut value = Vec::new();
    let until = at_key!(key, &objects.registers, &objects.ordered_registers, object => {
        tx.get_with_expiry(object, encode_key(key), &mut value)
    })?;
    let number = until.and_then(|_| decode(key, Some(&value)));
    attempt.operations.push(Operation::Read(key, number));
    Ok(())
}

/// Overwrites a register, which may be there for ever or for a long time.
fn overwrite(
    tx: &Transaction<'_>,
    objects: &Objects,
    key: Key,
    recorder: &mut Recorder<'_>,
    attempt: &mut Attempt,
) -> kiln::Result<()> {
    let number = recorder.number();
    let (name, value) = (encode_key(key), encode(key, number));
    at_key!(key, &objects.registers, &objects.ordered_registers, object => match number % 4 {
        0 => tx.put_expiring(object, name, value, FOR_LONG),
        1 => tx.put(object, name, value).and_then(|()| tx.set_expiry(object, name, FOR_LONG).map(drop)),
        _ => tx.put(object, name, value),
    })?;
    attempt.operations.push(Operation::Write(key, number));
    Ok(())
}
