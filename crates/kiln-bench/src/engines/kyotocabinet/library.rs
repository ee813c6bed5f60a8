//! The functions of Kyoto Cabinet's `kclangc.h` that are used, and what is safe of them.
//!
//! A Kyoto Cabinet database may be used by all threads at once, and keeps the error of each of them apart; a cursor belongs to one
//! call here. Values are visited where they are, which saves the library an allocation and a copy.

#![allow(unsafe_code)]

use std::ffi::{CString, c_char, c_void};

use anyhow::{Result, bail};

use crate::engines::OnRow;
use crate::engines::library::{self, Handle, functions, opaque};
use crate::generate::Entry;

opaque! { RawCursor RawDatabase }

/// What a visitor is called with: key, value, where the size of a new value goes, and the caller's own pointer.
type VisitFull =
    unsafe extern "C" fn(*const u8, usize, *const u8, usize, *mut usize, *mut c_void) -> *const u8;
type VisitEmpty = unsafe extern "C" fn(*const u8, usize, *mut usize, *mut c_void) -> *const u8;

#[repr(C)]
struct RawText {
    start: *const u8,
    size: usize,
}

#[repr(C)]
struct RawRecord {
    key: RawText,
    value: RawText,
}

functions! {
    "libkyotocabinet.so.16", "Kyoto Cabinet 1.2",
    fn kcdbnew() -> *mut RawDatabase;
    fn kcdbdel(*mut RawDatabase);
    fn kcdbopen(*mut RawDatabase, *const c_char, u32) -> i32;
    fn kcdbclose(*mut RawDatabase) -> i32;
    fn kcdbecode(*mut RawDatabase) -> i32;
    fn kcdbemsg(*mut RawDatabase) -> *const c_char;
    fn kcdbgetbuf(*mut RawDatabase, *const u8, usize, *mut u8, usize) -> i32;
    fn kcdbset(*mut RawDatabase, *const u8, usize, *const u8, usize) -> i32;
    fn kcdbsetbulk(*mut RawDatabase, *const RawRecord, usize, i32) -> i64;
    fn kcdbaccept(*mut RawDatabase, *const u8, usize, VisitFull, VisitEmpty, *mut c_void, i32) -> i32;
    fn kcdbsync(*mut RawDatabase, i32, *const c_void, *mut c_void) -> i32;
    fn kcdbbegintran(*mut RawDatabase, i32) -> i32;
    fn kcdbendtran(*mut RawDatabase, i32) -> i32;
    fn kcdbcount(*mut RawDatabase) -> i64;
    fn kcdbcursor(*mut RawDatabase) -> *mut RawCursor;
    fn kccurdel(*mut RawCursor);
    fn kccurjumpkey(*mut RawCursor, *const u8, usize) -> i32;
    fn kccurjump(*mut RawCursor) -> i32;
    fn kccuraccept(*mut RawCursor, VisitFull, *mut c_void, i32, i32) -> i32;
    static KCVERSION: *const c_char;
    static KCVISNOP: *const u8;
}

/// The code of the error that there is no such record, or no more.
const NO_RECORD: i32 = 7;

/// The version that is installed.
pub(super) fn version() -> Result<String> {
    let f = Functions::get()?;
    // SAFETY: a constant text of the library.
    Ok(unsafe { library::text(*f.KCVERSION) })
}

/// An open database.
pub(super) struct Database {
    handle: Handle<RawDatabase>,
    functions: &'static Functions,
}

// SAFETY: the library's manual: all databases are thread-safe, and errors belong to the thread.
unsafe impl Send for Database {}
// SAFETY: as above.
unsafe impl Sync for Database {}

impl Database {
    /// Creates a database: the path names its kind and carries its tuning.
    pub(super) fn create(path: &str) -> Result<Database> {
        const WRITER: u32 = 1 << 1;
        const CREATE: u32 = 1 << 2;
        let (f, path) = (Functions::get()?, CString::new(path)?);
        // SAFETY: made and destroyed by functions that belong together.
        let handle = unsafe { Handle::new((f.kcdbnew)(), f.kcdbdel, "database") }?;
        let database = Database { handle, functions: f };
        // SAFETY: the handle lives, and the path ends with zero.
        let opened = unsafe { (f.kcdbopen)(database.handle.pointer(), path.as_ptr(), WRITER | CREATE) };
        database.check(opened != 0)?;
        Ok(database)
    }

    /// Closes it, and says whether that went well.
    pub(super) fn close(self) -> Result<()> {
        // SAFETY: the handle lives, and is only destroyed after this.
        let closed = unsafe { (self.functions.kcdbclose)(self.handle.pointer()) };
        self.check(closed != 0)
    }

    /// The error of this thread's last call.
    fn error_code(&self) -> i32 {
        // SAFETY: the handle lives.
        unsafe { (self.functions.kcdbecode)(self.handle.pointer()) }
    }

    #[inline]
    fn check(&self, well: bool) -> Result<()> {
        if well {
            return Ok(());
        }
        // SAFETY: the handle lives, and the message is a constant text of the library or of this thread.
        let message = unsafe { library::text((self.functions.kcdbemsg)(self.handle.pointer())) };
        bail!("Kyoto Cabinet's error {}: {message}", self.error_code())
    }

    /// Reads a value.
    #[inline]
    pub(super) fn get(&self, key: &[u8], value: &mut Vec<u8>) -> Result<bool> {
        loop {
            value.clear();
            let (start, room) = (value.as_mut_ptr(), value.capacity());
            // SAFETY: the key has this many bytes, and the value room for so many.
            let size = unsafe {
                let get = self.functions.kcdbgetbuf;
                get(self.handle.pointer(), key.as_ptr(), key.len(), start, room)
            };
            let Ok(size) = usize::try_from(size) else {
                self.check(self.error_code() == NO_RECORD)?;
                return Ok(false);
            };
            if size <= room {
                // SAFETY: there is room for as many, and the library has written them all.
                unsafe { value.set_len(size) };
                return Ok(true);
            }
            value.reserve(size);
        }
    }

    /// Writes one key.
    #[inline]
    pub(super) fn put(&self, key: &[u8], value: &[u8]) -> Result<()> {
        let set = self.functions.kcdbset;
        // SAFETY: key and value have this many bytes.
        let well =
            unsafe { set(self.handle.pointer(), key.as_ptr(), key.len(), value.as_ptr(), value.len()) };
        self.check(well != 0)
    }

    /// Writes some keys, so that nobody sees some of them only.
    pub(super) fn put_all(&self, entries: &[Entry]) -> Result<()> {
        const ATOMIC: i32 = 1;
        let text = |bytes: &[u8]| RawText { start: bytes.as_ptr(), size: bytes.len() };
        let record = |entry: &Entry| RawRecord { key: text(&entry.key), value: text(&entry.value) };
        let records: Vec<RawRecord> = entries.iter().map(record).collect();
        // SAFETY: so many records, which borrow keys and values that live until after the call.
        let written = unsafe {
            (self.functions.kcdbsetbulk)(self.handle.pointer(), records.as_ptr(), records.len(), ATOMIC)
        };
        self.check(written >= 0)
    }

    /// Changes the value of a key in one step. False if the key is not there.
    #[inline]
    pub(super) fn change(
        &self,
        key: &[u8],
        value: &mut Vec<u8>,
        change: &mut dyn FnMut(&mut Vec<u8>) -> Result<()>,
    ) -> Result<bool> {
        let mut visit = Change { value, change, outcome: Ok(false), no_change: self.no_change() };
        let accept = self.functions.kcdbaccept;
        // SAFETY: the key has this many bytes; the visitors get back the pointer to `visit`, which lives, only during the call.
        let well = unsafe {
            let visit = (&raw mut visit).cast();
            accept(self.handle.pointer(), key.as_ptr(), key.len(), change_full, change_empty, visit, 1)
        };
        self.check(well != 0)?;
        visit.outcome
    }

    /// What a visitor returns that changes nothing.
    fn no_change(&self) -> *const u8 {
        // SAFETY: a constant of the library.
        unsafe { *self.functions.KCVISNOP }
    }

    /// Hands all changes to the device.
    pub(super) fn sync(&self) -> Result<()> {
        const HARD: i32 = 1;
        // SAFETY: the handle lives; without a function to be called there is nothing to call it with.
        let well = unsafe {
            (self.functions.kcdbsync)(self.handle.pointer(), HARD, std::ptr::null(), std::ptr::null_mut())
        };
        self.check(well != 0)
    }

    /// Does something as a transaction, which is durable at its end if `durably`. Others must not write meanwhile: what they write
    /// would be part of it.
    pub(super) fn transact(&self, durably: bool, body: impl FnOnce() -> Result<()>) -> Result<()> {
        let (f, handle) = (self.functions, self.handle.pointer());
        // SAFETY: the handle lives.
        self.check(unsafe { (f.kcdbbegintran)(handle, durably.into()) } != 0)?;
        let done = body();
        // SAFETY: the handle lives, and the transaction has begun.
        let ended = self.check(unsafe { (f.kcdbendtran)(handle, done.is_ok().into()) } != 0);
        done.and(ended)
    }

    /// How many keys there are.
    pub(super) fn count(&self) -> Result<u64> {
        // SAFETY: the handle lives.
        let count = unsafe { (self.functions.kcdbcount)(self.handle.pointer()) };
        self.check(count >= 0)?;
        Ok(count.cast_unsigned())
    }

    /// Reads rows from a key on, until there are no more or `row` says that it is enough.
    pub(super) fn scan(&self, from: &[u8], row: &mut OnRow<'_, bool>) -> Result<()> {
        const STEP: i32 = 1;
        let f = self.functions;
        let mut visit = Scan { row, outcome: Ok(true), no_change: self.no_change() };
        // SAFETY: the cursor is destroyed with its handle, before the database; the key has this many bytes; the visitor gets back
        // the pointer to `visit`, which lives, only during the calls.
        unsafe {
            let cursor = (f.kcdbcursor)(self.handle.pointer());
            let cursor = Handle::new(cursor, f.kccurdel, "cursor")?;
            let mut there = if from.is_empty() {
                (f.kccurjump)(cursor.pointer())
            } else {
                (f.kccurjumpkey)(cursor.pointer(), from.as_ptr(), from.len())
            };
            while there != 0 && matches!(visit.outcome, Ok(true)) {
                let pointer = (&raw mut visit).cast();
                there = (f.kccuraccept)(cursor.pointer(), visit_row, pointer, 0, STEP);
            }
            if there == 0 {
                self.check(self.error_code() == NO_RECORD)?;
            }
        }
        visit.outcome.map(drop)
    }
}

/// One change of one value.
struct Change<'a> {
    value: &'a mut Vec<u8>,
    change: &'a mut dyn FnMut(&mut Vec<u8>) -> Result<()>,
    outcome: Result<bool>,
    no_change: *const u8,
}

unsafe extern "C" fn change_full(
    _key: *const u8,
    _key_size: usize,
    value: *const u8,
    value_size: usize,
    new_size: *mut usize,
    visit: *mut c_void,
) -> *const u8 {
    // SAFETY: `Database::change` passes this pointer, and uses nothing of it meanwhile.
    let visit = unsafe { &mut *visit.cast::<Change<'_>>() };
    // SAFETY: the library points to a value of this size during the call.
    let changed = unsafe { library::bytes(value, value_size) }.and_then(|old| {
        visit.value.clear();
        visit.value.extend_from_slice(old);
        (visit.change)(visit.value)
    });
    visit.outcome = changed.map(|()| true);
    if visit.outcome.is_err() {
        return visit.no_change;
    }
    // SAFETY: the library passes where the size goes, and reads the new value before the visit ends.
    unsafe { *new_size = visit.value.len() };
    visit.value.as_ptr()
}

unsafe extern "C" fn change_empty(
    _key: *const u8,
    _key_size: usize,
    _new_size: *mut usize,
    visit: *mut c_void,
) -> *const u8 {
    // SAFETY: `Database::change` passes this pointer, and uses nothing of it meanwhile.
    unsafe { (*visit.cast::<Change<'_>>()).no_change }
}

/// Rows that are read.
struct Scan<'a> {
    row: &'a mut OnRow<'a, bool>,
    /// Whether more rows are wanted.
    outcome: Result<bool>,
    no_change: *const u8,
}

unsafe extern "C" fn visit_row(
    key: *const u8,
    key_size: usize,
    value: *const u8,
    value_size: usize,
    _new_size: *mut usize,
    visit: *mut c_void,
) -> *const u8 {
    // SAFETY: `Database::scan` passes this pointer, and uses nothing of it meanwhile.
    let visit = unsafe { &mut *visit.cast::<Scan<'_>>() };
    // SAFETY: the library points to a key and a value of these sizes during the call.
    let texts = unsafe { (library::bytes(key, key_size), library::bytes(value, value_size)) };
    visit.outcome = match texts {
        (Ok(key), Ok(value)) => (visit.row)(key, value),
        (key, value) => key.and(value).map(|_| false),
    };
    visit.no_change
}
