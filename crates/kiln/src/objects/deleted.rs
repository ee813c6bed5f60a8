//! How a walk gets past keys without a row: over [gaps](crate::storage::ordered_index) in one step, and over others one by one, of which it makes a gap for who comes later.
//!
//! ```text
//!   walk --->  k   d d d d d d d d d ... d   k
//!                  [ claimed )                      looked at once more: is each deleted?
//!                  [ a gap   [ claimed )            and so on, as long as there are more
//! ```
//!
//! Keys leave the index once nobody need know any more that they were deleted, and the gap stays where they were. So a claim begins where the gap before it ends, if no key is between: else a queue of which all of that happens between one look and the next one would leave a gap behind each time.

use std::cell::Cell;
use std::ops::Bound;

use super::Table;
use super::rows::{Reader, Rows};
use super::walk::{Bounds, Walk};
use crate::error::{Error, Result};
use crate::kernel::engine::Engine;
use crate::kernel::expiry::Moment;
use crate::kernel::handle::HasHandle;
use crate::kernel::object::RangeRead;
use crate::storage::ordered_index::{GapRead, Granted, LeafRead};

/// So many are passed one by one before they are a gap: to go on behind it takes as long as to pass these.
const KEYS_OF_GAP_MIN: u64 = 16;
/// So many, before a gap grows by them: of many this part, and never more than that.
const KEYS_MORE_MIN: u64 = 8;
const KEYS_MORE_PART: u64 = 4;
const KEYS_MORE_MAX: u64 = 4096;
/// Behind so many, and then one in so many, it is looked whether there is a gap.
const LOOKED_AT_FIRST: u64 = 2;
const LOOKED_AT_EVERY: u64 = 8;

/// What a walk has passed since the last row.
#[derive(Debug)]
pub(super) struct Passed {
    /// Where that begins, in the walk's direction, and whether there is a gap before it.
    begin: Vec<u8>,
    is_behind_gap: bool,
    /// Keys that were passed one by one, and those of them that are in no gap yet.
    all_keys: u64,
    keys: u64,
    /// So many are to be a gap.
    keys_min: u64,
    /// Where the gap ends that was found last.
    far: Vec<u8>,
    /// Nothing is claimed any more: some of it has rows for others, or it is this that is looked at.
    is_refused: bool,
}

impl Default for Passed {
    fn default() -> Passed {
        Passed {
            begin: Vec::new(),
            is_behind_gap: false,
            all_keys: 0,
            keys: 0,
            keys_min: KEYS_OF_GAP_MIN,
            far: Vec::new(),
            is_refused: false,
        }
    }
}

impl Passed {
    /// What comes next does not belong to it.
    #[inline]
    pub(super) fn end(&mut self) {
        (self.is_behind_gap, self.all_keys, self.keys) = (false, 0, 0);
    }

    fn has_begun(&self) -> bool {
        self.is_behind_gap || self.all_keys > 0
    }

    /// It begins with this key, unless it has begun before.
    fn begin_with(&mut self, key: &[u8], reverse: bool) {
        if !self.has_begun() {
            self.begin.clear();
            self.begin.extend_from_slice(key);
            // Backwards it is an end, which is not in it.
            self.begin.extend(reverse.then_some(0));
        }
    }
}

impl Rows<'_> {
    /// The walk has come to a key that has no row: goes on behind the gap that it is in, or has a gap made. The next key that the transaction itself has written is `written`.
    #[cold]
    pub(super) fn pass_deleted(&mut self, reader: &impl Reader, written: Option<&[u8]>) -> Result<()> {
        if written == Some(self.walk.key()) {
            // For others it may be there.
            self.passed.end();
            return Ok(());
        }
        let all_keys = self.passed.all_keys;
        let is_to_look = all_keys < LOOKED_AT_FIRST || all_keys.is_multiple_of(LOOKED_AT_EVERY);
        if is_to_look && self.pass_gap(reader, written)? {
            return Ok(());
        }
        let Rows { walk, passed, .. } = self;
        passed.begin_with(walk.key(), walk.is_reverse());
        passed.keys += 1;
        passed.all_keys += 1;
        let enough = match passed.is_behind_gap {
            true => (passed.all_keys / KEYS_MORE_PART).clamp(KEYS_MORE_MIN, KEYS_MORE_MAX),
            false => passed.keys_min,
        };
        if passed.keys >= enough && !passed.is_refused {
            self.claim(reader)?;
        }
        Ok(())
    }

    /// Goes on behind the gap that the walk's key is in, if there is one; true if there is, though the transaction may have a row there itself.
    fn pass_gap(&mut self, reader: &impl Reader, written: Option<&[u8]>) -> Result<bool> {
        let Rows { table, walk, passed, .. } = self;
        let (index, reverse) = (table.ordered(), walk.is_reverse());
        let Some(gap) = index.find_gap(walk.key(), walk.version_max(), !reverse, &mut passed.far) else {
            return Ok(false);
        };
        let far = &passed.far[..];
        if written.is_none_or(|written| if reverse { written < far } else { far <= written }) {
            reader.note_gap(table.handle().id, gap)?;
            walk.jump(far);
            if !passed.has_begun() {
                std::mem::swap(&mut passed.begin, &mut passed.far);
            }
            (passed.is_behind_gap, passed.all_keys) = (true, 0);
        }
        Ok(true)
    }

    /// Makes what was passed a gap, if nobody has a row there.
    fn claim(&mut self, reader: &impl Reader) -> Result<()> {
        let Rows { table, walk, passed, .. } = self;
        let reverse = walk.is_reverse();
        let behind = [walk.key(), &[0]].concat();
        let (first, end) =
            if reverse { (walk.key(), &passed.begin[..]) } else { (&passed.begin[..], &behind[..]) };
        let keys = std::mem::take(&mut passed.keys);
        let engine: &Engine = &table.handle().engine;
        let looking = Looking { engine, newest: Cell::new(0) };
        let stretch_before = match reverse || passed.is_behind_gap {
            true => None,
            false => table.ordered().end_of_gap_before(first),
        };
        let mut claimed = None;
        // What has settled may be there, too.
        for first in stretch_before.as_deref().into_iter().chain([first]) {
            let Some(claim) = table.ordered().claim_gap(first..end, keys) else {
                // There are too many gaps.
                passed.keys_min *= 2;
                return Ok(());
            };
            let walk_once_more = Walk::new::<&[u8]>((Bound::Included(&first), Bound::Excluded(&end)));
            let mut rows = Rows::new(table, walk_once_more);
            rows.passed.is_refused = true;
            match rows.lend(&looking) {
                Ok(None) => {
                    claimed = Some(claim);
                    break;
                }
                Ok(Some(_)) => {}
                // Somebody is at it, or it cannot be read: so much for now.
                Err(_) => return Ok(()),
            }
        }
        let Some(claim) = claimed else {
            passed.is_refused = true;
            return Ok(());
        };
        let (version, oldest_snapshot) = (looking.newest.get(), engine.oldest_snapshot());
        for joined in claim.grant(Granted { version, oldest_snapshot, forward: !reverse }) {
            reader.note_joined(table.handle().id, joined)?;
        }
        // What follows belongs to it.
        passed.is_behind_gap = true;
        passed.begin.clear();
        passed.begin.extend_from_slice(if reverse { walk.key() } else { &behind });
        Ok(())
    }
}

/// Who looks whether there is nothing; what has expired is there. Whatever was read has not changed when it is looked at once more, later than the claim: whoever changes it from then on sees the claim.
struct Looking<'e> {
    engine: &'e Engine,
    /// The newest version of a deletion.
    newest: Cell<u64>,
}

impl Looking<'_> {
    fn note_version(&self, version: u64) {
        self.newest.set(self.newest.get().max(version));
    }
}

impl Reader for Looking<'_> {
    fn check(&self, table: &Table) -> Result<u32> {
        Ok(table.handle().id)
    }

    fn confirm(&self, _table: &Table) -> Result<()> {
        Ok(())
    }

    fn sees_table_only(&self) -> Result<bool> {
        Ok(true)
    }

    fn next_written(&self, _object: u32, _bounds: Bounds<'_>, _reverse: bool) -> Result<Option<Vec<u8>>> {
        Ok(None)
    }

    fn note(&self, object: u32, leaf: LeafRead) -> Result<()> {
        if !self.engine.range_holds(&RangeRead { object, leaf }) {
            return Err(Error::conflict());
        }
        // Of keys that are not there any more.
        self.note_version(self.engine.forgotten());
        Ok(())
    }

    fn note_gap(&self, _object: u32, gap: GapRead) -> Result<()> {
        self.note_version(gap.version);
        Ok(())
    }

    fn has_expired(&self, _object: u32, _expires_at: u64, _leaf: impl FnOnce() -> LeafRead) -> Result<bool> {
        Ok(false)
    }

    fn read(&self, object: u32, hash: u64, key: &[u8], value: &mut Vec<u8>) -> Result<bool> {
        let reading = loop {
            let reading = self.engine.read_current(object, key, hash, &Moment::default(), value)?;
            let reading = reading.ok_or_else(Error::conflict)?;
            // Other keys of the bucket may be written all the time.
            if self.engine.index.unchanged(reading.bucket, reading.stamp) {
                break reading;
            }
        };
        self.note_version(reading.since(self.engine));
        Ok(reading.stored)
    }
}
