//! The primitives of every build but one: re-exports, and the barrier of the operating system.

pub(crate) use std::sync::{OnceLock, atomic, mpsc};
pub(crate) use std::time::Instant;
pub(crate) use std::{hint, thread, thread_local};

pub(crate) use parking_lot::{Condvar, Mutex, MutexGuard, RwLock};

/// How many threads can run at once. The operating system is asked once: the answer is read from files, which takes as long
/// as half the opening of a small database.
pub(crate) fn processors() -> usize {
    static PROCESSORS: OnceLock<usize> = OnceLock::new();
    *PROCESSORS.get_or_init(|| thread::available_parallelism().map_or(1, std::num::NonZero::get))
}

/// Begins a thread that ends before its scope does, and whose panic becomes the scope's.
///
/// # Errors
/// The operating system's, when there can be no more threads.
pub(crate) fn spawn_scoped<'scope>(
    scope: &'scope thread::Scope<'scope, '_>,
    name: &str,
    act: impl FnOnce() + Send + 'scope,
) -> std::io::Result<()> {
    thread::Builder::new().name(name.into()).spawn_scoped(scope, act).map(drop)
}

/// A static that needs no code to begin with.
macro_rules! process_wide {
    ($(#[$attribute:meta])* static $name:ident: $type:ty = $value:expr;) => {
        $(#[$attribute])*
        static $name: $type = $value;
    };
}
pub(crate) use process_wide;

/// A fence in two halves: the common side pays nothing, the rare side interrupts every running thread of the process.
///
/// Of a thread that stores, calls [`light`] and loads, and another that stores, calls [`heavy`] and loads, at least one sees
/// the other's store. Where the kernel has no expedited `membarrier`, both are full fences.
///
/// [`light`]: barrier::light
/// [`heavy`]: barrier::heavy
pub(crate) mod barrier {
    use std::sync::OnceLock;
    use std::sync::atomic::{Ordering, compiler_fence, fence};

    /// The common side.
    #[inline]
    pub(crate) fn light() {
        if asymmetric() {
            compiler_fence(Ordering::SeqCst);
        } else {
            fence(Ordering::SeqCst);
        }
    }

    /// The rare side.
    pub(crate) fn heavy() {
        fence(Ordering::SeqCst);
        if asymmetric() {
            interrupt_all();
        }
    }

    /// True where the kernel offers the expedited private `membarrier`, so that the common side needs no fence.
    #[inline]
    fn asymmetric() -> bool {
        static REGISTERED: OnceLock<bool> = OnceLock::new();
        *REGISTERED.get_or_init(register)
    }

    #[cfg(not(miri))]
    fn register() -> bool {
        use rustix::thread::{MembarrierCommand, MembarrierQuery, membarrier, membarrier_query};
        membarrier_query().contains(MembarrierQuery::PRIVATE_EXPEDITED)
            && membarrier(MembarrierCommand::RegisterPrivateExpedited).is_ok()
    }

    #[cfg(miri)]
    fn register() -> bool {
        false
    }

    fn interrupt_all() {
        use rustix::thread::{MembarrierCommand, membarrier};
        membarrier(MembarrierCommand::PrivateExpedited)
            .expect("membarrier was registered at start and cannot fail afterwards");
    }
}
