//! The workload: a bank with sessions, fast and safe commits, snapshots and durable reads held open.
//!
//! A [`Shift`] carries out random operations on an open database and on the [`History`] at once, and compares
//! all that it reads. It runs on one thread with background threads off, so that the seed decides the
//! sequence of device steps. What the database says about durability goes into the history, for the
//! [`oracle`](crate::oracle) to hold against it after a crash.

pub(crate) mod bank;
mod deeds;
pub(crate) mod history;
pub(crate) mod loads;
pub(crate) mod names;
mod profile;
mod singles;
mod visitor;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use kiln::device::SimulatedDevice;
use kiln::{Commit, Isolation, Kiln, Level, Progress, Receipt, Result, Session, Snapshot, Version};

use crate::support::{Random, is_of_broken_disk, is_of_refusal};
use crate::workload::bank::{Objects, Teller, at_place, number_of, wrong_key_count};
use crate::workload::deeds::{Deed, ORDINARY, close_account, found_bank, load_ballast, load_cold, transfer};
use crate::workload::history::{History, Key, Place, State, Writes, rows_at};
#[cfg(test)]
pub(crate) use crate::workload::profile::{LARGE, LAZY, LONG, NAMED, SETTLING, SKEWED, SMALL, WARM};
pub(crate) use crate::workload::profile::{Name, Profile};

/// The sessions' ids.
pub(crate) const SESSIONS: [&str; 3] = ["teller one", "teller two", "visitor"];
/// So many of them are open all the time; the last one [comes and goes](visitor).
const TELLERS: usize = SESSIONS.len() - 1;

/// Receipts and snapshots that are held at most.
const RECEIPTS_HELD: usize = 12;
const SNAPSHOTS_HELD: usize = 2;

/// One settling in so many is a compaction of everything.
const COMPACT_ONE_IN: usize = 6;
/// What callbacks have said.
#[derive(Debug, Default)]
pub(crate) struct Told {
    pub(crate) durable: AtomicU64,
    pub(crate) lost: AtomicU64,
}

/// A run of the workload on an open database.
pub(crate) struct Shift<'a> {
    db: &'a Kiln,
    disk: &'a SimulatedDevice,
    history: &'a mut History,
    profile: Profile,
    random: Random,
    objects: Objects,
    sessions: Vec<Session>,
    receipts: Vec<(u64, Receipt)>,
    held: Vec<(Snapshot<'a>, State)>,
    pub(crate) told: Arc<Told>,
}

impl<'a> Shift<'a> {
    /// Opens objects and sessions of the database on `disk`, and founds the bank if there is none.
    pub(crate) fn begin(
        disk: &'a SimulatedDevice,
        db: &'a Kiln,
        history: &'a mut History,
        profile: Profile,
        seed: u64,
    ) -> Result<Shift<'a>> {
        let told = Arc::new(Told::default());
        let (durable, lost) = (told.clone(), told.clone());
        let progressed = history.progressed();
        if let Some(progressed) = &progressed {
            progressed.ask(db);
        }
        db.on_durable(move |version| {
            durable.durable.fetch_max(version.number(), Ordering::SeqCst);
            if let Some(progressed) = &progressed {
                progressed.told_durable(version.number());
            }
        });
        db.on_lost(move |_| {
            lost.lost.fetch_add(1, Ordering::SeqCst);
        });
        let tellers = SESSIONS.iter().take(TELLERS);
        let sessions = tellers.map(|id| db.session(id)).collect::<Result<Vec<_>>>()?;
        let (receipts, held) = (Vec::new(), Vec::new());
        let random = Random::new(seed);
        let objects = Objects { expires: profile.expires, ..Objects::open(db)? };
        let mut shift = Shift { db, disk, history, profile, random, objects, sessions, receipts, held, told };
        if shift.history.latest.is_empty() {
            shift.transaction(|teller, _, _| found_bank(teller))?;
            if profile.cold_keys > 0 {
                shift.transaction(load_cold)?;
            }
            shift.fill()?;
        }
        Ok(shift)
    }

    /// Writes a large value for good and overwrites another, so many times as the profile says.
    fn fill(&mut self) -> Result<()> {
        for number in 0..self.profile.filling {
            let entries = [
                (format!("cold {number}").into_bytes(), 15_000),
                (format!("hot {}", self.random.below(40)).into_bytes(), 1_500),
            ];
            let entries = entries.map(|(key, bytes)| (key, self.random.bytes(bytes)));
            let commit = self.db.transact(|tx| {
                entries.iter().try_for_each(|(key, value)| tx.put(&self.objects.numbers, key, value))
            })?;
            let version = commit.version().number();
            commit.forget();
            let writes = entries.map(|(key, value)| ((Place::Numbers, key), Some(value.into())));
            self.history.commit(version, Writes::from(writes), None);
        }
        Ok(())
    }

    /// Carries out the profile's operations.
    pub(crate) fn work(&mut self) -> Result<()> {
        (0..self.profile.operations).try_for_each(|_| self.step())
    }

    /// One operation, and a look at what has become durable.
    pub(crate) fn step(&mut self) -> Result<()> {
        match self.operation() {
            // A transaction with too many long values at once has left nothing behind.
            Err(error) if error.kind() == kiln::ErrorKind::Limit && self.profile.may_reach_limits() => {}
            outcome => outcome?,
        }
        self.checkpoint()?;
        self.listen();
        Ok(())
    }

    fn operation(&mut self) -> Result<()> {
        // It is persist() that compacts here.
        if self.profile.cold_keys > 0 && self.random.one_in(8) {
            return self.persist();
        }
        if self.profile.settle_one_in > 0 && self.random.one_in(self.profile.settle_one_in) {
            return self.settle();
        }
        if self.profile.name_one_in > 0 && self.random.one_in(self.profile.name_one_in) {
            return self.name_snapshot();
        }
        if self.profile.load_one_in > 0 && self.random.one_in(self.profile.load_one_in) {
            return self.load_or_drop();
        }
        match self.random.below(100) {
            0..=49 => self.deed(),
            50..=53 => self.aborted(),
            54..=61 => self.single_operation(),
            62..=65 => self.snapshot_transaction(),
            66..=68 => self.persist(),
            69..=73 => self.wait_for_receipt(),
            74..=80 => self.hold_snapshot(),
            81..=87 => self.look_at_snapshot(),
            88..=91 => self.durable_read(),
            92..=93 => self.visit(),
            _ => self.safe_read(),
        }
    }

    /// At times a checkpoint while there are commits that are not durable. That it cannot be had harms nobody.
    fn checkpoint(&mut self) -> Result<()> {
        const COMMITS: usize = 64;
        if self.profile.checkpoint_log_bytes == 0 || self.history.commits.len() % COMMITS != COMMITS / 2 {
            return Ok(());
        }
        self.unless_refused(self.db.checkpoint().map(drop))
    }

    /// Settles the tables, at times with nothing un-hardened before it. That it cannot be done harms nobody.
    fn settle(&mut self) -> Result<()> {
        if self.random.one_in(2) {
            self.persist()?;
        }
        let settled = match self.random.one_in(COMPACT_ONE_IN) {
            true => self.db.compact(|_| {}).map(drop),
            false => self.db.settle().map(drop),
        };
        self.unless_refused(settled)
    }

    /// What a disk that has failed refuses, and nobody depends on, is passed over.
    fn unless_refused(&self, done: Result<()>) -> Result<()> {
        done.or_else(|error| if is_of_refusal(&error, self.disk) { Ok(()) } else { Err(error) })
    }

    fn deed(&mut self) -> Result<()> {
        if self.random.one_in(self.profile.ballast_one_in) {
            return self.transaction(load_ballast);
        }
        let deed = *self.random.pick(&ORDINARY);
        self.transaction(deed)
    }

    /// Runs a transaction, through a session or not, and ends its commit in one of all the ways.
    fn transaction(&mut self, deed: Deed) -> Result<()> {
        let (seed, profile) = (self.random.next(), self.profile);
        let session = self.some_session();
        let (objects, before) = (&self.objects, &self.history.latest);
        let mut writes = Writes::new();
        let body = |tx: &kiln::Transaction<'_>| {
            let mut teller = Teller::new(tx, objects, before);
            deed(&mut teller, &mut Random::new(seed), profile)?;
            writes = teller.writes;
            Ok(())
        };
        let commit = match session {
            Some(number) => self.sessions[number].transact(body)?,
            None => self.db.transact(body)?,
        };
        let session = session.map(|number| (number, self.sessions[number].serial()));
        self.history.commit_unless_empty(commit.version().number(), writes, session);
        end(commit, self.history, &mut self.receipts, &mut self.random, profile)
    }

    /// Transactions that must leave nothing behind: aborted, dropped, or failed in the closure.
    fn aborted(&mut self) -> Result<()> {
        let (objects, before) = (&self.objects, &self.history.latest);
        let mut random = Random::new(self.random.next());
        let way = random.below(3);
        if way == 0 {
            let failed = self.db.transact(|tx| {
                transfer(&mut Teller::new(tx, objects, before), &mut random.clone(), self.profile)?;
                tx.add(&objects.numbers, "no number", i64::MAX)?;
                tx.add(&objects.numbers, "no number", 1)
            });
            let error = failed.map(Commit::forget).unwrap_err();
            return match error.kind() {
                kiln::ErrorKind::Input => Ok(()),
                // A record could not be read.
                _ => Err(error),
            };
        }
        let tx = self.db.begin()?;
        let mut teller = Teller::new(&tx, objects, before);
        transfer(&mut teller, &mut random, self.profile)?;
        close_account(&mut teller, &mut random, self.profile)?;
        if way == 1 {
            tx.abort();
        }
        Ok(())
    }

    /// A transfer under snapshot isolation.
    fn snapshot_transaction(&mut self) -> Result<()> {
        let (seed, profile) = (self.random.next(), self.profile);
        let (objects, before) = (&self.objects, &self.history.latest);
        let mut writes = Writes::new();
        let commit = self.db.transact_with(Isolation::Snapshot, |tx| {
            let mut teller = Teller::new(tx, objects, before);
            transfer(&mut teller, &mut Random::new(seed), profile)?;
            writes = teller.writes;
            Ok(())
        })?;
        self.history.commit_unless_empty(commit.version().number(), writes, None);
        end(commit, self.history, &mut self.receipts, &mut self.random, profile)
    }

    fn persist(&mut self) -> Result<()> {
        if self.random.one_in(2) {
            // Now nothing holds up what persist() sweeps away.
            self.held.clear();
        }
        self.db.persist()?;
        let last = self.history.commits.last().map_or(0, |commit| commit.version);
        self.history.told_durable(last);
        // Where something has settled counting reads from the disk; what cannot be read is estimated.
        let fired = self.disk.faults_fired();
        let wrong = wrong_key_count(&self.objects, &self.history.latest);
        if let Some(wrong) = wrong {
            let is_estimate = self.disk.faults_fired() > fired || !self.can_read_tables();
            assert!(is_estimate, "{wrong}");
        }
        Ok(())
    }

    fn can_read_tables(&self) -> bool {
        let Ok(snapshot) = self.db.snapshot() else { return false };
        [Place::Accounts, Place::Children]
            .into_iter()
            .all(|place| snapshot.range::<&[u8]>(self.objects.table(place), ..).all(|row| row.is_ok()))
    }

    fn wait_for_receipt(&mut self) -> Result<()> {
        if self.receipts.is_empty() {
            return Ok(());
        }
        let (version, receipt) = self.receipts.swap_remove(self.random.below(self.receipts.len()));
        if self.random.one_in(2) {
            receipt.wait(Level::LOCAL)?;
            self.history.told_durable(version);
        } else if receipt.wait_timeout(Level::LOCAL, Duration::from_secs(3600))? {
            self.history.told_durable(version);
        }
        Ok(())
    }

    fn hold_snapshot(&mut self) -> Result<()> {
        if self.held.len() == SNAPSHOTS_HELD {
            self.held.remove(0);
        }
        let durable = self.random.one_in(2);
        let snapshot = if durable { self.db.durable_snapshot()? } else { self.db.snapshot()? };
        let version = snapshot.version().number();
        let last = self.history.commits.last().map_or(0, |commit| commit.version);
        assert!(durable || version >= last, "a snapshot at {version} misses the commit at {last}");
        if durable {
            assert_eq!(version, self.db.horizon(Level::LOCAL).number());
            let known = self.history.durable;
            assert!(version >= known, "C6: {known} was durable, and a durable snapshot is of {version}");
            self.history.told_durable(version);
        }
        let state = self.history.state_at(version);
        self.held.push((snapshot, state.into_owned()));
        Ok(())
    }

    fn look_at_snapshot(&mut self) -> Result<()> {
        if self.held.is_empty() {
            return Ok(());
        }
        let chosen = self.random.below(self.held.len());
        let (snapshot, state) = &self.held[chosen];
        compare_snapshot(snapshot, &self.objects, state, self.history.keys(), self.random.one_in(8))?;
        if self.random.one_in(3) {
            self.held.remove(chosen);
        }
        Ok(())
    }

    fn durable_read(&mut self) -> Result<()> {
        let (objects, history) = (&self.objects, &mut *self.history);
        self.db.read_durable(|snapshot| {
            let (version, known) = (snapshot.version().number(), history.durable);
            assert!(version >= known, "C6: {known} was durable, and a durable read is of {version}");
            history.told_durable(version);
            compare_snapshot(snapshot, objects, &history.state_at(version), history.keys(), false)
        })
    }

    /// A read that is acknowledged once what it saw is durable.
    fn safe_read(&mut self) -> Result<()> {
        let keys: Vec<&(Place, Key)> = self.history.latest.keys().collect();
        if keys.is_empty() {
            return Ok(());
        }
        let key = (*self.random.pick(&keys)).clone();
        let (place, name) = &key;
        let objects = &self.objects;
        let found = self.db.read_safe(|tx| at_place!(objects, *place, object => tx.get(object, name)))?;
        assert_eq!(found.as_deref(), self.history.latest.get(&key).map(|value| &**value));
        let version = self.history.last_write(&key);
        self.history.told_durable(version);
        Ok(())
    }

    /// Takes in what the database says about durability, and checks that it does not contradict itself.
    pub(crate) fn listen(&mut self) {
        self.history.told_durable(self.told.durable.load(Ordering::SeqCst));
        let horizon = self.db.horizon(Level::LOCAL).number();
        self.history.told_durable(horizon);
        let durable = self.history.durable;
        for (version, receipt) in &self.receipts {
            assert_eq!(receipt.version(), Version::new(*version));
            match receipt.poll(Level::LOCAL) {
                Progress::Durable => self.history.told_durable(*version),
                other => assert!(
                    *version > durable,
                    "version {version} is {other:?} although {durable} is durable"
                ),
            }
        }
        if self.receipts.len() > RECEIPTS_HELD {
            self.receipts.remove(0);
        }
    }

    /// To be called when an operation has failed because the disk did: from now on nothing is acknowledged that
    /// was not acknowledged before, and memory still reads.
    pub(crate) fn work_after_failure(&mut self) {
        self.listen();
        let durable = self.history.durable;
        for _ in 0..4 {
            let commit = match self.db.add(&self.objects.numbers, "visits", 1) {
                Ok(commit) => commit,
                Err(error) => {
                    assert!(is_of_broken_disk(&error), "after a failure: {:?}: {error}", error.kind());
                    continue;
                }
            };
            let version = commit.version().number();
            let (sum, receipt) = commit.fast();
            let key = (Place::Numbers, b"visits".to_vec());
            let value = Some(sum.to_le_bytes().as_slice().into());
            self.history.commit(version, Writes::from([(key, value)]), None);
            assert!(
                receipt.wait(Level::LOCAL).is_err(),
                "version {version} was acknowledged after a failure"
            );
            assert_eq!(receipt.poll(Level::LOCAL), Progress::Lost);
        }
        let last = self.history.commits.last().map_or(0, |commit| commit.version);
        // With nothing left to write, there is nothing that could fail.
        assert!(self.db.persist().is_err() || last <= durable, "persist() succeeded after a failure");
        self.listen();
        assert_eq!(self.history.durable, durable, "something became durable after a failure");
    }
}

/// Ends a commit as safe or fast, and tells the history.
fn end(
    commit: Commit<'_, ()>,
    history: &mut History,
    receipts: &mut Vec<(u64, Receipt)>,
    random: &mut Random,
    profile: Profile,
) -> Result<()> {
    let version = commit.version().number();
    if random.one_in(profile.safe_one_in) {
        commit.safe()?;
        history.told_durable(version);
        return Ok(());
    }
    match random.below(3) {
        0 => commit.forget(),
        1 => receipts.push((version, commit.fast_within(Duration::from_millis(1)).1)),
        _ => receipts.push((version, commit.fast().1)),
    }
    Ok(())
}

/// Compares a snapshot with the state that it must show.
pub(crate) fn compare_snapshot(
    snapshot: &Snapshot<'_>,
    objects: &Objects,
    state: &State,
    keys: &BTreeSet<(Place, Key)>,
    whole_map: bool,
) -> Result<()> {
    compare_tables(snapshot, objects, state)?;
    compare_map(snapshot, objects, state, keys, whole_map)
}

fn wrong(snapshot: &Snapshot<'_>, place: Place, key: &Key) -> ! {
    let key = key.escape_ascii().to_string();
    panic!("the snapshot at {} differs at {place:?} {key:?}", snapshot.version())
}

/// Compares the tables of a snapshot.
pub(crate) fn compare_tables(snapshot: &Snapshot<'_>, objects: &Objects, state: &State) -> Result<()> {
    for place in [Place::Accounts, Place::Children] {
        let mut expected = rows_at(state, place);
        for row in snapshot.range::<&[u8]>(objects.table(place), ..) {
            let (key, value) = row?;
            if expected.next().is_none_or(|((_, must), it)| *must != key || **it != *value) {
                wrong(snapshot, place, &key);
            }
        }
        if let Some(((_, key), _)) = expected.next() {
            wrong(snapshot, place, key);
        }
    }
    Ok(())
}

/// Compares the map of a snapshot, with what a walk over it finds if it is to be `whole`, or key by key of those that were ever used.
pub(crate) fn compare_map(
    snapshot: &Snapshot<'_>,
    objects: &Objects,
    state: &State,
    keys: &BTreeSet<(Place, Key)>,
    whole: bool,
) -> Result<()> {
    if !whole {
        for place_and_key @ (place, key) in keys.iter().filter(|(place, _)| *place == Place::Numbers) {
            let expected = state.get(place_and_key).map(|value| &**value);
            if snapshot.get(&objects.numbers, key)?.as_deref() != expected {
                wrong(snapshot, *place, key);
            }
        }
        return Ok(());
    }
    let expected: State =
        rows_at(state, Place::Numbers).map(|(key, value)| (key.clone(), value.clone())).collect();
    let mut seen = State::new();
    for row in snapshot.iter(&objects.numbers) {
        let (key, value) = row?;
        let before = seen.insert((Place::Numbers, key), value.into());
        assert!(before.is_none(), "a walk over a map meets a key twice");
    }
    let version = snapshot.version();
    assert!(seen == expected, "the snapshot at {version} differs: {}", difference(&expected, &seen));
    Ok(())
}

/// Where two states differ first, for a message.
pub(crate) fn difference(expected: &State, found: &State) -> String {
    let describe = |value: Option<&crate::workload::history::Value>| match value {
        None => "nothing".to_owned(),
        Some(value) => format!("{} bytes, number {}", value.len(), number_of(value)),
    };
    let keys = expected.keys().chain(found.keys());
    let mut different = keys.filter(|key| expected.get(*key) != found.get(*key));
    different.next().map_or("nowhere".to_owned(), |key| {
        let (must, is) = (describe(expected.get(key)), describe(found.get(key)));
        format!("{:?} {:?} must be {must}, is {is}", key.0, key.1.escape_ascii().to_string())
    })
}
