//! Attempts of one operation: what happens between them.

use std::sync::Arc;

use super::{Learnt, NEVER, Setback, SingleKey};
use crate::Options;
use crate::device::SimulatedDevice;
use crate::kernel::handle::HasHandle;
use crate::kernel::settled::tests::{ROW, deletion, row_on_disk};

/// The first attempt found the row's entry in the index, did not know whether it was the row's, and asked the tree all the same, which did not
/// have it yet. The row's way from one to the other changes nothing for who has seen the bucket: so the next attempt believed that there was none.
#[test]
fn c2_a_row_that_settles_while_its_delete_reads_is_deleted() {
    let (db, table) = row_on_disk();
    let (engine, writes) = (db.engine(), deletion(&db, &table));
    let (change, mut learnt) = (writes.change(&writes.writes()[0]), Learnt::default());
    let outcome = engine.attempt_single(&change, &table.handle().life, None, &mut learnt);
    assert!(matches!(outcome, Err(Setback::Cold)), "it is on disk");
    engine.learn(&change, &mut learnt).unwrap();
    assert!(db.settle().unwrap() > 1);
    let committed = loop {
        match engine.attempt_single(&change, &table.handle().life, None, &mut learnt) {
            Ok(committed) => break committed,
            Err(_) => engine.learn(&change, &mut learnt).unwrap(),
        }
    };
    assert!(committed.existed);
    assert_eq!(db.get(&table, ROW).unwrap(), None);
}

/// Whoever made something of a long value found the bucket changed each time. What has hardened nobody changes, so it only must be the key's still.
#[test]
fn c3_what_was_made_of_a_hardened_value_is_written_though_another_key_of_its_bucket_has_changed() {
    let db = Options::new().background(false).open_on(Arc::new(SimulatedDevice::new(1))).unwrap();
    let map = db.map("map").unwrap();
    let (engine, object) = (db.engine(), map.handle().id);
    let hash_of = |key: &[u8]| engine.hash(object, key);
    let bucket_of = |key: &[u8]| engine.index.bucket_of(hash_of(key));
    let mut keys = (0_u32..).map(u32::to_be_bytes);
    let other = keys.find(|key| bucket_of(key) == bucket_of(b"key")).unwrap();
    let life = &map.handle().life;
    let single = SingleKey { object, hash: hash_of(b"key"), key: b"key", life };
    let (other, own) = (&other[..], &b"key"[..]);
    for (hardens, changed, holds) in
        [(true, other, true), (false, other, false), (true, own, false), (false, own, false)]
    {
        db.put(&map, "key", "old").unwrap().forget();
        if hardens {
            db.persist().unwrap();
        }
        let reading = engine.read_newest_patiently(single, &mut Vec::new()).unwrap();
        db.put(&map, changed, "new").unwrap().forget();
        let change = single.change(Some(b"made of it"), NEVER);
        let outcome = engine.attempt_single(&change, life, Some(&reading), &mut Learnt::default());
        assert_eq!(outcome.is_ok(), holds, "{hardens}, {changed:?}");
        let expected = match (holds, changed == own) {
            (true, _) => "made of it",
            (false, true) => "new",
            (false, false) => "old",
        };
        assert_eq!(db.get(&map, "key").unwrap().unwrap(), expected.as_bytes());
    }
}

/// A settled row has no record that could be seen to be the same. An update of a long one beside a key of its bucket that was written all the time never came to its end.
#[test]
fn c3_what_was_made_of_a_settled_value_is_written_though_another_key_of_its_bucket_has_changed() {
    let (db, table) = row_on_disk();
    let (engine, object, life) = (db.engine(), table.handle().id, &table.handle().life);
    let hash_of = |key: &[u8]| engine.hash(object, key);
    let bucket_of = |key: &[u8]| engine.index.bucket_of(hash_of(key));
    let mut keys = (0_u32..).map(u32::to_be_bytes);
    let other = keys.find(|key| bucket_of(key) == bucket_of(ROW)).unwrap();
    let single = SingleKey { object, hash: hash_of(ROW), key: ROW, life };
    let settle = || {
        db.persist().unwrap();
        assert_ne!(db.settle().unwrap(), 0);
    };
    let put = |key: &[u8]| db.put(&table, key, "new").unwrap().forget();
    let changes: [(&dyn Fn(), bool); 5] = [
        (&|| put(&other), true),
        (&|| put(ROW), false),
        (&|| _ = db.delete(&table, ROW).unwrap().forget(), false),
        (&|| (put(ROW), settle()).1, false),
        // It cannot be told from the one before.
        (&|| (put(&other), settle()).1, false),
    ];
    for (number, (change_something, holds)) in changes.into_iter().enumerate() {
        db.put(&table, ROW, "old").unwrap().forget();
        settle();
        let (mut value, mut learnt) = (Vec::new(), Learnt::default());
        let reading = engine.read_to_change(single, true, &mut value, &mut learnt).unwrap();
        assert!(reading.is_settled() && value == b"old");
        change_something();
        let change = single.change(Some(b"made of it"), NEVER);
        let outcome = engine.attempt_single(&change, life, Some(&reading), &mut learnt);
        assert_eq!(outcome.is_ok(), holds, "{number}");
        assert_eq!(db.get(&table, ROW).unwrap().as_deref() == Some(b"made of it"), holds, "{number}");
    }
}
