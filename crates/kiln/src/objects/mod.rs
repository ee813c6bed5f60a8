//! Objects: the kinds of named data that a database holds, and how a program gets at them.
//!
//! An object is an entry in the catalog, the records of its keys in the one log, and what its kind adds to the
//! indexes: a table's is an ordered index.
//!
//! ```text
//!   catalog, handle              which objects there are, and what a program holds of one
//!   map     table                keys by hash, and keys in order
//!   range = rows + walk          a table's rows in order: who reads them, and which key comes next
//!           leaf_keys, leaf_rows    in memory
//!           settled_rows            in the tree
//!           walk/frozen             in the log, for long scans
//! ```

mod catalog;
mod handle;
mod leaf_keys;
mod leaf_rows;
mod map;
mod range;
mod rows;
mod settled_rows;
mod table;
mod walk;

pub(crate) use catalog::{
    CATALOG_OBJECT, Entry, FIRST_OBJECT, add, add_system_objects, check_seen, decode_entry, drop_object,
    dropped_key, encode_dropped, encode_entry, enter_table, object_as_of, open_object, reserve_table,
};
pub(crate) use handle::{Handle, HasHandle};
pub use map::{Map, MapIter};
pub(crate) use map::{keys_at, next_keys};
pub use range::{Range, SnapshotRange};
pub use table::Table;

use std::time::Duration;

use crate::kernel::object::ObjectKind;

/// A named object of a database: a [`Map`] or a [`Table`].
pub trait Object: HasHandle {
    /// The name under which it was opened.
    fn name(&self) -> &str {
        self.handle().life.name()
    }
    /// What kind of object it is.
    fn kind(&self) -> ObjectKind {
        self.handle().state().kind()
    }
    /// Number of keys that have a value; exact while nobody writes, and 0 of an object that was [dropped](crate::Kiln::drop_map). Where rows may have expired that are still stored
    /// it takes a look at every key, which [`Map::len_estimate`] does not. Of a table of which something has
    /// [settled](crate::Options::settle_log_bytes) it takes a look at every row that has not, and waits for who settles, which
    /// [`Table::len_estimate`] does not.
    fn len(&self) -> u64 {
        self.handle().engine.count_unexpired(self.handle().state())
    }
    /// True if no key has a value.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// How long rows stay that are put without an expiry; `None`: until they are deleted. See [`Kiln::map_with_time_to_live`](crate::Kiln::map_with_time_to_live).
    fn time_to_live(&self) -> Option<Duration> {
        time_to_live(self.handle().time_to_live_ms)
    }
}

/// So many milliseconds, or none for 0.
pub(crate) fn time_to_live(ms: u64) -> Option<Duration> {
    (ms > 0).then(|| Duration::from_millis(ms))
}
