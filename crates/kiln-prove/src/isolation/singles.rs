//! The load through the library: operations that are transactions of their own, one by one and in batches.

use kiln::Commit;

use super::history::{Key, Level, Operation, Outcome};
use super::library::{Worker, finish};
use super::operations::{at_key, pause};
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
        match self.random.below(8) {
            0 => self.write(),
            1 | 2 => self.read(),
            3 => self.append_by_itself(),
            4 => self.append_by_comparing(),
            5 => self.read_many(),
            6 => self.append_to_many(),
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
        let commit = at_key!(key, &objects.registers, &objects.ordered_registers, object => {
            by!(by_session, db, who => who.put(object, name, value))
        });
        let serial = by_session.map(kiln::Session::serial);
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
        let append = |old: Option<&[u8]>| {
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
            by!(by_session, db, who => who.update(object, encode_key(key), append))
        });
        if commit.is_ok() {
            attempt.operations.push(Operation::Append(key, number));
            recorder.shared.note_length(key, length);
        }
        let done = self.end_single(attempt, commit, by_session.map(kiln::Session::serial));
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
        let done = self.end_single(attempt, commit, by_session.map(kiln::Session::serial));
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
        at_key!(keys[0], &objects.registers, &objects.ordered_registers, object => db.get_many(object, &names, look))
    }

    /// Appends to some lists in a batch, in which each is read and written by itself. An element's version is known if the
    /// clock has stood still from its closure to the next one's.
    fn append_to_many(&mut self) -> kiln::Result<()> {
        let (db, objects) = (self.db, self.objects);
        let keys = self.keys_for_batch(|worker| worker.recorder.shared.list(&mut worker.random));
        let names: Vec<_> = keys.iter().map(|&key| encode_key(key)).collect();
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
        let commit =
            at_key!(keys[0], &objects.map, &objects.table, object => db.update_many(object, &names, change));
        let Some((last, mut attempt, _, number, length)) = current else {
            return commit.map(|commit| commit.forget());
        };
        attempt.operations.push(Operation::Append(keys[last], number));
        recorder.shared.note_length(keys[last], length);
        if let Err(error) = commit {
            // It may be the next element that has failed, before its closure ran, and this one has committed.
            recorder.end(attempt, Outcome::Unknown);
            return Err(error);
        }
        // The newest version is that of the last element.
        self.end_single(attempt, commit, None)
    }

    /// Overwrites some registers in a batch, in which each is written by itself. Their versions are known if the clock has stood
    /// still.
    fn write_many(&mut self) -> kiln::Result<()> {
        let (db, objects) = (self.db, self.objects);
        let keys = self.keys_for_batch(|worker| worker.recorder.shared.register(&mut worker.random));
        let attempts: Vec<(Attempt, u32)> = keys
            .iter()
            .map(|_| (self.recorder.invoke(Level::Serializable), self.recorder.number()))
            .collect();
        let entries: Vec<_> = keys
            .iter()
            .zip(&attempts)
            .map(|(&key, (_, number))| (encode_key(key), encode(key, *number)))
            .collect();
        let version = db.version().number();
        let commit = at_key!(keys[0], &objects.registers, &objects.ordered_registers, object => db.put_many(object, &entries));
        let outcome = match &commit {
            Ok(commit) if commit.version().number() == version => Outcome::Committed(Some(version)),
            _ => Outcome::Unknown,
        };
        for (&key, (mut attempt, number)) in keys.iter().zip(attempts) {
            attempt.operations.push(Operation::Write(key, number));
            self.recorder.end(attempt, outcome);
        }
        commit.map(|commit| commit.forget())
    }
}
