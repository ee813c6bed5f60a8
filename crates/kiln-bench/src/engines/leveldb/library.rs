//! The functions of LevelDB's `c.h` that are used, and what is safe of them.
//!
//! LevelDB's database and options may be used by all threads at once. Keys and values are only read during a call, and what it
//! returns is copied before it is released.

#![allow(unsafe_code)]

use std::ffi::{c_char, c_int, c_uchar};
use std::path::Path;
use std::ptr::null_mut;

use anyhow::Result;

use crate::engines::OnRow;
use crate::engines::library::{self, Handle, functions, opaque};

opaque! { Cache DatabaseOptions Filter Iterator RawBatch RawDatabase ReadOptions WriteOptions }

type Message = *mut *mut c_char;

functions! {
    "libleveldb.so.1d", "LevelDB 1.23",
    fn leveldb_free(*mut u8);
    fn leveldb_options_create() -> *mut DatabaseOptions;
    fn leveldb_options_destroy(*mut DatabaseOptions);
    fn leveldb_options_set_create_if_missing(*mut DatabaseOptions, c_uchar);
    fn leveldb_options_set_write_buffer_size(*mut DatabaseOptions, usize);
    fn leveldb_options_set_max_open_files(*mut DatabaseOptions, c_int);
    fn leveldb_options_set_max_file_size(*mut DatabaseOptions, usize);
    fn leveldb_options_set_compression(*mut DatabaseOptions, c_int);
    fn leveldb_options_set_cache(*mut DatabaseOptions, *mut Cache);
    fn leveldb_options_set_filter_policy(*mut DatabaseOptions, *mut Filter);
    fn leveldb_cache_create_lru(usize) -> *mut Cache;
    fn leveldb_cache_destroy(*mut Cache);
    fn leveldb_filterpolicy_create_bloom(c_int) -> *mut Filter;
    fn leveldb_filterpolicy_destroy(*mut Filter);
    fn leveldb_readoptions_create() -> *mut ReadOptions;
    fn leveldb_readoptions_destroy(*mut ReadOptions);
    fn leveldb_writeoptions_create() -> *mut WriteOptions;
    fn leveldb_writeoptions_destroy(*mut WriteOptions);
    fn leveldb_writeoptions_set_sync(*mut WriteOptions, c_uchar);
    fn leveldb_open(*const DatabaseOptions, *const c_char, Message) -> *mut RawDatabase;
    fn leveldb_close(*mut RawDatabase);
    fn leveldb_get(*mut RawDatabase, *const ReadOptions, *const u8, usize, *mut usize, Message) -> *mut u8;
    fn leveldb_put(*mut RawDatabase, *const WriteOptions, *const u8, usize, *const u8, usize, Message);
    fn leveldb_write(*mut RawDatabase, *const WriteOptions, *mut RawBatch, Message);
    fn leveldb_writebatch_create() -> *mut RawBatch;
    fn leveldb_writebatch_destroy(*mut RawBatch);
    fn leveldb_writebatch_clear(*mut RawBatch);
    fn leveldb_writebatch_put(*mut RawBatch, *const u8, usize, *const u8, usize);
    fn leveldb_create_iterator(*mut RawDatabase, *const ReadOptions) -> *mut Iterator;
    fn leveldb_iter_destroy(*mut Iterator);
    fn leveldb_iter_valid(*const Iterator) -> c_uchar;
    fn leveldb_iter_seek(*mut Iterator, *const u8, usize);
    fn leveldb_iter_next(*mut Iterator);
    fn leveldb_iter_key(*const Iterator, *mut usize) -> *const u8;
    fn leveldb_iter_value(*const Iterator, *mut usize) -> *const u8;
    fn leveldb_iter_get_error(*const Iterator, Message);
    fn leveldb_major_version() -> c_int;
    fn leveldb_minor_version() -> c_int;
}

/// The version that is installed.
pub(super) fn version() -> Result<String> {
    let f = Functions::get()?;
    // SAFETY: these take nothing and return a number.
    let (major, minor) = unsafe { ((f.leveldb_major_version)(), (f.leveldb_minor_version)()) };
    Ok(format!("{major}.{minor}"))
}

/// What is chosen where a database is created.
pub(super) struct Options {
    pub(super) cache_bytes: usize,
    pub(super) write_buffer_bytes: usize,
    pub(super) file_bytes: usize,
    pub(super) open_files: c_int,
    pub(super) bloom_bits: c_int,
}

/// An open database. What it uses comes after it.
pub(super) struct Database {
    database: Handle<RawDatabase>,
    _cache: Handle<Cache>,
    _filter: Handle<Filter>,
    read: Handle<ReadOptions>,
    /// Without and with a sync.
    write: [Handle<WriteOptions>; 2],
    functions: &'static Functions,
}

// SAFETY: `DB` and options that nobody changes may be used by all threads at once, as the headers `db.h` and `c.h` say.
unsafe impl Send for Database {}
// SAFETY: as above.
unsafe impl Sync for Database {}

impl Database {
    /// Creates a database.
    pub(super) fn create(path: &Path, chosen: &Options) -> Result<Database> {
        const NO_COMPRESSION: c_int = 0;
        let f = Functions::get()?;
        let path = library::c_path(path)?;
        let mut message = null_mut();
        // SAFETY: each object is made and destroyed by functions that belong together; the database uses the cache and the filter
        // until it is closed, which the order of the fields sees to, and keeps a copy of its options.
        unsafe {
            let options = (f.leveldb_options_create)();
            let options = Handle::new(options, f.leveldb_options_destroy, "options")?;
            let cache = (f.leveldb_cache_create_lru)(chosen.cache_bytes);
            let cache = Handle::new(cache, f.leveldb_cache_destroy, "cache")?;
            let filter = (f.leveldb_filterpolicy_create_bloom)(chosen.bloom_bits);
            let filter = Handle::new(filter, f.leveldb_filterpolicy_destroy, "filter")?;
            (f.leveldb_options_set_create_if_missing)(options.pointer(), 1);
            (f.leveldb_options_set_write_buffer_size)(options.pointer(), chosen.write_buffer_bytes);
            (f.leveldb_options_set_max_open_files)(options.pointer(), chosen.open_files);
            (f.leveldb_options_set_max_file_size)(options.pointer(), chosen.file_bytes);
            (f.leveldb_options_set_compression)(options.pointer(), NO_COMPRESSION);
            (f.leveldb_options_set_cache)(options.pointer(), cache.pointer());
            (f.leveldb_options_set_filter_policy)(options.pointer(), filter.pointer());
            let database = (f.leveldb_open)(options.pointer(), path.as_ptr(), &mut message);
            library::check(message, f.leveldb_free)?;
            let database = Handle::new(database, f.leveldb_close, "database")?;
            let read = (f.leveldb_readoptions_create)();
            Ok(Database {
                database,
                _cache: cache,
                _filter: filter,
                read: Handle::new(read, f.leveldb_readoptions_destroy, "options")?,
                write: [write_options(f, false)?, write_options(f, true)?],
                functions: f,
            })
        }
    }

    /// Calls a function whose last argument takes a message.
    #[inline]
    fn call<T>(&self, call: impl FnOnce(Message) -> T) -> Result<T> {
        let mut message = null_mut();
        let result = call(&mut message);
        // SAFETY: the library's functions leave null, or a text that this function of theirs frees.
        unsafe { library::check(message, self.functions.leveldb_free) }?;
        Ok(result)
    }

    #[inline]
    fn write_options(&self, durably: bool) -> *const WriteOptions {
        self.write[usize::from(durably)].pointer()
    }

    /// Reads a value.
    #[inline]
    pub(super) fn get(&self, key: &[u8], value: &mut Vec<u8>) -> Result<bool> {
        let (f, read, mut length) = (self.functions, self.read.pointer(), 0);
        value.clear();
        // SAFETY: the handles live, and the key has this many bytes.
        let found = self.call(|message| unsafe {
            (f.leveldb_get)(self.database.pointer(), read, key.as_ptr(), key.len(), &mut length, message)
        })?;
        if found.is_null() {
            return Ok(false);
        }
        // SAFETY: not null, so an array of `length` bytes that the library has made for the caller; it is freed once, here, and
        // copied before that.
        unsafe {
            let copied = library::bytes(found, length).map(|bytes| value.extend_from_slice(bytes));
            (f.leveldb_free)(found);
            copied?;
        }
        Ok(true)
    }

    /// Writes one key.
    #[inline]
    pub(super) fn put(&self, key: &[u8], value: &[u8], durably: bool) -> Result<()> {
        let (f, database, options) = (self.functions, self.database.pointer(), self.write_options(durably));
        // SAFETY: the handles live, and key and value have this many bytes.
        self.call(|message| unsafe {
            (f.leveldb_put)(database, options, key.as_ptr(), key.len(), value.as_ptr(), value.len(), message)
        })
    }

    /// Makes an empty batch.
    pub(super) fn batch(&self) -> Result<Batch> {
        let f = self.functions;
        // SAFETY: made and destroyed by functions that belong together.
        let handle = unsafe {
            let batch = (f.leveldb_writebatch_create)();
            Handle::new(batch, f.leveldb_writebatch_destroy, "batch")
        }?;
        Ok(Batch { handle, functions: f })
    }

    /// Writes what a batch holds, at once.
    pub(super) fn write(&self, batch: &Batch, durably: bool) -> Result<()> {
        let options = self.write_options(durably);
        // SAFETY: the handles live.
        self.call(|message| unsafe {
            (self.functions.leveldb_write)(self.database.pointer(), options, batch.handle.pointer(), message)
        })
    }

    /// Reads rows from a key on, until there are no more or `row` says that it is enough.
    pub(super) fn scan(&self, from: &[u8], row: &mut OnRow<'_, bool>) -> Result<()> {
        let f = self.functions;
        // SAFETY: the iterator is destroyed with its handle, before the database that it reads; key and value are only asked
        // for where it is valid, and used before it moves on.
        unsafe {
            let iterator = (f.leveldb_create_iterator)(self.database.pointer(), self.read.pointer());
            let iterator = Handle::new(iterator, f.leveldb_iter_destroy, "iterator")?;
            (f.leveldb_iter_seek)(iterator.pointer(), from.as_ptr(), from.len());
            while (f.leveldb_iter_valid)(iterator.pointer()) != 0 {
                let (mut key_length, mut value_length) = (0, 0);
                let key = (f.leveldb_iter_key)(iterator.pointer(), &mut key_length);
                let value = (f.leveldb_iter_value)(iterator.pointer(), &mut value_length);
                if !row(library::bytes(key, key_length)?, library::bytes(value, value_length)?)? {
                    break;
                }
                (f.leveldb_iter_next)(iterator.pointer());
            }
            self.call(|message| (f.leveldb_iter_get_error)(iterator.pointer(), message))
        }
    }
}

fn write_options(f: &Functions, sync: bool) -> Result<Handle<WriteOptions>> {
    // SAFETY: made and destroyed by functions that belong together.
    unsafe {
        let options = (f.leveldb_writeoptions_create)();
        let options = Handle::new(options, f.leveldb_writeoptions_destroy, "options")?;
        (f.leveldb_writeoptions_set_sync)(options.pointer(), sync.into());
        Ok(options)
    }
}

/// Writes that are collected.
pub(super) struct Batch {
    handle: Handle<RawBatch>,
    functions: &'static Functions,
}

impl Batch {
    /// Forgets what it holds.
    pub(super) fn clear(&mut self) {
        // SAFETY: the handle lives.
        unsafe { (self.functions.leveldb_writebatch_clear)(self.handle.pointer()) };
    }

    /// Adds a write.
    pub(super) fn put(&mut self, key: &[u8], value: &[u8]) {
        let put = self.functions.leveldb_writebatch_put;
        // SAFETY: the handle lives; key and value have this many bytes, and are copied.
        unsafe { put(self.handle.pointer(), key.as_ptr(), key.len(), value.as_ptr(), value.len()) };
    }
}
