//! Space: data larger than memory, a log whose beginning is dropped, and keys that are gone without a trace.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use kiln::device::{Device as _, Fault, FaultKind, Keep, OperationKind, SimulatedDevice};
use kiln::{ErrorKind, Kiln, Level, Object, Progress, Result, Table, Version};

use super::hooked::{HookedDevice, Operation};
use crate::crash::reopen;
use crate::support::{Random, manual};
use crate::testing::{PATIENCE, background, eventually, seed, watched};

#[test]
fn c1_data_much_larger_than_memory_reads_back_while_it_is_updated() {
    watched("c1_data_much_larger_than_memory", 3 * PATIENCE, |_| {
        let disk = SimulatedDevice::new(seed());
        let db = manual().open_on(Arc::new(disk.clone())).unwrap();
        let (table, map) = (db.table("table").unwrap(), db.map("map").unwrap());
        let mut random = Random::new(seed());
        // Four megabytes of values against 128 KiB of memory.
        let mut values: Vec<Vec<u8>> = (0..1_000).map(|_| random.bytes(2_000)).collect();
        let put = |number: usize, value: &[u8]| {
            let key = (number as u32).to_be_bytes();
            db.transact(|tx| tx.put(&table, key, value).and_then(|()| tx.put(&map, key, value)))
                .unwrap()
                .forget();
        };
        values.iter().enumerate().for_each(|(number, value)| put(number, value));
        for round in 0..4 {
            for _ in 0..150 {
                let number = random.below(values.len());
                let length = random.below(3_000);
                values[number] = random.bytes(length);
                put(number, &values[number]);
                let other = random.below(values.len());
                let key = (other as u32).to_be_bytes();
                assert!(db.get(&table, key).unwrap().unwrap() == values[other]);
                assert!(db.get(&map, key).unwrap().unwrap() == values[other]);
            }
            let rows = db.transact(|tx| {
                let range = tx.range::<&[u8]>(&table, ..);
                let range = if round % 2 == 0 { range } else { range.reverse() };
                range.map(|row| Ok(row?.1)).collect::<Result<Vec<_>>>()
            });
            let mut rows = rows.unwrap().forget();
            if round % 2 == 1 {
                rows.reverse();
            }
            assert!(rows == values, "round {round}: a range over what is on disk");
        }
        let statistics = db.statistics();
        assert_eq!(statistics.ring_bytes, 128 << 10);
        assert!(statistics.disk_bytes > 4 << 20);
        drop((table, map, db));
        let db = reopen(&disk).unwrap();
        let table = db.table("table").unwrap();
        let snapshot = db.snapshot().unwrap();
        let found = snapshot.range::<&[u8]>(&table, ..).map(|row| Ok(row?.1)).collect::<Result<Vec<_>>>();
        assert!(found.unwrap() == values, "after reopening");
    });
}

#[test]
fn c1_data_larger_than_memory_under_concurrent_readers_and_writers() {
    watched("c1_data_larger_than_memory_under_concurrent", 3 * PATIENCE, |_| {
        let options = background().window(Duration::from_millis(2)).segment_bytes(64 << 10).memory(256 << 10);
        let db = options.open_on(Arc::new(SimulatedDevice::new(seed()))).unwrap();
        let map = db.map("map").unwrap();
        // A value says whose it is, so that a mixture of two would show.
        let value = |key: u32, round: u32| {
            let length = 500 + (round * 37 % 1_500) as usize;
            [&key.to_le_bytes()[..], &round.to_le_bytes(), &vec![(key ^ round) as u8; length]].concat()
        };
        let check = |key: u32, found: &[u8]| {
            let round = u32::from_le_bytes(found[4..8].try_into().unwrap());
            assert!(found == value(key, round), "key {key}: a torn value");
        };
        (0..600_u32).for_each(|key| db.put(&map, key.to_le_bytes(), value(key, 0)).unwrap().forget());
        thread::scope(|scope| {
            for thread in 0..3 {
                let (db, map) = (&db, &map);
                scope.spawn(move || {
                    let mut random = Random::new(seed() + thread);
                    for round in 0..1_500 {
                        let key = random.below(600) as u32;
                        check(key, &db.get(map, key.to_le_bytes()).unwrap().unwrap());
                        if random.one_in(2) {
                            db.put(map, key.to_le_bytes(), value(key, round)).unwrap().forget();
                        }
                    }
                });
            }
        });
        let snapshot = db.snapshot().unwrap();
        assert_eq!(snapshot.iter(&map).filter(Result::is_ok).count(), 600);
    });
}

/// Overwrites the same few keys many times. `harden` is called now and then.
fn overwrite(db: &Kiln, rounds: u32, harden: impl Fn(u32)) {
    let (table, map) = (db.table("table").unwrap(), db.map("map").unwrap());
    for round in 0..rounds {
        let key = (round % 20).to_be_bytes();
        db.put(&table, key, vec![round as u8; 1_000 + (round % 7) as usize * 8]).unwrap().forget();
        db.put(&map, key, vec![round as u8; 1_000 + (round % 7) as usize * 8]).unwrap().forget();
        harden(round);
    }
}

#[test]
fn c4_overwriting_a_few_keys_for_long_keeps_the_disk_small() {
    watched("c4_overwriting_a_few_keys", 3 * PATIENCE, |_| {
        let disk = SimulatedDevice::new(seed());
        let db = reopen(&disk).unwrap();
        // About 12 MiB of log in all, for 40 KiB of data. Without background threads, persist() sweeps.
        overwrite(&db, 6_000, |round| {
            if round % 16 == 0 {
                db.persist().unwrap();
                let used = disk.used_bytes();
                assert!(used <= 2 << 20, "round {round}: {used} bytes on disk for 40 KiB of data");
            }
        });
        let statistics = db.statistics();
        assert!(statistics.log_begin > 4 << 20, "the log's beginning was never dropped: {statistics:?}");
        assert!(statistics.disk_bytes <= disk.used_bytes());
        let report = db.check().unwrap();
        assert!(report.problems.is_empty(), "{report}");
        disk.crash_after(disk.steps());
        let db = reopen(&disk.after_crash(&mut |_| Keep::Lost)).unwrap();
        let (table, map) = (db.table("table").unwrap(), db.map("map").unwrap());
        assert_eq!((table.len(), map.len()), (20, 20));
        for key in 0..20_u32 {
            assert_eq!(db.get(&table, key.to_be_bytes()).unwrap(), db.get(&map, key.to_be_bytes()).unwrap());
        }
    });
}

/// Looking through dead segments took the keeper so long that the log grew faster, and closing waited for it.
#[test]
fn c4_dead_segments_are_dropped_without_being_read() {
    let disk = SimulatedDevice::new(seed());
    // With memory for all that is live, so that the writes themselves need not read.
    let db = manual().memory(1 << 20).open_on(Arc::new(disk.clone())).unwrap();
    let no_time = FaultKind::Delay(Duration::ZERO);
    disk.inject(Fault { operation: OperationKind::Read, nth: 1, kind: no_time, sticky: true });
    overwrite(&db, 4_000, |round| {
        if round % 16 == 0 {
            db.persist().unwrap();
        }
    });
    let (begin, reads) = (db.statistics().log_begin, disk.faults_fired());
    assert!(begin > 4 << 20, "the log's beginning was dropped to {begin} only, so this tests nothing");
    // The few segments that hold the catalog are read, which has to be written anew.
    assert!(reads < 400, "{reads} reads to drop {begin} bytes of 8,000 records");
}

#[test]
fn c4_the_background_threads_keep_the_disk_small_too() {
    watched("c4_the_background_threads_keep", 3 * PATIENCE, |_| {
        let disk = SimulatedDevice::new(seed());
        let options = background().segment_bytes(64 << 10).memory(256 << 10).window(Duration::from_millis(2));
        let db = options.open_on(Arc::new(disk.clone())).unwrap();
        overwrite(&db, 6_000, |_| {});
        // The log goes on while the sweep catches up.
        eventually("a small disk", || {
            overwrite(&db, 20, |_| {});
            disk.used_bytes() <= 2 << 20
        });
    });
}

#[test]
fn c4_ever_new_keys_that_are_deleted_leave_nothing_behind() {
    watched("c4_ever_new_keys_that_are_deleted", 3 * PATIENCE, |_| {
        let disk = SimulatedDevice::new(seed());
        let db = reopen(&disk).unwrap();
        let (table, map) = (db.table("table").unwrap(), db.map("map").unwrap());
        let mut after_warming_up = None;
        for round in 0..60_u32 {
            for number in 0..200_u32 {
                // Long enough for a block of its own in the index.
                let key = format!("a key that comes and goes {:08}", round * 200 + number);
                let deleted =
                    format!("a key that comes and goes {:08}", (round * 200 + number).wrapping_sub(300));
                db.transact(|tx| {
                    tx.put(&table, &key, "value")?;
                    tx.put(&map, &key, "value")?;
                    tx.delete(&table, &deleted)?;
                    tx.delete(&map, &deleted)
                })
                .unwrap()
                .forget();
            }
            db.persist().unwrap();
            db.persist().unwrap();
            if round >= 2 {
                assert_eq!((table.len(), map.len()), (300, 300), "round {round}");
            }
            let statistics = db.statistics();
            let memory = (statistics.ordered_index_bytes, statistics.hash_index_bytes);
            let (ordered, hash) = *after_warming_up.get_or_insert(memory);
            if round < 10 {
                after_warming_up = Some(memory);
            } else {
                assert!(
                    memory.0 <= ordered * 2,
                    "round {round}: the ordered index grew from {ordered} to {}",
                    memory.0
                );
                assert!(
                    memory.1 <= hash * 2,
                    "round {round}: the hash index grew from {hash} to {}",
                    memory.1
                );
                assert!(disk.used_bytes() <= 3 << 20, "round {round}: {} bytes on disk", disk.used_bytes());
            }
        }
        let snapshot = db.snapshot().unwrap();
        assert_eq!(snapshot.range::<&[u8]>(&table, ..).count(), 300);
        assert_eq!(snapshot.iter(&map).count(), 300);
    });
}

#[test]
fn c5_space_freed_by_deletions_serves_new_values_on_a_full_disk() {
    watched("c5_space_freed_by_deletions", 6 * PATIENCE, |_| {
        // What has settled has to leave the tree, and its tombstones the log.
        for (settles, options) in
            [(false, manual()), (true, manual()), (true, background().window(Duration::from_millis(5)))]
        {
            let disk = SimulatedDevice::new(seed());
            let db = options.open_on(Arc::new(disk.clone())).unwrap();
            let table = db.table("table").unwrap();
            let mut number = 0;
            let mut fill = |most: u32| {
                let first = number;
                number += fill(&db, &table, first..first.saturating_add(most)) as u32;
                first..number
            };
            let mut there = vec![];
            if settles {
                there.push(fill(100));
                db.settle().unwrap();
            }
            disk.set_capacity(Some(2 << 20));
            there.push(fill(u32::MAX));
            let mut counts = vec![];
            for _ in 0..4 {
                // What is kept for deletions is enough for some; each makes room for more.
                counts.push(there.iter().map(|range| range.len()).sum::<usize>());
                // Some at a time: each hardening takes a block of that, too.
                for numbers in there.drain(..).flatten().collect::<Vec<_>>().chunks(20) {
                    db.transact(|tx| {
                        numbers
                            .iter()
                            .try_for_each(|number| tx.delete(&table, number.to_be_bytes()).map(drop))
                    })
                    .unwrap()
                    .forget();
                }
                there.push(fill(u32::MAX));
                if settles {
                    // On a full disk it may fail.
                    let _ = db.settle();
                }
            }
            assert!(counts[0] > 100, "{counts:?} values of 8,000 bytes in 2 MiB");
            assert!(
                counts.iter().all(|&count| count >= counts[0] / 2),
                "{counts:?} values fitted where as many had been deleted"
            );
        }
    });
}

/// A database on a disk of `capacity` bytes of which most is its tree's file, which has had 200 values of 8,000 bytes and is all but empty.
fn with_an_emptied_tree(disk: &SimulatedDevice, capacity: u64) -> (Kiln, Table) {
    let db = manual().open_on(Arc::new(disk.clone())).unwrap();
    let table = db.table("table").unwrap();
    assert_eq!(fill(&db, &table, 0..200), 200);
    db.persist().unwrap();
    db.settle().unwrap();
    for number in 0..200_u32 {
        db.delete(&table, number.to_be_bytes()).unwrap().forget();
    }
    db.persist().unwrap();
    db.settle().unwrap();
    let statistics = db.statistics();
    assert!(statistics.tree_used_bytes < 100 << 10 && statistics.tree_bytes > 1 << 20, "{statistics:?}");
    disk.set_capacity(Some(capacity));
    (db, table)
}

/// How many values of 8,000 bytes have room.
fn fill(db: &Kiln, table: &Table, numbers: std::ops::Range<u32>) -> usize {
    let put = |&number: &u32| db.put(table, number.to_be_bytes(), vec![number as u8; 8_000]);
    numbers.take_while(|number| put(number).map(|commit| commit.forget()).is_ok()).count()
}

/// The log cannot have it, but what is in the log can go there.
#[test]
fn c5_what_deletions_have_left_free_in_the_tree_serves_new_values_on_a_full_disk() {
    let disk = SimulatedDevice::new(seed());
    let (db, table) = with_an_emptied_tree(&disk, 2 << 20);
    let count = fill(&db, &table, 200..1_000);
    assert!(count > 180, "{count} values of 8,000 bytes fitted into 2 MiB");
    // As well where the log is longer than that has room for.
    let disk = SimulatedDevice::new(seed());
    let (db, table) = with_an_emptied_tree(&disk, 8 << 20);
    assert_eq!(fill(&db, &table, 200..390), 190);
    db.persist().unwrap();
    disk.set_capacity(Some(1 << 20));
    let count = fill(&db, &table, 390..1_000);
    assert!(count > 60, "{count} more values of 8,000 bytes fitted into 1.7 MiB of the tree's file");
}

/// Nothing more may ever harden then, so that it has to be noticed.
#[test]
fn c5_a_snapshot_that_has_ended_lets_the_tree_have_what_is_in_the_log_of_a_full_disk() {
    let disk = SimulatedDevice::new(seed());
    let (db, table) = with_an_emptied_tree(&disk, 2 << 20);
    assert_eq!(fill(&db, &table, 200..205), 5);
    db.persist().unwrap();
    let snapshot = db.snapshot().unwrap();
    let beside_it = fill(&db, &table, 205..1_000);
    drop(snapshot);
    let afterwards = fill(&db, &table, 1_000..2_000);
    assert!(afterwards > 100, "{beside_it} values fitted beside the snapshot, {afterwards} afterwards");
}

/// Whoever reads rows of the tree keeps all that it had when they began. Nothing more may ever be merged once the disk is full, so that it has to be noticed.
#[test]
fn c5_a_range_that_has_ended_lets_the_tree_have_what_it_has_kept_on_a_full_disk() {
    let disk = SimulatedDevice::new(seed());
    let db = manual().open_on(Arc::new(disk.clone())).unwrap();
    let table = db.table("table").unwrap();
    assert_eq!(fill(&db, &table, 0..201), 201);
    db.persist().unwrap();
    db.settle().unwrap();
    (0..200_u32).for_each(|number| _ = db.delete(&table, number.to_be_bytes()).unwrap().forget());
    db.persist().unwrap();
    let tx = db.begin().unwrap();
    let mut range = tx.range::<&[u8]>(&table, ..);
    assert_eq!(range.next().unwrap().unwrap().0, 200_u32.to_be_bytes());
    db.settle().unwrap();
    let held = db.statistics();
    assert!(held.tree_used_bytes > 1 << 20, "{held:?}");
    // What was deleted is forgotten.
    (0..3).for_each(|_| db.persist().unwrap());
    disk.set_capacity(Some(disk.used_bytes() + (256 << 10)));
    let beside_it = fill(&db, &table, 201..1_000);
    drop(range);
    drop(tx);
    let afterwards = fill(&db, &table, 1_000..2_000);
    assert!(afterwards > 100, "{beside_it} values fitted beside the range, {afterwards} afterwards");
}

/// What has no room at once goes into the tree in parts, as there is some: nothing was deleted that would have to settle with the rest.
#[test]
fn c5_settling_that_has_found_no_room_goes_on_in_parts_once_there_is_some() {
    let disk = SimulatedDevice::new(seed());
    let db = manual().settle_log_bytes(256 << 10).open_on(Arc::new(disk.clone())).unwrap();
    let table = db.table("table").unwrap();
    assert_eq!(fill(&db, &table, 0..1), 1);
    db.persist().unwrap();
    db.settle().unwrap();
    disk.set_capacity(Some(8 << 20));
    let count = fill(&db, &table, 1..2_000);
    assert!(count > 500, "{count} values of 8,000 bytes in 8 MiB");
    assert_eq!(db.settle().unwrap_err().kind(), ErrorKind::NoSpace);
    let before = db.statistics();
    disk.set_capacity(Some(11 << 20));
    assert_eq!(fill(&db, &table, 2_000..2_060), 60);
    // A part each.
    (0..8).for_each(|_| db.persist().unwrap());
    let after = db.statistics();
    assert!(after.rows_settled > before.rows_settled + 100, "{before:?} {after:?}");
}

/// Tombstones may be forgotten there before what they delete has settled.
#[test]
fn c2_c4_what_is_deleted_on_a_full_disk_stays_deleted() {
    watched("c2_c4_what_is_deleted_on_a_full_disk", 6 * PATIENCE, |_| {
        for round in 0..4 {
            let disk = SimulatedDevice::new(seed() + round);
            let mut random = Random::new(seed() + round);
            let db = reopen(&disk).unwrap();
            let table = db.table("table").unwrap();
            let mut rows = BTreeMap::new();
            let assert_rows = |db: &Kiln, rows: &BTreeMap<Vec<u8>, Vec<u8>>, when: &str| {
                let table = db.table("table").unwrap();
                let found = db.transact(|tx| {
                    tx.range::<&[u8]>(&table, ..)
                        .map(|row| row.map(|(key, value)| (key.to_vec(), value.to_vec())))
                        .collect::<Result<BTreeMap<_, _>>>()
                });
                assert!(found.unwrap().forget() == *rows, "round {round}: {when}");
            };
            disk.set_capacity(Some(1 << 20));
            let mut refused = 0;
            for step in 0..1_500 {
                let key = (random.below(400) as u32).to_be_bytes();
                let is_deletion = random.below(5) < 2;
                let value = vec![step as u8; random.below(6_000)];
                let done = match is_deletion {
                    true => {
                        db.delete(&table, key).map(|commit| commit.forget()).map(|_| rows.remove(&key[..]))
                    }
                    false => db
                        .put(&table, key, &value)
                        .map(|commit| commit.forget())
                        .map(|_| rows.insert(key.to_vec(), value)),
                };
                match done {
                    Ok(_) => {}
                    Err(error) if error.kind() == ErrorKind::NoSpace => refused += 1,
                    Err(error) => panic!("{error}"),
                }
                if step % 300 == 150 {
                    // Where there is no room it fails.
                    let _ = db.settle();
                }
                if step % 500 == 499 {
                    assert_rows(&db, &rows, "on the full disk");
                    db.persist().unwrap();
                    let crashed = disk.after_crash(&mut |_| Keep::Lost);
                    crashed.set_capacity(None);
                    let db = reopen(&crashed).unwrap();
                    assert_rows(&db, &rows, "after a crash");
                    db.settle().unwrap();
                    assert_rows(&db, &rows, "settled after a crash");
                    let report = db.check().unwrap();
                    assert!(report.is_clean(), "{report}");
                }
            }
            assert!(refused > 10, "the disk was full {refused} times");
        }
    });
}

#[test]
fn c5_segments_that_a_crash_has_left_before_the_log_are_dropped_when_opening() {
    let disk = SimulatedDevice::new(seed());
    let db = reopen(&disk).unwrap();
    overwrite(&db, 400, |_| db.persist().unwrap());
    assert!(db.statistics().log_begin >= 128 << 10);
    drop(db);
    let before = disk.used_bytes();
    for number in 0..2 {
        disk.set_bytes(&format!("segment-{number:08}"), vec![7; 64 << 10]);
    }
    let db = reopen(&disk).unwrap();
    let names = disk.list().unwrap();
    assert!(!names.contains(&"segment-00000000".to_owned()), "{names:?}");
    assert_eq!(
        db.statistics().disk_bytes / (64 << 10),
        names.iter().filter(|name| name.starts_with('s')).count() as u64 - 1
    );
    assert!(disk.used_bytes() <= before + (128 << 10), "{} bytes, {before} before", disk.used_bytes());
}

/// A full disk looked for what can be dropped only once more of the log had hardened, and on a full disk nothing does.
#[test]
fn c5_a_snapshot_that_ends_makes_room_on_a_full_disk() {
    watched("c5_a_snapshot_that_ends_makes_room", 3 * PATIENCE, |_| {
        for options in [manual(), background().window(Duration::from_millis(5))] {
            let disk = SimulatedDevice::new(seed());
            let db = options.open_on(Arc::new(disk.clone())).unwrap();
            let table = db.table("table").unwrap();
            disk.set_capacity(Some(2 << 20));
            // Each in a version of its own: within one, a record is updated where it is.
            let put = |number: u32| db.put(&table, [number as u8 % 8], vec![number as u8; 8_000])?.safe();
            let fill = || (0..2_000).take_while(|&number| put(number).is_ok()).count();
            db.put(&table, "key", "value").unwrap().forget();
            let snapshot = db.snapshot().unwrap();
            let count = fill();
            assert!((100..1_000).contains(&count), "{count} values of 8,000 bytes in 2 MiB");
            assert_eq!(fill(), 0, "the snapshot holds all of it");
            drop(snapshot);
            let again = fill();
            assert_eq!(again, 2_000, "{again} values fit once nobody needs the old ones");
        }
    });
}

/// What an earlier crash took stays lost, even when the part of the log that tells of the crash is dropped.
#[test]
fn c8_receipts_of_lost_versions_stay_lost_when_the_log_is_truncated() {
    let disk = SimulatedDevice::new(seed());
    let db = reopen(&disk).unwrap();
    overwrite(&db, 20, |_| {});
    db.persist().unwrap();
    let durable = db.horizon(Level::LOCAL);
    let (_, receipt) = db.put(&db.map("map").unwrap(), "lost", "value").unwrap().fast();
    let lost = receipt.version();
    drop(receipt);
    disk.crash_after(disk.steps());
    drop(db);
    let disk = disk.after_crash(&mut |_| Keep::Lost);
    for round in 0..4_u32 {
        let db = reopen(&disk).unwrap();
        let progress = |version: Version| db.receipt(version).poll(Level::LOCAL);
        assert_eq!((progress(durable), progress(lost)), (Progress::Durable, Progress::Lost), "round {round}");
        overwrite(&db, 600, |round| {
            if round % 16 == 0 {
                db.persist().unwrap();
            }
        });
        assert_eq!((progress(durable), progress(lost)), (Progress::Durable, Progress::Lost), "round {round}");
        let begin = db.statistics().log_begin;
        assert!(
            begin > u64::from(round) << 18,
            "the log is truncated from {begin} only, so this tests nothing"
        );
        if round % 2 == 0 {
            db.close().unwrap();
        }
    }
}

/// A database that is closed before an operation.
#[derive(Default)]
struct Closing {
    db: Mutex<Option<Kiln>>,
    is_closed: AtomicBool,
    /// Operations that came later.
    late: AtomicU64,
}

impl Closing {
    fn before_operation(self: &Arc<Self>) {
        if let Some(db) = self.db.lock().unwrap().take() {
            let closing = self.clone();
            thread::spawn(move || {
                db.close().unwrap();
                closing.is_closed.store(true, Ordering::SeqCst);
            });
            // It waits for this operation, or is done soon.
            for _ in 0..100 {
                if !self.is_closed.load(Ordering::SeqCst) {
                    thread::sleep(Duration::from_millis(2));
                }
            }
        }
        self.late.fetch_add(u64::from(self.is_closed.load(Ordering::SeqCst)), Ordering::SeqCst);
    }
}

/// A thread that was preparing a segment, or removing spares, went on with it when the database had been closed: in a directory that was somebody
/// else's by then, over a segment of theirs.
#[test]
fn c4_nobody_prepares_a_segment_or_removes_one_once_the_database_is_closed() {
    watched("c4_nobody_prepares_a_segment_or_removes", PATIENCE, |_| {
        for (wanted, prefixes) in
            [(Operation::Rename, ["segment", "spare"]), (Operation::Remove, ["spare"; 2])]
        {
            let (disk, closing) = (SimulatedDevice::new(seed()), Arc::new(Closing::default()));
            let told = closing.clone();
            let device = HookedDevice::on(&disk, move |operation, name| {
                if operation == wanted && prefixes.iter().any(|prefix| name.starts_with(prefix)) {
                    told.before_operation();
                }
            });
            let db = manual().open_on(device).unwrap();
            let map = db.map("map").unwrap();
            let put_new = |key: u32| db.put(&map, key.to_be_bytes(), [7; 1_000]).map(|put| put.forget());
            for _ in 0..6 {
                (0..100).try_for_each(put_new).unwrap();
                db.persist().unwrap();
            }
            *closing.db.lock().unwrap() = Some(db.clone());
            let error = match wanted {
                Operation::Rename => (0..10_000).find_map(|key| put_new(key).err()),
                _ => db.compact(|_| {}).and_then(|_| put_new(0)).err(),
            };
            assert_eq!(error.map(|error| error.kind()), Some(ErrorKind::Aborted));
            eventually("the database is closed", || closing.is_closed.load(Ordering::SeqCst));
            assert_eq!(closing.late.load(Ordering::SeqCst), 0);
        }
    });
}
