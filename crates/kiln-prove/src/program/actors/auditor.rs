//! An actor that reads what others share: what one transaction writes is seen whole by everybody, at every moment.

use redis::{Connection, RedisResult};

use crate::support::Random;

use super::Actor;
use super::pairs::check_some_pair;
use super::transfers::check_accounts;

/// Reads what [`Transfers`](super::Transfers) and [`Pairs`](super::Pairs) write while they do.
#[derive(Debug, Default)]
pub(crate) struct Auditor;

impl Actor for Auditor {
    fn begin(&mut self, _: &mut Connection) -> RedisResult<()> {
        Ok(())
    }

    fn step(&mut self, connection: &mut Connection, random: &mut Random) -> RedisResult<()> {
        match random.one_in(2) {
            true => check_accounts(connection),
            false => check_some_pair(connection, random),
        }
    }

    fn check(&mut self, _: &mut Connection) -> RedisResult<()> {
        Ok(())
    }

    fn acknowledged(&self) -> u64 {
        0
    }
}
