//! What the records of the system's objects tell: the catalog, the sessions, the losses.

use std::collections::BTreeMap;

use crate::error::Result;
use crate::kernel::catalog::{self, CATALOG_OBJECT, Entry};
use crate::kernel::losses::{LOSSES_OBJECT, Losses, decode_loss};
use crate::kernel::named_snapshot::{self, NamedSnapshot, SNAPSHOTS_OBJECT};
use crate::kernel::object::{ObjectKind, ObjectState, Objects};
use crate::kernel::session::{SESSIONS_OBJECT, decode_serial};
use crate::storage::extent::Item;
use crate::storage::record::{Address, DiskRecord, Kind};
use crate::storage::scanner::Scanner;
use crate::storage::segments::Segments;
use crate::storage::superblock::Superblock;
use crate::sync::atomic::Ordering;

/// What a record of one of the objects that every database has says.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum SystemRecord {
    Entry(Entry),
    Serial(u64),
    /// The session with the key for its id was forgotten.
    SessionForgotten,
    Loss(u64, u64),
    Snapshot(NamedSnapshot),
    /// The snapshot with the key for its name was dropped.
    SnapshotDropped,
}

/// What is wrong where the catalog gives one number to two objects.
pub(crate) const NUMBER_TAKEN: &str = "the catalog gives an object the number of another one";
/// What is wrong where a snapshot has a name that the superblock does not know of: it is older than the record.
const NAME_UNEXPECTED: &str = "a snapshot has a name, and the superblock says that none has";
/// What is wrong where a session was forgotten that the superblock does not know of: it is older than the record.
const FORGETTING_UNEXPECTED: &str = "a session was forgotten, and the superblock says that none was";
/// What is wrong where an object was dropped, and the superblock says that none was: it is older than the record.
pub(crate) const DROP_UNEXPECTED: &str = "an object was dropped, and the superblock says that none was";
/// What is wrong where a row expires, and the superblock says that none does: it is older than the record.
pub(crate) const EXPIRY_UNEXPECTED: &str = "a row expires, and the superblock says that none does";

impl SystemRecord {
    /// Whether the engine's own records have this number as their object.
    pub(crate) fn is_object(number: u32) -> bool {
        number <= SNAPSHOTS_OBJECT
    }

    /// Takes such a record apart; `None` for any other record. `Err` says what is wrong with it.
    pub(crate) fn decode(record: &DiskRecord<'_>) -> Result<Option<SystemRecord>, &'static str> {
        let is_tombstone = record.shape.kind == Kind::Tombstone;
        let (decoded, what) = match record.shape.object {
            CATALOG_OBJECT => (
                catalog::decode_entry(record.key, record.value).map(SystemRecord::Entry),
                "an entry of the catalog names no object",
            ),
            SESSIONS_OBJECT if is_tombstone => return Ok(Some(SystemRecord::SessionForgotten)),
            SESSIONS_OBJECT => (
                decode_serial(record.value).map(SystemRecord::Serial),
                "the record of a session holds no serial number",
            ),
            LOSSES_OBJECT => (
                decode_loss(record.key, record.value).map(|(first, last)| SystemRecord::Loss(first, last)),
                "the record of a loss does not name versions",
            ),
            SNAPSHOTS_OBJECT if is_tombstone => return Ok(Some(SystemRecord::SnapshotDropped)),
            SNAPSHOTS_OBJECT => (
                // The version was closed before it got a name.
                named_snapshot::decode(record.key, record.value)
                    .filter(|snapshot| snapshot.version < record.version)
                    .map(SystemRecord::Snapshot),
                "the record of a snapshot does not say which version it is of",
            ),
            _ => return Ok(None),
        };
        // Nothing else is ever deleted.
        decoded.filter(|_| record.shape.kind == Kind::Put).map(Some).ok_or(what)
    }

    /// What is wrong where the superblock says that there is no such record.
    pub(crate) fn unexpected(&self, superblock: &Superblock) -> Option<&'static str> {
        match self {
            SystemRecord::Entry(Entry::Vacant | Entry::Dropped(..)) if !superblock.has_dropped => {
                Some(DROP_UNEXPECTED)
            }
            SystemRecord::Snapshot(_) if !superblock.has_snapshots => Some(NAME_UNEXPECTED),
            SystemRecord::SessionForgotten if !superblock.has_forgotten => Some(FORGETTING_UNEXPECTED),
            _ => None,
        }
    }
}

/// What records of the system's objects have told so far, be it a checkpoint's or the log's.
#[derive(Default)]
pub(super) struct Heard {
    /// Serial numbers.
    pub(super) sessions: BTreeMap<Vec<u8>, u64>,
    pub(super) losses: Losses,
    /// Those that have a name, by it.
    pub(super) snapshots: BTreeMap<Vec<u8>, NamedSnapshot>,
}

impl Heard {
    /// What one more record tells, which is nothing if it is no such record. `Err` says what is wrong with it.
    pub(super) fn learn(
        &mut self,
        objects: &Objects,
        superblock: &Superblock,
        record: &DiskRecord<'_>,
    ) -> Result<(), &'static str> {
        let Some(told) = SystemRecord::decode(record)? else { return Ok(()) };
        if let Some(what) = told.unexpected(superblock) {
            return Err(what);
        }
        match told {
            SystemRecord::Entry(Entry::NextNumber(_) | Entry::Vacant) => {}
            SystemRecord::Entry(Entry::Dropped(name, kind, id)) => {
                object_of(objects, id, &name, kind)?.life.note_dropped(record.version);
            }
            SystemRecord::Entry(Entry::Object(name, kind, id, time_to_live_ms)) => {
                let object = object_of(objects, id, &name, kind)?;
                object.time_to_live_ms.store(time_to_live_ms, Ordering::Relaxed);
            }
            SystemRecord::Serial(serial) => match self.sessions.get_mut(record.key) {
                Some(last) => *last = serial,
                None => drop(self.sessions.insert(record.key.to_vec(), serial)),
            },
            SystemRecord::SessionForgotten => drop(self.sessions.remove(record.key)),
            SystemRecord::Loss(first, last) => self.losses.add_recorded(first, last),
            SystemRecord::Snapshot(snapshot) => drop(self.snapshots.insert(record.key.to_vec(), snapshot)),
            SystemRecord::SnapshotDropped => drop(self.snapshots.remove(record.key)),
        }
        Ok(())
    }
}

/// The object that an entry of the catalog is about.
fn object_of<'a>(
    objects: &'a Objects,
    id: u32,
    name: &str,
    kind: ObjectKind,
) -> Result<&'a ObjectState, &'static str> {
    let object = catalog::add(objects, id, name, kind).ok();
    object.filter(|object| object.name() == name && object.kind() == kind).ok_or(NUMBER_TAKEN)
}

/// What the log has told so far. Records must be shown to it in the order of the log.
pub(super) struct Told<'a> {
    segments: &'a Segments,
    superblock: &'a Superblock,
    objects: &'a Objects,
    pub(super) heard: Heard,
    /// The catalog's entries in the whole log, once they had to be looked for.
    later_entries: Option<BTreeMap<u32, (String, ObjectKind)>>,
}

impl<'a> Told<'a> {
    /// Begins with what a checkpoint has told.
    pub(super) fn new(
        segments: &'a Segments,
        superblock: &'a Superblock,
        objects: &'a Objects,
        heard: Heard,
    ) -> Told<'a> {
        Told { segments, superblock, objects, heard, later_entries: None }
    }

    /// Sees to it that everything is known which must be before the record is applied.
    pub(super) fn hear(&mut self, address: Address, record: &DiskRecord<'_>) -> Result<()> {
        let id = record.shape.object;
        if record.shape.kind == Kind::Expiring && !self.superblock.has_expiring {
            return Err(self.segments.corrupted(address, EXPIRY_UNEXPECTED));
        }
        self.heard
            .learn(self.objects, self.superblock, record)
            .map_err(|what| self.segments.corrupted(address, what))?;
        if self.objects.get(id).is_none() {
            self.add_from_later_entry(id)?;
        }
        match self.objects.get(id) {
            Some(_) => Ok(()),
            None => Err(self.segments.corrupted(
                address,
                format_args!("a record belongs to object {id}, which is not in the catalog"),
            )),
        }
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
                        && let Ok(Some(SystemRecord::Entry(
                            Entry::Object(name, kind, id, _) | Entry::Dropped(name, kind, id),
                        ))) = SystemRecord::decode(&record)
                    {
                        // A number is only given out again if a crash took its first entry, so the last one counts.
                        entries.insert(id, (name, kind));
                    }
                }
            }
            self.later_entries = Some(entries);
        }
        if let Some((name, kind)) = self.later_entries.as_ref().and_then(|entries| entries.get(&id)) {
            catalog::add(self.objects, id, name, *kind)?;
        }
        Ok(())
    }
}
