//! C1, C2: what concurrent transactions may see of each other.
//!
//! The tests on one thread build the well-known anomalies step by step; those with threads let them happen. What is
//! asserted inside a transaction must hold even if the transaction fails to commit later: that is opacity.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use kiln::device::SimulatedDevice;
use kiln::{Error, ErrorKind, Isolation, Kiln, Map, Object, Result, Table, Transaction};

use crate::crash::reopen;
use crate::support::Random;
use crate::testing::{PATIENCE, background, seed, watched};

const ACCOUNTS: u8 = 24;
const BALANCE: i64 = 100;

fn memory_database() -> Kiln {
    background().window(Duration::from_millis(2)).open_on(Arc::new(SimulatedDevice::new(seed()))).unwrap()
}

fn manual_database() -> Kiln {
    reopen(&SimulatedDevice::new(seed())).unwrap()
}

fn number(value: Option<Vec<u8>>) -> i64 {
    value.map_or(0, |value| i64::from_le_bytes(value[..8].try_into().unwrap()))
}

/// Half of the accounts are in the table, the others in the map.
fn found(db: &Kiln) -> (Table, Map) {
    let (table, map) = (db.table("table").unwrap(), db.map("map").unwrap());
    for account in 0..ACCOUNTS {
        db.put(&table, [account], BALANCE.to_le_bytes()).unwrap().forget();
        db.put(&map, [account], BALANCE.to_le_bytes()).unwrap().forget();
    }
    (table, map)
}

fn total(tx: &Transaction<'_>, table: &Table, map: &Map, reverse: bool) -> Result<i64> {
    let range = tx.range::<&[u8]>(table, ..);
    let range = if reverse { range.reverse() } else { range };
    let mut sum = 0;
    for row in range {
        sum += number(Some(row?.1));
    }
    let accounts: Vec<[u8; 1]> = (0..ACCOUNTS).map(|account| [account]).collect();
    if reverse {
        for account in accounts {
            sum += number(tx.get(map, account)?);
        }
    } else {
        sum += tx.multi_get(map, &accounts)?.into_iter().map(number).sum::<i64>();
    }
    Ok(sum)
}

#[test]
fn c1_several_keys_are_read_in_their_order_with_the_own_writes() {
    let db = manual_database();
    let map = db.map("map").unwrap();
    let keys: Vec<[u8; 1]> = (0..100).map(|key| [key]).collect();
    for key in keys.iter().step_by(2) {
        db.put(&map, key, key).unwrap().forget();
    }
    db.transact(|tx| {
        tx.put(&map, keys[99], [7])?;
        tx.delete(&map, keys[0])?;
        tx.prefetch(&map, &keys);
        let values = tx.multi_get(&map, &keys)?;
        assert_eq!((&values[0], &values[99]), (&None, &Some(vec![7])));
        for (at, value) in values.iter().enumerate().take(99).skip(1) {
            assert_eq!(value, &(at % 2 == 0).then(|| vec![at as u8]));
        }
        tx.multi_get::<_, &[u8]>(&map, &[]).map(|none| assert!(none.is_empty()))
    })
    .unwrap()
    .forget();
}

/// Moves money between any two accounts; now and then a row disappears and comes back elsewhere, so that ranges meet
/// insertions and deletions.
fn move_money(db: &Kiln, table: &Table, map: &Map, random: &mut Random) {
    let (from, to) = (random.below(ACCOUNTS.into()) as u8, random.below(ACCOUNTS.into()) as u8);
    let (amount, across, relocate) = (random.below(20) as i64, random.one_in(2), random.one_in(3));
    let moved = db.transact(|tx| {
        if across {
            tx.add(map, [from], -amount)?;
            tx.add(table, [to], amount)?;
        } else if from != to {
            let balance = number(tx.get(table, [from])?);
            if relocate {
                tx.delete(table, [from])?;
                tx.add(table, [to], balance)?;
            } else {
                tx.add(table, [from], -amount)?;
                tx.add(table, [to], amount)?;
            }
        }
        Ok(())
    });
    moved.unwrap().forget();
}

#[test]
fn c2_sums_are_constant_inside_every_transaction_even_one_that_aborts() {
    const ENOUGH: u64 = 100;
    watched("c2_sums_are_constant", 2 * PATIENCE, |_| {
        let db = memory_database();
        let (table, map) = found(&db);
        let expected = i64::from(ACCOUNTS) * BALANCE * 2;
        let (checked, committed) = (AtomicU64::new(0), AtomicU64::new(0));
        let writing = AtomicU64::new(2);
        thread::scope(|scope| {
            for thread in 0..2 {
                let (db, table, map, writing, checked) = (&db, &table, &map, &writing, &checked);
                scope.spawn(move || {
                    let mut random = Random::new(seed() + thread);
                    let mut moves = 0;
                    // The readers of a busy machine may not have run at all by the last of the moves.
                    while moves < 6_000 || checked.load(Ordering::SeqCst) < ENOUGH {
                        move_money(db, table, map, &mut random);
                        moves += 1;
                    }
                    writing.fetch_sub(1, Ordering::SeqCst);
                });
            }
            for thread in 0..2 {
                let (db, table, map, writing) = (&db, &table, &map, &writing);
                let (checked, committed) = (&checked, &committed);
                scope.spawn(move || {
                    let mut random = Random::new(seed() ^ thread);
                    while writing.load(Ordering::SeqCst) > 0 {
                        let reverse = random.one_in(2);
                        let write = random.one_in(2);
                        // One attempt, not repeated: what it sees must be consistent whether or not it commits.
                        let tx = db.begin().unwrap();
                        let Ok(sum) = total(&tx, table, map, reverse) else { continue };
                        assert_eq!(sum, expected, "a transaction saw money that is not there");
                        checked.fetch_add(1, Ordering::SeqCst);
                        if write && tx.put(map, "seen", sum.to_le_bytes()).is_err() {
                            continue;
                        }
                        committed.fetch_add(
                            u64::from(tx.commit().map(|commit| commit.forget()).is_ok()),
                            Ordering::SeqCst,
                        );
                    }
                });
            }
        });
        let sum = db.transact(|tx| total(tx, &table, &map, false)).unwrap().forget();
        assert_eq!(sum, expected);
        assert!(checked.into_inner() >= ENOUGH);
    });
}

#[test]
fn c2_no_update_is_ever_lost() {
    watched("c2_no_update_is_ever_lost", 2 * PATIENCE, |_| {
        for isolation in [Isolation::Serializable, Isolation::Snapshot] {
            let db = memory_database();
            let (table, map) = (db.table("table").unwrap(), db.map("map").unwrap());
            thread::scope(|scope| {
                for _ in 0..3 {
                    scope.spawn(|| {
                        for round in 0..1_500_u32 {
                            let key = [(round % 3) as u8];
                            db.transact_with(isolation, |tx| {
                                let read = number(tx.get(&map, key)?);
                                tx.put(&map, key, (read + 1).to_le_bytes())?;
                                tx.add(&table, key, 1)
                            })
                            .unwrap()
                            .forget();
                        }
                    });
                }
            });
            for key in 0..3_u8 {
                assert_eq!(number(db.get(&map, [key]).unwrap()), 1_500, "{isolation:?}");
                assert_eq!(number(db.get(&table, [key]).unwrap()), 1_500, "{isolation:?}");
            }
        }
    });
}

/// Two transactions each count the rows of a range and insert one if there are fewer than a limit. Were phantoms
/// possible, both would insert the last one.
#[test]
fn c2_no_phantoms_between_threads() {
    watched("c2_no_phantoms_between_threads", 2 * PATIENCE, |_| {
        let db = memory_database();
        let table = db.table("table").unwrap();
        for round in 0..400_u32 {
            let prefix = round.to_be_bytes();
            let inserted = AtomicU64::new(0);
            thread::scope(|scope| {
                for thread in 0..2_u8 {
                    let (db, table, inserted) = (&db, &table, &inserted);
                    scope.spawn(move || {
                        let won = db.transact(|tx| {
                            let rows = tx.prefix(table, prefix).count();
                            if rows == 0 {
                                tx.put(table, [prefix.as_slice(), &[thread]].concat(), "row")?;
                            }
                            Ok(rows == 0)
                        });
                        inserted.fetch_add(u64::from(won.unwrap().forget()), Ordering::SeqCst);
                    });
                }
            });
            assert_eq!(inserted.into_inner(), 1, "round {round}: both saw an empty range");
        }
        assert_eq!(table.len(), 400);
    });
}

#[test]
fn c2_no_phantoms_step_by_step() {
    let db = manual_database();
    let table = db.table("table").unwrap();
    for (round, reverse) in [false, true].into_iter().enumerate() {
        let key = |number: u8| [round as u8, number];
        let (one, other) = (db.begin().unwrap(), db.begin().unwrap());
        for tx in [&one, &other] {
            let range = tx.prefix(&table, [round as u8]);
            assert_eq!(if reverse { range.reverse().count() } else { range.count() }, 0);
        }
        one.put(&table, key(1), "one").unwrap();
        other.put(&table, key(200), "other").unwrap();
        one.commit().unwrap().forget();
        assert!(other.commit().unwrap_err().is_conflict(), "both counted nothing and inserted");
        // A deletion is a phantom, too.
        let (one, other) = (db.begin().unwrap(), db.begin().unwrap());
        assert_eq!(one.prefix(&table, [round as u8]).count(), 1);
        other.delete(&table, key(1)).unwrap();
        one.put(&table, key(2), "one").unwrap();
        other.commit().unwrap().forget();
        assert!(one.commit().unwrap_err().is_conflict(), "a row that was counted is gone");
    }
}

/// What a range has not reached is not read: an insertion behind its limit is no conflict with it, if it is in
/// another leaf.
#[test]
fn c2_a_limited_range_conflicts_only_with_what_it_has_passed() {
    let db = manual_database();
    let table = db.table("table").unwrap();
    for key in 0..2_000_u32 {
        db.put(&table, key.to_be_bytes(), "row").unwrap().forget();
    }
    let tx = db.begin().unwrap();
    assert_eq!(tx.range::<&[u8]>(&table, ..).limit(5).count(), 5);
    db.put(&table, 1_999_u32.to_be_bytes().map(|byte| byte.wrapping_add(1)), "far away").unwrap().forget();
    tx.put(&table, "own", "write").unwrap();
    tx.commit().unwrap().forget();
    let tx = db.begin().unwrap();
    assert_eq!(tx.range::<&[u8]>(&table, ..).limit(5).count(), 5);
    db.put(&table, [0, 0, 0, 2, 9], "among the first five").unwrap().forget();
    tx.put(&table, "own", "write").unwrap();
    assert!(tx.commit().unwrap_err().is_conflict());
}

/// Two doctors may only go off call while another is on call.
fn go_off_call(tx: &Transaction<'_>, table: &Table, who: &str) -> Result<()> {
    if tx.range::<&[u8]>(table, ..).count() > 1 {
        tx.delete(table, who)?;
    }
    Ok(())
}

#[test]
fn c2_write_skew_is_prevented_when_serializable_and_possible_in_snapshots() {
    for isolation in [Isolation::Serializable, Isolation::Snapshot] {
        let db = manual_database();
        let table = db.table("on call").unwrap();
        for who in ["ada", "bob"] {
            db.put(&table, who, "on call").unwrap().forget();
        }
        let (ada, bob) = (db.begin_with(isolation).unwrap(), db.begin_with(isolation).unwrap());
        go_off_call(&ada, &table, "ada").unwrap();
        go_off_call(&bob, &table, "bob").unwrap();
        ada.commit().unwrap().forget();
        let skewed = bob.commit().map(|commit| commit.forget());
        match isolation {
            Isolation::Serializable => assert!(skewed.unwrap_err().is_conflict()),
            Isolation::Snapshot => skewed.unwrap(),
        }
        assert_eq!(table.len(), u64::from(isolation == Isolation::Serializable), "{isolation:?}");
    }
}

#[test]
fn c2_write_skew_never_happens_between_serializable_threads() {
    watched("c2_write_skew_never_happens", 2 * PATIENCE, |_| {
        let db = memory_database();
        let map = db.map("map").unwrap();
        for round in 0..500 {
            for who in [0_u8, 1] {
                db.put(&map, [who], 1_i64.to_le_bytes()).unwrap().forget();
            }
            thread::scope(|scope| {
                for who in [0_u8, 1] {
                    let (db, map) = (&db, &map);
                    scope.spawn(move || {
                        db.transact(|tx| {
                            let on_call = number(tx.get(map, [0])?) + number(tx.get(map, [1])?);
                            if on_call > 1 {
                                tx.put(map, [who], 0_i64.to_le_bytes())?;
                            }
                            Ok(())
                        })
                        .unwrap()
                        .forget();
                    });
                }
            });
            let left = number(db.get(&map, [0]).unwrap()) + number(db.get(&map, [1]).unwrap());
            assert_eq!(left, 1, "round {round}");
        }
    });
}

#[test]
fn c2_the_first_committer_wins_and_reads_of_a_snapshot_never_conflict() {
    let db = manual_database();
    let (table, map) = found(&db);
    let (first, second) =
        (db.begin_with(Isolation::Snapshot).unwrap(), db.begin_with(Isolation::Snapshot).unwrap());
    first.put(&map, [0], 5_i64.to_le_bytes()).unwrap();
    second.put(&map, [0], 7_i64.to_le_bytes()).unwrap();
    first.commit().unwrap().forget();
    db.persist().unwrap();
    // Its own write, 7, is in the place of one balance; the other transaction's is not seen.
    assert_eq!(total(&second, &table, &map, false).unwrap(), i64::from(ACCOUNTS) * BALANCE * 2 - BALANCE + 7);
    assert!(second.commit().unwrap_err().is_conflict());
}

#[test]
fn c1_a_transaction_over_all_objects_becomes_visible_at_once() {
    watched("c1_a_transaction_over_all_objects", 2 * PATIENCE, |_| {
        let db = memory_database();
        let tables: Vec<Table> = (0..3).map(|number| db.table(&format!("table {number}")).unwrap()).collect();
        let map = db.map("map").unwrap();
        let done = AtomicBool::new(false);
        thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    let mut last = 0;
                    while !done.load(Ordering::SeqCst) {
                        let all = db.transact(|tx| {
                            let mut all = BTreeMap::new();
                            for table in &tables {
                                all.entry(number(tx.get(table, "key")?)).or_insert(0);
                            }
                            all.entry(number(tx.get(&map, "key")?)).or_insert(0);
                            Ok(all)
                        });
                        let all = all.unwrap().forget();
                        assert_eq!(all.len(), 1, "half of a transaction was visible: {all:?}");
                        let (&now, _) = all.first_key_value().unwrap();
                        assert!(now >= last, "time went back from {last} to {now}");
                        last = now;
                    }
                });
            }
            for round in 1..4_000_i64 {
                let write = db.transact(|tx| {
                    tables.iter().try_for_each(|table| tx.put(table, "key", round.to_le_bytes()))?;
                    tx.put(&map, "key", round.to_le_bytes())
                });
                write.unwrap().forget();
            }
            done.store(true, Ordering::SeqCst);
        });
    });
}

#[test]
fn c1_a_transaction_that_fails_or_is_dropped_leaves_nothing() {
    let db = manual_database();
    let (table, map) = found(&db);
    let before = db.version();
    let failed: Result<_> = db.transact(|tx| {
        tx.put(&table, "new", "row")?;
        tx.delete(&map, [1])?;
        Err::<(), _>(tx.put(&table, vec![0; 1 << 20], "too long a key").unwrap_err())
    });
    assert!(failed.is_err());
    let dropped = db.begin().unwrap();
    dropped.put(&table, "new", "row").unwrap();
    drop(dropped);
    let panicked = thread::scope(|scope| {
        let panicking = scope.spawn(|| {
            let _ = db.transact(|tx| {
                tx.put(&table, "new", "row")?;
                if tx.contains(&table, "new")? {
                    std::panic::resume_unwind(Box::new("on purpose"));
                }
                Ok(())
            });
        });
        panicking.join().is_err()
    });
    assert!(panicked);
    assert_eq!((table.len(), map.len()), (ACCOUNTS.into(), ACCOUNTS.into()));
    assert_eq!(db.get(&table, "new").unwrap(), None);
    assert_eq!(db.version(), before);
    db.put(&table, "new", "row").unwrap().safe().unwrap();
}

#[test]
fn c2_a_watched_key_that_changes_fails_the_transaction() {
    let db = manual_database();
    let map = db.map("map").unwrap();
    db.put(&map, "key", "old").unwrap().forget();
    let watch = db.watch(&map, "key").unwrap();
    let tx = db.begin().unwrap();
    assert!(tx.require(&watch).unwrap());
    tx.put(&map, "other", "value").unwrap();
    tx.commit().unwrap().forget();
    // It changes between the requirement and the commit.
    let watch = db.watch(&map, "key").unwrap();
    let tx = db.begin().unwrap();
    assert!(tx.require(&watch).unwrap());
    tx.put(&map, "other", "value").unwrap();
    db.put(&map, "key", "new").unwrap().forget();
    assert!(tx.commit().unwrap_err().is_conflict());
    // It has changed, even back to the same value, before the requirement; a key that is absent is watched, too.
    for key in ["key", "absent"] {
        let watch = db.watch(&map, key).unwrap();
        let value = db.get(&map, key).unwrap();
        db.put(&map, key, "between").unwrap().forget();
        match value {
            Some(value) => db.put(&map, key, value).unwrap().forget(),
            None => drop(db.delete(&map, key).unwrap().forget()),
        }
        db.persist().unwrap();
        assert!(!db.begin().unwrap().require(&watch).unwrap(), "{key:?} changed and changed back unnoticed");
    }
}

/// What was read before and what is watched were never true together.
#[test]
fn c2_a_transaction_that_only_reads_commits_only_if_what_it_watches_held_with_its_reads() {
    let db = manual_database();
    let map = db.map("map").unwrap();
    let put_both = |value: &str| {
        let both = |tx: &kiln::Transaction<'_>| {
            tx.put(&map, "read", value)?;
            tx.put(&map, "watched", value)
        };
        db.transact(both).unwrap().forget();
    };
    put_both("old");
    let tx = db.begin().unwrap();
    assert_eq!(tx.get(&map, "read").unwrap().as_deref(), Some(&b"old"[..]));
    put_both("new");
    let holds = tx.require(&db.watch(&map, "watched").unwrap());
    assert!(holds.and_then(|_| tx.commit()).unwrap_err().is_conflict());
    // As long as nothing changes it commits.
    let tx = db.begin().unwrap();
    tx.get(&map, "read").unwrap();
    assert!(tx.require(&db.watch(&map, "watched").unwrap()).unwrap());
    tx.commit().unwrap().forget();
}

#[test]
fn c2_conflicting_transactions_are_run_again_until_they_commit() {
    let db = manual_database();
    let map = db.map("map").unwrap();
    let mut runs = 0;
    let commit = db.transact(|tx| {
        runs += 1;
        let read = number(tx.get(&map, "key")?);
        if runs <= 3 {
            db.put(&map, "key", i64::from(runs).to_le_bytes())?.forget();
        }
        tx.put(&map, "key", (read + 10).to_le_bytes())
    });
    commit.unwrap().forget();
    assert_eq!((runs, number(db.get(&map, "key").unwrap())), (4, 13));
}

/// Nobody else is there, so there is nobody to conflict with: not when a leaf of the index is full and splits under
/// the transaction's own insertions, not when it becomes empty.
#[test]
fn c2_a_transaction_alone_never_conflicts_with_itself() {
    let orders: [fn(u32) -> u32; 3] = [|n| n, |n| u32::MAX - n, |n| n.wrapping_mul(0x9E37_79B1)];
    for (order, key) in orders.into_iter().enumerate() {
        for per_transaction in [1, 3, 40] {
            let db = manual_database();
            let table = db.table("table").unwrap();
            for first in (0..2_000).step_by(per_transaction) {
                let mut runs = 0;
                let write = db.transact(|tx| {
                    runs += 1;
                    assert!(
                        runs < 10,
                        "order {order}, {per_transaction} at once: conflicts with nobody at {first}"
                    );
                    let rows = tx.range::<&[u8]>(&table, ..).reverse().limit(3).count()
                        + tx.range(&table, key(first as u32).to_be_bytes()..).limit(2).count();
                    assert!(rows > 0 || first == 0);
                    for number in first..first + per_transaction {
                        tx.put(&table, key(number as u32).to_be_bytes(), "row")?;
                    }
                    Ok(())
                });
                write.unwrap().forget();
            }
        }
    }
}

/// Whoever does not look at an operation's error, as somebody who flattens a range, has seen a conflict all the same: it used to end the whole
/// with `Aborted`, which nobody can do anything about.
#[test]
fn c2_a_transaction_whose_closure_swallows_a_conflict_runs_again() {
    let db = manual_database();
    let (map, table) = (db.map("map").unwrap(), db.table("table").unwrap());
    let swallow: [&dyn Fn(&Transaction<'_>); 2] =
        [&|tx| _ = tx.get(&map, "b"), &|tx| _ = tx.range::<&str>(&table, ..).flatten().count()];
    for swallow in swallow {
        for fails in [false, true] {
            let mut runs = 0;
            let ran = db.transact(|tx| {
                runs += 1;
                tx.get(&map, "a")?;
                if runs == 1 {
                    db.put(&map, "a", "changed")?.forget();
                    db.put(&map, "b", "changed")?.forget();
                    db.put(&table, "row", "changed")?.forget();
                }
                swallow(tx);
                match fails && runs == 1 {
                    true => Err(Error::caller("what it makes of a conflict")),
                    false => Ok(()),
                }
            });
            ran.unwrap().forget();
            assert_eq!(runs, 2, "fails: {fails}");
        }
    }
    // An error of its own is its own, and what ends a transaction for another reason ends it.
    let mut runs = 0;
    let failed = db.transact(|tx| {
        runs += 1;
        tx.get(&map, vec![0; 1 << 20]).map(drop)
    });
    assert_eq!((failed.unwrap_err().kind(), runs), (ErrorKind::Input, 1));
}

/// It was `Aborted`, as of a database that is closed, which nobody need begin again for.
#[test]
fn c2_a_transaction_by_hand_that_swallows_a_conflict_ends_with_it() {
    let db = manual_database();
    let (map, table) = (db.map("map").unwrap(), db.table("table").unwrap());
    let swallow: [&dyn Fn(&Transaction<'_>); 2] =
        [&|tx| _ = tx.get(&map, "b"), &|tx| _ = tx.range::<&str>(&table, ..).flatten().count()];
    for swallow in swallow {
        let tx = db.begin().unwrap();
        tx.get(&map, "a").unwrap();
        db.put(&map, "a", "changed").unwrap().forget();
        db.put(&map, "b", "changed").unwrap().forget();
        db.put(&table, "row", "changed").unwrap().forget();
        swallow(&tx);
        assert_eq!(tx.put(&map, "c", "1").unwrap_err().kind(), ErrorKind::Aborted);
        assert!(tx.commit().unwrap_err().is_conflict());
    }
    let tx = db.begin().unwrap();
    tx.put(&map, "c", "1").unwrap();
    db.close().unwrap();
    assert_eq!(tx.commit().unwrap_err().kind(), ErrorKind::Aborted);
}
