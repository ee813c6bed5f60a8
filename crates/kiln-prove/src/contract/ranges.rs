//! The whole API of transactions against two `BTreeMap`s: whatever a transaction reads, in whatever way, is what the
//! model says, its own writes included; and it stays so over hardenings and reopenings.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::time::Duration;

use kiln::device::SimulatedDevice;
use kiln::{ErrorKind, Kiln, Map, Object, Result, Table, Transaction};
use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

use crate::crash::reopen;
use crate::testing::{budget, seed, watched};

type Model = BTreeMap<Vec<u8>, Vec<u8>>;

/// The bounds and the way of a walk over the table.
#[derive(Clone, Debug)]
struct Walk {
    lower: Bound<Vec<u8>>,
    upper: Bound<Vec<u8>>,
    reverse: bool,
    limit: usize,
    /// After so many rows, go on from this key.
    seek: Option<(usize, Vec<u8>)>,
    /// After so many rows, settle.
    settle: Option<usize>,
    /// After so many rows, put or delete these keys.
    writes: Vec<(usize, Vec<u8>, bool)>,
}

#[derive(Clone, Debug)]
enum Operation {
    Get(bool, Vec<u8>),
    MultiGet(bool, Vec<Vec<u8>>),
    Put(bool, Vec<u8>, Vec<u8>),
    Delete(bool, Vec<u8>),
    /// Reverses the value, or puts this if there is none, or deletes it.
    Update(bool, Vec<u8>, Option<Vec<u8>>),
    Add(bool, Vec<u8>, i64),
    /// Expects what is there, or not.
    CompareAndSet(bool, Vec<u8>, bool, Option<Vec<u8>>),
    Walk(Walk),
    Prefix(Vec<u8>, bool),
    DeleteRange(Vec<u8>, Vec<u8>),
}

#[derive(Clone, Debug)]
enum Step {
    Transaction(Vec<Operation>, bool),
    Persist,
    Settle,
    Reopen,
    SnapshotWalk(Walk),
}

/// Short keys over an alphabet with the bytes where ranges and prefixes go wrong, the empty key among them.
fn key() -> impl Strategy<Value = Vec<u8>> {
    prop::collection::vec(prop::sample::select(vec![0_u8, b'a', b'b', 0xFE, 0xFF]), 0..4)
}

fn value() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        6 => prop::collection::vec(any::<u8>(), 0..40),
        2 => Just(7_i64.to_le_bytes().to_vec()),
        1 => (1_000..9_000_usize).prop_map(|length| vec![length as u8; length]),
    ]
}

fn bound() -> impl Strategy<Value = Bound<Vec<u8>>> {
    prop_oneof![
        2 => key().prop_map(Bound::Included),
        2 => key().prop_map(Bound::Excluded),
        1 => Just(Bound::Unbounded),
    ]
}

fn walk() -> impl Strategy<Value = Walk> {
    let limit = prop_oneof![Just(usize::MAX), 0..6_usize];
    let seek = prop::option::of((0..4_usize, key()));
    let settle = prop::option::weighted(0.2, 0..4_usize);
    let writes = prop::collection::vec((0..4_usize, key(), any::<bool>()), 0..3);
    (bound(), bound(), any::<bool>(), limit, seek, settle, writes).prop_map(
        |(lower, upper, reverse, limit, seek, settle, writes)| Walk {
            lower,
            upper,
            reverse,
            limit,
            seek,
            settle,
            writes,
        },
    )
}

fn operation() -> impl Strategy<Value = Operation> {
    prop_oneof![
        2 => (any::<bool>(), key()).prop_map(|(table, key)| Operation::Get(table, key)),
        1 => (any::<bool>(), prop::collection::vec(key(), 0..5)).prop_map(|(t, keys)| Operation::MultiGet(t, keys)),
        6 => (any::<bool>(), key(), value()).prop_map(|(t, key, value)| Operation::Put(t, key, value)),
        3 => (any::<bool>(), key()).prop_map(|(table, key)| Operation::Delete(table, key)),
        2 => (any::<bool>(), key(), prop::option::of(value())).prop_map(|(t, k, v)| Operation::Update(t, k, v)),
        1 => (any::<bool>(), key(), any::<i64>()).prop_map(|(t, key, delta)| Operation::Add(t, key, delta)),
        2 => (any::<bool>(), key(), any::<bool>(), prop::option::of(value()))
            .prop_map(|(t, key, right, new)| Operation::CompareAndSet(t, key, right, new)),
        5 => walk().prop_map(Operation::Walk),
        2 => (key(), any::<bool>()).prop_map(|(prefix, reverse)| Operation::Prefix(prefix, reverse)),
        1 => (key(), key()).prop_map(|(one, other)| Operation::DeleteRange(one, other)),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        12 => (prop::collection::vec(operation(), 1..8), prop::bool::weighted(0.85))
            .prop_map(|(operations, commit)| Step::Transaction(operations, commit)),
        1 => Just(Step::Persist),
        2 => Just(Step::Settle),
        1 => Just(Step::Reopen),
        3 => walk().prop_map(Step::SnapshotWalk),
    ]
}

/// What a walk must return. It is as if each step looked for the next key by itself.
struct ModelWalk<'w> {
    walk: &'w Walk,
    near: Bound<Vec<u8>>,
    returned: usize,
}

impl<'w> ModelWalk<'w> {
    fn new(walk: &'w Walk) -> ModelWalk<'w> {
        let near = if walk.reverse { &walk.upper } else { &walk.lower };
        ModelWalk { walk, near: near.clone(), returned: 0 }
    }

    /// Within the bounds.
    fn seek(&mut self, key: &[u8]) {
        let Walk { lower, upper, reverse, .. } = self.walk;
        self.near = match (reverse, lower, upper) {
            (false, Bound::Included(low), _) if key < low.as_slice() => lower.clone(),
            (false, Bound::Excluded(low), _) if key <= low.as_slice() => lower.clone(),
            (true, _, Bound::Included(high)) if key > high.as_slice() => upper.clone(),
            (true, _, Bound::Excluded(high)) if key >= high.as_slice() => upper.clone(),
            _ => Bound::Included(key.to_vec()),
        };
    }

    fn next(&mut self, model: &Model) -> Option<(Vec<u8>, Vec<u8>)> {
        if self.returned == self.walk.limit {
            return None;
        }
        let (lower, upper) = match self.walk.reverse {
            false => (&self.near, &self.walk.upper),
            true => (&self.walk.lower, &self.near),
        };
        let above = |key: &[u8]| match lower {
            Bound::Included(bound) => key >= bound.as_slice(),
            Bound::Excluded(bound) => key > bound.as_slice(),
            Bound::Unbounded => true,
        };
        let below = |key: &[u8]| match upper {
            Bound::Included(bound) => key <= bound.as_slice(),
            Bound::Excluded(bound) => key < bound.as_slice(),
            Bound::Unbounded => true,
        };
        let mut inside = model.iter().filter(|(key, _)| above(key) && below(key));
        let (key, value) = if self.walk.reverse { inside.next_back() } else { inside.next() }?;
        self.near = Bound::Excluded(key.clone());
        self.returned += 1;
        Some((key.clone(), value.clone()))
    }
}

/// The model within a transaction: the table's rows, and the map's.
#[derive(Clone, Default)]
struct Both {
    table: Model,
    map: Model,
}

impl Both {
    fn of(&mut self, table: bool) -> &mut Model {
        if table { &mut self.table } else { &mut self.map }
    }

    fn set(&mut self, table: bool, key: &[u8], value: Option<Vec<u8>>) {
        match value {
            Some(value) => self.of(table).insert(key.to_vec(), value),
            None => self.of(table).remove(key),
        };
    }
}

macro_rules! on {
    ($objects:expr, $table:expr, $object:ident => $call:expr) => {
        if $table {
            let $object = &$objects.0;
            $call
        } else {
            let $object = &$objects.1;
            $call
        }
    };
}

/// What is committed moves to where settled rows are, which nobody notices.
fn settle(db: &Kiln) -> Result<()> {
    db.persist()?;
    db.settle().map(drop)
}

fn operate(
    db: &Kiln,
    tx: &Transaction<'_>,
    objects: &(Table, Map),
    model: &mut Both,
    operation: &Operation,
) -> Result<()> {
    match operation {
        Operation::Get(table, key) => {
            let expected = model.of(*table).get(key).cloned();
            assert_eq!(on!(objects, *table, object => tx.get(object, key))?, expected);
            assert_eq!(on!(objects, *table, object => tx.contains(object, key))?, expected.is_some());
            let mut buffer = b"left over".to_vec();
            assert_eq!(
                on!(objects, *table, object => tx.get_into(object, key, &mut buffer))?,
                expected.is_some()
            );
            assert_eq!(buffer, expected.unwrap_or_default());
        }
        Operation::MultiGet(table, keys) => {
            let expected: Vec<_> = keys.iter().map(|key| model.of(*table).get(key).cloned()).collect();
            assert_eq!(on!(objects, *table, object => tx.multi_get(object, keys))?, expected);
        }
        Operation::Put(table, key, value) => {
            on!(objects, *table, object => tx.put(object, key, value))?;
            model.set(*table, key, Some(value.clone()));
        }
        Operation::Delete(table, key) => {
            let existed = on!(objects, *table, object => tx.delete(object, key))?;
            assert_eq!(existed, model.of(*table).remove(key).is_some());
        }
        Operation::Update(table, key, new) => {
            let change = |old: Option<&[u8]>| match old {
                Some(old) if new.is_some() => Some(old.iter().rev().copied().collect()),
                Some(_) => None,
                None => new.clone(),
            };
            on!(objects, *table, object => tx.update(object, key, change))?;
            let value = change(model.of(*table).get(key).map(Vec::as_slice));
            model.set(*table, key, value);
        }
        Operation::Add(table, key, delta) => add(tx, objects, model, (*table, key, *delta))?,
        Operation::CompareAndSet(table, key, right, new) => {
            let there = model.of(*table).get(key).cloned();
            let wrong = Some(b"something else entirely".to_vec());
            let expected = if *right { there } else { wrong };
            let set = on!(objects, *table, object => {
                tx.compare_and_set(object, key, expected.as_deref(), new.as_deref())
            })?;
            assert_eq!(set, *right);
            if *right {
                model.set(*table, key, new.clone());
            }
        }
        Operation::Walk(walk) => walk_with_writes(db, tx, objects, model, walk)?,
        Operation::Prefix(prefix, reverse) => {
            let range = tx.prefix(&objects.0, prefix);
            let range = if *reverse { range.reverse() } else { range };
            let rows = range.collect::<Result<Vec<_>>>()?;
            let mut expected: Vec<_> = model
                .table
                .iter()
                .filter(|(key, _)| key.starts_with(prefix))
                .map(|(k, v)| (k.clone(), v.clone()))
                .collect();
            if *reverse {
                expected.reverse();
            }
            assert_eq!(rows, expected);
        }
        Operation::DeleteRange(from, to) => {
            let row = |(key, value): (&Vec<u8>, &Vec<u8>)| (key.clone(), value.clone());
            assert_eq!(tx.first(&objects.0)?, model.table.first_key_value().map(row));
            assert_eq!(tx.last(&objects.0)?, model.table.last_key_value().map(row));
            let before = model.table.len();
            model.table.retain(|key, _| !(from <= key && key < to));
            let deleted = before - model.table.len();
            assert_eq!(tx.delete_range(&objects.0, from.as_slice()..to.as_slice())?, deleted as u64);
        }
    }
    Ok(())
}

fn add(
    tx: &Transaction<'_>,
    objects: &(Table, Map),
    model: &mut Both,
    (table, key, delta): (bool, &[u8], i64),
) -> Result<()> {
    let old = match model.of(table).get(key) {
        None => Some(0),
        Some(value) => value.as_slice().try_into().ok().map(i64::from_le_bytes),
    };
    let expected = old.and_then(|old| old.checked_add(delta));
    match (on!(objects, table, object => tx.add(object, key, delta)), expected) {
        (Ok(sum), expected) => {
            assert_eq!(Some(sum), expected);
            model.set(table, key, Some(sum.to_le_bytes().to_vec()));
            Ok(())
        }
        (Err(error), None) => {
            // A wrong argument does not end the transaction.
            assert_eq!(error.kind(), ErrorKind::Input);
            Ok(())
        }
        (Err(error), Some(_)) => Err(error),
    }
}

fn walk_with_writes(
    db: &Kiln,
    tx: &Transaction<'_>,
    objects: &(Table, Map),
    model: &mut Both,
    walk: &Walk,
) -> Result<()> {
    let range = tx.range(&objects.0, (walk.lower.clone(), walk.upper.clone())).limit(walk.limit);
    let mut range = if walk.reverse { range.reverse() } else { range };
    let mut expected = ModelWalk::new(walk);
    for step in 0.. {
        for (_, key, put) in walk.writes.iter().filter(|(after, _, _)| *after == step) {
            let value = put.then(|| b"written during the walk".to_vec());
            match &value {
                Some(value) => tx.put(&objects.0, key, value)?,
                None => assert_eq!(tx.delete(&objects.0, key)?, model.table.contains_key(key)),
            }
            model.set(true, key, value);
        }
        if walk.settle == Some(step) {
            settle(db)?;
        }
        if let Some((_, key)) = walk.seek.as_ref().filter(|(after, _)| *after == step) {
            range.seek(key);
            expected.seek(key);
        }
        // Both ways to go on, in turns.
        let row = match step % 2 {
            0 => range.next().transpose()?,
            _ => range.next_row()?.map(|(key, value)| (key.to_vec(), value.to_vec())),
        };
        let must = expected.next(&model.table);
        assert_eq!(row, must, "step {step} of {walk:?}");
        if row.is_none() {
            // Only a seek makes a walk that has ended go on.
            return Ok(());
        }
    }
    Ok(())
}

fn snapshot_walk(db: &Kiln, objects: &(Table, Map), model: &Both, walk: &Walk) -> Result<()> {
    let snapshot = db.snapshot()?;
    let range = snapshot.range(&objects.0, (walk.lower.clone(), walk.upper.clone())).limit(walk.limit);
    let mut range = if walk.reverse { range.reverse() } else { range };
    let mut expected = ModelWalk::new(walk);
    for step in 0..8 {
        if walk.settle == Some(step) {
            settle(db)?;
        }
        if walk.settle == Some(step) {
            settle(db)?;
        }
        if let Some((_, key)) = walk.seek.as_ref().filter(|(after, _)| *after == step) {
            range.seek(key);
            expected.seek(key);
        }
        let row = match step % 2 {
            0 => range.next().transpose()?,
            _ => range.next_row()?.map(|(key, value)| (key.to_vec(), value.to_vec())),
        };
        assert_eq!(row, expected.next(&model.table), "step {step} of {walk:?}");
    }
    Ok(())
}

/// A transaction too large for its limit is an error that ends it, and changes nothing. One during which something settles may
/// conflict.
fn transaction(
    db: &Kiln,
    objects: &(Table, Map),
    model: &mut Both,
    operations: &[Operation],
    commit: bool,
) -> Result<()> {
    let tx = db.begin()?;
    let mut changed = model.clone();
    let outcome =
        operations.iter().try_for_each(|operation| operate(db, &tx, objects, &mut changed, operation));
    match outcome {
        Err(error) if error.kind() == ErrorKind::Limit => return Ok(()),
        // What settles looks changed to who has read it before.
        Err(error) if error.is_conflict() && operations.iter().any(settles) => return Ok(()),
        outcome => outcome?,
    }
    if !commit {
        return Ok(());
    }
    match tx.commit() {
        Err(error) if error.is_conflict() && operations.iter().any(settles) => {}
        commit => {
            commit?.forget();
            *model = changed;
        }
    }
    Ok(())
}

fn settles(operation: &Operation) -> bool {
    matches!(operation, Operation::Walk(Walk { settle: Some(_), .. }))
}

fn run(steps: &[Step]) -> Result<()> {
    let disk = SimulatedDevice::new(seed());
    let open = || -> Result<(Kiln, (Table, Map))> {
        let db = reopen(&disk)?;
        let objects = (db.table("table")?, db.map("map")?);
        Ok((db, objects))
    };
    let (mut db, mut objects) = open()?;
    let mut model = Both::default();
    for step in steps {
        match step {
            Step::Transaction(operations, commit) => {
                transaction(&db, &objects, &mut model, operations, *commit)?
            }
            Step::Persist => db.persist()?,
            Step::Settle => settle(&db)?,
            Step::SnapshotWalk(walk) => snapshot_walk(&db, &objects, &model, walk)?,
            Step::Reopen => {
                drop((objects, db));
                (db, objects) = open()?;
                assert!(db.recovery_report().clean);
            }
        }
        assert_eq!((objects.0.len(), objects.1.len()), (model.table.len() as u64, model.map.len() as u64));
    }
    let snapshot = db.snapshot()?;
    let rows: Model = snapshot.range::<&[u8]>(&objects.0, ..).collect::<Result<_>>()?;
    let pairs: Model = snapshot.iter(&objects.1).collect::<Result<_>>()?;
    assert!(rows == model.table && pairs == model.map);
    let report = db.check()?;
    assert!(report.problems.is_empty(), "{report}");
    Ok(())
}

#[test]
fn c2_every_read_agrees_with_a_model_of_two_btree_maps() {
    watched("c2_every_read_agrees", Duration::from_secs(600), |_| {
        let bytes: Vec<u8> = seed().to_le_bytes().repeat(4);
        let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &bytes);
        let config = Config { cases: budget(800) as u32, failure_persistence: None, ..Config::default() };
        let mut runner = TestRunner::new_with_rng(config, rng);
        let outcome = runner.run(&prop::collection::vec(step(), 1..40), |steps| {
            run(&steps).map_err(|error| TestCaseError::fail(error.to_string()))
        });
        outcome.unwrap_or_else(|failure| panic!("{failure}"));
    });
}

/// A key before the bound where a walk begins took it out of its bounds: a client's cursor, out of what is that client's.
#[test]
fn c2_a_walk_that_is_told_to_go_on_elsewhere_stays_within_its_bounds() {
    let db = reopen(&SimulatedDevice::new(seed())).unwrap();
    let table = db.table("table").unwrap();
    let rows = ["a1", "b1", "b2", "c1"];
    db.put_many(&table, &rows.map(|key| (key, ""))).unwrap().forget();
    let forwards = [("", Some("b1")), ("b2", Some("b2")), ("a1", Some("b1")), ("b", Some("b1")), ("c", None)];
    let backwards =
        [("c1", Some("b2")), ("b1", Some("b1")), ("c", Some("b2")), ("\u{ff}", Some("b2")), ("a", None)];
    for settled in [false, true] {
        if settled {
            settle(&db).unwrap();
        }
        let (tx, snapshot) = (db.begin().unwrap(), db.snapshot().unwrap());
        for (reverse, seeks) in [(false, &forwards), (true, &backwards)] {
            let (one, other) = (tx.prefix(&table, "b"), snapshot.prefix(&table, "b"));
            let (mut one, mut other) = if reverse { (one.reverse(), other.reverse()) } else { (one, other) };
            for (key, found) in seeks {
                one.seek(key);
                other.seek(key);
                let found = found.map(|key| (key.as_bytes(), &b""[..]));
                assert_eq!(one.next_row().unwrap(), found, "{key}, reverse: {reverse}");
                assert_eq!(other.next_row().unwrap(), found, "{key}, reverse: {reverse}");
            }
        }
    }
}

/// Many leaves: ranges that begin and end anywhere, over keys of very different lengths.
#[test]
fn c2_ranges_over_many_leaves_meet_every_row_once_in_order() {
    let db = reopen(&SimulatedDevice::new(seed())).unwrap();
    let table = db.table("table").unwrap();
    let key = |number: u32| {
        let mut key = (number * 3).to_be_bytes().to_vec();
        key.resize(4 + (number % 97) as usize * (number % 3) as usize, b'x');
        key
    };
    let count = 3_000;
    for number in (0..count).map(|number| number * 7_919 % count) {
        db.put(&table, key(number), number.to_le_bytes()).unwrap().forget();
    }
    let mut random = crate::support::Random::new(seed());
    for _ in 0..budget(60) {
        let (a, b) = (random.below(count as usize) as u32, random.below(count as usize) as u32);
        let (from, to) = (a.min(b), a.max(b));
        let expected: Vec<Vec<u8>> = (from..to).map(key).collect();
        let walked = db.transact(|tx| {
            let forward =
                tx.range(&table, key(from)..key(to)).map(|row| Ok(row?.0)).collect::<Result<Vec<_>>>()?;
            let backward = tx.range(&table, key(from)..key(to)).reverse().map(|row| Ok(row?.0));
            Ok((forward, backward.collect::<Result<Vec<_>>>()?))
        });
        let (forward, mut backward) = walked.unwrap().forget();
        backward.reverse();
        assert!(forward == expected && backward == expected, "from {from} to {to}");
    }
}
