//! C2, C9: what is on disk reads like what is in memory, whatever the read cache holds of it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use kiln::device::{Fault, FaultKind, OperationKind, SimulatedDevice};
use kiln::{ErrorKind, Kiln, Map, Object, Options, Transaction};

use super::hooked::{HookedDevice, Operation};
use crate::support::{Random, manual};
use crate::testing::{PATIENCE, background, budget, seed, watched};

/// A database that leaves what is cold where it is.
pub(super) fn lazy() -> Options {
    manual().space_amplification(f64::INFINITY)
}

/// Databases whose read cache holds less than a hundred small records, and some thousand; and one that moves cold records.
fn sizes() -> [Options; 3] {
    [lazy(), lazy().memory(768 << 10), manual()]
}

pub(super) fn key(number: u32) -> [u8; 4] {
    number.to_be_bytes()
}

/// Values of most lengths, some too long for the cache.
fn value(random: &mut Random) -> Vec<u8> {
    let length = if random.one_in(40) { 2_000 + random.below(9_000) } else { random.below(300) };
    random.bytes(length)
}

/// Pushes everything that there is out of the log's memory.
pub(super) fn make_cold(db: &Kiln, ballast: &Map) {
    let end = db.statistics().log_tail;
    while db.statistics().log_head <= end {
        for _ in 0..8 {
            db.put(ballast, "ballast", vec![0; 8_000]).unwrap().forget();
        }
        db.persist().unwrap();
    }
}

/// A database whose `count` values of 200 bytes are on disk alone.
pub(super) fn cold_database(options: &Options, disk: &SimulatedDevice, count: u32) -> (Kiln, Map) {
    let db = options.open_on(Arc::new(disk.clone())).unwrap();
    let map = db.map("map").unwrap();
    for number in 0..count {
        db.put(&map, key(number), [number as u8; 200]).unwrap().forget();
    }
    make_cold(&db, &db.map("ballast").unwrap());
    (db, map)
}

/// As `cold_database`, with the memory as `make_settled` leaves it.
fn settled_database(options: &Options, disk: &SimulatedDevice, count: u32) -> (Kiln, Map) {
    let db = options.open_on(Arc::new(disk.clone())).unwrap();
    let map = db.map("map").unwrap();
    for number in 0..count {
        db.put(&map, key(number), [number as u8; 200]).unwrap().forget();
    }
    make_settled(&db, &map);
    (db, map)
}

/// As `make_cold`, and has the read cache get the memory that it gets where reads prevail, if it has a use for that. What is read for it are other
/// keys of the map.
pub(super) fn make_settled(db: &Kiln, map: &Map) {
    let mut others: Vec<_> = (1 << 20..(1 << 20) + 4_000).map(key).collect();
    for other in &others {
        db.put(map, other, [0; 200]).unwrap().forget();
    }
    make_cold(db, &db.map("ballast").unwrap());
    let cache_bytes = db.statistics().read_cache_bytes;
    while db.statistics().read_cache_bytes == cache_bytes && !others.is_empty() {
        db.get_many(map, &others.split_off(others.len().saturating_sub(200)), |_, _| {}).unwrap();
    }
}

#[test]
fn c2_every_way_to_read_finds_the_same_on_disk_in_the_cache_and_in_memory() {
    const KEYS: usize = 1_500;
    fn check(db: &Kiln, object: &impl Object, random: &mut Random) {
        let mut model: BTreeMap<[u8; 4], Vec<u8>> = BTreeMap::new();
        let mut past = (db.snapshot().unwrap(), model.clone());
        // Of fewer nothing would be on disk when it is read.
        for _ in 0..budget(4_000).max(4_000) {
            // A few keys are met often, so that they are in the cache when they are changed.
            let below = *random.pick(&[20, 200, KEYS]);
            let at = key(random.below(below) as u32);
            match random.below(12) {
                0..3 => {
                    let value = value(random);
                    db.put(object, at, &value).unwrap().forget();
                    model.insert(at, value);
                }
                3 => assert_eq!(db.delete(object, at).unwrap().forget(), model.remove(&at).is_some()),
                4 => {
                    let changed = db.update_into(object, at, |old, new| {
                        assert_eq!(old, model.get(&at).map(Vec::as_slice));
                        new.extend_from_slice(b"changed");
                        true
                    });
                    changed.unwrap().forget();
                    model.insert(at, b"changed".to_vec());
                }
                5 => {
                    let keys: Vec<_> = (0..100).map(|_| key(random.below(below) as u32)).collect();
                    db.get_many(object, &keys, |number, found| {
                        assert_eq!(found, model.get(&keys[number]).map(Vec::as_slice));
                    })
                    .unwrap();
                }
                6 => {
                    let found = db.transact(|tx| tx.get(object, at)).unwrap().forget();
                    assert_eq!(found.as_ref(), model.get(&at));
                }
                7 => {
                    let (snapshot, then) = &past;
                    assert_eq!(snapshot.get(object, at).unwrap().as_ref(), then.get(&at));
                }
                _ => assert_eq!(db.get(object, at).unwrap().as_ref(), model.get(&at)),
            }
            if random.one_in(60) {
                db.persist().unwrap();
            }
            if random.one_in(700) {
                past = (db.snapshot().unwrap(), model.clone());
            }
        }
    }
    for options in sizes() {
        let db = options.open_on(Arc::new(SimulatedDevice::new(seed()))).unwrap();
        let (table, map) = (db.table("table").unwrap(), db.map("map").unwrap());
        let mut random = Random::new(seed());
        check(&db, &table, &mut random);
        make_cold(&db, &map);
        check(&db, &map, &mut random);
        let statistics = db.statistics();
        assert!(statistics.cold_reads > 0 && statistics.cache_hits > 0, "{statistics:?}");
        assert!(statistics.cold_read_bytes >= 4096 * statistics.cold_reads, "{statistics:?}");
        let report = db.check().unwrap();
        assert!(report.problems.is_empty(), "{report}");
    }
}

#[test]
fn c2_what_is_read_twice_comes_from_the_cache_the_second_time() {
    let (db, map) = settled_database(&lazy().memory(1 << 20), &SimulatedDevice::new(seed()), 500);
    let read_all = || {
        let before = db.statistics();
        (0..500)
            .for_each(|number| assert_eq!(db.get(&map, key(number)).unwrap().unwrap(), [number as u8; 200]));
        let after = db.statistics();
        let neighbours = after.neighbours_read - before.neighbours_read;
        (after.cold_reads - before.cold_reads, neighbours, after.cache_hits - before.cache_hits)
    };
    let (reads, neighbours, _) = read_all();
    assert!(reads + neighbours >= 500);
    let (reads, _, hits) = read_all();
    assert!(reads < 50 && hits >= 450, "{reads} reads, {hits} hits");
}

/// A read that has failed leaves nothing behind: the next one is right, or fails again.
#[test]
fn c9_what_cannot_be_read_or_is_damaged_is_an_error_with_file_and_offset_and_is_never_cached() {
    let disk = SimulatedDevice::new(seed());
    let (db, map) = cold_database(&lazy(), &disk, 40);
    let once = |kind| Fault { operation: OperationKind::Read, nth: 1, kind, sticky: false };
    for number in 0..40 {
        disk.inject(once(FaultKind::EIO));
        let error = db.get(&map, key(number)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Io, "{error}");
        assert!(error.to_string().contains("segment-00000000 at offset"), "{error}");
        disk.clear_faults();
    }
    let clean = disk.bytes("segment-00000000");
    let pattern = [7_u8; 200];
    let at = clean.windows(200).position(|bytes| bytes == pattern).unwrap();
    for bit in [0, 3 + 8 * 150] {
        disk.flip_bit("segment-00000000", 8 * at as u64 + bit);
        for _ in 0..3 {
            let error = db.get(&map, key(7)).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Corrupted, "{error}");
            let text = error.to_string();
            assert!(text.contains("segment-00000000") && text.contains("offset"), "{text}");
            let many = db.get_many(&map, &[key(7), key(7)], |_, _| panic!("nothing was read"));
            assert_eq!(many.unwrap_err().kind(), ErrorKind::Corrupted);
        }
        disk.flip_bit("segment-00000000", 8 * at as u64 + bit);
    }
    for number in 0..40 {
        assert_eq!(db.get(&map, key(number)).unwrap().unwrap(), [number as u8; 200]);
    }
}

/// Readers are always slower than compaction: a segment is dropped while somebody is about to read it.
#[test]
fn c2_a_read_whose_segment_is_dropped_meanwhile_looks_again() {
    const KEYS: u32 = 400;
    watched("c2_a_read_whose_segment_is_dropped_meanwhile", 3 * PATIENCE, |_| {
        let disk = SimulatedDevice::new(seed());
        let options = background()
            .segment_bytes(64 << 10)
            .memory(128 << 10)
            .window(Duration::from_millis(2))
            .space_amplification(1.1);
        let db = options.open_on(Arc::new(disk.clone())).unwrap();
        let map = db.map("map").unwrap();
        for number in 0..KEYS {
            db.put(&map, key(number), [number as u8; 700]).unwrap().forget();
        }
        let delay = FaultKind::Delay(Duration::from_micros(300));
        disk.inject(Fault { operation: OperationKind::Read, nth: 1, kind: delay, sticky: true });
        let over = AtomicBool::new(false);
        thread::scope(|scope| {
            for reader in 0..3 {
                let (db, map, over) = (&db, &map, &over);
                scope.spawn(move || {
                    let mut random = Random::new(seed() + reader);
                    while !over.load(Ordering::Relaxed) {
                        let keys: Vec<_> = (0..40).map(|_| key(random.below(KEYS as usize) as u32)).collect();
                        db.get_many(map, &keys, |number, found| {
                            assert_eq!(found, Some(&[keys[number][3]; 700][..]), "{:?}", keys[number]);
                        })
                        .unwrap();
                        let snapshot = db.snapshot().unwrap();
                        let found = snapshot.get(map, keys[0]).unwrap();
                        assert_eq!(found.as_deref(), Some(&[keys[0][3]; 700][..]));
                    }
                });
            }
            let mut random = Random::new(seed());
            while db.statistics().records_rewritten < 2_000 {
                let at = random.below(30) as u32;
                db.put(&map, key(at), [at as u8; 700]).unwrap().forget();
            }
            over.store(true, Ordering::Relaxed);
        });
        let statistics = db.statistics();
        assert!(statistics.log_begin > 0 && statistics.cold_reads > 100, "{statistics:?}");
        disk.clear_faults();
    });
}

/// Each record is read once, before its operation, and in whatever order: the operations are those of a loop all the same.
#[test]
fn c2_a_batch_reads_each_cold_record_once_and_ahead_of_its_operation() {
    const KEYS: u32 = 2_000;
    let disk = SimulatedDevice::new(seed());
    let (db, map) = settled_database(&lazy().memory(4 << 20), &disk, KEYS);
    let keys: Vec<_> = (0..KEYS).map(key).collect();
    let before = db.statistics();
    let mut next = 0;
    let look = |number: usize, found: Option<&[u8]>| {
        assert_eq!((number, found), (next, Some(&[number as u8; 200][..])));
        next += 1;
    };
    db.get_many(&map, &keys, look).unwrap();
    let after = db.statistics();
    assert_eq!(next, KEYS as usize);
    let (reads, neighbours) =
        (after.cold_reads - before.cold_reads, after.neighbours_read - before.neighbours_read);
    assert!(reads < u64::from(KEYS) / 10 && reads + neighbours >= u64::from(KEYS), "{after:?}");
    // Ahead, and not by the operation itself: there each was found in the cache.
    assert!(after.cache_hits - before.cache_hits >= u64::from(KEYS), "{after:?}");
    assert_eq!(after.reads_in_flight, 0);

    let (db, map) = cold_database(&lazy().memory(4 << 20), &SimulatedDevice::new(seed()), KEYS);
    let change = |_, old: Option<&[u8]>, new: &mut Vec<u8>| {
        new.extend_from_slice(old.unwrap_or(b"none"));
        new.push(b'!');
        true
    };
    // Each key twice: the second time it is in memory, and was not yet when it was looked at.
    let twice: Vec<_> = keys.iter().chain(&keys).collect();
    db.update_many(&map, &twice, change).unwrap().forget();
    for number in 0..KEYS {
        let expected = [&[number as u8; 200][..], b"!!"].concat();
        assert_eq!(db.get(&map, key(number)).unwrap().unwrap(), expected);
    }
}

/// Of a database of the usual proportions the cache was divided so small that it could keep none of these: each was read by itself, by its operation.
#[test]
fn c2_long_records_are_read_ahead_too() {
    const KEYS: u32 = 64;
    let usual = |background| Options::new().background(background).space_amplification(f64::INFINITY);
    for background in [false, true] {
        let options = usual(background).segment_bytes(1 << 20).memory(40 << 20);
        let db = options.open_on(Arc::new(SimulatedDevice::new(seed()))).unwrap();
        let map = db.map("map").unwrap();
        for number in 0..KEYS {
            db.put(&map, key(number), vec![number as u8; 64 << 10]).unwrap().forget();
        }
        make_cold(&db, &db.map("ballast").unwrap());
        let keys: Vec<_> = (0..KEYS).map(key).collect();
        let before = db.statistics();
        let check = |number: usize, value: Option<&[u8]>| {
            assert!(value.unwrap() == vec![number as u8; 64 << 10], "{number}");
        };
        if background {
            let pending: Vec<_> = keys.iter().map(|key| db.get_async(&map, key)).collect();
            for (number, read) in pending.into_iter().enumerate() {
                check(number, read.wait().unwrap().as_deref());
            }
        } else {
            db.get_many(&map, &keys, check).unwrap();
        }
        let after = db.statistics();
        // A part of the cache that is just divided anew keeps nothing.
        let (reads, hits) = (after.cold_reads - before.cold_reads, after.cache_hits - before.cache_hits);
        assert!(reads <= u64::from(KEYS) * 5 / 4 && hits >= u64::from(KEYS) * 3 / 4, "{after:?}");
    }
}

/// A session's batches fetched from memory alone, and each of their operations read by itself.
#[test]
fn c2_a_batch_of_a_session_reads_ahead_too() {
    const KEYS: u32 = 500;
    let disk = SimulatedDevice::new(seed());
    let (device, reads) = HookedDevice::counting(&disk, |operation, _| operation == Operation::Read);
    let db = lazy().memory(4 << 20).open_on(device).unwrap();
    let map = db.map("map").unwrap();
    for number in 0..KEYS {
        db.put(&map, key(number), [number as u8; 200]).unwrap().forget();
    }
    make_cold(&db, &db.map("ballast").unwrap());
    let session = db.session("client").unwrap();
    let keys: Vec<_> = (0..KEYS).map(key).collect();
    let (before, mut ahead) = (reads.load(Ordering::SeqCst), None);
    let change = |number: usize, old: Option<&[u8]>, _: &mut Vec<u8>| {
        assert_eq!(old, Some(&[number as u8; 200][..]));
        ahead.get_or_insert(reads.load(Ordering::SeqCst) - before);
        true
    };
    session.update_many(&map, &keys, change).unwrap().forget();
    assert!(ahead.unwrap() > 3, "{ahead:?} reads before the first operation");
    assert!(keys.iter().all(|key| db.get(&map, key).unwrap().unwrap().is_empty()));
}

/// What cannot be read ahead is read again by the operation, which says why if it cannot either.
#[test]
fn c9_a_batch_that_cannot_be_read_ahead_says_what_a_single_read_would_say() {
    let disk = SimulatedDevice::new(seed());
    let (db, map) = cold_database(&lazy().memory(4 << 20), &disk, 300);
    let keys: Vec<_> = (0..300).map(key).collect();
    let check = |number: usize, found: Option<&[u8]>| assert_eq!(found, Some(&[number as u8; 200][..]));
    let fault = |nth, sticky| Fault { operation: OperationKind::Read, nth, kind: FaultKind::EIO, sticky };
    disk.inject(fault(5, true));
    let error = db.get_many(&map, &keys, check).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Io, "{error}");
    assert!(error.to_string().contains("segment-0000000"), "{error}");
    disk.clear_faults();
    // A caller that gives up in the middle leaves nothing to those who follow.
    let gives_up = |number, _: Option<&[u8]>| assert!(number < 40, "given up");
    let panicked =
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| db.get_many(&map, &keys, gives_up)));
    assert!(panicked.is_err());
    assert_eq!(db.statistics().reads_in_flight, 0);
    for nth in [1, 2, 7] {
        disk.inject(fault(nth, false));
        db.get_many(&map, &keys, check).unwrap();
        disk.clear_faults();
    }
    assert_eq!(db.statistics().reads_in_flight, 0);
}

/// What was learnt of each was looked for among what was learnt of all, with all locks held: it took minutes, in which nothing became durable.
#[test]
fn c3_a_transaction_of_many_cold_keys_holds_nobody_up() {
    const KEYS: u32 = 200_000;
    watched("c3_a_transaction_of_many_cold_keys_holds", PATIENCE, |_| {
        let options = lazy().memory(64 << 20).unhardened_bytes(64 << 20).segment_bytes(1 << 20);
        let db = options.open_on(Arc::new(SimulatedDevice::new(seed()))).unwrap();
        let map = db.map("map").unwrap();
        for number in 0..KEYS {
            db.put(&map, key(number), "").unwrap().forget();
        }
        make_cold(&db, &db.map("ballast").unwrap());
        let read = || db.statistics().cold_reads + db.statistics().neighbours_read;
        let before = read();
        let over = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    db.persist().unwrap();
                }
            });
            let write =
                |tx: &Transaction<'_>| (0..KEYS).try_for_each(|number| tx.put(&map, key(number), "new"));
            let written = db.transact(write);
            over.store(true, Ordering::Relaxed);
            written.unwrap().forget();
        });
        assert!(read() - before >= u64::from(KEYS) / 2, "they were on disk");
        assert_eq!(map.len(), u64::from(KEYS));
    });
}

/// Log and cache together take no more than they were given, once that is enough for two segments.
#[test]
fn memory_is_the_budget_of_the_log_and_the_read_cache_together() {
    for memory in [160 << 10, 256 << 10, 300 << 10, 1 << 20, 3 << 20, 5_000_000, 64 << 20] {
        let db = manual().memory(memory).open_on(Arc::new(SimulatedDevice::new(seed()))).unwrap();
        let statistics = db.statistics();
        let (ring, cache) = (statistics.ring_bytes, statistics.read_cache_bytes);
        assert!(ring + cache <= memory && ring + cache > memory * 9 / 10, "{ring} and {cache} of {memory}");
        assert!(ring >= memory * 7 / 16 && cache >= memory / 9, "{ring} and {cache} of {memory}");
    }
}

/// A number below 16,000; of 100 there are hardly 3 that most are.
fn popular(random: &mut Random) -> u32 {
    let bits = random.below(15);
    random.below(1 << bits) as u32 * 7_919 % 16_000
}

/// Where reads prevail the cache has most of the memory, and holds what is asked for often; where what is written is not asked for, the log has it.
#[test]
fn c2_memory_goes_to_what_needs_it_and_nothing_is_found_to_be_otherwise_for_that() {
    const MEMORY: u64 = 1 << 20;
    let options = lazy().memory(MEMORY);
    let db = options.open_on(Arc::new(SimulatedDevice::new(seed()))).unwrap();
    let map = db.map("map").unwrap();
    let others = db.map("others").unwrap();
    let mut written = vec![0_u8; 16_000];
    let mut random = Random::new(seed());
    let put = |at: u32, written: &mut Vec<u8>| {
        written[at as usize] = written[at as usize].wrapping_add(1);
        db.put(&map, key(at), [written[at as usize]; 200]).unwrap().forget();
    };
    let get = |at: u32, written: &Vec<u8>| {
        assert_eq!(db.get(&map, key(at)).unwrap().unwrap(), [written[at as usize]; 200], "key {at}");
    };
    let shares = || {
        let statistics = db.statistics();
        let (log, cache) = (statistics.ring_bytes, statistics.read_cache_bytes);
        assert!(log + cache <= MEMORY && log + cache > MEMORY * 9 / 10, "{log} and {cache}");
        (log, cache)
    };
    let unshared = shares();
    (0..16_000).for_each(|at| put(at, &mut written));
    db.persist().unwrap();
    for turn in 0..2 {
        for _ in 0..6_000 {
            get(popular(&mut random), &written);
        }
        let (log, cache) = shares();
        assert!(log <= MEMORY / 4 && cache > MEMORY * 7 / 10, "turn {turn}: {log} and {cache}");
        let before = db.statistics();
        assert!(before.log_tail - before.log_head <= MEMORY / 4, "turn {turn}: {before:?}");
        for _ in 0..6_000 {
            get(popular(&mut random), &written);
        }
        let reads = db.statistics().cold_reads - before.cold_reads;
        assert!(reads < 6_000 / 5, "turn {turn}: {reads} of 6000 were read from disk");
        for number in 0..12_000 {
            let at = random.below(16_000) as u32;
            put(at, &mut written);
            get(at, &written);
            if number % 50 == 0 {
                get(popular(&mut random), &written);
            }
        }
        // An update reads what it replaces, and finds most of it in the cache. Nobody has anything there of what is new.
        for number in 0..12_000 {
            db.put(&others, key(12_000 * turn + number), [0; 200]).unwrap().forget();
            if number % 1_000 == 999 {
                db.persist().unwrap();
            }
        }
        assert_eq!(shares(), unshared, "turn {turn}");
    }
    (0..16_000).for_each(|at| get(at, &written));
    let report = db.check().unwrap();
    assert!(report.problems.is_empty(), "{report}");
}
