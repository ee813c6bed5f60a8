//! The end of the log that looks like an unfinished write, and is none: whoever relies on it must have said so.

use std::sync::Arc;

use crate::device::{Keep, OpenMode, SimulatedDevice};
use crate::error::{ErrorKind, Result};
use crate::storage::scanner::Scanner;
use crate::storage::segments::{Segments, name_of};
use crate::storage::superblock::SuperblockFile;
use crate::{Kiln, Options};

fn open(disk: &SimulatedDevice) -> Result<Kiln> {
    let options = Options::new().background(false).segment_bytes(64 << 10).memory(0).settle_log_bytes(0);
    options.open_on(Arc::new(disk.clone()))
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
