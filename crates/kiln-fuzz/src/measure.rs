//! How much memory a decoder takes.

use std::alloc::System;

use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// What may be taken whatever the input.
const BASE_BYTES: usize = 64 << 10;

/// Runs `decode`, and panics if it takes more memory in all than a base and so many times the bytes of its input. Nothing
/// else may run meanwhile.
pub(crate) fn bounded<T>(input: &[u8], times: usize, decode: impl FnOnce() -> T) -> T {
    let region = Region::new(ALLOCATOR);
    let decoded = decode();
    let taken = region.change().bytes_allocated;
    let allowed = BASE_BYTES + times * input.len();
    assert!(taken <= allowed, "{taken} bytes of memory for {} bytes of input", input.len());
    decoded
}
