//! The primitives under shuttle: each use is a point at which the schedule may let another thread go on.
//!
//! What is used here must be used inside of one of shuttle's executions, and begins with [`begin`]. The atomics are the
//! ordinary ones with such a point before each access, so that memory full of them may be mapped; the locks are shuttle's,
//! in the shape of parking_lot's.

mod locks;
mod time;

use std::cell::{Cell, RefCell};

pub(crate) use locks::{Condvar, EventCount, Mutex, MutexGuard, OnceLock, RwLock};
pub(crate) use shuttle::{hint, thread_local};
pub(crate) use time::{Instant, mpsc, thread};
pub use time::{Time, begin};

// Each thread of the operating system has executions of its own.
std::thread_local! {
    /// So many points are left out yet, because one thread alone prepares or looks at something.
    static QUIET: Cell<u64> = const { Cell::new(0) };
    /// Relaxed accesses since the last other one.
    static RELAXED: Cell<u64> = const { Cell::new(0) };
    /// Relaxed accesses in long rows under its pin, by the number of the thread; of one that is not pinned none.
    static PINNED: RefCell<Vec<Option<u64>>> = const { RefCell::new(Vec::new()) };
}

/// Who is quiet for longer than so many points turns, and is to be noticed.
const QUIET_MAX: u64 = 10_000_000;

/// Who is pinned holds others up, and has no more to do than what it was asked for. No program asks for what takes so many relaxed accesses in long rows, by
/// which memory is copied; a third of that is the most that any takes.
const PINNED_MAX: u64 = 1 << 14;
/// So many in a row are counted at once.
const PINNED_ROW: u64 = 8;

/// The thread is pinned from here on.
pub(crate) fn begin_pin() {
    with_pinned(|pinned| *pinned = Some(0));
}

/// The thread is not pinned any more.
pub(crate) fn end_pin() {
    with_pinned(|pinned| *pinned = None);
}

fn with_pinned(act: impl FnOnce(&mut Option<u64>)) {
    let Some(thread) = shuttle::current::try_get_current_task() else { return };
    let number = usize::from(thread);
    PINNED.with_borrow_mut(|pinned| {
        if pinned.len() <= number {
            pinned.resize(number + 1, None);
        }
        act(&mut pinned[number]);
    });
}

fn count_row() {
    with_pinned(|pinned| {
        if let Some(count) = pinned {
            *count += PINNED_ROW;
            assert!(*count <= PINNED_MAX, "under a pin there is no end to what is done");
        }
    });
}

/// Runs what concerns one thread alone, such as opening a database or looking at what a crash has left, with hardly any
/// points in it: they would only make schedules longer.
pub fn quietly<T>(act: impl FnOnce() -> T) -> T {
    QUIET.set(QUIET_MAX);
    let result = act();
    QUIET.set(0);
    result
}

/// Here another thread may go on.
fn point() {
    match QUIET.get() {
        // Shuttle has no name for it but this: a sleep is nothing but a chance for others.
        0 => shuttle::thread::sleep(std::time::Duration::ZERO),
        left => QUIET.set(left - 1),
    }
}

/// As [`point`], before an access of this order. A record or a page is copied by one relaxed access after the other; in so
/// long a row points become rare, or schedules would consist of little else.
fn point_before(order: std::sync::atomic::Ordering) {
    const ALL: u64 = 8;
    let row = if order == std::sync::atomic::Ordering::Relaxed { RELAXED.get() + 1 } else { 0 };
    RELAXED.set(row);
    if row > 0 && row.is_multiple_of(PINNED_ROW) {
        count_row();
    }
    if row < ALL || row.is_power_of_two() {
        point();
    }
}

/// All threads are coroutines of one.
pub(crate) fn processors() -> usize {
    1
}

/// Acts. A panic is how shuttle ends an execution, and what it has found: nobody is to hold it up.
pub(crate) fn contain<T>(act: impl FnOnce() -> T) -> Option<T> {
    Some(act())
}

/// The scheduler here knows no slices.
pub(crate) fn take_short_slices() {}

/// As the standard library's, which can fail.
pub(crate) fn spawn_scoped<'scope>(
    scope: &'scope thread::Scope<'scope, '_>,
    _name: &str,
    act: impl FnOnce() + Send + 'scope,
) -> std::io::Result<()> {
    drop(scope.spawn(act));
    Ok(())
}

/// A static; each execution begins with a new one.
macro_rules! process_wide {
    ($(#[$attribute:meta])* static $name:ident: $type:ty = $value:expr;) => {
        shuttle::lazy_static! {
            $(#[$attribute])*
            static ref $name: $type = $value;
        }
    };
}
pub(crate) use process_wide;

/// The fence in two halves. Between its threads memory is sequentially consistent, so there is nothing to order.
pub(crate) mod barrier {
    #[inline]
    pub(crate) fn light() {}

    #[inline]
    pub(crate) fn behind_locked() {}

    pub(crate) fn heavy() {
        super::point();
    }
}

/// Atomics.
pub(crate) mod atomic {
    pub(crate) use std::sync::atomic::Ordering;

    use super::{point, point_before};

    /// All orderings are the strongest here.
    pub(crate) fn fence(_: Ordering) {}

    macro_rules! atomic {
        ($name:ident, $value:ty) => {
            #[derive(Debug, Default)]
            #[repr(transparent)]
            pub(crate) struct $name(std::sync::atomic::$name);

            #[allow(dead_code, reason = "those that begin with their default are not made by it")]
            impl $name {
                pub(crate) const fn new(value: $value) -> $name {
                    $name(std::sync::atomic::$name::new(value))
                }
            }

            atomic!(accesses $name, $value);
        };
        (accesses $name:ident $(<$parameter:ident>)?, $value:ty) => {
            #[allow(dead_code, reason = "each type has all accesses, and some are used of some only")]
            impl $(<$parameter>)? $name $(<$parameter>)? {
                #[inline]
                pub(crate) fn load(&self, order: Ordering) -> $value {
                    point_before(order);
                    self.0.load(order)
                }

                #[inline]
                pub(crate) fn store(&self, value: $value, order: Ordering) {
                    point_before(order);
                    self.0.store(value, order);
                }

                #[inline]
                pub(crate) fn swap(&self, value: $value, order: Ordering) -> $value {
                    point();
                    self.0.swap(value, order)
                }

                #[inline]
                pub(crate) fn compare_exchange(
                    &self,
                    current: $value,
                    new: $value,
                    success: Ordering,
                    failure: Ordering,
                ) -> Result<$value, $value> {
                    point();
                    self.0.compare_exchange(current, new, success, failure)
                }

                #[inline]
                pub(crate) fn compare_exchange_weak(
                    &self,
                    current: $value,
                    new: $value,
                    success: Ordering,
                    failure: Ordering,
                ) -> Result<$value, $value> {
                    self.compare_exchange(current, new, success, failure)
                }
            }
        };
    }

    macro_rules! integer {
        ($name:ident, $value:ty) => {
            atomic!($name, $value);

            #[allow(dead_code, reason = "each type has all accesses, and some are used of some only")]
            impl $name {
                #[inline]
                pub(crate) fn fetch_add(&self, value: $value, order: Ordering) -> $value {
                    point();
                    self.0.fetch_add(value, order)
                }

                #[inline]
                pub(crate) fn fetch_sub(&self, value: $value, order: Ordering) -> $value {
                    point();
                    self.0.fetch_sub(value, order)
                }

                #[inline]
                pub(crate) fn fetch_max(&self, value: $value, order: Ordering) -> $value {
                    point();
                    self.0.fetch_max(value, order)
                }

                #[inline]
                pub(crate) fn fetch_min(&self, value: $value, order: Ordering) -> $value {
                    point();
                    self.0.fetch_min(value, order)
                }

                #[inline]
                pub(crate) fn fetch_or(&self, value: $value, order: Ordering) -> $value {
                    point();
                    self.0.fetch_or(value, order)
                }

                #[inline]
                pub(crate) fn fetch_update(
                    &self,
                    success: Ordering,
                    failure: Ordering,
                    next: impl FnMut($value) -> Option<$value>,
                ) -> Result<$value, $value> {
                    point();
                    self.0.fetch_update(success, failure, next)
                }
            }
        };
    }

    atomic!(AtomicBool, bool);
    integer!(AtomicU32, u32);
    integer!(AtomicU64, u64);
    integer!(AtomicUsize, usize);
    integer!(AtomicI64, i64);
    integer!(AtomicIsize, isize);

    #[derive(Debug)]
    #[repr(transparent)]
    pub(crate) struct AtomicPtr<T>(std::sync::atomic::AtomicPtr<T>);

    impl<T> AtomicPtr<T> {
        pub(crate) const fn new(pointer: *mut T) -> AtomicPtr<T> {
            AtomicPtr(std::sync::atomic::AtomicPtr::new(pointer))
        }
    }

    atomic!(accesses AtomicPtr<T>, *mut T);
}
