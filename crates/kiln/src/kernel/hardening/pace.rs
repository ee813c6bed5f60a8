//! Pace: how long hardenings take, as the last ones tell, and what the vulnerability window therefore demands (C5b).
//!
//! A commit is durable once the hardening under way has ended, and then the one that covers it. Either lasts as long as a
//! small one (the *latency*) and as its bytes take (the *cost*). With `U` bytes un-hardened in all, those of the
//! hardening under way included, nobody waits longer than two latencies and the cost of `U`. So the window holds if
//!
//! - hardening begins before the oldest commit has waited for the window less one latency and the cost of what waits, and
//! - no more bytes are un-hardened than the disk takes in a window less two latencies.
//!
//! Whoever meets that bound, or the one that memory sets, has to wait for a hardening. So that nobody does while the disk keeps up, hardening
//! also begins before as many bytes as are written during it no longer fit below the bound, once there are enough of them to tell a rate. Where the window is too short for two latencies, it is
//! missed whatever is done; then bytes may take as long as the latencies do, up to half of the window, and hardenings follow one another without a pause. (Not all
//! of it: what small hardenings take counts as latency, their bytes' part included, and the cost may be known by half only.)
//!
//! A part of the window is left over for what cannot be foreseen: a thread that gets no processor, a disk that is slower
//! than last time. When that is not enough the watcher stops all commits; see `background`.

use std::time::Duration;

use crate::sync::atomic::{AtomicU64, Ordering};

/// From so many bytes on, a hardening tells the cost of bytes, and below it the latency.
const LARGE_BYTES: u64 = 1 << 20;
/// What is assumed of a disk until it has shown itself: 256 MiB/s, and half a millisecond.
const FIRST_NS_PER_KIB: u64 = 4_000;
const FIRST_LATENCY_NS: u64 = 500_000;
/// So much may be un-hardened however slow the disk is: less would cost a hardening for every few commits, and gain nothing.
const BYTES_MIN: u64 = 256 << 10;
/// From such a part of the bound on, what has come in tells when the bound will be met. Less is a burst: one commit a moment ago would
/// look like a load that fills any memory at once.
const RATE_PART: u64 = 16;
/// How often the hardener looks how fast the log grows, whatever the window is: a load that has just begun may fill what may be un-hardened
/// long before the window ends.
const LOOK_MIN: Duration = Duration::from_millis(1);
const LOOK_MAX: Duration = Duration::from_millis(16);

/// What is never reached need not be reckoned with exactly: 136 years.
const WINDOW_MAX: Duration = Duration::from_secs(1 << 32);

/// See the module's documentation.
pub(super) struct Pace {
    window: Duration,
    latency_ns: AtomicU64,
    ns_per_kib: AtomicU64,
}

impl Pace {
    pub(super) fn new(window: Duration) -> Pace {
        Pace {
            window: window.min(WINDOW_MAX),
            latency_ns: AtomicU64::new(FIRST_LATENCY_NS),
            ns_per_kib: AtomicU64::new(FIRST_NS_PER_KIB),
        }
    }

    /// A hardening of so many bytes took so long. Only the one who hardens tells.
    pub(super) fn learn(&self, bytes: u64, took: Duration) {
        let (took, kib) = (took.as_nanos() as u64, (bytes >> 10).max(1));
        let latency = self.latency_ns.load(Ordering::Relaxed);
        let cost = self.ns_per_kib.load(Ordering::Relaxed);
        if bytes < LARGE_BYTES {
            remember(&self.latency_ns, latency, took);
            // Its bytes cannot have cost more. After a stall no hardening may be large any more, and this is how the stall is
            // forgotten.
            if bytes >= BYTES_MIN / 4 && took / kib < cost {
                remember(&self.ns_per_kib, cost, (took / kib).max(1));
            }
        } else {
            // Where the latency was overestimated, half of the time is still the bytes'.
            remember(&self.ns_per_kib, cost, ((took - latency.min(took / 2)) / kib).max(1));
        }
    }

    fn latency(&self) -> Duration {
        Duration::from_nanos(self.latency_ns.load(Ordering::Relaxed))
    }

    /// The part of the window that is planned with: what is left over is also for a hardener that has to wait for a processor.
    fn planned_window(&self) -> Duration {
        const WAIT_FOR_PROCESSOR: Duration = Duration::from_millis(2);
        self.window - (self.window / 5).max(WAIT_FOR_PROCESSOR).min(self.window / 2)
    }

    /// How long after the first of the commits that wait hardening has to begin, when `bytes` of them have come in the
    /// `age` since, and `bytes_max` may be un-hardened. Bytes go on coming meanwhile, as fast as before.
    pub(super) fn patience(&self, bytes: u64, age: Duration, bytes_max: u64) -> Duration {
        let time = self.planned_window().saturating_sub(self.latency()).as_nanos();
        let cost = u128::from((bytes >> 10).saturating_mul(self.ns_per_kib.load(Ordering::Relaxed)));
        let age = age.as_nanos().max(1);
        let time = if bytes < bytes_max / RATE_PART {
            time
        } else {
            // When the bound is met at this rate; a part of it is left over, as it is of the window.
            let planned_bytes = u128::from(bytes_max - bytes_max / 4);
            let full = planned_bytes * age / u128::from(bytes.max(1));
            time.min(full.saturating_sub(self.latency().as_nanos()))
        };
        // After `age + cost` at this rate the log has got `age` further, and so much it may in `time`.
        Duration::from_nanos((time * age / (age + cost)) as u64)
    }

    /// After which time the hardener looks again, `patience` or not. Where too little has come in for that to see a rate, it looks before half of the time has
    /// passed in which what may be a rate meets the bound.
    pub(super) fn look_again(&self, bytes: u64, age: Duration, bytes_max: u64) -> Duration {
        let usual = (self.window / 16).clamp(LOOK_MIN, LOOK_MAX).min(self.window / 4);
        if bytes == 0 || bytes >= bytes_max / RATE_PART {
            return usual;
        }
        let full = u128::from(bytes_max - bytes) * age.as_nanos() / u128::from(bytes);
        let half = Duration::from_nanos(u64::try_from(full / 2).unwrap_or(u64::MAX));
        usual.min(half.max(LOOK_MIN))
    }

    /// How many bytes may be un-hardened at once.
    pub(super) fn bytes_max(&self) -> u64 {
        let latencies = 2 * self.latency();
        let time = self.planned_window().saturating_sub(latencies).max(latencies.min(self.window / 2));
        let kib = time.as_nanos() as u64 / self.ns_per_kib.load(Ordering::Relaxed);
        kib.saturating_mul(1 << 10).max(BYTES_MIN)
    }
}

/// Remembers what was seen lately at worst: the window is to hold next time, too.
fn remember(known: &AtomicU64, before: u64, seen: u64) {
    let after = if seen > before { seen } else { (15 * before + seen) / 16 };
    known.store(after, Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    const WINDOW: Duration = Duration::from_millis(100);
    const MIB: u64 = 1 << 20;

    /// A pace that has seen many hardenings on a disk with this latency and this speed.
    fn settled(latency: Duration, mib_per_second: u64) -> Pace {
        let pace = Pace::new(WINDOW);
        for _ in 0..100 {
            pace.learn(4096, latency);
            let bytes = 16 * MIB;
            pace.learn(bytes, latency + Duration::from_nanos(bytes / MIB * 1_000_000_000 / mib_per_second));
        }
        pace
    }

    /// What a client meets that writes `load` MiB/s as long as it may, while the hardener begins when it sees that it has to.
    struct Met {
        /// The longest that a commit waited until it was durable.
        longest_ms: f64,
        /// How long the client could not write.
        stalled_ms: f64,
    }

    /// Over 2 s in small steps. Memory has room for `memory` MiB.
    fn client_of(pace: &Pace, latency_ms: f64, disk: f64, load: f64, memory: u64) -> Met {
        const STEP_MS: f64 = 0.02;
        let bytes_max = pace.bytes_max().min(memory * MIB);
        let (mut now, mut longest, mut stalled_ms): (f64, f64, f64) = (0.0, 0.0, 0.0);
        // Un-hardened bytes in MiB and when the first of them came; the same of the hardening under way, and its end.
        let (mut waiting, mut since) = (0.0, 0.0);
        let mut under_way: Option<(f64, f64, f64)> = None;
        // When the hardener looks next. It does as a commit wakes it up, and as it has hardened.
        let mut look_at = 0.0;
        while now < 2_000.0 {
            now += STEP_MS;
            if let Some((_, first, end)) = under_way
                && now >= end
            {
                longest = longest.max(now - first);
                under_way = None;
                look_at = now;
            }
            let in_all = waiting + under_way.map_or(0.0, |(bytes, ..)| bytes);
            if in_all < bytes_max as f64 / MIB as f64 {
                since = if waiting == 0.0 { now } else { since };
                waiting += load * STEP_MS / 1_000.0;
            } else {
                stalled_ms += STEP_MS;
            }
            if under_way.is_some() || waiting == 0.0 || now < look_at {
                continue;
            }
            let age = Duration::from_secs_f64((now - since) / 1_000.0);
            let bytes = (waiting * MIB as f64) as u64;
            let left = pace.patience(bytes, age, bytes_max).saturating_sub(age);
            if left.is_zero() {
                let end = now + latency_ms + waiting / disk * 1_000.0;
                under_way = Some((waiting, since, end));
                waiting = 0.0;
            } else {
                look_at = now + left.min(pace.look_again(bytes, age, bytes_max)).as_secs_f64() * 1_000.0;
            }
        }
        Met { longest_ms: longest, stalled_ms }
    }

    #[test]
    fn c5b_the_window_holds_whatever_the_disk_and_the_load_are() {
        for (latency_ms, disk) in [(0.3, 1_000.0), (0.3, 100.0), (5.0, 200.0), (20.0, 50.0), (1.0, 5.0)] {
            let pace = settled(Duration::from_secs_f64(latency_ms / 1_000.0), disk as u64);
            for load in [0.01, 1.0, 30.0, 150.0, 300.0, 2_000.0] {
                let longest = client_of(&pace, latency_ms, disk, load, 1 << 20).longest_ms;
                assert!(longest <= 100.0, "{longest} ms: latency {latency_ms}, disk {disk}, load {load}");
                assert!(longest > 0.0);
            }
        }
    }

    #[test]
    fn nobody_waits_for_memory_that_a_hardening_in_time_would_have_freed() {
        const SECOND: Duration = Duration::from_secs(1);
        let latency = Duration::from_micros(300);
        for (window, memory, load) in [
            (SECOND, 64, 250.0),
            (SECOND, 64, 60.0),
            (5 * SECOND, 256, 500.0),
            (WINDOW, 8, 300.0),
            (SECOND, 3, 300.0),
        ] {
            let pace = Pace { window, ..settled(latency, 1_000) };
            let stalled = client_of(&pace, 0.3, 1_000.0, load, memory).stalled_ms;
            assert!(stalled == 0.0, "{stalled} ms: window {window:?}, {memory} MiB, load {load}");
        }
    }

    #[test]
    fn where_the_window_is_too_short_for_two_latencies_hardenings_follow_one_another_and_clients_go_on() {
        let window = Duration::from_millis(1);
        let pace = Pace { window, ..settled(Duration::from_micros(400), 1_000) };
        for load in [10.0, 100.0, 300.0] {
            let met = client_of(&pace, 0.4, 1_000.0, load, 64);
            assert!(met.stalled_ms == 0.0, "{} ms of load {load}", met.stalled_ms);
            assert!(met.longest_ms < 1.6, "{} ms of load {load}", met.longest_ms);
        }
        let slow = Pace { window, ..settled(Duration::from_millis(50), 1_000) };
        assert!(slow.bytes_max() <= MIB / 2, "what the disk takes in half a window");
    }

    /// What small hardenings of a slow disk take is their bytes', but counts as latency.
    #[test]
    fn c5b_no_more_is_unhardened_than_the_disk_takes_in_the_window_though_its_latency_is_overestimated() {
        let pace = Pace::new(WINDOW);
        let took = |bytes: u64| Duration::from_nanos(bytes * WINDOW.as_nanos() as u64 / (2 * MIB));
        for _ in 0..100 {
            pace.learn(MIB - 1, took(MIB - 1));
            pace.learn(MIB, took(MIB));
        }
        assert!(2 * pace.latency() > pace.planned_window());
        assert!(pace.bytes_max() <= 2 * MIB, "{}", pace.bytes_max());
    }

    #[test]
    fn little_load_waits_for_most_of_the_window_so_that_more_share_a_hardening() {
        let pace = settled(Duration::from_micros(300), 500);
        assert!(pace.patience(100, Duration::from_millis(1), u64::MAX) > WINDOW * 3 / 4);
        assert!(pace.patience(4 * MIB, Duration::from_millis(1), u64::MAX) < WINDOW / 8);
    }

    /// A single commit, a moment ago, looked like a load that fills the memory before a slow disk has hardened anything.
    #[test]
    fn little_that_came_at_once_waits_for_most_of_the_window_on_a_slow_disk_too() {
        const HOUR: Duration = Duration::from_secs(3600);
        let pace = Pace::new(24 * HOUR);
        pace.learn(4096, Duration::from_millis(50));
        assert!(pace.patience(75 << 10, Duration::from_micros(50), 32 * MIB) > HOUR);
        // It is looked at again soon, and then less and less often.
        let look = |age| pace.look_again(75 << 10, Duration::from_micros(age), 32 * MIB);
        assert_eq!([1, 100_000].map(look), [LOOK_MIN, LOOK_MAX]);
        // So much at once may go on.
        assert_eq!(pace.patience(4 * MIB, Duration::from_micros(50), 32 * MIB), Duration::ZERO);
    }

    /// After 23 s the hardener found that it could not multiply, and the database had failed.
    #[test]
    fn a_window_that_never_ends_is_waited_for() {
        const HOUR: Duration = Duration::from_secs(3600);
        let pace = Pace::new(Duration::MAX);
        assert!(pace.patience(100, HOUR, 32 * MIB) > HOUR);
        assert!(pace.bytes_max() > 1 << 40, "{}", pace.bytes_max());
    }

    #[test]
    fn a_disk_that_becomes_slower_is_believed_at_once_and_one_that_becomes_faster_soon() {
        let pace = settled(Duration::from_micros(300), 500);
        let before = pace.bytes_max();
        pace.learn(10 * MIB, Duration::from_millis(200));
        let slower = pace.bytes_max();
        assert!(slower < before / 4, "{slower} of {before}");
        for _ in 0..60 {
            pace.learn(10 * MIB, Duration::from_millis(20));
        }
        assert!(pace.bytes_max() > before / 2);
    }

    /// After a stall no more is allowed than a small hardening writes: such ones must be enough to forget it.
    #[test]
    fn one_stall_is_forgotten_by_hardenings_as_large_as_are_allowed_after_it() {
        let pace = settled(Duration::from_millis(5), 500);
        let before = pace.bytes_max();
        pace.learn(10 * MIB, Duration::from_secs(3));
        assert_eq!(pace.bytes_max(), BYTES_MIN);
        for _ in 0..300 {
            let bytes = pace.bytes_max();
            pace.learn(bytes, Duration::from_millis(5) + Duration::from_nanos(bytes * 2));
        }
        assert!(pace.bytes_max() > before / 2, "{} of {before}", pace.bytes_max());
    }

    #[test]
    fn a_disk_that_takes_no_time_costs_something_all_the_same() {
        let pace = settled(Duration::ZERO, 1 << 20);
        for _ in 0..100 {
            pace.learn(BYTES_MIN / 2, Duration::from_nanos(1));
        }
        assert!(pace.bytes_max() > BYTES_MIN);
    }

    #[test]
    fn a_disk_that_cannot_keep_the_window_at_all_still_gets_something_to_do() {
        let pace = Pace::new(Duration::from_micros(100));
        pace.learn(4096, Duration::from_secs(5));
        pace.learn(10 * MIB, Duration::from_secs(100));
        assert_eq!(pace.bytes_max(), BYTES_MIN);
        assert_eq!(pace.patience(100, Duration::ZERO, BYTES_MIN), Duration::ZERO);
    }
}
