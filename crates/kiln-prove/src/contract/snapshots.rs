//! C2, C6: snapshots are stable, complete, and in nobody's way.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use kiln::device::SimulatedDevice;
use kiln::{Kiln, Level, Map, Object, Result, Snapshot, Table};

use crate::crash::reopen;
use crate::support::Random;
use crate::testing::{PATIENCE, background, seed, watched};

type Rows = BTreeMap<Vec<u8>, Vec<u8>>;

fn rows_of(snapshot: &Snapshot<'_>, table: &Table, reverse: bool) -> Rows {
    let range = snapshot.range::<&[u8]>(table, ..);
    let range = if reverse { range.reverse() } else { range };
    range.collect::<Result<_>>().unwrap()
}

fn pairs_of(snapshot: &Snapshot<'_>, map: &Map) -> Rows {
    let mut pairs = Rows::new();
    for pair in snapshot.iter(map) {
        let (key, value) = pair.unwrap();
        assert!(pairs.insert(key, value).is_none(), "a key was met twice");
    }
    pairs
}

#[test]
fn c2_a_snapshot_stays_as_it_was_under_concurrent_writers() {
    watched("c2_a_snapshot_stays_as_it_was", 2 * PATIENCE, |_| {
        let disk = SimulatedDevice::new(seed());
        let db = background().window(Duration::from_millis(2)).open_on(Arc::new(disk)).unwrap();
        let (table, map) = (db.table("table").unwrap(), db.map("map").unwrap());
        let stop = AtomicBool::new(false);
        thread::scope(|scope| {
            for thread in 0..2_u64 {
                let (db, table, map, stop) = (&db, &table, &map, &stop);
                scope.spawn(move || {
                    let mut random = Random::new(seed() + thread);
                    while !stop.load(Ordering::SeqCst) {
                        let key = random.below(200).to_be_bytes();
                        let length = random.below(300);
                        let value = random.bytes(length);
                        let delete = random.one_in(3);
                        // The same change to both, so that they are equal in every consistent state.
                        db.transact(|tx| match delete {
                            true => tx.delete(table, key).and_then(|_| tx.delete(map, key)).map(drop),
                            false => tx.put(table, key, &value).and_then(|()| tx.put(map, key, &value)),
                        })
                        .unwrap()
                        .forget();
                    }
                });
            }
            for round in 0..40 {
                let snapshot = if round % 4 == 0 { db.durable_snapshot() } else { db.snapshot() }.unwrap();
                let first = rows_of(&snapshot, &table, false);
                thread::sleep(Duration::from_millis(3));
                assert!(rows_of(&snapshot, &table, true) == first, "round {round}: the snapshot has changed");
                assert!(pairs_of(&snapshot, &map) == first, "round {round}: table and map differ");
                for key in 0..200_usize {
                    let found = snapshot.get(&table, key.to_be_bytes()).unwrap();
                    assert_eq!(found.as_ref(), first.get(key.to_be_bytes().as_slice()), "round {round}");
                }
            }
            stop.store(true, Ordering::SeqCst);
        });
    });
}

/// A snapshot outlives hardenings, the sweeping of deleted keys, the eviction of what it reads from memory, and the
/// truncation of the log; and when it is gone, nothing holds those up any more.
#[test]
fn c2_an_old_snapshot_reads_what_has_long_been_overwritten_and_deleted() {
    let disk = SimulatedDevice::new(seed());
    let db = reopen(&disk).unwrap();
    let (table, map) = (db.table("table").unwrap(), db.map("map").unwrap());
    let value = |key: u32| vec![key as u8; 700];
    for key in 0..100_u32 {
        db.transact(|tx| {
            tx.put(&table, key.to_be_bytes(), value(key))
                .and_then(|()| tx.put(&map, key.to_be_bytes(), value(key)))
        })
        .unwrap()
        .forget();
    }
    db.persist().unwrap();
    let old = db.snapshot().unwrap();
    for round in 0..12_u32 {
        for key in 0..100_u32 {
            if (key + round) % 3 == 0 {
                db.delete(&table, key.to_be_bytes()).unwrap().forget();
                db.delete(&map, key.to_be_bytes()).unwrap().forget();
            } else {
                db.put(&table, key.to_be_bytes(), vec![1; 900]).unwrap().forget();
                db.put(&map, key.to_be_bytes(), vec![1; 900]).unwrap().forget();
            }
        }
        db.persist().unwrap();
    }
    let expected: Rows = (0..100_u32).map(|key| (key.to_be_bytes().to_vec(), value(key))).collect();
    assert!(rows_of(&old, &table, false) == expected, "the old snapshot forgets");
    assert!(rows_of(&old, &table, true) == expected);
    assert!(pairs_of(&old, &map) == expected);
    assert_eq!(db.statistics().snapshots, 1);
    drop(old);
    assert_eq!(db.statistics().snapshots, 0);
    let newest = db.snapshot().unwrap();
    assert_eq!(rows_of(&newest, &table, false).len() as u64, table.len());
    assert_eq!(pairs_of(&newest, &map).len() as u64, map.len());
}

#[test]
fn c6_durable_snapshots_lag_behind_and_catch_up() {
    let db = reopen(&SimulatedDevice::new(seed())).unwrap();
    let table = db.table("table").unwrap();
    db.put(&table, "key", "1").unwrap().safe().unwrap();
    let before = db.durable_snapshot().unwrap();
    assert_eq!(before.version(), db.horizon(Level::LOCAL));
    db.put(&table, "key", "2").unwrap().forget();
    db.put(&table, "new", "2").unwrap().forget();
    let latest = db.snapshot().unwrap();
    assert!(latest.version() > before.version());
    let now = |snapshot: &Snapshot<'_>| snapshot.get(&table, "key").unwrap().unwrap();
    assert_eq!((now(&db.durable_snapshot().unwrap()), now(&latest)), (b"1".to_vec(), b"2".to_vec()));
    assert_eq!(db.durable_snapshot().unwrap().range::<&[u8]>(&table, ..).count(), 1);
    db.persist().unwrap();
    assert_eq!(now(&db.durable_snapshot().unwrap()), b"2");
    assert_eq!(now(&before), b"1", "an open one stays");
    assert_eq!(before.prefix(&table, "n").count(), 0);
    assert!(before.contains(&table, "key").unwrap() && !before.contains(&table, "new").unwrap());
}

/// What a walk of cursors promises: whatever is there all the time is met, at least once.
fn scan(db: &Kiln, map: &Map, count: usize) -> BTreeSet<Vec<u8>> {
    let (mut cursor, mut seen) = (0, BTreeSet::new());
    loop {
        let (next, rows) = db.scan_map(map, cursor, count).unwrap();
        seen.extend(rows.into_iter().map(|(key, _)| key));
        if next == 0 {
            return seen;
        }
        assert_ne!(next, cursor, "the walk stands still");
        cursor = next;
    }
}

#[test]
fn c2_a_scan_meets_whatever_is_there_throughout_while_the_index_grows() {
    watched("c2_a_scan_meets_whatever", 2 * PATIENCE, |_| {
        let db = background().open_on(Arc::new(SimulatedDevice::new(seed()))).unwrap();
        let (map, other) = (db.map("map").unwrap(), db.map("other").unwrap());
        for key in 0..500_u32 {
            db.put(&map, key.to_be_bytes(), "stays").unwrap().forget();
        }
        let stop = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                // Enough keys for the index to double and double again, of this map and of another.
                for number in 0..150_000_u32 {
                    if stop.load(Ordering::SeqCst) {
                        break;
                    }
                    let map = if number % 2 == 0 { &map } else { &other };
                    db.put(map, (number + 500).to_be_bytes(), "comes").unwrap().forget();
                    if number % 5 == 0 {
                        db.delete(map, (number + 500).to_be_bytes()).unwrap().forget();
                    }
                }
            });
            for count in [1, 10, 1_000, 1, 100, usize::MAX] {
                let seen = scan(&db, &map, count);
                let missed = (0..500_u32).find(|key| !seen.contains(key.to_be_bytes().as_slice()));
                assert_eq!(missed, None, "a scan by {count} missed a key that was there all the time");
            }
            stop.store(true, Ordering::SeqCst);
        });
        let all = scan(&db, &map, 100);
        assert_eq!(all.len() as u64, map.len());
    });
}

/// Each of the three takes a lock or a pin that another one waits for.
#[test]
fn c3_statistics_snapshots_and_the_forgetting_of_deletions_never_stop_each_other() {
    watched("c3_statistics_snapshots_and_the_forgetting", PATIENCE, |_| {
        const ROUNDS: u32 = 2_000;
        let options = background().window(Duration::from_millis(2));
        let db = options.open_on(Arc::new(SimulatedDevice::new(seed()))).unwrap();
        let map = db.map("map").unwrap();
        thread::scope(|scope| {
            scope.spawn(|| (0..10 * ROUNDS).for_each(|_| drop(db.statistics())));
            scope.spawn(|| (0..ROUNDS).for_each(|_| drop(db.snapshot().unwrap())));
            for round in 0..ROUNDS {
                db.put(&map, round.to_le_bytes(), "value").unwrap().forget();
                db.delete(&map, round.to_le_bytes()).unwrap().forget();
                if round % 8 == 0 {
                    db.persist().unwrap();
                }
            }
        });
        assert_eq!(map.len(), 0);
    });
}

/// Whoever looked for the few keys of a map among very many others came back when he had as many as he had asked for, or at the index's end.
#[test]
fn c2_a_scan_comes_back_soon_where_most_of_the_index_is_of_others_and_meets_every_key() {
    let db = reopen(&SimulatedDevice::new(seed())).unwrap();
    let (few, many) = (db.map("few").unwrap(), db.map("many").unwrap());
    let keys: BTreeSet<_> = (0..5_u32).map(|number| number.to_be_bytes().to_vec()).collect();
    keys.iter().for_each(|key| db.put(&few, key, b"").unwrap().forget());
    for number in 0..120_000_u32 {
        db.put(&many, number.to_be_bytes(), b"").unwrap().forget();
        if number % 256 == 0 {
            db.persist().unwrap();
        }
    }
    let (mut cursor, mut calls, mut found) = (0, 0, Vec::new());
    loop {
        let (next, some) = db.scan_map_keys(&few, cursor, 10).unwrap();
        found.extend(some);
        (cursor, calls) = (next, calls + 1);
        if next == 0 {
            break;
        }
    }
    assert!(calls > 1, "it looked at all at once");
    found.sort_unstable();
    assert_eq!(found, keys.into_iter().collect::<Vec<_>>());
}
