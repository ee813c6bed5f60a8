//! Hardening: making versions durable, in order.
//!
//! One hardening is: tick, close version h, make the log read-only up to its tail, wait for those who still
//! write there, write the extent with its seal, sync, publish horizon = h, wake the waiters.
//!
//! Whoever waits for durability leads, be it a thread or a task: if nobody hardens at the moment, the waiter does it on its own
//! thread (no hand-over to another thread delays a lone safe commit); otherwise it sleeps until the leader is done, and if it
//! is not covered then, it leads the next one (`lead`). So group commit clocks itself: whoever arrives during one
//! write shares the next. A background thread hardens what nobody waits for, within the vulnerability window
//! (`background`).

pub(crate) mod background;
pub(crate) mod horizon;
mod lead;
mod pace;

use std::collections::BTreeSet;
use std::time::Duration;

use self::horizon::{Covered, Horizon, Waiter};
use self::pace::Pace;
use super::checkpoint::Cut;
use super::engine::Engine;
use super::ledger::Ledger;
use super::sweep::Grave;
use crate::device::BLOCK_BYTES;
use crate::error::{Error, Result};
use crate::planted::{Bug, planted};
use crate::storage::extent::ExtentWriter;
use crate::storage::liveness::Counted;
use crate::storage::log::{Demand, Purpose};
use crate::storage::record::{Address, Kind};
use crate::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use crate::sync::{Condvar, EventCount, Instant, Mutex, mpsc};

/// What the one who hardens owns.
pub(crate) struct Leader {
    writer: ExtentWriter,
    /// Tombstones in the extents being written.
    graves: Vec<Grave>,
    ledger: Ledger,
    counted: Counted,
}

/// Requests to the background thread.
#[derive(Default)]
pub(crate) struct Requests {
    /// Harden at once.
    now: bool,
    /// Tell those who were withheld.
    tell: bool,
    stop: bool,
    /// Take a checkpoint.
    checkpoint: bool,
    /// Settle.
    settling: bool,
}

/// See the module's documentation.
pub(crate) struct Hardening {
    pub(crate) horizon: Horizon,
    leader: Mutex<Leader>,
    /// How many leads have ended, for who waits for the end of one without a version to wait for.
    leads_ended: EventCount,
    requests: Mutex<Requests>,
    wake_hardener: Condvar,
    wake_watcher: Condvar,
    wake_keeper: Condvar,
    wake_checkpointer: Condvar,
    wake_settler: Condvar,
    /// Background threads that sleep until a commit wakes them. While there is something to do now and then they look by
    /// themselves, so that commits do not pay for waking them.
    asleep: AtomicUsize,
    /// Since when something is committed that no hardening has begun to cover, and the same for the hardening under way; microseconds since
    /// `started`, 0 if nothing is.
    dirty_since: AtomicU64,
    hardening_since: AtomicU64,
    /// By when somebody has asked for a hardening that is yet to begin, besides the window; as those. It is changed with `requests` locked.
    by: AtomicU64,
    started: Instant,
    window: Duration,
    pace: Pace,
    /// The most bytes that may ever be un-hardened, and that may be now.
    unhardened_bytes_limit: u64,
    unhardened_bytes_max: AtomicU64,
    background: bool,
    /// Bytes of the last hardening, and how long it took in microseconds (smoothed).
    last_bytes: AtomicU64,
    duration_us: AtomicU64,
    count: AtomicU64,
    records: AtomicU64,
    bytes: AtomicU64,
    /// How many waited for the last hardening.
    last_waiters: AtomicUsize,
    /// Log space that a waiting committer needs.
    wanted_space: AtomicU64,
}

/// Numbers for statistics.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct HardeningCounts {
    pub(crate) count: u64,
    pub(crate) records: u64,
    pub(crate) bytes: u64,
    pub(crate) duration: Duration,
}

impl Hardening {
    pub(crate) fn new(
        writer: ExtentWriter,
        ledger: Ledger,
        (window, unhardened_bytes): (Duration, u64),
        background: bool,
    ) -> Hardening {
        let hardening = Hardening {
            horizon: Horizon::new(ledger.horizon),
            leader: Mutex::new(Leader { writer, graves: Vec::new(), ledger, counted: Counted::default() }),
            leads_ended: EventCount::default(),
            requests: Mutex::new(Requests::default()),
            wake_hardener: Condvar::new(),
            wake_watcher: Condvar::new(),
            wake_keeper: Condvar::new(),
            wake_checkpointer: Condvar::new(),
            wake_settler: Condvar::new(),
            asleep: AtomicUsize::new(0),
            dirty_since: AtomicU64::new(0),
            hardening_since: AtomicU64::new(0),
            by: AtomicU64::new(0),
            started: Instant::now(),
            window,
            pace: Pace::new(window),
            unhardened_bytes_limit: unhardened_bytes,
            unhardened_bytes_max: AtomicU64::new(unhardened_bytes),
            background,
            last_bytes: AtomicU64::new(0),
            duration_us: AtomicU64::new(0),
            count: AtomicU64::new(0),
            records: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            last_waiters: AtomicUsize::new(0),
            wanted_space: AtomicU64::new(0),
        };
        hardening.bound_bytes(0);
        hardening
    }

    /// Where many waited for the last hardening, they are just being woken, and most will be back with their next
    /// commit in a moment. Offers them the processor, so that more of them share what a hardening costs it. A lone client never waits here.
    fn gather(&self) {
        let returning = self.last_waiters.load(Ordering::Relaxed);
        if returning >= 3 {
            self.horizon.gather(returning, self.gathering_patience());
        }
    }

    /// How long to gather at most: a tenth of the window, so that it holds for the others, who have not asked for this.
    fn gathering_patience(&self) -> Duration {
        (3 * self.counts().duration).min(self.window / 10)
    }

    /// True if syncs are frequent and small, so that segments are worth being written beforehand.
    pub(crate) fn writes_are_small(&self) -> bool {
        const SMALL_BYTES: u64 = 1 << 20;
        self.last_bytes.load(Ordering::Relaxed) < SMALL_BYTES
    }

    /// Called after each commit that wrote. Costs one load unless it is the first since a hardening began.
    #[inline]
    pub(crate) fn note_commit(&self) {
        if self.dirty_since.load(Ordering::SeqCst) == 0 {
            self.note_first_commit();
        }
    }

    #[cold]
    fn note_first_commit(&self) {
        let now = self.now_us();
        let is_first = self.dirty_since.compare_exchange(0, now, Ordering::SeqCst, Ordering::SeqCst).is_ok();
        if is_first && self.asleep.load(Ordering::SeqCst) > 0 {
            let _requests = self.requests.lock();
            self.wake_all();
        }
    }

    /// Has the keeper look at what it has to do, although nothing may have been committed.
    #[cold]
    pub(crate) fn wake_keeper(&self) {
        // Either it looks before it sleeps, or it sleeps already and hears this.
        let _requests = self.requests.lock();
        self.wake_keeper.notify_one();
    }

    fn wake_all(&self) {
        self.wake_hardener.notify_one();
        self.wake_watcher.notify_one();
        self.wake_keeper.notify_one();
    }

    fn now_us(&self) -> u64 {
        self.us_at(Instant::now())
    }

    fn us_at(&self, time: Instant) -> u64 {
        time.saturating_duration_since(self.started).as_micros() as u64 + 1
    }

    /// How long the oldest commit that is not durable has waited.
    pub(crate) fn oldest_unhardened(&self) -> Option<Duration> {
        let since = [&self.hardening_since, &self.dirty_since]
            .into_iter()
            .map(|since| since.load(Ordering::SeqCst))
            .filter(|&since| since != 0)
            .min()?;
        Some(Duration::from_micros(self.now_us().saturating_sub(since)))
    }

    /// True if it has waited for longer than it may.
    pub(super) fn is_behind_window(&self) -> bool {
        self.oldest_unhardened().is_some_and(|age| age > self.window)
    }

    pub(crate) fn counts(&self) -> HardeningCounts {
        HardeningCounts {
            count: self.count.load(Ordering::Relaxed),
            records: self.records.load(Ordering::Relaxed),
            bytes: self.bytes.load(Ordering::Relaxed),
            duration: Duration::from_micros(self.duration_us.load(Ordering::Relaxed)),
        }
    }

    /// Has the next hardening make room for so much, whatever the pace allows.
    pub(crate) fn want_space(&self, bytes: u64) {
        self.wanted_space.fetch_max(bytes, Ordering::SeqCst);
    }

    /// The most bytes that may be un-hardened now.
    pub(crate) fn unhardened_bytes_max(&self) -> u64 {
        self.unhardened_bytes_max.load(Ordering::SeqCst)
    }

    /// Lets as many bytes be un-hardened as harden within the window, and at least what a committer wants.
    fn bound_bytes(&self, wanted: u64) {
        if self.background {
            // A record that does not fit into the rest of a segment leaves less than its own length behind.
            let wanted = if wanted > 0 { 4 * wanted + (64 << 10) } else { 0 };
            let most = self.pace.bytes_max().max(wanted).min(self.unhardened_bytes_limit);
            self.unhardened_bytes_max.store(most, Ordering::SeqCst);
        }
    }

    pub(crate) fn window(&self) -> Duration {
        self.window
    }

    /// Whether the database has background threads.
    pub(crate) fn has_background(&self) -> bool {
        self.background
    }

    /// True once the background threads are to end.
    pub(crate) fn is_stopping(&self) -> bool {
        self.requests.lock().stop
    }

    /// Asks the background thread to harden now.
    pub(crate) fn request_now(&self) {
        let mut requests = self.requests.lock();
        if !requests.now {
            requests.now = true;
            self.wake_hardener.notify_one();
        }
    }

    /// Whether somebody has asked for it, and it was not begun yet.
    #[cfg(test)]
    pub(crate) fn is_asked(&self) -> bool {
        self.requests.lock().now
    }

    /// Asks the background thread to have begun by `deadline` to harden what is committed. Costs one load if as much was asked for already: who finds it
    /// has committed before the hardener [takes](Self::take_request_by) it, and hardens.
    pub(crate) fn request_by(&self, deadline: Instant) {
        let deadline = self.us_at(deadline);
        let is_kept = || (1..=deadline).contains(&self.by.load(Ordering::SeqCst));
        if !is_kept() {
            let _requests = self.requests.lock();
            if !is_kept() {
                self.by.store(deadline, Ordering::SeqCst);
                self.wake_hardener.notify_one();
            }
        }
    }

    /// By when somebody has asked for a hardening.
    fn requested_by(&self) -> Option<Instant> {
        let by = self.by.load(Ordering::SeqCst);
        (by > 0).then(|| self.started + Duration::from_micros(by))
    }

    /// Whether somebody has asked for a hardening by some time. The caller has `requests` locked, and hardens.
    fn take_request_by(&self) -> bool {
        self.by.swap(0, Ordering::SeqCst) > 0
    }
}

/// Where the durable log ends, at one moment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DurableEnd {
    pub(crate) address: Address,
    /// Checksum of the last seal.
    pub(crate) chain_checksum: u32,
    pub(crate) horizon: u64,
}

impl Engine {
    /// Waits until `version` is durable on this machine, leading the hardening if nobody else does.
    pub(crate) fn wait_local(&self, version: u64) -> Result<()> {
        let horizon = &self.hardening.horizon;
        self.check_is_given_out(version)?;
        if planted(Bug::WaitReturnsEarly) {
            return Ok(());
        }
        // Once is enough: a registration stays until the version's fate is known.
        let mut registered = false;
        loop {
            // Read before the looks: whatever changes after them ends the sleep.
            let seen = horizon.place(version).read();
            if let Some(outcome) = horizon.outcome(version) {
                return outcome.map_err(|lost| lost.error());
            }
            if self.try_lead_for(version) {
                continue;
            }
            if !registered {
                self.lose_after_fork()?;
                if !horizon.register_thread(version) {
                    continue;
                }
                registered = true;
                if !planted(Bug::ParksWithoutLooking) && self.try_lead_for(version) {
                    continue;
                }
            }
            // Whoever holds the lock looks for waiters after it has let go, so either it sees the registration or this
            // saw the lock free.
            horizon.place(version).wait(seen);
        }
    }

    /// As [`Self::wait_local`], giving up at `deadline`; false if the version was not durable then. To keep the
    /// deadline it has the background thread harden, if there is one.
    pub(crate) fn wait_local_until(&self, version: u64, deadline: Option<Instant>) -> Result<bool> {
        let (Some(deadline), true) = (deadline, self.has_hardener()) else {
            return self.wait_local(version).map(|()| true);
        };
        let horizon = &self.hardening.horizon;
        self.check_is_given_out(version)?;
        let (told, hear) = mpsc::channel();
        let waiter = Box::new(move |outcome| {
            // Whoever asked may have given up.
            let _ = told.send(outcome);
        });
        let number = horizon.register(version, Waiter::Callback(waiter));
        if number.is_some() {
            self.hardening.request_now();
        }
        let told = hear.recv_timeout(deadline.saturating_duration_since(Instant::now())).ok();
        if let (None, Some(number)) = (&told, number) {
            horizon.give_up(version, number);
        }
        // Who tells may be late.
        match told.or_else(|| horizon.outcome(version)) {
            Some(outcome) => outcome.map(|()| true).map_err(|lost| lost.error()),
            None => Ok(false),
        }
    }

    /// Somebody hardens who is asked to. A system call.
    pub(super) fn has_hardener(&self) -> bool {
        self.hardening.background && !self.closed.load(Ordering::SeqCst) && self.process.is_this()
    }

    fn check_is_given_out(&self, version: u64) -> Result<()> {
        let now = self.clock.now();
        match version <= now {
            true => Ok(()),
            false => Err(Error::input(format!("no commit has version {version} yet; the clock is at {now}"))),
        }
    }

    /// Where the durable log ends.
    pub(crate) fn durable_end(&self) -> DurableEnd {
        self.between_hardenings(|leader| DurableEnd {
            address: self.log.hardened(),
            chain_checksum: leader.writer.chain.checksum,
            horizon: self.hardening.horizon.local(),
        })
    }

    /// What is known where the durable log ends.
    pub(crate) fn cut(&self) -> Cut {
        self.between_hardenings(|leader| Cut {
            end: self.log.hardened(),
            chain: leader.writer.chain,
            ledger: leader.ledger.cut(),
            liveness: self.liveness.lock().clone(),
            grave_count: self.graves.len(),
        })
    }

    /// The ids of the first sessions behind `after` that have hardened, ascending, as [`Ledger::sessions_after`] has it.
    pub(crate) fn hardened_sessions_after(&self, after: &[u8], count: usize) -> BTreeSet<Vec<u8>> {
        self.between_hardenings(|leader| leader.ledger.sessions_after(after, count))
    }

    /// Has the ledger be in one piece for the next cut, in steps between which others harden.
    pub(crate) fn fold_ledger(&self) {
        while self.between_hardenings(|leader| leader.ledger.fold()) {}
    }

    /// Whom it covered is told by who lets go, whatever comes after.
    fn harden(&self, leader: &mut Leader, covered: &mut Covered) {
        let hardening = &self.hardening;
        let began = Instant::now();
        // Reset before the tick: a commit that still sees it set has installed its writes before the tick.
        hardening.hardening_since.store(hardening.dirty_since.swap(0, Ordering::SeqCst), Ordering::SeqCst);
        let version = self.clock.close();
        // Records that were written between the last tick and its shift are on disk, but under an older seal.
        let unsealed = leader.writer.newest_version > hardening.horizon.local()
            || self.log.has_unsealed_records()
            || self.is_to_be_sealed_anew();
        *covered = if unsealed {
            let start = self.log.hardened();
            let end = self.log.finish_tail();
            if planted(Bug::HorizonBeforeWrite) {
                hardening.horizon.tell(hardening.horizon.publish(version));
            }
            match self.write_extents(leader, start, end, version) {
                Ok(records) => self.publish(leader, (end, records), version, began),
                Err(error) => {
                    if planted(Bug::FailedSealCovers) {
                        hardening.horizon.tell(hardening.horizon.publish(version));
                    }
                    self.lose(format!("hardening failed: {error}"))
                }
            }
        } else {
            self.behind.store(false, Ordering::SeqCst);
            hardening.horizon.cover(version)
        };
        hardening.last_waiters.store(covered.waiter_count(), Ordering::Relaxed);
        hardening.hardening_since.store(0, Ordering::SeqCst);
        let wanted = hardening.wanted_space.swap(0, Ordering::SeqCst);
        hardening.bound_bytes(wanted);
        self.make_room(wanted);
    }

    /// Nothing is to be made durable, and yet there is to be a seal.
    fn is_to_be_sealed_anew(&self) -> bool {
        self.is_far_ahead()
            // Then the directory may be somebody else's.
            && !self.closed.load(Ordering::SeqCst)
            && self.log.has_space(Demand::of_one(BLOCK_BYTES as u64), Purpose::Sweep)
    }

    /// Writes the log from `start` to `end`, one extent for each segment it touches, each durable before the
    /// next is begun; only the last one carries the new version. Gives the number of records.
    fn write_extents(
        &self,
        leader: &mut Leader,
        start: Address,
        end: Address,
        version: u64,
    ) -> std::io::Result<u64> {
        let (mut from, mut all_records) = (start, 0);
        while from < end {
            let to = (from + 1).next_multiple_of(self.log.segment_bytes()).min(end);
            let last = to == end || planted(Bug::EarlySealNewVersion);
            let sealed = if last { version } else { self.hardening.horizon.local() };
            let Leader { writer, graves, ledger, counted } = &mut *leader;
            writer.copy_out(&self.log, from, to, &mut |record| {
                ledger.note(&record);
                all_records += 1;
                counted.note(&record, self.log.segment_bytes());
                if counted.is_full() {
                    self.liveness.lock().add(from, counted);
                }
                if record.kind == Kind::Tombstone {
                    let (address, object, version) = (record.address, record.object, record.version);
                    graves.push(Grave {
                        address,
                        object,
                        version,
                        key: record.key.into(),
                        replaced_before: 0,
                    });
                }
            });
            self.liveness.lock().add(from, counted);
            writer.write(&self.segments, (from, to), (sealed, 0))?;
            ledger.horizon = ledger.horizon.max(sealed);
            self.liveness.lock().set_end_checksum(from, writer.chain.checksum);
            from = to;
        }
        Ok(all_records)
    }

    fn publish(
        &self,
        leader: &mut Leader,
        (end, records): (Address, u64),
        version: u64,
        began: Instant,
    ) -> Covered {
        let hardening = &self.hardening;
        let bytes = end - self.log.hardened();
        self.log.set_hardened(end);
        hardening.last_bytes.store(bytes, Ordering::Relaxed);
        hardening.records.fetch_add(records, Ordering::Relaxed);
        hardening.bytes.fetch_add(bytes, Ordering::Relaxed);
        hardening.count.fetch_add(1, Ordering::Relaxed);
        let took = began.elapsed();
        hardening.pace.learn(bytes, took);
        let took_us = took.as_micros() as u64;
        let before_us = hardening.duration_us.load(Ordering::Relaxed);
        hardening.duration_us.store((before_us * 3 + took_us) / 4, Ordering::Relaxed);
        self.watch_length(end);
        let presses = self.compaction.is_pressing() || self.settled.pace.is_pressing();
        self.behind.store(presses, Ordering::SeqCst);
        self.graves.bury(&mut leader.graves);
        hardening.horizon.publish(version)
    }

    /// Slows commits down while hardening is behind the vulnerability window (C5b), or compaction far behind its bound, or settling; that only
    /// those which write tables, and each once: `is_slowed` is its own, and false at its first attempt.
    #[inline]
    pub(crate) fn wait_while_behind(&self, is_slowed: &mut bool, writes_table: impl FnOnce() -> bool) {
        if self.is_behind() {
            let waits_for_settling = !std::mem::replace(is_slowed, true) && writes_table();
            self.wait(|| self.wait_until_caught_up(waits_for_settling));
        }
    }

    /// Whether [commits are slowed](Self::wait_while_behind).
    #[inline]
    pub(crate) fn is_behind(&self) -> bool {
        self.behind.load(Ordering::Relaxed)
    }

    #[cold]
    fn wait_until_caught_up(&self, waits_for_settling: bool) {
        if waits_for_settling {
            self.settled.pace.wait();
        }
        if self.compaction.is_pressing() {
            // Compaction needs log space like every commit, and only a hardening makes some: so first its piece, then one for
            // all, then this commit.
            self.sweep_in_turn();
            self.harden_or_wait();
            return;
        }
        // Or it was settling, or compaction, that had fallen behind: then there is nothing to be hardened for.
        while self.behind.load(Ordering::SeqCst)
            && self.hardening.is_behind_window()
            && self.check_writable().is_ok()
        {
            self.harden_or_wait();
        }
    }
}

#[cfg(test)]
mod tests;
