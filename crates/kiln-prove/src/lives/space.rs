//! Disks that are full at times: what they refuse has no effect, and who deletes everything has room again.
//!
//! Now and then such a disk gets a capacity, of little more than it holds then, or loses it; it stays over closes and power losses. While it has one any deed
//! may find that there is no space, but for those that durability.md promises: what was committed hardens, the database closes, and opens after
//! that (after a power loss it may not), deletions find what is kept for them, and puts have room once everything was deleted, be the database closed and opened meanwhile or not.

use kiln::device::SimulatedDevice;
use kiln::{Error, ErrorKind, Result};

use super::deeds::Deed;
use super::values::{LONG_BYTES, Value};
use super::{
    BALLAST_KEYS, Ended, FILLED_MAP_NUMBER, FILLED_TABLE_NUMBER, Life, MAP_NUMBER, SEGMENT_BYTES, TABLES,
    at_object, key, name_of,
};

/// What a disk has room for when it gets its capacity, less than one of these.
const LEFT_BYTES: [usize; 4] = [1, 32 << 10, 128 << 10, 512 << 10];
/// Rows that fill a disk, for each object, and how long they are at the most.
const FILLING_ROWS: usize = 200;
const FILLING_BYTES_MAX: usize = 8_000;
/// The reserve of the smallest segments has room for so many deletions in any case, if not each of them has to harden.
const DELETIONS_IN_RESERVE: usize = 20;

/// What is known of a disk's room.
#[derive(Clone, Default)]
pub(super) struct Room {
    pub(super) is_limited: bool,
    /// Everything was deleted, durably: puts have room.
    pub(super) is_cleared: bool,
    /// The last opening has ended in order.
    pub(super) was_closed: bool,
    /// Openings behind others that did not end in order, since a put found room. Each takes of what is kept for them.
    uncleanly_opened: usize,
}

impl Room {
    pub(super) fn begin_opening(&mut self) {
        self.uncleanly_opened += usize::from(!std::mem::take(&mut self.was_closed));
    }

    /// C5, C8: there is space for an opening behind an orderly end. (For one behind another space is kept, of which a load that failed, and the hardenings behind it, may have taken some.)
    pub(super) fn may_refuse_opening(&self, error: &Error) -> bool {
        error.kind() == ErrorKind::NoSpace && self.is_limited && self.uncleanly_opened > 0
    }

    pub(super) fn lift(&mut self, disk: &SimulatedDevice) {
        disk.set_capacity(None);
        (self.is_limited, self.is_cleared) = (false, false);
    }
}

impl Life<'_> {
    /// A step that may find no space, where the disk is full.
    pub(super) fn try_step(&mut self, deed: Deed) -> std::result::Result<(), Ended> {
        let is_little = self.told.now().len() <= DELETIONS_IN_RESERVE;
        let done = self.step(deed);
        let had_reserve = self.has_reserve;
        self.has_reserve &=
            matches!(deed, Deed::Put | Deed::Append | Deed::Fill | Deed::Harden | Deed::Limit | Deed::Lift);
        match done {
            Err(error) if error.kind() == ErrorKind::NoSpace && self.told.room.is_limited => {
                self.judge_refusal(deed, had_reserve, is_little)
                    .map_err(|what| Ended::Wrong(format!("{what}: {error}")))?;
                // C1: it had no effect.
                if self.random.one_in(4) { self.compare() } else { Ok(()) }
            }
            done => Ok(done?),
        }
    }

    fn judge_refusal(
        &self,
        deed: Deed,
        had_reserve: bool,
        is_little: bool,
    ) -> std::result::Result<(), String> {
        let promised = match deed {
            Deed::Delete | Deed::Drop => had_reserve,
            Deed::Clear => had_reserve && is_little,
            Deed::BackUp => true,
            _ => false,
        };
        if promised && !self.has_failed() {
            return Err("C5: it has space, however full the disk is".to_owned());
        }
        let (now, told) = (self.session.serial(), self.told.serial());
        match now == told {
            true => Ok(()),
            false => Err(format!("C7: what failed has a serial number: {now} behind {told}")),
        }
    }

    fn has_failed(&self) -> bool {
        self.disk.crashed() || self.disk.faults_fired() > 0
    }

    pub(super) fn note_room(&mut self) {
        (self.has_reserve, self.told.room.uncleanly_opened) = (true, 0);
    }

    pub(super) fn limit(&mut self) -> Result<()> {
        let bytes = *self.random.pick(&LEFT_BYTES);
        self.disk.fail_after_bytes(self.random.below(bytes) as u64);
        (self.told.room.is_limited, self.told.room.is_cleared) = (true, false);
        Ok(())
    }

    pub(super) fn lift(&mut self) -> Result<()> {
        self.told.room.lift(self.disk);
        Ok(())
    }

    /// Puts rows until the disk is full.
    pub(super) fn fill(&mut self) -> Result<()> {
        if !self.told.room.is_limited {
            return Ok(());
        }
        let object = *self.random.pick(&[FILLED_MAP_NUMBER, FILLED_TABLE_NUMBER]);
        for _ in 0..FILLING_ROWS {
            let length = LONG_BYTES + self.random.below(FILLING_BYTES_MAX - LONG_BYTES);
            let value = Value::Long { number: self.random.next(), length };
            let (row, mut state) = ((object, key(self.random.below(FILLING_ROWS))), self.told.now());
            let commit = at_object!(self, object, filled => self.db.put(filled, &row.1, value.to_bytes()))?;
            state.insert(row, value);
            self.told.commit(commit.version().number(), state);
            commit.forget();
            self.note_room();
        }
        Ok(())
    }

    /// Deletes everything, and drops some of it, where nothing else holds what is deleted.
    pub(super) fn clear(&mut self) -> Result<()> {
        if !self.told.room.is_limited || !self.told.named.is_empty() {
            return Ok(());
        }
        // What a segment held comes back once none of it is needed, unless it is the last.
        let log = self.db.statistics();
        let has_segment = log.log_begin / SEGMENT_BYTES < log.log_tail / SEGMENT_BYTES;
        let mut dropped = self.loaded_tables();
        for number in [FILLED_MAP_NUMBER, FILLED_TABLE_NUMBER] {
            if self.is_there(number) && self.random.one_in(2) {
                dropped.push(number);
            }
        }
        for number in dropped {
            self.drop_object(number)?;
        }
        for row in self.told.now().into_keys() {
            self.delete_row(&row)?;
        }
        for key in 0..BALLAST_KEYS {
            self.db.delete(&self.ballast, [key])?.forget();
        }
        self.harden()?;
        // Each opening behind a power loss has taken of what is kept for them.
        self.told.room.is_cleared = has_segment && self.told.room.uncleanly_opened == 0;
        Ok(())
    }

    /// C5: where everything was deleted puts have room.
    pub(super) fn find_room(&mut self) -> std::result::Result<(), Ended> {
        if !std::mem::take(&mut self.told.room.is_cleared) {
            return Ok(());
        }
        match self.step(Deed::Put) {
            Err(error) if error.kind() != ErrorKind::NoSpace => Err(error.into()),
            // For deletions to settle they have to be sorted, for which there may be no room.
            Err(error) if !self.has_failed() && !self.sorts_on_disk => {
                Err(format!("C5: everything was deleted, and there is no room: {error}").into())
            }
            _ => Ok(()),
        }
    }
}
