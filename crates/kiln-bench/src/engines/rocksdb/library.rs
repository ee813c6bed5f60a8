//! The functions of RocksDB's `c.h` that are used, and what is safe of them.
//!
//! RocksDB's database, options and caches may be used by all threads at once; its transactions by one at a time, which `&mut`
//! sees to. Keys and values are only read during a call, and what it returns is copied before it is released.

#![allow(unsafe_code)]

use std::ffi::{c_char, c_int, c_uchar};
use std::path::Path;
use std::ptr::{null, null_mut};

use anyhow::{Context, Result};

use crate::engines::OnRow;
use crate::engines::library::{self, Handle, functions, opaque};
use crate::generate::{Entry, Key};

opaque! {
    Base Batch Cache ColumnFamily DatabaseOptions Filter FlushOptions Iterator Pinned RawTransaction ReadOptions Snapshot
    TableOptions TransactionDatabase TransactionOptions WriteOptions
}

type Message = *mut *mut c_char;

functions! {
    "librocksdb.so.7.8", "RocksDB 7.8",
    fn rocksdb_free(*mut u8);
    fn rocksdb_options_create() -> *mut DatabaseOptions;
    fn rocksdb_options_destroy(*mut DatabaseOptions);
    fn rocksdb_options_set_create_if_missing(*mut DatabaseOptions, c_uchar);
    fn rocksdb_options_increase_parallelism(*mut DatabaseOptions, c_int);
    fn rocksdb_options_set_write_buffer_size(*mut DatabaseOptions, usize);
    fn rocksdb_options_set_max_write_buffer_number(*mut DatabaseOptions, c_int);
    fn rocksdb_options_set_use_direct_reads(*mut DatabaseOptions, c_uchar);
    fn rocksdb_options_set_use_direct_io_for_flush_and_compaction(*mut DatabaseOptions, c_uchar);
    fn rocksdb_options_set_max_open_files(*mut DatabaseOptions, c_int);
    fn rocksdb_options_set_compression(*mut DatabaseOptions, c_int);
    fn rocksdb_options_set_bytes_per_sync(*mut DatabaseOptions, u64);
    fn rocksdb_options_set_level_compaction_dynamic_level_bytes(*mut DatabaseOptions, c_uchar);
    fn rocksdb_options_set_memtable_prefix_bloom_size_ratio(*mut DatabaseOptions, f64);
    fn rocksdb_options_set_memtable_whole_key_filtering(*mut DatabaseOptions, c_uchar);
    fn rocksdb_options_set_manual_wal_flush(*mut DatabaseOptions, c_uchar);
    fn rocksdb_options_set_block_based_table_factory(*mut DatabaseOptions, *mut TableOptions);
    fn rocksdb_block_based_options_create() -> *mut TableOptions;
    fn rocksdb_block_based_options_destroy(*mut TableOptions);
    fn rocksdb_block_based_options_set_block_cache(*mut TableOptions, *mut Cache);
    fn rocksdb_block_based_options_set_filter_policy(*mut TableOptions, *mut Filter);
    fn rocksdb_block_based_options_set_data_block_index_type(*mut TableOptions, c_int);
    fn rocksdb_block_based_options_set_data_block_hash_ratio(*mut TableOptions, f64);
    fn rocksdb_filterpolicy_create_bloom_full(f64) -> *mut Filter;
    fn rocksdb_cache_create_lru(usize) -> *mut Cache;
    fn rocksdb_cache_destroy(*mut Cache);
    fn rocksdb_readoptions_create() -> *mut ReadOptions;
    fn rocksdb_readoptions_destroy(*mut ReadOptions);
    fn rocksdb_readoptions_set_snapshot(*mut ReadOptions, *const Snapshot);
    fn rocksdb_writeoptions_create() -> *mut WriteOptions;
    fn rocksdb_writeoptions_destroy(*mut WriteOptions);
    fn rocksdb_writeoptions_set_sync(*mut WriteOptions, c_uchar);
    fn rocksdb_optimistictransactiondb_open_column_families(
        *const DatabaseOptions, *const c_char, c_int, *const *const c_char, *const *const DatabaseOptions,
        *mut *mut ColumnFamily, Message,
    ) -> *mut TransactionDatabase;
    fn rocksdb_optimistictransactiondb_close(*mut TransactionDatabase);
    fn rocksdb_optimistictransactiondb_get_base_db(*mut TransactionDatabase) -> *mut Base;
    fn rocksdb_optimistictransactiondb_close_base_db(*mut Base);
    fn rocksdb_column_family_handle_destroy(*mut ColumnFamily);
    fn rocksdb_optimistictransaction_options_create() -> *mut TransactionOptions;
    fn rocksdb_optimistictransaction_options_destroy(*mut TransactionOptions);
    fn rocksdb_optimistictransaction_options_set_set_snapshot(*mut TransactionOptions, c_uchar);
    fn rocksdb_transaction_get_snapshot(*mut RawTransaction) -> *mut Snapshot;
    fn rocksdb_optimistictransaction_begin(
        *mut TransactionDatabase, *const WriteOptions, *const TransactionOptions, *mut RawTransaction,
    ) -> *mut RawTransaction;
    fn rocksdb_transaction_get_pinned_for_update(
        *mut RawTransaction, *const ReadOptions, *const u8, usize, c_uchar, Message,
    ) -> *mut Pinned;
    fn rocksdb_transaction_put(*mut RawTransaction, *const u8, usize, *const u8, usize, Message);
    fn rocksdb_transaction_commit(*mut RawTransaction, Message);
    fn rocksdb_transaction_rollback(*mut RawTransaction, Message);
    fn rocksdb_transaction_destroy(*mut RawTransaction);
    fn rocksdb_get_pinned(*mut Base, *const ReadOptions, *const u8, usize, Message) -> *mut Pinned;
    fn rocksdb_pinnableslice_value(*const Pinned, *mut usize) -> *const u8;
    fn rocksdb_pinnableslice_destroy(*mut Pinned);
    fn rocksdb_batched_multi_get_cf(
        *mut Base, *const ReadOptions, *mut ColumnFamily, usize, *const *const u8, *const usize, *mut *mut Pinned,
        *mut *mut c_char, bool,
    );
    fn rocksdb_put(*mut Base, *const WriteOptions, *const u8, usize, *const u8, usize, Message);
    fn rocksdb_write(*mut Base, *const WriteOptions, *mut Batch, Message);
    fn rocksdb_writebatch_create() -> *mut Batch;
    fn rocksdb_writebatch_destroy(*mut Batch);
    fn rocksdb_writebatch_put(*mut Batch, *const u8, usize, *const u8, usize);
    fn rocksdb_flushoptions_create() -> *mut FlushOptions;
    fn rocksdb_flushoptions_destroy(*mut FlushOptions);
    fn rocksdb_flush(*mut Base, *const FlushOptions, Message);
    fn rocksdb_flush_wal(*mut Base, c_uchar, Message);
    fn rocksdb_create_iterator(*mut Base, *const ReadOptions) -> *mut Iterator;
    fn rocksdb_iter_destroy(*mut Iterator);
    fn rocksdb_iter_valid(*const Iterator) -> c_uchar;
    fn rocksdb_iter_seek(*mut Iterator, *const u8, usize);
    fn rocksdb_iter_next(*mut Iterator);
    fn rocksdb_iter_key(*const Iterator, *mut usize) -> *const u8;
    fn rocksdb_iter_value(*const Iterator, *mut usize) -> *const u8;
    fn rocksdb_iter_get_error(*const Iterator, Message);
}

/// The version that is installed. Its C functions do not tell it.
pub(super) fn version() -> Result<String> {
    Functions::get()?;
    library::version_of_mapped_file("librocksdb.so.")
}

/// What is chosen where a database is created.
pub(super) struct Options {
    pub(super) threads: c_int,
    pub(super) cache_bytes: usize,
    pub(super) write_buffer_bytes: usize,
    pub(super) write_buffers: c_int,
    pub(super) bloom_bits: f64,
    /// Whether tables are read and written past the system's page cache.
    pub(super) direct_reads: bool,
    /// Whether the log is handed to the system when its buffer is full or a flush asks for it, and not with each write.
    pub(super) buffers_log: bool,
}

/// An open database. What others need comes after them.
pub(super) struct Database {
    column: Handle<ColumnFamily>,
    base: Handle<Base>,
    transactions: Handle<TransactionDatabase>,
    read: Handle<ReadOptions>,
    /// Without and with a sync.
    write: [Handle<WriteOptions>; 2],
    /// Without and with a snapshot.
    transaction_options: [Handle<TransactionOptions>; 2],
    functions: &'static Functions,
}

// SAFETY: `DB` and options that nobody changes may be used by all threads at once, as the headers `db.h` and `c.h` say.
unsafe impl Send for Database {}
// SAFETY: as above.
unsafe impl Sync for Database {}

impl Database {
    /// Creates a database.
    pub(super) fn create(path: &Path, options: &Options) -> Result<Database> {
        let f = Functions::get()?;
        let path = library::c_path(path)?;
        let database_options = database_options(f, options)?;
        let (mut column, mut message) = (null_mut(), null_mut());
        // SAFETY: one name, one set of options and room for one handle, as the count says; texts end with zero; all of it is
        // only used during the call. The handles are made by the functions that belong together, and dropped in the order of
        // the fields below, which is the one that the library asks for.
        unsafe {
            let transactions = (f.rocksdb_optimistictransactiondb_open_column_families)(
                database_options.pointer(),
                path.as_ptr(),
                1,
                &c"default".as_ptr(),
                &database_options.pointer().cast_const(),
                &mut column,
                &mut message,
            );
            library::check(message, f.rocksdb_free)?;
            let transactions =
                Handle::new(transactions, f.rocksdb_optimistictransactiondb_close, "database")?;
            let base = (f.rocksdb_optimistictransactiondb_get_base_db)(transactions.pointer());
            let base = Handle::new(base, f.rocksdb_optimistictransactiondb_close_base_db, "database")?;
            let column = Handle::new(column, f.rocksdb_column_family_handle_destroy, "column family")?;
            Ok(Database {
                column,
                base,
                transactions,
                read: read_options(f)?,
                write: [write_options(f, false)?, write_options(f, true)?],
                transaction_options: [transaction_options(f, false)?, transaction_options(f, true)?],
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
        unsafe { library::check(message, self.functions.rocksdb_free) }?;
        Ok(result)
    }

    #[inline]
    fn write_options(&self, durably: bool) -> *const WriteOptions {
        self.write[usize::from(durably)].pointer()
    }

    /// Hands on what a pinned slice holds, and releases it. False if there is none.
    #[inline]
    fn pinned(&self, pinned: *mut Pinned, value: impl FnOnce(&[u8]) -> Result<()>) -> Result<bool> {
        if pinned.is_null() {
            return Ok(false);
        }
        let f = self.functions;
        let mut length = 0;
        // SAFETY: not null, made by the library for the caller, and released once, here; the bytes are used before that.
        unsafe {
            let pinned = Handle::new(pinned, f.rocksdb_pinnableslice_destroy, "slice")?;
            let start = (f.rocksdb_pinnableslice_value)(pinned.pointer(), &mut length);
            value(library::bytes(start, length)?)?;
        }
        Ok(true)
    }

    /// Reads a value.
    #[inline]
    pub(super) fn get(&self, key: &[u8], value: &mut Vec<u8>) -> Result<bool> {
        let (f, read) = (self.functions, self.read.pointer());
        value.clear();
        // SAFETY: the handles live, and the key has this many bytes.
        let pinned = self.call(|message| unsafe {
            (f.rocksdb_get_pinned)(self.base.pointer(), read, key.as_ptr(), key.len(), message)
        })?;
        self.pinned(pinned, |bytes| {
            value.extend_from_slice(bytes);
            Ok(())
        })
    }

    /// Reads values, all of which must be there.
    pub(super) fn get_all(
        &self,
        keys: &[Key],
        row: &mut dyn FnMut(usize, &[u8]) -> Result<()>,
    ) -> Result<()> {
        let (f, count) = (self.functions, keys.len());
        let starts: Vec<*const u8> = keys.iter().map(|key| key.as_ptr()).collect();
        let lengths: Vec<usize> = keys.iter().map(|key| key.len()).collect();
        let (mut values, mut messages) = (vec![null_mut(); count], vec![null_mut(); count]);
        // SAFETY: four arrays of `count` elements each; the keys are borrowed for the call.
        unsafe {
            (f.rocksdb_batched_multi_get_cf)(
                self.base.pointer(),
                self.read.pointer(),
                self.column.pointer(),
                count,
                starts.as_ptr(),
                lengths.as_ptr(),
                values.as_mut_ptr(),
                messages.as_mut_ptr(),
                false,
            );
        }
        // All are released, also those behind one that is wrong.
        let mut result = Ok(());
        for (at, (value, message)) in values.into_iter().zip(messages).enumerate() {
            // SAFETY: the library has left null or a text of its own for each key.
            let checked = unsafe { library::check(message, f.rocksdb_free) };
            let failed = result.is_err();
            let found = self.pinned(value, |bytes| if failed { Ok(()) } else { row(at, bytes) });
            let found = checked.and(found).and_then(|found| found.then_some(()).context("a key is missing"));
            result = result.and(found);
        }
        result
    }

    /// Writes one key.
    #[inline]
    pub(super) fn put(&self, key: &[u8], value: &[u8], durably: bool) -> Result<()> {
        let (f, base, options) = (self.functions, self.base.pointer(), self.write_options(durably));
        // SAFETY: the handles live, and key and value have this many bytes.
        self.call(|message| unsafe {
            (f.rocksdb_put)(base, options, key.as_ptr(), key.len(), value.as_ptr(), value.len(), message)
        })
    }

    /// Writes some keys at once.
    pub(super) fn put_all(&self, entries: &[Entry], durably: bool) -> Result<()> {
        let f = self.functions;
        // SAFETY: made here and destroyed with the handle; keys and values have these many bytes, and are copied.
        let batch = unsafe {
            let batch = (f.rocksdb_writebatch_create)();
            let batch = Handle::new(batch, f.rocksdb_writebatch_destroy, "batch")?;
            for Entry { key, value } in entries {
                let put = f.rocksdb_writebatch_put;
                put(batch.pointer(), key.as_ptr(), key.len(), value.as_ptr(), value.len());
            }
            batch
        };
        let options = self.write_options(durably);
        // SAFETY: the handles live.
        self.call(|message| unsafe {
            (f.rocksdb_write)(self.base.pointer(), options, batch.pointer(), message)
        })
    }

    /// Syncs the log.
    pub(super) fn sync(&self) -> Result<()> {
        // SAFETY: the handle lives.
        self.call(|message| unsafe { (self.functions.rocksdb_flush_wal)(self.base.pointer(), 1, message) })
    }

    /// Writes what is in memory as a table, and waits for it.
    pub(super) fn flush(&self) -> Result<()> {
        let f = self.functions;
        // SAFETY: the options are made and destroyed by functions that belong together, and the handles live.
        unsafe {
            let options = (f.rocksdb_flushoptions_create)();
            let options = Handle::new(options, f.rocksdb_flushoptions_destroy, "options")?;
            self.call(|message| (f.rocksdb_flush)(self.base.pointer(), options.pointer(), message))
        }
    }

    /// Reads rows from a key on, until there are no more or `row` says that it is enough.
    pub(super) fn scan(&self, from: &[u8], row: &mut OnRow<'_, bool>) -> Result<()> {
        let f = self.functions;
        // SAFETY: the iterator is destroyed with its handle, before the database that it reads; key and value are only asked
        // for where it is valid, and used before it moves on.
        unsafe {
            let iterator = (f.rocksdb_create_iterator)(self.base.pointer(), self.read.pointer());
            let iterator = Handle::new(iterator, f.rocksdb_iter_destroy, "iterator")?;
            (f.rocksdb_iter_seek)(iterator.pointer(), from.as_ptr(), from.len());
            while (f.rocksdb_iter_valid)(iterator.pointer()) != 0 {
                let (mut key_length, mut value_length) = (0, 0);
                let key = (f.rocksdb_iter_key)(iterator.pointer(), &mut key_length);
                let value = (f.rocksdb_iter_value)(iterator.pointer(), &mut value_length);
                if !row(library::bytes(key, key_length)?, library::bytes(value, value_length)?)? {
                    break;
                }
                (f.rocksdb_iter_next)(iterator.pointer());
            }
            self.call(|message| (f.rocksdb_iter_get_error)(iterator.pointer(), message))
        }
    }
}

fn database_options(f: &Functions, options: &Options) -> Result<Handle<DatabaseOptions>> {
    const NO_COMPRESSION: c_int = 0;
    const BINARY_SEARCH_AND_HASH: c_int = 1;
    // SAFETY: each object is made and destroyed by functions that belong together; the tables' options keep the cache alive and
    // own the filter, and the database's options keep a copy of the tables'.
    unsafe {
        let cache = (f.rocksdb_cache_create_lru)(options.cache_bytes);
        let cache = Handle::new(cache, f.rocksdb_cache_destroy, "cache")?;
        let tables = (f.rocksdb_block_based_options_create)();
        let tables = Handle::new(tables, f.rocksdb_block_based_options_destroy, "options")?;
        let filter = (f.rocksdb_filterpolicy_create_bloom_full)(options.bloom_bits);
        (f.rocksdb_block_based_options_set_block_cache)(tables.pointer(), cache.pointer());
        (f.rocksdb_block_based_options_set_filter_policy)(tables.pointer(), filter);
        (f.rocksdb_block_based_options_set_data_block_index_type)(tables.pointer(), BINARY_SEARCH_AND_HASH);
        (f.rocksdb_block_based_options_set_data_block_hash_ratio)(tables.pointer(), 0.75);

        let all = (f.rocksdb_options_create)();
        let all = Handle::new(all, f.rocksdb_options_destroy, "options")?;
        (f.rocksdb_options_set_create_if_missing)(all.pointer(), 1);
        (f.rocksdb_options_increase_parallelism)(all.pointer(), options.threads);
        (f.rocksdb_options_set_write_buffer_size)(all.pointer(), options.write_buffer_bytes);
        (f.rocksdb_options_set_max_write_buffer_number)(all.pointer(), options.write_buffers);
        (f.rocksdb_options_set_use_direct_reads)(all.pointer(), options.direct_reads.into());
        (f.rocksdb_options_set_use_direct_io_for_flush_and_compaction)(
            all.pointer(),
            options.direct_reads.into(),
        );
        (f.rocksdb_options_set_max_open_files)(all.pointer(), -1);
        (f.rocksdb_options_set_compression)(all.pointer(), NO_COMPRESSION);
        (f.rocksdb_options_set_bytes_per_sync)(all.pointer(), 1 << 20);
        (f.rocksdb_options_set_level_compaction_dynamic_level_bytes)(all.pointer(), 1);
        (f.rocksdb_options_set_memtable_prefix_bloom_size_ratio)(all.pointer(), 0.02);
        (f.rocksdb_options_set_memtable_whole_key_filtering)(all.pointer(), 1);
        (f.rocksdb_options_set_manual_wal_flush)(all.pointer(), options.buffers_log.into());
        (f.rocksdb_options_set_block_based_table_factory)(all.pointer(), tables.pointer());
        Ok(all)
    }
}

fn read_options(f: &Functions) -> Result<Handle<ReadOptions>> {
    // SAFETY: made and destroyed by functions that belong together.
    unsafe {
        let options = (f.rocksdb_readoptions_create)();
        Handle::new(options, f.rocksdb_readoptions_destroy, "options")
    }
}

fn transaction_options(f: &Functions, snapshot: bool) -> Result<Handle<TransactionOptions>> {
    // SAFETY: made and destroyed by functions that belong together.
    unsafe {
        let options = (f.rocksdb_optimistictransaction_options_create)();
        let options = Handle::new(options, f.rocksdb_optimistictransaction_options_destroy, "options")?;
        (f.rocksdb_optimistictransaction_options_set_set_snapshot)(options.pointer(), snapshot.into());
        Ok(options)
    }
}

fn write_options(f: &Functions, sync: bool) -> Result<Handle<WriteOptions>> {
    // SAFETY: made and destroyed by functions that belong together.
    unsafe {
        let options = (f.rocksdb_writeoptions_create)();
        let options = Handle::new(options, f.rocksdb_writeoptions_destroy, "options")?;
        (f.rocksdb_writeoptions_set_sync)(options.pointer(), sync.into());
        Ok(options)
    }
}

/// How a transaction ended.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Outcome {
    Committed,
    /// Something that it read has changed meanwhile; nothing was written.
    Conflict,
}

/// What a transaction reads.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum View {
    /// The newest values, which may not belong together; only the commit finds out.
    Newest,
    /// One state of the database.
    Snapshot,
}

/// A transaction, used again and again by one thread.
pub(super) struct Transaction<'d> {
    database: &'d Database,
    handle: Handle<RawTransaction>,
    /// Its own, because a snapshot is among them.
    read: Handle<ReadOptions>,
    durably: bool,
}

impl<'d> Transaction<'d> {
    /// Makes a transaction that has not begun.
    pub(super) fn new(database: &'d Database, durably: bool) -> Result<Transaction<'d>> {
        let destroy = database.functions.rocksdb_transaction_destroy;
        let handle = database.begin(null_mut(), durably, View::Newest);
        // SAFETY: the library has made it for the caller, and it borrows the database, so that it is destroyed first.
        let handle = unsafe { Handle::new(handle, destroy, "transaction") }?;
        Ok(Transaction { database, handle, read: read_options(database.functions)?, durably })
    }

    /// Begins, in place of whatever was there.
    pub(super) fn begin(&mut self, view: View) {
        let f = self.database.functions;
        self.database.begin(self.handle.pointer(), self.durably, view);
        // SAFETY: the handles live. The snapshot is the transaction's and lives until it begins again, and then these options
        // get another one, or null for none; what points to it is an allocation of its own.
        unsafe {
            match view {
                View::Newest => (f.rocksdb_readoptions_set_snapshot)(self.read.pointer(), null()),
                View::Snapshot => {
                    let snapshot = (f.rocksdb_transaction_get_snapshot)(self.handle.pointer());
                    (f.rocksdb_readoptions_set_snapshot)(self.read.pointer(), snapshot);
                    (f.rocksdb_free)(snapshot.cast());
                }
            }
        }
    }

    /// Reads a value; the transaction only commits if it has not changed by then.
    pub(super) fn get(&mut self, key: &[u8], value: &mut Vec<u8>) -> Result<bool> {
        const EXCLUSIVE: c_uchar = 1;
        let get = self.database.functions.rocksdb_transaction_get_pinned_for_update;
        let read = self.read.pointer();
        value.clear();
        // SAFETY: the handles live, and the key has this many bytes.
        let pinned = self.database.call(|message| unsafe {
            get(self.handle.pointer(), read, key.as_ptr(), key.len(), EXCLUSIVE, message)
        })?;
        self.database.pinned(pinned, |bytes| {
            value.extend_from_slice(bytes);
            Ok(())
        })
    }

    /// Writes one key.
    pub(super) fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        let (put, handle) = (self.database.functions.rocksdb_transaction_put, self.handle.pointer());
        // SAFETY: the handle lives, and key and value have this many bytes.
        self.database.call(|message| unsafe {
            put(handle, key.as_ptr(), key.len(), value.as_ptr(), value.len(), message)
        })
    }

    /// Commits.
    pub(super) fn commit(&mut self) -> Result<Outcome> {
        // SAFETY: the handle lives.
        let result = self.database.call(|message| unsafe {
            (self.database.functions.rocksdb_transaction_commit)(self.handle.pointer(), message)
        });
        match result {
            Ok(()) => Ok(Outcome::Committed),
            Err(error) => {
                // A status comes as text. The second: what was read is older than what the memory tables know of.
                let text = error.to_string();
                let conflict = ["Resource busy", "Operation failed. Try again."];
                if conflict.iter().any(|status| text.starts_with(status)) {
                    Ok(Outcome::Conflict)
                } else {
                    Err(error.context("cannot commit"))
                }
            }
        }
    }

    /// Takes everything back.
    pub(super) fn roll_back(&mut self) -> Result<()> {
        // SAFETY: the handle lives.
        self.database.call(|message| unsafe {
            (self.database.functions.rocksdb_transaction_rollback)(self.handle.pointer(), message)
        })
    }
}

impl Database {
    /// Begins a transaction, in `old` if that is not null.
    fn begin(&self, old: *mut RawTransaction, durably: bool, view: View) -> *mut RawTransaction {
        let begin = self.functions.rocksdb_optimistictransaction_begin;
        let options = self.transaction_options[usize::from(view == View::Snapshot)].pointer();
        // SAFETY: the handles live, and `old` is null or a transaction of this database.
        unsafe { begin(self.transactions.pointer(), self.write_options(durably), options, old) }
    }
}
