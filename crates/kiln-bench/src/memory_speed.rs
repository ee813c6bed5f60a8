//! How fast the machine's memory is at the moment.
//!
//! Other machines on the same host share its caches and memory with this one, and no counter shows what they take of them: the processors
//! are all ours, and everything that misses a cache is slower. So before each round the run itself takes a short walk through memory, each step
//! of which depends on the one before, and notes what a step took.

use std::hint::black_box;
use std::time::Instant;

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

/// So many that a walk, which goes to one in 64 of them, hardly ever comes to one that a cache still has.
const LINES: usize = 1 << 20;
const STEPS: u32 = 1 << 14;

/// A cache line that says which one comes next.
#[derive(Clone, Copy)]
#[repr(align(64))]
struct Line(u32);

/// Lines of memory, 64 MiB of them, in one circle without an order that the processor could foresee.
pub(crate) struct MemorySpeed {
    lines: Vec<Line>,
    at: u32,
}

impl MemorySpeed {
    pub(crate) fn new() -> MemorySpeed {
        let mut lines: Vec<Line> = (0..LINES as u32).map(Line).collect();
        let mut random = SmallRng::seed_from_u64(0);
        // Sattolo's shuffle: one circle that goes through all.
        for last in (1..LINES).rev() {
            let other = random.random_range(0..last);
            lines.swap(last, other);
        }
        MemorySpeed { lines, at: 0 }
    }

    /// What a read of a place that nobody could foresee takes, in nanoseconds: the mean of some. Takes a millisecond or two.
    pub(crate) fn read_ns(&mut self) -> f64 {
        let began = Instant::now();
        for _ in 0..STEPS {
            self.at = self.lines[self.at as usize].0;
        }
        black_box(self.at);
        began.elapsed().as_secs_f64() * 1e9 / f64::from(STEPS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_walk_goes_through_all_lines_before_it_comes_back() {
        let speed = MemorySpeed::new();
        let (mut at, mut steps) = (0, 0);
        while {
            at = speed.lines[at as usize].0;
            steps += 1;
            at != 0
        } {}
        assert_eq!(steps, LINES);
    }
}
