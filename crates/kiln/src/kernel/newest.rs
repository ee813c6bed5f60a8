//! The newest records of keys, in the order of the keys: what settling collects from a part of the log.
//!
//! ```text
//!  records, in the order of the log
//!     └▶ memory, until it is full ──▶ sorted, the newest of each key kept ──▶ a run on disk ┐
//!                                                                           more runs ──────┤
//!     the next row: the least key, and of several records of it the newest ◀── side by side ┘
//! ```
//!
//! What fits into memory never sees the disk. Values that are [long](LONG_VALUE_BYTES) are neither sorted nor written here: they stay in the log until
//! somebody asks for them.

use std::cmp::Ordering as Order;
use std::io;
use std::sync::Arc;

use crate::device::{BLOCK_BYTES, Device};
use crate::error::{Error, Result};
use crate::planted::{Bug, planted};
use crate::storage::prefix::head_of;
use crate::storage::record::{Address, DiskRecord, Shape, split_expiry};
use crate::storage::runs::{RunReaders, Runs};
use crate::storage::tree::{OBJECT_BYTES, write_tree_key};

/// The newest records of keys.
pub(super) struct Newest {
    bytes_max: usize,
    /// [Entries](Entry), one after the other.
    arena: Vec<u8>,
    /// Those in the arena, in the order of the keys once they are sorted.
    sorted: Vec<Sorted>,
    runs: Runs,
    /// Of what is in the runs, and sorted in memory.
    count: u64,
    has_deletions: bool,
    key: Vec<u8>,
}

/// An entry in the arena.
#[derive(Clone, Copy)]
struct Sorted {
    head: u128,
    start: usize,
}

/// A record.
#[derive(Clone, Copy)]
pub(super) struct Entry<'a> {
    pub(super) shape: Shape,
    pub(super) address: Address,
    pub(super) version: u64,
    /// Its key [in the tree](write_tree_key).
    pub(super) tree_key: &'a [u8],
    /// As the record stores it; `None` if it is long.
    stored_value: Option<&'a [u8]>,
}

/// A longer value stays where it is.
const LONG_VALUE_BYTES: usize = 32 << 10;
/// The record's first word, its address, its version; then the key in the tree, and the value as the record stores it.
const HEAD_BYTES: usize = 3 * size_of::<u64>();

impl<'a> Entry<'a> {
    /// That which begins `bytes`, and its length.
    fn decode(bytes: &'a [u8]) -> Option<(Entry<'a>, usize)> {
        let (head, rest) = bytes.split_first_chunk::<HEAD_BYTES>()?;
        let [shape, address, version] =
            std::array::from_fn(|word| u64::from_le_bytes(std::array::from_fn(|at| head[8 * word + at])));
        let shape = Shape::parse(shape)?;
        let (tree_key, rest) = rest.split_at_checked(OBJECT_BYTES + shape.key_bytes)?;
        let is_long = shape.value_bytes > LONG_VALUE_BYTES;
        let stored_value = match is_long {
            true => None,
            false => Some(rest.get(..shape.value_bytes)?),
        };
        let bytes = HEAD_BYTES + tree_key.len() + stored_value.map_or(0, <[u8]>::len);
        Some((Entry { shape, address, version, tree_key, stored_value }, bytes))
    }

    /// The value that it puts, and when that expires, if it does; `None` if it is long.
    pub(super) fn value(&self) -> Option<(u64, &'a [u8])> {
        self.stored_value.map(|stored| split_expiry(self.shape, stored))
    }

    /// The key.
    pub(super) fn key(&self) -> &'a [u8] {
        &self.tree_key[OBJECT_BYTES..]
    }
}

/// A record takes up to so many times as much memory as it does in the log.
const ENTRY_TIMES: u64 = 2;
/// A run takes so much memory at the least while it is read.
const RUN_BYTES: u64 = 2 * BLOCK_BYTES as u64;

impl Newest {
    /// The least memory that is of use for a part of the log that is so long: with less of it there are more runs, which take more than that to be read side by
    /// side.
    pub(super) fn bytes_min(part_bytes: u64) -> usize {
        RUN_BYTES.saturating_mul(ENTRY_TIMES).saturating_mul(part_bytes).isqrt() as usize
    }

    /// Of none. Takes so much memory, about, for records of a part of the log that is so long.
    pub(super) fn new(device: Arc<dyn Device>, bytes_max: usize, part_bytes: u64) -> Newest {
        let expected = (ENTRY_TIMES * part_bytes) as usize / bytes_max.max(1) + 1;
        let runs = Runs::new(device, bytes_max, expected);
        Newest {
            bytes_max,
            arena: Vec::new(),
            sorted: Vec::new(),
            runs,
            count: 0,
            has_deletions: false,
            key: Vec::new(),
        }
    }

    fn entry(&self, sorted: &Sorted) -> Option<(Entry<'_>, usize)> {
        Entry::decode(self.arena.get(sorted.start..)?)
    }

    fn key_of(&self, sorted: &Sorted) -> &[u8] {
        self.entry(sorted).map_or(&[], |(entry, _)| entry.tree_key)
    }

    /// The order of the keys of two entries.
    #[inline]
    fn order_of(&self, one: &Sorted, other: &Sorted) -> Order {
        one.head.cmp(&other.head).then_with(|| self.key_of(one).cmp(self.key_of(other)))
    }

    /// Adds a record that comes behind all that were added before.
    ///
    /// # Errors
    /// `Io` or `NoSpace`, if what does not fit into memory cannot be written.
    pub(super) fn add(&mut self, address: Address, record: &DiskRecord<'_>) -> Result<()> {
        self.has_deletions |= !record.shape.kind.is_put();
        write_tree_key(record.shape.object, record.key, &mut self.key);
        let start = self.arena.len();
        for word in [record.shape.word(), address, record.version] {
            self.arena.extend_from_slice(&word.to_le_bytes());
        }
        self.arena.extend_from_slice(&self.key);
        if record.shape.value_bytes <= LONG_VALUE_BYTES {
            let expiry = record.expires_at.to_le_bytes();
            self.arena.extend_from_slice(&expiry[..record.shape.expiry_bytes()]);
            self.arena.extend_from_slice(record.value);
        }
        self.sorted.push(Sorted { head: head_of(&self.key), start });
        if self.arena.len() + self.sorted.len() * size_of::<Sorted>() > self.bytes_max {
            self.write_run()?;
        }
        Ok(())
    }

    /// Brings what is in memory in the order of the keys, and leaves only the newest of each.
    fn sort(&mut self) {
        let mut sorted = std::mem::take(&mut self.sorted);
        sorted.sort_unstable_by(|one, other| {
            let newest_first = || other.start.cmp(&one.start);
            self.order_of(one, other).then_with(newest_first)
        });
        if planted(Bug::SettlesOldest) {
            sorted.reverse();
            sorted.dedup_by(|later, kept| self.order_of(later, kept) == Order::Equal);
            sorted.reverse();
        } else {
            sorted.dedup_by(|later, kept| self.order_of(later, kept) == Order::Equal);
        }
        self.count += sorted.len() as u64;
        self.sorted = sorted;
    }

    /// Has a run of what is in memory.
    fn write_run(&mut self) -> Result<()> {
        self.sort();
        let (arena, sorted) = (&self.arena, &self.sorted);
        let entries = sorted.iter().filter_map(|sorted| {
            let bytes = arena.get(sorted.start..)?;
            bytes.get(..Entry::decode(bytes)?.1)
        });
        self.runs.write(entries)?;
        self.arena.clear();
        self.sorted.clear();
        Ok(())
    }

    /// Makes [`Self::walk`] possible: all have been added.
    ///
    /// # Errors
    /// As of [`Self::add`].
    pub(super) fn finish(&mut self) -> Result<()> {
        if self.runs.count() == 0 {
            self.sort();
            return Ok(());
        }
        if !self.sorted.is_empty() && !planted(Bug::SettlesNotTheLastRun) {
            self.write_run()?;
        }
        // The memory is for the runs.
        (self.arena, self.sorted) = (Vec::new(), Vec::new());
        Ok(())
    }

    /// How many there are, some perhaps of the same key; once [finished](Self::finish).
    pub(super) fn count(&self) -> u64 {
        self.count
    }

    /// True if one of the records that were added deletes its key.
    pub(super) fn has_deletions(&self) -> bool {
        self.has_deletions
    }

    /// Bytes on disk.
    pub(super) fn disk_bytes(&self) -> u64 {
        self.runs.bytes()
    }

    /// Walks over the newest records, in the order of the keys.
    ///
    /// # Errors
    /// `Io`, if what was written cannot be read.
    pub(super) fn walk(&self) -> Result<NewestWalk<'_>> {
        let mut readers = self.runs.readers();
        let on_disk = |run| Source::new(Entries::OnDisk { run, start: 0, end: 0 });
        let mut sources: Vec<_> = (0..self.runs.count()).map(on_disk).collect();
        sources.push(Source::new(Entries::InMemory {
            arena: &self.arena,
            rest: self.sorted.iter(),
            start: 0,
        }));
        let mut order = Vec::new();
        for (index, source) in sources.iter_mut().enumerate() {
            if source.advance(&mut readers)? {
                order.push(index);
            }
        }
        let mut walk = NewestWalk { readers, sources, order, last: Vec::new(), is_begun: false, passed: 0 };
        (0..walk.order.len()).rev().for_each(|place| walk.sift_down(place));
        Ok(walk)
    }
}

/// The entries of a run, or of what is in memory, one after the other.
struct Source<'n> {
    entries: Entries<'n>,
    /// Of the current entry.
    head: u128,
    address: Address,
}

enum Entries<'n> {
    InMemory {
        arena: &'n [u8],
        rest: std::slice::Iter<'n, Sorted>,
        start: usize,
    },
    /// The current entry is from `start` to `end` in the chunk of its run.
    OnDisk {
        run: usize,
        start: usize,
        end: usize,
    },
}

impl<'n> Source<'n> {
    fn new(entries: Entries<'n>) -> Source<'n> {
        Source { entries, head: 0, address: 0 }
    }

    /// Goes on to the next entry, the first one at first; false at the end.
    fn advance(&mut self, readers: &mut RunReaders<'n>) -> Result<bool> {
        match &mut self.entries {
            Entries::InMemory { rest, start, .. } => match rest.next() {
                Some(next) => *start = next.start,
                None => return Ok(false),
            },
            Entries::OnDisk { run, start, end } => {
                *start = *end;
                if *start == readers.chunk(*run).len() {
                    if !readers.next(*run)? {
                        return Ok(false);
                    }
                    (*start, *end) = (0, 0);
                }
            }
        }
        let (entry, bytes) = Entry::decode(self.bytes(readers)).ok_or_else(damaged)?;
        (self.head, self.address) = (head_of(entry.tree_key), entry.address);
        if let Entries::OnDisk { start, end, .. } = &mut self.entries {
            *end = *start + bytes;
        }
        Ok(true)
    }

    /// What begins with the current entry.
    fn bytes<'s>(&self, readers: &'s RunReaders<'n>) -> &'s [u8] {
        match &self.entries {
            Entries::InMemory { arena, start, .. } => &arena[*start..],
            Entries::OnDisk { run, start, .. } => &readers.chunk(*run)[*start..],
        }
    }

    fn entry<'s>(&self, readers: &'s RunReaders<'n>) -> Option<Entry<'s>> {
        Entry::decode(self.bytes(readers)).map(|(entry, _)| entry)
    }

    fn tree_key<'s>(&self, readers: &'s RunReaders<'n>) -> &'s [u8] {
        self.entry(readers).map_or(&[], |entry| entry.tree_key)
    }
}

#[cold]
fn damaged() -> Error {
    let what = "what was read is not in order; the disk, or memory, is faulty";
    Error::io("reading sorted runs of what is to settle", io::Error::new(io::ErrorKind::InvalidData, what))
}

/// See [`Newest::walk`].
pub(super) struct NewestWalk<'n> {
    readers: RunReaders<'n>,
    sources: Vec<Source<'n>>,
    /// A heap of those that are not at their end: the one whose entry comes first is the first.
    order: Vec<usize>,
    /// The key of the entry that was given last.
    last: Vec<u8>,
    is_begun: bool,
    passed: u64,
}

impl NewestWalk<'_> {
    /// The next key's newest record; `None` at the end.
    ///
    /// # Errors
    /// `Io`, if what was written cannot be read.
    pub(super) fn next(&mut self) -> Result<Option<Entry<'_>>> {
        if std::mem::replace(&mut self.is_begun, true) {
            loop {
                self.advance_first()?;
                let Some(&first) = self.order.first() else { break };
                match self.sources[first].tree_key(&self.readers).cmp(&self.last) {
                    Order::Greater => break,
                    // An older record of the same key.
                    Order::Equal => {}
                    Order::Less => return Err(damaged()),
                }
            }
        }
        let Some(&first) = self.order.first() else { return Ok(None) };
        let NewestWalk { readers, sources, last, .. } = self;
        let entry = sources[first].entry(readers).ok_or_else(damaged)?;
        last.clear();
        last.extend_from_slice(entry.tree_key);
        Ok(Some(entry))
    }

    /// Behind how many of [all](Newest::count) it is.
    pub(super) fn passed(&self) -> u64 {
        self.passed
    }

    fn advance_first(&mut self) -> Result<()> {
        let Some(&first) = self.order.first() else { return Ok(()) };
        self.passed += 1;
        if !self.sources[first].advance(&mut self.readers)? {
            self.order.swap_remove(0);
        }
        self.sift_down(0);
        Ok(())
    }

    /// True if one source's entry comes before another's: that of the lesser key, and of one key's the newest.
    fn comes_before(&self, one: usize, other: usize) -> bool {
        let (one, other) = (&self.sources[one], &self.sources[other]);
        let newest_first = || match planted(Bug::SettlesOldest) {
            true => one.address.cmp(&other.address),
            false => other.address.cmp(&one.address),
        };
        let by_key = || one.tree_key(&self.readers).cmp(other.tree_key(&self.readers));
        one.head.cmp(&other.head).then_with(by_key).then_with(newest_first) == Order::Less
    }

    /// Makes a heap of what is from `place` on, where all but `place` is one.
    fn sift_down(&mut self, mut place: usize) {
        loop {
            let mut least = place;
            for child in [2 * place + 1, 2 * place + 2] {
                let is_less = |&child: &usize| self.comes_before(child, self.order[least]);
                if self.order.get(child).is_some_and(is_less) {
                    least = child;
                }
            }
            if least == place {
                return;
            }
            self.order.swap(place, least);
            place = least;
        }
    }
}

const _: () = assert!(OBJECT_BYTES == size_of::<u32>());

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::device::SimulatedDevice;
    use crate::storage::record::{Kind, NEVER, NO_ADDRESS};

    /// Address, and value if there is one, by the key in the tree.
    type Told = BTreeMap<Vec<u8>, (Address, Option<Vec<u8>>)>;

    /// What a walk tells, whose keys ascend. Long values are told by their length.
    fn told(newest: &Newest) -> Told {
        let mut walk = newest.walk().unwrap();
        let (mut told, mut last) = (Told::new(), Vec::new());
        while let Some(entry) = walk.next().unwrap() {
            assert!(entry.tree_key > &last[..], "in order, and each once");
            last = entry.tree_key.to_vec();
            let value =
                || entry.value().map_or(vec![0; entry.shape.value_bytes], |(_, value)| value.to_vec());
            told.insert(last.clone(), (entry.address, entry.shape.kind.is_put().then(value)));
        }
        assert_eq!(walk.passed(), newest.count());
        told
    }

    fn add(newest: &mut Newest, address: Address, key: &[u8], value: Option<&[u8]>) {
        let kind = if value.is_some() { Kind::Put } else { Kind::Tombstone };
        let value = value.unwrap_or_default();
        let shape = Shape { kind, object: 16, key_bytes: key.len(), value_bytes: value.len() };
        let record = DiskRecord { shape, version: 1, previous: NO_ADDRESS, key, value, expires_at: NEVER };
        newest.add(address, &record).unwrap();
    }

    #[test]
    fn c4_the_newest_record_of_each_key_is_told_once_and_in_order() {
        let mut state = 7_u64;
        let mut random = |end: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % end
        };
        let records: Vec<(Vec<u8>, Option<Vec<u8>>)> = (0..3_000_u32)
            .map(|number| {
                let key = format!("{:0width$}", random(700), width = 1 + random(20) as usize);
                let length = if random(100) == 0 { LONG_VALUE_BYTES + 1 } else { random(60) as usize };
                let byte = if length > LONG_VALUE_BYTES { 0 } else { number as u8 };
                (key.into_bytes(), (random(5) > 0).then(|| vec![byte; length]))
            })
            .collect();
        let mut expected = Told::new();
        for (address, (key, value)) in (8..).step_by(8).zip(&records) {
            let mut tree_key = Vec::new();
            write_tree_key(16, key, &mut tree_key);
            expected.insert(tree_key, (address, value.clone()));
        }
        // Each record is a run; many runs; all in memory.
        for (bytes_max, runs) in [(1, 3_000..=3_000), (20_000, 5..=50), (1 << 20, 0..=0)] {
            let device = Arc::new(SimulatedDevice::new(1));
            let mut newest = Newest::new(device.clone(), bytes_max, 1 << 20);
            for (address, (key, value)) in (8..).step_by(8).zip(&records) {
                add(&mut newest, address, key, value.as_deref());
            }
            newest.finish().unwrap();
            assert!(runs.contains(&newest.runs.count()), "{} runs with {bytes_max}", newest.runs.count());
            assert!(told(&newest) == expected, "with {bytes_max} bytes");
            assert!(told(&newest) == expected, "once more, with {bytes_max} bytes");
            assert!(device.list().unwrap().is_empty(), "the file has no name");
        }
    }

    #[test]
    fn runs_take_no_more_to_be_read_than_what_is_sorted_at_once() {
        for part_bytes in [1 << 16, 1 << 24] {
            let bytes_max = Newest::bytes_min(part_bytes);
            let mut newest = Newest::new(Arc::new(SimulatedDevice::new(1)), bytes_max, part_bytes);
            for number in 0..part_bytes / 40 {
                add(&mut newest, 8 + number * 8, &number.to_be_bytes(), Some(b""));
            }
            newest.finish().unwrap();
            let runs = newest.runs.count() as u64;
            assert!(runs > 1 && runs * RUN_BYTES <= bytes_max as u64, "{runs} runs of {bytes_max} bytes");
        }
    }

    #[test]
    fn long_values_stay_in_the_log() {
        let mut newest = Newest::new(Arc::new(SimulatedDevice::new(1)), 1 << 20, 1 << 30);
        for number in 0..1_000_u64 {
            add(&mut newest, 8 + number * 8, &number.to_be_bytes(), Some(&[1; LONG_VALUE_BYTES + 1]));
        }
        newest.finish().unwrap();
        assert_eq!(newest.disk_bytes(), 0);
        assert!(newest.walk().unwrap().next().unwrap().unwrap().value().is_none());
    }
}
