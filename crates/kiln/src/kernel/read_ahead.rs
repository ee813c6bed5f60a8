//! Reading ahead: the cold records that a batch is going to ask for, many of them in flight at once.
//!
//! ```text
//!  items:   run | group | in flight ... | not looked at yet
//!                 ^ its reads are waited for, then its operations run
//! ```
//!
//! What was read, and whose checksum holds, goes into the read cache, and there the operations find it; each of them is the
//! operation that it would be alone. So reading ahead has no effect but on speed: it leaves out what it cannot find, read or
//! believe, whatever the reason, and the operation meets the reason by itself. A segment that is dropped meanwhile is one of them: its file
//! is still open, and the address is part of the checksum, so that the records of its next use are never taken for its own.

use std::collections::VecDeque;

use super::cold::Cold;
use super::engine::Engine;
use crate::device::{
    AlignedBuffer, BLOCK_BYTES, FinishedRead, QueuedRead, READ_QUEUES_KEPT_MAX, READS_IN_FLIGHT_MAX,
    ReadQueue,
};
use crate::planted::{Bug, planted};
use crate::storage::epoch;
use crate::storage::record::{self, Address, DiskRecord, NO_ADDRESS, Shape};
use crate::sync::atomic::Ordering;

/// So that one read that takes long does not leave the disk with nothing to do.
const READS_AHEAD_MAX: usize = 4 * READS_IN_FLIGHT_MAX;
/// Cache memory that a read in flight is to find behind it, so that it is still there when it is asked for.
const CACHE_BYTES_PER_READ: u64 = 8 << 10;
/// So many items beyond those that are next are looked at: where most are in memory, that is how far one must look for those that are not.
const LOOKED_AT_AHEAD_MAX: usize = 1 << 10;
/// So many records that are too new are passed, in memory, where each is a cache miss while others wait for who is pinned, and again on disk, where one is read after the other.
const NEWER_MAX: usize = 16;
/// Longer buffers are not kept for the next read.
const KEPT_BUFFER_BYTES_MAX: usize = 4 * BLOCK_BYTES;

/// A queue of the device's and buffers for it, which go from one batch to the next.
#[derive(Debug)]
pub(crate) struct Reads {
    queue: Box<dyn ReadQueue>,
    buffers: Vec<AlignedBuffer>,
    in_flight: Vec<InFlight>,
    /// The items that something was read for, and that were not run yet, in order.
    ahead: VecDeque<usize>,
}

/// A read that was submitted; its number in the list is the read's token.
#[derive(Clone, Copy, Debug, Default)]
struct InFlight {
    address: Address,
    /// Which of the batch's items it is for; `None` if it is done.
    item: Option<usize>,
    /// So many newer records of the item were read before it.
    newer: usize,
}

impl InFlight {
    fn first(item: usize, address: Address) -> InFlight {
        InFlight { address, item: Some(item), newer: 0 }
    }
}

/// Reads ahead of one batch.
pub(crate) struct ReadAhead<'e> {
    engine: &'e Engine,
    /// Taken when the first cold record is met.
    reads: Option<Reads>,
    in_flight_count: usize,
    in_flight_max: usize,
    /// So many reads may be done or in flight for what comes after the next group.
    ahead_max: usize,
    /// The first item that was not looked at yet.
    next_item: usize,
    /// Who asks sees versions up to this one: what is newer in memory is passed, to the record behind it.
    version_max: u64,
    /// Reads begun so far, and those of them of keys' newest records.
    pub(crate) begun: u64,
    pub(crate) begun_newest: u64,
}

/// A record that is to be read.
struct ColdRecord {
    address: Address,
    /// There is no newer one of its key.
    is_newest: bool,
}

/// What came of waiting for a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Nothing yet, or there was none.
    Nothing,
    /// There is nothing more to be read for the item: it is in the cache, or cannot be.
    Done(usize),
    /// The device gives nothing back any more.
    Broken,
}

impl Engine {
    /// For who asks for the newest records.
    pub(crate) fn read_ahead(&self) -> ReadAhead<'_> {
        self.read_ahead_as_of(u64::MAX)
    }

    /// For who sees versions up to this one.
    pub(crate) fn read_ahead_as_of(&self, version_max: u64) -> ReadAhead<'_> {
        let fit = (self.cold.cache.bytes() / CACHE_BYTES_PER_READ) as usize;
        let in_flight_max = fit.clamp(2, READS_IN_FLIGHT_MAX);
        let ahead_max = fit.clamp(2, READS_AHEAD_MAX);
        ReadAhead {
            engine: self,
            reads: None,
            in_flight_count: 0,
            in_flight_max,
            ahead_max,
            next_item: 0,
            version_max,
            begun: 0,
            begun_newest: 0,
        }
    }

    /// True if what is to be seen of one of the keys with these hashes, up to a version, may be on disk alone, as far as a quick look tells: one whose tag another key's
    /// record in memory has is overlooked, and read by its operation.
    pub(crate) fn any_cold(&self, hashes: &[u64], version_max: u64) -> bool {
        // Nothing has left the log's memory yet.
        if self.log.head() == self.log.begin() {
            return false;
        }
        let _pin = epoch::pin();
        let head = self.log.head();
        hashes.iter().any(|&hash| {
            // Nearly always the first candidate is the key's: then what else is in the bucket, and behind it, is not worth a look.
            let first = self.index.first_candidate(self.index.bucket_of(hash), hash);
            first.is_none_or(|first| self.behind_newer(first.address, version_max) < head)
                && self.cold_candidate(hash, version_max).is_some()
        })
    }

    /// The first record below the head, and not in the cache, that may be what is to be seen of a key with this hash up to a version. The caller is pinned.
    fn cold_candidate(&self, hash: u64, version_max: u64) -> Option<ColdRecord> {
        let (head, cache) = (self.log.head(), &self.cold.cache);
        let cold = |newest| {
            let address = self.behind_newer(newest, version_max);
            let is_cold = address != NO_ADDRESS && address < head && !cache.has(address);
            is_cold.then_some(ColdRecord { address, is_newest: address == newest })
        };
        self.index.find(self.index.bucket_of(hash), hash, cold)
    }

    /// Where the first record is, at an address or behind it, that is not in memory, or is not newer than a version; the newest one if that is far behind. The caller is
    /// pinned.
    fn behind_newer(&self, newest: Address, version_max: u64) -> Address {
        // Of the newest ones none need be looked at.
        if version_max == u64::MAX {
            return newest;
        }
        let mut address = newest;
        for _ in 0..NEWER_MAX {
            match self.log.view(address).filter(|view| view.version() > version_max) {
                Some(view) => address = view.previous(),
                None => return address,
            }
        }
        newest
    }
}

impl ReadAhead<'_> {
    pub(crate) fn version_max(&self) -> u64 {
        self.version_max
    }

    /// Whether reads have been begun, perhaps for what comes next.
    pub(crate) fn is_at_work(&self) -> bool {
        self.reads.is_some()
    }

    /// Reads for `length` items from `first` on, and for some that follow, of `count`; waits for the former. `hash_of` gives the
    /// hash of an item's key.
    pub(crate) fn up_to(
        &mut self,
        first: usize,
        length: usize,
        count: usize,
        hash_of: impl Fn(usize) -> u64,
    ) {
        let end = first + length;
        let count = count.min(end + LOOKED_AT_AHEAD_MAX);
        self.next_item = self.next_item.max(first);
        if let Some(reads) = &mut self.reads {
            reads.ahead.drain(..reads.ahead.partition_point(|&item| item < first));
        }
        loop {
            while self.next_item < count && self.may_submit(length) {
                let (item, hash) = (self.next_item, hash_of(self.next_item));
                self.next_item += 1;
                let candidate = self.candidate(hash);
                if let Some(ColdRecord { address, is_newest }) = candidate
                    && self.submit(InFlight::first(item, address), self.likely_bytes(address))
                {
                    self.begun_newest += u64::from(is_newest);
                    self.reads.iter_mut().for_each(|reads| reads.ahead.push_back(item));
                }
            }
            let is_for_these = |read: &InFlight| read.item.is_some_and(|item| item < end);
            // So that there are as many in flight as there may be while the group runs.
            if self.take_done().is_some() {
                continue;
            }
            let Some(reads) = &mut self.reads else { return };
            if !reads.in_flight.iter().any(is_for_these) {
                return;
            }
            if matches!(self.step(), Step::Broken) {
                return;
            }
        }
    }

    /// How many more reads there may be.
    pub(crate) fn room(&self) -> usize {
        self.in_flight_max - self.in_flight_count
    }

    /// Whether there is something to wait for.
    pub(crate) fn is_reading(&self) -> bool {
        self.in_flight_count > 0
    }

    /// Begins to read what a key with this hash may have on disk; false if there is nothing, or it cannot be read ahead. Not for who
    /// uses [`Self::up_to`], which chooses the items itself.
    pub(crate) fn begin(&mut self, item: usize, hash: u64) -> bool {
        let candidate = self.candidate(hash);
        candidate.is_some_and(|cold| {
            self.submit(InFlight::first(item, cold.address), self.likely_bytes(cold.address))
        })
    }

    /// Waits for a read that is in flight.
    pub(crate) fn step(&mut self) -> Step {
        let Some(reads) = self.reads.as_mut().filter(|_| self.in_flight_count > 0) else {
            return Step::Nothing;
        };
        match reads.queue.wait() {
            Some(finished) => self.take(finished).map_or(Step::Nothing, Step::Done),
            None => {
                self.engine.cold.in_flight.fetch_sub(self.in_flight_count as u64, Ordering::Relaxed);
                self.in_flight_count = 0;
                self.reads = None;
                Step::Broken
            }
        }
    }

    /// What has come of a read that is done, if there is one.
    pub(crate) fn take_done(&mut self) -> Option<Step> {
        let finished = self.reads.as_mut().filter(|_| self.in_flight_count > 0)?.queue.take_done()?;
        Some(self.take(finished).map_or(Step::Nothing, Step::Done))
    }

    fn candidate(&self, hash: u64) -> Option<ColdRecord> {
        let _pin = epoch::pin();
        self.engine.cold_candidate(hash, self.version_max)
    }

    fn likely_bytes(&self, address: Address) -> usize {
        self.engine.cold.likely_bytes(address, self.engine.segments.segment_bytes())
    }

    /// Whether there may be another read while a group of this length is next.
    fn may_submit(&self, length: usize) -> bool {
        // However long the group's own reads take: what is read must still be in the cache when its turn comes.
        let ahead = self.reads.as_ref().map_or(0, |reads| reads.ahead.len());
        self.in_flight_count < self.in_flight_max && ahead < self.ahead_max + length
    }

    /// False if it cannot be.
    fn submit(&mut self, in_flight: InFlight, record_bytes: usize) -> bool {
        let (engine, address) = (self.engine, in_flight.address);
        let Ok(file) = engine.segments.file(address) else { return false };
        let segment_bytes = engine.segments.segment_bytes();
        let (offset, skip) = block_of(address % segment_bytes);
        let bytes = (skip + record_bytes).next_multiple_of(BLOCK_BYTES);
        if offset + bytes as u64 > segment_bytes {
            return false;
        }
        let reads = self.reads.get_or_insert_with(|| engine.cold.take_reads(engine));
        let mut buffer = reads.buffers.pop().unwrap_or_default();
        buffer.resize(bytes);
        let token = match reads.in_flight.iter().position(|read| read.item.is_none()) {
            Some(free) => {
                reads.in_flight[free] = in_flight;
                free
            }
            None => {
                reads.in_flight.push(in_flight);
                reads.in_flight.len() - 1
            }
        };
        self.in_flight_count += 1;
        self.begun += 1;
        engine.cold.in_flight.fetch_add(1, Ordering::Relaxed);
        reads.queue.submit(QueuedRead { file, offset, buffer, token: token as u64 });
        true
    }

    /// Puts what was read into the cache, and reads the rest of it, or the record before it if it is too new. Gives the item if there is nothing more to be read for it.
    fn take(&mut self, finished: FinishedRead) -> Option<usize> {
        let cold = &self.engine.cold;
        let reads = self.reads.as_mut()?;
        let in_flight = std::mem::take(&mut reads.in_flight[finished.token as usize]);
        let InFlight { address, item, newer } = in_flight;
        self.in_flight_count -= 1;
        cold.in_flight.fetch_sub(1, Ordering::Relaxed);
        let (_, skip) = block_of(address);
        let mut rest = None;
        if let Ok(count) = finished.outcome {
            let bytes = finished.buffer.get(skip..count).unwrap_or_default();
            let word = bytes.first_chunk::<8>().map(|word| u64::from_le_bytes(*word));
            match (word.and_then(Shape::parse), item) {
                // Unless the file ends before the record does.
                (Some(shape), Some(_)) if skip + shape.bytes() as usize > finished.buffer.len() => {
                    cold.read_bytes.fetch_add(count as u64, Ordering::Relaxed);
                    // What the cache would not keep is left to who asks for it.
                    rest = cold.cache.can_keep(shape.bytes()).then_some((in_flight, shape.bytes() as usize));
                }
                _ => {
                    let unchecked =
                        planted(Bug::ReadAheadUnchecked).then(|| with_right_checksum(address, bytes));
                    if let Ok(record) = DiskRecord::parse(address, unchecked.as_deref().unwrap_or(bytes)) {
                        cold.note_read(record.shape.bytes(), count as u64);
                        let others = || reads.in_flight.iter().filter(|read| read.item.is_some());
                        let misplaced = planted(Bug::ReadAheadMisplaced).then(|| others().next()).flatten();
                        let address = misplaced.map_or(address, |other| other.address);
                        cold.cache.admit(address, &record, &self.engine.is_newest());
                        let previous = record.previous;
                        let is_wanted = record.version > self.version_max
                            && newer < NEWER_MAX
                            && previous >= self.engine.log.begin()
                            && previous != NO_ADDRESS
                            && !cold.cache.has(previous);
                        let bytes = cold.likely_bytes(previous, self.engine.segments.segment_bytes());
                        let read = InFlight { address: previous, item, newer: newer + 1 };
                        rest = (is_wanted && item.is_some()).then_some((read, bytes));
                    }
                }
            }
        }
        self.engine.watch_reads();
        if finished.buffer.len() <= KEPT_BUFFER_BYTES_MAX {
            reads.buffers.push(finished.buffer);
        }
        match rest {
            Some((read, record_bytes)) if self.submit(read, record_bytes) => None,
            _ => item,
        }
    }
}

impl Drop for ReadAhead<'_> {
    fn drop(&mut self) {
        let Some(mut reads) = self.reads.take() else { return };
        // The next batch must not meet reads of this one. A panic in the caller's closure comes here, too.
        while self.in_flight_count > 0 && reads.queue.wait().is_some() {
            self.in_flight_count -= 1;
            self.engine.cold.in_flight.fetch_sub(1, Ordering::Relaxed);
        }
        if self.in_flight_count == 0 {
            reads.in_flight.clear();
            reads.ahead.clear();
            self.engine.cold.give_back(reads);
        }
    }
}

impl Cold {
    /// A queue with nothing in flight. In a process that was forked its parent's are given up: what one of them asks for the other would be given.
    fn take_reads(&self, engine: &Engine) -> Reads {
        let kept = self.queues.lock().pop();
        kept.filter(|reads| reads.queue.is_here()).unwrap_or_else(|| Reads {
            queue: engine.segments.read_queue(),
            buffers: Vec::new(),
            in_flight: Vec::new(),
            ahead: VecDeque::new(),
        })
    }

    /// Keeps a queue with nothing in flight for the next batch, unless there are enough.
    fn give_back(&self, reads: Reads) {
        let mut queues = self.queues.lock();
        if queues.len() < READ_QUEUES_KEPT_MAX {
            queues.push(reads);
        } else {
            // Its end is a matter of the system, which the lock does not wait for.
            drop(queues);
            drop(reads);
        }
    }
}

/// For a planted bug: what begins `bytes`, as if it were what had been written at `address`.
fn with_right_checksum(address: Address, bytes: &[u8]) -> Vec<u8> {
    let mut bytes = [&[0; 8], bytes].concat();
    let _ = record::finish(address, &mut bytes, 8);
    bytes.split_off(8)
}

/// Where the block that holds a byte begins, and where in the block the byte is.
fn block_of(offset: u64) -> (u64, usize) {
    let skip = offset % BLOCK_BYTES as u64;
    (offset - skip, skip as usize)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use crate::Options;
    #[cfg(not(miri))]
    use crate::device::forked::{in_fork, is_alone};
    use crate::device::{Device, OpenMode, READ_QUEUES_KEPT_MAX, SimulatedDevice};
    use crate::error::ErrorKind;

    /// Each is an io_uring with its descriptor, and up to a megabyte of buffers, and all that were ever needed at once were kept.
    #[test]
    fn of_the_queues_of_many_batches_at_once_a_few_are_kept() {
        let options = Options::new().background(false).segment_bytes(64 << 10).memory(2 << 20);
        let db = options.open_on(Arc::new(SimulatedDevice::new(1))).unwrap();
        let engine = db.engine();
        let at_once: Vec<_> = (0..50).map(|_| engine.cold.take_reads(engine)).collect();
        at_once.into_iter().for_each(|reads| engine.cold.give_back(reads));
        assert_eq!(engine.cold.queues.lock().len(), READ_QUEUES_KEPT_MAX);
        let again = engine.cold.take_reads(engine);
        assert_eq!(
            engine.cold.queues.lock().len(),
            READ_QUEUES_KEPT_MAX - 1,
            "the next batch takes one of them"
        );
        engine.cold.give_back(again);
    }

    /// Each batch made one, and gave it to the next, which did not take it.
    #[test]
    #[cfg(not(miri))]
    fn the_queue_of_a_batch_is_the_next_ones_also_in_a_process_that_was_forked() {
        if !is_alone() {
            return;
        }
        let directory = tempfile::tempdir().unwrap();
        let db = Options::new().background(false).open(directory.path()).unwrap();
        let at_once = [(); 2].map(|()| db.engine().cold.take_reads(db.engine()));
        at_once.into_iter().for_each(|reads| db.engine().cold.give_back(reads));
        in_fork(move || {
            let engine = db.engine();
            let own = engine.cold.take_reads(engine);
            assert!(own.queue.is_here());
            engine.cold.give_back(own);
            let kept = engine.cold.queues.lock().len();
            assert!(engine.cold.take_reads(engine).queue.is_here());
            assert_eq!(engine.cold.queues.lock().len(), kept - 1);
        });
    }

    #[test]
    fn c9_a_batch_over_a_file_that_ends_within_a_record_fails_and_ends() {
        let disk = SimulatedDevice::new(1);
        let options = Options::new().background(false).segment_bytes(64 << 10).memory(2 << 20);
        let db = options.open_on(Arc::new(disk.clone())).unwrap();
        let map = db.map("map").unwrap();
        for number in 0..1500u32 {
            db.put(&map, number.to_be_bytes(), [7; 3000]).unwrap().forget();
            if number % 8 == 0 {
                db.persist().unwrap();
            }
        }
        db.persist().unwrap();
        disk.open("segment-00000000", OpenMode::ReadWrite).unwrap().truncate(8192).unwrap();
        let keys: Vec<_> = (0..16u32).map(u32::to_be_bytes).collect();
        let error = db.get_many(&map, &keys, |_, _| {}).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupted, "{error}");
    }
}
