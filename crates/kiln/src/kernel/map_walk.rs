//! All of a map as of a snapshot: what is in memory by way of the index, and what is on disk alone in the order of the log.
//!
//! ```text
//!   begin                     cold end                        tail
//!    | the log is read through |  each is found by the index   |
//! ```
//!
//! The index has keys in the order of their hashes. By it, each record on disk would be a read at a random place; the log has them one after the other, 30 of a hundred bytes in a block.
//!
//! **Each row once.** What a snapshot sees of a key is one record, and stays where it is as long as the snapshot is open: what is written anew is of a newer version. If it lies before the cold end, which does
//! not move, it is met in the log, and else by the index.
//!
//! **What is seen of the log.** A record is seen if the index refers to it, or to newer ones of its key that lead to it. Before the cold end all are of the snapshot's version at the latest. So what the index has there
//! instead supersedes it, or is another key's; what it has behind may be newer than the snapshot, and is followed.
//!
//! By the index goes first: what is in memory may leave it while the log is read. And all goes so where the snapshot's version does not tell where in the log nothing is newer (of those that have a name, and of what is durable), or
//! where so few keys are in so much log that reading them one by one takes less time; many are read at once then.

use std::sync::Arc;

use super::engine::Engine;
use super::expiry::Moment;
use super::frozen::BYTES_PER_READ;
use super::read::keys::{PLACES_AHEAD, next_keys_but, read_places_ahead};
use crate::device::BLOCK_BYTES;
use crate::error::Result;
use crate::planted::{Bug, planted};
use crate::storage::epoch;
use crate::storage::record::{Address, DiskRecord};
use crate::storage::record_reader::{Cursor, RecordReader};

/// So many records of the log are looked at at once.
const BATCH: usize = 256;

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

/// See the module's documentation.
pub(crate) struct MapWalk<'s> {
    engine: &'s Arc<Engine>,
    sight: Sight<'s>,
    /// What the snapshot sees before it is read out of the log: nothing, if it is 0.
    cold_end: Address,
    /// Where it goes on in the index, which comes first.
    place: Option<u64>,
    /// So many places were looked at.
    places: usize,
    log: Option<RecordReader<'s>>,
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
        let cold_end = if is_dense && end > begin { end } else { 0 };
        MapWalk { engine, sight, cold_end, place: Some(0), places: 0, log: None }
    }

    /// Some rows, or why one of them, or what would come then, cannot be read; none at the end.
    pub(crate) fn next_rows(&mut self) -> Option<Vec<Result<Row>>> {
        while let Some(place) = self.place {
            let rows = self.rows_at(place);
            if !rows.is_empty() {
                return Some(rows);
            }
        }
        let begin = self.engine.log.begin();
        if self.log.is_none() && begin < self.cold_end {
            let reader = self.engine.log_reader(&self.engine.segments, Cursor::at_seal(begin));
            // What was evicted has hardened, and so has all of its last block.
            self.log = Some(reader.reading_ahead_to(self.cold_end.next_multiple_of(BLOCK_BYTES as u64)));
        }
        while self.log.is_some() {
            match self.rows_of_log() {
                Ok(Some(rows)) if rows.is_empty() => {}
                Ok(Some(rows)) => return Some(rows),
                Ok(None) => self.log = None,
                Err(error) => {
                    self.end();
                    return Some(vec![Err(error)]);
                }
            }
        }
        None
    }

    fn end(&mut self) {
        (self.place, self.log, self.cold_end) = (None, None, 0);
    }

    /// The rows in a place of the index that are not to be met in the log.
    fn rows_at(&mut self, place: u64) -> Vec<Result<Row>> {
        let (engine, Sight { object, version, .. }) = (self.engine, self.sight);
        let cold_end = self.cold_end;
        let passes = |newest| {
            if cold_end == 0 {
                return false;
            }
            let _pin = epoch::pin();
            engine.behind_newer(newest, version) < cold_end
        };
        if self.places.is_multiple_of(PLACES_AHEAD) {
            read_places_ahead(engine, place, PLACES_AHEAD, &passes);
        }
        self.places += 1;
        match next_keys_but(engine, object, place, &passes) {
            Ok((next, keys)) => {
                self.place = next;
                keys.into_iter().filter_map(|key| self.row_of(key).transpose()).collect()
            }
            Err(error) => {
                self.end();
                vec![Err(error)]
            }
        }
    }

    /// The row of a key, unless it is met in the log.
    fn row_of(&self, key: Vec<u8>) -> Result<Option<Row>> {
        let Sight { object, version, moment, .. } = self.sight;
        let (hash, mut value) = (self.engine.hash(object, &key), Vec::new());
        let reading = self.engine.read_as_of(object, &key, hash, version, moment, &mut value)?;
        Ok((reading.found && reading.address >= self.cold_end).then_some((key, value)))
    }

    /// The rows among the next records of the log; `None` at its end.
    fn rows_of_log(&mut self) -> Result<Option<Vec<Result<Row>>>> {
        let (engine, sight, cold_end) = (self.engine, self.sight, self.cold_end);
        let Some(reader) = &mut self.log else { return Ok(None) };
        // What has been dropped meanwhile the snapshot does not see.
        let begin = engine.log.begin();
        if reader.cursor().position < begin {
            reader.move_to(Cursor::at_seal(begin));
        }
        let position = reader.cursor().position;
        if position >= cold_end {
            return Ok(None);
        }
        let batch = match reader.next_batch(cold_end, BATCH) {
            Ok(batch) => batch,
            Err(_) if position < engine.log.begin() => return Ok(Some(Vec::new())),
            Err(error) => return Err(error),
        };
        let is_wanted =
            |record: &DiskRecord<'_>| record.shape.object == sight.object && record.shape.kind.is_put();
        let mut puts = Vec::with_capacity(batch.records.len());
        for (address, record) in batch.records {
            if address < cold_end && is_wanted(&record) {
                let hash = engine.hash(sight.object, record.key);
                engine.index.prefetch(hash);
                puts.push((address, hash, record));
            }
        }
        let mut rows = Vec::with_capacity(puts.len());
        for (address, hash, record) in puts {
            if !sight.moment.is_past(record.expires_at, engine)
                && sight.sees(engine, address, hash, record.key)?
            {
                rows.push(Ok((record.key.to_vec(), record.value.to_vec())));
            }
        }
        Ok(Some(rows))
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
