//! Merges on several threads: what a crash leaves of them, what fails in one of them, and how what they write lies.

use super::crashes::{batches, maps, open_dividing};
use super::*;
use crate::device::{Fault, FaultKind, OperationKind};
use crate::error::{Error, ErrorKind};
use crate::storage::tree::{ChangedRow, Rows};

/// In the tree of [`batches`] some leaves lie in two of three parts.
fn separators() -> Vec<Vec<u8>> {
    vec![key(131), key(290)]
}

/// Merges from `first` on until one fails; how many are done then.
fn merge_from(tree: &Tree, batches: &[Batch], first: usize) -> usize {
    for (number, batch) in batches.iter().enumerate().skip(first) {
        if merge_in_parts(tree, batch, &separators(), Some(number as u64 + 1)).is_err() {
            return number;
        }
    }
    batches.len()
}

/// Each key has what it had before a merge, or what it has after it.
fn assert_between(tree: &Arc<Tree>, before: &Map, after: &Map) {
    let found: Map = walk(tree, Direction::Forwards).unwrap().into_iter().collect();
    for key in before.keys().chain(after.keys()).chain(found.keys()) {
        let value = found.get(key);
        assert!(value == before.get(key) || value == after.get(key), "{key:?} has something else");
    }
}

#[test]
fn c4_c9_a_crash_at_any_step_of_a_merge_on_three_threads_leaves_an_old_root_or_the_new_one() {
    let batches = batches();
    let maps = maps(&batches);
    for (opened, pace) in [(open as fn(&SimulatedDevice, usize) -> _, 1), (|disk, _| open_dividing(disk), 3)]
    {
        let (mut step, mut parts_count, mut said) = (1, 0, 0);
        loop {
            let device = SimulatedDevice::new(step);
            let tree = opened(&device, CACHE_BYTES);
            device.crash_after(step);
            let done = merge_from(&tree, &batches, 0);
            if !device.crashed() {
                break;
            }
            for seed in 0..5 {
                let after = device.crash_states().after_crash_seeded(seed);
                let tree = opened(&after, CACHE_BYTES);
                tree.check().unwrap();
                let found = tree.settled_to() as usize;
                assert!(found == done || found == done + 1, "{found} batches are there of {done}");
                let rows: Map = walk(&tree, Direction::Forwards).unwrap().into_iter().collect();
                if rows != maps[found] {
                    assert_between(&tree, &maps[found], &maps[found + 1]);
                    parts_count += 1;
                    said += assert_begun(&tree, &batches[found], &rows);
                }
                // What has been merged is merged once more, and says the same.
                assert_eq!(merge_from(&tree, &batches, found), batches.len());
                assert_same(&tree, &maps[batches.len()]);
                tree.check().unwrap();
            }
            step += pace;
        }
        // Only between ranges there are parts of a merge.
        assert_eq!(parts_count > 0, pace > 1, "{parts_count} of {step} steps");
        assert!(said >= parts_count, "{said} changes in {parts_count} parts");
        assert!(step > 50, "{step} steps");
    }
}

#[test]
fn c4_c8_a_write_or_a_read_that_fails_on_one_of_three_threads_leaves_the_old_root_and_takes_no_block() {
    let batches = batches();
    let maps = maps(&batches);
    for (operation, kind, is_final) in [
        (OperationKind::Write, FaultKind::EIO, true),
        (OperationKind::Write, FaultKind::ShortWrite, true),
        (OperationKind::Sync, FaultKind::EIO, true),
        (OperationKind::Read, FaultKind::EIO, false),
        (OperationKind::Any, FaultKind::ENOSPC, false),
    ] {
        let mut fired = 0;
        for nth in 1.. {
            let device = SimulatedDevice::new(nth);
            // Nothing is in memory, so that all is read.
            let tree = open(&device, 0);
            device.inject(Fault { operation, nth, kind, sticky: false });
            let mut done = 0;
            let mut before = tree.statistics();
            while done < batches.len()
                && merge_in_parts(&tree, &batches[done], &separators(), Some(done as u64 + 1)).is_ok()
            {
                done += 1;
                before = tree.statistics();
            }
            if device.faults_fired() == 0 {
                break;
            }
            fired += 1;
            device.clear_faults();
            tree.check().unwrap();
            assert_same(&tree, &maps[done]);
            let failed = tree.check_not_failed().is_err();
            assert!(!is_final || failed || done == batches.len(), "{operation:?} {nth}");
            if done == batches.len() || failed {
                let error = merge_in_parts(&tree, &batches[0], &separators(), None).err();
                assert_eq!(failed, error.is_some_and(|error| error.kind() == ErrorKind::Io));
                continue;
            }
            assert_eq!(tree.statistics().used_bytes, before.used_bytes, "{operation:?} {nth}");
            assert_eq!(merge_from(&tree, &batches, done), batches.len());
            assert_same(&tree, &maps[batches.len()]);
            tree.check().unwrap();
        }
        assert!(fired > 3, "{fired} of {operation:?}");
    }
}

/// Rows of a batch, behind which there is an end that is none.
struct Ending<'b>(std::collections::btree_map::Iter<'b, Vec<u8>, Option<Vec<u8>>>, End);

#[derive(Clone, Copy, PartialEq)]
enum End {
    Ordinary,
    Error,
    Panic,
}

impl Rows for Ending<'_> {
    fn next(&mut self, row: &mut ChangedRow) -> crate::error::Result<bool> {
        let Ending(rest, end) = self;
        if let Some(next) = rest.next() {
            let Change { key, value, expires_at } = change(next);
            row.set(key, value, expires_at);
            return Ok(true);
        }
        match end {
            End::Ordinary => Ok(false),
            End::Error => Err(Error::new(ErrorKind::Limit, "the rows end with an error")),
            End::Panic => panic!("the rows end with a panic"),
        }
    }
}

#[test]
fn c4_c8_rows_that_fail_or_panic_on_one_of_three_threads_leave_the_tree_as_it_was() {
    let rows = |round: u8, from: u64| -> Batch {
        (from..from + 3_000).map(|number| (key(number), Some(vec![round; 100]))).collect()
    };
    for failing in 0..3 {
        for end in [End::Error, End::Panic] {
            let tree = open(&SimulatedDevice::new(1), CACHE_BYTES);
            let batches: Vec<Batch> = (0..3).map(|part| rows(0, 3_000 * part)).collect();
            let all: Batch =
                batches.iter().flatten().map(|(key, value)| (key.clone(), value.clone())).collect();
            merge_in_parts(&tree, &all, &[key(3_000), key(6_000)], Some(1)).unwrap();
            let mut map = Map::new();
            apply(&all, &mut map);
            let before = tree.statistics();
            let newer: Vec<Batch> = (0..3).map(|part| rows(1, 3_000 * part)).collect();
            let ends = |number: usize| if number == failing { end } else { End::Ordinary };
            let mut parts: Vec<_> =
                newer.iter().enumerate().map(|(number, rows)| Ending(rows.iter(), ends(number))).collect();
            let merge = || tree.merge_in_parts(&mut parts, &[key(3_000), key(6_000)], Some(2));
            match std::panic::catch_unwind(std::panic::AssertUnwindSafe(merge)) {
                Ok(merged) => assert!(end == End::Error && merged.unwrap_err().kind() == ErrorKind::Limit),
                Err(_) => assert!(end == End::Panic),
            }
            assert_same(&tree, &map);
            assert_eq!((tree.settled_to(), tree.statistics().used_bytes), (1, before.used_bytes));
            let newer: Batch = newer.into_iter().flatten().collect();
            merge_in_parts(&tree, &newer, &[key(3_000), key(6_000)], Some(2)).unwrap();
            apply(&newer, &mut map);
            assert_same(&tree, &map);
            tree.check().unwrap();
        }
    }
}

#[test]
fn a_row_that_is_not_of_its_interval_is_not_merged() {
    let tree = open(&SimulatedDevice::new(1), CACHE_BYTES);
    let (none, batch): (Batch, Batch) = (Batch::new(), [(key(7), Some(Vec::new()))].into());
    for (parts, separator) in [([&none, &batch], key(8)), ([&batch, &none], key(7))] {
        let mut rows = parts.map(changes);
        let merge = || tree.merge_in_parts(&mut rows, &[separator], None);
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(merge)).unwrap_err();
        assert!(tree.is_empty() && tree.root().generation == 0);
    }
}

/// In how many pieces the leaves of each of the lowest inner nodes lie.
fn pieces(tree: &Tree) -> Vec<usize> {
    let mut nodes: Vec<_> = tree.root().top().into_iter().collect();
    let mut pieces = Vec::new();
    while let Some((reference, level)) = nodes.pop() {
        let node = tree.pages.node(&reference, level).unwrap();
        if level > 1 {
            nodes.extend(node.children(0).map(|child| (child, level - 1)));
            continue;
        }
        let mut leaves: Vec<_> = node.children(0).collect();
        leaves.sort_by_key(|leaf| leaf.block);
        let is_apart = |leaves: &&[super::super::NodeReference]| {
            leaves[0].block + u64::from(leaves[0].blocks) != leaves[1].block
        };
        pieces.push(leaves.windows(2).filter(is_apart).count() + 1);
    }
    pieces
}

/// Blocks were given out one leaf at a time: those of one parent lay among those of all others, and were read one by one.
#[test]
fn the_leaves_of_a_parent_lie_in_few_pieces_whichever_thread_has_written_them() {
    let separators = [key(15_000), key(30_000), key(45_000)];
    let trees = [&separators[..0], &separators]
        .map(|separators| (open(&SimulatedDevice::new(1), CACHE_BYTES), separators));
    // All rows, or some of one leaf in three.
    for step in [1, 1, 200] {
        let pieces = trees.each_ref().map(|(tree, separators)| {
            let rows: Batch =
                (0..60_000).step_by(step).map(|number| (key(number), Some(vec![step as u8; 100]))).collect();
            merge_in_parts(tree, &rows, separators, None).unwrap();
            let check = tree.check().unwrap();
            // Small ones there are only at the separators.
            assert!(check.leaf_bytes < 60_000 * 130, "{} bytes", check.leaf_bytes);
            pieces(tree)
        });
        let [one, several] = pieces.each_ref().map(|pieces| pieces.iter().sum::<usize>());
        assert!(several <= one + 8 * pieces[1].len(), "{pieces:?}");
    }
}

/// Each thread had a node above its leaves, and there was one above all of them.
#[test]
fn a_tree_is_no_higher_for_having_been_merged_on_several_threads() {
    let height = |rows: u64, separators: &[Vec<u8>]| {
        let tree = open(&SimulatedDevice::new(1), CACHE_BYTES);
        let batch: Batch = (0..rows).map(|number| (key(number), Some(vec![1; 100]))).collect();
        for _ in 0..3 {
            merge_in_parts(&tree, &batch, separators, None).unwrap();
        }
        tree.check().unwrap();
        tree.root().height
    };
    assert_eq!(height(3, &[key(1), key(2)]), 2);
    assert_eq!(height(3_000, &[key(1_000), key(2_000)]), height(3_000, &[]));
    assert_eq!(height(40_000, &[key(10_000), key(20_000), key(30_000)]), height(40_000, &[]));
}

/// What is known of the nodes of a part is in memory until all parts are put together.
#[test]
fn parts_whose_nodes_have_long_keys_end_before_these_take_much_memory() {
    let long = |number: u64| [vec![b'k'; 20_000], key(number)].concat();
    let tree = open(&SimulatedDevice::new(1), CACHE_BYTES);
    let mut map = Map::new();
    for round in 0..3_u8 {
        let batch: Batch = (0..120).map(|number| (long(number), Some(vec![round; 20]))).collect();
        let generation = tree.root().generation;
        merge_in_parts(&tree, &batch, &[long(50)], Some(round.into())).unwrap();
        let roots = tree.root().generation - generation;
        assert!(roots > 10, "{roots} roots");
        apply(&batch, &mut map);
        assert_same(&tree, &map);
        tree.check().unwrap();
    }
}
