use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Weak, mpsc};
use std::task::{Context, Wake, Waker};
use std::thread;
use std::time::Duration;

use super::horizon::{Covered, Horizon, Lost, Outcome, Successor, Waiter};
use crate::device::{Fault, FaultKind, Keep, OperationKind, SimulatedDevice};
use crate::kernel::engine::Engine;
use crate::kernel::recovery::VERSIONS_SKIPPED;
use crate::storage::log::{Demand, Purpose};
use crate::sync::atomic::{AtomicUsize, Ordering};
use crate::sync::{Instant, Mutex};
use crate::{ErrorKind, Kiln, Level, Options, Progress, Table, Version};

fn put_durably(db: &Kiln, table: &Table, number: u32) -> crate::Result<()> {
    // Each in a version of its own: within one, a record is updated where it is.
    db.put(table, [number as u8 % 8], [number as u8; 8_000])?.safe().map(drop)
}

/// On a full disk nothing more hardens, so a look beside a hardening must not put the next off until more has.
#[test]
fn c5_what_is_dropped_beside_a_hardening_makes_room_on_a_full_disk() {
    let disk = SimulatedDevice::new(1);
    let options = Options::new().segment_bytes(64 << 10).memory(512 << 10).background(false);
    let db = options.open_on(Arc::new(disk.clone())).expect("the disk is empty");
    let table = db.table("table").expect("a table");
    disk.set_capacity(Some(2 << 20));
    db.put(&table, "key", "value").expect("there is room").forget();
    let snapshot = db.snapshot().expect("a snapshot");
    let count = (0..2_000).take_while(|&number| put_durably(&db, &table, number).is_ok()).count();
    assert!((100..1_000).contains(&count), "{count} values of 8,000 bytes in 2 MiB");
    drop(snapshot);
    {
        let _leader = db.engine().hardening.leader.lock();
        db.engine().sweep();
    }
    put_durably(&db, &table, 0).expect("nobody needs the old values any more");
}

/// As where the disk hardens so little within the window that nobody may write at the moment: on a full disk, but there is room for deletions.
#[test]
fn c5_who_has_to_wait_for_memory_is_not_told_that_the_disk_is_full() {
    let disk = SimulatedDevice::new(1);
    let options = Options::new().segment_bytes(64 << 10).memory(0).background(false);
    let db = options.open_on(Arc::new(disk.clone())).expect("the disk is empty");
    let table = db.table("table").expect("a table");
    disk.set_capacity(Some(1 << 20));
    let put = |number: u32| db.put(&table, number.to_be_bytes(), [1; 8_000]).map(|commit| commit.forget());
    let count = (0..200).take_while(|&number| put(number).is_ok()).count() as u32;
    assert!((50..200).contains(&count), "{count} values of 8,000 bytes in 1 MiB");
    let engine = db.engine();
    let unhardened_bytes_max = &engine.hardening.unhardened_bytes_max;
    let usual = unhardened_bytes_max.swap(0, Ordering::SeqCst);
    engine.update_limit();
    assert!(!engine.log.has_space(Demand::of_one(64), Purpose::Deletion), "nobody may write");
    engine.wait_for_space(Demand::of_one(64), Purpose::Deletion).expect("there is room on the disk");
    engine.wait_for_space(Demand::of_one(8_192), Purpose::Ordinary).expect_err("there is none for a value");
    unhardened_bytes_max.store(usual, Ordering::SeqCst);
    engine.update_limit();
    db.delete(&table, 0_u32.to_be_bytes()).expect("there is room for deletions").forget();
}

/// Every safe commit asks several times, and a database that has lived long may have had many crashes.
#[test]
fn c8_of_many_crashes_the_one_that_took_a_version_is_told() {
    let horizon = Horizon::new(1_000_000);
    horizon.set_lost_before((1..=10_000).map(|crash| (10 * crash, 10 * crash + 5)).collect());
    for version in 1..=100_020 {
        let first = version - version % 10;
        let is_lost = (10..=100_000).contains(&first) && version - first <= 5;
        let Some(outcome) = horizon.outcome(version) else { panic!("the fate of {version} is known") };
        assert_eq!(outcome.is_err(), is_lost, "version {version}");
        assert_eq!(horizon.was_lost(version), is_lost, "version {version}");
        if let Err(lost) = outcome {
            assert_eq!(lost.last().map(Version::number), Some(first + 5), "version {version}");
        }
    }
}

#[test]
fn c5b_who_gathers_takes_no_more_of_the_window_than_is_left_over() {
    let window = Duration::from_millis(10);
    let options = Options::new().window(window).background(false);
    let db = options.open_on(Arc::new(SimulatedDevice::new(1))).expect("the disk is empty");
    let hardening = &db.engine().hardening;
    hardening.duration_us.store(100, Ordering::Relaxed);
    assert_eq!(
        hardening.gathering_patience(),
        Duration::from_micros(300),
        "a quick disk: so many are back by then"
    );
    hardening.duration_us.store(50_000, Ordering::Relaxed);
    assert_eq!(hardening.gathering_patience(), window / 10, "a slow one");
}

/// Somebody hardens, for as long as the disk takes, while the log's memory is full of what is durable.
#[test]
fn a_commit_gets_memory_that_durable_records_have_without_waiting_for_a_hardening() {
    // With records that are kept warm, and without.
    for space_amplification in [2.0, f64::INFINITY] {
        let options = Options::new().segment_bytes(64 << 10).memory(512 << 10).background(false);
        let options = options.space_amplification(space_amplification);
        let db = &options.open_on(Arc::new(SimulatedDevice::new(1))).expect("the disk is empty");
        let map = &db.map("map").expect("a map");
        let log = &db.engine().log;
        while log.tail() - log.head() < log.ring_bytes() / 3 * 2 {
            db.put(map, "key", [1; 1_000]).expect("there is room").safe().expect("the disk works");
        }
        let head = log.head();
        thread::scope(|scope| {
            let leader = db.engine().hardening.leader.lock();
            let (told, done) = mpsc::channel();
            scope.spawn(move || {
                let put = |key: u8| db.put(map, [key], [key; 1_000]).map(|receipt| receipt.forget());
                let _: Result<(), _> = told.send((0..100).try_for_each(put));
            });
            let put = done.recv_timeout(Duration::from_secs(10));
            db.engine().let_go(leader, Covered::default());
            put.expect("nobody has to harden for it").expect("there is room");
        });
        assert!(log.head() > head);
    }
}

/// The clock goes on without commits, by whoever makes durable what is, and only a seal tells an opening after a crash how far it had come.
#[test]
fn c8_no_version_is_given_out_again_however_far_the_clock_has_gone_since_the_last_commit() {
    type Deed = fn(&Kiln);
    let deeds: [Deed; 2] = [|db| db.persist().unwrap(), |db| drop(db.snapshot().unwrap())];
    for deed in deeds {
        let disk = SimulatedDevice::new(1);
        let open = |disk: &SimulatedDevice| {
            let options = Options::new().background(false).segment_bytes(64 << 10).memory(0);
            options.open_on(Arc::new(disk.clone())).expect("the disk works")
        };
        let db = open(&disk);
        let map = db.map("map").expect("a map");
        db.put(&map, "key", "durable").expect("there is room").safe().expect("the disk works");
        for _ in 0..3 {
            (0..=VERSIONS_SKIPPED / 2).for_each(|_| _ = db.engine().clock.tick());
            deed(&db);
        }
        let (_, receipt) = db.put(&map, "key", "lost").expect("there is room").fast();
        let left = open(&disk.after_crash(&mut |_| Keep::Lost));
        assert!(left.version() > receipt.version(), "{} was given out before", left.version());
        assert_eq!(left.receipt(receipt.version()).poll(Level::LOCAL), Progress::Lost);
    }
}

/// It was gone once the others had been called, and heard of nothing.
#[test]
fn c8_a_callback_that_another_one_has_added_is_called_from_then_on() {
    let horizon = Arc::new(Horizon::new(1));
    let (told, hear) = mpsc::channel();
    let (adding, mut told) = (Arc::downgrade(&horizon), Some(told));
    horizon.on_durable(Box::new(move |_| {
        if let (Some(horizon), Some(told)) = (adding.upgrade(), told.take()) {
            horizon.on_durable(Box::new(move |version| told.send(version.number()).expect("it is heard")));
        }
    }));
    [5, 6].into_iter().for_each(|version| horizon.tell(horizon.publish(version)));
    assert_eq!(hear.try_iter().collect::<Vec<_>>(), [6]);
}

/// Two leads in a row tell in either order.
#[test]
fn c5_what_has_hardened_is_told_before_what_is_lost() {
    let horizon = Horizon::new(1);
    let (told, hear) = mpsc::channel();
    let told_lost = told.clone();
    horizon.on_durable(Box::new(move |version| told.send(Ok(version.number())).expect("it is heard")));
    horizon.on_lost(Box::new(move |lost| told_lost.send(Err(lost.horizon().number())).expect("it is heard")));
    let hardened = horizon.publish(5);
    let lost = horizon.fail(Lost::new(5, "the disk".to_owned()));
    horizon.tell(lost);
    horizon.tell(hardened);
    assert_eq!(hear.try_iter().collect::<Vec<_>>(), [Ok(5), Err(5)]);
}

/// Who waited for a time heard of it only from who tells, who may be late.
#[test]
fn c5_who_waits_for_a_time_hears_of_what_has_hardened_within_it_whoever_tells() {
    let options = Options::new().memory(0).segment_bytes(64 << 10).window(Duration::from_secs(3600));
    let db = options.open_on(Arc::new(SimulatedDevice::new(1))).expect("the disk is empty");
    let map = db.map("map").expect("a map");
    // Without the hardener nobody tells.
    db.engine().hardening.requests.lock().stop = true;
    db.engine().hardening.wake_all();
    let (_, receipt) = db.put(&map, "key", "value").expect("there is room").fast();
    thread::scope(|scope| {
        let waiting = scope.spawn(|| receipt.wait_timeout(Level::LOCAL, Duration::from_millis(200)));
        // Time to register.
        thread::sleep(Duration::from_millis(50));
        db.engine().harden_all().expect("the disk works");
        assert!(waiting.join().expect("it ends").expect("the disk works"));
    });
}

/// Runs a test that hangs when it fails.
fn within_a_minute(test: impl FnOnce() + Send + 'static) {
    let (told, done) = mpsc::channel();
    let running = thread::spawn(move || {
        test();
        let _ = told.send(());
    });
    let waited = done.recv_timeout(Duration::from_secs(60));
    assert_ne!(waited, Err(mpsc::RecvTimeoutError::Timeout), "it hangs");
    running.join().expect("the test has said why");
}

fn open_small(disk: &SimulatedDevice, background: bool) -> Kiln {
    let options = Options::new().segment_bytes(64 << 10).memory(0).background(background);
    let options = options.window(Duration::from_secs(3600));
    options.open_on(Arc::new(disk.clone())).expect("the disk works")
}

/// The next such operation panics.
fn panic_at(disk: &SimulatedDevice, operation: OperationKind) {
    disk.inject(Fault { operation, nth: 1, kind: FaultKind::Panic, sticky: false });
}

/// It let go of the lead and told nobody: who waited did so for ever, and so did who closed.
#[test]
fn c5_a_hardening_that_panics_ends_as_one_that_fails() {
    let check = |background| {
        let disk = SimulatedDevice::new(1);
        let db = open_small(&disk, background);
        let map = db.map("map").expect("a map");
        let put = |value: &str| db.put(&map, "key", value);
        put("durable").expect("there is room").safe().expect("the disk works");
        let durable = crate::Version::new(db.engine().hardening.horizon.local());
        let (told, hear) = mpsc::channel();
        let told_one = told.clone();
        db.on_lost(move |lost| told.send(lost.horizon()).expect("it is heard"));
        let (_, lost) = put("lost").expect("there is room").fast();
        let tell =
            move |outcome: Outcome| told_one.send(outcome.unwrap_err().horizon()).expect("it is heard");
        lost.on_durable(Level::LOCAL, tell);
        // The keeper may be filling the next segment: its write would panic in the place of the hardening's, which then works.
        db.engine().segments.close();
        panic_at(&disk, OperationKind::Write);
        thread::scope(|scope| {
            for waits in [(); 3].map(|()| scope.spawn(|| lost.wait(Level::LOCAL))) {
                assert_eq!(waits.join().expect("it ends").unwrap_err().kind(), ErrorKind::Lost);
            }
        });
        assert_eq!([(); 2].map(|()| hear.recv().expect("both are told")), [durable; 2]);
        let error = put("never").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Lost);
        assert!(error.to_string().contains("panicked"), "{error}");
        assert_eq!(db.get(&map, "key").expect("it is in memory").as_deref(), Some(&b"lost"[..]));
        assert_eq!(db.close().unwrap_err().kind(), ErrorKind::Lost);
        drop(db);
        let db = open_small(&disk, false);
        let map = db.map("map").expect("a map");
        assert_eq!(db.get(&map, "key").expect("the disk works").as_deref(), Some(&b"durable"[..]));
    };
    within_a_minute(move || [false, true].into_iter().for_each(check));
}

/// Nobody did its work from then on: of the settler the log grew without bounds, of the hardener nothing was durable any more.
#[test]
fn c5_a_background_thread_that_panics_ends_the_database_as_a_failed_hardening_does() {
    within_a_minute(|| {
        let disk = SimulatedDevice::new(1);
        let db = open_small(&disk, true);
        let map = db.map("map").expect("a map");
        let (told, hear) = mpsc::channel();
        db.on_lost(move |lost| told.send(lost).expect("it is heard"));
        // It is the keeper that makes the next segment, long before it is needed; if nobody has to wait for memory it does so alone.
        panic_at(&disk, OperationKind::Create);
        let put = |number: u64| db.put(&map, number.to_le_bytes(), [1; 1_000]).map(|put| put.forget());
        let mut number = 0;
        let lost = loop {
            // Fails once it has happened.
            let _ = put(number);
            number += 1;
            if let Ok(lost) = hear.recv_timeout(Duration::from_millis(60)) {
                break lost;
            }
        };
        assert!(lost.reason().contains("kiln-keeper panicked"), "{lost}");
        let failure = put(number).unwrap_err();
        assert_eq!(failure.kind(), ErrorKind::Lost);
        assert_eq!(db.close().unwrap_err().kind(), ErrorKind::Lost);
    });
}

/// Each that gave up left something behind until its version was durable, which on a disk that stands still is never.
#[test]
fn who_gives_up_waiting_is_not_remembered() {
    let db = Options::new().open_on(Arc::new(SimulatedDevice::new(1))).expect("the disk is empty");
    let table = db.table("table").expect("a table");
    let leader = db.engine().hardening.leader.lock();
    let (_, receipt) = db.put(&table, "key", "value").expect("there is room").fast();
    for _ in 0..10_000 {
        let waited = receipt.wait_timeout(Level::LOCAL, Duration::ZERO).expect("nothing is lost");
        assert!(!waited);
    }
    assert_eq!(db.engine().hardening.horizon.waiter_count(), 0);
    thread::scope(|scope| {
        let waiting = scope.spawn(|| receipt.wait_timeout(Level::LOCAL, Duration::from_secs(60)));
        while db.engine().hardening.horizon.waiter_count() == 0 {
            thread::yield_now();
        }
        db.engine().let_go(leader, Covered::default());
        assert!(waiting.join().expect("it does not panic").expect("nothing is lost"));
    });
}

/// As of those who wait for a time; each stayed with its waker.
#[test]
fn futures_that_are_dropped_are_not_remembered() {
    struct Task;
    impl Wake for Task {
        fn wake(self: Arc<Self>) {}
    }
    let db = Options::new().open_on(Arc::new(SimulatedDevice::new(1))).expect("the disk is empty");
    let table = db.table("table").expect("a table");
    let leader = db.engine().hardening.leader.lock();
    let (_, receipt) = db.put(&table, "key", "value").expect("there is room").fast();
    let task = Arc::new(Task);
    let waker = Waker::from(task.clone());
    for _ in 0..10_000 {
        for mut future in [receipt.durable(Level::LOCAL), receipt.durable_leading(Level::LOCAL)] {
            assert!(Pin::new(&mut future).poll(&mut Context::from_waker(&waker)).is_pending());
        }
    }
    assert_eq!(db.engine().hardening.horizon.waiter_count(), 0);
    assert_eq!(Arc::strong_count(&task), 2);
    db.engine().let_go(leader, Covered::default());
}

/// It was woken to lead the next one only after all callbacks had come to their end.
#[test]
fn c5_a_thread_that_waits_is_not_kept_waiting_by_the_callbacks_of_others() {
    let db = &open_small(&SimulatedDevice::new(1), false);
    let map = &db.map("map").expect("a map");
    let leader = db.engine().hardening.leader.lock();
    let (_, covered) = db.put(map, "key", "covered").expect("there is room").fast();
    let horizon = &db.engine().hardening.horizon;
    thread::scope(|scope| {
        let (told, hear) = mpsc::channel();
        let (ended, has_ended) = mpsc::channel();
        covered.on_durable(Level::LOCAL, move |_| {
            let _ = ended.send(hear.recv_timeout(Duration::from_secs(60)));
        });
        db.engine().clock.close();
        scope.spawn(move || {
            let commit = db.put(map, "key", "not covered").expect("there is room");
            let _ = told.send(commit.safe().is_ok());
        });
        while horizon.waiter_count() < 2 {
            thread::yield_now();
        }
        let covered = horizon.cover(covered.version().number());
        db.engine().let_go(leader, covered);
        assert_eq!(has_ended.recv(), Ok(Ok(true)), "it had to wait until the callback ended");
    });
}

/// Each hardening waited for them anew, when nothing was left to be hardened.
#[test]
fn who_was_waited_for_is_forgotten_when_nobody_waits_though_nothing_hardens() {
    let db = open_small(&SimulatedDevice::new(1), false);
    let hardening = &db.engine().hardening;
    hardening.last_waiters.store(64, Ordering::Relaxed);
    db.persist().expect("there is nothing to be made durable");
    assert_eq!(hardening.last_waiters.load(Ordering::Relaxed), 0);
}

/// Each of many that had waited for a hardening under way led one of its own, one after the other, though the first of these had made durable what they asked for.
#[test]
fn who_persists_hardens_nothing_that_was_hardened_while_it_waited() {
    let db = &open_small(&SimulatedDevice::new(1), false);
    let map = &db.map("map").expect("a map");
    let engine = db.engine();
    let is_spared = |patience: Duration| {
        db.put(map, "key", "value").expect("there is room").forget();
        let mut leader = engine.hardening.leader.lock();
        thread::scope(|scope| {
            let persisting = scope.spawn(|| db.persist());
            // Time to ask for the lead.
            thread::sleep(patience);
            let mut covered = Covered::default();
            engine.harden(&mut leader, &mut covered);
            let version = db.version();
            engine.let_go(leader, covered);
            persisting.join().expect("it does not panic").expect("the disk works");
            db.version() == version
        })
    };
    assert!((0..12).any(|doubled| is_spared(Duration::from_millis(1 << doubled))));
}

/// Each took the lock under which the background threads decide, also where an earlier one had asked for as much.
#[test]
fn c5b_a_bound_that_is_kept_already_takes_no_lock() {
    let db = &open_small(&SimulatedDevice::new(1), false);
    let map = &db.map("map").expect("a map");
    let put = |bound: u64| {
        let commit = db.put(map, "key", "value").expect("there is room");
        drop(commit.fast_within(Duration::from_secs(bound)));
    };
    put(3_600);
    thread::scope(|scope| {
        let requests = db.engine().hardening.requests.lock();
        let (told, done) = mpsc::channel();
        scope.spawn(move || {
            put(3_600);
            let _ = told.send(());
        });
        let put = done.recv_timeout(Duration::from_secs(10));
        drop(requests);
        put.expect("it asks for nothing");
    });
}

/// All of them were looked at, with the lock that each registration needs, whenever somebody let go of the lead.
#[test]
fn who_leads_is_not_looked_for_among_those_who_do_not() {
    let horizon = Horizon::new(1);
    let quickest_look = || {
        let look = |_| {
            let began = Instant::now();
            assert!(!horizon.wake_successor(Successor::Any));
            began.elapsed()
        };
        (0..20).map(look).min().expect("there are 20")
    };
    let alone = quickest_look();
    for _ in 0..100_000 {
        assert!(horizon.register(2, Waiter::Callback(Box::new(|_| {}))).is_some());
    }
    let among_many = quickest_look();
    assert!(among_many < 100 * alone + Duration::from_micros(50), "{among_many:?} after {alone:?}");
}

#[test]
fn c5_who_leads_is_woken_once_as_long_as_it_waits() {
    #[derive(Default)]
    struct Task(AtomicUsize);
    impl Wake for Task {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }
    let horizon = Horizon::new(1);
    let tasks = [3, 5, 7, 9].map(|version| {
        let task = Arc::new(Task::default());
        let waker = Arc::new(Mutex::new(Some(Waker::from(task.clone()))));
        let number = horizon.register(version, Waiter::Task { waker, leads: version != 3 });
        (task, version, number.expect("nothing is durable yet"))
    });
    let woken = || tasks.each_ref().map(|(task, ..)| task.0.load(Ordering::SeqCst));
    let (any, thread) = (Successor::Any, Successor::Thread);
    assert!(horizon.wake_successor(thread), "a task is not to be woken here");
    assert!(!horizon.wake_successor(any));
    assert_eq!(woken(), [0, 1, 0, 0], "the first that leads");
    horizon.give_up(7, tasks[2].2);
    assert!(!horizon.wake_successor(any));
    assert_eq!(woken(), [0, 1, 0, 1], "the next that still waits");
    assert!(horizon.wake_successor(any), "both are woken already");
    horizon.tell(horizon.cover(5));
    assert_eq!(woken(), [1, 1, 0, 1]);
    assert!(horizon.wake_successor(any), "one of them still waits");
    horizon.tell(horizon.fail(Lost::new(5, "the disk")));
    assert!(!horizon.wake_successor(any), "nobody waits");
}

/// Each poll wrote the one count of handles of the database, which all threads share.
#[test]
fn a_poll_of_a_future_clones_no_handle_of_the_database() {
    /// Looks how many handles there are when it is dropped.
    struct Task(Weak<Engine>, mpsc::Sender<usize>);
    impl Wake for Task {
        fn wake(self: Arc<Self>) {}
    }
    impl Drop for Task {
        fn drop(&mut self) {
            let _ = self.1.send(self.0.strong_count());
        }
    }
    let db = open_small(&SimulatedDevice::new(1), false);
    let map = db.map("map").expect("a map");
    let (_, receipt) = db.put(&map, "key", "value").expect("there is room").fast();
    let leader = db.engine().hardening.leader.lock();
    let mut future = receipt.durable(Level::LOCAL);
    let (told, hear) = mpsc::channel();
    for _ in 0..2 {
        // The one before is dropped in the poll.
        let waker = Waker::from(Arc::new(Task(Arc::downgrade(db.engine()), told.clone())));
        assert!(Pin::new(&mut future).poll(&mut Context::from_waker(&waker)).is_pending());
    }
    assert_eq!(hear.try_recv(), Ok(Arc::strong_count(db.engine())));
    db.engine().let_go(leader, Covered::default());
}

/// Whoever wanted the counts waited until all of it was: of a long window a second, with those behind him.
#[test]
fn what_is_live_is_to_be_learnt_while_an_extent_is_copied_out() {
    let options = Options::new().background(false).segment_bytes(16 << 20).memory(64 << 20);
    let db = &options.open_on(Arc::new(SimulatedDevice::new(1))).expect("the disk is empty");
    let map = &db.map("map").expect("a map");
    let engine = db.engine();
    for number in 0..20_000_u32 {
        db.put(map, number.to_be_bytes(), [1; 64]).expect("there is room").forget();
    }
    let start = engine.log.hardened();
    let before = engine.liveness.lock().of_segment(start).records;
    let (tell, hear) = mpsc::channel();
    let beside = Arc::downgrade(engine);
    let when_full = move || {
        let engine = beside.upgrade().expect("it is open");
        let records = engine.liveness.try_lock().map(|liveness| liveness.of_segment(start).records);
        tell.send(records).expect("the test hears it");
    };
    engine.hardening.leader.lock().counted.when_full = Some(Box::new(when_full));
    db.persist().expect("the disk works");
    engine.hardening.leader.lock().counted.when_full = None;
    let learnt: Vec<_> = hear.iter().map(|records| records.expect("nobody holds the counts")).collect();
    let after = engine.liveness.lock().of_segment(start).records;
    assert!(learnt.first() == Some(&before) && learnt.iter().all(|&count| count < after));
    assert!(learnt.len() > 50 && learnt.is_sorted_by(|one, next| one < next), "{learnt:?}");
}
