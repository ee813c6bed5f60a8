//! FASTER's functions, as `store.cc` offers them, made safe.
#![allow(unsafe_code)]

use std::ffi::{CStr, CString, c_char, c_void};
use std::marker::PhantomData;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr::NonNull;

use anyhow::{Context, Result, anyhow, bail, ensure};

/// What the functions return, as in `store.cc`.
const DONE: u8 = 0;
const MISSING: u8 = 1;
const SIZE: u8 = 2;
const THREADS: u8 = 3;

/// The C++ class.
#[repr(C)]
struct Opaque {
    _private: [u8; 0],
}

type KeyVisitor = extern "C" fn(*mut c_void, *const u8, u64);

unsafe extern "C" {
    fn kiln_faster_open(
        directory: *const c_char,
        buckets: u64,
        log_bytes: u64,
        mutable_part: f64,
        words: bool,
        reason: *mut c_char,
        reason_bytes: u64,
    ) -> *mut Opaque;
    fn kiln_faster_close(store: *mut Opaque);
    fn kiln_faster_start(store: *mut Opaque) -> u8;
    fn kiln_faster_stop(store: *mut Opaque);
    fn kiln_faster_refresh(store: *mut Opaque);
    fn kiln_faster_read(
        store: *mut Opaque,
        key: *const u8,
        key_length: u64,
        value: *mut u8,
        capacity: u64,
        length: *mut u64,
    ) -> u8;
    fn kiln_faster_upsert(
        store: *mut Opaque,
        key: *const u8,
        key_length: u64,
        value: *const u8,
        length: u64,
    ) -> u8;
    fn kiln_faster_add(store: *mut Opaque, key: *const u8, key_length: u64, delta: u64) -> u8;
    fn kiln_faster_checkpoint(store: *mut Opaque) -> u8;
    fn kiln_faster_visit_keys(store: *mut Opaque, visit: KeyVisitor, target: *mut c_void) -> u8;
}

/// How a store is opened.
pub(super) struct Tuning {
    /// How many buckets the index has: a power of two.
    pub(super) buckets: u64,
    /// Memory of the log: a multiple of its pages.
    pub(super) log_bytes: u64,
    /// The part of the log's memory that is updated in place.
    pub(super) mutable_part: f64,
    /// Whether all keys and values have eight bytes.
    pub(super) words: bool,
}

/// An open store.
pub(super) struct Store {
    store: NonNull<Opaque>,
}

// SAFETY: FASTER is made for many threads, and belongs to none; what belongs to a thread is its session, see `Session`.
unsafe impl Send for Store {}
// SAFETY: As above. Everything but opening and closing may be called by many threads at once, and closing needs the store alone.
unsafe impl Sync for Store {}

impl Store {
    /// Opens a new store in an empty directory.
    pub(super) fn open(directory: &Path, tuning: &Tuning) -> Result<Store> {
        let path = CString::new(directory.as_os_str().as_bytes())
            .with_context(|| format!("the path {} holds a zero byte", directory.display()))?;
        let mut reason = [0 as c_char; 256];
        // SAFETY: The path and the buffer for the reason live as long as the call, and the buffer has the length that is given.
        let store = unsafe {
            kiln_faster_open(
                path.as_ptr(),
                tuning.buckets,
                tuning.log_bytes,
                tuning.mutable_part,
                tuning.words,
                reason.as_mut_ptr(),
                reason.len() as u64,
            )
        };
        let Some(store) = NonNull::new(store) else {
            // SAFETY: The reason is zero at first, and what is written to it ends with a zero.
            let reason = unsafe { CStr::from_ptr(reason.as_ptr()) }.to_string_lossy();
            bail!("cannot create a FASTER store in {}: {reason}", directory.display());
        };
        Ok(Store { store })
    }

    /// A session of this thread.
    pub(super) fn session(&self) -> Result<Session<'_>> {
        // SAFETY: The store is open as long as `self`.
        match unsafe { kiln_faster_start(self.store.as_ptr()) } {
            DONE => Ok(Session { store: self, thread: PhantomData }),
            THREADS => bail!("FASTER has room for 96 threads: use fewer"),
            _ => Err(failed("begin a session")),
        }
    }

    /// Writes a checkpoint, and returns when it is complete. Waits for the sessions of all threads, which have to go on
    /// working, or be dropped.
    pub(super) fn checkpoint(&self) -> Result<()> {
        let session = self.session()?;
        // SAFETY: The store is open as long as `self`.
        let outcome = unsafe { kiln_faster_checkpoint(self.store.as_ptr()) };
        drop(session);
        ensure!(outcome == DONE, failed("write a checkpoint"));
        Ok(())
    }

    /// Hands on the keys of all records in the log, each as often as it was written to a new place.
    pub(super) fn visit_keys(&self, mut visit: impl FnMut(&[u8])) -> Result<()> {
        extern "C" fn call(target: *mut c_void, key: *const u8, length: u64) {
            // SAFETY: The target is the pointer to `visit` below, which nobody else uses during the call; a key has the length
            // that comes with it, and stays where it is until this returns.
            let (visit, key) = unsafe {
                (
                    &mut *target.cast::<&mut dyn FnMut(&[u8])>(),
                    std::slice::from_raw_parts(key, length as usize),
                )
            };
            visit(key);
        }
        let session = self.session()?;
        let mut visit: &mut dyn FnMut(&[u8]) = &mut visit;
        // SAFETY: The store is open as long as `self`; `visit` lives as long as the call, and `call` expects a pointer to it.
        let outcome =
            unsafe { kiln_faster_visit_keys(self.store.as_ptr(), call, (&raw mut visit).cast::<c_void>()) };
        drop(session);
        ensure!(outcome == DONE, failed("read the log"));
        Ok(())
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        // SAFETY: The store is open, and no session is left: each borrows it.
        unsafe { kiln_faster_close(self.store.as_ptr()) }
    }
}

/// A thread's session. FASTER keeps it in the thread, so it stays there.
pub(super) struct Session<'a> {
    store: &'a Store,
    thread: PhantomData<*const ()>,
}

impl Session<'_> {
    /// Lets other threads see that this one has come so far. To be called every now and then: without it, neither pages of the
    /// log nor checkpoints go on.
    #[inline]
    pub(super) fn refresh(&self) {
        // SAFETY: The store is open as long as `self`, and this thread has a session.
        unsafe { kiln_faster_refresh(self.store.store.as_ptr()) }
    }

    /// Reads a value into `value`, in place of what was there. False if the key is not there.
    #[inline]
    pub(super) fn read(&self, key: &[u8], value: &mut Vec<u8>) -> Result<bool> {
        value.clear();
        if value.capacity() < size_of::<u64>() {
            value.reserve(size_of::<u64>());
        }
        loop {
            let mut length = 0;
            // SAFETY: The store is open as long as `self`, and this thread has a session; key and value are valid for as many
            // bytes as are given, and are not kept when the call returns.
            let outcome = unsafe {
                kiln_faster_read(
                    self.store.store.as_ptr(),
                    key.as_ptr(),
                    key.len() as u64,
                    value.as_mut_ptr(),
                    value.capacity() as u64,
                    &raw mut length,
                )
            };
            match outcome {
                DONE if length as usize <= value.capacity() => {
                    // SAFETY: FASTER has written so many bytes, which are not more than there is room for.
                    unsafe { value.set_len(length as usize) };
                    return Ok(true);
                }
                // The value did not fit and was not read.
                DONE => value.reserve(length as usize),
                MISSING => return Ok(false),
                other => return Err(refused(other, "read")),
            }
        }
    }

    /// Writes a key.
    #[inline]
    pub(super) fn upsert(&self, key: &[u8], value: &[u8]) -> Result<()> {
        // SAFETY: As for `read`.
        let outcome = unsafe {
            kiln_faster_upsert(
                self.store.store.as_ptr(),
                key.as_ptr(),
                key.len() as u64,
                value.as_ptr(),
                value.len() as u64,
            )
        };
        if outcome == DONE { Ok(()) } else { Err(refused(outcome, "write")) }
    }

    /// Adds to the first word of a key's value. False if the key was not there; it is now.
    #[inline]
    pub(super) fn add(&self, key: &[u8], delta: u64) -> Result<bool> {
        // SAFETY: As for `read`.
        let outcome =
            unsafe { kiln_faster_add(self.store.store.as_ptr(), key.as_ptr(), key.len() as u64, delta) };
        match outcome {
            DONE => Ok(true),
            MISSING => Ok(false),
            other => Err(refused(other, "add")),
        }
    }
}

impl Drop for Session<'_> {
    fn drop(&mut self) {
        // SAFETY: The store is open as long as `self`, and the session that ends is one of this thread.
        unsafe { kiln_faster_stop(self.store.store.as_ptr()) }
    }
}

#[cold]
fn refused(outcome: u8, what: &str) -> anyhow::Error {
    match outcome {
        SIZE => anyhow!(
            "FASTER was opened for keys or values of other sizes than it was asked to {what}: give all the sizes of the settings"
        ),
        _ => failed(what),
    }
}

#[cold]
fn failed(what: &str) -> anyhow::Error {
    anyhow!(
        "FASTER could not {what}: see what it printed above; mostly it is short of memory or of space on the device"
    )
}
