//! What who counts rows that have expired can rely on, and who opens a database in which there are such.

use std::sync::Arc;
use std::time::Duration;

use crate::device::{Fault, FaultKind, Keep, OperationKind, SimulatedDevice};
use crate::error::Result;
use crate::storage::superblock::Superblock;
use crate::{Expiry, Kiln, Object, Options};

/// Within it nothing hardens that nobody asks for.
const HOUR: Duration = Duration::from_secs(3_600);

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
    let db = Options::new().background(false).window(HOUR).open_on(Arc::new(disk))?;
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

/// It went on over all the rest in vain, and then rested for that, while there was space again and nothing was deleted.
#[test]
fn a_walk_that_finds_no_log_space_goes_on_from_there_once_there_is_some() -> Result<()> {
    const ROWS: u32 = 10_000;
    let disk = SimulatedDevice::new(1);
    disk.set_time_ms(1_000);
    let options =
        Options::new().background(false).window(HOUR).segment_bytes(16 << 10).unhardened_bytes(32 << 10);
    let db = options.open_on(Arc::new(disk.clone()))?;
    let map = db.map("map")?;
    for number in 0..ROWS {
        db.put_expiring(&map, number.to_be_bytes(), "value", Expiry::At(2_000))?.forget();
    }
    db.persist()?;
    disk.set_time_ms(2_000);
    let expired = || db.statistics().expired_rows;
    let (mut before, mut hardenings) = (0, 0);
    while db.engine().delete_some_expired(false).is_some() {
        if expired() == before {
            db.persist()?;
            hardenings += 1;
        }
        before = expired();
    }
    assert_eq!((expired(), map.len_estimate()), (u64::from(ROWS), 0));
    assert!(hardenings > 0, "there was space for all");
    Ok(())
}

/// Commits waited until hardening had caught up, and what it had to catch up with became more: the log filled with deletions.
#[test]
fn c5b_nothing_that_has_expired_is_deleted_while_hardening_is_behind_the_window() -> Result<()> {
    const ROWS: u32 = 1_000;
    const WINDOW: Duration = Duration::from_millis(1);
    let disk = SimulatedDevice::new(1);
    disk.set_time_ms(1_000);
    let db = Options::new().background(false).window(WINDOW).open_on(Arc::new(disk))?;
    let map = db.map("map")?;
    for number in 0..ROWS {
        db.put_expiring(&map, number.to_be_bytes(), "value", Expiry::At(1))?.forget();
    }
    std::thread::sleep(2 * WINDOW);
    for _ in 0..3 {
        assert!(db.engine().delete_some_expired(false).is_some(), "there is something to delete");
        assert_eq!(db.statistics().expired_rows, 0);
    }
    db.persist()?;
    while db.engine().delete_some_expired(false).is_some() {
        db.persist()?;
    }
    assert_eq!(db.statistics().expired_rows, u64::from(ROWS));
    Ok(())
}

/// Each leaf came into the cache, in the place of what others look for, and counted as what somebody had asked for.
#[test]
fn a_walk_over_settled_rows_leaves_the_cache_to_others_and_does_not_count() -> Result<()> {
    const ROWS: u32 = 30_000;
    const HOT: u32 = 300;
    let disk = SimulatedDevice::new(1);
    disk.set_time_ms(1_000);
    let options =
        Options::new().background(false).segment_bytes(64 << 10).memory(2 << 20).settle_log_bytes(0);
    let db = options.open_on(Arc::new(disk.clone()))?;
    let table = db.table("table")?;
    for number in 0..ROWS {
        db.put(&table, number.to_be_bytes(), [0; 200])?.forget();
    }
    db.put_expiring(&table, ROWS.to_be_bytes(), "value", Expiry::At(2_000))?.forget();
    db.persist()?;
    assert_eq!(db.settle()?, u64::from(ROWS) + 1);
    db.close()?;
    // With memory for some of the tree, and a walk that is due.
    let db = options.open_on(Arc::new(disk.clone()))?;
    let table = db.table("table")?;
    let get_hot = || -> Result<()> {
        for number in 0..HOT {
            assert!(db.get(&table, number.to_be_bytes())?.is_some());
        }
        Ok(())
    };
    (0..3).try_for_each(|_| get_hot())?;
    let misses = || db.engine().settled.tree.cache_misses();
    let before = misses();
    disk.set_time_ms(3_000);
    while db.engine().delete_some_expired(true).is_some() {}
    assert_eq!(db.statistics().expired_rows, 1);
    let by_walk = misses() - before;
    get_hot()?;
    let by_others = misses() - before - by_walk;
    let statistics = db.statistics();
    assert!(statistics.page_cache_bytes < statistics.tree_used_bytes / 2);
    assert!(by_walk <= 3 && by_others <= 3, "{by_walk} nodes for the walk, and {by_others} for others");
    Ok(())
}

/// What had not settled was read as if somebody had asked for it, and took the read cache.
#[test]
fn a_walk_over_rows_on_disk_that_have_not_settled_does_not_count() -> Result<()> {
    const ROWS: u32 = 1_000;
    let disk = SimulatedDevice::new(1);
    disk.set_time_ms(1_000);
    let options = Options::new()
        .background(false)
        .segment_bytes(64 << 10)
        .memory(0)
        .settle_log_bytes(0)
        .space_amplification(f64::INFINITY);
    let db = options.open_on(Arc::new(disk.clone()))?;
    let (table, map) = (db.table("table")?, db.map("map")?);
    for number in 0..ROWS {
        db.put(&table, number.to_be_bytes(), [0; 200])?.forget();
    }
    db.put_expiring(&table, "soon", "value", Expiry::At(2_000))?.forget();
    db.put_expiring(&table, "later", "value", Expiry::At(9_000))?.forget();
    let end = db.statistics().log_tail;
    while db.statistics().log_head <= end {
        db.put(&map, "ballast", vec![0; 8_000])?.forget();
        db.persist()?;
    }
    let before = db.statistics().cold_reads;
    disk.set_time_ms(3_000);
    while db.engine().delete_some_expired(true).is_some() {}
    let statistics = db.statistics();
    let counted = statistics.cold_reads - before;
    assert_eq!(statistics.expired_rows, 1);
    assert!(counted <= 2, "{counted} reads that count");
    disk.set_time_ms(9_000);
    while db.engine().delete_some_expired(true).is_some() {}
    assert_eq!((db.statistics().expired_rows, table.len()), (2, ROWS.into()));
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
