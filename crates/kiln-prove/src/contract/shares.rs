//! C2: memory changes hands, and what it held is found as it was, mostly without the disk.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use kiln::device::{Fault, FaultKind, OperationKind, SimulatedDevice};
use kiln::{Kiln, Map, Statistics};

use super::cold::{key, lazy, make_cold};
use crate::support::{Random, manual};
use crate::testing::{PATIENCE, background, eventually, seed, watched};

/// Log, read cache, pages and images together take no more than they were given.
fn within(db: &Kiln, memory: u64) -> Statistics {
    let statistics = db.statistics();
    let copies = statistics.page_cache_bytes + statistics.leaf_images_bytes;
    let bytes = [statistics.ring_bytes, statistics.read_cache_bytes, copies];
    assert!(bytes.iter().sum::<u64>() <= memory, "{bytes:?} of {memory}");
    statistics
}

/// Reads rows until all the memory that the log gives up is the read cache's; what is done meanwhile is done after each.
fn read_until_divided(
    db: &Kiln,
    map: &Map,
    memory: u64,
    mut row: impl FnMut() -> u32,
    mut meanwhile: impl FnMut(bool),
) {
    let usual = db.statistics().read_cache_bytes;
    for _ in 0..20_000 {
        db.get(map, key(row())).unwrap();
        let statistics = within(db, memory);
        if statistics.ring_bytes == memory / 4 && statistics.read_cache_bytes > memory * 7 / 10 {
            return;
        }
        meanwhile(statistics.read_cache_bytes != usual);
    }
    panic!("the memory stays as it is: {:?}", db.statistics());
}

/// Leaves were written past the cache as long as nothing had settled, and ranges, which did not ask for memory for them, read each again and
/// again for ever.
#[test]
fn c2_what_settles_first_is_in_memory_where_there_is_room() {
    const ROWS: u32 = 10_000;
    let disk = SimulatedDevice::new(seed());
    let db = manual().memory(8 << 20).open_on(Arc::new(disk.clone())).unwrap();
    let table = db.table("table").unwrap();
    (0..ROWS).for_each(|row| db.put(&table, key(row), [row as u8; 100]).unwrap().forget());
    db.persist().unwrap();
    assert_eq!(db.settle().unwrap(), u64::from(ROWS));
    let before = within(&db, 8 << 20);
    assert!(before.page_cache_bytes > u64::from(ROWS) * 100, "{before:?}");
    // Whoever reads from the disk from now on fails.
    disk.inject(Fault { operation: OperationKind::Read, nth: 1, kind: FaultKind::EIO, sticky: true });
    for row in 0..ROWS {
        assert_eq!(db.get(&table, key(row)).unwrap().unwrap(), [row as u8; 100]);
    }
    let snapshot = db.snapshot().unwrap();
    let mut range = snapshot.range(&table, key(0)..);
    let mut rows = 0..ROWS;
    while let Some((found, value)) = range.next_row().unwrap() {
        let row = rows.next().unwrap();
        assert_eq!((found, value), (&key(row)[..], &[row as u8; 100][..]));
    }
    assert!(rows.is_empty());
    disk.clear_faults();
}

/// What the log gave up was evicted at once, and read back from the disk one by one.
#[test]
fn c2_what_leaves_the_log_because_others_are_read_is_found_without_the_disk() {
    const MEMORY: u64 = 4 << 20;
    const COLD: u32 = 13_000;
    const ROWS: u32 = 18_000;
    let db = lazy().memory(MEMORY).open_on(Arc::new(SimulatedDevice::new(seed()))).unwrap();
    let map = db.map("map").unwrap();
    (0..ROWS).for_each(|row| db.put(&map, key(row), [row as u8; 200]).unwrap().forget());
    db.persist().unwrap();
    let before = within(&db, MEMORY);
    let mut random = Random::new(seed());
    read_until_divided(&db, &map, MEMORY, || random.below(COLD as usize / 2) as u32, |_| ());
    let after = within(&db, MEMORY);
    // Many left.
    assert!(after.log_head - before.log_head > 3_000 * 232, "{before:?} {after:?}");
    for row in COLD..ROWS {
        assert_eq!(db.get(&map, key(row)).unwrap().unwrap(), [row as u8; 200]);
    }
    let reads = within(&db, MEMORY).cold_reads - after.cold_reads;
    assert!(reads < 50, "{reads} of {} were read from the disk", ROWS - COLD);
}

/// A record in the read cache that is not its key's newest one is nobody's but an older snapshot's.
#[test]
fn c2_what_is_written_while_records_are_handed_over_is_what_is_read() {
    const MEMORY: u64 = 32 << 20;
    const ROWS: u32 = 31_500;
    let db = lazy().memory(MEMORY).open_on(Arc::new(SimulatedDevice::new(seed()))).unwrap();
    let map = db.map("map").unwrap();
    let mut random = Random::new(seed());
    let mut model: BTreeMap<u32, u8> = BTreeMap::new();
    for row in 0..ROWS {
        db.put(&map, key(row), [row as u8; 1_000]).unwrap().forget();
        model.insert(row, row as u8);
    }
    db.persist().unwrap();
    let (past, then) = (db.snapshot().unwrap(), model.clone());
    let mut steps = 0;
    let mut cold = Random::new(seed() + 1);
    let mut again = Vec::new();
    let change = |is_dividing: bool| {
        steps += u32::from(is_dividing);
        // In place, what was written before the step.
        for row in again.drain(..) {
            let value = random.below(256) as u8;
            db.put(&map, key(row), [value; 1_000]).unwrap().forget();
            model.insert(row, value);
        }
        for _ in 0..if is_dividing { 40 } else { 0 } {
            // Of those that are being handed over.
            let row = ROWS - 1 - random.below(14_000) as u32;
            let found = db.get(&map, key(row)).unwrap();
            assert_eq!(found.map(|value| value[0]), model.get(&row).copied(), "row {row}");
            if random.one_in(4) {
                assert_eq!(db.delete(&map, key(row)).unwrap().forget(), model.remove(&row).is_some());
            } else {
                let value = random.below(256) as u8;
                db.put(&map, key(row), [value; 1_000]).unwrap().forget();
                model.insert(row, value);
                again.push(row);
            }
            if random.one_in(30) {
                db.persist().unwrap();
                again.clear();
            }
        }
    };
    read_until_divided(&db, &map, MEMORY, || cold.below(12_000) as u32, change);
    assert!(steps > 5, "{steps} steps");
    make_cold(&db, &db.map("ballast").unwrap());
    for row in 0..ROWS {
        let found = db.get(&map, key(row)).unwrap();
        assert_eq!(
            found.map(|value| (value.len(), value[0])),
            model.get(&row).map(|&value| (1_000, value)),
            "row {row}"
        );
        let found = past.get(&map, key(row)).unwrap();
        assert_eq!(found.map(|value| value[0]), then.get(&row).copied(), "row {row} of the snapshot");
    }
    drop(past);
    let report = db.check().unwrap();
    assert!(report.problems.is_empty(), "{report}");
}

/// Each row that an opening leaves on disk was read by itself, when it was asked for first: 50 times as slowly as before the restart, and for a minute.
#[test]
fn c2_what_an_opening_leaves_on_disk_is_soon_in_memory_and_as_it_was_written_last() {
    const ROWS: u32 = 60_000;
    watched("c2_what_an_opening_leaves_on_disk", PATIENCE, |_| {
        let disk = SimulatedDevice::new(seed());
        let options =
            || background().segment_bytes(1 << 20).memory(32 << 20).window(Duration::from_millis(5));
        let db = options().open_on(Arc::new(disk.clone())).unwrap();
        let map = db.map("map").unwrap();
        (0..ROWS).for_each(|row| db.put(&map, key(row), [row as u8; 200]).unwrap().forget());
        db.persist().unwrap();
        db.checkpoint().unwrap();
        db.close().unwrap();
        drop(db);
        let db = options().open_on(Arc::new(disk.clone())).unwrap();
        let map = db.map("map").unwrap();
        let mut random = Random::new(seed());
        let mut model: BTreeMap<u32, u8> = BTreeMap::new();
        let is_as_written = |row: u32, model: &BTreeMap<u32, u8>| {
            let written = model.get(&row).copied().unwrap_or(row as u8);
            assert_eq!(db.get(&map, key(row)).unwrap().unwrap(), [written; 200], "row {row}");
        };
        eventually("others were brought into memory", || {
            for _ in 0..100 {
                let (read, written) =
                    (random.below(ROWS as usize) as u32, random.below(ROWS as usize) as u32);
                is_as_written(read, &model);
                if random.one_in(8) {
                    let value = random.below(256) as u8;
                    db.put(&map, key(written), [value; 200]).unwrap().forget();
                    model.insert(written, value);
                }
            }
            db.statistics().warmed_up_records > 0
        });
        // The last come last.
        let mut warmed_up = 0;
        eventually("all of them were", || {
            std::thread::sleep(Duration::from_millis(20));
            let before = std::mem::replace(&mut warmed_up, db.statistics().warmed_up_records);
            before == warmed_up
        });
        let before = db.statistics();
        (0..ROWS).for_each(|row| is_as_written(row, &model));
        let read = db.statistics().cold_reads - before.cold_reads;
        assert!(read < u64::from(ROWS) / 10, "{read} were read from the disk");
    });
}
