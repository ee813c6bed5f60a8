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
//! The turns are those of all servers on a runtime: they share its threads. Those of other runtimes go on, also if a disk never comes back.

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::LazyLock;

use parking_lot::Mutex;
use tokio::runtime::{Handle, Id, RuntimeFlavor};
use tokio::sync::{Semaphore, SemaphorePermit};

/// How many turns there are of each kind. Both together are half of what a runtime allows unless it was told otherwise: others need threads, too.
const TURNS: usize = 128;

/// The turns of one runtime.
#[derive(Debug)]
pub(crate) struct Turns {
    committing: Semaphore,
    reading: Semaphore,
}

/// Those of each runtime that has had a connection. They stay for as long as the process: nothing tells that a runtime has ended, and batches that shared them by
/// counting would all write the count.
static OF_RUNTIMES: LazyLock<Mutex<HashMap<Id, &'static Turns>>> = LazyLock::new(Mutex::default);

impl Turns {
    /// Those of the runtime that this runs on.
    pub(crate) fn of_runtime() -> &'static Self {
        OF_RUNTIMES.lock().entry(Handle::current().id()).or_insert_with(Self::leaked)
    }

    fn leaked() -> &'static Self {
        Box::leak(Box::new(Self { committing: Semaphore::new(TURNS), reading: Semaphore::new(TURNS) }))
    }

    fn of(&self, waiting: Waiting) -> &Semaphore {
        match waiting {
            Waiting::Commit => &self.committing,
            Waiting::Read => &self.reading,
        }
    }

    /// Waits for a turn.
    pub(crate) async fn wait(&'static self, waiting: Waiting) -> Turn {
        match self.of(waiting).acquire().await {
            Ok(permit) => Turn { waiting, _permit: permit },
            Err(_) => unreachable!("nobody closes it"),
        }
    }

    fn try_take(&'static self, waiting: Waiting) -> Option<Turn> {
        self.of(waiting).try_acquire().ok().map(|permit| Turn { waiting, _permit: permit })
    }
}

/// What a command may have to wait for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Waiting {
    /// The disk to have caught up, or everybody to have left the keyspace.
    Commit,
    /// What is on disk, or whoever has the keyspace alone.
    Read,
}

/// One may wait on a thread for as long as this lives.
#[derive(Debug)]
pub(crate) struct Turn {
    waiting: Waiting,
    _permit: SemaphorePermit<'static>,
}

impl Turn {
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
    /// The batch of a connection, which may have one of these turns.
    Batch(&'static Turns, Option<Turn>),
}

impl Occupant {
    /// The turns of who is served here, and whether it has one with which it may wait for this.
    fn served(&self, waiting: Waiting) -> Option<(&'static Turns, bool)> {
        match self {
            Self::Other => None,
            Self::Batch(turns, turn) => {
                Some((*turns, turn.as_ref().is_some_and(|turn| turn.is_for(waiting))))
            }
        }
    }
}

thread_local! {
    static OCCUPANT: RefCell<Occupant> = const { RefCell::new(Occupant::Other) };
}

/// Runs a connection's batch, which may have one of these turns. It has none any more afterwards.
pub(crate) fn serving<T>(turns: &'static Turns, turn: Option<Turn>, run: impl FnOnce() -> T) -> T {
    /// Also if that panics, or the next who has the thread would be taken for the server's.
    struct Leaving;
    impl Drop for Leaving {
        fn drop(&mut self) {
            drop(OCCUPANT.replace(Occupant::Other));
        }
    }
    let _leaving = Leaving;
    drop(OCCUPANT.replace(Occupant::Batch(turns, turn)));
    run()
}

/// Whether what runs here may wait for this: it has a turn, or one is left. Who is not served needs none.
pub(crate) fn may_wait(waiting: Waiting) -> bool {
    let served = OCCUPANT.with_borrow(|occupant| occupant.served(waiting));
    served.is_none_or(|(turns, has_turn)| has_turn || turns.of(waiting).available_permits() > 0)
}

/// Runs what waits, or takes long, on a thread of the runtime's, whose other tasks go elsewhere first. In a batch this takes a turn, and keeps it until that ends: not before then
/// does the runtime have the thread again.
pub(crate) fn leaving_thread<T>(waiting: Waiting, run: impl FnOnce() -> T) -> T {
    let served = OCCUPANT.with_borrow(|occupant| occupant.served(waiting));
    let is_of_runtime =
        || Handle::try_current().is_ok_and(|handle| handle.runtime_flavor() == RuntimeFlavor::MultiThread);
    let Some((turns, has_turn)) = served.filter(|_| is_of_runtime()) else { return run() };
    if !has_turn && let Some(turn) = turns.try_take(waiting) {
        // Who reads and then commits gives one turn for the other.
        drop(OCCUPANT.replace(Occupant::Batch(turns, Some(turn))));
    }
    tokio::task::block_in_place(run)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_are_so_many_turns_and_a_batch_keeps_one_until_it_ends() {
        use Waiting::{Commit, Read};
        let turns = Turns::leaked();
        let take = |waiting| turns.try_take(waiting).expect("there are turns left");
        let may = |turn| serving(turns, turn, || [Commit, Read].map(may_wait));
        assert_eq!(may(None), [true, true]);
        let others: Vec<_> =
            [Commit, Read].into_iter().flat_map(|waiting| (1..TURNS).map(move |_| take(waiting))).collect();
        let (commit, read) = (take(Commit), take(Read));
        assert_eq!(may(None), [false, false]);
        assert_eq!(may(Some(commit)), [true, true], "who commits reads, too");
        let commit = take(Commit);
        assert_eq!(may(Some(read)), [false, true]);
        drop(commit);
        let left = move || [Commit, Read].map(|waiting| turns.of(waiting).available_permits());
        assert_eq!(left(), [1, 1], "they were given back");
        let batch = move || {
            let mut seen = vec![leaving_thread(Read, left), left()];
            seen.extend([leaving_thread(Commit, left), leaving_thread(Read, left), left()]);
            seen
        };
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).build().unwrap();
        let seen = runtime
            .block_on(async { tokio::spawn(async move { serving(turns, None, batch) }).await })
            .unwrap();
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
