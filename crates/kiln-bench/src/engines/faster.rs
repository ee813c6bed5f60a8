//! FASTER, Microsoft's concurrent key-value store (C++, the state of September 2020 that the crate `libfaster-sys` 0.11 bundles).
//!
//! ```text
//!  engine   the traits of the bench: settings, refreshing sessions, counting keys
//!   └── store      safe Rust around the C functions of
//!        └── store.cc   sessions, operations that wait, checkpoints
//!             └── types.h    keys and values: 8 bytes each, or any size
//!                  └── upstream/  FASTER's sources, which scripts/faster fetches
//! ```
//!
//! **Why not `faster-rs`.** For each operation that crate encodes key and value with `bincode` into a heap allocation each, and
//! for a read makes a channel; FASTER's own C interface below it allocates, copies and frees again, and has records of 64 bytes
//! for 8 + 8. None of that is FASTER's. So FASTER is used here as its own benchmark in C++ uses it: a template over keys and
//! values, with records of 24 bytes for keys and values of 8 and words that change by atomic instructions. Other sizes have their
//! lengths and a lock in the record, as in FASTER's example of values of any size. What is left between the timed loop and FASTER
//! is a call of a function, a virtual call, and a copy of key and value. (Nor can `libfaster-sys` be built any more: its build
//! clones googletest's branch `master` from GitHub, and fails without a network. Its C interface also writes a key behind the
//! end of an allocation whenever an operation has to wait for the device.)
//!
//! **What its checkpoint makes durable.** `persist` is a full checkpoint that "folds over": the log up to its tail becomes
//! read-only and is written to the device around the page cache (`O_DIRECT`), and so is the whole index, 64 bytes for each bucket
//! (a checkpoint of the log alone cannot be recovered: recovery wants an index of the same version). Then small files that
//! describe the checkpoint are written through the page cache. FASTER calls neither `fsync` nor `fdatasync`: neither the sizes of
//! its files, nor the small files, nor the device's own cache are known to be safe when it says that the checkpoint is complete.
//! So a checkpoint outlives the process, but nothing is promised if the machine loses power, which is less than any other peer
//! does here. It has no checksums, and notices no failing write. After a checkpoint each record is copied to the tail by its first
//! update, so that the next cell begins with copying. The checkpoint before is deleted; the log only grows.
//!
//! **Operations.** Adding is FASTER's read-modify-write. All operations are waited for, also those that read from the device,
//! which is the case for records that were not written for so long that the log's memory went round.
//!
//! **Limits.** 96 threads in a process. A session that stands still keeps the log's pages and the checkpoints of all others from
//! going on, so a worker must be used or dropped. No session begins or ends while a checkpoint is made.

#[cfg(feature = "faster")]
mod engine;
#[cfg(feature = "faster")]
mod store;
#[cfg(all(test, feature = "faster"))]
mod tests;

use anyhow::Result;

use super::catalog::{Description, Mode, Shape};

#[cfg(feature = "faster")]
pub(crate) use self::engine::FasterEngine;

pub(super) const DESCRIPTION: Description = Description {
    what: "Microsoft's FASTER (C++, 2020): a hash index over a log in memory, made durable by checkpoints without fsync",
    modes: &[Mode::Weak, Mode::Floor],
    shapes: &[Shape::Map],
    transactions: false,
    keeps_data: true,
    durable_puts: false,
    past_page_cache: false,
    reopens: false,
    snapshot_scans: false,
    settings: |mode| match mode {
        Mode::Floor => "the same without checkpoints: what it does in memory",
        _ => {
            "its C++ templates, not its C interface; a bucket for two records; log memory as given for caches, but for twice the \
         data at least, touched beforehand, 90% of it updated in place; sessions refreshed each 64 operations; persist is a \
         checkpoint that folds over, without fsync"
        }
    },
    version,
};

fn version() -> Result<String> {
    if cfg!(feature = "faster") {
        Ok("2020-09 (libfaster-sys 0.11.0)".to_owned())
    } else {
        Err(unavailable())
    }
}

/// Why there is no store.
pub(super) fn unavailable() -> anyhow::Error {
    if cfg!(feature = "faster") {
        anyhow::anyhow!("FASTER has no ordered tables: use a workload of maps")
    } else {
        anyhow::anyhow!(
            "this kiln-bench is built without FASTER: run scripts/faster, then build with --features faster"
        )
    }
}
