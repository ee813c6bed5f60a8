//! What is in the log when a database is opened settles in parts, up to any place behind the last deletion that nobody knows of any more: of none
//! before that, or the row would be there again.

use std::collections::BTreeMap;
use std::sync::Arc;

use kiln::device::{Keep, SimulatedDevice};
use kiln::{ErrorKind, Kiln, Map, Object as _, Snapshot, Table};

use super::settling::{Rows, assert_clean, assert_rows, key, value};
use crate::crash::reopen;
use crate::support::{Random, manual};
use crate::testing::seed;

/// Nothing settles by itself, and no checkpoint is taken.
fn open(disk: &SimulatedDevice) -> (Kiln, Table, Map) {
    let options = manual().settle_log_bytes(0).checkpoint_log_bytes(0);
    let db = options.open_on(Arc::new(disk.clone())).unwrap();
    let (table, map) = (db.table("table").unwrap(), db.map("map").unwrap());
    (db, table, map)
}

/// So many times 12 KiB of log.
fn write_ballast(db: &Kiln, map: &Map, count: u32) {
    for number in 0..count {
        db.put(map, number.to_be_bytes(), [7; 10_000]).unwrap().forget();
        db.persist().unwrap();
    }
}

#[track_caller]
fn assert_shown(snapshot: &Snapshot<'_>, table: &Table, rows: &Rows) {
    let shown: Rows = snapshot.range::<&[u8]>(table, ..).map(Result::unwrap).collect();
    assert!(shown == *rows, "a snapshot shows {:?}", shown.keys().collect::<Vec<_>>());
    assert!(rows.iter().all(|(key, value)| snapshot.get(table, key).unwrap().as_ref() == Some(value)));
}

/// Nothing did as long as the snapshot was kept, if the database had been opened since it was given its name, and nothing had settled before.
#[test]
fn c4_what_is_older_than_a_named_snapshot_settles_for_the_first_time_after_a_reopening() {
    for deletes in [false, true] {
        let disk = SimulatedDevice::new(seed());
        let (db, table, map) = open(&disk);
        let mut rows = Rows::new();
        for number in 0..200 {
            let long = [value(number, 1), vec![7; 1_000]].concat();
            db.put(&table, key(number), &long).unwrap().forget();
            rows.insert(key(number), long);
        }
        for number in (0..200).step_by(3).filter(|_| deletes) {
            assert!(db.delete(&table, key(number)).unwrap().forget());
            rows.remove(&key(number));
        }
        write_ballast(&db, &map, 20);
        db.create_snapshot("kept").unwrap();
        let kept = rows.clone();
        for number in (1..200).step_by(5).filter(|_| deletes) {
            db.delete(&table, key(number)).unwrap().forget();
            rows.remove(&key(number));
        }
        db.put(&table, "since", "since").unwrap().forget();
        rows.insert(b"since".to_vec(), b"since".to_vec());
        db.close().unwrap();
        drop((table, map, db));
        let (db, table, _) = open(&disk);
        assert_eq!(db.settle().unwrap(), kept.len() as u64);
        assert_rows(&db, &table, &rows);
        assert_shown(&db.open_snapshot("kept").unwrap(), &table, &kept);
        assert_clean(&db);
        db.drop_snapshot("kept").unwrap();
        assert!(db.settle().unwrap() > 0);
        assert_rows(&db, &table, &rows);
        assert_clean(&db);
    }
}

/// All of it was to settle at once: for which a disk may have no room, and in which a crash comes sooner than it ends.
#[test]
fn c4_a_long_log_of_which_nothing_has_settled_settles_in_parts_after_a_reopening() {
    let disk = SimulatedDevice::new(seed());
    let (db, table, _) = open(&disk);
    let mut rows = Rows::new();
    for number in 0..400 {
        let long = [value(number, 1), vec![7; 10_000]].concat();
        db.put(&table, key(number), &long).unwrap().forget();
        rows.insert(key(number), long);
        db.persist().unwrap();
    }
    db.close().unwrap();
    drop((table, db));
    let db = manual().settle_log_bytes(64 << 10).open_on(Arc::new(disk.clone())).unwrap();
    let table = db.table("table").unwrap();
    let (mut parts, mut settled) = (0, 0);
    for round in 0..200 {
        db.put(&table, "other", value(0, round)).unwrap().forget();
        rows.insert(b"other".to_vec(), value(0, round));
        db.persist().unwrap();
        let now = db.statistics().rows_settled;
        // Or three times that, as the tree grows.
        assert!(now - settled <= 120, "{} rows of 10,000 bytes are a part", now - settled);
        (parts, settled) = (parts + u32::from(now > settled), now);
    }
    assert!(parts > 3 && settled >= 390, "{settled} rows in {parts} parts");
    assert_rows(&db, &table, &rows);
    assert_clean(&db);
}

/// The deletion was forgotten before the row was put again, so that this does not lead to it: a snapshot from in between finds no record of the row, and must not
/// find it in the tree.
#[test]
fn c4_a_deletion_before_a_named_snapshot_is_not_undone_where_the_row_was_put_again_since() {
    // Some of these have the deletion and what came after it in one segment, where what settles ends.
    for count in 12..17 {
        let disk = SimulatedDevice::new(seed());
        let (db, table, map) = open(&disk);
        db.put(&table, "deleted", "deleted").unwrap().forget();
        db.put(&table, "there", "there").unwrap().forget();
        write_ballast(&db, &map, count);
        db.delete(&table, "deleted").unwrap().safe().unwrap();
        // It is forgotten.
        db.persist().unwrap();
        db.create_snapshot("kept").unwrap();
        db.put(&table, "deleted", "again").unwrap().forget();
        db.close().unwrap();
        drop((table, map, db));
        for _ in 0..2 {
            let (db, table, _) = open(&disk);
            db.settle().unwrap();
            let kept = db.open_snapshot("kept").unwrap();
            assert_shown(&kept, &table, &[(b"there".to_vec(), b"there".to_vec())].into());
            drop(kept);
            assert_eq!(db.get(&table, "deleted").unwrap().unwrap(), b"again");
            assert_clean(&db);
            db.close().unwrap();
        }
    }
}

/// The same of one that had settled alone, on a full disk: the snapshot had the row.
#[test]
fn c4_a_deletion_that_settled_alone_is_not_undone_for_a_named_snapshot_where_the_row_was_put_again() {
    let disk = SimulatedDevice::new(seed());
    let (db, table, map) = open(&disk);
    let put = |number: u32, bytes: usize| {
        db.put(&table, key(number), vec![7; bytes]).unwrap().forget();
        db.persist().unwrap();
    };
    (0..50).for_each(|number| put(number, 100));
    assert_eq!(db.settle().unwrap(), 50);
    db.put(&table, "deleted", "deleted").unwrap().forget();
    write_ballast(&db, &map, 20);
    // What has no room in the tree.
    (50..150).for_each(|number| put(number, 8_000));
    db.delete(&table, "deleted").unwrap().safe().unwrap();
    disk.set_capacity(Some(disk.used_bytes()));
    assert_eq!(db.settle().unwrap_err().kind(), ErrorKind::NoSpace);
    // It is forgotten.
    db.persist().unwrap();
    disk.set_capacity(None);
    db.create_snapshot("kept").unwrap();
    db.put(&table, "deleted", "again").unwrap().safe().unwrap();
    db.close().unwrap();
    drop((table, map, db));
    for _ in 0..2 {
        let (db, table, _) = open(&disk);
        db.settle().unwrap();
        assert_eq!(db.open_snapshot("kept").unwrap().get(&table, "deleted").unwrap(), None);
        assert_eq!(db.get(&table, "deleted").unwrap().unwrap(), b"again");
        assert_clean(&db);
        db.close().unwrap();
    }
}

/// A database with few rows that are put and deleted, and what it must show.
struct Life {
    disk: SimulatedDevice,
    random: Random,
    rows: Rows,
    named: BTreeMap<String, Rows>,
}

impl Life {
    /// Opens it, and does so much. Behind it, as behind each settling, everything is as it was.
    fn live(&mut self, deeds: u32, settles: bool) {
        let options = manual().settle_log_bytes(if settles { 64 << 10 } else { 0 });
        let options = options.checkpoint_log_bytes(u64::from(self.random.one_in(2)) * (256 << 10));
        let db = options.open_on(Arc::new(self.disk.clone())).unwrap();
        let (table, map) = (db.table("table").unwrap(), db.map("map").unwrap());
        self.compare(&db, &table);
        for deed in 0..deeds {
            let number = self.random.below(5) as u32;
            match self.random.below(12) {
                0..3 => {
                    let long = [value(number, deed), vec![7; self.random.below(3_000)]].concat();
                    db.put(&table, key(number), &long).unwrap().forget();
                    self.rows.insert(key(number), long);
                }
                3..6 => {
                    db.delete(&table, key(number)).unwrap().forget();
                    self.rows.remove(&key(number));
                }
                6..8 => write_ballast(&db, &map, 4),
                8 => db.persist().unwrap(),
                9 => {
                    let name = format!("kept {}", number % 2);
                    match self.named.remove(&name) {
                        Some(_) => db.drop_snapshot(&name).unwrap(),
                        None => {
                            db.create_snapshot(&name).unwrap();
                            self.named.insert(name, self.rows.clone());
                        }
                    }
                }
                10 if settles => {
                    // What is deleted may have to settle alone.
                    let is_full = self.random.one_in(3);
                    self.disk.set_capacity(is_full.then(|| self.disk.used_bytes()));
                    let settled = db.settle();
                    assert!(is_full || settled.is_ok(), "{settled:?}");
                    db.persist().unwrap();
                    self.disk.set_capacity(None);
                    self.compare(&db, &table);
                }
                _ if self.random.one_in(3) => drop(db.checkpoint().unwrap()),
                _ => {}
            }
        }
        db.persist().unwrap();
        if self.random.one_in(2) {
            db.close().unwrap();
        }
        drop((table, map, db));
        self.disk = self.disk.after_crash(&mut |_| Keep::Lost);
    }

    fn compare(&self, db: &Kiln, table: &Table) {
        assert_shown(&db.snapshot().unwrap(), table, &self.rows);
        for (name, rows) in &self.named {
            assert_shown(&db.open_snapshot(name).unwrap(), table, rows);
        }
    }
}

#[test]
fn c4_no_deletion_is_undone_in_whatever_order_a_database_settles_and_is_opened_again() {
    for number in 0..60 {
        let mut life = Life {
            disk: SimulatedDevice::new(number),
            random: Random::new(seed() ^ number),
            rows: Rows::new(),
            named: BTreeMap::new(),
        };
        for opening in 0..7 {
            life.live(20, opening > number % 4);
        }
        let db = reopen(&life.disk).unwrap();
        let table = db.table("table").unwrap();
        life.compare(&db, &table);
        db.settle().unwrap();
        life.compare(&db, &table);
        assert_eq!(table.len(), life.rows.len() as u64);
        assert_clean(&db);
    }
}
