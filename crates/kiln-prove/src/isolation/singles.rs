//! The load through the library: operations that are transactions of their own, one by one and in batches.

use kiln::{Commit, Session, Version};

use super::history::{Key, Level, Operation, Outcome};
use super::library::{Worker, finish};
use super::operations::{FOR_LONG, at_key, pause};
use super::recorder::Attempt;
use super::values::{decode, decode_list, encode, encode_key, encode_list};

/// Elements of a batch, at most.
const BATCH_MAX: usize = 40;

/// Calls a method of the session, where there is one, or of the database.
macro_rules! by {
    ($session:expr, $db:expr, $who:ident => $call:expr) => {
        match $session {
            Some($who) => $call,
            None => {
                let $who = $db;
                $call
            }
        }
    };
}

impl Worker<'_, '_> {
    /// Operations that are transactions of their own.
    pub(super) fn single(&mut self) -> kiln::Result<()> {
        match self.random.below(10) {
            0 => self.write(),
            1 | 2 => self.read(),
            3 => self.append_by_itself(),
            4 => self.append_by_comparing(),
            5 => self.read_many(),
            6 => self.append_to_many(),
            7 => self.add(),
            8 => self.add_many(),
            _ => self.write_many(),
        }
    }

    /// Overwrites a register.
    fn write(&mut self) -> kiln::Result<()> {
        let mut attempt = self.recorder.invoke(Level::Serializable);
        let (key, number) = (self.recorder.shared.register(&mut self.random), self.recorder.number());
        let (name, value) = (encode_key(key), encode(key, number));
        attempt.operations.push(Operation::Write(key, number));
        let session = self.session.take();
        let by_session = session.as_ref().filter(|_| self.random.one_in(2));
        let (db, objects) = (self.db, self.objects);
        let expires = self.random.one_in(3);
        let commit = at_key!(key, &objects.registers, &objects.ordered_registers, object => match expires {
            true => by!(by_session, db, who => who.put_expiring(object, name, value, FOR_LONG)),
            false => by!(by_session, db, who => who.put(object, name, value)),
        });
        let serial = by_session.map(Session::serial);
        let done = self.end_single(attempt, commit, serial);
        self.session = session;
        done
    }

    /// Reads a register or a list.
    fn read(&mut self) -> kiln::Result<()> {
        let mut attempt = self.recorder.invoke(Level::Serializable);
        let (db, objects, shared) = (self.db, self.objects, self.recorder.shared);
        // What is waited for later is the same read.
        let is_pending = self.random.one_in(4);
        if self.random.one_in(2) {
            let key = shared.register(&mut self.random);
            let value = at_key!(key, &objects.registers, &objects.ordered_registers, object => match is_pending {
                true => db.get_async(object, encode_key(key)).wait(),
                false => db.get(object, encode_key(key)),
            });
            attempt.operations.push(Operation::Read(key, decode(key, value?.as_deref())));
        } else {
            let key = shared.list(&mut self.random);
            let value = at_key!(key, &objects.map, &objects.table, object => match is_pending {
                true => db.get_async(object, encode_key(key)).wait(),
                false => db.get(object, encode_key(key)),
            });
            attempt.operations.push(Operation::List(key, decode_list(value?.as_deref())));
        }
        self.recorder.end(attempt, Outcome::Committed(None));
        Ok(())
    }

    /// Appends to a list by a read-modify-write that is a transaction of its own, with a pause in the middle.
    fn append_by_itself(&mut self) -> kiln::Result<()> {
        let (db, objects, key) = (self.db, self.objects, self.recorder.shared.list(&mut self.random));
        let session = self.session.take();
        let by_session = session.as_ref().filter(|_| self.random.one_in(2));
        let (recorder, random) = (&mut *self.recorder, &mut self.random);
        let mut attempt = recorder.invoke(Level::Serializable);
        let (number, mut length) = (recorder.number(), 0);
        let into = random.one_in(2);
        let mut append = |old: Option<&[u8]>| {
            let mut numbers = decode_list(old);
            // Of several runs the last one counts.
            attempt.operations = vec![Operation::List(key, numbers.clone())];
            numbers.push(number);
            length = numbers.len();
            pause(random);
            recorder.committing(&mut attempt);
            Some(encode_list(&numbers))
        };
        let commit = at_key!(key, &objects.map, &objects.table, object => {
            if into {
                let append = |old: Option<&[u8]>, new: &mut Vec<u8>| {
                    append(old).inspect(|numbers| new.extend_from_slice(numbers)).is_some()
                };
                by!(by_session, db, who => who.update_into(object, encode_key(key), append))
            } else {
                by!(by_session, db, who => who.update(object, encode_key(key), append))
            }
        });
        if commit.is_ok() {
            attempt.operations.push(Operation::Append(key, number));
            recorder.shared.note_length(key, length);
        }
        let done = self.end_single(attempt, commit, by_session.map(Session::serial));
        self.session = session;
        done
    }

    /// Reads a list, and appends to it if it is still the same after a pause.
    fn append_by_comparing(&mut self) -> kiln::Result<()> {
        let (db, objects, key) = (self.db, self.objects, self.recorder.shared.list(&mut self.random));
        let session = self.session.take();
        let by_session = session.as_ref().filter(|_| self.random.one_in(2));
        let (recorder, random) = (&mut *self.recorder, &mut self.random);
        let mut attempt = recorder.invoke(Level::Serializable);
        let name = encode_key(key);
        let old = match at_key!(key, &objects.map, &objects.table, object => db.get(object, name)) {
            Ok(old) => old,
            Err(error) => {
                self.session = session;
                return Err(error);
            }
        };
        let mut numbers = decode_list(old.as_deref());
        attempt.operations.push(Operation::List(key, numbers.clone()));
        pause(random);
        let number = recorder.number();
        numbers.push(number);
        let (old, new) = (old.as_deref(), encode_list(&numbers));
        recorder.committing(&mut attempt);
        let mut refusal = recorder.invoke(Level::Serializable);
        let commit = at_key!(key, &objects.map, &objects.table, object => {
            by!(by_session, db, who => who.compare_and_set(object, name, old, Some(&new)))
        });
        if matches!(&commit, Ok(commit) if !*commit.value()) {
            // It has seen another list, nobody knows which, but a session's takes a serial number.
            recorder.end(attempt, Outcome::Committed(None));
            recorder.committing(&mut refusal);
            attempt = refusal;
        } else {
            attempt.operations.push(Operation::Append(key, number));
            recorder.shared.note_length(key, numbers.len());
        }
        let done = self.end_single(attempt, commit, by_session.map(Session::serial));
        self.session = session;
        done
    }

    /// Adds to a tally.
    fn add(&mut self) -> kiln::Result<()> {
        let (db, objects, key) = (self.db, self.objects, self.recorder.shared.tally(&mut self.random));
        let session = self.session.take();
        let by_session = session.as_ref().filter(|_| self.random.one_in(2));
        let mut attempt = self.recorder.invoke(Level::Serializable);
        let commit = at_key!(key, &objects.tallies, &objects.ordered_tallies, object => {
            by!(by_session, db, who => who.add(object, encode_key(key), 1))
        });
        if let Ok(commit) = &commit {
            attempt.operations.push(Operation::Add(key, Some(*commit.value() as u64)));
        }
        let done = self.end_single(attempt, commit, by_session.map(Session::serial));
        self.session = session;
        done
    }

    /// Records how an operation ended, and with which serial number.
    fn end_single<T>(
        &mut self,
        attempt: Attempt,
        commit: kiln::Result<Commit<'_, T>>,
        serial: Option<u64>,
    ) -> kiln::Result<()> {
        let commit = match commit {
            Ok(commit) => commit,
            Err(error) => {
                self.recorder.end(attempt, Outcome::Aborted);
                return Err(error);
            }
        };
        let at = self.recorder.transactions.len();
        let done = finish(self.recorder, &mut self.random, attempt, commit);
        self.recorder.transactions[at].serial = serial;
        done
    }

    /// Some keys of one object, which the first of them decides.
    fn keys_for_batch(&mut self, choose: impl Fn(&mut Self) -> Key) -> Vec<Key> {
        let count = 1 + self.random.below(BATCH_MAX);
        let mut keys: Vec<Key> = (0..count).map(|_| choose(self)).collect();
        let first = keys[0];
        keys.retain(|key| key % 2 == first % 2);
        keys
    }

    /// Reads some registers in a batch, in which each is read by itself.
    fn read_many(&mut self) -> kiln::Result<()> {
        let (db, objects) = (self.db, self.objects);
        let keys = self.keys_for_batch(|worker| worker.recorder.shared.register(&mut worker.random));
        let names: Vec<_> = keys.iter().map(|&key| encode_key(key)).collect();
        let mut next = Some(self.recorder.invoke(Level::Serializable));
        let look = |at: usize, value: Option<&[u8]>| {
            let Some(mut read) = next.take() else { return };
            read.operations.push(Operation::Read(keys[at], decode(keys[at], value)));
            self.recorder.end(read, Outcome::Committed(None));
            next = Some(self.recorder.invoke(Level::Serializable));
        };
        at_key!(keys[0], &objects.registers, &objects.ordered_registers, object => {
            by!(&self.session, db, who => who.get_many(object, &names, look))
        })
    }

    /// Appends to some lists in a batch, in which each is read and written by itself. An element's version is known if the
    /// clock has stood still from its closure to the next one's.
    fn append_to_many(&mut self) -> kiln::Result<()> {
        let (db, objects) = (self.db, self.objects);
        let keys = self.keys_for_batch(|worker| worker.recorder.shared.list(&mut worker.random));
        let names: Vec<_> = keys.iter().map(|&key| encode_key(key)).collect();
        let session = self.session.take();
        let by_session = session.as_ref().filter(|_| self.random.one_in(2));
        let (from, serial) = (self.recorder.transactions.len(), by_session.map(Session::serial));
        let (recorder, random) = (&mut *self.recorder, &mut self.random);
        // Begun before the next element is read: its closure may run so much later that the read would seem to be out of date.
        let mut next = Some(recorder.invoke(Level::Serializable));
        // The element that is at work, its version at the earliest, its number and its list's length.
        let mut current: Option<(usize, Attempt, u64, u32, usize)> = None;
        let change = |at: usize, old: Option<&[u8]>, new: &mut Vec<u8>| {
            let version = db.version().number();
            if let Some((last, mut attempt, first_version, number, length)) =
                current.take_if(|(last, ..)| *last < at)
            {
                attempt.operations.push(Operation::Append(keys[last], number));
                recorder.shared.note_length(keys[last], length);
                let outcome = match first_version == version {
                    true => Outcome::Committed(Some(version)),
                    false => Outcome::Unknown,
                };
                recorder.end(attempt, outcome);
            }
            // Of several runs the last one counts.
            let (mut attempt, number) = match current.take() {
                Some((_, attempt, _, number, _)) => (attempt, number),
                None => {
                    (next.take().unwrap_or_else(|| recorder.invoke(Level::Serializable)), recorder.number())
                }
            };
            let mut numbers = decode_list(old);
            attempt.operations = vec![Operation::List(keys[at], numbers.clone())];
            numbers.push(number);
            pause(random);
            recorder.committing(&mut attempt);
            next = Some(recorder.invoke(Level::Serializable));
            new.extend_from_slice(&encode_list(&numbers));
            current = Some((at, attempt, version, number, numbers.len()));
            true
        };
        let commit = at_key!(keys[0], &objects.map, &objects.table, object => {
            by!(by_session, db, who => who.update_many(object, &names, change))
        });
        let done = match (current, commit) {
            (None, commit) => commit.map(|commit| commit.forget()),
            (Some((last, mut attempt, _, number, length)), commit) => {
                attempt.operations.push(Operation::Append(keys[last], number));
                recorder.shared.note_length(keys[last], length);
                match commit {
                    // The newest version is that of the last element.
                    Ok(commit) => self.end_single(attempt, Ok(commit), None),
                    // It may be the next element that has failed, before its closure ran, and this one has committed.
                    Err(error) => {
                        recorder.end(attempt, Outcome::Unknown);
                        Err(error)
                    }
                }
            }
        };
        self.number(from, serial, by_session);
        self.session = session;
        done
    }

    /// Overwrites some registers in a batch, in which each is written by itself.
    fn write_many(&mut self) -> kiln::Result<()> {
        let (db, objects) = (self.db, self.objects);
        let keys = self.keys_for_batch(|worker| worker.recorder.shared.register(&mut worker.random));
        let written: Vec<_> = keys.iter().map(|&key| (key, self.recorder.number())).collect();
        let entries: Vec<_> =
            written.iter().map(|&(key, number)| (encode_key(key), encode(key, number))).collect();
        let operations = written.iter().map(|&(key, number)| Operation::Write(key, number));
        self.change_many(operations.collect(), |by_session| {
            at_key!(keys[0], &objects.registers, &objects.ordered_registers, object => {
                by!(by_session, db, who => who.put_many(object, &entries).map(version_of))
            })
        })
    }

    /// Adds to some tallies in a batch, in which each is added to by itself.
    fn add_many(&mut self) -> kiln::Result<()> {
        let (db, objects) = (self.db, self.objects);
        let keys = self.keys_for_batch(|worker| worker.recorder.shared.unanswered_tally(&mut worker.random));
        let deltas: Vec<_> = keys.iter().map(|&key| (encode_key(key), 1)).collect();
        let operations = keys.iter().map(|&key| Operation::Add(key, None));
        self.change_many(operations.collect(), |by_session| {
            at_key!(keys[0], &objects.tallies, &objects.ordered_tallies, object => {
                by!(by_session, db, who => who.add_many(object, &deltas).map(version_of))
            })
        })
    }

    /// A batch of operations, each a transaction of its own. Their versions are known if the clock has stood still.
    fn change_many(
        &mut self,
        operations: Vec<Operation>,
        run: impl FnOnce(Option<&Session>) -> kiln::Result<Version>,
    ) -> kiln::Result<()> {
        let session = self.session.take();
        let by_session = session.as_ref().filter(|_| self.random.one_in(2));
        let (from, serial) = (self.recorder.transactions.len(), by_session.map(Session::serial));
        let attempts: Vec<Attempt> =
            operations.iter().map(|_| self.recorder.invoke(Level::Serializable)).collect();
        let version = self.db.version().number();
        let newest = run(by_session);
        let outcome = match &newest {
            Ok(newest) if newest.number() == version => Outcome::Committed(Some(version)),
            _ => Outcome::Unknown,
        };
        for (operation, mut attempt) in operations.into_iter().zip(attempts) {
            attempt.operations.push(operation);
            self.recorder.end(attempt, outcome);
        }
        self.number(from, serial, by_session);
        self.session = session;
        newest.map(drop)
    }

    /// Gives the transactions of a batch their serial numbers, which tell how many have committed, if a session has run it.
    fn number(&mut self, from: usize, serial: Option<u64>, by_session: Option<&Session>) {
        let Some((before, session)) = serial.zip(by_session) else { return };
        let after = session.serial();
        for (serial, transaction) in (before + 1..).zip(&mut self.recorder.transactions[from..]) {
            if serial <= after {
                transaction.serial = Some(serial);
            } else {
                transaction.outcome = Outcome::Aborted;
            }
        }
    }
}

/// The newest version of a batch, for whose durability nobody waits.
fn version_of(commit: Commit<'_, ()>) -> Version {
    let version = commit.version();
    commit.forget();
    version
}
