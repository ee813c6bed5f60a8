//! The primitives under shuttle: each use is a point at which the schedule may let another thread go on.
//!
//! What is used here must be used inside of one of shuttle's executions, and begins with [`begin`]. The atomics are the
//! ordinary ones with such a point before each access, so that memory full of them may be mapped; the locks are shuttle's,
//! in the shape of parking_lot's.

mod locks;
mod time;

use std::cell::Cell;

pub(crate) use locks::{Condvar, Mutex, MutexGuard, OnceLock, RwLock};
pub(crate) use shuttle::{hint, thread_local};
pub(crate) use time::{Instant, mpsc, thread};
pub use time::{Time, begin};

// Each thread of the operating system has executions of its own.
std::thread_local! {
    /// Set while one thread alone prepares or looks at something.
    static QUIET: Cell<bool> = const { Cell::new(false) };
}

/// Runs what concerns one thread alone, such as opening a database or looking at what a crash has left, with hardly any
/// points in it: they would only make schedules longer.
pub fn quietly<T>(act: impl FnOnce() -> T) -> T {
    QUIET.set(true);
    let result = act();
    QUIET.set(false);
    result
}

/// Here another thread may go on.
fn point() {
    if !QUIET.get() {
        // Shuttle has no name for it but this: a sleep is nothing but a chance for others.
        shuttle::thread::sleep(std::time::Duration::ZERO);
    }
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

    pub(crate) fn heavy() {
        super::point();
    }
}

/// Atomics.
pub(crate) mod atomic {
    pub(crate) use std::sync::atomic::Ordering;

    use super::point;

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
                    point();
                    self.0.load(order)
                }

                #[inline]
                pub(crate) fn store(&self, value: $value, order: Ordering) {
                    point();
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
