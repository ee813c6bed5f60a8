//! Operations of a transaction that read a key and write what they make of it.

use super::Transaction;
use crate::error::{Error, Result};
use crate::kernel::handle::Object;
use crate::storage::log::Purpose;
use crate::storage::record::NEVER;

impl Transaction<'_> {
    /// Deletes a key; true if it had a value.
    ///
    /// # Errors
    /// As [`Self::get`] and [`Self::put`].
    pub fn delete<O: Object>(&self, object: &O, key: impl AsRef<[u8]>) -> Result<bool> {
        let key = key.as_ref();
        let existed = self.contains(object, key)?;
        match existed {
            true => self.delete_key(object.handle().id, key)?,
            false => self.note_deletion()?,
        }
        Ok(existed)
    }

    /// To be called by who looks for all that it is going to delete, as often as another key is found: fails once the limits do not allow so many deletions, which
    /// take so much log. Each of the keys may be one that the transaction has written already.
    pub(crate) fn check_deletions(&self, count: usize, log_bytes: usize) -> Result<()> {
        let buffers = self.borrow_buffers()?;
        self.check_count(buffers.reads.len() + buffers.writes.len().max(count))?;
        self.check_bytes(count, log_bytes)
    }

    /// Says that it deletes, also if nothing is there to be deleted.
    pub(crate) fn note_deletion(&self) -> Result<()> {
        self.open_buffers()?.writes.note_deletion();
        Ok(())
    }

    /// Replaces a key's value by what `change` makes of it; `None` stands for "no value" on both sides.
    /// Within `change` the transaction's operations are refused, with an error of the kind `Input`.
    ///
    /// # Errors
    /// As [`Self::get`] and [`Self::put`].
    pub fn update<O: Object, V: AsRef<[u8]>>(
        &self,
        object: &O,
        key: impl AsRef<[u8]>,
        change: impl FnOnce(Option<&[u8]>) -> Option<V>,
    ) -> Result<()> {
        let key = key.as_ref();
        let (new, before) = self.with_value(object, key, change)?;
        self.replace(object, key, before, new.as_ref().map(AsRef::as_ref))
    }

    /// As [`Self::update`], without an allocation for the new value: `change` leaves it in the buffer that it is given
    /// empty, and returns true; or false for "no value".
    ///
    /// # Errors
    /// As [`Self::update`].
    pub fn update_into<O: Object>(
        &self,
        object: &O,
        key: impl AsRef<[u8]>,
        change: impl FnOnce(Option<&[u8]>, &mut Vec<u8>) -> bool,
    ) -> Result<()> {
        let key = key.as_ref();
        let mut new = std::mem::take(&mut self.open_buffers()?.new_value);
        new.clear();
        let (exists, before) = self.with_value(object, key, |old| change(old, &mut new))?;
        let replaced = self.replace(object, key, before, exists.then_some(&new));
        if let Ok(mut buffers) = self.open_buffers() {
            buffers.new_value = new;
        }
        replaced
    }

    /// Writes a key that has just been read: its row, if there was one, expired `before`, or never, and its new value does.
    fn replace<O: Object>(
        &self,
        object: &O,
        key: &[u8],
        before: Option<u64>,
        new: Option<&[u8]>,
    ) -> Result<()> {
        if before.is_none() && new.is_none() {
            return self.note_deletion();
        }
        let mut buffers = self.open_buffers()?;
        let expires_at = match new {
            Some(_) => before.unwrap_or_else(|| self.default_expiry(object)),
            None => NEVER,
        };
        self.write(&mut buffers, (object.handle().id, key), new, expires_at)
    }

    /// Says that the transaction's writes make room: on a full disk they may take what is kept for deletions, as deletions may. For a few small ones, behind which
    /// much can be deleted: where they take all of it, nothing can be deleted any more.
    ///
    /// ```
    /// # let directory = tempfile::tempdir()?;
    /// let db = kiln::Kiln::open(directory.path())?;
    /// let days = db.map("days")?;
    /// // From here on nobody needs what is older, and it can be deleted bit by bit.
    /// db.transact(|tx| {
    ///     tx.makes_room()?;
    ///     tx.put(&days, "first", "2026-11-29")
    /// })?
    /// .safe()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`Self::get`].
    pub fn makes_room(&self) -> Result<()> {
        self.makes_room_as(Purpose::Deletion)
    }

    /// The same, with space that is kept for this.
    pub(crate) fn makes_room_as(&self, purpose: Purpose) -> Result<()> {
        self.open_buffers()?.writes.set_makes_room(purpose);
        Ok(())
    }

    /// Adds to a key's value, an 8-byte little-endian integer (0 if there is none), and gives the sum.
    ///
    /// # Errors
    /// `Input` if the value is not 8 bytes long or the sum overflows; otherwise as [`Self::get`] and [`Self::put`].
    pub fn add<O: Object>(&self, object: &O, key: impl AsRef<[u8]>, delta: i64) -> Result<i64> {
        let key = key.as_ref();
        let (sum, before) = self.with_value(object, key, |old| sum_of(old, delta))?;
        let sum = sum?;
        self.replace(object, key, before, Some(&sum.to_le_bytes()))?;
        Ok(sum)
    }

    /// Sets a key to `new` if its value is `expected`; true if it was. `None` stands for "no value" on both sides, so that
    /// `None` and a value put a key that is absent.
    ///
    /// # Errors
    /// As [`Self::get`] and [`Self::put`].
    pub fn compare_and_set<O: Object>(
        &self,
        object: &O,
        key: impl AsRef<[u8]>,
        expected: Option<&[u8]>,
        new: Option<&[u8]>,
    ) -> Result<bool> {
        let key = key.as_ref();
        let (matches, before) = self.with_value(object, key, |value| value == expected)?;
        if matches {
            self.replace(object, key, before, new)?;
        }
        Ok(matches)
    }

    /// Looks at a key's value in the transaction's own buffer; and says when the row expires, or that it never does, if there is one.
    pub(super) fn with_value<O: Object, T>(
        &self,
        object: &O,
        key: &[u8],
        look: impl FnOnce(Option<&[u8]>) -> T,
    ) -> Result<(T, Option<u64>)> {
        let id = self.check(object, key)?;
        self.with_value_of((id, self.engine.hash(id, key), key), look)
    }

    /// The same, of a key that was checked, with its hash.
    pub(super) fn with_value_of<T>(
        &self,
        key: (u32, u64, &[u8]),
        look: impl FnOnce(Option<&[u8]>) -> T,
    ) -> Result<(T, Option<u64>)> {
        let mut buffers = self.open_buffers()?;
        let mut value = std::mem::take(&mut buffers.value);
        let found = self.read(&mut buffers, key, &mut value);
        // The buffers stay borrowed: what others of the transaction's operations wrote meanwhile would be overwritten by what comes of this.
        let seen = found.map(|expires_at| (look(expires_at.map(|_| &value[..])), expires_at));
        buffers.value = value;
        seen
    }
}

/// The sum of a key's integer and `delta`.
pub(crate) fn sum_of(old: Option<&[u8]>, delta: i64) -> Result<i64> {
    let old = match old {
        None => 0,
        Some(bytes) => bytes.try_into().map(i64::from_le_bytes).map_err(|_| {
            Error::input(format!("add needs a value of 8 bytes; this one has {}", bytes.len()))
        })?,
    };
    old.checked_add(delta).ok_or_else(|| Error::input(format!("{old} + {delta} overflows 64 bits")))
}
