//! Snapshots: reading the database as it was at a closed version.
//!
//! Records of closed versions are immutable and stay in the log, so a snapshot is a number: reads follow a
//! key's older versions until they reach it. The register of versions that are held only keeps sweeping and truncation
//! from removing what one of them may read.
//!
//! **One after the other.** Closing a version looks at every thread, and waits for those that commit. While nothing is committed the last version that
//! was closed will do again, and the log's tail tells: the first commit of a version takes log space, since in place it could only
//! change a record of its own version, and moves the tail for it, since closing a version for a snapshot retires what threads have taken ahead. So the last closed version has every commit if the tail has not moved since, *and* nobody who had
//! taken space before could still join a later version. The latter holds if the tail had not moved since the closing before that one
//! either: that one waited for all commits, and so for everybody who had taken space until then.
//!
//! **One for many.** Whoever has waited for their turn while somebody else began to close a version, and closed it, takes that one: everything that was committed
//! before it came is in there. So the more threads open snapshots between commits, the fewer versions each of them closes.
//!
//! **Who closes holds up nobody else.** Closing waits for commits in progress, and so do all who want to close a version, one after the other. Sweeps, whoever opens a
//! snapshot of what is durable, and whoever is done with one, only want the register, which nobody has for long. So whoever closes a version
//! has the durable one held meanwhile: else a sweep could pass the new one, once it is durable, before it is in the register.
//!
//! **At the same time.** As long as one version will do, threads that open snapshots share hardly anything that they write: each counts them in a
//! stripe that it shares with few others. As long as an older one is open there, it takes one of the next. A sweep reads the horizon first and the stripes then; whoever opens a snapshot counts it first and looks then whether the
//! version will still do. So if the sweep has overlooked it, nothing had been committed since the version when the sweep read the horizon, and what
//! the sweep removes was superseded in that version at the latest.

use std::collections::BTreeMap;

use super::engine::Engine;
use super::expiry::Moment;
use super::named_snapshot::{NamedSnapshot, Names};
use crate::planted::{Bug, planted};
use crate::storage::epoch;
use crate::storage::log::Log;
use crate::storage::record::{Address, VERSION_BITS};
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sync::{Mutex, MutexGuard};

/// A version that is held for who reads at it.
#[derive(Debug)]
pub(crate) struct Held {
    pub(crate) version: u64,
    /// The stripe where it is counted, if it is not in the register.
    stripe: Option<usize>,
}

const STRIPES: usize = 64;
/// In so many stripes a thread tries to count a snapshot: in some of them older ones may be, and stay.
const TRIES: usize = 8;
const COUNT_BITS: u32 = u64::BITS - VERSION_BITS;
const COUNT_MAX: u64 = (1 << COUNT_BITS) - 1;

/// Snapshots of one version that are counted here: the version, and in the low bits how many they are.
#[derive(Default)]
#[repr(align(128))]
struct Stripe(AtomicU64);

impl Stripe {
    /// Counts one more, if those that are here are of the same version.
    fn add(&self, version: u64) -> bool {
        let more = |word: u64| match (word >> COUNT_BITS, word & COUNT_MAX) {
            (_, 0) => Some(version << COUNT_BITS | 1),
            (held, count) if held == version && count < COUNT_MAX => Some(word + 1),
            _ => None,
        };
        self.0.fetch_update(Ordering::SeqCst, Ordering::Relaxed, more).is_ok()
    }

    fn remove_one(&self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }

    /// The version and how many there are, if there are some.
    fn held(&self) -> Option<(u64, u64)> {
        let word = self.0.load(Ordering::SeqCst);
        (word & COUNT_MAX > 0).then_some((word >> COUNT_BITS, word & COUNT_MAX))
    }
}

/// The version that will do for the next snapshot, where one does, and what is open of it or was.
pub(crate) struct Shared {
    /// 0 if there is none. Whoever closes stores these, the version last, after a 0 in its place.
    version: AtomicU64,
    /// It will do as long as the log ends here.
    tail: AtomicU64,
    stripes: [Stripe; STRIPES],
}

impl Default for Shared {
    fn default() -> Shared {
        Shared {
            version: AtomicU64::new(0),
            tail: AtomicU64::new(0),
            stripes: std::array::from_fn(|_| Stripe::default()),
        }
    }
}

impl Shared {
    pub(crate) fn publish(&self, version: Option<u64>, tail: Address) {
        self.version.store(0, Ordering::SeqCst);
        self.tail.store(tail, Ordering::SeqCst);
        self.version.store(version.unwrap_or(0), Ordering::SeqCst);
    }

    fn version_now(&self, log: &Log) -> u64 {
        let version = self.version.load(Ordering::SeqCst);
        let holds = self.tail.load(Ordering::SeqCst) == log.tail() || planted(Bug::SnapshotUsedAgain);
        // Else the tail may be that of the next one.
        let is_still = self.version.load(Ordering::SeqCst) == version || planted(Bug::NextSnapshotsTail);
        if holds && is_still { version } else { 0 }
    }

    /// And what the time is, as of which that is so.
    pub(crate) fn open<T>(&self, log: &Log, now: impl Fn() -> T) -> Option<(Held, T)> {
        let version = self.version_now(log);
        if version == 0 {
            return None;
        }
        let first = epoch::thread_index();
        let mut numbers = (first..first + TRIES).map(|number| number % STRIPES);
        let number = numbers.find(|&number| self.stripes[number].add(version))?;
        let time = now();
        // Versions that are published are never the same again.
        if self.version_now(log) != version {
            self.stripes[number].remove_one();
            return None;
        }
        Some((Held { version, stripe: Some(number) }, time))
    }

    pub(crate) fn release(&self, held: &Held) {
        if let Some(number) = held.stripe {
            self.stripes[number].remove_one();
        }
    }

    /// The oldest version of which some are open.
    pub(crate) fn oldest(&self) -> Option<u64> {
        self.stripes.iter().filter_map(Stripe::held).map(|(version, _)| version).min()
    }
}

/// The versions at which somebody reads.
pub(crate) struct Snapshots {
    /// Whoever closes a version for a snapshot has it until that is closed, and what comes of it.
    closing: Mutex<Closing>,
    /// How often somebody began to.
    closings: AtomicU64,
    /// The versions that are held, but in stripes. Taken last, and not for long.
    held: Mutex<Register>,
    shared: Shared,
    /// Those that have a name; their versions are held as if they were open.
    pub(super) names: Mutex<Names>,
    /// Whoever gives or takes a name.
    changing: Mutex<()>,
}

impl Snapshots {
    /// Holds what recovery has found.
    pub(crate) fn new(named: Vec<NamedSnapshot>) -> Snapshots {
        let mut held = Register::default();
        for snapshot in named.iter().filter(|_| !planted(Bug::NamesNotHeld)) {
            held.add(snapshot.version);
        }
        let names = named.into_iter().map(|snapshot| (snapshot.name.clone(), snapshot)).collect();
        Snapshots {
            closing: Mutex::default(),
            closings: AtomicU64::new(0),
            held: Mutex::new(held),
            shared: Shared::default(),
            names: Mutex::new(names),
            changing: Mutex::default(),
        }
    }

    /// Keeps all others from giving or taking names until dropped.
    pub(crate) fn change_names(&self) -> MutexGuard<'_, ()> {
        self.changing.lock()
    }
}

#[derive(Default)]
struct Closing {
    /// Where the log ended before a version was last closed for a snapshot.
    tail: Address,
    /// The version that was last closed for a snapshot, by the closing of this number.
    closed: u64,
    number: u64,
    /// The time as of which it has all commits, and none of later; none if there were no rows that expire.
    closed_at: Option<u64>,
    /// The version that has all commits as long as the log ends there.
    newest: Option<u64>,
}

/// How often each version is held.
#[derive(Default)]
struct Register {
    versions: BTreeMap<u64, usize>,
    /// What is held by whoever is closing a version. No sweep passes it, nor what comes of that: one that has not looked here yet finds it, and the
    /// others know of no newer horizon.
    closing: Option<u64>,
}

impl Register {
    fn add(&mut self, version: u64) -> u64 {
        *self.versions.entry(version).or_default() += 1;
        version
    }

    fn remove_one(&mut self, version: u64) {
        if let Some(count) = self.versions.get_mut(&version) {
            *count -= 1;
            if *count == 0 {
                self.versions.remove(&version);
            }
        }
    }

    fn oldest(&self) -> Option<u64> {
        self.versions.keys().next().copied().into_iter().chain(self.closing).min()
    }

    fn count(&self) -> usize {
        self.versions.values().sum()
    }
}

impl Engine {
    /// Opens a snapshot of everything committed so far, as of now. Closes a version on demand, which waits for commits in
    /// progress (in the order of a microsecond for each entry of the largest), not for any device.
    #[inline]
    pub(crate) fn open_snapshot(&self) -> (Held, Moment) {
        let shared = self.snapshots.shared.open(&self.log, || self.time_of_snapshot());
        let (held, time) = shared.unwrap_or_else(|| {
            self.seal_far_ahead();
            let (version, time) = self.hold_newest();
            (Held { version, stripe: None }, time)
        });
        (held, Moment::at(time))
    }

    /// Before a version is held: has a seal say how far the clock has come, if that is due. The caller holds no lock.
    pub(super) fn seal_far_ahead(&self) {
        if self.is_far_ahead() {
            // Where that fails nothing commits any more, and no version matters; where there is no space for a seal, hardly anything does.
            let _ = self.persist();
        }
    }

    /// Holds a version that has everything committed so far, and says as of when it is to be read: the [time](Engine::time_of_snapshot) when nothing could join it any
    /// more. Of one that is older than its time a row would be absent that was renewed in time, and of one that is newer a row that the engine has deleted, but not others
    /// that expired with it; since whoever commits has read the time before it joins a version, it is the tick that counts.
    pub(super) fn hold_newest(&self) -> (u64, Option<u64>) {
        let begun = self.snapshots.closings.load(Ordering::SeqCst);
        let mut closing = self.snapshots.closing.lock();
        if !planted(Bug::ClosedNotHeld) {
            let mut held = self.snapshots.held.lock();
            held.closing = Some(self.hardening.horizon.local());
        }
        let (version, time) = self.newest_version(&mut closing, begun);
        let mut held = self.snapshots.held.lock();
        held.closing = None;
        (held.add(version), time)
    }

    /// The version, and its time. The caller has the version held that is durable.
    fn newest_version(&self, closing: &mut Closing, begun: u64) -> (u64, Option<u64>) {
        if let Some(closed) = self.closed_since(closing, begun) {
            return (closed, closing.closed_at);
        }
        let now = self.time_of_snapshot();
        let tail = self.log.tail();
        let has_stayed = closing.tail == tail || planted(Bug::SnapshotUsedAgain);
        // It may have been passed by a sweep, but no commit has superseded anything since.
        if let Some(newest) = closing.newest.filter(|_| has_stayed) {
            return (newest, now);
        }
        let number = self.snapshots.closings.fetch_add(1, Ordering::SeqCst) + 1;
        self.log.retire_chunks();
        let (version, time) = match planted(Bug::SnapshotNotClosed) {
            true => (self.clock.now(), now),
            false => self.clock.close_as_of(|| self.time_of_snapshot()),
        };
        let nobody_joins = has_stayed || planted(Bug::SnapshotsOvertakeCommits);
        (closing.closed, closing.number, closing.closed_at) = (version, number, time);
        closing.newest = (nobody_joins && self.log.tail() == tail).then_some(version);
        closing.tail = tail;
        self.snapshots.shared.publish(closing.newest, tail);
        (version, time)
    }

    /// The version that somebody closed for a snapshot who began to after so many closings had begun; not if a sweep may have passed it, which
    /// needs it to be durable.
    fn closed_since(&self, closing: &Closing, begun: u64) -> Option<u64> {
        let is_later = closing.number > begun || planted(Bug::SnapshotUsedAgain);
        (is_later && closing.closed > self.hardening.horizon.local()).then_some(closing.closed)
    }

    /// Opens a snapshot of the durable state, as of now.
    pub(crate) fn open_durable_snapshot(&self) -> (Held, Moment) {
        loop {
            let before = self.time_of_snapshot();
            let version = self.hold_durable();
            if self.time_of_snapshot() == before {
                return (Held { version, stripe: None }, Moment::at(before));
            }
            self.release_version(version);
        }
    }

    fn hold_durable(&self) -> u64 {
        let mut held = self.snapshots.held.lock();
        let version = match planted(Bug::DurableSnapshotTooNew) {
            true => self.clock.close(),
            false => self.hardening.horizon.local(),
        };
        held.add(version)
    }

    /// Opens a snapshot of a version that is held already.
    pub(super) fn open_snapshot_of(&self, version: u64) -> Held {
        Held { version: self.hold_version(version), stripe: None }
    }

    /// Holds a version that is held already, once more.
    pub(super) fn hold_version(&self, version: u64) -> u64 {
        self.snapshots.held.lock().add(version)
    }

    pub(super) fn release_version(&self, version: u64) {
        self.snapshots.held.lock().remove_one(version);
    }

    /// Ends a snapshot.
    #[inline]
    pub(crate) fn release_snapshot(&self, held: &Held) {
        match held.stripe {
            Some(_) => self.snapshots.shared.release(held),
            None => self.release_version(held.version),
        }
    }

    /// The version that every snapshot, open or yet to be opened, includes: what it supersedes is not needed.
    pub(crate) fn oldest_needed(&self) -> u64 {
        let horizon = self.hardening.horizon.local();
        horizon.min(self.oldest_snapshot())
    }

    /// No snapshot that is open, or just being opened, is of an older version.
    pub(crate) fn oldest_snapshot(&self) -> u64 {
        let shared = self.snapshots.shared.oldest();
        shared.into_iter().chain(self.snapshots.held.lock().oldest()).min().unwrap_or(u64::MAX)
    }

    /// How many are open, and how many have names.
    pub(crate) fn snapshot_counts(&self) -> (usize, usize) {
        let named = self.snapshots.names.lock().len();
        let shared = self.snapshots.shared.stripes.iter().filter_map(Stripe::held).map(|(_, count)| count);
        let held = shared.sum::<u64>() as usize + self.snapshots.held.lock().count();
        (held.saturating_sub(named), named)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::Options;
    use crate::device::SimulatedDevice;

    #[test]
    fn a_stripe_counts_snapshots_of_one_version_and_no_others() {
        let stripe = Stripe::default();
        assert!(stripe.held().is_none() && stripe.add(7) && stripe.add(7));
        assert!(!stripe.add(8), "those of another version are counted elsewhere");
        stripe.remove_one();
        assert_eq!(stripe.held(), Some((7, 1)));
        stripe.remove_one();
        assert!(stripe.held().is_none() && stripe.add(8));
        assert_eq!(stripe.held(), Some((8, 1)));
        stripe.0.store(8 << COUNT_BITS | COUNT_MAX, Ordering::SeqCst);
        assert!(!stripe.add(8), "a count does not run over into the version");
    }

    #[test]
    fn c2_who_waited_takes_what_was_closed_meanwhile_and_nothing_from_before_or_that_a_sweep_may_have_passed()
    {
        let options = Options::new().background(false).segment_bytes(64 << 10);
        let db = options.open_on(Arc::new(SimulatedDevice::new(1))).unwrap();
        let (engine, map) = (db.engine(), db.map("map").unwrap());
        let begun = || engine.snapshots.closings.load(Ordering::SeqCst);
        let since = |begun| engine.closed_since(&engine.snapshots.closing.lock(), begun);
        let before = begun();
        assert_eq!(since(before), None, "nobody has closed one");
        db.put(&map, b"key", b"1").unwrap().forget();
        let (first, _) = engine.open_snapshot();
        let between = begun();
        assert_eq!((since(before), since(between)), (Some(first.version), None));
        db.put(&map, b"key", b"2").unwrap().forget();
        let (second, _) = engine.open_snapshot();
        assert!(second.version > first.version);
        assert_eq!((since(between), since(begun())), (Some(second.version), None));
        for held in [first, second] {
            engine.release_snapshot(&held);
        }
        db.put(&map, b"key", b"3").unwrap().forget();
        db.persist().unwrap();
        assert_eq!(since(before), None, "what it has may have been superseded for good");
    }

    /// All threads of its stripe had to wait their turn for each snapshot, in a database at rest, as long as the old one was open.
    #[test]
    fn an_old_snapshot_that_stays_keeps_nobody_from_sharing_the_next_version() {
        let db = Options::new().background(false).open_on(Arc::new(SimulatedDevice::new(1))).unwrap();
        let (engine, map) = (db.engine(), db.map("map").unwrap());
        let mut kept = Vec::new();
        for round in 0..3_u8 {
            db.put(&map, b"key", [round]).unwrap().forget();
            // Two that close a version, between which nothing was committed; after them one will do for many.
            for _ in 0..2 {
                engine.release_snapshot(&engine.open_snapshot().0);
            }
            let held = engine.open_snapshot().0;
            assert!(held.stripe.is_some(), "with {} that are open", kept.len());
            kept.push(held);
        }
        let versions: Vec<_> = kept.iter().map(|held| held.version).collect();
        assert!(versions.is_sorted_by(|one, next| one < next), "{versions:?}");
        // What is durable would be needed anyway.
        db.persist().unwrap();
        for held in kept {
            assert_eq!(engine.oldest_needed(), held.version);
            engine.release_snapshot(&held);
        }
        assert_eq!(engine.snapshot_counts(), (0, 0));
    }

    /// It was opened anew as long as the clock went on while commits in progress were waited for: where that took a millisecond each time, for ever.
    #[test]
    fn c3_a_snapshot_opens_soon_where_rows_expire_and_closing_a_version_takes_long() {
        const ROUNDS: u64 = 200;
        let disk = SimulatedDevice::new(1);
        let db = Options::new().background(false).open_on(Arc::new(disk.clone())).unwrap();
        let map = db.map("map").unwrap();
        disk.set_time_ms(1);
        db.put_expiring(&map, b"key", b"value", crate::Expiry::At(1_000_000)).unwrap().forget();
        let (round, is_open) = (AtomicU64::new(0), AtomicU64::new(0));
        std::thread::scope(|scope| {
            // Somebody who always commits, each time until the clock has gone on.
            scope.spawn(|| {
                while round.load(Ordering::SeqCst) < ROUNDS && is_open.load(Ordering::SeqCst) == 0 {
                    let _pin = epoch::pin_for_commit();
                    round.fetch_add(1, Ordering::SeqCst);
                    std::thread::sleep(std::time::Duration::from_millis(2));
                    disk.set_time_ms(1 + round.load(Ordering::SeqCst));
                }
            });
            while round.load(Ordering::SeqCst) == 0 {
                std::thread::yield_now();
            }
            drop(db.snapshot().unwrap());
            is_open.store(1, Ordering::SeqCst);
        });
        assert!(round.load(Ordering::Relaxed) < ROUNDS / 2, "it was opened once nobody committed any more");
    }

    /// Closing waits for commits in progress, and those who want nothing of it do not.
    #[test]
    fn c6_snapshots_of_what_is_durable_open_and_end_while_somebody_waits_for_commits() {
        let db = Options::new().background(false).open_on(Arc::new(SimulatedDevice::new(1))).unwrap();
        let map = db.map("map").unwrap();
        db.put(&map, b"key", b"durable").unwrap().safe().unwrap();
        let (ended, patience) = (std::sync::mpsc::channel(), std::time::Duration::from_secs(60));
        let closings = || db.engine().snapshots.closings.load(Ordering::SeqCst);
        let before = closings();
        let waited = std::thread::scope(|scope| {
            let (db, map, end) = (&db, &map, ended.0);
            // Somebody who commits until the others are done.
            let (pinned, pin) = std::sync::mpsc::channel();
            let waited = scope.spawn(move || {
                let _pin = epoch::pin_for_commit();
                pinned.send(()).unwrap();
                ended.1.recv_timeout(patience).is_ok()
            });
            pin.recv().unwrap();
            scope.spawn(move || drop(db.snapshot().unwrap()));
            scope.spawn(move || {
                while closings() == before {
                    std::thread::yield_now();
                }
                let snapshot = db.durable_snapshot().unwrap();
                assert_eq!(snapshot.get(map, b"key").unwrap().unwrap(), b"durable");
                drop(snapshot);
                db.engine().oldest_needed();
                end.send(()).unwrap();
            });
            waited.join().unwrap()
        });
        assert!(waited, "they waited for the commit");
    }

    #[test]
    fn what_is_held_while_a_version_is_closed_is_no_open_snapshot() {
        let mut held = Register::default();
        assert_eq!((held.oldest(), held.count()), (None, 0));
        held.closing = Some(5);
        assert_eq!((held.oldest(), held.count()), (Some(5), 0));
        held.add(7);
        assert_eq!((held.oldest(), held.count()), (Some(5), 1));
        held.closing = None;
        assert_eq!((held.oldest(), held.count()), (Some(7), 1));
        held.add(3);
        held.closing = Some(5);
        assert_eq!((held.oldest(), held.count()), (Some(3), 2));
    }

    /// The log's tail is where it was: the thread has space that it took ahead.
    #[test]
    fn c2_what_is_committed_into_space_that_was_taken_ahead_is_in_the_next_snapshot() {
        let db = Options::new().background(false).open_on(Arc::new(SimulatedDevice::new(1))).unwrap();
        let (engine, map) = (db.engine(), db.map("map").unwrap());
        let put = |value: u8| db.put(&map, b"key", [value]).unwrap().forget();
        for number in 0..100_u32 {
            db.put(&map, number.to_be_bytes(), b"value").unwrap().forget();
        }
        let tail = engine.log.tail();
        db.put(&map, b"other", b"value").unwrap().forget();
        assert_eq!(engine.log.tail(), tail, "it takes space ahead");
        let mut newest = Vec::new();
        for value in 0..20 {
            put(value);
            // Of several the last ones may share a version.
            for _ in 0..3 {
                let snapshot = db.snapshot().unwrap();
                newest.push((value, snapshot.get(&map, b"key").unwrap()));
            }
        }
        assert!(newest.iter().all(|(put, got)| got.as_deref() == Some(&[*put][..])), "{newest:?}");
    }

    #[test]
    fn what_is_shared_is_the_version_that_was_published_as_long_as_the_log_ends_there() {
        let log = Log::new(1 << 20, 1 << 16, 0).unwrap();
        let shared = Shared::default();
        let open = || shared.open(&log, || 7);
        assert!(open().is_none(), "nothing was published");
        shared.publish(Some(5), log.tail());
        let (held, time) = open().unwrap();
        assert_eq!(time, 7);
        assert_eq!((held.version, shared.stripes[held.stripe.unwrap()].held()), (5, Some((5, 1))));
        shared.publish(Some(6), log.tail() + 8);
        assert!(open().is_none(), "something was committed since");
        shared.publish(None, log.tail());
        assert!(open().is_none(), "it is no version that will do");
        assert_eq!(shared.stripes.iter().filter_map(Stripe::held).count(), 1);
    }
}
