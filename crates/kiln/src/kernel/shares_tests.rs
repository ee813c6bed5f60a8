//! Tests of the shares: who gets what, and who sees to it.

use std::sync::Arc;
use std::time::Duration;

use super::super::hand_over::HandedOver;
use super::{Engine, Moving, Needs, PARTS, enough_reads, reads};
use crate::device::SimulatedDevice;
use crate::sync::atomic::Ordering;
use crate::{Kiln, Options};

#[test]
fn neither_pages_nor_records_get_what_they_have_no_use_for_while_the_others_have() {
    const BYTES: u64 = 800;
    let parts = |pages, records, parts| Needs { records, pages }.page_parts(BYTES, parts);
    assert_eq!(parts(0, 10_000, 4), 0, "there are no pages");
    assert_eq!(parts(10_000, 10_000, 0), PARTS / 2, "there is too little for both");
    assert_eq!(parts(10_000, 0, 0), PARTS - 1, "records have something always");
    assert_eq!(parts(10_000, 150, 0), 7);
    assert_eq!(parts(10_000, 250, 0), 6);
    assert_eq!(parts(250, 10_000, 0), 3, "pages have no use for more");
    // A tree that grows and shrinks by a little changes nothing.
    assert_eq!((parts(301, 0, 3), parts(299, 0, 4), parts(251, 0, 4), parts(249, 0, 4)), (4, 4, 4, 3));
    // However little there is.
    for bytes in 0..20 {
        let parts = Needs { records: 0, pages: 1 << 40 }.page_parts(bytes, 0);
        assert!((1..PARTS).contains(&parts), "{parts} parts of {bytes} bytes");
    }
}

/// A reader divided gigabytes on its own thread, and the others met a cache that was empty meanwhile.
#[test]
fn c3_who_reads_neither_divides_the_memory_nor_waits_for_who_does() {
    const ROWS: u32 = 30_000;
    let options = Options::new().segment_bytes(64 << 10).memory(4 << 20).space_amplification(f64::INFINITY);
    let db = options.open_on(Arc::new(SimulatedDevice::new(1))).unwrap();
    let map = db.map("map").unwrap();
    (0..ROWS).for_each(|row| db.put(&map, row.to_be_bytes(), [row as u8; 200]).unwrap().forget());
    db.persist().unwrap();
    let engine = db.engine();
    // So that what was written counts for what was before.
    engine.share_for_good();
    let shares = || (engine.log.share(), engine.cold.cache.bytes());
    let (before, dividing) = (shares(), engine.shares.division.lock());
    // All over the place: neighbours would come with each other.
    for row in (0..ROWS).map(|row| row * 7_919 % ROWS) {
        assert_eq!(db.get(&map, row.to_be_bytes()).unwrap().unwrap(), [row as u8; 200]);
    }
    assert!(engine.shares.is_wanted(), "nobody was asked");
    assert_eq!(shares(), before);
    drop(dividing);
    // The keeper sees to it, though nobody reads or writes any more.
    while shares().0 == before.0 || engine.shares.is_wanted() {
        std::thread::sleep(Duration::from_millis(1));
    }
    assert!(shares().1 > before.1, "{:?}", shares());
}

/// A database whose caches have the larger share, and whose log has all the more to be handed over.
fn reading() -> Kiln {
    let options = Options::new().background(false).segment_bytes(64 << 10).memory(16 << 20);
    let db = options.open_on(Arc::new(SimulatedDevice::new(1))).unwrap();
    let map = db.map("map").unwrap();
    let engine = db.engine();
    (0..20_000u32).for_each(|row| db.put(&map, row.to_be_bytes(), [7; 100]).unwrap().forget());
    engine.persist().unwrap();
    engine.log.set_share(1 << 20);
    let mut division = engine.shares.at_rest().unwrap();
    division.is_reading = true;
    division.handed_over = engine.end_hand_over(None, true);
    drop(division);
    db
}

/// Begins to divide the caches anew, with memory that the log gives up, or without.
fn begin_moving(engine: &Engine, handed_over: Option<HandedOver>) {
    let mut division = engine.shares.at_rest().unwrap();
    let (records, pages, images) = division.bytes(engine.shares.cache);
    division.moving = Some(Moving { records, pages, images, handed_over });
}

fn handed_over_records(engine: &Engine) -> u64 {
    engine.shares.hand_over.records.load(Ordering::Relaxed)
}

/// The keeper divides a shard in each of its rounds: until it was through, what left the log's memory was lost, and rows that are read all the time may leave together.
#[test]
fn what_leaves_the_log_is_handed_over_while_the_caches_are_divided_among_themselves() {
    for log_gives_memory_up in [false, true] {
        let db = reading();
        let engine = db.engine();
        let handed_over =
            log_gives_memory_up.then(|| engine.begin_hand_over(engine.log.share() / 2).unwrap());
        begin_moving(engine, handed_over);
        let before = handed_over_records(engine);
        engine.hand_over_what_leaves();
        let after = handed_over_records(engine);
        assert_eq!(after > before, !log_gives_memory_up, "{before} and {after}");
    }
}

/// Who settles divides all shards at once, and kept the keeper from handing anything over meanwhile.
#[test]
fn what_leaves_the_log_is_handed_over_while_who_settles_divides_the_caches() {
    let db = reading();
    let engine = db.engine();
    begin_moving(engine, None);
    engine.cold.cache.begin_division(engine.cold.cache.bytes(), 136, u64::MAX);
    engine.share_for_good();
    assert!(engine.shares.at_rest().is_some());
    assert!(handed_over_records(engine) > 10_000);
}

/// Where the caches cannot have more, it was not noted that somebody had looked: each read woke the keeper.
#[test]
fn where_the_caches_have_all_that_they_may_have_it_is_not_looked_at_with_each_read() {
    const ROWS: u32 = 3_000;
    let options = Options::new().background(false).segment_bytes(64 << 10).memory(0);
    let db = options.space_amplification(f64::INFINITY).open_on(Arc::new(SimulatedDevice::new(1))).unwrap();
    let map = db.map("map").unwrap();
    (0..ROWS).for_each(|row| db.put(&map, row.to_be_bytes(), [row as u8; 200]).unwrap().safe().unwrap());
    let engine = db.engine();
    (0..ROWS).for_each(|row| assert!(db.get(&map, row.to_be_bytes()).unwrap().is_some()));
    let (reads, after) = (reads(&engine.cold, &engine.settled.tree), enough_reads(&engine.cold, &engine.log));
    let looked_at = engine.shares.looked_at_reads.load(Ordering::Relaxed);
    assert!(reads > after && reads - looked_at <= after, "{reads}, looked at after {looked_at}");
}

/// Pages that would have had room in all of the caches, and not in what they may have of them, were never given more: a table of just that size had each tenth of its
/// leaves read from disk for ever.
#[test]
fn what_has_room_in_the_caches_has_it_in_whole_parts() {
    const PART: u64 = 1 << 20;
    let are_beyond = |records, pages| Needs { records, pages }.are_beyond(PARTS * PART);
    assert!(!are_beyond(0, 7 * PART) && !are_beyond(PART, 7 * PART) && !are_beyond(8 * PART, 0));
    assert!(are_beyond(0, 7 * PART + 1) && are_beyond(PART + 1, 7 * PART) && are_beyond(8 * PART + 1, 0));
    assert!(are_beyond(1, 8 * PART) && !are_beyond(4 * PART, 4 * PART));
}

/// What was less than a 64th of the caches was no reason to divide them anew: a small table that was loaded, or had settled, was read from disk each time.
#[test]
fn pages_have_memory_however_few_they_are_beside_it() {
    let options = Options::new().background(false).memory(64 << 20).segment_bytes(1 << 20);
    for is_loaded in [true, false] {
        let db = options.clone().open_on(Arc::new(SimulatedDevice::new(1))).unwrap();
        let rows = (0..100_u32).map(u32::to_be_bytes);
        if is_loaded {
            db.bulk_load("table", rows.map(|key| Ok::<_, crate::Error>((key, key))), |_| {}).unwrap();
        }
        let table = db.table("table").unwrap();
        if !is_loaded {
            (0..100_u32).for_each(|row| db.put(&table, row.to_be_bytes(), b"value").unwrap().forget());
            db.settle().unwrap();
        }
        let read_all = || {
            let found = (0..100_u32).filter_map(|row| db.get(&table, row.to_be_bytes()).unwrap());
            assert_eq!(found.count(), 100);
            db.engine().settled.tree.cache_misses()
        };
        let before = read_all();
        assert_eq!(
            read_all() - before,
            0,
            "of {} from disk",
            if is_loaded { "a load" } else { "rows that settled" }
        );
    }
}

/// The memory that is read anew was counted in records, of which a page has fifty: of a tree that is a little larger than its part of the memory a tenth of the pages was read from disk for as long as it took
/// to read 65,536 of them.
#[test]
fn a_tree_that_is_only_read_has_the_memory_that_the_log_has_no_use_for_after_some_thousand_reads() {
    const ROWS: u64 = 300_000;
    const READS: u64 = 6_000;
    let options = Options::new().background(false).segment_bytes(1 << 20).memory(64 << 20);
    let db = options.open_on(Arc::new(SimulatedDevice::new(1))).unwrap();
    let rows = (0..ROWS).map(|row| Ok::<_, crate::Error>((row.to_be_bytes(), [row as u8; 100])));
    let table = db.bulk_load("table", rows, |_| {}).unwrap().table;
    let engine = db.engine();
    let before = engine.settled.tree.cache_misses();
    let tree_bytes = db.statistics().tree_used_bytes;
    assert!(db.statistics().page_cache_bytes < tree_bytes, "it is in memory, all of it");
    let mut row = 1_u64;
    while engine.settled.tree.cache_misses() - before < READS && db.statistics().page_cache_bytes < tree_bytes
    {
        for _ in 0..100 {
            row = row.wrapping_mul(0x5851_F42D_4C95_7F2D).wrapping_add(1);
            assert!(db.get(&table, ((row >> 33) % ROWS).to_be_bytes()).unwrap().is_some());
        }
    }
    assert!(db.statistics().page_cache_bytes >= tree_bytes, "{:?}", db.statistics());
}
