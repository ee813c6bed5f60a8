//! C5, C8: what it means that a database is closed, for who closes it and for who still has something of it.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use kiln::device::{Device as _, Fault, FaultKind, OperationKind, SimulatedDevice};
use kiln::{ErrorKind, Expiry, Kiln, Level, Progress};

use super::cold::{key, make_cold};
use super::gate::{OpenAtEnd, gated_device};
use crate::support::manual;
use crate::testing::{PATIENCE, background, block_on, eventually, seed, watched};

/// Uses a database, and closes it, in the drop of a thread-local value: the last one of them that is dropped.
struct LastDeeds(Kiln);

impl Drop for LastDeeds {
    fn drop(&mut self) {
        let db = &self.0;
        let (map, table) = (db.map("map").unwrap(), db.table("table").unwrap());
        db.put(&map, "last", "value").unwrap().forget();
        assert_eq!(db.get(&map, "first").unwrap().unwrap(), b"value");
        assert_eq!(db.get(&table, "settled").unwrap().unwrap(), b"value");
        let first = db.begin().unwrap();
        first.get(&map, "key").unwrap();
        first.put(&table, "key", "1").unwrap();
        db.transact(|tx| tx.put(&map, "key", "2").and_then(|()| tx.put(&table, "key", "2")))
            .unwrap()
            .forget();
        assert!(first.commit().unwrap_err().is_conflict());
        let snapshot = db.snapshot().unwrap();
        assert_eq!(snapshot.range::<&[u8]>(&table, ..).count(), 2);
        drop(snapshot);
        db.settle().unwrap();
    }
}

/// It panicked there, which ends the process.
#[test]
fn c8_a_thread_that_ends_may_use_and_close_a_database_while_it_drops_what_it_has() {
    thread_local! {
        static LAST: RefCell<Option<LastDeeds>> = const { RefCell::new(None) };
    }
    for options in [manual(), background()] {
        let disk = SimulatedDevice::new(1);
        let opened = options.clone();
        let device = Arc::new(disk.clone());
        let life = move || {
            // First used, and so dropped last.
            LAST.with(|last| last.borrow_mut().take());
            let db = opened.open_on(device).unwrap();
            db.put(&db.table("table").unwrap(), "settled", "value").unwrap().safe().unwrap();
            db.settle().unwrap();
            db.put(&db.map("map").unwrap(), "first", "value").unwrap().forget();
            LAST.with(|last| last.replace(Some(LastDeeds(db))));
        };
        thread::spawn(life).join().unwrap();
        let db = options.open_on(Arc::new(disk.clone())).unwrap();
        assert_eq!(db.get(&db.map("map").unwrap(), "last").unwrap().unwrap(), b"value");
        assert_eq!(db.get(&db.table("table").unwrap(), "key").unwrap().unwrap(), b"2");
    }
}

/// The first row that expires is told by the superblock, which was that of the next owner by then: what this one had dropped of the log, or settled,
/// the superblock forgot.
#[test]
fn c8_who_has_a_handle_of_a_closed_database_writes_nothing_into_that_of_the_next_owner() {
    type Deed = fn(&Kiln) -> kiln::Result<()>;
    let deeds: [Deed; 6] = [
        |db| db.put_expiring(&db.map("map")?, "key", "value", Expiry::At(u64::MAX))?.safe(),
        |db| db.transact(|tx| tx.put_expiring(&db.map("map")?, "key", "value", Expiry::At(u64::MAX)))?.safe(),
        |db| db.map_with_time_to_live("other", Duration::from_secs(1)).map(drop),
        |db| db.create_snapshot("name").map(drop),
        |db| db.settle().map(drop),
        |db| db.put(&db.map("map")?, "key", "value")?.safe().map(drop),
    ];
    for (number, deed) in deeds.into_iter().enumerate() {
        let disk = SimulatedDevice::new(1);
        let open = || manual().open_on(Arc::new(disk.clone())).unwrap();
        let old = open();
        let map = old.map("map").unwrap();
        old.put(&map, "key", "1").unwrap().safe().unwrap();
        old.close().unwrap();
        let new = open();
        let map = new.map("map").unwrap();
        new.put(&map, "key", "2").unwrap().safe().unwrap();
        let steps = disk.steps();
        let refused = deed(&old).expect_err("it is closed");
        assert_eq!(refused.kind(), ErrorKind::Aborted, "deed {number}: {refused}");
        assert_eq!(disk.steps(), steps, "deed {number} writes where another one is at work");
        new.close().unwrap();
        let again = open();
        let found = again.get(&again.map("map").unwrap(), "key").unwrap();
        assert_eq!(found.as_deref(), Some(&b"2"[..]), "deed {number}");
    }
}

#[test]
fn c8_who_closes_while_another_does_is_told_when_everything_is_durable() {
    watched("c8_who_closes_while_another_does", PATIENCE, |_| {
        let (device, gate) = gated_device(&SimulatedDevice::new(1));
        let db = manual().open_on(device).unwrap();
        let _open = OpenAtEnd(gate.clone());
        let map = db.map("map").unwrap();
        let (_, receipt) = db.put(&map, "key", "value").unwrap().fast();
        gate.shut();
        thread::scope(|scope| {
            let close = || {
                db.close().unwrap();
                assert_eq!(receipt.poll(Level::LOCAL), Progress::Durable);
            };
            let first = scope.spawn(close);
            gate.wait_until_stuck();
            let second = scope.spawn(close);
            // Time for it to return too early.
            thread::sleep(Duration::from_millis(50));
            gate.open();
            first.join().unwrap();
            second.join().unwrap();
        });
        db.close().unwrap();
    });
}

#[test]
fn c8_a_database_that_could_not_be_closed_says_so_each_time() {
    let disk = SimulatedDevice::new(1);
    let db = manual().open_on(Arc::new(disk.clone())).unwrap();
    let map = db.map("map").unwrap();
    db.put(&map, "key", "value").unwrap().forget();
    disk.inject(Fault { operation: OperationKind::Sync, nth: 1, kind: FaultKind::EIO, sticky: false });
    for time in 0..3 {
        assert_eq!(db.close().expect_err("the sync has failed").kind(), ErrorKind::Lost, "time {time}");
    }
}

/// Nothing was committed in the version that was the newest at the end, and nobody was left to say so.
#[test]
fn c5_receipts_of_the_last_version_end_after_closing() {
    for options in [manual(), background()] {
        let db = options.open_on(Arc::new(SimulatedDevice::new(1))).unwrap();
        db.close().unwrap();
        for _ in 0..2 {
            let receipt = db.receipt(db.version());
            block_on(receipt.durable(Level::LOCAL)).unwrap();
            block_on(db.receipt(db.version()).durable_leading(Level::LOCAL)).unwrap();
            assert!(db.receipt(db.version()).wait_timeout(Level::LOCAL, PATIENCE).unwrap());
            // Which goes on to another version.
            db.persist().unwrap();
        }
    }
}

/// Closing told nobody what it had made durable before a load had come to its end.
#[test]
fn c5_a_load_that_waits_for_what_closing_makes_durable_is_told() {
    watched("c5_a_load_that_waits", PATIENCE, |_| {
        for has_background in [false, true] {
            let options = if has_background { background() } else { manual() };
            // Nobody hardens but who closes.
            let options = options.window(Duration::from_secs(3600));
            let db = options.open_on(Arc::new(SimulatedDevice::new(1))).unwrap();
            let map = db.map("map").unwrap();
            let (begun, begins) = channel();
            thread::scope(|scope| {
                scope.spawn(|| {
                    let rows = (0..2_u32).map(|row| {
                        if row == 0 {
                            let (_, receipt) = db.put(&map, "key", "value")?.fast();
                            let (told, hear) = channel();
                            receipt.on_durable(Level::LOCAL, move |outcome| _ = told.send(outcome.is_ok()));
                            begun.send(()).unwrap();
                            assert_eq!(hear.recv(), Ok(true));
                        }
                        Ok::<_, kiln::Error>((row.to_be_bytes(), "value"))
                    });
                    let refused = db.bulk_load("table", rows, |_| {}).expect_err("it is closed");
                    assert_eq!(refused.kind(), ErrorKind::Aborted, "{refused}");
                });
                begins.recv().unwrap();
                db.close().unwrap();
            });
        }
    });
}

/// The segment that is prepared ahead stayed, and the next opening removed it.
#[test]
fn a_database_that_was_closed_has_no_segment_without_anything() {
    let disk = SimulatedDevice::new(seed());
    let db = background().open_on(Arc::new(disk.clone())).unwrap();
    let segments = || disk.list().unwrap().iter().filter(|name| name.starts_with("segment-")).count();
    db.put(&db.map("map").unwrap(), "key", "value").unwrap().safe().unwrap();
    eventually("a segment is prepared ahead", || segments() > 1);
    db.close().unwrap();
    assert_eq!(segments(), 1);
    assert!(kiln::check_on(Arc::new(disk)).unwrap().is_clean());
}

/// It was told of damage that was not there: the next owner had used the space again from which it read.
#[test]
fn c9_who_reads_through_a_closed_database_is_told_so_and_of_no_damage() {
    const KEYS: u32 = 300;
    let disk = SimulatedDevice::new(seed());
    let open = || manual().open_on(Arc::new(disk.clone())).unwrap();
    let (closed, map, table) = {
        let db = open();
        let (map, table) = (db.map("map").unwrap(), db.table("table").unwrap());
        (db, map, table)
    };
    let write = |db: &Kiln, value: u8| {
        let (map, table) = (db.map("map").unwrap(), db.table("table").unwrap());
        for number in 0..KEYS {
            db.put(&map, key(number), [value; 200]).unwrap().forget();
            db.put(&table, key(number), [value; 200]).unwrap().forget();
        }
        db.persist().unwrap();
        db.settle().unwrap();
    };
    write(&closed, 0);
    make_cold(&closed, &map);
    closed.close().unwrap();
    let reads = || {
        let all = (0..KEYS).flat_map(|at| [closed.get(&map, key(at)), closed.get(&table, key(at))]);
        all.collect::<Vec<_>>()
    };
    let is_old = |read: &kiln::Result<Option<Vec<u8>>>| matches!(read, Ok(Some(value)) if value == &[0; 200]);
    assert!(reads().iter().all(is_old), "nobody has opened it");
    let next = open();
    for value in 1..20 {
        write(&next, value);
    }
    let reads = reads();
    let is_told = |read: &kiln::Result<Option<Vec<u8>>>| {
        read.as_ref().is_err_and(|error| error.kind() == ErrorKind::Aborted)
    };
    for (number, read) in reads.iter().enumerate() {
        assert!(is_old(read) || is_told(read), "{number}: {read:?}");
    }
    let told = |of: usize| reads.iter().skip(of).step_by(2).filter(|read| is_told(read)).count();
    assert!(told(0) > 0 && told(1) > 0, "{} of the map, {} of the table", told(0), told(1));
    let snapshot = closed.snapshot().unwrap();
    let first_error = snapshot.range::<&[u8]>(&table, ..).find_map(Result::err).unwrap();
    assert_eq!(first_error.kind(), ErrorKind::Aborted, "{first_error}");
    assert!(next.check().unwrap().is_clean());
}
