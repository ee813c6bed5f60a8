//! Segments come and go: prepared before the log gets there, of a spare if there is one; dropped, and kept as a spare or not, when nothing in them is needed.
//!
//! One at a time does either, and nobody once the database is closed.

use std::io;
use std::sync::Arc;

use rustix::io::Errno;

use super::{Segments, UNFINISHED, name_of, spare_name_of};
use crate::device::{DeviceError, DeviceFile, OpenMode, write_zeros};
use crate::error::{Error, Result, is_disk_full};
use crate::planted::{Bug, planted};
use crate::storage::record::Address;
use crate::sync::MutexGuard;
use crate::sync::atomic::Ordering;

/// The process, or the system, had no descriptor or memory left just then, which says nothing of the file.
fn lacks_resources(error: &io::Error) -> bool {
    let passing = [Errno::MFILE, Errno::NFILE, Errno::NOMEM].map(Errno::raw_os_error);
    DeviceError::of(error).and_then(DeviceError::raw_os_error).is_some_and(|errno| passing.contains(&errno))
}

/// More spares are given back to the file system.
pub(super) const SPARES_MAX: usize = 4;

impl Segments {
    /// Prepares the segment in which a log that ends at `end` goes on, if it is not there.
    pub(crate) fn prepare_next_after(&self, end: Address) -> Result<()> {
        match self.prepared_end() > end {
            true => Ok(()),
            false => self.prepare_next(true),
        }
    }

    fn begin_preparing(&self) -> Result<MutexGuard<'_, bool>> {
        let is_closed = self.preparing.lock();
        if *is_closed { Err(Error::closed()) } else { Ok(is_closed) }
    }

    /// Prepares the segment at the end of the prepared ones. With `zero`, its bytes are written too.
    ///
    /// # Errors
    /// [`ErrorKind::NoSpace`](crate::ErrorKind::NoSpace) if the disk is full; nothing has changed then, and a
    /// later call may succeed.
    pub(crate) fn prepare_next(&self, zero: bool) -> Result<()> {
        let _one_at_a_time = self.begin_preparing()?;
        let start = self.prepared_end();
        let name = name_of(start / self.segment_bytes);
        let prepared = self.prepare(&name, zero);
        let full = prepared.as_ref().is_err_and(is_disk_full);
        self.disk_full.store(full, Ordering::SeqCst);
        let file = prepared
            .map_err(|error| Error::io(format_args!("preparing {}", self.device().describe(&name)), error))?;
        self.files.write().insert(start / self.segment_bytes, file);
        self.prepared_end.store(start + self.segment_bytes, Ordering::SeqCst);
        Ok(())
    }

    fn prepare(&self, name: &str, zero: bool) -> io::Result<Arc<dyn DeviceFile>> {
        self.check_names()?;
        while let Some(spare) = self.first_spare() {
            let error = match self.prepare_from(&spare_name_of(spare), name, zero) {
                Ok(file) => {
                    self.spares.lock().remove(&spare);
                    return Ok(file);
                }
                Err(error) => error,
            };
            self.check_names()?;
            if lacks_resources(&error) {
                return Err(error);
            }
            // It may be the spare that is bad. And where clearing takes new space, as on a file system that never writes
            // in place, removing it makes some.
            self.remove_spare(spare)?;
            if !is_disk_full(&error) {
                return Err(error);
            }
        }
        if self.has_unfinished.load(Ordering::Relaxed) {
            self.remove_if_there(UNFINISHED)?;
        }
        self.has_unfinished.store(true, Ordering::Relaxed);
        let file = self.prepare_from(UNFINISHED, name, zero).inspect_err(|error| {
            if is_disk_full(error) {
                // Give back what little was taken; the disk is full. A failure here changes nothing.
                let _ = self.device().remove(UNFINISHED);
            }
        })?;
        self.has_unfinished.store(false, Ordering::Relaxed);
        Ok(file)
    }

    fn first_spare(&self) -> Option<u64> {
        self.spares.lock().first().copied()
    }

    fn remove_spare(&self, spare: u64) -> io::Result<()> {
        self.remove_if_there(&spare_name_of(spare))?;
        self.spares.lock().remove(&spare);
        Ok(())
    }

    fn remove_if_there(&self, name: &str) -> io::Result<()> {
        match self.device().remove(name) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    /// Makes the file called `from`, a spare or a new one, the segment called `name`.
    fn prepare_from(&self, from: &str, name: &str, zero: bool) -> io::Result<Arc<dyn DeviceFile>> {
        let has_old_bytes = from != UNFINISHED;
        let mode = if has_old_bytes { OpenMode::ReadWrite } else { OpenMode::Create };
        let file = self.device().open(from, mode)?;
        match has_old_bytes && !zero && !planted(Bug::SpareNotZeroed) {
            true => file.clear(self.segment_bytes)?,
            false => file.allocate(self.segment_bytes)?,
        }
        if zero && !(has_old_bytes && planted(Bug::SpareNotZeroed)) {
            write_zeros(&*file, 0, self.segment_bytes)?;
        }
        if !planted(Bug::SegmentSyncSkipped) {
            file.sync()?;
        }
        self.device().rename(from, name)?;
        self.sync_names()?;
        Ok(file)
    }

    /// Removes the spares.
    pub(crate) fn remove_spares(&self) -> Result<()> {
        let _one_at_a_time = self.begin_preparing()?;
        let remove = || -> io::Result<()> {
            while let Some(spare) = self.first_spare() {
                self.remove_spare(spare)?;
            }
            self.sync_names()
        };
        remove().map_err(|error| Error::io("removing spare segments of the log", error))
    }

    /// Drops the segments before `begin`; a few of them stay as spares.
    pub(crate) fn drop_before(&self, begin: Address) -> Result<()> {
        let _one_at_a_time = self.begin_preparing()?;
        let numbers: Vec<u64> =
            self.numbers().into_iter().filter(|number| (number + 1) * self.segment_bytes <= begin).collect();
        if numbers.is_empty() {
            return Ok(());
        }
        let drop = || -> io::Result<()> {
            self.check_names()?;
            for &number in &numbers {
                self.files.write().remove(&number);
                let is_wanted = self.spares.lock().len() < SPARES_MAX;
                if is_wanted && self.holds.load(Ordering::SeqCst) == 0 {
                    self.device().rename(&name_of(number), &spare_name_of(number))?;
                    self.spares.lock().insert(number);
                } else {
                    self.device().remove(&name_of(number))?;
                }
            }
            self.sync_names()
        };
        drop().map_err(|error| Error::io("dropping the oldest segments of the log", error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::{BLOCK_BYTES, Device, Fault, FaultKind, OperationKind, SimulatedDevice};
    use crate::storage::segments::spare_number_of;

    /// Each try, of which there are many in a second, gave one of the spares away.
    #[test]
    fn a_spare_stays_where_the_process_lacked_a_descriptor_or_memory_to_use_it() {
        for errno in [Errno::MFILE, Errno::NFILE, Errno::NOMEM] {
            let disk = SimulatedDevice::new(1);
            let bytes = 4 * BLOCK_BYTES as u64;
            let segments = Segments::open(Arc::new(disk.clone()), bytes, OpenMode::ReadWrite).unwrap();
            (0..3).for_each(|_| segments.prepare_next(true).unwrap());
            segments.drop_before(2 * bytes).unwrap();
            let spares =
                || disk.list().unwrap().iter().filter(|name| spare_number_of(name).is_some()).count();
            let kind = FaultKind::Error(errno.raw_os_error());
            for _ in 0..3 {
                disk.inject(Fault { operation: OperationKind::Open, nth: 1, kind, sticky: false });
                let error = segments.prepare_next(true).unwrap_err();
                assert_eq!((error.kind(), spares()), (crate::ErrorKind::Io, 2), "{error}");
            }
            segments.prepare_next(true).unwrap();
            assert_eq!(spares(), 1);
        }
    }
}
