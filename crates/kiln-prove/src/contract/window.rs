//! C5b: the time and the bytes that a fast commit stays un-hardened are bounded.
//!
//! Nothing here asserts that something happens *fast*: a loaded machine would make that fail. The tests wait for
//! what must come, and assert what must never come.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use kiln::device::SimulatedDevice;
use kiln::{Kiln, Level, Progress};

use super::gate::{Gate, OpenAtEnd, gated_device};
use super::hooked::{HookedDevice, Operation};
use crate::testing::{PATIENCE, background, eventually, watched};

const LONG: Duration = Duration::from_secs(3600);

#[test]
fn c5b_a_fast_commit_hardens_within_the_window_without_anybody_waiting() {
    let disk = SimulatedDevice::new(1);
    let db = background().window(Duration::from_millis(20)).open_on(Arc::new(disk.clone())).unwrap();
    let map = db.map("map").unwrap();
    for round in 0..5 {
        let (_, receipt) = db.put(&map, "key", [round]).unwrap().fast();
        eventually("the window's end", || receipt.poll(Level::LOCAL) == Progress::Durable);
        let durable = db.read_durable(|durable| durable.get(&map, "key")).unwrap();
        assert_eq!(durable.unwrap(), [round]);
    }
}

#[test]
fn c5b_fast_within_beats_a_long_window() {
    let db = background().window(LONG).open_on(Arc::new(SimulatedDevice::new(1))).unwrap();
    let map = db.map("map").unwrap();
    let (_, patient) = db.put(&map, "patient", "1").unwrap().fast();
    thread::sleep(Duration::from_millis(30));
    assert_eq!(
        patient.poll(Level::LOCAL),
        Progress::Pending,
        "nobody asked for it, and the window is an hour"
    );
    let (_, urgent) = db.put(&map, "urgent", "1").unwrap().fast_within(Duration::from_millis(10));
    eventually("the bound of one commit", || urgent.poll(Level::LOCAL) == Progress::Durable);
    assert_eq!(patient.poll(Level::LOCAL), Progress::Durable, "what came before hardens with it");
    let (_, later) = db.put(&map, "later", "1").unwrap().fast();
    db.harden_soon();
    eventually("the hardening asked for", || later.poll(Level::LOCAL) == Progress::Durable);
}

/// Whoever hardens at the bound may have begun before the commit.
#[test]
fn c5b_fast_within_is_not_forgotten_while_somebody_else_hardens() {
    watched("c5b_fast_within_is_not_forgotten", 2 * PATIENCE, |_| {
        let (device, gate) = gated_device(&SimulatedDevice::new(1));
        let db = background().window(LONG).open_on(device).unwrap();
        let map = db.map("map").unwrap();
        thread::scope(|scope| {
            let _open = OpenAtEnd(gate.clone());
            gate.shut();
            scope.spawn(|| db.put(&map, "safe", "1").unwrap().safe().unwrap());
            gate.wait_until_stuck();
            let (_, urgent) = db.put(&map, "urgent", "1").unwrap().fast_within(Duration::from_millis(10));
            thread::sleep(Duration::from_millis(100));
            assert_eq!(urgent.poll(Level::LOCAL), Progress::Pending, "the disk is stuck");
            gate.open();
            eventually("the bound of one commit", || urgent.poll(Level::LOCAL) == Progress::Durable);
        });
    });
}

/// Commits until told to stop, and counts.
fn write_on(db: &Kiln, stop: &AtomicBool, commits: &AtomicU64, value: &[u8]) {
    let map = db.map("map").unwrap();
    while !stop.load(Ordering::SeqCst) {
        let number = commits.load(Ordering::SeqCst);
        db.put(&map, number.to_le_bytes(), value).unwrap().forget();
        commits.fetch_add(1, Ordering::SeqCst);
    }
}

/// Stops the writers when a test ends, however it ends.
struct StopAtEnd<'a>(&'a AtomicBool);

impl Drop for StopAtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// Waits until a counter stands still for a while.
fn wait_until_still(what: &str, counter: &AtomicU64) {
    eventually(what, || {
        let before = counter.load(Ordering::SeqCst);
        thread::sleep(Duration::from_millis(150));
        counter.load(Ordering::SeqCst) == before && before > 0
    });
}

#[test]
fn c5b_commits_are_held_back_when_the_window_has_passed_and_go_on_afterwards() {
    watched("c5b_commits_are_held_back", 2 * PATIENCE, |_| {
        let disk = SimulatedDevice::new(1);
        let (device, gate) = gated_device(&disk);
        let db = background().window(Duration::from_millis(20)).memory(64 << 20).open_on(device).unwrap();
        let (stop, commits) = (AtomicBool::new(false), AtomicU64::new(0));
        thread::scope(|scope| {
            let (_open, _stop) = (OpenAtEnd(gate.clone()), StopAtEnd(&stop));
            db.persist().unwrap();
            gate.shut();
            scope.spawn(|| write_on(&db, &stop, &commits, b"small"));
            wait_until_still("backpressure of the window", &commits);
            let statistics = db.statistics();
            assert!(
                statistics.unhardened_bytes < statistics.unhardened_bytes_max,
                "this was the other bound"
            );
            let held_at = commits.load(Ordering::SeqCst);
            assert!(db.get(&db.map("map").unwrap(), 0_u64.to_le_bytes()).unwrap().is_some(), "reads go on");
            gate.open();
            eventually("commits after the disk came back", || commits.load(Ordering::SeqCst) > held_at + 100);
        });
    });
}

/// A database whose keeper stands in the sync of a new segment, while everybody else has a gate of their own.
fn with_stuck_keeper() -> (Arc<Kiln>, [OpenAtEnd; 2], [Gate; 2]) {
    let (of_keeper, of_others) = (Gate::default(), Gate::default());
    let at_end = [OpenAtEnd(of_keeper.clone()), OpenAtEnd(of_others.clone())];
    let (keeper, others) = (of_keeper.clone(), of_others.clone());
    let device = HookedDevice::on(&SimulatedDevice::new(1), move |operation, _| {
        match (operation, thread::current().name()) {
            (Operation::Sync, Some("kiln-keeper")) => keeper.pass(),
            (Operation::Sync, _) => others.pass(),
            _ => {}
        }
    });
    let options = background().window(Duration::from_millis(20)).segment_bytes(64 << 10).memory(64 << 20);
    let db = Arc::new(options.open_on(device).unwrap());
    let map = db.map("map").unwrap();
    db.persist().unwrap();
    of_keeper.shut();
    let mut number = 0_u64;
    eventually("the keeper at the gate", || {
        db.put(&map, number.to_le_bytes(), [0; 1_000]).unwrap().forget();
        number += 1;
        of_keeper.is_anybody_waiting()
    });
    (db, at_end, [of_keeper, of_others])
}

/// The one who watched stood in the same disk, and what is written in place needs no space that could run out.
#[test]
fn c5b_commits_are_held_back_when_the_window_has_passed_whoever_else_is_stuck() {
    watched("c5b_whoever_else_is_stuck", 2 * PATIENCE, |_| {
        let (db, _open, [_, gate]) = with_stuck_keeper();
        let (stop, commits) = (AtomicBool::new(false), AtomicU64::new(0));
        let map = db.map("map").unwrap();
        thread::scope(|scope| {
            let (_open, _stop) = (OpenAtEnd(gate.clone()), StopAtEnd(&stop));
            gate.shut();
            scope.spawn(|| {
                while !stop.load(Ordering::SeqCst) {
                    db.put(&map, "key", "value").unwrap().forget();
                    commits.fetch_add(1, Ordering::SeqCst);
                }
            });
            gate.wait_until_stuck();
            wait_until_still("backpressure of the window", &commits);
        });
    });
}

/// Commits succeeded while closing waited for the keeper, and nobody hardened them.
#[test]
fn c5b_once_somebody_closes_nothing_is_committed_whoever_is_waited_for() {
    watched("c5b_once_somebody_closes", 2 * PATIENCE, |_| {
        let (db, open, [of_keeper, _]) = with_stuck_keeper();
        let map = db.map("map").unwrap();
        thread::scope(|scope| {
            scope.spawn(|| db.close().unwrap());
            eventually("the end of commits", || db.put(&map, "key", "value").is_err());
            assert!(of_keeper.is_anybody_waiting(), "they ended with all else");
            drop(open);
        });
    });
}

#[test]
fn c5b_unhardened_bytes_never_pass_their_bound() {
    watched("c5b_unhardened_bytes_never_pass", 2 * PATIENCE, |_| {
        let disk = SimulatedDevice::new(1);
        let (device, gate) = gated_device(&disk);
        let options = background().window(LONG).unhardened_bytes(1 << 20);
        let db = options.open_on(device).unwrap();
        let (stop, commits) = (AtomicBool::new(false), AtomicU64::new(0));
        thread::scope(|scope| {
            let (_open, _stop) = (OpenAtEnd(gate.clone()), StopAtEnd(&stop));
            db.persist().unwrap();
            gate.shut();
            for _ in 0..2 {
                scope.spawn(|| write_on(&db, &stop, &commits, &[7; 4_000]));
            }
            eventually("backpressure of the bytes", || {
                let before = commits.load(Ordering::SeqCst);
                for _ in 0..30 {
                    let statistics = db.statistics();
                    assert_eq!(statistics.unhardened_bytes_max, 1 << 20);
                    assert!(statistics.unhardened_bytes <= statistics.unhardened_bytes_max, "{statistics:?}");
                    thread::sleep(Duration::from_millis(5));
                }
                commits.load(Ordering::SeqCst) == before && before > 0
            });
            let committed_bytes = commits.load(Ordering::SeqCst) * 4_000;
            assert!(committed_bytes <= 1 << 20, "{committed_bytes} bytes were committed, none is durable");
            // The next segment cannot be prepared either while the disk is stuck, which may hold them back sooner.
            assert!(
                committed_bytes > 1 << 16,
                "commits were held back long before the bound: {committed_bytes}"
            );
            let held_at = commits.load(Ordering::SeqCst);
            gate.open();
            eventually("commits after the disk came back", || commits.load(Ordering::SeqCst) > held_at + 500);
        });
    });
}

/// The bound on bytes alone would let 16 MiB wait for a disk that takes 2 MiB in a window.
#[test]
fn c5b_no_more_is_unhardened_than_a_slow_disk_takes_within_the_window() {
    watched("c5b_no_more_is_unhardened", 4 * PATIENCE, |_| {
        const DISK_BYTES_PER_WINDOW: u64 = 2 << 20;
        let window = Duration::from_millis(100);
        let (device, gate) = gated_device(&SimulatedDevice::new(1));
        let db = background().window(window).memory(64 << 20).segment_bytes(1 << 20).open_on(device).unwrap();
        let (stop, commits) = (AtomicBool::new(false), AtomicU64::new(0));
        gate.slow_down(window / DISK_BYTES_PER_WINDOW as u32);
        thread::scope(|scope| {
            let _stop = StopAtEnd(&stop);
            scope.spawn(|| write_on(&db, &stop, &commits, &[7; 4_000]));
            let bytes = || commits.load(Ordering::SeqCst) * 4_000;
            // The first hardenings tell how slow it is.
            eventually("the first hardenings", || {
                db.statistics().hardenings >= 5 && bytes() > 4 * DISK_BYTES_PER_WINDOW
            });
            let (begun_at, mut most) = (bytes(), 0);
            eventually("some windows more", || {
                most = most.max(db.statistics().unhardened_bytes);
                bytes() > begun_at + 4 * DISK_BYTES_PER_WINDOW
            });
            assert!(most > DISK_BYTES_PER_WINDOW / 16, "hardly anything waited: {most}");
            assert!(most <= DISK_BYTES_PER_WINDOW, "{most} bytes waited for a disk that takes fewer");
            assert!(db.statistics().unhardened_bytes_max <= DISK_BYTES_PER_WINDOW);
        });
    });
}

#[test]
fn c5b_idle_threads_and_abandoned_transactions_never_delay_a_safe_commit() {
    watched("c5b_idle_threads", PATIENCE, |_| {
        let db = background().window(LONG).open_on(Arc::new(SimulatedDevice::new(1))).unwrap();
        let (map, table) = (db.map("map").unwrap(), db.table("table").unwrap());
        thread::scope(|scope| {
            let mut idle = Vec::new();
            for number in 0..4_u8 {
                let (db, map, table) = (&db, &map, &table);
                let (ready, wait) = std::sync::mpsc::channel();
                let (release, hold) = std::sync::mpsc::channel::<()>();
                scope.spawn(move || {
                    let session = db.session([b'i', number]).unwrap();
                    session.transact(|tx| tx.put(map, [number], "value")).unwrap().forget();
                    let transaction = db.begin().unwrap();
                    transaction.put(table, [number], "never committed").unwrap();
                    let mut rows = transaction.range::<&[u8]>(table, ..);
                    rows.next();
                    let snapshot = db.snapshot().unwrap();
                    ready.send(()).unwrap();
                    let _ = hold.recv();
                    drop(snapshot);
                });
                wait.recv().unwrap();
                idle.push(release);
            }
            for round in 0..20_u8 {
                db.put(&table, [100 + round], "value").unwrap().safe().unwrap();
                db.persist().unwrap();
            }
            drop(idle);
        });
        assert_eq!(db.objects().iter().map(|object| object.keys).sum::<u64>(), 24);
    });
}

/// While somebody else hardened, the hardener used to turn with the lock of its requests in hand, if a commit had just woken it.
/// Whoever asked it for something then waited for the device: a wait with a deadline, and the poll of a future.
#[test]
fn c5b_a_deadline_holds_while_the_device_is_stuck() {
    watched("c5b_a_deadline_holds", 2 * PATIENCE, |_| {
        let (device, gate) = gated_device(&SimulatedDevice::new(1));
        let db = background().window(Duration::from_millis(20)).open_on(device).unwrap();
        let map = db.map("map").unwrap();
        for round in 0..5_u64 {
            db.persist().unwrap();
            // Long enough for the hardener to fall asleep, so that the commit wakes it.
            thread::sleep(Duration::from_millis(100));
            thread::scope(|scope| {
                let _open = OpenAtEnd(gate.clone());
                gate.shut();
                let (_, receipt) = db.put(&map, "key", round.to_le_bytes()).unwrap().fast();
                let leads = receipt.clone();
                scope.spawn(move || leads.wait(Level::LOCAL).unwrap());
                gate.wait_until_stuck();
                let ends = scope.spawn(move || receipt.wait_timeout(Level::LOCAL, Duration::from_millis(1)));
                eventually("the deadline", || ends.is_finished());
                assert!(!ends.join().unwrap().unwrap(), "it cannot be durable yet");
            });
        }
    });
}
