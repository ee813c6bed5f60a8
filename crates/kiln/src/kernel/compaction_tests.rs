//! What is written anew, beside those who have read it.

use std::sync::Arc;

use crate::device::SimulatedDevice;
use crate::objects::HasHandle;
use crate::storage::log::Purpose;
use crate::storage::record::Address;
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
    let (engine, before) = (db.engine(), address_of_key(&db, &map));
    let (mut key, mut value, hash) = (Vec::new(), Vec::new(), engine.hash(map.handle().id, b"key"));
    let record = engine.copy_of(before, &mut key, &mut value).unwrap();
    assert!(engine.write_anew(before, hash, &record, Purpose::Ordinary).unwrap());
    assert!(address_of_key(&db, &map) > before);
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
