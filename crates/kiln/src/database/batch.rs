//! Batches: operations on many keys, each a transaction of its own, whose cache misses overlap.

use super::Kiln;
use crate::error::Result;
use crate::kernel::batch::Reads;
use crate::kernel::expiry::default_expiry;
use crate::kernel::handle::Object;
use crate::kernel::receipt::Commit;
use crate::kernel::single::Decision;

/// # Batches
///
/// Each of these is a loop over single operations that is faster where the database is larger than the processor's caches: each
/// element is a transaction of its own, and they are carried out in the order of the slice. Together they are not atomic, and
/// others may see and change keys in between; [`Kiln::transact`] is for what must be seen at once. What the [`Commit`] says of
/// durability holds for all elements: its version is that of the newest. An `Input` error for a key or a value that is
/// too long comes before anything is done; after any other error the elements before the one that failed stay committed.
/// [`Error::done_count`](crate::Error::done_count) says how many they are; they have no receipt, but are durable within the window as all commits, or by [`Kiln::persist`].
impl Kiln {
    /// Says that these keys will be read or written soon, each by an operation of its own: their cache misses overlap then.
    /// What is on disk is read, many records at once, into the read cache, and leaves of settled rows into the page cache, and waited for. It has no effect but
    /// on speed; a few dozen keys at a time are enough, or a hundred where much is on disk. The batches do it by themselves.
    pub fn prefetch<O: Object, K: AsRef<[u8]>>(&self, object: &O, keys: &[K]) {
        self.engine().prefetch_keys(object.handle().id, keys);
    }

    /// Calls `look` with each key's number in the slice and its newest value, in the order of the slice. Each value is read
    /// right before the call, and lies in a buffer that the thread keeps; `look` may use the database, and holds nobody up.
    ///
    /// ```
    /// # let directory = tempfile::tempdir()?;
    /// # let db = kiln::Kiln::open(directory.path())?;
    /// let prices = db.map("prices")?;
    /// db.put_many(&prices, &[("tea", "4"), ("cup", "12")])?.safe()?;
    /// let mut found = Vec::new();
    /// db.get_many(&prices, &["cup", "pot", "tea"], |number, price| {
    ///     found.push((number, price.map(<[u8]>::to_vec)));
    /// })?;
    /// assert_eq!(found, [(0, Some(b"12".to_vec())), (1, None), (2, Some(b"4".to_vec()))]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`Self::get`].
    pub fn get_many<O: Object, K: AsRef<[u8]>>(
        &self,
        object: &O,
        keys: &[K],
        look: impl FnMut(usize, Option<&[u8]>),
    ) -> Result<()> {
        self.engine().get_many(object, keys, look)
    }

    /// Sets the values of several keys.
    ///
    /// ```
    /// # let directory = tempfile::tempdir()?;
    /// # let db = kiln::Kiln::open(directory.path())?;
    /// let prices = db.table("prices")?;
    /// let (_, receipt) = db.put_many(&prices, &[("tea", "4"), ("cup", "12"), ("tea", "5")])?.fast();
    /// receipt.wait(kiln::Level::LOCAL)?;
    /// assert_eq!(db.get(&prices, "tea")?.as_deref(), Some(&b"5"[..]));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`Self::put`].
    pub fn put_many<O: Object, K: AsRef<[u8]>, V: AsRef<[u8]>>(
        &self,
        object: &O,
        entries: &[(K, V)],
    ) -> Result<Commit<'_, ()>> {
        let engine = self.engine();
        let time_to_live_ms = object.handle().time_to_live_ms;
        engine.put_each(object, entries, |key, value| {
            engine.put_single(key, value, default_expiry(time_to_live_ms, || engine.now_ms()))
        })
    }

    /// Adds to the integers of several keys; see [`Self::add`].
    ///
    /// ```
    /// # let directory = tempfile::tempdir()?;
    /// # let db = kiln::Kiln::open(directory.path())?;
    /// let counters = db.map("counters")?;
    /// db.add_many(&counters, &[("hits", 1), ("misses", 2), ("hits", 1)])?.safe()?;
    /// assert_eq!(db.get(&counters, "hits")?, Some(2_i64.to_le_bytes().to_vec()));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`Self::add`].
    pub fn add_many<O: Object, K: AsRef<[u8]>>(
        &self,
        object: &O,
        deltas: &[(K, i64)],
    ) -> Result<Commit<'_, ()>> {
        let engine = self.engine();
        let time_to_live_ms = object.handle().time_to_live_ms;
        engine.commit_each(
            (object, Reads::Rows),
            deltas,
            |(key, _)| key.as_ref(),
            |number, key| Ok(engine.add_single(key, time_to_live_ms, deltas[number].1)?.0),
        )
    }

    /// Replaces the values of several keys by what `change` makes of them. It is called with a key's number in the slice, its
    /// value if it has one, and an empty buffer, in which it leaves the new value and returns true; or false for
    /// "no value". As for [`Self::update_into`] it may run more than once for a key, but never for an earlier one again.
    ///
    /// ```
    /// # let directory = tempfile::tempdir()?;
    /// # let db = kiln::Kiln::open(directory.path())?;
    /// let words = db.map("words")?;
    /// let spell = |_, old: Option<&[u8]>, new: &mut Vec<u8>| {
    ///     new.extend_from_slice(old.unwrap_or(b"?"));
    ///     new.push(b'!');
    ///     true
    /// };
    /// db.update_many(&words, &["yes", "no", "yes"], spell)?.safe()?;
    /// assert_eq!(db.get(&words, "yes")?.as_deref(), Some(&b"?!!"[..]));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`Self::update_into`].
    pub fn update_many<O: Object, K: AsRef<[u8]>>(
        &self,
        object: &O,
        keys: &[K],
        mut change: impl FnMut(usize, Option<&[u8]>, &mut Vec<u8>) -> bool,
    ) -> Result<Commit<'_, ()>> {
        let engine = self.engine();
        engine.commit_each((object, Reads::Rows), keys, AsRef::as_ref, |number, key| {
            let updated = engine.update_single(key, object.handle().time_to_live_ms, |old, new| {
                Ok(Decision::of(change(number, old, new)))
            })?;
            Ok(updated.version)
        })
    }
}
