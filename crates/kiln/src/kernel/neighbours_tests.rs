//! Tests of neighbours: what comes with what is read, and what does not.

use std::sync::Arc;

use super::*;
use crate::device::{Device, Fault, FaultKind, OpenMode, OperationKind, SimulatedDevice};
use crate::error::ErrorKind;
use crate::{Kiln, Map, Options};

const ROWS: u32 = 20_000;
const SEGMENT_BYTES: u64 = 256 << 10;

fn value_of(row: u32) -> [u8; 100] {
    [row.wrapping_mul(2_654_435_761) as u8; 100]
}

/// A map of rows of which nearly all are on disk alone, put in order, of which so many harden at a time; and the disk beneath.
fn cold(rows_at_once: u32) -> (SimulatedDevice, Kiln, Map) {
    let disk = SimulatedDevice::new(1);
    let options = Options::new().background(false).segment_bytes(SEGMENT_BYTES).memory(4 << 20);
    let options = options.space_amplification(f64::INFINITY).checkpoint_log_bytes(0);
    let db = options.open_on(Arc::new(disk.clone())).unwrap();
    let map = db.map("map").unwrap();
    for row in 0..ROWS {
        db.put(&map, row.to_be_bytes(), value_of(row)).unwrap().forget();
        if row % rows_at_once == 0 {
            db.persist().unwrap();
        }
    }
    db.persist().unwrap();
    let engine = db.engine();
    assert!(engine.log.head() > 512 << 10, "{}", engine.log.head());
    assert!(engine.cold.cache.bytes() / CACHE_PART >= 2 * BLOCK, "{}", engine.cold.cache.bytes());
    (disk, db, map)
}

/// Of these rows, which lie at the log's beginning, each is read by itself, and must be as it was put. Says how many were read from disk for their own sake, and how many others came with them.
fn read(db: &Kiln, map: &Map, rows: impl IntoIterator<Item = u32>) -> (u64, u64) {
    let before = db.statistics();
    for row in rows {
        assert_eq!(db.get(map, row.to_be_bytes()).unwrap().unwrap(), value_of(row));
    }
    let after = db.statistics();
    (after.cold_reads - before.cold_reads, after.neighbours_read - before.neighbours_read)
}

#[test]
fn c2_rows_that_are_read_in_the_order_in_which_they_were_put_come_with_each_other() {
    let (_disk, db, map) = cold(1_000);
    let (reads, neighbours) = read(&db, &map, 0..3_000);
    assert!(reads < 100, "{reads} reads");
    assert!(reads + neighbours >= 3_000, "{reads} reads, and {neighbours} neighbours");
}

/// Each hardening begins with a seal, which is no record.
#[test]
fn c2_neighbours_go_on_behind_a_seal() {
    let (_disk, db, map) = cold(50);
    let (reads, neighbours) = read(&db, &map, 0..3_000);
    assert!(reads < 300, "{reads} reads, and {neighbours} neighbours");
}

#[test]
fn who_reads_all_over_the_place_reads_each_record_by_itself() {
    let (_disk, db, map) = cold(1_000);
    // Some blocks on each time.
    let rows = || (0..3_000).step_by(150);
    assert_eq!(read(&db, &map, rows().rev()), (20, 0));
    // And those that are read once more are in the cache.
    assert_eq!(read(&db, &map, rows()), (0, 0));
}

/// Each was a read of its own.
#[test]
fn records_of_the_same_blocks_are_read_once_for_a_whole_batch() {
    let (_disk, db, map) = cold(1_000);
    for rows in [(0..64).collect::<Vec<u32>>(), (1_000..1_064).rev().collect()] {
        let keys: Vec<_> = rows.iter().map(|row| row.to_be_bytes()).collect();
        let before = db.statistics();
        let mut found = 0;
        let each = |number: usize, value: Option<&[u8]>| {
            assert_eq!(value.unwrap(), value_of(rows[number]));
            found += 1;
        };
        db.get_many(&map, &keys, each).unwrap();
        let reads = db.statistics().cold_reads - before.cold_reads;
        assert_eq!(found, 64);
        assert!(reads <= 8, "{reads} reads for 64 rows of 136 bytes in a row");
    }
}

/// What newer records have superseded nobody asks for.
#[test]
fn what_was_written_anew_does_not_come_with_its_neighbours() {
    let (_disk, db, map) = cold(1_000);
    (0..3_000_u32).filter(|row| row % 2 == 0).for_each(|row| {
        db.put(&map, row.to_be_bytes(), value_of(row)).unwrap().forget();
    });
    let engine = db.engine();
    // The reads of those puts have brought in others.
    engine.cold.cache.divide(64 << 10, 136);
    engine.cold.cache.divide(1 << 20, 136);
    let before = db.statistics().neighbours_read;
    let (reads, _) = read(&db, &map, (0..3_000).filter(|row| row % 2 == 1));
    let neighbours = db.statistics().neighbours_read - before;
    assert!(reads < 200 && neighbours <= 1_500, "{reads} reads, and {neighbours} neighbours");
}

/// A block that cannot be read, or is damaged, is an error for who asks for what is in it.
#[test]
fn c9_damage_behind_a_record_is_not_its_own() {
    let (disk, db, map) = cold(1_000);
    // The first segment's second half is not there any more, nor what lies in this block of the first.
    disk.open("segment-00000000", OpenMode::ReadWrite).unwrap().truncate(SEGMENT_BYTES / 2).unwrap();
    disk.zero("segment-00000000", 20 * BLOCK, BLOCK);
    let is_found = |row: u32| match db.get(&map, row.to_be_bytes()) {
        Ok(value) => {
            assert_eq!(value.unwrap(), value_of(row));
            true
        }
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::Corrupted, "{error}");
            false
        }
    };
    let found: Vec<_> = (0..1_500).filter(|&row| is_found(row)).collect();
    let is_sound = |row: &u32| *row < 550 || (620..900).contains(row);
    assert!((0..1_500).filter(is_sound).all(|row| found.contains(&row)), "{found:?}");
    assert!(!found.iter().any(|row| (580..590).contains(row) || *row > 980), "{found:?}");
}

/// Who reads one record more than is asked for must not fail for the other's sake.
#[test]
fn c9_where_neighbours_cannot_be_read_the_record_is_read_alone() {
    let (disk, db, map) = cold(1_000);
    read(&db, &map, 0..100);
    disk.inject(Fault { operation: OperationKind::Read, nth: 1, kind: FaultKind::EIO, sticky: false });
    assert!(read(&db, &map, 100..500).0 > 0);
    assert_eq!(disk.faults_fired(), 1);
}

/// They would leave before anybody asks for them.
#[test]
fn a_small_cache_is_not_filled_with_neighbours() {
    let (_disk, db, map) = cold(1_000);
    db.engine().cold.cache.divide(256 << 10, 136);
    assert_eq!(read(&db, &map, 0..1_000), (1_000, 0));
}

#[test]
fn who_goes_on_reads_twice_as_much_each_time() {
    let neighbours = Neighbours::new();
    let note = |block| {
        let level = neighbours.level_at(block, 4);
        neighbours.note_last(block + (1 << level.unwrap_or(0)) - 1, level.unwrap_or(0));
        level
    };
    assert_eq!(note(1_000), None);
    assert_eq!(note(3_000), None);
    assert_eq!(note(1_000), Some(1), "1000 and 1001");
    assert_eq!(note(1_002), Some(2), "to 1005");
    assert_eq!(note(1_004), None, "it is not the one behind");
    assert_eq!(note(1_005), Some(3), "a record that was cut, to 1012");
    assert_eq!(note(3_001), Some(1), "somebody else, to 3002");
    assert_eq!(note(1_013), Some(4), "to 1028");
    assert_eq!(note(1_029), Some(4));
    assert_eq!(note(1_045), Some(4));
    assert_eq!(note(3_003), Some(2));
    assert_eq!(note(0), None);
    assert_eq!(note(1), Some(1));
    // A record of some blocks.
    assert_eq!(note(500), None);
    neighbours.note_end(500 * BLOCK + 100, 503 * BLOCK);
    assert_eq!(note(503), Some(1));
    // One that cannot be read.
    assert_eq!(note(700), None);
    assert_eq!(note(701), Some(1));
    neighbours.forget(702 * BLOCK + 7);
    assert_eq!((note(702), note(703)), (None, Some(1)));
}

/// Each segment began again with one block.
#[test]
fn who_goes_on_in_the_next_segment_reads_as_much_as_before() {
    let (_disk, db, map) = cold(1_000);
    let end = u32::try_from(3 * SEGMENT_BYTES / 136).unwrap();
    let (reads, _) = read(&db, &map, 0..end);
    assert!(reads < 70, "{reads} reads");
}
