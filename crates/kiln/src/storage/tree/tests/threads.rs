//! Readers and cursors go on while merges replace what they read.

use super::*;
use std::sync::atomic::{AtomicBool, Ordering};

const KEYS: u64 = 2000;

/// All values of a round are the round's number, so whoever sees two rounds at once has seen half a merge.
fn round_batch(round: u64) -> Batch {
    (0..KEYS).map(|number| (key(number), Some(round.to_le_bytes().repeat(8)))).collect()
}

fn round_of(value: &[u8]) -> u64 {
    assert!(value.chunks(8).all(|part| part == &value[..8]), "a value of two rounds");
    u64::from_le_bytes(value[..8].try_into().unwrap())
}

fn read_until(tree: &Arc<Tree>, seed: u64, is_done: &AtomicBool) {
    let (random, mut value) = (&mut Random(seed), Vec::new());
    let mut newest = 0;
    while !is_done.load(Ordering::Relaxed) {
        let key = key(random.below(KEYS));
        let is_found = match tree.get_cached(&key, &mut value) {
            Cached::Found { .. } => true,
            Cached::Absent => panic!("a key has gone"),
            Cached::Unknown => tree.get(&key, &mut value).unwrap().is_some(),
        };
        assert!(is_found, "a key has gone");
        let round = round_of(&value);
        assert!(round >= newest, "a round that was replaced is back");
        newest = round;
    }
}

fn walk_until(tree: &Arc<Tree>, is_done: &AtomicBool) {
    let mut direction = Direction::Forwards;
    while !is_done.load(Ordering::Relaxed) {
        let found = walk(tree, direction).unwrap();
        assert_eq!(found.len() as u64, KEYS);
        let round = round_of(&found[0].1);
        assert!(found.iter().all(|(_, value)| round_of(value) == round), "a walk has seen two rounds");
        direction = if direction == Direction::Forwards { Direction::Backwards } else { Direction::Forwards };
    }
}

#[test]
fn c2_readers_and_walks_see_whole_merges_only() {
    for cache_bytes in [CACHE_BYTES, 80 << 10] {
        let device = SimulatedDevice::new(1);
        let tree = open(&device, cache_bytes);
        tree.merge(&mut changes(&round_batch(0)), None).unwrap();
        let is_done = &AtomicBool::new(false);
        std::thread::scope(|scope| {
            for seed in 0..2 {
                let tree = &tree;
                scope.spawn(move || read_until(tree, seed, is_done));
            }
            scope.spawn(|| walk_until(&tree, is_done));
            let merging = scope.spawn(|| {
                for round in 1..60 {
                    // By one thread, and by three.
                    let separators = [key(KEYS / 3), key(KEYS / 2)];
                    let separators = &separators[..if round % 2 == 0 { 0 } else { 2 }];
                    merge_in_parts(&tree, &round_batch(round), separators, None).unwrap();
                }
            });
            let merged = merging.join();
            // Whatever came of it: the others would go on for ever.
            is_done.store(true, Ordering::Relaxed);
            merged.unwrap();
        });
        tree.merge(&mut [].into_iter(), None).unwrap();
        tree.check().unwrap();
        let statistics = tree.statistics();
        assert!(statistics.cache_bytes <= cache_bytes as u64, "{statistics:?}");
        assert!(statistics.used_bytes < 400 << 10, "blocks were lost: {statistics:?}");
    }
}
