//! Recovery: from the log on disk to the indexes in memory.
//!
//! The log is walked once, extent by extent. A record's previous address is the address of its key's record
//! before it, so the index is rebuilt without comparing keys and without a second read: an entry that points to
//! the previous address moves on, and where there is none the key is new.
//!
//! A record whose version is newer than its extent's seal waits for a later seal; if a crash came first, the
//! next opening wrote a seal that says so, and the record is lost.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use super::clock::Version;
use super::losses::{LOSSES_OBJECT, Losses, decode_loss};
use super::object::{ObjectKind, Objects};
use super::session::{SESSIONS_OBJECT, decode_serial};
use crate::error::{Error, Result};
use crate::objects::{self, CATALOG_OBJECT, Entry};
use crate::planted::{Bug, planted};
use crate::storage::epoch;
use crate::storage::extent::{Chain, Extent, Item};
use crate::storage::hash_index::{self, HashIndex};
use crate::storage::liveness::Liveness;
use crate::storage::log::Log;
use crate::storage::record::{Address, DiskRecord, Kind, NO_ADDRESS, OwnedRecord, VERSION_BITS};
use crate::storage::scanner::Scanner;
use crate::storage::segments::Segments;
use crate::storage::superblock::Superblock;

/// What opening a database found.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct RecoveryReport {
    /// Everything committed up to this version is there, and nothing committed after it.
    pub horizon: Version,
    /// The versions, first and last, that are lost if anything was committed into them; `None` after an orderly
    /// close.
    pub lost_versions: Option<(Version, Version)>,
    /// Bytes of an unfinished write that were cut off the end of the log.
    pub cut_bytes: u64,
    /// Records that had been written but whose version never became durable.
    pub lost_records: u64,
    /// Records read.
    pub records: u64,
    /// Extents read.
    pub seals: u64,
    /// Segments read.
    pub segments: u64,
    /// The database had been closed in order, or is new.
    pub clean: bool,
    /// Every session and the last of its serial numbers that survived.
    pub sessions: Vec<(Vec<u8>, u64)>,
    /// How long it took.
    pub duration: Duration,
}

impl fmt::Display for RecoveryReport {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            out,
            "recovered version {} from {} records in {} extents of {} segments in {:.3} s; ",
            self.horizon,
            self.records,
            self.seals,
            self.segments,
            self.duration.as_secs_f64()
        )?;
        match &self.lost_versions {
            None => out.write_str("it had been closed in order, nothing is lost")?,
            Some((first, _)) => write!(
                out,
                "it had not been closed in order: whatever was committed from version {first} on is lost \
                 ({} records never sealed, {} bytes of an unfinished write cut off)",
                self.lost_records, self.cut_bytes
            )?,
        }
        for (id, serial) in &self.sessions {
            write!(out, "\n  session {:?}: durable through serial {serial}", String::from_utf8_lossy(id))?;
        }
        Ok(())
    }
}

/// What the walk leaves behind besides the indexes.
pub(crate) struct Recovered {
    pub(crate) report: RecoveryReport,
    /// Where the log goes on, and the chain of seals up to there.
    pub(crate) end: Address,
    pub(crate) chain: Chain,
    /// Where the last extent begins.
    pub(crate) last_extent: Option<Address>,
    /// The newest version seen in any record.
    pub(crate) newest_version: u64,
    /// Versions lost in this and in earlier crashes.
    pub(crate) losses: Losses,
}

/// After a crash the clock jumps by this much, so that no version that was given out but never reached the disk
/// is given out again.
pub(crate) const VERSIONS_SKIPPED: u64 = 1 << 24;

/// A database in which so many versions were given out is not opened any more: a record has no room for twice as many.
pub(crate) const VERSIONS_END: u64 = 1 << (VERSION_BITS - 1);

/// What a record of one of the objects that every database has says.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum SystemRecord {
    Entry(Entry),
    Serial(u64),
    Loss(u64, u64),
}

/// What is wrong where the catalog gives one number to two objects.
pub(crate) const NUMBER_TAKEN: &str = "the catalog gives an object the number of another one";

impl SystemRecord {
    /// Takes such a record apart; `None` for any other record. `Err` says what is wrong with it.
    pub(crate) fn decode(record: &DiskRecord<'_>) -> Result<Option<SystemRecord>, &'static str> {
        let (decoded, what) = match record.shape.object {
            CATALOG_OBJECT => (
                objects::decode_entry(record.key, record.value).map(SystemRecord::Entry),
                "an entry of the catalog names no object",
            ),
            SESSIONS_OBJECT => (
                decode_serial(record.value).map(SystemRecord::Serial),
                "the record of a session holds no serial number",
            ),
            LOSSES_OBJECT => (
                decode_loss(record.key, record.value).map(|(first, last)| SystemRecord::Loss(first, last)),
                "the record of a loss does not name versions",
            ),
            _ => return Ok(None),
        };
        // None of them is ever deleted.
        decoded.filter(|_| record.shape.kind == Kind::Put).map(Some).ok_or(what)
    }
}

/// Walks the log and fills the indexes.
pub(crate) struct Recovery<'a> {
    pub(crate) segments: &'a Segments,
    pub(crate) superblock: &'a Superblock,
    pub(crate) log: &'a Log,
    pub(crate) index: &'a HashIndex,
    pub(crate) objects: &'a Objects,
    pub(crate) liveness: &'a mut Liveness,
    /// Serial numbers seen so far.
    pub(crate) sessions: BTreeMap<Vec<u8>, u64>,
    /// Losses seen so far.
    pub(crate) losses: Losses,
    /// The catalog's entries in the whole log, once they had to be looked for.
    pub(crate) later_entries: Option<BTreeMap<u32, (String, ObjectKind)>>,
}

impl Recovery<'_> {
    pub(crate) fn run(mut self) -> Result<Recovered> {
        let mut scanner = Scanner::new(self.segments, self.superblock);
        let mut report = RecoveryReport::default();
        let mut pending: Vec<(Address, OwnedRecord)> = Vec::new();
        let (mut horizon, mut newest_version) = (0, 0);
        let (mut last_segment, mut last_extent) = (None, None);
        while let Some(extent) = scanner.next()? {
            let seal = &extent.seal;
            self.log.load(seal.address, extent.bytes);
            report.seals += 1;
            last_extent = Some(seal.address);
            self.liveness.set_end_checksum(seal.address, extent.checksum);
            let segment = seal.address / self.superblock.segment_bytes;
            report.segments += u64::from(last_segment.replace(segment) != Some(segment));
            if seal.first_version != 0 {
                // Opened after a crash: what was never sealed before is lost for ever.
                if !planted(Bug::PendingKept) {
                    self.give_up(pending.drain(..));
                }
                self.losses.add(seal.version + 1, seal.first_version - 1);
                newest_version = newest_version.max(seal.first_version - 1);
            }
            horizon = horizon.max(seal.version);
            for (address, record) in std::mem::take(&mut pending) {
                self.apply_or_keep(address, &record.as_disk_record(), horizon, &mut pending)?;
            }
            self.replay(&extent, horizon, &mut pending, &mut report, &mut newest_version)?;
        }
        // If the log goes on after the orderly close, a newer superblock must have been damaged. And a close leaves nothing
        // unsealed: what is must not come back with the next seal.
        let ends_there = scanner.position() == self.superblock.known_end;
        report.clean = self.superblock.clean && ends_there && pending.is_empty();
        report.horizon = Version::new(horizon);
        report.cut_bytes = scanner.cut_bytes();
        report.lost_records = pending.len() as u64;
        self.give_up(pending.into_iter());
        report.sessions = std::mem::take(&mut self.sessions).into_iter().collect();
        let (end, chain) = (scanner.position(), scanner.chain());
        newest_version = newest_version.max(horizon).max(self.superblock.clock);
        Ok(Recovered { report, end, chain, last_extent, newest_version, losses: self.losses })
    }

    /// A crash took these records: nobody will ever need them.
    fn give_up(&mut self, lost: impl Iterator<Item = (Address, OwnedRecord)>) {
        lost.for_each(|(address, _)| self.liveness.supersede(address, 0));
    }

    fn replay(
        &mut self,
        extent: &Extent<'_>,
        horizon: u64,
        pending: &mut Vec<(Address, OwnedRecord)>,
        report: &mut RecoveryReport,
        newest_version: &mut u64,
    ) -> Result<()> {
        for item in extent.items() {
            let item = item.map_err(|(address, what)| self.segments.corrupted(address, what))?;
            if let Item::Record(address, record) = item {
                report.records += 1;
                self.liveness.add(address);
                *newest_version = record.version.max(*newest_version);
                self.apply_or_keep(address, &record, horizon, pending)?;
            }
        }
        Ok(())
    }

    fn apply_or_keep(
        &mut self,
        address: Address,
        record: &DiskRecord<'_>,
        horizon: u64,
        pending: &mut Vec<(Address, OwnedRecord)>,
    ) -> Result<()> {
        if record.version > horizon && !planted(Bug::UnsealedApplied) {
            pending.push((address, OwnedRecord::from_disk(record)));
            return Ok(());
        }
        self.apply(address, record)
    }

    /// When the log's beginning was dropped, an object's catalog entry may have been written anew behind records of
    /// the object. Then the log is walked once more for the entries.
    fn add_from_later_entry(&mut self, id: u32) -> Result<()> {
        if self.later_entries.is_none() {
            let mut entries = BTreeMap::new();
            let mut scanner = Scanner::new(self.segments, self.superblock);
            while let Some(extent) = scanner.next()? {
                for item in extent.items() {
                    if let Ok(Item::Record(_, record)) = item
                        && let Ok(Some(SystemRecord::Entry(Entry::Object(name, kind, id)))) =
                            SystemRecord::decode(&record)
                    {
                        // A number is only given out again if a crash took its first entry, so the last one counts.
                        entries.insert(id, (name, kind));
                    }
                }
            }
            self.later_entries = Some(entries);
        }
        if let Some((name, kind)) = self.later_entries.as_ref().and_then(|entries| entries.get(&id)) {
            objects::add(self.objects, id, name, *kind)?;
        }
        Ok(())
    }

    /// What a record of the system's objects tells.
    fn learn(&mut self, address: Address, record: &DiskRecord<'_>) -> Result<()> {
        match SystemRecord::decode(record).map_err(|what| self.segments.corrupted(address, what))? {
            None | Some(SystemRecord::Entry(Entry::NextNumber(_))) => {}
            Some(SystemRecord::Entry(Entry::Object(name, kind, id))) => {
                let object = objects::add(self.objects, id, &name, kind)?;
                if object.name != name || object.kind != kind {
                    return Err(self.segments.corrupted(address, NUMBER_TAKEN));
                }
            }
            Some(SystemRecord::Serial(serial)) => {
                self.sessions.insert(record.key.to_vec(), serial);
            }
            Some(SystemRecord::Loss(first, last)) => self.losses.add_recorded(first, last),
        }
        Ok(())
    }

    fn apply(&mut self, address: Address, record: &DiskRecord<'_>) -> Result<()> {
        let id = record.shape.object;
        self.learn(address, record)?;
        if self.objects.get(id).is_none() {
            self.add_from_later_entry(id)?;
        }
        let object = self.objects.get(id).ok_or_else(|| {
            self.segments.corrupted(
                address,
                format_args!("a record belongs to object {id}, which is not in the catalog"),
            )
        })?;
        let hash = hash_index::hash_of(self.superblock.hash_seed, id, record.key);
        let pin = epoch::pin();
        let bucket = self.index.lock(hash).ok_or_else(Error::conflict)?;
        let mut overflowed = false;
        match record.shape.kind {
            Kind::Put
                if record.previous != NO_ADDRESS
                    && self.index.replace(bucket, hash, record.previous, address) =>
            {
                self.liveness.supersede(record.previous, record.version);
            }
            Kind::Put => {
                overflowed = self.index.insert(bucket, hash, address);
                object.keys.admit(&pin, record.key);
                object.key_count.add(1);
            }
            // A tombstone does not enter the index; what follows it looks like a new key.
            _ => {
                self.liveness.supersede(address, record.version);
                if record.previous != NO_ADDRESS && self.index.remove(bucket, hash, record.previous) {
                    self.liveness.supersede(record.previous, record.version);
                    object.keys.retract(&pin, record.key);
                    object.key_count.add(-1);
                }
            }
        }
        self.index.unlock_changed(bucket);
        drop(pin);
        if overflowed {
            self.index.grow();
        }
        Ok(())
    }
}
