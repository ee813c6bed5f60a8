//! C5, C8: what is called back, how often, and what a callback may do.

use std::future::Future;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::task::{Context, Wake};

use kiln::device::{Fault, FaultKind, OperationKind, SimulatedDevice};
use kiln::{Kiln, Level, Version};

use super::gate::{Gate, OpenAtEnd, gated_device};
use crate::support::manual;
use crate::testing::{PATIENCE, background, block_on, eventually, watched};

fn fail_next_sync(disk: &SimulatedDevice) {
    // Sticky, since the first may be that of a segment that is prepared.
    disk.inject(Fault { operation: OperationKind::Sync, nth: 1, kind: FaultKind::EIO, sticky: true });
}

fn opened(has_background: bool) -> (SimulatedDevice, Kiln) {
    let disk = SimulatedDevice::new(1);
    let options = if has_background { background() } else { manual() };
    let db = options.open_on(Arc::new(disk.clone())).unwrap();
    (disk, db)
}

/// Callbacks were called with locks held: those of the lead, when a hardening had failed, and those of the callbacks themselves.
#[test]
fn c8_a_callback_may_use_the_database_and_drop_its_last_handle_whatever_it_is_called_for() {
    watched("c8_a_callback_may_use_the_database", PATIENCE, |_| {
        for (has_background, fails) in [(false, false), (false, true), (true, false), (true, true)] {
            let (disk, db) = opened(has_background);
            let map = db.map("map").unwrap();
            let (_, receipt) = db.put(&map, "key", "value").unwrap().fast();
            drop(map);
            let (acts, calls) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
            let (told, hear) = channel::<()>();
            // Each of them uses a handle, registers another one, and drops its handle; the last that does closes the database.
            let using = |db: Kiln| {
                let (calls, told, acts) = (calls.clone(), told.clone(), acts.clone());
                move || {
                    assert!(db.statistics().hardenings <= 1);
                    db.on_durable(|_| {});
                    let (calls, told) = (calls.clone(), told.clone());
                    db.on_lost(move |_| {
                        calls.fetch_add(1, Ordering::SeqCst);
                        drop(told);
                    });
                    drop(db);
                    acts.fetch_add(1, Ordering::SeqCst);
                }
            };
            let of_receipt = using(db.clone());
            receipt.on_durable(Level::LOCAL, move |outcome| {
                assert_eq!(outcome.is_err(), fails);
                of_receipt();
            });
            // One that is never called would keep its handle.
            let of_database = using(db.clone());
            if fails {
                db.on_lost(move |_| of_database());
            } else {
                let mut of_database = Some(of_database);
                db.on_durable(move |_| of_database.take().into_iter().for_each(|act| act()));
            }
            drop((db, told));
            if fails {
                fail_next_sync(&disk);
            }
            assert_eq!(receipt.wait(Level::LOCAL).is_err(), fails);
            // What panics in a callback shows here.
            eventually("both callbacks have come to their end", || acts.load(Ordering::SeqCst) == 2);
            if fails {
                // Those that were registered from the receipt's and the loss's callback.
                while hear.recv().is_ok() {}
                assert_eq!(calls.load(Ordering::SeqCst), 2);
            }
        }
    });
}

/// An executor may run a task where it is woken, and it was woken with the lead held.
#[test]
fn c8_a_task_that_is_woken_because_its_commit_is_lost_may_use_the_database() {
    struct Executor(Mutex<Option<Kiln>>, AtomicBool);
    impl Wake for Executor {
        fn wake(self: Arc<Self>) {
            if let Some(db) = self.0.lock().unwrap().take() {
                db.persist().expect_err("it has lost something");
                self.1.store(true, Ordering::SeqCst);
            }
        }
    }
    watched("c8_a_task_that_is_woken_because_its_commit_is_lost", PATIENCE, |_| {
        let disk = SimulatedDevice::new(1);
        let (device, gate) = gated_device(&disk);
        let db = manual().open_on(device).unwrap();
        let _open = OpenAtEnd(gate.clone());
        let map = db.map("map").unwrap();
        let (_, receipt) = db.put(&map, "key", "value").unwrap().fast();
        let executor = Arc::new(Executor(Mutex::new(Some(db.clone())), AtomicBool::new(false)));
        gate.shut();
        std::thread::scope(|scope| {
            let persisting = scope.spawn(|| db.persist().expect_err("the sync fails"));
            gate.wait_until_stuck();
            let mut future = Box::pin(receipt.durable(Level::LOCAL));
            assert!(future.as_mut().poll(&mut Context::from_waker(&executor.clone().into())).is_pending());
            fail_next_sync(&disk);
            gate.open();
            persisting.join().unwrap();
        });
        assert!(executor.1.load(Ordering::SeqCst));
    });
}

/// One that was registered between the failure and the telling heard of it twice.
#[test]
fn c5_a_loss_is_told_once_to_each_whenever_they_ask() {
    for _ in 0..50 {
        let (disk, db) = opened(false);
        let map = db.map("map").unwrap();
        db.put(&map, "key", "value").unwrap().forget();
        let calls: Vec<_> = (0..200).map(|_| Arc::new(AtomicU64::new(0))).collect();
        std::thread::scope(|scope| {
            fail_next_sync(&disk);
            scope.spawn(|| db.persist().expect_err("the sync fails"));
            for call in &calls {
                let call = call.clone();
                db.on_lost(move |_| _ = call.fetch_add(1, Ordering::SeqCst));
            }
        });
        assert!(calls.iter().all(|call| call.load(Ordering::SeqCst) == 1));
    }
}

/// The thread that hardened ended with it, and the others who waited were told nothing.
#[test]
fn c5_a_callback_that_panics_takes_nothing_from_others() {
    watched("c5_a_callback_that_panics", PATIENCE, |_| {
        let (_disk, db) = opened(true);
        let map = db.map("map").unwrap();
        db.on_durable(|_| panic!("on purpose: a callback of the database"));
        let (told, hear) = channel();
        db.on_durable(move |version| _ = told.send(version));
        for round in 0..3_u32 {
            let (_, receipt) = db.put(&map, "key", round.to_be_bytes()).unwrap().fast();
            receipt.on_durable(Level::LOCAL, |_| panic!("on purpose: a callback of a receipt"));
            let (called, is_called) = channel();
            receipt.on_durable(Level::LOCAL, move |outcome| _ = called.send(outcome.is_ok()));
            // Nobody but the background hardens it.
            assert_eq!(is_called.recv_timeout(PATIENCE), Ok(true));
            assert!(hear.recv_timeout(PATIENCE).is_ok());
        }
    });
}

/// Closing held a lock while it told others what it had made durable.
#[test]
fn c8_a_callback_may_close_the_database_that_is_being_closed() {
    watched("c8_a_callback_may_close", PATIENCE, |_| {
        for (has_background, fails) in [(false, false), (false, true), (true, false), (true, true)] {
            let (disk, db) = opened(has_background);
            let map = db.map("map").unwrap();
            let (_, receipt) = db.put(&map, "key", "value").unwrap().fast();
            let (closing, (told, hear)) = (db.clone(), channel());
            receipt.on_durable(Level::LOCAL, move |_| _ = told.send(closing.close().is_err()));
            if fails {
                fail_next_sync(&disk);
            }
            assert_eq!(db.close().is_err(), fails);
            assert_eq!(hear.recv_timeout(PATIENCE), Ok(fails));
        }
    });
}

/// Some held locks that closing asks for while they told others what they had made durable.
#[test]
fn c8_a_callback_may_close_the_database_whatever_has_hardened() {
    type Deed = fn(&Kiln) -> bool;
    let deeds: [(&str, Deed); 6] = [
        ("persist", |db| db.persist().is_ok()),
        ("checkpoint", |db| db.checkpoint().is_ok()),
        ("compact", |db| db.compact(|_| {}).is_ok()),
        ("create_snapshot", |db| db.create_snapshot("other").is_ok()),
        ("drop_snapshot", |db| db.drop_snapshot("name").is_ok()),
        ("bulk_load", |db| {
            let rows = (0..3_u32).map(|row| Ok::<_, kiln::Error>((row.to_be_bytes(), "value")));
            db.bulk_load("table", rows, |_| {}).is_ok()
        }),
    ];
    watched("c8_a_callback_may_close_the_database_whatever", PATIENCE, |_| {
        for (name, deed) in deeds {
            for (has_background, fails) in [(false, false), (false, true), (true, false), (true, true)] {
                let (disk, db) = opened(has_background);
                let map = db.map("map").unwrap();
                db.create_snapshot("name").unwrap();
                let (_, receipt) = db.put(&map, "key", "value").unwrap().fast();
                let (closing, (told, hear)) = (db.clone(), channel());
                receipt.on_durable(Level::LOCAL, move |_| _ = told.send(closing.close().is_err()));
                if fails {
                    fail_next_sync(&disk);
                }
                // Closing may come before its end.
                let _ = deed(&db);
                // Without the hardener a checkpoint hardens nothing that it has no need for.
                let closed = db.close().is_err();
                assert_eq!((hear.recv_timeout(PATIENCE), closed), (Ok(fails), fails), "{name}");
            }
        }
    });
}

/// A waker was dropped with its place locked, where the wakers of others are looked for.
#[test]
fn c5_a_waker_that_is_the_last_to_hold_a_database_may_be_dropped() {
    struct Task(#[expect(dead_code, reason = "it is held")] Kiln, Gate);
    impl Wake for Task {
        fn wake(self: Arc<Self>) {}
    }
    impl Drop for Task {
        fn drop(&mut self) {
            // Closing waits for the hardening under way.
            self.1.open();
        }
    }
    watched("c5_a_waker_that_is_the_last", PATIENCE, |_| {
        for is_given_up in [false, true] {
            let (device, gate) = gated_device(&SimulatedDevice::new(1));
            let db = background().open_on(device).unwrap();
            let map = db.map("map").unwrap();
            gate.shut();
            let (_, receipt) = db.put(&map, "key", "value").unwrap().fast();
            drop(map);
            let mut future = Box::pin(receipt.durable(Level::LOCAL));
            let task = Arc::new(Task(db, gate)).into();
            assert!(future.as_mut().poll(&mut Context::from_waker(&task)).is_pending());
            drop(task);
            if is_given_up {
                drop(future);
            } else {
                _ = future.as_mut().poll(&mut Context::from_waker(std::task::Waker::noop()));
                assert!(future.as_mut().poll(&mut Context::from_waker(std::task::Waker::noop())).is_ready());
            }
        }
    });
}

/// It asked for a hardening, and there was nobody who could be asked.
#[test]
fn c5_a_future_without_background_threads_hardens_on_the_thread_that_polls_it() {
    watched("c5_a_future_without_background_threads", PATIENCE, |_| {
        let (_disk, db) = opened(false);
        let map = db.map("map").unwrap();
        let (_, receipt) = db.put(&map, "key", "value").unwrap().fast();
        block_on(receipt.durable(Level::LOCAL)).unwrap();
        assert_eq!(db.horizon(Level::LOCAL), receipt.version());
    });
}

/// A callback and the database kept each other for ever.
#[test]
fn closing_lets_go_of_the_callbacks_and_of_what_they_own() {
    watched("closing_lets_go_of_the_callbacks", PATIENCE, |_| {
        for (has_background, by_callback) in [(false, false), (false, true), (true, false), (true, true)] {
            let (_disk, db) = opened(has_background);
            let map = db.map("map").unwrap();
            let owned = Arc::new(());
            let own = || {
                let (db, owned) = (db.clone(), owned.clone());
                move || {
                    let _owned = (&db, &owned);
                }
            };
            let (of_durable, of_lost, of_receipt) = (own(), own(), own());
            db.on_durable(move |_| of_durable());
            db.on_lost(move |_| of_lost());
            // No commit ever has this version.
            let never = db.receipt(Version::new(u64::MAX));
            never.on_durable(Level::LOCAL, move |_| of_receipt());
            if by_callback {
                // While they are called they are nowhere that they could be taken from.
                let closing = db.clone();
                db.on_durable(move |_| closing.close().unwrap());
                // Before this, where the background has hardened the map, or by it.
                let _ = db.put(&map, "key", "value").and_then(|put| put.safe());
            } else {
                db.close().unwrap();
            }
            let (too_late, much_too_late, later_than_that) = (own(), own(), own());
            eventually("the callbacks have gone", || Arc::strong_count(&owned) == 4);
            db.on_durable(move |_| too_late());
            db.on_lost(move |_| much_too_late());
            never.on_durable(Level::LOCAL, move |_| later_than_that());
            assert_eq!(Arc::strong_count(&owned), 1, "nobody calls them any more");
        }
    });
}

#[test]
fn c5_a_commit_that_is_awaited_ends_when_it_is_durable_or_lost() {
    watched("c5_a_commit_that_is_awaited", PATIENCE, |_| {
        for has_background in [false, true] {
            let (disk, db) = opened(has_background);
            let (map, session) = (db.map("map").unwrap(), db.session("client").unwrap());
            let sum = db.add(&map, "key", 2).unwrap().safe_async();
            assert_eq!(block_on(sum).unwrap(), 2);
            let commit = session.transact(|tx| tx.add(&map, "key", 3)).unwrap();
            let version = commit.version();
            assert_eq!(block_on(commit.safe_async()).unwrap(), 5);
            assert!(db.horizon(Level::LOCAL) >= version);
            // Nobody need ask for it.
            drop(db.put(&map, "other", "value").unwrap().safe_async());
            assert!(db.get(&map, "other").unwrap().is_some());
            // Else the background thread might harden that between the fault and the next commit, which would be refused.
            db.persist().unwrap();
            fail_next_sync(&disk);
            let lost = db.add(&map, "key", 1).unwrap().safe_async();
            assert_eq!(block_on(lost).unwrap_err().kind(), kiln::ErrorKind::Lost);
        }
    });
}
