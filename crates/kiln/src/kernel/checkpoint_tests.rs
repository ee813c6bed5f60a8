//! What a checkpoint must not say, and when there must be none.

use std::sync::Arc;
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use super::Haste;
use crate::device::{Fault, FaultKind, Keep, OpenMode, OperationKind, SimulatedDevice};
use crate::error::ErrorKind;
use crate::storage::checkpoint::Reader;
use crate::storage::superblock::SuperblockFile;
use crate::{Kiln, Level, Object, Options};

fn open(disk: &SimulatedDevice) -> Kiln {
    let options = Options::new().background(false).segment_bytes(64 << 10).memory(0);
    options.open_on(Arc::new(disk.clone())).unwrap()
}

/// The keys of the map and of the table, and whether everything holds.
fn counts(db: &Kiln) -> (u64, u64) {
    let check = db.check().unwrap();
    assert!(check.is_clean(), "{check}");
    (db.map("map").unwrap().len(), db.table("table").unwrap().len())
}

#[test]
fn c4_a_tombstone_under_a_put_that_is_not_durable_is_no_entry_of_a_checkpoint() {
    for keep in [Keep::Kept, Keep::Lost] {
        let disk = SimulatedDevice::new(1);
        let db = open(&disk);
        let (map, table) = (db.map("map").unwrap(), db.table("table").unwrap());
        db.put(&map, "key", "1").unwrap().forget();
        db.put(&table, "key", "1").unwrap().forget();
        db.persist().unwrap();
        db.delete(&map, "key").unwrap().forget();
        db.delete(&table, "key").unwrap().safe().unwrap();
        db.put(&map, "key", "2").unwrap().forget();
        db.put(&table, "key", "2").unwrap().forget();
        db.engine().sweep();
        assert!(db.checkpoint().unwrap());
        let expected = match keep {
            Keep::Kept => {
                db.persist().unwrap();
                (1, 1)
            }
            _ => (0, 0),
        };
        let again = open(&disk.after_crash(&mut |_| keep));
        assert!(again.recovery_report().checkpoint.is_some());
        assert_eq!(counts(&again), expected, "{keep:?}");
        let (map, table) = (again.map("map").unwrap(), again.table("table").unwrap());
        again.delete(&map, "key").unwrap().forget();
        again.delete(&table, "key").unwrap().forget();
        for _ in 0..100 {
            again.put(&map, "other", [0; 3000]).unwrap().safe().unwrap();
            again.persist().unwrap();
        }
        assert!(again.engine().log.begin() > 0, "what has died for good keeps the log's beginning");
    }
}

#[test]
fn c8_a_database_that_was_closed_changes_nothing_more() {
    let disk = SimulatedDevice::new(1);
    let db = open(&disk);
    let map = db.map("map").unwrap();
    db.put(&map, "key", "1").unwrap().safe().unwrap();
    let old = db.clone();
    db.close().unwrap();
    let new = open(&disk);
    let map = new.map("map").unwrap();
    new.put(&map, "later", "2").unwrap().safe().unwrap();
    let steps = disk.steps();
    assert_eq!(old.checkpoint().unwrap_err().kind(), ErrorKind::Aborted);
    let _ = old.persist();
    assert_eq!(disk.steps(), steps, "it writes where another one is at work");
}

/// Who sweeps asks whose the directory is, and whoever closed waited for the sweep with the answer locked.
#[test]
fn c8_who_sweeps_and_who_closes_do_not_wait_for_each_other() {
    let disk = SimulatedDevice::new(1);
    let db = open(&disk);
    std::thread::scope(|scope| {
        let sweeping = db.engine().graves.pause();
        let closing = scope.spawn(|| db.close());
        while !db.engine().closed.load(std::sync::atomic::Ordering::SeqCst) {
            std::thread::yield_now();
        }
        // Time to come to the sweep.
        std::thread::sleep(std::time::Duration::from_millis(50));
        let can_ask = db.engine().lock.try_lock().is_some();
        drop(sweeping);
        closing.join().unwrap().unwrap();
        assert!(can_ask);
    });
}

/// The second took one, too, where that of the first had failed, in a directory that was somebody else's by then.
#[test]
fn c8_of_two_who_close_only_the_first_takes_a_checkpoint() {
    let disk = SimulatedDevice::new(1);
    let options = Options::new().background(false).segment_bytes(64 << 10).memory(0).checkpoint_log_bytes(1);
    let db = options.open_on(Arc::new(disk.clone())).unwrap();
    let map = db.map("map").unwrap();
    db.put(&map, "key", "value").unwrap().safe().unwrap();
    disk.inject(Fault { operation: OperationKind::Create, nth: 1, kind: FaultKind::EIO, sticky: false });
    thread::scope(|scope| {
        let loading = db.engine().settled.pause_loads();
        let closing = [(); 2].map(|()| scope.spawn(|| db.close()));
        // Time for both to come to the loads.
        thread::sleep(Duration::from_millis(50));
        drop(loading);
        closing.into_iter().for_each(|closing| closing.join().unwrap().unwrap());
    });
    assert_eq!(open(&disk).recovery_report().checkpoint, None);
    assert_eq!(disk.faults_fired(), 1);
}

/// A checkpoint that had to harden called back with its lock held.
#[test]
fn c8_who_is_told_by_a_checkpoint_that_hardens_may_take_one() {
    let (told, hear) = channel();
    thread::spawn(move || {
        for has_background in [false, true] {
            let options = Options::new().segment_bytes(64 << 10).memory(0).background(has_background);
            // Nobody else hardens.
            let options = options.window(Duration::from_secs(3600));
            let db = options.open_on(Arc::new(SimulatedDevice::new(1))).unwrap();
            let map = db.map("map").unwrap();
            let (_, receipt) = db.put(&map, "key", "value").unwrap().fast();
            let (taken, is_taken) = channel();
            let takes = |taken: std::sync::mpsc::Sender<bool>| {
                let db = db.clone();
                move || _ = taken.send(db.checkpoint().unwrap())
            };
            let by_receipt = takes(taken.clone());
            receipt.on_durable(Level::LOCAL, move |_| by_receipt());
            let by_database = takes(taken);
            db.on_durable(move |_| by_database());
            // As when the newest records before its end were committed while the last hardening began.
            let engine = db.engine();
            let taking = engine.checkpoints.taking.lock();
            let mut cut = engine.cut();
            cut.ledger.newest_version = engine.clock.now();
            engine.seal_all_before(&cut).unwrap();
            drop(taking);
            if !has_background {
                engine.tell_withheld();
            }
            // The second has nothing to tell.
            let mut taken = [(); 2].map(|()| is_taken.recv().unwrap());
            taken.sort_unstable();
            assert_eq!(taken, [false, true]);
        }
        told.send(()).unwrap();
    });
    hear.recv_timeout(Duration::from_secs(60)).expect("it waits for itself, or has failed");
}

#[test]
fn checkpoints_as_rare_as_can_be_are_never_due() {
    let disk = SimulatedDevice::new(1);
    let options =
        Options::new().background(false).segment_bytes(64 << 10).memory(0).checkpoint_log_bytes(u64::MAX);
    for count in [0, 1] {
        let db = options.open_on(Arc::new(disk.clone())).unwrap();
        let map = db.map("map").unwrap();
        db.put(&map, "key", "1").unwrap().safe().unwrap();
        assert!(db.checkpoint().unwrap(), "by hand, time {count}");
        for _ in 0..3 {
            db.put(&map, "key", "1").unwrap().safe().unwrap();
            db.persist().unwrap();
        }
        assert_eq!(db.engine().checkpoints.counts().count, 1, "time {count}");
    }
}

/// It was asked for before anything had hardened, could not be taken, and was put off by as much log again: at each opening anew.
#[test]
fn a_checkpoint_that_is_due_when_a_database_is_opened_is_taken_as_soon_as_it_can_be() {
    const LOG_BYTES: u64 = 32 << 10;
    let disk = SimulatedDevice::new(1);
    let opened = |disk: &SimulatedDevice, bytes| {
        let options = Options::new().background(false).segment_bytes(64 << 10).memory(0);
        options.checkpoint_log_bytes(bytes).open_on(Arc::new(disk.clone())).unwrap()
    };
    let db = opened(&disk, 0);
    let map = db.map("map").unwrap();
    (0..40u32).for_each(|key| db.put(&map, key.to_be_bytes(), [0; 3000]).unwrap().forget());
    db.persist().unwrap();
    let db = opened(&disk.after_crash(&mut |_| Keep::Kept), LOG_BYTES);
    assert!(db.engine().log_since_checkpoint() > LOG_BYTES);
    db.engine().take_due_checkpoint(Haste::Background);
    assert_eq!(db.engine().checkpoints.counts().count, 0);
    let map = db.map("map").unwrap();
    db.put(&map, "key", "1").unwrap().safe().unwrap();
    db.engine().take_due_checkpoint(Haste::Background);
    assert_eq!(db.engine().checkpoints.counts().count, 1);
}

/// It was written, and synced, once more at each opening but those after an orderly close: up to a segment, of which the checkpoint had said that it was durable.
#[test]
fn c5_an_opening_writes_the_last_extent_once_more_unless_a_superblock_knows_that_it_is_durable() {
    for (is_known, doing) in
        [(true, "cutting the unfinished end off"), (false, "making the end of the log durable")]
    {
        let disk = SimulatedDevice::new(1);
        let db = open(&disk);
        let map = db.map("map").unwrap();
        db.put(&map, "key", [7; 10_000]).unwrap().safe().unwrap();
        assert!(db.checkpoint().unwrap());
        if !is_known {
            db.put(&map, "key", [8; 10_000]).unwrap().safe().unwrap();
        }
        let disk = disk.after_crash(&mut |_| Keep::Lost);
        disk.inject(Fault { operation: OperationKind::Write, nth: 1, kind: FaultKind::EIO, sticky: false });
        let options = Options::new().background(false).segment_bytes(64 << 10).memory(0);
        let error = options.open_on(Arc::new(disk.clone())).map(drop).unwrap_err().to_string();
        assert!(error.contains(doing), "{is_known}: {error}");
        let db = open(&disk);
        let value = db.get(&db.map("map").unwrap(), "key").unwrap();
        assert_eq!(value, Some(vec![if is_known { 7 } else { 8 }; 10_000]));
    }
}

/// Rows that were put once more before they had settled kept their entries, and chains from behind the checkpoint's end led to those: opening read all of the log that
/// had settled with them.
#[test]
fn a_checkpoint_says_that_all_has_settled_that_has_whatever_was_put_meanwhile() {
    const WINDOW: Duration = Duration::from_secs(3600);
    let disk = SimulatedDevice::new(1);
    let options = Options::new().background(false).segment_bytes(64 << 10).memory(0).window(WINDOW);
    let db = options.open_on(Arc::new(disk.clone())).unwrap();
    let table = db.table("table").unwrap();
    let put = || (0..40_u32).for_each(|key| db.put(&table, key.to_be_bytes(), [7; 100]).unwrap().forget());
    put();
    db.persist().unwrap();
    put();
    let settle_and_tell = || {
        let before = db.engine().settled.tree.settled_to();
        db.settle().unwrap();
        assert!(db.checkpoint().unwrap());
        let superblock = SuperblockFile::open(&disk, OpenMode::Read).unwrap().current().clone();
        let header = Reader::open(&disk, superblock.database, superblock.checkpoint).unwrap().unwrap().header;
        assert_eq!(header.settled_to, db.engine().settled.tree.settled_to());
        assert!(header.settled_to > before);
        header.end
    };
    let end = settle_and_tell();
    // Also of what had hardened before the last one, which is nothing new in the log.
    assert_eq!(settle_and_tell(), end);
    assert!(!db.checkpoint().unwrap());
    drop((table, db));
    let again = open(&disk.after_crash(&mut |_| Keep::Kept));
    assert!(again.recovery_report().checkpoint.is_some());
    assert_eq!(counts(&again), (0, 40));
}

/// What opening replays follows the memory that the database is opened with, and is what the option says if it says something.
#[test]
fn there_is_more_log_between_checkpoints_where_there_is_more_memory() {
    const MIB: u64 = 1 << 20;
    let between = |options: Options| options.checkpoint_bytes(32 * MIB) / MIB;
    assert_eq!(between(Options::new()), 128);
    assert_eq!(between(Options::new().memory(0)), 128);
    assert_eq!(between(Options::new().memory(2560 * MIB)), 256);
    assert_eq!(between(Options::new().memory(20 << 30)), 512);
    assert_eq!(between(Options::new().memory(20 << 30).checkpoint_log_bytes(5 * MIB)), 5);
    assert_eq!(between(Options::new().checkpoint_log_bytes(0)), 0);
}

/// What it would tell of what earlier crashes took no record says yet.
#[test]
fn c8_there_is_no_checkpoint_after_a_crash_before_its_losses_are_recorded() {
    let disk = SimulatedDevice::new(1);
    let db = open(&disk);
    let map = db.map("map").unwrap();
    db.put(&map, "key", "1").unwrap().safe().unwrap();
    db.put(&map, "key", "2").unwrap().forget();
    let again = open(&disk.after_crash(&mut |_| Keep::Lost));
    assert!(!again.checkpoint().unwrap());
    again.persist().unwrap();
    assert!(again.checkpoint().unwrap());
}
