//! All of a map as of a snapshot: what is in memory by way of the index, and what is on disk alone in the order of the log.
//!
//! ```text
//!   begin                     log end                         tail
//!    | the log is read through |  each is found by the index   |
//! ```
//!
//! The index has keys in the order of their hashes. By it, each record on disk would be a read at a random place; the log has them one after the other, 30 of a hundred bytes in a block.
//!
//! **Each row once.** What a snapshot sees of a key is one record, and stays where it is as long as the snapshot is open: what is written anew is of a newer version. If it lies before the log end, which does
//! not move, it is met in the log, and else by the index.
//!
//! **What is seen of the log.** A record is seen if the index refers to it, or to newer ones of its key that lead to it. Before the log end all are of the snapshot's version at the latest. So what the index has there
//! instead supersedes it, or is another key's; what it has behind may be newer than the snapshot, and is followed.
//!
//! Both go on side by side, the index faster: what is in memory may leave it meanwhile. All goes by the index where the snapshot's version does not tell where in the log nothing is newer (of those that have a name, and of
//! what is durable), or where so few keys are in so much log that reading them one by one takes less time; many are read at once then. And so does the rest from where the log cannot be read: what is damaged there may be nobody's.

use std::collections::VecDeque;
use std::sync::Arc;

use super::engine::Engine;
use super::expiry::Moment;
use super::frozen::BYTES_PER_READ;
use super::read::keys::{FoundKey, PLACES_AHEAD, Wanted, keys_at, read_places_ahead};
use crate::device::BLOCK_BYTES;
use crate::error::{Error, Result};
use crate::planted::{Bug, planted};
use crate::storage::epoch;
use crate::storage::record::{Address, DiskRecord};
use crate::storage::record_reader::{Cursor, RecordReader};
use crate::sync::atomic::Ordering;

/// So many records of the log are looked at at once.
const BATCH: usize = 256;
/// For as many places of the index.
const PLACES_PER_BATCH: usize = 256;

/// A key and its value.
pub(crate) type Row = (Vec<u8>, Vec<u8>);

/// What a snapshot sees of a map.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sight<'s> {
    pub(crate) object: u32,
    pub(crate) version: u64,
    pub(crate) moment: &'s Moment,
    /// Before this place in the log there is nothing of a newer version.
    pub(crate) closed_end: Address,
}

/// A walk through the index, for records between two addresses.
struct ByIndex {
    /// Where it goes on; nowhere, once its last keys have been found.
    place: Option<u64>,
    from: Address,
    to: Address,
}

/// See the module's documentation.
pub(crate) struct MapWalk<'s> {
    engine: &'s Arc<Engine>,
    sight: Sight<'s>,
    /// Those that are left.
    by_index: VecDeque<ByIndex>,
    /// So many places were looked at.
    places: usize,
    /// Keys of the last one that are wanted, or why it cannot be told whether one is.
    keys: std::vec::IntoIter<Result<FoundKey>>,
    /// The log, as long as there is more of it to be read, and where it ends.
    log: Option<RecordReader<'s>>,
    log_end: Address,
    /// Rows of the log.
    rows: std::vec::IntoIter<Result<Row>>,
}

impl std::fmt::Debug for MapWalk<'_> {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("MapWalk").field("sight", &self.sight).finish_non_exhaustive()
    }
}

impl<'s> MapWalk<'s> {
    pub(crate) fn new(engine: &'s Arc<Engine>, sight: Sight<'s>) -> MapWalk<'s> {
        let begin = engine.log.begin();
        let end = engine.log.head().min(sight.closed_end).max(begin);
        // A bucket has some keys.
        let is_dense = (end - begin) / BYTES_PER_READ <= engine.index.bucket_count();
        let log_end = if is_dense && end > begin { end } else { 0 };
        let log = (log_end > 0).then(|| {
            let reader = engine.log_reader(&engine.segments, Cursor::at_seal(begin));
            // What was evicted has hardened, and so has all of its last block.
            reader.reading_ahead_to(log_end.next_multiple_of(BLOCK_BYTES as u64))
        });
        let by_index = VecDeque::from([ByIndex { place: Some(0), from: log_end, to: Address::MAX }]);
        let (keys, rows) = (Vec::new().into_iter(), Vec::new().into_iter());
        MapWalk { engine, sight, by_index, places: 0, keys, log, log_end, rows }
    }

    /// The next row, or why it cannot be read; none at the end.
    pub(crate) fn next_row(&mut self) -> Option<Result<Row>> {
        loop {
            if let Some(row) = self.rows.next() {
                return Some(row);
            }
            if let Some(key) = self.keys.next() {
                match key.and_then(|found| self.row_of(found.key)).transpose() {
                    Some(row) => return Some(row),
                    None => continue,
                }
            }
            if self.by_index.is_empty() && self.log.is_none() {
                return None;
            }
            // Whoever closes the database waits.
            if self.engine.hardening.is_stopping() {
                (self.by_index, self.log) = (VecDeque::new(), None);
                return Some(Err(Error::closed()));
            }
            if self.places.is_multiple_of(PLACES_PER_BATCH) || self.by_index.is_empty() {
                self.read_log();
            }
            self.look_at_place();
        }
    }

    /// Finds the keys in the next place of the index.
    fn look_at_place(&mut self) {
        let (engine, Sight { object, version, .. }) = (self.engine, self.sight);
        let Some(walk) = self.by_index.front_mut() else { return };
        let (from, Some(place)) = (walk.from, walk.place) else {
            self.by_index.pop_front();
            return;
        };
        let passes = |newest| {
            if from == 0 {
                return false;
            }
            let _pin = epoch::pin();
            engine.behind_newer(newest, version) < from
        };
        if self.places.is_multiple_of(PLACES_AHEAD) {
            read_places_ahead(engine, place, PLACES_AHEAD, &passes);
        }
        self.places += 1;
        let (mut keys, wanted) =
            (Vec::new(), Wanted { is: &|found, _| found == object, keeps: true, passes: &passes });
        walk.place = keys_at(engine, place, &wanted, |found| keys.push(found));
        self.keys = keys.into_iter();
    }

    /// The row of a key that the index has led to, unless it is found in another way.
    fn row_of(&self, key: Vec<u8>) -> Result<Option<Row>> {
        let Sight { object, version, moment, .. } = self.sight;
        let (hash, mut value) = (self.engine.hash(object, &key), Vec::new());
        let reading = self.engine.read_as_of(object, &key, hash, version, moment, &mut value)?;
        let is_here =
            self.by_index.front().is_some_and(|walk| (walk.from..walk.to).contains(&reading.address));
        Ok((reading.found && is_here).then_some((key, value)))
    }

    /// Takes the rows among the next records of the log.
    fn read_log(&mut self) {
        let engine = self.engine;
        let Some(reader) = &mut self.log else { return };
        // What has been dropped meanwhile the snapshot does not see.
        let begin = engine.log.begin();
        if reader.cursor().position < begin {
            reader.move_to(Cursor::at_seal(begin));
        }
        let position = reader.cursor().position;
        if position >= self.log_end {
            self.log = None;
            return;
        }
        let Ok(batch) = reader.next_batch(self.log_end, BATCH) else {
            // Unless it has been dropped just now.
            if position >= engine.log.begin() {
                self.log = None;
                self.by_index.push_back(ByIndex { place: Some(0), from: position, to: self.log_end });
            }
            return;
        };
        let (sight, log_end) = (self.sight, self.log_end);
        let is_wanted =
            |record: &DiskRecord<'_>| record.shape.object == sight.object && record.shape.kind.is_put();
        let mut puts = Vec::with_capacity(batch.records.len());
        for (address, record) in batch.records {
            if address < log_end && is_wanted(&record) {
                let hash = engine.hash(sight.object, record.key);
                engine.index.prefetch(hash);
                puts.push((address, hash, record));
            }
        }
        let puts = puts.into_iter().filter(|(_, _, record)| !sight.moment.is_past(record.expires_at, engine));
        let seen = puts.filter_map(|(address, hash, record)| {
            let row = || (record.key.to_vec(), record.value.to_vec());
            sight.sees(engine, address, hash, record.key).map(|sees| sees.then(row)).transpose()
        });
        self.rows = seen.collect::<Vec<_>>().into_iter();
        let bytes = reader.cursor().position - position;
        engine.cold.read_bytes.fetch_add(bytes, Ordering::Relaxed);
    }
}

impl Sight<'_> {
    /// Whether what it sees of a key is the record at an address, before which there is nothing newer.
    fn sees(&self, engine: &Engine, address: Address, hash: u64, key: &[u8]) -> Result<bool> {
        let stamped = engine.index.stamp(hash);
        let mut is_unsure = false;
        {
            let _pin = epoch::pin();
            for newest in engine.index.addresses_of(hash) {
                let seen = engine.behind_newer(newest, self.version);
                if seen == address {
                    return Ok(true);
                }
                is_unsure |= seen >= self.closed_end && !planted(Bug::WalkOverlooksChanges);
            }
        }
        if planted(Bug::WalkTakesSuperseded) {
            return Ok(true);
        }
        let is_still = |(bucket, stamp)| engine.index.unchanged(bucket, stamp);
        if !is_unsure && stamped.is_some_and(is_still) {
            return Ok(false);
        }
        let mut value = Vec::new();
        let reading = engine.read_as_of(self.object, key, hash, self.version, self.moment, &mut value)?;
        Ok(reading.address == address)
    }
}

#[cfg(test)]
#[path = "map_walk_tests.rs"]
mod tests;
