//! Pins, quiescence, and the clock that closes versions by them.

use std::sync::Arc;

use super::together;
use crate::kernel::clock::Clock;
use crate::storage::epoch;
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// What was taken out of sight is put to another use only when nobody can be looking at it any more.
pub(super) fn pins_hold_actions_up() {
    const STEPS: usize = 3;
    let shown = Arc::new(AtomicU64::new(0));
    let reused: Arc<[AtomicBool; STEPS]> = Arc::default();
    let reader = |rounds: usize| -> Box<dyn FnOnce() + Send> {
        let (shown, reused) = (shown.clone(), reused.clone());
        Box::new(move || {
            for _ in 0..rounds {
                let _pin = epoch::pin();
                let at = shown.load(Ordering::SeqCst) as usize;
                // Pins nest, and only the outermost one counts.
                drop(epoch::pin());
                assert!(!reused[at].load(Ordering::SeqCst), "an action ran under a pin from before");
            }
        })
    };
    let actor = {
        let (shown, reused) = (shown.clone(), reused.clone());
        Box::new(move || {
            for at in 1..STEPS {
                shown.store(at as u64, Ordering::SeqCst);
                epoch::quiesce();
                reused[at - 1].store(true, Ordering::SeqCst);
            }
        })
    };
    together(vec![reader(3), reader(2), actor]);
}

/// Neither a thread that ended, nor one that waits for something without a pin, nor one that pins again and again delays a
/// quiesce.
pub(super) fn idle_threads_hold_nobody_up() {
    let done = Arc::new(AtomicBool::new(false));
    shuttle::thread::spawn(|| drop(epoch::pin())).join().unwrap_or_else(|_| panic!("a thread panicked"));
    let idle = shuttle::thread::spawn(|| {
        drop(epoch::pin());
        shuttle::thread::park();
    });
    let (woken, seen) = (idle.thread().clone(), done.clone());
    let busy = Box::new(move || {
        for _ in 0..100 {
            drop(epoch::pin());
            if seen.load(Ordering::SeqCst) {
                return;
            }
        }
    });
    let waiting = Box::new(move || {
        epoch::quiesce();
        epoch::quiesce();
        done.store(true, Ordering::SeqCst);
        woken.unpark();
    });
    together(vec![busy, waiting]);
    idle.join().unwrap_or_else(|_| panic!("a thread panicked"));
}

/// Who joins a version is done before that version counts as closed.
pub(super) fn nothing_joins_a_closed_version() {
    let clock = Arc::new(Clock::new(1));
    let closed = Arc::new(AtomicU64::new(0));
    let committer = || -> Box<dyn FnOnce() + Send> {
        let (clock, closed) = (clock.clone(), closed.clone());
        Box::new(move || {
            for _ in 0..2 {
                let _pin = epoch::pin_for_commit();
                let version = clock.join();
                let newest = closed.load(Ordering::SeqCst);
                assert!(newest < version, "version {version} was joined, and {newest} is closed");
            }
        })
    };
    let ticker = |rounds: usize| -> Box<dyn FnOnce() + Send> {
        let (clock, closed) = (clock.clone(), closed.clone());
        Box::new(move || {
            for _ in 0..rounds {
                let version = clock.close();
                closed.fetch_max(version, Ordering::SeqCst);
            }
        })
    };
    together(vec![committer(), committer(), ticker(2), ticker(1)]);
}
