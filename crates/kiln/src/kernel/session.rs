//! Sessions: resumable client identities with serial numbers (CPR §2).
//!
//! A session's serial number is a record like any other, written by the same transaction as the operation that it
//! numbers. So the session's commit point after a crash is exact by atomicity alone (C7), an idle session
//! costs nothing, and sessions need no place in the seals.

use std::collections::HashSet;
use std::sync::Arc;

use super::engine::Engine;
use super::expiry::Moment;
use super::receipt::Commit;
use super::single::SingleKey;
use super::transaction::{self, Isolation, Transaction};
use crate::error::{Error, ErrorKind, Result};
use crate::planted::{Bug, planted};
use crate::storage::record::NEVER;
use crate::sync::Mutex;

/// The object that holds the sessions' serial numbers.
pub(crate) const SESSIONS_OBJECT: u32 = 1;
const ID_BYTES_MAX: usize = 1024;

/// The sessions that are open now.
#[derive(Default)]
pub(crate) struct Sessions {
    open: Mutex<HashSet<Box<[u8]>>>,
}

/// A resumable client identity. Each of its transactions takes the next serial number; after a crash
/// [`recovered_serial`](Self::recovered_serial) says up to which one they survived: all up to it, none after.
#[derive(Debug)]
pub struct Session {
    pub(super) engine: Arc<Engine>,
    id: Box<[u8]>,
    recovered: u64,
    serial: Mutex<u64>,
}

impl Session {
    pub(crate) fn open(engine: &Arc<Engine>, id: &[u8]) -> Result<Session> {
        if id.is_empty() || id.len() > ID_BYTES_MAX {
            return Err(Error::input(format!(
                "a session's id has 1 to {ID_BYTES_MAX} bytes; this one has {}",
                id.len()
            )));
        }
        if !engine.sessions.open.lock().insert(id.into()) {
            return Err(Error::new(
                ErrorKind::Locked,
                format!("session {:?} is open already; close it there first", String::from_utf8_lossy(id)),
            ));
        }
        let mut session =
            Session { engine: engine.clone(), id: id.into(), recovered: 0, serial: Mutex::new(0) };
        session.recovered = session.read_serial(None)?;
        *session.serial.get_mut() = session.recovered;
        Ok(session)
    }

    /// The id under which it was opened.
    pub fn id(&self) -> &[u8] {
        &self.id
    }

    /// The last serial number that was there when the session was opened; 0 for a new session.
    pub fn recovered_serial(&self) -> u64 {
        self.recovered
    }

    /// The serial number of the last transaction that committed.
    pub fn serial(&self) -> u64 {
        *self.serial.lock()
    }

    /// The last serial number that is durable.
    ///
    /// # Errors
    /// `Corrupted` or `Io` if its record must be read from disk and cannot be.
    pub fn durable_serial(&self) -> Result<u64> {
        let (held, _) = self.engine.open_durable_snapshot();
        let serial = self.read_serial(Some(held.version));
        self.engine.release_snapshot(&held);
        serial
    }

    /// Runs a transaction as the session's next operation, again and again until it does not conflict. Calls
    /// from several threads take their turns.
    ///
    /// # Errors
    /// As [`Kiln::transact`](crate::Kiln::transact). A transaction that fails takes no serial number.
    pub fn transact<T>(&self, mut body: impl FnMut(&Transaction<'_>) -> Result<T>) -> Result<Commit<'_, T>> {
        let mut serial = self.serial.lock();
        let next = serial.checked_add(1).ok_or_else(|| {
            Error::new(ErrorKind::Limit, "the session has used up its serial numbers; take a new one")
        })?;
        let commit = transaction::run(&self.engine, Isolation::Serializable, |tx| {
            let value = body(tx)?;
            if !planted(Bug::SerialInNextTransaction) {
                let stored = next - u64::from(planted(Bug::SerialOffByOne));
                tx.put_key(SESSIONS_OBJECT, &self.id, &stored.to_le_bytes())?;
            }
            Ok(value)
        })?;
        if planted(Bug::SerialInNextTransaction) {
            self.engine.clock.tick();
            self.engine.put_single(self.record_key(), &next.to_le_bytes(), NEVER)?;
        }
        *serial = next;
        Ok(commit)
    }

    fn record_key(&self) -> SingleKey<'_> {
        let hash = self.engine.hash(SESSIONS_OBJECT, &self.id);
        SingleKey { object: SESSIONS_OBJECT, hash, key: &self.id }
    }

    fn read_serial(&self, as_of: Option<u64>) -> Result<u64> {
        let record = self.record_key();
        let mut value = Vec::new();
        let found = match as_of {
            Some(version) => {
                let (moment, id) = (Moment::default(), record.object);
                self.engine.read_as_of(id, record.key, record.hash, version, &moment, &mut value)?.found
            }
            None => self.engine.read_newest(record, &mut value)?.found,
        };
        // Recovery has refused what is no serial number.
        Ok(decode_serial(&value).filter(|_| found).unwrap_or(0))
    }
}

/// The serial number in a session's record; `None` for what no session has stored.
pub(crate) fn decode_serial(value: &[u8]) -> Option<u64> {
    value.try_into().ok().map(u64::from_le_bytes)
}

impl Drop for Session {
    fn drop(&mut self) {
        self.engine.sessions.open.lock().remove(&self.id);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::device::SimulatedDevice;
    use crate::{Kiln, Options};

    #[test]
    fn a_session_opens_although_its_record_is_locked_for_a_while() -> Result<()> {
        let disk = Arc::new(SimulatedDevice::new(1));
        let db: Kiln =
            Options::new().background(false).memory(1 << 20).segment_bytes(64 << 10).open_on(disk)?;
        drop(db.session("one")?);
        let engine = db.engine();
        let bucket = engine.index.lock(engine.hash(SESSIONS_OBJECT, b"one")).expect("nobody else has it");
        std::thread::scope(|scope| {
            let opening = scope.spawn(|| db.session("one").map(|session| session.recovered_serial()));
            std::thread::sleep(Duration::from_millis(50));
            assert!(!opening.is_finished());
            engine.index.unlock_unchanged(bucket);
            assert_eq!(opening.join().expect("it does not panic")?, 0);
            Ok(())
        })
    }
}
