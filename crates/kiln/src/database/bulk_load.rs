//! Bulk loads: many rows become a new table at once.

use super::Kiln;
use crate::error::{Error, Result};
use crate::kernel::clock::Version;
use crate::kernel::engine::Engine;
use crate::kernel::handle::Handle;
use crate::objects::{Table, enter_table, reserve_table};
use crate::planted::{Bug, planted};
use crate::storage::record::NEVER;
use crate::storage::tree::{ChangedRow, OBJECT_BYTES, Rows, write_tree_key};

/// Bytes after which progress is reported.
const PROGRESS_BYTES: u64 = 1 << 20;

/// How far a bulk load has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct BulkLoadProgress {
    /// Rows that were taken.
    pub rows: u64,
    /// Bytes of their keys and values.
    pub bytes: u64,
}

/// A finished bulk load.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct BulkLoad {
    /// The new table.
    pub table: Table,
    /// How many rows it has.
    pub rows: u64,
    /// The version that the load was committed into.
    pub version: Version,
}

impl Kiln {
    /// Makes a new table of rows whose keys ascend, straight in the B+-tree on disk that [settled](crate::Options::settle_log_bytes) rows
    /// are in: full leaves, written once and in order, none of them in the log. The load is one commit, which is durable when this returns. Until the commit nobody sees
    /// anything of it; after an error other than `Lost`, or a crash that takes the commit back, nothing is left. Like any commit it is visible before it is durable: who sees the table before this returns sees
    /// what may still be lost. Snapshots and transactions under snapshot isolation from before do not see
    /// the rows.
    ///
    /// Memory does not depend on how many rows there are. Others go on reading and writing, but nothing settles meanwhile, so that the
    /// log grows by what they write, and [`Kiln::settle`], [`Kiln::compact`] and [`Kiln::close`] wait: do not call those, or this, in `rows` or `progress`. `progress` is told about every
    /// mebibyte.
    ///
    /// ```
    /// # let directory = tempfile::tempdir()?;
    /// # let db = kiln::Kiln::open(directory.path())?;
    /// let squares = (0..1000_u32).map(|n| Ok::<_, kiln::Error>((n.to_be_bytes(), (n * n).to_be_bytes())));
    /// let loaded = db.bulk_load("squares", squares, |_| {})?;
    /// assert_eq!(loaded.rows, 1000);
    /// assert_eq!(db.get(&loaded.table, 7_u32.to_be_bytes())?, Some(49_u32.to_be_bytes().to_vec()));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// What `rows` says. `Input` if there is an object with this name, a key does not follow the one before, or a key or value is too
    /// long; `Limit` if no object can be added; `Io` or `NoSpace` if the disk fails or is full: once a write to the tree has failed, nothing is loaded, or settles, until the database is
    /// opened again; `Corrupted` if the tree is damaged; `Lost` or `Aborted` if the database has failed or is closed. If the commit itself is lost (`Lost`), the table is there as long as
    /// the database stays open, and whether the next opening finds it is as for any commit; see [`Lost`](crate::Lost).
    pub fn bulk_load<K: AsRef<[u8]>, V: AsRef<[u8]>, E: From<Error>>(
        &self,
        name: &str,
        rows: impl IntoIterator<Item = Result<(K, V), E>>,
        progress: impl FnMut(BulkLoadProgress),
    ) -> Result<BulkLoad, E> {
        let (handle, version, rows) = self.engine().telling(|| self.load(name, rows, progress))?;
        self.engine().wait_local(version)?;
        Ok(BulkLoad { table: Table::new(handle), rows, version: Version::new(version) })
    }

    /// Loads, and returns the table, the version that has it, and its rows.
    fn load<K: AsRef<[u8]>, V: AsRef<[u8]>, E: From<Error>>(
        &self,
        name: &str,
        rows: impl IntoIterator<Item = Result<(K, V), E>>,
        progress: impl FnMut(BulkLoadProgress),
    ) -> Result<(Handle, u64, u64), E> {
        let engine = self.engine();
        let _loading = engine.settled.pause_loads();
        // Looked at last: behind a close the files are somebody else's.
        engine.check_writable()?;
        engine.remove_unfinished_load()?;
        let object = reserve_table(engine, name)?;
        let mut rows = Checked {
            engine,
            object,
            rows: rows.into_iter(),
            last_key: Vec::new(),
            failure: None,
            progress,
            done: BulkLoadProgress::default(),
            reported: 0,
        };
        let enter = || enter_table(engine, name, object);
        let entered = match planted(Bug::LoadVisibleEarly) {
            false => engine.load_rows(object, &mut rows).and_then(|_| enter()),
            true => enter().and_then(|entered| engine.load_rows(object, &mut rows).map(|_| entered)),
        };
        match entered {
            Ok((handle, version)) => Ok((handle, version, rows.done.rows)),
            Err(error) => {
                // If that fails, too, it is done before the next load, or when the database is opened.
                let _ = engine.remove_unfinished_load();
                Err(rows.failure.unwrap_or_else(|| error.into()))
            }
        }
    }
}

/// The caller's rows, each looked at, as the tree takes them.
struct Checked<'a, I, E, P> {
    engine: &'a Engine,
    object: u32,
    rows: I,
    /// In the tree.
    last_key: Vec<u8>,
    /// What the caller's rows have ended with.
    failure: Option<E>,
    progress: P,
    done: BulkLoadProgress,
    reported: u64,
}

impl<K, V, E, I, P> Rows for Checked<'_, I, E, P>
where
    K: AsRef<[u8]>,
    V: AsRef<[u8]>,
    I: Iterator<Item = Result<(K, V), E>>,
    P: FnMut(BulkLoadProgress),
{
    fn next(&mut self, row: &mut ChangedRow) -> Result<bool> {
        // Whoever closes the database waits.
        self.engine.check_writable()?;
        let (row_key, row_value) = match self.rows.next() {
            None => {
                (self.progress)(self.done);
                return Ok(false);
            }
            Some(Ok(row)) => row,
            Some(Err(failure)) => {
                self.failure = Some(failure);
                return Err(Error::caller("there is no next row to load"));
            }
        };
        let (row_key, row_value) = (row_key.as_ref(), row_value.as_ref());
        let is_first = self.done.rows == 0;
        self.engine.check_key_bytes(row_key)?;
        self.engine.check_value(row_value)?;
        if !is_first && row_key <= &self.last_key[OBJECT_BYTES..] {
            return Err(not_ascending(&self.last_key[OBJECT_BYTES..], row_key, self.done.rows));
        }
        write_tree_key(self.object, row_key, &mut self.last_key);
        row.set(&self.last_key, Some(row_value), NEVER);
        self.done.rows += 1;
        self.done.bytes += (row_key.len() + row_value.len()) as u64;
        if self.done.bytes - self.reported >= PROGRESS_BYTES {
            self.reported = self.done.bytes;
            (self.progress)(self.done);
        }
        Ok(true)
    }
}

#[cold]
fn not_ascending(before: &[u8], key: &[u8], number: u64) -> Error {
    const SHOWN_BYTES_MAX: usize = 64;
    let shown = |key: &[u8]| key[..key.len().min(SHOWN_BYTES_MAX)].escape_ascii().to_string();
    Error::input(format!(
        "row {number} (from 0) has the key \"{}\", which is not greater than the one before, \"{}\"; a bulk load takes rows in ascending order of their keys, each once",
        shown(key),
        shown(before)
    ))
}
