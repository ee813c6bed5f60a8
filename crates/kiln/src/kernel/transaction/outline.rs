//! What a transaction can tell of a row without its value, which may be long.

use super::Transaction;
use crate::error::Result;
use crate::kernel::handle::Object;
use crate::kernel::single::SingleKey;

/// A row, as it is told of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Outline {
    /// When it expires, if it does.
    pub(super) expires_at: u64,
    /// How long its value is.
    pub(super) value_bytes: usize,
}

impl Transaction<'_> {
    /// True if the key has a value, which is not copied if it is in memory. From disk it is read as a whole: a record's key and value are under one checksum.
    ///
    /// # Errors
    /// As [`Self::get`].
    pub fn contains<O: Object>(&self, object: &O, key: impl AsRef<[u8]>) -> Result<bool> {
        Ok(self.outline(object, key.as_ref())?.is_some())
    }

    /// How many bytes a key's value has; `None` if there is none. The value is not copied if it is in memory.
    ///
    /// ```
    /// # let directory = tempfile::tempdir()?;
    /// # let db = kiln::Kiln::open(directory.path())?;
    /// let pictures = db.map("pictures")?;
    /// db.put(&pictures, "kiln", [0; 1000])?.forget();
    /// let bytes = db.transact(|tx| tx.value_bytes(&pictures, "kiln"))?.forget();
    /// assert_eq!(bytes, Some(1000));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`Self::get`].
    pub fn value_bytes<O: Object>(&self, object: &O, key: impl AsRef<[u8]>) -> Result<Option<usize>> {
        Ok(self.outline(object, key.as_ref())?.map(|outline| outline.value_bytes))
    }

    /// Reads a row but for its value; `None` if there is none. What is not in memory is read as a whole all the same: its checksum is that
    /// of the whole record.
    pub(super) fn outline<O: Object>(&self, object: &O, key: &[u8]) -> Result<Option<Outline>> {
        let id = self.check(object, key)?;
        let life = &*object.handle().life;
        let single = SingleKey { object: id, hash: self.engine.hash(id, key), key, life };
        let mut buffers = self.open_buffers()?;
        if let Some(written) = self.find_written(&mut buffers, (id, single.hash, key)) {
            return Ok(written.map(|write| Outline {
                expires_at: write.expires_at,
                value_bytes: buffers.writes.value(&write).len(),
            }));
        }
        if self.snapshot.is_none()
            && let Some((reading, value_bytes)) = self.engine.outline_at_once(single, &buffers.moment)
        {
            self.note_use(&mut buffers, id)?;
            self.note_reading(&mut buffers, &reading)?;
            let expires_at = reading.expires_at;
            return Ok(reading.found.then_some(Outline { expires_at, value_bytes }));
        }
        drop(buffers);
        let length = |value: Option<&[u8]>| value.map_or(0, <[u8]>::len);
        let (value_bytes, expires_at) = self.with_value_of((id, single.hash, key), length)?;
        Ok(expires_at.map(|expires_at| Outline { expires_at, value_bytes }))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use crate::device::SimulatedDevice;
    use crate::sync::atomic::Ordering;
    use crate::{Expiry, Kiln, Map, Options, Transaction};

    static VALUE: [u8; 100_000] = [7; 100_000];

    fn open() -> (Kiln, Map) {
        let options = Options::new().background(false).segment_bytes(1 << 20).memory(4 << 20);
        let db = options.open_on(Arc::new(SimulatedDevice::new(1))).unwrap();
        let map = db.map("map").unwrap();
        (db, map)
    }

    /// How long a value the transaction has copied, or one before it on this thread.
    fn copied_bytes(tx: &Transaction<'_>) -> usize {
        tx.borrow_buffers().unwrap().value.capacity()
    }

    /// Whether a key is there was told by a copy of its value, of 16 MiB at times.
    #[test]
    fn a_row_in_memory_is_told_of_without_a_copy_of_its_value() {
        let (db, map) = open();
        db.put(&map, "stays", VALUE).unwrap().forget();
        let until = db.transact(|tx| Ok(tx.time_ms()? + 1_000_000)).unwrap().forget();
        db.put_expiring(&map, "expires", VALUE, Expiry::At(until)).unwrap().forget();
        db.put_expiring(&map, "expired", VALUE, Expiry::In(Duration::ZERO)).unwrap().forget();
        db.put(&map, "deleted", VALUE).unwrap().forget();
        db.delete(&map, "deleted").unwrap().forget();
        let told = |tx: &Transaction<'_>, key| Ok((tx.expiry(&map, key)?, tx.value_bytes(&map, key)?));
        let looked = db.transact(|tx| {
            assert_eq!(told(tx, "stays")?, (Some(Expiry::Never), Some(VALUE.len())));
            assert_eq!(told(tx, "expires")?, (Some(Expiry::At(until)), Some(VALUE.len())));
            for absent in ["expired", "deleted", "never"] {
                assert_eq!(told(tx, absent)?, (None, None), "{absent}");
                assert!(!tx.contains(&map, absent)?);
            }
            tx.put(&map, "own", VALUE)?;
            assert_eq!(told(tx, "own")?, (Some(Expiry::Never), Some(VALUE.len())));
            assert!(tx.delete(&map, "stays")? && tx.delete(&map, "own")?);
            assert_eq!((told(tx, "stays")?, told(tx, "own")?), ((None, None), (None, None)));
            Ok(copied_bytes(tx))
        });
        assert!(looked.unwrap().forget() < VALUE.len());
    }

    #[test]
    fn a_row_on_disk_is_told_of_and_one_in_the_read_cache_without_a_copy() {
        let (db, map) = open();
        let put = |key: &str| db.put(&map, key, VALUE).unwrap().forget();
        ["often", "never"].into_iter().for_each(put);
        let (log, cold) = (&db.engine().log, &db.engine().cold);
        let mut fillers = 0;
        while log.tail() < 3 * log.ring_bytes() {
            fillers += 1;
            put(&format!("filler {fillers}"));
            db.persist().unwrap();
        }
        let reads = || cold.reads.load(Ordering::Relaxed);
        assert_eq!(db.get(&map, "often").unwrap().as_deref(), Some(VALUE.as_slice()));
        assert_eq!(reads(), 1, "it is on disk");
        let look = |key: &str| {
            let told = db.transact(|tx| Ok((tx.value_bytes(&map, key)?, copied_bytes(tx))));
            told.unwrap().forget()
        };
        let (value_bytes, copied) = look("often");
        assert_eq!(value_bytes, Some(VALUE.len()));
        assert!(copied < VALUE.len());
        assert_eq!(reads(), 1, "it is in the read cache");
        assert_eq!(look("never").0, Some(VALUE.len()));
        assert_eq!(reads(), 2);
    }

    /// What is told of a row is a read as any other: who acts upon it must not commit once it is not so.
    #[test]
    fn a_transaction_depends_on_what_it_was_told_of_a_row() {
        let (db, map) = open();
        for look in [
            (|tx: &Transaction<'_>, map: &Map| tx.contains(map, "k").map(drop)) as fn(&_, &_) -> _,
            |tx, map| tx.expiry(map, "k").map(drop),
            |tx, map| tx.value_bytes(map, "k").map(drop),
        ] {
            db.put(&map, "k", VALUE).unwrap().forget();
            let tx = db.begin().unwrap();
            look(&tx, &map).unwrap();
            db.delete(&map, "k").unwrap().forget();
            tx.put(&map, "other", "v").unwrap();
            assert!(tx.commit().unwrap_err().is_conflict());
        }
    }
}
