//! C4, C5, C8, C9: what openings after crashes tell of what was lost, and go on telling, and what they make of what the disk has left.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use kiln::device::{CrashStates, Device, Fault, FaultKind, Keep, LossUnit, OperationKind, SimulatedDevice};
use kiln::{ErrorKind, Kiln, Level, Object, Progress, Version};

use crate::crash::reopen;
use crate::support::{copy_of, manual};
use crate::testing::seed;

/// The database ends with a loss of power, before the disk has written anything that nobody waited for.
fn power_off(db: Kiln, disk: &SimulatedDevice) -> SimulatedDevice {
    disk.crash_after(disk.steps());
    drop(db);
    disk.after_crash(&mut |_| Keep::Lost)
}

fn progress(db: &Kiln, version: Version) -> Progress {
    db.receipt(version).poll(Level::LOCAL)
}

/// The database on the disk, and a version that is not durable.
fn with_one_at_risk(disk: &SimulatedDevice) -> (Kiln, Version) {
    let db = reopen(disk).unwrap();
    let version = db.put(&db.map("map").unwrap(), "key", "at risk").unwrap().fast().1.version();
    (db, version)
}

/// Both crashes are told of from the same version on, and the record of the first, which is no news, was written over that of both.
/// A marker of a moment at which nothing was un-hardened waited for whoever commits next, though nothing had been lost.
#[test]
fn c5_a_version_that_was_durable_is_so_after_an_orderly_close_though_nothing_was_committed_into_it() {
    let disk = SimulatedDevice::new(1);
    let db = reopen(&disk).unwrap();
    db.put(&db.map("map").unwrap(), "key", "value").unwrap().safe().unwrap();
    let marker = db.snapshot().unwrap().version();
    db.receipt(marker).wait(Level::LOCAL).unwrap();
    db.close().unwrap();
    assert_eq!(reopen(&disk).unwrap().receipt(marker).poll(Level::LOCAL), Progress::Durable);
}

#[test]
fn c4_c5_c8_a_loss_stays_a_loss_after_crashes_with_nothing_hardened_between_them() {
    let disk = SimulatedDevice::new(seed());
    let db = reopen(&disk).unwrap();
    let durable = db.put(&db.map("map").unwrap(), "key", "durable").unwrap().fast().1.version();
    db.persist().unwrap();
    let mut disk = power_off(db, &disk);
    let mut lost = Vec::new();
    for _ in 0..3 {
        let (db, version) = with_one_at_risk(&disk);
        lost.push(version);
        disk = power_off(db, &disk);
    }
    for opening in 0..4 {
        let db = reopen(&disk).unwrap();
        assert_eq!(progress(&db, durable), Progress::Durable, "opening {opening}");
        for &version in &lost {
            assert_eq!(progress(&db, version), Progress::Lost, "opening {opening}, version {version}");
        }
        assert_eq!(db.get(&db.map("map").unwrap(), "key").unwrap().unwrap(), b"durable");
        db.close().unwrap();
    }
}

/// The slot that said so was of the closing before, and the versions that had been given out since were given out again.
#[test]
fn c5_c8_an_older_slot_does_not_say_that_the_database_was_closed_in_order() {
    type Damage = fn(&SimulatedDevice, usize);
    let flip: Damage = |disk, offset| {
        let mut bytes = disk.bytes("superblock");
        bytes[offset + 60] ^= 1;
        disk.set_bytes("superblock", bytes);
    };
    let zero: Damage = |disk, offset| disk.zero("superblock", offset as u64, 4096);
    for damage in [flip, zero] {
        let disk = SimulatedDevice::new(seed());
        reopen(&disk).unwrap().close().unwrap();
        let (db, version) = with_one_at_risk(&disk);
        let disk = power_off(db, &disk);
        damage(&disk, newer_slot(&disk));

        let db = reopen(&disk).unwrap();
        let report = db.recovery_report();
        assert!(!report.clean, "{report}");
        assert_eq!(progress(&db, version), Progress::Lost);
        db.close().unwrap();
        assert!(reopen(&disk).unwrap().recovery_report().clean, "the slot is whole again");
    }
}

/// Where the slot of the superblock is that was written last.
fn newer_slot(disk: &SimulatedDevice) -> usize {
    let bytes = disk.bytes("superblock");
    let generation = |slot: usize| u64::from_le_bytes(bytes[slot + 16..slot + 24].try_into().unwrap());
    if generation(0) > generation(4096) { 0 } else { 4096 }
}

/// The beginning that the newest slot said, alone, was believed enough to drop what lay before it; without that slot the log began where nothing was
/// any more.
#[test]
fn c5_c9_with_the_newer_slot_damaged_the_log_begins_where_there_still_is_one() {
    let disk = SimulatedDevice::new(seed());
    let options = manual().segment_bytes(16 << 10).checkpoint_log_bytes(0);
    let db = options.open_on(Arc::new(disk.clone())).unwrap();
    let map = db.map("map").unwrap();
    // What a power loss may leave, with the last value that was durable by then.
    let durable = Arc::new(AtomicU64::new(0));
    let left = Arc::new(Mutex::new(Vec::new()));
    let watcher = {
        let (durable, left) = (durable.clone(), left.clone());
        move |_: u64, states: &dyn Fn() -> CrashStates| {
            left.lock().unwrap().push((durable.load(Ordering::SeqCst), states()));
        }
    };
    const WRITES: u64 = 60;
    for number in 1..=WRITES {
        if number == WRITES / 2 {
            disk.watch_steps(watcher.clone());
        }
        let value = [&number.to_le_bytes()[..], &[7; 3_000]].concat();
        db.put(&map, "key", value).unwrap().safe().unwrap();
        durable.store(number, Ordering::SeqCst);
        db.persist().unwrap();
    }
    assert!(db.statistics().log_begin > 0, "the log's beginning never moved");
    drop((map, db));
    let mut are_apart = 0;
    for (step, (durable, states)) in left.lock().unwrap().iter().enumerate() {
        if *durable == 0 {
            continue;
        }
        let disk = states.after_crash(&mut |_| Keep::Lost);
        let begin = |slot: usize| disk.bytes("superblock")[slot + 56..slot + 64].to_vec();
        are_apart += u32::from(begin(0) != begin(4096));
        disk.zero("superblock", newer_slot(&disk) as u64, 4096);
        let db = reopen(&disk).unwrap_or_else(|error| panic!("step {step}: {error}"));
        let value = db.get(&db.map("map").unwrap(), "key").unwrap().unwrap();
        let number = u64::from_le_bytes(value[..8].try_into().unwrap());
        assert!((*durable..=durable + 1).contains(&number), "step {step}: {number} instead of {durable}");
    }
    assert!(are_apart > 0, "no step lies between the slots' saying so");
}

const SECTOR: u64 = 512;

/// The power fails while the second of two extents is written, and takes the sectors from `lost`, counted from its first.
fn with_a_torn_extent(lost: &Range<u64>) -> SimulatedDevice {
    let disk = SimulatedDevice::new(seed());
    let db = reopen(&disk).unwrap();
    let map = db.map("map").unwrap();
    db.put(&map, "key", "kept").unwrap().safe().unwrap();
    // The extent is written in one step, and the next would sync it.
    disk.crash_after(disk.steps() + 1);
    db.put(&map, "long", [7; 20_000]).unwrap().safe().unwrap_err();
    drop((map, db));
    let mut begin = None;
    disk.after_crash(&mut |unit| match unit {
        LossUnit::Sector { offset, .. }
            if lost.contains(&((offset - *begin.get_or_insert(offset)) / SECTOR)) =>
        {
            Keep::Lost
        }
        _ => Keep::Kept,
    })
}

/// What lay behind the log's end was cleared, but not on disk, and the next opening saw nothing but zeros there. What it then wrote was the
/// beginning of what the disk still had.
#[test]
fn c4_c9_an_end_that_could_not_be_cleared_is_cleared_by_the_next_opening() {
    // Without the seal, without something behind it, without the block of the seal, and without the last sector that is not padding.
    for lost in [0..1, 1..2, 17..18, 0..8, 38..39] {
        let mut failed_openings = 0;
        for nth in 1.. {
            let disk = with_a_torn_extent(&lost);
            disk.inject(Fault {
                operation: OperationKind::Sync,
                nth,
                kind: FaultKind::FailedSyncThenSuccess,
                sticky: false,
            });
            let is_open = reopen(&disk).map(drop).is_ok();
            let has_failed = disk.faults_fired() > 0;
            disk.clear_faults();
            if !has_failed {
                break;
            }
            failed_openings += u32::from(!is_open);
            let Ok(db) = reopen(&disk) else {
                panic!("without {lost:?}, sync {nth}: it does not open again")
            };
            db.put(&db.map("map").unwrap(), "key", "later").unwrap().safe().unwrap();
            let disk = power_off(db, &disk);
            let db = reopen(&disk).unwrap_or_else(|error| panic!("without {lost:?}, sync {nth}: {error}"));
            let map = db.map("map").unwrap();
            assert_eq!(db.get(&map, "key").unwrap().unwrap(), b"later");
            assert_eq!(db.get(&map, "long").unwrap(), None);
        }
        assert!(failed_openings >= 5, "without {lost:?}: {failed_openings} syncs were of an opening");
    }
}

/// What the system still showed of the last extent had been read, and found whole; then it was given up, and what the disk had was read once more and
/// written in its place as the truth. What came behind it was acknowledged, and was out of reach at the next opening.
#[test]
fn c5_c9_an_end_that_vanishes_while_it_is_read_is_not_taken_for_the_truth() {
    let mut refused = 0;
    for nth in 1.. {
        let fault = |operation, nth, kind| Fault { operation, nth, kind, sticky: false };
        let disk = SimulatedDevice::new(seed());
        let db = reopen(&disk).unwrap();
        let map = db.map("map").unwrap();
        db.put(&map, "key", "kept").unwrap().safe().unwrap();
        disk.inject(fault(OperationKind::Sync, 1, FaultKind::FailedSyncThenSuccess));
        db.put(&map, "key", "forgotten").unwrap().safe().unwrap_err();
        drop((map, db));
        disk.clear_faults();

        disk.inject(fault(OperationKind::Read, nth, FaultKind::Evicted));
        let opened = reopen(&disk);
        let is_evicted = disk.faults_fired() > 1;
        disk.clear_faults();
        let db = opened.unwrap_or_else(|error| {
            assert_eq!(error.kind(), ErrorKind::Io, "read {nth}: {error}");
            assert!(error.to_string().contains("open the database again"), "read {nth}: {error}");
            refused += 1;
            reopen(&disk).unwrap_or_else(|error| panic!("read {nth}: it does not open again: {error}"))
        });
        db.put(&db.map("map").unwrap(), "other", "later").unwrap().safe().unwrap();
        let seen = db.get(&db.map("map").unwrap(), "key").unwrap().unwrap();
        let disk = power_off(db, &disk);
        let db = reopen(&disk).unwrap_or_else(|error| panic!("read {nth}: {error}"));
        let map = db.map("map").unwrap();
        assert_eq!(db.get(&map, "other").unwrap().unwrap(), b"later", "read {nth}");
        assert_eq!(db.get(&map, "key").unwrap().unwrap(), seen, "read {nth}");
        if !is_evicted {
            break;
        }
    }
    assert!(refused > 0, "the last extent was never read between two reads");
}

/// The log seemed to end where a whole segment of what was durable had been, and the one that was prepared behind it, the only witness, was removed.
#[test]
fn c9_a_lost_segment_is_noticed_by_the_one_behind_it() {
    let disk = SimulatedDevice::new(seed());
    let db = reopen(&disk).unwrap();
    let map = db.map("map").unwrap();
    for number in 0..46_u32 {
        db.put(&map, number.to_be_bytes(), vec![1; 3_000]).unwrap().safe().unwrap();
    }
    drop(map);
    let left = power_off(db, &disk);
    let segments: Vec<_> =
        left.list().unwrap().into_iter().filter(|name| name.starts_with("segment-")).collect();
    let is_written = |name: &String| left.bytes(name).iter().any(|&byte| byte != 0);
    let written = segments.iter().filter(|name| is_written(name)).count();
    assert!(written > 2 && written < segments.len(), "{written} of {segments:?}");
    for lost in &segments[..written] {
        let damaged = copy_of(&left);
        damaged.remove_file(lost);
        let error = reopen(&damaged).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupted, "{lost}: {error}");
        assert!(error.place().is_some_and(|(file, _)| file.ends_with(lost)), "{lost}: {error}");
        let check = kiln::check_on(Arc::new(damaged)).unwrap();
        assert!(!check.problems.is_empty(), "{lost}: {check}");
    }
    assert_eq!(reopen(&left).unwrap().map("map").unwrap().len(), 46);
}
