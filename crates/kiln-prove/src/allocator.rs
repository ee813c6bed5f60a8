//! The program's allocator, which can be told to fail at one of the next allocations.

#![allow(unsafe_code, reason = "an allocator's functions are unsafe to call and to implement")]

use std::alloc::{GlobalAlloc, Layout};
use std::sync::atomic::{AtomicU64, Ordering};

/// The program allocates more than anything else. Tests keep the system's allocator, of which ThreadSanitizer knows when it
/// gives memory to another thread.
#[cfg(not(test))]
type Inner = mimalloc::MiMalloc;
#[cfg(not(test))]
const INNER: Inner = mimalloc::MiMalloc;
#[cfg(test)]
type Inner = std::alloc::System;
#[cfg(test)]
const INNER: Inner = std::alloc::System;

#[global_allocator]
static ALLOCATOR: Failing = Failing(INNER);

/// Allocations up to the one that fails, which is included; 0: none does.
static LEFT: AtomicU64 = AtomicU64::new(0);

struct Failing(Inner);

/// Has the `nth` allocation from now on fail, of whatever thread.
pub(crate) fn fail_at(nth: u64) {
    LEFT.store(nth, Ordering::SeqCst);
}

/// How many allocations there may be before the one that fails.
pub(crate) fn left() -> u64 {
    LEFT.load(Ordering::SeqCst)
}

/// Counts an allocation, and says whether it is the one that fails.
#[inline]
fn fails() -> bool {
    LEFT.load(Ordering::Relaxed) != 0 && LEFT.fetch_sub(1, Ordering::Relaxed) == 1
}

// SAFETY: every call goes to an allocator that keeps the trait's promises, with what the caller gave; or returns null, which says
// that there is no memory, and has changed nothing.
unsafe impl GlobalAlloc for Failing {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if fails() {
            return std::ptr::null_mut();
        }
        // SAFETY: the caller's promises are the same.
        unsafe { self.0.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if fails() {
            return std::ptr::null_mut();
        }
        // SAFETY: the caller's promises are the same.
        unsafe { self.0.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        if fails() {
            return std::ptr::null_mut();
        }
        // SAFETY: the caller's promises are the same, and the memory came from the same allocator.
        unsafe { self.0.realloc(memory, layout, bytes) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: the caller's promises are the same, and the memory came from the same allocator.
        unsafe { self.0.dealloc(memory, layout) }
    }
}
