//! Ctrl-C and SIGTERM end a run early but tidily: servers are stopped and data is removed. A second one ends it at once.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use anyhow::{Context, Result, ensure};
use signal_hook::consts::{SIGINT, SIGTERM};

static ASKED: OnceLock<Arc<AtomicBool>> = OnceLock::new();

/// Starts to watch for signals.
pub(crate) fn install() -> Result<()> {
    let asked = ASKED.get_or_init(Default::default);
    for signal in [SIGINT, SIGTERM] {
        // In this order: the first signal finds the flag still down, so only a second one ends the process.
        signal_hook::flag::register_conditional_shutdown(signal, 130, Arc::clone(asked))
            .and_then(|_| signal_hook::flag::register(signal, Arc::clone(asked)))
            .context("cannot watch for signals")?;
    }
    Ok(())
}

/// Whether the run was asked to end.
pub(crate) fn asked() -> bool {
    ASKED.get().is_some_and(|asked| asked.load(Ordering::Relaxed))
}

/// Fails if the run was asked to end, so that `?` unwinds through everything that has to be cleaned up.
pub(crate) fn check() -> Result<()> {
    ensure!(!asked(), "interrupted");
    Ok(())
}
