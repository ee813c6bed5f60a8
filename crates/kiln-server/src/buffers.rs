//! Buffers for connections that are doing something. A connection takes some when bytes arrive and returns
//! them when its batch is answered, so ten thousand idle connections hold none, and busy ones find theirs
//! still in the processor's cache.

use std::cell::RefCell;

use crate::batch::Buffers;
use crate::limits::READ_BYTES;

/// How many sets of buffers a thread keeps.
const KEPT_PER_THREAD: usize = 64;
/// A buffer that grew beyond this is given back to the allocator.
pub(crate) const KEPT_BYTES_MAX: usize = 4 * READ_BYTES;

thread_local! {
    #[expect(clippy::vec_box, reason = "connections hold them boxed, so that their tasks stay small")]
    static POOL: RefCell<Vec<Box<Buffers>>> = const { RefCell::new(Vec::new()) };
}

/// Empty buffers.
pub(crate) fn take() -> Box<Buffers> {
    POOL.with_borrow_mut(Vec::pop).unwrap_or_default()
}

/// Returns buffers whose contents are no longer needed.
pub(crate) fn put(mut buffers: Box<Buffers>) {
    buffers.input.clear();
    buffers.ran = 0;
    buffers.reply.clear();
    buffers.hardening.version = None;
    buffers.hardening.replies.clear();
    let Buffers { input, reply, scratch, .. } = &*buffers;
    let largest = [input.capacity(), reply.capacity(), scratch.value.capacity()];
    if largest.iter().all(|bytes| *bytes <= KEPT_BYTES_MAX) {
        POOL.with_borrow_mut(|pool| {
            if pool.len() < KEPT_PER_THREAD {
                pool.push(buffers);
            }
        });
    }
}
