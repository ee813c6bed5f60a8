//! Blind puts: of a table's row whose newest record is on disk, in the log, a put replaces the record without reading it. Nobody notices but by
//! speed.

use std::collections::BTreeMap;
use std::sync::Arc;

use kiln::device::{Keep, SimulatedDevice};
use kiln::{ErrorKind, Isolation, Kiln, Map, Object, Options, Table};

use crate::crash::reopen;
use crate::support::{Random, manual};
use crate::testing::seed;

const SEGMENT_BYTES: u64 = 16 << 10;
/// Of which the log has 128 KiB.
const MEMORY: u64 = 160 << 10;

fn options() -> Options {
    manual().segment_bytes(SEGMENT_BYTES).memory(MEMORY)
}

/// Values of a table's and a map's keys.
#[derive(Default)]
struct World {
    rows: BTreeMap<u32, u32>,
    others: BTreeMap<u32, u32>,
}

impl World {
    fn put(&mut self, db: &Kiln, table: &Table, key: u32, value: u32) {
        db.put(table, key.to_be_bytes(), value.to_le_bytes()).unwrap().forget();
        self.rows.insert(key, value);
    }

    fn put_in_map(&mut self, db: &Kiln, map: &Map, key: u32, value: u32) {
        db.put(map, key.to_be_bytes(), value.to_le_bytes()).unwrap().forget();
        self.others.insert(key, value);
    }

    fn assert_is(&self, db: &Kiln) {
        let (table, map) = (db.table("table").unwrap(), db.map("map").unwrap());
        let rows = db.snapshot().unwrap().range::<&[u8]>(&table, ..).map(Result::unwrap).collect::<Vec<_>>();
        let expected =
            self.rows.iter().map(|(key, value)| (key.to_be_bytes().to_vec(), value.to_le_bytes().to_vec()));
        assert!(rows.into_iter().eq(expected), "the rows are not what was put");
        assert_eq!((table.len(), map.len()), (self.rows.len() as u64, self.others.len() as u64));
        for (key, value) in &self.others {
            assert_eq!(db.get(&map, key.to_be_bytes()).unwrap().as_deref(), Some(&value.to_le_bytes()[..]));
        }
        let check = db.check().unwrap();
        assert!(check.is_clean(), "{check}");
    }
}

/// So many keys that dozens have tags which others have, too: of another key of the table, or of the map.
#[test]
fn c1_rows_on_disk_are_replaced_without_being_read_and_no_other_with_them() {
    const KEYS: u32 = 60_000;
    let disk = SimulatedDevice::new(seed());
    let db = options().open_on(Arc::new(disk.clone())).unwrap();
    let (table, map) = (db.table("table").unwrap(), db.map("map").unwrap());
    let mut world = World::default();
    world.put(&db, &table, u32::MAX, 0);
    db.persist().unwrap();
    assert_eq!(db.settle().unwrap(), 1);
    for key in 0..KEYS {
        world.put(&db, &table, key, 0);
        world.put_in_map(&db, &map, key, 0);
    }
    db.persist().unwrap();
    let mut random = Random::new(seed());
    let put_some = |db: &Kiln, world: &mut World, random: &mut Random, value: u32| {
        let table = db.table("table").unwrap();
        let before = db.statistics().cold_reads;
        for _ in 0..KEYS / 2 {
            // Of those that were never put, too.
            let key = random.below(KEYS as usize + 5_000) as u32;
            match random.one_in(3) {
                true => {
                    db.transact(|tx| tx.put(&table, key.to_be_bytes(), value.to_le_bytes()))
                        .unwrap()
                        .forget();
                    world.rows.insert(key, value);
                }
                false => world.put(db, &table, key, value),
            }
        }
        db.persist().unwrap();
        let reads = db.statistics().cold_reads - before;
        assert!(reads < u64::from(KEYS) / 500, "{reads} records were read for {} puts", KEYS / 2);
    };
    let snapshot = db.snapshot().unwrap();
    let seen: Vec<_> = world.rows.iter().map(|(key, value)| (*key, *value)).collect();
    put_some(&db, &mut world, &mut random, 1);
    for (key, value) in seen.iter().step_by(97) {
        let found = snapshot.get(&table, key.to_be_bytes()).unwrap();
        assert_eq!(found.as_deref(), Some(&value.to_le_bytes()[..]), "a snapshot sees what was put after it");
    }
    drop(snapshot);
    world.assert_is(&db);
    db.checkpoint().unwrap();
    drop((table, map, db));
    // What recovery makes of it is as good.
    let db = reopen(&disk).unwrap();
    world.assert_is(&db);
    drop(db);
    let db = options().open_on(Arc::new(disk.clone())).unwrap();
    put_some(&db, &mut world, &mut random, 2);
    world.assert_is(&db);
    let crashed = disk.after_crash(&mut |_| Keep::Lost);
    drop(db);
    world.assert_is(&reopen(&crashed).unwrap());
}

/// Under snapshot isolation the version matters, and so it is read.
#[test]
fn c2_a_row_on_disk_that_was_put_since_the_snapshot_is_not_overwritten() {
    let db = options().open_on(Arc::new(SimulatedDevice::new(seed()))).unwrap();
    let table = db.table("table").unwrap();
    let put = |key: u32, value: u32| db.put(&table, key.to_be_bytes(), value.to_le_bytes()).unwrap().forget();
    put(0, 0);
    db.persist().unwrap();
    assert_eq!(db.settle().unwrap(), 1);
    (1..8_000).for_each(|key| put(key, 0));
    db.persist().unwrap();
    let late = db.begin_with(Isolation::Snapshot).unwrap();
    let in_time = db.begin_with(Isolation::Snapshot).unwrap();
    put(1, 1);
    (8_000..16_000).for_each(|key| put(key, 0));
    db.persist().unwrap();
    late.put(&table, 1_u32.to_be_bytes(), 2_u32.to_le_bytes()).unwrap();
    assert_eq!(late.commit().unwrap_err().kind(), ErrorKind::Conflict);
    in_time.put(&table, 2_u32.to_be_bytes(), 2_u32.to_le_bytes()).unwrap();
    in_time.commit().unwrap().forget();
    assert_eq!(db.get(&table, 1_u32.to_be_bytes()).unwrap().as_deref(), Some(&1_u32.to_le_bytes()[..]));
}
