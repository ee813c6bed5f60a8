//! What the bank's transactions do.
//!
//! Each deed keeps the invariants of [`bank`](crate::workload::bank), and chooses with a randomness of its own, so that it does
//! the same when the transaction is run again.

use kiln::Result;

use crate::support::Random;
use crate::workload::Profile;
use crate::workload::bank::{
    ACCOUNTS, FIRST_ACCOUNTS, PAIRS, TOTAL, Teller, account_key, child_key, count_key, lower_key, number_of,
    upper_key,
};
use crate::workload::history::{Key, Place};

/// The deeds of an ordinary day, the frequent ones more than once.
pub(crate) const ORDINARY: [Deed; 10] = [
    transfer,
    transfer,
    open_child,
    open_child,
    close_child,
    open_account,
    close_account,
    move_pair,
    resize,
    resize,
];

/// What a transaction does; the randomness is its own, so that it does the same when it is run again.
pub(crate) type Deed = fn(&mut Teller<'_, '_>, &mut Random, Profile) -> Result<()>;

pub(crate) fn found_bank(teller: &mut Teller<'_, '_>) -> Result<()> {
    for number in 0..FIRST_ACCOUNTS {
        let balance = TOTAL / FIRST_ACCOUNTS as i64;
        teller.put(Place::Accounts, &account_key(number), &balance.to_le_bytes())?;
    }
    for pair in 0..PAIRS {
        teller.put(Place::Numbers, &lower_key(pair), &0_i64.to_le_bytes())?;
        teller.put(Place::Accounts, &upper_key(pair), &1_i64.to_le_bytes())?;
    }
    teller.put(Place::Numbers, &count_key(Place::Accounts), &(FIRST_ACCOUNTS as i64).to_le_bytes())?;
    teller.put(Place::Numbers, &count_key(Place::Children), &0_i64.to_le_bytes())
}

/// The rows that hold money, which a deed chooses from.
fn rows(teller: &Teller<'_, '_>) -> Vec<(Place, Key)> {
    let money = |key: &&(Place, Key)| key.0 != Place::Numbers && key.1.first() == Some(&b'a');
    teller.before.keys().filter(money).cloned().collect()
}

fn accounts(teller: &Teller<'_, '_>) -> Vec<Key> {
    rows(teller).into_iter().filter(|(place, _)| *place == Place::Accounts).map(|(_, key)| key).collect()
}

pub(crate) fn transfer(teller: &mut Teller<'_, '_>, random: &mut Random, _: Profile) -> Result<()> {
    let rows = rows(teller);
    let (from, to) = (random.pick(&rows), random.pick(&rows));
    if from == to {
        return Ok(());
    }
    let amount = random.below(100) as i64;
    teller.change(from.0, &from.1, -amount)?;
    teller.change(to.0, &to.1, amount)
}

fn open_child(teller: &mut Teller<'_, '_>, random: &mut Random, profile: Profile) -> Result<()> {
    let parent = random.pick(&accounts(teller)).clone();
    let key = child_key(&parent, random.below(4));
    if teller.get(Place::Children, &key)?.is_some() {
        return Ok(());
    }
    let amount = random.below(50) as i64;
    teller.change(Place::Accounts, &parent, -amount)?;
    let filler_bytes = filler_bytes(random, profile);
    let value = [&amount.to_le_bytes(), random.bytes(filler_bytes).as_slice()].concat();
    teller.put(Place::Children, &key, &value)?;
    teller.change(Place::Numbers, &count_key(Place::Children), 1)
}

fn close_child(teller: &mut Teller<'_, '_>, random: &mut Random, _: Profile) -> Result<()> {
    let parent = random.pick(&accounts(teller)).clone();
    let prefix = [parent.as_slice(), b"/"].concat();
    let Some(key) = teller.keys(Place::Children, &prefix, random.one_in(2))?.into_iter().next() else {
        return Ok(());
    };
    let balance = number_of(&teller.get(Place::Children, &key)?.unwrap_or_default());
    teller.delete(Place::Children, &key)?;
    teller.change(Place::Accounts, &parent, balance)?;
    teller.change(Place::Numbers, &count_key(Place::Children), -1)
}

fn open_account(teller: &mut Teller<'_, '_>, random: &mut Random, profile: Profile) -> Result<()> {
    let key = account_key(random.below(ACCOUNTS));
    if teller.get(Place::Accounts, &key)?.is_some() {
        return Ok(());
    }
    let filler_bytes = filler_bytes(random, profile);
    let value = [&0_i64.to_le_bytes(), random.bytes(filler_bytes).as_slice()].concat();
    teller.put(Place::Accounts, &key, &value)?;
    teller.change(Place::Numbers, &count_key(Place::Accounts), 1)
}

/// Closes an account with all its children, and gives the money to another one.
pub(crate) fn close_account(teller: &mut Teller<'_, '_>, random: &mut Random, _: Profile) -> Result<()> {
    let accounts = accounts(teller);
    let (closed, heir) = (random.pick(&accounts), random.pick(&accounts));
    if accounts.len() < 3 || closed == heir {
        return Ok(());
    }
    let mut balance = number_of(&teller.get(Place::Accounts, closed)?.unwrap_or_default());
    let children = teller.keys(Place::Children, &[closed.as_slice(), b"/"].concat(), false)?;
    for child in &children {
        balance += number_of(&teller.get(Place::Children, child)?.unwrap_or_default());
        teller.delete(Place::Children, child)?;
    }
    teller.delete(Place::Accounts, closed)?;
    teller.change(Place::Accounts, heir, balance)?;
    teller.change(Place::Numbers, &count_key(Place::Children), -(children.len() as i64))?;
    teller.change(Place::Numbers, &count_key(Place::Accounts), -1)
}

/// Moves both halves of a pair, or one of them as far as it may go.
fn move_pair(teller: &mut Teller<'_, '_>, random: &mut Random, _: Profile) -> Result<()> {
    let pair = random.below(PAIRS);
    let (lower, upper) = (lower_key(pair), upper_key(pair));
    let number = |teller: &Teller<'_, '_>, place, key: &Key| {
        teller.get(place, key).map(|value| number_of(&value.unwrap_or_default()))
    };
    let gap = number(teller, Place::Accounts, &upper)? - number(teller, Place::Numbers, &lower)?;
    let by = 1 + random.below(9) as i64;
    if gap > by && random.one_in(2) {
        return teller.change(Place::Numbers, &lower, by);
    }
    teller.change(Place::Accounts, &upper, by)?;
    teller.change(Place::Numbers, &lower, random.below(by as usize + 1) as i64)
}

/// Gives a row another filler, of the same length or not.
fn resize(teller: &mut Teller<'_, '_>, random: &mut Random, profile: Profile) -> Result<()> {
    let (place, key) = random.pick(&rows(teller)).clone();
    let value = teller.get(place, &key)?.unwrap_or_default();
    let filler_bytes = if random.one_in(2) { value.len() - 8 } else { filler_bytes(random, profile) };
    teller.put(place, &key, &[&value[..8], random.bytes(filler_bytes).as_slice()].concat())
}

/// Overwrites a large value of no meaning.
pub(crate) fn load_ballast(teller: &mut Teller<'_, '_>, random: &mut Random, profile: Profile) -> Result<()> {
    let key = *random.pick(&[b"ballast 1", b"ballast 2"]);
    // A value may have half a segment.
    let longest = (profile.segment_bytes as usize / 2).min(18_000);
    let bytes = 2_000 + random.below(longest - 2_000);
    teller.put(Place::Numbers, key, &random.bytes(bytes))
}

/// Writes values of no meaning that nothing overwrites.
pub(crate) fn load_cold(teller: &mut Teller<'_, '_>, random: &mut Random, profile: Profile) -> Result<()> {
    let mut keys = (0..profile.cold_keys).map(|number| format!("cold {number}").into_bytes());
    keys.try_for_each(|key| teller.put(Place::Numbers, &key, &random.bytes(300)))
}

fn filler_bytes(random: &mut Random, profile: Profile) -> usize {
    let longest =
        if random.one_in(profile.long_one_in) { profile.filler_max } else { profile.filler_max.min(100) };
    random.below(longest + 1)
}
