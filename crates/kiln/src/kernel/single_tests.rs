//! Attempts of one operation: what they leave behind, and what happens between them.

use std::collections::HashMap;
use std::sync::Arc;

use super::{Learnt, Setback};
use crate::device::{Keep, SimulatedDevice};
use crate::kernel::settled::tests::{ROW, deletion, row_on_disk};
use crate::objects::HasHandle;
use crate::{Kiln, Map, Object, Options};

const VALUE: [u8; 64] = [7; 64];

fn open(disk: &SimulatedDevice) -> Kiln {
    let options =
        Options::new().background(false).segment_bytes(64 << 10).memory(0).space_amplification(100.0);
    options.open_on(Arc::new(disk.clone())).unwrap()
}

/// Two keys whose entries in the index nothing tells apart.
fn alike(db: &Kiln, map: &Map) -> [[u8; 8]; 2] {
    const TAG_BITS: u32 = 19;
    let (engine, object) = (db.engine(), map.handle().id);
    let mask = (1 << (engine.index.base_level() + TAG_BITS)) - 1;
    let mut known = HashMap::new();
    let mut alike = (0_u64..).map(u64::to_be_bytes).filter_map(|key| {
        let hash = engine.hash(object, &key);
        assert!(engine.index.is_known_hash(hash & mask, hash));
        known.insert(hash & mask, key).map(|before| [before, key])
    });
    alike.next().unwrap()
}

/// The record that the put finds first is another key's, and in memory, so space is taken; its own is on disk, so the attempt ends. What
/// it took would otherwise be hardened as whatever was in that memory when the ring had come there before.
#[test]
fn c9_log_space_that_a_put_takes_and_cannot_use_yet_holds_padding() {
    let disk = SimulatedDevice::new(1);
    let db = open(&disk);
    let map = db.map("map").unwrap();
    let [hot, cold] = alike(&db, &map);
    let put = |key: &[u8], value: &[u8]| db.put(&map, key, value).unwrap().forget();
    put(&hot, &VALUE);
    put(&cold, &VALUE);
    let log = &db.engine().log;
    // All of it is live and more than there is memory for: otherwise the two would be kept there.
    let mut fillers = 0_u64;
    while log.tail() < 3 * log.ring_bytes() {
        fillers += 1;
        put(format!("filler {fillers}").as_bytes(), &[0; 5_000]);
        db.persist().unwrap();
    }
    put(&hot, b"hot");
    db.persist().unwrap();
    let (tail, record_bytes) = (log.tail(), 24 + 8 + VALUE.len() as u64);
    put(&cold, &VALUE);
    assert_eq!(log.tail() - tail, 2 * record_bytes, "the first attempt has taken its space");
    db.persist().unwrap();
    for db in [db, open(&disk.after_crash(&mut |_| Keep::Lost))] {
        assert!(db.check().unwrap().is_clean());
        let map = db.map("map").unwrap();
        assert_eq!(db.get(&map, hot).unwrap().as_deref(), Some(&b"hot"[..]));
        assert_eq!(db.get(&map, cold).unwrap().as_deref(), Some(&VALUE[..]));
        assert_eq!(map.len(), 2 + fillers);
    }
}

/// The first attempt found the row's entry in the index, did not know whether it was the row's, and asked the tree all the same, which did not
/// have it yet. The row's way from one to the other changes nothing for who has seen the bucket: so the next attempt believed that there was none.
#[test]
fn c2_a_row_that_settles_while_its_delete_reads_is_deleted() {
    let (db, table) = row_on_disk();
    let (engine, writes) = (db.engine(), deletion(&db, &table));
    let (change, mut learnt) = (writes.change(&writes.writes()[0]), Learnt::default());
    let outcome = engine.attempt_single(&change, None, &mut learnt);
    assert!(matches!(outcome, Err(Setback::Cold)), "it is on disk");
    engine.learn(&change, &mut learnt).unwrap();
    assert!(db.settle().unwrap() > 1);
    let committed = loop {
        match engine.attempt_single(&change, None, &mut learnt) {
            Ok(committed) => break committed,
            Err(_) => engine.learn(&change, &mut learnt).unwrap(),
        }
    };
    assert!(committed.existed);
    assert_eq!(db.get(&table, ROW).unwrap(), None);
}
