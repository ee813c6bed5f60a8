//! Pairs of keys that are written at once: both have the same number, and one that nothing that was acknowledged as safe has come after.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use redis::{Connection, RedisResult, Value, cmd, pipe};

use crate::support::Random;

use super::{Actor, Mode, number_of, numbered_value};

/// How many pairs of keys there are.
const PAIR_COUNT: usize = 6;
/// Numbers are so far apart that each client has its own.
const CLIENTS_MAX: u64 = 100;

fn pair(at: usize) -> [String; 2] {
    [format!("pair:{at}:left"), format!("pair:{at}:right")]
}

fn read_pair(connection: &mut Connection, at: usize) -> RedisResult<u64> {
    let keys = pair(at);
    let (left, right): (Option<Vec<u8>>, Option<Vec<u8>>) = cmd("MGET").arg(&keys).query(connection)?;
    let (left, right) = (number_of(left.as_deref()), number_of(right.as_deref()));
    assert_eq!(left, right, "half a transaction is there: {} and {} differ", keys[0], keys[1]);
    Ok(left)
}

/// Reads one of the pairs, which is whole.
pub(super) fn check_some_pair(connection: &mut Connection, random: &mut Random) -> RedisResult<()> {
    read_pair(connection, random.below(PAIR_COUNT)).map(drop)
}

/// A moment of the clients' one clock.
type Moment = u64;

/// When a number was asked for, and answered, if it was.
#[derive(Clone, Copy, Debug)]
struct Asked {
    at: Moment,
    answered: Option<Moment>,
}

/// What is known of one pair. Several clients write it at once, so that of two numbers whose times overlap either may be the last.
#[derive(Debug, Default)]
struct Known {
    /// The numbers since the last look, and the one that was found then.
    asked: HashMap<u64, Asked>,
    /// When the latest of those was asked for that are durable: what had been answered before must have been overwritten.
    durable_since: Moment,
}

/// What all clients know of the pairs.
#[derive(Debug, Default)]
struct Book {
    now: Moment,
    pairs: [Known; PAIR_COUNT],
}

impl Book {
    fn tick(&mut self) -> Moment {
        self.now += 1;
        self.now
    }

    fn ask(&mut self, at: usize, number: u64) {
        let asked = Asked { at: self.tick(), answered: None };
        self.pairs[at].asked.insert(number, asked);
    }

    fn answer(&mut self, at: usize, number: u64, is_durable: bool) {
        let (now, known) = (self.tick(), &mut self.pairs[at]);
        let Some(asked) = known.asked.get_mut(&number) else { return };
        asked.answered = Some(now);
        if is_durable {
            known.durable_since = known.durable_since.max(asked.at);
        }
    }

    /// All that was answered is durable.
    fn settle(&mut self) {
        for known in &mut self.pairs {
            let answered = known.asked.values().filter(|asked| asked.answered.is_some());
            known.durable_since = answered.map(|asked| asked.at).fold(known.durable_since, Moment::max);
        }
    }

    /// A number was found after a restart, with nobody at work.
    fn check(&mut self, at: usize, found: u64) {
        let (now, known) = (self.tick(), &mut self.pairs[at]);
        let keys = pair(at);
        if found == 0 {
            assert_eq!(
                known.durable_since, 0,
                "{}: a number was acknowledged as safe, and nothing is there",
                keys[0]
            );
            known.asked.clear();
            return;
        }
        let asked = known.asked.get(&found);
        let asked = asked.unwrap_or_else(|| panic!("{}: nobody has written {found} of late", keys[0]));
        let was_overwritten = asked.answered.is_some_and(|answered| answered < known.durable_since);
        assert!(
            !was_overwritten,
            "{}: {found} is there, over which another number was acknowledged as safe",
            keys[0]
        );
        // What was recovered is durable, and the next restart must not go back behind it.
        known.asked = HashMap::from([(found, Asked { at: now, answered: Some(now) })]);
        known.durable_since = now;
    }
}

/// Writes one number to two keys at once.
#[derive(Debug)]
pub(crate) struct Pairs {
    id: u64,
    mode: Mode,
    book: Arc<Mutex<Book>>,
    /// The last number, which no other client has.
    number: u64,
    count: u64,
}

impl Pairs {
    /// Clients with pairs in common, each with its mode.
    pub(crate) fn clients(modes: [Mode; 2]) -> impl Iterator<Item = Pairs> {
        let book = Arc::<Mutex<Book>>::default();
        let client = move |(id, mode)| Pairs { id, mode, book: book.clone(), number: 0, count: 0 };
        (0..).zip(modes).map(client)
    }

    fn book(&self) -> MutexGuard<'_, Book> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Actor for Pairs {
    fn begin(&mut self, connection: &mut Connection) -> RedisResult<()> {
        self.mode.set(connection)
    }

    fn step(&mut self, connection: &mut Connection, random: &mut Random) -> RedisResult<()> {
        let at = random.below(PAIR_COUNT);
        let [left, right] = pair(at);
        self.number += 1;
        let number = self.number * CLIENTS_MAX + self.id;
        // The sizes differ, so that the two records lie at unlike places of pages and sectors.
        let values = [numbered_value(number, random), numbered_value(number, random)];
        self.book().ask(at, number);
        if random.one_in(2) {
            cmd("MSET").arg(left).arg(&values[0]).arg(right).arg(&values[1]).exec(connection)?;
        } else {
            let mut transaction = pipe();
            transaction.atomic().cmd("SET").arg(left).arg(&values[0]).cmd("SET").arg(right).arg(&values[1]);
            let _: Value = transaction.query(connection)?;
        }
        self.book().answer(at, number, self.mode == Mode::Safe);
        self.count += 1;
        Ok(())
    }

    fn check(&mut self, connection: &mut Connection) -> RedisResult<()> {
        (0..PAIR_COUNT).try_for_each(|at| {
            let found = read_pair(connection, at)?;
            self.book().check(at, found);
            Ok(())
        })
    }

    fn settle(&mut self) {
        self.book().settle();
    }

    fn acknowledged(&self) -> u64 {
        self.count
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::*;

    fn notices(book: &mut Book, found: u64) -> bool {
        catch_unwind(AssertUnwindSafe(|| book.check(0, found))).is_err()
    }

    /// A book in which 1 was answered before 2 and 3 were asked for, at once, of which 3 was acknowledged as safe.
    fn book() -> Book {
        let mut book = Book::default();
        book.ask(0, 1);
        book.answer(0, 1, false);
        book.ask(0, 2);
        book.ask(0, 3);
        book.answer(0, 2, false);
        book.answer(0, 3, true);
        book
    }

    /// A pair that a safe `MSET` or `EXEC` had written was whole after a kill, and an older one, and nobody noticed.
    #[test]
    fn c5_a_pair_that_was_acknowledged_as_safe_must_be_there_or_a_later_one() {
        assert!(notices(&mut book(), 0), "nothing is there");
        assert!(notices(&mut book(), 1), "what was overwritten is there");
        assert!(notices(&mut book(), 4), "nobody has written that");
        // Of two at once either may be the last.
        assert!(!notices(&mut book(), 2));
        assert!(!notices(&mut book(), 3));
        // One that nobody was told of may be, too.
        let mut book = book();
        book.ask(0, 4);
        assert!(!notices(&mut book, 4));
        assert!(!notices(&mut book, 4));
        assert!(notices(&mut book, 3), "the next restart goes back behind what was found");
    }

    #[test]
    fn c5_a_fast_pair_may_be_lost_unless_the_server_has_ended_in_order() {
        let mut book = Book::default();
        book.ask(0, 1);
        book.answer(0, 1, false);
        assert!(!notices(&mut book, 0));
        book.ask(0, 2);
        book.answer(0, 2, false);
        book.settle();
        assert!(notices(&mut book, 0));
    }
}
