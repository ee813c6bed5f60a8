//! The nodes in memory, up to a budget.
//!
//! A table of buckets, each a cache line with four nodes; a lookup takes that, and the node, which the processor fetches meanwhile from where its parent has it. Readers are pinned, count nothing and
//! lock nothing: what is evicted stays in memory until all have gone on who might look at it ([`crate::storage::shared`]). The clock's hand goes
//! round the buckets; a node that was looked at gets another round, an inner node several. Whoever evicts, evicts a batch, because
//! waiting for readers costs the same for one node as for many; and what a node finds in its place, in a bucket that is full, waits until there is a
//! batch of that.
//!
//! A node's contents are known by its block and its checksum together, so that a block's old contents never pass for its new ones.

use std::io;
use std::mem::ManuallyDrop;
use std::sync::Arc;

use super::frames::Frames;
use super::node::Node;
use super::reference::NodeReference;
use crate::storage::counts::Counts;
use crate::storage::epoch::{self, Pin};
use crate::storage::memory::{self, Array};
use crate::storage::shared::{Retired, Shared, release, release_with_owner};
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicU64, Ordering};

/// Nodes of a bucket.
const WAYS: usize = 4;
/// Memory for which there is a bucket: with nodes of 4 to 8 KiB a third of the places are taken when the budget is.
const BYTES_PER_BUCKET: usize = 8 << 10;
/// What goes at once: this part of the budget, and not less than that.
const BATCH_PART: u64 = 64;
const BATCH_BYTES_MIN: u64 = 64 << 10;
/// What is less is on the heap: of so few places the processor knows where they are.
const FRAMES_BYTES_MIN: usize = 2 << 20;
/// So often the hand goes round before it takes whatever comes.
const ROUNDS: usize = 8;

/// Four nodes and their blocks. Without any it is zeros: memory that nobody has touched.
#[repr(align(64))]
pub(super) struct Bucket {
    blocks: [AtomicU64; WAYS],
    /// Dropped with the [`Cache`].
    nodes: [ManuallyDrop<Shared<Node>>; WAYS],
}

/// What whoever changes anything has to himself.
#[derive(Default)]
struct Hand {
    /// The bucket to which the clock's hand comes next.
    bucket: usize,
    /// What nobody finds any more, though who has found it before may still look at it.
    retired: Vec<Retired<Node>>,
    /// The memory of that, less than a batch.
    retired_bytes: u64,
}

/// What each node that comes changes; alone on its cache lines.
#[derive(Default)]
#[repr(align(128))]
struct Taken {
    /// Of the nodes that there are, and of those that are retired.
    bytes: AtomicU64,
    /// How often a node was not found.
    misses: AtomicU64,
    hand: Mutex<Hand>,
}

/// The cache.
pub(super) struct Cache {
    buckets: Array<Bucket>,
    /// Of which nodes may take what the buckets leave.
    budget: AtomicU64,
    /// What nodes' contents lie in.
    frames: Frames,
    /// How often a leaf was found.
    hits: Counts<1>,
    taken: Taken,
}

impl Cache {
    /// A cache for nodes of `bytes` at most; the memory is taken as it is touched.
    ///
    /// # Errors
    /// The operating system's, when there is no memory.
    pub(super) fn new(bytes: usize) -> io::Result<Cache> {
        let count = (bytes / BYTES_PER_BUCKET).max(16);
        let budget = bytes.saturating_sub(count * size_of::<Bucket>());
        // Where there is no address space for them they are on the heap.
        let frames =
            Frames::new(if bytes < FRAMES_BYTES_MIN { 0 } else { budget }).or_else(|_| Frames::new(0))?;
        frames.set_limit(budget);
        Ok(Cache {
            buckets: Array::new(count)?,
            budget: AtomicU64::new(budget as u64),
            frames,
            hits: Counts::new(),
            taken: Taken::default(),
        })
    }

    /// The memory that nodes take.
    pub(super) fn bytes(&self) -> u64 {
        self.taken.bytes.load(Ordering::Relaxed)
    }

    /// The memory that the buckets take.
    pub(super) fn table_bytes(&self) -> u64 {
        (self.buckets.len() * size_of::<Bucket>()) as u64
    }

    /// What nodes may take.
    pub(super) fn budget(&self) -> u64 {
        self.budget.load(Ordering::Relaxed)
    }

    /// Has nodes and buckets together take so many bytes at most. The caller is not pinned.
    pub(super) fn set_bytes(&self, bytes: u64) {
        let budget = bytes.saturating_sub(self.table_bytes());
        let retired = {
            let mut hand = self.taken.hand.lock();
            self.budget.store(budget, Ordering::Relaxed);
            let is_less = self.frames.set_limit(budget as usize);
            if is_less {
                self.evict_beyond(&mut hand);
            }
            if self.bytes() - hand.retired_bytes > budget {
                self.evict(&mut hand, 0);
            } else if !is_less {
                return;
            }
            self.take_retired(&mut hand)
        };
        release(retired);
        self.frames.give_back();
    }

    /// What nodes' contents lie in.
    pub(super) fn frames(&self) -> &Frames {
        &self.frames
    }

    /// Whether so much fits without evicting anything.
    pub(super) fn has_room(&self, bytes: u64) -> bool {
        self.bytes() + bytes <= self.budget()
    }

    /// How often a leaf was found.
    pub(super) fn hits(&self) -> u64 {
        self.hits.sums()[0]
    }

    /// How often a node, or a long value, was not found. Asked after each read from disk.
    pub(super) fn misses(&self) -> u64 {
        self.taken.misses.load(Ordering::Relaxed)
    }

    /// Counts a leaf that was found.
    #[inline]
    pub(super) fn note_hit(&self) {
        self.hits.note(0);
    }

    pub(super) fn note_miss(&self) {
        self.taken.misses.fetch_add(1, Ordering::Relaxed);
    }

    #[inline]
    fn bucket(&self, block: u64) -> &Bucket {
        let hash = block.wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let index = ((u128::from(hash) * self.buckets.len() as u128) >> 64) as usize;
        &self.buckets[index]
    }

    /// A node, if it is here.
    #[inline]
    pub(super) fn find<'a>(&'a self, pin: &'a Pin, reference: &NodeReference) -> Option<&'a Node> {
        let bucket = self.bucket(reference.block);
        for way in 0..WAYS {
            if bucket.blocks[way].load(Ordering::Relaxed) != reference.block {
                continue;
            }
            if let Some(node) = bucket.nodes[way].get(pin)
                && node.is(reference)
            {
                node.note_use();
                return Some(node);
            }
        }
        None
    }

    /// Whether a node is here. Does not count as looking at it.
    pub(super) fn has(&self, reference: &NodeReference) -> bool {
        let (bucket, pin) = (self.bucket(reference.block), epoch::pin());
        bucket.nodes.iter().any(|node| node.get(&pin).is_some_and(|node| node.is(reference)))
    }

    /// Has the processor fetch a child, if it is here, and what tells so.
    #[inline]
    pub(super) fn prefetch_child(&self, parent: &Node, index: usize) {
        parent.prefetch_child(index);
        memory::prefetch(self.bucket(parent.child(index).block));
    }

    /// A child, if it is here.
    #[inline]
    pub(super) fn find_child<'a>(&'a self, pin: &'a Pin, parent: &Node, index: usize) -> Option<&'a Node> {
        parent.prefetch_child(index);
        let child = self.find(pin, &parent.child(index))?;
        parent.note_child(index, child);
        Some(child)
    }

    /// A node, if it is here, to be kept.
    pub(super) fn get(&self, reference: &NodeReference) -> Option<Arc<Node>> {
        let bucket = self.bucket(reference.block);
        (0..WAYS).find_map(|way| {
            let is_here = bucket.blocks[way].load(Ordering::Relaxed) == reference.block;
            let node = is_here.then(|| bucket.nodes[way].get_owned())??;
            node.is(reference).then(|| {
                node.note_use();
                node
            })
        })
    }

    /// Keeps a node, in the place of others if there is no room. The caller is not pinned.
    pub(super) fn insert(&self, node: Arc<Node>) {
        let bytes = node.memory_bytes();
        if bytes > self.budget() {
            return;
        }
        let retired = {
            let mut hand = self.taken.hand.lock();
            let has_room = self.has_room(bytes);
            if !has_room {
                self.evict(&mut hand, bytes);
            }
            let bucket = self.bucket(node.block);
            let way = self.way_for(bucket, node.block);
            bucket.blocks[way].store(node.block, Ordering::Relaxed);
            self.put(bucket, way, Some(node), &mut hand);
            if has_room { self.take_batch(&mut hand) } else { self.take_retired(&mut hand) }
        };
        release(retired);
    }

    /// Forgets what a block held. The caller gives what comes out to [`release`].
    pub(super) fn remove(&self, block: u64) -> Vec<Retired<Node>> {
        let mut hand = self.taken.hand.lock();
        let bucket = self.bucket(block);
        if let Some(way) = (0..WAYS).find(|&way| bucket.blocks[way].load(Ordering::Relaxed) == block) {
            self.put(bucket, way, None, &mut hand);
        }
        self.take_batch(&mut hand)
    }

    /// The place of the same block, or an empty one, or that of a node that has not been looked at.
    fn way_for(&self, bucket: &Bucket, block: u64) -> usize {
        let pin = epoch::pin();
        let same = (0..WAYS).find(|&way| bucket.blocks[way].load(Ordering::Relaxed) == block);
        let empty = || (0..WAYS).find(|&way| bucket.nodes[way].get(&pin).is_none());
        let unused = || {
            (0..WAYS).find(|&way| {
                bucket.nodes[way].get(&pin).is_none_or(|node| !node.is_inner() && !node.take_chance())
            })
        };
        same.or_else(empty).or_else(unused).unwrap_or(block as usize % WAYS)
    }

    fn batch_bytes(&self) -> u64 {
        (self.budget() / BATCH_PART).max(BATCH_BYTES_MIN)
    }

    /// Has nodes go until `bytes` have room, and a batch more, once what is retired is [taken](Self::take_retired).
    fn evict(&self, hand: &mut Hand, bytes: u64) {
        let aim = self.budget().saturating_sub(bytes).saturating_sub(self.batch_bytes());
        let mut steps = 0;
        while self.bytes() - hand.retired_bytes > aim {
            let bucket = &self.buckets[hand.bucket];
            hand.bucket = (hand.bucket + 1) % self.buckets.len();
            steps += 1;
            // Readers can give chances as fast as the hand takes them.
            let is_patient = steps <= ROUNDS * self.buckets.len();
            for way in 0..WAYS {
                let pin = epoch::pin();
                let stays = |node: &Node| node.take_chance() && is_patient;
                let goes = bucket.nodes[way].get(&pin).is_some_and(|node| !stays(node));
                if goes {
                    self.put(bucket, way, None, hand);
                }
            }
        }
    }

    /// Has nodes go whose frames lie where there are to be none any more.
    fn evict_beyond(&self, hand: &mut Hand) {
        for bucket in self.buckets.iter() {
            let pin = epoch::pin();
            for way in 0..WAYS {
                let is_beyond = |node: &Node| self.frames.is_beyond(node.frame());
                if bucket.nodes[way].get(&pin).is_some_and(is_beyond) {
                    self.put(bucket, way, None, hand);
                }
            }
        }
    }

    /// Puts something in a place, or nothing; what was there is retired.
    fn put(&self, bucket: &Bucket, way: usize, node: Option<Arc<Node>>, hand: &mut Hand) {
        let pin = epoch::pin();
        hand.retired_bytes += bucket.nodes[way].get(&pin).map_or(0, Node::memory_bytes);
        let bytes = node.as_ref().map_or(0, |node| node.memory_bytes());
        self.taken.bytes.fetch_add(bytes, Ordering::Relaxed);
        hand.retired.extend(bucket.nodes[way].replace(node));
    }

    /// What is retired, if that is a batch. The caller gives it to [`release`], without the hand.
    fn take_batch(&self, hand: &mut Hand) -> Vec<Retired<Node>> {
        if hand.retired_bytes < self.batch_bytes() { Vec::new() } else { self.take_retired(hand) }
    }

    /// All that is retired, as [`Self::take_batch`].
    fn take_retired(&self, hand: &mut Hand) -> Vec<Retired<Node>> {
        self.taken.bytes.fetch_sub(std::mem::take(&mut hand.retired_bytes), Ordering::Relaxed);
        std::mem::take(&mut hand.retired)
    }
}

impl Drop for Cache {
    fn drop(&mut self) {
        release_with_owner(std::mem::take(&mut self.taken.hand.get_mut().retired));
        // Of a large one most was never touched, and is only read.
        for node in self.buckets.iter_mut().flat_map(|bucket| &mut bucket.nodes) {
            drop(node.take());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::pending::Pending;
    use super::*;
    use crate::device::BLOCK_BYTES;
    use crate::storage::epoch::tests::QUIESCED;
    use crate::storage::record::NEVER;

    fn leaf(block: u64) -> Arc<Node> {
        let mut pending = Pending::new(0);
        pending.push_entry(b"key", b"value", false, NEVER);
        let mut bytes = vec![0; BLOCK_BYTES];
        pending.node(1).encode(&mut bytes);
        Arc::new(Node::decode(&Frames::none(), block, 0, &bytes).unwrap())
    }

    /// For each of them all processors were interrupted, and all who were pinned waited for, though there was room: one place in three is taken then, and of a hundred
    /// nodes that come four find their bucket full.
    #[test]
    fn nodes_that_others_find_in_their_place_are_given_back_together() {
        const COUNT: u64 = 32;
        let cache = Cache::new(1 << 20).unwrap();
        let waits = || QUIESCED.with(|quiesced| quiesced.get());
        let is_of_one_bucket = |&block: &u64| std::ptr::eq(cache.bucket(block), cache.bucket(1));
        let (before, mut nodes) = (waits(), Vec::new());
        for block in (1..).filter(is_of_one_bucket).take(COUNT as usize) {
            let node = leaf(block);
            nodes.push(Arc::downgrade(&node));
            cache.insert(node);
        }
        assert_eq!(waits(), before, "readers were waited for because of one node");
        assert_eq!(cache.bytes(), COUNT * leaf(1).memory_bytes(), "what is kept for readers does not count");
        cache.remove(1);
        cache.set_bytes(cache.table_bytes());
        assert_eq!((waits() - before, cache.bytes()), (1, 0));
        assert!(nodes.iter().all(|node| node.upgrade().is_none()), "a node is left that nobody finds");
    }

    #[test]
    fn what_is_to_be_given_back_never_comes_to_more_than_a_batch_and_goes_with_the_cache() {
        let cache = Cache::new(1 << 20).unwrap();
        let is_of_one_bucket = |&block: &u64| std::ptr::eq(cache.bucket(block), cache.bucket(1));
        let mut nodes = Vec::new();
        for block in (1..).filter(is_of_one_bucket).take(2_000) {
            let node = leaf(block);
            nodes.push(Arc::downgrade(&node));
            cache.insert(node);
            assert!(cache.bytes() < BATCH_BYTES_MIN + WAYS as u64 * leaf(1).memory_bytes());
        }
        let kept =
            |nodes: &[std::sync::Weak<Node>]| nodes.iter().filter(|node| node.strong_count() > 0).count();
        assert_eq!(cache.bytes(), kept(&nodes) as u64 * leaf(1).memory_bytes());
        assert!(kept(&nodes) > WAYS);
        let waits = || QUIESCED.with(|quiesced| quiesced.get());
        let before = waits();
        drop(cache);
        assert_eq!(kept(&nodes), 0, "a node has outlived its cache");
        assert_eq!(waits(), before, "in a forked process who was pinned at the fork is waited for in vain");
    }
}
