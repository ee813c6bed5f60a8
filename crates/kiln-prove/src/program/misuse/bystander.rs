//! The client that behaves, whom the others must not keep from being served.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use redis::{Connection, RedisResult, cmd};

use super::super::server::{PATIENCE, connect};

/// Between two requests: it does not need the processor that others misuse.
const EVERY: Duration = Duration::from_millis(1);
const KEY: &str = "of-the-bystander";

/// A client at work.
#[derive(Debug)]
pub(super) struct Bystander {
    state: Arc<State>,
    thread: JoinHandle<Result<(), String>>,
}

#[derive(Debug, Default)]
struct State {
    writes: AtomicU64,
    is_enough: AtomicBool,
}

impl Bystander {
    pub(super) fn begin(port: u16) -> Bystander {
        let state = Arc::new(State::default());
        let mut connection = connect(port).expect("the server accepts connections");
        let of_thread = state.clone();
        let thread = std::thread::spawn(move || {
            work(&mut connection, &of_thread)
                .map_err(|error| format!("a client that behaves is not served: {error}"))
        });
        Bystander { state, thread }
    }

    /// Writes that were acknowledged.
    pub(super) fn writes(&self) -> u64 {
        self.state.writes.load(Ordering::Relaxed)
    }

    /// Fails unless two more of its requests are answered: one may have been on its way.
    pub(super) fn assert_is_served(&self) {
        let (before, end) = (self.writes(), Instant::now() + PATIENCE);
        while self.writes() < before + 2 {
            assert!(
                !self.thread.is_finished() && Instant::now() < end,
                "a client that behaves is not served"
            );
            std::thread::sleep(EVERY);
        }
    }

    /// Ends it, who must have been served all the time.
    pub(super) fn end(self) {
        self.state.is_enough.store(true, Ordering::Relaxed);
        match self.thread.join() {
            Ok(Ok(())) => {}
            Ok(Err(text)) => panic!("{text}"),
            Err(panic) => std::panic::resume_unwind(panic),
        }
    }
}

/// Writes and reads a key, which others may flush.
fn work(connection: &mut Connection, state: &State) -> RedisResult<()> {
    while !state.is_enough.load(Ordering::Relaxed) {
        let number = state.writes.load(Ordering::Relaxed) + 1;
        cmd("SET").arg(KEY).arg(number).exec(connection)?;
        state.writes.store(number, Ordering::Relaxed);
        let read: Option<u64> = cmd("GET").arg(KEY).query(connection)?;
        assert!(read.is_none_or(|read| read == number), "{read:?} was read where {number} was written");
        std::thread::sleep(EVERY);
    }
    Ok(())
}
