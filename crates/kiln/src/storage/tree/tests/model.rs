use std::collections::BTreeSet;

use super::*;
use crate::error::ErrorKind;

fn value(random: &mut Random) -> Vec<u8> {
    let bytes = match random.below(40) {
        0 => random.below(20_000),
        1 => 2048 + random.below(2),
        2..8 => 0,
        _ => random.below(300),
    };
    let first = random.below(256) as u8;
    (0..bytes).map(|index| first.wrapping_add(index as u8)).collect()
}

fn some_key(random: &mut Random, numbers: u64) -> Vec<u8> {
    let mut key = key(random.below(numbers));
    if random.one_in(200) {
        // Long, and most of it is common.
        key.resize(random.below(super::super::node::KEY_BYTES_MAX as u64 - 100) as usize + 20, b'x');
    }
    if random.one_in(50) {
        key.truncate(random.below(8) as usize);
    }
    key
}

fn some_batch(random: &mut Random, numbers: u64) -> Batch {
    let mut batch = Batch::new();
    let deletes = random.below(4);
    for _ in 0..random.below(400) {
        let is_delete = random.below(4) < deletes;
        batch.insert(some_key(random, numbers), (!is_delete).then(|| value(random)));
    }
    if random.one_in(4) {
        // A range that goes.
        let from = random.below(numbers);
        for number in from..(from + random.below(numbers / 2)).min(numbers) {
            batch.insert(key(number), None);
        }
    }
    batch
}

fn check_gets(tree: &Tree, map: &Map, random: &mut Random, numbers: u64) {
    let mut found = Vec::new();
    for _ in 0..200 {
        let key = some_key(random, numbers);
        let expected = map.get(&key);
        match tree.get_cached(&key, &mut found) {
            Cached::Found { expires_at } => {
                assert_eq!(Some(&found), expected);
                assert_eq!(expires_at, expiry_of(Some(&found)));
            }
            Cached::Absent => assert_eq!(None, expected),
            Cached::Unknown => {}
        }
        assert_eq!(tree.get(&key, &mut found).unwrap(), expected.map(|value| expiry_of(Some(value))));
        assert!(expected.is_none_or(|expected| *expected == found));
    }
}

fn check_seeks(tree: &Arc<Tree>, map: &Map, random: &mut Random, numbers: u64) {
    let mut cursor = Cursor::new(tree, tree.root());
    for _ in 0..100 {
        let key = some_key(random, numbers);
        let bound = if random.one_in(2) { Bound::Included(&key[..]) } else { Bound::Excluded(&key[..]) };
        cursor.end_at(&some_key(random, numbers));
        cursor.expect(random.one_in(2).then(|| random.below(200) as usize));
        cursor.seek(bound, Direction::Forwards).unwrap();
        let mut expected = map.range::<[u8], _>((bound, Bound::Unbounded));
        for _ in 0..4 {
            assert_eq!(cursor.key(), expected.next().map(|(key, _)| &key[..]));
            cursor.step().unwrap();
        }
        cursor.seek(bound, Direction::Backwards).unwrap();
        let mut expected = map.range::<[u8], _>((Bound::Unbounded, bound)).rev();
        for _ in 0..4 {
            assert_eq!(cursor.key(), expected.next().map(|(key, _)| &key[..]));
            cursor.step().unwrap();
        }
        let to = some_key(random, numbers);
        if key <= to {
            let expected =
                map.range::<[u8], _>((Bound::Included(&key[..]), Bound::Excluded(&to[..]))).count();
            assert_eq!(tree.count_estimate(&key, Some(&to)).unwrap(), expected as u64);
        }
    }
}

/// A cursor that seeks greater and greater keys comes to where one comes that begins anew.
fn check_seeks_on(tree: &Arc<Tree>, map: &Map, random: &mut Random, numbers: u64) {
    let mut cursor = Cursor::new(tree, tree.root());
    let mut keys: Vec<_> = (0..60).map(|_| some_key(random, numbers)).collect();
    keys.sort();
    for key in &keys {
        cursor.seek_on(key).unwrap();
        let from = (Bound::Included(&key[..]), Bound::Unbounded);
        assert_eq!(cursor.key(), map.range::<[u8], _>(from).next().map(|(key, _)| &key[..]));
        let expected = map.range::<[u8], _>(from).count();
        assert_eq!(tree.count_estimate(key, None).unwrap(), expected as u64);
    }
}

/// Keys between which parts of a merge may lie: such as the batch has, or the tree may have, and others before, between and behind them.
fn some_separators(random: &mut Random, batch: &Batch, numbers: u64, count: u64) -> Vec<Vec<u8>> {
    let mut separators: BTreeSet<Vec<u8>> = (0..count)
        .map(|_| match random.below(6) {
            0 => batch.keys().next().cloned().unwrap_or_default(),
            1 => batch.keys().next_back().cloned().unwrap_or_default(),
            2 => batch.keys().nth(random.below(batch.len() as u64 + 1) as usize).cloned().unwrap_or_default(),
            3 => [some_key(random, numbers), vec![0]].concat(),
            4 => vec![random.below(256) as u8],
            _ => some_key(random, numbers),
        })
        .collect();
    separators.remove(&Vec::new());
    separators.into_iter().collect()
}

/// Merges go on on so many threads. A merge is divided where it replaces so much.
fn model_run(
    seed: u64,
    cache_bytes: usize,
    (numbers, rounds): (u64, u64),
    threads: u64,
    replaced_bytes_min: Option<u64>,
) {
    let random = &mut Random(seed);
    let device = SimulatedDevice::new(seed);
    let open = || {
        let mut tree = try_open(&device, cache_bytes).unwrap();
        replaced_bytes_min.into_iter().for_each(|bytes| tree.set_replaced_bytes_min(bytes));
        Arc::new(tree)
    };
    let (mut tree, mut map) = (open(), Map::new());
    let mut held = Vec::new();
    for round in 1..=rounds {
        let batch = some_batch(random, numbers);
        let before = map.len();
        apply(&batch, &mut map);
        let separators = some_separators(random, &batch, numbers, threads - 1);
        let merged = merge_in_parts(&tree, &batch, &separators, Some(round)).unwrap();
        let put = batch.values().filter(|value| value.is_some()).count() as u64;
        assert_eq!(merged.put, put);
        assert!(map.len() as u64 <= before as u64 + put - merged.deleted);
        tree.check().unwrap();
        check_gets(&tree, &map, random, numbers);
        check_seeks(&tree, &map, random, numbers);
        check_seeks_on(&tree, &map, random, numbers);
        assert_same(&tree, &map);
        assert_eq!(tree.settled_to(), round);
        match random.below(4) {
            0 => held.push((Arc::clone(&tree), tree.root(), map.clone())),
            1 => held.clear(),
            2 if held.is_empty() => {
                drop(tree);
                tree = open();
                assert_same(&tree, &map);
                tree.check().unwrap();
            }
            _ => {}
        }
        for (tree, root, map) in &held {
            let mut value = Vec::new();
            for (key, expected) in map {
                assert!(tree.get_at(root, key, &mut value).unwrap().is_some(), "a held root has lost a key");
                assert!(value == *expected, "a held root has another value");
            }
        }
    }
}

#[test]
fn the_tree_is_what_a_map_is() {
    for seed in 0..6 {
        model_run(seed, CACHE_BYTES, (3000, 12), 1, None);
    }
}

#[test]
fn the_tree_is_what_a_map_is_when_hardly_anything_fits_the_cache() {
    for seed in 10..13 {
        model_run(seed, 1 << 16, (3000, 12), 1, None);
    }
}

#[test]
fn the_tree_is_what_a_map_is_when_several_threads_merge() {
    for threads in [2, 3, 7] {
        for seed in 20..24 {
            let cache_bytes = if seed % 2 == 0 { CACHE_BYTES } else { 1 << 16 };
            model_run(seed * threads, cache_bytes, (3000, 8), threads, None);
            // Range after range, of a leaf or a few each.
            model_run(seed * threads, cache_bytes, (3000, 5), threads, Some(1));
        }
    }
}

#[test]
fn sorted_appends_leave_full_leaves() {
    let device = SimulatedDevice::new(1);
    let (tree, mut number) = (open(&device, CACHE_BYTES), 0);
    for round in 0..200u64 {
        let batch: Batch =
            (0..1 + round % 70).map(|index| (key(number + index), Some(vec![7; 100]))).collect();
        number += batch.len() as u64;
        tree.merge(&mut changes(&batch), None).unwrap();
    }
    let check = tree.check().unwrap();
    assert_eq!(check.entries, number);
    // 100 bytes of value, 8 of slot and head, and what keys differ in.
    assert!(check.leaf_bytes < number * 125, "{} bytes for {number} entries", check.leaf_bytes);
}

#[test]
fn deletions_need_no_more_room_than_is_kept_for_them() {
    for seed in 0..5 {
        let device = SimulatedDevice::new(seed);
        let (tree, random) = (open(&device, CACHE_BYTES), &mut Random(seed));
        let mut map = Map::new();
        for round in 0..4 {
            device.set_capacity(Some(device.used_bytes() + (1 << 20)));
            for count in [50, 1] {
                loop {
                    let some: Batch =
                        (0..count).map(|_| (key(random.below(20_000)), Some(value(random)))).collect();
                    match tree.merge(&mut changes(&some), None) {
                        Ok(_) => apply(&some, &mut map),
                        Err(error) => break assert_eq!(error.kind(), ErrorKind::NoSpace),
                    }
                }
            }
            device.set_capacity(Some(device.used_bytes()));
            let gone: Batch =
                map.keys().filter(|_| random.below(4) <= round).map(|key| (key.clone(), None)).collect();
            let full = tree.statistics();
            tree.merge_deletions(&mut changes(&gone)).unwrap();
            apply(&gone, &mut map);
            // Nobody holds an older root, and all but the last of them have given up what only they needed.
            tree.merge_deletions(&mut [].into_iter()).unwrap();
            assert!(tree.statistics().used_bytes < full.used_bytes, "{full:?} {:?}", tree.statistics());
            check_gets(&tree, &map, random, 20_000);
        }
        tree.check().unwrap();
        assert!(tree.is_empty() && map.is_empty());
    }
}

#[test]
fn space_is_reclaimed_and_the_file_shrinks() {
    let device = SimulatedDevice::new(1);
    let (tree, random) = (open(&device, CACHE_BYTES), &mut Random(5));
    let all: Batch = (0..10_000).map(|number| (key(number), Some(vec![1; 100]))).collect();
    tree.merge(&mut changes(&all), None).unwrap();
    let full = tree.statistics();
    for _ in 0..60 {
        let some: Batch = (0..50).map(|_| (key(random.below(10_000)), Some(vec![2; 100]))).collect();
        tree.merge(&mut changes(&some), None).unwrap();
    }
    let updated = tree.statistics();
    assert!(updated.file_bytes < 2 * full.file_bytes, "{updated:?} {full:?}");
    let held = tree.root();
    let none: Batch = all.keys().map(|key| (key.clone(), None)).collect();
    tree.merge(&mut changes(&none), None).unwrap();
    assert!(tree.is_empty());
    assert!(tree.statistics().used_bytes > full.used_bytes, "a held root's blocks are in use");
    let mut value = Vec::new();
    assert!(tree.get_at(&held, &key(9_999), &mut value).unwrap().is_some());
    drop(held);
    tree.merge(&mut [].into_iter(), Some(9)).unwrap();
    let empty = tree.statistics();
    assert!(empty.file_bytes <= 256 << 10 && empty.used_bytes <= 64 << 10, "{empty:?}");
    assert_eq!(device.bytes("tree").len() as u64, empty.file_bytes);
    tree.check().unwrap();
    assert_eq!(open(&device, CACHE_BYTES).settled_to(), 9);
}

/// A load that fails at its end takes its rows back. Whoever had put blindly meanwhile, without counting, was then taken for having counted.
#[test]
fn a_tree_that_was_loaded_and_emptied_has_settled() {
    let device = SimulatedDevice::new(1);
    let tree = open(&device, CACHE_BYTES);
    assert!(!tree.has_settled());
    let rows: Batch = (0..1_000).map(|number| (key(number), Some(vec![1; 100]))).collect();
    tree.load(&mut changes(&rows), 3).unwrap();
    assert!(tree.has_settled());
    tree.remove_all(&key(0), &key(1_000), &|| Ok(())).unwrap();
    assert!(tree.is_empty() && tree.has_settled());
    drop(tree);
    assert!(open(&device, CACHE_BYTES).has_settled());
}

/// A node of 124 children whose keys have 4 KiB in common took in one that had nothing of that, and became longer than a node may be.
#[test]
fn c4_one_child_that_is_left_is_not_taken_in_where_it_makes_a_node_too_long() {
    let tree = open(&SimulatedDevice::new(1), CACHE_BYTES);
    let shared = |last: u8| [vec![b'a'; 4069], vec![last]].concat();
    let long = |last: u8| [vec![b'z'; 60_000], vec![last]].concat();
    let mut map = Map::new();
    let mut batch: Batch = (0..124).map(|number| (shared(number), Some(vec![0; 2048]))).collect();
    batch.extend([(long(1), Some(Vec::new())), (long(2), Some(Vec::new()))]);
    // In the end the one that was left is all there is, and its own node is none.
    let rest = (0..124).map(|number| (shared(number), None)).collect();
    for batch in [batch, [(long(1), None)].into(), rest] {
        tree.merge(&mut changes(&batch), None).unwrap();
        apply(&batch, &mut map);
        assert_same(&tree, &map);
        tree.check().unwrap();
    }
}
