//! A structural check of the whole tree, for tests.

use crate::storage::epoch;
use crate::sync::atomic::Ordering;

use super::OrderedIndex;
use super::inner::NodeId;

/// A node still to be checked, with the interval that its path gives it.
struct Pending {
    id: NodeId,
    depth: usize,
    low: Option<Vec<u8>>,
    high: Option<Vec<u8>>,
}

impl OrderedIndex {
    /// Checks order, intervals, equal depth, counts, and that every node is in the tree or free. Nothing else
    /// may use the index meanwhile.
    ///
    /// # Panics
    /// If something is wrong.
    pub(crate) fn verify(&self) {
        let root = NodeId::from_word(self.root.load(Ordering::Acquire));
        let mut stack = vec![Pending { id: root, depth: 0, low: None, high: None }];
        let (mut leaf_depth, mut key_count, mut leaf_count, mut inner_count) = (None, 0, 0, 0);
        while let Some(node) = stack.pop() {
            let keys = self.verify_keys(&node);
            if node.id.is_leaf() {
                assert_eq!(*leaf_depth.get_or_insert(node.depth), node.depth, "leaves at different depths");
                assert!(!keys.is_empty() || node.id == root, "an empty leaf was left in the tree");
                key_count += keys.len();
                leaf_count += 1;
            } else {
                inner_count += 1;
                self.push_children(&node, &keys, &mut stack);
            }
        }
        assert_eq!(key_count, self.len(), "the key counter is wrong");
        assert_eq!(leaf_count, self.leaves.in_use(), "a leaf is neither in the tree nor free");
        assert_eq!(inner_count, self.inners.in_use(), "an inner node is neither in the tree nor free");
    }

    fn verify_keys(&self, node: &Pending) -> Vec<Vec<u8>> {
        let slots = self.slots(node.id).expect("a linked node exists");
        let version = slots.version().expect("a linked node is unlocked when nothing runs");
        let pin = epoch::pin();
        let keys: Vec<Vec<u8>> = (0..slots.count())
            .map(|position| slots.key(&pin, version, position).expect("nothing else runs").to_vec())
            .collect();
        assert!(keys.is_sorted_by(|a, b| a < b), "keys out of order");
        if let (Some(low), Some(first)) = (&node.low, keys.first()) {
            assert!(low <= first, "a key below the node's interval");
        }
        if let (Some(high), Some(last)) = (&node.high, keys.last()) {
            assert!(last < high, "a key above the node's interval");
        }
        keys
    }

    fn push_children(&self, node: &Pending, separators: &[Vec<u8>], stack: &mut Vec<Pending>) {
        let inner = self.inners.get(node.id.number()).expect("a linked node exists");
        for index in 0..=separators.len() {
            stack.push(Pending {
                id: inner.child(index),
                depth: node.depth + 1,
                low: if index == 0 { node.low.clone() } else { Some(separators[index - 1].clone()) },
                high: separators.get(index).or(node.high.as_ref()).cloned(),
            });
        }
    }

    /// Leaves and inner nodes in the tree.
    #[cfg(test)]
    pub(super) fn nodes_in_use(&self) -> (usize, usize) {
        (self.leaves.in_use(), self.inners.in_use())
    }
}
