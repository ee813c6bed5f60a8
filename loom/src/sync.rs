//! Loom's primitives, under the names and in the shape that the engine takes from `crate::sync`.

use std::ops::{Deref, DerefMut};
use std::time::Duration;

pub(crate) use std::time::Instant;

pub(crate) use loom::{hint, thread};

pub(crate) mod atomic {
    pub(crate) use loom::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering, fence};
}

/// Acts. A panic is how loom ends an execution, and what it has found.
pub(crate) fn contain<T>(act: impl FnOnce() -> T) -> Option<T> {
    Some(act())
}

/// The fence in two halves, each of them whole.
pub(crate) mod barrier {
    use super::atomic::{Ordering, fence};

    pub(crate) fn light() {
        fence(Ordering::SeqCst);
    }

    pub(crate) fn behind_locked() {
        fence(Ordering::SeqCst);
    }

    pub(crate) fn heavy() {
        fence(Ordering::SeqCst);
    }
}

/// A thread's own, which is never dropped: loom ends its statics before the last threads have dropped theirs, and these may
/// need them. So no slot of a thread is used by another one.
macro_rules! kept_thread_local {
    ($($(#[$attribute:meta])* static $name:ident: $type:ty = $value:expr;)*) => {
        $(loom::thread_local! {
            $(#[$attribute])*
            static $name: std::mem::ManuallyDrop<$type> = std::mem::ManuallyDrop::new($value);
        })*
    };
}
pub(crate) use kept_thread_local as thread_local;

/// A static; each execution begins with a new one.
macro_rules! process_wide {
    ($(#[$attribute:meta])* static $name:ident: $type:ty = $value:expr;) => {
        loom::lazy_static! {
            $(#[$attribute])*
            static ref $name: $type = $value;
        }
    };
}
pub(crate) use process_wide;

/// Loom's in the shape of parking_lot's.
#[derive(Debug, Default)]
pub(crate) struct Mutex<T>(loom::sync::Mutex<T>);

/// The guard is taken out while its holder waits for a condition.
pub(crate) struct MutexGuard<'a, T>(Option<loom::sync::MutexGuard<'a, T>>);

impl<T> Mutex<T> {
    pub(crate) fn new(value: T) -> Mutex<T> {
        Mutex(loom::sync::Mutex::new(value))
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        MutexGuard(Some(self.0.lock().expect("a panic ends the whole model")))
    }

    pub(crate) fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        self.0.try_lock().ok().map(|guard| MutexGuard(Some(guard)))
    }
}

impl<T> Deref for MutexGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.0.as_ref().expect("it is back after each wait")
    }
}

impl<T> DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        self.0.as_mut().expect("it is back after each wait")
    }
}

#[derive(Debug)]
pub(crate) struct Condvar(loom::sync::Condvar);

/// Whether a wait ended because its time was over.
pub(crate) struct WaitResult(bool);

impl WaitResult {
    pub(crate) fn timed_out(&self) -> bool {
        self.0
    }
}

impl Condvar {
    pub(crate) fn new() -> Condvar {
        Condvar(loom::sync::Condvar::new())
    }

    /// In a model time stands still.
    pub(crate) fn wait_until<T>(&self, guard: &mut MutexGuard<'_, T>, _deadline: Instant) -> WaitResult {
        let inner = guard.0.take().expect("it is back after each wait");
        let waited = self.0.wait_timeout(inner, Duration::MAX).expect("a panic ends the whole model");
        guard.0 = Some(waited.0);
        WaitResult(waited.1.timed_out())
    }

    pub(crate) fn notify_one(&self) {
        self.0.notify_one();
    }
}

/// As that of every other build.
#[derive(Debug)]
pub(crate) struct EventCount {
    count: loom::sync::Mutex<u32>,
    advanced: loom::sync::Condvar,
}

impl Default for EventCount {
    fn default() -> EventCount {
        EventCount { count: loom::sync::Mutex::new(0), advanced: loom::sync::Condvar::new() }
    }
}

impl EventCount {
    fn lock(&self) -> loom::sync::MutexGuard<'_, u32> {
        self.count.lock().expect("a panic ends the whole model")
    }

    pub(crate) fn read(&self) -> u32 {
        *self.lock()
    }

    pub(crate) fn wait(&self, seen: u32) {
        let count = self.lock();
        if *count == seen {
            drop(self.advanced.wait(count).expect("a panic ends the whole model"));
        }
    }

    pub(crate) fn advance_for_all(&self) {
        *self.lock() += 1;
        self.advanced.notify_all();
    }

    pub(crate) fn advance_for_one(&self) {
        *self.lock() += 1;
        self.advanced.notify_one();
    }
}

/// Set once. What orders it is one flag of loom's.
#[derive(Debug)]
pub(crate) struct OnceLock<T> {
    value: std::sync::OnceLock<T>,
    is_set: atomic::AtomicBool,
}

impl<T> OnceLock<T> {
    pub(crate) fn new() -> OnceLock<T> {
        OnceLock { value: std::sync::OnceLock::new(), is_set: atomic::AtomicBool::new(false) }
    }

    pub(crate) fn get(&self) -> Option<&T> {
        self.value.get().filter(|_| self.is_set.load(atomic::Ordering::Acquire))
    }

    pub(crate) fn set(&self, value: T) -> Result<(), T> {
        self.value.set(value)?;
        self.is_set.store(true, atomic::Ordering::Release);
        Ok(())
    }

    pub(crate) fn get_or_init(&self, make: impl FnOnce() -> T) -> &T {
        let value = self.value.get_or_init(make);
        self.is_set.store(true, atomic::Ordering::Release);
        value
    }
}
