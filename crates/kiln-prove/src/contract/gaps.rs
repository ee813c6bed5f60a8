//! C1, C2: stretches of a table in which all rows are gone, which ranges pass in one step. Whatever comes into them, each range sees what its snapshot or its transaction sees.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use kiln::device::SimulatedDevice;
use kiln::{ErrorKind, Isolation, Kiln, Result, Snapshot, Table, Transaction};

use crate::support::{Random, manual};
use crate::testing::{PATIENCE, background, budget, seed, watched};

type Rows = BTreeMap<Vec<u8>, Vec<u8>>;

const ROWS: usize = 120;

fn key(number: usize) -> Vec<u8> {
    format!("row {number:05}").into_bytes()
}

fn settle(db: &Kiln) {
    db.persist().unwrap();
    db.settle().unwrap();
}

/// A table without rows, whose keys are a gap.
fn emptied(is_settled: bool) -> (Kiln, Table) {
    let db = manual().open_on(Arc::new(SimulatedDevice::new(seed()))).unwrap();
    let table = db.table("table").unwrap();
    for number in 0..ROWS {
        db.put(&table, key(number), b"old").unwrap().forget();
    }
    if is_settled {
        settle(&db);
        assert_eq!(db.statistics().rows_settled, ROWS as u64);
    }
    let deleted = db.transact(|tx| tx.delete_range::<&[u8]>(&table, ..)).unwrap();
    assert_eq!(deleted.forget(), ROWS as u64);
    for _ in 0..4 {
        assert!(db.snapshot().unwrap().first(&table).unwrap().is_none());
    }
    assert_eq!(db.statistics().gaps, 1);
    (db, table)
}

fn rows_of(tx: &Transaction<'_>, table: &Table) -> Result<usize> {
    tx.range::<&[u8]>(table, ..).try_fold(0, |count, row| row.map(|_| count + 1))
}

/// What a range sees, and what it should see.
fn check(rows: impl Iterator<Item = Result<(Vec<u8>, Vec<u8>)>>, model: &Rows, reverse: bool, limit: usize) {
    let found: Vec<_> = rows.map(Result::unwrap).collect();
    let expected = model.iter().map(|(key, value)| (key.clone(), value.clone()));
    let expected: Vec<_> = match reverse {
        false => expected.take(limit).collect(),
        true => expected.rev().take(limit).collect(),
    };
    assert_eq!(found, expected);
}

fn check_snapshot(snapshot: &Snapshot<'_>, table: &Table, model: &Rows, from: usize, limit: usize) {
    let rows = model.range(key(from)..).map(|(key, value)| (key.clone(), value.clone())).collect();
    check(snapshot.range(table, key(from)..).limit(limit), &rows, false, limit);
    let rows = model.range(..=key(from)).map(|(key, value)| (key.clone(), value.clone())).collect();
    check(snapshot.range(table, ..=key(from)).reverse().limit(limit), &rows, true, limit);
}

/// Old snapshots beside newer ones, transactions with writes of their own, and rows that come and go one by one and many at once, settled or not.
#[test]
fn c2_ranges_over_stretches_without_rows_see_what_a_model_sees() {
    let (mut passed, mut random) = (0, Random::new(seed()));
    for _ in 0..budget(12) {
        let db = manual().open_on(Arc::new(SimulatedDevice::new(seed()))).unwrap();
        let (table, mut model) = (db.table("table").unwrap(), Rows::new());
        let mut held: Vec<(Snapshot<'_>, Rows)> = Vec::new();
        for number in 0..ROWS {
            db.put(&table, key(number), b"old").unwrap().forget();
            model.insert(key(number), b"old".to_vec());
        }
        for step in 0..150_u64 {
            let (number, length) = (random.below(ROWS), random.below(60));
            match random.below(10) {
                0..3 => {
                    let value = step.to_le_bytes().to_vec();
                    db.put(&table, key(number), &value).unwrap().forget();
                    model.insert(key(number), value);
                }
                3..5 => {
                    let keys = key(number)..key(number + length);
                    db.transact(|tx| tx.delete_range(&table, keys.clone())).unwrap().forget();
                    model.retain(|key, _| !keys.contains(key));
                }
                5 => settle(&db),
                6 => db.persist().unwrap(),
                7 if held.len() < 4 => held.push((db.snapshot().unwrap(), model.clone())),
                7 => drop(held.remove(random.below(4))),
                _ => {
                    // Its own writes lie within stretches that it passes.
                    let mut own = model.clone();
                    let tx = db.begin().unwrap();
                    for _ in 0..random.below(4) {
                        let number = random.below(ROWS);
                        check(tx.range::<&[u8]>(&table, ..), &own, false, usize::MAX);
                        if random.one_in(2) {
                            tx.put(&table, key(number), b"own").unwrap();
                            own.insert(key(number), b"own".to_vec());
                        } else {
                            tx.delete(&table, key(number)).unwrap();
                            own.remove(&key(number));
                        }
                    }
                    check(tx.range::<&[u8]>(&table, ..), &own, false, usize::MAX);
                    check(tx.range::<&[u8]>(&table, ..).reverse(), &own, true, usize::MAX);
                    // Nobody else has written anything.
                    tx.commit().unwrap().forget();
                    model = own;
                }
            }
            let limit = if random.one_in(2) { usize::MAX } else { 1 + random.below(4) };
            check_snapshot(&db.snapshot().unwrap(), &table, &model, number, limit);
            for (snapshot, model) in &held {
                check_snapshot(snapshot, &table, model, number, limit);
            }
            passed += db.statistics().gaps;
        }
    }
    assert!(passed > budget(12) * 150, "{passed}");
}

#[test]
fn c2_a_row_that_comes_into_a_stretch_that_a_transaction_has_passed_is_a_conflict() {
    for is_settled in [false, true] {
        for own in [None, Some(50)] {
            // What lies behind all keys that there were is in no gap, but in a leaf that was read.
            for others in [20, 80, ROWS + 5] {
                let (db, table) = emptied(is_settled);
                let map = db.map("map").unwrap();
                let tx = db.begin().unwrap();
                assert_eq!(rows_of(&tx, &table).unwrap(), 0);
                tx.put(&map, b"seen", b"nothing").unwrap();
                if let Some(own) = own {
                    tx.put(&table, key(own), b"own").unwrap();
                }
                db.put(&table, key(others), b"others").unwrap().forget();
                let committed = tx.commit().map(|commit| commit.forget());
                let failed = committed.expect_err(&format!("{is_settled} {own:?} {others}"));
                assert_eq!(failed.kind(), ErrorKind::Conflict);
            }
        }
    }
}

#[test]
fn c2_rows_that_a_transaction_puts_into_a_stretch_that_it_has_passed_itself_are_no_conflict() {
    for is_settled in [false, true] {
        let (db, table) = emptied(is_settled);
        let tx = db.begin().unwrap();
        assert_eq!(rows_of(&tx, &table).unwrap(), 0);
        for number in [50, 20, 80, 0] {
            tx.put(&table, key(number), b"own").unwrap();
        }
        assert_eq!(rows_of(&tx, &table).unwrap(), 4);
        tx.commit().unwrap().forget();
        assert_eq!(db.snapshot().unwrap().range::<&[u8]>(&table, ..).count(), 4);
    }
}

/// It found a gap, and broke it, each time that it was run again, and was told that somebody else had changed what it had read: for ever.
#[test]
fn c2_nobody_is_in_conflict_with_himself_however_many_rows_he_puts_into_a_stretch_that_he_has_passed() {
    for is_settled in [false, true] {
        let (db, table) = emptied(is_settled);
        for rows in [40, ROWS] {
            let tx = db.begin().unwrap();
            assert_eq!(rows_of(&tx, &table).unwrap(), 0);
            (0..rows).for_each(|number| tx.put(&table, key(number * 7 % ROWS), b"own").unwrap());
            tx.commit().unwrap().forget();
            let deleted = db.transact(|tx| tx.delete_range::<&[u8]>(&table, ..)).unwrap();
            assert_eq!(deleted.forget(), rows as u64);
        }
        // Too long for a gap to end at.
        let tx = db.begin().unwrap();
        assert_eq!(rows_of(&tx, &table).unwrap(), 0);
        tx.put(&table, [key(50), vec![b'x'; 2_000]].concat(), b"own").unwrap();
        tx.commit().unwrap().forget();
        assert_eq!(db.snapshot().unwrap().range::<&[u8]>(&table, ..).count(), 1);
    }
}

#[test]
fn c2_nobody_is_in_conflict_with_himself_where_a_table_has_as_many_gaps_as_it_may() {
    const STRETCHES: usize = 100;
    const KEYS: usize = 20;
    let db = manual().open_on(Arc::new(SimulatedDevice::new(seed()))).unwrap();
    let table = db.table("table").unwrap();
    for number in 0..STRETCHES * KEYS {
        db.put(&table, key(number), b"there").unwrap().forget();
    }
    // The first of each stays.
    for number in (0..STRETCHES * KEYS).filter(|number| !number.is_multiple_of(KEYS)) {
        db.delete(&table, key(number)).unwrap().forget();
    }
    for _ in 0..4 {
        assert_eq!(db.snapshot().unwrap().range::<&[u8]>(&table, ..).count(), STRETCHES);
    }
    assert!(db.statistics().gaps > 50, "{}", db.statistics().gaps);
    for stretch in 0..STRETCHES {
        let (from, to) = (key(stretch * KEYS + 1), key(stretch * KEYS + KEYS));
        let tx = db.begin().unwrap();
        assert_eq!(tx.range(&table, from..to).count(), 0);
        tx.put(&table, key(stretch * KEYS + KEYS / 2), b"own").unwrap();
        tx.commit().unwrap().forget();
    }
    assert_eq!(db.snapshot().unwrap().range::<&[u8]>(&table, ..).count(), 2 * STRETCHES);
}

thread_local! {
    /// Puts its key there, once.
    static OTHER: RefCell<Option<(Kiln, Table, Vec<u8>)>> = const { RefCell::new(None) };
}

/// A commit that has to wait for log space begins anew, when the key that it puts is in no gap any more.
#[test]
fn c2_a_row_that_another_one_puts_while_a_commit_waits_for_space_is_a_conflict() {
    let mut waited = 0;
    for (filled, rows) in (0..60_u64).flat_map(|filled| [(filled, 1), (filled, 40)]) {
        let (db, table) = emptied(filled % 2 == 1);
        assert!(db.wait_through(|wait| {
            if let Some((db, table, key)) = OTHER.take() {
                db.put(&table, key, b"others").unwrap().forget();
            }
            wait();
        }));
        let others = db.map("others").unwrap();
        for number in 0..8 * filled {
            db.put(&others, number.to_le_bytes(), [0; 700]).unwrap().forget();
        }
        let tx = db.begin().unwrap();
        assert_eq!(rows_of(&tx, &table).unwrap(), 0);
        tx.put(&table, key(50), [0; 30_000]).unwrap();
        // So many that they are no gaps any more.
        (1..rows).for_each(|number| tx.put(&table, key(2 * number), b"own").unwrap());
        OTHER.set(Some((db.clone(), table.clone(), key(if rows > 1 { 101 } else { 50 }))));
        let committed = tx.commit().map(|commit| commit.forget());
        let has_waited = OTHER.take().is_none();
        assert_eq!(committed.is_err(), has_waited, "{filled}");
        waited += usize::from(has_waited);
    }
    assert!(waited > 0, "none had to wait");
}

#[test]
fn c2_of_two_that_pass_a_stretch_and_put_a_row_there_one_is_in_conflict() {
    for is_settled in [false, true] {
        let (db, table) = emptied(is_settled);
        let both = [db.begin().unwrap(), db.begin().unwrap()];
        for (tx, number) in both.iter().zip([20, 80]) {
            assert_eq!(rows_of(tx, &table).unwrap(), 0);
            tx.put(&table, key(number), b"own").unwrap();
        }
        let committed = both.map(|tx| tx.commit().map(|commit| commit.forget()).is_ok());
        assert_eq!(committed, [true, false]);
    }
}

#[test]
fn c2_snapshots_from_before_rows_were_deleted_or_put_again_see_what_was_there() {
    for is_settled in [false, true] {
        let (db, table) = emptied(is_settled);
        let count = |snapshot: &Snapshot<'_>| snapshot.range::<&[u8]>(&table, ..).count();
        let empty = db.snapshot().unwrap();
        db.put(&table, key(50), b"new").unwrap().forget();
        let (one, by_snapshot) = (db.snapshot().unwrap(), db.begin_with(Isolation::Snapshot).unwrap());
        db.transact(|tx| tx.delete(&table, key(50))).unwrap().forget();
        for _ in 0..4 {
            assert_eq!(count(&db.snapshot().unwrap()), 0);
        }
        db.put(&table, key(70), b"newer").unwrap().forget();
        assert_eq!([&empty, &one, &db.snapshot().unwrap()].map(count), [0, 1, 1]);
        assert_eq!(one.first(&table).unwrap().unwrap().0, key(50));
        assert_eq!(by_snapshot.first(&table).unwrap().unwrap().0, key(50));
    }
}

/// A put need not read what it replaces, and so does not know that it was a deletion.
#[test]
fn c2_a_row_is_seen_that_is_put_where_a_deletion_has_left_memory() {
    for in_transaction in [false, true] {
        let options = manual().memory(2 << 20).segment_bytes(64 << 10);
        let db = options.open_on(Arc::new(SimulatedDevice::new(seed()))).unwrap();
        let (table, others) = (db.table("table").unwrap(), db.map("others").unwrap());
        (0..ROWS).for_each(|number| db.put(&table, key(number), b"old").unwrap().forget());
        settle(&db);
        db.transact(|tx| tx.delete_range::<&[u8]>(&table, ..)).unwrap().forget();
        for number in 0..4_000_u32 {
            db.put(&others, number.to_be_bytes(), [0; 1_000]).unwrap().forget();
            if number % 500 == 0 {
                db.persist().unwrap();
            }
        }
        let reads = db.statistics().cold_reads;
        for _ in 0..4 {
            assert!(db.snapshot().unwrap().first(&table).unwrap().is_none());
        }
        assert!(db.statistics().cold_reads > reads, "the deletions are in memory");
        assert_eq!(db.statistics().gaps, 1);
        match in_transaction {
            false => db.put(&table, key(50), b"new").unwrap().forget(),
            true => db.transact(|tx| tx.put(&table, key(50), b"new")).unwrap().forget(),
        }
        assert_eq!(db.snapshot().unwrap().first(&table).unwrap(), Some((key(50), b"new".to_vec())));
        assert_eq!(db.transact(|tx| tx.first(&table)).unwrap().forget().unwrap().0, key(50));
    }
}

/// A row that has expired is there for who sees it as of before.
#[test]
fn c2_rows_that_have_expired_are_passed_one_by_one() {
    let disk = SimulatedDevice::new(seed());
    disk.set_time_ms(1_000_000);
    let db = manual().open_on(Arc::new(disk.clone())).unwrap();
    let table = db.table_with_time_to_live("table", Duration::from_millis(300)).unwrap();
    (0..ROWS).for_each(|number| db.put(&table, key(number), b"short").unwrap().forget());
    let before = db.snapshot().unwrap();
    assert_eq!(before.range::<&[u8]>(&table, ..).count(), ROWS);
    disk.set_time_ms(1_000_400);
    for _ in 0..4 {
        assert!(db.snapshot().unwrap().first(&table).unwrap().is_none());
    }
    assert_eq!((before.range::<&[u8]>(&table, ..).count(), db.statistics().gaps), (ROWS, 0));
}

/// Jobs are put with any keys, most of them where others were taken out, and the first one is taken.
#[test]
fn c2_each_job_of_a_queue_is_taken_once_whoever_puts_them_where() {
    const ENOUGH: u64 = 20_000;
    const THREADS: u64 = 2;
    watched("c2_each_job_of_a_queue_is_taken_once", 2 * PATIENCE, |_| {
        let options = background().window(Duration::from_millis(5));
        let db = options.open_on(Arc::new(SimulatedDevice::new(seed()))).unwrap();
        let (queue, jobs) = (db.table("queue").unwrap(), budget(ENOUGH));
        let taken: Vec<_> = (0..jobs).map(|_| AtomicU64::new(0)).collect();
        let (left, gaps) = (AtomicU64::new(jobs), AtomicU64::new(0));
        thread::scope(|scope| {
            let (db, queue, taken, left, gaps) = (&db, &queue, &taken, &left, &gaps);
            for thread in 0..THREADS {
                scope.spawn(move || {
                    let mut random = Random::new(seed() + thread);
                    for job in (thread..jobs).step_by(THREADS as usize) {
                        // Mostly behind the others, as a clock would have it.
                        let priority =
                            if random.one_in(4) { random.below(job as usize + 1) } else { job as usize };
                        let name = [key(priority), job.to_be_bytes().to_vec()].concat();
                        match random.one_in(2) {
                            true => db.put(queue, &name, job.to_le_bytes()).unwrap().forget(),
                            false => {
                                db.transact(|tx| tx.put(queue, &name, job.to_le_bytes())).unwrap().forget()
                            }
                        }
                    }
                });
                scope.spawn(move || {
                    while left.load(Ordering::SeqCst) > 0 {
                        let job = db.transact(|tx| {
                            let Some((key, job)) = tx.first(queue)? else { return Ok(None) };
                            tx.delete(queue, key).map(|_| Some(job))
                        });
                        match job.unwrap().forget() {
                            None => thread::yield_now(),
                            Some(job) => {
                                let job = u64::from_le_bytes(job.try_into().unwrap()) as usize;
                                assert_eq!(
                                    taken[job].fetch_add(1, Ordering::SeqCst),
                                    0,
                                    "it was taken twice"
                                );
                                left.fetch_sub(1, Ordering::SeqCst);
                            }
                        }
                        gaps.fetch_max(db.statistics().gaps, Ordering::Relaxed);
                    }
                });
            }
        });
        assert!(taken.iter().all(|taken| taken.load(Ordering::SeqCst) == 1));
        assert_ne!(gaps.into_inner(), 0, "nothing was passed in one step");
    });
}

/// Once all deleted keys of a queue had left the index a new gap began where the next were, and the old one stayed: a table of some queues had no room for more gaps.
#[test]
fn c2_a_queue_is_one_gap_whatever_was_forgotten_meanwhile() {
    for is_settled in [false, true] {
        let (db, table) = emptied(is_settled);
        // There is a row before, and one behind.
        for number in [0, 99_999] {
            db.put(&table, key(number), b"there").unwrap().forget();
        }
        let gaps = db.statistics().gaps;
        for round in 1..20 {
            let rows = ROWS * round..ROWS * (round + 1);
            for number in rows.clone() {
                db.put(&table, key(number), b"row").unwrap().forget();
            }
            for number in rows {
                db.delete(&table, key(number)).unwrap().forget();
            }
            let first = || db.snapshot().unwrap().range(&table, key(1)..).next().unwrap().unwrap().0;
            (0..4).for_each(|_| assert_eq!(first(), key(99_999)));
            // Nobody need know of them any more.
            settle(&db);
            db.persist().unwrap();
        }
        assert!(db.statistics().gaps <= gaps + 1, "{} gaps, {gaps} before", db.statistics().gaps);
        let rows = db.snapshot().unwrap().range::<&[u8]>(&table, ..).count();
        assert_eq!(rows, 2);
        // What comes there is seen.
        db.put(&table, key(777), b"new").unwrap().forget();
        assert_eq!(db.snapshot().unwrap().range(&table, key(1)..).next().unwrap().unwrap().0, key(777));
    }
}
