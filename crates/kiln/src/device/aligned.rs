//! A heap buffer that direct I/O accepts.
//!
//! The bytes come from an ordinary zeroed vector that is one block larger than needed, and the buffer
//! starts at the first aligned address in it. The rejected alternatives, a vector of aligned blocks and an
//! allocation of one's own, both need unsafe code; this one wastes at most a block and gets its zeros from
//! the allocator, which for a large buffer means pages that cost nothing until they are touched.
//!
//! Each thread keeps the memory of a few of its small buffers for the next ones, the longest of them: a record that is read from disk needs
//! one.

use std::cell::RefCell;
use std::fmt;
use std::ops::{Deref, DerefMut};

use super::BLOCK_BYTES;
use crate::sync::thread_local;

/// So many of a thread's buffers leave their memory, and no longer ones than this.
const KEPT_MAX: usize = 4;
const KEPT_BYTES_MAX: usize = 132 << 10;

thread_local! {
    /// Memory that buffers have left.
    static KEPT: RefCell<Vec<Vec<u8>>> = const { RefCell::new(Vec::new()) };
}

/// Memory of at least so many bytes that a buffer of this thread has left, whatever is in it.
fn take_kept(bytes: usize) -> Option<Vec<u8>> {
    if bytes > KEPT_BYTES_MAX {
        return None;
    }
    let take = |kept: &RefCell<Vec<Vec<u8>>>| {
        let mut kept = kept.borrow_mut();
        let found = kept.iter().rposition(|memory| memory.len() >= bytes)?;
        Some(kept.swap_remove(found))
    };
    KEPT.try_with(take).ok().flatten()
}

/// Zeroed bytes on the heap whose address and length are multiples of [`BLOCK_BYTES`].
#[derive(Default)]
pub struct AlignedBuffer {
    /// Owns the memory. It is never pushed to nor shrunk, so its address, and with it `start`, stays valid.
    memory: Vec<u8>,
    /// Where in `memory` the first aligned address lies.
    start: usize,
    /// Bytes in use from `start` on.
    length: usize,
}

impl AlignedBuffer {
    /// A buffer of `bytes` zeros, rounded up to whole blocks.
    pub fn new(bytes: usize) -> AlignedBuffer {
        let length = bytes.next_multiple_of(BLOCK_BYTES);
        if length == 0 {
            return AlignedBuffer::default();
        }
        match take_kept(length + BLOCK_BYTES) {
            None => AlignedBuffer::of(vec![0; length + BLOCK_BYTES], length),
            Some(memory) => {
                let mut buffer = AlignedBuffer::of(memory, length);
                buffer.fill(0);
                buffer
            }
        }
    }

    /// A buffer of `bytes`, rounded up to whole blocks, that holds whatever it holds: for who reads into all of it.
    pub(crate) fn for_reading(bytes: usize) -> AlignedBuffer {
        let length = bytes.next_multiple_of(BLOCK_BYTES);
        match take_kept(length + BLOCK_BYTES) {
            None => AlignedBuffer::new(bytes),
            Some(memory) => AlignedBuffer::of(memory, length),
        }
    }

    fn of(memory: Vec<u8>, length: usize) -> AlignedBuffer {
        let start = memory.as_ptr().addr().wrapping_neg() % BLOCK_BYTES;
        AlignedBuffer { memory, start, length }
    }

    /// The number of bytes, a multiple of [`BLOCK_BYTES`].
    pub fn len(&self) -> usize {
        self.length
    }

    /// Whether the buffer has no bytes at all.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// The number of bytes that the buffer can hold without moving.
    pub fn capacity(&self) -> usize {
        self.memory.len().saturating_sub(BLOCK_BYTES)
    }

    /// Changes the length to `bytes`, rounded up to whole blocks. What was there stays, what is added is
    /// zero. Memory is kept when shrinking; when it must grow it at least doubles, so repeated growing is
    /// cheap.
    pub fn resize(&mut self, bytes: usize) {
        let length = bytes.next_multiple_of(BLOCK_BYTES);
        if length > self.capacity() {
            let mut larger = AlignedBuffer::new(length.max(2 * self.capacity()));
            larger.as_mut_slice()[..self.length].copy_from_slice(self.as_slice());
            larger.length = length;
            *self = larger;
        } else {
            let kept = self.length.min(length);
            self.length = length;
            // Shrinking left old bytes behind; whoever grows again is promised zeros.
            self.as_mut_slice()[kept..].fill(0);
        }
    }

    /// Makes the buffer at least `bytes` long, as [`resize`](AlignedBuffer::resize) does; never shrinks it.
    pub fn grow(&mut self, bytes: usize) {
        if bytes > self.length {
            self.resize(bytes);
        }
    }

    /// All bytes.
    pub fn as_slice(&self) -> &[u8] {
        &self.memory[self.start..self.start + self.length]
    }

    /// All bytes, to be changed.
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        &mut self.memory[self.start..self.start + self.length]
    }
}

impl Drop for AlignedBuffer {
    fn drop(&mut self) {
        if self.memory.is_empty() || self.memory.len() > KEPT_BYTES_MAX {
            return;
        }
        // A thread that ends keeps nothing.
        let _ = KEPT.try_with(|kept| {
            let mut kept = kept.borrow_mut();
            if kept.len() < KEPT_MAX {
                kept.push(std::mem::take(&mut self.memory));
            } else if let Some(shortest) = kept.iter_mut().min_by_key(|memory| memory.len())
                && shortest.len() < self.memory.len()
            {
                // The longest ones are worth most, and do for the short buffers, too.
                *shortest = std::mem::take(&mut self.memory);
            }
        });
    }
}

impl Clone for AlignedBuffer {
    fn clone(&self) -> AlignedBuffer {
        AlignedBuffer::from(self.as_slice())
    }
}

impl From<&[u8]> for AlignedBuffer {
    /// Copies `bytes` and appends zeros up to a whole block.
    fn from(bytes: &[u8]) -> AlignedBuffer {
        let mut buffer = AlignedBuffer::new(bytes.len());
        buffer.as_mut_slice()[..bytes.len()].copy_from_slice(bytes);
        buffer
    }
}

impl Deref for AlignedBuffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.as_slice()
    }
}

impl DerefMut for AlignedBuffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        self.as_mut_slice()
    }
}

impl fmt::Debug for AlignedBuffer {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "AlignedBuffer({} bytes)", self.length)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn assert_aligned(buffer: &AlignedBuffer) {
        assert_eq!(buffer.as_ptr().addr() % BLOCK_BYTES, 0);
        assert_eq!(buffer.len() % BLOCK_BYTES, 0);
    }

    #[test]
    fn address_and_length_are_aligned_and_bytes_are_zero() {
        for bytes in [0, 1, 100, 4095, 4096, 4097, 1 << 20] {
            let buffer = AlignedBuffer::new(bytes);
            if bytes > 0 {
                assert_aligned(&buffer);
            }
            assert!(buffer.len() >= bytes && buffer.len() < bytes + BLOCK_BYTES);
            assert!(buffer.iter().all(|byte| *byte == 0));
        }
    }

    /// Memory that another buffer has left is as good as new.
    #[test]
    fn a_buffer_is_zero_whatever_the_one_before_it_held() {
        let mut first = AlignedBuffer::new(3 * BLOCK_BYTES);
        first.fill(7);
        let place = first.as_ptr().addr();
        drop(first);
        let second = AlignedBuffer::new(2 * BLOCK_BYTES);
        assert_eq!(second.as_ptr().addr(), place, "the memory is used again");
        assert_eq!(second.len(), 2 * BLOCK_BYTES);
        assert!(second.iter().all(|byte| *byte == 0));
        drop(second);
        let third = AlignedBuffer::for_reading(1);
        assert_eq!((third.as_ptr().addr(), third.len()), (place, BLOCK_BYTES));
        assert_aligned(&third);
    }

    /// Else short ones would leave no place to them for ever.
    #[test]
    fn of_more_buffers_than_are_kept_the_longest_leave_their_memory() {
        let shorts: Vec<_> = (0..KEPT_MAX).map(|_| AlignedBuffer::new(BLOCK_BYTES)).collect();
        let long = AlignedBuffer::new(16 * BLOCK_BYTES);
        let place = long.as_ptr().addr();
        drop(shorts);
        drop(long);
        assert_eq!(AlignedBuffer::for_reading(16 * BLOCK_BYTES).as_ptr().addr(), place);
    }

    #[test]
    fn resizing_keeps_what_was_there_and_adds_zeros() {
        let mut buffer = AlignedBuffer::from(&[7; 5000][..]);
        buffer.resize(100_000);
        assert_aligned(&buffer);
        assert_eq!(buffer[..5000], [7; 5000]);
        assert!(buffer[5000..].iter().all(|byte| *byte == 0));
        buffer.fill(9);
        buffer.resize(1);
        assert_eq!(buffer[..], [9; 4096]);
        buffer.resize(8192);
        assert_aligned(&buffer);
        assert_eq!(buffer[4096..], [0; 4096]);
    }

    #[test]
    fn growing_never_shrinks() {
        let mut buffer = AlignedBuffer::new(8192);
        buffer.grow(10);
        assert_eq!(buffer.len(), 8192);
        buffer.grow(8193);
        assert_eq!(buffer.len(), 12288);
    }

    #[test]
    fn a_clone_is_aligned_and_equal() {
        let buffer = AlignedBuffer::from(&[3; 4096][..]);
        let clone = buffer.clone();
        assert_aligned(&clone);
        assert_eq!(buffer[..], clone[..]);
    }
}
