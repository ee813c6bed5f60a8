//! How a cell is timed: threads that repeat one operation for a given time.
//!
//! Each thread prepares its operation, waits until all are ready, and then counts its own operations over its own time; the rate
//! is the sum of the threads' rates. So neither starting nor stopping threads is part of any figure. Clients can also be tasks,
//! which share a few threads.

use std::future::Future;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};
use hdrhistogram::Histogram;

use crate::interrupt;
use crate::usage::Usage;

/// How often the clock flag is looked at when only throughput is measured.
const STRIDE: u64 = 64;

/// The longest latency that is told apart: a minute.
const LATENCY_NS_MAX: u64 = 60_000_000_000;

/// What was measured in one cell of one round.
pub(crate) struct Measured {
    /// Operations of all threads.
    pub(crate) ops: u64,
    /// The longest time of a thread.
    pub(crate) seconds: f64,
    /// The sum of the threads' rates.
    pub(crate) ops_per_s: f64,
    /// How long each operation took in nanoseconds, where that was measured.
    pub(crate) latency_ns: Option<Histogram<u64>>,
    /// What this process used meanwhile.
    pub(crate) usage: Usage,
}

impl Measured {
    /// Processor time of the process for one operation in nanoseconds: on a machine that others use too, it says more than the
    /// rate.
    pub(crate) fn cpu_ns(&self) -> f64 {
        self.usage.cpu_s * 1e9 / self.ops.max(1) as f64
    }

    /// The latency that this part of the operations did not exceed, in microseconds.
    pub(crate) fn latency_us(&self, quantile: f64) -> Option<f64> {
        self.latency_ns.as_ref().map(|latency| latency.value_at_quantile(quantile) as f64 / 1000.0)
    }
}

/// Measures how often `threads` threads can do an operation in `duration`. `prepare` makes one thread's operation.
pub(crate) fn throughput<F, O>(threads: usize, duration: Duration, prepare: F) -> Result<Measured>
where
    F: Fn(usize) -> Result<O> + Sync,
    O: FnMut() -> Result<()>,
{
    run(threads, duration, |thread, gate, stop| {
        let mut operation = prepare(thread)?;
        gate.open();
        let start = Instant::now();
        let mut ops = 0;
        while !stop.load(Ordering::Relaxed) {
            for _ in 0..STRIDE {
                operation()?;
            }
            ops += STRIDE;
        }
        Ok(ThreadCount { ops, seconds: start.elapsed().as_secs_f64(), latency_ns: None })
    })
}

/// The same for operations that take so long that timing each one costs nothing.
pub(crate) fn latency<F, O>(threads: usize, duration: Duration, prepare: F) -> Result<Measured>
where
    F: Fn(usize) -> Result<O> + Sync,
    O: FnMut() -> Result<()>,
{
    run(threads, duration, |thread, gate, stop| {
        let mut operation = prepare(thread)?;
        gate.open();
        let mut laps = Laps::start()?;
        while !stop.load(Ordering::Relaxed) {
            operation()?;
            laps.end_one();
        }
        Ok(laps.count())
    })
}

/// The same for tasks on as many threads as there are processors. `client` makes one task, which repeats its operation while
/// its [`Timer`] says so.
pub(crate) fn task_latency<F, T>(clients: usize, duration: Duration, client: F) -> Result<Measured>
where
    F: Fn(usize, Timer) -> T,
    T: Future<Output = Result<Timer>> + Send + 'static,
{
    interrupt::check()?;
    let runtime =
        tokio::runtime::Builder::new_multi_thread().build().context("cannot start threads for tasks")?;
    let stop = Arc::new(AtomicBool::new(false));
    let before = Usage::own();
    let mut tasks = Vec::new();
    for number in 0..clients {
        tasks.push(runtime.spawn(client(number, Timer { stop: stop.clone(), laps: Laps::start()? })));
    }
    sleep(duration, &stop);
    stop.store(true, Ordering::Relaxed);
    let counts = runtime.block_on(async {
        let mut counts = Vec::new();
        for task in tasks {
            counts.push(task.await.context("a measuring task panicked")??.laps.count());
        }
        anyhow::Ok(counts)
    })?;
    interrupt::check()?;
    combine(counts, Usage::own().since(before))
}

/// Times the operations of one task.
pub(crate) struct Timer {
    stop: Arc<AtomicBool>,
    laps: Laps,
}

impl Timer {
    /// An operation has ended. False if it was the last.
    pub(crate) fn tick(&mut self) -> bool {
        self.laps.end_one();
        !self.stop.load(Ordering::Relaxed)
    }
}

/// Times operations that follow each other without a pause.
struct Laps {
    start: Instant,
    before: Instant,
    ops: u64,
    latency_ns: Histogram<u64>,
}

impl Laps {
    fn start() -> Result<Laps> {
        let latency_ns = Histogram::new_with_bounds(1, LATENCY_NS_MAX, 3)?;
        let now = Instant::now();
        Ok(Laps { start: now, before: now, ops: 0, latency_ns })
    }

    /// An operation has ended.
    fn end_one(&mut self) {
        let now = Instant::now();
        let latency = u64::try_from((now - self.before).as_nanos()).unwrap_or(u64::MAX);
        self.latency_ns.saturating_record(latency);
        self.before = now;
        self.ops += 1;
    }

    fn count(self) -> ThreadCount {
        let seconds = (self.before - self.start).as_secs_f64();
        ThreadCount { ops: self.ops, seconds, latency_ns: Some(self.latency_ns) }
    }
}

/// What one thread, or task, counted.
struct ThreadCount {
    ops: u64,
    seconds: f64,
    latency_ns: Option<Histogram<u64>>,
}

/// Lets a thread through once all are ready. A thread that fails before still counts as ready, or the others would wait for ever.
struct Gate<'a> {
    barrier: Option<&'a Barrier>,
}

impl Gate<'_> {
    fn open(&mut self) {
        if let Some(barrier) = self.barrier.take() {
            barrier.wait();
        }
    }
}

impl Drop for Gate<'_> {
    fn drop(&mut self) {
        self.open();
    }
}

fn run<B>(threads: usize, duration: Duration, body: B) -> Result<Measured>
where
    B: Fn(usize, &mut Gate<'_>, &AtomicBool) -> Result<ThreadCount> + Sync,
{
    interrupt::check()?;
    let stop = AtomicBool::new(false);
    let barrier = Barrier::new(threads + 1);
    let before = Usage::own();
    let counts = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads)
            .map(|thread| {
                let (body, barrier, stop) = (&body, &barrier, &stop);
                scope.spawn(move || {
                    let mut gate = Gate { barrier: Some(barrier) };
                    let result = body(thread, &mut gate, stop);
                    if result.is_err() {
                        stop.store(true, Ordering::Relaxed);
                    }
                    result
                })
            })
            .collect();
        barrier.wait();
        sleep(duration, &stop);
        stop.store(true, Ordering::Relaxed);
        workers
            .into_iter()
            .map(|worker| worker.join().map_err(|_| anyhow!("a measuring thread panicked"))?)
            .collect::<Result<Vec<ThreadCount>>>()
    })?;
    interrupt::check()?;
    combine(counts, Usage::own().since(before))
}

/// Sleeps until the time is over, the user interrupts, or a thread has failed.
fn sleep(duration: Duration, stop: &AtomicBool) {
    let end = Instant::now() + duration;
    while !interrupt::asked() && !stop.load(Ordering::Relaxed) {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            break;
        }
        std::thread::sleep(left.min(Duration::from_millis(100)));
    }
}

fn combine(counts: Vec<ThreadCount>, usage: Usage) -> Result<Measured> {
    let mut total = Measured { ops: 0, seconds: 0.0, ops_per_s: 0.0, latency_ns: None, usage };
    for count in counts {
        total.ops += count.ops;
        total.seconds = total.seconds.max(count.seconds);
        total.ops_per_s += count.ops as f64 / count.seconds.max(1e-9);
        total.latency_ns = add(total.latency_ns.take(), count.latency_ns)?;
    }
    Ok(total)
}

/// Puts slices of one cell together, measured one after the other with other cells between them.
pub(crate) fn join(parts: Vec<Measured>) -> Result<Measured> {
    let mut whole =
        Measured { ops: 0, seconds: 0.0, ops_per_s: 0.0, latency_ns: None, usage: Usage::default() };
    for part in parts {
        whole.ops += part.ops;
        whole.seconds += part.seconds;
        // The rate is the mean of the slices' rates by their time, and becomes it by the division below.
        whole.ops_per_s += part.ops_per_s * part.seconds;
        whole.latency_ns = add(whole.latency_ns.take(), part.latency_ns)?;
        whole.usage.cpu_s += part.usage.cpu_s;
        whole.usage.rss_bytes = part.usage.rss_bytes;
        whole.usage.device_bytes += part.usage.device_bytes;
    }
    whole.ops_per_s /= whole.seconds.max(1e-9);
    Ok(whole)
}

fn add(all: Option<Histogram<u64>>, more: Option<Histogram<u64>>) -> Result<Option<Histogram<u64>>> {
    match (all, more) {
        (Some(mut all), Some(more)) => {
            all.add(more).context("cannot add up latencies")?;
            Ok(Some(all))
        }
        (all, more) => Ok(all.or(more)),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU64;

    use anyhow::bail;

    use super::*;

    #[test]
    fn every_operation_of_every_thread_is_counted() {
        let done = AtomicU64::new(0);
        let measured = throughput(3, Duration::from_millis(5), |_| {
            Ok(|| {
                done.fetch_add(1, Ordering::Relaxed);
                Ok(())
            })
        })
        .unwrap();
        assert_eq!(measured.ops, done.into_inner());
        assert!(measured.latency_us(0.5).is_none());
    }

    #[test]
    fn every_latency_is_recorded() {
        let nap = Duration::from_millis(2);
        let sleep = || {
            std::thread::sleep(nap);
            Ok(())
        };
        let measured = latency(2, Duration::from_millis(5), |_| Ok(sleep)).unwrap();
        assert_eq!(measured.latency_ns.as_ref().unwrap().len(), measured.ops);
        // Sleeping takes at least as long as was asked for; the histogram keeps three digits.
        assert!(measured.latency_us(0.0).unwrap() >= nap.as_micros() as f64 * 0.99);
    }

    #[test]
    fn slices_join_to_the_mean_rate_and_all_latencies() {
        let part = |ops: u64, seconds: f64| {
            let mut latency = Histogram::new(3).unwrap();
            latency.record_n(ops, ops).unwrap();
            let rate = ops as f64 / seconds;
            Measured { ops, seconds, ops_per_s: rate, latency_ns: Some(latency), usage: Usage::default() }
        };
        let whole = join(vec![part(10, 1.0), part(50, 2.0)]).unwrap();
        assert_eq!((whole.ops, whole.seconds, whole.ops_per_s), (60, 3.0, 20.0));
        assert_eq!(whole.latency_ns.unwrap().len(), 60);
    }

    #[test]
    fn a_thread_that_fails_ends_the_measurement_with_its_error() {
        for bad_thread in 0..2 {
            let prepare = |thread| {
                if thread == bad_thread {
                    bail!("cannot begin");
                }
                Ok(|| Ok(()))
            };
            let error = throughput(2, Duration::from_secs(3600), prepare).map(drop).unwrap_err();
            assert_eq!(error.to_string(), "cannot begin");
        }
        let failing = latency(2, Duration::from_secs(3600), |_| Ok(|| bail!("broken")));
        assert_eq!(failing.map(drop).unwrap_err().to_string(), "broken");
    }
}
