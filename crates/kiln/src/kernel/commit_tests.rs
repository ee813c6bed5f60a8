//! Attempts of one commit, and what happens between them.

use super::*;
use crate::device::SimulatedDevice;
use crate::kernel::handle::HasHandle;
use crate::kernel::settled::tests::{ROW, deletion, row_on_disk};
use crate::storage::record::NEVER;
use crate::{ErrorKind, Kiln, Map, Object, Options};

/// The write set of a transaction that puts so many rows, whatever there was of them before.
fn puts(db: &Kiln, map: &Map, count: u32) -> WriteSet {
    let (object, mut writes) = (map.handle().id, WriteSet::default());
    for key in (0..count).map(u32::to_be_bytes) {
        writes.set((object, db.engine().hash(object, &key), &key), Some(b"new"), NEVER);
    }
    writes
}

/// As [the same](crate::kernel::single) of a single delete.
#[test]
fn c2_a_row_that_settles_while_a_transaction_reads_what_it_deletes_is_deleted() {
    let (db, table) = row_on_disk();
    let (engine, writes) = (db.engine(), deletion(&db, &table));
    let (mut reads, mut scratch) = (ReadSet::default(), CommitScratch::default());
    let outcome = engine.attempt(&writes, &mut reads, &mut scratch, None);
    assert!(matches!(outcome, Err(Setback::Cold)), "it is on disk");
    engine.learn_all(&writes, &mut scratch).unwrap();
    assert!(db.settle().unwrap() > 1);
    while let Err(setback) = engine.attempt(&writes, &mut reads, &mut scratch, None) {
        assert!(matches!(setback, Setback::Cold));
        engine.learn_all(&writes, &mut scratch).unwrap();
    }
    assert_eq!(db.get(&table, ROW).unwrap(), None);
}

/// Where a key's bucket was split between the sort and the lock all of the transaction ran again: a large one that only wrote hardly ever came to its end
/// while others inserted.
#[test]
fn c2_a_transaction_conflicts_with_splits_of_what_it_has_read_and_not_of_what_it_writes() {
    const KEYS: u32 = 500;
    let options = Options::new().background(false).segment_bytes(64 << 10).memory(1 << 20);
    let db = options.open_on(Arc::new(SimulatedDevice::new(1))).unwrap();
    let map = db.map("map").unwrap();
    let (engine, writes) = (db.engine(), puts(&db, &map, KEYS));
    let (mut reads, mut scratch) = (ReadSet::default(), CommitScratch::default());
    let reader = db.begin().unwrap();
    (0..KEYS).for_each(|key| assert_eq!(reader.get(&map, key.to_be_bytes()).unwrap(), None));
    reader.put(&map, "of who has read", "").unwrap();
    scratch.steps.resize(writes.len(), Step::default());
    order_locks(&writes, &mut scratch);
    let before = engine.index.bucket_count();
    let mut others = (KEYS..).map(u32::to_be_bytes);
    // Half of the buckets are not split yet, so that they are of both kinds.
    while engine.index.bucket_count() < before / 2 * 3 {
        db.put(&map, others.next().unwrap(), "").unwrap().forget();
    }
    assert!(engine.lock_in_order(&mut scratch));
    for (step, write) in scratch.steps.iter().zip(writes.writes()) {
        assert_eq!(step.bucket, engine.index.bucket_of(write.hash));
        assert!(scratch.locks.contains(&step.bucket));
    }
    engine.unlock_all(&mut scratch, false);
    assert_eq!(reader.commit().map(drop).unwrap_err().kind(), ErrorKind::Conflict);
    engine.commit(&writes, &mut reads, &mut scratch, None).unwrap();
    // Who has read what it writes finds its own locks, whatever their order.
    let tx = db.begin().unwrap();
    for key in (0..KEYS).map(u32::to_be_bytes) {
        tx.update(&map, key, |old| (old == Some(b"new")).then_some("newer")).unwrap();
    }
    tx.commit().unwrap().forget();
    (0..KEYS).for_each(|key| assert_eq!(db.get(&map, key.to_be_bytes()).unwrap().unwrap(), b"newer"));
    let count = u64::from(u32::from_be_bytes(others.next().unwrap()));
    assert_eq!(map.len(), count);
}

/// Each record was waited for by itself, and each that was known again in each attempt that followed.
#[test]
fn what_a_transaction_learns_of_many_records_on_disk_is_read_together_and_once() {
    const KEYS: u32 = 200;
    let options = Options::new().background(false).segment_bytes(64 << 10).memory(4 << 20);
    let db = options.space_amplification(f64::INFINITY).open_on(Arc::new(SimulatedDevice::new(1))).unwrap();
    let map = db.map("map").unwrap();
    (0..KEYS).for_each(|key| db.put(&map, key.to_be_bytes(), [7; 200]).unwrap().forget());
    let end = db.statistics().log_tail;
    while db.statistics().log_head <= end {
        (0..8).for_each(|_| db.put(&map, "ballast", [0; 8_000]).unwrap().forget());
        db.persist().unwrap();
    }
    let (engine, writes) = (db.engine(), puts(&db, &map, KEYS));
    let (mut reads, mut scratch) = (ReadSet::default(), CommitScratch::default());
    let outcome = engine.attempt(&writes, &mut reads, &mut scratch, None);
    assert!(matches!(outcome, Err(Setback::Cold)), "they are on disk");
    let counts = || {
        let statistics = db.statistics();
        (statistics.cold_reads + statistics.neighbours_read, statistics.cache_hits)
    };
    let before = counts();
    engine.learn_all(&writes, &mut scratch).unwrap();
    let after = counts();
    assert_eq!(after.0 - before.0, u64::from(KEYS));
    assert_eq!(after.1 - before.1, u64::from(KEYS), "each was read ahead, and found in the cache");
    engine.learn_all(&writes, &mut scratch).unwrap();
    assert_eq!(counts(), after, "what is known is not asked for again");
    assert!(engine.attempt(&writes, &mut reads, &mut scratch, None).is_ok());
    (0..KEYS).for_each(|key| assert_eq!(db.get(&map, key.to_be_bytes()).unwrap().unwrap(), b"new"));
    assert_eq!(map.len(), u64::from(KEYS) + 1);
}
