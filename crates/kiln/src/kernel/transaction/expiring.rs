//! What a transaction says of when rows expire, and is told.

use super::{Buffers, Transaction};
use crate::error::{Error, Result};
use crate::kernel::expiry::{Expiry, default_expiry};
use crate::kernel::handle::Object;
use crate::kernel::object::RangeRead;
use crate::storage::record::NEVER;

impl Buffers {
    /// A row was there, and expires then, if it does.
    #[inline]
    pub(super) fn note_row(&mut self, expires_at: u64) {
        if expires_at != NEVER {
            self.first_to_expire =
                Some(self.first_to_expire.map_or(expires_at, |first| first.min(expires_at)));
        }
    }
}

impl Transaction<'_> {
    /// The time as of which it sees rows that expire, in milliseconds since 1970: that at which this was first asked, or it first met such a row. It is later once
    /// it has read what is newer than its beginning, and what it has seen is still there then.
    ///
    /// # Errors
    /// `Aborted` if the transaction has failed.
    pub fn time_ms(&self) -> Result<u64> {
        Ok(self.open_buffers()?.moment.now(self.engine))
    }

    /// A settled row that expires then is absent for it. A conflict if that is not certain: the leaf for which the row was found may have been read long
    /// before the time was, and the row been renewed.
    #[inline]
    pub(crate) fn has_expired(&self, expires_at: u64, leaf: impl FnOnce() -> RangeRead) -> Result<bool> {
        if expires_at == NEVER {
            return Ok(false);
        }
        let mut buffers = self.borrow_buffers()?;
        let is_past = buffers.moment.is_past(expires_at, self.engine);
        if !is_past {
            buffers.note_row(expires_at);
        } else if self.snapshot.is_none() && !self.engine.range_holds(&leaf()) {
            return Err(self.fail(Error::conflict()));
        }
        Ok(is_past)
    }

    /// Sees rows as of now from here on, where it has met what may have been written at a time later than its own: by who has found rows
    /// expired that are there for it, and be it the deletion of such a row. A conflict if one that it has seen has expired meanwhile.
    #[inline]
    pub(super) fn move_on(&self, buffers: &mut Buffers) -> Result<()> {
        match buffers.moment.move_on(buffers.first_to_expire, self.engine) {
            true => Ok(()),
            false => Err(self.fail(Error::conflict())),
        }
    }

    /// When a row expires that is put now without a word on that. That is the clock's now, which is never before the transaction's moment: the transaction sees what
    /// it puts, and others do not find a row expired that has just been put by one that has gone on for long.
    #[inline]
    pub(super) fn default_expiry<O: Object>(&self, object: &O) -> u64 {
        default_expiry(object.handle().time_to_live_ms, || self.engine.now_ms())
    }

    /// Sets the value of a key, and when it expires, whatever the object's [time to live](crate::Kiln::map_with_time_to_live) is. A value that
    /// expires is 8 bytes shorter than others at most.
    ///
    /// ```
    /// # let directory = tempfile::tempdir()?;
    /// # let db = kiln::Kiln::open(directory.path())?;
    /// use std::time::Duration;
    /// use kiln::Expiry;
    /// let sessions = db.map("sessions")?;
    /// db.transact(|tx| tx.put_expiring(&sessions, "ann", "token", Expiry::In(Duration::from_secs(60))))?.safe()?;
    /// assert!(matches!(db.expiry(&sessions, "ann")?, Some(Expiry::At(_))));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`Self::put`].
    pub fn put_expiring<O: Object>(
        &self,
        object: &O,
        key: impl AsRef<[u8]>,
        value: impl AsRef<[u8]>,
        expiry: Expiry,
    ) -> Result<()> {
        let (key, value) = (key.as_ref(), value.as_ref());
        let id = self.check(object, key)?;
        let expires_at = expiry.resolve(|| self.engine.now_ms());
        let mut buffers = self.open_buffers()?;
        self.write(&mut buffers, (id, key), Some(value), expires_at)
    }

    /// Reads a value into a buffer, which is cleared first, and says when the row expires; `None` if there is none.
    ///
    /// # Errors
    /// As [`Self::get`].
    pub fn get_with_expiry<O: Object>(
        &self,
        object: &O,
        key: impl AsRef<[u8]>,
        value: &mut Vec<u8>,
    ) -> Result<Option<Expiry>> {
        let key = key.as_ref();
        let id = self.check(object, key)?;
        let mut buffers = self.open_buffers()?;
        let expires_at = self.read(&mut buffers, (id, self.engine.hash(id, key), key), value)?;
        Ok(expires_at.map(Expiry::of_stored))
    }

    /// When a row expires; `None` if there is none. Its value is not copied if it is in memory.
    ///
    /// # Errors
    /// As [`Self::get`].
    pub fn expiry<O: Object>(&self, object: &O, key: impl AsRef<[u8]>) -> Result<Option<Expiry>> {
        Ok(self.outline(object, key.as_ref())?.map(|outline| Expiry::of_stored(outline.expires_at)))
    }

    /// Changes when a row expires, and not its value; false if there is none.
    ///
    /// # Errors
    /// As [`Self::get`] and [`Self::put`].
    pub fn set_expiry<O: Object>(&self, object: &O, key: impl AsRef<[u8]>, expiry: Expiry) -> Result<bool> {
        let key = key.as_ref();
        let expires_at = expiry.resolve(|| self.engine.now_ms());
        let (value, before) = self.with_value(object, key, |value| value.map(<[u8]>::to_vec))?;
        if let Some(value) = &value
            && before != Some(expires_at)
        {
            let mut buffers = self.open_buffers()?;
            self.write(&mut buffers, (object.handle().id, key), Some(value), expires_at)?;
        }
        Ok(value.is_some())
    }
}
