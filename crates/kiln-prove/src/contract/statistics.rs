//! C3, C4, C5: what statistics tell of the log, of writes, and of work in the background, while all of it goes on.

use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use kiln::device::{Fault, FaultKind, OperationKind, SimulatedDevice};
use kiln::{Kiln, Statistics};

use super::cold::{key, lazy, make_cold};
use super::hooked::{HookedDevice, Operation};
use crate::support::manual;
use crate::testing::{PATIENCE, background, seed, watched};

/// So few that their records have room in what is prepared: else the database hardens by itself.
const KEYS: u32 = 100;

fn put_all(db: &Kiln, value: u8) {
    let map = db.map("map").unwrap();
    (0..KEYS).for_each(|number| db.put(&map, key(number), [value; 100]).unwrap().forget());
}

/// Updates in place, copied updates, inserts.
fn writes(statistics: &Statistics) -> [u64; 3] {
    [statistics.updates_in_place, statistics.updates_copied, statistics.inserts]
}

#[test]
fn c5_each_record_is_told_to_be_not_durable_or_durable_and_where_it_is_then() {
    let db = lazy().open_on(Arc::new(SimulatedDevice::new(seed()))).unwrap();
    let ballast = db.map("ballast").unwrap();
    drop(db.map("map").unwrap());
    db.persist().unwrap();
    let before = db.statistics();
    assert_eq!((before.unhardened_records, before.on_disk_only_records), (0, 0));
    put_all(&db, 1);
    assert_eq!(db.statistics().unhardened_records, u64::from(KEYS));
    // In place, so that there are no more of them.
    put_all(&db, 2);
    let committed = db.statistics();
    assert_eq!(committed.unhardened_records, u64::from(KEYS));
    assert!(committed.unhardened_bytes > u64::from(KEYS) * 100, "{committed:?}");
    assert_eq!(committed.hardened_in_memory_records, before.hardened_in_memory_records);
    db.persist().unwrap();
    let hardened = db.statistics();
    assert_eq!((hardened.unhardened_records, hardened.unhardened_bytes), (0, 0));
    assert_eq!(hardened.hardened_records, before.hardened_records + u64::from(KEYS));
    let known = hardened.hardened_in_memory_records + hardened.on_disk_only_records;
    assert_eq!(known, hardened.hardened_records, "{hardened:?}");
    make_cold(&db, &ballast);
    let cold = db.statistics();
    // A segment's records are taken to be of one length, and the ballast is longer.
    assert!(cold.on_disk_only_records >= u64::from(KEYS) * 3 / 4, "{cold:?}");
    let known = cold.on_disk_only_records + cold.hardened_in_memory_records;
    assert_eq!(known, cold.hardened_records, "{cold:?}");
    assert_eq!(cold.on_disk_only_bytes, cold.log_head - cold.log_begin);
    let (all, parts) =
        (cold.log_tail - cold.log_begin, cold.on_disk_only_bytes + cold.hardened_in_memory_bytes);
    // Between them is the room of the next seal.
    assert!((all - 4096..=all).contains(&(parts + cold.unhardened_bytes)), "{cold:?}");
}

#[test]
fn c4_a_record_of_a_closed_version_is_told_to_be_copied_and_one_of_the_current_version_to_be_updated_in_place()
 {
    let db = manual().open_on(Arc::new(SimulatedDevice::new(seed()))).unwrap();
    let (map, table) = (db.map("map").unwrap(), db.table("table").unwrap());
    db.persist().unwrap();
    let mut before = writes(&db.statistics());
    let mut since = || {
        let now = writes(&db.statistics());
        let since = [0, 1, 2].map(|at| now[at] - before[at]);
        before = now;
        since
    };
    db.put(&map, "key", "one").unwrap().forget();
    assert_eq!(since(), [0, 0, 1]);
    db.put(&map, "key", "two").unwrap().forget();
    assert_eq!(since(), [1, 0, 0]);
    db.put(&map, "key", "one that is longer").unwrap().forget();
    assert_eq!(since(), [0, 1, 0]);
    db.persist().unwrap();
    db.put(&map, "key", "one that is closed").unwrap().forget();
    assert_eq!(since(), [0, 1, 0]);
    db.transact(|tx| tx.put(&map, "key", "one as long as it ").and_then(|()| tx.put(&table, "key", "")))
        .unwrap()
        .forget();
    assert_eq!(since(), [1, 0, 1]);
    db.delete(&map, "key").unwrap().forget();
    db.delete(&map, "absent").unwrap().forget();
    assert_eq!(since(), [0, 1, 0]);
    db.add_many(&map, &[("sum", 1), ("sum", 2), ("sum", 3)]).unwrap().forget();
    assert_eq!(since(), [2, 0, 1]);
}

#[test]
fn c4_no_write_is_left_out_whatever_threads_write_at_the_same_time() {
    const ROUNDS: u32 = 20;
    let db = background().open_on(Arc::new(SimulatedDevice::new(seed()))).unwrap();
    drop(db.map("map").unwrap());
    db.persist().unwrap();
    let before = writes(&db.statistics());
    thread::scope(|scope| {
        (0..4).for_each(|thread| {
            drop(scope.spawn({
                let db = &db;
                move || (0..ROUNDS).for_each(|_| put_all(db, thread))
            }))
        });
    });
    let after = writes(&db.statistics());
    assert_eq!(after[2] - before[2], u64::from(KEYS));
    assert_eq!(after.iter().sum::<u64>() - before.iter().sum::<u64>(), 4 * u64::from(ROUNDS * KEYS));
    db.persist().unwrap();
    assert_eq!(db.statistics().unhardened_records, 0);
}

#[test]
fn c3_statistics_tell_how_far_compaction_has_come_while_it_goes_on() {
    watched("c3_statistics_tell_how_far_compaction_has_come", PATIENCE, |_| {
        let db = lazy().open_on(Arc::new(SimulatedDevice::new(seed()))).unwrap();
        // All of it is live.
        let map = db.map("map").unwrap();
        for number in 0..4_000 {
            db.put(&map, key(number), [1; 500]).unwrap().forget();
        }
        db.persist().unwrap();
        let idle = db.statistics();
        assert_eq!((idle.compaction_done_bytes, idle.compaction_total_bytes), (0, 0));
        let mut seen = Vec::new();
        let look = |_| {
            let now = db.statistics();
            seen.push((now.compaction_done_bytes, now.compaction_total_bytes));
        };
        db.compact(look).unwrap();
        let under_way: Vec<_> = seen.iter().filter(|(_, total)| *total > 0).collect();
        assert!(under_way.iter().any(|(done, total)| *done > 0 && done < total), "{seen:?}");
        assert!(under_way.iter().all(|(done, total)| done <= total && *total <= idle.log_tail), "{seen:?}");
        let idle = db.statistics();
        assert_eq!((idle.compaction_done_bytes, idle.compaction_total_bytes), (0, 0));
    });
}

#[test]
fn c3_statistics_tell_how_far_a_checkpoint_has_come_while_it_is_taken() {
    watched("c3_statistics_tell_how_far_a_checkpoint_has_come", PATIENCE, |_| {
        let (shared, seen) = (Arc::new(Mutex::new(None::<Kiln>)), Arc::new(Mutex::new(Vec::new())));
        let (db_of_hook, seen_by_hook) = (shared.clone(), seen.clone());
        let device = HookedDevice::on(&SimulatedDevice::new(seed()), move |operation, name| {
            let db = db_of_hook.lock().unwrap().clone();
            if let (Operation::Write(_), true, Some(db)) = (operation, name.starts_with("checkpoint"), db) {
                let now = db.statistics();
                seen_by_hook.lock().unwrap().push((now.checkpoint_done_steps, now.checkpoint_total_steps));
            }
        });
        let db = manual().memory(1 << 20).open_on(device).unwrap();
        let table = db.table("table").unwrap();
        for number in 0..60_000_u32 {
            db.put(&table, [key(number).as_slice(), &[7; 20]].concat(), "value").unwrap().forget();
        }
        *shared.lock().unwrap() = Some(db.clone());
        db.persist().unwrap();
        assert!(db.checkpoint().unwrap() || db.statistics().checkpoints > 0);
        *shared.lock().unwrap() = None;
        let seen = seen.lock().unwrap();
        assert!(seen.len() > 2, "{seen:?}");
        assert!(seen.iter().all(|(done, total)| done < total), "{seen:?}");
        assert!(seen.is_sorted_by_key(|&(done, _)| done) && seen[seen.len() - 1].0 > seen[0].0, "{seen:?}");
        let idle = db.statistics();
        assert_eq!((idle.checkpoint_done_steps, idle.checkpoint_total_steps), (0, 0));
    });
}

/// They looked into the tree for each table's number of rows, and waited for a disk that had stopped, as whoever watches for that did.
#[test]
fn c5_statistics_read_nothing_from_disk() {
    const ROWS: u32 = 4_000;
    let disk = SimulatedDevice::new(seed());
    let db = manual().open_on(Arc::new(disk.clone())).unwrap();
    let table = db.table("table").unwrap();
    (0..ROWS).for_each(|number| db.put(&table, key(number), [1; 100]).unwrap().forget());
    db.persist().unwrap();
    assert_eq!(db.settle().unwrap(), u64::from(ROWS));
    db.close().unwrap();
    drop((db, table));
    let db = manual().open_on(Arc::new(disk.clone())).unwrap();
    let slow = FaultKind::Delay(Duration::ZERO);
    disk.inject(Fault { operation: OperationKind::Read, nth: 1, kind: slow, sticky: true });
    let statistics = db.statistics();
    assert_eq!(statistics.settled_rows, u64::from(ROWS));
    // The catalog has some, too.
    assert!((1..10).contains(&(statistics.keys - u64::from(ROWS))), "{}", statistics.keys);
    assert_eq!(db.pressure().oldest_unhardened, None);
    assert_eq!(disk.faults_fired(), 0, "the disk was read");
    let table = db.table("table").unwrap();
    db.put(&table, "new", "row").unwrap().forget();
    assert!(db.pressure().oldest_unhardened.is_some(), "it is not durable");
}
