//! Zeroed memory as atomic words: the one place where the engine maps memory.
//!
//! The log's ring ([`Words`]) and the hash index ([`Lines`]) are arrays of [`AtomicU64`], the nodes of ordered indexes one ([`Array`]) of atomics. Everything above works on them
//! through relaxed atomic loads and stores, which compile to plain moves, so that optimistic readers race with
//! writers without undefined behaviour and the rest of the storage layer is safe code.
#![allow(unsafe_code)]

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::cell::Cell;
use std::io;
use std::ops::{Deref, DerefMut};

use crate::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use crate::sync::thread_local;

/// Arrays from this size on are mappings of their own; smaller ones, which a small database opens and closes faster, are
/// on the heap.
const MAPPED_BYTES_MIN: usize = 256 << 10;

/// What may begin as zeros, and become zeros at any time while others look at it.
///
/// # Safety
/// All of it are atomics, for each of which zero is a value, and it has no drop glue.
pub(crate) unsafe trait Zeroed: Sync {}

// SAFETY: an atomic, without drop glue; zero is a value of it.
unsafe impl Zeroed for AtomicU64 {}

/// A zeroed array; a large one is populated as it is touched, on huge pages where the kernel grants them.
pub(crate) struct Array<T: Zeroed> {
    start: *const T,
    count: usize,
}

/// Words of memory.
pub(crate) type Words = Array<AtomicU64>;

// SAFETY: an array owns its memory and only hands out references to what is Sync.
unsafe impl<T: Zeroed> Send for Array<T> {}
// SAFETY: as above; all access is through atomics.
unsafe impl<T: Zeroed> Sync for Array<T> {}

impl<T: Zeroed> Array<T> {
    /// Takes memory for `count` elements of zeros.
    ///
    /// # Errors
    /// The operating system's, when the address space or the memory limit does not allow it.
    pub(crate) fn new(count: usize) -> io::Result<Array<T>> {
        let layout = Layout::array::<T>(count).ok().filter(|layout| layout.size() > 0);
        let layout = layout.ok_or(io::ErrorKind::InvalidInput)?;
        if !is_mapped(layout.size()) {
            // SAFETY: the layout is not empty.
            let start = unsafe { alloc_zeroed(layout) }.cast::<T>().cast_const();
            return if start.is_null() { handle_alloc_error(layout) } else { Ok(Array { start, count }) };
        }
        use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous};
        // SAFETY: a fresh private anonymous mapping aliases nothing; it is aligned to pages, and so for any `T`.
        let start = unsafe {
            mmap_anonymous(
                std::ptr::null_mut(),
                layout.size(),
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE | MapFlags::NORESERVE,
            )
        }?;
        const { assert!(align_of::<T>() <= PAGE_BYTES_MIN) };
        if layout.size() >= HUGE_PAGE_BYTES {
            // SAFETY: the range is the mapping made above. Refusal is harmless: small pages work too.
            let _ = unsafe { madvise(start, layout.size(), Advice::LinuxHugepage) };
        }
        Ok(Array { start: start.cast(), count })
    }

    /// Bytes of all elements.
    fn bytes(&self) -> usize {
        self.count * size_of::<T>()
    }

    /// Gives the memory of `count` elements from `first` on back to the system, if they are whole pages of a mapping. They are zeros
    /// then; who reads there at the same time sees any of both, and nobody else may write there. False if nothing was done.
    pub(crate) fn give_back(&self, first: usize, count: usize) -> bool {
        let elements = &self[first..first + count];
        let (start, bytes) = (elements.as_ptr(), size_of_val(elements));
        if !is_mapped(self.bytes())
            || bytes == 0
            || whole_pages(start.addr(), bytes, page_bytes()) != (0, bytes)
        {
            return false;
        }
        // SAFETY: whole pages of the private anonymous mapping that `new` made, which read as zeros afterwards; everybody reads and
        // writes there through atomics, for which zero is a valid value.
        unsafe { rustix::mm::madvise(start.cast_mut().cast(), bytes, rustix::mm::Advice::LinuxDontNeed) }
            .is_ok()
    }
}

impl Words {
    /// Has the kernel provide the memory of `count` words from `first` on, so that the first to write there need
    /// not wait for it. Without effect where the kernel does not know how.
    pub(crate) fn populate(&self, first: usize, count: usize) {
        if !is_mapped(self.bytes()) {
            return;
        }
        let page_words = page_bytes() / 8;
        let first = first / page_words * page_words;
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

    /// Makes `count` words from `first` on zeros, and gives their memory back, but for what is less than a page. Who reads there at
    /// the same time sees any of both; nobody else may write there.
    pub(crate) fn clear(&self, first: usize, count: usize) {
        let words = &self[first..first + count];
        let (before, bytes) = whole_pages(words.as_ptr().addr(), count * 8, page_bytes());
        let (head, rest) = words.split_at(before / 8);
        let (pages, tail) = rest.split_at(bytes / 8);
        let is_given_back = self.give_back(first + head.len(), pages.len());
        let rest = if is_given_back { &[] } else { pages };
        for word in head.iter().chain(rest).chain(tail) {
            word.store(0, Ordering::Relaxed);
        }
    }
}

/// Words of a cache line.
pub(crate) const LINE_WORDS: usize = 8;
const LINE_BYTES: usize = LINE_WORDS * 8;

/// A cache line.
pub(crate) type Line = [AtomicU64; LINE_WORDS];

/// No system has smaller pages.
const PAGE_BYTES_MIN: usize = 4096;
const HUGE_PAGE_BYTES: usize = 2 << 20;
/// Miri has no address space to spare: there an array never has more lines.
const MIRI_LINES: usize = 1 << 12;

/// Arrays of at most so many lines leave their address space to the next one.
const KEPT_LINES_MAX: usize = 1 << 10;

/// Address space for cache lines; zeros wherever it is accessible.
struct Space {
    start: *const Line,
    /// Lines of it.
    lines: usize,
    /// What was mapped, and is to be unmapped.
    mapping: (*mut std::ffi::c_void, usize),
}

thread_local! {
    /// What this thread's last small array left: who opens and closes small databases by the thousand, to prove something of
    /// each, is spared the page faults.
    static KEPT: Cell<Option<Space>> = const { Cell::new(None) };
}

impl Space {
    /// Address space for `most` lines, or for as many as there is space for.
    fn reserve(least: usize, most: usize) -> io::Result<Space> {
        if let Some(kept) = KEPT.try_with(Cell::take).ok().flatten()
            && kept.lines == most
        {
            return Ok(kept);
        }
        if cfg!(miri) {
            let count = most.min(MIRI_LINES);
            let lines: Box<[Line]> = (0..count).map(|_| [const { AtomicU64::new(0) }; LINE_WORDS]).collect();
            let start = Box::into_raw(lines).cast();
            return Ok(Space { start, lines: count, mapping: (std::ptr::null_mut(), 0) });
        }
        let mut lines = most;
        loop {
            match Space::reserve_exactly(lines) {
                Err(_) if lines / 2 >= least => lines /= 2,
                // Others need address space, too.
                Ok(space) if lines < most => {
                    drop(space);
                    return Space::reserve_exactly((lines / 4).max(least));
                }
                space => return space,
            }
        }
    }

    fn reserve_exactly(lines: usize) -> io::Result<Space> {
        use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};
        let bytes = lines.checked_mul(LINE_BYTES).and_then(|bytes| bytes.checked_add(HUGE_PAGE_BYTES));
        let bytes = bytes.ok_or(io::ErrorKind::InvalidInput)?;
        // Without access it counts as no memory, however the system counts.
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: a fresh private anonymous mapping aliases nothing.
        let mapped = unsafe { mmap_anonymous(std::ptr::null_mut(), bytes, ProtFlags::empty(), flags) }?;
        let skip = mapped.cast::<u8>().align_offset(HUGE_PAGE_BYTES);
        // SAFETY: the mapping is longer than what is reserved by the alignment, so `skip` lies within it.
        let start = unsafe { mapped.cast::<u8>().add(skip) }.cast::<Line>().cast_const();
        Ok(Space { start, lines, mapping: (mapped, bytes) })
    }
}

impl Drop for Space {
    fn drop(&mut self) {
        if cfg!(miri) {
            let lines = std::ptr::slice_from_raw_parts_mut(self.start.cast_mut(), self.lines);
            // SAFETY: `reserve` leaked a boxed slice of exactly this length.
            drop(unsafe { Box::from_raw(lines) });
        } else {
            // SAFETY: exactly the mapping that `reserve_exactly` made; no borrow outlives self.
            let _ = unsafe { rustix::mm::munmap(self.mapping.0, self.mapping.1) };
        }
    }
}

/// An array of zeroed cache lines that grows and never moves: address space for as many as there may ever be, of which the
/// first ones are usable. So a line is found by one addition.
pub(crate) struct Lines {
    /// There until the array is dropped.
    space: Option<Space>,
    start: *const Line,
    usable: AtomicUsize,
}

// SAFETY: `Lines` owns its memory and only hands out `&Line`, which is Send and Sync.
unsafe impl Send for Lines {}
// SAFETY: as above; all access is through atomics.
unsafe impl Sync for Lines {}

impl Lines {
    /// Reserves address space for `most` lines, or for as many as there is space for; none of them is usable yet.
    ///
    /// # Errors
    /// The operating system's, when there is not even space for `least`.
    pub(crate) fn reserve(least: usize, most: usize) -> io::Result<Lines> {
        let space = Space::reserve(least, most)?;
        Ok(Lines { start: space.start, space: Some(space), usable: AtomicUsize::new(0) })
    }

    /// Makes the first `count` lines usable, on huge pages where the kernel grants them. Not for two threads at once.
    ///
    /// # Errors
    /// `OutOfMemory` beyond the address space that was reserved; the operating system's.
    pub(crate) fn grow_to(&self, count: usize) -> io::Result<()> {
        use rustix::mm::{Advice, MprotectFlags, madvise, mprotect};
        if self.space.as_ref().is_none_or(|space| count > space.lines) {
            return Err(io::ErrorKind::OutOfMemory.into());
        }
        if !cfg!(miri) {
            let (start, bytes) = (self.start.cast_mut().cast(), count * LINE_BYTES);
            // SAFETY: `count` is within the space, so the range is part of the mapping; access is only ever added.
            unsafe { mprotect(start, bytes, MprotectFlags::READ | MprotectFlags::WRITE) }?;
            if bytes >= HUGE_PAGE_BYTES {
                // SAFETY: as above. Refusal is harmless: small pages work too.
                let _ = unsafe { madvise(start, bytes, Advice::LinuxHugepage) };
            }
        }
        self.usable.fetch_max(count, Ordering::SeqCst);
        Ok(())
    }

    /// Gives the memory of lines whose contents nobody needs back to the system, where they are whole pages: they are zeros then, and stay
    /// usable. Who reads there at the same time sees any of both, and nobody else may write there.
    pub(crate) fn give_back(&self, first: u64, count: u64) {
        let end = ((first + count) as usize).min(self.usable()) * LINE_BYTES;
        let first = (first as usize * LINE_BYTES).min(end);
        let (before, bytes) = whole_pages(self.start.addr() + first, end - first, page_bytes());
        if bytes > 0 && !cfg!(miri) {
            // SAFETY: whole pages of the mapping that `grow_to` gave access to; they read as zeros afterwards, and
            // everybody reads and writes there through atomics, for which zero is a valid value.
            let _ = unsafe {
                let start = self.start.byte_add(first + before).cast_mut().cast();
                rustix::mm::madvise(start, bytes, rustix::mm::Advice::LinuxDontNeed)
            };
        }
    }

    /// How many lines are usable.
    pub(crate) fn usable(&self) -> usize {
        self.usable.load(Ordering::SeqCst)
    }

    /// The line with this number, which is usable.
    #[inline]
    pub(crate) fn line(&self, number: u64) -> &Line {
        let number = number as usize;
        // Whoever knows the number learnt it after the line had become usable.
        assert!(number < self.usable.load(Ordering::Relaxed), "a line that is not there");
        // SAFETY: checked above: below `usable`, where `grow_to` gave access to zeroed memory that stays until drop; an
        // all-zero line is a valid one.
        unsafe { &*self.start.add(number) }
    }
}

impl Drop for Lines {
    fn drop(&mut self) {
        let used = self.usable();
        if used > KEPT_LINES_MAX {
            return;
        }
        for number in 0..used {
            self.line(number as u64).iter().for_each(|word| word.store(0, Ordering::Relaxed));
        }
        // A thread that ends keeps nothing.
        let _ = KEPT.try_with(|kept| kept.set(self.space.take()));
    }
}

/// The system's pages: 4, 16 or 64 KiB.
fn page_bytes() -> usize {
    if cfg!(miri) { PAGE_BYTES_MIN } else { rustix::param::page_size() }
}

/// The whole pages among the `bytes` at the address `start`: how many bytes lie before them, and how many they are. What is given back has to be
/// rounded inwards here: the system takes the whole of a page of which a range has the beginning.
fn whole_pages(start: usize, bytes: usize, page_bytes: usize) -> (usize, usize) {
    let before = (start.next_multiple_of(page_bytes) - start).min(bytes);
    (before, (bytes - before) / page_bytes * page_bytes)
}

/// Whether an array of this size is a mapping. Miri knows no mappings.
fn is_mapped(bytes: usize) -> bool {
    !cfg!(miri) && bytes >= MAPPED_BYTES_MIN
}

impl<T: Zeroed> Deref for Array<T> {
    type Target = [T];

    #[inline]
    fn deref(&self) -> &[T] {
        // SAFETY: `new` took `count` zeroed elements at `start`, aligned, and they stay until drop; all zeros are a valid `T`.
        unsafe { std::slice::from_raw_parts(self.start, self.count) }
    }
}

impl<T: Zeroed> DerefMut for Array<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as for `deref`; whoever has the array alone has its elements.
        unsafe { std::slice::from_raw_parts_mut(self.start.cast_mut(), self.count) }
    }
}

impl<T: Zeroed> Drop for Array<T> {
    fn drop(&mut self) {
        let (start, bytes) = (self.start.cast_mut(), self.bytes());
        if is_mapped(bytes) {
            // SAFETY: the range is exactly the mapping made in `new`; no borrow outlives self.
            let _ = unsafe { rustix::mm::munmap(start.cast(), bytes) };
        } else if let Ok(layout) = Layout::array::<T>(self.count) {
            // SAFETY: `new` allocated it with this layout.
            unsafe { dealloc(start.cast(), layout) };
        }
    }
}

/// For who has taken what a commit takes, and cannot go back: ends the process, as everywhere in Rust where there is no memory for what is small. A panic there would leave
/// a bucket locked, and have others wait for it for ever; opened again, the database has what was durable.
#[cold]
pub(crate) fn no_memory<T>(count: usize) -> ! {
    handle_alloc_error(Layout::array::<T>(count).unwrap_or(Layout::new::<T>()))
}

/// Asks the processor to fetch the cache line of a place, without waiting for it. On x86-64 and aarch64; elsewhere, and under Miri, it does nothing.
#[inline]
pub(crate) fn prefetch<T>(place: &T) {
    prefetch_address(std::ptr::from_ref(place).addr());
}

/// The same for an address, where there may be nothing any more.
#[inline]
pub(crate) fn prefetch_address(address: usize) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: a prefetch has no effect but on the cache, whatever the address, and every x86-64 has it.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(std::ptr::without_provenance(address));
    }
    #[cfg(all(target_arch = "aarch64", not(miri)))]
    // SAFETY: as above; it fetches for loads, into all caches, and changes neither memory, stack nor flags.
    unsafe {
        std::arch::asm!("prfm pldl1keep, [{}]", in(reg) address, options(nostack, preserves_flags, readonly));
    }
    #[cfg(any(not(any(target_arch = "x86_64", target_arch = "aarch64")), miri))]
    let _ = address;
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Pages were taken to have 4 KiB: on systems with larger ones what lay behind the memory that was given back became zeros, too.
    #[test]
    fn only_whole_pages_of_a_range_are_given_back_whatever_their_size() {
        const STEP: usize = 4 << 10;
        for page in [4 << 10, 16 << 10, 64 << 10] {
            for (start, bytes) in (0..40).flat_map(|start| (0..40).map(move |end| (start * STEP, end * STEP)))
            {
                let (before, whole) = whole_pages((1 << 30) + start, bytes, page);
                assert!(before + whole <= bytes, "beyond the range");
                assert!(
                    [start + before, whole].iter().all(|it| whole == 0 || it % page == 0),
                    "not whole pages"
                );
                assert!(bytes < before + whole + page && (before < page || whole == 0), "less than there is");
            }
        }
    }

    #[test]
    fn what_is_cleared_is_zeros_and_nothing_beside_it_is() {
        const COUNT: usize = if cfg!(miri) { 2_000 } else { 1 << 17 };
        for (first, count) in
            [(0, COUNT / 2), (COUNT / 2, COUNT / 256), (COUNT / 2 + 3, COUNT / 4), (COUNT - 1, 1)]
        {
            let words = Words::new(COUNT).unwrap();
            words.iter().for_each(|word| word.store(1, Ordering::Relaxed));
            words.clear(first, count);
            let is_right = |(at, word): (usize, &AtomicU64)| {
                let is_cleared = (first..first + count).contains(&at);
                word.load(Ordering::Relaxed) == u64::from(!is_cleared)
            };
            assert!(words.iter().enumerate().all(is_right), "{count} from {first} on");
        }
    }
}
