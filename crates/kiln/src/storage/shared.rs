//! A place that many threads read without counting, and few change.
//!
//! A reader that is pinned borrows what is there, at the price of one load. Who replaces it gets the old one back as [`Retired`], which
//! can only be given up together with others, after everybody who was pinned has gone on ([`epoch::quiesce`]).
#![allow(unsafe_code)]

use std::ptr;
use std::sync::Arc;

use super::epoch::{self, Pin};
use crate::sync::atomic::{AtomicPtr, Ordering};

/// Holds one count of an [`Arc`], or nothing.
pub(crate) struct Shared<T> {
    pointer: AtomicPtr<T>,
    /// What is there may be dropped by any thread, and shown to any.
    owned: std::marker::PhantomData<Arc<T>>,
}

/// What was in a [`Shared`] and may still be borrowed from there. Leaks when it is merely dropped.
pub(crate) struct Retired<T>(*const T);

// SAFETY: a `Retired` is one count of an `Arc<T>`, which may go to other threads under these conditions.
unsafe impl<T: Send + Sync> Send for Retired<T> {}

impl<T> Shared<T> {
    pub(crate) fn new(value: Option<Arc<T>>) -> Shared<T> {
        let pointer = AtomicPtr::new(into_pointer(value));
        Shared { pointer, owned: std::marker::PhantomData }
    }

    /// What is there now, as long as the caller stays pinned.
    #[inline]
    pub(crate) fn get<'a>(&'a self, _pin: &'a Pin) -> Option<&'a T> {
        let pointer = self.pointer.load(Ordering::Acquire);
        // SAFETY: `pointer` is null or holds a count of an `Arc`. That count is given up by `release`, which waits for all pins that
        // began before the pointer was replaced, of which the caller's is one; and by `drop` and `release_with_owner`, which need `self` alone.
        unsafe { pointer.as_ref() }
    }

    /// What is there now, to be kept.
    pub(crate) fn get_owned(&self) -> Option<Arc<T>> {
        let _pin = epoch::pin();
        let pointer = self.pointer.load(Ordering::Acquire).cast_const();
        if pointer.is_null() {
            return None;
        }
        // SAFETY: as in `get`, the count that the place held lives until the pin ends, and `pointer` came from `Arc::into_raw`.
        unsafe {
            Arc::increment_strong_count(pointer);
            Some(Arc::from_raw(pointer))
        }
    }

    /// Whether it is this that is there now. Who holds it knows that nothing else is at its place.
    #[inline]
    pub(crate) fn is(&self, value: &Arc<T>) -> bool {
        ptr::eq(self.pointer.load(Ordering::Acquire), Arc::as_ptr(value))
    }

    /// Takes what is there out of a place that nobody else knows. One that is empty is not written to.
    pub(crate) fn take(&mut self) -> Option<Arc<T>> {
        let pointer = self.pointer.load(Ordering::Acquire).cast_const();
        if pointer.is_null() {
            return None;
        }
        self.pointer.store(ptr::null_mut(), Ordering::Relaxed);
        // SAFETY: the count came from `Arc::into_raw` and is no longer in its place; nobody borrows from `self`, which is the caller's alone.
        Some(unsafe { Arc::from_raw(pointer) })
    }

    /// Puts something else there.
    #[must_use = "what was there leaks unless it is released"]
    pub(crate) fn replace(&self, value: Option<Arc<T>>) -> Option<Retired<T>> {
        let old = self.pointer.swap(into_pointer(value), Ordering::AcqRel);
        (!old.is_null()).then_some(Retired(old))
    }
}

impl<T> Drop for Shared<T> {
    fn drop(&mut self) {
        drop(self.take());
    }
}

fn into_pointer<T>(value: Option<Arc<T>>) -> *mut T {
    value.map_or(ptr::null_mut(), |value| Arc::into_raw(value).cast_mut())
}

/// Gives up what nobody can find any more, once nobody looks at it. The caller is not pinned.
pub(crate) fn release<T>(retired: impl IntoIterator<Item = Retired<T>>) {
    let retired: Vec<_> = retired.into_iter().collect();
    if !retired.is_empty() {
        epoch::quiesce();
        for Retired(pointer) in retired {
            // SAFETY: `replace` took the count out of its place, and all who might have borrowed it there have been waited for.
            drop(unsafe { Arc::from_raw(pointer) });
        }
    }
}

/// Gives up at once what was in places that are being dropped with their owner: nobody borrows from there any more.
pub(crate) fn release_with_owner<T>(retired: Vec<Retired<T>>) {
    for Retired(pointer) in retired {
        // SAFETY: `replace` took the count out of its place, and as for `take` nobody borrows it: who drops the places has them alone.
        drop(unsafe { Arc::from_raw(pointer) });
    }
}
