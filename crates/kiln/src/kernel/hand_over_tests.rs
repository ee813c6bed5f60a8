//! Tests of handing over: what leaves the log's memory is found in the read cache.

use std::sync::Arc;

use super::*;
use crate::device::SimulatedDevice;
use crate::{Kiln, Map, Options};

const MEMORY: u64 = 4 << 20;
const VALUE_BYTES: usize = 100;

fn options() -> Options {
    Options::new().background(false).segment_bytes(64 << 10).memory(MEMORY)
}

fn open() -> (Kiln, Map) {
    let db = options().open_on(Arc::new(SimulatedDevice::new(1))).unwrap();
    let map = db.map("map").unwrap();
    (db, map)
}

/// Puts rows, and hands over as often as the keeper does at the least.
fn put_all(db: &Kiln, map: &Map, rows: impl Iterator<Item = u32>) {
    for (number, row) in rows.enumerate() {
        db.put(map, row.to_be_bytes(), [row as u8; VALUE_BYTES]).unwrap().forget();
        if number % 100 == 99 {
            db.persist().unwrap();
        }
    }
}

/// Rows in no order, each as often as the others.
fn random_rows(seed: u64, count: usize, below: u32) -> impl Iterator<Item = u32> {
    let mut state = seed;
    let next = move || {
        state = state.wrapping_mul(0x5851_F42D_4C95_7F2D).wrapping_add(0x1405_7B7E_F767_814F);
        ((state >> 33) % u64::from(below)) as u32
    };
    std::iter::repeat_with(next).take(count)
}

fn reads(db: &Kiln) -> u64 {
    db.engine().cold.reads.load(Ordering::Relaxed)
}

/// The caches have the larger share.
fn is_reading(db: &Kiln) -> bool {
    db.engine().log.share() < db.engine().log.ring_bytes() && db.engine().shares.at_rest().is_some()
}

/// Puts rows in no order until the caches have the larger share.
fn put_until_reading(db: &Kiln, map: &Map, rows: u32) {
    for seed in 1..=100 {
        put_all(db, map, random_rows(seed, 1_000, rows));
        if is_reading(db) {
            return;
        }
    }
    panic!("the log has all of its ring");
}

/// Of rows that are updated all over the place, with memory for all of them but not in the log's, a third was read from disk: by who asked for them, and by who updated them again.
#[test]
fn rows_that_are_updated_all_over_the_place_stay_in_memory_if_they_have_room_there() {
    const ROWS: u32 = 17_000;
    let (db, map) = open();
    put_all(&db, &map, 0..ROWS);
    put_until_reading(&db, &map, ROWS);
    let mix = |seed, count| {
        let before = reads(&db);
        for (number, row) in random_rows(seed, count, ROWS).enumerate() {
            match number % 2 {
                0 => assert_eq!(db.get(&map, row.to_be_bytes()).unwrap().unwrap(), [row as u8; VALUE_BYTES]),
                _ => put_all(&db, &map, std::iter::once(row)),
            }
            if number % 100 == 99 {
                db.persist().unwrap();
            }
        }
        reads(&db) - before
    };
    mix(200, 100_000);
    let live_bytes = db.engine().liveness.lock().live_bytes();
    assert!(!db.engine().would_stay_warm() && live_bytes > MEMORY / 2, "{live_bytes}");
    let read = mix(201, 50_000);
    assert!(read < 500, "{read} of 50,000 were read");
    assert!(db.statistics().handed_over_records > 50_000, "{:?}", db.statistics());
}

/// Who hands over may be slower than who writes: the log took the memory of its whole ring, besides that of the caches.
#[test]
fn the_log_keeps_to_its_share_whether_what_leaves_it_has_been_handed_over_or_not() {
    const ROWS: u32 = 17_000;
    let (db, map) = open();
    put_all(&db, &map, 0..ROWS);
    put_until_reading(&db, &map, ROWS);
    let engine = db.engine();
    let before = engine.shares.hand_over.records.load(Ordering::Relaxed);
    for row in 0..ROWS {
        db.put(&map, row.to_be_bytes(), [row as u8; VALUE_BYTES]).unwrap().forget();
        if row % 100 == 0 {
            engine.persist().unwrap();
            engine.make_room(0);
            let (kept, share) = (engine.log.tail() - engine.log.head(), engine.log.share());
            assert!(share == MEMORY / 4 && kept <= share + share / 8, "{kept} of {share}");
        }
    }
    assert_eq!(engine.shares.hand_over.records.load(Ordering::Relaxed), before, "nobody hands over");
    // And what is handed over afterwards begins behind what has gone.
    db.persist().unwrap();
    assert!(engine.shares.hand_over.cursor() >= engine.log.head());
    (0..ROWS).for_each(|row| assert!(db.get(&map, row.to_be_bytes()).unwrap().is_some()));
}

/// Eight times as many reads as updates had to come from the disk before the caches had more than a fifth of the memory.
#[test]
fn the_caches_have_the_larger_share_as_long_as_they_are_of_use_and_the_log_has_no_room_for_all_that_is_live()
{
    const ROWS: u32 = 17_000;
    let (db, map) = open();
    put_all(&db, &map, 0..ROWS);
    // An update reads what it is about to replace, to find out whose it is.
    put_all(&db, &map, random_rows(1, 40_000, ROWS));
    assert!(is_reading(&db));
    // There is next to nothing to be read from disk any more.
    put_all(&db, &map, random_rows(3, 100_000, ROWS));
    let before = reads(&db);
    put_all(&db, &map, random_rows(4, 100_000, ROWS));
    assert!(is_reading(&db) && reads(&db) - before < 1_000, "{}", reads(&db) - before);
    // Nobody asks for what the caches have: these are new.
    put_all(&db, &map, ROWS..ROWS + 40_000);
    assert!(!is_reading(&db));
    assert_eq!(db.statistics().ring_bytes, MEMORY / 2);
}

#[test]
fn what_has_room_in_the_logs_memory_is_there_and_not_in_the_caches() {
    const ROWS: u32 = 7_000;
    let (db, map) = open();
    put_all(&db, &map, 0..ROWS);
    for row in random_rows(1, 200_000, ROWS) {
        put_all(&db, &map, std::iter::once(row));
        assert!(db.get(&map, row.to_be_bytes()).unwrap().is_some());
        if row % 100 == 0 {
            db.persist().unwrap();
            db.engine().keep_warm();
        }
    }
    assert!(db.engine().would_stay_warm() && !is_reading(&db));
    assert_eq!((db.statistics().handed_over_records, reads(&db)), (0, 0));
}

/// Rows of a table that had room in memory settled all the same, and then each was there twice, or not at all.
#[test]
fn rows_that_have_room_in_the_read_cache_do_not_settle_and_more_than_that_do() {
    const ROWS: u32 = 15_000;
    let db = options().settle_log_bytes(1 << 20).open_on(Arc::new(SimulatedDevice::new(1))).unwrap();
    let table = db.table("table").unwrap();
    let put = |rows: &mut dyn Iterator<Item = u32>| {
        for (number, row) in rows.enumerate() {
            let value = [row as u8; VALUE_BYTES];
            db.put(&table, row.to_be_bytes(), value).unwrap().forget();
            if number % 100 == 99 {
                // Persisting would have them settle as soon as a few are cold, before anybody has read them.
                db.engine().persist().unwrap();
                db.engine().hand_over_what_leaves();
                db.engine().make_room(0);
            }
        }
    };
    put(&mut (0..ROWS));
    for seed in 1..=100 {
        put(&mut random_rows(seed, 1_000, ROWS));
        for row in random_rows(seed + 100, 1_000, ROWS) {
            assert!(db.get(&table, row.to_be_bytes()).unwrap().is_some());
        }
        db.engine().share_for_good();
        if is_reading(&db) {
            break;
        }
    }
    assert!(is_reading(&db));
    for round in 0..30 {
        put(&mut random_rows(u64::from(round) + 1_000, 5_000, ROWS));
        // Nobody waits for these to settle, and so nor does the log, to be dropped.
        db.delete(&table, (ROWS + round).to_be_bytes()).unwrap().forget();
        db.delete(&table, round.to_be_bytes()).unwrap().forget();
        put(&mut std::iter::once(round));
        db.persist().unwrap();
        assert!(db.engine().unsettled_bytes() >= 1 << 20, "{}", db.engine().unsettled_bytes());
        assert_eq!(db.statistics().settled_rows, 0);
    }
    let log_bytes = db.engine().log.tail() - db.engine().log.begin();
    assert!(log_bytes < 8 << 20, "{log_bytes} bytes of log");
    put(&mut (ROWS..3 * ROWS));
    // A part of it each time.
    (0..200).for_each(|_| db.persist().unwrap());
    assert!(db.statistics().settled_rows > u64::from(ROWS), "{:?}", db.statistics());
    (0..3 * ROWS).for_each(|row| assert!(db.get(&table, row.to_be_bytes()).unwrap().is_some()));
}
