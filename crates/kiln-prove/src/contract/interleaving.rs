//! C2: random interleavings of transactions on one thread, against an exact oracle.
//!
//! Several transactions are open at once, and one random step of one of them follows the other. Since the
//! interleaving is known, so is every state that there ever was, and isolation can be checked exactly:
//!
//! - *Opacity*: after each read, all reads of the transaction, ranges included, fit one single state that was
//!   current at some moment since it began. This holds for transactions that will abort, too.
//! - *Strict serializability*: a transaction that writes commits only if all its reads fit the present state.
//! - *Snapshot isolation*: all reads fit the state at the beginning, and of two that write the same key the
//!   second to commit conflicts, and only then.
//!
//! Hardenings, snapshots and the sweeping of deleted keys come in between.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::time::Duration;

use kiln::device::SimulatedDevice;
use kiln::{Error, Isolation, Kiln, Map, Result, Snapshot, Table, Transaction, Watch};

use crate::crash::reopen;
use crate::support::Random;
use crate::testing::{at_test, budget, seed, watched};

const KEYS: u8 = 7;
const OPEN: usize = 4;

/// A key: whether it is the table's, and its number.
type Key = (bool, u8);
type State = BTreeMap<Key, u64>;
type Overlay = BTreeMap<Key, Option<u64>>;

/// What a transaction has seen.
#[derive(Clone, Debug)]
enum Seen {
    /// A key's value.
    Value(Key, Option<u64>),
    /// The first so many keys of the table from one to another, forward or backward, and their values.
    Rows { from: u8, to: u8, reverse: bool, limit: usize, rows: Vec<(u8, u64)> },
    /// The key was not written since that state.
    Unchanged(Key, usize),
}

/// Something seen, and what the transaction itself had written by then.
#[derive(Clone, Debug)]
struct Read {
    seen: Seen,
    overlay: Overlay,
}

/// Every state there was, and the keys written on the way to each.
#[derive(Default)]
struct Past {
    states: Vec<State>,
    written: Vec<BTreeSet<Key>>,
}

impl Past {
    fn now(&self) -> usize {
        self.states.len() - 1
    }

    /// Adds the state that a transaction's writes make. Deleting what is not there is no write.
    fn commit(&mut self, overlay: Overlay) {
        let mut state = self.states[self.now()].clone();
        let mut written = BTreeSet::new();
        for (key, value) in overlay {
            let changed = match value {
                Some(value) => state.insert(key, value) != Some(value),
                None => state.remove(&key).is_some(),
            };
            written.extend(changed.then_some(key));
        }
        self.states.push(state);
        self.written.push(written);
    }

    fn is_written(&self, key: Key, after: usize, up_to: usize) -> bool {
        (after + 1..=up_to).any(|index| self.written[index].contains(&key))
    }

    fn fits(&self, index: usize, read: &Read) -> bool {
        let value = |key: Key| match read.overlay.get(&key) {
            Some(written) => *written,
            None => self.states[index].get(&key).copied(),
        };
        match &read.seen {
            Seen::Value(key, seen) => value(*key) == *seen,
            Seen::Unchanged(key, since) => !self.is_written(*key, *since, index),
            Seen::Rows { from, to, reverse, limit, rows } => {
                let there = (*from..=*to).filter_map(|number| Some((number, value((true, number))?)));
                let mut there: Vec<_> = there.collect();
                if *reverse {
                    there.reverse();
                }
                there.truncate(*limit);
                there == *rows
            }
        }
    }
}

/// A transaction that is open.
struct Open<'a> {
    tx: Transaction<'a>,
    isolation: Isolation,
    begun: usize,
    reads: Vec<Read>,
    overlay: Overlay,
}

struct World<'a> {
    db: &'a Kiln,
    table: Table,
    map: Map,
    random: Random,
    past: Past,
    open: Vec<Open<'a>>,
    snapshots: Vec<(Snapshot<'a>, usize)>,
    watches: Vec<(Key, Watch, usize)>,
    next_value: u64,
    last_version: u64,
    counts: Counts,
}

#[derive(Default, Debug)]
struct Counts {
    commits: u64,
    conflicts: u64,
    needless: u64,
}

macro_rules! on {
    ($world:expr, $key:expr, $object:ident => $call:expr) => {
        if $key.0 {
            let $object = &$world.table;
            $call
        } else {
            let $object = &$world.map;
            $call
        }
    };
}

fn decode(value: Vec<u8>) -> u64 {
    u64::from_le_bytes(value[..8].try_into().expect("every value begins with its number"))
}

/// Values of several lengths, so that some are updated in place and some are not.
fn encode(value: u64) -> Vec<u8> {
    let mut bytes = value.to_le_bytes().to_vec();
    bytes.resize(8 + (value % 5) as usize * 8, 7);
    bytes
}

impl<'a> World<'a> {
    fn new(db: &'a Kiln, seed: u64) -> World<'a> {
        let (table, map) = (db.table("table").unwrap(), db.map("map").unwrap());
        let past = Past { states: vec![State::new()], written: vec![BTreeSet::new()] };
        let random = Random::new(seed);
        let (open, snapshots, watches, counts) = (Vec::new(), Vec::new(), Vec::new(), Counts::default());
        let (next_value, last_version) = (1, 0);
        World { db, table, map, random, past, open, snapshots, watches, next_value, last_version, counts }
    }

    fn key(&mut self) -> Key {
        (self.random.below(3) > 0, self.random.below(KEYS.into()) as u8)
    }

    fn step(&mut self) {
        match self.random.below(40) {
            0..=4 if self.open.len() < OPEN => self.begin(),
            5 => self.db.persist().unwrap(),
            6 => self.snapshot(),
            7 => {
                let key = self.key();
                let watch = on!(self, key, object => self.db.watch(object, [key.1])).unwrap();
                self.watches.push((key, watch, self.past.now()));
            }
            8 => self.check_latest(),
            _ if self.open.is_empty() => self.begin(),
            _ => {
                let chosen = self.random.below(self.open.len());
                let mut open = self.open.swap_remove(chosen);
                if self.random.one_in(7) {
                    return self.end(open);
                }
                match self.operate(&mut open) {
                    Ok(()) => {
                        self.check(&open);
                        self.open.push(open);
                    }
                    Err(error) => self.conflict(&open, &error),
                }
            }
        }
    }

    fn begin(&mut self) {
        let isolation =
            *self.random.pick(&[Isolation::Serializable, Isolation::Serializable, Isolation::Snapshot]);
        let tx = self.db.begin_with(isolation).unwrap();
        let (reads, overlay) = (Vec::new(), Overlay::new());
        self.open.push(Open { tx, isolation, begun: self.past.now(), reads, overlay });
    }

    /// A random operation of a transaction.
    fn operate(&mut self, open: &mut Open<'a>) -> Result<()> {
        let key = self.key();
        let name = [key.1];
        let tx = &open.tx;
        let overlay = open.overlay.clone();
        let seen = |seen| open.reads.push(Read { seen, overlay });
        match self.random.below(9) {
            0 | 1 => seen(Seen::Value(key, on!(self, key, object => tx.get(object, name))?.map(decode))),
            2 | 3 => {
                let rows = self.range(tx)?;
                seen(rows);
            }
            4 | 5 => {
                on!(self, key, object => tx.put(object, name, encode(self.next_value)))?;
                open.overlay.insert(key, Some(self.next_value));
            }
            6 => {
                let old = on!(self, key, object => tx.get(object, name))?.map(decode);
                seen(Seen::Value(key, old));
                assert_eq!(on!(self, key, object => tx.delete(object, name))?, old.is_some());
                if old.is_some() {
                    open.overlay.insert(key, None);
                }
            }
            7 => {
                let (mut old, new) = (None, self.random.one_in(4).then_some(self.next_value));
                on!(self, key, object => tx.update(object, name, |value| {
                    old = value.map(|value| decode(value.to_vec()));
                    new.map(encode)
                }))?;
                seen(Seen::Value(key, old));
                if old.is_some() || new.is_some() {
                    open.overlay.insert(key, new);
                }
            }
            _ if self.watches.is_empty() => {}
            _ => {
                let (key, watch, since) = self.watches.swap_remove(self.random.below(self.watches.len()));
                // A snapshot transaction reads the past; what it requires is checked in the present.
                if open.isolation == Isolation::Serializable && tx.require(&watch)? {
                    seen(Seen::Unchanged(key, since));
                }
            }
        }
        self.next_value += 1;
        Ok(())
    }

    /// A random range over the table.
    fn range(&mut self, tx: &Transaction<'a>) -> Result<Seen> {
        let (a, b) = (self.random.below(KEYS.into()) as u8, self.random.below(KEYS.into()) as u8);
        let (from, to) = (a.min(b), a.max(b));
        let (reverse, limit) = (self.random.one_in(2), 1 + self.random.below(KEYS.into()));
        let range = tx.range(&self.table, (Bound::Included([from]), Bound::Included([to]))).limit(limit);
        let range = if reverse { range.reverse() } else { range };
        let rows =
            range.map(|row| row.map(|(key, value)| (key[0], decode(value)))).collect::<Result<Vec<_>>>()?;
        Ok(Seen::Rows { from, to, reverse, limit, rows })
    }

    /// Opacity, or the snapshot.
    fn check(&self, open: &Open<'a>) {
        let fits = |index: usize| open.reads.iter().all(|read| self.past.fits(index, read));
        match open.isolation {
            Isolation::Snapshot => {
                assert!(fits(open.begun), "not the state at the beginning: {:?}", open.reads)
            }
            Isolation::Serializable => assert!(
                (open.begun..=self.past.now()).any(fits),
                "no state since {} of {} fits {:?}",
                open.begun,
                self.past.now(),
                open.reads
            ),
        }
    }

    fn end(&mut self, open: Open<'a>) {
        if self.random.one_in(6) {
            return open.tx.abort();
        }
        let Open { tx, isolation, begun, reads, overlay } = open;
        let now = self.past.now();
        let written_since = overlay.keys().any(|key| self.past.is_written(*key, begun, now));
        let holds = reads.iter().all(|read| self.past.fits(now, read));
        match tx.commit() {
            Ok(commit) => {
                let version = commit.version().number();
                commit.forget();
                self.counts.commits += 1;
                if overlay.is_empty() {
                    return;
                }
                // What deletes only what is not there is as old as that.
                let there = &self.past.states[now];
                if overlay.iter().any(|(key, value)| value.is_some() || there.contains_key(key)) {
                    assert!(
                        version >= self.last_version,
                        "version {version} came after {}",
                        self.last_version
                    );
                    self.last_version = version;
                }
                match isolation {
                    Isolation::Serializable => {
                        assert!(holds, "committed although its reads are stale: {reads:?}")
                    }
                    Isolation::Snapshot => {
                        assert!(!written_since, "two transactions wrote the same key: {overlay:?}")
                    }
                }
                self.past.commit(overlay);
            }
            Err(error) => {
                assert!(error.is_conflict(), "{error}");
                assert!(isolation != Isolation::Snapshot || written_since, "a conflict with nobody");
                self.counts.conflicts += 1;
                self.counts.needless += u64::from(holds && !written_since);
            }
        }
    }

    /// An operation has failed: only with a conflict, and only in a serializable transaction.
    fn conflict(&mut self, open: &Open<'a>, error: &Error) {
        assert!(error.is_conflict(), "{error}");
        assert_eq!(open.isolation, Isolation::Serializable, "reads of a snapshot never conflict");
        let again = open.tx.get(&self.table, [0]).unwrap_err();
        assert!(!again.is_conflict(), "a failed transaction goes on: {again}");
        self.counts.conflicts += 1;
    }

    /// Opens, checks or closes a snapshot.
    fn snapshot(&mut self) {
        if self.snapshots.len() < 2 {
            self.snapshots.push((self.db.snapshot().unwrap(), self.past.now()));
        }
        let chosen = self.random.below(self.snapshots.len());
        let (snapshot, index) = &self.snapshots[chosen];
        let mut found = State::new();
        for row in snapshot.range::<&[u8]>(&self.table, ..) {
            let (key, value) = row.unwrap();
            found.insert((true, key[0]), decode(value));
        }
        for number in 0..KEYS {
            if let Some(value) = snapshot.get(&self.map, [number]).unwrap() {
                found.insert((false, number), decode(value));
            }
        }
        assert_eq!(found, self.past.states[*index], "a snapshot of state {index} of {}", self.past.now());
        if self.random.one_in(3) {
            self.snapshots.swap_remove(chosen);
        }
    }

    /// A read outside of any transaction sees the latest state.
    fn check_latest(&mut self) {
        let key = self.key();
        let found = on!(self, key, object => self.db.get(object, [key.1])).unwrap().map(decode);
        assert_eq!(found, self.past.states[self.past.now()].get(&key).copied());
    }
}

#[test]
fn c2_opacity_and_strict_serializability_in_random_interleavings() {
    let name = "c2_opacity_and_strict_serializability";
    watched(name, Duration::from_secs(600), |replay| {
        let (mut commits, mut conflicts, mut needless) = (0, 0, 0);
        for round in 0..budget(1_500) {
            let seed = seed() + round;
            at_test(replay, name, seed);
            let db = reopen(&SimulatedDevice::new(seed)).unwrap();
            let mut world = World::new(&db, seed);
            for _ in 0..400 {
                world.step();
            }
            commits += world.counts.commits;
            conflicts += world.counts.conflicts;
            needless += world.counts.needless;
        }
        println!("{commits} commits, {conflicts} conflicts, of which {needless} without need");
        assert!(commits > conflicts, "hardly anything commits: {commits} commits, {conflicts} conflicts");
        assert!(conflicts > commits / 50, "hardly anything conflicts, so little was tested");
    });
}
