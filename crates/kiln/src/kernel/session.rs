//! Sessions: resumable client identities with serial numbers (CPR §2).
//!
//! A session's serial number is a record like any other, written by the same transaction as the operation that it
//! numbers. So the session's commit point after a crash is exact by atomicity alone (C7), an idle session
//! costs nothing, and sessions need no place in the seals.

use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;

use super::commit_points::CommitPoints;
use super::engine::Engine;
use super::expiry::Moment;
use super::receipt::Commit;
use super::single::SingleKey;
use super::transaction::{self, Isolation, Transaction};
use crate::error::{Error, ErrorKind, Result};
use crate::planted::{Bug, planted};
use crate::storage::record::NEVER;
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sync::{Mutex, OnceLock};

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
pub struct Session {
    pub(super) engine: Arc<Engine>,
    id: Box<[u8]>,
    recovered: u64,
    /// The version of the last commit, for who has the turn.
    turn: Mutex<u64>,
    /// Stored by who has the turn; read without it, as callbacks may.
    serial: AtomicU64,
    /// There once somebody is to be called back.
    commit_points: OnceLock<Arc<CommitPoints>>,
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
        let mut session = Session {
            engine: engine.clone(),
            id: id.into(),
            recovered: 0,
            turn: Mutex::new(0),
            serial: AtomicU64::new(0),
            commit_points: OnceLock::new(),
        };
        let mut value = Vec::new();
        let reading = engine.read_newest(session.record_key(), &mut value)?;
        session.recovered = serial_in(reading.found, &value);
        session.serial.store(session.recovered, Ordering::SeqCst);
        *session.turn.get_mut() = reading.version;
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
        self.serial.load(Ordering::SeqCst)
    }

    /// The last serial number that is durable.
    ///
    /// # Errors
    /// `Corrupted` or `Io` if its record must be read from disk and cannot be.
    pub fn durable_serial(&self) -> Result<u64> {
        let (held, _) = self.engine.open_durable_snapshot();
        let (record, moment, mut value) = (self.record_key(), Moment::default(), Vec::new());
        let (id, hash) = (record.object, record.hash);
        let reading = self.engine.read_as_of(id, record.key, hash, held.version, &moment, &mut value);
        self.engine.release_snapshot(&held);
        Ok(serial_in(reading?.found, &value))
    }

    /// Calls back with the session's commit point (CPR §2), each time that it advances: all operations of the session up to this serial number
    /// survive power loss. One call may stand for several advances; the numbers ascend. What is durable already when this is called is not told;
    /// [`Self::durable_serial`] tells that. If commits are lost their numbers are never told; [`Kiln::on_lost`](crate::Kiln::on_lost) tells of that.
    ///
    /// It is called by one thread at a time: the one that hardens, one of the database's own, or one that has just ended an operation of this session. Be quick, and do not wait for
    /// this database. Who hardens may be in the middle of a session's operation: the callback may use the database, but no operations of sessions, which would wait for
    /// that one to end ([`Self::serial`] does not). If it panics nobody else is concerned, and it is called again the next time. A session
    /// that commits nothing costs a hardening nothing. Once the session is dropped only a call that has begun already comes to its end; a callback that keeps its own
    /// session alive (hold a [`Weak`](std::sync::Weak)) is never dropped.
    ///
    /// ```
    /// # let directory = tempfile::tempdir()?;
    /// # let db = kiln::Kiln::open(directory.path())?;
    /// let bids = db.map("bids")?;
    /// let session = db.session("exchange-7")?;
    /// let (told, commit_points) = std::sync::mpsc::channel();
    /// session.on_durable(move |serial| told.send(serial).unwrap_or_default());
    /// session.put(&bids, "a17", "20")?.forget();
    /// session.put(&bids, "a17", "25")?.safe()?;
    /// // Perhaps first of the one, and then of both.
    /// assert!(commit_points.iter().any(|serial| serial == 2));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn on_durable(&self, callback: impl FnMut(u64) + Send + 'static) {
        self.in_turn(|version| {
            let last = (*version, self.serial());
            let points = self.commit_points.get_or_init(|| Arc::new(CommitPoints::new(&self.engine, last)));
            points.add(Box::new(callback));
        });
    }

    /// Acts while no other operation of the session does. `act` is given the version of the last commit.
    fn in_turn<T>(&self, act: impl FnOnce(&mut u64) -> T) -> T {
        let result = act(&mut self.turn.lock());
        if let Some(points) = self.commit_points.get() {
            points.tell_if_due();
        }
        result
    }

    /// Runs a transaction as the session's next operation, again and again until it does not conflict. Calls
    /// from several threads take their turns.
    ///
    /// # Errors
    /// As [`Kiln::transact`](crate::Kiln::transact). A transaction that fails takes no serial number.
    pub fn transact<T>(&self, body: impl FnMut(&Transaction<'_>) -> Result<T>) -> Result<Commit<'_, T>> {
        self.in_turn(|version| self.transact_in_turn(body, version))
    }

    fn transact_in_turn<T>(
        &self,
        mut body: impl FnMut(&Transaction<'_>) -> Result<T>,
        version: &mut u64,
    ) -> Result<Commit<'_, T>> {
        let next = self.serial().checked_add(1).ok_or_else(|| {
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
        self.serial.store(next, Ordering::SeqCst);
        *version = commit.version().number();
        if let Some(points) = self.commit_points.get() {
            points.note(*version, next);
        }
        Ok(commit)
    }

    fn record_key(&self) -> SingleKey<'_> {
        let hash = self.engine.hash(SESSIONS_OBJECT, &self.id);
        SingleKey { object: SESSIONS_OBJECT, hash, key: &self.id }
    }
}

impl fmt::Debug for Session {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let id = String::from_utf8_lossy(&self.id);
        out.debug_struct("Session").field("id", &id).field("serial", &self.serial()).finish_non_exhaustive()
    }
}

/// The serial number in a session's record, if that was found. Recovery has refused what is no serial number.
fn serial_in(found: bool, value: &[u8]) -> u64 {
    decode_serial(value).filter(|_| found).unwrap_or(0)
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
