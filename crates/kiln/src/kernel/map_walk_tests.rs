//! Tests of walks over all of a map: each row once, wherever its record is, and whatever becomes of it meanwhile.

use std::collections::BTreeMap;
use std::time::Duration;

use super::*;
use crate::device::SimulatedDevice;
use crate::error::ErrorKind;
use crate::kernel::handle::HasHandle;
use crate::{Expiry, Kiln, Map, Options, Snapshot};

const ROWS: u32 = 12_000;

type Model = BTreeMap<Vec<u8>, Vec<u8>>;

fn open() -> (SimulatedDevice, Kiln) {
    let disk = SimulatedDevice::new(1);
    disk.set_time_ms(1_000);
    let options = Options::new().background(false).segment_bytes(64 << 10).memory(1 << 20);
    let db = options.window(Duration::from_secs(600)).open_on(Arc::new(disk.clone())).unwrap();
    (disk, db)
}

fn value_of(round: u32, row: u32) -> Vec<u8> {
    [round.to_be_bytes(), row.to_be_bytes()].concat().repeat(4 + (round + row) as usize % 10)
}

/// Puts, deletes and leaves alone one row or another, among those of another map.
fn change(db: &Kiln, map: &Map, round: u32, model: &mut Model) {
    let others = db.map("others").unwrap();
    for row in 0..ROWS {
        let key = row.to_be_bytes();
        match (row.wrapping_mul(2_654_435_761) >> 20).wrapping_add(round * 7) % 11 {
            0 => {}
            1 => {
                db.delete(map, key).unwrap().forget();
                model.remove(&key[..]);
            }
            2 => db.put(&others, key, value_of(round, row)).unwrap().forget(),
            // Twice in the same version, as a rule, the second of which does not fit into the first one's place.
            3 => {
                db.put(map, key, "short").unwrap().forget();
                db.put(map, key, value_of(round, row)).unwrap().forget();
                model.insert(key.to_vec(), value_of(round, row));
            }
            _ => {
                db.put(map, key, value_of(round, row)).unwrap().forget();
                model.insert(key.to_vec(), value_of(round, row));
            }
        }
        if row % 1_000 == 0 {
            db.persist().unwrap();
        }
    }
}

/// Compares a walk with what there is to be seen; says how many records were read one by one.
fn check(db: &Kiln, snapshot: &Snapshot<'_>, map: &Map, model: &Model) -> u64 {
    let reads = db.statistics().cold_reads;
    let mut rows: Vec<_> = snapshot.iter(map).collect::<Result<_>>().unwrap();
    let reads = db.statistics().cold_reads - reads;
    rows.sort_unstable();
    assert_eq!(rows.len(), model.len());
    assert!(rows.into_iter().eq(model.clone()));
    reads
}

#[test]
fn c2_a_walk_over_a_map_finds_each_row_once_in_memory_and_in_the_log() {
    let (_disk, db) = open();
    let (map, mut model) = (db.map("map").unwrap(), Model::new());
    for round in 0..3 {
        change(&db, &map, round, &mut model);
        db.persist().unwrap();
        let reads = check(&db, &db.snapshot().unwrap(), &map, &model);
        assert!(reads < 10, "{reads} reads in round {round}");
        assert!(db.engine().log.head() > db.engine().log.begin());
    }
    // Of what is durable it is not known where in the log nothing is newer.
    check(&db, &db.durable_snapshot().unwrap(), &map, &model);
}

/// What is newer is on disk, too: then it is not known at once whether it is older than the snapshot.
#[test]
fn c2_a_walk_over_a_map_finds_what_its_snapshot_sees_though_all_was_written_over_since() {
    let (_disk, db) = open();
    let (map, mut model) = (db.map("map").unwrap(), Model::new());
    change(&db, &map, 0, &mut model);
    db.persist().unwrap();
    db.create_snapshot("name").unwrap();
    let snapshots =
        [db.snapshot().unwrap(), db.durable_snapshot().unwrap(), db.open_snapshot("name").unwrap()];
    let seen = model.clone();
    for round in 1..3 {
        change(&db, &map, round, &mut model);
        db.persist().unwrap();
        snapshots.iter().for_each(|snapshot| _ = check(&db, snapshot, &map, &seen));
        check(&db, &db.snapshot().unwrap(), &map, &model);
    }
}

/// Each step meets other records in memory, and others on disk.
#[test]
fn c2_a_walk_over_a_map_finds_what_its_snapshot_sees_while_others_write_and_records_leave_memory() {
    let (_disk, db) = open();
    let (map, mut model) = (db.map("map").unwrap(), Model::new());
    change(&db, &map, 0, &mut model);
    let (snapshot, seen) = (db.snapshot().unwrap(), model.clone());
    let mut rows = Vec::new();
    let mut round = 1;
    for row in snapshot.iter(&map) {
        rows.push(row.unwrap());
        if rows.len().is_multiple_of(2_000) {
            change(&db, &map, round, &mut model);
            db.persist().unwrap();
            db.compact(|_| {}).unwrap();
            round += 1;
        }
    }
    rows.sort_unstable();
    assert!(round > 4 && rows.into_iter().eq(seen));
}

#[test]
fn c2_a_walk_over_a_map_passes_what_has_expired() {
    let (disk, db) = open();
    let map = db.map("map").unwrap();
    for row in 0..ROWS {
        let expiry = if row % 3 == 0 { Expiry::At(2_000) } else { Expiry::At(9_000) };
        db.put_expiring(&map, row.to_be_bytes(), value_of(0, row), expiry).unwrap().forget();
        if row % 1_000 == 0 {
            db.persist().unwrap();
        }
    }
    db.persist().unwrap();
    let before = db.snapshot().unwrap();
    disk.set_time_ms(3_000);
    assert_eq!(before.iter(&map).count(), ROWS as usize);
    assert_eq!(db.snapshot().unwrap().iter(&map).count(), ROWS as usize / 3 * 2);
}

/// The one key of a map among thousands was looked for at each of the others' records, one by one.
#[test]
fn a_walk_over_a_small_map_does_not_read_the_others_one_by_one() {
    let (_disk, db) = open();
    let (map, small) = (db.map("map").unwrap(), db.map("small").unwrap());
    db.put(&small, "key", "value").unwrap().forget();
    change(&db, &map, 0, &mut Model::new());
    db.persist().unwrap();
    let reads = db.statistics().cold_reads;
    assert_eq!(db.snapshot().unwrap().iter(&small).count(), 1);
    let reads = db.statistics().cold_reads - reads;
    assert!(reads < 10, "{reads} reads");
}

/// A few long values in a long log are read by themselves.
#[test]
fn where_few_keys_are_in_much_log_they_are_found_by_the_index() {
    const KEYS: u32 = 800;
    let (_disk, db) = open();
    let map = db.map("map").unwrap();
    for row in 0..KEYS {
        db.put(&map, row.to_be_bytes(), vec![row as u8; 30_000]).unwrap().forget();
        if row % 4 == 0 {
            db.persist().unwrap();
        }
    }
    db.persist().unwrap();
    let before = db.statistics();
    assert!((before.log_head - before.log_begin) / BYTES_PER_READ > before.hash_index_buckets);
    assert_eq!(db.snapshot().unwrap().iter(&map).map(Result::unwrap).count(), KEYS as usize);
    let reads = db.statistics().cold_reads - before.cold_reads;
    assert!(reads > u64::from(KEYS) / 2, "{reads} reads");
}

/// All that lies behind the damage was lost, though it is whole, and a record that nobody needs is no damage to any row.
#[test]
fn c9_a_walk_over_a_map_finds_what_is_whole_where_the_log_is_damaged() {
    let (disk, db) = open();
    let (map, mut model) = (db.map("map").unwrap(), Model::new());
    change(&db, &map, 0, &mut model);
    db.persist().unwrap();
    let snapshot = db.snapshot().unwrap();
    // In the middle of the third segment, whose rows are read by then from its beginning.
    disk.zero("segment-00000002", 20 << 10, 64);
    let (mut rows, mut errors) = (Model::new(), 0);
    for row in snapshot.iter(&map) {
        match row {
            Ok((key, value)) => assert!(rows.insert(key, value).is_none()),
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Corrupted, "{error}");
                errors += 1;
            }
        }
    }
    assert!(rows.iter().all(|(key, value)| model.get(key) == Some(value)));
    // What was damaged is one record, or two.
    assert!(
        errors <= 2 && rows.len() + errors >= model.len(),
        "{errors} errors, {} of {}",
        rows.len(),
        model.len()
    );
}

/// Its record was not read at all by who goes by the index, and is by who goes by the log.
#[test]
fn c9_damage_to_what_is_superseded_costs_a_walk_over_a_map_no_row() {
    let (disk, db) = open();
    let (map, mut model) = (db.map("map").unwrap(), Model::new());
    db.put(&map, "key", vec![7; 3_000]).unwrap().forget();
    change(&db, &map, 0, &mut model);
    db.put(&map, "key", "newer").unwrap().forget();
    model.insert(b"key".to_vec(), b"newer".to_vec());
    db.persist().unwrap();
    change(&db, &map, 1, &mut model);
    db.persist().unwrap();
    let snapshot = db.snapshot().unwrap();
    assert_eq!(db.statistics().log_begin, 0);
    let place = disk.bytes("segment-00000000").windows(100).position(|bytes| bytes == [7; 100]).unwrap();
    disk.zero("segment-00000000", place as u64, 50);
    check(&db, &snapshot, &map, &model);
}

/// The whole index was walked through before.
#[test]
fn the_first_row_of_a_large_map_comes_at_once() {
    let (_disk, db) = open();
    let map = db.map("map").unwrap();
    change(&db, &map, 0, &mut Model::new());
    let other = db.map("other").unwrap();
    for _ in 0..300 {
        db.put(&other, "key", vec![1; 8_000]).unwrap().forget();
        db.persist().unwrap();
    }
    let snapshot = db.snapshot().unwrap();
    let sight = Sight {
        object: map.handle().id,
        version: snapshot.version().number(),
        moment: &Moment::default(),
        closed_end: db.engine().log.hardened(),
    };
    let mut walk = MapWalk::new(db.engine(), sight);
    assert!(walk.next_row().unwrap().is_ok());
    assert!(walk.places <= PLACES_PER_BATCH, "{} places", walk.places);
}

/// Each record was read by itself, and waited for.
#[test]
fn a_cursors_walk_reads_many_records_at_once() {
    let (_disk, db) = open();
    let (map, mut model) = (db.map("map").unwrap(), Model::new());
    change(&db, &map, 0, &mut model);
    db.persist().unwrap();
    let before = db.statistics();
    let (mut cursor, mut rows) = (0, Vec::new());
    loop {
        let (next, more) = db.scan_map(&map, cursor, 100).unwrap();
        rows.extend(more);
        cursor = next;
        if cursor == 0 {
            break;
        }
    }
    rows.sort_unstable();
    assert!(rows.into_iter().eq(model));
    let after = db.statistics();
    let riders = after.neighbours_read - before.neighbours_read;
    assert!(riders > after.cold_reads - before.cold_reads, "{riders} have come with others");
}
