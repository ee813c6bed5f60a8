//! What a program's handle of an object holds, and what it tells. What kinds of handle there are [`objects`](crate::objects) has.

use std::sync::Arc;
use std::time::Duration;

use super::engine::Engine;
use super::life::Life;
use super::object::{ObjectKind, ObjectState};

/// An open object, as the kernel knows it.
#[derive(Clone, Debug)]
pub struct Handle {
    pub(crate) engine: Arc<Engine>,
    pub(crate) id: u32,
    /// How long a row stays that is put without a word on that; 0: until it is deleted.
    pub(crate) time_to_live_ms: u64,
    /// The object's, where every operation finds it.
    pub(crate) life: Arc<Life>,
}

impl Handle {
    pub(crate) fn state(&self) -> &ObjectState {
        self.engine.object(self.id)
    }
}

/// Only the engine's own types are objects: this trait cannot be named outside.
pub trait HasHandle {
    /// The handle.
    fn handle(&self) -> &Handle;
}

/// A named object of a database: a [`Map`](crate::Map) or a [`Table`](crate::Table).
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
    /// it takes a look at every key, which [`Map::len_estimate`](crate::Map::len_estimate) does not. Of a table of which something has
    /// [settled](crate::Options::settle_log_bytes) it takes a look at every row that has not, and waits for who settles, which
    /// [`Table::len_estimate`](crate::Table::len_estimate) does not.
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
