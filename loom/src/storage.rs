//! The engine's own files, and words of loom's in the place of mapped memory.

#[path = "../../crates/kiln/src/storage/epoch.rs"]
pub(crate) mod epoch;
#[allow(unused_imports, reason = "nobody asks how long its chains are")]
#[path = "../../crates/kiln/src/storage/hash_index/mod.rs"]
pub(crate) mod hash_index;
#[path = "../../crates/kiln/src/storage/log.rs"]
pub(crate) mod log;
pub(crate) mod memory;
#[path = "../../crates/kiln/src/storage/record.rs"]
pub(crate) mod record;
#[path = "../../crates/kiln/src/storage/seal.rs"]
pub(crate) mod seal;
