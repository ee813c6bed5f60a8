//! Ctrl-C, SIGTERM and the end of its terminal end a run early but tidily: servers are stopped and data is removed. A second Ctrl-C or
//! SIGTERM ends it at once; the end of a terminal is told more than once, by the shell and by the system.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use anyhow::{Context, Result, ensure};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

static ASKED: OnceLock<Arc<AtomicBool>> = OnceLock::new();

/// Starts to watch for signals.
pub(crate) fn install() -> Result<()> {
    let asked = ASKED.get_or_init(Default::default);
    // Under nohup a run goes on without its terminal.
    let hangup = (!is_ignored(SIGHUP)).then_some(SIGHUP);
    // In this order: the first signal finds the flag still down, so only a second one ends the process.
    for signal in [SIGINT, SIGTERM] {
        signal_hook::flag::register_conditional_shutdown(signal, 130, Arc::clone(asked))
            .context("cannot watch for signals")?;
    }
    for signal in [SIGINT, SIGTERM].into_iter().chain(hangup) {
        signal_hook::flag::register(signal, Arc::clone(asked)).context("cannot watch for signals")?;
    }
    Ok(())
}

/// Whether whoever started this process has it ignore a signal.
fn is_ignored(signal: i32) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    mask & 1 << (signal - 1) != 0
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
