//! Sessions: resumable client identities with serial numbers (CPR §2).
//!
//! A session's serial number is a record like any other, written by the same transaction as the operation that it
//! numbers. So the session's commit point after a crash is exact by atomicity alone (C7), an idle session
//! costs nothing, and sessions need no place in the seals.
//!
//! Whoever opens a session is told a serial number, and forgets what it stands for; so the opening waits until that is durable, which it is not if the session was in use
//! a moment ago. What is lost of a session is told by its serial number, and not by the version of its record, of which compaction makes copies.
//!
//! A session is forgotten by deleting its record. As long as a crash may bring that back, what comes next under its id must not count from
//! 1, so the opening waits for the deletion, too. Else a client could be told a number that is of the time before, and take it for one of its own.
//!
//! Whoever opens a session, or forgets one, takes its id first, and nobody else gets that meanwhile.
//!
//! Operations of one session take turns. One that is called within another one's closure would wait for the end of that, which waits for it; so whose turn it is
//! is known, and that thread is refused.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::ops::Bound;
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
use crate::storage::superblock::Superblock;
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sync::{Mutex, MutexGuard, OnceLock, thread_local};

/// The object that holds the sessions' serial numbers.
pub(crate) const SESSIONS_OBJECT: u32 = 1;
const ID_BYTES_MAX: usize = 1024;

/// The ids that somebody has now, and what for.
#[derive(Default)]
pub(crate) struct Sessions {
    taken: Mutex<BTreeMap<Box<[u8]>, Purpose>>,
}

/// What an id is taken for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Purpose {
    ToBeOpen,
    ToForget,
}

impl Sessions {
    /// Whether the session is open now.
    pub(crate) fn is_open(&self, id: &[u8]) -> bool {
        self.taken.lock().get(id) == Some(&Purpose::ToBeOpen)
    }

    /// The ids of the first open sessions behind `after`, ascending: `count` of them, unless fewer are left.
    pub(crate) fn open_after(&self, after: &[u8], count: usize) -> Vec<Vec<u8>> {
        let taken = self.taken.lock();
        let behind = taken.range::<[u8], _>((Bound::Excluded(after), Bound::Unbounded));
        let open = behind.filter(|(_, purpose)| **purpose == Purpose::ToBeOpen);
        open.map(|(id, _)| id.to_vec()).take(count).collect()
    }
}

/// An id that nobody else gets until this is dropped.
struct TakenId {
    engine: Arc<Engine>,
    id: Box<[u8]>,
}

impl TakenId {
    fn take(engine: &Arc<Engine>, id: &[u8], purpose: Purpose) -> Result<TakenId> {
        if id.is_empty() || id.len() > ID_BYTES_MAX {
            return Err(Error::input(format!(
                "a session's id has 1 to {ID_BYTES_MAX} bytes; this one has {}",
                id.len()
            )));
        }
        match engine.sessions.taken.lock().entry(id.into()) {
            Entry::Vacant(place) => {
                place.insert(purpose);
            }
            Entry::Occupied(taken) => {
                let what = match taken.get() {
                    Purpose::ToBeOpen => "is open already, or just being opened; close it there first",
                    Purpose::ToForget => "is just being forgotten; try again",
                };
                let text = format!("session {:?} {what}", String::from_utf8_lossy(id));
                return Err(Error::new(ErrorKind::Locked, text));
            }
        }
        Ok(TakenId { engine: engine.clone(), id: id.into() })
    }
}

impl Drop for TakenId {
    fn drop(&mut self) {
        self.engine.sessions.taken.lock().remove(&self.id);
    }
}

/// A resumable client identity. Each of its transactions takes the next serial number; after a crash
/// [`recovered_serial`](Self::recovered_serial) says up to which one they survived: all up to it, none after.
///
/// It does not keep the database open: that is for who has a [`Kiln`](crate::Kiln).
pub struct Session {
    pub(super) engine: Arc<Engine>,
    id: TakenId,
    recovered: u64,
    turn: Mutex<()>,
    /// The [thread](this_thread) that has the turn; 0 if none has.
    turn_of: AtomicU64,
    /// The version of the last commit; for who has the turn.
    version: AtomicU64,
    /// Stored by who has the turn; read without it, as callbacks may.
    serial: AtomicU64,
    /// There once somebody is to be called back.
    commit_points: OnceLock<Arc<CommitPoints>>,
}

impl Session {
    pub(crate) fn open(engine: &Arc<Engine>, id: &[u8]) -> Result<Session> {
        let id = TakenId::take(engine, id, Purpose::ToBeOpen)?;
        let (key, mut value) = (engine.session_key(&id.id), Vec::new());
        let reading = engine.read_newest(key, &mut value)?;
        let (recovered, mut version) = (serial_in(reading.found, &value), reading.version);
        let is_early = planted(if reading.found { Bug::SessionToldEarly } else { Bug::BeginsAnewEarly });
        // Be it the number, or that the session was forgotten. There is nothing to wait for if there never was one.
        if version > 0
            && !is_early
            && let Err(lost) = engine.wait_local(version)
        {
            // Perhaps of the record's copy alone, which compaction makes. A durable number that equals this one is this session's: the deletion of
            // the one before, if there was one, was durable before this one began.
            match engine.durable_serial(key)? {
                (durable, Some(serial)) if reading.found && serial == recovered => version = durable,
                _ => return Err(lost),
            }
        }
        Ok(Session {
            engine: engine.clone(),
            id,
            recovered,
            turn: Mutex::new(()),
            turn_of: AtomicU64::new(0),
            version: AtomicU64::new(version),
            serial: AtomicU64::new(recovered),
            commit_points: OnceLock::new(),
        })
    }

    /// The id under which it was opened.
    pub fn id(&self) -> &[u8] {
        &self.id.id
    }

    /// The last serial number that was there when the session was opened, and durable then: a power loss does not take it back. 0 for a new session.
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
        Ok(self.engine.durable_serial(self.record_key())?.1.unwrap_or(0))
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
        let add = || {
            let last = (self.version.load(Ordering::Relaxed), self.serial());
            let points = self.commit_points.get_or_init(|| Arc::new(CommitPoints::new(&self.engine, last)));
            points.add(Box::new(callback));
        };
        match self.is_in_turn() {
            true => add(),
            false => self.in_turn(add),
        }
    }

    /// Acts while no other operation of the session does.
    fn in_turn<T>(&self, act: impl FnOnce() -> T) -> T {
        let turn = self.turn.lock();
        self.turn_of.store(this_thread(), Ordering::Relaxed);
        let ending = EndingTurn { turn_of: &self.turn_of, _turn: turn };
        let result = act();
        drop(ending);
        if let Some(points) = self.commit_points.get() {
            points.tell_if_due();
        }
        result
    }

    /// True within one of the session's operations, on the same thread.
    fn is_in_turn(&self) -> bool {
        // What this thread has stored it sees, unless another one has come behind it.
        self.turn_of.load(Ordering::Relaxed) == this_thread()
    }

    /// Runs a transaction as the session's next operation, again and again until it does not conflict. Calls
    /// from several threads take their turns: `body` must not wait for a thread that calls another one. It may use the database, and what of this session takes no serial number.
    ///
    /// # Errors
    /// As [`Kiln::transact`](crate::Kiln::transact); `Input` within another one of the session's operations. A transaction that fails takes no serial number.
    pub fn transact<T>(&self, body: impl FnMut(&Transaction<'_>) -> Result<T>) -> Result<Commit<'_, T>> {
        self.transact_or(body, Error::is_conflict)
    }

    /// As [`Self::transact`], of a closure with errors of its own: what [`Kiln::try_transact`](crate::Kiln::try_transact) is to [`Kiln::transact`](crate::Kiln::transact).
    ///
    /// # Errors
    /// As [`Kiln::try_transact`](crate::Kiln::try_transact) and [`Self::transact`].
    pub fn try_transact<T, E: From<Error>>(
        &self,
        body: impl FnMut(&Transaction<'_>) -> Result<T, E>,
    ) -> Result<Commit<'_, T>, E> {
        self.transact_or(body, |_| false)
    }

    fn transact_or<T, E: From<Error>>(
        &self,
        body: impl FnMut(&Transaction<'_>) -> Result<T, E>,
        is_conflict: impl Fn(&E) -> bool,
    ) -> Result<Commit<'_, T>, E> {
        if self.is_in_turn() {
            return Err(is_nested().into());
        }
        self.in_turn(|| self.transact_in_turn(body, is_conflict))
    }

    fn transact_in_turn<T, E: From<Error>>(
        &self,
        mut body: impl FnMut(&Transaction<'_>) -> Result<T, E>,
        is_conflict: impl Fn(&E) -> bool,
    ) -> Result<Commit<'_, T>, E> {
        let next = self.serial().checked_add(1).ok_or_else(|| {
            Error::new(ErrorKind::Limit, "the session has used up its serial numbers; take a new one")
        })?;
        let numbered = |tx: &Transaction<'_>| {
            let value = body(tx)?;
            if !planted(Bug::SerialInNextTransaction) {
                let stored = next - u64::from(planted(Bug::SerialOffByOne));
                tx.put_key(SESSIONS_OBJECT, self.id(), &stored.to_le_bytes())?;
            }
            Ok(value)
        };
        let commit = transaction::try_run(&self.engine, Isolation::Serializable, numbered, is_conflict)?;
        if planted(Bug::SerialInNextTransaction) {
            self.engine.clock.tick();
            self.engine.put_single(self.record_key(), &next.to_le_bytes(), NEVER)?;
        }
        self.serial.store(next, Ordering::SeqCst);
        let version = commit.version().number();
        self.version.store(version, Ordering::Relaxed);
        if let Some(points) = self.commit_points.get() {
            points.note(version, next);
        }
        Ok(commit)
    }

    fn record_key(&self) -> SingleKey<'_> {
        self.engine.session_key(self.id())
    }
}

/// Ends the turn of a thread, also if its closure panics.
struct EndingTurn<'s> {
    turn_of: &'s AtomicU64,
    _turn: MutexGuard<'s, ()>,
}

impl Drop for EndingTurn<'_> {
    fn drop(&mut self) {
        self.turn_of.store(0, Ordering::Relaxed);
    }
}

/// A number that is not 0, and no other thread's as long as this one runs.
fn this_thread() -> u64 {
    thread_local! {
        static PLACE: u8 = const { 0 };
    }
    PLACE.with(|place| std::ptr::from_ref(place).addr() as u64)
}

#[cold]
fn is_nested() -> Error {
    Error::input(
        "a session's operation was called from within the closure of another one of its operations; use the transaction, or call it before or afterwards",
    )
}

impl Engine {
    fn session_key<'k>(&'k self, id: &'k [u8]) -> SingleKey<'k> {
        self.key_of(self.object(SESSIONS_OBJECT), id)
    }

    /// The serial number in a session's record that a power loss now would leave, if that leaves one; and which version that would be.
    fn durable_serial(&self, key: SingleKey<'_>) -> Result<(u64, Option<u64>)> {
        let (held, _) = self.open_durable_snapshot();
        let (moment, mut value) = (Moment::default(), Vec::new());
        let reading = self.read_as_of(key.object, key.key, key.hash, held.version, &moment, &mut value);
        self.release_snapshot(&held);
        Ok((held.version, reading?.found.then(|| serial_in(true, &value))))
    }

    /// The newest and the durable serial number of a session, and not of two of one id; `None` if it has no record.
    pub(crate) fn serials_of(&self, id: &[u8]) -> Result<Option<(u64, u64)>> {
        let (key, mut value) = (self.session_key(id), Vec::new());
        loop {
            let newest = self.read_newest(key, &mut value)?;
            if !newest.found {
                return Ok(None);
            }
            let serial = serial_in(true, &value);
            if let Some(Ok(())) = self.hardening.horizon.outcome(newest.version) {
                return Ok(Some((serial, serial)));
            }
            match self.durable_serial(key)? {
                // If that is anybody's it is the same one's: who had the id before was durably forgotten before this one committed.
                (version, durable) if version < newest.version => {
                    return Ok(Some((serial, durable.unwrap_or(0))));
                }
                // More was committed in between, and has hardened, be it by another one.
                (_, Some(durable)) => return Ok(Some((durable, durable))),
                // It was forgotten in between.
                (_, None) => {}
            }
        }
    }

    /// The ids of the first sessions behind `after`, ascending: `count` of them, unless fewer are left. There may be some that are forgotten by now, and of those
    /// that have committed nothing durable only such as are open.
    pub(crate) fn session_ids_after(&self, after: &[u8], count: usize) -> BTreeSet<Vec<u8>> {
        // First: what closes meanwhile is in the ledger then, if it is durable.
        let open = self.sessions.open_after(after, count);
        let mut ids = self.hardened_sessions_after(after, count);
        ids.extend(open);
        while ids.len() > count {
            ids.pop_last();
        }
        ids
    }

    /// Deletes a session's record, if there is one, and it has this serial number, if one is given. Gives the version, and whether it was there.
    ///
    /// # Errors
    /// See [`Kiln::forget_session`](crate::Kiln::forget_session).
    pub(crate) fn forget_session(self: &Arc<Self>, id: &[u8], serial: Option<u64>) -> Result<(u64, bool)> {
        let taken = TakenId::take(self, id, Purpose::ToForget)?;
        self.check_writable()?;
        let (key, mut value) = (self.session_key(&taken.id), Vec::new());
        let reading = self.read_newest(key, &mut value)?;
        if !reading.found || serial.is_some_and(|serial| serial != serial_in(true, &value)) {
            return Ok((reading.version, false));
        }
        // Older engines would take the deletion for damage.
        let says = |said: &Superblock| said.has_forgotten;
        self.superblock.lock().say_for_good(says, |saying| saying.has_forgotten = true)?;
        self.delete_single(key)
    }
}

impl fmt::Debug for Session {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let id = String::from_utf8_lossy(self.id());
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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::device::SimulatedDevice;
    use crate::{Expiry, Kiln, Options};

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

    #[test]
    fn c7_a_session_reads_without_a_number_and_takes_one_to_say_when_a_row_expires() -> Result<()> {
        let disk = SimulatedDevice::new(1);
        let open = || Options::new().background(false).open_on(Arc::new(disk.clone()));
        let db = open()?;
        let map = db.map("map")?;
        let session = db.session("one")?;
        session.put(&map, "key", "value")?.forget();
        session.prefetch(&map, &["key", "none"]);
        let mut value = b"before".to_vec();
        assert!(session.get_into(&map, "key", &mut value)? && value == b"value");
        assert!(!session.get_into(&map, "none", &mut value)? && value.is_empty());
        // Whoever looks may use the session.
        let bytes = session.get_with(&map, "key", |value| -> Result<u64> {
            session.add(&map, "looks", 1)?.forget();
            Ok(value.map_or(0, |value| value.len() as u64))
        })??;
        assert_eq!((bytes, session.serial()), (5, 2));
        assert!(session.get_with(&map, "none", |value| value.is_none())?);
        assert_eq!(session.expiry(&map, "key")?, Some(Expiry::Never));
        assert_eq!((session.expiry(&map, "none")?, session.serial()), (None, 2));
        assert!(session.set_expiry(&map, "key", Expiry::At(u64::MAX - 1))?.safe()?);
        assert!(!session.set_expiry(&map, "none", Expiry::At(u64::MAX - 1))?.safe()?);
        assert_eq!((session.serial(), session.durable_serial()?), (4, 4));
        drop((session, map, db));
        let db = open()?;
        assert_eq!(db.session("one")?.expiry(&db.map("map")?, "key")?, Some(Expiry::At(u64::MAX - 1)));
        Ok(())
    }

    /// Entries in the index for the sessions' ids, their keys, and those that a checkpoint would tell.
    fn remembered(db: &Kiln, ids: &[String]) -> (usize, u64, usize) {
        let engine = db.engine();
        let hashes = ids.iter().map(|id| engine.hash(SESSIONS_OBJECT, id.as_bytes()));
        let entries = hashes.map(|hash| engine.index.addresses_of(hash).count()).sum();
        let sessions = engine.objects.get(SESSIONS_OBJECT).expect("it is in every database");
        (entries, sessions.key_count.sum(), engine.hardened_sessions_after(b"", usize::MAX).len())
    }

    #[test]
    fn a_forgotten_session_takes_no_memory() -> Result<()> {
        const COUNT: usize = 300;
        let disk = SimulatedDevice::new(1);
        let open = || Options::new().background(false).open_on(Arc::new(disk.clone()));
        let db = open()?;
        let ids: Vec<String> = (0..COUNT).map(|number| format!("session {number}")).collect();
        for id in &ids {
            db.session(id)?.transact(|_| Ok(()))?.forget();
        }
        db.persist()?;
        assert_eq!(remembered(&db, &ids), (COUNT, COUNT as u64, COUNT));
        let snapshot = db.snapshot()?;
        for id in &ids[1..] {
            assert!(db.forget_session(id)?.forget());
        }
        db.persist()?;
        assert_eq!(remembered(&db, &ids), (COUNT, 1, 1), "a snapshot may see them");
        drop(snapshot);
        // Forgotten are keys whose deletion every snapshot is newer than.
        (0..2).for_each(|_| _ = db.persist());
        assert_eq!(remembered(&db, &ids), (1, 1, 1));
        assert!(db.engine().sessions.taken.lock().is_empty());
        db.close()?;
        drop(db);
        let db = open()?;
        assert_eq!(remembered(&db, &ids), (1, 1, 1));
        db.close()
    }
}
