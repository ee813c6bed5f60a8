//! C2, C3: operations outside of transactions from several threads, beside transactions on the same keys.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use kiln::device::SimulatedDevice;
use kiln::{Isolation, Kiln, Level, Map, Table};

use super::gate::{OpenAtEnd, gated_device};
use crate::support::Random;
use crate::testing::{PATIENCE, background, budget, seed, watched};

const KEYS: usize = 3;
/// Single operations add thousands, transactions ones, so that a reader can tell them apart.
const SINGLE: i64 = 1_000_000;

fn number(value: Option<&[u8]>) -> i64 {
    value.map_or(0, |value| i64::from_le_bytes(value.try_into().unwrap()))
}

fn plus_single(old: Option<&[u8]>) -> [u8; 8] {
    (number(old) + SINGLE).to_le_bytes()
}

/// Adds to a key of one object in one of the ways that are transactions of their own.
fn add_by_itself<O: kiln::Object>(db: &Kiln, object: &O, key: [u8; 1], way: usize) -> u64 {
    let commit = match way {
        0 => db.add(object, key, SINGLE).map(|commit| commit.fast().1),
        1 => db.update(object, key, |old| Some(plus_single(old))).map(|commit| commit.fast().1),
        2 => {
            let into = db.update_into(object, key, |old, new| {
                new.extend_from_slice(&plus_single(old));
                thread::yield_now();
                true
            });
            into.map(|commit| commit.fast().1)
        }
        3 => loop {
            let old = db.get(object, key).unwrap();
            let new = plus_single(old.as_deref());
            let (swapped, receipt) =
                db.compare_and_set(object, key, old.as_deref(), Some(&new)).unwrap().fast();
            if swapped {
                break Ok(receipt);
            }
        },
        4 => db.add_many(object, &[(key, 2 * SINGLE), (key, -SINGLE)]).map(|commit| commit.fast().1),
        _ => {
            let many = db.update_many(object, &[key], |_, old, new| {
                new.extend_from_slice(&plus_single(old));
                true
            });
            many.map(|commit| commit.fast().1)
        }
    };
    commit.unwrap().version().number()
}

/// Adds one to the same key of both objects.
fn add_to_both(db: &Kiln, table: &Table, map: &Map, key: [u8; 1], isolation: Isolation) {
    let commit = db.transact_with(isolation, |tx| {
        tx.add(table, key, 1)?;
        tx.update(map, key, |old| Some((number(old) + 1).to_le_bytes()))
    });
    commit.unwrap().forget();
}

/// The ones in the two objects, which only transactions change, are the same for every reader; and in the end
/// everything that was added is there.
#[test]
fn c2_single_operations_and_transactions_lose_no_update_and_show_no_half() {
    let name = "c2_single_operations_and_transactions_lose_no_update";
    watched(name, 2 * PATIENCE, |_| {
        let db = background()
            .window(Duration::from_millis(1))
            .open_on(Arc::new(SimulatedDevice::new(seed())))
            .unwrap();
        let (table, map) = (db.table("table").unwrap(), db.map("map").unwrap());
        let rounds = budget(3_000) as usize;
        let (singles, ones) = (AtomicU64::new(0), AtomicU64::new(0));
        let over = AtomicBool::new(false);
        thread::scope(|scope| {
            let worker = |id: u64| {
                let mut random = Random::new(seed() + id);
                let mut newest = 0;
                for _ in 0..rounds {
                    let key = [random.below(KEYS) as u8];
                    match random.below(9) {
                        6 => add_to_both(&db, &table, &map, key, Isolation::Serializable),
                        7 => add_to_both(&db, &table, &map, key, Isolation::Snapshot),
                        8 => {
                            drop(db.snapshot().unwrap());
                            continue;
                        }
                        way => {
                            let version = match random.one_in(2) {
                                true => add_by_itself(&db, &table, key, way),
                                false => add_by_itself(&db, &map, key, way),
                            };
                            assert!(version >= newest, "version {version} after {newest}");
                            newest = version;
                            singles.fetch_add(1, Ordering::Relaxed);
                            continue;
                        }
                    }
                    ones.fetch_add(1, Ordering::Relaxed);
                }
            };
            let reader = || {
                let mut seen = 0;
                while !over.load(Ordering::Relaxed) {
                    let sums = db.transact(|tx| {
                        let mut halves = Vec::new();
                        for key in 0..KEYS as u8 {
                            let of_map = number(tx.get(&map, [key])?.as_deref());
                            let of_table = number(tx.get(&table, [key])?.as_deref());
                            // Also in a transaction that will conflict.
                            assert_eq!(of_map % SINGLE, of_table % SINGLE, "half a transaction");
                            halves.push(of_map % SINGLE);
                        }
                        Ok(halves.iter().sum::<i64>())
                    });
                    let sum = sums.unwrap().forget();
                    assert!(sum >= seen, "a reader went back");
                    seen = sum;
                }
            };
            let workers: Vec<_> = (0..3).map(|id| scope.spawn(move || worker(id))).collect();
            let readers = [scope.spawn(reader)];
            workers.into_iter().for_each(|worker| worker.join().unwrap());
            over.store(true, Ordering::Relaxed);
            readers.into_iter().for_each(|reader| reader.join().unwrap());
        });
        let sum = |value: &dyn Fn([u8; 1]) -> Option<Vec<u8>>| {
            (0..KEYS as u8).map(|key| number(value([key]).as_deref())).sum::<i64>()
        };
        let both = sum(&|key| db.get(&table, key).unwrap()) + sum(&|key| db.get(&map, key).unwrap());
        let expected = singles.into_inner() as i64 * SINGLE + ones.into_inner() as i64 * 2;
        assert_eq!(both, expected, "an update was lost");
    });
}

/// One thread takes away what the others add, so that the key comes and goes under them.
#[test]
fn c2_what_is_added_while_a_key_comes_and_goes_is_taken_or_left() {
    let name = "c2_what_is_added_while_a_key_comes_and_goes";
    watched(name, 2 * PATIENCE, |_| {
        let db = background()
            .window(Duration::from_millis(1))
            .open_on(Arc::new(SimulatedDevice::new(seed())))
            .unwrap();
        let table = db.table("table").unwrap();
        let rounds = budget(2_000);
        let adding = AtomicU64::new(2);
        let taken = thread::scope(|scope| {
            for id in 0..2 {
                let (db, table, adding) = (&db, &table, &adding);
                scope.spawn(move || {
                    for round in 0..rounds {
                        add_by_itself(db, table, [0], ((round + id) % 6) as usize);
                    }
                    adding.fetch_sub(1, Ordering::SeqCst);
                });
            }
            let taker = scope.spawn(|| {
                let mut taken = 0;
                while adding.load(Ordering::SeqCst) > 0 {
                    let mut there = 0;
                    db.update::<_, &str>(&table, [0], |old| {
                        there = number(old);
                        None
                    })
                    .unwrap()
                    .forget();
                    taken += there;
                    if there % (7 * SINGLE) == 0 {
                        // Forgets the deletion.
                        db.persist().unwrap();
                    }
                }
                taken
            });
            taker.join().unwrap()
        });
        let left = number(db.get(&table, [0]).unwrap().as_deref());
        assert_eq!(taken + left, 2 * rounds as i64 * SINGLE);
        let report = db.check().unwrap();
        assert!(report.problems.is_empty(), "{report}");
    });
}

/// While the disk stands still, single operations and batches commit and are visible, and an update whose closure takes long
/// holds nobody up.
#[test]
fn c3_single_operations_wait_for_no_device_and_slow_closures_hold_nobody_up() {
    watched("c3_single_operations_wait_for_no_device", 2 * PATIENCE, |_| {
        let disk = SimulatedDevice::new(seed());
        let (device, gate) = gated_device(&disk);
        let db = background().window(Duration::from_secs(3_600)).open_on(device).unwrap();
        let (table, map) = (db.table("table").unwrap(), db.map("map").unwrap());
        db.persist().unwrap();
        let _open_at_end = OpenAtEnd(gate.clone());
        gate.shut();
        thread::scope(|scope| {
            let stuck = scope.spawn(|| db.put(&map, "stuck", "value").unwrap().safe());
            gate.wait_until_stuck();
            let mut looks = 0;
            let slow = db.update(&table, "slow", |old| {
                looks += 1;
                // The disk is stuck, this closure is at work, and still everybody else gets through, on the same key, too.
                let busy = scope.spawn(|| {
                    let (_, receipt) = db.put_many(&table, &[("a", "1"), ("b", "2")]).unwrap().fast();
                    let sum = db.add(&map, "n", 1).unwrap().forget();
                    assert_eq!(db.get_with(&map, "n", number).unwrap(), sum);
                    receipt
                });
                let receipt = busy.join().unwrap();
                assert_eq!(receipt.poll(Level::LOCAL), kiln::Progress::Pending);
                if looks == 1 {
                    db.put(&table, "slow", "from outside").unwrap().forget();
                }
                Some([old.unwrap_or(b"nothing"), b" and more"].concat())
            });
            let (_, receipt) = slow.unwrap().fast();
            assert_eq!((looks, receipt.poll(Level::LOCAL)), (2, kiln::Progress::Pending));
            let value = db.get_with(&table, "slow", |value| value.map(<[u8]>::to_vec)).unwrap();
            assert_eq!(value.as_deref(), Some(&b"from outside and more"[..]));
            gate.open();
            stuck.join().unwrap().unwrap();
            receipt.wait(Level::LOCAL).unwrap();
        });
    });
}
