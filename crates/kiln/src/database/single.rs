//! Operations on one key that are transactions of their own, besides `get`, `put` and `delete`.

use super::Kiln;
use crate::error::Result;
use crate::kernel::receipt::Commit;
use crate::kernel::single::{Decision, with_scratch};
use crate::kernel::transaction::sum_of;
use crate::objects::Object;

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
        let engine = self.engine();
        let key = engine.single_key(object, key.as_ref())?;
        with_scratch(|scratch| {
            let reading = engine.read_newest(key, &mut scratch.old)?;
            Ok(look(reading.found.then_some(&scratch.old)))
        })
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
        let mut sum = 0;
        let committed = engine.update_single(key, |old, new| {
            sum = sum_of(old, delta)?;
            new.extend_from_slice(&sum.to_le_bytes());
            Ok(Decision::Put)
        })?;
        Ok(Commit::new(engine, committed.version, sum))
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
        let committed = engine.update_single(key, |old, new| Ok(Decision::of(change(old, new))))?;
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
        let mut matches = false;
        let committed = engine.update_single(key, |old, buffer| {
            matches = old == expected;
            if !matches {
                return Ok(Decision::Keep);
            }
            buffer.extend_from_slice(new.unwrap_or_default());
            Ok(Decision::of(new.is_some()))
        })?;
        Ok(Commit::new(engine, committed.version, matches))
    }
}
