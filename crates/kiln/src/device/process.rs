//! Which process something belongs to.

use crate::sync::thread::JoinHandle;

/// The process that has opened something. One that is forked off it has a copy of its memory, and shares what is open, but has none of its threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Process(u32);

impl Process {
    /// The one that asks.
    pub(crate) fn this() -> Process {
        Process(std::process::id())
    }

    /// Whether it is the one that asks. A system call.
    pub(crate) fn is_this(self) -> bool {
        self == Process::this()
    }

    /// In another process, lets go of the threads that this one has started: they were not forked along, and cannot be awaited. Says whether it has.
    pub(crate) fn leaves(self, threads: &mut Vec<JoinHandle<()>>) -> bool {
        let is_other = !self.is_this();
        if is_other {
            std::mem::forget(std::mem::take(threads));
        }
        is_other
    }
}
