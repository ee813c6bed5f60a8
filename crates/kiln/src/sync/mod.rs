//! Synchronisation: the one place from which the engine takes its atomics, locks, threads, thread-locals and clock.
//!
//! ```text
//!  real        std and parking_lot, as they are                 every build
//!  scheduled   the same names, and each use of one is a point   builds with the feature `schedules`
//!              at which another thread may go on
//! ```
//!
//! In a build with `schedules` all threads are coroutines of one thread, shuttle decides at every point who goes on, and time
//! is a counter. So an interleaving is a sequence of choices that a seed repeats (`kiln-prove schedules`), and a lost
//! wake-up is a deadlock that shuttle notices. Orderings weaker than sequentially consistent are not explored there.
//!
//! `Arc` is not among the names: that it is counted atomically shows nowhere.

#[cfg(not(feature = "schedules"))]
mod real;
#[cfg(feature = "schedules")]
mod scheduled;
#[cfg(not(feature = "schedules"))]
mod slices;

#[cfg(not(feature = "schedules"))]
pub(crate) use real::*;
#[cfg(feature = "schedules")]
pub(crate) use scheduled::*;
#[cfg(feature = "schedules")]
pub use scheduled::{Time, begin, quietly};
