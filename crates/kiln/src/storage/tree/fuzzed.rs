//! What fuzzers are shown of the tree.

use super::frames::Frames;
use super::node::Node;
use super::packed::Packer;
use super::pending::Pending;
use crate::device::BLOCK_BYTES;

/// Takes a node apart, and makes it once more, as a merge would.
///
/// # Errors
/// What is wrong with it.
///
/// # Panics
/// If a search does not find what is there, or the new node is another one.
pub(crate) fn again(bytes: &[u8]) -> Result<Vec<u8>, &'static str> {
    let node = Node::decode(&Frames::none(), 0, 0, bytes)?;
    let mut pending = Pending::new(node.level());
    pending.push_node(&[], &node);
    let made = pending.node(node.count());
    let mut encoded = vec![0; made.blocks() * BLOCK_BYTES];
    made.encode(&mut encoded);
    if node.level() == 0
        && let Some(packed) = Packer::default().pack(&made)
    {
        let same = Node::decode(&Frames::none(), 0, 0, packed).expect("a leaf that was just packed is one");
        assert_eq!(same.count(), node.count());
    }
    let same = Node::decode(&Frames::none(), 0, 0, &encoded).expect("a node that was just made is one");
    assert_eq!((same.level(), same.count()), (node.level(), node.count()));
    let (mut key, mut other) = (Vec::new(), Vec::new());
    for index in 0..node.count() {
        node.key_into(index, &mut key);
        same.key_into(index, &mut other);
        assert_eq!(key, other);
        assert_eq!(node.value(index), same.value(index));
        assert_eq!(node.expires_at(index), same.expires_at(index));
        if node.level() > 0 {
            assert_eq!(node.child(index), same.child(index));
            assert!(index == 0 || node.child_index(&key) == index, "a search does not find a child");
        } else {
            assert_eq!(node.search(&key), (index, true), "a search does not find a key");
        }
        // What comes next, if anything.
        key.push(0);
        let (next, is_there) = node.search(&key);
        assert!(next >= index && next <= index + 1 && (!is_there || next == index + 1));
    }
    Ok(encoded)
}
