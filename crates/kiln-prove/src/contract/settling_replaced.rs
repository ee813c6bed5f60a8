//! Rows of which something newer is durable need not settle; and those of which something newer is yet to harden do.

use std::sync::Arc;

use kiln::device::SimulatedDevice;
use kiln::{Kiln, Table};

use super::settling::{Rows, assert_rows, assert_rows_after_crash, key, value};
use crate::support::{Random, manual};
use crate::testing::seed;

const HOT_ROWS: u32 = 100;
const SEGMENT_BYTES: u64 = 16 << 10;

fn long(number: u32, round: u32) -> Vec<u8> {
    [value(number, round), vec![7; 200]].concat()
}

/// With segments of 16 KiB eight of them are in memory, and tables settle as soon as four others are there.
fn open(disk: &SimulatedDevice, segment_bytes: u64) -> (Kiln, Table) {
    // Compaction would not leave much that is dead.
    let options = manual().segment_bytes(segment_bytes).space_amplification(f64::INFINITY);
    let options = options.memory(160 << 10).settle_log_bytes(64 << 10);
    let db = options.open_on(Arc::new(disk.clone())).unwrap();
    let table = db.table("table").unwrap();
    (db, table)
}

/// Each part that settled had some record of each row, so all rows that were updated all the time were written with each of them.
#[test]
fn c4_rows_that_are_updated_all_the_time_do_not_settle() {
    let disk = SimulatedDevice::new(seed());
    let (db, table) = open(&disk, SEGMENT_BYTES);
    let (mut rows, mut random) = (Rows::new(), Random::new(seed()));
    let (mut cold, mut crashes) = (HOT_ROWS, 0);
    for round in 0..400 {
        let (durable, hardenings) = (rows.clone(), db.statistics().hardenings);
        for place in 0..25 {
            let number = if random.one_in(5) {
                cold += 1;
                cold
            } else {
                random.below(HOT_ROWS as usize) as u32
            };
            db.put(&table, key(number), long(number, round)).unwrap().forget();
            rows.insert(key(number), long(number, round));
            let statistics = db.statistics();
            // Who wants space for a record may have hardened what was before.
            let is_time = statistics.rows_settled > 0 && statistics.hardenings == hardenings;
            if place == 5 && is_time && random.one_in(20) {
                assert_rows_after_crash(&disk, &durable);
                crashes += 1;
            }
        }
        db.persist().unwrap();
    }
    let statistics = db.statistics();
    assert!(statistics.settled_rows > u64::from(cold / 2), "{statistics:?}");
    // Each row in the tree was the newest of its key when it came there.
    assert!(statistics.settled_rows <= statistics.rows_settled, "{statistics:?}");
    assert!(crashes > 5, "{crashes}");
    db.persist().unwrap();
    assert_rows(&db, &table, &rows);
    assert_rows_after_crash(&disk, &rows);
}

/// What would hide it may yet be lost, and the log is not asked any more for what has settled.
#[test]
fn c4_a_row_settles_though_something_newer_of_it_is_yet_to_harden() {
    const ROWS: u32 = 30;
    for times in 1..4 {
        let disk = SimulatedDevice::new(seed());
        // All of it in one, as nobody prepares the next one ahead: else who needs it would harden.
        let (db, table) = open(&disk, 1 << 20);
        let put_all = |round: u32| {
            let put = |number| db.put(&table, key(number), long(number, round)).unwrap().forget();
            (0..ROWS).for_each(put);
            (0..ROWS).map(|number| (key(number), long(number, round))).collect::<Rows>()
        };
        for round in 0..times {
            put_all(round);
            db.persist().unwrap();
        }
        let durable = put_all(times);
        db.persist().unwrap();
        for round in 1..4 {
            put_all(times + round);
            // A version of its own for each.
            db.snapshot().unwrap();
        }
        assert_eq!(db.settle().unwrap(), u64::from(ROWS));
        assert_rows_after_crash(&disk, &durable);
        let newest = put_all(times + 4);
        assert_rows(&db, &table, &newest);
        db.persist().unwrap();
        assert_rows_after_crash(&disk, &newest);
    }
}

/// Who has a snapshot from before sees what it has replaced.
#[test]
fn c2_a_row_settles_for_a_snapshot_that_does_not_see_what_is_newer() {
    let disk = SimulatedDevice::new(seed());
    let (db, table) = open(&disk, SEGMENT_BYTES);
    let put_all = |rows: std::ops::Range<u32>, round: u32| {
        rows.for_each(|number| db.put(&table, key(number), long(number, round)).unwrap().forget());
        db.persist().unwrap();
    };
    (0..3).for_each(|round| put_all(0..HOT_ROWS, round));
    let snapshot = db.snapshot().unwrap();
    (3..6).for_each(|round| put_all(0..HOT_ROWS, round));
    put_all(HOT_ROWS..20 * HOT_ROWS, 0);
    assert_eq!(db.statistics().settled_rows, u64::from(HOT_ROWS), "{:?}", db.statistics());
    for number in 0..HOT_ROWS {
        assert_eq!(snapshot.get(&table, key(number)).unwrap(), Some(long(number, 2)));
        assert_eq!(db.get(&table, key(number)).unwrap(), Some(long(number, 5)));
    }
    let range: Vec<_> = snapshot.range::<&[u8]>(&table, ..).map(Result::unwrap).collect();
    assert_eq!(range, (0..HOT_ROWS).map(|number| (key(number), long(number, 2))).collect::<Vec<_>>());
}
