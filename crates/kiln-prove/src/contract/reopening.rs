//! C4, C5, C8: what openings after crashes tell of what was lost, and go on telling.

use kiln::device::{Keep, SimulatedDevice};
use kiln::{Kiln, Level, Progress, Version};

use crate::crash::reopen;
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
        let bytes = disk.bytes("superblock");
        let generation = |slot: usize| u64::from_le_bytes(bytes[slot + 16..slot + 24].try_into().unwrap());
        let newer = if generation(0) > generation(4096) { 0 } else { 4096 };
        damage(&disk, newer);

        let db = reopen(&disk).unwrap();
        let report = db.recovery_report();
        assert!(!report.clean, "{report}");
        assert_eq!(progress(&db, version), Progress::Lost);
        db.close().unwrap();
        assert!(reopen(&disk).unwrap().recovery_report().clean, "the slot is whole again");
    }
}
