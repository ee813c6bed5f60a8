//! Leaves that are read for many keys at once, or for the rows of a range.

use super::*;

const COUNT: u64 = 4000;

/// A tree of many leaves, of which nothing is in memory.
fn tree_on_disk(cache_bytes: usize) -> (SimulatedDevice, Arc<Tree>) {
    let device = SimulatedDevice::new(1);
    let batch: Batch = (0..COUNT).map(|number| (key(2 * number), Some(vec![7; 100]))).collect();
    open(&device, CACHE_BYTES).merge(&mut changes(&batch), None).unwrap();
    let tree = open(&device, cache_bytes);
    (device, tree)
}

fn read_ahead(tree: &Tree, numbers: impl Iterator<Item = u64>) {
    let mut leaves = tree.leaves_ahead();
    numbers.for_each(|number| leaves.want(&key(number)));
    leaves.read();
}

#[test]
fn keys_whose_leaves_were_read_ahead_are_found_in_memory() {
    let (_device, tree) = tree_on_disk(CACHE_BYTES);
    let (mut value, numbers) = (Vec::new(), || (0..2 * COUNT).step_by(411));
    assert!(tree.is_partly_on_disk());
    assert!(numbers().all(|number| tree.get_cached(&key(number), &mut value) == Cached::Unknown));
    read_ahead(&tree, numbers());
    for number in numbers() {
        let found = tree.get_cached(&key(number), &mut value);
        assert_eq!(matches!(found, Cached::Found { .. }), number.is_multiple_of(2), "{number}");
        assert_ne!(found, Cached::Unknown, "{number}");
    }
    // What is in memory is not read again, nor is a leaf read once for each of its keys.
    let misses = tree.cache_misses();
    read_ahead(&tree, numbers());
    assert_eq!(tree.cache_misses(), misses);
    read_ahead(&tree, 0..2 * COUNT);
    assert!(tree.cache_misses() < COUNT / 8, "{}", tree.cache_misses());
}

#[test]
fn no_more_is_read_ahead_than_a_part_of_the_cache_and_nothing_where_there_is_none() {
    for cache_bytes in [0, 256 << 10] {
        let (_device, tree) = tree_on_disk(cache_bytes);
        read_ahead(&tree, 0..2 * COUNT);
        let (cached, part) = (tree.statistics().cache_bytes, cache_bytes as u64 / 4);
        // And the inner node.
        assert!(cached < part + (16 << 10), "{cached} of {cache_bytes}");
        assert_eq!(cached > 0, cache_bytes > 0);
        // Nor are inner nodes, where none would be kept.
        assert_eq!(tree.cache_misses() > 0, cache_bytes > 0);
    }
}

/// Leaves were read one, two, four at a time, though it was known how many rows were wanted.
#[test]
fn the_leaves_of_as_many_rows_as_are_wanted_are_read_where_the_first_one_is() {
    for direction in [Direction::Forwards, Direction::Backwards] {
        for wanted in [1, 40, 130, 300] {
            let (_device, tree) = tree_on_disk(CACHE_BYTES);
            let mut cursor = Cursor::new(&tree, tree.root());
            cursor.expect(Some(wanted));
            cursor.seek(Bound::Included(&key(COUNT)), direction).unwrap();
            let at_once = tree.cache_misses();
            for _ in 1..wanted {
                cursor.step().unwrap();
                assert!(cursor.key().is_some());
            }
            // It may have begun near the end of a leaf, or near the beginning.
            let later = tree.cache_misses() - at_once;
            assert!(later <= 1, "{wanted} {direction:?}: {at_once}, then {later}");
            let leaves = (at_once + later).saturating_sub(1);
            assert!(
                leaves <= wanted as u64 / 20 + 2,
                "{wanted} {direction:?}: {leaves} leaves of 30 or more rows"
            );
        }
    }
}

#[test]
fn the_leaves_up_to_a_near_end_are_read_where_the_first_one_is_and_none_behind_it() {
    for (direction, end) in [(Direction::Forwards, COUNT + 200), (Direction::Backwards, COUNT - 200)] {
        let (_device, tree) = tree_on_disk(CACHE_BYTES);
        let mut cursor = Cursor::new(&tree, tree.root());
        cursor.end_at(&key(end));
        cursor.seek(Bound::Included(&key(COUNT)), direction).unwrap();
        let at_once = tree.cache_misses();
        while cursor.key() != Some(&key(end)) {
            cursor.step().unwrap();
        }
        assert_eq!(tree.cache_misses(), at_once, "{direction:?}");
        assert!(at_once <= 1 + 100 / 20 + 2, "{direction:?}: {at_once} nodes for 101 rows");
    }
}

#[test]
fn a_tree_that_is_in_memory_is_not_looked_ahead_in_and_an_empty_one_has_nothing() {
    let (_device, tree) = tree_on_disk(16 << 20);
    for number in 0..COUNT {
        tree.get(&key(2 * number), &mut Vec::new()).unwrap();
    }
    assert!(!tree.is_partly_on_disk());
    read_ahead(&open(&SimulatedDevice::new(1), CACHE_BYTES), 0..2);
}

/// In memory they took more than the whole tree does on disk, and the rest was read leaf by leaf.
#[test]
fn packed_leaves_of_which_some_are_in_memory_are_looked_ahead_for() {
    let device = SimulatedDevice::new(1);
    let batch: Batch = (0..COUNT).map(|number| (key(number), Some(vec![7; 100]))).collect();
    let tree = try_open(&device, CACHE_BYTES).unwrap().packing(true);
    tree.merge(&mut changes(&batch), None).unwrap();
    let tree = open(&device, CACHE_BYTES);
    for number in 0..COUNT / 2 {
        tree.get(&key(number), &mut Vec::new()).unwrap();
    }
    let statistics = tree.statistics();
    assert!(statistics.cache_bytes > statistics.used_bytes, "{statistics:?}");
    assert!(tree.is_partly_on_disk());
    read_ahead(&tree, 0..COUNT);
    assert_eq!(
        tree.get_cached(&key(COUNT - 1), &mut Vec::new()),
        Cached::Found { expires_at: expiry_of(Some(&[7; 100])) }
    );
}

/// A leaf that one merge had read, and not come to, was taken for what a later one had written in its place.
#[test]
fn c4_what_a_merge_has_read_ahead_and_not_used_is_nothing_to_a_later_one() {
    for seed in 0..4 {
        let mut tree = try_open(&SimulatedDevice::new(seed), 0).unwrap();
        tree.set_replaced_bytes_min(0);
        let (tree, mut map) = (Arc::new(tree), Map::new());
        let mut merge = |batch: Batch| {
            tree.merge(&mut changes(&batch), None).unwrap();
            apply(&batch, &mut map);
            assert_same(&tree, &map);
        };
        merge((1000..1030).map(|number| (key(number), Some(vec![1; 100]))).collect());
        merge((0..300).map(|number| (key(number), Some(vec![2; 4000]))).collect());
        merge([(key(1000), Some(vec![3; 100]))].into());
        // Most of the first leaf goes, with as many blocks of values as one merge may free, and what is left goes into the second.
        let mut most: Batch = (0..220).map(|number| (key(number), None)).collect();
        most.insert(key(1001), Some(vec![4; 100]));
        merge(most);
        merge([(key(1002), Some(vec![5; 100]))].into());
    }
}
