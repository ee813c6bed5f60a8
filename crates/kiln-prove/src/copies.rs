//! Copies: a database as a backup's stream, and what a restore of it is when the power fails.

use std::io::{self, Write};
use std::sync::{Arc, Mutex, PoisonError};

use kiln::device::{Device as _, SimulatedDevice};
use kiln::{ErrorKind, Kiln};

use crate::oracle::{Verdict, check_recovered, ensure};
use crate::support::{Random, is_of_power_loss, manual};
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
    restore_and_check(&stream, &target, history, random)
}

fn restore_and_check(
    stream: &[u8],
    target: &SimulatedDevice,
    history: &History,
    random: &mut Random,
) -> Verdict {
    let restored = restore_stream(stream, target);
    if let Err(error) = &restored {
        ensure!(is_of_power_loss(error, target), "restoring: {:?}: {error}", error.kind());
    }
    target.crash_after(target.steps());
    let left = target.after_crash_seeded(random.next());
    match manual().create(false).open_on(Arc::new(left.clone())) {
        Ok(db) => check_recovered(&db, history).map_err(|what| format!("restored: {what}")),
        Err(error) => {
            let is_there = left.list().is_ok_and(|names| names.iter().any(|name| name == "superblock"));
            // Files without the one that makes a database of them, or nothing.
            let is_none = !is_there && matches!(error.kind(), ErrorKind::NotFound | ErrorKind::Corrupted);
            ensure!(
                restored.is_err() && is_none,
                "a restored database does not open: {:?}: {error}",
                error.kind()
            );
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests {
    use kiln::device::{Fault, FaultKind, OperationKind};

    use super::*;
    use crate::crash::{open, play};
    use crate::workload::SMALL;

    /// A restore that failed for no reason, and left nothing, passed for one that the power had broken off.
    #[test]
    fn c8_a_restore_that_fails_although_the_power_has_not_is_noticed() {
        let (disk, mut history) = (SimulatedDevice::new(1), History::default());
        play(&disk, &mut history, SMALL, 1, true).unwrap();
        let stream = stream_of(&open(&disk, SMALL).unwrap()).unwrap();
        let check =
            |target: &SimulatedDevice| restore_and_check(&stream, target, &history, &mut Random::new(1));
        for steps in [0, 3, 1_000] {
            let target = SimulatedDevice::new(steps);
            target.crash_after(steps);
            assert_eq!(check(&target), Ok(()), "{steps} steps");
        }
        for kind in [FaultKind::EIO, FaultKind::ENOSPC] {
            let target = SimulatedDevice::new(1);
            target.inject(Fault { operation: OperationKind::Write, nth: 1, kind, sticky: true });
            assert!(check(&target).unwrap_err().starts_with("restoring"), "{kind:?}");
        }
    }
}
