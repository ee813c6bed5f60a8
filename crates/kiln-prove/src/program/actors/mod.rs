//! Clients that write, remember what was acknowledged, and check it after a restart.
//!
//! An [`Actor`] has a connection of its own and keys of its own kind, and lives through all rounds: it knows what must be there
//! (acknowledged as durable), and what may be there (asked for, without an answer). Each kind watches over one promise of the
//! contract in `docs/durability.md`:
//!
//! | actor | what it writes | what must hold after a kill |
//! |---|---|---|
//! | [`SafeWriter`] | numbered values, safe, pipelined | every acknowledged write is there, also of a pipeline that was broken off (C5) |
//! | [`FastWriter`] | two keys in turn, fast | the second is never ahead of the first (C4); what `WAITAOF` covered is there |
//! | [`Transfers`] | between accounts, `WATCH` and `MULTI` | the sum is constant, no account is overdrawn (C1, C2); of each client the first are there, the safe ones among them (C4, C5) |
//! | [`Pairs`] | two keys in one `MSET` or `MULTI` | both have the same value (C1), and none that a safe one has overwritten (C5) |
//! | [`Session`] | its serial number, under `KILN SESSION` | the recovered serial is the value, and not before the last safe one (C7) |
//! | [`Auditor`] | nothing: it reads sums and pairs in transactions | they hold at every moment (C2) |
//! | [`Flusher`] | all keys, in the transaction that flushes them | they are of one number, and not before the last safe one (C1, C5) |
//! | [`Onlooker`] | nothing: it reads all keys | they are of one number at every moment (C2), and everybody gets an answer |

mod auditor;
mod flushes;
mod numbered;
mod pairs;
mod session;
mod transfers;

use redis::{Connection, RedisResult};

use crate::support::Random;

pub(crate) use self::auditor::Auditor;
pub(crate) use self::flushes::{Flusher, Onlooker};
pub(crate) use self::numbered::{FastWriter, SafeWriter};
pub(crate) use self::pairs::Pairs;
pub(crate) use self::session::Session;
pub(crate) use self::transfers::{Transfers, create_accounts};

/// A client that lives through all rounds.
pub(crate) trait Actor: Send {
    /// Sets up a new connection, before any other actor steps.
    fn begin(&mut self, connection: &mut Connection) -> RedisResult<()>;

    /// Does one thing, and panics if a reply is wrong. An error of the connection ends the round; the actor then knows what is
    /// in doubt.
    fn step(&mut self, connection: &mut Connection, random: &mut Random) -> RedisResult<()>;

    /// Checks what it wrote, on a new connection after a restart, before anybody writes; panics if a promise was broken.
    fn check(&mut self, connection: &mut Connection) -> RedisResult<()>;

    /// The server has ended in order: all that was acknowledged is durable, fast or not.
    fn settle(&mut self) {}

    /// How many writes were acknowledged so far.
    fn acknowledged(&self) -> u64;
}

/// When a connection's writes are answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// When they are durable.
    Safe,
    /// When they are committed.
    Fast,
}

impl Mode {
    /// Sets the mode of a connection.
    pub(crate) fn set(self, connection: &mut Connection) -> RedisResult<()> {
        let name = match self {
            Mode::Safe => "safe",
            Mode::Fast => "fast",
        };
        redis::cmd("KILN").arg("DURABILITY").arg(name).exec(connection)
    }
}

/// A value that begins with a number and has some more bytes, so that records have all sizes.
fn numbered_value(number: u64, random: &mut Random) -> Vec<u8> {
    let padding = match random.below(256) {
        0..=3 => random.below(60_000),
        4..=40 => random.below(3_000),
        _ => random.below(200),
    };
    let mut value = format!("{number:020}").into_bytes();
    value.resize(value.len() + padding, b'.');
    value
}

/// The longest that a wait for durability may take, in milliseconds: for ever (0), or so short that a server may not keep it,
/// above all one that is stopped meanwhile.
fn wait_limit(random: &mut Random) -> u64 {
    if random.one_in(2) { 0 } else { 1 + random.below(20) as u64 }
}

/// The number that a value begins with; 0 if there is no value.
fn number_of(value: Option<&[u8]>) -> u64 {
    let Some(value) = value else { return 0 };
    let (number, padding) = value.split_at(value.len().min(20));
    assert!(padding.iter().all(|&byte| byte == b'.'), "a value has bytes that nobody wrote");
    let number = std::str::from_utf8(number).ok().and_then(|text| text.parse().ok());
    number.unwrap_or_else(|| {
        panic!("a value begins with {:?}, which nobody wrote", &value[..value.len().min(20)])
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_keep_their_number() {
        let mut random = Random::new(1);
        for number in [0, 1, 77, u64::MAX] {
            assert_eq!(number_of(Some(&numbered_value(number, &mut random))), number);
        }
        assert_eq!(number_of(None), 0);
    }

    #[test]
    #[should_panic(expected = "nobody wrote")]
    fn a_foreign_value_is_noticed() {
        number_of(Some(b"00000000000000000007...x."));
    }
}
