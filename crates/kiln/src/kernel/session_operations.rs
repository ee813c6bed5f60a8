//! A session's operations that are transactions of their own: as the database's, but each takes a serial number.
//!
//! An operation and its number must be in the same version (C7), so each of these is a transaction of two writes, and goes the
//! way of [`Session::transact`]. There is no short cut as for the database's own: with both records to be locked, located
//! and given space before either is written, it would be the commit again.

use super::batch::Reads;
use super::expiry::Expiry;
use super::handle::Object;
use super::pending_read::PendingRead;
use super::receipt::Commit;
use super::session::Session;
use crate::error::Result;

/// # Operations on one key
///
/// Each takes the next serial number, whether it changes anything or not, except for those that only read: `get`, `get_into`, `get_with`, `get_many`, `get_async`,
/// `expiry` and `prefetch`. These see the newest values, durable or not, of this session and of others, and wait for none of its operations.
///
/// ```
/// # let directory = tempfile::tempdir()?;
/// # let db = kiln::Kiln::open(directory.path())?;
/// let counters = db.map("counters")?;
/// let session = db.session("exchange-7")?;
/// session.add(&counters, "bids", 1)?.forget();
/// session.put(&counters, "state", "open")?.safe()?;
/// assert_eq!((session.serial(), session.durable_serial()?), (2, 2));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
impl Session {
    /// As [`Kiln::get`](crate::Kiln::get); takes no serial number.
    ///
    /// # Errors
    /// As [`Kiln::get`](crate::Kiln::get).
    pub fn get<O: Object>(&self, object: &O, key: impl AsRef<[u8]>) -> Result<Option<Vec<u8>>> {
        let mut value = Vec::new();
        Ok(self.engine.get_into(object, key.as_ref(), &mut value)?.then_some(value))
    }

    /// As [`Kiln::get_into`](crate::Kiln::get_into); takes no serial number.
    ///
    /// # Errors
    /// As [`Kiln::get`](crate::Kiln::get).
    pub fn get_into<O: Object>(
        &self,
        object: &O,
        key: impl AsRef<[u8]>,
        value: &mut Vec<u8>,
    ) -> Result<bool> {
        self.engine.get_into(object, key.as_ref(), value)
    }

    /// As [`Kiln::get_with`](crate::Kiln::get_with); takes no serial number. `look` may use this session, too.
    ///
    /// # Errors
    /// As [`Kiln::get`](crate::Kiln::get).
    pub fn get_with<O: Object, T>(
        &self,
        object: &O,
        key: impl AsRef<[u8]>,
        look: impl FnOnce(Option<&[u8]>) -> T,
    ) -> Result<T> {
        self.engine.get_with(object, key.as_ref(), look)
    }

    /// As [`Kiln::prefetch`](crate::Kiln::prefetch); takes no serial number.
    pub fn prefetch<O: Object, K: AsRef<[u8]>>(&self, object: &O, keys: &[K]) {
        self.engine.prefetch_keys(object.handle().id, keys);
    }

    /// As [`Kiln::get_many`](crate::Kiln::get_many); takes no serial number.
    ///
    /// # Errors
    /// As [`Kiln::get`](crate::Kiln::get).
    pub fn get_many<O: Object, K: AsRef<[u8]>>(
        &self,
        object: &O,
        keys: &[K],
        look: impl FnMut(usize, Option<&[u8]>),
    ) -> Result<()> {
        self.engine.get_many(object, keys, look)
    }

    /// As [`Kiln::get_async`](crate::Kiln::get_async); takes no serial number.
    pub fn get_async<O: Object>(&self, object: &O, key: impl AsRef<[u8]>) -> PendingRead {
        self.engine.get_pending(object, key.as_ref())
    }

    /// As [`Kiln::put`](crate::Kiln::put).
    ///
    /// # Errors
    /// As [`Self::transact`]; that goes for all operations that take a serial number.
    pub fn put<O: Object>(
        &self,
        object: &O,
        key: impl AsRef<[u8]>,
        value: impl AsRef<[u8]>,
    ) -> Result<Commit<'_, ()>> {
        let (key, value) = (key.as_ref(), value.as_ref());
        self.transact(|tx| tx.put(object, key, value))
    }

    /// As [`Kiln::put_expiring`](crate::Kiln::put_expiring).
    ///
    /// # Errors
    /// As [`Transaction::put_expiring`](crate::Transaction::put_expiring) and [`Self::transact`].
    pub fn put_expiring<O: Object>(
        &self,
        object: &O,
        key: impl AsRef<[u8]>,
        value: impl AsRef<[u8]>,
        expiry: Expiry,
    ) -> Result<Commit<'_, ()>> {
        let (key, value) = (key.as_ref(), value.as_ref());
        self.transact(|tx| tx.put_expiring(object, key, value, expiry))
    }

    /// As [`Kiln::expiry`](crate::Kiln::expiry); takes no serial number.
    ///
    /// # Errors
    /// As [`Kiln::get`](crate::Kiln::get).
    pub fn expiry<O: Object>(&self, object: &O, key: impl AsRef<[u8]>) -> Result<Option<Expiry>> {
        self.engine.expiry_of(object, key.as_ref())
    }

    /// As [`Kiln::set_expiry`](crate::Kiln::set_expiry).
    ///
    /// # Errors
    /// As [`Transaction::set_expiry`](crate::Transaction::set_expiry) and [`Self::transact`].
    pub fn set_expiry<O: Object>(
        &self,
        object: &O,
        key: impl AsRef<[u8]>,
        expiry: Expiry,
    ) -> Result<Commit<'_, bool>> {
        let key = key.as_ref();
        self.transact(|tx| tx.set_expiry(object, key, expiry))
    }

    /// As [`Kiln::delete`](crate::Kiln::delete).
    ///
    /// # Errors
    /// As [`Self::transact`].
    pub fn delete<O: Object>(&self, object: &O, key: impl AsRef<[u8]>) -> Result<Commit<'_, bool>> {
        let key = key.as_ref();
        self.transact(|tx| tx.delete(object, key))
    }

    /// As [`Kiln::add`](crate::Kiln::add).
    ///
    /// # Errors
    /// As [`Self::transact`].
    pub fn add<O: Object>(&self, object: &O, key: impl AsRef<[u8]>, delta: i64) -> Result<Commit<'_, i64>> {
        let key = key.as_ref();
        self.transact(|tx| tx.add(object, key, delta))
    }

    /// As [`Kiln::update`](crate::Kiln::update), except that `change` runs while the session's other operations wait: those of this thread
    /// are refused, as within [`Self::transact`].
    ///
    /// # Errors
    /// As [`Self::transact`].
    pub fn update<O: Object, V: AsRef<[u8]>>(
        &self,
        object: &O,
        key: impl AsRef<[u8]>,
        mut change: impl FnMut(Option<&[u8]>) -> Option<V>,
    ) -> Result<Commit<'_, ()>> {
        let key = key.as_ref();
        self.transact(|tx| tx.update(object, key, &mut change))
    }

    /// As [`Kiln::update_into`](crate::Kiln::update_into), with the exception of [`Self::update`].
    ///
    /// # Errors
    /// As [`Self::transact`].
    pub fn update_into<O: Object>(
        &self,
        object: &O,
        key: impl AsRef<[u8]>,
        mut change: impl FnMut(Option<&[u8]>, &mut Vec<u8>) -> bool,
    ) -> Result<Commit<'_, ()>> {
        let key = key.as_ref();
        self.transact(|tx| tx.update_into(object, key, &mut change))
    }

    /// As [`Kiln::compare_and_set`](crate::Kiln::compare_and_set).
    ///
    /// # Errors
    /// As [`Self::transact`].
    pub fn compare_and_set<O: Object>(
        &self,
        object: &O,
        key: impl AsRef<[u8]>,
        expected: Option<&[u8]>,
        new: Option<&[u8]>,
    ) -> Result<Commit<'_, bool>> {
        let key = key.as_ref();
        self.transact(|tx| tx.compare_and_set(object, key, expected, new))
    }

    /// As [`Kiln::put_many`](crate::Kiln::put_many): each entry is an operation, with a serial number of its own.
    ///
    /// # Errors
    /// As [`Self::transact`]. `Input` for a key or a value that is too long comes before anything is done. After any other error the entries before
    /// the one that failed stay committed, and have their numbers; [`Error::done_count`](crate::Error::done_count) says how many they are.
    pub fn put_many<O: Object, K: AsRef<[u8]>, V: AsRef<[u8]>>(
        &self,
        object: &O,
        entries: &[(K, V)],
    ) -> Result<Commit<'_, ()>> {
        self.engine.put_each(object, entries, |key, value| Ok(version_of(self.put(object, key.key, value)?)))
    }

    /// As [`Kiln::add_many`](crate::Kiln::add_many): each entry is an operation, with a serial number of its own.
    ///
    /// # Errors
    /// As [`Self::put_many`].
    pub fn add_many<O: Object, K: AsRef<[u8]>>(
        &self,
        object: &O,
        deltas: &[(K, i64)],
    ) -> Result<Commit<'_, ()>> {
        self.engine.commit_each(
            (object, Reads::Rows),
            deltas,
            |(key, _)| key.as_ref(),
            |number, key| Ok(version_of(self.add(object, key.key, deltas[number].1)?)),
        )
    }

    /// As [`Kiln::update_many`](crate::Kiln::update_many), with the exception of [`Self::update`]: each key is an operation, with a serial number of its own.
    ///
    /// # Errors
    /// As [`Self::put_many`].
    pub fn update_many<O: Object, K: AsRef<[u8]>>(
        &self,
        object: &O,
        keys: &[K],
        mut change: impl FnMut(usize, Option<&[u8]>, &mut Vec<u8>) -> bool,
    ) -> Result<Commit<'_, ()>> {
        self.engine.commit_each((object, Reads::Rows), keys, AsRef::as_ref, |number, key| {
            Ok(version_of(self.update_into(object, key.key, |old, new| change(number, old, new))?))
        })
    }
}

/// The version of an operation that something else stands for.
fn version_of<T>(commit: Commit<'_, T>) -> u64 {
    let version = commit.version().number();
    commit.forget();
    version
}
