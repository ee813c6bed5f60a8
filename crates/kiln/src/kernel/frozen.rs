//! What of a table has not settled, as a snapshot sees it: in memory, in the order of the keys, out of the log as it lies on disk.
//!
//! ```text
//!        settled to            the log's end when the snapshot was opened         tail
//!   --------|---------------------------------|------------------------------------|
//!    tree   |   newest records up to the      |  nothing that the snapshot sees    |
//!           |   snapshot's version            |
//! ```
//!
//! A long walk beside writers meets ever more rows of which the snapshot sees an older record, which has left memory; and what leads to it, newer records, has left memory, too.
//! Each of these is a read at a random place. So once a walk has [paid](BYTES_PER_READ) for as many of them as it costs to read this part of the log from one end
//! to the other, it does that, and needs the indexes no more: the tree's root and this are all that the snapshot sees (AciKV §3.2 calls the latter frozen).
//!
//! What does not fit into memory is left out at the far end of the walk, which has the part read again when it comes there. Of the memory the first walk has half, and
//! [further ones](WALKS_MAX) at the same time half of what is left each; more go on with reads at random. Nobody is waited for, and what cannot be had at once is left for later.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use super::engine::Engine;
use crate::error::Result;
use crate::planted::{Bug, planted};
use crate::storage::record::{Address, NEVER};
use crate::storage::record_reader::{Cursor, RecordReader};
use crate::storage::tree::{Direction, Root};
use crate::sync::atomic::{AtomicU64, Ordering};

/// A read at random takes as long as this does for so many bytes of the log.
pub(crate) const BYTES_PER_READ: u64 = 16 << 10;
/// So many bytes of memory each row takes besides its key and its value.
const ROW_BYTES: usize = 128;
/// So many records are looked at at once.
const BATCH: usize = 256;
/// So many walks may be over what is frozen at a time.
const WALKS_MAX: u64 = 4;

/// How many walks are over what is frozen.
#[derive(Clone, Debug, Default)]
pub(crate) struct FrozenWalks(Arc<AtomicU64>);

/// One of them, until it is dropped.
#[derive(Debug)]
struct Permit {
    walks: FrozenWalks,
    /// How many there were before.
    others: u64,
}

impl FrozenWalks {
    fn admit(&self) -> Option<Permit> {
        let others = self.0.fetch_add(1, Ordering::Relaxed);
        let permit = Permit { walks: self.clone(), others };
        (others < WALKS_MAX).then_some(permit)
    }
}

impl Permit {
    /// Its part of so many bytes.
    fn part_of(&self, bytes: u64) -> usize {
        usize::try_from(bytes >> (self.others + 1)).unwrap_or(usize::MAX)
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.walks.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// What a snapshot's walk wants.
pub(crate) struct Wanted<'w> {
    pub(crate) object: u32,
    /// Where the walk is, and where it ends.
    pub(crate) near: Bound<&'w [u8]>,
    pub(crate) far: Bound<&'w [u8]>,
    pub(crate) direction: Direction,
    /// It sees what was committed up to this version, all of which lies before `log_end`.
    pub(crate) version_max: u64,
    pub(crate) log_end: Address,
}

/// What a key had: a value and when that expires, or none.
#[derive(Debug, Default)]
struct Row {
    value: Option<Vec<u8>>,
    expires_at: u64,
}

/// See the module's documentation.
#[derive(Debug)]
pub(crate) struct Frozen {
    direction: Direction,
    rows: BTreeMap<Vec<u8>, Row>,
    bytes: usize,
    /// Keys from this one on, in the direction, are left out.
    cut_at: Option<Vec<u8>>,
    /// The one that was passed last.
    passed: Row,
    /// As long as there are rows.
    permit: Option<Permit>,
}

impl Frozen {
    fn new(direction: Direction, permit: Permit) -> Frozen {
        let (rows, passed) = (BTreeMap::new(), Row::default());
        Frozen { direction, rows, bytes: 0, cut_at: None, passed, permit: Some(permit) }
    }

    fn next(&self) -> Option<(&Vec<u8>, &Row)> {
        match self.direction {
            Direction::Forwards => self.rows.first_key_value(),
            Direction::Backwards => self.rows.last_key_value(),
        }
    }

    /// The next key.
    pub(crate) fn key(&self) -> Option<&[u8]> {
        self.next().map(|(key, _)| &key[..])
    }

    /// True if the next key has a value.
    pub(crate) fn has_value(&self) -> bool {
        self.next().is_some_and(|(_, row)| row.value.is_some())
    }

    /// Goes past the next key, and gives it.
    pub(crate) fn pass(&mut self) -> Option<Vec<u8>> {
        let (key, row) = match self.direction {
            Direction::Forwards => self.rows.pop_first(),
            Direction::Backwards => self.rows.pop_last(),
        }?;
        self.passed = row;
        self.give_permit_back();
        Some(key)
    }

    /// Goes on to the first key that is not before this one, in the direction, and lies ahead; false if that is left out.
    pub(crate) fn seek_on(&mut self, key: &[u8]) -> bool {
        while self.key().is_some_and(|next| is_before(self.direction, next, key)) {
            self.pass();
        }
        !self.is_left_out(key)
    }

    fn give_permit_back(&mut self) {
        if self.rows.is_empty() {
            self.permit = None;
        }
    }

    /// The value of the key that was passed last.
    pub(crate) fn value(&self) -> &[u8] {
        self.passed.value.as_deref().unwrap_or_default()
    }

    /// When that expires, if it does.
    pub(crate) fn expires_at(&self) -> u64 {
        self.passed.expires_at
    }

    pub(crate) fn cut_at(&self) -> Option<&[u8]> {
        self.cut_at.as_deref()
    }

    /// How many keys there are.
    pub(crate) fn count(&self) -> u64 {
        self.rows.len() as u64
    }

    fn is_left_out(&self, key: &[u8]) -> bool {
        self.cut_at.as_deref().is_some_and(|cut_at| !is_before(self.direction, key, cut_at))
    }

    /// A record that comes behind all that were added before.
    fn add(&mut self, key: &[u8], row: Row, bytes_max: usize) {
        let bytes = |row: &Row| row.value.as_ref().map_or(0, Vec::len);
        self.bytes += bytes(&row);
        match self.rows.get_mut(key) {
            Some(before) => self.bytes -= bytes(&std::mem::replace(before, row)),
            None => {
                self.bytes += key.len() + ROW_BYTES;
                self.rows.insert(key.to_vec(), row);
            }
        }
        // One stays, however long it is: a walk has to come on.
        while self.bytes > bytes_max && self.rows.len() > 1 {
            let last = match self.direction {
                Direction::Forwards => self.rows.pop_last(),
                Direction::Backwards => self.rows.pop_first(),
            };
            let Some((key, row)) = last else { return };
            self.bytes -= key.len() + ROW_BYTES + bytes(&row);
            self.cut_at = Some(key);
        }
    }
}

fn is_before(direction: Direction, one: &[u8], other: &[u8]) -> bool {
    match direction {
        Direction::Forwards => one < other,
        Direction::Backwards => one > other,
    }
}

fn is_within(key: &[u8], wanted: &Wanted<'_>) -> bool {
    let (low, high) = match wanted.direction {
        Direction::Forwards => (wanted.near, wanted.far),
        Direction::Backwards => (wanted.far, wanted.near),
    };
    let is_above = match low {
        Bound::Included(low) => key >= low,
        Bound::Excluded(low) => key > low,
        Bound::Unbounded => true,
    };
    is_above
        && match high {
            Bound::Included(high) => key <= high,
            Bound::Excluded(high) => key < high,
            Bound::Unbounded => true,
        }
}

impl Engine {
    /// What a snapshot's walk sees from where it is on, and the root that goes with that, for as many reads at random as it has had; `None` if these are
    /// too few, not all of it is durable yet, or others are in the way.
    ///
    /// # Errors
    /// `Io` and `Corrupted`, naming file and offset.
    pub(crate) fn freeze(&self, wanted: &Wanted<'_>, reads: u64) -> Result<Option<(Frozen, Arc<Root>)>> {
        // What a version has is in the log's durable part before it counts as durable. One that was closed where nothing was committed since the last hardening does not count.
        let is_durable =
            self.hardening.horizon.local() >= wanted.version_max || self.log.hardened() >= wanted.log_end;
        let end = wanted.log_end.min(self.log.hardened());
        let paid_bytes = reads.saturating_mul(BYTES_PER_READ);
        if !is_durable || end.saturating_sub(self.unsettled_from()) > paid_bytes {
            return Ok(None);
        }
        let Some(permit) = self.settled.frozen_walks.admit() else { return Ok(None) };
        // Dropped segments stay readable meanwhile.
        let Some(segments) = self.segments.try_hold() else { return Ok(None) };
        let Some(database) = self.superblock.try_lock().map(|superblock| superblock.current().database)
        else {
            return Ok(None);
        };
        let (root, begin) = loop {
            let root = self.settled.tree.root();
            let begin = root.settled_to().max(self.log.begin());
            // What has left the log since an older one became the newest, that one may not have.
            if self.settled.tree.is_newest(&root) {
                break (root, begin);
            }
        };
        let bytes_max = permit.part_of(self.settled.bounds.memory_bytes);
        let mut frozen = Frozen::new(wanted.direction, permit);
        let mut reader = RecordReader::new(&segments, database, Cursor::at_seal(begin));
        while reader.cursor().position < end {
            // Whoever closes the database waits.
            if self.hardening.is_stopping() {
                return Ok(None);
            }
            let segment_end = (reader.cursor().position + 1).next_multiple_of(self.log.segment_bytes());
            for (_, record) in reader.next_batch(segment_end.min(end), BATCH)?.records {
                let is_seen = record.shape.object == wanted.object
                    && (record.version <= wanted.version_max || planted(Bug::FreezesTooNew))
                    && is_within(record.key, wanted)
                    && !frozen.is_left_out(record.key)
                    && !self.hardening.horizon.was_lost(record.version);
                let is_put = record.shape.kind.is_put();
                if is_seen && (is_put || !planted(Bug::FreezesDeletedRows)) {
                    let value = is_put.then(|| record.value.to_vec());
                    let expires_at = if is_put { record.expires_at } else { NEVER };
                    frozen.add(record.key, Row { value, expires_at }, bytes_max);
                }
            }
        }
        self.cold.read_bytes.fetch_add(end.saturating_sub(begin), Ordering::Relaxed);
        frozen.give_permit_back();
        Ok(Some((frozen, root)))
    }
}
