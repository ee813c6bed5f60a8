//! Notes in the records that an opening has left in memory, so that ranges may believe these as those that were written since.
//!
//! A record in memory in which no successor is noted is its key's newest, and ranges of snapshots rely on that ([`newest_put_at`](Engine::newest_put_at)). What recovery has read from disk has
//! a part of its checksum where the notes would be. So it is not believed, and each row is looked for by itself:
//!
//! ```text
//!   range     comes to a record without notes ---> asks
//!   keeper    goes over what the opening has left in memory, some at a time; notes, with the bucket held, in each record what is true of it just then
//!             comes to the end ---> all of them are believed
//!   whoever supersedes one, before, meanwhile or later, notes that, as always
//! ```

use super::engine::Engine;
use crate::storage::epoch;
use crate::storage::log::Item;
use crate::storage::record::{Address, NO_ADDRESS};
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// So much of the log the keeper goes over before it sees to something else.
const PIECE_BYTES: u64 = 1 << 20;

/// See the module's documentation.
pub(crate) struct Notes {
    /// In tables' records in memory from here on it is noted whether they have a successor.
    from: AtomicU64,
    is_wanted: AtomicBool,
    are_made: AtomicBool,
    walk: Mutex<Option<Walk>>,
}

/// Where the keeper has begun, and where it goes on.
#[derive(Clone, Copy)]
struct Walk {
    begin: Address,
    next: Address,
}

/// What came of a look at an address.
enum Made {
    /// What there was to note is noted, up to that address.
    Note(Address),
    /// What lies before that address has no notes.
    Gap(Address),
    /// It is to be looked at again, later.
    Nothing,
}

impl Notes {
    /// For a log that was opened, and goes on at `opened_end`.
    pub(crate) fn new(opened_end: Address) -> Notes {
        Notes {
            from: AtomicU64::new(opened_end),
            is_wanted: AtomicBool::new(false),
            are_made: AtomicBool::new(false),
            walk: Mutex::new(None),
        }
    }

    /// True if a record, if it is in memory, has notes; of those that are to be believed.
    #[inline(always)]
    pub(super) fn are_in(&self, address: Address) -> bool {
        address >= self.from.load(Ordering::Acquire)
    }

    /// The keeper is to make some.
    pub(super) fn are_wanted(&self) -> bool {
        self.is_wanted.load(Ordering::SeqCst)
    }
}

impl Engine {
    /// True if there is a record in memory at an address, and it has no notes, and may get some.
    pub(crate) fn lacks_notes(&self, address: Address) -> bool {
        let is_in_memory = address != NO_ADDRESS && address >= self.log.head();
        // What lies before the first boundary never has any.
        is_in_memory && !self.notes.are_in(address) && !self.notes.are_made.load(Ordering::Relaxed)
    }

    /// For who has come to a record in memory that has no notes.
    #[cold]
    pub(crate) fn ask_for_notes(&self) {
        let is_first = !self.notes.are_wanted() && !self.notes.is_wanted.swap(true, Ordering::SeqCst);
        if is_first && self.has_hardener() {
            self.hardening.wake_keeper();
        }
    }

    /// Makes some notes, if they are wanted; true if there are more to make. The caller is not pinned.
    pub(crate) fn make_notes(&self) -> bool {
        let notes = &self.notes;
        if !notes.are_wanted() {
            return false;
        }
        let (mut walk, end) = (notes.walk.lock(), self.opened_end);
        let begin = self.first_boundary().min(end);
        let Walk { mut begin, mut next } = *walk.get_or_insert(Walk { begin, next: begin });
        let (piece_end, mut key) = (end.min(next + PIECE_BYTES), Vec::new());
        while next < piece_end {
            next = match self.make_note(next, &mut key) {
                // Whoever holds the bucket may do so for long.
                Made::Nothing => break,
                Made::Note(next) => next,
                Made::Gap(next) => {
                    begin = next.min(end);
                    next
                }
            };
        }
        *walk = Some(Walk { begin, next });
        if next >= end {
            notes.from.store(begin, Ordering::Release);
            notes.are_made.store(true, Ordering::Relaxed);
            notes.is_wanted.store(false, Ordering::SeqCst);
        }
        next < end
    }

    /// Makes those of the record at an address, if there is one.
    fn make_note(&self, at: Address, key: &mut Vec<u8>) -> Made {
        let _pin = epoch::pin();
        let view = match self.log.item_at(at) {
            Some(Item::Record(view)) => view,
            Some(Item::Other(bytes)) => return Made::Note(at + bytes),
            // Some has left memory, and of the rest it is not known where the first record begins.
            None if at < self.log.head() => return Made::Gap(self.first_boundary().max(at + 8)),
            None => return Made::Gap((at + 1).next_multiple_of(self.log.segment_bytes())),
        };
        let shape = view.shape();
        if shape.kind.is_put() && self.objects.ordered(shape.object).is_some() {
            view.key_into(key);
            let hash = self.hash(shape.object, key);
            let Some(bucket) = self.index.lock_quietly(hash) else { return Made::Nothing };
            let is_newest = self.index.refers_to(bucket, hash, at);
            view.set_notes(!is_newest);
            self.index.unlock_unchanged(bucket);
        }
        Made::Note(at + shape.bytes())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::device::SimulatedDevice;
    use crate::{Options, Result};

    const ROWS: u32 = 20_000;

    /// Each was looked for by itself, three times as slowly, for as long as the database was open.
    #[test]
    fn c4_what_an_opening_has_left_in_memory_is_believed_once_it_is_noted_which_is_newest() -> Result<()> {
        let device = Arc::new(SimulatedDevice::new(1));
        let options = || Options::new().background(false).memory(32 << 20).segment_bytes(1 << 20);
        let db = options().open_on(device.clone())?;
        let table = db.table("table")?;
        for round in 0..2 {
            for row in (0..ROWS).filter(|row| round == 0 || row % 2 == 0) {
                db.put(&table, row.to_be_bytes(), [round; 100])?.forget();
            }
            db.persist()?;
        }
        db.close()?;
        let db = options().open_on(device)?;
        let (table, engine) = (db.table("table")?, db.engine());
        let object = engine.objects.iter().find(|object| object.name() == "table").unwrap().id;
        let newest_of = |row: u32| {
            let _pin = epoch::pin();
            let address = engine.index.addresses_of(engine.hash(object, &row.to_be_bytes())).next().unwrap();
            let previous = engine.log.view(address).map_or(0, |view| view.previous());
            (address, previous)
        };
        let is_believed = |address, row: u32| {
            let _pin = epoch::pin();
            engine.newest_put_at(address, object, &row.to_be_bytes(), u64::MAX).is_some()
        };
        let read_all = || -> Result<()> {
            let (snapshot, mut row) = (db.snapshot()?, 0_u32);
            let mut range = snapshot.range::<[u8; 4]>(&table, ..);
            while let Some((key, value)) = range.next_row()? {
                let expected = [u8::from(row % 2 == 0); 100];
                assert!(key == row.to_be_bytes() && (value == expected || value == [9; 100]));
                row += 1;
            }
            assert_eq!(row, ROWS);
            Ok(())
        };
        let count = |is_it: &dyn Fn(u32) -> bool| (0..ROWS).filter(|&row| is_it(row)).count() as u32;
        read_all()?;
        assert!(engine.notes.are_wanted());
        assert_eq!(count(&|row| is_believed(newest_of(row).0, row)), 0);
        // Before the notes are made, in the midst of it, and later.
        let before = newest_of(4).0;
        db.put(&table, 4_u32.to_be_bytes(), [9; 100])?.forget();
        assert!(engine.make_notes(), "it is done some at a time");
        let meanwhile = [6, ROWS - 2].map(|row| (row, newest_of(row).0));
        for (row, _) in meanwhile {
            db.put(&table, row.to_be_bytes(), [9; 100])?.forget();
        }
        while engine.notes.are_wanted() {
            db.persist()?;
        }
        let later = newest_of(8).0;
        db.put(&table, 8_u32.to_be_bytes(), [9; 100])?.forget();
        for (row, address) in [(4, before), (8, later)].into_iter().chain(meanwhile) {
            assert!(!is_believed(address, row) && is_believed(newest_of(row).0, row), "row {row}");
        }
        let is_noted = |row: u32| engine.notes.are_in(newest_of(row).0);
        assert!(count(&is_noted) > ROWS / 2, "{}", count(&is_noted));
        assert_eq!(count(&|row| is_noted(row) && !is_believed(newest_of(row).0, row)), 0);
        let superseded = |row: u32| newest_of(row).1;
        assert_eq!(count(&|row| row % 2 == 0 && is_believed(superseded(row), row)), 0);
        read_all()?;
        assert!(!engine.notes.are_wanted(), "it is asked for again and again");
        Ok(())
    }
}
