//! The time that a run may take, and how it is shared out.
//!
//! ```text
//!  |- loaded, measured, checked -|------------------ left until the limit -------------------|
//!  0                            now | this cell's share | other cells | to load and to check | limit
//! ```
//!
//! A run with a limit keeps it by construction: what is left, without what loading and checking will still take, belongs to the cells
//! that are still to come, each in proportion to what it was planned to take. A cell measures rounds while its share lasts, and one at
//! least; what it does not need is left to those after it. A cell for which nothing is left is left out. How long loading and checking
//! take is planned, and corrected by how long they took until now.

use std::time::{Duration, Instant};

/// Seconds that were planned for something, and those that it took.
#[derive(Clone, Copy, Debug, Default)]
struct Pace {
    /// Planned for what is not done yet.
    left_s: f64,
    planned_s: f64,
    took_s: f64,
}

impl Pace {
    /// The planned part is done, and took so long.
    fn done(&mut self, planned_s: f64, took: Duration) {
        self.left_s = (self.left_s - planned_s).max(0.0);
        self.planned_s += planned_s;
        self.took_s += took.as_secs_f64();
    }

    /// How long what is left will take if it goes on as it has begun.
    fn expected_s(&self) -> f64 {
        // As long as little is done, the plan counts for more.
        const PLAN_S: f64 = 3.0;
        self.left_s * (self.took_s + PLAN_S) / (self.planned_s + PLAN_S)
    }
}

/// The time of a run.
pub(super) struct Clock {
    started: Instant,
    limit: Option<Duration>,
    cells: Pace,
    /// Loading and checking.
    rest: Pace,
}

impl Clock {
    /// Starts now. What is planned is in seconds.
    pub(super) fn start(limit: Option<Duration>, cells_s: f64, rest_s: f64) -> Clock {
        let planned = |left_s| Pace { left_s, ..Pace::default() };
        Clock { started: Instant::now(), limit, cells: planned(cells_s), rest: planned(rest_s) }
    }

    /// How much time the next cell may take, for which so many seconds were planned; `None` without a limit.
    pub(super) fn share(&self, planned_s: f64) -> Option<Duration> {
        Some(self.share_of(self.limit?, self.started.elapsed(), planned_s))
    }

    fn share_of(&self, limit: Duration, elapsed: Duration, planned_s: f64) -> Duration {
        let for_cells = limit.saturating_sub(elapsed).as_secs_f64() - self.rest.expected_s();
        let part = planned_s / self.cells.left_s.max(planned_s).max(1e-9);
        Duration::from_secs_f64(for_cells.max(0.0) * part)
    }

    /// A cell is done, or left out.
    pub(super) fn cell_done(&mut self, planned_s: f64, took: Duration) {
        self.cells.done(planned_s, took);
    }

    /// Something was loaded or checked.
    pub(super) fn rest_done(&mut self, planned_s: f64, took: Duration) {
        self.rest.done(planned_s, took);
    }

    /// How long the run has been going on.
    pub(super) fn elapsed(&self) -> Duration {
        self.started.elapsed()
    }

    /// How long the run will go on, as far as one can tell; `cell_took` is what the cell that is being measured took until now.
    pub(super) fn left(&self, cell_took: Duration) -> Duration {
        self.left_after(self.started.elapsed(), cell_took)
    }

    fn left_after(&self, elapsed: Duration, cell_took: Duration) -> Duration {
        let cells_s = (self.cells.expected_s() - cell_took.as_secs_f64()).max(0.0);
        let left = Duration::from_secs_f64(cells_s + self.rest.expected_s());
        self.limit.map_or(left, |limit| left.min(limit.saturating_sub(elapsed)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn seconds(count: u64) -> Duration {
        Duration::from_secs(count)
    }

    #[test]
    fn what_is_left_belongs_to_the_cells_still_to_come() {
        let mut clock = Clock::start(Some(seconds(100)), 40.0, 20.0);
        // 80 s are for cells: a cell of a quarter of them has a quarter.
        assert_eq!(clock.share_of(seconds(100), seconds(0), 10.0), seconds(20));
        // It took but 5 s, and leaves 75 s to the other three.
        clock.cell_done(10.0, seconds(5));
        assert_eq!(clock.share_of(seconds(100), seconds(5), 10.0), seconds(25));
        // The last one has all that is left.
        clock.cell_done(20.0, seconds(50));
        assert_eq!(clock.share_of(seconds(100), seconds(55), 10.0), seconds(25));
        assert_eq!(Clock::start(None, 1.0, 1.0).share(1.0), None);
    }

    #[test]
    fn what_loading_takes_longer_than_planned_is_taken_from_the_cells() {
        let mut clock = Clock::start(Some(seconds(100)), 40.0, 60.0);
        clock.rest_done(27.0, seconds(57));
        // The 33 s that are left will take twice as long.
        assert_eq!(clock.share_of(seconds(100), seconds(14), 10.0), seconds(5));
        // Nothing is left for cells.
        assert_eq!(clock.share_of(seconds(100), seconds(57), 10.0), Duration::ZERO);
        assert_eq!(clock.share_of(seconds(100), seconds(300), 10.0), Duration::ZERO);
    }

    #[test]
    fn cells_that_use_up_their_shares_end_at_the_limit_however_slow_their_rounds_are() {
        for round_s in [0.1, 3.0, 40.0] {
            let limit = seconds(270);
            let mut clock = Clock::start(Some(limit), 90.0, 0.0);
            let (mut elapsed, mut longest) = (Duration::ZERO, Duration::ZERO);
            for _ in 0..18 {
                let share = clock.share_of(limit, elapsed, 5.0);
                let round = Duration::from_secs_f64(round_s);
                let mut took = Duration::ZERO;
                // One round at least, unless nothing is left; none that would go beyond the share.
                while !share.is_zero() && (took.is_zero() || took + round <= share) {
                    took += round;
                }
                longest = longest.max(took);
                elapsed += took;
                clock.cell_done(5.0, took);
            }
            assert!(elapsed <= limit + longest.min(Duration::from_secs_f64(round_s)), "{elapsed:?}");
        }
    }

    #[test]
    fn the_time_left_is_what_cells_took_until_now_and_never_beyond_the_limit() {
        let mut clock = Clock::start(Some(seconds(100)), 40.0, 10.0);
        assert_eq!(clock.left_after(seconds(0), seconds(0)), seconds(50));
        assert_eq!(clock.left_after(seconds(4), seconds(4)), seconds(46));
        clock.cell_done(17.0, seconds(37));
        assert_eq!(clock.left_after(seconds(37), seconds(0)), seconds(56));
        assert_eq!(clock.left_after(seconds(90), seconds(0)), seconds(10));
        assert_eq!(clock.left_after(seconds(101), seconds(0)), Duration::ZERO);
    }
}
