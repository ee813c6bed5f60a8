//! What a power loss may leave of a simulated disk.
//!
//! Every change since the last sync is broken into *loss units*, and any subset of them may survive: writes
//! torn at sectors, sizes apart from the data, names apart from the contents. Where several un-synced
//! writes hit one sector, the subsets let any of their contents win, or the old one, which covers every
//! reordering.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use super::SimulatedDevice;
use super::content::Content;
use super::disk::{Change, Disk, FileState, Inode, NameChange, Names};
use super::random::Random;
use crate::device::SECTOR_BYTES;

/// Whether a loss unit survives the crash.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Keep {
    /// It had reached the disk.
    Kept,
    /// It is gone.
    Lost,
}

/// One thing that a crash keeps or loses by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LossUnit<'a> {
    /// One sector of one write.
    Sector {
        /// The file's latest name.
        file: &'a str,
        /// Where in the file the sector lies, in bytes.
        offset: u64,
        /// Which of the file's un-synced changes the write is, from 0.
        change: usize,
    },
    /// A new size of a file.
    Size {
        /// The file's latest name.
        file: &'a str,
        /// The new size, in bytes.
        size: u64,
    },
    /// The name of a new file.
    Created {
        /// The name.
        name: &'a str,
    },
    /// The disappearance of a file's name.
    Removed {
        /// The name.
        name: &'a str,
    },
    /// The renaming of a file; old and new name change together.
    Renamed {
        /// The old name.
        from: &'a str,
        /// The new name.
        to: &'a str,
    },
}

/// All disks that a power loss at one moment may leave; from
/// [`SimulatedDevice::crash_states`](SimulatedDevice::crash_states).
///
/// The loss units have a fixed order: by file in order of creation, in each file by change and then by
/// offset, and then the directory's changes in order.
pub struct CrashStates {
    seed: u64,
    capacity: Option<u64>,
    files: Vec<FileAtRisk>,
    names: Names,
    pending_names: Vec<NameChange>,
    unit_count: usize,
}

/// What a crash may make of one file.
struct FileAtRisk {
    inode: Inode,
    name: Arc<str>,
    durable: Arc<Content>,
    pending: Vec<Change>,
}

/// The number of loss units of a disk.
pub(super) fn loss_units(disk: &Disk) -> usize {
    let reachable = disk.reachable();
    let at_risk = disk.files.iter().filter(|(inode, _)| reachable.contains(inode));
    let changes = at_risk.flat_map(|(_, file)| &file.pending);
    changes.map(Change::loss_units).sum::<usize>() + disk.pending_names.len()
}

/// What is durable of a file after a sync that failed: of what was written any sectors may have reached the disk.
pub(super) fn after_failed_sync(inode: Inode, file: &FileState, random: &mut Random) -> Arc<Content> {
    let is_write = |change: &&Change| matches!(change, Change::Write { .. } | Change::Clear { .. });
    let sector_count = file.pending.iter().filter(is_write).map(Change::loss_units).sum();
    let bias = Bias::draw(random, sector_count);
    let mut sectors = 0..;
    FileAtRisk::of(inode, file).with_kept(&mut |unit| match unit {
        LossUnit::Sector { .. } if bias.keeps(random, sectors.next().unwrap_or_default()) => Keep::Kept,
        // The sizes go on waiting for a sync.
        _ => Keep::Lost,
    })
}

/// The changes of names that had reached the disk when a sync of the directory failed: any of them.
pub(super) fn names_after_failed_sync(pending: &[NameChange], random: &mut Random) -> Vec<NameChange> {
    let bias = Bias::draw(random, pending.len());
    let reached = pending.iter().enumerate().filter(|(index, _)| bias.keeps(random, *index));
    reached.map(|(_, change)| change.clone()).collect()
}

impl CrashStates {
    pub(super) fn of(disk: &Disk) -> CrashStates {
        let reachable = disk.reachable();
        let at_risk = disk.files.iter().filter(|(inode, _)| reachable.contains(inode));
        CrashStates {
            seed: disk.seed,
            capacity: disk.capacity,
            files: at_risk.map(|(&inode, file)| FileAtRisk::of(inode, file)).collect(),
            names: disk.durable_names.clone(),
            pending_names: disk.pending_names.clone(),
            unit_count: loss_units(disk),
        }
    }

    /// The number of loss units; there are two to the power of this many subsets.
    pub fn unit_count(&self) -> usize {
        self.unit_count
    }

    /// The disk that is left when `choice`, asked once for each loss unit in their order, decides what
    /// survives.
    ///
    /// It is a device of its own: everything on it is durable, no step is counted, no fault is due and
    /// nobody has locked it. Only the capacity is that of the disk that it was.
    pub fn after_crash(&self, choice: &mut dyn FnMut(LossUnit<'_>) -> Keep) -> SimulatedDevice {
        self.disk_after_crash(self.seed, choice)
    }

    /// The disk that is left by a random choice: by [`choices`](CrashStates::choices) of the same seed.
    pub fn after_crash_seeded(&self, seed: u64) -> SimulatedDevice {
        self.disk_of(seed, &self.choices(seed))
    }

    /// The disk that is left by a choice for each loss unit in their order; units for which there is none are lost.
    pub fn after_crash_of(&self, choices: &[Keep]) -> SimulatedDevice {
        self.disk_of(self.seed, choices)
    }

    fn disk_of(&self, seed: u64, choices: &[Keep]) -> SimulatedDevice {
        let mut choices = choices.iter();
        self.disk_after_crash(seed, &mut |_| choices.next().copied().unwrap_or(Keep::Lost))
    }

    /// A random choice for each loss unit in their order. It is biased, so that the extremes occur
    /// (everything kept, nothing kept, all but one, one alone, the oldest only) as well as anything
    /// between. The same seed gives the same choice.
    pub fn choices(&self, seed: u64) -> Vec<Keep> {
        let mut random = Random::new(seed);
        let bias = Bias::draw(&mut random, self.unit_count);
        let keeps = (0..self.unit_count).map(|index| bias.keeps(&mut random, index));
        keeps.map(|kept| if kept { Keep::Kept } else { Keep::Lost }).collect()
    }

    /// The disk that is left when exactly those loss units survive whose bits are set in `mask`; bit 0 is
    /// the first unit.
    ///
    /// # Panics
    ///
    /// If there are more than 63 units.
    pub fn after_crash_mask(&self, mask: u64) -> SimulatedDevice {
        assert!(self.unit_count <= 63, "{} loss units do not fit a mask", self.unit_count);
        let mut remaining = mask;
        self.disk_after_crash(self.seed, &mut |_| {
            let kept = remaining & 1 == 1;
            remaining >>= 1;
            if kept { Keep::Kept } else { Keep::Lost }
        })
    }

    /// Every disk that may be left, by mask. Disks that are equal because one unit hides another are not
    /// left out.
    ///
    /// # Panics
    ///
    /// If there are more than 63 units.
    pub fn exhaustive(&self) -> impl Iterator<Item = SimulatedDevice> {
        assert!(self.unit_count <= 63, "{} loss units are too many to enumerate", self.unit_count);
        (0..1_u64 << self.unit_count).map(|mask| self.after_crash_mask(mask))
    }

    fn disk_after_crash(&self, seed: u64, choice: &mut dyn FnMut(LossUnit<'_>) -> Keep) -> SimulatedDevice {
        let mut contents: BTreeMap<Inode, Arc<Content>> =
            self.files.iter().map(|file| (file.inode, file.after_crash(choice))).collect();
        let mut names = self.names.clone();
        for change in &self.pending_names {
            if choice(name_unit(change)) == Keep::Kept {
                change.apply(&mut names);
            }
        }
        let mut files = BTreeMap::new();
        for (name, inode) in &names {
            let content = contents.remove(inode).unwrap_or_default();
            files.insert(*inode, FileState::durable(Arc::clone(name), content));
        }
        let mut disk = Disk::new(seed, files, names);
        disk.capacity = self.capacity;
        SimulatedDevice::from_disk(disk)
    }
}

impl FileAtRisk {
    fn of(inode: Inode, file: &FileState) -> FileAtRisk {
        FileAtRisk {
            inode,
            name: Arc::clone(&file.name),
            durable: Arc::clone(&file.durable),
            pending: file.pending.clone(),
        }
    }

    fn after_crash(&self, choice: &mut dyn FnMut(LossUnit<'_>) -> Keep) -> Arc<Content> {
        let mut content = self.with_kept(choice);
        if !self.pending.is_empty() {
            // What was written beyond a size that is lost cannot be read.
            let size = content.size();
            Arc::make_mut(&mut content).set_size(size);
        }
        content
    }

    /// What is durable with what is kept of the changes, also beyond the size.
    fn with_kept(&self, choice: &mut dyn FnMut(LossUnit<'_>) -> Keep) -> Arc<Content> {
        let mut content = Arc::clone(&self.durable);
        for (index, change) in self.pending.iter().enumerate() {
            match change {
                Change::Write { offset, data } => {
                    for (start, end) in self.kept_runs(index, *offset, data.len(), choice) {
                        Arc::make_mut(&mut content).write(&data[start..end], offset + start as u64);
                    }
                }
                Change::Clear { start: offset, end } => {
                    for (start, end) in self.kept_runs(index, *offset, (end - offset) as usize, choice) {
                        Arc::make_mut(&mut content).clear(offset + start as u64, offset + end as u64);
                    }
                }
                Change::Grow { size } | Change::Truncate { size } => {
                    if choice(LossUnit::Size { file: &self.name, size: *size }) == Keep::Kept {
                        change.apply(Arc::make_mut(&mut content));
                    }
                }
            }
        }
        content
    }

    /// The parts of a write that survive, as ranges of its bytes; neighbouring sectors make one range.
    fn kept_runs(
        &self,
        change: usize,
        offset: u64,
        length: usize,
        choice: &mut dyn FnMut(LossUnit<'_>) -> Keep,
    ) -> Vec<(usize, usize)> {
        let mut runs: Vec<(usize, usize)> = Vec::new();
        for start in (0..length).step_by(SECTOR_BYTES) {
            let unit = LossUnit::Sector { file: &self.name, offset: offset + start as u64, change };
            if choice(unit) == Keep::Lost {
                continue;
            }
            match runs.last_mut() {
                Some((_, end)) if *end == start => *end += SECTOR_BYTES,
                _ => runs.push((start, start + SECTOR_BYTES)),
            }
        }
        runs
    }
}

fn name_unit(change: &NameChange) -> LossUnit<'_> {
    match change {
        NameChange::Created { name, .. } => LossUnit::Created { name },
        NameChange::Removed { name, .. } => LossUnit::Removed { name },
        NameChange::Renamed { from, to, .. } => LossUnit::Renamed { from, to },
    }
}

/// How a random crash chooses.
#[derive(Clone, Copy, Debug)]
enum Bias {
    All,
    Nothing,
    /// The first so many units.
    Oldest(usize),
    AllBut(usize),
    Only(usize),
    /// Each unit with so many eighths of probability.
    Eighths(u64),
}

impl Bias {
    fn draw(random: &mut Random, unit_count: usize) -> Bias {
        match random.below(10) {
            0 => Bias::All,
            1 => Bias::Nothing,
            2 => Bias::Oldest(random.below(unit_count)),
            3 => Bias::AllBut(random.below(unit_count)),
            4 => Bias::Only(random.below(unit_count)),
            _ => Bias::Eighths(1 + random.next() % 7),
        }
    }

    fn keeps(self, random: &mut Random, index: usize) -> bool {
        match self {
            Bias::All => true,
            Bias::Nothing => false,
            Bias::Oldest(count) => index < count,
            Bias::AllBut(lost) => index != lost,
            Bias::Only(kept) => index == kept,
            Bias::Eighths(eighths) => random.next() % 8 < eighths,
        }
    }
}

impl fmt::Debug for CrashStates {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut fields = formatter.debug_struct("CrashStates");
        fields.field("seed", &self.seed).field("unit_count", &self.unit_count).finish_non_exhaustive()
    }
}
