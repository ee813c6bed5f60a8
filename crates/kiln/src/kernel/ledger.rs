//! The ledger: what the durable part of the log comes to, besides the index. A checkpoint takes it over as it is.
//!
//! The hardener sees every record once, in the order of the log, and notes here how many keys each object has, what the records
//! of the system say, and the newest version. So under its lock the ledger tells what recovery would know at the
//! end of the durable log, whatever was committed since. It costs the commits one bit: that a key had no value before is
//! noted in the record, since the hardener could only look that up.

use std::collections::BTreeMap;

use super::losses::LOSSES_OBJECT;
use super::object::Objects;
use super::session::SESSIONS_OBJECT;
use crate::objects::{CATALOG_OBJECT, FIRST_OBJECT, encode_entry};
use crate::storage::extent::Hardened;
use crate::storage::record::Kind;

/// See the module's documentation.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ledger {
    key_counts: BTreeMap<u32, i64>,
    /// The newest record of each key of the system's objects, by the object's number.
    system: [BTreeMap<Vec<u8>, Vec<u8>>; 3],
    /// The version that the last seal makes durable, and the newest one in a record.
    pub(crate) horizon: u64,
    pub(crate) newest_version: u64,
}

impl Ledger {
    /// What recovery has found: the objects with their keys, the sessions, and the losses.
    pub(crate) fn new(
        objects: &Objects,
        sessions: &[(Vec<u8>, u64)],
        losses: &[(u64, u64)],
        (horizon, newest_version): (u64, u64),
    ) -> Ledger {
        let mut ledger = Ledger { horizon, newest_version, ..Ledger::default() };
        for object in objects.iter() {
            ledger.key_counts.insert(object.id, object.key_count.sum() as i64);
            if object.id >= FIRST_OBJECT {
                ledger.note_system(
                    CATALOG_OBJECT,
                    object.name.as_bytes(),
                    &encode_entry(object.kind, object.id),
                );
            }
        }
        for (id, serial) in sessions {
            ledger.note_system(SESSIONS_OBJECT, id, &serial.to_le_bytes());
        }
        for (first, last) in losses {
            ledger.note_system(LOSSES_OBJECT, &first.to_le_bytes(), &last.to_le_bytes());
        }
        ledger
    }

    /// A record has hardened.
    #[inline]
    pub(crate) fn note(&mut self, record: &Hardened<'_>) {
        self.newest_version = self.newest_version.max(record.version);
        let change = match (record.kind, record.is_creation) {
            (Kind::Put, true) => 1,
            (Kind::Tombstone, false) => -1,
            _ => 0,
        };
        if change != 0 {
            *self.key_counts.entry(record.object).or_default() += change;
        }
        if record.object < FIRST_OBJECT {
            self.note_system(record.object, record.key, record.value);
        }
    }

    fn note_system(&mut self, object: u32, key: &[u8], value: &[u8]) {
        let Some(records) = self.system.get_mut(object as usize) else { return };
        match records.get_mut(key) {
            Some(known) => {
                known.clear();
                known.extend_from_slice(value);
            }
            None => drop(records.insert(key.to_vec(), value.to_vec())),
        }
    }

    /// How many keys each object has.
    pub(crate) fn key_counts(&self) -> impl Iterator<Item = (u32, u64)> {
        self.key_counts.iter().map(|(object, count)| (*object, count.max(&0).unsigned_abs()))
    }

    /// Object, key and value of each record of the system.
    pub(crate) fn system_records(&self) -> impl Iterator<Item = (u32, &[u8], &[u8])> {
        let numbered = (0..).zip(&self.system);
        numbered.flat_map(|(object, records)| {
            records.iter().map(move |(key, value)| (object, key.as_slice(), value.as_slice()))
        })
    }
}

const _: () = assert!(CATALOG_OBJECT == 0 && SESSIONS_OBJECT == 1 && LOSSES_OBJECT == 2);
