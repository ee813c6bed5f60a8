//! What is left when the power fails, or an operation.

use super::*;
use crate::device::{Fault, FaultKind, OperationKind};
use crate::error::{Error, ErrorKind, Result};
use crate::storage::tree::{ChangedRow, Rows};

/// Batches that make a tree of a few dozen blocks, with long values, and empty it again.
pub(super) fn batches() -> Vec<Batch> {
    let random = &mut Random(3);
    let mut batches = Vec::new();
    let first = (0..400).map(|number| (key(number), Some(vec![number as u8; 60]))).collect();
    batches.push(first);
    for round in 0..4u8 {
        let mut batch: Batch = (0..12).map(|_| (key(random.below(500)), Some(vec![round; 80]))).collect();
        batch.insert(key(random.below(500)), Some(vec![round; 9000]));
        for _ in 0..3 {
            batch.insert(key(random.below(500)), None);
        }
        batches.push(batch);
    }
    batches.push((0..450).map(|number| (key(number), None)).collect());
    batches
}

/// The map before each of the batches, and after all.
pub(super) fn maps(batches: &[Batch]) -> Vec<Map> {
    let mut maps = vec![Map::new()];
    for batch in batches {
        let mut next = maps[maps.len() - 1].clone();
        apply(batch, &mut next);
        maps.push(next);
    }
    maps
}

/// Merges from `first` on until one fails; how many are done then.
fn merge_from(tree: &Tree, batches: &[Batch], first: usize) -> usize {
    for (number, batch) in batches.iter().enumerate().skip(first) {
        if tree.merge(&mut changes(batch), Some(number as u64 + 1)).is_err() {
            return number;
        }
    }
    batches.len()
}

/// The tree is whole, and that after `done` batches, or one more; returns which.
fn assert_old_or_new(tree: &Arc<Tree>, maps: &[Map], done: usize) -> usize {
    tree.check().unwrap();
    let found = tree.settled_to() as usize;
    assert!(found == done || found == done + 1, "{found} batches are there of {done}");
    assert_same(tree, &maps[found]);
    found
}

#[test]
fn c4_c9_a_crash_at_any_step_of_a_merge_leaves_the_old_root_or_the_new_one() {
    let batches = batches();
    let maps = maps(&batches);
    let (mut step, mut states_count) = (1, 0);
    loop {
        let device = SimulatedDevice::new(step);
        device.crash_after(step);
        let Ok(tree) = try_open(&device, CACHE_BYTES) else { unreachable!("opening takes no step") };
        let done = merge_from(&tree, &batches, 0);
        if !device.crashed() {
            break;
        }
        let states = device.crash_states();
        let exhaustive = states.unit_count() <= 3;
        for choice in 0..if exhaustive { 1 << states.unit_count() } else { 10 } {
            let after =
                if exhaustive { states.after_crash_mask(choice) } else { states.after_crash_seeded(choice) };
            states_count += 1;
            let tree = Arc::new(try_open(&after, CACHE_BYTES).unwrap());
            let found = assert_old_or_new(&tree, &maps, done);
            if choice % 4 == 0 {
                crash_again(&after, &batches, &maps, found, step * 31 + choice);
            } else {
                assert_eq!(merge_from(&tree, &batches, found), batches.len());
                assert_same(&tree, &maps[batches.len()]);
                tree.check().unwrap();
            }
        }
        step += 1;
    }
    assert!(step > 50 && states_count > 300, "{step} steps, {states_count} states");
}

/// Goes on with what a crash has left until another one, of which nothing may have been lost either.
fn crash_again(device: &SimulatedDevice, batches: &[Batch], maps: &[Map], found: usize, seed: u64) {
    let tree = open(device, CACHE_BYTES);
    device.crash_after(device.steps() + 1 + seed % 17);
    let done = merge_from(&tree, batches, found);
    let after = device.crash_states().after_crash_seeded(seed);
    let tree = open(&after, CACHE_BYTES);
    assert_old_or_new(&tree, maps, done);
}

#[test]
fn c8_after_a_failed_write_or_sync_no_merge_succeeds_and_reads_go_on() {
    let batches = batches();
    let maps = maps(&batches);
    let kinds = [FaultKind::EIO, FaultKind::ENOSPC, FaultKind::ShortWrite, FaultKind::FailedSyncThenSuccess];
    for (index, kind) in kinds.into_iter().enumerate() {
        for nth in 1.. {
            let device = SimulatedDevice::new(nth);
            let tree = open(&device, CACHE_BYTES);
            device.inject(Fault { operation: OperationKind::Any, nth, kind, sticky: false });
            let done = merge_from(&tree, &batches, 0);
            if device.faults_fired() == 0 {
                break;
            }
            if done == batches.len() {
                // Cutting off the file's end has failed, which matters to nobody.
                assert_same(&tree, &maps[done]);
                continue;
            }
            assert_same(&tree, &maps[done]);
            let root = tree.root();
            let again = tree.merge(&mut changes(&batches[done]), Some(done as u64 + 1));
            match again {
                Err(error) => assert_eq!(error.kind(), ErrorKind::Io, "{error}"),
                // What failed was not a write, nor a sync.
                Ok(_) => assert_same(&tree, &maps[done + 1]),
            }
            let now = if tree.settled_to() == root.settled_to() { done } else { done + 1 };
            assert_same(&tree, &maps[now]);
            let states = device.crash_states();
            for seed in 0..3 {
                let after = states.after_crash_seeded(seed * 7 + index as u64);
                assert_old_or_new(&open(&after, CACHE_BYTES), &maps, now);
            }
        }
    }
}

/// Changes of which only so many can be read.
struct Unreadable<R>(R, usize);

impl<R: Rows> Rows for Unreadable<R> {
    fn next(&mut self, row: &mut ChangedRow) -> Result<bool> {
        self.1 = self.1.checked_sub(1).ok_or_else(|| Error::caller("the disk fails"))?;
        self.0.next(row)
    }
}

/// What had been read would have passed for all there is.
#[test]
fn c4_c8_a_merge_of_changes_that_cannot_all_be_read_is_none() {
    let batches = batches();
    let maps = maps(&batches);
    let tree = open(&SimulatedDevice::new(1), CACHE_BYTES);
    tree.merge(&mut changes(&batches[0]), Some(1)).unwrap();
    let last = batches[1].len();
    for readable in (0..last).step_by(last / 8 + 1).chain([last]) {
        tree.merge(&mut Unreadable(changes(&batches[1]), readable), Some(2)).unwrap_err();
        assert_eq!(tree.settled_to(), 1);
        assert_same(&tree, &maps[1]);
    }
    tree.merge(&mut changes(&batches[1]), Some(2)).unwrap();
    assert_same(&tree, &maps[2]);
}

/// It was in a node whose keys are no rows.
#[test]
fn c8_a_cursor_that_cannot_read_on_is_past_the_end() {
    let device = SimulatedDevice::new(1);
    let tree = open(&device, 0);
    tree.merge(&mut changes(&batches()[0]), Some(1)).unwrap();
    for direction in [Direction::Forwards, Direction::Backwards] {
        let mut cursor = Cursor::new(&tree, tree.root());
        cursor.seek(Bound::Unbounded, direction).unwrap();
        device.inject(Fault { operation: OperationKind::Read, nth: 1, kind: FaultKind::EIO, sticky: true });
        let mut has_failed = false;
        while !has_failed && cursor.key().is_some() {
            has_failed = cursor.step().is_err();
        }
        device.clear_faults();
        assert!(has_failed && cursor.key().is_none());
    }
}

/// As [`open`], of a tree whose merges replace a leaf or two at a time.
pub(super) fn open_dividing(device: &SimulatedDevice) -> Arc<Tree> {
    let mut tree = try_open(device, CACHE_BYTES).unwrap();
    tree.set_replaced_bytes_min(1);
    Arc::new(tree)
}

#[test]
fn c4_c9_a_crash_between_the_ranges_of_a_merge_leaves_the_changes_up_to_a_key() {
    let batches = batches();
    let maps = maps(&batches);
    let (mut step, mut parts_count) = (1, 0);
    let (mut merged, mut said) = (0, 0);
    loop {
        let device = SimulatedDevice::new(step);
        let tree = open_dividing(&device);
        device.crash_after(step);
        let done = merge_from(&tree, &batches, 0);
        if !device.crashed() {
            break;
        }
        for seed in 0..6 {
            let after = device.crash_states().after_crash_seeded(seed);
            let tree = open_dividing(&after);
            tree.check().unwrap();
            let found = tree.settled_to() as usize;
            assert!(found == done || found == done + 1, "{found} batches are there of {done}");
            let rows: Map = walk(&tree, Direction::Forwards).unwrap().into_iter().collect();
            if rows != maps[found] {
                parts_count += 1;
                let keys = batches[found].iter();
                let part = (0..batches[found].len()).find(|&count| {
                    let mut map = maps[found].clone();
                    apply(
                        &keys.clone().take(count).map(|(key, value)| (key.clone(), value.clone())).collect(),
                        &mut map,
                    );
                    map == rows
                });
                let part = part.expect("what is there of a merge is what it has up to a key");
                let begun = assert_begun(&tree, &batches[found], &rows);
                // Of keys that have gone none says that they have.
                if found + 1 < batches.len() {
                    (merged, said) = (merged + part, said + begun);
                }
            } else {
                let next = batches.get(found).unwrap_or(&batches[0]);
                assert_eq!(assert_begun(&tree, next, &rows), 0, "none has begun");
            }
            // What has been merged is merged once more, and says the same.
            assert_eq!(merge_from(&tree, &batches, found), batches.len());
            assert_same(&tree, &maps[batches.len()]);
            tree.check().unwrap();
        }
        step += 3;
    }
    assert!(parts_count > 20, "{parts_count} states between two ranges");
    assert!(said > merged / 10 * 8, "of {merged} changes that were merged {said} are said to be");
}

#[test]
fn a_merge_of_everything_needs_room_for_a_part_of_the_tree_beside_it() {
    let device = SimulatedDevice::new(1);
    let tree = open_dividing(&device);
    let all =
        |round: u8| -> Batch { (0..20_000).map(|number| (key(number), Some(vec![round; 100]))).collect() };
    tree.merge(&mut changes(&all(0)), None).unwrap();
    let used_bytes = tree.statistics().used_bytes;
    device.set_capacity(Some(used_bytes * 5 / 4));
    for round in 1..4 {
        let batch = all(round);
        tree.merge(&mut changes(&batch), Some(round.into())).unwrap();
        let mut map = Map::new();
        apply(&batch, &mut map);
        assert_same(&tree, &map);
        assert_eq!(tree.settled_to(), round.into());
    }
    tree.check().unwrap();
}

#[test]
fn c8_a_merge_that_finds_the_disk_full_can_be_tried_again() {
    let device = SimulatedDevice::new(1);
    let tree = open(&device, CACHE_BYTES);
    let (small, mut map): (Batch, Map) =
        ((0..100).map(|number| (key(number), Some(vec![1; 100]))).collect(), Map::new());
    tree.merge(&mut changes(&small), None).unwrap();
    apply(&small, &mut map);
    device.set_capacity(Some(device.used_bytes() + 10_000));
    let large: Batch = (0..5000).map(|number| (key(number), Some(vec![2; 100]))).collect();
    let error = tree.merge(&mut changes(&large), None).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NoSpace, "{error}");
    assert_same(&tree, &map);
    assert_eq!(device.bytes("tree").len() as u64, tree.statistics().file_bytes);
    device.set_capacity(None);
    tree.merge(&mut changes(&large), None).unwrap();
    apply(&large, &mut map);
    assert_same(&tree, &map);
    tree.check().unwrap();
}

/// The file was to grow by an eighth; the disk, which had room for less, gave all that, and nobody knew.
#[test]
fn c5_a_tree_grows_as_far_as_the_disk_has_room_and_takes_no_more_than_it_knows_of() {
    const ROOM_BYTES: u64 = 400 << 10;
    let device = SimulatedDevice::new(1);
    let tree = open(&device, CACHE_BYTES);
    let rows = |start: u64, count: u64| -> Batch {
        (start..start + count).map(|number| (key(number), Some(vec![3; 100]))).collect()
    };
    let mut count = 40_000;
    tree.merge(&mut changes(&rows(0, count)), None).unwrap();
    device.set_capacity(Some(device.used_bytes() + ROOM_BYTES));
    let full = loop {
        match tree.merge(&mut changes(&rows(count, 200)), None) {
            Ok(_) => count += 200,
            Err(error) => break error,
        }
        assert_eq!(device.bytes("tree").len() as u64, tree.statistics().file_bytes);
    };
    assert_eq!(full.kind(), ErrorKind::NoSpace, "{full}");
    let statistics = tree.statistics();
    assert_eq!(device.bytes("tree").len() as u64, statistics.file_bytes);
    assert!(statistics.file_bytes - statistics.used_bytes < ROOM_BYTES / 2, "{statistics:?}");
    assert_eq!(statistics.entries, count);
    tree.check().unwrap();
}

#[test]
fn a_copy_is_the_root_that_was_copied() {
    let device = SimulatedDevice::new(1);
    let (tree, batches) = (open(&device, CACHE_BYTES), batches());
    let maps = maps(&batches);
    for done in 0..batches.len() {
        let target = SimulatedDevice::new(2);
        let root = tree.root();
        assert_eq!(merge_from(&tree, &batches[..=done], done), done + 1);
        let mut last = 0;
        tree.copy_to(&root, &target, &mut |bytes| last = bytes).unwrap();
        target.sync_directory().unwrap();
        let copied =
            open(&target.crash_states().after_crash(&mut |_| crate::device::Keep::Lost), CACHE_BYTES);
        copied.check().unwrap();
        // It is no longer than it need be.
        assert!(target.bytes("tree").len() as u64 <= copied.statistics().used_bytes + (4 << 10));
        assert_same(&copied, &maps[done]);
        assert_eq!(copied.settled_to(), done as u64);
        let bytes: usize = maps[done].iter().map(|(key, value)| key.len() + value.len()).sum();
        assert_eq!(last, bytes as u64);
    }
}

/// Who opens the tree after a kill sees a root slot that was written and never synced. The blocks of the root before it, which may be the
/// durable one, must not be written over until that is settled.
#[test]
fn c4_a_root_that_was_not_durable_when_the_process_died_is_made_so_before_its_blocks_are_used() {
    let batches = batches();
    let maps = maps(&batches);
    let mut tried = 0;
    for nth in 1.. {
        let device = SimulatedDevice::new(nth);
        let tree = open(&device, CACHE_BYTES);
        device.inject(Fault { operation: OperationKind::Sync, nth, kind: FaultKind::EIO, sticky: true });
        let done = merge_from(&tree, &batches, 0);
        drop(tree);
        if device.faults_fired() == 0 {
            break;
        }
        device.clear_faults();
        let tree = open(&device, CACHE_BYTES);
        let found = tree.settled_to() as usize;
        device.crash_after(device.steps() + 4);
        merge_from(&tree, &batches, found);
        let states = device.crash_states();
        for seed in 0..12 {
            let after = open(&states.after_crash_seeded(seed), CACHE_BYTES);
            let survived = after.settled_to() as usize;
            assert!(survived >= done, "{survived} of {done}");
            after.check().unwrap();
            assert_same(&after, &maps[survived]);
            tried += 1;
        }
    }
    assert!(tried > 100, "{tried}");
}
