//! Zeroed memory as atomic words: the one place where the engine maps memory.
//!
//! The log's ring and the hash index are arrays of [`AtomicU64`]. Everything above works on them through
//! relaxed atomic loads and stores, which compile to plain moves, so that optimistic readers race with
//! writers without undefined behaviour and the rest of the storage layer is safe code.
#![allow(unsafe_code)]

use std::io;
use std::ops::Deref;

use crate::sync::atomic::AtomicU64;

/// Arrays from this size on are mappings of their own; smaller ones, which a small database opens and closes faster, are
/// on the heap.
const MAPPED_BYTES_MIN: usize = 256 << 10;

/// A zeroed array of words; a large one is populated as it is touched, on huge pages where the kernel grants them.
pub(crate) struct Words {
    start: *const AtomicU64,
    count: usize,
}

// SAFETY: `Words` owns its memory and only hands out `&[AtomicU64]`, which is Send and Sync.
unsafe impl Send for Words {}
// SAFETY: as above; all access is through atomics.
unsafe impl Sync for Words {}

impl Words {
    /// Takes memory for `count` words of zeros.
    ///
    /// # Errors
    /// The operating system's, when the address space or the memory limit does not allow it.
    pub(crate) fn new(count: usize) -> io::Result<Words> {
        let bytes = count.checked_mul(8).filter(|&bytes| bytes > 0).ok_or(io::ErrorKind::InvalidInput)?;
        if !is_mapped(bytes) {
            let words: Box<[AtomicU64]> = (0..count).map(|_| AtomicU64::new(0)).collect();
            return Ok(Words { start: Box::into_raw(words).cast(), count });
        }
        use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous};
        // SAFETY: a fresh private anonymous mapping aliases nothing.
        let start = unsafe {
            mmap_anonymous(
                std::ptr::null_mut(),
                bytes,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE | MapFlags::NORESERVE,
            )
        }?;
        const HUGE_PAGE_BYTES: usize = 2 << 20;
        if bytes >= HUGE_PAGE_BYTES {
            // SAFETY: the range is the mapping made above. Refusal is harmless: small pages work too.
            let _ = unsafe { madvise(start, bytes, Advice::LinuxHugepage) };
        }
        Ok(Words { start: start.cast(), count })
    }

    /// Has the kernel provide the memory of `count` words from `first` on, so that the first to write there need
    /// not wait for it. Without effect where the kernel does not know how.
    pub(crate) fn populate(&self, first: usize, count: usize) {
        const PAGE_WORDS: usize = 4096 / 8;
        if !is_mapped(self.count * 8) {
            return;
        }
        let first = first / PAGE_WORDS * PAGE_WORDS;
        let words = &self[first..(first + count).min(self.count)];
        // SAFETY: the range lies in the mapping that `new` made, and populating changes no contents.
        let _ = unsafe {
            rustix::mm::madvise(
                words.as_ptr().cast_mut().cast(),
                words.len() * 8,
                rustix::mm::Advice::LinuxPopulateWrite,
            )
        };
    }
}

/// Whether an array of this size is a mapping. Miri knows no mappings.
fn is_mapped(bytes: usize) -> bool {
    !cfg!(miri) && bytes >= MAPPED_BYTES_MIN
}

impl Deref for Words {
    type Target = [AtomicU64];

    #[inline]
    fn deref(&self) -> &[AtomicU64] {
        // SAFETY: `new` took `count` zeroed words at `start`, aligned, and they stay until drop; an all-zero word is a
        // valid AtomicU64.
        unsafe { std::slice::from_raw_parts(self.start, self.count) }
    }
}

impl Drop for Words {
    fn drop(&mut self) {
        let start = self.start.cast_mut();
        if is_mapped(self.count * 8) {
            // SAFETY: the range is exactly the mapping made in `new`; no borrow outlives self.
            let _ = unsafe { rustix::mm::munmap(start.cast(), self.count * 8) };
        } else {
            // SAFETY: `new` leaked a boxed slice of exactly this length.
            drop(unsafe { Box::from_raw(std::ptr::slice_from_raw_parts_mut(start, self.count)) });
        }
    }
}

/// Asks the processor to fetch a word's cache line, without waiting for it.
#[inline]
pub(crate) fn prefetch(word: &AtomicU64) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: a prefetch has no effect but on the cache, whatever the address, and every x86-64 has it.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(std::ptr::from_ref(word).cast());
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    let _ = word;
}
