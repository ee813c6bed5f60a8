//! Which process something belongs to.

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
}
