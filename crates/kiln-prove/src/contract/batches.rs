//! C1, C2, C5: batches of operations outside of transactions. Each element is a transaction of its own.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use kiln::device::{Keep, SimulatedDevice};
use kiln::{Commit, Error, ErrorKind, Expiry, Kiln, Level, Object, Result};

use super::hooked::{HookedDevice, Operation};
use super::singles::{database, number};
use crate::crash::reopen;
use crate::support::{Random, manual};
use crate::testing::{budget, seed};

/// Batches do what a loop does: equal keys, missing keys, deleted ones, some on disk and some in memory.
#[test]
fn c2_batches_are_single_operations_in_their_order() {
    fn check<O: Object>(db: &Kiln, object: &O, random: &mut Random) {
        let mut model: BTreeMap<Vec<u8>, Vec<u8>> = BTreeMap::new();
        for _ in 0..budget(120) {
            let count = *random.pick(&[0, 1, 2, 31, 32, 33, 64, 100]);
            let keys: Vec<Vec<u8>> =
                (0..count).map(|_| (random.below(150) as u16).to_be_bytes().to_vec()).collect();
            match random.below(4) {
                0 => {
                    let put = |key: &Vec<u8>| (key.clone(), random.bytes(8 * (1 + key[1] as usize)));
                    let entries: Vec<_> = keys.iter().map(put).collect();
                    db.put_many(object, &entries).unwrap().forget();
                    model.extend(entries);
                }
                1 => {
                    let mut calls = Vec::new();
                    let deletes = random.one_in(2);
                    let change = |at: usize, old: Option<&[u8]>, new: &mut Vec<u8>| {
                        calls.push((at, old.map(<[u8]>::to_vec)));
                        new.extend_from_slice(old.unwrap_or(b"first"));
                        new.push(at as u8);
                        !(deletes && at.is_multiple_of(2))
                    };
                    db.update_many(object, &keys, change).unwrap().forget();
                    calls.dedup_by_key(|call| call.0);
                    assert_eq!(calls.len(), keys.len());
                    for ((at, old), key) in calls.into_iter().zip(&keys) {
                        assert_eq!(old.as_ref(), model.get(key), "element {at}");
                        let mut new = old.unwrap_or_else(|| b"first".to_vec());
                        new.push(at as u8);
                        match deletes && at.is_multiple_of(2) {
                            true => drop(model.remove(key)),
                            false => drop(model.insert(key.clone(), new)),
                        }
                    }
                }
                2 => {
                    for key in &keys {
                        let existed = db.delete(object, key).unwrap().forget();
                        assert_eq!(existed, model.remove(key).is_some());
                    }
                    let deltas: Vec<_> = keys.iter().zip(1..).collect();
                    db.add_many(object, &deltas).unwrap().forget();
                    for (key, delta) in deltas {
                        let sum = model.get(key).map_or(0, |value| number(value)) + delta;
                        model.insert(key.clone(), sum.to_le_bytes().to_vec());
                    }
                }
                _ => {}
            }
            let mut next = 0;
            db.get_many(object, &keys, |at, value| {
                assert_eq!((at, value), (next, model.get(&keys[at]).map(Vec::as_slice)));
                next += 1;
            })
            .unwrap();
            assert_eq!((next, object.len()), (keys.len(), model.len() as u64));
            if random.one_in(8) {
                db.persist().unwrap();
            }
        }
    }
    let (_, db, table, map) = database();
    let mut random = Random::new(seed());
    check(&db, &table, &mut random);
    check(&db, &map, &mut random);
    let report = db.check().unwrap();
    assert!(report.problems.is_empty(), "{report}");
}

/// An error for what is too long comes before anything is written; another one after what precedes it.
#[test]
fn c1_a_batch_that_fails_has_done_all_before_and_nothing_after() {
    let (_, db, table, map) = database();
    let (long_key, long_value) = (vec![0; 1 << 20], vec![0; 64 << 20]);
    let kind = |result: Result<Commit<'_, ()>>| result.map(Commit::forget).unwrap_err().kind();
    assert_eq!(kind(db.put_many(&map, &[("a", &b"1"[..]), ("b", &long_value)])), ErrorKind::Input);
    assert_eq!(kind(db.put_many(&map, &[(&b"a"[..], "1"), (&long_key, "2")])), ErrorKind::Input);
    assert_eq!(kind(db.add_many(&map, &[(&b"a"[..], 1), (&long_key, 2)])), ErrorKind::Input);
    assert_eq!(kind(db.update_many(&map, &[&b"a"[..], &long_key], |_, _, _| true)), ErrorKind::Input);
    let looked = db.get_many(&map, &[&b"a"[..], &long_key], |_, _| panic!("nothing is read"));
    assert_eq!(looked.unwrap_err().kind(), ErrorKind::Input);
    assert!(map.is_empty());
    db.put(&map, "c", "no number").unwrap().forget();
    assert_eq!(kind(db.add_many(&map, &[("a", 1), ("a", 1), ("c", 1), ("d", 1)])), ErrorKind::Input);
    assert_eq!(db.get(&map, "a").unwrap().unwrap(), 2_i64.to_le_bytes());
    assert_eq!(db.get(&map, "d").unwrap(), None);
    // Another database's object.
    let (_, other, ..) = database();
    let wrong =
        |result: std::result::Result<(), Error>| assert_eq!(result.unwrap_err().kind(), ErrorKind::Input);
    wrong(other.add(&table, "a", 1).map(drop));
    wrong(other.get_with(&table, "a", |_| ()));
    wrong(other.get_many(&table, &["a"], |_, _| ()));
    wrong(other.put_many(&table, &[("a", "b")]).map(drop));
    other.prefetch(&table, &["a"]);
}

/// All rows had the expiry of the first: what came long after it was absent as soon as it was put.
#[test]
fn c2_each_row_of_a_batch_expires_so_long_after_it_is_put() {
    let disk = SimulatedDevice::new(seed());
    let (clock, time_ms) = (disk.clone(), AtomicU64::new(1_000));
    // A second passes whenever somebody asks.
    let device = HookedDevice::on(&disk, move |operation, _| {
        if operation == Operation::Time {
            clock.set_time_ms(time_ms.fetch_add(1_000, Ordering::SeqCst));
        }
    });
    let db = manual().open_on(device).unwrap();
    let map = db.map_with_time_to_live("map", Duration::from_secs(3_600)).unwrap();
    db.put_many(&map, &[("a", "1"), ("b", "2")]).unwrap().forget();
    let expires_at = |key| match db.expiry(&map, key).unwrap() {
        Some(Expiry::At(at)) => at,
        other => panic!("{key}: {other:?}"),
    };
    assert!(expires_at("a") < expires_at("b"));
}

/// The receipt of a batch covers all of it, over many hardenings, too; and of what only looked, what it has seen.
#[test]
fn c5_a_receipt_covers_all_of_a_batch() {
    for round in 0..budget(20) {
        let disk = SimulatedDevice::new(seed() + round);
        let db = reopen(&disk).unwrap();
        let (table, map) = (db.table("table").unwrap(), db.map("map").unwrap());
        // More than fits into the memory, so that hardenings come in between.
        let value = vec![round as u8; 1_000];
        let entries: Vec<_> = (0..2_000_u32).map(|key| (key.to_be_bytes(), &value)).collect();
        let (_, receipt) = db.put_many(&table, &entries).unwrap().fast();
        assert_eq!(receipt.version(), db.version());
        receipt.wait(Level::LOCAL).unwrap();
        let deltas: Vec<_> = (0..100_u32).map(|key| ((key % 50).to_be_bytes(), 1)).collect();
        db.add_many(&map, &deltas).unwrap().safe().unwrap();
        let seen = db.compare_and_set(&map, 7_u32.to_be_bytes(), Some(b"other"), None).unwrap();
        assert!(seen.version() <= db.horizon(Level::LOCAL) && seen.version().number() > 0);
        assert!(!seen.safe().unwrap());
        db.put_many::<_, &str, &str>(&table, &[]).unwrap().safe().unwrap();
        drop((db, table, map));
        disk.crash_after(disk.steps());
        let db = reopen(&disk.after_crash(&mut |_| Keep::Lost)).unwrap();
        let (table, map) = (db.table("table").unwrap(), db.map("map").unwrap());
        assert_eq!((table.len(), map.len()), (2_000, 50));
        db.get_many(&map, &deltas.iter().map(|delta| delta.0).collect::<Vec<_>>(), |_, sum| {
            assert_eq!(sum, Some(&2_i64.to_le_bytes()[..]));
        })
        .unwrap();
    }
}

/// `Input` was the same whether it came before all else, or in the middle: who began again added twice.
#[test]
fn c1_a_batch_that_fails_says_how_many_of_its_operations_are_committed() {
    let db = manual().open_on(Arc::new(SimulatedDevice::new(seed()))).unwrap();
    let (map, session) = (db.map("map").unwrap(), db.session("client").unwrap());
    let failed = |outcome: Result<Commit<'_, ()>>| {
        let error = outcome.map(|commit| commit.forget()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Input);
        error.done_count()
    };
    let count = 100;
    let deltas: Vec<_> = (0..count).map(|key| ([key], 1)).collect();
    db.put(&map, [70], "no number").unwrap().forget();
    assert_eq!(failed(db.add_many(&map, &deltas)), Some(70));
    db.put(&map, [70], 0_i64.to_le_bytes()).unwrap().forget();
    db.add_many(&map, &deltas[70..]).unwrap().forget();
    assert!((0..count).all(|key| number(&db.get(&map, [key]).unwrap().unwrap()) == 1));

    db.put(&map, [1], "no number").unwrap().forget();
    assert_eq!((failed(session.add_many(&map, &deltas)), session.serial()), (Some(1), 1));
    let (long_key, long_value) = (vec![0; 1 << 20], vec![0; 64 << 20]);
    for failed in [
        failed(db.put_many(&map, &[("a", &b"1"[..]), ("b", &long_value)])),
        failed(db.put_many(&map, &[(&b"a"[..], "1"), (&long_key, "2")])),
        failed(db.add_many(&map, &[(&b"a"[..], 1), (&long_key, 2)])),
        failed(session.update_many(&map, &[&b"a"[..], &long_key], |_, _, _| true)),
    ] {
        assert_eq!(failed, Some(0));
    }
    assert_eq!(map.len(), u64::from(count));
    // Nothing else does several things.
    assert_eq!(failed(db.put(&map, &long_key, "1")), None);
}
