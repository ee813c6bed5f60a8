//! Actors of a database that is flushed again and again: a flush, and what its transaction writes, is there whole or not at all.

use redis::{Connection, RedisResult, Value, cmd, pipe};

use crate::support::Random;

use super::numbered::Numbers;
use super::{Actor, Mode, number_of, numbered_value, wait_limit};

/// The key of the number that all keys have.
const GENERATION: &str = "generation";
/// Other keys, at most.
const ITEM_COUNT: u64 = 12;
/// Every so many numbers nothing is there but the flush.
const EMPTY_EVERY: u64 = 5;

fn item(at: u64) -> String {
    format!("item:{at:02}")
}

/// How many keys there are at a number.
fn key_count(number: u64) -> u64 {
    match number % EMPTY_EVERY {
        0 => 0,
        _ => 1 + number % (ITEM_COUNT + 1),
    }
}

/// All keys that may be there, in order.
fn keys() -> Vec<String> {
    std::iter::once(GENERATION.to_owned()).chain((0..ITEM_COUNT).map(item)).collect()
}

/// Reads everything, which must be of one number: none if nothing is there.
fn read_all(connection: &mut Connection) -> RedisResult<Option<u64>> {
    let values: Vec<Option<Vec<u8>>> = cmd("MGET").arg(keys()).query(connection)?;
    let numbers: Vec<u64> = values.iter().map(|value| number_of(value.as_deref())).collect();
    let number = numbers[0];
    let expected = |at: usize| if (at as u64) < key_count(number) { number } else { 0 };
    let is_whole = (0..).zip(&numbers).all(|(at, &found)| found == expected(at));
    assert!(is_whole, "half a flush is there, or half of what came with it: {numbers:?}");
    Ok((number > 0).then_some(number))
}

/// Writes all keys anew in the transaction that flushes them, or flushes and writes nothing.
#[derive(Debug)]
pub(crate) struct Flusher {
    mode: Mode,
    numbers: Numbers,
    writes: u64,
}

impl Flusher {
    /// The only one of its database.
    pub(crate) fn new(mode: Mode) -> Flusher {
        Flusher { mode, numbers: Numbers::default(), writes: 0 }
    }
}

impl Actor for Flusher {
    fn begin(&mut self, connection: &mut Connection) -> RedisResult<()> {
        self.mode.set(connection)
    }

    fn step(&mut self, connection: &mut Connection, random: &mut Random) -> RedisResult<()> {
        let number = self.numbers.ask();
        let mut pipeline = pipe();
        pipeline.ignore_errors();
        match key_count(number) {
            0 => {
                pipeline.cmd("FLUSHDB");
            }
            count => {
                pipeline.cmd("MULTI");
                if random.one_in(4) {
                    pipeline.cmd("SET").arg(item(0)).arg("flushed").cmd("FLUSHDB");
                }
                pipeline.cmd("FLUSHDB");
                for key in &keys()[..count as usize] {
                    pipeline.cmd("SET").arg(key).arg(numbered_value(number, random));
                }
                if random.one_in(2) {
                    pipeline.cmd("INFO").arg("keyspace");
                }
                pipeline.cmd("EXEC");
            }
        }
        let answers: Vec<RedisResult<Value>> = pipeline.query(connection)?;
        match answers.into_iter().next_back().expect("each command has an answer") {
            Ok(_) => self.numbers.answer(self.mode == Mode::Safe),
            // Nothing was done, since what earlier flushes have left is still to be emptied.
            Err(error) if error.code() == Some("BUSY") => {
                self.numbers.take_back();
                return Ok(());
            }
            Err(error) => return Err(error),
        }
        self.writes += 1;
        if self.mode == Mode::Fast && random.one_in(16) {
            let limit = wait_limit(random);
            let (local, _): (u64, u64) = cmd("WAITAOF").arg(1).arg(0).arg(limit).query(connection)?;
            if local == 1 {
                self.numbers.answer(true);
            }
        }
        Ok(())
    }

    fn check(&mut self, connection: &mut Connection) -> RedisResult<()> {
        let found = read_all(connection)?;
        let last_empty = self.numbers.last() / EMPTY_EVERY * EMPTY_EVERY;
        self.numbers.check(found.unwrap_or(last_empty), "the flushed database");
        Ok(())
    }

    fn settle(&mut self) {
        self.numbers.settle();
    }

    fn acknowledged(&self) -> u64 {
        self.writes
    }
}

/// Reads what a [`Flusher`] writes while it does, and asks for the server's state.
#[derive(Debug, Default)]
pub(crate) struct Onlooker;

impl Actor for Onlooker {
    fn begin(&mut self, _: &mut Connection) -> RedisResult<()> {
        Ok(())
    }

    fn step(&mut self, connection: &mut Connection, random: &mut Random) -> RedisResult<()> {
        match random.below(4) {
            0 => {
                let (_, info): (Value, String) =
                    pipe().cmd("GET").arg(GENERATION).cmd("INFO").query(connection)?;
                assert!(info.contains("# Keyspace"), "INFO leaves something out: {info}");
            }
            1 => {
                let mut found: Vec<String> = cmd("KEYS").arg("*").query(connection)?;
                found.sort_unstable();
                let expected = &keys()[..found.len()];
                assert_eq!(found, expected, "these keys were never there together");
            }
            _ => drop(read_all(connection)?),
        }
        Ok(())
    }

    fn check(&mut self, _: &mut Connection) -> RedisResult<()> {
        Ok(())
    }

    fn acknowledged(&self) -> u64 {
        0
    }
}
