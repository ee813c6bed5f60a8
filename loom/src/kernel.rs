//! The engine's own files.

#[path = "../../crates/kiln/src/kernel/clock.rs"]
pub(crate) mod clock;
#[path = "../../crates/kiln/src/kernel/hardening/horizon.rs"]
pub(crate) mod horizon;
