//! Operations on one key that are transactions of their own, besides `get`, `put` and `delete`.

use super::Kiln;
use crate::error::Result;
use crate::kernel::handle::Object;
use crate::kernel::pending_read::PendingRead;
use crate::kernel::receipt::Commit;
use crate::kernel::single::Decision;

impl Kiln {
    /// Calls `look` with the newest value of a key, durable or not, and gives what it returns. Allocates nothing: the value
    /// lies in a buffer that the thread keeps. `look` may use the database, and holds nobody up.
    ///
    /// ```
    /// # let directory = tempfile::tempdir()?;
    /// # let db = kiln::Kiln::open(directory.path())?;
    /// let pages = db.map("pages")?;
    /// db.put(&pages, "index", "<html>")?.safe()?;
    /// let bytes = db.get_with(&pages, "index", |page| page.map_or(0, <[u8]>::len))?;
    /// assert_eq!(bytes, 6);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`Self::get`].
    pub fn get_with<O: Object, T>(
        &self,
        object: &O,
        key: impl AsRef<[u8]>,
        look: impl FnOnce(Option<&[u8]>) -> T,
    ) -> Result<T> {
        self.engine().get_with(object, key.as_ref(), look)
    }

    /// Begins to read the newest value of a key, durable or not, without waiting for the disk. What is in memory is there at once, as with
    /// [`Self::get`]; what is on disk is read by a thread of the database, with many reads in flight; but settled rows of tables are read
    /// one after the other.
    ///
    /// The read takes place at one moment between this call and its end: it sees all that was committed before the call, and
    /// may see what is committed until it ends. A database without background threads has none to read: there, whoever waits for the value
    /// or polls reads it, and is held up meanwhile. Errors come with the value: those of [`Self::get`], and `Aborted` if the
    /// database is closed before the record was read.
    ///
    /// Records that the read cache would not keep (by default those of more than about 120 KiB; with less memory, shorter ones) are read one after the other.
    ///
    /// ```
    /// # let directory = tempfile::tempdir()?;
    /// # let db = kiln::Kiln::open(directory.path())?;
    /// let pages = db.map("pages")?;
    /// db.put(&pages, "index", "<html>")?.safe()?;
    ///
    /// // Awaited, by any executor ...
    /// let page = async { db.get_async(&pages, "index").await };
    /// # assert_eq!(std::pin::pin!(page).poll(&mut std::task::Context::from_waker(std::task::Waker::noop())).map(Result::unwrap),
    /// #     std::task::Poll::Ready(Some(b"<html>".to_vec())));
    /// // ... or many at once, by one thread.
    /// let reads: Vec<_> = ["index", "about"].iter().map(|name| db.get_async(&pages, name)).collect();
    /// let pages: Vec<_> = reads.into_iter().map(|read| read.wait()).collect::<Result<_, _>>()?;
    /// assert_eq!(pages, [Some(b"<html>".to_vec()), None]);
    /// # use std::future::Future;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn get_async<O: Object>(&self, object: &O, key: impl AsRef<[u8]>) -> PendingRead {
        self.engine().get_pending(object, key.as_ref())
    }

    /// Adds to a key's value, an 8-byte little-endian integer (0 if there is none), in a transaction of its own; gives the
    /// sum.
    ///
    /// ```
    /// # let directory = tempfile::tempdir()?;
    /// # let db = kiln::Kiln::open(directory.path())?;
    /// let counters = db.map("counters")?;
    /// assert_eq!(db.add(&counters, "visits", 2)?.safe()?, 2);
    /// let (sum, receipt) = db.add(&counters, "visits", 3)?.fast();
    /// assert_eq!(sum, 5);
    /// receipt.wait(kiln::Level::LOCAL)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`Transaction::add`](crate::Transaction::add) and [`Self::transact`].
    pub fn add<O: Object>(&self, object: &O, key: impl AsRef<[u8]>, delta: i64) -> Result<Commit<'_, i64>> {
        let engine = self.engine();
        let key = engine.single_key(object, key.as_ref())?;
        let (version, sum) = engine.add_single(key, object.handle().time_to_live_ms, delta)?;
        Ok(Commit::new(engine, version, sum))
    }

    /// Replaces a key's value by what `change` makes of it, in a transaction of its own; `None` stands for "no value" on both
    /// sides.
    ///
    /// `change` runs while nothing is locked, so it may be slow, panic, or use the database. If the key was written
    /// meanwhile it runs again with the new value; it must therefore have no effects besides its result, or bear that they
    /// are repeated. An array as the result needs no allocation, nor does [`Self::update_into`].
    ///
    /// ```
    /// # let directory = tempfile::tempdir()?;
    /// # let db = kiln::Kiln::open(directory.path())?;
    /// let highest = db.table("highest bids")?;
    /// let bid = |amount: u32| {
    ///     db.update(&highest, "a17", |old| {
    ///         let old = old.and_then(|old| old.try_into().ok()).map_or(0, u32::from_be_bytes);
    ///         Some(old.max(amount).to_be_bytes())
    ///     })
    /// };
    /// bid(20)?.forget();
    /// bid(10)?.safe()?;
    /// assert_eq!(db.get(&highest, "a17")?.as_deref(), Some(&20_u32.to_be_bytes()[..]));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`Transaction::update`](crate::Transaction::update) and [`Self::transact`].
    pub fn update<O: Object, V: AsRef<[u8]>>(
        &self,
        object: &O,
        key: impl AsRef<[u8]>,
        mut change: impl FnMut(Option<&[u8]>) -> Option<V>,
    ) -> Result<Commit<'_, ()>> {
        self.update_into(object, key, |old, new| match change(old) {
            None => false,
            Some(value) => {
                new.extend_from_slice(value.as_ref());
                true
            }
        })
    }

    /// As [`Self::update`], without an allocation for the new value: `change` leaves it in the buffer that it is given
    /// empty, and returns true; or false for "no value".
    ///
    /// ```
    /// # let directory = tempfile::tempdir()?;
    /// # let db = kiln::Kiln::open(directory.path())?;
    /// let logs = db.map("logs")?;
    /// for line in ["one\n", "two\n"] {
    ///     let append = db.update_into(&logs, "today", |old, new| {
    ///         new.extend_from_slice(old.unwrap_or_default());
    ///         new.extend_from_slice(line.as_bytes());
    ///         true
    ///     });
    ///     append?.forget();
    /// }
    /// assert_eq!(db.get(&logs, "today")?.as_deref(), Some(&b"one\ntwo\n"[..]));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`Self::update`].
    pub fn update_into<O: Object>(
        &self,
        object: &O,
        key: impl AsRef<[u8]>,
        mut change: impl FnMut(Option<&[u8]>, &mut Vec<u8>) -> bool,
    ) -> Result<Commit<'_, ()>> {
        let engine = self.engine();
        let key = engine.single_key(object, key.as_ref())?;
        let committed = engine.update_single(key, object.handle().time_to_live_ms, |old, new| {
            Ok(Decision::of(change(old, new)))
        })?;
        Ok(Commit::new(engine, committed.version, ()))
    }

    /// Sets a key to `new` if its value is `expected`, in a transaction of its own; true if it was. `None` stands for
    /// "no value" on both sides, so that `None` and a value put a key that is absent.
    ///
    /// ```
    /// # let directory = tempfile::tempdir()?;
    /// # let db = kiln::Kiln::open(directory.path())?;
    /// let locks = db.map("locks")?;
    /// assert!(db.compare_and_set(&locks, "door", None, Some(b"alice"))?.safe()?);
    /// assert!(!db.compare_and_set(&locks, "door", None, Some(b"bob"))?.safe()?);
    /// assert!(db.compare_and_set(&locks, "door", Some(b"alice"), None)?.safe()?);
    /// assert_eq!(db.get(&locks, "door")?, None);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`Transaction::compare_and_set`](crate::Transaction::compare_and_set) and [`Self::transact`].
    pub fn compare_and_set<O: Object>(
        &self,
        object: &O,
        key: impl AsRef<[u8]>,
        expected: Option<&[u8]>,
        new: Option<&[u8]>,
    ) -> Result<Commit<'_, bool>> {
        let engine = self.engine();
        let key = engine.single_key(object, key.as_ref())?;
        let time_to_live_ms = object.handle().time_to_live_ms;
        let (version, matches) = engine.compare_and_set_single(key, time_to_live_ms, expected, new)?;
        Ok(Commit::new(engine, version, matches))
    }
}
