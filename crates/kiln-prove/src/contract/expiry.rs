//! C1, C2, C4: a row that has expired is absent for everybody who reads from then on, wherever it lies, and none is before; and in the end it is gone.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use kiln::device::{Keep, SimulatedDevice};
use kiln::{ErrorKind, Expiry, Kiln, Level, Map, Object, Options, Table};

use crate::crash::reopen;
use crate::support::{Random, copy_of, manual};
use crate::testing::{budget, seed};

const START_MS: u64 = 1_000_000;

fn at(disk: &SimulatedDevice, after_start_ms: u64) {
    disk.set_time_ms(START_MS + after_start_ms);
}

fn until(after_start_ms: u64) -> Expiry {
    Expiry::At(START_MS + after_start_ms)
}

fn objects(db: &Kiln) -> (Table, Map) {
    (db.table("table").unwrap(), db.map("map").unwrap())
}

fn world() -> (SimulatedDevice, Kiln) {
    let disk = SimulatedDevice::new(seed());
    at(&disk, 0);
    let db = manual().open_on(Arc::new(disk.clone())).unwrap();
    (disk, db)
}

type Rows = BTreeMap<Vec<u8>, Vec<u8>>;

/// Everything that an object can be asked, but for its length, says that it has these rows.
#[track_caller]
fn assert_object<O: Object>(db: &Kiln, object: &O, rows: &Rows, keys: &[Vec<u8>], what: &str) {
    let snapshot = db.snapshot().unwrap();
    let tx = db.begin().unwrap();
    let mut into = Vec::new();
    for key in keys {
        let expected = rows.get(key);
        assert_eq!(db.get(object, key).unwrap().as_ref(), expected, "{what}: {key:?}");
        assert_eq!(db.get_into(object, key, &mut into).unwrap(), expected.is_some(), "{what}");
        assert_eq!(
            db.get_with(object, key, |value| value.map(<[u8]>::to_vec)).unwrap().as_ref(),
            expected,
            "{what}"
        );
        assert_eq!(db.get_async(object, key).wait().unwrap().as_ref(), expected, "{what}");
        assert_eq!(db.expiry(object, key).unwrap().is_some(), expected.is_some(), "{what}");
        assert_eq!(snapshot.get(object, key).unwrap().as_ref(), expected, "{what}");
        assert_eq!(snapshot.contains(object, key).unwrap(), expected.is_some(), "{what}");
        assert_eq!(tx.get(object, key).unwrap().as_ref(), expected, "{what}");
        assert_eq!(tx.contains(object, key).unwrap(), expected.is_some(), "{what}");
    }
    let mut many = Vec::new();
    db.get_many(object, keys, |_, value| many.push(value.map(<[u8]>::to_vec))).unwrap();
    let expected: Vec<_> = keys.iter().map(|key| rows.get(key).cloned()).collect();
    assert!(many == expected && tx.multi_get(object, keys).unwrap() == expected, "{what}: many at once");
}

#[track_caller]
fn assert_rows(db: &Kiln, rows: &Rows, keys: &[Vec<u8>], what: &str) {
    let (table, map) = objects(db);
    assert_object(db, &table, rows, keys, what);
    assert_object(db, &map, rows, keys, what);
    let expected: Vec<_> = rows.clone().into_iter().collect();
    let backwards: Vec<_> = expected.iter().rev().cloned().collect();
    let snapshot = db.snapshot().unwrap();
    let tx = db.begin().unwrap();
    let all = || tx.range::<&[u8]>(&table, ..);
    assert!(all().collect::<Result<Vec<_>, _>>().unwrap() == expected, "{what}: a range");
    assert!(all().reverse().collect::<Result<Vec<_>, _>>().unwrap() == backwards, "{what}: backwards");
    let all = || snapshot.range::<&[u8]>(&table, ..);
    assert!(all().collect::<Result<Vec<_>, _>>().unwrap() == expected, "{what}: a snapshot's range");
    assert!(all().reverse().collect::<Result<Vec<_>, _>>().unwrap() == backwards, "{what}: its range back");
    assert_eq!(tx.first(&table).unwrap().as_ref(), expected.first(), "{what}");
    assert_eq!(snapshot.last(&table).unwrap().as_ref(), expected.last(), "{what}");
    let two = tx.range::<&[u8]>(&table, ..).limit(2).collect::<Result<Vec<_>, _>>().unwrap();
    assert_eq!(two, expected[..expected.len().min(2)], "{what}");
    let walked: Rows = snapshot.iter(&map).map(Result::unwrap).collect();
    assert!(walked == *rows, "{what}: a map's walk");
    let (mut cursor, mut scanned) = (0, Rows::new());
    loop {
        let (next, pairs) = db.scan_map(&map, cursor, 10).unwrap();
        scanned.extend(pairs);
        cursor = next;
        if next == 0 {
            break;
        }
    }
    assert!(scanned == *rows, "{what}: a map's scan");
    drop(tx);
    assert_eq!((table.len(), map.len()), (rows.len() as u64, rows.len() as u64), "{what}");
}

fn key(number: usize) -> Vec<u8> {
    format!("key {number:03}").into_bytes()
}

/// Sixteen rows in a table and a map: the multiples of four stay, the others expire at 10, 20 and 30.
fn sixteen(db: &Kiln) -> (Rows, Vec<Vec<u8>>) {
    let (table, map) = objects(db);
    let keys: Vec<_> = (0..16).map(key).collect();
    let mut rows = Rows::new();
    for (number, key) in keys.iter().enumerate() {
        let value = vec![number as u8; 1 + number * 200];
        let expiry = if number % 4 == 0 { Expiry::Never } else { until(10 * (number as u64 % 4)) };
        db.put_expiring(&table, key, &value, expiry).unwrap().forget();
        db.put_expiring(&map, key, &value, expiry).unwrap().forget();
        rows.insert(key.clone(), value);
    }
    (rows, keys)
}

fn left_at(rows: &Rows, after_start_ms: usize) -> Rows {
    let is_left = |number: usize| number.is_multiple_of(4) || 10 * (number % 4) > after_start_ms;
    rows.iter()
        .enumerate()
        .filter(|(number, _)| is_left(*number))
        .map(|(_, (key, value))| (key.clone(), value.clone()))
        .collect()
}

#[test]
fn c2_a_row_that_has_expired_is_absent_wherever_it_lies_and_not_before() {
    for place in ["in memory", "settled", "after another opening", "after a crash"] {
        let (mut disk, mut db) = world();
        let (rows, keys) = sixteen(&db);
        db.persist().unwrap();
        if place == "settled" {
            assert_eq!(db.settle().unwrap(), 16);
        }
        for after_ms in [0, 9, 10, 20, 29, 30, 40] {
            at(&disk, after_ms);
            if place == "after another opening" {
                db.close().unwrap();
                db = reopen(&disk).unwrap();
            }
            if place == "after a crash" {
                // Who drops it first closes it.
                let crashed = disk.after_crash(&mut |_| Keep::Lost);
                drop(db);
                disk = crashed;
                at(&disk, after_ms);
                db = reopen(&disk).unwrap();
            }
            assert_rows(&db, &left_at(&rows, after_ms as usize), &keys, &format!("{place}, {after_ms} ms"));
        }
        assert_eq!(db.statistics().expired_rows, 0, "who reads deletes nothing: {place}");
        let check = db.check().unwrap();
        assert!(check.is_clean(), "{place}: {check}");
    }
}

#[test]
fn c2_what_depends_on_an_expired_value_takes_it_for_absent() {
    for settles in [false, true] {
        let (disk, db) = world();
        let table = db.table("table").unwrap();
        for number in 0..8 {
            db.put_expiring(&table, key(number), 5_i64.to_le_bytes(), until(10)).unwrap().forget();
        }
        db.persist().unwrap();
        if settles {
            db.settle().unwrap();
        }
        at(&disk, 10);
        assert!(!db.delete(&table, key(0)).unwrap().forget());
        assert_eq!(db.add(&table, key(1), 2).unwrap().forget(), 2);
        assert!(!db.compare_and_set(&table, key(2), Some(&5_i64.to_le_bytes()), None).unwrap().forget());
        assert!(db.compare_and_set(&table, key(2), None, Some(b"new")).unwrap().forget());
        db.update(&table, key(3), |old| old.map(<[u8]>::to_vec)).unwrap().forget();
        db.transact(|tx| {
            assert!(!tx.delete(&table, key(4))?);
            assert_eq!(tx.add(&table, key(5), 3)?, 3);
            assert!(tx.compare_and_set(&table, key(6), None, Some(b"new"))?);
            assert!(!tx.set_expiry(&table, key(7), Expiry::Never)?);
            Ok(())
        })
        .unwrap()
        .forget();
        let left: Vec<_> = [1, 2, 5, 6].map(key).into();
        let tx = db.begin().unwrap();
        let found = tx.range::<&[u8]>(&table, ..).map(|row| row.unwrap().0).collect::<Vec<_>>();
        drop(tx);
        assert_eq!(found, left);
        assert!(left.iter().all(|key| db.expiry(&table, key).unwrap() == Some(Expiry::Never)));
        assert_eq!(table.len(), 4);
        assert!(db.check().unwrap().is_clean());
    }
}

#[test]
fn c2_what_replaces_a_value_leaves_its_expiry_and_a_put_does_not() {
    let (disk, db) = world();
    let map = db.map("map").unwrap();
    let one = 1_i64.to_le_bytes();
    for number in 0..4 {
        db.put_expiring(&map, key(number), one, until(10)).unwrap().forget();
    }
    db.add(&map, key(0), 1).unwrap().forget();
    db.transact(|tx| tx.add(&map, key(1), 1)).unwrap().forget();
    db.put(&map, key(2), one).unwrap().forget();
    assert!(db.set_expiry(&map, key(3), until(20)).unwrap().forget());
    let expiries: Vec<_> = (0..4).map(|number| db.expiry(&map, key(number)).unwrap().unwrap()).collect();
    assert_eq!(expiries, [until(10), until(10), Expiry::Never, until(20)]);
    at(&disk, 15);
    let there: Vec<_> = (0..4).map(|number| db.get(&map, key(number)).unwrap().is_some()).collect();
    assert_eq!(there, [false, false, true, true]);
}

#[test]
fn c2_a_transaction_and_a_snapshot_see_all_rows_as_of_one_moment() {
    for settles in [false, true] {
        let (disk, db) = world();
        let (rows, keys) = sixteen(&db);
        let (table, map) = objects(&db);
        db.persist().unwrap();
        if settles {
            db.settle().unwrap();
        }
        let (tx, snapshot) = (db.begin().unwrap(), db.snapshot().unwrap());
        assert!(tx.contains(&table, &keys[1]).unwrap() && snapshot.contains(&table, &keys[1]).unwrap());
        at(&disk, 100);
        assert_eq!(db.get(&table, &keys[1]).unwrap(), None);
        assert!(tx.contains(&table, &keys[1]).unwrap() && tx.contains(&map, &keys[3]).unwrap());
        assert_eq!(tx.range::<&[u8]>(&table, ..).count(), rows.len());
        // An expiry is no write, and nobody conflicts with it.
        tx.put(&table, "own", "row").unwrap();
        tx.commit().unwrap().forget();
        // It is deleted, and the snapshot sees it all the same.
        db.persist().unwrap();
        assert_eq!(db.statistics().expired_rows, 24);
        db.settle().unwrap();
        let seen: Rows = snapshot.range::<&[u8]>(&table, ..).map(Result::unwrap).collect();
        assert!(seen == rows && snapshot.iter(&map).map(Result::unwrap).collect::<Rows>() == rows);
        drop(snapshot);
        assert_eq!(db.begin().unwrap().range::<&[u8]>(&table, ..).count(), 5);
    }
}

/// A transaction kept the time that it had read first, and saw the row of a pair that was deleted since as absent beside the other one, which had
/// expired at the same time and was there for it.
#[test]
fn c2_of_rows_that_expire_together_a_transaction_sees_all_or_none() {
    for settles in [false, true] {
        let (disk, db) = world();
        let table = db.table("table").unwrap();
        let put = |key: &str, at_ms| db.put_expiring(&table, key, "value", until(at_ms)).unwrap().forget();
        for (key, at_ms) in [("one", 10), ("other", 10), ("third", 10), ("later", 50)] {
            put(key, at_ms);
        }
        db.persist().unwrap();
        if settles {
            db.settle().unwrap();
        }
        let [reader, walker, writer, own] = [(); 4].map(|()| db.begin().unwrap());
        assert!(reader.contains(&table, "one").unwrap());
        assert_eq!(walker.range(&table, "l".."p").count(), 3);
        assert!(writer.contains(&table, "later").unwrap());
        own.put_expiring(&table, "own", "value", Expiry::In(Duration::from_millis(5))).unwrap();
        at(&disk, 10);
        // It was gone already, and has a tombstone now.
        assert!(!db.delete(&table, "third").unwrap().forget());
        for tx in [&reader, &walker] {
            assert_eq!(tx.contains(&table, "third").unwrap_err().kind(), ErrorKind::Conflict);
        }
        // Nothing that these have seen has expired: they go on as of a later time.
        assert!(!writer.contains(&table, "third").unwrap() && !writer.contains(&table, "one").unwrap());
        assert!(writer.contains(&table, "later").unwrap());
        assert!(!own.contains(&table, "third").unwrap() && !own.contains(&table, "other").unwrap());
        assert!(!own.contains(&table, "own").unwrap());
        writer.put(&table, "new", "row").unwrap();
        writer.commit().unwrap().forget();
    }
}

#[test]
fn c2_two_that_put_where_a_row_has_expired_conflict_and_so_does_who_has_seen_a_row_that_was_deleted() {
    let (disk, db) = world();
    let map = db.map("map").unwrap();
    db.put_expiring(&map, "lock", "old", until(10)).unwrap().forget();
    let reader = db.begin().unwrap();
    assert!(reader.contains(&map, "lock").unwrap());
    at(&disk, 10);
    let (one, other) = (db.begin().unwrap(), db.begin().unwrap());
    assert!(one.compare_and_set(&map, "lock", None, Some(b"one")).unwrap());
    assert!(other.compare_and_set(&map, "lock", None, Some(b"other")).unwrap());
    one.commit().unwrap().forget();
    assert_eq!(other.commit().map(|_| ()).unwrap_err().kind(), ErrorKind::Conflict);
    assert_eq!(db.get(&map, "lock").unwrap().as_deref(), Some(&b"one"[..]));
    reader.put(&map, "seen", "it").unwrap();
    assert_eq!(reader.commit().map(|_| ()).unwrap_err().kind(), ErrorKind::Conflict);
}

#[test]
fn c4_a_snapshot_that_has_a_name_shows_rows_as_of_the_time_at_which_it_got_it() {
    let (disk, db) = world();
    let (rows, _) = sixteen(&db);
    at(&disk, 10);
    db.create_snapshot("ten").unwrap();
    at(&disk, 100);
    db.persist().unwrap();
    db.close().unwrap();
    for _ in 0..2 {
        let db = reopen(&disk).unwrap();
        let (table, map) = objects(&db);
        db.persist().unwrap();
        db.settle().unwrap();
        let snapshot = db.open_snapshot("ten").unwrap();
        let expected = left_at(&rows, 10);
        assert!(snapshot.range::<&[u8]>(&table, ..).map(Result::unwrap).collect::<Rows>() == expected);
        assert!(snapshot.iter(&map).map(Result::unwrap).collect::<Rows>() == expected);
        assert_eq!(table.len(), 4);
        drop(snapshot);
        db.close().unwrap();
    }
}

/// A snapshot that has a name had the time of the system's clock. Once that was set back, rows were there again that were absent for everybody
/// else, and of rows that expire together those that were not deleted yet.
#[test]
fn c4_a_snapshot_that_has_a_name_shows_no_row_again_that_was_absent_before_the_clock_was_set_back() {
    let (disk, db) = world();
    let map = db.map("map").unwrap();
    db.put_expiring(&map, "row", "value", until(10)).unwrap().forget();
    at(&disk, 20);
    assert_eq!(db.get(&map, "row").unwrap(), None);
    at(&disk, 5);
    assert_eq!(db.get(&map, "row").unwrap(), None);
    db.create_snapshot("five").unwrap();
    assert_eq!(db.open_snapshot("five").unwrap().get(&map, "row").unwrap(), None);
}

/// A snapshot could not be given to several threads once it had a time as of which it reads.
#[test]
fn c2_threads_that_share_a_snapshot_see_rows_as_of_one_moment() {
    let (disk, db) = world();
    let map = db.map("map").unwrap();
    db.put_expiring(&map, "row", "value", until(10)).unwrap().forget();
    let snapshot = db.snapshot().unwrap();
    let sees = || std::thread::scope(|scope| scope.spawn(|| snapshot.contains(&map, "row")).join().unwrap());
    assert!(sees().unwrap());
    at(&disk, 10);
    assert!(sees().unwrap());
    assert_eq!(db.get(&map, "row").unwrap(), None);
}

#[test]
fn c4_a_row_that_has_expired_and_that_nobody_touches_gives_its_space_back() {
    let (disk, db) = world();
    let (table, map) = objects(&db);
    for number in 0..300 {
        db.put_expiring(&table, key(number), vec![1; 1_000], until(10)).unwrap().forget();
        db.put_expiring(&map, key(number), vec![1; 1_000], until(10)).unwrap().forget();
    }
    db.put(&map, "kept", "value").unwrap().forget();
    db.persist().unwrap();
    assert_eq!(db.settle().unwrap(), 300);
    at(&disk, 10);
    for _ in 0..4 {
        db.persist().unwrap();
        db.settle().unwrap();
    }
    let statistics = db.statistics();
    assert_eq!((statistics.expired_rows, statistics.settled_rows), (600, 0));
    assert!(statistics.live_bytes < 10_000, "{} bytes are live", statistics.live_bytes);
    assert_eq!((table.len(), map.len()), (0, 1));
    assert!(db.check().unwrap().is_clean());
}

#[test]
fn c4_rows_that_are_compacted_on_request_expire_when_they_did() {
    let (disk, db) = world();
    let (rows, keys) = sixteen(&db);
    db.persist().unwrap();
    for now in [0, 5, 10] {
        at(&disk, now);
        db.compact(|_| {}).unwrap();
        assert_rows(&db, &left_at(&rows, now as usize), &keys, "compacted");
    }
    drop(db);
    let db = reopen(&disk).unwrap();
    assert_rows(&db, &left_at(&rows, 10), &keys, "opened again");
    at(&disk, 12);
    assert_rows(&db, &left_at(&rows, 12), &keys, "later");
}

#[test]
fn c4_an_object_keeps_its_time_to_live() {
    let disk = SimulatedDevice::new(seed());
    at(&disk, 0);
    let db = manual().open_on(Arc::new(disk.clone())).unwrap();
    let map = db.map_with_time_to_live("map", Duration::from_millis(10)).unwrap();
    db.put(&map, "one", "value").unwrap().forget();
    db.put_expiring(&map, "stays", "value", Expiry::Never).unwrap().forget();
    db.transact(|tx| tx.put(&map, "two", "value")).unwrap().forget();
    db.put_many(&map, &[("three", "value")]).unwrap().forget();
    db.close().unwrap();
    for checkpoints in [false, true] {
        let db = reopen(&disk).unwrap();
        let map = db.map("map").unwrap();
        at(&disk, 5);
        db.add(&map, if checkpoints { "five" } else { "four" }, 1).unwrap().forget();
        for key in ["one", "two", "three"] {
            assert_eq!(db.expiry(&map, key).unwrap(), Some(until(10)), "{key}");
        }
        assert_eq!(db.expiry(&map, "stays").unwrap(), Some(Expiry::Never));
        assert_eq!(db.expiry(&map, "four").unwrap(), Some(until(15)));
        db.map_with_time_to_live("map", Duration::from_millis(10)).unwrap();
        let other = db.map_with_time_to_live("map", Duration::from_millis(11)).unwrap_err();
        assert_eq!(other.kind(), ErrorKind::Input, "{other}");
        db.persist().unwrap();
        db.checkpoint().unwrap();
        db.close().unwrap();
    }
}

#[test]
fn c9_a_database_says_in_its_format_that_rows_may_expire() {
    let (disk, db) = world();
    let map = db.map("map").unwrap();
    db.put(&map, "key", "value").unwrap().forget();
    db.persist().unwrap();
    let formats = |disk: &SimulatedDevice| [0, 4096].map(|slot| disk.bytes("superblock")[slot + 8]);
    assert!(formats(&disk).iter().all(|&format| format < 4));
    db.put_expiring(&map, "key", "value", until(1)).unwrap().forget();
    assert_eq!(formats(&disk), [4, 4]);
    let too_long = vec![0; (16 << 20) - 7];
    assert_eq!(
        db.put_expiring(&map, "key", too_long, until(1)).map(|_| ()).unwrap_err().kind(),
        ErrorKind::Input
    );
}

/// A row of the model: its value, and when it expires.
type Model = BTreeMap<Vec<u8>, (Vec<u8>, Option<u64>)>;

fn seen(model: &Model, now: u64) -> Rows {
    let is_there = |expires_at: Option<u64>| expires_at.is_none_or(|at| at > now);
    model.iter().filter(|(_, row)| is_there(row.1)).map(|(key, row)| (key.clone(), row.0.clone())).collect()
}

#[test]
fn c4_whatever_is_written_moved_and_crashed_the_rows_are_those_of_a_model_with_a_clock() {
    let (rounds, mut losses) = (budget(12), 0);
    for round in 0..rounds {
        let mut random = Random::new(seed() ^ round);
        let options = || -> Options { manual().segment_bytes(16 << 10).space_amplification(1.2) };
        let mut disk = SimulatedDevice::new(round);
        let mut now = 0;
        at(&disk, now);
        let mut db = options().open_on(Arc::new(disk.clone())).unwrap();
        let (mut model, mut durable) = (Model::new(), Model::new());
        let mut durable_version = db.horizon(Level::LOCAL);
        let keys: Vec<_> = (0..60).map(key).collect();
        for step in 0..400 {
            let (table, map) = objects(&db);
            let key = random.pick(&keys).clone();
            let length = random.below(400);
            let value = random.bytes(length);
            match random.below(24) {
                0..8 => {
                    let expires_at = (!random.one_in(3)).then(|| now + random.below(60) as u64);
                    let expiry = expires_at.map_or(Expiry::Never, until);
                    db.put_expiring(&table, &key, &value, expiry).unwrap().forget();
                    db.transact(|tx| tx.put_expiring(&map, &key, &value, expiry)).unwrap().forget();
                    model.insert(key, (value, expires_at));
                }
                8..11 => {
                    let change = |old: Option<&[u8]>| old.map(|old| [old, b"!"].concat());
                    db.update(&table, &key, change).unwrap().forget();
                    db.transact(|tx| tx.update(&map, &key, change)).unwrap().forget();
                    if let Some(value) = seen(&model, now).get(&key) {
                        let value = [value, &b"!"[..]].concat();
                        model.entry(key).and_modify(|row| row.0 = value);
                    }
                }
                11..13 => {
                    let was_there = seen(&model, now).contains_key(&key);
                    assert_eq!(db.delete(&table, &key).unwrap().forget(), was_there);
                    assert_eq!(db.transact(|tx| tx.delete(&map, &key)).unwrap().forget(), was_there);
                    model.remove(&key);
                }
                13..15 => {
                    let at = now + random.below(60) as u64;
                    let was_there = seen(&model, now).contains_key(&key);
                    assert_eq!(db.set_expiry(&table, &key, until(at)).unwrap().forget(), was_there);
                    assert_eq!(db.set_expiry(&map, &key, until(at)).unwrap().forget(), was_there);
                    if was_there {
                        model.entry(key).and_modify(|row| row.1 = Some(at));
                    }
                }
                15..18 => {
                    now += random.below(15) as u64;
                    at(&disk, now);
                }
                18..23 => {
                    db.persist().unwrap();
                    (durable, durable_version) = (model.clone(), db.horizon(Level::LOCAL));
                    match random.below(5) {
                        0 => drop(db.settle().unwrap()),
                        1 => drop(db.checkpoint().unwrap()),
                        _ => {}
                    }
                }
                _ => {
                    drop((table, map));
                    if random.one_in(2) {
                        db.close().unwrap();
                        durable = model.clone();
                    } else {
                        // Whoever needs log space hardens, and then it is not known what is durable.
                        if db.horizon(Level::LOCAL) != durable_version {
                            db.persist().unwrap();
                            durable = model.clone();
                        }
                        losses += usize::from(durable != model);
                        // Who drops it first closes it.
                        let crashed = disk.after_crash(&mut |_| Keep::Lost);
                        drop(db);
                        disk = crashed;
                        at(&disk, now);
                        model = durable.clone();
                    }
                    db = options().open_on(Arc::new(disk.clone())).unwrap();
                    durable_version = db.horizon(Level::LOCAL);
                }
            }
            if step % 40 == 0 || step > 395 {
                assert_rows(&db, &seen(&model, now), &keys, &format!("round {round}, step {step}"));
            }
        }
        let check = db.check().unwrap();
        assert!(check.is_clean(), "round {round}: {check}");
    }
    assert!(losses as u64 >= rounds, "{losses} crashes that took something");
}

#[test]
fn c4_a_crash_at_any_step_of_the_deletion_leaves_every_row_that_has_not_expired_and_no_other() {
    let (disk, db) = world();
    let (rows, keys) = sixteen(&db);
    db.persist().unwrap();
    db.settle().unwrap();
    db.close().unwrap();
    let expected = left_at(&rows, 20);
    for step in 1.. {
        let disk = copy_of(&disk);
        at(&disk, 20);
        disk.crash_after(disk.steps() + step);
        let outcome = reopen(&disk).and_then(|db| {
            // What it deletes is durable with the next one.
            db.persist()?;
            db.persist()?;
            db.settle()?;
            db.checkpoint()?;
            db.close()
        });
        for after in [disk.after_crash(&mut |_| Keep::Lost), disk.after_crash_seeded(step)] {
            at(&after, 20);
            assert_rows(&reopen(&after).unwrap(), &expected, &keys, &format!("after step {step}"));
        }
        if outcome.is_ok() && !disk.crashed() {
            assert!(step > 10, "so few steps");
            return;
        }
    }
}
