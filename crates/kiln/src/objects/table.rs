//! Tables: ordered keys, with ranges.

use std::sync::Arc;

use super::{Handle, HasHandle, Object};
use crate::kernel::object::{ObjectKeys, ObjectKind};
use crate::storage::epoch::Pin;
use crate::storage::ordered_index::{Insertion, OrderedIndex};

/// A named table: keys in the order of their bytes, with ranges in both directions.
///
/// ```
/// # let directory = tempfile::tempdir()?;
/// let db = kiln::Kiln::open(directory.path().join("db"))?;
/// let auctions = db.table("auctions")?;
/// db.transact(|tx| {
///     tx.put(&auctions, "a17", "open")?;
///     tx.put(&auctions, "a18", "open")
/// })?
/// .safe()?;
/// let open = db.transact(|tx| tx.prefix(&auctions, "a").map(|row| Ok(row?.0)).collect::<kiln::Result<Vec<_>>>())?;
/// assert_eq!(open.forget(), [b"a17", b"a18"]);
/// # db.close()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Table {
    handle: Handle,
    name: Arc<str>,
}

impl Table {
    pub(crate) fn new(handle: Handle, name: &str) -> Table {
        Table { handle, name: name.into() }
    }

    pub(crate) fn ordered(&self) -> &OrderedIndex {
        let ordered = self.handle.state().keys.ordered();
        ordered.unwrap_or_else(|| unreachable!("a table is opened with an ordered index"))
    }
}

impl Object for Table {
    fn name(&self) -> &str {
        &self.name
    }

    fn kind(&self) -> ObjectKind {
        ObjectKind::Table
    }

    fn len(&self) -> u64 {
        self.handle.state().key_count.sum()
    }
}

impl HasHandle for Table {
    fn handle(&self) -> &Handle {
        &self.handle
    }
}

/// A table keeps its keys in an ordered index too.
pub(crate) struct OrderedKeys(OrderedIndex);

impl OrderedKeys {
    pub(crate) fn new() -> OrderedKeys {
        OrderedKeys(OrderedIndex::new())
    }
}

impl ObjectKeys for OrderedKeys {
    fn admit(&self, pin: &Pin, key: &[u8]) -> Insertion {
        self.0.insert(pin, key)
    }

    fn retract(&self, pin: &Pin, key: &[u8]) {
        self.0.remove(pin, key);
    }

    fn ordered(&self) -> Option<&OrderedIndex> {
        Some(&self.0)
    }
}
