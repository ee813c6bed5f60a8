use std::sync::Arc;

use crate::device::SimulatedDevice;
use crate::{Kiln, Options, Table};

fn put_durably(db: &Kiln, table: &Table, number: u32) -> crate::Result<()> {
    // Each in a version of its own: within one, a record is updated where it is.
    db.put(table, [number as u8 % 8], [number as u8; 8_000])?.safe().map(drop)
}

/// Whoever sweeps beside a hardening cannot evict, and looks again when more has hardened. On a full disk nothing more hardens.
#[test]
fn c5_what_could_not_be_dropped_beside_a_hardening_makes_room_on_a_full_disk() {
    let disk = SimulatedDevice::new(1);
    let options = Options::new().segment_bytes(64 << 10).memory(512 << 10).background(false);
    let db = options.open_on(Arc::new(disk.clone())).expect("the disk is empty");
    let table = db.table("table").expect("a table");
    disk.set_capacity(Some(2 << 20));
    db.put(&table, "key", "value").expect("there is room").forget();
    let snapshot = db.snapshot().expect("a snapshot");
    let count = (0..2_000).take_while(|&number| put_durably(&db, &table, number).is_ok()).count();
    assert!((100..1_000).contains(&count), "{count} values of 8,000 bytes in 2 MiB");
    drop(snapshot);
    {
        let _leader = db.engine().hardening.leader.lock();
        db.engine().sweep();
    }
    put_durably(&db, &table, 0).expect("nobody needs the old values any more");
}
