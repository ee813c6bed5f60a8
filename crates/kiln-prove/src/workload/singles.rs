//! Operations outside of transactions: the workload's single operations and batches, of the database and of its sessions.

use std::cell::Cell;

use kiln::device::Keep;
use kiln::{Commit, Kiln, Level, Object, Result};

use super::{Shift, TELLERS};
use crate::crash::reopen;
use crate::support::Random;
use crate::workload::bank::{Objects, at_place, number_of};
use crate::workload::history::{Key, Place, Value, Writes};

/// The key of the single operations; batches have others.
const VISITS: &[u8] = b"visits";

/// Calls a method that the database and its sessions have in common.
macro_rules! by {
    ($shift:expr, $session:expr, $who:ident => $call:expr) => {
        match $session {
            None => {
                let $who = $shift.db;
                $call
            }
            Some(number) => {
                let $who = &$shift.sessions[number];
                $call
            }
        }
    };
}

/// A batch of the engine's that tells nothing before it has ended.
struct Batch {
    place: Place,
    session: Option<usize>,
    /// The session's serial number before it.
    serial: u64,
    /// The database's version before it.
    version: u64,
    /// What each element leaves; no two leave the same under one key.
    elements: Vec<(Key, Value)>,
}

/// The key of a batch's element, which notes the database's version whenever it is asked for: that is so at last when the element
/// begins, and so in the version of the element before, since on one thread only an element itself ends one.
struct Watched<'a> {
    key: Key,
    db: &'a Kiln,
    begun_in: Cell<u64>,
}

impl<'a> Watched<'a> {
    fn new(key: &Key, db: &'a Kiln) -> Watched<'a> {
        Watched { key: key.clone(), db, begun_in: Cell::new(0) }
    }
}

impl AsRef<[u8]> for Watched<'_> {
    fn as_ref(&self) -> &[u8] {
        self.begun_in.set(self.db.version().number());
        &self.key
    }
}

/// In which versions the elements of a batch began.
fn begun<T>(elements: &[(Watched<'_>, T)]) -> Vec<u64> {
    elements.iter().map(|(key, _)| key.begun_in.get()).collect()
}

impl Shift<'_> {
    /// The operations that are transactions of their own.
    pub(super) fn single_operation(&mut self) -> Result<()> {
        let objects = self.objects.clone();
        let place = *self.random.pick(&[Place::Numbers, Place::Accounts]);
        let way = self.random.below(8);
        at_place!(objects, place, object => match way {
            0 | 1 => self.update_many(object, place),
            2 => self.put_many(object, place),
            3 => self.add_many(object, place),
            4 => self.get_many(object, place),
            _ => self.single(object, place),
        })
    }

    /// One of the sessions, or none.
    pub(super) fn some_session(&mut self) -> Option<usize> {
        Some(self.random.below(2 * TELLERS)).filter(|&number| number < TELLERS)
    }

    fn serial(&self, session: Option<usize>) -> Option<(usize, u64)> {
        session.map(|number| (number, self.sessions[number].serial()))
    }

    fn single<O: Object>(&mut self, object: &O, place: Place) -> Result<()> {
        let session = self.some_session();
        let key = (place, VISITS.to_vec());
        let stored = self.history.latest.get(&key).cloned();
        let (old, before) = (stored.as_deref(), stored.as_deref().map(number_of));
        assert_eq!(self.db.get_with(object, VISITS, |value| value.map(number_of))?, before);
        assert_eq!(self.db.get_async(object, VISITS).wait()?, stored.as_deref().map(<[u8]>::to_vec));
        let (version, value) = match self.random.below(6) {
            0 => {
                let (version, sum) = told(by!(self, session, who => who.add(object, VISITS, 3)?));
                assert_eq!(sum, before.unwrap_or(0) + 3);
                (version, Some(sum))
            }
            1 => {
                let seven = 7_i64.to_le_bytes();
                (told(by!(self, session, who => who.put(object, VISITS, seven)?)).0, Some(7))
            }
            2 => {
                let product = before.map(|number| number.wrapping_mul(3));
                let change = |seen: Option<&[u8]>| {
                    assert_eq!(seen, old);
                    product.map(i64::to_le_bytes)
                };
                (told(by!(self, session, who => who.update(object, VISITS, change)?)).0, product)
            }
            3 => {
                let new = self.random.one_in(2).then_some(11_i64);
                let bytes = new.map(i64::to_le_bytes);
                let new_bytes = bytes.as_ref().map(<[u8; 8]>::as_slice);
                let commit = by!(self, session, who => who.compare_and_set(object, VISITS, old, new_bytes)?);
                let (version, done) = told(commit);
                assert!(done, "a comparison with the newest value failed");
                (version, new)
            }
            4 => {
                let commit =
                    by!(self, session, who => who.compare_and_set(object, VISITS, Some(b"never"), None)?);
                let (version, done) = told(commit);
                assert!(!done, "a comparison with another value succeeded");
                let serial = self.serial(session);
                self.history.commit_unless_empty(version, Writes::new(), serial);
                return Ok(());
            }
            _ => {
                let (version, existed) = told(by!(self, session, who => who.delete(object, VISITS)?));
                assert_eq!(existed, before.is_some());
                (version, None)
            }
        };
        let is_write = before.is_some() || value.is_some();
        let value = value.map(|number| number.to_le_bytes().as_slice().into());
        let writes = if is_write { Writes::from([(key, value)]) } else { Writes::new() };
        let serial = self.serial(session);
        self.history.commit_unless_empty(version, writes, serial);
        Ok(())
    }

    /// Up to six keys, some of them more than once, that only batches of one kind use.
    fn names(&mut self, kind: u8) -> Vec<Key> {
        (0..1 + self.random.below(6)).map(|_| vec![kind, self.random.below(4) as u8]).collect()
    }

    /// Reads keys that are there and some that are not.
    fn get_many<O: Object>(&mut self, object: &O, place: Place) -> Result<()> {
        let mut names = self.names(b'v');
        let there: Vec<&Key> =
            self.history.latest.keys().filter(|(at, _)| *at == place).map(|(_, key)| key).collect();
        names.extend((0..40).map(|_| (*self.random.pick(&there)).clone()));
        let (latest, mut looked_at) = (&self.history.latest, 0);
        self.db.get_many(object, &names, |at, value| {
            assert_eq!(at, looked_at, "a batch reads in another order");
            looked_at += 1;
            assert_eq!(value, latest.get(&(place, names[at].clone())).map(|value| &**value), "element {at}");
        })?;
        assert_eq!(looked_at, names.len());
        Ok(())
    }

    /// A batch of changes, each a transaction of its own: of one that breaks off in the middle the first are there.
    fn update_many<O: Object>(&mut self, object: &O, place: Place) -> Result<()> {
        let names = self.names(b'v');
        let (db, latest, seed) = (self.db, &self.history.latest, self.random.next());
        let mut changed = Writes::new();
        // An element is committed once there is a call for the next one, and on one thread no version has passed since.
        let mut done: Vec<(u64, Writes)> = Vec::new();
        let mut pending: Option<(usize, u64, Writes)> = None;
        let commit = db.update_many(object, &names, |at, old, new| {
            let before = pending.take_if(|(last, ..)| *last < at);
            done.extend(before.map(|(_, _, writes)| (db.version().number(), writes)));
            let key = (place, names[at].clone());
            if pending.is_none() {
                let stored = changed.get(&key).unwrap_or(&latest.get(&key).cloned()).clone();
                assert_eq!(old, stored.as_deref(), "element {at} of a batch");
            }
            let mut random = Random::new(seed + at as u64);
            let length = random.below(40);
            new.extend_from_slice(&random.bytes(length));
            // The deletion of what is not there would be no write.
            let exists = old.is_none() || !random.one_in(4);
            let value = exists.then(|| new.as_slice().into());
            changed.insert(key.clone(), value.clone());
            pending = Some((at, db.version().number(), Writes::from([(key, value)])));
            exists
        });
        let commit = commit.map(|commit| told(commit).0);
        for (version, writes) in done {
            self.history.commit(version, writes, None);
        }
        if let Some((_, first_version, writes)) = pending {
            match &commit {
                Ok(version) => self.history.commit(*version, writes, None),
                Err(_) => {
                    // What it would have left as it was says nothing.
                    let mut are_there =
                        writes.iter().any(|(key, value)| self.history.latest.get(key) != value.as_ref());
                    for ((_, key), value) in &writes {
                        are_there &= self.after_failure(place, key, db.get(object, key))?.as_deref()
                            == value.as_deref();
                    }
                    // It may be the next one that has failed.
                    if are_there {
                        self.history.commit(self.version_after_failure(first_version), writes, None);
                    }
                }
            }
        }
        commit.map(drop)
    }

    /// The version that what was committed before a failure is in, if it was committed in `first` or later and is not durable: after
    /// a hardening that failed the clock is past the version that was to be hardened.
    fn version_after_failure(&self, first: u64) -> u64 {
        let horizon = self.db.horizon(Level::LOCAL).number();
        first.max(horizon + 1).max(self.db.version().number() - 1)
    }

    /// A key's value, if it could be read, or what the disk has: what is not in memory any more is durable.
    /// An error if that cannot be read either, since the disk has lost it.
    fn after_failure(
        &self,
        place: Place,
        key: &Key,
        read: Result<Option<Vec<u8>>>,
    ) -> Result<Option<Vec<u8>>> {
        read.or_else(|error| {
            if self.history.disk_lies {
                return Err(error);
            }
            let disk = self.disk.after_crash(&mut |_| Keep::Lost);
            let db = reopen(&disk)?;
            let objects = Objects::open(&db)?;
            at_place!(objects, place, object => db.get(object, key))
        })
    }

    fn put_many<O: Object>(&mut self, object: &O, place: Place) -> Result<()> {
        let names = self.names(b'v');
        let length = 8 + self.random.below(40);
        let elements = names.into_iter().map(|name| (name, self.random.bytes(length).into())).collect();
        let batch = self.batch(place, elements);
        let watched = batch.elements.iter().map(|(key, value)| (Watched::new(key, self.db), value.clone()));
        let watched: Vec<_> = watched.collect();
        let done = by!(self, batch.session, who => who.put_many(object, &watched).map(told));
        self.note(object, &batch, &begun(&watched), done)
    }

    fn add_many<O: Object>(&mut self, object: &O, place: Place) -> Result<()> {
        let deltas: Vec<(Key, i64)> =
            self.names(b'n').into_iter().map(|name| (name, 1 + self.random.below(9) as i64)).collect();
        let mut elements: Vec<(Key, Value)> = Vec::new();
        for (name, delta) in &deltas {
            let earlier = elements.iter().rev().find(|(key, _)| key == name).map(|(_, value)| value);
            let before = earlier.or_else(|| self.history.latest.get(&(place, name.clone())));
            let sum = before.map_or(0, |value| number_of(value)) + delta;
            elements.push((name.clone(), sum.to_le_bytes().as_slice().into()));
        }
        let batch = self.batch(place, elements);
        let watched: Vec<_> =
            deltas.iter().map(|(key, delta)| (Watched::new(key, self.db), *delta)).collect();
        let done = by!(self, batch.session, who => who.add_many(object, &watched).map(told));
        self.note(object, &batch, &begun(&watched), done)
    }

    fn batch(&mut self, place: Place, elements: Vec<(Key, Value)>) -> Batch {
        let session = self.some_session();
        let serial = self.serial(session).map_or(0, |(_, serial)| serial);
        Batch { place, session, serial, version: self.db.version().number(), elements }
    }

    /// Notes the elements of a batch that are committed: all, or those before the one that failed. Only the version of the
    /// newest is told; the others' are those in which the elements behind them began.
    fn note<O: Object>(
        &mut self,
        object: &O,
        batch: &Batch,
        begun: &[u64],
        done: Result<(u64, ())>,
    ) -> Result<()> {
        let Batch { place, session, serial, version, elements } = batch;
        let horizon = self.db.horizon(Level::LOCAL).number();
        // The elements are committed in their order, so the last that is seen tells how many there are.
        let seen = |get: &dyn Fn(&Key) -> Result<Option<Vec<u8>>>| -> Result<usize> {
            for (at, (key, value)) in elements.iter().enumerate().rev() {
                if get(key)?.as_deref() == Some(&**value) {
                    return Ok(at + 1);
                }
            }
            Ok(0)
        };
        let committed = match &done {
            Ok(_) => elements.len(),
            Err(_) => seen(&|key| self.after_failure(*place, key, self.db.get(object, key)))?,
        };
        let durable = match self.db.durable_snapshot() {
            Ok(snapshot) if horizon >= *version => {
                seen(&|key| self.after_failure(*place, key, snapshot.get(object, key)))?
            }
            _ => 0,
        };
        let newest = match &done {
            Ok((told, ())) => *told,
            Err(_) => self.version_after_failure(*version),
        };
        for (at, (key, value)) in elements[..committed].iter().enumerate() {
            let version = begun.get(at + 1).copied().unwrap_or(newest);
            assert_eq!(at < durable, version <= horizon, "element {at}, of version {version}, at {horizon}");
            let writes = Writes::from([((*place, key.clone()), Some(value.clone()))]);
            let number = session.map(|session| (session, serial + at as u64 + 1));
            self.history.commit(version, writes, number);
        }
        if let Some((_, now)) = self.serial(*session) {
            assert_eq!(now, serial + committed as u64, "serial numbers of a batch's elements");
        }
        done.map(drop)
    }
}

/// The version of a commit that nobody waits for, and what it returned.
fn told<T>(commit: Commit<'_, T>) -> (u64, T) {
    let version = commit.version().number();
    (version, commit.forget())
}
