//! Settlings by itself that fail: what is told of them, and how long none is tried again.

use crate::error::Error;
use crate::sync::Mutex;

/// A pause is doubled so often.
const DOUBLINGS_MAX: u32 = 4;

/// See the module's documentation.
#[derive(Default)]
pub(crate) struct SettlingFailures(Mutex<Failed>);

#[derive(Default)]
struct Failed {
    /// Since something last settled.
    count: u32,
    last: Option<String>,
}

impl SettlingFailures {
    /// What kept the last one from settling what was due; `None` if something has settled since.
    pub(crate) fn last(&self) -> Option<String> {
        self.0.lock().last.clone()
    }

    /// Notes one, of a part of the log that is so long. Gives how much more of the log has to leave memory before the next: all of the part may be read for
    /// it, in vain.
    pub(super) fn note(&self, error: &Error, part_bytes: u64) -> u64 {
        let mut failed = self.0.lock();
        failed.last = Some(error.to_string());
        let doublings = failed.count.min(DOUBLINGS_MAX);
        failed.count = failed.count.saturating_add(1);
        (part_bytes / 2).saturating_mul(1 << doublings)
    }

    /// Something has settled.
    pub(super) fn end(&self) {
        *self.0.lock() = Failed::default();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use crate::device::{Fault, FaultKind, OperationKind, SimulatedDevice};
    use crate::sync::atomic::Ordering;
    use crate::{Kiln, Options};

    const DUE_BYTES: u64 = 128 << 10;

    /// Puts rows until settling is due; says how much log has left memory for it.
    fn fill(db: &Kiln) -> u64 {
        let (engine, table) = (db.engine(), db.table("table").unwrap());
        let head = engine.log.head();
        while !engine.is_settling_due() {
            let row = engine.log.tail().to_be_bytes();
            db.put(&table, row, [0; 3_000]).unwrap().forget();
            engine.harden_all().unwrap();
            engine.make_room(0);
        }
        engine.log.head() - head
    }

    fn open(disk: &SimulatedDevice) -> Kiln {
        let options = Options::new().background(false).segment_bytes(64 << 10).memory(0);
        let options = options.settle_log_bytes(DUE_BYTES).space_amplification(f64::INFINITY);
        options.open_on(Arc::new(disk.clone())).unwrap()
    }

    /// Each time all of the part was collected, for a tree that takes nothing any more, and soon again; and nobody was told.
    #[test]
    fn a_settling_that_fails_is_told_and_tried_again_later_each_time_and_not_read_for_in_vain() {
        let disk = SimulatedDevice::new(1);
        let db = open(&disk);
        fill(&db);
        assert_eq!(db.statistics().settling_failure, None);
        // The first one is of the superblock.
        disk.inject(Fault { operation: OperationKind::Sync, nth: 2, kind: FaultKind::EIO, sticky: false });
        assert!(!db.engine().settle_if_due());
        assert_eq!(disk.faults_fired(), 1);
        let failure = db.statistics().settling_failure.unwrap();
        assert!(failure.contains("tree"), "{failure}");
        let first = fill(&db);
        assert!(first >= DUE_BYTES / 2, "{first}");
        disk.inject(Fault { operation: OperationKind::Read, nth: 1, kind: FaultKind::EIO, sticky: false });
        assert!(!db.engine().settle_if_due());
        assert_eq!(disk.faults_fired(), 1, "the log was read");
        disk.clear_faults();
        let failure = db.statistics().settling_failure.unwrap();
        assert!(failure.contains("open the database again"), "{failure}");
        let unsettled = db.engine().log.head() - first;
        assert!(fill(&db) > first.max(unsettled / 2));
        drop(db);
        let db = open(&disk);
        assert!(db.engine().settle_if_due());
        assert!(db.check().unwrap().is_clean());
    }

    #[test]
    fn what_has_failed_is_told_until_something_settles() {
        let disk = SimulatedDevice::new(1);
        let db = open(&disk);
        fill(&db);
        disk.inject(Fault { operation: OperationKind::Read, nth: 1, kind: FaultKind::EIO, sticky: false });
        assert!(!db.engine().settle_if_due());
        let waits_for_head = db.engine().settled.waits_for_head.load(Ordering::SeqCst);
        assert!(waits_for_head >= db.engine().log.head() + DUE_BYTES / 2);
        assert!(db.statistics().settling_failure.is_some());
        db.settle().unwrap();
        assert_eq!(db.statistics().settling_failure, None);
        // It would have waited on, for several times as much log as had failed.
        assert_eq!(db.engine().settled.waits_for_head.load(Ordering::SeqCst), 0);
    }
}
