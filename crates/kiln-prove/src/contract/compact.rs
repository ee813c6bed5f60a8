//! Compaction on request: what is dead leaves the disk at once, and what is live stays, for everybody who may see it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

use kiln::device::SimulatedDevice;
use kiln::{ErrorKind, Kiln, Object as _};

use super::cold::{key, lazy, make_cold};
use super::hooked::{HookedDevice, Operation};
use crate::crash::reopen;
use crate::support::{Random, manual};
use crate::testing::{PATIENCE, background, seed, watched};

const KEYS: u32 = 1_500;
/// One key in so many stays.
const KEPT_ONE_IN: u32 = 20;

/// One value in thirty has blocks of its own.
fn value(key: u32) -> Vec<u8> {
    Random::new(u64::from(key)).bytes(if key.is_multiple_of(30) { 9_000 } else { 500 })
}

/// Fills a map and a table, of which some has settled; the files are several times as long as their live part.
fn fill(db: &Kiln) {
    let (table, map) = (db.table("table").unwrap(), db.map("map").unwrap());
    for key in 0..KEYS {
        let bytes = key.to_be_bytes();
        db.transact(|tx| tx.put(&table, bytes, value(key)).and_then(|()| tx.put(&map, bytes, value(key))))
            .unwrap()
            .forget();
    }
    db.persist().unwrap();
    assert!(db.settle().unwrap() > 0);
}

/// Deletes most of it.
fn thin_out(db: &Kiln) {
    let (table, map) = (db.table("table").unwrap(), db.map("map").unwrap());
    for key in (0..KEYS).filter(|key| !key.is_multiple_of(KEPT_ONE_IN)) {
        let bytes = key.to_be_bytes();
        db.transact(|tx| tx.delete(&table, bytes).and_then(|_| tx.delete(&map, bytes))).unwrap().forget();
    }
    db.persist().unwrap();
}

fn check_thinned_out(db: &Kiln) {
    let (table, map) = (db.table("table").unwrap(), db.map("map").unwrap());
    for key in 0..KEYS {
        let expected = key.is_multiple_of(KEPT_ONE_IN).then(|| value(key));
        assert!(db.get(&table, key.to_be_bytes()).unwrap() == expected, "row {key}");
        assert!(db.get(&map, key.to_be_bytes()).unwrap() == expected, "key {key}");
    }
    let rows = db.transact(|tx| tx.range::<&[u8]>(&table, ..).collect::<kiln::Result<Vec<_>>>());
    let kept = (0..KEYS).step_by(KEPT_ONE_IN as usize);
    let expected: Vec<_> = kept.map(|key| (key.to_be_bytes().to_vec(), value(key))).collect();
    assert!(rows.unwrap().forget() == expected);
    let report = db.check().unwrap();
    assert!(report.problems.is_empty(), "{report}");
}

#[test]
fn c1_compacting_keeps_what_is_live_and_gives_the_rest_of_the_disk_back() {
    watched("c1_compacting_keeps_what_is_live", PATIENCE, |_| {
        let disk = SimulatedDevice::new(seed());
        let db = manual().open_on(Arc::new(disk.clone())).unwrap();
        fill(&db);
        thin_out(&db);
        let mut last = 0;
        let compacted = db
            .compact(|progress| {
                assert!(progress.done_bytes >= last && progress.done_bytes <= progress.total_bytes);
                last = progress.done_bytes;
            })
            .unwrap();
        assert!(last > 0);
        let live: usize = (0..KEYS).step_by(KEPT_ONE_IN as usize).map(|key| 2 * value(key).len()).sum();
        // Segments, blocks, the checkpoint and both ends of the log.
        let most = live as u64 * 3 / 2 + (512 << 10);
        assert!(compacted.bytes_after < most, "{compacted:?}, {live} bytes are live");
        assert!(compacted.bytes_before > 2 * compacted.bytes_after, "{compacted:?}");
        let used = disk.used_bytes();
        assert!(used <= compacted.bytes_after + (64 << 10), "{used} bytes of disk, {compacted:?}");
        check_thinned_out(&db);
        let again = db.compact(|_| {}).unwrap();
        assert!(again.bytes_after <= again.bytes_before + (128 << 10), "{again:?}");
        drop(db);
        check_thinned_out(&reopen(&disk).unwrap());
    });
}

#[test]
fn c1_a_database_that_was_just_opened_is_compacted_too() {
    watched("c1_a_database_that_was_just_opened_is_compacted", PATIENCE, |_| {
        for is_closed in [true, false] {
            let disk = SimulatedDevice::new(seed());
            let db = manual()
                .settle_log_bytes(0)
                .space_amplification(f64::INFINITY)
                .open_on(Arc::new(disk.clone()))
                .unwrap();
            fill(&db);
            thin_out(&db);
            if is_closed {
                db.close().unwrap();
            } else {
                disk.crash_after(disk.steps());
            }
            drop(db);
            let disk = disk.after_crash_seeded(seed());
            let db = reopen(&disk).unwrap();
            let compacted = db.compact(|_| {}).unwrap();
            assert!(2 * compacted.bytes_after < compacted.bytes_before, "{compacted:?}");
            check_thinned_out(&db);
        }
    });
}

#[test]
fn c1_a_snapshot_reads_on_what_compacting_would_drop_and_is_compacted_when_it_ends() {
    watched("c1_a_snapshot_reads_on_what_compacting", PATIENCE, |_| {
        let db = manual().open_on(Arc::new(SimulatedDevice::new(seed()))).unwrap();
        fill(&db);
        let snapshot = db.snapshot().unwrap();
        let named = db.create_snapshot("before").unwrap();
        thin_out(&db);
        let held = db.compact(|_| {}).unwrap();
        let before = db.open_snapshot("before").unwrap();
        assert_eq!(before.version(), named.version);
        let (table, map) = (db.table("table").unwrap(), db.map("map").unwrap());
        for key in 0..KEYS {
            for snapshot in [&snapshot, &before] {
                assert!(snapshot.get(&table, key.to_be_bytes()).unwrap() == Some(value(key)), "row {key}");
                assert!(snapshot.get(&map, key.to_be_bytes()).unwrap() == Some(value(key)), "key {key}");
            }
        }
        check_thinned_out(&db);
        drop((snapshot, before));
        db.drop_snapshot("before").unwrap();
        let free = db.compact(|_| {}).unwrap();
        assert!(2 * free.bytes_after < held.bytes_after, "{held:?}, then {free:?}");
        check_thinned_out(&db);
    });
}

/// The caller was told how far it is while settling was locked out, for which counting waits.
#[test]
fn c5_who_is_told_how_far_compacting_is_may_use_the_database() {
    watched("c5_who_is_told_how_far_compacting_is", PATIENCE, |_| {
        let options = manual().settle_memory(16 << 10);
        let db = options.open_on(Arc::new(SimulatedDevice::new(seed()))).unwrap();
        fill(&db);
        let (table, map) = (db.table("table").unwrap(), db.map("map").unwrap());
        let mut told = 0;
        db.compact(|_| {
            assert_eq!((table.len(), map.len()), (u64::from(KEYS), u64::from(KEYS)));
            db.put(&table, 0_u32.to_be_bytes(), "new").unwrap().safe().unwrap();
            db.settle().unwrap();
            told += 1;
        })
        .unwrap();
        assert!(told > 10, "{told}");
    });
}

/// It went back where rows settled meanwhile that were still to be passed.
#[test]
fn how_far_compacting_is_never_goes_back() {
    watched("how_far_compacting_is_never_goes_back", PATIENCE, |_| {
        // So that the tree is written anew in many parts.
        let options = manual().settle_memory(16 << 10);
        let db = options.open_on(Arc::new(SimulatedDevice::new(seed()))).unwrap();
        fill(&db);
        let table = db.table("table").unwrap();
        let (mut last, mut told) = (0, 0_u32);
        db.compact(|progress| {
            let done = progress.done_bytes;
            assert!(last <= done && done <= progress.total_bytes, "{progress:?} after {last}");
            (last, told) = (done, told + 1);
            if told.is_multiple_of(8) && told < 80 {
                for row in 0..400 {
                    let behind_all = [u32::MAX, told, row].map(u32::to_be_bytes).concat();
                    db.put(&table, behind_all, [7; 100]).unwrap().forget();
                }
                db.persist().unwrap();
                db.settle().unwrap();
            }
        })
        .unwrap();
        assert!(told > 20, "{told}");
    });
}

#[test]
fn c5_compacting_on_a_full_disk_ends_and_loses_nothing() {
    watched("c5_compacting_on_a_full_disk", PATIENCE, |_| {
        let disk = SimulatedDevice::new(seed());
        let db = manual().open_on(Arc::new(disk.clone())).unwrap();
        fill(&db);
        thin_out(&db);
        disk.set_capacity(Some(disk.used_bytes()));
        let map = db.map("map").unwrap();
        let full = (0..10_000_u32).find_map(|key| db.put(&map, key.to_be_bytes(), vec![0; 900]).err());
        assert_eq!(full.expect("the disk is full").kind(), ErrorKind::NoSpace);
        // What settles, or is dropped, makes room.
        if let Err(error) = db.compact(|_| {}) {
            assert_eq!(error.kind(), ErrorKind::NoSpace);
        }
        disk.set_capacity(None);
        db.compact(|_| {}).unwrap();
        let report = db.check().unwrap();
        assert!(report.problems.is_empty(), "{report}");
    });
}

#[test]
fn c1_compacting_goes_on_beside_writers_and_readers_and_ends_when_the_database_is_closed() {
    watched("c1_compacting_goes_on_beside_writers", 3 * PATIENCE, |_| {
        let disk = SimulatedDevice::new(seed());
        let db = background().settle_log_bytes(64 << 10).open_on(Arc::new(disk.clone())).unwrap();
        fill(&db);
        let (table, map) = (db.table("table").unwrap(), db.map("map").unwrap());
        let ended = AtomicBool::new(false);
        let sum = thread::scope(|scope| {
            let compacting = scope.spawn(|| {
                loop {
                    match db.compact(|_| {}) {
                        Ok(_) => {}
                        Err(error) => return error,
                    }
                }
            });
            let reading = scope.spawn(|| {
                let mut random = Random::new(seed());
                while !ended.load(Ordering::SeqCst) {
                    let key = (random.below(KEYS as usize) as u32).to_be_bytes();
                    let pair = db.transact(|tx| Ok((tx.get(&table, key)?, tx.get(&map, key)?)));
                    let (row, entry) = pair.unwrap().forget();
                    assert!(row == entry, "{key:?}");
                }
            });
            let mut random = Random::new(seed() + 1);
            for round in 0..3_000_u32 {
                let key = (random.below(KEYS as usize) as u32).to_be_bytes();
                let put = db.transact(|tx| {
                    tx.put(&table, key, round.to_be_bytes())?;
                    tx.put(&map, key, round.to_be_bytes())
                });
                put.unwrap().forget();
            }
            ended.store(true, Ordering::SeqCst);
            reading.join().unwrap();
            let rows = db.transact(|tx| tx.range::<&[u8]>(&table, ..).collect::<kiln::Result<Vec<_>>>());
            let rows = rows.unwrap().forget();
            db.close().unwrap();
            assert_eq!(compacting.join().unwrap().kind(), ErrorKind::Aborted);
            rows
        });
        drop(db);
        let db = reopen(&disk).unwrap();
        let table = db.table("table").unwrap();
        let rows = db.transact(|tx| tx.range::<&[u8]>(&table, ..).collect::<kiln::Result<Vec<_>>>());
        assert!(rows.unwrap().forget() == sum);
    });
}

/// Who walks over a map knows where the keys' records are before they are read: when a segment had been dropped in between, its keys were
/// taken for another object's. They are there throughout, each in a record that was written anew.
#[test]
fn c2_a_walk_over_a_map_meets_all_keys_whose_records_move_meanwhile() {
    watched("c2_a_walk_over_a_map_meets_all_keys", PATIENCE, |_| {
        // A few to each bucket of the index.
        const COUNT: u32 = 1_500;
        type Happening = Box<dyn FnOnce() + Send>;
        let at_next_read = Arc::new(Mutex::new(None::<Happening>));
        let next_read = at_next_read.clone();
        let device = HookedDevice::on(&SimulatedDevice::new(seed()), move |operation, _| {
            let happening = next_read.lock().unwrap().take_if(|_| operation == Operation::Read);
            if let Some(happening) = happening {
                happening();
            }
        });
        let db = lazy().open_on(device).unwrap();
        let map = db.map("map").unwrap();
        (0..COUNT).for_each(|number| db.put(&map, key(number), [7; 200]).unwrap().forget());
        make_cold(&db, &db.map("ballast").unwrap());
        let compacted = db.clone();
        *at_next_read.lock().unwrap() = Some(Box::new(move || _ = compacted.compact(|_| {}).unwrap()));
        let (next, mut keys) = db.scan_map_keys(&map, 0, usize::MAX).unwrap();
        assert!(next == 0 && at_next_read.lock().unwrap().is_none(), "the walk has read, and has ended");
        keys.sort();
        assert!(keys.into_iter().eq((0..COUNT).map(|number| key(number).to_vec())), "a walk misses keys");
    });
}
