//! How far settling may fall behind: beyond a bound commits of tables are slowed (compare C5b).
//!
//! ```text
//!      settled to                                            head         tail
//!   ------|--------------|--------------------|---------------|------------|
//!         | 0        due: settling begins     | bound         | in memory
//!         `------------ cold, not settled ----+---------------' what is beyond slows commits
//! ```
//!
//! Rows that have not settled are in the indexes in memory, and their records keep the log from being dropped. So when more log is cold than
//! [`BOUND_TIMES`] what makes settling due, and as long as settling goes on, commits that write tables may let the log grow at three quarters of the rate
//! at which settling takes it: then the next part has a quarter less to do than this one, and so on, until they are within the bound.
//!
//! **Nobody waits in vain.** A commit waits [`WAIT_US_MAX`] at the most, before it has locked or pinned anything, and only while rows are being
//! merged or removed, or, where one part follows another, the next one is read. Where settling cannot go on (a snapshot too old, a full disk, a tree that cannot be written, no background threads, an option)
//! nobody is slowed: it would not help. Maps do not settle, and who writes only them is not slowed.

use super::engine::Engine;
use crate::sync::Instant;
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use crate::sync::thread;
use std::time::Duration;

/// So many times as much log as makes settling due may be cold and not settled before commits are slowed.
const BOUND_TIMES: u64 = 2;
/// Commits may go at so many quarters of settling's rate then.
const RATE_QUARTERS: u64 = 3;
/// A commit waits so long at the most.
const WAIT_US_MAX: u64 = 100_000;
/// Waiting for less is not exact.
const WAIT_US_MIN: u64 = 1_000;
/// A step of settling takes less, if the process was not stopped meanwhile, or the machine asleep.
const STEP_US_MAX: u64 = 500_000;
/// What settling is taken to do in a second until it has been measured, and at least.
const RATE_FIRST: u64 = 16 << 20;
const RATE_MIN: u64 = 1 << 20;

/// See the module's documentation.
pub(crate) struct SettlingPace {
    started: Instant,
    /// Rows are being merged, or their entries removed, or the part that follows is read.
    is_moving: AtomicBool,
    /// Commits of tables are slowed.
    is_pressing: AtomicBool,
    /// Bytes of log that settling takes in a second.
    rate: AtomicU64,
    /// How long whoever settles has been at it, and when that was noted last, since `started`.
    active_us: AtomicU64,
    noted_us: AtomicU64,
    /// Since `started`: when what has been committed while it was pressing may have been.
    next_us: AtomicU64,
    waits: AtomicU64,
}

/// Says that rows are being moved until it is dropped.
pub(super) struct Moving<'a>(&'a SettlingPace);

impl Drop for Moving<'_> {
    fn drop(&mut self) {
        self.0.is_moving.store(false, Ordering::SeqCst);
        self.0.is_pressing.store(false, Ordering::SeqCst);
    }
}

impl SettlingPace {
    pub(super) fn new() -> SettlingPace {
        SettlingPace {
            started: Instant::now(),
            is_moving: AtomicBool::new(false),
            is_pressing: AtomicBool::new(false),
            rate: AtomicU64::new(RATE_FIRST),
            active_us: AtomicU64::new(0),
            noted_us: AtomicU64::new(0),
            next_us: AtomicU64::new(0),
            waits: AtomicU64::new(0),
        }
    }

    /// Rows are being moved from now on.
    pub(super) fn begin_moving(&self) -> Moving<'_> {
        self.is_moving.store(true, Ordering::SeqCst);
        Moving(self)
    }

    /// A part begins to settle.
    pub(super) fn begin_part(&self) {
        self.active_us.store(0, Ordering::Relaxed);
        self.noted_us.store(self.started.elapsed().as_micros() as u64, Ordering::Relaxed);
    }

    /// Whoever settles has taken a step.
    pub(super) fn note_step(&self) {
        self.note_step_at(self.started.elapsed().as_micros() as u64);
    }

    fn note_step_at(&self, now_us: u64) {
        let took_us = now_us.saturating_sub(self.noted_us.swap(now_us, Ordering::Relaxed));
        self.active_us.fetch_add(took_us.min(STEP_US_MAX), Ordering::Relaxed);
    }

    /// The part has settled, which had so many bytes of log.
    pub(super) fn end_part(&self, bytes: u64) {
        self.note_step();
        self.learn(bytes, Duration::from_micros(self.active_us.load(Ordering::Relaxed)));
    }

    /// So many bytes of log have settled in such a time.
    fn learn(&self, bytes: u64, took: Duration) {
        let rate = u128::from(bytes) * 1_000_000 / took.as_micros().max(1);
        self.rate.store(u64::try_from(rate).unwrap_or(u64::MAX).max(RATE_MIN), Ordering::Relaxed);
    }

    pub(super) fn is_pressing(&self) -> bool {
        self.is_pressing.load(Ordering::Relaxed)
    }

    /// How often a commit was slowed.
    pub(crate) fn waits(&self) -> u64 {
        self.waits.load(Ordering::Relaxed)
    }

    /// Waits so long that commits of so many bytes keep to their part of settling's rate.
    pub(super) fn wait(&self, bytes: u64) {
        if bytes == 0 || !self.is_pressing() {
            return;
        }
        let wait_us = self.wait_us(self.started.elapsed().as_micros() as u64, bytes);
        if wait_us >= WAIT_US_MIN {
            self.waits.fetch_add(1, Ordering::Relaxed);
            thread::sleep(Duration::from_micros(wait_us));
        }
    }

    /// How long who commits so many bytes now has to wait behind all others.
    fn wait_us(&self, now_us: u64, bytes: u64) -> u64 {
        let rate = (self.rate.load(Ordering::Relaxed) / 4).saturating_mul(RATE_QUARTERS);
        let took_us = (u128::from(bytes) * 1_000_000 / u128::from(rate)).min(u128::from(WAIT_US_MAX)) as u64;
        let mut next_us = self.next_us.load(Ordering::Relaxed);
        loop {
            let after_us = (next_us.max(now_us) + took_us).min(now_us + WAIT_US_MAX);
            let taken =
                self.next_us.compare_exchange(next_us, after_us, Ordering::Relaxed, Ordering::Relaxed);
            match taken {
                Ok(_) => return after_us - now_us,
                Err(other) => next_us = other,
            }
        }
    }
}

impl Engine {
    /// Bytes of log that are out of memory and have not settled.
    pub(crate) fn unsettled_bytes(&self) -> u64 {
        let from = self.settled.tree.settled_to().max(self.log.begin());
        self.log.head().saturating_sub(from)
    }

    /// How many there may be before commits of tables are slowed; 0 if they never are.
    pub(crate) fn unsettled_bytes_max(&self) -> u64 {
        match self.settled.log_bytes > 0 && self.hardening.has_background() {
            true => self.settling_due_bytes().saturating_mul(BOUND_TIMES),
            false => 0,
        }
    }

    /// Sees to it, now and then, that commits are slowed as long as settling is too far behind.
    pub(super) fn watch_settling(&self) {
        let pace = &self.settled.pace;
        let bound = self.unsettled_bytes_max();
        let presses = pace.is_moving.load(Ordering::SeqCst)
            && bound > 0
            && self.unsettled_bytes() > bound
            && !self.segments.disk_is_full();
        pace.is_pressing.store(presses, Ordering::SeqCst);
        if presses {
            self.behind.store(true, Ordering::SeqCst);
            // It may have come to its end just now.
            if !pace.is_moving.load(Ordering::SeqCst) {
                pace.is_pressing.store(false, Ordering::SeqCst);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Options;
    use crate::device::SimulatedDevice;

    #[test]
    fn commits_take_turns_at_three_quarters_of_the_rate_and_none_waits_for_long() {
        let pace = SettlingPace::new();
        pace.learn(20 << 20, Duration::from_secs(2));
        // Three quarters of 10 MiB a second: 5,000 bytes in two thirds of a millisecond, one after the other.
        let waits: Vec<u64> = (0..5).map(|_| pace.wait_us(1_000_000, 5_000)).collect();
        assert_eq!(waits, [635, 1_270, 1_905, 2_540, 3_175]);
        assert_eq!(pace.wait_us(1_003_000, 5_000), 810);
        assert_eq!(pace.wait_us(9_000_000, 5_000), 635, "what was long ago counts no more");
        assert!((0..1_000).all(|_| pace.wait_us(9_000_000, 1 << 20) <= WAIT_US_MAX));
        assert_eq!(pace.wait_us(9_000_000, u64::MAX), WAIT_US_MAX);
        pace.learn(1, Duration::from_secs(1_000));
        assert_eq!(pace.wait_us(20_000_000, 16), 20, "however slow it was");
        pace.learn(u64::MAX, Duration::ZERO);
        assert_eq!(pace.wait_us(30_000_000, 1 << 20), 0);
    }

    /// Somebody who committed to a map had a hardening of his own to wait for, once settling had caught up.
    #[test]
    fn c3_nobody_waits_for_the_disk_because_settling_was_behind() {
        let device = std::sync::Arc::new(SimulatedDevice::new(1));
        let options = Options::new().background(false).segment_bytes(64 << 10).memory(0);
        let db = options.window(Duration::from_secs(60)).open_on(device).unwrap();
        let map = db.map("map").unwrap();
        db.put(&map, "key", "value").unwrap().forget();
        let hardenings = db.statistics().hardenings;
        db.engine().behind.store(true, Ordering::SeqCst);
        db.put(&map, "key", "newer").unwrap().forget();
        db.transact(|tx| tx.put(&map, "other", "value")).unwrap().forget();
        assert_eq!(db.statistics().hardenings, hardenings);
    }

    /// As if settling had taken minutes: all commits that followed were slowed to the least rate.
    #[test]
    fn c5b_what_settles_while_the_process_is_stopped_says_nothing_about_the_pace() {
        let pace = SettlingPace::new();
        pace.begin_part();
        let began = pace.noted_us.load(Ordering::Relaxed);
        for at in [100_000, 200_000, 300_200_000, 300_300_000] {
            pace.note_step_at(began + at);
        }
        assert_eq!(pace.active_us.load(Ordering::Relaxed), 300_000 + STEP_US_MAX);
    }

    /// A row that settles alone takes as long as a few syncs do; by that measure all commits would have been slowed to the least rate.
    #[test]
    fn c5b_what_a_little_takes_to_settle_says_nothing_about_the_pace() {
        let device = std::sync::Arc::new(SimulatedDevice::new(1));
        let options = Options::new().background(false).segment_bytes(64 << 10).memory(0);
        let db = options.settle_log_bytes(1 << 20).open_on(device).unwrap();
        let table = db.table("table").unwrap();
        let rate_after = |rows: u32| {
            (0..rows).for_each(|row| db.put(&table, row.to_be_bytes(), [7; 1_000]).unwrap().forget());
            db.persist().unwrap();
            assert_eq!(db.settle().unwrap(), rows.into());
            db.engine().settled.pace.rate.load(Ordering::Relaxed)
        };
        assert_eq!(rate_after(1), RATE_FIRST);
        assert_ne!(rate_after(700), RATE_FIRST);
    }

    /// Each attempt waited anew, behind all others. An update waits between its read and its attempt, so those of one key held each other up.
    #[test]
    fn c5b_a_commit_that_is_tried_again_is_slowed_once() {
        let device = std::sync::Arc::new(SimulatedDevice::new(1));
        let options = Options::new().background(false).window(Duration::from_secs(600));
        let db = options.open_on(device).unwrap();
        let table = db.table("table").unwrap();
        let long = vec![7; 30_000];
        let (engine, pace) = (db.engine(), &db.engine().settled.pace);
        let _moving = pace.begin_moving();
        pace.is_pressing.store(true, Ordering::SeqCst);
        engine.behind.store(true, Ordering::SeqCst);
        let mut runs = 0;
        let updated = db.update(&table, "row", |_| {
            runs += 1;
            if runs < 5 {
                db.put(&table, "row", &long).unwrap().forget();
            }
            Some(long.clone())
        });
        updated.unwrap().forget();
        assert_eq!((runs, pace.waits()), (5, 5), "four puts and the update");
    }

    #[test]
    fn nobody_waits_once_nothing_moves() {
        let pace = SettlingPace::new();
        let moving = pace.begin_moving();
        pace.is_pressing.store(true, Ordering::SeqCst);
        pace.wait(1 << 20);
        assert_eq!(pace.waits(), 1);
        pace.wait(0);
        drop(moving);
        pace.wait(1 << 20);
        assert_eq!(pace.waits(), 1);
    }
}
