//! Tests of walks over all of a map: each row once, wherever its record is, and whatever becomes of it meanwhile.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crate::device::{Device, OpenMode, SimulatedDevice};
use crate::error::ErrorKind;
use crate::{Expiry, Kiln, Map, Options, Result, Snapshot};

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
    const KEYS: u32 = 400;
    let options = Options::new().background(false).segment_bytes(64 << 10).memory(1 << 20);
    let options = options.space_amplification(f64::INFINITY);
    let db = options.open_on(Arc::new(SimulatedDevice::new(1))).unwrap();
    let map = db.map("map").unwrap();
    for row in 0..4_000_u32 {
        db.put(&map, (row % KEYS).to_be_bytes(), vec![row as u8; 10_000]).unwrap().forget();
        if row % 4 == 0 {
            db.persist().unwrap();
        }
    }
    db.persist().unwrap();
    let before = db.statistics();
    assert_eq!(db.snapshot().unwrap().iter(&map).map(Result::unwrap).count(), KEYS as usize);
    let bytes = db.statistics().cold_read_bytes - before.cold_read_bytes;
    assert!(bytes < (before.log_head - before.log_begin) / 4, "{bytes} bytes");
}

#[test]
fn c9_a_walk_over_a_map_ends_with_an_error_where_the_log_is_damaged() {
    let (disk, db) = open();
    let (map, mut model) = (db.map("map").unwrap(), Model::new());
    change(&db, &map, 0, &mut model);
    db.persist().unwrap();
    disk.open("segment-00000002", OpenMode::ReadWrite).unwrap().truncate(8192).unwrap();
    let snapshot = db.snapshot().unwrap();
    let mut rows = snapshot.iter(&map);
    let errors: Vec<_> = rows.by_ref().filter_map(Result::err).collect();
    assert_eq!(
        errors.iter().map(crate::Error::kind).collect::<Vec<_>>(),
        [ErrorKind::Corrupted],
        "{errors:?}"
    );
    assert!(rows.next().is_none());
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
