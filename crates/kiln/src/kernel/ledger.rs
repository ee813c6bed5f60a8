//! The ledger: what the durable part of the log comes to, besides the index. A checkpoint takes it over as it is.
//!
//! The hardener sees every record once, in the order of the log, and notes here how many keys each object has, what the records
//! of the system say, and the newest version. So under its lock the ledger tells what recovery would know at the
//! end of the durable log, whatever was committed since. It costs the commits one bit: that a key had no value before is
//! noted in the record, since the hardener could only look that up.
//!
//! There may be millions of sessions, and nobody hardens while a checkpoint makes its cut. So it [shares](Ledger::cut) the records
//! of the system instead of copying them: as long as it has them, what is noted goes beside them, and is
//! [folded](Ledger::fold) in afterwards, a little at a time. (Rejected: to copy a part when it is first written to while it is shared. A
//! hardening with records of many sessions would so copy all of them. A persistent tree: slower, and larger, at all times.)

use std::collections::BTreeMap;
use std::sync::Arc;

use super::losses::LOSSES_OBJECT;
use super::named_snapshot::{self, NamedSnapshot, SNAPSHOTS_OBJECT};
use super::object::Objects;
use super::session::SESSIONS_OBJECT;
use crate::objects::{CATALOG_OBJECT, FIRST_OBJECT, encode_entry};
use crate::storage::extent::Hardened;
use crate::storage::record::Kind;
use crate::sync::atomic::Ordering;

/// The newest record of each key of an object of the system's.
type Records = BTreeMap<Vec<u8>, Vec<u8>>;

/// Such records, of which a cut may have those that there were.
#[derive(Debug, Default)]
struct SharedRecords {
    shared: Arc<Records>,
    /// Newer than those of the same keys that are shared.
    since: Records,
}

impl SharedRecords {
    fn note(&mut self, key: &[u8], value: &[u8]) {
        let records = match Arc::get_mut(&mut self.shared) {
            Some(records) => {
                if !self.since.is_empty() {
                    self.since.remove(key);
                }
                records
            }
            None => &mut self.since,
        };
        match records.get_mut(key) {
            Some(known) => {
                known.clear();
                known.extend_from_slice(value);
            }
            None => drop(records.insert(key.to_vec(), value.to_vec())),
        }
    }

    /// Folds so many records in; false if none is left, or they are shared.
    fn fold(&mut self, count: usize) -> bool {
        let Some(records) = Arc::get_mut(&mut self.shared) else { return false };
        for _ in 0..count {
            let Some((key, value)) = self.since.pop_first() else { return false };
            records.insert(key, value);
        }
        true
    }
}

/// See the module's documentation.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    key_counts: BTreeMap<u32, i64>,
    /// By the object's number.
    system: [SharedRecords; 3],
    /// The snapshots that have a name, by it; they are few, and the only ones of the system that go again.
    snapshots: Records,
    /// The version that the last seal makes durable, and the newest one in a record.
    pub(crate) horizon: u64,
    pub(crate) newest_version: u64,
}

/// What a ledger told at one time.
#[derive(Debug)]
pub(crate) struct LedgerCut {
    key_counts: BTreeMap<u32, i64>,
    system: [Arc<Records>; 3],
    snapshots: Records,
    pub(crate) horizon: u64,
    pub(crate) newest_version: u64,
}

impl Ledger {
    /// What recovery has found: the objects with their keys, the sessions, the losses, and the snapshots that have a name.
    pub(crate) fn new(
        objects: &Objects,
        sessions: &[(Vec<u8>, u64)],
        losses: &[(u64, u64)],
        snapshots: &[NamedSnapshot],
        (horizon, newest_version): (u64, u64),
    ) -> Ledger {
        let mut ledger = Ledger { horizon, newest_version, ..Ledger::default() };
        for object in objects.iter() {
            ledger.key_counts.insert(object.id, object.key_count.sum() as i64);
            if object.id >= FIRST_OBJECT {
                ledger.note_system(
                    CATALOG_OBJECT,
                    object.name.as_bytes(),
                    &encode_entry(object.kind, object.id, object.time_to_live_ms.load(Ordering::Relaxed)),
                );
            }
        }
        for (id, serial) in sessions {
            ledger.note_system(SESSIONS_OBJECT, id, &serial.to_le_bytes());
        }
        for (first, last) in losses {
            ledger.note_system(LOSSES_OBJECT, &first.to_le_bytes(), &last.to_le_bytes());
        }
        for snapshot in snapshots {
            ledger.snapshots.insert(snapshot.name.clone().into_bytes(), named_snapshot::encode(snapshot));
        }
        ledger
    }

    /// A record has hardened.
    #[inline]
    pub(crate) fn note(&mut self, record: &Hardened<'_>) {
        self.newest_version = self.newest_version.max(record.version);
        let change = match (record.kind, record.is_creation) {
            (Kind::Put | Kind::Expiring, true) => 1,
            (Kind::Tombstone, false) => -1,
            _ => 0,
        };
        if change != 0 {
            *self.key_counts.entry(record.object).or_default() += change;
        }
        if record.object == SNAPSHOTS_OBJECT {
            match record.kind {
                Kind::Put => drop(self.snapshots.insert(record.key.to_vec(), record.value.to_vec())),
                _ => drop(self.snapshots.remove(record.key)),
            }
        } else if record.object < FIRST_OBJECT {
            self.note_system(record.object, record.key, record.value);
        }
    }

    fn note_system(&mut self, object: u32, key: &[u8], value: &[u8]) {
        if let Some(records) = self.system.get_mut(object as usize) {
            records.note(key, value);
        }
    }

    /// What it tells now. Copies nothing that there may be many of, if everything was [folded](Self::fold) in since the last cut went.
    pub(crate) fn cut(&mut self) -> LedgerCut {
        for records in &mut self.system {
            if !records.since.is_empty() {
                Arc::make_mut(&mut records.shared).append(&mut records.since);
            }
        }
        LedgerCut {
            key_counts: self.key_counts.clone(),
            system: [0, 1, 2].map(|object: usize| self.system[object].shared.clone()),
            snapshots: self.snapshots.clone(),
            horizon: self.horizon,
            newest_version: self.newest_version,
        }
    }

    /// Folds a few records in that were noted beside those that a cut had, which is gone. False if none is left.
    pub(crate) fn fold(&mut self) -> bool {
        const RECORDS: usize = 512;
        self.system.iter_mut().any(|records| records.fold(RECORDS))
    }
}

impl LedgerCut {
    /// How many keys each object has that has any.
    pub(crate) fn key_counts(&self) -> impl Iterator<Item = (u32, u64)> {
        let counted = self.key_counts.iter().filter(|(_, count)| **count > 0);
        counted.map(|(object, count)| (*object, count.unsigned_abs()))
    }

    /// Object, key and value of each record of the system.
    pub(crate) fn system_records(&self) -> impl Iterator<Item = (u32, &[u8], &[u8])> {
        let numbered = (0..).zip(&self.system).map(|(object, records)| (object, &**records));
        let numbered = numbered.chain([(SNAPSHOTS_OBJECT, &self.snapshots)]);
        numbered.flat_map(|(object, records)| {
            records.iter().map(move |(key, value)| (object, key.as_slice(), value.as_slice()))
        })
    }
}

const _: () = assert!(CATALOG_OBJECT == 0 && SESSIONS_OBJECT == 1 && LOSSES_OBJECT == 2);

#[cfg(test)]
mod tests {
    use super::*;

    fn sessions(cut: &LedgerCut) -> Vec<(Vec<u8>, Vec<u8>)> {
        let records = cut.system_records().filter(|(object, ..)| *object == SESSIONS_OBJECT);
        records.map(|(_, key, value)| (key.to_vec(), value.to_vec())).collect()
    }

    fn expected(serial_of: impl Fn(u32) -> Option<u8>) -> Vec<(Vec<u8>, Vec<u8>)> {
        (0..2_000_u32)
            .filter_map(|id| serial_of(id).map(|serial| (id.to_be_bytes().to_vec(), vec![serial])))
            .collect()
    }

    #[test]
    fn c4_a_cut_shares_what_it_tells_and_tells_the_same_whatever_is_noted_later() {
        let mut ledger = Ledger::default();
        let note = |ledger: &mut Ledger, id: u32, serial| {
            ledger.note_system(SESSIONS_OBJECT, &id.to_be_bytes(), &[serial]);
        };
        (0..1_500).for_each(|id| note(&mut ledger, id, 1));
        let first = ledger.cut();
        assert!(Arc::ptr_eq(&first.system[1], &ledger.system[1].shared), "it was copied");
        (500..2_000).for_each(|id| note(&mut ledger, id, 2));
        assert!(!ledger.fold(), "nothing can be folded in while it is shared");
        assert_eq!(sessions(&first), expected(|id| (id < 1_500).then_some(1)));
        drop(first);
        // What is noted before it is all folded in stays the newest.
        assert!(ledger.fold());
        (900..1_900).for_each(|id| note(&mut ledger, id, 3));
        let second = ledger.cut();
        let serial_of = |id| match id {
            0..500 => 1,
            900..1_900 => 3,
            _ => 2,
        };
        assert_eq!(sessions(&second), expected(|id| Some(serial_of(id))));
        assert!(ledger.system[1].since.is_empty());
    }
}
