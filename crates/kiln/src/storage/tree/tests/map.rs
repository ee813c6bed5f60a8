//! The map of free space, of files so large that it has many pages.

use std::iter::empty;
use std::sync::Arc;

use super::super::blocks::{Blocks, FileBlocks};
use super::super::map;
use super::super::output::Output;
use super::super::pages::Pages;
use super::super::reference::{BLOCK_FIRST, FILE_BLOCKS_MAX, NODE_BLOCKS_MAX};
use super::super::root::DirectoryReference;
use super::super::space::{Bitmap, PAGE_BLOCKS, Run, Space};
use super::Random;
use crate::device::{OpenMode, SimulatedDevice};
use crate::storage::names::Names;

/// Every root's map is read as it was written, whichever of its pages have changed, and one in which nothing is used has no page.
#[test]
fn c9_a_map_of_many_pages_is_read_as_it_was_written() {
    const RUN: u64 = PAGE_BLOCKS / 4;
    let names = Names::new(Arc::new(SimulatedDevice::new(1)));
    let file = names.device().open("tree", OpenMode::Create).unwrap();
    let pages = Pages::of_copy(Arc::clone(&names), "tree".to_owned(), Arc::clone(&file)).unwrap();
    let mut space = Space::new(Bitmap::default());
    let (mut directory, mut entries) = (DirectoryReference::default(), Vec::new());
    // Behind the first block the quarters of pages follow each other.
    let quarter = |number: u64| Run { block: BLOCK_FIRST + number * RUN, blocks: RUN };
    let changes: [(u64, &[u64]); 5] =
        [(22, &[]), (0, &[21]), (0, &[7, 8, 9, 10, 11]), (3, &[]), (0, &[0, 20])];
    let mut written = Vec::new();
    for (takes, frees) in changes {
        // Nobody holds an older root.
        space.begin(empty(), |_| ());
        let (mut file_bytes, mut has_failed) = (1 << 40, false);
        let mut blocks = FileBlocks::new(Arc::clone(&file), "tree", &mut space, (&mut file_bytes, 0));
        let mut output = Output::new(Arc::clone(&file), "tree", &mut has_failed);
        for _ in 0..takes {
            blocks.take(RUN as usize).unwrap();
        }
        assert!(frees.iter().all(|&number| blocks.free(quarter(number))));
        (directory, entries) = map::write(&mut output, &mut blocks, (&directory, &entries)).unwrap();
        output.sync().unwrap();
        written.push(output.bytes);
        space.commit();
        let (read, used) = map::read(&pages, &directory, 1 << 40).unwrap();
        assert_eq!(read, entries);
        assert!(used.is_same(space.used()));
        assert_eq!((used.count(), used.end()), (directory.used_blocks, directory.mapped_blocks));
    }
    // All of seven pages and the directory at first, and then fewer.
    assert!(written[1..].iter().all(|&bytes| bytes < written[0]), "{written:?}");
}

#[test]
fn a_bitmap_takes_its_pages_in_any_order_and_has_nothing_behind_its_end() {
    let (run, one) = (Run { block: PAGE_BLOCKS + 9, blocks: 1 }, Run { block: 9, blocks: 1 });
    let (mut whole, mut pages) = (Bitmap::default(), Bitmap::default());
    whole.put(Run { block: 5 * PAGE_BLOCKS, blocks: 100 }, false);
    assert!(whole.is_same(&Bitmap::default()));
    [run, one].into_iter().for_each(|run| whole.put(run, true));
    for page in [1, 0] {
        let bytes: Vec<u8> = whole.page(page).iter().flat_map(|word| word.to_le_bytes()).collect();
        pages.set_page(page, &bytes);
    }
    assert!(pages.is_same(&whole));
    assert_eq!((pages.count(), pages.end(), pages.page(2).len()), (2, PAGE_BLOCKS + 10, 0));
}

/// Space beside a list of blocks: what is given out is free and in a row, and what is taken back, or not, is as it was.
#[test]
fn blocks_are_given_out_once_and_taken_back_once() {
    const BLOCKS: usize = 3 * PAGE_BLOCKS as usize;
    for seed in 0..8 {
        let mut random = Random(seed);
        let mut space = Space::new(Bitmap::default());
        // What is used, and what somebody may still read.
        let (mut used, mut busy) = (vec![false; BLOCKS], vec![false; BLOCKS]);
        used[..BLOCK_FIRST as usize].fill(true);
        busy[..BLOCK_FIRST as usize].fill(true);
        let mut given: Vec<Run> = Vec::new();
        let mut held: Vec<Bitmap> = Vec::new();
        for _ in 1..20 {
            held.retain(|_| !random.one_in(4));
            let mut forgotten = vec![false; BLOCKS];
            space.begin(held.iter(), |block| forgotten[block as usize] = true);
            for block in 0..BLOCKS {
                let is_needed = used[block] || held.iter().any(|held| held.is_set(block as u64));
                assert_eq!(forgotten[block], busy[block] && !is_needed, "block {block}");
                busy[block] = is_needed;
            }
            let (used_before, busy_before, given_before) = (used.clone(), busy.clone(), given.clone());
            for _ in 0..random.below(30) {
                if random.one_in(3) && !given.is_empty() {
                    let run = given.swap_remove(random.below(given.len() as u64) as usize);
                    assert!(space.free(run));
                    assert!(!space.free(run), "it is not in use any more");
                    let place = run.block as usize..(run.block + run.blocks) as usize;
                    used[place.clone()].fill(false);
                    if !used_before[place.start] {
                        busy[place].fill(false);
                    }
                } else {
                    // At times longer than a node.
                    let most = if random.one_in(8) { 1_000 } else { NODE_BLOCKS_MAX.into() };
                    let blocks = 1 + random.below(most);
                    let run = Run { block: space.take(blocks).unwrap(), blocks };
                    let place = run.block as usize..(run.block + run.blocks) as usize;
                    assert!(busy[place.clone()].iter().all(|&is_busy| !is_busy), "{run:?} is taken");
                    used[place.clone()].fill(true);
                    busy[place].fill(true);
                    given.push(run);
                }
            }
            if random.one_in(4) {
                space.roll_back();
                (used, given) = (used_before, given_before);
                // Nobody has seen what was taken.
                busy.clone_from(&busy_before);
            } else {
                let before = space.commit();
                assert!((0..BLOCKS).all(|block| before.is_set(block as u64) == used_before[block]));
                held.extend(random.one_in(2).then_some(before));
            }
            assert_eq!(space.busy_count(), busy.iter().filter(|&&is_busy| is_busy).count() as u64);
            assert_eq!(space.used_count(), used.iter().filter(|&&is_used| is_used).count() as u64);
            assert!((0..BLOCKS).all(|block| space.used().is_set(block as u64) == used[block]));
        }
        assert!(!space.free(Run { block: BLOCKS as u64, blocks: 1 }), "nobody has it");
        assert_eq!(space.take(FILE_BLOCKS_MAX), None, "no file has so many");
    }
}

/// For each value of more than a node's length all holes from the file's beginning on were looked at again, that are too short for it.
#[test]
fn a_place_for_a_long_value_is_looked_for_behind_what_is_too_short_for_one() {
    const NODE: u64 = NODE_BLOCKS_MAX as u64;
    let mut used = Bitmap::default();
    (0..1_000).for_each(|number| used.put(Run { block: 2 * number, blocks: 1 }, true));
    // Two holes of two values each, of which the first one has one block less.
    let (first, second) = (1_999, 1_999 + 4 * NODE);
    used.put(Run { block: second - 1, blocks: 1 }, true);
    used.put(Run { block: second + 4 * NODE, blocks: 1 }, true);
    let mut space = Space::new(used);
    let start = space.search_start(2 * NODE);
    assert_eq!(space.take(2 * NODE), Some(first));
    assert_eq!(space.search_start(2 * NODE), first + 2 * NODE);
    assert_eq!(space.take(2 * NODE), Some(second));
    assert_eq!(space.search_start(2 * NODE), second + 2 * NODE);
    assert_eq!(space.search_start(3 * NODE), second + 2 * NODE, "nor is there room for more");
    assert_eq!(space.search_start(NODE), start, "nodes have what was passed over");
    assert_eq!(space.take(NODE), Some(first + 2 * NODE));
    space.begin(empty(), |_| ());
    assert_eq!(space.search_start(2 * NODE), start);
}
