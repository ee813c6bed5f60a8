//! Settling beside everything else: writers, deleters, walks, snapshots, checkpoints, closing.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use kiln::device::{Device, Keep, SimulatedDevice};
use kiln::{ErrorKind, Isolation, Kiln, Object, Options, Snapshot, Table};

use super::hooked::{HookedDevice, Operation};
use super::singles::key_beside;
use crate::crash::reopen;
use crate::support::{Random, copy_of, manual};
use crate::testing::{PATIENCE, budget, eventually, seed, watched};

type Rows = BTreeMap<Vec<u8>, Vec<u8>>;

const ACCOUNTS: usize = 200;
const BALANCE: u64 = 100;
const WRITERS: u64 = 2;
const OWN_KEYS: usize = 300;

fn account(number: usize) -> Vec<u8> {
    format!("account {number:04}").into_bytes()
}

/// A balance, and something that makes rows of different lengths.
fn balance(amount: u64, random: &mut Random) -> Vec<u8> {
    let mut value = amount.to_le_bytes().to_vec();
    let length = if random.one_in(40) { 3_000 } else { 60 };
    value.resize(8 + random.below(length), 7);
    value
}

fn amount(value: &[u8]) -> u64 {
    u64::from_le_bytes(*value.first_chunk().expect("every balance has eight bytes"))
}

/// Moves money; an account without any has no row.
fn transfer(db: &Kiln, table: &Table, random: &mut Random) -> kiln::Result<()> {
    let (from, to) = (account(random.below(ACCOUNTS)), account(random.below(ACCOUNTS)));
    let isolation = if random.one_in(4) { Isolation::Snapshot } else { Isolation::Serializable };
    if from == to {
        return Ok(());
    }
    let all = random.one_in(2);
    let done = db.transact_with(isolation, |tx| {
        let source = tx.get(table, &from)?.map_or(0, |value| amount(&value));
        let target = tx.get(table, &to)?.map_or(0, |value| amount(&value));
        let moved = if all { source } else { source / 2 };
        match source - moved {
            0 => drop(tx.delete(table, &from)?),
            rest => tx.put(table, &from, balance(rest, random))?,
        }
        match target + moved {
            0 => drop(tx.delete(table, &to)?),
            sum => tx.put(table, &to, balance(sum, random))?,
        }
        Ok(())
    })?;
    done.forget();
    Ok(())
}

fn sum(rows: impl Iterator<Item = kiln::Result<(Vec<u8>, Vec<u8>)>>) -> kiln::Result<u64> {
    let (mut sum, mut last) = (0, None);
    for row in rows {
        let (key, value) = row?;
        assert!(last.as_ref() != Some(&key), "a row was met twice");
        sum += amount(&value);
        last = Some(key);
    }
    Ok(sum)
}

fn sums_of_snapshot(snapshot: &Snapshot<'_>, table: &Table) {
    let points: u64 = (0..ACCOUNTS)
        .filter_map(|number| snapshot.get(table, account(number)).unwrap())
        .map(|value| amount(&value))
        .sum();
    let expected = ACCOUNTS as u64 * BALANCE;
    assert_eq!(points, expected, "by keys");
    assert_eq!(sum(snapshot.range::<&[u8]>(table, ..)).unwrap(), expected, "forwards");
    assert_eq!(sum(snapshot.range::<&[u8]>(table, ..).reverse()).unwrap(), expected, "backwards");
}

/// Sums in one transaction, once: whoever conflicts may have seen part of it, and that part must be right.
fn sum_in_transaction(db: &Kiln, table: &Table, random: &mut Random) {
    let isolation = if random.one_in(3) { Isolation::Snapshot } else { Isolation::Serializable };
    let reverse = random.one_in(2);
    let tx = db.begin_with(isolation).unwrap();
    let mut range = tx.range::<&[u8]>(table, ..);
    if reverse {
        range = range.reverse();
    }
    let summed = sum(range).and_then(|sum| {
        // Opacity: what was read is right even if it is never committed.
        assert_eq!(sum, ACCOUNTS as u64 * BALANCE, "isolation {isolation:?}, reverse {reverse}");
        tx.commit().map(|commit| commit.forget())
    });
    if let Err(error) = summed {
        assert_eq!(error.kind(), ErrorKind::Conflict, "{error}");
    }
}

/// Writes, deletes and reads keys that are nobody else's, and returns what is there in the end.
fn write_own(db: &Kiln, table: &Table, writer: u64, rounds: u64) -> Rows {
    let mut random = Random::new(seed() ^ writer);
    let (mut rows, mut old) = (Rows::new(), Vec::new());
    let own = |number: usize| format!("{number:04} of {writer}").into_bytes();
    for round in 0..rounds {
        let key = own(random.below(OWN_KEYS));
        match random.below(10) {
            0..=3 => {
                let longest = if random.one_in(50) { 5_000 } else { 200 };
                let length = random.below(longest);
                let value = random.bytes(length);
                db.put(table, &key, &value).unwrap().forget();
                rows.insert(key, value);
            }
            4..=5 => assert_eq!(db.delete(table, &key).unwrap().forget(), rows.remove(&key).is_some()),
            6 => {
                let is_there = rows.contains_key(&key);
                let tx = db.transact(|tx| {
                    assert_eq!(tx.contains(table, &key)?, is_there);
                    tx.put(table, &key, round.to_le_bytes())
                });
                tx.unwrap().forget();
                rows.insert(key, round.to_le_bytes().to_vec());
            }
            7 => {
                assert!(db.get(table, &key).unwrap().as_ref() == rows.get(&key));
            }
            8 => {
                old.clear();
                let (from, to) = (own(random.below(OWN_KEYS)), own(OWN_KEYS));
                let expected: Vec<_> = rows.range(from.clone()..to.clone()).take(20).collect();
                let is_own = |row: &(Vec<u8>, Vec<u8>)| row.0.ends_with(format!("of {writer}").as_bytes());
                let snapshot = db.snapshot().unwrap();
                old.extend(snapshot.range(table, from..to).map(Result::unwrap).filter(is_own).take(20));
                let is_same = old.iter().map(|(key, value)| (key, value)).eq(expected);
                assert!(is_same, "a writer does not see what it has written");
            }
            _ => {
                if random.one_in(20) {
                    db.persist().unwrap();
                }
            }
        }
        if round % 8 == 0 {
            thread::yield_now();
        }
    }
    rows
}

fn assert_all(db: &Kiln, own_rows: &Rows) {
    let (accounts, own) = (db.table("accounts").unwrap(), db.table("own").unwrap());
    let snapshot = db.snapshot().unwrap();
    sums_of_snapshot(&snapshot, &accounts);
    assert_eq!(snapshot.range::<&[u8]>(&accounts, ..).count() as u64, accounts.len());
    let found: Rows = snapshot.range::<&[u8]>(&own, ..).map(Result::unwrap).collect();
    assert!(found == *own_rows, "{} rows for {}", found.len(), own_rows.len());
    assert_eq!(own.len(), own_rows.len() as u64);
    let mut backwards: Vec<_> = snapshot.range::<&[u8]>(&own, ..).reverse().map(Result::unwrap).collect();
    backwards.reverse();
    assert!(backwards.into_iter().eq(own_rows.clone()));
}

fn assert_all_and_check(db: &Kiln, own_rows: &Rows) {
    assert_all(db, own_rows);
    let check = db.check().unwrap();
    assert!(check.is_clean(), "{check}");
}

fn settle_beside_all(options: &Options, disk: &Arc<dyn Device>, rounds: u64) -> Rows {
    let db = options.open_on(disk.clone()).unwrap();
    let (accounts, own) = (db.table("accounts").unwrap(), db.table("own").unwrap());
    let mut random = Random::new(seed());
    for number in 0..ACCOUNTS {
        db.put(&accounts, account(number), balance(BALANCE, &mut random)).unwrap().forget();
    }
    db.persist().unwrap();
    let (writing, settled) = (AtomicU64::new(2 * WRITERS), AtomicU64::new(0));
    let goes_on = || writing.load(Ordering::SeqCst) > 0;
    let rows = thread::scope(|scope| {
        let mut writers = Vec::new();
        for writer in 0..WRITERS {
            let (db, accounts, own, writing, settled) = (&db, &accounts, &own, &writing, &settled);
            scope.spawn(move || {
                let mut random = Random::new(seed() + writer);
                // Where the machine is slow they go on until something has settled, slowly: nothing does before who reads a snapshot is at its
                // end, and the more is written meanwhile the more old records that has to go back through on the disk.
                let is_over = |transfers| settled.load(Ordering::SeqCst) > 0 || transfers >= rounds + 10_000;
                let mut transfers = 0;
                while transfers < rounds || !is_over(transfers) {
                    if transfers >= rounds {
                        thread::sleep(Duration::from_millis(1));
                    }
                    transfer(db, accounts, &mut random).unwrap();
                    transfers += 1;
                }
                writing.fetch_sub(1, Ordering::SeqCst);
            });
            writers.push(scope.spawn(move || {
                let rows = write_own(db, own, writer, rounds);
                writing.fetch_sub(1, Ordering::SeqCst);
                rows
            }));
        }
        scope.spawn(|| {
            while goes_on() {
                let snapshot = db.snapshot().unwrap();
                let before: Vec<_> = snapshot.range::<&[u8]>(&own, ..).map(Result::unwrap).collect();
                for _ in 0..3 {
                    sums_of_snapshot(&snapshot, &accounts);
                }
                let after: Vec<_> = snapshot.range::<&[u8]>(&own, ..).map(Result::unwrap).collect();
                assert!(before == after, "a snapshot has changed");
                drop(snapshot);
                thread::sleep(Duration::from_millis(2));
                sums_of_snapshot(&db.durable_snapshot().unwrap(), &accounts);
            }
        });
        scope.spawn(|| {
            let mut random = Random::new(seed() + 77);
            while goes_on() {
                sum_in_transaction(&db, &accounts, &mut random);
            }
        });
        scope.spawn(|| {
            while goes_on() {
                db.persist().unwrap();
                settled.fetch_add(db.settle().unwrap(), Ordering::SeqCst);
                thread::yield_now();
            }
        });
        writers.into_iter().flat_map(|writer| writer.join().unwrap()).collect()
    });
    assert!(settled.load(Ordering::SeqCst) > 0, "nothing has settled");
    // Its log is not checked: the keeper may be compacting.
    db.persist().unwrap();
    assert_all(&db, &rows);
    rows
}

fn small(checkpoint_log_bytes: u64) -> Options {
    Options::new().segment_bytes(64 << 10).memory(256 << 10).checkpoint_log_bytes(checkpoint_log_bytes)
}

#[test]
fn c2_c4_settling_changes_nothing_for_anybody_and_nothing_after_a_crash() {
    watched("c2_c4_settling_changes_nothing_for_anybody", PATIENCE, |_| {
        // With three threads a bucket, or a leaf, has rows that two of them remove.
        let on_three_threads = small(96 << 10).settle_threads(3).settle_memory(16 << 10);
        // With more memory three of them merge as well, and a leaf of the tree has rows of two.
        let with_memory = small(96 << 10).settle_threads(3).settle_memory(48 << 20);
        for options in
            [small(0).settle_threads(1), small(96 << 10).settle_threads(1), on_three_threads, with_memory]
        {
            let disk = SimulatedDevice::new(seed());
            let rows =
                settle_beside_all(&options, &(Arc::new(disk.clone()) as Arc<dyn Device>), budget(1_500));
            let crashed = disk.after_crash(&mut |_| Keep::Lost);
            let db = reopen(&crashed).unwrap();
            assert_all_and_check(&db, &rows);
            // All of it once more, in another order.
            db.persist().unwrap();
            for (key, _) in rows.iter().step_by(2) {
                db.delete(&db.table("own").unwrap(), key).unwrap().forget();
            }
            db.persist().unwrap();
            db.settle().unwrap();
            let rest: Rows = rows.into_iter().skip(1).step_by(2).collect();
            assert_all_and_check(&db, &rest);
            db.close().unwrap();
            drop(db);
            assert_all_and_check(&reopen(&crashed).unwrap(), &rest);
        }
    });
}

/// Has one operation stand still until it is let go on.
#[derive(Default)]
struct Stop {
    wanted: AtomicBool,
    reached: AtomicBool,
    let_go: AtomicBool,
}

impl Stop {
    fn pass(&self) {
        if self.wanted.swap(false, Ordering::SeqCst) {
            self.reached.store(true, Ordering::SeqCst);
            eventually("the test lets go", || self.let_go.load(Ordering::SeqCst));
        }
    }

    /// Lets go on when `done` is true, which it will not be if all is well: that is waited for a little while only.
    fn let_go_unless(&self, done: &AtomicBool) {
        for _ in 0..100 {
            if done.load(Ordering::SeqCst) {
                break;
            }
            thread::sleep(Duration::from_millis(1));
        }
        self.let_go.store(true, Ordering::SeqCst);
    }
}

fn fill(db: &Kiln, count: u32) -> Table {
    let table = db.table("table").unwrap();
    for number in 0..count {
        db.put(&table, number.to_be_bytes(), [7; 100]).unwrap().forget();
    }
    db.persist().unwrap();
    table
}

#[test]
fn c4_nothing_is_written_for_a_settling_once_the_database_is_closed() {
    watched("c4_nothing_is_written_for_a_settling_once_the_database_is_closed", PATIENCE, |_| {
        let disk = SimulatedDevice::new(seed());
        let (stop, closed) = (Arc::new(Stop::default()), Arc::new(AtomicBool::new(false)));
        let written_after = Arc::new(AtomicU64::new(0));
        let (held, is_closed, counted) = (stop.clone(), closed.clone(), written_after.clone());
        let hook = move |operation, name: &str| {
            if operation == Operation::Sync && name.starts_with("tree") {
                held.pass();
            }
            if matches!(operation, Operation::Write(_) | Operation::Sync) && is_closed.load(Ordering::SeqCst)
            {
                counted.fetch_add(1, Ordering::SeqCst);
            }
        };
        let db = manual().open_on(HookedDevice::on(&disk, hook)).unwrap();
        fill(&db, 100);
        stop.wanted.store(true, Ordering::SeqCst);
        thread::scope(|scope| {
            // It may be told that the database is closed.
            let settling = scope.spawn(|| db.settle());
            eventually("a merge syncs", || stop.reached.load(Ordering::SeqCst));
            scope.spawn(|| {
                db.close().unwrap();
                closed.store(true, Ordering::SeqCst);
            });
            stop.let_go_unless(&closed);
            if let Err(error) = settling.join().unwrap() {
                assert_eq!(error.kind(), ErrorKind::Aborted);
            }
        });
        assert_eq!(written_after.load(Ordering::SeqCst), 0, "the directory may be somebody else's");
        drop(db);
        let db = reopen(&disk).unwrap();
        assert_eq!(db.table("table").unwrap().len(), 100);
        assert!(db.check().unwrap().is_clean());
    });
}

#[test]
fn c4_a_checkpoint_beside_a_settling_counts_what_is_live() {
    watched("c4_a_checkpoint_beside_a_settling_counts_what_is_live", PATIENCE, |_| {
        let disk = SimulatedDevice::new(seed());
        let (stop, done) = (Arc::new(Stop::default()), AtomicBool::new(false));
        let held = stop.clone();
        // It has made its cut by then.
        let hook = move |operation, name: &str| {
            if operation == Operation::Open && name.starts_with("checkpoint") {
                held.pass();
            }
        };
        let db = manual().open_on(HookedDevice::on(&disk, hook)).unwrap();
        fill(&db, 1_000);
        stop.wanted.store(true, Ordering::SeqCst);
        thread::scope(|scope| {
            let checkpoint = scope.spawn(|| db.checkpoint().unwrap());
            eventually("a checkpoint is written", || stop.reached.load(Ordering::SeqCst));
            let settling = scope.spawn(|| {
                assert_eq!(db.settle().unwrap(), 1_000);
                done.store(true, Ordering::SeqCst);
            });
            stop.let_go_unless(&done);
            assert!(checkpoint.join().unwrap());
            settling.join().unwrap();
        });
        let db = reopen(&disk.after_crash(&mut |_| Keep::Lost)).unwrap();
        assert!(db.recovery_report().checkpoint.is_some());
        let check = db.check().unwrap();
        assert!(check.is_clean(), "{check}");
        assert_eq!(db.table("table").unwrap().len(), 1_000);
    });
}

#[test]
fn c4_a_settling_that_was_cut_short_is_made_up_for() {
    let disk = SimulatedDevice::new(seed());
    // So many writes of the superblock are to come until one fails.
    let left = Arc::new(AtomicU64::new(0));
    let (faulty, fails) = (disk.clone(), left.clone());
    let hook = move |operation, name: &str| {
        if matches!(operation, Operation::Write(_))
            && name == "superblock"
            && fails.load(Ordering::SeqCst) > 0
            && fails.fetch_sub(1, Ordering::SeqCst) == 1
        {
            faulty.inject(kiln::device::Fault {
                operation: kiln::device::OperationKind::Write,
                nth: 1,
                kind: kiln::device::FaultKind::EIO,
                sticky: false,
            });
        }
    };
    let db = manual().open_on(HookedDevice::on(&disk, hook)).unwrap();
    let table = fill(&db, 300);
    // The first one says how far the log is needed, before anything is merged.
    left.store(2, Ordering::SeqCst);
    assert_eq!(db.settle().unwrap_err().kind(), ErrorKind::Io);
    assert_eq!(db.get(&table, 7_u32.to_be_bytes()).unwrap(), Some(vec![7; 100]));
    db.delete(&table, 7_u32.to_be_bytes()).unwrap().forget();
    db.persist().unwrap();
    assert_eq!(db.settle().unwrap(), 300, "all of what was cut short, once more");
    assert_eq!(db.statistics().rows_settled, 300, "none of them is left in the indexes");
    let check = db.check().unwrap();
    assert!(check.is_clean(), "{check}");
    db.put(&table, "last", "last").unwrap().forget();
    db.persist().unwrap();
    db.checkpoint().unwrap();
    let db = reopen(&copy_of(&disk)).unwrap();
    let check = db.check().unwrap();
    assert!(check.is_clean(), "{check}");
    assert_eq!(db.table("table").unwrap().len(), 300);
}

#[test]
fn c2_what_waits_for_a_snapshot_to_settle_is_not_read_again_and_again_meanwhile() {
    let disk = SimulatedDevice::new(seed());
    let (device, reads) = HookedDevice::counting(&disk, |operation, _| operation == Operation::Read);
    let db = manual().settle_log_bytes(64 << 10).open_on(device).unwrap();
    let table = db.table("table").unwrap();
    let snapshot = db.snapshot().unwrap();
    for number in 0..800_u32 {
        db.put(&table, number.to_be_bytes(), [7; 1_000]).unwrap().forget();
        if number % 10 == 0 {
            db.persist().unwrap();
        }
    }
    let before = reads.load(Ordering::SeqCst);
    for number in 0..10_u32 {
        db.put(&table, [b"new", &number.to_be_bytes()[..]].concat(), [8; 100]).unwrap().forget();
        db.persist().unwrap();
    }
    // A put may meet another key of its tag on disk.
    assert!(reads.load(Ordering::SeqCst) < before + 5, "the log was read in vain");
    assert_eq!(db.statistics().settled_rows, 0);
    drop(snapshot);
    db.put(&table, "last", "last").unwrap().forget();
    db.persist().unwrap();
    assert!(db.statistics().settled_rows > 0);
}

#[test]
fn c8_a_tree_that_cannot_be_written_loses_nothing_and_says_so_until_it_is_opened_again() {
    let disk = SimulatedDevice::new(seed());
    let is_failing = Arc::new(AtomicBool::new(false));
    let (faulty, fails) = (disk.clone(), is_failing.clone());
    let hook = move |operation, name: &str| {
        if operation == Operation::Sync && name.starts_with("tree") && fails.swap(false, Ordering::SeqCst) {
            faulty.inject(kiln::device::Fault {
                operation: kiln::device::OperationKind::Sync,
                nth: 1,
                kind: kiln::device::FaultKind::FailedSyncThenSuccess,
                sticky: false,
            });
        }
    };
    let db = manual().open_on(HookedDevice::on(&disk, hook)).unwrap();
    let table = fill(&db, 300);
    assert_eq!(db.settle().unwrap(), 300);
    is_failing.store(true, Ordering::SeqCst);
    for number in 0..100_u32 {
        db.delete(&table, number.to_be_bytes()).unwrap().forget();
        db.put(&table, (1_000 + number).to_be_bytes(), "new").unwrap().safe().unwrap();
        // It stays so: nobody knows what of the file is durable.
        if number % 20 == 0 {
            assert_eq!(db.settle().unwrap_err().kind(), ErrorKind::Io);
        }
    }
    assert_eq!(db.statistics().failure, None);
    for db in [reopen(&disk.after_crash(&mut |_| Keep::Lost)).unwrap(), db] {
        let table = db.table("table").unwrap();
        let snapshot = db.snapshot().unwrap();
        let keys: Vec<_> = snapshot.range::<&[u8]>(&table, ..).map(|row| row.unwrap().0).collect();
        let expected = (100..300_u32).chain(1_000..1_100).map(|number| number.to_be_bytes().to_vec());
        assert!(keys.into_iter().eq(expected));
    }
    let db = reopen(&disk).unwrap();
    db.put(&db.table("table").unwrap(), "last", "last").unwrap().safe().unwrap();
    assert!(db.settle().unwrap() > 0);
    let check = db.check().unwrap();
    assert!(check.is_clean(), "{check}");
}

/// Whoever asked for the number of rows while others settled got a guess.
#[test]
fn c2_rows_are_counted_right_while_they_settle() {
    const ROWS: u64 = 300;
    watched("c2_rows_are_counted_right_while_they_settle", PATIENCE, |_| {
        let disk = SimulatedDevice::new(seed());
        let db = manual().open_on(Arc::new(disk)).unwrap();
        let table = db.table("table").unwrap();
        let write_all = |round: u64| {
            for number in 0..ROWS {
                db.put(&table, number.to_be_bytes(), round.to_be_bytes()).unwrap().forget();
            }
            db.persist().unwrap();
        };
        write_all(0);
        let has_ended = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                for round in 1..30 {
                    write_all(round);
                    assert!(db.settle().unwrap() > 0);
                }
                has_ended.store(true, Ordering::SeqCst);
            });
            while !has_ended.load(Ordering::SeqCst) {
                assert_eq!(table.len(), ROWS);
                // Who counts must not keep the other from settling.
                thread::sleep(Duration::from_millis(1));
            }
        });
        assert_eq!(table.len(), ROWS);
    });
}

/// What the disk had answered was thrown away when anything in the key's bucket had changed meanwhile.
#[test]
fn c2_a_read_from_disk_ends_though_others_change_the_bucket_of_its_key_all_the_time() {
    const READS_MAX: u64 = 3;
    type Change = Box<dyn Fn() + Send>;
    watched("c2_a_read_from_disk_ends", PATIENCE, |_| {
        for settles in [false, true] {
            let (reads, change) = (Arc::new(AtomicU64::new(0)), Arc::new(Mutex::new(None::<Change>)));
            let (seen, changing) = (reads.clone(), change.clone());
            let device = HookedDevice::on(&SimulatedDevice::new(1), move |operation, _| {
                if operation == Operation::Read && changing.lock().unwrap().is_some() {
                    // The test has failed by then, and is to end.
                    if seen.fetch_add(1, Ordering::SeqCst) < 50 {
                        let change = changing.lock().unwrap().take();
                        change.iter().for_each(|change| change());
                        *changing.lock().unwrap() = change;
                    }
                }
            });
            let db = manual().memory(0).open_on(device).unwrap();
            let (table, map) = (db.table("table").unwrap(), db.map("map").unwrap());
            let value = vec![7; 3_000];
            db.put(&table, "big", &value).unwrap().safe().unwrap();
            if settles {
                db.settle().unwrap();
            }
            for number in 0..200_u32 {
                db.put(&map, number.to_be_bytes(), [0; 3_000]).unwrap().safe().unwrap();
            }
            let hot = key_beside(&db, (&table, "big"), &map);
            let snapshot = db.snapshot().unwrap();
            let (writer, written) = (db.clone(), map.clone());
            *change.lock().unwrap() =
                Some(Box::new(move || writer.put(&written, hot, "hot").unwrap().forget()));
            let read_in = |what: &str, read: &dyn Fn() -> Option<Vec<u8>>| {
                reads.store(0, Ordering::SeqCst);
                assert_eq!(read().as_deref(), Some(&value[..]), "{what}");
                let reads = reads.load(Ordering::SeqCst);
                // The cache may have it by the third time.
                let least = u64::from(what == "get");
                assert!((least..=READS_MAX).contains(&reads), "{what}, settled: {settles}: {reads} reads");
            };
            read_in("get", &|| db.get(&table, "big").unwrap());
            read_in("snapshot", &|| snapshot.get(&table, "big").unwrap());
            read_in("transaction", &|| db.begin().unwrap().get(&table, "big").unwrap());
            *change.lock().unwrap() = None;
        }
    });
}
