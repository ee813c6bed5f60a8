//! An actor with a session: it must learn after a restart exactly how many of its writes survived.

use std::time::{Duration, Instant};

use redis::{Connection, RedisResult, cmd};

use crate::support::Random;

use super::{Actor, Mode, number_of, numbered_value, wait_limit};

/// Writes the serial number of each write as its value.
#[derive(Debug)]
pub(crate) struct Session {
    id: usize,
    mode: Mode,
    /// The last serial that was acknowledged as durable.
    durable: u64,
    /// The last serial that was acknowledged in some way.
    answered: u64,
    /// The last serial that was asked for.
    asked: u64,
    writes: u64,
}

impl Session {
    /// A session of its own. Fast sessions wait for durability now and then.
    pub(crate) fn new(id: usize, mode: Mode) -> Session {
        Session { id, mode, durable: 0, answered: 0, asked: 0, writes: 0 }
    }

    fn key(&self) -> String {
        format!("session:{}", self.id)
    }

    fn name(&self) -> String {
        format!("client-{}", self.id)
    }

    /// Names the connection's session. A connection that has just been closed still holds it until the server notices.
    fn open(&self, connection: &mut Connection) -> RedisResult<u64> {
        let end = Instant::now() + Duration::from_secs(10);
        loop {
            let result = cmd("KILN").arg("SESSION").arg(self.name()).query(connection);
            let in_use = result.as_ref().is_err_and(|error| !error.is_io_error());
            if !in_use || Instant::now() > end {
                return result;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

impl Actor for Session {
    fn begin(&mut self, connection: &mut Connection) -> RedisResult<()> {
        self.mode.set(connection)?;
        let recovered = self.open(connection)?;
        assert_eq!(
            recovered,
            self.asked,
            "{}: the recovered serial differs from that at the check",
            self.name()
        );
        Ok(())
    }

    fn step(&mut self, connection: &mut Connection, random: &mut Random) -> RedisResult<()> {
        self.asked += 1;
        cmd("SET").arg(self.key()).arg(numbered_value(self.asked, random)).exec(connection)?;
        self.answered = self.asked;
        self.writes += 1;
        if self.mode == Mode::Safe {
            self.durable = self.asked;
        } else if random.one_in(32) {
            let version: u64 = cmd("KILN").arg("RECEIPT").query(connection)?;
            let limit = wait_limit(random);
            let durable: u64 = cmd("KILN").arg("WAIT").arg(version).arg(limit).query(connection)?;
            assert!(
                durable == 1 || limit > 0,
                "KILN WAIT without a limit returned before the write was durable"
            );
            if durable == 1 {
                self.durable = self.asked;
            }
        }
        if random.one_in(64) {
            let serial: u64 = cmd("KILN").arg("SERIAL").query(connection)?;
            assert_eq!(serial, self.asked, "{}: the serial is not the number of writes", self.name());
        }
        Ok(())
    }

    fn check(&mut self, connection: &mut Connection) -> RedisResult<()> {
        let recovered = self.open(connection)?;
        let value: Option<Vec<u8>> = cmd("GET").arg(self.key()).query(connection)?;
        let found = number_of(value.as_deref());
        let (name, durable, asked) = (self.name(), self.durable, self.asked);
        assert_eq!(
            recovered, found,
            "{name}: recovered serial and data differ (durable {durable}, asked {asked})"
        );
        assert!(recovered >= durable, "{name}: serial {durable} was durable, {recovered} is recovered");
        assert!(recovered <= asked, "{name}: serial {asked} was the last, {recovered} is recovered");
        (self.durable, self.answered, self.asked) = (recovered, recovered, recovered);
        Ok(())
    }

    fn settle(&mut self) {
        self.durable = self.answered;
    }

    fn acknowledged(&self) -> u64 {
        self.writes
    }
}
