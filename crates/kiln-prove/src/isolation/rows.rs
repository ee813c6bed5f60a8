//! What transactions do with rows: how they find them, are told of them, and change them.
//!
//! A row is changed together with its journal. Whoever is only told something of rows reads their journals, before or after.

use kiln::{Expiry, Snapshot, Transaction};

use super::history::{GARBAGE, Key, Number, Operation, journal_of};
use super::operations::{Objects, View, append, append_number, read_list};
use super::passing::FIRST_PASSING_ROW;
use super::recorder::{Attempt, Recorder, Shared, first_of_slot};
use super::values::{decode, decode_key, encode, encode_key};
use crate::support::Random;

/// Bytes of a key that a range over a prefix has in common.
const PREFIX_BYTES: usize = 3;
/// Rows that are deleted at once, at most.
const DELETED_AT_ONCE: usize = 6;

/// A way along the rows of a range.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Way {
    pub(crate) first: Key,
    pub(crate) last: Key,
    pub(crate) reverse: bool,
    pub(crate) limit: usize,
    pub(crate) by: By,
}

/// How a way is walked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum By {
    Bounds,
    /// Its keys are those with the first one's prefix.
    Prefix,
    /// It is the first row of all, or the last.
    End,
    /// After so many rows it goes on from this key.
    Seek(usize, Key),
}

impl Way {
    pub(crate) const ALL: Way =
        Way { first: 0, last: FIRST_PASSING_ROW - 1, reverse: false, limit: usize::MAX, by: By::Bounds };

    /// All rows of a range over a few slots.
    pub(crate) fn around(shared: &Shared, random: &mut Random) -> Way {
        let (first, last) = shared.rows_around(random);
        Way { first, last, reverse: random.one_in(3), ..Way::ALL }
    }

    /// Any way.
    pub(crate) fn any(shared: &Shared, random: &mut Random) -> Way {
        let way = Way::around(shared, random);
        match random.below(12) {
            0 => Way { reverse: way.reverse, limit: 1, by: By::End, ..Way::ALL },
            1 | 2 => {
                let rest = (1 << (32 - 8 * PREFIX_BYTES)) - 1;
                let first = shared.row(random) & !rest;
                Way { first, last: first | rest, by: By::Prefix, ..way }
            }
            3 | 4 => {
                let to = way.first + random.below((way.last - way.first) as usize + 1) as Key;
                Way { by: By::Seek(1 + random.below(3), to), ..way }
            }
            5..=7 => Way { limit: 1 + random.below(3), ..way },
            _ => way,
        }
    }
}

/// Key and value.
type FoundRow = (Vec<u8>, Vec<u8>);
/// Rows as a walk finds them: before it was told to go on from elsewhere, and after that.
type Walked = (Vec<FoundRow>, Vec<FoundRow>);

/// What transactions and snapshots have in common, as far as rows are concerned.
pub(crate) trait RowView {
    fn walk(&self, objects: &Objects, way: Way) -> kiln::Result<Walked>;
    /// Whether a row is there, by one of all ways that do not show it; `Some(false)` if what was told of it is wrong.
    fn tell(&self, objects: &Objects, key: Key, wish: u64) -> kiln::Result<Option<bool>>;
}

macro_rules! walk {
    ($view:ty) => {
        fn walk(&self, objects: &Objects, way: Way) -> kiln::Result<Walked> {
            let rows = &objects.rows;
            let range = match way.by {
                By::End => {
                    let row = if way.reverse { self.last(rows) } else { self.first(rows) };
                    return Ok((row?.into_iter().collect(), Vec::new()));
                }
                By::Prefix => self.prefix(rows, &encode_key(way.first)[..PREFIX_BYTES]),
                By::Bounds | By::Seek(..) => {
                    <$view>::range(self, rows, encode_key(way.first)..=encode_key(way.last))
                }
            };
            let range = if way.reverse { range.reverse() } else { range };
            let mut range = range.limit(way.limit);
            let By::Seek(count, to) = way.by else {
                return Ok((range.collect::<Result<_, _>>()?, Vec::new()));
            };
            let before = range.by_ref().take(count).collect::<Result<_, _>>()?;
            range.seek(encode_key(to));
            Ok((before, range.collect::<Result<_, _>>()?))
        }
    };
}

fn never(expiry: Expiry) -> bool {
    expiry == Expiry::Never
}

impl RowView for Transaction<'_> {
    walk!(Transaction<'_>);

    fn tell(&self, objects: &Objects, key: Key, wish: u64) -> kiln::Result<Option<bool>> {
        let (rows, name) = (&objects.rows, encode_key(key));
        match wish % 3 {
            0 => Ok(self.contains(rows, name)?.then_some(true)),
            1 => Ok(self.expiry(rows, name)?.map(never)),
            _ => Ok(self.value_bytes(rows, name)?.map(|bytes| bytes == encode(key, 0).len())),
        }
    }
}

impl RowView for Snapshot<'_> {
    walk!(Snapshot<'_>);

    fn tell(&self, objects: &Objects, key: Key, wish: u64) -> kiln::Result<Option<bool>> {
        match wish % 2 {
            0 => Ok(self.contains(&objects.rows, encode_key(key))?.then_some(true)),
            _ => Ok(self.expiry(&objects.rows, encode_key(key))?.map(never)),
        }
    }
}

pub(crate) fn read_row(
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
    let (before, after) = view.walk(objects, way)?;
    let By::Seek(count, to) = way.by else {
        note_range(way, &before, into);
        return Ok(());
    };
    note_range(Way { limit: count, ..way }, &before, into);
    let rest = if way.reverse { Way { last: to, ..way } } else { Way { first: to, ..way } };
    note_range(rest, &after, into);
    Ok(())
}

fn note_range(way: Way, rows: &[FoundRow], into: &mut Attempt) {
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
}

/// Is told whether a row is there.
pub(crate) fn tell_of_row(
    view: &impl View,
    objects: &Objects,
    (row, wish): (Key, u64),
    into: &mut Attempt,
) -> kiln::Result<()> {
    let journal_comes_first = wish.is_multiple_of(2);
    if journal_comes_first {
        read_list(view, objects, journal_of(row), into)?;
    }
    into.operations.push(match view.tell(objects, row, wish / 2)? {
        None => Operation::Is(row, None, true),
        Some(true) => Operation::Is(row, None, false),
        Some(false) => Operation::Row(row, Some(GARBAGE)),
    });
    if !journal_comes_first {
        read_list(view, objects, journal_of(row), into)?;
    }
    Ok(())
}

/// What a transaction changes rows with.
pub(crate) struct Change<'c, 'db, 's> {
    pub(crate) tx: &'c Transaction<'db>,
    pub(crate) objects: &'c Objects,
    pub(crate) recorder: &'c mut Recorder<'s>,
    pub(crate) attempt: &'c mut Attempt,
}

impl Change<'_, '_, '_> {
    /// Inserts, overwrites or deletes a row, whatever can be done and as the wish is.
    pub(crate) fn change(&mut self, row: Key, wish: u64) -> kiln::Result<()> {
        let (way, wish) = (wish % 8, wish / 8);
        match way {
            0..=2 => {
                let is_there = read_row(self.tx, self.objects, row, self.attempt)?.is_some();
                if is_there && !wish.is_multiple_of(3) { self.delete_found(row) } else { self.put(row) }
            }
            // Looked at by nobody, so that only the index and the journal can find a conflict.
            3..=4 => self.put(row),
            5 => self.delete(row, wish),
            6 => self.compare_and_set(row),
            _ => self.update(row, wish),
        }
    }

    fn journal(&mut self, row: Key) -> kiln::Result<(Number, usize)> {
        append(self.tx, self.objects, journal_of(row), self.recorder, self.attempt)
    }

    fn journal_number(&mut self, row: Key, number: Number) -> kiln::Result<usize> {
        append_number(self.tx, self.objects, (journal_of(row), number), self.recorder, self.attempt)
    }

    fn note_put(&mut self, row: Key, number: Number) {
        self.attempt.operations.push(Operation::Put(row, number));
    }

    fn note_deletion(&mut self, row: Key, number: Number, changes: usize) {
        self.attempt.operations.push(Operation::Delete(row, number));
        self.recorder.shared.note_deletion(row, changes);
    }

    fn put(&mut self, row: Key) -> kiln::Result<()> {
        let (number, _) = self.journal(row)?;
        self.tx.put(&self.objects.rows, encode_key(row), encode(row, number))?;
        self.note_put(row, number);
        Ok(())
    }

    /// Deletes a row that is there.
    fn delete_found(&mut self, row: Key) -> kiln::Result<()> {
        let (number, changes) = self.journal(row)?;
        let was_there = self.tx.delete(&self.objects.rows, encode_key(row))?;
        self.attempt.operations.push(Operation::Is(row, None, !was_there));
        self.note_deletion(row, number, changes);
        Ok(())
    }

    /// Deletes a row that may be there.
    fn delete(&mut self, row: Key, wish: u64) -> kiln::Result<()> {
        if wish.is_multiple_of(2) {
            return self.delete_found(row);
        }
        let was_there = self.tx.delete(&self.objects.rows, encode_key(row))?;
        self.attempt.operations.push(Operation::Is(row, None, !was_there));
        let (number, changes) = self.journal(row)?;
        self.note_deletion(row, number, changes);
        Ok(())
    }

    /// Inserts a row that is absent, or else deletes it if it is as its journal says.
    fn compare_and_set(&mut self, row: Key) -> kiln::Result<()> {
        let (rows, name, number) = (&self.objects.rows, encode_key(row), self.recorder.number());
        let was_absent = self.tx.compare_and_set(rows, name, None, Some(&encode(row, number)))?;
        self.attempt.operations.push(Operation::Is(row, None, was_absent));
        if was_absent {
            self.journal_number(row, number)?;
            self.note_put(row, number);
            return Ok(());
        }
        let journal = read_list(self.tx, self.objects, journal_of(row), self.attempt)?;
        let Some(&last) = journal.last() else { return Ok(()) };
        let was_last = self.tx.compare_and_set(rows, name, Some(&encode(row, last)), None)?;
        self.attempt.operations.push(Operation::Is(row, Some(last), was_last));
        if was_last {
            let changes = self.journal_number(row, number)?;
            self.note_deletion(row, number, changes);
        }
        Ok(())
    }

    /// Makes of a row what follows on it: mostly it comes and goes.
    fn update(&mut self, row: Key, wish: u64) -> kiln::Result<()> {
        let (rows, name, number) = (&self.objects.rows, encode_key(row), self.recorder.number());
        let (mut found, mut stays) = (None, true);
        let mut change = |old: Option<&[u8]>| {
            found = decode(row, old);
            stays = found.is_none() || wish.is_multiple_of(3);
            stays.then(|| encode(row, number))
        };
        match wish.is_multiple_of(2) {
            true => self.tx.update(rows, name, change)?,
            false => self.tx.update_into(rows, name, |old, new| {
                change(old).inspect(|value| new.extend_from_slice(value)).is_some()
            })?,
        }
        self.attempt.operations.push(Operation::Row(row, found));
        let changes = self.journal_number(row, number)?;
        if stays {
            self.note_put(row, number)
        } else {
            self.note_deletion(row, number, changes)
        }
        Ok(())
    }

    /// Deletes a row and some before it at once. All of them have the deletion in their journals, those too that are absent, since
    /// nobody is told which were there.
    pub(crate) fn delete_range(&mut self, last: Key, wish: u64) -> kiln::Result<()> {
        let before = (wish % DELETED_AT_ONCE as u64) as Key;
        let first = last.saturating_sub(before).max(first_of_slot(last));
        let (rows, from, to) = (&self.objects.rows, encode_key(first), encode_key(last));
        let deleted = match wish.is_multiple_of(4) {
            true => self.tx.delete_range(rows, from..encode_key(last + 1))?,
            false => self.tx.delete_range(rows, from..=to)?,
        };
        self.attempt.operations.push(Operation::Count(first, last, deleted));
        for row in first..=last {
            let (number, changes) = self.journal(row)?;
            self.note_deletion(row, number, changes);
        }
        Ok(())
    }
}
