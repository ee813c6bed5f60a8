//! A round: threads put load on a database on a simulated disk, the power fails, what is left is opened, and it goes on
//! so for some generations; all of it makes one history.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use kiln::device::SimulatedDevice;
use kiln::{ErrorKind, Kiln, Level, Options};

use super::history::{Crash, History, Key, Outcome, Transaction};
use super::keeper::{Keeper, NAMES, name_of};
use super::library::{Worker, session_of};
use super::operations::Objects;
use super::recorder::{LENGTH_MAX, Recorder, Shared};
use super::resp::Server;
use crate::support::Random;

/// The settler rests for so many microseconds, at most.
const REST_MAX_US: usize = 2_000;
/// A disk has room for so many microseconds, and is full for so many, at most. Then so many bytes have room.
const EMPTY_MAX_US: usize = 20_000;
const FULL_MAX_US: usize = 5_000;
const ROOM_MAX: usize = 128 << 10;
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

/// Why a thread could not go on.
#[derive(Debug)]
pub(crate) struct Failure {
    /// The disk has failed, as it does when the power fails.
    pub(crate) of_disk: bool,
    pub(crate) text: String,
}

impl From<kiln::Error> for Failure {
    fn from(error: kiln::Error) -> Failure {
        let of_disk = matches!(error.kind(), ErrorKind::Lost | ErrorKind::Io);
        Failure { of_disk, text: format!("{:?}: {error}", error.kind()) }
    }
}

/// What a round is like.
#[derive(Clone, Debug)]
pub(crate) struct Round {
    through: Through,
    threads: u32,
    seed: u64,
    /// Keys of each kind in use.
    keys: u32,
    /// Changes of a row before it is replaced.
    changes_max: usize,
    crashes: u32,
    calm: bool,
    rows_mostly: bool,
    /// A thread settles the tables all the time.
    settles: bool,
    /// A thread keeps named snapshots.
    keeps: bool,
    /// The disk is full at times.
    fills: bool,
    /// Transactions before each crash, and before the end.
    transactions: u64,
    options: Options,
}

impl Round {
    /// A round as the seed wants it, with so many threads, or as many as the seed says.
    pub(crate) fn new(seed: u64, threads: Option<u32>, through: Through) -> Round {
        let mut random = Random::new(seed);
        let segment_bytes = 64 << 10 << random.below(3);
        // In most rounds what is not overwritten is compacted.
        let space_amplification = *random.pick(&[1.1, 1.3, 2.0]);
        // Or no checkpoint is taken by itself.
        let checkpoint_log_bytes = *random.pick(&[0, 64 << 10, 256 << 10]);
        // What settles is sorted in one run or several, and merged in as many ranges of keys.
        let settle_memory = *random.pick(&[0, 8 << 10, 16 << 20]);
        let options = Options::new()
            .settle_memory(settle_memory)
            .leaf_compression(random.one_in(2))
            .segment_bytes(segment_bytes)
            .space_amplification(space_amplification)
            .checkpoint_log_bytes(checkpoint_log_bytes)
            .memory(segment_bytes * (2 << random.below(4)))
            .window(Duration::from_millis(1 + random.below(8) as u64));
        let keeps = through == Through::Library && random.one_in(2);
        Round {
            through,
            threads: threads.unwrap_or(2 + random.below(15) as u32),
            seed,
            keys: *random.pick(&[3, 6, 12, 40]),
            changes_max: *random.pick(&[2, 2, 5, LENGTH_MAX]),
            crashes: random.below(4) as u32,
            calm: random.one_in(3),
            rows_mostly: random.one_in(3),
            settles: through == Through::Library && random.one_in(2),
            keeps,
            // Who keeps snapshots has nobody to tell that there was no room for one.
            fills: through == Through::Library && !keeps && random.one_in(2),
            transactions: 500 + random.below(if through == Through::Resp { 1_000 } else { 4_000 }) as u64,
            options: options.settle_threads(*random.pick(&[1, 4])),
        }
    }

    /// Runs it. Returns how many rows have settled, too.
    pub(crate) fn run(&self) -> (History, u64) {
        let mut random = Random::new(self.seed ^ 1);
        let shared = Shared::new(self.keys, self.changes_max);
        let mut disk = SimulatedDevice::new(self.seed);
        let mut history = History::default();
        let mut numbers = vec![0; self.threads as usize];
        let (mut settled, mut kept) = (0, 0);
        // The last generation looks at what an orderly close has left.
        for generation in 0..=self.crashes + 1 {
            let told = Arc::new(AtomicU64::new(0));
            let db = self.open(&disk, &mut history, generation, &told);
            let (is_closed, is_last) = (generation >= self.crashes, generation > self.crashes);
            let goal = if is_last { 0 } else { self.transactions };
            let mut surveyor = Recorder::new(&shared, self.threads, generation, 0);
            let mut keeper = Recorder::new(&shared, self.threads + 1, generation, kept);
            let mut recorders: Vec<Recorder<'_>> = (0..)
                .zip(&numbers)
                .map(|(process, &numbers)| Recorder::new(&shared, process, generation, numbers))
                .collect();
            settled += self.work(
                (&db, goal),
                &disk,
                &mut recorders,
                [&mut surveyor, &mut keeper],
                &mut random,
                is_closed,
            );
            numbers = recorders.iter().map(Recorder::numbers).collect();
            kept = keeper.numbers();
            told.fetch_max(db.horizon(Level::LOCAL).number(), Ordering::SeqCst);
            if !is_last {
                check_not_refused(recorders.iter().flat_map(|recorder| &recorder.transactions));
            }
            for recorder in recorders.into_iter().chain([surveyor, keeper]) {
                history.transactions.extend(recorder.transactions);
            }
            if is_closed {
                db.close().unwrap_or_else(|error| panic!("closing: {error}"));
                // Closing in order hardens everything, whatever it says itself of how far it came.
                told.fetch_max(history.newest_written(generation), Ordering::SeqCst);
                told.fetch_max(db.horizon(Level::LOCAL).number(), Ordering::SeqCst);
            }
            drop(db);
            if is_last {
                continue;
            }
            let told = told.load(Ordering::SeqCst);
            history.crashes.push(Crash { told, ..Crash::default() });
            if !is_closed {
                disk = disk.after_crash_seeded(random.next());
            }
        }
        (history, settled)
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
            let version_of = |name: Key| {
                let found = db.open_snapshot(&name_of(name)).ok()?;
                Some((name, found.version().number()))
            };
            crash.names.extend((0..NAMES).filter_map(version_of));
        }
        db
    }

    /// Has all threads work until so many transactions are done and, unless it is closed then, the power has failed; and reads
    /// everything, before that and before it is closed. Returns how many rows have settled.
    fn work(
        &self,
        (db, transactions): (&Kiln, u64),
        disk: &SimulatedDevice,
        recorders: &mut [Recorder<'_>],
        [surveyor, keeper]: [&mut Recorder<'_>; 2],
        random: &mut Random,
        is_closed: bool,
    ) -> u64 {
        let shared = surveyor.shared;
        let objects = Objects::open(db).unwrap_or_else(|error| panic!("opening the objects: {error}"));
        let server = (self.through == Through::Resp).then(|| Server::start(db));
        let work = |recorder: &mut Recorder<'_>, random: Random, survey: bool| -> Result<(), Failure> {
            // Who reads everything, twice, has none: the server may not have noticed by the second time that the first connection is gone.
            let id = session_of(recorder.process).filter(|_| !survey);
            match &server {
                Some(server) => {
                    let mut teller =
                        server.connect(recorder, random, id).map_err(|error| Failure::from(&error))?;
                    if survey { teller.survey() } else { teller.work() }
                }
                None => {
                    let session = id.map(|id| db.session(id)).transpose()?;
                    let calm = self.calm;
                    let rows_mostly = self.rows_mostly;
                    let objects = &objects;
                    let mut worker = Worker {
                        db,
                        objects,
                        recorder,
                        random,
                        session,
                        calm,
                        rows_mostly,
                        is_about_passing: false,
                        may_be_full: self.fills,
                    };
                    if survey { worker.survey() } else { worker.work() }.map_err(Failure::from)
                }
            }
        };
        let survey = |surveyor: &mut Recorder<'_>| {
            let done = work(surveyor, Random::new(0), true);
            done.unwrap_or_else(|failure| panic!("reading everything: {}", failure.text));
        };
        survey(surveyor);
        let goal = shared.recorded.load(Ordering::Relaxed) + transactions;
        shared.stop.store(false, Ordering::Relaxed);
        let settled = std::thread::scope(|scope| {
            let settler = self.settles.then(|| {
                let random = Random::new(random.next());
                scope.spawn(move || settle_until_over((db, disk), shared, random, self.fills))
            });
            let filler = (self.fills && transactions > 0).then(|| {
                let random = Random::new(random.next());
                scope.spawn(move || fill_until_over(disk, shared, random))
            });
            let keeper = (self.keeps && transactions > 0).then(|| {
                let mut keeper =
                    Keeper { db, objects: &objects, recorder: keeper, random: Random::new(random.next()) };
                scope.spawn(move || unless_power_has_failed(keeper.work().map_err(Failure::from), disk))
            });
            let workers: Vec<_> = recorders
                .iter_mut()
                .map(|recorder| {
                    let (work, random) = (&work, Random::new(random.next()));
                    scope.spawn(move || unless_power_has_failed(work(recorder, random, false), disk))
                })
                .collect();
            while shared.recorded.load(Ordering::Relaxed) < goal
                && !workers.iter().any(std::thread::ScopedJoinHandle::is_finished)
            {
                std::thread::sleep(Duration::from_micros(200));
            }
            if !is_closed {
                switch_off(disk, random);
            }
            shared.stop.store(true, Ordering::Relaxed);
            for worker in workers.into_iter().chain(keeper) {
                worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            }
            if let Some(filler) = filler {
                filler.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            }
            let settled = settler.map(|settler| settler.join());
            settled.map_or(0, |settled| settled.unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
        });
        if is_closed {
            survey(surveyor);
        }
        if let Some(server) = server {
            server.stop();
        }
        settled
    }
}

/// One attempt in so many writes and commits, at the least: of each that conflicts, or passes a limit, it is said that it may, but not of all.
const COMMITS_ONE_IN: usize = 50;

/// That not nearly everything was refused: then nothing could be wrong.
fn check_not_refused<'t>(transactions: impl Iterator<Item = &'t Transaction>) {
    let (mut attempts, mut commits) = (0, 0);
    for transaction in transactions {
        attempts += 1;
        let is_committed = matches!(transaction.outcome, Outcome::Committed(_));
        commits += usize::from(is_committed && transaction.writes());
    }
    assert!(
        commits * COMMITS_ONE_IN >= attempts,
        "{commits} of {attempts} attempts have written and committed"
    );
}

/// The end of who works until the power fails, which must not come before: asked at once, since the power fails a moment later.
fn unless_power_has_failed(done: Result<(), Failure>, disk: &SimulatedDevice) {
    if let Err(Failure { of_disk, text }) = done {
        assert!(of_disk && disk.crashed(), "an operation failed: {text}");
    }
}

/// Settles the tables again and again, until the power fails or everybody stops. Returns how many rows have settled.
fn settle_until_over(
    (db, disk): (&Kiln, &SimulatedDevice),
    shared: &Shared,
    mut random: Random,
    may_be_full: bool,
) -> u64 {
    let mut settled = 0;
    while !shared.is_over() {
        // Compacting settles, too, and has the indexes give memory back.
        let done = match random.below(8) {
            0 => db.compact(|_| {}).map(|_| 0),
            1 => db.checkpoint().map(|_| 0),
            _ => db.settle(),
        };
        match done {
            Ok(rows) => settled += rows,
            Err(error) if may_be_full && error.kind() == ErrorKind::NoSpace => {}
            Err(error) => {
                unless_power_has_failed(Err(error.into()), disk);
                break;
            }
        }
        std::thread::sleep(Duration::from_micros(random.below(REST_MAX_US) as u64));
    }
    settled
}

/// Leaves the disk next to no room for a moment, again and again.
fn fill_until_over(disk: &SimulatedDevice, shared: &Shared, mut random: Random) {
    while !shared.is_over() {
        std::thread::sleep(Duration::from_micros(random.below(EMPTY_MAX_US) as u64));
        disk.fail_after_bytes(random.below(ROOM_MAX) as u64);
        std::thread::sleep(Duration::from_micros(random.below(FULL_MAX_US) as u64));
        disk.set_capacity(None);
    }
}

/// The power fails a few steps from now.
fn switch_off(disk: &SimulatedDevice, random: &mut Random) {
    disk.crash_after(disk.steps() + random.below(STEPS_MAX) as u64);
    let deadline = Instant::now() + PATIENCE;
    while !disk.crashed() && Instant::now() < deadline {
        std::thread::sleep(Duration::from_micros(100));
    }
    // Whoever does not need the disk goes on for a moment.
    std::thread::sleep(Duration::from_micros(random.below(3_000) as u64));
    disk.crash_after(disk.steps());
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use kiln::device::{Fault, FaultKind, OperationKind};

    use super::*;
    use crate::support::manual;

    /// A disk that refused what it should not have passed for one whose power had failed.
    #[test]
    fn c8_who_cannot_settle_although_the_power_has_not_failed_is_noticed() {
        let ends_well = |prepare: fn(&SimulatedDevice)| {
            let disk = SimulatedDevice::new(1);
            let db = manual().open_on(Arc::new(disk.clone())).unwrap();
            let table = db.table("table").unwrap();
            db.put(&table, "key", "value").unwrap().safe().unwrap();
            prepare(&disk);
            let settle = || settle_until_over((&db, &disk), &Shared::new(3, 2), Random::new(1), false);
            catch_unwind(AssertUnwindSafe(settle)).is_ok()
        };
        assert!(ends_well(|disk| disk.crash_after(disk.steps())));
        assert!(!ends_well(|disk| {
            disk.inject(Fault {
                operation: OperationKind::Write,
                nth: 1,
                kind: FaultKind::EIO,
                sticky: true,
            });
        }));
    }
}
