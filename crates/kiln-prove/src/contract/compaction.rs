//! Compaction: the log stays within its bound whatever is overwritten and whatever is not, and nobody notices.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use kiln::device::{Fault, FaultKind, Keep, OperationKind, SimulatedDevice};
use kiln::{ErrorKind, Kiln, Object, Options, Statistics};

use crate::crash::reopen;
use crate::support::{Random, manual};
use crate::testing::{PATIENCE, background, eventually, seed, watched};

const SEGMENT_BYTES: u64 = 64 << 10;
/// Keys that are written once, of about a thousand bytes each.
const COLD_KEYS: u32 = 1_200;

fn cold_value(key: u32) -> Vec<u8> {
    Random::new(u64::from(key)).bytes(900 + key as usize % 200)
}

/// Writes the keys that are never written again, among some that are.
fn write_cold(db: &Kiln) {
    let (table, map) = (db.table("table").unwrap(), db.map("map").unwrap());
    for key in 0..COLD_KEYS {
        db.put(&table, key.to_be_bytes(), cold_value(key)).unwrap().forget();
        db.put(&map, (key % 16).to_be_bytes(), vec![0; 1_000]).unwrap().forget();
        if key % 16 == 0 {
            db.persist().unwrap();
        }
    }
}

/// Overwrites a few keys again and again. `look` is called after every hardening.
fn overwrite_hot(db: &Kiln, rounds: u32, mut look: impl FnMut(u32, Statistics)) {
    let map = db.map("map").unwrap();
    for round in 0..rounds {
        for key in 0..16_u32 {
            db.put(&map, key.to_be_bytes(), vec![round as u8; 1_000]).unwrap().forget();
        }
        db.persist().unwrap();
        look(round, db.statistics());
    }
}

fn check_cold(db: &Kiln) {
    let table = db.table("table").unwrap();
    assert_eq!(table.len(), u64::from(COLD_KEYS));
    for key in 0..COLD_KEYS {
        let found = db.get(&table, key.to_be_bytes()).unwrap().expect("a cold key is there");
        assert!(found == cold_value(key), "cold key {key} has changed");
    }
}

fn log_bytes(statistics: &Statistics) -> u64 {
    statistics.log_tail - statistics.log_begin
}

/// How long the log may be: the bound, what is in memory, and what a round and a segment are too coarse for.
fn log_bytes_max(statistics: &Statistics, space_amplification: f64) -> u64 {
    let bound = (statistics.live_bytes as f64 * space_amplification) as u64;
    bound.max(statistics.ring_bytes) + 6 * SEGMENT_BYTES
}

#[test]
fn c4_the_log_stays_within_its_bound_although_most_keys_are_never_overwritten() {
    watched("c4_the_log_stays_within_its_bound", 3 * PATIENCE, |_| {
        for space_amplification in [1.3, 2.0, 3.0] {
            let disk = SimulatedDevice::new(seed());
            let options = manual().space_amplification(space_amplification);
            let db = options.open_on(Arc::new(disk.clone())).unwrap();
            write_cold(&db);
            // About 13 MiB of log of the application's own, ten times what is live.
            overwrite_hot(&db, 800, |round, statistics| {
                let (bytes, most) = (log_bytes(&statistics), log_bytes_max(&statistics, space_amplification));
                assert!(bytes <= most, "round {round}: {bytes} bytes of log, {most} allowed: {statistics:?}");
                let live = u64::from(COLD_KEYS) * 1_000;
                assert!((live * 3 / 4..live * 5 / 4).contains(&statistics.live_bytes), "{statistics:?}");
            });
            let statistics = db.statistics();
            assert!(statistics.segments_compacted > 20, "{statistics:?}");
            let turns = statistics.bytes_rewritten as f64 / statistics.live_bytes as f64;
            // 13 MiB between turns of (a - 1) times the live bytes.
            let expected = 13.0 / 1.2 / (space_amplification - 1.0);
            assert!(turns < 1.5 * expected + 2.0, "{turns} turns for {space_amplification}: {statistics:?}");
            assert!(disk.used_bytes() <= log_bytes_max(&statistics, space_amplification) + 8 * SEGMENT_BYTES);
            check_cold(&db);
            let report = db.check().unwrap();
            assert!(report.problems.is_empty(), "{report}");
            disk.crash_after(disk.steps());
            drop(db);
            let db = reopen(&disk.after_crash(&mut |_| Keep::Lost)).unwrap();
            check_cold(&db);
            let hot = db.get(&db.map("map").unwrap(), 7_u32.to_be_bytes()).unwrap().unwrap();
            assert!(hot == vec![799_u32 as u8; 1_000]);
        }
    });
}

/// What is live must be told by bytes: by numbers of records a log of long values among short ones that die would seem to be empty,
/// and one of short values among long ones that die to be full.
#[test]
fn c4_the_bound_holds_and_compaction_ends_where_long_and_short_values_are_mixed() {
    watched("c4_the_bound_holds_and_compaction_ends", 3 * PATIENCE, |_| {
        const HOT_KEYS: u64 = 16;
        for (cold_keys, cold_bytes, hot_bytes, rounds) in
            [(150_u64, 20_000, 60, 2_000), (4_000, 60, 20_000, 60)]
        {
            let db = manual().open_on(Arc::new(SimulatedDevice::new(seed()))).unwrap();
            let map = db.map("map").unwrap();
            let overwrite = |key: u64| db.put(&map, key.to_be_bytes(), vec![1; hot_bytes]).unwrap().forget();
            for key in 0..cold_keys {
                db.put(&map, (1_000 + key).to_be_bytes(), vec![2; cold_bytes]).unwrap().forget();
                overwrite(key % HOT_KEYS);
                if key % HOT_KEYS == 0 {
                    db.persist().unwrap();
                }
            }
            let live = cold_keys * (cold_bytes as u64 + 40) + HOT_KEYS * (hot_bytes as u64 + 40);
            let mut at_half = db.statistics();
            for round in 0..rounds {
                (0..HOT_KEYS).for_each(overwrite);
                db.persist().unwrap();
                let statistics = db.statistics();
                if round == rounds / 2 {
                    at_half = statistics.clone();
                }
                let bytes = log_bytes(&statistics);
                assert!(
                    bytes <= 3 * live + 8 * SEGMENT_BYTES,
                    "{bytes} bytes of log for {live}: {statistics:?}"
                );
            }
            let statistics = db.statistics();
            let rewritten = statistics.bytes_rewritten - at_half.bytes_rewritten;
            let written = statistics.log_tail - at_half.log_tail - rewritten;
            assert!(rewritten <= 2 * written, "{rewritten} bytes were written anew for {written}");
            for key in 0..cold_keys {
                assert!(db.get(&map, (1_000 + key).to_be_bytes()).unwrap().unwrap() == vec![2; cold_bytes]);
            }
        }
    });
}

#[test]
fn c4_the_bound_holds_under_the_fastest_overwriting() {
    watched("c4_the_bound_holds_under_the_fastest", 3 * PATIENCE, |_| {
        let disk = SimulatedDevice::new(seed());
        let options =
            background().segment_bytes(SEGMENT_BYTES).memory(512 << 10).window(Duration::from_millis(4));
        let db = options.open_on(Arc::new(disk.clone())).unwrap();
        let table = db.table("cold").unwrap();
        for key in 0..4 * COLD_KEYS {
            db.put(&table, key.to_be_bytes(), cold_value(key)).unwrap().forget();
        }
        db.persist().unwrap();
        let map = db.map("hot").unwrap();
        let longest = thread::scope(|scope| {
            let writers = (0..3_u32).map(|writer| {
                let (db, map) = (&db, &map);
                scope.spawn(move || {
                    for round in 0..16_000_u32 {
                        let hot = writer * 40 + round % 40;
                        let commit = db.put(map, hot.to_be_bytes(), [round as u8; 2_000]).unwrap();
                        // A wait now and then closes versions, so that little is updated in place.
                        match round % 16 == writer {
                            true => commit.safe().unwrap(),
                            false => commit.forget(),
                        };
                        let warm = 1_000 + round % 600;
                        db.put(map, warm.to_be_bytes(), [round as u8; 700]).unwrap().forget();
                    }
                })
            });
            let writers: Vec<_> = writers.collect();
            let mut longest = (0.0, Statistics::default());
            while writers.iter().any(|writer| !writer.is_finished()) {
                let statistics = db.statistics();
                let over = log_bytes(&statistics) as f64 / log_bytes_max(&statistics, 2.0) as f64;
                if over > longest.0 {
                    longest = (over, statistics);
                }
                thread::sleep(Duration::from_micros(500));
            }
            longest
        });
        let (over, statistics) = longest;
        assert!(over < 2.5, "the log was {over} times as long as it may be: {statistics:?}");
        let statistics = db.statistics();
        assert!(statistics.log_begin > 8 << 20, "too little was overwritten: {statistics:?}");
        assert!(statistics.segments_compacted > 20, "{statistics:?}");
        for key in 0..4 * COLD_KEYS {
            assert!(db.get(&table, key.to_be_bytes()).unwrap().unwrap() == cold_value(key), "key {key}");
        }
    });
}

/// Nobody but the keeper found out that the log had become too long, and where it had no processor, or was at something else, it grew without bound.
#[test]
fn c4_the_bound_holds_while_the_keeper_is_late() {
    watched("c4_the_bound_holds_while_the_keeper_is_late", PATIENCE, |_| {
        let disk = SimulatedDevice::new(seed());
        let db = background()
            .segment_bytes(SEGMENT_BYTES)
            .memory(512 << 10)
            .open_on(Arc::new(disk.clone()))
            .unwrap();
        write_cold(&db);
        let map = db.map("map").unwrap();
        let mut longest = (0.0, Statistics::default());
        for round in 0..40 {
            if round % 10 == 0 {
                // What the keeper does with a segment that is no longer needed.
                let kind = FaultKind::Delay(Duration::from_millis(500));
                disk.inject(Fault { operation: OperationKind::Rename, nth: 1, kind, sticky: false });
            }
            for key in 0..1_000_u32 {
                db.put(&map, (key % 100).to_be_bytes(), [round as u8; 1_000]).unwrap().forget();
                if key % 100 == 0 {
                    db.persist().unwrap();
                }
            }
            let statistics = db.statistics();
            let over = log_bytes(&statistics) as f64 / log_bytes_max(&statistics, 2.0) as f64;
            if over > longest.0 {
                longest = (over, statistics);
            }
        }
        let (over, statistics) = longest;
        assert!(over < 2.0, "the log was {over} times as long as it may be: {statistics:?}");
        check_cold(&db);
    });
}

/// Values that fill segments badly would otherwise be turned over for ever.
#[test]
fn c4_nothing_is_written_anew_where_all_is_live() {
    const ROUNDS: u64 = 100;
    // At the least bound what the rounds themselves leave behind, a block each, is worth to be got rid of.
    for (space_amplification, most) in [(1.3, 0), (1.1, 12 * ROUNDS * 4_096)] {
        for value_bytes in [60, 1_000, 5_000, 11_500, 22_000, 32_000] {
            let disk = SimulatedDevice::new(seed());
            let db = manual().space_amplification(space_amplification).open_on(Arc::new(disk)).unwrap();
            write_once(&db, value_bytes);
            for round in 0..ROUNDS {
                db.put(&db.map("map").unwrap(), "one more", round.to_be_bytes()).unwrap().forget();
                db.persist().unwrap();
            }
            let statistics = db.statistics();
            let bytes = statistics.bytes_rewritten;
            assert!(bytes <= most, "values of {value_bytes} bytes: {statistics:?}");
        }
    }
}

/// Two MiB of values of one size, each written once.
fn write_once(db: &Kiln, value_bytes: usize) {
    let table = db.table("table").unwrap();
    let mut random = Random::new(seed());
    let a_piece = 40_000 / value_bytes as u32 + 1;
    for key in 0..(2 << 20) / value_bytes as u32 {
        db.put(&table, key.to_be_bytes(), random.bytes(value_bytes)).unwrap().forget();
        if key % a_piece == 0 {
            db.persist().unwrap();
        }
    }
}

#[test]
fn c4_small_logs_are_left_alone() {
    let db = manual().space_amplification(1.1).open_on(Arc::new(SimulatedDevice::new(seed()))).unwrap();
    let map = db.map("map").unwrap();
    for round in 0..24_u32 {
        db.put(&map, "key", vec![round as u8; 2_000]).unwrap().forget();
        db.put(&map, (round).to_be_bytes(), vec![round as u8; 2_000]).unwrap().forget();
        db.persist().unwrap();
    }
    let statistics = db.statistics();
    assert!(log_bytes(&statistics) > 2 * SEGMENT_BYTES);
    assert_eq!(statistics.records_rewritten, 0, "{statistics:?}");
}

#[test]
fn c4_records_are_written_anew_without_a_read_for_each() {
    let disk = SimulatedDevice::new(seed());
    // With memory for all that is overwritten, so that only compaction reads.
    let db = manual().memory(512 << 10).open_on(Arc::new(disk.clone())).unwrap();
    let (table, map) = (db.table("table").unwrap(), db.map("map").unwrap());
    for key in 0..12_000_u32 {
        db.put(&table, key.to_be_bytes(), [key as u8; 60]).unwrap().forget();
        if key % 200 == 0 {
            db.persist().unwrap();
        }
    }
    let no_time = FaultKind::Delay(Duration::ZERO);
    disk.inject(Fault { operation: OperationKind::Read, nth: 1, kind: no_time, sticky: true });
    for round in 0..300_u32 {
        for key in 0..16_u32 {
            db.put(&map, key.to_be_bytes(), vec![round as u8; 1_000]).unwrap().forget();
        }
        db.persist().unwrap();
    }
    let (statistics, reads) = (db.statistics(), disk.faults_fired());
    assert!(statistics.records_rewritten > 12_000, "{statistics:?}");
    assert!(reads * 50 < statistics.records_rewritten, "{reads} reads: {statistics:?}");
}

#[test]
fn c6_a_snapshot_held_open_reads_its_old_values_while_all_else_is_compacted() {
    watched("c6_a_snapshot_held_open_reads_its_old_values", 3 * PATIENCE, |_| {
        let disk = SimulatedDevice::new(seed());
        let db = manual().space_amplification(1.3).open_on(Arc::new(disk.clone())).unwrap();
        let (table, map) = (db.table("table").unwrap(), db.map("map").unwrap());
        write_cold(&db);
        overwrite_hot(&db, 100, |_, _| {});
        assert!(db.statistics().segments_compacted > 0);
        let snapshot = db.snapshot().unwrap();
        let before = db.statistics();
        overwrite_hot(&db, 200, |_, _| {});
        (0..COLD_KEYS).for_each(|key| db.put(&table, key.to_be_bytes(), "new").unwrap().forget());
        overwrite_hot(&db, 200, |_, _| {});
        for key in 0..COLD_KEYS {
            let found = snapshot.get(&table, key.to_be_bytes()).unwrap().expect("a cold key is there");
            assert!(found == cold_value(key), "the snapshot's cold key {key} has changed");
        }
        let hot = snapshot.get(&map, 3_u32.to_be_bytes()).unwrap().unwrap();
        assert!(hot == vec![99; 1_000], "the snapshot's hot key has changed");
        // What was looked at when the snapshot began to hold it is not copied again and again.
        let held = db.statistics();
        let copied = held.bytes_rewritten - before.bytes_rewritten;
        assert!(copied <= held.live_bytes.max(before.live_bytes), "{copied} bytes copied in vain: {held:?}");
        assert!(log_bytes(&held) > 6 << 20, "the snapshot held nothing: {held:?}");
        drop(snapshot);
        overwrite_hot(&db, 200, |_, _| {});
        let statistics = db.statistics();
        assert!(log_bytes(&statistics) <= log_bytes_max(&statistics, 1.3), "{statistics:?}");
        let report = db.check().unwrap();
        assert!(report.problems.is_empty(), "{report}");
    });
}

#[test]
fn c2_concurrent_updates_during_compaction_lose_nothing() {
    const COUNTERS: u32 = 3_000;
    watched("c2_concurrent_updates_during_compaction", 3 * PATIENCE, |_| {
        let disk = SimulatedDevice::new(seed());
        let options = background()
            .segment_bytes(SEGMENT_BYTES)
            .memory(128 << 10)
            .window(Duration::from_millis(2))
            .space_amplification(1.1);
        let db = options.open_on(Arc::new(disk.clone())).unwrap();
        let (map, table) = (db.map("map").unwrap(), db.table("table").unwrap());
        let mut expected = vec![0_i64; COUNTERS as usize];
        let sums: Vec<Vec<i64>> = thread::scope(|scope| {
            let workers = (0..3_u64).map(|worker| {
                let (db, map, table) = (&db, &map, &table);
                scope.spawn(move || {
                    let mut random = Random::new(seed() + worker);
                    let mut added = vec![0_i64; COUNTERS as usize];
                    for round in 0..12_000 {
                        // Most of the counters are touched rarely, and are moved by compaction in between.
                        let counter = match random.one_in(3) {
                            true => random.below(COUNTERS as usize),
                            false => random.below(8),
                        };
                        let key = (counter as u32).to_be_bytes();
                        db.transact(|tx| tx.add(map, key, 1).and_then(|_| tx.add(table, key, 1)))
                            .unwrap()
                            .forget();
                        added[counter] += 1;
                        if round % 50 == 0 {
                            db.put(map, "filler", random.bytes(6_000)).unwrap().forget();
                        }
                    }
                    added
                })
            });
            let workers: Vec<_> = workers.collect();
            workers.into_iter().map(|worker| worker.join().unwrap()).collect()
        });
        sums.iter().for_each(|added| expected.iter_mut().zip(added).for_each(|(sum, added)| *sum += added));
        let statistics = db.statistics();
        assert!(statistics.records_rewritten > 1_000, "{statistics:?}");
        db.persist().unwrap();
        disk.crash_after(disk.steps());
        drop((map, table, db));
        let db = reopen(&disk.after_crash(&mut |_| Keep::Lost)).unwrap();
        let (map, table) = (db.map("map").unwrap(), db.table("table").unwrap());
        for (counter, sum) in expected.iter().enumerate() {
            let key = (counter as u32).to_be_bytes();
            let number = |value: Option<Vec<u8>>| {
                value.map_or(0, |value| i64::from_le_bytes(value.try_into().unwrap()))
            };
            assert_eq!(number(db.get(&map, key).unwrap()), *sum, "counter {counter} of the map");
            assert_eq!(number(db.get(&table, key).unwrap()), *sum, "counter {counter} of the table");
        }
    });
}

/// Deletions, sessions and the catalog go through compaction, too; what is deleted stays so.
#[test]
fn c7_sessions_and_deletions_survive_compaction() {
    let disk = SimulatedDevice::new(seed());
    let db = manual().space_amplification(1.3).open_on(Arc::new(disk.clone())).unwrap();
    let table = db.table("table").unwrap();
    let session = db.session("early").unwrap();
    (0..3).for_each(|_| session.transact(|tx| tx.put(&table, "mine", "value")).unwrap().forget());
    drop(session);
    write_cold(&db);
    for key in (0..COLD_KEYS).step_by(2) {
        db.delete(&table, key.to_be_bytes()).unwrap().forget();
    }
    overwrite_hot(&db, 400, |_, _| {});
    assert!(db.statistics().log_begin > 2 << 20, "{:?}", db.statistics());
    disk.crash_after(disk.steps());
    drop((table, db));
    let db = reopen(&disk.after_crash(&mut |_| Keep::Lost)).unwrap();
    assert_eq!(db.session("early").unwrap().recovered_serial(), 3);
    let table = db.table("table").unwrap();
    assert_eq!(table.len(), u64::from(COLD_KEYS / 2) + 1);
    for key in 0..COLD_KEYS {
        assert_eq!(db.get(&table, key.to_be_bytes()).unwrap().is_some(), key % 2 == 1, "key {key}");
    }
}

#[test]
fn c4_the_background_threads_compact_until_the_bound_holds() {
    watched("c4_the_background_threads_compact", 3 * PATIENCE, |_| {
        let options =
            background().segment_bytes(SEGMENT_BYTES).memory(128 << 10).window(Duration::from_millis(2));
        let db = options.open_on(Arc::new(SimulatedDevice::new(seed()))).unwrap();
        write_cold(&db);
        overwrite_hot(&db, 400, |_, _| {});
        // Nobody commits any more, and still the work is brought to its end.
        eventually("a log within its bound", || {
            let statistics = db.statistics();
            log_bytes(&statistics) <= log_bytes_max(&statistics, 2.0)
        });
        check_cold(&db);
    });
}

#[test]
fn c4_a_bound_that_makes_no_sense_is_refused() {
    for space_amplification in [f64::NAN, 1.0, 0.0, -2.0] {
        let options = Options::new().space_amplification(space_amplification);
        let error = options.open_on(Arc::new(SimulatedDevice::new(1))).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Input, "{space_amplification}");
    }
    let db = manual().space_amplification(f64::INFINITY).open_on(Arc::new(SimulatedDevice::new(1))).unwrap();
    write_cold(&db);
    overwrite_hot(&db, 200, |_, _| {});
    // Only what is dead is dropped then, and segments of which little is live.
    check_cold(&db);
}
