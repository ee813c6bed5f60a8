//! C3, C5, C6: early visibility, receipts that end in exactly one way, and reads of three kinds.
//!
//! The disk is stuck on purpose: see [`gate`](super::gate).

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::task::{Context, Wake};
use std::thread;
use std::time::Duration;

use kiln::device::{Fault, FaultKind, Keep, OperationKind, SimulatedDevice};
use kiln::{ErrorKind, Kiln, Level, Map, Progress};

use super::gate::{Gate, OpenAtEnd, gated_device};
use crate::crash::reopen;
use crate::support::manual;
use crate::testing::{PATIENCE, background, block_on, eventually, watched};

const LONG: Duration = Duration::from_secs(3600);

/// A database with background threads that harden at once when asked, and never by themselves.
fn stuck_database() -> (Kiln, SimulatedDevice, Gate) {
    let disk = SimulatedDevice::new(1);
    let (device, gate) = gated_device(&disk);
    let db = background().window(LONG).open_on(device).unwrap();
    (db, disk, gate)
}

/// Begins a hardening, of something that nobody asks for, and leaves it stuck until the gate is opened. What stands at the gate may be
/// the preparation of a segment; but once the version is over somebody hardens, and nobody else will before the gate opens.
fn harden_and_get_stuck(db: &Kiln, map: &Map, gate: &Gate) {
    gate.shut();
    let version = db.put(map, "another", "commit").unwrap().fast().1.version();
    db.harden_soon();
    eventually("a hardening has begun", || db.version() > version);
    gate.wait_until_stuck();
}

#[test]
fn c3_fast_commits_are_visible_to_other_threads_while_the_disk_is_stuck() {
    watched("c3_fast_commits_are_visible", PATIENCE, |_| {
        let (db, _disk, gate) = stuck_database();
        let _open = OpenAtEnd(gate.clone());
        let map = db.map("map").unwrap();
        db.put(&map, "key", "old").unwrap().safe().unwrap();
        harden_and_get_stuck(&db, &map, &gate);
        let (_, receipt) = db.put(&map, "key", "new").unwrap().fast();
        let seen = thread::scope(|scope| scope.spawn(|| db.get(&map, "key").unwrap()).join().unwrap());
        assert_eq!(seen.unwrap(), b"new");
        assert_eq!(receipt.poll(Level::LOCAL), Progress::Pending);
        gate.open();
        receipt.wait(Level::LOCAL).unwrap();
    });
}

/// It had a version of its own that no record has, and so none that a crash leaves.
#[test]
fn c5_a_transaction_that_changes_nothing_in_the_end_is_as_durable_as_what_it_has_found() {
    let disk = SimulatedDevice::new(1);
    let db = reopen(&disk).unwrap();
    let (map, table) = (db.map("map").unwrap(), db.table("table").unwrap());
    db.put(&map, "key", "value").unwrap().safe().unwrap();
    let deletion = db.delete(&map, "key").unwrap().fast().1.version();
    let put_and_delete = |key: &str| {
        let tx = db.begin().unwrap();
        tx.put(&map, key, "value").unwrap();
        tx.put(&table, key, "value").unwrap();
        tx.delete(&map, key).unwrap();
        tx.delete(&table, key).unwrap();
        tx.commit().unwrap().fast().1
    };
    // That it is not there is news, which is yet to be durable.
    let found_deleted = put_and_delete("key");
    assert_eq!(found_deleted.version(), deletion);
    assert_eq!(found_deleted.poll(Level::LOCAL), Progress::Pending);
    db.persist().unwrap();
    let found_nothing = put_and_delete("never there");
    db.persist().unwrap();
    for receipt in [found_deleted, found_nothing] {
        assert_eq!(receipt.poll(Level::LOCAL), Progress::Durable);
        let crashed = reopen(&disk.after_crash(&mut |_| Keep::Lost)).unwrap();
        assert_eq!(crashed.receipt(receipt.version()).poll(Level::LOCAL), Progress::Durable);
    }
}

#[test]
fn c3_locks_are_released_at_the_commit_point_while_the_disk_is_stuck() {
    watched("c3_locks_are_released", PATIENCE, |_| {
        let (db, _disk, gate) = stuck_database();
        let _open = OpenAtEnd(gate.clone());
        let table = db.table("table").unwrap();
        gate.shut();
        db.add(&table, "counter", 1).unwrap().forget();
        db.harden_soon();
        gate.wait_until_stuck();
        // Every thread overwrites what the others have committed and not hardened, and reads its range.
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..50 {
                        let rows = db.transact(|tx| {
                            tx.add(&table, "counter", 1)?;
                            Ok(tx.range::<&[u8]>(&table, ..).count())
                        });
                        assert_eq!(rows.unwrap().forget(), 1);
                    }
                });
            }
        });
        assert_eq!(db.get(&table, "counter").unwrap().unwrap(), 201_i64.to_le_bytes());
        assert_eq!(db.read_durable(|durable| durable.get(&table, "counter")).unwrap(), None);
        gate.open();
        db.persist().unwrap();
        let durable = db.read_durable(|durable| durable.get(&table, "counter")).unwrap();
        assert_eq!(durable.unwrap(), 201_i64.to_le_bytes());
    });
}

/// All ways to learn how one commit ends, running at once. Returns what each has heard, in the order: waiter,
/// future, callback; and how many times the callback came.
fn ask_in_every_way(db: &Kiln, gate: &Gate, release: impl FnOnce()) -> ([Result<(), ErrorKind>; 4], u64) {
    let map = db.map("map").unwrap();
    let calls = Arc::new(AtomicU64::new(0));
    let (told, hear) = channel();
    gate.shut();
    let (_, receipt) = db.put(&map, "key", "value").unwrap().fast();
    let counted = calls.clone();
    receipt.on_durable(Level::LOCAL, move |outcome| {
        counted.fetch_add(1, Ordering::SeqCst);
        told.send(outcome.map_err(|_| ErrorKind::Lost)).unwrap();
    });
    let ends = thread::scope(|scope| {
        let waiter = scope.spawn(|| receipt.wait(Level::LOCAL).map_err(|error| error.kind()));
        let future = scope.spawn(|| block_on(receipt.durable(Level::LOCAL)).map_err(|error| error.kind()));
        let leading =
            scope.spawn(|| block_on(receipt.durable_leading(Level::LOCAL)).map_err(|error| error.kind()));
        gate.wait_until_stuck();
        assert_eq!(receipt.poll(Level::LOCAL), Progress::Pending);
        assert_eq!(receipt.poll(Level::MEMORY), Progress::Durable);
        assert!(!receipt.wait_timeout(Level::LOCAL, Duration::from_millis(5)).unwrap());
        assert!(hear.try_recv().is_err(), "a callback came while the disk was stuck");
        release();
        gate.open();
        let told = hear.recv_timeout(PATIENCE).unwrap();
        [waiter.join().unwrap(), future.join().unwrap(), leading.join().unwrap(), told]
    });
    // Once more, now that the end is known: the answer is the same, and comes at once.
    let again = receipt.wait(Level::LOCAL).map_err(|error| error.kind());
    assert_eq!(again, ends[0]);
    let progress = if ends[0].is_ok() { Progress::Durable } else { Progress::Lost };
    assert_eq!(receipt.poll(Level::LOCAL), progress);
    assert_eq!(block_on(receipt.durable(Level::LOCAL)).map_err(|error| error.kind()), ends[0]);
    let (told, hear) = channel();
    receipt.on_durable(Level::LOCAL, move |outcome| told.send(outcome.is_ok()).unwrap());
    assert_eq!(hear.recv_timeout(PATIENCE).unwrap(), ends[0].is_ok());
    (ends, calls.load(Ordering::SeqCst))
}

#[test]
fn c5_wait_poll_future_and_callback_all_end_once_as_durable() {
    watched("c5_wait_poll_future_and_callback", PATIENCE, |_| {
        let (db, _disk, gate) = stuck_database();
        let _open = OpenAtEnd(gate.clone());
        let (ends, calls) = ask_in_every_way(&db, &gate, || {});
        assert_eq!((ends, calls), ([Ok(()); 4], 1));
        assert!(db.horizon(Level::LOCAL) >= db.receipt(db.horizon(Level::LOCAL)).version());
    });
}

/// An executor that is going down drops a task when it is woken, and there are those that run it then and there.
#[test]
fn c5_a_wake_may_drop_its_task() {
    type Task = Pin<Box<dyn Future<Output = kiln::Result<()>> + Send>>;
    struct Executor(Mutex<Option<Task>>);
    impl Wake for Executor {
        fn wake(self: Arc<Self>) {
            let task = self.0.lock().unwrap().take();
            drop(task);
        }
    }
    watched("c5_a_wake_may_drop_its_task", PATIENCE, |_| {
        let (db, _disk, gate) = stuck_database();
        let _open = OpenAtEnd(gate.clone());
        let map = db.map("map").unwrap();
        harden_and_get_stuck(&db, &map, &gate);
        let (_, receipt) = db.put(&map, "key", "value").unwrap().fast();
        let mut task: Task = Box::pin(receipt.durable_leading(Level::LOCAL));
        let executor = Arc::new(Executor(Mutex::new(None)));
        assert!(task.as_mut().poll(&mut Context::from_waker(&executor.clone().into())).is_pending());
        *executor.0.lock().unwrap() = Some(task);
        // Threads come first, so the task is woken by the hardening that covers it.
        thread::scope(|scope| {
            let waiter = scope.spawn(|| receipt.wait(Level::LOCAL).unwrap());
            thread::sleep(Duration::from_millis(100));
            gate.open();
            waiter.join().unwrap();
        });
        eventually("the task is dropped", || executor.0.lock().unwrap().is_none());
        db.put(&map, "key", "more").unwrap().safe().unwrap();
    });
}

#[test]
fn c5_a_task_that_is_given_up_leaves_the_lead_to_the_next() {
    struct Woken(AtomicBool);
    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.store(true, Ordering::SeqCst);
        }
    }
    watched("c5_a_task_that_is_given_up", PATIENCE, |_| {
        let (db, _disk, gate) = stuck_database();
        let _open = OpenAtEnd(gate.clone());
        let map = db.map("map").unwrap();
        harden_and_get_stuck(&db, &map, &gate);
        // Both come too late for the hardening under way, and nobody asks the background for another.
        let tasks = ["given up", "waited for"].map(|key| {
            let (_, receipt) = db.put(&map, key, "value").unwrap().fast();
            let mut future = Box::pin(receipt.durable_leading(Level::LOCAL));
            let woken = Arc::new(Woken(AtomicBool::new(false)));
            assert!(future.as_mut().poll(&mut Context::from_waker(&woken.clone().into())).is_pending());
            (future, woken)
        });
        gate.open();
        eventually("the first is to lead", || tasks[0].1.0.load(Ordering::SeqCst));
        assert!(!tasks[1].1.0.load(Ordering::SeqCst), "one is enough");
        let [given_up, (mut future, woken)] = tasks;
        drop(given_up);
        eventually("the other is to lead", || woken.0.load(Ordering::SeqCst));
        assert!(future.as_mut().poll(&mut Context::from_waker(&woken.into())).is_ready());
    });
}

#[test]
fn c5_wait_poll_future_and_callback_all_end_once_as_lost() {
    for kind in [FaultKind::EIO, FaultKind::FailedSyncThenSuccess] {
        watched("c5_wait_poll_future_and_callback", PATIENCE, |_| {
            let (db, disk, gate) = stuck_database();
            let _open = OpenAtEnd(gate.clone());
            let map = db.map("map").unwrap();
            db.put(&map, "kept", "value").unwrap().safe().unwrap();
            let kept = db.horizon(Level::LOCAL);
            let (told, lost) = channel();
            db.on_lost(move |lost| told.send(lost).unwrap());
            // Sticky, since the preparation of a segment may be stuck at the gate, too.
            let fail = || disk.inject(Fault { operation: OperationKind::Sync, nth: 1, kind, sticky: true });
            let (ends, calls) = ask_in_every_way(&db, &gate, fail);
            disk.clear_faults();
            assert_eq!((ends, calls), ([Err(ErrorKind::Lost); 4], 1));
            let told = lost.recv_timeout(PATIENCE).unwrap();
            assert_eq!(told.horizon(), kept);
            assert!(!told.reason().is_empty());
            assert!(lost.try_recv().is_err(), "on_lost came twice");

            // The disk works again, and that must not tempt anybody.
            assert_eq!(
                db.put(&map, "key", "later").map(|commit| commit.forget()).unwrap_err().kind(),
                ErrorKind::Lost
            );
            assert_eq!(db.persist().unwrap_err().kind(), ErrorKind::Lost);
            assert_eq!(db.horizon(Level::LOCAL), kept);
            assert_eq!(db.get(&map, "key").unwrap().unwrap(), b"value", "reads go on");
            assert_eq!(db.get(&map, "kept").unwrap().unwrap(), b"value");
            assert!(db.statistics().failure.is_some());
            let (told, late) = channel();
            db.on_lost(move |lost| told.send(lost.horizon()).unwrap());
            assert_eq!(late.recv_timeout(PATIENCE).unwrap(), kept, "who asks late is told at once");
            drop(map);
            drop(db);

            let db = reopen(&disk.after_crash(&mut |_| Keep::Lost)).unwrap();
            let map = db.map("map").unwrap();
            assert_eq!(db.recovery_report().horizon, kept);
            assert_eq!(db.get(&map, "kept").unwrap().unwrap(), b"value");
            assert_eq!(db.get(&map, "key").unwrap(), None);
            assert!(db.recovery_report().lost_versions.is_some());
        });
    }
}

#[test]
fn c5_waiters_that_arrive_during_one_sync_share_the_next() {
    watched("c5_waiters_that_arrive", PATIENCE, |_| {
        let (db, disk, gate) = stuck_database();
        let _open = OpenAtEnd(gate.clone());
        let map = db.map("map").unwrap();
        db.persist().unwrap();
        gate.shut();
        let committed = AtomicU64::new(0);
        thread::scope(|scope| {
            let first = scope.spawn(|| db.put(&map, "first", "value").unwrap().safe());
            gate.wait_until_stuck();
            let before = gate.syncs();
            let others: Vec<_> = (0..16_u32)
                .map(|number| {
                    let (db, map, committed) = (&db, &map, &committed);
                    scope.spawn(move || {
                        let commit = db.put(map, number.to_le_bytes(), "value").unwrap();
                        committed.fetch_add(1, Ordering::SeqCst);
                        commit.safe()
                    })
                })
                .collect();
            eventually("sixteen commits", || committed.load(Ordering::SeqCst) == 16);
            gate.open();
            first.join().unwrap().unwrap();
            others.into_iter().for_each(|other| other.join().unwrap().unwrap());
            // One write may cross into the next segment; then it takes two.
            assert!(gate.syncs() - before <= 2, "{} syncs for one group", gate.syncs() - before);
        });
        let left = disk.after_crash(&mut |_| Keep::Lost);
        let db = reopen(&left).unwrap();
        assert_eq!(db.objects()[0].keys, 17);
    });
}

#[test]
fn c5_receipts_outlive_the_database_and_tell_how_it_closed() {
    let disk = SimulatedDevice::new(1);
    let db = manual().open_on(Arc::new(disk.clone())).unwrap();
    let map = db.map("map").unwrap();
    let (_, receipt) = db.put(&map, "key", "value").unwrap().fast();
    let called = Arc::new(AtomicBool::new(false));
    let calling = called.clone();
    receipt.on_durable(Level::LOCAL, move |outcome| calling.store(outcome.is_ok(), Ordering::SeqCst));
    assert_eq!(receipt.poll(Level::LOCAL), Progress::Pending);
    drop(map);
    drop(db);
    assert_eq!(receipt.poll(Level::LOCAL), Progress::Durable);
    receipt.wait(Level::LOCAL).unwrap();
    assert!(called.load(Ordering::SeqCst), "closing has made it durable and told nobody");
}

#[test]
fn c5_a_future_version_is_nobodys_receipt() {
    let db = manual().open_on(Arc::new(SimulatedDevice::new(1))).unwrap();
    let future = db.receipt(kiln::Version::new(db.version().number() + 1_000));
    assert_eq!(future.poll(Level::LOCAL), Progress::Pending);
    assert_eq!(future.wait(Level::LOCAL).unwrap_err().kind(), ErrorKind::Input);
    assert_eq!(block_on(future.durable(Level::LOCAL)).unwrap_err().kind(), ErrorKind::Input);
}

#[test]
fn c4_the_horizon_only_rises_and_covers_every_durable_receipt() {
    let disk = SimulatedDevice::new(1);
    let db = background().window(Duration::from_millis(1)).open_on(Arc::new(disk)).unwrap();
    let map = db.map("map").unwrap();
    let (told, horizons) = channel();
    db.on_durable(move |horizon| told.send(horizon).unwrap());
    thread::scope(|scope| {
        for thread in 0..3_u64 {
            let (db, map) = (&db, &map);
            scope.spawn(move || {
                for round in 0..200_u64 {
                    let commit = db.put(map, thread.to_le_bytes(), round.to_le_bytes()).unwrap();
                    let version = commit.version();
                    if round % 8 == 0 {
                        commit.safe().unwrap();
                        assert!(db.horizon(Level::LOCAL) >= version);
                    } else {
                        commit.forget();
                    }
                }
            });
        }
    });
    db.persist().unwrap();
    let horizon = db.horizon(Level::LOCAL);
    // Who calls back may be about to.
    db.close().unwrap();
    let horizons: Vec<_> = horizons.try_iter().collect();
    assert!(horizons.is_sorted() && !horizons.is_empty(), "the horizon went back: {horizons:?}");
    assert_eq!(horizons.last(), Some(&horizon));
}

#[test]
fn c6_a_safe_read_waits_a_durable_read_is_old_and_a_fast_read_is_new() {
    watched("c6_a_safe_read_waits", PATIENCE, |_| {
        let (db, _disk, gate) = stuck_database();
        let _open = OpenAtEnd(gate.clone());
        let table = db.table("table").unwrap();
        db.put(&table, "key", "old").unwrap().safe().unwrap();
        gate.shut();
        let (_, receipt) = db.put(&table, "key", "new").unwrap().fast();
        let answered = AtomicBool::new(false);
        thread::scope(|scope| {
            let safe = scope.spawn(|| {
                let value = db.read_safe(|tx| tx.get(&table, "key")).unwrap().unwrap();
                answered.store(true, Ordering::SeqCst);
                assert_eq!(receipt.poll(Level::LOCAL), Progress::Durable, "acknowledged too early");
                value
            });
            gate.wait_until_stuck();
            assert_eq!(db.get(&table, "key").unwrap().unwrap(), b"new");
            let durable = |durable: &kiln::Snapshot<'_>| durable.get(&table, "key");
            assert_eq!(db.read_durable(durable).unwrap().unwrap(), b"old");
            assert_eq!(db.durable_snapshot().unwrap().range::<&[u8]>(&table, ..).count(), 1);
            assert!(!answered.load(Ordering::SeqCst), "a safe read was answered while the disk was stuck");
            gate.open();
            assert_eq!(safe.join().unwrap(), b"new");
            assert_eq!(db.read_durable(durable).unwrap().unwrap(), b"new");
        });
    });
}

#[test]
fn c6_a_safe_read_of_what_is_durable_needs_no_disk_and_one_of_absence_waits() {
    watched("c6_a_safe_read_of_what_is_durable", PATIENCE, |_| {
        let (db, _disk, gate) = stuck_database();
        let _open = OpenAtEnd(gate.clone());
        let table = db.table("table").unwrap();
        for key in ["kept", "deleted"] {
            db.put(&table, key, "value").unwrap().safe().unwrap();
        }
        gate.shut();
        let (_, receipt) = db.delete(&table, "deleted").unwrap().fast();
        let kept = db.read_safe(|tx| tx.get(&table, "kept")).unwrap();
        assert_eq!(kept.unwrap(), b"value", "this needs no sync, or it would hang");
        thread::scope(|scope| {
            // That a key is gone is something read, too.
            let gone = scope.spawn(|| {
                let gone = db.read_safe(|tx| tx.contains(&table, "deleted")).unwrap();
                (gone, receipt.poll(Level::LOCAL))
            });
            gate.wait_until_stuck();
            gate.open();
            assert_eq!(gone.join().unwrap(), (false, Progress::Durable));
        });
        assert!(db.read_safe(|tx| tx.put(&table, "key", "value")).is_err(), "a safe read must not write");
    });
}

/// A deletion has a version like any other write: who reads its absence depends on it, under snapshot isolation too.
#[test]
fn c6_a_safe_read_of_a_deleted_key_waits_for_the_deletion() {
    for isolation in [kiln::Isolation::Serializable, kiln::Isolation::Snapshot] {
        let db = reopen(&SimulatedDevice::new(1)).unwrap();
        let map = db.map("map").unwrap();
        db.put(&map, "key", "value").unwrap().safe().unwrap();
        let deletion = db.delete(&map, "key").unwrap().fast().1.version();
        let read = db.transact_with(isolation, |tx| tx.contains(&map, "key")).unwrap();
        assert_eq!(read.version(), deletion, "{isolation:?}");
        assert!(!read.safe().unwrap());
        assert!(db.horizon(Level::LOCAL) >= deletion, "{isolation:?}");
    }
}

/// What [`persist_over_two_segments`] has come to.
struct Persisted {
    failed: bool,
    struck: bool,
}

/// Hardens a version that takes two extents while the `nth` write goes wrong in this way, and looks at everything that tells of it.
fn persist_over_two_segments(kind: FaultKind, nth: u64) -> Persisted {
    let disk = SimulatedDevice::new(nth);
    let db = background().background(false).segment_bytes(64 << 10).open_on(Arc::new(disk.clone())).unwrap();
    let map = db.map("map").unwrap();
    let put = |number: u8| db.put(&map, [number], [number; 8_000]).unwrap().fast().1;
    (0..5).for_each(|number| drop(put(number)));
    db.put(&map, "key", "kept").unwrap().safe().unwrap();
    let kept = db.horizon(Level::LOCAL);
    let told = Arc::new(AtomicU64::new(0));
    let telling = told.clone();
    db.on_durable(move |horizon| telling.store(horizon.number(), Ordering::SeqCst));
    let more: Vec<_> = (5..9).map(put).collect();
    let (_, receipt) = db.put(&map, "key", "lost").unwrap().fast();
    assert_eq!(db.horizon(Level::LOCAL), kept);
    disk.inject(Fault { operation: OperationKind::Write, nth, kind, sticky: false });
    let persisted = db.persist();
    let struck = disk.faults_fired() > 0;
    disk.clear_faults();
    let Err(error) = persisted else {
        assert_eq!(receipt.poll(Level::LOCAL), Progress::Durable);
        return Persisted { failed: false, struck };
    };
    assert!(struck, "nothing went wrong, but: {error}");
    assert_eq!(error.kind(), ErrorKind::Lost);
    for receipt in more.iter().chain([&receipt]) {
        assert_eq!(receipt.poll(Level::LOCAL), Progress::Lost, "{kind:?} of write {nth}");
        assert_eq!(receipt.wait(Level::LOCAL).unwrap_err().kind(), ErrorKind::Lost);
    }
    // The disk works again, and still nobody may go on behind a seal that is not there.
    assert_eq!(db.persist().unwrap_err().kind(), ErrorKind::Lost);
    assert!(db.put(&map, "key", "later").is_err());
    assert_eq!((db.horizon(Level::LOCAL), told.load(Ordering::SeqCst)), (kept, 0));
    assert_eq!(db.read_durable(|durable| durable.get(&map, "key")).unwrap().unwrap(), b"kept");
    disk.crash_after(disk.steps());
    for keep in [Keep::Kept, Keep::Lost] {
        let db = reopen(&disk.after_crash(&mut |_| keep)).unwrap();
        let map = db.map("map").unwrap();
        // What was to be a short write may have stored everything: then opening finds the version, and finds it whole.
        let is_whole = db.recovery_report().horizon != kept;
        assert!(!is_whole || (kind, keep) == (FaultKind::ShortWrite, Keep::Kept), "{kind:?} of write {nth}");
        assert_eq!(db.recovery_report().horizon >= receipt.version(), is_whole, "{kind:?} of write {nth}");
        let expected: &[u8] = if is_whole { b"lost" } else { b"kept" };
        assert_eq!(db.get(&map, "key").unwrap().unwrap(), expected);
        (5..9_u8).for_each(|number| assert_eq!(db.get(&map, [number]).unwrap().is_some(), is_whole));
    }
    Persisted { failed: true, struck }
}

/// The extent that bears the seal, or one before it: a disk may refuse it, or store its beginning only.
#[test]
fn c5_c8_a_seal_whose_write_fails_or_tears_makes_nothing_durable() {
    for kind in [FaultKind::EIO, FaultKind::ENOSPC, FaultKind::ShortWrite] {
        let mut failed = 0;
        for nth in 1.. {
            let persisted = persist_over_two_segments(kind, nth);
            failed += u32::from(persisted.failed);
            if !persisted.struck {
                break;
            }
        }
        assert!(failed >= 2, "{kind:?}: {failed} of the writes were of an extent");
    }
}

/// It said that one has to open the database again to write, which one had.
#[test]
fn c8_a_receipt_from_before_a_crash_says_what_is_lost_and_that_the_database_works() {
    let disk = SimulatedDevice::new(1);
    let db = reopen(&disk).unwrap();
    let map = db.map("map").unwrap();
    db.put(&map, "key", "durable").unwrap().safe().unwrap();
    let version = db.put(&map, "key", "lost").unwrap().version();
    let left = disk.after_crash(&mut |_| Keep::Lost);
    let db = reopen(&left).unwrap();
    let map = db.map("map").unwrap();
    let error = db.receipt(version).wait(Level::LOCAL).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Lost);
    let (told, heard) = channel();
    db.receipt(version).on_durable(Level::LOCAL, move |outcome| told.send(outcome).unwrap());
    let lost = heard.try_recv().unwrap().unwrap_err();
    assert!(lost.horizon() < version && version <= lost.last().unwrap(), "{lost:?}");
    let (first, last) = (lost.horizon().number() + 1, lost.last().unwrap().number());
    assert!(error.to_string().contains(&format!("in versions {first} to {last} is lost")), "{error}");
    assert!(!error.to_string().contains("open the database again"), "{error}");
    db.put(&map, "key", "again").unwrap().safe().unwrap();
}

/// It was said to be lost for ever, and the next opening makes durable what it finds whole.
#[test]
fn c5_c8_what_a_failed_sync_has_lost_is_after_the_next_opening_what_the_disk_has_and_receipt_and_session_say_so()
 {
    for (keep, expected) in [(Keep::Kept, Progress::Durable), (Keep::Lost, Progress::Lost)] {
        let disk = SimulatedDevice::new(1);
        let db = reopen(&disk).unwrap();
        let (map, session) = (db.map("map").unwrap(), db.session("session").unwrap());
        session.put(&map, "key", "durable").unwrap().safe().unwrap();
        let (_, receipt) = session.put(&map, "key", "lost").unwrap().fast();
        disk.inject(Fault { operation: OperationKind::Sync, nth: 1, kind: FaultKind::EIO, sticky: true });
        let error = receipt.wait(Level::LOCAL).unwrap_err();
        assert_eq!((error.kind(), receipt.poll(Level::LOCAL)), (ErrorKind::Lost, Progress::Lost));
        assert!(error.to_string().contains("to learn how much of it the disk has"), "{error}");
        let left = disk.after_crash(&mut |_| keep);
        let db = reopen(&left).unwrap();
        let is_there = expected == Progress::Durable;
        let is_recovered = db.recovery_report().horizon >= receipt.version();
        assert_eq!((db.receipt(receipt.version()).poll(Level::LOCAL), is_recovered), (expected, is_there));
        assert_eq!(db.session("session").unwrap().recovered_serial(), 1 + u64::from(is_there));
        // It is durable indeed, and not only found.
        let crashed = left.after_crash(&mut |_| Keep::Lost);
        drop(db);
        for left in [crashed, left] {
            let db = reopen(&left).unwrap();
            let value = db.get(&db.map("map").unwrap(), "key").unwrap().unwrap();
            assert_eq!(value == b"lost", is_there);
            assert_eq!(db.receipt(receipt.version()).poll(Level::LOCAL), expected);
        }
    }
}
