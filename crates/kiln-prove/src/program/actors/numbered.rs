//! Actors that write numbers to keys of their own.

use redis::{Connection, RedisResult, cmd, pipe};

use crate::support::Random;

use super::{Actor, Mode, number_of, numbered_value, wait_limit};

/// Keys of one safe writer.
const KEY_COUNT: usize = 40;

/// Numbers of one key.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Numbers {
    /// Acknowledged as durable: must be there, or a later one.
    acknowledged: u64,
    /// Acknowledged in some way.
    answered: u64,
    /// Asked for: nothing later may be there.
    asked: u64,
    /// How what is durable came to be known as that.
    told_by: &'static str,
}

impl Numbers {
    pub(super) fn check(&mut self, found: u64, key: &str) {
        let Numbers { acknowledged, asked, told_by, .. } = *self;
        assert!(
            found >= acknowledged,
            "{key}: {acknowledged} was acknowledged as safe, by {told_by}, and {found} is there"
        );
        assert!(found <= asked, "{key}: {asked} was the last to be written, and {found} is there");
        // What was recovered is durable, and the next restart must not go back behind it.
        *self = Numbers { acknowledged: found, answered: found, asked: found, told_by: "an earlier run" };
    }

    /// The next number to ask for.
    pub(super) fn ask(&mut self) -> u64 {
        self.asked += 1;
        self.asked
    }

    /// What was asked for was refused.
    pub(super) fn take_back(&mut self) {
        self.asked -= 1;
    }

    /// The last number that was asked for.
    pub(super) fn last(&self) -> u64 {
        self.asked
    }

    /// What was asked for was acknowledged, as durable or not.
    pub(super) fn answer(&mut self, is_durable: bool) {
        self.answered = self.asked;
        if is_durable {
            self.acknowledged = self.asked;
            self.told_by = "an answer";
        }
    }

    /// What was acknowledged in some way is durable.
    pub(super) fn settle(&mut self) {
        self.acknowledged = self.answered;
        self.told_by = "an orderly end";
    }
}

/// Writes numbered values, safe, some at a time on one connection.
#[derive(Debug)]
pub(crate) struct SafeWriter {
    id: usize,
    keys: Vec<Numbers>,
    writes: u64,
}

impl SafeWriter {
    /// A writer with keys that no other number has.
    pub(crate) fn new(id: usize) -> SafeWriter {
        SafeWriter { id, keys: vec![Numbers::default(); KEY_COUNT], writes: 0 }
    }

    fn key(&self, at: usize) -> String {
        format!("safe:{}:{at}", self.id)
    }
}

impl Actor for SafeWriter {
    fn begin(&mut self, connection: &mut Connection) -> RedisResult<()> {
        Mode::Safe.set(connection)
    }

    fn step(&mut self, connection: &mut Connection, random: &mut Random) -> RedisResult<()> {
        let first = random.below(KEY_COUNT);
        let count = 1 + random.below(8);
        let written: Vec<usize> = (first..first + count).map(|at| at % KEY_COUNT).collect();
        let mut pipeline = pipe();
        for &at in &written {
            let value = numbered_value(self.keys[at].ask(), random);
            pipeline.cmd("SET").arg(self.key(at)).arg(value);
        }
        connection.send_packed_command(&pipeline.get_packed_pipeline())?;
        // One by one: where the answers break off, those before hold.
        for &at in &written {
            connection.recv_response()?.extract_error()?;
            self.keys[at].answer(true);
            self.writes += 1;
        }
        Ok(())
    }

    fn check(&mut self, connection: &mut Connection) -> RedisResult<()> {
        let names: Vec<String> = (0..KEY_COUNT).map(|at| self.key(at)).collect();
        let values: Vec<Option<Vec<u8>>> = cmd("MGET").arg(&names).query(connection)?;
        for ((numbers, name), value) in self.keys.iter_mut().zip(&names).zip(values) {
            numbers.check(number_of(value.as_deref()), name);
        }
        Ok(())
    }

    fn acknowledged(&self) -> u64 {
        self.writes
    }
}

/// Writes the same number to two keys in turn, fast, and sometimes waits until it is durable.
#[derive(Debug)]
pub(crate) struct FastWriter {
    id: usize,
    first: Numbers,
    second: Numbers,
    writes: u64,
}

impl FastWriter {
    /// A writer with keys that no other number has.
    pub(crate) fn new(id: usize) -> FastWriter {
        FastWriter { id, first: Numbers::default(), second: Numbers::default(), writes: 0 }
    }

    fn keys(&self) -> [String; 2] {
        [format!("fast:{}:first", self.id), format!("fast:{}:second", self.id)]
    }
}

impl Actor for FastWriter {
    fn begin(&mut self, connection: &mut Connection) -> RedisResult<()> {
        Mode::Fast.set(connection)?;
        if self.second.asked < self.first.asked {
            // The kill came between the two writes of a step: the step is finished first, or a kill in the next one would
            // leave them two apart.
            self.second.asked = self.first.asked;
            let value = format!("{:020}", self.second.asked);
            cmd("SET").arg(&self.keys()[1]).arg(value).exec(connection)?;
            self.second.answer(false);
        }
        Ok(())
    }

    fn step(&mut self, connection: &mut Connection, random: &mut Random) -> RedisResult<()> {
        let [first, second] = self.keys();
        cmd("SET").arg(first).arg(numbered_value(self.first.ask(), random)).exec(connection)?;
        self.first.answer(false);
        self.second.asked = self.first.asked;
        cmd("SET").arg(second).arg(numbered_value(self.second.asked, random)).exec(connection)?;
        self.second.answer(false);
        self.writes += 2;
        if random.one_in(32) {
            let limit = wait_limit(random);
            let (local, replicas): (u64, u64) = cmd("WAITAOF").arg(1).arg(0).arg(limit).query(connection)?;
            assert_eq!(replicas, 0, "there are no replicas");
            assert!(
                local == 1 || limit > 0,
                "WAITAOF without a limit returned before the writes were durable"
            );
            if local == 1 {
                self.first.answer(true);
                self.second.answer(true);
            }
        }
        Ok(())
    }

    fn check(&mut self, connection: &mut Connection) -> RedisResult<()> {
        let [first_key, second_key] = self.keys();
        let (first, second): (Option<Vec<u8>>, Option<Vec<u8>>) =
            cmd("MGET").arg(&first_key).arg(&second_key).query(connection)?;
        let (first, second) = (number_of(first.as_deref()), number_of(second.as_deref()));
        self.first.check(first, &first_key);
        self.second.check(second, &second_key);
        // A step always writes the first key before the second; so a state that is a prefix has them equal, or one apart.
        assert!(
            first == second || first == second + 1,
            "{first_key} is {first} and {second_key} is {second}: a later write survived and an earlier one did not"
        );
        Ok(())
    }

    fn settle(&mut self) {
        self.first.settle();
        self.second.settle();
    }

    fn acknowledged(&self) -> u64 {
        self.writes
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::*;
    use crate::program::fake::Fake;
    use crate::program::server::connect;

    /// Of a pipeline of which some writes were answered, and others not, none was called acknowledged.
    #[test]
    fn c5_what_was_answered_of_a_pipeline_that_broke_off_must_be_there() {
        const ANSWERS: usize = 3;
        let fake = Fake::start(ANSWERS);
        let mut broken_off = 0;
        for seed in 0..20 {
            let mut writer = SafeWriter::new(0);
            let mut connection = connect(fake.port()).unwrap();
            writer.begin(&mut connection).unwrap();
            writer.step(&mut connection, &mut Random::new(seed)).unwrap_or_default();
            // One of the answers was to the setting of the mode.
            let asked = writer.keys.iter().filter(|numbers| numbers.asked > 0).count();
            assert_eq!(writer.writes as usize, asked.min(ANSWERS - 1), "seed {seed}");
            broken_off += usize::from(asked > ANSWERS - 1);
            let nothing = || writer.keys.iter_mut().for_each(|numbers| numbers.check(0, "a key"));
            assert!(catch_unwind(AssertUnwindSafe(nothing)).is_err(), "seed {seed}: a lost write");
        }
        assert!(broken_off > 5, "{broken_off}");
    }
}
