//! What who counts rows that have expired can rely on, and who opens a database in which there are such.

use std::sync::Arc;

use crate::device::{Fault, FaultKind, Keep, OperationKind, SimulatedDevice};
use crate::error::Result;
use crate::storage::superblock::Superblock;
use crate::{Expiry, Kiln, Object, Options};

/// A count was too low by what compaction deleted between its look at what had expired and its look at what is stored.
#[test]
fn while_rows_are_counted_compaction_deletes_none_that_has_expired() -> Result<()> {
    let disk = SimulatedDevice::new(1);
    disk.set_time_ms(1_000);
    let db =
        Options::new().background(false).segment_bytes(16 << 10).memory(0).open_on(Arc::new(disk.clone()))?;
    let map = db.map("map")?;
    for number in 0..60_u8 {
        let expiry = if number < 20 { Expiry::Never } else { Expiry::At(2_000) };
        db.put_expiring(&map, [number], [number; 200], expiry)?.forget();
    }
    db.compact(|_| {})?;
    disk.set_time_ms(2_000);
    {
        let _counting = db.engine().expiring.deleting();
        db.compact(|_| {})?;
        assert_eq!((db.statistics().expired_rows, map.len_estimate()), (0, 60));
    }
    assert_eq!(map.len(), 20);
    db.compact(|_| {})?;
    assert_eq!((db.statistics().expired_rows, map.len_estimate(), map.len()), (40, 20, 20));
    Ok(())
}

/// After each walk it rested eight times as long, whatever had expired of what it had met: where rows came that expired faster than a tenth of one thread
/// deletes them, more and more were stored.
#[test]
fn a_walk_that_has_met_nothing_but_what_had_expired_is_followed_by_no_rest() -> Result<()> {
    let disk = SimulatedDevice::new(1);
    disk.set_time_ms(1_000);
    let db = Options::new().background(false).open_on(Arc::new(disk))?;
    for (name, deleted) in [("one", 1_000), ("other", 2_000)] {
        let table = db.table(name)?;
        for number in 0..1_000_u32 {
            db.put_expiring(&table, number.to_be_bytes(), "value", Expiry::At(1))?.forget();
        }
        while db.engine().delete_some_expired(false).is_some() {}
        assert_eq!(db.statistics().expired_rows, deleted);
    }
    Ok(())
}

/// Of the two writes, the first had set what the next attempt went by.
#[test]
fn c9_both_slots_say_that_rows_expire_snapshots_have_names_or_objects_were_dropped_though_writing_one_of_them_has_failed()
 {
    type Deed = fn(&Kiln) -> Result<()>;
    let put: Deed = |db| db.put_expiring(&db.map("map")?, "key", "value", Expiry::At(u64::MAX))?.safe();
    let name: Deed = |db| db.create_snapshot("name").map(drop);
    let drop_map: Deed = |db| db.map("map").and_then(|_| db.drop_map("map"))?.safe();
    let says: [fn(&Superblock) -> bool; 3] =
        [|said| said.has_expiring, |said| said.has_snapshots, |said| said.has_dropped];
    for (deed, says) in [put, name, drop_map].into_iter().zip(says) {
        for nth in 1..=2 {
            let disk = SimulatedDevice::new(1);
            let open = |disk: SimulatedDevice| Options::new().background(false).open_on(Arc::new(disk));
            let db = open(disk.clone()).unwrap();
            db.map("map").unwrap();
            disk.inject(Fault { operation: OperationKind::Write, nth, kind: FaultKind::EIO, sticky: false });
            deed(&db).expect_err("the disk has failed");
            deed(&db).unwrap();
            for slot in 0..2 {
                let copy = disk.after_crash(&mut |_| Keep::Lost);
                copy.zero("superblock", slot * 4096, 4096);
                let copied = open(copy).unwrap();
                assert!(says(copied.engine().superblock.lock().current()), "without slot {slot}");
            }
        }
    }
}
