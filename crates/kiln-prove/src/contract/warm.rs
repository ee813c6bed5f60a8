//! Warm records: what has room in memory as a whole stays there, whatever part of it is overwritten, and what is read all the time in any case; and nobody notices but by speed.

use std::sync::Arc;

use kiln::device::SimulatedDevice;
use kiln::{Kiln, Map, Object, Options, Snapshot};

use crate::crash::reopen;
use crate::support::{Random, manual};
use crate::testing::{PATIENCE, background, budget, eventually, seed, watched};

const SEGMENT_BYTES: u64 = 16 << 10;
/// Of which the log has 128 KiB: eight segments.
const MEMORY: u64 = 160 << 10;
const RING_BYTES: u64 = 128 << 10;
/// Keys whose records, of 40 bytes, have room there.
const KEYS: u32 = 1_200;

fn options() -> Options {
    manual().segment_bytes(SEGMENT_BYTES).memory(MEMORY).checkpoint_log_bytes(0)
}

fn fill(db: &Kiln, map: &Map, keys: u32) {
    (0..keys).for_each(|key| db.put(map, key.to_be_bytes(), 0_u64.to_le_bytes()).unwrap().forget());
    db.persist().unwrap();
}

/// What each key's value should be, and whether all are so.
fn check(map: &Map, db: &Kiln, expected: &[u64]) {
    for (key, value) in expected.iter().enumerate() {
        let found = db.get(map, (key as u32).to_be_bytes()).unwrap();
        assert_eq!(found.as_deref(), Some(&value.to_le_bytes()[..]), "key {key}");
    }
}

/// Each update takes the tail further, until it has gone around the ring many times; a key that is not updated for a while would leave it.
#[test]
fn what_has_room_in_memory_is_never_read_from_disk() {
    let db = options().open_on(Arc::new(SimulatedDevice::new(seed()))).unwrap();
    let map = db.map("map").unwrap();
    fill(&db, &map, KEYS);
    let (mut random, mut expected) = (Random::new(seed()), vec![0_u64; KEYS as usize]);
    for number in 1..=40_000_u64 {
        // Every other one hits a few keys only, so that most are old when they are written again.
        let keys = if random.one_in(2) { 16 } else { KEYS };
        let key = random.below(keys as usize) as u32;
        match number % 3 {
            0 => {
                let value = number.to_le_bytes();
                db.put(&map, key.to_be_bytes(), value).unwrap().forget();
            }
            1 => {
                let change = |_: Option<&[u8]>| Some(number.to_le_bytes().to_vec());
                db.update(&map, key.to_be_bytes(), change).unwrap().forget();
            }
            _ => {
                db.transact(|tx| tx.put(&map, key.to_be_bytes(), number.to_le_bytes())).unwrap().forget();
            }
        }
        expected[key as usize] = number;
        if number % 500 == 0 {
            db.persist().unwrap();
        }
    }
    check(&map, &db, &expected);
    let statistics = db.statistics();
    assert!(statistics.log_head > 8 * RING_BYTES, "{statistics:?}");
    assert!(statistics.records_rewritten > 0, "{statistics:?}");
    assert_eq!(statistics.cold_reads, 0, "{statistics:?}");
    let report = db.check().unwrap();
    assert!(report.problems.is_empty(), "{report}");
}

/// Where a segment is longer than five megabytes the room of a seal was taken for a record of that length, and nothing behind it was kept
/// warm. And where a round found no space for all that it was to write anew, it wanted some of the next hardening, which evicted what the next
/// round was to look at.
#[test]
fn what_has_room_in_memory_is_never_read_from_disk_where_segments_are_long() {
    const VALUE_BYTES: usize = 4 << 10;
    let options = manual().segment_bytes(8 << 20).memory(80 << 20).checkpoint_log_bytes(0);
    let db = options.open_on(Arc::new(SimulatedDevice::new(seed()))).unwrap();
    let map = db.map("map").unwrap();
    // Five eighths of what it keeps, which is less than it has by a segment and by what warmth takes.
    let ring_bytes = db.statistics().ring_bytes;
    let keys = (ring_bytes / 2) as u32 / VALUE_BYTES as u32;
    let put = |key: u32, number: u64| {
        let value = [&number.to_le_bytes()[..], &[7; VALUE_BYTES - 8]].concat();
        db.put(&map, key.to_be_bytes(), value).unwrap().forget();
    };
    (0..keys).for_each(|key| put(key, 0));
    let mut random = Random::new(seed());
    for number in 1..=u64::from(6 * keys) {
        let hot = if random.one_in(2) { 16 } else { keys };
        put(random.below(hot as usize) as u32, number);
        if number % 40 == 0 {
            db.persist().unwrap();
        }
    }
    let statistics = db.statistics();
    assert!(statistics.log_head > 2 * ring_bytes, "{statistics:?}");
    assert!(statistics.records_rewritten > 0, "{statistics:?}");
    assert_eq!(statistics.cold_reads, 0, "{statistics:?}");
}

/// In memory records are written anew for speed alone. Where that is not to be had it would be wasted, and so it would be for who
/// never wants anything to be compacted.
#[test]
fn what_has_no_room_in_memory_is_left_alone() {
    for (keys, space_amplification) in [(4 * KEYS, 50.0), (KEYS, f64::INFINITY)] {
        let options = options().space_amplification(space_amplification);
        let db = options.open_on(Arc::new(SimulatedDevice::new(seed()))).unwrap();
        let map = db.map("map").unwrap();
        fill(&db, &map, keys);
        let rewritten = db.statistics().records_rewritten;
        let mut random = Random::new(seed());
        for number in 0..6_000_u64 {
            let key = random.below(keys as usize) as u32;
            db.put(&map, key.to_be_bytes(), number.to_le_bytes()).unwrap().forget();
        }
        let statistics = db.statistics();
        assert!(statistics.log_head > RING_BYTES && statistics.cold_reads > 100, "{statistics:?}");
        assert_eq!(statistics.records_rewritten, rewritten, "{statistics:?}");
    }
}

/// Rows that were written once, side by side, left memory together however often they were read, and each then had to be read from disk: TPC-C's items, ten of which each order asks for.
#[test]
fn what_is_read_all_the_time_stays_in_memory_where_not_all_has_room() {
    const ASKED: u32 = KEYS / 16;
    for is_table in [false, true] {
        let options = options().space_amplification(50.0).settle_log_bytes(0);
        let db = options.open_on(Arc::new(SimulatedDevice::new(seed()))).unwrap();
        let (map, table) = (db.map("map").unwrap(), db.table("table").unwrap());
        let key = |key: u32| key.to_be_bytes();
        let put = |number: u32| match is_table {
            true => db.put(&table, key(number), key(number)).unwrap().forget(),
            false => db.put(&map, key(number), key(number)).unwrap().forget(),
        };
        let get = |number: u32| match is_table {
            true => db.transact(|tx| tx.get(&table, key(number))).unwrap().forget(),
            false => db.get(&map, key(number)).unwrap(),
        };
        (0..ASKED).for_each(put);
        let mut random = Random::new(seed());
        for number in ASKED..20 * KEYS {
            put(number);
            let asked = random.below(ASKED as usize) as u32;
            assert_eq!(get(asked).as_deref(), Some(&key(asked)[..]));
            if number % 100 == 0 {
                db.persist().unwrap();
            }
        }
        let statistics = db.statistics();
        assert!(statistics.log_head > 4 * RING_BYTES, "{statistics:?}");
        assert!(statistics.cold_reads < 10, "{statistics:?}");
        assert!(statistics.records_rewritten > u64::from(ASKED), "{statistics:?}");
        let report = db.check().unwrap();
        assert!(report.problems.is_empty(), "{report}");
    }
}

/// Else a log in which each row is read once would be written twice, for nothing.
#[test]
fn no_more_than_a_part_of_the_log_is_written_anew_for_what_is_read() {
    let db = options().space_amplification(50.0).open_on(Arc::new(SimulatedDevice::new(seed()))).unwrap();
    let map = db.map("map").unwrap();
    let put_and_read = |numbers: std::ops::Range<u32>| {
        for number in numbers {
            db.put(&map, number.to_be_bytes(), number.to_le_bytes()).unwrap().forget();
            // In memory, and durable.
            if let Some(earlier) = number.checked_sub(KEYS / 12) {
                assert!(db.get(&map, earlier.to_be_bytes()).unwrap().is_some());
            }
            if number % 50 == 0 {
                db.persist().unwrap();
            }
        }
        db.statistics()
    };
    // As long as all has room all is written anew.
    let before = put_and_read(0..4 * KEYS);
    let statistics = put_and_read(4 * KEYS..20 * KEYS);
    let appended = statistics.log_tail - before.log_tail;
    let rewritten = statistics.bytes_rewritten - before.bytes_rewritten;
    let most = appended / 4 + RING_BYTES / 8;
    assert!(rewritten > most / 2 && rewritten <= most, "{rewritten} of {appended}: {statistics:?}");
}

/// What is written anew has a newer version than the snapshot, which must find the old one, on disk by then.
#[test]
fn c2_a_snapshot_sees_what_was_written_anew_since_as_it_was() {
    let db = options().open_on(Arc::new(SimulatedDevice::new(seed()))).unwrap();
    let map = db.map("map").unwrap();
    fill(&db, &map, KEYS);
    let (mut random, mut expected) = (Random::new(seed()), vec![0_u64; KEYS as usize]);
    let mut snapshots: Vec<(Snapshot, Vec<u64>)> = Vec::new();
    for number in 1..=12_000_u64 {
        let key = random.below(KEYS as usize / 2) as u32;
        db.put(&map, key.to_be_bytes(), number.to_le_bytes()).unwrap().forget();
        expected[key as usize] = number;
        if number % 2_000 == 0 {
            snapshots.push((db.snapshot().unwrap(), expected.clone()));
        }
    }
    assert!(db.statistics().records_rewritten > u64::from(KEYS), "{:?}", db.statistics());
    for (snapshot, expected) in &snapshots {
        for (key, value) in expected.iter().enumerate() {
            let found = snapshot.get(&map, (key as u32).to_be_bytes()).unwrap();
            assert_eq!(found.as_deref(), Some(&value.to_le_bytes()[..]), "key {key}");
        }
    }
    check(&map, &db, &expected);
}

/// Copies and originals harden together or apart; wherever the power fails, what is there are all puts up to one version.
#[test]
fn c4_a_crash_while_records_are_kept_warm_leaves_a_prefix() {
    watched("c4_a_crash_while_records_are_kept_warm", PATIENCE, |_| {
        let (mut random, mut rewritten) = (Random::new(seed()), 0);
        for round in 0..budget(40) {
            let disk = SimulatedDevice::new(seed() + round);
            let db = options().open_on(Arc::new(disk.clone())).unwrap();
            let map = db.map("map").unwrap();
            fill(&db, &map, KEYS);
            disk.crash_after(disk.steps() + random.below(60) as u64);
            let mut puts: Vec<(u32, u64)> = Vec::new();
            for _ in 0..12_000 {
                let key = random.below(KEYS as usize) as u32;
                let number = puts.len() as u64 + 1;
                let Ok(commit) = db.put(&map, key.to_be_bytes(), number.to_le_bytes()) else { break };
                let receipt = commit.fast().1;
                puts.push((key, receipt.version().number()));
                if random.one_in(200) && db.persist().is_err() {
                    break;
                }
            }
            rewritten += db.statistics().records_rewritten;
            disk.crash_after(disk.steps());
            drop((map, db));
            let db = reopen(&disk.after_crash_seeded(seed() + round)).unwrap();
            let map = db.map("map").unwrap();
            let horizon = db.recovery_report().horizon.number();
            let mut expected = vec![0_u64; KEYS as usize];
            for (number, (key, version)) in (1..).zip(&puts) {
                if *version <= horizon {
                    expected[*key as usize] = number;
                }
            }
            check(&map, &db, &expected);
            assert_eq!(map.len(), u64::from(KEYS));
            let report = db.check().unwrap();
            assert!(report.problems.is_empty(), "{report}");
        }
        assert!(rewritten >= budget(1_001), "{rewritten}");
    });
}

/// Commits, hardenings, the keeper and ranges of memory that leave, all at once; and a database that was closed goes on keeping its records warm.
#[test]
fn c1_counters_add_up_while_records_are_kept_warm() {
    watched("c1_counters_add_up_while_records_are_kept_warm", PATIENCE, |_| {
        const THREADS: u64 = 4;
        const ADDS: u64 = 8_000;
        let disk = SimulatedDevice::new(seed());
        let options = background().segment_bytes(SEGMENT_BYTES).memory(MEMORY);
        for generation in 1..=2 {
            let db = options.open_on(Arc::new(disk.clone())).unwrap();
            let map = db.map("map").unwrap();
            std::thread::scope(|scope| {
                for thread in 0..THREADS {
                    let (db, map) = (&db, &map);
                    scope.spawn(move || {
                        let mut random = Random::new(seed() + thread);
                        for _ in 0..ADDS {
                            let key = random.below(KEYS as usize) as u32;
                            db.add(map, key.to_be_bytes(), 1).unwrap().forget();
                        }
                    });
                }
            });
            let number = |key: u32| {
                let value = db.get(&map, key.to_be_bytes()).unwrap();
                value.map_or(0, |value| i64::from_le_bytes(value.try_into().unwrap()))
            };
            assert_eq!((0..KEYS).map(number).sum::<i64>(), (generation * THREADS * ADDS) as i64);
            eventually("records are written anew", || db.statistics().records_rewritten > 0);
            db.close().unwrap();
        }
    });
}
