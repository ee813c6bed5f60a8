//! Where the host has put the processors: near each other, or apart.
//!
//! A virtual machine's processors are threads of its host, which moves them: two may share a cache now, and be on two sockets a minute later. No
//! counter of the guest shows it, but whatever two threads hand to each other then takes up to ten times as long, and engines with two threads
//! lose up to two thirds of their rate, each a part of its own (docs/benchmarks.md, "How far to trust it"). So the run has two processors hand
//! a cache line to and fro, notes with each measurement what that took, and, if it has no time limit, waits while they are apart, as long as it has patience.

use std::hint::spin_loop;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::interrupt;
use crate::progress::Progress;

/// Processors whose round trips take longer than so many nanoseconds are apart. Those that shared a cache took 35 to 70 where that was seen, and others 220 to 480.
pub(crate) const APART_NS: f64 = 150.0;

/// Of so many, the quickest counts: whoever was interrupted says nothing of the distance.
const TRIES: u32 = 5;
const ROUND_TRIPS: u32 = 200;

/// Whether a round trip took as long as between processors that are apart.
pub(crate) fn is_apart(round_trip_ns: Option<f64>) -> bool {
    round_trip_ns.is_some_and(|ns| ns > APART_NS)
}

/// Waits for the processors to be near each other. The patience is that of a whole run.
pub(crate) struct Patience {
    began: Instant,
    waited: Duration,
}

impl Patience {
    /// From now on.
    pub(crate) fn start() -> Patience {
        Patience { began: Instant::now(), waited: Duration::ZERO }
    }

    /// Waits while the processors are apart and patience lasts, and returns what a round trip takes then.
    pub(crate) fn wait(&mut self, progress: &Progress) -> Result<Option<f64>> {
        const NAP: Duration = Duration::from_millis(100);
        let mut taken = round_trip_ns();
        while is_apart(taken) && self.lasts() {
            interrupt::check()?;
            progress.now("waiting: the host has moved the processors apart");
            let began = Instant::now();
            thread::sleep(NAP);
            taken = round_trip_ns();
            self.waited += began.elapsed();
        }
        Ok(taken)
    }

    /// A minute, and a tenth of the run.
    fn lasts(&self) -> bool {
        const SHORT: Duration = Duration::from_secs(60);
        const PART: u32 = 10;
        self.waited < SHORT + self.began.elapsed() / PART
    }

    /// How long was waited in all.
    pub(crate) fn waited(&self) -> Duration {
        self.waited
    }
}

/// What a cache line takes from one processor to another and back, in nanoseconds: from the first that this process may use to the one
/// that is nearest to it, of some: a large machine has always some that are far. None with one processor. Takes a fraction of a millisecond for
/// each pair.
pub(crate) fn round_trip_ns() -> Option<f64> {
    const PAIRS_MAX: usize = 8;
    let allowed = sched_getaffinity(None).ok()?;
    let processors: Vec<usize> =
        (0..CpuSet::MAX_CPU).filter(|&processor| allowed.is_set(processor)).collect();
    let (&first, others) = processors.split_first()?;
    let each = others.len().div_ceil(PAIRS_MAX).max(1);
    others.iter().step_by(each).map(|&other| between(first, other)).reduce(f64::min)
}

/// What a round trip took before, or takes now, whichever is more.
pub(crate) fn longest_ns(before: Option<f64>) -> Option<f64> {
    before.into_iter().chain(round_trip_ns()).reduce(f64::max)
}

fn between(one: usize, other: usize) -> f64 {
    (0..TRIES).map(|_| once(one, other)).fold(f64::INFINITY, f64::min)
}

/// The line of a try: whose turn it is, counted up.
#[repr(align(128))]
struct Line(AtomicU32);

fn once(one: usize, other: usize) -> f64 {
    let line = Line(AtomicU32::new(0));
    let hand_over = |processor: usize, first_turn: u32| {
        let mut only = CpuSet::new();
        only.set(processor);
        // Errors: then they run where they like, and it takes longer.
        let _ = sched_setaffinity(None, &only);
        let mut began = Instant::now();
        for turn in (first_turn..2 * ROUND_TRIPS).step_by(2) {
            while line.0.load(Ordering::Acquire) != turn {
                spin_loop();
            }
            line.0.store(turn + 1, Ordering::Release);
            // The first turn waits for the other thread to begin.
            if turn < 2 {
                began = Instant::now();
            }
        }
        began.elapsed().as_secs_f64() * 1e9 / f64::from(ROUND_TRIPS - 1)
    };
    thread::scope(|scope| {
        let waiting = scope.spawn(|| hand_over(other, 1));
        scope.spawn(|| hand_over(one, 0));
        waiting.join().unwrap_or(f64::INFINITY)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_takes_some_time_there_and_back() {
        let several = thread::available_parallelism().is_ok_and(|count| count.get() > 1);
        let taken = round_trip_ns();
        assert_eq!(taken.is_some(), several);
        assert!(taken.is_none_or(|ns| ns > 1.0 && ns.is_finite()), "{taken:?}");
    }
}
