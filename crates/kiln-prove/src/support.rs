//! Randomness, budgets, replay lines, and a watchdog: what the tests need besides the database.

use std::io::Write;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use kiln::Options;
use kiln::device::SimulatedDevice;

/// The seed when `KILN_SEED` is not set.
const DEFAULT_SEED: u64 = 0x4B49_4C4E;

/// The crash states that all tests together look at when `KILN_STATES` is not set.
const DEFAULT_STATES: u64 = 6_000;

/// SplitMix64 (Steele, Lea and Flood, OOPSLA 2014): small, and the same everywhere.
#[derive(Clone, Debug)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Random {
        Random(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut word = self.0;
        word = (word ^ (word >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        word ^ (word >> 31)
    }

    /// A number below `bound`.
    pub(crate) fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound.max(1) as u64) as usize
    }

    /// True once in `one_in` times.
    pub(crate) fn one_in(&mut self, one_in: usize) -> bool {
        self.below(one_in) == 0
    }

    pub(crate) fn pick<'a, T>(&mut self, choices: &'a [T]) -> &'a T {
        &choices[self.below(choices.len())]
    }

    /// Bytes that no other value shares.
    pub(crate) fn bytes(&mut self, length: usize) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(length + 8);
        while bytes.len() < length {
            bytes.extend_from_slice(&self.next().to_le_bytes());
        }
        bytes.truncate(length);
        bytes
    }
}

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

/// A step given by `KILN_STEP`, to which a replay is confined.
pub(crate) fn only_step() -> Option<u64> {
    variable("KILN_STEP")
}

/// The smallest database there is, on the calling thread alone: the same calls make the same device steps.
pub(crate) fn manual() -> Options {
    Options::new().background(false).segment_bytes(64 << 10).memory(128 << 10)
}

/// A small database with its background threads.
pub(crate) fn background() -> Options {
    Options::new().segment_bytes(256 << 10).memory(4 << 20)
}

/// An independent copy of a disk, as it is seen now.
pub(crate) fn copy_of(disk: &SimulatedDevice) -> SimulatedDevice {
    disk.after_crash(&mut |_| kiln::device::Keep::Kept)
}

/// Prints how to run what failed again, if the thread panics while this is alive.
pub(crate) struct Replay {
    line: Arc<Mutex<String>>,
}

impl Replay {
    /// `filter` is the test's name; the environment is that of the present run until [`Replay::at`] refines it.
    pub(crate) fn new(filter: &str) -> Replay {
        let line = format!("replay: KILN_SEED={} {}", seed(), command(filter));
        Replay { line: Arc::new(Mutex::new(line)) }
    }

    /// From here on, `environment` (such as `KILN_SEED=7 KILN_STEP=12`) reproduces what happens.
    pub(crate) fn at(&self, filter: &str, environment: &str) {
        let line = format!("replay: {environment} {}", command(filter));
        *self.line.lock().unwrap_or_else(PoisonError::into_inner) = line;
    }

    fn print(&self) {
        let line = self.line.lock().unwrap_or_else(PoisonError::into_inner);
        // Not by a macro: the watchdog aborts, and what it prints must not be captured.
        let _ = writeln!(std::io::stderr(), "{line}");
    }
}

fn command(filter: &str) -> String {
    format!("cargo test -p kiln --test contract {filter} -- --nocapture")
}

impl Drop for Replay {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.print();
        }
    }
}

/// Runs a test and aborts the process if it takes longer than `limit`: a hang is a failure that must say so.
pub(crate) fn watched(name: &'static str, limit: Duration, test: impl FnOnce(&Replay)) {
    let replay = Replay::new(name);
    let for_watchdog = Replay { line: replay.line.clone() };
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
