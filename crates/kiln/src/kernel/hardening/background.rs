//! The background threads of a database.
//!
//! The *hardener* hardens what nobody waits for, within the vulnerability window, and what asynchronous waiters
//! ask for. The *watcher* watches the window, and does nothing for which it could have to wait: the others may be stuck in a slow disk.
//! The *keeper* prepares segments ahead of the tail, forgets deleted keys, compacts and drops segments. The *checkpointer* takes
//! checkpoints when the keeper finds that one is due, and the *settler* settles then.

use std::sync::{Arc, Weak};
use std::time::Duration;

use super::Requests;
use crate::device::Process;
use crate::error::{Error, Result};
use crate::kernel::checkpoint::Haste;
use crate::kernel::engine::Engine;
use crate::planted::{Bug, planted};
use crate::sync::atomic::Ordering;
use crate::sync::thread::{self, JoinHandle};
use crate::sync::{Condvar, Instant, MutexGuard, contain};

type Job = fn(&Arc<Engine>);
const JOBS: [(&str, Job); 5] = [
    ("kiln-hardener", run_hardener),
    ("kiln-watcher", run_watcher),
    ("kiln-keeper", run_keeper),
    ("kiln-checkpointer", run_checkpointer),
    ("kiln-settler", run_settler),
];

/// Stops and joins the threads when dropped.
pub(crate) struct Background {
    engine: Weak<Engine>,
    process: Process,
    threads: Vec<JoinHandle<()>>,
}

impl Background {
    pub(crate) fn start(engine: &Arc<Engine>) -> Result<Background> {
        let mut background =
            Background { engine: Arc::downgrade(engine), process: engine.process, threads: Vec::new() };
        for (name, job) in JOBS {
            let engine = engine.clone();
            let thread = thread::Builder::new()
                .name(name.to_owned())
                .spawn(move || run(&engine, name, job))
                .map_err(|error| Error::io("starting a background thread", error))?;
            background.threads.push(thread);
        }
        Ok(background)
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        if self.process.leaves(&mut self.threads) {
            return;
        }
        if let Some(engine) = self.engine.upgrade() {
            engine.hardening.requests.lock().stop = true;
            engine.hardening.wake_all();
            engine.hardening.wake_checkpointer.notify_one();
            engine.hardening.wake_settler.notify_one();
        }
        // The last handle may have been dropped by a callback on the hardener itself, which cannot await itself.
        let others = self.threads.drain(..).filter(|thread| thread.thread().id() != thread::current().id());
        for thread in others {
            // A panic in a background thread has been reported by the panic hook.
            let _ = thread.join();
        }
    }
}

/// Has a background thread do its job to the end. Without one of them the database would go on as if nothing were wrong, and sooner or later
/// stand still; so a panic, which the panic's hook has reported, ends it as a failed hardening does.
fn run(engine: &Arc<Engine>, name: &str, job: Job) {
    if contain(|| job(engine)).is_none() {
        engine.fail(format!("the thread {name} panicked, which is a mistake in Kiln or in the device"));
    }
}

/// When a background thread looks next by itself.
enum Nap {
    Until(Instant),
    /// Nothing was committed since it looked last: it sleeps until something is.
    Idle,
}

/// Waits to be woken or for the end of the nap.
fn nap(engine: &Engine, wake: &Condvar, requests: &mut MutexGuard<'_, Requests>, nap: Nap) {
    let hardening = &engine.hardening;
    match nap {
        Nap::Until(due) => drop(wake.wait_until(requests, due)),
        Nap::Idle => {
            hardening.asleep.fetch_add(1, Ordering::SeqCst);
            // Either this sees the commit, or the commit sees the sleeper and has to take the lock to wake it. What somebody
            // else is hardening is no reason to stay awake: that would be turning here, with the lock, until it is done.
            let awake = match planted(Bug::TurnsWithTheLock) {
                true => hardening.oldest_unhardened().is_some(),
                false => hardening.dirty_since.load(Ordering::SeqCst) != 0,
            };
            if !awake || planted(Bug::SleepsWithoutLooking) {
                wake.wait(requests);
            }
            hardening.asleep.fetch_sub(1, Ordering::SeqCst);
        }
    }
}

fn run_hardener(engine: &Arc<Engine>) {
    // A hardening sleeps several times, for the disk and for who is pinned, and each time a short window has to wait for it.
    crate::sync::take_short_slices();
    let hardening = &engine.hardening;
    let mut hardenings_seen = 0;
    loop {
        let mut requests = hardening.requests.lock();
        loop {
            if requests.stop {
                return;
            }
            let (window_due, look_again) = engine.window_due();
            let due = earliest(hardening.requested_by(), window_due);
            if requests.now || requests.tell || due.is_some_and(|due| due <= Instant::now()) {
                break;
            }
            let count = hardening.count.load(Ordering::Relaxed);
            let was_active = std::mem::replace(&mut hardenings_seen, count) != count;
            let next = match due {
                // The load may grow meanwhile, and with it the time that the hardening will take.
                Some(due) => Nap::Until(due.min(Instant::now() + look_again)),
                None if was_active => Nap::Until(Instant::now() + look_again),
                None => Nap::Idle,
            };
            nap(engine, &hardening.wake_hardener, &mut requests, next);
        }
        if std::mem::take(&mut requests.tell) {
            drop(requests);
            engine.tell_withheld();
            continue;
        }
        let is_asked = std::mem::take(&mut requests.now) | hardening.take_request_by();
        drop(requests);
        match is_asked {
            // What somebody else is hardening may have begun before the commit that it is asked for.
            true => drop(engine.persist()),
            false => engine.harden_or_wait_and(Engine::let_go),
        }
        if hardening.horizon.failure().is_some() {
            wait_for_stop(engine);
            return;
        }
    }
}

/// After a failure there is nothing to harden any more.
fn wait_for_stop(engine: &Engine) {
    let mut requests = engine.hardening.requests.lock();
    while !requests.stop {
        // Who has failed asks for it after it has.
        if std::mem::take(&mut requests.tell) {
            drop(requests);
            engine.tell_withheld();
            requests = engine.hardening.requests.lock();
        } else {
            engine.hardening.wake_hardener.wait(&mut requests);
        }
    }
}

/// The shortest and the longest time between two looks of the keeper, and of the watcher, while something is committed.
const PERIOD_MIN: Duration = Duration::from_millis(1);
const PERIOD_MAX: Duration = Duration::from_millis(50);

/// How often they look as a rule.
fn usual_period(engine: &Engine) -> Duration {
    (engine.hardening.window / 8).clamp(PERIOD_MIN, PERIOD_MAX)
}

fn run_watcher(engine: &Arc<Engine>) {
    let hardening = &engine.hardening;
    let period = usual_period(engine);
    let mut hardenings_seen = 0;
    loop {
        {
            let mut requests = hardening.requests.lock();
            if requests.stop {
                return;
            }
            let count = hardening.count.load(Ordering::Relaxed);
            let was_active = std::mem::replace(&mut hardenings_seen, count) != count;
            let next = match was_active || hardening.oldest_unhardened().is_some() {
                true => Nap::Until(Instant::now() + period),
                false => Nap::Idle,
            };
            nap(engine, &hardening.wake_watcher, &mut requests, next);
        }
        engine.watch_window();
    }
}

fn run_keeper(engine: &Arc<Engine>) {
    let usual_period = usual_period(engine);
    // Its first round comes soon: there may be something to settle though nobody commits.
    let (mut hardenings_seen, mut expiry_pause) = (u64::MAX, None);
    loop {
        {
            let mut requests = engine.hardening.requests.lock();
            if requests.stop {
                return;
            }
            let count = engine.hardening.count.load(Ordering::Relaxed);
            let was_active = std::mem::replace(&mut hardenings_seen, count) != count;
            let is_asked = engine.shares.is_wanted()
                || engine.leaf_images.is_asked()
                || engine.notes.are_wanted()
                || engine.warm_up.is_at_work();
            let is_removing = engine.removal.is_at_work();
            let is_in_haste = engine.compaction.is_in_haste()
                || engine.warm.is_in_haste()
                || engine.shares.hand_over.is_in_haste()
                || is_asked
                || is_removing;
            let period = if is_in_haste { PERIOD_MIN } else { usual_period };
            let next = match (engine.is_idle() && !was_active, expiry_pause) {
                (_, Some(pause)) => Nap::Until(Instant::now() + period.min(pause)),
                (true, None) if is_asked => Nap::Until(Instant::now() + PERIOD_MIN),
                (true, None) => match engine.expiry_nap() {
                    Some(nap) => Nap::Until(Instant::now() + nap),
                    None => Nap::Idle,
                },
                (false, None) => Nap::Until(Instant::now() + period),
            };
            nap(engine, &engine.hardening.wake_keeper, &mut requests, next);
            if requests.stop {
                return;
            }
        }
        // A full disk shows to the commits that need the space; the next round tries again.
        let _ = engine.look_for_space();
        engine.log.populate_ahead();
        engine.index.catch_up();
        engine.share_memory();
        engine.make_notes();
        engine.copy_leaves();
        engine.keep_warm();
        engine.hand_over_what_leaves();
        engine.make_room(0);
        expiry_pause = engine.delete_some_expired(false);
        engine.sweep();
        engine.warm_up();
        if engine.is_checkpoint_due() {
            engine.hardening.requests.lock().checkpoint = true;
            engine.hardening.wake_checkpointer.notify_one();
        }
        engine.watch_settling();
        if engine.is_settling_due() || engine.is_tree_to_be_cleared() {
            engine.hardening.requests.lock().settling = true;
            engine.hardening.wake_settler.notify_one();
        }
        if engine.compaction.is_pressing() {
            engine.behind.store(true, Ordering::SeqCst);
        }
    }
}

fn run_checkpointer(engine: &Arc<Engine>) {
    let wake = &engine.hardening.wake_checkpointer;
    while wait_until_asked(engine, wake, None, |requests| std::mem::take(&mut requests.checkpoint))
        != Wait::Stopped
    {
        engine.take_due_checkpoint(Haste::Background);
    }
}

fn run_settler(engine: &Arc<Engine>) {
    // What is written soon would need the memory again.
    const GIVES_BACK_AFTER: Duration = Duration::from_secs(1);
    let wake = &engine.hardening.wake_settler;
    let mut gives_back_at = None;
    loop {
        match wait_until_asked(engine, wake, gives_back_at, |requests| std::mem::take(&mut requests.settling))
        {
            Wait::Asked if engine.settle_if_due() => gives_back_at = Some(Instant::now() + GIVES_BACK_AFTER),
            Wait::Asked => {}
            Wait::Ended => {
                gives_back_at = None;
                engine.give_index_memory_back();
            }
            Wait::Stopped => return,
        }
    }
}

/// How waiting for a request ended.
#[derive(PartialEq)]
enum Wait {
    Asked,
    /// It lasted as long as it might.
    Ended,
    /// There will be no more.
    Stopped,
}

/// Waits until `take` finds a request.
fn wait_until_asked(
    engine: &Engine,
    wake: &Condvar,
    end: Option<Instant>,
    mut take: impl FnMut(&mut Requests) -> bool,
) -> Wait {
    let mut requests = engine.hardening.requests.lock();
    while !requests.stop {
        if take(&mut requests) {
            return Wait::Asked;
        }
        match end {
            None => wake.wait(&mut requests),
            Some(end) if Instant::now() >= end => return Wait::Ended,
            Some(end) => _ = wake.wait_until(&mut requests, end),
        }
    }
    Wait::Stopped
}

impl Engine {
    /// When the hardener has to begin so that the window holds, as far as can be said now, and after which time it looks again.
    fn window_due(&self) -> (Option<Instant>, Duration) {
        let hardening = &self.hardening;
        let (bytes, bytes_max) = (self.log.unhardened_bytes(), hardening.unhardened_bytes_max());
        let since = hardening.dirty_since.load(Ordering::SeqCst);
        if since == 0 {
            return (None, hardening.pace.look_again(0, Duration::ZERO, bytes_max));
        }
        let first = hardening.started + Duration::from_micros(since);
        let age = Instant::now().saturating_duration_since(first);
        let due = first + hardening.pace.patience(bytes, age, bytes_max);
        (Some(due), hardening.pace.look_again(bytes, age, bytes_max))
    }

    fn is_idle(&self) -> bool {
        self.hardening.oldest_unhardened().is_none()
            && self.graves.are_idle()
            && !self.graves.is_due(self.log.hardened())
            && !self.checkpoints.is_to_be_retried()
            && !self.settling_waits_for_snapshot()
            && !self.removal.is_pending()
            && !self.index.is_growth_due()
    }

    /// Makes commits wait while the oldest un-hardened one is older than the window.
    fn watch_window(&self) {
        let behind = self.hardening.is_behind_window();
        if behind && !self.behind.swap(true, Ordering::SeqCst) && self.hardening.oldest_unhardened().is_none()
        {
            // It caught up in between; its own reset may have come first.
            self.behind.store(false, Ordering::SeqCst);
        }
    }
}

fn earliest(one: Option<Instant>, other: Option<Instant>) -> Option<Instant> {
    match (one, other) {
        (Some(one), Some(other)) => Some(one.min(other)),
        (one, other) => one.or(other),
    }
}

#[cfg(all(test, not(miri)))]
mod tests {
    use std::path::Path;

    use rustix::fs::Uid;
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

    use crate::device::forked::{in_fork, is_alone};
    use crate::{ErrorKind, Options};

    const PATH: &str = "database";

    /// The next opening reported a crash, a loss that was none among others, though nothing had been written.
    #[test]
    fn a_database_whose_threads_cannot_be_started_is_left_as_it_was_closed() {
        if !is_alone() {
            return;
        }
        let parent = tempfile::tempdir().unwrap();
        as_somebody(parent.path(), || {
            Options::new().background(false).open(PATH).unwrap().close().unwrap();
            fail_to_start();
            let report = Options::new().background(false).open(PATH).unwrap().recovery_report().clone();
            assert!(report.clean, "{report}");
        });
    }

    /// It was closed in order then, too, by an opening that told nobody.
    #[test]
    fn c8_what_a_crash_has_taken_is_told_by_the_first_opening_that_succeeds() {
        if !is_alone() {
            return;
        }
        let parent = tempfile::tempdir().unwrap();
        as_somebody(parent.path(), || {
            let db = Options::new().background(false).open(PATH).unwrap();
            db.put(&db.map("m").unwrap(), "k", "v").unwrap().forget();
            std::mem::forget(db);
        });
        as_somebody(parent.path(), || {
            fail_to_start();
            let report = Options::new().background(false).open(PATH).unwrap().recovery_report().clone();
            assert!(!report.clean && report.lost_versions.is_some(), "{report}");
        });
    }

    /// They wrote into the parent's files, where nothing had hardened before the fork as well as where something had.
    #[test]
    fn nothing_settles_in_a_forked_child_and_it_takes_no_checkpoint() {
        if !is_alone() {
            return;
        }
        let parent = tempfile::tempdir().unwrap();
        let options = || Options::new().background(false).settle_log_bytes(0).checkpoint_log_bytes(0);
        let db = options().open(parent.path()).unwrap();
        let table = db.table("t").unwrap();
        db.put(&table, "k", "v").unwrap().forget();
        db.close().unwrap();
        let db = std::sync::Arc::new(options().open(parent.path()).unwrap());
        let generation = |db: &crate::Kiln| db.engine().superblock.lock().current().generation;
        let before = generation(&db);
        let in_child = std::sync::Arc::clone(&db);
        in_fork(move || {
            assert_eq!(in_child.settle().unwrap_err().kind(), ErrorKind::Lost);
            assert_eq!(in_child.checkpoint().unwrap_err().kind(), ErrorKind::Lost);
        });
        assert_eq!(generation(&db), before);
        assert!(!parent.path().join("tree").exists(), "the child has settled");
        assert!(db.checkpoint().unwrap());
        assert_eq!(db.settle().unwrap(), 1);
    }

    /// Acts in a directory, in a process whose threads can be limited: root may have as many as there can be.
    fn as_somebody(directory: &Path, act: impl Fn() + Send + Sync + 'static) {
        // Where that fails it need not be somebody else's.
        let _ = std::os::unix::fs::chown(directory, Some(65_534), None);
        let directory = directory.to_owned();
        in_fork(move || {
            // Somebody else may have no way there.
            std::env::set_current_dir(&directory).unwrap();
            let nobody = Some(Uid::from_raw(65_534));
            // In some containers there is nobody else.
            let is_root = rustix::process::geteuid().is_root();
            if !is_root || rustix::thread::set_thread_res_uid(nobody, nobody, nobody).is_ok() {
                act();
            }
        });
    }

    fn fail_to_start() {
        let before = getrlimit(Resource::Nproc);
        setrlimit(Resource::Nproc, Rlimit { current: Some(0), ..before }).unwrap();
        let error = Options::new().open(PATH).unwrap_err();
        assert!(error.kind() == ErrorKind::Io && error.to_string().contains("thread"), "{error}");
        setrlimit(Resource::Nproc, before).unwrap();
    }
}
