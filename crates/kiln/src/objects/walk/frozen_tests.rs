//! Long walks of snapshots beside writers, over rows that have left memory.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use crate::device::SimulatedDevice;
use crate::{Expiry, Kiln, Options, Result, Snapshot, Table};

const ROWS: u32 = 3_000;
/// When rows of a table with lives expire, in milliseconds.
const SOON: u64 = 5_000;

type Model = BTreeMap<Vec<u8>, Vec<u8>>;

/// A database whose log has half a mebibyte of memory, and so much for what a walk freezes; its read cache is too small for neighbours of what is read.
fn open(frozen_bytes: u64) -> Result<(Kiln, SimulatedDevice)> {
    let disk = SimulatedDevice::new(1);
    disk.set_time_ms(1_000);
    let options = Options::new().background(false).memory(1 << 20).segment_bytes(64 << 10);
    let db = options.settle_memory(2 * frozen_bytes).open_on(Arc::new(disk.clone()))?;
    Ok((db, disk))
}

fn value_of(round: u32, row: u32) -> Vec<u8> {
    [round.to_be_bytes(), row.to_be_bytes()].concat().repeat(12 + (round + row) as usize % 10 * 4)
}

/// Has all that there is leave memory, and the read cache.
fn evict(db: &Kiln) -> Result<()> {
    const OTHERS: u32 = 2_500;
    let others = db.map("others")?;
    for _ in 0..2 {
        (0..OTHERS).try_for_each(|number| {
            db.put(&others, number.to_be_bytes(), [7; 1_000]).map(|put| put.forget())
        })?;
        db.persist()?;
        (0..OTHERS).try_for_each(|number| db.get(&others, number.to_be_bytes()).map(drop))?;
    }
    Ok(())
}

/// Puts, deletes and leaves alone one row or another, in an order in which rows that follow each other do not lie beside each other in the log: those would be read together.
fn change(db: &Kiln, table: &Table, round: u32, model: &mut Model) -> Result<()> {
    for row in (0..ROWS).map(|row| row * 1_237 % ROWS) {
        let key = row.to_be_bytes();
        match (row.wrapping_mul(2_654_435_761) >> 20).wrapping_add(round * 7) % 10 {
            0 => {}
            1 | 2 => {
                db.delete(table, key)?.forget();
                model.remove(&key[..]);
            }
            3 => {
                db.put_expiring(table, key, value_of(round, row), Expiry::At(SOON))?.forget();
                model.insert(key.to_vec(), value_of(round, row));
            }
            _ => {
                db.put(table, key, value_of(round, row))?.forget();
                model.insert(key.to_vec(), value_of(round, row));
            }
        }
    }
    db.persist()
}

/// Compares walks over several parts, both ways, with what there is to be seen.
fn check(snapshot: &Snapshot<'_>, table: &Table, model: &Model) -> Result<()> {
    let key = |row: u32| row.to_be_bytes().to_vec();
    let parts = [
        (Bound::Unbounded, Bound::Unbounded),
        (Bound::Included(key(17)), Bound::Excluded(key(2_900))),
        (Bound::Excluded(key(200)), Bound::Included(key(2_200))),
    ];
    for part in parts {
        let expected: Vec<_> =
            model.range(part.clone()).map(|(key, value)| (key.clone(), value.clone())).collect();
        let forwards: Vec<_> = snapshot.range(table, part.clone()).collect::<Result<_>>()?;
        assert!(forwards == expected, "{part:?}: {} rows, not {}", forwards.len(), expected.len());
        let mut backwards: Vec<_> = snapshot.range(table, part.clone()).reverse().collect::<Result<_>>()?;
        backwards.reverse();
        assert!(backwards == expected, "{part:?} backwards");
        let limited: Vec<_> = snapshot.range(table, part.clone()).limit(2_000).collect::<Result<_>>()?;
        assert!(limited[..] == expected[..2_000.min(expected.len())], "{part:?} with a limit");
        // Back to where it has been, and on.
        let mut range = snapshot.range(table, part.clone());
        range.by_ref().take(1_500).try_for_each(|row| row.map(drop))?;
        range.seek(key(600));
        let rest: Vec<_> = range.collect::<Result<_>>()?;
        assert!(rest.iter().eq(expected.iter().filter(|(row, _)| *row >= key(600))), "{part:?} with a seek");
    }
    Ok(())
}

fn test(frozen_bytes: u64) -> Result<()> {
    let (db, disk) = open(frozen_bytes)?;
    let (table, mut model) = (db.table("table")?, Model::new());
    let mut snapshots = Vec::new();
    for round in 0..4 {
        change(&db, &table, round, &mut model)?;
        snapshots.push((db.snapshot()?, model.clone()));
        if round % 2 == 0 {
            evict(&db)?;
            db.settle()?;
        }
        snapshots.iter().try_for_each(|(snapshot, model)| check(snapshot, &table, model))?;
    }
    evict(&db)?;
    disk.set_time_ms(SOON);
    snapshots.iter().try_for_each(|(snapshot, model)| check(snapshot, &table, model))?;
    let expired = |row: &(Vec<u8>, Vec<u8>)| db.expiry(&table, &row.0).unwrap() != Some(Expiry::Never);
    let now: Vec<_> = db.snapshot()?.range::<&[u8]>(&table, ..).collect::<Result<_>>()?;
    assert!(!now.is_empty() && now.len() < model.len() && !now.iter().any(expired));
    Ok(())
}

/// Nothing is committed behind what is to be read, and the log's end is never durable.
#[test]
fn a_long_walk_over_an_idle_database_does_not_read_records_one_by_one() -> Result<()> {
    let (db, _disk) = open(1 << 30)?;
    let (table, mut model) = (db.table("table")?, Model::new());
    change(&db, &table, 0, &mut model)?;
    evict(&db)?;
    for snapshot in [db.snapshot()?, db.durable_snapshot()?] {
        let reads = db.statistics().cold_reads;
        assert_eq!(snapshot.range::<&[u8]>(&table, ..).count(), model.len());
        let reads = db.statistics().cold_reads - reads;
        assert!(reads < u64::from(ROWS) / 2, "{reads} reads of records for {} rows", model.len());
    }
    Ok(())
}

/// Each seek read all of it again.
#[test]
fn who_seeks_in_a_long_walk_does_not_have_it_read_in_one_piece_again() -> Result<()> {
    let (db, _disk) = open(1 << 30)?;
    let (table, mut model) = (db.table("table")?, Model::new());
    change(&db, &table, 0, &mut model)?;
    evict(&db)?;
    let snapshot = db.snapshot()?;
    for reverse in [false, true] {
        let range = snapshot.range::<&[u8]>(&table, ..);
        let mut range = if reverse { range.reverse() } else { range };
        range.by_ref().take(model.len() / 2).try_for_each(|row| row.map(drop))?;
        let before = db.statistics();
        let ahead: Vec<u32> = (ROWS * 2 / 3..ROWS).step_by(7).collect();
        for row in ahead.into_iter().map(|row| if reverse { ROWS - row } else { row }.to_be_bytes()) {
            range.seek(row);
            let found = range.next().transpose()?;
            let expected = match reverse {
                false => model.range(row.to_vec()..).next(),
                true => model.range(..=row.to_vec()).next_back(),
            };
            assert_eq!(found.as_ref().map(|(key, value)| (key, value)), expected);
        }
        let after = db.statistics();
        assert_eq!((after.cold_reads, after.cold_read_bytes), (before.cold_reads, before.cold_read_bytes));
        // Back to where nothing is kept: as if it began there.
        range.seek(if reverse { ROWS - 10 } else { 10 }.to_be_bytes());
        range.next().transpose()?;
        let bytes = db.statistics().cold_read_bytes - after.cold_read_bytes;
        assert!(bytes < 100 * 4096, "{bytes} bytes for a row");
    }
    Ok(())
}

/// It was looked for in the tree alone, which had it as it was before, or not at all.
#[test]
fn c2_who_seeks_back_to_the_row_that_a_long_walk_has_just_given_gets_it_once_more() -> Result<()> {
    let (db, _disk) = open(1 << 30)?;
    let (table, mut model) = (db.table("table")?, Model::new());
    change(&db, &table, 0, &mut model)?;
    db.settle()?;
    change(&db, &table, 1, &mut model)?;
    evict(&db)?;
    let snapshot = db.snapshot()?;
    for reverse in [false, true] {
        let range = snapshot.range::<&[u8]>(&table, ..);
        let mut range = if reverse { range.reverse() } else { range };
        range.by_ref().take(model.len() / 3).try_for_each(|row| row.map(drop))?;
        let before = db.statistics().cold_reads;
        for _ in 0..10 {
            let row = range.next().transpose()?.unwrap();
            range.seek(&row.0);
            assert_eq!(range.next().transpose()?.unwrap(), row);
        }
        assert!(db.statistics().cold_reads - before < 1_000);
    }
    Ok(())
}

/// The shortest record takes no memory for its key and its value.
#[test]
fn c2_a_long_walk_finds_the_newest_of_several_records_of_the_empty_key() -> Result<()> {
    for value in [None, Some("value")] {
        let (db, _disk) = open(1 << 30)?;
        let (table, mut model) = (db.table("table")?, Model::new());
        change(&db, &table, 0, &mut model)?;
        db.put(&table, "", "")?.forget();
        match value {
            None => drop(db.delete(&table, "")?.forget()),
            Some(value) => db.put(&table, "", value)?.forget(),
        }
        model.extend(value.map(|value| (Vec::new(), value.into())));
        evict(&db)?;
        for _ in 0..2 {
            let rows: Model = db.snapshot()?.range::<&[u8]>(&table, ..).reverse().collect::<Result<_>>()?;
            assert!(rows == model, "{:?}", rows.get(&[][..]));
        }
    }
    Ok(())
}

/// Each takes memory.
#[test]
fn no_more_than_four_walks_at_a_time_are_over_what_is_frozen() -> Result<()> {
    let (db, _disk) = open(4 << 20)?;
    let (table, mut model) = (db.table("table")?, Model::new());
    change(&db, &table, 0, &mut model)?;
    evict(&db)?;
    let snapshot = db.snapshot()?;
    let mut walks: Vec<_> = (0..6).map(|_| snapshot.range::<&[u8]>(&table, ..)).collect();
    let mut reads = Vec::new();
    for walk in &mut walks {
        // What somebody has read is in the cache.
        evict(&db)?;
        let before = db.statistics().cold_reads;
        walk.take(model.len() - 1).try_for_each(|row| row.map(drop))?;
        reads.push(db.statistics().cold_reads - before);
    }
    let many = |reads: &&u64| **reads > model.len() as u64 / 2;
    assert_eq!(reads.iter().filter(many).count(), 2, "{reads:?}");
    drop(walks);
    evict(&db)?;
    let before = db.statistics().cold_reads;
    assert_eq!(snapshot.range::<&[u8]>(&table, ..).count(), model.len());
    assert!(db.statistics().cold_reads - before < model.len() as u64 / 2);
    Ok(())
}

#[test]
fn c2_a_long_walk_finds_what_its_snapshot_sees_wherever_the_records_are() -> Result<()> {
    test(1 << 30)
}

#[test]
fn c2_a_long_walk_finds_all_where_only_a_part_of_what_has_not_settled_fits_into_memory() -> Result<()> {
    test(80_000)
}

/// Each row is an old record on disk behind newer ones on disk: one by one that is two reads at random places for each.
#[test]
fn a_long_walk_beside_writers_does_not_read_old_records_one_by_one() -> Result<()> {
    let (db, _disk) = open(1 << 30)?;
    let (table, mut model) = (db.table("table")?, Model::new());
    change(&db, &table, 0, &mut model)?;
    let (snapshot, seen) = (db.snapshot()?, model.clone());
    evict(&db)?;
    (1..3).try_for_each(|round| change(&db, &table, round, &mut model))?;
    evict(&db)?;
    for reverse in [false, true] {
        let reads = db.statistics().cold_reads;
        let range = snapshot.range::<&[u8]>(&table, ..);
        let count = if reverse { range.reverse().count() } else { range.count() };
        assert_eq!(count, seen.len());
        let reads = db.statistics().cold_reads - reads;
        assert!(reads < u64::from(ROWS) / 2, "{reads} reads of records for {count} rows");
    }
    Ok(())
}

/// The walk took the log from where the newest root says that all has settled, and did not look into the tree, which did not know yet that there was anything.
#[test]
fn c2_a_walk_freezes_what_is_beside_the_first_settling() -> Result<()> {
    let (db, _disk) = open(4 << 20)?;
    let (table, mut model) = (db.table("table")?, Model::new());
    // They come last, and settle.
    for row in ROWS..ROWS + 500 {
        db.put(&table, row.to_be_bytes(), value_of(0, row))?.forget();
        model.insert(row.to_be_bytes().to_vec(), value_of(0, row));
    }
    db.persist()?;
    assert_eq!(db.settle()?, 500);
    change(&db, &table, 0, &mut model)?;
    evict(&db)?;
    let snapshot = db.snapshot()?;
    change(&db, &table, 1, &mut model.clone())?;
    evict(&db)?;
    db.engine().settled.tree.forget_count();
    let rows: Vec<_> = snapshot.range::<&[u8]>(&table, ..).collect::<Result<_>>()?;
    assert!(rows.into_iter().eq(model));
    Ok(())
}
