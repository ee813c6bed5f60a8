//! What is on a machine's disk, and what a power cut may leave of it.

use std::sync::{Arc, Mutex, PoisonError};

use kiln::device::{Device, Keep, LossUnit, SimulatedDevice};

use crate::support::Random;

/// The name of the one directory in the root.
pub(super) const DATABASE: &str = "database";

/// What is on the disk.
///
/// The root is a disk of its own, on which an empty file stands for the directory of the database: its name, too, is durable
/// only when the root was synced.
#[derive(Clone, Debug)]
pub(super) struct Volume {
    pub(super) root: SimulatedDevice,
    /// The files of the database.
    pub(super) disk: SimulatedDevice,
    /// What the lock file holds, if it is there. The simulated disk does not take it: it is written in bytes.
    pub(super) lock: Arc<Mutex<Option<Vec<u8>>>>,
}

impl Volume {
    /// An empty disk.
    pub(super) fn new(seed: u64) -> Volume {
        Volume { root: SimulatedDevice::new(seed), disk: SimulatedDevice::new(seed), lock: Arc::default() }
    }

    pub(super) fn has_database(&self) -> bool {
        self.root.list().is_ok_and(|names| names.iter().any(|name| name == DATABASE))
    }

    /// A disk that a power cut may leave.
    pub(super) fn after_cut(&self, random: &mut Random) -> Volume {
        let root = self.root.after_crash_seeded(random.next());
        let left = Volume { root, ..Volume::new(random.next()) };
        if !left.has_database() {
            return left;
        }
        let mut lock = self.lock.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if random.one_in(2) {
            // Nobody syncs the lock file.
            lock.as_mut().into_iter().for_each(Vec::clear);
        }
        let disk = self.disk.after_crash_seeded(random.next());
        Volume { disk, lock: Arc::new(Mutex::new(lock)), ..left }
    }
}

/// How much a power cut could have taken.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct AtStake {
    pub(super) sectors: u64,
    pub(super) sizes: u64,
    pub(super) names: u64,
}

impl AtStake {
    /// Adds what is held back.
    pub(super) fn add(&mut self, volume: &Volume) {
        self.add_disk(&volume.root);
        self.add_disk(&volume.disk);
    }

    fn add_disk(&mut self, disk: &SimulatedDevice) {
        disk.after_crash(&mut |unit| {
            *match unit {
                LossUnit::Sector { .. } => &mut self.sectors,
                LossUnit::Size { .. } => &mut self.sizes,
                LossUnit::Created { .. } | LossUnit::Removed { .. } | LossUnit::Renamed { .. } => {
                    &mut self.names
                }
            } += 1;
            Keep::Lost
        });
    }
}
