//! What is wrong on disk is noticed, or makes no difference.

use super::*;
use crate::error::{ErrorKind, Result};

const BLOCK: usize = 4096;

/// A small tree with all there is: two levels, values of all lengths, a map. The file as it is, as it was a merge ago, and what is in it.
fn small_tree() -> (Vec<u8>, Vec<u8>, Map) {
    let device = SimulatedDevice::new(1);
    let tree = open(&device, CACHE_BYTES);
    let mut map = Map::new();
    let first: Batch = (0..250).map(|number| (key(number), Some(vec![number as u8; 50]))).collect();
    let mut second: Batch = (100..110).map(|number| (key(number), Some(vec![1; 55]))).collect();
    second.insert(key(7), Some(vec![9; 5000]));
    let third: Batch = (200..210).map(|number| (key(number), Some(vec![2; 45]))).collect();
    let mut older = Vec::new();
    for batch in [first, second, third] {
        older = tree.root().generation.checked_sub(1).map_or(Vec::new(), |_| device.bytes("tree"));
        tree.merge(&mut changes(&batch), None).unwrap();
        apply(&batch, &mut map);
    }
    (device.bytes("tree"), older, map)
}

/// Everything that a tree of this file has.
fn read_all(file: &[u8]) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
    let device = SimulatedDevice::new(1);
    device.set_bytes("tree", file);
    let tree = Arc::new(try_open(&device, CACHE_BYTES)?);
    let found = walk(&tree, Direction::Forwards)?;
    let mut backwards = walk(&tree, Direction::Backwards)?;
    backwards.reverse();
    assert!(backwards == found, "two walks differ");
    let mut value = Vec::new();
    for (key, expected) in &found {
        assert!(tree.get(key, &mut value)?.is_some() && value == *expected, "a walk and a look differ");
    }
    let ahead = try_open(&device, CACHE_BYTES)?;
    let mut leaves = ahead.leaves_ahead();
    found.iter().for_each(|(key, _)| leaves.want(key));
    leaves.read();
    for (key, expected) in &found {
        assert!(
            ahead.get(key, &mut value)?.is_some() && value == *expected,
            "a look ahead makes a difference"
        );
    }
    Ok(found)
}

/// Reading a file gives what is expected, or an error that says where; true if it gives an error.
fn assert_noticed(file: &[u8], map: &Map, what: &str) -> bool {
    match read_all(file) {
        Ok(found) => {
            assert!(found.into_iter().collect::<Map>() == *map, "{what}: a wrong answer");
            false
        }
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::Corrupted, "{what}: {error}");
            let (file, _) = error.place().unwrap_or_else(|| panic!("{what}: no place: {error}"));
            assert!(file.contains("tree"), "{what}: {error}");
            true
        }
    }
}

#[test]
fn c9_a_block_that_is_damaged_is_noticed_or_makes_no_difference() {
    let (file, older, map) = small_tree();
    assert!(!assert_noticed(&file, &map, "as it is"));
    let (mut noticed, mut tried) = (0, 0);
    let mut try_with = |block: usize, what: &str, contents: &[u8]| {
        let mut damaged = file.clone();
        damaged[block * BLOCK..(block + 1) * BLOCK].copy_from_slice(contents);
        if damaged != file {
            tried += 1;
            noticed += u32::from(assert_noticed(&damaged, &map, &format!("block {block} {what}")));
        }
    };
    let blocks: Vec<&[u8]> = file.chunks(BLOCK).collect();
    for (index, block) in blocks.iter().enumerate() {
        try_with(index, "zeroed", &[0; BLOCK]);
        for bit in (0..BLOCK * 8).step_by(1019) {
            let mut flipped = block.to_vec();
            flipped[bit / 8] ^= 1 << (bit % 8);
            try_with(index, &format!("with bit {bit} flipped"), &flipped);
        }
        try_with(index, "in the place of another", blocks[(index + 1) % blocks.len()]);
        if let Some(old) = older.get(index * BLOCK..(index + 1) * BLOCK) {
            try_with(index, "as it was", old);
        }
    }
    // Free blocks, which are most, and the second root slot make no difference.
    assert!(noticed > tried / 8 && noticed < tried, "{noticed} of {tried}");
}

#[test]
fn c9_two_blocks_that_have_changed_places_are_noticed_or_make_no_difference() {
    let (file, _, map) = small_tree();
    let count = file.len() / BLOCK;
    for one in 0..count {
        for other in one + 1..count {
            let mut swapped = file.clone();
            let (head, tail) = swapped.split_at_mut(other * BLOCK);
            head[one * BLOCK..][..BLOCK].swap_with_slice(&mut tail[..BLOCK]);
            assert_noticed(&swapped, &map, &format!("blocks {one} and {other} swapped"));
        }
    }
}

#[test]
fn c9_a_file_that_was_cut_off_is_noticed_or_makes_no_difference() {
    let (file, _, map) = small_tree();
    for blocks in 0..file.len() / BLOCK {
        assert_noticed(&file[..blocks * BLOCK], &map, &format!("cut to {blocks} blocks"));
    }
    assert!(assert_noticed(&file[..BLOCK * 5], &map, "cut to 5 blocks"));
}

#[test]
fn c9_damage_to_both_slots_is_an_error() {
    let (mut file, ..) = small_tree();
    file[16] ^= 1;
    file[BLOCK + 16] ^= 1;
    let error = read_all(&file).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupted, "{error}");
    assert!(error.place().is_some_and(|(_, offset)| offset == 0), "{error}");
}

#[test]
fn a_newer_format_is_refused_as_such() {
    let (mut file, ..) = small_tree();
    for slot in [0, BLOCK] {
        file[slot + 8] = crate::storage::tree::FORMAT as u8 + 1;
        let checksum = crc32c::crc32c(&file[slot..slot + 124]);
        file[slot + 124..slot + 128].copy_from_slice(&checksum.to_le_bytes());
    }
    assert_eq!(read_all(&file).unwrap_err().kind(), ErrorKind::Version);
}

#[test]
fn c9_merges_over_damage_fail_and_leave_the_tree_as_it_was() {
    let (file, _, map) = small_tree();
    let all: Batch = (0..250).map(|number| (key(number), Some(vec![3; 20]))).collect();
    let mut failed = 0;
    for block in 2..file.len() / BLOCK {
        let device = SimulatedDevice::new(1);
        let mut damaged = file.clone();
        damaged[block * BLOCK + 100] ^= 4;
        device.set_bytes("tree", &damaged);
        let Ok(tree) = try_open(&device, CACHE_BYTES) else { continue };
        let tree = Arc::new(tree);
        if let Err(error) = tree.merge(&mut changes(&all), Some(5)) {
            assert_eq!(error.kind(), ErrorKind::Corrupted, "{error}");
            failed += 1;
            assert_eq!(tree.statistics().entries, map.len() as u64);
            assert_eq!(tree.settled_to(), 0);
            // Bit by bit what it was, so that what is not damaged can still be read.
            device.flip_bit("tree", (block * BLOCK + 100) as u64 * 8 + 2);
            assert_same(&open(&device, CACHE_BYTES), &map);
        }
    }
    assert!(failed >= 3, "{failed}");
}

#[test]
fn c9_the_tree_of_another_database_is_refused() {
    let device = SimulatedDevice::new(1);
    open(&device, CACHE_BYTES).merge(&mut changes(&Batch::from([(key(1), Some(vec![1]))])), Some(8)).unwrap();
    let names = Names::new(Arc::new(device));
    assert!(Tree::open(&names, DATABASE, CACHE_BYTES, OpenMode::Read).is_ok());
    let error = Tree::open(&names, DATABASE + 1, CACHE_BYTES, OpenMode::Read).map(drop).unwrap_err();
    assert!(
        error.kind() == ErrorKind::Corrupted && error.to_string().contains("another database"),
        "{error}"
    );
}
