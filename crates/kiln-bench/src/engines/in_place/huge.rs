//! Huge pages for leaves, as Kiln has for its log and index.

#![allow(unsafe_code, reason = "advice about memory goes by its address")]

use std::mem::MaybeUninit;

use rustix::mm::{Advice, madvise};

/// Asks for huge pages for memory that was allocated and not touched. Without them it is only slower.
pub(super) fn advise_huge_pages<T>(room: &mut [MaybeUninit<T>]) {
    const SMALL_PAGE_BYTES: usize = 4096;
    let bytes = size_of_val(room);
    let start = room.as_mut_ptr().cast::<u8>();
    let skipped = start.align_offset(SMALL_PAGE_BYTES).min(bytes);
    let len = (bytes - skipped) / SMALL_PAGE_BYTES * SMALL_PAGE_BYTES;
    // SAFETY: the range lies within the slice (`skipped` and `len` are at most its bytes), and the advice changes nothing that it holds.
    let _ = unsafe { madvise(start.wrapping_add(skipped).cast(), len, Advice::LinuxHugepage) };
}
