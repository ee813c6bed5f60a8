//! C2: a range of a snapshot remembers where it has found records, and reads rows some at a time. Whatever has become of the records since,
//! each range sees what its snapshot sees.

use std::collections::BTreeMap;
use std::sync::Arc;

use kiln::device::SimulatedDevice;
use kiln::{Expiry, Kiln, Object, Options, Snapshot, Table};

use crate::crash::reopen;
use crate::support::{Random, manual};
use crate::testing::seed;

type Rows = BTreeMap<Vec<u8>, Vec<u8>>;

/// A few leaves' worth; some keys do not fit into the heads that a leaf has of them.
fn key(random: &mut Random) -> Vec<u8> {
    let number = random.below(120);
    match number % 4 {
        0 => format!("key {number:03} that is a long one").into_bytes(),
        _ => format!("key {number:03}").into_bytes(),
    }
}

/// Mostly short; some are not read with the rows beside them.
fn value(random: &mut Random) -> Vec<u8> {
    let length = if random.one_in(30) { 1_500 } else { random.below(90) };
    random.bytes(length)
}

/// A range from somewhere to somewhere, forward or back, which may go on elsewhere in between.
fn check(snapshot: &Snapshot<'_>, table: &Table, rows: &Rows, random: &mut Random) {
    let (mut first, mut last) = (key(random), key(random));
    if first > last {
        std::mem::swap(&mut first, &mut last);
    }
    let (reverse, limit) = (random.one_in(3), if random.one_in(2) { usize::MAX } else { random.below(50) });
    let range = snapshot.range(table, first.clone()..=last.clone()).limit(limit);
    let mut range = if reverse { range.reverse() } else { range };
    let mut expected: Vec<_> = rows.range(first..=last).collect();
    if reverse {
        expected.reverse();
    }
    let (mut expected, mut given) = (&expected[..], 0);
    while let Some((key, value)) = range.next_row().unwrap() {
        let Some(((expected_key, expected_value), rest)) = expected.split_first() else {
            panic!("a row too many: {key:?}")
        };
        assert_eq!((key, value), (&expected_key[..], &expected_value[..]), "as of {:?}", snapshot.version());
        (expected, given) = (rest, given + 1);
        if random.one_in(40) && expected.len() > 3 {
            let at = random.below(expected.len());
            range.seek(expected[at].0);
            expected = &expected[at..];
        }
    }
    assert!(expected.is_empty() || given == limit, "rows from {:?} on are missing", expected[0].0);
}

fn write(db: &Kiln, table: &Table, rows: &mut Rows, random: &mut Random) {
    let (key, value) = (key(random), value(random));
    let choice = random.below(16);
    let expiry = match choice {
        // It has expired when it is put.
        4 => Expiry::At(1),
        5 => Expiry::At(u64::MAX),
        _ => Expiry::Never,
    };
    if choice < 4 {
        db.delete(table, &key).unwrap().forget();
    } else {
        db.put_expiring(table, &key, &value, expiry).unwrap().forget();
    }
    match choice {
        0..=4 => rows.remove(&key),
        _ => rows.insert(key, value),
    };
}

/// Records are superseded, deleted, expired, forgotten, settled and read from a disk; keys come and go beside others; and the database is opened anew.
#[test]
fn c2_a_range_of_a_snapshot_sees_what_the_snapshot_sees_wherever_records_were_before() {
    let device = SimulatedDevice::new(seed());
    let mut random = Random::new(seed());
    let mut rows = Rows::new();
    for _ in 0..4 {
        let db = reopen(&device).unwrap();
        let table = db.table("table").unwrap();
        let mut snapshots: Vec<(Snapshot<'_>, Rows)> = Vec::new();
        for _ in 0..400 {
            match random.below(20) {
                0..8 => (0..random.below(6)).for_each(|_| write(&db, &table, &mut rows, &mut random)),
                8 => db.persist().unwrap(),
                9 => {
                    db.settle().unwrap();
                }
                10 => snapshots.push((db.snapshot().unwrap(), rows.clone())),
                11 => drop(snapshots.pop()),
                12..14 if !snapshots.is_empty() => {
                    let at = random.below(snapshots.len());
                    let (snapshot, rows) = &snapshots[at];
                    check(snapshot, &table, rows, &mut random);
                }
                _ => check(&db.snapshot().unwrap(), &table, &rows, &mut random),
            }
        }
        drop(snapshots);
        db.close().unwrap();
    }
}

/// What is written anew, to be kept in memory, leaves a record behind that nothing supersedes any more, and that is in memory for a while.
#[test]
fn c2_a_range_of_a_snapshot_sees_what_was_written_anew_and_changed_since() {
    const KEYS: u32 = 1_200;
    let options: Options = manual().segment_bytes(16 << 10).memory(160 << 10).checkpoint_log_bytes(0);
    let db = options.open_on(Arc::new(SimulatedDevice::new(seed()))).unwrap();
    let table = db.table("table").unwrap();
    let (mut random, mut expected) = (Random::new(seed()), vec![0_u64; KEYS as usize]);
    let put = |key: u32, value: u64| db.put(&table, key.to_be_bytes(), value.to_le_bytes()).unwrap().forget();
    (0..KEYS).for_each(|key| put(key, 0));
    db.persist().unwrap();
    for number in 1..=8_000_u64 {
        let key = random.below(KEYS as usize) as u32;
        put(key, number);
        expected[key as usize] = number;
        if number % 20 == 0 {
            let snapshot = db.snapshot().unwrap();
            let first = random.below(KEYS as usize) as u32;
            let mut range = snapshot.range(&table, first.to_be_bytes()..).limit(100);
            for (key, value) in (first..KEYS).zip(&expected[first as usize..]).take(100) {
                let row = range.next_row().unwrap();
                assert_eq!(row, Some((&key.to_be_bytes()[..], &value.to_le_bytes()[..])), "after {number}");
            }
        }
    }
    let statistics = db.statistics();
    assert!(statistics.records_rewritten > u64::from(KEYS), "{statistics:?}");
    assert_eq!(table.len(), u64::from(KEYS));
}

/// Once all rows have settled a snapshot's range looks at nothing else. Rows that come, change or go then are in memory again.
#[test]
fn c2_a_range_of_a_snapshot_sees_what_came_and_went_after_all_had_settled() {
    let device = SimulatedDevice::new(seed());
    let mut random = Random::new(seed());
    let mut rows = Rows::new();
    for _ in 0..3 {
        let db = reopen(&device).unwrap();
        let table = db.table("table").unwrap();
        for _ in 0..20 {
            let (before, rows_before) = (db.snapshot().unwrap(), rows.clone());
            (0..10).for_each(|_| write(&db, &table, &mut rows, &mut random));
            check(&before, &table, &rows_before, &mut random);
            drop(before);
            db.persist().unwrap();
            db.settle().unwrap();
            let (settled, rows_settled) = (db.snapshot().unwrap(), rows.clone());
            (0..3).for_each(|_| check(&settled, &table, &rows, &mut random));
            for _ in 0..3 {
                write(&db, &table, &mut rows, &mut random);
                (0..3).for_each(|_| check(&db.snapshot().unwrap(), &table, &rows, &mut random));
                check(&settled, &table, &rows_settled, &mut random);
            }
        }
        db.close().unwrap();
    }
}
