//! The engine's one public error type: coarse kinds by what the caller can do, rich messages, sources kept.

use std::cell::OnceCell;
use std::fmt;
use std::io;
use std::sync::Arc;

/// What to do about damage.
const DAMAGE_ADVICE: &str = ". Nothing was changed; restore the database from a copy";

/// The engine's result.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What the caller can do about an [`Error`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// Another transaction got in the way. Nothing was written; run the transaction again.
    Conflict,
    /// The arguments are not acceptable (too long, wrong kind of object, bad option). Mend them. Of a batch some operations may be done; see [`Error::done_count`].
    Input,
    /// A limit was passed: a transaction's (of entries, bytes or age; it is aborted, make it smaller or raise the limit), or a database's, of objects, names, open transactions, numbers
    /// or addresses. The text says which.
    Limit,
    /// The transaction has already failed: begin again. Or the database is closed: open it again, or end.
    Aborted,
    /// The closure of a transaction gave up with [`Error::caller`]. Nothing was written; its reason is the caller's own.
    Caller,
    /// The disk is full, or whoever runs this may have no more of it, or no longer files. Nothing is lost; commits work again once space is free.
    NoSpace,
    /// Another process (or this one) has the database open, or is making it: close it there. Or the session is open already, or just being opened: drop it there; or it is just being forgotten: try again.
    Locked,
    /// There is no database there, or it is not one of Kiln's. Of an open database: there is no object, or snapshot, of this name, or the object was dropped, and its handles are of no use
    /// any more.
    NotFound,
    /// A write or a sync failed: what was not durable is lost, and nothing can become durable until the
    /// database is opened again, which may find some of it on the disk all the same; see [`Lost`](crate::Lost). Reads still work. Or, of what was committed before a crash: it did not survive that.
    Lost,
    /// A stored checksum or structure does not hold. Restore from a copy.
    Corrupted,
    /// The database was written by a newer format. Use a newer Kiln.
    Version,
    /// The operating system refused an operation; the source says why.
    Io,
}

/// An error of the engine. Its text says what happened and what to do.
#[derive(Clone, Debug)]
pub struct Error {
    kind: ErrorKind,
    message: Arc<str>,
    place: Option<Arc<(Box<str>, u64)>>,
    source: Option<Arc<io::Error>>,
    done_count: Option<usize>,
}

impl Error {
    pub(crate) fn new(kind: ErrorKind, message: impl Into<String>) -> Error {
        Error { kind, message: message.into().into(), place: None, source: None, done_count: None }
    }

    pub(crate) fn input(message: impl Into<String>) -> Error {
        Error::new(ErrorKind::Input, message)
    }

    pub(crate) fn closed() -> Error {
        Error::new(ErrorKind::Aborted, "the database is closed; open it again")
    }

    pub(crate) fn conflict() -> Error {
        let new = || {
            let what = "another transaction changed what this one read or is writing; run it again";
            Error::new(ErrorKind::Conflict, what)
        };
        thread_local! {
            static CONFLICT: OnceCell<Error> = const { OnceCell::new() };
        }
        // Conflicts are ordinary: reuse one allocation per thread.
        CONFLICT.try_with(|kept| kept.get_or_init(new).clone()).unwrap_or_else(|_| new())
    }

    pub(crate) fn corrupted(file: &str, offset: u64, what: impl fmt::Display) -> Error {
        Error::damaged(file, offset, format_args!("{what}{DAMAGE_ADVICE}"))
    }

    /// Of a copy, of which a database was to be made.
    pub(crate) fn corrupted_copy(file: &str, offset: u64, what: impl fmt::Display) -> Error {
        Error::damaged(file, offset, format_args!("{what}. No database was made of it; use another copy"))
    }

    fn damaged(file: &str, offset: u64, what: fmt::Arguments<'_>) -> Error {
        Error {
            kind: ErrorKind::Corrupted,
            message: format!("{file} is damaged at offset {offset}: {what}").into(),
            place: Some(Arc::new((file.into(), offset))),
            source: None,
            done_count: None,
        }
    }

    pub(crate) fn io(doing: impl fmt::Display, error: io::Error) -> Error {
        let kind = if is_disk_full(&error) { ErrorKind::NoSpace } else { ErrorKind::Io };
        Error {
            kind,
            message: format!("{doing}: {error}").into(),
            place: None,
            source: Some(Arc::new(error)),
            done_count: None,
        }
    }

    /// An error of the caller's own, who has no type for that ([`Kiln::try_transact`](crate::Kiln::try_transact) is for who has). The closure of a transaction that returns it has the transaction aborted, and not
    /// tried again; whoever ran the transaction gets it back with its message.
    ///
    /// ```
    /// # let directory = tempfile::tempdir()?;
    /// # let db = kiln::Kiln::open(directory.path())?;
    /// let accounts = db.map("accounts")?;
    /// db.add(&accounts, "alice", 5)?.safe()?;
    /// let taken = db.transact(|tx| match tx.add(&accounts, "alice", -8)? {
    ///     left if left < 0 => Err(kiln::Error::caller(format!("{} are missing", -left))),
    ///     left => Ok(left),
    /// });
    /// assert_eq!(taken.unwrap_err().to_string(), "3 are missing");
    /// assert_eq!(db.add(&accounts, "alice", 0)?.forget(), 5);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn caller(message: impl Into<String>) -> Error {
        Error::new(ErrorKind::Caller, message)
    }

    /// The error of a batch, of which so many operations are done.
    #[cold]
    pub(crate) fn after(self, done_count: usize) -> Error {
        Error { done_count: Some(done_count), ..self }
    }

    /// What it says, without the advice that goes with damage: for damage that nobody need do anything about.
    pub(crate) fn without_advice(&self) -> &str {
        self.message.strip_suffix(DAMAGE_ADVICE).unwrap_or(&self.message)
    }

    /// What the caller can do.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// File and offset of the damage, for [`ErrorKind::Corrupted`].
    pub fn place(&self) -> Option<(&str, u64)> {
        self.place.as_deref().map(|(file, offset)| (&**file, *offset))
    }

    /// How many operations of a batch (`put_many`, `add_many`, `update_many`) are committed: all before the one that failed, which is the slice's element
    /// of this number, and neither that one nor any after it. `None` for the error of anything else.
    ///
    /// ```
    /// # let directory = tempfile::tempdir()?;
    /// # let db = kiln::Kiln::open(directory.path())?;
    /// let hits = db.map("hits")?;
    /// db.put(&hits, "b", "no integer")?.forget();
    /// let deltas = [("a", 1), ("b", 1), ("c", 1)];
    /// let error = db.add_many(&hits, &deltas).unwrap_err();
    /// assert_eq!(error.done_count(), Some(1));
    /// // Goes on behind what cannot be added to; from the beginning "a" would be counted twice.
    /// db.add_many(&hits, &deltas[2..])?.safe()?;
    /// assert_eq!(db.add(&hits, "a", 0)?.forget(), 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn done_count(&self) -> Option<usize> {
        self.done_count
    }

    /// True if running the same transaction again may succeed.
    pub fn is_conflict(&self) -> bool {
        self.kind == ErrorKind::Conflict
    }
}

/// Whether there was no space for what was to be written, or the user may have no more of it.
pub(crate) fn is_disk_full(error: &io::Error) -> bool {
    use io::ErrorKind::{FileTooLarge, QuotaExceeded, StorageFull};
    matches!(error.kind(), StorageFull | QuotaExceeded | FileTooLarge)
}

impl fmt::Display for Error {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.message)
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.source.as_ref().map(|source| source.as_ref() as _)
    }
}
