//! How SQLite allocates, which only its C interface can set.
#![allow(unsafe_code)]

use std::sync::OnceLock;

use anyhow::{Result, ensure};
use rusqlite::ffi;

/// Switches SQLite's memory statistics off, as its authors advise to those who want speed: with them, each allocation of each
/// thread takes one lock. To be called before each opening of a database; the first one decides for the process.
pub(super) fn without_statistics() -> Result<()> {
    static CODE: OnceLock<std::ffi::c_int> = OnceLock::new();
    let code = *CODE.get_or_init(|| {
        // SAFETY: SQLite asks for one int after this option, and that no other thread uses SQLite meanwhile: this program opens
        // databases only after this function has returned, and other callers of it wait for the first one here.
        unsafe { ffi::sqlite3_config(ffi::SQLITE_CONFIG_MEMSTATUS, std::ffi::c_int::from(false)) }
    });
    ensure!(
        code == ffi::SQLITE_OK,
        "SQLite was used before it was configured (code {code}); open databases only through this engine"
    );
    Ok(())
}
