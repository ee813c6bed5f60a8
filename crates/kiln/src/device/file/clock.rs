//! The clock on the wall, which goes on at its own rate also where it is set back.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::sync::Instant;
use crate::sync::atomic::{AtomicU64, Ordering};

/// So soon after a look at both clocks, in microseconds, the one on the wall is believed without a look at the other.
const BELIEVED_US: u64 = 1_000;

/// Tells microseconds since 1970. Where the clock on the wall is set back it is ahead of that from then on, by as much: what lasts for
/// a time still ends after that, and what was in the past stays there.
#[derive(Debug)]
pub(super) struct Clock {
    began: Instant,
    /// The most by which the clock on the wall was ahead of the time that had passed since `began`.
    ahead_us: AtomicU64,
    /// The time at the latest look at both.
    latest_us: AtomicU64,
}

impl Clock {
    pub(super) fn new() -> Clock {
        Clock { began: Instant::now(), ahead_us: AtomicU64::new(0), latest_us: AtomicU64::new(0) }
    }

    pub(super) fn now_us(&self) -> u64 {
        let since = SystemTime::now().duration_since(UNIX_EPOCH);
        self.tell(since.map_or(0, |since| since.as_micros() as u64), || self.began.elapsed())
    }

    /// The time, where the clock on the wall shows `wall_us`. How much has passed since the beginning is looked at after that: who is stopped in between
    /// takes the wall for further behind than it is, which changes nothing.
    fn tell(&self, wall_us: u64, passed: impl FnOnce() -> Duration) -> u64 {
        let latest = self.latest_us.load(Ordering::Acquire);
        if wall_us.checked_sub(latest).is_some_and(|since| since < BELIEVED_US) {
            return wall_us;
        }
        let passed_us = passed().as_micros() as u64;
        let ahead_us = wall_us.saturating_sub(passed_us);
        let now = passed_us + self.ahead_us.fetch_max(ahead_us, Ordering::AcqRel).max(ahead_us);
        self.latest_us.fetch_max(now, Ordering::AcqRel);
        now
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000;
    const HOUR: u64 = 3_600 * SECOND;

    /// It stood still for as long as it had been set back: rows that were put meanwhile, to expire after a minute, were there for hours.
    #[test]
    fn a_clock_that_is_set_back_goes_on_from_where_it_was() {
        let clock = Clock::new();
        let tell = |wall_us, passed_us| clock.tell(wall_us, || Duration::from_micros(passed_us));
        assert_eq!(tell(9 * HOUR, 0), 9 * HOUR);
        assert_eq!(tell(HOUR, SECOND), 9 * HOUR + SECOND, "set back by eight hours");
        assert_eq!(tell(HOUR + 61 * SECOND, 62 * SECOND), 9 * HOUR + 62 * SECOND);
        assert_eq!(tell(0, HOUR), 10 * HOUR, "set back once more");
        assert_eq!(tell(20 * HOUR, HOUR + SECOND), 20 * HOUR, "set ahead");
        assert_eq!(tell(20 * HOUR + 1, HOUR + SECOND + 1), 20 * HOUR + 1);
        assert_eq!(tell(12 * HOUR, 2 * HOUR + SECOND), 21 * HOUR, "and right again");
    }

    #[test]
    fn who_is_stopped_between_the_looks_at_both_clocks_sets_neither() {
        let clock = Clock::new();
        let tell = |wall_us, passed_us| clock.tell(wall_us, || Duration::from_micros(passed_us));
        assert_eq!(tell(HOUR, SECOND), HOUR);
        // An hour between the two.
        assert_eq!(tell(HOUR + SECOND, HOUR + 2 * SECOND), 2 * HOUR + SECOND);
        assert_eq!(tell(2 * HOUR + 5 * SECOND, HOUR + 6 * SECOND), 2 * HOUR + 5 * SECOND);
    }

    #[test]
    fn the_clock_is_the_one_on_the_wall() {
        let clock = Clock::new();
        let before = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_micros() as u64;
        let told = [clock.now_us(), clock.now_us()];
        std::thread::sleep(Duration::from_millis(2));
        let later = clock.now_us();
        assert!(before <= told[0] && told[0] + 1_000 < later, "{before}, {told:?}, {later}");
    }
}
