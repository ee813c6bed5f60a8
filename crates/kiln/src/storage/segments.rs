//! Segments: the log's files.
//!
//! The log is cut into files of a fixed size, named after their place. A segment is *prepared* before any
//! record is given an address in it: its space is allocated (so that a full disk shows before a commit depends
//! on it), its name is durable, and where hardenings are small its bytes are written with zeros, which halves
//! the cost of a sync. A segment in which nothing is needed any more becomes a *spare*, which a later preparation
//! zeroes and uses again: to give it back and to take new space instead costs more on every file system.
//!
//! Invariant: in a prepared segment every sector beyond the last extent is zero. Recovery tells an unfinished
//! write from damage by it.

mod preparing;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::ops::Deref;
use std::sync::Arc;

use super::names::Names;
use super::record::{ADDRESS_BITS, Address};
use super::seal::{SEAL_BYTES, Seal};
use crate::device::{
    AlignedBuffer, BLOCK_BYTES, Device, DeviceFile, OpenMode, ReadQueue, SECTOR_BYTES, write_zeros,
};
use crate::error::{Error, ErrorKind, Result};
use crate::planted::{Bug, planted};
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use crate::sync::{Mutex, RwLock};

const PREFIX: &str = "segment-";
const SPARE_PREFIX: &str = "spare-";
const UNFINISHED: &str = "segment.new";
/// What the block at the log's end is filled with while what lies behind it is cleared.
const UNFINISHED_BYTE: u8 = 0xFF;

/// The name of the segment with this number.
pub(crate) fn name_of(number: u64) -> String {
    format!("{PREFIX}{number:08}")
}

fn number_of(name: &str) -> Option<u64> {
    name.strip_prefix(PREFIX)?.parse().ok().filter(|&number| name_of(number) == name)
}

/// The name that the segment with this number has once it is spare.
fn spare_name_of(number: u64) -> String {
    format!("{SPARE_PREFIX}{number:08}")
}

/// The number in the name of a spare.
fn spare_number_of(name: &str) -> Option<u64> {
    name.strip_prefix(SPARE_PREFIX)?.parse().ok().filter(|&number| spare_name_of(number) == name)
}

/// True for the name of a file that holds part of the log.
pub(crate) fn is_segment(name: &str) -> bool {
    number_of(name).is_some()
}

/// True for the name of a file that holds nothing yet.
pub(crate) fn is_unfinished(name: &str) -> bool {
    name == UNFINISHED || spare_number_of(name).is_some()
}

fn cutting_failed(error: io::Error) -> Error {
    Error::io("cutting the unfinished end off the log", error)
}

/// The open segments of a database.
pub(crate) struct Segments {
    /// Once they are uncertain nothing more is written: it might be without a name.
    names: Arc<Names>,
    segment_bytes: u64,
    files: RwLock<BTreeMap<u64, Arc<dyn DeviceFile>>>,
    prepared_end: AtomicU64,
    /// The numbers in the names of the spares.
    spares: Mutex<BTreeSet<u64>>,
    /// A segment may have been left unfinished.
    has_unfinished: AtomicBool,
    /// True once the directory may be somebody else's: no segment comes or goes any more.
    preparing: Mutex<bool>,
    /// The disk had no space for the last segment that was to be prepared.
    disk_full: AtomicBool,
    /// So many times the segments are held: what is dropped meanwhile is not used again.
    holds: AtomicU64,
}

/// The segments of some moment, which stay readable until this is dropped, also those that the log drops meanwhile.
pub(crate) struct Held<'a> {
    segments: Segments,
    held: &'a Segments,
}

impl Deref for Held<'_> {
    type Target = Segments;

    fn deref(&self) -> &Segments {
        &self.segments
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.held.holds.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Segments {
    /// Opens all segments there are.
    pub(crate) fn open(device: Arc<dyn Device>, segment_bytes: u64, mode: OpenMode) -> Result<Segments> {
        let names = device.list().map_err(|error| Error::io("listing the database's files", error))?;
        let mut files = BTreeMap::new();
        // Of others no address can be: they are not the log's.
        let is_addressed = |number: &u64| *number < (1 << ADDRESS_BITS) / segment_bytes;
        for number in names.iter().filter_map(|name| number_of(name)).filter(is_addressed) {
            let name = name_of(number);
            let doing = |error| Error::io(format_args!("opening {}", device.describe(&name)), error);
            let file = device.open(&name, mode).map_err(doing)?;
            // It had its whole size before it had its name.
            let size = file.size().map_err(doing)?;
            if size < segment_bytes && !planted(Bug::ShortSegmentAccepted) {
                let what =
                    format_args!("the file is cut short: a segment has {segment_bytes} bytes, it has {size}");
                return Err(Error::corrupted(&device.describe(&name), size, what));
            }
            files.insert(number, file);
        }
        let spares = names.iter().filter_map(|name| spare_number_of(name)).collect();
        let has_unfinished = names.iter().any(|name| name == UNFINISHED);
        Ok(Segments {
            spares: Mutex::new(spares),
            has_unfinished: AtomicBool::new(has_unfinished),
            ..Segments::of(Names::new(device), segment_bytes, files)
        })
    }

    fn of(names: Arc<Names>, segment_bytes: u64, files: BTreeMap<u64, Arc<dyn DeviceFile>>) -> Segments {
        Segments {
            names,
            segment_bytes,
            files: RwLock::new(files),
            prepared_end: AtomicU64::new(0),
            spares: Mutex::new(BTreeSet::new()),
            has_unfinished: AtomicBool::new(false),
            preparing: Mutex::new(false),
            disk_full: AtomicBool::new(false),
            holds: AtomicU64::new(0),
        }
    }

    /// Holds the segments that there are now.
    pub(crate) fn hold(&self) -> Held<'_> {
        let _none_is_dropped = self.preparing.lock();
        self.hold_now()
    }

    /// The same, unless it has to be waited for who makes or drops some.
    pub(crate) fn try_hold(&self) -> Option<Held<'_>> {
        let _none_is_dropped = self.preparing.try_lock()?;
        Some(self.hold_now())
    }

    fn hold_now(&self) -> Held<'_> {
        self.holds.fetch_add(1, Ordering::SeqCst);
        let files = self.files.read().clone();
        Held { segments: Segments::of(Arc::clone(&self.names), self.segment_bytes, files), held: self }
    }

    /// The names of all the database's files.
    pub(crate) fn names(&self) -> &Arc<Names> {
        &self.names
    }

    /// The device, for who goes on using it.
    pub(crate) fn device_handle(&self) -> Arc<dyn Device> {
        Arc::clone(self.names.device())
    }

    pub(crate) fn device(&self) -> &dyn Device {
        &**self.names.device()
    }

    pub(crate) fn segment_bytes(&self) -> u64 {
        self.segment_bytes
    }

    /// Where the prepared segments end.
    pub(crate) fn prepared_end(&self) -> Address {
        self.prepared_end.load(Ordering::SeqCst)
    }

    /// True while the disk has no space for another segment, as far as is known.
    pub(crate) fn disk_is_full(&self) -> bool {
        self.disk_full.load(Ordering::SeqCst)
    }

    /// A queue for reads of the segments.
    pub(crate) fn read_queue(&self) -> Box<dyn ReadQueue> {
        self.device().read_queue()
    }

    /// The device's time of day.
    pub(crate) fn time_us(&self) -> u64 {
        self.device().time_us()
    }

    pub(crate) fn numbers(&self) -> Vec<u64> {
        self.files.read().keys().copied().collect()
    }

    /// Bytes that the segments take on the device, spares included.
    pub(crate) fn disk_bytes(&self) -> u64 {
        (self.files.read().len() + self.spares.lock().len()) as u64 * self.segment_bytes
    }

    /// How errors call the file at `address`, and the offset in it.
    pub(crate) fn place(&self, address: Address) -> (String, u64) {
        (self.device().describe(&name_of(address / self.segment_bytes)), address % self.segment_bytes)
    }

    /// The error for damage at `address`.
    pub(crate) fn corrupted(&self, address: Address, what: impl std::fmt::Display) -> Error {
        let (file, offset) = self.place(address);
        self.names.corrupted(&file, offset, what)
    }

    /// The error for what could not be read at `address`. That a segment is missing is damage, which no second try mends.
    pub(crate) fn unreadable(&self, address: Address, error: io::Error) -> Error {
        if !self.exists(address) {
            return self.corrupted(address, "the segment is missing");
        }
        let (file, offset) = self.place(address);
        Error::io(format_args!("reading {file} at offset {offset}"), error)
    }

    pub(crate) fn exists(&self, address: Address) -> bool {
        self.files.read().contains_key(&(address / self.segment_bytes))
    }

    /// Whether there is a later segment than that at `address`.
    pub(crate) fn is_followed(&self, address: Address) -> bool {
        self.files.read().keys().next_back().is_some_and(|&last| last > address / self.segment_bytes)
    }

    /// The file of the segment at `address`.
    pub(crate) fn file(&self, address: Address) -> io::Result<Arc<dyn DeviceFile>> {
        let number = address / self.segment_bytes;
        self.files.read().get(&number).cloned().ok_or_else(|| {
            io::Error::new(
                io::ErrorKind::NotFound,
                format!("{} is missing", self.device().describe(&name_of(number))),
            )
        })
    }

    /// Reads `buffer` from `address` on, within one segment; what lies beyond the file's end reads as zeros.
    pub(crate) fn read(&self, address: Address, buffer: &mut [u8]) -> io::Result<()> {
        let (file, offset) = (self.file(address)?, address % self.segment_bytes);
        let mut done = file.read_at(buffer, offset)?;
        while done < buffer.len() {
            let size = file.size()?;
            if offset + done as u64 >= size {
                buffer[done..].fill(0);
                break;
            }
            // A read may come back short before the file ends; whole blocks of it count.
            done -= done % BLOCK_BYTES;
            match file.read_at(&mut buffer[done..], offset + done as u64)? {
                more if more < BLOCK_BYTES && offset + ((done + more) as u64) < size => {
                    return Err(io::Error::new(
                        io::ErrorKind::UnexpectedEof,
                        "the device returns less than a block",
                    ));
                }
                more => done += more,
            }
        }
        Ok(())
    }

    /// Makes the names of the files durable, or has nothing written any more.
    pub(crate) fn sync_names(&self) -> io::Result<()> {
        if planted(Bug::DirectorySyncSkipped) {
            return Ok(());
        }
        self.names.sync()
    }

    /// Fails once a sync of the directory has failed.
    pub(crate) fn check_names(&self) -> io::Result<()> {
        self.names.check()
    }

    /// Writes `buffer` at `address`, within one segment. Durable after [`Self::sync`].
    pub(crate) fn write(&self, address: Address, buffer: &[u8]) -> io::Result<()> {
        self.check_names()?;
        self.file(address)?.write_at(buffer, address % self.segment_bytes)
    }

    /// Makes what was written to the segment at `address` durable.
    pub(crate) fn sync(&self, address: Address) -> io::Result<()> {
        if planted(Bug::SyncSkipped) {
            return Ok(());
        }
        self.file(address)?.sync()
    }

    /// Closes the file of the segment at `address`, for who writes no more to it and reads nothing of it: a copy of a long log would have as many
    /// files open as the log.
    pub(crate) fn let_go(&self, address: Address) {
        self.files.write().remove(&(address / self.segment_bytes));
    }

    /// Waits for who is preparing a segment, or dropping some; nobody does from here on, and what can no longer be read is no damage.
    pub(crate) fn close(&self) {
        *self.preparing.lock() = true;
        self.names.let_go();
    }

    /// Writes the extent `start..end`, whose seal has this checksum, once more, and makes it durable. The last extent may
    /// have been in flight when the last process ended, or its sync may have failed: then the operating system may
    /// still show it, call it clean, and never write it. Every extent before was durable before the last was begun.
    ///
    /// It may also have given it up since it was read, and show now what the disk has. So what is read is written only if it is still that extent.
    ///
    /// # Errors
    /// `Io`, also where it is not. Then nothing was written, and the next opening sees what the disk has.
    pub(crate) fn rewrite(&self, start: Address, end: Address, seal_checksum: u32) -> Result<()> {
        if planted(Bug::LastExtentNotRewritten) {
            return Ok(());
        }
        let failed = |error| Error::io("making the end of the log durable", error);
        let mut bytes = AlignedBuffer::new((end - start) as usize);
        self.read(start, &mut bytes).map_err(failed)?;
        let is_the_extent = Seal::decode(&bytes).is_ok_and(|(seal, checksum)| {
            checksum == seal_checksum
                && seal.end() == end
                && crc32c::crc32c(&bytes[SEAL_BYTES as usize..]) == seal.data_checksum
        });
        if !is_the_extent {
            let (file, offset) = self.place(start);
            let what = format!(
                "{file} does not read at offset {offset} as it did a moment before, as after a sync that failed. Nothing was changed; open the database again"
            );
            return Err(Error::new(ErrorKind::Io, what));
        }
        self.write(start, &bytes).and_then(|()| self.sync(start)).map_err(failed)
    }

    /// After recovery: the log ends at `end`. Drops segments that hold nothing: the first of them once all others are gone for good, since whoever
    /// finds a later one knows that it was there.
    pub(crate) fn cut_at(&self, end: Address) -> Result<()> {
        let keep = end.div_ceil(self.segment_bytes);
        let extra: Vec<u64> = self.numbers().into_iter().filter(|&number| number >= keep).collect();
        let cut = || -> io::Result<()> {
            for (index, &number) in extra.iter().enumerate().rev() {
                if index == 0 && extra.len() > 1 {
                    self.sync_names()?;
                }
                self.files.write().remove(&number);
                self.device().remove(&name_of(number))?;
            }
            if !extra.is_empty() {
                self.sync_names()?;
            }
            Ok(())
        };
        cut().map_err(cutting_failed)?;
        self.prepared_end.store(keep * self.segment_bytes, Ordering::SeqCst);
        Ok(())
    }

    /// Where the segments end that are prepared behind a log that ends at `end`.
    pub(crate) fn prepared_behind(&self, end: Address) -> Address {
        let mut prepared = end.next_multiple_of(self.segment_bytes);
        while self.exists(prepared) {
            prepared += self.segment_bytes;
        }
        prepared
    }

    /// Makes every sector behind the log's end zero, durably, after the last process has not ended in order. `is_written`: some read as
    /// something else.
    ///
    /// If a sync of the zeros fails, the operating system may go on showing them and never write them. So the block at the end, which
    /// the next extent overwrites whatever its length, tells of what lies behind: it is durably not zero before the others are
    /// cleared, and stays so until they are; whoever opens the database in between reads it and clears them all once more. It is itself cleared
    /// each time, since nothing tells of it. (Rejected: to clear the rest of the segment each time, which may be a gigabyte.)
    pub(crate) fn clear_behind(&self, end: Address, is_written: bool) -> Result<()> {
        if end.is_multiple_of(self.segment_bytes) || planted(Bug::TailNotCut) {
            return Ok(());
        }
        let first = end % self.segment_bytes;
        let others = first + BLOCK_BYTES as u64;
        let clear = || -> io::Result<()> {
            let file = self.file(end)?;
            if is_written {
                let mut block = AlignedBuffer::new(BLOCK_BYTES);
                self.read(end, &mut block)?;
                if block.iter().all(|&byte| byte == 0) {
                    // Not its first sector: without a seal it is of no extent.
                    block[SECTOR_BYTES..].fill(UNFINISHED_BYTE);
                }
                file.write_at(&block, first)?;
                file.sync()?;
                write_zeros(&*file, others, self.segment_bytes)?;
                file.sync()?;
            }
            write_zeros(&*file, first, others)?;
            file.sync()
        };
        clear().map_err(cutting_failed)
    }
}

#[cfg(test)]
mod tests {
    use rustix::io::Errno;

    use super::preparing::SPARES_MAX;
    use super::*;
    use crate::device::{Fault, FaultKind, OperationKind, SimulatedDevice};

    const SEGMENT_BYTES: usize = 64 << 10;

    fn one_segment(disk: &SimulatedDevice) -> Segments {
        disk.set_bytes(&name_of(0), vec![7; SEGMENT_BYTES]);
        Segments::open(Arc::new(disk.clone()), SEGMENT_BYTES as u64, OpenMode::Read).expect("it is whole")
    }

    #[test]
    fn what_lies_beyond_a_files_end_reads_as_zeros() {
        let disk = SimulatedDevice::new(1);
        let segments = one_segment(&disk);
        let mut buffer = AlignedBuffer::new(2 * BLOCK_BYTES);
        disk.set_bytes(&name_of(0), vec![7; BLOCK_BYTES]);
        segments.read(0, &mut buffer).expect("what is there is read");
        assert!(buffer[..BLOCK_BYTES].iter().all(|&byte| byte == 7));
        assert!(buffer[BLOCK_BYTES..].iter().all(|&byte| byte == 0));
    }

    #[test]
    fn a_device_that_returns_less_and_less_is_an_error() {
        let disk = SimulatedDevice::new(1);
        let segments = one_segment(&disk);
        disk.inject(Fault {
            operation: OperationKind::Read,
            nth: 1,
            kind: FaultKind::ShortWrite,
            sticky: true,
        });
        let mut buffer = AlignedBuffer::new(BLOCK_BYTES);
        let error = segments.read(0, &mut buffer).expect_err("nothing can be read");
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
        disk.clear_faults();
        segments.read(0, &mut buffer).expect("it is over");
    }

    #[test]
    fn once_closed_no_segment_is_prepared_or_dropped() {
        let disk = SimulatedDevice::new(1);
        let segments =
            Segments::open(Arc::new(disk.clone()), SEGMENT_BYTES as u64, OpenMode::ReadWrite).unwrap();
        (0..2).for_each(|_| segments.prepare_next(true).unwrap());
        let before = disk.list().unwrap();
        segments.close();
        let outcomes = [segments.prepare_next(true), segments.drop_before(SEGMENT_BYTES as u64)];
        assert!(outcomes.iter().all(Result::is_err), "{outcomes:?}");
        assert_eq!(disk.list().unwrap(), before);
    }

    /// The first of those behind the log's end went first: a crash left a gap there, as if a segment had been lost.
    #[test]
    fn c9_what_is_cut_off_leaves_no_gap_behind_the_end_whenever_a_crash_comes() {
        let whole = SimulatedDevice::new(1);
        let prepare = |disk: &SimulatedDevice| {
            Segments::open(Arc::new(disk.clone()), SEGMENT_BYTES as u64, OpenMode::ReadWrite).unwrap()
        };
        let segments = prepare(&whole);
        (0..4).for_each(|_| segments.prepare_next(true).unwrap());
        for steps in 0..8 {
            for seed in 0..20 {
                let disk = whole.after_crash_seeded(seed);
                let segments = prepare(&disk);
                disk.crash_after(disk.steps() + steps);
                let _ = segments.cut_at(SEGMENT_BYTES as u64);
                let left = prepare(&disk.after_crash_seeded(seed)).numbers();
                assert!(left == [0] || left.starts_with(&[0, 1]), "{steps} steps: {left:?}");
            }
        }
    }

    #[test]
    fn a_short_read_goes_on_up_to_a_files_odd_end() {
        let disk = SimulatedDevice::new(1);
        let segments = one_segment(&disk);
        disk.set_bytes(&name_of(0), [7; 100]);
        disk.inject(Fault {
            operation: OperationKind::Read,
            nth: 1,
            kind: FaultKind::ShortWrite,
            sticky: false,
        });
        let mut buffer = AlignedBuffer::new(BLOCK_BYTES);
        segments.read(0, &mut buffer).expect("the second read returns all there is");
        assert!(buffer[..100].iter().all(|&byte| byte == 7) && buffer[100..].iter().all(|&byte| byte == 0));
    }

    #[test]
    fn a_spare_that_cannot_be_used_again_does_not_stand_in_the_way() {
        for (zero, operation) in [(true, OperationKind::Write), (false, OperationKind::Allocate)] {
            let no_quota = FaultKind::Error(Errno::DQUOT.raw_os_error());
            for kind in [FaultKind::ENOSPC, no_quota, FaultKind::EIO] {
                let disk = SimulatedDevice::new(1);
                let segments =
                    Segments::open(Arc::new(disk.clone()), SEGMENT_BYTES as u64, OpenMode::ReadWrite)
                        .unwrap();
                (0..3).for_each(|_| segments.prepare_next(zero).unwrap());
                segments.drop_before(2 * SEGMENT_BYTES as u64).unwrap();
                assert_eq!(segments.disk_bytes(), disk.used_bytes());
                let before = disk.list().unwrap();
                disk.inject(Fault { operation, nth: 1, kind, sticky: false });
                // Where clearing takes new space, as on file systems that never write in place, to remove one makes it.
                assert_eq!(segments.prepare_next(zero).is_ok(), kind != FaultKind::EIO);
                let after = disk.list().unwrap();
                let first = before.iter().find(|name| spare_number_of(name).is_some()).unwrap();
                assert!(!after.contains(first), "{first} is to be gone: {after:?}");
                segments.prepare_next(zero).unwrap();
                assert_eq!(segments.disk_bytes(), disk.used_bytes());
            }
        }
    }

    /// Whoever has used up what he may have was told so, and nothing was done to make room.
    #[test]
    fn a_disk_is_full_for_who_may_have_no_more_of_it() {
        for errno in [Errno::NOSPC, Errno::DQUOT, Errno::FBIG, Errno::IO] {
            let is_full = errno != Errno::IO;
            let disk = SimulatedDevice::new(1);
            let segments = one_segment(&disk);
            let kind = FaultKind::Error(errno.raw_os_error());
            disk.inject(Fault { operation: OperationKind::Allocate, nth: 1, kind, sticky: false });
            let error = segments.prepare_next(true).unwrap_err();
            assert_eq!(error.kind() == crate::ErrorKind::NoSpace, is_full);
            assert_eq!(segments.disk_is_full(), is_full);
            assert_eq!(disk.list().unwrap().contains(&UNFINISHED.to_owned()), !is_full);
            segments.prepare_next(true).unwrap();
            assert!(!segments.disk_is_full());
            assert!(!disk.list().unwrap().contains(&UNFINISHED.to_owned()));
        }
    }

    #[test]
    fn a_spare_is_used_again_and_zero_and_only_a_few_are_kept() {
        for zero in [true, false] {
            let disk = SimulatedDevice::new(1);
            let segments =
                Segments::open(Arc::new(disk.clone()), SEGMENT_BYTES as u64, OpenMode::ReadWrite).unwrap();
            for number in 0..7 {
                segments.prepare_next(zero).unwrap();
                let start = number * SEGMENT_BYTES as u64;
                segments.write(start, &AlignedBuffer::from(&[7; SEGMENT_BYTES][..])).unwrap();
                segments.sync(start).unwrap();
            }
            segments.drop_before(6 * SEGMENT_BYTES as u64).unwrap();
            let spares = |disk: &SimulatedDevice| {
                disk.list().unwrap().iter().filter(|name| spare_number_of(name).is_some()).count()
            };
            assert_eq!(spares(&disk), SPARES_MAX);
            segments.prepare_next(zero).unwrap();
            assert_eq!(spares(&disk), SPARES_MAX - 1);
            // It was zero before it had its name: no crash leaves anything else.
            for seed in 0..100 {
                let state = disk.after_crash_seeded(seed);
                let mut bytes = AlignedBuffer::new(SEGMENT_BYTES);
                let file = state.open(&name_of(7), OpenMode::Read).unwrap();
                assert_eq!(file.read_at(&mut bytes, 0).unwrap(), SEGMENT_BYTES);
                assert!(bytes.iter().all(|&byte| byte == 0));
            }
        }
    }

    /// The names of a long log's files are many.
    #[test]
    fn to_prepare_a_segment_does_not_list_the_directory() {
        let disk = SimulatedDevice::new(1);
        let segments =
            Segments::open(Arc::new(disk.clone()), SEGMENT_BYTES as u64, OpenMode::ReadWrite).unwrap();
        disk.inject(Fault { operation: OperationKind::List, nth: 1, kind: FaultKind::EIO, sticky: true });
        for number in 0..20 {
            segments.prepare_next(true).unwrap();
            segments.drop_before(number * SEGMENT_BYTES as u64 / 2).unwrap();
        }
        segments.remove_spares().unwrap();
        assert_eq!(disk.faults_fired(), 0);
    }
}
