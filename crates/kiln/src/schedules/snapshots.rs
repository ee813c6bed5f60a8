//! The version that threads share as long as it will do for the next snapshot.

use std::sync::Arc;

use super::{quietly, together};
use crate::kernel::snapshot::Shared;
use crate::storage::epoch;
use crate::storage::log::{Log, Purpose};
use crate::storage::record::NO_ADDRESS;
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sync::thread;

const SEGMENT_BYTES: u64 = 64 << 10;

/// One thread opens snapshots. The other commits, hardens, sweeps what nobody needs, and closes the next version for a snapshot: what the sweep has passed must
/// not be given out.
pub(super) fn nobody_gets_what_a_sweep_has_passed() {
    let log = Arc::new(quietly(|| {
        let log = Log::new(2 * SEGMENT_BYTES, SEGMENT_BYTES, 0).unwrap_or_else(|error| panic!("{error}"));
        log.set_limit(1 << 20, 2 * SEGMENT_BYTES);
        log
    }));
    let (shared, passed) = (Arc::new(Shared::default()), Arc::new(AtomicU64::new(0)));
    quietly(|| shared.publish(Some(1), log.tail()));
    let opener = {
        let (log, shared, passed) = (log.clone(), shared.clone(), passed.clone());
        move || {
            for _ in 0..3 {
                let Some((held, ())) = shared.open(&log, || ()) else { continue };
                let passed = passed.load(Ordering::SeqCst);
                assert!(passed < held.version, "version {} is given out, and gone", held.version);
                shared.release(&held);
            }
        }
    };
    let sweeper = move || {
        for version in 1..3 {
            quietly(|| {
                log.retire_chunks();
                let _pin = epoch::pin();
                log.reserve(16, Purpose::Ordinary, NO_ADDRESS).unwrap_or_else(|| panic!("there is space"));
            });
            thread::yield_now();
            if shared.oldest().is_none_or(|held| held > version) {
                passed.store(version, Ordering::SeqCst);
            }
            shared.publish(Some(version + 1), log.tail());
        }
    };
    together(vec![Box::new(opener), Box::new(sweeper)]);
}
