//! What the tests need besides: their environment, a watchdog, patience.

use std::io::Write;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use kiln::Options;

use crate::support::{DEFAULT_SEED, Replay};

/// The crash states that all tests together look at when `KILN_STATES` is not set.
const DEFAULT_STATES: u64 = 6_000;

fn variable(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name} must be a number, not {text:?}")))
}

/// `KILN_SEED`, or the default.
pub(crate) fn seed() -> u64 {
    variable("KILN_SEED").unwrap_or(DEFAULT_SEED)
}

/// How many repetitions a test makes that makes `usual` of them by default, scaled by `KILN_STATES`.
pub(crate) fn budget(usual: u64) -> u64 {
    let states = variable("KILN_STATES").unwrap_or(DEFAULT_STATES);
    (usual.saturating_mul(states) / DEFAULT_STATES).max(1)
}

/// A small database with its background threads.
pub(crate) fn background() -> Options {
    Options::new().segment_bytes(256 << 10).memory(4 << 20)
}

/// From here on, the test called `name` reproduces what happens, with this seed.
pub(crate) fn at_test(replay: &Replay, name: &str, seed: u64) {
    replay.set(format!("KILN_SEED={seed} cargo test -p kiln-prove {name} -- --nocapture"));
}

/// Runs a test and aborts the process if it takes longer than `limit`: a hang is a failure that must say so.
pub(crate) fn watched(name: &'static str, limit: Duration, test: impl FnOnce(&Replay)) {
    let replay = Replay::default();
    at_test(&replay, name, seed());
    let for_watchdog = replay.clone();
    let (alive, watch) = channel::<()>();
    let watchdog = std::thread::spawn(move || {
        if watch.recv_timeout(limit) == Err(RecvTimeoutError::Timeout) {
            let _ = writeln!(std::io::stderr(), "{name} hangs: it has not ended within {limit:?}");
            for_watchdog.print();
            std::process::abort();
        }
    });
    test(&replay);
    drop(alive);
    watchdog.join().expect("the watchdog does not panic");
}

/// Long enough for anything that is not a hang, on a loaded machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// Waits until `condition` holds; panics when patience is at its end.
pub(crate) fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !condition() {
        assert!(Instant::now() < deadline, "this never came: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Runs a future to its end on this thread.
pub(crate) fn block_on<F: Future>(future: F) -> F::Output {
    struct Unpark(std::thread::Thread);
    impl std::task::Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let mut future = std::pin::pin!(future);
    let waker = Arc::new(Unpark(std::thread::current())).into();
    let mut context = std::task::Context::from_waker(&waker);
    let deadline = Instant::now() + PATIENCE;
    loop {
        match future.as_mut().poll(&mut context) {
            std::task::Poll::Ready(output) => return output,
            std::task::Poll::Pending => {
                assert!(Instant::now() < deadline, "the future never ended");
                std::thread::park_timeout(PATIENCE);
            }
        }
    }
}
