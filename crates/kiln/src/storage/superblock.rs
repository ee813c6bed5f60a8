//! The superblock: what must be known before the log can be read.
//!
//! Two 4 KiB slots in one file, written alternately, so that a torn write leaves the older one. The layout is
//! in `docs/format.md`, and so is when it is written: on the way of a commit only by the first one that needs a
//! bit of the flags.

use std::sync::Arc;

use super::record::{ADDRESS_BITS, Address, OBJECTS_MAX, VERSION_BITS};
use crate::device::{AlignedBuffer, BLOCK_BYTES, Device, DeviceFile, OpenMode};
use crate::error::{Error, ErrorKind, Result};
use crate::planted::{Bug, planted};

pub(crate) const FILE: &str = "superblock";
/// Its name while it is being made.
pub(crate) const UNFINISHED: &str = "superblock.new";
pub(crate) const MAGIC: [u8; 8] = *b"KILN-DB\0";
/// The newest format that this engine reads, and writes once a session may have been forgotten, or an object dropped: who does not know of the one would take it for
/// damage, and to who does not know of the other the catalog would make no sense.
pub(crate) const FORMAT: u32 = 5;
/// What it writes once rows may expire, which who does not know of that would not see.
const FORMAT_EXPIRING: u32 = 4;
/// What it writes once a snapshot was given a name or rows were loaded in bulk: who does not know of that would forget what the one needs, and
/// not miss the others.
const FORMAT_NAMED: u32 = 3;
/// What it writes once something has settled, which who does not know of that would miss, and what before.
const FORMAT_SETTLED: u32 = 2;
const FORMAT_UNSETTLED: u32 = 1;
#[cfg(test)]
pub(crate) const OFFSETS: [(&str, usize); 18] = [
    ("magic", 0),
    ("format", 8),
    ("flags", 12),
    ("generation", 16),
    ("database", 24),
    ("segment bytes", 40),
    ("hash seed", 48),
    ("begin", 56),
    ("known end", 64),
    ("known end checksum", 72),
    ("begin checksum", 76),
    ("clock", 80),
    ("checkpoint", 88),
    ("checkpoint end", 96),
    ("checkpoint checksum", 104),
    ("settled to", 112),
    ("loaded", 120),
    ("slot checksum", 124),
];
pub(crate) const SLOT_BYTES: usize = 128;
const CLEAN: u32 = 1;
const HAS_SNAPSHOTS: u32 = 2;
const HAS_EXPIRING: u32 = 4;
const HAS_FORGOTTEN: u32 = 8;
const HAS_DROPPED: u32 = 16;
const IS_BACKUP: u32 = 32;

/// The newest index checkpoint. Its end is 0 where there is none; before there were any, all of it was.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct CheckpointName {
    /// Counts the database's checkpoints from 1.
    pub(crate) number: u64,
    /// Where the log goes on that it says nothing of.
    pub(crate) end: Address,
    /// The checksum of its header.
    pub(crate) checksum: u32,
}

/// The superblock's contents.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Superblock {
    /// Counts the writes of the superblock.
    pub(crate) generation: u64,
    /// The database's identity, in every seal.
    pub(crate) database: u128,
    pub(crate) segment_bytes: u64,
    pub(crate) hash_seed: u64,
    /// Where the log begins: the start of a segment.
    pub(crate) begin: Address,
    /// Checksum of the seal before `begin`.
    pub(crate) begin_checksum: u32,
    /// The log is known to be durable up to here, so what is wrong below is damage and no torn tail.
    pub(crate) known_end: Address,
    /// Checksum of the last seal before `known_end`, as that was when the database was last opened, closed or copied. Nothing depends on it.
    pub(crate) known_end_checksum: u32,
    /// Closed in order: the log ends exactly at `known_end`.
    pub(crate) clean: bool,
    /// The clock when the database was closed in order.
    pub(crate) clock: u64,
    pub(crate) checkpoint: CheckpointName,
    /// The tree has what the tables' records before this address say; it may have more.
    pub(crate) settled_to: Address,
    /// The log may name snapshots; once set it stays.
    pub(crate) has_snapshots: bool,
    /// Rows may expire; once set it stays.
    pub(crate) has_expiring: bool,
    /// Sessions may have been forgotten; once set it stays.
    pub(crate) has_forgotten: bool,
    /// Objects may have been dropped; once set it stays.
    pub(crate) has_dropped: bool,
    /// A copy of an open database, which nobody has opened yet.
    pub(crate) is_backup: bool,
    /// The tree has the rows of the last object that was loaded in bulk, which is this one; 0: none was.
    pub(crate) loaded: u32,
    /// Not stored: where the other slot is, if it is damaged, and may have been the newer one. A torn write does not do that, since a slot's
    /// contents lie in one sector.
    pub(crate) damaged_slot: Option<u64>,
}

impl Superblock {
    pub(crate) fn encode(&self, out: &mut [u8]) {
        let mut put = |offset: usize, field: &[u8]| out[offset..offset + field.len()].copy_from_slice(field);
        put(0, &MAGIC);
        let format = match (self.has_snapshots || self.loaded > 0, self.settled_to) {
            _ if self.has_forgotten || self.has_dropped => FORMAT,
            _ if self.has_expiring => FORMAT_EXPIRING,
            (true, _) => FORMAT_NAMED,
            (false, 0) => FORMAT_UNSETTLED,
            (false, _) => FORMAT_SETTLED,
        };
        put(8, &format.to_le_bytes());
        let flag = |is_set: bool, flag: u32| if is_set { flag } else { 0 };
        put(
            12,
            &(flag(self.clean, CLEAN)
                | flag(self.has_snapshots, HAS_SNAPSHOTS)
                | flag(self.has_expiring, HAS_EXPIRING)
                | flag(self.has_forgotten, HAS_FORGOTTEN)
                | flag(self.has_dropped, HAS_DROPPED)
                | flag(self.is_backup, IS_BACKUP))
            .to_le_bytes(),
        );
        put(16, &self.generation.to_le_bytes());
        put(24, &self.database.to_le_bytes());
        put(40, &self.segment_bytes.to_le_bytes());
        put(48, &self.hash_seed.to_le_bytes());
        put(56, &self.begin.to_le_bytes());
        put(64, &self.known_end.to_le_bytes());
        put(72, &self.known_end_checksum.to_le_bytes());
        put(76, &self.begin_checksum.to_le_bytes());
        put(80, &self.clock.to_le_bytes());
        put(88, &self.checkpoint.number.to_le_bytes());
        put(96, &self.checkpoint.end.to_le_bytes());
        put(104, &self.checkpoint.checksum.to_le_bytes());
        put(112, &self.settled_to.to_le_bytes());
        put(120, &self.loaded.to_le_bytes());
        let checksum = crc32c::crc32c(&out[..124]);
        out[124..SLOT_BYTES].copy_from_slice(&checksum.to_le_bytes());
    }

    fn decode(bytes: &[u8]) -> Slot {
        let Some(bytes) = bytes.first_chunk::<SLOT_BYTES>() else { return Slot::Damaged };
        let u32_at = |offset: usize| u32::from_le_bytes(std::array::from_fn(|index| bytes[offset + index]));
        let u64_at = |offset: usize| u64::from_le_bytes(std::array::from_fn(|index| bytes[offset + index]));
        if bytes[..8] != MAGIC || crc32c::crc32c(&bytes[..124]) != u32_at(124) {
            return Slot::Damaged;
        }
        if u32_at(8) > FORMAT {
            return Slot::Newer(u32_at(8));
        }
        let superblock = Superblock {
            generation: u64_at(16),
            database: u128::from_le_bytes(std::array::from_fn(|index| bytes[24 + index])),
            segment_bytes: u64_at(40),
            hash_seed: u64_at(48),
            begin: u64_at(56),
            begin_checksum: u32_at(76),
            known_end: u64_at(64),
            known_end_checksum: u32_at(72),
            clean: u32_at(12) & CLEAN != 0,
            clock: u64_at(80),
            checkpoint: CheckpointName { number: u64_at(88), end: u64_at(96), checksum: u32_at(104) },
            settled_to: u64_at(112),
            has_snapshots: u32_at(12) & HAS_SNAPSHOTS != 0,
            has_expiring: u32_at(12) & HAS_EXPIRING != 0,
            has_forgotten: u32_at(12) & HAS_FORGOTTEN != 0,
            has_dropped: u32_at(12) & HAS_DROPPED != 0,
            is_backup: u32_at(12) & IS_BACKUP != 0,
            loaded: u32_at(120),
            damaged_slot: None,
        };
        if superblock.is_sane() { Slot::Valid(superblock) } else { Slot::Damaged }
    }

    /// The checkpoint, if there is one that the log continues: once the log begins behind its end, what lay between is
    /// dropped, and records refer to what the checkpoint does not know.
    pub(crate) fn usable_checkpoint(&self) -> Option<CheckpointName> {
        let named = self.checkpoint;
        let fits = (self.begin <= named.end || planted(Bug::CheckpointBeforeTruncation))
            && named.end <= self.known_end
            && named.end.is_multiple_of(BLOCK_BYTES as u64);
        (named.end != 0 && fits).then_some(named)
    }

    fn is_sane(&self) -> bool {
        self.segment_bytes.is_power_of_two()
            && (SEGMENT_BYTES_MIN..=SEGMENT_BYTES_MAX).contains(&self.segment_bytes)
            && self.begin.is_multiple_of(self.segment_bytes)
            && self.known_end.is_multiple_of(BLOCK_BYTES as u64)
            && self.begin <= self.known_end
            && self.settled_to < 1 << ADDRESS_BITS
            && self.known_end < 1 << ADDRESS_BITS
            && self.clock < 1 << VERSION_BITS
            && self.loaded < OBJECTS_MAX
            && self.generation < COUNT_END
            && self.checkpoint.number < COUNT_END
    }
}

/// No generation, nor number of a checkpoint, ever comes near it, counted up by one each time.
pub(crate) const COUNT_END: u64 = 1 << 63;
/// Bounds of the segment size.
pub(crate) const SEGMENT_BYTES_MIN: u64 = 16 << 10;
pub(crate) const SEGMENT_BYTES_MAX: u64 = 1 << 30;

enum Slot {
    Valid(Superblock),
    Newer(u32),
    Damaged,
}

/// The open superblock file.
pub(crate) struct SuperblockFile {
    file: Arc<dyn DeviceFile>,
    current: Superblock,
    /// What the other slot has; nothing if that is not known, or not valid.
    previous: Option<Superblock>,
    /// See [`Self::close`].
    is_closed: bool,
}

impl SuperblockFile {
    /// Makes the superblock of a new database durable, directory entry included.
    pub(crate) fn create(device: &dyn Device, first: Superblock) -> Result<SuperblockFile> {
        let doing = "creating the superblock";
        let make = || -> std::io::Result<()> {
            if device.list()?.iter().any(|name| name == UNFINISHED) {
                device.remove(UNFINISHED)?;
            }
            let file = device.open(UNFINISHED, OpenMode::Create)?;
            let mut slots = AlignedBuffer::new(2 * BLOCK_BYTES);
            first.encode(&mut slots[slot_offset(first.generation)..]);
            file.write_at(&slots, 0)?;
            file.sync()?;
            device.rename(UNFINISHED, FILE)?;
            device.sync_directory()
        };
        make().map_err(|error| Error::io(doing, error))?;
        let file = device.open(FILE, OpenMode::ReadWrite).map_err(|error| Error::io(doing, error))?;
        Ok(SuperblockFile { file, current: first, previous: None, is_closed: false })
    }

    /// Opens and reads the superblock: the newer of the valid slots.
    pub(crate) fn open(device: &dyn Device, mode: OpenMode) -> Result<SuperblockFile> {
        let doing = "opening the superblock";
        let file = device.open(FILE, mode).map_err(|error| Error::io(doing, error))?;
        let mut slots = AlignedBuffer::new(2 * BLOCK_BYTES);
        let read = file.read_at(&mut slots, 0).map_err(|error| Error::io(doing, error))?;
        let mut valid = Vec::new();
        let (mut damaged, mut zero) = (None, None);
        for slot in 0..2 {
            let offset = slot * BLOCK_BYTES;
            let bytes = slots[..read].chunks(BLOCK_BYTES).nth(slot).unwrap_or_default();
            match Superblock::decode(bytes) {
                Slot::Newer(format) => {
                    return Err(Error::new(
                        ErrorKind::Version,
                        format!(
                            "{} has format {format}; this Kiln reads up to format {FORMAT}. Use a newer Kiln",
                            device.describe(FILE)
                        ),
                    ));
                }
                Slot::Valid(found) => valid.push(found),
                Slot::Damaged if bytes.len() >= SLOT_BYTES && bytes.iter().all(|&byte| byte == 0) => {
                    zero = Some(offset as u64);
                }
                Slot::Damaged => damaged = Some(offset as u64),
            }
        }
        // Of two that are equally old the first.
        valid.sort_by_key(|found| std::cmp::Reverse(found.generation));
        let mut valid = valid.into_iter();
        let current = valid
            .next()
            // A slot that was never written is zeros, but not after the second write, which goes to it.
            .map(|current| {
                let damaged_slot = damaged.or(zero.filter(|_| current.generation > 1));
                // The damaged one may be of an opening since, after which it is a backup no longer.
                let is_backup = current.is_backup && damaged_slot.is_none();
                Superblock { is_backup, damaged_slot, ..current }
            })
            .ok_or_else(|| Error::corrupted(&device.describe(FILE), 0, "neither of its slots is valid"))?;
        Ok(SuperblockFile { file, current, previous: valid.next(), is_closed: false })
    }

    pub(crate) fn current(&self) -> &Superblock {
        &self.current
    }

    /// Writes the current slot once more. If its sync failed, the operating system may still show it and never
    /// write it; then the next update, which goes to the other slot, would overwrite the only durable one.
    pub(crate) fn rewrite(&self) -> Result<()> {
        self.write(&self.current)
    }

    fn write(&self, superblock: &Superblock) -> Result<()> {
        let mut slot = AlignedBuffer::new(BLOCK_BYTES);
        superblock.encode(&mut slot);
        self.file
            .write_at(&slot, slot_offset(superblock.generation) as u64)
            .and_then(|()| if planted(Bug::SuperblockNotSynced) { Ok(()) } else { self.file.sync() })
            .map_err(|error| Error::io("writing the superblock", error))
    }

    /// Changes the superblock durably.
    ///
    /// # Errors
    /// `Aborted` once it is [closed](Self::close).
    pub(crate) fn update(&mut self, change: impl FnOnce(&mut Superblock)) -> Result<()> {
        if self.is_closed {
            return Err(Error::closed());
        }
        let mut next = self.current.clone();
        change(&mut next);
        next.generation += 1;
        next.damaged_slot = None;
        // If this fails, it may be there or not.
        self.previous = None;
        self.write(&next)?;
        self.previous = Some(std::mem::replace(&mut self.current, next));
        Ok(())
    }

    /// Says what stays said from then on, durably and in both slots: damage to one of them is not to bring back the time before. Nothing is
    /// written if both say it already.
    pub(crate) fn say_for_good(
        &mut self,
        is_said: impl Fn(&Superblock) -> bool,
        say: impl Fn(&mut Superblock),
    ) -> Result<()> {
        while !(is_said(&self.current) && self.previous.as_ref().is_some_and(&is_said)) {
            self.update(&say)?;
        }
        Ok(())
    }

    /// Leaves it as it is: from now on the directory may be somebody else's, whatever handles of this opening are still held.
    pub(crate) fn close(&mut self) {
        self.is_closed = true;
    }
}

fn slot_offset(generation: u64) -> usize {
    (generation % 2) as usize * BLOCK_BYTES
}
