//! Work on all processors: each job is a process of its own, so that nothing in one waits for the others, and a crash, a hang
//! or a panic of one is seen.

#[cfg(not(feature = "schedules"))]
use std::io::{BufRead, BufReader, IsTerminal};
#[cfg(not(feature = "schedules"))]
use std::process::{Command, ExitCode, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
#[cfg(not(feature = "schedules"))]
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

#[cfg(not(feature = "schedules"))]
use crate::arguments::Effort;
use crate::arguments::Limit;
use crate::support::Replay;

/// Seeds of one job, before those of the next begin.
#[cfg(not(feature = "schedules"))]
const SEEDS_PER_JOB: u64 = 1 << 32;
/// The longest that one state may take; what takes longer hangs.
const PATIENCE: Duration = Duration::from_secs(120);
/// Between two lines of progress.
const EVERY: Duration = Duration::from_secs(5);

/// States that were looked at, and those that are equal to one of them.
#[derive(Clone, Copy, Default)]
pub(crate) struct Counts {
    pub(crate) different: u64,
    pub(crate) equal: u64,
}

impl Counts {
    fn all(self) -> u64 {
        self.different + self.equal
    }

    /// For a person: how many of what there are.
    fn described(self, noun: &str) -> String {
        let Counts { different, equal } = self;
        let all = self.all();
        if equal == 0 {
            format!("{all} {noun}")
        } else {
            format!("{all} {noun}, {different} of them different,")
        }
    }

    /// For the process that adds up.
    pub(crate) fn print(self) {
        println!("{} {}", self.different, self.equal);
    }

    /// What a process has [printed](Counts::print), if the line is that.
    pub(crate) fn parse(line: &str) -> Option<Counts> {
        let (different, equal) = line.split_once(' ')?;
        Some(Counts { different: different.parse().ok()?, equal: equal.parse().ok()? })
    }
}

/// Counts states, tells whoever wants to know, and says when it is enough.
pub(crate) struct Progress {
    name: &'static str,
    began: Instant,
    told: Instant,
    limit: Limit,
    counted: Counts,
    /// How many were looked at, for the watchdog.
    beats: Arc<AtomicU64>,
    counts: bool,
    /// What is counted.
    noun: &'static str,
    /// What else is to be told.
    besides: String,
}

impl Progress {
    pub(crate) fn new(name: &'static str, limit: Limit, counts: bool) -> Progress {
        Progress {
            name,
            began: Instant::now(),
            told: Instant::now(),
            limit,
            counted: Counts::default(),
            beats: Arc::default(),
            counts,
            noun: "states",
            besides: String::new(),
        }
    }

    /// Ends the process if one state takes too long: a hang is a failure that must say so.
    pub(crate) fn watch(&self, replay: Replay) {
        let (name, beats) = (self.name, self.beats.clone());
        std::thread::spawn(move || {
            loop {
                let before = beats.load(Ordering::Relaxed);
                std::thread::sleep(PATIENCE);
                if beats.load(Ordering::Relaxed) == before {
                    eprintln!("{name} hangs: nothing has come to an end for {PATIENCE:?}");
                    replay.print();
                    std::process::abort();
                }
            }
        });
    }

    #[cfg(test)]
    /// For a test: counts up to a limit, and tells nobody before the end.
    pub(crate) fn silent(name: &'static str, limit: Limit) -> Progress {
        let mut progress = Progress::new(name, limit, false);
        progress.told += Duration::from_secs(1 << 30);
        progress
    }

    /// One state was looked at, and nothing was wrong.
    pub(crate) fn count(&mut self) {
        self.counted.different += 1;
        self.beats.store(self.counted.different, Ordering::Relaxed);
        // Looking at the clock costs as much as some states.
        if self.counted.different.is_multiple_of(16) {
            self.tell();
        }
    }

    /// One state is equal to one that was looked at.
    pub(crate) fn count_equal(&mut self) {
        self.counted.equal += 1;
    }

    /// So many of something were looked at, and nothing was wrong.
    pub(crate) fn count_all(&mut self, count: u64, noun: &'static str, besides: String) {
        self.counted.different += count;
        (self.noun, self.besides) = (noun, besides);
        self.beats.store(self.counted.different, Ordering::Relaxed);
        self.tell();
    }

    fn tell(&mut self) {
        if Instant::now().saturating_duration_since(self.told) > EVERY {
            self.told = Instant::now();
            match self.counts {
                true => self.counted.print(),
                false => eprintln!("{}", self.summary("so far")),
            }
        }
    }

    pub(crate) fn is_enough(&self) -> bool {
        match self.limit {
            Limit::Pass => false,
            Limit::Time(time) => self.began.elapsed() >= time,
            // What other processes do in between is not counted, and comes to an end, too.
            #[cfg(feature = "plant")]
            Limit::Processor(time) => processor_time() >= time || self.began.elapsed() >= 8 * time,
            Limit::States(states) => self.counted.different >= states,
        }
    }

    /// True if the next pass, with other seeds, is to begin.
    pub(crate) fn goes_on(&self) -> bool {
        self.limit != Limit::Pass && !self.is_enough()
    }

    fn summary(&self, outcome: &str) -> String {
        let counted = self.counted.described(self.noun) + &self.besides;
        summary(self.name, &counted, (self.counted.all(), 1), self.began.elapsed(), outcome)
    }

    /// The verdict of those who go on to the end although something is wrong.
    pub(crate) fn fail(&self) {
        self.end("FAILED");
    }

    /// The verdict; whatever was wrong has ended the process before.
    pub(crate) fn finish(&self) {
        self.end("nothing is wrong");
    }

    fn end(&self, outcome: &str) {
        match self.counts {
            true => self.counted.print(),
            false => println!("{}", self.summary(outcome)),
        }
    }
}

/// What this process has had of processors.
#[cfg(feature = "plant")]
fn processor_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

impl Drop for Progress {
    /// Whoever adds up wants to know how far it came.
    fn drop(&mut self) {
        if self.counts && std::thread::panicking() {
            self.counted.print();
        }
    }
}

fn summary(name: &str, counted: &str, (states, jobs): (u64, u64), took: Duration, outcome: &str) -> String {
    let (seconds, rate) = (took.as_secs_f64(), states as f64 / took.as_secs_f64().max(1e-9));
    let each = rate / jobs as f64;
    format!("{name}: {counted} in {seconds:.1} s, {rate:.0} per second, {each:.0} per processor: {outcome}")
}

/// Runs the part in several processes and adds up what they count.
#[cfg(not(feature = "schedules"))]
pub(crate) fn spread(part: &'static str, effort: &Effort) -> ExitCode {
    let (began, jobs) = (Instant::now(), effort.jobs());
    let each: Vec<Mutex<Counts>> = (0..jobs).map(|_| Mutex::default()).collect();
    let summary = |outcome: &str| {
        let mut total = Counts::default();
        for counts in &each {
            let Counts { different, equal } = *counts.lock().unwrap_or_else(PoisonError::into_inner);
            total.different += different;
            total.equal += equal;
        }
        summary(part, &total.described("states"), (total.all(), jobs), began.elapsed(), outcome)
    };
    let failed = std::thread::scope(|scope| {
        let runs: Vec<_> = (0..jobs)
            .zip(&each)
            .map(|(job, counts)| scope.spawn(move || run(part, effort, job, counts)))
            .collect();
        let mut told = Instant::now();
        while runs.iter().any(|run| !run.is_finished()) {
            std::thread::sleep(Duration::from_millis(20));
            if told.elapsed() > EVERY && std::io::stderr().is_terminal() {
                told = Instant::now();
                eprintln!("{}", summary("so far"));
            }
        }
        runs.into_iter()
            .filter_map(|run| run.join().unwrap_or(Err("a thread panicked".to_owned())).err())
            .collect::<Vec<_>>()
    });
    let outcome = match failed.first() {
        None => "nothing is wrong".to_owned(),
        Some(what) => format!("FAILED, {what}"),
    };
    println!("{}", summary(&outcome));
    if failed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// One job, to its end; `Err` if it found something, or could not run.
#[cfg(not(feature = "schedules"))]
fn run(part: &str, effort: &Effort, job: u64, counts: &Mutex<Counts>) -> Result<(), String> {
    let program =
        std::env::current_exe().map_err(|error| format!("this program cannot find itself: {error}"))?;
    let mut command = Command::new(program);
    let seed = effort.seed.wrapping_add(job * SEEDS_PER_JOB);
    command.args([part, "--counts", "--jobs", "1", "--seed", &seed.to_string()]);
    let limit = match effort.limit() {
        Limit::Pass => None,
        Limit::Time(time) => Some(("--seconds", time.as_secs_f64().to_string())),
        #[cfg(feature = "plant")]
        Limit::Processor(time) => Some(("--seconds", time.as_secs_f64().to_string())),
        Limit::States(states) => Some(("--states", states.div_ceil(effort.jobs()).to_string())),
    };
    if let Some((option, value)) = limit {
        command.args([option, &value]);
    }
    if let Some(workload) = effort.workload {
        command.args(["--workload", workload.as_str()]);
    }
    #[cfg(feature = "plant")]
    if let Some(bug) = effort.plant {
        command.args(["--plant", bug.name()]);
    }
    let mut child =
        command.stdout(Stdio::piped()).spawn().map_err(|error| format!("starting a process: {error}"))?;
    for line in child.stdout.take().into_iter().flat_map(|output| BufReader::new(output).lines()) {
        if let Some(counted) = Counts::parse(&line.unwrap_or_default()) {
            *counts.lock().unwrap_or_else(PoisonError::into_inner) = counted;
        }
    }
    match child.wait() {
        Ok(status) if status.success() => Ok(()),
        Ok(_) => Err("see the line that begins with replay".to_owned()),
        Err(error) => Err(format!("waiting for a process: {error}")),
    }
}
