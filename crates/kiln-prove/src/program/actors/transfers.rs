//! Accounts, between which amounts are moved: of what was moved the sum tells that nothing is half there, and numbers which of it is there.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use redis::{Connection, RedisResult, cmd, pipe};

use crate::support::Random;

use super::numbered::Numbers;
use super::{Actor, Mode};

/// How many accounts there are.
const ACCOUNT_COUNT: usize = 12;
/// What each account holds at first.
const ACCOUNT_START: i64 = 1000;
/// Clients that transfer.
const CLIENT_COUNT: usize = 2;

type Balances = [i64; ACCOUNT_COUNT];

fn account(at: usize) -> String {
    format!("account:{at}")
}

/// The key with the number of a client's last transfer, which is written with it.
fn number_key(client: usize) -> String {
    format!("transfers:{client}")
}

/// Puts the same amount into each account.
pub(crate) fn create_accounts(connection: &mut Connection) -> RedisResult<()> {
    Mode::Safe.set(connection)?;
    let mut command = cmd("MSET");
    for at in 0..ACCOUNT_COUNT {
        command.arg(account(at)).arg(ACCOUNT_START);
    }
    command.exec(connection)
}

/// Reads all accounts, which have what they had together at first.
pub(super) fn check_accounts(connection: &mut Connection) -> RedisResult<()> {
    let keys: Vec<String> = (0..ACCOUNT_COUNT).map(account).collect();
    assert_sum(&cmd("MGET").arg(&keys).query::<Vec<i64>>(connection)?);
    Ok(())
}

fn assert_sum(balances: &[i64]) {
    let sum: i64 = balances.iter().sum();
    assert_eq!(sum, ACCOUNT_START * ACCOUNT_COUNT as i64, "half a transfer is there: {balances:?}");
    assert!(balances.iter().all(|&balance| balance >= 0), "an account is overdrawn: {balances:?}");
}

#[derive(Clone, Copy, Debug)]
struct Transfer {
    number: u64,
    from: usize,
    to: usize,
    amount: i64,
}

/// What all clients know of the accounts together.
#[derive(Debug)]
struct Ledger {
    /// What the accounts held when they were looked at last, with nobody at work.
    balances: Balances,
    /// Of each client, how many transfers it has made, and those since the last look that were or may have been made.
    clients: [(Numbers, Vec<Transfer>); CLIENT_COUNT],
}

impl Default for Ledger {
    fn default() -> Ledger {
        Ledger { balances: [ACCOUNT_START; ACCOUNT_COUNT], clients: Default::default() }
    }
}

impl Ledger {
    /// Of each client the transfers up to the number that was found are there, and no others: what was acknowledged as safe among them.
    fn check(&mut self, found: [u64; CLIENT_COUNT], balances: Balances) {
        assert_sum(&balances);
        let mut expected = self.balances;
        for ((client, (numbers, transfers)), found) in self.clients.iter_mut().enumerate().zip(found) {
            numbers.check(found, &number_key(client));
            for Transfer { from, to, amount, .. } in
                transfers.drain(..).filter(|transfer| transfer.number <= found)
            {
                expected[from] -= amount;
                expected[to] += amount;
            }
        }
        assert_eq!(
            balances, expected,
            "the accounts are not what the first {found:?} transfers of each client make of them"
        );
        self.balances = balances;
    }
}

/// Moves amounts between accounts, if the first holds enough.
#[derive(Debug)]
pub(crate) struct Transfers {
    client: usize,
    mode: Mode,
    ledger: Arc<Mutex<Ledger>>,
    count: u64,
}

impl Transfers {
    /// Two clients with accounts in common, each with its mode.
    pub(crate) fn clients(modes: [Mode; CLIENT_COUNT]) -> impl Iterator<Item = Transfers> {
        let ledger = Arc::<Mutex<Ledger>>::default();
        let client = move |(client, mode)| Transfers { client, mode, ledger: ledger.clone(), count: 0 };
        modes.into_iter().enumerate().map(client)
    }

    fn ledger(&self) -> MutexGuard<'_, Ledger> {
        self.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Actor for Transfers {
    fn begin(&mut self, connection: &mut Connection) -> RedisResult<()> {
        self.mode.set(connection)
    }

    fn step(&mut self, connection: &mut Connection, random: &mut Random) -> RedisResult<()> {
        let from = random.below(ACCOUNT_COUNT);
        let to = (from + 1 + random.below(ACCOUNT_COUNT - 1)) % ACCOUNT_COUNT;
        let amount = 1 + random.below(400) as i64;
        cmd("WATCH").arg(account(from)).exec(connection)?;
        let balance: i64 = cmd("GET").arg(account(from)).query(connection)?;
        if balance < amount {
            return cmd("UNWATCH").exec(connection);
        }
        let number = {
            let (numbers, transfers) = &mut self.ledger().clients[self.client];
            let number = numbers.ask();
            transfers.push(Transfer { number, from, to, amount });
            number
        };
        let mut transaction = pipe();
        transaction
            .atomic()
            .cmd("DECRBY")
            .arg(account(from))
            .arg(amount)
            .cmd("INCRBY")
            .arg(account(to))
            .arg(amount)
            .cmd("SET")
            .arg(number_key(self.client))
            .arg(number)
            .ignore();
        // A nil reply says that somebody else has changed the account since it was watched.
        let answer = transaction.query::<Option<(i64, i64)>>(connection)?;
        let Some((left, _)) = answer else {
            let (numbers, transfers) = &mut self.ledger().clients[self.client];
            numbers.take_back();
            transfers.pop();
            return Ok(());
        };
        assert_eq!(
            left,
            balance - amount,
            "{} was watched, has changed, and the transaction went through",
            account(from)
        );
        self.ledger().clients[self.client].0.answer(self.mode == Mode::Safe);
        self.count += 1;
        Ok(())
    }

    fn check(&mut self, connection: &mut Connection) -> RedisResult<()> {
        let keys = (0..ACCOUNT_COUNT).map(account).chain((0..CLIENT_COUNT).map(number_key));
        let values: Vec<Option<i64>> = cmd("MGET").arg(keys.collect::<Vec<_>>()).query(connection)?;
        let at = |at: usize| values[at].unwrap_or_default();
        let found = std::array::from_fn(|client| at(ACCOUNT_COUNT + client) as u64);
        self.ledger().check(found, std::array::from_fn(at));
        Ok(())
    }

    fn settle(&mut self) {
        let client = self.client;
        self.ledger().clients[client].0.settle();
    }

    fn acknowledged(&self) -> u64 {
        self.count
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::*;

    /// A ledger with two transfers of the first client, of which the first is safe, and one of the second.
    fn ledger() -> Ledger {
        let mut ledger = Ledger::default();
        for (client, is_durable) in [(0, true), (1, false), (0, false)] {
            let (numbers, transfers) = &mut ledger.clients[client];
            let number = numbers.ask();
            transfers.push(Transfer { number, from: client, to: 5, amount: 100 });
            numbers.answer(is_durable);
        }
        ledger
    }

    fn with(changes: &[(usize, i64)]) -> Balances {
        let mut balances = [ACCOUNT_START; ACCOUNT_COUNT];
        changes.iter().for_each(|&(account, amount)| balances[account] += amount);
        balances
    }

    fn notices(mut ledger: Ledger, found: [u64; CLIENT_COUNT], balances: Balances) -> bool {
        catch_unwind(AssertUnwindSafe(|| ledger.check(found, balances))).is_err()
    }

    /// A safe `EXEC` whose transfer was gone after a kill, all of it, kept the sum, and nobody noticed.
    #[test]
    fn c5_a_transfer_that_was_acknowledged_as_safe_must_be_there() {
        assert!(!notices(ledger(), [1, 0], with(&[(0, -100), (5, 100)])));
        assert!(!notices(ledger(), [2, 1], with(&[(0, -200), (1, -100), (5, 300)])));
        assert!(notices(ledger(), [0, 0], with(&[])), "the safe transfer is gone");
        assert!(notices(ledger(), [1, 0], with(&[])), "its number is there without it");
        assert!(notices(ledger(), [1, 0], with(&[(1, -100), (5, 100)])), "another one is there instead");
        assert!(notices(ledger(), [3, 0], with(&[(0, -300), (5, 300)])), "nobody has made so many");
    }

    #[test]
    fn c5_an_orderly_end_keeps_all_transfers() {
        let mut ledger = ledger();
        ledger.clients.iter_mut().for_each(|(numbers, _)| numbers.settle());
        assert!(notices(ledger, [1, 1], with(&[(0, -100), (1, -100), (5, 200)])));
    }
}
