//! Pins and quiescence: how the rare side of the engine waits out the common side.
//!
//! A thread that looks at shared memory (a ring page, an index node) or is inside a commit holds a
//! [`Pin`]. A pin is one plain store into the thread's own slot. The rare side (a tick that closes a
//! version, a read-only shift, an eviction, freeing memory) publishes its change and calls
//! [`quiesce`], which returns once every pin that was taken before the call has been released.
//!
//! ```text
//!   committer:  slot <- odd     read the clock, work ...     slot <- even
//!   ticker:     clock <- v + 1  membarrier   wait for every slot that is odd now to change
//! ```
//!
//! The committer pays no fence: the ticker's `membarrier` interrupts every running thread of the
//! process ([`barrier`]), so either the ticker sees the slot odd, or the thread sees the new clock. (Silo §4.1 and
//! CPR §3 use epochs for the same purpose; a per-thread counter that is odd while pinned needs no
//! global epoch number and lets an idle, sleeping or abandoned thread never hold anybody up.)
//!
//! Versions are also closed for whoever opens a snapshot, as often as ranges and commits alternate, and there an interruption of all would be most of the cost.
//! What counts then is who commits, and nobody else: commits pin themselves by [`pin_for_commit`], and have their locks to take before they look
//! at the clock. That is a fence they pay for anyway ([`barrier::behind_locked`]), so [`quiesce_commits`] interrupts nobody, and waits for no reader.
//!
//! The slots are shared by all databases of the process. Pins are short and never span I/O or user code,
//! so one database waits for another's pins only for microseconds.

use std::cell::{Cell, RefCell};
use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::sync::Arc;

use crate::planted::{Bug, planted};
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use crate::sync::{Mutex, barrier, hint, process_wide, thread, thread_local};

/// One thread's slot, alone on its cache lines so that a pin never bounces another thread's line.
#[repr(align(128))]
struct Slot {
    /// [`PINNED`], and [`COMMITS`] while that pin is a commit's; how often the thread was pinned above them.
    sequence: AtomicU64,
    /// Position in the registry; objects use it to spread counters over threads.
    index: usize,
    owned: AtomicBool,
}

const PINNED: u64 = 1;
const COMMITS: u64 = 2;
const ONE_PIN: u64 = 4;

impl Slot {
    /// The pin lasts, if it was one of this kind, that was there when the sequence was so.
    fn is_pinned_since(&self, seen: u64, kind: u64) -> bool {
        seen & kind != 0 && self.sequence.load(Ordering::Acquire) == seen
    }
}

process_wide! {
    /// Every slot ever made. Slots live as long as the process and are reused by later threads, so their
    /// number is the largest number of threads that were ever alive at once.
    static SLOTS: Mutex<Arc<Vec<Arc<Slot>>>> = Mutex::new(Arc::new(Vec::new()));
}

struct Registration {
    slot: Arc<Slot>,
    depth: Cell<u32>,
}

impl Registration {
    fn acquire() -> Registration {
        let mut slots = SLOTS.lock();
        let free = slots.iter().find(|slot| !slot.owned.load(Ordering::Relaxed)).cloned();
        let slot = free.unwrap_or_else(|| {
            let slot = Arc::new(Slot {
                sequence: AtomicU64::new(0),
                index: slots.len(),
                owned: AtomicBool::new(false),
            });
            Arc::make_mut(&mut slots).push(slot.clone());
            slot
        });
        slot.owned.store(true, Ordering::Relaxed);
        Registration { slot, depth: Cell::new(0) }
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        // Under the registry's lock, so that the next owner sees the sequence this thread left.
        let _slots = SLOTS.lock();
        self.slot.owned.store(false, Ordering::Relaxed);
    }
}

thread_local! {
    static REGISTRATION: Registration = Registration::acquire();
    /// That of a thread whose thread-local values are being dropped, as long as it is pinned: the others' drops may use a database. It is not dropped
    /// itself, so it is there until the end.
    static LATE: ManuallyDrop<RefCell<Option<Registration>>> = const { ManuallyDrop::new(RefCell::new(None)) };
}

/// Runs with the thread's registration.
#[inline]
fn with_registration<T>(run: impl Fn(&Registration) -> T) -> T {
    REGISTRATION.try_with(|registration| run(registration)).unwrap_or_else(|_| with_late(run))
}

#[cold]
fn with_late<T>(run: impl Fn(&Registration) -> T) -> T {
    LATE.with(|late| {
        let mut late = late.borrow_mut();
        let registration = late.get_or_insert_with(Registration::acquire);
        let result = run(registration);
        if registration.depth.get() == 0 {
            *late = None;
        }
        result
    })
}

/// Keeps the calling thread pinned until dropped. Never hold one across I/O, a wait, or user code.
#[derive(Debug)]
pub(crate) struct Pin {
    not_send: PhantomData<*const ()>,
}

/// Pins the calling thread. Pins nest; only the outermost one counts.
#[inline]
pub(crate) fn pin() -> Pin {
    pin_as(PINNED)
}

/// Pins the calling thread, which is not pinned yet, so that [`quiesce_commits`] waits for it, too. Before it looks at what must have been closed, or not, the
/// caller takes a lock, and calls [`barrier::behind_locked`].
///
/// # Panics
/// If the calling thread is pinned.
#[inline]
pub(crate) fn pin_for_commit() -> Pin {
    pin_as(PINNED | COMMITS)
}

#[inline]
fn pin_as(kind: u64) -> Pin {
    with_registration(|registration| {
        let depth = registration.depth.get();
        if depth == 0 {
            #[cfg(feature = "schedules")]
            crate::sync::begin_pin();
            let sequence = registration.slot.sequence.load(Ordering::Relaxed);
            // So that who finds this pin, and does not wait for it, sees what was done under the one before it.
            registration.slot.sequence.store(sequence | kind, Ordering::Release);
            if !planted(Bug::PinOrdersNothing) {
                barrier::light();
            }
        } else {
            assert_eq!(kind, PINNED, "a commit under a pin is one that nobody waits for");
        }
        registration.depth.set(depth + 1);
    });
    Pin { not_send: PhantomData }
}

impl Drop for Pin {
    #[inline]
    fn drop(&mut self) {
        with_registration(|registration| {
            let depth = registration.depth.get() - 1;
            registration.depth.set(depth);
            if depth == 0 || planted(Bug::InnerUnpinEnds) {
                let sequence = registration.slot.sequence.load(Ordering::Relaxed);
                let order =
                    if planted(Bug::UnpinOrdersNothing) { Ordering::Relaxed } else { Ordering::Release };
                registration.slot.sequence.store((sequence | (ONE_PIN - 1)) + 1, order);
                #[cfg(feature = "schedules")]
                crate::sync::end_pin();
            }
        });
    }
}

/// A small number that differs between threads alive at the same time, but for those that are just ending; spreads counters over threads.
pub(crate) fn thread_index() -> usize {
    with_registration(|registration| registration.slot.index)
}

/// All threads' [indexes](thread_index) so far are below.
pub(crate) fn threads_max() -> usize {
    SLOTS.lock().len()
}

/// Waits until every pin that existed at the call has been released. What the caller stored before the
/// call is seen by every pin taken after it. It looks at one thread after the other, so of a thread that it has yet to come to it waits
/// for a later pin, too: who is pinned must not wait for who quiesces, whoever was first.
///
/// # Panics
/// If the calling thread is pinned: it would wait for itself.
pub(crate) fn quiesce() {
    assert_unpinned();
    #[cfg(test)]
    tests::QUIESCED.with(|quiesced| quiesced.set(quiesced.get() + 1));
    barrier::heavy();
    wait_for_pins(PINNED);
}

/// As [`quiesce`], but only of pins that are [for commits](pin_for_commit), and without a system call.
///
/// # Panics
/// If the calling thread is pinned.
pub(crate) fn quiesce_commits() {
    assert_unpinned();
    fence(Ordering::SeqCst);
    wait_for_pins(COMMITS);
}

fn assert_unpinned() {
    with_registration(|registration| assert_eq!(registration.depth.get(), 0, "quiesce under a pin"));
}

/// A slot that is added while this goes on belongs to a thread that saw the caller's stores.
fn wait_for_pins(kind: u64) {
    let slots = SLOTS.lock().clone();
    let overlooked = usize::from(planted(Bug::QuiesceOverlooks));
    slots.iter().step_by(1 + overlooked).for_each(|slot| wait_unpinned(slot, kind));
    fence(Ordering::SeqCst);
}

fn wait_unpinned(slot: &Slot, kind: u64) {
    let seen = slot.sequence.load(Ordering::Acquire);
    let mut spins = 0u32;
    while slot.is_pinned_since(seen, kind) {
        spins += 1;
        if spins < 64 {
            hint::spin_loop();
        } else {
            // The pinned thread may have been descheduled; give it the processor.
            thread::yield_now();
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    std::thread_local! {
        /// How often this thread has waited for all pins.
        pub(crate) static QUIESCED: Cell<u64> = const { Cell::new(0) };
    }

    #[test]
    fn quiesce_waits_for_a_pin_taken_before_it() {
        let (is_begun, is_done) = (AtomicBool::new(false), AtomicBool::new(false));
        let pinned = pin();
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| {
                is_begun.store(true, Ordering::SeqCst);
                quiesce();
                is_done.store(true, Ordering::SeqCst);
            });
            while !is_begun.load(Ordering::SeqCst) {
                std::thread::yield_now();
            }
            (0..1_000).for_each(|_| std::thread::yield_now());
            let is_early = is_done.load(Ordering::SeqCst);
            // Not pinned any more, or the waiter might wait for this thread for ever.
            drop(pinned);
            waiter.join().unwrap();
            assert!(!is_early, "quiesce returned under an older pin");
        });
    }

    /// Else who pins again and again would be waited for without end.
    #[test]
    fn a_pin_that_was_taken_again_is_another_one() {
        let sequence = AtomicU64::new(0);
        let slot = Slot { sequence, index: 0, owned: AtomicBool::new(true) };
        assert!(!slot.is_pinned_since(0, PINNED), "it is not pinned");
        for (pinned, commits) in [(PINNED, false), (PINNED | COMMITS, true)] {
            slot.sequence.store(pinned, Ordering::SeqCst);
            assert!(slot.is_pinned_since(pinned, PINNED));
            assert_eq!(slot.is_pinned_since(pinned, COMMITS), commits);
            for later in [ONE_PIN, ONE_PIN | pinned] {
                slot.sequence.store(later, Ordering::SeqCst);
                assert!(!slot.is_pinned_since(pinned, PINNED), "the pin that was waited for has ended");
            }
        }
    }

    #[test]
    fn commits_are_waited_for_and_readers_are_not() {
        let (begun, wait) = std::sync::mpsc::channel();
        let (is_done, is_released) = (AtomicBool::new(false), AtomicBool::new(false));
        let reader = pin();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let _commit = pin_for_commit();
                begun.send(()).unwrap();
                while !is_released.load(Ordering::SeqCst) {
                    std::thread::yield_now();
                }
            });
            wait.recv().unwrap();
            let waiter = scope.spawn(|| {
                quiesce_commits();
                is_done.store(true, Ordering::SeqCst);
            });
            (0..1_000).for_each(|_| std::thread::yield_now());
            let is_early = is_done.load(Ordering::SeqCst);
            is_released.store(true, Ordering::SeqCst);
            waiter.join().unwrap();
            assert!(!is_early, "it returned under a commit from before");
        });
        // Only now, and so nobody has waited for it.
        drop(reader);
    }

    #[test]
    fn idle_sleeping_and_ended_threads_never_delay_quiesce() {
        let (ready, wait) = std::sync::mpsc::channel();
        let (release, hold) = std::sync::mpsc::channel::<()>();
        let sleeper = std::thread::spawn(move || {
            drop(pin());
            ready.send(()).unwrap();
            let _ = hold.recv();
        });
        std::thread::spawn(|| drop(pin())).join().unwrap();
        wait.recv().unwrap();
        quiesce();
        drop(release);
        sleeper.join().unwrap();
    }

    #[test]
    fn a_store_before_quiesce_is_seen_by_every_later_pin() {
        let flag = Arc::new(AtomicU64::new(0));
        let seen_after_close = Arc::new(AtomicU64::new(0));
        let rounds = if cfg!(miri) { 20 } else { 2_000 };
        let closed = Arc::new(AtomicU64::new(0));
        let threads: Vec<_> = (0..2)
            .map(|_| {
                let (flag, closed, bad) = (flag.clone(), closed.clone(), seen_after_close.clone());
                std::thread::spawn(move || {
                    while flag.load(Ordering::Relaxed) < rounds {
                        let _pin = pin();
                        let version = flag.load(Ordering::SeqCst);
                        if version < closed.load(Ordering::SeqCst) {
                            bad.fetch_add(1, Ordering::SeqCst);
                        }
                    }
                })
            })
            .collect();
        for round in 1..=rounds {
            flag.store(round, Ordering::SeqCst);
            quiesce();
            closed.store(round, Ordering::SeqCst);
        }
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        assert_eq!(seen_after_close.load(Ordering::SeqCst), 0, "a pin joined a closed version");
    }
}
