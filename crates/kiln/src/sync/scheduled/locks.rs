//! Shuttle's locks in the shape of parking_lot's: no poisoning, and guards that can be let go of for a while.

use std::ops::{Deref, DerefMut};
use std::sync::{PoisonError, TryLockError};

use shuttle::rand::Rng as _;
use shuttle::sync;

use super::point;
use super::time::{self, Instant};

/// As parking_lot's.
#[derive(Debug, Default)]
pub(crate) struct Mutex<T>(sync::Mutex<T>);

impl<T> Mutex<T> {
    pub(crate) const fn new(value: T) -> Mutex<T> {
        Mutex(sync::Mutex::new(value))
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        let guard = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        MutexGuard { mutex: &self.0, guard: Some(guard) }
    }

    pub(crate) fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        let guard = match self.0.try_lock() {
            Ok(guard) => guard,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        Some(MutexGuard { mutex: &self.0, guard: Some(guard) })
    }

    pub(crate) fn is_locked(&self) -> bool {
        self.try_lock().is_none()
    }

    pub(crate) fn get_mut(&mut self) -> &mut T {
        self.0.get_mut().unwrap_or_else(PoisonError::into_inner)
    }
}

/// As parking_lot's.
#[derive(Debug)]
pub(crate) struct MutexGuard<'a, T> {
    mutex: &'a sync::Mutex<T>,
    /// Absent only while it is let go of.
    guard: Option<sync::MutexGuard<'a, T>>,
}

impl<T> MutexGuard<'_, T> {
    /// Lets go of the lock while `act` runs.
    pub(crate) fn unlocked<R>(guard: &mut Self, act: impl FnOnce() -> R) -> R {
        drop(guard.guard.take());
        let result = act();
        guard.guard = Some(guard.mutex.lock().unwrap_or_else(PoisonError::into_inner));
        result
    }
}

impl<T> Deref for MutexGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.guard.as_deref().unwrap_or_else(|| unreachable!("locked"))
    }
}

impl<T> DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        self.guard.as_deref_mut().unwrap_or_else(|| unreachable!("locked"))
    }
}

impl<T> Drop for MutexGuard<'_, T> {
    fn drop(&mut self) {
        drop(self.guard.take());
    }
}

/// As parking_lot's.
pub(crate) struct RwLock<T>(sync::RwLock<T>);

impl<T> RwLock<T> {
    pub(crate) fn new(value: T) -> RwLock<T> {
        RwLock(sync::RwLock::new(value))
    }

    pub(crate) fn read(&self) -> impl Deref<Target = T> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn write(&self) -> impl DerefMut<Target = T> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }
}

/// As parking_lot's.
#[derive(Debug, Default)]
pub(crate) struct Condvar(sync::Condvar);

/// Whether a wait came to its end by itself.
pub(crate) struct WaitTimeoutResult(bool);

impl WaitTimeoutResult {
    pub(crate) fn timed_out(&self) -> bool {
        self.0
    }
}

impl Condvar {
    pub(crate) const fn new() -> Condvar {
        Condvar(sync::Condvar::new())
    }

    pub(crate) fn wait<T>(&self, guard: &mut MutexGuard<'_, T>) {
        let held = guard.guard.take().unwrap_or_else(|| unreachable!("locked"));
        guard.guard = Some(self.0.wait(held).unwrap_or_else(PoisonError::into_inner));
    }

    /// Where time passes, it may come to its end, or to a wake-up that nobody sent, whenever it gets its turn; where time
    /// stands still, only a wake-up ends it.
    pub(crate) fn wait_until<T>(
        &self,
        guard: &mut MutexGuard<'_, T>,
        deadline: Instant,
    ) -> WaitTimeoutResult {
        if !time::may_come(deadline) {
            self.wait(guard);
            return WaitTimeoutResult(false);
        }
        MutexGuard::unlocked(guard, super::thread::yield_now);
        let timed_out = shuttle::rand::thread_rng().r#gen();
        if timed_out {
            time::advance_to(deadline);
        }
        WaitTimeoutResult(timed_out)
    }

    pub(crate) fn notify_all(&self) {
        self.0.notify_all();
    }

    pub(crate) fn notify_one(&self) {
        self.0.notify_one();
    }
}

/// As that of every other build.
#[derive(Debug, Default)]
pub(crate) struct EventCount {
    count: Mutex<u32>,
    advanced: Condvar,
}

impl EventCount {
    pub(crate) fn read(&self) -> u32 {
        *self.count.lock()
    }

    pub(crate) fn wait(&self, seen: u32) {
        let mut count = self.count.lock();
        if *count == seen {
            self.advanced.wait(&mut count);
        }
    }

    pub(crate) fn advance_for_all(&self) {
        *self.count.lock() += 1;
        self.advanced.notify_all();
    }

    pub(crate) fn advance_for_one(&self) {
        *self.count.lock() += 1;
        self.advanced.notify_one();
    }
}

/// As the standard library's, with a point before each use. No value is made by code that has points in it, so nobody waits
/// for another's.
#[derive(Debug)]
pub(crate) struct OnceLock<T>(std::sync::OnceLock<T>);

impl<T> OnceLock<T> {
    pub(crate) const fn new() -> OnceLock<T> {
        OnceLock(std::sync::OnceLock::new())
    }

    #[inline]
    pub(crate) fn get(&self) -> Option<&T> {
        point();
        self.0.get()
    }

    pub(crate) fn set(&self, value: T) -> Result<(), T> {
        point();
        self.0.set(value)
    }

    pub(crate) fn get_mut(&mut self) -> Option<&mut T> {
        self.0.get_mut()
    }

    pub(crate) fn get_or_init(&self, make: impl FnOnce() -> T) -> &T {
        point();
        self.0.get_or_init(make)
    }
}
