//! How many connections may wait on threads at once.
//!
//! What a connection runs can take as long as a disk does: a commit while hardening is behind, a read of what is on disk, whoever flushes, and who
//! wants to be in the keyspace meanwhile. It waits on the thread that it is on, and the runtime puts another in the place of that, up to a number of
//! them (`max_blocking_threads`, 512 unless it was built otherwise). If ten thousand clients could take all of them, nobody would be served any more, not even
//! who asks for nothing that waits.
//!
//! So there are so many turns, of two kinds: who commits must not keep readers waiting, nor they those. A command that may wait is run where a turn is left,
//! and keeps it if it waits; where none is left the batch ends before it ([`Pause::Turn`](crate::batch::Pause)), and its connection waits for a turn as a future, in the order of arrival.
//! One more for each of the runtime's threads can wait than there are turns: who found some left and had others take them first.
//!
//! The turns are those of all servers in the process: they may share a runtime, and so its threads.

use std::cell::RefCell;

use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::sync::{Semaphore, SemaphorePermit};

/// How many turns there are of each kind. Both together are half of what a runtime allows unless it was told otherwise: others need threads, too.
const TURNS: usize = 128;

static COMMITTING: Semaphore = Semaphore::const_new(TURNS);
static READING: Semaphore = Semaphore::const_new(TURNS);

/// What a command may have to wait for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Waiting {
    /// The disk to have caught up, or everybody to have left the keyspace.
    Commit,
    /// What is on disk, or whoever has the keyspace alone.
    Read,
}

impl Waiting {
    fn turns(self) -> &'static Semaphore {
        match self {
            Self::Commit => &COMMITTING,
            Self::Read => &READING,
        }
    }
}

/// One may wait on a thread for as long as this lives.
#[derive(Debug)]
pub(crate) struct Turn {
    waiting: Waiting,
    _permit: SemaphorePermit<'static>,
}

impl Turn {
    /// Waits for a turn.
    pub(crate) async fn wait(waiting: Waiting) -> Self {
        match waiting.turns().acquire().await {
            Ok(permit) => Self { waiting, _permit: permit },
            Err(_) => unreachable!("nobody closes it"),
        }
    }

    fn try_take(waiting: Waiting) -> Option<Self> {
        waiting.turns().try_acquire().ok().map(|permit| Self { waiting, _permit: permit })
    }

    /// Whether whoever has it may wait for this. One who commits may do anything: else he could give one turn for the other again and again.
    fn is_for(&self, waiting: Waiting) -> bool {
        self.waiting == waiting || self.waiting == Waiting::Commit
    }
}

/// Who has a thread.
#[derive(Debug, Default)]
enum Occupant {
    /// Somebody else, who may not be allowed to leave it, as tasks of a `LocalSet` are not.
    #[default]
    Other,
    /// The batch of a connection, which may have a turn.
    Batch(Option<Turn>),
}

thread_local! {
    static OCCUPANT: RefCell<Occupant> = const { RefCell::new(Occupant::Other) };
}

/// Runs a connection's batch, which may have a turn. It has none any more afterwards.
pub(crate) fn serving<T>(turn: Option<Turn>, run: impl FnOnce() -> T) -> T {
    /// Also if that panics, or the next who has the thread would be taken for the server's.
    struct Leaving;
    impl Drop for Leaving {
        fn drop(&mut self) {
            drop(OCCUPANT.replace(Occupant::Other));
        }
    }
    let _leaving = Leaving;
    drop(OCCUPANT.replace(Occupant::Batch(turn)));
    run()
}

/// Whether what runs here may wait for this: it has a turn, or one is left.
pub(crate) fn may_wait(waiting: Waiting) -> bool {
    waiting.turns().available_permits() > 0 || has_turn(waiting)
}

fn has_turn(waiting: Waiting) -> bool {
    OCCUPANT.with_borrow(|occupant| matches!(occupant, Occupant::Batch(Some(turn)) if turn.is_for(waiting)))
}

/// Runs what waits, or takes long, on a thread of the runtime's, whose other tasks go elsewhere first. In a batch this takes a turn, and keeps it until that ends: not before then
/// does the runtime have the thread again.
pub(crate) fn leaving_thread<T>(waiting: Waiting, run: impl FnOnce() -> T) -> T {
    let is_batch = OCCUPANT.with_borrow(|occupant| matches!(occupant, Occupant::Batch(_)));
    let is_of_runtime =
        || Handle::try_current().is_ok_and(|handle| handle.runtime_flavor() == RuntimeFlavor::MultiThread);
    if !is_batch || !is_of_runtime() {
        return run();
    }
    if !has_turn(waiting)
        && let Some(turn) = Turn::try_take(waiting)
    {
        // Who reads and then commits gives one turn for the other.
        drop(OCCUPANT.replace(Occupant::Batch(Some(turn))));
    }
    tokio::task::block_in_place(run)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn take(waiting: Waiting) -> Turn {
        Turn::try_take(waiting).expect("there are turns left")
    }

    /// One test: the turns are those of the process.
    #[test]
    fn there_are_so_many_turns_and_a_batch_keeps_one_until_it_ends() {
        use Waiting::{Commit, Read};
        let may = |turn| serving(turn, || [Commit, Read].map(may_wait));
        assert_eq!(may(None), [true, true]);
        let others: Vec<_> =
            [Commit, Read].into_iter().flat_map(|waiting| (1..TURNS).map(move |_| take(waiting))).collect();
        let (commit, read) = (take(Commit), take(Read));
        assert_eq!(may(None), [false, false]);
        assert_eq!(may(Some(commit)), [true, true], "who commits reads, too");
        let commit = take(Commit);
        assert_eq!(may(Some(read)), [false, true]);
        drop(commit);
        let left = || [Commit, Read].map(|waiting| waiting.turns().available_permits());
        assert_eq!(left(), [1, 1], "they were given back");
        let batch = move || {
            let mut seen = vec![leaving_thread(Read, left), left()];
            seen.extend([leaving_thread(Commit, left), leaving_thread(Read, left), left()]);
            seen
        };
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).build().unwrap();
        let seen =
            runtime.block_on(async { tokio::spawn(async move { serving(None, batch) }).await }).unwrap();
        assert_eq!(seen, [[1, 0], [1, 0], [0, 1], [0, 1], [0, 1]]);
        assert_eq!(left(), [1, 1]);
        drop(others);
    }

    /// It panicked: the runtime has many threads, but its task may not leave this one.
    #[test]
    fn who_is_not_served_waits_where_he_is() {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).build().unwrap();
        let local = tokio::task::LocalSet::new();
        local.block_on(&runtime, async { leaving_thread(Waiting::Commit, || {}) });
    }
}
