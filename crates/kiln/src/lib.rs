//! # Kiln
//!
//! An embeddable transactional storage engine in which *commit* and *durability* are two separate, ordered,
//! observable points. A transaction commits at memory speed: it is visible, isolated and atomic at once, and
//! waits for no device. It *hardens* later, in order, and its [`Receipt`] tells exactly when it is durable, or
//! that it is lost.
//!
//! Begin with [`Kiln`]; [`Options`] has what can be set. What is promised is in `docs/durability.md`.
//!
//! ```text
//!  database   what a program holds: Kiln, its statistics, check, backup
//!  objects    tables and maps, ranges, snapshots
//!  kernel     transactions, the clock, hardening, receipts, sessions, the catalog, recovery
//!  storage    the record log, its files and formats, the indexes over it, epochs
//!  device     files, real and simulated
//! ```
//!
//! Each layer uses those below it, and none above. Atomics, locks, threads and the clock of all of them come from `sync`.

#[cfg(not(all(target_os = "linux", target_endian = "little", target_pointer_width = "64")))]
compile_error!("Kiln runs on Linux, on little-endian machines of 64 bits");

/// Its examples are compiled with those of the items.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;

mod database;
pub mod device;
mod error;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
mod kernel;
mod objects;
mod options;
#[doc(hidden)]
pub mod planted;
#[cfg(feature = "schedules")]
pub mod schedules;
mod storage;
mod sync;

pub use database::{
    Backup, BackupProgress, BulkLoad, BulkLoadProgress, CheckReport, CompactProgress, Compacted, Kiln,
    ObjectInfo, Pressure, SessionInfo, SessionList, SnapshotInfo, Statistics, check, check_on, dump_log,
};
pub use error::{Error, ErrorKind, Result};
pub use kernel::clock::Version;
pub use kernel::expiry::Expiry;
pub use kernel::handle::Object;
pub use kernel::hardening::horizon::{Lost, Outcome};
pub use kernel::object::ObjectKind;
pub use kernel::pending_read::PendingRead;
pub use kernel::receipt::{Commit, Durable, Level, Progress, Receipt};
pub use kernel::recovery::RecoveryReport;
pub use kernel::session::Session;
pub use kernel::transaction::{Isolation, Transaction, Watch};
pub use objects::{Map, MapIter, Range, Snapshot, SnapshotRange, Table};
pub use options::Options;
pub use storage::hash_index::IndexChains;
pub use storage::record::VALUE_BYTES_MAX;

#[cfg(test)]
mod tests {
    use std::future::Future;

    use super::*;

    fn is_send<T: Send>() {}
    fn is_shared<T: Send + Sync>() {}

    /// What a program may give to another thread, or use from several: a field could take it away, and who uses the engine would learn of it.
    #[test]
    fn what_may_go_to_other_threads_may() {
        is_shared::<(Kiln, Map, Table, Session, Watch)>();
        is_shared::<(Receipt, Durable, Commit<'_, ()>, Snapshot<'_>)>();
        is_shared::<(Options, Error, Lost, RecoveryReport, Statistics, BulkLoad)>();
        is_send::<(Transaction<'_>, SnapshotRange<'_>, MapIter<'_>, SessionList<'_>, PendingRead)>();
    }

    /// And what is awaited.
    #[test]
    fn an_asynchronous_function_that_commits_may_go_on_on_another_thread() {
        fn sent(future: impl Future<Output = Result<Option<Vec<u8>>>> + Send) {
            drop(future);
        }
        let db =
            Options::new().background(false).open_on(std::sync::Arc::new(device::SimulatedDevice::new(1)));
        let db = db.unwrap();
        let map = db.map("map").unwrap();
        sent(async {
            let transaction = db.begin()?;
            transaction.put(&map, "key", "value")?;
            transaction.commit()?.safe_async().await?;
            let snapshot = db.snapshot()?;
            db.put(&map, "key", "newer")?.safe_async().await?;
            db.get_async(&map, "key").await?;
            snapshot.get(&map, "key")
        });
    }
}
