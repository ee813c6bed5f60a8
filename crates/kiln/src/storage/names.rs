//! The names of a database's files.

use std::io;
use std::sync::Arc;

use crate::device::Device;
use crate::error::Error;
use crate::planted::{Bug, planted};
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicBool, Ordering};

/// Makes the names of a database's files durable, for all who make, rename or remove some. The system tells a failure once, and a later
/// success says nothing of what was to be synced before: whoever was told, nobody can rely on any name any more.
pub(crate) struct Names {
    device: Arc<dyn Device>,
    are_uncertain: AtomicBool,
    /// See [`Names::let_go`].
    are_others: AtomicBool,
    syncing: Mutex<()>,
}

impl Names {
    pub(crate) fn new(device: Arc<dyn Device>) -> Arc<Names> {
        let no = || AtomicBool::new(false);
        Arc::new(Names { device, are_uncertain: no(), are_others: no(), syncing: Mutex::new(()) })
    }

    pub(crate) fn device(&self) -> &Arc<dyn Device> {
        &self.device
    }

    /// From now on the files may be somebody else's, who changes them.
    pub(crate) fn let_go(&self) {
        self.are_others.store(true, Ordering::SeqCst);
    }

    /// The error for what is not in a file as it was written there. No damage is told of files that may be somebody else's.
    pub(crate) fn corrupted(&self, file: &str, offset: u64, what: impl std::fmt::Display) -> Error {
        match self.are_others.load(Ordering::SeqCst) {
            true => Error::closed(),
            false => Error::corrupted(file, offset, what),
        }
    }

    /// Makes the names durable, or has nobody rely on them any more.
    pub(crate) fn sync(&self) -> io::Result<()> {
        let uncertain = !planted(Bug::DirectorySyncErrorForgotten);
        // One at a time: the other's failure may have been of what this one is to make durable.
        let _syncing = self.syncing.lock();
        self.device
            .sync_directory()
            .inspect_err(|_| self.are_uncertain.store(uncertain, Ordering::SeqCst))?;
        self.check()
    }

    /// Fails once a sync has failed.
    pub(crate) fn check(&self) -> io::Result<()> {
        match self.are_uncertain.load(Ordering::SeqCst) {
            true => Err(io::Error::other("the names of the database's files could not be made durable")),
            false => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::{Fault, FaultKind, OperationKind, SimulatedDevice};

    /// The tree's file got its name, and the superblock relied on it, though its creation was what the log's sync had failed to make durable.
    #[test]
    fn c8_once_a_sync_of_names_has_failed_none_succeeds() {
        let disk = SimulatedDevice::new(1);
        let names = Names::new(Arc::new(disk.clone()));
        names.sync().unwrap();
        names.check().unwrap();
        let kind = FaultKind::FailedSyncThenSuccess;
        disk.inject(Fault { operation: OperationKind::SyncDirectory, nth: 1, kind, sticky: false });
        for _ in 0..2 {
            names.sync().unwrap_err();
            names.check().unwrap_err();
        }
    }
}
