//! The load through the library: transactions of every kind, from one thread.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use kiln::device::SimulatedDevice;
use kiln::{Commit, Error, ErrorKind, Isolation, Kiln, Session, Snapshot, Transaction};

use super::history::{Key, Level, Operation, Outcome, journal_of, list_name};
use super::keeper::read_named;
use super::operations::{
    Objects, Step, at_key, carry_out, read_register, read_step, read_tally, reading_step, step,
};
use super::passing::{read_passing, rows_of_all};
use super::recorder::{Attempt, Recorder, Shared};
use super::rows::{Way, read_range};
use super::values::{decode_key, decode_list, encode_key};
use crate::support::{Random, manual};

/// One of so many processes has a session.
const SESSION_ONE_IN: u32 = 4;
/// Who finds the disk full looks again after this.
const FULL_PAUSE: Duration = Duration::from_micros(200);
/// One snapshot in so many is walked over.
const WALK_ONE_IN: usize = 24;
/// Keys that a survey reads in one transaction.
const SURVEYED_AT_ONCE: usize = 64;

/// A thread that puts load on a database, and records it.
pub(crate) struct Worker<'w, 's> {
    pub(crate) db: &'w Kiln,
    pub(crate) objects: &'w Objects,
    pub(crate) recorder: &'w mut Recorder<'s>,
    pub(crate) random: Random,
    pub(crate) session: Option<Session>,
    /// No snapshots: the clock ticks rarely, and records are updated in place.
    pub(crate) calm: bool,
    /// Most transactions are about rows.
    pub(crate) rows_mostly: bool,
    /// What it does now is about the object that comes and goes, if there is one.
    pub(crate) is_about_passing: bool,
    /// The disk is full at times.
    pub(crate) may_be_full: bool,
}

/// What a transaction does.
type Body<'b> = dyn FnMut(&Transaction<'_>) -> kiln::Result<()> + 'b;

/// The id of a process's session, if it has one.
pub(crate) fn session_of(process: u32) -> Option<String> {
    process.is_multiple_of(SESSION_ONE_IN).then(|| format!("process {process}"))
}

impl Worker<'_, '_> {
    /// Works until it is told to stop, or the database cannot go on.
    ///
    /// # Errors
    /// Why the database cannot go on.
    pub(crate) fn work(&mut self) -> kiln::Result<()> {
        while !self.recorder.shared.is_over() {
            let way = self.random.below(if self.rows_mostly { 250 } else { 100 });
            self.is_about_passing = false;
            let outcome = match way {
                0..=29 => self.by_hand(Isolation::Serializable),
                58..=72 | 80..=87 if self.calm => self.by_hand(Isolation::Serializable),
                30..=47 => self.run_again_until_it_commits(),
                48..=57 => self.in_session(),
                58..=72 => self.by_hand(Isolation::Snapshot),
                73..=76 => self.read_only(),
                77..=79 => self.watched(),
                80..=84 => self.snapshot(),
                85..=86 => self.durable_snapshot(),
                87 => read_named(self.db, self.objects, self.recorder, &mut self.random),
                88..=93 => self.single(),
                94..=95 => self.wide(),
                100.. => self.look_and_put(),
                96..=98 => self.safe_read(),
                _ if self.random.one_in(8) => self.db.persist(),
                _ if self.random.one_in(8) => self.copy(),
                _ => Ok(()),
            };
            match outcome {
                // What is too large for a small memory is aborted.
                Err(error) if matches!(error.kind(), ErrorKind::Conflict | ErrorKind::Limit) => {}
                // Its object is gone.
                Err(error) if error.kind() == ErrorKind::NotFound && self.may_have_met_passing() => {}
                // There is room again in a moment.
                Err(error) if error.kind() == ErrorKind::NoSpace && self.may_be_full => {
                    std::thread::sleep(FULL_PAUSE);
                }
                Err(error) => return Err(error),
                Ok(()) => {}
            }
        }
        Ok(())
    }

    fn steps(&mut self, choose: fn(&Shared, &mut Random) -> Step, most: usize) -> Vec<Step> {
        let shared = self.recorder.shared;
        let steps: Vec<Step> =
            (0..1 + self.random.below(most)).map(|_| choose(shared, &mut self.random)).collect();
        let is_about_passing = |step: &Step| matches!(step, Step::Passing(_) | Step::ChangePassing(_));
        self.is_about_passing |= steps.iter().any(is_about_passing);
        steps
    }

    /// Asked when it is over: the first of those objects may have come since it began.
    fn may_have_met_passing(&self) -> bool {
        self.is_about_passing && self.recorder.shared.passed() > 0
    }

    /// Begins and commits, or aborts, by itself.
    fn by_hand(&mut self, isolation: Isolation) -> kiln::Result<()> {
        let steps = self.steps(step, 5);
        let level = match isolation {
            Isolation::Serializable => Level::Serializable,
            Isolation::Snapshot => Level::Snapshot,
        };
        let mut attempt = self.recorder.invoke(level);
        let tx = self.db.begin_with(isolation)?;
        self.recorder.began(&mut attempt, level);
        self.carry_out_and_commit(tx, attempt, &steps)
    }

    /// Watches a list and reads it, and appends to it later if it has stayed.
    fn watched(&mut self) -> kiln::Result<()> {
        let (db, objects, list) = (self.db, self.objects, self.recorder.shared.list(&mut self.random));
        let mut steps = self.steps(step, 3);
        steps.extend([Step::Pause, Step::Append(list)]);
        let name = encode_key(list);
        let (watch, value) = at_key!(list, &objects.map, &objects.table, object => (db.watch(object, name)?, db.get(object, name)?));
        let mut attempt = self.recorder.invoke(Level::Serializable);
        let tx = db.begin_with(Isolation::Serializable)?;
        self.recorder.began(&mut attempt, Level::Serializable);
        if !tx.require(&watch)? {
            drop(tx);
            self.recorder.end(attempt, Outcome::Aborted);
            return Ok(());
        }
        // What it has seen before it began holds until it commits.
        attempt.operations.push(Operation::List(list, decode_list(value.as_deref())));
        self.carry_out_and_commit(tx, attempt, &steps)
    }

    /// What is done by hand in a transaction that has begun.
    fn carry_out_and_commit(
        &mut self,
        tx: Transaction<'_>,
        mut attempt: Attempt,
        steps: &[Step],
    ) -> kiln::Result<()> {
        let done = carry_out(&tx, self.objects, steps, self.recorder, &mut self.random, &mut attempt);
        self.recorder.committing(&mut attempt);
        if done.is_err() || self.random.one_in(12) {
            drop(tx);
            self.recorder.end(attempt, Outcome::Aborted);
            return done;
        }
        match tx.commit() {
            Ok(commit) => finish(self.recorder, &mut self.random, attempt, commit),
            Err(error) => {
                self.recorder.end(attempt, Outcome::Aborted);
                Err(error)
            }
        }
    }

    fn run_again_until_it_commits(&mut self) -> kiln::Result<()> {
        let steps = self.steps(step, 5);
        let db = self.db;
        self.transact(&steps, |body| db.transact(body))
    }

    fn in_session(&mut self) -> kiln::Result<()> {
        let Some(session) = self.session.take() else { return self.run_again_until_it_commits() };
        let steps = self.steps(step, 4);
        let before = session.serial();
        let done = self.transact(&steps, |body| session.transact(body));
        if session.serial() > before
            && let Some(last) = self.recorder.transactions.last_mut()
        {
            last.serial = Some(session.serial());
        }
        self.session = Some(session);
        done
    }

    /// Runs a transaction until it does not conflict; each attempt is recorded.
    fn transact<'d>(
        &mut self,
        steps: &[Step],
        run: impl FnOnce(&mut Body<'_>) -> kiln::Result<Commit<'d, ()>>,
    ) -> kiln::Result<()> {
        let mut attempt: Option<Attempt> = None;
        let (recorder, random, objects) = (&mut *self.recorder, &mut self.random, self.objects);
        let result = run(&mut |tx| {
            if let Some(failed) = attempt.take() {
                recorder.end(failed, Outcome::Aborted);
            }
            let current = attempt.insert(recorder.invoke(Level::Serializable));
            let done = carry_out(tx, objects, steps, recorder, random, current);
            recorder.committing(current);
            done
        });
        match (result, attempt) {
            (Ok(commit), Some(attempt)) => finish(recorder, random, attempt, commit),
            (Ok(commit), None) => {
                commit.forget();
                Ok(())
            }
            (Err(error), attempt) => {
                if let Some(attempt) = attempt {
                    recorder.end(attempt, Outcome::Aborted);
                }
                Err(error)
            }
        }
    }

    /// Puts a row where it has just looked: what phantoms are made of.
    fn look_and_put(&mut self) -> kiln::Result<()> {
        let (shared, random) = (self.recorder.shared, &mut self.random);
        let range = Step::Range(Way::around(shared, random));
        let steps = [range, Step::Change(shared.row(random), random.next())];
        let db = self.db;
        self.transact(&steps, |body| db.transact(body))
    }

    /// A transaction that writes a lot, so that its commit takes long.
    fn wide(&mut self) -> kiln::Result<()> {
        let steps = self.steps(|shared, random| Step::Overwrite(shared.register(random)), 60);
        let db = self.db;
        self.transact(&steps, |body| db.transact(body))
    }

    /// A serializable transaction that reads a lot.
    fn read_only(&mut self) -> kiln::Result<()> {
        let steps = self.steps(reading_step, 30);
        let db = self.db;
        self.transact(&steps, |body| db.transact(body))
    }

    fn snapshot(&mut self) -> kiln::Result<()> {
        let attempt = self.recorder.invoke(Level::AsOf(0));
        let snapshot = self.db.snapshot()?;
        self.read_snapshot(attempt, &snapshot, Level::AsOf(snapshot.version().number()))
    }

    fn durable_snapshot(&mut self) -> kiln::Result<()> {
        let attempt = self.recorder.invoke(Level::Durable(0));
        let snapshot = self.db.durable_snapshot()?;
        self.read_snapshot(attempt, &snapshot, Level::Durable(snapshot.version().number()))
    }

    fn read_snapshot(
        &mut self,
        mut attempt: Attempt,
        snapshot: &Snapshot<'_>,
        level: Level,
    ) -> kiln::Result<()> {
        let steps = self.steps(reading_step, 20);
        self.recorder.began(&mut attempt, level);
        for step in steps {
            read_step(snapshot, self.objects, step, &mut self.random, &mut attempt)?;
        }
        if self.random.one_in(WALK_ONE_IN) {
            walk_lists(snapshot, self.objects, self.recorder.shared, &mut attempt)?;
        }
        let transaction = self.recorder.end(attempt, Outcome::Committed(None));
        transaction.durable = matches!(level, Level::Durable(_)).then_some(transaction.times.began);
        Ok(())
    }

    /// Reads a copy of the database, which has everything that was committed before it was begun, and no part of what came later.
    fn copy(&mut self) -> kiln::Result<()> {
        let mut attempt = self.recorder.invoke(Level::AsOf(0));
        let disk = SimulatedDevice::new(self.random.next());
        let horizon = self.db.backup_on(Arc::new(disk.clone()), |_| {})?.horizon.number();
        self.recorder.began(&mut attempt, Level::AsOf(horizon));
        let steps = self.steps(reading_step, 20);
        let random = &mut self.random;
        let read = || -> kiln::Result<()> {
            let copy = manual().open_on(Arc::new(disk))?;
            let (objects, snapshot) = (Objects::open(&copy)?, copy.snapshot()?);
            steps.iter().try_for_each(|&step| read_step(&snapshot, &objects, step, random, &mut attempt))
        };
        read().unwrap_or_else(|error| panic!("a copy of version {horizon}: {:?}: {error}", error.kind()));
        self.recorder.end(attempt, Outcome::Committed(None));
        Ok(())
    }

    /// A read that is answered when what it saw is durable.
    fn safe_read(&mut self) -> kiln::Result<()> {
        let steps = self.steps(reading_step, 4);
        let mut attempt: Option<Attempt> = None;
        let (recorder, random, objects) = (&mut *self.recorder, &mut self.random, self.objects);
        let done = self.db.read_safe(|tx| {
            if let Some(failed) = attempt.take() {
                recorder.end(failed, Outcome::Aborted);
            }
            let current = attempt.insert(recorder.invoke(Level::Serializable));
            steps.iter().try_for_each(|&step| read_step(tx, objects, step, random, current))
        });
        if let Some(attempt) = attempt {
            let outcome = if done.is_ok() { Outcome::Committed(None) } else { Outcome::Aborted };
            let transaction = recorder.end(attempt, outcome);
            transaction.durable = done.is_ok().then_some(transaction.times.completed);
        }
        done
    }

    /// Reads everything, so that the history knows what has become of every write.
    pub(crate) fn survey(&mut self) -> kiln::Result<()> {
        let shared = self.recorder.shared;
        let rows = shared.all_rows().chain(rows_of_all(shared.passed()));
        let lists: Vec<Key> = shared.all_lists().chain(rows.map(journal_of)).collect();
        for keys in lists.chunks(SURVEYED_AT_ONCE) {
            let steps: Vec<Step> = keys.iter().map(|&key| Step::List(key)).collect();
            let db = self.db;
            // The sweep may get in the way.
            self.transact(&steps, |body| db.transact(body))?;
        }
        let mut attempt = self.recorder.invoke(Level::AsOf(0));
        let snapshot = self.db.snapshot()?;
        let level = Level::AsOf(snapshot.version().number());
        self.recorder.began(&mut attempt, level);
        (0..shared.registers)
            .try_for_each(|key| read_register(&snapshot, self.objects, key, &mut attempt))?;
        shared.all_tallies().try_for_each(|key| read_tally(&snapshot, self.objects, key, &mut attempt))?;
        read_range(&snapshot, self.objects, Way::ALL, &mut attempt)?;
        read_passing(&snapshot, self.objects, 0, &mut attempt)?;
        self.recorder.end(attempt, Outcome::Committed(None));
        Ok(())
    }
}

/// Walks over the map of lists, which are never deleted: those that it does not meet have nothing in them.
fn walk_lists(
    snapshot: &Snapshot<'_>,
    objects: &Objects,
    shared: &Shared,
    attempt: &mut Attempt,
) -> kiln::Result<()> {
    let mut met = BTreeSet::new();
    for row in snapshot.iter(&objects.map) {
        let (name, value) = row?;
        let key = decode_key(&name);
        assert!(met.insert(key), "a walk meets {} twice", list_name(key));
        attempt.operations.push(Operation::List(key, decode_list(Some(&value))));
    }
    let is_missed = |key: &Key| key.is_multiple_of(2) && !met.contains(key);
    let missed = shared.all_lists().chain(shared.all_rows().map(journal_of)).filter(is_missed);
    attempt.operations.extend(missed.map(|key| Operation::List(key, Vec::new())));
    Ok(())
}

/// Ends a commit in one of all the ways, and records it.
pub(super) fn finish<T>(
    recorder: &mut Recorder<'_>,
    random: &mut Random,
    attempt: Attempt,
    commit: Commit<'_, T>,
) -> kiln::Result<()> {
    let version = commit.version().number();
    // From here on it is committed, however long the disk takes.
    let shared = recorder.shared;
    let transaction = recorder.end(attempt, Outcome::Committed(Some(version)));
    let durable: Result<bool, Error> = match random.below(16) {
        0 => commit.safe().map(|_| true),
        1 => commit.fast().1.wait_timeout(kiln::Level::LOCAL, Duration::from_millis(2)),
        _ => {
            commit.forget();
            Ok(false)
        }
    };
    transaction.durable = matches!(durable, Ok(true)).then(|| shared.now());
    durable.map(drop)
}
