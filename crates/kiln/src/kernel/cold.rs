//! Cold records: those below the log's head, which are on disk, and some of them in the read cache.
//!
//! No I/O happens under a pin: who meets a cold record under one looks into the cache, and comes back unpinned if it is not
//! there. Cold records never change, so all that can happen meanwhile is that one is superseded, and its segment dropped.

use std::cell::RefCell;
use std::io;

use super::engine::Engine;
use super::neighbours::Neighbours;
use super::read::keys::{FoundKey, Wanted};
use super::read_ahead::Reads;
use super::shares::CacheBytes;
use crate::device::BLOCK_BYTES;
use crate::error::Result;
use crate::storage::extent;
use crate::storage::record::{Address, HEADER_BYTES, Kind, OwnedRecord, RecordView};
use crate::storage::record_cache::RecordCache;
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicU64, Ordering};

/// What cold records are found by, and what was done to find them.
pub(crate) struct Cold {
    pub(crate) cache: RecordCache,
    pub(crate) neighbours: Neighbours,
    /// Records read from disk, and the bytes of their blocks.
    pub(crate) reads: AtomicU64,
    pub(crate) read_bytes: AtomicU64,
    /// About how long the records read from disk lately were: the next is probably as long, and then one read is enough for it.
    record_bytes: AtomicU64,
    /// Reads ahead that are in flight.
    pub(crate) in_flight: AtomicU64,
    /// Queues that no batch uses at the moment.
    pub(crate) queues: Mutex<Vec<Reads>>,
}

impl Cold {
    /// With a cache that takes so much of the memory at first as the caches usually have.
    pub(crate) fn new(cache_bytes: CacheBytes) -> io::Result<Cold> {
        let cache = RecordCache::new(cache_bytes.most, cache_bytes.usual)?;
        if cache_bytes.usual < cache_bytes.most {
            cache.divide(cache_bytes.usual, USUAL_RECORD_BYTES);
        }
        Ok(Cold {
            cache,
            neighbours: Neighbours::new(),
            reads: AtomicU64::new(0),
            read_bytes: AtomicU64::new(0),
            record_bytes: AtomicU64::new(0),
            in_flight: AtomicU64::new(0),
            queues: Mutex::new(Vec::new()),
        })
    }

    /// How many bytes to read for the record at `address`, of which nothing is known yet: not beyond its segment, nor, for the
    /// sake of a few long ones, much at all.
    pub(crate) fn likely_bytes(&self, address: Address, segment_bytes: u64) -> usize {
        const MOST: u64 = 2 * BLOCK_BYTES as u64;
        let bytes = self.record_bytes.load(Ordering::Relaxed).clamp(HEADER_BYTES as u64, MOST);
        bytes.min(segment_bytes - address % segment_bytes) as usize
    }

    /// About how long the records read from disk lately were; 0 as long as there were none.
    pub(crate) fn record_bytes(&self) -> u64 {
        self.record_bytes.load(Ordering::Relaxed)
    }

    /// Counts a record that was read from disk, for which so many bytes were read.
    pub(crate) fn note_read(&self, record_bytes: u64, bytes_read: u64) {
        self.reads.fetch_add(1, Ordering::Relaxed);
        self.read_bytes.fetch_add(bytes_read, Ordering::Relaxed);
        // Threads may overwrite each other's: it is a guess.
        let before = self.record_bytes.load(Ordering::Relaxed);
        self.record_bytes.store((7 * before + record_bytes).div_ceil(8), Ordering::Relaxed);
    }
}

/// How long records are taken to be as long as none was read.
const USUAL_RECORD_BYTES: u64 = 96;

/// What somebody wants to know of a record: whether it is this key's, and if so its value, if its version is not too new.
#[derive(Clone, Copy)]
pub(crate) struct Question<'a> {
    pub(crate) object: u32,
    pub(crate) key: &'a [u8],
    /// Values of newer versions are not wanted.
    pub(crate) version_max: u64,
}

/// The answer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sighting {
    pub(crate) is_of_key: bool,
    pub(crate) kind: Kind,
    /// Of a put: when the row expires, if it does.
    pub(crate) expires_at: u64,
    pub(crate) version: u64,
    pub(crate) previous: Address,
}

impl Question<'_> {
    fn wants_value(&self, sighting: &Sighting) -> bool {
        sighting.is_of_key && sighting.kind.is_put() && sighting.version <= self.version_max
    }

    fn ask_view(&self, view: &RecordView<'_>, out: &mut Vec<u8>) -> Sighting {
        let sighting = Sighting {
            is_of_key: view.is(self.object, self.key),
            kind: view.shape().kind,
            expires_at: view.expires_at(),
            version: view.version(),
            previous: view.previous(),
        };
        if self.wants_value(&sighting) {
            view.value_into(self.key.len(), out);
        }
        sighting
    }

    fn ask_record(&self, record: &OwnedRecord, out: &mut Vec<u8>) -> Sighting {
        let sighting = Sighting {
            is_of_key: record.shape.object == self.object && record.key() == self.key,
            kind: record.shape.kind,
            expires_at: record.expires_at(),
            version: record.version,
            previous: record.previous,
        };
        if self.wants_value(&sighting) {
            out.clear();
            out.extend_from_slice(record.value());
        }
        sighting
    }
}

impl Engine {
    /// Asks a cold record that is in the cache; a value that is wanted is left in `out`. Waits for nothing.
    #[inline]
    pub(crate) fn ask_cached(
        &self,
        address: Address,
        question: &Question<'_>,
        out: &mut Vec<u8>,
    ) -> Option<Sighting> {
        self.cold.cache.look(address, |view| question.ask_view(view, out))
    }

    /// Asks a cold record, wherever it is. The caller is not pinned.
    ///
    /// # Errors
    /// `Io` and `Corrupted`, naming file and offset; also if its segment has been dropped.
    pub(crate) fn ask_cold(
        &self,
        address: Address,
        question: &Question<'_>,
        out: &mut Vec<u8>,
    ) -> Result<Sighting> {
        match self.ask_cached(address, question, out) {
            Some(sighting) => Ok(sighting),
            None => Ok(question.ask_record(&self.read_disk(address)?, out)),
        }
    }

    /// The key of a cold record, if it is wanted. The caller is not pinned.
    ///
    /// # Errors
    /// As [`Self::ask_cold`].
    pub(crate) fn cold_key(&self, address: Address, wanted: &Wanted<'_>) -> Result<Option<FoundKey>> {
        // Who asks for its value is going to look once more.
        if let Some(found) = self.cold.cache.peek(address, |view| wanted.of_view(view)) {
            return Ok(found);
        }
        let record = match wanted.keeps {
            true => self.read_disk(address)?,
            false => self.read_from_disk(address, None)?.0,
        };
        Ok(wanted.of_record(&record))
    }

    /// The previous address of a cold record. The caller is not pinned.
    ///
    /// # Errors
    /// As [`Self::ask_cold`].
    pub(crate) fn cold_previous(&self, address: Address) -> Result<Address> {
        match self.cold.cache.look(address, |view| view.previous()) {
            Some(previous) => Ok(previous),
            None => Ok(self.read_disk(address)?.previous),
        }
    }

    /// Tells of records whether they may be their keys' newest.
    pub(super) fn is_newest(&self) -> impl Fn(Address, &RecordView<'_>) -> bool {
        let buffer = RefCell::new(Vec::new());
        move |address, view| {
            let mut key = buffer.borrow_mut();
            view.key_into(&mut key);
            self.may_be_newest(address, self.hash(view.shape().object, &key))
        }
    }

    /// Reads a record from disk, checked, and takes its [neighbours](super::neighbours) up to an address with it; also says how many bytes that took.
    fn read_from_disk(
        &self,
        address: Address,
        neighbours_end: Option<Address>,
    ) -> Result<(OwnedRecord, u64)> {
        let likely_bytes = self.cold.likely_bytes(address, self.segments.segment_bytes());
        let all_bytes = neighbours_end.map_or(0, |end| end.saturating_sub(address) as usize);
        let blocks = match extent::read_blocks(&self.segments, address, likely_bytes.max(all_bytes)) {
            // It may be another record's block that cannot be read.
            Err(_) if all_bytes > likely_bytes => {
                self.cold.neighbours.forget(address);
                extent::read_blocks(&self.segments, address, likely_bytes)?
            }
            blocks => blocks?,
        };
        let record = blocks.record(&self.segments)?;
        let end = address + record.shape.bytes();
        self.cold.neighbours.note_end(address, end);
        if neighbours_end.is_some() {
            let behind = blocks.bytes().get(record.shape.bytes() as usize..).unwrap_or_default();
            self.take_neighbours(end, behind);
        }
        Ok((record, blocks.bytes_read))
    }

    /// The same for who asks for its key; it counts, and stays in the cache.
    fn read_disk(&self, address: Address) -> Result<OwnedRecord> {
        let (record, bytes_read) = self.read_from_disk(address, self.neighbours_end(address))?;
        self.cold.note_read(record.shape.bytes(), bytes_read);
        self.cold.cache.admit(address, &record.as_disk_record(), &self.is_newest());
        self.watch_reads();
        Ok(record)
    }
}
