//! Who keeps the house beside the load: gives the database's states names, reads them later, also after crashes, and drops the names; and
//! drops an object, and makes one of the same name.

use kiln::{Error, ErrorKind, Kiln, Snapshot};

use super::history::{Key, Level, Operation, Outcome};
use super::operations::{Objects, pause, read_step, reading_step};
use super::passing::pass;
use super::recorder::{Attempt, Recorder};
use crate::support::Random;

/// Names in use: all that is written since the oldest snapshot stays in the log.
pub(crate) const NAMES: Key = 2;
/// Steps of who reads a snapshot, at most.
const READ_MAX: usize = 12;

/// The name of a snapshot.
pub(crate) fn name_of(number: Key) -> String {
    format!("name {number}")
}

/// A thread that keeps snapshots and objects, all of them by itself, and records it.
pub(crate) struct Keeper<'w, 's> {
    pub(crate) db: &'w Kiln,
    pub(crate) objects: &'w Objects,
    pub(crate) recorder: &'w mut Recorder<'s>,
    pub(crate) random: Random,
}

impl Keeper<'_, '_> {
    /// Works until it is told to stop, or the database cannot go on.
    pub(crate) fn work(&mut self) -> kiln::Result<()> {
        while !self.recorder.shared.is_over() {
            if self.random.one_in(2) {
                pass(self.db, self.objects, self.recorder, self.random.next())?;
                self.pause();
                continue;
            }
            let number = self.random.below(NAMES as usize) as Key;
            let has_name = self.db.snapshots().iter().any(|snapshot| snapshot.name == name_of(number));
            if !has_name {
                self.create(number)?;
            } else if self.random.one_in(2) {
                self.drop_name(number)?;
            } else {
                read_named(self.db, self.objects, self.recorder, &mut self.random)?;
            }
            self.pause();
        }
        Ok(())
    }

    fn pause(&mut self) {
        (0..self.random.below(20)).for_each(|_| pause(&mut self.random));
    }

    /// Gives the present state a name, and reads it: all that had been committed before, and all of that durable.
    fn create(&mut self, number: Key) -> kiln::Result<()> {
        let mut attempt = self.recorder.invoke(Level::AsOf(0));
        let version = match self.db.create_snapshot(&name_of(number)) {
            Ok(snapshot) => snapshot.version.number(),
            Err(error) => return self.failed(Operation::Name(number, None), error),
        };
        attempt.operations.push(Operation::Name(number, Some(version)));
        // It has the name, whatever comes of reading it.
        let read = self.read(number, &mut attempt);
        let transaction = self.recorder.end(attempt, Outcome::Committed(None));
        transaction.durable = Some(transaction.times.began);
        read
    }

    fn read(&mut self, number: Key, attempt: &mut Attempt) -> kiln::Result<()> {
        let snapshot = self.db.open_snapshot(&name_of(number))?;
        self.recorder.began(attempt, Level::AsOf(snapshot.version().number()));
        read_steps(&snapshot, self.objects, self.recorder, &mut self.random, attempt)
    }

    fn drop_name(&mut self, number: Key) -> kiln::Result<()> {
        let mut attempt = self.recorder.invoke(Level::Serializable);
        if let Err(error) = self.db.drop_snapshot(&name_of(number)) {
            return self.failed(Operation::Unname(number), error);
        }
        attempt.operations.push(Operation::Unname(number));
        self.recorder.end(attempt, Outcome::Committed(None));
        Ok(())
    }

    /// Nobody knows whether the next opening finds it done.
    fn failed(&mut self, operation: Operation, error: Error) -> kiln::Result<()> {
        let mut attempt = self.recorder.invoke(Level::Serializable);
        attempt.operations.push(operation);
        self.recorder.end(attempt, Outcome::Unknown);
        Err(error)
    }
}

/// Reads a state that has a name, if one of the names is in use.
pub(crate) fn read_named(
    db: &Kiln,
    objects: &Objects,
    recorder: &mut Recorder<'_>,
    random: &mut Random,
) -> kiln::Result<()> {
    let mut attempt = recorder.invoke(Level::Named(0));
    let snapshot = match db.open_snapshot(&name_of(random.below(NAMES as usize) as Key)) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        snapshot => snapshot?,
    };
    recorder.began(&mut attempt, Level::Named(snapshot.version().number()));
    read_steps(&snapshot, objects, recorder, random, &mut attempt)?;
    recorder.end(attempt, Outcome::Committed(None));
    Ok(())
}

fn read_steps(
    snapshot: &Snapshot<'_>,
    objects: &Objects,
    recorder: &Recorder<'_>,
    random: &mut Random,
    attempt: &mut Attempt,
) -> kiln::Result<()> {
    for _ in 0..random.below(READ_MAX) {
        let step = reading_step(recorder.shared, random);
        read_step(snapshot, objects, step, random, attempt)?;
    }
    Ok(())
}
