//! Copies of a database that lives.

use std::sync::Arc;

use kiln::Result;
use kiln::device::SimulatedDevice;

use super::{Ended, Life, check, difference};
use crate::support::manual;

impl Life<'_> {
    /// C4: a backup has all that was committed before it, and the snapshots that have names.
    pub(super) fn back_up(&mut self) -> Result<()> {
        let disk = SimulatedDevice::new(self.random.next());
        self.db.backup_on(Arc::new(disk.clone()), |_| {})?;
        // Whatever is wrong there is no failure of the other's disk.
        match self.compare_copy(&disk) {
            Ok(()) => Ok(()),
            Err(Ended::Wrong(what)) => panic!("the backup: {what}"),
            Err(Ended::Failed(error)) => panic!("the backup: {error}"),
        }
    }

    fn compare_copy(&self, disk: &SimulatedDevice) -> std::result::Result<(), Ended> {
        let copy = manual().open_on(Arc::new(disk.clone()))?;
        difference(&self.told.now(), &self.read(&copy.snapshot()?)?)?;
        self.compare_named(&copy)?;
        check(&copy)
    }
}
