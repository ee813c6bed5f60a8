//! Opening an LMDB environment: the one thing about LMDB for which heed asks for `unsafe`.
#![allow(unsafe_code)]

use std::path::Path;

use heed::{Env, EnvFlags, EnvOpenOptions, WithoutTls};

/// The most that a database can hold. The file is sparse, and only the pages that are used take memory or disk, so that more
/// than any run needs costs no more than address space.
const MAP_BYTES: usize = 64 << 30;
/// The most read transactions at a time, of which each worker has at most one.
const READERS_MAX: u32 = 1024;

/// Opens an environment in an empty directory. With `NO_TLS`, a read transaction belongs to its worker and not to its thread,
/// which then could have only one of them.
pub(super) fn open(directory: &Path, flags: EnvFlags) -> heed::Result<Env<WithoutTls>> {
    let mut options = EnvOpenOptions::new().read_txn_without_tls();
    options.map_size(MAP_BYTES).max_readers(READERS_MAX);
    // SAFETY: heed asks that nobody relies on what the flags give up. They are NO_MEM_INIT, WRITE_MAP, NO_SYNC and NO_READ_AHEAD: the file may
    // hold old bytes of this process, a stray write may damage it, and so may a power cut, after which nobody reads it: a run
    // creates its databases anew and removes them. NO_LOCK, with which readers would see pages change, is not among them.
    unsafe { options.flags(flags) };
    // SAFETY: heed asks that nobody changes the files while they are mapped: the directory was made for this run, which holds a
    // lock on it, and LMDB's own lock file keeps other users of LMDB in step.
    unsafe { options.open(directory) }
}
