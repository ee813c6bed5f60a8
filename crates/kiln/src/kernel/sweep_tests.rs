//! What sweeps look at, and what they leave alone.

use std::sync::Arc;

use super::expiry::Place;
use crate::device::SimulatedDevice;
use crate::kernel::handle::HasHandle as _;
use crate::storage::epoch::tests::QUIESCED;
use crate::{Expiry, Kiln, Options};

const ROWS: u32 = 2_000;

fn open(disk: &SimulatedDevice) -> Kiln {
    let options = Options::new().background(false).segment_bytes(64 << 10).memory(0).settle_log_bytes(0);
    options.open_on(Arc::new(disk.clone())).unwrap()
}

/// With a table of which all rows have settled, and were then deleted; and more behind it than memory holds.
fn deleted_after_settling(disk: &SimulatedDevice) -> Kiln {
    let db = open(disk);
    let table = db.table("table").unwrap();
    for number in 0..ROWS {
        db.put(&table, number.to_be_bytes(), "value").unwrap().forget();
    }
    db.persist().unwrap();
    assert_eq!(db.settle().unwrap(), u64::from(ROWS));
    for number in 0..ROWS {
        assert!(db.delete(&table, number.to_be_bytes()).unwrap().forget());
    }
    let map = db.map("map").unwrap();
    for number in 0..60_u32 {
        db.put(&map, number.to_be_bytes(), [0; 8_000]).unwrap().forget();
    }
    db.persist().unwrap();
    db
}

/// All of them were looked at in each round of the keeper, which found something to do as long as there were any: for ever, if nobody wrote.
#[test]
fn deletions_that_wait_for_settling_are_not_looked_at_before_more_has_settled() {
    let db = deleted_after_settling(&SimulatedDevice::new(1));
    let graves = &db.engine().graves;
    db.engine().sweep();
    assert_eq!((graves.len(), graves.are_idle()), (ROWS as usize, true));
    db.settle().unwrap();
    // The first finds that they have left the index.
    db.engine().sweep();
    db.persist().unwrap();
    db.engine().sweep();
    assert_eq!((graves.len(), graves.are_idle()), (0, true));
}

/// They stayed in memory until something else settled, be it never, and all of the cold log counted as what is to settle.
#[test]
fn deletions_of_a_dropped_table_wait_for_nothing() {
    let db = deleted_after_settling(&SimulatedDevice::new(1));
    let graves = &db.engine().graves;
    db.engine().sweep();
    assert_eq!((graves.len(), graves.wait_for_settling()), (ROWS as usize, true));
    db.drop_table("table").unwrap().safe().unwrap();
    let map = db.map("map").unwrap();
    for round in 0..3_u32 {
        db.put(&map, round.to_be_bytes(), "more to harden").unwrap().forget();
        db.persist().unwrap();
    }
    assert_eq!(db.statistics().dropping, 0);
    assert_eq!((graves.len(), graves.wait_for_settling(), graves.are_idle()), (0, false, true));
}

/// Of each its version was read from disk, one after the other, though it was not to be forgotten whatever that was.
#[test]
fn after_opening_nothing_is_read_of_deletions_that_wait_for_settling() {
    let disk = SimulatedDevice::new(1);
    drop(deleted_after_settling(&disk));
    let db = open(&disk);
    assert_eq!(db.engine().graves.len(), ROWS as usize);
    db.engine().sweep();
    assert_eq!(db.statistics().cold_reads, 0);
    // Nor, of each, behind the settling, by who commits may be waiting for.
    db.settle().unwrap();
    let settling = db.statistics().cold_reads;
    (0..2).for_each(|_| _ = (db.engine().sweep(), db.persist().unwrap()));
    assert_eq!((db.engine().graves.len(), db.statistics().cold_reads), (0, settling));
}

/// Those that a named snapshot may need, and that have settled, were read, too.
#[test]
fn after_opening_nothing_is_read_of_deletions_that_have_left_the_index() {
    let disk = SimulatedDevice::new(1);
    let db = deleted_after_settling(&disk);
    db.create_snapshot("kept").unwrap();
    drop(db);
    let db = open(&disk);
    let map = db.map("map").unwrap();
    db.put(&map, "more", "value").unwrap().safe().unwrap();
    db.settle().unwrap();
    let settling = db.statistics().cold_reads;
    db.engine().sweep();
    assert_eq!(db.statistics().cold_reads, settling);
}

/// A checkpoint copies them some at a time, and counts on it.
#[test]
fn deletions_keep_their_places_while_nothing_may_be_forgotten() {
    let db = deleted_after_settling(&SimulatedDevice::new(1));
    let (engine, map) = (db.engine(), db.map("map").unwrap());
    engine.sweep();
    for number in 0..60_u32 {
        assert!(db.delete(&map, number.to_be_bytes()).unwrap().forget());
    }
    engine.harden_all().unwrap();
    let places = || -> Vec<_> {
        engine.graves.copies(0..engine.graves.len()).iter().map(|grave| grave.address).collect()
    };
    let _held = engine.graves.hold();
    let before = places();
    engine.graves.look_at_unsettled();
    engine.sweep();
    assert!(before.len() > ROWS as usize && places() == before);
}

/// All of them were looked at whenever the oldest of many snapshots ended, to find those few that waited for no other.
#[test]
fn deletions_that_wait_for_a_snapshot_are_not_looked_at_when_an_older_one_ends() {
    // Of 600 each has bundles of its own, of 100 all are in one.
    for count in [600, 100_u32] {
        let db = open(&SimulatedDevice::new(1));
        let (engine, map) = (db.engine(), db.map("map").unwrap());
        for number in 0..3 * count {
            db.put(&map, number.to_be_bytes(), "value").unwrap().forget();
        }
        db.persist().unwrap();
        let mut snapshots = Vec::new();
        for part in 0..3 {
            snapshots.push(db.snapshot().unwrap());
            for number in part * count..(part + 1) * count {
                assert!(db.delete(&map, number.to_be_bytes()).unwrap().forget());
            }
            db.persist().unwrap();
        }
        engine.sweep();
        for left in [2, 1, 0] {
            assert_eq!(engine.graves.len(), (left + 1) * count as usize);
            drop(snapshots.remove(0));
            engine.graves.begin_to_look(engine.oldest_needed());
            assert_eq!(engine.graves.looked_at(), count as usize, "with {left} snapshots");
            engine.forget_all_deleted();
        }
        assert_eq!(engine.graves.len(), 0);
    }
}

/// Each table had all threads of the process interrupted, and waited for those that were pinned, for itself.
#[test]
fn the_keys_of_all_tables_are_freed_once_everybody_has_gone_on() {
    let db = open(&SimulatedDevice::new(1));
    let key = [7; 100];
    for number in 0..20 {
        let table = db.table(&number.to_string()).unwrap();
        db.put(&table, key, "value").unwrap().forget();
        db.delete(&table, key).unwrap().forget();
    }
    let engine = db.engine();
    engine.harden_all().unwrap();
    let tables = || engine.objects.orders();
    engine.forget_all_deleted();
    assert_eq!((engine.graves.len(), tables().map(|table| table.len()).sum::<usize>()), (0, 0));
    let waits = || QUIESCED.with(|quiesced| quiesced.get());
    let before = waits();
    engine.sweep();
    assert_eq!(waits() - before, 1);
    engine.sweep();
    assert_eq!(waits() - before, 1, "there is nothing to free");
}

/// Who waited for the sweep's lock waited for all of them.
#[test]
fn c3_who_waits_for_the_sweep_waits_for_a_few_deletions_only() {
    let db = open(&SimulatedDevice::new(1));
    let map = db.map("map").unwrap();
    const KEYS: u32 = 3 * super::sweep::LOOKED_AT_ONCE as u32;
    for number in 0..KEYS {
        db.put(&map, number.to_be_bytes(), "value").unwrap().forget();
    }
    db.persist().unwrap();
    for number in 0..KEYS {
        db.delete(&map, number.to_be_bytes()).unwrap().forget();
    }
    db.engine().harden_all().unwrap();
    let (engine, sweeping) = (db.engine(), db.engine().graves.pause());
    engine.graves.begin_to_look(engine.oldest_needed());
    let lens: Vec<_> = (0..4).map(|_| (engine.forget_some(), engine.graves.len())).collect();
    let at_once = super::sweep::LOOKED_AT_ONCE;
    assert_eq!(lens, [(true, 2 * at_once), (true, at_once), (true, 0), (false, 0)]);
    drop(sweeping);
}

/// Its tombstone waited for a hardening that had come already, and the keeper with it.
#[test]
fn a_deletion_of_a_key_that_has_a_durable_value_again_is_forgotten() {
    let db = open(&SimulatedDevice::new(1));
    let map = db.map("map").unwrap();
    db.put(&map, "key", "value").unwrap().forget();
    db.persist().unwrap();
    db.delete(&map, "key").unwrap().forget();
    db.put(&map, "key", "value").unwrap().safe().unwrap();
    assert_eq!(db.engine().graves.len(), 1);
    (0..2).for_each(|_| _ = db.engine().sweep());
    assert_eq!(db.engine().graves.len(), 0);
}

/// A walk over a map for rows that expire went on, without looking up, until it had found so many of that map's: through all others' records, which it read
/// from disk one by one. The keeper did nothing else meanwhile, and who closed the database waited for it.
#[test]
fn who_looks_for_rows_that_expire_does_not_read_all_that_is_others_first() {
    let disk = SimulatedDevice::new(1);
    disk.set_time_ms(1_000);
    let db = open(&disk);
    let (large, small) = (db.map("large").unwrap(), db.map("small").unwrap());
    db.put_expiring(&small, "key", "value", Expiry::At(2_000)).unwrap().forget();
    for number in 0..ROWS {
        db.put(&large, number.to_be_bytes(), [0; 500]).unwrap().forget();
    }
    db.persist().unwrap();
    disk.set_time_ms(3_000);
    let engine = db.engine();
    let objects = [small.handle().id];
    let (mut place, mut found) = (Some(Place::Map(0)), Vec::new());
    let mut pieces = 0;
    while let Some(at) = place {
        let piece = engine.next_piece(&objects, &at, &mut |error| panic!("{error}")).unwrap();
        found.extend(piece.rows.into_iter().map(|row| row.key));
        (place, pieces) = (piece.next, pieces + 1);
    }
    assert!(found == [b"key"] && pieces > 2, "{found:?} in {pieces} pieces");
    drop(large);
}

/// Lists of deletions kept memory for as many as there ever were.
#[test]
fn what_is_forgotten_takes_no_memory() {
    const COUNT: u32 = 20_000;
    let db = open(&SimulatedDevice::new(1));
    let map = db.map("map").unwrap();
    for (held, keys) in [(false, 0..COUNT), (true, COUNT..2 * COUNT)] {
        let snapshot = held.then(|| db.snapshot().unwrap());
        for key in keys.clone() {
            db.put(&map, key.to_be_bytes(), "value").unwrap().forget();
        }
        db.persist().unwrap();
        let later = held.then(|| db.snapshot().unwrap());
        for key in keys {
            db.delete(&map, key.to_be_bytes()).unwrap().forget();
        }
        db.persist().unwrap();
        _ = db.engine().sweep();
        drop((snapshot, later));
        (0..3).for_each(|_| _ = db.persist().map(|()| db.engine().sweep()));
        assert_eq!(db.engine().graves.len(), 0);
        assert!(db.engine().graves.capacity() < COUNT as usize / 2, "{}", db.engine().graves.capacity());
    }
}
