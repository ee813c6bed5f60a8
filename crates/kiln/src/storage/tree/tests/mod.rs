//! Tests of the whole tree, on the simulated device, against a `BTreeMap`.

mod ahead;
mod crashes;
mod damage;
mod forged;
mod map;
mod model;
mod packed;
mod parts;
mod reclaim;
mod threads;
mod values;

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use super::{Cached, Change, Cursor, Direction, Merged, Root, Tree};
use crate::device::{Device, OpenMode, SimulatedDevice};
use crate::storage::names::Names;
use crate::storage::record::NEVER;

type Map = BTreeMap<Vec<u8>, Vec<u8>>;
/// What a merge is to do.
type Batch = BTreeMap<Vec<u8>, Option<Vec<u8>>>;

const CACHE_BYTES: usize = 1 << 20;

/// Numbers that a seed decides (splitmix64).
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut next = self.0;
        next = (next ^ (next >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        next = (next ^ (next >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (next ^ (next >> 31)) % end
    }

    fn one_in(&mut self, count: u64) -> bool {
        self.below(count) == 0
    }
}

/// Whose trees the tests' are.
const DATABASE: u128 = 7;

fn open(device: &SimulatedDevice, cache_bytes: usize) -> Arc<Tree> {
    Arc::new(try_open(device, cache_bytes).unwrap())
}

fn try_open(device: &SimulatedDevice, cache_bytes: usize) -> crate::error::Result<Tree> {
    Tree::open(&Names::new(Arc::new(device.clone())), DATABASE, cache_bytes, OpenMode::ReadWrite)
}

fn key(number: u64) -> Vec<u8> {
    format!("key{number:08}").into_bytes()
}

/// When the tests' values expire: some never, in leaves where others do, and in leaves where none does.
fn expiry_of(value: Option<&[u8]>) -> u64 {
    match value {
        Some(value) if value.len() % 3 == 1 => 1 + value.len() as u64,
        _ => NEVER,
    }
}

fn change<'b>((key, value): (&'b Vec<u8>, &'b Option<Vec<u8>>)) -> Change<'b> {
    Change { key, value: value.as_deref(), expires_at: expiry_of(value.as_deref()) }
}

fn changes(batch: &Batch) -> impl Iterator<Item = Change<'_>> {
    batch.iter().map(change)
}

/// Merges a batch on several threads, between whose keys these are.
fn merge_in_parts(
    tree: &Tree,
    batch: &Batch,
    separators: &[Vec<u8>],
    settled_to: Option<u64>,
) -> crate::error::Result<Merged> {
    let low =
        |number: usize| number.checked_sub(1).map_or(Bound::Unbounded, |at| Bound::Included(&separators[at]));
    let high = |number: usize| separators.get(number).map_or(Bound::Unbounded, Bound::Excluded);
    let mut parts: Vec<_> = (0..=separators.len())
        .map(|number| batch.range::<Vec<u8>, _>((low(number), high(number))).map(change))
        .collect();
    tree.merge_in_parts(&mut parts, separators, settled_to)
}

fn apply(batch: &Batch, map: &mut Map) {
    for (key, value) in batch {
        match value {
            Some(value) => drop(map.insert(key.clone(), value.clone())),
            None => drop(map.remove(key)),
        }
    }
}

/// How many of a batch's changes the tree says it has of a merge that has not come to its end: it has them all.
fn assert_begun(tree: &Tree, batch: &Batch, rows: &Map) -> usize {
    let Some(begun) = tree.begun().unwrap() else { return 0 };
    let to = tree.root().begun_to();
    assert!(batch.keys().all(|key| !begun.has(key, to)), "what lies behind the end was not to be merged");
    let said: Vec<_> = batch.iter().filter(|(key, _)| begun.has(key, to - 1)).collect();
    assert!(said.iter().all(|(key, value)| rows.get(*key) == value.as_ref()), "it has not what it says");
    said.len()
}

/// Everything that a walk in one direction finds.
fn walk(tree: &Arc<Tree>, direction: Direction) -> crate::error::Result<Vec<(Vec<u8>, Vec<u8>)>> {
    walk_at(tree, tree.root(), direction)
}

/// The same, as of a root.
fn walk_at(
    tree: &Arc<Tree>,
    root: Arc<Root>,
    direction: Direction,
) -> crate::error::Result<Vec<(Vec<u8>, Vec<u8>)>> {
    let mut cursor = Cursor::new(tree, root);
    let (mut found, mut value) = (Vec::new(), Vec::new());
    cursor.seek(Bound::Unbounded, direction)?;
    while let Some(key) = cursor.key() {
        let key = key.to_vec();
        cursor.value_into(&mut value)?;
        found.push((key, value.clone()));
        cursor.step()?;
    }
    Ok(found)
}

/// The tree has exactly what the map has.
fn assert_same(tree: &Arc<Tree>, map: &Map) {
    let expected: Vec<_> = map.iter().map(|(key, value)| (key.clone(), value.clone())).collect();
    let found = walk(tree, Direction::Forwards).unwrap();
    assert_eq!(found.len(), expected.len());
    assert!(found == expected, "a walk finds something else");
    let mut found = walk(tree, Direction::Backwards).unwrap();
    found.reverse();
    assert!(found == expected, "a walk backwards finds something else");
    assert_eq!(tree.statistics().entries, map.len() as u64);
}
