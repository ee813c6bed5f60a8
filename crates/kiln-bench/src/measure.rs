//! How a cell is timed: threads that repeat one operation for a given time.
//!
//! Each thread prepares its operation, waits until all are ready, and then counts its own operations over its own time; the rate
//! is the sum of the threads' rates. So neither starting nor stopping threads is part of any figure. Clients can also be tasks,
//! which share a few threads.

mod hardening;
#[cfg(test)]
mod tests;

use std::future::Future;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};
use hdrhistogram::Histogram;

use self::hardening::{Hardened, watch};
use crate::engines::Hardening;
use crate::interrupt;
use crate::usage::Usage;

/// Operations that are faster than this in the mean are timed one in [`STRIDE`]: to time each would cost more than a percent of it.
const TIMED_EACH: Duration = Duration::from_micros(4);
/// A prime, so that no rhythm of an engine is always met at the same place.
const STRIDE: u64 = 61;
/// When those that are not timed take longer, by far, than those before them, one of them has stalled.
const STALLED: Duration = TIMED_EACH.saturating_mul(2 * STRIDE as u32);
/// All those that are not timed do not take less than so many times what one of them takes: else the one was a stall itself, and another one is among them.
const FEW: u32 = 8;
/// The width of the bins in which operations are counted over time.
pub(crate) const BIN: Duration = Duration::from_millis(50);

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
    /// How long an operation took, in nanoseconds.
    pub(crate) latency_ns: Histogram<u64>,
    /// Operations of all threads in each [`BIN`] since they began.
    pub(crate) bins: Vec<u64>,
    /// What was seen of hardening, where the engine tells.
    pub(crate) hardening: Option<Hardened>,
    /// What this process used meanwhile.
    pub(crate) usage: Usage,
    /// How long it took afterwards to make all of it durable. See [`make_durable`].
    pub(crate) persist: Duration,
    /// The same writers without the scan that was beside them, and the scan, if there was one.
    pub(crate) scan: Option<BesideScan>,
}

/// A scan beside writers.
#[derive(Clone, Copy)]
pub(crate) struct BesideScan {
    /// The writers' rate without it.
    pub(crate) alone_ops_per_s: f64,
    /// Rows that it read.
    pub(crate) rows_per_s: f64,
}

impl Measured {
    /// Processor time of the process for one operation in nanoseconds: on a machine that others use too, it says more than the
    /// rate.
    pub(crate) fn cpu_ns(&self) -> f64 {
        self.usage.cpu_s * 1e9 / self.ops.max(1) as f64
    }

    /// The latency that this part of the operations did not exceed, in microseconds.
    pub(crate) fn latency_us(&self, quantile: f64) -> f64 {
        self.latency_ns.value_at_quantile(quantile) as f64 / 1000.0
    }

    fn nothing(usage: Usage) -> Result<Measured> {
        Ok(Measured {
            ops: 0,
            seconds: 0.0,
            ops_per_s: 0.0,
            latency_ns: histogram()?,
            bins: Vec::new(),
            hardening: None,
            usage,
            persist: Duration::ZERO,
            scan: None,
        })
    }
}

/// Makes durable, by `persist`, what has just been measured at once, and adds what that took. To be called before anything else is done: engines
/// that harden by themselves would go on with it meanwhile, in nobody's time, and what is not durable would be so later.
pub(crate) fn make_durable(measured: &mut [Measured], persist: impl FnOnce() -> Result<()>) -> Result<()> {
    let (before, began) = (Usage::own(), Instant::now());
    persist()?;
    let persist = began.elapsed();
    let usage = Usage::own().since(before);
    for one in measured {
        one.persist = persist;
        one.usage = one.usage.and(usage);
        if let Some(hardened) = &mut one.hardening {
            hardened.note_all_durable();
        }
    }
    Ok(())
}

/// What goes on while operations are repeated.
pub(crate) struct Meanwhile<'a> {
    /// How long it all takes.
    pub(crate) duration: Duration,
    /// Tells how far hardening is, if anybody knows.
    pub(crate) progress: &'a dyn Fn() -> Option<Hardening>,
    /// Tells how many hardenings there have been, if anybody counts them.
    pub(crate) hardenings: &'a dyn Fn() -> Option<u64>,
    /// Makes everything durable, so often.
    pub(crate) persist: Option<(Duration, &'a (dyn Fn() -> Result<()> + Sync))>,
}

impl Meanwhile<'_> {
    /// Nothing but time passes.
    pub(crate) fn nothing(duration: Duration) -> Meanwhile<'static> {
        Meanwhile { duration, progress: &|| None, hardenings: &|| None, persist: None }
    }
}

/// A histogram of nanoseconds with three digits.
fn histogram() -> Result<Histogram<u64>> {
    Ok(Histogram::new_with_bounds(1, LATENCY_NS_MAX, 3)?)
}

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// Measures how often `threads` threads can do an operation, and how long it takes. `prepare` makes one thread's operation, which
/// returns how many it did.
pub(crate) fn repeat<F, O>(threads: usize, meanwhile: &Meanwhile<'_>, prepare: F) -> Result<Measured>
where
    F: Fn(usize) -> Result<O> + Sync,
    O: FnMut() -> Result<u64>,
{
    let [all] = repeat_in_groups(threads, meanwhile, prepare)?;
    Ok(all)
}

/// The same for `N` groups of threads, each with operations of its own and its own count: a thread belongs to the group of its
/// number modulo `N`. What the process used is that of all groups.
pub(crate) fn repeat_in_groups<const N: usize, F, O>(
    threads: usize,
    meanwhile: &Meanwhile<'_>,
    prepare: F,
) -> Result<[Measured; N]>
where
    F: Fn(usize) -> Result<O> + Sync,
    O: FnMut() -> Result<u64>,
{
    interrupt::check()?;
    let stop = AtomicBool::new(false);
    let barrier = Barrier::new(threads + 1);
    let (counts, usage, hardened) = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads)
            .map(|thread| {
                let (prepare, barrier, stop) = (&prepare, &barrier, &stop);
                scope.spawn(move || {
                    let mut gate = Gate { barrier: Some(barrier) };
                    let result = prepare(thread).and_then(|operation| one_thread(&mut gate, stop, operation));
                    if result.is_err() {
                        stop.store(true, Ordering::Relaxed);
                    }
                    result
                })
            })
            .collect();
        barrier.wait();
        let before = Usage::own();
        let persisting = meanwhile.persist.map(|(each, persist)| {
            let stop = &stop;
            scope.spawn(move || persist_each(each, persist, stop))
        });
        let hardening = watch(meanwhile, &stop);
        stop.store(true, Ordering::Relaxed);
        let persisted =
            persisting.map(|thread| thread.join().map_err(|_| anyhow!("a persisting thread panicked"))?);
        let counts = workers
            .into_iter()
            .map(|worker| worker.join().map_err(|_| anyhow!("a measuring thread panicked"))?)
            .collect::<Result<Vec<ThreadCount>>>()?;
        let hardening = match persisted.transpose()? {
            Some(marks_ms) => Some(Hardened::by_marks(marks_ms)?),
            None => hardening?,
        };
        anyhow::Ok((counts, Usage::own().since(before), hardening))
    })?;
    interrupt::check()?;
    let mut groups = std::array::from_fn::<_, N, _>(|_| Vec::new());
    for (thread, count) in counts.into_iter().enumerate() {
        groups[thread % N].push(count);
    }
    let mut measured = Vec::new();
    for counts in groups {
        measured.push(Measured { hardening: hardened.clone(), ..combine(counts, usage)? });
    }
    measured.try_into().map_err(|_| anyhow!("a group of threads was not measured"))
}

fn one_thread(
    gate: &mut Gate<'_>,
    stop: &AtomicBool,
    mut operation: impl FnMut() -> Result<u64>,
) -> Result<ThreadCount> {
    let mut latency_ns = histogram()?;
    // Room for more than the bins that are to be expected, so that nothing is allocated in the loop.
    let (mut bins, mut ops) = (Vec::with_capacity(1 << 12), 0);
    gate.open();
    let start = Instant::now();
    let mut now = start;
    let mut sampling = Sampling::default();
    // One is done in any case: a thread that gets no processor all the while has measured something.
    loop {
        let begin = now;
        let stride = sampling.stride;
        let mut done = operation()?;
        now = Instant::now();
        let timed = now - begin;
        if stride > 1 {
            for _ in 1..stride {
                done += operation()?;
            }
            now = Instant::now();
        }
        record(&mut latency_ns, timed, stride, (now - begin) - timed);
        let bin = ((now - start).as_nanos() / BIN.as_nanos()) as usize;
        if bin >= bins.len() {
            bins.resize(bin + 1, 0);
        }
        bins[bin] += done;
        ops += done;
        sampling.note(now - begin);
        if stop.load(Ordering::Relaxed) {
            break;
        }
    }
    Ok(ThreadCount { ops, seconds: start.elapsed().as_secs_f64(), latency_ns, bins })
}

/// How many operations the next one that is timed stands for.
#[derive(Debug)]
struct Sampling {
    /// Itself included. It is settled before that one begins: were it by its own latency, the fast ones would stand for more than the slow
    /// ones. And it is by [`STRIDE`] operations: after a single fast one slow ones may follow, where some find memory and some the disk.
    stride: u64,
    ops: u64,
    took: Duration,
}

impl Default for Sampling {
    fn default() -> Sampling {
        Sampling { stride: 1, ops: 0, took: Duration::ZERO }
    }
}

impl Sampling {
    /// Notes how long a stride took.
    fn note(&mut self, took: Duration) {
        self.ops += self.stride;
        self.took += took;
        if self.ops >= STRIDE {
            let is_fast = self.took < TIMED_EACH * self.ops as u32;
            *self = Sampling { stride: if is_fast { STRIDE } else { 1 }, ..Sampling::default() };
        }
    }
}

/// Notes how long an operation took that stands for so many, and how long the others took together. A stall is one operation's, and is
/// noted wherever it is: it is seldom, and would either be missed, or count for all. Where the others took long, it may also be that all operations
/// do now: that is so if one of them took about as long as this one.
fn record(latency_ns: &mut Histogram<u64>, timed: Duration, stride: u64, others: Duration) {
    let others_count = stride - 1;
    let are_both_stalls = others > STALLED && others < timed * FEW;
    let usual = if are_both_stalls { latency_ns.value_at_quantile(0.5) } else { 0 };
    let mut note = |took: Duration, count: u64| latency_ns.saturating_record_n(nanoseconds(took), count);
    if stride == 1 {
        note(timed, 1);
    } else if are_both_stalls {
        note(timed, 1);
        note(others, 1);
        note(Duration::from_nanos(usual), others_count - 1);
    } else if others > STALLED && others > timed * (2 * stride as u32) {
        note(others, 1);
        note(timed, others_count);
    } else if others.max(timed) > STALLED {
        note(timed, 1);
        note(others / others_count as u32, others_count);
    } else {
        note(timed, stride);
    }
}

/// Makes everything durable again and again, and tells when it was, in milliseconds.
fn persist_each(
    each: Duration,
    persist: &(dyn Fn() -> Result<()> + Sync),
    stop: &AtomicBool,
) -> Result<Vec<f64>> {
    let (start, mut marks_ms) = (Instant::now(), Vec::new());
    loop {
        sleep(each, stop);
        if stop.load(Ordering::Relaxed) || interrupt::asked() {
            return Ok(marks_ms);
        }
        if let Err(error) = persist() {
            stop.store(true, Ordering::Relaxed);
            return Err(error);
        }
        marks_ms.push(start.elapsed().as_secs_f64() * 1000.0);
    }
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
        tasks.push(runtime.spawn(client(number, Timer::start(stop.clone())?)));
    }
    sleep(duration, &stop);
    stop.store(true, Ordering::Relaxed);
    let counts = runtime.block_on(async {
        let mut counts = Vec::new();
        for task in tasks {
            counts.push(task.await.context("a measuring task panicked")??.count());
        }
        anyhow::Ok(counts)
    })?;
    interrupt::check()?;
    combine(counts, Usage::own().since(before))
}

/// Times the operations of one task.
pub(crate) struct Timer {
    stop: Arc<AtomicBool>,
    start: Instant,
    before: Instant,
    ops: u64,
    latency_ns: Histogram<u64>,
}

impl Timer {
    fn start(stop: Arc<AtomicBool>) -> Result<Timer> {
        let now = Instant::now();
        Ok(Timer { stop, start: now, before: now, ops: 0, latency_ns: histogram()? })
    }

    /// An operation has ended. False if it was the last.
    pub(crate) fn tick(&mut self) -> bool {
        let now = Instant::now();
        self.latency_ns.saturating_record(nanoseconds(now - self.before));
        self.before = now;
        self.ops += 1;
        !self.stop.load(Ordering::Relaxed)
    }

    fn count(self) -> ThreadCount {
        let seconds = (self.before - self.start).as_secs_f64();
        ThreadCount { ops: self.ops, seconds, latency_ns: self.latency_ns, bins: Vec::new() }
    }
}

/// What one thread, or task, counted.
struct ThreadCount {
    ops: u64,
    seconds: f64,
    latency_ns: Histogram<u64>,
    bins: Vec<u64>,
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

/// Sleeps until the time is over, the user interrupts, or a thread has failed.
fn sleep(duration: Duration, stop: &AtomicBool) {
    let end = Instant::now() + duration;
    while !interrupt::asked() && !stop.load(Ordering::Relaxed) {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            break;
        }
        std::thread::sleep(left.min(Duration::from_millis(20)));
    }
}

fn combine(counts: Vec<ThreadCount>, usage: Usage) -> Result<Measured> {
    let mut total = Measured::nothing(usage)?;
    for count in counts {
        total.ops += count.ops;
        total.seconds = total.seconds.max(count.seconds);
        total.ops_per_s += count.ops as f64 / count.seconds.max(1e-9);
        total.latency_ns.add(count.latency_ns).context("cannot add up latencies")?;
        total.bins.resize(total.bins.len().max(count.bins.len()), 0);
        total.bins.iter_mut().zip(count.bins).for_each(|(sum, more)| *sum += more);
    }
    Ok(total)
}

/// Puts slices of one cell together, measured one after the other with other cells between them.
pub(crate) fn join(parts: Vec<Measured>) -> Result<Measured> {
    let mut whole = Measured::nothing(Usage::default())?;
    for part in parts {
        whole.ops += part.ops;
        whole.seconds += part.seconds;
        // The rate is the mean of the slices' rates by their time, and becomes it by the division below.
        whole.ops_per_s += part.ops_per_s * part.seconds;
        whole.latency_ns.add(part.latency_ns).context("cannot add up latencies")?;
        whole.usage.cpu_s += part.usage.cpu_s;
        whole.usage.rss_bytes = part.usage.rss_bytes;
        whole.usage.device_bytes += part.usage.device_bytes;
    }
    whole.ops_per_s /= whole.seconds.max(1e-9);
    Ok(whole)
}
