//! What is written anew, beside those who have read it.

use std::sync::Arc;

use crate::device::{Fault, FaultKind, OperationKind, SimulatedDevice};
use crate::kernel::handle::HasHandle;
use crate::kernel::session::SESSIONS_OBJECT;
use crate::storage::log::Purpose;
use crate::storage::record::Address;
use crate::sync::atomic::Ordering;
use crate::{ErrorKind, Isolation, Kiln, Map, Options};

/// A database whose map has a key.
fn new_database() -> (Kiln, Map) {
    let options = Options::new().background(false).segment_bytes(64 << 10).memory(0);
    let db = options.open_on(Arc::new(SimulatedDevice::new(1))).unwrap();
    let map = db.map("map").unwrap();
    db.put(&map, "key", "value").unwrap().forget();
    (db, map)
}

fn address_of_key(db: &Kiln, map: &Map) -> Address {
    let engine = db.engine();
    engine.index.addresses_of(engine.hash(map.handle().id, b"key")).next().unwrap()
}

fn move_key(db: &Kiln, map: &Map) {
    let (engine, before) = (db.engine(), address_of_key(db, map));
    let segment_of = |address: Address| address / engine.log.segment_bytes();
    while segment_of(engine.log.hardened()) == segment_of(before) {
        db.put(map, "filler", [0; 5_000]).unwrap().forget();
        db.persist().unwrap();
    }
    db.compact(|_| {}).unwrap();
    assert!(before < engine.log.begin() && address_of_key(db, map) > before);
}

/// As compaction does, and without hardening.
fn write_anew(db: &Kiln, object: u32, key: &[u8]) {
    let (engine, hash) = (db.engine(), db.engine().hash(object, key));
    let address = || engine.index.addresses_of(hash).next().unwrap();
    let (before, mut key, mut value) = (address(), Vec::new(), Vec::new());
    let record = engine.copy_of(before, &mut key, &mut value).unwrap();
    assert!(engine.write_anew(before, hash, &record, Purpose::Ordinary).unwrap());
    assert!(address() > before);
}

/// Whoever had read for longer than it takes until the log is written anew never committed, though nobody wrote what they had read.
#[test]
fn c2_what_was_moved_has_not_changed_for_who_has_read_it() {
    let (db, map) = new_database();
    let (watch, watched) = (db.watch(&map, "key").unwrap(), db.begin().unwrap());
    let transaction = db.begin().unwrap();
    assert_eq!(transaction.get(&map, "key").unwrap().unwrap(), b"value");
    move_key(&db, &map);
    assert!(watched.require(&watch).unwrap());
    watched.commit().unwrap().forget();
    // Read again where it is now, and then changed.
    assert_eq!(transaction.get(&map, "key").unwrap().unwrap(), b"value");
    transaction.put(&map, "key", "newer").unwrap();
    transaction.commit().unwrap().forget();
    assert_eq!(db.get(&map, "key").unwrap().unwrap(), b"newer");
}

#[test]
fn c2_what_was_changed_before_it_moved_or_afterwards_has_changed() {
    for moves_first in [false, true] {
        let (db, map) = new_database();
        let (watch, transaction) = (db.watch(&map, "key").unwrap(), db.begin().unwrap());
        assert_eq!(transaction.get(&map, "key").unwrap().unwrap(), b"value");
        if moves_first {
            move_key(&db, &map);
        }
        db.put(&map, "key", "newer").unwrap().forget();
        move_key(&db, &map);
        assert!(!db.begin().unwrap().require(&watch).unwrap());
        transaction.put(&map, "other", "value").unwrap();
        assert_eq!(transaction.commit().map(drop).unwrap_err().kind(), ErrorKind::Conflict);
    }
}

/// A copy has a version of its own, and does not say that it is one.
#[test]
fn c2_under_snapshot_isolation_what_was_moved_is_seen_and_not_written_over() {
    let (db, map) = new_database();
    db.persist().unwrap();
    let transaction = db.begin_with(Isolation::Snapshot).unwrap();
    write_anew(&db, map.handle().id, b"key");
    assert_eq!(transaction.get(&map, "key").unwrap().unwrap(), b"value");
    transaction.put(&map, "key", "newer").unwrap();
    assert_eq!(transaction.commit().map(drop).unwrap_err().kind(), ErrorKind::Conflict);
}

/// An unchanged stamp does not say that the record is where it was read.
#[test]
fn c3_a_row_that_moves_while_an_update_decides_is_updated() {
    for is_in_memory in [false, true] {
        let (db, map) = new_database();
        if !is_in_memory {
            move_key(&db, &map);
            while db.engine().log.head() <= address_of_key(&db, &map) {
                db.put(&map, "filler", [0; 5_000]).unwrap().forget();
                db.persist().unwrap();
            }
        }
        let mut decisions = 0;
        let updated = db.update(&map, "key", |old| {
            assert_eq!(old, Some(&b"value"[..]));
            move_key(&db, &map);
            decisions += 1;
            Some("newer")
        });
        updated.unwrap().forget();
        assert_eq!((db.get(&map, "key").unwrap().unwrap(), decisions), (b"newer".to_vec(), 1));
    }
}

/// The session was lost with a copy of its record, though what it says was durable.
#[test]
fn c7_a_session_whose_record_moved_is_lost_only_with_a_commit_of_its_own() {
    let disk = SimulatedDevice::new(1);
    let db = Options::new().background(false).open_on(Arc::new(disk.clone())).unwrap();
    let map = db.map("map").unwrap();
    let use_once = |id: &str| db.session(id).unwrap().add(&map, "key", 1).unwrap().forget();
    ["moved", "used", "forgotten"].into_iter().for_each(|id| _ = use_once(id));
    db.persist().unwrap();
    ["used", "new"].into_iter().for_each(|id| _ = use_once(id));
    assert!(db.forget_session("forgotten").unwrap().forget());
    write_anew(&db, SESSIONS_OBJECT, b"moved");
    disk.inject(Fault { operation: OperationKind::Sync, nth: 1, kind: FaultKind::EIO, sticky: true });
    assert_eq!(db.persist().unwrap_err().kind(), ErrorKind::Lost);
    let moved = db.session("moved").unwrap();
    assert_eq!((moved.recovered_serial(), moved.durable_serial().unwrap()), (1, 1));
    for id in ["used", "forgotten", "new"] {
        assert_eq!(db.session(id).unwrap_err().kind(), ErrorKind::Lost, "{id}");
    }
}

/// They were written anew while they settled, which then had been in vain, and took the place of others in memory.
#[test]
fn rows_that_are_settling_are_not_written_anew_unless_the_log_is_far_too_long() {
    const ROW_BYTES: usize = 4_000;
    let options = Options::new().background(false).segment_bytes(64 << 10).memory(0);
    let db = options.open_on(Arc::new(SimulatedDevice::new(1))).unwrap();
    let (engine, table) = (db.engine(), db.table("table").unwrap());
    let put = |row: u8| db.put(&table, [row], [row; ROW_BYTES]).unwrap().forget();
    let put_until_too_long = |eighths: u64| {
        let mut rows = (60..100).cycle();
        while engine.log.hardened() < engine.liveness.lock().live_bytes() / 8 * eighths {
            rows.next().into_iter().for_each(put);
            db.persist().unwrap();
        }
    };
    (0..100).for_each(put);
    db.persist().unwrap();
    // It needs what it sees of the oldest segment, so that nothing is compacted meanwhile.
    let snapshot = db.snapshot().unwrap();
    put(0);
    put_until_too_long(17);
    drop(snapshot);
    let rewritten = || {
        engine.compact_round().unwrap();
        engine.compaction.records.load(Ordering::Relaxed)
    };
    let moving = engine.settled.pace.begin_moving();
    assert_eq!(rewritten(), 0, "these are settling");
    put_until_too_long(19);
    assert!(rewritten() > 0, "the log is too long even so");
    drop(moving);
}

/// An eighth of a bound that nobody has set is more than there are numbers.
#[test]
fn a_log_without_a_bound_settles() {
    let options = Options::new().background(false).segment_bytes(64 << 10).memory(0);
    let options = options.space_amplification(f64::INFINITY);
    let db = options.open_on(Arc::new(SimulatedDevice::new(1))).unwrap();
    db.put(&db.table("table").unwrap(), "row", "value").unwrap().forget();
    db.persist().unwrap();
    let _moving = db.engine().settled.pace.begin_moving();
    db.engine().compact_round().unwrap();
}
