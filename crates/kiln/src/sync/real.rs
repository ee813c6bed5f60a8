//! The primitives of every build but one: re-exports, and the barrier of the operating system.

pub(crate) use std::sync::{OnceLock, atomic, mpsc};
pub(crate) use std::time::Instant;
pub(crate) use std::{hint, thread, thread_local};

pub(crate) use parking_lot::{Condvar, Mutex, MutexGuard, RwLock};
use rustix::thread::futex;

pub(crate) use super::slices::take_short_slices;

/// An event count (Reed and Kanodia, CACM 1979): where threads sleep until something has happened. All of them are woken by one
/// system call, which costs the waker, and the machine, much less than waking one after the other.
#[derive(Debug, Default)]
pub(crate) struct EventCount(atomic::AtomicU32);

impl EventCount {
    /// What has happened so far. Who sleeps looks here first, and then whether it has to sleep at all.
    pub(crate) fn read(&self) -> u32 {
        self.0.load(atomic::Ordering::SeqCst)
    }

    /// Sleeps until something has happened since `seen` was read, or for no reason.
    pub(crate) fn wait(&self, seen: u32) {
        // Why it ended is looked for by the caller.
        let _ = futex::wait(&self.0, futex::Flags::PRIVATE, seen, None);
    }

    /// Something has happened that is for all who sleep here.
    pub(crate) fn advance_for_all(&self) {
        self.advance(i32::MAX as u32);
    }

    /// Something has happened for which one of them is enough.
    pub(crate) fn advance_for_one(&self) {
        self.advance(1);
    }

    fn advance(&self, most: u32) {
        self.0.fetch_add(1, atomic::Ordering::SeqCst);
        futex::wake(&self.0, futex::Flags::PRIVATE, most).expect("a word of this process can be waited for");
    }
}

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

/// Acts; `None` if it panicked, which the panic's hook has reported. What it was about is left as it was then.
pub(crate) fn contain<T>(act: impl FnOnce() -> T) -> Option<T> {
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(act)).ok()
}

/// A static; it begins with its first use.
macro_rules! process_wide {
    ($(#[$attribute:meta])* static $name:ident: $type:ty = $value:expr;) => {
        $(#[$attribute])*
        static $name: std::sync::LazyLock<$type> = std::sync::LazyLock::new(|| $value);
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

    /// Behind a lock that was just taken by a read-modify-write: a full fence, which on some processors that was already.
    #[inline]
    pub(crate) fn behind_locked() {
        if cfg!(all(target_arch = "x86_64", not(miri))) {
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
            .expect("membarrier, which the system had allowed when it was asked first, is refused now: by a filter of system calls?");
    }
}
