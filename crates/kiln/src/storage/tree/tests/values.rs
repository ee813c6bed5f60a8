//! Values that have blocks of their own.

use super::*;
use crate::error::ErrorKind;
use crate::storage::tree::cursor::Cursor;

const ROWS: u64 = 300;

/// Some lie in their leaf, and some do not.
fn long_value(number: u64) -> Vec<u8> {
    vec![number as u8; if number.is_multiple_of(3) { 10 } else { 3_000 + 40 * number as usize }]
}

fn tree_with(device: &SimulatedDevice, cache_bytes: usize) -> Arc<Tree> {
    let batch: Batch = (0..ROWS).map(|number| (key(number), Some(long_value(number)))).collect();
    open(device, CACHE_BYTES).merge(&mut changes(&batch), None).unwrap();
    open(device, cache_bytes)
}

/// Each was read from disk each time, whatever memory there was.
#[test]
fn a_value_that_was_read_is_in_memory_then_if_it_is_no_large_part_of_that() {
    let device = SimulatedDevice::new(1);
    let tree = tree_with(&device, 8 << 20);
    let mut value = Vec::new();
    for number in 0..ROWS {
        // Those that lie in a leaf come into memory with it.
        if !number.is_multiple_of(3) {
            assert_eq!(tree.get_cached(&key(number), &mut value), Cached::Unknown);
        }
        assert!(tree.get(&key(number), &mut value).unwrap().is_some());
        value.clear();
        assert!(matches!(tree.get_cached(&key(number), &mut value), Cached::Found { .. }), "{number}");
        assert_eq!(value, long_value(number));
    }
    let tree = open(&device, 256 << 10);
    assert!(tree.get(&key(299), &mut value).unwrap().is_some());
    assert_eq!(tree.get_cached(&key(299), &mut value), Cached::Unknown, "more than a 64th of the cache");
    assert_eq!(value, long_value(299));
}

#[test]
fn a_walk_has_the_values_that_there_are_either_way_whatever_is_wanted_of_it_and_fits_into_memory() {
    let device = SimulatedDevice::new(1);
    for cache_bytes in [0, 256 << 10, 8 << 20] {
        let tree = tree_with(&device, cache_bytes);
        for (direction, wanted) in [
            (Direction::Forwards, None),
            (Direction::Forwards, Some(7)),
            (Direction::Backwards, Some(200)),
            (Direction::Backwards, None),
        ] {
            let mut cursor = Cursor::new(&tree, tree.root());
            cursor.seek(Bound::Unbounded, direction).unwrap();
            cursor.expect(wanted);
            let (mut count, mut value) = (0, Vec::new());
            while let Some(found) = cursor.key() {
                let number = if direction == Direction::Forwards { count } else { ROWS - 1 - count };
                assert_eq!(found, key(number));
                cursor.value_into(&mut value).unwrap();
                assert_eq!(value, long_value(number), "{number} of {cache_bytes} {direction:?} {wanted:?}");
                count += 1;
                cursor.step().unwrap();
            }
            assert_eq!(count, ROWS);
        }
    }
}

/// They were read one after the other: ten thousand in a second, on a disk that reads a gigabyte.
#[test]
fn a_walk_reads_as_many_values_at_once_as_are_wanted_and_ever_more_if_nobody_says_how_many() {
    let device = SimulatedDevice::new(1);
    for (wanted, together) in [(Some(5), 5), (None, 8)] {
        let tree = tree_with(&device, 8 << 20);
        let mut cursor = Cursor::new(&tree, tree.root());
        cursor.seek(Bound::Included(&key(1)), Direction::Forwards).unwrap();
        cursor.expect(wanted);
        let (mut value, mut passed) = (Vec::new(), 0);
        let longest = loop {
            cursor.value_into(&mut value).unwrap();
            let ahead = cursor.values_ahead();
            // The one that was taken was read with them.
            if ahead + 1 >= together {
                break ahead + 1;
            }
            assert!(passed < 20, "no more than {ahead} ahead");
            passed += 1;
            cursor.step().unwrap();
        };
        assert_eq!(longest, together);
        assert!(wanted.is_none() || passed == 0, "it was known from the beginning");
    }
}

/// The first one that was passed over stayed in the way, and with each of the others all that follow were read anew.
#[test]
fn values_that_a_walk_passes_over_are_not_in_the_way_of_those_that_were_read_with_them() {
    let device = SimulatedDevice::new(1);
    let tree = tree_with(&device, 0);
    let mut cursor = Cursor::new(&tree, tree.root());
    cursor.seek(Bound::Included(&key(1)), Direction::Forwards).unwrap();
    cursor.expect(Some(30));
    let mut value = Vec::new();
    cursor.value_into(&mut value).unwrap();
    let mut before = cursor.values_ahead();
    assert!(before > 10, "{before}");
    for number in [5, 7, 11, 13] {
        while cursor.key() != Some(&key(number)) {
            cursor.step().unwrap();
        }
        cursor.value_into(&mut value).unwrap();
        assert_eq!(value, long_value(number));
        let ahead = cursor.values_ahead();
        assert!(ahead < before, "they were read anew");
        before = ahead;
    }
}

#[test]
fn c9_a_value_that_was_changed_on_disk_is_refused_by_who_reads_it_alone_or_among_others() {
    let device = SimulatedDevice::new(1);
    drop(tree_with(&device, 0));
    let file = device.bytes("tree");
    let long = long_value(100);
    let at = file.windows(long.len()).position(|bytes| bytes == long).unwrap();
    let mut damaged = file.clone();
    damaged[at + 77] ^= 1;
    device.set_bytes("tree", damaged);
    let (tree, mut value) = (open(&device, 8 << 20), Vec::new());
    assert_eq!(tree.get(&key(100), &mut value).unwrap_err().kind(), ErrorKind::Corrupted);
    assert_eq!(tree.get_cached(&key(100), &mut value), Cached::Unknown);
    let mut cursor = Cursor::new(&tree, tree.root());
    cursor.seek(Bound::Included(&key(98)), Direction::Forwards).unwrap();
    cursor.expect(Some(20));
    for number in 98..120 {
        match cursor.value_into(&mut value) {
            Ok(()) => assert!(number != 100 && value == long_value(number)),
            Err(error) => assert!(number == 100 && error.kind() == ErrorKind::Corrupted),
        }
        cursor.step().unwrap();
    }
}
