//! What recovery begins with: nothing, or what a checkpoint tells up to its end.
//!
//! Blocks are read one after the other, and checked and applied by as many threads as there are processors: entries in any
//! order, since each key has one; then the keys of tables, all of them, and the deleted ones go; or, where entries have left the log or rows of dropped objects may
//! have gone, the deleted keys go first, and of the keys only those are taken that have an entry ([`orders`](super::orders) says why both will do).
//!
//! A checkpoint that cannot be read, or in which something is wrong, is put aside with all that it has filled: the log has
//! everything that it says. That is told in the report, and `check` finds it.

use super::system::Heard;
use super::{SystemRecord, THREAD_NAME};
use crate::device::Device;
use crate::error::{Error, ErrorKind, Result};
use crate::kernel::catalog;
use crate::kernel::object::Objects;
use crate::storage::checkpoint::{Block, Items, NO_ITEM, Reader, Section, SystemItem, kind};
use crate::storage::epoch;
use crate::storage::extent::Chain;
use crate::storage::hash_index::{self, HashIndex};
use crate::storage::liveness::Liveness;
use crate::storage::ordered_index::Run;
use crate::storage::record::{
    ADDRESS_BITS, Address, DiskRecord, KEY_BYTES_MAX, Kind, NEVER, NO_ADDRESS, Shape,
};
use crate::storage::record_reader::{Cursor, RecordReader};
use crate::storage::segments::Segments;
use crate::storage::superblock::Superblock;
use crate::storage::together::together;
use crate::storage::tree::Tree;
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use crate::sync::{Mutex, thread};

/// The superblock's checkpoint, of which only the header has been read yet; `Ok(None)` if that is of a format that this engine does not know.
pub(super) fn checkpoint_of(device: &dyn Device, superblock: &Superblock) -> Option<Result<Option<Reader>>> {
    let named = superblock.usable_checkpoint()?;
    Some(Reader::open(device, superblock.database, named))
}

/// The indexes, and what is known besides.
pub(crate) struct Base {
    pub(crate) index: HashIndex,
    pub(crate) objects: Objects,
    pub(crate) liveness: Liveness,
    /// Replaying begins here, and this is the chain of seals up to there, if it is not where the log begins.
    pub(super) replay_from: Address,
    pub(super) chain: Option<Chain>,
    /// The version that is durable there, and the newest one seen.
    pub(super) horizon: u64,
    pub(super) newest_version: u64,
    pub(super) heard: Heard,
    /// Bytes of the checkpoint, and when it was taken; 0 without one.
    pub(crate) checkpoint_bytes: u64,
    pub(crate) checkpoint_time_us: u64,
    /// Up to here the checkpoint has nothing of tables that has settled.
    pub(crate) settled_to: Address,
    /// Behind the last [deletion of which nobody knows any more](super::settled), of the checkpoint's and, in the end, of all that was replayed; 0 if there is none.
    pub(crate) forgotten_to: Address,
    /// Durable deletions of keys that may have settled, or that a snapshot may see.
    pub(super) deleted: Vec<Tombstone>,
    /// Objects were dropped, and the checkpoint has entries of segments that have left the log since.
    pub(super) has_departed: bool,
    /// Keys of tables came into their orders, and nobody knows whether they have entries.
    pub(super) has_unasked_keys: bool,
    /// What is wrong with a checkpoint that could not be used.
    pub(super) damage: Option<String>,
    /// It could not since it has another format.
    pub(super) is_foreign: bool,
}

impl Base {
    /// What is known without a checkpoint.
    pub(crate) fn empty(superblock: &Superblock, index: HashIndex) -> Result<Base> {
        let objects = Objects::new();
        catalog::add_system_objects(&objects)?;
        Ok(Base {
            index,
            objects,
            liveness: Liveness::new(superblock.begin, superblock.segment_bytes),
            replay_from: superblock.begin,
            chain: None,
            horizon: 0,
            newest_version: 0,
            heard: Heard::default(),
            checkpoint_bytes: 0,
            checkpoint_time_us: 0,
            settled_to: 0,
            forgotten_to: 0,
            deleted: Vec::new(),
            has_departed: false,
            has_unasked_keys: false,
            damage: None,
            is_foreign: false,
        })
    }

    /// What the checkpoint tells, if there is one and it is whole. The log has so much memory.
    pub(super) fn of(
        found: Option<Result<Option<Reader>>>,
        (segments, superblock): (&Segments, &Superblock),
        log_memory_bytes: u64,
        workers: usize,
        tree: &Tree,
    ) -> Result<Base> {
        let load = |reader| Base::load(reader, (segments, superblock), workers, tree);
        let (mut damage, mut is_foreign) = (None, false);
        match found.map(|found| found.and_then(|reader| reader.map(load).transpose())) {
            None => {}
            Some(Ok(Some(base))) => return Ok(base),
            Some(Ok(None)) => is_foreign = true,
            Some(Err(error)) => damage = Some(error.without_advice().to_owned()),
        }
        let index = HashIndex::new(log_memory_bytes)
            .map_err(|error| Error::io("allocating the database's memory", error))?;
        Ok(Base { damage, is_foreign, ..Base::empty(superblock, index)? })
    }

    fn load(
        reader: Reader,
        (segments, superblock): (&Segments, &Superblock),
        workers: usize,
        tree: &Tree,
    ) -> Result<Base> {
        let (header, name, bytes) = (reader.header.clone(), reader.name.clone(), reader.size()?);
        let described = name.clone();
        let impossible = || Error::corrupted(&described, 0, "a checkpoint's numbers are impossible");
        // An entry takes eight bytes, and a key has two lengths.
        if header.entries > bytes / 8 || header.keys > bytes / 2 {
            return Err(impossible());
        }
        let index = HashIndex::with_base_level(header.base_level)
            .map_err(|error| Error::io("allocating the database's memory", error))?;
        if index.base_level() != header.base_level {
            return Err(impossible());
        }
        if (superblock.begin..tree.settled_to()).contains(&header.settled_to) {
            // What has settled since is read from there on.
            let from = Cursor::at_seal(header.settled_to);
            let mut log = RecordReader::new(segments, superblock.database, from);
            // Any other error is the log's, and not the checkpoint's.
            log.next_batch(tree.settled_to(), 1)
                .map_err(|error| if error.kind() == ErrorKind::Corrupted { impossible() } else { error })?;
        }
        index.reserve(header.entries);
        // While something was left of what has settled, engines of before overlooked deletions that a newer record does not lead to, and may have said so little; once nothing was, they
        // had all of the log settle at once.
        let is_emptied = tree.is_empty() && tree.settled_to() > 0;
        let mut base = Base {
            replay_from: header.end,
            chain: Some(header.chain),
            horizon: header.horizon,
            newest_version: header.newest_version,
            checkpoint_bytes: bytes,
            checkpoint_time_us: header.time_us,
            settled_to: header.settled_to,
            forgotten_to: if is_emptied { header.end } else { header.forgotten_to },
            ..Base::empty(superblock, index)?
        };
        let workers = if bytes < (1 << 20) { 1 } else { workers };
        let reading = Reading { reader: Mutex::new(reader), name, workers };
        let tombstones = base.load_system(&reading, superblock)?;
        if !tombstones.iter().all(|tombstone| base.is_possible(tombstone)) {
            return Err(impossible());
        }
        let (entries, departed) = base.load_entries(&reading, superblock.begin)?;
        if entries != header.entries {
            return Err(impossible());
        }
        base.has_departed = superblock.has_dropped && departed > 0;
        // Of what has left the log, or was dropped, there may be more keys than entries, and nobody may tell.
        base.has_unasked_keys = departed == 0 && !superblock.has_dropped;
        let keys = if base.has_unasked_keys {
            let keys = base.load_keys(&reading, superblock.hash_seed, None)?;
            base.remove_tombstones(tombstones, superblock, tree.has_settled());
            keys
        } else {
            base.remove_tombstones(tombstones, superblock, tree.has_settled());
            // Keys whose records are gone from the log have settled, or were removed, or moved, which the log tells.
            let has_left = tree.has_settled() || superblock.has_dropped;
            let begin = if has_left { superblock.begin } else { 0 };
            base.load_keys(&reading, superblock.hash_seed, Some(begin))?
        };
        if keys != header.keys {
            return Err(impossible());
        }
        reading.reader.lock().end()?;
        Ok(base)
    }

    /// Returns the tombstones.
    fn load_system(&mut self, reading: &Reading, superblock: &Superblock) -> Result<Vec<Tombstone>> {
        let (mut tombstones, mut key_count) = (Vec::new(), 0);
        let mut block = Block::default();
        while reading.reader.lock().read(Section::System, &mut block)? {
            block.apply(&reading.name, Section::System, |mut items| {
                while let Some(item) = items.next_system()? {
                    self.load_system_item(&item, superblock, (&mut tombstones, &mut key_count))?;
                }
                Ok(())
            })?;
        }
        Ok(tombstones)
    }

    fn load_system_item(
        &mut self,
        item: &SystemItem<'_>,
        superblock: &Superblock,
        (tombstones, key_count): (&mut Vec<Tombstone>, &mut u64),
    ) -> Result<(), &'static str> {
        let object = || u32::try_from(item.number).map_err(|_| NO_ITEM);
        let value = || item.value.try_into().map(u64::from_le_bytes).map_err(|_| NO_ITEM);
        match item.kind {
            kind::RECORD => self.load_record(superblock, object()?, item.key, item.value)?,
            kind::KEY_COUNT => {
                let object = self.objects.get(object()?).ok_or(NO_ITEM)?;
                let count = value()?;
                *key_count = key_count.checked_add(count).filter(|&all| all < KEYS_END).ok_or(NO_ITEM)?;
                object.key_count.add(count as i64);
            }
            kind::TOMBSTONE => {
                tombstones.push(Tombstone { object: object()?, key: item.key.to_vec(), address: value()? });
            }
            kind::LIVENESS => {
                let is_before_end = item.number <= self.replay_from / superblock.segment_bytes;
                if !is_before_end || !self.liveness.restore(item.number, item.value) {
                    return Err(NO_ITEM);
                }
            }
            _ => return Err(NO_ITEM),
        }
        Ok(())
    }

    fn load_record(
        &mut self,
        superblock: &Superblock,
        object: u32,
        key: &[u8],
        value: &[u8],
    ) -> Result<(), &'static str> {
        if !SystemRecord::is_object(object) {
            return Err(NO_ITEM);
        }
        let shape = Shape { kind: Kind::Put, object, key_bytes: key.len(), value_bytes: value.len() };
        // Its own is not known, and is no newer. What lies before the end may be of newer ones than the seal there makes durable.
        let version = self.newest_version;
        let record = DiskRecord { shape, version, previous: NO_ADDRESS, key, value, expires_at: NEVER };
        self.heard.learn(&self.objects, superblock, &record)
    }

    /// Returns how many there are, and how many of them before the log's beginning.
    fn load_entries(&self, reading: &Reading, begin: Address) -> Result<(u64, u64)> {
        let (count, departed) = (AtomicU64::new(0), AtomicU64::new(0));
        let (end, index) = (self.replay_from, &self.index);
        reading.each_block(Section::Entries, |mut items| {
            let mut group: Vec<(u64, Address)> = Vec::with_capacity(2 * GROUP);
            loop {
                group.clear();
                while group.len() < GROUP
                    && let Some((low_bits, entries)) = items.next_bucket()?
                {
                    for entry in entries {
                        let address = hash_index::address_of(entry);
                        if address == NO_ADDRESS || address >= end {
                            return Err(NO_ITEM);
                        }
                        let hash = index.hash_of_entry(entry, low_bits);
                        index.prefetch(hash);
                        group.push((hash, address));
                    }
                }
                if group.is_empty() {
                    return Ok(());
                }
                count.fetch_add(group.len() as u64, Ordering::Relaxed);
                let gone = group.iter().filter(|(_, address)| *address < begin).count();
                departed.fetch_add(gone as u64, Ordering::Relaxed);
                for &(hash, address) in &group {
                    let bucket = lock(index, hash);
                    // It has as many buckets as are worth it, however many of them overflow.
                    let _ = index.insert(bucket, hash, address);
                    index.unlock_changed(bucket);
                }
            }
        })?;
        index.forgo_splits();
        Ok((count.load(Ordering::Relaxed), departed.load(Ordering::Relaxed)))
    }

    fn is_possible(&self, Tombstone { object, key, address }: &Tombstone) -> bool {
        self.objects.get(*object).is_some()
            && key.len() <= KEY_BYTES_MAX
            && (1..self.replay_from).contains(address)
            && address.is_multiple_of(8)
    }

    /// Recovery has no use for tombstones: what follows one looks like a new key.
    /// But where something has settled that they may be about, or a snapshot may see what they delete, they are kept aside.
    fn remove_tombstones(&mut self, tombstones: Vec<Tombstone>, superblock: &Superblock, has_settled: bool) {
        for tombstone in tombstones {
            let Tombstone { object, key, address } = &tombstone;
            let hash = hash_index::hash_of(superblock.hash_seed, *object, key);
            let bucket = lock(&self.index, hash);
            // The tombstones of keys that were written again are no keys' newest records.
            let was_newest = self.index.remove(bucket, hash, *address);
            self.index.unlock_changed(bucket);
            let ordered = self.objects.ordered(*object);
            if let Some(ordered) = ordered.filter(|_| self.index.addresses_of(hash).next().is_none()) {
                ordered.remove(&epoch::pin(), key);
            }
            if was_newest && (superblock.has_snapshots || has_settled && ordered.is_some()) {
                self.deleted.push(tombstone);
            } else if was_newest {
                self.liveness.supersede(*address, 0, Some(tombstone.bytes()));
                if ordered.is_some() {
                    self.forgotten_to = self.forgotten_to.max(address + 1);
                }
            }
        }
    }

    /// Takes all keys, or those alone that may have an entry from an address on. Returns how many there are, those included that were not taken.
    fn load_keys(&self, reading: &Reading, hash_seed: u64, entry_from: Option<Address>) -> Result<u64> {
        let count = AtomicU64::new(0);
        reading.each_block(Section::Keys, |mut items| {
            let (mut group, mut bytes) = (Vec::with_capacity(GROUP), Vec::new());
            loop {
                group.clear();
                bytes.clear();
                while group.len() < GROUP
                    && let Some((object, key)) = items.next_key()?
                {
                    if key.len() > KEY_BYTES_MAX {
                        return Err(NO_ITEM);
                    }
                    let hash = entry_from.map(|_| hash_index::hash_of(hash_seed, object, key));
                    if let Some(hash) = hash {
                        #[cfg(test)]
                        tests::ASKED.set(tests::ASKED.get() + 1);
                        self.index.prefetch(hash);
                    }
                    let from = bytes.len();
                    bytes.extend_from_slice(key);
                    group.push((object, hash, from..bytes.len()));
                }
                if group.is_empty() {
                    return Ok(());
                }
                count.fetch_add(group.len() as u64, Ordering::Relaxed);
                let pin = epoch::pin();
                for of_object in group.chunk_by(|left, right| left.0 == right.0) {
                    let object = self.objects.get(of_object[0].0).ok_or(NO_ITEM)?;
                    let ordered = object.ordered().ok_or(NO_ITEM)?;
                    let may_have = |hash| self.index.addresses_of(hash).any(|at| Some(at) >= entry_from);
                    let there = of_object.iter().filter(|(_, hash, _)| hash.is_none_or(may_have));
                    let keys: Vec<&[u8]> = there.map(|(.., key)| &bytes[key.clone()]).collect();
                    ordered.insert_ascending(&pin, &keys, Run::Dense);
                }
            }
        })?;
        Ok(count.load(Ordering::Relaxed))
    }
}

/// A deleted key, and its newest record.
#[derive(Debug)]
pub(crate) struct Tombstone {
    pub(crate) object: u32,
    pub(crate) key: Vec<u8>,
    pub(crate) address: Address,
}

impl Tombstone {
    /// Bytes of the record.
    pub(super) fn bytes(&self) -> u64 {
        let (object, key_bytes) = (self.object, self.key.len());
        Shape { kind: Kind::Tombstone, object, key_bytes, value_bytes: 0 }.bytes()
    }
}

/// So many items' cache misses overlap.
const GROUP: usize = 128;

/// No database has so many keys, so nothing that is counted with them overflows.
const KEYS_END: u64 = 1 << ADDRESS_BITS;

/// Nobody holds a bucket for long.
pub(super) fn lock(index: &HashIndex, hash: u64) -> hash_index::Bucket {
    loop {
        if let Some(bucket) = index.lock(hash) {
            return bucket;
        }
        thread::yield_now();
    }
}

/// A checkpoint that is being read by several.
struct Reading {
    reader: Mutex<Reader>,
    name: String,
    workers: usize,
}

impl Reading {
    /// Shows the items of each block of a section to `act`, block by block, in any order and to several threads at once.
    fn each_block(
        &self,
        section: Section,
        act: impl Fn(Items<'_>) -> Result<(), &'static str> + Sync,
    ) -> Result<()> {
        let (failed, failure) = (AtomicBool::new(false), Mutex::new(None));
        let work = || {
            let mut block = Block::default();
            while !failed.load(Ordering::Relaxed) {
                match self.one_block(section, &mut block, &act) {
                    Ok(true) => {}
                    Ok(false) => break,
                    Err(error) => {
                        failed.store(true, Ordering::Relaxed);
                        failure.lock().get_or_insert(error);
                    }
                }
            }
        };
        together(self.workers, THREAD_NAME, work);
        let failure = failure.lock().take();
        failure.map_or(Ok(()), Err)
    }

    fn one_block(
        &self,
        section: Section,
        block: &mut Block,
        act: impl Fn(Items<'_>) -> Result<(), &'static str>,
    ) -> Result<bool> {
        if !self.reader.lock().read(section, block)? {
            return Ok(false);
        }
        block.apply(&self.name, section, act)?;
        Ok(true)
    }
}

#[cfg(test)]
#[path = "base_tests.rs"]
pub(super) mod tests;
