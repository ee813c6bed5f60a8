//! The first step of settling: the newest records of a part of the log are collected, by several threads, each of which reads a stretch of it.
//!
//! ```text
//!   begin      segment      segment      segment         end
//!     |-- one thread --|------ another ------|-- a third --|      stretches begin where segments do
//! ```
//!
//! What is there twice is not needed twice: a put whose key has a newer record that is durable, and no newer than what every snapshot may see, is left out, where that is found out at once. So rows that are
//! updated all the time hardly ever come into the tree, though there always is some record of them in what settles. The log has them: a record stays there until it has settled itself, or has such a successor in
//! turn, and recovery takes what the log has behind the tree's end before what the tree has. (Rejected: not to read segments of which nothing counts as live. So do deletions that are forgotten, and they have to
//! settle if what they delete does.)

use std::ops::Range;

use super::THREAD_NAME;
use crate::error::{Error, ErrorKind, Result};
use crate::kernel::engine::Engine;
use crate::kernel::newest::{Collector, Newest, Part};
use crate::kernel::object::ObjectState;
use crate::kernel::settling_pace::Stage;
use crate::planted::{Bug, planted};
use crate::storage::epoch;
use crate::storage::record::{Address, DiskRecord, RecordView};
use crate::storage::record_reader::Cursor;
use crate::storage::segments::Segments;
use crate::storage::together::side_by_side;
use crate::sync::atomic::{AtomicUsize, Ordering};

/// So many records are read at once.
pub(super) const COLLECT_BATCH: usize = 256;
/// Where less of a segment is dead nobody asks which records of it are.
const DEAD_PART_MIN: u64 = 8;

/// What lies in a part of the log, or a stretch of it.
enum Collected<T> {
    Whole {
        newest: T,
        newest_version: u64,
    },
    /// There is a record that some snapshot must not see yet.
    TooNew {
        address: Address,
        version: u64,
    },
}

impl Engine {
    /// The newest records of a part of the log, the newest version among them, and the part's end: nearer than asked for where a snapshot must not see all of it
    /// yet, or the disk has no room for what is sorted. `None` if nothing can settle.
    pub(super) fn collect_most(
        &self,
        segments: &Segments,
        (begin, mut end): (Address, Address),
        settled_to: Address,
    ) -> Result<Option<(Newest, u64, Address)>> {
        let oldest = self.oldest_needed();
        let segment_bytes = self.log.segment_bytes();
        while self.can_settle_to(end, settled_to) {
            match self.collect(segments, begin..end, oldest) {
                Ok(Collected::Whole { newest, newest_version }) => {
                    return Ok(Some((newest, newest_version, end)));
                }
                Ok(Collected::TooNew { address, version }) => {
                    self.settled.waits_for_version.store(version, Ordering::SeqCst);
                    // What lies before its segment can settle all the same.
                    end = address - address % segment_bytes;
                }
                Err(error) => {
                    let nearer = settled_to.midpoint(end) / segment_bytes * segment_bytes;
                    if error.kind() != ErrorKind::NoSpace || !self.can_settle_to(nearer, settled_to) {
                        return Err(error);
                    }
                    end = nearer;
                }
            }
        }
        Ok(None)
    }

    /// Collects the newest records of a part of the log, if none is newer than `oldest`.
    fn collect(&self, segments: &Segments, part: Range<Address>, oldest: u64) -> Result<Collected<Newest>> {
        let stretches = stretches(&part, self.log.segment_bytes(), self.settled.bounds.threads);
        let (part_bytes, threads) = (part.end - part.start, stretches.len());
        let memory_bytes = usize::try_from(self.settled.bounds.memory_bytes).unwrap_or(usize::MAX);
        let memory_bytes = memory_bytes.max(Newest::bytes_min(part_bytes, threads));
        let mut newest = Newest::new(segments.device_handle(), memory_bytes, part_bytes, threads);
        let first_ended = AtomicUsize::new(usize::MAX);
        let collected = side_by_side(threads, THREAD_NAME, |number| {
            // What comes behind a stretch that cannot settle is not asked for.
            let goes_on = || first_ended.load(Ordering::Relaxed) > number;
            let collector = newest.collector();
            let stretch = (&stretches[number], part.end);
            let collected = self.collect_stretch(segments, stretch, collector, oldest, goes_on);
            if !matches!(collected, Ok(Collected::Whole { .. })) {
                first_ended.fetch_min(number, Ordering::Relaxed);
            }
            collected
        });
        let mut newest_version = 0;
        for stretch in collected {
            match stretch? {
                Collected::Whole { newest: part, newest_version: version } => {
                    newest.take(part);
                    newest_version = newest_version.max(version);
                }
                Collected::TooNew { address, version } => return Ok(Collected::TooNew { address, version }),
            }
        }
        Ok(Collected::Whole { newest, newest_version })
    }

    /// Collects the newest records of a stretch of a part of the log, up to the first one that is newer than `oldest`, and as long as it `goes_on`.
    fn collect_stretch(
        &self,
        segments: &Segments,
        (stretch, part_end): (&Range<Address>, Address),
        mut collector: Collector<'_>,
        oldest: u64,
        goes_on: impl Fn() -> bool,
    ) -> Result<Collected<Part>> {
        let (mut newest_version, mut hashes) = (0, Vec::with_capacity(COLLECT_BATCH));
        let mut reader =
            self.log_reader(segments, Cursor::at_seal(stretch.start)).reading_ahead_to(stretch.end);
        let bytes = stretch.end - stretch.start;
        let mut grants =
            self.settled.pace.begin(Stage::Reading, self.counted_bytes(stretch.start, stretch.end));
        while reader.cursor().position < stretch.end && goes_on() {
            // Whoever closes the database waits.
            if self.hardening.is_stopping() {
                return Err(Error::closed());
            }
            let position = reader.cursor().position;
            grants.reach(position - stretch.start, bytes);
            let asks_for_successors =
                !self.liveness.lock().of_segment(position).is_mostly_live(DEAD_PART_MIN);
            let settles = |record: &DiskRecord<'_>| {
                self.objects.get(record.shape.object).is_some_and(ObjectState::settles)
            };
            let records = reader.next_batch(stretch.end, COLLECT_BATCH)?.records;
            hashes.clear();
            hashes.extend(records.iter().map(|(_, record)| {
                (asks_for_successors && record.shape.kind.is_put() && settles(record)).then(|| {
                    let hash = self.hash(record.shape.object, record.key);
                    self.index.prefetch(hash);
                    hash
                })
            }));
            for ((address, record), hash) in records.into_iter().zip(&hashes) {
                let was_lost = self.hardening.horizon.was_lost(record.version) && !planted(Bug::SettlesLost);
                if was_lost || !settles(&record) {
                    continue;
                }
                if record.version > oldest && !planted(Bug::SettlesTooNew) {
                    return Ok(Collected::TooNew { address, version: record.version });
                }
                if hash.is_some_and(|hash| self.is_needless((address, hash), &record, part_end, oldest)) {
                    continue;
                }
                newest_version = newest_version.max(record.version);
                collector.add(address, &record)?;
            }
        }
        grants.reach(reader.cursor().position - stretch.start, bytes);
        // Of who was told to stop nothing is wanted.
        let newest = if goes_on() { collector.finish()? } else { Part::default() };
        Ok(Collected::Whole { newest, newest_version })
    }

    /// Whether the key of a put that settles has a newer record that all snapshots may see, which is durable then: none is newer than `oldest`; or one in the part of the log that settles, where no other one may be. False
    /// if that is not to be found out at once.
    fn is_needless(
        &self,
        (address, hash): (Address, u64),
        record: &DiskRecord<'_>,
        part_end: Address,
        oldest: u64,
    ) -> bool {
        let _pin = epoch::pin();
        let Some((bucket, stamp)) = self.index.stamp(hash) else { return false };
        for candidate in self.index.addresses_of(hash) {
            if candidate == address {
                return false;
            }
            // It is the key's, or another one's: then the next one may be the key's; or none is, since this record has settled before, or a deletion of it is
            // forgotten, which lies in the part then (`can_settle_to`), and is never left out.
            if candidate < part_end {
                continue;
            }
            match self.log.view(candidate) {
                None => return false,
                Some(view) if view.is(record.shape.object, record.key) => {
                    return self.has_durable_record_behind(address, view, part_end, oldest);
                }
                Some(_) => {}
            }
        }
        self.index.unchanged(bucket, stamp)
    }

    /// The same, from the key's newest record in memory on. The caller is pinned.
    fn has_durable_record_behind(
        &self,
        address: Address,
        newest: RecordView<'_>,
        part_end: Address,
        oldest: u64,
    ) -> bool {
        /// So many that are not durable are looked at.
        const STEPS_MAX: usize = 8;
        let mut view = newest;
        for _ in 0..STEPS_MAX {
            if view.version() <= oldest || planted(Bug::SettlesNotWhatIsReplaced) {
                return true;
            }
            let previous = view.previous();
            if previous < part_end {
                return previous > address;
            }
            match self.log.view(previous) {
                Some(before) => view = before,
                None => return false,
            }
        }
        false
    }
}

/// Divides a part of the log into as many stretches of about the same length as there are threads, or fewer if it is short: they begin where segments do.
fn stretches(part: &Range<Address>, segment_bytes: u64, threads: usize) -> Vec<Range<Address>> {
    let (mut stretches, mut begin) = (Vec::with_capacity(threads), part.start);
    for number in 1..threads as u64 {
        let end = part.start + (part.end - part.start) / threads as u64 * number;
        let end = (end + segment_bytes / 2) / segment_bytes * segment_bytes;
        if begin < end && end < part.end {
            stretches.push(begin..end);
            begin = end;
        }
    }
    stretches.push(begin..part.end);
    stretches
}

#[cfg(test)]
mod tests {
    use std::slice::from_ref;

    use super::*;

    #[test]
    fn stretches_are_all_of_a_part_and_begin_where_segments_do() {
        assert_eq!(stretches(&(300..900), 100, 3), [300..500, 500..700, 700..900]);
        assert_eq!(stretches(&(320..950), 100, 3), [320..500, 500..700, 700..950]);
        assert_eq!(stretches(&(300..900), 100, 1), from_ref(&(300..900)));
        assert_eq!(stretches(&(300..450), 100, 4), [300..400, 400..450]);
        assert_eq!(stretches(&(320..390), 100, 4), from_ref(&(320..390)));
        assert_eq!(stretches(&(0..700), 100, 3), [0..200, 200..500, 500..700]);
    }
}
