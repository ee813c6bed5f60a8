//! One transaction of the workload, carried out on the engine and on the model at once.
//!
//! A [`Teller`] reads and writes through a transaction, and compares every read, ranges included, with the
//! model under the transaction's own writes.
//!
//! # The invariants of the bank
//!
//! 1. The balances of all accounts and children add up to [`TOTAL`].
//! 2. Every child belongs to an account that exists.
//! 3. Two numbers count the rows of the two tables.
//! 4. Of every pair, the lower half (in the map) is below the upper half (in a table).
//!
//! They hold from the first transaction on, so a state in which a transaction is half there, or in which a
//! later one is there without an earlier one on which it builds, breaks one of them with high probability,
//! besides differing from the model.

use std::ops::Bound;

use kiln::{Expiry, Kiln, Map, Object, Result, Table, Transaction};

use crate::workload::history::{Key, Place, State, Writes, rows_at};

pub(crate) const TOTAL: i64 = 12_000;
pub(crate) const ACCOUNTS: usize = 12;
pub(crate) const FIRST_ACCOUNTS: usize = 6;
pub(crate) const PAIRS: usize = 3;
/// Rows that expire do so at a time that no clock of a simulated disk comes to, and those that have expired did before it began.
const LONG_AFTER: Expiry = Expiry::At(u64::MAX - 1);
const LONG_BEFORE: Expiry = Expiry::At(1);

/// The three objects.
#[derive(Clone)]
pub(crate) struct Objects {
    pub(crate) accounts: Table,
    pub(crate) children: Table,
    pub(crate) numbers: Map,
    /// Some rows expire.
    pub(crate) expires: bool,
}

impl Objects {
    pub(crate) fn open(db: &Kiln) -> Result<Objects> {
        Ok(Objects {
            accounts: db.table("accounts")?,
            children: db.table("children")?,
            numbers: db.map("numbers")?,
            expires: false,
        })
    }

    /// The table at a place that is one.
    pub(crate) fn table(&self, place: Place) -> &Table {
        match place {
            Place::Accounts => &self.accounts,
            Place::Children => &self.children,
            Place::Numbers => panic!("the numbers are a map"),
        }
    }
}

/// Calls a generic method of the engine with the object at a place.
macro_rules! at_place {
    ($objects:expr, $place:expr, $object:ident => $call:expr) => {
        match $place {
            Place::Numbers => {
                let $object = &$objects.numbers;
                $call
            }
            place => {
                let $object = $objects.table(place);
                $call
            }
        }
    };
}
pub(crate) use at_place;

/// Nobody writes now: every object counts the keys that the state has. Tells if one counts others.
pub(crate) fn wrong_key_count(objects: &Objects, state: &State) -> Option<String> {
    [Place::Accounts, Place::Children, Place::Numbers].into_iter().find_map(|place| {
        let counted = at_place!(objects, place, object => object.len());
        let there = rows_at(state, place).count() as u64;
        (counted != there).then(|| format!("{place:?} counts {counted} keys, and has {there}"))
    })
}

pub(crate) fn account_key(number: usize) -> Key {
    format!("a{number:02}").into_bytes()
}

pub(crate) fn child_key(account: &[u8], number: usize) -> Key {
    [account, format!("/{number}").as_bytes()].concat()
}

pub(crate) fn lower_key(pair: usize) -> Key {
    format!("lower{pair}").into_bytes()
}

pub(crate) fn upper_key(pair: usize) -> Key {
    format!("upper{pair}").into_bytes()
}

/// The number that counts the rows of a table.
pub(crate) fn count_key(place: Place) -> Key {
    format!("count of {place:?}").to_lowercase().into_bytes()
}

pub(crate) fn number_of(value: &[u8]) -> i64 {
    value.first_chunk().map_or(i64::MIN, |bytes| i64::from_le_bytes(*bytes))
}

/// A transaction on both sides.
pub(crate) struct Teller<'t, 'db> {
    pub(crate) tx: &'t Transaction<'db>,
    pub(crate) objects: &'t Objects,
    /// The state that the transaction began with.
    pub(crate) before: &'t State,
    pub(crate) writes: Writes,
}

impl<'t, 'db> Teller<'t, 'db> {
    pub(crate) fn new(tx: &'t Transaction<'db>, objects: &'t Objects, before: &'t State) -> Teller<'t, 'db> {
        Teller { tx, objects, before, writes: Writes::new() }
    }

    fn expected(&self, place: Place, key: &[u8]) -> Option<Vec<u8>> {
        let key = (place, key.to_vec());
        match self.writes.get(&key) {
            Some(written) => written.as_deref().map(<[u8]>::to_vec),
            None => self.before.get(&key).map(|value| value.to_vec()),
        }
    }

    pub(crate) fn get(&self, place: Place, key: &[u8]) -> Result<Option<Vec<u8>>> {
        let found = at_place!(self.objects, place, object => self.tx.get(object, key))?;
        assert_eq!(
            found,
            self.expected(place, key),
            "a read of {place:?} {:?}",
            key.escape_ascii().to_string()
        );
        Ok(found)
    }

    pub(crate) fn put(&mut self, place: Place, key: &[u8], value: &[u8]) -> Result<()> {
        let expiry = match self.objects.expires && value.len().is_multiple_of(2) && value.len() < 4_000 {
            true => LONG_AFTER,
            false => Expiry::Never,
        };
        at_place!(self.objects, place, object => self.tx.put_expiring(object, key, value, expiry))?;
        self.writes.insert((place, key.to_vec()), Some(value.into()));
        Ok(())
    }

    pub(crate) fn delete(&mut self, place: Place, key: &[u8]) -> Result<bool> {
        let expected = self.expected(place, key).is_some();
        if self.objects.expires && expected && key.last().is_some_and(|last| last.is_multiple_of(2)) {
            let last = self.get(place, key)?.unwrap_or_default();
            at_place!(self.objects, place, object => self.tx.put_expiring(object, key, &last, LONG_BEFORE))?;
            self.writes.insert((place, key.to_vec()), None);
            return Ok(true);
        }
        let existed = at_place!(self.objects, place, object => self.tx.delete(object, key))?;
        assert_eq!(existed, expected, "a deletion of {place:?} {:?}", key.escape_ascii().to_string());
        if existed {
            self.writes.insert((place, key.to_vec()), None);
        }
        Ok(existed)
    }

    /// Adds to the number that a value begins with; what follows it stays.
    pub(crate) fn change(&mut self, place: Place, key: &[u8], by: i64) -> Result<()> {
        let mut value = self.get(place, key)?.unwrap_or_else(|| vec![0; 8]);
        let sum = number_of(&value) + by;
        value[..8].copy_from_slice(&sum.to_le_bytes());
        self.put(place, key, &value)
    }

    /// The keys with a prefix, in either order.
    pub(crate) fn keys(&self, place: Place, prefix: &[u8], reverse: bool) -> Result<Vec<Key>> {
        let range = self.tx.prefix(self.objects.table(place), prefix);
        let range = if reverse { range.reverse() } else { range };
        let rows = range.collect::<Result<Vec<_>>>()?;
        let mut expected = self.expected_rows(place, prefix);
        if reverse {
            expected.reverse();
        }
        assert_eq!(
            rows,
            expected,
            "the rows of {place:?} that begin with {:?}",
            prefix.escape_ascii().to_string()
        );
        Ok(rows.into_iter().map(|(key, _)| key).collect())
    }

    fn expected_rows(&self, place: Place, prefix: &[u8]) -> Vec<(Key, Vec<u8>)> {
        let mut state = self.before.clone();
        crate::workload::history::apply(&mut state, &self.writes);
        let from = (Bound::Included((place, prefix.to_vec())), Bound::Unbounded);
        let rows = state.range::<(Place, Key), _>(from);
        rows.take_while(|((at, key), _)| *at == place && key.starts_with(prefix))
            .map(|((_, key), value)| (key.clone(), value.to_vec()))
            .collect()
    }
}

/// Checks the invariants; says which one is broken.
pub(crate) fn invariants(state: &State) -> std::result::Result<(), String> {
    if state.is_empty() {
        return Ok(());
    }
    let rows = |wanted: Place, first: u8| {
        let at_place = state.iter().filter(move |((place, _), _)| *place == wanted);
        at_place
            .filter(move |((_, key), _)| key.first() == Some(&first))
            .map(|((_, key), value)| (key, value))
    };
    let balance: i64 = [Place::Accounts, Place::Children]
        .into_iter()
        .flat_map(|place| rows(place, b'a'))
        .map(|(_, value)| number_of(value))
        .sum();
    if balance != TOTAL {
        return Err(format!("the balances add up to {balance}, not to {TOTAL}"));
    }
    for (key, _) in rows(Place::Children, b'a') {
        let parent = key.split(|&byte| byte == b'/').next().unwrap_or_default();
        if !state.contains_key(&(Place::Accounts, parent.to_vec())) {
            return Err(format!("child {:?} is an orphan", key.escape_ascii().to_string()));
        }
    }
    let number = |place: Place, key: Key| state.get(&(place, key)).map_or(i64::MIN, |value| number_of(value));
    for place in [Place::Accounts, Place::Children] {
        let (counted, there) = (number(Place::Numbers, count_key(place)), rows(place, b'a').count() as i64);
        if counted != there {
            return Err(format!("{place:?} has {there} rows, but {counted} were counted"));
        }
    }
    for pair in 0..PAIRS {
        let lower = number(Place::Numbers, lower_key(pair));
        let upper = number(Place::Accounts, upper_key(pair));
        if lower >= upper || lower == i64::MIN {
            return Err(format!("pair {pair} is out of order: {lower}, {upper}"));
        }
    }
    Ok(())
}
