//! Tests of warming up: what comes in, when, and how much.

use std::sync::Arc;

use super::*;
use crate::device::{Device, Fault, FaultKind, OperationKind, SimulatedDevice};
use crate::{Kiln, Map, Options};

const SEGMENT_BYTES: u64 = 64 << 10;
const MEMORY: u64 = 4 << 20;

/// A map of so many rows with values of so many bytes, of which the log's memory has the last, and the disk beneath.
fn cold(rows: u32, value_bytes: usize) -> (SimulatedDevice, Kiln, Map) {
    let disk = SimulatedDevice::new(1);
    let options =
        Options::new().background(false).segment_bytes(SEGMENT_BYTES).memory(MEMORY).checkpoint_log_bytes(0);
    let db = options.open_on(Arc::new(disk.clone())).unwrap();
    let map = db.map("map").unwrap();
    for row in 0..rows {
        put(&db, &map, row, value_bytes);
        if row % 100 == 0 {
            db.persist().unwrap();
        }
    }
    db.persist().unwrap();
    let engine = db.engine();
    engine.make_room(0);
    assert!(engine.log.head() > engine.log.begin());
    (disk, db, map)
}

fn put(db: &Kiln, map: &Map, row: u32, value_bytes: usize) {
    db.put(map, row.to_be_bytes(), vec![row as u8; value_bytes]).unwrap().forget();
}

/// As so many reads of records of such a length from the disk would.
fn pay(db: &Kiln, reads: u64, record_bytes: usize) {
    (0..reads).for_each(|_| db.engine().cold.note_read(record_bytes as u64, 4096));
    db.engine().share_for_good();
}

fn paid(db: &Kiln) -> u64 {
    enough_reads(&db.engine().cold, &db.engine().log)
}

/// Does rounds as long as there is something to do, and says how many records came in.
fn warm_up(db: &Kiln) -> u64 {
    let engine = db.engine();
    let before = engine.warm_up.records.load(Ordering::Relaxed);
    engine.warm_up();
    while engine.warm_up.is_at_work() {
        engine.warm_up();
    }
    engine.warm_up.records.load(Ordering::Relaxed) - before
}

/// How many of all rows take a read from the disk, which must be as they were put.
fn reads_of_all(db: &Kiln, map: &Map, rows: u32, value_bytes: usize) -> u64 {
    let reads = || db.engine().cold.reads.load(Ordering::Relaxed);
    let before = reads();
    for row in 0..rows {
        assert_eq!(db.get(map, row.to_be_bytes()).unwrap().unwrap(), vec![row as u8; value_bytes]);
    }
    reads() - before
}

#[test]
fn once_some_were_read_all_that_have_room_come_in() {
    const ROWS: u32 = 20_000;
    let (_disk, db, map) = cold(ROWS, 100);
    assert_eq!(warm_up(&db), 0, "nobody has read anything");
    pay(&db, 30, 136);
    pay(&db, paid(&db) - 31, 136);
    assert_eq!(warm_up(&db), 0, "that was too little");
    pay(&db, 1, 136);
    assert!(warm_up(&db) > u64::from(ROWS) / 4);
    // A few find too many neighbours in the directory.
    let read = reads_of_all(&db, &map, ROWS, 100);
    assert!(read < u64::from(ROWS) / 50, "{read} were read");
    pay(&db, 10 * paid(&db), 136);
    assert_eq!(warm_up(&db), 0, "the cache has become no larger");
}

/// Those that left the log's memory afterwards were read one by one, though there was room.
#[test]
fn what_becomes_cold_later_comes_in_too() {
    const ROWS: u32 = 14_000;
    const MORE: u32 = 8_000;
    let (_disk, db, map) = cold(ROWS, 100);
    pay(&db, paid(&db), 136);
    assert!(warm_up(&db) > 0);
    pay(&db, paid(&db), 136);
    assert_eq!(warm_up(&db), 0, "no more is cold");
    (ROWS..ROWS + MORE).for_each(|row| put(&db, &map, row, 100));
    // So many at once that who hands over does not keep up.
    db.engine().persist().unwrap();
    db.engine().make_room(0);
    pay(&db, paid(&db), 136);
    let came_in = warm_up(&db);
    assert!((u64::from(MORE) / 4..2 * u64::from(MORE)).contains(&came_in), "{came_in}");
    let read = reads_of_all(&db, &map, ROWS + MORE, 100);
    assert!(read < u64::from(ROWS) / 50, "{read} were read");
}

/// It was taken to have been walked over.
#[test]
fn what_had_no_room_comes_in_once_it_has() {
    const ROWS: u32 = 15_000;
    const MORE: u32 = 3_000;
    let (_disk, db, map) = cold(ROWS, 100);
    pay(&db, paid(&db), 136);
    assert!(warm_up(&db) > 0);
    (ROWS..ROWS + MORE).for_each(|row| put(&db, &map, row, 100));
    let others = db.map("others").unwrap();
    // Nobody hands them over.
    for row in 0..60_000 {
        put(&db, &others, row, 100);
        if row % 100 == 0 {
            db.engine().persist().unwrap();
        }
    }
    db.engine().persist().unwrap();
    db.engine().make_room(0);
    pay(&db, paid(&db), 136);
    assert_eq!(warm_up(&db), 0, "most has no room");
    db.drop_map("others").unwrap().forget();
    for _ in 0..10_000 {
        db.persist().unwrap();
        if db.statistics().dropping == 0 {
            break;
        }
    }
    assert_eq!(db.statistics().dropping, 0);
    pay(&db, paid(&db), 136);
    let came_in = warm_up(&db);
    assert!(came_in > u64::from(MORE) / 2, "{came_in} of {MORE}");
}

/// Of segments in which much is live, too.
#[test]
fn what_was_written_anew_since_does_not_come_in() {
    const ROWS: u32 = 20_000;
    let (_disk, db, map) = cold(ROWS, 100);
    let is_anew = |row: &u32| row.is_multiple_of(3);
    (0..ROWS).filter(is_anew).for_each(|row| put(&db, &map, row, 100));
    db.persist().unwrap();
    let engine = db.engine();
    engine.make_room(0);
    pay(&db, paid(&db), 136);
    // Who has written over one had it read.
    let superseded_in_cache = || {
        let (mut superseded, mut in_cache) = (0, 0);
        let mut reader = engine.log_reader(&engine.segments, Cursor::at_seal(engine.log.begin()));
        let end = engine.log.head() / SEGMENT_BYTES * SEGMENT_BYTES;
        while reader.cursor().position < end {
            for (address, record) in &reader.next_batch(end, BATCH).unwrap().records {
                let hash = engine.hash(record.shape.object, record.key);
                if !engine.may_be_newest(*address, hash) {
                    superseded += 1;
                    in_cache += u64::from(engine.cold.cache.has(*address));
                }
            }
        }
        (superseded, in_cache)
    };
    let before = superseded_in_cache();
    assert!(before.0 > before.1 + 300, "{before:?}");
    // Most of the others have come with those that were written over.
    assert!(warm_up(&db) > u64::from(ROWS) / 16);
    assert!(superseded_in_cache().1 <= before.1, "{:?}, and {before:?} before", superseded_in_cache());
}

/// Each of many segments cost the time of a read that fails, in one round.
#[test]
fn a_round_comes_to_its_end_though_nothing_can_be_read() {
    let (disk, db, _map) = cold(20_000, 100);
    pay(&db, paid(&db), 136);
    disk.inject(Fault { operation: OperationKind::Read, nth: 1, kind: FaultKind::EIO, sticky: true });
    let engine = db.engine();
    engine.warm_up();
    let mut rounds = 1;
    while engine.warm_up.is_at_work() {
        engine.warm_up();
        rounds += 1;
    }
    assert!(rounds >= engine.cold_end().unwrap() / SEGMENT_BYTES / 5, "{rounds} rounds");
    assert_eq!(engine.warm_up.records.load(Ordering::Relaxed), 0);
}

/// Half of it would not have room, and most of what comes in would be in vain.
#[test]
fn where_most_has_no_room_nothing_comes_in() {
    const ROWS: u32 = 70_000;
    let (_disk, db, _map) = cold(ROWS, 100);
    pay(&db, paid(&db), 136);
    assert_eq!(warm_up(&db), 0);
}

/// Where more than half has, as much comes in as there is room for, the newest first, and nobody's place is taken.
#[test]
fn what_there_is_no_room_for_stays_away() {
    const ROWS: u32 = 38_000;
    let (_disk, db, map) = cold(ROWS, 100);
    // Of the oldest, which come last.
    let asked = |row: u32| db.get(&map, row.to_be_bytes()).unwrap().unwrap();
    (0..200).for_each(|row| drop(asked(row)));
    pay(&db, paid(&db), 136);
    let came_in = warm_up(&db);
    assert!((8_000..u64::from(ROWS) * 3 / 4).contains(&came_in), "{came_in}");
    let reads = || db.engine().cold.reads.load(Ordering::Relaxed);
    let before = reads();
    (0..200).for_each(|row| drop(asked(row)));
    assert!(reads() - before < 10, "{} of those that were asked for left", reads() - before);
    let head_row = (u64::from(ROWS) - (db.engine().log.tail() - db.engine().log.head()) / 136) as u32;
    let before = reads();
    (head_row - 2_000..head_row).for_each(|row| drop(asked(row)));
    assert!(reads() - before < 50, "{} of the newest are not there", reads() - before);
}

#[test]
fn it_ends_where_it_is_no_more_paid_for_and_goes_on_there() {
    const ROWS: u32 = 140;
    const VALUE_BYTES: usize = 20_000;
    let (_disk, db, map) = cold(ROWS, VALUE_BYTES);
    pay(&db, 100, VALUE_BYTES);
    let most = PIECE_BYTES / VALUE_BYTES as u64 + BATCH as u64;
    let first = warm_up(&db);
    assert!((10..=most).contains(&first), "{first} of {most}");
    let piece_reads = PIECE_BYTES / BYTES_PER_READ;
    pay(&db, piece_reads / 2, VALUE_BYTES);
    assert_eq!(warm_up(&db), 0);
    let mut second = 0;
    for _ in 0..4 {
        pay(&db, piece_reads / 2, VALUE_BYTES);
        second += warm_up(&db);
    }
    assert!((5..=2 * most).contains(&second), "{second}");
    for _ in 0..20 {
        pay(&db, piece_reads, VALUE_BYTES);
        warm_up(&db);
    }
    let read = reads_of_all(&db, &map, ROWS, VALUE_BYTES);
    assert!(read < u64::from(ROWS) / 4, "{read} were read");
}

#[test]
fn c9_what_is_damaged_is_left_out_and_told_to_who_asks() {
    const ROWS: u32 = 20_000;
    let (disk, db, map) = cold(ROWS, 100);
    let name = "segment-00000003";
    let mut bytes = disk.bytes(name);
    (8..bytes.len()).step_by(997).for_each(|at| bytes[at] ^= 1);
    disk.set_bytes(name, bytes);
    pay(&db, paid(&db), 136);
    assert!(warm_up(&db) > u64::from(ROWS) / 4);
    let mut told = 0;
    for row in 0..ROWS {
        match db.get(&map, row.to_be_bytes()) {
            Ok(value) => assert_eq!(value.unwrap(), vec![row as u8; 100], "row {row}"),
            Err(error) => {
                assert!(error.to_string().contains(name), "{error}");
                told += 1;
            }
        }
    }
    assert!((10..600).contains(&told), "{told}");
    assert!(disk.list().unwrap().len() > 20);
}

/// Leaves that are on disk, and a database that has just been opened.
#[test]
fn leaves_come_in_once_some_were_read() {
    const ROWS: u32 = 10_000;
    let disk = SimulatedDevice::new(1);
    let options = || {
        Options::new().background(false).segment_bytes(SEGMENT_BYTES).memory(MEMORY).checkpoint_log_bytes(0)
    };
    let key = |row: u32| row.to_be_bytes();
    {
        let db = options().open_on(Arc::new(disk.clone())).unwrap();
        let table = db.table("table").unwrap();
        (0..ROWS).for_each(|row| db.put(&table, key(row), vec![row as u8; 100]).unwrap().forget());
        db.persist().unwrap();
        assert_eq!(db.settle().unwrap(), u64::from(ROWS));
        db.close().unwrap();
    }
    let db = options().open_on(Arc::new(disk)).unwrap();
    let (table, tree) = (db.table("table").unwrap(), &db.engine().settled.tree);
    let get = |row: u32| {
        assert_eq!(db.get(&table, key(row)).unwrap().unwrap(), vec![row as u8; 100], "row {row}");
    };
    // Records as long as these make a few reads enough.
    pay(&db, 100, 20_000);
    assert_eq!(warm_up(&db), 0);
    assert_eq!(db.statistics().warmed_up_leaves, 0, "nobody has read any");
    (0..20).for_each(|row| get(row * 307));
    assert!((10..=25).contains(&tree.cache_misses()), "{}", tree.cache_misses());
    db.engine().share_for_good();
    for _ in 0..8 {
        warm_up(&db);
        (0..20).for_each(|row| get(row * 401));
    }
    assert!(db.statistics().warmed_up_leaves > 50, "{}", db.statistics().warmed_up_leaves);
    let before = tree.cache_misses();
    (0..ROWS).for_each(get);
    assert_eq!(tree.cache_misses() - before, 0, "were read one by one");
}
