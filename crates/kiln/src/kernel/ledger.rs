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

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::Arc;

use super::catalog::{CATALOG_OBJECT, FIRST_OBJECT, dropped_key, encode_dropped, encode_entry};
use super::losses::LOSSES_OBJECT;
use super::named_snapshot::{self, NamedSnapshot, SNAPSHOTS_OBJECT};
use super::object::Objects;
use super::session::SESSIONS_OBJECT;
use crate::planted::{Bug, planted};
use crate::storage::extent::Hardened;
use crate::storage::record::Kind;
use crate::sync::atomic::Ordering;

/// The newest record of each key of an object of the system's.
type Records = BTreeMap<Vec<u8>, Vec<u8>>;

/// Such records, of which a cut may have those that there were.
#[derive(Debug, Default)]
struct SharedRecords {
    shared: Arc<Records>,
    /// Newer than those of the same keys that are shared; nothing for a key that was deleted.
    since: BTreeMap<Vec<u8>, Option<Vec<u8>>>,
}

impl SharedRecords {
    /// The key has this value now, or none.
    fn note(&mut self, key: &[u8], value: Option<&[u8]>) {
        let Some(records) = Arc::get_mut(&mut self.shared) else {
            drop(self.since.insert(key.to_vec(), value.map(<[u8]>::to_vec)));
            return;
        };
        if !self.since.is_empty() {
            self.since.remove(key);
        }
        match (records.get_mut(key), value) {
            (Some(known), Some(value)) => {
                known.clear();
                known.extend_from_slice(value);
            }
            (None, Some(value)) => drop(records.insert(key.to_vec(), value.to_vec())),
            (_, None) => drop(records.remove(key)),
        }
    }

    /// Folds so many records in; false if none is left, or they are shared.
    fn fold(&mut self, count: usize) -> bool {
        let Some(records) = Arc::get_mut(&mut self.shared) else { return false };
        (0..count).all(|_| fold_one(records, &mut self.since))
    }

    /// Folds all of them in, though they may be shared.
    fn fold_all(&mut self) {
        if !self.since.is_empty() {
            let records = Arc::make_mut(&mut self.shared);
            while fold_one(records, &mut self.since) {}
        }
    }

    /// The first keys behind `after`, ascending: `count` of them, unless fewer are left. Among them may be some that are deleted.
    fn keys_after(&self, after: &[u8], count: usize) -> BTreeSet<Vec<u8>> {
        let behind = (Bound::Excluded(after), Bound::Unbounded);
        let shared = self.shared.range::<[u8], _>(behind).map(|(key, _)| key).take(count);
        let since = self.since.range::<[u8], _>(behind).map(|(key, _)| key).take(count);
        let mut keys: BTreeSet<Vec<u8>> = shared.chain(since).cloned().collect();
        while keys.len() > count {
            keys.pop_last();
        }
        keys
    }
}

/// Folds the first record in; false if there is none.
fn fold_one(records: &mut Records, since: &mut BTreeMap<Vec<u8>, Option<Vec<u8>>>) -> bool {
    let Some((key, value)) = since.pop_first() else { return false };
    match value {
        Some(value) => drop(records.insert(key, value)),
        None => drop(records.remove(&key)),
    }
    true
}

/// See the module's documentation.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    key_counts: BTreeMap<u32, i64>,
    /// By the object's number.
    system: [SharedRecords; 4],
    /// The version that the last seal makes durable, and the newest one in a record.
    pub(crate) horizon: u64,
    pub(crate) newest_version: u64,
}

/// What a ledger told at one time.
#[derive(Debug)]
pub(crate) struct LedgerCut {
    key_counts: BTreeMap<u32, i64>,
    system: [Arc<Records>; 4],
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
            if object.is_dropped() {
                let dropped = encode_dropped(object.name(), object.kind());
                ledger.note_system(CATALOG_OBJECT, &dropped_key(object.id), Some(&dropped));
            } else if object.id >= FIRST_OBJECT {
                ledger.note_system(
                    CATALOG_OBJECT,
                    object.name().as_bytes(),
                    Some(&encode_entry(
                        object.kind(),
                        object.id,
                        object.time_to_live_ms.load(Ordering::Relaxed),
                    )),
                );
            }
        }
        for (id, serial) in sessions {
            ledger.note_system(SESSIONS_OBJECT, id, Some(&serial.to_le_bytes()));
        }
        for (first, last) in losses {
            ledger.note_system(LOSSES_OBJECT, &first.to_le_bytes(), Some(&last.to_le_bytes()));
        }
        for snapshot in snapshots {
            ledger.note_system(
                SNAPSHOTS_OBJECT,
                snapshot.name.as_bytes(),
                Some(&named_snapshot::encode(snapshot)),
            );
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
        let is_tombstone = record.kind == Kind::Tombstone;
        if record.object < FIRST_OBJECT && !(is_tombstone && planted(Bug::ForgottenSessionTold)) {
            let value = (!is_tombstone).then_some(record.value);
            self.note_system(record.object, record.key, value);
        }
    }

    fn note_system(&mut self, object: u32, key: &[u8], value: Option<&[u8]>) {
        if let Some(records) = self.system.get_mut(object as usize) {
            records.note(key, value);
        }
    }

    /// What it tells now. Copies nothing that there may be many of, if everything was [folded](Self::fold) in since the last cut went.
    pub(crate) fn cut(&mut self) -> LedgerCut {
        self.system.iter_mut().for_each(SharedRecords::fold_all);
        LedgerCut {
            key_counts: self.key_counts.clone(),
            system: [0, 1, 2, 3].map(|object: usize| self.system[object].shared.clone()),
            horizon: self.horizon,
            newest_version: self.newest_version,
        }
    }

    /// The ids of the first sessions behind `after`, ascending: `count` of them, unless fewer are left. Some may be forgotten by now.
    pub(crate) fn sessions_after(&self, after: &[u8], count: usize) -> BTreeSet<Vec<u8>> {
        self.system[SESSIONS_OBJECT as usize].keys_after(after, count)
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
        numbered.flat_map(|(object, records)| {
            records.iter().map(move |(key, value)| (object, key.as_slice(), value.as_slice()))
        })
    }
}

const _: () =
    assert!(CATALOG_OBJECT == 0 && SESSIONS_OBJECT == 1 && LOSSES_OBJECT == 2 && SNAPSHOTS_OBJECT == 3);

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
            ledger.note_system(SESSIONS_OBJECT, &id.to_be_bytes(), Some(&[serial]));
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

    #[test]
    fn what_was_deleted_while_a_cut_shares_it_is_gone_afterwards_and_there_in_the_cut() {
        let mut ledger = Ledger::default();
        let note = |ledger: &mut Ledger, id: u32, serial: Option<u8>| {
            let value = serial.map(|serial| [serial]);
            ledger.note_system(SESSIONS_OBJECT, &id.to_be_bytes(), value.as_ref().map(<[u8; 1]>::as_slice));
        };
        let key = |id: u32| id.to_be_bytes().to_vec();
        (0..1_000).for_each(|id| note(&mut ledger, id, Some(1)));
        let first = ledger.cut();
        // Deleted, deleted and made again, made and deleted, made.
        (0..700).for_each(|id| note(&mut ledger, id, None));
        (600..650).for_each(|id| note(&mut ledger, id, Some(2)));
        (1_000..1_100).for_each(|id| note(&mut ledger, id, Some(2)));
        (1_000..1_050).for_each(|id| note(&mut ledger, id, None));
        let now = |id| match id {
            600..650 | 1_050..1_100 => Some(2),
            700..1_000 => Some(1),
            _ => None,
        };
        assert_eq!(sessions(&first), expected(|id| (id < 1_000).then_some(1)));
        assert_eq!(ledger.sessions_after(&key(897), 3), [898, 899, 900].map(key).into());
        assert_eq!(ledger.sessions_after(&key(998), 3), [999, 1_000, 1_001].map(key).into());
        drop(first);
        while ledger.fold() {}
        assert_eq!(ledger.sessions_after(b"", 3), [600, 601, 602].map(key).into());
        assert_eq!(ledger.sessions_after(&key(1_099), 3), [].into());
        assert_eq!(sessions(&ledger.cut()), expected(now));
        // While nothing is shared.
        note(&mut ledger, 1_099, None);
        note(&mut ledger, 5, None);
        assert_eq!(sessions(&ledger.cut()), expected(|id| now(id).filter(|_| id != 1_099)));
        // A cut that is taken while one is still there has what was noted beside it, too.
        let held = ledger.cut();
        note(&mut ledger, 700, None);
        assert_eq!(sessions(&ledger.cut()), expected(|id| now(id).filter(|_| id != 1_099 && id != 700)));
        drop(held);
    }
}
