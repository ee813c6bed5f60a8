//! Time, and whatever waits for it. It is a counter that each look moves on, so that a seed repeats it, too.

use std::cell::Cell;
use std::ops::{Add, Sub};
use std::time::Duration;

std::thread_local! {
    /// Microseconds since the execution began.
    static NOW_US: Cell<u64> = const { Cell::new(0) };
    static TIME: Cell<Time> = const { Cell::new(Time::Passes) };
}

/// What waits with a deadline do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Time {
    /// They may come to their ends whenever the thread gets its turn.
    Passes,
    /// They never do, but for the shortest: nothing but a wake-up helps, and a lost one is a deadlock.
    StandsStill,
}

/// Begins an execution.
pub fn begin(time: Time) {
    NOW_US.set(0);
    TIME.set(time);
    super::QUIET.set(0);
    super::PINNED.with_borrow_mut(Vec::clear);
}

/// Where time stands still, deadlines that are nearer still come: a leader waits so long for company, on purpose.
const NEAR: Duration = Duration::from_millis(1);

/// Whether a wait until then may come to its end by itself.
pub(super) fn may_come(deadline: Instant) -> bool {
    TIME.get() == Time::Passes || deadline.saturating_duration_since(Instant::now()) < NEAR
}

pub(super) fn advance_to(instant: Instant) {
    NOW_US.set(NOW_US.get().max(instant.0));
}

/// As the standard library's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Instant(u64);

impl Instant {
    pub(crate) fn now() -> Instant {
        Instant(NOW_US.replace(NOW_US.get() + 1))
    }

    pub(crate) fn elapsed(&self) -> Duration {
        Instant::now().saturating_duration_since(*self)
    }

    pub(crate) fn saturating_duration_since(&self, earlier: Instant) -> Duration {
        Duration::from_micros(self.0.saturating_sub(earlier.0))
    }

    pub(crate) fn checked_add(&self, duration: Duration) -> Option<Instant> {
        self.0.checked_add(u64::try_from(duration.as_micros()).ok()?).map(Instant)
    }
}

impl Add<Duration> for Instant {
    type Output = Instant;

    fn add(self, duration: Duration) -> Instant {
        self.checked_add(duration).unwrap_or_else(|| unreachable!("in reach"))
    }
}

impl Sub for Instant {
    type Output = Duration;

    fn sub(self, earlier: Instant) -> Duration {
        self.saturating_duration_since(earlier)
    }
}

/// Threads, each a coroutine of shuttle's.
pub(crate) mod thread {
    pub(crate) use shuttle::thread::{Builder, JoinHandle, Scope, current, scope, yield_now};

    use super::{Duration, Instant, advance_to};

    pub(crate) fn sleep(duration: Duration) {
        advance_to(Instant::now() + duration);
        yield_now();
    }
}

/// Channels.
pub(crate) mod mpsc {
    use shuttle::rand::Rng as _;
    pub(crate) use shuttle::sync::mpsc::Sender;
    use shuttle::sync::mpsc::{RecvError, RecvTimeoutError, TryRecvError};

    use super::{Duration, Instant, advance_to, may_come};

    pub(crate) fn channel<T>() -> (Sender<T>, Receiver<T>) {
        let (sender, receiver) = shuttle::sync::mpsc::channel();
        (sender, Receiver(receiver))
    }

    pub(crate) struct Receiver<T>(shuttle::sync::mpsc::Receiver<T>);

    impl<T> Receiver<T> {
        pub(crate) fn recv(&self) -> Result<T, RecvError> {
            self.0.recv()
        }

        pub(crate) fn try_recv(&self) -> Result<T, TryRecvError> {
            self.0.try_recv()
        }

        /// As a wait for a condition with a deadline.
        pub(crate) fn recv_timeout(&self, timeout: Duration) -> Result<T, RecvTimeoutError> {
            let deadline = Instant::now() + timeout;
            if !may_come(deadline) {
                return self.0.recv().map_err(|_| RecvTimeoutError::Disconnected);
            }
            loop {
                match self.0.try_recv() {
                    Ok(message) => return Ok(message),
                    Err(TryRecvError::Disconnected) => return Err(RecvTimeoutError::Disconnected),
                    Err(TryRecvError::Empty) if shuttle::rand::thread_rng().r#gen() => {
                        advance_to(deadline);
                        return Err(RecvTimeoutError::Timeout);
                    }
                    Err(TryRecvError::Empty) => super::thread::yield_now(),
                }
            }
        }
    }
}
