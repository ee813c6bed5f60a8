//! Actors that share keys: what one transaction writes is seen whole by everybody, at every moment and after every kill.

use redis::{Connection, RedisResult, Value, cmd, pipe};

use crate::support::Random;

use super::{Actor, Mode, number_of, numbered_value};

/// How many accounts there are.
const ACCOUNT_COUNT: usize = 12;
/// What each account holds at first.
const ACCOUNT_START: i64 = 1000;
/// How many pairs of keys there are.
const PAIR_COUNT: usize = 6;

fn account(at: usize) -> String {
    format!("account:{at}")
}

fn pair(at: usize) -> [String; 2] {
    [format!("pair:{at}:left"), format!("pair:{at}:right")]
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

fn check_accounts(connection: &mut Connection) -> RedisResult<()> {
    let keys: Vec<String> = (0..ACCOUNT_COUNT).map(account).collect();
    let balances: Vec<i64> = cmd("MGET").arg(&keys).query(connection)?;
    let sum: i64 = balances.iter().sum();
    assert_eq!(sum, ACCOUNT_START * ACCOUNT_COUNT as i64, "half a transfer is there: {balances:?}");
    assert!(balances.iter().all(|&balance| balance >= 0), "an account is overdrawn: {balances:?}");
    Ok(())
}

fn check_pair(connection: &mut Connection, at: usize) -> RedisResult<()> {
    let keys = pair(at);
    let (left, right): (Option<Vec<u8>>, Option<Vec<u8>>) = cmd("MGET").arg(&keys).query(connection)?;
    let (left, right) = (number_of(left.as_deref()), number_of(right.as_deref()));
    assert_eq!(left, right, "half a transaction is there: {} and {} differ", keys[0], keys[1]);
    Ok(())
}

/// Moves amounts between accounts, if the first holds enough.
#[derive(Debug)]
pub(crate) struct Transfers {
    mode: Mode,
    count: u64,
}

impl Transfers {
    /// Some transfers.
    pub(crate) fn new(mode: Mode) -> Transfers {
        Transfers { mode, count: 0 }
    }
}

impl Actor for Transfers {
    fn begin(&mut self, connection: &mut Connection) -> RedisResult<()> {
        self.mode.set(connection)
    }

    fn step(&mut self, connection: &mut Connection, random: &mut Random) -> RedisResult<()> {
        let from = random.below(ACCOUNT_COUNT);
        let to = (from + 1 + random.below(ACCOUNT_COUNT - 1)) % ACCOUNT_COUNT;
        let (from, to, amount) = (account(from), account(to), 1 + random.below(400) as i64);
        cmd("WATCH").arg(&from).exec(connection)?;
        let balance: i64 = cmd("GET").arg(&from).query(connection)?;
        if balance < amount {
            return cmd("UNWATCH").exec(connection);
        }
        let mut transaction = pipe();
        transaction.atomic().cmd("DECRBY").arg(&from).arg(amount).cmd("INCRBY").arg(&to).arg(amount);
        // A nil reply says that somebody else has changed the account since it was watched.
        if let Some((left, _)) = transaction.query::<Option<(i64, i64)>>(connection)? {
            assert_eq!(
                left,
                balance - amount,
                "{from} was watched, has changed, and the transaction went through"
            );
            self.count += 1;
        }
        Ok(())
    }

    fn check(&mut self, connection: &mut Connection) -> RedisResult<()> {
        check_accounts(connection)
    }

    fn acknowledged(&self) -> u64 {
        self.count
    }
}

/// Writes one number to two keys at once.
#[derive(Debug)]
pub(crate) struct Pairs {
    id: u64,
    mode: Mode,
    count: u64,
}

impl Pairs {
    /// A writer whose numbers no other writer has, if there are fewer than a hundred writers.
    pub(crate) fn new(id: u64, mode: Mode) -> Pairs {
        Pairs { id, mode, count: 0 }
    }
}

impl Actor for Pairs {
    fn begin(&mut self, connection: &mut Connection) -> RedisResult<()> {
        self.mode.set(connection)
    }

    fn step(&mut self, connection: &mut Connection, random: &mut Random) -> RedisResult<()> {
        let [left, right] = pair(random.below(PAIR_COUNT));
        let number = (self.count + 1) * 100 + self.id;
        // The sizes differ, so that the two records lie at unlike places of pages and sectors.
        let values = [numbered_value(number, random), numbered_value(number, random)];
        if random.one_in(2) {
            cmd("MSET").arg(left).arg(&values[0]).arg(right).arg(&values[1]).exec(connection)?;
        } else {
            let mut transaction = pipe();
            transaction.atomic().cmd("SET").arg(left).arg(&values[0]).cmd("SET").arg(right).arg(&values[1]);
            let _: Value = transaction.query(connection)?;
        }
        self.count += 1;
        Ok(())
    }

    fn check(&mut self, connection: &mut Connection) -> RedisResult<()> {
        (0..PAIR_COUNT).try_for_each(|at| check_pair(connection, at))
    }

    fn acknowledged(&self) -> u64 {
        self.count
    }
}

/// Reads what [`Transfers`] and [`Pairs`] write while they do.
#[derive(Debug, Default)]
pub(crate) struct Auditor;

impl Actor for Auditor {
    fn begin(&mut self, _: &mut Connection) -> RedisResult<()> {
        Ok(())
    }

    fn step(&mut self, connection: &mut Connection, random: &mut Random) -> RedisResult<()> {
        if random.one_in(2) {
            check_accounts(connection)
        } else {
            check_pair(connection, random.below(PAIR_COUNT))
        }
    }

    fn check(&mut self, _: &mut Connection) -> RedisResult<()> {
        Ok(())
    }

    fn acknowledged(&self) -> u64 {
        0
    }
}
