//! The horizon: how far the database is durable, and who waits for it to move.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::{Arc, Weak};
use std::task::Waker;
use std::time::Duration;

use crate::error::{Error, ErrorKind};
use crate::kernel::clock::Version;
use crate::planted::{Bug, planted};
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sync::{Condvar, EventCount, Instant, Mutex, OnceLock, contain};

/// Commits that were not made durable while the database was open, and why.
///
/// What a crash took, before the database was opened, is gone for good. After a failed write or sync nobody knows what the disk has: this opening makes
/// nothing durable any more, and the next one keeps all up to where it finds the log whole, which may be further than [`Self::horizon`], and makes that
/// durable. [`RecoveryReport::horizon`](crate::RecoveryReport::horizon) and [`Session::recovered_serial`](crate::Session::recovered_serial) say how far;
/// look there before you write anything again.
#[derive(Clone, Debug)]
pub struct Lost {
    horizon: u64,
    /// The last version that is lost, if an earlier crash took them.
    last: Option<u64>,
    reason: Arc<str>,
}

impl Lost {
    pub(crate) fn new(horizon: u64, reason: impl Into<Arc<str>>) -> Lost {
        Lost { horizon, last: None, reason: reason.into() }
    }

    /// A crash took these versions, both included, before the database was opened.
    fn in_crash(first: u64, last: u64) -> Lost {
        let reason = "it was not durable when the database stopped";
        Lost { horizon: first - 1, last: Some(last), reason: reason.into() }
    }

    /// The last version before those that are lost. It is durable, and unless [`Self::last`] says how far the loss goes, the database makes nothing
    /// durable after it.
    pub fn horizon(&self) -> Version {
        Version::new(self.horizon)
    }

    /// The last version that is lost, where a crash took them before the database was opened: it goes on behind.
    pub fn last(&self) -> Option<Version> {
        self.last.map(Version::new)
    }

    /// What happened.
    pub fn reason(&self) -> &str {
        &self.reason
    }

    pub(crate) fn error(&self) -> Error {
        Error::new(ErrorKind::Lost, self.to_string())
    }
}

impl fmt::Display for Lost {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Lost { horizon, last, reason } = self;
        match last {
            Some(last) => write!(
                out,
                "what was committed in versions {} to {last} is lost: {reason}. The database works, without it; what is still wanted of it must be written again",
                horizon + 1
            ),
            None => write!(
                out,
                "everything committed after version {horizon} is lost: {reason}. Reads still work; open the database again to write, and to learn how much of it the disk has all the same"
            ),
        }
    }
}

/// How a receipt ends.
pub type Outcome = Result<(), Lost>;

/// Threads that wait for versions of the same remainder sleep in one place.
const PLACES: usize = 16;

/// Somebody to tell when a version's fate is known. (A thread that sleeps until then is no more than counted.)
pub(crate) enum Waiter {
    /// `leads`: it hardens itself if it is woken before its version is covered.
    Task {
        waker: Arc<Mutex<Option<Waker>>>,
        leads: bool,
    },
    Callback(Callback),
}

type Callback = Box<dyn FnOnce(Outcome) + Send>;

/// Somebody who hears of it when a version is covered, or lost, as long as there is one. Who hardens does not gather them: they wait for nothing.
pub(crate) trait Listener: Send + Sync {
    fn hear(self: Arc<Self>);
}

type OnDurable = Box<dyn FnMut(Version) + Send>;
type OnLost = Box<dyn FnOnce(Lost) + Send>;

/// Those who hear of every move of the horizon, and of its end. They are called without the lock, by one thread at a time.
#[derive(Default)]
struct Callbacks {
    /// The horizon that was told last.
    told: u64,
    durable: Vec<OnDurable>,
    /// Those that have not been called.
    lost: Vec<OnLost>,
    /// Somebody calls them at the moment, and looks again afterwards.
    are_called: bool,
    /// The database is closed: they hear nothing any more.
    are_over: bool,
    /// Waiters that somebody could not tell who holds locks.
    withheld: Vec<(u64, Waiter)>,
    withheld_listeners: Vec<Weak<dyn Listener>>,
}

/// Those whose version's fate is not known. Alone on its cache lines, with its lock: each safe commit takes that twice, and each commit, and who reads safely, looks at what is beside
/// it.
#[derive(Default)]
#[repr(align(128))]
struct Waiters {
    /// Tasks and callbacks, by version and by number, since they may give up.
    told: BTreeMap<(u64, u64), Waiter>,
    /// Which of them lead.
    leading: BTreeSet<(u64, u64)>,
    told_ever: u64,
    listeners: Vec<(u64, Weak<dyn Listener>)>,
    /// How many threads sleep, version by version.
    threads: Vec<(u64, usize)>,
    /// How many of them the leader would like to see before it begins; 0 if it is not waiting for them.
    expected: usize,
    /// The database is closed: callbacks for versions without a fate will never be called.
    are_over: bool,
}

impl Waiters {
    fn count(&self) -> usize {
        let threads = self.threads.iter().map(|&(_, count)| count).sum::<usize>();
        self.told.len() + threads
    }
}

/// Who may be woken to lead.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Successor {
    Any,
    /// For who may hold a lock: a task runs what its executor likes as it is woken.
    Thread,
}

/// Those whom one hardening was for, or whose commits it has lost.
#[derive(Default)]
#[must_use]
pub(crate) struct Covered {
    waiters: Vec<(u64, Waiter)>,
    threads: Vec<(u64, usize)>,
    listeners: Vec<Weak<dyn Listener>>,
}

impl Covered {
    pub(crate) fn waiter_count(&self) -> usize {
        self.waiters.len() + self.threads.iter().map(|&(_, count)| count).sum::<usize>()
    }

    pub(crate) fn append(&mut self, mut others: Covered) {
        self.waiters.append(&mut others.waiters);
        self.threads.append(&mut others.threads);
        self.listeners.append(&mut others.listeners);
    }
}

/// See the module's documentation.
pub(crate) struct Horizon {
    /// The version of the last durable seal.
    local: AtomicU64,
    /// Every commit up to this version is durable; beyond `local` there were none.
    covered: AtomicU64,
    failure: OnceLock<Lost>,
    /// Ranges of versions that were lost in earlier crashes: first and last, both included.
    lost_before: OnceLock<Vec<(u64, u64)>>,
    waiters: Mutex<Waiters>,
    gathered: Condvar,
    /// Where threads sleep.
    places: [EventCount; PLACES],
    callbacks: Mutex<Callbacks>,
}

impl Horizon {
    pub(crate) fn new(local: u64) -> Horizon {
        Horizon {
            local: AtomicU64::new(local),
            covered: AtomicU64::new(local),
            failure: OnceLock::new(),
            lost_before: OnceLock::new(),
            waiters: Mutex::new(Waiters::default()),
            gathered: Condvar::new(),
            places: Default::default(),
            callbacks: Mutex::new(Callbacks { told: local, ..Callbacks::default() }),
        }
    }

    /// Tells of the versions that earlier crashes took.
    pub(crate) fn set_lost_before(&self, ranges: Vec<(u64, u64)>) {
        self.lost_before.get_or_init(|| ranges);
    }

    #[inline]
    pub(crate) fn local(&self) -> u64 {
        self.local.load(Ordering::SeqCst)
    }

    #[inline]
    pub(crate) fn failure(&self) -> Option<&Lost> {
        self.failure.get()
    }

    /// True if a crash before the database was opened took this version.
    pub(crate) fn was_lost(&self, version: u64) -> bool {
        self.crash_of(version).is_some()
    }

    /// The versions that such a crash took, if this is one of them.
    fn crash_of(&self, version: u64) -> Option<(u64, u64)> {
        let ranges = self.lost_before.get()?;
        let before = ranges.partition_point(|&(first, _)| first <= version);
        ranges[..before].last().copied().filter(|&(_, last)| version <= last)
    }

    /// The fate of a version, once it is known.
    pub(crate) fn outcome(&self, version: u64) -> Option<Outcome> {
        if let Some((first, last)) = self.crash_of(version) {
            return Some(Err(Lost::in_crash(first, last)));
        }
        // The failure first: once there is one the horizon stays where it is. The other way round, a version that becomes
        // durable between the two looks, just before the failure, would pass for lost.
        let failure = self.failure.get();
        if version <= self.covered.load(Ordering::SeqCst) + u64::from(planted(Bug::HorizonOffByOne)) {
            return Some(Ok(()));
        }
        let failure = if planted(Bug::HorizonBeforeFailure) { self.failure.get() } else { failure };
        failure.map(|lost| Err(lost.clone()))
    }

    /// Remembers a waiter for `version`, and gives the number with which it may [give up](Self::give_up); none if the version's fate is known already (a
    /// callback is called), or never will be (it is dropped).
    pub(crate) fn register(&self, version: u64, waiter: Waiter) -> Option<u64> {
        let mut waiters = self.waiters.lock();
        // Checked under the lock that `publish` and `fail` take after they have moved.
        match self.outcome(version).filter(|_| !planted(Bug::RegistersUnseen)) {
            None if waiters.are_over && matches!(waiter, Waiter::Callback(_)) => {
                // Without the lock: what it owns is somebody else's.
                drop(waiters);
                drop(waiter);
                None
            }
            None => {
                waiters.told_ever += 1;
                let number = waiters.told_ever;
                if matches!(waiter, Waiter::Task { leads: true, .. }) {
                    waiters.leading.insert((version, number));
                }
                waiters.told.insert((version, number), waiter);
                self.note_arrival(&waiters);
                Some(number)
            }
            Some(outcome) => {
                drop(waiters);
                if let Waiter::Callback(callback) = waiter {
                    callback(outcome);
                }
                None
            }
        }
    }

    /// Forgets who was remembered under this number, unless it is being told.
    pub(crate) fn give_up(&self, version: u64, number: u64) {
        let mut waiters = self.waiters.lock();
        waiters.leading.remove(&(version, number));
        let waiter = waiters.told.remove(&(version, number));
        drop(waiters);
        // Without the lock: what it holds is somebody else's.
        drop(waiter);
    }

    /// Remembers a listener for `version`; false if the version's fate is known already. May be called with locks held: nobody hears anything here.
    pub(crate) fn register_listener(&self, version: u64, listener: Weak<dyn Listener>) -> bool {
        let mut waiters = self.waiters.lock();
        // As above.
        let is_open = self.outcome(version).is_none();
        if is_open {
            waiters.listeners.push((version, listener));
        }
        is_open
    }

    /// Counts a thread that is about to sleep until the fate of `version` is known; false if it is known already.
    pub(crate) fn register_thread(&self, version: u64) -> bool {
        let mut waiters = self.waiters.lock();
        // As above.
        if self.outcome(version).is_some() && !planted(Bug::RegistersUnseen) {
            return false;
        }
        match waiters.threads.iter_mut().find(|(wanted, _)| *wanted == version) {
            Some((_, count)) => *count += 1,
            None => waiters.threads.push((version, 1)),
        }
        self.note_arrival(&waiters);
        true
    }

    fn note_arrival(&self, waiters: &Waiters) {
        if waiters.expected > 0 && waiters.count() == waiters.expected {
            self.gathered.notify_one();
        }
    }

    /// Where threads sleep until the fate of this version is known, or they are to lead.
    pub(crate) fn place(&self, version: u64) -> &EventCount {
        &self.places[version as usize % PLACES]
    }

    /// Waits for those who are `returning`, besides who waits already, for at most `patience`. Three quarters are enough.
    pub(crate) fn gather(&self, returning: usize, patience: Duration) {
        let deadline = Instant::now() + patience;
        let mut waiters = self.waiters.lock();
        let expected = (returning + waiters.count()) / 4 * 3;
        waiters.expected = expected;
        while waiters.count() < expected && !self.gathered.wait_until(&mut waiters, deadline).timed_out() {}
        waiters.expected = 0;
    }

    /// Moves the horizon to a version that was sealed. Returns who is to be told once the leader has let go.
    pub(crate) fn publish(&self, version: u64) -> Covered {
        self.local.store(version, Ordering::SeqCst);
        self.cover(version)
    }

    /// Ends the waits for versions up to a closed one up to which everything is durable.
    pub(crate) fn cover(&self, version: u64) -> Covered {
        self.covered.store(version, Ordering::SeqCst);
        let mut waiters = self.waiters.lock();
        let later = waiters.told.split_off(&(version + 1, 0));
        let told = by_version(std::mem::replace(&mut waiters.told, later));
        waiters.leading = waiters.leading.split_off(&(version + 1, 0));
        let threads = waiters.threads.extract_if(.., |(wanted, _)| *wanted <= version).collect();
        let listeners = waiters.listeners.extract_if(.., |(wanted, _)| *wanted <= version);
        let listeners = listeners.map(|(_, listener)| listener).collect();
        Covered { waiters: told, threads, listeners }
    }

    /// Wakes the threads among them, once.
    pub(crate) fn wake_threads(&self, covered: &mut Covered) {
        covered.threads.drain(..).for_each(|(wanted, _)| self.place(wanted).advance_for_all());
    }

    /// Tells the waiters and the callbacks that a hardening was for, and those that were withheld. To be called without any lock: what is told may use
    /// the database.
    pub(crate) fn tell(&self, mut covered: Covered) {
        self.wake_threads(&mut covered);
        let mut callbacks = self.callbacks.lock();
        let withheld = std::mem::take(&mut callbacks.withheld);
        let listeners = std::mem::take(&mut callbacks.withheld_listeners);
        drop(callbacks);
        for (wanted, waiter) in withheld.into_iter().chain(covered.waiters) {
            tell(waiter, || self.outcome(wanted).unwrap_or(Ok(())));
        }
        for listener in listeners.into_iter().chain(covered.listeners) {
            call(|| listener.upgrade().into_iter().for_each(Listener::hear));
        }
        self.call_back();
    }

    /// Wakes the threads, and keeps the others until the next [`Self::tell`]. True if that has anybody to tell.
    pub(crate) fn withhold(&self, mut covered: Covered) -> bool {
        self.wake_threads(&mut covered);
        let mut callbacks = self.callbacks.lock();
        callbacks.withheld.append(&mut covered.waiters);
        callbacks.withheld_listeners.append(&mut covered.listeners);
        let is_moved = self.local() > callbacks.told && !callbacks.durable.is_empty();
        let is_lost = self.failure.get().is_some() && !callbacks.lost.is_empty();
        let is_withheld = !callbacks.withheld.is_empty() || !callbacks.withheld_listeners.is_empty();
        is_moved || is_lost || is_withheld
    }

    /// Calls those back who are to hear something, unless somebody else does: they may be about to call this very thread.
    fn call_back(&self) {
        let mut callbacks = self.callbacks.lock();
        if std::mem::replace(&mut callbacks.are_called, true) {
            return;
        }
        loop {
            // The failure first, and told last: the horizon stays where it is once there is one.
            let lost =
                self.failure.get().filter(|_| !callbacks.lost.is_empty() && !planted(Bug::LostNotTold));
            let horizon = self.local();
            if horizon > callbacks.told {
                callbacks.told = horizon;
                let mut durable = std::mem::take(&mut callbacks.durable);
                drop(callbacks);
                durable.iter_mut().for_each(|callback| call(|| callback(Version::new(horizon))));
                callbacks = self.callbacks.lock();
                durable.append(&mut callbacks.durable);
                callbacks.durable = durable;
            } else if let Some(lost) = lost {
                let due = std::mem::take(&mut callbacks.lost);
                drop(callbacks);
                due.into_iter().for_each(|callback| call(|| callback(lost.clone())));
                callbacks = self.callbacks.lock();
            } else {
                callbacks.are_called = false;
                if callbacks.are_over {
                    let gone = (std::mem::take(&mut callbacks.durable), std::mem::take(&mut callbacks.lost));
                    // Without the lock: what they own is somebody else's.
                    drop(callbacks);
                    drop(gone);
                }
                return;
            }
        }
    }

    /// Ends everything that is not durable as lost, for good. Returns who is to be told once the leader has let go.
    pub(crate) fn fail(&self, lost: Lost) -> Covered {
        if planted(Bug::FailureForgotten) || self.failure.set(lost).is_err() {
            return Covered::default();
        }
        let mut waiters = self.waiters.lock();
        let told = by_version(std::mem::take(&mut waiters.told));
        waiters.leading.clear();
        let threads = std::mem::take(&mut waiters.threads);
        let listeners = waiters.listeners.drain(..).map(|(_, listener)| listener).collect();
        Covered { waiters: told, threads, listeners }
    }

    /// Wakes somebody whose version was not covered, so that it leads the next hardening: a thread, or else a task, if that may be. True if
    /// nobody was woken, though somebody would lead: it may not be woken here, or is being woken already and may take its time. (Who does not lead has asked
    /// for a hardening, or is in no haste.)
    pub(crate) fn wake_successor(&self, which: Successor) -> bool {
        if self.wake_thread() || planted(Bug::SuccessorNotWoken) {
            return false;
        }
        let waiters = self.waiters.lock();
        let task = || {
            waiters.leading.iter().find_map(|leading| match waiters.told.get(leading) {
                Some(Waiter::Task { waker, .. }) => waker.lock().take(),
                _ => None,
            })
        };
        let task = if which == Successor::Any { task() } else { None };
        let left = task.is_none() && !waiters.leading.is_empty();
        drop(waiters);
        if let Some(task) = task {
            call(|| task.wake());
        }
        left
    }

    /// Wakes a thread whose version was not covered, so that it leads the next hardening; false if there is none.
    pub(crate) fn wake_thread(&self) -> bool {
        if planted(Bug::SuccessorNotWoken) {
            return false;
        }
        let thread = self.waiters.lock().threads.first().map(|&(wanted, _)| wanted);
        // Somebody else may sleep there whose version is covered, and be woken in the place of this one. But whoever has
        // covered it is then about to wake all.
        thread.into_iter().for_each(|wanted| self.place(wanted).advance_for_one());
        thread.is_some()
    }

    #[cfg(test)]
    pub(crate) fn waiter_count(&self) -> usize {
        self.waiters.lock().count()
    }

    pub(crate) fn on_durable(&self, callback: OnDurable) {
        let mut callbacks = self.callbacks.lock();
        callbacks.durable.push(callback);
        if callbacks.are_over {
            drop(callbacks);
            self.call_back();
        }
    }

    pub(crate) fn on_lost(&self, callback: OnLost) {
        let mut callbacks = self.callbacks.lock();
        callbacks.lost.push(callback);
        if callbacks.are_over || self.failure.get().is_some() {
            drop(callbacks);
            self.call_back();
        }
    }

    /// Tells those who are called back what is left to be told, and lets go of them, and of those who wait for versions that nobody has.
    /// To be called without any lock, as [`Self::tell`], once everything is durable or lost.
    pub(crate) fn end_callbacks(&self) {
        let mut waiters = self.waiters.lock();
        waiters.are_over = true;
        // A future sees to itself: it hardens, or is dropped.
        let callbacks = waiters.told.extract_if(.., |_, waiter| matches!(waiter, Waiter::Callback(_)));
        let gone: Vec<_> = callbacks.collect();
        drop(waiters);
        drop(gone);
        self.callbacks.lock().are_over = true;
        self.call_back();
    }
}

fn by_version(told: BTreeMap<(u64, u64), Waiter>) -> Vec<(u64, Waiter)> {
    told.into_iter().map(|((version, _), waiter)| (version, waiter)).collect()
}

fn tell(waiter: Waiter, outcome: impl FnOnce() -> Outcome) {
    match waiter {
        Waiter::Task { waker, .. } => {
            // Woken without its lock: an executor may run the task then and there, or drop it.
            let waker = waker.lock().take();
            if let Some(waker) = waker {
                call(|| waker.wake());
            }
        }
        Waiter::Callback(callback) => call(|| callback(outcome())),
    }
}

/// Calls what a user has left here. If it panics, which the panic's hook has reported, nobody else is to miss what they wait for, and the
/// thread that hardens is to go on.
fn call(callback: impl FnOnce()) {
    let _ = contain(callback);
}
