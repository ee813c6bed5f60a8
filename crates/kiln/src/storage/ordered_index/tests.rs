//! The index against `BTreeSet`, one thread: contents, scans, phantoms, memory.

use std::collections::BTreeSet;
use std::ops::Bound;

use proptest::prelude::*;

use crate::storage::epoch;

use super::key::KEY_BYTES_MAX;
use super::{Insertion, LeafBatch, LeafRead, OrderedIndex, Run};

type Model = BTreeSet<Vec<u8>>;

/// A small generator, so that long random runs need neither a seed file nor a crate.
pub(super) struct Random(pub(super) u64);

impl Random {
    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    pub(super) fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }
}

/// Keys that meet every case of the comparison: empty, zero bytes, prefixes of each other, exactly 15 to 17
/// bytes, equal heads with different tails.
pub(super) fn key(number: u64) -> Vec<u8> {
    let digits = format!("{:04}", number / 8);
    match number % 8 {
        0 => number.to_be_bytes()[6..].to_vec(),
        1 => vec![0; (number / 8 % 40) as usize],
        2 => vec![b'a'; (number / 8 % 40) as usize],
        3 => [b"aaaaaaaaaaaaaaaa", digits.as_bytes()].concat(),
        4 => [b"aaaaaaaaaaaaaaaa", digits.as_bytes(), &[0]].concat(),
        5 => [b"aaaaaaaaaaa".as_slice(), digits.as_bytes()].concat(),
        6 => [b"aaaaaaaaaaaa".as_slice(), digits.as_bytes()].concat(),
        _ => [b"aaaaaaaaaaaa".as_slice(), digits.as_bytes(), &[0; 8]].concat(),
    }
}

fn insert(index: &OrderedIndex, key: &[u8]) -> bool {
    index.insert(&epoch::pin(), key) != Insertion::Present
}

pub(super) fn insert_ascending(index: &OrderedIndex, keys: &[Vec<u8>], run: Run) {
    let keys: Vec<&[u8]> = keys.iter().map(Vec::as_slice).collect();
    index.insert_ascending(&epoch::pin(), &keys, run);
}

fn remove(index: &OrderedIndex, key: &[u8]) -> bool {
    index.remove(&epoch::pin(), key)
}

/// Scans to the end in one direction, batch by batch.
pub(super) fn scan(index: &OrderedIndex, forward: bool, from: Bound<&[u8]>) -> Vec<Vec<u8>> {
    let (mut batch, mut next) = (LeafBatch::new(), LeafBatch::new());
    let mut keys = Vec::new();
    let pin = epoch::pin();
    if forward {
        index.read_forward(&pin, from, &mut batch);
    } else {
        index.reader(None).read_backward(&pin, from, &mut batch);
    }
    loop {
        keys.extend(batch.keys().map(<[u8]>::to_vec));
        assert!(index.validate(&batch.read()), "nothing has changed");
        if !index.read_next(&pin, &batch, &mut next) {
            return keys;
        }
        std::mem::swap(&mut batch, &mut next);
    }
}

/// What somebody remembers who reads all leaves.
pub(super) fn reads_of_all(index: &OrderedIndex) -> Vec<LeafRead> {
    let (mut batch, mut next, mut reads) = (LeafBatch::new(), LeafBatch::new(), Vec::new());
    index.read_forward(&epoch::pin(), Bound::Unbounded, &mut batch);
    loop {
        reads.push(batch.read());
        if !index.read_next(&epoch::pin(), &batch, &mut next) {
            return reads;
        }
        std::mem::swap(&mut batch, &mut next);
    }
}

fn assert_scans(index: &OrderedIndex, model: &Model, key: &[u8]) {
    for bound in [Bound::Unbounded, Bound::Included(key), Bound::Excluded(key)] {
        let expected: Vec<_> = model.range::<[u8], _>((bound, Bound::Unbounded)).cloned().collect();
        assert_eq!(scan(index, true, bound), expected, "forward from {bound:?}");
        let expected: Vec<_> = model.range::<[u8], _>((Bound::Unbounded, bound)).rev().cloned().collect();
        assert_eq!(scan(index, false, bound), expected, "backward from {bound:?}");
    }
}

#[derive(Clone, Debug)]
enum Operation {
    Insert(Vec<u8>),
    InsertAll(Vec<Vec<u8>>, Run),
    Remove(Vec<u8>),
    Contains(Vec<u8>),
    Scan(Vec<u8>),
}

fn any_key() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        6 => (0..2_000u64).prop_map(key),
        2 => proptest::collection::vec(0..3u8, 0..24),
        1 => proptest::collection::vec(any::<u8>(), 0..64),
    ]
}

/// More than a leaf has room for, at times.
fn any_keys() -> impl Strategy<Value = Vec<Vec<u8>>> {
    let count = if cfg!(miri) { 6 } else { 40 };
    (proptest::collection::vec(any_key(), 0..count), any::<bool>()).prop_map(|(mut keys, ascending)| {
        if ascending {
            keys.sort();
        }
        keys
    })
}

fn any_run() -> impl Strategy<Value = Run> {
    prop_oneof![Just(Run::Dense), Just(Run::Sparse)]
}

fn any_operation() -> impl Strategy<Value = Operation> {
    prop_oneof![
        18 => any_key().prop_map(Operation::Insert),
        1 => (any_keys(), any_run()).prop_map(|(keys, run)| Operation::InsertAll(keys, run)),
        9 => any_key().prop_map(Operation::Remove),
        6 => any_key().prop_map(Operation::Contains),
        3 => any_key().prop_map(Operation::Scan),
    ]
}

fn run(operations: Vec<Operation>) {
    let (index, mut model) = (OrderedIndex::new(), Model::new());
    for operation in operations {
        match operation {
            Operation::Insert(key) => assert_eq!(insert(&index, &key), model.insert(key)),
            Operation::InsertAll(keys, run) => {
                insert_ascending(&index, &keys, run);
                model.extend(keys);
                assert_eq!(index.len(), model.len());
            }
            Operation::Remove(key) => assert_eq!(remove(&index, &key), model.remove(&key)),
            Operation::Contains(key) => {
                assert_eq!(index.contains(&epoch::pin(), &key), model.contains(&key));
            }
            Operation::Scan(key) => assert_scans(&index, &model, &key),
        }
    }
    index.verify();
    assert_eq!(index.len(), model.len());
    assert_scans(&index, &model, b"aaaaaaaaaaaaaaaa");
    for key in &model {
        assert!(remove(&index, key));
    }
    index.verify();
    assert_eq!(index.nodes_in_use(), (1, 0), "an empty index is one leaf");
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: if cfg!(miri) { 2 } else { 200 },
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn the_index_behaves_as_a_sorted_set(
        operations in proptest::collection::vec(any_operation(), 0..if cfg!(miri) { 100 } else { 1_500 }),
    ) {
        run(operations);
    }
}

#[test]
fn keys_of_every_length_and_up_to_the_limit_are_kept() {
    let (index, mut model) = (OrderedIndex::new(), Model::new());
    let limits = if cfg!(miri) { [255, 256, 300, 400] } else { [255, 256, KEY_BYTES_MAX - 1, KEY_BYTES_MAX] };
    for length in (0..40).chain(limits) {
        for byte in [0, 1, 255] {
            let key = vec![byte; length];
            assert_eq!(insert(&index, &key), model.insert(key));
        }
    }
    index.verify();
    assert_scans(&index, &model, &[1; 16]);
}

#[test]
fn many_keys_in_ascending_descending_and_random_order() {
    let count = if cfg!(miri) { 100 } else { 50_000u64 };
    for order in 0..3 {
        let (index, mut model, mut random) = (OrderedIndex::new(), Model::new(), Random(order));
        for number in 0..count {
            let number = match order {
                0 => number,
                1 => count - number,
                _ => random.below(count),
            };
            let key = [b"a common prefix ", number.to_be_bytes().as_slice()].concat();
            assert_eq!(insert(&index, &key), model.insert(key));
        }
        index.verify();
        assert_eq!(scan(&index, true, Bound::Unbounded), model.iter().cloned().collect::<Vec<_>>());
        if order == 0 {
            let leaves = index.nodes_in_use().0 as u64;
            assert!(leaves * 31 < count + count / 10 + 62, "ascending keys fill their leaves: {leaves}");
        }
    }
}

#[test]
fn an_insertion_tells_the_version_before_and_after() {
    let index = OrderedIndex::new();
    let mut batch = LeafBatch::new();
    let pin = epoch::pin();
    assert!(!index.validate(&batch.read()), "a batch that was never filled is not valid");
    index.read_forward(&pin, Bound::Unbounded, &mut batch);
    assert!(batch.is_empty() && batch.next().is_none());
    let mut read = batch.read();
    assert!(index.validate(&read));
    for number in 0..31u8 {
        let Insertion::Inserted { before, after } = index.insert(&pin, &[number]) else { panic!() };
        assert_eq!(before, read, "the leaf was as it had been read");
        assert!(!index.validate(&before) && index.validate(&after));
        read = after;
    }
    assert_eq!(index.insert(&pin, &[7]), Insertion::Present);
    assert!(index.validate(&read), "a key that was there changes nothing");
    let Insertion::Split { before, after } = index.insert(&pin, &[7, 7]) else { panic!("the leaf was full") };
    assert!(!index.validate(&before) && after.iter().all(|half| index.validate(half)));
    assert!(!index.validate(&read));
}

#[test]
fn a_locked_leaf_does_not_validate() {
    let index = OrderedIndex::new();
    let mut batch = LeafBatch::new();
    index.read_forward(&epoch::pin(), Bound::Unbounded, &mut batch);
    let leaf = index.descend(&epoch::pin(), &super::Target::First, |_| Some(())).unwrap();
    let locked = leaf.slots.lock(leaf.version).unwrap();
    assert!(!index.validate(&batch.read()));
    drop(locked);
    assert!(index.validate(&batch.read()), "a lock that changed nothing leaves the version");
}

/// What a transaction would remember, and what it thinks that it knows.
struct Remembered {
    read: LeafRead,
    low: Bound<Vec<u8>>,
    high: Bound<Vec<u8>>,
    keys: Vec<Vec<u8>>,
}

fn owned(bound: Bound<&[u8]>) -> Bound<Vec<u8>> {
    bound.map(<[u8]>::to_vec)
}

/// Reads one batch, from anywhere or behind `batch`, checks it against the model, and remembers the interval that it covers.
fn remember(
    index: &OrderedIndex,
    model: &Model,
    random: &mut Random,
    from: &[u8],
    batch: &mut LeafBatch,
) -> Remembered {
    let mut next = LeafBatch::new();
    let goes_on = random.below(3) > 0 && index.read_next(&epoch::pin(), batch, &mut next);
    let near = if goes_on { owned(batch.next().expect("it went on")) } else { from_any(random, from) };
    let near = match &near {
        Bound::Included(key) => Bound::Included(key.as_slice()),
        Bound::Excluded(key) => Bound::Excluded(key.as_slice()),
        Bound::Unbounded => Bound::Unbounded,
    };
    let forward = if goes_on { batch.is_forward() } else { random.below(2) == 0 };
    match (goes_on, forward) {
        (true, _) => {}
        (false, true) => index.read_forward(&epoch::pin(), near, &mut next),
        (false, false) => index.reader(None).read_backward(&epoch::pin(), near, &mut next),
    }
    let fence = next.next().map_or(Bound::Unbounded, |fence| match (forward, fence) {
        // The fence belongs to the higher one of two batches.
        (true, Bound::Included(fence)) => Bound::Excluded(fence),
        (false, Bound::Excluded(fence)) => Bound::Included(fence),
        (_, other) => panic!("a scan continues at {other:?}"),
    });
    let (low, high) = if forward { (near, fence) } else { (fence, near) };
    let mut keys: Vec<_> = next.keys().map(<[u8]>::to_vec).collect();
    if !forward {
        keys.reverse();
    }
    let remembered = Remembered { read: next.read(), low: owned(low), high: owned(high), keys };
    assert_eq!(keys_in(model, &remembered), remembered.keys, "a batch is what its interval holds");
    *batch = next;
    remembered
}

fn from_any(random: &mut Random, from: &[u8]) -> Bound<Vec<u8>> {
    match random.below(5) {
        0 => Bound::Unbounded,
        1 | 2 => Bound::Included(from.to_vec()),
        _ => Bound::Excluded(from.to_vec()),
    }
}

/// The keys of the model in an interval; an interval that ends before it begins is empty.
fn keys_in(model: &Model, interval: &Remembered) -> Vec<Vec<u8>> {
    let inside = |key: &&Vec<u8>| {
        let above = match &interval.low {
            Bound::Included(low) => *key >= low,
            Bound::Excluded(low) => *key > low,
            Bound::Unbounded => true,
        };
        above
            && match &interval.high {
                Bound::Included(high) => *key <= high,
                Bound::Excluded(high) => *key < high,
                Bound::Unbounded => true,
            }
    };
    model.iter().filter(inside).cloned().collect()
}

/// Random insertions and removals, in phases that make the tree grow (splits, more levels) and shrink
/// (unlinking, fewer levels, nodes used again), with reads in between that stay remembered to the end. As long
/// as a read validates, its interval must hold exactly the keys that were read. `validated` guards against a
/// test that passes because nothing ever validates.
#[test]
fn a_read_that_validates_has_no_phantoms() {
    let rounds = if cfg!(miri) { 2 } else { 60 };
    let steps = if cfg!(miri) { 120 } else { 4_000 };
    let (mut validated, mut refused) = (0u64, 0u64);
    for round in 0..rounds {
        let mut random = Random(round);
        let (index, mut model) = (OrderedIndex::new(), Model::new());
        let (mut remembered, mut batch) = (Vec::<Remembered>::new(), LeafBatch::new());
        let key_count = [40, 300, 3_000][round as usize % 3];
        for step in 0..steps {
            let growing = step / (steps / 8) % 2 == 0;
            let key = key(random.below(key_count));
            if (random.below(10) < 8) == growing {
                assert_eq!(insert(&index, &key), model.insert(key));
            } else if let Some(key) = model.range(key..).next().cloned() {
                assert!(remove(&index, &key));
                model.remove(&key);
            }
            if random.below(8) == 0 {
                let from = self::key(random.below(key_count));
                remembered.push(remember(&index, &model, &mut random, &from, &mut batch));
            }
            if step % 16 == 0 {
                // A read that was refused once is refused for ever: versions only grow.
                remembered.retain(|read| {
                    let valid = index.validate(&read.read);
                    if valid {
                        assert_eq!(keys_in(&model, read), read.keys, "a phantom passed");
                    }
                    *(if valid { &mut validated } else { &mut refused }) += 1;
                    valid
                });
            }
        }
        index.verify();
        index.reclaim();
    }
    assert!(validated > 0 && refused > 0, "{validated} reads validated, {refused} were refused");
}

#[test]
fn a_reused_leaf_never_validates_an_older_read() {
    let index = OrderedIndex::new();
    let count = if cfg!(miri) { 100 } else { 2_000u16 };
    let mut old: Vec<LeafRead> = Vec::new();
    for _ in 0..3 {
        (0..count).for_each(|number| assert!(insert(&index, &number.to_be_bytes())));
        let (mut batch, mut next) = (LeafBatch::new(), LeafBatch::new());
        let pin = epoch::pin();
        index.read_forward(&pin, Bound::Unbounded, &mut batch);
        let mut reads = vec![batch.read()];
        while index.read_next(&pin, &batch, &mut next) {
            reads.push(next.read());
            std::mem::swap(&mut batch, &mut next);
        }
        assert!(old.iter().all(|read| !index.validate(read)), "a leaf's version came again");
        assert!(reads.iter().all(|read| index.validate(read)));
        old.extend(reads);
        (0..count).for_each(|number| assert!(remove(&index, &number.to_be_bytes())));
        assert!(old.iter().all(|read| !index.validate(read)));
    }
}

/// Queues: ever-new keys go in at the end and out at the front, or everything at once.
#[test]
fn churn_of_ever_new_keys_leaves_nothing_behind() {
    let index = OrderedIndex::new();
    let long = |number: u64| [b"a queue of the longer keys ", number.to_be_bytes().as_slice()].concat();
    let (length, count) = if cfg!(miri) { (70, 350) } else { (1_000u64, 200_000) };
    let mut bytes_max = 0;
    for number in 0..count {
        assert!(insert(&index, &long(number)));
        if number >= length {
            assert!(remove(&index, &long(number - length)));
        }
        if number % length == 0 {
            index.reclaim();
            assert_eq!(index.retired_bytes(), 0);
            index.verify();
        }
        if number == 3 * length {
            bytes_max = index.memory_bytes() * 11 / 10;
        }
        assert!(number < 3 * length || index.retired_bytes() < 100 * length as usize);
    }
    index.reclaim();
    let (leaves, inners) = index.nodes_in_use();
    assert!(
        leaves as u64 <= length / 15 + 3 && inners <= leaves / 8 + 3,
        "{leaves} leaves, {inners} inner nodes"
    );
    assert!(index.memory_bytes() <= bytes_max, "{} > {bytes_max}", index.memory_bytes());
    (count - length..count).for_each(|number| assert!(remove(&index, &long(number))));
    index.reclaim();
    index.verify();
    assert_eq!(index.nodes_in_use(), (1, 0));
    assert_eq!(
        index.memory_bytes(),
        index.leaves.memory_bytes() + index.inners.memory_bytes(),
        "a key leaked"
    );
}

/// All reads that had seen a leaf whose memory was given back are invalid, also when the memory is used again; the keys and hints that
/// come then are right.
#[test]
fn memory_of_what_was_removed_is_given_back_and_used_again() {
    let count: u64 = if cfg!(miri) { 200 } else { 100_000 };
    let index = OrderedIndex::new();
    let key = |number: u64| number.wrapping_mul(0x9E37_79B9_7F4A_7C15).to_be_bytes();
    let mut reads: Vec<LeafRead> = Vec::new();
    let mut batch = LeafBatch::new();
    let mut bytes_max = 0;
    for round in 0..3 {
        let earlier = reads.len();
        for number in 0..count {
            assert!(insert(&index, &key(number)));
            index.read_forward(&epoch::pin(), Bound::Included(&key(number)), &mut batch);
            index.give_hint(&batch, 0, 8 * number + 8);
            reads.push(batch.read());
            let old = reads[number as usize * earlier / count as usize];
            assert!(round == 0 || !index.validate(&old), "{old:?} is of an earlier round");
        }
        let valid = reads[..earlier].iter().filter(|read| index.validate(read)).count();
        assert_eq!(valid, 0, "of {earlier} of earlier rounds");
        index.verify();
        bytes_max = if round == 0 { index.memory_bytes() } else { bytes_max };
        assert!(
            index.memory_bytes() <= bytes_max + bytes_max / 10,
            "{} of {bytes_max}",
            index.memory_bytes()
        );
        (0..count).for_each(|number| _ = index.remove_quietly(&epoch::pin(), &key(number)));
        index.give_back_memory();
        index.verify();
        assert_eq!(index.nodes_in_use(), (1, 0));
        let is_less = index.memory_bytes() < bytes_max / 3;
        assert!(is_less || cfg!(miri), "{} of {bytes_max}", index.memory_bytes());
        let valid = reads.iter().filter(|read| index.validate(read)).count();
        assert!(valid <= 1, "{valid}, and only that of the empty leaf that is left may be");
    }
}

/// Of some keys in each leaf, as well; they and their neighbours are found before and after.
#[test]
fn leaves_with_few_keys_are_packed_before_their_memory_is_given_back() {
    let count: u64 = if cfg!(miri) { 1_000 } else { 100_000 };
    let index = OrderedIndex::new();
    let key = |number: u64| {
        [number.wrapping_mul(0x9E37_79B9_7F4A_7C15).to_be_bytes().as_slice(), &[7; 12]].concat()
    };
    for kept in [17, 40] {
        let stays = |number: u64| number.is_multiple_of(kept);
        (0..count).for_each(|number| _ = insert(&index, &key(number)));
        let before = index.memory_bytes();
        (0..count).filter(|number| !stays(*number)).for_each(|number| {
            index.remove_quietly(&epoch::pin(), &key(number));
        });
        let expected: Model = (0..count).filter(|number| stays(*number)).map(key).collect();
        let mut batch = LeafBatch::new();
        let read = |key: &Vec<u8>, batch: &mut LeafBatch| {
            index.read_forward(&epoch::pin(), Bound::Included(key), batch);
            (batch.read(), batch.keys().map(<[u8]>::to_vec).collect::<Vec<_>>())
        };
        let reads: Vec<_> = expected.iter().map(|key| read(key, &mut batch).0).collect();
        index.give_back_memory();
        index.reclaim();
        index.verify();
        let (leaves, _) = index.nodes_in_use();
        assert!(expected.len() / leaves >= 10, "{leaves} leaves for {} keys", expected.len());
        let after = index.memory_bytes();
        assert!(cfg!(miri) || after < before / 4, "{after} of {before}");
        assert!(scan(&index, true, Bound::Unbounded).iter().eq(&expected));
        assert!(scan(&index, false, Bound::Unbounded).iter().eq(expected.iter().rev()));
        // A read that still holds is of a leaf that took no part, and would be the same now.
        for (key, old) in expected.iter().zip(reads) {
            let (now, keys) = read(key, &mut batch);
            assert_eq!(keys.first(), Some(key));
            assert!(!index.validate(&old) || now == old);
        }
        expected.iter().for_each(|key| assert!(remove(&index, key)));
        index.reclaim();
        index.verify();
    }
}

/// That dropping an index with long keys, live and retired, frees them is seen by Miri's leak check and by the
/// balance of the counters above; here it must only not free twice.
#[test]
fn an_index_can_be_dropped_in_any_state() {
    let index = OrderedIndex::new();
    for number in 0..200u64 {
        insert(&index, &key(number * 8 + 3));
    }
    for number in 0..100u64 {
        remove(&index, &key(number * 8 + 3));
    }
    assert!(index.retired_bytes() > 0);
}

#[test]
fn reads_hold_while_keys_leave_quietly_and_not_once_one_comes() {
    let index = OrderedIndex::new();
    let keys: Vec<Vec<u8>> = (0..2_000_u32).map(|number| format!("key {number:05}").into_bytes()).collect();
    for round in 0..3 {
        keys.iter().for_each(|key| assert!(insert(&index, key)));
        let before = reads_of_all(&index);
        for (number, key) in keys.iter().enumerate() {
            if number % 100 != round {
                let emptied = index.remove_quietly(&epoch::pin(), key);
                assert!(!index.contains(&epoch::pin(), key), "it is gone");
                let empty = index.empty_leaf_at(&epoch::pin(), key);
                assert_eq!(empty.is_some(), emptied, "{empty:?}");
                let is_inside = |(low, high): (Vec<u8>, Option<Vec<u8>>)| {
                    low <= *key && high.is_none_or(|high| *key < high)
                };
                assert!(empty.is_none_or(is_inside));
            }
        }
        assert!(before.len() > 60 && before.iter().all(|read| index.validate(read)));
        assert_eq!(scan(&index, true, Bound::Unbounded).len(), 20);
        assert_eq!(reads_of_all(&index), before, "the leaves are where they were");
        // One that comes is noticed, by who read its leaf before it was emptied and after.
        assert!(insert(&index, &keys[50]));
        assert_eq!(before.iter().filter(|read| !index.validate(read)).count(), 1);
        assert!(remove(&index, &keys[50]));
        index.unlink_empty();
        index.verify();
        assert!(index.nodes_in_use().0 <= 20, "empty leaves are left");
        for key in keys.iter().skip(round).step_by(100) {
            assert!(remove(&index, key));
        }
        index.verify();
        assert!(index.len() == 0 && index.nodes_in_use() == (1, 0));
    }
}
