//! What who counts rows that have expired can rely on.

use std::sync::Arc;

use crate::device::SimulatedDevice;
use crate::error::Result;
use crate::{Expiry, Object, Options};

/// A count was too low by what compaction deleted between its look at what had expired and its look at what is stored.
#[test]
fn while_rows_are_counted_compaction_deletes_none_that_has_expired() -> Result<()> {
    let disk = SimulatedDevice::new(1);
    disk.set_time_ms(1_000);
    let db =
        Options::new().background(false).segment_bytes(16 << 10).memory(0).open_on(Arc::new(disk.clone()))?;
    let map = db.map("map")?;
    for number in 0..60_u8 {
        let expiry = if number < 20 { Expiry::Never } else { Expiry::At(2_000) };
        db.put_expiring(&map, [number], [number; 200], expiry)?.forget();
    }
    db.compact(|_| {})?;
    disk.set_time_ms(2_000);
    {
        let _counting = db.engine().expiring.deleting();
        db.compact(|_| {})?;
        assert_eq!((db.statistics().expired_rows, map.len_estimate()), (0, 60));
    }
    assert_eq!(map.len(), 20);
    db.compact(|_| {})?;
    assert_eq!((db.statistics().expired_rows, map.len_estimate(), map.len()), (40, 20, 20));
    Ok(())
}
