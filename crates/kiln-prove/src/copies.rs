//! Copies: a database as a backup's stream, and what a restore of it is when the power fails.

use std::io::{self, Write};
use std::sync::{Arc, Mutex, PoisonError};

use kiln::Kiln;
use kiln::device::{Device as _, SimulatedDevice};

use crate::oracle::{Verdict, check_recovered, ensure};
use crate::support::{Random, manual};
use crate::workload::history::History;

/// What a stream is written to, to be looked at afterwards.
#[derive(Clone, Default)]
pub(crate) struct Written(Arc<Mutex<Vec<u8>>>);

impl Written {
    pub(crate) fn take(&self) -> Vec<u8> {
        std::mem::take(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Write for Written {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A backup of the database.
pub(crate) fn stream_of(db: &Kiln) -> kiln::Result<Vec<u8>> {
    let out = Written::default();
    db.backup_stream(out.clone(), |_| {})?;
    Ok(out.take())
}

/// Makes a database of a backup, on a disk with nothing on it.
pub(crate) fn restore_stream(stream: &[u8], target: &SimulatedDevice) -> kiln::Result<kiln::Backup> {
    Kiln::restore_stream_on(stream, Arc::new(target.clone()), |_| {})
}

/// Restores a backup of the database elsewhere, where the power fails at some step, or right behind the last: all of it is there then, or
/// no database, and no less than all if it was said to be there.
pub(crate) fn restore_and_crash(db: &Kiln, history: &History, random: &mut Random) -> Verdict {
    let stream = stream_of(db).map_err(|error| format!("backing up: {error}"))?;
    let target = SimulatedDevice::new(random.next());
    if random.one_in(2) {
        target.crash_after(random.below(40) as u64);
    }
    let restored = restore_stream(&stream, &target);
    target.crash_after(target.steps());
    let left = target.after_crash_seeded(random.next());
    match manual().create(false).open_on(Arc::new(left.clone())) {
        Ok(db) => check_recovered(&db, history).map_err(|what| format!("restored: {what}")),
        Err(error) => {
            let is_there = left.list().is_ok_and(|names| names.iter().any(|name| name == "superblock"));
            ensure!(restored.is_err() && !is_there, "a restored database does not open: {error}");
            Ok(())
        }
    }
}
