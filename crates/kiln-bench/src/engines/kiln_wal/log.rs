//! The log's buffer: a ring of words to which all threads append, and from which the writer takes.
//!
//! ```text
//!  durable ≤ copied ≤ tail ≤ copied + the ring     all in words since the database was opened
//! ```
//!
//! A place is reserved by one addition to the tail. The words of a record are filled in any order, its head last; the writer waits for the head
//! of each record, copies it, and leaves zeros behind: so a head that is zero is one that is not there yet.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::Thread;

use anyhow::{Result, bail, ensure};

/// Words of the ring: a power of two.
const RING: u64 = 1 << 22;
/// The writer is woken when so much more is in the ring.
const QUARTER: u64 = RING / 4;

/// A word that many threads change, on cache lines of its own.
#[repr(align(128))]
struct Alone(AtomicU64);

/// See the module's documentation.
pub(super) struct Log {
    ring: Box<[AtomicU64]>,
    tail: Alone,
    copied: Alone,
    durable: AtomicU64,
    /// Somebody waits until this is durable.
    wanted: AtomicU64,
    has_failed: AtomicBool,
    requests: Mutex<Requests>,
    changed: Condvar,
    writer: OnceLock<Thread>,
}

/// What the writer is asked for, and what came of it.
#[derive(Default)]
struct Requests {
    stop: bool,
    checkpoints_wanted: u64,
    checkpoints: u64,
    failure: Option<String>,
}

impl Log {
    pub(super) fn new() -> Log {
        Log {
            ring: (0..RING).map(|_| AtomicU64::new(0)).collect(),
            tail: Alone(AtomicU64::new(0)),
            copied: Alone(AtomicU64::new(0)),
            durable: AtomicU64::new(0),
            wanted: AtomicU64::new(0),
            has_failed: AtomicBool::new(false),
            requests: Mutex::default(),
            changed: Condvar::new(),
            writer: OnceLock::new(),
        }
    }

    #[inline]
    fn word(&self, at: u64) -> &AtomicU64 {
        &self.ring[(at & (RING - 1)) as usize]
    }

    pub(super) fn tail(&self) -> u64 {
        self.tail.0.load(Ordering::Acquire)
    }

    pub(super) fn durable(&self) -> u64 {
        self.durable.load(Ordering::Acquire)
    }

    /// A place for so many words. Who has one must publish it.
    #[inline]
    pub(super) fn reserve(&self, words: u64) -> Result<u64> {
        ensure!(words <= QUARTER, "a transaction writes {words} words, and the log takes {QUARTER} at most");
        ensure!(!self.has_failed.load(Ordering::Relaxed), "the log has failed");
        let start = self.tail.0.fetch_add(words, Ordering::AcqRel);
        let end = start + words;
        if start / QUARTER != end / QUARTER {
            self.wake();
        }
        while end > self.copied.0.load(Ordering::Acquire) + RING {
            if self.has_failed.load(Ordering::Relaxed) {
                // Nobody will take anything out again.
                bail!("the log has failed");
            }
            self.wake();
            std::thread::yield_now();
        }
        Ok(start)
    }

    #[inline]
    pub(super) fn fill(&self, at: u64, word: u64) {
        self.word(at).store(word, Ordering::Relaxed);
    }

    /// A record is whole.
    #[inline]
    pub(super) fn publish(&self, start: u64, head: u64) {
        self.word(start).store(head, Ordering::Release);
    }

    /// The head of a record, once it is whole. For the writer.
    pub(super) fn head(&self, at: u64) -> u64 {
        loop {
            match self.word(at).load(Ordering::Acquire) {
                0 => std::thread::yield_now(),
                head => return head,
            }
        }
    }

    /// Takes a word out. For the writer.
    #[inline]
    pub(super) fn take(&self, at: u64) -> u64 {
        let word = self.word(at);
        let value = word.load(Ordering::Relaxed);
        word.store(0, Ordering::Relaxed);
        value
    }

    pub(super) fn copied(&self) -> u64 {
        self.copied.0.load(Ordering::Relaxed)
    }

    /// Everything before this was taken out. For the writer.
    pub(super) fn set_copied(&self, end: u64) {
        self.copied.0.store(end, Ordering::Release);
    }

    /// Everything before this is durable. For the writer.
    pub(super) fn set_durable(&self, end: u64) {
        self.durable.store(end, Ordering::Release);
        drop(self.requests());
        self.changed.notify_all();
    }

    fn requests(&self) -> MutexGuard<'_, Requests> {
        self.requests.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The thread that takes the words out.
    pub(super) fn set_writer(&self, thread: Thread) {
        // There is one writer, which says so once.
        let _ = self.writer.set(thread);
    }

    #[cold]
    fn wake(&self) {
        if let Some(writer) = self.writer.get() {
            writer.unpark();
        }
    }

    /// Whether the writer has nothing to do but to wait for the window's end.
    pub(super) fn is_calm(&self) -> bool {
        let requests = self.requests();
        !requests.stop
            && requests.checkpoints == requests.checkpoints_wanted
            && self.wanted.load(Ordering::Acquire) <= self.durable()
            && self.tail() - self.copied() < QUARTER
    }

    pub(super) fn is_to_stop(&self) -> bool {
        self.requests().stop
    }

    pub(super) fn wants_checkpoint(&self) -> bool {
        let requests = self.requests();
        requests.checkpoints < requests.checkpoints_wanted
    }

    /// All checkpoints that were asked for are taken: this one began after.
    pub(super) fn checkpoint_taken(&self, wanted: u64) {
        self.requests().checkpoints = wanted;
        self.changed.notify_all();
    }

    pub(super) fn checkpoints_wanted(&self) -> u64 {
        self.requests().checkpoints_wanted
    }

    /// Waits until everything before `end` is durable.
    pub(super) fn wait_for(&self, end: u64) -> Result<()> {
        if self.durable() >= end {
            return Ok(());
        }
        self.wanted.fetch_max(end, Ordering::AcqRel);
        self.wake();
        self.wait_while(|_| self.durable() < end)
    }

    /// Has a checkpoint taken.
    pub(super) fn checkpoint(&self) -> Result<()> {
        let wanted = {
            let mut requests = self.requests();
            requests.checkpoints_wanted += 1;
            requests.checkpoints_wanted
        };
        self.wake();
        self.wait_while(|requests| requests.checkpoints < wanted)
    }

    fn wait_while(&self, is_pending: impl Fn(&Requests) -> bool) -> Result<()> {
        let mut requests = self.requests();
        while is_pending(&requests) {
            if let Some(failure) = &requests.failure {
                bail!("{failure}");
            }
            requests = self.changed.wait(requests).unwrap_or_else(PoisonError::into_inner);
        }
        Ok(())
    }

    /// Has the writer end, when it has hardened everything.
    pub(super) fn stop(&self) {
        self.requests().stop = true;
        self.wake();
    }

    /// The writer cannot go on.
    pub(super) fn fail(&self, reason: String) {
        self.has_failed.store(true, Ordering::Relaxed);
        self.requests().failure = Some(reason);
        self.changed.notify_all();
    }

    pub(super) fn failure(&self) -> Result<()> {
        match &self.requests().failure {
            Some(failure) => bail!("{failure}"),
            None => Ok(()),
        }
    }
}
