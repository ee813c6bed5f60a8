//! Sessions: opened, listed, forgotten.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::Kiln;
use crate::error::Result;
use crate::kernel::engine::Engine;
use crate::kernel::receipt::Commit;
use crate::kernel::session::Session;

/// So many ids are taken at a time by who lists sessions.
const PIECE: usize = 512;

/// A session, in a list.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SessionInfo {
    /// Its id.
    pub id: Vec<u8>,
    /// The serial number of the last transaction that committed; 0 for one that is open, and has committed nothing yet.
    pub serial: u64,
    /// The last serial number that is durable.
    pub durable_serial: u64,
    /// Somebody has it open.
    pub is_open: bool,
}

/// The sessions of a database, in the order of their ids' bytes; see [`Kiln::sessions`]. It holds some of the ids and no lock, so it may be kept for as long as one likes.
#[derive(Debug)]
pub struct SessionList<'db> {
    engine: &'db Arc<Engine>,
    /// Ids that are known and yet to be told.
    ids: std::collections::btree_set::IntoIter<Vec<u8>>,
    /// The last id that was known.
    after: Vec<u8>,
    /// There are no more behind it.
    is_at_end: bool,
}

impl SessionList<'_> {
    fn next_id(&mut self) -> Option<Vec<u8>> {
        if let Some(id) = self.ids.next() {
            return Some(id);
        }
        if self.is_at_end {
            return None;
        }
        let ids = self.engine.session_ids_after(&self.after, PIECE);
        self.is_at_end = ids.len() < PIECE;
        if let Some(last) = ids.last() {
            self.after.clone_from(last);
        }
        self.ids = ids.into_iter();
        self.ids.next()
    }

    /// `None` for one that was forgotten.
    fn look_at(&self, id: &[u8]) -> Result<Option<SessionInfo>> {
        // First: who opens it meanwhile may commit at once.
        let is_open = self.engine.sessions.is_open(id);
        let serials = self.engine.serials_of(id)?;
        let (serial, durable_serial) = serials.unwrap_or_default();
        let is_there = serials.is_some() || is_open;
        Ok(is_there.then(|| SessionInfo { id: id.to_vec(), serial, durable_serial, is_open }))
    }
}

impl Iterator for SessionList<'_> {
    type Item = Result<SessionInfo>;

    fn next(&mut self) -> Option<Result<SessionInfo>> {
        loop {
            let id = self.next_id()?;
            if let Some(found) = self.look_at(&id).transpose() {
                return Some(found);
            }
        }
    }
}

impl Kiln {
    /// Opens the session with this id. If its last commit, or that it was [forgotten](Self::forget_session), is not durable yet, this returns once it is: for
    /// the time of one hardening, as [`Commit::safe`].
    ///
    /// # Errors
    /// `Locked` if it is open, or just being opened or forgotten; `Input` if the id does not have 1 to 1,024 bytes; `Aborted` if the database is closed;
    /// `Corrupted` or `Io` if its record must be read from disk and cannot be; `Lost` if its last commit, or that it was forgotten, was not made durable.
    pub fn session(&self, id: impl AsRef<[u8]>) -> Result<Session> {
        self.engine().check_open()?;
        Session::open(self.engine(), id.as_ref())
    }

    /// The sessions, in the order of their ids' bytes: those that have committed something, and those that are open. One that is there throughout is met exactly once. One whose first commit is not durable yet
    /// is there only as long as it is open.
    ///
    /// The list takes a few hundred ids at a time, between two hardenings, and reads each session's record as it comes to it.
    ///
    /// ```
    /// # let directory = tempfile::tempdir()?;
    /// # let db = kiln::Kiln::open(directory.path())?;
    /// let bids = db.map("bids")?;
    /// let session = db.session("exchange-7")?;
    /// session.put(&bids, "a17", "20")?.safe()?;
    /// let listed = db.sessions().collect::<kiln::Result<Vec<_>>>()?;
    /// assert_eq!((listed.len(), &*listed[0].id), (1, &b"exchange-7"[..]));
    /// assert_eq!((listed[0].serial, listed[0].durable_serial, listed[0].is_open), (1, 1, true));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Of the items: `Corrupted` or `Io` if a session's record must be read from disk and cannot be; the list goes on behind it.
    pub fn sessions(&self) -> SessionList<'_> {
        // No id is empty.
        self.sessions_after([])
    }

    /// As [`Self::sessions`], those behind this id alone, whether there is a session of that id or not.
    ///
    /// # Errors
    /// As of [`Self::sessions`].
    pub fn sessions_after(&self, id: impl AsRef<[u8]>) -> SessionList<'_> {
        SessionList {
            engine: self.engine(),
            ids: BTreeSet::new().into_iter(),
            after: id.as_ref().to_vec(),
            is_at_end: false,
        }
    }

    /// Forgets the session with this id, and says whether there was one: its next opening finds a new session, with the serial number 0. What it has written
    /// stays. The memory for its id is free once that is durable, and no snapshot is older.
    ///
    /// It is a commit like others, which a crash may take back: then the session is there again, with its serial number. So whoever opens it before it is durable waits until it is, and no number that was told is ever of the other of the two sessions.
    ///
    /// ```
    /// # let directory = tempfile::tempdir()?;
    /// # let db = kiln::Kiln::open(directory.path())?;
    /// let bids = db.map("bids")?;
    /// let session = db.session("exchange-7")?;
    /// session.put(&bids, "a17", "20")?.safe()?;
    /// drop(session);
    /// assert!(db.forget_session("exchange-7")?.safe()?);
    /// assert_eq!(db.session("exchange-7")?.recovered_serial(), 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// `Locked` if it is open, or being opened or forgotten by somebody else; `Input` if the id does not have 1 to 1,024 bytes; `Aborted` if the database is closed;
    /// otherwise as [`Self::delete`]. The session is still there then.
    pub fn forget_session(&self, id: impl AsRef<[u8]>) -> Result<Commit<'_, bool>> {
        self.forget(id.as_ref(), None)
    }

    /// As [`Self::forget_session`], but only if this is the session's serial number: if it has committed anything since a [list](Self::sessions) told that, it stays, and the
    /// answer is false. So those are forgotten that have not been used since some earlier list.
    ///
    /// # Errors
    /// As [`Self::forget_session`].
    pub fn forget_session_at(&self, id: impl AsRef<[u8]>, serial: u64) -> Result<Commit<'_, bool>> {
        self.forget(id.as_ref(), Some(serial))
    }

    fn forget(&self, id: &[u8], serial: Option<u64>) -> Result<Commit<'_, bool>> {
        let engine = self.engine();
        let (version, was_there) = engine.forget_session(id, serial)?;
        Ok(Commit::new(engine, version, was_there))
    }
}
