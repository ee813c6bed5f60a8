//! How far a run is, on standard error.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

/// A bar with the time left, and what is being done now.
pub(crate) struct Progress {
    bar: ProgressBar,
}

impl Progress {
    /// A bar of this many steps.
    pub(crate) fn new(steps: u64) -> Progress {
        let bar = ProgressBar::new(steps);
        // The template is a constant, so the fallback is never seen.
        let style =
            ProgressStyle::with_template("{elapsed_precise} [{bar:30}] {percent:>3}%  left {eta:<5} {msg}")
                .unwrap_or_else(|_| ProgressStyle::default_bar());
        bar.set_style(style.progress_chars("=> "));
        bar.enable_steady_tick(Duration::from_millis(500));
        Progress { bar }
    }

    /// Says what is being done.
    pub(crate) fn now(&self, what: impl Into<String>) {
        self.bar.set_message(what.into());
    }

    /// So many steps are done.
    pub(crate) fn steps(&self, count: u64) {
        self.bar.inc(count);
    }

    /// Prints to standard output without tearing the bar.
    pub(crate) fn print(&self, text: &str) {
        self.bar.suspend(|| println!("{text}"));
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
