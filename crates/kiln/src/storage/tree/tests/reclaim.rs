//! What is given up when nobody needs it any more: blocks, and the file's end.

use std::panic::{AssertUnwindSafe, catch_unwind};

use super::*;
use crate::device::{Fault, FaultKind, OperationKind};
use crate::sync::atomic::{AtomicU64, Ordering};

/// Rows that take some hundreds of blocks.
fn rows(count: u64) -> Batch {
    (0..count).map(|number| (key(number), Some(vec![number as u8; 100]))).collect()
}

fn deletions(batch: &Batch) -> Batch {
    batch.keys().map(|key| (key.clone(), None)).collect()
}

/// The tree is empty, its file as short as that of an empty one, and what is said of it so.
fn assert_nothing_left(tree: &Arc<Tree>, device: &SimulatedDevice) {
    let empty = tree.statistics();
    assert!(tree.is_empty());
    assert!(empty.file_bytes <= 256 << 10 && empty.used_bytes <= 64 << 10, "{empty:?}");
    assert_eq!(device.bytes("tree").len() as u64, empty.file_bytes);
    tree.check().unwrap();
}

/// The walk over what was to go kept the root with all of it.
#[test]
fn removing_all_keys_gives_their_blocks_back_at_once() {
    for bytes_min in [1, 1 << 30] {
        let device = SimulatedDevice::new(1);
        let mut tree = try_open(&device, CACHE_BYTES).unwrap();
        tree.set_replaced_bytes_min(bytes_min);
        let tree = Arc::new(tree);
        tree.merge(&mut changes(&rows(10_000)), None).unwrap();
        let full = tree.root().generation;
        tree.remove_all(&key(0), &key(10_000), &|| Ok(())).unwrap();
        assert_nothing_left(&tree, &device);
        // Nor has it grown much meanwhile where it was done in parts.
        let parts = tree.root().generation - full;
        assert!(bytes_min > 1 || parts > 10, "{parts} parts");
    }
}

#[test]
fn c5_all_keys_can_be_removed_on_a_full_disk() {
    // At the file's end there is as much as a merge needs, or less.
    for count in (3_000..4_500).step_by(50) {
        let device = SimulatedDevice::new(count);
        let tree = open(&device, CACHE_BYTES);
        tree.merge(&mut changes(&rows(count)), None).unwrap();
        device.set_capacity(Some(device.used_bytes()));
        tree.remove_all(&key(0), &key(count), &|| Ok(())).unwrap();
        assert_nothing_left(&tree, &device);
    }
}

#[test]
fn what_a_root_has_kept_is_reclaimed_when_it_is_given_up() {
    let device = SimulatedDevice::new(1);
    let tree = open(&device, CACHE_BYTES);
    let all = rows(10_000);
    tree.merge(&mut changes(&all), None).unwrap();
    let full = tree.statistics();
    let held = tree.root();
    tree.merge(&mut changes(&deletions(&all)), Some(9)).unwrap();
    let before = tree.statistics();
    assert_eq!(tree.reclaim().unwrap(), 0, "the root is held");
    assert_eq!(tree.statistics(), before);
    let mut value = Vec::new();
    assert!(tree.get_at(&held, &key(9_999), &mut value).unwrap().is_some());
    drop(held);
    let cut_bytes = tree.reclaim().unwrap();
    assert!(cut_bytes > full.used_bytes / 2, "{cut_bytes} of {}", full.used_bytes);
    assert_eq!(tree.statistics().file_bytes + cut_bytes, before.file_bytes);
    assert_nothing_left(&tree, &device);
    let generation = tree.root().generation;
    assert_eq!(tree.reclaim().unwrap(), 0);
    assert_eq!(tree.root().generation, generation, "nothing was to be done");
    assert_eq!(open(&device, CACHE_BYTES).settled_to(), 9);
}

/// All rows, of so many, as they are in a round.
fn rows_of(round: u8, count: u64) -> Batch {
    (0..count).map(|number| (key(number), Some(vec![round; 100]))).collect()
}

fn assert_held(tree: &Arc<Tree>, root: &Arc<Root>, rows: &Batch) {
    let found = walk_at(tree, Arc::clone(root), Direction::Forwards).unwrap();
    let rows: Vec<_> =
        rows.iter().map(|(key, value)| (key.clone(), value.clone().unwrap_or_default())).collect();
    assert!(found == rows, "what a root that is held has was written over");
}

/// What had come and gone meanwhile was kept with what the held root has: the file became longer with every merge of a backup's time.
#[test]
fn c5_what_came_behind_a_root_that_is_held_and_went_is_used_again() {
    const ROWS: u64 = 10_000;
    let device = SimulatedDevice::new(1);
    let mut tree = try_open(&device, CACHE_BYTES).unwrap();
    tree.set_replaced_bytes_min(1);
    let tree = Arc::new(tree);
    let first = rows_of(0, ROWS);
    tree.merge(&mut changes(&first), None).unwrap();
    let one = tree.statistics().used_bytes;
    let held = tree.root();
    let mut last = Batch::new();
    for round in 1..=10 {
        // Others hold one for a while.
        let shortly = tree.root();
        last = rows_of(round, ROWS);
        tree.merge(&mut changes(&last), None).unwrap();
        if round > 1 {
            assert_held(&tree, &shortly, &rows_of(round - 1, ROWS));
        }
    }
    let statistics = tree.statistics();
    assert!(statistics.file_bytes < 4 * one, "{} times", statistics.file_bytes / one);
    assert_held(&tree, &held, &first);
    let mut map = Map::new();
    apply(&last, &mut map);
    assert_same(&tree, &map);
    drop(held);
    tree.reclaim().unwrap();
    assert!(tree.statistics().used_bytes < one + one / 4);
    tree.check().unwrap();
}

/// There is a bitmap for so many of them at most.
#[test]
fn c2_however_many_roots_are_held_each_stays_as_it_was_until_it_is_given_up() {
    const ROWS: u64 = 300;
    let random = &mut Random(9);
    let device = SimulatedDevice::new(1);
    let tree = open(&device, CACHE_BYTES);
    tree.merge(&mut changes(&rows_of(0, ROWS)), None).unwrap();
    let one = tree.statistics().used_bytes;
    let mut held = vec![(tree.root(), rows_of(0, ROWS))];
    for round in 1..60 {
        tree.merge(&mut changes(&rows_of(round, ROWS)), None).unwrap();
        held.push((tree.root(), rows_of(round, ROWS)));
        // As many as there are bitmaps for, and twice as many.
        while held.len() > if round < 30 { 17 } else { 6 } {
            held.swap_remove(random.below(held.len() as u64) as usize);
        }
        held.iter().for_each(|(root, rows)| assert_held(&tree, root, rows));
    }
    assert!(tree.statistics().used_bytes <= 10 * one, "{:?}, of which one has {one}", tree.statistics());
    held.clear();
    tree.reclaim().unwrap();
    assert!(tree.statistics().used_bytes <= 2 * one);
    tree.check().unwrap();
}

/// Whoever closed the database waited for all of it.
#[test]
fn c4_what_walks_over_rows_to_change_them_asks_whether_to_go_on_and_leaves_a_whole_tree() {
    const ROWS: u64 = 20_000;
    let device = SimulatedDevice::new(1);
    let mut tree = try_open(&device, CACHE_BYTES).unwrap();
    tree.set_replaced_bytes_min(1 << 30);
    let tree = Arc::new(tree);
    tree.merge(&mut changes(&rows(ROWS)), None).unwrap();
    let all = walk(&tree, Direction::Forwards).unwrap();
    let asked = AtomicU64::new(0);
    let stops = |most: u64| {
        let asked = &asked;
        move || match asked.fetch_add(1, Ordering::Relaxed) < most {
            true => Ok(()),
            false => Err(crate::error::Error::closed()),
        }
    };
    let error = tree.rewrite(&[], &stops(5)).map(drop).unwrap_err();
    assert_eq!(error.kind(), crate::error::ErrorKind::Aborted, "{error}");
    asked.store(0, Ordering::Relaxed);
    let error = tree.remove_all(&key(0), &key(ROWS), &stops(5)).unwrap_err();
    assert_eq!(error.kind(), crate::error::ErrorKind::Aborted, "{error}");
    assert!(walk(&tree, Direction::Forwards).unwrap() == all);
    tree.check().unwrap();
    assert_eq!(tree.rewrite(&[], &|| Ok(())).unwrap(), None);
    tree.remove_all(&key(0), &key(ROWS), &|| Ok(())).unwrap();
    assert_nothing_left(&tree, &device);
}

/// Makes one of some changes, in which a root is held, given up and reclaimed. `settled_to` says how many were made.
fn change(tree: &Arc<Tree>, number: u64) -> crate::error::Result<()> {
    let all = rows(1_500);
    let batch = match number {
        0 | 2 => all,
        // All of it but a leaf at the end.
        1 => deletions(&all.into_iter().take(1_450).collect()),
        _ => deletions(&all),
    };
    let held = tree.root();
    tree.merge(&mut changes(&batch), Some(number + 1))?;
    drop(held);
    tree.reclaim()?;
    Ok(())
}

const CHANGES: u64 = 4;

fn maps() -> Vec<Map> {
    let mut full = Map::new();
    apply(&rows(1_500), &mut full);
    let few = full.clone().into_iter().skip(1_450).collect();
    vec![Map::new(), full.clone(), few, full, Map::new()]
}

/// Makes those changes that are left; how many are done when one fails.
fn change_all(tree: &Arc<Tree>) -> u64 {
    (tree.settled_to()..CHANGES).find(|&number| change(tree, number).is_err()).unwrap_or(CHANGES)
}

/// After a crash the tree is whole, and that after `done` changes or one more; and the others can be made.
fn assert_goes_on(after: &SimulatedDevice, done: u64) {
    let tree = open(after, CACHE_BYTES);
    tree.check().unwrap();
    let found = tree.settled_to();
    assert!(found == done || found == done + 1, "{found} changes are there of {done}");
    assert_same(&tree, &maps()[found as usize]);
    tree.reclaim().unwrap();
    assert_same(&tree, &maps()[found as usize]);
    assert_eq!(change_all(&tree), CHANGES);
    assert!(tree.is_empty());
    tree.check().unwrap();
}

#[test]
fn c4_c9_a_crash_at_any_step_of_a_reclamation_leaves_the_old_root_or_the_new_one() {
    let (mut step, mut states_count) = (1, 0);
    loop {
        let device = SimulatedDevice::new(step);
        let tree = open(&device, CACHE_BYTES);
        device.crash_after(step);
        let mut done = change_all(&tree);
        if !device.crashed() {
            break;
        }
        // What has failed may be what comes behind the merge.
        done = done.max(tree.settled_to());
        let states = device.crash_states();
        for seed in 0..6 {
            assert_goes_on(&states.after_crash_seeded(seed), done);
            states_count += 1;
        }
        step += 1;
    }
    assert!(step > 30 && states_count > 180, "{step} steps, {states_count} states");
}

/// A device on which all syncs from the `nth` on fail, the tree, and how many changes were made.
fn until_a_sync_fails(nth: u64) -> (SimulatedDevice, Arc<Tree>, u64) {
    let device = SimulatedDevice::new(nth);
    let tree = open(&device, CACHE_BYTES);
    device.inject(Fault { operation: OperationKind::Sync, nth, kind: FaultKind::EIO, sticky: true });
    let done = change_all(&tree);
    (device, tree, done)
}

/// The slot of the new root was written, and may be found or not.
#[test]
fn c4_c9_while_it_is_unknown_which_root_will_be_found_nothing_of_either_is_reclaimed() {
    let mut tried = 0;
    for nth in 1.. {
        let (device, tree, done) = until_a_sync_fails(nth);
        if device.faults_fired() == 0 {
            break;
        }
        assert_eq!(tree.reclaim().unwrap(), 0, "of a tree that has failed");
        for seed in 0..6 {
            assert_goes_on(&device.crash_states().after_crash_seeded(seed), done);
        }
        // Opened again after a kill, and then the power fails: the root that was found is the one that must be there now.
        for further in 1..6 {
            let (device, tree, done) = until_a_sync_fails(nth);
            drop(tree);
            device.clear_faults();
            let tree = open(&device, CACHE_BYTES);
            device.crash_after(device.steps() + further);
            let _ = tree.reclaim();
            for seed in 0..6 {
                assert_goes_on(&device.crash_states().after_crash_seeded(seed), done);
                tried += 1;
            }
        }
    }
    assert!(tried > 100, "{tried}");
}

/// What the file had grown by was forgotten, and never cut off.
#[test]
fn a_source_of_rows_that_panics_leaves_nothing_of_the_merge() {
    let device = SimulatedDevice::new(1);
    let tree = open(&device, CACHE_BYTES);
    let few = rows(100);
    tree.merge(&mut changes(&few), Some(1)).unwrap();
    let before = tree.statistics();
    let many = rows(20_000);
    let panicking = || {
        let mut rows = changes(&many).inspect(|change| assert!(*change.key < *key(19_999), "the last row"));
        tree.load(&mut rows, 3)
    };
    assert!(catch_unwind(AssertUnwindSafe(panicking)).is_err());
    let after = tree.statistics();
    assert_eq!((after.used_bytes, after.entries), (before.used_bytes, before.entries));
    assert_eq!(device.bytes("tree").len() as u64, after.file_bytes);
    assert!(after.file_bytes <= before.file_bytes + (128 << 10), "{after:?} {before:?}");
    let mut map = Map::new();
    apply(&few, &mut map);
    assert_same(&tree, &map);
    tree.load(&mut changes(&many), 3).unwrap();
    apply(&many, &mut map);
    assert_same(&tree, &map);
    assert_eq!(device.bytes("tree").len() as u64, tree.statistics().file_bytes);
    tree.check().unwrap();
}
