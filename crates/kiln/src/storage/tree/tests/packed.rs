//! Leaves that are compressed on disk.

use super::*;
use crate::error::ErrorKind;
use crate::storage::tree::frames::Frames;
use crate::storage::tree::node::Node;
use crate::storage::tree::packed::{PACKED, Packer};
use crate::storage::tree::pending::Pending;

fn open_packing(device: &SimulatedDevice, packs: bool) -> Arc<Tree> {
    Arc::new(try_open(device, CACHE_BYTES).unwrap().packing(packs))
}

/// Text that can be compressed, and bytes that cannot.
fn value(random: &mut Random) -> Vec<u8> {
    match random.below(4) {
        0 => (0..random.below(300)).map(|_| random.below(256) as u8).collect(),
        1 => vec![b'x'; 3_000],
        _ => b"the quick brown fox jumps over the lazy dog ".repeat(1 + random.below(12) as usize),
    }
}

fn is_packed(device: &SimulatedDevice) -> bool {
    let bytes = device.bytes("tree");
    bytes[8..12] == 2_u32.to_le_bytes()
}

#[test]
fn c4_c9_trees_with_packed_leaves_and_others_are_the_same_whatever_is_changed() {
    let device = SimulatedDevice::new(1);
    let random = &mut Random(11);
    let mut map = Map::new();
    for round in 0..24 {
        // Sometimes one, sometimes the other, in one file.
        let tree = open_packing(&device, random.one_in(2) || round == 1);
        for _ in 0..1 + random.below(2) {
            let count = 1 + random.below(500);
            let batch: Batch = (0..count)
                .map(|_| {
                    let change = if random.one_in(4) { None } else { Some(value(random)) };
                    (key(random.below(1500)), change)
                })
                .collect();
            tree.merge(&mut changes(&batch), None).unwrap();
            apply(&batch, &mut map);
        }
        assert_same(&tree, &map);
        tree.check().unwrap();
        let tree = open_packing(&device, false);
        assert_same(&tree, &map);
    }
    assert!(is_packed(&device));
    let copy = SimulatedDevice::new(2);
    let tree = open_packing(&device, false);
    tree.copy_to(&tree.root(), &copy, &mut |_| {}).unwrap();
    let copied = open_packing(&copy, false);
    assert_same(&copied, &map);
    copied.check().unwrap();
    assert!(is_packed(&copy), "a copy is packed if what it is of is");
    let all: Batch = map.keys().map(|key| (key.clone(), None)).collect();
    copied.merge(&mut changes(&all), None).unwrap();
    assert_same(&copied, &Map::new());
    copied.check().unwrap();
}

#[test]
fn packed_leaves_take_fewer_blocks_and_the_format_says_that_there_are_some() {
    let sentence = b"the quick brown fox jumps over the lazy dog ".repeat(3);
    let noise = |number: u64| {
        let random = &mut Random(number);
        (0..120).map(|_| random.below(256) as u8).collect::<Vec<_>>()
    };
    let leaf_bytes = |packs: bool, text: bool| {
        let device = SimulatedDevice::new(1);
        let tree = open_packing(&device, packs);
        let batch: Batch = (0..3000)
            .map(|number| (key(number), Some(if text { sentence.clone() } else { noise(number) })))
            .collect();
        tree.merge(&mut changes(&batch), None).unwrap();
        assert_eq!(is_packed(&device), packs && text);
        tree.check().unwrap().leaf_bytes
    };
    assert!(3 * leaf_bytes(true, true) < leaf_bytes(false, true));
    let (packed, plain) = (leaf_bytes(true, false), leaf_bytes(false, false));
    assert!(packed <= plain + plain / 20, "what cannot be packed takes {packed} bytes instead of {plain}");
}

/// It was for ever, and each copy compressed all leaves again.
#[test]
fn a_tree_that_was_written_anew_without_packing_is_not_packed_any_more() {
    let device = SimulatedDevice::new(1);
    let text = b"the quick brown fox jumps over the lazy dog ".repeat(3);
    let batch: Batch = (0..5_000).map(|number| (key(number), Some(text.clone()))).collect();
    let open_dividing = |packs| {
        let mut tree = try_open(&device, CACHE_BYTES).unwrap();
        tree.set_replaced_bytes_min(1);
        Arc::new(tree.packing(packs))
    };
    let tree = open_dividing(true);
    tree.merge(&mut changes(&batch), None).unwrap();
    let rewrite = |tree: &Arc<Tree>, mut from: Vec<u8>| {
        while let Some(next) = tree.rewrite(&from, &|| Ok(())).unwrap() {
            from = next;
        }
    };
    rewrite(&tree, Vec::new());
    drop(tree);
    assert!(is_packed(&device), "it was packed anew");
    let tree = open_dividing(false);
    let second = tree.rewrite(&[], &|| Ok(())).unwrap().expect("it is done in parts");
    assert!(is_packed(&device), "only a part was");
    // Not from the beginning on, and not all that follows.
    rewrite(&tree, key(4_000));
    assert!(is_packed(&device));
    // Others merge meanwhile.
    tree.merge(&mut changes(&batch.clone().into_iter().take(20).collect()), None).unwrap();
    rewrite(&tree, second);
    assert!(!is_packed(&device));
    let mut map = Map::new();
    apply(&batch, &mut map);
    assert_same(&tree, &map);
    let copy = SimulatedDevice::new(2);
    tree.copy_to(&tree.root(), &copy, &mut |_| {}).unwrap();
    assert!(!is_packed(&copy));
    tree.check().unwrap();
}

/// A packed leaf, in whole blocks.
fn packed_leaf() -> Vec<u8> {
    let mut pending = Pending::new(0);
    (0..200).for_each(|number| pending.push_entry(&key(number), &[7; 60], false, NEVER));
    let made = pending.node(200);
    let mut packer = Packer::default();
    let packed = packer.pack(&made).expect("it takes fewer blocks").to_vec();
    let blocks = packed.len().div_ceil(crate::device::BLOCK_BYTES);
    [&packed[..], &vec![0; blocks * crate::device::BLOCK_BYTES - packed.len()]].concat()
}

#[test]
fn c9_a_packed_leaf_that_was_changed_is_refused_or_a_leaf_and_takes_no_memory_without_bound() {
    let leaf = packed_leaf();
    let decode = |bytes: &[u8]| Node::decode(&Frames::none(), 2, 0, bytes);
    assert_eq!(decode(&leaf).unwrap().count(), 200);
    let with = |offset: usize, field: &[u8]| {
        let mut changed = leaf.clone();
        changed[offset..offset + field.len()].copy_from_slice(field);
        changed
    };
    let plain_bytes = u32::from_le_bytes(*leaf[4..].first_chunk().unwrap());
    let end = u32::from_le_bytes(*leaf[8..].first_chunk().unwrap());
    // Lengths: nothing, less, more, a bomb.
    for length in [0, 15, 16, plain_bytes - 1, plain_bytes + 1, 512 << 10, (512 << 10) + 1, u32::MAX] {
        assert!(decode(&with(4, &length.to_le_bytes())).is_err(), "plain bytes {length}");
    }
    for length in [0, 15, 16, end - 1, end + 1, leaf.len() as u32 + 1, u32::MAX] {
        assert!(decode(&with(8, &length.to_le_bytes())).is_err(), "end {length}");
    }
    assert!(decode(&with(0, &1_u16.to_le_bytes())).is_err(), "an inner node");
    assert!(decode(&with(2, &(PACKED | 1).to_le_bytes())).is_err(), "another flag");
    assert!(decode(&with(12, &[1])).is_err());
    assert!(decode(&with(leaf.len() - 1, &[1])).is_err(), "something behind the end");
    let random = &mut Random(5);
    for _ in 0..3000 {
        let mut changed = leaf.clone();
        for _ in 0..1 + random.below(3) {
            let place = random.below(u64::from(end)) as usize;
            changed[place] ^= 1 << random.below(8);
        }
        if let Ok(node) = decode(&changed) {
            let mut key = Vec::new();
            for index in 0..node.count() {
                node.key_into(index, &mut key);
                assert_eq!(node.search(&key), (index, true));
            }
        }
    }
}

#[test]
fn c9_every_damaged_block_of_a_packed_leaf_is_noticed() {
    let device = SimulatedDevice::new(1);
    let tree = open_packing(&device, true);
    let batch: Batch = (0..600).map(|number| (key(number), Some(vec![b'v'; 100]))).collect();
    tree.merge(&mut changes(&batch), None).unwrap();
    drop(tree);
    let length = device.bytes("tree").len() as u64;
    let mut refused = 0;
    for block in 2..length / 4096 {
        let damaged = device.after_crash(&mut |_| crate::device::Keep::Kept);
        damaged.flip_bit("tree", (block * 4096 + 40) * 8);
        let found = try_open(&damaged, 0).and_then(|tree| walk(&Arc::new(tree), Direction::Forwards));
        match found {
            Ok(rows) => assert_eq!(rows.len(), 600),
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Corrupted, "{error}");
                refused += 1;
            }
        }
    }
    assert!(refused > 2);
}
