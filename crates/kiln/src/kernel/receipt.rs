//! Receipts: what a commit returns, and the two ways in which it ends.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use super::clock::Version;
use super::engine::Engine;
use super::hardening::horizon::{Outcome, Waiter};
use crate::error::{Error, Result};
use crate::sync::{Instant, Mutex};

/// A set of tolerated failures that a commit can be made durable against.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Level(u8);

impl Level {
    /// Visible to everybody; survives nothing. Every commit is there when it returns.
    pub const MEMORY: Level = Level(0);
    /// Survives the loss of power: on this machine's disk, synced.
    pub const LOCAL: Level = Level(1);
}

/// How far a receipt has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// Not durable yet.
    Pending,
    /// Durable at the level asked for. It stays so.
    Durable,
    /// It was not made durable, and will not be as long as the database is open; it stays so until then. What a failed write or sync has left on the
    /// disk the next opening finds out: see [`Lost`](crate::Lost).
    Lost,
}

/// A commit's receipt: tells when it is durable, or lost. It ends in exactly one of the two.
#[derive(Clone)]
pub struct Receipt {
    engine: Arc<Engine>,
    version: u64,
}

impl std::fmt::Debug for Receipt {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Receipt").field("version", &self.version).finish_non_exhaustive()
    }
}

impl Receipt {
    pub(crate) fn new(engine: Arc<Engine>, version: u64) -> Receipt {
        Receipt { engine, version }
    }

    /// The version that the transaction committed into. What was committed in an earlier version is durable
    /// whenever this one is.
    pub fn version(&self) -> Version {
        Version::new(self.version)
    }

    /// Waits until the commit is durable at `level`, hardening on the calling thread if nobody else does.
    ///
    /// # Errors
    /// `Lost` if this opening of the database does not make it so, with the reason; `Input` if no commit can have this version yet.
    pub fn wait(&self, level: Level) -> Result<()> {
        match level {
            Level::MEMORY => Ok(()),
            _ => self.engine.wait_local(self.version),
        }
    }

    /// As [`Self::wait`], for at most `timeout`; false if it was not durable by then. Without background threads the
    /// hardening runs on this thread, and is finished even if it takes longer.
    ///
    /// # Errors
    /// As [`Self::wait`].
    pub fn wait_timeout(&self, level: Level, timeout: Duration) -> Result<bool> {
        match level {
            Level::MEMORY => Ok(true),
            _ => self.engine.wait_local_until(self.version, Instant::now().checked_add(timeout)),
        }
    }

    /// How far it has come, at once.
    pub fn poll(&self, level: Level) -> Progress {
        match self.engine.hardening.horizon.outcome(self.version) {
            _ if level == Level::MEMORY => Progress::Durable,
            None => Progress::Pending,
            Some(Ok(())) => Progress::Durable,
            Some(Err(_)) => Progress::Lost,
        }
    }

    /// Calls back when it is durable or lost: at once if that is known, else on the thread that hardens or one of the database's own, so the
    /// callback must be quick and must not wait for this database. Does not itself start a hardening. If the callback panics
    /// on that thread nobody else is concerned. Where no commit can have this version yet, it waits until one has; it is dropped uncalled if the database is
    /// closed before.
    pub fn on_durable(&self, level: Level, callback: impl FnOnce(Outcome) + Send + 'static) {
        match level {
            Level::MEMORY => callback(Ok(())),
            _ => {
                self.engine.hardening.horizon.register(self.version, Waiter::Callback(Box::new(callback)));
            }
        }
    }

    /// A future that ends when the commit is durable at `level`, or with the error `Lost`. It works with any
    /// executor. Polling it asks the background thread to harden at once; without background threads, or once the database is closed, it is
    /// [`Self::durable_leading`].
    pub fn durable(&self, level: Level) -> Durable {
        Durable { receipt: self.clone(), level, leads: false, registered: None }
    }

    /// As [`Self::durable`], but polling it hardens on the polling thread if nobody else hardens at the moment, as
    /// [`Self::wait`] does: no other thread has to be woken for it, and those it wakes are tasks of the same executor. A
    /// poll may so take as long as a write to the disk; other tasks of the thread should be able to go elsewhere. Once woken
    /// it is to be polled or dropped: others may wait for it to harden, until the window ends, or for ever without
    /// background threads.
    pub fn durable_leading(&self, level: Level) -> Durable {
        Durable { receipt: self.clone(), level, leads: true, registered: None }
    }
}

/// The future of [`Receipt::durable`] and [`Receipt::durable_leading`].
#[derive(Debug)]
#[must_use = "a future does nothing until it is awaited"]
pub struct Durable {
    receipt: Receipt,
    level: Level,
    leads: bool,
    registered: Option<Registered>,
}

/// A future among those who wait.
#[derive(Debug)]
struct Registered {
    waker: Arc<Mutex<Option<Waker>>>,
    /// With which it gives up.
    number: Option<u64>,
}

impl Durable {
    fn outcome(&self) -> Option<Result<()>> {
        let outcome = self.receipt.engine.hardening.horizon.outcome(self.receipt.version)?;
        Some(outcome.map_err(|lost| lost.error()))
    }

    /// Hardens, if this is a future that does, or nobody would who is asked to, and nobody else is at it; then the outcome is known.
    fn lead(&self) -> Option<Result<()>> {
        if self.leads || !self.receipt.engine.has_hardener() {
            self.receipt.engine.try_lead_for(self.receipt.version);
        }
        self.outcome()
    }
}

impl Future for Durable {
    type Output = Result<()>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<()>> {
        let this = self.get_mut();
        if this.level == Level::MEMORY {
            return Poll::Ready(Ok(()));
        }
        if let Some(outcome) = this.outcome() {
            return Poll::Ready(outcome);
        }
        // Not a handle of its own: these have one count, which all threads share.
        let (engine, version) = (&this.receipt.engine, this.receipt.version);
        if version > engine.clock.now() {
            return Poll::Ready(Err(Error::input(format!("no commit has version {version} yet"))));
        }
        if let Some(registered) = &this.registered {
            // The one before may be the last that holds a task, and the task the last handle: it is dropped without the lock.
            let before = registered.waker.lock().replace(context.waker().clone());
            drop(before);
        } else {
            this.leads = this.leads || !engine.has_hardener();
            if let Some(outcome) = this.lead() {
                return Poll::Ready(outcome);
            }
            let waker = Arc::new(Mutex::new(Some(context.waker().clone())));
            let waiter = Waiter::Task { waker: waker.clone(), leads: this.leads };
            let number = engine.hardening.horizon.register(version, waiter);
            this.registered = Some(Registered { waker, number });
            if !this.leads {
                engine.hardening.request_now();
            }
        }
        // The waker may have been taken between the look and the registration. And whoever hardens looks for successors
        // after it has let go, so either it sees the registration or this finds nobody hardening.
        if let Some(outcome) = this.lead() {
            return Poll::Ready(outcome);
        }
        engine.lose_after_fork().map_or_else(|lost| Poll::Ready(Err(lost)), |()| Poll::Pending)
    }
}

impl Drop for Durable {
    fn drop(&mut self) {
        let Some(Registered { waker, number }) = self.registered.take() else { return };
        // Who has taken it away has woken this one, if it leads, to lead next.
        let waker = waker.lock().take();
        let was_woken = waker.is_none();
        drop(waker);
        let (engine, version) = (&self.receipt.engine, self.receipt.version);
        if let (None, Some(number)) = (self.outcome(), number) {
            engine.hardening.horizon.give_up(version, number);
            if self.leads && was_woken {
                engine.hand_over_lead();
            }
        }
    }
}

/// A transaction that has committed: visible to everybody, and not yet said to be durable.
///
/// Say which it is to be: [`safe`](Self::safe) waits until it survives power loss, [`fast`](Self::fast) does
/// not wait and gives the receipt. In an asynchronous function [`safe_async`](Self::safe_async) waits, which has the thread do something else meanwhile.
/// Without background threads, or once the database is closed, a poll of that hardens on its thread, as [`Receipt::durable_leading`].
#[must_use = "say safe() (or safe_async()) to wait until it is durable, or fast() not to"]
#[derive(Debug)]
pub struct Commit<'db, T> {
    engine: &'db Arc<Engine>,
    version: u64,
    value: T,
}

impl<'db, T> Commit<'db, T> {
    pub(crate) fn new(engine: &'db Arc<Engine>, version: u64, value: T) -> Commit<'db, T> {
        Commit { engine, version, value }
    }

    /// The version it committed into; of a transaction that only read, or in the end changed nothing, the newest version it has read.
    pub fn version(&self) -> Version {
        Version::new(self.version)
    }

    /// What the transaction returned, whatever is said later of its durability.
    pub fn value(&self) -> &T {
        &self.value
    }

    /// Waits until the commit survives power loss, and gives what the transaction returned.
    ///
    /// # Errors
    /// `Lost` if the disk failed: then it was not made durable, and will not be before the database is opened again; see [`Lost`](crate::Lost).
    pub fn safe(self) -> Result<T> {
        self.engine.wait_local(self.version)?;
        Ok(self.value)
    }

    /// As [`Self::safe`], for who is not to block the thread: a future that ends when the commit survives power loss, with what the transaction returned. It works with any executor, asks for a hardening when it
    /// is polled first, as [`Receipt::durable`] does, and keeps no borrow of the database. Dropped before, the commit stays, as [`fast`](Self::fast) as any. Without background
    /// threads, or once the database is closed, a poll hardens on its thread, as [`Receipt::durable_leading`].
    ///
    /// ```
    /// async fn bid(db: &kiln::Kiln, bids: &kiln::Map) -> kiln::Result<i64> {
    ///     db.add(bids, "a17", 1)?.safe_async().await
    /// }
    /// ```
    ///
    /// # Errors
    /// As [`Self::safe`].
    pub fn safe_async(self) -> impl Future<Output = Result<T>> + use<T> {
        let (value, receipt) = self.fast();
        let durable = receipt.durable(Level::LOCAL);
        async move { durable.await.map(|()| value) }
    }

    /// As [`Self::safe`], for who holds a lock that a callback may ask for, and [tells](Engine::tell_withheld) when it no longer does.
    pub(crate) fn safe_quietly(self) -> Result<T> {
        self.engine.harden_all()?;
        Ok(self.value)
    }

    /// Does not wait: the commit becomes durable within the database's vulnerability window.
    pub fn fast(self) -> (T, Receipt) {
        (self.value, Receipt::new(self.engine.clone(), self.version))
    }

    /// Does not wait, but has a hardening begin within half of `bound`, or when the window asks for it if that is sooner: the commit is durable within `bound` where
    /// the disk, with what it is doing then, takes no longer than the other half. Only the window is kept by holding commits back.
    pub fn fast_within(self, bound: Duration) -> (T, Receipt) {
        // Half the bound is for the hardening itself.
        if let Some(deadline) = Instant::now().checked_add(bound / 2) {
            self.engine.hardening.request_by(deadline);
        }
        self.fast()
    }

    /// As [`Self::fast`] for those who need no receipt; costs nothing beyond the commit.
    pub fn forget(self) -> T {
        self.value
    }
}
