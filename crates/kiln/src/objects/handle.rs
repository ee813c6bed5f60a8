//! What a program's object handle holds.

use std::sync::Arc;

use crate::kernel::engine::Engine;
use crate::kernel::life::Life;
use crate::kernel::object::ObjectState;

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
