//! C2: ranges look ahead in the index and at the records, and nobody notices but by the clock.

use std::sync::Arc;

use kiln::device::SimulatedDevice;
use kiln::{Kiln, Object, Result, Table};

use super::cold::{lazy, make_settled};
use crate::crash::reopen;
use crate::support::manual;
use crate::testing::seed;

fn row(number: u32) -> Vec<u8> {
    format!("row {number:06}").into_bytes()
}

fn new_table(numbers: impl Iterator<Item = u32>) -> (Kiln, Table) {
    let db = reopen(&SimulatedDevice::new(seed())).unwrap();
    let table = db.table("table").unwrap();
    for number in numbers {
        db.put(&table, row(number), number.to_le_bytes()).unwrap().forget();
    }
    (db, table)
}

/// Whatever the walk had looked at when somebody committed: what a transaction reads afterwards, by other means, is of the
/// same state as the rest of its range, or the transaction conflicts. A row comes, one goes, one changes.
#[test]
fn c2_a_range_that_has_looked_ahead_is_of_one_state_with_all_else_that_is_read() {
    const ROWS: u32 = 80;
    let mark = |change: u32| (u32::MAX - change).to_le_bytes();
    let mut looked_ahead = 0;
    for (stop, reverse) in (1..ROWS as usize - 10).flat_map(|stop| [(stop, false), (stop, true)]) {
        let (db, table) = new_table(0..ROWS);
        let map = db.map("map").unwrap();
        let far = |behind: u32| if reverse { 2 + behind } else { ROWS - 3 - behind };
        let near =
            |ahead: u32| if reverse { ROWS - 2 - stop as u32 - ahead } else { stop as u32 + 1 + ahead };
        for change in 0..6 {
            // What is older than the transaction is no reason for it to look again at what it has read before.
            db.persist().unwrap();
            let tx = db.begin().unwrap();
            let range = tx.range::<&[u8]>(&table, ..).limit(2 * ROWS as usize);
            let mut range = if reverse { range.reverse() } else { range };
            let rows_then = table.len();
            for _ in 0..stop {
                assert!(range.next_row().unwrap().is_some());
            }
            let number = if change < 3 { far(change) } else { near(change) };
            let changed = db.transact(|tx| {
                match change % 3 {
                    0 => tx.put(&table, [&row(number)[..], b" and more"].concat(), 0_u32.to_le_bytes())?,
                    1 => assert!(tx.delete(&table, row(number))?),
                    _ => tx.put(&table, row(number), mark(change))?,
                }
                tx.put(&map, "changed", change.to_le_bytes())
            });
            changed.unwrap().forget();
            let seen = tx.get(&map, "changed").map(|value| value == Some(change.to_le_bytes().to_vec()));
            let rest = || -> Result<Vec<Vec<u8>>> { range.map(|row| Ok(row?.1)).collect() };
            match (seen, rest()) {
                (Ok(true), Ok(rest)) => {
                    looked_ahead += 1;
                    assert_eq!((rest.len() + stop) as u64, table.len(), "{change} after {stop}, {reverse}");
                    let is_new = rest.contains(&mark(change).to_vec());
                    assert!(change % 3 < 2 || is_new, "an old value after {stop}, {reverse}");
                }
                (Ok(seen), Ok(rest)) => {
                    assert!(!seen && (rest.len() + stop) as u64 == rows_then);
                }
                (Err(error), _) | (_, Err(error)) => assert!(error.is_conflict(), "{error}"),
            }
        }
    }
    assert!(looked_ahead > 200, "nearly every transaction conflicted: {looked_ahead}");
}

/// A limit counts rows; keys that have been deleted and are still in the index are no rows.
#[test]
fn c2_a_limit_counts_rows_and_passes_deleted_keys() {
    let (db, table) = new_table(0..200);
    for number in (0..200).filter(|number| !(90..92).contains(number) && *number != 199) {
        db.delete(&table, row(number)).unwrap().forget();
    }
    for limit in 1..5 {
        let snapshot = db.snapshot().unwrap();
        let found = db.transact(|tx| {
            let up: Vec<_> = tx.range(&table, row(1)..).limit(limit).collect::<Result<_>>()?;
            let down: Vec<_> = tx.range(&table, ..row(199)).reverse().limit(limit).collect::<Result<_>>()?;
            Ok([up, down].map(|rows| rows.into_iter().map(|row| row.0).collect::<Vec<_>>()))
        });
        let [up, down] = found.unwrap().forget();
        assert_eq!(up, [row(90), row(91), row(199)][..limit.min(3)]);
        assert_eq!(down, [row(91), row(90)][..limit.min(2)]);
        let in_snapshot = snapshot.range(&table, row(1)..).limit(limit).map(|row| row.unwrap().0);
        assert_eq!(in_snapshot.collect::<Vec<_>>(), up);
    }
    assert_eq!(db.snapshot().unwrap().first(&table).unwrap().unwrap().0, row(90));
}

#[test]
fn c2_a_range_deletion_takes_exactly_the_range_and_conflicts_with_phantoms() {
    let (db, table) = new_table(0..300);
    let tx = db.begin().unwrap();
    tx.put(&table, [&row(120)[..], b" own"].concat(), "own").unwrap();
    tx.delete(&table, row(130)).unwrap();
    assert_eq!(tx.delete_range(&table, row(100)..row(200)).unwrap(), 100);
    assert_eq!(tx.range(&table, row(100)..row(200)).count(), 0);
    tx.put(&table, row(150), "again").unwrap();
    tx.commit().unwrap().forget();
    assert_eq!(table.len(), 201);
    let rest: Vec<_> =
        db.snapshot().unwrap().range(&table, row(98)..row(202)).map(|row| row.unwrap().0).collect();
    assert_eq!(rest, [98, 99, 150, 200, 201].map(row));
    // What comes into the range, or goes, before the commit is in the way.
    for delete in [false, true] {
        let tx = db.begin().unwrap();
        assert!(tx.delete_range(&table, row(240)..=row(260)).unwrap() >= 20);
        match delete {
            false => db.put(&table, [&row(250)[..], b" new"].concat(), "new").unwrap().forget(),
            true => assert!(db.delete(&table, row(250)).unwrap().forget()),
        }
        assert!(tx.commit().unwrap_err().is_conflict());
    }
    assert_eq!(db.transact(|tx| tx.delete_range::<&[u8]>(&table, ..)).unwrap().forget(), 201);
    assert!(table.is_empty());
    let tx = db.begin().unwrap();
    assert_eq!((tx.first(&table).unwrap(), tx.last(&table).unwrap()), (None, None));
}

#[test]
fn estimates_are_exact_for_few_rows_and_within_a_factor_of_two_for_many() {
    let count = 6_000;
    for step in [1, 3_571] {
        let (_db, table) = new_table((0..count).map(|number| number * step % count));
        for (from, to) in [(0, 0), (17, 18), (5_000, 5_200), (5_999, 6_000), (20, 10)] {
            assert_eq!(table.len_estimate(row(from)..row(to)), u64::from(to.saturating_sub(from)));
        }
        for (from, to) in [(0, count), (0, 1_000), (1_000, 4_000), (3_000, 6_000)] {
            let (estimate, rows) = (table.len_estimate(row(from)..row(to)), u64::from(to - from));
            assert!(rows / 2 <= estimate && estimate <= 2 * rows, "{estimate} for {rows}");
        }
        assert_eq!(table.len_estimate::<&[u8]>(..), u64::from(count));
    }
}

/// Leaves that deletions have left nearly empty counted as if they were as full as the others.
#[test]
fn estimates_are_exact_for_few_rows_that_are_left_of_many() {
    const ROWS: u32 = 20_000;
    let (db, table) = new_table(0..ROWS);
    for number in (0..ROWS / 2).filter(|number| number % 20 > 0) {
        assert!(db.delete(&table, row(number)).unwrap().forget());
    }
    // Durable, and then forgotten.
    (0..3).for_each(|_| db.persist().unwrap());
    for (from, to) in [(0, 4_000), (3_000, 6_990), (9_000, 10_010)] {
        let rows = db.snapshot().unwrap().range(&table, row(from)..row(to)).count();
        assert_eq!(table.len_estimate(row(from)..row(to)), rows as u64, "from {from} to {to}");
    }
}

/// Rows on disk are read once each, many at a time, and before they are asked for.
#[test]
fn c2_a_range_reads_each_cold_record_once_and_ahead() {
    const ROWS: u32 = 1_500;
    let db = lazy().memory(4 << 20).open_on(Arc::new(SimulatedDevice::new(seed()))).unwrap();
    let table = db.table("table").unwrap();
    for number in 0..ROWS {
        db.put(&table, row(number * 7 % ROWS), [number as u8; 200]).unwrap().forget();
    }
    make_settled(&db, &db.map("others").unwrap());
    let (before, snapshot) = (db.statistics(), db.snapshot().unwrap());
    let cold_reads = || db.statistics().cold_reads - before.cold_reads;
    let read = || cold_reads() + db.statistics().neighbours_read - before.neighbours_read;
    // What is not asked for is hardly read.
    assert_eq!(snapshot.range(&table, row(1_200)..).limit(5).count(), 5);
    assert!((1..=5).contains(&cold_reads()), "{}", cold_reads());
    assert!(snapshot.range(&table, row(700)..).next().unwrap().is_ok());
    assert!(cold_reads() < 12, "{}", cold_reads());
    // A long walk would leave the records, and read the log in one piece.
    let mut rows = 0;
    for begin in (0..ROWS / 2).step_by(150) {
        let mut range = snapshot.range(&table, row(begin)..row(begin + 150));
        while let Some((key, _)) = range.next_row().unwrap() {
            assert_eq!(key, row(rows));
            rows += 1;
        }
    }
    let rest = db.transact(|tx| Ok(tx.range(&table, row(ROWS / 2)..).limit(ROWS as usize).count()));
    assert_eq!((rows, rest.unwrap().forget() as u32), (ROWS / 2, ROWS - ROWS / 2));
    assert!(cold_reads() < u64::from(ROWS) && read() >= u64::from(ROWS), "{} of {}", cold_reads(), read());
    let after = db.statistics();
    // By whoever reads ahead, so that whoever reads the row finds it in the cache; but for a few that had nothing beside them.
    assert!(after.cache_hits - before.cache_hits >= u64::from(ROWS - ROWS / 50), "{after:?}");
    assert_eq!(after.reads_in_flight, 0);
}

/// Whatever had settled and was written again counted twice.
#[test]
fn rows_that_were_written_again_since_they_have_settled_are_estimated_once() {
    let db = manual().memory(64 << 20).open_on(Arc::new(SimulatedDevice::new(seed()))).unwrap();
    let name = |number: u32| format!("{number:05}");
    let table = db.table("table").unwrap();
    let put = |number, value: &str| db.put(&table, name(number), value).unwrap().forget();
    (0..20_000).for_each(|number| put(number, "value"));
    db.persist().unwrap();
    assert_eq!(db.settle().unwrap(), 20_000);
    (0..8_000).for_each(|number| put(number, "another"));
    // Few rows are counted.
    assert_eq!(table.len_estimate(name(100)..name(300)), 200);
    assert_eq!(table.len_estimate(name(7_900)..name(8_100)), 200);
    let close_to = |expected: u64, estimate: u64| expected.abs_diff(estimate) <= expected / 50;
    for (from, to) in [(0, 8_000), (0, 20_000), (4_000, 12_000)] {
        let (expected, estimate) = (u64::from(to - from), table.len_estimate(name(from)..name(to)));
        assert!(close_to(expected, estimate), "{estimate} of {expected} rows");
    }
    // New ones beside them count.
    (20_000..50_000).for_each(|number| put(number, "new"));
    let estimate = table.len_estimate::<&[u8]>(..);
    assert!((25_000..=100_000).contains(&estimate), "{estimate}");
}
