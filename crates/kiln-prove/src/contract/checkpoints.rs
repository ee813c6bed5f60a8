//! Checkpoints: opening from one comes to the same as from the whole log, whatever went on while it was taken, and what is wrong
//! in one costs time and nothing else.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use kiln::device::{Device, Fault, FaultKind, Keep, OperationKind, SimulatedDevice};
use kiln::{Kiln, Object, Options, check_on};

use super::hooked::{HookedDevice, Operation};
use crate::crash::reopen;
use crate::support::{Random, copy_of, manual};
use crate::testing::{PATIENCE, background, budget, eventually, seed, watched};

/// The name of the newest checkpoint on a disk. The removal of the one before need not be durable.
fn checkpoint_on(disk: &SimulatedDevice) -> String {
    let mut names = disk.list().unwrap();
    names.retain(|name| name.starts_with("checkpoint-"));
    names.pop().expect("there is a checkpoint")
}

/// The same disk, with a checkpoint that cannot be used.
fn without_checkpoint(disk: &SimulatedDevice) -> SimulatedDevice {
    let disk = copy_of(disk);
    let name = checkpoint_on(&disk);
    let mut bytes = disk.bytes(&name);
    bytes[16] ^= 1;
    disk.set_bytes(&name, bytes);
    disk
}

/// A disk after its power has failed, with everything that was durable and nothing else.
fn power_off(disk: &SimulatedDevice, db: Kiln) -> SimulatedDevice {
    disk.crash_after(disk.steps());
    drop(db);
    disk.after_crash(&mut |_| Keep::Lost)
}

/// All that a program can see of a database.
#[derive(Debug, PartialEq, Eq)]
struct Seen {
    horizon: u64,
    objects: Vec<kiln::ObjectInfo>,
    rows: BTreeMap<(String, Vec<u8>), Vec<u8>>,
    map: BTreeMap<Vec<u8>, Vec<u8>>,
    sessions: Vec<(Vec<u8>, u64)>,
}

const TABLES: [&str; 2] = ["one", "two"];

fn seen(db: &Kiln) -> Seen {
    let mut rows = BTreeMap::new();
    for name in TABLES {
        let table = db.table(name).unwrap();
        let snapshot = db.snapshot().unwrap();
        let before = rows.len() as u64;
        for row in snapshot.range::<&[u8]>(&table, ..) {
            let (key, value) = row.unwrap();
            rows.insert((name.to_owned(), key.to_vec()), value.to_vec());
        }
        assert_eq!(rows.len() as u64 - before, table.len());
    }
    let numbers = db.map("numbers").unwrap();
    let (mut map, mut cursor) = (BTreeMap::new(), 0);
    loop {
        let (next, found) = db.scan_map(&numbers, cursor, 64).unwrap();
        map.extend(found);
        cursor = next;
        if cursor == 0 {
            break;
        }
    }
    assert_eq!(map.len() as u64, numbers.len());
    let report = db.recovery_report();
    let check = db.check().unwrap();
    assert!(check.problems.is_empty(), "{check}");
    Seen {
        horizon: report.horizon.number(),
        objects: db.objects(),
        rows,
        map,
        sessions: report.sessions.clone(),
    }
}

/// One change of any kind.
fn change(db: &Kiln, random: &mut Random) {
    let (map, table) = (db.map("numbers").unwrap(), db.table(TABLES[random.below(2)]).unwrap());
    let key = format!("key {}", random.below(300));
    let value = random.bytes(random.clone().below(200));
    match random.below(8) {
        0 => drop(db.delete(&map, &key).unwrap().forget()),
        1 | 2 => drop(db.delete(&table, &key).unwrap().forget()),
        3 => {
            let session = db.session(["first", "second"][random.below(2)]).unwrap();
            session.transact(|tx| tx.put(&map, &key, &value)).unwrap().forget();
        }
        4 | 5 => db.put(&map, &key, &value).unwrap().forget(),
        _ => db.put(&table, &key, &value).unwrap().forget(),
    }
}

#[test]
fn c4_opening_from_a_checkpoint_comes_to_the_same_as_from_the_whole_log() {
    watched("c4_opening_from_a_checkpoint", 5 * PATIENCE, |_| {
        for round in 0..budget(12) {
            let mut random = Random::new(seed() + round);
            let mut disk = SimulatedDevice::new(seed() + round);
            let options = manual().checkpoint_log_bytes(0).memory([0, 8 << 20][random.below(2)]);
            for generation in 0..3 {
                let db = options.open_on(Arc::new(disk.clone())).unwrap();
                for _ in 0..random.below(1_500) {
                    change(&db, &mut random);
                    if random.one_in(12) {
                        db.persist().unwrap();
                    }
                    if random.one_in(200) {
                        db.checkpoint().unwrap();
                    }
                }
                db.persist().unwrap();
                db.checkpoint().unwrap();
                for _ in 0..random.below(200) {
                    change(&db, &mut random);
                }
                if random.one_in(2) {
                    db.persist().unwrap();
                }
                disk = power_off(&disk, db);
                let (from_checkpoint, from_log) = (copy_of(&disk), without_checkpoint(&disk));
                let (one, other) = (reopen(&from_checkpoint).unwrap(), reopen(&from_log).unwrap());
                let (report, log_report) = (one.recovery_report(), other.recovery_report());
                assert!(report.checkpoint.is_some() && report.checkpoint_damage.is_none(), "{report}");
                assert!(
                    log_report.checkpoint.is_none() && log_report.checkpoint_damage.is_some(),
                    "{log_report}"
                );
                assert!(report.records < log_report.records, "{report} but {log_report}");
                assert_eq!(seen(&one), seen(&other), "round {round}, generation {generation}");
            }
        }
    });
}

#[test]
fn c4_after_an_orderly_close_nothing_is_replayed() {
    let disk = SimulatedDevice::new(seed());
    let mut random = Random::new(seed());
    let db = manual().checkpoint_log_bytes(64 << 10).open_on(Arc::new(disk.clone())).unwrap();
    (0..2_000).for_each(|_| change(&db, &mut random));
    let expected = seen(&db);
    assert_eq!(db.statistics().checkpoints, 0, "without background threads it is persist that takes them");
    db.close().unwrap();
    let check = check_on(Arc::new(disk.clone())).unwrap();
    assert!(check.problems.is_empty(), "{check}");
    let db = reopen(&disk).unwrap();
    let report = db.recovery_report();
    assert!(report.clean && report.checkpoint.is_some() && report.records == 0, "{report}");
    let found = seen(&db);
    assert_eq!((found.rows, found.map), (expected.rows, expected.map));
}

#[test]
fn c9_damage_in_a_checkpoint_is_told_and_costs_nothing_but_time() {
    watched("c9_damage_in_a_checkpoint", 5 * PATIENCE, |_| {
        let disk = SimulatedDevice::new(seed());
        let mut random = Random::new(seed());
        let db = manual().checkpoint_log_bytes(0).open_on(Arc::new(disk.clone())).unwrap();
        (0..600).for_each(|_| change(&db, &mut random));
        db.persist().unwrap();
        assert!(db.checkpoint().unwrap());
        (0..20).for_each(|_| change(&db, &mut random));
        db.persist().unwrap();
        let disk = power_off(&disk, db);
        let expected = seen(&reopen(&copy_of(&disk)).unwrap());
        let name = checkpoint_on(&disk);
        let bytes = disk.bytes(&name);
        let step = (bytes.len() as u64 / budget(400)).max(1) as usize;
        for place in (0..bytes.len()).step_by(step) {
            let damaged = copy_of(&disk);
            let mut changed = bytes.clone();
            changed[place] ^= 1 << (place % 8);
            damaged.set_bytes(&name, changed);
            let check = check_on(Arc::new(damaged.clone())).unwrap();
            assert!(check.problems.iter().any(|what| what.contains(&name)), "byte {place}: {check}");
            let db = reopen(&damaged).unwrap();
            let told = db.recovery_report().checkpoint_damage.as_ref().expect("damage is told");
            assert!(told.contains(&name), "byte {place}: {told}");
            if place % 16 < step {
                assert_eq!(seen(&db), expected, "byte {place}");
            }
        }
        for cut in [0, 1, 4_096, bytes.len() - 4_096, bytes.len() - 1] {
            let damaged = copy_of(&disk);
            damaged.set_bytes(&name, &bytes[..cut]);
            let db = reopen(&damaged).unwrap();
            assert!(db.recovery_report().checkpoint_damage.is_some(), "cut to {cut} bytes");
            assert_eq!(seen(&db), expected, "cut to {cut} bytes");
        }
        let missing = copy_of(&disk);
        missing.remove(&name).unwrap();
        let db = reopen(&missing).unwrap();
        assert!(db.recovery_report().checkpoint_damage.is_some());
        assert_eq!(seen(&db), expected);
    });
}

#[test]
fn c4_a_checkpoint_that_the_log_has_left_behind_is_not_used() {
    let disk = SimulatedDevice::new(seed());
    let db =
        manual().checkpoint_log_bytes(0).space_amplification(1.1).open_on(Arc::new(disk.clone())).unwrap();
    let (map, table) = (db.map("map").unwrap(), db.table("table").unwrap());
    let put = |round: u32| {
        for key in 0..40_u32 {
            db.put(&map, key.to_be_bytes(), vec![round as u8; 2_000]).unwrap().forget();
            db.put(&table, key.to_be_bytes(), vec![round as u8; 500]).unwrap().forget();
        }
        db.persist().unwrap();
    };
    put(0);
    assert!(db.checkpoint().unwrap());
    let end = db.statistics().log_tail;
    (1..40).for_each(put);
    assert!(db.statistics().log_begin > end, "the log's beginning was dropped");
    let check = db.check().unwrap();
    assert!(check.problems.is_empty(), "{check}");
    let disk = power_off(&disk, db.clone());
    drop((map, table, db));
    let db = reopen(&disk).unwrap();
    let report = db.recovery_report();
    assert!(report.checkpoint.is_none() && report.checkpoint_damage.is_none(), "{report}");
    let (map, table) = (db.map("map").unwrap(), db.table("table").unwrap());
    assert_eq!((map.len(), table.len()), (40, 40));
    for key in 0..40_u32 {
        assert!(db.get(&map, key.to_be_bytes()).unwrap().unwrap() == vec![39; 2_000]);
        assert!(db.get(&table, key.to_be_bytes()).unwrap().unwrap() == vec![39; 500]);
    }
    let check = db.check().unwrap();
    assert!(check.problems.is_empty(), "{check}");
    assert!(!disk.list().unwrap().iter().any(|name| name.starts_with("checkpoint")));
}

/// What a checkpoint says of deleted keys: of a map, beside a table that has settled; and of those that were forgotten, with their
/// part of the log, once nobody needed them any more.
#[test]
fn c4_deletions_that_a_checkpoint_has_stay_deletions() {
    for forgets in [false, true] {
        let disk = SimulatedDevice::new(seed());
        let options = manual().checkpoint_log_bytes(0).space_amplification(1.1);
        let db = options.open_on(Arc::new(disk.clone())).unwrap();
        let (map, table) = (db.map("map").unwrap(), db.table("table").unwrap());
        let put = |round: u8| {
            for key in 0..40_u8 {
                db.put(&map, [key], vec![round; 2_000]).unwrap().forget();
            }
            db.persist().unwrap();
        };
        db.put(&table, "settled", "value").unwrap().forget();
        db.put(&map, "deleted", "value").unwrap().safe().unwrap();
        match forgets {
            true => drop(db.create_snapshot("held").unwrap()),
            false => assert_eq!(db.settle().unwrap(), 1),
        }
        db.delete(&map, "deleted").unwrap().safe().unwrap();
        if forgets {
            (0..3).for_each(put);
        }
        assert!(db.checkpoint().unwrap());
        let end = db.statistics().log_tail;
        if forgets {
            assert_eq!(db.statistics().log_begin, 0, "the snapshot holds what was deleted");
            db.drop_snapshot("held").unwrap();
            for _ in (0..20).take_while(|_| db.statistics().log_begin == 0) {
                db.put(&map, "another", "value").unwrap().forget();
                db.persist().unwrap();
            }
            let begin = db.statistics().log_begin;
            assert!((1..end).contains(&begin), "the log begins at {begin}, the checkpoint ends at {end}");
        }
        let disk = power_off(&disk, db.clone());
        drop((map, table, db));
        let db = reopen(&disk).unwrap();
        assert!(db.recovery_report().checkpoint.is_some(), "{}", db.recovery_report());
        let (map, table) = (db.map("map").unwrap(), db.table("table").unwrap());
        assert_eq!(db.get(&map, "deleted").unwrap(), None);
        assert_eq!((map.len(), table.len()), (if forgets { 41 } else { 0 }, 1));
        let check = db.check().unwrap();
        assert!(check.is_clean(), "{check}");
    }
}

/// Writers that never rest, each with keys of its own, while one checkpoint after the other is taken: the index grows, records move,
/// keys come and go.
#[test]
fn c4_checkpoints_are_exact_whatever_is_committed_meanwhile() {
    watched("c4_checkpoints_are_exact", 5 * PATIENCE, |_| {
        let disk = SimulatedDevice::new(seed());
        let options = background().space_amplification(1.3).checkpoint_log_bytes(0);
        let db = options.window(Duration::from_millis(5)).open_on(Arc::new(disk.clone())).unwrap();
        drop((db.map("numbers").unwrap(), TABLES.map(|name| db.table(name).unwrap())));
        let (stop, changes) = (AtomicBool::new(false), AtomicU64::new(0));
        thread::scope(|scope| {
            for writer in 0..3_u64 {
                let (db, stop, changes) = (&db, &stop, &changes);
                scope.spawn(move || {
                    let mut random = Random::new(seed() + writer);
                    let (map, table) = (db.map("numbers").unwrap(), db.table(TABLES[0]).unwrap());
                    while !stop.load(Ordering::Relaxed) {
                        // Keys become more with time.
                        let most = 200 + changes.fetch_add(1, Ordering::Relaxed) as usize / 4;
                        let key = format!("{writer}/{}", random.below(most.min(20_000)));
                        let value = random.bytes(random.clone().below(60));
                        match random.below(6) {
                            0 => drop(db.delete(&map, &key).unwrap().forget()),
                            1 => drop(db.delete(&table, &key).unwrap().forget()),
                            2 | 3 => db.put(&map, &key, value).unwrap().forget(),
                            _ => db.put(&table, &key, value).unwrap().forget(),
                        }
                    }
                });
            }
            for _ in 0..budget(20) {
                let before = changes.load(Ordering::Relaxed);
                eventually("the writers go on", || changes.load(Ordering::Relaxed) > before + 500);
                // There is none before more is durable.
                eventually("there is something for a checkpoint", || db.checkpoint().unwrap());
            }
            stop.store(true, Ordering::Relaxed);
        });
        db.persist().unwrap();
        let disk = power_off(&disk, db);
        let (from_checkpoint, from_log) = (copy_of(&disk), without_checkpoint(&disk));
        let (one, other) = (reopen(&from_checkpoint).unwrap(), reopen(&from_log).unwrap());
        assert!(one.recovery_report().checkpoint.is_some(), "{}", one.recovery_report());
        assert_eq!(seen(&one), seen(&other));
    });
}

#[test]
fn c4_the_background_takes_checkpoints_and_bounds_what_is_replayed() {
    watched("c4_the_background_takes_checkpoints", 2 * PATIENCE, |_| {
        const LOG_BYTES: u64 = 512 << 10;
        let disk = SimulatedDevice::new(seed());
        let options: Options = background().checkpoint_log_bytes(LOG_BYTES);
        let db = options.open_on(Arc::new(disk.clone())).unwrap();
        let map = db.map("map").unwrap();
        for number in 0..20_000_u32 {
            db.put(&map, (number % 3_000).to_be_bytes(), vec![number as u8; 200]).unwrap().forget();
        }
        db.persist().unwrap();
        eventually("a checkpoint is taken", || db.statistics().log_since_checkpoint < 2 * LOG_BYTES);
        let statistics = db.statistics();
        assert!(statistics.checkpoints > 0 && statistics.checkpoint_bytes > 3_000 * 8, "{statistics:?}");
        assert!(statistics.checkpoint_age.is_some());
    });
}

/// What is written behind the end of a checkpoint, and has left memory, takes a read from disk for each key: if that were not bounded, the
/// checkpoint would take long, and all that waits for it, settling and sweeping, too.
#[test]
fn a_checkpoint_in_the_background_that_writers_have_overtaken_is_given_up() {
    watched("a_checkpoint_in_the_background_that_writers_have_overtaken", 2 * PATIENCE, |_| {
        const KEYS: u32 = 200_000;
        /// As the engine's bound.
        const READS_MAX: u64 = 1 << 13;
        let disk = SimulatedDevice::new(seed());
        let (is_begun, is_held) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(true)));
        let (begun, held) = (is_begun.clone(), is_held.clone());
        let device = HookedDevice::on(&disk, move |operation, name| {
            if name == "checkpoint.new" && matches!(operation, Operation::Open) {
                begun.store(true, Ordering::Relaxed);
                // Before it has looked at any entry: all that are written meanwhile it has to follow back.
                eventually("the checkpoint may go on", || !held.load(Ordering::Relaxed));
            }
        });
        let options = background().segment_bytes(64 << 10).memory(512 << 10).checkpoint_log_bytes(7 << 20);
        let db = options.space_amplification(f64::INFINITY).open_on(device).unwrap();
        let map = db.map("map").unwrap();
        let put_all = |value: u32| {
            // One in four stays as it is, so that the log does.
            let keys = (0..KEYS).filter(|key| value == 0 || key % 4 != 0);
            keys.for_each(|key| db.put(&map, key.to_be_bytes(), value.to_le_bytes()).unwrap().forget());
            db.persist().unwrap();
        };
        let is_at_it = || disk.list().unwrap().iter().any(|name| name == "checkpoint.new");
        put_all(0);
        eventually("a checkpoint is begun", || is_begun.load(Ordering::Relaxed));
        put_all(1);
        let before = db.statistics();
        assert!(before.log_head > before.log_tail / 2, "what was written anew is on disk: {before:?}");
        is_held.store(false, Ordering::Relaxed);
        let is_given_up = || db.statistics().cold_reads > before.cold_reads + READS_MAX / 2 && !is_at_it();
        eventually("the checkpoint is given up", is_given_up);
        let after = db.statistics();
        let reads = after.cold_reads - before.cold_reads;
        assert!((READS_MAX / 2..READS_MAX + 1_000).contains(&reads), "{reads} records were read: {after:?}");
        assert_eq!(after.checkpoints, 0, "{after:?}");
        // Now that nobody writes the next one is not overtaken, and needs no more of the log for being due.
        eventually("a checkpoint is taken", || db.statistics().checkpoints > 0);
        let disk = power_off(&disk, db);
        let db = reopen(&disk).unwrap();
        assert!(db.recovery_report().checkpoint.is_some(), "{}", db.recovery_report());
        let map = db.map("map").unwrap();
        (0..KEYS).step_by(101).for_each(|key| {
            let value = u32::from(key % 4 != 0).to_le_bytes();
            assert_eq!(db.get(&map, key.to_be_bytes()).unwrap().as_deref(), Some(&value[..]));
        });
    });
}

/// It has keys that came while it was taken, and no entries for them: so many short ones were taken for impossible.
#[test]
fn c9_a_checkpoint_while_which_a_table_grew_manifold_is_used() {
    const ROWS: u64 = 20_000;
    let disk = SimulatedDevice::new(seed());
    let (is_begun, is_held) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(true)));
    let (begun, held) = (is_begun.clone(), is_held.clone());
    let device = HookedDevice::on(&disk, move |operation, name| {
        if name == "checkpoint.new" && matches!(operation, Operation::Open) {
            begun.store(true, Ordering::Relaxed);
            eventually("the checkpoint may go on", || !held.load(Ordering::Relaxed));
        }
    });
    let options = manual().memory(64 << 20).checkpoint_log_bytes(0);
    let db = options.open_on(device).unwrap();
    let table = db.table("table").unwrap();
    db.put(&table, 0_u64.to_be_bytes(), "").unwrap().safe().unwrap();
    std::thread::scope(|scope| {
        let taking = scope.spawn(|| db.checkpoint().unwrap());
        eventually("a checkpoint is begun", || is_begun.load(Ordering::Relaxed));
        (1..ROWS).for_each(|number| db.put(&table, number.to_be_bytes(), "").unwrap().forget());
        is_held.store(false, Ordering::Relaxed);
        assert!(taking.join().unwrap());
    });
    db.persist().unwrap();
    let check = db.check().unwrap();
    assert!(check.is_clean(), "{check}");
    let disk = power_off(&disk, db);
    let db = reopen(&disk).unwrap();
    let report = db.recovery_report();
    assert!(report.checkpoint.is_some() && report.checkpoint_damage.is_none(), "{report}");
    assert_eq!(db.table("table").unwrap().len(), ROWS);
}

/// The second was written over the first, which had the same number, while the superblock on disk named that with its checksum.
#[test]
fn c9_a_checkpoint_that_the_superblock_may_name_is_not_written_over() {
    let disk = SimulatedDevice::new(seed());
    let attempts = Arc::new(AtomicU64::new(0));
    let (meddled_with, attempt) = (disk.clone(), attempts.clone());
    let device = HookedDevice::on(&disk, move |operation, name| {
        let sync_fails =
            Fault { operation: OperationKind::Sync, nth: 1, kind: FaultKind::EIO, sticky: false };
        match (attempt.load(Ordering::SeqCst), operation) {
            (1, Operation::Sync) if name == "superblock" => meddled_with.inject(sync_fails),
            (2, Operation::Rename) if name == "checkpoint.new" => {
                meddled_with.crash_after(meddled_with.steps() + 1)
            }
            _ => {}
        }
    });
    let db = manual().open_on(device).unwrap();
    let map = db.map("map").unwrap();
    for (attempt, value) in [(1, "first"), (2, "second")] {
        db.put(&map, "key", value).unwrap().safe().unwrap();
        attempts.store(attempt, Ordering::SeqCst);
        db.checkpoint().expect_err("the disk has failed");
        attempts.store(0, Ordering::SeqCst);
    }
    drop((map, db));
    let db = reopen(&copy_of(&disk)).unwrap();
    let report = db.recovery_report();
    assert!(report.checkpoint_damage.is_none(), "{report}");
    assert!(report.checkpoint.is_some(), "the superblock names the first: {report}");
    assert_eq!(db.get(&db.map("map").unwrap(), "key").unwrap().unwrap(), b"second");
}

/// Each that the superblock could not be made to name takes space until the next one.
#[test]
fn c9_checkpoints_that_came_to_nothing_are_removed_with_the_one_before() {
    let disk = SimulatedDevice::new(seed());
    let is_failing = Arc::new(AtomicBool::new(false));
    let (meddled_with, fails) = (disk.clone(), is_failing.clone());
    let device = HookedDevice::on(&disk, move |operation, name| {
        if operation == Operation::Sync && name == "superblock" && fails.load(Ordering::SeqCst) {
            meddled_with.inject(Fault {
                operation: OperationKind::Sync,
                nth: 1,
                kind: FaultKind::EIO,
                sticky: false,
            });
        }
    });
    let db = manual().open_on(device).unwrap();
    let map = db.map("map").unwrap();
    let mut attempt = |fails| {
        is_failing.store(fails, Ordering::SeqCst);
        db.put(&map, "key", "value").unwrap().safe().unwrap();
        assert_eq!(db.checkpoint().is_err(), fails);
        disk.list().unwrap().iter().filter(|name| name.starts_with("checkpoint-")).count()
    };
    assert_eq!([false, true, true, false].map(&mut attempt), [1, 2, 3, 1]);
}
