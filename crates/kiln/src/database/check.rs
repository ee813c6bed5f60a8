//! Checking a database.
//!
//! A check accounts for every file, segment, extent, seal and record, and says what does not hold. It is the
//! oracle of the tests.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt;
use std::ops::Bound;
use std::path::Path;
use std::sync::Arc;

use super::check_checkpoint::{self, Expected, LiveKeys};
pub use super::check_report::CheckReport;
use super::open::open_tree;
use crate::device::{Device, DeviceLock, FileDevice, OpenMode};
use crate::error::{Error, ErrorKind, Result};
use crate::kernel::catalog::{Entry, FIRST_OBJECT};
use crate::kernel::engine::Engine;
use crate::kernel::object::ObjectKind;
use crate::kernel::recovery::{EXPIRY_UNEXPECTED, NUMBER_TAKEN, SETTLED_BEYOND_LOG, SystemRecord};
use crate::storage::epoch;
use crate::storage::extent::{Extent, Item};
use crate::storage::hash_index;
use crate::storage::names::Names;
use crate::storage::record::{Address, DiskRecord, Kind, NO_ADDRESS};
use crate::storage::scanner::Scanner;
use crate::storage::segments::{self, Segments};
use crate::storage::superblock::{self, Superblock, SuperblockFile};
use crate::storage::tree::{Cursor, Direction, OBJECT_BYTES, Tree};
use crate::sync::atomic::Ordering;

const SLOT_DAMAGED: &str = "one of its two slots; the other one holds, and opening goes on with it";

/// Opens what is needed to read a database that nobody has open.
pub(super) fn open_offline(device: Arc<dyn Device>) -> Result<(Segments, Superblock, Box<dyn DeviceLock>)> {
    // Looked at first: where there is no database, not even the lock's file is to be left behind.
    let names = device.list().map_err(|error| Error::io("listing the database's files", error))?;
    if !names.iter().any(|name| name == superblock::FILE || segments::is_segment(name)) {
        let directory = device.describe("");
        return Err(Error::new(
            ErrorKind::NotFound,
            format!("there is no database in {}", directory.trim_end_matches('/')),
        ));
    }
    if !names.iter().any(|name| name == superblock::FILE) {
        return Err(Error::corrupted(&device.describe(superblock::FILE), 0, "it is missing"));
    }
    let lock = device.lock().map_err(|error| match error.kind() {
        std::io::ErrorKind::WouldBlock => Error::new(ErrorKind::Locked, format!("{error}; stop it first")),
        _ => Error::io("locking the database", error),
    })?;
    let superblock = SuperblockFile::open(&*device, OpenMode::Read)?.current().clone();
    let segments = Segments::open(device.clone(), superblock.segment_bytes, OpenMode::Read)?;
    Ok((segments, superblock, lock))
}

pub(super) fn file_device(path: &Path) -> Result<Arc<dyn Device>> {
    let device = FileDevice::open(path, false).map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => {
            Error::new(ErrorKind::NotFound, format!("there is no database at {}: {error}", path.display()))
        }
        _ => Error::io(format_args!("opening {}", path.display()), error),
    })?;
    Ok(Arc::new(device))
}

/// Checks the database in a directory, which nobody may have open. Changes nothing. It remembers each key that is in the log: with keys of 16 bytes, in 160 to 260 bytes of memory each.
///
/// # Errors
/// `Locked`, `NotFound`, `Version`, or `Io` if it cannot be read; damage is in the report.
pub fn check(path: impl AsRef<Path>) -> Result<CheckReport> {
    check_on(file_device(path.as_ref())?)
}

/// Checks the database on a device.
///
/// # Errors
/// As [`check`].
pub fn check_on(device: Arc<dyn Device>) -> Result<CheckReport> {
    let mut checker = Checker::default();
    let (segments, superblock, _lock) = match open_offline(device) {
        Ok(opened) => opened,
        Err(error) if error.kind() == ErrorKind::Corrupted => {
            checker.report.problems.push(error.to_string());
            return Ok(checker.report);
        }
        Err(error) => return Err(error),
    };
    if let Some(offset) = superblock.damaged_slot {
        let file = segments.device().describe(superblock::FILE);
        checker.note_mendable(&Error::corrupted(&file, offset, SLOT_DAMAGED));
    }
    checker.check_tree(segments.names(), &superblock)?;
    checker.walk(&segments, &superblock, Address::MAX)?;
    checker.compare_tree()?;
    checker.check_checkpoint(&segments, &superblock);
    Ok(checker.report)
}

/// Checks an open database in which nobody writes: the log, and the indexes against it. The caller [tells](Engine::telling) who waits for what hardens.
pub(super) fn check_open(engine: &Engine) -> Result<CheckReport> {
    let mut checker = Checker::default();
    // The engine writes nothing by itself, either: rows that have expired stay, and so does what is warm, or to be compacted, where it is.
    let _unexpired = engine.expiring.pause();
    let _unmoved = engine.warm.pause();
    let _unsettled = engine.settled.pause();
    let _kept = engine.checkpoints.pause();
    let _paused = engine.graves.pause();
    engine.harden_all()?;
    let superblock = engine.superblock.lock().current().clone();
    checker.check_open_tree(engine.settled.tree.clone(), &superblock)?;
    checker.walk(&engine.segments, &superblock, engine.log.hardened())?;
    checker.compare_tree()?;
    checker.check_checkpoint(&engine.segments, &superblock);
    checker.compare_indexes(engine);
    Ok(checker.report)
}

/// A key's newest record, as the log tells it.
#[derive(Clone, Copy)]
struct Newest {
    address: Address,
    version: u64,
    live: bool,
}

/// A record and what it claims to follow.
struct Link {
    key: (u32, Vec<u8>),
    newest: Newest,
    previous: Address,
    /// What its entry in the catalog says of an object, if it is one.
    entry: Option<Entry>,
}

#[derive(Default)]
struct Checker {
    report: CheckReport,
    newest: HashMap<(u32, Vec<u8>), Newest>,
    /// Every object that an entry names, and those whose entries count.
    named: HashSet<u32>,
    objects: HashMap<u32, (String, ObjectKind)>,
    /// Those that were dropped: what there is of their rows, in the indexes and in the tree, goes at any time.
    dropped: HashSet<u32>,
    /// The first record of each object; its catalog entry may stand behind it.
    first_records: BTreeMap<u32, Address>,
    /// What the log says where the checkpoint ends, if the walk came there.
    at_checkpoint: Option<LiveKeys>,
    /// What has settled, if that is sound.
    tree: Option<Arc<Tree>>,
    /// Rows of each object that are only in the tree.
    settled_rows: HashMap<u32, u64>,
}

impl Checker {
    fn problem(&mut self, segments: &Segments, address: Address, what: impl fmt::Display) {
        let (file, offset) = segments.place(address);
        self.report.problems.push(format!("{file}, offset {offset}: {what}"));
    }

    /// Walks the log up to `end` and collects each key's newest record.
    fn walk(&mut self, segments: &Segments, superblock: &Superblock, end: Address) -> Result<()> {
        let mut scanner = Scanner::new(segments, superblock);
        let mut pending = Vec::new();
        let mut last_segment = None;
        let checkpoint_end = superblock.usable_checkpoint().map(|named| named.end);
        loop {
            if checkpoint_end == Some(scanner.position()) {
                self.at_checkpoint = Some(self.live_keys(superblock, &pending));
            }
            if scanner.position() >= end {
                break;
            }
            let extent = match scanner.next() {
                Ok(Some(extent)) => extent,
                Ok(None) => break,
                Err(error) if error.kind() == ErrorKind::Corrupted => {
                    self.report.problems.push(error.to_string());
                    return Ok(());
                }
                Err(error) => return Err(error),
            };
            self.report.extents += 1;
            let segment = extent.seal.address / superblock.segment_bytes;
            self.report.segments += u64::from(last_segment.replace(segment) != Some(segment));
            self.extent(segments, superblock, &extent, &mut pending);
        }
        for (object, address) in std::mem::take(&mut self.first_records) {
            if !self.named.contains(&object) {
                self.problem(
                    segments,
                    address,
                    format_args!("the record's object {object} is not in the catalog"),
                );
            }
        }
        if self.merged_to() > scanner.position() {
            self.problem(segments, scanner.position(), SETTLED_BEYOND_LOG);
        }
        self.report.cut_bytes = scanner.cut_bytes();
        self.report.lost_records += pending.len() as u64;
        let position = scanner.position();
        // Which the damaged slot has said, if the database was opened since.
        let goes_on = superblock.damaged_slot.is_some() && position > superblock.known_end;
        if superblock.clean && end == Address::MAX && position != superblock.known_end && !goes_on {
            self.problem(segments, position, "the log does not end where the orderly close left it");
        }
        self.report.keys =
            self.newest.iter().filter(|((object, _), newest)| newest.live && self.is_users(*object)).count()
                as u64;
        Ok(())
    }

    /// It is an object that users made, and have not dropped.
    fn is_users(&self, object: u32) -> bool {
        object >= FIRST_OBJECT && !self.dropped.contains(&object)
    }

    fn extent(
        &mut self,
        segments: &Segments,
        superblock: &Superblock,
        extent: &Extent<'_>,
        pending: &mut Vec<Link>,
    ) {
        let seal = &extent.seal;
        if seal.first_version != 0 {
            self.report.lost_records += pending.len() as u64;
            pending.clear();
        }
        if seal.version < self.report.horizon {
            self.problem(segments, seal.address, "a seal's version is older than the one before it");
        }
        let (before, horizon) = (self.report.horizon, seal.version);
        self.report.horizon = horizon;
        // All extents of a hardening but the last have the seal of the one before, for which nothing waits.
        if horizon > before {
            for link in pending.extract_if(.., |link| link.newest.version <= horizon) {
                self.link(segments, superblock, link);
            }
        }
        for item in extent.items() {
            match item {
                Err((address, what)) => self.problem(segments, address, what),
                Ok(Item::Padding(_, bytes)) => self.report.padding_bytes += bytes,
                Ok(Item::Record(address, record)) => {
                    let entry = self.record(segments, superblock, address, &record);
                    let newest =
                        Newest { address, version: record.version, live: record.shape.kind.is_put() };
                    let key = (record.shape.object, record.key.to_vec());
                    let link = Link { key, newest, previous: record.previous, entry };
                    match record.version > horizon {
                        true => pending.push(link),
                        false => self.link(segments, superblock, link),
                    }
                }
            }
        }
    }

    /// Returns what it says of an object if it is an entry of the catalog.
    fn record(
        &mut self,
        segments: &Segments,
        superblock: &Superblock,
        address: Address,
        record: &DiskRecord<'_>,
    ) -> Option<Entry> {
        self.report.records += 1;
        self.report.tombstones += u64::from(record.shape.kind == Kind::Tombstone);
        if record.version == 0 {
            self.problem(segments, address, "a record has version 0");
        }
        if record.shape.kind == Kind::Expiring && !superblock.has_expiring {
            self.problem(segments, address, EXPIRY_UNEXPECTED);
        }
        match SystemRecord::decode(record) {
            Err(what) => self.problem(segments, address, what),
            Ok(None) => {}
            Ok(Some(told)) => match (told.unexpected(superblock), told) {
                (Some(what), _) => self.problem(segments, address, what),
                (None, SystemRecord::Entry(entry @ (Entry::Object(..) | Entry::Dropped(..)))) => {
                    return Some(entry);
                }
                (None, _) => {}
            },
        }
        None
    }

    /// A record must point to its key's record before it, unless that was forgotten or truncated.
    fn link(&mut self, segments: &Segments, superblock: &Superblock, link: Link) {
        let Link { key, newest, previous, entry } = link;
        // Of a lost object there may be records that were never sealed, and not its entry.
        if !SystemRecord::is_object(key.0) {
            self.first_records.entry(key.0).or_insert(newest.address);
        }
        if let Some(Entry::Dropped(_, _, id)) = entry {
            self.dropped.insert(id);
        }
        if let Some(Entry::Object(name, kind, id, _) | Entry::Dropped(name, kind, id)) = entry {
            self.named.insert(id);
            let object = (name, kind);
            if *self.objects.entry(id).or_insert_with(|| object.clone()) != object {
                self.problem(segments, newest.address, NUMBER_TAKEN);
            }
        }
        let before = self.newest.insert(key, newest);
        match before {
            Some(before) if before.version > newest.version => {
                self.problem(
                    segments,
                    newest.address,
                    "a key's records are not in the order of their versions",
                );
            }
            // What had left the log.
            Some(before) if previous == NO_ADDRESS && before.address < self.settled_to() => {}
            // A deleted key that was forgotten begins a new chain.
            Some(before) if before.address != previous && (before.live || previous != NO_ADDRESS) => {
                let was = before.address;
                self.problem(
                    segments,
                    newest.address,
                    format_args!(
                        "a record does not follow its key's record before it, at log address {was:#x}"
                    ),
                );
            }
            None if previous >= superblock.begin && previous != NO_ADDRESS => {
                self.problem(segments, newest.address, "a record's previous record is not there");
            }
            _ => {}
        }
    }

    /// What a checkpoint must say that ends where the walk is. It counts as sealed what waits for a seal.
    fn live_keys(&self, superblock: &Superblock, pending: &[Link]) -> LiveKeys {
        let waiting: HashMap<_, _> = pending.iter().map(|link| (&link.key, link.newest)).collect();
        let sealed = self
            .newest
            .iter()
            .filter(|(key, _)| !waiting.contains_key(key))
            .map(|(key, newest)| (key, *newest));
        let of_key = |(key, newest): (&(u32, Vec<u8>), Newest)| {
            (newest.address, (key.0, hash_index::hash_of(superblock.hash_seed, key.0, &key.1)))
        };
        let all = sealed.chain(waiting.iter().map(|(key, newest)| (*key, *newest)));
        all.filter(|(_, newest)| newest.live).map(of_key).collect()
    }

    fn check_checkpoint(&mut self, segments: &Segments, superblock: &Superblock) {
        // Without the tree nobody knows which keys have left the log's indexes.
        let live = self.at_checkpoint.take().filter(|_| self.tree.is_some());
        // Of those that were dropped since, too, it may lack some.
        let expected = live.map(|live| Expected { live, dropped: &self.dropped });
        let settled_to = self.settled_to();
        let known = (&self.objects, settled_to);
        check_checkpoint::check(segments, superblock, expected.as_ref(), known, &mut self.report);
    }

    fn note_mendable(&mut self, damage: &Error) {
        self.report.problems.push(damage.without_advice().to_owned());
        self.report.mendable_problems += 1;
    }

    /// The tree has some of what the log says up to here.
    fn merged_to(&self) -> Address {
        self.tree.as_ref().map_or(0, |tree| tree.settled_to().max(tree.root().begun_to()))
    }

    /// What has settled up to here is in no index.
    fn settled_to(&self) -> Address {
        self.tree.as_ref().map_or(0, |tree| tree.settled_to())
    }

    fn check_tree(&mut self, names: &Arc<Names>, superblock: &Superblock) -> Result<()> {
        const CACHE_BYTES: usize = 1 << 20;
        match open_tree(names, CACHE_BYTES, superblock, OpenMode::Read) {
            Ok(tree) => self.check_open_tree(Arc::new(tree), superblock),
            Err(error) => self.note_damage(error),
        }
    }

    fn check_open_tree(&mut self, tree: Arc<Tree>, superblock: &Superblock) -> Result<()> {
        match tree.check() {
            Ok(found) => {
                if let Some(block) = found.expiring_leaf.filter(|_| !superblock.has_expiring) {
                    self.report.problems.push(tree.damage(block, EXPIRY_UNEXPECTED).to_string());
                }
                if let Some(block) = found.damaged_slot {
                    self.note_mendable(&tree.damage(block, SLOT_DAMAGED));
                }
                self.tree = Some(tree);
                Ok(())
            }
            Err(error) => self.note_damage(error),
        }
    }

    fn note_damage(&mut self, error: Error) -> Result<()> {
        if error.kind() != ErrorKind::Corrupted {
            return Err(error);
        }
        self.report.problems.push(error.to_string());
        Ok(())
    }

    /// The tree has what the log says that has settled, and nothing that it says is deleted; and each of its rows that the log does
    /// not know is a key.
    fn compare_tree(&mut self) -> Result<()> {
        let Some(tree) = self.tree.clone() else { return Ok(()) };
        let mut rows: BTreeMap<u32, u64> = BTreeMap::new();
        let mut cursor = Cursor::new(&tree, tree.root());
        let outcome = cursor.seek(Bound::Unbounded, Direction::Forwards).and_then(|()| {
            let mut seen = HashSet::new();
            while let Some(tree_key) = cursor.key() {
                let Some((object, key)) = tree_key.split_first_chunk::<OBJECT_BYTES>() else {
                    self.report.problems.push("the tree has a row of no object".to_owned());
                    break;
                };
                let object = u32::from_be_bytes(*object);
                // Of a load that has not come to its end, or of an object that was dropped: the rows do not count.
                let is_left = object == tree.loaded() && !self.objects.contains_key(&object);
                if is_left || self.dropped.contains(&object) {
                    cursor.step()?;
                    continue;
                }
                let key = (object, key.to_vec());
                match self.newest.get(&key) {
                    None => *rows.entry(object).or_default() += 1,
                    Some(_) => drop(seen.insert(key)),
                }
                cursor.step()?;
            }
            Ok(seen)
        });
        let seen = match outcome {
            Ok(seen) => seen,
            Err(error) => return self.note_damage(error),
        };
        let settled_to = self.settled_to();
        for (key, newest) in &self.newest {
            let is_table = self.objects.get(&key.0).is_some_and(|(_, kind)| *kind == ObjectKind::Table);
            if is_table
                && !self.dropped.contains(&key.0)
                && newest.address < settled_to
                && newest.live != seen.contains(key)
            {
                self.report.problems.push(format!(
                    "the tree does not have what the record at log address {:#x} says that has settled",
                    newest.address
                ));
            }
        }
        self.report.keys += rows.values().sum::<u64>();
        self.settled_rows = rows.into_iter().collect();
        Ok(())
    }

    /// Every key of the log has its entry, every entry its key, every table key its place in the order.
    fn compare_indexes(&mut self, engine: &Engine) {
        let mut problems = Vec::new();
        // By segment.
        let mut entries: BTreeMap<Address, u64> = BTreeMap::new();
        let keys: HashMap<Address, &(u32, Vec<u8>)> =
            self.newest.iter().map(|(key, newest)| (newest.address, key)).collect();
        for (bucket, addresses) in engine.index.buckets() {
            for address in addresses {
                *entries.entry(address - address % engine.log.segment_bytes()).or_default() += 1;
                let Some((object, key)) = keys.get(&address) else {
                    problems.push(format!(
                        "the index entry of log address {address:#x} is not its key's newest record"
                    ));
                    continue;
                };
                if engine.index.bucket_of(engine.hash(*object, key)) != bucket {
                    problems
                        .push(format!("the index entry of log address {address:#x} is in the wrong bucket"));
                }
            }
        }
        let mut live = self.settled_rows.clone();
        let mut unsettled = self.newest.values().filter(|newest| newest.live).count() as u64;
        let mut entered: HashMap<u32, usize> = HashMap::new();
        for ((object, key), newest) in &self.newest {
            if self.dropped.contains(object) {
                unsettled -= u64::from(newest.live);
                continue;
            }
            *live.entry(*object).or_default() += u64::from(newest.live);
            let hash = engine.hash(*object, key);
            let found = engine.index.addresses_of(hash).any(|address| address == newest.address);
            let ordered = engine.objects.ordered(*object);
            // Where taking it off the index has failed it is there until something settles again.
            let is_left = found && newest.address >= engine.settled.removed_to.load(Ordering::SeqCst);
            if ordered.is_some() && newest.address < self.settled_to() && !is_left {
                if found {
                    let address = newest.address;
                    problems.push(format!(
                        "the record at log address {address:#x} has settled, and is in the index"
                    ));
                }
                unsettled -= u64::from(newest.live);
                continue;
            }
            if newest.live && !found {
                problems.push(format!("the record at log address {:#x} is not in the index", newest.address));
            }
            *entered.entry(*object).or_default() += usize::from(found);
            if (newest.live || found) && ordered.is_some_and(|ordered| !ordered.contains(&epoch::pin(), key))
            {
                problems.push(format!("a key of object {object} is not in the ordered index"));
            }
        }
        for object in engine.objects.iter().filter(|object| !self.dropped.contains(&object.id)) {
            let entered = entered.get(&object.id).copied().unwrap_or(0);
            if let Some(ordered) = object.ordered().filter(|_| engine.settled.orders_are_exact)
                && ordered.len() != entered
            {
                let (name, keys) = (object.name(), ordered.len());
                problems
                    .push(format!("object {name:?} has {keys} keys in its order and {entered} in the index"));
            }
            let (counted, known) = (object.key_count.sum(), live.get(&object.id).copied().unwrap_or(0));
            // Of what has settled there is no running count.
            let is_counted = object.ordered().is_none() || !engine.settled.tree.has_settled();
            if is_counted && counted != known {
                problems.push(format!("object {:?} counts {counted} keys and has {known}", object.name()));
            }
        }
        let segments =
            (engine.log.begin()..engine.log.hardened()).step_by(engine.log.segment_bytes() as usize);
        for segment in segments {
            let counted = engine.liveness.lock().of_segment(segment).live();
            let known = entries.get(&segment).copied().unwrap_or(0);
            if counted != known {
                problems.push(format!(
                    "the segment at log address {segment:#x} counts {counted} live records and has {known}"
                ));
            }
        }
        if entries.values().sum::<u64>() < unsettled {
            problems.push("the index has fewer entries than there are keys".to_owned());
        }
        self.report.problems.append(&mut problems);
    }
}
