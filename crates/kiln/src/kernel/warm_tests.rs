//! What is written anew so that it stays in memory, and that it comes to an end.

use std::sync::Arc;

use super::*;
use crate::device::SimulatedDevice;
use crate::kernel::handle::HasHandle;
use crate::{Kiln, Map, Options};

const ROWS: u32 = 40_000;

/// Rows in a database whose log keeps the last 12,000 of them, about, in memory.
fn open(space_amplification: f64) -> (Kiln, Map) {
    let options = Options::new().background(false).segment_bytes(64 << 10).memory(4 << 20);
    let options = options.space_amplification(space_amplification);
    let db = options.open_on(Arc::new(SimulatedDevice::new(1))).unwrap();
    let map = db.map("map").unwrap();
    put(&db, &map, 0..ROWS);
    (db, map)
}

fn put(db: &Kiln, map: &Map, rows: std::ops::Range<u32>) {
    for row in rows {
        db.put(map, row.to_be_bytes(), [row as u8; 100]).unwrap().forget();
        if row % 100 == 0 {
            db.persist().unwrap();
        }
    }
}

/// Whether a row's record is in memory.
fn is_in_memory(db: &Kiln, map: &Map, row: u32) -> bool {
    let engine = db.engine();
    let hash = engine.hash(map.handle().id, &row.to_be_bytes());
    engine.index.addresses_of(hash).all(|address| address >= engine.log.head())
}

/// Nobody reads a row again that is read, and updated, now and then: its newest record has no read to show for it when it comes to leave memory.
#[test]
fn who_updates_what_was_read_passes_that_on_and_who_puts_what_was_not_does_not() {
    let (db, map) = open(2.0);
    let (read, unread) = (ROWS - 2_000..ROWS - 1_500, ROWS - 1_500..ROWS - 1_000);
    for row in read.clone() {
        db.update(&map, row.to_be_bytes(), |value| value.map(<[u8]>::to_vec)).unwrap().forget();
    }
    put(&db, &map, unread.clone());
    let mut next = ROWS;
    let mut go_around = || {
        let end = db.engine().log.head() + db.engine().log.ring_bytes();
        while db.engine().log.head() < end {
            put(&db, &map, next..next + 100);
            db.persist().unwrap();
            db.engine().keep_warm();
            next += 100;
        }
    };
    go_around();
    let in_memory = |mut rows: std::ops::Range<u32>| rows.all(|row| is_in_memory(&db, &map, row));
    assert!(in_memory(read.clone()) && !unread.clone().any(|row| is_in_memory(&db, &map, row)));
    // The copy has not been read.
    go_around();
    assert!(!read.clone().any(|row| is_in_memory(&db, &map, row)));
}

/// Each hardening takes a block at the least, so without anybody's commits the walk would go on for what it has itself written, and memory come to be full of padding.
#[test]
fn a_few_blocks_of_log_are_not_worth_a_walk() {
    let (db, map) = open(2.0);
    let engine = db.engine();
    let rewritten = |rows: std::ops::Range<u32>| {
        let before = engine.compaction.records.load(Ordering::Relaxed);
        put(&db, &map, rows);
        db.persist().unwrap();
        engine.keep_warm();
        engine.compaction.records.load(Ordering::Relaxed) - before
    };
    for row in (0..ROWS).filter(|&row| is_in_memory(&db, &map, row)) {
        assert!(db.get(&map, row.to_be_bytes()).unwrap().is_some());
    }
    assert!(rewritten(ROWS..ROWS + 1_000) > 0, "they were all read");
    // What was written anew has to harden, and the walk to come to the end of that.
    (0..10).for_each(|_| _ = rewritten(0..0));
    assert_eq!(rewritten(ROWS + 1_000..ROWS + 1_200), 0);
    assert!(rewritten(ROWS + 1_200..ROWS + 2_200) > 0);
}

/// What is superseded by that must not make the log longer than it may be: compaction would write it anew, and never come to an end.
#[test]
fn the_less_of_the_log_may_be_dead_the_less_is_written_anew_for_what_is_read() {
    let rewritten = |space_amplification| {
        let (db, map) = open(space_amplification);
        let written = || db.engine().compaction.bytes.load(Ordering::Relaxed);
        let before = (written(), db.engine().log.tail());
        for row in ROWS..2 * ROWS {
            put(&db, &map, row..row + 1);
            assert!(db.get(&map, (row - 1_000).to_be_bytes()).unwrap().is_some());
            if row % 100 == 0 {
                db.engine().keep_warm();
            }
        }
        (written() - before.0) as f64 / (db.engine().log.tail() - before.1) as f64
    };
    let parts = [1.5, 2.0, 50.0].map(rewritten);
    let expected = [1.0 / 6.0, 0.25, 0.25];
    let is_near = |part: f64, expected: f64| (expected - 0.05..expected + 0.01).contains(&part);
    assert!(parts.iter().zip(expected).all(|(&part, expected)| is_near(part, expected)), "{parts:?}");
}
