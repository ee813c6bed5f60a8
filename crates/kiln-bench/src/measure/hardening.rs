//! What is seen of an engine's hardening while it is measured.
//!
//! Hardening is looked at between five and ten times from one to the next, as far as [`LOOKS`] allow: what is durable when it is looked at has been
//! so since the look before at most, which is how exactly lag is known. Several hardenings between two looks are one mark; how many there were, the
//! engine counts.

use std::collections::VecDeque;
use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::Result;
use hdrhistogram::Histogram;

use super::{Meanwhile, histogram, nanoseconds, sleep};
use crate::interrupt;

/// The time between two looks. More of them would take a part of a processor from those who are measured.
pub(super) const LOOKS: RangeInclusive<Duration> = Duration::from_micros(200)..=Duration::from_millis(2);
/// The time between two commits whose lag is noted.
const COMMITS: Duration = Duration::from_millis(2);
/// So many looks, about, from one hardening to the next.
const LOOKS_BETWEEN: RangeInclusive<u32> = 5..=10;

/// What was seen of an engine's hardening.
#[derive(Clone)]
pub(crate) struct Hardened {
    /// When commits became durable, in milliseconds since the beginning.
    pub(crate) marks_ms: Vec<f64>,
    /// How many hardenings there were, if the engine counts them.
    pub(crate) count: Option<u64>,
    /// How long a commit was not durable, in nanoseconds, for commits at evenly spaced times.
    pub(crate) lag_ns: Histogram<u64>,
    /// When those of them were made that were not durable in the end.
    pending: Vec<Instant>,
}

impl Hardened {
    /// Of an engine that everything was made durable of at these times.
    pub(super) fn by_marks(marks_ms: Vec<f64>) -> Result<Hardened> {
        let count = Some(marks_ms.len() as u64);
        Ok(Hardened { marks_ms, count, lag_ns: histogram()?, pending: Vec::new() })
    }

    /// Everything has just been made durable. Those that waited longest would be missing else.
    pub(super) fn note_all_durable(&mut self) {
        let now = Instant::now();
        for when in self.pending.drain(..) {
            self.lag_ns.saturating_record(nanoseconds(now - when));
        }
    }
}

/// How often hardening is looked at.
pub(super) struct Looks {
    pub(super) each: Duration,
    /// How many looks since the last hardening, or since they became fewer, have found nothing new.
    quiet: u32,
}

impl Looks {
    pub(super) fn new() -> Looks {
        Looks { each: *LOOKS.end(), quiet: 0 }
    }

    /// Notes whether a look has found that something became durable.
    pub(super) fn note(&mut self, is_new: bool) {
        self.quiet += 1;
        if is_new {
            if self.quiet < *LOOKS_BETWEEN.start() {
                self.each = (self.each / 2).max(*LOOKS.start());
            }
            self.quiet = 0;
        } else if self.quiet > *LOOKS_BETWEEN.end() {
            self.each = (self.each * 2).min(*LOOKS.end());
            self.quiet = 0;
        }
    }
}

/// Waits until the time is over, and looks at hardening meanwhile.
pub(super) fn watch(meanwhile: &Meanwhile<'_>, stop: &AtomicBool) -> Result<Option<Hardened>> {
    let start = Instant::now();
    let Some(first) = (meanwhile.progress)() else {
        sleep(meanwhile.duration, stop);
        return Ok(None);
    };
    let before = (meanwhile.hardenings)();
    let mut hardened = Hardened { count: None, ..Hardened::by_marks(Vec::new())? };
    // Commits that were made when this was looked at, and are not durable.
    let mut pending = VecDeque::new();
    let (mut looks, mut durable, mut next_commit) = (Looks::new(), first.durable, start);
    while !interrupt::asked() && !stop.load(Ordering::Relaxed) {
        let now = Instant::now();
        let Some(seen) = (meanwhile.progress)() else { break };
        let is_new = seen.durable > durable;
        looks.note(is_new);
        if is_new {
            durable = seen.durable;
            hardened.marks_ms.push((now - start).as_secs_f64() * 1000.0);
        }
        while let Some((version, when)) = pending.pop_front_if(|(version, _)| *version <= durable) {
            let _: u64 = version;
            hardened.lag_ns.saturating_record(nanoseconds(now - when));
        }
        let left = (start + meanwhile.duration).saturating_duration_since(now);
        if left.is_zero() {
            break;
        }
        if now >= next_commit {
            pending.push_back((seen.current, now));
            next_commit = now + COMMITS;
        }
        std::thread::sleep(left.min(looks.each));
    }
    hardened.pending = pending.into_iter().map(|(_, when)| when).collect();
    hardened.count = (meanwhile.hardenings)().zip(before).map(|(after, before)| after - before);
    Ok(Some(hardened))
}
