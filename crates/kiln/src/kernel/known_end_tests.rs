//! The end of the log that looks like an unfinished write, and is none: whoever relies on it must have said so.

use std::sync::Arc;

use crate::device::{BLOCK_BYTES, Fault, FaultKind, Keep, OpenMode, OperationKind, SimulatedDevice};
use crate::error::{ErrorKind, Result};
use crate::storage::scanner::Scanner;
use crate::storage::segments::{Segments, name_of};
use crate::storage::superblock::SuperblockFile;
use crate::{Kiln, Options};

fn open(disk: &SimulatedDevice) -> Result<Kiln> {
    let options = Options::new().background(false).segment_bytes(64 << 10).memory(0).settle_log_bytes(0);
    // Each merge has several ranges.
    options.settle_memory(1).open_on(Arc::new(disk.clone()))
}

/// What a crash leaves, with zeros in place of the log's last extent.
fn without_last_extent(disk: &SimulatedDevice) -> SimulatedDevice {
    let disk = disk.after_crash(&mut |_| Keep::Kept);
    let superblock = SuperblockFile::open(&disk, OpenMode::Read).unwrap().current().clone();
    let segment_bytes = superblock.segment_bytes;
    let segments = Segments::open(Arc::new(disk.clone()), segment_bytes, OpenMode::Read).unwrap();
    let (mut scanner, mut last) = (Scanner::new(&segments, &superblock), None);
    while let Some(extent) = scanner.next().unwrap() {
        last = Some((extent.seal.address, extent.seal.length));
    }
    let (address, bytes) = last.unwrap();
    disk.zero(&name_of(address / segment_bytes), address % segment_bytes, bytes);
    disk
}

#[track_caller]
fn refused(disk: &SimulatedDevice) {
    let error = open(disk).map(drop).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupted, "{error}");
}

/// What was dropped had been superseded by the last extent, which passed for an unfinished write: rows were gone that had been durable for long, without an error.
#[test]
fn c4_c9_what_has_superseded_dropped_segments_is_no_unfinished_write() {
    let disk = SimulatedDevice::new(1);
    let db = open(&disk).unwrap();
    let map = db.map("map").unwrap();
    for number in 0..4_u32 {
        db.put(&map, number.to_be_bytes(), [1; 3_000]).unwrap().forget();
    }
    db.persist().unwrap();
    while db.engine().log.begin() == 0 {
        db.put(&map, "filler", [2; 5_000]).unwrap().forget();
        db.persist().unwrap();
    }
    refused(&without_last_extent(&disk));
}

/// The drop was the log's last extent. Without it the table was there, and empty.
#[test]
fn c4_c9_a_drop_by_which_rows_have_left_the_tree_is_no_unfinished_write() {
    let disk = SimulatedDevice::new(1);
    let db = open(&disk).unwrap();
    let table = db.table("table").unwrap();
    db.put(&table, "key", "value").unwrap().safe().unwrap();
    assert_eq!(db.settle().unwrap(), 1);
    let rows = |db: &Kiln| db.engine().settled.tree.root().entries();
    db.drop_table("table").unwrap().safe().unwrap();
    let before = without_last_extent(&disk);
    db.engine().remove_dropped();
    db.engine().settle_if_due();
    assert_eq!(rows(&db), 0);
    refused(&without_last_extent(&disk));
    // As long as nothing relies on it, it may never have been there.
    assert_eq!(rows(&open(&before).unwrap()), 1);
}

/// The tree's roots before the last one of a merge have rows of its end, and say nothing of it: some rows were of the lost commit, and others not.
#[test]
fn c1_c4_c9_what_settles_in_parts_is_of_no_unfinished_write() {
    const ROWS: u32 = 40;
    let (mut has_settled, mut was_refused) = (false, 0);
    for step in 1.. {
        let disk = SimulatedDevice::new(1);
        let db = open(&disk).unwrap();
        let table = db.table("table").unwrap();
        let put_all = |byte: u8| {
            let put = |tx: &crate::Transaction<'_>| {
                (0..ROWS).try_for_each(|number| tx.put(&table, number.to_be_bytes(), [byte; 1_000]))
            };
            db.transact(put).unwrap().safe().unwrap();
        };
        put_all(1);
        assert_eq!(db.settle().unwrap(), u64::from(ROWS));
        put_all(2);
        disk.crash_after(disk.steps() + step);
        let is_done = db.settle().is_ok();
        let disk = without_last_extent(&disk);
        drop((table, db));
        match open(&disk) {
            Err(error) if error.kind() == ErrorKind::Corrupted => was_refused += 1,
            opened => {
                let db = opened.unwrap();
                let table = db.table("table").unwrap();
                for number in 0..ROWS {
                    let found = db.get(&table, number.to_be_bytes()).unwrap();
                    assert_eq!(found, Some(vec![1; 1_000]), "row {number}, step {step}");
                }
                has_settled |= is_done;
            }
        }
        if is_done {
            break;
        }
    }
    assert!(was_refused > 2 && !has_settled);
}

/// Zeros whose sync has failed are shown, and not on disk: whoever opened the database next would not have known that there is something to be cleared.
#[test]
fn c9_what_lies_behind_the_log_is_told_of_until_it_is_durably_cleared() {
    const SEGMENT_BYTES: usize = 16 << 10;
    let disk = SimulatedDevice::new(1);
    let mut written = vec![0; SEGMENT_BYTES];
    written[2 * BLOCK_BYTES..].fill(7);
    disk.set_bytes(&name_of(0), written);
    let device = Arc::new(disk.clone());
    let segments = Segments::open(device, SEGMENT_BYTES as u64, OpenMode::ReadWrite).unwrap();
    let kind = FaultKind::FailedSyncThenSuccess;
    disk.inject(Fault { operation: OperationKind::Sync, nth: 2, kind, sticky: false });
    segments.clear_behind(BLOCK_BYTES as u64, true).unwrap_err();
    let shown = disk.bytes(&name_of(0));
    assert!(shown[2 * BLOCK_BYTES..].iter().all(|&byte| byte == 0));
    assert!(shown[BLOCK_BYTES..].iter().any(|&byte| byte != 0));
    segments.clear_behind(BLOCK_BYTES as u64, true).unwrap();
    assert!(disk.bytes(&name_of(0)).iter().all(|&byte| byte == 0));
}
