//! C2: leaves that ranges of snapshots read again and again are copied. Whatever becomes of their rows, each range sees what its snapshot sees.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use kiln::device::SimulatedDevice;
use kiln::{Expiry, Kiln, Options, Snapshot, Table};

use crate::support::{Random, manual};
use crate::testing::{budget, seed};

type Rows = BTreeMap<Vec<u8>, Vec<u8>>;

const ROWS: usize = 150;

/// Some do not fit into the heads that a leaf has of them.
fn key(number: usize) -> Vec<u8> {
    match number % 4 {
        0 => format!("key {number:03} that is a long one").into_bytes(),
        _ => format!("key {number:03}").into_bytes(),
    }
}

/// With room for the images of all leaves.
fn roomy() -> Options {
    manual().memory(2 << 20)
}

fn open(options: &Options) -> (Kiln, Table) {
    let db = options.open_on(Arc::new(SimulatedDevice::new(seed()))).unwrap();
    let table = db.table("table").unwrap();
    (db, table)
}

/// Reads all rows, as long as leaves are copied because of that.
fn read_often(db: &Kiln, table: &Table, rows: &Rows) {
    for _ in 0..8 {
        let before = db.statistics().leaves_copied;
        for _ in 0..20 {
            check(&db.snapshot().unwrap(), table, rows, 0, (false, usize::MAX));
        }
        if db.statistics().leaves_copied == before {
            return;
        }
    }
}

/// A range from the row with this rank on sees what it should.
fn check(snapshot: &Snapshot<'_>, table: &Table, rows: &Rows, from: usize, (reverse, limit): (bool, usize)) {
    let first = rows.keys().nth(from).cloned().unwrap_or_default();
    let mut expected: Vec<_> = rows.range(first.clone()..).collect();
    let range = snapshot.range(table, first..).limit(limit);
    let mut range = if reverse { range.reverse() } else { range };
    if reverse {
        expected.reverse();
    }
    expected.truncate(limit);
    for (key, value) in expected {
        let row = range.next_row().unwrap();
        assert_eq!(row, Some((&key[..], &value[..])), "as of {:?}, {reverse}", snapshot.version());
    }
    assert_eq!(range.next_row().unwrap(), None);
}

/// Changes a row, in one of the ways that there are; nothing if it does not exist and is not to.
fn change(db: &Kiln, table: &Table, rows: &mut Rows, random: &mut Random) {
    // Some are new.
    let (number, length) = (random.below(ROWS + ROWS / 4), random.below(60));
    let (key, value) = (key(number), random.bytes(length));
    let new = Some(value.clone());
    match random.below(9) {
        0 => db.put_many(table, &[(&key, &value)]).unwrap().forget(),
        1 => db.transact(|tx| tx.put(table, &key, &value)).unwrap().forget(),
        2 => db.put_expiring(table, &key, &value, Expiry::At(u64::MAX)).unwrap().forget(),
        3 => {
            let old = rows.get(&key).map(Vec::as_slice);
            assert!(db.compare_and_set(table, &key, old, Some(&value[..])).unwrap().forget());
        }
        4 => db.update(table, &key, |_| new.clone()).unwrap().forget(),
        5 => {
            db.delete(table, &key).unwrap().forget();
            rows.remove(&key);
            return;
        }
        _ => db.put(table, &key, &value).unwrap().forget(),
    }
    rows.insert(key, value);
}

fn fill(db: &Kiln, table: &Table, random: &mut Random) -> Rows {
    let mut rows = Rows::new();
    for number in 0..ROWS {
        rows.insert(key(number), random.bytes(number % 90));
    }
    // In no order.
    for (key, value) in rows.iter().rev().step_by(2).chain(rows.iter().rev().skip(1).step_by(2)) {
        db.put(table, key, value).unwrap().forget();
    }
    rows
}

#[test]
fn c2_a_range_of_a_snapshot_sees_what_was_changed_after_its_leaf_was_copied() {
    let (db, table) = open(&roomy());
    let mut random = Random::new(seed());
    let mut rows = fill(&db, &table, &mut random);
    let (mut copied, mut older) = (0, None);
    for _ in 0..budget(60) {
        let before = db.statistics().leaves_copied;
        read_often(&db, &table, &rows);
        copied += db.statistics().leaves_copied - before;
        for _ in 0..random.below(4) {
            change(&db, &table, &mut rows, &mut random);
            let snapshot = db.snapshot().unwrap();
            let limit = if random.one_in(2) { usize::MAX } else { random.below(70) };
            check(&snapshot, &table, &rows, random.below(ROWS), (random.one_in(2), limit));
            check(&snapshot, &table, &rows, 0, (random.one_in(2), usize::MAX));
        }
        if let Some((snapshot, rows)) = older.as_ref().filter(|_| random.one_in(2)) {
            check(snapshot, &table, rows, random.below(ROWS), (random.one_in(2), usize::MAX));
        }
        match random.below(6) {
            0 => older = Some((db.snapshot().unwrap(), rows.clone())),
            1 => older = None,
            2 => {
                older = None;
                db.settle().unwrap();
            }
            _ => db.persist().unwrap(),
        }
    }
    assert!(copied >= budget(11), "only {copied} leaves were copied");
    drop(older);
    let report = db.check().unwrap();
    assert!(report.problems.is_empty(), "{report}");
}

/// Ranges from every row, both ways, and with limits, see what they should.
fn check_everywhere(db: &Kiln, table: &Table, rows: &Rows) {
    let snapshot = db.snapshot().unwrap();
    for from in 0..rows.len() {
        for limit in [1, 3, 20, usize::MAX] {
            check(&snapshot, table, rows, from, (false, limit));
        }
    }
    for limit in 1..rows.len() {
        check(&snapshot, table, rows, 0, (true, limit));
    }
    for (from, key) in rows.keys().enumerate() {
        // Up to a row and behind it, the row itself in and out.
        let expected: Vec<_> = rows.keys().take(from + 1).rev().cloned().collect();
        let reverse =
            |range: kiln::SnapshotRange<'_>| range.reverse().map(|row| row.unwrap().0).collect::<Vec<_>>();
        assert!(reverse(snapshot.range(table, ..=key.clone())) == expected);
        assert!(reverse(snapshot.range(table, ..key.clone())) == expected[1..]);
        let behind: Vec<_> = snapshot
            .range(table, (Bound::Excluded(key.clone()), Bound::Unbounded))
            .map(|row| row.unwrap().0)
            .collect();
        assert!(rows.keys().skip(from + 1).eq(&behind));
    }
}

/// What has settled in a leaf's interval is copied with the leaf's own rows, if it is little.
#[test]
fn c2_a_range_of_a_snapshot_sees_what_has_settled_between_the_rows_of_a_copied_leaf() {
    let (db, table) = open(&roomy());
    let mut random = Random::new(seed());
    let mut rows = fill(&db, &table, &mut random);
    for one_in in [2, 6, 1, 12, 3] {
        db.persist().unwrap();
        db.settle().unwrap();
        for (number, value) in rows.values_mut().enumerate() {
            if random.one_in(one_in) {
                *value = random.bytes(number % 70);
            }
        }
        for (key, value) in &rows {
            if db.get(&table, key).unwrap().as_ref() != Some(value) {
                db.put(&table, key, value).unwrap().forget();
            }
        }
        let copied = db.statistics().leaves_copied;
        // The fewer a leaf's own rows are, the more often it is to be read.
        for _ in 0..250 {
            check(&db.snapshot().unwrap(), &table, &rows, 0, (false, usize::MAX));
        }
        assert_ne!(db.statistics().leaves_copied, copied, "one in {one_in}");
        check_everywhere(&db, &table, &rows);
        // Rows that have settled are written and deleted, and some come between them. Each time the other leaves still have images.
        for _ in 0..budget(20) {
            change(&db, &table, &mut rows, &mut random);
            check(&db.snapshot().unwrap(), &table, &rows, 0, (false, usize::MAX));
            check(&db.snapshot().unwrap(), &table, &rows, 0, (true, usize::MAX));
        }
        check_everywhere(&db, &table, &rows);
    }
}

/// A leaf takes its neighbours' intervals over once all their rows have settled, and does not change itself.
#[test]
fn c2_a_range_of_a_snapshot_sees_what_has_settled_where_a_copied_leaf_has_taken_over_its_neighbours() {
    // What settles takes no memory from images.
    let (db, table) = open(&manual().memory(16 << 20));
    let mut random = Random::new(seed());
    let mut rows = fill(&db, &table, &mut random);
    db.persist().unwrap();
    assert_eq!(db.settle().unwrap(), ROWS as u64);
    // What is to settle next. Segments settle as a whole.
    let (other, map) = (db.table("other").unwrap(), db.map("map").unwrap());
    for number in 0..100_u32 {
        db.put(&other, number.to_be_bytes(), "").unwrap().forget();
        db.put(&map, number.to_be_bytes(), [0; 4 << 10]).unwrap().forget();
    }
    db.persist().unwrap();
    let older = db.snapshot().unwrap();
    let first = random.below(ROWS - 20);
    for (key, value) in rows.iter_mut().skip(first).take(20) {
        *value = random.bytes(30);
        db.put(&table, key, &value).unwrap().forget();
    }
    db.persist().unwrap();
    read_often(&db, &table, &rows);
    let copied = db.statistics().leaves_copied;
    assert_ne!(copied, 0);
    // What the snapshot must not see stays. Leaves that are empty go.
    assert_ne!(db.settle().unwrap(), 0);
    check_everywhere(&db, &table, &rows);
    drop(older);
}

/// Of a leaf there are no more rows at hand than were wanted when it was read.
#[test]
fn c2_a_range_of_a_snapshot_whose_limit_is_raised_goes_on_with_the_next_row() {
    let (db, table) = open(&roomy());
    let mut random = Random::new(seed());
    let rows = fill(&db, &table, &mut random);
    read_often(&db, &table, &rows);
    assert_ne!(db.statistics().leaves_copied, 0);
    let snapshot = db.snapshot().unwrap();
    for reverse in [false, true] {
        let range = snapshot.range::<&[u8]>(&table, ..).limit(3);
        let mut range = if reverse { range.reverse() } else { range };
        let mut met = Vec::new();
        loop {
            let some = range.by_ref().map(|row| row.unwrap().0).collect::<Vec<_>>();
            if some.is_empty() {
                break;
            }
            met.extend(some);
            range = range.limit(1 + random.below(40));
        }
        let mut expected: Vec<_> = rows.keys().cloned().collect();
        if reverse {
            expected.reverse();
        }
        assert!(met == expected, "{} of {} rows", met.len(), expected.len());
    }
}

/// Of a record that has left memory nobody notes that it is superseded.
#[test]
fn c2_a_range_of_a_snapshot_sees_what_was_changed_after_the_copied_records_had_left_memory() {
    let (db, table) = open(&roomy().settle_log_bytes(0));
    let map = db.map("map").unwrap();
    let mut random = Random::new(seed());
    let mut rows = fill(&db, &table, &mut random);
    db.persist().unwrap();
    read_often(&db, &table, &rows);
    assert_ne!(db.statistics().leaves_copied, 0);
    let tail = db.statistics().log_tail;
    let mut number = 0_u64;
    while db.statistics().log_head < tail {
        db.put(&map, number.to_le_bytes(), [0; 10_000]).unwrap().forget();
        number += 1;
        if number.is_multiple_of(16) {
            db.persist().unwrap();
        }
    }
    for (number, (key, value)) in rows.iter_mut().enumerate() {
        *value = number.to_le_bytes().to_vec();
        db.put(&table, key, &value).unwrap().forget();
    }
    check(&db.snapshot().unwrap(), &table, &rows, 0, (false, usize::MAX));
}

/// Sums are whole, whoever copies leaves, and changes rows, at the same time.
#[test]
fn c2_ranges_of_snapshots_see_whole_commits_while_leaves_are_copied() {
    const SUM: i64 = 150 * 100;
    let options = Options::new().segment_bytes(64 << 10).memory(8 << 20);
    let (db, table) = open(&options);
    let number = |value: &[u8]| i64::from_le_bytes(value.try_into().unwrap());
    for row in 0..ROWS {
        db.put(&table, key(row), 100_i64.to_le_bytes()).unwrap().forget();
    }
    let is_done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for reader in 0..2 {
            let (db, table, is_done) = (&db, &table, &is_done);
            scope.spawn(move || {
                while !is_done.load(Ordering::Relaxed) {
                    let snapshot = db.snapshot().unwrap();
                    let range = snapshot.range::<&[u8]>(table, ..);
                    let mut range = if reader == 0 { range } else { range.reverse() };
                    let (mut sum, mut rows) = (0, 0);
                    while let Some((_, value)) = range.next_row().unwrap() {
                        (sum, rows) = (sum + number(value), rows + 1);
                    }
                    assert_eq!((rows, sum), (ROWS, SUM));
                }
            });
        }
        let mut random = Random::new(seed());
        for _ in 0..budget(400) {
            // Time for some leaves to be copied.
            let before = db.statistics().leaves_copied;
            for _ in 0..50 {
                if db.statistics().leaves_copied > before {
                    break;
                }
                std::thread::sleep(std::time::Duration::from_micros(200));
            }
            for _ in 0..random.below(20) {
                let (from, to, by) = (random.below(ROWS), random.below(ROWS), random.below(50) as i64);
                let moved = db.transact(|tx| {
                    tx.add(&table, key(from), -by)?;
                    tx.add(&table, key(to), by)
                });
                moved.unwrap().forget();
            }
        }
        is_done.store(true, Ordering::Relaxed);
    });
    assert!(db.statistics().leaves_copied >= budget(21), "{:?}", db.statistics());
}
