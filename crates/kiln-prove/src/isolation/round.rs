//! A round: threads put load on a database on a simulated disk, the power fails, what is left is opened, and it goes on
//! so for some generations; all of it makes one history.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use kiln::device::SimulatedDevice;
use kiln::{ErrorKind, Kiln, Level, Options};

use super::history::{Crash, History};
use super::library::{Objects, Worker, session_of};
use super::recorder::{Recorder, Shared};
use crate::support::Random;

/// Steps of the device after which the power fails, at most.
const STEPS_MAX: usize = 40;
/// The longest that this is waited for.
const PATIENCE: Duration = Duration::from_millis(200);

/// What the transactions go through.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Through {
    /// The engine's own interface.
    Library,
    /// A server in this process, and connections to it.
    Resp,
}

impl Through {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Through::Library => "library",
            Through::Resp => "resp",
        }
    }
}

/// What a round is like.
#[derive(Clone, Debug)]
pub(crate) struct Round {
    pub(crate) through: Through,
    pub(crate) threads: u32,
    seed: u64,
    /// Keys of each kind in use.
    keys: u32,
    crashes: u32,
    /// Transactions before each crash, and before the end.
    transactions: u64,
    options: Options,
}

impl Round {
    /// A round as the seed wants it, with so many threads, or as many as the seed says.
    pub(crate) fn new(seed: u64, threads: Option<u32>, through: Through) -> Round {
        let mut random = Random::new(seed);
        let segment_bytes = 64 << 10 << random.below(3);
        let options = Options::new()
            .segment_bytes(segment_bytes)
            .memory(segment_bytes * (2 << random.below(4)))
            .window(Duration::from_millis(1 + random.below(8) as u64));
        Round {
            through,
            threads: threads.unwrap_or(2 + random.below(15) as u32),
            seed,
            keys: *random.pick(&[3, 6, 12, 40]),
            crashes: random.below(4) as u32,
            transactions: 500 + random.below(4_000) as u64,
            options,
        }
    }

    /// Runs it.
    pub(crate) fn run(&self) -> History {
        let mut random = Random::new(self.seed ^ 1);
        let shared = Shared::new(self.keys);
        let mut disk = SimulatedDevice::new(self.seed);
        let mut history = History::default();
        let mut numbers = vec![0; self.threads as usize];
        for generation in 0..=self.crashes {
            let told = Arc::new(AtomicU64::new(0));
            let db = self.open(&disk, &mut history, generation, &told);
            let mut surveyor = Recorder::new(&shared, self.threads, generation, 0);
            survey(&db, &mut surveyor);
            let is_last = generation == self.crashes;
            let goal = shared.recorded.load(Ordering::Relaxed) + self.transactions;
            shared.stop.store(false, Ordering::Relaxed);
            let mut recorders: Vec<Recorder<'_>> = (0..)
                .zip(&numbers)
                .map(|(process, &numbers)| Recorder::new(&shared, process, generation, numbers))
                .collect();
            self.work(&db, &disk, &mut recorders, &mut random, (goal, is_last));
            if is_last {
                survey(&db, &mut surveyor);
            }
            numbers = recorders.iter().map(Recorder::numbers).collect();
            told.fetch_max(db.horizon(Level::LOCAL).number(), Ordering::SeqCst);
            for recorder in recorders.into_iter().chain([surveyor]) {
                history.transactions.extend(recorder.transactions);
            }
            if is_last {
                db.close().unwrap_or_else(|error| panic!("closing: {error}"));
                continue;
            }
            drop(db);
            let told = told.load(Ordering::SeqCst);
            history.crashes.push(Crash { told, ..Crash::default() });
            disk = disk.after_crash_seeded(random.next());
        }
        history
    }

    /// Opens what is on the disk, and notes what recovery says.
    fn open(
        &self,
        disk: &SimulatedDevice,
        history: &mut History,
        generation: u32,
        told: &Arc<AtomicU64>,
    ) -> Kiln {
        let db = self.options.open_on(Arc::new(disk.clone()));
        let db = db.unwrap_or_else(|error| panic!("opening after {generation} crashes: {error}"));
        if let Some(crash) = history.crashes.last_mut() {
            crash.horizon = db.recovery_report().horizon.number();
        }
        let told = told.clone();
        db.on_durable(move |version| {
            told.fetch_max(version.number(), Ordering::SeqCst);
        });
        if let Some(crash) = history.crashes.last_mut() {
            for process in 0..self.threads {
                let Some(id) = session_of(process) else { continue };
                let session = db.session(id).unwrap_or_else(|error| panic!("opening a session: {error}"));
                crash.serials.push((process, session.recovered_serial()));
            }
        }
        db
    }

    /// Has all threads work until the goal is reached and, unless it is the last time, the power has failed.
    fn work(
        &self,
        db: &Kiln,
        disk: &SimulatedDevice,
        recorders: &mut [Recorder<'_>],
        random: &mut Random,
        (goal, is_last): (u64, bool),
    ) {
        let Some(shared) = recorders.first().map(|recorder| recorder.shared) else { return };
        let objects = Objects::open(db).unwrap_or_else(|error| panic!("opening the objects: {error}"));
        std::thread::scope(|scope| {
            let workers: Vec<_> = recorders
                .iter_mut()
                .map(|recorder| {
                    let (objects, random) = (&objects, Random::new(random.next()));
                    scope.spawn(move || {
                        let session = session_of(recorder.process).map(|id| db.session(id)).transpose()?;
                        Worker { db, objects, recorder, random, session }.work()
                    })
                })
                .collect();
            while shared.recorded.load(Ordering::Relaxed) < goal
                && !workers.iter().any(std::thread::ScopedJoinHandle::is_finished)
            {
                std::thread::sleep(Duration::from_micros(200));
            }
            if !is_last {
                disk.crash_after(disk.steps() + random.below(STEPS_MAX) as u64);
                let deadline = Instant::now() + PATIENCE;
                while !disk.crashed() && Instant::now() < deadline {
                    std::thread::sleep(Duration::from_micros(100));
                }
                // Whoever does not need the disk goes on for a moment.
                std::thread::sleep(Duration::from_micros(random.below(3_000) as u64));
                disk.crash_after(disk.steps());
            }
            shared.stop.store(true, Ordering::Relaxed);
            for worker in workers {
                let outcome = worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
                let expected = |kind| !is_last && matches!(kind, ErrorKind::Lost | ErrorKind::Io);
                if let Err(error) = outcome
                    && !expected(error.kind())
                {
                    panic!("an operation failed: {:?}: {error}", error.kind());
                }
            }
        });
    }
}

/// Reads everything.
fn survey(db: &Kiln, recorder: &mut Recorder<'_>) {
    let objects = Objects::open(db).unwrap_or_else(|error| panic!("opening the objects: {error}"));
    let mut surveyor = Worker { db, objects: &objects, recorder, random: Random::new(0), session: None };
    surveyor.survey().unwrap_or_else(|error| panic!("reading everything: {error}"));
}
