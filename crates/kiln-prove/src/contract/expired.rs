//! C4, C9: what becomes of rows that have expired, and what says that some may.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use kiln::device::SimulatedDevice;
use kiln::{ErrorKind, Expiry, Kiln, Map, Object};

use super::cold::{key, lazy, make_cold};
use super::hooked::{HookedDevice, Operation};
use crate::support::manual;
use crate::testing::{PATIENCE, background, seed, watched};

const START_MS: u64 = 1_000_000;
const LATER: Expiry = Expiry::At(START_MS + 10);

fn world(options: &kiln::Options) -> (SimulatedDevice, Kiln) {
    let disk = SimulatedDevice::new(seed());
    disk.set_time_ms(START_MS);
    let db = options.open_on(Arc::new(disk.clone())).unwrap();
    (disk, db)
}

/// The walk ended at the first record that it could not read, so that what had expired behind it stayed for ever.
#[test]
fn c9_a_record_that_cannot_be_read_keeps_no_other_row_from_being_deleted_and_is_told() {
    let (disk, db) = world(&lazy());
    let (first, map, table) = (db.map("first").unwrap(), db.map("map").unwrap(), db.table("table").unwrap());
    for number in 0..40 {
        db.put_expiring(&first, key(number), [number as u8; 200], LATER).unwrap().forget();
        db.put_expiring(&map, key(number), [100 + number as u8; 200], LATER).unwrap().forget();
        db.put_expiring(&table, key(number), [200 + number as u8; 200], LATER).unwrap().forget();
    }
    make_cold(&db, &db.map("ballast").unwrap());
    let bytes = disk.bytes("segment-00000000");
    let place_of = |byte: u8| 8 * bytes.windows(200).position(|row| row == [byte; 200]).unwrap() as u64;
    let damaged = [place_of(7), place_of(207)];
    damaged.iter().for_each(|&bit| disk.flip_bit("segment-00000000", bit));
    disk.set_time_ms(START_MS + 10);
    for _ in 0..2 {
        db.persist().unwrap();
        let statistics = db.statistics();
        assert_eq!(statistics.expired_rows, 118);
        let failure = statistics.expiry_failure.unwrap();
        assert!(failure.contains("segment-00000000") && failure.contains("offset"), "{failure}");
    }
    assert_eq!(db.get(&first, key(7)).unwrap_err().kind(), ErrorKind::Corrupted);
    assert_eq!(db.get(&table, key(7)).unwrap_err().kind(), ErrorKind::Corrupted);
    damaged.iter().for_each(|&bit| disk.flip_bit("segment-00000000", bit));
    db.persist().unwrap();
    let statistics = db.statistics();
    assert_eq!((statistics.expired_rows, statistics.expiry_failure), (120, None));
    assert_eq!((first.len(), map.len(), table.len()), (0, 0, 0));
}

/// The format said that rows may expire, which older programs do not open, though the call had changed nothing.
#[test]
fn c9_a_time_to_live_that_is_refused_leaves_the_format_as_it_was() {
    let (disk, db) = world(&manual());
    let hour = Duration::from_secs(3600);
    db.map("map").unwrap();
    db.table("table").unwrap();
    let formats = || [0, 4096].map(|slot| disk.bytes("superblock")[slot + 8]);
    let before = formats();
    let refused = [
        db.map_with_time_to_live("map", hour).map(drop),
        db.map_with_time_to_live("table", hour).map(drop),
        db.table_with_time_to_live("map", hour).map(drop),
        db.table_with_time_to_live("", hour).map(drop),
    ];
    for outcome in refused {
        assert_eq!(outcome.unwrap_err().kind(), ErrorKind::Input);
    }
    assert_eq!(formats(), before);
    db.map_with_time_to_live("tokens", hour).unwrap();
    assert_eq!(formats(), [4, 4]);
}

#[test]
fn c4_a_list_of_objects_says_how_long_their_rows_stay() {
    let (disk, db) = world(&manual());
    let minute = Duration::from_secs(60);
    db.map_with_time_to_live("tokens", minute).unwrap();
    db.table("table").unwrap();
    let stay = |db: &Kiln| db.objects().iter().map(|object| object.time_to_live).collect::<Vec<_>>();
    assert_eq!(stay(&db), [Some(minute), None]);
    db.close().unwrap();
    assert_eq!(stay(&crate::crash::reopen(&disk).unwrap()), [Some(minute), None]);
}

/// Rows that the engine deleted meanwhile, since they had expired, were problems by the thousand.
#[test]
fn a_check_of_an_open_database_finds_nothing_wrong_while_rows_expire() {
    let options = background().segment_bytes(256 << 10).memory(4 << 20);
    for _ in 0..10 {
        let (disk, db) = world(&options);
        let table = db.table("table").unwrap();
        for number in 0..5_000 {
            db.put_expiring(&table, key(number), [7; 20], LATER).unwrap().forget();
        }
        db.persist().unwrap();
        disk.set_time_ms(START_MS + 20);
        for _ in 0..5 {
            let report = db.check().unwrap();
            assert!(report.is_clean(), "{} problems, {:?}", report.problems.len(), report.problems.first());
        }
    }
}

/// Whoever was told within it, and asked how many rows there are, waited for the check, and that for him.
#[test]
fn a_check_of_an_open_database_tells_who_waits_while_nothing_is_locked() {
    watched("a_check_of_an_open_database_tells_who_waits", PATIENCE, |_| {
        for options in [manual(), background().window(Duration::from_secs(3_600))] {
            let (disk, db) = world(&options);
            let map = db.map("map").unwrap();
            db.put_expiring(&map, "key", "value", LATER).unwrap().forget();
            disk.set_time_ms(START_MS + 20);
            let ((_, receipt), asking) = (db.put(&map, "other", "value").unwrap().fast(), map.clone());
            receipt.on_durable(kiln::Level::LOCAL, move |_| assert_eq!(asking.len(), 1));
            assert!(db.check().unwrap().is_clean());
        }
    });
}

/// It was counted from the moment as of which the transaction sees rows: of one that had gone on for longer than that the row was never there.
#[test]
fn c2_what_a_transaction_puts_expires_so_long_after_it_is_put() {
    let (disk, db) = world(&manual());
    let at = |after_ms| disk.set_time_ms(START_MS + after_ms);
    let until = |after_ms| Expiry::At(START_MS + after_ms);
    let map = db.map("map").unwrap();
    let brief = db.map_with_time_to_live("brief", Duration::from_millis(10)).unwrap();
    db.put_expiring(&map, "met", "value", until(100)).unwrap().forget();
    let tx = db.begin().unwrap();
    assert!(tx.get(&map, "met").unwrap().is_some());
    at(50);
    tx.put_expiring(&map, "put", "value", Expiry::In(Duration::from_millis(10))).unwrap();
    assert!(tx.set_expiry(&map, "met", Expiry::In(Duration::from_millis(10))).unwrap());
    tx.put(&brief, "put", "value").unwrap();
    tx.add(&brief, "added", 1).unwrap();
    let puts = [(&map, "put"), (&map, "met"), (&brief, "put"), (&brief, "added")];
    let sees = |(object, key): (&Map, &str)| tx.get(object, key).unwrap().is_some();
    assert!(puts.into_iter().all(sees));
    tx.commit().unwrap().forget();
    for (object, key) in puts {
        assert_eq!(db.expiry(object, key).unwrap(), Some(until(60)), "{key}");
    }
    // And what one operation does whose closure takes long.
    db.put_expiring(&brief, "slow", "value", until(55)).unwrap().forget();
    at(55);
    let slow = |_: Option<&[u8]>| {
        at(80);
        Some("value")
    };
    db.update(&brief, "slow", slow).unwrap().forget();
    assert_eq!(db.expiry(&brief, "slow").unwrap(), Some(until(90)));
}

/// Each map in which something had expired had a walk of its own, over the keys of all maps; and what it read took the cache, and passed for reads that somebody wants.
#[test]
fn what_has_expired_in_many_maps_is_found_in_one_walk_over_the_records_on_disk() {
    const ROWS: u32 = 1_500;
    const MAPS: u32 = 20;
    let disk = SimulatedDevice::new(seed());
    disk.set_time_ms(1_000);
    let (device, reads) = HookedDevice::counting(&disk, |operation, _| operation == Operation::Read);
    let db = lazy().open_on(device).unwrap();
    let large = db.map("large").unwrap();
    for number in 0..ROWS {
        db.put(&large, number.to_be_bytes(), [0; 200]).unwrap().forget();
    }
    let maps: Vec<_> = (0..MAPS).map(|number| db.map(&format!("map {number}")).unwrap()).collect();
    for map in &maps {
        db.put_expiring(map, "expires", "value", Expiry::At(2_000)).unwrap().forget();
        db.put_expiring(map, "later", "value", Expiry::At(9_000)).unwrap().forget();
    }
    make_cold(&db, &db.map("ballast").unwrap());
    disk.set_time_ms(3_000);
    let (before, read_before) = (db.statistics(), reads.load(Ordering::SeqCst));
    db.persist().unwrap();
    let (after, read) = (db.statistics(), reads.load(Ordering::SeqCst) - read_before);
    assert_eq!(after.expired_rows, u64::from(MAPS));
    assert!((u64::from(ROWS)..u64::from(ROWS) * 3 / 2).contains(&read), "{read} reads");
    let counted = after.cold_reads - before.cold_reads;
    assert!(counted <= 2 * u64::from(MAPS), "{counted} reads that count");
    assert!(maps.iter().all(|map| map.len() == 1));
    // And the others in their time.
    disk.set_time_ms(9_000);
    db.persist().unwrap();
    assert_eq!(db.statistics().expired_rows, 2 * u64::from(MAPS));
}
