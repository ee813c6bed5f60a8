//! How far a run is, on standard error.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressState, ProgressStyle};

/// A bar with the time left, and what is being done now.
pub(crate) struct Progress {
    bar: ProgressBar,
}

impl Progress {
    /// A bar of this many steps.
    pub(crate) fn new(steps: u64) -> Progress {
        Progress::with_style(steps, style("eta"))
    }

    /// A bar of time, of which so much is left; [`Progress::time`] says later how much there is.
    pub(crate) fn of_time(left: Duration) -> Progress {
        let steps = left.as_millis() as u64;
        let text = |state: &ProgressState, out: &mut dyn std::fmt::Write| {
            let whole = Duration::from_millis(state.len().unwrap_or(0));
            let left = whole.saturating_sub(state.elapsed()).as_secs();
            // An error has nowhere to go from here.
            let _ = write!(out, "{}:{:02}", left / 60, left % 60);
        };
        Progress::with_style(steps, style("left").with_key("left", text))
    }

    fn with_style(steps: u64, style: ProgressStyle) -> Progress {
        let bar = ProgressBar::new(steps);
        bar.set_style(style.progress_chars("=> "));
        bar.enable_steady_tick(Duration::from_millis(500));
        Progress { bar }
    }

    /// So much time has passed, and so much is left.
    pub(crate) fn time(&self, passed: Duration, left: Duration) {
        self.bar.set_length((passed + left).as_millis() as u64);
        self.bar.set_position(passed.as_millis() as u64);
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

/// How a bar looks whose time left has this name.
fn style(left: &str) -> ProgressStyle {
    // The template is right, so that the fallback is never seen.
    ProgressStyle::with_template(&format!(
        "{{elapsed_precise}} [{{bar:30}}] {{percent:>3}}%  left {{{left}:<5}} {{msg}}"
    ))
    .unwrap_or_else(|_| ProgressStyle::default_bar())
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
