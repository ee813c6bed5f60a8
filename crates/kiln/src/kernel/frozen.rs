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

use std::ops::{Bound, RangeBounds};
use std::sync::Arc;

use super::engine::Engine;
use crate::device::BLOCK_BYTES;
use crate::error::Result;
use crate::planted::{Bug, planted};
use crate::storage::prefix::head_of;
use crate::storage::record::{Address, DiskRecord, NEVER};
use crate::storage::record_reader::Cursor;
use crate::storage::tree::{Direction, Root};
use crate::sync::atomic::{AtomicU64, Ordering};

/// A read at random takes as long as reading so many bytes of the log, or settling them, in one piece.
pub(super) const BYTES_PER_READ: u64 = 16 << 10;
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
    /// What is still to be walked.
    pub(crate) bounds: (Bound<&'w [u8]>, Bound<&'w [u8]>),
    pub(crate) direction: Direction,
    /// It sees what was committed up to this version, all of which lies before `log_end`.
    pub(crate) version_max: u64,
    pub(crate) log_end: Address,
}

/// What a key had, in the arena.
#[derive(Clone, Copy, Debug)]
struct Entry {
    /// See [`head_of`].
    head: u128,
    /// Of the record: that of a newer one is greater.
    address: Address,
    /// Where the key begins; its value comes behind it.
    start: usize,
    key_bytes: usize,
    /// `None`: it had none.
    value_bytes: Option<usize>,
    expires_at: u64,
}

impl Entry {
    fn bytes(&self) -> usize {
        self.key_bytes + self.value_bytes.unwrap_or(0)
    }
}

/// See the module's documentation.
#[derive(Debug)]
pub(crate) struct Frozen {
    direction: Direction,
    bytes_max: usize,
    /// Keys and values.
    arena: Vec<u8>,
    /// Once all is there, in the order in which the walk comes to them.
    entries: Vec<Entry>,
    /// The next one.
    next: usize,
    /// Keys from this one on, in the direction, are left out.
    cut_at: Option<Vec<u8>>,
    /// If there are some.
    permit: Option<Permit>,
}

impl Frozen {
    fn new(direction: Direction, bytes_max: usize, permit: Permit) -> Frozen {
        let (arena, entries) = (Vec::new(), Vec::new());
        Frozen { direction, bytes_max, arena, entries, next: 0, cut_at: None, permit: Some(permit) }
    }

    fn key_of(&self, entry: &Entry) -> &[u8] {
        &self.arena[entry.start..][..entry.key_bytes]
    }

    /// The next key.
    pub(crate) fn key(&self) -> Option<&[u8]> {
        self.entries.get(self.next).map(|entry| self.key_of(entry))
    }

    /// True if the next key has a value.
    pub(crate) fn has_value(&self) -> bool {
        self.entries.get(self.next).is_some_and(|entry| entry.value_bytes.is_some())
    }

    /// Goes past the next key.
    pub(crate) fn pass(&mut self) {
        self.next += 1;
    }

    fn passed(&self) -> Option<&Entry> {
        self.entries.get(self.next.checked_sub(1)?)
    }

    /// The key that was passed last, and its value.
    pub(crate) fn row(&self) -> (&[u8], &[u8]) {
        let Some(entry) = self.passed() else { return (&[], &[]) };
        self.arena[entry.start..][..entry.bytes()].split_at(entry.key_bytes)
    }

    /// When that expires, if it does.
    pub(crate) fn expires_at(&self) -> u64 {
        self.passed().map_or(NEVER, |entry| entry.expires_at)
    }

    /// Goes on to the first key that is not before this one, which lies ahead; false if that is left out.
    pub(crate) fn seek_on(&mut self, key: &[u8]) -> bool {
        let rest = self.entries.get(self.next..).unwrap_or_default();
        self.next += rest.partition_point(|entry| self.direction.is_before(self.key_of(entry), key));
        !self.is_left_out(key)
    }

    pub(crate) fn cut_at(&self) -> Option<&[u8]> {
        self.cut_at.as_deref()
    }

    /// How many keys there are.
    pub(crate) fn count(&self) -> u64 {
        self.entries.len() as u64
    }

    fn is_left_out(&self, key: &[u8]) -> bool {
        self.cut_at.as_deref().is_some_and(|cut_at| !self.direction.is_before(key, cut_at))
    }

    /// Adds a record that comes behind all that were added before.
    fn add(&mut self, address: Address, record: &DiskRecord<'_>) {
        let (start, is_put) = (self.arena.len(), record.shape.kind.is_put());
        self.arena.extend_from_slice(record.key);
        if is_put {
            self.arena.extend_from_slice(record.value);
        }
        self.entries.push(Entry {
            head: head_of(record.key),
            address,
            start,
            key_bytes: record.key.len(),
            value_bytes: is_put.then_some(record.value.len()),
            expires_at: if is_put { record.expires_at } else { NEVER },
        });
        if self.arena.len() + self.entries.len() * size_of::<Entry>() > self.bytes_max {
            self.make_room();
        }
    }

    /// Brings what is there in the order of the walk, and leaves only the newest of each key.
    fn sort(&mut self) {
        let mut entries = std::mem::take(&mut self.entries);
        let by_key = |one: &Entry, other: &Entry| {
            let order = one.head.cmp(&other.head).then_with(|| self.key_of(one).cmp(self.key_of(other)));
            if self.direction == Direction::Forwards { order } else { order.reverse() }
        };
        entries
            .sort_unstable_by(|one, other| by_key(one, other).then_with(|| other.address.cmp(&one.address)));
        entries.dedup_by(|later, kept| by_key(later, kept).is_eq());
        self.entries = entries;
    }

    /// Leaves half of what there is room for, and leaves out the rest, which the walk comes to last. One stays, however long it is: a walk has to come on.
    fn make_room(&mut self) {
        self.sort();
        let (mut bytes, mut count) = (0, 0);
        for entry in &self.entries {
            bytes += entry.bytes() + size_of::<Entry>();
            if count > 0 && bytes > self.bytes_max / 2 {
                break;
            }
            count += 1;
        }
        if let Some(first) = self.entries.get(count) {
            self.cut_at = Some(self.key_of(first).to_vec());
        }
        self.entries.truncate(count);
        // What was superseded, or is left out, leaves the arena.
        let mut arena = Vec::with_capacity(self.arena.len());
        for entry in &mut self.entries {
            let start = arena.len();
            arena.extend_from_slice(&self.arena[entry.start..][..entry.bytes()]);
            entry.start = start;
        }
        self.arena = arena;
    }

    /// All have been added.
    fn finish(&mut self) {
        self.sort();
        if self.entries.is_empty() {
            self.permit = None;
        }
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
        let bytes_max = permit.part_of(self.settled.bounds.memory_bytes);
        if bytes_max < BLOCK_BYTES {
            return Ok(None);
        }
        // Dropped segments stay readable meanwhile.
        let Some(segments) = self.segments.try_hold() else { return Ok(None) };
        let (root, begin) = loop {
            let root = self.settled.tree.root();
            let begin = root.settled_to().max(self.log.begin());
            // What has left the log since an older one became the newest, that one may not have.
            if self.settled.tree.is_newest(&root) {
                break (root, begin);
            }
        };
        let mut frozen = Frozen::new(wanted.direction, bytes_max, permit);
        let mut reader = self.log_reader(&segments, Cursor::at_seal(begin));
        while reader.cursor().position < end {
            // Whoever closes the database waits.
            if self.hardening.is_stopping() {
                return Ok(None);
            }
            for (address, record) in reader.next_batch(end, BATCH)?.records {
                let is_seen = record.shape.object == wanted.object
                    && (record.version <= wanted.version_max || planted(Bug::FreezesTooNew))
                    && RangeBounds::<[u8]>::contains(&wanted.bounds, record.key)
                    && !frozen.is_left_out(record.key)
                    && !self.hardening.horizon.was_lost(record.version);
                if is_seen && (record.shape.kind.is_put() || !planted(Bug::FreezesDeletedRows)) {
                    frozen.add(address, &record);
                }
            }
        }
        self.cold.read_bytes.fetch_add(end.saturating_sub(begin), Ordering::Relaxed);
        frozen.finish();
        Ok(Some((frozen, root)))
    }
}
