//! What an object knows of when its rows expire, beside walks over them.

use std::sync::Arc;

use super::together;
use crate::kernel::expiry::Lifetimes;
use crate::sync::atomic::{AtomicU64, Ordering};

/// Threads put rows, of which some expire no sooner than others that are known, and renew them; another walks over them all the while. In the end no row
/// expires before what is known to be the soonest time.
pub(super) fn no_row_is_overlooked() {
    let shared = Arc::new((Lifetimes::new(), [const { AtomicU64::new(0) }; 2]));
    let putter = |row: usize, times: &'static [u64]| {
        let shared = shared.clone();
        move || {
            let (lifetimes, rows) = &*shared;
            for &time in times {
                lifetimes.note(time);
                rows[row].store(time, Ordering::Release);
                lifetimes.note(time);
            }
        }
    };
    let walker = {
        let shared = shared.clone();
        move || {
            let (lifetimes, rows) = &*shared;
            for _ in 0..2 {
                lifetimes.begin_walk();
                rows.iter().for_each(|row| lifetimes.note(row.load(Ordering::Acquire)));
                lifetimes.end_walk();
            }
        }
    };
    together(vec![Box::new(putter(0, &[7, 9])), Box::new(putter(1, &[7, 5])), Box::new(walker)]);
    let (lifetimes, rows) = &*shared;
    for row in rows {
        let expires_at = row.load(Ordering::Acquire);
        assert!(lifetimes.is_due(|| expires_at), "of a row that expires at {expires_at} nobody knows");
    }
}
