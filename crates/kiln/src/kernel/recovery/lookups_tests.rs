//! A database that is refused is as it was, though what is damaged lies before the checkpoint's end.

use std::sync::Arc;

use crate::device::{OpenMode, SimulatedDevice};
use crate::error::{Error, ErrorKind};
use crate::kernel::losses::{LOSSES_OBJECT, loss_key};
use crate::kernel::recovery::Division;
use crate::kernel::recovery::base::tests::{take_apart, with};
use crate::storage::hash_index;
use crate::storage::superblock::SuperblockFile;
use crate::{Kiln, Options, Result};

/// Nothing before a checkpoint's end is left in memory.
fn open(disk: &SimulatedDevice) -> Result<Kiln> {
    let mut options = Options::new().background(false).segment_bytes(16 << 10).memory(0);
    options.recovery = Division { workers: Some(1), warm_bytes: 0, ..Division::default() };
    options.open_on(Arc::new(disk.clone()))
}

/// Flips a bit of the only record of a key whose bytes are nowhere else in the log.
fn damage(disk: &SimulatedDevice, key: &[u8]) {
    let segment = "segment-00000000";
    let bytes = disk.bytes(segment);
    let at = bytes.windows(key.len()).position(|window| window == key).expect("it has such a record");
    disk.flip_bit(segment, 8 * at as u64);
}

#[track_caller]
fn assert_refused_untouched(disk: &SimulatedDevice) {
    let steps = disk.steps();
    let error = open(disk).map(drop).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupted, "{error}");
    assert_eq!(disk.steps(), steps, "refused, but written to");
}

/// Opening wrote first, and then looked into the catalog for who must not see the table.
#[test]
fn c9_a_database_whose_cold_catalog_is_damaged_is_refused_and_not_written_to() -> Result<()> {
    for is_dropped in [false, true] {
        let disk = SimulatedDevice::new(1);
        let db = open(&disk)?;
        db.create_snapshot("before")?;
        let rows = (0..50_u32).map(|number| Ok::<_, Error>((number.to_be_bytes(), "row")));
        let loaded = db.bulk_load("loaded", rows, |_| {})?;
        db.create_snapshot("after")?;
        if is_dropped {
            drop(loaded);
            db.drop_table("loaded")?.safe()?;
        }
        let map = db.map("ballast")?;
        for number in 0..40_u32 {
            db.put(&map, number.to_be_bytes(), [7; 1_000])?.safe()?;
        }
        assert!(db.checkpoint()?);
        drop(map);
        db.close()?;
        let reopened = open(&disk)?;
        assert!(reopened.recovery_report().checkpoint.is_some());
        let table_as_of = |name| reopened.open_snapshot(name)?.table("loaded").map(drop);
        assert!(table_as_of("before").is_err());
        table_as_of("after")?;
        reopened.close()?;
        damage(&disk, b"loaded");
        assert_refused_untouched(&disk);
    }
    Ok(())
}

/// A record whose tag is that of a loss which is to be recorded has to be read for it.
#[test]
fn c9_a_database_in_which_no_loss_can_be_recorded_is_refused_and_not_written_to() -> Result<()> {
    let disk = SimulatedDevice::new(1);
    let db = open(&disk)?;
    let map = db.map("map")?;
    db.put(&map, "somewhere", "value")?.safe()?;
    assert!(db.checkpoint()?);
    disk.crash_after(disk.steps());
    drop((map, db));
    let disk = disk.after_crash_seeded(1);
    // As far as the checkpoint tells, it could be the loss's.
    let mut parts = take_apart(&disk);
    let seed = SuperblockFile::open(&disk, OpenMode::Read)?.current().hash_seed;
    let hash = hash_index::hash_of(seed, LOSSES_OBJECT, &loss_key(parts.header.horizon + 1));
    let base_level = parts.header.base_level;
    // An entry's tag is its high 19 bits.
    let (low_bits, tag) = (hash & ((1 << base_level) - 1), hash >> base_level << 45);
    let others = parts.buckets.iter().flat_map(|(_, entries)| entries.iter().copied());
    let last = others.map(hash_index::address_of).max().expect("it has entries");
    parts.buckets.push((low_bits, vec![hash_index::with_address(tag, last)]));
    parts.header.entries += 1;
    let disk = with(&disk, &parts);
    assert!(open(&disk.after_crash_seeded(1))?.recovery_report().lost_versions.is_some());
    damage(&disk, b"somewhere");
    assert_refused_untouched(&disk);
    Ok(())
}
