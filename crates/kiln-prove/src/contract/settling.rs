//! Settling: rows that have left the log for the tree are what they were, to everybody, also after a crash.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use kiln::device::{Fault, FaultKind, Keep, OperationKind, SimulatedDevice};
use kiln::{Isolation, Kiln, Object, Table};

use crate::crash::reopen;
use crate::support::{copy_of, manual};
use crate::testing::seed;

pub(super) type Rows = BTreeMap<Vec<u8>, Vec<u8>>;

pub(super) fn key(number: u32) -> Vec<u8> {
    format!("key {number:05}").into_bytes()
}

pub(super) fn value(number: u32, round: u32) -> Vec<u8> {
    format!("value {number} of round {round}").into_bytes()
}

/// A database whose table "table" has these rows, all of them durable, and nothing else.
fn durable(disk: &SimulatedDevice, rows: &Rows) -> (Kiln, Table) {
    let db = manual().open_on(Arc::new(disk.clone())).unwrap();
    let table = db.table("table").unwrap();
    for (key, value) in rows {
        db.put(&table, key, value).unwrap().forget();
    }
    db.persist().unwrap();
    (db, table)
}

/// The same, and all of them have settled.
fn settled(disk: &SimulatedDevice, rows: &Rows) -> (Kiln, Table) {
    let (db, table) = durable(disk, rows);
    assert_eq!(db.settle().unwrap(), rows.len() as u64);
    (db, table)
}

pub(super) fn some_rows(count: u32) -> Rows {
    (0..count).map(|number| (key(number), value(number, 0))).collect()
}

/// Everything that the table can be asked says that it has these rows.
pub(super) fn assert_rows(db: &Kiln, table: &Table, rows: &Rows) {
    assert_eq!(table.len(), rows.len() as u64);
    let expected: Vec<_> = rows.clone().into_iter().collect();
    let snapshot = db.snapshot().unwrap();
    let forwards: Vec<_> = snapshot.range::<&[u8]>(table, ..).map(Result::unwrap).collect();
    assert!(forwards == expected, "a snapshot's range is not what it should be");
    let mut backwards: Vec<_> = snapshot.range::<&[u8]>(table, ..).reverse().map(Result::unwrap).collect();
    backwards.reverse();
    assert!(backwards == expected, "a snapshot's range backwards is not what it should be");
    let (forwards, mut backwards) = db
        .transact(|tx| {
            let forwards: Vec<_> = tx.range::<&[u8]>(table, ..).collect::<Result<_, _>>()?;
            let backwards: Vec<_> = tx.range::<&[u8]>(table, ..).reverse().collect::<Result<_, _>>()?;
            Ok((forwards, backwards))
        })
        .unwrap()
        .forget();
    backwards.reverse();
    assert!(forwards == expected && backwards == expected, "a transaction's range is not what it should be");
    for (key, value) in rows {
        assert_eq!(db.get(table, key).unwrap().as_ref(), Some(value));
        assert_eq!(snapshot.get(table, key).unwrap().as_ref(), Some(value));
    }
    drop(snapshot);
    assert_clean(db);
}

#[track_caller]
pub(super) fn assert_clean(db: &Kiln) {
    let check = db.check().unwrap();
    assert!(check.is_clean(), "{check}");
}

/// The same after a crash that takes what is not durable, with the checkpoint, if there is one, and without.
pub(super) fn assert_rows_after_crash(disk: &SimulatedDevice, rows: &Rows) {
    let crashed = disk.after_crash(&mut |_| Keep::Lost);
    let db = reopen(&copy_of(&crashed)).unwrap();
    assert_rows(&db, &db.table("table").unwrap(), rows);
    drop(db);
    for name in kiln::device::Device::list(&crashed).unwrap() {
        if name.starts_with("checkpoint-") {
            let mut bytes = crashed.bytes(&name);
            bytes[16] ^= 1;
            crashed.set_bytes(&name, bytes);
        }
    }
    let db = reopen(&crashed).unwrap();
    assert_rows(&db, &db.table("table").unwrap(), rows);
}

/// Nothing settled before something had hardened since, and it said that there was nothing to settle.
#[test]
fn c4_what_had_not_settled_when_the_database_was_opened_settles_when_asked() {
    let (rows, disk) = (some_rows(200), SimulatedDevice::new(seed()));
    let (db, _) = durable(&disk, &rows);
    let crashed = disk.after_crash(&mut |_| Keep::Lost);
    db.close().unwrap();
    for disk in [disk, crashed] {
        let db = reopen(&disk).unwrap();
        assert_eq!(db.settle().unwrap(), rows.len() as u64);
        assert_eq!(db.settle().unwrap(), 0);
        assert_rows(&db, &db.table("table").unwrap(), &rows);
        assert_rows_after_crash(&disk, &rows);
    }
}

#[test]
fn c1_settled_rows_are_read_written_and_deleted_like_others() {
    let disk = SimulatedDevice::new(seed());
    let mut rows = some_rows(500);
    let (db, table) = settled(&disk, &rows);
    assert_rows(&db, &table, &rows);
    for number in 0..500 {
        match number % 5 {
            0 => {
                assert!(db.delete(&table, key(number)).unwrap().forget());
                rows.remove(&key(number));
            }
            1 => {
                db.put(&table, key(number), value(number, 1)).unwrap().forget();
                rows.insert(key(number), value(number, 1));
            }
            2 => {
                let changed = db.transact(|tx| {
                    let old = tx.get(&table, key(number))?;
                    assert_eq!(old, Some(value(number, 0)));
                    tx.delete(&table, key(number))?;
                    tx.put(&table, key(number), value(number, 2))
                });
                changed.unwrap().forget();
                rows.insert(key(number), value(number, 2));
            }
            _ => {}
        }
    }
    assert!(!db.delete(&table, key(0)).unwrap().forget(), "it is deleted already");
    assert_rows(&db, &table, &rows);
    db.persist().unwrap();
    assert_rows_after_crash(&disk, &rows);
    assert!(db.settle().unwrap() > 0);
    assert_rows(&db, &table, &rows);
    assert_rows_after_crash(&disk, &rows);
    // Those that were deleted come again.
    for number in (0..500).step_by(5) {
        db.put(&table, key(number), value(number, 3)).unwrap().forget();
        rows.insert(key(number), value(number, 3));
    }
    assert_rows(&db, &table, &rows);
    db.persist().unwrap();
    db.checkpoint().unwrap();
    assert_rows_after_crash(&disk, &rows);
    assert!(db.settle().unwrap() > 0);
    assert_rows_after_crash(&disk, &rows);
}

#[test]
fn c2_ranges_over_settled_and_other_rows_seek_end_and_count_as_they_should() {
    let disk = SimulatedDevice::new(seed());
    let mut rows = some_rows(600);
    let (db, table) = settled(&disk, &rows);
    // Neighbours of all kinds: settled only, written since, deleted since, new.
    for number in 0..600 {
        match number % 7 {
            0 => db.put(&table, key(number), value(number, 1)).unwrap().forget(),
            1 => drop(db.delete(&table, key(number)).unwrap().forget()),
            2 => db.put(&table, [key(number), b"+".to_vec()].concat(), b"new").unwrap().forget(),
            _ => continue,
        }
        match number % 7 {
            0 => drop(rows.insert(key(number), value(number, 1))),
            1 => drop(rows.remove(&key(number))),
            _ => drop(rows.insert([key(number), b"+".to_vec()].concat(), b"new".to_vec())),
        }
    }
    assert_rows(&db, &table, &rows);
    let bounds = |from: u32, to: u32| (Bound::Excluded(key(from)), Bound::Included(key(to)));
    for (from, to) in [(0, 599), (13, 14), (14, 400), (350, 350), (597, 700), (100, 50)] {
        let expected: Vec<_> = match from <= to {
            true => rows.range(bounds(from, to.max(from + 1))).filter(|(at, _)| **at <= key(to)).collect(),
            false => Vec::new(),
        };
        for limit in [usize::MAX, 3] {
            let tx = db.begin().unwrap();
            let forwards: Vec<_> =
                tx.range(&table, bounds(from, to)).limit(limit).map(Result::unwrap).collect();
            let backwards: Vec<_> =
                tx.range(&table, bounds(from, to)).reverse().limit(limit).map(Result::unwrap).collect();
            let lent = |rows: &[(Vec<u8>, Vec<u8>)], reverse: bool| {
                let expected: Vec<_> = match reverse {
                    false => expected.iter().take(limit).map(|(k, v)| ((*k).clone(), (*v).clone())).collect(),
                    true => {
                        expected.iter().rev().take(limit).map(|(k, v)| ((*k).clone(), (*v).clone())).collect()
                    }
                };
                assert!(rows == expected, "{from} to {to}, reverse {reverse}");
            };
            lent(&forwards, false);
            lent(&backwards, true);
        }
    }
    for reverse in [false, true] {
        let tx = db.begin().unwrap();
        let mut range = tx.range::<&[u8]>(&table, ..);
        if reverse {
            range = range.reverse();
        }
        for number in [300, 10, 580, 301, 300, 0, 599] {
            range.seek(key(number));
            let expected: Vec<_> = match reverse {
                false => rows.range(key(number)..).take(4).collect(),
                true => rows.range(..=key(number)).rev().take(4).collect(),
            };
            for (expected_key, expected_value) in expected {
                let (found_key, found_value) = range.next_row().unwrap().unwrap();
                assert!(found_key == expected_key && found_value == expected_value, "from {number}");
            }
        }
    }
}

#[test]
fn c2_a_transaction_meets_its_own_writes_among_settled_rows() {
    let disk = SimulatedDevice::new(seed());
    let mut rows = some_rows(100);
    let (db, table) = settled(&disk, &rows);
    let tx = db.begin().unwrap();
    for number in 0..100 {
        match number % 4 {
            0 => {
                tx.put(&table, key(number), value(number, 1)).unwrap();
                rows.insert(key(number), value(number, 1));
            }
            1 => {
                assert!(tx.delete(&table, key(number)).unwrap());
                rows.remove(&key(number));
            }
            2 => {
                let new = [key(number), b"+".to_vec()].concat();
                tx.put(&table, &new, b"new").unwrap();
                rows.insert(new, b"new".to_vec());
            }
            _ => {}
        }
    }
    let expected: Vec<_> = rows.clone().into_iter().collect();
    let forwards: Vec<_> = tx.range::<&[u8]>(&table, ..).map(Result::unwrap).collect();
    let mut backwards: Vec<_> = tx.range::<&[u8]>(&table, ..).reverse().map(Result::unwrap).collect();
    backwards.reverse();
    assert!(forwards == expected && backwards == expected);
    assert_eq!(
        tx.delete_range(&table, key(10)..key(20)).unwrap(),
        rows.range(key(10)..key(20)).count() as u64
    );
    rows.retain(|at, _| !(key(10)..key(20)).contains(at));
    tx.commit().unwrap().forget();
    assert_rows(&db, &table, &rows);
}

#[test]
fn c2_what_a_snapshot_must_not_see_yet_does_not_settle_while_it_is_open() {
    let disk = SimulatedDevice::new(seed());
    let rows = some_rows(50);
    let (db, table) = settled(&disk, &rows);
    let snapshot = db.snapshot().unwrap();
    let old = db.begin_with(Isolation::Snapshot).unwrap();
    assert_eq!(old.get(&table, key(1)).unwrap(), Some(value(1, 0)));
    db.delete(&table, key(0)).unwrap().forget();
    db.put(&table, key(1), value(1, 1)).unwrap().forget();
    db.put(&table, "new", "new").unwrap().forget();
    db.persist().unwrap();
    assert_eq!(db.settle().unwrap(), 0);
    let seen: Rows = snapshot.range::<&[u8]>(&table, ..).map(Result::unwrap).collect();
    assert!(seen == rows);
    let seen: Rows = old.range::<&[u8]>(&table, ..).map(Result::unwrap).collect();
    assert!(seen == rows);
    drop(snapshot);
    assert_eq!(db.settle().unwrap(), 0);
    drop(old);
    assert_eq!(db.settle().unwrap(), 3);
    assert_eq!(table.len(), 50);
}

#[test]
fn c2_writes_of_settled_rows_conflict_with_who_has_read_them() {
    let disk = SimulatedDevice::new(seed());
    let (db, table) = settled(&disk, &some_rows(50));
    type Read = fn(&kiln::Transaction<'_>, &Table);
    let reads: [Read; 3] = [
        |tx, table| assert!(tx.get(table, key(7)).unwrap().is_some()),
        |tx, table| assert_eq!(tx.range(table, key(5)..key(9)).count(), 4),
        |tx, table| assert_eq!(tx.range(table, key(5)..key(9)).reverse().count(), 4),
    ];
    type Write = fn(&Kiln, &Table);
    let writes: [Write; 2] = [
        |db, table| db.put(table, key(7), "other").unwrap().forget(),
        |db, table| assert!(db.delete(table, key(7)).unwrap().forget()),
    ];
    for read in reads {
        for write in writes {
            let tx = db.begin().unwrap();
            read(&tx, &table);
            tx.put(&table, "result", "read").unwrap();
            write(&db, &table);
            assert_eq!(tx.commit().unwrap_err().kind(), kiln::ErrorKind::Conflict);
            db.put(&table, key(7), "back").unwrap().forget();
            db.persist().unwrap();
            assert!(db.settle().unwrap() > 0);
        }
    }
}

/// Whoever read rows that settle meanwhile was told that they had changed, so a long transaction beside settling came to no end.
#[test]
fn c2_nobody_conflicts_with_rows_that_settle_as_they_were_read() {
    let disk = SimulatedDevice::new(seed());
    let (db, table) = settled(&disk, &some_rows(500));
    let mut rows = some_rows(2_000);
    for number in 500..2_000 {
        db.put(&table, key(number), value(number, 0)).unwrap().forget();
    }
    for number in (0..2_000).step_by(50) {
        db.delete(&table, key(number)).unwrap().forget();
        rows.remove(&key(number));
    }
    db.persist().unwrap();
    let expected: Vec<_> = rows.into_iter().collect();
    let serializable = || {
        let tx = db.begin().unwrap();
        assert_eq!(tx.get(&table, key(1_999)).unwrap(), Some(value(1_999, 0)));
        assert_eq!(tx.get(&table, key(0)).unwrap(), None);
        tx
    };
    let (tx, other) = (serializable(), serializable());
    let mut range = tx.range::<&[u8]>(&table, ..);
    let mut seen: Vec<_> = range.by_ref().take(700).map(Result::unwrap).collect();
    let mut backwards = other.range::<&[u8]>(&table, ..).reverse();
    let mut seen_backwards: Vec<_> = backwards.by_ref().take(700).map(Result::unwrap).collect();
    assert_eq!(db.settle().unwrap(), 1_480);
    seen.extend(range.map(Result::unwrap));
    assert!(seen == expected);
    seen_backwards.extend(backwards.map(Result::unwrap));
    seen_backwards.reverse();
    assert!(seen_backwards == expected);
    tx.put(&table, "result", "seen").unwrap();
    tx.commit().unwrap().forget();
    // What was written since does count.
    other.put(&table, "result", "seen").unwrap();
    assert_eq!(other.commit().unwrap_err().kind(), kiln::ErrorKind::Conflict);
}

/// A queue's churn: the leaves of deleted rows that had settled stayed, and whoever looked for the first row read all of them, each an entry of
/// the transaction.
#[test]
fn c2_who_looks_for_the_first_row_does_not_pass_what_was_deleted_and_has_settled() {
    const ROWS: u32 = 3_000;
    let disk = SimulatedDevice::new(seed());
    let db = manual().transaction_entries(30).open_on(Arc::new(disk)).unwrap();
    let table = db.table("table").unwrap();
    // Once the tree has had the rows, and once it has not.
    for settles_before in [true, false] {
        for number in 0..ROWS {
            db.put(&table, key(number), value(number, 0)).unwrap().forget();
        }
        db.persist().unwrap();
        if settles_before {
            assert_eq!(db.settle().unwrap(), u64::from(ROWS));
        }
        for number in 0..ROWS {
            assert!(db.delete(&table, key(number)).unwrap().forget());
        }
        db.put(&table, "last", "last").unwrap().forget();
        db.persist().unwrap();
        db.settle().unwrap();
        let found = db.transact(|tx| Ok([tx.first(&table)?, tx.last(&table)?])).unwrap().forget();
        let last = Some((b"last".to_vec(), b"last".to_vec()));
        assert_eq!(found, [last.clone(), last]);
    }
    assert!(db.check().unwrap().is_clean());
}

/// A removal leaves the key's bucket as it was, so an operation that has read the record, and finds the bucket unchanged, may not find the record
/// any more.
#[test]
fn c2_an_update_of_a_row_that_settles_in_between_is_made() {
    let disk = SimulatedDevice::new(seed());
    let (db, table) = settled(&disk, &some_rows(1));
    for is_there in [true, false] {
        db.put(&table, "row", "first").unwrap().safe().unwrap();
        if !is_there {
            assert!(db.delete(&table, "row").unwrap().safe().unwrap());
        }
        let mut runs = 0;
        let updated = db.update(&table, "row", |old| {
            assert_eq!(old, is_there.then_some(&b"first"[..]));
            runs += 1;
            assert_eq!(db.settle().unwrap(), 1);
            Some("second")
        });
        updated.unwrap().forget();
        // Its value is the same wherever it lies.
        assert_eq!((db.get(&table, "row").unwrap(), runs), (Some(b"second".to_vec()), 1));
    }
    assert!(db.check().unwrap().is_clean());
}

/// A new root that was written, and whose sync has failed, is there for the next who opens the database on the same machine; what
/// that one writes does not refer to the log's records that the root stands for.
#[test]
fn c4_a_root_that_was_found_is_durable_before_anything_relies_on_it() {
    let rows_of = |round| (0..20).map(|number| (key(number), value(number, round))).collect::<Rows>();
    for had_settled in [false, true] {
        let mut failed = 0;
        for nth in 1.. {
            let disk = SimulatedDevice::new(seed());
            let (db, table) = settled(&disk, &if had_settled { rows_of(0) } else { Rows::new() });
            for (key, value) in rows_of(1) {
                db.put(&table, key, value).unwrap().forget();
            }
            db.persist().unwrap();
            disk.inject(Fault { operation: OperationKind::Any, nth, kind: FaultKind::EIO, sticky: true });
            let is_settled = db.settle().is_ok();
            drop((db, table));
            disk.clear_faults();
            let db = reopen(&disk).unwrap();
            let table = db.table("table").unwrap();
            for (key, value) in rows_of(2) {
                db.put(&table, key, value).unwrap().forget();
            }
            db.persist().unwrap();
            assert_rows(&db, &table, &rows_of(2));
            disk.crash_after(disk.steps());
            drop((db, table));
            assert_rows_after_crash(&disk, &rows_of(2));
            if is_settled {
                break;
            }
            failed += 1;
        }
        assert!(failed > 4, "only {failed} operations were let fail");
    }
}

#[test]
fn c2_a_walk_does_not_go_on_with_rows_of_a_tree_that_has_become_empty() {
    // A transaction that has read a bucket in which something settles conflicts, and proves nothing.
    let proofs = (0..8).filter(|&attempt| walks_on_while_all_goes(seed() + attempt)).count();
    assert!(proofs > 0, "every transaction has conflicted");
}

/// Walks over other rows while the only settled ones, which are deleted, go. False if it conflicts.
fn walks_on_while_all_goes(seed: u64) -> bool {
    let disk = SimulatedDevice::new(seed);
    let rows: Rows = (900..903).map(|number| (key(number), value(number, 0))).collect();
    let (db, table) = settled(&disk, &rows);
    for number in 900..903 {
        db.delete(&table, key(number)).unwrap().forget();
    }
    db.persist().unwrap();
    // They are not durable, so that they do not settle with the deletions.
    for number in 0..300 {
        db.put(&table, key(number), value(number, 0)).unwrap().forget();
    }
    let tx = db.begin().unwrap();
    let mut range = tx.range::<&[u8]>(&table, ..);
    assert_eq!(range.next().unwrap().unwrap().0, key(0));
    assert_eq!(db.settle().unwrap(), 3);
    let seen: kiln::Result<Vec<_>> = range.collect();
    let outcome = seen.and_then(|seen| {
        assert_eq!(seen.len(), 299, "more than there is");
        tx.commit().map(|commit| commit.forget())
    });
    match outcome {
        Ok(()) => true,
        Err(error) => {
            assert_eq!(error.kind(), kiln::ErrorKind::Conflict);
            false
        }
    }
}

#[test]
fn c2_a_snapshot_reads_from_disk_what_has_settled_and_was_written_since() {
    let disk = SimulatedDevice::new(seed());
    // More than there is memory for pages.
    let options = kiln::Options::new().background(false).segment_bytes(64 << 10).memory(256 << 10);
    let db = options.open_on(Arc::new(disk)).unwrap();
    let table = db.table("table").unwrap();
    let long = |number: u32| vec![number as u8; 1_000];
    for number in 0..600 {
        db.put(&table, key(number), long(number)).unwrap().forget();
    }
    db.persist().unwrap();
    db.settle().unwrap();
    let snapshot = db.snapshot().unwrap();
    for number in 0..600 {
        db.put(&table, key(number), "newer").unwrap().forget();
    }
    for number in 0..600 {
        assert!(snapshot.get(&table, key(number)).unwrap() == Some(long(number)), "{number}");
    }
}

#[test]
fn c1_keys_and_values_of_all_lengths_settle() {
    let disk = SimulatedDevice::new(seed());
    let mut rows = Rows::new();
    for (number, length) in [0, 1, 2_000, 4_096, 8_200, 60_000, 200_000].into_iter().enumerate() {
        rows.insert(vec![b'v'; number], vec![number as u8; length]);
    }
    for length in [255, 32_767, 32_768, 65_532, 65_535] {
        rows.insert(vec![b'k'; length], vec![7; length / 3]);
        rows.insert([vec![b'l'; length - 1], vec![0]].concat(), vec![8; 3]);
    }
    let db = kiln::Options::new()
        .background(false)
        .segment_bytes(1 << 20)
        .memory(4 << 20)
        .open_on(Arc::new(disk.clone()))
        .unwrap();
    let table = db.table("table").unwrap();
    for (key, value) in &rows {
        db.put(&table, key, value).unwrap().forget();
    }
    db.persist().unwrap();
    assert_eq!(db.settle().unwrap(), rows.len() as u64);
    assert_rows(&db, &table, &rows);
    assert_rows_after_crash(&disk, &rows);
    for key in rows.keys() {
        assert!(db.delete(&table, key).unwrap().forget());
    }
    db.persist().unwrap();
    assert_eq!(db.settle().unwrap(), rows.len() as u64);
    assert_rows(&db, &table, &Rows::new());
    assert_rows_after_crash(&disk, &Rows::new());
}

#[test]
fn c1_tables_that_settle_do_not_mix_and_maps_stay() {
    let disk = SimulatedDevice::new(seed());
    let (db, table) = settled(&disk, &some_rows(20));
    let other = db.table("other").unwrap();
    let map = db.map("map").unwrap();
    for number in 0..20 {
        db.put(&other, key(number), value(number, 7)).unwrap().forget();
        db.put(&map, key(number), value(number, 8)).unwrap().forget();
    }
    db.put(&other, "", "empty").unwrap().forget();
    db.persist().unwrap();
    assert_eq!(db.settle().unwrap(), 21);
    let last = db.table("last").unwrap();
    db.put(&last, key(3), value(3, 9)).unwrap().safe().unwrap();
    assert_eq!(db.settle().unwrap(), 1);
    let mut expected: Rows = (0..20).map(|number| (key(number), value(number, 7))).collect();
    expected.insert(Vec::new(), b"empty".to_vec());
    assert_rows(&db, &table, &some_rows(20));
    assert_rows(&db, &other, &expected);
    assert_rows(&db, &last, &[(key(3), value(3, 9))].into());
    assert_eq!((map.len(), db.get(&map, key(3)).unwrap()), (20, Some(value(3, 8))));
    assert_rows_after_crash(&disk, &some_rows(20));
}

/// The version of a transaction that only reads is that of the newest row it has read: whoever depends on it waits for that one. A row that
/// has settled counted as if it had always been there, and in a range not at all.
#[test]
fn c4_who_reads_a_settled_row_is_no_older_than_who_wrote_it() {
    let disk = SimulatedDevice::new(seed());
    let mut written = kiln::Version::new(0);
    for _ in 0..2 {
        let db = reopen(&disk).unwrap();
        let table = db.table("table").unwrap();
        if written.number() == 0 {
            let commit = db.put(&table, "row", "settled").unwrap();
            written = commit.version();
            commit.safe().unwrap();
            assert_eq!(db.settle().unwrap(), 1);
        }
        for isolation in [Isolation::Serializable, Isolation::Snapshot] {
            let read = db.transact_with(isolation, |tx| tx.get(&table, "row")).unwrap();
            assert!(read.version() >= written, "{isolation:?}: {} reads {written}", read.version());
            assert_eq!(read.forget().unwrap(), b"settled");
            let read = db.transact_with(isolation, |tx| Ok(tx.range::<&str>(&table, ..).count())).unwrap();
            assert!(read.version() >= written, "a range, {isolation:?}: {} reads {written}", read.version());
            assert_eq!(read.forget(), 1);
        }
        let compared = db.compare_and_set(&table, "row", Some(b"another"), None).unwrap();
        assert!(compared.version() >= written, "a single operation: {} reads {written}", compared.version());
        assert!(!compared.forget());
    }
}
