//! What must be in the database: the history of everything that was committed, and the states that it defines.
//!
//! The model knows nothing of logs or disks. It says: the state at version v is what all transactions with
//! versions up to v have written, in the order of their commits; and the database was told (a safe commit
//! returned, a receipt said *durable*, a callback came) that everything up to some version is durable.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use kiln::{Kiln, Level};

use crate::workload::loads::name_of;

/// The objects of the workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Place {
    /// The table of accounts, and of the upper halves of the pairs.
    Accounts,
    /// The table of sub-accounts; a key begins with its account's key.
    Children,
    /// The map of row counts, and of the lower halves of the pairs.
    Numbers,
}

pub(crate) type Key = Vec<u8>;
pub(crate) type Value = Arc<[u8]>;
/// All objects' contents.
pub(crate) type State = BTreeMap<(Place, Key), Value>;
/// What a transaction leaves: a value for each key that it wrote, or none if it deleted it.
pub(crate) type Writes = BTreeMap<(Place, Key), Option<Value>>;

/// Of a state, what is at a place.
pub(crate) fn rows_at(
    state: &State,
    place: Place,
) -> impl DoubleEndedIterator<Item = (&(Place, Key), &Value)> {
    state.iter().filter(move |((at, _), _)| *at == place)
}

/// Applies a transaction's writes.
pub(crate) fn apply(state: &mut State, writes: &Writes) {
    for (key, value) in writes {
        match value {
            Some(value) => state.insert(key.clone(), value.clone()),
            None => state.remove(key),
        };
    }
}

/// A committed transaction.
#[derive(Clone, Debug)]
pub(crate) struct Committed {
    pub(crate) version: u64,
    pub(crate) writes: Writes,
    /// The session's number in the workload, and the serial that the transaction took.
    pub(crate) session: Option<(usize, u64)>,
    /// The bulk load that it was, by its number.
    pub(crate) load: Option<u32>,
    /// The table of this load was dropped by it.
    pub(crate) drop: Option<u32>,
    /// What it wrote to a table that was loaded.
    pub(crate) anew: Option<Anew>,
}

/// Rows of a table that was loaded in bulk that a transaction wrote again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Anew {
    /// The load's number.
    pub(crate) load: u32,
    /// The first of the rows.
    pub(crate) first: usize,
    /// What is in their values, and in those of no other commit.
    pub(crate) stamp: u64,
}

impl Committed {
    /// One that has written nothing.
    pub(crate) fn at(version: u64) -> Committed {
        Committed { version, writes: Writes::new(), session: None, load: None, drop: None, anew: None }
    }
}

/// A snapshot that has a name, or may have one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Named {
    pub(crate) name: &'static str,
    /// It shows so many commits, the first.
    pub(crate) commits: usize,
    /// That it was made has been told.
    pub(crate) is_made: bool,
    /// It may have been dropped.
    pub(crate) is_going: bool,
}

/// How far a history has come, for who looks on while it is made.
#[derive(Debug, Default)]
pub(crate) struct Progressed {
    commits: AtomicUsize,
    durable: AtomicU64,
    named: Mutex<Vec<Named>>,
    /// The database, which knows what is durable before it calls anybody back.
    asked: Mutex<Option<Kiln>>,
}

impl Progressed {
    /// How many commits there were, the version up to which everything had been called durable, and the snapshots with names.
    pub(crate) fn now(&self) -> (usize, u64, Vec<Named>) {
        let asked = self.asked.lock().unwrap_or_else(PoisonError::into_inner);
        let horizon = asked.as_ref().map_or(0, |db| db.horizon(Level::LOCAL).number());
        let durable = self.durable.load(Ordering::SeqCst).max(horizon);
        (self.commits.load(Ordering::SeqCst), durable, self.named().clone())
    }

    /// Asks this database, too, what is durable.
    pub(crate) fn ask(&self, db: &Kiln) {
        *self.asked.lock().unwrap_or_else(PoisonError::into_inner) = Some(db.clone());
    }

    /// Lets go of the database, whose disk may hold this.
    pub(crate) fn ask_no_more(&self) {
        let asked = self.asked.lock().unwrap_or_else(PoisonError::into_inner).take();
        drop(asked);
    }

    fn named(&self) -> MutexGuard<'_, Vec<Named>> {
        self.named.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// As [`History::told_durable`], from a callback.
    pub(crate) fn told_durable(&self, version: u64) {
        self.durable.fetch_max(version, Ordering::SeqCst);
    }
}

/// Everything that was committed, and what was said about its durability.
#[derive(Clone, Debug, Default)]
pub(crate) struct History {
    pub(crate) commits: Vec<Committed>,
    /// Every key that was ever written.
    keys: BTreeSet<(Place, Key)>,
    /// The state after all commits.
    pub(crate) latest: State,
    /// Everything up to this version has been called durable.
    pub(crate) durable: u64,
    /// Versions of commits that an earlier crash took.
    pub(crate) lost: BTreeSet<u64>,
    /// The newest version that any commit, lost ones included, was told.
    pub(crate) newest: u64,
    /// Those that were not dropped for certain.
    pub(crate) named: Vec<Named>,
    /// The bulk load that was begun, and may or may not have been committed.
    pub(crate) loading: Option<u32>,
    /// The disk may lose a write without a word: what it has then is not what is durable.
    pub(super) disk_lies: bool,
    /// Who looks on.
    progressed: Option<Arc<Progressed>>,
}

impl History {
    /// An empty history at whose making somebody looks on.
    pub(crate) fn looked_at_by(progressed: Arc<Progressed>) -> History {
        History { progressed: Some(progressed), ..History::default() }
    }

    /// An empty history on a disk that may lose writes without a word.
    pub(crate) fn of_lying_disk() -> History {
        History { disk_lies: true, ..History::default() }
    }

    /// Who looks on while it is made.
    pub(crate) fn progressed(&self) -> Option<Arc<Progressed>> {
        self.progressed.clone()
    }

    /// Adds a transaction that has just committed.
    ///
    /// # Panics
    /// If its version is older than that of the commit before it: on one thread, versions never go back.
    pub(crate) fn commit(&mut self, version: u64, writes: Writes, session: Option<(usize, u64)>) {
        self.add(Committed { writes, session, ..Committed::at(version) });
    }

    fn add(&mut self, commit: Committed) {
        let Committed { version, writes, .. } = &commit;
        let version = *version;
        let before = self.commits.last().map_or(0, |last| last.version);
        assert!(version >= before, "a commit got version {version} after one that had got {before}");
        apply(&mut self.latest, writes);
        for key in writes.keys() {
            if !self.keys.contains(key) {
                self.keys.insert(key.clone());
            }
        }
        self.newest = self.newest.max(version);
        self.commits.push(commit);
        if let Some(progressed) = &self.progressed {
            progressed.commits.store(self.commits.len(), Ordering::SeqCst);
        }
    }

    /// Notes that a bulk load begins. Returns its number.
    pub(crate) fn begin_load(&mut self) -> u32 {
        let last = self.loads().max();
        *self.loading.insert(last.map_or(0, |last| last + 1))
    }

    /// Adds a bulk load that was committed.
    pub(crate) fn commit_load(&mut self, version: u64, number: u32) {
        self.loading = None;
        self.add(Committed { load: Some(number), ..Committed::at(version) });
    }

    /// Adds the dropping of a table that was loaded in bulk.
    pub(crate) fn commit_drop(&mut self, version: u64, number: u32) {
        self.add(Committed { drop: Some(number), ..Committed::at(version) });
    }

    /// Adds a transaction that wrote rows of a table that was loaded in bulk.
    pub(crate) fn commit_anew(&mut self, version: u64, anew: Anew) {
        self.add(Committed { anew: Some(anew), ..Committed::at(version) });
    }

    /// What so many commits, the first, wrote again of a load's rows, in their order.
    pub(crate) fn written_anew(&self, load: u32, commits: usize) -> impl Iterator<Item = Anew> {
        let anew = self.commits[..commits].iter().filter_map(|commit| commit.anew);
        anew.filter(move |anew| anew.load == load)
    }

    /// How many commits there are up to a version.
    pub(crate) fn commits_at(&self, version: u64) -> usize {
        self.up_to(version).len()
    }

    /// The bulk loads up to `version` whose tables were not dropped by then.
    pub(crate) fn loads_at(&self, version: u64) -> Vec<u32> {
        self.loads_after(self.commits_at(version))
    }

    /// The same after so many commits, the first.
    pub(crate) fn loads_after(&self, commits: usize) -> Vec<u32> {
        let commits = &self.commits[..commits];
        let dropped: BTreeSet<u32> = commits.iter().filter_map(|commit| commit.drop).collect();
        commits.iter().filter_map(|commit| commit.load).filter(|number| !dropped.contains(number)).collect()
    }

    /// All bulk loads.
    pub(crate) fn loads(&self) -> impl Iterator<Item = u32> {
        self.commits.iter().filter_map(|commit| commit.load)
    }

    /// As [`History::commit`], unless the transaction only read: that leaves nothing behind. A session's
    /// transaction always writes its serial number.
    pub(crate) fn commit_unless_empty(
        &mut self,
        version: u64,
        writes: Writes,
        session: Option<(usize, u64)>,
    ) {
        if !writes.is_empty() || session.is_some() {
            self.commit(version, writes, session);
        }
    }

    /// Notes that everything up to `version` was called durable.
    pub(crate) fn told_durable(&mut self, version: u64) {
        self.durable = self.durable.max(version);
        if let Some(progressed) = &self.progressed {
            progressed.told_durable(version);
        }
    }

    /// Notes a change of the snapshots that have names.
    pub(crate) fn change_names(&mut self, change: impl FnOnce(&mut Vec<Named>)) {
        change(&mut self.named);
        if let Some(progressed) = &self.progressed {
            progressed.named().clone_from(&self.named);
        }
    }

    /// Goes on to the first `count` commits of a history that begins as this one does.
    pub(crate) fn follow(&mut self, whole: &History, count: usize) {
        for commit in &whole.commits[self.commits.len()..count] {
            self.add(commit.clone());
        }
    }

    /// This history, and of the one that it is the beginning of what is in versions up to `horizon`: a commit may be durable
    /// before whoever asked for it is told that there is one.
    pub(crate) fn with_durable_of<'a>(&'a self, whole: &History, horizon: u64) -> Cow<'a, History> {
        let durable = whole.commits_at(horizon);
        if durable <= self.commits.len() {
            return Cow::Borrowed(self);
        }
        let mut history = self.clone();
        history.follow(whole, durable);
        // Nobody was told of the versions.
        history.newest = self.newest;
        Cow::Owned(history)
    }

    /// The commits up to a version.
    fn up_to(&self, version: u64) -> &[Committed] {
        &self.commits[..self.commits.partition_point(|commit| commit.version <= version)]
    }

    /// The state that all commits up to `version` make.
    pub(crate) fn state_at(&self, version: u64) -> Cow<'_, State> {
        self.state_after(self.commits_at(version))
    }

    /// The state that so many commits make, the first.
    pub(crate) fn state_after(&self, commits: usize) -> Cow<'_, State> {
        if commits == self.commits.len() {
            return Cow::Borrowed(&self.latest);
        }
        let mut state = State::new();
        self.commits[..commits].iter().for_each(|commit| apply(&mut state, &commit.writes));
        Cow::Owned(state)
    }

    /// The session's last serial number among the commits up to `version`.
    pub(crate) fn serial_at(&self, session: usize, version: u64) -> u64 {
        let serials = self.up_to(version).iter().rev().filter_map(|commit| commit.session);
        serials.into_iter().find(|(of, _)| *of == session).map_or(0, |(_, serial)| serial)
    }

    /// The version of the commit that last wrote a key.
    pub(crate) fn last_write(&self, key: &(Place, Key)) -> u64 {
        let writers = self.commits.iter().rev().filter(|commit| commit.writes.contains_key(key));
        writers.map(|commit| commit.version).next().unwrap_or(0)
    }

    /// Whether a database is to be read in every way: after every fourth commit, since most of the time goes into reading from the
    /// disk.
    pub(crate) fn wants_every_way(&self) -> bool {
        self.commits.len().is_multiple_of(4)
    }

    /// Every key that was ever written.
    pub(crate) fn keys(&self) -> &BTreeSet<(Place, Key)> {
        &self.keys
    }

    /// Forgets what a crash took: everything after `horizon`. What was left open is as it is in the database.
    pub(crate) fn cut_at(&mut self, horizon: u64, db: &Kiln) {
        let snapshots = db.snapshots();
        self.named.retain(|named| snapshots.iter().any(|info| info.name == named.name));
        for named in &mut self.named {
            (named.is_made, named.is_going) = (true, false);
        }
        let kept = self.commits_at(horizon);
        self.latest = self.state_at(horizon).into_owned();
        self.lost.extend(self.commits.drain(kept..).map(|commit| commit.version));
        self.durable = horizon;
        let is_there = |number: &u32| db.objects().iter().any(|object| object.name == name_of(*number));
        if let Some(number) = self.loading.take().filter(is_there) {
            self.commit_load(horizon, number);
        }
    }
}
