//! Has the system begin to write what is dirty in its page cache: the one call for it, which no safe library has.
#![allow(unsafe_code)]

use std::os::fd::{AsRawFd, OwnedFd};

/// Less is left to whoever syncs, who would have to wait for it as well.
const BYTES_MIN: usize = 256 << 10;

/// Begins to write what was written of a file to the disk; nobody waits for it. Nothing is durable before a sync, and only that tells of errors.
pub(super) fn begin(file: &OwnedFd, offset: u64, bytes: usize) {
    if bytes < BYTES_MIN || cfg!(miri) {
        return;
    }
    let (offset, bytes) = (offset.cast_signed(), bytes as i64);
    // SAFETY: it takes no memory, and the descriptor is open as long as it is borrowed here.
    let _ = unsafe { libc::sync_file_range(file.as_raw_fd(), offset, bytes, libc::SYNC_FILE_RANGE_WRITE) };
}
