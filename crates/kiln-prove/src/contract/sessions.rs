//! C7: sessions learn exactly how far they came. And, since sessions are where threads and crashes meet: the crash
//! tests with threads.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use kiln::device::{Fault, FaultKind, Keep, OperationKind, SimulatedDevice};
use kiln::{ErrorKind, Kiln, Level, Object as _, Progress, Version};

use crate::crash::reopen;
use crate::support::{Random, copy_of, manual};
use crate::testing::{PATIENCE, at_test, background, budget, seed, watched};

#[test]
fn c7_a_session_takes_consecutive_serials_and_goes_on_after_reopening() {
    let disk = SimulatedDevice::new(seed());
    let db = reopen(&disk).unwrap();
    let map = db.map("map").unwrap();
    let session = db.session("client").unwrap();
    assert_eq!((session.recovered_serial(), session.serial(), session.durable_serial().unwrap()), (0, 0, 0));
    assert_eq!(session.id(), b"client");
    for serial in 1..=5_u64 {
        let commit = session.transact(|tx| tx.put(&map, "last", serial.to_le_bytes())).unwrap();
        if serial == 3 {
            commit.safe().unwrap()
        } else {
            commit.forget()
        }
        assert_eq!(session.serial(), serial);
    }
    assert_eq!(session.durable_serial().unwrap(), 3);
    // One that fails takes none; one that only reads does, since it is an operation of the client's.
    let failed =
        session.transact(|tx| tx.put(&map, vec![0; 1 << 20], "too long")).map(|commit| commit.forget());
    assert_eq!(failed.unwrap_err().kind(), ErrorKind::Input);
    assert_eq!(session.serial(), 5);
    let read = session.transact(|tx| tx.get(&map, "last")).unwrap().forget();
    assert_eq!((read.unwrap(), session.serial()), (5_u64.to_le_bytes().to_vec(), 6));
    db.persist().unwrap();
    assert_eq!(session.durable_serial().unwrap(), 6);
    drop((session, map, db));

    let db = reopen(&disk).unwrap();
    assert_eq!(db.recovery_report().sessions, [(b"client".to_vec(), 6)]);
    let session = db.session("client").unwrap();
    assert_eq!((session.recovered_serial(), session.serial()), (6, 6));
    session.transact(|tx| tx.delete(&db.map("map").unwrap(), "last")).unwrap().safe().unwrap();
    assert_eq!((session.recovered_serial(), session.serial(), session.durable_serial().unwrap()), (6, 7, 7));
}

#[test]
fn c7_a_session_is_open_once_and_its_id_is_checked() {
    let disk = SimulatedDevice::new(seed());
    let db = reopen(&disk).unwrap();
    let session = db.session("client").unwrap();
    assert_eq!(db.session("client").unwrap_err().kind(), ErrorKind::Locked);
    let other = db.session(b"\xFF\x00 other").unwrap();
    assert_eq!(db.session("").unwrap_err().kind(), ErrorKind::Input);
    assert_eq!(db.session(vec![b'x'; 2_000]).unwrap_err().kind(), ErrorKind::Input);
    drop(session);
    db.session("client").unwrap();
    drop(other);
    // Sessions share the log with everything else, not a name space.
    assert_eq!(kiln::Object::len(&db.map("client").unwrap()), 0);
}

/// Who is told a number forgets what it stands for. It was that of the newest operation, be it one that a crash could take back, or one that was lost.
#[test]
fn c7_the_serial_number_that_an_opening_tells_is_durable() {
    let disk = SimulatedDevice::new(seed());
    let db = reopen(&disk).unwrap();
    db.session("client").unwrap().put(&db.map("map").unwrap(), "key", "value").unwrap().forget();
    assert_eq!(db.session("client").unwrap().recovered_serial(), 1);
    disk.crash_after(disk.steps());
    drop(db);
    let disk = disk.after_crash(&mut |_| Keep::Lost);
    let db = reopen(&disk).unwrap();
    assert_eq!(db.session("client").unwrap().recovered_serial(), 1, "what was told, and is there");

    let map = db.map("map").unwrap();
    db.session("idle").unwrap().put(&map, "key", "value").unwrap().safe().unwrap();
    db.session("client").unwrap().put(&map, "key", "value").unwrap().forget();
    disk.inject(Fault { operation: OperationKind::Sync, nth: 1, kind: FaultKind::EIO, sticky: true });
    for _ in 0..2 {
        assert_eq!(db.session("client").unwrap_err().kind(), ErrorKind::Lost);
    }
    assert_eq!(db.session("idle").unwrap().recovered_serial(), 1);
}

/// It waited for the end of the one that it is within.
#[test]
fn c7_a_sessions_operation_within_another_one_of_its_own_is_refused() {
    watched("c7_a_sessions_operation_within", PATIENCE, |_| {
        let db = manual().open_on(Arc::new(SimulatedDevice::new(seed()))).unwrap();
        let map = db.map("map").unwrap();
        let (session, other) = (db.session("one").unwrap(), db.session("other").unwrap());
        let refused = |outcome: kiln::Result<kiln::Commit<'_, ()>>| {
            assert_eq!(outcome.map(|commit| commit.forget()).unwrap_err().kind(), ErrorKind::Input);
        };
        let (told, commit_points) = std::sync::mpsc::channel();
        let transact = session.transact(|tx| {
            tx.put(&map, "a", "1")?;
            refused(session.put(&map, "b", "2"));
            refused(session.put_many(&map, &[("b", "2")]));
            let through_other = other.transact(|_| {
                refused(session.transact(|_| Ok(())));
                Ok(())
            });
            through_other?.forget();
            // What takes no turn is none of its operations.
            assert_eq!((session.get(&map, "b")?, session.serial(), session.durable_serial()?), (None, 0, 0));
            let told = told.clone();
            session.on_durable(move |serial| told.send(serial).unwrap());
            tx.put(&map, "c", "3")
        });
        transact.unwrap().safe().unwrap();
        assert_eq!((session.serial(), other.serial(), map.len()), (1, 1, 2));
        assert_eq!(commit_points.try_iter().collect::<Vec<_>>(), [1]);
        // Whatever ends it, and on whatever thread, the next one is not within it.
        let panicked = catch_unwind(AssertUnwindSafe(|| {
            session
                .transact(|_| -> kiln::Result<()> { panic!("it is the closure's") })
                .map(|commit| commit.forget())
        }));
        assert!(panicked.is_err());
        let update = session.update(&map, "a", |_| {
            refused(session.put(&map, "b", "2"));
            Some("4")
        });
        update.unwrap().forget();
        thread::scope(|scope| _ = scope.spawn(|| session.put(&map, "b", "5").unwrap().forget()));
        session.put(&map, "b", "6").unwrap().safe().unwrap();
        assert_eq!((session.serial(), commit_points.try_iter().last()), (4, Some(4)));
    });
}

/// What one thread did through its session: the version of each serial, and the last that was acknowledged.
#[derive(Default)]
struct Log {
    versions: Vec<u64>,
    acknowledged: u64,
}

/// Each session writes its serial number under a new key, and into one common counter, so that a missing or an
/// extra operation shows.
fn operate(db: &Kiln, id: u8, stop: &AtomicBool, count: &AtomicU64) -> Log {
    let mut log = Log::default();
    let mut work = || -> kiln::Result<()> {
        let (table, map) = (db.table("operations")?, db.map("counters")?);
        let session = db.session([id])?;
        let mut random = Random::new(seed() + u64::from(id));
        while !stop.load(Ordering::SeqCst) {
            let next = session.serial() + 1;
            let commit = session.transact(|tx| {
                tx.put(
                    &table,
                    [&[id], next.to_be_bytes().as_slice()].concat(),
                    vec![id; (next % 900) as usize],
                )?;
                tx.add(&map, [id], 1)?;
                tx.add(&map, "all", 1)
            })?;
            log.versions.push(commit.version().number());
            count.fetch_add(1, Ordering::SeqCst);
            if random.one_in(5) {
                commit.safe()?;
                log.acknowledged = next;
            } else {
                let receipt = commit.fast().1;
                if random.one_in(20) && receipt.poll(Level::LOCAL) == Progress::Durable {
                    log.acknowledged = next;
                }
            }
        }
        Ok(())
    };
    if let Err(error) = work() {
        assert!(matches!(error.kind(), ErrorKind::Lost | ErrorKind::Io), "{error}");
    }
    log
}

/// Checks a disk that was left by a crash against what the sessions know.
fn check(left: &SimulatedDevice, logs: &BTreeMap<u8, Log>, durable: u64) {
    let db = reopen(left).unwrap();
    let horizon = db.recovery_report().horizon.number();
    assert!(horizon >= durable, "version {durable} was called durable, {horizon} was recovered");
    let (table, map) = (db.table("operations").unwrap(), db.map("counters").unwrap());
    let mut all = 0;
    for (&id, log) in logs {
        let serial = db.session([id]).unwrap().recovered_serial();
        assert!(
            serial >= log.acknowledged,
            "session {id}: {} was acknowledged, {serial} is there",
            log.acknowledged
        );
        let expected = log.versions.iter().filter(|&&version| version <= horizon).count() as u64;
        assert_eq!(serial, expected, "session {id} at horizon {horizon}");
        let rows =
            db.transact(|tx| tx.prefix(&table, [id]).map(|row| Ok(row?.0)).collect::<kiln::Result<Vec<_>>>());
        let rows = rows.unwrap().forget();
        let serials: Vec<u64> =
            rows.iter().map(|key| u64::from_be_bytes(key[1..].try_into().unwrap())).collect();
        assert!(serials.iter().copied().eq(1..=serial), "session {id}: {serials:?} up to {serial}");
        let counted =
            db.get(&map, [id]).unwrap().map_or(0, |value| u64::from_le_bytes(value.try_into().unwrap()));
        assert_eq!(counted, serial, "session {id}: half a transaction");
        all += serial;
        for (&version, serial) in log.versions.iter().zip(1..) {
            let progress = db.receipt(Version::new(version)).poll(Level::LOCAL);
            let there = if version <= horizon { Progress::Durable } else { Progress::Lost };
            assert_eq!(progress, there, "session {id}, serial {serial}");
        }
    }
    let counted =
        db.get(&map, "all").unwrap().map_or(0, |value| u64::from_le_bytes(value.try_into().unwrap()));
    assert_eq!(counted, all);
    let report = db.check().unwrap();
    assert!(report.problems.is_empty(), "after the crash: {report}");
}

/// Threads work, each through its session, until the power goes at a random step. Whatever had been acknowledged
/// to any of them must be there, and each session's serial must be exact.
#[test]
fn c7_serials_are_exact_after_a_crash_under_concurrent_load() {
    let name = "c7_serials_are_exact_after_a_crash";
    watched(name, 5 * PATIENCE, |replay| {
        for round in 0..budget(60) {
            let seed = seed() + round;
            at_test(replay, name, seed);
            let mut random = Random::new(seed);
            let disk = SimulatedDevice::new(seed);
            let options =
                if random.one_in(3) { manual() } else { background().window(Duration::from_millis(1)) };
            let db = options.open_on(Arc::new(disk.clone())).unwrap();
            let durable = Arc::new(AtomicU64::new(0));
            let told = durable.clone();
            db.on_durable(move |version| {
                told.fetch_max(version.number(), Ordering::SeqCst);
            });
            disk.crash_after(disk.steps() + 8 + random.below(120) as u64);
            let (stop, count) = (AtomicBool::new(false), AtomicU64::new(0));
            let logs: BTreeMap<u8, Log> = thread::scope(|scope| {
                let start = |id: u8| {
                    (
                        id,
                        scope.spawn({
                            let (db, stop, count) = (&db, &stop, &count);
                            move || operate(db, id, stop, count)
                        }),
                    )
                };
                let threads: Vec<_> = (0..3).map(start).collect();
                while !disk.crashed() && count.load(Ordering::SeqCst) < 20_000 {
                    thread::sleep(Duration::from_micros(200));
                }
                stop.store(true, Ordering::SeqCst);
                threads.into_iter().map(|(id, thread)| (id, thread.join().unwrap())).collect()
            });
            let durable = durable.load(Ordering::SeqCst).max(db.horizon(Level::LOCAL).number());
            disk.crash_after(disk.steps());
            drop(db);
            for left in [disk.after_crash(&mut |_| Keep::Lost), copy_of(&disk), disk.after_crash_seeded(seed)]
            {
                check(&left, &logs, durable);
            }
        }
    });
}

/// A commit that slips into a hardening after its version was closed must not be called durable by the next
/// hardening, which finds nothing left to write, before a seal covers it.
#[test]
fn c5_safe_commits_of_threads_survive_a_crash_right_after_the_last_of_them() {
    let name = "c5_safe_commits_of_threads_survive";
    watched(name, 5 * PATIENCE, |_| {
        for round in 0..budget(150) {
            let disk = SimulatedDevice::new(round);
            let db = reopen(&disk).unwrap();
            let map = db.map("map").unwrap();
            db.persist().unwrap();
            thread::scope(|scope| {
                for thread in 0..4_u8 {
                    let (db, map) = (&db, &map);
                    scope.spawn(move || {
                        for number in 0..6_u8 {
                            let commit = db.put(map, [thread, number], "value").unwrap();
                            let version = commit.version();
                            commit.safe().unwrap();
                            let horizon = db.horizon(Level::LOCAL);
                            assert!(
                                horizon >= version,
                                "{version} is called durable, the horizon is {horizon}"
                            );
                        }
                    });
                }
            });
            disk.crash_after(disk.steps());
            let db = reopen(&disk.after_crash(&mut |_| Keep::Lost)).unwrap();
            assert_eq!(
                kiln::Object::len(&db.map("map").unwrap()),
                24,
                "round {round}: {}",
                db.recovery_report()
            );
        }
    });
}

#[test]
fn c7_threads_that_share_a_session_take_turns() {
    let db = background().open_on(Arc::new(SimulatedDevice::new(seed()))).unwrap();
    let (map, session) = (db.map("map").unwrap(), db.session("shared").unwrap());
    thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                for _ in 0..300 {
                    session.transact(|tx| tx.add(&map, "operations", 1)).unwrap().forget();
                }
            });
        }
    });
    assert_eq!(session.serial(), 900);
    assert_eq!(db.get(&map, "operations").unwrap().unwrap(), 900_i64.to_le_bytes());
}

/// What came before it was committed, other than without a session.
#[test]
fn c7_a_batch_of_a_session_with_something_too_long_does_nothing_and_takes_no_serial() {
    let db = reopen(&SimulatedDevice::new(seed())).unwrap();
    let (map, session) = (db.map("map").unwrap(), db.session("client").unwrap());
    let (long_key, long_value) = (vec![0; 1 << 20], vec![0; 64 << 20]);
    for failed in [
        session.put_many(&map, &[("a", &b"1"[..]), ("b", &long_value)]),
        session.put_many(&map, &[(&b"a"[..], "1"), (&long_key, "2")]),
        session.add_many(&map, &[(&b"a"[..], 1), (&long_key, 2)]),
        session.update_many(&map, &[&b"a"[..], &long_key], |_, _, _| true),
    ] {
        assert_eq!(failed.map(|commit| commit.forget()).unwrap_err().kind(), ErrorKind::Input);
    }
    assert_eq!((map.len(), session.serial()), (0, 0));
    db.put(&map, "c", "no number").unwrap().forget();
    let failed = session.add_many(&map, &[("a", 1), ("a", 1), ("c", 1), ("d", 1)]);
    assert_eq!(failed.map(|commit| commit.forget()).unwrap_err().kind(), ErrorKind::Input);
    assert_eq!((map.len(), session.serial()), (2, 2));
}

#[test]
fn c7_reads_of_a_session_take_no_serial_and_each_update_of_a_batch_takes_one() {
    let disk = SimulatedDevice::new(seed());
    let db = reopen(&disk).unwrap();
    let (map, session) = (db.map("map").unwrap(), db.session("client").unwrap());
    // More than what is fetched at once.
    let keys: Vec<[u8; 1]> = (0..70).map(|key| [key]).collect();
    let number = |number, old: Option<&[u8]>, new: &mut Vec<u8>| {
        new.extend_from_slice(old.unwrap_or_default());
        new.push(number as u8);
        number != 3
    };
    session.update_many(&map, &keys, number).unwrap().forget();
    assert_eq!(session.serial(), 70);
    session.update_many(&map, &keys[..5], number).unwrap().safe().unwrap();
    assert_eq!((session.serial(), session.durable_serial().unwrap()), (75, 75));
    let mut found = Vec::new();
    session.get_many(&map, &keys, |number, value| found.push((number, value.map(<[u8]>::to_vec)))).unwrap();
    let expected = (0..70).map(|number| match number {
        3 => None,
        0..5 => Some(vec![number as u8; 2]),
        _ => Some(vec![number as u8]),
    });
    assert!(found.into_iter().eq(expected.enumerate()));
    assert_eq!(session.get(&map, [4]).unwrap(), Some(vec![4, 4]));
    assert_eq!((session.get(&map, "absent").unwrap(), session.serial()), (None, 75));
    session.put_expiring(&map, "gone", "value", kiln::Expiry::At(1)).unwrap().forget();
    session.put_expiring(&map, "stays", "value", kiln::Expiry::Never).unwrap().safe().unwrap();
    assert_eq!((session.get(&map, "gone").unwrap(), session.serial()), (None, 77));
    assert_eq!(db.expiry(&map, "stays").unwrap(), Some(kiln::Expiry::Never));
    drop((session, map, db));
    assert_eq!(reopen(&disk).unwrap().session("client").unwrap().recovered_serial(), 77);
}
