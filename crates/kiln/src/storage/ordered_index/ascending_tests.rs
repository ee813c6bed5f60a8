//! Keys that are inserted together: their leaves, and who has read these.

use super::tests::{insert_ascending, reads_of_all};
use super::{OrderedIndex, Run};

/// Each had a leaf of its own. So the keys of a checkpoint may be whose checksums hold, and which no engine has written.
#[test]
fn keys_that_descend_share_leaves() {
    let index = OrderedIndex::new();
    let number = |number: u64| number.to_be_bytes().to_vec();
    let count = if cfg!(miri) { 100 } else { 20_000 };
    let mut keys: Vec<Vec<u8>> = (0..30).map(number).collect();
    keys.push(number(u64::MAX));
    keys.extend((1_000..1_000 + count).rev().map(number));
    insert_ascending(&index, &keys, Run::Dense);
    index.verify();
    let leaves = index.nodes_in_use().0;
    assert!(leaves < 4 * index.len() / 31, "{leaves} leaves for {} keys", index.len());
}

#[test]
fn keys_that_are_inserted_together_change_the_versions_of_their_leaves_and_no_others() {
    let index = OrderedIndex::new();
    let keys: Vec<Vec<u8>> = (0..1_000u64).map(|number| number.to_be_bytes().to_vec()).collect();
    insert_ascending(&index, &keys[200..], Run::Dense);
    let before = reads_of_all(&index);
    insert_ascending(&index, &keys[200..], Run::Dense);
    assert!(before.iter().all(|read| index.validate(read)), "keys that were there change nothing");
    insert_ascending(&index, &keys[..210], Run::Dense);
    let valid: Vec<bool> = before.iter().map(|read| index.validate(read)).collect();
    assert!(!valid[0] && valid[1..].iter().all(|&valid| valid), "{valid:?}");
    index.verify();
}

/// Recovery's: what a checkpoint has, and then what was written behind it. Where leaves were full nearly each was split, and the index took twice the
/// memory.
#[test]
fn keys_that_go_between_those_of_a_dense_run_find_room() {
    let count: u64 = if cfg!(miri) { 200 } else { 20_000 };
    let all = |step: u64, first: u64| -> Vec<Vec<u8>> {
        (first..10 * count).step_by(step as usize).map(|number| number.to_be_bytes().to_vec()).collect()
    };
    let index = OrderedIndex::new();
    insert_ascending(&index, &all(10, 0), Run::Dense);
    let leaves = index.nodes_in_use().0;
    insert_ascending(&index, &all(50, 5), Run::Sparse);
    assert_eq!(index.nodes_in_use().0, leaves);
    index.verify();
    assert_eq!(index.len() as u64, count + count / 5);
}
