//! The state of a simulated disk: what is durable, what is volatile, and the changes between the two.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io;
use std::sync::Arc;

use rustix::io::Errno;
use xxhash_rust::xxh3::Xxh3;

use super::content::Content;
use super::crash::{CrashStates, after_failed_sync, names_after_failed_sync};
use super::faults::{FaultKind, Faults, OperationKind};
use super::random::Random;
use crate::device::{BLOCK_BYTES, SECTOR_BYTES};

/// Identifies a file whatever its name; never reused on one disk.
pub(super) type Inode = u64;

/// The names of a directory.
pub(super) type Names = BTreeMap<Arc<str>, Inode>;

/// A change to a file that is not durable yet.
#[derive(Clone, Debug)]
pub(super) enum Change {
    /// Bytes at an offset, both in whole sectors; at a crash each sector is kept or lost by itself.
    Write { offset: u64, data: Arc<[u8]> },
    /// Zeros from `start` up to `end`, in whole sectors; at a crash it is a write like any other.
    Clear { start: u64, end: u64 },
    /// The size became at least this.
    Grow { size: u64 },
    /// The size became this.
    Truncate { size: u64 },
}

impl Change {
    /// How many parts of the change a crash can lose independently.
    pub(super) fn loss_units(&self) -> usize {
        match self {
            Change::Write { data, .. } => data.len() / SECTOR_BYTES,
            Change::Clear { start, end } => (end - start) as usize / SECTOR_BYTES,
            Change::Grow { .. } | Change::Truncate { .. } => 1,
        }
    }

    pub(super) fn apply(&self, content: &mut Content) {
        match self {
            Change::Write { offset, data } => content.write(data, *offset),
            Change::Clear { start, end } => content.clear(*start, *end),
            Change::Grow { size } => content.grow(*size),
            Change::Truncate { size } => content.set_size(*size),
        }
    }
}

/// A change to the directory that is not durable yet.
#[derive(Clone, Debug)]
pub(super) enum NameChange {
    Created { name: Arc<str>, inode: Inode },
    Removed { name: Arc<str>, inode: Inode },
    Renamed { from: Arc<str>, to: Arc<str>, inode: Inode },
}

impl NameChange {
    pub(super) fn inode(&self) -> Inode {
        match self {
            NameChange::Created { inode, .. }
            | NameChange::Removed { inode, .. }
            | NameChange::Renamed { inode, .. } => *inode,
        }
    }

    /// Applies the change if that makes sense without the changes before it that were lost: a name is given
    /// only if it is free, and only the file that was meant is removed or renamed.
    pub(super) fn apply(&self, names: &mut Names) {
        match self {
            NameChange::Created { name, inode } => {
                names.entry(Arc::clone(name)).or_insert(*inode);
            }
            NameChange::Removed { name, inode } => {
                if names.get(name) == Some(inode) {
                    names.remove(name);
                }
            }
            NameChange::Renamed { from, to, inode } => {
                if names.get(from) == Some(inode) {
                    names.remove(from);
                    names.insert(Arc::clone(to), *inode);
                }
            }
        }
    }
}

/// A file of the disk.
#[derive(Debug)]
pub(super) struct FileState {
    /// Its latest name, for messages.
    pub(super) name: Arc<str>,
    /// What reads see.
    pub(super) volatile: Arc<Content>,
    /// What every crash leaves.
    pub(super) durable: Arc<Content>,
    /// What a sync would make durable, in order. Changes that a failed sync has forgotten are in `volatile`
    /// alone.
    pub(super) pending: Vec<Change>,
    /// Whether a failed sync has forgotten changes, so that `volatile` is not `durable` and what is pending.
    has_forgotten: bool,
    /// How many open files refer to it.
    pub(super) handles: usize,
}

impl FileState {
    /// A file without anything volatile.
    pub(super) fn durable(name: Arc<str>, content: Arc<Content>) -> FileState {
        let volatile = Arc::clone(&content);
        FileState { name, volatile, durable: content, pending: Vec::new(), has_forgotten: false, handles: 0 }
    }

    fn change(&mut self, change: Change) {
        change.apply(Arc::make_mut(&mut self.volatile));
        self.pending.push(change);
    }

    /// Writes whole sectors, lengthening the file as needed.
    fn write(&mut self, bytes: &[u8], offset: u64) {
        if bytes.is_empty() {
            return;
        }
        let end = offset + bytes.len() as u64;
        match is_zero(bytes) {
            // Whole segments of zeros are written; they need not be kept.
            true => self.change(Change::Clear { start: offset, end }),
            false => self.change(Change::Write { offset, data: Arc::from(bytes) }),
        }
        self.grow(end);
    }

    fn grow(&mut self, size: u64) {
        if size > self.volatile.size() {
            self.change(Change::Grow { size });
        }
    }

    fn make_durable(&mut self) {
        if self.pending.is_empty() {
            return;
        }
        if self.has_forgotten {
            let durable = Arc::make_mut(&mut self.durable);
            self.pending.drain(..).for_each(|change| change.apply(durable));
        } else {
            self.pending.clear();
            self.durable = Arc::clone(&self.volatile);
        }
    }

    /// Gives up what is in memory alone: reads see what is durable, and what a sync would make so.
    fn evict(&mut self) {
        if !std::mem::take(&mut self.has_forgotten) {
            return;
        }
        self.volatile = Arc::clone(&self.durable);
        let volatile = Arc::make_mut(&mut self.volatile);
        self.pending.iter().for_each(|change| change.apply(volatile));
    }

    /// What Linux does after a failed write-back, of which some may have reached the disk, as `durable` says: the pages count as clean, and
    /// nobody will write them again. The size is another matter, since the file system's journal keeps it.
    fn forget_writes(&mut self, durable: Arc<Content>) {
        self.durable = durable;
        self.has_forgotten = true;
        self.pending.retain(|change| !matches!(change, Change::Write { .. } | Change::Clear { .. }));
    }
}

/// Who is told of every step before it is taken.
pub(super) type Watcher = Box<dyn FnMut(u64, &dyn Fn() -> CrashStates) + Send>;

/// A watcher, or none.
#[derive(Default)]
pub(super) struct Watched(pub(super) Option<Watcher>);

impl fmt::Debug for Watched {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_tuple("Watched").field(&self.0.is_some()).finish()
    }
}

/// A whole disk. Methods named after operations of the device expect that [`Disk::begin`] was called.
#[derive(Debug)]
pub(super) struct Disk {
    pub(super) seed: u64,
    random: Random,
    pub(super) files: BTreeMap<Inode, FileState>,
    next_inode: Inode,
    /// What is seen.
    pub(super) names: Names,
    /// What every crash leaves.
    pub(super) durable_names: Names,
    /// What syncing the directory would make durable, in order.
    pub(super) pending_names: Vec<NameChange>,
    pub(super) steps: u64,
    pub(super) crash_after: Option<u64>,
    pub(super) capacity: Option<u64>,
    pub(super) faults: Faults,
    pub(super) watched: Watched,
}

impl Disk {
    /// A disk on which everything is durable.
    pub(super) fn new(seed: u64, files: BTreeMap<Inode, FileState>, names: Names) -> Disk {
        let next_inode = files.last_key_value().map_or(0, |(inode, _)| inode + 1);
        let mut disk = Disk {
            seed,
            random: Random::new(seed),
            files,
            next_inode,
            names: names.clone(),
            durable_names: names,
            pending_names: Vec::new(),
            steps: 0,
            crash_after: None,
            capacity: None,
            faults: Faults::default(),
            watched: Watched::default(),
        };
        disk.collect();
        disk
    }

    pub(super) fn crashed(&self) -> bool {
        self.crash_after.is_some_and(|step| self.steps >= step)
    }

    /// Fails if the machine is off.
    pub(super) fn check_power(&self) -> io::Result<()> {
        if self.crashed() { Err(io::Error::other("simulated crash")) } else { Ok(()) }
    }

    /// Begins an operation: counts it, and finds the fault that strikes it.
    pub(super) fn begin(&mut self, operation: OperationKind) -> io::Result<Option<FaultKind>> {
        self.check_power()?;
        if operation.is_mutating() {
            if let Some(mut watcher) = self.watched.0.take() {
                watcher(self.steps, &|| CrashStates::of(self));
                self.watched.0 = Some(watcher);
            }
            self.steps += 1;
        }
        Ok(self.faults.strike(operation))
    }

    /// See [`SimulatedDevice::fingerprint`](super::SimulatedDevice::fingerprint).
    pub(super) fn fingerprint(&self) -> u128 {
        let mut hash = Xxh3::new();
        for (name, inode) in &self.names {
            hash.update(&(name.len() as u64).to_le_bytes());
            hash.update(name.as_bytes());
            if let Some(file) = self.files.get(inode) {
                file.volatile.hash(&mut hash);
            }
        }
        hash.digest128()
    }

    /// The file called `name`, as reads see the directory.
    pub(super) fn find(&self, name: &str) -> io::Result<Inode> {
        Ok(self.names.get(name).copied().ok_or(Errno::NOENT)?)
    }

    pub(super) fn file(&mut self, inode: Inode) -> io::Result<&mut FileState> {
        Ok(self.files.get_mut(&inode).ok_or(Errno::STALE)?)
    }

    pub(super) fn create(&mut self, name: &str) -> io::Result<Inode> {
        if self.names.contains_key(name) {
            return Err(Errno::EXIST.into());
        }
        let name: Arc<str> = Arc::from(name);
        let inode = self.add_file(&name, Arc::default());
        self.pending_names.push(NameChange::Created { name, inode });
        Ok(inode)
    }

    /// Adds a file, and its name to those that are seen.
    pub(super) fn add_file(&mut self, name: &Arc<str>, content: Arc<Content>) -> Inode {
        let inode = self.next_inode;
        self.next_inode += 1;
        self.files.insert(inode, FileState::durable(Arc::clone(name), content));
        self.names.insert(Arc::clone(name), inode);
        inode
    }

    pub(super) fn remove(&mut self, name: &str) -> io::Result<()> {
        let (name, inode) = self.names.remove_entry(name).ok_or(Errno::NOENT)?;
        self.pending_names.push(NameChange::Removed { name, inode });
        self.collect();
        Ok(())
    }

    pub(super) fn rename(&mut self, from: &str, to: &str) -> io::Result<()> {
        let inode = self.find(from)?;
        if from == to {
            return Ok(());
        }
        let (from, to): (Arc<str>, Arc<str>) = (Arc::from(from), Arc::from(to));
        self.file(inode)?.name = Arc::clone(&to);
        self.names.remove(&from);
        self.names.insert(Arc::clone(&to), inode);
        self.pending_names.push(NameChange::Renamed { from, to, inode });
        self.collect();
        Ok(())
    }

    pub(super) fn sync_directory(&mut self, fault: Option<FaultKind>) -> io::Result<()> {
        if let Some(fault) = fault {
            if fault == FaultKind::FailedSyncThenSuccess {
                let reached = names_after_failed_sync(&self.pending_names, &mut self.random);
                self.pending_names.clear();
                reached.iter().for_each(|change| change.apply(&mut self.durable_names));
                self.collect();
            }
            return Err(fault.error());
        }
        for change in std::mem::take(&mut self.pending_names) {
            change.apply(&mut self.durable_names);
        }
        self.collect();
        Ok(())
    }

    /// A handle of a file is given up.
    pub(super) fn close(&mut self, inode: Inode) {
        let Some(file) = self.files.get_mut(&inode) else { return };
        file.handles -= 1;
        if file.handles == 0 && self.names.get(&file.name) != Some(&inode) {
            self.collect();
        }
    }

    /// Frees the files that nothing refers to any more: no name, seen or durable or on its way, and no open
    /// handle.
    pub(super) fn collect(&mut self) {
        let mut named: BTreeSet<Inode> = self.reachable();
        named.extend(self.names.values());
        self.files.retain(|inode, file| file.handles > 0 || named.contains(inode));
    }

    /// The files that some crash would leave under a name.
    pub(super) fn reachable(&self) -> BTreeSet<Inode> {
        let durable = self.durable_names.values().copied();
        durable.chain(self.pending_names.iter().map(NameChange::inode)).collect()
    }

    pub(super) fn read(
        &mut self,
        inode: Inode,
        buffer: &mut [u8],
        offset: u64,
        fault: Option<FaultKind>,
    ) -> io::Result<usize> {
        let length = self.file(inode)?.volatile.read(buffer, offset);
        match fault {
            None => Ok(length),
            Some(FaultKind::Evicted) => {
                self.file(inode)?.evict();
                Ok(length)
            }
            Some(FaultKind::ShortWrite) => {
                Ok(self.random.below(length.div_ceil(SECTOR_BYTES)) * SECTOR_BYTES)
            }
            Some(fault) => Err(fault.error()),
        }
    }

    pub(super) fn write(
        &mut self,
        inode: Inode,
        bytes: &[u8],
        offset: u64,
        fault: Option<FaultKind>,
    ) -> io::Result<()> {
        let whole = (0, bytes.len());
        let (offset, stored, outcome) = match fault {
            None => (offset, vec![whole], Ok(())),
            Some(FaultKind::Misdirected(elsewhere)) => {
                (elsewhere - elsewhere % SECTOR_BYTES as u64, vec![whole], Ok(()))
            }
            Some(FaultKind::ShortWrite) => (
                offset,
                stored_of_short_write(bytes.len(), &mut self.random),
                Err(io::ErrorKind::WriteZero.into()),
            ),
            Some(fault) => return Err(fault.error()),
        };
        for (begin, end) in stored {
            let (start, length) = (offset.saturating_add(begin as u64), end - begin);
            let fitting = self.fitting(inode, start.saturating_add(length as u64))?.saturating_sub(start);
            let fitting = usize::try_from(fitting).unwrap_or(usize::MAX).min(length);
            self.file(inode)?.write(&bytes[begin..begin + fitting], start);
            if fitting < length {
                return Err(Errno::NOSPC.into());
            }
        }
        outcome
    }

    pub(super) fn sync(&mut self, inode: Inode, fault: Option<FaultKind>) -> io::Result<()> {
        let file = self.files.get_mut(&inode).ok_or(Errno::STALE)?;
        match fault {
            None => file.make_durable(),
            Some(fault) => {
                if matches!(fault, FaultKind::FailedSyncThenSuccess | FaultKind::FailedSyncReverted) {
                    file.forget_writes(after_failed_sync(inode, file, &mut self.random));
                }
                if fault == FaultKind::FailedSyncReverted {
                    file.evict();
                }
                return Err(fault.error());
            }
        }
        Ok(())
    }

    pub(super) fn allocate(&mut self, inode: Inode, size: u64) -> io::Result<()> {
        // A file system that has no room for all of it may keep what it has found, as ext4 does.
        let fitting = self.fitting(inode, size)?;
        self.file(inode)?.grow(fitting);
        if fitting < size { Err(Errno::NOSPC.into()) } else { Ok(()) }
    }

    pub(super) fn clear(&mut self, inode: Inode, size: u64) -> io::Result<()> {
        self.allocate(inode, size)?;
        self.file(inode)?.change(Change::Clear { start: 0, end: size });
        Ok(())
    }

    pub(super) fn truncate(&mut self, inode: Inode, size: u64) -> io::Result<()> {
        if self.fitting(inode, size)? < size {
            return Err(Errno::NOSPC.into());
        }
        let file = self.file(inode)?;
        if size != file.volatile.size() {
            file.change(Change::Truncate { size });
        }
        Ok(())
    }

    /// The largest size up to `size` that the file can have on a disk of this capacity.
    fn fitting(&mut self, inode: Inode, size: u64) -> io::Result<u64> {
        let Some(capacity) = self.capacity else { return Ok(size) };
        let own = blocks_bytes(self.file(inode)?.volatile.size());
        let free = capacity.saturating_sub(self.used());
        let largest = own + (free - free % BLOCK_BYTES as u64);
        Ok(size.min(largest))
    }

    /// Bytes in use: each file's size in whole blocks, holes included.
    pub(super) fn used(&self) -> u64 {
        let seen: BTreeSet<Inode> = self.names.values().copied().collect();
        let in_use = self.files.iter().filter(|(inode, file)| file.handles > 0 || seen.contains(inode));
        in_use.map(|(_, file)| blocks_bytes(file.volatile.size())).sum()
    }
}

/// What a write of so many bytes has stored that came back short, as ranges of them: a part at the beginning, all of it, or any sectors.
fn stored_of_short_write(length: usize, random: &mut Random) -> Vec<(usize, usize)> {
    let sectors = length / SECTOR_BYTES;
    match random.below(4) {
        0 | 1 => vec![(0, random.below(sectors) * SECTOR_BYTES)],
        2 => vec![(0, length)],
        _ => {
            let starts = (0..length).step_by(SECTOR_BYTES).filter(|_| random.below(2) == 0);
            starts.map(|start| (start, start + SECTOR_BYTES)).collect()
        }
    }
}

fn is_zero(bytes: &[u8]) -> bool {
    let (words, rest) = bytes.as_chunks::<64>();
    words.iter().all(|word| *word == [0; 64]) && rest.iter().all(|byte| *byte == 0)
}

fn blocks_bytes(size: u64) -> u64 {
    size.next_multiple_of(BLOCK_BYTES as u64)
}
