//! C2, C9: a read that is waited for later is the read that it would be at once.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::Duration;

use kiln::device::{Fault, FaultKind, OperationKind, SimulatedDevice};
use kiln::{ErrorKind, Kiln, Options, PendingRead};

use super::cold::{cold_database, key, lazy, make_cold};
use super::gate::{Gate, OpenAtEnd};
use super::hooked::{HookedDevice, Operation};
use crate::support::Random;
use crate::testing::{PATIENCE, background, budget, seed, watched};

/// As `lazy`, with background threads.
fn threaded() -> Options {
    background().segment_bytes(64 << 10).memory(1 << 20).space_amplification(f64::INFINITY)
}

fn value(number: u32) -> Option<Vec<u8>> {
    Some(vec![number as u8; 200])
}

/// The smallest executor there is.
fn block_on<T>(future: impl Future<Output = T>) -> T {
    struct Unpark(Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(output) => return output,
            Poll::Pending => thread::park(),
        }
    }
}

fn slow_reads(disk: &SimulatedDevice, delay_ms: u64) {
    let kind = FaultKind::Delay(Duration::from_millis(delay_ms));
    disk.inject(Fault { operation: OperationKind::Read, nth: 1, kind, sticky: true });
}

/// Until nothing is in flight any more, which nobody may keep in flight.
fn await_nothing_in_flight(db: &Kiln) {
    while db.statistics().reads_in_flight > 0 {
        thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn c2_pending_reads_find_what_is_on_disk_whoever_waits_for_them_and_however() {
    watched("c2_pending_reads_find_what_is_on_disk", PATIENCE, |_| {
        for options in [threaded(), threaded().memory(0), lazy().memory(1 << 20)] {
            const KEYS: u32 = 600;
            let (db, map) = cold_database(&options, &SimulatedDevice::new(seed()), KEYS);
            db.put(&map, key(3), "new").unwrap().forget();
            let expected = |number: u32| match number {
                3 => Some(b"new".to_vec()),
                0..KEYS => value(number),
                _ => None,
            };
            let session = db.session("session").unwrap();
            let reads: Vec<PendingRead> =
                (0..KEYS + 50).map(|number| session.get_async(&map, key(number))).collect();
            for (number, read) in (0..).zip(reads) {
                let found = match number % 3 {
                    0 => read.wait().unwrap(),
                    1 => block_on(read).unwrap(),
                    _ => {
                        let mut read = read;
                        let outcome = loop {
                            match read.try_wait() {
                                Some(outcome) => break outcome.unwrap(),
                                None => thread::yield_now(),
                            }
                        };
                        assert!(read.try_wait().is_none(), "a value is given once");
                        assert_eq!(read.wait().unwrap_err().kind(), ErrorKind::Input);
                        outcome
                    }
                };
                assert_eq!(found, expected(number), "key {number}");
            }
            await_nothing_in_flight(&db);
            let statistics = db.statistics();
            // Some of them come into memory by themselves meanwhile.
            let unasked = statistics.warmed_up_records + statistics.neighbours_read;
            let from_disk = statistics.cold_reads + unasked;
            assert!(from_disk >= u64::from(KEYS) - 50 && statistics.cold_reads > 5, "{statistics:?}");
            let other = options.open_on(Arc::new(SimulatedDevice::new(seed()))).unwrap();
            assert_eq!(other.get_async(&map, "key").wait().unwrap_err().kind(), ErrorKind::Input);
        }
    });
}

/// A pending read may be the oldest of all, but not older than its call, and not newer than its end.
#[test]
fn c2_a_pending_read_takes_place_between_its_call_and_its_end() {
    watched("c2_a_pending_read_takes_place_between", PATIENCE, |_| {
        const KEYS: usize = 64;
        let disk = SimulatedDevice::new(seed());
        let (db, map) = cold_database(&threaded().memory(0), &disk, 0);
        let ballast = db.map("ballast").unwrap();
        let committed: Vec<AtomicU64> = (0..KEYS).map(|_| AtomicU64::new(0)).collect();
        let begun: Vec<AtomicU64> = (0..KEYS).map(|_| AtomicU64::new(0)).collect();
        let put = |at: usize| {
            let number = begun[at].fetch_add(1, Ordering::SeqCst) + 1;
            db.put(&map, key(at as u32), number.to_le_bytes()).unwrap().forget();
            committed[at].store(number, Ordering::SeqCst);
        };
        (0..KEYS).for_each(put);
        thread::scope(|scope| {
            let writer = scope.spawn(|| {
                let mut random = Random::new(seed());
                for _ in 0..budget(2_000) {
                    put(random.below(KEYS));
                    // So that what was put leaves memory soon.
                    db.put(&ballast, "ballast", [0; 4_000]).unwrap().forget();
                }
            });
            let mut random = Random::new(seed() + 1);
            let mut rounds = 0;
            while !writer.is_finished() || rounds < 3 {
                rounds += 1;
                let reads: Vec<_> = (0..40)
                    .map(|_| {
                        let at = random.below(KEYS);
                        let least = committed[at].load(Ordering::SeqCst);
                        (at, least, db.get_async(&map, key(at as u32)))
                    })
                    .collect();
                for (at, least, read) in reads {
                    let bytes = read.wait().unwrap().expect("each key has a value");
                    let found = u64::from_le_bytes(bytes.try_into().expect("a number"));
                    let most = begun[at].load(Ordering::SeqCst);
                    assert!((least..=most).contains(&found), "{found}, not {least} to {most}, of key {at}");
                }
            }
        });
        assert!(db.statistics().cold_reads > 0, "nothing was on disk");
    });
}

#[test]
fn c9_a_pending_read_of_what_is_damaged_or_cannot_be_read_names_file_and_offset() {
    watched("c9_a_pending_read_of_what_is_damaged", PATIENCE, |_| {
        for options in [threaded(), lazy()] {
            let disk = SimulatedDevice::new(seed());
            let (db, map) = cold_database(&options, &disk, 300);
            let failing =
                Fault { operation: OperationKind::Read, nth: 1, kind: FaultKind::EIO, sticky: true };
            disk.inject(failing);
            let error = db.get_async(&map, key(5)).wait().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Io, "{error}");
            assert!(error.to_string().contains("segment-00000000 at offset"), "{error}");
            disk.clear_faults();
            let clean = disk.bytes("segment-00000000");
            let at = clean.windows(200).position(|bytes| bytes == [7; 200]).unwrap();
            disk.flip_bit("segment-00000000", 8 * at as u64 + 77);
            let reads: Vec<_> = (6..9).map(|number| db.get_async(&map, key(number))).collect();
            let mut found = reads.into_iter().map(PendingRead::wait);
            assert_eq!(found.next().unwrap().unwrap(), value(6));
            let error = found.next().unwrap().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Corrupted, "{error}");
            assert!(error.to_string().contains("segment-00000000"), "{error}");
            assert_eq!(found.next().unwrap().unwrap(), value(8));
        }
    });
}

#[test]
fn pending_reads_that_are_dropped_are_not_read_and_keep_nothing() {
    watched("pending_reads_that_are_dropped", PATIENCE, |_| {
        const KEYS: u32 = 1_000;
        let disk = SimulatedDevice::new(seed());
        let (db, map) = cold_database(&threaded(), &disk, KEYS);
        slow_reads(&disk, 2);
        let before = db.statistics().cold_reads;
        drop((0..KEYS).map(|number| db.get_async(&map, key(number))).collect::<Vec<_>>());
        // In its turn, behind those that were dropped.
        assert_eq!(db.get_async(&map, key(KEYS - 1)).wait().unwrap(), value(KEYS - 1));
        await_nothing_in_flight(&db);
        let read = db.statistics().cold_reads - before;
        assert!(read < u64::from(KEYS) / 2, "{read} of {KEYS} that nobody waits for were read");
    });
}

/// On a disk that stands still, each kept its waker until its turn came, which was never.
#[test]
fn pending_reads_that_are_dropped_let_go_of_their_wakers_while_the_disk_stands_still() {
    struct Task;
    impl Wake for Task {
        fn wake(self: Arc<Self>) {}
    }
    watched("pending_reads_that_are_dropped_let_go", PATIENCE, |_| {
        const KEYS: u32 = 1_000;
        let gate = Gate::default();
        let device = HookedDevice::on(&SimulatedDevice::new(seed()), {
            let gate = gate.clone();
            move |operation, _| {
                if operation == Operation::Read {
                    gate.pass();
                }
            }
        });
        let db = threaded().open_on(device).unwrap();
        let _open = OpenAtEnd(gate.clone());
        let map = db.map("map").unwrap();
        for number in 0..KEYS {
            db.put(&map, key(number), [number as u8; 200]).unwrap().forget();
        }
        make_cold(&db, &db.map("ballast").unwrap());
        gate.shut();
        let task = Arc::new(Task);
        let waker = Waker::from(task.clone());
        let begun = |number: u32| {
            let mut read = db.get_async(&map, key(number));
            assert!(pin!(&mut read).poll(&mut Context::from_waker(&waker)).is_pending());
            read
        };
        let first = begun(0);
        gate.wait_until_stuck();
        (0..KEYS).for_each(|number| drop(begun(number)));
        assert_eq!(Arc::strong_count(&task), 3, "but for the one that is still waited for");
        gate.open();
        assert_eq!(block_on(first).unwrap(), value(0));
    });
}

#[test]
fn a_pending_read_of_a_database_that_is_closed_says_so() {
    watched("a_pending_read_of_a_database_that_is_closed", PATIENCE, |_| {
        for options in [threaded(), lazy().memory(1 << 20)] {
            let disk = SimulatedDevice::new(seed());
            let (db, map) = cold_database(&options, &disk, 400);
            slow_reads(&disk, 5);
            let reads: Vec<_> = (0..400).map(|number| db.get_async(&map, key(number))).collect();
            let waiting = thread::spawn({
                let read = db.get_async(&map, key(399));
                move || read.wait()
            });
            db.close().unwrap();
            disk.clear_faults();
            let mut closed = 0;
            let late = db.get_async(&map, key(398)).wait();
            for (number, outcome) in (0..400).zip(reads.into_iter().map(block_on)).chain([(398, late)]) {
                match outcome {
                    Ok(found) => assert_eq!(found, value(number)),
                    Err(error) => {
                        assert_eq!(error.kind(), ErrorKind::Aborted, "{error}");
                        closed += 1;
                    }
                }
            }
            assert!(closed > 100, "only {closed} of 400 slow reads were pending");
            let last = waiting.join().expect("it does not panic");
            assert!(last.is_ok() || last.is_err_and(|error| error.kind() == ErrorKind::Aborted));
        }
    });
}

/// Whoever waits is the application's code, and so is its waker.
#[test]
fn c2_a_waker_that_panics_takes_no_other_pending_read_with_it() {
    struct Panics;
    impl Wake for Panics {
        fn wake(self: Arc<Self>) {
            panic!("this waker panics, as it should");
        }
    }
    watched("c2_a_waker_that_panics", PATIENCE, |_| {
        let disk = SimulatedDevice::new(seed());
        let (db, map) = cold_database(&threaded(), &disk, 300);
        slow_reads(&disk, 20);
        let mut first = pin!(db.get_async(&map, key(5)));
        let waker = Waker::from(Arc::new(Panics));
        assert!(first.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        let others: Vec<_> = (6..9).map(|number| db.get_async(&map, key(number))).collect();
        for (number, read) in (6..).zip(others) {
            assert_eq!(read.wait().unwrap(), value(number));
        }
        assert_eq!(block_on(first).unwrap(), value(5));
    });
}

/// A future that goes from one task to another leaves its old waker behind, which may be all that keeps the old task.
#[test]
fn a_pending_read_lets_go_of_its_old_waker_while_nothing_is_locked() {
    struct Holds(Kiln);
    impl Wake for Holds {
        fn wake(self: Arc<Self>) {
            drop(self.0.statistics());
        }
    }
    watched("a_pending_read_lets_go_of_its_old_waker", PATIENCE, |_| {
        let disk = SimulatedDevice::new(seed());
        let (db, map) = cold_database(&threaded(), &disk, 300);
        slow_reads(&disk, 20);
        let mut read = pin!(db.get_async(&map, key(5)));
        let last_handle = Waker::from(Arc::new(Holds(db)));
        assert!(read.as_mut().poll(&mut Context::from_waker(&last_handle)).is_pending());
        drop(last_handle);
        // This closes the database.
        match block_on(read) {
            Ok(found) => assert_eq!(found, value(5)),
            Err(error) => assert_eq!(error.kind(), ErrorKind::Aborted, "{error}"),
        }
    });
}

/// The reader ended, and whoever waited for it did so for ever, after closing, too.
#[test]
fn c9_a_reader_that_panics_tells_those_who_wait_and_reads_go_on() {
    watched("c9_a_reader_that_panics_tells_those_who_wait", PATIENCE, |_| {
        let disk = SimulatedDevice::new(seed());
        let (db, map) = cold_database(&threaded(), &disk, 600);
        // Backwards: else they would come as neighbours of those before.
        for round in (0..30).rev() {
            disk.inject(Fault {
                operation: OperationKind::Read,
                nth: 1,
                kind: FaultKind::Panic,
                sticky: false,
            });
            let keys = round * 20..round * 20 + 1 + round % 20;
            let reads: Vec<PendingRead> =
                keys.clone().map(|number| db.get_async(&map, key(number))).collect();
            let outcomes: Vec<_> = reads.into_iter().map(PendingRead::wait).collect();
            let errors: Vec<_> = outcomes.into_iter().filter_map(Result::err).collect();
            assert!(!errors.is_empty() && errors.iter().all(|error| error.to_string().contains("panicked")));
            // Who is told reads again at once, while the reader is still at its panic.
            for number in keys {
                assert_eq!(db.get_async(&map, key(number)).wait().unwrap(), value(number));
            }
        }
        db.close().unwrap();
    });
}
