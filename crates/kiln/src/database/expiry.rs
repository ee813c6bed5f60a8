//! Rows that expire: objects whose rows do so unless it is said otherwise, and single operations.

use std::time::Duration;

use super::Kiln;
use crate::error::Result;
use crate::kernel::expiry::{Expiry, millis};
use crate::kernel::handle::Object;
use crate::kernel::receipt::Commit;
use crate::objects::{self, Map, Table};
use crate::{ObjectKind, Transaction};

/// # Rows that expire
///
/// A row may have a time from which on it reads as absent, everywhere: its *expiry*. It is said with the row, or is the object's *time
/// to live* after the moment at which the row is put. A transaction sees all rows as of one moment, at which it
/// first met one that expires, or a later one at which all that it has seen is still there; a snapshot as of the time at which it was opened, or got its name. What has expired is deleted by the database itself, in the background, or by
/// [`Self::persist`] where there are no background threads; until then it takes space.
///
/// What replaces a value by another one that depends on it (`update`, `add`, `compare_and_set`) leaves the row its expiry. A put does not: the new row has
/// the one that is said with it, or the object's time to live, or none.
///
/// The clock is the system's, in milliseconds, and never goes back as long as the database is open. If it is set back meanwhile, time goes on from where it was: what is put
/// expires after its time to live, and only times since 1970 are ahead, by as much, until the database is opened anew, or the clock has been set to them. If it is set back while the
/// database is closed, what has expired and is not deleted yet is there again until then.
///
/// ```
/// # let directory = tempfile::tempdir()?;
/// # let db = kiln::Kiln::open(directory.path())?;
/// use std::time::Duration;
/// use kiln::Expiry;
/// let tokens = db.map_with_time_to_live("tokens", Duration::from_secs(3600))?;
/// db.put(&tokens, "ann", "f00")?.safe()?;
/// db.put_expiring(&tokens, "bob", "ba5", Expiry::At(1))?.safe()?;
/// db.put_expiring(&tokens, "eve", "1ee", Expiry::Never)?.safe()?;
/// assert!(matches!(db.expiry(&tokens, "ann")?, Some(Expiry::At(at)) if at > db.time_ms()));
/// assert_eq!(db.get(&tokens, "bob")?, None);
/// assert_eq!(db.expiry(&tokens, "eve")?, Some(Expiry::Never));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
impl Kiln {
    /// As [`Self::map`]; rows of the map that are put without an expiry of their own expire so long (in milliseconds) after that. It is kept with the map, and
    /// cannot be changed: a map that is there already must have the same.
    ///
    /// # Errors
    /// As [`Self::map`]; `Input` if there is such a map, and its time to live is another one.
    pub fn map_with_time_to_live(&self, name: &str, time_to_live: Duration) -> Result<Map> {
        let time_to_live_ms = Some(millis(time_to_live).max(1));
        Ok(Map::new(objects::open_object(self.engine(), name, ObjectKind::Map, time_to_live_ms)?))
    }

    /// As [`Self::table`], and as [`Self::map_with_time_to_live`].
    ///
    /// # Errors
    /// As [`Self::map_with_time_to_live`].
    pub fn table_with_time_to_live(&self, name: &str, time_to_live: Duration) -> Result<Table> {
        let time_to_live_ms = Some(millis(time_to_live).max(1));
        Ok(Table::new(objects::open_object(self.engine(), name, ObjectKind::Table, time_to_live_ms)?))
    }

    /// The time by which rows expire, in milliseconds since 1970. It never goes back.
    pub fn time_ms(&self) -> u64 {
        self.engine().now_ms()
    }

    /// As [`Transaction::put_expiring`], in a transaction of its own.
    ///
    /// # Errors
    /// As [`Transaction::put_expiring`] and [`Self::transact`].
    pub fn put_expiring<O: Object>(
        &self,
        object: &O,
        key: impl AsRef<[u8]>,
        value: impl AsRef<[u8]>,
        expiry: Expiry,
    ) -> Result<Commit<'_, ()>> {
        let (engine, value) = (self.engine(), value.as_ref());
        let key = engine.single_key(object, key.as_ref())?;
        let expires_at = expiry.resolve(|| engine.now_ms());
        engine.check_expiring(value, expires_at)?;
        Ok(Commit::new(engine, engine.put_single(key, value, expires_at)?, ()))
    }

    /// When a row expires; `None` if there is none.
    ///
    /// # Errors
    /// As [`Self::get`].
    pub fn expiry<O: Object>(&self, object: &O, key: impl AsRef<[u8]>) -> Result<Option<Expiry>> {
        self.engine().expiry_of(object, key.as_ref())
    }

    /// As [`Transaction::set_expiry`], in a transaction of its own.
    ///
    /// # Errors
    /// As [`Transaction::set_expiry`] and [`Self::transact`].
    pub fn set_expiry<O: Object>(
        &self,
        object: &O,
        key: impl AsRef<[u8]>,
        expiry: Expiry,
    ) -> Result<Commit<'_, bool>> {
        let key = key.as_ref();
        self.transact(|tx: &Transaction<'_>| tx.set_expiry(object, key, expiry))
    }
}
