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
//!
//! Of records that lie in the same blocks one is read, and the others [ride](Reads::riders) with it; what follows may come too ([`neighbours`](super::neighbours)).

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
    /// What is read with another one, whose token that is.
    riders: Vec<(usize, InFlight)>,
    /// The items that something was read for, and that were not run yet, in order.
    ahead: VecDeque<usize>,
}

/// A read that was submitted; its number in the list is the read's token.
#[derive(Clone, Copy, Debug, Default)]
struct InFlight {
    address: Address,
    /// What is read of the log ends there.
    end: Address,
    /// Which of the batch's items it is for; `None` if it is done.
    item: Option<usize>,
    /// So many newer records of the item were read before it.
    newer: usize,
    /// What lies behind the record is to come in, too.
    has_neighbours: bool,
}

impl InFlight {
    /// The first record to be read for an item, which is probably no longer than that.
    fn first(item: usize, address: Address, likely_bytes: usize) -> InFlight {
        InFlight {
            address,
            end: address + likely_bytes as u64,
            item: Some(item),
            newer: 0,
            has_neighbours: false,
        }
    }

    /// A record that is to be read instead of this one, or more of it.
    fn then(self, address: Address, bytes: usize, newer: usize) -> InFlight {
        InFlight { address, end: address + bytes as u64, newer, has_neighbours: false, ..self }
    }

    /// Where what is read begins.
    fn start(&self) -> Address {
        self.address - self.address % BLOCK_BYTES as u64
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
    pub(super) fn behind_newer(&self, newest: Address, version_max: u64) -> Address {
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
                let Some(ColdRecord { address, is_newest }) = self.candidate(hash) else { continue };
                let read = InFlight::first(item, address, self.likely_bytes(address));
                let rides = self.ride(read);
                if rides || self.submit(self.with_neighbours(read)) {
                    self.begun_newest += u64::from(is_newest && !rides);
                    self.reads.iter_mut().for_each(|reads| reads.ahead.push_back(item));
                }
            }
            let is_for_these = |read: &InFlight| read.item.is_some_and(|item| item < end);
            // So that there are as many in flight as there may be while the group runs.
            if self.take_done().is_some() {
                continue;
            }
            let Some(reads) = &mut self.reads else { return };
            let mut riders = reads.riders.iter().map(|(_, read)| read);
            if !reads.in_flight.iter().any(is_for_these) && !riders.any(is_for_these) {
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
            let read = InFlight::first(item, cold.address, self.likely_bytes(cold.address));
            self.submit(self.with_neighbours(read))
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

    /// So many records can be read before one of them is asked for.
    pub(crate) fn ahead_max(&self) -> usize {
        self.ahead_max
    }

    /// Reads the records at these addresses, which may have left the log, and waits for them. Not for who uses [`Self::up_to`] or [`Self::begin`].
    pub(crate) fn all(&mut self, addresses: &[Address]) {
        for (item, &address) in addresses.iter().enumerate() {
            let read = InFlight::first(item, address, self.likely_bytes(address));
            if self.ride(read) {
                continue;
            }
            while self.room() == 0 {
                if self.step() == Step::Broken {
                    return;
                }
            }
            self.submit(self.with_neighbours(read));
        }
        while self.is_reading() {
            self.step();
        }
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

    /// The same read, of what lies behind the record as well, if it seems to be wanted.
    fn with_neighbours(&self, read: InFlight) -> InFlight {
        match self.engine.neighbours_end(read.address) {
            Some(end) => InFlight { end: end.max(read.end), has_neighbours: true, ..read },
            None => read,
        }
    }

    /// Has a record come with one that is in flight, if its blocks are read for that.
    fn ride(&mut self, rider: InFlight) -> bool {
        let Some(reads) = &mut self.reads else { return false };
        let carries = |read: &InFlight| {
            let end = read.end.next_multiple_of(BLOCK_BYTES as u64);
            read.item.is_some() && read.start() <= rider.address && rider.end <= end
        };
        let token = reads.in_flight.iter().position(carries);
        reads.riders.extend(token.map(|token| (token, rider)));
        token.is_some()
    }

    /// False if it cannot be.
    fn submit(&mut self, in_flight: InFlight) -> bool {
        let (engine, address) = (self.engine, in_flight.address);
        let Ok(file) = engine.segments.file(address) else { return false };
        let segment_bytes = engine.segments.segment_bytes();
        let offset = in_flight.start() % segment_bytes;
        let bytes = ((in_flight.end - in_flight.start()) as usize).next_multiple_of(BLOCK_BYTES);
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
        let token = finished.token as usize;
        let in_flight = std::mem::take(&mut reads.in_flight[token]);
        let riders: Vec<_> = reads.riders.extract_if(.., |rider| rider.0 == token).collect();
        self.in_flight_count -= 1;
        cold.in_flight.fetch_sub(1, Ordering::Relaxed);
        let mut goes_on = false;
        if let Ok(count) = finished.outcome {
            cold.read_bytes.fetch_add(count as u64, Ordering::Relaxed);
            let bytes = |read: &InFlight| {
                finished.buffer.get((read.address - in_flight.start()) as usize..count).unwrap_or_default()
            };
            let rest = self.admit(&in_flight, bytes(&in_flight), |bytes| cold.note_read(bytes, 0));
            goes_on = rest.is_some_and(|read| self.submit(read));
            for (_, rider) in &riders {
                let note = |_| _ = cold.neighbours.records.fetch_add(1, Ordering::Relaxed);
                let rest = self.admit(rider, bytes(rider), note).filter(|_| self.room() > 0);
                // What there is no room for is left to who asks for it.
                rest.map(|read| self.submit(read));
            }
            if in_flight.has_neighbours {
                self.engine.take_neighbours(in_flight.address, bytes(&in_flight));
            }
        } else if in_flight.has_neighbours {
            cold.neighbours.forget(in_flight.address);
        }
        self.engine.watch_reads();
        if finished.buffer.len() <= KEPT_BUFFER_BYTES_MAX
            && let Some(reads) = &mut self.reads
        {
            reads.buffers.push(finished.buffer);
        }
        in_flight.item.filter(|_| !goes_on)
    }

    /// Puts a record into the cache, with whose first byte the bytes begin, and notes how long it is. Gives what else is to be read for its item.
    fn admit(&self, read: &InFlight, bytes: &[u8], note: impl FnOnce(u64)) -> Option<InFlight> {
        let InFlight { address, newer, .. } = *read;
        let cold = &self.engine.cold;
        let word = bytes.first_chunk::<8>().map(|word| u64::from_le_bytes(*word));
        let is_cut = |shape: &Shape| shape.bytes() > bytes.len() as u64;
        read.item?;
        if let Some(shape) = word.and_then(Shape::parse).filter(is_cut) {
            // What the cache would not keep is left to who asks for it, and so is what was read whole and is cut all the same: the file ends before it does.
            let end = read.end.next_multiple_of(BLOCK_BYTES as u64);
            let is_to_come = address + shape.bytes() > end && cold.cache.can_keep(shape.bytes());
            return is_to_come.then(|| read.then(address, shape.bytes() as usize, newer));
        }
        let unchecked = planted(Bug::ReadAheadUnchecked).then(|| with_right_checksum(address, bytes));
        let record = DiskRecord::parse(address, unchecked.as_deref().unwrap_or(bytes)).ok()?;
        note(record.shape.bytes());
        let others =
            || self.reads.iter().flat_map(|reads| &reads.in_flight).filter(|read| read.item.is_some());
        let misplaced = planted(Bug::ReadAheadMisplaced).then(|| others().next()).flatten();
        let address = misplaced.map_or(address, |other| other.address);
        cold.cache.admit_ahead(address, &record, &self.engine.is_newest());
        let previous = record.previous;
        let is_wanted = record.version > self.version_max
            && newer < NEWER_MAX
            && previous >= self.engine.log.begin()
            && previous != NO_ADDRESS
            && !cold.cache.has(previous);
        is_wanted.then(|| read.then(previous, self.likely_bytes(previous), newer + 1))
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
            reads.riders.clear();
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
            riders: Vec::new(),
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
