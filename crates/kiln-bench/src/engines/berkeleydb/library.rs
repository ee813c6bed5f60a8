//! The functions of Berkeley DB 5.3 that are used, and what is safe of them.
//!
//! Its C interface consists of methods: pointers inside large structs, whose places only its header knows. The functions that they
//! point to are exported under names of their own (`DB->get` is `__db_get_pp`), so that they are called by these names here; a
//! library that does not have one is refused with that name. Only the two methods of a transaction that end it point to functions
//! without a name. They are found at their places in `struct __db_txn`, which every compiled program relies on, too; and since
//! both the names and the places are 5.3.28's, another version is refused.
//!
//! With `DB_THREAD`, environment and database may be used by all threads at once, transactions and cursors by one at a time.

#![allow(unsafe_code)]

use std::ffi::{CString, c_char, c_int, c_void};
use std::fmt;
use std::path::Path;
use std::ptr::{null, null_mut};

use anyhow::{Result, bail, ensure};

use crate::engines::OnRow;
use crate::engines::library::{self, functions, opaque};

opaque! { RawCursor RawDatabase RawEnvironment RawTransaction }

/// `DBT`: bytes that go in or come out.
#[repr(C)]
struct Thing {
    data: *mut u8,
    size: u32,
    room: u32,
    partial_size: u32,
    partial_offset: u32,
    app_data: *mut c_void,
    flags: u32,
}

const _: () = assert!(size_of::<Thing>() == 40 && size_of::<usize>() == 8);

functions! {
    "libdb-5.3.so", "Berkeley DB 5.3",
    fn db_version(*mut c_int, *mut c_int, *mut c_int) -> *const c_char;
    fn db_strerror(c_int) -> *const c_char;
    fn db_env_create(*mut *mut RawEnvironment, u32) -> c_int;
    fn db_create(*mut *mut RawDatabase, *mut RawEnvironment, u32) -> c_int;
    fn __env_open_pp(*mut RawEnvironment, *const c_char, u32, c_int) -> c_int;
    fn __env_close_pp(*mut RawEnvironment, u32) -> c_int;
    fn __env_set_flags(*mut RawEnvironment, u32, c_int) -> c_int;
    fn __memp_set_cachesize(*mut RawEnvironment, u32, u32, c_int) -> c_int;
    fn __lock_set_lk_detect(*mut RawEnvironment, u32) -> c_int;
    fn __lock_set_lk_max_locks(*mut RawEnvironment, u32) -> c_int;
    fn __lock_set_lk_max_objects(*mut RawEnvironment, u32) -> c_int;
    fn __log_set_lg_bsize(*mut RawEnvironment, u32) -> c_int;
    fn __log_set_lg_max(*mut RawEnvironment, u32) -> c_int;
    fn __log_set_config(*mut RawEnvironment, u32, c_int) -> c_int;
    fn __log_flush_pp(*mut RawEnvironment, *const c_void) -> c_int;
    fn __txn_begin_pp(*mut RawEnvironment, *mut RawTransaction, *mut *mut RawTransaction, u32) -> c_int;
    fn __txn_checkpoint_pp(*mut RawEnvironment, u32, u32, u32) -> c_int;
    fn __db_open_pp(
        *mut RawDatabase, *mut RawTransaction, *const c_char, *const c_char, c_int, u32, c_int,
    ) -> c_int;
    fn __db_close_pp(*mut RawDatabase, u32) -> c_int;
    fn __db_get_pp(*mut RawDatabase, *mut RawTransaction, *mut Thing, *mut Thing, u32) -> c_int;
    fn __db_put_pp(*mut RawDatabase, *mut RawTransaction, *mut Thing, *mut Thing, u32) -> c_int;
    fn __db_cursor_pp(*mut RawDatabase, *mut RawTransaction, *mut *mut RawCursor, u32) -> c_int;
    fn __dbc_get_pp(*mut RawCursor, *mut Thing, *mut Thing, u32) -> c_int;
    fn __dbc_close_pp(*mut RawCursor) -> c_int;
}

/// The places of `DB_TXN->abort` and `DB_TXN->commit`.
const ABORT_OFFSET: usize = 232;
const COMMIT_OFFSET: usize = 240;

const CREATE: u32 = 0x1;
const THREAD: u32 = 0x20;
/// The flags of `DB_TXN->commit` and of the environment, and those of reads.
const TXN_SYNC: u32 = 0x8;
const TXN_NOSYNC: u32 = 0x1;
const READ_TO_MODIFY: u32 = 0x2000;
const NEXT: u32 = 0x10;
const SET_RANGE: u32 = 0x1b;
const MULTIPLE_KEY: u32 = 0x4000;
/// The flag of a `Thing` whose memory is the caller's.
const USER_MEMORY: u32 = 0x800;
/// Results that are not failures.
const BUFFER_SMALL: c_int = -30999;
const DEADLOCK: c_int = -30993;
const NOT_GRANTED: c_int = -30992;
const NOT_FOUND: c_int = -30988;

/// The version that is installed.
pub(super) fn version() -> Result<String> {
    let (f, mut numbers) = (Functions::get()?, [0; 3]);
    let [major, minor, patch] = &mut numbers;
    // SAFETY: three numbers to be filled.
    unsafe { (f.db_version)(major, minor, patch) };
    let [major, minor, patch] = numbers;
    ensure!(
        numbers == [5, 3, 28],
        "Berkeley DB is {major}.{minor}.{patch} here, and only 5.3.28 is known; run scripts/peers in Kiln's repository"
    );
    Ok(format!("{major}.{minor}.{patch}"))
}

/// What the library refused.
#[derive(Debug)]
pub(super) struct Failure {
    code: c_int,
    text: String,
}

impl Failure {
    /// Whether others held the locks that were needed: the transaction is to be aborted and run again.
    pub(super) fn is_conflict(&self) -> bool {
        matches!(self.code, DEADLOCK | NOT_GRANTED)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Berkeley DB's error {}: {}", self.code, self.text)
    }
}

impl std::error::Error for Failure {}

type Outcome<T> = Result<T, Failure>;

impl Functions {
    #[inline]
    fn check(&self, code: c_int) -> Outcome<()> {
        if code == 0 { Ok(()) } else { Err(self.failure(code)) }
    }

    #[cold]
    fn failure(&self, code: c_int) -> Failure {
        // SAFETY: a text of the library, for whatever number.
        Failure { code, text: unsafe { library::text((self.db_strerror)(code)) } }
    }
}

/// What is chosen where an environment is created.
pub(super) struct Options {
    pub(super) cache_bytes: u64,
    pub(super) log_buffer_bytes: u32,
    pub(super) log_file_bytes: u32,
    pub(super) page_locks: u32,
    /// Whether commits without more words sync the log.
    pub(super) syncs: bool,
}

/// An environment with one B-tree.
pub(super) struct Database {
    environment: *mut RawEnvironment,
    database: *mut RawDatabase,
    functions: &'static Functions,
}

// SAFETY: both handles are opened with `DB_THREAD`, which makes them free for all threads.
unsafe impl Send for Database {}
// SAFETY: as above.
unsafe impl Sync for Database {}

impl Database {
    /// Creates an environment in an empty directory, and a B-tree in it.
    pub(super) fn create(path: &Path, options: &Options) -> Result<Database> {
        version()?;
        let (functions, path) = (Functions::get()?, library::c_path(path)?);
        let mut made = Database { environment: null_mut(), database: null_mut(), functions };
        // SAFETY: a place for the handle.
        functions.check(unsafe { (functions.db_env_create)(&mut made.environment, 0) })?;
        ensure!(!made.environment.is_null(), "Berkeley DB made no environment");
        made.open_environment(&path, options)?;
        made.open_database()?;
        Ok(made)
    }

    fn open_environment(&mut self, path: &CString, options: &Options) -> Result<()> {
        // Transactions with their log, locks and memory pool, in the heap of this process.
        const LOCK: u32 = 0x100;
        const LOG: u32 = 0x200;
        const MEMORY_POOL: u32 = 0x400;
        const TRANSACTIONS: u32 = 0x2000;
        const PRIVATE: u32 = 0x10000;
        const DETECT_YOUNGEST: u32 = 9;
        const LOG_AUTO_REMOVE: u32 = 1;
        let (f, environment) = (self.functions, self.environment);
        let gigabytes = u32::try_from(options.cache_bytes >> 30)?;
        let bytes = (options.cache_bytes & ((1 << 30) - 1)) as u32;
        // SAFETY: the environment has been created; each of these only takes numbers, and texts that end with zero.
        unsafe {
            f.check((f.__memp_set_cachesize)(environment, gigabytes, bytes, 1))?;
            f.check((f.__lock_set_lk_detect)(environment, DETECT_YOUNGEST))?;
            f.check((f.__lock_set_lk_max_locks)(environment, options.page_locks))?;
            f.check((f.__lock_set_lk_max_objects)(environment, options.page_locks))?;
            f.check((f.__log_set_lg_bsize)(environment, options.log_buffer_bytes))?;
            f.check((f.__log_set_lg_max)(environment, options.log_file_bytes))?;
            f.check((f.__log_set_config)(environment, LOG_AUTO_REMOVE, 1))?;
            if !options.syncs {
                f.check((f.__env_set_flags)(environment, TXN_NOSYNC, 1))?;
            }
            let flags = CREATE | THREAD | LOCK | LOG | MEMORY_POOL | TRANSACTIONS | PRIVATE;
            f.check((f.__env_open_pp)(environment, path.as_ptr(), flags, 0))?;
        }
        Ok(())
    }

    fn open_database(&mut self) -> Result<()> {
        const BTREE: c_int = 1;
        const AUTO_COMMIT: u32 = 0x100;
        let f = self.functions;
        // SAFETY: the environment is open, and there is a place for the handle.
        f.check(unsafe { (f.db_create)(&mut self.database, self.environment, 0) })?;
        ensure!(!self.database.is_null(), "Berkeley DB made no database");
        let (name, flags) = (c"data.db".as_ptr(), CREATE | THREAD | AUTO_COMMIT);
        // SAFETY: the handle has just been made; a text that ends with zero; no transaction and no second name, which may be null.
        f.check(unsafe { (f.__db_open_pp)(self.database, null_mut(), name, null(), BTREE, flags, 0) })?;
        Ok(())
    }

    /// Closes both, and says whether that went well.
    pub(super) fn close(mut self) -> Result<()> {
        Ok(self.close_handles()?)
    }

    fn close_handles(&mut self) -> Outcome<()> {
        let f = self.functions;
        let (database, environment) = (
            std::mem::replace(&mut self.database, null_mut()),
            std::mem::replace(&mut self.environment, null_mut()),
        );
        let mut closed = Ok(());
        if !database.is_null() {
            // SAFETY: open, and taken out, so that nobody closes or uses it again.
            closed = f.check(unsafe { (f.__db_close_pp)(database, 0) });
        }
        if !environment.is_null() {
            // SAFETY: as above; its only database is closed.
            closed = closed.and(f.check(unsafe { (f.__env_close_pp)(environment, 0) }));
        }
        closed
    }

    /// Writes the log out and syncs it.
    pub(super) fn flush_log(&self) -> Outcome<()> {
        // SAFETY: the environment is open; null stands for all of the log.
        self.functions.check(unsafe { (self.functions.__log_flush_pp)(self.environment, null()) })
    }

    /// Writes a checkpoint if the log has grown by so many kilobytes since the last one.
    pub(super) fn checkpoint(&self, kilobytes: u32) -> Outcome<()> {
        // SAFETY: the environment is open.
        let code = unsafe { (self.functions.__txn_checkpoint_pp)(self.environment, kilobytes, 0, 0) };
        self.functions.check(code)
    }

    /// Reads a value that is committed.
    #[inline]
    pub(super) fn get(&self, key: &[u8], value: &mut Vec<u8>) -> Outcome<bool> {
        // SAFETY: no transaction.
        unsafe { self.get_in(null_mut(), key, value, 0) }
    }

    /// # Safety
    ///
    /// `transaction` must be null or one of this database that runs.
    unsafe fn get_in(
        &self,
        transaction: *mut RawTransaction,
        key: &[u8],
        value: &mut Vec<u8>,
        flags: u32,
    ) -> Outcome<bool> {
        loop {
            value.clear();
            let (mut from, mut to) = (Thing::input(key), Thing::room(value));
            // SAFETY: the database is open, and the transaction null or running; the key has so many bytes, the value so much
            // room.
            let code = unsafe {
                (self.functions.__db_get_pp)(self.database, transaction, &mut from, &mut to, flags)
            };
            let size = to.size as usize;
            match code {
                0 if size <= value.capacity() => {
                    // SAFETY: there is room for so many, and the library has written them.
                    unsafe { value.set_len(size) };
                    return Ok(true);
                }
                NOT_FOUND => return Ok(false),
                BUFFER_SMALL if size > value.capacity() => value.reserve(size),
                code => return Err(self.functions.failure(code)),
            }
        }
    }

    /// Writes one key in a transaction of its own.
    #[inline]
    pub(super) fn put(&self, key: &[u8], value: &[u8]) -> Outcome<()> {
        // SAFETY: no transaction.
        unsafe { self.put_in(null_mut(), key, value) }
    }

    /// # Safety
    ///
    /// `transaction` must be null or one of this database that runs.
    unsafe fn put_in(&self, transaction: *mut RawTransaction, key: &[u8], value: &[u8]) -> Outcome<()> {
        let (mut key, mut value) = (Thing::input(key), Thing::input(value));
        // SAFETY: the database is open, and the transaction null or running; key and value have so many bytes, which the library
        // only reads.
        let code =
            unsafe { (self.functions.__db_put_pp)(self.database, transaction, &mut key, &mut value, 0) };
        self.functions.check(code)
    }

    /// Begins a transaction.
    pub(super) fn begin(&self) -> Outcome<Transaction<'_>> {
        let mut handle = null_mut();
        // SAFETY: the environment is open, there is no parent, and a place for the handle.
        let code = unsafe { (self.functions.__txn_begin_pp)(self.environment, null_mut(), &mut handle, 0) };
        self.functions.check(code)?;
        Ok(Transaction { database: self, handle })
    }

    /// A cursor that reads what is committed.
    pub(super) fn cursor(&self) -> Outcome<Cursor<'_>> {
        let mut handle = null_mut();
        // SAFETY: the database is open, there is no transaction, and a place for the handle.
        let code = unsafe { (self.functions.__db_cursor_pp)(self.database, null_mut(), &mut handle, 0) };
        self.functions.check(code)?;
        Ok(Cursor { database: self, handle })
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        if let Err(failure) = self.close_handles() {
            eprintln!("kiln-bench: a database could not be closed: {failure}");
        }
    }
}

impl Thing {
    /// Bytes for the library to read.
    #[inline]
    fn input(bytes: &[u8]) -> Thing {
        Thing { size: bytes.len() as u32, ..Thing::memory(bytes.as_ptr().cast_mut(), bytes.len()) }
    }

    /// Room for the library to write to: all that the vector has.
    #[inline]
    fn room(vector: &mut Vec<u8>) -> Thing {
        Thing::memory(vector.as_mut_ptr(), vector.capacity())
    }

    #[inline]
    fn memory(data: *mut u8, room: usize) -> Thing {
        let room = u32::try_from(room).unwrap_or(u32::MAX);
        let (partial_size, partial_offset, app_data) = (0, 0, null_mut());
        Thing { data, size: 0, room, partial_size, partial_offset, app_data, flags: USER_MEMORY }
    }
}

/// A running transaction. Dropping it aborts it.
pub(super) struct Transaction<'d> {
    database: &'d Database,
    handle: *mut RawTransaction,
}

type Commit = unsafe extern "C" fn(*mut RawTransaction, u32) -> c_int;
type Abort = unsafe extern "C" fn(*mut RawTransaction) -> c_int;

impl Transaction<'_> {
    /// Reads a value with the lock for changing it.
    pub(super) fn get(&mut self, key: &[u8], value: &mut Vec<u8>) -> Outcome<bool> {
        // SAFETY: it runs until it is committed or dropped.
        unsafe { self.database.get_in(self.handle, key, value, READ_TO_MODIFY) }
    }

    /// Writes one key.
    pub(super) fn put(&mut self, key: &[u8], value: &[u8]) -> Outcome<()> {
        // SAFETY: it runs until it is committed or dropped.
        unsafe { self.database.put_in(self.handle, key, value) }
    }

    /// Commits: durably, or as the environment is set.
    pub(super) fn commit(self, durably: bool) -> Outcome<()> {
        let (handle, functions) = (self.handle, self.database.functions);
        // The handle ends here whatever the library says, and must not be aborted as well.
        std::mem::forget(self);
        // SAFETY: the handle is the library's and the version the one whose offset this is; null would be none.
        let commit = unsafe { handle.byte_add(COMMIT_OFFSET).cast::<Option<Commit>>().read() };
        let flags = if durably { TXN_SYNC } else { 0 };
        // SAFETY: the transaction runs, and its handle is not used again.
        functions.check(commit.map_or(NOT_FOUND, |commit| unsafe { commit(handle, flags) }))
    }
}

impl Drop for Transaction<'_> {
    fn drop(&mut self) {
        // SAFETY: the handle is the library's and the version the one whose offset this is; null would be none.
        let abort = unsafe { self.handle.byte_add(ABORT_OFFSET).cast::<Option<Abort>>().read() };
        // SAFETY: the transaction runs, and its handle is not used again. Its failure ends in the next call's.
        abort.map(|abort| unsafe { abort(self.handle) });
    }
}

/// A place in the order of keys.
pub(super) struct Cursor<'d> {
    database: &'d Database,
    handle: *mut RawCursor,
}

impl Cursor<'_> {
    /// Reads as many rows as there is room for in `rows`, which grows if it is too small for one: from a key on, or those after the
    /// last. False if there are none.
    pub(super) fn fill(&mut self, from: Option<&[u8]>, rows: &mut Rows) -> Outcome<bool> {
        let f = self.database.functions;
        rows.key.clear();
        rows.key.extend_from_slice(from.unwrap_or_default());
        loop {
            let mut key = Thing { size: rows.key.len() as u32, ..Thing::room(&mut rows.key) };
            let mut data = Thing::memory(rows.words.as_mut_ptr().cast(), rows.words.len() * 4);
            let flags = MULTIPLE_KEY | if from.is_some() { SET_RANGE } else { NEXT };
            // SAFETY: the cursor is open; key and rows have so much room.
            let code = unsafe { (f.__dbc_get_pp)(self.handle, &mut key, &mut data, flags) };
            match code {
                0 => return Ok(true),
                NOT_FOUND => return Ok(false),
                BUFFER_SMALL if (data.size as usize) > rows.words.len() * 4 => {
                    rows.words.resize((data.size as usize).next_multiple_of(4096) / 4, 0);
                }
                code => return Err(f.failure(code)),
            }
        }
    }
}

impl Drop for Cursor<'_> {
    fn drop(&mut self) {
        // SAFETY: open, and not used again.
        unsafe { (self.database.functions.__dbc_close_pp)(self.handle) };
    }
}

/// Rows in the library's form for many at once: their bytes from the front, and from the back four numbers for each: offset and
/// length of the key, offset and length of the value. Behind the last are 32 bits that are set.
pub(super) struct Rows {
    /// Words, because the numbers must be aligned.
    words: Vec<u32>,
    key: Vec<u8>,
}

impl Rows {
    /// Room for so many bytes of rows, in steps of 4096.
    pub(super) fn new(bytes: usize) -> Rows {
        Rows { words: vec![0; bytes.next_multiple_of(4096) / 4], key: Vec::with_capacity(256) }
    }

    /// Hands on the rows that were read, until `row` says that it is enough. False if it did.
    pub(super) fn each(&self, row: &mut OnRow<'_, bool>) -> Result<bool> {
        // SAFETY: bytes may be looked at instead of words, and all of these are initialized.
        let bytes = unsafe { library::bytes(self.words.as_ptr().cast(), self.words.len() * 4) }?;
        let part = |offset: u32, length: u32| bytes.get(offset as usize..)?.get(..length as usize);
        let mut numbers = self.words.iter().rev().copied();
        while let Some(key_offset) = numbers.next() {
            if key_offset == u32::MAX {
                return Ok(true);
            }
            let (Some(key_length), Some(offset), Some(length)) =
                (numbers.next(), numbers.next(), numbers.next())
            else {
                break;
            };
            let (Some(key), Some(value)) = (part(key_offset, key_length), part(offset, length)) else {
                break;
            };
            if !row(key, value)? {
                return Ok(false);
            }
        }
        bail!("Berkeley DB returned rows outside of their buffer")
    }
}
