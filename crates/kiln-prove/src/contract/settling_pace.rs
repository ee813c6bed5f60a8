//! What is due settles by itself; settling that does not keep up slows those who write tables, and nobody waits in vain.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use kiln::device::SimulatedDevice;
use kiln::{Kiln, Object, Options, Table};

use super::hooked::{HookedDevice, Operation};
use crate::testing::{PATIENCE, eventually, seed, watched};

fn options() -> Options {
    Options::new().segment_bytes(64 << 10).memory(256 << 10).settle_log_bytes(128 << 10)
}

fn put(db: &Kiln, table: &Table, number: u32) {
    db.put(table, number.to_be_bytes(), [7; 1_000]).unwrap().forget();
}

/// Lets a tree that does not get on go on when a test ends, however it ends, so that the database can close.
struct LetGo(Arc<AtomicBool>);

impl Drop for LetGo {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// A database whose tree does not get on before it is let go.
fn with_a_stuck_tree(options: Options, let_go: &Arc<AtomicBool>) -> Kiln {
    let may_go = let_go.clone();
    let hook = move |operation, name: &str| {
        if operation == Operation::Sync && name.starts_with("tree") {
            eventually("the test lets go", || may_go.load(Ordering::SeqCst));
        }
    };
    options.open_on(HookedDevice::on(&SimulatedDevice::new(seed()), hook)).unwrap()
}

#[test]
fn c5b_commits_of_tables_are_slowed_while_settling_is_far_behind() {
    watched("c5b_commits_of_tables_are_slowed_while_settling_is_far_behind", PATIENCE, |_| {
        let let_go = Arc::new(AtomicBool::new(false));
        let db = with_a_stuck_tree(options(), &let_go);
        let let_go = LetGo(let_go);
        let (table, map) = (db.table("table").unwrap(), db.map("map").unwrap());
        assert_eq!(db.statistics().unsettled_bytes_max, 256 << 10);
        let mut count = 0;
        while db.statistics().settling_waits == 0 {
            put(&db, &table, count);
            count += 1;
        }
        let statistics = db.statistics();
        assert!(statistics.unsettled_bytes > statistics.unsettled_bytes_max, "{statistics:?}");
        // What does not settle is not slowed, and what is slowed gets on.
        let waits = statistics.settling_waits;
        (0..50_u32).for_each(|number| db.put(&map, number.to_be_bytes(), [7; 100]).unwrap().forget());
        assert_eq!(db.statistics().settling_waits, waits);
        for number in 0..5 {
            db.transact(|tx| tx.put(&table, [b"more", &[number][..]].concat(), "row")).unwrap().forget();
        }
        drop(let_go);
        eventually("settling catches up", || {
            let statistics = db.statistics();
            statistics.settled_rows > 0 && statistics.unsettled_bytes <= statistics.unsettled_bytes_max
        });
        assert_eq!(table.len(), u64::from(count) + 5);
        db.close().unwrap();
    });
}

/// It is no less than what makes settling due takes.
#[test]
fn c5b_how_much_may_not_have_settled_before_commits_are_slowed_is_an_option() {
    watched("c5b_how_much_may_not_have_settled_before_commits_are_slowed_is_an_option", PATIENCE, |_| {
        for (given, expected) in [(0, 256 << 10), (100 << 10, 256 << 10), (1 << 20, 1 << 20)] {
            let let_go = Arc::new(AtomicBool::new(false));
            let db = with_a_stuck_tree(options().unsettled_bytes(given), &let_go);
            let _let_go = LetGo(let_go);
            let table = db.table("table").unwrap();
            assert_eq!(db.statistics().unsettled_bytes_max, expected);
            let mut number = 0;
            while db.statistics().settling_waits == 0 {
                put(&db, &table, number);
                number += 1;
            }
            assert!(db.statistics().unsettled_bytes > expected, "{:?}", db.statistics());
        }
    });
}

/// The end of a part was counted past the last address there is, and nothing settled.
#[test]
fn c5b_rows_settle_where_commits_are_never_slowed() {
    let disk = Arc::new(SimulatedDevice::new(seed()));
    let db = options().background(false).unsettled_bytes(u64::MAX).open_on(disk).unwrap();
    let table = db.table("table").unwrap();
    for number in 0..1_000 {
        put(&db, &table, number);
        if number % 50 == 0 {
            db.persist().unwrap();
        }
    }
    let statistics = db.statistics();
    assert!(statistics.settled_rows > 0, "{statistics:?}");
}

/// Where it would not help: what blocks settling may last for as long as it likes.
#[test]
fn c5b_nobody_is_slowed_where_settling_cannot_go_on() {
    watched("c5b_nobody_is_slowed_where_settling_cannot_go_on", PATIENCE, |_| {
        let grow = |db: &Kiln| {
            let table = db.table("table").unwrap();
            let mut number = 0;
            while db.statistics().unsettled_bytes < 640 << 10 {
                put(db, &table, number);
                number += 1;
            }
            assert_eq!(db.statistics().settling_waits, 0);
        };
        // A snapshot that must not see it.
        let db = options().open_on(Arc::new(SimulatedDevice::new(seed()))).unwrap();
        let snapshot = db.snapshot().unwrap();
        grow(&db);
        assert_eq!(db.statistics().settled_rows, 0);
        drop(snapshot);
        // Nobody who settles by himself.
        let db = options().settle_log_bytes(0).open_on(Arc::new(SimulatedDevice::new(seed()))).unwrap();
        assert_eq!(db.statistics().unsettled_bytes_max, 0);
        grow(&db);
    });
}

/// Ranges went on reading it from the log, row by row, for as long as everybody only read.
#[test]
fn what_had_not_settled_when_the_database_was_opened_settles_though_nobody_commits() {
    let disk = SimulatedDevice::new(seed());
    let db = options().settle_log_bytes(0).open_on(Arc::new(disk.clone())).unwrap();
    let table = db.table("table").unwrap();
    let put = |row: u32| db.put(&table, row.to_be_bytes(), [row as u8; 1_000]).unwrap().forget();
    put(0);
    db.persist().unwrap();
    // Before anything ever has, all that the log had when the database was opened must have left memory.
    assert_eq!(db.settle().unwrap(), 1);
    (0..1_000).for_each(put);
    db.close().unwrap();
    let db = options().settle_log_bytes(64 << 10).open_on(Arc::new(disk)).unwrap();
    eventually("something settles", || db.statistics().rows_settled > 0);
    let table = db.table("table").unwrap();
    for row in 0..1_000_u32 {
        assert_eq!(db.get(&table, row.to_be_bytes()).unwrap(), Some(vec![row as u8; 1_000]));
    }
}
