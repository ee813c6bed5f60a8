//! Nodes, roots and maps of free space that no Kiln has written, though all their checksums hold (C9).

use super::*;
use crate::device::{BLOCK_BYTES, Fault, FaultKind, OpenMode, OperationKind};
use crate::error::{ErrorKind, Result};
use crate::storage::tree::frames::Frames;
use crate::storage::tree::map::ENTRY_BYTES;
use crate::storage::tree::node::{EXPIRES, HEAD_BYTES, HEADER_BYTES, HEIGHT_MAX, Node, WIDE, head_of};
use crate::storage::tree::reference::{BLOCK_FIRST, NODE_BLOCKS_MAX, NodeReference, ValueReference};
use crate::storage::tree::root::{Root, SLOT_BYTES, Slot};
use crate::storage::tree::space::PAGE_BLOCKS;

const EIO: i32 = 5;
/// In a slot: the value is elsewhere, and, where slots are narrow, it expires.
const LARGE: u32 = 1 << 31;
const EXPIRING: u32 = 1 << 30;

/// What a node is made of: the rest of each key, the value, and what its slot says besides.
struct Forged<'a> {
    level: u16,
    flags: u16,
    prefix: Vec<u8>,
    entries: Vec<(&'a [u8], Vec<u8>, u32)>,
}

impl Forged<'_> {
    fn leaf() -> Forged<'static> {
        let entries = vec![(&b"a"[..], vec![1], 0), (&b"b"[..], vec![2], 0)];
        Forged { level: 0, flags: 0, prefix: b"key".to_vec(), entries }
    }

    fn inner() -> Forged<'static> {
        let child = NodeReference { block: 9, blocks: 1, ..NodeReference::default() }.encode().to_vec();
        let entries = vec![(&b""[..], child.clone(), 0), (&b"b"[..], child, 0)];
        Forged { level: 1, flags: 0, prefix: Vec::new(), entries }
    }

    fn encode(&self) -> Vec<u8> {
        let is_wide = self.flags & WIDE != 0;
        let count = self.entries.len();
        let per_entry = HEAD_BYTES + if is_wide { 8 } else { 4 };
        let cells = HEADER_BYTES + count * per_entry + self.prefix.len();
        let cell_bytes: usize = self.entries.iter().map(|(rest, value, _)| rest.len() + value.len()).sum();
        let mut bytes = [self.level.to_le_bytes(), self.flags.to_le_bytes()].concat();
        for field in [count, cells + cell_bytes, self.prefix.len()] {
            bytes.extend((field as u32).to_le_bytes());
        }
        self.entries.iter().for_each(|(rest, ..)| bytes.extend(head_of(rest).to_le_bytes()));
        let mut at = cells as u32;
        for (rest, value, said) in &self.entries {
            match is_wide {
                true => bytes.extend([at.to_le_bytes(), (rest.len() as u32 | said).to_le_bytes()].concat()),
                false => bytes.extend((at | (rest.len() as u32) << 16 | said).to_le_bytes()),
            }
            at += (rest.len() + value.len()) as u32;
        }
        bytes.extend(&self.prefix);
        self.entries.iter().for_each(|(rest, value, _)| bytes.extend([rest, &value[..]].concat()));
        bytes.resize(bytes.len().next_multiple_of(BLOCK_BYTES), 0);
        bytes
    }
}

fn refused(bytes: &[u8]) -> &'static str {
    Node::decode(&Frames::none(), 9, 0, bytes).map(drop).unwrap_err()
}

fn refused_with(mut node: Forged<'static>, damage: impl FnOnce(&mut Forged<'static>)) -> &'static str {
    assert!(Node::decode(&Frames::none(), 9, 0, &node.encode()).is_ok(), "it is refused as it is");
    damage(&mut node);
    refused(&node.encode())
}

fn refused_with_u32(offset: usize, value: u32) -> &'static str {
    let mut bytes = Forged::leaf().encode();
    bytes[offset..offset + 4].copy_from_slice(&value.to_le_bytes());
    refused(&bytes)
}

#[test]
fn c9_a_node_with_an_impossible_header_is_refused() {
    assert_eq!(refused(&[0; HEADER_BYTES - 1]), "a node of a length that none has");
    let longest = NODE_BLOCKS_MAX as usize * BLOCK_BYTES;
    assert_eq!(refused(&vec![0; longest + BLOCK_BYTES]), "a node of a length that none has");
    let kind = "a node of a kind that is not known";
    assert_eq!(refused_with(Forged::leaf(), |node| node.level = HEIGHT_MAX), kind);
    assert_eq!(refused_with(Forged::inner(), |node| node.flags = EXPIRES), kind);
    assert_eq!(refused_with(Forged::leaf(), |node| node.flags = 1 << 9), kind);
    let number = "a node with an impossible number of entries, or prefix";
    assert_eq!(refused_with_u32(4, 0), number);
    assert_eq!(refused_with_u32(4, 10_000), number);
    assert_eq!(refused_with_u32(12, 70_000), number);
    // Each is possible, and both together take too much memory.
    let mut bytes = Forged::leaf().encode();
    bytes[4..8].copy_from_slice(&100_u32.to_le_bytes());
    bytes[12..16].copy_from_slice(&65_000_u32.to_le_bytes());
    assert_eq!(refused(&bytes), number);
    assert_eq!(refused_with_u32(8, 5_000), "a node whose parts do not fit");
    assert_eq!(refused_with_u32(8, 20), "a node whose parts do not fit");
    let mut bytes = Forged::leaf().encode();
    bytes[BLOCK_BYTES - 1] = 1;
    assert_eq!(refused(&bytes), "a node with something behind its end");
}

#[test]
fn c9_a_node_with_impossible_keys_is_refused() {
    let twice = "a node whose keys are not in order";
    assert_eq!(refused_with(Forged::leaf(), |node| node.entries[1].0 = b"a"), twice);
    assert_eq!(refused_with(Forged::leaf(), |node| node.entries.reverse()), twice);
    let long = "a node with a key that is too long";
    assert_eq!(refused_with(Forged::inner(), |node| node.entries[0].0 = b"a"), long);
    let with_a_long_prefix = |node: &mut Forged<'static>| {
        (node.flags, node.prefix) = (WIDE, vec![1; 65_500]);
        node.entries.truncate(1);
        node.entries[0].0 = &[7; 100];
    };
    assert_eq!(refused_with(Forged::leaf(), with_a_long_prefix), long);
    let mut bytes = Forged::leaf().encode();
    bytes[HEADER_BYTES] ^= 1;
    assert_eq!(refused(&bytes), "a node with a key's head that is not its key's");
    // The first cell begins a byte too late.
    let mut bytes = Forged::leaf().encode();
    bytes[HEADER_BYTES + 2 * HEAD_BYTES] += 1;
    assert_eq!(refused(&bytes), "a node whose cells do not follow each other");
}

#[test]
fn c9_a_node_with_impossible_values_is_refused() {
    let child = "an inner node with a child that cannot be";
    let sane = NodeReference { block: 9, blocks: 1, ..NodeReference::default() };
    let insane = [
        NodeReference { blocks: 0, ..sane },
        NodeReference { blocks: NODE_BLOCKS_MAX + 1, ..sane },
        NodeReference { block: BLOCK_FIRST - 1, ..sane },
        NodeReference { block: u64::MAX, ..sane },
        NodeReference { block: 1 << 40, ..sane },
    ];
    for reference in insane {
        let forged = |node: &mut Forged<'_>| node.entries[1].1 = reference.encode().to_vec();
        assert_eq!(refused_with(Forged::inner(), forged), child);
    }
    assert_eq!(refused_with(Forged::inner(), |node| node.entries[1].1.truncate(23)), child);
    assert_eq!(refused_with(Forged::inner(), |node| node.entries[1].2 = LARGE), child);

    let value = "a leaf with a value that cannot be";
    let sane = ValueReference { block: 9, bytes: 5_000, checksum: 0 };
    let with_large = |node: &mut Forged<'_>, reference: ValueReference| {
        (node.entries[1].1, node.entries[1].2) = (reference.encode().to_vec(), LARGE);
    };
    let mut node = Forged::leaf();
    with_large(&mut node, sane);
    assert!(Node::decode(&Frames::none(), 9, 0, &node.encode()).is_ok());
    for reference in [ValueReference { bytes: 0, ..sane }, ValueReference { block: 0, ..sane }] {
        assert_eq!(refused_with(Forged::leaf(), |node| with_large(node, reference)), value);
    }
    assert_eq!(refused_with(Forged::leaf(), |node| node.entries[1].2 = LARGE), value);
}

#[test]
fn c9_a_leaf_with_an_impossible_time_is_refused() {
    let expiring = |node: &mut Forged<'_>, time: &[u8]| {
        node.flags = EXPIRES;
        (node.entries[1].1, node.entries[1].2) = (time.to_vec(), EXPIRING);
    };
    let mut node = Forged::leaf();
    expiring(&mut node, &7_u64.to_le_bytes());
    assert_eq!(Node::decode(&Frames::none(), 9, 0, &node.encode()).unwrap().expires_at(1), 7);
    let damaged = |time: &[u8]| refused_with(Forged::leaf(), |node| expiring(node, time));
    assert_eq!(damaged(&[1; 7]), "a leaf with a cut time");
    assert_eq!(damaged(&NEVER.to_le_bytes()), "a leaf with a value that expires at no time");
    let none = refused_with(Forged::leaf(), |node| node.flags = EXPIRES);
    assert_eq!(none, "a leaf that says that values expire, and none does");
}

/// A tree of some levels and its map of free space, which are to be changed.
struct File {
    bytes: Vec<u8>,
    root: Root,
}

impl File {
    fn new() -> File {
        let device = SimulatedDevice::new(1);
        let tree = open(&device, CACHE_BYTES);
        let batch: Batch = (0..400).map(|number| (key(number), Some(vec![number as u8; 50]))).collect();
        tree.merge(&mut changes(&batch), None).unwrap();
        let bytes = device.bytes("tree");
        let roots = bytes.chunks(BLOCK_BYTES).take(2).filter_map(|slot| match Root::decode(slot) {
            Slot::Valid(root) => Some(root),
            _ => None,
        });
        let root = roots.max_by_key(|root| root.generation).unwrap();
        assert_eq!(root.height, 2);
        File { bytes, root }
    }

    fn block(&mut self, block: u64) -> &mut [u8] {
        &mut self.bytes[block as usize * BLOCK_BYTES..][..BLOCK_BYTES]
    }

    /// Where the first page of the map is.
    fn page(&mut self) -> u64 {
        let directory = self.root.directory.block;
        u64::from_le_bytes(*self.block(directory).first_chunk().unwrap())
    }

    /// Adds a node behind everything that is used.
    fn add_node(&mut self, node: &Forged<'_>) -> NodeReference {
        let (bytes, block) = (node.encode(), self.root.directory.mapped_blocks);
        assert_eq!(bytes.len(), BLOCK_BYTES);
        let needed = (block as usize + 1) * BLOCK_BYTES;
        self.bytes.resize(self.bytes.len().max(needed), 0);
        self.block(block).copy_from_slice(&bytes);
        self.change_map(|bits, entry| {
            bits[block as usize / 8] |= 1 << (block % 8);
            entry[12] = entry[12].checked_add(1).unwrap();
        });
        self.root.directory.mapped_blocks += 1;
        self.root.directory.used_blocks += 1;
        NodeReference { block, blocks: 1, entries: 1, checksum: crc32c::crc32c(&bytes) }
    }

    /// Changes the map's first page and its entry in the directory, and makes their checksums right.
    fn change_map(&mut self, change: impl FnOnce(&mut [u8], &mut [u8])) {
        let (page, directory) = (self.page(), self.root.directory.block);
        let mut bits = self.block(page).to_vec();
        let entry = &mut self.block(directory)[..ENTRY_BYTES];
        change(&mut bits, entry);
        entry[8..12].copy_from_slice(&crc32c::crc32c(&bits).to_le_bytes());
        self.block(page).copy_from_slice(&bits);
        self.root.directory.checksum = crc32c::crc32c(self.block(directory));
    }

    /// A disk with the file, whose slots both have the root.
    fn disk(mut self) -> SimulatedDevice {
        for slot in 0..2 {
            let mut bytes = vec![0; SLOT_BYTES];
            self.root.encode(&mut bytes);
            self.block(slot)[..SLOT_BYTES].copy_from_slice(&bytes);
        }
        let device = SimulatedDevice::new(1);
        device.set_bytes("tree", &self.bytes);
        device
    }

    fn open(self) -> Result<Arc<Tree>> {
        try_open(&self.disk(), CACHE_BYTES).map(Arc::new)
    }

    /// What opening says, or else reading everything; it names the file.
    fn refused(self) -> String {
        let error = self.open().and_then(|tree| walk(&tree, Direction::Forwards)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupted, "{error}");
        assert!(error.place().is_some_and(|(file, _)| file.contains("tree")), "{error}");
        error.to_string()
    }
}

fn refused_file(what: &str, change: impl FnOnce(&mut File)) {
    let mut file = File::new();
    change(&mut file);
    let said = file.refused();
    assert!(said.contains(what), "{said:?} says nothing of {what:?}");
}

#[test]
fn c9_a_root_that_cannot_be_is_damaged() {
    let damages: [fn(&mut Root); 12] = [
        |root| root.begun.entries = root.node.entries + 1,
        |root| root.height = HEIGHT_MAX + 1,
        |root| root.height = 0,
        |root| root.node.blocks = 0,
        |root| root.loaded = u32::MAX,
        |root| root.directory.mapped_blocks = u64::MAX,
        |root| root.directory.used_blocks = BLOCK_FIRST - 1,
        |root| root.directory.used_blocks = root.directory.mapped_blocks + 1,
        |root| root.directory.block = BLOCK_FIRST - 1,
        |root| root.directory.block = root.directory.mapped_blocks,
        |root| root.directory.blocks = 0,
        |root| root.directory.blocks = u32::MAX,
    ];
    for (number, damage) in damages.into_iter().enumerate() {
        let mut root = File::new().root;
        damage(&mut root);
        let mut bytes = [0; SLOT_BYTES];
        root.encode(&mut bytes);
        assert!(matches!(Root::decode(&bytes), Slot::Damaged), "damage {number}");
    }
    // More levels than the field for them has in memory.
    let mut bytes = [0; SLOT_BYTES];
    File::new().root.encode(&mut bytes);
    bytes[14] = 1;
    let checksum = crc32c::crc32c(&bytes[..124]);
    bytes[124..].copy_from_slice(&checksum.to_le_bytes());
    assert!(matches!(Root::decode(&bytes), Slot::Damaged));
}

#[test]
fn c9_a_root_that_contradicts_its_tree_is_noticed() {
    assert_eq!(walk(&File::new().open().unwrap(), Direction::Forwards).unwrap().len(), 400);
    refused_file("on a level that is not its own", |file| file.root.height = 1);
    refused_file("a node on a level that is not its own", |file| file.root.height = 3);
    refused_file("the file ends before what should be there", |file| {
        file.root.node.block = (file.bytes.len() / BLOCK_BYTES) as u64;
    });
}

/// What a tree says of how many entries its nodes have is no number to calculate with: their sum ended in a panic.
#[test]
fn c9_children_that_are_said_to_have_impossibly_many_entries_are_read_and_merged_all_the_same() {
    let mut file = File::new();
    let NodeReference { block, blocks, checksum, .. } = file.root.node;
    let place = block as usize * BLOCK_BYTES..(block as usize + blocks as usize) * BLOCK_BYTES;
    let node = Node::decode(&Frames::none(), block, checksum, &file.bytes[place.clone()]).unwrap();
    for child in node.children(0) {
        let honest = child.encode();
        let at = file.bytes[place.clone()].windows(honest.len()).position(|bytes| bytes == honest).unwrap();
        let forged = NodeReference { entries: u64::MAX, ..child };
        file.bytes[place.start + at..][..honest.len()].copy_from_slice(&forged.encode());
    }
    file.root.node.checksum = crc32c::crc32c(&file.bytes[place]);
    let tree = file.open().unwrap();
    for direction in [Direction::Forwards, Direction::Backwards] {
        assert_eq!(walk(&tree, direction).unwrap().len(), 400);
    }
    let batch: Batch = [(key(0), Some(vec![7; 50])), (key(399), None)].into_iter().collect();
    tree.merge(&mut changes(&batch), None).unwrap();
    assert_eq!(walk(&tree, Direction::Forwards).unwrap().len(), 399);
}

/// The leaf that came of it had keys that were not in order: a panic, at each opening again.
#[test]
fn c9_children_in_each_others_places_are_met_with_an_error_by_who_merges() {
    let children = {
        let file = File::new();
        let NodeReference { block, blocks, checksum, .. } = file.root.node;
        let bytes = &file.bytes[block as usize * BLOCK_BYTES..][..blocks as usize * BLOCK_BYTES];
        Node::decode(&Frames::none(), block, checksum, bytes).unwrap().children(0).count()
    };
    let mut refused = 0;
    for (one, other) in (0..children).flat_map(|one| (one + 1..children).map(move |other| (one, other))) {
        for touched in (0..400).step_by(7) {
            let mut file = File::new();
            let NodeReference { block, blocks, checksum, .. } = file.root.node;
            let place = block as usize * BLOCK_BYTES..(block as usize + blocks as usize) * BLOCK_BYTES;
            let node = Node::decode(&Frames::none(), block, checksum, &file.bytes[place.clone()]).unwrap();
            let encoded = [one, other].map(|index| node.child(index).encode());
            let at = encoded.each_ref().map(|child| {
                let found = file.bytes[place.clone()].windows(child.len()).position(|bytes| bytes == child);
                place.start + found.unwrap()
            });
            for (at, child) in at.into_iter().zip(encoded.iter().rev()) {
                file.bytes[at..at + child.len()].copy_from_slice(child);
            }
            file.root.node.checksum = crc32c::crc32c(&file.bytes[place]);
            let tree = file.open().unwrap();
            let copied = tree.copy_to(&tree.root(), &SimulatedDevice::new(1), &mut |_| {});
            assert_eq!(copied.unwrap_err().kind(), ErrorKind::Corrupted);
            // Enough of them that its leaf is much shorter than others.
            let batch: Batch = (touched..(touched + 60).min(400)).map(|number| (key(number), None)).collect();
            if let Err(error) = tree.merge(&mut changes(&batch), None) {
                assert_eq!(error.kind(), ErrorKind::Corrupted, "{error}");
                refused += 1;
            }
        }
    }
    assert!(children > 2 && refused > 10, "{children} children, {refused} refused");
}

/// Each node has a neighbour that need not be read, and a key so long that it is not joined with it: so the next root would be one level higher. The merge
/// panicked.
#[test]
fn c9_a_tree_that_is_as_high_as_any_may_be_is_met_with_an_error_by_who_would_make_it_higher() {
    let mut file = File::new();
    let neighbour = file.root.node.encode().to_vec();
    let keys: Vec<_> =
        (0..HEIGHT_MAX as u8).rev().map(|last| [vec![b'z'; 3_000], vec![last]].concat()).collect();
    let entries = vec![(&keys[0][..], vec![1], 0)];
    let mut node = file.add_node(&Forged { level: 0, flags: 0, prefix: Vec::new(), entries });
    for level in 1..HEIGHT_MAX {
        let below = (&keys[usize::from(level)][..], node.encode().to_vec(), 0);
        let entries = vec![(&b""[..], neighbour.clone(), 0), below];
        node = file.add_node(&Forged { level, flags: 0, prefix: Vec::new(), entries });
    }
    (file.root.node, file.root.height) = (node, HEIGHT_MAX);
    let tree = file.open().unwrap();
    let batch = Batch::from([(keys[0].clone(), Some(vec![2]))]);
    let error = tree.merge(&mut changes(&batch), None).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupted, "{error}");
    assert!(error.to_string().contains("higher than any"), "{error}");
}

#[test]
fn c9_a_map_of_free_space_that_contradicts_itself_is_noticed() {
    let contradicts = "the map of free space contradicts itself";
    refused_file("counts what it has not", |file| file.change_map(|_, entry| entry[12] ^= 1));
    refused_file("outside of the file", |file| {
        let outside = file.root.directory.mapped_blocks;
        let directory = file.root.directory.block;
        file.block(directory)[..8].copy_from_slice(&outside.to_le_bytes());
        file.root.directory.checksum = crc32c::crc32c(file.block(directory));
    });
    refused_file(contradicts, |file| file.root.directory.used_blocks -= 1);
    refused_file(contradicts, |file| {
        file.root.directory.mapped_blocks += 1;
        let needed = file.root.directory.mapped_blocks as usize * BLOCK_BYTES;
        file.bytes.resize(file.bytes.len().max(needed), 0);
    });
    refused_file(contradicts, |file| {
        // The map takes its own directory for free.
        let block = file.root.directory.block as usize;
        file.root.directory.used_blocks -= 1;
        file.change_map(|bits, entry| {
            bits[block / 8] &= !(1 << (block % 8));
            entry[12] -= 1;
        });
    });
}

/// The root says that there are more pages of the map than the directory has room for, in a file that is long enough.
#[test]
fn c9_a_directory_that_is_too_short_for_its_map_is_noticed() {
    let mut file = File::new();
    let pages = u64::from(file.root.directory.blocks) * (BLOCK_BYTES / ENTRY_BYTES) as u64;
    file.root.directory.mapped_blocks = pages * PAGE_BLOCKS + 1;
    let size = file.root.directory.mapped_blocks * BLOCK_BYTES as u64;
    let disk = file.disk();
    disk.open("tree", OpenMode::ReadWrite).unwrap().allocate(size).unwrap();
    let error = try_open(&disk, CACHE_BYTES).map(drop).unwrap_err();
    assert!(error.to_string().contains("too short"), "{error}");
}

/// A directory is as long as it had to be when it was written, however few pages there are by then; all of it is under the checksum.
#[test]
fn c9_a_directory_that_is_longer_than_its_map_is_read_and_checked_to_its_end() {
    const BLOCKS: u32 = 600;
    let longer = || {
        let mut file = File::new();
        let (old, start) = (file.root.directory.block, (file.bytes.len() / BLOCK_BYTES) as u64);
        file.bytes.resize(file.bytes.len() + BLOCKS as usize * BLOCK_BYTES, 0);
        file.change_map(|bits, entry| {
            (start..start + u64::from(BLOCKS)).for_each(|block| bits[block as usize / 8] |= 1 << (block % 8));
            let used = bits.iter().map(|byte| byte.count_ones()).sum::<u32>();
            entry[12..].copy_from_slice(&used.to_le_bytes());
        });
        let directory = file.block(old).to_vec();
        file.block(start).copy_from_slice(&directory);
        file.root.directory.checksum = crc32c::crc32c(&file.bytes[start as usize * BLOCK_BYTES..]);
        (file.root.directory.block, file.root.directory.blocks) = (start, BLOCKS);
        file.root.directory.used_blocks += u64::from(BLOCKS);
        file.root.directory.mapped_blocks = start + u64::from(BLOCKS);
        file
    };
    assert_eq!(walk(&longer().open().unwrap(), Direction::Forwards).unwrap().len(), 400);
    for block in [1, u64::from(BLOCKS) - 1] {
        let mut file = longer();
        let start = file.root.directory.block;
        file.block(start + block)[7] = 1;
        assert!(file.refused().contains("has another checksum"));
    }
}

#[test]
fn c8_each_read_that_fails_is_an_error_or_read_again_and_the_next_one_is_none() {
    let disk = File::new().disk();
    let (mut nth, mut failed, mut read_again) = (0, 0, 0);
    loop {
        nth += 1;
        let before = disk.faults_fired();
        disk.inject(Fault {
            operation: OperationKind::Read,
            nth,
            kind: FaultKind::Error(EIO),
            sticky: false,
        });
        let tree = try_open(&disk, 0).map(Arc::new);
        let walked = tree.as_ref().ok().map(|tree| walk(tree, Direction::Forwards));
        if disk.faults_fired() == before {
            break;
        }
        match (&tree, walked) {
            (Ok(tree), Some(Err(error))) => {
                assert_eq!(error.kind(), ErrorKind::Io, "{error}");
                assert_eq!(walk(tree, Direction::Forwards).unwrap().len(), 400);
            }
            (Err(error), _) => assert_eq!(error.kind(), ErrorKind::Io, "{error}"),
            // It was read ahead, and then by who came to it.
            (_, Some(Ok(rows))) => {
                assert_eq!(rows.len(), 400);
                read_again += 1;
            }
            (Ok(_), None) => unreachable!("an open tree was walked over"),
        }
        failed += 1;
    }
    assert!(failed > 5 && read_again < failed / 2, "{failed}, {read_again} of them read again");
}
