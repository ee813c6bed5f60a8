//! The newest records of keys, in the order of the keys: what settling collects from a part of the log.
//!
//! ```text
//!  records of a stretch of the log, in its order
//!     └▶ memory, until it is full ──▶ sorted, the newest of each key kept ──▶ a run on disk ┐
//!                                            more runs, and those of other stretches ───────┤
//!     the next row: the least key, and of several records of it the newest ◀── side by side ┘
//! ```
//!
//! Several threads may collect, each of a stretch of its own, and in the end walk, each in an [interval of the keys](Newest::separators).
//!
//! What fits into memory never sees the disk. Values that are [long](LONG_VALUE_BYTES) are neither sorted nor written here: they stay in the log until
//! somebody asks for them.

mod walk;

use std::cmp::Ordering as Order;
use std::sync::Arc;

use crate::device::{BLOCK_BYTES, Device};
use crate::error::Result;
use crate::planted::{Bug, planted};
use crate::storage::prefix::{common_bytes, head_of};
use crate::storage::record::{Address, DiskRecord, Shape, split_expiry};
use crate::storage::runs::{Run, RunEntry, Runs};
use crate::storage::tree::{OBJECT_BYTES, write_tree_key};

pub(super) use walk::NewestWalk;

/// The newest records of keys.
pub(super) struct Newest {
    /// Memory of each who collects.
    bytes_max: usize,
    runs: Runs,
    /// A key is known of about so many bytes each.
    sample_bytes: u64,
    parts: Vec<Part>,
}

/// What one has collected: in memory, or in runs.
#[derive(Default)]
pub(super) struct Part {
    /// [Entries](Entry), one after the other.
    arena: Vec<u8>,
    /// Those in the arena, in the order of the keys once they are sorted.
    sorted: Vec<Sorted>,
    /// What all keys begin with; `None` if there are none.
    prefix: Option<Vec<u8>>,
    runs: Vec<Run>,
    /// Of what is in the runs, and sorted in memory.
    count: u64,
    has_deletions: bool,
}

/// Collects the newest records of a stretch of the log.
pub(super) struct Collector<'n> {
    bytes_max: usize,
    runs: &'n Runs,
    part: Part,
    key: Vec<u8>,
}

/// An entry in the arena.
#[derive(Clone, Copy)]
struct Sorted {
    /// Of its key behind what all begin with, once they are sorted: else those of a table would hardly ever differ, and for each comparison two entries would be looked at
    /// that are somewhere in memory.
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
/// So many keys of each run are known where several walk, so that they can divide them.
const SAMPLES: usize = 64;

impl Newest {
    /// The least memory that is of use for a part of the log that is so long, with so many threads: with less of it there are more runs, which take more
    /// than that to be read side by side.
    pub(super) fn bytes_min(part_bytes: u64, threads: usize) -> usize {
        RUN_BYTES.saturating_mul(ENTRY_TIMES).saturating_mul(part_bytes).isqrt() as usize * threads
    }

    /// Of none. Takes so much memory, about, for records of a part of the log that is so long, while as many collect, or walk, side by side as there are
    /// threads.
    pub(super) fn new(device: Arc<dyn Device>, bytes_max: usize, part_bytes: u64, threads: usize) -> Newest {
        let expected = (ENTRY_TIMES * part_bytes) as usize / bytes_max.max(1) + 1;
        let bytes_of_one = bytes_max / threads;
        let sample_bytes = if threads == 1 { u64::MAX } else { (bytes_of_one / SAMPLES).max(1) as u64 };
        // Each who collects makes so many, and each who walks reads those of all.
        let read_at_once = expected * threads * threads;
        let runs = Runs::new(device, bytes_max, read_at_once, sample_bytes);
        Newest { bytes_max: bytes_of_one, runs, sample_bytes, parts: Vec::new() }
    }

    /// Who collects what there is in a stretch of the log.
    pub(super) fn collector(&self) -> Collector<'_> {
        let Newest { bytes_max, ref runs, .. } = *self;
        Collector { bytes_max, runs, part: Part::default(), key: Vec::new() }
    }

    /// Takes what somebody has collected.
    pub(super) fn take(&mut self, part: Part) {
        self.parts.push(part);
    }

    /// How many there are, some perhaps of the same key.
    pub(super) fn count(&self) -> u64 {
        self.parts.iter().map(|part| part.count).sum()
    }

    /// True if one of the records that were added deletes its key.
    pub(super) fn has_deletions(&self) -> bool {
        self.parts.iter().any(|part| part.has_deletions)
    }

    /// Bytes on disk.
    pub(super) fn disk_bytes(&self) -> u64 {
        self.runs.bytes()
    }

    /// How many bytes all keys begin with.
    fn prefix_bytes(&self) -> usize {
        let mut prefixes = self.parts.iter().filter_map(|part| part.prefix.as_deref());
        let first = prefixes.next().unwrap_or_default();
        prefixes.fold(first.len(), |bytes, prefix| bytes.min(common_bytes(first, prefix)))
    }

    /// Keys in the tree, in ascending order, that divide what there is into so many intervals of about as many bytes each, one for each thread at the most; fewer if it is little,
    /// or if keys are long.
    pub(super) fn separators(&self, intervals: usize) -> Vec<Vec<u8>> {
        let mut samples: Vec<&[u8]> =
            self.parts.iter().flat_map(|part| part.samples(self.sample_bytes)).collect();
        samples.sort_unstable();
        let at = |number| samples.get(samples.len() * number / intervals);
        let mut separators: Vec<_> = (1..intervals).filter_map(at).map(|key| key.to_vec()).collect();
        separators.dedup();
        separators
    }

    /// Walks over the newest records, in the order of the keys.
    ///
    /// # Errors
    /// `Io`, if what was written cannot be read.
    pub(super) fn walk(&self) -> Result<NewestWalk<'_>> {
        self.walk_between(&[], None)
    }
}

impl Part {
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

    /// Keys, one for about so many bytes each.
    fn samples(&self, bytes: u64) -> impl Iterator<Item = &[u8]> {
        let count = (self.arena.len() as u64).div_ceil(bytes) as usize;
        // In the middle of each.
        let in_memory = (0..count)
            .filter_map(move |number| self.sorted.get((2 * number + 1) * self.sorted.len() / (2 * count)));
        self.runs.iter().flat_map(Run::entrances).chain(in_memory.map(|sorted| self.key_of(sorted)))
    }

    /// How many bytes all keys begin with.
    fn prefix_bytes(&self) -> usize {
        self.prefix.as_ref().map_or(0, Vec::len)
    }

    /// Takes note of a key.
    fn note_key(&mut self, key: &[u8]) {
        match &mut self.prefix {
            Some(prefix) => prefix.truncate(common_bytes(prefix, key)),
            None => self.prefix = Some(key.to_vec()),
        }
    }

    /// Brings what is in memory in the order of the keys, and leaves only the newest of each.
    fn sort(&mut self) {
        let mut sorted = std::mem::take(&mut self.sorted);
        let prefix_bytes = self.prefix_bytes();
        sorted.iter_mut().for_each(|sorted| {
            sorted.head = head_of(self.key_of(sorted).get(prefix_bytes..).unwrap_or_default())
        });
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
}

impl Collector<'_> {
    /// Adds a record that comes behind all that were added before.
    ///
    /// # Errors
    /// `Io` or `NoSpace`, if what does not fit into memory cannot be written.
    pub(super) fn add(&mut self, address: Address, record: &DiskRecord<'_>) -> Result<()> {
        let part = &mut self.part;
        part.has_deletions |= !record.shape.kind.is_put();
        write_tree_key(record.shape.object, record.key, &mut self.key);
        let start = part.arena.len();
        for word in [record.shape.word(), address, record.version] {
            part.arena.extend_from_slice(&word.to_le_bytes());
        }
        part.arena.extend_from_slice(&self.key);
        if record.shape.value_bytes <= LONG_VALUE_BYTES {
            let expiry = record.expires_at.to_le_bytes();
            part.arena.extend_from_slice(&expiry[..record.shape.expiry_bytes()]);
            part.arena.extend_from_slice(record.value);
        }
        part.note_key(&self.key);
        part.sorted.push(Sorted { head: 0, start });
        if part.arena.len() + part.sorted.len() * size_of::<Sorted>() > self.bytes_max {
            self.write_run()?;
        }
        Ok(())
    }

    /// Has a run of what is in memory.
    fn write_run(&mut self) -> Result<()> {
        let part = &mut self.part;
        part.sort();
        let entries = part.sorted.iter().filter_map(|sorted| {
            let (entry, bytes) = part.entry(sorted)?;
            Some(RunEntry { key: entry.tree_key, bytes: part.arena.get(sorted.start..)?.get(..bytes)? })
        });
        let run = self.runs.write(entries)?;
        part.runs.push(run);
        part.arena.clear();
        part.sorted.clear();
        Ok(())
    }

    /// What was collected: all have been added.
    ///
    /// # Errors
    /// As of [`Self::add`].
    pub(super) fn finish(mut self) -> Result<Part> {
        if self.part.runs.is_empty() {
            self.part.sort();
            return Ok(self.part);
        }
        if !self.part.sorted.is_empty() && !planted(Bug::SettlesNotTheLastRun) {
            self.write_run()?;
        }
        // The memory is for the runs.
        (self.part.arena, self.part.sorted) = (Vec::new(), Vec::new());
        Ok(self.part)
    }
}

const _: () = assert!(OBJECT_BYTES == size_of::<u32>());

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::device::SimulatedDevice;
    use crate::storage::record::{Kind, NEVER, NO_ADDRESS};
    use crate::storage::tree::interval;

    /// Address, and value if there is one, by the key in the tree.
    type Told = BTreeMap<Vec<u8>, (Address, Option<Vec<u8>>)>;

    /// What a walk tells of the keys from one on, and before another, which ascend; and how many records it passes. Long values are told by their length.
    fn told_between(newest: &Newest, low: &[u8], high: Option<&[u8]>) -> (Told, u64) {
        let mut walk = newest.walk_between(low, high).unwrap();
        let (mut told, mut last) = (Told::new(), Vec::new());
        while let Some(entry) = walk.next().unwrap() {
            assert!(entry.tree_key > &last[..], "in order, and each once");
            last = entry.tree_key.to_vec();
            let value =
                || entry.value().map_or(vec![0; entry.shape.value_bytes], |(_, value)| value.to_vec());
            told.insert(last.clone(), (entry.address, entry.shape.kind.is_put().then(value)));
        }
        assert!(walk.next().unwrap().is_none(), "there is an end");
        (told, walk.passed())
    }

    fn told(newest: &Newest) -> Told {
        let (told, passed) = told_between(newest, &[], None);
        assert_eq!(passed, newest.count());
        told
    }

    fn add(collector: &mut Collector<'_>, address: Address, key: &[u8], value: Option<&[u8]>) {
        let kind = if value.is_some() { Kind::Put } else { Kind::Tombstone };
        let value = value.unwrap_or_default();
        let shape = Shape { kind, object: 16, key_bytes: key.len(), value_bytes: value.len() };
        let record = DiskRecord { shape, version: 1, previous: NO_ADDRESS, key, value, expires_at: NEVER };
        collector.add(address, &record).unwrap();
    }

    fn tree_key(key: &[u8]) -> Vec<u8> {
        let mut tree_key = Vec::new();
        write_tree_key(16, key, &mut tree_key);
        tree_key
    }

    /// A number below `end`.
    fn random(state: &mut u64, end: u64) -> u64 {
        *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (*state >> 33) % end
    }

    type Row = (Vec<u8>, Option<Vec<u8>>);

    /// Rows of some hundred keys of all lengths, and with values of all lengths.
    fn rows() -> Vec<Row> {
        let mut state = 7_u64;
        let mut random = |end| random(&mut state, end);
        let row = |number| {
            let key = format!("{:0width$}", random(700), width = 1 + random(20) as usize);
            // Of those that are long, and not, by one byte.
            let length = match random(100) {
                0 => LONG_VALUE_BYTES + random(2) as usize,
                _ => random(60) as usize,
            };
            let byte = if length > LONG_VALUE_BYTES { 0 } else { number as u8 };
            (key.into_bytes(), (random(5) > 0).then(|| vec![byte; length]))
        };
        (0..3_000_u32).map(row).collect()
    }

    /// What so many collect, each with so much memory, of a stretch of the rows: the last ones first.
    fn collected(device: &Arc<SimulatedDevice>, rows: &[Row], bytes_max: usize, threads: usize) -> Newest {
        let mut newest = Newest::new(device.clone(), bytes_max * threads, 1 << 20, threads);
        let mut parts = Vec::new();
        let addressed: Vec<_> = (8..).step_by(8).zip(rows).collect();
        for stretch in addressed.chunks(rows.len().div_ceil(threads)) {
            let mut collector = newest.collector();
            for (address, (key, value)) in stretch {
                add(&mut collector, *address, key, value.as_deref());
            }
            parts.push(collector.finish().unwrap());
        }
        parts.into_iter().rev().for_each(|part| newest.take(part));
        newest
    }

    fn run_count(newest: &Newest) -> usize {
        newest.parts.iter().map(|part| part.runs.len()).sum()
    }

    fn assert_newest_told(rows: &[Row]) {
        let addressed = (8..).step_by(8).zip(rows);
        let expected: Told =
            addressed.map(|(address, (key, value))| (tree_key(key), (address, value.clone()))).collect();
        // Each record is a run; many runs; all in memory.
        for (bytes_max, runs) in [(1, 3_000..=3_000), (20_000, 5..=80), (1 << 20, 0..=0)] {
            for threads in [1, 2, 5] {
                let device = Arc::new(SimulatedDevice::new(1));
                let newest = collected(&device, rows, bytes_max, threads);
                let count = run_count(&newest);
                assert!(runs.contains(&count), "{count} runs with {bytes_max}");
                assert!(told(&newest) == expected, "with {bytes_max} bytes, {threads} threads");
                assert!(told(&newest) == expected, "once more, with {bytes_max} bytes, {threads} threads");
                assert!(device.list().unwrap().is_empty(), "the file has no name");
            }
        }
    }

    #[test]
    fn c4_the_newest_record_of_each_key_is_told_once_and_in_order() {
        assert_newest_told(&rows());
    }

    /// What one part's keys begin with another's need not; and a key may be no more than that.
    #[test]
    fn c4_so_is_that_of_keys_that_all_begin_with_the_same() {
        const PREFIX: &[u8] = b"so much is the same of all of them";
        let with_prefix = |prefix: &[u8], (key, value): Row| ([prefix, &key].concat(), value);
        let mut rows: Vec<Row> = rows().into_iter().map(|row| with_prefix(PREFIX, row)).collect();
        (rows[7].0, rows[2_000].0) = (PREFIX.to_vec(), [PREFIX, b"\0"].concat());
        assert_newest_told(&rows);
        rows[1_500..].iter_mut().for_each(|row| *row = with_prefix(b"so much", std::mem::take(row)));
        assert_newest_told(&rows);
        rows.truncate(1);
        let newest = collected(&Arc::new(SimulatedDevice::new(1)), &rows, 1 << 20, 1);
        assert_eq!((told(&newest).len(), newest.prefix_bytes()), (1, tree_key(&rows[0].0).len()));
    }

    #[test]
    fn c4_intervals_have_all_records_between_them() {
        let rows = rows();
        for bytes_max in [1, 20_000, 1 << 20] {
            for threads in [1, 2, 5] {
                let newest = collected(&Arc::new(SimulatedDevice::new(1)), &rows, bytes_max, threads);
                let expected = told(&newest);
                // Also at keys that nobody has, and where there is nothing.
                let others = ["", "3", "3\0", "4444444", "~"].map(|key| tree_key(key.as_bytes()));
                for separators in [newest.separators(threads), others.to_vec()] {
                    let (mut all, mut all_passed) = (Told::new(), 0);
                    for number in 0..=separators.len() {
                        let (low, high) = interval(&separators, number);
                        let (told, passed) = told_between(&newest, low, high);
                        let is_inside = |key: &[u8]| key >= low && high.is_none_or(|high| key < high);
                        assert!(told.keys().all(|key| is_inside(key)));
                        all.extend(told);
                        all_passed += passed;
                    }
                    assert!(all == expected, "with {bytes_max} bytes, {threads} threads");
                    assert_eq!(all_passed, newest.count());
                }
            }
        }
    }

    #[test]
    fn each_interval_has_about_as_many_records() {
        const ROWS: u64 = 40_000;
        let mut state = 7;
        let key = |_| random(&mut state, 1 << 31).pow(2).to_be_bytes().to_vec();
        let rows: Vec<_> = (0..ROWS).map(key).map(|key| (key, Some(vec![7; 20]))).collect();
        for (bytes_max, runs) in [(150_000, 12..=50), (8 << 20, 0..=0)] {
            for threads in 2..5 {
                let newest = collected(&Arc::new(SimulatedDevice::new(1)), &rows, bytes_max, threads);
                assert!(runs.contains(&run_count(&newest)), "{} runs", run_count(&newest));
                let separators = newest.separators(threads);
                assert_eq!(separators.len(), threads - 1);
                let is_before = |separator: &Vec<u8>, key: &Vec<u8>| tree_key(key) < *separator;
                let before =
                    |separator| rows.iter().filter(|(key, _)| is_before(separator, key)).count() as u64;
                let even = ROWS / threads as u64;
                for (number, separator) in (1..).zip(&separators) {
                    let (before, wanted) = (before(separator), even * number);
                    assert!(
                        before.abs_diff(wanted) < even / 2,
                        "{before} of {wanted} with {bytes_max} bytes"
                    );
                }
            }
        }
    }

    #[test]
    fn runs_take_no_more_to_be_read_than_what_is_sorted_at_once() {
        for (part_bytes, threads) in [(1 << 16, 1), (1 << 24, 1), (1 << 24, 3)] {
            let bytes_max = Newest::bytes_min(part_bytes, threads);
            let device = Arc::new(SimulatedDevice::new(1));
            let mut newest = Newest::new(device, bytes_max, part_bytes, threads);
            let parts: Vec<_> = (0..threads as u64)
                .map(|thread| {
                    let mut collector = newest.collector();
                    for number in 0..part_bytes / threads as u64 / 40 {
                        add(&mut collector, 8 + number * 8, &(number * 3 + thread).to_be_bytes(), Some(b""));
                    }
                    collector.finish().unwrap()
                })
                .collect();
            parts.into_iter().for_each(|part| newest.take(part));
            // Each reads all of them.
            let runs = (run_count(&newest) * threads) as u64;
            assert!(runs > 1 && runs * RUN_BYTES <= bytes_max as u64, "{runs} runs of {bytes_max} bytes");
        }
    }

    #[test]
    fn long_values_stay_in_the_log() {
        let mut newest = Newest::new(Arc::new(SimulatedDevice::new(1)), 1 << 20, 1 << 30, 1);
        let mut collector = newest.collector();
        for number in 0..1_000_u64 {
            add(&mut collector, 8 + number * 8, &number.to_be_bytes(), Some(&[1; LONG_VALUE_BYTES + 1]));
        }
        let part = collector.finish().unwrap();
        newest.take(part);
        assert_eq!(newest.disk_bytes(), 0);
        assert!(newest.walk().unwrap().next().unwrap().unwrap().value().is_none());
    }
}
